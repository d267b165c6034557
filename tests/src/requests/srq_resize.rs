//! Resizing shared receive queues (page it_srq_modify).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use nic_abi::registers::Features;
use privileged_api::*;

use crate::fixture::{Fixture, Pair, SIGNALLED, is_iwarp};
use crate::requests::srq::{client, fill, low, one};
use crate::thread::{Body, all_pass, breathe};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const SIZE: SrqParamMask = SrqParamMask::MAX_RECV_DTO;
const BOTH: SrqParamMask = SIZE.union(SrqParamMask::LOW_WATERMARK);

/// Changes the size of the queue.
fn resize(f: &Fixture, srq: SrqHandle, max_recv_dtos: usize) -> Result<(), Error> {
    f.b.srq_modify(srq, SIZE, &SrqParam { max_recv_dtos, ..SrqParam::default() })
}

/// The size of the queue.
fn size(f: &Fixture, srq: SrqHandle) -> Result<usize, Failure> {
    Ok(f.b.srq_query(srq, SIZE)?.max_recv_dtos)
}

/// Checks that exactly `count` more Receives fit, the first with this cookie.
fn room_for(f: &Fixture, srq: SrqHandle, first: u64, count: u64) -> Outcome {
    fill(f, srq, first..first + count)?;
    refused(f.b.post_recv(srq, &[], 0, DtoFlags::COMPLETION), Error::TooManyPosts)
}

pub(crate) const TESTS: &[Test] = &[
    // A queue has exactly the size of its last change, and every posted Receive is consumed.
    test("srq::larger_and_smaller", &["it_srq_modify B01 F01", "it_ia_info_t F57"], |f| {
        check!(f.b.ia_query()?.srq_resizable);
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 4)?;
        let pair = client(f, srq)?;
        let before = f.b.srq_query(srq, SrqParamMask::ALL)?;
        let mut cookies = 0..;
        // The queue is filled at every size, and all its Receives are consumed at the next one.
        for count in [4, 8, 9, 100, 3, 64, 1, 2] {
            resize(f, srq, count)?;
            let now = SrqParam { max_recv_dtos: count, ..before };
            check_eq!(f.b.srq_query(srq, SrqParamMask::ALL)?, now);
            for _ in 0..2 {
                let first = cookies.start;
                room_for(f, srq, first, count as u64)?;
                for cookie in cookies.by_ref().take(count) {
                    check_eq!(one(f, &pair)?.cookie, cookie);
                }
            }
        }
        // A size of zero is rounded up to one.
        resize(f, srq, 0)?;
        check_eq!(size(f, srq)?, 1);
        room_for(f, srq, 0, 1)
    }),
    // Receives that are posted before a change of the size are consumed after it, in their order.
    test("srq::what_is_posted_outlives_a_change", &["it_srq_modify V01"], |f| {
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 8)?;
        let pair = client(f, srq)?;
        // Begin in the middle of the ring.
        fill(f, srq, 90..95)?;
        for _ in 90..95 {
            one(f, &pair)?;
        }
        fill(f, srq, 0..7)?;
        for (count, more) in [(200, 7..150), (150, 0..0), (1000, 150..190)] {
            resize(f, srq, count)?;
            fill(f, srq, more)?;
        }
        for cookie in 0..100 {
            check_eq!(one(f, &pair)?.cookie, cookie);
        }
        resize(f, srq, 90)?;
        refused(f.b.post_recv(srq, &[], 0, DtoFlags::COMPLETION), Error::TooManyPosts)?;
        for cookie in 100..190 {
            check_eq!(one(f, &pair)?.cookie, cookie);
        }
        room_for(f, srq, 0, 90)
    }),
    // A size below the number of posted Receives, or above the adapter's maximum, is refused
    // without effect.
    test(
        "srq::size_refusals",
        &[
            "it_srq_modify B04 V04 IT_ERR_INVALID_SRQ_SIZE IT_ERR_RESOURCES",
            "it_srq_modify IT_ERR_SRQ_LOW_WATERMARK",
            "it_status_t F73",
        ],
        |f| {
            let srq = f.b.srq_create(f.b.pz_create()?, 1, 8)?;
            fill(f, srq, 0..5)?;
            let before = f.b.srq_query(srq, SrqParamMask::ALL)?;
            let most = f.setup.b.agent.identity().max_srq_entries as usize;
            for (max_recv_dtos, low_watermark, error) in [
                (0, 1, Error::InvalidSrqSize),
                (4, 1, Error::InvalidSrqSize),
                (most + 1, 1, Error::Resources),
                (u32::MAX as usize + 9, 1, Error::Resources),
                (usize::MAX, 1, Error::Resources),
                // The low watermark must fit the new size, whichever of the two changes.
                (16, 0, Error::SrqLowWatermark),
                (16, 17, Error::SrqLowWatermark),
                (6, 7, Error::SrqLowWatermark),
                (16, usize::MAX, Error::SrqLowWatermark),
            ] {
                let params = SrqParam { max_recv_dtos, low_watermark, ..before };
                refused(f.b.srq_modify(srq, BOTH, &params), error)?;
                if error != Error::SrqLowWatermark {
                    refused(f.b.srq_modify(srq, SIZE, &params), error)?;
                }
                check_eq!(f.b.srq_query(srq, SrqParamMask::ALL)?, before);
            }
            // Both change at once.
            let params = SrqParam { max_recv_dtos: 16, low_watermark: 5, ..before };
            f.b.srq_modify(srq, BOTH, &params)?;
            check_eq!(f.b.srq_query(srq, SrqParamMask::ALL)?, params);
            // The watermark stays when the size changes.
            resize(f, srq, 5)?;
            check_eq!((size(f, srq)?, low(f, srq)?), (5, 5));
            check_eq!(Error::InvalidSrqSize as u32, 72);
            Ok(())
        },
    ),
    // On an interface without the feature, the size cannot be changed.
    test("srq::not_resizable", &["it_srq_modify O01 V02", "it_ia_info_t F57"], |f| {
        let provider = Provider::new(f.platform().clone());
        let limits = Limits { features: Features::all() - Features::SRQ_RESIZE, ..Limits::NONE };
        f.setup.transport.add(&provider, "limited", f.setup.b.agent.clone(), limits)?;
        let ia = provider.ia_create("limited", 2, 1, None)?;
        check!(ia.ia_query()?.srq_support && !ia.ia_query()?.srq_resizable);
        let srq = ia.srq_create(ia.pz_create()?, 1, 4)?;
        let before = ia.srq_query(srq, SrqParamMask::ALL)?;
        let params = SrqParam { max_recv_dtos: 8, low_watermark: 1, ..before };
        for mask in [SIZE, BOTH] {
            refused(ia.srq_modify(srq, mask, &params), Error::InvalidMask)?;
        }
        check_eq!(ia.srq_query(srq, SrqParamMask::ALL)?, before);
        Ok(ia.ia_free()?)
    }),
    // Changes of the size while messages arrive lose no Receive.
    test("srq::resized_under_traffic", &["it_srq_modify V01"], |f| {
        const MESSAGES: u64 = 400;
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 16)?;
        let Pair { a: sender, b: taker } = client(f, srq)?;
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        let ia = f.b.clone();
        bodies.push(Box::new(move || {
            for cookie in 0..MESSAGES {
                check_eq!(taker.reap_recv()?.cookie, cookie);
            }
            Ok(())
        }));
        let ia_of_sender = f.a.clone();
        // Over iWARP no Send waits for a Receive.
        let (posted, waits) = (Arc::new(AtomicU64::new(0)), is_iwarp(&f.a)?);
        let (taken, platform) = (posted.clone(), f.platform().clone());
        bodies.push(Box::new(move || {
            for cookie in 0..MESSAGES {
                while waits && taken.load(Ordering::Acquire) <= cookie {
                    breathe(&platform);
                }
                ia_of_sender.post_send(sender.ep, &[], cookie, SIGNALLED)?;
                sender.done(cookie, DtoStatus::Success)?;
            }
            Ok(())
        }));
        bodies.push(Box::new(move || {
            let mut cookie = 0;
            while cookie < MESSAGES {
                match ia.post_recv(srq, &[], cookie, DtoFlags::COMPLETION) {
                    Ok(()) => {
                        cookie += 1;
                        posted.store(cookie, Ordering::Release);
                    }
                    Err(Error::TooManyPosts) => platform::sync::yield_now(),
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        }));
        let ia = f.b.clone();
        bodies.push(Box::new(move || {
            // No size exceeds the entries of the EVD of their completions.
            for max_recv_dtos in [3, 40, 7, 60, 1, 33, 16].into_iter().cycle().take(40) {
                let params = SrqParam { max_recv_dtos, ..SrqParam::default() };
                match ia.srq_modify(srq, SIZE, &params) {
                    Ok(()) | Err(Error::InvalidSrqSize) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        }));
        all_pass(f.platform(), bodies)
    }),
];
