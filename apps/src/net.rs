//! What servers have in common: the addresses of their port, and one client after the other.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use common::Trying;
use rdma::{Address, CreateError, Nic};

use crate::{Failure, Host, fail, say};

/// The addresses of the NIC's port, IPv4 first: a script that reads one line expects that.
pub(crate) fn addresses(nic: &Nic) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = nic.addresses().map(Address::to_ip).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Says that a server listens at a port: a line for each address of ours.
pub(crate) fn ready(host: &mut Host<'_>, port: u16) {
    for address in addresses(host.nic) {
        say!(host, "ready: {}", SocketAddr::new(address, port));
    }
}

/// Serves `most` clients, one after the other; any number if `most` is 0. `next` waits for a
/// client's first request, and says where it came from; `one` serves the client, and returns what
/// to say of it. Fails if it failed for one.
pub(crate) fn serve<'a, R>(
    host: &mut Host<'a>,
    most: u64,
    next: impl Fn() -> Result<(Address, R), CreateError>,
    mut one: impl FnMut(&mut Host<'a>, R) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let (mut served, mut failed) = (0, 0);
    while most == 0 || served < most {
        let (name, request) = next().trying("listening")?;
        match one(host, request) {
            Ok(what) => say!(host, "{name}: {what}"),
            Err(why) => {
                failed += 1;
                say!(host, "{name}: {why}");
            }
        }
        served += 1;
    }
    if failed == 0 { Ok(()) } else { fail!("{failed} of {served} clients failed") }
}
