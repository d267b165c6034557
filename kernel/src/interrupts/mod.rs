//! Interrupts: the descriptor table, vectors for devices, and what happens on each vector.
//!
//! Vectors 0 to 31 are faults (`fault`), 32 to 47 belong to the legacy controllers, then follow
//! those that [`claim`] allocates, and the highest are the kernel's own (`apic`). A vector has the
//! same meaning on every CPU, and the vectors of devices are spread over the CPUs (`cpu::in_turn`).
//!
//! A handler runs with interrupts off, on the stack of the thread that it interrupts. It may use
//! atomics and wake threads. A thread so woken runs as soon as the handler returns, or after the
//! current turn (`thread::scheduler`). An interrupt on a vector that is not claimed is logged and
//! has no other effect.
#![expect(unsafe_code, reason = "the entry points of interrupts, and handlers kept as pointers")]

mod fault;

use alloc::boxed::Box;
use core::arch::global_asm;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use nic_hal::InterruptHandler;
use spin::Once;
use x86_64::VirtAddr;
use x86_64::instructions::port::Port;
use x86_64::structures::idt::InterruptDescriptorTable;

use crate::apic::{self, RESCHEDULE, SPURIOUS, TIMER};
use crate::{cpu, thread};
use fault::Frame;

/// The vectors that the legacy controllers are moved to, away from those of faults.
const LEGACY: u8 = 0x20;
/// The first vector for [`claim`].
const FIRST: u8 = 0x30;
/// One past the last vector for [`claim`].
const END: u8 = 0xf0;
const _: () = assert!(END <= TIMER && END <= RESCHEDULE);

/// The size of an entry stub.
const STUB: u64 = 16;

// One stub for each vector. It pushes an error code if the CPU does not, and the vector, and jumps
// to the common part. The CPU aligns the stack to 16 bytes before it pushes, and the whole frame is
// 22 words, so the call is aligned.
global_asm!(
    r#"
    .pushsection .text.interrupts, "ax", @progbits
    .balign 16
    .global interrupt_stubs
interrupt_stubs:
    .set vector, 0
    .rept 256
    .balign {stub}
    .if vector != 8 && (vector < 10 || vector > 14) && vector != 17
    .if vector != 21 && vector != 29 && vector != 30
    push 0
    .endif
    .endif
    push vector
    jmp interrupt_common
    .set vector, vector + 1
    .endr

interrupt_common:
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    cld
    mov rdi, rsp
    call {handler}
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    add rsp, 16
    iretq
    .popsection
    "#,
    stub = const STUB,
    handler = sym interrupt,
);

unsafe extern "C" {
    static interrupt_stubs: u8;
}

static IDT: Once<InterruptDescriptorTable> = Once::new();

/// Loads the descriptor table on the calling CPU.
pub(crate) fn init_table() {
    let idt = IDT.call_once(|| {
        let mut idt = InterruptDescriptorTable::new();
        let stub = |vector: u8| VirtAddr::new((&raw const interrupt_stubs) as u64 + u64::from(vector) * STUB);
        // SAFETY: each stub saves and restores all registers, and pushes an error code exactly
        // where the CPU does not; `cpu::init` has set the stacks.
        unsafe {
            use cpu::{FAULT_IST, LAST_IST};
            idt.divide_error.set_handler_addr(stub(0)).set_stack_index(FAULT_IST);
            idt.debug.set_handler_addr(stub(1)).set_stack_index(FAULT_IST);
            idt.non_maskable_interrupt.set_handler_addr(stub(2)).set_stack_index(LAST_IST);
            idt.breakpoint.set_handler_addr(stub(3)).set_stack_index(FAULT_IST);
            idt.overflow.set_handler_addr(stub(4)).set_stack_index(FAULT_IST);
            idt.bound_range_exceeded.set_handler_addr(stub(5)).set_stack_index(FAULT_IST);
            idt.invalid_opcode.set_handler_addr(stub(6)).set_stack_index(FAULT_IST);
            idt.device_not_available.set_handler_addr(stub(7)).set_stack_index(FAULT_IST);
            idt.double_fault.set_handler_addr(stub(8)).set_stack_index(LAST_IST);
            idt.invalid_tss.set_handler_addr(stub(10)).set_stack_index(FAULT_IST);
            idt.segment_not_present.set_handler_addr(stub(11)).set_stack_index(FAULT_IST);
            idt.stack_segment_fault.set_handler_addr(stub(12)).set_stack_index(FAULT_IST);
            idt.general_protection_fault.set_handler_addr(stub(13)).set_stack_index(FAULT_IST);
            idt.page_fault.set_handler_addr(stub(14)).set_stack_index(FAULT_IST);
            idt.x87_floating_point.set_handler_addr(stub(16)).set_stack_index(FAULT_IST);
            idt.alignment_check.set_handler_addr(stub(17)).set_stack_index(FAULT_IST);
            idt.machine_check.set_handler_addr(stub(18)).set_stack_index(LAST_IST);
            idt.simd_floating_point.set_handler_addr(stub(19)).set_stack_index(FAULT_IST);
            idt.virtualization.set_handler_addr(stub(20)).set_stack_index(FAULT_IST);
            idt.cp_protection_exception.set_handler_addr(stub(21)).set_stack_index(FAULT_IST);
            for vector in 32..=255 {
                idt[vector].set_handler_addr(stub(vector));
            }
        }
        idt
    });
    idt.load();
}

/// Moves the legacy controllers' vectors away from those of faults, and masks all their lines.
pub(crate) fn silence_legacy() {
    let [mut command1, mut data1] = [Port::<u8>::new(0x20), Port::new(0x21)];
    let [mut command2, mut data2] = [Port::<u8>::new(0xa0), Port::new(0xa1)];
    // SAFETY: the initialisation sequence of two 8259s in cascade, then all lines masked.
    unsafe {
        command1.write(0x11);
        command2.write(0x11);
        data1.write(LEGACY);
        data2.write(LEGACY + 8);
        data1.write(4);
        data2.write(2);
        data1.write(1);
        data2.write(1);
        data1.write(0xff);
        data2.write(0xff);
    }
}

/// The handler of a vector.
struct Slot {
    /// From `Box::into_raw` of a `Box<InterruptHandler>`, or null.
    handler: AtomicPtr<InterruptHandler>,
    /// How many CPUs run the handler.
    running: AtomicU32,
}

static SLOTS: [Slot; (END - FIRST) as usize] =
    [const { Slot { handler: AtomicPtr::new(core::ptr::null_mut()), running: AtomicU32::new(0) } };
        (END - FIRST) as usize];
static NEXT: AtomicU8 = AtomicU8::new(FIRST);
static UNEXPECTED: AtomicU64 = AtomicU64::new(0);

/// The number of interrupts on vectors that were not claimed, and of spurious ones.
pub fn unexpected() -> u64 {
    UNEXPECTED.load(Ordering::Relaxed)
}

/// A vector of the descriptor table, claimed for good.
#[derive(Debug)]
pub struct Vector(u8);

/// Claims a vector; `None` when all are claimed.
pub fn claim() -> Option<Vector> {
    let next = |v: u8| (v < END).then_some(v + 1);
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().map(Vector)
}

/// How many vectors can still be claimed.
pub(crate) fn left() -> usize {
    usize::from(END.saturating_sub(NEXT.load(Ordering::Relaxed)))
}

impl Vector {
    /// Its number.
    pub fn number(&self) -> u8 {
        self.0
    }

    /// Sends the vector to a CPU, as a device would. Returns false if there is no such CPU.
    pub fn raise(&self, cpu: u32) -> bool {
        let there = cpu::is_online(cpu as usize);
        if there {
            apic::send(cpu::get(cpu as usize), self.0);
        }
        there
    }

    /// Replaces the vector's handler; `None` removes it. When the call returns, the former handler
    /// runs no more. So a handler must not call this for its own vector.
    pub fn set(&self, handler: Option<InterruptHandler>) {
        let slot = &SLOTS[usize::from(self.0 - FIRST)];
        let new = handler.map_or(core::ptr::null_mut(), |handler| Box::into_raw(Box::new(handler)));
        // SeqCst here and in `dispatch`: either the interrupt sees the new handler, or this call
        // sees that the former one runs.
        let old = slot.handler.swap(new, Ordering::SeqCst);
        while slot.running.load(Ordering::SeqCst) != 0 {
            core::hint::spin_loop();
        }
        if !old.is_null() {
            // SAFETY: it came from `Box::into_raw` above, is no longer bound, and no CPU runs it.
            drop(unsafe { Box::from_raw(old) });
        }
    }
}

/// Runs a vector's handler. Returns false if the vector is not claimed.
fn dispatch(vector: u8) -> bool {
    let Some(slot) = vector.checked_sub(FIRST).and_then(|i| SLOTS.get(usize::from(i))) else {
        return false;
    };
    slot.running.fetch_add(1, Ordering::SeqCst);
    let handler = slot.handler.load(Ordering::SeqCst);
    // SAFETY: it is bound, and `set` does not free it while `running` counts this CPU.
    let handler = unsafe { handler.as_ref() };
    if let Some(handler) = handler {
        handler();
    }
    slot.running.fetch_sub(1, Ordering::SeqCst);
    // A claimed vector may have no handler: a device's last interrupt can come after its handler
    // was removed.
    vector < NEXT.load(Ordering::Relaxed) || handler.is_some()
}

/// The common part of all stubs calls this.
extern "C" fn interrupt(frame: &Frame) {
    let vector = frame.vector as u8;
    if vector < 32 {
        fault::die(frame);
    }
    let cpu = cpu::this();
    cpu.interrupts.fetch_add(1, Ordering::Relaxed);
    match vector {
        TIMER => {
            apic::end_of_interrupt();
            thread::tick();
        }
        RESCHEDULE => {
            apic::end_of_interrupt();
            thread::answer_round();
            thread::look();
        }
        SPURIOUS => {
            // A spurious interrupt must not be acknowledged.
            UNEXPECTED.fetch_add(1, Ordering::Relaxed);
            log::debug!("spurious interrupt");
        }
        _ => {
            // Acknowledged before the handler runs, so that an interrupt that comes meanwhile is
            // delivered after it.
            if vector >= FIRST || apic::in_service(vector) {
                apic::end_of_interrupt();
            }
            if !dispatch(vector) {
                UNEXPECTED.fetch_add(1, Ordering::Relaxed);
                log::warn!("an interrupt came on vector {vector:#x}, which is not claimed; it is ignored");
            }
        }
    }
    cpu.interrupts.fetch_sub(1, Ordering::Relaxed);
    thread::after_interrupt(cpu);
}
