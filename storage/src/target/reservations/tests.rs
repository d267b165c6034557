//! The engine against a model that says the rules the other way round: the model keeps a map and a
//! list of holders, and asks for each host what becomes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use nvme::reservation::{
    Acquire, AcquireAction, AcquireKeys, ChangePersistence, Notice, Register, RegisterAction, RegisterKeys,
    Release, ReleaseAction, Type,
};
use nvme::status::Status;
use proptest::prelude::*;

use super::engine::{Access, HostId, MOST_REGISTRANTS, Registrant, Reservation};

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();
const INVALID: Status = Status::INVALID_FIELD.dnr();

/// A command of a host.
#[derive(Clone, Copy, Debug)]
enum Order {
    Register(Register, u64, u64),
    Acquire(Acquire, u64, u64),
    Release(Release, u64),
}

fn id(host: u8) -> HostId {
    [host; 16]
}

fn carry_out(state: &mut Reservation, host: u8, order: Order) -> Result<Vec<(HostId, Notice)>, Status> {
    let mut next = state.clone();
    let notices = match order {
        Order::Register(arguments, current, new) => {
            let keys = RegisterKeys { current: current.into(), new: new.into() };
            next.register(id(host), &arguments, &keys, true)
        }
        Order::Acquire(arguments, current, preempted) => {
            let keys = AcquireKeys { current: current.into(), preempted: preempted.into() };
            next.acquire(id(host), &arguments, &keys)
        }
        Order::Release(arguments, key) => next.release(id(host), &arguments, key),
    }?;
    *state = next;
    Ok(notices.into_iter().collect())
}

/// The model.
#[derive(Clone, Debug, Default)]
struct Model {
    keys: BTreeMap<HostId, u64>,
    kind: Option<Type>,
    /// Of a type that one host holds.
    holder: Option<HostId>,
    generation: u32,
    persists: bool,
}

impl Model {
    fn holders(&self) -> BTreeSet<HostId> {
        match self.kind {
            None => BTreeSet::new(),
            Some(kind) if kind as u8 > 4 => self.keys.keys().copied().collect(),
            Some(_) => self.holder.into_iter().collect(),
        }
    }

    fn may(&self, host: HostId, access: Access) -> bool {
        use Type::*;
        let (holds, registered) = (self.holders().contains(&host), self.keys.contains_key(&host));
        match (self.kind, access) {
            (None, _) => true,
            (Some(WriteExclusive | WriteExclusiveRegistrants | WriteExclusiveAll), Access::Read) => true,
            (Some(WriteExclusive | ExclusiveAccess), _) => holds,
            (Some(_), _) => registered,
        }
    }

    fn end_reservation(&mut self) {
        (self.kind, self.holder) = (None, None);
    }

    /// What becomes of the reservation when these hosts have left.
    fn left(&mut self) {
        let is_of_all = self.kind.is_some_and(|kind| kind as u8 > 4);
        let gone = match self.holder {
            _ if is_of_all => self.keys.is_empty(),
            Some(holder) => !self.keys.contains_key(&holder),
            None => false,
        };
        if gone {
            self.end_reservation();
        }
    }

    fn tell(&self, but: HostId, notice: Notice) -> Vec<(HostId, Notice)> {
        self.keys.keys().filter(|&&host| host != but).map(|&host| (host, notice)).collect()
    }

    fn carry_out(&mut self, host: HostId, order: Order) -> Result<Vec<(HostId, Notice)>, Status> {
        let own = self.keys.get(&host).copied();
        let mut told = Vec::new();
        match order {
            Order::Register(Register { action, ignores_key, persistence }, current, new) => {
                let knows = own.is_some() && (ignores_key || own == Some(current));
                match action {
                    RegisterAction::Unregister => {
                        if !knows {
                            return Err(CONFLICT);
                        }
                        let kind = self.kind;
                        self.keys.remove(&host);
                        self.left();
                        if kind.is_some_and(|kind| kind as u8 > 2) && self.kind.is_none() {
                            told = self.tell(host, Notice::ReservationReleased);
                        }
                    }
                    _ if new == 0 => return Err(INVALID),
                    RegisterAction::Register if own.is_some_and(|own| own != new) => return Err(CONFLICT),
                    RegisterAction::Replace if own.is_some() && !knows => return Err(CONFLICT),
                    RegisterAction::Replace if own.is_none() && !ignores_key => return Err(CONFLICT),
                    _ => _ = self.keys.insert(host, new),
                }
                match persistence {
                    ChangePersistence::Keep => {}
                    ChangePersistence::Clear => self.persists = false,
                    ChangePersistence::Set => self.persists = true,
                }
                self.generation += 1;
            }
            Order::Acquire(_, current, _) | Order::Release(_, current) if own != Some(current) => {
                return Err(CONFLICT);
            }
            Order::Acquire(Acquire { action: AcquireAction::Acquire, kind }, ..) => match self.kind {
                None => (self.kind, self.holder) = (Some(kind), Some(host)),
                Some(held) if held == kind && self.holders().contains(&host) => {}
                Some(_) => return Err(CONFLICT),
            },
            Order::Acquire(Acquire { kind, .. }, _, preempted) => {
                let is_of_all = self.kind.is_some_and(|kind| kind as u8 > 4);
                let takes_over = match self.kind {
                    None => false,
                    Some(_) if is_of_all => preempted == 0,
                    Some(_) => self.holder.is_some_and(|holder| self.keys[&holder] == preempted),
                };
                if preempted == 0 && !takes_over {
                    return Err(INVALID);
                }
                let is_victim = |key: u64| key == preempted || is_of_all && preempted == 0;
                if !self.keys.values().any(|&key| is_victim(key)) {
                    return Err(CONFLICT);
                }
                let victims: Vec<HostId> =
                    self.keys.iter().filter(|&(_, &key)| is_victim(key)).map(|(&host, _)| host).collect();
                for victim in victims {
                    if victim != host {
                        told.push((victim, Notice::RegistrationPreempted));
                    }
                    if victim != host || !takes_over {
                        self.keys.remove(&victim);
                    }
                }
                if takes_over {
                    // With key 0 nobody is left to be told.
                    if self.kind != Some(kind) {
                        told.extend(self.tell(host, Notice::ReservationReleased));
                    }
                    (self.kind, self.holder) = (Some(kind), Some(host));
                } else {
                    self.left();
                }
                self.generation += 1;
            }
            Order::Release(Release { action: ReleaseAction::Release, kind }, _) => {
                let Some(held) = self.kind.filter(|_| self.holders().contains(&host)) else {
                    return Ok(told);
                };
                if held as u8 != kind {
                    return Err(INVALID);
                }
                if held as u8 > 2 {
                    told = self.tell(host, Notice::ReservationReleased);
                }
                self.end_reservation();
            }
            Order::Release(Release { action: ReleaseAction::Clear, .. }, _) => {
                told = self.tell(host, Notice::ReservationPreempted);
                self.keys.clear();
                self.end_reservation();
                self.generation += 1;
            }
        }
        Ok(told)
    }
}

/// Whether both say the same of everything that can be asked.
fn compare(state: &Reservation, model: &Model, hosts: u8) {
    let keys: BTreeMap<HostId, u64> =
        state.registrants.iter().map(|&Registrant { host, key }| (host, key)).collect();
    assert_eq!(keys, model.keys);
    assert_eq!(keys.len(), state.registrants.len(), "a host is registered once");
    assert_eq!(state.held.map(|held| held.kind), model.kind);
    assert_eq!((state.generation, state.persists), (model.generation, model.persists));
    for host in (0..hosts).map(id) {
        assert_eq!(state.is_holder(host), model.holders().contains(&host), "{host:?}");
        for access in [Access::Read, Access::Write] {
            assert_eq!(state.allows(host, access), model.may(host, access), "{host:?} {access:?}");
        }
    }
}

fn step(state: &mut Reservation, model: &mut Model, host: u8, order: Order, hosts: u8) {
    let (before, told) = (state.clone(), carry_out(state, host, order));
    let expected = model.carry_out(id(host), order);
    let sorted = |told: Vec<(HostId, Notice)>| {
        let mut told = told;
        told.sort_unstable();
        told
    };
    assert_eq!(told.clone().map(sorted), expected.map(sorted), "{host} {order:?} of {before:?}");
    if told.is_err() {
        assert_eq!(*state, before, "what fails changes nothing");
    }
    compare(state, model, hosts);
}

fn kinds() -> impl Strategy<Value = Type> {
    (1_u8..=6).prop_map(|number| Type::from_number(number).expect("a type"))
}

fn orders() -> impl Strategy<Value = Order> {
    let key = || 0_u64..4;
    let persistence = prop_oneof![
        Just(ChangePersistence::Keep),
        Just(ChangePersistence::Clear),
        Just(ChangePersistence::Set)
    ];
    let register = prop_oneof![
        Just(RegisterAction::Register),
        Just(RegisterAction::Unregister),
        Just(RegisterAction::Replace)
    ];
    let acquire = prop_oneof![
        Just(AcquireAction::Acquire),
        Just(AcquireAction::Preempt),
        Just(AcquireAction::PreemptAndAbort)
    ];
    let release = prop_oneof![4 => Just(ReleaseAction::Release), 1 => Just(ReleaseAction::Clear)];
    prop_oneof![
        3 => (register, any::<bool>(), persistence, key(), key()).prop_map(
            |(action, ignores_key, persistence, current, new)| {
                Order::Register(Register { action, ignores_key, persistence }, current, new)
            }
        ),
        3 => (acquire, kinds(), key(), key()).prop_map(|(action, kind, current, preempted)| {
            Order::Acquire(Acquire { action, kind }, current, preempted)
        }),
        2 => (release, 0_u8..8, key())
            .prop_map(|(action, kind, key)| Order::Release(Release { action, kind }, key)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn any_orders_of_some_hosts_end_as_the_model_says(
        orders in prop::collection::vec((0_u8..4, orders()), 1..40)
    ) {
        let (mut state, mut model) = (Reservation::default(), Model::default());
        for (host, order) in orders {
            step(&mut state, &mut model, host, order, 5);
        }
    }
}

/// All orders that two hosts with two keys and three types can give.
fn all_orders() -> Vec<(u8, Order)> {
    let mut all = Vec::new();
    let kinds = [Type::ExclusiveAccess, Type::WriteExclusiveRegistrants, Type::ExclusiveAccessAll];
    let persistence = ChangePersistence::Keep;
    for host in 0..2 {
        for (one, other) in [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)] {
            for action in [RegisterAction::Register, RegisterAction::Unregister, RegisterAction::Replace] {
                for ignores_key in [false, true] {
                    let register = Register { action, ignores_key, persistence };
                    all.push((host, Order::Register(register, one, other)));
                }
            }
            for kind in kinds {
                for action in [AcquireAction::Acquire, AcquireAction::Preempt] {
                    all.push((host, Order::Acquire(Acquire { action, kind }, one, other)));
                }
            }
        }
        for key in 0..3 {
            for kind in kinds {
                let release = Release { action: ReleaseAction::Release, kind: kind as u8 };
                all.push((host, Order::Release(release, key)));
            }
            all.push((host, Order::Release(Release { action: ReleaseAction::Clear, kind: 0 }, key)));
        }
    }
    all
}

#[test]
fn each_order_in_each_state_that_two_hosts_can_reach_ends_as_the_model_says() {
    let orders = all_orders();
    // States that differ in their generation only are one.
    let mut seen: Vec<Reservation> = Vec::new();
    let mut left = std::vec![(Reservation::default(), Model::default())];
    while let Some((state, model)) = left.pop() {
        let plain = Reservation { generation: 0, ..state.clone() };
        if seen.contains(&plain) {
            continue;
        }
        seen.push(plain);
        for &(host, order) in &orders {
            let (mut state, mut model) = (state.clone(), model.clone());
            step(&mut state, &mut model, host, order, 3);
            left.push((state, model));
        }
    }
    assert!(seen.len() > 50, "{} states", seen.len());
}

#[test]
fn as_many_hosts_register_as_there_is_room_for() {
    let mut state = Reservation::default();
    let register = Register {
        action: RegisterAction::Register,
        ignores_key: false,
        persistence: ChangePersistence::Keep,
    };
    let keys = RegisterKeys { current: 0.into(), new: 7.into() };
    let host = |n: usize| [n as u8; 16];
    for n in 0..MOST_REGISTRANTS {
        assert_eq!(state.register(host(n), &register, &keys, false), Ok(Default::default()));
    }
    let before = state.clone();
    assert_eq!(state.register(host(MOST_REGISTRANTS), &register, &keys, false), Err(Status::INTERNAL_ERROR));
    assert_eq!(state, before);
    // All of them have the key that is preempted, and the one who does it stays.
    let acquire = Acquire { action: AcquireAction::Acquire, kind: Type::WriteExclusive };
    let keys = AcquireKeys { current: 7.into(), preempted: 7.into() };
    assert_eq!(state.acquire(host(3), &acquire, &keys), Ok(Default::default()));
    let preempt = Acquire { action: AcquireAction::Preempt, kind: Type::ExclusiveAccess };
    let told = state.acquire(host(5), &preempt, &keys).expect("it is registered");
    assert_eq!((told.len(), state.registrants.len()), (MOST_REGISTRANTS - 1, 1));
    assert!(state.is_holder(host(5)) && !state.allows(host(3), Access::Read));
}

#[test]
fn without_a_place_for_it_nothing_persists_and_the_command_succeeds() {
    let mut state = Reservation::default();
    let register = Register {
        action: RegisterAction::Register,
        ignores_key: false,
        persistence: ChangePersistence::Set,
    };
    let keys = RegisterKeys { current: 0.into(), new: 7.into() };
    assert_eq!(state.register(id(1), &register, &keys, false), Ok(Default::default()));
    assert!(!state.persists);
    assert_eq!(state.register(id(1), &register, &keys, true), Ok(Default::default()));
    assert!(state.persists);
}
