//! The registrations and the reservation of one namespace, and the two slots in which they persist,
//! without a target: for fuzzing.

use alloc::vec::Vec;

use nvme::command::Command;
use nvme::reservation::Type;
use nvme::status::Status;

use super::engine::{Access, KEYS, Reservation};
use super::order::Order;
use super::persistent;
use super::state::{self, SLOT};

/// The namespace's UUID.
const UUID: [u8; 16] = [7; 16];

/// A namespace that hosts share.
#[derive(Default)]
pub struct Sharing {
    reservation: Reservation,
    /// What the state disk holds.
    pub slots: [Vec<u8>; 2],
    generation: u64,
    next: usize,
}

impl Sharing {
    /// Carries out a command of a host, with its keys; `None` if it is none of reservations.
    pub fn carry_out(
        &mut self,
        host: u8,
        command: &Command,
        keys: &[u8; KEYS],
        can_persist: bool,
    ) -> Option<Result<(), Status>> {
        let order = match Order::of(command)? {
            Ok((order, _)) => order,
            Err(status) => return Some(Err(status)),
        };
        let mut next = self.reservation.clone();
        let result = next.carry_out([host; 16], &order, keys, can_persist);
        Some(result.map(|_| self.reservation = next))
    }

    /// The type that is held, and whether this host is a holder.
    pub fn held(&self, host: u8) -> Option<(Type, bool)> {
        Some((self.reservation.held?.kind, self.reservation.is_holder([host; 16])))
    }

    /// The key of a host that is registered.
    pub fn key(&self, host: u8) -> Option<u64> {
        let mut all = self.reservation.registrants.iter();
        all.find(|registrant| registrant.host == [host; 16]).map(|registrant| registrant.key)
    }

    /// How many are registered.
    pub fn registrants(&self) -> usize {
        self.reservation.registrants.len()
    }

    /// Whether a host may read the blocks, or change them.
    pub fn allows(&self, host: u8, reads: bool) -> bool {
        self.reservation.allows([host; 16], if reads { Access::Read } else { Access::Write })
    }

    /// What persists, as bytes.
    pub fn persistent(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let records = persistent(&self.reservation).map(|state| (&UUID, state));
        state::write(0, records.into_iter(), &mut bytes);
        bytes
    }

    /// Writes what persists into a slot; returns the slot.
    pub fn save(&mut self) -> usize {
        let slot = self.next;
        self.generation += 1;
        let records = persistent(&self.reservation).map(|state| (&UUID, state));
        state::write(self.generation, records.into_iter(), &mut self.slots[slot]);
        self.slots[slot].resize(SLOT, 0);
        self.next = 1 - slot;
        slot
    }

    /// Starts again with what the slots hold.
    ///
    /// # Errors
    ///
    /// Why a target does not start with them.
    pub fn restart(&mut self) -> Result<(), &'static str> {
        let slots = self.slots.each_ref().map(|bytes| state::read(bytes));
        let (generation, records, next) = state::choose(slots)?;
        (self.generation, self.next) = (generation, next);
        let found = records.into_iter().find(|record| record.uuid == UUID);
        self.reservation = found.map(|record| record.reservation).unwrap_or_default();
        Ok(())
    }
}
