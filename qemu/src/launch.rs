//! Starts an image, and passes its output on.

use std::io::Write;
use std::sync::Once;
use std::time::Instant;

use crate::accel::Accelerator;
use crate::disks;
use crate::error::{Error, Result};
use crate::guests::{Guest, Guests};
use crate::handed::{self, Handed};
use crate::images;
use crate::options::Options;
use crate::progress;
use crate::setup::{Qemu, find_qemu};
use crate::symbols::Symbols;
use crate::vm::{Config, Event, Patience};
use device::frontend::ivshmem::Ivshmem;

/// A built image, and the machine for it.
#[derive(Debug)]
pub struct Launcher {
    qemu: Qemu,
    image: std::path::PathBuf,
    symbols: Symbols,
    options: Options,
    module: Option<Handed>,
}

/// How one of several guests starts.
pub(crate) struct Start<'a> {
    /// Its image and its machine.
    pub launcher: &'a Launcher,
    /// The words on its command line.
    pub words: &'a [String],
    /// Whether its CPUs are stopped until it is released.
    pub held: bool,
}

/// Finds or installs QEMU, and chooses what its guests run on. The user is told that once.
pub(crate) fn qemu(options: &Options) -> Result<Qemu> {
    static TOLD: Once = Once::new();
    let chosen = options.accel.choose()?;
    let qemu = find_qemu(options.qemu().as_deref(), options.time_limit())?;
    TOLD.call_once(|| complain!("ferrovia: {chosen}"));
    Ok(Qemu { accelerator: chosen.accelerator, ..qemu })
}

impl Launcher {
    /// Finds or installs QEMU, and builds the image `name`.
    pub fn prepare(options: &Options, name: &str) -> Result<Launcher> {
        let manifest = images::manifest(name)?;
        disks::check(&options.disks())?;
        disks::check_count(options.disks().len() + options.slots)?;
        let qemu = qemu(options)?;
        let image = images::build(name, &manifest)?;
        let symbols = Symbols::load(&image);
        let module = match &options.module {
            Some(path) => Some(Handed::new(handed::read(path)?.as_bytes())?),
            None => None,
        };
        Ok(Launcher { qemu, image, symbols, options: options.clone(), module })
    }

    /// Hands guests this file in place of the one that the options name, if there is one.
    pub(crate) fn with_module(mut self, module: Option<Handed>) -> Launcher {
        self.module = module.or(self.module);
        self
    }

    /// Starts a guest with `words` on its command line.
    pub fn start(&self, words: &[String]) -> Result<Guest> {
        Guest::start(self.config(words), &Ivshmem, &self.options.network)
    }

    /// Starts guests on one device. Each guest has the options of its launcher; the device has
    /// those of the first one.
    pub(crate) fn start_all<'a>(&self, guests: impl IntoIterator<Item = Start<'a>>) -> Result<Guests> {
        let config = |start: Start<'_>| Config { held: start.held, ..start.launcher.config(start.words) };
        Guests::start(guests.into_iter().map(config), &Ivshmem, &self.options.network)
    }

    fn config(&self, words: &[String]) -> Config {
        let options = &self.options;
        let mut command_line = format!("log={}", options.log);
        for word in words.iter().map(String::as_str).chain(options.network.transport().word()) {
            command_line.push(' ');
            command_line.push_str(word);
        }
        Config {
            qemu: self.qemu.clone(),
            image: self.image.clone(),
            cpus: options.cpus(),
            memory: options.memory(),
            nics: usize::try_from(options.nics()).unwrap_or(usize::MAX),
            disks: options.disks(),
            command_line,
            module: self.module.clone(),
            slots: options.slots,
            shares_disks: options.shares_disks,
            patience: Patience::default(),
            held: false,
        }
    }

    /// When a guest that started at `started` has to be finished.
    pub fn deadline(&self, started: Instant) -> Option<Instant> {
        started.checked_add(self.options.time_limit()?)
    }

    /// The error of a guest that was not finished by its [`Launcher::deadline`].
    pub fn timed_out(&self) -> Error {
        Error::TimedOut(self.options.time_limit().unwrap_or_default())
    }

    /// Names for the addresses in the image's backtraces.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// What the guests run on.
    pub fn accelerator(&self) -> Accelerator {
        self.qemu.accelerator
    }

    /// How many NICs each guest has.
    pub fn nics(&self) -> u32 {
        self.options.nics()
    }

    /// Runs an image to its end and returns its status. `line` gets each line that it writes.
    pub fn run(
        &self,
        words: &[String],
        mut line: impl FnMut(&str) -> Result<()>,
        mut first_thread: impl FnMut(std::time::Duration),
    ) -> Result<u8> {
        let mut guest = self.start(words)?;
        let deadline = self.deadline(guest.started());
        loop {
            match guest.next(deadline)? {
                Event::Line(text) => line(&text)?,
                Event::FirstThread => first_thread(guest.started().elapsed()),
                Event::Ended(exit) => return exit.status(),
                Event::Stalled(silence) => return Err(Error::Stalled(silence)),
                Event::Deadline => return Err(self.timed_out()),
            }
        }
    }
}

/// Passes on the lines of a guest, with names for the addresses in them: to standard output, and
/// from a panic on to standard error.
#[derive(Debug)]
pub struct Output<'a> {
    symbols: &'a Symbols,
    /// The prefix of each line.
    prefix: String,
    broken: bool,
}

/// Whether a line is the first one that the kernel writes when it cannot continue.
pub fn is_crash(line: &str) -> bool {
    line.starts_with("PANIC ") || line.starts_with("FAULT ")
}

impl Output<'_> {
    /// An output that names addresses with `symbols`.
    pub fn new(symbols: &Symbols) -> Output<'_> {
        Output { symbols, prefix: String::new(), broken: false }
    }

    /// An output that also begins each line with a machine's name.
    pub fn of_machine<'a>(symbols: &'a Symbols, name: &str) -> Output<'a> {
        Output { symbols, prefix: format!("{name}: "), broken: false }
    }

    /// Passes a line on.
    pub fn line(&mut self, line: &str) -> Result<()> {
        self.broken |= is_crash(line);
        for line in self.symbols.annotate(line) {
            let line = format!("{}{line}", self.prefix);
            if self.broken {
                complain!("{line}");
            } else {
                print_line(&line)?;
            }
        }
        Ok(())
    }
}

/// Writes a line to standard output, which may be closed.
pub fn print_line(line: &str) -> Result<()> {
    let write = || {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush())
    };
    progress::aside(write).map_err(|e| Error::system("write to standard output", e))
}
