//! Linking regions to memory and unlinking them, by work requests (pages it_lmr_link,
//! it_lmr_unlink).
//!
//! The call itself reports bad handles, states and flags, undefined privilege bits, and a list that
//! is empty or of a type that the IA does not support. The completion reports any other fault of
//! list, length, privileges, zone, endpoint or the region's state. If the call finds such a fault,
//! it posts a request that the device refuses, so that the completion comes in order.

use kernel_agent::{Features, Link, Operation, PostError, Request, Shadow, key};

use crate::address::RmrContext;
use crate::attributes::AddrMode;
use crate::ep::post::{LINK_FLAGS, UNLINK_FLAGS, check_flags, data, send_flags};
use crate::event::EventType;
use crate::flags::{DtoFlags, MemPriv};
use crate::handle::{EpHandle, LmrHandle};
use crate::ia::{Core, Ia};
use crate::iobl::Iobl;
use crate::lmr::rights::{check_list, first_byte, is_remote, is_valid_combination, memory_list, rights};
use crate::objects::ep::Ep;
use crate::objects::lmr::Lmr;
use crate::status::{Error, Result};

impl Ia {
    /// Posts the link of an unlinked region to `length` bytes of a list. If peers have privileges,
    /// returns the context with which they reach the region once the link is complete.
    ///
    /// Requests that are posted to the endpoint afterwards wait for the link, and may use the
    /// region. `addr` is the base address with absolute addressing. Completes as
    /// `IT_LMR_LINK_CMPL_EVENT` on the endpoint's request EVD. If it fails, an earlier link stays
    /// in force. The endpoint must be in privileged mode, else the request completes in error.
    ///
    /// Errors: `InvalidAddrMode`, `InvalidEp`, `InvalidEpState`, `InvalidEpType`,
    /// `InvalidDtoFlags`, `InvalidIobl` (empty, or of a type that the IA does not support),
    /// `InvalidLmr`, `InvalidPrivs` (undefined bits), `OpNotSupported`, `Resources` (several links
    /// of this region are outstanding), `TooManyPosts`, `InvalidIa`, `IaCatastrophe`. Does not
    /// block. May be called in callbacks. Thread-safe. Page it_lmr_link.
    #[doc(alias = "it_lmr_link")]
    #[expect(clippy::too_many_arguments, reason = "the page has them")]
    pub fn lmr_link(
        &self,
        lmr: LmrHandle,
        addr: usize,
        iobl: &Iobl<'_>,
        length: u64,
        addr_mode: AddrMode,
        privs: MemPriv,
        ep: EpHandle,
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<Option<RmrContext>> {
        let core = self.live()?;
        if !core.features().contains(Features::FAST_REGISTER) {
            return Err(Error::OpNotSupported);
        }
        let ep = core.rc(ep)?;
        check_flags(dto_flags, LINK_FLAGS)?;
        core.check_mode(addr_mode)?;
        if MemPriv::from_bits(privs.bits()).is_none() {
            return Err(Error::InvalidPrivs);
        }
        if iobl.num_elts() == 0 {
            return Err(Error::InvalidIobl);
        }
        core.check_type(iobl)?;
        ep.takes_requests()?;
        if lmr == LmrHandle::DIRECT {
            core.post_refused(&ep, cookie, dto_flags)?;
            return Ok(None);
        }
        let lmr = core.lmr(lmr)?;
        let absolute = (addr_mode == AddrMode::Absolute).then_some(addr);
        let sound = lmr.is_linkable()
            && length > 0
            && is_valid_combination(privs)
            && check_list(iobl, absolute, length, lmr.region.max_elements() as usize).is_ok();
        if !sound {
            core.post_refused(&ep, cookie, dto_flags)?;
            return Ok(None);
        }
        let link = Link {
            flags: rights(privs, addr_mode) | core.writes_of_windows(),
            base: absolute.unwrap_or_else(|| first_byte(iobl)) as u64,
            memory: memory_list(iobl, length),
        };
        let key = core.post_link(&ep, &lmr, &link, cookie, dto_flags)?;
        Ok(key.filter(|_| is_remote(privs)).map(RmrContext::from_key))
    }

    /// Posts the unlink of a region from its memory. Needs no privilege.
    ///
    /// Requests that are posted afterwards do not wait for it. Completes as
    /// `IT_LMR_LINK_CMPL_EVENT` on the endpoint's request EVD. If it fails, the link stays in
    /// force. It fails for a region that was created with its memory (InfiniBand's other class),
    /// for a region that has been shared, and while RMRs are linked to the region.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpState`, `InvalidEpType`, `InvalidLmr`,
    /// `OpNotSupported`, `TooManyPosts`, `InvalidIa`, `IaCatastrophe`. Does not block. May be
    /// called in callbacks. Thread-safe. Page it_lmr_unlink.
    #[doc(alias = "it_lmr_unlink")]
    pub fn lmr_unlink(&self, lmr: LmrHandle, ep: EpHandle, cookie: u64, dto_flags: DtoFlags) -> Result<()> {
        let core = self.live()?;
        if !core.features().contains(Features::FAST_REGISTER) {
            return Err(Error::OpNotSupported);
        }
        let ep = core.rc(ep)?;
        check_flags(dto_flags, UNLINK_FLAGS)?;
        ep.takes_requests()?;
        if lmr == LmrHandle::DIRECT {
            return core.post_refused(&ep, cookie, dto_flags);
        }
        let lmr = core.lmr(lmr)?;
        if !lmr.is_linkable() {
            return core.post_refused(&ep, cookie, dto_flags);
        }
        core.post_invalidate(&ep, lmr.key(), cookie, dto_flags)
    }
}

impl Core {
    /// Posts a request that the device refuses with a memory management error.
    fn post_refused(&self, ep: &Ep, cookie: u64, flags: DtoFlags) -> Result<()> {
        self.post_invalidate(ep, key::RESERVED, cookie, flags)
    }

    fn post_invalidate(&self, ep: &Ep, key: u32, cookie: u64, flags: DtoFlags) -> Result<()> {
        let shadow = Shadow { cookie, data: data(flags, EventType::LMR_LINK_CMPL) };
        let operation = Operation::LocalInvalidate { key, remote: 0 };
        match ep.qp()?.post_plain(&Request { operation, flags: send_flags(flags), shadow }) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.not_posted_to(ep.handle, error)),
        }
    }

    /// Posts a link and returns the region's new remote key. `None` if the list is not valid and
    /// the request completes in error.
    #[inline]
    fn post_link(
        &self,
        ep: &Ep,
        lmr: &Lmr,
        link: &Link<'_>,
        cookie: u64,
        flags: DtoFlags,
    ) -> Result<Option<u32>> {
        let shadow = Shadow { cookie, data: data(flags, EventType::LMR_LINK_CMPL) };
        match ep.qp()?.post_link(&lmr.region, link, send_flags(flags), shadow) {
            Ok(key) => Ok(Some(key)),
            Err(PostError::BadList(_)) => self.post_refused(ep, cookie, flags).map(|()| None),
            Err(PostError::Gone) if lmr.region.is_gone() => Err(Error::InvalidLmr),
            Err(error) => Err(self.not_posted_to(ep.handle, error)),
        }
    }
}
