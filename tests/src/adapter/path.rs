//! Paths: their members, and how a connection request uses them (page it_path_t).

use privileged_api::*;

use crate::check::some;
use crate::fixture::{End, Fixture, attributes, path};
use crate::transport::Need;
use crate::{Failure, Test, check, check_eq, refused, test};

/// A path from `a` to `b`.
fn found(f: &Fixture) -> core::result::Result<Path, Failure> {
    path(&f.a, &some(crate::fixture::spigot(&f.b)?.net_addr.first().copied(), "an address")?)
}

/// The path with its InfiniBand part changed.
fn with(path: &Path, change: impl FnOnce(&mut IbNetEndpoint)) -> core::result::Result<Path, Failure> {
    let mut path = *path;
    change(some(path.ib_mut(), "the InfiniBand part")?);
    Ok(path)
}

/// Connects along a path. Returns both ends, and the passive side's path back.
fn along(
    f: &Fixture,
    path: &Path,
    attr: Option<&ConnAttributes>,
) -> core::result::Result<(End, End, IbNetEndpoint), Failure> {
    let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
    let listener = f.listen(&f.b)?;
    f.a.ep_connect(active.ep, path, attr, &listener.conn_qual, CnEstFlags::TWO_WAY, &[])?;
    f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
    active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    listener.free()?;
    let back = f.b.ep_query(passive.ep, EpParamMask::PATH)?.dst_path;
    Ok((active, passive, *some(back.ib(), "the InfiniBand part")?))
}

pub(crate) const TESTS: &[Test] = &[
    // The members of a returned path describe the port and can be used unchanged.
    test("path::members_of_a_returned_path", &["it_path_t B02 F02-F04"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let way = found(f)?;
        let ib = some(way.ib(), "the InfiniBand part")?;
        // The code of the CM messages, in which 1 means 256 bytes.
        check_eq!(128_u32 << ib.path_mtu, f.setup.a.agent.identity().mtu);
        check!(ib.packet_lifetime > 0 && ib.packet_lifetime < 64);
        // RoCE has no LIDs.
        check_eq!((ib.local_port_lid, ib.remote_port_lid), (0, 0));
        let end = f.end(&f.a, &attributes())?;
        let qual = ConnQual::port(9);
        let lid = with(&way, |ib| ib.local_port_lid = 1)?;
        let dial = f.a.ep_connect(end.ep, &lid, None, &qual, CnEstFlags::TWO_WAY, &[]);
        refused(dial, Error::InvalidSourcePath)?;
        // The consumer may derive its own timeout from the lifetime: twice the lifetime, for
        // there and back.
        let local_ack_timeout = ib.packet_lifetime + 1;
        let own = ConnAttributes { local_ack_timeout, ..ConnAttributes::default() };
        along(f, &way, Some(&own))?;
        // A path can also be used unchanged, and a query returns it.
        let (active, _, back) = along(f, &way, None)?;
        check_eq!(f.a.ep_query(active.ep, EpParamMask::PATH)?.dst_path, way);
        check_eq!((back.path_mtu, back.packet_lifetime), (ib.path_mtu, ib.packet_lifetime));
        check_eq!((back.local_port_lid, back.remote_port_lid), (0, 0));
        Ok(())
    }),
    // The members of a path reach the passive side, which sees them in its path back.
    test("path::members_that_a_request_carries", &["it_path_t F01 F02 F08-F13"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let way = found(f)?;
        // The smallest and the largest value of each member.
        for most in [false, true] {
            let own = with(&way, |ib| {
                ib.partition_key = if most { 0xffff } else { 0x7fff };
                ib.path_mtu = if most { ib.path_mtu } else { 1 };
                (ib.packet_rate, ib.sl) = if most { (63, 15) } else { (2, 1) };
                ib.flow_label = if most { (1 << 20) - 1 } else { 1 };
                (ib.traffic_class, ib.hop_limit) = if most { (255, 255) } else { (1, 2) };
            })?;
            let (_, _, back) = along(f, &own, None)?;
            let sent = *some(own.ib(), "the InfiniBand part")?;
            let (local_port_gid, remote_port_gid) = (sent.remote_port_gid, sent.local_port_gid);
            check_eq!(back, IbNetEndpoint { local_port_gid, remote_port_gid, ..sent });
        }
        // Within the subnet no GRH is needed, so the members of the GRH are ignored.
        let local = with(&way, |ib| {
            (ib.subnet_local, ib.flow_label, ib.traffic_class, ib.hop_limit) = (true, 77, 7, 9);
        })?;
        let (_, _, back) = along(f, &local, None)?;
        check!(back.subnet_local);
        check_eq!((back.flow_label, back.traffic_class), (0, 0));
        check!(back.hop_limit != 9);
        Ok(())
    }),
    // A member whose value is out of its range, and a partition that the port is not in, are
    // refused.
    test("path::members_that_do_not_fit", &["it_path_t F01 F08 F09 F11"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let (way, end) = (found(f)?, f.end(&f.a, &attributes())?);
        let listener = f.listen(&f.b)?;
        let changes: [fn(&mut IbNetEndpoint); 6] = [
            |ib| ib.partition_key = 0x1234,
            |ib| ib.path_mtu = 16,
            |ib| ib.packet_lifetime = 64,
            |ib| ib.packet_rate = 64,
            |ib| ib.sl = 16,
            |ib| ib.flow_label = 1 << 20,
        ];
        for change in changes {
            let wrong = with(&way, change)?;
            let dial = f.a.ep_connect(end.ep, &wrong, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[]);
            refused(dial, Error::InvalidSourcePath)?;
            check_eq!(end.state()?, EpStateRc::Unconnected);
        }
        Ok(())
    }),
    // A path whose own timeout is shorter than the transport's response time is refused.
    test("path::timeouts_that_do_not_fit_each_other", &["it_path_t B05 V01"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let (way, end) = (found(f)?, f.end(&f.a, &attributes())?);
        let listener = f.listen(&f.b)?;
        let dial = |timeout, remote_cm_timeout| {
            let own = ConnAttributes { remote_cm_timeout, ..ConnAttributes::default() };
            let path = Path { timeout, ..way };
            f.a.ep_connect(end.ep, &path, Some(&own), &listener.conn_qual, CnEstFlags::TWO_WAY, &[])
        };
        // A single answer may take longer than the whole attempt to connect: 4.096 us * 2^18 is
        // more than a second.
        for timeout in [0, 1, 1_000_000] {
            refused(dial(timeout, 18), Error::InvalidRtimeout)?;
            check_eq!(end.state()?, EpStateRc::Unconnected);
        }
        dial(1_100_000, 18)?;
        listener.request()?;
        Ok(())
    }),
];
