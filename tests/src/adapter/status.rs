//! The codes of immediate errors (page it_status_t). Each is provoked by a call whose page lists
//! it, and has the number of the header.
//!
//! `values` checks the numbers of the codes that no call here returns.

use nic_abi::registers::Features;
use privileged_api::*;

use crate::fixture::{Fixture, OPEN, PAGE, SIGNALLED, attributes, sevd, spigot};
use crate::transport::Need;
use crate::{Outcome, Test, check, check_eq, refused, test};

/// Passes if the call was refused with this code and the code has this number.
#[track_caller]
fn code<T>(result: core::result::Result<T, Error>, error: Error, number: u32) -> Outcome {
    refused(result, error)?;
    match error.as_raw() == number {
        true => Ok(()),
        false => Err(crate::Failure::new(alloc::format!("{error:?} is {}", error.as_raw()))),
    }
}

/// Links an RMR of `b` to all of a region and takes the completion.
fn linked(
    f: &Fixture,
    end: &crate::fixture::End,
    kind: RmrType,
) -> core::result::Result<(RmrHandle, LmrHandle), crate::Failure> {
    let region = f.region(&f.b, end.pz, PAGE, MemPriv::LOCAL)?;
    let rmr = f.b.rmr_create(end.pz, kind)?;
    let (addr, mode, privs) = (region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
    f.b.rmr_link(rmr, region.lmr, addr, 64, mode, privs, end.ep, 1, SIGNALLED)?;
    end.done(1, DtoStatus::Success)?;
    Ok((rmr, region.lmr))
}

/// Checks the info and the errors of an adapter without shared receive queues, wide windows and
/// privileged operations.
fn lacks(f: &Fixture, ia: &Ia) -> Outcome {
    let info = ia.ia_query()?;
    check!(!info.srq_support && !info.lmr_link_support && !info.direct_lmr_handle_support);
    check_eq!((info.rmr_types_supported, info.direct_lmr_handle), (RmrTypes::NARROW, LmrHandle::NULL));
    let pz = ia.pz_create()?;
    code(ia.srq_create(pz, 1, 1), Error::SrqNotSupported, 103)?;
    code(ia.rmr_create(pz, RmrType::Wide), Error::InvalidRmrType, 66)?;
    ia.rmr_create(pz, RmrType::Narrow)?;
    let dto = || sevd(ia, EventType::DTO_EVENT_STREAM, 128, 1);
    let (request, recv, conn) = (dto()?, dto()?, sevd(ia, EventType::CM_MSG_EVENT_STREAM, 8, 1)?);
    let create =
        |attributes: &EpAttributes| ia.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), attributes);
    code(create(&attributes()), Error::PrivOpsUnavailable, 85)?;
    create(&EpAttributes { priv_ops_enable: false, ..attributes() })?;
    let region = f.buffer(PAGE)?;
    let pages = [IoAddr(region.bus())];
    let iobl = Iobl::pages(&pages, PAGE as u64, 0);
    let memory = LmrMemory::Iobl { addr: region.addr(), iobl: &iobl };
    let created = ia.lmr_create(pz, memory, 64, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0);
    code(created, Error::PrivOpsUnavailable, 85)
}

pub(crate) const TESTS: &[Test] = &[
    // Codes of the calls for names and addresses.
    test("status::of_names", &["it_status_t F21 F31 F83"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let here = spigot(&f.a)?.spigot_id;
        let no_node = NetAddr::Ipv4([0; 4]);
        code(f.a.get_pathinfo(here, &no_node, 1), Error::InvalidAddress, 20)?;
        code(f.a.convert_net_addr(&no_node, NetAddrType::Ipv6), Error::InvalidAddress, 20)?;
        let local = NetAddr::Ipv6([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        code(f.a.convert_net_addr(&local, NetAddrType::Ipv4), Error::InvalidConversion, 30)?;
        let socket = f.a.socket_convert(0, EpHandle::NULL, ScFlags::empty(), &[]);
        code(socket, Error::OpNotSupported, 82)
    }),
    // Codes of the memory calls.
    test("status::of_regions", &["it_status_t F03 F04 F11 F20 F79 F92", "G.1 F02"], |f| {
        let pair = f.pair()?;
        let end = &pair.b;
        let region = f.region(&f.b, end.pz, PAGE, OPEN)?;
        let rmr = f.b.rmr_create(end.pz, RmrType::Wide)?;
        let (addr, privs) = (region.buffer.addr(), MemPriv::REMOTE);
        let link = |addr, mode| f.b.rmr_link(rmr, region.lmr, addr, 8, mode, privs, end.ep, 1, SIGNALLED);
        code(link(addr - 1, AddrMode::Absolute), Error::Address, 3)?;
        code(link(addr + PAGE, AddrMode::Absolute), Error::Address, 3)?;
        code(link(addr, AddrMode::Relative), Error::InvalidAddrMode, 19)?;
        let (_, lmr) = linked(f, end, RmrType::Narrow)?;
        code(f.b.lmr_free(lmr), Error::LmrBusy, 78)?;
        code(f.b.ep_free(end.ep), Error::EpBusy, 10)?;
        // Constants cannot be written.
        let (constants, mode) = (LmrMemory::Static(&[1]), AddrMode::Absolute);
        let writable = f.b.lmr_create(end.pz, constants, 1, mode, OPEN, LmrFlags::NONE, 0);
        code(writable, Error::Access, 2)?;
        let create = |privs, length| {
            let memory = LmrMemory::buffer(&region.buffer);
            f.b.lmr_create(end.pz, memory, length, AddrMode::Absolute, privs, LmrFlags::NONE, 0)
        };
        let longest = f.setup.b.agent.identity().max_region;
        code(create(OPEN, longest + 1), Error::ResourceLmrLength, 91)?;
        // The value of IT_PRIV_NONE.
        check_eq!(MemPriv::empty().bits(), 0);
        code(create(MemPriv::empty(), 64), Error::InvalidPrivs, 55)
    }),
    // Codes of the calls for endpoints and shared receive queues.
    test("status::of_endpoints_and_queues", &["it_status_t F17 F37 F87 F101 F102 F103"], |f| {
        let end = f.end(&f.a, &attributes())?;
        code(f.a.pz_free(end.pz), Error::PzBusy, 86)?;
        let marked = |soft_hi_watermark, hard_hi_watermark| {
            let rc = RcAttributes { soft_hi_watermark, hard_hi_watermark, ..attributes().rc };
            EpAttributes { rc, ..attributes() }
        };
        let modify = |mask, to| f.a.ep_modify(end.ep, mask, &to);
        code(modify(EpParamMask::SOFT_HI_WATERMARK, marked(1, 0)), Error::SoftHiWatermark, 100)?;
        code(modify(EpParamMask::HARD_HI_WATERMARK, marked(0, 1)), Error::HardHiWatermark, 16)?;
        // Only datagram endpoints have an endpoint key.
        code(modify(EpParamMask::EP_KEY, attributes()), Error::InvalidEpType, 36)?;
        let srq = f.a.srq_create(end.pz, 1, 8)?;
        let attr = EpAttributes { rc: RcAttributes { srq, ..attributes().rc }, ..attributes() };
        let user = f.a.ep_rc_create(end.pz, end.request, end.recv, end.conn, EpFlags::SRQ, &attr)?;
        code(f.a.srq_free(srq), Error::SrqBusy, 101)?;
        let param = SrqParam { low_watermark: 9, ..SrqParam::default() };
        let modified = f.a.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &param);
        code(modified, Error::SrqLowWatermark, 102)?;
        f.a.ep_free(user)?;
        Ok(f.a.srq_free(srq)?)
    }),
    // Codes for features that an interface does not offer.
    test(
        "status::of_what_an_interface_lacks",
        &["it_status_t F67 F86 F104", "it_srq_create IT_ERR_SRQ_NOT_SUPPORTED"],
        |f| {
            // The same NIC with few of its features.
            let provider = Provider::new(f.platform().clone());
            let features = Features::RC | Features::UD | Features::WINDOWS_NARROW;
            provider.add_limited("lesser", f.setup.a.agent.clone(), Limits { features, ..Limits::NONE })?;
            let ia = provider.ia_create("lesser", 2, 1, Some(f.setup.privileged))?;
            let outcome = lacks(f, &ia);
            ia.ia_free()?;
            outcome
        },
    ),
    // it_rmr_link never returns IT_ERR_RESOURCES, which it_lmr_link still may.
    test("status::of_many_links", &["D B01 V01"], |f| {
        // No completion is dequeued during this test. For an RMR, as many links may be outstanding
        // as the send queue has room for, ...
        let depth = 32;
        let pair = f.pair_of(&attributes(), &EpAttributes { max_request_dtos: depth, ..attributes() })?;
        let (end, mode) = (&pair.b, AddrMode::Absolute);
        let region = f.region(&f.b, end.pz, PAGE, MemPriv::LOCAL)?;
        let rmr = f.b.rmr_create(end.pz, RmrType::Wide)?;
        let (addr, privs) = (region.buffer.addr(), MemPriv::REMOTE);
        let link = || f.b.rmr_link(rmr, region.lmr, addr, 64, mode, privs, end.ep, 1, SIGNALLED);
        for _ in 0..depth {
            link()?;
        }
        code(link(), Error::TooManyPosts, 105)?;
        for _ in 0..depth {
            end.done(1, DtoStatus::Success)?;
        }
        // ... but for an LMR only a few, since each link needs a list of its own.
        let lmr = f.b.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?;
        let pages = [IoAddr(region.buffer.bus())];
        let iobl = Iobl::pages(&pages, PAGE as u64, 0);
        let length = PAGE as u64;
        let link = || f.b.lmr_link(lmr, addr, &iobl, length, mode, OPEN, end.ep, 2, SIGNALLED);
        let mut links = 0;
        let refusal = loop {
            match link() {
                Ok(_) => links += 1,
                Err(error) => break error,
            }
            f.b.lmr_unlink(lmr, end.ep, 2, SIGNALLED)?;
        };
        code(Err::<(), _>(refusal), Error::Resources, 89)?;
        check!(links >= 2 && 2 * links < depth, "{links} links");
        for _ in 0..2 * links {
            end.done(2, DtoStatus::Success)?;
        }
        link()?;
        end.done(2, DtoStatus::Success)
    }),
];
