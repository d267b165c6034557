//! The traffic of TCP streams: packets in and out, by the port or by the short cut, and what the
//! users of streams are told.
//!
//! A packet goes by the short cut if the NIC of its address is on it, and else by the port. By the
//! short cut it goes to the inbox of that NIC's streams. TCP is the same on both ways, so that a
//! connection has the same outcomes.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use nic_abi::eqe::EventType;
use platform::Instant;
use tcp::{Egress, Polled, Ready};

use crate::fabric::{Fabric, find};
use crate::frontend::Frontend;
use crate::ids::NicId;
use crate::nic::Nic;
use crate::node::Node;
use crate::port::{Port, Unsent};
use crate::report::event;
use crate::schedule::Schedule;
use crate::streams::{Told, gid_of};
use crate::uplink::Uplink;
use crate::wire::Wire;

/// Packets, timers and looks at streams in a turn of the NIC; and packets of its inbox.
const STEPS: usize = 64;
/// Streams and listeners whose users are told what happened in a turn of the NIC, at most.
const TOLD: u32 = 64;

/// The port as the way of streams' packets.
struct ByPort<'a, W> {
    port: &'a mut Port,
    wire: &'a mut W,
    output: &'a mut [u8],
    now: Instant,
}

impl<'a, W: Wire> ByPort<'a, W> {
    fn new(uplink: &'a mut Uplink<W>, now: Instant) -> ByPort<'a, W> {
        let Uplink { port, wire, output, .. } = uplink;
        ByPort { port, wire, output, now }
    }
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
        }
    }
}

/// A packet on the short cut.
struct Parcel {
    to: NicId,
    packet: Vec<u8>,
}

/// Both ways of the packets of a NIC.
struct Ways<'a, F: Frontend> {
    nodes: &'a [Node<F>],
    from: NicId,
    port: Option<ByPort<'a, F::Wire>>,
    parcels: Vec<Parcel>,
    sent: u32,
}

impl<F: Frontend> Ways<'_, F> {
    /// The NIC of an address, if it is on the short cut.
    fn neighbour(&self, to: IpAddr) -> Option<NicId> {
        find(self.nodes, self.from, &gid_of(to).0)
    }
}

impl<F: Frontend> Egress for Ways<'_, F> {
    fn ready(&mut self, from: IpAddr, to: IpAddr) -> Ready {
        let Some(neighbour) = self.neighbour(to) else {
            return self.port.as_mut().map_or(Ready::Unreachable, |port| port.ready(from, to));
        };
        let nic = |id: NicId| self.nodes.get(id.index()).map(|node| &node.nic);
        if !nic(self.from).is_some_and(|nic| nic.port_up) {
            return Ready::Unreachable;
        }
        // Its own streams are not there while they are being polled.
        let streams = nic(neighbour).and_then(|nic| nic.streams.as_ref());
        let has_room = self.parcels.len() < STEPS && streams.is_none_or(|streams| streams.has_room());
        if has_room { Ready::Now } else { Ready::Full }
    }

    fn send(&mut self, from: IpAddr, to: IpAddr, len: usize, fill: impl FnOnce(&mut [u8])) {
        self.sent += 1;
        match self.neighbour(to) {
            None => {
                if let Some(port) = &mut self.port {
                    port.send(from, to, len, fill);
                }
            }
            Some(to) => {
                let mut packet = vec![0; len];
                fill(&mut packet);
                self.parcels.push(Parcel { to, packet });
            }
        }
    }
}

impl<F: Frontend> Nic<F> {
    /// Takes an IP packet for streams that has come by the port. The answer goes back that way.
    pub fn take_segment(&mut self, packet: &[u8], now: Instant) {
        let (Some(uplink), Some(streams)) = (&mut self.uplink, &mut self.streams) else { return };
        // The streams count what they drop.
        let _ = streams.tcp.input(packet, now, &mut ByPort::new(uplink, now));
        streams.untold = true;
    }

    /// When the streams must have a turn at the latest.
    pub fn streams_deadline(&self) -> Option<Instant> {
        let has_room = self.uplink.as_ref().is_none_or(|uplink| uplink.wire.has_room());
        self.streams.as_ref()?.deadline(has_room)
    }
}

impl<F: Frontend> Fabric<F> {
    /// Gives the streams of a NIC their turn, if there is something to do.
    #[inline(never)]
    pub(crate) fn serve_streams(&mut self, id: NicId) {
        let Some(node) = self.nodes.get_mut(id.index()) else { return };
        let now = self.schedule.now;
        if node.nic.streams_deadline().is_none_or(|at| at > now) {
            return;
        }
        let Some(mut streams) = node.nic.streams.take() else { return };
        let mut uplink = node.nic.uplink.take();
        let mut ways = Ways {
            nodes: &self.nodes,
            from: id,
            port: uplink.as_deref_mut().map(|uplink| ByPort::new(uplink, now)),
            parcels: Vec::new(),
            sent: 0,
        };
        streams.leave(now);
        let mut came = 0;
        while came < STEPS
            && let Some((from, packet)) = streams.next_packet()
        {
            // The streams count what they drop.
            let _ = match from == id {
                true => streams.tcp.input_own(&packet, now, &mut ways),
                false => streams.tcp.input(&packet, now, &mut ways),
            };
            came += 1;
        }
        streams.full = streams.tcp.poll(now, STEPS, &mut ways) == Polled::Full;
        streams.untold = true;
        let Ways { parcels, sent, .. } = ways;
        self.schedule.charge(1 + came as u32 + sent);
        if streams.has_left(now)
            && let Some(uplink) = &mut uplink
        {
            uplink.port.take_segments(false);
        }
        if let Some(node) = self.nodes.get_mut(id.index()) {
            (node.nic.streams, node.nic.uplink) = (Some(streams), uplink);
        }
        for Parcel { to, packet } in parcels {
            self.put_packet(id, to, packet);
        }
        if let Some(node) = self.nodes.get_mut(id.index()) {
            node.tell_of_streams(&mut self.schedule);
        }
    }

    /// Puts a packet into the inbox of a NIC's streams.
    fn put_packet(&mut self, from: NicId, to: NicId, packet: Vec<u8>) {
        let Some(Node { nic, .. }) = self.nodes.get_mut(to.index()) else { return };
        if (nic.running() || nic.is_leaving())
            && nic.port_up
            && let Some(streams) = &mut nic.streams
        {
            nic.has_packets = true;
            streams.put(from, packet);
        }
    }
}

impl<F: Frontend> Node<F> {
    /// Tells the driver and the queue pairs what happened to their streams.
    fn tell_of_streams(&mut self, schedule: &mut Schedule) {
        for _ in 0..TOLD {
            let Some(streams) = &mut self.nic.streams else { return };
            let Some(told) = streams.next_event() else { return };
            schedule.charge(1);
            match told {
                Told::Driver { eq, number, generation } => {
                    self.nic.post_event(eq, event(EventType::Stream, number, generation, 0));
                }
                Told::Qp(slot) => {
                    if let Some(qp) = self.qps.get_mut(slot) {
                        qp.stream_has_news();
                        schedule.activate(qp);
                    }
                }
                Told::Nobody => {}
            }
        }
    }
}
