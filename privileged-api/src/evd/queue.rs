//! The queue of the events that software makes. Streams that share it keep the order in which their
//! events came, and each has its own share of the room. The memory is allocated when the queue is
//! created or resized.
//!
//! Owns the events. Its lock is the innermost, and is held for a few instructions.

use alloc::collections::VecDeque;

use platform::sync::Mutex;

use super::streams::EventStreams;
use crate::event::Event;
use crate::status::{Error, Result};

/// The most events of one stream that such a queue can hold.
pub(crate) const MAX_EVENTS: usize = 1 << 15;

pub(crate) struct SoftQueue {
    ring: Mutex<Ring>,
    /// The number of streams that share the ring.
    streams: usize,
}

struct Ring {
    /// The events of all streams, oldest first.
    events: VecDeque<Event>,
    /// The number of queued events, by stream.
    queued: [usize; EventStreams::ALL],
    /// The most events of one stream: a stream that fills its share leaves room for the others.
    share: usize,
}

impl SoftQueue {
    /// Makes a queue that holds `share` events of each of these streams.
    pub(crate) fn new(streams: EventStreams, share: usize) -> Result<SoftQueue> {
        let streams = streams.count();
        let ring = Ring { events: allocate(streams, share)?, queued: [0; EventStreams::ALL], share };
        Ok(SoftQueue { ring: Mutex::new(ring), streams })
    }

    /// Appends an event; false if its stream has filled its share.
    pub(crate) fn push(&self, event: Event) -> bool {
        let stream = EventStreams::of_event(&event).index();
        let mut ring = self.ring.lock();
        let share = ring.share;
        match ring.queued.get_mut(stream) {
            Some(queued) if *queued < share => *queued += 1,
            _ => return false,
        }
        ring.events.push_back(event);
        true
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&self) -> Option<Event> {
        let mut ring = self.ring.lock();
        let event = ring.events.pop_front()?;
        if let Some(queued) = ring.queued.get_mut(EventStreams::of_event(&event).index()) {
            *queued -= 1;
        }
        Some(event)
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.lock().events.len()
    }

    /// The most events of one stream.
    pub(crate) fn share(&self) -> usize {
        self.ring.lock().share
    }

    /// The most events of all streams.
    pub(crate) fn capacity(&self) -> usize {
        self.share() * self.streams
    }

    /// Changes the share of each stream. Fails with `InvalidQueueSize` if more events of a stream
    /// are queued than fit.
    pub(crate) fn resize(&self, share: usize) -> Result<()> {
        let mut events = allocate(self.streams, share)?;
        let mut ring = self.ring.lock();
        if ring.queued.iter().any(|queued| *queued > share) {
            return Err(Error::InvalidQueueSize);
        }
        events.append(&mut ring.events);
        ring.share = share;
        // Release the old buffer without the lock.
        let old = core::mem::replace(&mut ring.events, events);
        drop(ring);
        drop(old);
        Ok(())
    }
}

fn allocate(streams: usize, share: usize) -> Result<VecDeque<Event>> {
    if share > MAX_EVENTS {
        return Err(Error::ResourceQueueSize);
    }
    let mut events = VecDeque::new();
    events.try_reserve_exact(streams * share).map_err(|_| Error::ResourceQueueSize)?;
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::EvdHandle;

    fn event(data: usize) -> Event {
        Event::Software { evd: EvdHandle::NULL, data }
    }

    #[test]
    fn a_queue_holds_as_many_events_as_its_capacity() {
        let queue = SoftQueue::new(EventStreams::OWN, 2).unwrap();
        assert!(queue.push(event(1)) && queue.push(event(2)));
        assert!(!queue.push(event(3)));
        assert_eq!(queue.pop(), Some(event(1)));
        assert!(queue.push(event(4)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(event(2)), Some(event(4)), None));
    }

    #[test]
    fn resizing_keeps_the_order_and_fails_if_events_do_not_fit() {
        let queue = SoftQueue::new(EventStreams::OWN, 2).unwrap();
        assert!(queue.push(event(1)) && queue.push(event(2)));
        assert_eq!(queue.resize(1), Err(Error::InvalidQueueSize));
        assert_eq!(queue.resize(3), Ok(()));
        assert!(queue.push(event(3)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(event(1)), Some(event(2)), Some(event(3))));
        assert_eq!(SoftQueue::new(EventStreams::OWN, MAX_EVENTS + 1).err(), Some(Error::ResourceQueueSize));
    }

    #[test]
    fn a_stream_that_fills_its_share_leaves_room_for_the_others() {
        let queue = SoftQueue::new(EventStreams::OWN | EventStreams::SOFTWARE, 1).unwrap();
        let software = |data| Event::Software { evd: EvdHandle::from_raw(9), data };
        assert_eq!((queue.share(), queue.capacity()), (1, 2));
        assert!(queue.push(event(1)) && !queue.push(event(2)));
        assert!(queue.push(software(3)) && !queue.push(software(4)));
        assert_eq!(queue.pop(), Some(event(1)));
        assert!(!queue.push(software(5)) && queue.push(event(6)));
        assert_eq!(queue.resize(0), Err(Error::InvalidQueueSize));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(software(3)), Some(event(6)), None));
    }
}
