//! The engine: two ends against each other over a stream that is cut anywhere, and one end against
//! a peer that breaks the rules.

extern crate ferrovia_iwarp as iwarp;

mod early;
mod ends;
mod hostile;
mod order;
mod passing;
mod refusals;
mod replay;
mod seeds;
#[path = "../streams/mod.rs"]
mod streams;
mod world;
