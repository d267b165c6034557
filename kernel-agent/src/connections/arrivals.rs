//! The dispatcher thread's part: it acts on each event of the CM state machine. It moves the queue
//! pair, then it reports the event to the client.
//!
//! Locks: the manager's `tables`, never across a command or an upcall.

use platform::heap;
use roce::cm::ReadDepths;
use roce::cm::rej::Reason;
use roce::transport::Service;

use super::MEMORY;
use super::state::{ConnectionManager, End, HeldBack, Listen, Notice, Tables};
use crate::cm::{self, ConnectionId, Moves};
use crate::connect::{Handshake, QpSetup, gid_index, with_hop_limit};
use crate::{CmEvent, CmEventKind, QpType};

impl ConnectionManager {
    /// Acts on all notices that are in the inbox now; returns whether there were any. In the
    /// dispatcher thread.
    ///
    /// Meanwhile it takes datagrams from QP1, so that a flood does not keep others out for as long
    /// as the clients' upcalls take; nothing acts on these datagrams before this returns.
    pub(crate) fn dispatch(&self) -> bool {
        let waiting = self.tables.lock().inbox.len();
        for _ in 0..waiting {
            let notice = self.tables.lock().inbox.pop_front();
            match notice {
                None => break,
                Some(Notice::Established(id)) => self.confirm(id, &[]),
                Some(Notice::Cm(event)) => self.on_event(*event),
            }
            self.take_in();
        }
        waiting > 0
    }

    /// Active side: reports that a connection is established, and then sends the RTU. With the RTU
    /// the peer may begin to send. By then the client's endpoint is connected, so a consumer can
    /// answer a Receive as soon as it completes.
    fn confirm(&self, id: ConnectionId, private_data: &[u8]) {
        self.report_established(id, private_data);
        self.send_held_back(id, HeldBack::default());
    }

    /// Reports that a connection is established; not if it is over by now.
    fn report_established(&self, id: ConnectionId, private_data: &[u8]) {
        self.report(id, |end| CmEventKind::Established { depths: end.peer }, private_data);
    }

    /// Reports an event of a connection that goes on.
    fn report(&self, id: ConnectionId, kind: impl FnOnce(&End) -> CmEventKind, private_data: &[u8]) {
        let end = {
            let tables = self.tables.lock();
            tables.ends.get(&id).map(|end| (end.client.clone(), end.context, kind(end)))
        };
        if let Some((client, context, kind)) = end {
            let event = CmEvent { connection: id, context, kind, information: &[], private_data };
            client.upcall(|up| up.connection(event));
        }
    }

    /// Forgets a connection that is over, and reports that.
    fn over(&self, id: ConnectionId, kind: CmEventKind, information: &[u8], private_data: &[u8]) {
        let end = self.tables.lock().remove(id);
        if let Some(end) = end {
            if !end.leaves_qp(&kind) {
                end.flush_qp();
            }
            end.report(id, kind, information, private_data);
        }
    }

    /// Gives up a connection whose queue pair could not be moved, and reports that.
    fn fail(&self, id: ConnectionId, kind: CmEventKind) {
        let end = self.give_up(&mut self.tables.lock(), id);
        if let Some(end) = end {
            end.flush_qp();
            end.report(id, kind, &[], &[]);
        }
    }

    fn on_event(&self, event: cm::Event) {
        match event {
            cm::Event::ConnectRequest(request) => self.on_request(&request),
            cm::Event::Reply(reply) => self.on_reply(&reply),
            cm::Event::Established { conn, private_data } => {
                self.on_established(conn, private_data.as_deref().unwrap_or(&[]));
            }
            cm::Event::Rejected(rejection) => {
                let kind = match rejection.state {
                    state if state.is_pending_request() => CmEventKind::Withdrawn,
                    cm::State::Established => {
                        CmEventKind::Disconnected { by_peer: rejection.reason == Reason::CONSUMER_DEFINED }
                    }
                    _ => CmEventKind::Rejected { reason: rejection.reason },
                };
                self.over(rejection.conn, kind, rejection.ari(), &rejection.private_data);
            }
            cm::Event::TimedOut { conn, state } => {
                let kind = match state {
                    state if state.is_pending_request() => CmEventKind::Withdrawn,
                    cm::State::RepSent | cm::State::MraRepRcvd => CmEventKind::AcceptTimedOut,
                    _ => CmEventKind::Unreachable,
                };
                self.over(conn, kind, &[], &[]);
            }
            cm::Event::Disconnected { conn, cause, private_data } => {
                let by_peer = cause == cm::Cause::Peer;
                self.over(conn, CmEventKind::Disconnected { by_peer }, &[], &private_data);
            }
            cm::Event::Released { conn, private_data, .. } => {
                self.over(conn, CmEventKind::Disconnected { by_peer: false }, &[], &private_data);
            }
            cm::Event::TimeWaitOver { .. } => {}
            cm::Event::ResolutionRequest(request) => self.on_resolution_request(&request),
            cm::Event::ResolutionReply(reply) => self.on_resolution_reply(&reply),
            cm::Event::ResolutionTimedOut { sidr } => self.on_resolution_timed_out(sidr),
        }
    }

    /// Passive side: a peer asks for a connection.
    fn on_request(&self, request: &cm::Request) {
        let id = request.conn;
        let source_gid = gid_index(&self.identity, request.path.local_gid).unwrap_or(0);
        let mut tables = self.tables.lock();
        let Some(Listen { client, context }) = tables.listens.get(&request.listen).cloned() else {
            // The listening point ended after the request had arrived.
            return self.refuse(&mut tables, id, Reason::INVALID_SERVICE_ID);
        };
        if !tables.admits(&client) {
            return self.refuse(&mut tables, id, Reason::NO_RESOURCES);
        }
        if heap::room(MEMORY).is_err() {
            // As if it had not come: the peer repeats it. Fails only if the peer withdrew it.
            let _ = tables.cm.discard(self.platform.now(), id);
            return;
        }
        let setup = QpSetup {
            path: with_hop_limit(request.path),
            source_gid,
            mtu: request.path_mtu,
            remote_qpn: request.remote_qpn,
            send_psn: request.send_psn,
            receive_psn: tables.psn(),
            // These `accept` fills in.
            depths: ReadDepths::default(),
            ack_timeout: request.ack_timeout,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
        };
        let end = End {
            client: client.clone(),
            context,
            connected: None,
            setup,
            peer: request.depths,
            handshake: Handshake::TwoWay,
            // As above.
            moves: Moves::All,
        };
        tables.insert(id, end);
        drop(tables);
        let kind = CmEventKind::Request {
            listen: request.listen,
            service: request.service,
            qp_type: match request.transport {
                Service::Rc => QpType::Rc,
                Service::Uc => QpType::Uc,
            },
            path: request.path,
            source_gid,
            path_mtu: request.path_mtu,
            pkey: request.pkey,
            depths: request.depths,
            source_port: request.ip.map_or(0, |ip| ip.src_port),
        };
        let private_data = &request.private_data;
        let event = CmEvent { connection: id, context, kind, information: &[], private_data };
        client.upcall(|up| up.connection(event));
    }

    fn refuse(&self, tables: &mut Tables, id: ConnectionId, reason: Reason) {
        let _ = tables.cm.reject(self.platform.now(), id, reason, &[], &[]);
        self.flush(tables);
    }

    /// Active side: the peer accepts.
    fn on_reply(&self, reply: &cm::Reply) {
        let id = reply.conn;
        let (moved, setup, handshake) = {
            let mut tables = self.tables.lock();
            let Some(end) = tables.ends.get_mut(&id) else { return };
            end.peer = reply.depths;
            end.setup.remote_qpn = reply.remote_qpn;
            end.setup.send_psn = reply.send_psn;
            // Until now it has the most that this side wants.
            end.setup.rnr_retry_count = reply.rnr_retry_count.min(end.setup.rnr_retry_count);
            if end.connected.is_none() {
                return;
            }
            (end.moved().cloned(), end.setup, end.handshake)
        };
        if handshake == Handshake::TwoWay && !setup.depths.fit(reply.depths) {
            let reason = Reason::INSUFFICIENT_RESPONDER_RESOURCES;
            self.refuse(&mut self.tables.lock(), id, reason);
            return self.over(id, CmEventKind::Rejected { reason }, &[], &[]);
        }
        let ready = moved.map_or(Ok(()), |queue| {
            queue.modify(&setup.to_rtr())?;
            match handshake {
                Handshake::TwoWay => queue.modify(&setup.to_rts()),
                Handshake::ThreeWay => Ok(()),
            }
        });
        if ready.is_err() {
            return self.fail(id, CmEventKind::Unreachable);
        }
        if handshake == Handshake::ThreeWay {
            let depths = reply.depths;
            return self.report(id, |_| CmEventKind::AcceptArrived { depths }, &reply.private_data);
        }
        {
            let mut tables = self.tables.lock();
            if tables.cm.prepare_establish(self.platform.now(), id, &[]).is_err() {
                // The peer rejected or the attempt timed out meanwhile; that event is in the inbox.
                return;
            }
        }
        self.confirm(id, &reply.private_data);
    }

    /// Passive side: the peer confirms our reply.
    fn on_established(&self, id: ConnectionId, private_data: &[u8]) {
        let found = {
            let tables = self.tables.lock();
            // Of a queue pair that is not ready to send yet.
            let waits = |end: &End| end.moved().filter(|_| end.moves == Moves::All).cloned();
            let end = tables.ends.get(&id).filter(|end| end.connected.is_some());
            end.map(|end| (waits(end), end.setup))
        };
        let Some((moved, setup)) = found else { return };
        match moved.map_or(Ok(()), |queue| queue.modify(&setup.to_rts())) {
            Ok(()) => self.report_established(id, private_data),
            Err(_) => self.fail(id, CmEventKind::Disconnected { by_peer: false }),
        }
    }
}
