//! What each CPU has of its own: numbers, descriptor tables, stacks for faults.
//!
//! The GS base points to the CPU's [`Cpu`]. CPU 0 boots; `smp` starts the others. A preemptible
//! thread may move to another CPU at any time, so the result of [`this`] is right only while
//! interrupts are off. What a preemptible thread may ask is read through GS by one instruction:
//! [`current`], [`in_interrupt`].
#![expect(unsafe_code, reason = "loads descriptor tables and reads the GS segment")]

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use x86_64::VirtAddr;
use x86_64::instructions::tables::load_tss;
use x86_64::registers::model_specific::GsBase;
use x86_64::registers::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

/// How many CPUs the kernel uses at most; a larger machine's other CPUs are not started.
pub(crate) const MAX_CPUS: usize = 16;
/// The size of a stack for faults.
const FAULT_STACK: usize = 16 * 1024;

/// The entry of the interrupt stack table for faults: the stack of the thread may have overflowed.
pub(crate) const FAULT_IST: u16 = 0;
/// The entry for double faults and NMIs, which may interrupt the handler of a fault.
pub(crate) const LAST_IST: u16 = 1;

#[repr(align(16))]
struct FaultStack(UnsafeCell<[u8; FAULT_STACK]>);

// SAFETY: Rust code only takes its address; the CPU that it belongs to uses it.
unsafe impl Sync for FaultStack {}

/// Two for each CPU: [`FAULT_IST`], [`LAST_IST`].
static FAULT_STACKS: [[FaultStack; 2]; MAX_CPUS] =
    [const { [const { FaultStack(UnsafeCell::new([0; FAULT_STACK])) }; 2] }; MAX_CPUS];

/// A CPU.
#[repr(C)]
pub(crate) struct Cpu {
    /// Its own address, for [`this`].
    this: AtomicPtr<Cpu>,
    id: u32,
    apic_id: AtomicU32,
    /// The thread that it runs, as `thread` stores it; null until there are threads.
    current: AtomicPtr<()>,
    /// How many interrupt handlers are on its stack.
    pub(crate) interrupts: AtomicU32,
    descriptors: UnsafeCell<(GlobalDescriptorTable, TaskStateSegment)>,
}

// SAFETY: the descriptors are touched by their own CPU only, before it runs anything else; all
// other fields are atomics.
unsafe impl Sync for Cpu {}

impl Cpu {
    const fn new(id: u32) -> Cpu {
        Cpu {
            this: AtomicPtr::new(core::ptr::null_mut()),
            id,
            apic_id: AtomicU32::new(0),
            current: AtomicPtr::new(core::ptr::null_mut()),
            interrupts: AtomicU32::new(0),
            descriptors: UnsafeCell::new((GlobalDescriptorTable::empty(), TaskStateSegment::new())),
        }
    }

    /// Its number, from 0.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Its local APIC's number.
    pub(crate) fn apic_id(&self) -> u32 {
        self.apic_id.load(Ordering::Relaxed)
    }

    pub(crate) fn set_apic_id(&self, id: u32) {
        self.apic_id.store(id, Ordering::Relaxed);
    }

    /// Its bit in masks of CPUs.
    pub(crate) fn bit(&self) -> u32 {
        1 << self.id()
    }

    /// See [`current`], for any CPU.
    pub(crate) fn current(&self) -> *mut () {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) fn set_current(&self, thread: *mut ()) {
        self.current.store(thread, Ordering::Relaxed);
    }
}

static CPUS: [Cpu; MAX_CPUS] = {
    let mut cpus = [const { Cpu::new(0) }; MAX_CPUS];
    let mut id = 0;
    while id < MAX_CPUS {
        cpus[id].id = id as u32;
        id += 1;
    }
    cpus
};

/// The CPUs that run threads, as bits.
static ONLINE: AtomicU32 = AtomicU32::new(0);

/// Counts the calling CPU among those that run threads.
pub(crate) fn set_online() {
    ONLINE.fetch_or(this().bit(), Ordering::SeqCst);
}

/// Whether CPU `id` runs threads.
pub(crate) fn is_online(id: usize) -> bool {
    id < MAX_CPUS && ONLINE.load(Ordering::SeqCst) & 1 << id != 0
}

/// The CPUs that run threads, in order of number.
pub(crate) fn online() -> impl Iterator<Item = &'static Cpu> {
    CPUS.iter().enumerate().filter(|(id, _)| is_online(*id)).map(|(_, cpu)| cpu)
}

/// Turn number `turn` when all CPUs take turns.
pub(crate) fn in_turn(turn: usize) -> &'static Cpu {
    let count = online().count().max(1);
    online().nth(turn % count).unwrap_or(&CPUS[0])
}

/// How many CPUs run threads.
pub fn count() -> u32 {
    ONLINE.load(Ordering::SeqCst).count_ones()
}

/// The number of the CPU that runs the calling thread. A preemptible thread may have moved since.
pub fn current_id() -> u32 {
    this().id()
}

/// CPU number `id`, whether it runs threads or not.
pub(crate) fn get(id: usize) -> &'static Cpu {
    &CPUS[id]
}

/// The calling CPU; right for as long as interrupts stay off.
#[inline]
pub(crate) fn this() -> &'static Cpu {
    let cpu: *const Cpu;
    // SAFETY: [`init`] has pointed GS to this CPU's entry, whose first word is its address. Not
    // `pure`: the thread may run on another CPU the next time.
    unsafe {
        core::arch::asm!("mov {}, gs:[0]", out(reg) cpu, options(nostack, preserves_flags, readonly));
        &*cpu
    }
}

/// The running thread as `thread` has stored it; null if there are no threads yet.
#[inline]
pub(crate) fn current() -> *mut () {
    let thread: *mut ();
    // SAFETY: reads a field of this CPU's entry; which CPU that is does not matter.
    unsafe {
        core::arch::asm!(
            "mov {}, gs:[{}]",
            out(reg) thread,
            const offset_of!(Cpu, current),
            options(nostack, preserves_flags, readonly)
        );
    }
    thread
}

/// Whether the caller is an interrupt handler.
#[inline]
pub(crate) fn in_interrupt() -> bool {
    let handlers: u32;
    // SAFETY: as in `current`.
    unsafe {
        core::arch::asm!(
            "mov {:e}, gs:[{}]",
            out(reg) handlers,
            const offset_of!(Cpu, interrupts),
            options(nostack, preserves_flags, readonly)
        );
    }
    handlers > 0
}

/// Makes the calling CPU number `id`: loads its descriptors and fault stacks, points GS to its
/// entry.
pub(crate) fn init(id: usize) {
    let cpu = &CPUS[id];
    cpu.this.store((&raw const *cpu).cast_mut(), Ordering::Relaxed);
    // SAFETY: only this CPU touches its descriptors, and only here, once.
    let (gdt, tss) = unsafe { &mut *cpu.descriptors.get() };
    for (ist, stack) in [FAULT_IST, LAST_IST].into_iter().zip(&FAULT_STACKS[id]) {
        let top = stack.0.get() as u64 + FAULT_STACK as u64;
        tss.interrupt_stack_table[usize::from(ist)] = VirtAddr::new(top);
    }
    *gdt = GlobalDescriptorTable::new();
    let code = gdt.append(Descriptor::kernel_code_segment());
    let data = gdt.append(Descriptor::kernel_data_segment());
    // SAFETY: it lives in a static.
    let tss = gdt.append(unsafe { Descriptor::tss_segment_unchecked(&raw const *tss) });
    // SAFETY: the table lives in a static, and the selectors are its own. GS is set last, since
    // loading a segment register clears its base.
    unsafe {
        gdt.load_unsafe();
        CS::set_reg(code);
        SS::set_reg(data);
        DS::set_reg(data);
        ES::set_reg(data);
        load_tss(tss);
    }
    GsBase::write(VirtAddr::from_ptr(&raw const *cpu));
}
