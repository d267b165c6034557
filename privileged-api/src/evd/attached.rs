//! What a callback routine is, and how it is called.

use alloc::boxed::Box;

use crate::handle::EvdHandle;
use crate::ia::Ia;
use crate::objects::evd::Evd;

/// A routine that runs when an event dispatcher notifies.
///
/// It runs in the agent's dispatcher thread or in the IA's callback thread, with interrupts on, and
/// never twice at the same time. While it runs, other events of the NIC may have to wait, so it
/// should not wait itself. Calls that the page excludes return
/// [`Error::CallbackContext`](crate::Error::CallbackContext).
#[doc(alias = "it_evd_callback_rtn_t")]
pub type EvdCallback = Box<dyn FnMut(&Ia, EvdHandle) + Send>;

impl Evd {
    /// Runs the routine if it is scheduled, and again as long as it became due while it ran.
    pub(crate) fn run_callback(&self, ia: &Ia) {
        let call = |routine: &mut EvdCallback| {
            let _inside = ia.core().shared.interfaces.callbacks().enter();
            routine(ia, self.handle);
        };
        self.run(|| ia.core().runs_callbacks(), call);
    }
}
