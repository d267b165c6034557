//! Discriminators, host addresses and paths on IAs over VIA (pages it_conn_qual_t, it_net_addr_t,
//! it_path_t).

use core::result::Result;

use privileged_api::*;

use super::open;
use crate::check::some;
use crate::fixture::{End, Fixture, Listener, path, sevd, spigot};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A discriminator of the first `len` of these bytes.
pub(super) fn discriminator(name: &[u8], len: usize) -> ConnQual {
    let mut discriminator = [0; MAX_VIA_DISC_LEN];
    discriminator[..name.len()].copy_from_slice(name);
    ConnQual::ViaDiscriminator(ViaDiscriminator { len: len as u16, discriminator })
}

/// Listens for this qualifier on `b`.
#[track_caller]
fn listen(f: &Fixture, qual: &ConnQual) -> Result<Listener, Failure> {
    listen_at(&f.b, qual)
}

/// Listens for this qualifier on an IA.
#[track_caller]
pub(super) fn listen_at(ia: &Ia, qual: &ConnQual) -> Result<Listener, Failure> {
    let evd = sevd(ia, EventType::CM_REQ_EVENT_STREAM, 16, 1)?;
    let spigot = spigot(ia)?;
    let (listen, conn_qual) =
        ia.listen_create(spigot.spigot_id, evd, ListenFlags::CONN_QUAL_INPUT, Some(qual))?;
    check_same(&conn_qual, qual)?;
    let address = some(spigot.net_addr.first().copied(), "an address")?;
    Ok(Listener { ia: ia.clone(), evd, listen, conn_qual, address })
}

fn check_same(a: &ConnQual, b: &ConnQual) -> Outcome {
    check_eq!(a, b);
    Ok(())
}

/// Connects by this qualifier and path, and returns the request.
#[track_caller]
fn connects(f: &Fixture, listener: &Listener, qual: &ConnQual, path: &Path) -> Result<ConnRequest, Failure> {
    let (active, passive) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?);
    f.a.ep_connect(active.ep, path, None, qual, CnEstFlags::TWO_WAY, &[])?;
    let request = listener.request()?;
    f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
    active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    ended(&active, &passive)?;
    Ok(request)
}

#[track_caller]
fn ended(active: &End, passive: &End) -> Outcome {
    for end in [active, passive] {
        end.ia.ep_free(end.ep)?;
    }
    Ok(())
}

/// The host address of `b`.
#[track_caller]
fn host(f: &Fixture) -> Result<ViaNetAddr, Failure> {
    match spigot(&f.b)?.net_addr.first() {
        Some(NetAddr::ViaHostaddr(host)) => Ok(*host),
        other => Err(Failure::new(alloc::format!("not a host address: {other:?}"))),
    }
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // A port stands for a discriminator of two bytes, the upper one first, on both sides.
    test("via_ia_names::ports_are_discriminators", &["A.it_conn_qual_t B01"], |f| {
        let f = f.over_via()?;
        let (port, name) = (ConnQual::port(0x1234), discriminator(&[0x12, 0x34], 2));
        for (there, here) in [(&name, &port), (&port, &name)] {
            let listener = listen(&f, there)?;
            let route = path(&f.a, &listener.address)?;
            let request = connects(&f, &listener, here, &route)?;
            check_eq!(request.conn_qual, *there);
            // Both names are in use.
            let evd = listener.evd;
            let again = f.b.listen_create(1, evd, ListenFlags::CONN_QUAL_INPUT, Some(here));
            refused(again, Error::ConnQualBusy)?;
            listener.free()?;
        }
        // Swapped bytes are another name, which has no listener.
        let listener = listen(&f, &name)?;
        let active = f.end(&f.a, &open())?;
        let route = path(&f.a, &listener.address)?;
        let swapped = ConnQual::port(0x3412);
        f.a.ep_connect(active.ep, &route, None, &swapped, CnEstFlags::TWO_WAY, &[])?;
        active.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
        refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)
    }),
    // Only the bytes within the length count; they are not swapped; a name may have 64 of them.
    test("via_ia_names::bytes_of_a_discriminator", &["it_conn_qual_t F05 F06"], |f| {
        let f = f.over_via()?;
        let listener = listen(&f, &discriminator(b"diskXXXX", 4))?;
        let route = path(&f.a, &listener.address)?;
        let request = connects(&f, &listener, &discriminator(b"diskYY", 4), &route)?;
        check_eq!(request.conn_qual, discriminator(b"diskXXXX", 4));
        let queried = f.b.listen_query(listener.listen, ListenParamMask::ALL)?;
        check_eq!(queried.connect_qual, discriminator(b"diskXXXX", 4));
        for other in [discriminator(b"disk", 3), discriminator(b"disk", 5), discriminator(b"kisd", 4)] {
            let active = f.end(&f.a, &open())?;
            f.a.ep_connect(active.ep, &route, None, &other, CnEstFlags::TWO_WAY, &[])?;
            active.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            f.a.ep_free(active.ep)?;
        }
        refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)?;
        let longest: [u8; 64] = core::array::from_fn(|at| at as u8);
        let long = listen(&f, &discriminator(&longest, 64))?;
        let request = connects(&f, &long, &discriminator(&longest, 64), &route)?;
        check_eq!(request.conn_qual, discriminator(&longest, 64));
        // A request can be handed over by name.
        let active = f.end(&f.a, &open())?;
        f.a.ep_connect(active.ep, &route, None, &long.conn_qual, CnEstFlags::TWO_WAY, &[])?;
        let id = long.request()?.cn_est_id;
        refused(f.b.handoff(&discriminator(b"disc", 4), 1, id), Error::InvalidConnQual)?;
        f.b.handoff(&discriminator(b"diskZ", 4), 1, id)?;
        f.b.reject(listener.request()?.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
        Ok(())
    }),
    // Qualifiers of other transports, and those of no length or too many bytes, are refused.
    test("via_ia_names::refused_qualifiers", &[], |f| {
        let f = f.over_via()?;
        let types = ConnQualTypes::IANA_PORT | ConnQualTypes::VIA_DISCRIMINATOR;
        let spigot = spigot(&f.a)?;
        check_eq!((spigot.active_side_conn_qual, spigot.passive_side_conn_qual), (types, types));
        let (end, route) = (f.end(&f.a, &open())?, path(&f.a, &NetAddr::ViaHostaddr(host(&f)?))?);
        let evd = sevd(&f.a, EventType::CM_REQ_EVENT_STREAM, 16, 1)?;
        for qual in [
            ConnQual::service_id(0x1234),
            ConnQual::IanaPort(0),
            ConnQual::IanaLrPort { local: 1, remote: 2 },
            discriminator(b"x", 0),
            discriminator(b"x", 65),
        ] {
            let dialled = f.a.ep_connect(end.ep, &route, None, &qual, CnEstFlags::TWO_WAY, &[]);
            refused(dialled, Error::InvalidConnQual)?;
            let listening = f.a.listen_create(1, evd, ListenFlags::CONN_QUAL_INPUT, Some(&qual));
            refused(listening, Error::InvalidConnQual)?;
        }
        check_eq!(end.state()?, EpStateRc::Unconnected);
        check_eq!(f.a.object_counts().listen, 0);
        // A system port is for privileged consumers, also as a discriminator.
        let provider = Provider::new(f.platform().clone());
        provider.add_via("via", f.setup.a.agent.clone(), Limits::NONE)?;
        let ia = provider.ia_create("via", 2, 1, None)?;
        let evd = sevd(&ia, EventType::CM_REQ_EVENT_STREAM, 16, 1)?;
        for qual in [ConnQual::port(1023), discriminator(&[3, 255], 2)] {
            let listening = ia.listen_create(1, evd, ListenFlags::CONN_QUAL_INPUT, Some(&qual));
            refused(listening, Error::NoPermission)?;
        }
        ia.listen_create(1, evd, ListenFlags::CONN_QUAL_INPUT, Some(&discriminator(&[0, 3, 255], 3)))?;
        ia.ia_free()?;
        Ok(())
    }),
    // A host address leads to its host; bytes beyond its length do not count; it comes back as it
    // was given, and in the same order on the other side.
    test("via_ia_names::host_addresses", &["it_net_addr_t F05 F06 F12", "it_path_t F14 F23"], |f| {
        let v = f.over_via()?;
        let own = host(&v)?;
        // The host address is the port's GID.
        let NetAddr::IbGid(gid) = some(spigot(&f.b)?.net_addr.first().copied(), "an address")? else {
            return Err(Failure::new("not a GID"));
        };
        check_eq!((own.len, &own.hostaddr[..16]), (16, &gid[..]));
        let mut other = own;
        other.hostaddr[16..].fill(0xee);
        let listener = v.listen(&v.b)?;
        for address in [own, other] {
            let route = path(&v.a, &NetAddr::ViaHostaddr(address))?;
            check_eq!(route.remote, NetEndpoint::Via(own));
            let request = connects(&v, &listener, &listener.conn_qual, &route)?;
            let from = spigot(&v.a)?.net_addr;
            check!(from.contains(&request.source_addr), "{:?} of {from:?}", request.source_addr);
        }
        // The path is what counts: with another host in it the request does not arrive.
        let mut route = path(&v.a, &NetAddr::ViaHostaddr(own))?;
        route.timeout = 200_000;
        let NetEndpoint::Via(remote) = &mut route.remote else {
            return Err(Failure::new("not a VIA path"));
        };
        remote.hostaddr[13] ^= 0x55;
        let active = v.end(&v.a, &open())?;
        v.a.ep_connect(active.ep, &route, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[])?;
        active.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
        refused(v.b.evd_dequeue(listener.evd), Error::QueueEmpty)?;
        // A query returns the path.
        check_eq!(v.a.ep_query(active.ep, EpParamMask::PATH)?.dst_path, route);
        for len in [0, 5, 15, 17, 65] {
            let bad = ViaNetAddr { len, ..own };
            refused(v.a.get_pathinfo(1, &NetAddr::ViaHostaddr(bad), 1), Error::InvalidAddress)?;
            let end = v.end(&v.a, &open())?;
            let route = Path { remote: NetEndpoint::Via(bad), ..route };
            let dialled = v.a.ep_connect(end.ep, &route, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[]);
            refused(dialled, Error::InvalidSourcePath)?;
            v.a.ep_free(end.ep)?;
        }
        Ok(())
    }),
    // Types of addresses: VIA's and IP's, which convert into each other; no GIDs of InfiniBand,
    // whose paths lead nowhere here.
    test("via_ia_names::types_of_addresses", &[], |f| {
        let v = f.over_via()?;
        let own = host(&v)?;
        let gid = some(own.hostaddr.first_chunk::<16>().copied(), "a GID")?;
        refused(v.a.get_pathinfo(1, &NetAddr::IbGid(gid), 1), Error::InvalidNetaddr)?;
        refused(f.a.get_pathinfo(1, &NetAddr::ViaHostaddr(own), 1), Error::InvalidNetaddr)?;
        let (paths, _) = v.a.get_pathinfo(1, &NetAddr::Ipv6(gid), 1)?;
        check_eq!(paths.first().map(|path| path.remote), Some(NetEndpoint::Via(own)));
        let convert = |from: &NetAddr, to| v.a.convert_net_addr(from, to);
        let via = NetAddr::ViaHostaddr(own);
        check_eq!(convert(&NetAddr::Ipv6(gid), NetAddrType::ViaHostaddr)?, via);
        check_eq!(convert(&via, NetAddrType::Ipv6)?, NetAddr::Ipv6(gid));
        refused(convert(&via, NetAddrType::IbGid), Error::InvalidConversion)?;
        refused(convert(&NetAddr::IbGid(gid), NetAddrType::Ipv6), Error::InvalidNetaddr)?;
        let mut short = [0; MAX_VIA_ADDR_LEN];
        short[..4].copy_from_slice(&[10, 0, 0, 9]);
        let short = NetAddr::ViaHostaddr(ViaNetAddr { len: 4, hostaddr: short });
        check_eq!(convert(&short, NetAddrType::Ipv4)?, NetAddr::Ipv4([10, 0, 0, 9]));
        let ib = path(&f.a, &NetAddr::IbGid(gid))?;
        let (end, listener) = (v.end(&v.a, &open())?, v.listen(&v.b)?);
        let dialled = v.a.ep_connect(end.ep, &ib, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[]);
        refused(dialled, Error::InvalidSourcePath)?;
        let route = Path { spigot_id: 2, ..path(&v.a, &via)? };
        let dialled = v.a.ep_connect(end.ep, &route, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[]);
        refused(dialled, Error::InvalidSpigot)?;
        check_eq!(end.state()?, EpStateRc::Unconnected);
        Ok(())
    }),
];
