//! What the agent keeps of connections, listening points and service resolutions.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use nic_abi::admin::{ModifyQp, QpState};
use nic_abi::registers::Identity;
use platform::sync::Mutex;
use platform::{Platform, Secret, Signal};
use roce::cm::ReadDepths;
use roce::{Psn, Qpn};

use super::intake::Intake;
use crate::cm::{self, Action, Cm, ConnectionId, ListenId, Moves, ResolutionId, ResolutionRequestId};
use crate::connect::{Handshake, QpSetup};
use crate::gsi::Gsi;
use crate::qp_common::Common;
use crate::{Client, CmEvent, CmEventKind, Error, Qp, Vi};

/// Notices in the inbox from which on no datagram and no timer is acted on. One datagram causes a
/// few at most, the timers of one round at most 64, and each client's call one.
const INBOX: usize = 64;
/// What distinguishes PSNs from all else that is made of the secret.
const PSN: u64 = 1 << 32;

/// The actions that a call held back.
pub(super) type HeldBack = [Option<Action>; cm::ACTIONS_AT_ONCE];

/// The connections, listening points and service resolutions of an agent.
pub(crate) struct ConnectionManager {
    pub(super) platform: Arc<dyn Platform>,
    pub(super) identity: Identity,
    /// Wakes the dispatcher thread.
    pub(super) signal: Arc<Signal>,
    /// QP1 while the agent is open.
    pub(super) qp1: Mutex<Option<Arc<Gsi>>>,
    pub(super) intake: Mutex<Intake>,
    pub(super) tables: Mutex<Tables>,
}

pub(super) struct Tables {
    pub(super) cm: Cm,
    pub(super) listens: BTreeMap<ListenId, Listen>,
    /// Boxed, since the nodes of a tree whose keys grow are half empty.
    pub(super) ends: BTreeMap<ConnectionId, Box<End>>,
    /// Our resolutions.
    pub(super) resolutions: BTreeMap<ResolutionId, Resolution>,
    /// Peers' resolution requests and the clients that have to answer them; oldest first.
    pub(super) requests: VecDeque<(ResolutionRequestId, Arc<Client>)>,
    pub(super) inbox: VecDeque<Notice>,
    pub(super) secret: Secret,
    /// How many PSNs were drawn.
    pub(super) psns: u64,
}

#[derive(Clone)]
pub(super) struct Listen {
    pub(super) client: Arc<Client>,
    pub(super) context: u64,
}

/// One end of a connection, from the first call or event about it until it is over (TimeWait not
/// counted).
pub(super) struct End {
    pub(super) client: Arc<Client>,
    /// The queue pair's, or the listening point's as long as there is none.
    pub(super) context: u64,
    pub(super) connected: Option<Connected>,
    /// What the queue pair is moved with, as far as it is known.
    pub(super) setup: QpSetup,
    /// The peer's read depths, as far as they are known.
    pub(super) peer: ReadDepths,
    pub(super) handshake: Handshake,
    pub(super) moves: Moves,
}

/// What the dispatcher thread has to act on.
pub(super) enum Notice {
    Cm(Box<cm::Event>),
    /// A client's `establish` took effect. It goes through the inbox so that the client learns of
    /// it before it learns of anything that the peer does afterwards.
    Established(ConnectionId),
}

/// A resolution of ours.
pub(super) struct Resolution {
    pub(super) client: Arc<Client>,
    pub(super) context: u64,
}

impl Resolution {
    pub(super) fn is_of(&self, client: &Client) -> bool {
        core::ptr::eq(&*self.client, client)
    }
}

/// What has a connection. A virtual interface is moved only as long as it has the number that it
/// had when the connection was made.
#[derive(Clone)]
pub(crate) enum Connected {
    Qp(Arc<Qp>),
    Vi { vi: Arc<Vi>, number: u32 },
}

impl Connected {
    pub(crate) fn common(&self) -> &Common {
        match self {
            Connected::Qp(qp) => &qp.common,
            Connected::Vi { vi, .. } => vi.common(),
        }
    }

    pub(crate) fn modify(&self, modify: &ModifyQp) -> Result<(), Error> {
        match self {
            Connected::Qp(qp) => qp.modify(modify),
            Connected::Vi { vi, number } => vi.modify(*number, modify),
        }
    }

    /// Flushes what is outstanding. [`Error::Gone`] if it was destroyed.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        match self {
            Connected::Qp(qp) => qp.to_error(),
            Connected::Vi { vi, number } => vi.flush(*number),
        }
    }

    /// Reports that the connection is lost where an event of the connection does not say that. In
    /// the dispatcher thread.
    pub(crate) fn report_lost(&self) {
        if let Connected::Vi { vi, number } = self {
            vi.report_lost(*number);
        }
    }
}

impl Tables {
    /// A starting PSN that cannot be predicted from those before it: a packet that is forged must
    /// not fit into a connection.
    pub(super) fn psn(&mut self) -> Psn {
        self.psns += 1;
        Psn::new(self.secret.hash([PSN, self.psns]) as u32)
    }

    /// Takes the actions of the last call out of the state machine: they wait until the queue pair
    /// was moved.
    pub(super) fn hold_back(&mut self) -> HeldBack {
        core::array::from_fn(|_| self.cm.next_action())
    }

    /// Whether the inbox has room for what another datagram or timer brings.
    pub(super) fn has_room(&self) -> bool {
        self.inbox.len() < INBOX
    }

    /// Whether the client may have another connection.
    pub(super) fn admits(&self, client: &Client) -> bool {
        client.connections.load(Ordering::Relaxed) < client.max_connections()
    }

    pub(super) fn insert(&mut self, id: ConnectionId, end: End) {
        end.client.connections.fetch_add(1, Ordering::Relaxed);
        self.ends.insert(id, Box::new(end));
    }

    pub(super) fn end(&self, client: &Client, id: ConnectionId) -> Result<&End, Error> {
        let end = self.ends.get(&id).filter(|end| core::ptr::eq(&*end.client, client));
        end.map(|end| &**end).ok_or(Error::ConnectionState)
    }

    /// Forgets an end that is over.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<End> {
        let end = *self.ends.remove(&id)?;
        end.detach(id);
        Some(end)
    }
}

impl End {
    /// Takes the end out of the records of its queue pair and its client.
    pub(super) fn detach(&self, id: ConnectionId) {
        self.client.connections.fetch_sub(1, Ordering::Relaxed);
        if let Some(common) = self.connected.as_ref().map(|connected| connected.common())
            && common.connection() == Some(id)
        {
            common.set_connection(None);
        }
    }

    /// Reports the end, with no lock held.
    pub(super) fn report(
        &self,
        id: ConnectionId,
        kind: CmEventKind,
        information: &[u8],
        private_data: &[u8],
    ) {
        if let (CmEventKind::Disconnected { .. }, Some(connected)) = (kind, &self.connected) {
            connected.report_lost();
        }
        let event = CmEvent { connection: id, context: self.context, kind, information, private_data };
        self.client.upcall(|up| up.connection(event));
    }

    /// What has the connection, if the agent moves it.
    pub(super) fn moved(&self) -> Option<&Connected> {
        self.connected.as_ref().filter(|_| self.moves != Moves::None)
    }

    /// Whether the queue pair stays as it is when the connection ends in this way.
    pub(super) fn leaves_qp(&self, kind: &CmEventKind) -> bool {
        self.moves == Moves::UntilThePeerDisconnects && matches!(kind, CmEventKind::Disconnected { .. })
    }

    /// Flushes what is outstanding on a queue pair that the agent moves. This comes before the
    /// report that the connection is over.
    pub(super) fn flush_qp(&self) {
        if let Some(moved) = self.moved() {
            // It may be gone, or the device dead: then there is nothing to flush.
            let _ = moved.flush();
        }
    }

    /// What the queue pair is moved with to RTR or RTS, as far as the peer has said it.
    pub(super) fn changes(&self, to: QpState, most: u32) -> Option<ModifyQp> {
        let fits = |asked: u8| u8::try_from(most).map_or(asked, |most| asked.min(most));
        let own = match self.connected {
            Some(_) => self.setup.depths,
            // A request that is not accepted yet.
            None => ReadDepths {
                responder_resources: fits(self.peer.initiator_depth),
                initiator_depth: fits(self.peer.responder_resources),
            },
        };
        let initiator_depth = own.initiator_depth.min(self.peer.responder_resources);
        let setup = QpSetup { depths: ReadDepths { initiator_depth, ..own }, ..self.setup };
        match to {
            _ if setup.remote_qpn == Qpn::default() => None,
            QpState::Rtr => Some(setup.to_rtr()),
            QpState::Rts => Some(setup.to_rts()),
            _ => None,
        }
    }
}
