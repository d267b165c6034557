//! The cost of the stack, measured inside the guest: each figure with a baseline of the same run.
//!
//! With `role=client peer=ADDRESS` on the command line it measures between two machines, of which
//! the other has `role=server`; with `transport=iwarp` over TCP.
//!
//! With `plan=via` it measures virtual interfaces, on a machine with five NICs.
//!
//! The launcher reads the lines `@bench NAME|MEDIAN|P99|UNIT|BASELINE|WANTED`, of which WANTED is
//! optional, and `@mark NAME`.
#![no_std]
#![no_main]

extern crate alloc;

mod bandwidth;
mod immediate;
mod interrupt;
mod machines;
mod polled;
mod samples;
mod via;

use common::it_pair::{Pair, Sizes, Target};
use common::{Failure, Node, Trying};
use kernel::{Boot, println};
use privileged_api::DtoFlags;

kernel::entry!(main);

fn main(boot: Boot) -> i32 {
    println!("@mark entry");
    match run(boot) {
        Ok(()) => 0,
        Err(failure) => {
            println!("error: {failure}");
            1
        }
    }
}

fn run(mut boot: Boot) -> Result<(), Failure> {
    if let Some(role) = kernel::args().get("role") {
        return machines::run(boot, role);
    }
    if kernel::args().get("plan") == Some("via") {
        return via::run(boot);
    }
    // The baseline for interrupts is measured on a NIC without an agent, so its vectors are free.
    let spare = boot.nics.split_off(boot.nics.len().min(1));
    let spare = spare.first().ok_or_else(|| Failure::new("the benchmarks take two NICs: --nics 2"))?;
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    // Both endpoints are on one NIC, as the baselines are measured on one NIC.
    let pair = Pair::connect(node.ia(0)?, node.ia(0)?, Sizes { requests: 64, message: bandwidth::MESSAGE })?;
    let target = Target::new(&node, &pair, 64)?;
    target.write(&pair.a, 0, DtoFlags::COMPLETION).trying("it_post_rdma_write")?;
    pair.a.completion(pair.a.requests)?;
    println!("@mark first-write");
    polled::run(&node, &pair, &target)?;
    immediate::run(&node)?;
    interrupt::run(&node, spare, &pair, &target)?;
    target.free(&pair)?;
    bandwidth::run(&node, &pair)?;
    pair.free()
}
