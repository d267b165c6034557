//! Notifications of congestion (annex A17.9.3): a switch marks packets that go through a long
//! queue, their receiver notifies their sender, and the sender sends less.

use core::time::Duration;

use roce::wire::opcode::Opcode;
use roce::wire::{bth, packet};
use roce::{Psn, Qpn};

use super::Qp;
use crate::Frontend;
use crate::counters::Congestion;
use crate::nic::Nic;
use crate::schedule::Schedule;
use crate::wire::Wire;

/// The shortest time between two notifications of a queue pair.
const INTERVAL: Duration = Duration::from_micros(50);
/// Bytes behind the BTH, which are reserved.
const RESERVED: [u8; 16] = [0; 16];

impl Qp {
    /// Notifies the peer that a packet of its was marked. Where that is not possible now, the next
    /// packet that is marked does it.
    #[cold]
    pub fn report_congestion<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        let now = schedule.now;
        if !nic.running() || self.inbound.notified.is_some_and(|at| now < at + INTERVAL) {
            return;
        }
        let (Some(network), Some(peer)) = (self.network(nic), Qpn::new(self.attributes.remote_qpn)) else {
            return;
        };
        let Some(uplink) = &mut nic.uplink else { return };
        if !uplink.wire.has_room() {
            return;
        }
        let bth = bth::Repr::new(Opcode::CongestionNotification, peer, Psn::new(0));
        let bth = bth::Repr { becn: true, ..bth };
        let packet = packet::Repr { payload: &RESERVED, ..packet::Repr::new(bth) };
        let (sender, port) = (self.sender(), self.source_port());
        let built = uplink.port.transmit(&network, sender, port, &mut uplink.output, now, |into| {
            packet.emit(into)?;
            Ok(packet.len())
        });
        if let Ok(len) = built {
            uplink.wire.send(&uplink.output[..len], now);
            self.inbound.notified = Some(now);
            nic.packets.count_congestion(Congestion::Notified);
        }
    }

    /// The peer says that packets to it were marked.
    pub fn take_notification<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        let handled = self.requests.as_mut().is_some_and(|requests| requests.notified());
        nic.packets.count_congestion(if handled { Congestion::Handled } else { Congestion::Ignored });
    }
}
