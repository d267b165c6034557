//! Configuration space: finds functions, their BARs and capabilities.
//!
//! It is accessed through ports 0xcf8 and 0xcfc, which every PC has.
#![expect(unsafe_code, reason = "configuration space")]

use alloc::vec::Vec;

use pci_types::capability::{MsixCapability, PciCapability};
use pci_types::{
    Bar, CommandRegister, ConfigRegionAccess, EndpointHeader, HeaderType, PciAddress, PciHeader,
    PciPciBridgeHeader,
};
use x86_64::instructions::port::Port;

use crate::lock::IrqLock;
use crate::memory::{self, Cache};

/// More capabilities have no room; a list that is longer leads back to itself.
const MOST_CAPABILITIES: usize = 48;

/// The two ports.
struct Ports {
    address: Port<u32>,
    data: Port<u32>,
}

static PORTS: IrqLock<Ports> = IrqLock::new(Ports { address: Port::new(0xcf8), data: Port::new(0xcfc) });

/// Configuration space through the ports.
#[derive(Clone, Copy)]
pub(super) struct Config;

impl Config {
    fn select(address: PciAddress, offset: u16) -> u32 {
        1 << 31
            | u32::from(address.bus()) << 16
            | u32::from(address.device()) << 11
            | u32::from(address.function()) << 8
            | u32::from(offset & 0xfc)
    }
}

impl ConfigRegionAccess for Config {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        let mut ports = PORTS.lock();
        // SAFETY: selects a register and reads it, both under the lock; registers that do not exist
        // read as ones.
        unsafe {
            ports.address.write(Config::select(address, offset));
            ports.data.read()
        }
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        let mut ports = PORTS.lock();
        // SAFETY: as in `read`; the caller answers for the value.
        unsafe {
            ports.address.write(Config::select(address, offset));
            ports.data.write(value);
        }
    }
}

/// A function found on the bus.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) address: PciAddress,
    pub(super) vendor: u16,
    pub(super) device: u16,
}

/// A BAR in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryBar {
    pub(super) address: u64,
    pub(super) size: u64,
}

/// The memory BARs of a function, by slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bars([Option<MemoryBar>; 6]);

impl Bars {
    /// Maps the memory of a BAR.
    pub(super) fn map(&self, slot: u8, cache: Cache) -> Option<MemoryBar> {
        let bar = (*self.0.get(usize::from(slot))?)?;
        memory::map_device(bar.address, bar.size, cache).then_some(bar)
    }
}

/// All functions on the buses that the firmware has set up, in order of bus, device and function.
pub(super) fn functions() -> Vec<Function> {
    let mut found = Vec::new();
    let mut buses = alloc::vec![0_u8];
    let mut next = 0;
    while let Some(&bus) = buses.get(next) {
        next += 1;
        for device in 0..32 {
            let first = PciHeader::new(PciAddress::new(0, bus, device, 0));
            if first.id(Config).0 == 0xffff {
                continue;
            }
            let count = if first.has_multiple_functions(Config) { 8 } else { 1 };
            for function in 0..count {
                let address = PciAddress::new(0, bus, device, function);
                let header = PciHeader::new(address);
                let (vendor, device) = header.id(Config);
                if vendor == 0xffff {
                    continue;
                }
                log::debug!("pci {address} {vendor:04x}:{device:04x}");
                match header.header_type(Config) {
                    HeaderType::Endpoint => found.push(Function { address, vendor, device }),
                    HeaderType::PciPciBridge => {
                        if let Some(bridge) = PciPciBridgeHeader::from_header(header, Config) {
                            let behind = bridge.secondary_bus_number(Config);
                            // Only to higher numbers, so that wrong numbers cannot make this loop
                            // for ever.
                            if behind > bus && !buses.contains(&behind) {
                                buses.push(behind);
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    found.sort_by_key(|f| f.address);
    found
}

impl Function {
    fn endpoint(&self) -> Option<EndpointHeader> {
        EndpointHeader::from_header(PciHeader::new(self.address), Config)
    }

    /// The memory of each BAR. The function does not decode addresses meanwhile. All BARs are sized
    /// at once, since an emulator rebuilds its memory map each time decoding changes.
    pub(super) fn memory_bars(&self) -> Option<Bars> {
        let mut endpoint = self.endpoint()?;
        let decode = CommandRegister::MEMORY_ENABLE | CommandRegister::IO_ENABLE;
        let before = endpoint.command(Config) & decode;
        endpoint.update_command(Config, |command| command & !decode);
        let mut bars = Bars::default();
        let mut slot = 0;
        while slot < bars.0.len() {
            let bar = endpoint.bar(slot as u8, Config);
            // The firmware did not set a BAR whose address is 0.
            bars.0[slot] = match bar {
                Some(Bar::Memory32 { address, size, .. }) if address != 0 => {
                    Some(MemoryBar { address: u64::from(address), size: u64::from(size) })
                }
                Some(Bar::Memory64 { address, size, .. }) if address != 0 => {
                    Some(MemoryBar { address, size })
                }
                _ => None,
            };
            slot += if matches!(bar, Some(Bar::Memory64 { .. })) { 2 } else { 1 };
        }
        endpoint.update_command(Config, |command| command | before);
        Some(bars)
    }

    /// The first five words of each capability that the vendor has defined.
    pub(super) fn vendor_capabilities(&self) -> Vec<[u32; 5]> {
        let Some(endpoint) = self.endpoint() else { return Vec::new() };
        let capabilities = endpoint.capabilities(Config).take(MOST_CAPABILITIES);
        let words = |capability| match capability {
            PciCapability::Vendor(at) => {
                // SAFETY: reading what belongs to a capability has no effect.
                let word = |number: usize| unsafe { Config.read(at.address, at.offset + 4 * number as u16) };
                Some(core::array::from_fn(word))
            }
            _ => None,
        };
        capabilities.filter_map(words).collect()
    }

    pub(super) fn msix(&self) -> Option<MsixCapability> {
        self.endpoint()?.capabilities(Config).take(MOST_CAPABILITIES).find_map(
            |capability| match capability {
                PciCapability::MsiX(msix) => Some(msix),
                _ => None,
            },
        )
    }

    /// Makes the function decode its BARs, access memory, and send interrupts by MSI-X only.
    pub(super) fn enable(&self) {
        if let Some(mut endpoint) = self.endpoint() {
            endpoint.update_command(Config, |command| {
                command
                    | CommandRegister::MEMORY_ENABLE
                    | CommandRegister::BUS_MASTER_ENABLE
                    | CommandRegister::INTERRUPT_DISABLE
            });
        }
    }
}
