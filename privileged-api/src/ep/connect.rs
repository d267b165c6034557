//! Connecting, accepting, disconnecting (pages it_ep_connect, it_ep_accept, it_ep_disconnect).
//!
//! A call changes the endpoint's state before it calls the agent, and restores the state if the
//! agent returns an error. The agent's upcalls do not wait for such a call: they may come before it
//! has returned.

use core::time::Duration;

use kernel_agent::wire::{self, PKey, PathMtu, ReadDepths, TimeoutCode};
use kernel_agent::{AcceptParams, ConnectParams, ConnectionId, Handshake};

use super::state::Trigger;
use crate::address::{CnEstId, ConnAttributes, ConnQual, Path, PrivateData};
use crate::attributes::EpStateRc;
use crate::cm::nonpeer;
use crate::evd::callback::Origin;
use crate::event::{Event, RejectReason};
use crate::flags::CnEstFlags;
use crate::handle::EpHandle;
use crate::ia::{Core, Ia};
use crate::objects::ep::{Common, Control, Ep};
use crate::objects::unanswered::{PeerRequest, Role};
use crate::private_data;
use crate::status::{Error, Result};
use crate::via::connect::{Asking, reply};

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
    /// `IaCatastrophe`; `NoPermission` and `InvalidIanaLrPort` cannot happen. Does not wait for the
    /// peer. Not for callbacks. Thread-safe. Page it_ep_connect.
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
        if core.via {
            let asking = core.ask_via(path, connect_qual, cn_est_flags)?;
            return core.connect_via(&found, path, &asking);
        }
        let handshake = check_flags(cn_est_flags)?;
        if private_data.len() > private_data::CONNECT {
            return Err(Error::InvalidPdataLength);
        }
        let (ib, _) = core.check_path(path)?;
        let service = service(connect_qual)?;
        let mut params = ConnectParams {
            path_mtu: PathMtu::from_code(ib.path_mtu).unwrap_or(PathMtu::B4096),
            pkey: PKey(ib.partition_key),
            timeout: Some(Duration::from_micros(path.timeout)),
            ..ConnectParams::new(ib.path(), service)
        };
        if ib.subnet_local {
            // The members of the GRH count only on a path out of the subnet (it_path_t).
            let path = &mut params.path;
            (path.traffic_class, path.flow_label, path.hop_limit) = (0, 0, 0);
        }
        set_timing(&mut params, conn_attr, path.timeout)?;
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        params.depths = {
            let mut control = ep.control.lock();
            ep.advance(&mut control, Trigger::Connect)?;
            control.path = *path;
            read_depths(&control)
        };
        let asked = core.client().and_then(|client| {
            let asked = client.connect(ep.pair.connectable(), &params, handshake, private_data);
            asked.map_err(|error| core.error(error))
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
        if private_data.len() > private_data::ACCEPT {
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
        if private_data.len() > private_data::DISCONNECT {
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
            control.part()
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
    /// Asks for the connection of a virtual interface.
    fn connect_via(&self, found: &Ep, path: &Path, asking: &Asking) -> Result<()> {
        let _operation = found.operation.lock(&self.shared.platform);
        let ep = self.as_it_is(found)?;
        let private_data = {
            let mut control = ep.control.lock();
            ep.advance(&mut control, Trigger::Connect)?;
            control.path = *path;
            asking.private_data(&control.attr)
        };
        let asked = self.client().and_then(|client| {
            let pair = ep.pair.connectable();
            let asked = client.connect(pair, &asking.params, Handshake::ThreeWay, &private_data);
            asked.map_err(|error| self.error(error))
        });
        self.asked(&ep, asked)
    }

    /// Records the agent's answer to a request for a connection.
    fn asked(&self, ep: &Ep, asked: Result<ConnectionId>) -> Result<()> {
        let mut control = ep.control.lock();
        match asked {
            Ok(connection) => {
                // By now the connection may be over, or an upcall may have recorded it.
                let is_past = control.past.is_some_and(|past| connection <= past);
                if !is_past && ep.state() != EpStateRc::Nonoperational {
                    control.connection = Some(connection);
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
        let via;
        let (depths, private_data) = {
            let mut control = ep.control.lock();
            let mut answer = (read_depths(&control), private_data);
            if self.via {
                via = reply(&control.attr, asked.request.max_message_size)?;
                answer = (self.via_depths(), &via);
            }
            ep.advance(&mut control, Trigger::Accept)?;
            control.connection = Some(connection);
            control.path = asked.path;
            answer
        };
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
            if ep.state() != EpStateRc::Active2ConnectionPending || control.connection != Some(connection) {
                return Err(Error::InvalidEpState);
            }
            let own = read_depths(&control);
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
        if matches!(self.state(), EpStateRc::Active1ConnectionPending | EpStateRc::PassiveConnectionPending) {
            control.connection = None;
            self.set_state(EpStateRc::Unconnected);
        }
    }
}

/// The endpoint's read depths, as connection messages carry them (5.1.1).
fn read_depths(control: &Control) -> ReadDepths {
    let rc = &control.attr.rc;
    // `check_depth` ensures that they fit into a byte.
    ReadDepths { responder_resources: rc.rdma_read_ird as u8, initiator_depth: rc.rdma_read_ord as u8 }
}

/// The handshake that the flags ask for.
fn check_flags(flags: CnEstFlags) -> Result<Handshake> {
    match flags {
        CnEstFlags::TWO_WAY => Ok(Handshake::TwoWay),
        CnEstFlags::THREE_WAY => Ok(Handshake::ThreeWay),
        // Each REQ has IRD and ORD, so they cannot be suppressed.
        _ => Err(Error::InvalidCnEstFlags),
    }
}

/// The service ID of a qualifier.
pub(crate) fn service(qualifier: &ConnQual) -> Result<wire::ServiceId> {
    match qualifier {
        ConnQual::IanaPort(port) if *port != 0 => Ok(wire::ServiceId::it_api(u16::from_be(*port))),
        ConnQual::IbServiceId(id) if *id != 0 => Ok(wire::ServiceId(u64::from_be(*id))),
        _ => Err(Error::InvalidConnQual),
    }
}

/// Sets the timeouts and retries: those of the attributes, each of which must fit into its field,
/// or those that make the whole attempt take about as long as the path's timeout.
fn set_timing(
    params: &mut ConnectParams,
    attributes: Option<&ConnAttributes>,
    timeout_us: u64,
) -> Result<()> {
    let Some(attributes) = attributes else {
        let (timeout, retries) = fit(timeout_us);
        (params.remote_cm_timeout, params.local_cm_timeout) = (timeout, timeout);
        params.max_cm_retries = retries;
        return Ok(());
    };
    let code = |value, error| TimeoutCode::new(value).ok_or(error);
    let within = |value, most, error| if value <= most { Ok(value) } else { Err(error) };
    let remote_cm_timeout = code(attributes.remote_cm_timeout, Error::InvalidRtimeout)?;
    let local_cm_timeout = code(attributes.local_cm_timeout, Error::InvalidLtimeout)?;
    params.retry_count = within(attributes.retry_count, 7, Error::InvalidRetry)?;
    params.rnr_retry_count = within(attributes.rnr_retry_count, 7, Error::InvalidRnrRetry)?;
    // it_ep_accept has no attributes, so these are for both ends.
    params.own_rnr_retry_count = params.rnr_retry_count;
    params.max_cm_retries = within(attributes.max_cm_retries, 15, Error::InvalidCmRetry)?;
    params.local_ack_timeout = code(attributes.local_ack_timeout, Error::InvalidAtimeout)?;
    // The path's timeout must leave time for one answer.
    if Duration::from_micros(timeout_us) < remote_cm_timeout.duration() {
        return Err(Error::InvalidRtimeout);
    }
    (params.remote_cm_timeout, params.local_cm_timeout) = (remote_cm_timeout, local_cm_timeout);
    Ok(())
}

/// Timeout and retries of a CM message so that the whole attempt takes about as long as the path
/// says.
pub(crate) fn fit(timeout_us: u64) -> (TimeoutCode, u8) {
    let ticks = Duration::from_micros(timeout_us).as_nanos() / TimeoutCode::default().duration().as_nanos();
    // At least eight attempts, if the timeout is long enough for that.
    let code = (0..31).rev().find(|code| ticks >> code >= 8).unwrap_or(0);
    let attempts = (ticks >> code).clamp(1, 16);
    (TimeoutCode::from_low_bits(code), (attempts - 1) as u8)
}

/// Private data as events carry it. InfiniBand's messages always have the field, and the field of a
/// message without private data is zero; so a field of zeroes counts as none.
pub(crate) fn received(private_data: &[u8]) -> Option<PrivateData> {
    private_data.iter().any(|&byte| byte != 0).then(|| PrivateData::new(private_data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_together_take_about_the_paths_timeout() {
        for timeout in [1_000, 50_000, 1_000_000, 10_000_000, 600_000_000] {
            let (each, retries) = fit(timeout);
            let took = each.duration().as_micros() as u64 * (u64::from(retries) + 1);
            assert!(took <= timeout && took >= timeout * 4 / 5, "{took} of {timeout} us");
        }
        assert_eq!(fit(0).1, 0);
    }

    #[test]
    fn attributes_out_of_their_fields_are_named() {
        let ok = ConnAttributes::default();
        let set = |attributes: ConnAttributes, timeout_us| {
            let mut params = ConnectParams::new(wire::Path::default(), wire::ServiceId(1));
            set_timing(&mut params, Some(&attributes), timeout_us)
        };
        assert_eq!(set(ok, 10_000_000), Ok(()));
        let bad = |attributes| set(attributes, 10_000_000).err();
        assert_eq!(bad(ConnAttributes { retry_count: 8, ..ok }), Some(Error::InvalidRetry));
        assert_eq!(bad(ConnAttributes { max_cm_retries: 16, ..ok }), Some(Error::InvalidCmRetry));
        assert_eq!(bad(ConnAttributes { local_ack_timeout: 32, ..ok }), Some(Error::InvalidAtimeout));
        assert_eq!(Error::INVALID_ETIMEOUT, Error::InvalidAtimeout);
        assert_eq!(set(ok, 1).err(), Some(Error::InvalidRtimeout));
    }

    #[test]
    fn each_attribute_goes_into_its_own_field_of_the_request() {
        let attributes = ConnAttributes {
            remote_cm_timeout: 1,
            local_cm_timeout: 2,
            retry_count: 3,
            rnr_retry_count: 4,
            max_cm_retries: 5,
            local_ack_timeout: 6,
        };
        let mut params = ConnectParams::new(wire::Path::default(), wire::ServiceId(1));
        set_timing(&mut params, Some(&attributes), 10_000_000).unwrap();
        let timeouts = [params.remote_cm_timeout, params.local_cm_timeout, params.local_ack_timeout];
        assert_eq!(timeouts.map(TimeoutCode::get), [1, 2, 6]);
        assert_eq!((params.retry_count, params.rnr_retry_count, params.max_cm_retries), (3, 4, 5));
    }

    #[test]
    fn one_way_of_establishment_must_be_chosen() {
        assert_eq!(check_flags(CnEstFlags::TWO_WAY), Ok(Handshake::TwoWay));
        assert_eq!(check_flags(CnEstFlags::THREE_WAY), Ok(Handshake::ThreeWay));
        for flags in [CnEstFlags::empty(), CnEstFlags::all(), CnEstFlags::from_bits_retain(9)] {
            assert_eq!(check_flags(flags), Err(Error::InvalidCnEstFlags));
        }
    }
}
