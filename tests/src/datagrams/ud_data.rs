//! Datagrams: which arrive, which are lost, and which posts are refused (pages it_post_sendto,
//! it_post_recvfrom, it_dg_remote_ep_addr_t, it_dto_events, it_dto_flags_t, it_dto_status_t).

use alloc::vec::Vec;

use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{FRONT, KEY, RECV, address, datagrams, peer, peer_in, two, two_of, with_info};
use crate::fixture::{OPEN, PAGE, SIGNALLED, attributes, completion, path, pattern, spigot};
use crate::transport::Need;
use crate::{Failure, Test, check, check_eq, refused, test};

/// Whether these flags are legal where some are forbidden and some are needed.
fn legal(flags: DtoFlags, forbidden: DtoFlags, needed: DtoFlags) -> bool {
    let notify = !flags.contains(DtoFlags::NOTIFY) || flags.contains(DtoFlags::COMPLETION);
    !flags.intersects(forbidden) && flags.contains(needed) && notify
}

pub(crate) const TESTS: &[Test] = &[
    // A datagram arrives in one Receive, behind its header, and the completion names the sender.
    test(
        "ud::a_datagram_arrives",
        &[
            "it_ep_ud_create B04",
            "it_ep_state_t S48",
            "it_post_sendto B01 B04-B10",
            "it_post_recvfrom B02 B03 B05 B06 B08 B10-B12 B14 B15 B18",
            "it_dto_events B04 F10 F17-F19",
            "it_event_t F06",
            "it_dg_remote_ep_addr_t F01-F04",
        ],
        |f| {
            let two = two(f)?;
            check_eq!(EventType::DTO_UD_RECV_CMPL.as_raw(), 3);
            // Odd addresses, several segments, and overlapping sources.
            let mut places = Vec::from([two.into.segment(1, 17), two.into.segment(101, 300)]);
            two.b.ia.post_recvfrom(two.b.ep, &places, 7, RECV)?;
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(PAGE, 400)], 8, RECV)?;
            // The consumer may reuse the segment list at once.
            places.fill(LmrTriplet::new(LmrHandle::NULL, 0, 0));
            let mut pieces =
                Vec::from([two.from.segment(3, 50), two.from.segment(40, 20), two.from.segment(1000, 31)]);
            let said = pieces.clone();
            two.a.ia.post_sendto(two.a.ep, &pieces, 5, SIGNALLED, &two.to_b)?;
            pieces.fill(LmrTriplet::new(LmrHandle::NULL, 0, 0));
            two.a.sent(5, DtoStatus::Success)?;
            let done = two.b.arrival(f, || {
                two.a.ia.post_sendto(two.a.ep, &said, 6, SIGNALLED, &two.to_b)?;
                two.a.sent(6, DtoStatus::Success)
            })?;
            check_eq!((done.event_number, done.ep), (EventType::DTO_UD_RECV_CMPL, two.b.ep));
            check_eq!((done.cookie, done.dto_status), (7, DtoStatus::Success));
            check_eq!((done.transferred_length, done.evd), (141, two.b.recv));
            check_eq!(done.ud_ep_id, two.a.info.ud_ep_id);
            check!(done.unlinked_mr_handle.is_null());
            let mut expected = two.from.bytes(3, 50);
            expected.extend(two.from.bytes(40, 20));
            expected.extend(two.from.bytes(1000, 31));
            let mut landed = two.into.bytes(1, 17);
            landed.extend(two.into.bytes(101, 300));
            check_eq!(landed[FRONT..141], expected[..]);
            check!(landed[141..].iter().all(|&byte| byte == 0), "bytes behind the message were written");
            // A lossy network may have brought it twice.
            check!(
                f.setup.lossy || two.into.bytes(PAGE, PAGE).iter().all(|&byte| byte == 0),
                "a datagram was written into a second Receive"
            );
            check_eq!(done.flags, DtoUdFlags::IB_GRH_PRESENT);
            check_eq!(DtoUdFlags::IB_GRH_PRESENT.bits(), 1);
            // IP version 6, and both GIDs.
            check_eq!(landed[0] >> 4, 6);
            let gid = |ia: &Ia| match spigot(ia)?.net_addr.first() {
                Some(NetAddr::IbGid(gid)) => Ok(*gid),
                other => Err(Failure::new(alloc::format!("not a GID: {other:?}"))),
            };
            check_eq!((&landed[8..24], &landed[24..40]), (&gid(&f.a)?[..], &gid(&f.b)?[..]));
            two.b.silent(f)?;
            two.a.works(true)?;
            two.b.works(true)
        },
    ),
    // Messages of length zero up to the spigot's maximum arrive in Receives of exactly that room,
    // and datagrams arrive in the order of posting.
    test(
        "ud::every_length",
        &["it_post_sendto B03 B11", "it_post_recvfrom B17 L01", "it_ia_info_t F11"],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let longest = spigot(&f.a)?.max_ud_send_len;
            check!((256..=PAGE).contains(&longest), "{longest} bytes");
            let attributes = EpAttributes { max_dto_payload_size: longest, ..datagrams() };
            let two = two_of(f, &attributes, &attributes)?;
            for (cookie, length) in [0, 1, 39, 255, longest - 1, longest].into_iter().enumerate() {
                let cookie = cookie as u64;
                // The Receive has exactly as much room as the message needs.
                let room = two.into.segment(5, FRONT + length);
                two.b.ia.post_recvfrom(two.b.ep, &[room], cookie, RECV)?;
                let segment = [two.from.segment(0, length)];
                let segments = if length == 0 { &[][..] } else { &segment[..] };
                let done = two.a.delivers(f, &two.b, (cookie, cookie), DtoStatus::Success, || {
                    two.a.ia.post_sendto(two.a.ep, segments, cookie, SIGNALLED, &two.to_b)
                })?;
                check_eq!(done.transferred_length as usize, FRONT + length);
                check_eq!(two.into.bytes(5 + FRONT, length), pattern(3, PAGE)[..length]);
            }
            // Datagrams arrive in the order in which they were posted.
            for cookie in 0..16 {
                let room = two.into.segment(cookie as usize * 100, 64);
                two.b.ia.post_recvfrom(two.b.ep, &[room], cookie, RECV)?;
            }
            for cookie in 0..16 {
                let segment = two.from.segment(cookie as usize, 1);
                two.a.ia.post_sendto(two.a.ep, &[segment], cookie, SIGNALLED, &two.to_b)?;
            }
            for cookie in 0..16 {
                two.a.sent(cookie, DtoStatus::Success)?;
            }
            for cookie in 0..16 {
                let done = two.b.arrival(f, || {
                    two.a.ia.post_sendto(two.a.ep, &[], 16, SIGNALLED, &two.to_b)?;
                    two.a.sent(16, DtoStatus::Success)
                })?;
                check_eq!((done.cookie, done.dto_status), (cookie, DtoStatus::Success));
            }
            Ok(())
        },
    ),
    // A region that was linked without local read cannot be the source of a datagram; linked with
    // it, it can.
    test("ud::a_source_without_local_read", &["it_post_sendto A01"], |f| {
        let (pair, b) = (f.pair()?, peer(&f.b, &datagrams())?);
        let (buffer, lmr) = (f.buffer(PAGE)?, f.a.lmr_create_unlinked(pair.a.pz, 1, LmrFlags::NONE, 0)?);
        let (pages, addr) = ([IoAddr(buffer.bus())], buffer.addr());
        let to = DgRemoteEpAddr::IbUd { addr: address(&f.a, pair.a.pz, &f.b)?, ep_info: b.info };
        for privs in [MemPriv::LOCAL_READ, MemPriv::LOCAL_WRITE] {
            let list = Iobl::pages(&pages, PAGE as u64, 0);
            let mode = AddrMode::Absolute;
            f.a.lmr_link(lmr, addr, &list, PAGE as u64, mode, privs, pair.a.ep, 70, SIGNALLED)?;
            pair.a.done(70, DtoStatus::Success)?;
            let a = peer_in(&f.a, pair.a.pz, &datagrams())?;
            f.a.post_sendto(a.ep, &[LmrTriplet::new(lmr, addr as u64, 8)], 1, SIGNALLED, &to)?;
            let reads = privs == MemPriv::LOCAL_READ;
            a.sent(1, if reads { DtoStatus::Success } else { DtoStatus::LocalProtection })?;
            a.works(reads)?;
            f.a.lmr_unlink(lmr, pair.a.ep, 71, SIGNALLED)?;
            pair.a.done(71, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // Each of the flag values is accepted or refused by the page's tables.
    test(
        "ud::every_flag_of_sendto",
        &["it_post_sendto IT_ERR_INVALID_DTO_FLAGS", "it_dto_flags_t B06 B14"],
        |f| {
            let two = two(f)?;
            let forbidden = DtoFlags::BARRIER_FENCE | DtoFlags::UNLINK_FENCE | DtoFlags::UNLINK_LOCAL_SINK;
            for bits in 0..=0x7f {
                let flags = DtoFlags::from_bits_retain(bits);
                let posted = two.a.ia.post_sendto(two.a.ep, &[], u64::from(bits), flags, &two.to_b);
                if !legal(flags, forbidden, DtoFlags::empty()) {
                    refused(posted, Error::InvalidDtoFlags)?;
                    continue;
                }
                posted?;
                if flags.contains(DtoFlags::COMPLETION) {
                    // The threshold is one, so the completion can be taken whether or not it
                    // notifies.
                    two.a.sent(u64::from(bits), DtoStatus::Success)?;
                }
            }
            for bits in [0x80, 0x81, 0x8000_0001] {
                let flags = DtoFlags::from_bits_retain(bits);
                let posted = two.a.ia.post_sendto(two.a.ep, &[], 1, flags, &two.to_b);
                refused(posted, Error::InvalidDtoFlags)?;
            }
            two.a.works(true)
        },
    ),
    // Each of the flag values is accepted or refused by the page's tables.
    test(
        "ud::every_flag_of_recvfrom",
        &["it_post_recvfrom B09 IT_ERR_INVALID_DTO_FLAGS", "it_dto_flags_t B06 B16"],
        |f| {
            let two = two(f)?;
            let forbidden = DtoFlags::BARRIER_FENCE
                | DtoFlags::UNLINK_FENCE
                | DtoFlags::SOLICITED_WAIT
                | DtoFlags::UNLINK_LOCAL_SINK;
            for bits in 0..=0x7f {
                let flags = DtoFlags::from_bits_retain(bits);
                let cookie = u64::from(bits);
                let posted = two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 64)], cookie, flags);
                if legal(flags, forbidden, DtoFlags::COMPLETION) {
                    posted?;
                    two.a.delivers(f, &two.b, (cookie, cookie), DtoStatus::Success, || {
                        two.a.ia.post_sendto(two.a.ep, &[], cookie, SIGNALLED, &two.to_b)
                    })?;
                } else {
                    refused(posted, Error::InvalidDtoFlags)?;
                }
            }
            let undefined = DtoFlags::from_bits_retain(0x81);
            let posted = two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 64)], 1, undefined);
            refused(posted, Error::InvalidDtoFlags)
        },
    ),
    // Each bad argument is refused with its own error and uses no entry of a queue.
    test(
        "ud::posts_that_are_refused",
        &[
            "A.it_post_sendto V02",
            "it_post_sendto IT_ERR_INVALID_AH IT_ERR_INVALID_EP IT_ERR_INVALID_EP_TYPE",
            "it_post_sendto IT_ERR_INVALID_NUM_SEGMENTS IT_ERR_TOO_MANY_POSTS",
            "it_post_recvfrom B01 L02 V01 IT_ERR_INVALID_EP IT_ERR_INVALID_EP_TYPE",
            "it_post_recvfrom IT_ERR_INVALID_NUM_SEGMENTS IT_ERR_TOO_MANY_POSTS",
            "it_address_handle_create B03",
            "it_pz_create A04",
            "it_status_t F23",
        ],
        |f| {
            let narrow = EpAttributes { max_request_dtos: 4, max_recv_dtos: 4, ..datagrams() };
            let two = two_of(f, &narrow, &narrow)?;
            let (ia, ep) = (&two.a.ia, two.a.ep);
            let gone = peer(ia, &narrow)?.ep;
            ia.ep_free(gone)?;
            let foreign = peer(&f.another(None)?, &EpAttributes { priv_ops_enable: false, ..narrow })?.ep;
            let segment = two.from.segment(0, 64);
            for ep in [EpHandle::NULL, gone, foreign, EpHandle::from_raw(two.a.pz.as_raw())] {
                refused(ia.post_sendto(ep, &[segment], 1, SIGNALLED, &two.to_b), Error::InvalidEp)?;
                refused(ia.post_recvfrom(ep, &[segment], 1, RECV), Error::InvalidEp)?;
            }
            let rc = f.end(ia, &attributes())?;
            refused(ia.post_sendto(rc.ep, &[segment], 1, SIGNALLED, &two.to_b), Error::InvalidEpType)?;
            refused(ia.post_recvfrom(rc.ep, &[segment], 1, RECV), Error::InvalidEpType)?;
            let attr = ia.ep_query(ep, EpParamMask::ALL)?.attr;
            let many = alloc::vec![segment; attr.max_send_segments.max(attr.max_recv_segments) + 1];
            let sent = ia.post_sendto(ep, &many[..=attr.max_send_segments], 1, SIGNALLED, &two.to_b);
            refused(sent, Error::InvalidNumSegments)?;
            let posted = ia.post_recvfrom(ep, &many[..=attr.max_recv_segments], 1, RECV);
            refused(posted, Error::InvalidNumSegments)?;
            refused(ia.post_recvfrom(ep, &[], 1, RECV), Error::InvalidNumSegments)?;
            // Address handles: null, freed, of another IA, of another type, of another zone.
            let freed = address(ia, two.a.pz, &f.b)?;
            ia.address_handle_free(freed)?;
            let elsewhere = address(ia, ia.pz_create()?, &f.b)?;
            let others = address(&f.b, two.b.pz, &f.a)?;
            for addr in [AddrHandle::NULL, freed, elsewhere, others, AddrHandle::from_raw(ep.as_raw())] {
                let to = DgRemoteEpAddr::IbUd { addr, ep_info: two.b.info };
                refused(ia.post_sendto(ep, &[segment], 1, SIGNALLED, &to), Error::InvalidAh)?;
            }
            check_eq!(Error::InvalidAh as u32, 22);
            // No refused post used an entry of a queue. An entry is used until its completion is
            // known.
            for cookie in 0..4 {
                ia.post_recvfrom(ep, &[segment], cookie, RECV)?;
                ia.post_sendto(ep, &[segment], cookie, SIGNALLED, &two.to_b)?;
            }
            refused(ia.post_recvfrom(ep, &[segment], 4, RECV), Error::TooManyPosts)?;
            refused(ia.post_sendto(ep, &[segment], 4, SIGNALLED, &two.to_b), Error::TooManyPosts)?;
            for cookie in 0..4 {
                two.a.sent(cookie, DtoStatus::Success)?;
            }
            ia.post_sendto(ep, &[segment], 4, SIGNALLED, &two.to_b)?;
            two.a.sent(4, DtoStatus::Success)?;
            two.a.works(true)
        },
    ),
    // Memory that the endpoint may not use fails the request and the endpoint.
    test(
        "ud::memory_that_may_not_be_used",
        &["it_ep_ud_create B03", "it_post_sendto A06", "it_post_recvfrom A05 B04", "it_dto_status_t B05"],
        |f| {
            let readable = MemPriv::LOCAL_READ;
            for way in 0..4 {
                let plain = EpAttributes { priv_ops_enable: false, ..datagrams() };
                let two = two_of(f, &plain, &plain)?;
                let ia = &two.a.ia;
                let zone = f.region(ia, ia.pz_create()?, 64, OPEN)?;
                let segment = match way {
                    // The region was never linked.
                    0 => {
                        let lmr = ia.lmr_create_unlinked(two.a.pz, 1, LmrFlags::NONE, 0)?;
                        LmrTriplet::new(lmr, two.from.buffer.addr() as u64, 8)
                    }
                    1 => zone.whole(),
                    2 => LmrTriplet::direct(crate::memory::iobl::map(ia, &two.from.buffer)?, 8),
                    _ => two.from.segment(PAGE - 4, 8),
                };
                ia.post_sendto(two.a.ep, &[segment], 1, SIGNALLED, &two.to_b)?;
                two.a.sent(1, DtoStatus::LocalProtection)?;
                two.a.works(false)?;
                // The same memory as the sink of a datagram.
                let ia = &two.b.ia;
                let sink = f.region(ia, two.b.pz, 64, readable)?;
                let zone = f.region(ia, ia.pz_create()?, 64, OPEN)?;
                let segment = match way {
                    0 => sink.whole(),
                    1 => zone.whole(),
                    2 => LmrTriplet::direct(crate::memory::iobl::map(ia, &two.into.buffer)?, 64),
                    _ => two.into.segment(2 * PAGE - 60, 64),
                };
                ia.post_recvfrom(two.b.ep, &[segment], 2, RECV)?;
                let sender = peer(&f.a, &datagrams())?;
                let addr = address(&f.a, sender.pz, &f.b)?;
                let to = DgRemoteEpAddr::IbUd { addr, ep_info: two.b.info };
                sender.delivers(f, &two.b, (3, 2), DtoStatus::LocalProtection, || {
                    f.a.post_sendto(sender.ep, &[], 3, SIGNALLED, &to)
                })?;
                two.b.works(false)?;
                sink.untouched()?;
                zone.untouched()?;
                two.into.untouched()?;
                sender.works(true)?;
                for peer in [&two.a, &two.b, &sender] {
                    peer.ia.ep_free(peer.ep)?;
                }
            }
            Ok(())
        },
    ),
    // Segments of a Receive may overlap, and no other byte is changed.
    test("ud::receives_that_overlap", &["it_post_recvfrom B07"], |f| {
        let two = two(f)?;
        // The bytes where the segments overlap are undefined. All others are as they were.
        let places = [two.into.segment(0, 60), two.into.segment(30, 60), two.into.segment(50, 60)];
        two.b.ia.post_recvfrom(two.b.ep, &places, 1, RECV)?;
        let done = two.a.delivers(f, &two.b, (2, 1), DtoStatus::Success, || {
            two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, 140)], 2, SIGNALLED, &two.to_b)
        })?;
        check_eq!(done.transferred_length, 180);
        check!(two.into.bytes(110, PAGE).iter().all(|&byte| byte == 0), "bytes outside were written");
        two.b.works(true)
    }),
    // A privileged endpoint can send from and receive into bus addresses.
    test("ud::the_direct_lmr_handle", &["it_post_recvfrom B05"], |f| {
        let two = two(f)?;
        let from = crate::memory::iobl::map(&f.a, &two.from.buffer)?;
        let into = crate::memory::iobl::map(&f.b, &two.into.buffer)?;
        two.b.ia.post_recvfrom(two.b.ep, &[LmrTriplet::direct(into, 140)], 1, RECV)?;
        let done = two.a.delivers(f, &two.b, (2, 1), DtoStatus::Success, || {
            two.a.ia.post_sendto(two.a.ep, &[LmrTriplet::direct(from, 100)], 2, SIGNALLED, &two.to_b)
        })?;
        check_eq!(done.transferred_length, 140);
        check_eq!(two.into.bytes(FRONT, 100), two.from.bytes(0, 100));
        Ok(())
    }),
    // A message longer than its sender's limit fails there. One that its receiver has no room for
    // is lost: the endpoint and its Receives stay as they are, since strangers can send.
    test(
        "ud::lengths_that_are_wrong",
        &[
            "it_dto_status_t B05 F03",
            "it_ep_state_t A07 A08",
            "it_post_sendto A02 V01",
            "it_post_recvfrom A01",
        ],
        |f| {
            // A message longer than the endpoint's payload is an error of the sender.
            let two_a = two(f)?;
            let (ia, ep) = (&two_a.a.ia, two_a.a.ep);
            ia.post_sendto(ep, &[two_a.from.segment(0, 512)], 1, SIGNALLED, &two_a.to_b)?;
            two_a.a.sent(1, DtoStatus::Success)?;
            ia.post_recvfrom(ep, &[two_a.from.segment(0, 64)], 9, RECV)?;
            ia.post_sendto(ep, &[two_a.from.segment(0, 513)], 2, SIGNALLED, &two_a.to_b)?;
            two_a.a.sent(2, DtoStatus::LocalLength)?;
            two_a.a.works(false)?;
            // Outstanding requests are flushed, and so are later ones.
            two_a.a.received(9, DtoStatus::Flushed)?;
            ia.post_sendto(ep, &[two_a.from.segment(0, 8)], 3, SIGNALLED, &two_a.to_b)?;
            two_a.a.sent(3, DtoStatus::Flushed)?;
            ia.post_recvfrom(ep, &[two_a.from.segment(0, 64)], 4, RECV)?;
            two_a.a.received(4, DtoStatus::Flushed)?;
            two_a.b.works(true)?;
            // A Receive that is one byte too small; one for a longer message than the receiving
            // endpoint's payload; and one without room for the header, which no datagram fits.
            let short = EpAttributes { max_dto_payload_size: 64, ..datagrams() };
            for (attributes, room, long, fits) in [
                (datagrams(), FRONT + 99, 100, Some(99)),
                (short, 500, 65, Some(64)),
                (datagrams(), FRONT - 1, 0, None),
                (datagrams(), 0, 0, None),
            ] {
                let two = two_of(f, &datagrams(), &attributes)?;
                let send = |length| {
                    let said = [two.from.segment(0, length)];
                    two.a.ia.post_sendto(two.a.ep, &said, 7, SIGNALLED, &two.to_b)
                };
                two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, room)], 5, RECV)?;
                send(long)?;
                two.a.sent(7, DtoStatus::Success)?;
                match fits {
                    Some(length) => {
                        let done = two.a.delivers(f, &two.b, (7, 5), DtoStatus::Success, || send(length))?;
                        check_eq!(done.transferred_length as usize, FRONT + length);
                    }
                    None => {
                        two.b.silent(f)?;
                        two.into.untouched()?;
                    }
                }
                two.b.works(true)?;
                two.a.works(true)?;
            }
            Ok(())
        },
    ),
    // A datagram that no endpoint takes is lost without an error for the sender.
    test(
        "ud::datagrams_without_a_receiver_are_lost",
        &["it_post_sendto B02 B13", "it_dto_status_t F05", "it_cm_msg_events F51"],
        |f| {
            let two = two(f)?;
            let segment = [two.from.segment(0, 8)];
            // There is no Receive; the endpoint does not exist, is an RC endpoint, has another key,
            // or was freed.
            let rc = f.end(&f.b, &attributes())?;
            let other = peer_in(&f.b, two.b.pz, &datagrams())?;
            let to_other = with_info(&two.to_b, |info| info.ud_ep_id = other.info.ud_ep_id);
            let gone = peer(&f.b, &datagrams())?;
            f.b.ep_free(gone.ep)?;
            let rc_id = f.b.ep_qpn(rc.ep)?;
            let ways = [
                two.to_b,
                with_info(&two.to_b, |info| info.ud_ep_id = 0xff_fff0),
                with_info(&two.to_b, |info| info.ud_ep_id = 0),
                with_info(&two.to_b, |info| info.ud_ep_id = rc_id),
                with_info(&two.to_b, |info| info.ud_ep_key += 1),
                with_info(&two.to_b, |info| info.ud_ep_id = gone.info.ud_ep_id),
            ];
            for (cookie, to) in ways.iter().enumerate() {
                two.a.ia.post_sendto(two.a.ep, &segment, cookie as u64, SIGNALLED, to)?;
                two.a.sent(cookie as u64, DtoStatus::Success)?;
                if cookie == 0 {
                    // What is behind it has arrived, so it has been dropped. The first of these two
                    // may have passed it, when it waited for the MAC of the peer.
                    for cookie in [60, 61] {
                        f.b.post_recvfrom(other.ep, &[two.into.segment(64, 64)], 1, RECV)?;
                        two.a.delivers(f, &other, (cookie, 1), DtoStatus::Success, || {
                            two.a.ia.post_sendto(two.a.ep, &segment, cookie, SIGNALLED, &to_other)
                        })?;
                    }
                    two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 64)], 77, RECV)?;
                }
            }
            two.b.silent(f)?;
            two.b.works(true)?;
            // The endpoint still works.
            two.a.delivers(f, &two.b, (50, 77), DtoStatus::Success, || {
                two.a.ia.post_sendto(two.a.ep, &segment, 50, SIGNALLED, &two.to_b)
            })?;
            // An ID that no queue pair can have is a local error.
            let nonsense = with_info(&two.to_b, |info| info.ud_ep_id = 1 << 24);
            two.a.ia.post_sendto(two.a.ep, &segment, 51, SIGNALLED, &nonsense)?;
            two.a.sent(51, DtoStatus::LocalEp)?;
            two.a.works(false)
        },
    ),
    // The completion of a Receive and the header in front of the message are enough to answer.
    test(
        "ud::an_answer_to_the_sender",
        &["it_address_handle_create B05 F01", "it_dto_events B07 F20"],
        |f| {
            let two = two(f)?;
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 200)], 1, RECV)?;
            two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, 8)], 1, SIGNALLED, &two.to_b)?;
            let asked = two.b.arrival(f, || {
                two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, 8)], 0, DtoFlags::empty(), &two.to_b)?;
                Ok(())
            })?;
            check_eq!((asked.cookie, asked.dto_status), (1, DtoStatus::Success));
            let front = two.into.bytes(0, FRONT);
            let way = some(asked.src_path(&front), "a path back to the sender")?;
            check_eq!(Some(way), Path::of_sender(&front));
            check!(asked.src_path(&front[1..]).is_none());
            let sent = completion(&two.a.ia, two.a.request)?;
            check!(sent.src_path(&front).is_none(), "a Send's completion has no source");
            // The path that the sender used.
            let there = some(spigot(&two.b.ia)?.net_addr.first().copied(), "a network address")?;
            let (by, of) = (path(&two.a.ia, &there)?, some(way.ib().copied(), "an InfiniBand path")?);
            let by = some(by.ib().copied(), "an InfiniBand path")?;
            check_eq!((of.sl, of.remote_port_lid), (by.sl, by.local_port_lid));
            check_eq!(of.remote_port_gid, by.local_port_gid);
            let addr = two.b.ia.address_handle_create(two.b.pz, &way, AhFlags::empty())?;
            two.a.ia.post_recvfrom(two.a.ep, &[two.from.segment(100, 200)], 2, RECV)?;
            let ep_info = RemoteEpInfo { ud_ep_id: asked.ud_ep_id, ud_ep_key: KEY };
            let to = DgRemoteEpAddr::IbUd { addr, ep_info };
            let answered = two.b.delivers(f, &two.a, (3, 2), DtoStatus::Success, || {
                two.b.ia.post_sendto(two.b.ep, &[two.into.segment(FRONT, 8)], 3, SIGNALLED, &to)
            })?;
            check_eq!(answered.ud_ep_id, two.b.info.ud_ep_id);
            check_eq!(two.from.bytes(100 + FRONT, 8), two.from.bytes(0, 8));
            // The path back is complete and can be used as such.
            let full = two.b.ia.address_handle_query(addr, AddrParamMask::PATH)?.path;
            two.b.ia.address_handle_create(two.b.pz, &full, AhFlags::PATH_COMPLETE)?;
            Ok(())
        },
    ),
];
