//! Disconnects: abrupt, graceful, and by a peer that is gone.

use dat::*;

use super::connections::{NOTHING, in_state, point};
use super::world::*;
use crate::{Test, check, check_eq, test};

pub(crate) const TESTS: &[Test] = &[
    // An abrupt disconnect flushes what is outstanding on both sides. Then Receives and requests
    // are accepted and flushed, until a reset.
    test("dat_connect::an_abrupt_disconnect_flushes", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair()?;
            for cookie in 0..4 {
                a.receive(NOTHING, cookie)?;
                b.receive(NOTHING, cookie)?;
            }
            a.disconnect()?;
            expect(&w.b, b.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            for end in [&a, &b] {
                for cookie in 0..4 {
                    end.received(cookie, DtoStatus::Flushed)?;
                }
                end.receive(NOTHING, 8)?;
                end.received(8, DtoStatus::Flushed)?;
                end.send(NOTHING, 9)?;
                end.done(9, DtoStatus::Flushed)?;
                in_state(w, end, EpState::Disconnected)?;
                end.ia.ep_reset(end.ep)?;
                in_state(w, end, EpState::Unconnected)?;
            }
            // In UNCONNECTED a Receive waits for the next connection.
            b.receive(NOTHING, 10)?;
            w.connect(&a, &b)?;
            a.send(NOTHING, 11)?;
            b.received(10, DtoStatus::Success)?;
            a.done(11, DtoStatus::Success)?;
            Ok(())
        })
    }),
    // A graceful disconnect lets requests complete first: the endpoint is in DISCONNECT_PENDING
    // until they have completed. The consumer need not take their completions first. An abrupt
    // disconnect ends the waiting.
    test("dat_connect::a_graceful_disconnect_waits", &[], |f| {
        world(f, |w| {
            for abrupt in [false, true] {
                let (a, b) = w.pair()?;
                // The peer has no Receive, so the Sends stay outstanding.
                for cookie in 0..3 {
                    a.send(NOTHING, cookie)?;
                }
                w.a.ep_disconnect(a.ep, CloseFlags::Graceful)?;
                in_state(w, &a, EpState::DisconnectPending)?;
                check_eq!(w.a.ep_get_status(a.ep)?.2, false);
                w.a.ep_disconnect(a.ep, CloseFlags::Graceful)?;
                in_state(w, &a, EpState::DisconnectPending)?;
                nothing(&w.a, a.connect)?;
                if abrupt {
                    w.a.ep_disconnect(a.ep, CloseFlags::Abrupt)?;
                    in_state(w, &a, EpState::Disconnected)?;
                }
                let status = if abrupt { DtoStatus::Flushed } else { DtoStatus::Success };
                if !abrupt {
                    for cookie in 0..3 {
                        b.receive(NOTHING, cookie)?;
                    }
                    for cookie in 0..3 {
                        b.received(cookie, DtoStatus::Success)?;
                    }
                }
                for end in [&a, &b] {
                    expect(&end.ia, end.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                    in_state(w, end, EpState::Disconnected)?;
                    nothing(&end.ia, end.connect)?;
                }
                for cookie in 0..3 {
                    a.done(cookie, status)?;
                }
                // The consumer sees nothing of what the provider posted.
                nothing(&w.a, a.request)?;
                for end in [&a, &b] {
                    end.ia.ep_reset(end.ep)?;
                }
                // With nothing outstanding it ends at once.
                w.connect(&a, &b)?;
                w.a.ep_disconnect(a.ep, CloseFlags::Graceful)?;
                in_state(w, &a, EpState::Disconnected)?;
                for end in [&a, &b] {
                    expect(&end.ia, end.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                }
            }
            Ok(())
        })
    }),
    // If the peer's IA is closed, the connection ends here as well. An endpoint whose connection is
    // pending, established or ended can be freed.
    test("dat_connect::the_peer_is_gone", &[], |f| {
        world(f, |w| {
            let (a, _) = w.pair()?;
            let (pending, point) = (w.end(&w.a, &attributes())?, point(&w.b)?);
            dial(&pending, address(&w.b)?, point.conn_qual, &[])?;
            request(&w.b, point.requests)?;
            let freed = w.end(&w.a, &attributes())?;
            dial(&freed, address(&w.b)?, point.conn_qual, &[])?;
            w.a.ep_free(freed.ep)?;
            w.close(&w.b)?;
            let ended = next(&w.a, a.connect)?.event_number;
            let ends = [EventNumber::CONNECTION_DISCONNECTED, EventNumber::CONNECTION_BROKEN];
            check!(ends.contains(&ended), "{ended:?}");
            in_state(w, &a, EpState::Disconnected)?;
            expect(&w.a, pending.connect, EventNumber::CONNECTION_NON_PEER_REJECTED)?;
            in_state(w, &pending, EpState::Disconnected)?;
            w.a.ep_free(a.ep)?;
            w.a.ep_free(pending.ep)?;
            nothing(&w.a, freed.connect)
        })
    }),
];
