//! Connections of hosts: how they begin and how they end.

use nvme::private_data::{Accept, Reject, RejectCode, Request};
use privileged_api::{ConnRequest, EpAttributes, EpFlags, RcAttributes};
use zerocopy::IntoBytes;

use alloc::string::ToString;
use core::net::IpAddr;

use super::commands::Stage;
use super::controller::Kind;
use super::pool::MOST_CHUNKS;
use super::queue::{Queue, Role};
use super::server::Target;
use super::statistics::Counter;
use super::subsystem::ControllerId;
use crate::Error;
use crate::net;

/// The most entries of an admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// How long a host may take from the connection to the Connect command, in nanoseconds.
pub(super) const PATIENCE: u64 = 10_000_000_000;
/// RDMA Reads of a connection that may be outstanding.
const READS: u32 = 16;

impl Target {
    /// A host asks for a connection.
    pub(super) fn request(&mut self, request: &ConnRequest) {
        if let Err(code) = self.accept(request) {
            let (now, from) = (self.clock, net::ip(&request.source_addr));
            let from = from.map_or("a host".into(), |address| address.to_string());
            self.said_refused.say(now, format_args!("a connection of {from} was refused: {code}"));
            // Fails only if the host has given up.
            let _ = self.ia.reject(request.cn_est_id, Reject::new(code).as_bytes());
        }
    }

    fn accept(&mut self, request: &ConnRequest) -> Result<(), RejectCode> {
        if self.is_stopping {
            return Err(RejectCode::NoResources);
        }
        let data = request.private_data.as_ref().map_or(&[][..], |data| data.as_slice());
        let asked = Request::parse(data)?;
        let (id, size) = (asked.qid.get(), u32::from(asked.hsqsize.get()) + 1);
        let most = if id == 0 { ADMIN_ENTRIES } else { self.config.depth };
        if size > u32::from(most) || size < 2 {
            return Err(RejectCode::InvalidHsqsize);
        }
        if asked.hrqsize.get() == 0 {
            return Err(RejectCode::InvalidHrqsize);
        }
        if id > self.config.io_queues {
            return Err(RejectCode::InvalidQid);
        }
        // Without RDMA Reads, data to write could come in capsules only.
        if request.rdma_read_ird == 0 {
            return Err(RejectCode::InvalidIrd);
        }
        let address = net::ip(&request.source_addr);
        if !self.has_room_for_stranger(address) {
            return Err(RejectCode::NoResources);
        }
        let size = size as u16;
        let entries = 2 * usize::from(size);
        let number = self.queues.free().ok_or(RejectCode::NoResources)?;
        // What ended queues have left to disks may keep a Receive each, of which there are half as
        // many as entries.
        if self.promised + 2 * self.commands.orphans() + entries > self.commands.count() {
            return Err(RejectCode::NoResources);
        }
        let attributes = EpAttributes {
            max_dto_payload_size: 1 << 20,
            // A command has an RDMA Write and a Send, and an earlier one may not be complete yet.
            max_request_dtos: 2 * entries,
            max_recv_dtos: 0,
            max_send_segments: 1,
            max_recv_segments: 0,
            rc: RcAttributes {
                max_rdma_read_segments: MOST_CHUNKS,
                max_rdma_write_segments: MOST_CHUNKS,
                rdma_read_ird: 0,
                rdma_read_ord: request.rdma_read_ird.min(READS),
                srq: self.receives.srq,
                ..RcAttributes::default()
            },
            priv_ops_enable: true,
            ..EpAttributes::default()
        };
        let (requests, receives, messages) = (self.requests, self.receives_evd, self.messages);
        let created = self.ia.ep_rc_create(self.pz, requests, receives, messages, EpFlags::SRQ, &attributes);
        let ep = created.map_err(|error| {
            log::warn!("no endpoint for a host: {error}");
            RejectCode::NoResources
        })?;
        let deadline = self.now() + PATIENCE;
        self.queues.put(number, Queue::new(ep, id, size, address, deadline));
        self.by_ep.insert(ep.as_raw(), number);
        self.promised += entries;
        if let Err(error) = self.ia.ep_accept(ep, request.cn_est_id, Accept::new(size).as_bytes()) {
            log::info!("a connection could not be accepted: {error}");
            self.forget(number);
            return Err(RejectCode::NoResources);
        }
        // The connection first: a thread that sees that it was accepted also sees that it is there.
        self.count();
        self.statistics().count(Counter::Accepted);
        Ok(())
    }

    /// Whether another connection without an I/O controller may come from an address. Any host can
    /// have such a connection, one that may not use the subsystem, too: so all of them together
    /// have half of the queues, and those of one address a quarter, or as many as a host opens at
    /// once.
    fn has_room_for_stranger(&self, address: Option<IpAddr>) -> bool {
        let strangers = || self.queues.iter().filter(|(_, queue)| queue.is_stranger());
        let of_address = strangers().filter(|(_, queue)| queue.address == address).count();
        let at_once = usize::from(self.config.io_queues) + 1;
        strangers().count() < (self.config.queues / 2).max(at_once)
            && of_address < (self.config.queues / 4).max(at_once)
    }

    /// A connection is established. Commands may have come before.
    pub(super) fn established(&mut self, ep: u64) {
        let Some(&number) = self.by_ep.get(&ep) else { return };
        let Some(queue) = self.queues.get(number) else { return };
        queue.is_established = true;
        let mut waiting = core::mem::take(&mut self.ending);
        waiting.extend(self.commands.of_queue(number));
        for index in waiting.drain(..) {
            match self.commands[index].stage {
                Stage::ConnectionToFetch => self.fetch(index),
                Stage::ConnectionToAnswer => self.answer(index),
                _ => {}
            }
        }
        self.ending = waiting;
    }

    /// Disconnects a queue. The rest happens when the event of the connection's end comes.
    pub(super) fn break_queue(&mut self, number: u32) {
        let Some(queue) = self.queues.get(number) else { return };
        if queue.is_ending {
            return;
        }
        queue.is_ending = true;
        let ep = queue.ep;
        self.leave_queue(number);
        // Fails if the connection is over already: then its event is queued.
        let _ = self.ia.ep_disconnect(ep, &[]);
    }

    /// Disconnects the I/O queues of a controller.
    pub(super) fn break_io_queues(&mut self, id: ControllerId) {
        for number in 0..self.config.queues as u32 {
            if self.queues.get(number).is_some_and(|queue| queue.role == Role::Io(id)) {
                self.break_queue(number);
            }
        }
    }

    /// A connection is over: frees its endpoint, and ends its commands.
    pub(super) fn ended(&mut self, ep: u64) -> Result<(), Error> {
        let Some(&number) = self.by_ep.get(&ep) else { return Ok(()) };
        if let Some(queue) = self.queues.get(number)
            && !core::mem::replace(&mut queue.is_ending, true)
        {
            // The host has ended it, or vanished.
            queue.is_established = false;
            self.leave_queue(number);
        }
        // The endpoint takes no more Receives of the shared queue. Those that it took are complete
        // by now; freeing the endpoint would lose them.
        for _ in 0..=self.config.commands / 2 {
            if !self.take_capsules()? {
                break;
            }
        }
        self.forget(number);
        Ok(())
    }

    /// Frees a queue. Its commands end, but for those that a disk or a waiting list still names.
    fn forget(&mut self, number: u32) {
        let Some(queue) = self.queues.remove(number) else { return };
        self.by_ep.remove(&queue.ep.as_raw());
        // When this returns, the NIC reaches no memory of the queue's commands. It fails only if
        // the IA is dead.
        let _ = self.ia.ep_free(queue.ep);
        self.promised -= 2 * usize::from(queue.size);
        let (mut entries, mut waited) = (core::mem::take(&mut self.ending), false);
        entries.extend(self.commands.of_queue(number));
        for index in entries.drain(..) {
            self.commands.orphan(index);
            let stage = self.commands[index].stage;
            waited |= stage == Stage::Earlier;
            if matches!(stage, Stage::Memory | Stage::Room) {
                // Its turn frees it.
                self.let_have_turn(index);
            } else if stage != Stage::Disk {
                self.finish(index);
            }
        }
        self.ending = entries;
        if waited {
            self.forget_waiting_for_earlier();
        }
        // A reset waits for the end of its queues.
        self.may_settle = true;
        match queue.role {
            Role::New => {}
            Role::Io(id) => {
                if let Some(controller) = self.subsystem.controllers.get(id) {
                    controller.disconnect(queue.id);
                }
            }
            Role::Admin(id, Kind::Io) => {
                if let Some(controller) = self.subsystem.controllers.remove(id) {
                    log::info!("controller {}: {} has left", id.0, controller.host.nqn);
                }
                self.break_io_queues(id);
            }
            Role::Admin(id, Kind::Discovery) => _ = self.discovery.remove(id),
        }
        self.count();
    }
}
