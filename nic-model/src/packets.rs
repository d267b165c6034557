//! What becomes of the packets that a port has received.

use nic_abi::ident::qpn_slot;
use roce::transport::ud::Datagram;
use roce::transport::{Piece, Reason, Service};
use roce::wire::bth;
use roce::wire::opcode::Opcode;
use roce::wire::packet::Repr;
use roce::{PKey, Qpn};
use zerocopy::FromBytes;

use crate::Frontend;
use crate::nic::Nic;
use crate::node::Node;
use crate::port::Arrival;
use crate::qp::Qp;
use crate::schedule::Schedule;

/// Why a packet is dropped that the port has taken for a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum PacketDropped {
    /// The NIC does not run.
    NotRunning,
    /// Its headers are none of RoCEv2, or an unknown operation's.
    Malformed,
    /// It is of another partition.
    WrongPartition,
    /// There is no queue pair with its number.
    NoQueuePair,
    /// Its queue pair takes no packets.
    NotConnected,
    /// Its queue pair is of another transport service.
    WrongService,
    /// Its addresses are not those of the queue pair's connection.
    WrongPeer,
    /// A datagram with another queue key.
    WrongKey,
    /// A datagram for which no receive is posted.
    NoReceive,
    /// A datagram that is longer than the MTU, than its queue pair's longest message, or than the
    /// first receive.
    TooLong,
}

impl PacketDropped {
    /// All reasons, with the names that they have in files of counters.
    pub const ALL: [(PacketDropped, &str); 10] = [
        (PacketDropped::NotRunning, "not_running"),
        (PacketDropped::Malformed, "malformed_packet"),
        (PacketDropped::WrongPartition, "wrong_pkey"),
        (PacketDropped::NoQueuePair, "no_queue_pair"),
        (PacketDropped::NotConnected, "not_connected"),
        (PacketDropped::WrongService, "wrong_service"),
        (PacketDropped::WrongPeer, "wrong_peer"),
        (PacketDropped::WrongKey, "qkey_mismatch"),
        (PacketDropped::NoReceive, "no_receive"),
        (PacketDropped::TooLong, "too_long"),
    ];
}

/// Events of congestion control that a NIC counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Congestion {
    /// Packets came that a switch had marked.
    Marked,
    /// A notification was sent to their sender.
    Notified,
    /// A notification came, and the queue pair's requester sends less.
    Handled,
    /// A notification came for a queue pair that sends as before: it has no requester yet, or none
    /// that reacts.
    Ignored,
}

impl Congestion {
    /// All, with the names that Linux's `hw_counters` have for them.
    pub const ALL: [(Congestion, &str); 4] = [
        (Congestion::Marked, "np_ecn_marked_roce_packets"),
        (Congestion::Notified, "np_cnp_sent"),
        (Congestion::Handled, "rp_cnp_handled"),
        (Congestion::Ignored, "rp_cnp_ignored"),
    ];
}

/// What a NIC dropped, refused or repeated of the packets that its port had taken, and what it
/// dropped of the messages that came to unreliable connections by the short cut, since it was
/// added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketCounters {
    dropped: [u64; PacketDropped::ALL.len()],
    reasons: [u64; Reason::ALL.len()],
    congestion: [u64; Congestion::ALL.len()],
}

impl Default for PacketCounters {
    fn default() -> PacketCounters {
        PacketCounters {
            dropped: [0; PacketDropped::ALL.len()],
            reasons: [0; Reason::ALL.len()],
            congestion: [0; Congestion::ALL.len()],
        }
    }
}

impl PacketCounters {
    /// How many packets were dropped for a reason.
    pub const fn dropped(&self, why: PacketDropped) -> u64 {
        self.dropped[why as usize]
    }

    /// How often the engines of queue pairs gave this reason.
    pub const fn reason(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }

    pub(crate) fn count(&mut self, reason: Reason) {
        self.reasons[reason as usize] += 1;
    }

    /// All reasons of engines by their names, and how often each was given.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::ALL.iter().map(|&reason| (reason.name(), self.reason(reason)))
    }

    /// How often this was seen or done about congestion.
    pub const fn congested(&self, what: Congestion) -> u64 {
        self.congestion[what as usize]
    }

    pub(crate) fn count_congestion(&mut self, what: Congestion) {
        self.congestion[what as usize] += 1;
    }

    /// What was counted about congestion, by its names.
    pub fn congestion(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Congestion::ALL.iter().map(|&(what, name)| (name, self.congested(what)))
    }

    /// All counters by their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.drops().chain(self.reasons()).chain(self.congestion())
    }

    /// All reasons by their names, and how many packets were dropped for each.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        PacketDropped::ALL.iter().map(|&(why, name)| (name, self.dropped(why)))
    }
}

impl<F: Frontend> Node<F> {
    /// Takes a packet that came in for a queue pair of this NIC.
    pub fn packet(&mut self, schedule: &mut Schedule, arrival: &Arrival<'_>) {
        match self.take_packet(schedule, arrival) {
            Ok(()) => self.fail_queue_pairs(schedule),
            Err(why) => self.nic.packets.dropped[why as usize] += 1,
        }
    }

    fn take_packet(&mut self, schedule: &mut Schedule, arrival: &Arrival<'_>) -> Result<(), PacketDropped> {
        if !self.nic.running() {
            return Err(PacketDropped::NotRunning);
        }
        let packet = match Repr::parse(arrival.packet) {
            Ok(packet) => packet,
            Err(_) => return self.take_unknown(schedule, arrival),
        };
        let bth = &packet.bth;
        check_partition(bth.pkey)?;
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
