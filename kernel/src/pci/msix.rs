//! MSI-X: a table in device memory with a message for each vector. Here a message is always "vector
//! V on CPU C", and CPUs take turns. (PCI Local Bus Specification 3.0, 6.8.2; Intel SDM volume 3,
//! "Message Signalled Interrupts".)
#![expect(unsafe_code, reason = "the table lies in device memory")]

use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use nic_hal::InterruptHandler;
use pci_types::capability::MsixCapability;
use platform::sync::Mutex;
use volatile::VolatilePtr;

use super::config::{Bars, Config, Function};
use crate::cpu;
use crate::interrupts::{self, Vector};
use crate::memory::Cache;

/// A table entry.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    address_low: u32,
    address_high: u32,
    data: u32,
    control: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);

/// The bit of an entry's control word that masks it.
const MASKED: u32 = 1;
/// The address of messages that are interrupts; bits 12 to 19 are the APIC number of the CPU.
const MESSAGE_ADDRESS: u32 = 0xfee0_0000;

/// The writes that make an entry interrupt a CPU on a vector, in order: a word of the entry and its
/// new value. An entry may change only while it is masked (6.8.3.5).
pub fn entry_writes(apic_id: u32, vector: u8) -> [(usize, u32); 5] {
    [(3, MASKED), (0, MESSAGE_ADDRESS | apic_id << 12), (1, 0), (2, u32::from(vector)), (3, 0)]
}

/// A function's MSI-X table.
pub(super) struct Msix {
    table: NonNull<Entry>,
    len: u16,
    /// The vector of each entry, claimed when the entry is first used, and kept.
    vectors: Mutex<Vec<Option<Vector>>>,
    /// The turn of the function's first entry: entry 0 of each function goes to another CPU.
    turn: usize,
}

// SAFETY: the table is device memory that stays mapped, and is written under the mutex only.
unsafe impl Send for Msix {}
// SAFETY: as above.
unsafe impl Sync for Msix {}

impl Msix {
    /// Maps the table, masks all entries, and turns MSI-X on. If the function has no MSI-X, or its
    /// table cannot be reached, the error says so.
    pub(super) fn new(function: &Function, bars: &Bars) -> Result<Msix, &'static str> {
        let capability =
            function.msix().ok_or("it has no MSI-X, its only way to interrupt here; give it vectors")?;
        Msix::map(capability, bars).ok_or("its MSI-X table cannot be mapped")
    }

    fn map(mut capability: MsixCapability, bars: &Bars) -> Option<Msix> {
        let len = capability.table_size();
        let bar = bars.map(capability.table_bar(), Cache::Off)?;
        let offset = u64::from(capability.table_offset());
        if offset + u64::from(len) * size_of::<Entry>() as u64 > bar.size {
            return None;
        }
        let table = NonNull::new((bar.address + offset) as *mut Entry)?;
        let vectors = Mutex::new((0..len).map(|_| None).collect());
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let msix = Msix { table, len, vectors, turn: TURN.fetch_add(1, Ordering::Relaxed) };
        for index in 0..len {
            msix.write(index, 3, MASKED);
        }
        capability.set_enabled(true, Config);
        capability.set_function_mask(false, Config);
        Some(msix)
    }

    pub(super) fn len(&self) -> u16 {
        self.len
    }

    /// Writes a word of an entry. `index` is less than `len`.
    fn write(&self, index: u16, word: usize, value: u32) {
        debug_assert!(index < self.len && word < 4);
        // SAFETY: within the table, which stays mapped.
        unsafe {
            let word = self.table.add(usize::from(index)).cast::<u32>().add(word);
            VolatilePtr::new(word).write(value);
        }
    }

    /// See [`nic_hal::Transport::set_vector`]. Also false when there is no vector left.
    pub(super) fn set(&self, index: u16, handler: Option<InterruptHandler>) -> bool {
        self.set_in_turn(index, index, handler)
    }

    /// The same for an entry whose turn among the CPUs is not its number.
    pub(super) fn set_in_turn(&self, index: u16, turn: u16, handler: Option<InterruptHandler>) -> bool {
        let mut vectors = self.vectors.lock();
        let Some(slot) = vectors.get_mut(usize::from(index)) else { return false };
        let Some(handler) = handler else {
            if let Some(vector) = slot {
                self.write(index, 3, MASKED);
                vector.set(None);
            }
            return true;
        };
        if slot.is_none() {
            *slot = interrupts::claim();
        }
        let Some(vector) = slot else { return false };
        let cpu = cpu::in_turn(self.turn + usize::from(turn));
        let [(control, masked), message @ ..] = entry_writes(cpu.apic_id(), vector.number());
        self.write(index, control, masked);
        vector.set(Some(handler));
        for (word, value) in message {
            self.write(index, word, value);
        }
        true
    }
}
