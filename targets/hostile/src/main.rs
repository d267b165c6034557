//! A hostile driver, and then an honest one.
//!
//! For some seconds this image gives its NICs garbage that a seed decides: commands that are nearly
//! valid, requests, lists, registers, a flooded doorbell FIFO, and words of its own rings that
//! change while the device reads them, with resets in between. Then it resets the NICs, checks that
//! the device has not changed other memory, and moves data in the same boot.
//!
//! Words of the command line: `seed=N` (else 1) and `seconds=N` (else 3). The launcher measures the
//! NICs' heartbeats (`qemu/tests/hostile.rs`).
#![no_std]
#![no_main]

extern crate alloc;

mod attack;
mod memory;
mod nic;

use core::time::Duration;

use alloc::vec::Vec;
use common::{Failure, Node, Trying};
use kernel::{Boot, args, clock, println};
use rdma::Access;

use crate::attack::Counts;
use crate::memory::Memory;
use crate::nic::Nic;
use platform::random::Random;

kernel::entry!(main);

/// Bytes of the honest transfer, and of one message.
const BYTES: usize = 1 << 20;

fn main(boot: Boot) -> i32 {
    match run(boot) {
        Ok(()) => 0,
        Err(failure) => {
            println!("error: {failure}");
            1
        }
    }
}

fn number(key: &str, otherwise: u64) -> Result<u64, Failure> {
    args().get(key).map_or(Ok(otherwise), |text| text.parse().trying(key))
}

fn run(boot: Boot) -> Result<(), Failure> {
    let (seed, seconds) = (number("seed", 1)?, number("seconds", 3)?);
    println!("hostile: seed={seed} seconds={seconds}");
    let mut random = Random::new(seed);
    let memory = Memory::new(&boot.platform, seed)?;
    let mut nics: Vec<Nic> = boot.nics.iter().cloned().map(Nic::new).collect();
    nics.truncate(2);
    let (begun, mut counts, mut rounds) = (clock::now(), Counts::default(), 0);
    while rounds == 0 || clock::now().since(begun) < Duration::from_secs(seconds) {
        attack::round(&mut nics, &memory, &mut random, &mut counts)?;
        rounds += 1;
    }
    for nic in &nics {
        nic.reset(&mut random)?;
    }
    memory.check()?;
    drop(memory);
    let Counts { commands, requests, entries, words } = counts;
    println!("hostile: {rounds} rounds, {commands} commands, {requests} requests, {entries} FIFO entries");
    println!("hostile: {words} words overwritten; memory that is not the device's is unchanged");
    honest(boot)
}

/// Moves data from the first NIC to the last.
fn honest(boot: Boot) -> Result<(), Failure> {
    let last = boot.nics.len().saturating_sub(1);
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    let domain = |nic| node.nic(nic)?.domain().trying("a domain");
    let (from, into) = (domain(0)?, domain(last)?);
    let source = from.region(BYTES).trying("memory")?;
    let sink = into.shared_region(BYTES, Access::WRITE).trying("memory")?;
    let (a, b) = (from.endpoint().build(), into.endpoint().build());
    let (a, b) = (a.trying("an endpoint")?, b.trying("an endpoint")?);
    common::connect(&a, &b)?;
    let pattern: Vec<u8> = (0..BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    source.slice(..).write(&pattern);
    let to = sink.remote().ok_or_else(|| Failure::new("peers may not write the sink"))?;
    common::done(a.write(source.slice(..), to))?;
    if sink.slice(..).to_vec() != pattern {
        return Err(Failure::new("the honest transfer moved other bytes"));
    }
    println!("hostile: an honest transfer of {BYTES} bytes");
    Ok(())
}
