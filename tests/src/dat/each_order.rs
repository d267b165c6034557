//! What holds for every kind of post in relation to others: fences, the order of completions, full
//! queues, states, failures, and what is flushed behind them. The device is held while requests
//! are posted, so that all of them are outstanding at the same time.

use alloc::vec::Vec;
use core::result::Result;

use dat::*;
use nic_abi::admin::Injection;

use super::each::*;
use super::world::*;
use super::write_immed_rules::{FULL, in_other_states};
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check, check_eq, not_shown, refused, test};

/// A fenced post of a kind behind an RDMA Read whose answer is lost at first. Both are posted
/// before the device executes either. The Read returns what the peer's memory was before the post,
/// and the post sends what the Read returned.
fn fenced(w: &World<'_>, post: Post) -> Outcome {
    let kind = post.kind;
    let rig = Rig::new(w, kind)?;
    let (before, brought) = (0, 0x1111_2222_3333_4444);
    rig.far.set_word(0, before);
    rig.far.set_word(8, brought);
    rig.own.write(0, &[0xee; 64]);
    rig.receive(kind, 1)?;
    w.f.inject(w.a.ep_qpn(rig.a.ep)?, Injection::DropResponses, 1, 0)?;
    w.f.held(|| {
        w.a.ep_post_rdma_read(rig.a.ep, &[rig.own.segment(0, 16)], 1, &rig.far.remote(0, 16), PLAIN)?;
        // The result of an atomic goes behind what the Read brings.
        let at = if kind.is_atomic() { 32 } else { 8 };
        Ok(rig.post(post, &[rig.own.segment(at, 8)], 2, CompletionFlags::BARRIER_FENCE)?)
    })?;
    rig.done(Kind::Read, 1, DtoStatus::Success)?;
    rig.done(kind, 2, DtoStatus::Success)?;
    check_eq!((rig.own.word(0), rig.own.word(8)), (before, brought), "what the Read returned");
    let after = if kind.is_atomic() { 1 } else { brought };
    check_eq!(rig.far.word(0), after, "what the post did");
    if kind.takes_receive() {
        rig.b.received(1, DtoStatus::Success)?;
    }
    nothing(&w.a, rig.a.request)
}

/// An endpoint with as many outstanding requests as it can have, of all kinds, refuses one more of
/// each kind. None is complete while the device is held; then they complete in the order of the
/// posts. If one in the middle fails, those before it succeed, and those behind it are flushed.
fn in_order(w: &World<'_>, bad: Option<usize>) -> Outcome {
    let all: Vec<Post> = connected().collect();
    let count = all.len();
    let attr = EpAttr { max_request_dtos: count, ..attributes() };
    let rig = Rig::with(w, Kind::Send, &attr, &attributes())?;
    let piece = [rig.own.segment(64, 8)];
    let nowhere = [LmrTriplet::new(LmrContext::default(), 0, 8)];
    for (cookie, post) in (0..).zip(&all) {
        rig.receive(post.kind, cookie)?;
    }
    w.f.held(|| {
        for (number, post) in all.iter().enumerate() {
            let segments = if bad == Some(number) { &nowhere } else { &piece };
            rig.post(*post, segments, number as u64, PLAIN)?;
        }
        for post in &all {
            refused(rig.post(*post, &piece, 99, PLAIN), FULL).map_err(named(*post))?;
        }
        check_eq!(w.a.ep_get_status(rig.a.ep)?, (EpState::Connected, true, false));
        refused(w.a.evd_dequeue(rig.a.request), Error::from(ErrorType::QueueEmpty))
    })?;
    for (number, post) in all.iter().enumerate() {
        let status = match bad {
            Some(bad) if bad == number => DtoStatus::LocalProtection,
            Some(bad) if bad < number => DtoStatus::Flushed,
            _ => DtoStatus::Success,
        };
        rig.done(post.kind, number as u64, status).map_err(named(*post))?;
    }
    nothing(&w.a, rig.a.request)
}

/// Requests that are outstanding at a disconnect are flushed in the order of their posts, also
/// suppressed ones, and have no effect. So are those that are posted afterwards.
fn flushed(w: &World<'_>, post: Post) -> Outcome {
    const COUNT: u64 = 4;
    let kind = post.kind;
    let rig = Rig::new(w, kind)?;
    rig.fill(kind, 1);
    let before = (rig.own.bytes(0, PAGE), rig.far.bytes(0, PAGE));
    let piece = [rig.own.segment(64, 8)];
    let flags = |cookie: u64| [PLAIN, CompletionFlags::SUPPRESS][cookie as usize & 1];
    for cookie in 0..COUNT {
        rig.b.receive(&[rig.far.segment(0, 64)], cookie)?;
    }
    w.f.held(|| {
        for cookie in 0..COUNT {
            rig.post(post, &piece, cookie, flags(cookie))?;
        }
        check_eq!(w.a.ep_get_status(rig.a.ep)?, (EpState::Connected, true, false));
        Ok(w.a.ep_disconnect(rig.a.ep, CloseFlags::Abrupt)?)
    })?;
    for cookie in 0..COUNT {
        rig.done(kind, cookie, DtoStatus::Flushed)?;
    }
    for end in [&rig.a, &rig.b] {
        expect(&end.ia, end.connect, EventNumber::CONNECTION_DISCONNECTED)?;
        check_eq!(end.state()?, EpState::Disconnected);
    }
    for cookie in 0..COUNT {
        rig.b.received(cookie, DtoStatus::Flushed)?;
    }
    let fence = CompletionFlags::BARRIER_FENCE;
    for flags in [PLAIN, CompletionFlags::SUPPRESS, fence, fence | CompletionFlags::SUPPRESS] {
        rig.post(post, &piece, 9, flags)?;
        rig.done(kind, 9, DtoStatus::Flushed)?;
    }
    check!(before == (rig.own.bytes(0, PAGE), rig.far.bytes(0, PAGE)), "a flushed request had an effect");
    nothing(&w.a, rig.a.request)
}

/// A bad piece of memory: that of the request, or that of the peer.
type Bad = (LmrTriplet, RmrTriplet);

/// Makes a good piece bad. The zone and the memory are those of the endpoint whose memory it is.
type Spoil = fn(&World<'_>, Kind, &Rig, Bad) -> Result<Bad, Failure>;

/// Faults of a request's own memory.
const LOCAL: &[(&str, Spoil)] = &[
    ("bogus", |_, _, _, (_, to)| Ok((LmrTriplet::new(LmrContext::default(), 64, 8), to))),
    ("freed", |w, _, rig, (_, to)| {
        let freed = w.region(&rig.a, 64, OPEN)?;
        w.a.lmr_free(freed.lmr.lmr_handle)?;
        Ok((freed.segment(0, 8), to))
    }),
    ("of another zone", |w, _, _, (_, to)| {
        Ok((w.region_in(&w.a, w.a.pz_create()?, 64, OPEN)?.segment(0, 8), to))
    }),
    ("beyond the end", |w, _, rig, (_, to)| Ok((w.region(&rig.a, 64, OPEN)?.segment(57, 8), to))),
    ("before the beginning", |w, _, rig, (_, to)| {
        let piece = w.region(&rig.a, 64, OPEN)?.segment(0, 8);
        Ok((LmrTriplet::new(piece.lmr_context(), piece.virtual_address() - 1, 8), to))
    }),
];

/// A fault of a segment that is written to. Every region allows local reads, so no other segment
/// can lack a privilege.
const READ_ONLY: (&str, Spoil) = ("without the privilege", |w, _, rig, (_, to)| {
    Ok((w.region(&rig.a, 64, MemPriv::LOCAL_READ)?.segment(0, 8), to))
});

/// Faults of the peer's memory.
const REMOTE: &[(&str, Spoil)] = &[
    ("bogus", |_, _, _, (own, to)| Ok((own, RmrTriplet { rmr_context: !to.rmr_context, ..to }))),
    ("freed", |w, _, rig, (own, _)| {
        let freed = w.region(&rig.b, 64, OPEN)?;
        w.b.lmr_free(freed.lmr.lmr_handle)?;
        Ok((own, freed.remote(0, 8)))
    }),
    ("of another zone", |w, _, _, (own, _)| {
        Ok((own, w.region_in(&w.b, w.b.pz_create()?, 64, OPEN)?.remote(0, 8)))
    }),
    ("beyond the end", |w, kind, rig, (own, _)| {
        let (len, at) = if kind.is_atomic() { (60, 56) } else { (64, 57) };
        Ok((own, w.region(&rig.b, len, OPEN)?.remote(at, 8)))
    }),
    ("before the beginning", |_, _, _, (own, to)| {
        Ok((own, RmrTriplet { target_address: to.target_address - 8, ..to }))
    }),
    ("without the privilege", |w, kind, rig, (own, _)| {
        let lacking = match kind {
            Kind::Read => MemPriv::REMOTE_READ,
            Kind::CompareAndSwap | Kind::FetchAndAdd => MemPriv::IB_REMOTE_ATOMIC,
            _ => MemPriv::REMOTE_WRITE,
        };
        Ok((own, w.region(&rig.b, 64, OPEN.difference(lacking))?.remote(0, 8)))
    }),
];

/// A request behind one that succeeds and before two others fails, with its own status. The one in
/// front has its effect, those behind are flushed and have none, and the connection breaks.
fn fails(w: &World<'_>, post: Post, spoil: Spoil, status: DtoStatus) -> Outcome {
    let kind = post.kind;
    let rig = Rig::new(w, kind)?;
    rig.fill(kind, 1);
    let piece = rig.own.segment(64, 8);
    let (bad, to) = spoil(w, kind, &rig, (piece, rig.far.remote(0, 8)))?;
    // A bad segment is not the first one where there can be several.
    let segments = if kind.is_atomic() { [bad].into() } else { Vec::from([rig.own.segment(80, 0), bad]) };
    let (far, own) = (rig.far.bytes(8, 1000), rig.own.bytes(0, 64));
    for cookie in 0..3 {
        rig.receive(kind, cookie)?;
    }
    w.f.held(|| {
        rig.post(post, &[piece], 1, PLAIN)?;
        post.to(&rig.a, &rig.to, &segments, &to, 2, PLAIN)?;
        rig.post(post, &[piece], 3, CompletionFlags::SUPPRESS)?;
        Ok(rig.post(post, &[piece], 4, PLAIN)?)
    })?;
    rig.done(kind, 1, DtoStatus::Success)?;
    rig.done(kind, 2, status)?;
    rig.done(kind, 3, DtoStatus::Flushed)?;
    rig.done(kind, 4, DtoStatus::Flushed)?;
    nothing(&w.a, rig.a.request)?;
    if kind.is_datagram() {
        check_eq!(rig.a.state()?, EpState::Disconnected);
        return Ok(());
    }
    expect(&w.a, rig.a.connect, EventNumber::CONNECTION_BROKEN)?;
    next(&w.b, rig.b.connect)?;
    check_eq!((rig.a.state()?, rig.b.state()?), (EpState::Disconnected, EpState::Disconnected));
    if kind.is_atomic() {
        check_eq!(rig.far.word(0), 1);
    } else {
        check!(rig.own.bytes(64, 8) == rig.far.bytes(0, 8), "the first request had no effect");
    }
    check!((far, own) == (rig.far.bytes(8, 1000), rig.own.bytes(0, 64)), "other bytes have changed");
    if kind.takes_receive() {
        rig.b.received(0, DtoStatus::Success)?;
        check!(completion(&w.b, rig.b.recv)?.0.status != DtoStatus::Success, "the bad request arrived");
        rig.b.received(2, DtoStatus::Flushed)?;
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // No fenced post takes effect before an earlier Read has its data. A fenced Read is left out:
    // Reads change nothing at the peer, and the peer answers them in order without a fence, too, so
    // the test could not see a lost fence. A datagram cannot be fenced.
    test(
        "dat_each::fenced",
        &[
            "dat-ib-2.2 B06 B07",
            "dat_ib_post_rdma_write_with_immed F04",
            "dat_ib_post_cmp_and_swap F04",
            "dat_ib_post_fetch_and_add F03",
        ],
        |f| {
            for post in connected().filter(|post| post.kind != Kind::Read) {
                world(f, |w| fenced(w, post)).map_err(named(post))?;
            }
            if !f.setup.packets {
                return not_shown("without packets a request begins when the one before is done");
            }
            Ok(())
        },
    ),
    // Posts of all kinds complete in their order, as many as the endpoint can have; those behind
    // one that fails are flushed in that order.
    test(
        "dat_each::in_order",
        &[
            "dat_ib_post_rdma_write_with_immed B12 DAT_INSUFFICIENT_RESOURCES",
            "dat_ib_post_cmp_and_swap B05 DAT_INSUFFICIENT_RESOURCES",
            "dat_ib_post_fetch_and_add B04",
        ],
        |f| {
            let middle = connected().count() / 2;
            for bad in [None, Some(0), Some(middle)] {
                world(f, |w| in_order(w, bad))?;
            }
            Ok(())
        },
    ),
    // What is outstanding at a disconnect, and what is posted behind it, is flushed, of each kind.
    // Datagrams need no connection: what is posted is sent.
    test(
        "dat_each::flushed",
        &[
            "dat_ib_post_rdma_write_with_immed B10",
            "dat_ib_post_cmp_and_swap B11",
            "dat_ib_post_fetch_and_add B09",
        ],
        |f| {
            for post in connected() {
                world(f, |w| flushed(w, post)).map_err(named(post))?;
            }
            Ok(())
        },
    ),
    // No request can be posted except in CONNECTED and DISCONNECTED.
    test(
        "dat_each::states",
        &[
            "dat_ib_post_rdma_write_with_immed S01 DAT_INVALID_STATE",
            "dat_ib_post_cmp_and_swap S01 DAT_INVALID_STATE",
            "dat_ib_post_fetch_and_add S01",
        ],
        |f| {
            world(f, |w| {
                let rig = Rig::new(w, Kind::Send)?;
                let (piece, to) = ([rig.own.segment(64, 8)], rig.far.remote(0, 8));
                for (ep, state, subtype) in in_other_states(w)? {
                    let end = End { ep, ..rig.a.clone() };
                    for (post, flags) in connected().flat_map(|post| {
                        [PLAIN, CompletionFlags::SUPPRESS, CompletionFlags::BARRIER_FENCE]
                            .map(|flags| (post, flags))
                    }) {
                        let posted = post.to(&end, &rig.to, &piece, &to, 1, flags);
                        let error = Error::new(ErrorType::InvalidState, subtype);
                        refused(posted, error).map_err(named(post))?;
                    }
                    check_eq!(w.a.ep_get_status(ep)?, (state, true, true));
                }
                for post in connected() {
                    rig.receive(post.kind, 1)?;
                    rig.post(post, &piece, 2, PLAIN)?;
                    rig.done(post.kind, 2, DtoStatus::Success).map_err(named(post))?;
                }
                Ok(())
            })
        },
    ),
    // A request of each kind fails whose own memory, or the peer's, is bogus, freed, of another
    // zone, too short on either side, or without the privilege that this kind needs.
    test(
        "dat_each::failures",
        &["DAT_IB_STATUS B01 F02", "DAT_IB_MEM_PRIV_FLAGS F01", "dat_ib_post_rdma_write_with_immed B03 X01"],
        |f| {
            let (local, remote) = (DtoStatus::LocalProtection, DtoStatus::RemoteAccess);
            for (number, post) in posts().enumerate() {
                let sink = post.kind.is_sink().then_some(&READ_ONLY);
                let there = if post.kind.is_remote() { REMOTE } else { &[] };
                let here = LOCAL.iter().chain(sink).map(|case| (case, local));
                let cases = here.chain(there.iter().map(|case| (case, remote))).enumerate();
                // Each case needs a connection, which on a bad network may take seconds: there each
                // kind of post has other cases, which the network does not influence.
                let step = if f.setup.lossy { LOCAL.len() } else { 1 };
                let cases = cases.filter(|(case, _)| case % step == number % step);
                let cases = cases.map(|(_, case)| case);
                for ((what, spoil), status) in cases {
                    let outcome = world(f, |w| fails(w, post, *spoil, status)).map_err(named(post));
                    outcome.map_err(|failure| {
                        let message = alloc::format!("{what}, {status:?}: {}", failure.message);
                        Failure { message, ..failure }
                    })?;
                }
            }
            Ok(())
        },
    ),
];
