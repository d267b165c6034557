//! Configuration space: finds functions, their BARs and capabilities.
//!
//! Where ACPI says that it lies in memory (ECAM), it is read there, else through ports 0xcf8 and
//! 0xcfc. QEMU's q35 has both, its pc the ports only, its microvm memory only.
#![expect(unsafe_code, reason = "configuration space")]

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ptr::NonNull;

use pci_types::capability::{MsixCapability, PciCapability};
use pci_types::{
    Bar, CommandRegister, ConfigRegionAccess, EndpointHeader, HeaderType, PciAddress, PciHeader,
    PciPciBridgeHeader,
};
use spin::Once;
use volatile::VolatilePtr;
use x86_64::instructions::port::Port;

use crate::acpi::{self, Area};
use crate::lock::IrqLock;
use crate::memory::{self, Cache};
use crate::pvh::StartData;
use crate::region::Region;

/// More capabilities have no room; a list that is longer leads back to itself.
const MOST_CAPABILITIES: usize = 48;
/// How many BARs a function has.
pub(super) const SLOTS: u8 = 6;
/// How many parts of configuration space in memory are used. Most machines have one.
const MOST_AREAS: usize = 8;
/// The bytes of a bus, a device and a function in memory.
const BUS: u64 = 1 << 20;
const DEVICE: u64 = 1 << 15;
const FUNCTION: u64 = 1 << 12;

/// The two ports.
struct Ports {
    address: Port<u32>,
    data: Port<u32>,
}

static PORTS: IrqLock<Ports> = IrqLock::new(Ports { address: Port::new(0xcf8), data: Port::new(0xcfc) });

/// What ACPI says, while its tables could be read.
struct Named {
    areas: [Area; MOST_AREAS],
    len: usize,
    /// Buses other than the first one may belong to a host bridge.
    may_have_more_host_bridges: bool,
    /// Addresses that the host bridge passes on.
    window: Option<Region>,
}

static NAMED: Once<Named> = Once::new();
/// Those that are mapped.
static AREAS: Once<Vec<Area>> = Once::new();

/// Finds configuration space in memory. Runs while the boot page tables are in use.
pub(super) fn find(data: &StartData) {
    NAMED.call_once(|| {
        let mut areas = [Area { base: 0, segment: 0, first_bus: 0, last_bus: 0 }; MOST_AREAS];
        // SAFETY: the monitor named the RSDP, nothing has written to memory that is not RAM, and
        // the boot page tables map the first 4 GiB.
        let len = unsafe { acpi::areas(data.rsdp(), &mut areas) };
        // SAFETY: as above.
        let may_have_more_host_bridges = unsafe { acpi::may_have_more_host_bridges(data.rsdp()) };
        // SAFETY: as above.
        let window = unsafe { acpi::window(data.rsdp()) };
        Named { areas, len, may_have_more_host_bridges, window }
    });
}

/// Addresses below 4 GiB that the host bridge passes on to devices, if ACPI names any.
pub(super) fn window() -> Option<Region> {
    NAMED.get()?.window
}

/// Configuration space in memory. It is mapped at the first call.
fn areas() -> &'static [Area] {
    AREAS.call_once(|| {
        let named = NAMED.get().map_or(&[][..], |named| &named.areas[..named.len]);
        let is_mapped = |area: &&Area| {
            let buses = u64::from(area.last_bus - area.first_bus) + 1;
            let start = area.base.checked_add(u64::from(area.first_bus) * BUS);
            let is_mapped = area.base.is_multiple_of(BUS)
                && start.is_some_and(|start| memory::map_device(start, buses * BUS, Cache::Off));
            if !is_mapped {
                log::warn!("PCI's configuration space cannot be mapped where ACPI says: {area:x?}");
            }
            is_mapped
        };
        named.iter().filter(is_mapped).copied().collect()
    })
}

/// Configuration space.
#[derive(Clone, Copy)]
pub(super) struct Config;

impl Config {
    /// What the port of the address takes.
    fn select(address: PciAddress, offset: u16) -> u32 {
        1 << 31
            | u32::from(address.bus()) << 16
            | u32::from(address.device()) << 11
            | u32::from(address.function()) << 8
            | u32::from(offset & 0xfc)
    }

    /// The register, if its bus has its configuration space in memory.
    fn register(address: PciAddress, offset: u16) -> Option<VolatilePtr<'static, u32>> {
        let area = areas().iter().find(|area| {
            area.segment == address.segment() && (area.first_bus..=area.last_bus).contains(&address.bus())
        })?;
        let function = u64::from(address.bus()) * BUS
            + u64::from(address.device()) * DEVICE
            + u64::from(address.function()) * FUNCTION;
        let register = NonNull::new((area.base + function + u64::from(offset & 0xffc)) as *mut u32)?;
        // SAFETY: `areas` has mapped all buses of the area, for good; the offset is aligned.
        Some(unsafe { VolatilePtr::new(register) })
    }
}

impl ConfigRegionAccess for Config {
    /// Registers that do not exist read as ones.
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        if let Some(register) = Config::register(address, offset) {
            return register.read();
        }
        if address.segment() != 0 {
            return u32::MAX;
        }
        let mut ports = PORTS.lock();
        // SAFETY: selects a register and reads it, both under the lock.
        unsafe {
            ports.address.write(Config::select(address, offset));
            ports.data.read()
        }
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        if let Some(register) = Config::register(address, offset) {
            register.write(value);
        } else if address.segment() == 0 {
            let mut ports = PORTS.lock();
            // SAFETY: as in `read`; the caller answers for the value.
            unsafe {
                ports.address.write(Config::select(address, offset));
                ports.data.write(value);
            }
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
pub(super) struct Bars([Option<MemoryBar>; SLOTS as usize]);

impl Bars {
    /// The memory BAR in a slot; there are six slots.
    pub(super) fn get(&self, slot: u8) -> Option<MemoryBar> {
        *self.0.get(usize::from(slot))?
    }

    /// Whether there is none that the firmware has given an address.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Maps the memory of a BAR.
    pub(super) fn map(&self, slot: u8, cache: Cache) -> Option<MemoryBar> {
        let bar = self.get(slot)?;
        memory::map_device(bar.address, bar.size, cache).then_some(bar)
    }
}

/// All functions on the buses that the firmware has set up, in order of segment, bus, device and
/// function.
///
/// Those behind bridges are found by the bridges. Of the others each may be the first bus of a
/// host bridge, as bus 0 is. Which ones are, only ACPI's language would say, so each is looked at
/// if ACPI has a sign of a second host bridge. (256 buses take 15 ms in an emulator.)
pub(super) fn functions() -> Vec<Function> {
    let mut found = Vec::new();
    let may_have_more = NAMED.get().is_none_or(|named| named.may_have_more_host_bridges);
    let has_first_segment = areas().iter().any(|area| area.segment == 0);
    let by_ports = (!has_first_segment).then_some((0, 0..=u8::MAX));
    let in_memory = areas().iter().map(|area| (area.segment, area.first_bus..=area.last_bus));
    for (segment, buses) in in_memory.chain(by_ports) {
        let mut seen = [false; 256];
        for root in buses.take(if may_have_more { 256 } else { 1 }) {
            let mut next = VecDeque::from([root]);
            while let Some(bus) = next.pop_front() {
                // Each bus is looked at once, so wrong numbers cannot make this loop for ever.
                if !core::mem::replace(&mut seen[usize::from(bus)], true) {
                    scan(segment, bus, &mut found, &mut |behind| next.push_back(behind));
                }
            }
        }
    }
    found.sort_by_key(|f| f.address);
    found
}

/// Adds the functions on a bus to `found`, and names the buses behind its bridges.
fn scan(segment: u16, bus: u8, found: &mut Vec<Function>, bridge: &mut dyn FnMut(u8)) {
    for device in 0..32 {
        let first = PciHeader::new(PciAddress::new(segment, bus, device, 0));
        if first.id(Config).0 == 0xffff {
            continue;
        }
        let count = if first.has_multiple_functions(Config) { 8 } else { 1 };
        for function in 0..count {
            let address = PciAddress::new(segment, bus, device, function);
            let header = PciHeader::new(address);
            let (vendor, device) = header.id(Config);
            if vendor == 0xffff {
                continue;
            }
            log::debug!("pci {address} {vendor:04x}:{device:04x}");
            match header.header_type(Config) {
                HeaderType::Endpoint => found.push(Function { address, vendor, device }),
                HeaderType::PciPciBridge => {
                    if let Some(header) = PciPciBridgeHeader::from_header(header, Config) {
                        bridge(header.secondary_bus_number(Config));
                    }
                }
                _ => {}
            }
        }
    }
}

impl Function {
    fn endpoint(&self) -> Option<EndpointHeader> {
        EndpointHeader::from_header(PciHeader::new(self.address), Config)
    }

    /// What tells the functions of a vendor apart that have the same device number.
    pub(super) fn subsystem(&self) -> Option<u16> {
        self.endpoint().map(|endpoint| endpoint.subsystem(Config).0)
    }

    /// Its memory BARs, or what to say about it if there are none.
    pub(super) fn usable_bars(&self) -> Result<Bars, &'static str> {
        let bars = self.memory_bars().ok_or("its BARs cannot be read")?;
        if bars.is_empty() {
            return Err("its BARs have no addresses: neither the firmware nor the kernel has given it any");
        }
        Ok(bars)
    }

    /// The memory of each BAR. The function does not decode addresses meanwhile. All BARs are sized
    /// at once, since an emulator rebuilds its memory map each time decoding changes.
    fn memory_bars(&self) -> Option<Bars> {
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
