//! Linking remote memory regions to parts of local ones and unlinking them, by work requests (pages
//! it_rmr_link, it_rmr_unlink).
//!
//! A call reports faults of the range (`Address`, `InvalidLength`). The device checks zones,
//! rights, the LMR's addressing and the region's state when it executes the request, and the
//! completion reports faults. The completion also reports a link of a narrow region with length 0
//! as a fault, as the page requires for InfiniBand.

use api_core::handle::index;
use kernel_agent::{Bind, LinkFlags, Operation, Request, Shadow};

use super::{Linking, Rmr};
use crate::address::RmrContext;
use crate::attributes::AddrMode;
use crate::ep::Ep;
use crate::ep::post::{LINK_FLAGS, UNLINK_FLAGS, check_flags, data, send_flags};
use crate::evd::dto::tag;
use crate::event::EventType;
use crate::flags::{DtoFlags, MemPriv};
use crate::handle::{EpHandle, LmrHandle, RmrHandle};
use crate::ia::{Core, Ia};
use crate::lmr::remote_rights;
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
    /// `InvalidLength` (past the end; 0 for a wide region), `InvalidEpState`, `InvalidEpType`,
    /// `TooManyPosts`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_rmr_link.
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
        if length == 0 && !rmr.narrow {
            return Err(Error::InvalidLength);
        }
        let mut rights = remote_rights(privs);
        rights.set(LinkFlags::RELATIVE, addr_mode == AddrMode::Relative);
        let (privs, qpn) = (privs.difference(MemPriv::LOCAL), ep.qp().qpn());
        let linking = Linking { key: 0, qpn, lmr, privs, ep: ep.handle };
        let key = region.with_range(addr, length, |region_key| {
            ep.takes_requests()?;
            let to = Bind { region: region_key, flags: rights, addr: addr as u64, length };
            core.post_bind(&ep, &rmr, to, linking, cookie, dto_flags)
        })?;
        Ok(RmrContext::from_key(key))
    }

    /// Posts the unlink of a remote memory region, which need not be linked.
    ///
    /// Requests that are posted to the endpoint afterwards wait for it. Completes as
    /// `IT_RMR_LINK_CMPL_EVENT` on the endpoint's request EVD. If it fails, the link and its
    /// context stay in force. The unlink fence is for narrow regions only.
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
        // On InfiniBand a bind unlinks a wide region, and binds have no unlink fence
        // (it_dto_flags_t).
        if dto_flags.contains(DtoFlags::UNLINK_FENCE) && !rmr.narrow {
            return Err(Error::InvalidDtoFlags);
        }
        ep.takes_requests()?;
        if rmr.narrow {
            let links = rmr.links.lock();
            let shadow = Shadow { cookie, data: data(dto_flags, EventType::RMR_LINK_CMPL) };
            let operation = Operation::LocalInvalidate { key: links.posted.now().key };
            let request = Request { operation, flags: send_flags(dto_flags), shadow };
            return match ep.qp().post_plain(&request) {
                Ok(_) => Ok(()),
                Err(error) => Err(core.not_posted_to(ep.handle, error)),
            };
        }
        let nothing = Linking { qpn: ep.qp().qpn(), ..Linking::none(0) };
        // A bind of no bytes needs no region.
        let to = Bind { region: 0, flags: LinkFlags::empty(), addr: 0, length: 0 };
        core.post_bind(&ep, &rmr, to, nothing, cookie, dto_flags).map(|_| ())
    }
}

impl Core {
    /// Posts a bind to a range of a region. Returns the window's new key.
    fn post_bind(
        &self,
        ep: &Ep,
        rmr: &Rmr,
        to: Bind,
        mut linking: Linking,
        cookie: u64,
        flags: DtoFlags,
    ) -> Result<u32> {
        let mut links = rmr.links.lock();
        // A region has variant 0 before its first link.
        let variant = links.variant.checked_add(1).unwrap_or(1);
        let word = data(flags, EventType::RMR_LINK_CMPL) | tag::link(index(rmr.handle.as_raw()), variant);
        let shadow = Shadow { cookie, data: word };
        let posted = ep.qp().post_bind(&rmr.window, variant, to, send_flags(flags), shadow);
        let key = posted.map_err(|error| self.not_posted_to(ep.handle, error))?;
        linking.key = key;
        links.variant = variant;
        links.posted.push(linking);
        Ok(key)
    }

    /// Removes a link that was posted to this queue pair and failed: an earlier one is still in
    /// force.
    pub(crate) fn rmr_link_failed(&self, qpn: u32, word: u32) {
        let (place, variant) = tag::linked(word);
        if place == 0 {
            return;
        }
        let Some(rmr) = self.rmrs.at(place) else { return };
        rmr.links.lock().posted.failed(qpn, variant);
    }

    /// Removes the links of a destroyed queue pair, except the link in force: outstanding links are
    /// never executed.
    pub(crate) fn drop_rmr_links(&self, qpn: u32) {
        for rmr in self.rmrs.all() {
            if !rmr.links.lock().posted.any(|link| link.qpn == qpn) {
                continue;
            }
            // Only the device has the key of the link in force.
            if let Ok(info) = rmr.window.query() {
                rmr.links.lock().posted.dropped(qpn, Linking::none(info.key));
            }
        }
    }
}
