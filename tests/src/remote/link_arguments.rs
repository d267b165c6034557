//! Links and unlinks that are refused at once: states, flags, handles, full queues (pages
//! it_lmr_create_unlinked, it_lmr_link, it_lmr_unlink).

use privileged_api::*;

use crate::events::evd::nothing;
use crate::fixture::{End, PAGE, SIGNALLED, attributes};
use crate::memory::iobl::scattered;
use crate::remote::link::{Link, linked, unlinked};
use crate::{Outcome, Test, check, check_eq, refused, test};

/// The flags that are never legal for a link, or for an unlink.
fn illegal_flags(unlink: bool) -> impl Iterator<Item = DtoFlags> {
    (0..0x80).map(DtoFlags::from_bits_retain).filter(move |flags| {
        let mut never = DtoFlags::SOLICITED_WAIT | DtoFlags::UNLINK_LOCAL_SINK;
        if !unlink {
            never |= DtoFlags::UNLINK_FENCE;
        }
        flags.intersects(never) || flags.contains(DtoFlags::NOTIFY) && !flags.contains(DtoFlags::COMPLETION)
    })
}

/// Checks that a request with these flags succeeded, and that its completion is there if the flags
/// ask for one.
#[track_caller]
fn completed(end: &End, cookie: u64, flags: DtoFlags) -> Outcome {
    if !flags.contains(DtoFlags::COMPLETION) {
        return Ok(());
    }
    // A coalesced request may be held back until another one is posted.
    if flags.contains(DtoFlags::COALESCE) {
        nothing(end, 0, DtoFlags::empty())?;
    }
    end.done(cookie, DtoStatus::Success)
}

pub(crate) const TESTS: &[Test] = &[
    // A link with undefined privileges is refused, and the region stays unlinked.
    test("link::undefined_privileges", &["it_lmr_link S05 IT_ERR_INVALID_PRIVS"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.a, 1)?;
        for bits in [0x20, 0x8000_0003, u32::MAX] {
            let link = Link { privs: MemPriv::from_bits_retain(bits), ..Link::pages(lmr, &memory.pieces) };
            refused(link.post(&pair.a, 1), Error::InvalidPrivs)?;
        }
        check!(!linked(&f.a, lmr)?);
        pair.a.idle()?;
        Link::pages(lmr, &memory.pieces).post(&pair.a, 2)?;
        pair.a.done(2, DtoStatus::Success)
    }),
    // Links and unlinks are refused while the endpoint is unconnected or connecting, and flushed
    // while it is nonoperational.
    test(
        "link::in_states_without_a_connection",
        &[
            "it_lmr_unlink A03 S01 S05 IT_ERR_INVALID_EP_STATE",
            "it_lmr_link A03 S06 IT_ERR_INVALID_EP_STATE",
            "it_ep_state_t V04",
        ],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&end, 1)?;
            let link = Link::pages(lmr, &memory.pieces);
            refused(link.post(&end, 1), Error::InvalidEpState)?;
            refused(f.a.lmr_unlink(lmr, end.ep, 1, SIGNALLED), Error::InvalidEpState)?;
            let listener = f.listen(&f.b)?;
            f.dial(&end, &listener, CnEstFlags::TWO_WAY, &[])?;
            refused(link.post(&end, 1), Error::InvalidEpState)?;
            refused(f.a.lmr_unlink(lmr, end.ep, 1, SIGNALLED), Error::InvalidEpState)?;
            f.a.ep_disconnect(end.ep, &[])?;
            check_eq!(end.state()?, EpStateRc::Nonoperational);
            link.post(&end, 2)?;
            f.a.lmr_unlink(lmr, end.ep, 3, SIGNALLED)?;
            end.done(2, DtoStatus::Flushed)?;
            end.done(3, DtoStatus::Flushed)?;
            check!(!linked(&f.a, lmr)?);
            // A region that was linked before the connection ended stays linked when the unlink is
            // flushed.
            let pair = f.pair()?;
            let lmr = unlinked(&pair.a, 1)?;
            Link::pages(lmr, &memory.pieces).post(&pair.a, 1)?;
            pair.a.done(1, DtoStatus::Success)?;
            f.a.ep_disconnect(pair.a.ep, &[])?;
            pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            f.a.lmr_unlink(lmr, pair.a.ep, 2, SIGNALLED)?;
            pair.a.done(2, DtoStatus::Flushed)?;
            check!(linked(&f.a, lmr)?);
            Ok(())
        },
    ),
    // Each combination of flags is accepted or refused by the page's tables, and has its effect.
    test(
        "link::legal_flags",
        &[
            "it_lmr_link F03 IT_ERR_INVALID_DTO_FLAGS",
            "it_lmr_unlink F01 IT_ERR_INVALID_DTO_FLAGS",
            "it_dto_flags_t B23 B24 B29",
            "it_ia_info_t F76",
        ],
        |f| {
            check!(f.a.ia_query()?.unlink_fence_support);
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.a, 1)?;
            let illegal_links: alloc::vec::Vec<_> = illegal_flags(false).collect();
            let illegal_unlinks: alloc::vec::Vec<_> = illegal_flags(true).collect();
            for flags in (0..0x80).map(DtoFlags::from_bits_retain) {
                let link = |flags| Link { flags, ..Link::pages(lmr, &memory.pieces) }.post(&pair.a, 1);
                if illegal_links.contains(&flags) {
                    refused(link(flags), Error::InvalidDtoFlags)?;
                    check!(!linked(&f.a, lmr)?);
                    link(DtoFlags::empty())?;
                } else {
                    link(flags)?;
                    completed(&pair.a, 1, flags)?;
                }
                if illegal_unlinks.contains(&flags) {
                    refused(f.a.lmr_unlink(lmr, pair.a.ep, 2, flags), Error::InvalidDtoFlags)?;
                } else {
                    f.a.lmr_unlink(lmr, pair.a.ep, 2, flags)?;
                    completed(&pair.a, 2, flags)?;
                }
                // The second unlink completes behind all others. If the first one was refused, this
                // one unlinks the region.
                if illegal_unlinks.contains(&flags) {
                    f.a.lmr_unlink(lmr, pair.a.ep, 3, SIGNALLED)?;
                } else {
                    nothing(&pair.a, 3, SIGNALLED)?;
                }
                pair.a.done(3, DtoStatus::Success)?;
                check!(!linked(&f.a, lmr)?, "after {flags:?}");
            }
            pair.a.idle()
        },
    ),
    // Undefined flags are refused.
    test("link::undefined_flags", &["it_lmr_unlink S04", "it_status_t F32"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.a, 1)?;
        for bits in [0x80, 0x101, 0x8000_0003] {
            let flags = DtoFlags::from_bits_retain(bits);
            let link = Link { flags, ..Link::pages(lmr, &memory.pieces) };
            refused(link.post(&pair.a, 1), Error::InvalidDtoFlags)?;
        }
        Link::pages(lmr, &memory.pieces).post(&pair.a, 2)?;
        pair.a.done(2, DtoStatus::Success)?;
        for bits in [0x80, 0x101, 0x8000_0003] {
            let flags = DtoFlags::from_bits_retain(bits);
            refused(f.a.lmr_unlink(lmr, pair.a.ep, 3, flags), Error::InvalidDtoFlags)?;
        }
        check!(linked(&f.a, lmr)?);
        check_eq!(Error::InvalidDtoFlags as u32, 31);
        Ok(())
    }),
    // Null, freed, foreign and made-up handles are refused.
    test(
        "link::bad_handles",
        &[
            "it_dto_status_t A31 A41",
            "it_lmr_link A04 IT_ERR_INVALID_EP IT_ERR_INVALID_LMR",
            "it_lmr_unlink A04 IT_ERR_INVALID_EP IT_ERR_INVALID_LMR",
            "it_status_t F47",
        ],
        |f| {
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let good = unlinked(&pair.a, 1)?;
            let freed = unlinked(&pair.a, 1)?;
            f.a.lmr_free(freed)?;
            for lmr in [LmrHandle::NULL, freed, unlinked(&pair.b, 1)?, LmrHandle::from_raw(u64::MAX)] {
                refused(Link::pages(lmr, &memory.pieces).post(&pair.a, 1), Error::InvalidLmr)?;
                refused(f.a.lmr_unlink(lmr, pair.a.ep, 1, SIGNALLED), Error::InvalidLmr)?;
            }
            for ep in [EpHandle::NULL, pair.b.ep, EpHandle::from_raw(77)] {
                let end = End { ep, ..pair.a.clone() };
                refused(Link::pages(good, &memory.pieces).post(&end, 1), Error::InvalidEp)?;
                refused(f.a.lmr_unlink(good, ep, 1, SIGNALLED), Error::InvalidEp)?;
            }
            pair.a.idle()?;
            check_eq!(pair.a.state()?, EpStateRc::Connected);
            check_eq!(Error::InvalidLmr as u32, 46);
            Ok(())
        },
    ),
    // A link or unlink that finds the send queue full is refused and changes nothing.
    test(
        "link::a_full_queue",
        &["it_lmr_link IT_ERR_TOO_MANY_POSTS", "it_lmr_unlink IT_ERR_TOO_MANY_POSTS"],
        |f| {
            let small = EpAttributes { max_request_dtos: 8, ..attributes() };
            let pair = f.pair_of(&small, &attributes())?;
            let room = f.a.ep_query(pair.a.ep, EpParamMask::MAX_REQ_DTO)?.attr.max_request_dtos;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.a, 1)?;
            for cookie in 0..room as u64 {
                nothing(&pair.a, cookie, SIGNALLED)?;
            }
            refused(Link::pages(lmr, &memory.pieces).post(&pair.a, 99), Error::TooManyPosts)?;
            refused(f.a.lmr_unlink(lmr, pair.a.ep, 99, SIGNALLED), Error::TooManyPosts)?;
            check!(!linked(&f.a, lmr)?);
            for cookie in 0..room as u64 {
                pair.a.done(cookie, DtoStatus::Success)?;
            }
            Link::pages(lmr, &memory.pieces).post(&pair.a, 100)?;
            pair.a.done(100, DtoStatus::Success)
        },
    ),
    // Bad flags, bad zones and too many elements are refused.
    test(
        "link::create_unlinked_refusals",
        &[
            "it_lmr_create_unlinked V01 V02 IT_ERR_INVALID_FLAGS IT_ERR_INVALID_PZ",
            "it_lmr_create_unlinked IT_ERR_RESOURCE_IOBL_LENGTH",
        ],
        |f| {
            let pz = f.a.pz_create()?;
            // A region that is not linked shares nothing. It may become shared once it is linked.
            for bits in [LmrFlags::SHARED.bits(), 0x10, 0x8000_0000, u32::MAX] {
                let flags = LmrFlags::from_bits_retain(bits);
                refused(f.a.lmr_create_unlinked(pz, 1, flags, 0), Error::InvalidFlags)?;
            }
            let limit = f.setup.a.agent.identity().max_list_elements as usize;
            for elements in [limit + 1, usize::MAX] {
                let created = f.a.lmr_create_unlinked(pz, elements, LmrFlags::NONE, 0);
                refused(created, Error::ResourceIoblLength)?;
            }
            check!(Error::ResourceIoblLength as u32 > 106, "not behind the header's last value");
            let foreign = f.b.pz_create()?;
            f.a.pz_free(pz)?;
            for pz in [pz, foreign, PzHandle::NULL] {
                refused(f.a.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0), Error::InvalidPz)?;
            }
            check_eq!(f.a.object_counts().lmr, 0);
            Ok(())
        },
    ),
    // An unprivileged IA cannot create a linkable region.
    test(
        "link::create_unlinked_needs_privilege",
        &["it_lmr_create_unlinked IT_ERR_NO_PERMISSION", "4.10 B01"],
        |f| {
            let ia = f.unprivileged()?;
            let pz = ia.pz_create()?;
            refused(ia.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0), Error::NoPermission)?;
            check_eq!(ia.object_counts().lmr, 0);
            Ok(())
        },
    ),
];
