//! Which CPUs there are, as ACPI's MADT says. The kernel needs nothing else of ACPI.
//!
//! The firmware's tables (ACPI specification 6.5: 5.2.5 "RSDP", 5.2.7 "RSDT", 5.2.8 "XSDT", 5.2.12
//! "MADT") are read where they lie, through the boot page tables, which map the first 4 GiB. A
//! table that lies elsewhere, is cut short or has a wrong checksum counts as absent. Without a MADT
//! the kernel runs on one CPU. docs/decisions.md says why the `acpi` crate does not do this.
#![expect(unsafe_code, reason = "tables that the firmware left in memory")]

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

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
    let madt = unsafe { madt(rsdp) };
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

/// # Safety
///
/// As for [`cpus`].
unsafe fn madt(rsdp: u64) -> Option<&'static [u8]> {
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
    root.get(size_of::<Header>()..)?.chunks_exact(width).find_map(|bytes| {
        let mut address = [0; size_of::<u64>()];
        address[..width].copy_from_slice(bytes);
        // SAFETY: as above.
        unsafe { table(u64::from_le_bytes(address), b"APIC") }
    })
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
