//! The place of a completion queue: its number, its room in the event queue, its size.

use nic_abi::admin::CqFlags;
use nic_hal::{CompletionQueue, CqParams, Lease, Nic};

use crate::agent::config::EQ_COMPLETIONS;
use crate::event_room::EventRoom;
use crate::table::{Number, Numbers, Slots};
use crate::{Error, Resource};

/// A CQ's number, and its share of the event queue's room. Dropping this gives both back.
pub(crate) struct CqPlace<'a> {
    nic: &'a Nic,
    room: &'a EventRoom,
    numbers: &'a Numbers,
    pub(crate) number: Number,
}

impl<'a> CqPlace<'a> {
    /// Takes a number from those of all CQs; its owner goes to `slots`.
    pub(crate) fn take<T>(
        nic: &'a Nic,
        room: &'a EventRoom,
        numbers: &'a Numbers,
        slots: &Slots<T>,
    ) -> Result<CqPlace<'a>, Error> {
        if !room.take() {
            return Err(Error::NoResources(Resource::Cqs));
        }
        match numbers.take_in(slots) {
            Some(number) => Ok(CqPlace { nic, room, numbers, number }),
            None => {
                room.give_back();
                Err(Error::NoResources(Resource::Cqs))
            }
        }
    }

    /// Creates the CQ in the device.
    pub(crate) fn create(&self, log_entries: u32, flags: CqFlags) -> Result<CompletionQueue, Error> {
        let Number { slot, generation } = self.number;
        let params = CqParams { log_entries, eq: EQ_COMPLETIONS, generation, flags };
        Ok(self.nic.create_cq(slot, &params)?)
    }

    /// Destroys the CQ in the device, since the rest of its creation failed.
    pub(crate) fn destroy(self, lease: &Lease) {
        if self.nic.destroy_cq(self.number.slot, lease).is_err() {
            self.keep();
        }
    }

    /// The CQ is created, and gives both back when it is destroyed.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for CqPlace<'_> {
    fn drop(&mut self) {
        self.room.give_back();
        self.numbers.release(self.number.slot);
    }
}

/// The size of a CQ as the device counts it.
pub(crate) fn log_entries(entries: u32, most: u32) -> Result<u32, Error> {
    if entries > most {
        return Err(Error::OutOfRange("CQ size"));
    }
    let log = entries.max(2).next_power_of_two().ilog2();
    if 1u64 << log > u64::from(most) { Err(Error::OutOfRange("CQ size")) } else { Ok(log) }
}
