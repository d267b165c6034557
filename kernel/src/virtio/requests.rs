//! The requests of a block device that are under way in one of its queues, and the queue.
//!
//! The device is not trusted. A request is found by the driver's own tables, by the number of its
//! first descriptor, and a number that names no request ends the device: the queue has no way to
//! skip an entry, and a device that returns what it was never given has lost its state. After that
//! the owner resets the device, and all requests of all queues end with [`Fault::Gone`]. Memory
//! that the device may still reach, because it does not confirm the reset, is never released.
#![expect(unsafe_code, reason = "lends memory to a device")]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::sync::atomic::{Ordering, fence};

use block::{Data, Fault};
use platform::{DmaBuffer, OutOfMemory, Platform, SharedSlice, heap};
use virtio_drivers::Error;
use virtio_drivers::queue::VirtQueue;

use super::hal::Kernel;
use super::layout::{HEADER, Kind, NO_STATUS, header, outcome, range};
use super::pieces::{List, Pieces};
use super::{Device, Unusable};

/// The most pieces of a request.
pub(super) const MOST_PIECES: usize = 128;
/// Requests of so many pieces take less of the stack.
const FEW_PIECES: usize = 4;
/// The descriptors of a request beside its pieces: header and status.
const ENDS: usize = 2;

/// Bytes of the area for each request: a cache line.
const STRIDE: usize = 64;
/// Where the range and the status are in there; the header comes first.
const RANGE: usize = HEADER;
const STATUS: usize = 2 * HEADER;

/// No request.
const NONE: u16 = u16::MAX;

/// What is left to do of a request; addresses and lengths are in sectors.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Read {
        sector: u64,
        bytes: u32,
    },
    Write {
        sector: u64,
        /// The request completes after a flush that follows.
        then_flush: bool,
    },
    Flush,
    /// A range, in parts of at most `most` sectors.
    Range {
        kind: Kind,
        sector: u64,
        left: u64,
        most: u32,
        may_unmap: bool,
    },
}

enum State {
    Free,
    UnderWay(Work),
    /// Its outcome waits in `done`.
    Done,
}

struct Slot {
    state: State,
    token: u64,
    /// Keeps the memory of the pieces.
    buffer: Option<Arc<DmaBuffer>>,
    pieces: List,
}

impl Slot {
    /// Gives up the buffer: a device that has not confirmed its reset may still write there.
    fn abandon(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            buffer.abandon();
        }
    }
}

/// A request that has completed.
pub(super) struct Done {
    pub(super) token: u64,
    pub(super) result: Result<(), Fault>,
    /// To be released outside of the lock.
    pub(super) buffer: Option<Arc<DmaBuffer>>,
}

/// What [`Requests::next`] found.
pub(super) enum Next {
    /// No completion.
    Nothing,
    /// A request goes on with its next part; look again.
    Again,
    /// A completion.
    Done(Done),
    /// The device has lied, and is not to be used any more: in what.
    Broken(&'static str),
}

/// A queue. The owner resets the device, and calls [`Requests::end`], before it drops this:
/// otherwise the memory is never released.
pub(super) struct Requests<const SIZE: usize> {
    queue: ManuallyDrop<Box<VirtQueue<Kernel, SIZE>>>,
    /// Headers, ranges and statuses, [`STRIDE`] bytes for each slot.
    area: ManuallyDrop<DmaBuffer>,
    slots: Vec<Slot>,
    /// The slots that are free.
    free: Vec<u16>,
    /// The slot of each request in the queue, by its first descriptor.
    heads: Vec<u16>,
    pieces: Pieces,
    /// Outcomes that did not come out of the queue.
    done: VecDeque<(u16, Result<(), Fault>)>,
    /// The device wants to be told that the queue has changed.
    kick: bool,
    /// The device may interrupt.
    notifies: bool,
    /// The device is not used any more.
    has_ended: bool,
    /// Nor does it use the memory.
    is_reset: bool,
}

/// The buffers of a request in the order of its descriptors.
struct Chain<'a, const N: usize> {
    inputs: [&'a [u8]; N],
    outputs: [&'a mut [u8]; N],
    /// How many of each there are.
    lens: (usize, usize),
}

impl<const N: usize> Chain<'_, N> {
    fn new() -> Self {
        Chain {
            inputs: [const { &[] }; N],
            outputs: core::array::from_fn(|_| Default::default()),
            lens: (0, 0),
        }
    }

    /// Memory that the device reads.
    ///
    /// # Safety
    ///
    /// The memory outlives `self`, and no code reads its bytes through the references.
    unsafe fn input(&mut self, memory: SharedSlice<'_>) {
        // SAFETY: the caller's promise.
        let bytes = unsafe { core::slice::from_raw_parts(memory.as_ptr(), memory.len()) };
        if let Some(place) = self.inputs.get_mut(self.lens.0) {
            *place = bytes;
            self.lens.0 += 1;
        }
    }

    /// Memory that the device writes.
    ///
    /// # Safety
    ///
    /// The memory outlives `self`, and no code reads or writes its bytes through the
    /// references.
    unsafe fn output(&mut self, memory: SharedSlice<'_>) {
        // SAFETY: the caller's promise.
        let bytes = unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), memory.len()) };
        if let Some(place) = self.outputs.get_mut(self.lens.1) {
            *place = bytes;
            self.lens.1 += 1;
        }
    }
}

impl<const SIZE: usize> Requests<SIZE> {
    /// How many requests of one piece fit into the queue.
    pub(super) const DEPTH: usize = SIZE / (ENDS + 1);

    /// Sets a queue of the device up. The device may use it after `finish_init`; after an error it
    /// does not know of it.
    pub(super) fn new(
        platform: &Arc<dyn Platform>,
        device: &mut impl Device,
        number: u16,
    ) -> Result<Self, Unusable> {
        let room = |_| OutOfMemory;
        let area = DmaBuffer::new(platform, Self::DEPTH * STRIDE, STRIDE)?;
        let (mut slots, mut free, mut heads, mut done) =
            (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        slots.try_reserve_exact(Self::DEPTH).map_err(room)?;
        free.try_reserve_exact(Self::DEPTH).map_err(room)?;
        heads.try_reserve_exact(SIZE).map_err(room)?;
        done.try_reserve_exact(Self::DEPTH).map_err(room)?;
        let slot = || Slot { state: State::Free, token: 0, buffer: None, pieces: List::EMPTY };
        slots.resize_with(Self::DEPTH, slot);
        free.extend((0..Self::DEPTH as u16).rev());
        heads.resize(SIZE, NONE);
        let pieces = Pieces::new(SIZE as u16)?;
        let queue = make_queue(device, number)?;
        Ok(Requests {
            queue: ManuallyDrop::new(queue),
            area: ManuallyDrop::new(area),
            slots,
            free,
            heads,
            pieces,
            done,
            kick: false,
            notifies: true,
            has_ended: false,
            is_reset: false,
        })
    }

    /// Whether a request of so many pieces fits now.
    pub(super) fn has_room(&self, pieces: usize) -> bool {
        !self.free.is_empty() && self.queue.available_desc() >= pieces + ENDS
    }

    /// Whether [`Requests::end`] was called.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Starts a request for which there is room.
    pub(super) fn start(&mut self, token: u64, work: Work, data: Option<&Data<'_>>) -> Result<(), Fault> {
        let pieces = data.map_or(Some(List::EMPTY), |data| self.pieces.keep(data.pieces));
        let (Some(pieces), Some(index)) = (pieces, self.free.pop()) else { return Err(Fault::Media) };
        self.slots[usize::from(index)] = Slot {
            state: State::UnderWay(work),
            token,
            buffer: data.map(|data| data.buffer.clone()),
            pieces,
        };
        if !self.post(index, work) {
            let Done { result, .. } = self.finish(index, Err(Fault::Media));
            return result;
        }
        Ok(())
    }

    /// Notes the outcome of a request that the device has nothing to do for. There is room.
    pub(super) fn complete(&mut self, token: u64, result: Result<(), Fault>) {
        if let Some(index) = self.free.pop() {
            self.slots[usize::from(index)] =
                Slot { state: State::Done, token, buffer: None, pieces: List::EMPTY };
            self.done.push_back((index, result));
        }
    }

    /// Puts a request, or its next part, into the queue. False if there is no room.
    fn post(&mut self, index: u16, work: Work) -> bool {
        let (kind, sector, part) = match work {
            Work::Read { sector, .. } => (Kind::In, sector, None),
            Work::Write { sector, .. } => (Kind::Out, sector, None),
            Work::Flush => (Kind::Flush, 0, None),
            Work::Range { kind, sector, left, most, may_unmap } => {
                (kind, 0, Some(range(sector, part_of(left, most), may_unmap)))
            }
        };
        let at = usize::from(index) * STRIDE;
        let written = self.area.write(at, &header(kind, sector)).and_then(|()| match part {
            Some(part) => self.area.write(at + RANGE, &part),
            None => Ok(()),
        });
        if written.and_then(|()| self.area.write(at + STATUS, &[NO_STATUS])).is_err() {
            return false;
        }
        let posted = if self.slots[usize::from(index)].pieces.len <= FEW_PIECES {
            self.add::<{ FEW_PIECES + ENDS }>(index)
        } else {
            self.add::<{ MOST_PIECES + ENDS }>(index)
        };
        let Some(place) = posted.and_then(|head| self.heads.get_mut(usize::from(head))) else { return false };
        *place = index;
        // The device reads the queue's index after it has asked to be told; so this has to be read
        // after the index was written.
        fence(Ordering::SeqCst);
        self.kick |= self.queue.should_notify();
        true
    }

    /// The buffers of a request. `None` if they do not lie in their memory, or are more than `N`.
    fn chain<'a, const N: usize>(&self, index: u16) -> Option<Chain<'a, N>> {
        let slot = &self.slots[usize::from(index)];
        let State::UnderWay(work) = slot.state else { return None };
        let (at, area) = (usize::from(index) * STRIDE, self.area.slice());
        let mut chain = Chain::new();
        let memory = slot.buffer.as_ref().map(|buffer| buffer.slice());
        let pieces = || {
            let piece = move |piece: block::Piece| memory?.get(piece.offset, piece.len).ok();
            self.pieces.iter(slot.pieces).map(piece)
        };
        if slot.pieces.len + ENDS > N {
            return None;
        }
        // SAFETY: the area lives as long as `self`, and the buffers below until the request has
        // completed. The queue looks at address and length of each reference only, and so does
        // `Kernel::share`: so no code depends on bytes that the device or another owner of the
        // buffer changes meanwhile.
        unsafe { chain.input(area.get(at, HEADER).ok()?) };
        match work {
            Work::Read { .. } => {
                for piece in pieces() {
                    // SAFETY: as above.
                    unsafe { chain.output(piece?) };
                }
            }
            Work::Write { .. } => {
                for piece in pieces() {
                    // SAFETY: as above.
                    unsafe { chain.input(piece?) };
                }
            }
            Work::Flush => {}
            // SAFETY: as above.
            Work::Range { .. } => unsafe { chain.input(area.get(at + RANGE, HEADER).ok()?) },
        }
        // SAFETY: as above.
        unsafe { chain.output(area.get(at + STATUS, 1).ok()?) };
        Some(chain)
    }

    /// Adds a request to the queue; its first descriptor.
    fn add<const N: usize>(&mut self, index: u16) -> Option<u16> {
        let mut chain = self.chain::<N>(index)?;
        let (inputs, outputs) = chain.lens;
        // SAFETY: area and buffer stay where they are until the request has left the queue or the
        // device was reset. The bytes may be accessed meanwhile, but by copies and atomics only,
        // as memory that is shared with a device is.
        unsafe { self.queue.add(&chain.inputs[..inputs], &mut chain.outputs[..outputs]) }.ok()
    }

    /// Removes a request from the queue, if it is next there. How many bytes the device has
    /// written.
    fn take<const N: usize>(&mut self, head: u16, index: u16) -> Option<u32> {
        let mut chain = self.chain::<N>(index)?;
        let (inputs, outputs) = chain.lens;
        // SAFETY: the same buffers as in `add`, since they are made of the same slot.
        unsafe { self.queue.pop_used(head, &chain.inputs[..inputs], &mut chain.outputs[..outputs]) }.ok()
    }

    /// The next completion. Each call takes one entry of the queue at most.
    pub(super) fn next(&mut self) -> Next {
        if let Some((index, result)) = self.done.pop_front() {
            return Next::Done(self.finish(index, result));
        }
        if self.has_ended {
            return Next::Nothing;
        }
        let Some(head) = self.queue.peek_used() else { return Next::Nothing };
        let place = self.heads.get_mut(usize::from(head));
        let index = place.map_or(NONE, |place| core::mem::replace(place, NONE));
        if index == NONE {
            return Next::Broken("it returned a request that it does not have");
        }
        let taken = if self.slots[usize::from(index)].pieces.len <= FEW_PIECES {
            self.take::<{ FEW_PIECES + ENDS }>(head, index)
        } else {
            self.take::<{ MOST_PIECES + ENDS }>(head, index)
        };
        let Some(len) = taken else { return Next::Broken("it changed its mind about a request") };
        let mut status = [NO_STATUS];
        let read = self.area.read(usize::from(index) * STRIDE + STATUS, &mut status);
        let result = read.map_err(|_| Fault::Media).and_then(|()| outcome(status[0]));
        self.advance(index, len, result)
    }

    /// Decides how a request goes on whose part has ended.
    fn advance(&mut self, index: u16, len: u32, result: Result<(), Fault>) -> Next {
        let State::UnderWay(work) = self.slots[usize::from(index)].state else { return Next::Again };
        let next = match work {
            _ if result.is_err() => None,
            // What the device has not written is not what the blocks contain.
            Work::Read { bytes, .. } if len < bytes => {
                return Next::Done(self.finish(index, Err(Fault::Media)));
            }
            Work::Write { then_flush: true, .. } => Some(Work::Flush),
            Work::Range { kind, sector, left, most, may_unmap } => {
                let part = u64::from(part_of(left, most));
                let rest = Work::Range { kind, sector: sector + part, left: left - part, most, may_unmap };
                (left > part).then_some(rest)
            }
            Work::Read { .. } | Work::Write { .. } | Work::Flush => None,
        };
        let Some(work) = next else { return Next::Done(self.finish(index, result)) };
        let slot = &mut self.slots[usize::from(index)];
        slot.state = State::UnderWay(work);
        self.pieces.release(core::mem::replace(&mut slot.pieces, List::EMPTY));
        // The part that has ended took at least as many descriptors.
        if self.post(index, work) { Next::Again } else { Next::Done(self.finish(index, Err(Fault::Media))) }
    }

    /// Frees the slot of a request that has completed.
    fn finish(&mut self, index: u16, result: Result<(), Fault>) -> Done {
        let slot = &mut self.slots[usize::from(index)];
        slot.state = State::Free;
        self.pieces.release(core::mem::replace(&mut slot.pieces, List::EMPTY));
        self.free.push(index);
        Done { token: slot.token, result, buffer: slot.buffer.take() }
    }

    /// The device is not used any more, and `is_reset` if it does not use the memory either; all
    /// requests end.
    pub(super) fn end(&mut self, is_reset: bool) {
        if core::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.is_reset = is_reset;
        for (index, slot) in (0..).zip(&mut self.slots) {
            if let State::UnderWay(_) = slot.state {
                slot.state = State::Done;
                self.done.push_back((index, Err(Fault::Gone)));
                if !is_reset {
                    slot.abandon();
                }
            }
        }
    }

    /// Whether the device asks for a notification of requests that were started since the last
    /// call.
    pub(super) fn take_kick(&mut self) -> bool {
        core::mem::take(&mut self.kick)
    }

    /// Has the device interrupt when a request completes, or not.
    pub(super) fn notify(&mut self, notifies: bool) {
        if self.notifies != notifies && !self.has_ended {
            self.notifies = notifies;
            self.queue.set_dev_notify(notifies);
        }
    }

    /// Whether there are completions after [`Requests::notify`].
    pub(super) fn is_ready(&self) -> bool {
        // The device asks whether it may interrupt after it has written the completion.
        fence(Ordering::SeqCst);
        !self.done.is_empty() || (!self.has_ended && self.queue.can_pop())
    }
}

/// Makes the queue. Not a part of its caller, so that the stack has room for the queue's copies of
/// descriptors, 16 KiB, only while they move to the heap.
#[inline(never)]
fn make_queue<const SIZE: usize>(
    device: &mut impl Device,
    number: u16,
) -> Result<Box<VirtQueue<Kernel, SIZE>>, Unusable> {
    heap::room(size_of::<VirtQueue<Kernel, SIZE>>())?;
    VirtQueue::new(device, number, false, false).map(Box::new).map_err(|error| match error {
        Error::DmaError => Unusable::OutOfMemory,
        // It is shorter than `SIZE`, or set already, although the device was reset.
        _ => Unusable::Queue,
    })
}

/// The sectors of the next part of a range.
fn part_of(left: u64, most: u32) -> u32 {
    u32::try_from(left).unwrap_or(u32::MAX).min(most)
}

impl<const SIZE: usize> Drop for Requests<SIZE> {
    fn drop(&mut self) {
        if self.is_reset {
            // SAFETY: they are not used after this, and the device does not reach them any more.
            unsafe {
                ManuallyDrop::drop(&mut self.queue);
                ManuallyDrop::drop(&mut self.area);
            }
        } else {
            self.slots.iter_mut().for_each(Slot::abandon);
        }
    }
}
