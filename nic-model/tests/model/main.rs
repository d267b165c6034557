//! Tests of the device through its interface to the driver: registers, rings and memory.

extern crate ferrovia_nic_model as nic_model;

mod admin;
mod bench;
mod congestion;
mod control;
mod counters;
mod data;
mod datagrams;
mod errors;
mod groups;
mod invalidates;
mod iwarp;
mod keys;
mod overflow;
mod packets;
mod persistence;
mod queues;
mod random;
mod refusals;
mod retries;
mod source_ports;
mod streams;
mod turns;
mod unreliable;
mod vi;
mod waiting;
mod ways;
mod windows;
mod wire;
mod work;
