//! The calls of clients about listening points and connections over streams.
//!
//! The port of a service is that of rdma_cm's or IT-API's ids of ports, or the id itself if it is
//! one of 16 bits.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::RangeInclusive;

use iwarp::mpa::frame::MAX_PRIVATE_DATA;
use nic_abi::admin::{ModifyQp, QpState};
use platform::heap;
use roce::ServiceId;
use roce::cm::rej::Reason;

use super::bind::{Bound, Role, to_rtr, to_rts};
use super::drive::{MEMORY, send};
use super::setup::{Setup, depths_of};
use super::state::{End, Listening, Mpa, Notice, State};
use crate::cm::crowd::Crowd;
use crate::cm::{AcceptParams, ConnectParams, ConnectionId, ListenId, Transports};
use crate::connect::{Conversion, Handshake, check_depths};
use crate::connectable::Connectable;
use crate::home::Home;
use crate::protocol::Protocol;
use crate::qp_common::Common;
use crate::stream::{By, MAX_BACKLOG, Stream, Watch};
use crate::{Client, CmEventKind, Error, Qp, QpType, Resource, walk};

/// Streams that wait at the device's listener until they are taken; it asks the dispatcher thread
/// at once, so few do.
const BACKLOG: u32 = 128;
const _: () = assert!(BACKLOG <= MAX_BACKLOG);

impl Bound for Qp {
    fn common(&self) -> &Common {
        &self.common
    }

    fn modify(&self, modify: &ModifyQp) -> Result<(), Error> {
        Qp::modify(self, modify)
    }

    fn flush(&self) -> Result<(), Error> {
        self.to_error()
    }
}

/// The port of a service.
fn port(service: ServiceId) -> Result<u16, Error> {
    let port = match service.to_ip_cm() {
        Some((protocol, port)) => (protocol == ServiceId::TCP).then_some(port),
        None => service.to_it_api().or_else(|| service.0.try_into().ok()),
    };
    port.filter(|&port| port > 0).ok_or(Error::OutOfRange("service id"))
}

/// The queue pair, if it is one of iWARP that can be connected now: under the lock of the tables.
fn ready<'a>(client: &Client, of: &'a Connectable) -> Result<&'a Arc<Qp>, Error> {
    match of {
        Connectable::Qp(qp) if qp.kind == QpType::Iwarp => of.is_free(client).map(|()| qp),
        _ => Err(Error::OutOfRange("queue pair type")),
    }
}

impl Mpa {
    /// [`Client::convert`].
    pub(crate) fn convert(
        &self,
        client: &Arc<Client>,
        stream: &Stream,
        of: &Connectable,
        conversion: &Conversion<'_>,
    ) -> Result<ConnectionId, Error> {
        ready(client, of)?;
        check_depths(&self.identity, conversion.depths)?;
        heap::room(MEMORY)?;
        let &Conversion { message, frames, depths } = conversion;
        let setup = Box::new(Setup::conversion(depths, self.crc, message, frames)?);
        let endpoint = stream.endpoint();
        // Until the stream is the connection's, no other thread sends, receives or destroys it.
        let taking = endpoint.take_from(Arc::as_ptr(client))?;
        let mut tables = self.tables.lock();
        // Again under the lock, since the queue pair may be destroyed: see `abandon_of`.
        let qp = ready(client, of)?;
        if tables.ends.len() >= self.max_connections as usize || !client.take_connection() {
            return Err(Error::NoResources(Resource::Connections));
        }
        let id = tables.new_connection();
        let end = End {
            client: client.clone(),
            context: qp.context(),
            ends: *stream.ends(),
            queue_pair: Some(qp.clone()),
            state: State::Setup { stream: endpoint.clone(), setup },
            place: None,
            counts: true,
            deadline: None,
        };
        tables.ends.insert(id, Box::new(end));
        qp.common.set_connection(Some(id));
        taking.give(Watch::Connection(id));
        // What has come before is the dispatcher thread's to look at.
        tables.inbox.push_back(Notice::Look(id));
        drop(tables);
        drop(taking);
        self.signal.raise();
        Ok(id)
    }
}

impl Protocol for Mpa {
    fn listen(
        &self,
        client: &Arc<Client>,
        services: RangeInclusive<ServiceId>,
        transports: Transports,
        context: u64,
    ) -> Result<ListenId, Error> {
        client.agent().alive()?;
        let service = *services.start();
        if transports != Transports::IWARP || services.end() != &service {
            return Err(Error::OutOfRange("services of a listening point"));
        }
        let port = port(service)?;
        heap::room(MEMORY)?;
        let id = {
            let mut tables = self.tables.lock();
            if tables.listens.len() >= self.max_listens as usize {
                return Err(Error::NoResources(Resource::Listens));
            }
            tables.new_listen()
        };
        let listener = client.listen_stream(None, port, BACKLOG, Watch::Listen(id))?;
        let listening = Listening {
            client: client.clone(),
            context,
            service,
            listener: listener.endpoint().clone(),
            silent: Crowd::new(),
            asking: Crowd::new(),
            is_waiting: false,
        };
        {
            let mut tables = self.tables.lock();
            // Under the lock: what entered after the tables were cleared would keep the agent.
            client.agent().alive()?;
            tables.listens.insert(id, listening);
        }
        // The event of a stream that waits may have come before the listening point was there.
        self.on_listener(id);
        self.signal.raise();
        Ok(id)
    }

    fn stop_listening(&self, client: &Client, id: ListenId) -> Result<(), Error> {
        let client: *const Client = client;
        let listener = {
            let tables = self.tables.lock();
            match tables.listens.get(&id) {
                Some(listening) if core::ptr::addr_eq(Arc::as_ptr(&listening.client), client) => {
                    listening.listener.clone()
                }
                _ => return Err(Error::ConnectionState),
            }
        };
        // From here on no stream is taken. Gone if another thread has ended it.
        let result = listener.destroy(By::Agent, true);
        // The client has not heard of connections whose Request has not come: they end unreported.
        while self.evict(id) {}
        let listening = self.tables.lock().listens.remove(&id);
        drop(listening);
        match result {
            Err(Error::Gone) => Err(Error::ConnectionState),
            other => other,
        }
    }

    fn connect(
        &self,
        client: &Arc<Client>,
        of: &Connectable,
        params: &ConnectParams,
        handshake: Handshake,
        private_data: &[u8],
    ) -> Result<ConnectionId, Error> {
        ready(client, of)?;
        if handshake != Handshake::TwoWay {
            return Err(Error::OutOfRange("handshake"));
        }
        check_depths(&self.identity, params.depths)?;
        let port = port(params.service)?;
        let limit = params.timeout.map(|time| self.platform.now() + time);
        heap::room(MEMORY)?;
        let setup = Box::new(Setup::initiator(params.depths, self.crc, private_data, limit)?);
        let id = self.tables.lock().new_connection();
        let (local, remote) =
            ((params.path.local_gid, params.ip_source_port), (params.path.remote_gid, port));
        let (stream, ends) = client.open_stream(local, remote, Watch::Connection(id))?;
        let entered = {
            let mut tables = self.tables.lock();
            // Again under the lock, since the queue pair may be destroyed: see `abandon_of`.
            ready(client, of).and_then(|qp| {
                let room = tables.ends.len() < self.max_connections as usize;
                if !room || !client.take_connection() {
                    return Err(Error::NoResources(Resource::Connections));
                }
                let end = End {
                    client: client.clone(),
                    context: qp.context(),
                    ends,
                    queue_pair: Some(qp.clone()),
                    state: State::Setup { stream: stream.clone(), setup },
                    place: None,
                    counts: true,
                    deadline: None,
                };
                tables.ends.insert(id, Box::new(end));
                tables.rearm(id);
                qp.common.set_connection(Some(id));
                // The stream's event may have come before the connection was there.
                tables.inbox.push_back(Notice::Look(id));
                Ok(())
            })
        };
        if let Err(error) = entered {
            let _ = stream.destroy(By::Agent, true);
            return Err(error);
        }
        self.signal.raise();
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
        ready(client, with)?;
        check_depths(&self.identity, params.depths)?;
        let (stream, reply, agreed, queue_pair) = {
            let mut tables = self.tables.lock();
            // As in `connect`.
            let qp = ready(client, with)?;
            let end = tables.end(client, id)?;
            let State::Setup { stream, setup } = &mut end.state else {
                return Err(Error::ConnectionState);
            };
            let (reply, agreed) = setup.accept(params.depths, private_data)?;
            let stream = stream.clone();
            let depths = setup.frame().map(|frame| depths_of(&frame)).unwrap_or_default();
            end.context = qp.context();
            end.queue_pair = Some(qp.clone());
            qp.common.set_connection(Some(id));
            tables.leave_crowd(id);
            // Before the queue pair has the stream: its first FPDU may come at once.
            tables.end(client, id)?.state = State::Accepted { depths, frames: true };
            tables.rearm(id);
            (stream, reply, agreed, qp.clone())
        };
        // The Reply is the last that goes by the number of the stream. What the peer sends upon it
        // stays in the stream for the queue pair.
        let given = send(&stream, &reply).and_then(|()| {
            stream.give_to(|number| queue_pair.modify(&to_rtr(&agreed, Role::Responder, true, number)))
        });
        let Err(error) = given else {
            // Refused if the stream has ended since, which the event of the queue pair reports.
            let _ = queue_pair.modify(&to_rts());
            return Ok(());
        };
        // The client may have ended the connection meanwhile. If the peer has, the accept took
        // effect, and an event reports the end.
        let end = self.tables.lock().remove(id);
        let _ = stream.destroy(By::Agent, true);
        let by_peer = queue_pair.common.state() == QpState::Init && client.agent().alive().is_ok();
        if let Some(end) = end {
            if !by_peer {
                return Err(error);
            }
            end.flush_qp();
            self.notify(Notice::Over(id, end, CmEventKind::AcceptTimedOut));
        }
        Ok(())
    }

    fn establish(&self, client: &Client, id: ConnectionId, _: u8, _: &[u8]) -> Result<(), Error> {
        // There is no three-way handshake.
        self.tables.lock().end(client, id)?;
        Err(Error::ConnectionState)
    }

    fn reject(
        &self,
        client: &Client,
        id: ConnectionId,
        _: Reason,
        _: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        let (stream, reply) = {
            let mut tables = self.tables.lock();
            let State::Setup { stream, setup } = &mut tables.end(client, id)?.state else {
                return Err(Error::ConnectionState);
            };
            if !setup.waits_for_answer() {
                return Err(Error::ConnectionState);
            }
            let reply = setup.rejection(private_data).ok_or(Error::PrivateData(MAX_PRIVATE_DATA))?;
            (stream.clone(), reply)
        };
        let removed = self.tables.lock().remove(id);
        if removed.is_none() {
            // The peer has withdrawn the request meanwhile.
            return Err(Error::ConnectionState);
        }
        let sent = send(&stream, &reply);
        let _ = stream.destroy(By::Agent, sent.is_err());
        Ok(())
    }

    fn discard(&self, client: &Client, id: ConnectionId) -> Result<(), Error> {
        let removed = {
            let mut tables = self.tables.lock();
            if !tables.end(client, id)?.asks() {
                return Err(Error::ConnectionState);
            }
            tables.remove(id)
        };
        if let Some(State::Setup { stream, .. }) = removed.as_ref().map(|end| &end.state) {
            let _ = stream.destroy(By::Agent, true);
        }
        Ok(())
    }

    fn transfer(&self, from: &Client, id: ConnectionId, to: &Arc<Client>, context: u64) -> Result<(), Error> {
        if !Arc::ptr_eq(from.agent(), to.agent()) {
            return Err(Error::Foreign);
        }
        let home: Arc<dyn Home> = to.clone();
        let stream = {
            let mut tables = self.tables.lock();
            let end = tables.end(from, id)?;
            match &end.state {
                State::Setup { stream, .. } if end.asks() => stream.clone(),
                _ => return Err(Error::ConnectionState),
            }
        };
        if !to.take_connection() {
            return Err(Error::NoResources(Resource::Connections));
        }
        let handed = if core::ptr::eq(from, &**to) { Ok(()) } else { stream.hand_to(By::Agent, &home) };
        let former = handed.and_then(|()| {
            let mut tables = self.tables.lock();
            // The peer may have withdrawn the request meanwhile.
            let end = tables.end(from, id)?;
            from.leave_connection();
            end.context = context;
            Ok(core::mem::replace(&mut end.client, home))
        });
        // Without the lock.
        former.map(drop).inspect_err(|_| to.leave_connection())
    }

    fn disconnect(&self, client: &Client, id: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        if !private_data.is_empty() {
            return Err(Error::PrivateData(0));
        }
        let end = {
            let mut tables = self.tables.lock();
            let end = tables.end(client, id)?;
            // A request is answered by `reject`.
            if end.queue_pair.is_none() {
                return Err(Error::ConnectionState);
            }
            tables.remove(id).ok_or(Error::ConnectionState)?
        };
        let flushed = end.queue_pair.as_ref().map_or(Ok(()), |queue_pair| queue_pair.flush());
        match &end.state {
            State::Setup { stream, .. } => _ = stream.destroy(By::Agent, true),
            State::Accepted { .. } => {}
            State::Established => {
                self.notify(Notice::Over(id, end, CmEventKind::Disconnected { by_peer: false }));
            }
        }
        match flushed {
            // Destroyed at the same time.
            Err(Error::Gone) => Ok(()),
            other => other,
        }
    }

    fn abandon(&self, id: ConnectionId) -> bool {
        self.give_up(|| Some(id))
    }

    fn abandon_of(&self, queue_pair: &Common) {
        self.give_up(|| queue_pair.connection());
    }

    fn detach(&self, client: &Client) {
        let of = |other: &Arc<dyn Home>| core::ptr::addr_eq(Arc::as_ptr(other), client);
        let stop = |id| _ = self.stop_listening(client, id);
        walk::each(&self.tables, |tables| &tables.listens, |listening| of(&listening.client), stop);
        // From here on no stream makes a new end for the client.
        let give_up = |id| _ = self.give_up(|| Some(id));
        walk::each(&self.tables, |tables| &tables.ends, |end| of(&end.client), give_up);
    }
}
