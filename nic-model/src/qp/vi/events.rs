//! The events of a virtual interface, and what its level means for them.

use nic_abi::admin::QpState;
use nic_abi::eqe::{Eqe, EventType};
use nic_abi::vi::{Reliability, ViError};

use crate::Frontend;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::report::event;

impl Qp {
    /// Whether the connection survives an error of a request: on Unreliable Delivery.
    #[inline]
    pub(in crate::qp) fn survives_errors(&self) -> bool {
        self.vi.as_ref().is_some_and(|vi| !vi.level.is_reliable())
    }

    /// Whether it is a virtual interface of this level.
    #[inline]
    pub(in crate::qp) fn has_level(&self, level: Reliability) -> bool {
        self.vi.as_ref().is_some_and(|vi| vi.level == level)
    }

    /// Whether it is a virtual interface without a connection: posts to its send queue complete in
    /// error.
    #[inline]
    pub(in crate::qp) fn refuses_sends(&self) -> bool {
        self.vi.is_some() && matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr)
    }

    /// Raises an error event of a virtual interface. An event of the same error that the consumer
    /// has not consumed counts for this one too: otherwise errors could fill the event queue. But
    /// an error of a former connection, which had another number, does not count for this one.
    #[cold]
    pub(crate) fn post_vi_error<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        error: ViError,
        detail: u32,
        address: u64,
    ) {
        let Some(vi) = &mut self.vi else { return };
        let last = &mut vi.errors[error as usize];
        let counts = |number| error.is_of_post() || number == self.qpn;
        if last.is_some_and(|(index, number)| counts(number) && nic.event_waits(self.eq, index)) {
            return;
        }
        let entry = event(EventType::ViError, self.qpn, self.generation, detail);
        let index = nic.post_event(self.eq, Eqe { status: error as u8, address, ..entry });
        *last = index.map(|index| (index, self.qpn));
    }

    /// Raises the event of an armed ring.
    pub(super) fn post_vi_completion<F: Frontend>(&mut self, nic: &mut Nic<F>, receive: bool) {
        let Some(vi) = &mut self.vi else { return };
        let last = &mut vi.completions[usize::from(receive)];
        if last.is_some_and(|index| nic.event_waits(vi.completions_eq, index)) {
            return;
        }
        let what = event(EventType::ViCompletion, self.qpn, self.generation, u32::from(receive));
        *last = nic.post_event(vi.completions_eq, what);
    }

    /// The driver posted more to a virtual interface's send or receive queue than its ring has room
    /// for.
    pub(crate) fn overrun<F: Frontend>(&mut self, nic: &mut Nic<F>, receive: bool) {
        self.post_vi_error(nic, ViError::Overrun, u32::from(receive), 0);
    }
}
