//! A file for a guest, beside its command line, which every user of the machine can read.
//!
//! The bytes are in an anonymous file that QEMU inherits. The guest's kernel finds them as a
//! module.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::MemfdFlags;

use crate::error::{Error, Result};

/// The most bytes of a file.
pub const MOST_BYTES: u64 = 1 << 20;

/// A file's bytes, for a guest.
#[derive(Clone, Debug)]
pub struct Handed(Arc<File>);

impl Handed {
    /// These bytes.
    pub fn new(bytes: &[u8]) -> Result<Handed> {
        let failed = |e| Error::system("keep a file for the guest", e);
        let fd = rustix::fs::memfd_create("ferrovia-module", MemfdFlags::CLOEXEC);
        let mut file = File::from(fd.map_err(|e| failed(e.into()))?);
        file.write_all(bytes).map_err(failed)?;
        Ok(Handed(Arc::new(file)))
    }

    /// The descriptor that QEMU inherits.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// QEMU's arguments.
    pub fn arguments(&self) -> [String; 2] {
        ["-initrd".into(), format!("/proc/self/fd/{}", self.descriptor())]
    }
}

/// Reads a file with keys; says so if others can read it, too.
pub fn read(path: &Path) -> Result<String> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.is_file() && about.permissions().mode() & 0o077 != 0 {
        complain!(
            "ferrovia: users other than its owner may use {0}; `chmod 600 {0}` ends that",
            path.display()
        );
    }
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(Error::Usage(format!("{}: more than {MOST_BYTES} bytes", path.display())));
    }
    Ok(text)
}
