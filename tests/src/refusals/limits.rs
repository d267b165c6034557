//! Interfaces that offer less than their NIC ([`Provider::add_limited`]): the errors of calls that
//! need what is missing, and a limited number of connections.

use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{address, datagrams};
use crate::fixture::{End, Listener, OPEN, PAGE, SIGNALLED, attributes, path, sevd, spigot};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, Transport, check, check_eq, refused, test};

const TWO_WAY: CnEstFlags = CnEstFlags::TWO_WAY;

/// Limits that remove these features.
fn without(features: Features) -> Limits {
    Limits { features: Features::all().difference(features), ..Limits::NONE }
}

/// The features of privileged mode.
const PRIVILEGED_OPS: Features = Features::FAST_REGISTER.union(Features::RESERVED_KEY);

/// A change of an adapter's info.
type Change = fn(&mut IaInfo);

/// The features that an interface can leave out, and what its info then says.
const LACKS: &[(Features, Change)] = &[
    (Features::UD, |info| info.supported_service_types = ServiceTypes::RC),
    (Features::SRQ, |info| (info.srq_support, info.srq_resizable) = (false, false)),
    (Features::SRQ_RESIZE, |info| info.srq_resizable = false),
    (Features::ATOMICS, |info| info.atomic_support = false),
    (Features::FAST_REGISTER, |info| {
        info.lmr_link_support = false;
        info.post_send_unlink_remote_support = false;
        info.unlink_fence_support = false;
    }),
    (Features::WINDOWS_NARROW, |info| {
        info.rmr_types_supported = RmrTypes::WIDE;
        info.narrow_rmr_unlink_support = false;
    }),
    (Features::WINDOWS_WIDE, |info| {
        info.rmr_types_supported = RmrTypes::NARROW;
        info.wide_rmr_unlink_support = false;
    }),
    (Features::RELATIVE, |info| info.addr_mode_relative_support = false),
    (Features::PAGE_LIST, |info| info.iobl_types_supported.remove(IoblTypes::PAGE_LIST)),
    (Features::BLOCK_LIST, |info| info.iobl_types_supported.remove(IoblTypes::BLOCK_LIST)),
    (Features::VARIABLE_LIST, |info| info.iobl_types_supported.remove(IoblTypes::VE_PAGE_LIST)),
    (Features::RESERVED_KEY, |info| {
        info.direct_lmr_handle_support = false;
        info.direct_lmr_handle = LmrHandle::NULL;
    }),
];

/// Attributes of an unprivileged endpoint.
fn plain() -> EpAttributes {
    EpAttributes { priv_ops_enable: false, ..attributes() }
}

/// Takes a connection request and accepts it.
fn accepted(listener: &Listener, end: &End) -> Outcome {
    end.ia.ep_accept(end.ep, listener.request()?.cn_est_id, &[])?;
    end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // An interface without privileged operations has no privileged endpoints.
    test(
        "limits::no_privileged_operations",
        &["it_ep_rc_create V05 IT_ERR_PRIV_OPS_UNAVAILABLE", "it_ep_ud_create IT_ERR_PRIV_OPS_UNAVAILABLE"],
        |f| {
            for privileged in [Some(f.setup.privileged), None] {
                let ia = f.limited(without(PRIVILEGED_OPS), privileged)?;
                let info = ia.ia_query()?;
                check!(!info.lmr_link_support && !info.direct_lmr_handle_support);
                let (end, there) = (f.end(&ia, &plain())?, spigot(&ia)?.spigot_id);
                let End { pz, request, recv, conn, .. } = end;
                let none = EpFlags::empty();
                let rc = ia.ep_rc_create(pz, request, recv, conn, none, &attributes()).map(drop);
                let ud = ia.ep_ud_create(pz, request, recv, &datagrams(), there).map(drop);
                // Over iWARP there are no datagram endpoints at all.
                let ud = (f.setup.transport == Transport::InfiniBand).then_some(ud);
                for created in [Some(rc), ud].into_iter().flatten() {
                    // Without the privilege and without the feature, this error comes first.
                    refused(created, Error::PrivOpsUnavailable)?;
                }
                check_eq!(ia.object_counts().ep, 1);
            }
            Ok(())
        },
    ),
    // An interface without the direct handle refuses it in every post.
    test(
        "limits::no_direct_lmr_handle",
        &[
            "it_post_send IT_ERR_INVALID_LMR",
            "it_post_send_and_unlink IT_ERR_INVALID_LMR",
            "it_post_sendto IT_ERR_INVALID_LMR",
            "it_post_rdma_write V01",
            "it_post_recv V03",
        ],
        |f| {
            let ia = f.limited(without(Features::RESERVED_KEY), Some(f.setup.privileged))?;
            let info = ia.ia_query()?;
            check!(!info.direct_lmr_handle_support && info.direct_lmr_handle.is_null());
            check!(info.post_send_unlink_remote_support);
            let (end, peer) = (f.end(&ia, &attributes())?, f.end(&f.b, &attributes())?);
            f.connect(&end, &peer)?;
            let (own, there) = (f.region(&ia, end.pz, 64, OPEN)?, f.region(&f.b, peer.pz, 64, OPEN)?);
            let direct = LmrTriplet::direct(IoAddr(own.buffer.bus()), 8);
            let datagram = crate::datagrams::ud::peer(&ia, &datagrams())?;
            let addr = address(&ia, datagram.pz, &f.b)?;
            let to = DgRemoteEpAddr::IbUd { addr, ep_info: datagram.info };
            let (at, context) = (there.remote(0), there.context()?);
            let no = Error::InvalidLmr;
            for segments in [&[direct][..], &[own.segment(0, 8), direct][..]] {
                refused(ia.post_send(end.ep, segments, 1, SIGNALLED), no)?;
                refused(ia.post_send_and_unlink(end.ep, segments, 1, SIGNALLED, context), no)?;
                refused(ia.post_rdma_write(end.ep, segments, 1, SIGNALLED, at, context), no)?;
                refused(ia.post_recv(end.ep, segments, 1, SIGNALLED), no)?;
                refused(ia.post_recvfrom(datagram.ep, segments, 1, SIGNALLED), no)?;
                refused(ia.post_sendto(datagram.ep, segments, 1, SIGNALLED, &to), no)?;
            }
            // The refused calls have posted nothing, and segments of a region still work.
            end.idle()?;
            ia.post_rdma_write(end.ep, &[own.segment(0, 8)], 2, SIGNALLED, at, context)?;
            end.done(2, DtoStatus::Success)
        },
    ),
    // Atomics and Sends that unlink are refused where the interface does not support them.
    test(
        "limits::what_is_not_supported",
        &["it_post_atomic O01 V01", "it_post_send_and_unlink V03", "it_ia_info_t F69 F73"],
        |f| {
            Need::Atomics.of(&f.a)?;
            let full = f.a.ia_query()?;
            check!(full.atomic_support && full.post_send_unlink_remote_support && full.lmr_link_support);
            let features = Features::ATOMICS | Features::FAST_REGISTER;
            let ia = f.limited(without(features), Some(f.setup.privileged))?;
            let info = ia.ia_query()?;
            check!(!info.atomic_support && !info.post_send_unlink_remote_support && !info.lmr_link_support);
            let (end, peer) = (f.end(&ia, &attributes())?, f.end(&f.b, &attributes())?);
            f.connect(&end, &peer)?;
            let own = f.region(&ia, end.pz, PAGE, OPEN)?;
            let there = f.region(&f.b, peer.pz, PAGE, OPEN.union(MemPriv::ATOMIC))?;
            let (at, context, no) = (there.remote(0), there.context()?, Error::OpNotSupported);
            for op in [AtomicOp::FetchAndAdd, AtomicOp::CompareAndSwap] {
                let (sink, ep) = (own.segment(0, 8), end.ep);
                refused(ia.post_atomic(ep, op, 1, 0, &sink, 1, SIGNALLED, at, context), no)?;
            }
            refused(ia.post_send_and_unlink(end.ep, &[], 1, SIGNALLED, context), no)?;
            refused(ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0), no)?;
            // Where atomics are supported, they are for RC endpoints only.
            let datagram = crate::datagrams::ud::peer(&f.a, &datagrams())?;
            let sink = f.region(&f.a, datagram.pz, 8, OPEN)?;
            for op in [AtomicOp::FetchAndAdd, AtomicOp::CompareAndSwap] {
                let posted = f.a.post_atomic(datagram.ep, op, 1, 0, &sink.whole(), 1, SIGNALLED, at, context);
                refused(posted, Error::InvalidEpType)?;
            }
            there.untouched()?;
            end.idle()?;
            check_eq!(end.state()?, EpStateRc::Connected);
            Ok(())
        },
    ),
    // For each feature that an interface leaves out, exactly the fields of the info that tell of it
    // change.
    test("limits::the_info_follows_the_features", &["it_ia_info_t F35 F54 F57 F63 F77"], |f| {
        let full = f.a.ia_query()?;
        check_eq!(full.iobl_types_supported, IoblTypes::all());
        check!(full.srq_support && full.srq_resizable && full.addr_mode_relative_support);
        for (feature, lack) in LACKS {
            let ia = f.limited(without(*feature), Some(f.setup.privileged))?;
            let mut expected = IaInfo { ia_name: "limited".into(), ..full.clone() };
            lack(&mut expected);
            check_eq!(ia.ia_query()?, expected, "without {feature:?}");
        }
        Ok(())
    }),
    // An interface without the UD service has neither datagram endpoints nor address handles.
    test(
        "limits::no_datagrams",
        &["it_ia_info_t F35", "it_ep_ud_create V01", "it_address_handle_create B01 V01"],
        |f| {
            let ia = f.limited(without(Features::UD), Some(f.setup.privileged))?;
            check_eq!(ia.ia_query()?.supported_service_types, ServiceTypes::RC);
            let (end, there) = (f.end(&ia, &attributes())?, spigot(&ia)?);
            let created = ia.ep_ud_create(end.pz, end.request, end.recv, &datagrams(), there.spigot_id);
            refused(created, Error::InvalidSpigot)?;
            let way = path(&ia, &some(there.net_addr.first().copied(), "an address")?)?;
            for flags in [AhFlags::PATH_COMPLETE, AhFlags::empty()] {
                refused(ia.address_handle_create(end.pz, &way, flags), Error::InvalidSpigot)?;
            }
            check_eq!((ia.object_counts().ep, ia.object_counts().addr), (1, 0));
            // Connections still work.
            let peer = f.end(&f.b, &attributes())?;
            f.connect(&end, &peer)
        },
    ),
    // An interface without shared receive queues refuses to create one, with any arguments.
    test(
        "limits::no_shared_receive_queues",
        &["it_srq_create O01 IT_ERR_SRQ_NOT_SUPPORTED", "it_ia_info_t F54"],
        |f| {
            check!(f.a.ia_query()?.srq_support);
            f.a.srq_free(f.a.srq_create(f.a.pz_create()?, 1, 4)?)?;
            let ia = f.limited(without(Features::SRQ), Some(f.setup.privileged))?;
            check!(!ia.ia_query()?.srq_support);
            let pz = ia.pz_create()?;
            for (pz, segments, dtos) in [(pz, 1, 1), (pz, 0, 0), (pz, usize::MAX, usize::MAX)] {
                refused(ia.srq_create(pz, segments, dtos), Error::SrqNotSupported)?;
            }
            check_eq!(ia.object_counts().srq, 0);
            Ok(())
        },
    ),
    // An IA cannot have more connections than its interface allows, neither active nor passive
    // ones.
    test("limits::no_more_connections", &["it_ep_connect IT_ERR_RESOURCES", "it_cm_msg_events F35"], |f| {
        let ia = f.limited(Limits { connections: 1, ..Limits::NONE }, Some(f.setup.privileged))?;
        let (first, second) = (f.end(&ia, &attributes())?, f.end(&ia, &attributes())?);
        let (there, peer) = (f.listen(&f.b)?, f.end(&f.b, &attributes())?);
        f.dial(&first, &there, TWO_WAY, &[])?;
        let route = path(&ia, &there.address)?;
        let dial = || ia.ep_connect(second.ep, &route, None, &there.conn_qual, TWO_WAY, &[]);
        // A connection counts from the request until its end.
        refused(dial(), Error::Resources)?;
        check_eq!(second.state()?, EpStateRc::Unconnected);
        accepted(&there, &peer)?;
        first.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        refused(dial(), Error::Resources)?;
        // A peer cannot connect to this IA either.
        let here = f.listen(&ia)?;
        let asking = f.end(&f.b, &attributes())?;
        f.dial(&asking, &here, TWO_WAY, &[])?;
        match asking.event()? {
            Event::ConnNonpeerReject { reject_reason_code: RejectReason::Resources, .. } => {}
            // MPA has one rejection.
            Event::ConnPeerReject { .. } if f.setup.transport == Transport::Iwarp => {}
            other => return Err(Failure::new(alloc::format!("got {other:?}"))),
        }
        refused(ia.evd_dequeue(here.evd), Error::QueueEmpty)?;
        // After the end of the connection there is room for another one.
        f.b.ep_disconnect(peer.ep, &[])?;
        first.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        let peer = f.end(&f.b, &attributes())?;
        dial()?;
        accepted(&there, &peer)?;
        second.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        Ok(())
    }),
    // An unprivileged IA cannot listen at a system port, in none of its three forms.
    test("limits::system_ports", &["it_listen_create IT_ERR_NO_PERMISSION"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let ia = f.unprivileged()?;
        let evd = sevd(&ia, EventType::CM_REQ_EVENT_STREAM, 4, 1)?;
        let there = spigot(&ia)?.spigot_id;
        let listen = |ia: &Ia, evd, qual: ConnQual| {
            ia.listen_create(there, evd, ListenFlags::CONN_QUAL_INPUT, Some(&qual)).map(|(listen, _)| listen)
        };
        // The port as a number, as IT-API's service ID, and as the service ID of rdma_cm.
        let by_id = |port: u64| ConnQual::service_id(0x1000_0ce1_0000_0000 | port);
        let by_rdma_cm = |port: u64| ConnQual::service_id(0x0106_0000 | port);
        for port in [1, 80, 1023] {
            for qual in [ConnQual::port(port), by_id(port.into()), by_rdma_cm(port.into())] {
                refused(listen(&ia, evd, qual), Error::NoPermission)?;
            }
        }
        check_eq!(ia.object_counts().listen, 0);
        for qual in [ConnQual::port(1024), by_id(2000), by_rdma_cm(2000), ConnQual::service_id(80)] {
            ia.listen_free(listen(&ia, evd, qual)?)?;
        }
        // A privileged IA may use system ports.
        let evd = sevd(&f.a, EventType::CM_REQ_EVENT_STREAM, 4, 1)?;
        for qual in [ConnQual::port(80), by_rdma_cm(80)] {
            f.a.listen_free(listen(&f.a, evd, qual)?)?;
        }
        Ok(())
    }),
];
