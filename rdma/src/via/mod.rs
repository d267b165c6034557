//! The dialect of VIA: how virtual interfaces of two nodes find each other and agree, whatever API
//! their consumers use. IT-API over VIA and VIPL both speak it, and so connect to each other.
//!
//! - `names`: discriminators, the service IDs that stand for them, and host addresses.
//! - `offer`: what the two ends of a connection tell each other, and whether they fit.
//! - `endpoint`, `queue`: a virtual interface whose descriptors its endpoint owns, so that requests
//!   are posted to it and completions taken as with a queue pair.
//!
//! A connection is made by the agent's handshake of three ways, over InfiniBand's messages. VIA's
//! own has two ways, a request and an accept: both ends look whether the other one fits, the
//! passive end before it accepts and the active end before it confirms, and consumers see nothing
//! of the confirmation.
//!
//! A request goes to the service ID of the discriminator that it asks for. A listening point for
//! one discriminator listens to that service; whoever waits for any discriminator listens to all
//! of [`SERVICES`], and gets what has no listening point of its own.

mod endpoint;
mod names;
mod offer;
mod queue;

pub use endpoint::{DescriptorEndpoint, FAILED, Sizes};
pub use names::{Digest, Discriminator, MAX_DISCRIMINATOR, SERVICES, gid_of_host};
pub use offer::{Conflict, HIGHEST_PRIORITY, Offer, REP_LEN, REQ_LEN, Request, VERSION};
pub use queue::DescriptorQueue;
