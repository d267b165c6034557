//! What an adapter reports about itself, compared with what it does (page it_ia_info_t).
//!
//! A field that concerns one call only is compared where that call is tested: private data in
//! `connect` and `sidr`, lists in `iobl`, windows in `rmr`, and so on.

use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::datagrams;
use crate::fixture::{Fixture, OPEN, PAGE, SIGNALLED, WAIT, attributes, path, pattern, spigot};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Takes the next unaffiliated event, which must have this number and name the spigot.
fn takes_event(f: &Fixture, evd: EvdHandle, number: EventType) -> Outcome {
    let (event, _) = f.a.evd_wait(evd, WAIT)?;
    let Event::Unaffiliated { event_number, ia, spigot_id, .. } = event else {
        return Err(Failure::new(alloc::format!("not an unaffiliated event: {event:?}")));
    };
    check_eq!((event_number, ia, spigot_id), (number, f.a.handle(), spigot(&f.a)?.spigot_id));
    Ok(())
}

/// Takes the port down and up, and checks the adapter's events, its info and its paths.
fn down_and_up(f: &Fixture, to: &NetAddr) -> Outcome {
    let unaffiliated =
        f.a.evd_create(EventType::ASYNC_UNAFF_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL)?;
    let info = f.a.ia_query()?;
    check!(info.spigot_online_support && info.spigot_offline_support);
    check!(spigot(&f.a)?.spigot_online);
    let here = spigot(&f.a)?.spigot_id;
    f.port(false)?;
    takes_event(f, unaffiliated, EventType::ASYNC_UNAFF_SPIGOT_OFFLINE)?;
    check!(!spigot(&f.a)?.spigot_online);
    // The address is still valid, but while the port is down no path leads to it.
    for most in [0, 1, 10] {
        check_eq!(f.a.get_pathinfo(here, to, most)?, (alloc::vec![], 0));
    }
    refused(f.a.get_pathinfo(here, &NetAddr::Ipv4([0; 4]), 1), Error::InvalidAddress)?;
    refused(f.a.get_pathinfo(here + 1, to, 1), Error::InvalidSpigot)?;
    f.port(true)?;
    takes_event(f, unaffiliated, EventType::ASYNC_UNAFF_SPIGOT_ONLINE)?;
    check!(spigot(&f.a)?.spigot_online);
    check_eq!(f.a.get_pathinfo(here, to, 1)?.1, 1);
    refused(f.a.evd_dequeue(unaffiliated), Error::QueueEmpty)
}

pub(crate) const TESTS: &[Test] = &[
    // Vendor, device, revision and version are those of the node.
    test("ia_info::vendor_and_version", &["it_ia_info_t F17-F19 F28-F30"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let (info, identity) = (f.a.ia_query()?, f.setup.a.agent.identity());
        check_eq!(info.transport_type, TransportType::Ib);
        // The first 24 bits of the node's EUI-64 identify its manufacturer.
        let Vendor::Ib(vendor) = info.vendor else {
            return Err(Failure::new(alloc::format!("not InfiniBand's: {:?}", info.vendor)));
        };
        check_eq!(u64::from(vendor.vendor), identity.node_guid >> 40);
        check!(vendor.vendor != 0 && vendor.vendor < 1 << 24);
        check_eq!((vendor.device, vendor.revision), (nic_abi::pci::IVSHMEM_DEVICE, identity.revision));
        // The version of the library is not zero, and every IA reports the same one.
        let version = |ia: &Ia| ia.ia_query().map(|info| (info.sw_major_version, info.sw_minor_version));
        check!(version(&f.a)? != (0, 0));
        check_eq!((version(&f.a)?, version(&f.b)?), (version(&f.unprivileged()?)?, version(&f.a)?));
        Ok(())
    }),
    // Endpoints of both listed service types can be created.
    test("ia_info::services", &["it_ia_info_t F35"], |f| {
        Need::Datagrams.of(&f.a)?;
        check_eq!(f.a.ia_query()?.supported_service_types, ServiceTypes::RC | ServiceTypes::UD);
        let end = f.end(&f.a, &attributes())?;
        check_eq!(f.a.ep_query(end.ep, EpParamMask::SERV_TYPE)?.service_type, ServiceTypes::RC);
        let here = spigot(&f.a)?.spigot_id;
        let ep = f.a.ep_ud_create(end.pz, end.request, end.recv, &datagrams(), here)?;
        check_eq!(f.a.ep_query(ep, EpParamMask::SERV_TYPE)?.service_type, ServiceTypes::UD);
        Ok(())
    }),
    // Transfers work at any alignment, regardless of the hint.
    test("ia_info::alignment_is_a_hint", &["it_ia_info_t F33"], |f| {
        let hint = f.a.ia_query()?.dto_alignment_hint as usize;
        check!(hint.is_power_of_two() && hint <= PAGE);
        let pair = f.pair()?;
        let (own, peer) = (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
        let context = peer.context()?;
        for (from, to, len) in [(0, hint, hint), (1, hint + 3, 61), (hint - 1, 7, 2 * hint + 1), (5, 2, 1)] {
            own.fill(9);
            peer.buffer.slice().fill(0);
            let sent = own.bytes(from, len);
            f.b.post_recv(pair.b.ep, &[peer.segment(to, len)], 1, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[own.segment(from, len)], 2, SIGNALLED)?;
            pair.b.recv_done(1, DtoStatus::Success)?;
            pair.a.done(2, DtoStatus::Success)?;
            check!(peer.bytes(to, len) == sent, "a Send from {from} to {to}");
            let at = 1000 + to;
            f.a.post_rdma_write(
                pair.a.ep,
                &[own.segment(from, len)],
                3,
                SIGNALLED,
                peer.remote(at),
                context,
            )?;
            pair.a.done(3, DtoStatus::Success)?;
            check!(f.arrives(|| peer.bytes(at, len) == sent), "a Write from {from} to {at}");
            peer.write(at, &pattern(5, len));
            f.a.post_rdma_read(pair.a.ep, &[own.segment(from, len)], 4, SIGNALLED, peer.remote(at), context)?;
            pair.a.done(4, DtoStatus::Success)?;
            check!(own.bytes(from, len) == pattern(5, len), "a Read from {at} to {from}");
        }
        Ok(())
    }),
    // When the port goes down or up, the adapter reports the event, the spigot's info changes, and
    // paths disappear or come back.
    test(
        "ia_info::the_port_goes_down_and_comes_up",
        &["it_ia_info_t F12 F42 F43", "it_get_pathinfo B04 V02"],
        |f| {
            let to = some(spigot(&f.b)?.net_addr.first().copied(), "an address")?;
            let outcome = down_and_up(f, &to);
            // Bring the port up even if the test failed: the next test needs it.
            f.port(true)?;
            outcome
        },
    ),
    // RMRs of both listed types can be created. (`limited::types_of_window` limits the types.)
    test("ia_info::types_of_rmr", &["it_ia_info_t F62"], |f| {
        let types = f.a.ia_query()?.rmr_types_supported;
        check_eq!((RmrTypes::NARROW.bits(), RmrTypes::WIDE.bits(), types.bits()), (1, 2, 3));
        let pz = f.a.pz_create()?;
        for kind in [RmrType::Narrow, RmrType::Wide] {
            f.a.rmr_free(f.a.rmr_create(pz, kind)?)?;
        }
        Ok(())
    }),
    // A Send can unlink, as the info says. (`limits::what_is_not_supported` takes that away.)
    test("ia_info::unlinking_by_a_send", &["it_ia_info_t F73"], |f| {
        check!(f.a.ia_query()?.post_send_unlink_remote_support);
        let pair = f.pair()?;
        let region = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
        let rmr = f.b.rmr_create(pair.b.pz, RmrType::Narrow)?;
        let (addr, mode, privs) = (region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
        let context = f.b.rmr_link(rmr, region.lmr, addr, 64, mode, privs, pair.b.ep, 1, SIGNALLED)?;
        pair.b.done(1, DtoStatus::Success)?;
        f.b.post_recv(pair.b.ep, &[], 2, DtoFlags::COMPLETION)?;
        f.a.post_send_and_unlink(pair.a.ep, &[], 3, SIGNALLED, context)?;
        pair.a.done(3, DtoStatus::Success)?;
        check_eq!(pair.b.reap_recv()?.unlinked_mr_handle, Handle::from(rmr));
        check!(!f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
        Ok(())
    }),
    // The maximum for a disconnect fits both messages that may carry it, DREQ and REJ.
    test("ia_info::private_data_of_a_disconnect", &["A.it_ia_info_t B01"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let info = f.a.ia_query()?;
        // IBTA 12.6.10 and 12.6.7: the room for private data in a DREQ and in a REJ.
        let (dreq, rej) = (220, 148);
        check_eq!(info.reject_private_data_len, rej);
        check_eq!(info.disconnect_private_data_len, dreq.min(rej));
        let data = pattern(4, info.disconnect_private_data_len);
        // Private data in a DREQ.
        let pair = f.pair()?;
        f.a.ep_disconnect(pair.a.ep, &data)?;
        let event = pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        let Event::ConnDisconnect { private_data, .. } = event else {
            return Err(Failure::new("no disconnect"));
        };
        check!(some(private_data, "private data")?.starts_with(&data));
        // Private data in a REJ, with which the active side gives up a connection.
        let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
        let listener = f.listen(&f.b)?;
        let way = path(&f.a, &listener.address)?;
        f.a.ep_connect(active.ep, &way, None, &listener.conn_qual, CnEstFlags::THREE_WAY, &[])?;
        f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
        Ok(f.a.ep_disconnect(active.ep, &data)?)
    }),
];
