//! The consumer of a CQ in its slot, and the calls that take completions by the slot alone.

use core::hint::cold_path;

use nic_abi::cqe::{self, CqeFlags};
use nic_hal::{CompletionQueue, Entry, Outstanding, Retired};

use super::completion::{Behind, Completion, Done, Immediate, Took, TookAny};
use crate::members::{Member, Members};
use crate::slot::QueueSlot;

/// The flag in an entry's outcome that says which work queue of the queue pair it is of.
pub(super) const RECEIVE: u16 = (CqeFlags::RECEIVE.bits() as u16) << 8;
/// The bits of an outcome that need the slow path: an error, or a flag that makes the rest of the
/// entry matter.
const SPECIAL: u16 = 0xff | ((CqeFlags::GRH.bits() | CqeFlags::INVALIDATED.bits()) as u16) << 8;
/// The flag in an entry's outcome that says that its message carried immediate data.
const WITH_IMMEDIATE: u16 = (CqeFlags::IMMEDIATE.bits() as u16) << 8;
/// The flags in the outcome of a receive whose message carried immediate data.
const ARRIVED: u16 = (CqeFlags::RECEIVE.union(CqeFlags::IMMEDIATE).bits() as u16) << 8;
/// The flag in an entry's outcome that says that an RDMA Write took the receive.
const WRITTEN: u16 = (CqeFlags::WRITE.bits() as u16) << 8;
/// The bits of an outcome that [`CqSlot::take_any`] leaves to the slow path.
const UNUSUAL: u16 = 0xff | (CqeFlags::INVALIDATED.bits() as u16) << 8;
/// Those that [`CqSlot::take_successes`] leaves there.
const NO_SUCCESS: u16 = 0xff | (CqeFlags::GRH.bits() as u16) << 8;
const _: () = assert!(cqe::Status::Success as u8 == 0);

/// Which entry an armed CQ reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next entry.
    Next,
    /// The next entry that is solicited or is an error.
    Solicited,
}

/// The consumer of a CQ, with the queue pairs on it. It is in a [`CqSlot`].
pub struct Consumer {
    pub(super) queue: CompletionQueue,
    pub(super) members: Members,
    /// At which level the CQ is armed, until the dispatcher thread takes its event.
    pub(super) armed: Option<Arm>,
    /// Entries before this index may be of queue pairs that were reset or destroyed since.
    suspect: Option<u32>,
    /// How many entries were dropped: of queue pairs that are gone, or invalid.
    pub(super) dropped: u64,
}

/// The slot of a CQ. It is open from the creation of the CQ on.
pub type CqSlot = QueueSlot<Consumer>;

#[inline(always)]
fn done(context: u64, retired: &Retired, entry: &Entry) -> Done {
    Done { context, cookie: retired.cookie, data: retired.data(), length: entry.length(retired) }
}

/// An entry whose request was found.
struct Found {
    entry: Entry,
    context: u64,
    request: Retired,
}

impl Found {
    #[inline(always)]
    fn done(&self) -> Done {
        done(self.context, &self.request, &self.entry)
    }
}

impl Consumer {
    pub(super) fn new(queue: CompletionQueue, members: Members) -> Consumer {
        Consumer { queue, members, armed: None, suspect: None, dropped: 0 }
    }

    /// Whether each entry that waits is of a queue pair on this CQ, if the device writes only such
    /// entries.
    pub(super) fn is_clean(&mut self) -> bool {
        // The difference is negative before the index.
        let passed = |end: u32| self.queue.head().wrapping_sub(end).cast_signed() >= 0;
        if self.suspect.is_some_and(passed) {
            self.suspect = None;
        }
        self.suspect.is_none()
    }

    /// Notes that entries that wait now may be of a queue pair that was reset or destroyed.
    pub(super) fn note_suspects(&mut self) {
        let pending = self.queue.pending(u32::MAX);
        self.suspect = Some(self.queue.head().wrapping_add(pending));
    }
}

/// The requests of a plain entry's work queue, and the context of its queue pair. An entry is plain
/// if its outcome has none of the bits `special`.
#[inline(always)]
fn known<'a>(members: &'a Members, entry: &Entry, special: u16) -> Option<(u64, &'a Outstanding)> {
    if entry.outcome() & special != 0 {
        return None;
    }
    let member = members.find_at_once(entry.identity)?;
    let requests = if entry.outcome() & RECEIVE == 0 { &*member.sends } else { &**member.receives };
    Some((member.context, requests))
}

impl CqSlot {
    /// Takes the oldest completion, if `handle` is the slot's, the slot is open, and the completion
    /// is a plain success.
    #[inline(always)]
    pub fn take(&self, handle: u64) -> Took {
        self.take_beside(handle, SPECIAL, |_, _| ()).map(|(done, ())| done)
    }

    /// As [`CqSlot::take`], but leaves a completion with immediate data to the slow path, since
    /// [`Done`] has no place for that.
    #[inline(always)]
    pub fn take_without_immediate(&self, handle: u64) -> Took {
        self.take_plain(handle, |done| done)
    }

    /// As [`CqSlot::take_without_immediate`]. `put` runs under the slot's lock, before the device
    /// gets the entry's room: so the compiler need not keep the completion in registers meanwhile.
    #[inline(always)]
    pub fn take_plain<R>(&self, handle: u64, put: impl FnOnce(Done) -> R) -> Took<R> {
        self.take_with(handle, SPECIAL | WITH_IMMEDIATE, |_, found| put(found.done()), |_, made| made)
    }

    /// As [`CqSlot::take_plain`]; `put` gets the number of the queue pair, too.
    #[inline(always)]
    pub fn take_plain_of<R>(&self, handle: u64, put: impl FnOnce(Done, u32) -> R) -> Took<R> {
        // The number is the lower half: see `table::identity`.
        let put = |_: &CompletionQueue, found: &Found| put(found.done(), found.entry.identity as u32);
        self.take_with(handle, SPECIAL | WITH_IMMEDIATE, put, |_, made| made)
    }

    /// As [`CqSlot::take`], and returns the immediate data.
    #[inline(always)]
    pub fn take_with_immediate(&self, handle: u64) -> Took<(Done, Option<Immediate>)> {
        self.take_beside(handle, SPECIAL, |queue, entry| {
            if entry.outcome() & ARRIVED != ARRIVED {
                return None;
            }
            let (data, detail) = queue.immediate_and_detail(entry);
            Some(Immediate { data, written: (entry.outcome() & WRITTEN != 0).then_some(detail) })
        })
    }

    /// As [`CqSlot::take`], if the outcome of the entry has none of the bits `special`. `beside`
    /// reads what else the caller needs of the entry.
    #[inline(always)]
    fn take_beside<T>(
        &self,
        handle: u64,
        special: u16,
        beside: impl FnOnce(&CompletionQueue, &Entry) -> T,
    ) -> Took<(Done, T)> {
        let before = |queue: &CompletionQueue, found: &Found| beside(queue, &found.entry);
        self.take_with(handle, special, before, |found, beside| (found.done(), beside))
    }

    /// As [`CqSlot::take`], if the outcome of the entry has none of the bits `special`. `before`
    /// runs before the device gets the entry's room, `after` without the slot's lock.
    #[inline(always)]
    fn take_with<B, R>(
        &self,
        handle: u64,
        special: u16,
        before: impl FnOnce(&CompletionQueue, &Found) -> B,
        after: impl FnOnce(&Found, B) -> R,
    ) -> Took<R> {
        let Some(mut guard) = self.try_lock(handle) else {
            cold_path();
            return Took::Other;
        };
        let Some(Consumer { queue, members, .. }) = guard.queue() else {
            cold_path();
            return Took::Other;
        };
        let Some(entry) = queue.look() else { return Took::Nothing };
        let Some((context, requests)) = known(members, &entry, special) else {
            cold_path();
            return Took::Other;
        };
        let Some(named) = requests.named(entry.tag()) else {
            cold_path();
            return Took::Other;
        };
        let found = Found { entry, context, request: named.request };
        let before = before(queue, &found);
        // The device has to get the room before the poster does: the poster's next request may
        // complete at once, and its completion needs room.
        queue.skip();
        queue.consumed();
        named.retire();
        drop(guard);
        Took::Done(after(&found, before))
    }

    /// Takes completions as [`CqSlot::take`] does while they are plain and `into` has room, oldest
    /// first. Returns how many, and whether the slow path has to look for more: at a completion
    /// that is not plain, or because the slot is closed.
    #[inline(always)]
    pub fn take_n<T>(&self, handle: u64, into: &mut [T], make: impl Fn(Done) -> T) -> (usize, bool) {
        self.take_n_but(SPECIAL, handle, into, |place, done| *place = make(done))
    }

    /// As [`CqSlot::take_n`], but leaves completions with immediate data to the slow path, since
    /// [`Done`] has no place for that. `put` changes a place to what the caller makes of a
    /// completion.
    #[inline(always)]
    pub fn take_n_without_immediate<T>(
        &self,
        handle: u64,
        into: &mut [T],
        put: impl Fn(&mut T, Done),
    ) -> (usize, bool) {
        self.take_n_but(SPECIAL | WITH_IMMEDIATE, handle, into, put)
    }

    #[inline(always)]
    fn take_n_but<T>(
        &self,
        special: u16,
        handle: u64,
        into: &mut [T],
        put: impl Fn(&mut T, Done),
    ) -> (usize, bool) {
        let Some(mut guard) = self.try_lock(handle) else { return (0, true) };
        let Some(Consumer { queue, members, .. }) = guard.queue() else { return (0, true) };
        let mut reading = queue.reading();
        let all = into.len();
        let mut left = into;
        // One turn for each run of entries of one work queue. Each turn takes an entry, or is the
        // last.
        let other = loop {
            if left.is_empty() {
                break true;
            }
            let Some(entry) = reading.look() else { break false };
            let Some((context, requests)) = known(members, &entry, special) else { break true };
            let mut requests = requests.retiring();
            let mut came = 0;
            for (place, entry) in reading.beside(&entry, special | RECEIVE, left) {
                let Some(request) = requests.retire(entry.tag()) else { break };
                put(place, done(context, &request, &entry));
                came += 1;
            }
            if came == 0 {
                break true;
            }
            left = left.get_mut(came..).unwrap_or_default();
            reading.advance(came as u32);
            // As above.
            reading.commit();
            drop(requests);
        };
        (all - left.len(), other)
    }

    /// Takes completions as [`CqSlot::take_any`] does while they are successes that invalidated no
    /// key and `into` has room, oldest first. Returns how many, and whether the slow path has to
    /// look for more.
    pub fn take_any_n<T>(
        &self,
        handle: u64,
        but: u32,
        into: &mut [T],
        make: impl Fn(&Completion) -> T,
    ) -> (usize, bool) {
        self.take_unless(UNUSUAL, (handle, but), into, make)
    }

    /// Takes completions while they are successes of no datagram and `into` has room, oldest first:
    /// those with immediate data or an invalidated key, and those of an SRQ's Receives, too, for
    /// which [`CqSlot::take_n`] has no place. Returns what that returns.
    pub fn take_successes<T>(
        &self,
        handle: u64,
        into: &mut [T],
        make: impl Fn(&Completion) -> T,
    ) -> (usize, bool) {
        self.take_unless(NO_SUCCESS, (handle, 0), into, make)
    }

    /// Takes completions while their outcomes have none of the bits `unusual`.
    #[inline(always)]
    fn take_unless<T>(
        &self,
        unusual: u16,
        (handle, but): (u64, u32),
        into: &mut [T],
        make: impl Fn(&Completion) -> T,
    ) -> (usize, bool) {
        let Some((mut guard, _)) = self.lock_but(handle, but) else { return (0, true) };
        let Some(consumer) = guard.queue() else { return (0, true) };
        let Consumer { queue, members, dropped, .. } = &mut *consumer;
        let mut reading = queue.reading();
        for (came, place) in into.iter_mut().enumerate() {
            let Some(entry) = reading.look() else { return (came, false) };
            if entry.outcome() & unusual != 0 {
                return (came, true);
            }
            let Some(member) = members.find(entry.identity) else { return (came, true) };
            let cqe = reading.read(entry);
            reading.advance(1);
            // As above, the device gets the room first.
            reading.commit();
            let Some(completion) = complete(member, &cqe) else {
                *dropped += 1;
                return (came, true);
            };
            *place = make(&completion);
        }
        (into.len(), true)
    }

    /// Takes the oldest completion if it is a success that invalidated no key, plain or not, and if
    /// `handle` is the slot's and the slot is closed for none but the reasons `but`. `make` makes
    /// of it what the caller needs, under the slot's lock.
    #[inline(always)]
    pub fn take_any<T>(&self, handle: u64, but: u32, make: impl FnOnce(&Completion) -> T) -> TookAny<T> {
        let Some((mut guard, closed)) = self.lock_but(handle, but) else { return TookAny::Other };
        let Some(consumer) = guard.queue() else { return TookAny::Other };
        let Consumer { queue, members, dropped, .. } = &mut *consumer;
        let mut reading = queue.reading();
        let Some(entry) = reading.look() else { return TookAny::Nothing };
        if entry.outcome() & UNUSUAL != 0 {
            return TookAny::Other;
        }
        let Some(member) = members.find(entry.identity) else { return TookAny::Other };
        let cqe = reading.read(entry);
        reading.advance(1);
        let more = reading.waits();
        // As above, the device gets the room first.
        reading.commit();
        let Some(completion) = complete(member, &cqe) else {
            *dropped += 1;
            return TookAny::Other;
        };
        let behind = match more {
            false => Behind::Nothing,
            true if consumer.is_clean() => Behind::Completion,
            true => Behind::Suspect,
        };
        TookAny::Taken { value: make(&completion), behind, closed }
    }
}

/// Retires the request of an entry.
#[inline(always)]
pub(super) fn complete(member: &Member, cqe: &cqe::Cqe) -> Option<Completion> {
    let status = cqe::Status::from_byte(cqe.status)?;
    let flags = CqeFlags::from_bits_truncate(cqe.flags);
    let retired = member.retire(cqe.tag, flags.contains(CqeFlags::RECEIVE))?;
    Some(Completion {
        context: member.context,
        cookie: retired.cookie,
        data: retired.data(),
        qpn: cqe.qpn,
        status,
        flags,
        opcode: cqe.opcode,
        length: cqe.length.min(retired.length()),
        immediate: cqe.immediate,
        detail: cqe.detail,
    })
}
