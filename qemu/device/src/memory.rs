//! Memory that both QEMU and the device map: anonymous files, and the guest's RAM by bus address.
//!
//! Nothing here has a name in the file system, so nothing is left behind when QEMU or the launcher
//! is killed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use links::Mapping;
use nic_model::{DmaError, GuestMemory};
use platform::SharedSlice;
use rustix::fs::FallocateFlags;

use crate::error::{Error, Result};

/// An anonymous shared file, which is mapped while this value lives.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    mapping: Mapping,
}

impl SharedMemory {
    /// `len` zeroed bytes; `purpose` is for messages and for /proc.
    pub fn new(purpose: &str, len: usize) -> Result<SharedMemory> {
        let failed = |e: rustix::io::Errno| Error::system(format!("set aside {len} bytes for {purpose}"), e);
        let fd = links::sealed_file(purpose, len).map_err(failed)?;
        let mapping = Mapping::new(&fd, len).map_err(failed)?;
        Ok(SharedMemory { fd, mapping })
    }

    /// All of it.
    pub fn slice(&self) -> SharedSlice<'_> {
        self.mapping.slice()
    }

    /// The file behind it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// RAM below this size lies in one piece below the PCI hole (QEMU, hw/i386/pc_q35.c).
const ONE_PIECE: u64 = 0xb000_0000;
/// How much of a larger RAM lies below the hole.
const SPLIT_LOW: u64 = 0x8000_0000;
/// Where the rest of a larger RAM begins.
const HIGH: u64 = 1 << 32;

/// How much of a RAM of `size` bytes the q35 machine puts below the PCI hole.
fn below_hole(size: u64) -> u64 {
    if size >= ONE_PIECE { SPLIT_LOW } else { size }
}

/// The guest's RAM, accessed by bus address. Clones share one mapping.
#[derive(Clone, Debug)]
pub struct GuestRam {
    memory: Arc<SharedMemory>,
    low: u64,
    size: u64,
}

impl GuestRam {
    /// RAM of `size` bytes.
    pub fn new(size: u64) -> Result<GuestRam> {
        let len = usize::try_from(size)
            .map_err(|_| Error::system(format!("set aside {size} bytes"), rustix::io::Errno::NOMEM))?;
        let memory = Arc::new(SharedMemory::new("the guest's memory", len)?);
        Ok(GuestRam { memory, low: below_hole(size), size })
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The file behind it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Zeroes it, and gives its pages back to the system.
    pub fn clear(&self) -> Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd(), hole, 0, self.size)
            .map_err(|e| Error::system("clear the guest's memory", e))
    }

    /// The first bus address above all RAM.
    pub fn limit(&self) -> u64 {
        if self.size > self.low { HIGH + (self.size - self.low) } else { self.low }
    }

    /// The window of `len` bytes at bus address `addr`; `None` unless all of it is RAM, in one
    /// piece. There is an empty window at every address.
    #[inline]
    fn window(&self, addr: u64, len: u64) -> Option<SharedSlice<'_>> {
        let addr = if len == 0 { 0 } else { addr };
        let end = addr.checked_add(len)?;
        let offset = if end <= self.low {
            addr
        } else if addr >= HIGH && end <= self.limit() {
            addr - HIGH + self.low
        } else {
            return None;
        };
        self.memory.slice().get(usize::try_from(offset).ok()?, usize::try_from(len).ok()?).ok()
    }
}

impl GuestMemory for GuestRam {
    #[inline]
    fn get(&self, addr: u64, len: u64) -> std::result::Result<SharedSlice<'_>, DmaError> {
        self.window(addr, len).ok_or(DmaError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_that_is_cleared_is_zero() {
        let ram = GuestRam::new(1 << 20).expect("1 MiB");
        ram.write(0x5000, &[7; 100]).expect("it is RAM");
        ram.clear().expect("it clears");
        let mut bytes = [1; 100];
        ram.read(0x5000, &mut bytes).expect("it is RAM");
        assert_eq!(bytes, [0; 100]);
    }

    #[test]
    fn a_small_ram_is_one_piece() {
        let ram = GuestRam::new(1 << 20).expect("1 MiB");
        assert_eq!(ram.limit(), 1 << 20);
        assert_eq!(ram.window(0, 1 << 20).expect("all of it").len(), 1 << 20);
        assert!(ram.window(1, 1 << 20).is_none());
        assert!(ram.window((1 << 20) - 8, 8).is_some());
        assert!(ram.window((1 << 20) - 8, 9).is_none());
        assert!(ram.window(u64::MAX, 1).is_none());
        assert!(ram.window(u64::MAX - 7, 8).is_none());
        assert!(ram.window(HIGH, 1).is_none());
    }

    #[test]
    fn an_empty_window_is_at_every_address() {
        let ram = GuestRam::new(1 << 20).expect("1 MiB");
        for addr in [0, 1 << 20, (1 << 20) + 1, u64::MAX] {
            assert_eq!(ram.get(addr, 0).expect("nothing").len(), 0);
        }
    }

    #[test]
    fn a_large_ram_continues_above_the_hole() {
        let size = 3 << 30;
        let ram = GuestRam::new(size).expect("3 GiB, of which few pages are used");
        assert_eq!(ram.limit(), HIGH + (1 << 30));
        ram.window(SPLIT_LOW - 8, 8).expect("below the hole").write(0, &[1; 8]).expect("in bounds");
        ram.window(HIGH, 8).expect("above the hole").write(0, &[2; 8]).expect("in bounds");
        assert!(ram.window(SPLIT_LOW, 1).is_none());
        assert!(ram.window(SPLIT_LOW - 4, 8).is_none(), "a window across the edge of the hole");
        assert!(ram.window(HIGH - 1, 2).is_none());
        assert!(ram.window(HIGH + (1 << 30) - 1, 2).is_none());
        let mut bytes = [0; 16];
        ram.memory.slice().read(SPLIT_LOW as usize - 8, &mut bytes).expect("in bounds");
        assert_eq!(bytes, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2], "the file has no hole");
    }

    #[test]
    fn a_ram_of_impossible_size_is_an_error() {
        let error = GuestRam::new(1 << 62).expect_err("no machine has that");
        assert!(error.to_string().contains("the guest's memory"), "{error}");
    }
}
