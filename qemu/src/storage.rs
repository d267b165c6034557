//! `storage`: boots the target of NVMe over Fabrics, and shows its activity on one line. Its
//! operator's commands and figures are in `operator`, its file in `storage_config`.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme::log::AnaState;
use sha2::{Digest, Sha256};

use crate::disks;
use crate::error::{Error, Result};
use crate::handed::{self, Handed};
use crate::launch::{Launcher, Output};
use crate::linux::storage::PORT;
use crate::operator::commands::{Exported, Operator};
use crate::operator::socket::ControlSocket;
use crate::operator::web;
use crate::options::{DEFAULT_MEMORY, Options, Size};
use crate::progress::Progress;
use crate::storage_config::StorageConfig;
use crate::storage_disks::{self, Chosen, DiskOptions, choose, chosen};
use crate::vm::Event;

/// What the target exports, and to which hosts.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Exports {
    /// Export a RAM disk of this size: a number with K, M or G, or of MiB (repeatable)
    #[arg(long = "ram-disk", value_name = "SIZE", value_parser = Size::of_disk)]
    pub(crate) ram_disks: Vec<Size>,
    /// The subsystem's name [default: nqn.2026-01.org.ferrovia:storage]
    #[arg(long, value_name = "NQN", value_parser = word)]
    pub(crate) nqn: Option<String>,
    /// Let only this host connect (repeatable; without it any host may)
    #[arg(long = "allow-host", value_name = "NQN", value_parser = word)]
    pub(crate) allowed: Vec<String>,
    /// Name this discovery service to hosts that ask the target's (repeatable; port 4420 unless
    /// given)
    #[arg(long = "referral", value_name = "ADDRESS[:PORT]", value_parser = referral)]
    pub(crate) referrals: Vec<SocketAddr>,
    /// Let these hosts connect: a line for each, with its name, its key, and what it sees; without
    /// this and --allow-host any host may (docs/storage.md)
    #[arg(long = "hosts", value_name = "FILE", conflicts_with = "module")]
    pub(crate) hosts: Option<PathBuf>,
    /// Keep hosts' reservations in this file, which is made if there is none: so those persist that
    /// a host wants to
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    /// Listen at this port [default: 4420]
    #[arg(long, value_name = "PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Give up a disk that finishes nothing for so many seconds, until it has ended its requests
    /// [default: 45]
    #[arg(long, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=600))]
    pub(crate) disk_timeout: Option<u16>,
    /// This is one of several targets that export the same files as one subsystem: which one
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=8))]
    pub(crate) path: Option<u16>,
    /// How well hosts reach the namespaces by this target at first: optimized, non-optimized or
    /// inaccessible, and `storage-ctl` changes it [default: optimized]
    #[arg(long, value_name = "STATE", value_parser = ana_state)]
    pub(crate) ana: Option<AnaState>,
    /// The subsystem's serial number [default: one that this machine and the subsystem's name give]
    #[arg(long, value_name = "TEXT", value_parser = serial_number)]
    pub(crate) serial: Option<String>,
    /// Take commands at this UNIX socket, for `storage-ctl`
    #[arg(long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
    /// So many files can be added while the target runs [default: 4 with --control]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=disks::MOST as i64))]
    pub(crate) slots: Option<u16>,
    /// Serve the target's figures at this address, for Prometheus (/metrics) and as JSON (/json)
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Take the options that are not given here from this file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Choose for one disk, by the number of its namespace, files first: N:block-size=512 or 4096,
    /// N:host=NQN (repeatable: only these hosts see it), N:subsystem=NQN, N:uuid=UUID, N:read-only
    #[arg(long = "namespace", value_name = "N:OPTION", value_parser = chosen)]
    pub(crate) chosen: Vec<Chosen>,
    /// Serve one more subsystem, with a serial number of its own, and for these hosts alone, if
    /// there are some; disks are its by --namespace N:subsystem=NQN (repeatable, 15 at most)
    #[arg(long = "subsystem", value_name = "NQN[,serial=TEXT][,host=NQN]…", value_parser = subsystem)]
    pub(crate) subsystems: Vec<Subsystem>,
    /// What the file gives to the disks, in their order.
    #[arg(skip)]
    pub(crate) of_disks: Vec<DiskOptions>,
}

/// A subsystem beside the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subsystem {
    pub nqn: String,
    /// Its serial number; `None` for one that this machine and its name give.
    pub serial: Option<String>,
    /// The only hosts that may use it; none for those of the first one.
    pub hosts: Vec<String>,
}

impl Subsystem {
    /// Its serial number.
    pub fn serial(&self) -> String {
        self.serial.clone().unwrap_or_else(|| Names::of(Some(&self.nqn)).serial())
    }

    /// Words for the guest about it, as number `number` of those beside the first one.
    fn words(&self, number: usize) -> Vec<String> {
        let mut words = vec![format!("subsystem={}", self.nqn)];
        words.push(format!("of-subsystem={number}:serial={}", self.serial()));
        words.extend(self.hosts.iter().map(|nqn| format!("of-subsystem={number}:host={nqn}")));
        words
    }
}

/// Reads a subsystem like `nqn.x:y,serial=1,host=nqn.x:z`.
fn subsystem(text: &str) -> std::result::Result<Subsystem, String> {
    let mut parts = text.split(',');
    let nqn = word(parts.next().unwrap_or_default())?;
    nvme::Nqn::new(nqn.as_bytes()).map_err(|_| format!("{nqn:?} is no NQN"))?;
    let mut subsystem = Subsystem { nqn, serial: None, hosts: Vec::new() };
    for part in parts {
        match part.split_once('=') {
            Some(("serial", text)) => subsystem.serial = Some(serial_number(text)?),
            Some(("host", nqn)) => subsystem.hosts.push(word(nqn)?),
            _ => return Err(format!("{part:?} is neither serial=TEXT nor host=NQN")),
        }
    }
    Ok(subsystem)
}

/// Refuses subsystems with the same name, a disk of none of them, and a disk for a host that may
/// not use its subsystem. `allowed`: the only hosts that may use the first one, if they are known.
fn check_subsystems(
    first: Option<&str>,
    others: &[Subsystem],
    of_disks: &[DiskOptions],
    allowed: Option<&[String]>,
) -> Result<()> {
    let first = first.unwrap_or(NQN);
    for (place, other) in others.iter().enumerate() {
        if other.nqn == first || others[..place].iter().any(|before| before.nqn == other.nqn) {
            return Err(Error::Usage(format!("two subsystems have the name {}", other.nqn)));
        }
    }
    for (place, its) in of_disks.iter().enumerate() {
        let Some(nqn) = &its.subsystem else { continue };
        let only = match others.iter().find(|other| other.nqn == *nqn) {
            Some(other) if !other.hosts.is_empty() => Some(&*other.hosts),
            None if nqn != first => {
                return Err(Error::Usage(format!("namespace {}: there is no subsystem {nqn}", place + 1)));
            }
            _ => allowed,
        };
        if let Some(host) = storage_disks::not_allowed(&its.hosts, only) {
            return Err(Error::Usage(format!("namespace {}: {host} may not use {nqn}", place + 1)));
        }
    }
    Ok(())
}

/// The first subsystem's name unless the user gives another (targets/storage).
const NQN: &str = "nqn.2026-01.org.ferrovia:storage";

/// Why a target that shares its files has no RAM disk.
pub(crate) const NO_RAM_DISK: &str = "a RAM disk is the memory of one target, and no other can have it";

/// Files that can be added unless the user says otherwise.
const SLOTS: u16 = 4;
/// Memory for namespaces that are added later.
const SPARE: u64 = 128 << 20;

impl Exports {
    /// Whether a file names more options.
    pub(crate) fn has_file(&self) -> bool {
        self.config.is_some()
    }

    /// The only hosts that may connect; `None` if others may, or a file names them.
    fn only_hosts(&self) -> Option<&[String]> {
        Some(&*self.allowed).filter(|allowed| !allowed.is_empty() && self.hosts.is_none())
    }
}

/// Serves until the guest ends or the user ends it; returns the image's status.
pub fn serve(options: &Options, exports: &Exports) -> Result<u8> {
    let (mut options, mut exports) = (options.clone(), exports.clone());
    if let Some(file) = &exports.config.clone() {
        StorageConfig::read(file)?.complete(&mut options, &mut exports);
        options.network.check()?;
    }
    if options.network.nics().is_none() {
        return Err(Error::Usage(
            "storage needs a link to its hosts, and an address: --link stream:PATH --ip 10.0.0.1/24, and \
             both once more for a second port"
                .into(),
        ));
    }
    if exports.hosts.is_some() && options.module.is_some() {
        return Err(Error::Usage("storage takes hosts from a file or from --module, not from both".into()));
    }
    let mut files = options.disks();
    let is_controlled = exports.control.is_some();
    if exports.slots.is_some() && !is_controlled {
        return Err(Error::Usage("--slots is of use only with --control SOCKET".into()));
    }
    if exports.ram_disks.is_empty() && files.is_empty() && !is_controlled {
        return Err(Error::Usage("storage needs something to export: --disk FILE or --ram-disk SIZE".into()));
    }
    if exports.path.is_some() && !exports.ram_disks.is_empty() {
        return Err(Error::Usage(format!("storage --path: {NO_RAM_DISK}")));
    }
    if exports.path.is_some() && exports.state.is_some() {
        return Err(Error::Usage(
            "storage --path: targets that share files have no reservations, and so no --state".into(),
        ));
    }
    let of_disks = choose(&exports.of_disks, &exports.chosen, files.len() + exports.ram_disks.len())?;
    for (file, its) in files.iter_mut().zip(&of_disks) {
        file.read_only |= its.is_read_only;
    }
    options.chosen_disks = Some(files.clone());
    storage_disks::check(&files, &of_disks, exports.only_hosts())?;
    check_subsystems(exports.nqn.as_deref(), &exports.subsystems, &of_disks, exports.only_hosts())?;
    options.shares_disks = exports.path.is_some();
    if let Some(state) = &exports.state {
        make_state(state)?;
        options.state = Some(state.clone());
    }
    // With the state's, behind which the slots are.
    let attached = options.disks();
    let slots = exports.slots.filter(|_| is_controlled).or(is_controlled.then_some(SLOTS));
    // Those that there is room for, unless the user wants a number.
    let most = disks::MOST.saturating_sub(attached.len());
    options.slots = usize::from(slots.unwrap_or(0));
    if exports.slots.is_none() {
        options.slots = options.slots.min(most);
    }
    let spare = if is_controlled { SPARE } else { 0 };
    let saved = StorageConfig::of(&options, &exports);
    let ports = options.network.nics().unwrap_or(1);
    let spare = spare + of_workers(options.cpus(), (files.len() + exports.ram_disks.len()) as u64, ports);
    options.memory.get_or_insert(memory(files.len(), &exports.ram_disks, spare, ports));
    let mut words: Vec<String> = vec!["counters".into(), format!("port={}", exports.port.unwrap_or(PORT))];
    words.push(format!("disk-timeout={}", exports.disk_timeout.unwrap_or(45)));
    words.extend(exports.state.iter().map(|_| "state".into()));
    words.extend(exports.path.iter().map(|path| format!("path={path}")));
    words.extend(exports.ana.iter().map(|state| format!("ana={state}")));
    words.extend(exports.nqn.iter().map(|nqn| format!("nqn={nqn}")));
    words.extend(exports.referrals.iter().map(|place| format!("referral={place}")));
    words.extend(exports.allowed.iter().map(|nqn| format!("allow-host={nqn}")));
    let names = Names::of(exports.nqn.as_deref());
    words.push(format!("serial={}", exports.serial.clone().unwrap_or_else(|| names.serial())));
    for (number, disk) in files.iter().enumerate() {
        let given = of_disks.get(number).and_then(|its| its.uuid.clone());
        words.push(format!("uuid={}", given.map_or_else(|| names.uuid(&disk.path), Ok)?));
    }
    words.extend(exports.ram_disks.iter().map(|size| format!("ram-disk={}", size.0)));
    words.extend((1..).zip(&exports.subsystems).flat_map(|(number, one)| one.words(number)));
    words.extend((1..).zip(&of_disks).flat_map(|(nsid, its)| its.words(nsid)));
    if is_controlled || exports.metrics.is_some() {
        words.push("control".into());
        words.extend(is_controlled.then(|| "grows".into()));
        words.push(format!("slots={}", options.slots));
    }
    // Before anything that takes time, and once: it may be a pipe.
    let hosts = exports.hosts.as_deref().map(hosts).transpose()?;
    let hosts = hosts.map(|text| Handed::new(text.as_bytes())).transpose()?;
    let launcher = Launcher::prepare(&options, "storage")?.with_module(hosts);
    let mut output = Output::new(launcher.symbols());
    let progress = Progress::begin("storage");
    progress.message("booting");
    let mut guest = launcher.start(&words)?;
    let hosts = of_disks.into_iter().map(|its| its.hosts).collect();
    let disks = Exported { files: attached, slots: options.slots, hosts };
    let operator = Operator::new(guest.mailbox(), guest.caller()?, names, disks, saved);
    let _socket = exports.control.as_deref().map(|path| {
        let operator = operator.clone();
        ControlSocket::listen(path, Arc::new(move |line| operator.answer(line)))
    });
    let _socket = _socket.transpose()?;
    if let Some(address) = exports.metrics {
        let address = web::serve(address, move || operator.metrics().ok())?;
        output.line(&format!("metrics: http://{address}/metrics"))?;
    }
    let deadline = launcher.deadline(guest.started());
    let mut last = Counters::default();
    loop {
        match guest.next(deadline)? {
            Event::Line(line) => match Counters::parse(&line) {
                Some(now) => {
                    progress.message(now.since(&last));
                    last = now;
                }
                None => output.line(&line)?,
            },
            Event::FirstThread => {}
            Event::Ended(exit) => return exit.status(),
            Event::Stalled(silence) => return Err(Error::Stalled(silence)),
            Event::Deadline => return Err(launcher.timed_out()),
        }
    }
}

/// The bytes of a new state file: more than the target needs.
const STATE: u64 = 1 << 20;

/// Makes the state file, of zeros, unless it is there.
fn make_state(path: &Path) -> Result<()> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => file.set_len(STATE).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// The text of a file of hosts, unless the target would not take it.
pub(crate) fn hosts(path: &Path) -> Result<String> {
    let text = handed::read(path)?;
    let wrong = |what: &dyn std::fmt::Display| Error::Usage(format!("{}: {what}", path.display()));
    let mut count = 0;
    for host in nvme::auth::hosts::parse(&text) {
        host.map_err(|error| wrong(&error))?;
        count += 1;
    }
    match count {
        0 => Err(wrong(&"it names no host")),
        _ => Ok(text),
    }
}

/// What a namespace takes of the guest's memory for each port: the buffers for its data, and its
/// part of the queues (`storage::target::Config::memory`).
const NAMESPACE: u64 = 18 << 20;
/// What a port takes beside that, but for the first: the buffers for capsules, and queues.
const MORE_PORT: u64 = 128 << 20;

/// What a thread of the target beside the first takes for each port, and for each namespace of it.
const WORKER: u64 = 8 << 20;
const WORKER_NAMESPACE: u64 = 5 << 20;

/// What the threads of a target take beside the first one: there is one for each CPU.
fn of_workers(cpus: u32, namespaces: u64, ports: u32) -> u64 {
    let more = u64::from(cpus.saturating_sub(1)) * u64::from(ports);
    more * (WORKER + namespaces * WORKER_NAMESPACE)
}

/// The memory of a guest that serves so many files and these RAM disks by so many ports, with some
/// to spare.
fn memory(files: usize, ram_disks: &[Size], spare: u64, ports: u32) -> Size {
    let disks: u64 = ram_disks.iter().map(|size| size.0).sum::<u64>() + spare;
    let (namespaces, ports) = ((files + ram_disks.len()) as u64, u64::from(ports));
    let of_ports = ports * namespaces * NAMESPACE + ports.saturating_sub(1) * MORE_PORT;
    Size::at_least(DEFAULT_MEMORY.0.saturating_add(disks).saturating_add(of_ports))
}

/// The names that hosts know disks by. They stay the same as long as this machine, the subsystem's
/// name and a file's path do, whatever becomes of the file: a copy that replaces it is the same
/// disk. The machine is part of them, since targets on two machines may serve files with equal
/// paths.
pub(crate) struct Names(Sha256);

impl Names {
    pub fn of(nqn: Option<&str>) -> Names {
        let mut machine = ["/etc/machine-id", "/var/lib/dbus/machine-id"].iter();
        let machine = machine.find_map(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        Names::on(machine.trim(), nqn)
    }

    fn on(machine: &str, nqn: Option<&str>) -> Names {
        let mut digest = Sha256::new();
        for part in [machine, nqn.unwrap_or_default()] {
            digest.update(part);
            digest.update([0]);
        }
        Names(digest)
    }

    /// The serial number of the subsystem: 16 hexadecimal digits.
    fn serial(&self) -> String {
        hex(&self.0.clone().finalize()[..8])
    }

    /// The identifier of a disk, in hexadecimal: by its folder, however that is written, and the
    /// name of the file there.
    pub(crate) fn uuid(&self, disk: &Path) -> Result<String> {
        let failed = |source| Error::File { path: disk.to_owned(), source };
        let path = std::path::absolute(disk).map_err(failed)?;
        let folder = path.parent().unwrap_or(&path).canonicalize().map_err(failed)?;
        let name = path.file_name().unwrap_or_default();
        let mut digest = self.0.clone();
        digest.update(folder.join(name).as_os_str().as_encoded_bytes());
        let digest = digest.finalize();
        let mut uuid: [u8; 16] = std::array::from_fn(|n| digest[n]);
        // Version 8 (RFC 9562), which the maker fills as it likes.
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Ok(hex(&uuid))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A serial number, as a word of the kernel's command line.
pub(crate) fn serial_number(text: &str) -> std::result::Result<String, String> {
    if !(1..=20).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a serial number has 1 to 20 printable ASCII characters, and no blanks".into());
    }
    word(text)
}

/// A state that paths may have at first.
pub(crate) fn ana_state(text: &str) -> std::result::Result<AnaState, String> {
    match text.parse() {
        Ok(state @ (AnaState::Optimized | AnaState::NonOptimized | AnaState::Inaccessible)) => Ok(state),
        _ => Err("no state to begin with; there are optimized, non-optimized, inaccessible".into()),
    }
}

/// The place of a discovery service.
pub(crate) fn referral(text: &str) -> std::result::Result<SocketAddr, String> {
    let address = || text.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
    text.parse().or_else(|_| address()).map_err(|_| {
        "no place of a discovery service: write ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT".to_owned()
    })
}

/// A word of the kernel's command line.
pub(crate) fn word(text: &str) -> std::result::Result<String, String> {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c == '"') {
        return Err("a name has no blanks and no quotation marks".into());
    }
    Ok(text.to_owned())
}

/// The target's counters, which it reports each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    connections: u64,
    reads: u64,
    writes: u64,
    bytes_read: u64,
    bytes_written: u64,
    errors: u64,
}

impl Counters {
    fn parse(line: &str) -> Option<Counters> {
        let mut words = line.strip_prefix("@storage ")?.split(' ').map(|word| word.parse().ok());
        let mut next = || words.next().flatten();
        Some(Counters {
            connections: next()?,
            reads: next()?,
            writes: next()?,
            bytes_read: next()?,
            bytes_written: next()?,
            errors: next()?,
        })
    }

    /// The activity in the second since `last`, in words.
    fn since(&self, last: &Counters) -> String {
        let mb = |now: u64, then: u64| now.saturating_sub(then) as f64 / 1e6;
        format!(
            "{} connections, {} reads/s {:.1} MB/s, {} writes/s {:.1} MB/s, {} errors in all",
            self.connections,
            self.reads.saturating_sub(last.reads),
            mb(self.bytes_read, last.bytes_read),
            self.writes.saturating_sub(last.writes),
            mb(self.bytes_written, last.bytes_written),
            self.errors
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_keeps_its_name_while_its_file_keeps_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("disk.img"), folder.path().join("copy"));
        std::fs::write(&path, "one").expect("write");
        let names = Names::on("machine", None);
        let uuid = |path: &Path| names.uuid(path).expect("it is there");
        let first = uuid(&path);
        // A restored backup, and most editors: another file gets the name.
        std::fs::write(&copy, "two").expect("write");
        std::fs::rename(&copy, &path).expect("rename");
        assert_eq!(uuid(&path), first);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).expect("a link");
        assert_eq!(uuid(&link.join("./disk.img")), first, "the same folder");
        assert_ne!(uuid(&folder.path().join("other.img")), first);
        for other in [Names::on("another machine", None), Names::on("machine", Some("nqn.x:y"))] {
            assert_ne!(other.uuid(&path).expect("it is there"), first);
            assert_ne!(other.serial(), names.serial());
        }
        assert_eq!(Names::on("machine", None).serial(), names.serial(), "at each start");
        assert!(names.serial().len() == 16 && first.len() == 32);
    }

    #[test]
    fn a_file_of_hosts_with_a_fault_is_refused_with_its_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hosts");
        let key = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
        let right = format!("nqn.2026-01.org.x:a key={key}\n");
        std::fs::write(&path, &right).expect("write");
        hosts(&path).expect("hosts");
        let wrong = right.replace("AAEC", "AAED");
        for (text, said) in [
            (format!("{right}\n{wrong}"), "line 3: key=: the checksum of a key is wrong"),
            (format!("{right}{right}"), "line 2: this host is there twice"),
            ("# nobody\n".into(), "it names no host"),
        ] {
            std::fs::write(&path, text).expect("write");
            let error = hosts(&path).expect_err("a fault").to_string();
            assert!(error.ends_with(said), "{error}");
            assert!(!error.contains("AAE"), "{error}");
        }
    }

    #[test]
    fn a_referral_is_an_address_with_or_without_a_port() {
        for (text, place) in [
            ("10.0.0.3", "10.0.0.3:4420"),
            ("10.0.0.3:8009", "10.0.0.3:8009"),
            ("fd00::3", "[fd00::3]:4420"),
            ("[fd00::3]:1", "[fd00::3]:1"),
        ] {
            assert_eq!(referral(text).expect(text).to_string(), place);
        }
        for text in ["", "10.0.0", "host", "10.0.0.3:x", "10.0.0.3:65536"] {
            assert!(referral(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_subsystem_has_a_name_and_may_have_a_serial_number_and_hosts() {
        let whole = subsystem("nqn.2026-01.x:a,serial=S1,host=nqn.2026-01.x:h,host=nqn.2026-01.x:i");
        let whole = whole.expect("a subsystem");
        let words = [
            "subsystem=nqn.2026-01.x:a",
            "of-subsystem=2:serial=S1",
            "of-subsystem=2:host=nqn.2026-01.x:h",
            "of-subsystem=2:host=nqn.2026-01.x:i",
        ];
        assert_eq!(whole.words(2), words);
        let plain = subsystem("nqn.2026-01.x:b").expect("a subsystem");
        assert_ne!(plain.serial(), subsystem("nqn.2026-01.x:c").expect("another one").serial());
        for (text, words) in [
            ("", "no blanks"),
            ("x", "no NQN"),
            ("nqn.2026-01.x:a,serial=", "1 to 20"),
            ("nqn.2026-01.x:a,host=", "no blanks"),
            ("nqn.2026-01.x:a,read-only", "neither serial=TEXT nor host=NQN"),
        ] {
            let why = subsystem(text).expect_err(text);
            assert!(why.contains(words), "{text}: {why}");
        }
        let of = |nqn: &str, host: &str| DiskOptions {
            subsystem: Some(nqn.into()),
            hosts: vec![host.into()],
            ..DiskOptions::default()
        };
        let check = |others: &[&Subsystem], disks: &[DiskOptions]| {
            let others: Vec<Subsystem> = others.iter().map(|&other| other.clone()).collect();
            let allowed = ["nqn.x:any".to_owned()];
            check_subsystems(None, &others, disks, Some(&allowed)).map_err(|error| error.to_string())
        };
        let right = [of(NQN, "nqn.x:any"), of(&whole.nqn, "nqn.2026-01.x:h"), of(&plain.nqn, "nqn.x:any")];
        assert_eq!(check(&[&whole, &plain], &right), Ok(()));
        let first = Subsystem { nqn: NQN.into(), ..plain.clone() };
        for (others, disks, words) in [
            (&[&plain, &plain][..], &[][..], "two subsystems have the name"),
            (&[&first], &[], "two subsystems have the name"),
            (&[&plain], &right, "namespace 2: there is no subsystem nqn.2026-01.x:a"),
            (&[&whole], &[of(&whole.nqn, "nqn.x:z")], "namespace 1: nqn.x:z may not use nqn.2026-01.x:a"),
            (&[&plain], &[of(&plain.nqn, "nqn.x:z")], "namespace 1: nqn.x:z may not use nqn.2026-01.x:b"),
            (&[], &[of(NQN, "nqn.x:z")], "namespace 1: nqn.x:z may not use nqn.2026-01.org"),
        ] {
            let why = check(others, disks).expect_err(words);
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn the_guest_has_memory_for_each_disk() {
        let mib = |n: u64| Size(n << 20);
        assert_eq!(memory(1, &[], 0, 1), mib(530));
        assert_eq!(memory(0, &[mib(100), mib(1)], 0, 1), mib(512 + 36 + 101));
        assert_eq!(memory(1, &[], 64 << 20, 1), mib(594));
        assert_eq!(memory(16, &[mib(1); 48], 0, 1), mib(512 + 64 * 18 + 48));
        assert_eq!(memory(1, &[mib(1)], 0, 2), mib(512 + 2 * 36 + 1 + 128));
    }

    #[test]
    fn counters_become_a_line() {
        let last = Counters::parse("@storage 2 10 20 4096 8192 0").expect("counters");
        let now = Counters::parse("@storage 3 1010 25 4100096 1008192 1").expect("counters");
        assert_eq!(
            now.since(&last),
            "3 connections, 1000 reads/s 4.1 MB/s, 5 writes/s 1.0 MB/s, 1 errors in all"
        );
        for other in ["ready: 10.0.0.1:4420", "@storage", "@storage 1 2 3 4 5", "@storage 1 2 3 4 5 x"] {
            assert_eq!(Counters::parse(other), None, "{other}");
        }
    }
}
