//! Between two Ferrovia guests on one device process: the host, and the target, which exports first
//! a disk and then a RAM disk. The baseline of both is the same disk attached to the guest itself.
//! The three are measured in turn, so that other work of the machine affects all of them.
//!
//! The disk is a file without a name, in the memory of this process.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use rustix::fs::MemfdFlags;

use crate::error::{Error, Result};
use crate::launch::{Launcher, Output};
use crate::options::Options;
use crate::pair;
use crate::pair::together::{self, Machine};
use crate::progress::Progress;

use super::client::{self, LOADS, Load, Measured};
use super::{Figure, Sample, Wanted, rates};

/// The size of the disk.
const BYTES: usize = 64 << 20;
/// How long each measurement takes.
const SECONDS: u32 = 1;
/// How often each measurement is repeated.
const ROUNDS: usize = 3;
/// How long all of a guest's measurements may take, in seconds, unless the user says otherwise.
const LIMIT: u32 = 60;

/// The export that lends its memory, in the names of figures.
const RAM_DISK: &str = "a RAM disk";

/// Measures our host and our target.
pub fn between_our_guests(options: &Options, progress: &Progress) -> Result<Vec<Figure>> {
    let disk = disk().map_err(|e| Error::system("make a disk in memory", e))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), disk.as_raw_fd()).into();
    let without = Options { nics: Some(1), timeout: options.timeout.or(Some(LIMIT)), ..options.clone() };
    let with = Options { disks: vec![path], ..without.clone() };
    let host = Launcher::prepare(&without, "storage-client")?;
    let local = Launcher::prepare(&with, "storage-client")?;
    let ram_disk = format!("ram-disk={BYTES}");
    let exports = [
        ("a disk", Launcher::prepare(&with, "storage")?, vec!["until-idle".to_owned()]),
        (RAM_DISK, Launcher::prepare(&without, "storage")?, vec!["until-idle".into(), ram_disk]),
    ];

    // The measurements of each round, for each load.
    let mut baseline = LOADS.map(|_| Vec::new());
    let mut exported = exports.each_ref().map(|_| LOADS.map(|_| Vec::new()));
    for round in 1..=ROUNDS {
        progress.message(format!("storage, {round} of {ROUNDS}: a guest's own disk"));
        let mut measured = Measured::default();
        let mut output = Output::new(local.symbols());
        let line = |line: &str| if measured.take(line) { Ok(()) } else { output.line(line) };
        check(local.run(&client::words("local", SECONDS), line, |_| ())?)?;
        add(&mut baseline, measured)?;
        for ((export, target, words), samples) in exports.iter().zip(&mut exported) {
            progress.message(format!("storage, {round} of {ROUNDS}: our host, and our target with {export}"));
            add(samples, measure(&host, target, words, 1)?)?;
        }
    }
    let mut figures = Vec::new();
    for ((export, ..), ours) in exports.iter().zip(&exported) {
        for ((load, ours), disk) in LOADS.iter().zip(ours).zip(&baseline) {
            let name = format!("two machines: storage, {export}: {}", load.pattern());
            figures.extend(rates(&name, ours, disk, None));
        }
        if *export == RAM_DISK {
            figures.extend(large_beside_small(&format!("two machines: storage, {export}"), ours));
        }
    }
    if options.cpus() > 1 {
        figures.extend(many_cpus(&without, progress)?);
    }
    Ok(figures)
}

/// A host and a target with as many CPUs as the user wants, and as many queues, beside one of each.
fn many_cpus(options: &Options, progress: &Progress) -> Result<Vec<Figure>> {
    let cpus = options.cpus();
    let words = ["until-idle".into(), format!("ram-disk={BYTES}")];
    let pairs = [1, cpus].map(|cpus| -> Result<_> {
        let options = Options { cpus: Some(cpus), ..options.clone() };
        Ok((cpus, Launcher::prepare(&options, "storage-client")?, Launcher::prepare(&options, "storage")?))
    });
    let [one, many] = pairs;
    let mut measured = [(one?, LOADS.map(|_| Vec::new())), (many?, LOADS.map(|_| Vec::new()))];
    for round in 1..=ROUNDS {
        for ((cpus, host, target), samples) in &mut measured {
            progress.message(format!("storage, {round} of {ROUNDS}: as many queues as CPUs, {cpus}"));
            add(samples, measure(host, target, &words, *cpus)?)?;
        }
    }
    // Both guests, and the device process.
    let needed = 2 * cpus as usize + 1;
    let has_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= needed);
    let wanted = Some(Wanted::AtLeast(2.5)).filter(|_| has_cores && cpus >= 4);
    let [(_, one), (_, many)] = &measured;
    let small = LOADS.iter().zip(many.iter().zip(one)).filter(|(load, _)| load.bytes == 4 << 10);
    let figures = small.map(|(load, (many, one))| {
        let name =
            format!("two machines: storage, {RAM_DISK}: {}, {cpus} CPUs and queues beside 1", load.pattern());
        let [iops, _rate] = rates(&name, many, one, wanted.filter(|_| !load.is_write && load.depth == 16));
        iops
    });
    Ok(figures.collect())
}

/// Measures all loads between a host with so many queues and a target.
fn measure(host: &Launcher, target: &Launcher, words: &[String], queues: u32) -> Result<Measured> {
    let mut measured = Measured::default();
    let [_, address] = pair::addresses(1);
    let mut wishes = client::words(&address.to_string(), SECONDS);
    wishes.push(format!("queues={queues}"));
    let machines =
        [Machine { launcher: host, words: wishes }, Machine { launcher: target, words: words.to_vec() }];
    check(together::run(&machines, true, |_, _, line| Ok(measured.take(line)))?)?;
    Ok(measured)
}

/// Requests of 128 KiB beside those of 4 KiB at the same depth: a RAM disk lends its memory, so a
/// large request costs little more than a small one.
fn large_beside_small<'a>(
    disk: &'a str,
    measured: &'a [Vec<Sample>; LOADS.len()],
) -> impl Iterator<Item = Figure> + 'a {
    let of = move |load: Load| LOADS.iter().zip(measured).find(|(other, _)| **other == load);
    LOADS.iter().zip(measured).filter(|(load, _)| load.bytes == 128 << 10).filter_map(move |(load, large)| {
        let (_, small) = of(Load { bytes: 4 << 10, ..*load })?;
        let name = format!("{disk}: {}, beside 4 KiB", load.pattern());
        let [iops, _rate] = rates(&name, large, small, Some(Wanted::AtLeast(0.6)));
        Some(iops)
    })
}

/// Adds a round's measurements to those of earlier rounds.
fn add(samples: &mut [Vec<Sample>; LOADS.len()], measured: Measured) -> Result<()> {
    samples.iter_mut().zip(measured.all()?).for_each(|(samples, sample)| samples.push(sample));
    Ok(())
}

/// An image's status, which should be 0.
fn check(status: u8) -> Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(Error::Tool(format!("storage: an image ended with status {status}")))
    }
}

/// A disk whose blocks are all allocated.
fn disk() -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("ferrovia-bench", MemfdFlags::CLOEXEC)?);
    let piece = vec![0; 1 << 20];
    for _ in 0..BYTES / piece.len() {
        file.write_all(&piece)?;
    }
    Ok(file)
}
