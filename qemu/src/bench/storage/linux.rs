//! Ferrovia's target and that of Linux (nvmet-rdma on a RAM disk), each on its own link: a UNIX
//! stream socket, with the MTU of the other benchmarks' stream link. The hosts are first two Linux
//! guests, then two guests with Ferrovia's host.
//!
//! Our target has what one has in use: its hosts authenticate, each has a key, and its metrics are
//! served. That of Linux lets everybody in.
//!
//! The measurements alternate between the two, so that other work of the machine affects both. A
//! target that is not measured sleeps.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::launch::{self, Launcher};
use crate::linux::image::{Image, Kernel};
use crate::linux::storage::{self, Connect, Plan, Way};
use crate::linux::{Device, Linux, Side};
use crate::network::{Network, Plug};
use crate::options::Options;
use crate::progress::Progress;
use crate::setup::Qemu;
use crate::signals::{Asked, Signals};

use super::client::{self, LOADS, Measured};
use super::launched::Launched;
use super::{Figure, Sample, Wanted, median, pattern, rates};

const NQN: &str = "nqn.2026-01.org.example:bench";
/// The host, which is the same on both sides, and its key. It guards nothing.
const HOST: (&str, &str) = ("nqn.2026-01.org.example:host", "5a1d7b38-3c8e-4f0b-9d55-0f6d5c1c0a77");
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// The size of the RAM disks.
const MIB: u32 = 256;
/// How long each measurement takes, with Linux's host and with ours.
const SECONDS: u32 = 2;
const OUR_SECONDS: u32 = 1;
/// How often each measurement is repeated; an odd number, for the median.
const ROUNDS: usize = 3;
/// How long our guests may take to boot.
const BOOT: Duration = Duration::from_secs(60);
/// How long our host may take for all of its measurements.
const LIMIT: Duration = Duration::from_secs(90);
/// The addresses of host and target, on each link.
const HOST_ADDRESS: &str = "10.0.0.1/24";
const TARGET: &str = "10.0.0.2";

/// The measurements: 4 KiB at depths 1 and 16, 128 KiB at depth 8.
const PLANS: [Plan; 6] = [
    plan(Way::Read, 4 << 10, 1),
    plan(Way::Write, 4 << 10, 1),
    plan(Way::Read, 4 << 10, 16),
    plan(Way::Write, 4 << 10, 16),
    plan(Way::Read, 128 << 10, 8),
    plan(Way::Write, 128 << 10, 8),
];

const fn plan(way: Way, block: u32, depth: u32) -> Plan {
    Plan { way, block, depth, seconds: SECONDS, seed: 1 }
}

/// Compares Ferrovia's target with that of Linux.
pub fn against_linux(options: &Options, mtu: u32, progress: &Progress) -> Result<Vec<Figure>> {
    compare(options, mtu, progress).map_err(|error| {
        // The terminal's Ctrl-C has also ended the guests, which caused the error.
        match Signals::watch().map(Signals::arrived) {
            Ok(Some(Asked::End(signal))) => Error::Interrupted(signal),
            _ => error,
        }
    })
}

fn compare(options: &Options, mtu: u32, progress: &Progress) -> Result<Vec<Figure>> {
    let qemu = launch::qemu(options)?;
    // The launchers of the guests find these images built already.
    for image in ["storage", "storage-client"] {
        Launcher::prepare(options, image)?;
    }
    progress.message("making the Linux guests");
    let (image, host_image) = (Image::find()?, Image::with(Kernel::Newer)?);
    let keys = tempfile::NamedTempFile::new().map_err(|e| Error::system("write the hosts' keys", e))?;
    std::fs::write(&keys, format!("{} key={KEY}\n", HOST.0))
        .map_err(|e| Error::system("write the hosts' keys", e))?;
    let network = Network { links: vec![Plug::Stream], mtu: Some(mtu), ..Network::default() };
    let setting =
        Setting { options: Options { network, ..options.clone() }, qemu, image, host_image, keys, mtu };
    progress.message("storage: booting the targets");
    let targets = [ours(&setting)?, linux(&setting)?];
    let mut figures = by_linux(&setting, &targets, progress)?;
    figures.extend(by_ours(&setting, &targets, progress)?);
    Ok(figures)
}

/// What all guests of the comparison share.
struct Setting {
    /// The options of our launchers.
    options: Options,
    qemu: Qemu,
    /// Linux as a target.
    image: Image,
    /// Linux as a host, which can authenticate.
    host_image: Image,
    /// The file with the hosts of our target, and their keys.
    keys: NamedTempFile,
    mtu: u32,
}

/// A target's link: a socket, which is removed when this is dropped.
struct Link(PathBuf);

impl Link {
    /// `name` distinguishes the links of this process.
    fn new(name: &str) -> Result<Link> {
        crate::temporary::socket(&format!("storage-{name}")).map(Link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // This fails if the listening process has removed the socket already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A target's side, which listens at its link. Hosts connect one after the other.
struct Target {
    side: TargetSide,
    link: Link,
}

enum TargetSide {
    Ours(Launched),
    Linux(Linux),
}

impl Target {
    /// The CPU time that all its threads have used until now: the guest's CPU, the device, and
    /// QEMU's other threads.
    fn cpu_time(&self) -> Result<Duration> {
        match &self.side {
            TargetSide::Ours(launched) => launched.cpu_time(),
            TargetSide::Linux(linux) => Ok(linux.cpu_time()?.total()),
        }
    }
}

/// Starts our target.
fn ours(setting: &Setting) -> Result<Target> {
    let link = Link::new("ours")?;
    let mut arguments = setting.options.of_a_machine(1, &link.0);
    let size = format!("{MIB}M");
    arguments.extend(["storage", "--nqn", NQN, "--ram-disk", &size].map(OsString::from));
    arguments.extend(["--metrics", "127.0.0.1:0", "--hosts"].map(OsString::from));
    arguments.push(setting.keys.path().into());
    let mut launched = Launched::start("our target", arguments)?;
    launched.wait_for("connect: ", BOOT)?;
    Ok(Target { side: TargetSide::Ours(launched), link })
}

/// Starts Linux's target.
fn linux(setting: &Setting) -> Result<Target> {
    let link = Link::new("linux")?;
    let address = format!("{TARGET}/24");
    let Setting { qemu, image, mtu, .. } = setting;
    let device = Device { side: Side::Listen, link: &link.0, addresses: &[&address], mtu: *mtu, mac: 2 };
    let mut linux = Linux::boot(qemu, image, &device)?;
    linux.serve_ram_disk(NQN, TARGET, MIB)?;
    Ok(Target { side: TargetSide::Linux(linux), link })
}

/// Linux as a target's host.
struct LinuxHost<'a> {
    linux: Linux,
    device: String,
    target: &'a Target,
}

/// The result of a measurement, and the CPU time that the target's side used for each request.
struct Measurement {
    sample: Sample,
    cpu_us: f64,
}

impl LinuxHost<'_> {
    fn boot<'a>(setting: &Setting, target: &'a Target) -> Result<LinuxHost<'a>> {
        let Setting { qemu, host_image, mtu, .. } = setting;
        let (link, addresses) = (&target.link.0, &[HOST_ADDRESS]);
        let device = Device { side: Side::Connect, link, addresses, mtu: *mtu, mac: 1 };
        let mut linux = storage::boot(qemu, host_image, &device)?;
        let options = format!("--dhchap-secret={KEY}");
        let connect = Connect { host: Some(HOST), options: &options, ..Connect::to(NQN, TARGET) };
        let devices = linux.connect(&connect, 1)?;
        let device = devices.into_iter().next();
        let device = device.ok_or_else(|| Error::Tool("Linux: the target has no namespace".into()))?;
        Ok(LinuxHost { linux, device, target })
    }

    fn measure(&mut self, plan: &Plan) -> Result<Measurement> {
        let before = self.target.cpu_time()?;
        let load = self.linux.load(&self.device, plan)?;
        let used = self.target.cpu_time()?.saturating_sub(before);
        let sample = Sample { iops: load.iops, rate: load.bytes_per_second };
        Ok(Measurement { sample, cpu_us: used.as_secs_f64() * 1e6 / load.blocks.max(1) as f64 })
    }
}

/// Linux's host against both targets: the figures of ours, with those of Linux's as baselines.
fn by_linux(setting: &Setting, targets: &[Target; 2], progress: &Progress) -> Result<Vec<Figure>> {
    progress.message("storage: booting Linux as the host of both");
    let [ours, theirs] = targets;
    let mut hosts = [LinuxHost::boot(setting, ours)?, LinuxHost::boot(setting, theirs)?];
    let mut figures = Vec::new();
    for (number, plan) in PLANS.iter().enumerate() {
        let pattern = pattern(plan.way == Way::Write, plan.block, plan.depth);
        progress.message(format!("storage: Linux's host: {pattern}"));
        let mut measured = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            progress.share((number * ROUNDS + round) as u64, (PLANS.len() * ROUNDS) as u64);
            for (host, measured) in hosts.iter_mut().zip(&mut measured) {
                measured.push(host.measure(plan)?);
            }
        }
        let name = format!("against Linux: storage, Linux's host: {pattern}");
        let wanted = Wanted::AtLeast(if plan.block == 4 << 10 { 1.25 } else { 1.1 });
        let [ours, theirs] =
            measured.each_ref().map(|all| all.iter().map(|one| one.sample).collect::<Vec<_>>());
        figures.extend(rates(&name, &ours, &theirs, Some(wanted)));
        let [ours, theirs] = measured.map(|all| median(all.iter().map(|one| one.cpu_us)));
        let cpu = Figure::new(format!("{name}, CPU of the target"), ours, "us each");
        figures.push(cpu.against(theirs, Some(Wanted::AtMost(0.5))));
    }
    for host in &mut hosts {
        host.linux.disconnect(NQN)?;
    }
    Ok(figures)
}

/// Our own host against both targets.
fn by_ours(setting: &Setting, targets: &[Target; 2], progress: &Progress) -> Result<Vec<Figure>> {
    let mut measured: [[Vec<Sample>; 2]; LOADS.len()] = Default::default();
    for round in 0..ROUNDS {
        for (number, target) in targets.iter().enumerate() {
            progress.message(format!("storage: our host and {} target", ["our", "Linux's"][number]));
            progress.share((round * targets.len() + number) as u64, (ROUNDS * targets.len()) as u64);
            let mut arguments = setting.options.of_a_machine(0, &target.link.0);
            arguments.extend(["boot", "storage-client"].map(OsString::from));
            arguments.extend(client::words(TARGET, OUR_SECONDS).into_iter().map(OsString::from));
            arguments.extend([format!("nqn={NQN}"), format!("host={}", HOST.0)].map(OsString::from));
            arguments.extend([OsString::from("--module"), setting.keys.path().into()]);
            let mut its = Measured::default();
            let host = Launched::start("our host", arguments)?;
            host.finish(LIMIT, |line| _ = its.take(line))?;
            for (sample, measured) in its.all()?.into_iter().zip(&mut measured) {
                measured[number].push(sample);
            }
        }
    }
    let figures = LOADS.iter().zip(&measured).flat_map(|(load, [ours, theirs])| {
        let name = format!("against Linux: storage, our host: {}", load.pattern());
        rates(&name, ours, theirs, Some(Wanted::AtLeast(3.0)))
    });
    Ok(figures.collect())
}
