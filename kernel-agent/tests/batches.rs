//! Posts through a slot: of several segments, and of batches, for which a poster has the send queue
//! for itself.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use common::scene::*;
use kernel_agent::{NoBatch, PostError, SegmentLimits};
use nic_abi::admin::QpState;
use nic_abi::wqe::Segment;

const SEGMENT: Segment = Segment { addr: 0, length: 100, key: 0 };

fn ready(slotted: &Slotted) {
    slotted.to(QpState::Rtr);
    slotted.to(QpState::Rts);
}

#[test]
fn the_slot_takes_requests_of_several_segments_within_its_limits() {
    let scene = Scene::new();
    let slotted = scene.slotted(9);
    let post = |handle, segments: usize| {
        let segments = vec![SEGMENT; segments];
        slotted.sends.post_many(handle, |limits| limits.read, &read(1, 3), &segments, |&s| s).is_some()
    };
    assert!(!post(HANDLE, 1), "in INIT");
    ready(&slotted);
    assert_eq!([0, 1, 2, 3].map(|segments| post(HANDLE, segments)), [true, true, true, false]);
    assert!(!post(HANDLE + 1, 1), "another handle");
    let refused = slotted.sends.post_many(HANDLE, |limits| limits.read, &read(1, 3), &[()], |_| None);
    assert_eq!((refused, slotted.qp.outstanding()), (None, (3, 0)));
}

#[test]
fn a_batch_of_single_segments_is_posted_at_its_end() {
    let scene = Scene::new();
    let slotted = scene.slotted_within(SegmentLimits { send: 1, write: 1, read: 1 }, 9);
    ready(&slotted);
    let room = slotted.sends.batch(HANDLE, |mut batch| -> Result<_, NoBatch> {
        assert_eq!(batch.write_single(&read(0, 0), || None), None, "the caller has no segment");
        let mut room = 0;
        while batch.write_single(&read(room, 3), || Some(SEGMENT)).is_some() {
            room += 1;
        }
        assert_eq!(
            batch.write(|limits| limits.read, &read(0, 0), &[SEGMENT], |&s| s),
            Err(PostError::QueueFull)
        );
        assert_eq!(slotted.qp.outstanding(), (0, 0));
        Ok((room, batch.written()))
    });
    let room = room.unwrap();
    assert!(room >= 32);
    assert_eq!(slotted.qp.outstanding(), (room as u32, 0));
}

#[test]
fn a_batch_is_within_the_limits_of_the_slot_and_of_its_poster() {
    let scene = Scene::new();
    let slotted = scene.slotted_within(SegmentLimits { send: 0, write: 1, read: 2 }, 9);
    ready(&slotted);
    let posted = slotted.sends.batch(HANDLE, |mut batch| -> Result<_, NoBatch> {
        assert_eq!(batch.write_single(&read(0, 3), || Some(SEGMENT)), None, "a Send may have no segment");
        for (limit, segments, expected) in [
            ((|limits| limits.send) as fn(&SegmentLimits) -> u32, 1, Err(PostError::Segments)),
            (|limits| limits.send, 0, Ok(())),
            (|limits| limits.write, 1, Ok(())),
            (|limits| limits.write, 2, Err(PostError::Segments)),
            (|limits| limits.read, 2, Ok(())),
            (|limits| limits.read, 3, Err(PostError::Segments)),
        ] {
            let segments = vec![SEGMENT; segments];
            assert_eq!(batch.write(limit, &read(1, 3), &segments, |&s| s), expected);
        }
        Ok(((), batch.written()))
    });
    assert_eq!((posted, slotted.qp.outstanding()), (Ok(()), (3, 0)));
}

#[test]
fn while_a_batch_is_written_no_one_else_posts_and_one_that_fails_posts_nothing() {
    let scene = Scene::new();
    let slotted = scene.slotted_within(SegmentLimits { send: 1, write: 1, read: 1 }, 9);
    let nothing = |slotted: &Slotted| slotted.sends.batch(HANDLE, |batch| Ok(((), batch.written())));
    assert_eq!(nothing(&slotted), Err(NoBatch::Closed), "in INIT");
    ready(&slotted);
    let failed = slotted.sends.batch(HANDLE, |mut batch| -> Result<((), _), Option<NoBatch>> {
        batch.write_single(&read(1, 3), || Some(SEGMENT)).unwrap();
        assert_eq!(nothing(&slotted), Err(NoBatch::Closed));
        assert_eq!(slotted.post(HANDLE, |limits| limits.read, 1), None);
        assert_eq!(slotted.qp.why_no_batch(), PostError::Busy);
        Err(None)
    });
    assert_eq!((failed, slotted.qp.outstanding()), (Err(None), (0, 0)));
    // The queue pair leaves the states in which it sends.
    let lost = slotted.sends.batch(HANDLE, |mut batch| -> Result<_, NoBatch> {
        batch.write_single(&read(1, 3), || Some(SEGMENT)).unwrap();
        slotted.qp.to_reset().unwrap();
        Ok(((), batch.written()))
    });
    assert_eq!((lost, slotted.qp.outstanding()), (Err(NoBatch::Lost), (0, 0)));
}
