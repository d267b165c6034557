//! The local APIC: acknowledges interrupts, counts time, sends interrupts to other CPUs.
//!
//! Its registers are memory-mapped, or MSRs where the firmware has switched to x2APIC. (Intel SDM
//! volume 3, chapter "Advanced Programmable Interrupt Controller".)
#![expect(unsafe_code, reason = "device registers")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use volatile::VolatilePtr;
use x86_64::registers::model_specific::{ApicBase, ApicBaseFlags, Msr};

use crate::cpu::{self, Cpu};
use crate::lock::IrqOff;
use crate::memory::{self, Cache};
use crate::{clock, region};

/// The vector of the timer.
pub(crate) const TIMER: u8 = 0xf0;
/// The vector by which a CPU makes another one look at the run queues.
pub(crate) const RESCHEDULE: u8 = 0xf1;
/// The vector that the APIC delivers for an interrupt that was withdrawn before the CPU took it.
pub(crate) const SPURIOUS: u8 = 0xff;

/// A register's offset in the memory-mapped page; divided by 16 it is the number of its MSR.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Register {
    Id = 0x20,
    TaskPriority = 0x80,
    EndOfInterrupt = 0xb0,
    Spurious = 0xf0,
    InService = 0x100,
    Command = 0x300,
    CommandHigh = 0x310,
    Timer = 0x320,
    InitialCount = 0x380,
    CurrentCount = 0x390,
    Divide = 0x3e0,
}

/// The MSR of the register with offset 0.
const MSRS: u32 = 0x800;
/// The bit of the spurious-vector register that turns the APIC on.
const ENABLE: u32 = 1 << 8;
/// The bit of a local vector that masks it.
const MASKED: u32 = 1 << 16;
/// The timer counts every sixteenth tick of its clock, so its 32 bits last for a minute at 1 GHz.
const DIVIDE_BY_16: u32 = 0b0011;
const PAGE: u64 = region::PAGE as u64;
/// The value of [`BASE`] in x2APIC mode.
const X2APIC: u64 = 0;

/// The address of the registers, which is the same on all CPUs.
static BASE: AtomicU64 = AtomicU64::new(X2APIC);
/// Ticks of the timer per nanosecond, as a fraction of 2^32.
static TICKS_PER_NS: AtomicU64 = AtomicU64::new(1 << 32);

fn read(register: Register, index: u32) -> u32 {
    let offset = register as u32 + 16 * index;
    match BASE.load(Ordering::Relaxed) {
        // SAFETY: an APIC register without side effects on reading.
        X2APIC => unsafe { Msr::new(MSRS + offset / 16).read() as u32 },
        // SAFETY: `init` mapped the page.
        base => unsafe { register_at(base, offset) }.read(),
    }
}

fn write(register: Register, value: u32) {
    let offset = register as u32;
    match BASE.load(Ordering::Relaxed) {
        // SAFETY: callers write what the manual allows.
        X2APIC => unsafe { Msr::new(MSRS + offset / 16).write(u64::from(value)) },
        // SAFETY: `init` mapped the page.
        base => unsafe { register_at(base, offset) }.write(value),
    }
}

/// # Safety
///
/// `base` is the address of the mapped page of registers, and `offset` one of a register.
unsafe fn register_at(base: u64, offset: u32) -> VolatilePtr<'static, u32> {
    // SAFETY: the caller's promise; the base is not 0.
    unsafe { VolatilePtr::new(NonNull::new_unchecked((base + u64::from(offset)) as *mut u32)) }
}

/// Finds the registers and turns the boot CPU's APIC on. Fails with the address of the registers if
/// they cannot be mapped.
pub(crate) fn init() -> Result<(), u64> {
    let (frame, flags) = ApicBase::read();
    let x2apic = flags.contains(ApicBaseFlags::X2APIC_ENABLE);
    if !x2apic {
        let base = frame.start_address().as_u64();
        if !memory::map_device(base, PAGE, Cache::Off) {
            return Err(base);
        }
        BASE.store(base, Ordering::Relaxed);
    }
    let id = read(Register::Id, 0);
    cpu::this().set_apic_id(if x2apic { id } else { id >> 24 });
    turn_on();
    Ok(())
}

/// Turns the calling CPU's APIC on, in the mode of the boot CPU's.
pub(crate) fn init_other() {
    if BASE.load(Ordering::Relaxed) == X2APIC {
        let (frame, flags) = ApicBase::read();
        // SAFETY: the address of the registers stays the same, and both modes may be entered from
        // the state after INIT.
        unsafe { ApicBase::write(frame, flags | ApicBaseFlags::X2APIC_ENABLE) };
    }
    turn_on();
}

fn turn_on() {
    write(Register::TaskPriority, 0);
    write(Register::Spurious, ENABLE | u32::from(SPURIOUS));
}

/// Acknowledges the interrupt that the CPU took last.
pub(crate) fn end_of_interrupt() {
    write(Register::EndOfInterrupt, 0);
}

/// Whether an interrupt with this vector came through the APIC and is not acknowledged yet.
pub(crate) fn in_service(vector: u8) -> bool {
    read(Register::InService, u32::from(vector / 32)) & 1 << (vector % 32) != 0
}

/// Starts the timer with its interrupt masked, so that [`timer_count`] can measure it.
pub(crate) fn start_counting() {
    write(Register::Divide, DIVIDE_BY_16);
    write(Register::Timer, MASKED | u32::from(TIMER));
    write(Register::InitialCount, u32::MAX);
}

/// How far the timer has counted since [`start_counting`].
pub(crate) fn timer_count() -> u64 {
    u64::from(u32::MAX - read(Register::CurrentCount, 0))
}

/// Unmasks the timer's interrupt.
pub(crate) fn start_timer() {
    write(Register::InitialCount, 0);
    write(Register::Divide, DIVIDE_BY_16);
    write(Register::Timer, u32::from(TIMER));
}

/// Sets the timer's measured rate: ticks per nanosecond as a fraction of 2^32.
pub(crate) fn set_timer_rate(ticks_per_ns: u64) {
    TICKS_PER_NS.store(ticks_per_ns, Ordering::Relaxed);
}

/// Sets the timer to interrupt after `ns` nanoseconds, or after the most that its counter holds.
/// This replaces an earlier setting.
pub(crate) fn set_timer(ns: u64) {
    let ticks = clock::scale(ns, TICKS_PER_NS.load(Ordering::Relaxed));
    write(Register::InitialCount, u32::try_from(ticks).unwrap_or(u32::MAX).max(1));
}

/// A command without its vector: how the interrupt is delivered, and that it is asserted.
const FIXED: u32 = 1 << 14;
const NMI: u32 = 0b100 << 8 | 1 << 14;
const INIT: u32 = 0b101 << 8 | 1 << 14;
const START: u32 = 0b110 << 8 | 1 << 14;
/// The bit of the command register that says that the last command is still pending.
const PENDING: u32 = 1 << 12;
/// How often that bit is read; a command is delivered long before.
const PATIENCE: u32 = 10_000;

fn command(to: &Cpu, command: u32) {
    // No interrupt handler may send a command between the two halves.
    let _off = IrqOff::new();
    if BASE.load(Ordering::Relaxed) == X2APIC {
        let value = u64::from(to.apic_id()) << 32 | u64::from(command);
        // SAFETY: callers send what the other CPU is prepared for.
        unsafe { Msr::new(MSRS + Register::Command as u32 / 16).write(value) };
    } else {
        for _ in 0..PATIENCE {
            if read(Register::Command, 0) & PENDING == 0 {
                break;
            }
            core::hint::spin_loop();
        }
        write(Register::CommandHigh, to.apic_id() << 24);
        write(Register::Command, command);
    }
}

/// Makes another CPU look at the run queues.
pub(crate) fn send_reschedule(to: &Cpu) {
    command(to, FIXED | u32::from(RESCHEDULE));
}

/// Sends a vector to another CPU, as a device would.
pub(crate) fn send(to: &Cpu, vector: u8) {
    command(to, FIXED | u32::from(vector));
}

/// Sends an NMI to another CPU, which takes it even with interrupts off.
pub(crate) fn send_nmi(to: &Cpu) {
    command(to, NMI);
}

/// Resets another CPU, which then waits for [`send_start`].
pub(crate) fn send_init(to: &Cpu) {
    command(to, INIT);
}

/// Starts another CPU in real mode, at a page below 1 MiB.
pub(crate) fn send_start(to: &Cpu, page: u64) {
    command(to, START | (page >> 12) as u32);
}
