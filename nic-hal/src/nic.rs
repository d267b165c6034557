//! The driver of one RNIC: its opening, its life and its closing. `objects` has the commands that
//! create and destroy objects.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use nic_abi::RING_ALIGN;
use nic_abi::admin::{self, Opcode};
use nic_abi::doorbell::Kind;
use nic_abi::registers::{self, Control, Identity};
use platform::{DmaBuffer, Instant, Packed, Platform, Signal, heap};
use zerocopy::{Immutable, IntoBytes};

use crate::admin::{AdminQueue, CommandRing, LOG_ENTRIES, ResponseRing};
use crate::control;
use crate::doorbell::Doorbell;
use crate::life::Life;
use crate::mapped::Registers;
use crate::memory::{DeviceMemory, Lease, Quarantine};
use crate::{Death, Error, Transport};

/// The driver of one NIC: its control path. The rings that it returns are the data path.
///
/// Numbers (of queues, domains, keys) are the caller's choice, within the identity's limits.
///
/// All methods may be called by any thread, but not in an interrupt handler. Methods that send a
/// command to the device block for a bounded time; from the device's death on they fail with
/// [`Error::DeviceDead`].
pub struct Nic {
    pub(crate) platform: Arc<dyn Platform>,
    /// Where memory for the device comes from: `platform`, with small pieces packed.
    pub(crate) dma: Arc<dyn Platform>,
    pub(crate) registers: Arc<Registers>,
    pub(crate) identity: Identity,
    pub(crate) admin: AdminQueue,
    pub(crate) quarantine: Arc<Quarantine>,
    signal: Arc<Signal>,
    life: Life,
    closed: AtomicBool,
}

/// What a small allocation takes at most, with what an allocator adds.
const SMALL: usize = 64;

impl Nic {
    /// Checks that the device is an RNIC that this driver can drive, resets it and starts it.
    pub fn open(platform: Arc<dyn Platform>, transport: Arc<dyn Transport>) -> Result<Nic, Error> {
        let registers = Registers::new(transport)?;
        control::recognise(&registers)?;
        let signal = heap::arc(Signal::new(platform.clone())).map_err(|_| Error::OutOfMemory)?;
        control::reset(&*platform, &registers, control::DEADLINE)?;
        let identity = control::identify(&registers)?;

        let quarantine = Quarantine::new()?;
        let lease = Lease::new(&quarantine)?;
        let dma: Arc<dyn Platform> =
            heap::arc(Packed::new(platform.clone())).map_err(|_| Error::OutOfMemory)?;
        let memory = DeviceMemory::new(&dma, CommandRing::bytes(LOG_ENTRIES), RING_ALIGN, &lease)?;
        let commands = CommandRing::new(memory, LOG_ENTRIES)?;
        let memory = DeviceMemory::new(&dma, ResponseRing::bytes(LOG_ENTRIES), RING_ALIGN, &lease)?;
        let responses = ResponseRing::new(memory, LOG_ENTRIES)?;
        let start = Control {
            request: 0,
            command: registers::CONTROL_START,
            driver_version: u32::from(nic_abi::VERSION_MAJOR) << 16 | u32::from(nic_abi::VERSION_MINOR),
            admin_log_entries: LOG_ENTRIES,
            admin_commands: commands.bus(),
            admin_responses: responses.bus(),
        };
        let vectors = registers.transport().vectors();
        // What is allocated once the device has started: the interrupt handlers and a count.
        heap::room(usize::from(vectors) * SMALL + SMALL)?;
        lease.start();
        if let Err(error) = control::start(&*platform, &registers, start) {
            // The device may have started without acknowledging in time.
            if control::reset(&*platform, &registers, control::DEAD_DEADLINE).is_ok() {
                quarantine.release();
            }
            return Err(error);
        }
        for vector in 0..vectors {
            let signal = signal.clone();
            registers.transport().set_vector(vector, Some(Box::new(move || signal.raise())));
        }
        let doorbell = Doorbell::new(&registers, Kind::Admin, 0)?;
        let (at, signals) = (registers.clone(), signal.clone());
        let admin = AdminQueue::new(platform.clone(), signals, at, commands, responses, doorbell);
        let life = Life::new(signal.clone());
        let closed = AtomicBool::new(false);
        Ok(Nic { platform, dma, registers, identity, admin, quarantine, signal, life, closed })
    }

    /// Sends a command and waits for its answer's result.
    pub(crate) fn command(
        &self,
        opcode: Opcode,
        object: u32,
        args: &(impl IntoBytes + Immutable),
    ) -> Result<[u8; admin::RESULT_SIZE], Error> {
        self.admin.command(&self.life, opcode, object, args)
    }

    /// What the device is and what it can do: the copy that [`Nic::open`] checked.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Why the device is dead; `None` while it is alive.
    pub fn death(&self) -> Option<Death> {
        self.life.death()
    }

    /// The signal that each interrupt raises, and the device's death.
    pub fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// Looks at the device's heartbeat and state; to be called a few times a second. A device whose
    /// heartbeat has not changed for `HEARTBEAT_DEAD_MS`, or for the time of
    /// [`Nic::bear_silence`], is dead from then on.
    pub fn watch(&self, now: Instant) {
        self.life.look(now, &self.registers);
    }

    /// Sets how long the device's heartbeat may stand still.
    pub fn bear_silence(&self, time: Duration) {
        self.life.bear_silence(time);
    }

    /// Whether the port is up.
    pub fn port_up(&self) -> bool {
        self.registers.status(registers::STATUS_PORT_UP) == 1
    }

    /// Allocates memory for the device to use, at least `len` bytes. Start its lease before the
    /// device gets to know the address.
    pub fn allocate(&self, len: usize, align: usize) -> Result<DeviceMemory, Error> {
        let lease = Lease::new(&self.quarantine)?;
        // Whole words, so that the memory can be read and written by words.
        DeviceMemory::new(&self.dma, len.next_multiple_of(8), align, &lease)
    }

    /// Declares the device dead because it broke the protocol, when a layer above finds that out.
    pub fn condemn(&self) {
        self.life.end(Death::Protocol);
    }

    /// Declares the device dead because its use ends. When this returns, no thread writes a
    /// command.
    pub fn retire(&self) {
        self.life.end(Death::Closed);
        self.admin.settle();
    }

    /// Ends all use of the device: masks its interrupts and resets it. The device is dead from then
    /// on.
    ///
    /// Returns true if the device confirmed the reset. Only then does memory that it was using
    /// return to the platform.
    pub fn close(&self) -> bool {
        if self.closed.swap(true, Ordering::AcqRel) {
            return self.quarantine.is_released();
        }
        self.retire();
        let limit = match self.life.end(Death::Closed) {
            Death::Closed => control::DEADLINE,
            _ => control::DEAD_DEADLINE,
        };
        let transport = self.registers.transport();
        for vector in 0..transport.vectors() {
            transport.set_vector(vector, None);
        }
        let reset = control::reset(&*self.platform, &self.registers, limit);
        if reset.is_ok() {
            self.quarantine.release();
        }
        reset.is_ok()
    }

    /// Keeps a buffer alive until the device confirms a reset: for memory whose address the device
    /// has and which it did not confirm to be done with.
    pub fn keep(&self, buffer: Arc<DmaBuffer>) {
        self.quarantine.keep(buffer);
    }

    /// How many buffers wait for a reset that the device confirms.
    pub fn quarantined(&self) -> usize {
        self.quarantine.held()
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.close();
    }
}
