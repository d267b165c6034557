//! Who is registered with a namespace and who has reserved it, and what the commands change:
//! without I/O.
//!
//! A host is a host identifier. A command is carried out on a copy, which replaces the former state
//! when it is durable.

use nvme::reservation::{
    Acquire, AcquireAction, AcquireKeys, ChangePersistence, Notice, Register, RegisterAction, RegisterKeys,
    Release, ReleaseAction, Type,
};
use nvme::status::Status;
use platform::planted::{Bug, planted};
use zerocopy::{FromZeros, IntoBytes};

use super::order::Order;

/// The most registrants of a namespace: as many as there are controllers by default.
pub(crate) const MOST_REGISTRANTS: usize = 64;

/// The bytes of a command's keys.
pub(crate) const KEYS: usize = size_of::<RegisterKeys>();

/// A host, by its identifier.
pub(crate) type HostId = [u8; 16];

/// A host that is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registrant {
    pub(crate) host: HostId,
    pub(crate) key: u64,
}

/// A reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) kind: Type,
    /// The holder. With a type of which each registrant is a holder, the one that acquired it, who
    /// may have left.
    pub(crate) holder: HostId,
}

/// What a command does to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The notifications that a command causes, each to a host.
pub(crate) type Notices = heapless::Vec<(HostId, Notice), MOST_REGISTRANTS>;

/// Registrations and the reservation of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) generation: u32,
    /// All of it persists through a loss of power.
    pub(crate) persists: bool,
    pub(crate) registrants: heapless::Vec<Registrant, MOST_REGISTRANTS>,
    pub(crate) held: Option<Held>,
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();
const INVALID: Status = Status::INVALID_FIELD.dnr();

impl Reservation {
    fn place(&self, host: HostId) -> Option<usize> {
        self.registrants.iter().position(|registrant| registrant.host == host)
    }

    /// Whether a host is registered.
    pub(crate) fn has(&self, host: HostId) -> bool {
        self.place(host).is_some()
    }

    /// Whether a host holds the reservation.
    pub(crate) fn is_holder(&self, host: HostId) -> bool {
        self.held.is_some_and(|held| match held.kind.is_of_all() {
            true => self.has(host),
            false => held.holder == host,
        })
    }

    /// Whether a host may read or write the blocks.
    pub(crate) fn allows(&self, host: HostId, access: Access) -> bool {
        let Some(held) = self.held else { return true };
        access == Access::Read && !held.kind.is_exclusive_access()
            || self.is_holder(host)
            || held.kind.is_for_registrants() && self.has(host)
    }

    /// Carries out what a command with these keys asks for. `can_persist`: there is a place where
    /// the state survives. A copy of the state that fails is of no use.
    pub(crate) fn carry_out(
        &mut self,
        host: HostId,
        order: &Order,
        keys: &[u8; KEYS],
        can_persist: bool,
    ) -> Result<Notices, Status> {
        match order {
            Order::Register(arguments) => {
                let mut given = RegisterKeys::new_zeroed();
                given.as_mut_bytes().copy_from_slice(keys);
                self.register(host, arguments, &given, can_persist)
            }
            Order::Acquire(arguments) => {
                let mut given = AcquireKeys::new_zeroed();
                given.as_mut_bytes().copy_from_slice(keys);
                self.acquire(host, arguments, &given)
            }
            Order::Release(arguments) => {
                let key = keys.first_chunk().map_or(0, |key| u64::from_le_bytes(*key));
                self.release(host, arguments, key)
            }
            Order::Persist(persists) => {
                self.persists = *persists && can_persist;
                Ok(Notices::new())
            }
        }
    }

    /// Carries out a Reservation Register. `can_persist`: there is a place where the state
    /// survives.
    pub(crate) fn register(
        &mut self,
        host: HostId,
        arguments: &Register,
        keys: &RegisterKeys,
        can_persist: bool,
    ) -> Result<Notices, Status> {
        let (mut notices, place) = (Notices::new(), self.place(host));
        let (current, new) = (keys.current.get(), keys.new.get());
        match (arguments.action, place) {
            (RegisterAction::Unregister, None) => return Err(CONFLICT),
            (RegisterAction::Unregister, Some(place)) => {
                if !arguments.ignores_key && self.registrants[place].key != current {
                    return Err(CONFLICT);
                }
                self.unregister(place, host, &mut notices);
            }
            _ if new == 0 => return Err(INVALID),
            (RegisterAction::Register, Some(place)) => {
                if self.registrants[place].key != new {
                    return Err(CONFLICT);
                }
            }
            (RegisterAction::Replace, Some(place)) => {
                if !arguments.ignores_key && self.registrants[place].key != current {
                    return Err(CONFLICT);
                }
                self.registrants[place].key = new;
            }
            (RegisterAction::Replace, None) if !arguments.ignores_key => return Err(CONFLICT),
            (RegisterAction::Register | RegisterAction::Replace, None) => {
                let registrant = Registrant { host, key: new };
                self.registrants.push(registrant).map_err(|_| Status::INTERNAL_ERROR)?;
            }
        }
        match arguments.persistence {
            ChangePersistence::Keep => {}
            ChangePersistence::Clear => self.persists = false,
            ChangePersistence::Set => self.persists = can_persist,
        }
        self.changed();
        Ok(notices)
    }

    /// Ends a host's own registration, and its reservation.
    fn unregister(&mut self, place: usize, host: HostId, notices: &mut Notices) {
        self.registrants.remove(place);
        let Some(held) = self.held else { return };
        let ends = match held.kind.is_of_all() {
            true => self.registrants.is_empty(),
            false => held.holder == host,
        };
        if ends {
            self.held = None;
            if held.kind.is_for_registrants() {
                self.tell(host, Notice::ReservationReleased, notices);
            }
        }
    }

    /// Carries out a Reservation Acquire.
    pub(crate) fn acquire(
        &mut self,
        host: HostId,
        arguments: &Acquire,
        keys: &AcquireKeys,
    ) -> Result<Notices, Status> {
        self.check(host, keys.current.get())?;
        if arguments.action != AcquireAction::Acquire {
            return self.preempt(host, arguments.kind, keys.preempted.get());
        }
        match self.held {
            None => self.held = Some(Held { kind: arguments.kind, holder: host }),
            Some(held) if held.kind == arguments.kind && self.is_holder(host) => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Notices::new())
    }

    /// Unregisters the hosts with a key, and takes the reservation over if it is that of the
    /// holder.
    fn preempt(&mut self, host: HostId, kind: Type, key: u64) -> Result<Notices, Status> {
        let mut notices = Notices::new();
        match self.held {
            Some(held) if held.kind.is_of_all() && key == 0 => {
                self.unregister_others(host, |_| true, &mut notices);
                self.held = Some(Held { kind, holder: host });
            }
            _ if key == 0 => return Err(INVALID),
            Some(held) if !held.kind.is_of_all() && self.key_of(held.holder) == Some(key) => {
                self.unregister_others(host, |other| other.key == key, &mut notices);
                self.held = Some(Held { kind, holder: host });
                if held.kind != kind {
                    self.tell(host, Notice::ReservationReleased, &mut notices);
                }
            }
            held => {
                if !self.registrants.iter().any(|other| other.key == key) {
                    return Err(CONFLICT);
                }
                self.unregister_others(host, |other| other.key == key, &mut notices);
                // The host may have named its own key.
                self.registrants.retain(|registrant| registrant.key != key);
                // Otherwise the holder has another key, and is still there.
                if held.is_some() && self.registrants.is_empty() {
                    self.held = None;
                }
            }
        }
        self.changed();
        Ok(notices)
    }

    fn key_of(&self, host: HostId) -> Option<u64> {
        self.place(host).map(|place| self.registrants[place].key)
    }

    /// Carries out a Reservation Release with this key.
    pub(crate) fn release(&mut self, host: HostId, arguments: &Release, key: u64) -> Result<Notices, Status> {
        self.check(host, key)?;
        let mut notices = Notices::new();
        match arguments.action {
            ReleaseAction::Release => {
                // A host that does not hold it has nothing to release.
                let Some(held) = self.held.filter(|_| self.is_holder(host)) else { return Ok(notices) };
                if held.kind as u8 != arguments.kind {
                    return Err(INVALID);
                }
                self.held = None;
                if held.kind.is_for_registrants() {
                    self.tell(host, Notice::ReservationReleased, &mut notices);
                }
            }
            ReleaseAction::Clear => {
                self.tell(host, Notice::ReservationPreempted, &mut notices);
                self.registrants.clear();
                self.held = None;
                self.changed();
            }
        }
        Ok(notices)
    }

    /// Whether a host is registered with this key.
    fn check(&self, host: HostId, key: u64) -> Result<(), Status> {
        if self.key_of(host) == Some(key) { Ok(()) } else { Err(CONFLICT) }
    }

    /// Unregisters hosts other than the one whose command does it.
    fn unregister_others(
        &mut self,
        host: HostId,
        is_meant: impl Fn(&Registrant) -> bool,
        notices: &mut Notices,
    ) {
        self.registrants.retain(|other| {
            let goes = other.host != host && is_meant(other) && !planted(Bug::PreemptedStays);
            if goes {
                // There is a place for each registrant.
                let _ = notices.push((other.host, Notice::RegistrationPreempted));
            }
            !goes
        });
    }

    /// Tells all registrants but the one whose command does it.
    fn tell(&self, host: HostId, notice: Notice, notices: &mut Notices) {
        for other in self.registrants.iter().filter(|other| other.host != host) {
            // There is a place for each registrant, those that were unregistered among them.
            let _ = notices.push((other.host, notice));
        }
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}
