//! Interface adapters (pages it_interface_list, it_ia_create, it_ia_query, it_ia_info_t,
//! it_ia_free, it_ia_info_free).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use privileged_api::*;

use crate::connections::establish::not_made;
use crate::events::evd_wait::waits_alone;
use crate::fixture::{OPEN, PAGE, SIGNALLED, attributes, evd_param, sevd};
use crate::support::every_call::Objects;
use crate::thread::{Thread, eventually};
use crate::transport::Need;
use crate::{Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // Every interface of the list can be opened under its name and version, and the IA has the
    // listed transport.
    test(
        "ia::create_from_the_interface_list",
        &["it_interface_list B05 F01-F04 L01", "it_ia_create B01 B03 F01"],
        |f| {
            let (list, total) = f.setup.provider.interface_list(usize::MAX);
            check_eq!(total, list.len());
            check!(list.iter().any(|interface| interface.name == f.setup.a.name));
            check!(list.iter().any(|interface| interface.name == f.setup.b.name));
            for interface in &list {
                check!(!interface.name.is_empty());
                check_eq!((interface.major_version, interface.minor_version), (2, 1));
                let provider = &f.setup.provider;
                let ia = provider.ia_create(&interface.name, 2, interface.minor_version, None)?;
                let info = ia.ia_query()?;
                check_eq!(info.transport_type, interface.transport_type);
                check_eq!(info.ia_name, interface.name);
                let pz = ia.pz_create()?;
                check_eq!(ia.pz_query(pz, PzParamMask::IA)?.ia, ia.handle());
                ia.ia_free()?;
            }
            let mut names: Vec<_> = list.iter().map(|interface| &interface.name).collect();
            names.sort();
            names.dedup();
            check_eq!(names.len(), list.len(), "distinct names");
            Ok(())
        },
    ),
    // A name has room for 127 characters.
    test("ia::the_longest_name", &["G.2 F02"], |f| {
        check_eq!(INTERFACE_NAME_SIZE, 128);
        let provider = Provider::new(f.platform().clone());
        let add = |len| provider.add(&"n".repeat(len), f.setup.a.agent.clone());
        for len in [1, 64, 126, 127] {
            add(len)?;
            let name = "n".repeat(len);
            check!(provider.interface_list(usize::MAX).0.iter().any(|interface| interface.name == name));
            let ia = provider.ia_create(&name, 2, 1, None)?;
            check_eq!(ia.ia_query()?.ia_name, name);
            ia.ia_free()?;
        }
        for len in [128, 129, 1000] {
            refused(add(len), Error::InvalidName)?;
        }
        check_eq!(provider.interface_list(usize::MAX).1, 4);
        Ok(())
    }),
    // A consumer of an older minor version can open the interface.
    test("ia::every_minor_version_up_to_the_listed_one", &["it_ia_create B02"], |f| {
        for minor in 0..=1 {
            let ia = f.setup.provider.ia_create(&f.setup.a.name, 2, minor, Some(f.setup.privileged))?;
            ia.pz_create()?;
            ia.ia_free()?;
        }
        Ok(())
    }),
    // A name that is not in the list is refused.
    test("ia::unknown_names", &["it_ia_create IT_ERR_INVALID_NAME", "it_status_t F52"], |f| {
        for name in ["", "no such interface", "\0", &f.setup.a.name[..f.setup.a.name.len() - 1]] {
            let created = f.setup.provider.ia_create(name, 2, 1, Some(f.setup.privileged));
            refused(created.map(drop), Error::InvalidName)?;
        }
        check_eq!(Error::InvalidName as u32, 51);
        Ok(())
    }),
    // An unknown major or minor version is refused, each with its own code.
    test(
        "ia::unsupported_versions",
        &[
            "it_ia_create O01 IT_ERR_INVALID_MAJOR_VERSION IT_ERR_INVALID_MINOR_VERSION",
            "it_status_t F49 F51",
        ],
        |f| {
            let create =
                |major, minor| f.setup.provider.ia_create(&f.setup.a.name, major, minor, None).map(drop);
            for major in [0, 1, 3, u32::MAX] {
                refused(create(major, 0), Error::InvalidMajorVersion)?;
            }
            for minor in [2, 100, u32::MAX] {
                refused(create(2, minor), Error::InvalidMinorVersion)?;
            }
            check_eq!((Error::InvalidMajorVersion as u32, Error::InvalidMinorVersion as u32), (48, 50));
            Ok(())
        },
    ),
    // The info has the IA's name, version, transport, services, spigots and limits.
    test(
        "ia::query_describes_the_ia",
        &[
            "it_ia_query B01 B02",
            "it_ia_info_t B05 F01 F06 F25-F27 F34 F50 F51 F58 F59 L01 S01 V05",
            "5.2.2 F01",
        ],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let info = f.a.ia_query()?;
            check_eq!(info.ia_name, f.setup.a.name);
            check_eq!((info.api_major_version, info.api_minor_version), (2, 1));
            check_eq!((info.transport_type, TransportType::Ib as u32), (TransportType::Ib, 1));
            check!(info.supported_service_types.contains(ServiceTypes::RC));
            check_eq!(ServiceTypes::RC.bits(), 1);
            check!(!info.socket_conversion_support && !info.extended_iwarp_qp_states);
            for len in [
                info.connect_private_data_len,
                info.accept_private_data_len,
                info.reject_private_data_len,
                info.disconnect_private_data_len,
                info.ud_req_private_data_len,
                info.ud_rep_private_data_len,
            ] {
                check!(len <= MAX_PRIV_DATA && MAX_PRIV_DATA == 256);
            }
            check!(!info.spigot_info.is_empty());
            check_eq!(f.a.ia_query()?, info, "a second query");
            Ok(())
        },
    ),
    // A spigot's identifier works in local calls, and each of its addresses can be reached from the
    // other IA.
    test("ia::spigots", &["it_ia_info_t B06 F08 F12 F15 F16"], |f| {
        for spigot in f.b.ia_query()?.spigot_info {
            check!(spigot.spigot_online);
            check!(!spigot.net_addr.is_empty());
            check!(spigot.max_rc_send_len >= 1 << 20 && spigot.max_rc_rdma_len >= 1 << 20);
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 4, 1)?;
            let id = spigot.spigot_id;
            let (listen, _) = f.b.listen_create(id, evd, ListenFlags::empty(), None)?;
            check_eq!(f.b.listen_query(listen, ListenParamMask::SPIGOT_ID)?.spigot_id, id);
            f.b.listen_free(listen)?;
            f.b.evd_free(evd)?;
            // The other IA has a path to each of its addresses.
            let own = crate::fixture::spigot(&f.a)?.spigot_id;
            for address in &spigot.net_addr {
                let (paths, total) = f.a.get_pathinfo(own, address, 4)?;
                check!(!paths.is_empty() && total >= paths.len(), "no path to {address:?}");
            }
        }
        Ok(())
    }),
    // The info names the EVDs of the asynchronous streams from their creation until they are freed.
    test(
        "ia::asynchronous_evds_are_in_the_info",
        &["it_ia_info_t F52 F53", "A.it_evd_create B22", "it_ia_info_free B02"],
        |f| {
            let info = f.a.ia_query()?;
            check!(info.affiliated_err_evd.is_null() && info.unaffiliated_err_evd.is_null());
            let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
            let unaffiliated = f.a.evd_create(
                EventType::ASYNC_UNAFF_EVENT_STREAM,
                EvdFlags::empty(),
                8,
                1,
                EvdHandle::NULL,
            )?;
            let info = f.a.ia_query()?;
            check_eq!(info.affiliated_err_evd, affiliated);
            check_eq!(info.unaffiliated_err_evd, unaffiliated);
            ia_info_free(info);
            check_eq!(evd_param(&f.a, affiliated)?.event_number, EventType::ASYNC_AFF_EVENT_STREAM);
            check_eq!(evd_param(&f.a, unaffiliated)?.event_number, EventType::ASYNC_UNAFF_EVENT_STREAM);
            f.a.evd_free(affiliated)?;
            check!(f.a.ia_query()?.affiliated_err_evd.is_null());
            check_eq!(f.a.ia_query()?.unaffiliated_err_evd, unaffiliated);
            f.a.evd_free(unaffiliated)?;
            check!(f.a.ia_query()?.unaffiliated_err_evd.is_null());
            Ok(())
        },
    ),
    // Each query returns an info of its own, which stays valid when other infos, or the IA, are
    // freed.
    test("ia::infos_are_independent", &["it_ia_info_free B03"], |f| {
        let ia = f.another(Some(f.setup.privileged))?;
        let (first, second, third) = (ia.ia_query()?, ia.ia_query()?, ia.ia_query()?);
        ia_info_free(first);
        check_eq!(second, third);
        ia_info_free(third);
        ia.ia_free()?;
        // The info is a value of the consumer's, which stays valid after the IA is freed.
        check_eq!(second.ia_name, f.setup.a.name);
        Ok(())
    }),
    // it_ia_free frees every object of the IA before it returns.
    test("ia::free_frees_everything", &["it_ia_free B01 B02", "1 B01", "A.it_ia_free V01"], |f| {
        let before = f.setup.a.agent.counts();
        let ia = f.another(Some(f.setup.privileged))?;
        let end = f.end(&ia, &attributes())?;
        let region = f.region(&ia, end.pz, PAGE, OPEN)?;
        let unlinked = ia.lmr_create_unlinked(end.pz, 4, LmrFlags::NONE, 0)?;
        let listener = f.listen(&ia)?;
        let software = sevd(&ia, EventType::SOFTWARE_EVENT_STREAM, 4, 1)?;
        ia.evd_post_se(software, 7)?;
        ia.mem_map(region.buffer.addr(), 0, PAGE)?;
        ia.post_recv(end.ep, &[region.whole()], 1, DtoFlags::COMPLETION)?;
        let counts = ia.object_counts();
        check_eq!((counts.pz, counts.lmr, counts.ep, counts.listen), (1, 2, 1, 1));
        check_eq!((counts.evd, counts.mappings), (5, 1));
        ia.ia_free()?;
        check!(ia.object_counts().is_empty(), "left: {:?}", ia.object_counts());
        check_eq!(f.setup.a.agent.counts(), before, "the agent's objects");
        let gone = Error::InvalidIa;
        refused(ia.pz_free(end.pz), gone)?;
        refused(ia.ep_query(end.ep, EpParamMask::ALL), gone)?;
        refused(ia.ep_free(end.ep), gone)?;
        refused(ia.lmr_query(region.lmr, LmrParamMask::ALL), gone)?;
        refused(ia.lmr_free(unlinked), gone)?;
        refused(ia.listen_free(listener.listen), gone)?;
        refused(ia.evd_dequeue(software), gone)?;
        refused(ia.evd_free(end.conn), gone)
    }),
    // Every kind of call on a freed IA returns IT_ERR_INVALID_IA.
    test(
        "ia::a_freed_ia_is_invalid",
        &[
            "it_ia_free IT_ERR_INVALID_IA",
            "it_ia_query IT_ERR_INVALID_IA",
            "it_pz_create IT_ERR_INVALID_IA",
            "it_evd_create IT_ERR_INVALID_IA",
            "it_listen_create IT_ERR_INVALID_IA",
            "it_mem_map IT_ERR_INVALID_IA",
            "it_mem_unmap IT_ERR_INVALID_IA",
            "it_get_pathinfo IT_ERR_INVALID_IA",
            "it_status_t F43",
        ],
        |f| {
            let ia = f.another(Some(f.setup.privileged))?;
            let (objects, alias) = (Objects::new(f, &ia)?, ia.clone());
            ia.ia_free()?;
            refused(ia.ia_free(), Error::InvalidIa)?;
            refused(alias.ia_free(), Error::InvalidIa)?;
            objects.all_refused(Error::InvalidIa)?;
            check_eq!(Error::InvalidIa as u32, 42);
            Ok(())
        },
    ),
    // A thread that is blocked in it_evd_wait returns when the IA is freed.
    test("ia::free_wakes_waiters", &["it_ia_free B06"], |f| {
        let ia = f.another(Some(f.setup.privileged))?;
        let evd = sevd(&ia, EventType::DTO_EVENT_STREAM, 8, 2)?;
        let waiter = waits_alone(f, &ia, evd, TIMEOUT_INFINITE)?;
        ia.ia_free()?;
        check_eq!(waiter.join()?.err().map(Error::from), Some(Error::Abort), "how the wait ended");
        Ok(())
    }),
    // The peers of a freed IA's connections, and of its requests, get the events for their ends.
    test("ia::free_ends_connections", &["it_ia_free B07"], |f| {
        let ia = f.another(Some(f.setup.privileged))?;
        let (active, passive) = (f.end(&ia, &attributes())?, f.end(&f.b, &attributes())?);
        f.connect(&active, &passive)?;
        // One request was dequeued, the other one was not; neither is answered.
        let asking = [f.end(&f.b, &attributes())?, f.end(&f.b, &attributes())?];
        let listener = f.listen(&ia)?;
        for end in &asking {
            f.dial(end, &listener, CnEstFlags::TWO_WAY, &[])?;
        }
        listener.request()?;
        ia.ia_free()?;
        // The IA's consumer disconnected, by freeing; it rejected nothing.
        passive.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        check_eq!(passive.state()?, EpStateRc::Nonoperational);
        for end in &asking {
            not_made(end, RejectReason::Other)?;
        }
        Ok(())
    }),
    // When it_ia_free has returned, no RDMA Write of a peer changes the IA's memory any more.
    test("ia::free_ends_all_access_to_memory", &["it_ia_free B04 B05"], |f| {
        let ia = f.another(Some(f.setup.privileged))?;
        let (target, writer) = (f.end(&ia, &attributes())?, f.end(&f.b, &attributes())?);
        f.connect(&target, &writer)?;
        let (sink, source) = (f.region(&ia, target.pz, PAGE, OPEN)?, f.region(&f.b, writer.pz, PAGE, OPEN)?);
        source.fill(1);
        // Writes arrive while the IA is freed.
        let stop = Arc::new(AtomicBool::new(false));
        let (context, address) = (sink.context()?, sink.remote(0));
        let thread = {
            let (stop, writer, segment) = (stop.clone(), writer.clone(), source.whole());
            Thread::spawn(f.platform(), "writer", move || {
                let mut posted = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let post =
                        writer.ia.post_rdma_write(writer.ep, &[segment], posted, SIGNALLED, address, context);
                    if post.is_err() || writer.reap().is_ok_and(|done| done.dto_status != DtoStatus::Success)
                    {
                        break;
                    }
                    posted += 1;
                }
                posted
            })?
        };
        let arrived = eventually(f.platform(), || sink.all() == source.all());
        let freed = ia.ia_free();
        sink.buffer.slice().fill(0);
        stop.store(true, Ordering::Relaxed);
        check!(thread.join()? > 0 && arrived, "no write arrived before the free");
        freed?;
        sink.untouched()
    }),
];
