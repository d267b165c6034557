//! Datagram endpoints: how one resolves a remote one, on the asking and on the answering side (the
//! usage model of the InfiniBand extensions).
//!
//! The request is an InfiniBand SIDR_REQ, whose private data begins with a header of 12 bytes:
//! "DAT2", then the number and the Q_Key of the asking endpoint's queue pair, in network byte
//! order. With them the answering side can send before it receives anything. A peer that sends no
//! header, such as Linux's rdma_cm, gets an answer as well, but its endpoint is not known: the
//! number in the event is 0.

use alloc::sync::Arc;

use privileged_api as it;

use crate::IaAddress;
use crate::cm::{Asked, Cr, Resolving};
use crate::ep::{Ep, Remote, wrong};
use crate::error::{handle, of, parameter, resources, state};
use crate::evd::Made;
use crate::event::*;
use crate::flags::EpState;
use crate::handle::{AhHandle, EpHandle, EvdHandle};
use crate::ia::{Ia, Inner};
use crate::ret::{Result, Subtype};

const MAGIC: [u8; 4] = *b"DAT2";
/// Bytes of the header.
const HEADER: usize = 12;
/// The most private data of a SIDR_REQ.
const LONGEST: usize = 216;

/// The private data of a request: the header, then the consumer's.
fn with_header(from: it::RemoteEpInfo, private_data: &[u8]) -> Result<([u8; LONGEST], usize)> {
    let len = HEADER + private_data.len();
    let mut bytes = [0; LONGEST];
    let place = bytes.get_mut(HEADER..len).ok_or(parameter(Subtype::InvalidArg5))?;
    place.copy_from_slice(private_data);
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&from.ud_ep_id.to_be_bytes());
    bytes[8..HEADER].copy_from_slice(&from.ud_ep_key.to_be_bytes());
    Ok((bytes, len))
}

/// The asking endpoint and the consumer's private data.
fn without_header(data: Option<it::PrivateData>) -> (it::RemoteEpInfo, Option<it::PrivateData>) {
    let Some(header) = data.as_ref().and_then(|data| data.first_chunk::<HEADER>()) else {
        return (it::RemoteEpInfo::default(), data);
    };
    let [m0, m1, m2, m3, n0, n1, n2, n3, k0, k1, k2, k3] = *header;
    if [m0, m1, m2, m3] != MAGIC {
        return (it::RemoteEpInfo::default(), data);
    }
    let peer = it::RemoteEpInfo {
        ud_ep_id: u32::from_be_bytes([n0, n1, n2, n3]) & 0xff_ffff,
        ud_ep_key: u32::from_be_bytes([k0, k1, k2, k3]),
    };
    let rest = data.as_deref().and_then(|data| data.get(HEADER..)).unwrap_or_default();
    let has_data = rest.iter().any(|byte| *byte != 0);
    (peer, has_data.then(|| it::PrivateData::new(rest)))
}

fn mapped(address: IaAddress) -> core::net::Ipv6Addr {
    match address {
        IaAddress::V4(v4) => v4.to_ipv6_mapped(),
        IaAddress::V6(v6) => v6,
    }
}

fn extension(ext_type: IbExtType, status: IbStatus, remote_ah: IbAddrHandle) -> IbExtensionEventData {
    IbExtensionEventData { ext_type, status, immed: 0, remote_ah }
}

impl Inner {
    /// Fails unless a datagram endpoint can resolve a remote one.
    fn can_resolve(&self, ep: &Ep, now: EpState) -> Result<()> {
        if !matches!(now, EpState::Unconnected | EpState::ActiveConnectionPending | EpState::Connected) {
            return Err(wrong(now));
        }
        ep.control.lock().is_ready()
    }

    fn own_info(&self, ep: &Ep) -> Result<it::RemoteEpInfo> {
        let mask = it::EpParamMask::EP_ID | it::EpParamMask::EP_KEY;
        Ok(self.it.ep_query(ep.handle.inner(), mask)?.attr.ud.ep_info)
    }

    /// Creates an address handle, which is then one of the endpoint's.
    fn new_address(&self, ep: &Ep, path: &it::Path) -> Result<it::AddrHandle> {
        let pz = {
            let mut control = ep.control.lock();
            control.datagrams.addresses.try_reserve(1)?;
            control.pz
        };
        let address = self.it.address_handle_create(pz.inner(), path, it::AhFlags::PATH_COMPLETE)?;
        ep.control.lock().datagrams.addresses.push(address);
        Ok(address)
    }

    fn free_address(&self, ep: Option<&Ep>, address: it::AddrHandle) {
        if let Some(ep) = ep {
            ep.control.lock().datagrams.addresses.retain(|one| *one != address);
        }
        let _ = self.it.address_handle_free(address);
    }

    /// Asks a service for its datagram endpoint. The caller holds the endpoint's `turn`.
    pub(crate) fn resolve(
        &self,
        ep: &Ep,
        now: EpState,
        remote: Remote,
        path: &it::Path,
        qualifier: &it::ConnQual,
        private_data: &[u8],
    ) -> Result<()> {
        self.can_resolve(ep, now)?;
        let (bytes, len) = with_header(self.own_info(ep)?, private_data)?;
        let evd = ep.control.lock().connect;
        let found = self.evd(evd, Subtype::InvalidHandleEvdConn)?;
        let messages = found.messages().ok_or(handle(Subtype::InvalidHandleEvdConn))?;
        ep.control.lock().datagrams.asked.try_reserve(1)?;
        let data = bytes.get(..len).unwrap_or_default();
        let request = self.it.ud_service_request_handle_create(qualifier, messages, path, data);
        let request = request.map_err(|error| match error {
            it::Error::InvalidPdataLength => parameter(Subtype::InvalidArg5),
            other => of(other),
        })?;
        let asked = self.new_address(ep, path).and_then(|address| {
            let resolving = Resolving { ep: ep.handle, address, remote: remote.address };
            self.resolving.lock().insert(request.as_raw(), resolving);
            {
                let mut control = ep.control.lock();
                control.datagrams.asked.push(request);
                control.remote = Some(remote);
            }
            self.it.ud_service_request_reported(request).map_err(of).inspect_err(|_| {
                self.resolving.lock().remove(&request.as_raw());
                ep.control.lock().datagrams.asked.retain(|one| *one != request);
                self.free_address(Some(ep), address);
            })
        });
        asked.inspect_err(|_| {
            let _ = self.it.ud_service_request_handle_free(request);
        })
    }

    /// The event of an answer. `None` if the endpoint has given up the request.
    pub(crate) fn resolved(&self, evd: EvdHandle, reply: &it::UdServiceReply) -> Option<Event> {
        let asked = self.resolving.lock().remove(&reply.ud_svc.as_raw())?;
        let _ = self.it.ud_service_request_handle_free(reply.ud_svc);
        let ep = self.eps.get(asked.ep)?;
        let valid = reply.status == it::UdSvcStatus::EpInfoValid;
        {
            let mut control = ep.control.lock();
            control.datagrams.asked.retain(|one| *one != reply.ud_svc);
            control.datagrams.connected |= valid;
            self.configs.set(ep.handle, &control);
        }
        let (event_number, extension) = match reply.status {
            it::UdSvcStatus::EpInfoValid => {
                let remote_ah = IbAddrHandle {
                    ah: AhHandle::of(asked.address),
                    qpn: reply.ep_info.ud_ep_id,
                    qkey: reply.ep_info.ud_ep_key,
                    ia_addr: mapped(asked.remote),
                };
                let extension = extension(IbExtType::UdRemoteAh, IbStatus::Success, remote_ah);
                (EventNumber::IB_UD_CONNECTION_ESTABLISHED, extension)
            }
            it::UdSvcStatus::Rejected => {
                let extension = extension(IbExtType::UdConnectReject, IbStatus::Err, IbAddrHandle::NONE);
                (EventNumber::IB_UD_CONNECTION_REJECT, extension)
            }
            _ => {
                let extension = extension(IbExtType::UdConnectError, IbStatus::Err, IbAddrHandle::NONE);
                (EventNumber::IB_UD_CONNECTION_ERROR, extension)
            }
        };
        if !valid {
            self.free_address(Some(&ep), asked.address);
        }
        let connection = Connection { ep_handle: asked.ep, private_data: reply.private_data };
        Some(Event {
            event_number,
            evd_handle: evd,
            event_data: EventData::Connection(connection),
            extension: Some(extension),
        })
    }

    /// The event of a request for a datagram endpoint. `None` if no consumer can answer it.
    pub(crate) fn ud_requested(&self, evd: EvdHandle, request: &it::UdServiceRequest) -> Option<Event> {
        let it::NetAddr::IbGid(gid) = request.source_addr else { return None };
        let (peer, private_data) = without_header(request.private_data);
        let asked = Asked::Datagrams { id: request.ud_svc_req_id, peer };
        let conn_qual = crate::cm::number(request.conn_qual);
        let made = self.new_cr(asked, gid, conn_qual, private_data).inspect_err(|_| {
            let (status, none) = (it::UdSvcStatus::NoEpAvailable, it::RemoteEpInfo::default());
            let _ = self.it.ud_service_reply(request.ud_svc_req_id, status, none, &[]);
        });
        let (point, cr): (SpHandle, Arc<Cr>) = made.ok()?;
        let extension = extension(IbExtType::UdConnectRequest, IbStatus::Success, IbAddrHandle::NONE);
        let number = EventNumber::IB_UD_CONNECTION_REQUEST;
        Some(self.arrival(evd, number, point, &cr, Some(extension)))
    }

    /// Answers a request with a datagram endpoint. The caller holds the endpoint's `turn`.
    pub(crate) fn accept_datagrams(
        &self,
        ep: &Ep,
        now: EpState,
        cr: &Cr,
        id: u64,
        peer: it::RemoteEpInfo,
        private_data: &[u8],
    ) -> Result<()> {
        if !ep.is_ud() {
            return Err(handle(Subtype::InvalidHandleEp));
        }
        self.can_resolve(ep, now)?;
        if private_data.len() > LONGEST_REPLY {
            return Err(parameter(Subtype::InvalidArg3));
        }
        let evd = ep.control.lock().connect;
        let evd = self.evd(evd, Subtype::InvalidHandleEvdConn)?;
        let (info, path) = (self.own_info(ep)?, self.path(cr.remote, 1)?);
        let place = self.reserve_event(&evd).ok_or(resources(Subtype::ResourceTevd))?;
        let accepted = self.new_address(ep, &path).and_then(|address| {
            let status = it::UdSvcStatus::EpInfoValid;
            match self.it.ud_service_reply(id, status, info, private_data) {
                Ok(()) => Ok(address),
                Err(error) => {
                    self.free_address(Some(ep), address);
                    Err(match error {
                        // The provider dropped the request to make room for others of that peer.
                        it::Error::InvalidUdSvcReqId => state(Subtype::None),
                        other => of(other),
                    })
                }
            }
        });
        let address = accepted.inspect_err(|_| self.cancel_event(&evd, place))?;
        let remote_ah = IbAddrHandle {
            ah: AhHandle::of(address),
            qpn: peer.ud_ep_id,
            qkey: peer.ud_ep_key,
            ia_addr: mapped(cr.remote),
        };
        {
            let mut control = ep.control.lock();
            control.datagrams.connected = true;
            self.configs.set(ep.handle, &control);
        }
        let made = Made {
            number: EventNumber::IB_UD_CONNECTION_ESTABLISHED,
            connection: Connection { ep_handle: ep.handle, private_data: cr.private_data() },
            extension: Some(extension(IbExtType::UdPassiveRemoteAh, IbStatus::Success, remote_ah)),
        };
        self.make_event(&evd, place, made);
        Ok(())
    }
}

/// The most private data of a SIDR_REP.
const LONGEST_REPLY: usize = 136;

impl Ia {
    /// Frees the address handle of a remote datagram endpoint before the endpoint that resolved it
    /// is freed. Datagrams that were posted keep their destination.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// DAT_IB_UD_AH_FREE_OP.
    #[doc(alias = "dat_ib_ud_ah_free")]
    #[doc(alias = "DAT_IB_UD_AH_FREE_OP")]
    pub fn ib_ud_ah_free(&self, ep: EpHandle, ah: AhHandle) -> Result<()> {
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        {
            let addresses = &mut ep.control.lock().datagrams.addresses;
            let place = addresses.iter().position(|address| *address == ah.inner());
            addresses.swap_remove(place.ok_or(handle(Subtype::InvalidHandle2))?);
        }
        inner.free_address(None, ah.inner());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_the_asking_endpoint() {
        let from = it::RemoteEpInfo { ud_ep_id: 0x12_3456, ud_ep_key: 0x789a_bcde };
        let (bytes, len) = with_header(from, b"hello").unwrap();
        let received = it::PrivateData::new(&bytes);
        let (peer, data) = without_header(Some(received));
        assert_eq!((peer, len), (from, 17));
        assert_eq!(&data.unwrap()[..6], b"hello\0");
        let (bytes, _) = with_header(from, &[]).unwrap();
        assert_eq!(without_header(Some(it::PrivateData::new(&bytes))), (from, None));
        assert!(with_header(from, &[0; LONGEST - HEADER]).is_ok());
        assert!(with_header(from, &[0; LONGEST - HEADER + 1]).is_err());
    }

    #[test]
    fn a_request_of_another_kind_keeps_its_data() {
        let nobody = it::RemoteEpInfo::default();
        for data in [&b"DAT1........"[..], b"DAT2", b""] {
            let data = Some(it::PrivateData::new(data));
            assert_eq!(without_header(data), (nobody, data));
        }
        assert_eq!(without_header(None), (nobody, None));
    }
}
