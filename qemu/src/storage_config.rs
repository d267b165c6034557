//! The file of `storage --config`: the options of a target, in TOML. Options on the command line
//! take precedence, a list as a whole.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use links::SpecError;
use nvme::log::AnaState;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::disks::Disk;
use crate::error::{Error, Result};
use crate::network::{Addresses, Plug, Transport};
use crate::options::{Options, Size};
use crate::storage::{Exports, Subsystem, ana_state, referral, serial_number, word};
use crate::storage_disks::{BlockSize, DiskOptions, not_allowed, uuid};

/// A value that has a form of its own, as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text<T> {
    text: String,
    value: T,
}

/// What a [`Text`] can be.
trait Parse: Sized {
    /// The value, or what is wrong with it.
    fn parse(text: &str) -> std::result::Result<Self, String>;
}

impl Parse for Plug {
    fn parse(text: &str) -> std::result::Result<Plug, String> {
        text.parse().map_err(|error: SpecError| error.to_string())
    }
}

impl Parse for Addresses {
    fn parse(text: &str) -> std::result::Result<Addresses, String> {
        text.parse().map_err(|error| format!("{error}"))
    }
}

impl Parse for Size {
    fn parse(text: &str) -> std::result::Result<Size, String> {
        Size::of_disk(text).map_err(|error| error.to_string())
    }
}

/// The memory of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory(Size);

impl Parse for Memory {
    fn parse(text: &str) -> std::result::Result<Memory, String> {
        Size::parse(text).map(Memory).map_err(|error| error.to_string())
    }
}

/// A name without blanks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word(String);

impl Parse for Word {
    fn parse(text: &str) -> std::result::Result<Word, String> {
        word(text).map(Word)
    }
}

/// A serial number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Serial(String);

impl Parse for Serial {
    fn parse(text: &str) -> std::result::Result<Serial, String> {
        serial_number(text).map(Serial)
    }
}

impl Parse for AnaState {
    fn parse(text: &str) -> std::result::Result<AnaState, String> {
        ana_state(text)
    }
}

impl Parse for SocketAddr {
    fn parse(text: &str) -> std::result::Result<SocketAddr, String> {
        referral(text)
    }
}

/// A UUID, as 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Uuid(String);

impl Parse for Uuid {
    fn parse(text: &str) -> std::result::Result<Uuid, String> {
        uuid(text).map(Uuid)
    }
}

impl<T: Parse> Text<T> {
    fn of(text: String) -> std::result::Result<Text<T>, String> {
        T::parse(&text).map(|value| Text { text, value })
    }
}

impl<'de, T: Parse> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Text<T>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Text::of(text.clone()).map_err(|why| D::Error::custom(format!("{text:?}: {why}")))
    }
}

impl<T> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<T> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The links: a text for one, or a list for several.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plugs(Vec<Text<Plug>>);

impl Plugs {
    fn of(links: &[Plug]) -> Option<Plugs> {
        let texts = links.iter().filter_map(|link| Text::of(link.to_string()).ok());
        (!links.is_empty()).then(|| Plugs(texts.collect()))
    }

    fn into_list(self) -> Vec<Plug> {
        self.0.into_iter().map(|link| link.value).collect()
    }
}

impl<'de> Deserialize<'de> for Plugs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Plugs, D::Error> {
        deserializer.deserialize_any(PlugsVisitor)
    }
}

struct PlugsVisitor;

impl<'de> Visitor<'de> for PlugsVisitor {
    type Value = Plugs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a link, or a list of links")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Plugs, E> {
        let link = Text::of(text.to_owned());
        link.map(|link| Plugs(vec![link])).map_err(|why| E::custom(format!("{text:?}: {why}")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Plugs, A::Error> {
        let mut links = Vec::new();
        while let Some(link) = list.next_element()? {
            links.push(link);
        }
        Ok(Plugs(links))
    }
}

impl Serialize for Plugs {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match &self.0[..] {
            [link] => link.serialize(serializer),
            links => links.serialize(serializer),
        }
    }
}

/// A file that is exported.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileDisk {
    file: PathBuf,
    #[serde(default, skip_serializing_if = "is_false")]
    read_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<Text<Uuid>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<BlockSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<Text<Word>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subsystem: Option<Text<Word>>,
}

/// A RAM disk.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RamDisk {
    size: Text<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<BlockSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<Text<Word>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subsystem: Option<Text<Word>>,
}

/// A subsystem beside the first one.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct OtherSubsystem {
    nqn: Text<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<Text<Serial>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<Text<Word>>>,
}

impl OtherSubsystem {
    fn of(other: &Subsystem) -> Option<OtherSubsystem> {
        Some(OtherSubsystem {
            nqn: Text::of(other.nqn.clone()).ok()?,
            serial: other.serial.clone().and_then(|serial| Text::of(serial).ok()),
            hosts: list(other.hosts.clone()),
        })
    }
}

/// The names in a list of hosts, which is not there for all hosts.
fn names(hosts: &Option<Vec<Text<Word>>>) -> Vec<String> {
    hosts.iter().flatten().map(|host| host.value.0.clone()).collect()
}

/// The list that stands for these names.
fn list(hosts: Vec<String>) -> Option<Vec<Text<Word>>> {
    let list = || hosts.iter().cloned().filter_map(|host| Text::of(host).ok()).collect();
    (!hosts.is_empty()).then(list)
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The options of a target.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct StorageConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    nqn: Option<Text<Word>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<Text<Serial>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<std::num::NonZeroU16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow_hosts: Vec<Text<Word>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    referrals: Vec<Text<SocketAddr>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_timeout: Option<std::num::NonZeroU16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<std::num::NonZeroU16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ana: Option<Text<AnaState>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<Plugs>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ip: Vec<Text<Addresses>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    #[serde(skip_serializing_if = "is_false")]
    iwarp: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Text<Memory>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<std::num::NonZeroU32>,
    #[serde(rename = "subsystem", skip_serializing_if = "Vec::is_empty")]
    subsystems: Vec<OtherSubsystem>,
    #[serde(rename = "disk", skip_serializing_if = "Vec::is_empty")]
    disks: Vec<FileDisk>,
    #[serde(rename = "ram-disk", skip_serializing_if = "Vec::is_empty")]
    ram_disks: Vec<RamDisk>,
}

impl StorageConfig {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<StorageConfig> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|source| Error::File { path: file.to_owned(), source })?;
        let wrong = |(line, why)| Error::Usage(format!("{}, line {line}: {why}", file.display()));
        let config = StorageConfig::parse(&text).map_err(wrong)?;
        for (number, disk) in config.disks.iter().enumerate() {
            if let Some(size) = disk.block_size {
                let line = line_of_table(&text, "[[disk]]", number, "block-size");
                size.check(&disk.file).map_err(|error| wrong((line, error.to_string())))?;
            }
        }
        Ok(config)
    }

    /// The options in a text; or the line of a fault, and what it is.
    pub fn parse(text: &str) -> std::result::Result<StorageConfig, (usize, String)> {
        let at_line = |offset: usize| text[..offset.min(text.len())].lines().count().max(1);
        let config: StorageConfig = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| at_line(span.start + 1));
            (line, error.message().replace('\n', ", "))
        })?;
        let line_of = |name: &str| {
            let starts = |line: &&str| line.trim_start().starts_with(name);
            text.lines().position(|line| starts(&line)).map_or(1, |place| place + 1)
        };
        if config.slots.is_some() && config.control.is_none() {
            return Err((line_of("slots"), "slots are of use only with `control`".into()));
        }
        if config.disk_timeout.is_some_and(|seconds| seconds.get() > 600) {
            return Err((line_of("disk-timeout"), "a disk has 600 seconds at most".into()));
        }
        if config.path.is_some_and(|path| path.get() > 8) {
            return Err((line_of("path"), "a subsystem has the paths 1 to 8".into()));
        }
        config.check_disks(text)?;
        Ok(config)
    }

    /// Looks for contradictions in the disks; the line of one, and what it is.
    fn check_disks(&self, text: &str) -> std::result::Result<(), (usize, String)> {
        let allowed: Vec<String> = self.allow_hosts.iter().map(|host| host.value.0.clone()).collect();
        let allowed = Some(&*allowed).filter(|allowed| !allowed.is_empty() && self.hosts.is_none());
        let files = self.disks.iter().map(|disk| (&disk.hosts, &disk.subsystem)).enumerate();
        let ram_disks = self.ram_disks.iter().map(|disk| (&disk.hosts, &disk.subsystem)).enumerate();
        let of_kinds = files.map(|one| ("[[disk]]", one)).chain(ram_disks.map(|one| ("[[ram-disk]]", one)));
        for (table, (number, (hosts, subsystem))) in of_kinds {
            let at = || line_of_table(text, table, number, "hosts");
            if hosts.as_ref().is_some_and(Vec::is_empty) {
                return Err((at(), "a disk that no host sees; without `hosts` all see it".into()));
            }
            // Which hosts may use another subsystem is looked at with that.
            if let Some(other) = not_allowed(&names(hosts), allowed.filter(|_| subsystem.is_none())) {
                return Err((at(), format!("{other} may not connect: it is not among `allow-hosts`")));
            }
        }
        for (number, disk) in self.disks.iter().enumerate() {
            let is_same = |other: &FileDisk| {
                let [one, other] = [disk, other].map(|disk| disk.uuid.as_ref().map(|uuid| &uuid.value));
                one.is_some() && one == other
            };
            if self.disks[..number].iter().any(is_same) {
                let line = line_of_table(text, "[[disk]]", number, "uuid");
                return Err((line, "another disk has this UUID".into()));
            }
        }
        Ok(())
    }

    /// Adds the options that the command line does not have.
    pub fn complete(self, options: &mut Options, exports: &mut Exports) {
        let of_disks = self.of_disks();
        let Options { network, .. } = options;
        exports.nqn = exports.nqn.take().or(self.nqn.map(|nqn| nqn.value.0));
        exports.serial = exports.serial.take().or(self.serial.map(|serial| serial.value.0));
        exports.port = exports.port.or(self.port.map(Into::into));
        exports.hosts = exports.hosts.take().or(self.hosts);
        exports.state = exports.state.take().or(self.state);
        exports.disk_timeout = exports.disk_timeout.or(self.disk_timeout.map(Into::into));
        exports.path = exports.path.or(self.path.map(Into::into));
        exports.ana = exports.ana.or(self.ana.map(|state| state.value));
        exports.control = exports.control.take().or(self.control);
        exports.slots = exports.slots.or(self.slots);
        exports.metrics = exports.metrics.or(self.metrics);
        if exports.allowed.is_empty() {
            exports.allowed = self.allow_hosts.into_iter().map(|host| host.value.0).collect();
        }
        if network.links.is_empty() {
            network.links = self.link.map(Plugs::into_list).unwrap_or_default();
        }
        if network.addresses.is_empty() {
            network.addresses = self.ip.into_iter().map(|ip| ip.value).collect();
        }
        if exports.referrals.is_empty() {
            exports.referrals = self.referrals.into_iter().map(|place| place.value).collect();
        }
        network.mtu = network.mtu.or(self.mtu);
        network.vlan = network.vlan.or(self.vlan);
        network.transport = network.transport.or(self.iwarp.then_some(Transport::Iwarp));
        options.memory = options.memory.or(self.memory.map(|memory| memory.value.0));
        options.cpus = options.cpus.or(self.cpus.map(Into::into));
        if exports.subsystems.is_empty() {
            let of = |other: OtherSubsystem| Subsystem {
                hosts: names(&other.hosts),
                nqn: other.nqn.value.0,
                serial: other.serial.map(|serial| serial.value.0),
            };
            exports.subsystems = self.subsystems.into_iter().map(of).collect();
        }
        if exports.ram_disks.is_empty() && options.disks.is_empty() {
            exports.of_disks = of_disks;
            exports.ram_disks = self.ram_disks.into_iter().map(|disk| disk.size.value).collect();
            let read_only = options.read_only;
            let disk =
                |one: FileDisk| Disk { path: one.file, read_only: one.read_only || read_only, failing: None };
            options.chosen_disks = Some(self.disks.into_iter().map(disk).collect());
        }
    }

    /// What the file gives to its disks, files first.
    fn of_disks(&self) -> Vec<DiskOptions> {
        let of_file = |disk: &FileDisk| DiskOptions {
            uuid: disk.uuid.as_ref().map(|uuid| uuid.value.0.clone()),
            block_size: disk.block_size,
            is_read_only: disk.read_only,
            hosts: names(&disk.hosts),
            subsystem: disk.subsystem.as_ref().map(|nqn| nqn.value.0.clone()),
        };
        let of_ram = |disk: &RamDisk| DiskOptions {
            block_size: disk.block_size,
            hosts: names(&disk.hosts),
            subsystem: disk.subsystem.as_ref().map(|nqn| nqn.value.0.clone()),
            ..DiskOptions::default()
        };
        self.disks.iter().map(of_file).chain(self.ram_disks.iter().map(of_ram)).collect()
    }

    /// The file that stands for these options. Its disks are those of [`StorageConfig::with`].
    pub fn of(options: &Options, exports: &Exports) -> StorageConfig {
        let network = &options.network;
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        StorageConfig {
            nqn: exports.nqn.clone().and_then(|nqn| Text::of(nqn).ok()),
            serial: exports.serial.clone().and_then(|serial| Text::of(serial).ok()),
            port: exports.port.and_then(|port| port.try_into().ok()),
            allow_hosts: exports.allowed.iter().cloned().filter_map(|host| Text::of(host).ok()).collect(),
            referrals: exports
                .referrals
                .iter()
                .filter_map(|place| Text::of(place.to_string()).ok())
                .collect(),
            hosts: exports.hosts.as_ref().map(absolute),
            state: exports.state.as_ref().map(absolute),
            disk_timeout: exports.disk_timeout.and_then(|seconds| seconds.try_into().ok()),
            path: exports.path.and_then(|path| path.try_into().ok()),
            ana: exports.ana.and_then(|state| Text::of(state.to_string()).ok()),
            control: exports.control.as_ref().map(absolute),
            slots: exports.slots,
            metrics: exports.metrics,
            link: Plugs::of(&network.links),
            ip: network.addresses.iter().filter_map(|ip| Text::of(ip.to_string()).ok()).collect(),
            mtu: network.mtu,
            vlan: network.vlan,
            iwarp: network.transport() == Transport::Iwarp,
            memory: options.memory.and_then(|memory| Text::of(memory.to_string()).ok()),
            cpus: options.cpus.and_then(|cpus| cpus.try_into().ok()),
            subsystems: exports.subsystems.iter().filter_map(OtherSubsystem::of).collect(),
            disks: Vec::new(),
            ram_disks: Vec::new(),
        }
    }

    /// The same with these subsystems beside the first one, files, and RAM disks of so many bytes.
    pub fn with(
        &self,
        subsystems: &[Subsystem],
        files: Vec<(PathBuf, DiskOptions)>,
        ram_disks: Vec<(u64, DiskOptions)>,
    ) -> StorageConfig {
        let disk = |(file, its): (PathBuf, DiskOptions)| FileDisk {
            file: std::path::absolute(&file).unwrap_or(file),
            read_only: its.is_read_only,
            uuid: its.uuid.and_then(|uuid| Text::of(uuid).ok()),
            block_size: its.block_size,
            hosts: list(its.hosts),
            subsystem: its.subsystem.and_then(|nqn| Text::of(nqn).ok()),
        };
        let ram_disk = |(bytes, its): (u64, DiskOptions)| {
            let size = Text::of(Size::at_least(bytes).to_string()).ok()?;
            let subsystem = its.subsystem.and_then(|nqn| Text::of(nqn).ok());
            Some(RamDisk { size, block_size: its.block_size, hosts: list(its.hosts), subsystem })
        };
        StorageConfig {
            subsystems: subsystems.iter().filter_map(OtherSubsystem::of).collect(),
            disks: files.into_iter().map(disk).collect(),
            ram_disks: ram_disks.into_iter().filter_map(ram_disk).collect(),
            ..self.clone()
        }
    }

    /// The file of hosts, if there is one.
    pub fn hosts(&self) -> Option<&Path> {
        self.hosts.as_deref()
    }

    /// Takes the hosts from this file from now on.
    pub fn set_hosts(&mut self, file: PathBuf) {
        self.hosts = Some(file);
    }

    /// Whether other targets have the same files.
    pub fn shares_disks(&self) -> bool {
        self.path.is_some()
    }

    /// Writes it to a file, in place of the one that is there: a reader never sees a part.
    pub fn write(&self, file: &Path) -> Result<()> {
        let text = toml::to_string(self).map_err(|error| Error::Tool(format!("the options: {error}")))?;
        let text = format!("# Options of `ferrovia storage --config`.\n{text}");
        let replaced = device::counters::replace(file, text.as_bytes());
        replaced.map_err(|source| Error::File { path: file.to_owned(), source })
    }
}

/// The line of a name in table number `number` of this heading; that of the heading if it is not
/// there.
fn line_of_table(text: &str, heading: &str, number: usize, name: &str) -> usize {
    let is_heading = |line: &str| line.trim().replace(' ', "").starts_with(heading);
    let mut lines = (1..).zip(text.lines());
    let Some((first, _)) = lines.by_ref().filter(|(_, line)| is_heading(line)).nth(number) else { return 1 };
    let mut of_table = lines.take_while(|(_, line)| !line.trim_start().starts_with('['));
    of_table.find(|(_, line)| line.trim_start().starts_with(name)).map_or(first, |(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = r#"
nqn = "nqn.2026-01.org.example:disks"
serial = "S1"
port = 4421
allow-hosts = ["nqn.2026-01.org.example:one"]
referrals = ["10.0.0.9:4420", "[fd00::9]:8009"]
hosts = "/etc/ferrovia.hosts"
state = "/var/lib/ferrovia.state"
disk-timeout = 60
path = 3
ana = "inaccessible"
control = "/run/ferrovia.ctl"
slots = 2
metrics = "127.0.0.1:9100"
link = "switch:/tmp/x"
ip = ["10.0.0.1/24"]
mtu = 4200
vlan = 9
iwarp = true
memory = "1G"
cpus = 2

[[subsystem]]
nqn = "nqn.2026-01.org.example:more"
serial = "S2"
hosts = ["nqn.2026-01.org.example:one"]

[[subsystem]]
nqn = "nqn.2026-01.org.example:most"

[[disk]]
file = "/disks/a"
uuid = "12345678-1234-1234-1234-123456789abc"
block-size = 4096
hosts = ["nqn.2026-01.org.example:one", "nqn.2026-01.org.example:two"]

[[disk]]
file = "/disks/b"
read-only = true

[[ram-disk]]
size = "64M"
block-size = 4096
hosts = ["nqn.2026-01.org.example:one"]
subsystem = "nqn.2026-01.org.example:more"
"#;

    #[test]
    fn a_file_has_all_options_and_is_written_as_it_was_read() {
        // A file of hosts may name more.
        let config = StorageConfig::parse(ALL).expect("a file");
        let (mut options, mut exports) = (Options::default(), Exports::default());
        config.clone().complete(&mut options, &mut exports);
        let files = options.disks();
        assert_eq!(files.iter().map(|disk| disk.read_only).collect::<Vec<_>>(), [false, true]);
        let [a, b, ram] = &exports.of_disks[..] else { panic!("{:?}", exports.of_disks) };
        assert_eq!(a.uuid.as_deref(), Some("12345678123412341234123456789abc"));
        assert_eq!((a.block_size().bytes(), a.hosts.len(), a.is_read_only), (4096, 2, false));
        assert_eq!(*b, DiskOptions { is_read_only: true, ..DiskOptions::default() });
        assert_eq!((ram.block_size().bytes(), ram.hosts.len()), (4096, 1));
        assert_eq!((exports.port, exports.slots, exports.ram_disks.len()), (Some(4421), Some(2), 1));
        assert_eq!(exports.hosts.as_deref(), Some(Path::new("/etc/ferrovia.hosts")));
        assert_eq!(exports.state.as_deref(), Some(Path::new("/var/lib/ferrovia.state")));
        assert_eq!((exports.path, exports.ana), (Some(3), Some(AnaState::Inaccessible)));
        assert_eq!((options.memory, options.cpus), (Some(Size(1 << 30)), Some(2)));
        let network = &options.network;
        assert_eq!((network.mtu, network.vlan, network.transport()), (Some(4200), Some(9), Transport::Iwarp));
        let again = StorageConfig::of(&options, &exports);
        let a = DiskOptions { uuid: Some("12345678-1234-1234-1234-123456789abc".into()), ..a.clone() };
        let files = vec![("/disks/a".into(), a), ("/disks/b".into(), b.clone())];
        assert_eq!(ram.subsystem.as_deref(), Some("nqn.2026-01.org.example:more"));
        let [more, most] = &exports.subsystems[..] else { panic!("{:?}", exports.subsystems) };
        assert_eq!((more.serial.as_deref(), more.hosts.len()), (Some("S2"), 1));
        assert_eq!((&*most.nqn, &most.serial), ("nqn.2026-01.org.example:most", &None));
        assert_eq!(again.with(&exports.subsystems, files, vec![(64 << 20, ram.clone())]), config);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.toml");
        config.write(&file).expect("it is written");
        // Its disks are not there.
        let text = std::fs::read_to_string(&file).expect("a file");
        assert_eq!(StorageConfig::parse(&text).expect("it is read"), config);
    }

    #[test]
    fn several_links_are_a_list() {
        let text =
            "link = [\"switch:/tmp/x\", \"none\"]\nip = [\"10.0.0.1/24,fd00::1/64\", \"10.0.1.1/24\"]\n";
        let config = StorageConfig::parse(text).expect("a file");
        let (mut options, mut exports) = (Options::default(), Exports::default());
        config.clone().complete(&mut options, &mut exports);
        assert_eq!(options.network.nics(), Some(2));
        options.network.check().expect("each link has addresses");
        let again = toml::to_string(&StorageConfig::of(&options, &exports)).expect("text");
        assert_eq!(StorageConfig::parse(&again).expect("a file"), config);
    }

    #[test]
    fn options_of_the_command_line_take_precedence() {
        let (mut options, mut exports) = (Options::default(), Exports::default());
        (exports.port, exports.nqn, options.cpus) = (Some(1), Some("nqn.x:y".into()), Some(3));
        options.disks = vec!["/c".into()];
        StorageConfig::parse(ALL).expect("a file").complete(&mut options, &mut exports);
        assert_eq!((exports.port, exports.nqn.as_deref(), options.cpus), (Some(1), Some("nqn.x:y"), Some(3)));
        assert_eq!(
            options.disks().iter().map(|disk| disk.path.clone()).collect::<Vec<_>>(),
            [Path::new("/c")]
        );
        assert!(exports.ram_disks.is_empty(), "the disks are a list");
    }

    #[test]
    fn a_file_that_does_not_suit_its_blocks_is_named_with_the_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let (disk, file) = (folder.path().join("disk"), folder.path().join("config.toml"));
        let text = format!("[[disk]]\nfile = {:?}\nblock-size = 4096\n", disk.display().to_string());
        std::fs::write(&file, text).expect("it is written");
        for (bytes, is_right) in [(8192, true), (8192 + 512, false)] {
            std::fs::File::create(&disk).and_then(|disk| disk.set_len(bytes)).expect("a disk");
            match StorageConfig::read(&file) {
                Ok(_) => assert!(is_right),
                Err(error) => {
                    let error = error.to_string();
                    assert!(
                        !is_right && error.contains("line 3: ") && error.contains("no multiple"),
                        "{error}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_fault_is_named_with_its_line() {
        for (text, line, words) in [
            ("port = 4420\nprot = 1\n", 2, "unknown field `prot`"),
            ("\n\nport = 0\n", 3, "nonzero"),
            ("port = \"x\"", 1, "invalid type"),
            ("nqn = \"a b\"", 1, "no blanks"),
            ("nqn = \"x\"\nip = [\"10.0.0.1/24\", \"10.0.0.1\"]", 2, "\"10.0.0.1\": write an"),
            ("link = \"tap:x\"", 1, "is no link"),
            ("\nlink = [\"none\", \"tap:x\"]", 2, "is no link"),
            ("link = 1", 1, "a link, or a list of links"),
            ("serial = \"\"", 1, "1 to 20"),
            ("memory = \"1M\"", 1, "at least 64M"),
            ("[[disk]]\nfile = \"a\"\nsize = 3\n", 3, "unknown field `size`"),
            ("[[disk]]\nread-only = true\n", 1, "missing field `file`"),
            ("[[disk]]\nfile = \"a\"\nuuid = \"0\"\n", 3, "no UUID"),
            ("[[ram-disk]]\nsize = \"0\"\n", 2, "at least 1M"),
            ("x", 1, ""),
            ("port = 1\nport = 2\n", 2, "duplicate key"),
            ("cpus = 1\nslots = 3\n", 2, "only with `control`"),
            ("disk-timeout = 601", 1, "600"),
            ("port = 1\npath = 9", 2, "the paths 1 to 8"),
            ("ana = \"change\"", 1, "no state to begin with"),
            ("[[disk]]\nfile = \"a\"\nblock-size = 1024\n", 3, "512 and 4096"),
            ("[[ram-disk]]\nsize = \"1M\"\n\nblock-size = \"4096\"\n", 4, "invalid type"),
            ("[[ram-disk]]\nsize = \"1M\"\nread-only = true\n", 3, "unknown field `read-only`"),
            ("[[ram-disk]]\nsize = \"1M\"\n[[disk]]\nfile = \"a\"\nhosts = []\n", 5, "no host sees"),
            (
                "allow-hosts = [\"nqn.x:a\"]\n[[ram-disk]]\nsize = \"1M\"\nhosts = [\"nqn.x:b\"]\n",
                4,
                "nqn.x:b may not connect",
            ),
            (
                "[[disk]]\nfile = \"a\"\nuuid = \"11111111111111111111111111111111\"\n\
                 [[disk]]\nuuid = \"11111111-1111-1111-1111-111111111111\"\nfile = \"b\"\n",
                5,
                "another disk has this UUID",
            ),
        ] {
            let (at, why) = StorageConfig::parse(text).expect_err(text);
            assert_eq!(at, line, "{text:?}: {why}");
            assert!(why.contains(words) && !why.contains('\n'), "{text:?}: {why}");
        }
    }
}
