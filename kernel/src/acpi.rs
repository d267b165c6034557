//! The one thing that is wanted of ACPI: which CPUs there are.
//!
//! The firmware's tables (ACPI specification 6.5, 5.2.5 "RSDP", 5.2.7 "RSDT", 5.2.12 "MADT") are read where they
//! lie, through the boot page tables, which reach the first 4 GiB. A table that is elsewhere, cut short or
//! whose sum is wrong is as good as none: then there is one CPU.
#![expect(unsafe_code, reason = "tables that the firmware left in memory")]

/// What the boot page tables reach.
const REACH: u64 = 4 << 30;
/// The length of what each table begins with.
const HEADER: usize = 36;
/// No table of this kind is longer.
const LONGEST: usize = 1 << 20;

/// Entries of the MADT that name a CPU: by an 8-bit number, and by a 32-bit one.
const LOCAL_APIC: u8 = 0;
const LOCAL_X2APIC: u8 = 9;
/// The number that means all of them.
const BROADCAST: u8 = 0xff;
/// The bit of such an entry's flags that says that the CPU is there.
const ENABLED: u32 = 1;

/// The APIC numbers of the CPUs that are there, in the firmware's order, as far as they fit into 8 bits and
/// into `found`. How many they are.
///
/// # Safety
///
/// `rsdp` is 0 or where the monitor says that the RSDP lies, nobody has written to reserved memory, and the
/// first 4 GiB are mapped where they lie.
pub(crate) unsafe fn cpus(rsdp: u64, found: &mut [u8]) -> usize {
    // SAFETY: the caller's promise.
    let madt = unsafe { madt(rsdp) };
    let mut entries = madt.and_then(|madt| madt.get(HEADER + 8..)).unwrap_or(&[]);
    let mut count = 0;
    // An entry says how long it is; nothing is shorter than these two bytes.
    while let [kind, len, ..] = *entries
        && len >= 2
        && let Some((entry, rest)) = entries.split_at_checked(usize::from(len))
    {
        entries = rest;
        let (id, flags) = match kind {
            LOCAL_APIC => (entry.get(3).copied(), u32_at(entry, 4)),
            LOCAL_X2APIC => (u32_at(entry, 4).and_then(|id| u8::try_from(id).ok()), u32_at(entry, 8)),
            _ => continue,
        };
        if let (Some(id), Some(flags)) = (id, flags)
            && id != BROADCAST
            && flags & ENABLED != 0
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
    let first = unsafe { memory(rsdp, 20) }?;
    if !first.starts_with(b"RSD PTR ") || !sums_to_zero(first) {
        return None;
    }
    let xsdt = if first[15] >= 2 {
        // SAFETY: as above.
        let whole = unsafe { memory(rsdp, HEADER) }?;
        if sums_to_zero(whole) { u64_at(whole, 24) } else { None }
    } else {
        None
    };
    let (root, size) = match xsdt {
        // SAFETY: as above.
        Some(xsdt) if xsdt != 0 => (unsafe { table(xsdt, b"XSDT") }?, 8),
        // SAFETY: as above.
        _ => (unsafe { table(u64::from(u32_at(first, 16)?), b"RSDT") }?, 4),
    };
    root.get(HEADER..)?.chunks_exact(size).find_map(|pointer| {
        let address = pointer.iter().rev().fold(0, |address, byte| address << 8 | u64::from(*byte));
        // SAFETY: as above.
        unsafe { table(address, b"APIC") }
    })
}

/// The table at `address`, if it is a sound one with that signature.
///
/// # Safety
///
/// As for [`cpus`].
unsafe fn table(address: u64, signature: &[u8; 4]) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    let header = unsafe { memory(address, HEADER) }?;
    let len = u32_at(header, 4)? as usize;
    if !header.starts_with(signature) || !(HEADER..=LONGEST).contains(&len) {
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
    // SAFETY: mapped, and read only from here on.
    Some(unsafe { core::slice::from_raw_parts(address as *const u8, len) })
}

fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().copied().map(u64::from_le_bytes)
}
