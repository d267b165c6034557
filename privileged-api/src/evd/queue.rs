//! The queue of an EVD whose events software makes. It is bounded, and its memory is allocated when
//! it is created or resized.
//!
//! Owns the events. Its lock is the innermost, and is held for a few instructions.

use alloc::collections::VecDeque;

use platform::sync::Mutex;

use crate::event::Event;
use crate::status::{Error, Result};

/// The largest capacity of such a queue.
pub(crate) const MAX_EVENTS: usize = 1 << 15;

pub(crate) struct SoftQueue {
    ring: Mutex<Ring>,
}

struct Ring {
    events: VecDeque<Event>,
    capacity: usize,
}

impl SoftQueue {
    pub(crate) fn new(capacity: usize) -> Result<SoftQueue> {
        Ok(SoftQueue { ring: Mutex::new(Ring { events: allocate(capacity)?, capacity }) })
    }

    /// Appends an event; false if the queue is full.
    pub(crate) fn push(&self, event: Event) -> bool {
        let mut ring = self.ring.lock();
        if ring.events.len() >= ring.capacity {
            return false;
        }
        ring.events.push_back(event);
        true
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&self) -> Option<Event> {
        self.ring.lock().events.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.lock().events.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.lock().capacity
    }

    /// Changes the capacity. Fails with `InvalidQueueSize` if more events are queued than fit.
    pub(crate) fn resize(&self, capacity: usize) -> Result<()> {
        let mut events = allocate(capacity)?;
        let mut ring = self.ring.lock();
        if ring.events.len() > capacity {
            return Err(Error::InvalidQueueSize);
        }
        events.append(&mut ring.events);
        ring.capacity = capacity;
        // Release the old buffer without the lock.
        let old = core::mem::replace(&mut ring.events, events);
        drop(ring);
        drop(old);
        Ok(())
    }
}

fn allocate(capacity: usize) -> Result<VecDeque<Event>> {
    if capacity > MAX_EVENTS {
        return Err(Error::ResourceQueueSize);
    }
    let mut events = VecDeque::new();
    events.try_reserve_exact(capacity).map_err(|_| Error::ResourceQueueSize)?;
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
        let queue = SoftQueue::new(2).unwrap();
        assert!(queue.push(event(1)) && queue.push(event(2)));
        assert!(!queue.push(event(3)));
        assert_eq!(queue.pop(), Some(event(1)));
        assert!(queue.push(event(4)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(event(2)), Some(event(4)), None));
    }

    #[test]
    fn resizing_keeps_the_order_and_fails_if_events_do_not_fit() {
        let queue = SoftQueue::new(2).unwrap();
        assert!(queue.push(event(1)) && queue.push(event(2)));
        assert_eq!(queue.resize(1), Err(Error::InvalidQueueSize));
        assert_eq!(queue.resize(3), Ok(()));
        assert!(queue.push(event(3)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(event(1)), Some(event(2)), Some(event(3))));
        assert_eq!(SoftQueue::new(MAX_EVENTS + 1).err(), Some(Error::ResourceQueueSize));
    }
}
