//! Which CPUs there are, as ACPI's MADT says, and where PCI's configuration space lies in memory,
//! as the MCFG says. The kernel needs nothing else of ACPI.
//!
//! The firmware's tables (ACPI specification 6.5: 5.2.5 "RSDP", 5.2.7 "RSDT", 5.2.8 "XSDT", 5.2.9
//! "FADT", 5.2.12 "MADT"; PCI Firmware specification 3.3, 4.1.2 "MCFG") are read where they lie,
//! through the boot page tables, which map the first 4 GiB. A table that lies elsewhere, is cut
//! short or has a wrong checksum counts as absent. Without a MADT the kernel runs on one CPU.
//! docs/decisions/kernel.md says why the `acpi` crate does not do this.
//!
//! QEMU's microvm has no MCFG: its only description of PCI is in the DSDT, whose language (AML) the
//! kernel does not interpret. A host bridge's `_CBA`, "the base address of its configuration
//! space", is there a method that returns a constant; [`areas`] looks for just that.
#![expect(unsafe_code, reason = "tables that the firmware left in memory")]

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::region::Region;

/// What the boot page tables map.
const REACH: u64 = 4 << 30;
/// A table of which the header says that it is longer than this counts as absent.
const LONGEST: usize = 1 << 20;

/// The root pointer as revision 0 has it (5.2.5.3).
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct RootPointer {
    signature: [u8; 8],
    _checksum: u8,
    _oem: [u8; 6],
    revision: u8,
    rsdt: U32,
}

/// The root pointer from revision 2 on.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct ExtendedRootPointer {
    _first: RootPointer,
    _length: U32,
    xsdt: U64,
    _checksum: u8,
    _reserved: [u8; 3],
}

/// The beginning of each table (5.2.6).
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct Header {
    signature: [u8; 4],
    len: U32,
    _revision: u8,
    _checksum: u8,
    _oem: [u8; 14],
    _oem_revision: U32,
    _creator: [u8; 8],
}

/// The MADT's own fields (5.2.12). Its entries follow.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct Madt {
    _header: Header,
    _local_apic_address: U32,
    _flags: U32,
}

/// An entry for a CPU with an 8-bit APIC number (5.2.12.2).
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct LocalApic {
    _kind: u8,
    _len: u8,
    _processor: u8,
    apic_id: u8,
    flags: U32,
}

/// An entry for a CPU with a 32-bit APIC number (5.2.12.12).
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct LocalX2Apic {
    _kind: u8,
    _len: u8,
    _reserved: [u8; 2],
    apic_id: U32,
    flags: U32,
    _processor: U32,
}

const _: () = {
    assert!(size_of::<RootPointer>() == 20 && size_of::<ExtendedRootPointer>() == 36);
    assert!(size_of::<Header>() == 36 && size_of::<Madt>() == 44);
    assert!(size_of::<LocalApic>() == 8 && size_of::<LocalX2Apic>() == 16);
};

/// The kinds of the two entries.
const LOCAL_APIC: u8 = 0;
const LOCAL_X2APIC: u8 = 9;
/// The APIC number that addresses all CPUs.
const BROADCAST: u8 = 0xff;
/// The flag of a CPU that is present and may be started.
const ENABLED: u32 = 1;

/// Writes the APIC numbers of the present CPUs to `found`, in the firmware's order, as far as they
/// have 8 bits and `found` has room. Returns how many.
///
/// # Safety
///
/// `rsdp` is 0 or the address that the monitor named, nothing has written to reserved memory, and
/// the first 4 GiB are mapped where they lie.
pub(crate) unsafe fn cpus(rsdp: u64, found: &mut [u8]) -> usize {
    // SAFETY: the caller's promise.
    let madt = unsafe { find(rsdp, b"APIC") };
    let mut entries = madt.and_then(|madt| madt.get(size_of::<Madt>()..)).unwrap_or(&[]);
    let mut count = 0;
    // Each entry begins with its kind and its length.
    while let [kind, len, ..] = *entries
        && len >= 2
        && let Some((entry, rest)) = entries.split_at_checked(usize::from(len))
    {
        entries = rest;
        let cpu = match kind {
            LOCAL_APIC => {
                LocalApic::ref_from_prefix(entry).ok().map(|(cpu, _)| (u32::from(cpu.apic_id), cpu.flags))
            }
            LOCAL_X2APIC => {
                LocalX2Apic::ref_from_prefix(entry).ok().map(|(cpu, _)| (cpu.apic_id.get(), cpu.flags))
            }
            _ => None,
        };
        if let Some((id, flags)) = cpu
            && let Ok(id) = u8::try_from(id)
            && id != BROADCAST
            && flags.get() & ENABLED != 0
            && let Some(place) = found.get_mut(count)
        {
            *place = id;
            count += 1;
        }
    }
    count
}

/// A part of PCI's configuration space that lies in memory (ECAM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    /// Where bus 0 is, or would be.
    pub(crate) base: u64,
    pub(crate) segment: u16,
    pub(crate) first_bus: u8,
    pub(crate) last_bus: u8,
}

/// An entry of the MCFG. They follow the header and 8 reserved bytes.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct Allocation {
    base: U64,
    segment: U16,
    first_bus: u8,
    last_bus: u8,
    _reserved: U32,
}

const _: () = assert!(size_of::<Allocation>() == 16);

/// Where the FADT names the DSDT, by 32 bits, and by 64.
const DSDT: usize = 40;
const EXTENDED_DSDT: usize = 140;

/// Writes the parts of configuration space that lie in memory to `found`, as far as it has room.
/// Returns how many.
///
/// # Safety
///
/// As for [`cpus`].
pub(crate) unsafe fn areas(rsdp: u64, found: &mut [Area]) -> usize {
    // SAFETY: the caller's promise, here and below.
    let mcfg = unsafe { find(rsdp, b"MCFG") };
    let entries = mcfg.and_then(|mcfg| mcfg.get(size_of::<Header>() + 8..)).unwrap_or(&[]);
    let mut count = 0;
    for bytes in entries.chunks_exact(size_of::<Allocation>()) {
        if let (Ok(entry), Some(place)) = (Allocation::ref_from_bytes(bytes), found.get_mut(count))
            && entry.first_bus <= entry.last_bus
        {
            *place = Area {
                base: entry.base.get(),
                segment: entry.segment.get(),
                first_bus: entry.first_bus,
                last_bus: entry.last_bus,
            };
            count += 1;
        }
    }
    // SAFETY: as above.
    let constant = || unsafe { dsdt(rsdp) }.and_then(constant_cba);
    if count == 0
        && let Some(base) = constant()
        && let Some(place) = found.first_mut()
    {
        *place = Area { base, segment: 0, first_bus: 0, last_bus: u8::MAX };
        count = 1;
    }
    count
}

/// The largest range of addresses below 4 GiB that the DSDT says a bridge passes on to devices: a
/// "DWord Memory" descriptor (6.4.3.5.2) whose numbers agree. Other devices' resources have other
/// kinds of descriptors.
///
/// # Safety
///
/// As for [`cpus`].
pub(crate) unsafe fn window(rsdp: u64) -> Option<Region> {
    // SAFETY: the caller's promise.
    let dsdt = unsafe { dsdt(rsdp) }?;
    let windows = dsdt.windows(size_of::<DwordMemory>()).filter_map(|bytes| {
        let range = DwordMemory::ref_from_bytes(bytes).ok()?;
        let (start, len) = (u64::from(range.min.get()), u64::from(range.len.get()));
        let agrees = (range.tag, range.tag_len.get(), range.kind) == (DWORD_RANGE, DWORD_RANGE_LEN, MEMORY)
            && start + len == u64::from(range.max.get()) + 1
            && range.translation.get() == 0;
        agrees.then_some(Region { start, len })
    });
    windows.max_by_key(|window| window.len)
}

/// A "DWord Memory" descriptor.
#[repr(C)]
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
struct DwordMemory {
    tag: u8,
    tag_len: U16,
    kind: u8,
    _flags: [u8; 2],
    _granularity: U32,
    min: U32,
    max: U32,
    translation: U32,
    len: U32,
}

const DWORD_RANGE: u8 = 0x87;
const DWORD_RANGE_LEN: u16 = 0x17;
const MEMORY: u8 = 0;
const _: () = assert!(size_of::<DwordMemory>() == 3 + DWORD_RANGE_LEN as usize);

/// Whether there may be a host bridge whose first bus is not bus 0. Such a one has a `_BBN`, "the
/// number of its bus", that is not the constant zero, in the DSDT or in an SSDT. Without ACPI there
/// may be one.
///
/// # Safety
///
/// As for [`cpus`].
pub(crate) unsafe fn may_have_more_host_bridges(rsdp: u64) -> bool {
    const NAME: u8 = 0x08;
    const ZERO: u8 = 0x00;
    let is_other = |window: &[u8]| window[1..5] == *b"_BBN" && (window[0], window[5]) != (NAME, ZERO);
    // SAFETY: the caller's promise, here and below.
    let Some(dsdt) = (unsafe { dsdt(rsdp) }) else { return true };
    // SAFETY: as above.
    let more = unsafe { tables(rsdp, b"SSDT") };
    core::iter::once(dsdt).chain(more).any(|aml| aml.windows(6).any(is_other))
}

/// # Safety
///
/// As for [`cpus`].
unsafe fn dsdt(rsdp: u64) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    let fadt = unsafe { find(rsdp, b"FACP") }?;
    let short = fadt.get(DSDT..)?.first_chunk().map(|bytes| u64::from(u32::from_le_bytes(*bytes)))?;
    let long =
        fadt.get(EXTENDED_DSDT..).and_then(<[u8]>::first_chunk).map(|bytes| u64::from_le_bytes(*bytes));
    // SAFETY: as above.
    unsafe { table(long.filter(|address| *address != 0).unwrap_or(short), b"DSDT") }
}

/// What the first method `_CBA` returns, if it does nothing but return a constant: the name, the
/// method's flags (no arguments), a return, and an integer of 32 or of 64 bits. (ACPI 6.5: 20.2.5,
/// and 6.5.8 of the PCI Firmware specification's `_CBA`.)
fn constant_cba(aml: &[u8]) -> Option<u64> {
    const NAME: &[u8; 4] = b"_CBA";
    const RETURN: u8 = 0xa4;
    const DWORD: u8 = 0x0c;
    const QWORD: u8 = 0x0e;
    aml.windows(NAME.len() + 3 + size_of::<u64>()).find_map(|window| {
        let (flags, rest) = window.strip_prefix(NAME)?.split_first()?;
        match *rest {
            [RETURN, DWORD, ref integer @ ..] if flags & 7 == 0 => {
                integer.first_chunk().map(|bytes| u64::from(u32::from_le_bytes(*bytes)))
            }
            [RETURN, QWORD, ref integer @ ..] if flags & 7 == 0 => {
                integer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
            }
            _ => None,
        }
    })
}

/// The first table with this signature.
///
/// # Safety
///
/// As for [`cpus`].
unsafe fn find(rsdp: u64, signature: &'static [u8; 4]) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    unsafe { tables(rsdp, signature) }.next()
}

/// The tables with this signature.
///
/// # Safety
///
/// As for [`cpus`].
unsafe fn tables(rsdp: u64, signature: &'static [u8; 4]) -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: the caller's promise, here and below.
    let (addresses, width) = unsafe { root(rsdp) }.unwrap_or((&[], size_of::<u64>()));
    addresses.chunks_exact(width).filter_map(move |bytes| {
        let mut address = [0; size_of::<u64>()];
        address[..width].copy_from_slice(bytes);
        // SAFETY: as above.
        unsafe { table(u64::from_le_bytes(address), signature) }
    })
}

/// The addresses of all tables, and the length of an address.
///
/// # Safety
///
/// As for [`cpus`].
unsafe fn root(rsdp: u64) -> Option<(&'static [u8], usize)> {
    // SAFETY: the caller's promise, here and below.
    let bytes = unsafe { memory(rsdp, size_of::<RootPointer>()) }?;
    let first = RootPointer::ref_from_bytes(bytes).ok()?;
    if first.signature != *b"RSD PTR " || !sums_to_zero(bytes) {
        return None;
    }
    let xsdt = if first.revision >= 2 {
        // SAFETY: as above.
        let bytes = unsafe { memory(rsdp, size_of::<ExtendedRootPointer>()) }?;
        let whole = ExtendedRootPointer::ref_from_bytes(bytes).ok()?;
        if sums_to_zero(bytes) { whole.xsdt.get() } else { 0 }
    } else {
        0
    };
    let (root, width) = if xsdt != 0 {
        // SAFETY: as above.
        (unsafe { table(xsdt, b"XSDT") }?, size_of::<u64>())
    } else {
        // SAFETY: as above.
        (unsafe { table(u64::from(first.rsdt.get()), b"RSDT") }?, size_of::<u32>())
    };
    Some((root.get(size_of::<Header>()..)?, width))
}

/// The whole table at `address`, if its signature, length and checksum are right.
///
/// # Safety
///
/// As for [`cpus`].
unsafe fn table(address: u64, signature: &[u8; 4]) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    let header = Header::ref_from_bytes(unsafe { memory(address, size_of::<Header>()) }?).ok()?;
    let len = header.len.get() as usize;
    if header.signature != *signature || !(size_of::<Header>()..=LONGEST).contains(&len) {
        return None;
    }
    // SAFETY: as above.
    let table = unsafe { memory(address, len) }?;
    sums_to_zero(table).then_some(table)
}

/// # Safety
///
/// As for [`cpus`]; `len` is not 0.
unsafe fn memory(address: u64, len: usize) -> Option<&'static [u8]> {
    let end = address.checked_add(len as u64)?;
    if address == 0 || end > REACH {
        return None;
    }
    // SAFETY: mapped, and nothing writes to it any more.
    Some(unsafe { core::slice::from_raw_parts(address as *const u8, len) })
}

fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}
