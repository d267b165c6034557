//! Datagram endpoints among the objects of a run: how they are made, how their peers are found, and
//! what is sent.

use common::Trying;
use privileged_api::{
    AddrHandle, AhFlags, DgRemoteEpAddr, DtoCompletion, DtoFlags, EpAttributes, Path, RemoteEpInfo,
    UdAttributes, UdServiceReply, UdSvcReqHandle, UdSvcStatus,
};

use crate::net::Service;
use crate::objects::{Objects, Region};
use crate::{Failure, fail, net};

/// The bytes in front of a datagram, which say where it came from.
pub(crate) const HEADER: usize = 40;
/// The key of all endpoints: rdma_cm's `RDMA_UDP_QKEY`.
pub(crate) const KEY: u32 = 0x0123_4567;

/// What a datagram endpoint has beyond other ones.
#[derive(Default)]
pub(crate) struct Datagrams {
    /// The completion of the first datagram that arrived.
    pub first: Option<DtoCompletion>,
    /// Our request for the peer's endpoint, and its answer.
    pub asked: Option<UdSvcReqHandle>,
    pub reply: Option<UdServiceReply>,
    /// Where datagrams go.
    pub address: Option<AddrHandle>,
    pub peer: RemoteEpInfo,
}

impl Objects<'_> {
    /// Adds a datagram endpoint for `count` messages each way, of up to `size` bytes; returns its
    /// place among the connections.
    pub fn datagram_endpoint(&mut self, count: usize, size: usize) -> Result<usize, Failure> {
        let attributes = EpAttributes {
            max_dto_payload_size: size,
            max_request_dtos: count.max(1),
            max_recv_dtos: count.max(1),
            max_send_segments: 1,
            max_recv_segments: 1,
            ud: UdAttributes { ep_info: RemoteEpInfo { ud_ep_id: 0, ud_ep_key: KEY } },
            ..EpAttributes::default()
        };
        let (ia, transfers) = (self.ia, self.transfers);
        let ep = ia.ep_ud_create(self.pz, transfers, transfers, &attributes, net::spigot(self.ia)?.spigot_id);
        Ok(self.add(ep.trying("it_ep_ud_create")?))
    }

    /// How peers name the endpoint.
    pub fn info(&self, n: usize) -> Result<RemoteEpInfo, Failure> {
        let ud_ep_id = self.ia.ep_qpn(self.connections[n].ep).trying("the endpoint's ID")?;
        Ok(RemoteEpInfo { ud_ep_id, ud_ep_key: KEY })
    }

    /// Posts a Receive for one datagram into `length` bytes of a region.
    pub fn post_receive_from(
        &self,
        n: usize,
        into: &Region,
        offset: usize,
        length: usize,
    ) -> Result<(), Failure> {
        let (ep, segment) = (self.connections[n].ep, into.part(offset, length));
        // The cookie tells where the datagram is.
        self.ia.post_recvfrom(ep, &[segment], offset as u64, DtoFlags::COMPLETION).trying("it_post_recvfrom")
    }

    /// Asks a service for an endpoint. [`Objects::answered`] waits for the answer.
    pub fn ask(&mut self, n: usize, path: &Path, service: Service) -> Result<(), Failure> {
        let asked = self.ia.ud_service_request_handle_create(&service.qualifier(), self.messages, path, &[]);
        let asked = asked.trying("it_ud_service_request_handle_create")?;
        self.connections[n].datagrams.asked = Some(asked);
        self.ia.ud_service_request(asked).trying("it_ud_service_request")
    }

    /// Waits for the service's answer. From then on datagrams go to the endpoint that it names.
    pub fn answered(&mut self, n: usize, path: &Path) -> Result<(), Failure> {
        let reply = self.until(n, |connection| connection.datagrams.reply)?;
        match reply.status {
            UdSvcStatus::EpInfoValid => self.send_to(n, path, AhFlags::PATH_COMPLETE, reply.ep_info),
            UdSvcStatus::IdNotSupported => fail!("no server listens at this port"),
            refusal => fail!("the server refuses: {refusal:?}"),
        }
    }

    /// From now on datagrams go to the sender of the first one that arrived in this region.
    pub fn send_back(&mut self, n: usize, arrived: &Region) -> Result<(), Failure> {
        let Some(first) = self.connections[n].datagrams.first else { fail!("no datagram has arrived") };
        let mut header = [0; HEADER];
        arrived.buffer.read(first.cookie as usize, &mut header).trying("memory")?;
        let Some(path) = first.src_path(&header) else { fail!("a datagram does not say where it came from") };
        let sender = RemoteEpInfo { ud_ep_id: first.ud_ep_id, ud_ep_key: KEY };
        self.send_to(n, &path, AhFlags::empty(), sender)
    }

    fn send_to(&mut self, n: usize, path: &Path, flags: AhFlags, peer: RemoteEpInfo) -> Result<(), Failure> {
        let address = self.ia.address_handle_create(self.pz, path, flags);
        let datagrams = &mut self.connections[n].datagrams;
        datagrams.address = Some(address.trying("it_address_handle_create")?);
        datagrams.peer = peer;
        Ok(())
    }

    /// Posts a datagram of a whole region, with the sender's ID as immediate data.
    pub fn post_datagram(&self, n: usize, from: &Region) -> Result<(), Failure> {
        let connection = &self.connections[n];
        let Datagrams { address: Some(addr), peer, .. } = connection.datagrams else {
            fail!("no peer is known")
        };
        let to = DgRemoteEpAddr::IbUd { addr, ep_info: peer };
        let (segments, id) = (from.first(from.buffer.len()), self.info(n)?.ud_ep_id);
        self.ia
            .post_sendto_immediate(connection.ep, &segments, 0, DtoFlags::COMPLETION, &to, id)
            .trying("it_post_sendto")
    }
}
