//! A hostile driver, and then an honest one.
//!
//! For some seconds this image gives its NICs garbage that a seed decides: commands that are nearly
//! valid, requests, lists, registers, a flooded doorbell FIFO, and words of its own rings that
//! change while the device reads them, with resets in between. Then it resets the NICs, checks that
//! the device has not changed other memory, and moves data through IT-API in the same boot.
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
use common::{Failure, Node, Pair, Sizes, Target, Trying};
use kernel::{Boot, args, clock, println};
use privileged_api::DtoFlags;

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
    let pair = Pair::connect(node.ia(0)?, node.ia(last)?, Sizes { requests: 4, message: BYTES })?;
    let target = Target::new(&node, &pair, BYTES)?;
    let pattern: Vec<u8> = (0..BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    target.source().write(0, &pattern).trying("memory")?;
    target.write(&pair.a, 0, DtoFlags::COMPLETION).trying("it_post_rdma_write")?;
    pair.a.completion(pair.a.requests)?;
    let mut moved = alloc::vec![0; BYTES];
    target.sink().read(0, &mut moved).trying("memory")?;
    if moved != pattern {
        return Err(Failure::new("the honest transfer moved other bytes"));
    }
    target.free(&pair)?;
    pair.free()?;
    println!("hostile: an honest transfer of {BYTES} bytes");
    Ok(())
}
