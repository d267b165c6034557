//! Reservations: hosts that share a namespace say which of them may use it.
//!
//! | file | subject |
//! |---|---|
//! | `engine` | the rules, without I/O |
//! | `order` | what a command asks for |
//! | `notices` | what a controller's host is told |
//! | `state` | what persists, as bytes |
//! | `store` | the disk on which it persists |
//! | `testing` | one namespace's alone, for fuzzing |
//!
//! One command that changes something is carried out at a time, of all namespaces. If what it
//! changes persists, it is written and flushed before the change takes effect and the host gets its
//! response. The response to an Acquire also waits for the requests that the disk has then: when
//! the host has it, no write of a host that may not write follows. Commands that come later, or
//! whose data were still fetched, are checked when the disk gets them.

pub(super) mod engine;
pub(super) mod notices;
pub(super) mod order;
mod state;
mod store;
#[cfg(feature = "testing")]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use block::Fault;
use nvme::async_event::Event;
use nvme::command::Command;
use nvme::feature::{Capabilities, GetFeatures, Select, SetFeatures, id as fid};
use nvme::reservation::{Mask, Registrant, Report, ReportHeader};
use nvme::status::Status;
use platform::planted::{Bug, planted};
use platform::{Instant, Platform};
use zerocopy::IntoBytes;

use self::engine::{Access, HostId, KEYS, Reservation};
use self::order::Order;
use self::store::Store;
use super::commands::{Answer, Index, Stage};
use super::config::Config;
use super::crew::MANAGER;
use super::identity::{ControllerId, Kind};
use super::namespace::Namespace;
use super::namespaces::Namespaces;
use super::pool::{LONGEST, SMALL};
use super::reply::{copy, copy_at};
use super::server::Target;
use super::task::{Reply, Task};
use crate::Error;
use crate::attention::Attention;

/// The most bytes of a command's keys that the target takes: a page. Linux sends more than the
/// structure has.
pub(crate) const MOST_KEYS: usize = 4096;

/// Who waits for an answer.
#[derive(Clone, Copy)]
enum Asker {
    /// A command of this thread.
    Own(Index),
    /// A command of a worker.
    Worker(usize, Index),
    /// The manager: whether the requests have ended that a disk had of this worker.
    Fence(u64),
}

/// What a command asks for.
struct Wish {
    place: usize,
    order: Order,
    host: HostId,
    keys: [u8; KEYS],
}

/// An Acquire whose response waits for requests that a disk had before.
struct Fence {
    asker: Asker,
    place: usize,
    /// Its name among those who wait for requests of a disk: that of no command.
    token: Index,
    /// The disk has such requests of this thread, and of so many workers.
    here: bool,
    elsewhere: usize,
}

/// The name of a fence with this number.
fn token(number: u64) -> Index {
    Index(1 << 31 | number as u32)
}

/// A change that is being written.
struct Change {
    asker: Asker,
    place: usize,
    next: Reservation,
    notices: engine::Notices,
}

/// What the target has beside the state of each namespace.
#[derive(Default)]
pub(crate) struct Reservations {
    store: Option<Store>,
    /// Commands that were not carried out, oldest first, and what those of workers ask for.
    waiting: VecDeque<(Asker, Option<Wish>)>,
    /// The one whose change is being written.
    change: Option<Change>,
    fences: VecDeque<Fence>,
    /// The state disk did not answer: nothing persists any more.
    is_lost: bool,
}

impl Reservations {
    /// Opens the state disk, if there is one, and gives the namespaces what persists.
    pub(crate) fn new(
        config: &Config,
        namespaces: &mut Namespaces,
        platform: &Arc<dyn Platform>,
        attention: &Arc<Attention>,
    ) -> Result<Reservations, Error> {
        let waiting = VecDeque::with_capacity(config.commands);
        let mut reservations = Reservations { waiting, ..Reservations::default() };
        let Some(disk) = &config.state else { return Ok(reservations) };
        let deadline: Instant = platform.now() + config.disk_timeout;
        reservations.store = Some(Store::open(disk, platform, attention, deadline)?);
        for place in 0..config.disks.len() {
            if let Some(namespace) = namespaces.get_mut(place) {
                reservations.restore(namespace);
            }
        }
        Ok(reservations)
    }

    /// Gives a namespace that comes what persists of it.
    pub(crate) fn restore(&mut self, namespace: &mut Namespace) {
        let Some(store) = &mut self.store else { return };
        namespace.can_persist = namespace.disk.is_durable();
        if let Some(reservation) = store.take(&namespace.uuid).filter(|_| namespace.can_persist) {
            namespace.reservation = reservation;
        }
    }

    /// Keeps what persists of a namespace that goes, for its return.
    pub(crate) fn keep(&mut self, namespace: &Namespace) {
        if let (Some(store), Some(state)) = (&mut self.store, persistent(&namespace.reservation)) {
            store.put(namespace.uuid, state.clone());
        }
    }

    /// Whether a change under way, or an Acquire that waits, needs the namespace at a place.
    pub(crate) fn need(&self, place: usize) -> bool {
        let changes = self.change.as_ref().is_some_and(|change| change.place == place);
        changes || self.fences.iter().any(|fence| fence.place == place)
    }

    /// Whether the state disk may have finished something.
    pub(crate) fn arm(&self) -> bool {
        self.store.as_ref().is_some_and(Store::arm)
    }

    /// Whether the state disk has a request.
    pub(crate) fn is_busy(&self) -> bool {
        self.store.as_ref().is_some_and(Store::has_request)
    }

    /// Ends the calls of the state disk's routine.
    pub(crate) fn close(&self) {
        self.store.iter().for_each(Store::close);
    }
}

/// What a task does to the blocks of its namespace; `None` for what no reservation concerns.
fn access(task: &Task) -> Option<(usize, Access)> {
    let place = task.namespace()?;
    Some((place, if task.is_read() { Access::Read } else { Access::Write }))
}

/// What persists of a namespace.
fn persistent(reservation: &Reservation) -> Option<&Reservation> {
    Some(reservation).filter(|state| state.persists && !state.registrants.is_empty())
}

impl Target {
    /// Whether a reservation keeps a command's host from what it asks for.
    pub(super) fn conflicts(&mut self, index: Index) -> bool {
        let Some((place, access)) = access(&self.commands[index].task) else { return false };
        if planted(Bug::CopyUnreserved) && matches!(self.commands[index].task, Task::Copy { .. }) {
            return false;
        }
        if self.subsystem.namespaces[place].reservation.held.is_none() {
            return false;
        }
        // The host may have gone, and its identifier with it.
        let Some(host) = self.host_of(index) else { return true };
        !self.subsystem.namespaces[place].reservation.allows(host, access)
    }

    /// The identifier of the host that has sent a command.
    fn host_of(&mut self, index: Index) -> Option<HostId> {
        let queue = self.commands[index].queue.and_then(|number| self.queues.get(number))?;
        let id = queue.controller()?;
        self.subsystem.controllers.get(id).map(|controller| controller.host.id)
    }

    /// Carries out a command, whose keys are in its buffer, or lets it wait for those before it.
    pub(super) fn reserve(&mut self, index: Index) {
        self.commands[index].stage = Stage::Reservation;
        if self.crew.is_manager() {
            self.reservations.waiting.push_back((Asker::Own(index), None));
            return self.carry_out_reservations();
        }
        let Some(wish) = self.wish_of(index) else { return self.answer(index) };
        let asker = Asker::Worker(self.crew.me, index);
        self.crew.send(MANAGER, move |manager| {
            manager.reservations.waiting.push_back((asker, Some(wish)));
            manager.carry_out_reservations();
        });
    }

    /// What a command of this thread asks for; `None` if its host has gone.
    fn wish_of(&mut self, index: Index) -> Option<Wish> {
        let Task::Reserve { namespace: place, order } = self.commands[index].task else { return None };
        let host = self.host_of(index);
        let host = host.filter(|_| self.is_live(index))?;
        let mut keys = [0; KEYS];
        self.admin_pool_of(index).read(&self.commands[index].buffer, &mut keys);
        Some(Wish { place, order, host, keys })
    }

    /// Answers the command, or the manager, that waits.
    fn answer_asker(&mut self, asker: Asker, status: Status) {
        match asker {
            Asker::Own(index) => self.respond(index, status, 0),
            // The entry stays until then, whatever becomes of its queue.
            Asker::Worker(worker, index) => {
                self.crew.send(worker, move |worker| worker.respond(index, status, 0));
            }
            Asker::Fence(number) => {
                self.crew.send(MANAGER, move |manager| manager.has_passed(number, status));
            }
        }
    }

    /// Carries out commands until one has to be written.
    fn carry_out_reservations(&mut self) {
        while self.reservations.change.is_none() {
            let Some((asker, wish)) = self.reservations.waiting.pop_front() else { return };
            let wish = match (asker, wish) {
                (Asker::Own(index), None) => self.wish_of(index),
                (_, wish) => wish,
            };
            let Some(Wish { place, order, host, keys }) = wish else {
                if let Asker::Own(index) = asker {
                    self.answer(index);
                }
                continue;
            };
            let namespace = &self.subsystem.namespaces[place];
            let can_persist = namespace.can_persist && !self.reservations.is_lost;
            let mut next = namespace.reservation.clone();
            let result = next.carry_out(host, &order, &keys, can_persist);
            let notices = match result {
                Ok(notices) => notices,
                Err(status) => {
                    self.answer_asker(asker, status);
                    continue;
                }
            };
            let change = Change { asker, place, next, notices };
            let must_write = persistent(&change.next) != persistent(&namespace.reservation);
            if must_write && self.reservations.is_lost {
                self.answer_asker(asker, Status::INTERNAL_ERROR);
                continue;
            }
            match &mut self.reservations.store {
                Some(store) if must_write => {
                    let namespaces = self.subsystem.namespaces.of_places();
                    let exported = namespaces.filter_map(|(number, namespace)| {
                        let state = if number == place { &change.next } else { &namespace.reservation };
                        Some((&namespace.uuid, persistent(state)?))
                    });
                    store.begin(exported, self.clock);
                    self.reservations.change = Some(change);
                }
                _ => self.take_effect(change),
            }
        }
    }

    /// A change takes effect: it is durable, if it has to be.
    fn take_effect(&mut self, change: Change) {
        let Change { asker, place, next, notices } = change;
        let namespace = &mut self.subsystem.namespaces[place];
        let changes = next != namespace.reservation;
        let is_fenced = next.held.is_some() && changes && !planted(Bug::FenceSkipped);
        namespace.reservation = next;
        for (host, notice) in notices {
            for (_, controller) in self.subsystem.controllers.iter_mut() {
                if controller.host.id == host {
                    controller.reservation_notices.add(place as u32 + 1, notice);
                }
            }
        }
        let here = is_fenced && self.subsystem.namespaces[place].on_disk > 0;
        let (number, mut elsewhere) = (self.crew.number(), 0);
        if changes && self.crew.has_workers() && !planted(Bug::ReservationUntold) {
            let copy = self.subsystem.namespaces[place].reservation.clone();
            let fence = is_fenced.then_some(number);
            // No thread gives a disk a request from now on that the reservation forbids.
            let fenced = self.everywhere(move |worker| worker.has_reservation(place, copy.clone(), fence));
            elsewhere = fenced.into_iter().filter(|&is_fenced| is_fenced).count();
        }
        if !here && elsewhere == 0 {
            return self.answer_asker(asker, Status::SUCCESS);
        }
        self.reservations.fences.push_back(Fence { asker, place, token: token(number), here, elsewhere });
        self.follow_fences();
    }

    /// A worker takes over what the manager has decided about a namespace. True if a fence has to
    /// wait for requests that the disk has of this thread.
    fn has_reservation(&mut self, place: usize, reservation: Reservation, fence: Option<u64>) -> bool {
        let Some(namespace) = self.subsystem.namespaces.get_mut(place) else { return false };
        namespace.reservation = reservation;
        let Some(number) = fence.filter(|_| namespace.on_disk > 0) else { return false };
        let asker = Asker::Fence(number);
        let fence = Fence { asker, place, token: token(number), here: true, elsewhere: 0 };
        self.reservations.fences.push_back(fence);
        self.follow_fences();
        true
    }

    /// The requests have ended that a disk had of a worker, or the worker has given the disk up.
    fn has_passed(&mut self, number: u64, status: Status) {
        let fences = &mut self.reservations.fences;
        let Some(at) = fences.iter().position(|fence| fence.token == token(number)) else { return };
        fences[at].elsewhere -= 1;
        if !status.is_success()
            && let Some(fence) = fences.remove(at)
        {
            self.end_fence(fence, status);
        }
        self.follow_fences();
    }

    /// Answers an Acquire whose disk is given up.
    fn end_fence(&mut self, fence: Fence, status: Status) {
        self.subsystem.namespaces[fence.place].ages.forget(fence.token);
        self.answer_asker(fence.asker, status);
    }

    /// Goes on with what waits for the state disk, or for requests that disks had before an
    /// Acquire.
    pub(super) fn follow_reservations(&mut self) {
        if let Some(store) = &mut self.reservations.store
            && store.is_busy()
            && let Some(result) = store.poll(self.clock)
        {
            self.written(result);
        }
        if !self.reservations.fences.is_empty() {
            self.follow_fences();
        }
    }

    /// A state is durable, or could not be written: then nothing changes.
    fn written(&mut self, result: Result<(), Fault>) {
        let Some(change) = self.reservations.change.take() else { return };
        match result {
            Ok(()) => self.take_effect(change),
            Err(fault) => {
                let now = self.clock;
                self.said_failed.say(now, format_args!("the state disk failed: {fault}"));
                self.answer_asker(change.asker, Status::INTERNAL_ERROR);
            }
        }
        self.carry_out_reservations();
    }

    /// Answers Acquires whose disks have ended what they had before, or are given up: then they are
    /// in force, but what the disk has may still be carried out, so they do not succeed.
    fn follow_fences(&mut self) {
        for _ in 0..self.reservations.fences.len() {
            let Some(mut fence) = self.reservations.fences.pop_front() else { return };
            let namespace = &mut self.subsystem.namespaces[fence.place];
            fence.here = fence.here && !namespace.ages.have_passed(fence.token);
            if !fence.here && fence.elsewhere == 0 {
                self.answer_asker(fence.asker, Status::SUCCESS);
            } else if namespace.serves() {
                self.reservations.fences.push_back(fence);
            } else {
                let status = namespace.refusal(false).unwrap_or(Status::NS_NOT_READY);
                self.end_fence(fence, status);
            }
        }
    }

    /// Gives a state disk up that does not answer: what is to persist fails from then on.
    pub(super) fn look_at_state_disk(&mut self, now: u64, patience: u64) {
        let since = self.reservations.store.as_ref().and_then(Store::since);
        if self.reservations.is_lost || since.is_none_or(|since| now.saturating_sub(since) <= patience) {
            return;
        }
        log::error!("the state disk does not answer: reservations persist no more");
        self.reservations.is_lost = true;
        if let Some(change) = self.reservations.change.take() {
            // What the disk has may still be written, so the host must not believe either.
            self.answer_asker(change.asker, Status::INTERNAL_ERROR);
        }
        self.carry_out_reservations();
    }

    /// What a Reservation Report asks for.
    pub(super) fn report(&self, place: usize, command: &Command) -> Result<(Task, usize), Status> {
        let report = Report::of(command);
        if !report.is_extended {
            return Err(Status::HOST_IDENTIFIER_INCONSISTENT.dnr());
        }
        let len = usize::try_from(report.bytes).ok().filter(|&len| len <= LONGEST);
        let len = len.ok_or(Status::INVALID_FIELD.dnr())?;
        // What lies behind the registrants is undefined: it takes no memory beyond a chunk.
        Ok((Task::Reply { reply: Reply::Reservation(place), len: len.min(SMALL) }, len))
    }

    /// Writes a piece of a report.
    pub(super) fn write_report(&self, place: usize, from: u64, piece: &mut [u8]) {
        let state = &self.subsystem.namespaces[place].reservation;
        let (kind, count) = (state.held.map(|held| held.kind), state.registrants.len() as u16);
        copy(ReportHeader::new(state.generation, kind, count, state.persists).as_bytes(), from, piece);
        for (n, registrant) in (1..).zip(&state.registrants) {
            let is_holder = state.is_holder(registrant.host);
            let entry = Registrant::new(is_holder, registrant.key, registrant.host);
            copy_at(entry.as_bytes(), n * size_of::<Registrant>() as u64, from, piece);
        }
    }

    /// Completes the Asynchronous Event Requests of controllers with notifications.
    pub(super) fn report_notices(&mut self) {
        let mut due: heapless::Vec<ControllerId, 16> = heapless::Vec::new();
        for (id, controller) in self.subsystem.controllers.iter_mut() {
            // Those for which there is no place here come in the next tick.
            if !controller.waiting.is_empty() && !due.is_full() && controller.reservation_notices.take_due() {
                let _ = due.push(id);
            }
        }
        for id in due {
            let controller = self.controller(id, Kind::Io);
            let request = controller.filter(|one| !one.waiting.is_empty()).map(|one| one.waiting.remove(0));
            if let Some(index) = request {
                self.respond(index, Status::SUCCESS, Event::RESERVATION_NOTICE.result().into());
            }
        }
    }

    /// A Set Features of reservations; `None` for other features.
    pub(super) fn set_reservation_feature(
        &mut self,
        id: ControllerId,
        kind: Kind,
        arguments: &SetFeatures,
    ) -> Option<Result<(Task, usize), Answer>> {
        let (place, nsid) = (self.seen(id, arguments.nsid), arguments.nsid);
        let is_ours = matches!(arguments.fid, fid::RESERVATION_MASK | fid::RESERVATION_PERSISTENCE);
        if kind != Kind::Io || !is_ours {
            return None;
        }
        Some(match (arguments.fid, place) {
            _ if arguments.save => Err((Status::FEATURE_NOT_SAVEABLE.dnr(), 0)),
            (fid::RESERVATION_MASK, place) if place.is_some() || nsid == nvme::NSID_ALL => {
                if let Some(controller) = self.controller(id, kind) {
                    controller.reservation_notices.set_mask(nsid, Mask::from_bits_truncate(arguments.value));
                }
                Err((Status::SUCCESS, 0))
            }
            (fid::RESERVATION_PERSISTENCE, Some(namespace)) => {
                let order = Order::Persist(arguments.value & 1 != 0);
                Ok((Task::Reserve { namespace, order }, 0))
            }
            _ => Err((Status::INVALID_NAMESPACE.dnr(), 0)),
        })
    }

    /// A Get Features of reservations; `None` for other features.
    pub(super) fn reservation_feature(
        &mut self,
        id: ControllerId,
        kind: Kind,
        arguments: &GetFeatures,
    ) -> Option<Answer> {
        let is_ours = matches!(arguments.fid, fid::RESERVATION_MASK | fid::RESERVATION_PERSISTENCE);
        if kind != Kind::Io || !is_ours {
            return None;
        }
        let Some(place) = self.seen(id, arguments.nsid) else {
            return Some((Status::INVALID_NAMESPACE.dnr(), 0));
        };
        let value = match arguments.select {
            Select::SupportedCapabilities => {
                (Capabilities::NAMESPACE_SPECIFIC | Capabilities::CHANGEABLE).bits()
            }
            Select::Default | Select::Saved => 0,
            Select::Current if arguments.fid == fid::RESERVATION_PERSISTENCE => {
                self.subsystem.namespaces[place].reservation.persists.into()
            }
            Select::Current => {
                let controller = self.controller(id, kind)?;
                controller.reservation_notices.mask(arguments.nsid).unwrap_or_default().bits()
            }
        };
        Some((Status::SUCCESS, value.into()))
    }
}
