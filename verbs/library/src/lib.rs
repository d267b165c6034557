//! `libibverbs.so.1` and `librdmacm.so.1`: the verbs and connections, with a NIC in the process.
//!
//! A program that is linked to these loads this library in their place (`LD_LIBRARY_PATH`), and
//! then needs no RDMA hardware, no kernel module and no rights. Its NIC is the device model of
//! Ferrovia in a thread of the program, on a link to other processes and machines (`links`).
//!
//! | module | subject |
//! |---|---|
//! | `environment` | what the user chooses by variables |
//! | `export` | how a function gets a name with a version |
//! | `engine` | the device, and who does its work: its thread, or threads that poll |
//! | `machine` | the NIC: platform, transport, link |
//! | `symbols` | the names that programs load |
//! | `vendors` | the names of vendors' libraries |
//! | `watch` | peers that ended without a word |

#[macro_use]
mod export;
mod engine;
mod environment;
mod machine;
mod symbols;
mod vendors;
mod watch;
