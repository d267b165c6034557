//! Connections of hosts: how they begin and how they end.

use nvme::private_data::{Accept, Reject, RejectCode, Request};
use rdma::Incoming;
use zerocopy::IntoBytes;

use core::net::IpAddr;

use super::commands::Stage;
use super::config::{ADMIN_ENTRIES, commands_of_queue};
use super::crew::MANAGER;
use super::identity::{ControllerId, Kind};
use super::pool::MOST_PIECES;
use super::port::Port;
use super::queue::{Queue, Role};
use super::server::Target;
use super::statistics::Counter;
use crate::Error;

/// How long a host may take from the connection to the Connect command, in nanoseconds.
pub(super) const PATIENCE: u64 = 10_000_000_000;
/// RDMA Reads of a connection that may be outstanding.
const READS: u8 = 16;

impl Target {
    /// A host asks for a connection at a port.
    pub(super) fn request(&mut self, port: usize, incoming: Incoming) {
        let asked = self.check(&incoming);
        if let Ok((id, size)) = asked
            && id > 0
            && let Some(worker) = self.worker_for(commands_of_queue(size))
        {
            return self.hand_over((worker, port), incoming, (id, size));
        }
        self.accept(port, incoming, asked, 0);
    }

    /// Accepts or refuses a connection. `asked` is the queue's number at the host, and its size;
    /// `placement` is not 0 if this is a worker. False if there is no connection.
    pub(super) fn accept(
        &mut self,
        port: usize,
        incoming: Incoming,
        asked: Result<(u16, u16), RejectCode>,
        placement: u64,
    ) -> bool {
        let from = incoming.from();
        let admitted = asked.and_then(|(id, size)| self.admit(port, &incoming, id, size));
        let number = match admitted {
            Ok(number) => number,
            Err(code) => {
                let now = self.clock;
                self.refused.count(code as u16);
                self.said_refused.say(now, format_args!("a connection of {from} was refused: {code}"));
                // Fails only if the host has given up.
                let _ = incoming.reject(Reject::new(code).as_bytes());
                return false;
            }
        };
        let Some(queue) = self.queues.get(number) else { return false };
        let accept = Accept::new(queue.size);
        if let Err(error) = incoming.accept_with(&queue.endpoint, accept.as_bytes()).begun() {
            log::info!("a connection could not be accepted: {error}");
            self.forget(number);
            return false;
        }
        // From here on its end tells the manager.
        queue.placement = placement;
        // The connection first: a thread that sees that it was accepted also sees that it is there.
        self.count();
        self.statistics().count(Counter::Accepted);
        true
    }

    /// Checks what a host asks for: returns the queue's number at the host, and its size.
    fn check(&self, incoming: &Incoming) -> Result<(u16, u16), RejectCode> {
        if self.is_stopping {
            return Err(RejectCode::NoResources);
        }
        // A message of the connection manager has zeros where the sender wrote nothing.
        let data = incoming.private_data();
        let asked = if data.iter().all(|&byte| byte == 0) { &[] } else { data };
        let asked = Request::parse(asked)?;
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
        if incoming.reads() == 0 {
            return Err(RejectCode::InvalidIrd);
        }
        let is_full = self.count_of_queues() >= self.config.queues;
        if is_full || !self.has_room_for_stranger(incoming.from().to_ip()) {
            return Err(RejectCode::NoResources);
        }
        Ok((id, size as u16))
    }

    /// Makes a queue for a host that asks for a connection; returns its number.
    fn admit(&mut self, port: usize, incoming: &Incoming, id: u16, size: u16) -> Result<u32, RejectCode> {
        if self.is_stopping || self.ports[port].ended.is_some() {
            return Err(RejectCode::NoResources);
        }
        let address = incoming.from().to_ip();
        let entries = commands_of_queue(size);
        let number = self.queues.free().ok_or(RejectCode::NoResources)?;
        // What ended queues have left to disks may keep a Receive each, of which there are half as
        // many as entries.
        if self.promised + 2 * self.commands.orphans() + entries > self.commands.count() {
            return Err(RejectCode::NoResources);
        }
        let Port { domain, requests, arrivals, receives, .. } = &self.ports[port];
        let endpoint = domain.endpoint().segments(MOST_PIECES as u32).privileged(self.privileged);
        // A command has an RDMA Write and a Send, and an earlier one may not be complete yet.
        let endpoint = endpoint.sends(2 * entries as u32).reads(READS).served_reads(0).posted_only();
        let endpoint = endpoint.queue(requests).receive_queue(arrivals).shared(receives);
        let endpoint = endpoint.watch(self.shared.attention.connection_waker()).build().map_err(|error| {
            log::warn!("no endpoint for a host: {error}");
            RejectCode::NoResources
        })?;
        let deadline = self.now() + PATIENCE;
        self.by_endpoint.insert(endpoint.id(), number);
        self.queues.put(number, Queue::new(endpoint, port, id, size, address, deadline));
        self.promised += entries;
        Ok(number)
    }

    /// Whether another connection without an I/O controller may come from an address. Any host can
    /// have such a connection, one that may not use the subsystem, too: so all of them together
    /// have half of the queues, and those of one address a quarter, or as many as a host opens at
    /// once.
    fn has_room_for_stranger(&self, address: IpAddr) -> bool {
        let strangers = || self.queues.iter().filter(|(_, queue)| queue.is_stranger());
        let of_address = strangers().filter(|(_, queue)| queue.address == address).count();
        let at_once = usize::from(self.config.io_queues) + 1;
        let of_address = of_address + self.placed_strangers(Some(address));
        strangers().count() + self.placed_strangers(None) < (self.config.queues / 2).max(at_once)
            && of_address < (self.config.queues / 4).max(at_once)
    }

    /// Looks what has become of the connections. True if something has.
    pub(super) fn look_at_connections(&mut self) -> bool {
        let mut worked = false;
        for number in 0..self.config.queues as u32 {
            let Some(queue) = self.queues.get(number) else { continue };
            if queue.endpoint.is_closed() {
                self.ended(number);
            } else if !queue.is_established && queue.endpoint.is_connected() {
                self.established(number);
            } else {
                continue;
            }
            worked = true;
        }
        worked
    }

    /// A connection is established. Commands may have come before.
    fn established(&mut self, number: u32) {
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

    /// Disconnects a queue. The rest happens when the connection has ended.
    pub(super) fn break_queue(&mut self, number: u32) {
        let Some(queue) = self.queues.get(number) else { return };
        if queue.is_ending {
            return;
        }
        queue.is_ending = true;
        queue.endpoint.disconnect();
        self.leave_queue(number);
    }

    /// Disconnects some queues.
    pub(super) fn break_queues(&mut self, which: impl Fn(&Queue) -> bool) {
        for number in 0..self.config.queues as u32 {
            if self.queues.get(number).is_some_and(|queue| which(queue)) {
                self.break_queue(number);
            }
        }
    }

    /// Disconnects all queues of a controller.
    pub(super) fn break_controller(&mut self, id: ControllerId, kind: Kind) {
        self.break_queues(|queue| queue.is_of(id, kind));
        match self.crew.is_manager() {
            true => self.crew.send_all(move |worker| worker.break_queues(|queue| queue.is_of(id, kind))),
            false => _ = self.crew.send(MANAGER, move |manager| manager.break_controller(id, kind)),
        }
    }

    /// Disconnects the I/O queues of a controller.
    pub(super) fn break_io_queues(&mut self, id: ControllerId) {
        self.break_queues(|queue| queue.role == Role::Io(id));
        self.crew.send_all(move |worker| worker.break_queues(|queue| queue.role == Role::Io(id)));
    }

    /// A connection is over: frees its endpoint, and ends its commands.
    pub(super) fn ended(&mut self, number: u32) {
        if let Some(queue) = self.queues.get(number)
            && !core::mem::replace(&mut queue.is_ending, true)
        {
            // The host has ended it, or vanished.
            queue.is_established = false;
            self.leave_queue(number);
        }
        self.forget(number);
    }

    /// Frees a queue. Its commands end, but for those that a disk or a waiting list still names.
    fn forget(&mut self, number: u32) {
        let Some(queue) = self.queues.remove(number) else { return };
        self.by_endpoint.remove(&queue.endpoint.id());
        self.jobs.forget((number, queue.endpoint.id()));
        let Queue { endpoint, port, size, role, id, owner, carried, placement, .. } = queue;
        // When this returns, the NIC reaches no memory of the queue's commands, unless it is dead.
        // Capsules that came before are among the next completions.
        drop(endpoint);
        let is_dead = self.ports[port].nic.is_dead();
        if placement == 0 {
            self.hosts.add(owner, &carried);
        }
        self.promised -= commands_of_queue(size);
        let (mut entries, mut waited) = (core::mem::take(&mut self.ending), false);
        entries.extend(self.commands.of_queue(number));
        for index in entries.drain(..) {
            self.commands.orphan(index);
            let stage = self.commands[index].stage;
            waited |= stage == Stage::Earlier;
            if is_dead && matches!(stage, Stage::Data | Stage::Response) {
                // The disk lends this memory for ever.
                self.commands[index].lease = None;
            }
            if matches!(stage, Stage::Memory | Stage::Room | Stage::Turn | Stage::Held) {
                // Its turn frees it.
                self.let_have_turn(index);
            } else if !matches!(stage, Stage::Disk | Stage::Reservation) {
                self.finish(index);
            }
        }
        self.ending = entries;
        if waited {
            self.forget_waiting_for_earlier();
        }
        // A reset waits for the end of its queues.
        self.may_settle = true;
        match role {
            // Behind the messages about what it has left to disks.
            _ if placement != 0 => self.tell_end(placement, role, owner, carried),
            Role::New => {}
            Role::Io(controller) => {
                if let Some(controller) = self.subsystem.controllers.get(controller) {
                    controller.disconnect(id);
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
        if is_dead {
            self.end_port(port, Error::DeviceDead);
        }
    }
}
