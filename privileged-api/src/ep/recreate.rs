//! Replacing an unconnected endpoint under the same handle. An extension of the API.

use crate::attributes::{EpAttributes, EpStateRc};
use crate::flags::EpFlags;
use crate::handle::{EpHandle, EvdHandle, PzHandle};
use crate::ia::Ia;
use crate::objects::ep::Ep;
use crate::status::{Error, Result};

impl Ia {
    /// Replaces an endpoint in UNCONNECTED by a new one with the same handle and context, as
    /// [`Ia::ep_rc_create`] makes it from these arguments. For what [`Ia::ep_modify`] cannot
    /// change: the protection zone, the event dispatchers, the sizes of the queues. Receives that
    /// were posted are lost. An extension of the API.
    ///
    /// Errors: those of [`Ia::ep_rc_create`] and `InvalidEp`, `InvalidEpState`, `InvalidEpType`;
    /// the endpoint is then as before, but for Receives that were posted. If there is no memory for
    /// that either, the endpoint can only be freed. A call that waits for this one on the same
    /// endpoint fails with `InvalidEpState`. Blocks for the device. Not for callbacks. Thread-safe.
    #[expect(clippy::too_many_arguments, reason = "those of it_ep_rc_create, and the endpoint")]
    pub fn ep_rc_recreate(
        &self,
        ep: EpHandle,
        pz: PzHandle,
        request_sevd: EvdHandle,
        recv_sevd: EvdHandle,
        connect_sevd: EvdHandle,
        flags: EpFlags,
        ep_attr: &EpAttributes,
    ) -> Result<()> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let found = core.rc(ep)?;
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        if ep.state() != EpStateRc::Unconnected {
            return Err(Error::InvalidEpState);
        }
        let evds = [request_sevd, recv_sevd, connect_sevd];
        let (common, limits, attr) = core.rc_parts(ep.handle, pz, evds, flags, ep_attr)?;
        common.context.set(ep.context.get());
        // The endpoint's slot has one queue pair at a time.
        ep.pair.withdraw();
        let (renewed, made) = match core.new_pair(&common, &limits, &attr) {
            Ok(pair) => (Ep::shared(pair, limits, common)?, Ok(())),
            Err(error) => {
                let (attr, common) = (ep.control.lock().attr, ep.common.clone());
                // Leaves room in the device for a queue pair like the old one.
                let _ = ep.pair.destroy();
                let pair = core.new_pair(&common, &ep.limits, &attr)?;
                (Ep::shared(pair, ep.limits, common)?, Err(error))
            }
        };
        let former = core.eps.replace(ep.handle, renewed);
        core.adapter.created(|| ep.close_slot());
        match former {
            Ok(former) => {
                let _ = former.pair.destroy();
                former.forget_completions(former.pair.number());
                if made.is_ok() {
                    former.request.end();
                    former.recv.end();
                    former.connect.end();
                    former.zone.end();
                }
                made
            }
            Err(late) => {
                let _ = late.pair.destroy();
                Err(Error::InvalidEp)
            }
        }
    }
}
