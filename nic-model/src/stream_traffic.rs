//! The traffic of TCP streams: packets in and out by the port, and events to the driver.

use core::net::IpAddr;

use nic_abi::eqe::EventType;
use platform::Instant;
use tcp::{Egress, Polled, Ready};

use crate::frontend::Frontend;
use crate::node::Node;
use crate::port::{Port, Unsent};
use crate::report::event;
use crate::schedule::Schedule;
use crate::streams::{Told, gid_of};
use crate::uplink::Uplink;
use crate::wire::Wire;

/// Packets, timers and looks at streams in a turn of the NIC.
const STEPS: usize = 64;
/// Streams and listeners whose users are told what happened in a turn of the NIC, at most.
const TOLD: u32 = 64;

/// The port as the way of streams' packets.
struct ByPort<'a, W> {
    port: &'a mut Port,
    wire: &'a mut W,
    output: &'a mut [u8],
    now: Instant,
    sent: u32,
}

impl<W: Wire> Egress for ByPort<'_, W> {
    fn ready(&mut self, from: IpAddr, to: IpAddr) -> Ready {
        if self.port.up() && !self.wire.has_room() {
            return Ready::Full;
        }
        match self.port.way((gid_of(from), gid_of(to)), self.now) {
            Ok(()) => Ready::Now,
            Err(Unsent::Resolving) => Ready::Resolving,
            Err(_) => Ready::Unreachable,
        }
    }

    fn send(&mut self, from: IpAddr, to: IpAddr, len: usize, fill: impl FnOnce(&mut [u8])) {
        let frame = self.port.transmit_ip((gid_of(from), gid_of(to)), len, self.output, self.now, fill);
        if let Ok(len) = frame {
            self.wire.send(&self.output[..len], self.now);
            self.sent += 1;
        }
    }
}

impl<W: Wire> Uplink<W> {
    /// Takes an IP packet for streams.
    pub fn take_segment(&mut self, packet: &[u8], now: Instant) {
        let Uplink { port, wire, output, streams, .. } = self;
        let mut egress = ByPort { port, wire, output, now, sent: 0 };
        // The streams count what they drop.
        let _ = streams.tcp.input(packet, now, &mut egress);
        streams.untold = true;
    }

    /// Lets streams do what is due, and send. Returns the units of work.
    fn poll_streams(&mut self, now: Instant) -> u32 {
        let Uplink { port, wire, output, streams, .. } = self;
        let mut egress = ByPort { port, wire, output, now, sent: 0 };
        streams.full = streams.tcp.poll(now, STEPS, &mut egress) == Polled::Full;
        streams.untold = true;
        1 + egress.sent
    }
}

impl<F: Frontend> Node<F> {
    /// Gives the streams their turn, if there is something to do.
    #[inline]
    pub fn serve_streams(&mut self, schedule: &mut Schedule) {
        let Some(uplink) = &mut self.nic.uplink else { return };
        let due = uplink.streams.deadline(uplink.wire.has_room());
        if due.is_some_and(|at| at <= schedule.now) {
            self.serve_busy_streams(schedule);
        }
    }

    #[cold]
    fn serve_busy_streams(&mut self, schedule: &mut Schedule) {
        if let Some(uplink) = &mut self.nic.uplink {
            schedule.charge(uplink.poll_streams(schedule.now));
        }
        self.tell_of_streams(schedule);
    }

    /// Tells the driver and the queue pairs what happened to their streams.
    fn tell_of_streams(&mut self, schedule: &mut Schedule) {
        for _ in 0..TOLD {
            let Some(uplink) = &mut self.nic.uplink else { return };
            let Some(told) = uplink.streams.next_event(schedule.now) else { return };
            schedule.charge(1);
            match told {
                Told::Driver { eq, number, generation } => {
                    self.nic.post_event(eq, event(EventType::Stream, number, generation, 0));
                }
                Told::Qp(slot) => {
                    if let Some(qp) = self.qps.get_mut(slot) {
                        schedule.activate(qp);
                    }
                }
                Told::Nobody => {}
            }
        }
    }
}
