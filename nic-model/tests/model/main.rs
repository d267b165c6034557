//! Tests of the device through its interface to the driver: registers, rings and memory.

extern crate ferrovia_nic_model as nic_model;

mod admin;
mod control;
mod data;
mod errors;
mod invalidates;
mod keys;
mod overflow;
mod packets;
mod queues;
mod random;
mod refusals;
mod retries;
mod unreliable;
mod vi;
mod windows;
mod wire;
