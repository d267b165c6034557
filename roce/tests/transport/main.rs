//! The transport engines.

extern crate ferrovia_roce as roce;

mod captures;
mod hostile;
mod longest;
#[path = "../pcap/mod.rs"]
mod pcap;
mod reads;
mod requester;
mod responder;
mod streams;
mod unreliable;
mod window;
mod world;
