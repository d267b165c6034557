//! A NIC as a hostile driver uses it: registers and rings, without rules.

use alloc::sync::Arc;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;

use common::{Failure, Trying};
use kernel::clock;
use nic_abi::admin::{self, ARGS_SIZE, Command, Opcode};
use nic_abi::doorbell::{self, Kind};
use nic_abi::registers::{self, Control, State};
use nic_hal::Transport;
use zerocopy::{Immutable, IntoBytes};

use crate::memory::{Memory, Ring};
use platform::random::Random;

/// Log2 of the entries of the admin rings.
const ADMIN_LOG: u32 = 4;
/// How long a control request may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a command waits for a free entry in the ring.
const PLACE: Duration = Duration::from_millis(2);

/// A NIC, and what its driver has posted since its start.
pub struct Nic {
    pub transport: Arc<dyn Transport>,
    commands: u64,
    responses: u64,
    issued: u32,
}

/// A command on an object.
pub fn command<A: IntoBytes + Immutable>(opcode: Opcode, object: u32, arguments: &A) -> Command {
    let mut args = [0; ARGS_SIZE];
    for (to, from) in args.iter_mut().zip(arguments.as_bytes()) {
        *to = *from;
    }
    Command { opcode: opcode as u16, flags: 0, id: 1, object, reserved: 0, args }
}

impl Nic {
    pub fn new(transport: Arc<dyn Transport>) -> Nic {
        Nic { transport, commands: 0, responses: 0, issued: 0 }
    }

    /// A register; offsets beyond the file wrap.
    pub fn register(&self, offset: usize) -> Result<&AtomicU32, Failure> {
        self.transport.registers().atomic_u32((offset % registers::SIZE) & !3).trying("a register")
    }

    /// Requests a reset or start, and waits for the acknowledgement. Garbage may have changed what
    /// the registers say about earlier requests, so the device may miss some requests.
    fn request(&self, random: &mut Random, what: u32) -> Result<(), Failure> {
        self.register(registers::CONTROL + offset_of!(Control, command))?.store(what, Ordering::Relaxed);
        let begun = clock::now();
        while clock::now().since(begun) < PATIENCE {
            let value = random.word() as u32;
            self.register(registers::CONTROL_REQUEST)?.store(value, Ordering::SeqCst);
            self.transport.kick();
            let asked = clock::now();
            while clock::now().since(asked) < PATIENCE / 4 {
                if self.register(registers::STATUS_ACKNOWLEDGED)?.load(Ordering::Acquire) == value {
                    return Ok(());
                }
                core::hint::spin_loop();
            }
        }
        Err(Failure::new(format_args!("control request {what} was not acknowledged")))
    }

    /// Resets the NIC, which works in every state and after all garbage.
    pub fn reset(&self, random: &mut Random) -> Result<(), Failure> {
        self.request(random, registers::CONTROL_RESET)?;
        let state = self.register(registers::STATUS_STATE)?.load(Ordering::Acquire);
        let magic = self.transport.registers().atomic_u64(registers::IDENTITY).trying("the identity")?;
        match (State::from_word(state), magic.load(Ordering::Relaxed)) {
            (Some(State::Idle), registers::MAGIC) => Ok(()),
            other => Err(Failure::new(format_args!("after a reset the NIC shows {other:x?}"))),
        }
    }

    /// Resets the NIC and starts it with an admin queue.
    pub fn start(&mut self, memory: &Memory, random: &mut Random) -> Result<(), Failure> {
        self.reset(random)?;
        (self.commands, self.responses, self.issued) =
            (memory.ring(random, Ring::Command), memory.payload(random), 0);
        let at = |offset: usize| self.register(registers::CONTROL + offset);
        at(offset_of!(Control, driver_version))?
            .store(u32::from(nic_abi::VERSION_MAJOR) << 16, Ordering::Relaxed);
        at(offset_of!(Control, admin_log_entries))?.store(ADMIN_LOG, Ordering::Relaxed);
        for (offset, bus) in [
            (offset_of!(Control, admin_commands), self.commands),
            (offset_of!(Control, admin_responses), self.responses),
        ] {
            at(offset)?.store(bus as u32, Ordering::Relaxed);
            at(offset + 4)?.store((bus >> 32) as u32, Ordering::Relaxed);
        }
        self.request(random, registers::CONTROL_START)
    }

    /// Where the driver writes its next command.
    fn next_command(&self) -> u64 {
        self.commands + u64::from(self.issued % (1 << ADMIN_LOG)) * admin::COMMAND_SIZE as u64
    }

    /// Posts a command. It waits a little for a free entry, and then writes it anyway.
    pub fn post(&mut self, memory: &Memory, command: &Command) -> Result<(), Failure> {
        let words: [u64; admin::COMMAND_SIZE / 8] = zerocopy::transmute!(*command);
        if let Some(before) = self.issued.checked_sub(1 << ADMIN_LOG) {
            let response = self.responses
                + u64::from(before % (1 << ADMIN_LOG)) * admin::RESPONSE_SIZE as u64
                + offset_of!(admin::Response, phase) as u64;
            let phase = nic_abi::cqe::phase(before, ADMIN_LOG);
            let begun = clock::now();
            while memory.word(response) & admin::PHASE != phase & admin::PHASE
                && self.register(registers::STATUS_STATE)?.load(Ordering::Relaxed) == State::Ready as u32
                && clock::now().since(begun) < PLACE
            {
                core::hint::spin_loop();
            }
        }
        memory.write(self.next_command(), &words);
        self.issued = self.issued.wrapping_add(1);
        self.ring(Kind::Admin, 0, self.issued)
    }

    /// Overwrites a word of the command ring, while the device reads it.
    pub fn spoil(&self, memory: &Memory, random: &mut Random) {
        let at = 8 * random.below(((admin::COMMAND_SIZE << ADMIN_LOG) / 8) as u64);
        memory.write(self.commands + at, &[crate::memory::beyond(random)]);
    }

    /// Stores a tail, and rings the doorbell if the queue is armed.
    pub fn ring(&self, kind: Kind, slot: u32, tail: u32) -> Result<(), Failure> {
        let records = match kind {
            Kind::Send => registers::SQ_RECORDS,
            Kind::Receive => registers::RQ_RECORDS,
            Kind::SharedReceive => registers::SRQ_RECORDS,
            Kind::Admin => registers::ADMIN_RECORD,
        };
        let record = doorbell::record(records, slot);
        self.register(record)?.store(tail, Ordering::Release);
        match self.register(record + 4)?.swap(0, Ordering::AcqRel) {
            1 => self.push(doorbell::entry(kind, slot, 0)),
            _ => Ok(()),
        }
    }

    /// Appends an entry to the FIFO, with the phase of its index.
    pub fn push(&self, entry: u32) -> Result<(), Failure> {
        let index = self.register(registers::FIFO_TAIL)?.fetch_add(1, Ordering::AcqRel);
        let place = registers::FIFO + (index % registers::FIFO_ENTRIES) as usize * 4;
        // The entry of kind and slot 0 is the phase alone.
        let phase = doorbell::entry(Kind::Send, 0, index);
        self.register(place)?.store(phase | entry & (u32::MAX >> 1), Ordering::Release);
        fence(Ordering::SeqCst);
        if self.register(registers::FIFO_EVENT)?.load(Ordering::SeqCst) == index {
            self.transport.kick();
        }
        Ok(())
    }
}
