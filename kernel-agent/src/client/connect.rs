//! The calls of a client that make and end connections, and that ask for datagram services.

use alloc::sync::Arc;
use core::ops::RangeInclusive;

use roce::cm::redirection::Redirection;
use roce::cm::rej::Reason;

use super::Client;
use crate::cm::{
    AcceptParams, ConnectParams, ConnectionId, ListenId, ResolutionId, ResolutionRequestId, Transports,
};
use crate::connect::{Conversion, Handshake, ResolutionAnswer, ResolveParams};
use crate::connectable::Connectable;
use crate::home::Home;
use crate::stream::By;
use crate::{Error, ModifyQp, Qp, QpState, Stream};

impl Client {
    /// Listens for a service, for connections of these transport services; the agent rejects
    /// requests for others. Requests come as `CmEventKind::Request` with `context`. With
    /// [`Transports::IWARP`], which stands alone, the service is a TCP port: an id of rdma_cm's or
    /// IT-API's for one, or the port itself.
    pub fn listen(
        self: &Arc<Client>,
        service: roce::ServiceId,
        transports: Transports,
        context: u64,
    ) -> Result<ListenId, Error> {
        self.listen_to_range(service..=service, transports, context)
    }

    /// As [`Client::listen`], for each service of a range that has no listening point of its own:
    /// one for a single service takes the requests for it, whichever began first. Ranges of one
    /// agent have no service in common. Not for iWARP.
    pub fn listen_to_range(
        self: &Arc<Client>,
        services: RangeInclusive<roce::ServiceId>,
        transports: Transports,
        context: u64,
    ) -> Result<ListenId, Error> {
        let _call = self.call()?;
        self.agent.protocol_for(transports).listen(self, services, transports, context)
    }

    /// Ends listening. Requests that the client has not answered stay answerable.
    pub fn stop_listening(&self, listen: ListenId) -> Result<(), Error> {
        self.agent.protocol_of_listen(listen).stop_listening(self, listen)
    }

    /// Active side: asks a peer for a connection of a queue pair, which must be in INIT, or of a
    /// virtual interface, which must be in RESET. The type of the queue pair, RC or UC, is the type
    /// of the connection, as is that of the virtual interface's reliability level (unreliable is
    /// UC); on UC the read depths have to be 0. The answer is an event. A hop limit of 0 stands for
    /// 64, and a path MTU greater than the port's for the port's. Private data: at most 92 bytes,
    /// 56 for a service of rdma_cm's.
    ///
    /// A queue pair of iWARP is connected by MPA over a stream: to the TCP port that the service
    /// names, two-way, with 508 bytes of private data at most. Of `params` only the path, the
    /// service, the read depths and the time count.
    pub fn connect(
        self: &Arc<Client>,
        of: impl Into<Connectable>,
        params: &ConnectParams,
        handshake: Handshake,
        private_data: &[u8],
    ) -> Result<ConnectionId, Error> {
        let _call = self.call()?;
        let of = of.into();
        self.agent.protocol_of_type(of.qp_type()).connect(self, &of, params, handshake, private_data)
    }

    /// Makes a stream that the client has connected, and used for bytes of its own, the connection
    /// of a queue pair of iWARP in INIT (IT-API: `it_socket_convert`). What the client has not
    /// received of the stream is the beginning of the peer's Request, or of its messages. When this
    /// returns, handles of the stream are good for nothing ([`Error::Gone`]). A failure changes
    /// nothing.
    ///
    /// The end with a last message is passive: it sends the message and waits for the peer's
    /// Request, of which it tells its client by [`CmEventKind::TransitionRequested`], answers it,
    /// and waits for the peer's first message. The other end is active: it sends a Request and
    /// waits for the Reply. Without frames the one waits for the peer's first message at once, and
    /// the other's queue pair is ready at once.
    ///
    /// `CmEventKind::Established` follows, without private data and read depths. There is no time
    /// limit: [`Client::disconnect`] gives the conversion up, as does the end of the queue pair. If
    /// it fails, the queue pair goes to ERROR, and the event is `CmEventKind::Rejected`: for
    /// [`Reason::INVALID_CLASS_VERSION`] if the peer sent something else,
    /// [`Reason::UNSUPPORTED_REQUEST`] if it has ended the stream. It is `CmEventKind::Unreachable`
    /// if the stream broke, and `CmEventKind::AcceptTimedOut` if it ended behind the Reply, or
    /// behind the last message without frames. It is `CmEventKind::Disconnected`, as of a
    /// connection that broke, if the peer answers that message by something else than messages.
    ///
    /// [`Error::StreamState`] if the stream is not connected, or the peer has closed it;
    /// [`Error::OutOfRange`] for a last message of no bytes, read depths beyond the port's, and
    /// another type of queue pair.
    ///
    /// [`CmEventKind::TransitionRequested`]: crate::CmEventKind::TransitionRequested
    pub fn convert(
        self: &Arc<Client>,
        stream: &Stream,
        with: &Arc<Qp>,
        conversion: &Conversion<'_>,
    ) -> Result<ConnectionId, Error> {
        let _call = self.call()?;
        self.agent.mpa.convert(self, stream, &with.into(), conversion)
    }

    /// Makes a stream of another client of the agent one of this client, with which it ends from
    /// now on, and which can convert it. Upcalls about it stay those of the other client.
    /// [`Error::Foreign`] for a stream of another agent; [`Error::Gone`] if it has ended, or is a
    /// connection's.
    pub fn adopt_stream(self: &Arc<Client>, stream: &Stream) -> Result<(), Error> {
        let _call = self.call()?;
        if !core::ptr::eq(stream.endpoint().home().nic(), self.agent.nic()) {
            return Err(Error::Foreign);
        }
        let home: Arc<dyn Home> = self.clone();
        stream.endpoint().hand_to(By::Client, &home)
    }

    /// Passive side: accepts a request with a queue pair in INIT, or a virtual interface in RESET,
    /// of the type that the request asks for. `CmEventKind::Established` follows. The queue pair
    /// has no more RDMA Reads outstanding than the peer serves. Private data: at most 196 bytes.
    ///
    /// On iWARP `CmEventKind::Established` follows when the peer's first message has come, and the
    /// queue pair sends nothing before. Private data: at most 508 bytes.
    pub fn accept(
        &self,
        connection: ConnectionId,
        with: impl Into<Connectable>,
        params: &AcceptParams,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let _call = self.call()?;
        self.agent.protocol(connection).accept(self, connection, &with.into(), params, private_data)
    }

    /// Passive side: rejects a request; active side, three-way: rejects the peer's accept (the
    /// queue pair goes to ERROR, a virtual interface to RESET with its receives). The connection is
    /// gone when this returns. Private data: at most 148 bytes, on iWARP 508.
    pub fn reject(&self, connection: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.reject_because(connection, Reason::CONSUMER_DEFINED, &[], private_data)
    }

    /// As [`Client::reject`], for another reason than the consumer's own (IBTA vol. 1 table 109),
    /// with the additional information that the reason asks for: at most 72 bytes.
    pub fn reject_because(
        &self,
        connection: ConnectionId,
        reason: Reason,
        information: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.agent.protocol(connection).reject(self, connection, reason, information, private_data)
    }

    /// Passive side: forgets a request, as if it had not arrived. Nothing is sent, and a repetition
    /// of the request is reported as a new one. For a request that the client has no room for. On
    /// iWARP the peer's stream is reset.
    pub fn discard(&self, connection: ConnectionId) -> Result<(), Error> {
        self.agent.protocol(connection).discard(self, connection)
    }

    /// Passive side: passes a request to another client of the agent, which answers it and hears of
    /// it, with `context`, from now on. A failure changes nothing.
    pub fn transfer(&self, connection: ConnectionId, to: &Arc<Client>, context: u64) -> Result<(), Error> {
        let _call = to.call()?;
        self.agent.protocol(connection).transfer(self, connection, to, context)
    }

    /// Active side, three-way: confirms the peer's accept. `CmEventKind::Established` follows. At
    /// most `initiator_depth` RDMA Reads will be outstanding; the connection may have been asked
    /// for with another number.
    pub fn establish(
        &self,
        connection: ConnectionId,
        initiator_depth: u8,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.agent.protocol(connection).establish(self, connection, initiator_depth, private_data)
    }

    /// Ends a connection, or gives up one that is being made. A queue pair that is connected goes
    /// to ERROR before this returns, so what is outstanding flushes. If the connection was
    /// established, `CmEventKind::Disconnected` follows; otherwise no event follows. A virtual
    /// interface is disconnected without any event by `Vi::disconnect`. On iWARP there is no
    /// private data, and the stream ends between messages.
    pub fn disconnect(&self, connection: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.agent.protocol(connection).disconnect(self, connection, private_data)
    }

    /// What the client moves the queue pair of a connection with to RTR or to RTS, if it moves it
    /// itself ([`Moves::None`](crate::Moves::None)): on the passive side as soon as a request has
    /// come, on the active side when the peer has accepted. [`Error::ConnectionState`] before that,
    /// for other states, and over iWARP.
    pub fn queue_pair_changes(&self, connection: ConnectionId, to: QpState) -> Result<ModifyQp, Error> {
        self.agent.connections.changes(self, connection, to)
    }

    /// Prepares to ask a peer for a datagram service; sends nothing yet. Returns the resolution's
    /// id, and the id that the peer sees each time that it is asked.
    pub fn open_resolution(
        self: &Arc<Client>,
        params: &ResolveParams<'_>,
        context: u64,
    ) -> Result<(ResolutionId, u32), Error> {
        let _call = self.call()?;
        self.agent.connections.open_resolution(self, params, context)
    }

    /// Asks. `ResolutionEventKind::Reply` or `TimedOut` follows. Asking before that begins anew.
    pub fn resolve(&self, resolution: ResolutionId) -> Result<(), Error> {
        self.agent.connections.resolve(self, resolution)
    }

    /// Forgets a resolution; answers that still come are dropped.
    pub fn close_resolution(&self, resolution: ResolutionId) -> Result<(), Error> {
        self.agent.connections.close_resolution(self, resolution)
    }

    /// Answers a peer's request, which uses its id up.
    pub fn answer_resolution(
        &self,
        request: ResolutionRequestId,
        answer: &ResolutionAnswer<'_>,
    ) -> Result<(), Error> {
        self.agent.connections.answer_resolution(self, request, answer)
    }

    /// Answers a peer's request with the port where it shall ask instead, which uses the request's
    /// id up. Private data: at most 136 bytes.
    pub fn redirect_resolution(
        &self,
        request: ResolutionRequestId,
        to: &Redirection,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.agent.connections.redirect_resolution(self, request, to, private_data)
    }

    /// Leaves a peer's request without an answer.
    pub fn disregard_resolution(&self, request: ResolutionRequestId) {
        self.agent.connections.disregard_resolution(self, request);
    }
}
