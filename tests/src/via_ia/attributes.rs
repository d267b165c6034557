//! What an IA over VIA reports about itself, and the calls for what it lacks (page it_ia_info_t).

use alloc::vec::Vec;

use privileged_api::*;

use super::{open, open_pair};
use crate::check::some;
use crate::fixture::{End, OPEN, PAGE, Pair, SIGNALLED, WAIT, evd_param, path, sevd, spigot};
use crate::memory::iobl::scattered;
use crate::{Failure, Test, check, check_eq, refused, test};

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // The interface and its IAs say that the transport is VIA over IP, since RoCEv2 is. The vendor
    // is what VipQueryNic returns for the interface.
    test(
        "via_ia_attributes::transport_and_vendor",
        &["A.it_ia_info_t V02", "it_ia_info_t F20-F22 F31"],
        |f| {
            let provider = Provider::new(f.platform().clone());
            let agent = &f.setup.a.agent;
            provider.add("pairs", agent.clone())?;
            provider.add_via("interfaces", agent.clone(), Limits::NONE)?;
            refused(provider.add_via("pairs", agent.clone(), Limits::NONE), Error::InvalidName)?;
            let (list, total) = provider.interface_list(8);
            let types: Vec<_> = list.iter().map(|one| (one.name.as_str(), one.transport_type)).collect();
            check_eq!(total, 2);
            check_eq!(types, [("pairs", TransportType::Ib), ("interfaces", TransportType::ViaIp)]);
            let ia = provider.ia_create("interfaces", 2, 1, None)?;
            let info = ia.ia_query()?;
            check_eq!((info.transport_type, info.transport_type as u32), (TransportType::ViaIp, 2));
            check_eq!(ia.transport_type(), TransportType::ViaIp);
            let nic = vipl::Provider::new(provider.interfaces()).open_nic("interfaces")?;
            let described = nic.query_nic()?;
            nic.close_nic()?;
            let Vendor::Via(vendor) = info.vendor else {
                return Err(Failure::new(alloc::format!("not VIA's: {:?}", info.vendor)));
            };
            let name = vendor.name.split(|byte| *byte == 0).next();
            check_eq!(name, Some(described.name.as_bytes()));
            check!(vendor.name[described.name.len()..].iter().all(|byte| *byte == 0));
            check_eq!(vendor.name.len(), 64);
            check_eq!(
                (vendor.hardware, vendor.provider),
                (described.hardware_version, described.provider_version)
            );
            check!(vendor.hardware != 0 && vendor.provider != 0);
            ia.ia_free()?;
            // Limits that leave no virtual interfaces leave nothing; DAT opens none over VIA.
            let features = Features::all().difference(Features::VI);
            provider.add_via("nothing", agent.clone(), Limits { features, ..Limits::NONE })?;
            let opened = provider.ia_create("nothing", 2, 1, None).map(drop);
            refused(opened, Error::InvalidName)?;
            let dat = ::dat::ia_open(&provider, "interfaces", f.setup.privileged, 8, ::dat::EvdHandle::NULL);
            check!(dat.is_err_and(|error| error.kind() == ::dat::ErrorType::ProviderNotFound));
            Ok(())
        },
    ),
    // What VIA lacks is reported as missing, and each call for it fails and makes nothing.
    test(
        "via_ia_attributes::what_is_missing",
        &["it_lmr_link V06", "it_dto_status_t V03", "it_post_atomic V03", "it_post_rdma_read_to_rmr V01"],
        |f| {
            let f = f.over_via()?;
            let info = f.a.ia_query()?;
            check_eq!(info.supported_service_types, ServiceTypes::RC);
            check_eq!(info.rmr_types_supported, RmrTypes::empty());
            let missing = [
                info.srq_support,
                info.srq_resizable,
                info.atomic_support,
                info.lmr_link_support,
                info.direct_lmr_handle_support,
                info.post_send_unlink_remote_support,
                info.narrow_rmr_unlink_support,
                info.wide_rmr_unlink_support,
                info.unlink_fence_support,
                info.rdma_read_local_extensions,
                info.three_way_handshake_support,
                info.private_data_support,
                info.ird_ord_ia_support,
                info.dto_evd_overflow_detection,
            ];
            check_eq!(missing, [false; 14]);
            check_eq!((info.connect_private_data_len, info.accept_private_data_len), (0, 0));
            check_eq!((info.reject_private_data_len, info.disconnect_private_data_len), (0, 0));
            check!(info.direct_lmr_handle.is_null() && info.max_message_size_support);
            let (pair, own, peer) = open_pair(&f)?;
            let End { ia, ep, pz, request, recv, .. } = &pair.a;
            let before = ia.object_counts();
            let (to, context, segment) = (peer.remote(0), peer.context()?, own.segment(0, 8));
            refused(ia.srq_create(*pz, 1, 1), Error::SrqNotSupported)?;
            refused(
                ia.ep_ud_create(*pz, *request, *recv, &open(), spigot(ia)?.spigot_id),
                Error::InvalidSpigot,
            )?;
            for rmr_type in [RmrType::Default, RmrType::Narrow, RmrType::Wide] {
                refused(ia.rmr_create(*pz, rmr_type), Error::InvalidRmrType)?;
            }
            refused(ia.lmr_create_unlinked(*pz, 1, LmrFlags::NONE, 0), Error::OpNotSupported)?;
            refused(ia.lmr_unlink(own.lmr, *ep, 1, SIGNALLED), Error::OpNotSupported)?;
            let atomic =
                ia.post_atomic(*ep, AtomicOp::FetchAndAdd, 1, 0, &segment, 1, SIGNALLED, to, context);
            refused(atomic, Error::OpNotSupported)?;
            refused(ia.post_send_and_unlink(*ep, &[segment], 1, SIGNALLED, context), Error::OpNotSupported)?;
            refused(ia.post_rdma_read_to_rmr(*ep, &[], 1, SIGNALLED, to, context), Error::OpNotSupported)?;
            refused(ia.post_batch(*ep, |_| Ok(())), Error::OpNotSupported)?;
            let direct = LmrTriplet::direct(IoAddr(0), 8);
            refused(ia.post_send(*ep, &[direct], 1, SIGNALLED), Error::InvalidLmr)?;
            let privileged = EpAttributes { priv_ops_enable: true, ..open() };
            let conn = pair.a.conn;
            let made = ia.ep_rc_create(*pz, *request, *recv, conn, EpFlags::empty(), &privileged);
            refused(made, Error::PrivOpsUnavailable)?;
            check_eq!(ia.object_counts().ep, before.ep);
            check_eq!((ia.object_counts().lmr, ia.object_counts().rmr), (before.lmr, before.rmr));
            pair.a.idle()?;
            check_eq!(ia.ep_outstanding(*ep)?, (0, 0));
            check_eq!(pair.a.state()?, EpStateRc::Connected);
            Ok(())
        },
    ),
    // An endpoint that the NIC could not make is refused with the attribute at fault.
    test("via_ia_attributes::limits", &[], |f| {
        let f = f.over_via()?;
        let identity = *f.a.identity();
        let (entries, segments) =
            (identity.max_vi_entries as usize + 1, identity.max_vi_segments as usize + 1);
        let rc = open().rc;
        let pz = f.a.pz_create()?;
        let dto = sevd(&f.a, EventType::DTO_EVENT_STREAM, 16, 1)?;
        let conn = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
        for (attributes, error) in [
            (EpAttributes { max_dto_payload_size: 0, ..open() }, Error::PayloadSize),
            (EpAttributes { max_dto_payload_size: 1 << 40, ..open() }, Error::PayloadSize),
            (EpAttributes { max_send_segments: segments, ..open() }, Error::ResourceSseg),
            (EpAttributes { max_recv_segments: segments, ..open() }, Error::ResourceRseg),
            (
                EpAttributes { rc: RcAttributes { max_rdma_read_segments: segments, ..rc }, ..open() },
                Error::ResourceRrseg,
            ),
            (
                EpAttributes { rc: RcAttributes { max_rdma_write_segments: segments, ..rc }, ..open() },
                Error::ResourceRwseg,
            ),
            (EpAttributes { max_request_dtos: entries, ..open() }, Error::ResourceReqDto),
            (EpAttributes { max_recv_dtos: entries, ..open() }, Error::ResourceRecvDto),
        ] {
            let made = f.a.ep_rc_create(pz, dto, dto, conn, EpFlags::empty(), &attributes);
            refused(made, error)?;
        }
        check_eq!(f.a.object_counts().ep, 0);
        refused(f.a.ep_rc_create(pz, dto, dto, conn, EpFlags::SRQ, &open()), Error::InvalidSrq)?;
        // Queues of no entries have room for one, and endpoints with no segments send none.
        let least = EpAttributes {
            max_request_dtos: 0,
            max_recv_dtos: 0,
            max_send_segments: 0,
            max_recv_segments: 0,
            ..open()
        };
        let pair = Pair { a: f.end_on(&f.a, &least, dto, dto)?, b: f.end(&f.b, &open())? };
        f.connect(&pair.a, &pair.b)?;
        pair.b.ia.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION)?;
        pair.a.ia.post_send(pair.a.ep, &[], 2, SIGNALLED)?;
        pair.a.done(2, DtoStatus::Success)?;
        pair.b.recv_done(1, DtoStatus::Success)?;
        refused(f.a.post_send(pair.a.ep, &[LmrTriplet::default()], 3, SIGNALLED), Error::InvalidNumSegments)
    }),
    // The I/O buffer lists that are reported are those that regions can be made of.
    test("via_ia_attributes::lists", &["it_ia_info_t V01"], |f| {
        let f = f.over_via()?;
        let types = f.b.ia_query()?.iobl_types_supported;
        check_eq!(types, IoblTypes::PAGE_LIST | IoblTypes::BLOCK_LIST | IoblTypes::VE_PAGE_LIST);
        let (pair, own, _) = open_pair(&f)?;
        let memory = scattered(&f, &f.b, 2, PAGE, 2 * PAGE)?;
        crate::fixture::write(&memory.buffer, 0, &crate::fixture::pattern(3, 3 * PAGE));
        let elements: Vec<_> =
            memory.pieces.iter().map(|&io_addr| IoblVeElt { io_addr, elt_len: PAGE as u64 }).collect();
        let length = PAGE as u64;
        let lists = [
            Iobl::pages(&memory.pieces, length, 8),
            Iobl::blocks(&memory.pieces, length, 8),
            Iobl::ve_pages(&elements, 8),
        ];
        for list in &lists {
            let from = LmrMemory::Iobl { addr: 0, iobl: list };
            let (lmr, context) =
                f.b.lmr_create(pair.b.pz, from, length, AddrMode::Relative, OPEN, LmrFlags::NONE, 0)?;
            let at = make_rdma_addr_relative(0);
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 1, SIGNALLED, at, some(context, "a context")?)?;
            pair.a.done(1, DtoStatus::Success)?;
            check!(own.all() == memory.content(PAGE, 8, PAGE), "{list:?}");
            // As a local segment its addresses are relative, too.
            f.a.post_recv(pair.a.ep, &[own.whole()], 2, DtoFlags::COMPLETION)?;
            f.b.post_send(pair.b.ep, &[LmrTriplet::new(lmr, 16, 32)], 3, SIGNALLED)?;
            pair.b.done(3, DtoStatus::Success)?;
            pair.a.recv_done(2, DtoStatus::Success)?;
            check_eq!(own.bytes(0, 32), memory.content(PAGE, 24, 32));
            f.b.lmr_free(lmr)?;
        }
        Ok(())
    }),
    // VIA has no events about the port: none is reported, and none comes.
    test("via_ia_attributes::no_events_of_the_port", &["it_unaffiliated_event_t B04"], |f| {
        let v = f.over_via()?;
        let info = v.a.ia_query()?;
        check_eq!((info.spigot_online_support, info.spigot_offline_support), (false, false));
        let stream = EventType::ASYNC_UNAFF_EVENT_STREAM;
        let (on_ib, on_via) = (sevd(&f.a, stream, 16, 1)?, sevd(&v.a, stream, 16, 1)?);
        for (up, number) in
            [(false, EventType::ASYNC_UNAFF_SPIGOT_OFFLINE), (true, EventType::ASYNC_UNAFF_SPIGOT_ONLINE)]
        {
            f.port(up)?;
            let (event, _) = f.a.evd_wait(on_ib, WAIT)?;
            check_eq!(event.event_number(), number);
            check_eq!(spigot(&v.a)?.spigot_online, up);
        }
        // The agent makes the upcalls one after the other, to each of its clients. A further event
        // shows that those of before were made.
        f.port(false)?;
        f.a.evd_wait(on_ib, WAIT)?;
        f.port(true)?;
        f.a.evd_wait(on_ib, WAIT)?;
        refused(v.a.evd_dequeue(on_via), Error::QueueEmpty)
    }),
    // An overflow of the EVD for affiliated events is an event of the API, not of the transport. So
    // is that of an EVD for connection events.
    test(
        "via_ia_attributes::overflows_are_reported",
        &["it_unaffiliated_event_t V01", "it_affiliated_event_t V04"],
        |f| {
            let f = f.over_via()?;
            let unaffiliated = sevd(&f.a, EventType::ASYNC_UNAFF_EVENT_STREAM, 16, 1)?;
            let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 1, 1)?;
            let flags = EvdFlags::OVERFLOW_NOTIFY;
            let conn = f.a.evd_create(EventType::CM_MSG_EVENT_STREAM, flags, 1, 1, EvdHandle::NULL)?;
            let dto = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
            check_eq!(evd_param(&f.a, conn)?.sevd_queue_size, 1);
            let pz = f.a.pz_create()?;
            let ep = f.a.ep_rc_create(pz, dto, dto, conn, EpFlags::empty(), &open())?;
            let listener = f.listen(&f.b)?;
            let reset = EvdParam { evd_overflowed: false, ..EvdParam::default() };
            // Each attempt that is given up makes an event. The first one stays queued.
            for attempt in 0..4 {
                let route = path(&f.a, &listener.address)?;
                f.a.ep_connect(ep, &route, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[])?;
                f.a.ep_disconnect(ep, &[])?;
                f.a.ep_reset(ep)?;
                check_eq!(evd_param(&f.a, conn)?.evd_overflowed, attempt > 0);
                if attempt > 0 {
                    f.a.evd_modify(conn, EvdParamMask::OVERFLOWED, &reset)?;
                }
            }
            let (event, _) = f.a.evd_wait(unaffiliated, WAIT)?;
            check_eq!(event.event_number(), EventType::ASYNC_UNAFF_SEVD_ENQUEUE_FAILURE);
            crate::faults::overflow::overflowed(&f, affiliated, conn)
        },
    ),
];
