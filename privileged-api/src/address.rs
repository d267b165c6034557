//! Names of nodes, services and memory as peers exchange them: network addresses, paths, connection
//! qualifiers, RDMA addresses and RMR contexts (pages it_net_addr_t, it_path_t, it_conn_qual_t,
//! it_make_rdma_addr_absolute, it_hton64, it_io_addr_t).

use kernel_agent::wire::{self, Gid, PKey, PathMtu, ServiceId, ip_cm};
use zerocopy::{Immutable, IntoBytes};

pub use rdma::PrivateData;

use crate::handle::AddrHandle;
use crate::private_data;

/// Packet lifetime on RoCE: 4.096 us * 2^14, 67 ms.
pub(crate) const PACKET_LIFETIME: u8 = 14;
/// The most bytes of private data that any message carries.
#[doc(alias = "IT_MAX_PRIV_DATA")]
pub const MAX_PRIV_DATA: usize = rdma::PrivateData::MAX;
/// The most bytes of private data of a connection request to an [`ConnQual::rdma_tcp`] qualifier.
pub const MAX_RDMA_CONNECT_DATA: usize = private_data::CONNECT - ip_cm::Repr::LEN;
/// The most bytes of private data of a UD service request to an [`ConnQual::rdma_udp`] qualifier.
pub const MAX_RDMA_UD_REQUEST_DATA: usize = private_data::UD_REQUEST - ip_cm::Repr::LEN;
/// The longest VIA connection discriminator.
#[doc(alias = "IT_MAX_VIA_DISC_LEN")]
pub const MAX_VIA_DISC_LEN: usize = 64;
/// The longest VIA host address.
#[doc(alias = "IT_MAX_VIA_ADDR_LEN")]
pub const MAX_VIA_ADDR_LEN: usize = 64;

/// A type of network address.
#[doc(alias = "it_net_addr_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NetAddrType {
    /// IPv4.
    Ipv4 = 1,
    /// IPv6.
    Ipv6 = 2,
    /// InfiniBand GID.
    IbGid = 3,
    /// VIA host address.
    ViaHostaddr = 4,
}

/// A network address: the name of a spigot. Bytes are in network order.
#[doc(alias = "it_net_addr_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetAddr {
    /// IPv4.
    Ipv4([u8; 4]),
    /// IPv6.
    Ipv6([u8; 16]),
    /// InfiniBand GID.
    IbGid([u8; 16]),
    /// VIA host address.
    ViaHostaddr(ViaNetAddr),
}

impl NetAddr {
    /// Its type.
    pub const fn addr_type(&self) -> NetAddrType {
        match self {
            NetAddr::Ipv4(_) => NetAddrType::Ipv4,
            NetAddr::Ipv6(_) => NetAddrType::Ipv6,
            NetAddr::IbGid(_) => NetAddrType::IbGid,
            NetAddr::ViaHostaddr(_) => NetAddrType::ViaHostaddr,
        }
    }
}

impl Default for NetAddr {
    fn default() -> NetAddr {
        NetAddr::IbGid([0; 16])
    }
}

/// A VIA host address.
#[doc(alias = "it_via_net_addr_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ViaNetAddr {
    /// Significant bytes.
    pub len: u16,
    /// The address.
    pub hostaddr: [u8; MAX_VIA_ADDR_LEN],
}

/// A connection qualifier: the name of a service on a spigot. Numbers are in network byte order;
/// [`ConnQual::port`], [`ConnQual::rdma_tcp`], [`ConnQual::rdma_udp`] and [`ConnQual::service_id`]
/// take host order.
///
/// A port has two names on the wire, and both sides must use the same one. [`ConnQual::port`] is
/// IT-API's: service ID 0x10000ce10000 and the port. [`ConnQual::rdma_tcp`] is the one that Linux's
/// rdma_cm uses (the IP CM service, InfiniBand annex A11): the request then also carries the IP
/// addresses of both ends, in 36 bytes in front of the private data. The stack adds them and takes
/// them off, so a consumer can send that much less: [`MAX_RDMA_CONNECT_DATA`] bytes with a
/// connection request, [`MAX_RDMA_UD_REQUEST_DATA`] with a UD service request.
#[doc(alias = "it_conn_qual_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnQual {
    /// TCP or UDP port number, network byte order.
    IanaPort(u16),
    /// InfiniBand service ID, network byte order.
    IbServiceId(u64),
    /// VIA connection discriminator.
    ViaDiscriminator(ViaDiscriminator),
    /// Local and remote port number, network byte order.
    IanaLrPort {
        /// The caller's port.
        local: u16,
        /// The service's port.
        remote: u16,
    },
}

impl ConnQual {
    /// The qualifier for a port number in host byte order.
    pub const fn port(port: u16) -> ConnQual {
        ConnQual::IanaPort(port.to_be())
    }

    /// The qualifier for a port of rdma_cm's port space `RDMA_PS_TCP`, in host byte order: a
    /// service with connections. An extension.
    pub const fn rdma_tcp(port: u16) -> ConnQual {
        ConnQual::service_id(ServiceId::ip_cm(ServiceId::TCP, port).0)
    }

    /// The qualifier for a port of rdma_cm's port space `RDMA_PS_UDP`, in host byte order: a UD
    /// service. An extension.
    pub const fn rdma_udp(port: u16) -> ConnQual {
        ConnQual::service_id(ServiceId::ip_cm(ServiceId::UDP, port).0)
    }

    /// The qualifier for a service ID in host byte order.
    pub const fn service_id(id: u64) -> ConnQual {
        ConnQual::IbServiceId(id.to_be())
    }

    /// The service ID, in host byte order, that stands for the qualifier on the wire; `None` if it
    /// has none. An extension.
    pub const fn to_service_id(&self) -> Option<u64> {
        match self {
            ConnQual::IanaPort(port) => Some(ServiceId::it_api(u16::from_be(*port)).0),
            ConnQual::IbServiceId(id) => Some(u64::from_be(*id)),
            ConnQual::ViaDiscriminator(_) | ConnQual::IanaLrPort { .. } => None,
        }
    }
}

impl Default for ConnQual {
    fn default() -> ConnQual {
        ConnQual::IbServiceId(0)
    }
}

/// A VIA connection discriminator.
#[doc(alias = "it_via_discriminator_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ViaDiscriminator {
    /// Significant bytes.
    pub len: u16,
    /// The discriminator.
    pub discriminator: [u8; MAX_VIA_DISC_LEN],
}

/// The InfiniBand part of a path.
#[doc(alias = "it_ib_net_endpoint_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct IbNetEndpoint {
    /// Partition key.
    pub partition_key: u16,
    /// Path MTU, as the REQ message codes it: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// Packet lifetime: 4.096 us * 2^n.
    pub packet_lifetime: u8,
    /// Local port LID; 0 on RoCE.
    pub local_port_lid: u16,
    /// Remote port LID; 0 on RoCE.
    pub remote_port_lid: u16,
    /// Local port GID.
    pub local_port_gid: [u8; 16],
    /// Remote port GID.
    pub remote_port_gid: [u8; 16],
    /// Packet rate.
    pub packet_rate: u8,
    /// Service level.
    pub sl: u8,
    /// Whether the peer is on the same subnet, so that no GRH is needed.
    pub subnet_local: bool,
    /// Flow label; only if not `subnet_local`.
    pub flow_label: u32,
    /// Traffic class; only if not `subnet_local`.
    pub traffic_class: u8,
    /// Hop limit; only if not `subnet_local`.
    pub hop_limit: u8,
}

impl IbNetEndpoint {
    /// A path as InfiniBand describes it, with RoCE's packet lifetime.
    pub(crate) fn new(path: &wire::Path, pkey: PKey, mtu: PathMtu) -> IbNetEndpoint {
        IbNetEndpoint {
            partition_key: pkey.0,
            path_mtu: mtu.code(),
            packet_lifetime: PACKET_LIFETIME,
            local_port_lid: 0,
            remote_port_lid: 0,
            local_port_gid: path.local_gid.0,
            remote_port_gid: path.remote_gid.0,
            packet_rate: path.packet_rate,
            sl: path.sl,
            subnet_local: path.subnet_local,
            flow_label: path.flow_label,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
        }
    }

    /// The path as the agent takes it.
    pub(crate) fn path(&self) -> wire::Path {
        wire::Path {
            local_gid: Gid(self.local_port_gid),
            remote_gid: Gid(self.remote_port_gid),
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl,
            packet_rate: self.packet_rate,
            subnet_local: self.subnet_local,
        }
    }

    /// Whether each member fits into its bits (it_path_t).
    pub(crate) fn fits(&self) -> bool {
        self.path_mtu < 1 << 4
            && self.packet_lifetime < 1 << 6
            && self.packet_rate <= wire::Path::MAX_PACKET_RATE
            && self.sl <= wire::Path::MAX_SL
            && self.flow_label <= wire::Path::MAX_FLOW_LABEL
    }
}

/// The iWARP part of a path.
#[doc(alias = "it_iwarp_net_endpoint_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IwarpNetEndpoint {
    /// Both addresses are IPv4.
    Ipv4 {
        /// Local.
        laddr: [u8; 4],
        /// Remote.
        raddr: [u8; 4],
    },
    /// Both addresses are IPv6.
    Ipv6 {
        /// Local.
        laddr: [u8; 16],
        /// Remote.
        raddr: [u8; 16],
    },
}

impl IwarpNetEndpoint {
    /// Between the nodes with these GIDs.
    pub(crate) fn between(local: Gid, remote: Gid) -> IwarpNetEndpoint {
        match (local.to_ipv4(), remote.to_ipv4()) {
            (Some(local), Some(remote)) => {
                IwarpNetEndpoint::Ipv4 { laddr: local.octets(), raddr: remote.octets() }
            }
            _ => IwarpNetEndpoint::Ipv6 { laddr: local.0, raddr: remote.0 },
        }
    }

    /// The GIDs of the local and of the remote node.
    pub(crate) fn gids(&self) -> (Gid, Gid) {
        match *self {
            IwarpNetEndpoint::Ipv4 { laddr, raddr } => {
                (Gid::from_ipv4(laddr.into()), Gid::from_ipv4(raddr.into()))
            }
            IwarpNetEndpoint::Ipv6 { laddr, raddr } => (Gid(laddr), Gid(raddr)),
        }
    }
}

/// The part of a path that depends on the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetEndpoint {
    /// InfiniBand.
    Ib(IbNetEndpoint),
    /// VIA.
    Via(ViaNetAddr),
    /// iWARP.
    Iwarp(IwarpNetEndpoint),
}

impl Default for NetEndpoint {
    fn default() -> NetEndpoint {
        NetEndpoint::Ib(IbNetEndpoint::default())
    }
}

/// A path between two spigots, as [`Ia::get_pathinfo`](crate::Ia::get_pathinfo) finds it.
#[doc(alias = "it_path_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Path {
    /// The local spigot.
    pub spigot_id: usize,
    /// How long a connection establishment may take, microseconds.
    pub timeout: u64,
    /// The part that depends on the transport.
    pub remote: NetEndpoint,
}

impl Path {
    /// The InfiniBand part, if the path has one.
    pub const fn ib(&self) -> Option<&IbNetEndpoint> {
        match &self.remote {
            NetEndpoint::Ib(ib) => Some(ib),
            _ => None,
        }
    }

    /// The InfiniBand part for changes, if the path has one.
    pub const fn ib_mut(&mut self) -> Option<&mut IbNetEndpoint> {
        match &mut self.remote {
            NetEndpoint::Ib(ib) => Some(ib),
            _ => None,
        }
    }
}

/// Connection attributes of the InfiniBand transport, as the REQ message codes them.
#[doc(alias = "it_conn_attributes_t")]
#[doc(alias = "it_ib_conn_attributes_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnAttributes {
    /// Remote CM response timeout: 4.096 us * 2^n, 5 bits.
    pub remote_cm_timeout: u8,
    /// Local CM response timeout: 4.096 us * 2^n, 5 bits.
    pub local_cm_timeout: u8,
    /// Retry count, 3 bits.
    pub retry_count: u8,
    /// RNR retry count, 3 bits; 7 is without limit.
    pub rnr_retry_count: u8,
    /// Retries of a CM message, 4 bits.
    pub max_cm_retries: u8,
    /// Local ACK timeout: 4.096 us * 2^n, 5 bits.
    pub local_ack_timeout: u8,
}

impl Default for ConnAttributes {
    fn default() -> ConnAttributes {
        ConnAttributes {
            remote_cm_timeout: 18,
            local_cm_timeout: 18,
            retry_count: 7,
            rnr_retry_count: 6,
            max_cm_retries: 7,
            local_ack_timeout: 16,
        }
    }
}

/// The identifier of a pending connection establishment.
#[doc(alias = "it_cn_est_identifier_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CnEstId(pub u64);

/// Names a remote datagram endpoint.
#[doc(alias = "it_remote_ep_info_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RemoteEpInfo {
    /// Endpoint ID (QP number).
    pub ud_ep_id: u32,
    /// Endpoint key (Q_Key).
    pub ud_ep_key: u32,
}

/// The destination of a datagram.
#[doc(alias = "it_dg_remote_ep_addr_t")]
#[doc(alias = "it_dg_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DgRemoteEpAddr {
    /// InfiniBand's unreliable datagrams, the only type.
    #[doc(alias = "IT_DG_TYPE_IB_UD")]
    #[doc(alias = "it_ib_ud_addr_t")]
    IbUd {
        /// The address handle of its node.
        addr: AddrHandle,
        /// The endpoint there.
        ep_info: RemoteEpInfo,
    },
}

/// An I/O address: a bus address that the NIC can reach.
#[doc(alias = "it_io_addr_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct IoAddr(pub u64);

/// The remote address of an RDMA operation, in network byte order.
#[doc(alias = "it_rdma_addr_t")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RdmaAddr(pub u64);

impl RdmaAddr {
    /// The address in host byte order.
    #[inline(always)]
    pub const fn to_host(self) -> u64 {
        ntoh64(self.0)
    }
}

impl core::fmt::Debug for RdmaAddr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RdmaAddr({:#x})", self.to_host())
    }
}

/// The key by which a peer reaches a region, in network byte order.
#[doc(alias = "it_rmr_context_t")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RmrContext(pub u32);

impl RmrContext {
    /// The context of a key in host byte order.
    #[inline(always)]
    pub(crate) const fn from_key(key: u32) -> RmrContext {
        RmrContext(key.to_be())
    }

    /// The key in host byte order.
    #[inline(always)]
    pub(crate) const fn key(self) -> u32 {
        u32::from_be(self.0)
    }
}

impl core::fmt::Debug for RmrContext {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RmrContext({:#010x})", self.key())
    }
}

/// Makes the RDMA address of a local address, for a region with absolute addressing. Checks nothing
/// and always succeeds.
#[doc(alias = "it_make_rdma_addr_absolute")]
pub const fn make_rdma_addr_absolute(addr: usize) -> RdmaAddr {
    RdmaAddr(hton64(addr as u64))
}

/// Makes the RDMA address of an offset, for a region with relative addressing. Checks nothing and
/// always succeeds.
#[doc(alias = "it_make_rdma_addr_relative")]
pub const fn make_rdma_addr_relative(offset: u64) -> RdmaAddr {
    RdmaAddr(hton64(offset))
}

/// Host to network byte order.
#[doc(alias = "it_hton64")]
#[inline(always)]
pub const fn hton64(hostint: u64) -> u64 {
    hostint.to_be()
}

/// Network to host byte order.
#[doc(alias = "it_ntoh64")]
#[inline(always)]
pub const fn ntoh64(netint: u64) -> u64 {
    u64::from_be(netint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_words_are_in_host_byte_order() {
        assert_eq!(alloc::format!("{:?}", RdmaAddr(0x1234_u64.to_be())), "RdmaAddr(0x1234)");
        assert_eq!(alloc::format!("{:?}", RmrContext::from_key(0x1234)), "RmrContext(0x00001234)");
    }

    #[test]
    fn each_address_has_its_type() {
        let via = ViaNetAddr { len: 1, hostaddr: [7; MAX_VIA_ADDR_LEN] };
        for (address, kind) in [
            (NetAddr::Ipv4([10, 0, 0, 1]), NetAddrType::Ipv4),
            (NetAddr::Ipv6([1; 16]), NetAddrType::Ipv6),
            (NetAddr::IbGid([1; 16]), NetAddrType::IbGid),
            (NetAddr::ViaHostaddr(via), NetAddrType::ViaHostaddr),
        ] {
            assert_eq!(address.addr_type(), kind);
        }
        let mut path = Path { remote: NetEndpoint::Via(via), ..Path::default() };
        assert_eq!(path.ib(), None);
        assert_eq!(path.ib_mut(), None);
    }

    #[test]
    fn ports_of_rdma_cm_are_services_of_its_two_port_spaces() {
        let service = |id: u64| ConnQual::IbServiceId(id.to_be());
        assert_eq!(ConnQual::rdma_tcp(0x1148), service(0x0106_1148));
        assert_eq!(ConnQual::rdma_udp(0x1148), service(0x0111_1148));
    }
}
