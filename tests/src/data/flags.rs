//! Which flags each operation takes, and which requests complete without an event (page
//! it_dto_flags_t).

use privileged_api::*;

use crate::data::transfer::{NOWHERE, Way, post, ready};
use crate::fixture::{OPEN, SIGNALLED, attributes};
use crate::{Test, check, refused, test};

/// Whether the specification allows these flags for this operation on an IA without RDMA Read
/// extensions.
fn legal(way: Way, flags: DtoFlags) -> bool {
    let mut never = DtoFlags::UNLINK_FENCE | DtoFlags::UNLINK_LOCAL_SINK;
    if way != Way::Send {
        never |= DtoFlags::SOLICITED_WAIT;
    }
    if way == Way::Recv {
        never |= DtoFlags::BARRIER_FENCE;
    }
    let needs = way == Way::Recv || flags.contains(DtoFlags::NOTIFY);
    DtoFlags::all().contains(flags)
        && !flags.intersects(never)
        && (!needs || flags.contains(DtoFlags::COMPLETION))
}

pub(crate) const TESTS: &[Test] = &[
    // Each of the flag values is accepted or refused for each operation by the page's tables.
    test(
        "data::legal_flags",
        &[
            "it_post_send B09 IT_ERR_INVALID_DTO_FLAGS",
            "it_post_recv B11 IT_ERR_INVALID_DTO_FLAGS",
            "it_post_rdma_write B10 IT_ERR_INVALID_DTO_FLAGS",
            "it_post_rdma_read B10 IT_ERR_INVALID_DTO_FLAGS",
            "it_dto_flags_t B02 B03 B05 B07 B08 B10 B12 B15 B17 B19 F01 F08 O02 O04 V05",
            "it_ia_info_t F67",
        ],
        |f| {
            let (pair, own, peer) = ready(f, 64)?;
            let there = (peer.remote(0), peer.context()?);
            let extended = f.a.ia_query()?.rdma_read_local_extensions;
            for bits in (0..0x80).chain([0x80, 0x81, 0x8000_0003, u32::MAX]) {
                let flags = DtoFlags::from_bits_retain(bits);
                // A Read may have this flag on an IA with the extensions (`iwarp_ia`).
                if extended && flags.contains(DtoFlags::UNLINK_LOCAL_SINK) {
                    continue;
                }
                for way in [Way::Send, Way::Write, Way::Read] {
                    if way == Way::Send {
                        f.b.post_recv(pair.b.ep, &[peer.whole()], 1, DtoFlags::COMPLETION)?;
                    }
                    let posted = post(&pair.a, way, &[own.whole()], 2, flags, there);
                    if !legal(way, flags) {
                        refused(posted, Error::InvalidDtoFlags)?;
                        // The Receive is consumed by a legal Send.
                        post(&pair.a, way, &[own.whole()], 2, DtoFlags::empty(), there)?;
                    } else {
                        posted?;
                    }
                    // A request without the coalesce flag releases those that were held back.
                    post(&pair.a, Way::Write, &[], 3, SIGNALLED, NOWHERE)?;
                    if legal(way, flags) && flags.contains(DtoFlags::COMPLETION) {
                        pair.a.done(2, DtoStatus::Success)?;
                    }
                    pair.a.done(3, DtoStatus::Success)?;
                    if way == Way::Send {
                        pair.b.recv_done(1, DtoStatus::Success)?;
                    }
                }
                let posted = f.b.post_recv(pair.b.ep, &[peer.whole()], 4, flags);
                match legal(Way::Recv, flags) {
                    false => refused(posted, Error::InvalidDtoFlags)?,
                    true => {
                        posted?;
                        f.b.post_recv(pair.b.ep, &[], 5, DtoFlags::COMPLETION)?;
                        for cookie in [6, 7] {
                            f.a.post_send(pair.a.ep, &[], cookie, SIGNALLED)?;
                            pair.a.done(cookie, DtoStatus::Success)?;
                        }
                        pair.b.recv_done(4, DtoStatus::Success)?;
                        pair.b.recv_done(5, DtoStatus::Success)?;
                    }
                }
            }
            pair.a.idle()?;
            pair.b.idle()
        },
    ),
    // A request without the completion flag causes no event, and a later completion frees its entry
    // in the queue.
    test(
        "data::no_completion_without_the_flag",
        &[
            "A.it_ep_attributes_t V01",
            "it_dto_flags_t B01 B25 F01 V01",
            "it_evd_dequeue B09",
            "it_evd_wait B14",
        ],
        |f| {
            let small = EpAttributes { max_request_dtos: 16, ..attributes() };
            let pair = f.pair_of(&small, &attributes())?;
            let room = f.a.ep_query(pair.a.ep, EpParamMask::MAX_REQ_DTO)?.attr.max_request_dtos;
            let (own, peer) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, OPEN)?);
            for round in 0..20 {
                own.fill(round);
                let there = (peer.remote(0), peer.context()?);
                // All requests of a full queue but the last one are silent. The completion of the
                // last one makes room for all.
                for _ in 1..room {
                    post(&pair.a, Way::Write, &[own.whole()], 0, DtoFlags::empty(), there)?;
                }
                post(&pair.a, Way::Write, &[], 99, SIGNALLED, NOWHERE)?;
                pair.a.done(99, DtoStatus::Success)?;
                pair.a.idle()?;
                check!(f.arrives(|| peer.all() == own.all()), "round {round}");
            }
            Ok(())
        },
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_must_ask_for_their_completion() {
        assert!(!legal(Way::Recv, DtoFlags::empty()));
        assert!(legal(Way::Recv, DtoFlags::COMPLETION));
        assert!(!legal(Way::Send, DtoFlags::NOTIFY));
    }
}
