//! The order of data transfers (pages it_post_send, it_post_recv, it_post_rdma_write,
//! it_post_rdma_read, it_dto_flags_t).

use privileged_api::*;

use crate::data::transfer::{NOWHERE, Way, post, ready};
use crate::fixture::{OPEN, PAGE, SIGNALLED, attributes};
use crate::{Test, check, check_eq, test};

pub(crate) const TESTS: &[Test] = &[
    // Sends complete in the order of posting, and so do the matching Receives.
    test(
        "data::sends_stay_in_order",
        &["it_post_send B15 B17", "it_post_recv B19 B21 B23", "it_evd_create B47"],
        |f| {
            let (pair, source, sink) = ready(f, 64 * 8)?;
            for round in 0..8_u64 {
                for slot in 0..32 {
                    let at = slot as usize * 8;
                    f.b.post_recv(
                        pair.b.ep,
                        &[sink.segment(at, 8)],
                        round * 100 + slot,
                        DtoFlags::COMPLETION,
                    )?;
                }
                for slot in 0..32_u64 {
                    let number = round * 1000 + slot;
                    source.write(slot as usize * 8, &number.to_le_bytes());
                    f.a.post_send(pair.a.ep, &[source.segment(slot as usize * 8, 8)], number, SIGNALLED)?;
                }
                for slot in 0..32 {
                    pair.b.recv_done(round * 100 + slot, DtoStatus::Success)?;
                    pair.a.done(round * 1000 + slot, DtoStatus::Success)?;
                    let bytes = sink.bytes(slot as usize * 8, 8);
                    check_eq!(bytes, (round * 1000 + slot).to_le_bytes());
                }
            }
            Ok(())
        },
    ),
    // When a Send has been received, all writes before it have arrived.
    test(
        "data::writes_arrive_before_the_send_behind_them",
        &["it_post_send B16 B20", "it_post_recv B20", "it_post_rdma_write B16 B17 B20 V03"],
        |f| {
            let len = 16 * PAGE;
            let (pair, source, sink) = ready(f, len)?;
            for round in 0..20 {
                source.fill(round);
                f.b.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION)?;
                let half = len / 2;
                for at in [0, half] {
                    let to = (sink.remote(at), sink.context()?);
                    post(&pair.a, Way::Write, &[source.segment(at, half)], 2, DtoFlags::empty(), to)?;
                }
                f.a.post_send(pair.a.ep, &[], 3, SIGNALLED)?;
                pair.b.recv_done(1, DtoStatus::Success)?;
                check!(sink.all() == source.all(), "round {round}");
                pair.a.done(3, DtoStatus::Success)?;
            }
            pair.a.idle()
        },
    ),
    // Of two writes to the same bytes, the one that was posted later remains.
    test("data::later_writes_win", &["it_post_rdma_write B16 B20"], |f| {
        let (pair, source, sink) = ready(f, 64 * 8)?;
        for number in 0..60_u64 {
            source.write(number as usize * 8, &number.to_le_bytes());
            let to = (sink.remote(0), sink.context()?);
            post(&pair.a, Way::Write, &[source.segment(number as usize * 8, 8)], number, SIGNALLED, to)?;
        }
        for number in 0..60 {
            pair.a.done(number, DtoStatus::Success)?;
        }
        check!(f.arrives(|| sink.bytes(0, 8) == 59_u64.to_le_bytes()));
        Ok(())
    }),
    // More reads than may be outstanding wait for each other, and everything completes in the order
    // of posting.
    test(
        "data::reads_complete_in_order",
        &["it_post_rdma_read B16 B17", "it_ep_attributes_t B06 F15", "5.1.1 L01"],
        |f| {
            // One read may be outstanding, but fifty are posted, with other requests between them.
            let rc = RcAttributes { rdma_read_ord: 1, ..attributes().rc };
            let pair = f.pair_of(&EpAttributes { rc, ..attributes() }, &attributes())?;
            let (own, peer) =
                (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
            peer.fill(6);
            let from = (peer.remote(0), peer.context()?);
            for cookie in 0..50 {
                match cookie % 3 {
                    0 => post(&pair.a, Way::Write, &[], cookie, SIGNALLED, NOWHERE)?,
                    _ => post(
                        &pair.a,
                        Way::Read,
                        &[own.segment(cookie as usize * 8, 8)],
                        cookie,
                        SIGNALLED,
                        from,
                    )?,
                }
            }
            for cookie in 0..50 {
                pair.a.done(cookie, DtoStatus::Success)?;
                if cookie % 3 != 0 {
                    check_eq!(own.bytes(cookie as usize * 8, 8), peer.bytes(0, 8));
                }
            }
            Ok(())
        },
    ),
    // Without the fence, a request would use the data before the earlier read has fetched it.
    test(
        "data::the_barrier_fence",
        &[
            "it_dto_flags_t B28 F04 F11",
            "it_post_send B18",
            "it_post_rdma_write B18",
            "it_post_rdma_read B18",
        ],
        |f| {
            let len = 8 * PAGE;
            let (pair, own, peer) = ready(f, len)?;
            let there = (peer.remote(0), peer.context()?);
            let fenced = SIGNALLED | DtoFlags::BARRIER_FENCE;
            for round in 0..20 {
                peer.fill(round);
                // Read a region, and write the data back behind the fence.
                post(&pair.a, Way::Read, &[own.whole()], 1, SIGNALLED, there)?;
                let back = f.region(&f.b, pair.b.pz, len, OPEN)?;
                post(&pair.a, Way::Write, &[own.whole()], 2, fenced, (back.remote(0), back.context()?))?;
                // Read again into the same place behind a fence, and send the data behind another
                // fence.
                post(&pair.a, Way::Read, &[own.whole()], 3, fenced, there)?;
                let message = f.region(&f.b, pair.b.pz, len, OPEN)?;
                f.b.post_recv(pair.b.ep, &[message.whole()], 4, DtoFlags::COMPLETION)?;
                f.a.post_send(pair.a.ep, &[own.whole()], 5, fenced)?;
                for cookie in [1, 2, 3, 5] {
                    pair.a.done(cookie, DtoStatus::Success)?;
                }
                pair.b.recv_done(4, DtoStatus::Success)?;
                check!(back.all() == peer.all() && message.all() == peer.all(), "round {round}");
                f.b.lmr_free(back.lmr)?;
                f.b.lmr_free(message.lmr)?;
            }
            Ok(())
        },
    ),
];
