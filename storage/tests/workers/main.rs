//! The tests of `target` with targets of four threads. The first I/O queue of a host is a worker's.

extern crate ferrovia_storage as storage;

#[path = "../target/admin.rs"]
mod admin;
#[path = "../target/ana.rs"]
mod ana;
#[path = "../target/auth.rs"]
mod auth;
#[path = "../target/discovery.rs"]
mod discovery;
#[path = "../target/disks.rs"]
mod disks;
#[path = "../target/lending.rs"]
mod lending;
#[path = "../target/listening.rs"]
mod listening;
#[path = "../target/live.rs"]
mod live;
#[path = "../target/machine.rs"]
mod machine;
#[path = "../target/order.rs"]
mod order;
#[path = "../target/ports.rs"]
mod ports;
#[path = "../target/protocol.rs"]
mod protocol;
#[path = "../target/raw.rs"]
mod raw;
#[path = "../target/requests.rs"]
mod requests;
#[path = "../target/reservations.rs"]
mod reservations;
#[path = "../target/shares.rs"]
mod shares;
mod spread;
#[path = "../target/version2.rs"]
mod version2;

const WORKERS: usize = 4;
