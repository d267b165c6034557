//! The transport engines.

extern crate ferrovia_roce as roce;

mod responder;
