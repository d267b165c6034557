//! Transfers of endpoints over VIA, and the statuses of those that succeed.

use privileged_api::*;

use super::open_pair;
use crate::fixture::SIGNALLED;
use crate::{Test, check, check_eq, test};

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // Sends, RDMA Writes and RDMA Reads of several segments move their bytes, and each completes
    // once with success.
    test("via_ia_transfer::every_kind", &["it_dto_status_t F38"], |f| {
        let f = f.over_via()?;
        let (pair, own, peer) = open_pair(&f)?;
        own.fill(7);
        let halves = [own.segment(0, 100), own.segment(100, 200)];
        pair.b.ia.post_recv(pair.b.ep, &[peer.segment(0, 300)], 1, DtoFlags::COMPLETION)?;
        pair.a.ia.post_send(pair.a.ep, &halves, 2, SIGNALLED)?;
        pair.a.done(2, DtoStatus::Success)?;
        let received = pair.b.reap_recv()?;
        check_eq!(
            (received.cookie, received.dto_status, received.transferred_length),
            (1, DtoStatus::Success, 300)
        );
        check_eq!(received.event_number, EventType::DTO_RC_RECV_CMPL);
        check_eq!(peer.bytes(0, 300), own.bytes(0, 300));
        pair.a.ia.post_rdma_write(pair.a.ep, &halves, 3, SIGNALLED, peer.remote(1000), peer.context()?)?;
        pair.a.done(3, DtoStatus::Success)?;
        check_eq!(peer.bytes(1000, 300), own.bytes(0, 300));
        let sinks = [own.segment(2000, 10), own.segment(3000, 290)];
        pair.a.ia.post_rdma_read(pair.a.ep, &sinks, 4, SIGNALLED, peer.remote(1000), peer.context()?)?;
        let read = pair.a.reap()?;
        check_eq!((read.cookie, read.dto_status, read.transferred_length), (4, DtoStatus::Success, 300));
        check!(own.bytes(2000, 10) == own.bytes(0, 10) && own.bytes(3000, 290) == own.bytes(10, 290));
        pair.a.idle()?;
        pair.b.idle()
    }),
];
