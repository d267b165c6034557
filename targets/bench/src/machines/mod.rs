//! The cost between two machines: the client measures, the server answers.
//!
//! Both go through the same phases in the same order. A barrier, one empty message in each
//! direction, separates them.

mod bandwidth;
mod fleet;
mod link;
mod pingpong;

use core::net::Ipv4Addr;

use common::{Failure, Node, Trying};
use kernel::Boot;
use privileged_api::NetAddr;

use crate::samples::report;
use crate::{interrupt, polled};
use link::Link;

/// What this machine does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Connects, and measures.
    Client,
    /// Accepts, and answers.
    Server,
}

/// NICs of each machine: one has not enough queue pairs for all connections.
const NICS: u8 = 2;

/// Goes through all phases.
pub fn run(boot: Boot, role: &str) -> Result<(), Failure> {
    let role = match role {
        "client" => Role::Client,
        "server" => Role::Server,
        _ => return Err(Failure::new(format_args!("role={role}: the roles are client and server"))),
    };
    if boot.nics.len() < usize::from(NICS) {
        return Err(Failure::new("the benchmarks take two NICs in each machine: --nics 2"));
    }
    let interrupt = match role {
        Role::Client => Some(interrupt::bare(&boot.platform, &boot.nics[1])?),
        Role::Server => None,
    };
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    let link = Link::new(&node, role, &address(0)?)?;
    match interrupt {
        Some(interrupt) => {
            let word = polled::bare_word(&node)?;
            report("two machines: bare word, device spinning, guest polling", word, None);
            report("two machines: bare doorbell and MSI-X, guest halted", interrupt, None);
            let message = pingpong::measure(&link, word, interrupt)?;
            bandwidth::measure(&node, &link)?;
            fleet::measure(&node, &link, message)?;
        }
        None => {
            pingpong::answer(&link)?;
            fleet::answer(&node, &link)?;
        }
    }
    link.free(role)
}

/// The address of one of the peer's NICs; the first one's is on the command line.
fn address(nic: u8) -> Result<NetAddr, Failure> {
    let first = kernel::args().get("peer").unwrap_or_default();
    let first: Ipv4Addr = first.parse().trying("the peer's address, peer=ADDRESS")?;
    let [a, b, c, d] = first.octets();
    Ok(NetAddr::Ipv4([a, b, c, d.saturating_add(nic)]))
}
