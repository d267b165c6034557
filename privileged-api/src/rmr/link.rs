//! Linking remote memory regions to parts of local ones and unlinking them, by work requests (pages
//! it_rmr_link, it_rmr_unlink).
//!
//! A call reports faults of the range (`Address`, `InvalidLength`) in an LMR that was created with
//! its memory. The device checks ranges in other LMRs, zones, rights, the LMR's addressing and the
//! region's state when it executes the request, and the completion reports faults. For InfiniBand
//! the page requires that the completion also reports a link of a narrow region with length 0, and
//! one with remote write to an LMR without local write. On iWARP the call refuses the one, and the
//! other is valid.

use kernel_agent::{Bind, LinkFlags, Operation, Request, Shadow};

use crate::address::RmrContext;
use crate::attributes::AddrMode;
use crate::ep::post::{LINK_FLAGS, UNLINK_FLAGS, check_flags, data, send_flags};
use crate::event::EventType;
use crate::flags::{DtoFlags, MemPriv};
use crate::handle::{EpHandle, LmrHandle, RmrHandle};
use crate::ia::{Core, Ia};
use crate::lmr::rights::remote_rights;
use crate::objects::ep::Ep;
use crate::objects::rmr::Rmr;
use crate::status::{Error, Result};

impl Ia {
    /// Posts the link of a remote memory region to `length` bytes at `addr` of a local one. Returns
    /// the context with which peers reach it once the link is complete.
    ///
    /// Requests that are posted to the endpoint afterwards wait for the link. A wide region may be
    /// linked again while it is linked. Local privileges are ignored; without remote privileges
    /// peers reach nothing. Completes as `IT_RMR_LINK_CMPL_EVENT` on the endpoint's request EVD. If
    /// it fails, or the call does, an earlier link and its context stay in force.
    ///
    /// Errors: `InvalidEp`, `InvalidDtoFlags`, `InvalidRmr`, `InvalidLmr`, `InvalidAddrMode`
    /// (relative and not supported, or a wide region), `InvalidPrivs` (undefined bits), `Address`,
    /// `InvalidLength` (past the end; 0 for a wide region, and on iWARP), `InvalidEpState`,
    /// `InvalidEpType`, `TooManyPosts`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called
    /// in callbacks. Thread-safe. Page it_rmr_link.
    #[doc(alias = "it_rmr_link")]
    #[expect(clippy::too_many_arguments, reason = "the page has them")]
    pub fn rmr_link(
        &self,
        rmr: RmrHandle,
        lmr: LmrHandle,
        addr: usize,
        length: u64,
        addr_mode: AddrMode,
        privs: MemPriv,
        ep: EpHandle,
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<RmrContext> {
        let core = self.live()?;
        let ep = core.rc(ep)?;
        check_flags(dto_flags, LINK_FLAGS)?;
        let rmr = core.rmr(rmr)?;
        let region = core.lmr(lmr)?;
        core.check_mode(addr_mode)?;
        if addr_mode == AddrMode::Relative && !rmr.narrow {
            return Err(Error::InvalidAddrMode);
        }
        if MemPriv::from_bits(privs.bits()).is_none() {
            return Err(Error::InvalidPrivs);
        }
        if length == 0 && !(rmr.narrow && core.facts().infinibands_links) {
            return Err(Error::InvalidLength);
        }
        let mut rights = remote_rights(privs);
        rights.set(LinkFlags::RELATIVE, addr_mode == AddrMode::Relative);
        region.check_range(addr, length)?;
        ep.takes_requests()?;
        let to = Bind { region: region.key(), flags: rights, addr: addr as u64, length };
        Ok(RmrContext::from_key(core.post_bind(&ep, &rmr, to, cookie, dto_flags)?))
    }

    /// Posts the unlink of a remote memory region, which need not be linked.
    ///
    /// Requests that are posted to the endpoint afterwards wait for it. Completes as
    /// `IT_RMR_LINK_CMPL_EVENT` on the endpoint's request EVD. If it fails, the link and its
    /// context stay in force. The unlink fence is for narrow regions only, unless on iWARP.
    ///
    /// Errors: `InvalidEp`, `InvalidDtoFlags`, `InvalidRmr`, `InvalidEpState`, `InvalidEpType`,
    /// `TooManyPosts`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_rmr_unlink.
    #[doc(alias = "it_rmr_unlink")]
    pub fn rmr_unlink(&self, rmr: RmrHandle, ep: EpHandle, cookie: u64, dto_flags: DtoFlags) -> Result<()> {
        let core = self.live()?;
        let ep = core.rc(ep)?;
        check_flags(dto_flags, UNLINK_FLAGS)?;
        let rmr = core.rmr(rmr)?;
        // A bind unlinks a wide region, and on InfiniBand binds have no unlink fence
        // (it_dto_flags_t).
        let fences = rmr.narrow || core.facts().fences_wide_unlinks;
        if dto_flags.contains(DtoFlags::UNLINK_FENCE) && !fences {
            return Err(Error::InvalidDtoFlags);
        }
        ep.takes_requests()?;
        if rmr.narrow {
            let shadow = Shadow { cookie, data: data(dto_flags, EventType::RMR_LINK_CMPL) };
            let operation = Operation::LocalInvalidate { key: rmr.window.key(), remote: 0 };
            let request = Request { operation, flags: send_flags(dto_flags), shadow };
            return match ep.qp()?.post_plain(&request) {
                Ok(_) => Ok(()),
                Err(error) => Err(core.not_posted_to(ep.handle, error)),
            };
        }
        // A bind of no bytes needs no region.
        let to = Bind { region: 0, flags: LinkFlags::empty(), addr: 0, length: 0 };
        core.post_bind(&ep, &rmr, to, cookie, dto_flags).map(|_| ())
    }
}

impl Core {
    /// Posts a bind to a range of a region. Returns the window's new remote key.
    fn post_bind(&self, ep: &Ep, rmr: &Rmr, to: Bind, cookie: u64, flags: DtoFlags) -> Result<u32> {
        let shadow = Shadow { cookie, data: data(flags, EventType::RMR_LINK_CMPL) };
        let posted = ep.qp()?.post_bind(&rmr.window, to, send_flags(flags), shadow);
        posted.map_err(|error| self.not_posted_to(ep.handle, error))
    }
}
