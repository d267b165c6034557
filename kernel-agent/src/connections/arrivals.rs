//! What the connection manager tells, acted on in the dispatcher thread: the queue pair is moved, then the client hears of it.
//!
//! Locks: the connections' `state`, never across a command or an upcall.

use alloc::sync::Arc;

use nic_abi::registers::Identity;
use roce::Gid;
use roce::cm::rej::Reason;

use crate::agent::Agent;
use crate::cm;
use crate::connect::{Path, mtu_bytes};
use crate::{CmEvent, CmEventKind, ConnectionId, ListenId, Qp, RequestedPath};

use super::{Connections, End, Listen, Told, to_error};

pub(super) fn gid_index(identity: &Identity, gid: Gid) -> u8 {
    identity.gids.iter().position(|&ours| ours == gid.0).unwrap_or(0) as u8
}

impl Connections {
    /// Acts on the oldest thing that was told; false if there is none. In the dispatcher thread.
    pub(crate) fn dispatch(&self, agent: &Agent) -> bool {
        let told = self.state.lock().inbox.pop_front();
        match told {
            None => return false,
            Some(Told::Established(id)) => self.tell(id, CmEventKind::Established, &[]),
            Some(Told::Cm(event)) => self.on_event(agent, *event),
        }
        true
    }

    /// Tells of a connection that goes on.
    fn tell(&self, id: ConnectionId, kind: CmEventKind, private_data: &[u8]) {
        let end = self.state.lock().ends.get(&id).map(|end| (end.client.clone(), end.context));
        if let Some((client, context)) = end {
            let event = CmEvent { connection: id, context, kind, information: &[], private_data };
            client.upcall(|up| up.connection(event));
        }
    }

    /// Forgets a connection that is over, and tells of it.
    fn over(&self, id: ConnectionId, kind: CmEventKind, private_data: &[u8]) {
        self.over_because(id, kind, &[], private_data);
    }

    fn over_because(&self, id: ConnectionId, kind: CmEventKind, information: &[u8], private_data: &[u8]) {
        let end = self.state.lock().remove(id);
        to_error(end.as_ref());
        if let Some(end) = end {
            end.tell_because(id, kind, information, private_data);
        }
    }

    fn on_event(&self, agent: &Agent, event: cm::Event) {
        match event {
            cm::Event::ConnectRequest(request) => self.on_request(agent, &request),
            cm::Event::Reply(reply) => self.on_reply(agent, &reply),
            cm::Event::Established { conn, private_data } => {
                let id = ConnectionId(conn.0);
                let Some((qp, path)) = self.qp(id) else { return };
                if qp.modify(&path.to_rts()).is_err() {
                    self.abandon_and_tell(agent, id, CmEventKind::Disconnected { by_peer: false });
                    return;
                }
                self.tell(id, CmEventKind::Established, private_data.as_deref().unwrap_or(&[]));
            }
            cm::Event::Rejected(rejection) => {
                let kind = match rejection.state {
                    state if state.is_pending_request() => CmEventKind::Withdrawn,
                    cm::State::Established => CmEventKind::Disconnected { by_peer: true },
                    _ => CmEventKind::Rejected { reason: rejection.reason.0 },
                };
                let id = ConnectionId(rejection.conn.0);
                self.over_because(id, kind, rejection.ari(), &rejection.private_data);
            }
            cm::Event::TimedOut { conn, state } => {
                let kind = match state {
                    state if state.is_pending_request() => CmEventKind::Withdrawn,
                    cm::State::RepSent | cm::State::MraRepRcvd => CmEventKind::AcceptTimedOut,
                    _ => CmEventKind::Unreachable,
                };
                self.over(ConnectionId(conn.0), kind, &[]);
            }
            cm::Event::Disconnected { conn, private_data, .. } => {
                let kind = CmEventKind::Disconnected { by_peer: true };
                self.over(ConnectionId(conn.0), kind, &private_data);
            }
            cm::Event::Released { conn, private_data, .. } => {
                let kind = CmEventKind::Disconnected { by_peer: false };
                self.over(ConnectionId(conn.0), kind, &private_data);
            }
            cm::Event::TimeWaitOver { .. } => {}
            cm::Event::ResolutionRequest(resolution) => self.on_resolution_request(agent, &resolution),
            cm::Event::ResolutionReply(reply) => self.on_resolution_reply(&reply),
            cm::Event::ResolutionTimedOut { sidr } => self.on_resolution_timed_out(sidr),
        }
    }

    fn qp(&self, id: ConnectionId) -> Option<(Arc<Qp>, Path)> {
        let state = self.state.lock();
        let end = state.ends.get(&id)?;
        Some((end.qp.clone()?, end.path))
    }

    fn abandon_and_tell(&self, agent: &Agent, id: ConnectionId, kind: CmEventKind) {
        let end = self.state.lock().give_up(agent, id);
        to_error(end.as_ref());
        if let Some(end) = end {
            end.tell(id, kind, &[]);
        }
    }

    fn on_request(&self, agent: &Agent, request: &cm::Request) {
        let id = ConnectionId(request.conn.0);
        let listen = ListenId(request.listen.0);
        let identity = agent.identity();
        let source_gid = gid_index(identity, request.local_gid);
        let path_mtu = mtu_bytes(request.path_mtu);
        let now = agent.platform().now();
        let mut state = self.state.lock();
        let Some(Listen { client, context }) = state.listens.get(&listen).cloned() else {
            // It went away while the request was on its way here.
            let _ = state.cm.reject(now, request.conn, Reason::INVALID_SERVICE_ID, &[], &[]);
            state.flush(agent);
            return;
        };
        if !state.admits(&client) {
            let _ = state.cm.reject(now, request.conn, Reason::NO_RESOURCES, &[], &[]);
            state.flush(agent);
            return;
        }
        let path = Path {
            remote_gid: request.remote_gid.0,
            source_gid,
            remote_qpn: request.remote_qpn.get(),
            mtu: path_mtu.min(identity.mtu),
            send_psn: request.send_psn.get(),
            receive_psn: 0,
            traffic_class: request.traffic_class,
            flow_label: request.flow_label,
            hop_limit: if request.hop_limit == 0 { 64 } else { request.hop_limit },
            ack_timeout: request.ack_timeout.get(),
            retry_count: request.retry_count,
            rnr_retry: request.rnr_retry_count,
            min_rnr_timer: 0,
            // As much as the peer can serve; accept makes it less.
            initiator_depth: request.responder_resources,
            responder_resources: 0,
        };
        state.ends.insert(id, End { client: client.clone(), context, qp: None, path, three_way: false });
        drop(state);
        let kind = CmEventKind::Request {
            listen,
            remote_gid: request.remote_gid.0,
            source_gid,
            remote_qpn: request.remote_qpn.get(),
            remote_initiator_depth: request.initiator_depth,
            remote_responder_resources: request.responder_resources,
            path_mtu,
            path: RequestedPath {
                pkey: request.pkey.0,
                traffic_class: request.traffic_class,
                flow_label: request.flow_label,
                hop_limit: request.hop_limit,
                service_level: request.sl,
                packet_rate: request.packet_rate,
                subnet_local: request.subnet_local,
            },
        };
        client.upcall(|up| {
            let private_data = &request.private_data;
            up.connection(CmEvent { connection: id, context, kind, information: &[], private_data });
        });
    }

    fn on_reply(&self, agent: &Agent, reply: &cm::Reply) {
        let id = ConnectionId(reply.conn.0);
        let (qp, path, three_way) = {
            let mut state = self.state.lock();
            let Some(end) = state.ends.get_mut(&id) else { return };
            end.path.remote_qpn = reply.remote_qpn.get();
            end.path.send_psn = reply.send_psn.get();
            end.path.rnr_retry = reply.rnr_retry_count;
            end.path.initiator_depth = end.path.initiator_depth.min(reply.responder_resources);
            let Some(qp) = end.qp.clone() else { return };
            (qp, end.path, end.three_way)
        };
        let moved = qp.modify(&path.to_rtr());
        let moved = if three_way { moved } else { moved.and_then(|()| qp.modify(&path.to_rts())) };
        if moved.is_err() {
            self.abandon_and_tell(agent, id, CmEventKind::Unreachable);
            return;
        }
        if three_way {
            let kind = CmEventKind::AcceptArrived {
                remote_initiator_depth: reply.initiator_depth,
                remote_responder_resources: reply.responder_resources,
            };
            self.tell(id, kind, &reply.private_data);
            return;
        }
        let now = agent.platform().now();
        {
            let mut state = self.state.lock();
            if state.cm.establish(now, reply.conn, &[]).is_err() {
                // Rejected or given up meanwhile; its own event says so.
                return;
            }
            state.flush(agent);
        }
        self.tell(id, CmEventKind::Established, &reply.private_data);
    }
}

impl End {
    pub(super) fn tell(&self, id: ConnectionId, kind: CmEventKind, private_data: &[u8]) {
        self.tell_because(id, kind, &[], private_data);
    }

    fn tell_because(&self, id: ConnectionId, kind: CmEventKind, information: &[u8], private_data: &[u8]) {
        let event = CmEvent { connection: id, context: self.context, kind, information, private_data };
        self.client.upcall(|up| up.connection(event));
    }
}
