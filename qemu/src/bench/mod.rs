//! The benchmarks: each figure beside its baseline from the same run, as a table and as JSON.
//!
//! The image writes `@bench NAME|VALUE|P99|UNIT|BASELINE` for a figure, with `-` for a missing
//! value, and appends `|WANTED` if the ratio has a bound. It writes `@mark entry` and `@mark
//! first-write` when it gets there; the launcher records the times of these since QEMU's start.

mod figure;
mod iwarp;
mod linux;
mod socket;
mod storage;
mod verbs;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use links::Impairment;

use crate::error::{Error, Result};
use crate::launch::{Launcher, Output, is_crash, print_line};
use crate::network::{Network, Plug, Transport};
use crate::options::Options;
use crate::pair::programs::App;
use crate::pair::together::Machine;
use crate::pair::{self, apart, together};
use crate::progress::Progress;
use crate::vm::Event;
use figure::{Figure, table, to_json};

/// The image that measures on one machine.
const IMAGE: &str = "bench";
/// The NICs of each machine with many connections.
const CROWD_NICS: u32 = 4;
/// The NICs of the machine with virtual interfaces.
const VIA_NICS: u32 = 5;
/// The MTU of the stream link: packets of 4096 bytes fit.
const STREAM_MTU: u32 = 4200;

/// What `bench` is to measure besides, or instead.
#[derive(Args, Clone, Debug)]
pub struct Asked {
    /// Also write the figures to FILE, as a list of {name, value, unit, baseline, ratio, wanted}
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure Linux guests with Soft-RoCE, too, also as hosts and targets of NVMe over RDMA, and
    /// compare (with --transport iwarp guests with siw, and no NVMe); they are made of Debian's
    /// packages
    #[arg(long)]
    pub against_linux: bool,
    /// Measure Debian's perftest on the verbs library, between two processes of this machine, and
    /// nothing else; with --against-linux beside the same between Linux guests with Soft-RoCE
    #[arg(long)]
    pub verbs: bool,
    /// Measure NVMe over RDMA between two machines, and nothing else; with --against-linux also
    /// Linux guests as its hosts and targets
    #[arg(long, conflicts_with = "verbs")]
    pub storage: bool,
}

/// Runs the benchmarks that were asked for; prints the table, and writes the JSON file if there is
/// a path for it. Returns the image's status.
pub fn bench(options: &Options, asked: &Asked) -> Result<u8> {
    let Asked { json, against_linux, .. } = asked;
    let (json, against_linux) = (json.as_deref(), *against_linux);
    if !options.network.links.is_empty() {
        return Err(Error::Usage("bench has links of its own; leave out --link".into()));
    }
    // Tried before the run, so that a file that can't be written does not waste a run.
    let write_json = |figures: &[Figure]| match json {
        Some(path) => std::fs::write(path, to_json(figures))
            .map_err(|source| Error::File { path: path.to_owned(), source }),
        None => Ok(()),
    };
    write_json(&[])?;
    if cfg!(debug_assertions) {
        complain!(
            "ferrovia: this is not a release build; `cargo run --release -- bench` gives figures that count"
        );
    }
    if asked.verbs || asked.storage {
        let (progress, mut figures) = (Progress::begin("bench"), Vec::new());
        if asked.storage {
            figures.extend(storage::between_our_guests(options, &progress)?);
        } else {
            verbs::measure(options, &progress, &mut figures)?;
        }
        if against_linux {
            let mtu = stream_mtu(options);
            figures.extend(match asked.storage {
                true => storage::against_linux(options, mtu, &progress)?,
                false => verbs::beside_linux(options, mtu, &progress, &figures)?,
            });
        }
        drop(progress);
        table(&figures).iter().try_for_each(|line| print_line(line))?;
        write_json(&figures)?;
        return Ok(0);
    }
    let launcher = Launcher::prepare(options, IMAGE)?;
    if options.network.transport() == Transport::Iwarp {
        let (progress, mut figures) = (Progress::begin("bench"), Vec::new());
        let status = iwarp::compare(options, against_linux, &progress, &mut figures)?;
        drop(progress);
        show(launcher.accelerator(), &figures)?;
        write_json(&figures)?;
        return Ok(status);
    }
    let mut boot = Boot::default();
    let mut figures = Vec::new();
    let accelerator = launcher.accelerator();
    let progress = Progress::begin("bench");
    progress.message("booting");
    let mut guest = launcher.start(&[])?;
    let deadline = launcher.deadline(guest.started());
    let mut crashed = false;
    let status = loop {
        match guest.next(deadline)? {
            Event::Line(line) => {
                crashed |= is_crash(&line);
                match line.strip_prefix('@').filter(|_| !crashed).and_then(|line| line.split_once(' ')) {
                    Some(("mark", name)) => boot.mark(name, guest.started()),
                    Some(("bench", text)) => match Figure::parse(text) {
                        Some(figure) => {
                            progress.message(format!("measured {}", figure.name));
                            figures.push(figure);
                        }
                        None => complain!("ferrovia: not a figure: {text}"),
                    },
                    _ => launcher.symbols().annotate(&line).iter().for_each(|line| complain!("{line}")),
                }
            }
            Event::FirstThread => boot.first_thread = Some(guest.started().elapsed()),
            Event::Ended(exit) => break exit.status()?,
            Event::Stalled(silence) => return Err(Error::Stalled(silence)),
            Event::Deadline => return Err(launcher.timed_out()),
        }
    };
    figures.extend(boot.figures());
    let status = match status {
        0 => virtual_interfaces(options, &progress, &mut figures)?,
        failed => failed,
    };
    let two = |nics, words: &[String], figures: &mut Vec<Figure>| {
        two_machines(options, nics, words, &progress, figures)
    };
    let status = match status {
        0 => two(1, &[], &mut figures)?,
        failed => failed,
    };
    let status = match status {
        0 => two(CROWD_NICS, &["plan=crowd".into()], &mut figures)?,
        failed => failed,
    };
    let status = match status {
        0 => over_a_stream(options, &progress, &mut figures)?,
        failed => failed,
    };
    if status == 0 {
        figures.extend(storage::between_our_guests(options, &progress)?);
    }
    if against_linux && status == 0 {
        let mtu = stream_mtu(options);
        figures.extend(linux::compare(options, mtu, &progress, &figures)?);
        figures.extend(storage::against_linux(options, mtu, &progress)?);
    }
    drop(progress);
    show(accelerator, &figures)?;
    write_json(&figures)?;
    Ok(status)
}

/// Prints the table.
fn show(accelerator: impl std::fmt::Display, figures: &[Figure]) -> Result<()> {
    print_line(&format!("guests ran on {accelerator}"))?;
    table(figures).iter().try_for_each(|line| print_line(line))
}

/// Takes a line of the image; false if it is not for the launcher.
fn take(line: &str, progress: &Progress, figures: &mut Vec<Figure>) -> bool {
    let Some(text) = line.strip_prefix("@bench ") else { return line.starts_with("@mark ") };
    let Some(figure) = Figure::parse(text) else { return false };
    progress.message(format!("measured {}", figure.name));
    figures.push(figure);
    true
}

/// Runs the benchmarks of virtual interfaces, and adds their figures.
fn virtual_interfaces(options: &Options, progress: &Progress, figures: &mut Vec<Figure>) -> Result<u8> {
    let launcher = Launcher::prepare(&Options { nics: Some(VIA_NICS), ..options.clone() }, IMAGE)?;
    let mut output = Output::new(launcher.symbols());
    let line = |line: &str| if take(line, progress, figures) { Ok(()) } else { output.line(line) };
    launcher.run(&["plan=via".into()], line, |_| ())
}

/// Runs the benchmarks between two machines with this many NICs each, and adds their figures.
fn two_machines(
    options: &Options,
    nics: u32,
    words: &[String],
    progress: &Progress,
    figures: &mut Vec<Figure>,
) -> Result<u8> {
    let launcher = Launcher::prepare(&Options { nics: Some(nics), ..options.clone() }, IMAGE)?;
    let programs = App::Image(IMAGE.into()).programs(words, pair::addresses(nics));
    let machines = programs.map(|program| Machine { launcher: &launcher, words: program.words });
    together::run(&machines, false, |_, _, line| Ok(take(line, progress, figures)))
}

/// Runs the benchmarks between two machines whose device processes are joined by a stream socket,
/// and adds their figures. The baselines are the rates of such a socket without a device.
fn over_a_stream(options: &Options, progress: &Progress, figures: &mut Vec<Figure>) -> Result<u8> {
    let first = figures.len();
    let status = between_processes(options, "plan=stream", None, progress, figures)?;
    let (messages, bytes) = socket::rates().map_err(|e| Error::system("measure a socket", e))?;
    for figure in figures.iter_mut().skip(first) {
        match figure.unit.as_str() {
            "1/s" => figure.baseline = Some(messages),
            "MB/s" => figure.baseline = Some(bytes),
            _ => {}
        }
    }
    Ok(status)
}

/// Runs a plan of the image on two machines whose device processes are joined by a stream socket.
fn between_processes(
    options: &Options,
    plan: &str,
    impair: Option<Impairment>,
    progress: &Progress,
    figures: &mut Vec<Figure>,
) -> Result<u8> {
    let (mtu, transport) = (Some(stream_mtu(options)), options.network.transport);
    let network = Network { links: vec![Plug::Stream], mtu, transport, impair, ..Network::default() };
    let options = Options { nics: None, network, ..options.clone() };
    let app = App::Image(IMAGE.into());
    let programs = app.programs(&[plan.into()], pair::addresses(1));
    let commands = [0, 1].map(|n| app.command(n, &programs[n]));
    apart::run(&options, &commands, false, |_, line| Ok(take(line, progress, figures)))
}

/// The MTU of links over streams.
fn stream_mtu(options: &Options) -> u32 {
    options.network.mtu.unwrap_or(STREAM_MTU)
}

/// The times from QEMU's start to milestones of the guest.
#[derive(Debug, Default)]
struct Boot {
    entry: Option<Duration>,
    first_thread: Option<Duration>,
    first_write: Option<Duration>,
}

impl Boot {
    fn mark(&mut self, name: &str, started: Instant) {
        match name.trim() {
            "entry" => self.entry = Some(started.elapsed()),
            "first-write" => self.first_write = Some(started.elapsed()),
            _ => {}
        }
    }

    /// The baseline is the time that QEMU and the firmware take until the kernel's first line.
    fn figures(&self) -> impl Iterator<Item = Figure> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let baseline = self.entry.map(ms);
        [
            ("QEMU start to first thread", self.first_thread),
            ("QEMU start to first RDMA Write", self.first_write),
        ]
        .into_iter()
        .filter_map(move |(name, time)| Some(Figure { baseline, ..Figure::new(name, ms(time?), "ms") }))
    }
}
