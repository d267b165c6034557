//! Addresses for BARs, where the firmware has given none.
//!
//! QEMU's microvm and qboot leave that to the kernel. ACPI's DSDT names the addresses that the host
//! bridge passes on; from these each function on the first bus gets what it asks for, in order.
//! Functions behind bridges stay without: their bridges would need bus numbers and windows as well.

use pci_types::{Bar, CommandRegister, ConfigRegionAccess, EndpointHeader, PciHeader};

use super::config::{Config, Function, SLOTS};
use crate::region::{PAGE, Region};

/// Where the BARs are in a function's configuration space.
const FIRST_BAR: u16 = 0x10;
/// A BAR in I/O space, and the bits of one in memory that are no part of the address.
const IO: u32 = 1;
const FLAGS: u32 = 0xf;

/// Gives the functions addresses from `window`, unless one of them has any already.
pub(super) fn give(functions: &[Function], window: Region) {
    if functions.iter().any(has_address) {
        return;
    }
    let mut next = window.start;
    for function in functions.iter().filter(|function| function.address.bus() == 0) {
        let header = PciHeader::new(function.address);
        let Some(mut endpoint) = EndpointHeader::from_header(header, Config) else { continue };
        let decode = CommandRegister::MEMORY_ENABLE | CommandRegister::IO_ENABLE;
        endpoint.update_command(Config, |command| command & !decode);
        let mut slot = 0;
        while slot < SLOTS {
            let bar = endpoint.bar(slot, Config);
            let (size, width) = match bar {
                Some(Bar::Memory32 { size, .. }) => (u64::from(size), 1),
                Some(Bar::Memory64 { size, .. }) => (size, 2),
                _ => (0, 1),
            };
            // A BAR lies at a multiple of its size, which is a power of two. No two share a page.
            let start = next.checked_next_multiple_of(size.max(PAGE as u64));
            let end = start.and_then(|start| start.checked_add(size)).filter(|end| *end <= window.end());
            if let (Some(start), Some(end), true) = (start, end, size.is_power_of_two()) {
                set(function, slot, start, width);
                next = end;
            } else if size > 0 {
                log::warn!(
                    "BAR {slot} of {} gets no address: it has {size:#x} bytes, {next:#x} to {:#x} are left",
                    function.address,
                    window.end()
                );
            }
            slot += width;
        }
    }
}

fn register(slot: u8) -> u16 {
    FIRST_BAR + 4 * u16::from(slot)
}

/// Whether one of a function's memory BARs has an address.
#[expect(unsafe_code, reason = "configuration space")]
fn has_address(function: &Function) -> bool {
    (0..SLOTS).any(|slot| {
        // SAFETY: reading a BAR has no effect.
        let bar = unsafe { Config.read(function.address, register(slot)) };
        bar & IO == 0 && bar & !FLAGS != 0
    })
}

/// Sets a BAR that does not decode addresses, of one word or of two.
#[expect(unsafe_code, reason = "configuration space")]
fn set(function: &Function, slot: u8, address: u64, width: u8) {
    for word in 0..width {
        // SAFETY: the function does not decode addresses, and nothing else is at the new one.
        unsafe { Config.write(function.address, register(slot + word), (address >> (32 * word)) as u32) };
    }
}
