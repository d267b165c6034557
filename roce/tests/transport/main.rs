//! The transport engines.

extern crate ferrovia_roce as roce;

mod hostile;
mod requester;
mod responder;
mod streams;
mod unreliable;
mod world;
