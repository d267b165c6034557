//! The control page's handshake, and the heartbeat.

use core::mem::offset_of;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

use nic_abi::admin::{COMMAND_SIZE, RESPONSE_SIZE};
use nic_abi::registers::{
    ADMIN_RECORD, CONTROL, CONTROL_REQUEST, CONTROL_RESET, CONTROL_START, Control, FIFO_TAIL, Fault,
    HEARTBEAT_MS, SIZE, STATUS_FAULT, STATUS_HEARTBEAT, State,
};
use platform::Instant;

use crate::Frontend;
use crate::admin::AdminQueue;
use crate::keys::Keys;
use crate::memory::GuestMemory;
use crate::nic::{Mute, Nic};
use crate::tables::Table;

/// Twice as often as promised.
const BEAT: Duration = Duration::from_millis(HEARTBEAT_MS / 2);
/// Alignment of every ring.
pub(crate) const RING_ALIGN: u64 = 64;

/// What a control request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Reset,
    Start,
    Unknown,
}

impl<F: Frontend> Nic<F> {
    /// Whether the driver asks for something by the control page. A mute device hears a reset and nothing else, or
    /// not even that.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.register(CONTROL_REQUEST).load(Ordering::Acquire) != self.acknowledged
            && match self.mute {
                Mute::No => true,
                Mute::UntilReset => self.control_word(offset_of!(Control, command)) == CONTROL_RESET,
                Mute::ForGood => false,
            }
    }

    /// Carries out a control request, if there is one. Says which, so that the fabric can forget what it holds of this
    /// NIC; only after that may [`Nic::show_status`] acknowledge it.
    pub fn control(&mut self) -> Option<Request> {
        if !self.is_requested() {
            return None;
        }
        let request = self.register(CONTROL_REQUEST).load(Ordering::Acquire);
        self.acknowledged = request;
        match self.control_word(offset_of!(Control, command)) {
            CONTROL_RESET => {
                self.reset();
                Some(Request::Reset)
            }
            CONTROL_START if self.mute == Mute::No => {
                self.start();
                Some(Request::Start)
            }
            // Acknowledged, and nothing else: the state shows that nothing happened.
            _ => Some(Request::Unknown),
        }
    }

    fn control_word(&self, offset: usize) -> u32 {
        self.register(CONTROL + offset).load(Ordering::Relaxed)
    }

    fn control_address(&self, offset: usize) -> u64 {
        u64::from(self.control_word(offset)) | u64::from(self.control_word(offset + 4)) << 32
    }

    /// Forgets everything and clears what the driver may write, but for the control page.
    fn reset(&mut self) {
        self.state = State::Idle;
        self.mute = Mute::No;
        self.port_up = true;
        self.fifo_head = 0;
        self.admin = None;
        self.eqs = Table::new();
        self.pds = Table::new();
        self.keys = Keys::new();
        self.cqs = Table::new();
        self.srqs = Table::new();
        self.qps = Table::new();
        self.failed_cqs.clear();
        self.drop_management = 0;
        self.bench = None;
        if let Ok(rest) = self.frontend.registers().get(FIFO_TAIL, SIZE - FIFO_TAIL) {
            rest.fill(0);
        }
        self.register(STATUS_FAULT).store(Fault::None as u32, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Starts the admin queue that the control page describes.
    fn start(&mut self) {
        if self.state != State::Idle {
            return;
        }
        let major = self.control_word(offset_of!(Control, driver_version)) >> 16;
        let log = self.control_word(offset_of!(Control, admin_log_entries));
        let commands = self.control_address(offset_of!(Control, admin_commands));
        let responses = self.control_address(offset_of!(Control, admin_responses));
        let memory = self.frontend.memory();
        let reachable = |ring: u64, size: usize| {
            ring.is_multiple_of(RING_ALIGN) && memory.get(ring, (size as u64) << log).is_ok()
        };
        let fits = major == u32::from(nic_abi::VERSION_MAJOR)
            && (1..=8).contains(&log)
            && reachable(commands, COMMAND_SIZE)
            && reachable(responses, RESPONSE_SIZE);
        if !fits {
            return self.fail(Fault::AdminQueue);
        }
        self.admin = Some(AdminQueue::new(commands, responses, log));
        self.init_record(ADMIN_RECORD, 0, 1);
        self.state = State::Ready;
    }

    /// Shows that the device lives, when it is time.
    pub fn beat(&mut self, now: Instant) {
        if self.mute == Mute::No && now >= self.next_beat {
            self.heartbeat = self.heartbeat.wrapping_add(1);
            self.next_beat = now + BEAT;
            self.register(STATUS_HEARTBEAT).store(self.heartbeat, Ordering::Release);
        }
    }
}
