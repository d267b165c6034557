//! Modifying simple EVDs: masks, threshold, size, enabled (page it_evd_modify).

use privileged_api::*;

use crate::events::evd::{
    PLAIN, blocks, expect_software, nothing, queue_plain, queued, software, with_threshold,
};
use crate::fixture::{Pair, attributes, evd_param, sevd};
use crate::thread::eventually;
use crate::{Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // Each undefined or unmodifiable bit of the mask is refused.
    test(
        "evd::undefined_mask_bits",
        &["it_evd_query IT_ERR_INVALID_MASK", "it_evd_modify L01 L02 IT_ERR_INVALID_MASK", "it_status_t F50"],
        |f| {
            let evd = software(&f.a, 8)?;
            let before = evd_param(&f.a, evd)?;
            for bits in [0x1000, 0x8000_0000, u32::MAX] {
                let mask = EvdParamMask::from_bits_retain(bits);
                refused(f.a.evd_query(evd, mask), Error::InvalidMask)?;
                refused(f.a.evd_modify(evd, mask, &before), Error::InvalidMask)?;
            }
            for mask in [
                EvdParamMask::ALL,
                EvdParamMask::IA,
                EvdParamMask::EVENT_NUMBER,
                EvdParamMask::FLAG,
                EvdParamMask::FD,
                EvdParamMask::BOUND,
                EvdParamMask::CALLBACK,
                EvdParamMask::IA | EvdParamMask::ENABLED,
            ] {
                let change = EvdParam { evd_enabled: false, ..before };
                refused(f.a.evd_modify(evd, mask, &change), Error::InvalidMask)?;
            }
            check_eq!(evd_param(&f.a, evd)?, before);
            check_eq!(Error::InvalidMask as u32, 49);
            Ok(())
        },
    ),
    // A new threshold is in force at once; one above the size is refused without effect.
    test("evd::modify_the_threshold", &["it_evd_modify B01 B10 F02 IT_ERR_INVALID_THRESHOLD"], |f| {
        let pair = with_threshold(f, 5)?;
        let evd = pair.a.request;
        let set = |sevd_threshold| {
            // Fields that the mask does not name are ignored.
            let change = EvdParam { sevd_threshold, sevd_queue_size: 1, ..EvdParam::default() };
            f.a.evd_modify(evd, EvdParamMask::THRESHOLD, &change)
        };
        let before = evd_param(&f.a, evd)?;
        for threshold in [before.sevd_queue_size + 1, usize::MAX] {
            refused(set(threshold), Error::InvalidThreshold)?;
        }
        check_eq!(evd_param(&f.a, evd)?, before);
        queue_plain(f, &pair, 2)?;
        blocks(&f.a, evd, 2)?;
        set(2)?;
        check_eq!(evd_param(&f.a, evd)?, EvdParam { sevd_threshold: 2, ..before });
        pair.a.done(0, DtoStatus::Success)?;
        blocks(&f.a, evd, 1)?;
        set(0)?;
        blocks(&f.a, evd, 1)?;
        set(1)?;
        pair.a.done(1, DtoStatus::Success)
    }),
    // A queue can grow, and shrink down to its events and its threshold.
    test(
        "evd::modify_the_queue_size",
        &["it_evd_modify B02 B09 B11 F01 IT_ERR_INVALID_QUEUE_SIZE", "it_status_t F58"],
        |f| {
            let evd =
                f.a.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 64, 3, EvdHandle::NULL)?;
            let set = |sevd_queue_size| {
                let change = EvdParam { sevd_queue_size, ..EvdParam::default() };
                f.a.evd_modify(evd, EvdParamMask::QUEUE_SIZE, &change)
            };
            let before = evd_param(&f.a, evd)?;
            refused(set(2), Error::InvalidQueueSize)?;
            refused(set(0), Error::InvalidQueueSize)?;
            for data in 0..10 {
                f.a.evd_post_se(evd, data)?;
            }
            refused(set(9), Error::InvalidQueueSize)?;
            check_eq!(evd_param(&f.a, evd)?, before);
            set(500)?;
            let room = evd_param(&f.a, evd)?.sevd_queue_size;
            check!(room >= 500);
            for data in 10..room {
                f.a.evd_post_se(evd, data)?;
            }
            refused(f.a.evd_post_se(evd, 0), Error::EvdQueueFull)?;
            for data in 0..room {
                expect_software(&f.a, evd, data)?;
            }
            set(8)?;
            check!(evd_param(&f.a, evd)?.sevd_queue_size >= 8);
            f.a.evd_post_se(evd, 1)?;
            expect_software(&f.a, evd, 1)?;
            check_eq!(Error::InvalidQueueSize as u32, 57);
            Ok(())
        },
    ),
    // Growing a completion queue neither loses nor duplicates nor reorders completions.
    test("evd::grow_a_completion_queue_in_use", &["it_evd_modify B02 F01"], |f| {
        // Completions that do not notify, below a threshold that they never reach: a wait returns
        // their number and takes none of them.
        let request = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, THRESHOLD_DISABLE)?;
        let recv = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
        let many = EpAttributes { max_request_dtos: 200, ..attributes() };
        let pair = Pair { a: f.end_on(&f.a, &many, request, recv)?, b: f.end(&f.b, &attributes())? };
        f.connect(&pair.a, &pair.b)?;
        let take = |cookie| {
            let mut taken = Err(Error::QueueEmpty);
            eventually(f.platform(), || {
                taken = f.a.evd_dequeue(request);
                taken != Err(Error::QueueEmpty)
            });
            check_eq!(taken?.dto().map(|done| done.cookie), Some(cookie));
            Ok(())
        };
        // Go once around the ring first, then leave completions in it.
        for cookie in 0..100 {
            nothing(&pair.a, cookie, PLAIN)?;
            take(cookie)?;
        }
        for cookie in 0..40 {
            nothing(&pair.a, cookie, PLAIN)?;
        }
        queued(f, &f.a, request, 40)?;
        let change = EvdParam { sevd_queue_size: 256, ..EvdParam::default() };
        f.a.evd_modify(request, EvdParamMask::QUEUE_SIZE, &change)?;
        check!(evd_param(&f.a, request)?.sevd_queue_size >= 256);
        for cookie in 40..200 {
            nothing(&pair.a, cookie, PLAIN)?;
        }
        for cookie in 0..200 {
            take(cookie)?;
        }
        pair.a.idle()
    }),
    // An EVD can be enabled and disabled at any time, also when it is so already.
    test("evd::modify_enabled", &["it_evd_modify B17 B18 F04", "it_evd_query F10"], |f| {
        let evd = software(&f.a, 8)?;
        let set = |evd_enabled| {
            let change = EvdParam { evd_enabled, ..EvdParam::default() };
            f.a.evd_modify(evd, EvdParamMask::ENABLED, &change)
        };
        let before = evd_param(&f.a, evd)?;
        for enabled in [false, false, true, true, false, true] {
            set(enabled)?;
            check_eq!(evd_param(&f.a, evd)?, EvdParam { evd_enabled: enabled, ..before });
        }
        Ok(())
    }),
];
