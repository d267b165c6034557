//! The control page's handshake, and the heartbeat.

use core::mem::offset_of;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

use nic_abi::admin::{COMMAND_SIZE, QpState, RESPONSE_SIZE};
use nic_abi::registers::{
    ADMIN_RECORD, CONTROL, CONTROL_REQUEST, CONTROL_RESET, CONTROL_START, Control, FIFO_TAIL, Fault,
    HEARTBEAT_MS, IDENTITY, Identity, SIZE, STATUS, STATUS_FAULT, STATUS_HEARTBEAT, State, Status,
};
use platform::Instant;
use zerocopy::IntoBytes;

use crate::Frontend;
use crate::admin::command::AdminQueue;
use crate::keys::Keys;
use crate::limits::{self, RING_ALIGN};
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::node::Node;
use crate::schedule::Schedule;
use crate::tables::Table;
use crate::test_commands::faults::Mute;

/// Units of work of a reset, which releases all objects: more than a poll's budget.
const RESET_WORK: u32 = 1 << 16;

/// The heartbeat's period: half of what the data sheet promises.
const BEAT: Duration = Duration::from_millis(HEARTBEAT_MS / 2);

impl<F: Frontend> Nic<F> {
    /// Whether there is a control request. A mute device takes none but a reset, and if it is mute
    /// for good not even that.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.register(CONTROL_REQUEST).load(Ordering::Acquire) != self.acknowledged
            && match self.mute {
                Mute::No => true,
                Mute::UntilReset => self.control_word(offset_of!(Control, command)) == CONTROL_RESET,
                Mute::ForGood => false,
            }
    }

    fn control_word(&self, offset: usize) -> u32 {
        self.register(CONTROL + offset).load(Ordering::Relaxed)
    }

    fn control_address(&self, offset: usize) -> u64 {
        u64::from(self.control_word(offset)) | u64::from(self.control_word(offset + 4)) << 32
    }

    /// Forgets everything, and restores the register file except the control page.
    fn reset(&mut self, now: Instant) {
        self.forget(now);
        self.mute = Mute::No;
        self.reset_port(now);
        self.fifo_head = 0;
        self.clear_registers(FIFO_TAIL, SIZE);
        self.identify();
        self.register(STATUS_FAULT).store(Fault::None as u32, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Forgets all objects that the driver created. What is left of streams that were closed needs
    /// no driver.
    fn forget(&mut self, now: Instant) {
        self.state = State::Idle;
        self.admin = None;
        self.eqs = Table::new();
        self.pds = Table::new();
        self.keys = Keys::new();
        self.cqs = Table::new();
        self.srqs = Table::new();
        while let Some(gid) = self.groups.pop() {
            self.end_group(gid);
        }
        self.failures.clear();
        self.copies.clear();
        self.drop_management = 0;
        self.held = false;
        self.bench = None;
        self.waiting.clear();
        if let Some(streams) = &mut self.streams {
            streams.clear(now);
        }
        let is_leaving = self.is_leaving();
        if let Some(uplink) = &mut self.uplink {
            uplink.held.clear();
            uplink.port.take_segments(is_leaving);
        }
    }

    /// Writes the identity, and clears the rest of the device's own pages: a driver can write
    /// there, and what an earlier one wrote must not hide the NIC from the next.
    pub fn identify(&self) {
        let identity = limits::identity(&self.config, &self.gids);
        // The register file was checked when the NIC was added.
        let _ = self.frontend.registers().write(IDENTITY, identity.as_bytes());
        self.clear_registers(IDENTITY + size_of::<Identity>(), STATUS);
        self.clear_registers(STATUS + size_of::<Status>(), CONTROL);
    }

    /// Clears the registers from one offset to another.
    fn clear_registers(&self, from: usize, to: usize) {
        if let Ok(registers) = self.frontend.registers().get(from, to - from) {
            registers.fill(0);
        }
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
        if let Some(uplink) = &mut self.uplink {
            uplink.port.take_segments(true);
        }
        if let Some(streams) = &mut self.streams {
            streams.start();
        }
    }

    /// Changes the heartbeat when it is due. An event about the port that waits is looked after as
    /// often.
    pub fn beat(&mut self, now: Instant) {
        if self.mute == Mute::No && now >= self.next_beat {
            self.heartbeat = self.heartbeat.wrapping_add(1);
            self.next_beat = now + BEAT;
            self.register(STATUS_HEARTBEAT).store(self.heartbeat, Ordering::Release);
            self.report_port();
        }
    }
}

impl<F: Frontend> Node<F> {
    /// Carries out and acknowledges a control request, if there is one.
    #[inline]
    pub fn control(&mut self, schedule: &mut Schedule) {
        if self.nic.is_requested() {
            self.carry_out_request(schedule);
        }
    }

    #[cold]
    fn carry_out_request(&mut self, schedule: &mut Schedule) {
        let nic = &mut self.nic;
        schedule.charge(1);
        nic.acknowledged = nic.register(CONTROL_REQUEST).load(Ordering::Acquire);
        match nic.control_word(offset_of!(Control, command)) {
            CONTROL_RESET => {
                schedule.charge(RESET_WORK);
                self.reset(schedule);
            }
            CONTROL_START => nic.start(),
            // An unknown command is acknowledged and changes nothing, which the state shows.
            _ => {}
        }
        // The acknowledgement is the last word that is written: all DMA of before a reset has
        // ended.
        self.nic.show_status();
    }

    /// Ends the NIC for good: it forgets all objects, and hears nothing any more but what ends its
    /// streams.
    pub fn power_off(&mut self, schedule: &mut Schedule) {
        self.abandon_streams(schedule);
        self.nic.forget(schedule.now);
        self.nic.mute = Mute::ForGood;
        self.forget_qps(schedule);
    }

    /// Forgets all objects. The streams are taken back before, while there is somebody to name
    /// them.
    fn reset(&mut self, schedule: &mut Schedule) {
        self.abandon_streams(schedule);
        self.nic.reset(schedule.now);
        self.forget_qps(schedule);
    }

    /// As after power-on.
    pub fn power_cycle(&mut self, schedule: &mut Schedule) {
        self.reset(schedule);
        self.nic.clear_registers(CONTROL, FIFO_TAIL);
        self.nic.acknowledged = 0;
        self.nic.show_status();
    }

    /// Takes the streams back from the queue pairs whose drivers have disconnected them, so that
    /// they end in good order.
    fn abandon_streams(&mut self, schedule: &Schedule) {
        for qp in self.qps.iter_mut().filter(|qp| qp.state == QpState::Error) {
            qp.abandon_stream(&mut self.nic, schedule.now);
        }
    }

    fn forget_qps(&mut self, schedule: &mut Schedule) {
        schedule.remove_nic(self.nic.id);
        self.qps = Table::new();
    }
}
