//! Page tables: one set for all CPUs. Entries are only ever added, so no TLB ever holds a stale
//! one.
#![expect(unsafe_code, reason = "walks and writes page tables")]

use core::ops::Range;

use platform::OutOfMemory;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr3, Cr3Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{Efer, EferFlags};
use x86_64::structures::paging::mapper::MapToError;
use x86_64::structures::paging::{
    FrameAllocator, Mapper, OffsetPageTable, Page, PageSize, PageTable, PageTableFlags, PhysFrame, Size2MiB,
    Size4KiB,
};
use x86_64::{PhysAddr, VirtAddr};

use super::frames;
use crate::lock::IrqLock;
use crate::region::{PAGE, Region};

const LARGE: u64 = Size2MiB::SIZE;
/// The flags of an entry that leads to a table: the entries of pages hold the rights.
const TABLE: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::WRITABLE);
/// The end of the addresses where memory is mapped where it lies. [`super::stacks`] uses those
/// above.
pub(super) const IDENTITY_END: u64 = 1 << 46;

/// The accesses that a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Reading and executing.
    Code,
    /// Reading.
    Constants,
    /// Reading and writing.
    Data,
}

/// How the CPU caches mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// As RAM.
    WriteBack,
    /// Not at all: registers.
    Off,
}

/// The tables; `None` until [`init`].
static TABLES: IrqLock<Option<OffsetPageTable<'static>>> = IrqLock::new(None);

/// Allocates pages for tables.
struct Tables;

// SAFETY: each page is allocated once, and never released.
unsafe impl FrameAllocator<Size4KiB> for Tables {
    /// A page of zeros. The mapper links a new table before it clears it; without zeros a CPU could
    /// read a wrong entry meanwhile, and keep it in its TLB.
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let page = frames::alloc_pages(PAGE, PAGE).ok()?;
        // SAFETY: a fresh page.
        unsafe { page.write_bytes(0, PAGE) };
        Some(PhysFrame::containing_address(PhysAddr::new(page.addr().get() as u64)))
    }
}

unsafe extern "C" {
    static __image_start: u8;
    static __text_start: u8;
    static __text_end: u8;
    static __data_start: u8;
    static __image_end: u8;
}

/// The addresses of the image.
pub(super) fn image() -> Range<u64> {
    (&raw const __image_start) as u64..(&raw const __image_end) as u64
}

/// Whether an address lies in the image's code.
pub(crate) fn is_code(address: u64) -> bool {
    ((&raw const __text_start) as u64..(&raw const __text_end) as u64).contains(&address)
}

/// Builds the tables for RAM and the image, and loads them.
pub(super) fn init(ram: &[Region], boot_stack: Region) -> Result<(), OutOfMemory> {
    // SAFETY: the CPU has NX, as `required` has checked.
    unsafe { Efer::update(|efer| *efer |= EferFlags::NO_EXECUTE_ENABLE) };
    let frame = Tables.allocate_frame().ok_or(OutOfMemory)?;
    let root = frame.start_address().as_u64() as *mut PageTable;
    // SAFETY: a fresh page of zeros, which is an empty table. It and all other tables lie in RAM,
    // which is mapped where it lies.
    *TABLES.lock() = Some(unsafe { OffsetPageTable::new(&mut *root, VirtAddr::zero()) });
    fill(ram, boot_stack)?;
    // SAFETY: the new tables map all memory in use at the same addresses as the boot tables.
    unsafe {
        Cr3::write(frame, Cr3Flags::empty());
        Cr0::update(|cr0| *cr0 |= Cr0Flags::WRITE_PROTECT);
    }
    enter();
    Ok(())
}

/// Sets up paging on a CPU that uses the kernel's page tables already.
pub(crate) fn enter() {
    // SAFETY: there is one address space, so TLB entries may outlive a change of tables.
    unsafe { Cr4::update(|cr4| *cr4 |= Cr4Flags::PAGE_GLOBAL) };
}

/// Has the CPU forget its translations, global ones as well. An emulator may keep few of them until
/// then: QEMU makes its cache of them larger only when it is emptied, and by what was used of it
/// since. A kernel that never changes a page table would be left with 256 entries for good.
pub(crate) fn renew() {
    let (frame, flags) = Cr3::read();
    // SAFETY: the same tables.
    unsafe { Cr3::write(frame, flags) };
}

/// The address of the top table. It is below 4 GiB, since it is made before memory above is
/// available.
pub(crate) fn root() -> u32 {
    TABLES.lock().as_ref().map_or(0, |tables| core::ptr::from_ref(tables.level_4_table()).addr() as u32)
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

/// Maps a region of physical memory at `virt`; both are page-aligned. Pages that are mapped already
/// keep their entries.
pub(crate) fn map(virt: u64, region: Region, rights: Rights, cache: Cache) -> Result<(), OutOfMemory> {
    let mut tables = TABLES.lock();
    let tables = tables.as_mut().expect("`init` makes the tables before anything is mapped");
    let flags = flags(rights, cache);
    let mut done = 0;
    while done < region.len {
        let (virt, phys) = (VirtAddr::new(virt + done), PhysAddr::new(region.start + done));
        done += map_one(tables, virt, phys, region.len - done, flags)?;
    }
    Ok(())
}

/// Maps a large page if one fits into the `left` bytes from `virt` on, else a small one. Returns
/// how many bytes from `virt` on are mapped now.
fn map_one(
    tables: &mut OffsetPageTable<'static>,
    virt: VirtAddr,
    phys: PhysAddr,
    left: u64,
    flags: PageTableFlags,
) -> Result<u64, OutOfMemory> {
    // No flush is needed: only unused entries change, and no TLB holds unused entries.
    let large = (Page::<Size2MiB>::from_start_address(virt), PhysFrame::from_start_address(phys));
    if let (Ok(page), Ok(frame)) = large
        && left >= LARGE
    {
        // SAFETY: memory that is mapped already keeps its mapping, and `map`'s callers answer for
        // the rest.
        match unsafe { tables.map_to_with_table_flags(page, frame, flags, TABLE, &mut Tables) } {
            Ok(flush) => {
                flush.ignore();
                return Ok(LARGE);
            }
            Err(MapToError::FrameAllocationFailed) => return Err(OutOfMemory),
            // There is a table already, or a large page: go on with a small page.
            Err(MapToError::PageAlreadyMapped(_) | MapToError::ParentEntryHugePage) => {}
        }
    }
    let page = Page::<Size4KiB>::containing_address(virt);
    let frame = PhysFrame::containing_address(phys);
    // SAFETY: as above.
    match unsafe { tables.map_to_with_table_flags(page, frame, flags, TABLE, &mut Tables) } {
        Ok(flush) => flush.ignore(),
        Err(MapToError::PageAlreadyMapped(_)) => {}
        Err(MapToError::ParentEntryHugePage) => return Ok(LARGE - virt.as_u64() % LARGE),
        Err(MapToError::FrameAllocationFailed) => return Err(OutOfMemory),
    }
    Ok(PAGE as u64)
}
