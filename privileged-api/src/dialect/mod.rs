//! What differs by the transport of an IA: the columns of the pages' tables.
//!
//! Each IA has one dialect, from its interface. What a value can say is in [`Facts`], the rest are
//! routines. Calls that post and calls that take events do not ask the dialect.

pub(crate) mod infiniband;

use kernel_agent::wire::{self, Gid, PKey, PathMtu, ReadDepths, Reason};
use kernel_agent::{CmEvent, ConnectParams, Features, Handshake, Identity, QpType, Transports};
use rdma::via::{REP_LEN, REQ_LEN};

use crate::address::{ConnAttributes, ConnQual, NetAddr, NetAddrType, NetEndpoint, Path, PrivateData};
use crate::attributes::EpAttributes;
use crate::event::{ConnRequest, RejectReason};
use crate::flags::{CnEstFlags, ConnQualTypes};
use crate::ia::{Core, Ia};
use crate::info::{TransportType, Vendor};
use crate::objects::ep::Ep;
use crate::status::Result;

/// The most bytes of private data that a consumer sends by each call; 0 if none.
pub(crate) struct PrivateDataLimits {
    pub(crate) connect: usize,
    pub(crate) accept: usize,
    pub(crate) reject: usize,
    pub(crate) disconnect: usize,
    pub(crate) ud_request: usize,
    pub(crate) ud_reply: usize,
}

/// What a value can say of a dialect.
pub(crate) struct Facts {
    pub(crate) transport_type: TransportType,
    /// What the NIC has to have.
    pub(crate) needs: Features,
    /// What IAs can have of the NIC's other features.
    pub(crate) offers: Features,
    /// The type of queue pair of an RC endpoint. None: it has a virtual interface.
    pub(crate) queue_pair: Option<QpType>,
    /// Which connections listen points listen for.
    pub(crate) transports: Transports,
    pub(crate) private_data: PrivateDataLimits,
    /// Whether a message has the field of private data also if its sender has sent none. Then
    /// zeroes count as none.
    pub(crate) private_data_is_padded: bool,
    /// Whether consumers choose, and peers tell each other, how many RDMA Reads are in progress.
    pub(crate) read_depths: bool,
    pub(crate) three_way_handshake: bool,
    /// Whether the longest messages of both ends have to be equal.
    pub(crate) equal_message_sizes: bool,
    /// Why an accept came to nothing that the peer never confirmed.
    pub(crate) unconfirmed: RejectReason,
    /// Whether requests can carry immediate data, and be markers (extensions of the API).
    pub(crate) immediate_data: bool,
    /// Whether there are events about the port.
    pub(crate) port_events: bool,
    /// Whether an EVD finds that its completions overflow.
    pub(crate) finds_overflow: bool,
    /// Qualifiers of services, on the side that connects.
    pub(crate) active_qualifiers: ConnQualTypes,
    /// Qualifiers of services, on the side that listens.
    pub(crate) passive_qualifiers: ConnQualTypes,
    /// Whether the memory that an RDMA Read fills counts as written by the peer.
    pub(crate) reads_write_remotely: bool,
    /// Whether the unlink of a wide RMR can have an unlink fence.
    pub(crate) fences_wide_unlinks: bool,
    /// Whether links of RMRs have InfiniBand's two rules (it_rmr_link): remote write needs the
    /// LMR's local write, and a narrow RMR that is linked to no bytes fails by its completion.
    pub(crate) infinibands_links: bool,
    /// Whether endpoints and sockets can be converted to connections.
    pub(crate) sockets: bool,
}

/// See the module's documentation.
pub(crate) trait Dialect: Sync {
    fn facts(&self) -> &'static Facts;

    /// The vendor's part of the IA's attributes.
    fn vendor(&self, core: &Core) -> Vendor;

    /// The GID of an address that is none of IP: `InvalidNetaddr` for a type that the transport
    /// does not have, `InvalidAddress` if no node can have the address.
    fn own_gid(&self, addr: &NetAddr) -> Result<Gid>;

    /// The address of a node as the transport names it.
    fn net_addr(&self, gid: Gid) -> NetAddr;

    /// The address of a node as an address of a type that is none of IP; `InvalidConversion` if
    /// the transport does not have the type.
    fn own_net_addr(&self, gid: Gid, addr_type: NetAddrType) -> Result<NetAddr>;

    /// What a path to a node has; `asked` is how the consumer named the node.
    fn net_endpoint(&self, id: &Identity, route: &wire::Path, asked: &NetAddr) -> NetEndpoint;

    /// The service that a qualifier names.
    fn service(&self, qualifier: &ConnQual) -> Result<wire::ServiceId>;

    /// The port that a qualifier names, whatever the form of the name.
    fn port(&self, qualifier: &ConnQual) -> Result<Option<u16>>;

    /// Checks the arguments of it_ep_connect, in its order. The parameters are whole but for the
    /// read depths.
    fn ask(
        &self,
        core: &Core,
        path: &Path,
        attributes: Option<&ConnAttributes>,
        qualifier: &ConnQual,
        flags: CnEstFlags,
    ) -> Result<(ConnectParams, Handshake)>;

    /// The read depths of an endpoint.
    fn depths(&self, _core: &Core, attr: &EpAttributes) -> ReadDepths {
        attr.rc.read_depths()
    }

    /// The private data of an endpoint's request for this service, if it is not the consumer's.
    fn own_request(&self, _qualifier: &ConnQual, _attr: &EpAttributes) -> Option<[u8; REQ_LEN]> {
        None
    }

    /// The private data of an endpoint's accept, if it is not the consumer's. Fails with
    /// `InvalidEpAttr` if the endpoint does not fit the request.
    fn own_reply(&self, attr: &EpAttributes, asked: &ConnRequest) -> Result<Option<[u8; REP_LEN]>>;

    /// What of the event of a peer's request differs. `Err`: no consumer learns of the request,
    /// which is rejected for this reason.
    fn requested(&self, asked: &Asked<'_>) -> core::result::Result<Requested, Reason>;

    /// Handles the peer's accept in a handshake of three ways. In the dispatcher thread.
    fn accept_arrived(&self, core: &Core, ep: &Ep, event: &CmEvent<'_>, peer: ReadDepths, ia: &Ia);

    /// Why the connection was rejected, other than by the peer's consumer (it_cm_msg_events).
    fn reject_code(&self, reason: Reason) -> RejectReason;
}

/// A peer's request for a connection as the agent reports it.
pub(crate) struct Asked<'a> {
    /// The qualifier of the listen point, and its service.
    pub(crate) qualifier: &'a ConnQual,
    pub(crate) service: wire::ServiceId,
    /// The path of the answer.
    pub(crate) path: wire::Path,
    pub(crate) path_mtu: PathMtu,
    pub(crate) pkey: PKey,
    pub(crate) private_data: &'a [u8],
}

/// What of a request differs by the transport.
pub(crate) struct Requested {
    pub(crate) remote: NetEndpoint,
    pub(crate) source_addr: NetAddr,
    /// 0 unless the longest messages have to be equal.
    pub(crate) max_message_size: u32,
}

impl Facts {
    /// Private data as events carry it. Where consumers send none, what comes is the stack's own.
    pub(crate) fn received(&self, private_data: &[u8]) -> Option<PrivateData> {
        let present = self.has_private_data()
            && match self.private_data_is_padded {
                true => private_data.iter().any(|&byte| byte != 0),
                false => !private_data.is_empty(),
            };
        present.then(|| PrivateData::new(private_data))
    }

    /// Read depths as events show them.
    pub(crate) fn shown(&self, depths: ReadDepths) -> ReadDepths {
        if self.read_depths { depths } else { ReadDepths::default() }
    }

    /// Whether messages carry private data.
    pub(crate) fn has_private_data(&self) -> bool {
        self.private_data.connect > 0
    }

    /// Whether the RC endpoints are virtual interfaces.
    pub(crate) fn has_virtual_interfaces(&self) -> bool {
        self.queue_pair.is_none()
    }
}
