//! Address handles (pages it_address_handle_create, it_address_handle_query,
//! it_address_handle_modify, it_address_handle_free).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;
use roce::wire::datagram::Network;

use crate::check::some;
use crate::datagrams::ud::{address, datagrams, peer};
use crate::fixture::{Fixture, OPEN, SIGNALLED, completion, path, spigot};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The complete path from `a` to `b`.
#[track_caller]
fn way(f: &Fixture) -> Result<Path, Failure> {
    path(&f.a, &some(spigot(&f.b)?.net_addr.first().copied(), "a network address")?)
}

/// The path with its InfiniBand part changed.
fn with(path: &Path, change: impl FnOnce(&mut IbNetEndpoint)) -> Path {
    let mut path = *path;
    if let Some(ib) = path.ib_mut() {
        change(ib);
    }
    path
}

/// Bad paths, each with the error that it must cause.
fn wrong_ways(way: &Path) -> Vec<(Path, Error)> {
    let source = Error::InvalidSourcePath;
    let via = NetEndpoint::Via(ViaNetAddr { len: 4, hostaddr: [1; MAX_VIA_ADDR_LEN] });
    let iwarp = NetEndpoint::Iwarp(IwarpNetEndpoint::Ipv4 { laddr: [10, 0, 0, 1], raddr: [10, 0, 0, 2] });
    Vec::from([
        (Path { spigot_id: 0, ..*way }, Error::InvalidSpigot),
        (Path { spigot_id: way.spigot_id + 1, ..*way }, Error::InvalidSpigot),
        (Path { spigot_id: usize::MAX, ..*way }, Error::InvalidSpigot),
        (with(way, |ib| ib.local_port_gid[15] ^= 0x40), source),
        (with(way, |ib| ib.local_port_gid = [0; 16]), source),
        (with(way, |ib| ib.local_port_lid = 1), source),
        (with(way, |ib| ib.partition_key = 0x8001), source),
        (with(way, |ib| ib.partition_key = 0), source),
        (with(way, |ib| ib.flow_label = 1 << 20), source),
        (with(way, |ib| ib.sl = 16), source),
        (with(way, |ib| ib.remote_port_gid = [0; 16]), source),
        (Path { remote: via, ..*way }, source),
        (Path { remote: iwarp, ..*way }, source),
    ])
}

/// Handles that do not name an address handle of `a`.
fn no_handles(f: &Fixture, pz: PzHandle) -> Result<[AddrHandle; 4], Failure> {
    let freed = address(&f.a, pz, &f.b)?;
    f.a.address_handle_free(freed)?;
    let foreign = address(&f.b, f.b.pz_create()?, &f.a)?;
    Ok([AddrHandle::NULL, freed, foreign, AddrHandle::from_raw(pz.as_raw())])
}

pub(crate) const TESTS: &[Test] = &[
    // An address handle has the path that was given, and is invalid after the free.
    test(
        "address_handle::create_query_free",
        &[
            "it_address_handle_create B02 B04",
            "it_address_handle_query B01 F01-F04 IT_ERR_INVALID_AH IT_ERR_INVALID_MASK",
            "it_address_handle_free B01 IT_ERR_INVALID_AH",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let pz = f.a.pz_create()?;
            let way = way(f)?;
            let handle = f.a.address_handle_create(pz, &way, AhFlags::PATH_COMPLETE)?;
            check_eq!(AhFlags::PATH_COMPLETE.bits(), 1);
            check_eq!(f.a.object_counts().addr, 1);
            let full = AddrParam { ia: f.a.handle(), pz, path: way };
            let none = AddrParam::default();
            for (bits, expected) in [
                (1, full),
                (2, AddrParam { ia: full.ia, ..none }),
                (4, AddrParam { pz, ..none }),
                (8, AddrParam { path: way, ..none }),
                (0, none),
            ] {
                check_eq!(f.a.address_handle_query(handle, AddrParamMask::from_bits_retain(bits))?, expected);
            }
            for bits in [0x10, 0x11, u32::MAX] {
                let mask = AddrParamMask::from_bits_retain(bits);
                refused(f.a.address_handle_query(handle, mask), Error::InvalidMask)?;
            }
            refused(f.a.pz_free(pz), Error::PzBusy)?;
            f.a.address_handle_free(handle)?;
            refused(f.a.address_handle_free(handle), Error::InvalidAh)?;
            for handle in no_handles(f, pz)? {
                refused(f.a.address_handle_query(handle, AddrParamMask::ALL), Error::InvalidAh)?;
                refused(f.a.address_handle_free(handle), Error::InvalidAh)?;
            }
            check_eq!(f.a.object_counts().addr, 0);
            f.a.pz_free(pz)?;
            Ok(())
        },
    ),
    // Each bad argument is refused; an incomplete path is completed, and irrelevant members are
    // ignored.
    test(
        "address_handle::create_refuses",
        &[
            "it_address_handle_create B06 F02 F07 F09 F10 F12 V02 IT_ERR_INVALID_FLAGS",
            "it_address_handle_create IT_ERR_INVALID_PZ IT_ERR_INVALID_SOURCE_PATH",
            "it_address_handle_create IT_ERR_INVALID_SPIGOT",
            "A.it_address_handle_create IT_ERR_INVALID_SOURCE_PATH",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let (pz, way) = (f.a.pz_create()?, way(f)?);
            let freed = f.a.pz_create()?;
            f.a.pz_free(freed)?;
            let foreign = f.b.pz_create()?;
            for pz in [PzHandle::NULL, freed, foreign, PzHandle::from_raw(f.a.handle().as_raw())] {
                refused(f.a.address_handle_create(pz, &way, AhFlags::PATH_COMPLETE), Error::InvalidPz)?;
            }
            for bits in [2, 3, 0x8000_0000, u32::MAX] {
                let flags = AhFlags::from_bits_retain(bits);
                refused(f.a.address_handle_create(pz, &way, flags), Error::InvalidFlags)?;
            }
            for (path, error) in wrong_ways(&way) {
                refused(f.a.address_handle_create(pz, &path, AhFlags::PATH_COMPLETE), error)?;
            }
            // The provider chooses the local part of an incomplete path, but the remote part must
            // name a node.
            for path in [
                Path { spigot_id: 77, ..way },
                with(&way, |ib| ib.local_port_gid = [9; 16]),
                with(&way, |ib| (ib.local_port_lid, ib.flow_label, ib.hop_limit) = (3, 1 << 20, 0)),
            ] {
                let handle = f.a.address_handle_create(pz, &path, AhFlags::empty())?;
                let chosen = f.a.address_handle_query(handle, AddrParamMask::PATH)?.path;
                check_eq!(chosen.spigot_id, way.spigot_id);
                check_eq!(
                    some(chosen.ib(), "an InfiniBand path")?.local_port_gid,
                    way.ib().unwrap_or(&IbNetEndpoint::default()).local_port_gid
                );
                f.a.address_handle_free(handle)?;
            }
            // In both cases the service level is that of the consumer's path.
            let leveled = with(&way, |ib| (ib.sl, ib.partition_key) = (5, 0x1234));
            let handle = f.a.address_handle_create(pz, &leveled, AhFlags::empty())?;
            let chosen = f.a.address_handle_query(handle, AddrParamMask::PATH)?.path;
            check_eq!(some(chosen.ib(), "an InfiniBand path")?.sl, 5);
            f.a.address_handle_free(handle)?;
            let handle =
                f.a.address_handle_create(pz, &with(&way, |ib| ib.sl = 15), AhFlags::PATH_COMPLETE)?;
            let taken = f.a.address_handle_query(handle, AddrParamMask::PATH)?.path;
            check_eq!(some(taken.ib(), "an InfiniBand path")?.sl, 15);
            f.a.address_handle_free(handle)?;
            // The packet rate of a complete path is kept and has to fit into its six bits; that of
            // an incomplete path does not count.
            for rate in [0, 2, 63, 64, 255] {
                let path = with(&way, |ib| ib.packet_rate = rate);
                let handle = f.a.address_handle_create(pz, &path, AhFlags::empty())?;
                let chosen = f.a.address_handle_query(handle, AddrParamMask::PATH)?.path;
                check_eq!(chosen.ib().map(|ib| ib.packet_rate), way.ib().map(|ib| ib.packet_rate));
                f.a.address_handle_free(handle)?;
                let created = f.a.address_handle_create(pz, &path, AhFlags::PATH_COMPLETE);
                if rate > 63 {
                    refused(created, Error::InvalidSourcePath)?;
                    continue;
                }
                let handle = created?;
                let taken = f.a.address_handle_query(handle, AddrParamMask::PATH)?.path;
                check_eq!(taken.ib().map(|ib| ib.packet_rate), Some(rate));
                f.a.address_handle_free(handle)?;
            }
            for gid in [[0; 16], [0xff; 16]] {
                let path = with(&way, |ib| ib.remote_port_gid = gid);
                let created = f.a.address_handle_create(pz, &path, AhFlags::empty());
                refused(created, Error::InvalidSourcePath)?;
            }
            check_eq!(f.a.object_counts().addr, 0);
            // Members that do not matter may have any value.
            let odd = with(&way, |ib| {
                (ib.packet_rate, ib.subnet_local, ib.remote_port_lid) = (9, true, 5);
                (ib.path_mtu, ib.packet_lifetime) = (15, 63);
            });
            f.a.address_handle_create(pz, &Path { timeout: 0, ..odd }, AhFlags::PATH_COMPLETE)?;
            Ok(())
        },
    ),
    // Creating address handles fails with IT_ERR_RESOURCES at some point, and works again after one
    // is freed.
    test("address_handle::run_out_and_come_back", &["it_address_handle_create IT_ERR_RESOURCES"], |f| {
        Need::Datagrams.of(&f.a)?;
        let (pz, way) = (f.a.pz_create()?, way(f)?);
        let create = || f.a.address_handle_create(pz, &way, AhFlags::PATH_COMPLETE);
        let mut handles = Vec::new();
        let refusal = loop {
            match create() {
                Ok(handle) => handles.push(handle),
                Err(error) => break error,
            }
            check!(handles.len() <= 1 << 16, "{} handles", handles.len());
        };
        check_eq!(refusal, Error::Resources);
        for &handle in &handles {
            check_eq!(f.a.address_handle_query(handle, AddrParamMask::PZ)?.pz, pz);
        }
        f.a.address_handle_free(some(handles.pop(), "a handle")?)?;
        handles.push(create()?);
        for handle in handles {
            f.a.address_handle_free(handle)?;
        }
        Ok(())
    }),
    // The path can be replaced as a whole; a refused change has no effect.
    test(
        "address_handle::modify",
        &[
            "it_address_handle_modify B01 F01 L01 V03 IT_ERR_INVALID_AH IT_ERR_INVALID_MASK",
            "it_address_handle_modify IT_ERR_INVALID_SOURCE_PATH IT_ERR_INVALID_SPIGOT",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let (pz, way) = (f.a.pz_create()?, way(f)?);
            let handle = f.a.address_handle_create(pz, &way, AhFlags::PATH_COMPLETE)?;
            f.a.set_consumer_context(handle, 8)?;
            let mask = AddrParamMask::PATH;
            let query = || f.a.address_handle_query(handle, AddrParamMask::ALL);
            let before = query()?;
            for (path, error) in wrong_ways(&way) {
                let params = AddrParam { path, ..before };
                refused(f.a.address_handle_modify(handle, mask, &params), error)?;
                check_eq!(query()?, before);
            }
            let other = with(&way, |ib| (ib.traffic_class, ib.hop_limit, ib.sl) = (3, 7, 2));
            let params = AddrParam { path: other, ia: IaHandle::NULL, pz: PzHandle::NULL };
            for bits in [1, 2, 4, 9, 0x18, u32::MAX] {
                let mask = AddrParamMask::from_bits_retain(bits);
                refused(f.a.address_handle_modify(handle, mask, &params), Error::InvalidMask)?;
                check_eq!(query()?, before);
            }
            f.a.address_handle_modify(handle, AddrParamMask::empty(), &params)?;
            check_eq!(query()?, before);
            for handle in no_handles(f, pz)? {
                refused(f.a.address_handle_modify(handle, mask, &params), Error::InvalidAh)?;
            }
            f.a.address_handle_modify(handle, mask, &params)?;
            check_eq!(query()?, AddrParam { path: other, ..before });
            check_eq!(f.a.get_consumer_context(handle)?, 8);
            check_eq!(f.a.object_counts().addr, 1);
            f.a.address_handle_free(handle)?;
            f.a.pz_free(pz)?;
            Ok(())
        },
    ),
    // The members of the path appear in the headers of the datagrams.
    test(
        "address_handle::members_of_the_path_in_the_header",
        &["it_address_handle_create F04-F06 F08 F12", "it_address_handle_free V01"],
        |f| {
            let (a, b) = (peer(&f.a, &datagrams())?, peer(&f.b, &datagrams())?);
            let into = f.region(&f.b, b.pz, 4096, OPEN)?;
            let path = with(&way(f)?, |ib| {
                (ib.flow_label, ib.traffic_class, ib.hop_limit) = (0xabcde, 0x5a, 9);
            });
            let addr = f.a.address_handle_create(a.pz, &path, AhFlags::PATH_COMPLETE)?;
            let to = DgRemoteEpAddr::IbUd { addr, ep_info: b.info };
            let arrives = |word: u32, hops: u8| -> Outcome {
                f.b.post_recvfrom(b.ep, &[into.segment(0, 40)], 1, SIGNALLED)?;
                a.delivers(f, &b, (2, 1), DtoStatus::Success, || {
                    f.a.post_sendto(a.ep, &[], 2, SIGNALLED, &to)
                })?;
                let header = into.bytes(0, 40);
                check_eq!(header[..4], word.to_be_bytes());
                check_eq!(header[7], hops);
                check_eq!(header[24..40], some(path.ib(), "an InfiniBand path")?.remote_port_gid);
                Ok(())
            };
            arrives(6 << 28 | 0x5a << 20 | 0xabcde, 9)?;
            let path = with(&path, |ib| (ib.flow_label, ib.traffic_class, ib.hop_limit) = (1, 2, 3));
            let params = AddrParam { path, ..AddrParam::default() };
            f.a.address_handle_modify(addr, AddrParamMask::PATH, &params)?;
            arrives(6 << 28 | 2 << 20 | 1, 3)?;
            // A Send that is posted does not need the address handle any more: each completes once
            // after the handle is freed.
            for cookie in 0..32 {
                f.a.post_sendto(a.ep, &[], cookie, SIGNALLED, &to)?;
            }
            f.a.address_handle_free(addr)?;
            refused(f.a.post_sendto(a.ep, &[], 99, SIGNALLED, &to), Error::InvalidAh)?;
            for cookie in 0..32 {
                let done = completion(&f.a, a.request)?;
                check_eq!((done.cookie, done.dto_status), (cookie, DtoStatus::Success));
            }
            refused(f.a.evd_dequeue(a.request), Error::QueueEmpty)
        },
    ),
    // A datagram carries the source GID that its path names.
    test(
        "address_handle::each_of_the_ports_gids_can_be_the_source",
        &["A.it_address_handle_create V01"],
        |f| {
            let (a, b) = (peer(&f.a, &datagrams())?, peer(&f.b, &datagrams())?);
            let into = f.region(&f.b, b.pz, 64, OPEN)?;
            let mut sources = Vec::new();
            for there in spigot(&f.b)?.net_addr {
                let way = path(&f.a, &there)?;
                let addr = f.a.address_handle_create(a.pz, &way, AhFlags::PATH_COMPLETE)?;
                f.b.post_recvfrom(b.ep, &[into.segment(0, 40)], 1, SIGNALLED)?;
                let to = DgRemoteEpAddr::IbUd { addr, ep_info: b.info };
                a.delivers(f, &b, (2, 1), DtoStatus::Success, || {
                    f.a.post_sendto(a.ep, &[], 2, SIGNALLED, &to)
                })?;
                let ib = some(way.ib(), "an InfiniBand path")?;
                let header = into.bytes(0, 40);
                let header = some(header.first_chunk().and_then(|h| Network::parse_grh(h).ok()), "a header")?;
                check_eq!(header.src().0, ib.local_port_gid);
                check_eq!(header.dst().0, ib.remote_port_gid);
                if !sources.contains(&ib.local_port_gid) {
                    sources.push(ib.local_port_gid);
                }
            }
            check!(sources.len() > 1, "the port has one GID only");
            Ok(())
        },
    ),
    // An address handle has a type and takes a context, like every object.
    test("address_handle::contexts_and_types", &["it_handle_t F01"], |f| {
        let pz = f.a.pz_create()?;
        let handle = address(&f.a, pz, &f.b)?;
        check_eq!((f.a.get_handle_type(handle)?, HandleType::Addr as u32), (HandleType::Addr, 0));
        refused(f.a.get_consumer_context(handle), Error::NoContext)?;
        f.a.set_consumer_context(handle, 0x55)?;
        check_eq!(f.a.get_consumer_context(handle)?, 0x55);
        refused(f.b.get_handle_type(handle), Error::InvalidHandle)?;
        f.a.address_handle_free(handle)?;
        refused(f.a.get_handle_type(handle), Error::InvalidHandle)
    }),
];
