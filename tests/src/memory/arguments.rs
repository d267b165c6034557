//! Bad arguments of the memory calls: each call, with every bad value of each argument that its
//! page says is checked. The tests query all objects before and after: a refused call changes
//! nothing.

use alloc::sync::Arc;
use alloc::vec;
use core::result::Result;

use platform::DmaBuffer;
use privileged_api::*;

use crate::events::callback::inside;
use crate::fixture::{Fixture, OPEN, PAGE, Pair, Region, SIGNALLED};
use crate::remote::link::{Link as LmrLink, PAGE_LEN};
use crate::remote::rmr::Link as RmrLink;
use crate::support::refusal::{Queried, call, no_handles, undefined};
use crate::{Failure, Test, check_eq, refused, test};

/// One of each object that the calls act on, all of them in use, and a buffer that the calls would
/// change.
struct Objects {
    pair: Pair,
    region: Region,
    linkable: LmrHandle,
    pages: [IoAddr; 1],
    rmr: RmrHandle,
}

impl Objects {
    fn new(f: &Fixture) -> Result<Objects, Failure> {
        let pair = f.pair()?;
        let region = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        let pages = [crate::memory::iobl::map(&f.b, &region.buffer)?];
        let linkable = f.b.lmr_create_unlinked(pair.b.pz, 1, LmrFlags::NONE, 0)?;
        let rmr = f.b.rmr_create(pair.b.pz, RmrType::Wide)?;
        let objects = Objects { pair, region, linkable, pages, rmr };
        objects.window().part(0, 64).made(&objects.pair.b)?;
        for handle in [Handle::from(objects.pair.b.pz), objects.region.lmr.into(), objects.rmr.into()] {
            f.b.set_consumer_context(handle, handle.as_raw())?;
        }
        Ok(objects)
    }

    fn ia(&self) -> &Ia {
        &self.pair.b.ia
    }

    fn memory(&self) -> LmrMemory<'_> {
        LmrMemory::buffer(&self.region.buffer)
    }

    /// A valid link of the linkable region.
    fn link(&self) -> LmrLink<'_> {
        LmrLink::pages(self.linkable, &self.pages)
    }

    /// A valid link of the RMR.
    fn window(&self) -> RmrLink {
        RmrLink::of(self.rmr, &self.region)
    }

    /// Creates a region over the buffer.
    fn create(&self, pz: PzHandle, length: u64, privs: MemPriv, flags: LmrFlags) -> Result<(), Error> {
        let mode = AddrMode::Absolute;
        self.ia().lmr_create(pz, self.memory(), length, mode, privs, flags, 0).map(drop)
    }
}

impl Queried for Objects {
    type Answers = Answers;

    fn all(&self) -> Result<Self::Answers, Failure> {
        let ia = self.ia();
        self.pair.b.idle()?;
        Ok(Answers {
            counts: ia.object_counts(),
            pz: ia.pz_query(self.pair.b.pz, PzParamMask::ALL)?,
            region: ia.lmr_query(self.region.lmr, LmrParamMask::ALL)?,
            linkable: ia.lmr_query(self.linkable, LmrParamMask::ALL)?,
            rmr: ia.rmr_query(self.rmr, RmrParamMask::ALL)?,
            ep: self.pair.b.state()?,
            contexts: [
                ia.get_consumer_context(self.pair.b.pz)?,
                ia.get_consumer_context(self.region.lmr)?,
                ia.get_consumer_context(self.rmr)?,
            ],
            held: Arc::strong_count(&self.region.buffer),
        })
    }
}

/// What the queries of the objects return.
#[derive(Debug, PartialEq)]
struct Answers {
    counts: ObjectCounts,
    pz: PzParam,
    region: LmrParam,
    linkable: LmrParam,
    rmr: RmrParam,
    ep: EpStateRc,
    contexts: [u64; 3],
    held: usize,
}

pub(crate) const TESTS: &[Test] = &[
    // Every bad zone handle, in every call that takes one.
    test(
        "memory_arguments::zones",
        &[
            "it_pz_query IT_ERR_INVALID_PZ",
            "it_pz_free IT_ERR_INVALID_PZ",
            "it_lmr_create IT_ERR_INVALID_PZ",
            "it_lmr_create_unlinked IT_ERR_INVALID_PZ",
            "it_rmr_create IT_ERR_INVALID_PZ",
        ],
        |f| {
            let w = Objects::new(f)?;
            let ia = w.ia();
            let freed = ia.pz_create()?;
            ia.pz_free(freed)?;
            let values = no_handles(
                PzHandle::from_raw,
                freed.as_raw(),
                f.a.pz_create()?.as_raw(),
                w.region.lmr.as_raw(),
            );
            let list = Iobl::pages(&w.pages, PAGE_LEN, 0);
            let (mode, flags) = (AddrMode::Relative, LmrFlags::NONE);
            let calls = [
                call("pz_query", |pz| ia.pz_query(pz, PzParamMask::ALL).map(drop)),
                call("pz_free", |pz| ia.pz_free(pz)),
                call("lmr_create", |pz| w.create(pz, 64, OPEN, flags)),
                call("lmr_create, constants", |pz| {
                    let memory = LmrMemory::Static(&[1]);
                    ia.lmr_create(pz, memory, 1, mode, MemPriv::LOCAL_READ, flags, 0).map(drop)
                }),
                call("lmr_create, list", |pz| {
                    let memory = LmrMemory::Iobl { addr: 0, iobl: &list };
                    ia.lmr_create(pz, memory, 64, mode, OPEN, flags, 0).map(drop)
                }),
                call("lmr_create_unlinked", |pz| ia.lmr_create_unlinked(pz, 1, flags, 0).map(drop)),
                call("rmr_create", |pz| ia.rmr_create(pz, RmrType::Default).map(drop)),
            ];
            w.refuses(&calls, &values, Error::InvalidPz)
        },
    ),
    // Every bad region handle, in every call that takes one.
    test(
        "memory_arguments::regions",
        &[
            "it_lmr_query IT_ERR_INVALID_LMR",
            "it_lmr_free IT_ERR_INVALID_LMR",
            "it_lmr_modify IT_ERR_INVALID_LMR",
            "it_lmr_link IT_ERR_INVALID_LMR",
            "it_lmr_unlink IT_ERR_INVALID_LMR",
            "it_rmr_link IT_ERR_INVALID_LMR",
        ],
        |f| {
            let w = Objects::new(f)?;
            let ia = w.ia();
            let freed = ia.lmr_create_unlinked(w.pair.b.pz, 1, LmrFlags::NONE, 0)?;
            ia.lmr_free(freed)?;
            let foreign = f.region(&f.a, w.pair.a.pz, 64, OPEN)?.lmr.as_raw();
            let values = no_handles(LmrHandle::from_raw, freed.as_raw(), foreign, w.rmr.as_raw());
            let params = LmrParam { pz: w.pair.b.pz, privs: OPEN, ..LmrParam::default() };
            let end = &w.pair.b;
            let calls = [
                call("lmr_query", |lmr| ia.lmr_query(lmr, LmrParamMask::ALL).map(drop)),
                call("lmr_free", |lmr| ia.lmr_free(lmr)),
                call("lmr_modify", |lmr| ia.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &params)),
                call("lmr_link", |lmr| LmrLink { lmr, ..w.link() }.post(end, 1).map(drop)),
                call("lmr_unlink", |lmr| ia.lmr_unlink(lmr, end.ep, 1, SIGNALLED)),
                call("rmr_link", |lmr| RmrLink { lmr, ..w.window() }.post(end, 1).map(drop)),
            ];
            w.refuses(&calls, &values, Error::InvalidLmr)
        },
    ),
    // Every bad RMR handle, in every call that takes one.
    test(
        "memory_arguments::windows",
        &[
            "it_rmr_query IT_ERR_INVALID_RMR",
            "it_rmr_free IT_ERR_INVALID_RMR",
            "it_rmr_link IT_ERR_INVALID_RMR",
            "it_rmr_unlink IT_ERR_INVALID_RMR",
        ],
        |f| {
            let w = Objects::new(f)?;
            let ia = w.ia();
            let freed = ia.rmr_create(w.pair.b.pz, RmrType::Narrow)?;
            ia.rmr_free(freed)?;
            let foreign = f.a.rmr_create(w.pair.a.pz, RmrType::Wide)?.as_raw();
            let values = no_handles(RmrHandle::from_raw, freed.as_raw(), foreign, w.linkable.as_raw());
            let end = &w.pair.b;
            let calls = [
                call("rmr_query", |rmr| ia.rmr_query(rmr, RmrParamMask::ALL).map(drop)),
                call("rmr_free", |rmr| ia.rmr_free(rmr)),
                call("rmr_link", |rmr| RmrLink { rmr, ..w.window() }.post(end, 1).map(drop)),
                call("rmr_unlink", |rmr| ia.rmr_unlink(rmr, end.ep, 1, SIGNALLED)),
            ];
            w.refuses(&calls, &values, Error::InvalidRmr)
        },
    ),
    // Every bad endpoint handle, in every call for links.
    test(
        "memory_arguments::endpoints",
        &[
            "it_lmr_link IT_ERR_INVALID_EP",
            "it_lmr_unlink IT_ERR_INVALID_EP",
            "it_rmr_link IT_ERR_INVALID_EP",
            "it_rmr_unlink IT_ERR_INVALID_EP",
        ],
        |f| {
            let w = Objects::new(f)?;
            let ia = w.ia();
            let freed = f.end(ia, &crate::fixture::attributes())?.ep;
            ia.ep_free(freed)?;
            let foreign = w.pair.a.ep.as_raw();
            let values = no_handles(EpHandle::from_raw, freed.as_raw(), foreign, w.pair.b.request.as_raw());
            let end = |ep| crate::fixture::End { ep, ..w.pair.b.clone() };
            let calls = [
                call("lmr_link", |ep| w.link().post(&end(ep), 1).map(drop)),
                call("lmr_unlink", |ep| ia.lmr_unlink(w.linkable, ep, 1, SIGNALLED)),
                call("rmr_link", |ep| w.window().post(&end(ep), 1).map(drop)),
                call("rmr_unlink", |ep| ia.rmr_unlink(w.rmr, ep, 1, SIGNALLED)),
            ];
            w.refuses(&calls, &values, Error::InvalidEp)
        },
    ),
    // Every bad handle, in the calls for handles of any type.
    test(
        "memory_arguments::handles",
        &["it_get_consumer_context IT_ERR_INVALID_HANDLE", "it_set_consumer_context IT_ERR_INVALID_HANDLE"],
        |f| {
            let w = Objects::new(f)?;
            let ia = w.ia();
            let freed = ia.pz_create()?;
            ia.pz_free(freed)?;
            let mut values = no_handles(Handle::from_raw, freed.as_raw(), w.pair.a.ep.as_raw(), 0);
            values.extend([Handle::from(f.a.handle()), LmrHandle::DIRECT.into()]);
            let calls = [
                call("get_handle_type", |handle: Handle| ia.get_handle_type(handle).map(drop)),
                call("get_consumer_context", |handle: Handle| ia.get_consumer_context(handle).map(drop)),
                call("set_consumer_context", |handle: Handle| ia.set_consumer_context(handle, 1)),
                call("set_consumer_context, none", |handle: Handle| ia.set_consumer_context(handle, None)),
            ];
            w.refuses(&calls, &values, Error::InvalidHandle)
        },
    ),
    // Every undefined mask bit, in every query and modification.
    test(
        "memory_arguments::masks",
        &[
            "it_pz_query IT_ERR_INVALID_MASK",
            "it_lmr_query IT_ERR_INVALID_MASK",
            "it_rmr_query IT_ERR_INVALID_MASK",
            "it_lmr_modify IT_ERR_INVALID_MASK",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, pz) = (w.ia(), w.pair.b.pz);
            let query = |bits| ia.pz_query(pz, PzParamMask::from_bits_retain(bits)).map(drop);
            w.refuses(&[call("pz_query", query)], &undefined(3), Error::InvalidMask)?;
            let query = |bits| ia.lmr_query(w.region.lmr, LmrParamMask::from_bits_retain(bits)).map(drop);
            w.refuses(&[call("lmr_query", query)], &undefined(0x7fff), Error::InvalidMask)?;
            let query = |bits| ia.rmr_query(w.rmr, RmrParamMask::from_bits_retain(bits)).map(drop);
            w.refuses(&[call("rmr_query", query)], &undefined(0x7ff), Error::InvalidMask)?;
            // Only zone and privileges can be modified.
            let params = LmrParam { pz, privs: OPEN, ..LmrParam::default() };
            let modify = |bits| ia.lmr_modify(w.region.lmr, LmrParamMask::from_bits_retain(bits), &params);
            w.refuses(&[call("lmr_modify", modify)], &undefined(0x24), Error::InvalidMask)
        },
    ),
    // Every undefined flag and privilege, in every call that takes them.
    test(
        "memory_arguments::flags_and_privileges",
        &[
            "it_lmr_create IT_ERR_INVALID_FLAGS IT_ERR_INVALID_PRIVS",
            "it_lmr_create_unlinked IT_ERR_INVALID_FLAGS",
            "it_lmr_link IT_ERR_INVALID_PRIVS",
            "it_rmr_link IT_ERR_INVALID_PRIVS",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, pz, end) = (w.ia(), w.pair.b.pz, &w.pair.b);
            let create = |bits| w.create(pz, 64, OPEN, LmrFlags::from_bits_retain(bits));
            w.refuses(&[call("lmr_create", create)], &undefined(0xf), Error::InvalidFlags)?;
            let create = |bits| ia.lmr_create_unlinked(pz, 1, LmrFlags::from_bits_retain(bits), 0).map(drop);
            w.refuses(&[call("lmr_create_unlinked", create)], &undefined(0xd), Error::InvalidFlags)?;
            let privs = MemPriv::from_bits_retain;
            let calls = [
                call("lmr_create", |bits| w.create(pz, 64, privs(bits), LmrFlags::NONE)),
                call("lmr_link", |bits| LmrLink { privs: privs(bits), ..w.link() }.post(end, 1).map(drop)),
                call("rmr_link", |bits| RmrLink { privs: privs(bits), ..w.window() }.post(end, 1).map(drop)),
            ];
            // The extension for DAT's privilege is defined, too.
            w.refuses(&calls, &undefined(0x1f | MemPriv::ATOMIC_ALONE.bits()), Error::InvalidPrivs)?;
            let flags = DtoFlags::from_bits_retain;
            let calls = [
                call("lmr_link", |bits| LmrLink { flags: flags(bits), ..w.link() }.post(end, 1).map(drop)),
                call("lmr_unlink", |bits| ia.lmr_unlink(w.linkable, end.ep, 1, flags(bits))),
                call("rmr_link", |bits| RmrLink { flags: flags(bits), ..w.window() }.post(end, 1).map(drop)),
                call("rmr_unlink", |bits| ia.rmr_unlink(w.rmr, end.ep, 1, flags(bits))),
            ];
            w.refuses(&calls, &undefined(DtoFlags::all().bits()), Error::InvalidDtoFlags)
        },
    ),
    // Every bad length and address, in every call that takes them.
    test(
        "memory_arguments::lengths_and_addresses",
        &[
            "it_lmr_create IT_ERR_FAULT IT_ERR_RESOURCE_LMR_LENGTH",
            "it_lmr_create_unlinked IT_ERR_RESOURCE_IOBL_LENGTH",
            "it_rmr_link IT_ERR_ADDRESS IT_ERR_INVALID_LENGTH",
            "it_mem_map IT_ERR_FAULT",
            "it_mem_unmap IT_ERR_FAULT",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, pz, end) = (w.ia(), w.pair.b.pz, &w.pair.b);
            let id = *f.setup.b.agent.identity();
            let (addr, size) = (w.region.buffer.addr(), PAGE as u64);
            let create = |length| w.create(pz, length, OPEN, LmrFlags::NONE);
            let calls = [call("lmr_create", create)];
            w.refuses(&calls, &[size + 1, 2 * size, id.max_region], Error::Fault)?;
            let longer = [id.max_region + 1, u64::MAX - addr as u64, u64::MAX];
            w.refuses(&calls, &longer, Error::ResourceLmrLength)?;
            let create = |count| ia.lmr_create_unlinked(pz, count, LmrFlags::NONE, 0).map(drop);
            let most = id.max_list_elements as usize;
            let counts = [most + 1, usize::MAX / 16, usize::MAX];
            w.refuses(&[call("lmr_create_unlinked", create)], &counts, Error::ResourceIoblLength)?;
            let link = |length| RmrLink { length, ..w.window() }.post(end, 1).map(drop);
            let lengths = [0, size + 1, u64::MAX - addr as u64, u64::MAX];
            w.refuses(&[call("rmr_link", link)], &lengths, Error::InvalidLength)?;
            let link = |addr| RmrLink { addr, length: 1, ..w.window() }.post(end, 1).map(drop);
            let outside = [0, 1, addr - 1, addr + PAGE, addr + PAGE + 1, usize::MAX];
            w.refuses(&[call("rmr_link", link)], &outside, Error::Address)?;
            let map = |len| ia.mem_map(addr, ASPACE_KERNEL, len).map(drop);
            // A length of zero, lengths that wrap around, and a range that starts in memory and
            // continues where there is none.
            let lengths =
                [0, usize::MAX, usize::MAX - addr + 1, usize::MAX - addr, isize::MAX as usize - addr];
            w.refuses(&[call("mem_map", map)], &lengths, Error::Fault)?;
            let unmap = |len| ia.mem_unmap(w.pages[0], len);
            w.refuses(&[call("mem_unmap", unmap)], &[0, PAGE - 1, PAGE + 1, usize::MAX], Error::Fault)
        },
    ),
    // Calls that are forbidden in a callback are refused there.
    test("memory_arguments::in_callbacks", &["it_evd_callback_attach L02"], |f| {
        let pz = f.a.pz_create()?;
        let region = f.region(&f.a, pz, PAGE, OPEN)?;
        let before = (f.a.object_counts(), f.a.lmr_query(region.lmr, LmrParamMask::ALL)?);
        let (lmr, buffer): (LmrHandle, Arc<DmaBuffer>) = (region.lmr, region.buffer.clone());
        let refusals = inside(f, move |ia, evd| {
            let _ = ia.evd_dequeue(evd);
            let (memory, mode) = (LmrMemory::buffer(&buffer), AddrMode::Absolute);
            let params = LmrParam { privs: MemPriv::LOCAL_READ, ..LmrParam::default() };
            vec![
                ia.pz_create().map(drop),
                ia.lmr_create(pz, memory, 64, mode, OPEN, LmrFlags::NONE, 0).map(drop),
                ia.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &params),
                ia.rmr_create(pz, RmrType::Default).map(drop),
            ]
        })?;
        for refusal in refusals {
            refused(refusal, Error::CallbackContext)?;
        }
        check_eq!((f.a.object_counts(), f.a.lmr_query(region.lmr, LmrParamMask::ALL)?), before);
        Ok(())
    }),
];
