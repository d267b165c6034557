//! 1 MiB RDMA Writes to the other machine. The baseline is the device's copy within this one.

use alloc::format;

use common::{Failure, Node, Trying};
use platform::DmaBuffer;

use super::Plan;
use super::link::{Link, Wait};
use crate::bandwidth::{self, Extent, MESSAGE};

/// An extent that takes some seconds over packets.
const FEW: Extent = Extent { messages: 64, rounds: 5 };

/// Measures and prints.
pub fn measure(node: &Node, link: &Link, plan: Plan) -> Result<(), Failure> {
    let copy = DmaBuffer::new(&node.platform, MESSAGE, 4096).map_err(|_| "out of memory").trying("memory")?;
    let post = || link.write_large();
    let extent = match plan {
        Plan::ShortCut | Plan::Crowd => Extent::USUAL,
        Plan::Stream | Plan::Ten => FEW,
    };
    let name = format!("{}: ", plan.name());
    bandwidth::measure(node, &name, None, extent, (link.bus(), copy.bus()), post, || link.done(Wait::Polling))
}
