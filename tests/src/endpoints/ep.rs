//! RC endpoints: creating and querying them (pages it_ep_rc_create, it_ep_attributes_t,
//! it_ep_query).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::fixture::{CONFIG, End, Fixture, Listener, OPEN, SIGNALLED, attributes, sevd};
use crate::{Failure, Test, check, check_eq, refused, test};

/// Tries to create an endpoint with these attributes.
fn create(end: &End, attributes: &EpAttributes) -> Result<EpHandle, Error> {
    end.ia.ep_rc_create(end.pz, end.request, end.recv, end.conn, EpFlags::empty(), attributes)
}

/// All parameters of the endpoint.
pub(crate) fn query(end: &End) -> Result<EpParam, Failure> {
    Ok(end.ia.ep_query(end.ep, EpParamMask::ALL)?)
}

/// The results of the posting calls on the endpoint: receive, send, write, read.
pub(crate) fn posts(end: &End) -> [Result<(), Error>; 4] {
    let End { ia, ep, .. } = end;
    [
        ia.post_recv(*ep, &[], 1, DtoFlags::COMPLETION),
        ia.post_send(*ep, &[], 2, SIGNALLED),
        ia.post_rdma_write(*ep, &[], 3, SIGNALLED, RdmaAddr(0), RmrContext(0)),
        ia.post_rdma_read(*ep, &[], 4, SIGNALLED, RdmaAddr(0), RmrContext(0)),
    ]
}

/// What [`posts`] returns where only Receives can be posted.
pub(crate) const ONLY_RECEIVES: [Result<(), Error>; 4] = {
    let no = Err(Error::InvalidEpState);
    [Ok(()), no, no, no]
};

/// An endpoint whose connection has ended.
pub(crate) fn nonoperational(f: &Fixture) -> Result<End, Failure> {
    let pair = f.pair()?;
    pair.a.ia.ep_disconnect(pair.a.ep, &[])?;
    pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
    Ok(pair.a)
}

/// Accepts requests until that of `active` has been accepted. Requests of endpoints that no longer
/// exist may come first.
pub(crate) fn accepted(f: &Fixture, listener: &Listener, active: &End) -> Result<End, Failure> {
    loop {
        let end = f.end(&listener.ia, &attributes())?;
        let request = listener.request()?;
        let accepted = listener.ia.ep_accept(end.ep, request.cn_est_id, &[]);
        // The private data shows which endpoint sent the request.
        if request.private_data.is_some_and(|data| data.starts_with(b"living")) {
            accepted?;
            active.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
            return Ok(end);
        }
        listener.ia.ep_free(end.ep)?;
    }
}

/// The mask values that `it_ep_modify` refuses in every state.
const FIXED: [EpParamMask; 17] = [
    EpParamMask::ALL,
    EpParamMask::IA,
    EpParamMask::SPIGOT,
    EpParamMask::STATE,
    EpParamMask::SERV_TYPE,
    EpParamMask::PATH,
    EpParamMask::PZ,
    EpParamMask::REQ_SEVD,
    EpParamMask::RECV_SEVD,
    EpParamMask::CONN_SEVD,
    EpParamMask::MAX_RDMA_READ_SEG,
    EpParamMask::MAX_RDMA_WRITE_SEG,
    EpParamMask::EP_ID,
    EpParamMask::MAX_SEND_SEG,
    EpParamMask::MAX_RECV_SEG,
    EpParamMask::SRQ,
    EpParamMask::PRIV_OPS_ENABLE,
];

pub(crate) const TESTS: &[Test] = &[
    // A new endpoint is unconnected and has at least the attributes that were asked for.
    test(
        "ep::create_and_query",
        &[
            "A.it_ep_attributes_t L01 L02 O01",
            "it_ep_rc_create B01 B02 B12 B13 S01",
            "it_ep_state_t F01 F10 S01",
            "it_ep_query F01 F02 F04 F05 F09-F13",
            "it_ep_attributes_t L02",
        ],
        |f| {
            let asked = EpAttributes {
                max_dto_payload_size: 12345,
                max_request_dtos: 17,
                max_recv_dtos: 9,
                max_send_segments: 3,
                max_recv_segments: 2,
                priv_ops_enable: true,
                rc: RcAttributes {
                    rdma_read_enable: true,
                    rdma_write_enable: false,
                    max_rdma_read_segments: 1,
                    max_rdma_write_segments: 5,
                    rdma_read_ird: 3,
                    rdma_read_ord: 2,
                    ..RcAttributes::default()
                },
                ..EpAttributes::default()
            };
            let end = f.end(&f.a, &asked)?;
            let param = query(&end)?;
            check_eq!((param.ia, param.pz), (f.a.handle(), end.pz));
            check_eq!(
                (param.request_sevd, param.recv_sevd, param.connect_sevd),
                (end.request, end.recv, end.conn)
            );
            check_eq!(param.ep_state, EpState::Rc(EpStateRc::Unconnected));
            check_eq!((EpStateRc::Unconnected as u32, param.service_type), (0, ServiceTypes::RC));
            let got = param.attr;
            check_eq!((got.max_dto_payload_size, got.priv_ops_enable), (12345, true));
            check!(got.max_request_dtos >= 17 && got.max_recv_dtos >= 9);
            check!(got.max_send_segments >= 3 && got.max_recv_segments >= 2);
            check!(got.rc.max_rdma_read_segments >= 1 && got.rc.max_rdma_write_segments >= 5);
            check_eq!((got.rc.rdma_read_enable, got.rc.rdma_write_enable), (true, false));
            check!(got.rc.rdma_read_ird >= 3);
            check_eq!(got.rc.rdma_read_ord, 2);
            check_eq!(f.a.object_counts().ep, 1);
            Ok(())
        },
    ),
    // A query fills in only the fields that its mask names.
    test("ep::only_what_the_mask_names", &["it_ep_query B01"], |f| {
        let end = f.end(&f.a, &attributes())?;
        let all = query(&end)?;
        let one = f.a.ep_query(end.ep, EpParamMask::PZ | EpParamMask::STATE)?;
        check_eq!((one.pz, one.ep_state), (all.pz, all.ep_state));
        check_eq!((one.ia, one.request_sevd), (IaHandle::NULL, EvdHandle::NULL));
        Ok(())
    }),
    // An endpoint without a shared receive queue reports no watermarks.
    test("ep::no_srq_no_watermarks", &["it_ep_attributes_t B07 B09 F02", "1 O01"], |f| {
        check_eq!(HARD_HI_WATERMARK_DISABLE, usize::MAX);
        // Without the SRQ flag these three attributes are ignored.
        let mut odd = attributes();
        odd.rc.srq = SrqHandle::from_raw(77);
        (odd.rc.soft_hi_watermark, odd.rc.hard_hi_watermark) = (5, 5);
        let end = f.end(&f.a, &odd)?;
        let rc = query(&end)?.attr.rc;
        check!(rc.srq.is_null());
        check_eq!((rc.soft_hi_watermark, rc.hard_hi_watermark), (0, 0));
        Ok(())
    }),
    // The mask bits have the header's values.
    test("ep::mask_values", &["it_ep_attributes_t F01"], |_| {
        let order = [
            EpParamMask::ALL,
            EpParamMask::IA,
            EpParamMask::SPIGOT,
            EpParamMask::STATE,
            EpParamMask::SERV_TYPE,
            EpParamMask::PATH,
            EpParamMask::PZ,
            EpParamMask::REQ_SEVD,
            EpParamMask::RECV_SEVD,
            EpParamMask::CONN_SEVD,
            EpParamMask::RDMA_RD_ENABLE,
            EpParamMask::RDMA_WR_ENABLE,
            EpParamMask::MAX_RDMA_READ_SEG,
            EpParamMask::MAX_RDMA_WRITE_SEG,
            EpParamMask::MAX_IRD,
            EpParamMask::MAX_ORD,
            EpParamMask::EP_ID,
            EpParamMask::EP_KEY,
            EpParamMask::MAX_PAYLOAD,
            EpParamMask::MAX_REQ_DTO,
            EpParamMask::MAX_RECV_DTO,
            EpParamMask::MAX_SEND_SEG,
            EpParamMask::MAX_RECV_SEG,
            EpParamMask::SRQ,
            EpParamMask::SOFT_HI_WATERMARK,
            EpParamMask::HARD_HI_WATERMARK,
            EpParamMask::ATOMICS_ENABLE,
            EpParamMask::PRIV_OPS_ENABLE,
        ];
        for (place, mask) in order.into_iter().enumerate() {
            check_eq!(mask.bits(), 1 << place);
        }
        check_eq!(order.len(), 28);
        Ok(())
    }),
    // Each bad handle is refused with the error of its argument.
    test(
        "ep::create_with_bad_handles",
        &[
            "it_ep_rc_create V03 IT_ERR_INVALID_CONN_EVD IT_ERR_INVALID_PZ",
            "it_ep_rc_create IT_ERR_INVALID_RECV_EVD IT_ERR_INVALID_REQ_EVD",
            "it_pz_create B02",
            "it_status_t F29 F60 F62",
        ],
        |f| {
            let (end, other) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            let create = |pz, request, recv, conn| {
                f.a.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), &attributes())
            };
            let End { pz, request, recv, conn, .. } = end;
            let freed = sevd(&f.a, EventType::DTO_EVENT_STREAM, 8, 1)?;
            f.a.evd_free(freed)?;
            for bad in [PzHandle::NULL, other.pz, PzHandle::from_raw(request.as_raw())] {
                refused(create(bad, request, recv, conn), Error::InvalidPz)?;
                let buffer = f.buffer(64)?;
                let memory = LmrMemory::Buffer { buffer: &buffer, offset: 0 };
                let region = f.a.lmr_create(bad, memory, 64, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0);
                refused(region, Error::InvalidPz)?;
            }
            for bad in [EvdHandle::NULL, freed, other.request, EvdHandle::from_raw(pz.as_raw())] {
                refused(create(pz, bad, recv, conn), Error::InvalidReqEvd)?;
                refused(create(pz, request, bad, conn), Error::InvalidRecvEvd)?;
                refused(create(pz, request, recv, bad), Error::InvalidConnEvd)?;
            }
            check_eq!(f.a.object_counts().ep, 1);
            let codes = [Error::InvalidConnEvd, Error::InvalidRecvEvd, Error::InvalidReqEvd];
            check_eq!(codes.map(|code| code as u32), [28, 59, 61]);
            Ok(())
        },
    ),
    // Completions need EVDs of the DTO stream, connections one of the CM message stream.
    test("ep::create_with_evds_of_other_streams", &["it_ep_rc_create IT_ERR_INVALID_EVD_TYPE"], |f| {
        let End { pz, request, recv, conn, .. } = f.end(&f.a, &attributes())?;
        let software =
            f.a.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 8, 1, EvdHandle::NULL)?;
        for (request, recv, conn) in [
            (conn, recv, conn),
            (software, recv, conn),
            (request, conn, conn),
            (request, software, conn),
            (request, recv, request),
            (request, recv, software),
        ] {
            let created = f.a.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), &attributes());
            refused(created, Error::InvalidEvdType)?;
        }
        check_eq!(f.a.object_counts().ep, 1);
        Ok(())
    }),
    // Undefined flags are refused, and the SRQ flag needs a shared receive queue in the attributes.
    test(
        "ep::creation_flags",
        &["it_ep_rc_create F01 F02 V04 IT_ERR_INVALID_FLAGS IT_ERR_INVALID_SRQ"],
        |f| {
            let End { pz, request, recv, conn, .. } = f.end(&f.a, &attributes())?;
            let create = |flags| f.a.ep_rc_create(pz, request, recv, conn, flags, &attributes());
            for bits in [4, 0x80, 0x8000_0000, u32::MAX] {
                refused(create(EpFlags::from_bits_retain(bits)), Error::InvalidFlags)?;
            }
            check_eq!((EpFlags::REUSEADDR.bits(), EpFlags::SRQ.bits()), (1, 2));
            f.a.ep_free(create(EpFlags::empty())?)?;
            f.a.ep_free(create(EpFlags::REUSEADDR)?)?;
            // The attributes name no SRQ.
            refused(create(EpFlags::SRQ), Error::InvalidSrq)
        },
    ),
    // Each attribute beyond the adapter's maximum is refused with its own error.
    test(
        "ep::attributes_above_the_maximum",
        &[
            "it_ep_rc_create IT_ERR_PAYLOAD_SIZE IT_ERR_RESOURCE_IRD IT_ERR_RESOURCE_ORD",
            "it_ep_rc_create IT_ERR_RESOURCE_RECV_DTO IT_ERR_RESOURCE_REQ_DTO",
            "it_ep_rc_create IT_ERR_RESOURCE_RRSEG IT_ERR_RESOURCE_RSEG IT_ERR_RESOURCE_RWSEG",
            "it_ep_rc_create IT_ERR_RESOURCE_SSEG",
            "it_ia_info_t F09 F10",
            "it_status_t F84 F91 F93 F95-F99 F100",
        ],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            let spigot = crate::fixture::spigot(&f.a)?;
            let limit = spigot.max_rc_send_len.max(spigot.max_rc_rdma_len);
            f.a.ep_free(create(&end, &EpAttributes { max_dto_payload_size: limit, ..attributes() })?)?;
            for too_much in [limit + 1, usize::MAX] {
                let asked = EpAttributes { max_dto_payload_size: too_much, ..attributes() };
                refused(create(&end, &asked), Error::PayloadSize)?;
            }
            let good = attributes();
            let segments = f.setup.a.agent.identity().max_sges as usize;
            for huge in [1 << 30, usize::MAX] {
                for max_send_segments in [good.max_send_segments, segments] {
                    let asked = EpAttributes { max_request_dtos: huge, max_send_segments, ..good };
                    refused(create(&end, &asked), Error::ResourceReqDto)?;
                }
                let asked = EpAttributes { max_recv_dtos: huge, ..good };
                refused(create(&end, &asked), Error::ResourceRecvDto)?;
                let asked = EpAttributes { max_send_segments: huge, ..good };
                refused(create(&end, &asked), Error::ResourceSseg)?;
                let asked = EpAttributes { max_recv_segments: huge, ..good };
                refused(create(&end, &asked), Error::ResourceRseg)?;
                let rc = RcAttributes { max_rdma_read_segments: huge, ..good.rc };
                refused(create(&end, &EpAttributes { rc, ..good }), Error::ResourceRrseg)?;
                let rc = RcAttributes { max_rdma_write_segments: huge, ..good.rc };
                refused(create(&end, &EpAttributes { rc, ..good }), Error::ResourceRwseg)?;
            }
            for huge in [f.setup.a.agent.identity().max_rd_atomic + 1, u32::MAX] {
                let rc = RcAttributes { rdma_read_ird: huge, ..good.rc };
                refused(create(&end, &EpAttributes { rc, ..good }), Error::ResourceIrd)?;
                let rc = RcAttributes { rdma_read_ord: huge, ..good.rc };
                refused(create(&end, &EpAttributes { rc, ..good }), Error::ResourceOrd)?;
            }
            check_eq!(f.a.object_counts().ep, 1);
            let codes = [
                Error::PayloadSize,
                Error::ResourceIrd,
                Error::ResourceOrd,
                Error::ResourceRecvDto,
                Error::ResourceReqDto,
                Error::ResourceRrseg,
                Error::ResourceRseg,
                Error::ResourceRwseg,
                Error::ResourceSseg,
            ];
            check_eq!(codes.map(|code| code as u32), [83, 90, 92, 94, 95, 96, 97, 98, 99]);
            Ok(())
        },
    ),
    // Creating endpoints fails with IT_ERR_RESOURCES at some point, and works again after one is
    // freed.
    test("ep::endpoints_run_out_and_come_back", &["it_ep_rc_create IT_ERR_RESOURCES"], |f| {
        let end = f.end(&f.a, &attributes())?;
        let small = EpAttributes { max_request_dtos: 4, max_recv_dtos: 4, ..attributes() };
        let mut all = Vec::new();
        let refusal = loop {
            match create(&end, &small) {
                Ok(ep) => all.push(ep),
                Err(error) => break error,
            }
            check!(all.len() <= CONFIG.max_qps as usize, "{} endpoints", all.len());
        };
        check_eq!(refusal, Error::Resources);
        check!(all.len() > 8);
        f.a.ep_free(all[2])?;
        refused(f.a.ep_query(all[2], EpParamMask::ALL), Error::InvalidEp)?;
        let fresh = create(&end, &small)?;
        check!(!all.contains(&fresh), "a handle was used twice");
        refused(create(&end, &small), Error::Resources)
    }),
    // An unprivileged IA cannot create a privileged endpoint.
    test(
        "ep::privileged_ones_are_for_the_privileged",
        &["it_ep_rc_create IT_ERR_NO_PERMISSION", "4.10 B03", "it_ep_attributes_t F21"],
        |f| {
            let ia = f.unprivileged()?;
            let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
            let end = f.end(&ia, &plain)?;
            refused(create(&end, &attributes()), Error::NoPermission)?;
            check!(!query(&end)?.attr.priv_ops_enable);
            check_eq!(ia.object_counts().ep, 1);
            Ok(())
        },
    ),
    // A mask with a bit that is undefined, or that cannot be modified, is refused.
    test(
        "ep::undefined_mask_bits",
        &[
            "it_ep_attributes_t F19",
            "it_ep_query IT_ERR_INVALID_MASK",
            "it_ep_modify L01 V02 V05 IT_ERR_INVALID_MASK",
        ],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            let before = query(&end)?;
            for bits in [0x1000_0000, 0x8000_0000, u32::MAX] {
                let mask = EpParamMask::from_bits_retain(bits);
                refused(f.a.ep_query(end.ep, mask), Error::InvalidMask)?;
                refused(f.a.ep_modify(end.ep, mask, &attributes()), Error::InvalidMask)?;
            }
            for mask in FIXED {
                refused(f.a.ep_modify(end.ep, mask, &attributes()), Error::InvalidMask)?;
                let both = mask | EpParamMask::MAX_ORD;
                refused(f.a.ep_modify(end.ep, both, &attributes()), Error::InvalidMask)?;
            }
            check_eq!(query(&end)?, before);
            Ok(())
        },
    ),
    // Null, freed, foreign and made-up handles are refused by every call for endpoints.
    test(
        "ep::bad_handles",
        &[
            "it_ep_query IT_ERR_INVALID_EP",
            "it_ep_modify IT_ERR_INVALID_EP",
            "it_ep_free B03 IT_ERR_INVALID_EP",
            "it_ep_reset IT_ERR_INVALID_EP",
            "it_ep_connect IT_ERR_INVALID_EP",
            "it_ep_disconnect IT_ERR_INVALID_EP",
            "it_ep_accept IT_ERR_INVALID_EP",
            "it_post_send IT_ERR_INVALID_EP",
            "it_post_recv IT_ERR_INVALID_EP",
            "it_post_rdma_write IT_ERR_INVALID_EP",
            "it_post_rdma_read IT_ERR_INVALID_EP",
            "it_status_t F33",
        ],
        |f| {
            let (living, freed, foreign) =
                (f.end(&f.a, &attributes())?, f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            f.a.ep_free(freed.ep)?;
            let listener = f.listen(&f.b)?;
            let route = crate::fixture::path(&f.a, &listener.address)?;
            let other_type = EpHandle::from_raw(living.request.as_raw());
            for ep in [EpHandle::NULL, freed.ep, foreign.ep, other_type, EpHandle::from_raw(u64::MAX)] {
                refused(f.a.ep_query(ep, EpParamMask::ALL), Error::InvalidEp)?;
                refused(f.a.ep_modify(ep, EpParamMask::MAX_ORD, &attributes()), Error::InvalidEp)?;
                refused(f.a.ep_free(ep), Error::InvalidEp)?;
                refused(f.a.ep_reset(ep), Error::InvalidEp)?;
                let qual = &listener.conn_qual;
                let connect = f.a.ep_connect(ep, &route, None, qual, CnEstFlags::TWO_WAY, &[]);
                refused(connect, Error::InvalidEp)?;
                refused(f.a.ep_disconnect(ep, &[]), Error::InvalidEp)?;
                refused(f.a.post_send(ep, &[], 0, SIGNALLED), Error::InvalidEp)?;
                refused(f.a.post_recv(ep, &[], 0, DtoFlags::COMPLETION), Error::InvalidEp)?;
                let (addr, context) = (RdmaAddr(0), RmrContext(0));
                refused(f.a.post_rdma_write(ep, &[], 0, SIGNALLED, addr, context), Error::InvalidEp)?;
                refused(f.a.post_rdma_read(ep, &[], 0, SIGNALLED, addr, context), Error::InvalidEp)?;
            }
            // A refused accept leaves the request as it was.
            f.dial(&living, &listener, CnEstFlags::TWO_WAY, &[])?;
            let request = listener.request()?;
            for ep in [EpHandle::NULL, living.ep, EpHandle::from_raw(u64::MAX)] {
                refused(f.b.ep_accept(ep, request.cn_est_id, &[]), Error::InvalidEp)?;
            }
            f.b.ep_accept(foreign.ep, request.cn_est_id, &[])?;
            living.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            check_eq!(Error::InvalidEp as u32, 32);
            Ok(())
        },
    ),
    // Receives complete on the receive EVD, all other requests on the request EVD; both may be one.
    test("ep::completions_arrive_on_their_evd", &["it_ep_rc_create B05 B06", "it_dto_events B01"], |f| {
        let pair = f.pair()?;
        for cookie in 0..3 {
            f.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[], cookie, SIGNALLED)?;
        }
        for cookie in 0..3 {
            pair.b.recv_done(cookie, DtoStatus::Success)?;
            pair.a.done(cookie, DtoStatus::Success)?;
        }
        pair.a.idle()?;
        pair.b.idle()?;
        // One EVD takes the completions of both queues.
        let both = sevd(&f.a, EventType::DTO_EVENT_STREAM, 128, 1)?;
        let (a, b) = (f.end_on(&f.a, &attributes(), both, both)?, f.end(&f.b, &attributes())?);
        f.connect(&a, &b)?;
        f.a.post_recv(a.ep, &[], 1, DtoFlags::COMPLETION)?;
        f.b.post_recv(b.ep, &[], 2, DtoFlags::COMPLETION)?;
        f.a.post_send(a.ep, &[], 3, SIGNALLED)?;
        f.b.post_send(b.ep, &[], 4, SIGNALLED)?;
        let mut kinds = [a.reap()?, a.reap()?].map(|done| (done.event_number, done.cookie));
        kinds.sort_unstable();
        check_eq!(kinds, [(EventType::DTO_SEND_CMPL, 3), (EventType::DTO_RC_RECV_CMPL, 1)]);
        Ok(())
    }),
];
