//! A connected queue pair's packets: requests of the peer that come in by the port, the answers to
//! them, and the turn of a queue pair that sends by the port.

use nic_abi::admin::{ModifyQp, QpState, QpType};
use nic_abi::wqe::LinkFlags;
use roce::transport::{Answer, Operation, Outcome, Piece, Reason, Remote, Response, Verdict};
use roce::wire::datagram::Network;
use roce::{Gid, Psn, Qpn};

use super::engine::Step;
use super::responder::{Fault, Job, Responder, Source, Step as Moved, Stop};
use super::wire::Sent;
use super::{Parked, Qp, Way};
use crate::Frontend;
use crate::keys::Span;
use crate::nic::Nic;
use crate::schedule::Schedule;
use crate::transfer::{Unreachable, get, put};
use crate::wire::Wire;

/// Bytes of a packet that are handled in a unit of work, beside the first unit.
const UNIT: usize = 512;

/// The payload of a packet.
struct Payload<'a>(&'a [u8]);

impl<F: Frontend> Source<F> for Payload<'_> {
    fn ends(&self) -> bool {
        true
    }

    fn pull(
        &self,
        nic: &Nic<F>,
        target: &[Span],
        job: &Job,
        _: &mut Schedule,
    ) -> Result<Option<u64>, Unreachable> {
        put(&nic.side(target, job.offset.into()), self.0)?;
        Ok(None)
    }

    // The bytes are gathered for each packet of the answer.
    fn push(&self, _: &Nic<F>, _: Span, _: &mut Schedule) -> Result<Option<u64>, Unreachable> {
        Ok(None)
    }
}

impl Qp {
    /// Whether a packet with these addresses can be the peer's.
    pub fn is_peer<F: Frontend>(&self, nic: &Nic<F>, network: &Network) -> bool {
        let ModifyQp { remote_gid, source_gid, .. } = self.attributes;
        let ours = nic.gid(source_gid).map(Gid);
        network.src() == Gid(remote_gid)
            && ours == Some(network.dst())
            && !matches!(self.way, Way::ShortCut(_))
    }

    /// Takes a request packet.
    pub fn take_request<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        piece: &Piece,
        payload: &[u8],
    ) {
        if let Some(vi) = &mut self.vi
            && vi.loses(piece.operation == Operation::Read)
        {
            return;
        }
        let Some(engine) = &mut self.inbound.engine else { return };
        let dropped = engine.incomplete();
        let verdict = engine.receive(piece);
        if engine.incomplete() != dropped {
            self.end_incomplete(nic);
        }
        self.judged(nic, schedule, verdict, payload);
    }

    /// Takes a request packet with an operation code that does not exist.
    pub fn take_unknown<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule, psn: Psn) {
        let Some(engine) = &mut self.inbound.engine else { return };
        let verdict = engine.receive_unknown(psn);
        self.judged(nic, schedule, verdict, &[]);
    }

    fn judged<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        verdict: Verdict,
        payload: &[u8],
    ) {
        let mut responder = Responder { nic, qp: self, schedule };
        match verdict {
            Verdict::Nothing(reason) => responder.nic.packets.count(reason),
            Verdict::Refused(reason) => responder.refuse_packet(&Fault::invalid(reason)),
            Verdict::Execute(execution) => {
                if !responder.established() {
                    return;
                }
                let (outcome, fault) = match responder.carry_out(&Job::new(&execution), &Payload(payload)) {
                    Ok(Moved::Done(original)) => (Outcome::Done(original), None),
                    Err(Stop::NotReady) => {
                        responder.nic.packets.count(Reason::OutOfBuffer);
                        (Outcome::NotReady(responder.qp.attributes.min_rnr_timer), None)
                    }
                    Err(Stop::Fault(fault)) => (Outcome::Refused(fault.reason), Some(fault)),
                    // A packet has no requester's memory, and is carried out whole.
                    Err(Stop::Dead | Stop::SourceFault) | Ok(Moved::Part(_)) => return,
                };
                if let Some(engine) = &mut responder.qp.inbound.engine {
                    engine.executed(execution, outcome);
                }
                match fault {
                    Some(fault) if responder.qp.kind == QpType::Uc => responder.drop_message(&fault),
                    Some(fault) => responder.refuse_packet(&fault),
                    None => {}
                }
            }
        }
        schedule.activate(self);
    }

    /// A piece of work of a queue pair that sends by the port: an answer, a request, or an entry
    /// that is flushed.
    pub(super) fn step_on_wire<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> Step {
        if !nic.running() {
            return Step::Idle;
        }
        let Some(uplink) = &nic.uplink else { return Step::Idle };
        // What a port that is down sends is lost.
        let room = !uplink.port.up() || uplink.wire.has_room();
        if self.state == QpState::Error {
            return self.step_in_error(nic, schedule, room);
        }
        if !room {
            nic.park(self, Parked::Room);
            return Step::Idle;
        }
        let requests_first = self.requests.as_mut().is_some_and(|requests| requests.takes_turn());
        if !requests_first && self.can_receive() && self.send_answer(nic, schedule) {
            return Step::Again;
        }
        if matches!(self.state, QpState::Rts | QpState::Sqd) && self.parked.is_none() {
            match self.send_request(nic, schedule) {
                Sent::Yes => return Step::Again,
                Sent::Parked | Sent::No => {}
            }
        }
        if requests_first && self.can_receive() && self.send_answer(nic, schedule) {
            return Step::Again;
        }
        if self.state == QpState::Sqd && self.requests.as_ref().is_none_or(|requests| requests.is_drained()) {
            self.report_drained(nic);
        }
        if self.state == QpState::Error { Step::Again } else { Step::Idle }
    }

    /// A piece of work in the error state: an answer, if a request was refused, and entries that
    /// are flushed. `room` is whether the wire has room.
    fn step_in_error<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule, room: bool) -> Step {
        let refusing = self.inbound.refusing;
        let answered = refusing && room && self.send_answer(nic, schedule);
        let more = self.flush(nic, schedule);
        if refusing && !room {
            nic.park(self, Parked::Room);
        }
        if more || answered { Step::Yield } else { Step::Idle }
    }

    /// Acknowledges what the peer's requests did, before the queue pair leaves the states in which
    /// it receives: the consumer may disconnect as soon as it has a message, and the peer's request
    /// would fail although the message arrived. What is due behind an RDMA Read that is not
    /// answered is lost with it, and so is an answer that the wire has no room for.
    pub(crate) fn send_last_answers<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        while nic.running()
            && self.answers_packets()
            && nic.uplink.as_ref().is_some_and(|uplink| uplink.wire.has_room())
        {
            let Some(engine) = &mut self.inbound.engine else { return };
            match engine.respond(1) {
                Some(Response { answer, gather: None }) => self.transmit_answer(nic, schedule, &answer, None),
                _ => return,
            };
        }
    }

    /// Sends the next packet of the answers that are due. False if none is.
    fn send_answer<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> bool {
        let Some(engine) = &mut self.inbound.engine else { return false };
        let Some(Response { answer, gather }) = engine.respond(1) else { return false };
        if !self.transmit_answer(nic, schedule, &answer, gather) {
            if let Some(engine) = &mut self.inbound.engine {
                engine.unreadable(&answer, Reason::RespRemoteAccessErrors);
            }
            Responder { nic, qp: self, schedule }.refuse_packet(&Fault::ACCESS);
        }
        true
    }

    /// Sends a packet of an answer, with the memory that `gather` names. False if that cannot be
    /// read.
    fn transmit_answer<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        answer: &Answer,
        gather: Option<Remote>,
    ) -> bool {
        let Some(mut uplink) = nic.uplink.take() else { return true };
        let mut payload: Option<&[u8]> = Some(&[]);
        if let Some(remote) = gather {
            schedule.charge((remote.length as usize / UNIT) as u32);
            payload = uplink.payload.get_mut(..remote.length as usize).and_then(|into| {
                let span = self.remote_span(nic, &remote, LinkFlags::REMOTE_READ).ok()?;
                get(&nic.side(&[span], 0), into).ok()?;
                Some(&*into)
            });
        }
        let network = self.network(nic);
        let readable = payload.is_some();
        if let (Some(payload), Some(network), Some(qpn)) =
            (payload, network, Qpn::new(self.attributes.remote_qpn))
            && let Some(packet) = answer.to_packet(qpn, payload)
        {
            let port = self.source_port();
            let result = uplink.port.transmit(&network, port, &mut uplink.output, schedule.now, |into| {
                packet.emit(into)?;
                Ok(packet.len())
            });
            // An answer that cannot go is lost, as it may be on the way.
            if let Ok(len) = result {
                uplink.wire.send(&uplink.output[..len], schedule.now);
            }
        }
        nic.uplink = Some(uplink);
        readable
    }
}
