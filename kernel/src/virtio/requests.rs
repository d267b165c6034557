//! The requests of a block device that are under way, and the queue that they are in.
//!
//! The device is not trusted. A request is found by the driver's own tables, by the number of its
//! first descriptor, and a number that names no request ends the device: the queue has no way to
//! skip an entry, and a device that returns what it was never given has lost its state. After that
//! the device is reset, and all requests end with [`Fault::Gone`]. Memory that the device may still
//! reach, because it does not confirm the reset, is never released.
#![expect(unsafe_code, reason = "lends memory to a device")]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

use block::{Data, Fault};
use platform::{DmaBuffer, OutOfMemory, Platform, SharedSlice, heap};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::DeviceStatus;

use super::Device;
use super::hal::Kernel;
use super::layout::{HEADER, Kind, NO_STATUS, header, outcome, range};
use super::pieces::{List, Pieces};
use crate::clock;

/// The only queue.
pub(super) const QUEUE: u16 = 0;
/// The most pieces of a request.
pub(super) const MOST_PIECES: usize = 128;
/// Requests of so many pieces take less of the stack.
const FEW_PIECES: usize = 4;
/// The descriptors of a request beside its pieces: header and status.
const ENDS: usize = 2;
/// How long the device may take to confirm a reset.
const RESET_TIME: Duration = Duration::from_secs(1);

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
}

pub(super) struct Requests<T: Device, const SIZE: usize> {
    device: T,
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
    is_broken: bool,
    /// The device does not use the memory any more.
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

impl<T: Device, const SIZE: usize> Requests<T, SIZE> {
    /// How many requests of one piece fit into the queue.
    pub(super) const DEPTH: usize = SIZE / (ENDS + 1);

    /// Sets the queue up. The device may use it after `finish_init`.
    pub(super) fn new(platform: &Arc<dyn Platform>, mut device: T) -> Result<Self, OutOfMemory> {
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
        let queue = make_queue(&mut device)?;
        Ok(Requests {
            device,
            queue: ManuallyDrop::new(queue),
            area: ManuallyDrop::new(area),
            slots,
            free,
            heads,
            pieces,
            done,
            kick: false,
            notifies: true,
            is_broken: false,
            is_reset: false,
        })
    }

    pub(super) fn device(&mut self) -> &mut T {
        &mut self.device
    }

    /// Whether a request of so many pieces fits now.
    pub(super) fn has_room(&self, pieces: usize) -> bool {
        !self.free.is_empty() && self.queue.available_desc() >= pieces + ENDS
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
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
        if self.is_broken {
            return Next::Nothing;
        }
        let Some(head) = self.queue.peek_used() else { return Next::Nothing };
        let place = self.heads.get_mut(usize::from(head));
        let index = place.map_or(NONE, |place| core::mem::replace(place, NONE));
        if index == NONE {
            self.break_down("it returned a request that it does not have");
            return Next::Again;
        }
        let taken = if self.slots[usize::from(index)].pieces.len <= FEW_PIECES {
            self.take::<{ FEW_PIECES + ENDS }>(head, index)
        } else {
            self.take::<{ MOST_PIECES + ENDS }>(head, index)
        };
        let Some(len) = taken else {
            self.break_down("it changed its mind about a request");
            return Next::Again;
        };
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

    /// Looks whether the device has given up.
    pub(super) fn look(&mut self) {
        if !self.is_broken && self.device.get_status().contains(DeviceStatus::DEVICE_NEEDS_RESET) {
            self.break_down("it asks for a reset");
        }
    }

    /// The device is not used any more; all requests end.
    fn break_down(&mut self, why: &str) {
        log::error!("{} is given up: {why}", self.device.name());
        self.is_broken = true;
        self.reset();
        for (index, slot) in (0..).zip(&mut self.slots) {
            if let State::UnderWay(_) = slot.state {
                slot.state = State::Done;
                self.done.push_back((index, Err(Fault::Gone)));
                if !self.is_reset {
                    slot.abandon();
                }
            }
        }
    }

    /// Resets the device, and notes whether it has confirmed that.
    fn reset(&mut self) {
        self.device.set_status(DeviceStatus::empty());
        let deadline = clock::now() + RESET_TIME;
        self.is_reset = loop {
            if self.device.get_status().is_empty() {
                break true;
            }
            if clock::now() >= deadline {
                break false;
            }
            core::hint::spin_loop();
        };
    }

    /// Whether the device asks for a notification of requests that were started since the last
    /// call.
    pub(super) fn take_kick(&mut self) -> bool {
        core::mem::take(&mut self.kick)
    }

    /// Has the device interrupt when a request completes, or not.
    pub(super) fn notify(&mut self, notifies: bool) {
        if self.notifies != notifies && !self.is_broken {
            self.notifies = notifies;
            self.queue.set_dev_notify(notifies);
        }
    }

    /// Whether there are completions after [`Requests::notify`].
    pub(super) fn is_ready(&self) -> bool {
        // The device asks whether it may interrupt after it has written the completion.
        fence(Ordering::SeqCst);
        !self.done.is_empty() || (!self.is_broken && self.queue.can_pop())
    }
}

/// Makes the queue. Not a part of its caller, so that the stack has room for the queue's copies of
/// descriptors, 16 KiB, only while they move to the heap.
#[inline(never)]
fn make_queue<T: Device, const SIZE: usize>(
    device: &mut T,
) -> Result<Box<VirtQueue<Kernel, SIZE>>, OutOfMemory> {
    heap::room(size_of::<VirtQueue<Kernel, SIZE>>())?;
    // It fails for lack of memory alone: the caller has asked how long a queue may be, and the
    // device was reset.
    VirtQueue::new(device, QUEUE, false, false).map(Box::new).map_err(|_| OutOfMemory)
}

/// The sectors of the next part of a range.
fn part_of(left: u64, most: u32) -> u32 {
    u32::try_from(left).unwrap_or(u32::MAX).min(most)
}

impl<T: Device, const SIZE: usize> Drop for Requests<T, SIZE> {
    fn drop(&mut self) {
        if !self.is_broken {
            self.reset();
        }
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
