//! What a user may choose for each disk of a storage target: its blocks, its hosts, its name.

use std::fmt;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::disks::Disk;
use crate::error::{Error, Result};
use crate::storage::word;

/// The bytes of a disk's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct BlockSize(u32);

impl BlockSize {
    /// The size of a disk's blocks unless the user chooses.
    pub const USUAL: BlockSize = BlockSize(512);

    /// A size that disks can have.
    pub fn new(bytes: u64) -> std::result::Result<BlockSize, String> {
        match bytes {
            512 => Ok(BlockSize(512)),
            4096 => Ok(BlockSize(4096)),
            _ => Err(format!("{bytes} is no block size; there are 512 and 4096")),
        }
    }

    fn parse(text: &str) -> std::result::Result<BlockSize, String> {
        let bytes = text.parse().map_err(|_| format!("{text:?} is no block size; there are 512 and 4096"))?;
        BlockSize::new(bytes)
    }

    /// Bytes.
    pub fn bytes(self) -> u32 {
        self.0
    }

    /// Refuses a file that is no whole number of these blocks.
    pub fn check(self, file: &Path) -> Result<()> {
        let failed = |source| Error::File { path: file.to_owned(), source };
        let bytes = std::fs::metadata(file).map_err(failed)?.len();
        match bytes.is_multiple_of(self.0.into()) {
            true => Ok(()),
            false => {
                let why = format!("{bytes} bytes are no multiple of its blocks of {self}");
                Err(Error::Disk { path: file.to_owned(), why })
            }
        }
    }
}

impl<'de> Deserialize<'de> for BlockSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<BlockSize, D::Error> {
        BlockSize::new(u64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A UUID as 32 hexadecimal digits.
pub(crate) fn uuid(text: &str) -> std::result::Result<String, String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_uuid = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_zero = digits.bytes().all(|byte| byte == b'0');
    if is_uuid && !is_zero { Ok(digits.to_ascii_lowercase()) } else { Err("no UUID".into()) }
}

/// What is chosen for a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskOptions {
    pub uuid: Option<String>,
    pub block_size: Option<BlockSize>,
    pub is_read_only: bool,
    /// The hosts that see it; none for all.
    pub hosts: Vec<String>,
    /// The name of its subsystem; `None` for the first one.
    pub subsystem: Option<String>,
}

impl DiskOptions {
    /// The size of its blocks.
    pub fn block_size(&self) -> BlockSize {
        self.block_size.unwrap_or(BlockSize::USUAL)
    }

    /// Words for the guest about its namespace `nsid`. It knows of what is read-only by the disk.
    pub fn words(&self, nsid: usize) -> impl Iterator<Item = String> + '_ {
        let block_size =
            self.block_size.iter().map(move |size| format!("namespace={nsid}:block-size={size}"));
        let subsystem = self.subsystem.iter().map(move |nqn| format!("namespace={nsid}:subsystem={nqn}"));
        let hosts = self.hosts.iter().map(move |nqn| format!("namespace={nsid}:host={nqn}"));
        block_size.chain(subsystem).chain(hosts)
    }
}

/// One choice on the command line, for a disk by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    number: usize,
    what: Choice,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Uuid(String),
    BlockSize(BlockSize),
    ReadOnly,
    Host(String),
    Subsystem(String),
}

/// Reads a choice like `1:block-size=4096`.
pub(crate) fn chosen(text: &str) -> std::result::Result<Chosen, String> {
    let (number, option) = text.split_once(':').unwrap_or((text, ""));
    let number = number.parse().ok().filter(|number| *number > 0);
    let number = number.ok_or("it begins with the namespace's number, like 1:block-size=4096")?;
    let what = match option.split_once('=') {
        Some(("uuid", text)) => Choice::Uuid(uuid(text)?),
        Some(("block-size", text)) => Choice::BlockSize(BlockSize::parse(text)?),
        Some(("host", nqn)) => Choice::Host(word(nqn)?),
        Some(("subsystem", nqn)) => Choice::Subsystem(word(nqn)?),
        None if option == "read-only" => Choice::ReadOnly,
        _ => {
            return Err(format!(
                "{option:?} is none of block-size=BYTES, host=NQN, subsystem=NQN, uuid=UUID, read-only"
            ));
        }
    };
    Ok(Chosen { number, what })
}

/// Adds the choices of the command line to what a file gives to the disks, `count` in all. The
/// command line takes precedence, and a disk's hosts are a list.
pub(crate) fn choose(given: &[DiskOptions], chosen: &[Chosen], count: usize) -> Result<Vec<DiskOptions>> {
    let mut all: Vec<DiskOptions> = given.to_vec();
    all.resize(count, DiskOptions::default());
    let mut line = vec![DiskOptions::default(); count];
    for Chosen { number, what } in chosen {
        let wrong = |why: &str| Err(Error::Usage(format!("--namespace {number}: {why}")));
        let Some(options) = line.get_mut(number - 1) else {
            return wrong(&format!("there are {count} disks, files first"));
        };
        match what {
            Choice::ReadOnly => options.is_read_only = true,
            Choice::Host(nqn) if options.hosts.contains(nqn) => {
                return wrong(&format!("{nqn} is there twice"));
            }
            Choice::Host(nqn) => options.hosts.push(nqn.clone()),
            Choice::Subsystem(nqn) => {
                if options.subsystem.replace(nqn.clone()).is_some_and(|other| other != *nqn) {
                    return wrong("it has two subsystems");
                }
            }
            Choice::BlockSize(size) => {
                if options.block_size.replace(*size).is_some_and(|other| other != *size) {
                    return wrong("it has two block sizes");
                }
            }
            Choice::Uuid(uuid) => {
                if options.uuid.replace(uuid.clone()).is_some_and(|other| other != *uuid) {
                    return wrong("it has two UUIDs");
                }
            }
        }
    }
    for (options, line) in all.iter_mut().zip(line) {
        options.uuid = line.uuid.or(options.uuid.take());
        options.block_size = line.block_size.or(options.block_size);
        options.subsystem = line.subsystem.or(options.subsystem.take());
        options.is_read_only |= line.is_read_only;
        if !line.hosts.is_empty() {
            options.hosts = line.hosts;
        }
    }
    Ok(all)
}

/// Refuses what contradicts itself: of options of these files, and of RAM disks behind them.
/// `allowed`: the only hosts that may connect, if they are known.
pub(crate) fn check(files: &[Disk], options: &[DiskOptions], allowed: Option<&[String]>) -> Result<()> {
    for (place, one) in options.iter().enumerate() {
        let wrong = |why: String| Err(Error::Usage(format!("namespace {}: {why}", place + 1)));
        // Which hosts may use another subsystem is looked at with that.
        if let Some(other) = not_allowed(&one.hosts, allowed.filter(|_| one.subsystem.is_none())) {
            return wrong(format!("{other} may not connect: allow it, too"));
        }
        if one.uuid.is_some() && options[..place].iter().any(|other| other.uuid == one.uuid) {
            return wrong("another one has its UUID".into());
        }
        match files.get(place) {
            Some(file) => one.block_size().check(&file.path)?,
            None if one.is_read_only => return wrong(READ_ONLY_RAM.into()),
            None if one.uuid.is_some() => return wrong("a RAM disk has a new UUID at each start".into()),
            None => {}
        }
    }
    Ok(())
}

/// Why no RAM disk is read-only.
pub(crate) const READ_ONLY_RAM: &str = "a RAM disk that is read-only would stay empty";

/// One of these hosts that may not connect.
pub(crate) fn not_allowed<'a>(hosts: &'a [String], allowed: Option<&[String]>) -> Option<&'a String> {
    let allowed = allowed?;
    hosts.iter().find(|host| !allowed.contains(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(words: &[&str], given: &[DiskOptions], count: usize) -> Result<Vec<DiskOptions>> {
        let chosen: Vec<Chosen> = words.iter().map(|word| chosen(word).expect(word)).collect();
        choose(given, &chosen, count)
    }

    #[test]
    fn the_command_line_takes_precedence_for_each_disk_and_option() {
        let given = [DiskOptions {
            uuid: Some("11".into()),
            block_size: Some(BlockSize(4096)),
            is_read_only: false,
            hosts: vec!["nqn.x:a".into()],
            subsystem: Some("nqn.x:s".into()),
        }];
        let words = ["1:block-size=512", "1:host=nqn.x:b", "1:host=nqn.x:c", "2:read-only"];
        let chosen = all(&words, &given, 3).expect("options");
        assert_eq!((chosen[0].block_size(), chosen[0].uuid.as_deref()), (BlockSize::USUAL, Some("11")));
        assert_eq!(chosen[0].hosts, ["nqn.x:b", "nqn.x:c"]);
        assert_eq!(chosen[1], DiskOptions { is_read_only: true, ..DiskOptions::default() });
        assert_eq!(chosen[2], DiskOptions::default());
        let words: Vec<String> = chosen[0].words(1).collect();
        let expected = [
            "namespace=1:block-size=512",
            "namespace=1:subsystem=nqn.x:s",
            "namespace=1:host=nqn.x:b",
            "namespace=1:host=nqn.x:c",
        ];
        assert_eq!(words, expected);
        assert_eq!(chosen[1].words(2).count(), 0);
    }

    #[test]
    fn what_is_no_choice_or_contradicts_itself_is_refused_in_one_line() {
        for (text, words) in [
            ("", "begins with the namespace's number"),
            ("0:read-only", "begins with the namespace's number"),
            ("x:read-only", "begins with the namespace's number"),
            ("1", "none of block-size"),
            ("1:read-only=1", "none of block-size"),
            ("1:block-size=1024", "there are 512 and 4096"),
            ("1:block-size=x", "there are 512 and 4096"),
            ("1:host=", "no blanks"),
            ("1:uuid=12", "no UUID"),
        ] {
            let error = chosen(text).expect_err(text);
            assert!(error.contains(words) && !error.contains('\n'), "{text}: {error}");
        }
        let uuid = |digit: &str| format!("1:uuid={}", digit.repeat(32));
        for (choices, why) in [
            (["3:read-only", "1:read-only"], "--namespace 3: there are 2 disks"),
            (["1:block-size=512", "1:block-size=4096"], "--namespace 1: it has two block sizes"),
            (["2:host=nqn.x:a", "2:host=nqn.x:a"], "--namespace 2: nqn.x:a is there twice"),
            ([&uuid("1"), &uuid("2")], "--namespace 1: it has two UUIDs"),
        ] {
            let error = all(&choices, &[], 2).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_does_not_suit_the_disk_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        std::fs::File::create(&path).and_then(|file| file.set_len(4096 + 512)).expect("a file");
        let file = [Disk { path, read_only: false, failing: None }];
        let allowed = ["nqn.x:a".to_string()];
        let twice = format!("1:uuid={}", "1".repeat(32));
        let twice = [twice.as_str(), &twice.replace("1:", "2:")];
        for (words, why) in [
            (&["1:block-size=4096"][..], "4608 bytes are no multiple of its blocks of 4096"),
            (&["2:read-only"], "namespace 2: a RAM disk that is read-only"),
            (&["1:host=nqn.x:b"], "namespace 1: nqn.x:b may not connect"),
            (&twice[1..], "namespace 2: a RAM disk has a new UUID"),
            (&twice, "namespace 2: another one has its UUID"),
        ] {
            let options = all(words, &[], 2).expect("choices");
            let error = check(&file, &options, Some(&allowed)).expect_err(why).to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
        let words = ["1:block-size=512", "1:host=nqn.x:a", "1:read-only", "2:block-size=4096"];
        let options = all(&words, &[], 2).expect("choices");
        assert!(check(&file, &options, Some(&allowed)).is_ok() && check(&file, &options, None).is_ok());
    }
}
