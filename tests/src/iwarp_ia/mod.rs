//! IAs over iWARP: what they report, names, connections, and what the peer refuses; RDMA Reads to
//! RMRs; sockets that become connections. A part of the tests plays the peer, byte by byte
//! ([`played`]).

mod alike;
mod attributes;
mod breaks;
mod connect;
mod conversions;
mod flags;
mod played;
mod read_to_rmr;
mod reads;
mod refusals;
mod regions;
mod sockets;
mod startup;

use core::result::Result;

use privileged_api::*;

use crate::fixture::{Fixture, Pair, Region, attributes as open, page, sevd};
use crate::{Failure, Test};

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    attributes::TESTS,
    connect::TESTS,
    startup::TESTS,
    alike::TESTS,
    flags::TESTS,
    regions::TESTS,
    refusals::TESTS,
    breaks::TESTS,
    reads::TESTS,
    read_to_rmr::TESTS,
    sockets::TESTS,
    conversions::TESTS,
];

/// Those that kill the device.
pub(crate) const KILLING: &[Test] = conversions::KILLING;

/// Attributes of an endpoint to which peers may not write.
fn closed() -> EpAttributes {
    let mut attributes = open();
    attributes.rc.rdma_write_enable = false;
    attributes
}

/// A connected pair, a page on each side, and on each side an EVD of affiliated events.
struct Scene {
    pair: Pair,
    own: Region,
    peer: Region,
    here: EvdHandle,
    there: EvdHandle,
}

impl Scene {
    #[track_caller]
    fn new(f: &Fixture) -> Result<Scene, Failure> {
        Scene::of(f, &open(), &open())
    }

    /// Of endpoints with these attributes.
    #[track_caller]
    fn of(f: &Fixture, a: &EpAttributes, b: &EpAttributes) -> Result<Scene, Failure> {
        let pair = f.pair_of(a, b)?;
        let (own, peer) = (page(f, &pair.a)?, page(f, &pair.b)?);
        own.fill(1);
        let evd = |ia| sevd(ia, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1);
        Ok(Scene { pair, own, peer, here: evd(&f.a)?, there: evd(&f.b)? })
    }

    /// Frees what the next scene of the same IAs needs: an IA has one EVD of affiliated events.
    #[track_caller]
    fn end(self) -> crate::Outcome {
        for (end, evd) in [(&self.pair.a, self.here), (&self.pair.b, self.there)] {
            end.ia.evd_free(evd)?;
        }
        Ok(())
    }
}
