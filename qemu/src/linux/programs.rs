//! Programs of Debian's packages that run on this machine, not in a guest: those that use
//! libibverbs and librdmacm, also by UCX and libfabric, and those that use libdat2, for tests of
//! our libraries.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::images;
use crate::progress::Progress;

use super::image::{Apt, Work, unpack};

/// The packages with the programs, and the libraries that they need beside those of rdma-core.
const PACKAGES: [&str; 16] = [
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "dapl2-utils",
    "libdapl2",
    "libibumad3",
    "libpci3",
    "ucx-utils",
    "libucx0",
    "libgomp1",
    "libnuma1",
    "libfabric-bin",
    "libfabric1",
    "libatomic1",
    "libpsm2-2",
    "libpsm-infinipath1",
];
/// The folder of libraries, and in it a link that a package makes when it is installed.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LINK: (&str, &str) = ("libpsm_infinipath.so.1", "../libpsm1/libpsm_infinipath.so.1.16");

/// Whether a process listens at a port of TCP, by the kernel's tables.
pub fn is_heard(port: &str) -> bool {
    let Ok(port) = port.parse::<u16>() else { return false };
    let (listening, tail) = (" 0A ", format!(":{port:04X}"));
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let lines = fs::read_to_string(table).unwrap_or_default();
        lines.lines().any(|line| {
            let local = line.split_whitespace().nth(1);
            local.is_some_and(|local| local.ends_with(&tail)) && line.contains(listening)
        })
    })
}

/// The folder with the programs. They are downloaded once.
pub fn find() -> Result<PathBuf> {
    let folder = images::target_folder()?.join("tmp");
    let kept = folder.join("programs");
    let stamp = kept.join("made-of");
    let made_of = format!("{PACKAGES:?}");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == made_of) {
        return Ok(kept.join("usr/bin"));
    }
    let _progress = Progress::begin("downloading Debian's programs for RDMA");
    let made = || {
        let work = Work::begin(folder.join(format!("programs-{}", std::process::id())))?;
        let apt = Apt::begin(&work.0)?;
        fs::create_dir_all(&kept)?;
        for package in apt.download("programs", &PACKAGES)? {
            unpack(&package, &kept)?;
        }
        let link = kept.join(LIBRARIES).join(LINK.0);
        if fs::symlink_metadata(&link).is_err() {
            symlink(LINK.1, link)?;
        }
        fs::write(stamp, made_of)
    };
    made().map_err(|e| Error::system("get Debian's programs", e))?;
    Ok(kept.join("usr/bin"))
}
