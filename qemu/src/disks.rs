//! Disks: image files that a guest sees as virtio block devices.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::quoting::in_list;

/// The most disks of a guest. With the NICs, there is no room for more on its bus.
pub const MOST: usize = 16;
/// The unit of a disk's size.
const SECTOR: u64 = 512;
/// What every disk's device does when the host fails to carry out a request: it reports the error
/// to the guest. QEMU would stop the guest on a full file system.
pub(crate) const ERRORS: &str = "werror=report,rerror=report";
/// The errors of a disk that fails: those of a broken medium and of a full file system.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
/// The descriptors of a disk's queue: the most that QEMU allows. Each segment of a request takes
/// one.
const QUEUE_SIZE: u32 = 1024;
/// The most queues of a disk: as many as the kernel has CPUs.
const MOST_QUEUES: u32 = 16;

/// What all disks of a guest have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// The guest's CPUs, for each of which a disk has a queue.
    pub cpus: u32,
    /// Other guests write the files, too.
    pub are_shared: bool,
}

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The image file: the bytes of the blocks and nothing else.
    pub path: PathBuf,
    /// Whether the guest may only read.
    pub read_only: bool,
    /// A sector whose reads and writes fail, for tests: reads as by a broken medium, writes as on a
    /// full file system.
    pub failing: Option<u64>,
}

/// Checks that these files can be a guest's disks. QEMU checks them again when it opens them, but
/// its messages are harder to understand.
pub fn check(disks: &[Disk]) -> Result<()> {
    check_count(disks.len())?;
    let mut files = Vec::new();
    for disk in disks {
        let file = disk.check()?;
        if files.contains(&file) {
            return Err(disk.unusable("it is given twice, but a file is one disk only"));
        }
        files.push(file);
    }
    Ok(())
}

/// Checks that a guest can have so many disks.
pub fn check_count(count: usize) -> Result<()> {
    if count > MOST {
        return Err(Error::Usage(format!("{count} disks are too many: a guest has {MOST} at most")));
    }
    Ok(())
}

impl Disk {
    fn unusable(&self, why: impl Into<String>) -> Error {
        Error::Disk { path: self.path.clone(), why: why.into() }
    }

    /// Checks the file, and returns the numbers of its device and inode.
    fn check(&self) -> Result<(u64, u64)> {
        let not_there = |source| Error::File { path: self.path.clone(), source };
        // Read without opening, since an open of a FIFO would wait for a writer.
        let found = std::fs::metadata(&self.path).map_err(not_there)?;
        if found.is_dir() {
            return Err(self.unusable("a folder; a disk is an image file"));
        }
        if !found.is_file() {
            return Err(self.unusable("not a regular file; a disk is an image file"));
        }
        if found.len() == 0 {
            return Err(self.unusable("empty; make it as large as the disk, as by `truncate -s 1G FILE`"));
        }
        if !found.len().is_multiple_of(SECTOR) {
            let bytes = found.len();
            return Err(self.unusable(format!("{bytes} bytes are no multiple of a disk's {SECTOR}")));
        }
        OpenOptions::new().read(true).open(&self.path).map_err(not_there)?;
        if !self.read_only
            && let Err(why) = OpenOptions::new().write(true).open(&self.path)
        {
            return Err(self.unusable(format!("cannot be written ({why}); attach it with --read-only")));
        }
        Ok((found.dev(), found.ino()))
    }
}

/// The name of disk number `number` in QEMU's block layer.
pub(crate) fn node_name(number: usize) -> String {
    format!("disk{number}")
}

/// The block node of a disk that has no medium at first, and that gets files later.
pub(crate) fn slot_name(slot: usize) -> String {
    format!("slot{slot}")
}

/// The block node that is such a disk's medium while it has none.
pub(crate) fn no_medium(slot: usize) -> String {
    format!("none{slot}")
}

/// The options of every disk's device. QEMU locks a file against other writers unless the disk is
/// shared; those that share it all have its contents in the host's page cache.
fn device(node: &str, common: Common) -> OsString {
    let sharing = if common.are_shared { "share-rw=on," } else { "" };
    let queues = common.cpus.clamp(1, MOST_QUEUES);
    let device = format!(
        "virtio-blk-pci,drive={node},disable-legacy=on,num-queues={queues},queue-size={QUEUE_SIZE},\
         discard=on,write-zeroes=on,{sharing}{ERRORS}"
    );
    device.into()
}

/// QEMU's arguments for so many disks without a medium. The guest sees empty ones.
pub(crate) fn slots(count: usize, common: Common) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    for slot in 0..count {
        let (none, name) = (no_medium(slot), slot_name(slot));
        let none_at_all = format!("driver=null-co,node-name={none},size=0,read-zeroes=on");
        let layer = format!("driver=raw,node-name={name},file={none},discard=unmap");
        arguments.extend(["-blockdev".into(), none_at_all.into(), "-blockdev".into(), layer.into()]);
        arguments.extend(["-device".into(), device(&name, common)]);
    }
    arguments
}

/// QEMU's arguments for these disks.
pub(crate) fn arguments(disks: &[Disk], common: Common) -> Vec<OsString> {
    let mut arguments = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        let node = node_name(number);
        let read_only = if disk.read_only { "on" } else { "off" };
        let every = format!("read-only={read_only},discard=unmap,cache.direct=off");
        // A layer above the file makes the errors.
        let (layer, prefix) = match disk.failing {
            Some(sector) => {
                let error = |number: u32, of: &str, errno: i32| {
                    format!(
                        "inject-error.{number}.event=none,inject-error.{number}.iotype={of},\
                         inject-error.{number}.errno={errno},inject-error.{number}.sector={sector},"
                    )
                };
                let rules = [("read", EIO), ("write", ENOSPC), ("write-zeroes", ENOSPC), ("discard", ENOSPC)];
                let errors: String =
                    (0..).zip(rules).map(|(number, (of, errno))| error(number, of, errno)).collect();
                (format!("driver=blkdebug,{errors}{every},"), "image.")
            }
            None => (String::new(), ""),
        };
        let every = every.split(',').map(|option| format!("{prefix}{option},")).collect::<String>();
        let mut file = OsString::from(format!(
            "{layer}node-name={node},{prefix}driver=file,{every}{prefix}aio=threads,{prefix}filename="
        ));
        file.push(in_list(disk.path.as_os_str()));
        arguments.extend(["-blockdev".into(), file, "-device".into(), device(&node, common)]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn disk(path: &Path) -> Disk {
        Disk { path: path.into(), read_only: false, failing: None }
    }

    /// A file of this many bytes.
    fn image(dir: &Path, name: &str, bytes: u64) -> Disk {
        let path = dir.join(name);
        fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("a sparse file");
        disk(&path)
    }

    #[track_caller]
    fn refused(disks: &[Disk], words: &str) {
        let error = check(disks).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn what_is_no_image_is_refused_in_one_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        refused(&[disk(&dir.join("none"))], "none: No such file");
        refused(&[disk(dir)], ": a folder; a disk is an image file");
        refused(&[disk(Path::new("/dev/null"))], "/dev/null: not a regular file");
        let fifo = dir.join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo is there").success());
        refused(&[disk(&fifo)], "fifo: not a regular file");
        refused(&[image(dir, "empty", 0)], "empty: empty; make it as large as the disk");
        for bytes in [1, 511, 513, 1 << 20 | 256] {
            refused(&[image(dir, "odd", bytes)], &format!("odd: {bytes} bytes are no multiple of"));
        }
        assert!(check(&[image(dir, "least", 512), image(dir, "large", 1 << 40)]).is_ok());
        assert!(check(&[]).is_ok());
    }

    #[test]
    fn a_file_is_one_disk_whatever_it_is_called() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        let (a, b) = (image(dir, "a", 4096), image(dir, "b", 4096));
        assert!(check(&[a.clone(), b.clone()]).is_ok());
        refused(&[a.clone(), b.clone(), a.clone()], "a: it is given twice");
        let link = dir.join("link");
        std::os::unix::fs::symlink(&a.path, &link).expect("a link");
        refused(&[a.clone(), disk(&link)], "link: it is given twice");
        let read_only = Disk { read_only: true, ..a.clone() };
        refused(&[read_only.clone(), read_only], "a: it is given twice");
        let many: Vec<Disk> = (0..=MOST).map(|n| image(dir, &n.to_string(), 512)).collect();
        assert!(check(&many[1..]).is_ok());
        refused(&many, "17 disks are too many");
    }

    /// A running program's file cannot be written, not even by root.
    #[test]
    fn a_file_that_can_not_be_written_is_for_reading() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sleep");
        fs::copy("/bin/sleep", &path).expect("copy a program");
        let bytes = fs::metadata(&path).expect("it is there").len().next_multiple_of(SECTOR);
        OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(bytes)).expect("padding");
        let mut running = Command::new(&path).arg("600").spawn().expect("it runs");
        let checked = check(&[disk(&path)]);
        let read_only = check(&[Disk { read_only: true, ..disk(&path) }]);
        running.kill().and_then(|()| running.wait()).expect("it ends");
        let error = checked.expect_err("it runs").to_string();
        assert!(error.contains("cannot be written (") && error.contains("--read-only"), "{error}");
        assert!(read_only.is_ok());
    }

    #[test]
    fn qemu_gets_a_block_node_and_a_device_for_each() {
        let strange = OsString::from_vec(b"/\xff=,".to_vec());
        let disks = [
            disk(Path::new("a,b,,c")),
            Disk { read_only: true, ..disk(Path::new(&strange)) },
            Disk { failing: Some(7), ..disk(Path::new("x")) },
        ];
        let shared = arguments(&disks[..1], Common { cpus: 2, are_shared: true });
        assert!(shared[3].to_str().expect("text").contains(",share-rw=on,"), "{shared:?}");
        for (cpus, queues) in [(1, 1), (2, 2), (16, 16), (17, 16)] {
            let common = Common { cpus, are_shared: false };
            let has_queues = |device: &OsString| {
                device.to_str().expect("text").contains(&format!(",num-queues={queues},queue-size=1024,"))
            };
            assert!(has_queues(&arguments(&disks[..1], common)[3]), "{cpus}");
            assert!(has_queues(&slots(1, common)[5]), "{cpus}");
        }
        let arguments = arguments(&disks, Common { cpus: 1, are_shared: false });
        let [first, file0, second, device0, _, file1, _, device1, _, file2, _, device2] = &arguments[..]
        else {
            panic!("{arguments:?}");
        };
        assert_eq!((first.as_bytes(), second.as_bytes()), (&b"-blockdev"[..], &b"-device"[..]));
        let options = "discard=unmap,cache.direct=off,aio=threads,filename=";
        let start = format!("node-name=disk0,driver=file,read-only=off,{options}a,,b,,,,c");
        assert_eq!(file0.as_bytes(), start.as_bytes());
        let mut start = format!("node-name=disk1,driver=file,read-only=on,{options}").into_bytes();
        start.extend(b"/\xff=,,");
        assert_eq!(file1.as_bytes(), start);
        let file2 = file2.to_str().expect("text");
        let error = "inject-error.1.event=none,inject-error.1.iotype=write,inject-error.1.errno=28";
        assert!(file2.starts_with("driver=blkdebug,inject-error.0.event=none,"), "{file2}");
        assert!(file2.contains(error), "{file2}");
        assert!(file2.contains(".sector=7,read-only=off,discard=unmap,"), "{file2}");
        assert!(file2.contains(",node-name=disk2,image.driver=file,image.read-only=off,"), "{file2}");
        assert!(file2.ends_with(",image.aio=threads,image.filename=x"), "{file2}");
        for (number, device) in [device0, device1, device2].into_iter().enumerate() {
            let start = format!("virtio-blk-pci,drive=disk{number},disable-legacy=on,");
            let device = device.to_str().expect("text");
            assert!(device.starts_with(&start), "{device}");
            assert!(device.ends_with(",werror=report,rerror=report"), "an error must not stop the guest");
            assert!(!device.contains("share-rw"), "another writer is an accident");
        }
    }
}
