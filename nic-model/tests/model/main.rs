//! The device as its driver sees it: registers, rings and memory, nothing else.

extern crate ferrovia_nic_model as nic_model;

mod admin;
mod control;
mod data;
mod errors;
mod keys;
mod queues;
mod random;
