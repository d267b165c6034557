//! Translates IT-API's connection events to DAT's.

use privileged_api as it;

use crate::event::{Connection, EventNumber};
use crate::handle::EpHandle;
use crate::ia::Inner;

impl Inner {
    /// The number and the data of a connection event; `None` for another event.
    pub(crate) fn connection_event(&self, event: &it::Event) -> Option<(EventNumber, Connection)> {
        use it::Event as It;
        let (number, ep, private_data) = match *event {
            It::ConnEstablished { ep, private_data, .. } => {
                (EventNumber::CONNECTION_ESTABLISHED, ep, private_data)
            }
            It::ConnDisconnect { ep, private_data, .. } => {
                (EventNumber::CONNECTION_DISCONNECTED, ep, private_data)
            }
            It::ConnPeerReject { ep, private_data, .. } => {
                (EventNumber::CONNECTION_PEER_REJECTED, ep, private_data)
            }
            It::ConnNonpeerReject { ep, reject_reason_code, .. } => {
                let passive = self.eps.get(EpHandle::of(ep)).is_some_and(|ep| ep.control.lock().passive);
                let number = match reject_reason_code {
                    _ if passive => EventNumber::CONNECTION_ACCEPT_COMPLETION_ERROR,
                    it::RejectReason::Timeout => EventNumber::CONNECTION_TIMED_OUT,
                    _ => EventNumber::CONNECTION_NON_PEER_REJECTED,
                };
                (number, ep, None)
            }
            It::ConnBroken { ep, .. } => (EventNumber::CONNECTION_BROKEN, ep, None),
            _ => return None,
        };
        Some((number, Connection { ep_handle: EpHandle::of(ep), private_data }))
    }
}
