//! Modifying endpoints (pages it_ep_modify, it_ep_attributes_t).

use privileged_api::*;

use crate::endpoints::ep::{nonoperational, query};
use crate::fixture::{End, OPEN, SIGNALLED, attributes};
use crate::{Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // The maximum payload can change while the endpoint is not connected.
    test(
        "ep::modify_the_payload",
        &["it_ep_modify B04 F01 IT_ERR_INVALID_EP_STATE IT_ERR_PAYLOAD_SIZE", "it_ep_attributes_t S01"],
        |f| {
            let set = |end: &End, max_dto_payload_size| {
                let change = EpAttributes { max_dto_payload_size, ..EpAttributes::default() };
                end.ia.ep_modify(end.ep, EpParamMask::MAX_PAYLOAD, &change)
            };
            let limit = crate::fixture::spigot(&f.a)?.max_rc_send_len;
            let end = f.end(&f.a, &attributes())?;
            for size in [1, 4097, limit] {
                set(&end, size)?;
                check_eq!(query(&end)?.attr.max_dto_payload_size, size);
            }
            refused(set(&end, limit + 1), Error::PayloadSize)?;
            refused(set(&end, usize::MAX), Error::PayloadSize)?;
            check_eq!(query(&end)?.attr.max_dto_payload_size, limit);
            let pair = f.pair()?;
            let before = query(&pair.a)?;
            refused(set(&pair.a, 100), Error::InvalidEpState)?;
            check_eq!(query(&pair.a)?, before);
            let gone = nonoperational(f)?;
            set(&gone, 100)?;
            check_eq!(query(&gone)?.attr.max_dto_payload_size, 100);
            Ok(())
        },
    ),
    // A modification changes what the mask names; the other attributes may have any value.
    test("ep::modify_what_the_mask_names", &[], |f| {
        let end = f.end(&f.a, &attributes())?;
        let bad = EpAttributes {
            max_dto_payload_size: usize::MAX,
            max_request_dtos: usize::MAX,
            max_recv_dtos: usize::MAX,
            max_send_segments: usize::MAX,
            max_recv_segments: usize::MAX,
            rc: RcAttributes {
                rdma_read_ird: u32::MAX,
                rdma_read_ord: u32::MAX,
                soft_hi_watermark: 1,
                hard_hi_watermark: 1,
                ..RcAttributes::default()
            },
            ..EpAttributes::default()
        };
        type Change = fn(&mut EpAttributes);
        let changes: [(EpParamMask, Change); 8] = [
            (EpParamMask::MAX_PAYLOAD, |attr| attr.max_dto_payload_size = 77),
            (EpParamMask::MAX_IRD, |attr| attr.rc.rdma_read_ird = 3),
            (EpParamMask::MAX_ORD, |attr| attr.rc.rdma_read_ord = 2),
            (EpParamMask::RDMA_RD_ENABLE, |attr| attr.rc.rdma_read_enable ^= true),
            (EpParamMask::RDMA_WR_ENABLE, |attr| attr.rc.rdma_write_enable ^= true),
            (EpParamMask::ATOMICS_ENABLE, |attr| attr.rc.atomics_enable ^= true),
            (EpParamMask::SOFT_HI_WATERMARK, |attr| attr.rc.soft_hi_watermark = 0),
            (EpParamMask::HARD_HI_WATERMARK, |attr| attr.rc.hard_hi_watermark = 0),
        ];
        for (mask, change) in changes {
            let before = query(&end)?;
            let (mut wanted, mut expected) = (bad, before.attr);
            let enables = (before.attr.rc.rdma_read_enable, before.attr.rc.rdma_write_enable);
            (wanted.rc.rdma_read_enable, wanted.rc.rdma_write_enable) = enables;
            wanted.rc.atomics_enable = before.attr.rc.atomics_enable;
            change(&mut wanted);
            change(&mut expected);
            f.a.ep_modify(end.ep, mask, &wanted)?;
            check_eq!(query(&end)?, EpParam { attr: expected, ..before }, "{mask:?}");
        }
        Ok(())
    }),
    // The read depths can change in the states that the page lists, within the adapter's maximum.
    test(
        "ep::modify_the_read_depths",
        &[
            "it_ep_modify F06 F07 IT_ERR_RESOURCE_IRD IT_ERR_RESOURCE_ORD",
            "it_ep_attributes_t S03 S04",
            "it_ep_state_t S03",
            "it_ia_info_t F61",
        ],
        |f| {
            let set = |end: &End, mask, ird, ord| {
                let rc = RcAttributes { rdma_read_ird: ird, rdma_read_ord: ord, ..RcAttributes::default() };
                end.ia.ep_modify(end.ep, mask, &EpAttributes { rc, ..EpAttributes::default() })
            };
            let (ird, ord) = (EpParamMask::MAX_IRD, EpParamMask::MAX_ORD);
            let end = f.end(&f.a, &attributes())?;
            set(&end, ird | ord, 2, 3)?;
            let rc = query(&end)?.attr.rc;
            check!(rc.rdma_read_ird >= 2 && rc.rdma_read_ord == 3);
            let too_many = f.setup.a.agent.identity().max_rd_atomic + 1;
            refused(set(&end, ird, too_many, 1), Error::ResourceIrd)?;
            refused(set(&end, ord, 1, too_many), Error::ResourceOrd)?;
            check_eq!(query(&end)?.attr.rc, rc);
            let pair = f.pair()?;
            refused(set(&pair.a, ird, 1, 1), Error::InvalidEpState)?;
            set(&pair.a, ord, 1, 1)?;
            check_eq!(query(&pair.a)?.attr.rc.rdma_read_ord, 1);
            let gone = nonoperational(f)?;
            refused(set(&gone, ird, 1, 1), Error::InvalidEpState)?;
            refused(set(&gone, ord, 1, 1), Error::InvalidEpState)
        },
    ),
    // The work queues can be resized exactly if the info says so.
    test(
        "ep::modify_the_work_queues",
        &[
            "it_ep_modify F02 F03 V03",
            "it_ia_info_t F36",
            "it_ep_attributes_t O01",
            "A.it_ep_attributes_t IT_ERR_INVALID_EP_STATE",
        ],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            let before = query(&end)?.attr;
            let more = EpAttributes { max_request_dtos: 200, max_recv_dtos: 200, ..attributes() };
            check!(!f.a.ia_query()?.ep_work_queues_resizable);
            for mask in [EpParamMask::MAX_REQ_DTO, EpParamMask::MAX_RECV_DTO] {
                for wanted in [&more, &attributes()] {
                    refused(f.a.ep_modify(end.ep, mask, wanted), Error::InvalidEpState)?;
                }
            }
            check_eq!(query(&end)?.attr, before);
            Ok(())
        },
    ),
    // Remote reads and writes can be forbidden and allowed in any state, with effect at once.
    test(
        "ep::modify_the_rdma_enables",
        &[
            "it_ep_modify B02 F04 F05",
            "it_ep_attributes_t F10 F11 O02",
            "it_ia_info_t F65",
            "it_dto_status_t A26",
        ],
        |f| {
            check!(f.a.ia_query()?.ep_rdma_enables_modifiable);
            for (read, write) in [(false, false), (true, false), (false, true), (true, true)] {
                for wants_read in [true, false] {
                    let pair = f.pair()?;
                    let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
                    let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                    let rc = RcAttributes {
                        rdma_read_enable: read,
                        rdma_write_enable: write,
                        ..RcAttributes::default()
                    };
                    let mask = EpParamMask::RDMA_RD_ENABLE | EpParamMask::RDMA_WR_ENABLE;
                    f.b.ep_modify(pair.b.ep, mask, &EpAttributes { rc, ..EpAttributes::default() })?;
                    let now = query(&pair.b)?.attr.rc;
                    check_eq!((now.rdma_read_enable, now.rdma_write_enable), (read, write));
                    let own_side = query(&pair.a)?.attr.rc;
                    check!(
                        own_side.rdma_read_enable && own_side.rdma_write_enable,
                        "the peer's attributes must not matter"
                    );
                    let (addr, context) = (peer.remote(0), peer.context()?);
                    let allowed = if wants_read {
                        f.a.post_rdma_read(pair.a.ep, &[own.whole()], 1, SIGNALLED, addr, context)?;
                        read
                    } else {
                        f.a.post_rdma_write(pair.a.ep, &[own.whole()], 1, SIGNALLED, addr, context)?;
                        write
                    };
                    let status = if allowed { DtoStatus::Success } else { DtoStatus::RemoteAccess };
                    pair.a.done(1, status)?;
                }
            }
            Ok(())
        },
    ),
    // If one of several changes is refused, none is made.
    test("ep::modify_is_all_or_nothing", &["it_ep_modify B01 B03"], |f| {
        let end = f.end(&f.a, &attributes())?;
        let before = query(&end)?;
        let rc = RcAttributes {
            rdma_read_enable: false,
            rdma_write_enable: false,
            rdma_read_ird: 1,
            rdma_read_ord: u32::MAX,
            ..RcAttributes::default()
        };
        let change = EpAttributes { max_dto_payload_size: 77, rc, ..EpAttributes::default() };
        let good = EpParamMask::RDMA_RD_ENABLE
            | EpParamMask::RDMA_WR_ENABLE
            | EpParamMask::MAX_IRD
            | EpParamMask::MAX_PAYLOAD;
        refused(f.a.ep_modify(end.ep, good | EpParamMask::MAX_ORD, &change), Error::ResourceOrd)?;
        check_eq!(query(&end)?, before);
        let huge = EpAttributes { max_dto_payload_size: usize::MAX, ..change };
        refused(f.a.ep_modify(end.ep, good, &huge), Error::PayloadSize)?;
        check_eq!(query(&end)?, before);
        f.a.ep_modify(end.ep, good, &change)?;
        let after = query(&end)?.attr;
        check_eq!((after.max_dto_payload_size, after.rc.rdma_read_ord), (77, before.attr.rc.rdma_read_ord));
        check!(!after.rc.rdma_read_enable && !after.rc.rdma_write_enable);
        check_eq!(after.max_request_dtos, before.attr.max_request_dtos);
        // If the state forbids one of the changes, none is made.
        let pair = f.pair()?;
        let before = query(&pair.a)?;
        refused(f.a.ep_modify(pair.a.ep, good, &change), Error::InvalidEpState)?;
        check_eq!(query(&pair.a)?, before);
        Ok(())
    }),
];
