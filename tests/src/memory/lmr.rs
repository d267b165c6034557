//! Local memory regions over buffers (pages it_lmr_create, it_lmr_query, it_lmr_free,
//! it_mem_priv_t, it_addr_mode_t).

use alloc::vec::Vec;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{CONFIG, OPEN, PAGE, Region, SIGNALLED, pattern};
use crate::{Test, check, check_eq, refused, test};

/// InfiniBand's rules for the privileges of a region: local read is always granted, and remote
/// write needs local write.
fn legal(privs: MemPriv) -> bool {
    privs.contains(MemPriv::LOCAL_READ)
        && (!privs.contains(MemPriv::REMOTE_WRITE) || privs.contains(MemPriv::LOCAL_WRITE))
}

pub(crate) const TESTS: &[Test] = &[
    // A query returns what the region was created with, and only the fields that its mask names.
    test(
        "lmr::create_and_query",
        &["it_lmr_create B01 B03 B33 B34", "it_lmr_query B01 B03 F01-F06 F08 F10-F12", "A.it_lmr_query B04"],
        |f| {
            let pz = f.a.pz_create()?;
            let buffer = f.buffer(2 * PAGE)?;
            let memory = LmrMemory::Buffer { buffer: &buffer, offset: 123 };
            let (lmr, context) =
                f.a.lmr_create(pz, memory, 4567, AddrMode::Absolute, OPEN, LmrFlags::empty(), 99)?;
            let param = f.a.lmr_query(lmr, LmrParamMask::ALL)?;
            let addr = buffer.addr() + 123;
            check_eq!((param.ia, param.pz), (f.a.handle(), pz));
            check_eq!((param.addr, param.length), (addr, 4567));
            check_eq!((param.actual_addr, param.actual_length), (addr, 4567));
            check_eq!((param.privs, param.shared_id), (OPEN, 99));
            check_eq!((param.addr_mode, param.linked), (AddrMode::Absolute, true));
            check_eq!(param.rmr_context, context);
            check!(!param.flags.contains(LmrFlags::SHARED));
            let only = f.a.lmr_query(lmr, LmrParamMask::LENGTH | LmrParamMask::PZ)?;
            check_eq!(only, LmrParam { length: 4567, pz, ..LmrParam::default() });
            Ok(())
        },
    ),
    // After the free the handle is invalid, but the consumer can still use the memory.
    test(
        "lmr::free_ends_the_handle_not_the_memory",
        &["it_lmr_free B01 S01 IT_ERR_INVALID_LMR", "it_lmr_query IT_ERR_INVALID_LMR"],
        |f| {
            let pz = f.a.pz_create()?;
            let region = f.region(&f.a, pz, PAGE, OPEN)?;
            region.fill(3);
            check_eq!(f.a.object_counts().lmr, 1);
            f.a.lmr_free(region.lmr)?;
            check_eq!(f.a.object_counts().lmr, 0);
            check_eq!(region.all(), pattern(3, PAGE));
            region.fill(4);
            check_eq!(region.all(), pattern(4, PAGE));
            refused(f.a.lmr_free(region.lmr), Error::InvalidLmr)?;
            refused(f.a.lmr_query(region.lmr, LmrParamMask::ALL), Error::InvalidLmr)
        },
    ),
    // A mask with an undefined bit is refused.
    test("lmr::undefined_mask_bits", &["it_lmr_query IT_ERR_INVALID_MASK"], |f| {
        let pz = f.a.pz_create()?;
        let region = f.region(&f.a, pz, 64, OPEN)?;
        for bits in [0x8000, 0x8000_0000, u32::MAX] {
            let mask = LmrParamMask::from_bits_retain(bits);
            refused(f.a.lmr_query(region.lmr, mask), Error::InvalidMask)?;
        }
        Ok(())
    }),
    // Every combination of privileges is accepted or refused by InfiniBand's rules, and a context
    // exists exactly with remote privileges.
    test(
        "lmr::privileges",
        &[
            "it_lmr_create B15-B17 B23 B25 B31 V03 IT_ERR_INVALID_PRIVS",
            "it_lmr_query F09",
            "it_mem_priv_t B01 B02 L01",
            "it_status_t F56",
        ],
        |f| {
            let pz = f.a.pz_create()?;
            let buffer = f.buffer(PAGE)?;
            let create = |privs| {
                let memory = LmrMemory::Buffer { buffer: &buffer, offset: 0 };
                f.a.lmr_create(pz, memory, 64, AddrMode::Absolute, privs, LmrFlags::NONE, 0)
            };
            for bits in 0..0x10 {
                let privs = MemPriv::from_bits_retain(bits);
                if !legal(privs) {
                    refused(create(privs), Error::InvalidPrivs)?;
                    continue;
                }
                let (lmr, context) = create(privs)?;
                check_eq!(context.is_some(), privs.intersects(MemPriv::REMOTE), "context with {privs:?}");
                let param = f.a.lmr_query(lmr, LmrParamMask::MEM_PRIV | LmrParamMask::RMR_CONTEXT)?;
                check_eq!((param.privs, param.rmr_context), (privs, context));
                f.a.lmr_free(lmr)?;
            }
            for bits in [0x20, 0x43, 0x8000_0003, u32::MAX] {
                refused(create(MemPriv::from_bits_retain(bits)), Error::InvalidPrivs)?;
            }
            check_eq!(f.a.object_counts().lmr, 0);
            check_eq!(Error::InvalidPrivs as u32, 55);
            Ok(())
        },
    ),
    // IT_PRIV_ALL is accepted, although it includes atomics.
    test("lmr::all_privileges_at_once", &["it_mem_priv_t F08 V01"], |f| {
        check_eq!(MemPriv::ALL.bits(), 0x1f);
        let pz = f.a.pz_create()?;
        let region = f.region(&f.a, pz, 64, MemPriv::ALL)?;
        check!(region.context.is_some());
        Ok(())
    }),
    // Flags are accepted alone and combined; undefined bits are refused.
    test("lmr::flags", &["it_lmr_create F03 O02 V07 IT_ERR_INVALID_FLAGS", "it_status_t F41"], |f| {
        let pz = f.a.pz_create()?;
        let buffer = f.buffer(PAGE)?;
        let create = |flags| {
            let memory = LmrMemory::Buffer { buffer: &buffer, offset: 0 };
            f.a.lmr_create(pz, memory, 64, AddrMode::Absolute, OPEN, flags, 0)
        };
        for flags in [
            LmrFlags::empty(),
            LmrFlags::NONE,
            LmrFlags::NONCOHERENT,
            LmrFlags::NON_SHAREABLE,
            LmrFlags::NONE | LmrFlags::NONCOHERENT | LmrFlags::NON_SHAREABLE,
        ] {
            let (lmr, _) = create(flags)?;
            f.a.lmr_free(lmr)?;
        }
        for bits in [0x10, 0x8000_0001, u32::MAX] {
            refused(create(LmrFlags::from_bits_retain(bits)), Error::InvalidFlags)?;
        }
        check_eq!(f.a.object_counts().lmr, 0);
        check_eq!(Error::InvalidFlags as u32, 40);
        Ok(())
    }),
    // A region is shared only with one of the same memory, length and identifier, and never with
    // one that is not shareable.
    test("lmr::sharing", &["it_lmr_create B19 B20 F04 F06", "it_lmr_query F07"], |f| {
        let pz = f.a.pz_create()?;
        let (buffer, other) = (f.buffer(PAGE)?, f.buffer(PAGE)?);
        let create = |buffer, length, flags, id| {
            let memory = LmrMemory::Buffer { buffer, offset: 0 };
            f.a.lmr_create(pz, memory, length, AddrMode::Absolute, OPEN, flags, id).map(|(lmr, _)| lmr)
        };
        let shared = |lmr| {
            let flags = f.a.lmr_query(lmr, LmrParamMask::FLAG).map(|param| param.flags);
            flags.map(|flags| flags.contains(LmrFlags::SHARED))
        };
        let original = create(&buffer, 64, LmrFlags::SHARED, 1)?;
        check!(!shared(original)?, "shared with no other region");
        let unlike = [
            create(&buffer, 64, LmrFlags::SHARED, 2)?,
            create(&buffer, 65, LmrFlags::SHARED, 1)?,
            create(&other, 64, LmrFlags::SHARED, 1)?,
        ];
        for lmr in unlike.into_iter().chain([original]) {
            check!(!shared(lmr)?, "shared with a region of another id, length or memory");
        }
        let matching = create(&buffer, 64, LmrFlags::SHARED, 1)?;
        check!(matching != original, "both regions have one handle");
        check!(shared(matching)? && shared(original)?);
        let non_shareable = create(&other, 128, LmrFlags::NON_SHAREABLE, 3)?;
        let candidate = create(&other, 128, LmrFlags::SHARED, 3)?;
        check!(!shared(non_shareable)? && !shared(candidate)?);
        f.a.lmr_free(original)?;
        check!(shared(matching)?, "the query does not say that the region was shared");
        Ok(())
    }),
    // A range that does not lie within its buffer is refused.
    test("lmr::memory_that_is_not_there", &["it_lmr_create B02 IT_ERR_FAULT", "it_status_t F16"], |f| {
        let pz = f.a.pz_create()?;
        let buffer = f.buffer(PAGE)?;
        let create = |offset, length| {
            let memory = LmrMemory::Buffer { buffer: &buffer, offset };
            f.a.lmr_create(pz, memory, length, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0)
        };
        let size = PAGE as u64;
        for (offset, length) in
            [(0, size + 1), (1, size), (PAGE, 1), (PAGE + 1, 1), (usize::MAX, 1), (usize::MAX, size)]
        {
            refused(create(offset, length), Error::Fault)?;
        }
        check_eq!(f.a.object_counts().lmr, 0);
        create(0, size)?;
        create(PAGE - 1, 1)?;
        check_eq!(Error::Fault as u32, 15);
        Ok(())
    }),
    // Null, freed, foreign and made-up zones are refused.
    test("lmr::bad_zone", &["it_lmr_create IT_ERR_INVALID_PZ", "it_status_t F57"], |f| {
        let buffer = f.buffer(PAGE)?;
        let freed = f.a.pz_create()?;
        f.a.pz_free(freed)?;
        let memory = LmrMemory::Buffer { buffer: &buffer, offset: 0 };
        for pz in [PzHandle::NULL, freed, f.b.pz_create()?, PzHandle::from_raw(u64::MAX)] {
            let created = f.a.lmr_create(pz, memory, 64, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0);
            refused(created, Error::InvalidPz)?;
        }
        check_eq!(Error::InvalidPz as u32, 56);
        Ok(())
    }),
    // Freeing one of two overlapping regions does not affect the other one.
    test("lmr::regions_may_overlap", &["it_lmr_create B29", "it_lmr_free B03"], |f| {
        let pair = f.pair()?;
        let buffer = f.buffer(2 * PAGE)?;
        let create = |offset| {
            let memory = LmrMemory::Buffer { buffer: &buffer, offset };
            f.b.lmr_create(pair.b.pz, memory, PAGE as u64, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0)
        };
        let ((first, _), (second, context)) = (create(0)?, create(PAGE / 2)?);
        check!(first != second);
        f.b.lmr_free(first)?;
        // The other region still works, also in the part that both covered.
        let source = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        source.fill(5);
        let target = make_rdma_addr_absolute(buffer.addr() + PAGE / 2);
        let context = some(context, "a context")?;
        f.a.post_rdma_write(pair.a.ep, &[source.whole()], 1, SIGNALLED, target, context)?;
        pair.a.done(1, DtoStatus::Success)?;
        check!(f.arrives(|| crate::fixture::read(&buffer, PAGE / 2, PAGE) == source.all()));
        Ok(())
    }),
    // Segments of an absolutely addressed region are addressed by their virtual addresses.
    test(
        "lmr::absolute_addresses",
        &["it_lmr_create F01", "it_addr_mode_t B01 F01", "it_lmr_triplet_t F01 F02 F05"],
        |f| {
            let pair = f.pair()?;
            let (source, sink) =
                (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
            source.fill(6);
            check_eq!(AddrMode::Absolute as u32, 0);
            f.b.post_recv(pair.b.ep, &[sink.segment(100, 50)], 1, DtoFlags::COMPLETION)?;
            let segment = LmrTriplet { lmr: source.lmr, addr: (source.buffer.addr() + 7) as u64, length: 50 };
            f.a.post_send(pair.a.ep, &[segment], 2, SIGNALLED)?;
            pair.b.recv_done(1, DtoStatus::Success)?;
            pair.a.done(2, DtoStatus::Success)?;
            check_eq!(sink.bytes(100, 50), source.bytes(7, 50));
            Ok(())
        },
    ),
    // Segments and remote addresses of a relatively addressed region are offsets from its first
    // byte.
    test(
        "lmr::relative_addresses",
        &[
            "A.it_lmr_create B01",
            "it_lmr_create F02",
            "it_addr_mode_t B03 F02 O01",
            "it_ia_info_t F63",
            "it_lmr_triplet_t B01 F03",
            "it_make_rdma_addr_relative B01",
            "G.1 F09",
            "it_lmr_query F12",
        ],
        |f| {
            check!(f.a.ia_query()?.addr_mode_relative_support);
            check_eq!(AddrMode::Relative as u32, 1);
            let pair = f.pair()?;
            let create = |ia: &Ia, pz, buffer| {
                let memory = LmrMemory::Buffer { buffer, offset: 64 };
                ia.lmr_create(pz, memory, 1000, AddrMode::Relative, OPEN, LmrFlags::NONE, 0)
            };
            let (from, to) = (f.buffer(PAGE)?, f.buffer(PAGE)?);
            crate::fixture::write(&from, 64, &pattern(7, 1000));
            let ((source, _), (sink, context)) =
                (create(&f.a, pair.a.pz, &from)?, create(&f.b, pair.b.pz, &to)?);
            let param = f.b.lmr_query(sink, LmrParamMask::ALL)?;
            check_eq!(param.addr_mode, AddrMode::Relative);
            check_eq!((param.addr, param.length), (to.addr() + 64, 1000));
            // A Send from offset 3 to a Receive at offset 500.
            f.b.post_recv(pair.b.ep, &[LmrTriplet::new(sink, 500, 20)], 1, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[LmrTriplet::new(source, 3, 20)], 2, SIGNALLED)?;
            pair.b.recv_done(1, DtoStatus::Success)?;
            pair.a.done(2, DtoStatus::Success)?;
            check_eq!(crate::fixture::read(&to, 64 + 500, 20), pattern(7, 1000)[3..23]);
            // A write to offset 990, the last ten bytes of the region.
            let context = some(context, "a context")?;
            let target = make_rdma_addr_relative(990);
            f.a.post_rdma_write(pair.a.ep, &[LmrTriplet::new(source, 0, 10)], 3, SIGNALLED, target, context)?;
            pair.a.done(3, DtoStatus::Success)?;
            check!(f.arrives(|| crate::fixture::read(&to, 64 + 990, 10) == pattern(7, 10)));
            // A read of these ten bytes.
            f.a.post_rdma_read(pair.a.ep, &[LmrTriplet::new(source, 20, 10)], 4, SIGNALLED, target, context)?;
            pair.a.done(4, DtoStatus::Success)?;
            check_eq!(crate::fixture::read(&from, 64 + 20, 10), pattern(7, 10));
            Ok(())
        },
    ),
    // Remote addresses are in network byte order, so that consumers of any byte order can exchange
    // them.
    test(
        "lmr::rdma_addresses_are_in_network_order",
        &[
            "it_make_rdma_addr_absolute B01 B03-B05 F01",
            "it_make_rdma_addr_relative V01",
            "it_hton64 B01 B02 B04",
        ],
        |_| {
            for value in [0_u64, 1, 0x0123_4567_89ab_cdef, u64::MAX, 1 << 63] {
                check_eq!(make_rdma_addr_absolute(value as usize).0.to_ne_bytes(), value.to_be_bytes());
                check_eq!(make_rdma_addr_relative(value).0.to_ne_bytes(), value.to_be_bytes());
                check_eq!(hton64(value).to_ne_bytes(), value.to_be_bytes());
                check_eq!(ntoh64(hton64(value)), value);
                check_eq!(hton64(ntoh64(value)), value);
            }
            let moved = RdmaAddr(hton64(ntoh64(make_rdma_addr_absolute(0x1000).0) + 5));
            check_eq!(moved, make_rdma_addr_absolute(0x1005));
            Ok(())
        },
    ),
    // A write through the context of a freed region fails and changes nothing.
    test("lmr::freeing_ends_remote_access", &["it_lmr_create B27"], |f| {
        let pair = f.pair()?;
        let (source, sink) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, OPEN)?);
        source.fill(8);
        let context = sink.context()?;
        f.b.lmr_free(sink.lmr)?;
        f.a.post_rdma_write(pair.a.ep, &[source.whole()], 1, SIGNALLED, sink.remote(0), context)?;
        pair.a.done(1, DtoStatus::RemoteAccess)?;
        sink.untouched()
    }),
    // If a key were reused with the same variant, a stale context would reach the new region.
    test(
        "lmr::a_new_region_does_not_answer_to_an_old_context",
        &["it_lmr_create B27", "A.it_lmr_modify V01"],
        |f| {
            let pair = f.pair()?;
            let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let old = f.region(&f.b, pair.b.pz, 64, OPEN)?;
            let context = old.context()?;
            f.b.lmr_free(old.lmr)?;
            // Register the same memory more often than there are keys. No registration may get the
            // old context.
            for _ in 0..2 * CONFIG.max_keys {
                let memory = LmrMemory::Buffer { buffer: &old.buffer, offset: 0 };
                let (lmr, new) =
                    f.b.lmr_create(pair.b.pz, memory, 64, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0)?;
                check!(new != Some(context), "the context came back");
                f.b.lmr_free(lmr)?;
            }
            f.region(&f.b, pair.b.pz, 64, OPEN)?;
            f.a.post_rdma_read(pair.a.ep, &[source.whole()], 1, SIGNALLED, old.remote(0), context)?;
            pair.a.done(1, DtoStatus::RemoteAccess)
        },
    ),
    // A read that begins one byte before the region or ends one byte behind it fails.
    test(
        "lmr::bounds_are_exact_to_the_byte",
        &["it_lmr_create O03", "it_lmr_query B02 O02", "A.it_lmr_query B02 V01"],
        |f| {
            let buffer = f.buffer(PAGE)?;
            crate::fixture::write(&buffer, 0, &pattern(9, PAGE));
            for (offset, length, fits) in [
                (100, 200, true),
                (99, 200, false),
                (99, 1, false),
                (100, 201, false),
                (300, 1, false),
                (299, 1, true),
            ] {
                let pair = f.pair()?;
                let memory = LmrMemory::Buffer { buffer: &buffer, offset: 100 };
                let (lmr, context) =
                    f.b.lmr_create(pair.b.pz, memory, 200, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0)?;
                // The range that a query returns is the range that is enforced.
                let param = f.b.lmr_query(lmr, LmrParamMask::ACTUAL_ADDR | LmrParamMask::ACTUAL_LENGTH)?;
                check_eq!((param.actual_addr, param.actual_length), (buffer.addr() + 100, 200));
                let sink = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
                let from = make_rdma_addr_absolute(buffer.addr() + offset);
                let context = some(context, "a context")?;
                f.a.post_rdma_read(pair.a.ep, &[sink.segment(0, length)], 1, SIGNALLED, from, context)?;
                let status = if fits { DtoStatus::Success } else { DtoStatus::RemoteAccess };
                let done = pair.a.reap()?;
                check_eq!(done.dto_status, status, "{length} bytes from {offset}");
                f.b.lmr_free(lmr)?;
            }
            Ok(())
        },
    ),
    // For each set of privileges, exactly the permitted local and remote accesses succeed.
    test("lmr::access_by_privilege", &["it_mem_priv_t F01-F06"], |f| {
        check_eq!((MemPriv::LOCAL_READ.bits(), MemPriv::LOCAL_WRITE.bits()), (1, 2));
        check_eq!((MemPriv::REMOTE_READ.bits(), MemPriv::REMOTE_WRITE.bits()), (4, 8));
        check_eq!((MemPriv::LOCAL.bits(), MemPriv::REMOTE.bits()), (3, 12));
        let read_only = MemPriv::LOCAL_READ;
        // No region is without local read.
        let (pz, buffer) = (f.b.pz_create()?, f.buffer(64)?);
        for privs in [MemPriv::LOCAL_WRITE, MemPriv::REMOTE_READ, OPEN - MemPriv::LOCAL_READ] {
            let (memory, mode) = (LmrMemory::buffer(&buffer), AddrMode::Absolute);
            let created = f.b.lmr_create(pz, memory, 64, mode, privs, LmrFlags::NONE, 0);
            refused(created, Error::InvalidPrivs)?;
        }
        for (privs, can_receive, can_be_read, can_be_written) in [
            (read_only, false, false, false),
            (MemPriv::LOCAL, true, false, false),
            (read_only | MemPriv::REMOTE_READ, false, true, false),
            (MemPriv::LOCAL | MemPriv::REMOTE_READ, true, true, false),
            (MemPriv::LOCAL | MemPriv::REMOTE_WRITE, true, false, true),
            (OPEN, true, true, true),
        ] {
            let status = |may, or_else| if may { DtoStatus::Success } else { or_else };
            // Local read is always granted, so a Send can use the region.
            let pair = f.pair()?;
            let (own, peer) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, privs)?);
            f.a.post_recv(pair.a.ep, &[own.whole()], 1, DtoFlags::COMPLETION)?;
            f.b.post_send(pair.b.ep, &[peer.whole()], 2, SIGNALLED)?;
            pair.a.recv_done(1, DtoStatus::Success)?;
            pair.b.done(2, DtoStatus::Success)?;
            // A Write can use it, too.
            let (at, context) = (own.remote(0), own.context()?);
            f.b.post_rdma_write(pair.b.ep, &[peer.whole()], 2, SIGNALLED, at, context)?;
            pair.b.done(2, DtoStatus::Success)?;
            f.b.post_recv(pair.b.ep, &[peer.whole()], 3, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[own.whole()], 4, SIGNALLED)?;
            pair.b.recv_done(3, status(can_receive, DtoStatus::LocalProtection))?;
            // A region without remote privileges has no context.
            let Some(context) = peer.context else {
                check!(!can_be_read && !can_be_written);
                continue;
            };
            let pair = f.pair()?;
            let (own, peer) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, privs)?);
            check!(peer.context()? != context);
            let (addr, context) = (peer.remote(0), peer.context()?);
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 5, SIGNALLED, addr, context)?;
            pair.a.done(5, status(can_be_read, DtoStatus::RemoteAccess))?;
            let pair = f.pair()?;
            let (own, peer) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, privs)?);
            own.fill(1);
            let (addr, context) = (peer.remote(0), peer.context()?);
            f.a.post_rdma_write(pair.a.ep, &[own.whole()], 6, SIGNALLED, addr, context)?;
            pair.a.done(6, status(can_be_written, DtoStatus::RemoteAccess))?;
            match can_be_written {
                true => check!(f.arrives(|| peer.all() == own.all())),
                false => peer.untouched()?,
            }
        }
        Ok(())
    }),
    // Creating regions fails with IT_ERR_RESOURCES at some point, and works again after one is
    // freed.
    test("lmr::regions_run_out_and_come_back", &["it_lmr_create IT_ERR_RESOURCES", "it_status_t F90"], |f| {
        let pz = f.a.pz_create()?;
        let buffer = f.buffer(64)?;
        let create = || {
            let memory = LmrMemory::Buffer { buffer: &buffer, offset: 0 };
            f.a.lmr_create(pz, memory, 64, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0)
        };
        let mut regions = Vec::new();
        let refusal = loop {
            match create() {
                Ok((lmr, context)) => regions.push((lmr, context)),
                Err(error) => break error,
            }
            check!(regions.len() <= CONFIG.max_keys as usize, "{} regions", regions.len());
        };
        check_eq!(refusal, Error::Resources);
        check_eq!(Error::Resources as u32, 89);
        check!(regions.len() > 16, "only {} regions", regions.len());
        let mut contexts: Vec<_> = regions.iter().filter_map(|(_, context)| context.map(|c| c.0)).collect();
        contexts.sort_unstable();
        contexts.dedup();
        check_eq!(contexts.len(), regions.len(), "distinct contexts");
        let (one, _) = regions[regions.len() / 2];
        f.a.lmr_free(one)?;
        create()?;
        refused(create(), Error::Resources)
    }),
    // The region itself keeps its memory allocated, so the device never reaches memory of another
    // use.
    test("lmr::memory_stays_while_the_region_does", &["it_lmr_create B04"], |f| {
        let pair = f.pair()?;
        let source = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        source.fill(2);
        let Region { buffer, lmr: _, context } = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        let target = make_rdma_addr_absolute(buffer.addr());
        // The consumer drops its reference to the buffer. The region's reference keeps the memory
        // for the device.
        drop(buffer);
        let context = some(context, "a context")?;
        f.a.post_rdma_write(pair.a.ep, &[source.whole()], 1, SIGNALLED, target, context)?;
        pair.a.done(1, DtoStatus::Success)?;
        let copy = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        f.a.post_rdma_read(pair.a.ep, &[copy.whole()], 2, SIGNALLED, target, context)?;
        pair.a.done(2, DtoStatus::Success)?;
        check_eq!(copy.all(), source.all());
        Ok(())
    }),
];
