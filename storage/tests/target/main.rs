//! A target and hosts on one machine, over the short cut.

extern crate ferrovia_storage as storage;

mod admin;
mod ana;
mod auth;
mod discovery;
mod disks;
mod lending;
mod listening;
mod live;
mod machine;
mod order;
mod pairs;
mod pairs_at_ports;
mod ports;
mod protocol;
mod raw;
mod requests;
mod reservations;
mod shares;
mod subsystems;
mod version2;

/// The threads of the targets. The same tests run with several in `workers`.
const WORKERS: usize = 1;
