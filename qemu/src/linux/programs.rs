//! Programs of Debian's packages that run on this machine, not in a guest: those that use
//! libibverbs and librdmacm, also by UCX and libfabric, and those that use libdat2, for tests of
//! our libraries; and what Rust programs need to be built.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::images;
use crate::progress::Progress;

use super::image::{Apt, Work, unpack};

/// The packages with the programs, the libraries that they need beside those of rdma-core, and its
/// headers.
const PACKAGES: [&str; 18] = [
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
    "libibverbs-dev",
    "librdmacm-dev",
];
/// The folder of libraries, and in it a link that a package makes when it is installed.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LINK: (&str, &str) = ("libpsm_infinipath.so.1", "../libpsm1/libpsm_infinipath.so.1.16");

/// The package that depends on Clang's usual version.
const CLANG: &str = "clang";

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
    let kept = kept("programs", &format!("{PACKAGES:?}"), |apt, kept| {
        for package in apt.download("programs", &PACKAGES)? {
            unpack(&package, kept)?;
        }
        let link = kept.join(LIBRARIES).join(LINK.0);
        match fs::symlink_metadata(&link) {
            Ok(_) => Ok(()),
            Err(_) => symlink(LINK.1, link),
        }
    })?;
    Ok(kept.join("usr/bin"))
}

/// Clang's library, by which Rust programs read the headers of rdma-core when they are built.
pub struct Clang {
    /// The folder with the library, and with those that it needs.
    pub libraries: PathBuf,
    /// The folder with the compiler's own headers, unless the machine has a clang: its headers are
    /// found without this, and of two copies the first hides C's.
    pub headers: Option<PathBuf>,
}

/// Clang's library of Debian's usual version. It is downloaded once.
pub fn clang() -> Result<Clang> {
    let kept = kept("clang", "of the usual version", |apt, kept| {
        let depends = apt.depends(CLANG)?;
        let mut words = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let version =
            words.find_map(|name| name.strip_prefix("clang-")).ok_or_else(|| missing("version of clang"))?;
        let [library, headers] = [format!("libclang1-{version}"), format!("libclang-common-{version}-dev")];
        for package in apt.download_all(&[&library, &headers])? {
            // The machine has C's library, and its loader fits no other one.
            let name = package.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with("libc6_") {
                unpack(&package, kept)?;
            }
        }
        Ok(())
    })?;
    // usr/lib/llvm-N/lib/clang/VERSION/include
    let inside = |folder: PathBuf, begin: &str| -> io::Result<PathBuf> {
        let mut entries = fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let begins =
            |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(begin));
        entries.find(begins).ok_or_else(|| missing(&folder.display().to_string()))
    };
    let headers = inside(kept.join("usr/lib"), "llvm-")
        .and_then(|llvm| inside(llvm.join("lib/clang"), ""))
        .map_err(|e| Error::system("find Clang's headers", e))?
        .join("include");
    let has_clang = Command::new(CLANG).arg("--version").output().is_ok();
    Ok(Clang { libraries: kept.join(LIBRARIES), headers: (!has_clang).then_some(headers) })
}

/// A folder that is filled once, by `fill`, and again if it was made of something else.
fn kept(name: &str, made_of: &str, fill: impl FnOnce(&Apt, &Path) -> io::Result<()>) -> Result<PathBuf> {
    let folder = images::target_folder()?.join("tmp");
    let kept = folder.join(name);
    let stamp = kept.join("made-of");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == made_of) {
        return Ok(kept);
    }
    let _progress = Progress::begin(format!("downloading Debian's packages of {name}"));
    let made = || {
        let work = Work::begin(folder.join(format!("{name}-{}", std::process::id())))?;
        let apt = Apt::begin(&work.0)?;
        fs::create_dir_all(&kept)?;
        fill(&apt, &kept)?;
        fs::write(stamp, made_of)
    };
    made().map_err(|e| Error::system(format!("get Debian's packages of {name}"), e))?;
    Ok(kept)
}

fn missing(what: &str) -> io::Error {
    io::Error::other(format!("there is no {what}"))
}
