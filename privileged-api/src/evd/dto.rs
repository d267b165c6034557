//! The queue of an EVD for completions: the NIC's CQ, and a stage that holds completions that were
//! taken from the CQ ahead of the consumer.
//!
//! A dequeue takes from the CQ. A wait or a callback with a threshold other than one has to
//! determine whether a notification event is queued. It moves completions from the CQ to the stage
//! and counts them there. So the notification is part of the queued event, as appendix A requires.
//!
//! Owns the stage and the CQ. Locks, outermost first: the stage's, then the CQ's inside the agent.
//! No callback and no upcall runs under them. Completions are added to the stage only under both
//! locks, and the CQ's slot is closed while the stage is not empty. So the fast path can take from
//! the CQ without the stage's lock, and never returns a completion before an older one in the
//! stage. The slot is also closed while only an aggregate may take from the queue.
//!
//! On an IA over VIA the slot stays empty, and the queue is a [`ViaQueue`]: only a thread that
//! holds the stage's lock takes from it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use kernel_agent::descriptor::Status;
use kernel_agent::{Arm, Completion, CompletionFlags, CompletionStatus, Cq, CqSlot, Done, TookAny};
use platform::Platform;
use platform::sync::Mutex;

use super::extended::{Form, Posted};
use crate::closed;
use crate::event::{DtoCompletion, DtoStatus, EventType};
use crate::flags::DtoUdFlags;
use crate::handle::{EpHandle, EvdHandle, Handle};
use crate::lmr::owners::Owners;
use crate::status::{Error, Result};
use crate::via;
use crate::via::queue::ViaQueue;

/// The word that is posted with each work request and returned in its completion.
///
/// | bits | meaning |
/// |---|---|
/// | 0..4 | the number of the event |
/// | 4 | the completion is a notification event |
/// | 5..8 | [`Posted`] |
/// | 8 | the completion is a failure of a virtual interface, and `detail` its descriptor's status |
pub(crate) mod tag {
    pub(crate) const EVENT: u32 = 0xf;
    pub(crate) const NOTIFY: u32 = 1 << 4;
    pub(crate) const POSTED: u32 = 5;
    pub(crate) const VIA: u32 = 1 << 8;
}

/// The reasons why a slot may be closed while the oldest completion is in the CQ.
const UNSTAGED: u32 = closed::CALLBACK | closed::CAPTIVE | closed::RESERVED | closed::MADE;

struct Stage {
    /// The staged completions, oldest first.
    ready: VecDeque<Staged>,
    /// The number of staged completions that are notification events.
    notifications: usize,
    /// At least 2, as each CQ has.
    capacity: usize,
}

#[derive(Clone, Copy)]
struct Staged {
    completion: Completion,
    notifies: bool,
}

/// The NIC's queue.
#[derive(Clone)]
pub(crate) enum Source {
    Cq(Arc<Cq>),
    /// Of an IA over VIA.
    Via(Arc<ViaQueue>),
}

impl Source {
    fn entries(&self) -> usize {
        match self {
            Source::Cq(cq) => cq.entries() as usize,
            Source::Via(queue) => queue.cq().entries() as usize,
        }
    }

    /// Destroys the queue. Fails if an endpoint uses it or the device is dead.
    pub(super) fn destroy(&self) -> core::result::Result<(), kernel_agent::Error> {
        match self {
            Source::Cq(cq) => cq.destroy(),
            Source::Via(queue) => queue.cq().destroy(),
        }
    }
}

pub(crate) struct DtoQueue {
    source: Source,
    owners: Arc<Owners>,
    slot: Arc<CqSlot>,
    handle: EvdHandle,
    stage: Mutex<Stage>,
}

impl DtoQueue {
    /// Makes the queue of the EVD `handle`, whose CQ is in `slot`.
    pub(crate) fn new(
        source: Source,
        slot: Arc<CqSlot>,
        handle: EvdHandle,
        owners: Arc<Owners>,
    ) -> Result<DtoQueue> {
        let capacity = source.entries();
        let mut ready = VecDeque::new();
        ready.try_reserve_exact(capacity).map_err(|_| Error::ResourceQueueSize)?;
        let stage = Mutex::new(Stage { ready, notifications: 0, capacity });
        Ok(DtoQueue { source, owners, slot, handle, stage })
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// The CQ for queue pairs.
    pub(crate) fn cq(&self) -> Option<&Arc<Cq>> {
        match &self.source {
            Source::Cq(cq) => Some(cq),
            Source::Via(_) => None,
        }
    }

    /// Makes room for the completions of so many descriptors, and returns the queue of virtual
    /// interfaces. Blocks for the device.
    pub(crate) fn reserve(
        &self,
        platform: &Arc<dyn Platform>,
        count: u32,
    ) -> core::result::Result<&Arc<ViaQueue>, kernel_agent::Error> {
        let Source::Via(queue) = &self.source else { return Err(kernel_agent::Error::Foreign) };
        queue.reserve(platform, count)?;
        self.grow_stage();
        Ok(queue)
    }

    /// Forgets the completions in the stage of a virtual interface that was destroyed, and those in
    /// the NIC's queue, which would take room.
    pub(crate) fn forget(&self, number: u32) {
        let mut stage = self.stage.lock();
        stage.ready.retain(|staged| staged.completion.qpn != number);
        stage.notifications = stage.ready.iter().filter(|staged| staged.notifies).count();
        self.fill(&mut stage, usize::MAX);
    }

    /// Gives the stage room for as many completions as the NIC's queue holds. If there is no
    /// memory, a full stage notifies before the threshold is reached.
    fn grow_stage(&self) {
        let capacity = self.source.entries();
        let mut stage = self.stage.lock();
        let more = capacity.saturating_sub(stage.ready.len());
        if stage.ready.try_reserve_exact(more).is_ok() {
            stage.capacity = capacity;
        }
    }

    /// Adds or removes one of the reasons for which the CQ's slot is closed.
    pub(crate) fn set_closed(&self, reason: u32, closed: impl FnOnce() -> bool) {
        self.slot.set_closed(self.handle.as_raw(), reason, closed);
    }

    /// The event for a completion of this queue.
    pub(crate) fn event(&self, completion: &Completion) -> DtoCompletion {
        event(completion, self.handle, &self.owners)
    }

    /// Takes the oldest completion.
    pub(crate) fn take(&self) -> Option<Completion> {
        match self.slot.take_any(self.handle.as_raw(), UNSTAGED, |taken| *taken) {
            TookAny::Taken { value, .. } => Some(value),
            TookAny::Nothing => None,
            TookAny::Other => self.take_staged(),
        }
    }

    /// Takes the oldest completion if it is a success and in the CQ, and passes its event to `put`.
    #[inline(always)]
    pub(crate) fn take_success<F: Form>(&self, put: impl FnOnce(DtoCompletion, F::Beside)) -> TookAny<()> {
        let evd = self.handle;
        self.slot.take_any(evd.as_raw(), UNSTAGED, |taken| put(success(taken, evd), F::beside(taken)))
    }

    /// Takes the oldest completions that are successes and in the CQ, as many as `into` has room
    /// for. Returns how many, and whether [`DtoQueue::take`] may find more.
    pub(crate) fn take_successes(&self, into: &mut [DtoCompletion]) -> (usize, bool) {
        let evd = self.handle;
        self.slot.take_any_n(evd.as_raw(), UNSTAGED, into, |taken| success(taken, evd))
    }

    /// Takes the oldest completion: from the stage, or a failure.
    #[inline(never)]
    fn take_staged(&self) -> Option<Completion> {
        let mut stage = self.stage.lock();
        match (self.pop(&mut stage), &self.source) {
            (None, Source::Cq(cq)) => cq.poll_one(),
            (None, Source::Via(queue)) => queue.next(),
            (completion, _) => completion,
        }
    }

    /// Takes the oldest completion if a notification event or `threshold` completions are queued
    /// (0: never by count).
    pub(crate) fn take_if_notified(&self, threshold: usize) -> Option<Completion> {
        let mut stage = self.stage.lock();
        self.fill(&mut stage, usize::MAX);
        if stage.notified(threshold) { self.pop(&mut stage) } else { None }
    }

    /// Whether a notification event or `threshold` completions are queued (0: never by count).
    pub(crate) fn notified(&self, threshold: usize) -> bool {
        // With a threshold of 1 each completion decides, so all of them can stay in the CQ.
        if threshold == 1 {
            return !self.is_empty();
        }
        let mut stage = self.stage.lock();
        self.fill(&mut stage, usize::MAX);
        stage.notified(threshold)
    }

    /// The number of completions that are queued.
    pub(crate) fn len(&self) -> usize {
        let mut stage = self.stage.lock();
        let Source::Cq(cq) = &self.source else {
            self.fill(&mut stage, usize::MAX);
            return stage.ready.len();
        };
        if let Some(waiting) = cq.completions() {
            return stage.ready.len() + waiting as usize;
        }
        self.fill(&mut stage, usize::MAX);
        stage.ready.len() + cq.pending(u32::MAX) as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        let mut stage = self.stage.lock();
        match &self.source {
            Source::Cq(cq) => stage.ready.is_empty() && !cq.has_completion(),
            Source::Via(_) => {
                // An entry may lead to no completion.
                self.fill(&mut stage, 1);
                stage.ready.is_empty()
            }
        }
    }

    pub(crate) fn arm(&self) {
        match &self.source {
            Source::Cq(cq) => cq.arm(Arm::Next),
            Source::Via(queue) => queue.cq().arm(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match &self.source {
            Source::Cq(cq) => cq.entries() as usize,
            Source::Via(queue) => queue.asked(),
        }
    }

    /// Changes the CQ's size. Blocks until the device answers.
    pub(crate) fn resize(&self, platform: &Arc<dyn Platform>, entries: usize) -> Result<()> {
        let wanted = u32::try_from(entries).map_err(|_| Error::ResourceQueueSize)?;
        if entries < self.len() {
            return Err(Error::InvalidQueueSize);
        }
        let resized = match &self.source {
            Source::Cq(cq) => cq.resize(wanted),
            Source::Via(queue) => queue.resize(platform, wanted),
        };
        resized.map_err(|error| match error {
            kernel_agent::Error::DeviceDead(_) => Error::IaCatastrophe,
            kernel_agent::Error::Busy => Error::InvalidQueueSize,
            _ => Error::ResourceQueueSize,
        })?;
        self.grow_stage();
        Ok(())
    }

    /// Sets whether only an aggregate may take from the queue.
    pub(super) fn set_captive(&self, captive: bool) {
        self.set_closed(closed::CAPTIVE, || captive);
    }

    /// Moves completions from the CQ to the stage until `wanted` are staged, the stage is full or
    /// the CQ is empty.
    fn fill(&self, stage: &mut Stage, wanted: usize) {
        let room = stage.capacity.min(wanted).saturating_sub(stage.ready.len());
        if room == 0 {
            return;
        }
        match &self.source {
            Source::Cq(cq) => {
                let mut polling = cq.polling();
                for taken in 0..room {
                    let Some(completion) = polling.next() else { break };
                    if taken == 0 {
                        polling.close(closed::STAGED);
                    }
                    stage.push(completion);
                }
            }
            Source::Via(queue) => core::iter::from_fn(|| queue.next()).take(room).for_each(|completion| {
                stage.push(completion);
            }),
        }
    }

    /// Takes the oldest staged completion. Reopens the CQ's slot when the stage is empty.
    fn pop(&self, stage: &mut Stage) -> Option<Completion> {
        let completion = stage.pop();
        if completion.is_some() && stage.ready.is_empty() {
            self.set_closed(closed::STAGED, || false);
        }
        completion
    }
}

impl Stage {
    fn push(&mut self, completion: Completion) {
        let notifies = notifies(&completion);
        self.notifications += usize::from(notifies);
        self.ready.push_back(Staged { completion, notifies });
    }

    fn pop(&mut self) -> Option<Completion> {
        let staged = self.ready.pop_front()?;
        self.notifications -= usize::from(staged.notifies);
        Some(staged.completion)
    }

    /// Whether the notification criteria are present. A full stage notifies, since the completions
    /// that are still in the CQ cannot be checked (appendix A allows early notification).
    fn notified(&self, threshold: usize) -> bool {
        let queued = self.ready.len();
        self.notifications > 0 || threshold > 0 && queued >= threshold || queued >= self.capacity
    }
}

/// Whether a completion is a notification event (it_evd_create).
fn notifies(completion: &Completion) -> bool {
    completion.data & tag::NOTIFY != 0
        || completion.status != CompletionStatus::Success
        || completion.flags.contains(CompletionFlags::RECEIVE | CompletionFlags::SOLICITED)
}

/// How the request of a completion was posted, from the completion's data word.
#[inline(always)]
pub(crate) fn posted(data: u32) -> Posted {
    Posted::from_bits_truncate((data >> tag::POSTED) as u8)
}

/// The event for a successful completion that needs no further fields.
#[inline(always)]
pub(crate) fn plain(done: Done, evd: EvdHandle) -> DtoCompletion {
    DtoCompletion {
        event_number: EventType(done.data & tag::EVENT),
        dto_status: DtoStatus::Success,
        evd,
        ep: EpHandle::from_raw(done.context),
        cookie: done.cookie,
        transferred_length: done.length,
        flags: DtoUdFlags::empty(),
        ud_ep_id: 0,
        unlinked_mr_handle: Handle::NULL,
    }
}

/// The event for a success that unlinked nothing.
#[inline(always)]
pub(crate) fn success(completion: &Completion, evd: EvdHandle) -> DtoCompletion {
    let event_number = EventType(completion.data & tag::EVENT);
    let datagram = event_number == EventType::DTO_UD_RECV_CMPL;
    let header = datagram && completion.flags.contains(CompletionFlags::GRH);
    DtoCompletion {
        event_number,
        dto_status: DtoStatus::Success,
        evd,
        ep: EpHandle::from_raw(completion.context),
        cookie: completion.cookie,
        transferred_length: completion.length,
        flags: if header { DtoUdFlags::IB_GRH_PRESENT } else { DtoUdFlags::empty() },
        ud_ep_id: if datagram { completion.detail } else { 0 },
        unlinked_mr_handle: Handle::NULL,
    }
}

/// The event for a completion.
#[inline(never)]
pub(crate) fn event(completion: &Completion, evd: EvdHandle, owners: &Owners) -> DtoCompletion {
    let event_number = EventType(completion.data & tag::EVENT);
    let dto_status = match completion.status {
        CompletionStatus::Success => DtoStatus::Success,
        _ if completion.data & tag::VIA != 0 => via::status::of(Status::from_bits_retain(completion.detail)),
        failed => failure(failed, event_number),
    };
    let mut flags = DtoUdFlags::empty();
    let mut ud_ep_id = 0;
    if event_number == EventType::DTO_UD_RECV_CMPL {
        ud_ep_id = completion.detail;
        if completion.flags.contains(CompletionFlags::GRH) {
            flags = DtoUdFlags::IB_GRH_PRESENT;
        }
    }
    let mut unlinked_mr_handle = Handle::NULL;
    if completion.flags.contains(CompletionFlags::INVALIDATED) {
        unlinked_mr_handle = owners.get(completion.immediate);
    }
    DtoCompletion {
        event_number,
        dto_status,
        evd,
        ep: EpHandle::from_raw(completion.context),
        cookie: completion.cookie,
        transferred_length: completion.length,
        flags,
        ud_ep_id,
        unlinked_mr_handle,
    }
}

/// The event's status for a failure that the NIC reports (it_dto_status_t, table for InfiniBand).
///
/// A request that the peer refuses as invalid violates a length limit or a rule of the endpoint,
/// not memory protection; but see the atomics. A failed link is always a memory management error,
/// regardless of the status that the NIC reports.
#[cold]
fn failure(status: CompletionStatus, event: EventType) -> DtoStatus {
    match status {
        CompletionStatus::Success => DtoStatus::Success,
        CompletionStatus::Flushed => DtoStatus::Flushed,
        _ if event == EventType::LMR_LINK_CMPL => DtoStatus::LocalMmOperation,
        CompletionStatus::LocalLength => DtoStatus::LocalLength,
        CompletionStatus::LocalQpOperation => DtoStatus::LocalEp,
        CompletionStatus::LocalProtection | CompletionStatus::LocalAccess => DtoStatus::LocalProtection,
        CompletionStatus::WindowBind => DtoStatus::RmrOperationFailed,
        CompletionStatus::BadResponse => DtoStatus::BadResponse,
        // The only remote region that a Send accesses is the one that it unlinks
        // (it_post_send_and_unlink).
        CompletionStatus::RemoteAccess if event == EventType::DTO_SEND_CMPL => DtoStatus::RemoteResponder,
        CompletionStatus::RemoteAccess => DtoStatus::RemoteAccess,
        // The peer's memory is not aligned, or its endpoint is not enabled for atomics: both are
        // access violations to the page of it_post_atomic.
        CompletionStatus::RemoteInvalidRequest
            if event == EventType::DTO_FETCH_ADD_CMPL || event == EventType::DTO_CMP_SWAP_CMPL =>
        {
            DtoStatus::RemoteAccess
        }
        CompletionStatus::RemoteInvalidRequest | CompletionStatus::RemoteOperation => {
            DtoStatus::RemoteResponder
        }
        CompletionStatus::RetryExceeded => DtoStatus::Transport,
        CompletionStatus::RnrRetryExceeded => DtoStatus::ReceiverNotReady,
        CompletionStatus::MemoryManagement => DtoStatus::LocalMmOperation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_completions_are_notified_by_their_number_or_by_a_full_stage() {
        let plain = Completion {
            status: CompletionStatus::Success,
            flags: CompletionFlags::empty(),
            context: 0,
            cookie: 0,
            data: 0,
            qpn: 0,
            opcode: 0,
            length: 0,
            immediate: 0,
            detail: 0,
        };
        let notifying = Completion { data: tag::NOTIFY, ..plain };
        let mut stage = Stage { ready: VecDeque::new(), notifications: 0, capacity: 4 };
        for queued in 0..4 {
            let at = [0, 1, 2, 3, 4].map(|threshold| stage.notified(threshold));
            // A threshold of 0 is none.
            assert_eq!(at, [0, 1, 2, 3, 4].map(|threshold| threshold > 0 && queued >= threshold), "{queued}");
            stage.push(plain);
        }
        assert!(stage.notified(0), "it is full");
        while stage.pop().is_some() {}
        assert!(!stage.notified(0));
        stage.push(notifying);
        assert!(stage.notified(0) && stage.notified(4));
        stage.pop();
        assert!(!stage.notified(0) && !stage.notified(1));
    }

    #[test]
    fn a_request_refused_as_invalid_is_an_access_error_of_an_atomic_only() {
        for (way, status) in [
            (EventType::DTO_RDMA_READ_CMPL, DtoStatus::RemoteResponder),
            (EventType::DTO_RDMA_WRITE_CMPL, DtoStatus::RemoteResponder),
            (EventType::DTO_SEND_CMPL, DtoStatus::RemoteResponder),
            (EventType::DTO_FETCH_ADD_CMPL, DtoStatus::RemoteAccess),
            (EventType::DTO_CMP_SWAP_CMPL, DtoStatus::RemoteAccess),
        ] {
            assert_eq!(failure(CompletionStatus::RemoteInvalidRequest, way), status);
        }
        assert_eq!(
            failure(CompletionStatus::RemoteAccess, EventType::DTO_RDMA_READ_CMPL),
            DtoStatus::RemoteAccess
        );
        assert_eq!(
            failure(CompletionStatus::RemoteAccess, EventType::DTO_SEND_CMPL),
            DtoStatus::RemoteResponder
        );
    }

    #[test]
    fn each_failure_of_a_write_has_the_status_of_the_table_for_infiniband() {
        for (failed, status) in [
            (CompletionStatus::Success, DtoStatus::Success),
            (CompletionStatus::Flushed, DtoStatus::Flushed),
            (CompletionStatus::LocalLength, DtoStatus::LocalLength),
            (CompletionStatus::LocalQpOperation, DtoStatus::LocalEp),
            (CompletionStatus::LocalProtection, DtoStatus::LocalProtection),
            (CompletionStatus::LocalAccess, DtoStatus::LocalProtection),
            (CompletionStatus::WindowBind, DtoStatus::RmrOperationFailed),
            (CompletionStatus::BadResponse, DtoStatus::BadResponse),
            (CompletionStatus::RemoteAccess, DtoStatus::RemoteAccess),
            (CompletionStatus::RemoteOperation, DtoStatus::RemoteResponder),
            (CompletionStatus::RetryExceeded, DtoStatus::Transport),
            (CompletionStatus::RnrRetryExceeded, DtoStatus::ReceiverNotReady),
            (CompletionStatus::MemoryManagement, DtoStatus::LocalMmOperation),
        ] {
            assert_eq!(failure(failed, EventType::DTO_RDMA_WRITE_CMPL), status, "{failed:?}");
        }
    }

    #[test]
    fn a_link_fails_as_memory_management_or_is_flushed() {
        let link = EventType::LMR_LINK_CMPL;
        assert_eq!(failure(CompletionStatus::LocalProtection, link), DtoStatus::LocalMmOperation);
        assert_eq!(failure(CompletionStatus::Flushed, link), DtoStatus::Flushed);
    }
}
