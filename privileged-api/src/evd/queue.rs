//! The queue of an EVD whose events software makes: bounded, allocated at creation.
//!
//! Owns the events. Its one lock is the innermost and held for a few instructions.

use alloc::collections::VecDeque;

use platform::sync::Mutex;

use crate::event::Event;
use crate::status::{Error, Result};

/// Events that such a queue holds at most.
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
        Ok(SoftQueue { ring: Mutex::new(Ring { events: room(capacity)?, capacity }) })
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

    /// Changes the capacity; refuses one that is too small for what is queued.
    pub(crate) fn resize(&self, capacity: usize) -> Result<()> {
        let mut events = room(capacity)?;
        let mut ring = self.ring.lock();
        if ring.events.len() > capacity {
            return Err(Error::InvalidQueueSize);
        }
        events.append(&mut ring.events);
        ring.capacity = capacity;
        // The old buffer is freed after the lock.
        let old = core::mem::replace(&mut ring.events, events);
        drop(ring);
        drop(old);
        Ok(())
    }
}

fn room(capacity: usize) -> Result<VecDeque<Event>> {
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
    fn holds_what_was_asked_for_and_no_more() {
        let queue = SoftQueue::new(2).unwrap();
        assert!(queue.push(event(1)) && queue.push(event(2)));
        assert!(!queue.push(event(3)));
        assert_eq!(queue.pop(), Some(event(1)));
        assert!(queue.push(event(4)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(event(2)), Some(event(4)), None));
    }

    #[test]
    fn resizing_keeps_order_and_refuses_to_lose_events() {
        let queue = SoftQueue::new(2).unwrap();
        assert!(queue.push(event(1)) && queue.push(event(2)));
        assert_eq!(queue.resize(1), Err(Error::InvalidQueueSize));
        assert_eq!(queue.resize(3), Ok(()));
        assert!(queue.push(event(3)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(event(1)), Some(event(2)), Some(event(3))));
        assert_eq!(SoftQueue::new(MAX_EVENTS + 1).err(), Some(Error::ResourceQueueSize));
    }
}
