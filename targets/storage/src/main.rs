//! An NVMe over Fabrics target: `cargo run -- storage`. Exports the disks behind virtio-blk and RAM
//! disks, as namespaces of one or several subsystems. Each NIC is a port.
//!
//! Words of the command line: `nqn=NAME`, `port=4420`, `disk-timeout=45` seconds; `serial=TEXT`,
//! without which the serial number is random; for each RAM disk `ram-disk=BYTES`; for each virtio
//! disk, in order, `uuid=HEX`; for namespace N `namespace=N:block-size=BYTES`, and
//! `namespace=N:host=NAME` for each host that sees it, without which all do, and
//! `namespace=N:subsystem=NAME`, without which it is the first one's; `subsystem=NAME` for each
//! other subsystem, and for the Kth of these `of-subsystem=K:serial=TEXT`, and
//! `of-subsystem=K:host=NAME` for each host that alone may use it; `allow-host=NAME`, any number of
//! times, without which any host may connect; `referral=ADDRESS:PORT`, any number of
//! times; `path=N`, of several targets of the subsystem, and `ana=STATE`, how well hosts reach
//! namespaces by it; `state`: the last virtio disk with a medium is none of these, but keeps
//! reservations; `transport=iwarp`, to be reached over TCP; `counters`, for the counters each
//! second; `until-idle`, to end when the last host has left; `control`, to take the operator's
//! commands (`operator`); `grows`, if these may add disks; `slots=N`, if the last N virtio disks
//! have no medium yet.
//!
//! The first module, if there is one, names hosts with their keys, in the form that
//! `nvme::auth::hosts` describes.
//!
//! When the launcher asks it to end, it disconnects all hosts, and ends.
//!
//! Lines: `ready: ADDRESS:PORT` for each address; `connect:` with the command for a Linux host;
//! `idle:` when the last host has left; and `@storage` with the counters, for the launcher.
#![no_std]
#![no_main]

extern crate alloc;

mod figures;
mod operator;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use block::Disk;
use block::ram::{NewError, RamDisk};
use block::view::View;
use common::{Failure, Node, Trying};
use kernel::{Boot, println};
use operator::{Operator, Source};
use platform::Platform;
use storage::target::{
    Config, Control, Export, Host, MOST_NAMESPACES, MOST_WORKERS, SubsystemConfig, Target,
};

/// The subsystem's name unless the user gives another.
const NQN: &str = "nqn.2026-01.org.ferrovia:storage";
/// Bytes of a RAM disk's block, unless the user chooses another size.
const BLOCK: u32 = 512;
/// How often the counters are reported.
const REPORT: Duration = Duration::from_secs(1);

kernel::entry!(main);

fn main(boot: Boot) -> i32 {
    match serve(boot) {
        Ok(()) => 0,
        Err(failure) => {
            println!("error: {failure}");
            1
        }
    }
}

fn serve(boot: Boot) -> Result<(), Failure> {
    // Before anything that takes time: the user may end the target as soon as it is ready.
    let stop_request = kernel::listen_for_stop();
    let args = kernel::args();
    let slots: usize = args.get("slots").map_or(Ok(0), str::parse).trying("slots")?;
    let (exports, sources) = exports(&boot, slots)?;
    let all_disks = boot.disks.clone();
    let mut config = Config::new(args.get("nqn").unwrap_or(NQN), exports);
    config.grows = args.has("grows");
    // A thread for each CPU.
    config.workers = (kernel::cpus() as usize).clamp(1, MOST_WORKERS);
    if args.has("state") {
        config.state = with_medium(&boot, slots).last().cloned();
    }
    if let Some(port) = args.get("port") {
        config.port = port.parse().trying("port")?;
    }
    if let Some(path) = args.get("path") {
        config.path = Some(path.parse().trying("path")?);
    }
    if let Some(state) = args.get("ana") {
        config.ana_state = state.parse().trying("ana")?;
    }
    if let Some(seconds) = args.get("disk-timeout") {
        config.disk_timeout = Duration::from_secs(seconds.parse().trying("disk-timeout")?);
    }
    let allowed: Vec<String> = args.all("allow-host").map(String::from).collect();
    config.allowed = (!allowed.is_empty()).then_some(allowed);
    config.referrals =
        args.all("referral").map(str::parse::<SocketAddr>).collect::<Result<_, _>>().trying("referral")?;
    config.hosts = hosts()?;
    config.subsystems = subsystems()?;
    config.serial = match args.get("serial") {
        Some(serial) => String::from(serial),
        None => random_serial(),
    };
    let others = config.subsystems.iter().map(|other| other.nqn.clone());
    let (nqns, port) = (core::iter::once(config.nqn.clone()).chain(others).collect::<Vec<_>>(), config.port);
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?.over(args.get("transport"))?;
    let disks = config.disks.len();
    let nics = (0..node.agents.len()).map(|number| node.nic(number));
    let nics = nics.collect::<Result<Vec<_>, _>>()?;
    let target = Target::new(&nics, node.privileged, config);
    let mut target = target.map_err(|error| match error {
        storage::Error::OutOfMemory => Failure::new(too_little(disks)),
        other => Failure::new(format!("the target: {other}")),
    })?;
    let addresses = target.addresses();
    if addresses.is_empty() {
        return Err(Failure::new("no port has an address; give each one by --ip"));
    }
    let control = target.control();
    let stop = Box::new(move || {
        stop_request.wait();
        control.stop();
    });
    node.platform.spawn("stop", stop).map_err(|_| "out of memory").trying("a thread")?;
    if args.has("control") {
        let mailbox = Operator::mailbox(&node.platform).map_err(|_| Failure::new(too_little(disks)))?;
        let (platform, control) = (node.platform.clone(), target.control());
        let operator = Operator { platform, control, disks: all_disks, sources };
        let operator = Box::new(move || operator.serve(mailbox));
        node.platform.spawn("operator", operator).map_err(|_| "out of memory").trying("a thread")?;
    }
    for worker in target.workers() {
        let run = Box::new(move || {
            // The target's own thread finds the same error, and reports it.
            let _ = worker.run();
        });
        node.platform.spawn("worker", run).map_err(|_| "out of memory").trying("a thread")?;
    }
    for &address in &addresses {
        println!("ready: {}", SocketAddr::new(address, port));
    }
    for address in addresses.iter().filter(|address| is_for_hosts(address)) {
        for nqn in &nqns {
            println!("connect: nvme connect -t rdma -a {address} -s {port} -n {nqn}");
        }
    }
    let (platform, control) = (node.platform.clone(), target.control());
    let reports = Box::new(move || report(&*platform, &control));
    node.platform.spawn("statistics", reports).map_err(|_| "out of memory").trying("a thread")?;
    target.run().trying("the target")
}

/// The subsystems beside the first one.
fn subsystems() -> Result<Vec<SubsystemConfig>, Failure> {
    let args = kernel::args();
    let named = |nqn: &str| SubsystemConfig { nqn: nqn.into(), serial: random_serial(), hosts: None };
    let mut all: Vec<SubsystemConfig> = args.all("subsystem").map(named).collect();
    for (number, option) in args.all("of-subsystem").filter_map(|word| word.split_once(':')) {
        let wrong = || Failure::new(format!("of-subsystem={number}:{option}: no such option"));
        let place = number.parse::<usize>().trying("of-subsystem")?.checked_sub(1);
        let one = place.and_then(|place| all.get_mut(place)).ok_or_else(wrong)?;
        match option.split_once('=') {
            Some(("serial", text)) => one.serial = text.into(),
            Some(("host", nqn)) => one.hosts.get_or_insert_default().push(nqn.into()),
            _ => return Err(wrong()),
        }
    }
    Ok(all)
}

/// A serial number for a subsystem without one.
fn random_serial() -> String {
    format!("{:016x}", kernel::random_u64())
}

/// The hosts that the launcher's file names, if there is one.
fn hosts() -> Result<Vec<Host>, Failure> {
    let Some(module) = kernel::first_module().trying("the file of hosts")? else { return Ok(Vec::new()) };
    let text = core::str::from_utf8(module.data).trying("the file of hosts")?;
    let hosts = Host::parse_all(text).trying("the file of hosts")?;
    if hosts.is_empty() {
        return Err(Failure::new("the file of hosts names no host, and any host would get in"));
    }
    Ok(hosts)
}

/// What to say when there is too little memory for so many disks.
fn too_little(disks: usize) -> String {
    let size = kernel::memory::size() >> 20;
    format!("{size} MiB of memory are too little for {disks} disks; give the machine more by --memory")
}

/// Whether a host can use an address as it stands: a link-local one needs its interface's name.
fn is_for_hosts(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    }
}

/// Disks to export, and what is behind each namespace.
type Exports = (Vec<Export>, Vec<(u32, Source)>);

/// The disks. The last `slots` of the machine's have no medium.
fn exports(boot: &Boot, slots: usize) -> Result<Exports, Failure> {
    let args = kernel::args();
    let (mut exports, mut sources) = (Vec::new(), Vec::new());
    let mut names = args.all("uuid");
    for (number, disk) in exported(boot, slots).iter().enumerate() {
        sources.push((exports.len() as u32 + 1, Source::Disk(number)));
        let name = names.next().map_or(Ok(0), |name| u128::from_str_radix(name, 16)).trying("uuid")?;
        let chosen = Chosen::of(exports.len() + 1)?;
        let disk = chosen.view(disk.clone()).trying("block-size")?;
        exports.push(chosen.export(disk, name.to_be_bytes()));
    }
    for size in args.all("ram-disk") {
        let bytes: u64 = size.parse().trying("ram-disk")?;
        let chosen = Chosen::of(exports.len() + 1)?;
        let disk = chosen.ram_disk(&boot.platform, bytes);
        let disk = Arc::new(disk.map_err(|_| Failure::new(too_little(exports.len() + 1)))?);
        sources.push((exports.len() as u32 + 1, Source::Ram(disk.clone())));
        exports.push(chosen.export(disk, random_uuid()));
    }
    if exports.len() > MOST_NAMESPACES {
        return Err(Failure::new("there are 64 disks at most"));
    }
    Ok((exports, sources))
}

/// What the user chose for a disk.
#[derive(Default)]
struct Chosen {
    block_size: Option<u32>,
    is_read_only: bool,
    /// The hosts that see it; `None` for all.
    hosts: Option<Vec<String>>,
    /// Its subsystem; `None` for the first one.
    subsystem: Option<String>,
}

impl Chosen {
    /// What the command line has for a namespace.
    fn of(nsid: usize) -> Result<Chosen, Failure> {
        let mut chosen = Chosen::default();
        for (number, option) in kernel::args().all("namespace").filter_map(|word| word.split_once(':')) {
            if number.parse::<usize>().trying("namespace")? != nsid {
                continue;
            }
            match option.split_once('=') {
                Some(("block-size", size)) => chosen.block_size = Some(size.parse().trying("block-size")?),
                Some(("host", nqn)) => chosen.hosts.get_or_insert_default().push(nqn.into()),
                Some(("subsystem", nqn)) => chosen.subsystem = Some(nqn.into()),
                _ => return Err(Failure::new(format!("namespace={number}:{option}: no such option"))),
            }
        }
        Ok(chosen)
    }

    /// A disk as it was chosen.
    fn view(&self, disk: Arc<dyn Disk>) -> Result<Arc<dyn Disk>, block::view::NoView> {
        if !self.is_read_only && self.block_size.is_none_or(|size| size == disk.geometry().block_size) {
            return Ok(disk);
        }
        Ok(Arc::new(View::new(disk, self.block_size, self.is_read_only)?))
    }

    /// The namespace of a disk.
    fn export(self, disk: Arc<dyn Disk>, uuid: [u8; 16]) -> Export {
        Export { disk, uuid, hosts: self.hosts, subsystem: self.subsystem }
    }

    /// A RAM disk as it was chosen.
    fn ram_disk(&self, platform: &Arc<dyn Platform>, bytes: u64) -> Result<RamDisk, NewError> {
        let block = self.block_size.unwrap_or(BLOCK);
        RamDisk::new(platform, block, bytes / u64::from(block))
    }
}

/// The name of a RAM disk: its contents are new each time, so its name is, too.
fn random_uuid() -> [u8; 16] {
    uuid(u128::from(kernel::random_u64()) << 64 | u128::from(kernel::random_u64()))
}

/// The virtio disks that have a medium.
fn with_medium(boot: &Boot, slots: usize) -> &[Arc<dyn Disk>] {
    let count = boot.disks.len().saturating_sub(slots);
    boot.disks.get(..count).unwrap_or_default()
}

/// The virtio disks that are exported: all but the last one, if that keeps the state.
fn exported(boot: &Boot, slots: usize) -> &[Arc<dyn Disk>] {
    let disks = with_medium(boot, slots);
    match disks.split_last() {
        Some((_, others)) if kernel::args().has("state") => others,
        _ => disks,
    }
}

/// A UUID of version 8 (RFC 9562), which the maker fills as it likes.
fn uuid(bits: u128) -> [u8; 16] {
    let mut bytes = bits.to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Looks at the counters each second, and says what they say.
fn report(platform: &dyn Platform, control: &Control) {
    let never = AtomicU32::new(0);
    let (counters, until_idle) = (kernel::args().has("counters"), kernel::args().has("until-idle"));
    let (mut next, mut served) = (platform.now() + REPORT, 0);
    loop {
        while platform.now() < next {
            platform.wait(&never, 0, Some(next));
        }
        next = platform.now() + REPORT;
        let now = control.statistics();
        // A host may have come and gone since the last look.
        let is_idle = now.connections == 0 && now.controllers == 0;
        if is_idle && now.accepted > served {
            served = now.accepted;
            println!("idle: {} connections so far, {} of them broken", now.accepted, now.broken);
            if until_idle {
                return control.stop();
            }
        }
        if !counters {
            continue;
        }
        println!(
            "@storage {} {} {} {} {} {}",
            now.connections, now.reads, now.writes, now.bytes_read, now.bytes_written, now.errors
        );
    }
}
