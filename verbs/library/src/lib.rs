//! `libibverbs.so.1` and `librdmacm.so.1`: the verbs and connections, with a NIC in the process.
//!
//! A program that is linked to these loads this library in their place (`LD_LIBRARY_PATH`), and
//! then needs no RDMA hardware, no kernel module and no rights. Its NIC is the device model of
//! Ferrovia in a thread of the program, on a link to other processes and machines (`process_nic`).
//!
//! | module | subject |
//! |---|---|
//! | `export` | how a function gets a name with a version |
//! | `nic` | the NIC of the process, as the verbs use it |
//! | `seen` | what programs see of the device beside libibverbs |
//! | `symbols` | the names that programs load |
//! | `vendors` | the names of vendors' libraries |

#[macro_use]
mod export;
mod nic;
mod seen;
mod symbols;
mod vendors;
