//! The disks of a running guest: requests that fail, and image files whose size changes.
//!
//! QEMU reports a failed request to the guest, and to the launcher by an event of its monitor; the
//! user learns of it here, at a bounded rate. Nothing reports that a file has become larger or
//! smaller, so the sizes are looked at with each heartbeat of the guest. A file that has kept its
//! new size for two looks becomes the size of the guest's disk: requests behind the end of a file
//! that has shrunk then fail. Without that QEMU would read zeros there.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::disks::{Disk, node_name};

/// The least time between two lines about failed requests of one kind to one disk.
const QUIET: Duration = Duration::from_secs(10);

/// The watch on a guest's disks.
#[derive(Debug, Default)]
pub(crate) struct DiskWatch {
    disks: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    node: String,
    path: PathBuf,
    read_only: bool,
    /// The size that the guest sees.
    bytes: u64,
    /// The file's size at the last look.
    seen: u64,
    reads: Failures,
    writes: Failures,
}

/// The failed requests of one kind to one disk.
#[derive(Debug, Default)]
struct Failures {
    /// When a line about them was written.
    told: Option<Instant>,
    /// How many failed since that line.
    since: u64,
}

/// A disk whose file has another size now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resized {
    /// Its block node.
    pub node: String,
    /// The new size in bytes.
    pub bytes: u64,
    /// The line for the user.
    pub line: String,
    /// Whether QEMU can be told.
    pub can_follow: bool,
}

impl DiskWatch {
    /// Watches these disks, which have just been opened.
    pub fn new(disks: &[Disk]) -> DiskWatch {
        let watched = |(number, disk): (usize, &Disk)| {
            // The disk has been checked. If its file is gone by now, QEMU does not start.
            let bytes = disk.path.metadata().map_or(0, |file| file.len());
            Watched {
                node: node_name(number),
                path: disk.path.clone(),
                read_only: disk.read_only,
                bytes,
                seen: bytes,
                reads: Failures::default(),
                writes: Failures::default(),
            }
        };
        DiskWatch { disks: disks.iter().enumerate().map(watched).collect() }
    }

    /// A request to the disk with this block node failed. Returns a line for the user, if it is
    /// time for one.
    pub fn failed(&mut self, node: &str, operation: &str, reason: &str, now: Instant) -> Option<String> {
        let disk = self.disks.iter_mut().find(|disk| disk.node == node)?;
        let (failures, what) = match operation {
            "read" => (&mut disk.reads, "read"),
            _ => (&mut disk.writes, "write"),
        };
        if failures.told.is_some_and(|told| now.saturating_duration_since(told) < QUIET) {
            failures.since += 1;
            return None;
        }
        failures.told = Some(now);
        let more = match std::mem::take(&mut failures.since) {
            0 => String::new(),
            more => format!(" ({more} more failed since the last such line)"),
        };
        Some(format!("{}: a {what} failed: {reason}{more}", disk.path.display()))
    }

    /// Watches one more disk.
    pub fn add(&mut self, node: String, disk: &Disk, bytes: u64) {
        self.disks.push(Watched {
            node,
            path: disk.path.clone(),
            read_only: disk.read_only,
            bytes,
            seen: bytes,
            reads: Failures::default(),
            writes: Failures::default(),
        });
    }

    /// Watches a disk no more.
    pub fn remove(&mut self, node: &str) {
        self.disks.retain(|disk| disk.node != node);
    }

    /// A disk has another size, of which the guest was told.
    pub fn has_now(&mut self, node: &str, bytes: u64) {
        for disk in self.disks.iter_mut().filter(|disk| disk.node == node) {
            (disk.bytes, disk.seen) = (bytes, bytes);
        }
    }

    /// Looks at the sizes of all files.
    pub fn look(&mut self) -> Vec<Resized> {
        self.disks.iter_mut().filter_map(Watched::look).collect()
    }
}

impl Watched {
    fn look(&mut self) -> Option<Resized> {
        // A file that has been removed or replaced stays the disk of this guest, unchanged.
        let now = self.path.metadata().ok()?.len();
        let before = std::mem::replace(&mut self.seen, now);
        if now != before || now == self.bytes || !now.is_multiple_of(512) {
            return None;
        }
        let (path, old) = (self.path.display(), std::mem::replace(&mut self.bytes, now));
        let effect = match (self.read_only, now < old) {
            (true, true) => "the guest reads zeros behind its end",
            (true, false) => "the guest, which may only read it, does not see the rest",
            (false, true) => "the guest's requests behind its end fail",
            (false, false) => "so the guest's disk is larger now",
        };
        Some(Resized {
            node: self.node.clone(),
            bytes: now,
            line: format!("{path}: it has {now} bytes instead of {old}; {effect}"),
            can_follow: !self.read_only,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(read_only: bool) -> (tempfile::TempDir, PathBuf, DiskWatch) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        std::fs::write(&path, [0; 4096]).expect("write");
        let disks = [Disk { path: path.clone(), read_only, failing: None }];
        (folder, path, DiskWatch::new(&disks))
    }

    #[test]
    fn failed_requests_are_told_at_a_bounded_rate() {
        let (_folder, path, mut watch) = watch(false);
        let begun = Instant::now();
        let full = |operation| format!("{}: a {operation} failed: full", path.display());
        let mut at =
            |operation: &str, ms| watch.failed("disk0", operation, "full", begun + Duration::from_millis(ms));
        assert_eq!(at("write", 0), Some(full("write")));
        assert_eq!(at("read", 1), Some(full("read")), "another kind has its own line");
        assert!((2..1000).all(|ms| at("write", ms).is_none()));
        let more = format!("{} (998 more failed since the last such line)", full("write"));
        assert_eq!(at("write", 10_000), Some(more));
        assert_eq!(at("write", 20_000), Some(full("write")));
        assert_eq!(watch.failed("no disk", "write", "full", begun), None);
    }

    #[test]
    fn a_new_size_counts_once_it_stays() {
        let (_folder, path, mut watch) = watch(false);
        let resize =
            |bytes| std::fs::File::options().write(true).open(&path).expect("it is there").set_len(bytes);
        assert_eq!(watch.look(), []);
        for (bytes, words) in [(1024, "behind its end fail"), (8192, "is larger now")] {
            resize(512).expect("a file");
            assert_eq!(watch.look(), []);
            resize(bytes).expect("a file");
            assert_eq!(watch.look(), [], "it may still change");
            let [resized] = &watch.look()[..] else { panic!("it has another size") };
            assert_eq!((&*resized.node, resized.bytes, resized.can_follow), ("disk0", bytes, true));
            assert!(resized.line.contains(words), "{}", resized.line);
            assert_eq!(watch.look(), []);
        }
        resize(8191).expect("a file");
        assert!(watch.look().is_empty() && watch.look().is_empty(), "no multiple of a sector");
        std::fs::remove_file(&path).expect("it is there");
        assert!(watch.look().is_empty() && watch.look().is_empty());
    }

    #[test]
    fn the_size_of_a_disk_for_reading_is_only_told() {
        let (_folder, path, mut watch) = watch(true);
        std::fs::write(&path, [0; 512]).expect("write");
        assert_eq!(watch.look(), []);
        let [resized] = &watch.look()[..] else { panic!("it has another size") };
        assert!(!resized.can_follow && resized.line.contains("zeros"), "{}", resized.line);
    }
}
