//! The work queues: posting and taking descriptors, waiting for them, and handlers (pages
//! VipPostSend to VipRecvWait, VipSendNotify, VipRecvNotify).
//!
//! A post goes from the handle to the queue's slot, and under its lock to the agent's queue. A
//! descriptor leaves its queue from the head, through a Done, Wait or Notify call.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::Cell;

use kernel_agent::{ViPostError, ViTaken};

use super::{SIDES, Vi};
use crate::error::{Error, Result};
use crate::error_callback::ErrorCode;
use crate::handle::{MemHandle, ViHandle};
use crate::nic::{Core, Nic};
use crate::wait::{Deadline, wait};

/// The index of the send queue.
const SEND: usize = 0;
/// The index of the receive queue.
const RECEIVE: usize = 1;

/// A handler for a descriptor. It gets its context, the NIC, the virtual interface and the
/// descriptor's address.
pub type DescriptorHandler = Box<dyn FnOnce(u64, &Nic, ViHandle, u64) + Send>;

impl Core {
    /// Posts a descriptor.
    #[inline(always)]
    fn post(&self, vi: ViHandle, queue: usize, descriptor: u64, memory: MemHandle) -> Result<()> {
        let posted = match self.vi_slots.lock(vi.as_raw(), queue).as_ref().and_then(|open| open.object()) {
            Some(vi) => vi.post(SIDES[queue], descriptor, memory.as_raw(), |address, handle| {
                self.descriptors.link(address, (handle, vi.domain()), descriptor, memory.as_raw());
            }),
            None => Err(ViPostError::Gone),
        };
        posted.or_else(|error| self.not_posted(vi, queue, (descriptor, memory.as_raw()), error))
    }

    /// A post to a full queue succeeds, and the error handler learns of it.
    #[cold]
    #[inline(never)]
    fn not_posted(
        &self,
        vi: ViHandle,
        queue: usize,
        (descriptor, memory): (u64, u32),
        error: ViPostError,
    ) -> Result<()> {
        if error == ViPostError::Gone {
            return Err(self.refused());
        }
        let found = self.vi(vi)?;
        // Descriptors that the NIC has lost take no room.
        self.report_all_lost(&found, found.vi.qpn());
        found.vi.queued(SIDES[queue]);
        let again =
            |address, handle| self.descriptors.link(address, (handle, found.vi.domain()), descriptor, memory);
        match found.vi.post(SIDES[queue], descriptor, memory, again) {
            Ok(()) => return Ok(()),
            Err(ViPostError::Gone) => return Err(self.refused()),
            Err(ViPostError::Full) => {}
        }
        *found.queues[queue].overrun.lock() = Some((descriptor, found.vi.qpn()));
        self.schedule_vi(vi.as_raw(), queue);
        Ok(())
    }

    /// Takes the descriptor at the head of a queue if it is complete.
    #[inline(always)]
    fn done(&self, vi: ViHandle, queue: usize) -> Result<u64> {
        let taken = match self.vi_slots.lock(vi.as_raw(), queue).as_ref().and_then(|open| open.object()) {
            Some(vi) => vi.take(SIDES[queue], |address, handle| {
                self.descriptors.is_done(address, (handle, vi.domain()))
            }),
            None => return Err(self.refused()),
        };
        match taken {
            ViTaken::Done { address, .. } => Ok(address),
            ViTaken::NotDone => Err(Error::NotDone),
            ViTaken::Lost => self.done_behind_lost(vi, queue),
        }
    }

    #[cold]
    #[inline(never)]
    fn done_behind_lost(&self, vi: ViHandle, queue: usize) -> Result<u64> {
        let Some(found) = self.vis.get(vi) else { return Err(self.refused()) };
        self.take_lost(&found, queue);
        self.done(vi, queue)
    }

    /// Takes the descriptors that the NIC has lost off the head of a queue, and reports those that
    /// were not reported yet.
    fn take_lost(&self, vi: &Arc<Vi>, queue: usize) {
        while let Some(address) = vi.vi.take_lost(SIDES[queue]) {
            self.lost_descriptor(vi, vi.vi.qpn(), queue, address);
        }
    }

    /// Reports a descriptor that the NIC has lost, and that no upcall reports.
    fn lost_descriptor(&self, vi: &Arc<Vi>, number: u32, queue: usize, address: u64) {
        self.vi_error(vi, (number, true), ErrorCode::PostDesc, queue as u32, address);
    }

    /// Reports the descriptors of both queues that the NIC has lost and that were not reported yet.
    pub(super) fn report_all_lost(&self, vi: &Arc<Vi>, number: u32) {
        for queue in [SEND, RECEIVE] {
            vi.vi.each_unreported(SIDES[queue], |at| self.lost_descriptor(vi, number, queue, at));
        }
    }

    fn wait(&self, vi: ViHandle, queue: usize, timeout: u32) -> Result<u64> {
        let Some(found) = self.vis.get(vi) else { return Err(self.refused()) };
        self.still_live()?;
        let of = &found.queues[queue];
        if !of.tied.is_null() {
            return Err(Error::ErrorResource);
        }
        let take = || match self.done(vi, queue) {
            Err(Error::NotDone) => Ok(None),
            other => other.map(Some),
        };
        wait(&of.signal, Deadline::after(self.adapter.platform(), timeout), take, || {
            found.vi.arm(SIDES[queue])
        })
    }

    /// Takes what the handlers of a queue wait for.
    fn fill(&self, vi: &Arc<Vi>, queue: usize) -> bool {
        let side = SIDES[queue];
        let lost = Cell::new(false);
        let is_done = |address, handle| self.descriptors.is_done(address, (handle, vi.vi.domain()));
        let take = || match vi.vi.take(side, is_done) {
            ViTaken::Done { address, .. } => Some(address),
            ViTaken::NotDone => None,
            ViTaken::Lost => {
                lost.set(true);
                None
            }
        };
        loop {
            let due = vi.queues[queue].notices.fill(take, || vi.vi.arm(side));
            if !lost.take() {
                return due;
            }
            // Without the notices' lock.
            self.take_lost(vi, queue);
        }
    }

    /// Reports that a queue was full, or calls the first handler that is due; true if there are
    /// more. In the handler thread.
    pub(crate) fn run_vi(&self, nic: &Nic, vi: &Arc<Vi>, queue: usize) -> bool {
        let of = &vi.queues[queue];
        if let Some(number) = self.report_overrun(vi, queue) {
            self.break_if_reliable(vi, number);
        }
        self.fill(vi, queue) && of.notices.run(nic)
    }

    /// Reports that a queue was full. Returns the number that the agent's virtual interface had.
    fn report_overrun(&self, vi: &Arc<Vi>, queue: usize) -> Option<u32> {
        let (descriptor, number) = vi.queues[queue].overrun.lock().take()?;
        self.vi_error(vi, (number, true), ErrorCode::ViOverrun, queue as u32, descriptor);
        Some(number)
    }

    /// Reports for both queues that they were full, when their connection is over: it has nothing
    /// to do with the next one. Returns whether that happened under this number.
    pub(super) fn report_overruns(&self, vi: &Arc<Vi>, number: u32) -> bool {
        // Both are reported.
        [SEND, RECEIVE].map(|queue| self.report_overrun(vi, queue) == Some(number)).contains(&true)
    }

    /// A queue was armed, and a descriptor on it is complete. In the dispatcher thread.
    pub(crate) fn completed(&self, vi: &Vi, queue: usize) {
        let of = &vi.queues[queue];
        of.signal.raise();
        if of.notices.any() {
            self.schedule_vi(vi.handle.as_raw(), queue);
        }
    }
}

impl Nic {
    fn notify(&self, vi: ViHandle, queue: usize, context: u64, handler: DescriptorHandler) -> Result<()> {
        let core = self.call()?;
        let found = core.vi(vi)?;
        let of = &found.queues[queue];
        if !of.tied.is_null() {
            return Err(Error::ErrorResource);
        }
        of.notices.add(of.entries, move |nic, descriptor| handler(context, nic, vi, descriptor))?;
        // A virtual interface that was destroyed meanwhile may have dropped its handlers before.
        if core.vi(vi).is_err() {
            found.end();
            return Err(Error::InvalidParameter);
        }
        if core.fill(&found, queue) {
            core.schedule_vi(vi.as_raw(), queue);
        }
        Ok(())
    }

    /// Posts a descriptor to the send queue: at the address `descriptor`, in memory with the handle
    /// `memory`. Writes its address into Next of the descriptor before it, if that is on the queue
    /// and not complete.
    ///
    /// What is wrong with the descriptor shows in its status, or in an asynchronous error: so does
    /// a queue that is full ([`ErrorCode::ViOverrun`](crate::ErrorCode::ViOverrun)), and a
    /// descriptor that is misaligned or not in that memory
    /// ([`ErrorCode::PostDesc`](crate::ErrorCode::PostDesc)). Several posts to a full queue may
    /// cause one error.
    ///
    /// Errors: `InvalidParameter` (the virtual interface), `ErrorResource` (the NIC is dead).
    /// Neither blocks nor allocates. May be called in handlers. Thread-safe. Page VipPostSend.
    #[doc(alias = "VipPostSend")]
    #[inline]
    pub fn post_send(&self, vi: ViHandle, descriptor: u64, memory: MemHandle) -> Result<()> {
        self.core().post(vi, SEND, descriptor, memory)
    }

    /// Posts a descriptor to the receive queue; otherwise as [`Nic::post_send`].
    ///
    /// Errors: `InvalidParameter` (the virtual interface), `ErrorResource` (the NIC is dead).
    /// Neither blocks nor allocates. May be called in handlers. Thread-safe. Page VipPostRecv.
    #[doc(alias = "VipPostRecv")]
    #[inline]
    pub fn post_recv(&self, vi: ViHandle, descriptor: u64, memory: MemHandle) -> Result<()> {
        self.core().post(vi, RECEIVE, descriptor, memory)
    }

    /// Takes the descriptor at the head of the send queue off the queue if it is complete, and
    /// returns its address.
    ///
    /// A descriptor whose status the NIC could not write never comes back; an asynchronous error
    /// says so.
    ///
    /// Errors: `NotDone`, `InvalidParameter` (the virtual interface), `ErrorResource` (the NIC is
    /// dead). Neither blocks nor allocates. May be called in handlers. Thread-safe. Page
    /// VipSendDone.
    #[doc(alias = "VipSendDone")]
    #[inline]
    pub fn send_done(&self, vi: ViHandle) -> Result<u64> {
        self.core().done(vi, SEND)
    }

    /// As [`Nic::send_done`], for the receive queue.
    ///
    /// Errors: `NotDone`, `InvalidParameter` (the virtual interface), `ErrorResource` (the NIC is
    /// dead). Neither blocks nor allocates. May be called in handlers. Thread-safe. Page
    /// VipRecvDone.
    #[doc(alias = "VipRecvDone")]
    #[inline]
    pub fn recv_done(&self, vi: ViHandle) -> Result<u64> {
        self.core().done(vi, RECEIVE)
    }

    /// As [`Nic::send_done`], but waits up to `timeout` milliseconds, or without end for
    /// [`INFINITE`](crate::INFINITE).
    ///
    /// Errors: `InvalidParameter` (the virtual interface; also if it is destroyed meanwhile),
    /// `ErrorResource` (the queue is tied to a completion queue, or the NIC is dead), `Timeout`.
    /// May be called in handlers, which then hold up others. Thread-safe. Page VipSendWait.
    #[doc(alias = "VipSendWait")]
    pub fn send_wait(&self, vi: ViHandle, timeout: u32) -> Result<u64> {
        self.core().wait(vi, SEND, timeout)
    }

    /// As [`Nic::send_wait`], for the receive queue.
    ///
    /// Errors: `InvalidParameter` (the virtual interface; also if it is destroyed meanwhile),
    /// `ErrorResource` (the queue is tied to a completion queue, or the NIC is dead), `Timeout`.
    /// May be called in handlers, which then hold up others. Thread-safe. Page VipRecvWait.
    #[doc(alias = "VipRecvWait")]
    pub fn recv_wait(&self, vi: ViHandle, timeout: u32) -> Result<u64> {
        self.core().wait(vi, RECEIVE, timeout)
    }

    /// Has a handler called once, with the next descriptor that completes on the send queue, which
    /// is taken off the queue. If one is complete already, this call takes it.
    ///
    /// The handler runs in the NIC's handler thread, never inside a call. Handlers are called in
    /// the order of these calls. As many handlers can wait as the queue has room for descriptors.
    ///
    /// Errors: `InvalidParameter` (the virtual interface), `ErrorResource` (the queue is tied to a
    /// completion queue, too many handlers wait, no memory, or the NIC is dead). Does not block.
    /// May be called in handlers. Thread-safe. Page VipSendNotify.
    #[doc(alias = "VipSendNotify")]
    pub fn send_notify(&self, vi: ViHandle, context: u64, handler: DescriptorHandler) -> Result<()> {
        self.notify(vi, SEND, context, handler)
    }

    /// As [`Nic::send_notify`], for the receive queue.
    ///
    /// Errors: `InvalidParameter` (the virtual interface), `ErrorResource` (the queue is tied to a
    /// completion queue, too many handlers wait, no memory, or the NIC is dead). Does not block.
    /// May be called in handlers. Thread-safe. Page VipRecvNotify.
    #[doc(alias = "VipRecvNotify")]
    pub fn recv_notify(&self, vi: ViHandle, context: u64, handler: DescriptorHandler) -> Result<()> {
        self.notify(vi, RECEIVE, context, handler)
    }
}
