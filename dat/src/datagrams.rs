//! Datagram endpoints: how one resolves a remote one, on the asking and on the answering side (the
//! usage model of the InfiniBand extensions).
//!
//! The request is an InfiniBand SIDR_REQ, whose private data begins with a header of 12 bytes:
//! "DAT2", then the number and the Q_Key of the asking endpoint's queue pair, in network byte
//! order. With them the answering side can send before it receives anything. A peer that sends no
//! header, such as Linux's rdma_cm, gets an answer as well, but its endpoint is not known: the
//! number in the event is 0.

use kernel_agent::wire::{Path, ServiceId, sidr};
use kernel_agent::{
    ResolutionAnswer, ResolutionEvent, ResolutionEventKind, ResolutionId, ResolutionRequestId, ResolveParams,
};
use platform::heap;
use rdma::attempts;

use crate::cm::received;
use crate::ep::UD_QKEY;
use crate::ep::connect::{address_of, micros};
use crate::error::{EVENTS, handle, parameter, state};
use crate::event::*;
use crate::flags::EpState;
use crate::handle::{AhHandle, EpHandle, EvdHandle};
use crate::ia::{Ia, Inner};
use crate::objects::entry::{Entry, Made};
use crate::objects::ep::{Ep, Remote, wrong};
use crate::objects::evd::Origin;
use crate::objects::points::{Asked, Cr};
use crate::objects::resolutions::{Answer, Outcome, RemoteEp, Resolving};
use crate::ret::{Result, Subtype};
use crate::{IaAddress, PrivateData};

const MAGIC: [u8; 4] = *b"DAT2";
const HEADER: usize = 12;
/// The private data of a request, and of an answer, at most.
const LONGEST: usize = 216;
const LONGEST_REPLY: usize = 136;
/// What the record of a resolution takes.
const RECORD: usize = 1024;

fn with_header(from: RemoteEp, private_data: &[u8]) -> Result<([u8; LONGEST], usize)> {
    let len = HEADER + private_data.len();
    let mut bytes = [0; LONGEST];
    let place = bytes.get_mut(HEADER..len).ok_or(parameter(Subtype::InvalidArg5))?;
    place.copy_from_slice(private_data);
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&from.qpn.to_be_bytes());
    bytes[8..HEADER].copy_from_slice(&from.qkey.to_be_bytes());
    Ok((bytes, len))
}

/// The asking endpoint, and the consumer's private data.
fn without_header(data: Option<PrivateData>) -> (RemoteEp, Option<PrivateData>) {
    let Some(header) = data.as_ref().and_then(|data| data.first_chunk::<HEADER>()) else {
        return (RemoteEp::default(), data);
    };
    let [m0, m1, m2, m3, n0, n1, n2, n3, k0, k1, k2, k3] = *header;
    if [m0, m1, m2, m3] != MAGIC {
        return (RemoteEp::default(), data);
    }
    let peer = RemoteEp {
        qpn: u32::from_be_bytes([n0, n1, n2, n3]) & 0xff_ffff,
        qkey: u32::from_be_bytes([k0, k1, k2, k3]),
    };
    let rest = data.as_deref().and_then(|data| data.get(HEADER..)).unwrap_or_default();
    (peer, received(rest))
}

fn mapped(address: IaAddress) -> core::net::Ipv6Addr {
    match address {
        IaAddress::V4(v4) => v4.to_ipv6_mapped(),
        IaAddress::V6(v6) => v6,
    }
}

const fn extension(ext_type: IbExtType, status: IbStatus, remote_ah: IbAddrHandle) -> IbExtensionEventData {
    IbExtensionEventData { ext_type, status, immed: 0, remote_ah }
}

/// What the event of a request has beside the request.
pub(crate) const REQUESTED: IbExtensionEventData =
    extension(IbExtType::UdConnectRequest, IbStatus::Success, IbAddrHandle::NONE);

impl Inner {
    fn can_resolve(&self, ep: &Ep, now: EpState) -> Result<()> {
        if !matches!(now, EpState::Unconnected | EpState::ActiveConnectionPending | EpState::Connected) {
            return Err(wrong(now));
        }
        ep.control.lock().is_ready()
    }

    fn own_info(ep: &Ep) -> RemoteEp {
        RemoteEp { qpn: ep.qp.qpn(), qkey: UD_QKEY }
    }

    /// An address handle that belongs to an endpoint.
    fn new_address_of(&self, ep: &Ep, path: &Path) -> Result<AhHandle> {
        let pz = {
            let mut control = ep.control.lock();
            control.datagrams.addresses.try_reserve(1)?;
            control.pz
        };
        let address = self.new_address(self.enter_zone(pz)?, path)?;
        ep.control.lock().datagrams.addresses.push(address);
        Ok(address)
    }

    fn free_address_of(&self, ep: &Ep, address: AhHandle) {
        ep.control.lock().datagrams.addresses.retain(|one| *one != address);
        self.free_address(address);
    }

    /// Asks a service for its datagram endpoint.
    pub(crate) fn resolve(
        &self,
        ep: &Ep,
        now: EpState,
        remote: Remote,
        (path, timeout): (&Path, u32),
        service: ServiceId,
        private_data: &[u8],
    ) -> Result<()> {
        self.can_resolve(ep, now)?;
        let (bytes, len) = with_header(Inner::own_info(ep), private_data)?;
        ep.control.lock().datagrams.asked.try_reserve(1)?;
        heap::room(RECORD)?;
        let (response_timeout, retries) = attempts(micros(timeout));
        let params = ResolveParams {
            service,
            local_gid: path.local_gid,
            remote_gid: path.remote_gid,
            ip_source_port: 0,
            response_timeout,
            retries,
            private_data: bytes.get(..len).unwrap_or_default(),
        };
        let context = {
            let mut resolutions = self.resolving.lock();
            resolutions.last += 1;
            resolutions.last
        };
        let client = self.client()?;
        let opened = client.open_resolution(&params, context);
        let (id, _) = opened.map_err(|error| match error {
            kernel_agent::Error::PrivateData(_) => parameter(Subtype::InvalidArg5),
            other => self.error(other),
        })?;
        let address = self.new_address_of(ep, path).inspect_err(|_| {
            let _ = client.close_resolution(id);
        })?;
        let resolving = Resolving { ep: ep.handle, id, address, remote: remote.address };
        self.resolving.lock().resolving.insert(context, resolving);
        {
            let mut control = ep.control.lock();
            control.datagrams.asked.push(context);
            control.remote = Some(remote);
        }
        client.resolve(id).map_err(|error| {
            ep.control.lock().datagrams.asked.retain(|one| *one != context);
            self.give_up(ep, context);
            self.error(error)
        })
    }

    /// Forgets a remote endpoint that is being resolved.
    fn give_up(&self, ep: &Ep, context: u64) {
        let former = self.resolving.lock().resolving.remove(&context);
        if let Some(former) = former {
            self.close_resolution(former.id);
            self.free_address_of(ep, former.address);
        }
    }

    fn close_resolution(&self, id: ResolutionId) {
        if let Ok(client) = self.client() {
            // Fails only if the device is dead.
            let _ = client.close_resolution(id);
        }
    }

    /// Ends all resolutions, with the IA.
    pub(crate) fn end_resolutions(&self) {
        let resolving = core::mem::take(&mut self.resolving.lock().resolving);
        for former in resolving.into_values() {
            self.close_resolution(former.id);
        }
    }

    /// Forgets the remote endpoints of an endpoint, resolved or not.
    pub(crate) fn forget_datagrams(&self, ep: &Ep) {
        let (asked, addresses) = {
            let mut control = ep.control.lock();
            let datagrams = &mut control.datagrams;
            (core::mem::take(&mut datagrams.asked), core::mem::take(&mut datagrams.addresses))
        };
        for context in asked {
            self.give_up(ep, context);
        }
        for address in addresses {
            self.free_address(address);
        }
    }

    /// The agent's upcall about resolutions.
    pub(crate) fn resolution_event(&self, event: &ResolutionEvent<'_>) {
        let private_data = received(event.private_data);
        match event.kind {
            ResolutionEventKind::Request { request, request_id, remote_gid, .. } => {
                let (peer, private_data) = without_header(private_data);
                let added = self.requests.lock().add(request_id, remote_gid, request);
                let Some((_, dropped)) = added else { return self.disregard(request) };
                if let Some(dropped) = dropped {
                    self.disregard(dropped);
                }
                let (asked, from) = (Asked::Datagrams { request, peer }, address_of(remote_gid));
                self.arrived(event.context, asked, from, private_data);
            }
            ResolutionEventKind::Reply { resolution, status, qpn, qkey, .. } => {
                let outcome = match status {
                    sidr::Status::Valid => Outcome::Resolved(RemoteEp { qpn, qkey }),
                    sidr::Status::Rejected | sidr::Status::Redirected | sidr::Status::VersionNotSupported => {
                        Outcome::Rejected
                    }
                    sidr::Status::ServiceIdNotSupported | sidr::Status::NoQp => Outcome::Failed,
                };
                self.answered(event.context, resolution, outcome, private_data);
            }
            ResolutionEventKind::TimedOut { resolution } => {
                self.answered(event.context, resolution, Outcome::Failed, None);
            }
        }
    }

    /// Queues the event of an answer on the endpoint's event dispatcher.
    fn answered(
        &self,
        context: u64,
        resolution: ResolutionId,
        outcome: Outcome,
        private_data: Option<PrivateData>,
    ) {
        let asked = self.resolving.lock().resolving.get(&context).copied();
        let Some(asked) = asked.filter(|asked| asked.id == resolution) else { return };
        let evd = self.eps.get(asked.ep).and_then(|ep| ep.connect.clone());
        if let Some(evd) = evd {
            let answer = Answer { context, outcome, private_data };
            self.deliver(&evd, Entry::Resolved(answer), Origin::Upcall);
        }
    }

    /// The event of an answer, which changes the endpoint's state.
    pub(crate) fn resolved(&self, evd: EvdHandle, answer: &Answer) -> Option<Event> {
        let asked = self.resolving.lock().resolving.remove(&answer.context)?;
        self.close_resolution(asked.id);
        let ep = self.eps.get(asked.ep)?;
        {
            let mut control = ep.control.lock();
            control.datagrams.asked.retain(|one| *one != answer.context);
            control.datagrams.connected |= matches!(answer.outcome, Outcome::Resolved(_));
            ep.set_longest_datagram(&control);
        }
        let (event_number, extension) = match answer.outcome {
            Outcome::Resolved(RemoteEp { qpn, qkey }) => {
                let remote_ah = IbAddrHandle { ah: asked.address, qpn, qkey, ia_addr: mapped(asked.remote) };
                let extension = extension(IbExtType::UdRemoteAh, IbStatus::Success, remote_ah);
                (EventNumber::IB_UD_CONNECTION_ESTABLISHED, extension)
            }
            Outcome::Rejected => {
                let extension = extension(IbExtType::UdConnectReject, IbStatus::Err, IbAddrHandle::NONE);
                (EventNumber::IB_UD_CONNECTION_REJECT, extension)
            }
            Outcome::Failed => {
                let extension = extension(IbExtType::UdConnectError, IbStatus::Err, IbAddrHandle::NONE);
                (EventNumber::IB_UD_CONNECTION_ERROR, extension)
            }
        };
        if !matches!(answer.outcome, Outcome::Resolved(_)) {
            self.free_address_of(&ep, asked.address);
        }
        let connection = Connection { ep_handle: asked.ep, private_data: answer.private_data };
        Some(Event {
            event_number,
            evd_handle: evd,
            event_data: EventData::Connection(connection),
            extension: Some(extension),
        })
    }

    /// Gives a peer's request no answer.
    pub(crate) fn disregard(&self, request: ResolutionRequestId) {
        self.requests.lock().forget(request);
        if let Ok(client) = self.client() {
            client.disregard_resolution(request);
        }
    }

    /// Refuses a peer's request. The inner result is the agent's.
    pub(crate) fn answer_datagrams(
        &self,
        request: ResolutionRequestId,
        status: sidr::Status,
        private_data: &[u8],
    ) -> Result<core::result::Result<(), kernel_agent::Error>> {
        let answer = ResolutionAnswer { status, qpn: 0, qkey: 0, private_data };
        self.reply(request, &answer, Subtype::InvalidArg3)
    }

    fn reply(
        &self,
        request: ResolutionRequestId,
        answer: &ResolutionAnswer<'_>,
        argument: Subtype,
    ) -> Result<core::result::Result<(), kernel_agent::Error>> {
        if answer.private_data.len() > LONGEST_REPLY {
            return Err(parameter(argument));
        }
        let answered = self.client()?.answer_resolution(request, answer);
        if matches!(answered, Ok(()) | Err(kernel_agent::Error::ConnectionState)) {
            self.requests.lock().forget(request);
        }
        Ok(answered)
    }

    pub(crate) fn accept_datagrams(
        &self,
        ep: &Ep,
        now: EpState,
        cr: &Cr,
        request: ResolutionRequestId,
        peer: RemoteEp,
        private_data: &[u8],
    ) -> Result<()> {
        if !ep.is_ud() {
            return Err(handle(Subtype::InvalidHandleEp));
        }
        self.can_resolve(ep, now)?;
        if private_data.len() > LONGEST_REPLY {
            return Err(parameter(Subtype::InvalidArg3));
        }
        self.not_in_upcall()?;
        let evd = ep.connect.clone().ok_or(handle(Subtype::InvalidHandleEvdConn))?;
        let path = self.path(cr.arrived.remote)?;
        if !evd.reserve_event() {
            return Err(EVENTS);
        }
        let accepted = self.new_address_of(ep, &path).and_then(|address| {
            let RemoteEp { qpn, qkey } = Inner::own_info(ep);
            let answer = ResolutionAnswer { status: sidr::Status::Valid, qpn, qkey, private_data };
            let answered = self.reply(request, &answer, Subtype::InvalidArg3);
            let answered = answered.and_then(|answered| {
                answered.map_err(|error| match error {
                    // The provider dropped the request to make room for others of that peer.
                    kernel_agent::Error::ConnectionState => state(Subtype::None),
                    other => self.error(other),
                })
            });
            answered.inspect_err(|_| self.free_address_of(ep, address))?;
            Ok(address)
        });
        let address = accepted.inspect_err(|_| evd.cancel_event())?;
        let remote_ah =
            IbAddrHandle { ah: address, qpn: peer.qpn, qkey: peer.qkey, ia_addr: mapped(cr.arrived.remote) };
        {
            let mut control = ep.control.lock();
            control.datagrams.connected = true;
            ep.set_longest_datagram(&control);
        }
        let made = Made {
            number: EventNumber::IB_UD_CONNECTION_ESTABLISHED,
            connection: Connection { ep_handle: ep.handle, private_data: cr.arrived.private_data },
            extension: Some(extension(IbExtType::UdPassiveRemoteAh, IbStatus::Success, remote_ah)),
        };
        self.fill_event(&evd, made);
        Ok(())
    }

    /// Ends what a datagram endpoint has resolved.
    pub(crate) fn disconnect_datagrams(&self, ep: &Ep) {
        self.forget_datagrams(ep);
        {
            let mut control = ep.control.lock();
            control.datagrams.disconnected = true;
            ep.set_longest_datagram(&control);
        }
        // If the queue has no room, the event is lost, as every event of a full queue is.
        if let Some(evd) = ep.connect.as_ref().filter(|evd| evd.reserve_event()) {
            let connection = Connection { ep_handle: ep.handle, private_data: None };
            let number = EventNumber::CONNECTION_DISCONNECTED;
            self.fill_event(evd, Made { number, connection, extension: None });
        }
    }
}

impl Ia {
    /// Frees the address handle of a remote datagram endpoint before the endpoint that resolved it
    /// is freed. Datagrams that were posted keep their destination.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// DAT_IB_UD_AH_FREE_OP.
    #[doc(alias = "dat_ib_ud_ah_free")]
    #[doc(alias = "DAT_IB_UD_AH_FREE_OP")]
    pub fn ib_ud_ah_free(&self, ep: EpHandle, ah: AhHandle) -> Result<()> {
        let inner = self.call()?;
        let ep = inner.ep(ep)?;
        {
            let addresses = &mut ep.control.lock().datagrams.addresses;
            let place = addresses.iter().position(|address| *address == ah);
            addresses.swap_remove(place.ok_or(handle(Subtype::InvalidHandle2))?);
        }
        inner.free_address(ah);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_the_asking_endpoint() {
        let from = RemoteEp { qpn: 0x12_3456, qkey: 0x789a_bcde };
        let (bytes, len) = with_header(from, b"hello").unwrap();
        let (peer, data) = without_header(Some(PrivateData::new(&bytes)));
        assert_eq!((peer, len), (from, 17));
        assert_eq!(&data.unwrap()[..6], b"hello\0");
        let (bytes, _) = with_header(from, &[]).unwrap();
        assert_eq!(without_header(Some(PrivateData::new(&bytes))), (from, None));
        assert!(with_header(from, &[0; LONGEST - HEADER]).is_ok());
        assert!(with_header(from, &[0; LONGEST - HEADER + 1]).is_err());
    }

    #[test]
    fn a_request_of_another_kind_keeps_its_data() {
        let nobody = RemoteEp::default();
        for data in [&b"DAT1........"[..], b"DAT2", b""] {
            let data = Some(PrivateData::new(data));
            assert_eq!(without_header(data), (nobody, data));
        }
        assert_eq!(without_header(None), (nobody, None));
    }
}
