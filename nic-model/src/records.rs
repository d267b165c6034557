//! Doorbell records: two words of the register file for each queue (data sheet, Doorbells).

use core::sync::atomic::AtomicU32;

use nic_abi::doorbell;
use platform::SharedSlice;

/// The words of the record of the queue in `slot`, in the table at `records`: `tail` and `armed`,
/// or `head` and `arm`.
#[inline]
pub(crate) fn record<'a>(
    registers: &SharedSlice<'a>,
    records: usize,
    slot: u32,
) -> Option<[&'a AtomicU32; 2]> {
    let at = doorbell::record(records, slot);
    Some([registers.atomic_u32(at).ok()?, registers.atomic_u32(at + 4).ok()?])
}
