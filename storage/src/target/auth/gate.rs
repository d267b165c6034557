//! What a queue lets pass, the commands Authentication Send and Receive, and their timers.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use nvme::auth::LONGEST_MESSAGE;
use nvme::command::{Command, opcode};
use nvme::fabrics::{AUTHENTICATION_REQUIRED, AuthenticationCommand, fctype};
use nvme::status::Status;
use platform::planted::{Bug, planted};
use zeroize::Zeroizing;

use super::hosts::{Host, Hosts, Seen};
use super::responder::{Given, Names, Responder};
use crate::target::commands::{Answer, Index, Stage};
use crate::target::control::Refusal;
use crate::target::controller::Controller;
use crate::target::identity::{ControllerId, Kind};
use crate::target::queue::{Queue, Role};
use crate::target::server::Target;
use crate::target::statistics::Counter;
use crate::target::task::Task;

/// The most bytes that a message may have, and its place. Linux has room for so many.
const MOST_BYTES: u32 = 4096;
/// How long the message that a host has failed may take to reach it, in nanoseconds.
const GOODBYE: u64 = 100_000_000;

const _: () = assert!(LONGEST_MESSAGE <= MOST_BYTES as usize);

impl Target {
    /// How long a host may take for its next message, in nanoseconds.
    fn patience(&self) -> u64 {
        self.config.authentication_timeout.as_nanos() as u64
    }

    /// Replaces the hosts.
    pub(in crate::target) fn set_hosts(&mut self, hosts: Vec<Host>) -> Result<(), Refusal> {
        let hosts = Hosts::new(hosts);
        if hosts.has_keys() && self.jobs.random().is_none() {
            return Err(Refusal::NoRandom);
        }
        let known = hosts.clone();
        self.everywhere(move |worker| worker.subsystem.know(known.clone()));
        self.subsystem.know(hosts);
        self.discovery_has_changed();
        Ok(())
    }

    /// A host asks for a controller: notes which namespaces it sees. Fails if too many controllers
    /// wait for their hosts to authenticate, since anybody may take a host's name.
    pub(in crate::target) fn admit_host(&mut self, controller: &mut Controller) -> Result<(), Answer> {
        for (place, namespace) in self.subsystem.namespaces.of_places() {
            let is_for = namespace.is_for(controller.subsystem, &controller.host.nqn);
            controller.visible.set(place, !is_for);
        }
        let Some(host) = self.subsystem.hosts.find(&controller.host.nqn) else { return Ok(()) };
        controller.visible.may_see(host.namespaces.clone());
        let is_unproven =
            |queue: &Queue| matches!(queue.role, Role::Admin(_, Kind::Io)) && !queue.gate.is_open();
        let unproven = self.queues.iter().filter(|(_, queue)| is_unproven(queue)).count();
        match host.key.is_some() && unproven >= (self.config.controllers / 2).max(1) {
            true => Err((Status::CONTROLLER_BUSY, 0)),
            false => Ok(()),
        }
    }

    /// The namespaces that a controller's host sees.
    pub(in crate::target) fn visible_to(&mut self, id: ControllerId) -> Seen {
        self.subsystem.controllers.get(id).map_or_else(Seen::default, |controller| controller.visible.clone())
    }

    /// The place of a namespace that a controller's host sees, which may be inactive.
    pub(in crate::target) fn seen_any(&mut self, id: ControllerId, nsid: u32) -> Option<usize> {
        let is_seen = self.subsystem.controllers.get(id)?.visible.has(nsid);
        self.subsystem.any_place(nsid).filter(|_| is_seen)
    }

    /// The place of an active namespace that a controller's host sees.
    pub(in crate::target) fn seen(&mut self, id: ControllerId, nsid: u32) -> Option<usize> {
        self.seen_any(id, nsid)?;
        self.subsystem.place(nsid)
    }

    /// A queue has been connected to a controller. Returns the bits that this adds to the result of
    /// the Connect.
    pub(in crate::target) fn require_authentication(&mut self, number: u32, host: &str) -> u64 {
        let has_key = self.subsystem.hosts.find(host).is_some_and(|host| host.key.is_some());
        let deadline = self.now() + self.patience();
        let Some(queue) = self.queues.get(number).filter(|_| has_key) else { return 0 };
        queue.gate.is_required = true;
        queue.gate.deadline = Some(deadline);
        AUTHENTICATION_REQUIRED
    }

    /// Decides about a command if that is a matter of authentication.
    pub(in crate::target) fn gate(
        &mut self,
        number: u32,
        command: &Command,
    ) -> Option<Result<(Task, usize), Answer>> {
        let queue = self.queues.get(number)?;
        let (is_open, is_required) = (queue.gate.is_open(), queue.gate.is_required);
        let is_of_authentication = command.opcode == opcode::FABRICS
            && matches!(command.fctype(), fctype::AUTHENTICATION_SEND | fctype::AUTHENTICATION_RECEIVE);
        if !is_of_authentication {
            let is_open = is_open || planted(Bug::IoUnproven) && matches!(queue.role, Role::Io(_));
            return (!is_open).then_some(Err((Status::AUTH_REQUIRED.dnr(), 0)));
        }
        if queue.role == Role::New {
            return None;
        }
        if !is_required {
            return Some(Err((Status::INVALID_OPCODE.dnr(), 0)));
        }
        self.hear_from(number);
        let asked = AuthenticationCommand::of(command);
        let len = asked.len.get();
        if !asked.is_for_hosts() || !(1..=MOST_BYTES).contains(&len) {
            return Some(Err((Status::INVALID_FIELD.dnr(), 0)));
        }
        let is_send = command.fctype() == fctype::AUTHENTICATION_SEND;
        let task = if is_send { Task::AuthenticationSend } else { Task::AuthenticationReceive };
        Some(Ok((task, len as usize)))
    }

    /// The controller of a queue has heard from its host, or the host waits for the controller.
    ///
    /// An I/O queue that has not authenticated may be an impostor's. It counts until the host has
    /// sent its first Keep Alive, which it does once its queues are connected.
    fn hear_from(&mut self, number: u32) {
        let now = self.clock;
        let Some(queue) = self.queues.get(number) else { return };
        let is_proved = queue.gate.was_passed || !matches!(queue.role, Role::Io(_));
        let Some((id, kind)) = queue.role.controller() else { return };
        if let Some(controller) = self.controller(id, kind)
            && (is_proved || !controller.keeps_alive())
        {
            controller.hear(now);
        }
    }

    /// Whether an Authentication Receive has to wait until its message is computed. It keeps no
    /// memory meanwhile.
    pub(in crate::target) fn receive_waits(&mut self, index: Index) -> bool {
        let entry = &self.commands[index];
        let Some(queue) = entry.queue.and_then(|number| self.queues.get(number)) else { return false };
        let waits = entry.task == Task::AuthenticationReceive
            && queue.gate.is_computing()
            && queue.gate.receive.is_none();
        if waits {
            queue.gate.receive = Some(index);
            self.commands[index].stage = Stage::Authentication;
        }
        waits
    }

    /// Carries out an Authentication Send, whose message is in its buffer.
    pub(in crate::target) fn authentication_send(&mut self, index: Index) -> Answer {
        let wrong = (Status::INVALID_FIELD.dnr(), 0);
        let mut message = Zeroizing::new([0; MOST_BYTES as usize]);
        let entry = &self.commands[index];
        let message = &mut message[..entry.buffer.len().min(MOST_BYTES as usize)];
        self.admin_pool_of(index).read(&entry.buffer, message);
        let (Some(number), Some(random)) = (entry.queue, self.jobs.random().cloned()) else { return wrong };
        let Some((host, subsystem)) = self.names_of(number) else { return wrong };
        let patience = self.patience();
        let now = self.clock;
        let Some(queue) = self.queues.get(number) else { return wrong };
        if queue.gate.responder.is_none() {
            // The keys that hold when a transaction begins hold until it ends.
            let keys = self.subsystem.hosts.find(&host).and_then(|host| host.keys(&subsystem));
            let sequence = queue.gate.sequence.or_else(|| random.sequence());
            let (Some(keys), Some(sequence)) = (keys, sequence) else { return wrong };
            queue.gate.sequence = Some(sequence.wrapping_add(1).max(1));
            queue.gate.responder = Some(Box::new(Responder::new(keys, sequence)));
        }
        let Some(responder) = &mut queue.gate.responder else { return wrong };
        let names = Names { host: &host, subsystem: &subsystem };
        let job = responder.take(message, &random, names);
        queue.gate.extend(now + patience);
        if let Some(job) = job {
            self.jobs.add((number, queue.endpoint.id()), job);
        }
        self.follow_outcome(number, &host);
        (Status::SUCCESS, 0)
    }

    /// Carries out an Authentication Receive: fills its buffer with the next message, and zeros
    /// behind it.
    pub(in crate::target) fn authentication_receive(&mut self, index: Index) -> Answer {
        let entry = &self.commands[index];
        let (len, number) = (entry.buffer.len().min(MOST_BYTES as usize), entry.queue);
        let out_of_turn = (Status::SEQUENCE_ERROR.dnr(), 0);
        let Some(number) = number else { return out_of_turn };
        let Some((host, _)) = self.names_of(number) else { return out_of_turn };
        let (now, patience) = (self.clock, self.patience());
        let Some(queue) = self.queues.get(number) else { return out_of_turn };
        let Some(responder) = &mut queue.gate.responder else { return out_of_turn };
        let mut message = [0; MOST_BYTES as usize];
        match responder.give(&mut message[..len]) {
            Given::Message(_) => {}
            Given::Nothing => return out_of_turn,
            Given::NoRoom => return (Status::INVALID_FIELD.dnr(), 0),
        }
        queue.gate.extend(now + patience);
        self.admin_pool_of(index).write(&self.commands[index].buffer, 0, &message[..len]);
        self.follow_outcome(number, &host);
        (Status::SUCCESS, 0)
    }

    /// A job of a queue is done.
    pub(super) fn computed(&mut self, number: u32, endpoint: u64, result: Option<Zeroizing<Box<[u8]>>>) {
        let Some((host, subsystem)) = self.names_of(number) else { return };
        let (now, patience) = (self.clock, self.patience());
        let Some(queue) = self.queues.get(number) else { return };
        // The queue has ended otherwise, and its number is another one's.
        let is_same = queue.endpoint.id() == endpoint && !queue.is_ending;
        let Some(responder) = queue.gate.responder.as_mut().filter(|_| is_same) else { return };
        responder.computed(result, Names { host: &host, subsystem: &subsystem });
        queue.gate.extend(now + patience);
        let receive = queue.gate.receive.take();
        self.hear_from(number);
        self.follow_outcome(number, &host);
        if let Some(index) = receive {
            self.begin(index);
        }
    }

    /// Draws the consequences of what a transaction has come to.
    fn follow_outcome(&mut self, number: u32, host: &str) {
        let now = self.clock;
        let Some(queue) = self.queues.get(number) else { return };
        let Some(responder) = &queue.gate.responder else { return };
        if let Some(reason) = responder.failure() {
            if responder.outcome().is_some() {
                queue.gate.shorten(now + GOODBYE);
            }
            queue.gate.is_passed = false;
            if !core::mem::replace(&mut queue.gate.has_failed, true) {
                self.statistics().count(Counter::NotAuthenticated);
                self.said_refused.say(now, format_args!("{host} has not authenticated: {reason}"));
            }
            return;
        }
        if responder.outcome() == Some(Ok(())) {
            (queue.gate.is_passed, queue.gate.was_passed) = (true, true);
            queue.gate.responder = None;
            queue.gate.deadline = None;
            let (id, placement) = (queue.id, queue.placement);
            self.has_proved(placement);
            self.statistics().count(Counter::Authenticated);
            log::info!("{host} has authenticated on queue {id}");
        }
    }

    /// The names of a queue's host and subsystem.
    fn names_of(&mut self, number: u32) -> Option<(heapless::String<256>, String)> {
        let (id, kind) = self.queues.get(number).and_then(|queue| queue.role.controller())?;
        let controller = self.controller(id, kind)?;
        let (host, subsystem) = (controller.host.nqn.clone(), controller.subsystem);
        Some((host, self.subsystem.nqn(subsystem).into()))
    }

    /// Ends the connections of hosts that have failed, or are silent in the middle. To be called at
    /// each tick of the timer.
    pub(in crate::target) fn look_at_gates(&mut self, now: u64) {
        let mut late: heapless::Vec<u32, 16> = heapless::Vec::new();
        for number in 0..self.config.queues as u32 {
            let Some(queue) = self.queues.get(number).filter(|queue| !queue.is_ending) else { continue };
            let Some(deadline) = queue.gate.deadline else { continue };
            // What the target computes is not the host's fault.
            if now > deadline && !queue.gate.is_computing() {
                // Those for which there is no place here come in the next tick.
                let _ = late.push(number);
            } else {
                self.hear_from(number);
            }
        }
        for number in late {
            let Some(queue) = self.queues.get(number) else { continue };
            // A host that had authenticated and fails to do so again loses its controller. A queue
            // that never has ends alone: it may be an impostor's.
            let lost = queue.role.controller().filter(|_| queue.gate.was_passed);
            if !queue.gate.has_failed {
                self.statistics().count(Counter::NotAuthenticated);
                self.said_refused.say(
                    now,
                    format_args!("a host that does not go on to authenticate loses its connection"),
                );
            }
            self.break_queue(number);
            if let Some((id, kind)) = lost {
                self.break_controller(id, kind);
            }
        }
    }
}
