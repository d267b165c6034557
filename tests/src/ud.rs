//! Unreliable datagrams (pages it_ep_ud_create, it_post_sendto, it_post_recvfrom, it_dg_remote_ep_addr_t, and the UD parts of
//! it_ep_query, it_ep_modify, it_ep_reset, it_ep_state_t, it_ep_attributes_t, it_dto_events, it_dto_flags_t, it_dto_status_t).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{
    Fixture, MOMENT, OPEN, PAGE, Region, SIGNALLED, attributes, completion, evd_param, path, pattern, sevd,
    spigot,
};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// What the endpoints of these tests are reached by.
const KEY: u32 = 0x1234_5678;
/// Bytes in front of each message.
const FRONT: usize = 40;
const RECV: DtoFlags = SIGNALLED;

/// A datagram endpoint and all that belongs to it.
#[derive(Clone)]
pub(crate) struct Peer {
    pub ia: Ia,
    pub pz: PzHandle,
    pub request: EvdHandle,
    pub recv: EvdHandle,
    pub ep: EpHandle,
    pub info: RemoteEpInfo,
}

/// A privileged datagram endpoint's attributes.
pub(crate) fn datagrams() -> EpAttributes {
    EpAttributes {
        max_dto_payload_size: 512,
        ud: UdAttributes { ep_info: RemoteEpInfo { ud_ep_id: 0, ud_ep_key: KEY } },
        priv_ops_enable: true,
        ..EpAttributes::default()
    }
}

/// A datagram endpoint.
#[track_caller]
pub(crate) fn peer(ia: &Ia, attributes: &EpAttributes) -> Result<Peer, Failure> {
    let request = sevd(ia, EventType::DTO_EVENT_STREAM, attributes.max_request_dtos, 1)?;
    let recv = sevd(ia, EventType::DTO_EVENT_STREAM, attributes.max_recv_dtos, 1)?;
    let pz = ia.pz_create()?;
    let ep = ia.ep_ud_create(pz, request, recv, attributes, spigot(ia)?.spigot_id)?;
    let info = ia.ep_query(ep, EpParamMask::ALL)?.attr.ud.ep_info;
    Ok(Peer { ia: ia.clone(), pz, request, recv, ep, info })
}

/// An address handle in a zone for the other IA's node.
#[track_caller]
pub(crate) fn address(ia: &Ia, pz: PzHandle, to: &Ia) -> Result<AddrHandle, Failure> {
    let there = some(spigot(to)?.net_addr.first().copied(), "a network address")?;
    Ok(ia.address_handle_create(pz, &path(ia, &there)?, AhFlags::PATH_COMPLETE)?)
}

impl Peer {
    #[track_caller]
    fn state(&self) -> Result<EpState, Failure> {
        Ok(self.ia.ep_query(self.ep, EpParamMask::STATE)?.ep_state)
    }

    /// Fails unless the endpoint works, or does not.
    #[track_caller]
    fn works(&self, works: bool) -> Outcome {
        let expected = if works { EpStateUd::Operational } else { EpStateUd::Nonoperational };
        match self.state()? {
            EpState::Ud(state) if state == expected => Ok(()),
            other => Err(Failure::new(alloc::format!("{other:?}, expected {expected:?}"))),
        }
    }

    #[track_caller]
    fn sent(&self, cookie: u64, status: DtoStatus) -> Outcome {
        let done = completion(&self.ia, self.request)?;
        check_eq!((done.event_number, done.ep), (EventType::DTO_SEND_CMPL, self.ep));
        check_eq!((done.cookie, done.dto_status), (cookie, status));
        Ok(())
    }

    #[track_caller]
    fn received(&self, cookie: u64, status: DtoStatus) -> Result<DtoCompletion, Failure> {
        let done = completion(&self.ia, self.recv)?;
        check_eq!((done.event_number, done.ep), (EventType::DTO_UD_RECV_CMPL, self.ep));
        check_eq!((done.cookie, done.dto_status), (cookie, status));
        Ok(done)
    }

    /// Fails if anything was received.
    #[track_caller]
    fn silent(&self) -> Outcome {
        match self.ia.evd_wait(self.recv, MOMENT) {
            Err(error) if error == Error::TimeoutExpired => Ok(()),
            other => Err(Failure::new(alloc::format!("expected nothing, got {other:?}"))),
        }
    }

    /// Breaks the endpoint by a Send from memory that is none.
    #[track_caller]
    fn broken(&self, to: &DgRemoteEpAddr) -> Outcome {
        let nowhere = LmrTriplet::new(LmrHandle::NULL, 0, 8);
        self.ia.post_sendto(self.ep, &[nowhere], 99, SIGNALLED, to)?;
        self.sent(99, DtoStatus::LocalProtection)?;
        self.works(false)
    }
}

/// Two endpoints, `a`'s way to `b`, and memory of both.
pub(crate) struct Two {
    pub a: Peer,
    pub b: Peer,
    pub to_b: DgRemoteEpAddr,
    pub from: Region,
    pub into: Region,
}

#[track_caller]
fn two_of(f: &Fixture, a: &EpAttributes, b: &EpAttributes) -> Result<Two, Failure> {
    let (a, b) = (peer(&f.a, a)?, peer(&f.b, b)?);
    let to_b = DgRemoteEpAddr::IbUd { addr: address(&f.a, a.pz, &f.b)?, ep_info: b.info };
    let (from, into) = (f.region(&f.a, a.pz, PAGE, OPEN)?, f.region(&f.b, b.pz, 2 * PAGE, OPEN)?);
    from.fill(3);
    Ok(Two { a, b, to_b, from, into })
}

#[track_caller]
pub(crate) fn two(f: &Fixture) -> Result<Two, Failure> {
    two_of(f, &datagrams(), &datagrams())
}

fn with_info(to: &DgRemoteEpAddr, change: impl FnOnce(&mut RemoteEpInfo)) -> DgRemoteEpAddr {
    let DgRemoteEpAddr::IbUd { addr, mut ep_info } = *to;
    change(&mut ep_info);
    DgRemoteEpAddr::IbUd { addr, ep_info }
}

/// Every value of the seven flag bits that a rule allows.
fn legal(flags: DtoFlags, forbidden: DtoFlags, needed: DtoFlags) -> bool {
    let notify = !flags.contains(DtoFlags::NOTIFY) || flags.contains(DtoFlags::COMPLETION);
    !flags.intersects(forbidden) && flags.contains(needed) && notify
}

pub(crate) const TESTS: &[Test] = &[
    test(
        "ud::create_and_query",
        &[
            "it_ep_ud_create.B01",
            "it_ep_ud_create.B02",
            "it_ep_ud_create.S01",
            "it_ep_ud_create.B07",
            "it_ep_ud_create.B08",
            "it_ep_state_t.F08",
            "it_ep_state_t.F09",
            "it_ep_state_t.F11",
            "it_ep_state_t.S46",
            "it_ep_attributes_t.F08",
            "it_ep_query.F08",
            "it_ep_query.V01",
            "it_ep_query.IT_ERR_INVALID_EP_TYPE",
            "it_ia_info_t.F07",
        ],
        |f| {
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
            check!(one.info.ud_ep_id != other.info.ud_ep_id, "an ID of its own");
            check!(one.info.ud_ep_id > 1 && one.info.ud_ep_id < 1 << 24, "a queue pair's number");
            let id = f.a.ep_query(one.ep, EpParamMask::EP_ID)?.attr.ud.ep_info;
            check_eq!(id, RemoteEpInfo { ud_ep_id: one.info.ud_ep_id, ud_ep_key: 0 });
            check!(f.a.ep_query(one.ep, EpParamMask::CONN_SEVD)?.connect_sevd.is_null());
            // What only the other service type has cannot be asked for.
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
            f.a.ep_free(one.ep)?;
            refused(f.a.ep_query(one.ep, EpParamMask::ALL), Error::InvalidEp)?;
            f.a.evd_free(one.request)?;
            f.a.evd_free(one.recv)?;
            f.a.pz_free(one.pz)?;
            Ok(())
        },
    ),
    test(
        "ud::create_refuses",
        &[
            "it_ep_ud_create.IT_ERR_INVALID_PZ",
            "it_ep_ud_create.IT_ERR_INVALID_REQ_EVD",
            "it_ep_ud_create.IT_ERR_INVALID_RECV_EVD",
            "it_ep_ud_create.IT_ERR_INVALID_EVD_TYPE",
            "it_ep_ud_create.IT_ERR_INVALID_SPIGOT",
            "it_ep_ud_create.IT_ERR_PAYLOAD_SIZE",
            "it_ep_ud_create.IT_ERR_RESOURCE_REQ_DTO",
            "it_ep_ud_create.IT_ERR_RESOURCE_RECV_DTO",
            "it_ep_ud_create.IT_ERR_RESOURCE_SSEG",
            "it_ep_ud_create.IT_ERR_RESOURCE_RSEG",
            "it_ep_ud_create.IT_ERR_INVALID_EP_KEY",
            "it_ep_ud_create.IT_ERR_NO_PERMISSION",
            "it_status_t.F35",
        ],
        |f| {
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
            // What only RC endpoints have is not looked at.
            let rc =
                RcAttributes { rdma_read_ird: u32::MAX, max_rdma_read_segments: many, ..Default::default() };
            ia.ep_ud_create(pz, dto, dto, &EpAttributes { rc, ..good }, spigot_id)?;
            // A privileged consumer may have any key.
            peer(&f.a, &EpAttributes { ud: key(u32::MAX), ..datagrams() })?;
            Ok(())
        },
    ),
    test(
        "ud::endpoints_run_out_and_come_back",
        &["it_ep_ud_create.IT_ERR_RESOURCES", "it_ep_ud_create.B05"],
        |f| {
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
        },
    ),
    test(
        "ud::a_datagram_arrives",
        &[
            "it_ep_ud_create.B04",
            "it_ep_state_t.S48",
            "it_post_sendto.B01",
            "it_post_sendto.B04",
            "it_post_sendto.B05",
            "it_post_sendto.B06",
            "it_post_sendto.B07",
            "it_post_sendto.B08",
            "it_post_sendto.B09",
            "it_post_sendto.B10",
            "it_post_recvfrom.B02",
            "it_post_recvfrom.B03",
            "it_post_recvfrom.B05",
            "it_post_recvfrom.B06",
            "it_post_recvfrom.B08",
            "it_post_recvfrom.B10",
            "it_post_recvfrom.B11",
            "it_post_recvfrom.B12",
            "it_post_recvfrom.B14",
            "it_post_recvfrom.B15",
            "it_post_recvfrom.B18",
            "it_dto_events.F10",
            "it_dto_events.F17",
            "it_dto_events.F18",
            "it_dto_events.F19",
            "it_dto_events.B04",
            "it_event_t.F06",
            "it_dg_remote_ep_addr_t.F01",
            "it_dg_remote_ep_addr_t.F02",
            "it_dg_remote_ep_addr_t.F03",
            "it_dg_remote_ep_addr_t.F04",
        ],
        |f| {
            let two = two(f)?;
            check_eq!(EventType::DTO_UD_RECV_CMPL.as_raw(), 3);
            // Odd addresses, several segments, and sources that overlap.
            let mut places = Vec::from([two.into.segment(1, 17), two.into.segment(101, 300)]);
            two.b.ia.post_recvfrom(two.b.ep, &places, 7, RECV)?;
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(PAGE, 400)], 8, RECV)?;
            // The array is the consumer's again.
            places.fill(LmrTriplet::new(LmrHandle::NULL, 0, 0));
            let mut pieces =
                Vec::from([two.from.segment(3, 50), two.from.segment(40, 20), two.from.segment(1000, 31)]);
            two.a.ia.post_sendto(two.a.ep, &pieces, 5, SIGNALLED, &two.to_b)?;
            pieces.fill(LmrTriplet::new(LmrHandle::NULL, 0, 0));
            two.a.sent(5, DtoStatus::Success)?;
            let done = two.b.received(7, DtoStatus::Success)?;
            check_eq!((done.transferred_length, done.evd), (141, two.b.recv));
            check_eq!(done.ud_ep_id, two.a.info.ud_ep_id);
            check!(done.unlinked_mr_handle.is_null());
            let mut expected = two.from.bytes(3, 50);
            expected.extend(two.from.bytes(40, 20));
            expected.extend(two.from.bytes(1000, 31));
            let mut landed = two.into.bytes(1, 17);
            landed.extend(two.into.bytes(101, 300));
            check_eq!(landed[FRONT..141], expected[..]);
            check!(landed[141..].iter().all(|&byte| byte == 0), "bytes behind the message were written");
            check!(
                two.into.bytes(PAGE, PAGE).iter().all(|&byte| byte == 0),
                "one Receive takes one datagram"
            );
            check_eq!(done.flags, DtoUdFlags::IB_GRH_PRESENT);
            check_eq!(DtoUdFlags::IB_GRH_PRESENT.bits(), 1);
            // Version 6, and both GIDs.
            check_eq!(landed[0] >> 4, 6);
            let gid = |ia: &Ia| match spigot(ia)?.net_addr.first() {
                Some(NetAddr::IbGid(gid)) => Ok(*gid),
                other => Err(Failure::new(alloc::format!("not a GID: {other:?}"))),
            };
            check_eq!((&landed[8..24], &landed[24..40]), (&gid(&f.a)?[..], &gid(&f.b)?[..]));
            two.b.silent()?;
            two.a.works(true)?;
            two.b.works(true)
        },
    ),
    test(
        "ud::every_length",
        &[
            "it_post_sendto.B03",
            "it_post_recvfrom.L01",
            "it_ia_info_t.F11",
            "it_post_sendto.B11",
            "it_post_recvfrom.B17",
        ],
        |f| {
            let longest = spigot(&f.a)?.max_ud_send_len;
            check!((256..=PAGE).contains(&longest), "{longest} bytes");
            let attributes = EpAttributes { max_dto_payload_size: longest, ..datagrams() };
            let two = two_of(f, &attributes, &attributes)?;
            for (cookie, length) in [0, 1, 39, 255, longest - 1, longest].into_iter().enumerate() {
                let cookie = cookie as u64;
                // Exactly as much room as it needs.
                let room = two.into.segment(5, FRONT + length);
                two.b.ia.post_recvfrom(two.b.ep, &[room], cookie, RECV)?;
                let segment = [two.from.segment(0, length)];
                let segments = if length == 0 { &[][..] } else { &segment[..] };
                two.a.ia.post_sendto(two.a.ep, segments, cookie, SIGNALLED, &two.to_b)?;
                two.a.sent(cookie, DtoStatus::Success)?;
                let done = two.b.received(cookie, DtoStatus::Success)?;
                check_eq!(done.transferred_length as usize, FRONT + length);
                check_eq!(two.into.bytes(5 + FRONT, length), pattern(3, PAGE)[..length]);
            }
            // In the order in which they were posted.
            for cookie in 0..16 {
                let room = two.into.segment(cookie as usize * 100, 64);
                two.b.ia.post_recvfrom(two.b.ep, &[room], cookie, RECV)?;
            }
            for cookie in 0..16 {
                let segment = two.from.segment(cookie as usize, 1);
                two.a.ia.post_sendto(two.a.ep, &[segment], cookie, SIGNALLED, &two.to_b)?;
            }
            for cookie in 0..16 {
                two.a.sent(cookie, DtoStatus::Success)?;
                two.b.received(cookie, DtoStatus::Success)?;
            }
            Ok(())
        },
    ),
    test(
        "ud::every_flag_of_sendto",
        &["it_post_sendto.IT_ERR_INVALID_DTO_FLAGS", "it_dto_flags_t.B06", "it_dto_flags_t.B14"],
        |f| {
            let two = two(f)?;
            let forbidden = DtoFlags::BARRIER_FENCE | DtoFlags::UNLINK_FENCE | DtoFlags::UNLINK_LOCAL_SINK;
            for bits in 0..=0x7f {
                let flags = DtoFlags::from_bits_retain(bits);
                let posted = two.a.ia.post_sendto(two.a.ep, &[], u64::from(bits), flags, &two.to_b);
                if !legal(flags, forbidden, DtoFlags::empty()) {
                    refused(posted, Error::InvalidDtoFlags)?;
                    continue;
                }
                posted?;
                if flags.contains(DtoFlags::COMPLETION) {
                    // A threshold of one: taken, whether it notifies or not.
                    two.a.sent(u64::from(bits), DtoStatus::Success)?;
                }
            }
            for bits in [0x80, 0x81, 0x8000_0001] {
                let flags = DtoFlags::from_bits_retain(bits);
                let posted = two.a.ia.post_sendto(two.a.ep, &[], 1, flags, &two.to_b);
                refused(posted, Error::InvalidDtoFlags)?;
            }
            two.a.works(true)
        },
    ),
    test(
        "ud::every_flag_of_recvfrom",
        &[
            "it_post_recvfrom.B09",
            "it_post_recvfrom.IT_ERR_INVALID_DTO_FLAGS",
            "it_dto_flags_t.B06",
            "it_dto_flags_t.B16",
        ],
        |f| {
            let two = two(f)?;
            let forbidden = DtoFlags::BARRIER_FENCE
                | DtoFlags::UNLINK_FENCE
                | DtoFlags::SOLICITED_WAIT
                | DtoFlags::UNLINK_LOCAL_SINK;
            for bits in 0..=0x7f {
                let flags = DtoFlags::from_bits_retain(bits);
                let cookie = u64::from(bits);
                let posted = two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 64)], cookie, flags);
                if legal(flags, forbidden, DtoFlags::COMPLETION) {
                    posted?;
                    two.a.ia.post_sendto(two.a.ep, &[], cookie, SIGNALLED, &two.to_b)?;
                    two.a.sent(cookie, DtoStatus::Success)?;
                    two.b.received(cookie, DtoStatus::Success)?;
                } else {
                    refused(posted, Error::InvalidDtoFlags)?;
                }
            }
            let undefined = DtoFlags::from_bits_retain(0x81);
            let posted = two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 64)], 1, undefined);
            refused(posted, Error::InvalidDtoFlags)
        },
    ),
    test(
        "ud::posts_that_are_refused",
        &[
            "A.it_post_sendto.V02",
            "it_post_sendto.IT_ERR_INVALID_EP",
            "it_post_sendto.IT_ERR_INVALID_EP_TYPE",
            "it_post_sendto.IT_ERR_INVALID_NUM_SEGMENTS",
            "it_post_sendto.IT_ERR_TOO_MANY_POSTS",
            "it_post_sendto.IT_ERR_INVALID_AH",
            "it_post_recvfrom.B01",
            "it_post_recvfrom.L02",
            "it_post_recvfrom.V01",
            "it_post_recvfrom.IT_ERR_INVALID_EP",
            "it_post_recvfrom.IT_ERR_INVALID_EP_TYPE",
            "it_post_recvfrom.IT_ERR_INVALID_NUM_SEGMENTS",
            "it_post_recvfrom.IT_ERR_TOO_MANY_POSTS",
            "it_address_handle_create.B03",
            "it_pz_create.A04",
            "it_status_t.F23",
        ],
        |f| {
            let narrow = EpAttributes { max_request_dtos: 4, max_recv_dtos: 4, ..datagrams() };
            let two = two_of(f, &narrow, &narrow)?;
            let (ia, ep) = (&two.a.ia, two.a.ep);
            let gone = peer(ia, &narrow)?.ep;
            ia.ep_free(gone)?;
            let foreign = peer(&f.another(None)?, &EpAttributes { priv_ops_enable: false, ..narrow })?.ep;
            let segment = two.from.segment(0, 64);
            for ep in [EpHandle::NULL, gone, foreign, EpHandle::from_raw(two.a.pz.as_raw())] {
                refused(ia.post_sendto(ep, &[segment], 1, SIGNALLED, &two.to_b), Error::InvalidEp)?;
                refused(ia.post_recvfrom(ep, &[segment], 1, RECV), Error::InvalidEp)?;
            }
            let rc = f.end(ia, &attributes())?;
            refused(ia.post_sendto(rc.ep, &[segment], 1, SIGNALLED, &two.to_b), Error::InvalidEpType)?;
            refused(ia.post_recvfrom(rc.ep, &[segment], 1, RECV), Error::InvalidEpType)?;
            let attr = ia.ep_query(ep, EpParamMask::ALL)?.attr;
            let many = alloc::vec![segment; attr.max_send_segments.max(attr.max_recv_segments) + 1];
            let sent = ia.post_sendto(ep, &many[..=attr.max_send_segments], 1, SIGNALLED, &two.to_b);
            refused(sent, Error::InvalidNumSegments)?;
            let posted = ia.post_recvfrom(ep, &many[..=attr.max_recv_segments], 1, RECV);
            refused(posted, Error::InvalidNumSegments)?;
            refused(ia.post_recvfrom(ep, &[], 1, RECV), Error::InvalidNumSegments)?;
            // Address handles: none, freed, another IA's, another type's, another zone's.
            let freed = address(ia, two.a.pz, &f.b)?;
            ia.address_handle_free(freed)?;
            let elsewhere = address(ia, ia.pz_create()?, &f.b)?;
            let others = address(&f.b, two.b.pz, &f.a)?;
            for addr in [AddrHandle::NULL, freed, elsewhere, others, AddrHandle::from_raw(ep.as_raw())] {
                let to = DgRemoteEpAddr::IbUd { addr, ep_info: two.b.info };
                refused(ia.post_sendto(ep, &[segment], 1, SIGNALLED, &to), Error::InvalidAh)?;
            }
            check_eq!(Error::InvalidAh as u32, 22);
            // Nothing of all that is in the queues. What is posted and not known to be complete counts.
            for cookie in 0..4 {
                ia.post_recvfrom(ep, &[segment], cookie, RECV)?;
                ia.post_sendto(ep, &[segment], cookie, SIGNALLED, &two.to_b)?;
            }
            refused(ia.post_recvfrom(ep, &[segment], 4, RECV), Error::TooManyPosts)?;
            refused(ia.post_sendto(ep, &[segment], 4, SIGNALLED, &two.to_b), Error::TooManyPosts)?;
            for cookie in 0..4 {
                two.a.sent(cookie, DtoStatus::Success)?;
            }
            ia.post_sendto(ep, &[segment], 4, SIGNALLED, &two.to_b)?;
            two.a.sent(4, DtoStatus::Success)?;
            two.a.works(true)
        },
    ),
    test(
        "ud::calls_for_rc_endpoints",
        &[
            "it_ep_accept.B01",
            "it_ep_connect.B01",
            "it_post_send.IT_ERR_INVALID_EP_TYPE",
            "it_post_recv.IT_ERR_INVALID_EP_TYPE",
            "it_post_rdma_write.IT_ERR_INVALID_EP_TYPE",
            "it_post_rdma_read.IT_ERR_INVALID_EP_TYPE",
            "it_lmr_unlink.IT_ERR_INVALID_EP_TYPE",
            "it_ep_reset.V01",
            "it_ep_state_t.V02",
            "it_ep_reset.IT_ERR_INVALID_EP_TYPE",
            "it_ep_connect.IT_ERR_INVALID_EP_TYPE",
            "it_ep_accept.IT_ERR_INVALID_EP_TYPE",
            "it_ep_disconnect.IT_ERR_INVALID_EP_TYPE",
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
    test(
        "ud::memory_that_may_not_be_used",
        &[
            "it_ep_ud_create.B03",
            "it_post_sendto.A06",
            "it_post_recvfrom.B04",
            "it_post_recvfrom.A05",
            "it_dto_status_t.B05",
        ],
        |f| {
            let readable = MemPriv::LOCAL_READ;
            for way in 0..4 {
                let plain = EpAttributes { priv_ops_enable: false, ..datagrams() };
                let two = two_of(f, &plain, &plain)?;
                let ia = &two.a.ia;
                let zone = f.region(ia, ia.pz_create()?, 64, OPEN)?;
                let segment = match way {
                    // Never linked.
                    0 => {
                        let lmr = ia.lmr_create_unlinked(two.a.pz, 1, LmrFlags::NONE, 0)?;
                        LmrTriplet::new(lmr, two.from.buffer.addr() as u64, 8)
                    }
                    1 => zone.whole(),
                    2 => LmrTriplet::direct(crate::iobl::map(ia, &two.from.buffer)?, 8),
                    _ => two.from.segment(PAGE - 4, 8),
                };
                ia.post_sendto(two.a.ep, &[segment], 1, SIGNALLED, &two.to_b)?;
                two.a.sent(1, DtoStatus::LocalProtection)?;
                two.a.works(false)?;
                // And as the sink of a datagram.
                let ia = &two.b.ia;
                let sink = f.region(ia, two.b.pz, 64, readable)?;
                let zone = f.region(ia, ia.pz_create()?, 64, OPEN)?;
                let segment = match way {
                    0 => sink.whole(),
                    1 => zone.whole(),
                    2 => LmrTriplet::direct(crate::iobl::map(ia, &two.into.buffer)?, 64),
                    _ => two.into.segment(2 * PAGE - 60, 64),
                };
                ia.post_recvfrom(two.b.ep, &[segment], 2, RECV)?;
                let sender = peer(&f.a, &datagrams())?;
                let addr = address(&f.a, sender.pz, &f.b)?;
                let to = DgRemoteEpAddr::IbUd { addr, ep_info: two.b.info };
                f.a.post_sendto(sender.ep, &[], 3, SIGNALLED, &to)?;
                sender.sent(3, DtoStatus::Success)?;
                two.b.received(2, DtoStatus::LocalProtection)?;
                two.b.works(false)?;
                sink.untouched()?;
                zone.untouched()?;
                two.into.untouched()?;
                sender.works(true)?;
                for peer in [&two.a, &two.b, &sender] {
                    peer.ia.ep_free(peer.ep)?;
                }
            }
            Ok(())
        },
    ),
    test("ud::receives_that_overlap", &["it_post_recvfrom.B07"], |f| {
        let two = two(f)?;
        // What is in the bytes that overlap is nobody's business; the rest of the world is as it was.
        let places = [two.into.segment(0, 60), two.into.segment(30, 60), two.into.segment(50, 60)];
        two.b.ia.post_recvfrom(two.b.ep, &places, 1, RECV)?;
        two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, 140)], 2, SIGNALLED, &two.to_b)?;
        two.a.sent(2, DtoStatus::Success)?;
        check_eq!(two.b.received(1, DtoStatus::Success)?.transferred_length, 180);
        check!(two.into.bytes(110, PAGE).iter().all(|&byte| byte == 0), "bytes outside were written");
        two.b.works(true)
    }),
    test("ud::the_direct_lmr_handle", &["it_post_recvfrom.B05"], |f| {
        let two = two(f)?;
        let from = crate::iobl::map(&f.a, &two.from.buffer)?;
        let into = crate::iobl::map(&f.b, &two.into.buffer)?;
        two.b.ia.post_recvfrom(two.b.ep, &[LmrTriplet::direct(into, 140)], 1, RECV)?;
        two.a.ia.post_sendto(two.a.ep, &[LmrTriplet::direct(from, 100)], 2, SIGNALLED, &two.to_b)?;
        two.a.sent(2, DtoStatus::Success)?;
        check_eq!(two.b.received(1, DtoStatus::Success)?.transferred_length, 140);
        check_eq!(two.into.bytes(FRONT, 100), two.from.bytes(0, 100));
        Ok(())
    }),
    test(
        "ud::lengths_that_are_wrong",
        &[
            "it_post_sendto.A04",
            "it_post_recvfrom.A04",
            "it_dto_status_t.F02",
            "it_dto_status_t.F03",
            "it_dto_status_t.F04",
            "it_dto_status_t.B05",
            "it_ep_state_t.A07",
            "it_ep_state_t.A08",
            "it_post_sendto.A02",
            "it_post_sendto.V01",
            "it_post_recvfrom.A01",
        ],
        |f| {
            // Longer than the endpoint's payload: the sender's error.
            let two_a = two(f)?;
            let (ia, ep) = (&two_a.a.ia, two_a.a.ep);
            ia.post_sendto(ep, &[two_a.from.segment(0, 512)], 1, SIGNALLED, &two_a.to_b)?;
            two_a.a.sent(1, DtoStatus::Success)?;
            ia.post_recvfrom(ep, &[two_a.from.segment(0, 64)], 9, RECV)?;
            ia.post_sendto(ep, &[two_a.from.segment(0, 513)], 2, SIGNALLED, &two_a.to_b)?;
            two_a.a.sent(2, DtoStatus::LocalLength)?;
            two_a.a.works(false)?;
            // What was pending is flushed, and what is posted still.
            two_a.a.received(9, DtoStatus::Flushed)?;
            ia.post_sendto(ep, &[two_a.from.segment(0, 8)], 3, SIGNALLED, &two_a.to_b)?;
            two_a.a.sent(3, DtoStatus::Flushed)?;
            ia.post_recvfrom(ep, &[two_a.from.segment(0, 64)], 4, RECV)?;
            two_a.a.received(4, DtoStatus::Flushed)?;
            two_a.b.works(true)?;
            // A Receive that is too small by one byte, and one that is too small for anything.
            for (room, length) in [(FRONT + 99, 100), (FRONT - 1, 0), (0, 0)] {
                let two = two(f)?;
                two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, room)], 5, RECV)?;
                two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 200)], 6, RECV)?;
                two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, length)], 7, SIGNALLED, &two.to_b)?;
                two.a.sent(7, DtoStatus::Success)?;
                two.b.received(5, DtoStatus::LocalLength)?;
                two.b.received(6, DtoStatus::Flushed)?;
                two.b.works(false)?;
                two.into.untouched()?;
                two.a.works(true)?;
            }
            // Longer than the receiving endpoint's payload, though the Receive has room.
            let short = EpAttributes { max_dto_payload_size: 64, ..datagrams() };
            let two = two_of(f, &datagrams(), &short)?;
            for (length, status) in [(64, DtoStatus::Success), (65, DtoStatus::LocalLength)] {
                two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 500)], 5, RECV)?;
                two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, length)], 7, SIGNALLED, &two.to_b)?;
                two.a.sent(7, DtoStatus::Success)?;
                two.b.received(5, status)?;
            }
            two.b.works(false)
        },
    ),
    test(
        "ud::what_nobody_takes_is_lost",
        &["it_post_sendto.B02", "it_post_sendto.B13", "it_dto_status_t.F05", "it_cm_msg_events.F51"],
        |f| {
            let two = two(f)?;
            let segment = [two.from.segment(0, 8)];
            // No Receive, no such endpoint, an RC endpoint, the wrong key, an endpoint that is gone.
            let rc = f.end(&f.b, &attributes())?;
            let gone = peer(&f.b, &datagrams())?;
            f.b.ep_free(gone.ep)?;
            let rc_id = f.b.ep_qpn(rc.ep)?;
            let ways = [
                two.to_b,
                with_info(&two.to_b, |info| info.ud_ep_id = 0xff_fff0),
                with_info(&two.to_b, |info| info.ud_ep_id = 0),
                with_info(&two.to_b, |info| info.ud_ep_id = rc_id),
                with_info(&two.to_b, |info| info.ud_ep_key += 1),
                with_info(&two.to_b, |info| info.ud_ep_id = gone.info.ud_ep_id),
            ];
            for (cookie, to) in ways.iter().enumerate() {
                two.a.ia.post_sendto(two.a.ep, &segment, cookie as u64, SIGNALLED, to)?;
                two.a.sent(cookie as u64, DtoStatus::Success)?;
                if cookie == 0 {
                    two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 64)], 77, RECV)?;
                }
            }
            two.b.silent()?;
            two.b.works(true)?;
            // It still works.
            two.a.ia.post_sendto(two.a.ep, &segment, 50, SIGNALLED, &two.to_b)?;
            two.a.sent(50, DtoStatus::Success)?;
            two.b.received(77, DtoStatus::Success)?;
            // An ID that no queue pair can have is an inconsistency.
            let nonsense = with_info(&two.to_b, |info| info.ud_ep_id = 1 << 24);
            two.a.ia.post_sendto(two.a.ep, &segment, 51, SIGNALLED, &nonsense)?;
            two.a.sent(51, DtoStatus::LocalEp)?;
            two.a.works(false)
        },
    ),
    test(
        "ud::the_key",
        &[
            "it_ep_modify.F08",
            "it_ep_modify.IT_ERR_INVALID_EP_KEY",
            "it_ep_attributes_t.F09",
            "it_ep_state_t.S47",
        ],
        |f| {
            let two = two(f)?;
            let key = |ud_ep_key| EpAttributes {
                ud: UdAttributes { ep_info: RemoteEpInfo { ud_ep_id: 7, ud_ep_key } },
                ..datagrams()
            };
            let send = |to: &DgRemoteEpAddr, cookie| -> Outcome {
                two.a.ia.post_sendto(two.a.ep, &[], cookie, SIGNALLED, to)?;
                two.a.sent(cookie, DtoStatus::Success)
            };
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 64)], 1, RECV)?;
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(64, 64)], 2, RECV)?;
            two.b.ia.ep_modify(two.b.ep, EpParamMask::EP_KEY, &key(0x77))?;
            let info = two.b.ia.ep_query(two.b.ep, EpParamMask::ALL)?.attr.ud.ep_info;
            check_eq!(info, RemoteEpInfo { ud_ep_id: two.b.info.ud_ep_id, ud_ep_key: 0x77 });
            send(&two.to_b, 1)?;
            two.b.silent()?;
            send(&with_info(&two.to_b, |info| info.ud_ep_key = 0x77), 2)?;
            two.b.received(1, DtoStatus::Success)?;
            // The top bit stands for the sender's own key, which is not the receiver's yet.
            let own = with_info(&two.to_b, |info| info.ud_ep_key = 1 << 31);
            send(&own, 3)?;
            two.b.silent()?;
            two.a.ia.ep_modify(two.a.ep, EpParamMask::EP_KEY, &key(0x77))?;
            send(&own, 4)?;
            two.b.received(2, DtoStatus::Success)?;
            // In the other state, too; and not for everybody.
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
    test(
        "ud::modify_refuses",
        &["it_ep_attributes_t.S02", "it_ep_state_t.S49", "it_ep_modify.IT_ERR_INVALID_EP_TYPE"],
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
                    // All or nothing: the key is not changed either.
                    refused(f.a.ep_modify(two.a.ep, mask | EpParamMask::EP_KEY, &changed), error)?;
                }
                f.a.ep_modify(two.a.ep, EpParamMask::empty(), &changed)?;
                check_eq!(f.a.ep_query(two.a.ep, EpParamMask::ALL)?, EpParam { ep_state, ..before });
                Ok(())
            };
            unchanged(EpState::Ud(EpStateUd::Operational))?;
            two.a.broken(&two.to_b)?;
            // Nothing makes it work again.
            unchanged(EpState::Ud(EpStateUd::Nonoperational))?;
            refused(f.a.ep_reset(two.a.ep), Error::InvalidEpType)?;
            two.a.works(false)?;
            f.a.ep_free(two.a.ep)?;
            Ok(())
        },
    ),
    test(
        "ud::an_answer_to_the_sender",
        &[
            "it_address_handle_create.B05",
            "it_address_handle_create.F01",
            "it_dto_events.F20",
            "it_dto_events.B07",
        ],
        |f| {
            let two = two(f)?;
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 200)], 1, RECV)?;
            two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, 8)], 1, SIGNALLED, &two.to_b)?;
            let asked = two.b.received(1, DtoStatus::Success)?;
            let front = two.into.bytes(0, FRONT);
            let way = some(asked.src_path(&front), "a way back")?;
            check_eq!(Some(way), Path::of_sender(&front));
            check!(asked.src_path(&front[1..]).is_none());
            let sent = completion(&two.a.ia, two.a.request)?;
            check!(sent.src_path(&front).is_none(), "a Send has no sender");
            // What the sender sent by.
            let there = some(spigot(&two.b.ia)?.net_addr.first().copied(), "a network address")?;
            let (by, of) = (path(&two.a.ia, &there)?, some(way.ib().copied(), "an InfiniBand path")?);
            let by = some(by.ib().copied(), "an InfiniBand path")?;
            check_eq!((of.sl, of.remote_port_lid), (by.sl, by.local_port_lid));
            check_eq!(of.remote_port_gid, by.local_port_gid);
            let addr = two.b.ia.address_handle_create(two.b.pz, &way, AhFlags::empty())?;
            two.a.ia.post_recvfrom(two.a.ep, &[two.from.segment(100, 200)], 2, RECV)?;
            let ep_info = RemoteEpInfo { ud_ep_id: asked.ud_ep_id, ud_ep_key: KEY };
            let to = DgRemoteEpAddr::IbUd { addr, ep_info };
            two.b.ia.post_sendto(two.b.ep, &[two.into.segment(FRONT, 8)], 3, SIGNALLED, &to)?;
            two.b.sent(3, DtoStatus::Success)?;
            check_eq!(two.a.received(2, DtoStatus::Success)?.ud_ep_id, two.b.info.ud_ep_id);
            check_eq!(two.from.bytes(100 + FRONT, 8), two.from.bytes(0, 8));
            // The other way is complete, and can be used as such.
            let full = two.b.ia.address_handle_query(addr, AddrParamMask::PATH)?.path;
            two.b.ia.address_handle_create(two.b.pz, &full, AhFlags::PATH_COMPLETE)?;
            Ok(())
        },
    ),
    test("ud::one_dispatcher_for_both_queues", &["it_ep_ud_create.B05", "it_dto_events.B03"], |f| {
        let evd = sevd(&f.a, EventType::DTO_EVENT_STREAM, 128, 1)?;
        let pz = f.a.pz_create()?;
        let ep = f.a.ep_ud_create(pz, evd, evd, &datagrams(), 1)?;
        let ep_info = f.a.ep_query(ep, EpParamMask::ALL)?.attr.ud.ep_info;
        let region = f.region(&f.a, pz, 256, OPEN)?;
        // To itself.
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
    test(
        "ud::overflow_of_its_dispatcher",
        &[
            "it_dto_events.V02",
            "it_ep_ud_create.B06",
            "it_ep_ud_create.IT_ERR_INVALID_REQ_EVD_STATE",
            "it_ep_ud_create.IT_ERR_INVALID_RECV_EVD_STATE",
            "it_post_sendto.S01",
            "it_post_recvfrom.A02",
        ],
        |f| {
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
            check!(lost, "the endpoint works on");
            let (good, attributes) = (sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?, datagrams());
            let created = f.a.ep_ud_create(pz, request, good, &attributes, 1);
            refused(created, Error::InvalidReqEvdState)?;
            let created = f.a.ep_ud_create(pz, good, request, &attributes, 1);
            refused(created, Error::InvalidRecvEvdState)
        },
    ),
];
