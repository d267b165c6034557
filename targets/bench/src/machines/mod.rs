//! The cost between two machines: the client measures, the server answers.
//!
//! Both go through the same phases in the same order. A barrier, one empty message in each
//! direction, separates them.

mod bandwidth;
mod fleet;
mod link;
mod pingpong;
mod rate;

use alloc::format;
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

/// What joins the machines.
#[derive(Clone, Copy)]
pub enum Over {
    /// The short cut between NICs of one device process.
    ShortCut,
    /// A stream socket between two device processes, for one NIC each. There is no fleet.
    Stream,
}

impl Over {
    fn named(name: Option<&str>) -> Result<Over, Failure> {
        match name {
            None => Ok(Over::ShortCut),
            Some("stream") => Ok(Over::Stream),
            Some(other) => Err(Failure::new(format_args!("over={other}: it may be stream"))),
        }
    }

    /// What the names of figures begin with.
    fn name(self) -> &'static str {
        match self {
            Over::ShortCut => "two machines",
            Over::Stream => "stream",
        }
    }

    fn nics(self) -> usize {
        match self {
            Over::ShortCut => NICS.into(),
            Over::Stream => 1,
        }
    }
}

/// Goes through all phases.
pub fn run(boot: Boot, role: &str) -> Result<(), Failure> {
    let role = match role {
        "client" => Role::Client,
        "server" => Role::Server,
        _ => return Err(Failure::new(format_args!("role={role}: the roles are client and server"))),
    };
    let over = Over::named(kernel::args().get("over"))?;
    if boot.nics.len() < over.nics() {
        return Err(Failure::new("the benchmarks take two NICs in each machine: --nics 2"));
    }
    let interrupt = match (role, boot.nics.last()) {
        (Role::Client, Some(nic)) => Some(interrupt::bare(&boot.platform, nic)?),
        _ => None,
    };
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    let link = Link::new(&node, role, &address(0)?)?;
    match interrupt {
        Some(interrupt) => {
            let word = polled::bare_word(&node)?;
            let name = over.name();
            report(&format!("{name}: bare word, device spinning, guest polling"), word, None);
            report(&format!("{name}: bare doorbell and MSI-X, guest halted"), interrupt, None);
            let message = pingpong::measure(&link, name, (word, interrupt))?;
            if let Over::Stream = over {
                rate::measure(&link, name)?;
            }
            bandwidth::measure(&node, &link, over)?;
            if let Over::ShortCut = over {
                fleet::measure(&node, &link, message)?;
            }
            link.barrier(role)?;
        }
        None => {
            pingpong::answer(&link)?;
            if let Over::ShortCut = over {
                fleet::answer(&node, &link)?;
            }
            link.barrier(role)?;
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
