//! Making connections of virtual interfaces (pages it_ep_connect, it_ep_accept, it_cm_msg_events).
//!
//! VIA's handshake has two ways: a request and an accept. Each end tells the other the longest
//! message of its endpoint, and both look whether it is theirs: the passive end when it accepts,
//! the active end before it confirms the accept. So the agent's handshake is the one of three ways,
//! of which consumers see nothing.

use rdma::via::Offer;

use super::LEVEL;
use crate::attributes::EpAttributes;

/// What an endpoint is to its peer. All endpoints have the same level and best effort.
pub(super) fn offer(attr: &EpAttributes) -> Offer {
    Offer {
        level: LEVEL,
        priority: 0,
        // Checked when the endpoint got it.
        max_transfer: attr.max_dto_payload_size as u32,
        accepts_write: attr.rc.rdma_write_enable,
        accepts_read: attr.rc.rdma_read_enable,
    }
}

/// Whether an endpoint of an IA can fit this peer, if its consumer chooses the longest message.
pub(super) fn can_fit(peer: &Offer) -> bool {
    let own = Offer { max_transfer: peer.max_transfer, ..offer(&EpAttributes::default()) };
    own.agrees(peer).is_ok()
}

#[cfg(test)]
mod tests {
    use kernel_agent::Reliability;

    use super::*;

    #[test]
    fn an_endpoint_can_have_each_longest_message_one_level_and_no_priority() {
        let good = Offer { max_transfer: 12345, ..offer(&EpAttributes::default()) };
        assert!(can_fit(&good));
        assert!(can_fit(&Offer { max_transfer: u32::MAX, accepts_read: true, accepts_write: true, ..good }));
        assert!(!can_fit(&Offer { priority: 1, ..good }));
        for level in [Reliability::Unreliable, Reliability::Delivery] {
            assert!(!can_fit(&Offer { level, ..good }));
        }
    }
}
