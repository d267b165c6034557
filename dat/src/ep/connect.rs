//! Connecting and disconnecting (dat_ep_connect, dat_ep_dup_connect, dat_ep_disconnect).

use core::net::IpAddr;

use privileged_api as it;

use super::{Control, Ep, Remote, wrong};
use crate::IaAddress;
use crate::error::{MODEL, handle, of, parameter, state};
use crate::evd::Made;
use crate::event::{Connection, EventNumber};
use crate::flags::{CloseFlags, ConnectFlags, EpState, Qos, TIMEOUT_INFINITE};
use crate::handle::EpHandle;
use crate::ia::{Ia, Inner, SPIGOT};
use crate::ret::{Error, ErrorType, Result, Subtype};

/// The longest time that a connection attempt may take, in microseconds: an hour. The timeout
/// fields of InfiniBand's messages end not far above.
const LONGEST: u64 = 3_600_000_000;

/// An address, as IT-API names it.
pub(crate) fn net_address(address: IaAddress) -> it::NetAddr {
    match address {
        IpAddr::V4(v4) => it::NetAddr::Ipv4(v4.octets()),
        IpAddr::V6(v6) => it::NetAddr::IbGid(v6.octets()),
    }
}

/// The IP address of a GID: IPv4 if the GID maps an IPv4 address, else IPv6.
pub(crate) fn address_of(gid: [u8; 16]) -> IaAddress {
    IpAddr::from(gid).to_canonical()
}

/// A connection qualifier, as IT-API names it: an InfiniBand service ID.
pub(crate) fn qualifier(conn_qual: u64, bad: Subtype) -> Result<it::ConnQual> {
    match conn_qual {
        0 => Err(parameter(bad)),
        id => Ok(it::ConnQual::service_id(id)),
    }
}

impl Control {
    /// Fails unless the endpoint has a zone and an event dispatcher for connection events.
    pub(crate) fn is_ready(&self) -> Result<()> {
        if self.pz.is_null() || self.connect.is_null() {
            return Err(state(Subtype::InvalidStateEpNotReady));
        }
        Ok(())
    }
}

impl Inner {
    /// The path to an address, with the time that a connection attempt along it may take.
    pub(crate) fn path(&self, address: IaAddress, timeout: u32) -> Result<it::Path> {
        let (paths, _) = self.it.get_pathinfo(SPIGOT, &net_address(address), 1)?;
        let unreachable = Error::new(ErrorType::InvalidAddress, Subtype::InvalidAddressUnreachable);
        let path = paths.first().ok_or(unreachable)?;
        let timeout = match timeout {
            TIMEOUT_INFINITE => LONGEST,
            micros => micros.into(),
        };
        Ok(it::Path { timeout, ..*path })
    }

    fn connect(&self, ep: &Ep, remote: Remote, timeout: u32, private_data: &[u8]) -> Result<()> {
        let qualifier = qualifier(remote.port, Subtype::InvalidArg3)?;
        if timeout == 0 {
            return Err(parameter(Subtype::InvalidArg4));
        }
        let path = self.path(remote.address, timeout)?;
        let _turn = ep.turn.lock(self.platform());
        let now = self.ep_state(ep)?;
        if ep.is_ud() {
            return self.resolve(ep, now, remote, &path, &qualifier, private_data);
        }
        if now != EpState::Unconnected {
            return Err(wrong(now));
        }
        {
            let mut control = ep.control.lock();
            control.is_ready()?;
            (control.remote, control.passive, control.draining) = (Some(remote), false, false);
            control.local_port = 0;
        }
        let flags = it::CnEstFlags::TWO_WAY;
        let asked = self.it.ep_connect(ep.handle.inner(), &path, None, &qualifier, flags, private_data);
        asked.map_err(|error| match error {
            it::Error::InvalidPdataLength => parameter(Subtype::InvalidArg5),
            it::Error::InvalidRtimeout => parameter(Subtype::InvalidArg4),
            other => of(other),
        })
    }

    /// Ends the connection of an endpoint whose requests are complete, if the consumer asked for a
    /// graceful disconnect.
    pub(crate) fn drained(&self, ep: EpHandle) {
        let Some(ep) = self.eps.get(ep) else { return };
        let waits = core::mem::take(&mut ep.control.lock().draining);
        if waits {
            // Fails only if the connection has ended by itself.
            let _ = self.it.ep_disconnect(ep.handle.inner(), &[]);
        }
    }
}

impl Ia {
    /// Asks the service `remote_conn_qual` at an address for a connection with an endpoint in
    /// UNCONNECTED, which goes to ACTIVE_CONNECTION_PENDING. An event reports the result.
    ///
    /// A qualifier is an InfiniBand service ID; `ConnQual::rdma_tcp` of `privileged-api` makes the
    /// qualifier of a port of Linux's rdma_cm. `timeout` is in microseconds.
    ///
    /// A datagram endpoint resolves the service's datagram endpoint instead: the event brings an
    /// address handle. It can resolve several, also in CONNECTED.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (a qualifier or a timeout of 0; private data of
    /// more than 92 bytes, for a datagram endpoint 204, 36 less if the qualifier is one of
    /// rdma_cm), `InvalidAddress` (malformed, or unreachable), `InvalidState` (another state;
    /// subtype `InvalidStateEpNotReady`: it has no zone or no event dispatcher for connection
    /// events; in an upcall), `ModelNotSupported` (several paths, or another quality of service
    /// than best effort), `InsufficientResources`. Does not wait for the peer. Not for upcalls.
    /// Thread-safe. dat_ep_connect.
    #[doc(alias = "dat_ep_connect")]
    #[expect(clippy::too_many_arguments, reason = "those of dat_ep_connect")]
    pub fn ep_connect(
        &self,
        ep: EpHandle,
        remote_ia_address: IaAddress,
        remote_conn_qual: u64,
        timeout: u32,
        private_data: &[u8],
        qos: Qos,
        connect_flags: ConnectFlags,
    ) -> Result<()> {
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        inner.not_in_upcall()?;
        if qos != Qos::BEST_EFFORT || connect_flags == ConnectFlags::MultipathRequired {
            return Err(MODEL);
        }
        let remote = Remote { address: remote_ia_address, port: remote_conn_qual };
        inner.connect(&ep, remote, timeout, private_data)
    }

    /// Connects an endpoint to the service to which a connected endpoint is connected.
    ///
    /// Errors: as [`Ia::ep_connect`], `InvalidHandle`, `InvalidState` (the second endpoint is not
    /// connected), `InvalidParameter` (the peer of the second endpoint requested its connection, so
    /// the peer's service is not known). Does not wait for the peer. Not for upcalls. Thread-safe.
    /// dat_ep_dup_connect.
    #[doc(alias = "dat_ep_dup_connect")]
    pub fn ep_dup_connect(
        &self,
        ep: EpHandle,
        ep_dup: EpHandle,
        timeout: u32,
        private_data: &[u8],
        qos: Qos,
    ) -> Result<()> {
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        let dup = inner.eps.get(ep_dup).ok_or(handle(Subtype::InvalidHandle2))?;
        inner.not_in_upcall()?;
        if qos != Qos::BEST_EFFORT {
            return Err(MODEL);
        }
        match inner.ep_state(&dup)? {
            EpState::Connected => {}
            other => return Err(wrong(other)),
        }
        let remote = dup.control.lock().remote.filter(|remote| remote.port != 0);
        inner.connect(&ep, remote.ok_or(parameter(Subtype::InvalidArg2))?, timeout, private_data)
    }

    /// Ends a connection, or gives up one that is being established: the endpoint goes to
    /// DISCONNECTED, outstanding work requests are flushed, and an event reports the end. In
    /// DISCONNECTED nothing happens.
    ///
    /// A graceful disconnect lets the endpoint's requests complete first, in DISCONNECT_PENDING:
    /// the connection ends when the peer has acknowledged them, whether or not the consumer takes
    /// their completions. Requests that the consumer posts meanwhile may be flushed. An abrupt
    /// disconnect cuts the wait short.
    ///
    /// A datagram endpoint forgets the remote endpoints that it resolved, and can send no more; its
    /// Receives stay posted until it is reset or freed.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (UNCONNECTED, RESERVED, PASSIVE_CONNECTION_PENDING),
    /// `InsufficientResources` (graceful, and the queue of requests is full). Does not wait for the
    /// peer. May be called in upcalls. Thread-safe. dat_ep_disconnect.
    #[doc(alias = "dat_ep_disconnect")]
    pub fn ep_disconnect(&self, ep: EpHandle, close_flags: CloseFlags) -> Result<()> {
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        let _turn = ep.turn.lock(inner.platform());
        let now = inner.ep_state(&ep)?;
        match now {
            EpState::Disconnected => return Ok(()),
            EpState::Unconnected | EpState::Reserved | EpState::PassiveConnectionPending => {
                return Err(wrong(now));
            }
            EpState::DisconnectPending if close_flags == CloseFlags::Graceful => return Ok(()),
            _ => {}
        }
        if ep.is_ud() {
            return inner.disconnect_datagrams(&ep);
        }
        if now == EpState::Connected && close_flags == CloseFlags::Graceful {
            let (requests, _) = self.it.ep_outstanding(ep.handle.inner())?;
            if requests > 0 {
                ep.control.lock().draining = true;
                return self.it.post_marker(ep.handle.inner(), 0).map_err(|error| {
                    ep.control.lock().draining = false;
                    error.into()
                });
            }
        }
        ep.control.lock().draining = false;
        Ok(self.it.ep_disconnect(ep.handle.inner(), &[])?)
    }
}

impl Inner {
    fn disconnect_datagrams(&self, ep: &Ep) -> Result<()> {
        self.forget_datagrams(ep);
        let evd = {
            let mut control = ep.control.lock();
            control.datagrams.disconnected = true;
            self.configs.set(ep.handle, &control);
            control.connect
        };
        if let Some(evd) = self.evds.get(evd) {
            let connection = Connection { ep_handle: ep.handle, private_data: None };
            let number = EventNumber::CONNECTION_DISCONNECTED;
            // If the queue has no room, the event is lost, as every event of a full queue is.
            if let Some(place) = self.reserve_event(&evd) {
                self.make_event(&evd, place, Made { number, connection, extension: None });
            }
        }
        Ok(())
    }
}
