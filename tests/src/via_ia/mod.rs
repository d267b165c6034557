//! IAs over the VIA transport: what they report, names, connections, transfers and errors; and
//! connections with virtual interfaces of VIPL.

mod asynchronous;
mod attributes;
mod connect;
mod flags;
mod life;
mod names;
mod rejections;
mod statuses;
mod transfer;
mod with_vipl;

use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::fixture::{Fixture, Pair, Region, page};
use crate::{Failure, Outcome, Test};

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    attributes::TESTS,
    names::TESTS,
    connect::TESTS,
    rejections::TESTS,
    transfer::TESTS,
    flags::TESTS,
    statuses::TESTS,
    asynchronous::TESTS,
    life::TESTS,
    with_vipl::TESTS,
];

/// Those that leave a dead device behind.
pub(crate) const KILLING: &[Test] = life::DEATHS;

/// Attributes of an endpoint over VIA that the peer may read from and write to.
fn open() -> EpAttributes {
    EpAttributes {
        rc: RcAttributes { rdma_read_enable: true, rdma_write_enable: true, ..RcAttributes::default() },
        ..EpAttributes::default()
    }
}

/// A connected pair, and a page on each side.
#[track_caller]
fn open_pair(f: &Fixture) -> Result<(Pair, Region, Region), Failure> {
    let pair = f.pair_of(&open(), &open())?;
    let (own, peer) = (page(f, &pair.a)?, page(f, &pair.b)?);
    Ok((pair, own, peer))
}

/// Injects a fault that concerns the passive side.
#[track_caller]
fn spoil(f: &Fixture, pair: &Pair, what: Injection, count: u32) -> Outcome {
    let number = pair.b.ia.ep_qpn(pair.b.ep)?;
    match f.setup.b.agent.test_handle().inject(number, what, count, 0) {
        Ok(()) => Ok(()),
        Err(error) => Err(Failure::new(alloc::format!("{what:?}: {error:?}"))),
    }
}
