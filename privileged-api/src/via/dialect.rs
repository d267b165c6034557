//! What IT-API's pages say of VIA where they have columns for transports.

use core::time::Duration;

use kernel_agent::wire::{self, Gid, PathMtu, ReadDepths, Reason};
use kernel_agent::{CmEvent, ConnectParams, Features, Handshake, Identity, Transports};
use rdma::attempts;
use rdma::via::{Digest, Discriminator, Offer, REP_LEN, REQ_LEN, Request};

use super::connect::{can_fit, offer};
use super::names::{discriminator, gid_of_host, host_address, host_of, port};
use crate::address::{ConnAttributes, ConnQual, NetAddr, NetAddrType, NetEndpoint, Path};
use crate::attributes::EpAttributes;
use crate::cm::nonpeer;
use crate::dialect::{Asked, Dialect, Facts, PrivateDataLimits, Requested};
use crate::evd::callback::Origin;
use crate::event::{ConnRequest, RejectReason};
use crate::flags::{CnEstFlags, ConnQualTypes};
use crate::ia::{Core, Ia, SPIGOT};
use crate::info::{TransportType, Vendor};
use crate::objects::ep::Ep;
use crate::status::{Error, Result};

/// The dialect.
pub(crate) struct Via;

const QUALIFIERS: ConnQualTypes = ConnQualTypes::IANA_PORT.union(ConnQualTypes::VIA_DISCRIMINATOR);

static FACTS: Facts = Facts {
    transport_type: TransportType::ViaIp,
    needs: Features::VI.union(Features::RC),
    offers: Features::RELATIVE
        .union(Features::PAGE_LIST)
        .union(Features::BLOCK_LIST)
        .union(Features::VARIABLE_LIST),
    queue_pair: None,
    transports: Transports::RC,
    private_data: PrivateDataLimits {
        connect: 0,
        accept: 0,
        reject: 0,
        disconnect: 0,
        ud_request: 0,
        ud_reply: 0,
    },
    private_data_is_padded: true,
    // VIA has no limits of RDMA Reads.
    read_depths: false,
    // Consumers see two ways of the agent's three: see `connect`.
    three_way_handshake: false,
    equal_message_sizes: true,
    unconfirmed: RejectReason::Other,
    immediate_data: true,
    port_events: false,
    finds_overflow: false,
    active_qualifiers: QUALIFIERS,
    passive_qualifiers: QUALIFIERS,
    reads_write_remotely: false,
    fences_wide_unlinks: false,
    infinibands_links: true,
    sockets: false,
};

impl Dialect for Via {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn vendor(&self, core: &Core) -> Vendor {
        Vendor::Via(core.vendor_via(core.adapter.name()))
    }

    fn own_gid(&self, addr: &NetAddr) -> Result<Gid> {
        match addr {
            NetAddr::ViaHostaddr(host) => gid_of_host(host).ok_or(Error::InvalidAddress),
            _ => Err(Error::InvalidNetaddr),
        }
    }

    fn net_addr(&self, gid: Gid) -> NetAddr {
        NetAddr::ViaHostaddr(host_address(gid))
    }

    fn own_net_addr(&self, gid: Gid, addr_type: NetAddrType) -> Result<NetAddr> {
        match addr_type {
            NetAddrType::ViaHostaddr => Ok(self.net_addr(gid)),
            _ => Err(Error::InvalidConversion),
        }
    }

    fn net_endpoint(&self, _: &Identity, route: &wire::Path, asked: &NetAddr) -> NetEndpoint {
        NetEndpoint::Via(host_of(asked).unwrap_or_else(|| host_address(route.remote_gid)))
    }

    fn service(&self, qualifier: &ConnQual) -> Result<wire::ServiceId> {
        Ok(discriminator(qualifier)?.service())
    }

    fn port(&self, qualifier: &ConnQual) -> Result<Option<u16>> {
        Ok(port(&discriminator(qualifier)?))
    }

    /// VIA has neither connection attributes nor read depths that could be suppressed.
    fn ask(
        &self,
        core: &Core,
        path: &Path,
        _: Option<&ConnAttributes>,
        qualifier: &ConnQual,
        flags: CnEstFlags,
    ) -> Result<(ConnectParams, Handshake)> {
        if flags.difference(CnEstFlags::SUPPRESS_IRD_ORD) != CnEstFlags::TWO_WAY {
            return Err(Error::InvalidCnEstFlags);
        }
        if path.spigot_id != SPIGOT {
            return Err(Error::InvalidSpigot);
        }
        let NetEndpoint::Via(host) = &path.remote else { return Err(Error::InvalidSourcePath) };
        let id = core.agent().identity();
        let route =
            gid_of_host(host).and_then(|gid| rdma::path_to(id, gid)).ok_or(Error::InvalidSourcePath)?;
        let (timeout, retries) = attempts(path.timeout);
        let params = ConnectParams {
            path_mtu: PathMtu::at_most(id.mtu),
            timeout: Some(Duration::from_micros(path.timeout)),
            remote_cm_timeout: timeout,
            local_cm_timeout: timeout,
            max_cm_retries: retries,
            ..ConnectParams::new(route, Digest::of(&discriminator(qualifier)?).service())
        };
        Ok((params, Handshake::ThreeWay))
    }

    /// Both ends offer what the NIC has.
    fn depths(&self, core: &Core, _: &EpAttributes) -> ReadDepths {
        let most = core.agent().identity().max_rd_atomic.min(u8::MAX.into()) as u8;
        ReadDepths { responder_resources: most, initiator_depth: most }
    }

    fn own_request(&self, qualifier: &ConnQual, attr: &EpAttributes) -> Option<[u8; REQ_LEN]> {
        let asked = Digest::of(&discriminator(qualifier).ok()?);
        // The consumer has no discriminator of its own.
        Some(Request { offer: offer(attr), own: Discriminator::EMPTY, asked }.encode())
    }

    fn own_reply(&self, attr: &EpAttributes, asked: &ConnRequest) -> Result<Option<[u8; REP_LEN]>> {
        reply(attr, asked.max_message_size).map(Some)
    }

    /// A level and a quality that no endpoint here can have are rejected as a transport service
    /// that is not offered, which is what the agent does with the unreliable level: the consumer
    /// could only reject the request.
    fn requested(&self, asked: &Asked<'_>) -> core::result::Result<Requested, Reason> {
        // A discriminator whose service is that of another one has no listener either.
        let here = discriminator(asked.qualifier).map(|name| Digest::of(&name));
        let decoded = Request::decode(asked.private_data, asked.service);
        let Some(Request { offer, .. }) = decoded.filter(|request| here == Ok(request.asked)) else {
            return Err(Reason::INVALID_SERVICE_ID);
        };
        if !can_fit(&offer) {
            return Err(Reason::INVALID_TRANSPORT_SERVICE);
        }
        let host = host_address(asked.path.remote_gid);
        Ok(Requested {
            remote: NetEndpoint::Via(host),
            source_addr: NetAddr::ViaHostaddr(host),
            max_message_size: offer.max_transfer,
        })
    }

    /// Confirms the accept, unless it does not fit, and then rejects it.
    fn accept_arrived(&self, core: &Core, ep: &Ep, event: &CmEvent<'_>, peer: ReadDepths, ia: &Ia) {
        let connection = event.connection;
        let Ok(client) = core.client() else { return };
        let Some(attr) = ep.concerned(connection).map(|control| control.attr) else { return };
        let fits = Offer::decode(event.private_data).is_some_and(|peer| offer(&attr).agrees(&peer).is_ok());
        let depth = self.depths(core, &attr).initiator_depth.min(peer.responder_resources);
        let confirmed = match fits {
            true => client.establish(connection, depth, &[]),
            false => client.reject(connection, &[]).and(Err(kernel_agent::Error::Foreign)),
        };
        match confirmed {
            // In the latter case the attempt is over, and its event follows.
            Ok(()) | Err(kernel_agent::Error::ConnectionState) => {}
            Err(_) => {
                let result = nonpeer(ep, RejectReason::Other);
                core.not_established(ep, connection, result, Origin::Upcall(ia));
            }
        }
    }

    fn reject_code(&self, reason: Reason) -> RejectReason {
        match reason.0 {
            1 | 3 => RejectReason::Resources,
            _ => RejectReason::Other,
        }
    }
}

/// The private data of the accept of an endpoint. Fails if it does not fit a peer with this longest
/// message.
fn reply(attr: &EpAttributes, peers_longest: u32) -> Result<[u8; REP_LEN]> {
    let own = offer(attr);
    if own.max_transfer == peers_longest { Ok(own.encode()) } else { Err(Error::InvalidEpAttr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_the_table() {
        for reason in 0..=40 {
            let expected =
                if matches!(reason, 1 | 3) { RejectReason::Resources } else { RejectReason::Other };
            assert_eq!(Via.reject_code(Reason(reason)), expected, "{reason}");
        }
    }

    #[test]
    fn only_equal_longest_messages_fit() {
        let attr = EpAttributes { max_dto_payload_size: 4096, ..EpAttributes::default() };
        assert_eq!(reply(&attr, 4096).map(|bytes| bytes[4..8].to_vec()), Ok([0, 0, 0x10, 0].to_vec()));
        for other in [0, 4095, 4097, u32::MAX] {
            assert_eq!(reply(&attr, other), Err(Error::InvalidEpAttr));
        }
    }
}
