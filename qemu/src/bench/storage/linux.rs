//! Our target and Linux's (nvmet-rdma on a RAM disk), each with a host of its own on a link of its
//! own: a UNIX stream socket, with the MTU of the other benchmarks' stream link.
//!
//! The measurements alternate between the two, so that what else the machine does hits both. A pair
//! that is not measured sleeps.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::launch::Launcher;
use crate::linux::image::Image;
use crate::linux::storage::{self, Connect, Plan, Way};
use crate::linux::{Device, Linux, Side};
use crate::network::{Network, Plug};
use crate::options::Options;
use crate::progress::Progress;
use crate::setup::{Qemu, find_qemu};
use crate::signals::{Asked, Signals};

use super::launched::Launched;
use super::{Figure, Sample, Wanted, median, pattern, rates};

const NQN: &str = "nqn.2026-01.org.example:bench";
/// The size of the RAM disks.
const MIB: u32 = 256;
/// How long each measurement takes.
const SECONDS: u32 = 2;
/// How often each is made; an odd number, for the median.
const ROUNDS: usize = 3;
/// How long our guests may take to boot.
const BOOT: Duration = Duration::from_secs(60);
/// The addresses of host and target, on each link.
const HOST: &str = "10.0.0.1/24";
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

/// Compares our target with Linux's.
pub fn against_linux(options: &Options, mtu: u32, progress: &Progress) -> Result<Vec<Figure>> {
    compare(options, mtu, progress).map_err(|error| {
        // The terminal's Ctrl-C has ended the guests, too, and that is why there is an error.
        match Signals::watch().map(Signals::arrived) {
            Ok(Some(Asked::End(signal))) => Error::Interrupted(signal),
            _ => error,
        }
    })
}

fn compare(options: &Options, mtu: u32, progress: &Progress) -> Result<Vec<Figure>> {
    let qemu = find_qemu(options.qemu().as_deref(), options.time_limit())?;
    // Their own launchers find it built.
    Launcher::prepare(options, "storage")?;
    progress.message("making the Linux guest");
    let image = Image::find()?;
    let network = Network { link: Some(Plug::Stream), mtu: Some(mtu), ..Network::default() };
    let setting = Setting { options: Options { network, ..options.clone() }, qemu, image, mtu };
    progress.message("storage: booting our target, and Linux as its host");
    let ours = Lane::boot(&setting, "ours", ours)?;
    progress.message("storage: booting Linux as target, and as its host");
    let linux = Lane::boot(&setting, "linux", linux)?;
    by_linux([ours, linux], progress)
}

/// What all guests have in common.
struct Setting {
    /// The options of our launchers.
    options: Options,
    qemu: Qemu,
    image: Image,
    mtu: u32,
}

/// A link's socket, which is removed when this is dropped.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // It fails if the one that listened has removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The side of a target.
enum Target {
    Ours(Launched),
    Linux(Linux),
}

impl Target {
    /// The CPU time that all its threads have used until now: the guest's CPU, the device, and
    /// QEMU's other threads.
    fn cpu_time(&self) -> Result<Duration> {
        match self {
            Target::Ours(launched) => launched.cpu_time(),
            Target::Linux(linux) => Ok(linux.cpu_time()?.total()),
        }
    }
}

/// A target and its host.
struct Lane {
    host: Linux,
    device: String,
    target: Target,
    _socket: Socket,
}

/// What a host measured, and the CPU time that the target's side used for each request.
struct Measured {
    sample: Sample,
    cpu_us: f64,
}

impl Lane {
    fn boot(
        setting: &Setting,
        name: &str,
        target: impl FnOnce(&Setting, &Socket) -> Result<Target>,
    ) -> Result<Lane> {
        let path = format!("ferrovia-{}-storage-{name}", std::process::id());
        let socket = Socket(std::env::temp_dir().join(path));
        let target = target(setting, &socket)?;
        let Setting { qemu, image, mtu, .. } = setting;
        let device = Device { side: Side::Connect, link: &socket.0, addresses: &[HOST], mtu: *mtu, mac: 1 };
        let mut host = storage::boot(qemu, image, &device)?;
        let devices = host.connect(&Connect::to(NQN, TARGET), 1)?;
        let device = devices.into_iter().next();
        let device = device.ok_or_else(|| Error::Tool("Linux: the target has no namespace".into()))?;
        Ok(Lane { host, device, target, _socket: socket })
    }

    fn measure(&mut self, plan: &Plan) -> Result<Measured> {
        let before = self.target.cpu_time()?;
        let load = self.host.load(&self.device, plan)?;
        let used = self.target.cpu_time()?.saturating_sub(before);
        let sample = Sample { iops: load.iops, rate: load.bytes_per_second };
        Ok(Measured { sample, cpu_us: used.as_secs_f64() * 1e6 / load.blocks.max(1) as f64 })
    }
}

/// Starts our target.
fn ours(setting: &Setting, socket: &Socket) -> Result<Target> {
    let mut arguments = setting.options.of_a_machine(1, &socket.0);
    let size = format!("{MIB}M");
    arguments.extend(["storage", "--nqn", NQN, "--ram-disk", &size].map(OsString::from));
    let mut launched = Launched::start("our target", arguments)?;
    launched.wait_for("connect: ", BOOT)?;
    Ok(Target::Ours(launched))
}

/// Starts Linux's target.
fn linux(setting: &Setting, socket: &Socket) -> Result<Target> {
    let address = format!("{TARGET}/24");
    let Setting { qemu, image, mtu, .. } = setting;
    let device = Device { side: Side::Listen, link: &socket.0, addresses: &[&address], mtu: *mtu, mac: 2 };
    let mut linux = Linux::boot(qemu, image, &device)?;
    linux.serve_ram_disk(NQN, TARGET, MIB)?;
    Ok(Target::Linux(linux))
}

/// Linux's host against both targets: our figures, with those of Linux's target as baselines.
fn by_linux(mut lanes: [Lane; 2], progress: &Progress) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (number, plan) in PLANS.iter().enumerate() {
        let pattern = pattern(plan.way == Way::Write, plan.block, plan.depth);
        let mut measured = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            for (lane, measured) in lanes.iter_mut().zip(&mut measured) {
                progress.message(format!("storage: Linux's host, {pattern}"));
                progress.share((number * ROUNDS + round) as u64, (PLANS.len() * ROUNDS) as u64);
                measured.push(lane.measure(plan)?);
            }
        }
        let name = format!("against Linux: storage, Linux's host: {pattern}");
        let wanted = Wanted::AtLeast(if plan.block > 4 << 10 { 1.1 } else { 1.25 });
        let [ours, theirs] =
            measured.each_ref().map(|all| all.iter().map(|one| one.sample).collect::<Vec<_>>());
        figures.extend(rates(&name, &ours, &theirs, Some(wanted)));
        let [ours, theirs] = measured.map(|all| median(all.iter().map(|one| one.cpu_us)));
        let cpu = Figure::new(format!("{name}, CPU of the target"), ours, "us each");
        figures.push(cpu.against(theirs, Some(Wanted::AtMost(0.5))));
    }
    for lane in &mut lanes {
        lane.host.disconnect(NQN)?;
    }
    Ok(figures)
}
