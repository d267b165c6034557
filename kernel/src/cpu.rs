//! What each CPU has of its own: descriptors, stacks for faults, the scheduler's state.
//!
//! The GS base points to the CPU's [`Cpu`]. Only the boot CPU is started so far; all else is written for
//! [`MAX_CPUS`].
#![expect(unsafe_code, reason = "loads descriptor tables and reads the GS segment")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use x86_64::VirtAddr;
use x86_64::instructions::tables::load_tss;
use x86_64::registers::model_specific::GsBase;
use x86_64::registers::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use crate::lock::IrqLock;
use crate::thread::{RunQueue, Thread};

/// How many CPUs there can be.
const MAX_CPUS: usize = 16;
/// The size of a fault's stack.
const FAULT_STACK: usize = 16 * 1024;

/// The entry of the interrupt stack table for faults, which may come from a stack that overflowed.
pub(crate) const FAULT_IST: u16 = 0;
/// The one for a double fault and an NMI, which may come in the middle of a fault.
pub(crate) const LAST_IST: u16 = 1;

#[repr(align(16))]
struct FaultStack(UnsafeCell<[u8; FAULT_STACK]>);

// SAFETY: only the CPU itself writes there, and only the CPU that it belongs to.
unsafe impl Sync for FaultStack {}

/// Two a CPU: [`FAULT_IST`], [`LAST_IST`].
static FAULT_STACKS: [[FaultStack; 2]; MAX_CPUS] =
    [const { [const { FaultStack(UnsafeCell::new([0; FAULT_STACK])) }; 2] }; MAX_CPUS];

/// A CPU.
#[repr(C)]
pub(crate) struct Cpu {
    /// Its own address, for [`this`].
    this: AtomicPtr<Cpu>,
    id: AtomicU32,
    apic_id: AtomicU32,
    /// The thread that runs; null until there are threads.
    pub(crate) current: AtomicPtr<Thread>,
    /// How many interrupt handlers are on the stack.
    pub(crate) interrupts: AtomicU32,
    /// An interrupt has made a thread ready that should run at once, or the time slice is over.
    pub(crate) reschedule: AtomicBool,
    /// The scheduler waits for something to run, on the stack of the last thread that ran.
    pub(crate) idle: AtomicBool,
    /// What is to run here.
    pub(crate) queue: IrqLock<RunQueue>,
    descriptors: UnsafeCell<(GlobalDescriptorTable, TaskStateSegment)>,
}

// SAFETY: the descriptors are touched by their own CPU only, before it runs anything else; all other fields are
// made for sharing.
unsafe impl Sync for Cpu {}

impl Cpu {
    const fn new() -> Cpu {
        Cpu {
            this: AtomicPtr::new(core::ptr::null_mut()),
            id: AtomicU32::new(0),
            apic_id: AtomicU32::new(0),
            current: AtomicPtr::new(core::ptr::null_mut()),
            interrupts: AtomicU32::new(0),
            reschedule: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            queue: IrqLock::new(RunQueue::new()),
            descriptors: UnsafeCell::new((GlobalDescriptorTable::empty(), TaskStateSegment::new())),
        }
    }

    /// Its number, from 0.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Its local APIC's number.
    pub(crate) fn apic_id(&self) -> u32 {
        self.apic_id.load(Ordering::Relaxed)
    }

    pub(crate) fn set_apic_id(&self, id: u32) {
        self.apic_id.store(id, Ordering::Relaxed);
    }
}

static CPUS: [Cpu; MAX_CPUS] = [const { Cpu::new() }; MAX_CPUS];

/// The CPU that runs this. A thread stays on its CPU, so the answer stays right.
#[inline]
pub(crate) fn this() -> &'static Cpu {
    let cpu: *const Cpu;
    // SAFETY: [`init`] has pointed GS to this CPU's entry, whose first word is its address.
    unsafe {
        core::arch::asm!("mov {}, gs:[0]", out(reg) cpu, options(nostack, preserves_flags, readonly, pure));
        &*cpu
    }
}

/// Makes the calling CPU number `id`: descriptors, fault stacks, GS.
pub(crate) fn init(id: usize) {
    let cpu = &CPUS[id];
    cpu.id.store(id as u32, Ordering::Relaxed);
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
    // SAFETY: the table lives in a static, and the selectors are its own. GS is set last, since loading a
    // segment register clears its base.
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
