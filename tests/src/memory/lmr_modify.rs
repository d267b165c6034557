//! Modifying regions (page it_lmr_modify).

use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED};
use crate::memory::iobl::scattered;
use crate::remote::link::{BASE, Link, unlinked};
use crate::remote::rmr::reaches;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Parameters with these privileges.
fn privileges(privs: MemPriv) -> LmrParam {
    LmrParam { privs, ..LmrParam::default() }
}

/// Parameters with this zone.
fn zone(pz: PzHandle) -> LmrParam {
    LmrParam { pz, ..LmrParam::default() }
}

/// All parameters of a region of `b`.
fn all(f: &Fixture, lmr: LmrHandle) -> Result<LmrParam, Failure> {
    Ok(f.b.lmr_query(lmr, LmrParamMask::ALL)?)
}

/// The status of the peer's read of the first byte.
fn read(f: &Fixture, pair: &Pair, region: &Region, context: RmrContext) -> Result<DtoStatus, Failure> {
    let own = f.region(&f.a, pair.a.pz, 8, OPEN)?;
    f.a.post_rdma_read(pair.a.ep, &[own.segment(0, 1)], 1, SIGNALLED, region.remote(0), context)?;
    Ok(pair.a.reap()?.dto_status)
}

/// The status of a Receive into the region, for which the device writes to it.
fn receive(f: &Fixture, pair: &Pair, region: &Region) -> Result<DtoStatus, Failure> {
    f.b.post_recv(pair.b.ep, &[region.whole()], 1, DtoFlags::COMPLETION)?;
    let own = f.region(&f.a, pair.a.pz, 8, MemPriv::LOCAL)?;
    f.a.post_send(pair.a.ep, &[own.whole()], 1, DtoFlags::empty())?;
    Ok(pair.b.reap_recv()?.dto_status)
}

/// Checks that this modification is refused with this error and frees the region.
fn frees(f: &Fixture, mask: LmrParamMask, params: &LmrParam, error: Error) -> Outcome {
    let pair = f.pair()?;
    let region = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
    let before = f.b.object_counts().lmr;
    refused(f.b.lmr_modify(region.lmr, mask, params), error)?;
    refused(f.b.lmr_query(region.lmr, LmrParamMask::ALL), Error::InvalidLmr)?;
    refused(f.b.lmr_free(region.lmr), Error::InvalidLmr)?;
    check_eq!(f.b.object_counts().lmr, before - 1);
    check_eq!(read(f, &pair, &region, region.context()?)?, DtoStatus::RemoteAccess);
    region.untouched()?;
    f.a.ep_free(pair.a.ep)?;
    f.b.ep_free(pair.b.ep)?;
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // New privileges are in force at once, with a new context; the old context is invalid.
    test(
        "lmr_modify::privileges",
        &["it_lmr_create B28", "it_lmr_modify B01 B03-B06 F02", "A.it_lmr_modify V01"],
        |f| {
            let pair = f.pair()?;
            let region = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
            let before = all(f, region.lmr)?;
            let old = region.context()?;
            let less = MemPriv::LOCAL_READ | MemPriv::REMOTE_READ;
            f.b.lmr_modify(region.lmr, LmrParamMask::MEM_PRIV, &privileges(less))?;
            let after = all(f, region.lmr)?;
            let new = some(after.rmr_context, "a context")?;
            check!(new != old);
            check_eq!(after, LmrParam { privs: less, rmr_context: Some(new), ..before });
            check_eq!(read(f, &pair, &region, new)?, DtoStatus::Success);
            // The region no longer grants local write.
            check_eq!(receive(f, &pair, &region)?, DtoStatus::LocalProtection);
            // Without remote privileges the region has no context.
            f.b.lmr_modify(region.lmr, LmrParamMask::MEM_PRIV, &privileges(MemPriv::LOCAL))?;
            check_eq!(all(f, region.lmr)?.rmr_context, None);
            for context in [old, new] {
                let fresh = f.pair()?;
                let moved = zone(fresh.b.pz);
                f.b.lmr_modify(region.lmr, LmrParamMask::PZ, &moved)?;
                check_eq!(read(f, &fresh, &region, context)?, DtoStatus::RemoteAccess);
            }
            Ok(())
        },
    ),
    // After the zone of a region was replaced, only endpoints of the new zone can use it.
    test("lmr_modify::zone", &["it_lmr_query V02", "it_lmr_modify F01"], |f| {
        let (first, second) = (f.pair()?, f.pair()?);
        let region = f.region(&f.b, first.b.pz, PAGE, OPEN)?;
        let before = all(f, region.lmr)?;
        refused(f.b.pz_free(first.b.pz), Error::PzBusy)?;
        let both = LmrParam { pz: second.b.pz, privs: OPEN, ..LmrParam::default() };
        f.b.lmr_modify(region.lmr, LmrParamMask::PZ | LmrParamMask::MEM_PRIV, &both)?;
        let after = all(f, region.lmr)?;
        check_eq!(after, LmrParam { pz: second.b.pz, rmr_context: after.rmr_context, ..before });
        let context = some(after.rmr_context, "a context")?;
        check_eq!(read(f, &second, &region, context)?, DtoStatus::Success);
        check_eq!(receive(f, &second, &region)?, DtoStatus::Success);
        check_eq!(read(f, &first, &region, context)?, DtoStatus::RemoteAccess);
        // No object keeps the former zone in use.
        f.b.ep_free(first.b.ep)?;
        f.b.pz_free(first.b.pz)?;
        refused(f.b.pz_free(second.b.pz), Error::PzBusy)
    }),
    // A bad handle, a bad mask and a busy region are refused without any effect, even together with
    // worse errors.
    test(
        "lmr_modify::harmless_refusals",
        &[
            "it_lmr_modify B02 S01 S02 V02 V03 V06 IT_ERR_INVALID_LMR IT_ERR_INVALID_MASK",
            "it_lmr_modify IT_ERR_LMR_BUSY",
        ],
        |f| {
            let pair = f.pair()?;
            let region = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
            let before = all(f, region.lmr)?;
            // An undefined bit of the mask is reported before the bad zone and the bad privileges.
            let bad = LmrParam { pz: PzHandle::NULL, privs: MemPriv::from_bits_retain(!0), ..before };
            for bit in (0..32).map(|bit| 1u32 << bit) {
                let mask = LmrParamMask::from_bits_retain(bit);
                if !(LmrParamMask::PZ | LmrParamMask::MEM_PRIV).contains(mask) {
                    refused(f.b.lmr_modify(region.lmr, mask, &bad), Error::InvalidMask)?;
                    let mask = mask | LmrParamMask::PZ;
                    refused(f.b.lmr_modify(region.lmr, mask, &bad), Error::InvalidMask)?;
                }
            }
            let theirs = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            for lmr in
                [LmrHandle::NULL, LmrHandle::DIRECT, theirs.lmr, LmrHandle::from_raw(pair.b.pz.as_raw())]
            {
                refused(f.b.lmr_modify(lmr, LmrParamMask::PZ, &bad), Error::InvalidLmr)?;
            }
            let rmr = f.b.rmr_create(pair.b.pz, RmrType::Wide)?;
            let (addr, mode, privs) = (region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
            let context = f.b.rmr_link(rmr, region.lmr, addr, 64, mode, privs, pair.b.ep, 1, SIGNALLED)?;
            pair.b.done(1, DtoStatus::Success)?;
            refused(f.b.lmr_modify(region.lmr, LmrParamMask::PZ, &bad), Error::LmrBusy)?;
            refused(f.b.lmr_modify(region.lmr, LmrParamMask::MEM_PRIV, &privileges(OPEN)), Error::LmrBusy)?;
            check_eq!(read(f, &pair, &region, context)?, DtoStatus::Success);
            check_eq!(read(f, &pair, &region, region.context()?)?, DtoStatus::Success);
            // Any modification is refused, also one of nothing.
            refused(f.b.lmr_modify(region.lmr, LmrParamMask::empty(), &bad), Error::LmrBusy)?;
            check_eq!(all(f, region.lmr)?, before);
            Ok(())
        },
    ),
    // All other errors free the region, as the page demands, and end all access to its memory.
    test(
        "lmr_modify::refusals_that_free",
        &["it_lmr_modify S03 S04 IT_ERR_INVALID_PRIVS IT_ERR_INVALID_PZ"],
        |f| {
            let foreign = f.a.pz_create()?;
            frees(f, LmrParamMask::PZ, &zone(PzHandle::NULL), Error::InvalidPz)?;
            frees(f, LmrParamMask::PZ, &zone(foreign), Error::InvalidPz)?;
            for bits in [0x20, u32::MAX] {
                let bad = privileges(MemPriv::from_bits_retain(bits));
                frees(f, LmrParamMask::MEM_PRIV, &bad, Error::InvalidPrivs)?;
            }
            // The restrictions of it_lmr_create, to which the page refers.
            for privs in [
                MemPriv::empty(),
                MemPriv::LOCAL_WRITE,
                MemPriv::LOCAL_READ | MemPriv::REMOTE_WRITE,
                MemPriv::LOCAL_READ | MemPriv::ATOMIC,
            ] {
                frees(f, LmrParamMask::MEM_PRIV, &privileges(privs), Error::InvalidPrivs)?;
            }
            Ok(())
        },
    ),
    // A region that was created unlinked has the privileges of its link, which can be changed as
    // those of any other region. The next link brings its own.
    test("lmr_modify::linked_regions", &["it_lmr_modify B03 F02"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.b, 1)?;
        let link = Link::pages(lmr, &memory.pieces);
        let old = some(link.post(&pair.b, 1)?, "a context")?;
        pair.b.done(1, DtoStatus::Success)?;
        let before = all(f, lmr)?;
        // Local read is not required of a link, but local write is where peers may write.
        f.b.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &privileges(MemPriv::LOCAL_WRITE))?;
        let privs = MemPriv::LOCAL_READ | MemPriv::REMOTE_READ;
        f.b.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &privileges(privs))?;
        let after = all(f, lmr)?;
        let new = some(after.rmr_context, "a context")?;
        check_eq!(after, LmrParam { privs, rmr_context: Some(new), ..before });
        let reach =
            |end: &End, write, context| reaches(f, end, write, make_rdma_addr_absolute(BASE), context, 8);
        check_eq!(reach(&pair.a, false, new)?, DtoStatus::Success);
        check_eq!(reach(&pair.a, true, new)?, DtoStatus::RemoteAccess);
        let fresh = f.pair()?;
        f.b.lmr_modify(lmr, LmrParamMask::PZ, &zone(fresh.b.pz))?;
        let moved = some(all(f, lmr)?.rmr_context, "a context")?;
        check_eq!(reach(&fresh.a, false, moved)?, DtoStatus::Success);
        check_eq!(reach(&fresh.a, false, old)?, DtoStatus::RemoteAccess);
        let other = f.pair()?;
        f.b.lmr_modify(lmr, LmrParamMask::PZ, &zone(other.b.pz))?;
        f.b.lmr_unlink(lmr, other.b.ep, 2, SIGNALLED)?;
        other.b.done(2, DtoStatus::Success)?;
        link.post(&other.b, 3)?;
        other.b.done(3, DtoStatus::Success)?;
        check_eq!(all(f, lmr)?.privs, OPEN);
        let bad = privileges(MemPriv::LOCAL_READ | MemPriv::REMOTE_WRITE);
        refused(f.b.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &bad), Error::InvalidPrivs)?;
        refused(f.b.lmr_free(lmr), Error::InvalidLmr)
    }),
    // The zone of a region that is not linked can be changed. It has no privileges that could be.
    test("lmr_modify::unlinked_regions", &["it_lmr_modify V04"], |f| {
        let (pz, other) = (f.b.pz_create()?, f.b.pz_create()?);
        let lmr = f.b.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0)?;
        refused(f.b.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &privileges(OPEN)), Error::InvalidMask)?;
        f.b.lmr_modify(lmr, LmrParamMask::PZ, &zone(other))?;
        let param = all(f, lmr)?;
        check_eq!((param.pz, param.linked), (other, false));
        f.b.pz_free(pz)?;
        Ok(())
    }),
];
