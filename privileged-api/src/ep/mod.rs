//! Endpoints: query, reset, freeing (pages it_ep_query, it_ep_reset, it_ep_free,
//! it_ep_attributes_t).
//!
//! An endpoint is reliable connected, with the states of `state`, or an unreliable datagram
//! endpoint (`ud`, `datagram`), which is operational or not. Calls for connected endpoints only
//! look endpoints up by [`Core::rc`].
//!
//! The object is in `objects::ep`. Locks, outermost first: `operation` (sleeps; held by calls that
//! change the endpoint), an identifier's turn (see `cm`), the table entry, `control`, an EVD's
//! queue, the slot or the IA's `unanswered`. The dispatcher thread takes only `control` and the
//! locks after it.

pub(crate) mod atomic;
pub(crate) mod borrowed;
pub(crate) mod connect;
mod create;
mod datagram;
mod immediate;
mod modify;
pub(crate) mod post;
pub(crate) mod state;
mod ud;
mod unlink;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use state::Trigger;

use crate::address::Path;
use crate::attributes::{EpAttributes, EpParam, EpState, EpStateRc, EpStateUd};
use crate::evd::EventStreams;
use crate::evd::callback::Origin;
use crate::event::{Event, RejectReason};
use crate::flags::{EpParamMask, ServiceTypes};
use crate::handle::{EpHandle, EvdHandle, PzHandle};
use crate::ia::{Core, Ia, SPIGOT};
use crate::objects::ep::{Ep, Queued};
use crate::objects::evd::Evd;
use crate::status::{Error, Result};

impl Core {
    pub(crate) fn ep(&self, ep: EpHandle) -> Result<Arc<Ep>> {
        self.eps.get(ep).ok_or(Error::InvalidEp)
    }

    /// A reliable connected endpoint; fails for a datagram endpoint.
    pub(crate) fn rc(&self, ep: EpHandle) -> Result<Arc<Ep>> {
        let ep = self.ep(ep)?;
        if ep.is_ud() { Err(Error::InvalidEpType) } else { Ok(ep) }
    }

    /// Looks the endpoint up again, for a caller that has taken its operation lock: before that,
    /// another call may have freed the endpoint, or reset it, so that it has another queue pair.
    /// Fails if the lock is no longer the endpoint's, because the endpoint was recreated.
    pub(crate) fn as_it_is(&self, ep: &Ep) -> Result<Arc<Ep>> {
        let now = self.ep(ep.handle)?;
        if Arc::ptr_eq(&now.common, &ep.common) { Ok(now) } else { Err(Error::InvalidEpState) }
    }

    /// Handles an endpoint's failure: changes the state, then queues the one event that reports it.
    /// `qpn` is the queue pair that failed; if the endpoint had it before a reset, nothing happens.
    pub(crate) fn broken(&self, ep: EpHandle, qpn: Option<u32>, origin: Origin<'_>) {
        let Some(ep) = self.eps.get(ep) else { return };
        let queued = {
            let mut control = ep.control.lock();
            // Checked under the lock: before, another call may have reset the endpoint, which may
            // have another connection by now.
            let failed = |ep: Arc<Ep>| qpn.is_none_or(|qpn| qpn == ep.pair.number());
            if !self.as_it_is(&ep).is_ok_and(failed) {
                return;
            }
            if ep.is_ud() {
                // The change of state has no event; the event of the failure itself reports it.
                ep.fail();
                return;
            }
            let Ok(from) = ep.advance(&mut control, Trigger::End) else { return };
            let (evd, handle) = (ep.connect.handle(), ep.handle);
            let event = if from == EpStateRc::Connected {
                Event::ConnBroken { evd, ep: handle }
            } else {
                let reject_reason_code = RejectReason::Other;
                Event::ConnNonpeerReject { evd, ep: handle, reject_reason_code, dst_path: None }
            };
            ep.connect.queue(&mut control, event)
        };
        self.queued(&ep, queued, origin);
    }

    /// Breaks all endpoints whose completions go to an EVD that failed. They can only be freed.
    pub(crate) fn lose_endpoints(&self, evd: &Evd, origin: Origin<'_>) {
        for ep in self.eps.all() {
            if ep.request.handle == evd.handle || ep.recv.handle == evd.handle {
                ep.lost.store(true, Ordering::Release);
                self.broken(ep.handle, None, origin);
            }
        }
    }

    /// Frees an endpoint in any state.
    pub(crate) fn free_ep(&self, ep: EpHandle) {
        let Some(ep) = self.eps.invalidate(ep) else { return };
        {
            let mut control = ep.control.lock();
            // From here on no event of the endpoint is queued, and no identifier is made for it.
            if !ep.is_ud() {
                ep.state.store(EpStateRc::Nonoperational as u8, Ordering::Release);
            }
            control.connection.part();
        }
        self.unanswered.lock().forget_ep(ep.handle);
        // Also ends the connection. Fails only if the device is dead.
        let _ = ep.pair.destroy();
        ep.forget_completions(ep.pair.number());
        // Another endpoint may get the index only after the queue pair is destroyed.
        self.eps.release(ep.handle);
        ep.request.end();
        ep.recv.end();
        ep.connect.end();
        ep.zone.end();
    }

    /// Wakes the waiters of an event that was queued.
    pub(crate) fn queued(&self, ep: &Ep, queued: Queued, origin: Origin<'_>) {
        let Some(evd) = ep.connect.0.as_deref() else { return };
        match queued.0 {
            Some(true) => self.announce(evd, origin),
            Some(false) => self.overflow(evd, EventStreams::MESSAGES, origin),
            None => {}
        }
    }

    /// Queues an event of an endpoint, unless the endpoint is freed: no event of it is queued after
    /// it_ep_free has returned.
    pub(crate) fn tell(&self, ep: &Ep, event: Event, origin: Origin<'_>) {
        let Some(evd) = ep.connect.0.as_deref() else { return };
        match self.eps.with(ep.handle, |_| evd.push(event)) {
            Some(true) => self.announce(evd, origin),
            Some(false) => self.overflow(evd, EventStreams::MESSAGES, origin),
            None => {}
        }
    }
}

impl Ia {
    /// Returns the endpoint's present parameters. A mask with fields of the other service type is
    /// an error, but `ALL` leaves them out. For a datagram endpoint `connect_sevd` is null and
    /// `dst_path` undefined.
    ///
    /// Errors: `InvalidEp`, `InvalidMask`, `InvalidEpType`, `InvalidIa`, `IaCatastrophe`. Does not
    /// block. May be called in callbacks. Thread-safe. Page it_ep_query.
    #[doc(alias = "it_ep_query")]
    pub fn ep_query(&self, ep: EpHandle, mask: EpParamMask) -> Result<EpParam> {
        let core = self.live()?;
        let ep = core.ep(ep)?;
        if EpParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let ud = ep.is_ud();
        if mask.intersects(if ud { RC_ONLY } else { UD_ONLY }) {
            return Err(Error::InvalidEpType);
        }
        let wants = |bit| mask.intersects(bit | EpParamMask::ALL);
        let handle = |bit, handle| if wants(bit) { handle } else { EvdHandle::NULL };
        let control = ep.control.lock();
        let state = ep.reported_state();
        let connecting = state != EpState::Rc(EpStateRc::Unconnected);
        let unknown =
            if ud { EpState::Ud(EpStateUd::Nonoperational) } else { EpState::Rc(EpStateRc::default()) };
        let known = control.attr;
        let mut attr = EpAttributes {
            max_dto_payload_size: 0,
            max_request_dtos: 0,
            max_recv_dtos: 0,
            max_send_segments: 0,
            max_recv_segments: 0,
            ..EpAttributes::default()
        };
        select(&mut attr, &known, mask);
        Ok(EpParam {
            ia: if wants(EpParamMask::IA) { core.handle } else { Default::default() },
            spigot_id: if wants(EpParamMask::SPIGOT) && connecting { SPIGOT } else { 0 },
            ep_state: if wants(EpParamMask::STATE) { state } else { unknown },
            service_type: match (wants(EpParamMask::SERV_TYPE), ud) {
                (false, _) => ServiceTypes::empty(),
                (true, false) => ServiceTypes::RC,
                (true, true) => ServiceTypes::UD,
            },
            dst_path: if wants(EpParamMask::PATH) && connecting && !ud {
                control.path
            } else {
                Path::default()
            },
            pz: if wants(EpParamMask::PZ) { ep.zone.handle } else { PzHandle::NULL },
            request_sevd: handle(EpParamMask::REQ_SEVD, ep.request.handle),
            recv_sevd: handle(EpParamMask::RECV_SEVD, ep.recv.handle),
            connect_sevd: handle(EpParamMask::CONN_SEVD, ep.connect.handle()),
            attr,
        })
    }

    /// The number of the endpoint's queue pair, for fault injection and diagnostics. An extension.
    ///
    /// Errors: `InvalidEp`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe.
    pub fn ep_qpn(&self, ep: EpHandle) -> Result<u32> {
        let core = self.live()?;
        core.ep(ep).map(|ep| ep.pair.number())
    }

    /// The control field of the descriptor of the endpoint's latest request, on an IA over VIA: for
    /// diagnostics. An extension.
    ///
    /// Errors: `InvalidEp`, `InvalidEpType` (not over VIA), `InvalidIa`, `IaCatastrophe`. Does not
    /// block. May be called in callbacks. Thread-safe.
    pub fn ep_last_control(&self, ep: EpHandle) -> Result<u16> {
        let core = self.live()?;
        let ep = core.ep(ep)?;
        let control = ep.pair.vi().and_then(|vi| vi.last_control()).ok_or(Error::InvalidEpType)?;
        Ok(control.bits())
    }

    /// The number of the endpoint's requests, and of its Receives, whose completions were not taken
    /// yet. A request without [`DtoFlags::COMPLETION`](crate::DtoFlags::COMPLETION) counts until a
    /// later completion of the endpoint is taken. An extension.
    ///
    /// Errors: `InvalidEp`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe.
    pub fn ep_outstanding(&self, ep: EpHandle) -> Result<(usize, usize)> {
        let core = self.live()?;
        let (requests, receives) = core.ep(ep)?.pair.outstanding();
        Ok((requests as usize, receives as usize))
    }

    /// Resets an endpoint from NONOPERATIONAL to UNCONNECTED; its attributes stay. Completions that
    /// were not dequeued are lost.
    ///
    /// Errors: `InvalidEp`, `InvalidEpState`, `InvalidEpType`, `CannotReset` (an EVD of its
    /// completions overflowed), `InvalidIa`, `IaCatastrophe`. Blocks for the device. May be called
    /// in callbacks. Thread-safe. Page it_ep_reset.
    #[doc(alias = "it_ep_reset")]
    pub fn ep_reset(&self, ep: EpHandle) -> Result<()> {
        let core = self.call()?;
        let first = core.rc(ep)?;
        let _operation = first.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&first)?;
        let attr = {
            let control = ep.control.lock();
            state::next(ep.state(), Trigger::Reset)?;
            control.attr
        };
        if ep.lost.load(Ordering::Acquire) {
            return Err(Error::CannotReset);
        }
        // From here on, requests are refused until they go to the new queue pair.
        ep.pair.withdraw();
        ep.control.lock().connection.part();
        let pair = match core.new_pair(&ep.common, &ep.limits, &attr) {
            // The old queue pair may be the last one that the device has room for.
            Err(Error::Resources) => {
                let _ = ep.pair.destroy();
                core.new_pair(&ep.common, &ep.limits, &attr)?
            }
            created => created?,
        };
        let renewed = Ep::shared(pair, ep.limits, ep.common.clone())?;
        let former = core.eps.replace(ep.handle, renewed);
        // The slot had no queue pair for a moment. If the IA ended then, it closed all slots but
        // this one, which is closed here.
        core.adapter.created(|| ep.close_slot());
        let former = match former {
            Ok(former) => former,
            Err(late) => {
                let _ = late.pair.destroy();
                return Err(Error::InvalidEp);
            }
        };
        // Identifiers of the endpoint that the consumer did not answer become invalid.
        core.unanswered.lock().forget_ep(ep.handle);
        // Ends the old connection. The queue pair may be destroyed already.
        let _ = former.pair.destroy();
        former.forget_completions(former.pair.number());
        let mut control = ep.control.lock();
        ep.advance(&mut control, Trigger::Reset)?;
        control.path = Path::default();
        Ok(())
    }

    /// Destroys an endpoint in any state. When this returns, no event of it is queued any more, and
    /// the device touches none of its buffers.
    ///
    /// Completions that were not dequeued are lost. To get them all: disconnect, dequeue the
    /// disconnect event, then dequeue completions up to that of the last work request.
    ///
    /// Errors: `InvalidEp`, `EpBusy` while a narrow RMR is linked through the endpoint (unlink or
    /// free the RMR first), `InvalidIa`, `IaCatastrophe`. Blocks for the device. May be called in
    /// callbacks. Thread-safe: a call that races with it succeeds or finds the handle invalid. Page
    /// it_ep_free.
    #[doc(alias = "it_ep_free")]
    pub fn ep_free(&self, ep: EpHandle) -> Result<()> {
        let core = self.call()?;
        let ep = core.ep(ep)?;
        let _operation = ep.operation.lock(&core.shared.platform);
        core.as_it_is(&ep)?;
        // The device counts the narrow RMRs that are linked through the endpoint.
        if !ep.is_ud() && ep.pair.destroy_unless_bound() == Err(kernel_agent::Error::Busy) {
            return Err(Error::EpBusy);
        }
        core.free_ep(ep.handle);
        core.still_live().or_else(|error| if error == Error::IaCatastrophe { Ok(()) } else { Err(error) })
    }
}

/// Attributes that only RC endpoints have.
const RC_ONLY: EpParamMask = EpParamMask::RDMA_RD_ENABLE
    .union(EpParamMask::RDMA_WR_ENABLE)
    .union(EpParamMask::MAX_RDMA_READ_SEG)
    .union(EpParamMask::MAX_RDMA_WRITE_SEG)
    .union(EpParamMask::MAX_IRD)
    .union(EpParamMask::MAX_ORD)
    .union(EpParamMask::SRQ)
    .union(EpParamMask::SOFT_HI_WATERMARK)
    .union(EpParamMask::HARD_HI_WATERMARK)
    .union(EpParamMask::ATOMICS_ENABLE);
/// Attributes that only UD endpoints have.
const UD_ONLY: EpParamMask = EpParamMask::EP_ID.union(EpParamMask::EP_KEY);

/// Copies the attributes that the mask asks for.
fn select(into: &mut EpAttributes, from: &EpAttributes, mask: EpParamMask) {
    let wants = |bit| mask.intersects(bit | EpParamMask::ALL);
    macro_rules! select {
        ($($bit:ident => $($field:ident).+;)*) => {
            $(if wants(EpParamMask::$bit) { into.$($field).+ = from.$($field).+; })*
        };
    }
    select! {
        MAX_PAYLOAD => max_dto_payload_size;
        MAX_REQ_DTO => max_request_dtos;
        MAX_RECV_DTO => max_recv_dtos;
        MAX_SEND_SEG => max_send_segments;
        MAX_RECV_SEG => max_recv_segments;
        RDMA_RD_ENABLE => rc.rdma_read_enable;
        RDMA_WR_ENABLE => rc.rdma_write_enable;
        MAX_RDMA_READ_SEG => rc.max_rdma_read_segments;
        MAX_RDMA_WRITE_SEG => rc.max_rdma_write_segments;
        MAX_IRD => rc.rdma_read_ird;
        MAX_ORD => rc.rdma_read_ord;
        SRQ => rc.srq;
        SOFT_HI_WATERMARK => rc.soft_hi_watermark;
        HARD_HI_WATERMARK => rc.hard_hi_watermark;
        ATOMICS_ENABLE => rc.atomics_enable;
        PRIV_OPS_ENABLE => priv_ops_enable;
        EP_ID => ud.ep_info.ud_ep_id;
        EP_KEY => ud.ep_info.ud_ep_key;
    }
}
