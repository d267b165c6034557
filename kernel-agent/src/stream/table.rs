//! The streams and listeners of an agent: their numbers, their room in the event queue, and the
//! memory through which their bytes pass.

use alloc::sync::Arc;

use nic_hal::{Death, StreamBuffer};
use platform::sleep_lock::SleepLock;
use platform::sync::Mutex;
use platform::{OutOfMemory, Platform, Signal};

use super::Endpoint;
use crate::event_room::EventRoom;
use crate::table::{Number, Table};

/// The most bytes of a stream that pass by one command.
pub(crate) const TRANSFER: usize = 16 * 1024;

/// See the module's documentation.
pub(crate) struct Streams {
    table: Table<Endpoint>,
    /// Room in the event queue of streams: a share for each.
    pub(crate) room: EventRoom,
    /// Who has it has `buffer`.
    transfers: SleepLock,
    /// There from the start of the NIC, if it has streams, until the agent is closed; absent while
    /// somebody uses it.
    buffer: Mutex<Option<StreamBuffer>>,
}

impl Streams {
    /// For so many at the same time, and the events of so many that are destroyed. `wakes`
    /// wakes the thread that takes them.
    pub(crate) fn new(most: u32, destroyed: u32, wakes: Arc<Signal>) -> Result<Streams, OutOfMemory> {
        Ok(Streams {
            table: Table::new(0, most)?,
            room: EventRoom::new(most, destroyed, wakes),
            transfers: SleepLock::new(),
            buffer: Mutex::new(None),
        })
    }

    /// From now on bytes pass through this memory.
    pub(crate) fn start(&self, buffer: StreamBuffer) {
        *self.buffer.lock() = Some(buffer);
    }

    /// A number and a share of the room for a new object.
    pub(super) fn take(&self) -> Option<Number> {
        if !self.room.take() {
            return None;
        }
        let number = self.table.take();
        if number.is_none() {
            self.room.give_back();
        }
        number
    }

    pub(super) fn put(&self, slot: u32, endpoint: Arc<Endpoint>) {
        self.table.put(slot, endpoint);
    }

    /// Forgets an object that the device did not make.
    pub(super) fn undo(&self, slot: u32) {
        drop(self.table.remove(slot));
        self.table.release(slot);
        self.room.give_back();
    }

    /// Takes an object out of the table. If the device has `confirmed` its end, its events may
    /// still be in the queue.
    pub(super) fn remove(&self, slot: u32, confirmed: bool) {
        drop(self.table.remove(slot));
        if confirmed {
            self.room.leave();
        }
    }

    /// Gives a number back that the device knows no more.
    pub(super) fn release(&self, slot: u32) {
        self.table.release(slot);
    }

    /// The object that an event names.
    pub(crate) fn find(&self, number: u32, generation: u32) -> Option<Arc<Endpoint>> {
        self.table.get(number).filter(|endpoint| endpoint.generation() == generation)
    }

    /// Empties the table and releases the memory, when the agent is closed: no call is under way.
    pub(crate) fn clear(&self) {
        self.table.clear();
        let buffer = self.buffer.lock().take();
        drop(buffer);
    }

    /// Sends a command that passes bytes.
    pub(super) fn transfer<T>(
        &self,
        platform: &Arc<dyn Platform>,
        send: impl FnOnce(&StreamBuffer) -> Result<T, nic_hal::Error>,
    ) -> Result<T, nic_hal::Error> {
        let _turn = self.transfers.lock(platform);
        // Who had it gave it back, so it is missing because the agent was closed.
        let closed = nic_hal::Error::DeviceDead(Death::Closed);
        let buffer = self.buffer.lock().take().ok_or(closed)?;
        let sent = send(&buffer);
        *self.buffer.lock() = Some(buffer);
        sent
    }
}
