//! A connected queue pair's packets: the peer's requests that arrive at the port, and the answers
//! to them; and the next unit of work of a queue pair that sends by the port.

use nic_abi::admin::{ModifyQp, QpState, QpType};
use nic_abi::wqe::LinkFlags;
use roce::transport::{Answer, Executed, Operation, Piece, Reason, Remote, Response, Verdict};
use roce::wire::datagram::Network;
use roce::{Gid, Psn, Qpn};

use super::engine::Step;
use super::responder::{Fault, Job, Responder, Source, Step as Moved, Stop};
use super::wire::Sent;
use super::{Qp, Way};
use crate::Frontend;
use crate::keys::Span;
use crate::nic::Nic;
use crate::schedule::Schedule;
use crate::transfer::{Unreachable, get, put};
use crate::wire::Wire;

/// Bytes of a packet that one unit of work covers, beside the first unit.
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

    // The answer's bytes are read when each of its packets is sent.
    fn push(&self, _: &Nic<F>, _: Span, _: &mut Schedule) -> Result<Option<u64>, Unreachable> {
        Ok(None)
    }
}

impl Qp {
    /// Whether the peer can have sent a packet with these addresses.
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

    /// Takes a request packet with an undefined operation code.
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
                    Ok(Moved::Done(original)) => (Executed::Done(original), None),
                    Err(Stop::NotReady) => {
                        responder.nic.packets.count(Reason::OutOfBuffer);
                        (Executed::NotReady(responder.qp.attributes.min_rnr_timer), None)
                    }
                    Err(Stop::Fault(fault)) => (Executed::Refused(fault.reason), Some(fault)),
                    // A packet contains its bytes, so there is no requester's memory to fail, and
                    // it is always carried out whole.
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

    /// Does a unit of work of a queue pair that sends by the port: an answer, a request, or an
    /// entry that is flushed.
    pub(super) fn step_on_wire<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> Step {
        if !nic.running() {
            return Step::Idle;
        }
        let Some(uplink) = &nic.uplink else { return Step::Idle };
        // A port that is down loses what it sends, so it needs no room.
        let room = !uplink.port.up() || uplink.wire.has_room();
        if self.state == QpState::Error {
            return self.step_in_error(nic, schedule, room);
        }
        if !room {
            nic.stall(self);
            return Step::Idle;
        }
        self.answers_first = !self.answers_first;
        let requests_first = !self.answers_first;
        if !requests_first && self.can_receive() && self.send_answer(nic, schedule) {
            return Step::Again;
        }
        if matches!(self.state, QpState::Rts | QpState::Sqd)
            && !self.unresolved
            && self.send_request(nic, schedule) == Sent::Yes
        {
            return Step::Again;
        }
        if requests_first && self.can_receive() && self.send_answer(nic, schedule) {
            return Step::Again;
        }
        if self.state == QpState::Sqd && self.requests.as_ref().is_none_or(|requests| requests.is_drained()) {
            self.report_drained(nic);
        }
        if self.state == QpState::Error { Step::Again } else { Step::Idle }
    }

    /// Does a unit of work in the error state: an answer, if a request was refused, or a flushed
    /// entry. `room` says whether the wire has room.
    fn step_in_error<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule, room: bool) -> Step {
        let refusing = self.inbound.refusing;
        let answered = refusing && room && self.send_answer(nic, schedule);
        let more = self.flush(nic, schedule);
        if refusing && !room {
            nic.stall(self);
        }
        if more || answered { Step::Yield } else { Step::Idle }
    }

    /// Acknowledges the peer's requests that were carried out, before the queue pair leaves the
    /// states in which it receives. The consumer may disconnect as soon as it has a message, and
    /// without the acknowledgement the peer's request would fail although its message arrived.
    /// Answers behind an RDMA Read that is not answered are lost with it, and so is an answer for
    /// which the wire has no room.
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

    /// Sends the next packet of the answers that are due. False if there is none.
    fn send_answer<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> bool {
        let Some(engine) = &mut self.inbound.engine else { return false };
        let Some(Response { answer, gather }) = engine.respond(1) else { return false };
        if !self.transmit_answer(nic, schedule, &answer, gather)
            && let Some(engine) = &mut self.inbound.engine
            && engine.unreadable(&answer, Reason::RespRemoteAccessErrors)
        {
            Responder { nic, qp: self, schedule }.refuse_packet(&Fault::ACCESS);
        }
        true
    }

    /// Sends a packet of an answer, with the bytes that `gather` reads. False if they cannot be
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
            let (sender, output) = (self.sender(), &mut uplink.output);
            let result = uplink.port.transmit(&network, sender, port, output, schedule.now, |into| {
                packet.emit(into)?;
                Ok(packet.len())
            });
            // An answer that the port cannot send counts as lost on the way; the peer repeats its
            // request.
            if let Ok(len) = result {
                uplink.wire.send(&uplink.output[..len], schedule.now);
            }
        }
        nic.uplink = Some(uplink);
        readable
    }
}
