//! Adapters without optional memory features: links, a type of window, relative addressing, types
//! of list, privileged operations (pages it_ia_info_t, it_lmr_create, it_lmr_create_unlinked,
//! it_lmr_link, it_lmr_unlink, it_rmr_create).

use core::result::Result;

use nic_abi::registers::Features;
use platform::Privileged;
use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, Region, SIGNALLED, attributes};
use crate::memory::iobl::map;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// An IA on `a`'s NIC without these features.
fn lacking(f: &Fixture, features: Features, privileged: Option<Privileged>) -> Result<Ia, Failure> {
    f.limited(Limits { features: Features::all() - features, ..Limits::NONE }, privileged)
}

/// A connected endpoint of this IA, and a region in its zone.
fn connected(f: &Fixture, ia: &Ia) -> Result<(End, Region), Failure> {
    let (end, peer) = (f.end(ia, &attributes())?, f.end(&f.b, &attributes())?);
    f.connect(&end, &peer)?;
    let region = f.region(ia, end.pz, PAGE, OPEN)?;
    Ok((end, region))
}

/// Checks that nothing was posted and that endpoint and region are unchanged.
fn unchanged(end: &End, region: &Region, before: &LmrParam) -> Outcome {
    end.idle()?;
    check_eq!(end.state()?, EpStateRc::Connected);
    check_eq!(end.ia.lmr_query(region.lmr, LmrParamMask::ALL)?, *before);
    check_eq!(end.ia.object_counts().lmr, 1);
    Ok(())
}

/// A list of the one page that is the region's memory.
fn page(region: &Region) -> [IoAddr; 1] {
    [IoAddr(region.buffer.bus())]
}

pub(crate) const TESTS: &[Test] = &[
    // Without the feature, each call for links returns IT_ERR_OP_NOT_SUPPORTED and has no effect.
    test(
        "limited::no_links",
        &[
            "it_lmr_create_unlinked O01 IT_ERR_OP_NOT_SUPPORTED",
            "it_lmr_link O01 IT_ERR_OP_NOT_SUPPORTED",
            "it_lmr_unlink O01 O02 IT_ERR_OP_NOT_SUPPORTED",
        ],
        |f| {
            check!(f.a.ia_query()?.lmr_link_support);
            let ia = lacking(f, Features::FAST_REGISTER, Some(f.setup.privileged))?;
            check!(!ia.ia_query()?.lmr_link_support);
            let (end, region) = connected(f, &ia)?;
            let before = ia.lmr_query(region.lmr, LmrParamMask::ALL)?;
            let (pages, addr, mode) = (page(&region), region.buffer.addr(), AddrMode::Relative);
            let list = Iobl::pages(&pages, PAGE as u64, 0);
            let unlinked = ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0);
            refused(unlinked, Error::OpNotSupported)?;
            let link = ia.lmr_link(region.lmr, addr, &list, 64, mode, OPEN, end.ep, 1, SIGNALLED);
            refused(link, Error::OpNotSupported)?;
            refused(ia.lmr_unlink(region.lmr, end.ep, 1, SIGNALLED), Error::OpNotSupported)?;
            unchanged(&end, &region, &before)?;
            Ok(ia.ia_free()?)
        },
    ),
    // Without the feature, relative addressing is refused, and absolute addressing works.
    test(
        "limited::no_relative_addressing",
        &["it_lmr_create O01 IT_ERR_INVALID_ADDR_MODE", "it_lmr_link IT_ERR_INVALID_ADDR_MODE"],
        |f| {
            let ia = lacking(f, Features::RELATIVE, Some(f.setup.privileged))?;
            check!(!ia.ia_query()?.addr_mode_relative_support);
            let (end, region) = connected(f, &ia)?;
            let before = ia.lmr_query(region.lmr, LmrParamMask::ALL)?;
            let (addr, mode) = (region.buffer.addr(), AddrMode::Relative);
            let memory = LmrMemory::buffer(&region.buffer);
            let created = ia.lmr_create(end.pz, memory, 64, mode, OPEN, LmrFlags::NONE, 0);
            refused(created, Error::InvalidAddrMode)?;
            let pages = page(&region);
            let list = Iobl::pages(&pages, PAGE as u64, 0);
            let by_list = LmrMemory::Iobl { addr, iobl: &list };
            let created = ia.lmr_create(end.pz, by_list, 64, mode, OPEN, LmrFlags::NONE, 0);
            refused(created, Error::InvalidAddrMode)?;
            let rmr = ia.rmr_create(end.pz, RmrType::Narrow)?;
            let privs = MemPriv::REMOTE;
            let link = ia.rmr_link(rmr, region.lmr, addr, 64, mode, privs, end.ep, 1, SIGNALLED);
            refused(link, Error::InvalidAddrMode)?;
            unchanged(&end, &region, &before)?;
            let lmr = ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?;
            let link = ia.lmr_link(lmr, addr, &list, 64, mode, OPEN, end.ep, 1, SIGNALLED);
            refused(link, Error::InvalidAddrMode)?;
            end.idle()?;
            check!(!ia.lmr_query(lmr, LmrParamMask::LINKED)?.linked);
            // Absolute addresses are supported.
            let mode = AddrMode::Absolute;
            ia.lmr_link(lmr, addr, &list, 64, mode, OPEN, end.ep, 2, SIGNALLED)?;
            end.done(2, DtoStatus::Success)?;
            Ok(ia.ia_free()?)
        },
    ),
    // A list of a type that the adapter does not support is refused.
    test(
        "limited::types_of_list",
        &["it_lmr_create B10 IT_ERR_INVALID_IOBL", "it_lmr_link IT_ERR_INVALID_IOBL"],
        |f| {
            for (missing, iobl_type) in [
                (Features::PAGE_LIST, IoblTypes::PAGE_LIST),
                (Features::BLOCK_LIST, IoblTypes::BLOCK_LIST),
                (Features::VARIABLE_LIST, IoblTypes::VE_PAGE_LIST),
            ] {
                let ia = lacking(f, missing, Some(f.setup.privileged))?;
                let supported = ia.ia_query()?.iobl_types_supported;
                check_eq!(supported, IoblTypes::all() - iobl_type);
                let (end, region) = connected(f, &ia)?;
                let io_addr = map(&ia, &region.buffer)?;
                let pages = [io_addr];
                let variable = [IoblVeElt { io_addr, elt_len: PAGE as u64 }];
                let addr = region.buffer.addr();
                for list in [
                    Iobl::pages(&pages, PAGE as u64, 0),
                    Iobl::blocks(&pages, PAGE as u64, 0),
                    Iobl::ve_pages(&variable, 0),
                ] {
                    let lmr = ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?;
                    let (memory, mode) = (LmrMemory::Iobl { addr, iobl: &list }, AddrMode::Absolute);
                    let before = ia.object_counts();
                    let created = ia.lmr_create(end.pz, memory, 64, mode, OPEN, LmrFlags::NONE, 0);
                    let linked = ia.lmr_link(lmr, addr, &list, 64, mode, OPEN, end.ep, 1, SIGNALLED);
                    if list.iobl_type() == iobl_type {
                        refused(created, Error::InvalidIobl)?;
                        refused(linked, Error::InvalidIobl)?;
                        check_eq!(ia.object_counts(), before);
                        end.idle()?;
                    } else {
                        created?;
                        linked?;
                        end.done(1, DtoStatus::Success)?;
                    }
                }
                ia.ia_free()?;
            }
            Ok(())
        },
    ),
    // Without the features, the calls that need them return IT_ERR_PRIV_OPS_UNAVAILABLE.
    test("limited::no_privileged_operations", &["it_lmr_create V05 IT_ERR_PRIV_OPS_UNAVAILABLE"], |f| {
        let missing = Features::FAST_REGISTER | Features::RESERVED_KEY;
        // A missing feature is reported before a missing privilege.
        for privileged in [Some(f.setup.privileged), None] {
            let ia = lacking(f, missing, privileged)?;
            let pz = ia.pz_create()?;
            let buffer = f.buffer(PAGE)?;
            let pages = [IoAddr(buffer.bus())];
            let list = Iobl::pages(&pages, PAGE as u64, 0);
            let by_list = LmrMemory::Iobl { addr: 0, iobl: &list };
            let mode = AddrMode::Relative;
            let created = ia.lmr_create(pz, by_list, 64, mode, OPEN, LmrFlags::NONE, 0);
            refused(created, Error::PrivOpsUnavailable)?;
            check_eq!(ia.object_counts().lmr, 0);
            let memory = LmrMemory::buffer(&buffer);
            ia.lmr_create(pz, memory, 64, mode, OPEN, LmrFlags::NONE, 0)?;
            ia.ia_free()?;
        }
        Ok(())
    }),
    // A type of RMR that the adapter does not support is refused; one that it supports can be
    // linked and unlinked.
    test(
        "limited::types_of_window",
        &["it_rmr_create IT_ERR_INVALID_RMR_TYPE", "it_rmr_unlink V02", "it_ia_info_t F62 F74 F75"],
        |f| {
            let (narrow, wide) = (Features::WINDOWS_NARROW, Features::WINDOWS_WIDE);
            for missing in [Features::empty(), narrow, wide, narrow | wide] {
                let ia = lacking(f, missing, Some(f.setup.privileged))?;
                let info = ia.ia_query()?;
                let (end, region) = connected(f, &ia)?;
                let pz = end.pz;
                for (feature, rmr_type, listed, unlinks) in [
                    (narrow, RmrType::Narrow, RmrTypes::NARROW, info.narrow_rmr_unlink_support),
                    (wide, RmrType::Wide, RmrTypes::WIDE, info.wide_rmr_unlink_support),
                ] {
                    let has = !missing.contains(feature);
                    // A type of RMR that cannot be unlinked cannot be created either.
                    check_eq!((unlinks, info.rmr_types_supported.contains(listed)), (has, has));
                    if !has {
                        refused(ia.rmr_create(pz, rmr_type), Error::InvalidRmrType)?;
                        continue;
                    }
                    let rmr = ia.rmr_create(pz, rmr_type)?;
                    let (addr, mode) = (region.buffer.addr(), AddrMode::Absolute);
                    ia.rmr_link(rmr, region.lmr, addr, 64, mode, MemPriv::REMOTE, end.ep, 1, SIGNALLED)?;
                    end.done(1, DtoStatus::Success)?;
                    ia.rmr_unlink(rmr, end.ep, 2, SIGNALLED)?;
                    end.done(2, DtoStatus::Success)?;
                    check!(!ia.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
                    ia.rmr_free(rmr)?;
                }
                let one = ia.rmr_create(pz, RmrType::Default);
                if missing == narrow | wide {
                    refused(one, Error::InvalidRmrType)?;
                    check_eq!(ia.object_counts().rmr, 0);
                } else {
                    let rmr_type = ia.rmr_query(one?, RmrParamMask::TYPE)?.rmr_type;
                    check_eq!(rmr_type, if missing == wide { RmrType::Narrow } else { RmrType::Wide });
                }
                ia.ia_free()?;
            }
            Ok(())
        },
    ),
];
