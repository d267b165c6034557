//! The calls of clients about listening points and connections.

use alloc::sync::Arc;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering;

use nic_abi::admin::{ModifyQp, QpState};
use platform::heap;
use roce::cm::ReadDepths;
use roce::cm::rej::Reason;
use roce::{PathMtu, Psn, Qpn, ServiceId};

use super::state::{ConnectionManager, End, HeldBack, Listen, Notice};
use super::{BACKLOG, MEMORY};
use crate::cm::{self, AcceptParams, ConnectParams, ConnectionId, ListenId, LocalQp, Moves, Transports};
use crate::connect::{Handshake, QpSetup, check_depths, gid_index, with_hop_limit};
use crate::connectable::Connectable;
use crate::protocol::Protocol;
use crate::qp_common::Common;
use crate::{Client, Error, Resource, walk};

impl ConnectionManager {
    /// What the queue pair of a connection is to be moved with.
    pub(crate) fn changes(&self, client: &Client, id: ConnectionId, to: QpState) -> Result<ModifyQp, Error> {
        let changes = self.tables.lock().end(client, id)?.changes(to, self.identity.max_rd_atomic);
        changes.ok_or(Error::ConnectionState)
    }
}

impl Protocol for ConnectionManager {
    fn listen(
        &self,
        client: &Arc<Client>,
        services: RangeInclusive<ServiceId>,
        transports: Transports,
        context: u64,
    ) -> Result<ListenId, Error> {
        let mut tables = self.tables.lock();
        // Under the lock: what entered after the tables were cleared would keep the closed agent.
        client.agent().alive()?;
        let id = tables.cm.listen_to_range(services, transports, BACKLOG)?;
        tables.listens.insert(id, Listen { client: client.clone(), context });
        Ok(id)
    }

    fn stop_listening(&self, client: &Client, id: ListenId) -> Result<(), Error> {
        let mut tables = self.tables.lock();
        match tables.listens.get(&id) {
            Some(listen) if core::ptr::eq(&*listen.client, client) => {}
            _ => return Err(Error::ConnectionState),
        }
        tables.cm.stop_listen(id)?;
        let listen = tables.listens.remove(&id);
        drop(tables);
        drop(listen);
        Ok(())
    }

    fn connect(
        &self,
        client: &Arc<Client>,
        of: &Connectable,
        params: &ConnectParams,
        handshake: Handshake,
        private_data: &[u8],
    ) -> Result<ConnectionId, Error> {
        of.ready(client, params.moves)?;
        if params.moves == Moves::None && handshake == Handshake::TwoWay {
            return Err(Error::OutOfRange("handshake"));
        }
        let source_gid =
            gid_index(&self.identity, params.path.local_gid).ok_or(Error::OutOfRange("source GID"))?;
        check_depths(&self.identity, params.depths)?;
        let path = with_hop_limit(params.path);
        let mtu = params.path_mtu.min(PathMtu::at_most(self.identity.mtu));
        let now = self.platform.now();
        let mut tables = self.tables.lock();
        // Again under the lock, since the queue pair may be destroyed: see `abandon_of`.
        let (qpn, transport) = of.ready(client, params.moves)?;
        if !tables.admits(client) {
            return Err(Error::NoResources(Resource::Connections));
        }
        let receive_psn = tables.psn();
        let asked = ConnectParams {
            path,
            path_mtu: mtu,
            ip_source_port: match params.ip_source_port {
                // A port of the dynamic range, as a socket would have; it only has to be there.
                0 => 49152 | (receive_psn.get() as u16 & 0x3fff),
                given => given,
            },
            ..*params
        };
        let id = tables.cm.connect(now, LocalQp::new(transport, qpn, receive_psn), &asked, private_data)?;
        let setup = QpSetup {
            path,
            source_gid,
            mtu,
            remote_qpn: Qpn::default(),
            send_psn: Psn::default(),
            receive_psn,
            depths: params.depths,
            ack_timeout: params.local_ack_timeout,
            retry_count: params.retry_count,
            rnr_retry_count: params.own_rnr_retry_count,
        };
        let end = End {
            client: of.client().clone(),
            context: of.common().context(),
            connected: Some(of.connected(qpn)),
            setup,
            peer: ReadDepths::default(),
            handshake,
            moves: params.moves,
        };
        tables.insert(id, end);
        of.common().set_connection(Some(id));
        self.flush(&mut tables);
        Ok(id)
    }

    fn accept(
        &self,
        client: &Client,
        id: ConnectionId,
        with: &Connectable,
        params: &AcceptParams,
        private_data: &[u8],
    ) -> Result<(), Error> {
        with.ready(client, params.moves)?;
        check_depths(&self.identity, params.depths)?;
        let now = self.platform.now();
        let (moved, setup) = {
            let mut tables = self.tables.lock();
            // As in `connect`.
            let (qpn, transport) = with.ready(client, params.moves)?;
            let end = tables.end(client, id)?;
            if end.connected.is_some() {
                return Err(Error::ConnectionState);
            }
            let local = LocalQp::new(transport, qpn, end.setup.receive_psn);
            // The reply must not arrive before the queue pair is ready for what it invites. The RNR
            // retry count that it carries is for the peer's queue pair; that of the request is for
            // ours.
            tables.cm.prepare_accept(now, id, local, params, private_data)?;
            let end = tables.ends.get_mut(&id).ok_or(Error::ConnectionState)?;
            let connected = with.connected(qpn);
            end.context = with.common().context();
            end.connected = Some(connected);
            end.moves = params.moves;
            end.setup.depths = ReadDepths {
                initiator_depth: params.depths.initiator_depth.min(end.peer.responder_resources),
                ..params.depths
            };
            with.common().set_connection(Some(id));
            (end.moved().cloned(), end.setup)
        };
        let ready = moved.map_or(Ok(()), |queue| {
            queue.modify(&setup.to_rtr())?;
            match params.moves {
                Moves::UntilThePeerDisconnects => queue.modify(&setup.to_rts()),
                Moves::All | Moves::None => Ok(()),
            }
        });
        if let Err(error) = ready {
            // The peer may have ended the connection meanwhile, and with it the queue pair. Then
            // the accept took effect, and the event that reports the end follows it.
            return if self.abandon(id) { Err(error) } else { Ok(()) };
        }
        self.send_held_back(id, HeldBack::default());
        Ok(())
    }

    fn establish(
        &self,
        client: &Client,
        id: ConnectionId,
        initiator_depth: u8,
        private_data: &[u8],
    ) -> Result<(), Error> {
        if private_data.len() > roce::cm::rtu::PRIVATE_DATA_LEN {
            return Err(Error::PrivateData(roce::cm::rtu::PRIVATE_DATA_LEN));
        }
        check_depths(&self.identity, ReadDepths { initiator_depth, responder_resources: 0 })?;
        let (moved, mut setup) = {
            let tables = self.tables.lock();
            let end = tables.end(client, id)?;
            let waits = matches!(tables.cm.state(id), cm::State::RepRcvd | cm::State::MraRepSent)
                && end.handshake == Handshake::ThreeWay;
            if !waits {
                return Err(Error::ConnectionState);
            }
            (end.moved().cloned(), end.setup)
        };
        setup.depths.initiator_depth = initiator_depth;
        heap::room(MEMORY)?;
        if let Some(queue) = moved {
            queue.modify(&setup.to_rts())?;
        }
        let now = self.platform.now();
        let mut tables = self.tables.lock();
        // The RTU follows the report, after which the client's endpoint is connected.
        tables.cm.prepare_establish(now, id, private_data)?;
        tables.inbox.push_back(Notice::Established(id));
        self.signal.raise();
        Ok(())
    }

    fn reject(
        &self,
        client: &Client,
        id: ConnectionId,
        reason: Reason,
        information: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        let now = self.platform.now();
        let mut tables = self.tables.lock();
        tables.end(client, id)?;
        tables.cm.reject(now, id, reason, information, private_data)?;
        let end = tables.remove(id);
        self.flush(&mut tables);
        drop(tables);
        if let Some(end) = end {
            end.flush_qp();
        }
        Ok(())
    }

    /// Forgets a request that waits for an answer, as if it had not come.
    fn discard(&self, client: &Client, id: ConnectionId) -> Result<(), Error> {
        let now = self.platform.now();
        let mut tables = self.tables.lock();
        tables.end(client, id)?;
        tables.cm.discard(now, id)?;
        let end = tables.remove(id);
        drop(tables);
        drop(end);
        Ok(())
    }

    fn disconnect(&self, client: &Client, id: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        let now = self.platform.now();
        let mut tables = self.tables.lock();
        let moved = tables.end(client, id)?.moved().cloned();
        tables.cm.prepare_disconnect(now, id, private_data)?;
        let held_back = tables.hold_back();
        let removed = match tables.cm.state(id) {
            cm::State::DreqSent => None,
            _ => tables.remove(id),
        };
        drop(tables);
        // The queue pair first: the peer must not learn of the end before the end.
        let result = moved.map_or(Ok(()), |queue| queue.flush());
        drop(removed);
        self.send_held_back(id, held_back);
        match result {
            // Destroyed at the same time.
            Err(Error::Gone) => Ok(()),
            other => other,
        }
    }

    /// A failure changes nothing.
    fn transfer(&self, from: &Client, id: ConnectionId, to: &Arc<Client>, context: u64) -> Result<(), Error> {
        if !Arc::ptr_eq(from.agent(), to.agent()) {
            return Err(Error::Foreign);
        }
        let former = {
            let mut tables = self.tables.lock();
            if tables.end(from, id)?.connected.is_some() {
                return Err(Error::ConnectionState);
            }
            if !tables.admits(to) {
                return Err(Error::NoResources(Resource::Connections));
            }
            let end = tables.ends.get_mut(&id).ok_or(Error::ConnectionState)?;
            from.connections.fetch_sub(1, Ordering::Relaxed);
            to.connections.fetch_add(1, Ordering::Relaxed);
            end.context = context;
            core::mem::replace(&mut end.client, to.clone())
        };
        // Without the lock.
        drop(former);
        Ok(())
    }

    fn abandon(&self, id: ConnectionId) -> bool {
        let end = self.give_up(&mut self.tables.lock(), id);
        // Dropped without the lock.
        end.is_some()
    }

    fn abandon_of(&self, qp: &Common) {
        let end = {
            let mut tables = self.tables.lock();
            qp.connection().and_then(|id| self.give_up(&mut tables, id))
        };
        // Dropped without the lock.
        drop(end);
    }

    fn detach(&self, client: &Client) {
        let of = |other: &Arc<Client>| core::ptr::eq(&**other, client);
        let stop = |id| _ = self.stop_listening(client, id);
        walk::each(&self.tables, |tables| &tables.listens, |listen| of(&listen.client), stop);
        // From here on no request makes a new end for the client.
        let abandon = |id| _ = self.abandon(id);
        walk::each(&self.tables, |tables| &tables.ends, |end| of(&end.client), abandon);
        self.detach_resolutions(client);
    }
}
