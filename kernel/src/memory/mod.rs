//! Memory: RAM, its allocation, and how it is mapped.
//!
//! All RAM is mapped where it lies (virtual address = physical address = bus address), without
//! execution. The image's code is executable and read-only, its constants are read-only. The first
//! page and the boot stack's guard are not mapped. Thread stacks have a range of addresses of their
//! own, with guards between them (`stacks`). Device memory is mapped where it lies, on demand
//! (`map_device`).
//!
//! `frames` allocates pages, `heap` smaller pieces, `dma` memory for devices. [`usage`] counts
//! them.

mod dma;
mod frames;
mod heap;
mod paging;
mod stacks;

use core::fmt;

use platform::{BusExtent, OutOfMemory};
use spin::Once;

use crate::pvh::{Regions, StartData};
use crate::region::Region;

pub use crate::region::PAGE;
pub(crate) use dma::{alloc_dma, free_dma};
pub use heap::{Usage, requests, usage};
use paging::Rights;
pub(crate) use paging::{Cache, enter, is_code, renew, root};
pub(crate) use stacks::{BOOT_STACK, BOOT_STACK_END, Stack, StackAddress, classify};

/// The RAM that must be free, or the kernel does not reach its first thread: an arena of the heap
/// at its alignment, and stacks.
const LEAST: usize = 3 << 20;

/// Why memory could not be set up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unusable {
    /// There is too little RAM for the kernel itself.
    TooSmall,
    /// What the monitor loaded overlaps the image.
    Overlap,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unusable::TooSmall => "there is too little memory; give the guest more",
            Unusable::Overlap => "what the monitor loaded overlaps the image, which must lie at 1 MiB alone",
        })
    }
}

static RAM: Once<Regions> = Once::new();

fn ram() -> &'static [Region] {
    RAM.get().map_or(&[], |ram| ram)
}

/// Records what RAM there is, makes the free part of it available, and replaces the boot page
/// tables.
pub(crate) fn init(data: &StartData) -> Result<(), Unusable> {
    let image = Region::from_range(paging::image());
    if data.reserved().any(|r| r.overlaps(&image)) {
        return Err(Unusable::Overlap);
    }
    RAM.call_once(|| *data.ram());
    // The boot tables map only the first 4 GiB; the kernel's own map all RAM.
    let low = Region { start: 1 << 20, len: (4 << 30) - (1 << 20) };
    let high = Region { start: 4 << 30, len: u64::MAX - (4 << 30) };
    give_out(data, image, low);
    paging::init(ram(), stacks::boot_stack()).map_err(|OutOfMemory| Unusable::TooSmall)?;
    give_out(data, image, high);
    if frames::free_bytes() < LEAST {
        return Err(Unusable::TooSmall);
    }
    Ok(())
}

/// Makes the unused RAM within `bounds` available.
fn give_out(data: &StartData, image: Region, bounds: Region) {
    for region in ram() {
        let mut at = region.start.max(bounds.start);
        let end = region.end().min(bounds.end());
        // Each round goes on to the next reserved region, in order of address.
        while at < end {
            let next = data
                .reserved()
                .chain([image])
                .filter(|r| r.len > 0 && r.end() > at && r.start < end)
                .min_by_key(|r| r.start);
            let free_until = next.map_or(end, |r| r.start);
            frames::add(at, free_until);
            at = next.map_or(end, |r| r.end());
        }
    }
}

/// An unused page of RAM below 1 MiB. RAM there is never allocated.
pub(crate) fn low_page(data: &StartData) -> Option<u64> {
    let page = |start: u64| Region { start, len: PAGE as u64 };
    (PAGE as u64..1 << 20)
        .step_by(PAGE)
        .map(page)
        .find(|page| {
            data.ram().iter().any(|ram| ram.holds(page)) && !data.reserved().any(|r| r.overlaps(page))
        })
        .map(|page| page.start)
}

/// The size of RAM in bytes.
pub fn size() -> u64 {
    ram().iter().map(|r| r.len).sum()
}

/// The bus address of a virtual address, and how many bytes from there on are contiguous; `None`
/// outside of RAM.
pub(crate) fn translate(virt: usize) -> Option<BusExtent> {
    let addr = virt as u64;
    if let Some(region) = ram().iter().find(|r| r.contains(addr)) {
        return (virt >= PAGE).then(|| BusExtent { addr, len: region.end() - addr });
    }
    stacks::translate(virt)
}

/// Maps a device's memory where it lies. The same memory may be mapped again.
///
/// Returns false if the range is empty, begins in the first page, overlaps RAM or lies too high, or
/// if there is no memory for page tables.
pub(crate) fn map_device(start: u64, len: u64, cache: Cache) -> bool {
    let page = PAGE as u64;
    let Some(end) = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else {
        return false;
    };
    let region = Region { start: start & !(page - 1), len: end - (start & !(page - 1)) };
    if len == 0
        || ram().iter().any(|r| r.overlaps(&region))
        || region.start == 0
        || end > paging::IDENTITY_END
    {
        return false;
    }
    paging::map(region.start, region, Rights::Data, cache).is_ok()
}
