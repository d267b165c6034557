//! Data transfer from and to bus addresses with the direct LMR handle (pages it_post_send,
//! it_post_recv, it_post_rdma_write, it_post_rdma_read).

use privileged_api::*;

use crate::data::transfer::{Way, post};
use crate::fixture::{OPEN, PAGE, SIGNALLED, attributes, pattern};
use crate::{Test, check, check_eq, test};

pub(crate) const TESTS: &[Test] = &[
    // With the direct handle, a privileged endpoint can name bus addresses as source and sink.
    test(
        "data::direct_handle",
        &[
            "it_post_send B07",
            "it_post_recv B07",
            "it_post_rdma_write B07",
            "it_ia_info_t F71 F72",
            "it_lmr_triplet_t B01 F04",
            "it_io_addr_t B01",
        ],
        |f| {
            let info = f.a.ia_query()?;
            check!(info.direct_lmr_handle_support);
            check_eq!(info.direct_lmr_handle, LmrHandle::DIRECT);
            let pair = f.pair()?;
            let (from, to) = (f.buffer(PAGE)?, f.buffer(PAGE)?);
            crate::fixture::write(&from, 0, &pattern(7, PAGE));
            let (source, sink) =
                (crate::memory::iobl::map(&f.a, &from)?, crate::memory::iobl::map(&f.b, &to)?);
            f.b.post_recv(pair.b.ep, &[LmrTriplet::direct(sink, PAGE as u64)], 1, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[LmrTriplet::direct(IoAddr(source.0 + 3), 1000)], 2, SIGNALLED)?;
            pair.b.recv_done(1, DtoStatus::Success)?;
            pair.a.done(2, DtoStatus::Success)?;
            check!(crate::fixture::read(&to, 0, 1000) == pattern(7, PAGE)[3..1003]);
            let region = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
            let target = (region.remote(0), region.context()?);
            // Direct segments and segments of a region can be mixed.
            let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            own.fill(8);
            let segments = [own.segment(0, 10), LmrTriplet::direct(source, 20), own.segment(20, 5)];
            post(&pair.a, Way::Write, &segments, 3, SIGNALLED, target)?;
            pair.a.done(3, DtoStatus::Success)?;
            let expected = [own.bytes(0, 10), pattern(7, PAGE)[..20].to_vec(), own.bytes(20, 5)].concat();
            check!(f.arrives(|| region.bytes(0, 35) == expected));
            Ok(())
        },
    ),
    // A read into a bus address fails, even on a privileged endpoint, in whichever segment it
    // stands.
    test("data::direct_handle_is_no_sink_of_a_read", &["it_post_rdma_read A24 B08"], |f| {
        let buffer = f.buffer(PAGE)?;
        let sink = crate::memory::iobl::map(&f.a, &buffer)?;
        for at in 0..3 {
            let pair = f.pair()?;
            let source = f.region(&f.b, pair.b.pz, 64, OPEN)?;
            let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            source.fill(1);
            let from = (source.remote(0), source.context()?);
            let mut segments = [own.segment(0, 16), own.segment(16, 16), own.segment(32, 16)];
            segments[at] = LmrTriplet::direct(sink, 16);
            post(&pair.a, Way::Read, &segments, 1, SIGNALLED, from)?;
            pair.a.done(1, DtoStatus::LocalProtection)?;
            pair.a.broken()?;
            check!(crate::fixture::read(&buffer, 0, PAGE).iter().all(|&byte| byte == 0));
        }
        Ok(())
    }),
    // On an unprivileged endpoint, a request with the direct handle fails.
    test(
        "data::direct_handle_on_unprivileged_endpoints",
        &[
            "it_post_send A13",
            "it_post_rdma_write A16",
            "it_post_recv A13",
            "it_dto_status_t A08",
            "4.10 B04 B05",
        ],
        |f| {
            let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
            let buffer = f.buffer(PAGE)?;
            let io_addr = crate::memory::iobl::map(&f.a, &buffer)?;
            let segment = [LmrTriplet::direct(io_addr, 64)];
            for way in [Way::Send, Way::Write, Way::Recv] {
                let pair = f.pair_of(&plain, &attributes())?;
                let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                peer.fill(1);
                // Requests that need no privilege complete on this endpoint.
                let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
                post(&pair.a, Way::Write, &[own.whole()], 1, SIGNALLED, (peer.remote(0), peer.context()?))?;
                let status = pair.a.settled(pair.a.reap()?.dto_status)?;
                check_eq!(status, DtoStatus::Success);
                peer.fill(1);
                f.b.post_recv(pair.b.ep, &[peer.whole()], 2, DtoFlags::COMPLETION)?;
                post(&pair.a, way, &segment, 3, SIGNALLED, (peer.remote(0), peer.context()?))?;
                if way == Way::Recv {
                    f.b.post_send(pair.b.ep, &[peer.whole()], 4, SIGNALLED)?;
                    pair.a.recv_done(3, DtoStatus::LocalProtection)?;
                } else {
                    pair.a.done(3, DtoStatus::LocalProtection)?;
                }
                pair.a.broken()?;
                check!(peer.all() == pattern(1, 64));
                check!(crate::fixture::read(&buffer, 0, PAGE).iter().all(|&byte| byte == 0));
            }
            Ok(())
        },
    ),
    // A peer cannot use the key behind the direct handle to reach memory.
    test("data::the_reserved_key_is_no_context", &["1 B04"], |f| {
        for way in [Way::Write, Way::Read] {
            let pair = f.pair()?;
            let buffer = f.buffer(PAGE)?;
            let target = crate::memory::iobl::map(&f.b, &buffer)?;
            let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            own.fill(1);
            let to = (RdmaAddr(hton64(target.0)), RmrContext(0));
            post(&pair.a, way, &[own.whole()], 1, SIGNALLED, to)?;
            pair.a.done(1, DtoStatus::RemoteAccess)?;
            check!(crate::fixture::read(&buffer, 0, PAGE).iter().all(|&byte| byte == 0));
        }
        Ok(())
    }),
];
