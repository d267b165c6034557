//! The transport of NICs on PCI: finds their functions, and reaches their registers, doorbell and
//! interrupts.
//!
//! The NIC's register file describes the NIC. It lies in a memory BAR. Over ivshmem-doorbell the
//! function is QEMU's own, with the register file in BAR 2 and a doorbell to the device process in
//! BAR 0. A NIC with a PCI identity of its own needs one more entry in [`IDENTITIES`].
#![expect(unsafe_code, reason = "device memory")]

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;

use nic_hal::{InterruptHandler, Transport};
use platform::SharedSlice;
use spin::Once;
use volatile::VolatilePtr;
use volatile::access::WriteOnly;

use super::config::{Bars, Function};
use super::msix::Msix;
use crate::memory::Cache;

/// How a NIC lies in a kind of PCI function.
struct Identity {
    vendor: u16,
    device: u16,
    /// The BAR of the register file, which is shared memory.
    registers: u8,
    /// The doorbell: its BAR, its offset, and the value that wakes the device when it is written
    /// there.
    kick: (u8, u32, u32),
}

const IDENTITIES: &[Identity] = &[
    // QEMU's docs/specs/ivshmem-spec: the doorbell takes the peer in the upper half and the peer's
    // vector in the lower half. The device process is peer 0, vector 0.
    Identity { vendor: 0x1af4, device: 0x1110, registers: 2, kick: (0, 12, 0) },
];

/// The transport of a function that is a NIC.
struct PciTransport {
    registers: SharedSlice<'static>,
    kick: NonNull<u32>,
    kick_value: u32,
    msix: Msix,
}

// SAFETY: the pointer leads to a device register, which any thread may write at any time.
unsafe impl Send for PciTransport {}
// SAFETY: as above.
unsafe impl Sync for PciTransport {}

impl PciTransport {
    fn new(function: &Function, identity: &Identity) -> Result<PciTransport, &'static str> {
        let bars = function.usable_bars()?;
        function.enable();
        let msix = Msix::new(function, &bars)?;
        PciTransport::map(&bars, identity, msix).ok_or("its BARs cannot be mapped")
    }

    fn map(bars: &Bars, identity: &Identity, msix: Msix) -> Option<PciTransport> {
        let bar = bars.map(identity.registers, Cache::WriteBack)?;
        let start = NonNull::new(bar.address as *mut u8)?;
        // SAFETY: just mapped, for good, and accessed through this slice only.
        let registers = unsafe { SharedSlice::from_raw(start, usize::try_from(bar.size).ok()?) };
        let (slot, offset, kick_value) = identity.kick;
        let bar = bars.map(slot, Cache::Off)?;
        if u64::from(offset) + 4 > bar.size {
            return None;
        }
        let kick = NonNull::new((bar.address + u64::from(offset)) as *mut u32)?;
        Some(PciTransport { registers, kick, kick_value, msix })
    }
}

impl Transport for PciTransport {
    fn registers(&self) -> SharedSlice<'_> {
        self.registers
    }

    fn kick(&self) {
        // SAFETY: a mapped register. The compiler does not move a volatile store across the fences
        // that callers put before it, and the CPU does not move a store to uncached memory before
        // earlier stores.
        unsafe { VolatilePtr::new_restricted(WriteOnly, self.kick) }.write(self.kick_value);
    }

    fn vectors(&self) -> u16 {
        self.msix.len()
    }

    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        self.msix.set(vector, handler)
    }
}

static NICS: Once<Vec<Arc<dyn Transport>>> = Once::new();

/// The NICs in this machine, in order of bus, device and function.
pub fn nics() -> Vec<Arc<dyn Transport>> {
    NICS.get().cloned().unwrap_or_default()
}

/// Finds the NICs among these functions and maps their registers.
pub(super) fn attach(functions: &[Function]) {
    NICS.call_once(|| {
        let mut nics: Vec<Arc<dyn Transport>> = Vec::new();
        for function in functions {
            let (vendor, device) = (function.vendor, function.device);
            let Some(identity) = IDENTITIES.iter().find(|i| (i.vendor, i.device) == (vendor, device)) else {
                continue;
            };
            match PciTransport::new(function, identity) {
                Ok(nic) => {
                    let (len, vectors) = (nic.registers.len(), nic.vectors());
                    log::info!("nic {} at {}: {len} bytes, {vectors} vectors", nics.len(), function.address);
                    nics.push(Arc::new(nic));
                }
                Err(why) => log::warn!("the NIC at {} is ignored: {why}", function.address),
            }
        }
        nics
    });
}
