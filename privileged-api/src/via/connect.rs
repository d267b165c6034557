//! Making connections of virtual interfaces (pages it_ep_connect, it_ep_accept, it_cm_msg_events).
//!
//! VIA's handshake has two ways: a request and an accept. Each end tells the other the longest
//! message of its endpoint, and both look whether it is theirs: the passive end when it accepts,
//! the active end before it confirms the accept. So the agent's handshake is the one of three ways,
//! of which consumers see nothing.

use core::time::Duration;

use kernel_agent::wire::{Gid, PathMtu, ReadDepths, Reason};
use kernel_agent::{CmEvent, ConnectParams};
use rdma::via::{Digest, Discriminator, Offer, REP_LEN, REQ_LEN, Request};

use super::LEVEL;
use super::names::{discriminator, gid_of_host, host_address};
use crate::address::{ConnQual, NetAddr, NetEndpoint, Path};
use crate::attributes::EpAttributes;
use crate::cm::nonpeer;
use crate::ep::connect::fit;
use crate::evd::callback::Origin;
use crate::event::{ConnRequest, RejectReason};
use crate::flags::CnEstFlags;
use crate::ia::{Core, Ia, SPIGOT};
use crate::objects::ep::Ep;
use crate::objects::listen::Listen;
use crate::path::DEFAULT_TIMEOUT_US;
use crate::status::{Error, Result};

/// What a connection is asked for with.
pub(crate) struct Asking {
    pub(crate) params: ConnectParams,
    asked: Digest,
}

impl Asking {
    /// The private data of the request of an endpoint.
    pub(crate) fn private_data(&self, attr: &EpAttributes) -> [u8; REQ_LEN] {
        // The consumer has no discriminator of its own.
        Request { offer: offer(attr), own: Discriminator::EMPTY, asked: self.asked }.encode()
    }
}

/// What an endpoint is to its peer. All endpoints have the same level and best effort.
fn offer(attr: &EpAttributes) -> Offer {
    Offer {
        level: LEVEL,
        priority: 0,
        // Checked when the endpoint got it.
        max_transfer: attr.max_dto_payload_size as u32,
        accepts_write: attr.rc.rdma_write_enable,
        accepts_read: attr.rc.rdma_read_enable,
    }
}

/// Whether an endpoint of an IA can fit this peer, if its consumer chooses the longest message.
fn can_fit(peer: &Offer) -> bool {
    let own = Offer { max_transfer: peer.max_transfer, ..offer(&EpAttributes::default()) };
    own.agrees(peer).is_ok()
}

/// The private data of the accept of an endpoint. Fails if it does not fit a peer with this longest
/// message.
pub(crate) fn reply(attr: &EpAttributes, peers_longest: u32) -> Result<[u8; REP_LEN]> {
    let own = offer(attr);
    if own.max_transfer == peers_longest { Ok(own.encode()) } else { Err(Error::InvalidEpAttr) }
}

/// The reason of a rejection that was not the peer's consumer's (it_cm_msg_events, table for VIA).
pub(crate) fn reject_code(reason: Reason) -> RejectReason {
    match reason.0 {
        1 | 3 => RejectReason::Resources,
        _ => RejectReason::Other,
    }
}

impl Core {
    /// Checks the arguments of it_ep_connect. VIA has neither connection attributes nor read
    /// depths that could be suppressed.
    pub(crate) fn ask_via(&self, path: &Path, qualifier: &ConnQual, flags: CnEstFlags) -> Result<Asking> {
        if flags.difference(CnEstFlags::SUPPRESS_IRD_ORD) != CnEstFlags::TWO_WAY {
            return Err(Error::InvalidCnEstFlags);
        }
        if path.spigot_id != SPIGOT {
            return Err(Error::InvalidSpigot);
        }
        let NetEndpoint::Via(host) = &path.remote else { return Err(Error::InvalidSourcePath) };
        let id = self.agent().identity();
        let route =
            gid_of_host(host).and_then(|gid| rdma::path_to(id, gid)).ok_or(Error::InvalidSourcePath)?;
        let asked = Digest::of(&discriminator(qualifier)?);
        let (timeout, retries) = fit(path.timeout);
        let params = ConnectParams {
            path_mtu: PathMtu::at_most(id.mtu),
            timeout: Some(Duration::from_micros(path.timeout)),
            remote_cm_timeout: timeout,
            local_cm_timeout: timeout,
            max_cm_retries: retries,
            depths: self.via_depths(),
            ..ConnectParams::new(route, asked.service())
        };
        Ok(Asking { params, asked })
    }

    /// VIA has no limits of RDMA Reads, so both ends offer what the NIC has.
    pub(crate) fn via_depths(&self) -> ReadDepths {
        let most = self.agent().identity().max_rd_atomic.min(u8::MAX.into()) as u8;
        ReadDepths { responder_resources: most, initiator_depth: most }
    }

    /// A peer asks for a connection. In the dispatcher thread.
    ///
    /// A level and a quality that no endpoint here can have are rejected as a transport service
    /// that is not offered, which is what the agent does with the unreliable level: the consumer
    /// could only reject the request.
    pub(crate) fn requested_via(&self, event: &CmEvent<'_>, remote: Gid, listen: &Listen, ia: &Ia) {
        // A discriminator whose service is that of another one has no listener either.
        let here = discriminator(&listen.qual).map(|name| Digest::of(&name));
        let decoded = Request::decode(event.private_data, listen.service);
        let Some(Request { offer, .. }) = decoded.filter(|request| here == Ok(request.asked)) else {
            return self.no_listen_point(event.connection);
        };
        if !can_fit(&offer) {
            return self.reject_request(event.connection, Reason::INVALID_TRANSPORT_SERVICE);
        }
        let host = host_address(remote);
        let request = ConnRequest {
            evd: listen.feed.handle,
            cn_est_id: Default::default(),
            conn_qual: listen.qual,
            source_addr: NetAddr::ViaHostaddr(host),
            spigot_id: SPIGOT,
            max_message_size: offer.max_transfer,
            rdma_read_ird: 0,
            rdma_read_ord: 0,
            private_data: None,
        };
        let path = Path { spigot_id: SPIGOT, timeout: DEFAULT_TIMEOUT_US, remote: NetEndpoint::Via(host) };
        self.request(event.connection, path, request, listen, Origin::Dispatcher(ia));
    }

    /// The passive end has accepted. Confirms that, unless it does not fit, and then rejects it. In
    /// the dispatcher thread.
    pub(crate) fn accepted_via(&self, ep: &Ep, event: &CmEvent<'_>, peer: ReadDepths, ia: &Ia) {
        let connection = event.connection;
        let Ok(client) = self.client() else { return };
        let Some(attr) = ep.concerned(connection).map(|control| control.attr) else { return };
        let fits = Offer::decode(event.private_data).is_some_and(|peer| offer(&attr).agrees(&peer).is_ok());
        let depth = self.via_depths().initiator_depth.min(peer.responder_resources);
        let confirmed = match fits {
            true => client.establish(connection, depth, &[]),
            false => client.reject(connection, &[]).and(Err(kernel_agent::Error::Foreign)),
        };
        match confirmed {
            // In the latter case the attempt is over, and its event follows.
            Ok(()) | Err(kernel_agent::Error::ConnectionState) => {}
            Err(_) => {
                let result = nonpeer(ep, RejectReason::Other);
                self.not_established(ep, connection, result, Origin::Dispatcher(ia));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kernel_agent::Reliability;

    use super::*;

    #[test]
    fn reasons_are_those_of_the_table() {
        for reason in 0..=40 {
            let expected =
                if matches!(reason, 1 | 3) { RejectReason::Resources } else { RejectReason::Other };
            assert_eq!(reject_code(Reason(reason)), expected, "{reason}");
        }
    }

    #[test]
    fn an_endpoint_can_have_each_longest_message_one_level_and_no_priority() {
        let good = Offer { max_transfer: 12345, ..offer(&EpAttributes::default()) };
        assert!(can_fit(&good));
        assert!(can_fit(&Offer { max_transfer: u32::MAX, accepts_read: true, accepts_write: true, ..good }));
        assert!(!can_fit(&Offer { priority: 1, ..good }));
        for level in [Reliability::Unreliable, Reliability::Delivery] {
            assert!(!can_fit(&Offer { level, ..good }));
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
