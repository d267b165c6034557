//! blktests (<https://github.com/linux-blktests/blktests>) in a Linux guest: its tests of NVMe, for a
//! target on another machine. The user has a checkout of it, which goes into an archive behind the
//! guest's RAM disk, with the programs that it wants and the one that it asks about its target.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::setup::Qemu;

use super::image::{Archive, Image, Kernel};
use super::storage::PORT;
use super::tools::{self, Tools};
use super::{Device, Linux, Outcome, STEP};

const TOOLS: Tools = Tools {
    folder: "blktests",
    packages: &[
        "bash",
        "bsdextrautils",
        "coreutils",
        "diffutils",
        "findutils",
        "fio",
        "gawk",
        "grep",
        "gzip",
        "libc-bin",
        "liburing2",
        "mount",
        "sed",
        "udev",
        "util-linux",
        "xfsprogs",
    ],
    programs: &[
        "basename", "bash", "blockdev", "cat", "chmod", "cmp", "column", "cp", "cut", "date", "dd", "df",
        "diff", "dirname", "dmesg", "env", "find", "findmnt", "fio", "gawk", "getconf", "getopt", "grep",
        "gzip", "head", "id", "ln", "losetup", "ls", "mkdir", "mkfs.xfs", "mktemp", "mount", "mv", "nproc",
        "printf", "readlink", "realpath", "rm", "rmdir", "sed", "seq", "shuf", "sleep", "sort", "stat",
        "tail", "tee", "touch", "tr", "truncate", "udevadm", "umount", "uname", "uniq", "wc", "xargs",
        "xfs_io", "zgrep",
    ],
    // A program of blktests needs it.
    libraries: &["liburing.so.2"],
};
/// What the guest needs of a checkout.
const PARTS: [&str; 4] = ["check", "common", "src", "tests"];
/// The program that blktests asks about its target.
const CONTROL: &str = include_str!("blktests-target");
/// The least size of a disk that all tests take.
pub const DISK: &str = "350M";
/// A user without privileges, for a test that wants one.
const USER: &str = "blktests";
/// How long a test may take.
const LONG: Duration = Duration::from_secs(900);

/// The target of the tests.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The subsystem's name.
    pub nqn: &'a str,
    /// The UUID of its namespace.
    pub uuid: &'a str,
    /// Its IP address.
    pub address: &'a str,
    /// The name that the guest has as a host, and its identifier, a UUID.
    pub host: (&'a str, &'a str),
    /// The guest's IP address.
    pub host_address: &'a str,
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It passed.
    Passed,
    /// blktests did not run it, for this reason.
    NotRun(String),
    /// It failed. The text is what it wrote, with its files.
    Failed(String),
}

impl Ending {
    /// Reads what `check` wrote.
    fn read(said: &str) -> Ending {
        let ends = |end: &str| said.lines().any(|line| line.trim_end().ends_with(end));
        if ends("[not run]") {
            let after = said.lines().skip_while(|line| !line.trim_end().ends_with("[not run]")).skip(1);
            let reasons: Vec<&str> = after.map(str::trim).filter(|line| !line.is_empty()).collect();
            Ending::NotRun(reasons.join("; "))
        } else if ends("[passed]") && !ends("[failed]") {
            Ending::Passed
        } else {
            Ending::Failed(said.to_owned())
        }
    }
}

/// The guest's image with this kernel and a checkout of blktests. Its RAM disk is made in `folder`.
pub fn image(kernel: Kernel, checkout: &Path, target: &Target<'_>, folder: &Path) -> Result<Image> {
    let image = Image::with(kernel)?;
    let programs = tools::archive(&TOOLS)?;
    let ours = folder.join("blktests");
    pack(checkout, target, &ours).map_err(|e| Error::system("pack blktests for the Linux guest", e))?;
    image.followed_by(&[programs, ours], &folder.join("initrd"))
}

fn pack(checkout: &Path, target: &Target<'_>, archive: &Path) -> io::Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(archive)?));
    archive.folder("blktests")?;
    for part in PARTS {
        archive.tree(&checkout.join(part), &format!("blktests/{part}"))?;
    }
    let Target { nqn, uuid, address, host: (host, id), host_address } = target;
    let variables = format!(
        "subsystem={nqn}\nuuid={uuid}\naddress={address}\nport={PORT}\nhost={host}\nhost_id={id}\n\
         host_address={host_address}\n"
    );
    let config = format!(
        "NVME_TARGET_CONTROL=/usr/bin/blktests-target\nNVME_IMG_SIZE={DISK}\nNORMAL_USER={USER}\nUSE_RXE=1\n"
    );
    let users = format!("root:x:0:0::/root:/bin/bash\n{USER}:x:1000:1000::/tmp:/bin/bash\n");
    for (name, mode, text) in [
        ("usr/bin/blktests-target", 0o755, CONTROL),
        // All commands are root's.
        ("usr/bin/sudo", 0o755, "#!/usr/bin/dash\nexec \"$@\"\n"),
        ("etc/blktests-target", 0o644, variables.as_str()),
        ("etc/blktests", 0o644, config.as_str()),
        ("etc/passwd", 0o644, users.as_str()),
    ] {
        archive.entry(name, 0o100_000 | mode, text.as_bytes())?;
    }
    archive.link("usr/bin/awk", "gawk")?;
    archive.link("etc/mtab", "../proc/self/mounts")?;
    archive.end()
}

/// Boots a guest with blktests.
pub fn boot(qemu: &Qemu, image: &Image, device: &Device<'_>) -> Result<Linux> {
    let mut linux = Linux::boot(qemu, image, device)?;
    // What blktests finds in place it leaves there. bash names open files in /dev/fd.
    let line = "set -e; for name in loop xfs nvme_rdma nvmet_rdma; do modprobe $name; done; \
                mount -t configfs none /sys/kernel/config; mount -t debugfs none /sys/kernel/debug; \
                ln -s /proc/self/fd /dev/fd";
    linux.succeed(line, STEP)?;
    // nvme-cli takes random numbers only if the kernel has some; a read here waits for them.
    linux.succeed("head -c 1 /dev/random >/dev/null", STEP)?;
    linux.load_for_authentication()?;
    Ok(linux)
}

impl Linux {
    /// Runs a test, such as nvme/003, in a guest that [`boot`] has started; on a device if the test
    /// wants one that is connected already. `answer` does what the test asks of the target, in the
    /// words of NVME_TARGET_CONTROL, and says "done" or why not.
    pub fn blktest(
        &mut self,
        test: &str,
        device: Option<&str>,
        answer: impl FnMut(&str) -> String,
    ) -> Result<Ending> {
        let devices = device.map(|device| format!("TEST_DEVS={device} ")).unwrap_or_default();
        let line = format!(
            "cd /blktests && rm -rf results && \
             {devices}./check -c /etc/blktests {test} </dev/null >/tmp/said 2>&1; cat /tmp/said"
        );
        let Outcome { text, .. } = self.run_answering(&line, LONG, answer)?;
        let ending = Ending::read(&text);
        let Ending::Failed(mut said) = ending else { return Ok(ending) };
        let files = "cd /blktests/results; find . -type f | while read -r file; do echo \"== $file\"; \
                     tail -n 60 \"$file\"; done; echo \"== the kernel\"; dmesg | tail -n 40";
        said.push_str(&self.run(files, STEP)?.text);
        Ok(Ending::Failed(said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_has_passed_only_if_blktests_says_so() {
        let begin = "nvme/003 (tr=rdma) (keep-alives)                 \n    runtime    ...\n";
        let with = |end: &str| Ending::read(&format!("{begin}nvme/003 (tr=rdma) (keep-alives)   {end}\n"));
        assert_eq!(with(" [passed]\n    runtime    ...  10.4s"), Ending::Passed);
        let not_run = with(" [not run]\n    driver siw is not available\n    no loop");
        assert_eq!(not_run, Ending::NotRun("driver siw is not available; no loop".into()));
        for said in [" [failed]\n    --- tests/nvme/003.out", "", " [passed]\nnvme/003 (tr=tcp) [failed]"] {
            assert!(matches!(with(said), Ending::Failed(_)), "{said}");
        }
    }
}
