//! InfiniBand, whose packets go by RoCEv2.

use core::time::Duration;

use kernel_agent::wire::{self, Gid, PKey, PathMtu, ReadDepths, Reason, TimeoutCode};
use kernel_agent::{CmEvent, ConnectParams, Features, Handshake, Identity, PCI_DEVICE, QpType, Transports};
use rdma::attempts;
use rdma::via::REP_LEN;

use super::{Asked, Dialect, Facts, PrivateDataLimits, Requested};
use crate::address::{ConnAttributes, ConnQual, IbNetEndpoint, NetAddr, NetAddrType, NetEndpoint, Path};
use crate::attributes::EpAttributes;
use crate::event::{ConnRequest, RejectReason};
use crate::flags::{CnEstFlags, ConnQualTypes};
use crate::ia::{Core, Ia};
use crate::info::{TransportType, Vendor, VendorIb};
use crate::objects::ep::Ep;
use crate::private_data;
use crate::status::{Error, Result};

/// The dialect.
pub(crate) struct InfiniBand;

const QUALIFIERS: ConnQualTypes = ConnQualTypes::IANA_PORT.union(ConnQualTypes::IB_SERVICEID);

static FACTS: Facts = Facts {
    transport_type: TransportType::Ib,
    needs: Features::empty(),
    offers: Features::all(),
    queue_pair: Some(QpType::Rc),
    transports: Transports::RC,
    private_data: PrivateDataLimits {
        connect: private_data::CONNECT,
        accept: private_data::ACCEPT,
        reject: private_data::REJECT,
        disconnect: private_data::DISCONNECT,
        ud_request: private_data::UD_REQUEST,
        ud_reply: private_data::UD_REPLY,
    },
    private_data_is_padded: true,
    read_depths: true,
    three_way_handshake: true,
    equal_message_sizes: false,
    unconfirmed: RejectReason::Timeout,
    immediate_data: true,
    port_events: true,
    finds_overflow: true,
    active_qualifiers: QUALIFIERS,
    passive_qualifiers: QUALIFIERS,
    reads_write_remotely: false,
    fences_wide_unlinks: false,
    infinibands_links: true,
    sockets: false,
};

impl Dialect for InfiniBand {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn vendor(&self, core: &Core) -> Vendor {
        let id = core.agent().identity();
        let vendor = (id.node_guid >> 40) as u32;
        Vendor::Ib(VendorIb { vendor, device: PCI_DEVICE, revision: id.revision })
    }

    fn own_gid(&self, addr: &NetAddr) -> Result<Gid> {
        match addr {
            NetAddr::IbGid(gid) => Ok(Gid(*gid)),
            _ => Err(Error::InvalidNetaddr),
        }
    }

    fn net_addr(&self, gid: Gid) -> NetAddr {
        NetAddr::IbGid(gid.0)
    }

    fn own_net_addr(&self, gid: Gid, addr_type: NetAddrType) -> Result<NetAddr> {
        match addr_type {
            NetAddrType::IbGid => Ok(NetAddr::IbGid(gid.0)),
            _ => Err(Error::InvalidConversion),
        }
    }

    fn net_endpoint(&self, id: &Identity, route: &wire::Path, _: &NetAddr) -> NetEndpoint {
        NetEndpoint::Ib(IbNetEndpoint::new(route, PKey::DEFAULT, PathMtu::at_most(id.mtu)))
    }

    fn service(&self, qualifier: &ConnQual) -> Result<wire::ServiceId> {
        match qualifier {
            ConnQual::IanaPort(port) if *port != 0 => Ok(wire::ServiceId::it_api(u16::from_be(*port))),
            ConnQual::IbServiceId(id) if *id != 0 => Ok(wire::ServiceId(u64::from_be(*id))),
            _ => Err(Error::InvalidConnQual),
        }
    }

    fn port(&self, qualifier: &ConnQual) -> Result<Option<u16>> {
        let service = self.service(qualifier)?;
        Ok(service.to_it_api().or(service.to_ip_cm().map(|(_, port)| port)))
    }

    fn ask(
        &self,
        core: &Core,
        path: &Path,
        attributes: Option<&ConnAttributes>,
        qualifier: &ConnQual,
        flags: CnEstFlags,
    ) -> Result<(ConnectParams, Handshake)> {
        let handshake = handshake(flags)?;
        let (ib, _) = core.check_path(path)?;
        let service = self.service(qualifier)?;
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
        set_timing(&mut params, attributes, path.timeout)?;
        Ok((params, handshake))
    }

    fn own_reply(&self, _: &EpAttributes, _: &ConnRequest) -> Result<Option<[u8; REP_LEN]>> {
        // The active side compares the read depths: the passive side cannot know whether the active
        // side is going to adapt (three-way).
        Ok(None)
    }

    fn requested(&self, asked: &Asked<'_>) -> core::result::Result<Requested, Reason> {
        Ok(Requested {
            remote: NetEndpoint::Ib(IbNetEndpoint::new(&asked.path, asked.pkey, asked.path_mtu)),
            source_addr: self.net_addr(asked.path.remote_gid),
            max_message_size: 0,
        })
    }

    fn accept_arrived(&self, core: &Core, ep: &Ep, event: &CmEvent<'_>, peer: ReadDepths, ia: &Ia) {
        core.ask_consumer(ep, event, peer, ia);
    }

    fn reject_code(&self, reason: Reason) -> RejectReason {
        match reason.0 {
            1 | 3 => RejectReason::Resources,
            10 => RejectReason::StaleConn,
            12..=17 | 24..=26 | 32 => RejectReason::BadPath,
            27 => RejectReason::BadOrd,
            _ => RejectReason::Other,
        }
    }
}

/// The handshake that the flags ask for.
fn handshake(flags: CnEstFlags) -> Result<Handshake> {
    match flags {
        CnEstFlags::TWO_WAY => Ok(Handshake::TwoWay),
        CnEstFlags::THREE_WAY => Ok(Handshake::ThreeWay),
        // Each REQ has IRD and ORD, so they cannot be suppressed.
        _ => Err(Error::InvalidCnEstFlags),
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
        let (timeout, retries) = attempts(timeout_us);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_the_table() {
        let reject_code = |reason| InfiniBand.reject_code(reason);
        assert_eq!(reject_code(Reason(10)), RejectReason::StaleConn);
        assert_eq!(reject_code(Reason(8)), RejectReason::Other);
        assert_eq!(reject_code(Reason(27)), RejectReason::BadOrd);
        assert_eq!(reject_code(Reason(26)), RejectReason::BadPath);
        assert_eq!(reject_code(Reason(3)), RejectReason::Resources);
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
        assert_eq!(handshake(CnEstFlags::TWO_WAY), Ok(Handshake::TwoWay));
        assert_eq!(handshake(CnEstFlags::THREE_WAY), Ok(Handshake::ThreeWay));
        for flags in [CnEstFlags::empty(), CnEstFlags::all(), CnEstFlags::from_bits_retain(9)] {
            assert_eq!(handshake(flags), Err(Error::InvalidCnEstFlags));
        }
    }
}
