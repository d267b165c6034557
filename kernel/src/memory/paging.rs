//! Page tables. One set for all CPUs; entries are only ever added, so no other CPU's TLB is ever stale.
#![expect(unsafe_code, reason = "walks and writes page tables")]

use core::ops::Range;

use platform::OutOfMemory;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr3, Cr3Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{Efer, EferFlags};
use x86_64::structures::paging::PhysFrame;
use x86_64::structures::paging::page_table::{PageTable, PageTableEntry, PageTableFlags};
use x86_64::{PhysAddr, VirtAddr};

use super::frames;
use crate::lock::IrqLock;
use crate::region::{PAGE, Region};

const LARGE: u64 = 2 << 20;
/// Memory is mapped where it lies up to here; what is above belongs to [`super::stacks`].
pub(super) const IDENTITY_END: u64 = 1 << 46;

/// What may be done with mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Reading and executing.
    Code,
    /// Reading.
    Constants,
    /// Reading and writing.
    Data,
}

/// How accesses to mapped memory are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// As RAM is.
    WriteBack,
    /// Not at all: registers.
    Off,
}

/// The top table; null until [`init`].
struct Root(*mut PageTable);
// SAFETY: a table that belongs to whoever has the lock.
unsafe impl Send for Root {}
static ROOT: IrqLock<Root> = IrqLock::new(Root(core::ptr::null_mut()));

unsafe extern "C" {
    static __image_start: u8;
    static __text_start: u8;
    static __text_end: u8;
    static __data_start: u8;
    static __image_end: u8;
}

/// Where the image lies.
pub(super) fn image() -> Range<u64> {
    (&raw const __image_start) as u64..(&raw const __image_end) as u64
}

/// Whether an address lies in the image's code.
pub(crate) fn is_code(address: u64) -> bool {
    ((&raw const __text_start) as u64..(&raw const __text_end) as u64).contains(&address)
}

/// Whether the CPU can forbid execution by page.
pub(super) fn has_no_execute() -> bool {
    // CPUID leaf 0x8000_0001, EDX bit 20: NX.
    core::arch::x86_64::__cpuid(0x8000_0001).edx & 1 << 20 != 0
}

/// Builds the tables for RAM and the image, and changes over to them. The CPU [has NX](has_no_execute).
pub(super) fn init(ram: &[Region], boot_stack: Region) -> Result<(), OutOfMemory> {
    // SAFETY: the CPU has NX.
    unsafe { Efer::update(|efer| *efer |= EferFlags::NO_EXECUTE_ENABLE) };
    let root = new_table()?;
    ROOT.lock().0 = root;
    fill(ram, boot_stack)?;
    let frame = PhysFrame::containing_address(PhysAddr::new(root as u64));
    // SAFETY: the new tables map everything in use at the same addresses as the boot tables.
    unsafe {
        Cr3::write(frame, Cr3Flags::empty());
        Cr0::update(|cr0| *cr0 |= Cr0Flags::WRITE_PROTECT);
    }
    enter();
    Ok(())
}

/// What is left to do on a CPU that uses the kernel's page tables already.
pub(crate) fn enter() {
    // SAFETY: there is one address space, so entries may outlive a change of tables.
    unsafe { Cr4::update(|cr4| *cr4 |= Cr4Flags::PAGE_GLOBAL) };
}

/// Where the tables lie: below 4 GiB, as no other memory is given out before they are made.
pub(crate) fn root() -> u32 {
    ROOT.lock().0.addr() as u32
}

fn fill(ram: &[Region], boot_stack: Region) -> Result<(), OutOfMemory> {
    let image = image();
    let identity = |range: Range<u64>, rights| {
        let region = Region::from_range(range);
        map(region.start, region, rights, Cache::WriteBack)
    };
    for region in ram {
        let (start, end) = (region.start.max(PAGE as u64), region.end().min(IDENTITY_END));
        identity(start.min(end)..end.min(image.start.max(start)), Rights::Data)?;
        identity(start.max(image.end).min(end)..end, Rights::Data)?;
    }
    let text = (&raw const __text_start) as u64..(&raw const __text_end) as u64;
    let guard = boot_stack.start - PAGE as u64..boot_stack.start;
    identity(image.start..text.start, Rights::Constants)?;
    identity(text.clone(), Rights::Code)?;
    identity((&raw const __data_start) as u64..guard.start, Rights::Data)?;
    identity(guard.end..image.end, Rights::Data)
}

fn new_table() -> Result<*mut PageTable, OutOfMemory> {
    let table = frames::alloc_pages(PAGE, PAGE)?.cast::<PageTable>();
    // SAFETY: a fresh page.
    unsafe { table.write(PageTable::new()) };
    Ok(table.as_ptr())
}

fn flags(rights: Rights, cache: Cache) -> PageTableFlags {
    let rights = match rights {
        Rights::Code => PageTableFlags::empty(),
        Rights::Constants => PageTableFlags::NO_EXECUTE,
        Rights::Data => PageTableFlags::NO_EXECUTE | PageTableFlags::WRITABLE,
    };
    let cache = match cache {
        Cache::WriteBack => PageTableFlags::empty(),
        Cache::Off => PageTableFlags::NO_CACHE | PageTableFlags::WRITE_THROUGH,
    };
    PageTableFlags::PRESENT | PageTableFlags::GLOBAL | rights | cache
}

/// Maps a region of physical memory at `virt`; both page-aligned. What is mapped already stays as it is.
pub(crate) fn map(virt: u64, region: Region, rights: Rights, cache: Cache) -> Result<(), OutOfMemory> {
    let root = ROOT.lock();
    let flags = flags(rights, cache);
    let mut done = 0;
    while done < region.len {
        let (v, p) = (virt + done, region.start + done);
        let large = (v | p).is_multiple_of(LARGE) && region.len - done >= LARGE;
        // SAFETY: the root is a table of ours, and we hold its lock.
        done += unsafe { map_one(root.0, v, p, flags, large) }?;
    }
    Ok(())
}

/// Maps one page and says how many bytes are now mapped from there on.
///
/// # Safety
///
/// `root` is the top table, and its lock is held.
unsafe fn map_one(
    root: *mut PageTable,
    virt: u64,
    phys: u64,
    flags: PageTableFlags,
    large: bool,
) -> Result<u64, OutOfMemory> {
    let virt = VirtAddr::new(virt);
    let phys = PhysAddr::new(phys);
    let indices = [virt.p4_index(), virt.p3_index(), virt.p2_index()];
    let mut table = root;
    for (depth, index) in indices.into_iter().enumerate() {
        // SAFETY: tables are only reached through here, under the lock.
        let entry: &mut PageTableEntry = unsafe { &mut (&mut *table)[index] };
        let is_leaf_level = depth == 2;
        if is_leaf_level && entry.flags().contains(PageTableFlags::HUGE_PAGE) {
            return Ok(LARGE - virt.as_u64() % LARGE);
        }
        if entry.is_unused() {
            if is_leaf_level && large {
                entry.set_addr(phys, flags | PageTableFlags::HUGE_PAGE);
                return Ok(LARGE);
            }
            let next = new_table()?;
            entry.set_addr(PhysAddr::new(next as u64), PageTableFlags::PRESENT | PageTableFlags::WRITABLE);
        }
        table = entry.addr().as_u64() as *mut PageTable;
    }
    // SAFETY: as above.
    let entry = unsafe { &mut (&mut *table)[virt.p1_index()] };
    if entry.is_unused() {
        entry.set_addr(phys, flags);
    }
    Ok(PAGE as u64)
}
