//! Names: network addresses, paths, interfaces, and the call for sockets (pages it_convert_net_addr, it_net_addr_t, it_get_pathinfo,
//! it_path_t, it_interface_list, it_socket_convert).

use privileged_api::*;

use crate::check::some;
use crate::fixture::{MOMENT, attributes, path, spigot};
use crate::{Test, check, check_eq, refused, test};

/// Addresses that no node has.
const NOBODY: [NetAddr; 7] = [
    NetAddr::Ipv4([0; 4]),
    NetAddr::Ipv4([224, 0, 0, 1]),
    NetAddr::Ipv4([255; 4]),
    NetAddr::Ipv6([0; 16]),
    NetAddr::Ipv6([0xff; 16]),
    NetAddr::IbGid([0; 16]),
    NetAddr::IbGid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
];

const VIA: NetAddr = NetAddr::ViaHostaddr(ViaNetAddr { len: 4, hostaddr: [1; MAX_VIA_ADDR_LEN] });

const TYPES: [NetAddrType; 4] =
    [NetAddrType::Ipv4, NetAddrType::Ipv6, NetAddrType::IbGid, NetAddrType::ViaHostaddr];

pub(crate) const TESTS: &[Test] = &[
    test(
        "names::conversions",
        &[
            "it_convert_net_addr.B01",
            "it_convert_net_addr.O01",
            "it_convert_net_addr.IT_ERR_INVALID_CONVERSION",
            "it_net_addr_t.F01",
            "it_net_addr_t.F02",
            "it_net_addr_t.F03",
            "it_net_addr_t.F09",
            "it_net_addr_t.F10",
            "it_net_addr_t.B04",
        ],
        |f| {
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
            // No IPv4 address is in it.
            for source in [NetAddr::Ipv6(local), NetAddr::IbGid(local)] {
                refused(f.a.convert_net_addr(&source, TYPES[0]), Error::InvalidConversion)?;
            }
            Ok(())
        },
    ),
    test(
        "names::conversions_that_are_refused",
        &["it_convert_net_addr.IT_ERR_INVALID_ADDRESS", "it_convert_net_addr.IT_ERR_INVALID_NETADDR"],
        |f| {
            for kind in TYPES {
                for source in NOBODY {
                    refused(f.a.convert_net_addr(&source, kind), Error::InvalidAddress)?;
                }
                refused(f.a.convert_net_addr(&VIA, kind), Error::InvalidNetaddr)?;
            }
            Ok(())
        },
    ),
    test("names::the_source_of_a_request", &["it_convert_net_addr.O02"], |f| {
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
    test(
        "names::paths_to_each_address",
        &[
            "it_get_pathinfo.L01",
            "it_get_pathinfo.B01",
            "it_get_pathinfo.B02",
            "it_get_pathinfo.B03",
            "it_net_addr_t.F08",
            "it_net_addr_t.B01",
            "it_net_addr_t.B02",
            "it_net_addr_t.B03",
            "it_net_addr_t.O01",
        ],
        |f| {
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
                // None wanted, none given, but counted.
                let (paths, total) = f.a.get_pathinfo(here.spigot_id, address, 0)?;
                check!(paths.is_empty() && total >= 1);
                // And it leads there.
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
    test(
        "names::paths_that_are_refused",
        &[
            "it_get_pathinfo.IT_ERR_INVALID_SPIGOT",
            "it_get_pathinfo.IT_ERR_INVALID_ADDRESS",
            "it_get_pathinfo.IT_ERR_INVALID_NETADDR",
        ],
        |f| {
            let here = spigot(&f.a)?;
            let there = some(spigot(&f.b)?.net_addr.first().copied(), "a network address")?;
            for wrong in [0, here.spigot_id + 1, usize::MAX] {
                refused(f.a.get_pathinfo(wrong, &there, 1), Error::InvalidSpigot)?;
            }
            for address in NOBODY {
                refused(f.a.get_pathinfo(here.spigot_id, &address, 1), Error::InvalidAddress)?;
            }
            refused(f.a.get_pathinfo(here.spigot_id, &VIA, 1), Error::InvalidNetaddr)
        },
    ),
    test(
        "names::sockets_are_not_converted",
        &["it_socket_convert.O01", "it_socket_convert.IT_ERR_OP_NOT_SUPPORTED", "it_socket_convert.V01"],
        |f| {
            check!(!f.a.ia_query()?.socket_conversion_support);
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
