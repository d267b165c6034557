//! A host of an NVMe over Fabrics target: `cargo run -- storage-client ADDRESS`. Reads and writes
//! random pieces of the first namespace, and checks what it reads. With `local` in the place of the
//! address it does the same to the machine's first disk, without a target: `cargo run --
//! storage-client local --disk FILE`.
//!
//! Words of the command line: the target's address; `nqn=NAME`, `port=4420`; `host=NAME`, the
//! host's own name; `queues=1`, `depth=16`, `bytes=4096`, `requests=20000`, `writes=50` of 100,
//! `span=0` bytes of the namespace, 0 for all; `seed=1`; and the word `unchecked`, without which
//! patterns are written and checked. **What the namespace held is lost**, unless `writes=0`.
//!
//! The first module, if there is one, is a file of hosts in the form that `nvme::auth::hosts`
//! describes: the line of the host itself has the keys by which it and the controller
//! authenticate.
//!
//! For measurements: `seconds=N` ends after this time instead of after so many requests; each
//! `plan=BYTES,DEPTH,WRITES` is a workload, in the place of the one by `bytes`, `depth` and
//! `writes`; `figures` has the line `@load READS WRITES BYTES NANOSECONDS` written after each, for
//! the launcher.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::vec::Vec;
use core::fmt::Display;
use core::str::FromStr;
use core::time::Duration;

use common::{Failure, Node, Trying};
use kernel::{Boot, println};
use storage::initiator::{Authentication, Initiator, Options};
use storage::target::Host;
use storage::workload::{self, Done, Plan, Trouble};

/// The name of the target's subsystem unless the user gives another: that of our own image.
const NQN: &str = "nqn.2026-01.org.ferrovia:storage";
/// What stands in the place of the target's address for a disk of this machine.
const LOCAL: &str = "local";
/// The words without a value.
const FLAGS: [&str; 2] = ["unchecked", "figures"];

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
    let address = kernel::args().words().find(|word| !FLAGS.contains(word));
    match address.ok_or_else(|| Failure::new("the target's address is missing"))? {
        LOCAL => on_disk(boot),
        address => on_target(boot, address),
    }
}

fn on_target(boot: Boot, address: &str) -> Result<(), Failure> {
    let args = kernel::args();
    let mut options = Options::new(address.parse().trying(address)?, args.get("nqn").unwrap_or(NQN));
    options.port = number("port", options.port)?;
    options.io_queues = number("queues", 1)?;
    if let Some(host) = args.get("host") {
        options.host = host.into();
    }
    options.authentication = authentication(&options.host)?;
    let loads = Loads::read()?;
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?.over(args.get("transport"))?;
    let platform = node.platform.clone();
    let mut host = Initiator::connect(&node.nic(0)?, node.privileged, options).trying("connecting")?;
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
    loads.carry_out(|plan, time, report| {
        workload::run_for(&mut host, &platform, &namespace, plan, time, report)
    })?;
    host.disconnect();
    Ok(())
}

/// How the host authenticates, if the launcher's file has a key for it.
fn authentication(host: &str) -> Result<Option<Authentication>, Failure> {
    let Some(module) = kernel::first_module().trying("the file of hosts")? else { return Ok(None) };
    let text = core::str::from_utf8(module.data).trying("the file of hosts")?;
    let hosts = Host::parse_all(text).trying("the file of hosts")?;
    let known = hosts.into_iter().find(|known| known.nqn == host);
    Ok(known.and_then(|known| {
        let Host { controller_key, hashes, groups, .. } = known;
        Some(Authentication { key: known.key?, controller_key, hashes, groups })
    }))
}

fn on_disk(boot: Boot) -> Result<(), Failure> {
    let disk = boot.disks.first();
    let disk = disk.ok_or_else(|| Failure::new("there is no disk; give one by --disk FILE"))?;
    let geometry = disk.geometry();
    println!("a disk of {} blocks of {} bytes", geometry.blocks, geometry.block_size);
    Loads::read()?
        .carry_out(|plan, time, report| workload::run_on_disk(&**disk, &boot.platform, plan, time, report))
}

/// What is done, one after the other.
struct Loads {
    plans: Vec<Plan>,
    /// How long each takes, if that is not up to the number of requests.
    time: Option<Duration>,
}

impl Loads {
    /// Reads the command line.
    fn read() -> Result<Loads, Failure> {
        let args = kernel::args();
        let time = match number("seconds", 0)? {
            0 => None,
            seconds => Some(Duration::from_secs(seconds)),
        };
        let plan = Plan {
            bytes: number("bytes", 4096)?,
            depth: number("depth", 16)?,
            requests: number("requests", if time.is_some() { u64::MAX } else { 20_000 })?,
            writes: number("writes", 50)?,
            span: number("span", 0)?,
            verifies: !args.has("unchecked"),
            seed: number("seed", 1)?,
        };
        let mut plans = Vec::new();
        for text in args.all("plan") {
            let mut parts = text.split(',').map(str::parse::<usize>);
            let (Some(Ok(bytes)), Some(Ok(depth)), Some(Ok(writes)), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(Failure::new(format!("plan={text}: not like plan=4096,16,50")));
            };
            plans.push(Plan { bytes, depth, writes: writes as u64, ..plan });
        }
        if plans.is_empty() {
            plans.push(plan);
        }
        Ok(Loads { plans, time })
    }

    /// Carries all out by `run`, and says what was done.
    fn carry_out(
        &self,
        mut run: impl FnMut(&Plan, Option<Duration>, &mut dyn FnMut(&Done)) -> Result<Done, Trouble>,
    ) -> Result<(), Failure> {
        let mut report = |done: &Done| {
            println!("{} reads, {} writes so far: {} a second", done.reads, done.writes, done.iops());
        };
        for plan in &self.plans {
            let done = run(plan, self.time, &mut report).trying("the workload")?;
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
            if kernel::args().has("figures") {
                println!("@load {} {} {} {}", done.reads, done.writes, done.bytes, done.time.as_nanos());
            }
        }
        Ok(())
    }
}
