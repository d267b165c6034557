//! The device as its driver sees it: registers, rings and memory, nothing else.

mod admin;
mod control;
mod data;
mod errors;
mod keys;
mod queues;
mod random;
