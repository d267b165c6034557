//! A provider library for the registry of DAT 2.0 (`libdat2`), with a NIC in the process.
//!
//! A C program for uDAPL is linked to `libdat2`, which finds the library of an interface adapter
//! (IA) by its name in `dat.conf`, loads it, and calls its functions by a table. This library has
//! that table for the crate `dat`. Its NIC is the device model of Ferrovia in a thread of the
//! program (`process_nic`): no RDMA hardware, no kernel module, no rights.
//!
//! | module | subject |
//! |---|---|
//! | `abi` | structures and numbers, as the headers of uDAPL have them |
//! | `registry` | what `libdat2` calls when it loads the library, and the functions that it gets |
//! | `registered` | IAs by their names, with the table of each |
//! | `cells` | the handles of C: places that are never given back, checked in constant time |
//! | `opened` | an IA that is open, and the calls in progress on it |
//! | `call` | what is around each call: errors, panics, forks |
//! | `address` | socket addresses |
//! | `event` | events as C has them |
//! | `kept` | what C reads behind pointers until a handle ends |
//! | `calls` | the functions of the table, by object |
//! | `extension` | the InfiniBand extensions, whose arguments are a `va_list` |
//! | `watch` | connections whose peers are gone |
//! | `words` | numbers of C that `dat` has as enumerations |
//!
//! # Safety
//!
//! Handles are checked: one that is null, foreign or freed is an error. All other pointers are
//! believed. Memory that is registered stays mapped until it is deregistered.
//!
//! Locks, outermost first: `MACHINES`, the shards of an IA, `naming`, the cells' `list`. All others
//! are leaves. None is held while a call waits for an event.

mod abi;
mod address;
mod call;
mod calls;
mod cells;
mod event;
mod extension;
mod kept;
mod opened;
mod registered;
mod registry;
mod watch;
mod words;
