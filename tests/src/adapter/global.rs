//! Rules for all calls (chapter 4): a successful call has taken effect, posting and dequeuing do
//! not block, an error is returned or reported by an event, and the I/O address of a byte agrees
//! with its virtual address.

use alloc::vec::Vec;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::fixture::{End, OPEN, PAGE, Pair, SIGNALLED, attributes, evd_param, pattern, sevd};
use crate::requests::errors::impatient;
use crate::transport::Need;
use crate::{Failure, Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // A synchronous call has taken effect when it returns: queries show it, and freed resources can
    // be used again at once.
    test("global::a_successful_call_has_taken_effect", &["4.1 B02"], |f| {
        for round in 1..=10_usize {
            let end = f.end(&f.a, &attributes())?;
            check_eq!(end.state()?, EpStateRc::Unconnected);
            let sized = EpAttributes { max_dto_payload_size: 1000 + round, ..attributes() };
            f.a.ep_modify(end.ep, EpParamMask::MAX_PAYLOAD, &sized)?;
            let param = f.a.ep_query(end.ep, EpParamMask::ALL)?;
            check_eq!((param.attr.max_dto_payload_size, param.pz), (1000 + round, end.pz));
            let param = EvdParam { sevd_queue_size: 100 + round, ..EvdParam::default() };
            f.a.evd_modify(end.conn, EvdParamMask::QUEUE_SIZE, &param)?;
            check_eq!(evd_param(&f.a, end.conn)?.sevd_queue_size, 100 + round);
            let region = f.region(&f.a, end.pz, 64 * round, OPEN)?;
            check_eq!(f.a.lmr_query(region.lmr, LmrParamMask::LENGTH)?.length, 64 * round as u64);
            check_eq!(f.a.object_counts().lmr, 1);
            f.a.lmr_free(region.lmr)?;
            refused(f.a.lmr_query(region.lmr, LmrParamMask::ALL), Error::InvalidLmr)?;
            f.a.ep_free(end.ep)?;
            refused(f.a.ep_query(end.ep, EpParamMask::ALL), Error::InvalidEp)?;
            // The endpoint's EVDs can be freed at once.
            for evd in [end.request, end.recv, end.conn] {
                f.a.evd_free(evd)?;
            }
            f.a.pz_free(end.pz)?;
            check!(f.a.object_counts().is_empty());
        }
        Ok(())
    }),
    // Posts and it_evd_dequeue return even if no request can complete.
    test("global::posting_and_dequeuing_do_not_block", &["4.1 B03"], |f| {
        Need::Waiting.of(&f.a)?;
        // The peer has posted no Receive, and the Sends are retried without end, so no Send
        // completes before the peer posts one.
        let patient = ConnAttributes { rnr_retry_count: 7, ..ConnAttributes::default() };
        let Pair { a: active, b: passive } = impatient(f, patient)?;
        let mut posted = 0;
        let full = loop {
            match f.a.post_send(active.ep, &[], posted, SIGNALLED) {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
            refused(f.a.evd_dequeue(active.request), Error::QueueEmpty)?;
        };
        check_eq!((full, posted), (Error::TooManyPosts, attributes().max_request_dtos as u64));
        refused(f.a.evd_dequeue(active.request), Error::QueueEmpty)?;
        refused(f.b.evd_dequeue(passive.recv), Error::QueueEmpty)?;
        for cookie in 0..posted {
            f.b.post_recv(passive.ep, &[], cookie, DtoFlags::COMPLETION)?;
        }
        for cookie in 0..posted {
            active.done(cookie, DtoStatus::Success)?;
            passive.recv_done(cookie, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // Each error is reported once: by the call that detects it, or by the event of the request that
    // failed.
    test("global::faults_come_as_errors_of_calls_or_as_events", &["4.7 B01"], |f| {
        let hasty = ConnAttributes { retry_count: 1, local_ack_timeout: 12, ..ConnAttributes::default() };
        for (fault, status) in [
            (Some(Injection::DropRequests), DtoStatus::Transport),
            (Some(Injection::DropResponses), DtoStatus::Transport),
            (Some(Injection::BadResponse), DtoStatus::BadResponse),
            // The segment ends outside of its region.
            (None, DtoStatus::LocalProtection),
        ] {
            let Pair { a: active, b: passive } = impatient(f, hasty)?;
            let own = f.region(&f.a, active.pz, 64, OPEN)?;
            f.b.post_recv(passive.ep, &[], 1, DtoFlags::COMPLETION)?;
            if let Some(what) = fault {
                f.inject_into(&active, what, 1000, 0)?;
            }
            let segment = if fault.is_some() { own.segment(0, 0) } else { own.segment(60, 8) };
            // The call itself succeeds and causes no event.
            f.a.post_send(active.ep, &[segment], 2, SIGNALLED)?;
            // The request's completion reports the error, and one connection event reports the
            // broken connection.
            active.done(2, status)?;
            active.broken()?;
            active.idle()?;
            refused(f.a.evd_dequeue(active.conn), Error::QueueEmpty)?;
            // An error that the call can detect is returned by the call and causes no event.
            refused(f.a.post_send(EpHandle::NULL, &[], 3, SIGNALLED), Error::InvalidEp)?;
            active.idle()?;
        }
        Ok(())
    }),
    // Atomics need 8-byte alignment in every address space, so the addresses of a byte must agree
    // in their low three bits.
    test("global::addresses_of_one_byte_agree", &["4.11 B01 L01"], |f| {
        // The I/O address and the virtual address of a byte agree in their low three bits.
        let buffer = f.buffer(2 * PAGE)?;
        for offset in [0, 1, 7, 8, 100, PAGE - 1, PAGE + 3] {
            let addr = buffer.addr() + offset;
            let (io_addr, len) = f.a.mem_map(addr, ASPACE_KERNEL, 8)?;
            check_eq!(io_addr.0 % 8, addr as u64 % 8, "at {offset}");
            f.a.mem_unmap(io_addr, len)?;
        }
        // The consumer chooses the addresses of a linked region freely, but they must agree with
        // the memory in their low bits as well.
        let pair = f.pair()?;
        let lmr = f.b.lmr_create_unlinked(pair.b.pz, 2, LmrFlags::NONE, 0)?;
        let pages = [IoAddr(buffer.bus()), IoAddr(buffer.bus() + PAGE as u64)];
        let nowhere = 0x7fed_cba9_8000_usize;
        let (mode, length) = (AddrMode::Absolute, PAGE as u64);
        let link = |addr: usize, fbo: u64, cookie| {
            let iobl = Iobl::pages(&pages, PAGE as u64, fbo);
            f.b.lmr_link(lmr, addr, &iobl, length, mode, OPEN, pair.b.ep, cookie, SIGNALLED)
        };
        let context = link(nowhere + 24, 24, 1)?;
        pair.b.done(1, DtoStatus::Success)?;
        check_eq!(f.b.lmr_query(lmr, LmrParamMask::ADDR)?.addr, nowhere + 24);
        let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        source.write(0, &pattern(3, 64));
        let context = crate::check::some(context, "a context")?;
        let to = make_rdma_addr_absolute(nowhere + 24);
        f.a.post_rdma_write(pair.a.ep, &[source.whole()], 2, SIGNALLED, to, context)?;
        pair.a.done(2, DtoStatus::Success)?;
        check!(f.arrives(|| crate::fixture::read(&buffer, 24, 64) == pattern(3, 64)));
        f.b.lmr_unlink(lmr, pair.b.ep, 3, SIGNALLED)?;
        pair.b.done(3, DtoStatus::Success)?;
        // This address is one byte off.
        link(nowhere + 25, 24, 4)?;
        pair.b.done(4, DtoStatus::LocalMmOperation)?;
        check!(!f.b.lmr_query(lmr, LmrParamMask::LINKED)?.linked);
        pair.b.broken()
    }),
    // If the free emptied the shared EVDs, events of the other endpoint would be missing.
    test("global::freeing_one_endpoint_loses_no_event_of_another", &["E B02"], |f| {
        // Two endpoints share all three EVDs.
        let (pz, each) = (f.a.pz_create()?, 10_u64);
        let dto = || sevd(&f.a, EventType::DTO_EVENT_STREAM, 128, 1);
        let (request, recv, conn) = (dto()?, dto()?, sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 16, 1)?);
        let connected = || {
            let ep = f.a.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), &attributes())?;
            let own = End { ia: f.a.clone(), pz, request, recv, conn, ep };
            let peer = f.end(&f.b, &attributes())?;
            f.connect(&own, &peer)?;
            Ok::<_, Failure>((own, peer))
        };
        let (kept, freed) = (connected()?, connected()?);
        for n in 0..each {
            for (own, peer) in [&kept, &freed] {
                peer.ia.post_recv(peer.ep, &[], n, DtoFlags::COMPLETION)?;
                own.ia.post_recv(own.ep, &[], n, DtoFlags::COMPLETION)?;
                own.ia.post_send(own.ep, &[], n, SIGNALLED)?;
                peer.ia.post_send(peer.ep, &[], n, SIGNALLED)?;
                // All events are queued before the free.
                peer.recv_done(n, DtoStatus::Success)?;
                peer.done(n, DtoStatus::Success)?;
            }
        }
        let (peer_of_freed, peer) = (&freed.1, &kept.1);
        peer_of_freed.ia.ep_disconnect(peer_of_freed.ep, &[])?;
        peer.ia.ep_disconnect(peer.ep, &[])?;
        peer.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        // Both connections end before one endpoint is freed. Their events may come in either order.
        let mut over = Vec::from([f.a.evd_wait(conn, crate::fixture::WAIT)?.0]);
        f.a.ep_free(freed.0.ep)?;
        while let Ok(event) = f.a.evd_dequeue(conn) {
            over.push(event);
        }
        if !over.iter().any(|event| matches!(event, Event::ConnDisconnect { ep, .. } if *ep == kept.0.ep)) {
            let (event, _) = f.a.evd_wait(conn, crate::fixture::WAIT)?;
            check!(matches!(event, Event::ConnDisconnect { ep, .. } if ep == kept.0.ep), "{event:?}");
        }
        for evd in [request, recv] {
            let mut next = 0;
            while next < each {
                let done = crate::fixture::completion(&f.a, evd)?;
                check_eq!((done.ep, done.cookie, done.dto_status), (kept.0.ep, next, DtoStatus::Success));
                next += 1;
            }
            refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
        }
        Ok(())
    }),
    // A provider without interfaces lists none and counts none.
    test("global::a_machine_without_adapters", &["it_interface_list B04 V02"], |f| {
        let nothing = Provider::new(f.platform().clone());
        for wanted in [0, 1, usize::MAX] {
            check_eq!(nothing.interface_list(wanted), (Vec::new(), 0));
        }
        let created = nothing.ia_create(&f.setup.a.name, 2, 1, Some(f.setup.privileged));
        refused(created.map(drop), Error::InvalidName)
    }),
    // Creating IAs fails with IT_ERR_RESOURCES at some point, and works again after one is freed.
    test("global::adapters_run_out_and_come_back", &["it_ia_create IT_ERR_RESOURCES"], |f| {
        let create = || f.setup.provider.ia_create(&f.setup.a.name, 2, 1, None);
        let mut adapters = Vec::new();
        let refusal = loop {
            match create() {
                Ok(ia) => adapters.push(ia),
                Err(error) => break error,
            }
            check!(adapters.len() < 5000, "no limit was reached");
        };
        check_eq!(refusal, Error::Resources);
        check!(adapters.len() > 2);
        // All of them work, and their handles differ.
        let mut handles: Vec<u64> = adapters.iter().map(|ia| ia.handle().as_raw()).collect();
        handles.sort_unstable();
        handles.dedup();
        check_eq!(handles.len(), adapters.len());
        for ia in &adapters {
            check_eq!(ia.ia_query()?.ia_name, f.setup.a.name);
        }
        crate::check::some(adapters.pop(), "an adapter")?.ia_free()?;
        create()?.ia_free()?;
        for ia in adapters {
            ia.ia_free()?;
        }
        Ok(())
    }),
];
