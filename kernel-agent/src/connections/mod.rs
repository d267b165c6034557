//! Connections: the CM state machine driven, and the queue pairs moved along.
//!
//! Calls of consumers and datagrams change the state machine under one lock; what it says has to be sent is sent under
//! that lock, what it has to tell goes to the inbox. The dispatcher thread takes from the inbox, moves the queue pair
//! and then tells the client, with no lock held.
//!
//! Locks: `state` (spins; before the send queue of QP1, never held across a command or an upcall).

mod arrivals;
mod resolutions;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use nic_abi::admin::QpState;
use nic_abi::registers::Identity;
use platform::Instant;
use platform::sync::Mutex;
use roce::cm::rej::Reason;
use roce::{Gid, PKey, Psn, Qpn, TimeoutCode};

use crate::agent::Agent;
use crate::cm::{self, Action, Arrival, Cm, ConnId};
use crate::connect::{AcceptParams, ConnectParams, Path, cm_mtu, mtu_bytes};
use crate::{Client, CmEventKind, ConnectionId, Error, ListenId, Qp, QpType, Resource};
use resolutions::{Question, RESOLUTIONS};

pub use resolutions::{
    ResolutionAnswer, ResolutionEvent, ResolutionEventKind, ResolutionId, ResolutionRequestId, ResolveParams,
};

/// Requests that may wait for one listening point's consumer.
const BACKLOG: u32 = 256;

/// All connections of an agent.
pub(crate) struct Connections {
    state: Mutex<State>,
}

struct State {
    cm: Cm,
    listens: BTreeMap<ListenId, Listen>,
    ends: BTreeMap<ConnectionId, End>,
    /// What we asked of peers' services.
    questions: BTreeMap<ResolutionId, Question>,
    /// What peers ask of our services, and who has to answer; oldest first.
    asked: VecDeque<(ResolutionRequestId, Arc<Client>)>,
    inbox: VecDeque<Told>,
    random: u64,
}

#[derive(Clone)]
struct Listen {
    client: Arc<Client>,
    context: u64,
}

/// One end of a connection, from when somebody hears of it until it is over (time-wait not counted).
struct End {
    client: Arc<Client>,
    /// The queue pair's, or the listening point's as long as there is none.
    context: u64,
    qp: Option<Arc<Qp>>,
    /// What the queue pair is moved with, as far as it is known.
    path: Path,
    three_way: bool,
}

/// What the dispatcher has to act on.
enum Told {
    Cm(Box<cm::Event>),
    /// Our consumer's establish took effect.
    Established(ConnectionId),
}

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
            cm::Error::OutOfRange(what) => Error::OutOfRange(what),
            cm::Error::QpInUse(_) | cm::Error::TimeWait(_) => Error::Busy,
        }
    }
}

impl State {
    /// The starting PSN: not predictable from the last one (splitmix64).
    fn psn(&mut self) -> Psn {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Psn::new((z ^ z >> 31) as u32)
    }

    /// Carries out what the state machine asks for.
    fn flush(&mut self, agent: &Agent) {
        while let Some(action) = self.cm.next_action() {
            self.carry_out(agent, action);
        }
    }

    fn carry_out(&mut self, agent: &Agent, action: Action) {
        match action {
            Action::Send(outgoing) => agent.send_management(&outgoing),
            Action::Event(event) => {
                self.inbox.push_back(Told::Cm(Box::new(event)));
                agent.nic().attention().raise();
            }
        }
    }

    /// Ends what is left of a connection; `None` if it was over.
    fn give_up(&mut self, agent: &Agent, id: ConnectionId) -> Option<End> {
        // The outbox is empty between calls, so the one refusal is that the connection is gone.
        let _ = self.cm.abandon(agent.platform().now(), ConnId(id.0));
        let end = self.remove(id);
        self.flush(agent);
        end
    }

    /// Takes out what the last call asks for: it waits until the queue pair was moved.
    fn hold_back(&mut self) -> Vec<Action> {
        core::iter::from_fn(|| self.cm.next_action()).collect()
    }

    /// Carries out what was held back.
    fn let_go(&mut self, agent: &Agent, held_back: Vec<Action>) {
        for action in held_back {
            self.carry_out(agent, action);
        }
    }

    /// Whether the client may have another connection.
    fn admits(&self, client: &Client) -> bool {
        let most = client.max_connections();
        let of_it = || self.ends.values().filter(|end| core::ptr::eq(&*end.client, client));
        most == u32::MAX || of_it().count() < most as usize
    }

    fn end(&self, client: &Client, id: ConnectionId) -> Result<&End, Error> {
        self.ends.get(&id).filter(|end| core::ptr::eq(&*end.client, client)).ok_or(Error::ConnectionState)
    }

    /// Forgets an end that is over.
    fn remove(&mut self, id: ConnectionId) -> Option<End> {
        let end = self.ends.remove(&id)?;
        if let Some(qp) = &end.qp
            && qp.connection() == Some(id)
        {
            qp.set_connection(None);
        }
        Some(end)
    }
}

fn connectable(client: &Client, qp: &Arc<Qp>) -> Result<Qpn, Error> {
    if !core::ptr::eq(&**qp.client(), client) {
        return Err(Error::Foreign);
    }
    client.agent().alive()?;
    if qp.is_gone() {
        return Err(Error::Gone);
    }
    if qp.kind != QpType::Rc {
        return Err(Error::OutOfRange("queue pair type"));
    }
    if qp.state() != QpState::Init {
        return Err(Error::QpState(qp.state()));
    }
    if qp.connection().is_some() {
        return Err(Error::Busy);
    }
    Qpn::new(qp.qpn()).ok_or(Error::OutOfRange("queue pair number"))
}

impl Connections {
    pub(crate) fn new(identity: &Identity, connections: u32, listens: u32, seed: u64) -> Connections {
        let config = cm::Config {
            ca_guid: identity.node_guid,
            max_connections: connections,
            max_listeners: listens,
            max_resolutions: RESOLUTIONS,
            secret: (seed ^ identity.node_guid) as u32,
            ..cm::Config::default()
        };
        Connections {
            state: Mutex::new(State {
                cm: Cm::new(config),
                listens: BTreeMap::new(),
                ends: BTreeMap::new(),
                questions: BTreeMap::new(),
                asked: VecDeque::new(),
                inbox: VecDeque::new(),
                random: seed,
            }),
        }
    }

    /// Listening points, connections that are not over, and service resolutions (ours, and peers' that wait for an answer).
    pub(crate) fn counts(&self) -> (u32, u32, u32) {
        let state = self.state.lock();
        let resolutions = state.questions.len() + state.asked.len();
        (state.listens.len() as u32, state.ends.len() as u32, resolutions as u32)
    }

    pub(crate) fn listen(
        &self,
        client: &Arc<Client>,
        service: roce::ServiceId,
        context: u64,
    ) -> Result<ListenId, Error> {
        client.agent().alive()?;
        let mut state = self.state.lock();
        let id = ListenId(state.cm.listen(service, BACKLOG)?.0);
        state.listens.insert(id, Listen { client: client.clone(), context });
        Ok(id)
    }

    pub(crate) fn stop_listening(&self, client: &Client, listen: ListenId) -> Result<(), Error> {
        let mut state = self.state.lock();
        match state.listens.get(&listen) {
            Some(entry) if core::ptr::eq(&*entry.client, client) => {}
            _ => return Err(Error::ConnectionState),
        }
        state.cm.stop_listen(cm::ListenId(listen.0))?;
        let entry = state.listens.remove(&listen);
        drop(state);
        drop(entry);
        Ok(())
    }

    pub(crate) fn connect(
        &self,
        client: &Client,
        qp: &Arc<Qp>,
        params: &ConnectParams<'_>,
    ) -> Result<ConnectionId, Error> {
        let agent = client.agent();
        let identity = agent.identity();
        let qpn = connectable(client, qp)?;
        let local =
            identity.gids.get(usize::from(params.source_gid)).ok_or(Error::OutOfRange("source GID"))?;
        if u32::from(params.initiator_depth) > identity.max_rd_atomic
            || u32::from(params.responder_resources) > identity.max_rd_atomic
        {
            return Err(Error::OutOfRange("number of RDMA Reads"));
        }
        let code = |value, what| TimeoutCode::new(value).ok_or(Error::OutOfRange(what));
        let mtu = params.path_mtu.min(identity.mtu);
        let now = agent.platform().now();
        let mut state = self.state.lock();
        if !state.admits(client) {
            return Err(Error::NoResources(Resource::Connections));
        }
        let receive_psn = state.psn();
        let path = Path {
            remote_gid: params.remote_gid,
            source_gid: params.source_gid,
            mtu: mtu_bytes(cm_mtu(mtu)),
            receive_psn: receive_psn.get(),
            traffic_class: params.traffic_class,
            flow_label: params.flow_label,
            hop_limit: if params.hop_limit == 0 { 64 } else { params.hop_limit },
            ack_timeout: params.ack_timeout,
            retry_count: params.retry_count,
            rnr_retry: params.rnr_retry,
            min_rnr_timer: params.min_rnr_timer,
            initiator_depth: params.initiator_depth,
            responder_resources: params.responder_resources,
            ..Path::default()
        };
        let asked = cm::ConnectParams {
            // A port of the dynamic range, as a socket would have; it only has to be there.
            ip_source_port: 49152 | (receive_psn.get() as u16 & 0x3fff),
            receive_psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            remote_cm_timeout: code(params.cm_response_timeout, "CM response timeout")?,
            local_cm_timeout: code(params.cm_response_timeout, "CM response timeout")?,
            max_cm_retries: params.cm_retries,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry,
            local_ack_timeout: code(params.ack_timeout, "local ACK timeout")?,
            timeout: params.timeout,
            path_mtu: cm_mtu(mtu),
            traffic_class: params.traffic_class,
            flow_label: params.flow_label,
            hop_limit: path.hop_limit,
            pkey: PKey(params.pkey),
            sl: params.service_level,
            packet_rate: params.packet_rate,
            subnet_local: params.subnet_local,
            ..cm::ConnectParams::new(Gid(*local), Gid(params.remote_gid), params.service, qpn)
        };
        let id = ConnectionId(state.cm.connect(now, &asked, params.private_data)?.0);
        let end = End {
            client: qp.client().clone(),
            context: qp.context(),
            qp: Some(qp.clone()),
            path,
            three_way: params.three_way,
        };
        state.ends.insert(id, end);
        qp.set_connection(Some(id));
        state.flush(agent);
        Ok(id)
    }

    pub(crate) fn accept(
        &self,
        client: &Client,
        id: ConnectionId,
        qp: &Arc<Qp>,
        params: &AcceptParams<'_>,
    ) -> Result<(), Error> {
        let agent = client.agent();
        let qpn = connectable(client, qp)?;
        let most = agent.identity().max_rd_atomic;
        if u32::from(params.initiator_depth) > most || u32::from(params.responder_resources) > most {
            return Err(Error::OutOfRange("number of RDMA Reads"));
        }
        let now = agent.platform().now();
        let (held_back, modify) = {
            let mut state = self.state.lock();
            let end = state.end(client, id)?;
            if end.qp.is_some() {
                return Err(Error::ConnectionState);
            }
            // No more often than the peer wants us to.
            let rnr_retry_count = params.rnr_retry.min(end.path.rnr_retry);
            let receive_psn = state.psn();
            let asked = cm::AcceptParams {
                receive_psn,
                responder_resources: params.responder_resources,
                initiator_depth: params.initiator_depth,
                rnr_retry_count,
                ..cm::AcceptParams::new(qpn)
            };
            state.cm.accept(now, ConnId(id.0), &asked, params.private_data)?;
            // The reply must not arrive before the queue pair is ready for what it invites.
            let held_back = state.hold_back();
            let end = state.ends.get_mut(&id).ok_or(Error::ConnectionState)?;
            end.context = qp.context();
            end.qp = Some(qp.clone());
            end.path.receive_psn = receive_psn.get();
            end.path.min_rnr_timer = params.min_rnr_timer;
            end.path.initiator_depth = params.initiator_depth.min(end.path.initiator_depth);
            end.path.responder_resources = params.responder_resources;
            qp.set_connection(Some(id));
            (held_back, end.path.to_rtr())
        };
        if let Err(error) = qp.modify(&modify) {
            // The peer may have ended it meanwhile, and with it the queue pair: that comes after the accept and is told so.
            return if self.abandon(agent, id) { Err(error) } else { Ok(()) };
        }
        self.state.lock().let_go(agent, held_back);
        Ok(())
    }

    pub(crate) fn establish(
        &self,
        client: &Client,
        id: ConnectionId,
        initiator_depth: u8,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let agent = client.agent();
        if private_data.len() > roce::cm::rtu::PRIVATE_DATA_LEN {
            return Err(Error::PrivateData(roce::cm::rtu::PRIVATE_DATA_LEN));
        }
        if u32::from(initiator_depth) > agent.identity().max_rd_atomic {
            return Err(Error::OutOfRange("number of RDMA Reads"));
        }
        let (qp, path) = {
            let state = self.state.lock();
            let end = state.end(client, id)?;
            let waits = matches!(state.cm.state(ConnId(id.0)), cm::State::RepRcvd | cm::State::MraRepSent);
            let qp = end.qp.clone().filter(|_| waits && end.three_way).ok_or(Error::ConnectionState)?;
            (qp, Path { initiator_depth, ..end.path })
        };
        qp.modify(&path.to_rts())?;
        let now = agent.platform().now();
        let mut state = self.state.lock();
        state.cm.establish(now, ConnId(id.0), private_data)?;
        state.inbox.push_back(Told::Established(id));
        state.flush(agent);
        agent.nic().attention().raise();
        Ok(())
    }

    pub(crate) fn reject(
        &self,
        client: &Client,
        id: ConnectionId,
        reason: Reason,
        information: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        let agent = client.agent();
        let now = agent.platform().now();
        let mut state = self.state.lock();
        state.end(client, id)?;
        state.cm.reject(now, ConnId(id.0), reason, information, private_data)?;
        let end = state.remove(id);
        state.flush(agent);
        drop(state);
        to_error(end.as_ref());
        Ok(())
    }

    pub(crate) fn disconnect(
        &self,
        client: &Client,
        id: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let agent = client.agent();
        let now = agent.platform().now();
        let mut state = self.state.lock();
        let qp = state.end(client, id)?.qp.clone();
        state.cm.disconnect(now, ConnId(id.0), private_data)?;
        let held_back = state.hold_back();
        let removed = match state.cm.state(ConnId(id.0)) {
            cm::State::DreqSent => None,
            _ => state.remove(id),
        };
        drop(state);
        // First the queue pair: the peer's hearing of the end must not be earlier than the end.
        let result = match &qp {
            Some(qp) => qp.to_error(),
            None => Ok(()),
        };
        drop(removed);
        self.state.lock().let_go(agent, held_back);
        match result {
            // Destroyed at the same time.
            Err(Error::Gone) => Ok(()),
            other => other,
        }
    }

    /// Ends what is left of a connection without telling the client. False if it was over.
    pub(crate) fn abandon(&self, agent: &Agent, id: ConnectionId) -> bool {
        // Dropped without the lock.
        let end = self.state.lock().give_up(agent, id);
        end.is_some()
    }

    /// Ends all connections, listening points and service resolutions of a client.
    pub(crate) fn detach(&self, agent: &Agent, client: &Client) {
        let of = |other: &Arc<Client>| core::ptr::eq(&**other, client);
        let listens: Vec<ListenId> = {
            let state = self.state.lock();
            state.listens.iter().filter(|(_, listen)| of(&listen.client)).map(|(&id, _)| id).collect()
        };
        for listen in listens {
            let _ = self.stop_listening(client, listen);
        }
        // From here on no request makes it a new one.
        let ends: Vec<ConnectionId> = {
            let state = self.state.lock();
            state.ends.iter().filter(|(_, end)| of(&end.client)).map(|(&id, _)| id).collect()
        };
        for id in ends {
            self.abandon(agent, id);
        }
        self.detach_resolutions(client);
    }

    /// Forgets everything, when there is no device any more.
    pub(crate) fn clear(&self) {
        let forgotten = {
            let mut state = self.state.lock();
            for end in state.ends.values() {
                if let Some(qp) = &end.qp {
                    qp.set_connection(None);
                }
            }
            let state = &mut *state;
            (
                core::mem::take(&mut state.listens),
                core::mem::take(&mut state.ends),
                core::mem::take(&mut state.questions),
                core::mem::take(&mut state.asked),
                core::mem::take(&mut state.inbox),
            )
        };
        drop(forgotten);
    }

    /// A datagram came to QP1.
    pub(crate) fn receive(&self, agent: &Agent, from: &Arrival, mad: &[u8]) {
        let now = agent.platform().now();
        let mut state = self.state.lock();
        state.cm.receive(now, from, mad);
        state.flush(agent);
    }

    /// Does what is due; returns when to come again.
    pub(crate) fn poll(&self, agent: &Agent, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        if state.cm.next_deadline().is_some_and(|at| at <= now) {
            state.cm.poll(now);
            state.flush(agent);
        }
        state.cm.next_deadline()
    }

    /// Data arrived on a queue pair before its connection's last message.
    pub(crate) fn communication_established(&self, agent: &Agent, qp: &Qp) {
        if let Some(id) = qp.connection() {
            let now = agent.platform().now();
            let mut state = self.state.lock();
            // Refused where the message has come since.
            let _ = state.cm.communication_established(now, ConnId(id.0));
            state.flush(agent);
        }
    }

    /// A queue pair broke by itself: its connection ends too.
    pub(crate) fn broke(&self, agent: &Agent, qp: &Qp) {
        let Some(id) = qp.connection() else { return };
        let now = agent.platform().now();
        let mut state = self.state.lock();
        if state.cm.state(ConnId(id.0)) == cm::State::Established {
            let _ = state.cm.disconnect(now, ConnId(id.0), &[]);
            state.flush(agent);
            return;
        }
        if state.cm.state(ConnId(id.0)) == cm::State::DreqSent {
            return;
        }
        let end = state.give_up(agent, id);
        drop(state);
        if let Some(end) = end {
            end.tell(id, CmEventKind::Disconnected { by_peer: false }, &[]);
        }
    }
}

/// An end that is over has its queue pair in ERROR before anybody hears of it.
fn to_error(end: Option<&End>) {
    if let Some(qp) = end.and_then(|end| end.qp.as_ref()) {
        // It may be gone, or the device dead: then there is nothing to flush.
        let _ = qp.to_error();
    }
}
