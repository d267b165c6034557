//! 1 MiB RDMA Writes to the other machine. The baseline is the device's copy within this one.

use common::{Failure, Node, Trying};
use platform::DmaBuffer;

use super::link::{Link, Wait};
use crate::bandwidth::{self, MESSAGE};

/// Measures and prints.
pub fn measure(node: &Node, link: &Link) -> Result<(), Failure> {
    let copy = DmaBuffer::new(&node.platform, MESSAGE, 4096).map_err(|_| "out of memory").trying("memory")?;
    let post = || link.write_large().trying("it_post_rdma_write");
    bandwidth::measure(node, "two machines: ", (link.bus(), copy.bus()), post, || link.done(Wait::Polling))
}
