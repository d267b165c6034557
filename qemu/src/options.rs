//! The options: the machine that a guest runs on.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};

use crate::accel::Choice;
use crate::disks::Disk;
use crate::error::{Error, Result};
use crate::network::Network;

/// The guest's memory unless the user chooses another size.
pub const DEFAULT_MEMORY: Size = Size(512 << 20);
/// The least memory with which every image works.
const LEAST_MEMORY: Size = Size(64 << 20);
/// The most memory: half of 40 address bits; the other half is for devices.
const MOST_MEMORY: Size = Size(512 << 30);

/// The levels of the kernel's log.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The options that all commands share.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Use this QEMU (7.2 or newer) instead of the qemu-system-x86_64 on PATH [env: FERROVIA_QEMU]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Machine")]
    pub qemu: Option<PathBuf>,

    /// Run guests by this: KVM lets them run on the CPU itself, TCG emulates it
    #[arg(long, global = true, value_enum, value_name = "WAY", default_value_t, help_heading = "Machine")]
    pub accel: Choice,

    /// Run the guest on this many CPUs [default: 1; the suite runs on machines with 1 and with 2]
    #[arg(long, global = true, value_name = "N", help_heading = "Machine")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: Option<u32>,

    /// Give the guest this much memory: a number with K, M or G, or of MiB [default: 512M]
    #[arg(long, global = true, value_name = "SIZE", value_parser = Size::parse)]
    #[arg(help_heading = "Machine")]
    pub memory: Option<Size>,

    /// Put this many NICs into the guest [default: 2, and 1 into each machine of `pair`; the suite
    /// runs on machines with 1 and with 2]
    #[arg(long, global = true, value_name = "N", help_heading = "Machine")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8))]
    pub nics: Option<u32>,

    /// Attach FILE to the guest as a disk; may be given several times
    #[arg(long = "disk", global = true, value_name = "FILE", help_heading = "Machine")]
    pub disks: Vec<PathBuf>,

    /// Let the guest only read the disks
    #[arg(long, global = true, help_heading = "Machine")]
    pub read_only: bool,

    /// A disk behind the others, which the guest may write whatever becomes of those.
    #[arg(skip)]
    pub state: Option<PathBuf>,

    /// The last disk fails where it reads or writes this sector: for tests.
    #[arg(skip)]
    pub failing_sector: Option<u64>,

    /// Hand FILE to the guest, beside its command line, which all users of this machine can read:
    /// for keys (docs/storage.md)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Machine")]
    pub module: Option<PathBuf>,

    /// The disks, in place of `disks` with `read_only` (`storage --config`).
    #[arg(skip)]
    pub chosen_disks: Option<Vec<Disk>>,

    /// So many disks of the guest have no medium at first (`storage --slots`).
    #[arg(skip)]
    pub slots: usize,

    /// Other guests have the same disks (`storage --path`).
    #[arg(skip)]
    pub shares_disks: bool,

    /// Have the guest's kernel log messages of this level and above
    #[arg(long, global = true, value_name = "LEVEL", default_value = "warn", help_heading = "Machine")]
    #[arg(value_parser = PossibleValuesParser::new(LEVELS))]
    pub log: String,

    /// End the guest, with an error, when it still runs after this many seconds
    #[arg(long, global = true, value_name = "SECONDS", help_heading = "Machine")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,

    #[expect(missing_docs, reason = "clap would take the text for that of the whole command")]
    #[command(flatten)]
    pub network: Network,
}

impl Default for Options {
    /// The options of a command line without options.
    fn default() -> Options {
        Options {
            qemu: None,
            accel: Choice::Auto,
            cpus: None,
            memory: None,
            nics: None,
            disks: Vec::new(),
            read_only: false,
            state: None,
            failing_sector: None,
            module: None,
            chosen_disks: None,
            slots: 0,
            shares_disks: false,
            log: "warn".into(),
            timeout: None,
            network: Network::default(),
        }
    }
}

impl Options {
    /// The QEMU that the user chose: by `--qemu`, else by the variable FERROVIA_QEMU unless it is
    /// empty.
    pub fn qemu(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os("FERROVIA_QEMU").filter(|path| !path.is_empty());
        self.qemu.clone().or_else(|| variable().map(PathBuf::from))
    }

    /// The time limit of a guest.
    pub fn time_limit(&self) -> Option<Duration> {
        self.timeout.map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// The options, as arguments for the launcher of machine `number` of two that the stream socket
    /// at `socket` joins.
    pub fn of_a_machine(&self, number: usize, socket: &Path) -> Vec<OsString> {
        let accel = self.accel.to_possible_value();
        let accel = accel.map_or_else(Default::default, |value| value.get_name().to_owned());
        let mut arguments: Vec<OsString> =
            ["--log", &self.log, "--accel", &accel].iter().map(OsString::from).collect();
        let mut add = |name: &str, value: Option<OsString>| {
            arguments.extend(value.into_iter().flat_map(|value| [name.into(), value]));
        };
        add("--qemu", self.qemu.clone().map(PathBuf::into_os_string));
        add("--cpus", self.cpus.map(|cpus| cpus.to_string().into()));
        add("--memory", self.memory.map(|size| size.to_string().into()));
        add("--module", self.module.clone().map(PathBuf::into_os_string));
        add("--timeout", self.timeout.map(|seconds| seconds.to_string().into()));
        arguments.extend(self.network.of_an_end(number, socket));
        arguments
    }

    /// The guest's CPUs.
    pub fn cpus(&self) -> u32 {
        self.cpus.unwrap_or(1)
    }

    /// The guest's number of NICs, if the user chose it: by `--nics`, or by a link that needs a
    /// certain number.
    pub fn chosen_nics(&self) -> Option<u32> {
        self.nics.or(self.network.nics())
    }

    /// The guest's NICs.
    pub fn nics(&self) -> u32 {
        self.chosen_nics().unwrap_or(2)
    }

    /// The guest's disks.
    pub fn disks(&self) -> Vec<Disk> {
        let disk = |path: &PathBuf| Disk { path: path.clone(), read_only: self.read_only, failing: None };
        let from_line = || self.disks.iter().map(disk).collect();
        let mut disks: Vec<Disk> = self.chosen_disks.clone().unwrap_or_else(from_line);
        if let Some(last) = disks.last_mut() {
            last.failing = self.failing_sector;
        }
        let state = self.state.iter();
        disks.extend(state.map(|path| Disk { path: path.clone(), read_only: false, failing: None }));
        disks
    }

    /// Refuses disks for a command without a guest; `why` is the reason in the message.
    pub fn check_no_disks(&self, why: &str) -> Result<()> {
        match self.disks.first() {
            Some(disk) => Err(Error::Usage(format!("--disk {}: {why}", disk.display()))),
            None => Ok(()),
        }
    }

    /// The guest's memory in bytes.
    pub fn memory(&self) -> u64 {
        self.memory.unwrap_or(DEFAULT_MEMORY).0
    }
}

/// A number of bytes, a multiple of 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// Rounds up to the next MiB.
    pub fn at_least(bytes: u64) -> Size {
        Size(bytes.div_ceil(1 << 20).saturating_mul(1 << 20))
    }

    /// Reads the size of a guest's memory from the command line.
    pub(crate) fn parse(text: &str) -> Result<Size> {
        let size = Size::of_disk(text)?;
        if size < LEAST_MEMORY {
            return Err(Error::Usage(format!("a guest needs at least {LEAST_MEMORY}")));
        }
        Ok(size)
    }

    /// Reads the size of a disk in a guest's memory from the command line.
    pub(crate) fn of_disk(text: &str) -> Result<Size> {
        let wrong = |why: &str| Error::Usage(why.to_owned());
        let text = text.strip_suffix(['b', 'B']).unwrap_or(text);
        let text = text.strip_suffix('i').unwrap_or(text);
        let (digits, shift) = match text.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&text[..at], 10),
            Some((at, 'm' | 'M')) => (&text[..at], 20),
            Some((at, 'g' | 'G')) => (&text[..at], 30),
            _ => (text, 20),
        };
        let number: u64 = digits.parse().map_err(|_| wrong("not a size like 512M or 2G"))?;
        let size = number.checked_mul(1 << shift).map(Size::at_least).ok_or_else(|| wrong("too large"))?;
        if size == Size(0) {
            return Err(wrong("a size is at least 1M"));
        }
        if size > MOST_MEMORY {
            return Err(Error::Usage(format!("a guest can have {MOST_MEMORY} at most")));
        }
        Ok(size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 >> 20;
        if mib.is_multiple_of(1024) { write!(f, "{}G", mib >> 10) } else { write!(f, "{mib}M") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> std::result::Result<u64, String> {
        Size::parse(text).map(|s| s.0).map_err(|e| e.to_string())
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(bytes("512"), Ok(512 << 20));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        assert_eq!(bytes("102401K"), Ok(101 << 20));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "x", "1.5G", "-1G", "+M", "12T", "é", "1é"] {
            assert_eq!(bytes(text), Err("not a size like 512M or 2G".into()), "{text:?}");
        }
        assert_eq!(bytes("99999999999999999G"), Err("too large".into()));
        assert_eq!(bytes("0"), Err("a size is at least 1M".into()));
        assert_eq!(bytes("1"), Err("a guest needs at least 64M".into()));
        assert_eq!(Size::of_disk("1").map_err(|e| e.to_string()), Ok(Size(1 << 20)));
        assert_eq!(bytes("1024G"), Err("a guest can have 512G at most".into()));
    }
}
