//! Memory that processes share: anonymous files that cannot shrink, and their mappings.
//!
//! Nothing here has a name in the file system, so nothing is left behind when its users are killed.
//! A file that shrinks under a mapping makes accesses raise SIGBUS. So this module maps a file only
//! if it is sealed against shrinking, also a file that a peer has made. So does a page that is not
//! there yet when there is no memory for it. What has to go on without memory is therefore mapped
//! with all of its pages ([`Mapping::with_pages`]).
#![expect(unsafe_code, reason = "mapping memory, and giving out bounds-checked windows onto it")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use platform::SharedSlice;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags};

/// The file system of anonymous files (Linux, `include/uapi/linux/magic.h`). Files of huge pages
/// are of another one: an access to them fails if there are no more of these pages.
const TMPFS: u64 = 0x0102_1994;

/// Makes an anonymous file of `len` zeroed bytes that cannot shrink; `purpose` is its name in
/// /proc.
pub fn sealed_file(purpose: &str, len: usize) -> Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(purpose, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(fd)
}

/// Whether a file may be mapped.
fn check(fd: BorrowedFd<'_>, len: usize) -> Result<()> {
    // Only files that live in memory have seals, and a seal is for ever.
    let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
    let file_system = rustix::fs::fstatfs(fd)?.f_type as u64;
    let size = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
    if sealed && file_system == TMPFS && size >= len as u64 { Ok(()) } else { Err(Errno::INVAL) }
}

/// Maps a file that was checked.
fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Mapping> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the system chooses; it replaces nothing.
    let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, fd, 0)? };
    NonNull::new(ptr.cast()).map(|ptr| Mapping { ptr, len }).ok_or(Errno::NOMEM)
}

/// A shared mapping of an anonymous file.
#[derive(Debug)]
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns a mapping, which is bound to no thread; access is by `SharedSlice` only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of an anonymous file, which anybody may have made. The file has
    /// to be so long, writable, and sealed against shrinking ([`sealed_file`]): otherwise it is
    /// `EINVAL`, or another error of the system. Pages come when they are first used.
    pub fn new(fd: impl AsFd, len: usize) -> Result<Mapping> {
        check(fd.as_fd(), len)?;
        map(fd.as_fd(), len)
    }

    /// As [`Mapping::new`], but all pages come now: `ENOSPC` or `ENOMEM` if there is no memory for
    /// them, and no access can fail for want of it. `EINTR` if a signal comes meanwhile.
    ///
    /// A process that has the file can still give its pages back to the system. The next access
    /// then takes new pages, and fails if there are none.
    pub fn with_pages(fd: impl AsFd, len: usize) -> Result<Mapping> {
        check(fd.as_fd(), len)?;
        rustix::fs::fallocate(fd.as_fd(), FallocateFlags::KEEP_SIZE, 0, len as u64)?;
        map(fd.as_fd(), len)
    }

    /// All of it.
    #[inline]
    pub fn slice(&self) -> SharedSlice<'_> {
        // SAFETY: mapped readable and writable until `self` is dropped; the file is as long and
        // cannot shrink; and only windows are handed out.
        unsafe { SharedSlice::from_raw(self.ptr, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the windows onto it borrow `self`. If it fails the
        // memory stays mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_file_are_the_same_memory() {
        let file = sealed_file("test", 8192).unwrap();
        let [one, other] = [8192, 4096].map(|len| Mapping::new(&file, len).unwrap());
        one.slice().write(4000, &[7; 96]).unwrap();
        let mut read = [0; 96];
        other.slice().read(4000, &mut read).unwrap();
        assert_eq!((read, other.slice().len()), ([7; 96], 4096));
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
    }

    #[test]
    fn all_pages_of_a_mapping_that_is_to_have_them_are_there() {
        let pages = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_blocks * 512;
        let file = sealed_file("test", 1 << 20).unwrap();
        let _lazy = Mapping::new(&file, 1 << 20).unwrap();
        assert_eq!(pages(&file), 0);
        let _whole = Mapping::with_pages(&file, 1 << 19).unwrap();
        assert_eq!((pages(&file), rustix::fs::fstat(&file).unwrap().st_size), (1 << 19, 1 << 20));
    }

    #[test]
    fn a_file_that_could_shrink_or_is_too_short_or_read_only_is_not_mapped() {
        let short = sealed_file("short", 4095).unwrap();
        assert_eq!(Mapping::new(&short, 4096).unwrap_err(), Errno::INVAL);
        assert_eq!(Mapping::with_pages(&short, 4096).unwrap_err(), Errno::INVAL);
        assert_eq!(rustix::fs::fstat(&short).unwrap().st_blocks, 0, "nothing was given to it");
        let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert_eq!(Mapping::new(&open, 4096).unwrap_err(), Errno::INVAL);
        rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK | SealFlags::WRITE).unwrap();
        assert_eq!(Mapping::new(&open, 4096).unwrap_err(), Errno::PERM);
        let on_disk = tempfile::tempfile().unwrap();
        on_disk.set_len(4096).unwrap();
        assert_eq!(Mapping::new(&on_disk, 4096).unwrap_err(), Errno::INVAL);
    }
}
