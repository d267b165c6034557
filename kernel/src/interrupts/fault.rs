//! Faults: a report with a backtrace, and the end of the guest. The kernel recovers from none.

use x86_64::registers::control::Cr2;

use crate::lock::IrqOff;
use crate::memory::{self, StackAddress};
use crate::region::PAGE;
use crate::shutdown::{self, Status};
use crate::{panic, println};

/// What the entry stub saves, and below it what the CPU pushed.
#[repr(C)]
pub(super) struct Frame {
    pub(super) r15: u64,
    pub(super) r14: u64,
    pub(super) r13: u64,
    pub(super) r12: u64,
    pub(super) r11: u64,
    pub(super) r10: u64,
    pub(super) r9: u64,
    pub(super) r8: u64,
    pub(super) rbp: u64,
    pub(super) rdi: u64,
    pub(super) rsi: u64,
    pub(super) rdx: u64,
    pub(super) rcx: u64,
    pub(super) rbx: u64,
    pub(super) rax: u64,
    pub(super) vector: u64,
    pub(super) error: u64,
    pub(super) rip: u64,
    pub(super) cs: u64,
    pub(super) rflags: u64,
    pub(super) rsp: u64,
    pub(super) ss: u64,
}

/// The name of a fault in the manuals.
fn name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error (#DE)",
        1 => "debug exception (#DB)",
        2 => "non-maskable interrupt",
        3 => "breakpoint (#BP)",
        4 => "overflow (#OF)",
        5 => "bound range exceeded (#BR)",
        6 => "invalid opcode (#UD)",
        7 => "device not available (#NM)",
        8 => "double fault (#DF)",
        10 => "invalid TSS (#TS)",
        11 => "segment not present (#NP)",
        12 => "stack-segment fault (#SS)",
        13 => "general protection fault (#GP)",
        14 => "page fault (#PF)",
        16 => "x87 floating-point error (#MF)",
        17 => "alignment check (#AC)",
        18 => "machine check (#MC)",
        19 => "SIMD floating-point error (#XM)",
        20 => "virtualization exception (#VE)",
        21 => "control protection exception (#CP)",
        _ => "reserved exception",
    }
}

const NMI: u64 = 2;
const PAGE_FAULT: u64 = 14;

/// Reports the fault and ends the guest.
pub(super) fn die(frame: &Frame) -> ! {
    if frame.vector == NMI {
        // A CPU that reports a panic or a fault sends NMIs to stop the others.
        shutdown::stop_if_another_reports();
    }
    let _off = IrqOff::new();
    shutdown::begin_report(Status::Fault);
    let address = Cr2::read_raw();
    println!("FAULT in {}: {} at {:#x}", panic::Where, name(frame.vector), frame.rip);
    if frame.vector == PAGE_FAULT {
        let access = match frame.error {
            e if e & 1 << 4 != 0 => "executing",
            e if e & 1 << 1 != 0 => "writing",
            _ => "reading",
        };
        let why = match memory::classify(address) {
            StackAddress::Guard => "the guard page below a stack: the stack has overflowed",
            _ if address < PAGE as u64 => "the first page, which is never mapped: a null pointer",
            _ if frame.error & 1 != 0 => "a page that does not allow this access",
            _ => "an address that is not mapped",
        };
        println!("{access} {address:#x}, {why}");
    }
    println!("error code {:#x}, rflags {:#x}, rsp {:#x}", frame.error, frame.rflags, frame.rsp);
    println!("rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}", frame.rax, frame.rbx, frame.rcx, frame.rdx);
    println!("rsi {:016x} rdi {:016x} rbp {:016x} r8  {:016x}", frame.rsi, frame.rdi, frame.rbp, frame.r8);
    println!("r9  {:016x} r10 {:016x} r11 {:016x} r12 {:016x}", frame.r9, frame.r10, frame.r11, frame.r12);
    println!("r13 {:016x} r14 {:016x} r15 {:016x}", frame.r13, frame.r14, frame.r15);
    panic::print_backtrace(Some(frame.rip), frame.rbp);
    shutdown::exit(Status::Fault as i32)
}
