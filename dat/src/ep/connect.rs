//! Connecting and disconnecting (dat_ep_connect, dat_ep_dup_connect, dat_ep_disconnect).
//!
//! A call changes the endpoint's phase before it calls the agent, and restores it if the agent
//! returns an error. The agent's upcalls do not wait for such a call: they may come before it has
//! returned.

use core::net::IpAddr;
use core::time::Duration;

use kernel_agent::wire::{Gid, Path, PathMtu, ReadDepths, ServiceId};
use kernel_agent::{
    AcceptParams, ConnectParams, Connectable, ConnectionId, Handshake, Operation, Remote as At, Request,
    SendFlags, Shadow,
};
use rdma::{attempts, path_to};

use crate::IaAddress;
use crate::attr::EpAttr;
use crate::cm::service;
use crate::completion;
use crate::error::{MODEL, handle, parameter};
use crate::event::EventNumber;
use crate::flags::{CloseFlags, CompletionFlags, ConnectFlags, EpState, Qos, TIMEOUT_INFINITE};
use crate::handle::EpHandle;
use crate::ia::{Ia, Inner};
use crate::objects::ep::{Ep, Phase, Remote, wrong};
use crate::objects::evd::Origin;
use crate::objects::points::CONNECT_DATA;
use crate::ret::{Error, ErrorType, Result, Subtype};

/// The longest time that a connection attempt may take, in microseconds: an hour. The timeout
/// fields of InfiniBand's messages end not far above.
const LONGEST: u64 = 3_600_000_000;

/// The IP address of a GID: IPv4 if the GID maps an IPv4 address, else IPv6.
pub(crate) fn address_of(gid: [u8; 16]) -> IaAddress {
    IpAddr::from(gid).to_canonical()
}

/// How long an attempt may take, in microseconds.
pub(crate) fn micros(timeout: u32) -> u64 {
    if timeout == TIMEOUT_INFINITE { LONGEST } else { timeout.into() }
}

/// The read depths as connection messages carry them.
fn depths(attr: &EpAttr) -> ReadDepths {
    // The limits of an IA fit into a byte.
    ReadDepths {
        responder_resources: attr.max_rdma_read_in as u8,
        initiator_depth: attr.max_rdma_read_out as u8,
    }
}

impl Inner {
    /// The path to an address.
    pub(crate) fn path(&self, address: IaAddress) -> Result<Path> {
        let remote = match address {
            IpAddr::V4(v4) => Gid::from_ipv4(v4),
            IpAddr::V6(v6) => Gid(v6.octets()),
        };
        if !remote.is_unicast() {
            return Err(Error::new(ErrorType::InvalidAddress, Subtype::InvalidAddressMalformed));
        }
        let path = path_to(self.identity(), remote).filter(|_| self.agent().port_up());
        path.ok_or(Error::new(ErrorType::InvalidAddress, Subtype::InvalidAddressUnreachable))
    }

    fn connect(&self, ep: &Ep, remote: Remote, timeout: u32, private_data: &[u8]) -> Result<()> {
        let service = service(remote.port, Subtype::InvalidArg3)?;
        if timeout == 0 {
            return Err(parameter(Subtype::InvalidArg4));
        }
        let path = self.path(remote.address)?;
        let _turn = ep.turn.lock(self.platform());
        let ep = self.as_it_is(ep)?;
        let now = self.ep_state(&ep);
        if ep.is_ud() {
            return self.resolve(&ep, now, remote, (&path, timeout), service, private_data);
        }
        if now != EpState::Unconnected {
            return Err(wrong(now));
        }
        ep.control.lock().is_ready()?;
        if private_data.len() > CONNECT_DATA {
            return Err(parameter(Subtype::InvalidArg5));
        }
        let depths = {
            let mut control = ep.control.lock();
            (control.remote, control.passive, control.draining) = (Some(remote), false, false);
            control.local_port = 0;
            ep.set_phase(&mut control, Phase::Active);
            depths(&control.attr)
        };
        let params = self.connect_params(path, service, timeout, depths);
        let asked = self.client().and_then(|client| {
            let asked = client.connect(Connectable::from(&ep.qp), &params, Handshake::TwoWay, private_data);
            asked.map_err(|error| match error {
                kernel_agent::Error::PrivateData(_) => parameter(Subtype::InvalidArg5),
                other => self.error(other),
            })
        });
        let mut control = ep.control.lock();
        match asked {
            Ok(connection) => {
                // By now the connection may be over, or an upcall may have recorded it.
                if control.phase != Phase::Ended {
                    control.connection.asked(connection);
                }
                Ok(())
            }
            Err(error) => {
                if control.phase.is_pending() {
                    control.connection.undo();
                    ep.set_phase(&mut control, Phase::Unconnected);
                }
                Err(error)
            }
        }
    }

    fn connect_params(
        &self,
        mut path: Path,
        service: ServiceId,
        timeout: u32,
        depths: ReadDepths,
    ) -> ConnectParams {
        if path.subnet_local {
            // The members of the GRH count only on a path out of the subnet.
            (path.traffic_class, path.flow_label, path.hop_limit) = (0, 0, 0);
        }
        let (each, retries) = attempts(micros(timeout));
        ConnectParams {
            path_mtu: PathMtu::at_most(self.identity().mtu),
            timeout: Some(Duration::from_micros(micros(timeout))),
            depths,
            remote_cm_timeout: each,
            local_cm_timeout: each,
            max_cm_retries: retries,
            ..ConnectParams::new(path, service)
        }
    }

    /// Accepts a peer's request.
    pub(crate) fn accept_connection(
        &self,
        ep: &Ep,
        connection: ConnectionId,
        remote: Remote,
        local_port: u64,
        private_data: &[u8],
    ) -> Result<()> {
        let depths = {
            let mut control = ep.control.lock();
            (control.passive, control.draining, control.remote) = (true, false, Some(remote));
            control.local_port = local_port;
            control.connection.begin(connection);
            ep.set_phase(&mut control, Phase::Passive);
            depths(&control.attr)
        };
        let params = AcceptParams { depths, ..AcceptParams::default() };
        let accepted = self.client().and_then(|client| {
            match client.accept(connection, Connectable::from(&ep.qp), &params, private_data) {
                // The peer gave up before the accept. The consumer gets the event that it gets when
                // the peer gives up just after the accept.
                Err(kernel_agent::Error::ConnectionState) => {
                    let number = EventNumber::CONNECTION_ACCEPT_COMPLETION_ERROR;
                    self.not_established(ep, connection, number, None, Origin::Call);
                    Ok(())
                }
                accepted => accepted.map_err(|error| match error {
                    kernel_agent::Error::PrivateData(_) => parameter(Subtype::InvalidArg3),
                    other => self.error(other),
                }),
            }
        });
        let mut control = ep.control.lock();
        match accepted {
            Ok(()) => control.pending = None,
            Err(_) if control.phase.is_pending() => {
                control.connection.undo();
                ep.set_phase(&mut control, Phase::Unconnected);
            }
            Err(_) => {}
        }
        accepted
    }

    /// Ends the connection of an endpoint whose requests are complete, if the consumer asked for a
    /// graceful disconnect. In the dispatcher thread.
    pub(crate) fn drained(&self, ep: EpHandle, qpn: u32) {
        let Some(ep) = self.eps.get(ep) else { return };
        // A call that resets the endpoint waits until the event of the end is queued.
        let _turn = ep.turn.lock(self.platform());
        // The endpoint may have been reset since then.
        let Some(ep) = self.eps.get(ep.handle).filter(|ep| ep.qp.qpn() == qpn) else { return };
        let waits = core::mem::take(&mut ep.control.lock().draining);
        if waits {
            // Fails only if the connection has ended by itself.
            let _ = self.end_connection(&ep, Origin::Upcall);
        }
    }

    /// Ends the connection of an endpoint, or gives up one that is being established.
    fn end_connection(&self, ep: &Ep, origin: Origin) -> Result<()> {
        let connection = {
            let mut control = ep.control.lock();
            match control.phase {
                Phase::Ended => return Ok(()),
                Phase::Unconnected => return Err(wrong(control.state())),
                Phase::Active | Phase::Passive | Phase::Connected => {}
            }
            ep.set_phase(&mut control, Phase::Ended);
            control.connection.part()
        };
        if let (Some(connection), Ok(client)) = (connection, self.client()) {
            // The connection may be over already.
            let _ = client.disconnect(connection, &[]);
        }
        let flushed = ep.qp.to_error().map_err(|error| self.error(error));
        self.tell(ep, EventNumber::CONNECTION_DISCONNECTED, origin);
        flushed
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
        let inner = self.call()?;
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
        let inner = self.call()?;
        let ep = inner.ep(ep)?;
        let dup = inner.eps.get(ep_dup).ok_or(handle(Subtype::InvalidHandle2))?;
        inner.not_in_upcall()?;
        if qos != Qos::BEST_EFFORT {
            return Err(MODEL);
        }
        match inner.ep_state(&dup) {
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
        let inner = self.call()?;
        let ep = inner.ep(ep)?;
        let _turn = ep.turn.lock(inner.platform());
        let ep = inner.as_it_is(&ep)?;
        let now = inner.ep_state(&ep);
        match now {
            EpState::Disconnected => return Ok(()),
            EpState::Unconnected | EpState::Reserved | EpState::PassiveConnectionPending => {
                return Err(wrong(now));
            }
            EpState::DisconnectPending if close_flags == CloseFlags::Graceful => return Ok(()),
            _ => {}
        }
        if ep.is_ud() {
            inner.disconnect_datagrams(&ep);
            return Ok(());
        }
        if now == EpState::Connected && close_flags == CloseFlags::Graceful {
            let (requests, _) = ep.qp.outstanding();
            if requests > 0 {
                return inner.drain(&ep);
            }
        }
        ep.control.lock().draining = false;
        inner.end_connection(&ep, Origin::Call)
    }
}

impl Inner {
    /// Posts a marker, whose completion ends the connection.
    fn drain(&self, ep: &Ep) -> Result<()> {
        ep.control.lock().draining = true;
        let flags = completion::send_flags(CompletionFlags::DEFAULT) | SendFlags::DRAINED_EVENT;
        let data = completion::data(completion::Operation::Marker, CompletionFlags::DEFAULT);
        let operation = Operation::Write { to: At { addr: 0, key: 0 }, immediate: None };
        let request = Request { operation, flags, shadow: Shadow { cookie: 0, data } };
        let posted = ep.takes_requests().and_then(|()| {
            let posted = ep.qp.post_plain(&request);
            posted.map(drop).map_err(|error| self.not_posted_to(ep.handle, error))
        });
        posted.inspect_err(|_| ep.control.lock().draining = false)
    }
}
