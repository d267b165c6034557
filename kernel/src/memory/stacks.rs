//! Thread stacks: a range of addresses cut into slots. Each slot is a guard, which is never mapped,
//! and above it a stack.
//!
//! The stack of a slot stays mapped and is used for another thread later, so a guard is never
//! anything else and no TLB has to be flushed when a thread ends. The memory of the most threads
//! that were alive at once stays allocated.
#![expect(unsafe_code, reason = "the boot stack, which the entry stub uses")]

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use platform::{BusExtent, OutOfMemory};

use super::frames;
use super::paging::{self, Cache, IDENTITY_END, Rights};
use crate::lock::IrqLock;
use crate::region::{PAGE, Region};

/// The size of the stack that boot runs on.
const BOOT_SIZE: usize = 64 * 1024;
/// The offset of the boot stack's end in [`BOOT_STACK`].
pub(crate) const BOOT_STACK_END: usize = PAGE + BOOT_SIZE;

/// Memory that only the CPU and assembly touch.
#[repr(C, align(4096))]
pub(crate) struct BootStack(UnsafeCell<[u8; BOOT_STACK_END]>);

// SAFETY: Rust code only takes its address.
unsafe impl Sync for BootStack {}

/// The stack of the boot CPU, later of its idle thread. The lowest page is the guard.
pub(crate) static BOOT_STACK: BootStack = BootStack(UnsafeCell::new([0; BOOT_STACK_END]));

/// The boot stack, without its guard.
pub(super) fn boot_stack() -> Region {
    Region { start: BOOT_STACK.0.get() as u64 + PAGE as u64, len: BOOT_SIZE as u64 }
}

/// The address of the first slot.
const BASE: u64 = IDENTITY_END;
/// The size of a slot.
const SLOT: u64 = 256 * 1024;
/// The size of the stack, which is the upper part of a slot.
const STACK: u64 = 128 * 1024;

/// The slots for which the lists have room from the beginning. Otherwise [`super::usage`] would
/// change with the largest number of threads so far.
const USUAL: usize = 256;

struct Slots {
    /// The address of each slot's memory.
    memory: Vec<u64>,
    /// The slots that no thread uses.
    free: Vec<usize>,
    /// The last slot, if there was no memory for its page tables. Its stack has its memory already.
    unmapped: Option<usize>,
}

/// The number of slots, for callers that must not take the lock.
static KNOWN: AtomicU64 = AtomicU64::new(0);

static SLOTS: IrqLock<Slots> = IrqLock::new(Slots { memory: Vec::new(), free: Vec::new(), unmapped: None });

impl Slots {
    /// Makes a slot, or completes the last one if that failed.
    fn grow(&mut self) -> Result<usize, OutOfMemory> {
        let slot = match self.unmapped {
            Some(slot) => slot,
            None => {
                let slot = self.memory.len();
                let slots = USUAL.max(slot + 1);
                self.memory.try_reserve(slots - slot).map_err(|_| OutOfMemory)?;
                // Reserved here, so that dropping a stack never allocates.
                self.free.try_reserve(slots.saturating_sub(self.free.len())).map_err(|_| OutOfMemory)?;
                let pages = frames::alloc_pages(STACK as usize, PAGE)?;
                self.memory.push(pages.addr().get() as u64);
                slot
            }
        };
        self.unmapped = Some(slot);
        let region = Region { start: self.memory[slot], len: STACK };
        paging::map(bottom(slot), region, Rights::Data, Cache::WriteBack)?;
        self.unmapped = None;
        KNOWN.store(slot as u64 + 1, Ordering::Release);
        Ok(slot)
    }
}

/// A thread's stack. When it is dropped its slot is free for another thread.
#[derive(Debug)]
pub(crate) struct Stack {
    slot: usize,
}

impl Stack {
    /// A stack with arbitrary content.
    pub(crate) fn new() -> Result<Stack, OutOfMemory> {
        let mut slots = SLOTS.lock();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => slots.grow()?,
        };
        Ok(Stack { slot })
    }

    /// The address just above the stack, where its use begins.
    pub(crate) fn top(&self) -> u64 {
        bottom(self.slot) + STACK
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // There is room, since `grow` reserved it.
        SLOTS.lock().free.push(self.slot);
    }
}

/// The lowest address of a slot's stack.
fn bottom(slot: usize) -> u64 {
    BASE + slot as u64 * SLOT + (SLOT - STACK)
}

/// Where an address lies, as far as stacks are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackAddress {
    /// Within a stack.
    Within {
        /// The address just above the stack.
        top: u64,
    },
    /// In the guard below a stack: the stack has overflowed.
    Guard,
    /// Neither.
    Elsewhere,
}

/// Where an address lies among the boot stack and the threads' stacks. Takes no lock, since the
/// report of a panic or a fault uses it.
pub(crate) fn classify(address: u64) -> StackAddress {
    let boot = boot_stack();
    if boot.contains(address) {
        return StackAddress::Within { top: boot.end() };
    }
    if (boot.start - PAGE as u64..boot.start).contains(&address) {
        return StackAddress::Guard;
    }
    let known = KNOWN.load(Ordering::Acquire);
    match address.checked_sub(BASE) {
        Some(offset) if offset / SLOT < known => {
            if offset % SLOT < SLOT - STACK {
                StackAddress::Guard
            } else {
                StackAddress::Within { top: BASE + (offset / SLOT + 1) * SLOT }
            }
        }
        _ => StackAddress::Elsewhere,
    }
}

/// [`super::translate`] for addresses of stacks.
pub(super) fn translate(virt: usize) -> Option<BusExtent> {
    let offset = (virt as u64).checked_sub(BASE)?;
    let within = (offset % SLOT).checked_sub(SLOT - STACK)?;
    let memory = SLOTS.lock().memory.get(usize::try_from(offset / SLOT).ok()?).copied()?;
    Some(BusExtent { addr: memory + within, len: STACK - within })
}
