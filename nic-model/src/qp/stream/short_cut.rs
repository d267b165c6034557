//! The short cut of iWARP: segments that go from one queue pair of the process to another.
//!
//! A connection begins in TCP, on which its set-up is made. Once both ends are queue pairs of NICs
//! of this process, the sender's device gives each segment to the receiver's engine, and the bytes
//! go from memory to memory: there are no FPDUs, no CRCs and no copies in between. What a segment
//! means, and what follows from it, is the engines' matter, as for one that comes in the stream.
//!
//! TCP stays. Its end is the end of the connection. It carries segments as well while the other end
//! cannot be reached: its NIC or a port is down, or it is no queue pair any more. Then it has the
//! outcomes of a wire, retries and a limit in time among them. Each direction takes the short cut
//! when all that its sender has written has been received, so the order is kept; a sender that has
//! more to send waits for that.

use core::time::Duration;

use iwarp::engine::{Denied, Pass, Segment, Source};
use nic_abi::wqe::LinkFlags;

use super::memory::{From, View, of_peer, of_request};
use super::turn::Moved;
use super::{Other, Stream};
use crate::Frontend;
use crate::fabric::{Ends, Fabric, find};
use crate::ids::{NicId, QpId};
use crate::keys::Span;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::engine::Step;
use crate::qp::message::PIECE;
use crate::schedule::Schedule;
use crate::streams::gid_of;
use crate::transfer::Spans;

/// Segments of a turn.
const SEGMENTS: u32 = 16;
/// After so many bytes the turn passes to other queue pairs.
const LARGE: u32 = u16::MAX as u32;
/// How long an end waits at most until it looks again whether TCP is empty. It goes on as soon as
/// the other end has received everything.
const PAUSE: Duration = Duration::from_millis(50);

/// How what an end has to send leaves.
enum Output {
    Tcp,
    /// By the short cut, when the other end has received what is in TCP.
    Later,
    /// To this queue pair, in segments of at most so many bytes.
    ShortCut(QpId, u32),
}

/// An end of a connection.
struct End<'a, F: Frontend> {
    nic: &'a Nic<F>,
    qp: &'a Qp,
    stream: &'a Stream,
}

impl<F: Frontend> End<'_, F> {
    /// Whether the NIC takes and sends packets, which segments are in place of.
    fn is_up(&self) -> bool {
        self.nic.running() && self.nic.port_up
    }
}

impl<F: Frontend> Fabric<F> {
    /// Gives the connection of an iWARP queue pair a turn; flushes what is posted without one.
    #[inline(never)]
    pub(in crate::qp) fn step_on_stream(&mut self, id: QpId) -> Step {
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        if !nic.running() {
            return Step::Idle;
        }
        let took = qp.take_bytes(nic, schedule);
        if took == Moved::Something {
            self.wake_other_end(id);
        }
        let output = self.output(id);
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        let sent = match output {
            Output::Tcp => qp.write_bytes(nic, schedule, true),
            Output::Later => {
                let moved = qp.write_bytes(nic, schedule, false);
                qp.pause(schedule);
                moved
            }
            Output::ShortCut(to, most) => self.pass_segments(id, to, most),
        };
        let Some((nic, qp, schedule)) = self.parts(id) else { return Step::Idle };
        // What was received may have failed the NIC.
        if !nic.running() {
            return Step::Idle;
        }
        let moved = if sent == Moved::Something { sent } else { took };
        qp.end_turn(nic, schedule, moved)
    }

    fn end(&self, id: QpId) -> Option<End<'_, F>> {
        let node = self.nodes.get(id.nic.index())?;
        let qp = node.qps.get(id.slot)?;
        Some(End { nic: &node.nic, qp, stream: qp.stream.as_deref()? })
    }

    fn stream_mut(&mut self, id: QpId) -> Option<&mut Stream> {
        self.parts(id)?.1.stream.as_deref_mut()
    }

    /// How what an end has to send leaves now.
    fn output(&mut self, id: QpId) -> Output {
        let Some(to) = self.other_end(id) else { return Output::Tcp };
        let (Some(here), Some(there)) = (self.end(id), self.end(to)) else { return Output::Tcp };
        if !here.is_up() || !there.is_up() {
            return Output::Tcp;
        }
        // The receiver refuses a longer segment of an RDMA Write.
        let most = there.qp.max_message.clamp(1, PIECE) as u32;
        if here.stream.direct {
            return Output::ShortCut(to, most);
        }
        if !here.stream.engine.is_between() || here.written() != there.taken() {
            return Output::Later;
        }
        if !there.stream.engine.may_take() {
            // The sender's driver has written a part of an FPDU before the queue pair had the
            // stream.
            return Output::Tcp;
        }
        if let Some(stream) = self.stream_mut(id) {
            stream.direct = true;
        }
        Output::ShortCut(to, most)
    }

    /// The queue pair at the other end, if it is one of this process.
    fn other_end(&mut self, id: QpId) -> Option<QpId> {
        match self.end(id)?.stream.other {
            Other::Far => None,
            Other::Near(to) => (self.end(to)?.stream.other == Other::Near(id)).then_some(to),
            Other::Unknown => self.find_other_end(id),
        }
    }

    /// Looks for the queue pair at the other end.
    #[cold]
    fn find_other_end(&mut self, id: QpId) -> Option<QpId> {
        let End { nic, stream, .. } = self.end(id)?;
        let ends = nic.streams.as_ref()?.tcp.info(stream.id).ok()?;
        let (local, remote) = (ends.local, ends.remote);
        let to = find(&self.nodes, id.nic, &gid_of(remote.ip()).0);
        let back = to.and_then(|to| find(&self.nodes, to, &gid_of(local.ip()).0));
        let Some(to) = to.filter(|_| back == Some(id.nic)) else {
            self.stream_mut(id)?.other = Other::Far;
            return None;
        };
        let streams = self.nodes.get(to.index())?.nic.streams.as_ref()?;
        // No stream is both ends of its connection.
        let to = QpId { nic: to, slot: streams.qp_between(remote, local)? };
        if self.end(to)?.stream.engine.has_crc() != stream.engine.has_crc() {
            self.stream_mut(id)?.other = Other::Far;
            return None;
        }
        self.stream_mut(id)?.other = Other::Near(to);
        self.stream_mut(to)?.other = Other::Near(id);
        Some(to)
    }

    /// Lets the other end go on if it waits until what it has sent has been received.
    #[cold]
    fn wake_other_end(&mut self, id: QpId) {
        if let Some(End { stream: Stream { other: Other::Near(to), .. }, .. }) = self.end(id)
            && let to = *to
            && let Some((_, qp, schedule)) = self.parts(to)
            && qp.stream.as_ref().is_some_and(|stream| !stream.direct)
        {
            schedule.activate(qp);
        }
    }

    /// Passes segments to the queue pair at the other end, as many as a turn has. Returns whether
    /// there may be more.
    fn pass_segments(&mut self, id: QpId, to: QpId, most: u32) -> Moved {
        for _ in 0..SEGMENTS {
            let (mut spans, mut skip) = (Spans::new(), 0);
            let Some((nic, qp, schedule)) = self.parts(id) else { break };
            let segment = match qp.next_segment(nic, schedule, most, (&mut spans, &mut skip)) {
                Pass::Segment(segment) => segment,
                Pass::Local(_) => continue,
                Pass::Nothing => return Moved::Nothing,
            };
            schedule.charge(1);
            // The sender is not borrowed while the receiver acts: they may be on the same NIC.
            let (taken, goes_on) = self.give(id.nic, to, &segment, (&spans, skip));
            let Some((nic, qp, schedule)) = self.parts(id) else { break };
            qp.segment_passed(nic, schedule, &segment, taken);
            if !goes_on || !nic.running() || segment.length() > LARGE || schedule.slice_is_over() {
                break;
            }
        }
        Moved::Something
    }

    /// Gives a segment to the queue pair at the other end. Returns how much of its payload was
    /// taken, as [`iwarp::engine::Engine::passed`] wants it, and whether the receiver's NIC goes
    /// on.
    fn give(
        &mut self,
        from: NicId,
        to: QpId,
        segment: &Segment,
        (spans, skip): (&[Span], u64),
    ) -> (Option<u32>, bool) {
        let nobody = (Some(segment.length()), false);
        let Some(Ends { source, target, schedule }) = self.ends(from, to.nic) else { return nobody };
        let Some((nic, qp)) = target.parts(to.slot) else { return nobody };
        let Some(mut stream) = qp.stream.take() else { return nobody };
        let completed = stream.flights.head;
        let Stream { engine, flights, invalidated, bad_receive, .. } = &mut *stream;
        let from = Some(From { nic: source, spans, skip, schedule, gone: false });
        let mut view = View { qp, nic, flights, invalidated, bad_receive, from };
        let taken = engine.take(segment, &mut view);
        let gone = view.from.is_some_and(|from| from.gone);
        qp.fail_bad_receive(nic, &mut stream);
        qp.act_on_events(nic, schedule, &mut stream);
        // An answer, a request that waited for this, or the event of a send queue that is drained.
        let has_work = stream.engine.has_output() || stream.flights.head != completed;
        qp.stream = Some(stream);
        if has_work {
            schedule.activate(qp);
        }
        target.fail_queue_pairs(schedule);
        ((!gone).then_some(taken), target.nic.running())
    }
}

impl<F: Frontend> End<'_, F> {
    /// The bytes that were written to the stream at this end.
    fn written(&self) -> Option<u64> {
        Some(self.nic.streams.as_ref()?.tcp.progress(self.stream.id).ok()?.written)
    }

    /// The bytes that were taken from the stream at this end.
    fn taken(&self) -> Option<u64> {
        Some(self.nic.streams.as_ref()?.tcp.progress(self.stream.id).ok()?.taken)
    }
}

impl Qp {
    /// Something has happened to the TCP stream of the queue pair.
    pub(crate) fn stream_has_news(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.news = true;
        }
    }

    /// Waits until the other end has received what is in TCP.
    fn pause(&mut self, schedule: &mut Schedule) {
        if self.deadline.is_none()
            && let Some(stream) = &mut self.stream
        {
            stream.pauses = true;
            schedule.start_timer(self, schedule.now + PAUSE);
        }
    }

    /// The next segment of the connection. The memory of the payload is that of the spans, from
    /// byte `skip` on. A request that needs no peer and comes first is carried out.
    fn next_segment<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        most: u32,
        (spans, skip): (&mut Spans, &mut u64),
    ) -> Pass {
        let Some(mut stream) = self.stream.take() else { return Pass::Nothing };
        self.pass_requests(nic, schedule, &mut stream);
        let Stream { engine, flights, .. } = &mut *stream;
        let next = engine.pass(most, |source, length| {
            spans.clear();
            match source {
                Source::Request { id, offset } => {
                    *skip = offset.into();
                    of_request(self, nic, flights, id, spans)
                }
                Source::Region { stag, to } => {
                    *skip = 0;
                    let span = of_peer(self, nic, (stag, to, length), LinkFlags::REMOTE_READ)?;
                    spans.push(span).map_err(|_| Denied::Bounds)
                }
            }
        });
        if let Pass::Local(request) = next {
            self.carry_out(nic, schedule, &mut stream, request);
        }
        // What cannot be sent has ended the connection.
        self.act_on_events(nic, schedule, &mut stream);
        self.stream = Some(stream);
        next
    }

    /// The other end has taken so much of a segment.
    fn segment_passed<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        segment: &Segment,
        taken: Option<u32>,
    ) {
        if let Some(mut stream) = self.stream.take() {
            nic.stats.short_cut_segments += 1;
            stream.engine.passed(segment, taken);
            self.act_on_events(nic, schedule, &mut stream);
            self.stream = Some(stream);
        }
    }
}
