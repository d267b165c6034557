//! What IT-API's pages say of iWARP where they have columns for transports.

use core::time::Duration;

use kernel_agent::wire::{self, Gid, ReadDepths, Reason};
use kernel_agent::{CmEvent, ConnectParams, Features, Handshake, Identity, QpType, Transports, gid_index};
use rdma::via::REP_LEN;

use crate::address::{
    ConnAttributes, ConnQual, IwarpNetEndpoint, MAX_PRIV_DATA, NetAddr, NetAddrType, NetEndpoint, Path,
};
use crate::attributes::EpAttributes;
use crate::dialect::{Asked, Dialect, Facts, PrivateDataLimits, Requested};
use crate::event::{ConnRequest, RejectReason};
use crate::flags::{CnEstFlags, ConnQualTypes};
use crate::ia::{Core, Ia, SPIGOT};
use crate::info::{TransportType, Vendor, VendorIwarp};
use crate::objects::ep::Ep;
use crate::status::{Error, Result};

/// The dialect.
pub(crate) struct Iwarp;

static FACTS: Facts = Facts {
    transport_type: TransportType::IwarpTcp,
    needs: Features::IWARP.union(Features::STREAMS).union(Features::RC),
    offers: Features::all().difference(Features::ATOMICS.union(Features::UD).union(Features::UC)),
    queue_pair: Some(QpType::Iwarp),
    transports: Transports::IWARP,
    private_data: PrivateDataLimits {
        connect: MAX_PRIV_DATA,
        accept: MAX_PRIV_DATA,
        reject: MAX_PRIV_DATA,
        // The end of a stream carries none.
        disconnect: 0,
        ud_request: 0,
        ud_reply: 0,
    },
    // A frame says how much there is.
    private_data_is_padded: false,
    read_depths: true,
    three_way_handshake: false,
    equal_message_sizes: false,
    unconfirmed: RejectReason::Other,
    immediate_data: false,
    port_events: true,
    finds_overflow: true,
    active_qualifiers: ConnQualTypes::IANA_PORT.union(ConnQualTypes::IANA_LR_PORT),
    passive_qualifiers: ConnQualTypes::IANA_PORT,
    reads_write_remotely: true,
    // Each bind waits for what was posted before it.
    fences_wide_unlinks: true,
    infinibands_links: false,
    sockets: true,
};

impl Dialect for Iwarp {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn vendor(&self, core: &Core) -> Vendor {
        Vendor::Iwarp(VendorIwarp::of(core.agent().identity().node_guid))
    }

    fn own_gid(&self, _: &NetAddr) -> Result<Gid> {
        Err(Error::InvalidNetaddr)
    }

    fn net_addr(&self, gid: Gid) -> NetAddr {
        match gid.to_ipv4() {
            Some(ipv4) => NetAddr::Ipv4(ipv4.octets()),
            None => NetAddr::Ipv6(gid.0),
        }
    }

    fn own_net_addr(&self, _: Gid, _: NetAddrType) -> Result<NetAddr> {
        Err(Error::InvalidConversion)
    }

    fn net_endpoint(&self, _: &Identity, route: &wire::Path, _: &NetAddr) -> NetEndpoint {
        between(route)
    }

    fn service(&self, qualifier: &ConnQual) -> Result<wire::ServiceId> {
        match qualifier {
            ConnQual::IanaPort(port) if *port != 0 => Ok(wire::ServiceId::it_api(u16::from_be(*port))),
            _ => Err(Error::InvalidConnQual),
        }
    }

    fn port(&self, qualifier: &ConnQual) -> Result<Option<u16>> {
        Ok(self.service(qualifier)?.to_it_api())
    }

    /// iWARP has no connection attributes (it_conn_attributes_t), and each Request has IRD and ORD.
    fn ask(
        &self,
        core: &Core,
        path: &Path,
        _: Option<&ConnAttributes>,
        qualifier: &ConnQual,
        flags: CnEstFlags,
    ) -> Result<(ConnectParams, Handshake)> {
        if flags != CnEstFlags::TWO_WAY {
            return Err(Error::InvalidCnEstFlags);
        }
        if path.spigot_id != SPIGOT {
            return Err(Error::InvalidSpigot);
        }
        let NetEndpoint::Iwarp(ends) = &path.remote else { return Err(Error::InvalidSourcePath) };
        let (local, remote) = ends.gids();
        if gid_index(core.agent().identity(), local).is_none() || !remote.is_unicast() {
            return Err(Error::InvalidSourcePath);
        }
        let (own, theirs) = match *qualifier {
            ConnQual::IanaLrPort { local: 0, .. } => return Err(Error::InvalidConnQual),
            ConnQual::IanaLrPort { local, remote } => (u16::from_be(local), ConnQual::IanaPort(remote)),
            other => (0, other),
        };
        let params = ConnectParams {
            ip_source_port: own,
            timeout: Some(Duration::from_micros(path.timeout)),
            ..ConnectParams::new(wire::Path::new(local, remote), self.service(&theirs)?)
        };
        Ok((params, Handshake::TwoWay))
    }

    /// An ORD can always be lowered, so only the IRD counts (appendix A, it_ep_attributes_t).
    fn own_reply(&self, attr: &EpAttributes, asked: &ConnRequest) -> Result<Option<[u8; REP_LEN]>> {
        if attr.rc.rdma_read_ird < asked.rdma_read_ord { Err(Error::InvalidEpAttr) } else { Ok(None) }
    }

    fn requested(&self, asked: &Asked<'_>) -> core::result::Result<Requested, Reason> {
        Ok(Requested {
            remote: between(&asked.path),
            source_addr: self.net_addr(asked.path.remote_gid),
            max_message_size: 0,
        })
    }

    fn accept_arrived(&self, _: &Core, _: &Ep, _: &CmEvent<'_>, _: ReadDepths, _: &Ia) {
        // There is no handshake of three ways.
    }

    /// The agent names what happened by a code of InfiniBand (`kernel_agent::mpa`). A table of
    /// connect(2)'s errors, where a time-out is another event of the agent's.
    fn reject_code(&self, reason: Reason) -> RejectReason {
        match reason {
            // ECONNREFUSED; ENETUNREACH, EADDRNOTAVAIL.
            Reason::INVALID_SERVICE_ID | Reason::PRIMARY_GID => RejectReason::BadPath,
            Reason::INSUFFICIENT_RESPONDER_RESOURCES => RejectReason::BadOrd,
            Reason::INVALID_CLASS_VERSION => RejectReason::BadConnParms,
            _ => RejectReason::Other,
        }
    }
}

/// The ends of a path.
fn between(path: &wire::Path) -> NetEndpoint {
    NetEndpoint::Iwarp(IwarpNetEndpoint::between(path.local_gid, path.remote_gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_the_table() {
        for (reason, expected) in [
            (Reason::INVALID_SERVICE_ID, RejectReason::BadPath),
            (Reason::PRIMARY_GID, RejectReason::BadPath),
            (Reason::INSUFFICIENT_RESPONDER_RESOURCES, RejectReason::BadOrd),
            (Reason::INVALID_CLASS_VERSION, RejectReason::BadConnParms),
            (Reason::UNSUPPORTED_REQUEST, RejectReason::Other),
        ] {
            assert_eq!(Iwarp.reject_code(reason), expected, "{reason:?}");
        }
    }

    #[test]
    fn only_ports_name_services_and_one_with_a_local_port_only_who_asks() {
        assert_eq!(Iwarp.port(&ConnQual::port(4711)), Ok(Some(4711)));
        let both = ConnQual::IanaLrPort { local: 1u16.to_be(), remote: 2u16.to_be() };
        for other in [ConnQual::port(0), ConnQual::service_id(7), ConnQual::rdma_tcp(80), both] {
            assert_eq!(Iwarp.service(&other), Err(Error::InvalidConnQual), "{other:?}");
        }
    }

    #[test]
    fn a_node_is_named_by_its_ip_address() {
        assert_eq!(Iwarp.net_addr(Gid::from_ipv4([10, 0, 0, 1].into())), NetAddr::Ipv4([10, 0, 0, 1]));
        assert_eq!(Iwarp.net_addr(Gid([0x20; 16])), NetAddr::Ipv6([0x20; 16]));
        assert_eq!(Iwarp.own_gid(&NetAddr::IbGid([0x20; 16])), Err(Error::InvalidNetaddr));
    }
}
