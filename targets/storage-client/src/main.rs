//! A host of an NVMe over Fabrics target: `cargo run -- storage-client ADDRESS`. Reads and writes
//! random pieces of the first namespace, and checks what it reads.
//!
//! Words of the command line: the target's address; `nqn=NAME`, `port=4420`; `host=NAME`, the
//! host's own name; `queues=1`, `depth=16`, `bytes=4096`, `requests=20000`, `writes=50` of 100,
//! `span=0` bytes of the namespace, 0 for all; `seed=1`; and the word `unchecked`, without which
//! patterns are written and checked. **What the namespace held is lost**, unless `writes=0`.
#![no_std]
#![no_main]

use core::fmt::Display;
use core::str::FromStr;

use common::{Failure, Node, Trying};
use kernel::{Boot, println};
use storage::initiator::{Initiator, Options};
use storage::workload::{self, Done, Plan};

/// The name of the target's subsystem unless the user gives another: that of our own image.
const NQN: &str = "nqn.2026-01.org.ferrovia:storage";

kernel::entry!(main);

fn main(boot: Boot) -> i32 {
    match work(boot) {
        Ok(()) => 0,
        Err(failure) => {
            println!("error: {failure}");
            1
        }
    }
}

/// The number `key=…`, or another.
fn number<T: FromStr<Err: Display>>(key: &str, otherwise: T) -> Result<T, Failure> {
    kernel::args().get(key).map_or(Ok(otherwise), |text| text.parse().trying(key))
}

fn work(boot: Boot) -> Result<(), Failure> {
    let args = kernel::args();
    let address = args.words().find(|&word| word != "unchecked");
    let address = address.ok_or_else(|| Failure::new("the target's address is missing"))?;
    let mut options = Options::new(address.parse().trying(address)?, args.get("nqn").unwrap_or(NQN));
    options.port = number("port", options.port)?;
    options.io_queues = number("queues", 1)?;
    if let Some(host) = args.get("host") {
        options.host = host.into();
    }
    let plan = Plan {
        bytes: number("bytes", 4096)?,
        depth: number("depth", 16)?,
        requests: number("requests", 20_000)?,
        writes: number("writes", 50)?,
        span: number("span", 0)?,
        verifies: !args.has("unchecked"),
        seed: number("seed", 1)?,
    };
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    let platform = node.platform.clone();
    let mut host = Initiator::connect(node.ia(0)?, platform.clone(), options).trying("connecting")?;
    let Some(&namespace) = host.namespaces().first() else {
        return Err(Failure::new("the target has no namespace"));
    };
    println!(
        "controller {}: namespace {} of {} blocks of {} bytes, {} queues of {} entries",
        host.controller(),
        namespace.id,
        namespace.blocks,
        namespace.block_size,
        host.io_queues(),
        host.depth()
    );
    let report = |done: &Done| {
        println!("{} reads, {} writes so far: {} a second", done.reads, done.writes, done.iops());
    };
    let done =
        workload::run(&mut host, &platform, &namespace, &plan, &mut { report }).trying("the workload")?;
    let ia = host.disconnect();
    ia.ia_free().trying("it_ia_free")?;
    let checked = if plan.verifies { ", all as written" } else { "" };
    println!(
        "{} reads and {} writes of {} bytes, {} outstanding: {} IOPS, {}.{:03} MB/s{checked}",
        done.reads,
        done.writes,
        plan.bytes,
        plan.depth,
        done.iops(),
        done.rate() / 1_000_000,
        done.rate() / 1000 % 1000
    );
    Ok(())
}
