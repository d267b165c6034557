//! Protection zones and local memory regions: creation, queries, frees, and the memory that
//! requests can access.

use alloc::vec::Vec;
use core::result::Result;

use dat::*;

use super::events::{invalid, parameter, state};
use super::srq::reconnect;
use super::world::*;
use crate::fixture::{PAGE, pattern};
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

/// Constants that a region covers.
static CONSTANTS: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = (at as u8).wrapping_mul(7).wrapping_add(3);
        at += 1;
    }
    bytes
};

const LOCAL: MemPriv = MemPriv::LOCAL_READ.union(MemPriv::LOCAL_WRITE);
/// The error of a handle that is not a zone's.
const NO_PZ: Error = invalid(Subtype::InvalidHandlePz);
/// The error of a handle that is not a region's.
const NO_LMR: Error = invalid(Subtype::InvalidHandleLmr);

/// Checks that a query of a region returns what its creation returned and what it was made of.
#[track_caller]
fn query_of(ia: &Ia, lmr: &Lmr, expected: &LmrParam) -> Outcome {
    let param = ia.lmr_query(lmr.lmr_handle)?;
    let of_creation = LmrParam {
        ia_handle: ia.handle(),
        lmr_context: lmr.lmr_context,
        rmr_context: lmr.rmr_context,
        registered_size: lmr.registered_size,
        registered_address: lmr.registered_address,
        ..*expected
    };
    check_eq!(param, of_creation);
    let (first, end) = (param.address as u64, param.address as u64 + param.length);
    let registered = param.registered_address..=param.registered_address + param.registered_size;
    check!(registered.contains(&first) && registered.contains(&end), "{param:?}");
    Ok(())
}

/// Sends from a segment of one endpoint to a segment of the other.
#[track_caller]
fn transfer(from: &End, source: LmrTriplet, to: &End, sink: LmrTriplet) -> Outcome {
    to.receive(&[sink], 1)?;
    from.send(&[source], 2)?;
    from.done(2, DtoStatus::Success)?;
    to.received(1, DtoStatus::Success)?;
    Ok(())
}

/// The remote memory at `address` in a region.
#[track_caller]
fn place(lmr: &Lmr, address: u64, segment_length: u64) -> Result<RmrTriplet, Failure> {
    let rmr_context = some(lmr.rmr_context, "a remote context")?;
    Ok(RmrTriplet { rmr_context, target_address: address, segment_length })
}

pub(crate) const TESTS: &[Test] = &[
    // A zone is busy while an object of any kind is in it.
    test("dat_memory::zones", &[], |f| {
        world(f, |w| {
            let (pz, busy) = (w.a.pz_create()?, state(Subtype::InvalidStatePzInUse));
            check_eq!(w.a.pz_query(pz)?.ia_handle, w.a.handle());
            let (dto, connect) = (evd(&w.a, EvdFlags::DTO)?, evd(&w.a, EvdFlags::CONNECTION)?);
            let ep = w.a.ep_create(pz, dto, dto, connect, None)?;
            refused(w.a.pz_free(pz), busy)?;
            w.a.ep_free(ep)?;
            let region = w.region_in(&w.a, pz, PAGE, OPEN)?;
            refused(w.a.pz_free(pz), busy)?;
            w.a.lmr_free(region.lmr.lmr_handle)?;
            let rmr = w.a.rmr_create(pz)?;
            refused(w.a.pz_free(pz), busy)?;
            w.a.rmr_free(rmr)?;
            let srq = w.a.srq_create(pz, &SrqAttr::default())?;
            refused(w.a.pz_free(pz), busy)?;
            check_eq!(w.a.pz_query(pz)?.ia_handle, w.a.handle());
            w.a.srq_free(srq)?;
            w.a.pz_free(pz)?;
            let foreign = w.b.pz_create()?;
            for bad in [PzHandle::NULL, pz, foreign, PzHandle::from_raw(dto.as_raw())] {
                refused(w.a.pz_query(bad), NO_PZ)?;
                refused(w.a.pz_free(bad), NO_PZ)?;
            }
            Ok(w.b.pz_free(foreign)?)
        })
    }),
    // A region of each kind of memory: a buffer, a part of it, constants, the memory of another
    // region.
    test("dat_memory::each_kind_of_region", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair()?;
            let (buffer, sink) = (w.f.buffer(2 * PAGE)?, w.region(&b, PAGE, OPEN)?);
            let create = |memory, length, privs| w.a.lmr_create(memory, length, a.pz, privs, VaType::Va);
            let base = buffer.addr();
            let of = |address, length, mem_priv| LmrParam {
                address,
                length,
                mem_priv,
                pz_handle: a.pz,
                va_type: VaType::Va,
                mem_type: MemType::Virtual,
                ..LmrParam::default()
            };
            let bytes = pattern(4, 2 * PAGE);
            crate::fixture::write(&buffer, 0, &bytes);
            let whole = create(RegionDescription::buffer(&buffer), 2 * PAGE as u64, OPEN)?;
            query_of(&w.a, &whole, &of(base, 2 * PAGE as u64, OPEN))?;
            check_eq!(w.a.get_handle_type(whole.lmr_handle)?, HandleType::Lmr);
            // A part that begins and ends within a page, without remote privileges.
            let memory = RegionDescription::Buffer { buffer: &buffer, offset: 100 };
            let part = create(memory, 77, LOCAL)?;
            query_of(&w.a, &part, &of(base + 100, 77, LOCAL))?;
            check_eq!(part.rmr_context, None);
            // The machine may keep constants in memory that devices cannot access.
            let at = CONSTANTS.as_ptr().addr();
            let constants = create(RegionDescription::Static(&CONSTANTS), 200, MemPriv::LOCAL_READ);
            let constants = match w.f.platform().translate(at) {
                Some(_) => Some(constants?),
                None => {
                    refused(constants, parameter(Subtype::InvalidArg3))?;
                    None
                }
            };
            if let Some(constants) = &constants {
                query_of(&w.a, constants, &of(at, 200, MemPriv::LOCAL_READ))?;
            }
            // The memory of the partial region, with other privileges, and shorter.
            let privs = LOCAL | MemPriv::REMOTE_READ;
            let shared = create(RegionDescription::Lmr(part.lmr_handle), 50, privs)?;
            let expected = LmrParam { mem_type: MemType::Lmr, ..of(base + 100, 50, privs) };
            query_of(&w.a, &shared, &expected)?;
            let contexts = [whole, part, shared].map(|lmr| lmr.lmr_context);
            check!((1..3).all(|n| !contexts[..n].contains(&contexts[n])), "{contexts:?}");
            let mut cases = Vec::from([
                (whole, base, 2 * PAGE - 64, &bytes[..]),
                (part, base + 100, 0, &bytes[100..177]),
                (shared, base + 100, 0, &bytes[100..150]),
            ]);
            cases.extend(constants.map(|lmr| (lmr, at, 100, &CONSTANTS[..200])));
            for (lmr, at, offset, content) in cases {
                let content = &content[offset..(offset + 100).min(content.len())];
                let source = LmrTriplet::new(lmr.lmr_context, (at + offset) as u64, content.len() as u64);
                transfer(&a, source, &b, sink.segment(0, 100))?;
                check_eq!(&sink.bytes(0, content.len()), content);
            }
            // A region keeps the memory allocated, and works after the region whose memory it
            // shares is freed.
            for lmr in [whole, part] {
                w.a.lmr_free(lmr.lmr_handle)?;
            }
            drop(buffer);
            let from = place(&shared, base as u64 + 100, 50)?;
            w.b.ep_post_rdma_read(b.ep, &[sink.segment(512, 50)], 5, &from, PLAIN)?;
            b.done(5, DtoStatus::Success)?;
            check_eq!(sink.bytes(512, 50), bytes[100..150].to_vec());
            Ok(())
        })
    }),
    // Requests access a region from its first byte to its last, nothing before or after it, and
    // only as its privileges allow.
    test("dat_memory::bounds_and_privileges", &[], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            let buffer = w.f.buffer(PAGE)?;
            let base = buffer.addr() as u64;
            let make = |privs| {
                let memory = RegionDescription::Buffer { buffer: &buffer, offset: 64 };
                w.b.lmr_create(memory, 128, b.pz, privs, VaType::Va)
            };
            own.fill(6);
            let open = make(OPEN)?;
            let write =
                |to: &RmrTriplet, len| w.a.ep_post_rdma_write(a.ep, &[own.segment(0, len)], 1, to, PLAIN);
            write(&place(&open, base + 64, 128)?, 128)?;
            a.done(1, DtoStatus::Success)?;
            check_eq!(crate::fixture::read(&buffer, 64, 128), own.bytes(0, 128));
            let written = crate::fixture::read(&buffer, 0, PAGE);
            let (reads, writes) = (make(LOCAL | MemPriv::REMOTE_READ)?, make(LOCAL | MemPriv::REMOTE_WRITE)?);
            let outside = [(base + 63, 8), (base + 185, 8), (base + 64, 129), (base + 192, 1), (u64::MAX, 2)];
            let mut to = Vec::new();
            for (at, len) in outside {
                to.push((place(&open, at, len)?, len as usize));
            }
            to.push((place(&reads, base + 64, 8)?, 8));
            for (to, len) in to {
                write(&to, len)?;
                a.done(1, DtoStatus::RemoteAccess)?;
                reconnect(w, &a, &b)?;
            }
            let from = place(&writes, base + 64, 8)?;
            w.a.ep_post_rdma_read(a.ep, &[own.segment(0, 8)], 2, &from, PLAIN)?;
            a.done(2, DtoStatus::RemoteAccess)?;
            // On this side: outside the region, and as a sink without the privilege.
            let read_only = make(MemPriv::LOCAL_READ)?;
            let segment = |lmr: &Lmr, at, len| LmrTriplet::new(lmr.lmr_context, at, len);
            for source in [segment(&open, base + 63, 8), segment(&open, base + 185, 8)] {
                reconnect(w, &a, &b)?;
                b.send(&[source], 3)?;
                b.done(3, DtoStatus::LocalProtection)?;
            }
            reconnect(w, &a, &b)?;
            b.receive(&[segment(&read_only, base + 64, 8)], 4)?;
            a.send(&[own.segment(0, 8)], 5)?;
            b.received(4, DtoStatus::LocalProtection)?;
            check!(completion(&w.a, a.request)?.0.status != DtoStatus::Success);
            // Neither context of a freed region gives access to memory.
            w.b.lmr_free(open.lmr_handle)?;
            reconnect(w, &a, &b)?;
            write(&place(&open, base + 64, 8)?, 8)?;
            a.done(1, DtoStatus::RemoteAccess)?;
            reconnect(w, &a, &b)?;
            b.send(&[segment(&open, base + 64, 8)], 6)?;
            b.done(6, DtoStatus::LocalProtection)?;
            check_eq!(crate::fixture::read(&buffer, 0, PAGE), written);
            far.untouched()
        })
    }),
    // Addresses in a zero-based region begin at 0, for both sides.
    test("dat_memory::zero_based_regions", &[], |f| {
        world(f, |w| {
            let (_, attr, _) = w.a.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
            check!(some(attr, "the IA's attributes")?.zb_supported);
            let (a, b, own, _) = w.open_pair()?;
            let buffer = w.f.buffer(PAGE)?;
            let memory = RegionDescription::Buffer { buffer: &buffer, offset: 256 };
            let based = w.b.lmr_create(memory, 128, b.pz, OPEN, VaType::Zb)?;
            let expected = LmrParam {
                address: buffer.addr() + 256,
                length: 128,
                mem_priv: OPEN,
                pz_handle: b.pz,
                va_type: VaType::Zb,
                mem_type: MemType::Virtual,
                ..LmrParam::default()
            };
            query_of(&w.b, &based, &expected)?;
            own.fill(8);
            let to = place(&based, 0, 128)?;
            w.a.ep_post_rdma_write(a.ep, &[own.segment(0, 128)], 1, &to, PLAIN)?;
            a.done(1, DtoStatus::Success)?;
            check_eq!(crate::fixture::read(&buffer, 256, 128), own.bytes(0, 128));
            let tail = LmrTriplet::new(based.lmr_context, 100, 28);
            transfer(&b, tail, &a, own.segment(512, 28))?;
            check_eq!(own.bytes(512, 28), own.bytes(100, 28));
            let written = crate::fixture::read(&buffer, 0, PAGE);
            // Nothing after it can be accessed, and nothing by the address of the memory.
            for at in [101, buffer.addr() as u64 + 256, u64::MAX - 3] {
                let to = place(&based, at, 28)?;
                w.a.ep_post_rdma_write(a.ep, &[own.segment(0, 28)], 2, &to, PLAIN)?;
                a.done(2, DtoStatus::RemoteAccess)?;
                reconnect(w, &a, &b)?;
                b.send(&[LmrTriplet::new(based.lmr_context, at, 28)], 3)?;
                b.done(3, DtoStatus::LocalProtection)?;
                reconnect(w, &a, &b)?;
            }
            check_eq!(crate::fixture::read(&buffer, 0, PAGE), written);
            Ok(())
        })
    }),
    // A region that cannot be created is refused, and leaves nothing in its zone.
    test("dat_memory::refused_regions", &[], |f| {
        world(f, |w| {
            let (pz, buffer) = (w.a.pz_create()?, w.f.buffer(PAGE)?);
            let whole = RegionDescription::buffer(&buffer);
            let create = |memory, length, privs| w.a.lmr_create(memory, length, pz, privs, VaType::Va);
            let outside = parameter(Subtype::InvalidArg3);
            for length in [PAGE as u64 + 1, 1 << 40, u64::MAX] {
                refused(create(whole, length, LOCAL), outside)?;
            }
            for (offset, length) in [(1, PAGE as u64), (PAGE, 1), (PAGE + 1, 0), (usize::MAX, 1)] {
                let memory = RegionDescription::Buffer { buffer: &buffer, offset };
                refused(create(memory, length, LOCAL), outside)?;
            }
            let constants = RegionDescription::Static(&CONSTANTS);
            refused(create(constants, 257, MemPriv::LOCAL_READ), outside)?;
            let privileges = parameter(Subtype::InvalidArg6);
            let undefined = MemPriv::from_bits_retain(1 << 31);
            let unfit = [
                MemPriv::NONE,
                MemPriv::LOCAL_WRITE,
                MemPriv::REMOTE_READ,
                MemPriv::LOCAL_READ | MemPriv::REMOTE_WRITE,
                MemPriv::LOCAL_READ | MemPriv::IB_REMOTE_ATOMIC,
                OPEN | undefined,
            ];
            for privs in unfit {
                refused(create(whole, 64, privs), privileges)?;
            }
            for privs in [LOCAL, OPEN] {
                refused(create(constants, 64, privs), privileges)?;
            }
            let foreign = w.region_in(&w.b, w.b.pz_create()?, PAGE, OPEN)?;
            let freed = create(whole, 64, LOCAL)?.lmr_handle;
            w.a.lmr_free(freed)?;
            let of_pz = LmrHandle::from_raw(pz.as_raw());
            for bad in [LmrHandle::NULL, freed, foreign.lmr.lmr_handle, of_pz] {
                refused(create(RegionDescription::Lmr(bad), 8, LOCAL), NO_LMR)?;
                refused(w.a.lmr_query(bad), NO_LMR)?;
                refused(w.a.lmr_free(bad), NO_LMR)?;
            }
            // Longer than the region whose memory it shares, although the buffer is longer.
            let base = create(whole, 64, LOCAL)?.lmr_handle;
            refused(create(RegionDescription::Lmr(base), 65, LOCAL), outside)?;
            w.a.lmr_free(create(RegionDescription::Lmr(base), 64, LOCAL)?.lmr_handle)?;
            w.a.lmr_free(base)?;
            // The refused calls left nothing behind.
            w.a.pz_free(pz)?;
            let of_freed = PzHandle::from_raw(freed.as_raw());
            for bad in [PzHandle::NULL, pz, w.b.pz_create()?, of_freed] {
                refused(w.a.lmr_create(whole, 64, bad, LOCAL, VaType::Va), NO_PZ)?;
                refused(w.a.lmr_create(whole, 64, bad, LOCAL, VaType::Zb), NO_PZ)?;
            }
            Ok(())
        })
    }),
    // An interface that lacks zero-based regions or atomics refuses them.
    test("dat_memory::what_an_interface_lacks", &[], |f| {
        world(f, |w| {
            let features = privileged_api::Features::all()
                - privileged_api::Features::RELATIVE
                - privileged_api::Features::ATOMICS;
            let ia = w.limited(privileged_api::Limits { features, ..privileged_api::Limits::NONE })?;
            let outcome = (|| {
                let (pz, buffer) = (ia.pz_create()?, w.f.buffer(PAGE)?);
                let memory = RegionDescription::buffer(&buffer);
                let lacks = ErrorType::ModelNotSupported.into();
                refused(ia.lmr_create(memory, 64, pz, LOCAL, VaType::Zb), lacks)?;
                refused(ia.lmr_create(memory, 64, pz, OPEN, VaType::Va), lacks)?;
                let made = ia.lmr_create(memory, 64, pz, MemPriv::ALL, VaType::Va)?;
                ia.lmr_free(made.lmr_handle)?;
                Ok(ia.pz_free(pz)?)
            })();
            outcome.and(w.close(&ia))
        })
    }),
];
