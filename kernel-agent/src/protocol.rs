//! What the agent's connection protocols have in common for the calls of clients: that of
//! InfiniBand ([`ConnectionManager`](crate::connections::ConnectionManager)) for queue pairs and
//! virtual interfaces whose packets go by RoCE, and MPA ([`Mpa`](crate::mpa::Mpa)) for iWARP.
//!
//! A connection's or listening point's id says whose it is. A new one is of the protocol of its
//! queue pair, or of the transport that it asks for.

use alloc::sync::Arc;
use core::ops::RangeInclusive;

use roce::ServiceId;
use roce::cm::rej::Reason;

use crate::cm::{AcceptParams, ConnectParams, ConnectionId, ListenId, Transports};
use crate::connect::Handshake;
use crate::connectable::Connectable;
use crate::qp_common::Common;
use crate::{Agent, Client, Error, QpType, mpa};

/// See the module's documentation. What the calls do is said at the client's.
pub(crate) trait Protocol {
    fn listen(
        &self,
        client: &Arc<Client>,
        services: RangeInclusive<ServiceId>,
        transports: Transports,
        context: u64,
    ) -> Result<ListenId, Error>;

    fn stop_listening(&self, client: &Client, id: ListenId) -> Result<(), Error>;

    fn connect(
        &self,
        client: &Arc<Client>,
        of: &Connectable,
        params: &ConnectParams,
        handshake: Handshake,
        private_data: &[u8],
    ) -> Result<ConnectionId, Error>;

    fn accept(
        &self,
        client: &Client,
        id: ConnectionId,
        with: &Connectable,
        params: &AcceptParams,
        private_data: &[u8],
    ) -> Result<(), Error>;

    fn establish(
        &self,
        client: &Client,
        id: ConnectionId,
        initiator_depth: u8,
        private_data: &[u8],
    ) -> Result<(), Error>;

    fn reject(
        &self,
        client: &Client,
        id: ConnectionId,
        reason: Reason,
        information: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error>;

    fn discard(&self, client: &Client, id: ConnectionId) -> Result<(), Error>;

    fn transfer(&self, from: &Client, id: ConnectionId, to: &Arc<Client>, context: u64) -> Result<(), Error>;

    fn disconnect(&self, client: &Client, id: ConnectionId, private_data: &[u8]) -> Result<(), Error>;

    /// Ends what is left of a connection without reporting it to the client. False if it was over.
    fn abandon(&self, id: ConnectionId) -> bool;

    /// [`Protocol::abandon`] for the connection of a queue pair that is gone. It looks for the
    /// connection under the lock under which connections are made, so none is made afterwards.
    fn abandon_of(&self, queue_pair: &Common);

    /// Ends all that a client has.
    fn detach(&self, client: &Client);
}

impl Agent {
    /// The protocol of a connection.
    pub(crate) fn protocol(&self, id: ConnectionId) -> &dyn Protocol {
        if mpa::is_connection(id) { &self.mpa } else { &self.connections }
    }

    /// The protocol of a listening point.
    pub(crate) fn protocol_of_listen(&self, id: ListenId) -> &dyn Protocol {
        if mpa::is_listen(id) { &self.mpa } else { &self.connections }
    }

    /// The protocol that makes connections of these transports.
    pub(crate) fn protocol_for(&self, transports: Transports) -> &dyn Protocol {
        if transports.contains(Transports::IWARP) { &self.mpa } else { &self.connections }
    }

    /// The protocol that connects queue pairs of this type.
    pub(crate) fn protocol_of_type(&self, kind: QpType) -> &dyn Protocol {
        if kind == QpType::Iwarp { &self.mpa } else { &self.connections }
    }

    /// All protocols.
    fn protocols(&self) -> [&dyn Protocol; 2] {
        [&self.connections, &self.mpa]
    }

    /// [`Protocol::abandon`].
    pub(crate) fn abandon(&self, id: ConnectionId) -> bool {
        self.protocol(id).abandon(id)
    }

    /// [`Protocol::abandon_of`].
    pub(crate) fn abandon_of(&self, queue_pair: &Common) {
        self.protocols().iter().for_each(|protocol| protocol.abandon_of(queue_pair));
    }

    /// Ends all connections, listening points and service resolutions of a client.
    pub(crate) fn end_connections_of(&self, client: &Client) {
        self.protocols().iter().for_each(|protocol| protocol.detach(client));
    }
}
