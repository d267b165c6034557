//! Datagrams: UD queue pairs and the general services queue pair. A datagram that its receiver does
//! not take is dropped, and no driver hears of it: a stranger must not be able to end a queue pair,
//! or to use up its receives, by sending what does not fit. [`ud::Datagram::judge`] decides what
//! the transport refuses.

use alloc::vec;
use core::mem::offset_of;

use nic_abi::admin::QpType;
use nic_abi::cqe::{CqeFlags, NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::ident::{QPN_BITS, qpn_slot};
use nic_abi::wqe::{AddressVector, LinkFlags, Opcode, SendFlags};
use roce::transport::{Reason, ud};
use roce::wire::datagram::Network;
use roce::wire::ipv6;
use roce::{Gid, Path, Psn, QKey, Qpn};

use super::Qp;
use super::completion::{Attempt, Received};
use super::engine::Step;
use super::receive::NoReceive;
use super::send::ARGS;
use super::wire::hop_limit_of;
use crate::Frontend;
use crate::counters::PacketDropped;
use crate::fabric::{Ends, Fabric};
use crate::held;
use crate::ids::{NicId, QpId};
use crate::keys::Span;
use crate::nic::Nic;
use crate::port::{Arrival, Unsent};
use crate::schedule::Schedule;
use crate::transfer::{Side, Spans, Unreachable, copy, get, put};
use crate::uplink::Uplink;
use crate::wire::Wire;

/// Bytes in front of a received datagram.
const GRH: usize = 40;
/// Bytes of BTH and DETH and ICRC, which the header's payload length counts.
const TRANSPORT_BYTES: u64 = 12 + 8 + 4;
/// Bytes of a UDP header.
const UDP_BYTES: u16 = 8;
/// Bytes of a datagram that one unit of work covers, beside the first unit.
const UNIT: usize = 512;
/// The first UDP source port (the range of RFC 6335 in which no port is registered).
const FIRST_PORT: u16 = 0xc000;

/// The network's header of a datagram; `None` if one address is IPv4 and the other is not.
fn network(address: &AddressVector, source: &[u8; 16]) -> Option<Network> {
    let hop_limit = hop_limit_of(address.hop_limit);
    let mut network = Network::new(Gid(*source), Gid(address.gid), address.traffic_class, hop_limit)?;
    if let Network::V6(ip) = &mut network {
        ip.flow_label = address.flow_label & Path::MAX_FLOW_LABEL;
    }
    Some(network)
}

/// The 40 bytes in front of a datagram that comes by the short cut: those of the same datagram in a
/// packet. Between addresses of two families, for which there is no packet, it is the global route
/// header of InfiniBand (IBTA 8.3).
fn front(datagram: &Datagram<'_>) -> [u8; GRH] {
    let immediate = if datagram.immediate.is_some() { 4 } else { 0 };
    // The MTU bounds the length.
    let length = (datagram.length.next_multiple_of(4) + TRANSPORT_BYTES + immediate) as u16;
    let mut front = [0; GRH];
    let (address, source) = (&datagram.address, &datagram.source_gid);
    match network(address, source) {
        Some(mut network) => {
            match &mut network {
                Network::V4(ip) => ip.payload_len = length + UDP_BYTES,
                Network::V6(ip) => ip.payload_len = length + UDP_BYTES,
            }
            // It is 40 bytes long.
            let _ = network.emit_grh(&mut front);
        }
        None => {
            let grh = ipv6::Repr {
                traffic_class: address.traffic_class,
                flow_label: address.flow_label,
                next_header: ipv6::Repr::IBA,
                hop_limit: hop_limit_of(address.hop_limit),
                src: Gid(*source),
                dst: Gid(address.gid),
                payload_len: length,
            };
            let _ = grh.emit(&mut front);
        }
    }
    front
}

/// A datagram on its way.
pub(super) struct Datagram<'a> {
    from: NicId,
    source_qpn: u32,
    source_gid: [u8; 16],
    address: AddressVector,
    qkey: u32,
    /// The sender's memory, checked.
    local: &'a [Span],
    length: u64,
    immediate: Option<u32>,
    solicited: bool,
}

impl Datagram<'_> {
    /// The datagram as the transport sees it.
    fn packet(&self, psn: Psn) -> ud::Datagram {
        ud::Datagram {
            psn,
            qkey: QKey(self.qkey),
            src_qp: Qpn::new(self.source_qpn).unwrap_or_default(),
            // The MTU bounds the length.
            length: self.length as u32,
            immediate: self.immediate,
            solicited: self.solicited,
        }
    }
}

/// The sender's memory cannot be accessed.
pub(super) struct SourceFault;

impl Qp {
    /// Makes a datagram of the current work request of a datagram queue pair, and puts its memory
    /// into `local`. An error is the outcome of a work request that cannot be sent.
    pub(super) fn datagram<'a, F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        local: &'a mut Spans,
    ) -> Result<Datagram<'a>, Attempt> {
        let work = &self.send.work;
        let address = work.address();
        let bad = |offset: usize| Attempt::Failed(Status::LocalQpOperation, (ARGS + offset) as u32);
        let Some(source_gid) = nic.gid(address.source_gid) else {
            return Err(bad(offset_of!(AddressVector, source_gid)));
        };
        if address.qpn >> QPN_BITS != 0 {
            return Err(bad(offset_of!(AddressVector, qpn)));
        }
        if work.total > u64::from(nic.config.mtu).min(self.max_message) {
            return Err(Attempt::Failed(Status::LocalLength, NO_FIELD));
        }
        if nic
            .local_spans(&work.segments, self.pd, LinkFlags::LOCAL_READ, self.key_kind(true), local)
            .is_err()
        {
            return Err(Attempt::Failed(Status::LocalProtection, NO_FIELD));
        }
        let datagram = Datagram {
            from: self.id.nic,
            source_qpn: self.qpn,
            source_gid,
            address,
            qkey: ud::Sender::qkey(QKey(address.qkey), QKey(self.attributes.qkey)).0,
            local,
            length: work.total,
            immediate: (work.opcode == Opcode::SendImmediate).then_some(work.header.immediate),
            solicited: work.flags.contains(SendFlags::SOLICITED),
        };
        // If the datagram waited for room, an earlier step has passed here.
        if self.send.work.started {
            return Ok(datagram);
        }
        match self.hold_back() {
            Some(Attempt::Lost) => {
                nic.stats.dropped_datagrams += 1;
                return Err(Attempt::Done(self.send.work.total));
            }
            Some(held) => return Err(held),
            None => {}
        }
        if self.kind == QpType::Gsi && nic.drop_management > 0 {
            nic.drop_management -= 1;
            nic.stats.dropped_datagrams += 1;
            return Err(Attempt::Done(self.send.work.total));
        }
        Ok(datagram)
    }

    /// Fails unless the queue pair takes this datagram, if there is a receive for it.
    fn takes<F: Frontend>(&self, nic: &mut Nic<F>, datagram: &ud::Datagram) -> Result<(), PacketDropped> {
        if self.kind.is_connected() {
            return Err(PacketDropped::WrongService);
        }
        if !self.can_receive() {
            return Err(PacketDropped::NotConnected);
        }
        if let Err(reason) = datagram.judge(QKey(self.attributes.qkey), nic.config.mtu) {
            nic.packets.count(reason);
            return Err(match reason {
                Reason::BadQKey => PacketDropped::WrongKey,
                _ => PacketDropped::TooLong,
            });
        }
        match u64::from(datagram.length) > self.max_message {
            true => Err(PacketDropped::TooLong),
            false => Ok(()),
        }
    }

    /// Takes a datagram that arrived at the port.
    pub fn take_datagram<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        arrival: &Arrival<'_>,
        datagram: &ud::Datagram,
        payload: &[u8],
    ) -> Result<(), PacketDropped> {
        self.takes(nic, datagram)?;
        let mut header = [0; GRH];
        arrival.network.emit_grh(&mut header).map_err(|_| PacketDropped::Malformed)?;
        let taken = self.receive_datagram(nic, datagram, |nic, spans| {
            put(&nic.side(spans, 0), &header)?;
            put(&nic.side(spans, GRH as u64), payload)
        });
        match taken {
            Ok(()) => {
                if let Some(uplink) = &mut nic.uplink {
                    uplink.port.heard(arrival, schedule.now);
                }
                Ok(())
            }
            Err(Failed::Dropped(why)) => Err(why),
            Err(Failed::Source) => Err(PacketDropped::NoReceive),
            Err(Failed::Target(status, field)) => {
                self.fail_datagram(nic, schedule, status, field);
                Ok(())
            }
        }
    }

    /// The receiver failed to receive a datagram, by its own fault.
    fn fail_datagram<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        status: Status,
        field: u32,
    ) {
        let detail = self.fail_receive(nic, status, field);
        self.fail(nic, schedule, status, Some((EventType::QpFatal, detail)));
    }

    /// Sends a datagram by the port; `None` if it waits for room in the wire. If the port does not
    /// know the neighbour's MAC, the datagram waits beside the queue, and its request is complete.
    pub(super) fn send_datagram<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        datagram: &Datagram<'_>,
    ) -> Option<Attempt> {
        let Some(mut uplink) = nic.uplink.take() else { return Some(Attempt::Done(datagram.length)) };
        let room = !uplink.port.up() || uplink.wire.has_room();
        let result = room.then(|| self.transmit(nic, schedule, datagram, &mut uplink));
        nic.uplink = Some(uplink);
        match result {
            None => nic.stall(self),
            Some(_) => nic.settle_neighbours(),
        }
        result
    }

    fn transmit<F: Frontend>(
        &self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        datagram: &Datagram<'_>,
        uplink: &mut Uplink<F::Wire>,
    ) -> Attempt {
        let Uplink { port, wire, output, payload, held, .. } = uplink;
        let length = datagram.length as usize;
        schedule.charge((length / UNIT) as u32);
        let payload = payload.get_mut(..length).and_then(|into| {
            get(&nic.side(datagram.local, 0), into).ok()?;
            Some(&*into)
        });
        let Some(payload) = payload else {
            return Attempt::Failed(Status::LocalProtection, NO_FIELD);
        };
        let address = &datagram.address;
        let network = network(address, &datagram.source_gid);
        let packet = datagram.packet(Psn::new(self.send.head));
        let packet = Qpn::new(address.qpn).and_then(|qpn| packet.to_packet(qpn, payload));
        let (Some(network), Some(packet)) = (network, packet) else {
            nic.stats.dropped_datagrams += 1;
            return Attempt::Done(datagram.length);
        };
        let source = FIRST_PORT | self.qpn as u16 & !FIRST_PORT;
        let result = port.transmit(&network, self.sender(), source, output, schedule.now, |into| {
            packet.emit(into)?;
            Ok(packet.len())
        });
        match result {
            Ok(len) => wire.send(&output[..len], schedule.now),
            Err(Unsent::Resolving) => {
                schedule.charge(1);
                let mut bytes = vec![0; packet.len()].into_boxed_slice();
                // It fits.
                let _ = packet.emit(&mut bytes);
                let waits = held::Datagram { qpn: self.qpn, network, port: source, packet: bytes };
                nic.stats.dropped_datagrams += held.add(waits);
            }
            Err(_) => nic.stats.dropped_datagrams += 1,
        }
        Attempt::Done(datagram.length)
    }

    /// Writes a datagram that the queue pair takes into a receive with `write`. A receive that is
    /// too short for it stays the first.
    fn receive_datagram<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        datagram: &ud::Datagram,
        write: impl FnOnce(&Nic<F>, &[Span]) -> Result<(), Unreachable>,
    ) -> Result<(), Failed> {
        match self.take_receive(nic) {
            Ok(()) => {}
            Err(NoReceive::Empty) => return Err(Failed::Dropped(PacketDropped::NoReceive)),
            Err(NoReceive::Field(offset)) => {
                return Err(Failed::Target(Status::LocalQpOperation, offset as u32));
            }
            Err(NoReceive::Broken | NoReceive::Protection) => {
                return Err(Failed::Target(Status::LocalQpOperation, NO_FIELD));
            }
        }
        let length = u64::from(datagram.length) + GRH as u64;
        if length > self.inbound.receive.room {
            return Err(Failed::Dropped(PacketDropped::TooLong));
        }
        let unreachable = Failed::Target(Status::LocalProtection, NO_FIELD);
        let mut spans = Spans::new();
        self.receive_spans(nic, &mut spans).map_err(|_| unreachable)?;
        write(nic, &spans).map_err(|fault| match fault {
            Unreachable::Source => Failed::Source,
            Unreachable::Target => unreachable,
        })?;
        let mut flags = CqeFlags::GRH;
        flags.set(CqeFlags::IMMEDIATE, datagram.immediate.is_some());
        flags.set(CqeFlags::SOLICITED, datagram.solicited);
        let what = Received {
            flags,
            length,
            immediate: datagram.immediate.unwrap_or(0),
            detail: datagram.src_qp.get(),
        };
        self.complete_receive(nic, Status::Success, what);
        Ok(())
    }
}

/// Why a datagram could not be received.
#[derive(Clone, Copy)]
enum Failed {
    /// The queue pair has no receive for it.
    Dropped(PacketDropped),
    /// The sender's memory cannot be accessed.
    Source,
    /// The receiver's fault: the status and the offset of the field to blame.
    Target(Status, u32),
}

impl<F: Frontend> Fabric<F> {
    /// Sends the current work request.
    pub(super) fn step_datagram(&mut self, id: QpId) -> Step {
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        let mut local = Spans::new();
        let datagram = match qp.datagram(nic, &mut local) {
            Ok(datagram) => datagram,
            Err(outcome) => return qp.settle(nic, schedule, outcome),
        };
        if Gid(datagram.address.gid).to_ip().is_multicast() {
            return self.step_to_group(id, &datagram);
        }
        if self.goes_by_port(&datagram) {
            let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
            return match qp.send_datagram(nic, schedule, &datagram) {
                Some(outcome) => qp.settle(nic, schedule, outcome),
                None => Step::Idle,
            };
        }
        let delivered = self.deliver(&datagram);
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        let outcome = match delivered {
            Ok(taken) => {
                nic.stats.dropped_datagrams += u64::from(!taken);
                Attempt::Done(datagram.length)
            }
            Err(_) => Attempt::Failed(Status::LocalProtection, NO_FIELD),
        };
        qp.settle(nic, schedule, outcome)
    }

    /// Sends the current work request to a multicast group: by the port, if there is one, and to
    /// the queue pairs of this NIC, and of those on the short cut, that have joined the group. The
    /// sender itself gets no copy (IBTA 10.5.2.1).
    #[cold]
    fn step_to_group(&mut self, id: QpId, datagram: &Datagram<'_>) -> Step {
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        let mut outcome = Attempt::Done(datagram.length);
        if nic.uplink.is_some() {
            match qp.send_datagram(nic, schedule, datagram) {
                Some(sent) => outcome = sent,
                None => return Step::Idle,
            }
        }
        if matches!(outcome, Attempt::Done(_)) && self.deliver_to_group(id, datagram).is_err() {
            outcome = Attempt::Failed(Status::LocalProtection, NO_FIELD);
        }
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        qp.settle(nic, schedule, outcome)
    }

    /// Delivers a datagram to those that have joined its group, without packets. A NIC on the short
    /// cut that has a port, as the sender's NIC has, gets it by the port.
    fn deliver_to_group(&mut self, id: QpId, datagram: &Datagram<'_>) -> Result<(), SourceFault> {
        let gid = datagram.address.gid;
        if datagram.address.qpn != Qpn::MULTICAST.get() {
            return Ok(());
        }
        let has_port = |of: &Fabric<F>, nic: NicId| {
            of.nodes.get(nic.index()).is_some_and(|node| node.nic.uplink.is_some())
        };
        let by_port = has_port(self, id.nic);
        let (mut to, mut links) = (id.nic, 0);
        loop {
            let mut place = 0;
            while let Some(slot) = self.nodes.get(to.index()).and_then(|n| n.nic.groups.member(&gid, place)) {
                place += 1;
                if (to, slot) != (id.nic, id.slot) {
                    self.schedule.charge(1);
                    self.deliver_to(datagram, to, slot, |_| true)?;
                }
            }
            loop {
                let next = self.nodes.get(id.nic.index()).and_then(|node| node.nic.links.get(links).copied());
                let Some(next) = next else { return Ok(()) };
                links += 1;
                if !(by_port && has_port(self, next)) {
                    to = next;
                    break;
                }
            }
        }
    }

    /// Whether a datagram goes by the port: no NIC on the short cut has its GID.
    fn goes_by_port(&self, datagram: &Datagram<'_>) -> bool {
        let port = self.nodes.get(datagram.from.index()).is_some_and(|node| node.nic.uplink.is_some());
        port && self.find(datagram.from, &datagram.address.gid).is_none()
    }

    /// Delivers a datagram to its receiver. `Ok(false)` if there is none.
    fn deliver(&mut self, datagram: &Datagram<'_>) -> Result<bool, SourceFault> {
        let Some(to) = self.find(datagram.from, &datagram.address.gid) else { return Ok(false) };
        let qpn = datagram.address.qpn;
        self.deliver_to(datagram, to, qpn_slot(qpn), |qp| qp.qpn == qpn)
    }

    /// Delivers a datagram to the queue pair in a slot of a NIC, if it is the one that is meant.
    fn deliver_to(
        &mut self,
        datagram: &Datagram<'_>,
        to: NicId,
        slot: u32,
        is_meant: impl FnOnce(&Qp) -> bool,
    ) -> Result<bool, SourceFault> {
        let Some(Ends { source, target, schedule }) = self.ends(datagram.from, to) else { return Ok(false) };
        let up = source.is_none_or(|nic| nic.port_up) && target.nic.port_up && target.nic.running();
        let Some((nic, qp)) = target.parts(slot) else { return Ok(false) };
        // The receiver does not look at the number.
        let packet = datagram.packet(Psn::new(0));
        if !up || !is_meant(qp) || qp.takes(nic, &packet).is_err() {
            return Ok(false);
        }
        let taken = qp.receive_datagram(nic, &packet, |nic, spans| {
            move_datagram(datagram, source.unwrap_or(nic), nic, spans, schedule)
        });
        let taken = match taken {
            Ok(()) => true,
            Err(Failed::Dropped(_)) => false,
            Err(Failed::Source) => return Err(SourceFault),
            Err(Failed::Target(status, field)) => {
                qp.fail_datagram(nic, schedule, status, field);
                false
            }
        };
        target.fail_queue_pairs(schedule);
        Ok(taken)
    }
}

fn move_datagram<F: Frontend>(
    datagram: &Datagram<'_>,
    source: &Nic<F>,
    target: &Nic<F>,
    spans: &[Span],
    schedule: &mut Schedule,
) -> Result<(), Unreachable> {
    put(&target.side(spans, 0), &front(datagram))?;
    let mut done = 0;
    // The MTU bounds this: 4096 bytes in runs of at least one.
    while done < datagram.length {
        let from: Side<'_, F::Memory> = source.side(datagram.local, done);
        let into = target.side(spans, GRH as u64 + done);
        match copy(&from, &into, datagram.length - done, schedule)? {
            0 => return Err(Unreachable::Target),
            copied => done += copied,
        }
    }
    Ok(())
}
