//! Moves a payload through endpoints of `rdma` in four ways, and prints for each how fast it was
//! and the digest of what arrived. On the tour it prints the adapter's capabilities first, as
//! IT-API has them.
//!
//! With `role=client peer=ADDRESS` on the command line, the payload goes to the machine with
//! `role=server`. With `face=dat` it is moved through DAT endpoints, and with `face=via` through
//! virtual interfaces, in the ways that these APIs have. With `transport=iwarp` the endpoints of
//! `rdma` are connected over TCP.
#![no_std]
#![no_main]

extern crate alloc;

mod control;
mod dat_ways;
mod ends;
mod machines;
mod payload;
mod table;
mod via_ways;
mod ways;

use common::{Failure, Node, Trying};
use kernel::{Boot, println};
use rdma::Transport;

use crate::payload::Payload;

kernel::entry!(main);

/// Requests in flight.
const IN_FLIGHT: usize = 16;
/// Bytes of a message.
const MESSAGE: usize = 1 << 20;

fn main(boot: Boot) -> i32 {
    match run(boot) {
        Ok(()) => 0,
        Err(failure) => {
            println!("error: {failure}");
            1
        }
    }
}

fn run(boot: Boot) -> Result<(), Failure> {
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    let node = node.over(kernel::args().get("transport"))?;
    let other_face = match kernel::args().get("face") {
        Some("dat") => Some(dat_ways::run_all as fn(&Node, &mut Payload) -> ends::Outcome),
        Some("via") => Some(via_ways::run_all as fn(&Node, &mut Payload) -> ends::Outcome),
        _ => None,
    };
    if let Some(run_all) = other_face {
        run_all(&node, &mut Payload::new(&node.platform)?)?;
        node.close();
        return Ok(());
    }
    if let Some(role) = kernel::args().get("role") {
        return machines::run(&node, role);
    }
    if !kernel::args().has("transfer") {
        match node.transport {
            Transport::InfiniBand => {
                let ia = node.ia(0)?;
                table::print(&ia)?;
                ia.ia_free().trying("it_ia_free")?;
            }
            Transport::Iwarp => println!("not shown: the IA's capabilities, which are InfiniBand's"),
        }
    }
    // With a second NIC the two endpoints are on different adapters.
    ways::run_all(&node, [0, node.agents.len().min(2) - 1], &mut Payload::new(&node.platform)?)?;
    node.close();
    Ok(())
}
