//! Connecting, accepting, disconnecting (pages it_ep_connect, it_ep_accept, it_ep_disconnect).
//!
//! A call changes the endpoint's state before it calls the agent, and restores the state if the
//! agent returns an error. The agent's upcalls do not wait for such a call: they may come before it
//! has returned.

use kernel_agent::wire::ReadDepths;
use kernel_agent::{AcceptParams, ConnectionId};

use super::state::{Trigger, is_pending};
use crate::address::{CnEstId, ConnAttributes, ConnQual, Path};
use crate::attributes::EpStateRc;
use crate::cm::nonpeer;
use crate::evd::callback::Origin;
use crate::event::{Event, RejectReason};
use crate::flags::CnEstFlags;
use crate::handle::EpHandle;
use crate::ia::{Core, Ia};
use crate::objects::ep::{Common, Control, Ep};
use crate::objects::unanswered::{PeerRequest, Role};
use crate::status::{Error, Result};

impl Ia {
    /// Asks the peer's service for a connection of the endpoint, which goes from UNCONNECTED to
    /// ACTIVE1_CONNECTION_PENDING.
    ///
    /// The result is an event on the endpoint's connect event dispatcher. `cn_est_flags` selects
    /// the two-way or the three-way handshake. Without `conn_attr` the IA chooses timeouts so that
    /// they fit the path's timeout. After an error the endpoint is as before.
    ///
    /// On an IA over VIA there is only the two-way handshake, `conn_attr` has no effect, and there
    /// is no private data.
    ///
    /// Errors: `InvalidEp`, `InvalidEpState`, `InvalidEpType`, `InvalidCnEstFlags`,
    /// `InvalidPdataLength`, `InvalidSpigot`, `InvalidSourcePath`, `InvalidConnQual`,
    /// `InvalidRtimeout` (also if the path's timeout is shorter than one answer may take),
    /// `InvalidLtimeout`, `InvalidRetry`, `InvalidRnrRetry`, `InvalidCmRetry`, `InvalidAtimeout`
    /// (the page calls it IT_ERR_INVALID_ETIMEOUT, it_status_t IT_ERR_INVALID_ATIMEOUT; see
    /// [`Error::INVALID_ETIMEOUT`]), `PdataNotSupported` (on VIA), `Resources`, `InvalidIa`,
    /// `IaCatastrophe`; on iWARP `InvalidIanaLrPort` (the local port is in use). `NoPermission`
    /// cannot happen. Does not wait for the peer. Not for callbacks. Thread-safe. Page
    /// it_ep_connect.
    #[doc(alias = "it_ep_connect")]
    pub fn ep_connect(
        &self,
        ep: EpHandle,
        path: &Path,
        conn_attr: Option<&ConnAttributes>,
        connect_qual: &ConnQual,
        cn_est_flags: CnEstFlags,
        private_data: &[u8],
    ) -> Result<()> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let found = core.rc(ep)?;
        core.check_private_data(private_data)?;
        if private_data.len() > core.facts().private_data.connect {
            return Err(Error::InvalidPdataLength);
        }
        let (mut params, handshake) = core.dialect.ask(&core, path, conn_attr, connect_qual, cn_est_flags)?;
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        let own = {
            let mut control = ep.control.lock();
            ep.advance(&mut control, Trigger::Connect)?;
            control.path = *path;
            params.depths = core.dialect.depths(&core, &control.attr);
            core.dialect.own_request(connect_qual, &control.attr)
        };
        let private_data = own.as_ref().map_or(private_data, |own| own);
        let asked = core.client().and_then(|client| {
            let asked = client.connect(ep.pair.connectable(), &params, handshake, private_data);
            asked.map_err(|error| match error {
                // Of the two ends of a connection only the local one can be in use.
                kernel_agent::Error::ServiceInUse => Error::InvalidIanaLrPort,
                other => core.error(other),
            })
        });
        core.asked(&ep, asked)
    }

    /// Accepts a connection request with an endpoint in UNCONNECTED (passive side), or the peer's
    /// accept with the endpoint that asked for the connection (active side, three-way).
    ///
    /// The established event follows on the connect event dispatcher, or a non-peer reject if the
    /// active side has given up meanwhile. On the active side the endpoint is in CONNECTED when the
    /// call returns. The identifier is used up, unless an error is returned.
    ///
    /// Read depths are compared on the active side only: the passive side of the InfiniBand
    /// transport cannot know whether the active side is going to adapt (three-way). In the two-way
    /// handshake the active side rejects depths that do not fit. On VIA both endpoints have to have
    /// the same `max_dto_payload_size`, otherwise the call returns `InvalidEpAttr`.
    ///
    /// Errors: `InvalidEp`, `InvalidEpType`, `InvalidCnEstId`, `InvalidPdataLength`,
    /// `PdataNotSupported` (on VIA), `InvalidEpState`, `InvalidEpAttr`, `InvalidIa`,
    /// `IaCatastrophe`; `EpTimewait` cannot happen. Does not wait for the peer. May be called in
    /// callbacks. Thread-safe: of two answers to one identifier the later one waits for the earlier
    /// one, and finds the identifier used up unless the earlier one was refused. Page it_ep_accept.
    #[doc(alias = "it_ep_accept")]
    pub fn ep_accept(&self, ep: EpHandle, cn_est_id: CnEstId, private_data: &[u8]) -> Result<()> {
        let core = self.call()?;
        let found = core.rc(ep)?;
        core.check_private_data(private_data)?;
        if private_data.len() > core.facts().private_data.accept {
            core.unanswered.lock().check(cn_est_id)?;
            return Err(Error::InvalidPdataLength);
        }
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        // After an immediate error the consumer can still answer the request.
        core.answer(cn_est_id, |pending| match &pending.role {
            Role::Passive(asked) => core.accept_passive(&ep, pending.connection, asked, private_data),
            Role::Active { ep: owner, peer } if *owner == ep.handle => {
                core.accept_active(&ep, pending.connection, *peer, private_data)
            }
            Role::Active { .. } => Err(Error::InvalidEpState),
        })
    }

    /// Ends a connection, or abandons one that is being established: the endpoint goes to
    /// NONOPERATIONAL, all its work is flushed, and a disconnect event is queued. In NONOPERATIONAL
    /// the call has no effect.
    ///
    /// The peer of a connection gets a disconnect event with the private data, unless messages are
    /// lost. The peer of an attempt gets a non-peer reject, without the private data.
    ///
    /// Errors: `InvalidEp`, `InvalidEpState` (UNCONNECTED), `InvalidEpType`, `InvalidPdataLength`,
    /// `PdataNotSupported` (on VIA), `InvalidIa`, `IaCatastrophe`. Does not wait for the peer.
    /// May be called in callbacks. Thread-safe. Page it_ep_disconnect.
    #[doc(alias = "it_ep_disconnect")]
    pub fn ep_disconnect(&self, ep: EpHandle, private_data: &[u8]) -> Result<()> {
        let core = self.call()?;
        let found = core.rc(ep)?;
        core.check_private_data(private_data)?;
        if private_data.len() > core.facts().private_data.disconnect {
            return Err(Error::InvalidPdataLength);
        }
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        let connection = {
            let mut control = ep.control.lock();
            if ep.state() == EpStateRc::Nonoperational {
                return Ok(());
            }
            ep.advance(&mut control, Trigger::Disconnect)?;
            control.connection.part()
        };
        core.unanswered.lock().forget_ep(ep.handle);
        if let (Some(connection), Ok(client)) = (connection, core.client()) {
            // The connection may be over already.
            let _ = client.disconnect(connection, private_data);
        }
        let flushed = ep.pair.to_error().map_err(|error| core.error(error));
        let event = Event::ConnDisconnect { evd: ep.connect.handle(), ep: ep.handle, private_data: None };
        core.tell(&ep, event, Origin::Call);
        flushed
    }
}

impl Core {
    /// Records the agent's answer to a request for a connection.
    pub(crate) fn asked(&self, ep: &Ep, asked: Result<ConnectionId>) -> Result<()> {
        let mut control = ep.control.lock();
        match asked {
            Ok(connection) => {
                // By now the connection may be over, or an upcall may have recorded it.
                if ep.state() != EpStateRc::Nonoperational {
                    control.connection.asked(connection);
                }
                Ok(())
            }
            Err(error) => {
                ep.undo(&mut control);
                Err(error)
            }
        }
    }

    fn accept_passive(
        &self,
        ep: &Ep,
        connection: ConnectionId,
        asked: &PeerRequest,
        private_data: &[u8],
    ) -> Result<()> {
        let (depths, own) = {
            let mut control = ep.control.lock();
            let own = self.dialect.own_reply(&control.attr, &asked.request)?;
            ep.advance(&mut control, Trigger::Accept)?;
            control.connection.begin(connection);
            control.path = asked.path;
            (self.dialect.depths(self, &control.attr), own)
        };
        let private_data = own.as_ref().map_or(private_data, |own| own);
        let accepted = self.client().and_then(|client| {
            let params = AcceptParams { depths, ..AcceptParams::default() };
            match client.accept(connection, ep.pair.connectable(), &params, private_data) {
                // The peer gave up before the accept. The consumer gets the event that it gets when
                // the peer gives up just after the accept.
                Err(kernel_agent::Error::ConnectionState) => {
                    self.not_established(ep, connection, nonpeer(ep, RejectReason::Other), Origin::Call);
                    Ok(())
                }
                accepted => accepted.map_err(|error| self.error(error)),
            }
        });
        if accepted.is_err() {
            ep.undo(&mut ep.control.lock());
        }
        accepted
    }

    fn accept_active(
        &self,
        ep: &Ep,
        connection: ConnectionId,
        peer: ReadDepths,
        private_data: &[u8],
    ) -> Result<()> {
        let ord = {
            let control = ep.control.lock();
            if ep.state() != EpStateRc::Active2ConnectionPending || !control.connection.is(connection) {
                return Err(Error::InvalidEpState);
            }
            let own = control.attr.rc.read_depths();
            if !own.fit(peer) {
                return Err(Error::InvalidEpAttr);
            }
            // The consumer may have changed the depth since it asked for the connection.
            own.initiator_depth
        };
        self.client()?.establish(connection, ord, private_data).map_err(|error| match error {
            // The connection is over; the agent's upcall queues the event that reports it.
            kernel_agent::Error::ConnectionState => Error::InvalidEpState,
            other => self.error(other),
        })?;
        // The agent's upcall may come first; then this changes nothing. It comes before the upcall
        // about anything that the peer does afterwards.
        self.established(ep, connection, peer, None, Origin::Call);
        Ok(())
    }
}

impl Common {
    /// Restores the state after a call that failed at once.
    fn undo(&self, control: &mut Control) {
        if is_pending(self.state()) {
            control.connection.undo();
            self.set_state(EpStateRc::Unconnected);
        }
    }
}
