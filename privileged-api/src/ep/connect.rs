//! Connecting, accepting, disconnecting (pages it_ep_connect, it_ep_accept, it_ep_disconnect).
//!
//! A call changes the endpoint's state first and undoes that if the agent refuses; what the agent tells meanwhile waits for neither.

use core::time::Duration;

use kernel_agent::{AcceptParams, ConnectParams, ConnectionId};

use super::state::{self, Trigger};
use super::{Common, Control, Ep};
use crate::address::{CnEstId, ConnAttributes, ConnQual, IbNetEndpoint, NetEndpoint, Path, PrivateData};
use crate::attributes::EpStateRc;
use crate::cm::{PeerRequest, Side, nonpeer};
use crate::evd::callback::Origin;
use crate::event::{Event, RejectReason};
use crate::flags::CnEstFlags;
use crate::handle::EpHandle;
use crate::ia::{Core, Ia, SPIGOT, private_data};
use crate::status::{Error, Result};

/// Unit of the transport's timeouts: 4.096 us.
const TICK: u64 = 4096;
/// The transport's timeouts are five bits.
const MAX_TIMEOUT: u8 = 31;
/// Partition keys of the port's table, with and without full membership.
pub(crate) const PARTITION_KEYS: [u16; 2] = [0xffff, 0x7fff];

impl Ia {
    /// Asks the peer's service for a connection of the endpoint, which goes from UNCONNECTED to ACTIVE1_CONNECTION_PENDING.
    ///
    /// What becomes of it is told on the endpoint's connect dispatcher. `cn_est_flags` says two-way or three-way. Without `conn_attr` the timeouts are
    /// made to fit the path's. After an error the endpoint is as before.
    ///
    /// Errors: `InvalidEp`, `InvalidEpState`, `InvalidEpType`, `InvalidCnEstFlags`, `InvalidPdataLength`, `InvalidSpigot`,
    /// `InvalidSourcePath`, `InvalidConnQual`, `InvalidRtimeout` (also where the path's timeout is shorter than one answer may take), `InvalidLtimeout`,
    /// `InvalidRetry`, `InvalidRnrRetry`, `InvalidCmRetry`, `InvalidAtimeout`, `Resources`, `InvalidIa`, `IaCatastrophe`. Does not wait for the peer.
    /// Not for callbacks.
    /// Thread-safe. Page it_ep_connect.
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
        let three_way = check_flags(cn_est_flags)?;
        if private_data.len() > private_data::CONNECT {
            return Err(Error::InvalidPdataLength);
        }
        let (ib, source_gid) = core.check_path(path)?;
        let service = service(connect_qual)?;
        let timing = match conn_attr {
            Some(attributes) => check_attributes(attributes, path.timeout)?,
            None => fit(path.timeout),
        };
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        let (ord, ird) = {
            let mut control = ep.control.lock();
            ep.advance(&mut control, Trigger::Connect)?;
            control.path = *path;
            control.three_way = three_way;
            control.private_data = None;
            (control.attr.rc.rdma_read_ord as u8, control.attr.rc.rdma_read_ird as u8)
        };
        let asked = core.client().and_then(|client| {
            let params = ConnectParams {
                service,
                remote_gid: ib.remote_port_gid,
                source_gid,
                path_mtu: mtu_bytes(ib.path_mtu),
                // What a GRH has counts only on a way out of the subnet (it_path_t).
                traffic_class: if ib.subnet_local { 0 } else { ib.traffic_class },
                flow_label: if ib.subnet_local { 0 } else { ib.flow_label },
                hop_limit: if ib.subnet_local { 0 } else { ib.hop_limit },
                pkey: ib.partition_key,
                service_level: ib.sl,
                packet_rate: ib.packet_rate,
                subnet_local: ib.subnet_local,
                initiator_depth: ord,
                responder_resources: ird,
                ack_timeout: timing.ack_timeout,
                retry_count: timing.retry_count,
                rnr_retry: timing.rnr_retry,
                cm_response_timeout: timing.cm_timeout,
                cm_retries: timing.cm_retries,
                timeout: Some(Duration::from_micros(path.timeout)),
                // The agent leaves the last word to us in both cases, see `accept_arrived`.
                three_way: true,
                private_data,
                ..ConnectParams::default()
            };
            client.connect(&ep.qp, &params).map_err(|error| core.error(error))
        });
        core.asked(&ep, asked, Trigger::Connect)
    }

    /// Accepts a connection request with an endpoint in UNCONNECTED (passive side), or the peer's accept with the endpoint that asked for the
    /// connection (active side, three-way).
    ///
    /// The established event follows on the connect dispatcher, or a non-peer reject where the active side has given up meanwhile. The identifier is
    /// used up, unless an error is returned.
    ///
    /// Read depths are compared on the active side only: the passive side of the InfiniBand transport cannot know whether the active side
    /// is going to adapt (three-way). In two-way establishment the active side rejects what does not fit.
    ///
    /// Errors: `InvalidEp`, `InvalidEpType`, `InvalidCnEstId`, `InvalidPdataLength`, `InvalidEpState`, `InvalidEpAttr`, `InvalidIa`, `IaCatastrophe`. Does
    /// not wait for the peer. May be called in callbacks.
    /// Thread-safe: of two answers to one identifier the later one waits for the earlier one, and finds it used up unless that was refused.
    /// Page it_ep_accept.
    #[doc(alias = "it_ep_accept")]
    pub fn ep_accept(&self, ep: EpHandle, cn_est_id: CnEstId, private_data: &[u8]) -> Result<()> {
        let core = self.call()?;
        let found = core.rc(ep)?;
        if private_data.len() > private_data::ACCEPT {
            core.connections.lock().check(cn_est_id)?;
            return Err(Error::InvalidPdataLength);
        }
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        // After an immediate error the request can still be answered.
        core.answer(cn_est_id, |pending| match &pending.side {
            Side::Passive(asked) => core.accept_passive(&ep, pending.connection, asked, private_data),
            Side::Active { ep: owner } if *owner == ep.handle => {
                core.accept_active(&ep, pending.connection, private_data)
            }
            Side::Active { .. } => Err(Error::InvalidEpState),
        })
    }

    /// Ends a connection, or gives up one that is being made: the endpoint goes to NONOPERATIONAL, all its work is flushed, and a disconnect event is
    /// queued here and, most likely, at the peer, with the private data. In NONOPERATIONAL nothing happens.
    ///
    /// Errors: `InvalidEp`, `InvalidEpState` (UNCONNECTED), `InvalidEpType`, `InvalidPdataLength`, `InvalidIa`, `IaCatastrophe`. Does not wait for the peer.
    /// May be called in callbacks.
    /// Thread-safe. Page it_ep_disconnect.
    #[doc(alias = "it_ep_disconnect")]
    pub fn ep_disconnect(&self, ep: EpHandle, private_data: &[u8]) -> Result<()> {
        let core = self.call()?;
        let found = core.rc(ep)?;
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
        core.connections.lock().forget_ep(ep.handle);
        if let Some(connection) = connection {
            core.hang_up(connection, private_data);
        }
        let flushed = ep.qp.to_error().map_err(|error| core.error(error));
        let event = Event::ConnDisconnect { evd: ep.connect.handle(), ep: ep.handle, private_data: None };
        core.tell(&ep, event, Origin::Call);
        flushed
    }
}

impl Core {
    /// Takes note of the agent's answer to a request for a connection.
    fn asked(&self, ep: &Ep, asked: Result<ConnectionId>, trigger: Trigger) -> Result<()> {
        let mut control = ep.control.lock();
        match asked {
            Ok(connection) => {
                // The connection may be over already, or be known from what the agent told.
                if control.past.is_none_or(|past| connection > past)
                    && state::next(EpStateRc::Unconnected, trigger).is_ok()
                    && ep.state() != EpStateRc::Nonoperational
                {
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
        let PeerRequest { path, request } = asked;
        let (ord, ird) = {
            let mut control = ep.control.lock();
            ep.advance(&mut control, Trigger::Accept)?;
            control.connection = Some(connection);
            control.path = *path;
            control.peer_depth = (request.rdma_read_ird, request.rdma_read_ord);
            control.private_data = None;
            (control.attr.rc.rdma_read_ord as u8, control.attr.rc.rdma_read_ird as u8)
        };
        let accepted = self.client().and_then(|client| {
            let params = AcceptParams {
                initiator_depth: ord,
                responder_resources: ird,
                private_data,
                ..AcceptParams::default()
            };
            match client.accept(connection, &ep.qp, &params) {
                // The peer gave up before; it might as well have done so just after.
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

    fn accept_active(&self, ep: &Ep, connection: ConnectionId, private_data: &[u8]) -> Result<()> {
        let ord = {
            let control = ep.control.lock();
            if ep.state() != EpStateRc::Active2ConnectionPending || control.connection != Some(connection) {
                return Err(Error::InvalidEpState);
            }
            if !depths_fit(&control) {
                return Err(Error::InvalidEpAttr);
            }
            // It may have been modified since it was asked for.
            control.attr.rc.rdma_read_ord as u8
        };
        self.client()?.establish(connection, ord, private_data).map_err(|error| match error {
            // It is over; the event that says so is on its way.
            kernel_agent::Error::ConnectionState => Error::InvalidEpState,
            other => self.error(other),
        })
    }

    /// Tells the agent that a connection is not wanted any more.
    pub(super) fn hang_up(&self, connection: ConnectionId, private_data: &[u8]) {
        if let Ok(client) = self.client() {
            // It may be over already.
            let _ = client.disconnect(connection, private_data);
        }
    }

    /// Checks that a path begins here; returns its InfiniBand part and which of the port's GIDs it uses.
    pub(crate) fn check_path<'a>(&self, path: &'a Path) -> Result<(&'a IbNetEndpoint, u8)> {
        if path.spigot_id != SPIGOT {
            return Err(Error::InvalidSpigot);
        }
        let NetEndpoint::Ib(ib) = &path.remote else { return Err(Error::InvalidSourcePath) };
        let gids = &self.agent.identity().gids;
        let source = gids.iter().position(|gid| *gid == ib.local_port_gid && *gid != [0; 16]);
        match source {
            Some(index)
                if PARTITION_KEYS.contains(&ib.partition_key) && ib.local_port_lid == 0 && ib.fits() =>
            {
                Ok((ib, index as u8))
            }
            _ => Err(Error::InvalidSourcePath),
        }
    }
}

impl IbNetEndpoint {
    /// Whether each member fits into its bits (it_path_t).
    pub(crate) fn fits(&self) -> bool {
        self.path_mtu < 1 << 4
            && self.packet_lifetime < 1 << 6
            && self.packet_rate < 1 << 6
            && self.sl < 1 << 4
            && self.flow_label < 1 << 20
    }
}

impl Common {
    /// A call failed at once: the state is as before it.
    fn undo(&self, control: &mut Control) {
        if matches!(self.state(), EpStateRc::Active1ConnectionPending | EpStateRc::PassiveConnectionPending) {
            control.connection = None;
            self.set_state(EpStateRc::Unconnected);
        }
    }
}

/// Whether the peer can serve as many reads as we may have outstanding, and the other way round (5.1.1).
pub(crate) fn depths_fit(control: &Control) -> bool {
    let (peer_ird, peer_ord) = control.peer_depth;
    control.attr.rc.rdma_read_ord <= peer_ird && peer_ord <= control.attr.rc.rdma_read_ird
}

/// Whether the flags ask for three-way establishment.
fn check_flags(flags: CnEstFlags) -> Result<bool> {
    match flags {
        CnEstFlags::TWO_WAY => Ok(false),
        CnEstFlags::THREE_WAY => Ok(true),
        // IRD and ORD always go along, so they cannot be suppressed.
        _ => Err(Error::InvalidCnEstFlags),
    }
}

/// The service ID of a qualifier.
pub(crate) fn service(qualifier: &ConnQual) -> Result<roce::ServiceId> {
    match qualifier {
        ConnQual::IanaPort(port) if *port != 0 => Ok(roce::ServiceId::it_api(u16::from_be(*port))),
        ConnQual::IbServiceId(id) if *id != 0 => Ok(roce::ServiceId(u64::from_be(*id))),
        _ => Err(Error::InvalidConnQual),
    }
}

/// What a path's MTU code means.
fn mtu_bytes(code: u8) -> u32 {
    match code {
        1..=5 => 128 << code,
        _ => 4096,
    }
}

/// The code of an MTU.
pub(crate) fn mtu_code(bytes: u32) -> u8 {
    match bytes {
        0..512 => 1,
        512..1024 => 2,
        1024..2048 => 3,
        2048..4096 => 4,
        _ => 5,
    }
}

pub(crate) struct Timing {
    ack_timeout: u8,
    retry_count: u8,
    rnr_retry: u8,
    pub(crate) cm_timeout: u8,
    pub(crate) cm_retries: u8,
}

/// Checks the consumer's attributes: each must fit into its field, and an answer must be able to come before the path's timeout.
fn check_attributes(attributes: &ConnAttributes, timeout_us: u64) -> Result<Timing> {
    let checks = [
        (attributes.remote_cm_timeout <= MAX_TIMEOUT, Error::InvalidRtimeout),
        (attributes.local_cm_timeout <= MAX_TIMEOUT, Error::InvalidLtimeout),
        (attributes.retry_count <= 7, Error::InvalidRetry),
        (attributes.rnr_retry_count <= 7, Error::InvalidRnrRetry),
        (attributes.max_cm_retries <= 15, Error::InvalidCmRetry),
        (attributes.local_ack_timeout <= MAX_TIMEOUT, Error::InvalidAtimeout),
    ];
    if let Some((_, error)) = checks.iter().find(|(holds, _)| !holds) {
        return Err(*error);
    }
    if timeout_us.saturating_mul(1000) < TICK << attributes.remote_cm_timeout {
        return Err(Error::InvalidRtimeout);
    }
    Ok(Timing {
        ack_timeout: attributes.local_ack_timeout,
        retry_count: attributes.retry_count,
        rnr_retry: attributes.rnr_retry_count,
        cm_timeout: attributes.remote_cm_timeout,
        cm_retries: attributes.max_cm_retries,
    })
}

/// Timeout and retries of a CM message so that the whole attempt takes about as long as the path says.
pub(crate) fn fit(timeout_us: u64) -> Timing {
    let defaults = ConnectParams::default();
    let ticks = Duration::from_micros(timeout_us).as_nanos() / u128::from(TICK);
    // At least eight attempts, where the timeout is long enough for that.
    let cm_timeout = (0..MAX_TIMEOUT).rev().find(|t| ticks >> t >= 8).unwrap_or(0);
    let attempts = (ticks >> cm_timeout).clamp(1, 16);
    Timing {
        ack_timeout: defaults.ack_timeout,
        retry_count: defaults.retry_count,
        rnr_retry: defaults.rnr_retry,
        cm_timeout,
        cm_retries: (attempts - 1) as u8,
    }
}

/// Private data as events carry it. InfiniBand's messages always have the field, and one without private data is zero there; so a
/// field of zeroes is none.
pub(crate) fn received(private_data: &[u8]) -> Option<PrivateData> {
    private_data.iter().any(|&byte| byte != 0).then(|| PrivateData::new(private_data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total_us(timing: &Timing) -> u64 {
        (TICK << timing.cm_timeout) * (u64::from(timing.cm_retries) + 1) / 1000
    }

    #[test]
    fn attempts_together_take_about_the_paths_timeout() {
        for timeout in [1_000, 50_000, 1_000_000, 10_000_000, 600_000_000] {
            let took = total_us(&fit(timeout));
            assert!(took <= timeout && took >= timeout * 4 / 5, "{took} of {timeout} us");
        }
        assert_eq!(fit(0).cm_retries, 0);
        assert!(fit(u64::MAX).cm_timeout < 32);
    }

    #[test]
    fn attributes_out_of_their_fields_are_named() {
        let ok = ConnAttributes::default();
        assert!(check_attributes(&ok, 10_000_000).is_ok());
        let bad = |attributes| check_attributes(&attributes, 10_000_000).err();
        assert_eq!(bad(ConnAttributes { retry_count: 8, ..ok }), Some(Error::InvalidRetry));
        assert_eq!(bad(ConnAttributes { max_cm_retries: 16, ..ok }), Some(Error::InvalidCmRetry));
        assert_eq!(bad(ConnAttributes { local_ack_timeout: 32, ..ok }), Some(Error::InvalidAtimeout));
        assert_eq!(check_attributes(&ok, 1).err(), Some(Error::InvalidRtimeout));
    }

    #[test]
    fn one_way_of_establishment_must_be_chosen() {
        assert_eq!(check_flags(CnEstFlags::TWO_WAY), Ok(false));
        assert_eq!(check_flags(CnEstFlags::THREE_WAY), Ok(true));
        for flags in [CnEstFlags::empty(), CnEstFlags::all(), CnEstFlags::from_bits_retain(9)] {
            assert_eq!(check_flags(flags), Err(Error::InvalidCnEstFlags));
        }
    }

    #[test]
    fn mtu_codes_go_both_ways() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(mtu_bytes(mtu_code(bytes)), bytes);
        }
    }
}
