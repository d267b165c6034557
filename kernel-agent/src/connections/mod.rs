//! The agent's connections: drives the CM state machine ([`Cm`]) and moves the queue pairs.
//!
//! Calls of clients and datagrams change the state machine under one lock. The datagrams that it
//! returns are sent under that lock; its events go to the inbox. The dispatcher thread takes from
//! the inbox, moves the queue pair, and then reports the event to the client, with no lock held.
//!
//! The dispatcher thread moves what QP1 received into the `intake`, acts on some of it in each
//! round, and empties the inbox in the same round. So whatever peers send, the inbox stays short
//! and each peer gets its turn.
//!
//! | module | subject |
//! |---|---|
//! | `state` | what the manager keeps: its tables and their entries |
//! | `calls` | what clients ask for |
//! | `intake`, `arrivals` | datagrams that wait; what they lead to |
//! | `broken` | connections whose queue pair broke |
//! | `resolutions` | service resolution |
//!
//! Locks: `tables` (spins; before `qp1` and the send queue of QP1; never held across a command or
//! an upcall), `qp1` and `intake` (spin, leaves).

mod arrivals;
mod broken;
mod calls;
mod intake;
mod resolutions;
mod state;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::time::Duration;

use nic_abi::admin::QpState;
use nic_abi::registers::Identity;
use platform::sync::Mutex;
use platform::{Instant, OutOfMemory, Platform, Secret, Signal, heap};
use roce::PathMtu;

use crate::cm::{self, Action, Arrival, Cm, ConnectionId};
use crate::gsi::Gsi;
use crate::qp_common::Common;
use crate::vi::{Changing, Vi};
use crate::{Error, Resource};
use intake::Datagram;
use resolutions::RESOLUTIONS;
pub(crate) use state::{Connected, ConnectionManager};
use state::{End, HeldBack, Notice, Tables};

/// Requests that may wait for one listening point's client; half of them from one peer.
const BACKLOG: u32 = 1 << 12;

/// Datagrams that the dispatcher thread acts on in one round.
const DATAGRAMS: usize = 32;
/// What the manager keeps of a connection, of an event or of a datagram, and its nodes of tables.
const MEMORY: usize = 8192;
/// How late timers are looked at again that could not be acted on.
const LATE: Duration = Duration::from_millis(1);

impl From<cm::Error> for Error {
    fn from(error: cm::Error) -> Error {
        match error {
            cm::Error::NoSuchConnection
            | cm::Error::NoSuchListener
            | cm::Error::NoSuchResolution
            | cm::Error::Illegal(_) => Error::ConnectionState,
            cm::Error::ServiceInUse(_) => Error::ServiceInUse,
            cm::Error::Full(cm::Table::Listeners) => Error::NoResources(Resource::Listens),
            cm::Error::Full(cm::Table::Resolutions) => Error::NoResources(Resource::Resolutions),
            cm::Error::Full(_) | cm::Error::Congested => Error::NoResources(Resource::Connections),
            cm::Error::PrivateData { max, .. } => Error::PrivateData(max),
            cm::Error::OutOfMemory => Error::OutOfMemory,
            cm::Error::OutOfRange(what) => Error::OutOfRange(what),
            cm::Error::QpInUse(_) | cm::Error::TimeWait(_) => Error::Busy,
        }
    }
}

impl ConnectionManager {
    /// A manager without connections. PSNs and communication ids are made of the `secret`.
    pub(crate) fn new(
        platform: Arc<dyn Platform>,
        identity: Identity,
        signal: Arc<Signal>,
        (connections, listens): (u32, u32),
        secret: Secret,
    ) -> Result<ConnectionManager, OutOfMemory> {
        let config = cm::Config {
            ca_guid: identity.node_guid,
            path_mtu: PathMtu::at_most(identity.mtu),
            max_connections: connections,
            max_listeners: listens,
            max_resolutions: RESOLUTIONS,
            secret,
            ..cm::Config::default()
        };
        heap::room(Cm::MEMORY)?;
        Ok(ConnectionManager {
            platform,
            identity,
            signal,
            qp1: Mutex::new(None),
            intake: Mutex::default(),
            tables: Mutex::new(Tables {
                cm: Cm::new(config),
                listens: BTreeMap::new(),
                ends: BTreeMap::new(),
                resolutions: BTreeMap::new(),
                requests: VecDeque::new(),
                inbox: VecDeque::new(),
                secret,
                psns: 0,
            }),
        })
    }

    /// Listening points, connections that are not over, and service resolutions (ours, and peers'
    /// that wait for an answer).
    pub(crate) fn counts(&self) -> (u32, u32, u32) {
        let tables = self.tables.lock();
        let resolutions = tables.resolutions.len() + tables.requests.len();
        (tables.listens.len() as u32, tables.ends.len() as u32, resolutions as u32)
    }

    /// From now on datagrams go by this QP1.
    pub(crate) fn start(&self, qp1: Arc<Gsi>) {
        *self.qp1.lock() = Some(qp1);
    }

    pub(crate) fn qp1(&self) -> Option<Arc<Gsi>> {
        self.qp1.lock().clone()
    }

    /// From now on no datagram is sent or received; returns QP1.
    pub(crate) fn stop(&self) -> Option<Arc<Gsi>> {
        self.qp1.lock().take()
    }

    /// Carries out the actions of the state machine.
    fn flush(&self, tables: &mut Tables) {
        while let Some(action) = tables.cm.next_action() {
            self.carry_out(tables, action);
        }
    }

    fn carry_out(&self, tables: &mut Tables, action: Action) {
        match action {
            Action::Send(outgoing) => {
                if let Some(qp1) = self.qp1() {
                    qp1.send(&self.identity, &outgoing);
                }
            }
            Action::Event(event) => {
                tables.inbox.push_back(Notice::Cm(Box::new(event)));
                self.signal.raise();
            }
        }
    }

    /// Sends what a connection's call held back: the actions, and the message that the state
    /// machine keeps.
    fn send_held_back(&self, id: ConnectionId, actions: HeldBack) {
        let now = self.platform.now();
        let mut tables = self.tables.lock();
        for action in actions.into_iter().flatten() {
            self.carry_out(&mut tables, action);
        }
        tables.cm.release(now, id);
        self.flush(&mut tables);
    }

    /// Ends what is left of a connection without reporting it to the client; `None` if it was over.
    fn give_up(&self, tables: &mut Tables, id: ConnectionId) -> Option<End> {
        // The outbox is empty between calls, so this fails only if the connection is gone.
        let _ = tables.cm.abandon(self.platform.now(), id);
        let end = tables.remove(id);
        self.flush(tables);
        end
    }

    /// Keeps connections of a virtual interface, which must have none, from being made until the
    /// result is dropped.
    pub(crate) fn begin_change<'a>(&self, vi: &'a Vi) -> Result<Changing<'a>, Error> {
        let _tables = self.tables.lock();
        let state = vi.state();
        if vi.common().connection().is_some() || !matches!(state, QpState::Reset | QpState::Init) {
            return Err(Error::QpState(state));
        }
        Ok(vi.begin_change())
    }

    /// Keeps connections of a virtual interface whose connection is over from being made until the
    /// result is dropped. The caller holds its `control`.
    pub(crate) fn hold_off<'a>(&self, vi: &'a Vi) -> Changing<'a> {
        let _tables = self.tables.lock();
        vi.begin_change()
    }

    /// Ends what is left of a virtual interface's connection without reporting it to the client.
    /// `reset` runs before the peer learns of the end, and while no other connection can be made.
    pub(crate) fn leave(&self, vi: &Vi, reset: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let now = self.platform.now();
        let (changing, ended) = {
            let mut tables = self.tables.lock();
            let ended = vi.common().connection().map(|id| {
                // As in `give_up`.
                let _ = tables.cm.prepare_abandon(now, id);
                (id, tables.hold_back(), tables.remove(id))
            });
            (vi.begin_change(), ended)
        };
        let result = reset();
        drop(changing);
        if let Some((id, held_back, end)) = ended {
            drop(end);
            self.send_held_back(id, held_back);
        }
        result
    }

    /// Forgets everything, when there is no device any more.
    pub(crate) fn clear(&self) {
        let forgotten = {
            let mut tables = self.tables.lock();
            let tables = &mut *tables;
            (
                core::mem::take(&mut tables.listens),
                core::mem::take(&mut tables.ends),
                core::mem::take(&mut tables.resolutions),
                core::mem::take(&mut tables.requests),
                core::mem::take(&mut tables.inbox),
                core::mem::take(&mut *self.intake.lock()),
            )
        };
        // Without the lock.
        forgotten.1.iter().for_each(|(&id, end)| end.detach(id));
        drop(forgotten);
    }

    /// Takes what QP1 received into the intake. Returns whether QP1 had any completion.
    fn take_in(&self) -> bool {
        let add = |from: &Arrival, mad: &[u8]| {
            // Without memory the datagram is lost, as any datagram may be.
            if let Some(&mad) = mad.first_chunk()
                && heap::room(MEMORY).is_ok()
            {
                self.intake.lock().add(Box::new(Datagram { from: *from, mad }));
            }
        };
        self.qp1().is_some_and(|qp1| qp1.poll(add))
    }

    /// Acts on some of the datagrams that QP1 received: as many as the inbox and QP1's send queue
    /// have room for. Returns whether there was anything to do. In the dispatcher thread.
    pub(crate) fn receive(&self) -> bool {
        let mut any = self.take_in();
        for _ in 0..DATAGRAMS {
            // A send that completes wakes the dispatcher thread.
            if !self.qp1().is_some_and(|qp1| qp1.has_room()) {
                break;
            }
            let now = self.platform.now();
            let mut tables = self.tables.lock();
            if !tables.has_room() {
                break;
            }
            let Some(datagram) = self.intake.lock().next() else { break };
            any = true;
            tables.cm.receive(now, &datagram.from, &datagram.mad);
            self.flush(&mut tables);
        }
        any
    }

    /// Asks for an event at the next datagram.
    pub(crate) fn arm(&self) {
        if let Some(qp1) = self.qp1() {
            qp1.arm();
        }
    }

    /// Acts on timers that are due; returns when the next one is.
    pub(crate) fn poll(&self, now: Instant) -> Option<Instant> {
        let mut tables = self.tables.lock();
        let due = tables.cm.next_deadline().is_some_and(|at| at <= now);
        if due && tables.has_room() {
            tables.cm.poll(now);
            self.flush(&mut tables);
        }
        // Timers that are due still wait for memory, or for room in the inbox.
        tables.cm.next_deadline().map(|at| if at <= now { now + LATE } else { at })
    }

    /// Data arrived on a queue pair before its connection's last message.
    pub(crate) fn communication_established(&self, qp: &Common) {
        if let Some(id) = qp.connection() {
            let now = self.platform.now();
            let mut tables = self.tables.lock();
            // Refused if the message has arrived since.
            let _ = tables.cm.communication_established(now, id);
            self.flush(&mut tables);
        }
    }
}
