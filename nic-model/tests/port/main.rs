//! The port: ports that talk to each other, frames that Linux sent, and frames that no peer should
//! send.

extern crate ferrovia_nic_model as nic_model;

mod echo;
mod frames;
mod neighbours;
mod packets;
mod support;
mod vlan;
