//! A link in memory.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use platform::Instant;

use crate::Wire;

/// One end of a link in memory. Clones are the same end.
#[derive(Clone, Debug)]
pub struct CableEnd {
    cable: Rc<RefCell<Cable>>,
    end: usize,
}

#[derive(Debug)]
struct Cable {
    /// The frames that wait for each end.
    frames: [VecDeque<Vec<u8>>; 2],
    plugged: bool,
    has_room: bool,
}

/// One end of a cable that sends by a closure: what the closure puts on the cable arrives. Such a
/// wire can lose, repeat, change and record frames.
pub struct Through<F> {
    end: CableEnd,
    send: F,
}

impl<F: FnMut(&CableEnd, &[u8])> Through<F> {
    /// A wire into this end.
    pub fn new(end: CableEnd, send: F) -> Through<F> {
        Through { end, send }
    }
}

/// Both ends of a link that is up.
pub fn cable() -> [CableEnd; 2] {
    let cable = Cable { frames: Default::default(), plugged: true, has_room: true };
    let cable = Rc::new(RefCell::new(cable));
    [0, 1].map(|end| CableEnd { cable: cable.clone(), end })
}

impl CableEnd {
    /// Plugs the cable in or pulls it out; what is under way is lost.
    pub fn plug(&self, plugged: bool) {
        let mut cable = self.cable.borrow_mut();
        cable.plugged = plugged;
        cable.frames = Default::default();
    }

    /// Says whether senders find room.
    pub fn set_room(&self, has_room: bool) {
        self.cable.borrow_mut().has_room = has_room;
    }

    /// Sends a frame to the other end.
    pub fn put(&self, frame: &[u8]) {
        let mut cable = self.cable.borrow_mut();
        if cable.plugged {
            cable.frames[1 - self.end].push_back(frame.into());
        }
    }

    /// The next frame that has come.
    pub fn take(&self) -> Option<Vec<u8>> {
        self.cable.borrow_mut().frames[self.end].pop_front()
    }

    /// How many frames wait to be taken.
    pub fn waiting(&self) -> usize {
        self.cable.borrow().frames[self.end].len()
    }
}

impl Wire for CableEnd {
    fn send(&mut self, frame: &[u8], _now: Instant) {
        self.put(frame);
    }

    fn has_room(&self) -> bool {
        self.cable.borrow().has_room
    }

    fn receive(&mut self, into: &mut [u8], _now: Instant) -> Option<usize> {
        let frame = self.take()?;
        into.get_mut(..frame.len())?.copy_from_slice(&frame);
        Some(frame.len())
    }

    fn flush(&mut self, _now: Instant) {}

    fn up(&self) -> bool {
        self.cable.borrow().plugged
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

impl<F: FnMut(&CableEnd, &[u8])> Wire for Through<F> {
    fn send(&mut self, frame: &[u8], _now: Instant) {
        (self.send)(&self.end, frame);
    }

    fn has_room(&self) -> bool {
        self.end.has_room()
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        self.end.receive(into, now)
    }

    fn flush(&mut self, now: Instant) {
        self.end.flush(now);
    }

    fn up(&self) -> bool {
        self.end.up()
    }

    fn deadline(&self) -> Option<Instant> {
        self.end.deadline()
    }
}
