//! The API for Rust programmers: what it promises about memory, ends, errors and drops.

#[macro_use]
mod support;

mod closing;
mod connections;
mod datagrams;
mod fast;
mod memory;
mod requests;
mod shared;
mod watch;
