//! Names: network addresses, paths, interfaces, and the call for sockets (pages
//! it_convert_net_addr, it_net_addr_t, it_get_pathinfo, it_path_t, it_interface_list,
//! it_socket_convert).

use privileged_api::*;

use crate::check::some;
use crate::fixture::{MOMENT, attributes, path, spigot};
use crate::transport::Need;
use crate::{Test, check, check_eq, refused, test};

/// Addresses that no node can have.
const NO_NODE: [NetAddr; 7] = [
    NetAddr::Ipv4([0; 4]),
    NetAddr::Ipv4([224, 0, 0, 1]),
    NetAddr::Ipv4([255; 4]),
    NetAddr::Ipv6([0; 16]),
    NetAddr::Ipv6([0xff; 16]),
    NetAddr::IbGid([0; 16]),
    NetAddr::IbGid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
];

/// An address of a type that InfiniBand does not have.
const VIA: NetAddr = NetAddr::ViaHostaddr(ViaNetAddr { len: 4, hostaddr: [1; MAX_VIA_ADDR_LEN] });

/// Every type of address.
const TYPES: [NetAddrType; 4] =
    [NetAddrType::Ipv4, NetAddrType::Ipv6, NetAddrType::IbGid, NetAddrType::ViaHostaddr];

pub(crate) const TESTS: &[Test] = &[
    // IPv4, IPv6 and GID are forms of one address: each converts into the others where the address
    // allows it.
    test(
        "names::conversions",
        &[
            "it_convert_net_addr B01 O01 V03 IT_ERR_INVALID_CONVERSION",
            "it_net_addr_t B04 F01-F04 F07 F09-F11",
        ],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            check_eq!(TYPES.map(|kind| kind as u32), [1, 2, 3, 4]);
            let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
            let local = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
            let (v4, v6) = (NetAddr::Ipv4([127, 0, 0, 1]), NetAddr::Ipv6(mapped));
            let gid = NetAddr::IbGid(mapped);
            for source in [v4, v6, gid] {
                for (kind, expected) in [(TYPES[0], v4), (TYPES[1], v6), (TYPES[2], gid)] {
                    let converted = f.a.convert_net_addr(&source, kind)?;
                    check_eq!((converted, converted.addr_type()), (expected, kind));
                }
            }
            check_eq!(f.a.convert_net_addr(&NetAddr::Ipv6(local), TYPES[2])?, NetAddr::IbGid(local));
            for source in [v4, v6, gid, NetAddr::Ipv6(local)] {
                refused(f.a.convert_net_addr(&source, TYPES[3]), Error::InvalidConversion)?;
            }
            // These addresses contain no IPv4 address.
            for source in [NetAddr::Ipv6(local), NetAddr::IbGid(local)] {
                refused(f.a.convert_net_addr(&source, TYPES[0]), Error::InvalidConversion)?;
            }
            Ok(())
        },
    ),
    // Addresses that no node can have, and types that do not exist here, are refused.
    test(
        "names::conversions_that_are_refused",
        &["it_convert_net_addr IT_ERR_INVALID_ADDRESS IT_ERR_INVALID_NETADDR"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            for kind in TYPES {
                for source in NO_NODE {
                    refused(f.a.convert_net_addr(&source, kind), Error::InvalidAddress)?;
                }
                refused(f.a.convert_net_addr(&VIA, kind), Error::InvalidNetaddr)?;
            }
            Ok(())
        },
    ),
    // The source address of a connection request converts to the type that the consumer prefers.
    test("names::the_source_of_a_request", &["it_convert_net_addr O02"], |f| {
        let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
        let listener = f.listen(&f.b)?;
        f.dial(&active, &listener, CnEstFlags::TWO_WAY, &[])?;
        let source = listener.request()?.source_addr;
        let address = f.b.convert_net_addr(&source, NetAddrType::Ipv6)?;
        check_eq!(f.b.convert_net_addr(&address, source.addr_type())?, source);
        check!(spigot(&f.a)?.net_addr.contains(&source));
        f.b.ep_free(passive.ep)?;
        Ok(())
    }),
    // Each address of a spigot has paths; no more are returned than asked for, but all are counted.
    test(
        "names::paths_to_each_address",
        &["it_get_pathinfo B01-B03 L01", "it_net_addr_t B01-B03 F08 O01", "it_path_t B02"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let (here, there) = (spigot(&f.a)?, spigot(&f.b)?);
            check!(!there.net_addr.is_empty());
            for address in &there.net_addr {
                for most in [1, 2, 1000] {
                    let (paths, total) = f.a.get_pathinfo(here.spigot_id, address, most)?;
                    check!(!paths.is_empty() && paths.len() <= most && total >= paths.len());
                    for path in &paths {
                        check_eq!(path.spigot_id, here.spigot_id);
                        let ib = some(path.ib(), "an InfiniBand path")?;
                        check!(here.net_addr.contains(&NetAddr::IbGid(ib.local_port_gid)));
                        let gid = f.a.convert_net_addr(address, NetAddrType::IbGid)?;
                        check_eq!(NetAddr::IbGid(ib.remote_port_gid), gid);
                    }
                }
                // A caller that asks for no path gets none, but learns how many there are.
                let (paths, total) = f.a.get_pathinfo(here.spigot_id, address, 0)?;
                check!(paths.is_empty() && total >= 1);
                // A connection along the path reaches the address.
                let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
                let listener = f.listen(&f.b)?;
                let way = path(&f.a, address)?;
                let qual = &listener.conn_qual;
                f.a.ep_connect(active.ep, &way, None, qual, CnEstFlags::TWO_WAY, &[])?;
                f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
                active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                listener.free()?;
            }
            Ok(())
        },
    ),
    // Unknown spigots, impossible addresses and unknown types are refused.
    test(
        "names::paths_that_are_refused",
        &["it_get_pathinfo IT_ERR_INVALID_ADDRESS IT_ERR_INVALID_NETADDR IT_ERR_INVALID_SPIGOT"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let here = spigot(&f.a)?;
            let there = some(spigot(&f.b)?.net_addr.first().copied(), "a network address")?;
            for wrong in [0, here.spigot_id + 1, usize::MAX] {
                refused(f.a.get_pathinfo(wrong, &there, 1), Error::InvalidSpigot)?;
            }
            for address in NO_NODE {
                refused(f.a.get_pathinfo(here.spigot_id, &address, 1), Error::InvalidAddress)?;
            }
            refused(f.a.get_pathinfo(here.spigot_id, &VIA, 1), Error::InvalidNetaddr)
        },
    ),
    // The list has at most as many interfaces as asked for, but the total counts all.
    test("names::as_many_interfaces_as_wanted", &["it_interface_list B01 B02 L02"], |f| {
        let provider = &f.setup.provider;
        let (all, total) = provider.interface_list(usize::MAX);
        check!(!all.is_empty());
        check_eq!(total, all.len());
        for wanted in 0..=total + 1 {
            let (some, available) = provider.interface_list(wanted);
            check_eq!((some.len(), available), (wanted.min(total), total));
            check!(some.iter().all(|interface| all.contains(interface)));
        }
        Ok(())
    }),
    // A request that is handed off arrives at the other listen point with the same content and a
    // new identifier; the old one is invalid.
    test("names::a_request_is_handed_on", &["it_handoff B01-B03 F01 S01", "it_cm_req_events B04"], |f| {
        check_eq!(size_of::<CnEstId>(), 8);
        let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
        let (first, second) = (f.listen(&f.b)?, f.listen(&f.b)?);
        f.dial(&active, &first, CnEstFlags::TWO_WAY, b"for whom?")?;
        let asked = first.request()?;
        let here = spigot(&f.b)?.spigot_id;
        f.b.handoff(&second.conn_qual, here, asked.cn_est_id)?;
        let again = second.request()?;
        check!(again.cn_est_id != asked.cn_est_id, "the identifier did not change");
        // It looks like the original one, but for where it was queued and its identifier.
        check_eq!(again, ConnRequest { evd: second.evd, cn_est_id: again.cn_est_id, ..asked });
        // The old identifier is invalid.
        let gone = Error::InvalidCnEstId;
        refused(f.b.reject(asked.cn_est_id, &[]), gone)?;
        refused(f.b.ep_accept(passive.ep, asked.cn_est_id, &[]), gone)?;
        refused(f.b.handoff(&first.conn_qual, here, asked.cn_est_id), gone)?;
        f.b.ep_accept(passive.ep, again.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        Ok(())
    }),
    // A refused handoff leaves the request where it is.
    test(
        "names::requests_that_are_not_handed_on",
        &[
            "it_handoff B04 V02 IT_ERR_INVALID_CN_EST_ID IT_ERR_INVALID_CONN_QUAL",
            "it_handoff IT_ERR_INVALID_SPIGOT",
        ],
        |f| {
            let active = f.end(&f.a, &attributes())?;
            let listener = f.listen(&f.b)?;
            f.dial(&active, &listener, CnEstFlags::TWO_WAY, &[])?;
            let id = listener.request()?.cn_est_id;
            let here = spigot(&f.b)?.spigot_id;
            let qual = listener.conn_qual;
            for wrong in [0, here + 1, usize::MAX] {
                refused(f.b.handoff(&qual, wrong, id), Error::InvalidSpigot)?;
            }
            let evd = crate::fixture::sevd(&f.a, EventType::CM_REQ_EVENT_STREAM, 4, 1)?;
            let others = ConnQual::port(0x7778);
            f.a.listen_create(here, evd, ListenFlags::CONN_QUAL_INPUT, Some(&others))?;
            let discriminator = ViaDiscriminator { len: 4, discriminator: [1; MAX_VIA_DISC_LEN] };
            // The qualifier of another IA's listen point, one without a listen point, and one of a
            // type that does not exist here.
            for qual in [
                others,
                ConnQual::service_id(0x7777),
                ConnQual::IanaPort(0),
                ConnQual::ViaDiscriminator(discriminator),
                ConnQual::IanaLrPort { local: 1, remote: 2 },
            ] {
                refused(f.b.handoff(&qual, here, id), Error::InvalidConnQual)?;
            }
            for wrong in [CnEstId(0), CnEstId(id.0 + 1), CnEstId(u64::MAX)] {
                refused(f.b.handoff(&qual, here, wrong), Error::InvalidCnEstId)?;
            }
            refused(f.a.handoff(&others, here, id), Error::InvalidCnEstId)?;
            // The refused calls leave the request as it was: it can still be rejected.
            f.b.reject(id, &[])?;
            active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            Ok(())
        },
    ),
    // A path that the consumer filled in is as good as a returned one.
    test("names::a_path_that_the_consumer_filled_in", &["it_get_pathinfo B06", "it_path_t B06"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
        let listener = f.listen(&f.b)?;
        let gid = |ia: &Ia| -> core::result::Result<[u8; 16], crate::Failure> {
            match spigot(ia)?.net_addr.first() {
                Some(NetAddr::IbGid(gid)) => Ok(*gid),
                other => Err(crate::Failure::new(alloc::format!("not a GID: {other:?}"))),
            }
        };
        let own = Path {
            spigot_id: spigot(&f.a)?.spigot_id,
            timeout: 5_000_000,
            remote: NetEndpoint::Ib(IbNetEndpoint {
                partition_key: 0xffff,
                path_mtu: 1,
                local_port_gid: gid(&f.a)?,
                remote_port_gid: gid(&f.b)?,
                hop_limit: 1,
                ..IbNetEndpoint::default()
            }),
        };
        f.a.ep_connect(active.ep, &own, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[])?;
        f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        check_eq!(f.a.ep_query(active.ep, EpParamMask::PATH)?.dst_path, own);
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        Ok(())
    }),
    // On InfiniBand the conversion of sockets is not supported, regardless of its arguments.
    test(
        "names::sockets_are_not_converted",
        &["it_socket_convert F01 O01 V01 IT_ERR_OP_NOT_SUPPORTED"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            check!(!f.a.ia_query()?.socket_conversion_support);
            check_eq!((ScFlags::empty().bits(), ScFlags::NO_REQ_REP.bits()), (0, 1));
            let end = f.end(&f.a, &attributes())?;
            let undefined = ScFlags::from_bits_retain(2);
            for (sd, ep) in [(0, end.ep), (-1, end.ep), (i32::MAX, end.ep), (3, EpHandle::NULL)] {
                for flags in [ScFlags::empty(), ScFlags::NO_REQ_REP, undefined] {
                    for msg in [&[][..], b"last words"] {
                        refused(f.a.socket_convert(sd, ep, flags, msg), Error::OpNotSupported)?;
                    }
                }
            }
            check_eq!(end.state()?, EpStateRc::Unconnected);
            match f.a.evd_wait(end.conn, MOMENT) {
                Err(error) if error == Error::TimeoutExpired => Ok(()),
                other => Err(crate::Failure::new(alloc::format!("an event: {other:?}"))),
            }
        },
    ),
];
