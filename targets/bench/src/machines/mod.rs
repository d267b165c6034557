//! The cost of communication between two machines: the client measures, the server answers.
//!
//! Both run the same phases in the same order. A barrier separates them: one empty message in each
//! direction.

mod bandwidth;
mod fleet;
mod link;
mod pingpong;
mod rate;
mod ten;

use alloc::format;
use core::net::Ipv4Addr;

use common::{Failure, Node, Trying};
use kernel::Boot;
use rdma::Address;

use crate::samples::report;
use crate::{interrupt, polled};
use link::Link;

/// The role of this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Connects, and measures.
    Client,
    /// Accepts, and answers.
    Server,
}

/// What is measured.
#[derive(Clone, Copy)]
pub enum Plan {
    /// A connection over the short cut between NICs of one device process.
    ShortCut,
    /// A connection over a stream socket between two device processes.
    Stream,
    /// Many connections over the short cut.
    Crowd,
    /// Ten connections over a stream socket between two device processes.
    Ten,
}

impl Plan {
    fn named(name: Option<&str>) -> Result<Plan, Failure> {
        match name {
            None => Ok(Plan::ShortCut),
            Some("stream") => Ok(Plan::Stream),
            Some("crowd") => Ok(Plan::Crowd),
            Some("ten") => Ok(Plan::Ten),
            Some(other) => {
                Err(Failure::new(format_args!("plan={other}: the plans are stream, crowd and ten")))
            }
        }
    }

    /// The prefix of the names of figures.
    fn name(self) -> &'static str {
        match self {
            Plan::ShortCut | Plan::Crowd => "two machines",
            Plan::Stream | Plan::Ten => "stream",
        }
    }
}

/// Runs all phases.
pub fn run(boot: Boot, role: &str) -> Result<(), Failure> {
    let role = match role {
        "client" => Role::Client,
        "server" => Role::Server,
        _ => return Err(Failure::new(format_args!("role={role}: the roles are client and server"))),
    };
    let plan = Plan::named(kernel::args().get("plan"))?;
    let interrupt = match (role, plan, boot.nics.last()) {
        (Role::Client, Plan::ShortCut | Plan::Stream, Some(nic)) => {
            Some(interrupt::bare(&boot.platform, nic)?)
        }
        _ => None,
    };
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    let node = node.over(kernel::args().get("transport"))?;
    let link = Link::new(&node, role, address(0)?)?;
    match (plan, role) {
        (Plan::Crowd, Role::Client) => {
            let message = pingpong::blocking_send(&link)?;
            fleet::measure(&node, &link, message)?;
        }
        (Plan::Crowd, Role::Server) => {
            pingpong::answer_blocking_send(&link)?;
            fleet::answer(&node, &link)?;
        }
        (Plan::Ten, Role::Client) => ten::measure(&node, &link, plan.name())?,
        (Plan::Ten, Role::Server) => ten::answer(&node, &link)?,
        (_, Role::Client) => {
            let word = polled::bare_word(&node)?;
            let name = plan.name();
            report(&format!("{name}: bare word, device spinning, guest polling"), word, None);
            if let Some(interrupt) = interrupt {
                report(&format!("{name}: bare doorbell and MSI-X, guest halted"), interrupt, None);
                pingpong::measure(&link, name, (word, interrupt))?;
            }
            if let Plan::Stream = plan {
                rate::measure(&link, name)?;
            }
            bandwidth::measure(&node, &link, plan)?;
        }
        (_, Role::Server) => pingpong::answer(&link)?,
    }
    link.barrier(role)?;
    link.close(role)
}

/// The address of one of the peer's NICs; the command line has that of the first one.
fn address(nic: u8) -> Result<Address, Failure> {
    let first = kernel::args().get("peer").unwrap_or_default();
    let first: Ipv4Addr = first.parse().trying("the peer's address, peer=ADDRESS")?;
    let [a, b, c, d] = first.octets();
    Ok(Ipv4Addr::new(a, b, c, d.saturating_add(nic)).into())
}
