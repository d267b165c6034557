//! What becomes of the packets that a port has received.

use nic_abi::ident::qpn_slot;
use roce::transport::ud::Datagram;
use roce::transport::{Piece, Service};
use roce::wire::bth;
use roce::wire::opcode::Opcode;
use roce::wire::packet::Repr;
use roce::{Gid, PKey, Qpn};
use zerocopy::FromBytes;

use crate::Frontend;
use crate::counters::{Congestion, PacketDropped};
use crate::nic::Nic;
use crate::node::Node;
use crate::port::Arrival;
use crate::qp::Qp;
use crate::schedule::Schedule;
use crate::uplink::UNIT;

impl<F: Frontend> Node<F> {
    /// Takes a packet that came in for a queue pair of this NIC.
    pub fn packet(&mut self, schedule: &mut Schedule, arrival: &Arrival<'_>) {
        match self.take_packet(schedule, arrival) {
            Ok(()) => self.fail_queue_pairs(schedule),
            Err(why) => self.nic.packets.count_dropped(why),
        }
    }

    fn take_packet(&mut self, schedule: &mut Schedule, arrival: &Arrival<'_>) -> Result<(), PacketDropped> {
        if !self.nic.running() {
            return Err(PacketDropped::NotRunning);
        }
        let packet = match Repr::parse(arrival.packet) {
            Ok(packet) => packet,
            Err(_) if arrival.group().is_some() => return Err(PacketDropped::Malformed),
            Err(_) => return self.take_unknown(schedule, arrival),
        };
        let bth = &packet.bth;
        check_partition(bth.pkey)?;
        if let Some(group) = arrival.group() {
            return self.take_for_group(schedule, arrival, &packet, group);
        }
        let marked = arrival.is_congested();
        if marked {
            self.nic.packets.count_congestion(Congestion::Marked);
        }
        if bth.opcode == Opcode::CongestionNotification {
            return self.take_notification(bth.dest_qp, arrival);
        }
        if let Some(datagram) = Datagram::from_packet(&packet) {
            let (nic, qp) = self.addressed(bth.dest_qp)?;
            let taken = qp.take_datagram(nic, schedule, arrival, &datagram, packet.payload);
            nic.stats.dropped_datagrams += u64::from(taken.is_err());
            return taken;
        }
        if bth.opcode.is_response() {
            let (nic, qp) = self.connected(bth.dest_qp, arrival, Service::Rc)?;
            if !qp.can_receive() {
                return Err(PacketDropped::NotConnected);
            }
            qp.take_answer(nic, schedule, &packet);
            if marked {
                qp.report_congestion(nic, schedule);
            }
            return Ok(());
        }
        let (service, piece) = Piece::from_packet(&packet).ok_or(PacketDropped::WrongService)?;
        let (nic, qp) = self.connected(bth.dest_qp, arrival, service)?;
        qp.take_request(nic, schedule, &piece, packet.payload);
        if marked {
            qp.report_congestion(nic, schedule);
        }
        Ok(())
    }

    /// Gives each queue pair that has joined a group its copy of a datagram. The port has checked
    /// that there are such queue pairs.
    #[cold]
    fn take_for_group(
        &mut self,
        schedule: &mut Schedule,
        arrival: &Arrival<'_>,
        packet: &Repr<'_>,
        group: Gid,
    ) -> Result<(), PacketDropped> {
        let datagram = Datagram::from_packet(packet).ok_or(PacketDropped::WrongService)?;
        if packet.bth.dest_qp.get() != Qpn::MULTICAST.get() {
            return Err(PacketDropped::NoQueuePair);
        }
        let mut place = 0;
        while let Some(slot) = self.nic.groups.member(&group.0, place) {
            place += 1;
            schedule.charge(1 + (packet.payload.len() / UNIT) as u32);
            let Some((nic, qp)) = self.parts(slot) else { continue };
            if let Err(why) = qp.take_datagram(nic, schedule, arrival, &datagram, packet.payload) {
                nic.stats.dropped_datagrams += 1;
                nic.packets.count_dropped(why);
            }
        }
        Ok(())
    }

    /// Takes a notification of congestion, which queue pairs of all services get.
    #[cold]
    fn take_notification(&mut self, qpn: Qpn, arrival: &Arrival<'_>) -> Result<(), PacketDropped> {
        let (nic, qp) = self.addressed(qpn)?;
        if qp.kind.is_connected() {
            if !qp.answers_packets() {
                return Err(PacketDropped::NotConnected);
            }
            if !qp.is_peer(nic, &arrival.network) {
                return Err(PacketDropped::WrongPeer);
            }
        }
        qp.take_notification(nic);
        Ok(())
    }

    /// Takes a packet of a reliable connection with an operation code that does not exist, which
    /// its responder has to refuse (IBTA 9.7.4.1.2). The others that do not parse are dropped.
    #[cold]
    fn take_unknown(&mut self, schedule: &mut Schedule, arrival: &Arrival<'_>) -> Result<(), PacketDropped> {
        let (header, _) =
            bth::Header::read_from_prefix(arrival.packet).map_err(|_| PacketDropped::Malformed)?;
        let unknown = Opcode::from_u8(header.opcode).is_err() && header.opcode >> 5 == 0;
        if !unknown || header.flags & 0xf != 0 {
            return Err(PacketDropped::Malformed);
        }
        check_partition(PKey(header.pkey.get()))?;
        let (nic, qp) = self.connected(header.dest_qp.into(), arrival, Service::Rc)?;
        qp.take_unknown(nic, schedule, header.psn.into());
        Ok(())
    }

    /// The queue pair that a packet names.
    fn addressed(&mut self, qpn: Qpn) -> Result<(&mut Nic<F>, &mut Qp), PacketDropped> {
        let found = self.parts(qpn_slot(qpn.get())).filter(|(_, qp)| qp.qpn == qpn.get());
        found.ok_or(PacketDropped::NoQueuePair)
    }

    /// The connected queue pair that a packet of its peer names.
    fn connected(
        &mut self,
        qpn: Qpn,
        arrival: &Arrival<'_>,
        service: Service,
    ) -> Result<(&mut Nic<F>, &mut Qp), PacketDropped> {
        let (nic, qp) = self.addressed(qpn)?;
        if !qp.serves(service) {
            return Err(PacketDropped::WrongService);
        }
        if !qp.answers_packets() {
            return Err(PacketDropped::NotConnected);
        }
        if !qp.is_peer(nic, &arrival.network) {
            return Err(PacketDropped::WrongPeer);
        }
        Ok((nic, qp))
    }
}

fn check_partition(pkey: PKey) -> Result<(), PacketDropped> {
    if pkey.matches(PKey::DEFAULT) { Ok(()) } else { Err(PacketDropped::WrongPartition) }
}
