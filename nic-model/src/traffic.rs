//! What a NIC does with its port: frames in and out, link up and down, and the queue pairs that
//! wait for room in the wire or for a neighbour's MAC.

use alloc::boxed::Box;

use nic_abi::eqe::EventType;
use nic_abi::registers::{GIDS, STATUS_PORT_UP, State};
use platform::Instant;
use roce::Gid;

use crate::counters::PacketCounters;
use crate::error::AttachError;
use crate::fabric::Fabric;
use crate::frontend::Frontend;
use crate::ids::NicId;
use crate::nic::Nic;
use crate::node::Node;
use crate::port::{self, Input, MAX_ADDRESSES, Port};
use crate::qp::Qp;
use crate::report::event;
use crate::schedule::Schedule;
use crate::streams::Streams;
use crate::test_commands::faults::Mute;
use crate::uplink::{UNIT, Uplink};
use crate::wire::Wire;

/// Queue pairs that go on at once when the wire has room again, or when a neighbour has a MAC.
const RESUMED: u32 = 16;

const _: () = assert!(GIDS == 1 + MAX_ADDRESSES);

impl<F: Frontend> Nic<F> {
    /// Appends a queue pair to those that wait for room in the wire, unless it is among them.
    pub fn stall(&mut self, qp: &mut Qp) {
        if !core::mem::replace(&mut qp.stalled, true) {
            self.waiting.for_room(qp.id.slot);
        }
    }

    /// It is the turn of a queue pair that waits for room. It keeps its place among those that
    /// wait, unless there is room.
    #[cold]
    pub fn end_stall(&mut self, qp: &mut Qp) {
        if self.uplink.as_ref().is_none_or(|uplink| !uplink.port.up() || uplink.wire.has_room()) {
            self.waiting.has_room(qp.id.slot);
            qp.stalled = false;
        }
    }

    /// Appends a connected queue pair to those that wait for the MAC of its peer.
    #[cold]
    pub fn wait_for_peer(&mut self, qp: &mut Qp) {
        // Those that wait for one that was given up for this one.
        self.settle_neighbours();
        if !core::mem::replace(&mut qp.unresolved, true) {
            self.waiting.for_neighbour(qp.id.slot, Gid(qp.attributes.remote_gid));
        }
    }

    /// A queue pair waits for nothing any more.
    pub fn stop_waiting(&mut self, qp: &mut Qp) {
        if core::mem::take(&mut qp.stalled) {
            self.waiting.has_room(qp.id.slot);
        }
        if core::mem::take(&mut qp.unresolved) {
            self.waiting.forget_neighbour(qp.id.slot);
        }
    }

    /// Takes note of the neighbours that have a MAC now, and of those that the port has given up:
    /// what waits for them goes on, or is lost.
    #[inline]
    pub fn settle_neighbours(&mut self) {
        if self.uplink.as_ref().is_some_and(|uplink| uplink.port.has_settled()) {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        while let Some(uplink) = &mut self.uplink
            && let Some((gid, found)) = uplink.port.settled()
        {
            self.stats.dropped_datagrams += uplink.held.settle(gid, found);
            if let Some(streams) = &mut self.streams {
                streams.tcp.settled(gid.to_ip());
            }
            self.waiting.settle(gid, found);
        }
    }

    /// Whether the NIC does anything: its driver may not have started it yet.
    fn is_alive(&self) -> bool {
        self.mute == Mute::No && self.state != State::Failed
    }

    fn wire_is_up(&self) -> bool {
        self.uplink.as_ref().is_none_or(|uplink| uplink.wire.up())
    }

    /// Whether packets may reach others: by the link, or by the short cut.
    pub fn reaches_peers(&self) -> bool {
        self.wire_is_up() || !self.links.is_empty()
    }

    /// The port goes up and down with the link, unless the driver has taken it down. That of a NIC
    /// that is mute or has failed takes nothing and sends nothing, except for what ends its streams
    /// when their driver has gone.
    pub fn follow_link(&mut self, now: Instant) {
        let alive = self.is_alive();
        let acts = alive || self.is_leaving();
        let up = self.wire_is_up() && !self.port_disabled;
        if let Some(uplink) = &mut self.uplink {
            uplink.port.set_up(up && acts, now);
        }
        if up != self.port_up && alive {
            self.port_up = up;
            self.stats.link_downed += u64::from(!up);
            self.register(STATUS_PORT_UP).store(u32::from(up), core::sync::atomic::Ordering::Release);
        }
        self.report_port();
    }

    /// Reports to the driver whether the port is up, if it does not know. While the last such event
    /// is not consumed the next one waits: otherwise a link that goes up and down could fill the
    /// event queue.
    pub fn report_port(&mut self) {
        if self.port_up == self.port_reported || !self.running() {
            return;
        }
        if self.port_event.is_some_and(|index| self.event_waits(0, index)) {
            return;
        }
        self.port_reported = self.port_up;
        let what = if self.port_up { EventType::PortUp } else { EventType::PortDown };
        self.port_event = self.post_event(0, event(what, 0, 0, 0));
    }

    /// The port as after power-on: it knows no neighbours.
    pub fn reset_port(&mut self, now: Instant) {
        self.port_disabled = false;
        if let Some(uplink) = &mut self.uplink {
            uplink.port.set_up(false, now);
        }
        self.port_up = self.wire_is_up();
        (self.port_reported, self.port_event) = (self.port_up, None);
    }

    /// A queue pair has joined a group that no other had joined.
    pub fn begin_group(&mut self, gid: [u8; 16]) {
        if let Some(uplink) = &mut self.uplink {
            uplink.port.join(Gid(gid));
            uplink.wire.join(Gid(gid).to_ip());
        }
    }

    /// The last queue pair has left a group.
    pub fn end_group(&mut self, gid: [u8; 16]) {
        if let Some(uplink) = &mut self.uplink {
            uplink.port.leave(Gid(gid));
            uplink.wire.leave(Gid(gid).to_ip());
        }
    }

    /// The queue pair in a slot leaves a group.
    pub fn leave_group(&mut self, gid: [u8; 16], slot: u32) {
        if self.groups.leave(&gid, slot) == Some(true) {
            self.end_group(gid);
        }
    }

    /// When the port, the wire or the streams must be looked after at the latest.
    pub fn wire_deadline(&self) -> Option<Instant> {
        if !self.has_packets {
            return None;
        }
        let streams = self.streams_deadline();
        let Some(uplink) = &self.uplink else { return streams };
        [uplink.wire.deadline(), uplink.port.deadline(), streams].into_iter().flatten().min()
    }
}

impl<F: Frontend> Node<F> {
    /// Looks after link and port, and takes frames from the wire until the slice is over.
    #[inline(never)]
    pub fn take_frames(&mut self, schedule: &mut Schedule) {
        let now = schedule.now;
        let Some(uplink) = &mut self.nic.uplink else { return };
        uplink.wire.flush(now);
        if uplink.port.deadline().is_some_and(|at| at <= now) {
            uplink.port.poll(now);
        }
        let mut input = core::mem::take(&mut uplink.input);
        while let Some(uplink) = &mut self.nic.uplink {
            let came = uplink.wire.receive(&mut input, now);
            // The peer may have come or gone.
            self.nic.follow_link(now);
            let Some(frame) = came.and_then(|len| input.get(..len)) else { break };
            schedule.charge(1 + (frame.len() / UNIT) as u32);
            let Some(uplink) = &mut self.nic.uplink else { break };
            match uplink.port.receive(frame, now) {
                Input::Packet(arrival) => self.packet(schedule, &arrival),
                Input::Segment(packet) => self.nic.take_segment(packet, now),
                Input::Resolved(_) | Input::Consumed | Input::Dropped(_) => {}
            }
            if schedule.slice_is_over() {
                break;
            }
        }
        if let Some(uplink) = &mut self.nic.uplink {
            uplink.input = input;
        }
    }

    /// Lets queue pairs go on that waited for a neighbour, or for room in the wire if there is
    /// some. Those that waited longest come first.
    #[inline]
    pub fn resume_senders(&mut self, schedule: &mut Schedule) {
        self.nic.settle_neighbours();
        if self.nic.waiting.has_settled() {
            self.resume_settled(schedule);
        }
        if self.nic.waiting.next_for_room(None).is_some() {
            self.resume_stalled(schedule);
        }
    }

    #[cold]
    fn resume_settled(&mut self, schedule: &mut Schedule) {
        for _ in 0..RESUMED {
            let Some((slot, found)) = self.nic.waiting.next_settled() else { return };
            schedule.charge(1);
            if let Some(qp) = self.qps.get_mut(slot) {
                qp.neighbour_settled(schedule, found);
            }
        }
    }

    /// Gives the first that wait for room a turn. They stay among those that wait until it comes.
    #[cold]
    fn resume_stalled(&mut self, schedule: &mut Schedule) {
        let Some(uplink) = &self.nic.uplink else { return };
        if uplink.port.up() && !uplink.wire.has_room() {
            return;
        }
        let mut place = None;
        for _ in 0..RESUMED {
            place = self.nic.waiting.next_for_room(place);
            let Some(slot) = place else { return };
            if let Some(qp) = self.qps.get_mut(slot) {
                schedule.charge(u32::from(!qp.active));
                schedule.activate(qp);
            }
        }
    }

    /// Sends the port's own frames, and passes on what was sent in this turn.
    #[inline(never)]
    pub fn send_frames(&mut self, schedule: &mut Schedule) {
        if let Some(uplink) = &mut self.nic.uplink {
            self.nic.stats.dropped_datagrams += uplink.send_frames(schedule);
        }
        // A packet that was sent may have taken the place of a neighbour without a MAC.
        self.nic.settle_neighbours();
    }
}

impl<F: Frontend> Fabric<F> {
    /// Plugs the port of a NIC into a wire. The NIC's GIDs and its MTU become those of the port,
    /// and its port is up while the wire is.
    ///
    /// To be called before a driver looks at the NIC: its identity page changes.
    pub fn attach(&mut self, nic: NicId, wire: F::Wire, config: &port::Config) -> Result<(), AttachError> {
        let Node { nic, .. } = self.nodes.get_mut(nic.index()).ok_or(AttachError::NoNic)?;
        if nic.state != State::Idle {
            return Err(AttachError::Started);
        }
        let port = Port::new(config)?;
        nic.streams = Some(Box::new(Streams::new(config.mtu as usize, config.secret)?));
        nic.gids = port.gids().iter().map(|gid| gid.0).take(GIDS).collect();
        let ipv4 = port.gids().iter().copied().find_map(Gid::to_ipv4).map(|ipv4| ipv4.octets());
        nic.config.ipv4 = ipv4.unwrap_or_default();
        nic.config.mtu = port.path_mtu().bytes();
        nic.uplink = Some(Box::new(Uplink::new(port, wire)));
        nic.has_packets = true;
        nic.reset_port(self.schedule.now);
        nic.identify();
        nic.show_status();
        Ok(())
    }

    /// The wire that a NIC's port is plugged into.
    pub fn wire(&self, nic: NicId) -> Option<&F::Wire> {
        Some(&self.nodes.get(nic.index())?.nic.uplink.as_ref()?.wire)
    }

    /// The wire that a NIC's port is plugged into.
    pub fn wire_mut(&mut self, nic: NicId) -> Option<&mut F::Wire> {
        Some(&mut self.nodes.get_mut(nic.index())?.nic.uplink.as_mut()?.wire)
    }

    /// What the port of a NIC carried and dropped.
    pub fn port_counters(&self, nic: NicId) -> Option<&port::Counters> {
        Some(self.nodes.get(nic.index())?.nic.uplink.as_ref()?.port.counters())
    }

    /// What the port and the queue pairs of a NIC counted about packets, by name: where Linux's
    /// `hw_counters` have a counter it has its name.
    pub fn counters(&self, nic: NicId) -> impl Iterator<Item = (&'static str, u64)> {
        let port = self.port_counters(nic).into_iter().flat_map(port::Counters::all);
        port.chain(self.packet_counters(nic).into_iter().flat_map(PacketCounters::all))
    }

    /// What became of a NIC's TCP streams and of the connections over them, by name.
    pub fn stream_counters(&self, nic: NicId) -> impl Iterator<Item = (&'static str, u64)> {
        let nic = self.nodes.get(nic.index()).map(|node| &node.nic);
        let streams = nic.and_then(|nic| nic.streams.as_deref());
        let tcp = streams.into_iter().flat_map(|streams| streams.tcp.counters().all());
        tcp.chain(nic.into_iter().flat_map(|nic| nic.stream_ends.all()))
    }

    /// What the queue pairs of a NIC counted about packets: those that were dropped although the
    /// port had taken them, why requests failed or were repeated, and congestion.
    pub fn packet_counters(&self, nic: NicId) -> Option<&PacketCounters> {
        Some(&self.nodes.get(nic.index())?.nic.packets)
    }
}

#[cfg(test)]
mod tests {
    use roce::IpPrefix;
    use roce::wire::datagram::Network;

    use super::*;
    use crate::counters::PacketDropped;
    use crate::port::{Config, Sender, Unsent};
    use crate::testing::{Front, Rig, cable};
    use crate::wire::Wire;

    impl<W: Wire> Uplink<W> {
        fn send(&mut self, from: usize, to: Gid, now: Instant) -> Result<(), Unsent> {
            let network = Network::new(self.port.gids()[from], to, 0, 64).unwrap();
            let sender = Sender::default();
            let len = self.port.transmit(&network, sender, 0xc000, &mut self.output, now, |into| {
                into[..12].copy_from_slice(&[4, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 0]);
                Ok(12)
            })?;
            self.wire.send(&self.output[..len], now);
            Ok(())
        }
    }

    #[test]
    fn two_fabrics_find_each_other_and_packets_cross() {
        let mut n = 0;
        let mut rigs = cable().map(|end| {
            let mut rig = Rig::powered(1);
            n += 1;
            let address = IpPrefix::new([10, 0, 0, n].into(), 24).unwrap();
            rig.attach(0, end, &Config::new(n.into(), 1500, &[address]));
            rig
        });
        rigs.iter_mut().for_each(Rig::run);
        for from in 0..2 {
            let gids = rigs.each_mut().map(|rig| uplink(rig).port.gids().to_vec());
            for (index, to) in gids[1 - from].iter().copied().enumerate() {
                let send = |rig: &mut Rig| uplink(rig).send(index, to, Instant::ZERO);
                // The second finds what it was asked from.
                let first = send(&mut rigs[from]);
                assert_eq!(first, if from == 0 { Err(Unsent::Resolving) } else { Ok(()) });
                for n in [0, 1, 0, 1, 0] {
                    rigs[n].run();
                }
                assert_eq!(send(&mut rigs[from]), Ok(()));
                rigs[1 - from].run();
            }
        }
        for (rig, packets) in rigs.iter().zip([4, 2]) {
            assert_eq!(rig.port(0).packets_in, packets);
            let counters = rig.fabric.packet_counters(rig.nics[0].id).unwrap();
            assert_eq!(counters.dropped(PacketDropped::NotRunning), packets);
        }
    }

    fn uplink(rig: &mut Rig) -> &mut Uplink<<Front as Frontend>::Wire> {
        rig.fabric.nodes[0].nic.uplink.as_mut().unwrap()
    }
}
