//! Datagram endpoints (page it_ep_ud_create, and the UD parts of it_ep_query, it_ep_modify,
//! it_ep_reset, it_ep_state_t, it_ep_attributes_t).

use alloc::vec::Vec;
use core::result::Result;
use core::time::Duration;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{
    Fixture, MOMENT, OPEN, PAGE, Region, SIGNALLED, completion, evd_param, path, sevd, spigot,
};
use crate::thread::pause;
use crate::transport::{Need, Needing};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The endpoint key of these tests' endpoints.
pub(crate) const KEY: u32 = 0x1234_5678;
/// Bytes in front of each received message, which hold the GRH.
pub(crate) const FRONT: usize = 40;
/// The flags with which these tests post Receives.
pub(crate) const RECV: DtoFlags = SIGNALLED;
/// How long a datagram of a lossy network is awaited, in microseconds, before another one is sent,
/// and how often one is.
const LATE: u64 = 100_000;
const ATTEMPTS: u32 = 100;
/// How late a datagram of a lossy network may come, behind others or again.
const SETTLED: Duration = Duration::from_millis(20);

/// A datagram endpoint with its zone and EVDs.
#[derive(Clone)]
pub(crate) struct Peer {
    pub ia: Ia,
    pub pz: PzHandle,
    pub request: EvdHandle,
    pub recv: EvdHandle,
    pub ep: EpHandle,
    pub info: RemoteEpInfo,
}

/// Attributes of a privileged datagram endpoint.
pub(crate) fn datagrams() -> EpAttributes {
    EpAttributes {
        max_dto_payload_size: 512,
        ud: UdAttributes { ep_info: RemoteEpInfo { ud_ep_id: 0, ud_ep_key: KEY } },
        priv_ops_enable: true,
        ..EpAttributes::default()
    }
}

/// A datagram endpoint in a zone of its own.
#[track_caller]
pub(crate) fn peer(ia: &Ia, attributes: &EpAttributes) -> Result<Peer, Failure> {
    peer_in(ia, ia.pz_create()?, attributes)
}

/// A datagram endpoint in this zone.
#[track_caller]
pub(crate) fn peer_in(ia: &Ia, pz: PzHandle, attributes: &EpAttributes) -> Result<Peer, Failure> {
    let request = sevd(ia, EventType::DTO_EVENT_STREAM, attributes.max_request_dtos, 1)?;
    let recv = sevd(ia, EventType::DTO_EVENT_STREAM, attributes.max_recv_dtos, 1)?;
    let ep =
        ia.ep_ud_create(pz, request, recv, attributes, spigot(ia)?.spigot_id).needing(Need::Datagrams)?;
    let info = ia.ep_query(ep, EpParamMask::ALL)?.attr.ud.ep_info;
    Ok(Peer { ia: ia.clone(), pz, request, recv, ep, info })
}

/// An address handle for the other IA's node.
#[track_caller]
pub(crate) fn address(ia: &Ia, pz: PzHandle, to: &Ia) -> Result<AddrHandle, Failure> {
    let there = some(spigot(to)?.net_addr.first().copied(), "a network address")?;
    ia.address_handle_create(pz, &path(ia, &there)?, AhFlags::PATH_COMPLETE).needing(Need::Datagrams)
}

impl Peer {
    /// The state of the endpoint.
    #[track_caller]
    pub(crate) fn state(&self) -> Result<EpState, Failure> {
        Ok(self.ia.ep_query(self.ep, EpParamMask::STATE)?.ep_state)
    }

    /// Fails unless the endpoint is in the expected state.
    #[track_caller]
    pub(crate) fn works(&self, works: bool) -> Outcome {
        let expected = if works { EpStateUd::Operational } else { EpStateUd::Nonoperational };
        match self.state()? {
            EpState::Ud(state) if state == expected => Ok(()),
            other => Err(Failure::new(alloc::format!("{other:?}, expected {expected:?}"))),
        }
    }

    /// Takes the next completion of the send queue, which must have this cookie and status.
    #[track_caller]
    pub(crate) fn sent(&self, cookie: u64, status: DtoStatus) -> Outcome {
        let done = completion(&self.ia, self.request)?;
        check_eq!((done.event_number, done.ep), (EventType::DTO_SEND_CMPL, self.ep));
        check_eq!((done.cookie, done.dto_status), (cookie, status));
        Ok(())
    }

    /// Takes the next completion of the receive queue, which must have this cookie and status.
    #[track_caller]
    pub(crate) fn received(&self, cookie: u64, status: DtoStatus) -> Result<DtoCompletion, Failure> {
        let done = completion(&self.ia, self.recv)?;
        check_eq!((done.event_number, done.ep), (EventType::DTO_UD_RECV_CMPL, self.ep));
        check_eq!((done.cookie, done.dto_status), (cookie, status));
        Ok(done)
    }

    /// The next completion of the receive queue. On a lossy network `again` sends another datagram
    /// whenever none has come for a while. On any other the first one has to arrive.
    #[track_caller]
    pub(crate) fn arrival(&self, f: &Fixture, again: impl Fn() -> Outcome) -> Result<DtoCompletion, Failure> {
        for _ in 0..if f.setup.lossy { ATTEMPTS } else { 0 } {
            match self.ia.evd_wait(self.recv, LATE) {
                Err(error) if error == Error::TimeoutExpired => again()?,
                Err(error) => return Err(error.into()),
                Ok((Event::Dto(done), _)) => {
                    // What is late or comes twice finds no Receive then.
                    pause(f.platform(), SETTLED);
                    return Ok(done);
                }
                Ok((other, _)) => {
                    return Err(Failure::new(alloc::format!("not a completion: {other:?}")));
                }
            }
        }
        completion(&self.ia, self.recv)
    }

    /// Sends a datagram by `post`, and takes the completion of the Send, which must be a success
    /// with the first cookie, and of the Receive at `to`, which must have the second cookie and
    /// this status. On a lossy network it sends again until a datagram arrives.
    #[track_caller]
    pub(crate) fn delivers(
        &self,
        f: &Fixture,
        to: &Peer,
        (sent, received): (u64, u64),
        status: DtoStatus,
        post: impl Fn() -> Result<(), Error>,
    ) -> Result<DtoCompletion, Failure> {
        let send = || {
            post()?;
            self.sent(sent, DtoStatus::Success)
        };
        send()?;
        let done = to.arrival(f, send)?;
        check_eq!((done.event_number, done.ep), (EventType::DTO_UD_RECV_CMPL, to.ep));
        check_eq!((done.cookie, done.dto_status), (received, status));
        Ok(done)
    }

    /// Fails if a datagram was received. On a lossy network an earlier one may have come again.
    #[track_caller]
    pub(crate) fn silent(&self, f: &Fixture) -> Outcome {
        if f.setup.lossy {
            return Ok(());
        }
        match self.ia.evd_wait(self.recv, MOMENT) {
            Err(error) if error == Error::TimeoutExpired => Ok(()),
            other => Err(Failure::new(alloc::format!("expected nothing, got {other:?}"))),
        }
    }

    /// Breaks the endpoint with a Send from invalid memory.
    #[track_caller]
    pub(crate) fn broken(&self, to: &DgRemoteEpAddr) -> Outcome {
        let nowhere = LmrTriplet::new(LmrHandle::NULL, 0, 8);
        self.ia.post_sendto(self.ep, &[nowhere], 99, SIGNALLED, to)?;
        self.sent(99, DtoStatus::LocalProtection)?;
        self.works(false)
    }
}

/// Two endpoints, the address of `b` for `a`, and a region on each side.
pub(crate) struct Two {
    pub a: Peer,
    pub b: Peer,
    pub to_b: DgRemoteEpAddr,
    pub from: Region,
    pub into: Region,
}

/// Two endpoints with these attributes.
#[track_caller]
pub(crate) fn two_of(f: &Fixture, a: &EpAttributes, b: &EpAttributes) -> Result<Two, Failure> {
    let (a, b) = (peer(&f.a, a)?, peer(&f.b, b)?);
    let to_b = DgRemoteEpAddr::IbUd { addr: address(&f.a, a.pz, &f.b)?, ep_info: b.info };
    let (from, into) = (f.region(&f.a, a.pz, PAGE, OPEN)?, f.region(&f.b, b.pz, 2 * PAGE, OPEN)?);
    from.fill(3);
    Ok(Two { a, b, to_b, from, into })
}

/// Two privileged endpoints.
#[track_caller]
pub(crate) fn two(f: &Fixture) -> Result<Two, Failure> {
    two_of(f, &datagrams(), &datagrams())
}

/// The same address with its endpoint number or key changed.
pub(crate) fn with_info(to: &DgRemoteEpAddr, change: impl FnOnce(&mut RemoteEpInfo)) -> DgRemoteEpAddr {
    let DgRemoteEpAddr::IbUd { addr, mut ep_info } = *to;
    change(&mut ep_info);
    DgRemoteEpAddr::IbUd { addr, ep_info }
}

pub(crate) const TESTS: &[Test] = &[
    // A new datagram endpoint is operational, and a query returns the attributes of its type.
    test(
        "ud::create_and_query",
        &[
            "it_ep_ud_create B01 B02 B07 B08 S01",
            "it_ep_state_t F08 F09 F11 S46",
            "it_ep_attributes_t F08",
            "it_ep_query F08 V01 IT_ERR_INVALID_EP_TYPE",
            "it_ia_info_t F07",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            check_eq!(ServiceTypes::UD.bits(), 2);
            check!(f.a.ia_query()?.supported_service_types.contains(ServiceTypes::UD));
            check_eq!((EpStateUd::Nonoperational as u32, EpStateUd::Operational as u32), (0, 1));
            let attributes = datagrams();
            let (one, other) = (peer(&f.a, &attributes)?, peer(&f.a, &attributes)?);
            check_eq!(f.a.object_counts().ep, 2);
            let all = f.a.ep_query(one.ep, EpParamMask::ALL)?;
            check_eq!((all.ia, all.pz, all.spigot_id), (f.a.handle(), one.pz, spigot(&f.a)?.spigot_id));
            check_eq!(
                (all.ep_state, all.service_type),
                (EpState::Ud(EpStateUd::Operational), ServiceTypes::UD)
            );
            check_eq!((all.request_sevd, all.recv_sevd), (one.request, one.recv));
            check!(all.connect_sevd.is_null(), "a datagram endpoint has no connection");
            check!(all.attr.max_dto_payload_size >= attributes.max_dto_payload_size);
            check!(all.attr.max_request_dtos >= attributes.max_request_dtos);
            check!(all.attr.max_recv_dtos >= attributes.max_recv_dtos);
            check!(all.attr.max_send_segments >= attributes.max_send_segments);
            check!(all.attr.max_recv_segments >= attributes.max_recv_segments);
            check!(all.attr.priv_ops_enable);
            check_eq!(all.attr.ud.ep_info.ud_ep_key, KEY);
            check!(one.info.ud_ep_id != other.info.ud_ep_id, "both endpoints have one ID");
            check!(
                one.info.ud_ep_id > 1 && one.info.ud_ep_id < 1 << 24,
                "the ID is no number of a queue pair"
            );
            let id = f.a.ep_query(one.ep, EpParamMask::EP_ID)?.attr.ud.ep_info;
            check_eq!(id, RemoteEpInfo { ud_ep_id: one.info.ud_ep_id, ud_ep_key: 0 });
            check!(f.a.ep_query(one.ep, EpParamMask::CONN_SEVD)?.connect_sevd.is_null());
            // Attributes of the other service type cannot be queried.
            for bit in [
                EpParamMask::RDMA_RD_ENABLE,
                EpParamMask::RDMA_WR_ENABLE,
                EpParamMask::MAX_RDMA_READ_SEG,
                EpParamMask::MAX_RDMA_WRITE_SEG,
                EpParamMask::MAX_IRD,
                EpParamMask::MAX_ORD,
                EpParamMask::SRQ,
                EpParamMask::SOFT_HI_WATERMARK,
                EpParamMask::HARD_HI_WATERMARK,
                EpParamMask::ATOMICS_ENABLE,
            ] {
                refused(f.a.ep_query(one.ep, bit), Error::InvalidEpType)?;
            }
            refused(f.a.ep_query(one.ep, EpParamMask::from_bits_retain(1 << 28)), Error::InvalidMask)?;
            // As many requests can be posted as were asked for, with as many segments.
            let region = f.region(&f.a, one.pz, PAGE, OPEN)?;
            let segments = |count| -> Vec<_> { (0..count).map(|n| region.segment(64 * n, 8)).collect() };
            let (sent, received) = (attributes.max_send_segments, attributes.max_recv_segments);
            for cookie in 0..attributes.max_recv_dtos as u64 {
                f.a.post_recvfrom(one.ep, &segments(received), cookie, RECV)?;
            }
            let addr = address(&f.a, one.pz, &f.b)?;
            let to = DgRemoteEpAddr::IbUd { addr, ep_info: other.info };
            for cookie in 0..attributes.max_request_dtos as u64 {
                f.a.post_sendto(one.ep, &segments(sent), cookie, DtoFlags::empty(), &to)?;
            }
            f.a.ep_free(one.ep)?;
            refused(f.a.ep_query(one.ep, EpParamMask::ALL), Error::InvalidEp)?;
            f.a.evd_free(one.request)?;
            f.a.evd_free(one.recv)?;
            f.a.address_handle_free(addr)?;
            f.a.lmr_free(region.lmr)?;
            f.a.pz_free(one.pz)?;
            Ok(())
        },
    ),
    // Each bad argument is refused with its own error.
    test(
        "ud::create_refuses",
        &[
            "it_ep_ud_create IT_ERR_INVALID_EP_KEY IT_ERR_INVALID_EVD_TYPE IT_ERR_INVALID_PZ",
            "it_ep_ud_create IT_ERR_INVALID_RECV_EVD IT_ERR_INVALID_REQ_EVD IT_ERR_INVALID_SPIGOT",
            "it_ep_ud_create IT_ERR_NO_PERMISSION IT_ERR_PAYLOAD_SIZE IT_ERR_RESOURCE_RECV_DTO",
            "it_ep_ud_create IT_ERR_RESOURCE_REQ_DTO IT_ERR_RESOURCE_RSEG IT_ERR_RESOURCE_SSEG",
            "it_status_t F35",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let ia = f.unprivileged()?;
            let (pz, dto) = (ia.pz_create()?, sevd(&ia, EventType::DTO_EVENT_STREAM, 64, 1)?);
            let conn = sevd(&ia, EventType::CM_MSG_EVENT_STREAM, 8, 1)?;
            let freed = ia.pz_create()?;
            ia.pz_free(freed)?;
            let foreign = sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, 1)?;
            let spigot_id = spigot(&ia)?.spigot_id;
            let longest = spigot(&ia)?.max_ud_send_len;
            let good = EpAttributes { priv_ops_enable: false, ..datagrams() };
            let before = ia.object_counts();
            for pz in [PzHandle::NULL, freed, f.b.pz_create()?, PzHandle::from_raw(dto.as_raw())] {
                refused(ia.ep_ud_create(pz, dto, dto, &good, spigot_id), Error::InvalidPz)?;
            }
            for evd in [EvdHandle::NULL, foreign, EvdHandle::from_raw(pz.as_raw())] {
                refused(ia.ep_ud_create(pz, evd, dto, &good, spigot_id), Error::InvalidReqEvd)?;
                refused(ia.ep_ud_create(pz, dto, evd, &good, spigot_id), Error::InvalidRecvEvd)?;
            }
            refused(ia.ep_ud_create(pz, conn, dto, &good, spigot_id), Error::InvalidEvdType)?;
            refused(ia.ep_ud_create(pz, dto, conn, &good, spigot_id), Error::InvalidEvdType)?;
            for wrong in [0, spigot_id + 1, usize::MAX] {
                refused(ia.ep_ud_create(pz, dto, dto, &good, wrong), Error::InvalidSpigot)?;
            }
            let key = |ud_ep_key| UdAttributes { ep_info: RemoteEpInfo { ud_ep_id: 0, ud_ep_key } };
            let many = usize::MAX;
            for (attributes, error) in [
                (EpAttributes { max_dto_payload_size: longest + 1, ..good }, Error::PayloadSize),
                (EpAttributes { max_dto_payload_size: many, ..good }, Error::PayloadSize),
                (EpAttributes { max_request_dtos: many, ..good }, Error::ResourceReqDto),
                (EpAttributes { max_request_dtos: 1 << 30, ..good }, Error::ResourceReqDto),
                (EpAttributes { max_recv_dtos: many, ..good }, Error::ResourceRecvDto),
                (EpAttributes { max_send_segments: many, ..good }, Error::ResourceSseg),
                (EpAttributes { max_recv_segments: many, ..good }, Error::ResourceRseg),
                (EpAttributes { ud: key(1 << 31), ..good }, Error::InvalidEpKey),
                (EpAttributes { ud: key(u32::MAX), ..good }, Error::InvalidEpKey),
                (EpAttributes { priv_ops_enable: true, ..good }, Error::NoPermission),
            ] {
                refused(ia.ep_ud_create(pz, dto, dto, &attributes, spigot_id), error)?;
            }
            check_eq!(ia.object_counts(), before);
            check_eq!(Error::InvalidEpKey as u32, 34);
            // Attributes of RC endpoints are ignored.
            let rc =
                RcAttributes { rdma_read_ird: u32::MAX, max_rdma_read_segments: many, ..Default::default() };
            ia.ep_ud_create(pz, dto, dto, &EpAttributes { rc, ..good }, spigot_id)?;
            // A privileged consumer may use any key.
            peer(&f.a, &EpAttributes { ud: key(u32::MAX), ..datagrams() })?;
            Ok(())
        },
    ),
    // Creating datagram endpoints fails with IT_ERR_RESOURCES at some point, and works again after
    // one is freed.
    test("ud::endpoints_run_out_and_come_back", &["it_ep_ud_create B05 IT_ERR_RESOURCES"], |f| {
        Need::Datagrams.of(&f.a)?;
        let (pz, dto) = (f.a.pz_create()?, sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?);
        let create = || f.a.ep_ud_create(pz, dto, dto, &datagrams(), 1);
        let mut eps = Vec::new();
        let refusal = loop {
            match create() {
                Ok(ep) => eps.push(ep),
                Err(error) => break error,
            }
            check!(eps.len() < 1000, "{} endpoints", eps.len());
        };
        check_eq!(refusal, Error::Resources);
        check_eq!(f.a.object_counts().ep, eps.len());
        f.a.ep_free(some(eps.pop(), "an endpoint")?)?;
        eps.push(create()?);
        refused(create(), Error::Resources)?;
        for ep in eps {
            f.a.ep_free(ep)?;
        }
        check_eq!(f.a.object_counts().ep, 0);
        Ok(())
    }),
    // Calls for RC endpoints refuse a datagram endpoint.
    test(
        "ud::calls_for_rc_endpoints",
        &[
            "it_ep_accept B01 IT_ERR_INVALID_EP_TYPE",
            "it_ep_connect B01 IT_ERR_INVALID_EP_TYPE",
            "it_post_send IT_ERR_INVALID_EP_TYPE",
            "it_post_recv IT_ERR_INVALID_EP_TYPE",
            "it_post_rdma_write IT_ERR_INVALID_EP_TYPE",
            "it_post_rdma_read B01 IT_ERR_INVALID_EP_TYPE",
            "it_lmr_unlink IT_ERR_INVALID_EP_TYPE",
            "it_ep_reset V01 IT_ERR_INVALID_EP_TYPE",
            "it_ep_state_t V02",
            "it_ep_disconnect IT_ERR_INVALID_EP_TYPE",
        ],
        |f| {
            let two = two(f)?;
            let (ia, ep, segment) = (&two.a.ia, two.a.ep, two.from.segment(0, 8));
            let refused_all = || -> Outcome {
                let wrong = Error::InvalidEpType;
                for segments in [&[][..], &[segment][..]] {
                    refused(ia.post_send(ep, segments, 1, SIGNALLED), wrong)?;
                    refused(ia.post_recv(ep, segments, 1, DtoFlags::COMPLETION), wrong)?;
                    let (addr, context) = (RdmaAddr(0), RmrContext(0));
                    refused(ia.post_rdma_write(ep, segments, 1, SIGNALLED, addr, context), wrong)?;
                    refused(ia.post_rdma_read(ep, segments, 1, SIGNALLED, addr, context), wrong)?;
                }
                refused(ia.lmr_unlink(two.from.lmr, ep, 1, SIGNALLED), wrong)?;
                let pages = [IoAddr(0)];
                let list = Iobl::pages(&pages, PAGE as u64, 0);
                let mode = AddrMode::Absolute;
                refused(ia.lmr_link(two.from.lmr, 0, &list, 64, mode, OPEN, ep, 1, SIGNALLED), wrong)?;
                refused(ia.ep_reset(ep), wrong)?;
                refused(ia.ep_disconnect(ep, &[]), wrong)?;
                let way = path(ia, &spigot(&f.b)?.net_addr[0])?;
                let qual = ConnQual::port(9);
                refused(ia.ep_connect(ep, &way, None, &qual, CnEstFlags::TWO_WAY, &[]), wrong)?;
                refused(ia.ep_accept(ep, CnEstId(1), &[]), wrong)
            };
            refused_all()?;
            two.a.works(true)?;
            two.a.broken(&two.to_b)?;
            refused_all()?;
            two.a.works(false)
        },
    ),
    // An endpoint gets only datagrams with its key, which can change in any state.
    test(
        "ud::the_key",
        &["it_ep_modify F08 IT_ERR_INVALID_EP_KEY", "it_ep_attributes_t F09", "it_ep_state_t S47"],
        |f| {
            let two = two(f)?;
            let key = |ud_ep_key| EpAttributes {
                ud: UdAttributes { ep_info: RemoteEpInfo { ud_ep_id: 7, ud_ep_key } },
                ..datagrams()
            };
            let post =
                |to: &DgRemoteEpAddr, cookie| two.a.ia.post_sendto(two.a.ep, &[], cookie, SIGNALLED, to);
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 64)], 1, RECV)?;
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(64, 64)], 2, RECV)?;
            two.b.ia.ep_modify(two.b.ep, EpParamMask::EP_KEY, &key(0x77))?;
            let info = two.b.ia.ep_query(two.b.ep, EpParamMask::ALL)?.attr.ud.ep_info;
            check_eq!(info, RemoteEpInfo { ud_ep_id: two.b.info.ud_ep_id, ud_ep_key: 0x77 });
            post(&two.to_b, 1)?;
            two.a.sent(1, DtoStatus::Success)?;
            two.b.silent(f)?;
            let right = with_info(&two.to_b, |info| info.ud_ep_key = 0x77);
            two.a.delivers(f, &two.b, (2, 1), DtoStatus::Success, || post(&right, 2))?;
            // The top bit stands for the sender's own key, which differs from the receiver's key so
            // far.
            let own = with_info(&two.to_b, |info| info.ud_ep_key = 1 << 31);
            post(&own, 3)?;
            two.a.sent(3, DtoStatus::Success)?;
            two.b.silent(f)?;
            two.a.ia.ep_modify(two.a.ep, EpParamMask::EP_KEY, &key(0x77))?;
            two.a.delivers(f, &two.b, (4, 2), DtoStatus::Success, || post(&own, 4))?;
            // The key can be changed in the other state as well, but not by every consumer.
            two.a.broken(&two.to_b)?;
            two.a.ia.ep_modify(two.a.ep, EpParamMask::EP_KEY, &key(0x78))?;
            check_eq!(two.a.ia.ep_query(two.a.ep, EpParamMask::EP_KEY)?.attr.ud.ep_info.ud_ep_key, 0x78);
            two.a.ia.set_consumer_context(two.a.ep, 5)?;
            check_eq!(two.a.ia.get_consumer_context(two.a.ep)?, 5);
            check_eq!(two.a.ia.get_handle_type(two.a.ep)?, HandleType::Ep);
            let ia = f.unprivileged()?;
            let plain = peer(&ia, &EpAttributes { priv_ops_enable: false, ..datagrams() })?;
            refused(ia.ep_modify(plain.ep, EpParamMask::EP_KEY, &key(1 << 31)), Error::InvalidEpKey)?;
            check_eq!(ia.ep_query(plain.ep, EpParamMask::EP_KEY)?.attr.ud.ep_info.ud_ep_key, KEY);
            two.a.ia.ep_free(two.a.ep)?;
            two.b.ia.ep_free(two.b.ep)?;
            Ok(())
        },
    ),
    // Only the key can be modified, and a failed endpoint cannot be made operational again.
    test(
        "ud::modify_refuses",
        &["it_ep_attributes_t S02", "it_ep_state_t S49", "it_ep_modify IT_ERR_INVALID_EP_TYPE"],
        |f| {
            let two = two(f)?;
            let mut changed = datagrams();
            changed.max_dto_payload_size = 64;
            changed.ud.ep_info.ud_ep_key = 9;
            let before = f.a.ep_query(two.a.ep, EpParamMask::ALL)?;
            let unchanged = |ep_state| -> Outcome {
                for (mask, error) in [
                    (EpParamMask::MAX_PAYLOAD, Error::InvalidEpType),
                    (EpParamMask::RDMA_RD_ENABLE, Error::InvalidEpType),
                    (EpParamMask::MAX_IRD, Error::InvalidEpType),
                    (EpParamMask::MAX_ORD, Error::InvalidEpType),
                    (EpParamMask::ATOMICS_ENABLE, Error::InvalidEpType),
                    (EpParamMask::MAX_REQ_DTO, Error::InvalidEpState),
                    (EpParamMask::MAX_RECV_DTO, Error::InvalidEpState),
                    (EpParamMask::EP_ID, Error::InvalidMask),
                    (EpParamMask::STATE, Error::InvalidMask),
                    (EpParamMask::ALL, Error::InvalidMask),
                ] {
                    // If one change is refused, the key is not changed either.
                    refused(f.a.ep_modify(two.a.ep, mask | EpParamMask::EP_KEY, &changed), error)?;
                }
                f.a.ep_modify(two.a.ep, EpParamMask::empty(), &changed)?;
                check_eq!(f.a.ep_query(two.a.ep, EpParamMask::ALL)?, EpParam { ep_state, ..before });
                Ok(())
            };
            unchanged(EpState::Ud(EpStateUd::Operational))?;
            two.a.broken(&two.to_b)?;
            // No call makes the endpoint operational again.
            unchanged(EpState::Ud(EpStateUd::Nonoperational))?;
            refused(f.a.ep_reset(two.a.ep), Error::InvalidEpType)?;
            two.a.works(false)?;
            f.a.ep_free(two.a.ep)?;
            Ok(())
        },
    ),
    // One EVD takes the completions of both queues.
    test("ud::one_evd_for_both_queues", &["it_ep_ud_create B05", "it_dto_events B03"], |f| {
        Need::Datagrams.of(&f.a)?;
        let evd = sevd(&f.a, EventType::DTO_EVENT_STREAM, 128, 1)?;
        let pz = f.a.pz_create()?;
        let ep = f.a.ep_ud_create(pz, evd, evd, &datagrams(), 1)?;
        let ep_info = f.a.ep_query(ep, EpParamMask::ALL)?.attr.ud.ep_info;
        let region = f.region(&f.a, pz, 256, OPEN)?;
        // The endpoint sends to itself.
        let to = DgRemoteEpAddr::IbUd { addr: address(&f.a, pz, &f.a)?, ep_info };
        f.a.post_recvfrom(ep, &[region.segment(0, 128)], 1, RECV)?;
        f.a.post_sendto(ep, &[region.segment(128, 16)], 2, SIGNALLED, &to)?;
        let mut seen = Vec::new();
        for _ in 0..2 {
            let done = completion(&f.a, evd)?;
            check_eq!((done.dto_status, done.evd, done.ep), (DtoStatus::Success, evd, ep));
            seen.push((done.event_number, done.cookie));
        }
        check!(
            seen.contains(&(EventType::DTO_UD_RECV_CMPL, 1)) && seen.contains(&(EventType::DTO_SEND_CMPL, 2))
        );
        refused(f.a.evd_free(evd), Error::EvdBusy)?;
        f.a.ep_free(ep)?;
        f.a.evd_free(evd)?;
        Ok(())
    }),
    // An endpoint whose EVD overflowed is nonoperational, and the EVD takes no new endpoint.
    test(
        "ud::overflow_of_its_evd",
        &[
            "it_ep_ud_create B06 IT_ERR_INVALID_RECV_EVD_STATE IT_ERR_INVALID_REQ_EVD_STATE",
            "it_post_sendto S01",
            "it_post_recvfrom A02",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
            let request = sevd(&f.a, EventType::DTO_EVENT_STREAM, 1, 1)?;
            let room = evd_param(&f.a, request)?.sevd_queue_size;
            let recv = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
            let pz = f.a.pz_create()?;
            let wide = EpAttributes { max_request_dtos: room + 8, ..datagrams() };
            let ep = f.a.ep_ud_create(pz, request, recv, &wide, 1)?;
            let ep_info = f.a.ep_query(ep, EpParamMask::ALL)?.attr.ud.ep_info;
            let to = DgRemoteEpAddr::IbUd { addr: address(&f.a, pz, &f.b)?, ep_info };
            for cookie in 0..room as u64 + 4 {
                f.a.post_sendto(ep, &[], cookie, SIGNALLED, &to)?;
            }
            let (event, _) = f.a.evd_wait(affiliated, crate::fixture::WAIT)?;
            check_eq!(event.event_number(), EventType::ASYNC_AFF_SEVD_ENQUEUE_FAILURE);
            let own = Peer { ia: f.a.clone(), pz, request, recv, ep, info: ep_info };
            let lost = crate::thread::eventually(f.platform(), || own.works(false).is_ok());
            check!(lost, "the endpoint is still operational");
            let (good, attributes) = (sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?, datagrams());
            let created = f.a.ep_ud_create(pz, request, good, &attributes, 1);
            refused(created, Error::InvalidReqEvdState)?;
            let created = f.a.ep_ud_create(pz, good, request, &attributes, 1);
            refused(created, Error::InvalidRecvEvdState)
        },
    ),
    // The overflow of an EVD of completions ends all datagram endpoints on it, whichever of their
    // queues completes there.
    test("ud::overflow_ends_each_endpoint_on_the_evd", &["it_dto_events V02"], |f| {
        Need::Datagrams.of(&f.a)?;
        for receives in [true, false] {
            let full = sevd(&f.a, EventType::DTO_EVENT_STREAM, 1, 1)?;
            let other = sevd(&f.a, EventType::DTO_EVENT_STREAM, 128, 1)?;
            let room = evd_param(&f.a, full)?.sevd_queue_size;
            let pz = f.a.pz_create()?;
            let wide = EpAttributes { max_request_dtos: room + 8, max_recv_dtos: room + 8, ..datagrams() };
            let create = |request, recv| -> Result<Peer, Failure> {
                let ep = f.a.ep_ud_create(pz, request, recv, &wide, 1)?;
                let info = f.a.ep_query(ep, EpParamMask::ALL)?.attr.ud.ep_info;
                Ok(Peer { ia: f.a.clone(), pz, request, recv, ep, info })
            };
            let (request, recv) = if receives { (other, full) } else { (full, other) };
            let apart = create(other, other)?;
            let mut on_it = Vec::from([create(request, recv)?, create(request, recv)?]);
            on_it.push(create(recv, request)?);
            on_it.push(create(full, full)?);
            // The first endpoint sends to itself.
            let region = f.region(&f.a, pz, 64, OPEN)?;
            let to = DgRemoteEpAddr::IbUd { addr: address(&f.a, pz, &f.a)?, ep_info: on_it[0].info };
            for cookie in 0..room as u64 + 4 {
                let segment = [region.segment(0, 64)];
                let received = match receives {
                    true => f.a.post_recvfrom(on_it[0].ep, &segment, cookie, RECV),
                    false => Ok(()),
                };
                let sent = received.and_then(|()| f.a.post_sendto(on_it[0].ep, &[], cookie, SIGNALLED, &to));
                match sent {
                    // The EVD has overflowed already.
                    Err(Error::InvalidEpState) => break,
                    other => other?,
                }
            }
            for (n, peer) in on_it.iter().enumerate() {
                let lost = crate::thread::eventually(f.platform(), || peer.works(false).is_ok());
                check!(lost, "endpoint {n} is still operational (receives: {receives})");
            }
            apart.works(true)?;
        }
        Ok(())
    }),
];
