//! A peer of an iWARP endpoint that speaks MPA, DDP and RDMAP by itself over a plain stream: first
//! as the RFCs have it, and at the end perhaps not.
//!
//! What must hold: honest messages arrive once, in order and intact; the connection ends in good
//! order if, and only if, the peer closes the stream between messages; what is refused has changed
//! no memory.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use iwarp::ddp::{Header, Place, queue};
use iwarp::mpa::fpdu;
use iwarp::mpa::frame::{Kind, MAX_FRAME, Parser};
use iwarp::mpa::negotiation::{self, Wishes};
use iwarp::rdmap::{Control, Opcode};
use kernel_agent::{AsyncEvent, Client, CmEvent, Death, Stream, Upcalls};
use platform::planted::{Bug, planted};
use privileged_api::*;
use roce::Gid;

use super::node::Scene;
use super::stream::{Area, PATIENCE};
use crate::harness::memory::{Slot, difference, pattern};
use crate::harness::wrong::{Must, Step, Wrong, hold};

/// Bytes of a message at most.
const MOST: usize = 3000;
/// Receives of the endpoint.
const DEPTH: usize = 8;
/// What the private data of its Request begins with.
const NUMBER: u32 = u32::MAX;
/// The target of its RDMA Writes, a region that is linked to pages.
const TARGET: usize = 2;
/// How long an endpoint waits for the end of its connection on a network with faults, nanoseconds.
const LOST: u64 = 40_000_000_000;

/// The client of its stream looks at the stream instead.
struct Deaf;

impl Upcalls for Deaf {
    fn completion(&self, _: u64) {}

    fn asynchronous(&self, _: AsyncEvent) {}

    fn connection(&self, _: CmEvent<'_>) {}

    fn catastrophic(&self, _: Death) {}
}

/// What it does last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// It closes the stream between messages.
    Close,
    /// It closes the stream inside an FPDU, or behind a segment that is not a message's last.
    CloseInside,
    Reset,
    /// A message of which a bit is wrong.
    WrongCrc,
    /// A message whose number is not the next one.
    WrongMsn,
    /// An RDMA Write to memory that is open, and then a close.
    Write,
    /// An RDMA Write by an STag that was replaced.
    StaleWrite,
}

const LASTS: [Last; 7] = [
    Last::Close,
    Last::CloseInside,
    Last::Reset,
    Last::WrongCrc,
    Last::WrongMsn,
    Last::Write,
    Last::StaleWrite,
];

impl Last {
    /// Whether the connection ends in good order.
    fn is_orderly(self) -> bool {
        matches!(self, Last::Close | Last::Write)
    }

    /// Whether the endpoint ends the connection, and not this peer.
    fn is_refused(self) -> bool {
        matches!(self, Last::WrongCrc | Last::WrongMsn | Last::StaleWrite)
    }

    fn name(self) -> &'static str {
        match self {
            Last::Close => "bare peers: closed",
            Last::CloseInside => "bare peers: closed inside a message",
            Last::Reset => "bare peers: reset",
            Last::WrongCrc => "bare peers: a wrong CRC",
            Last::WrongMsn => "bare peers: a wrong message number",
            Last::Write => "bare peers: written and closed",
            Last::StaleWrite => "bare peers: a stale STag",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its stream is not connected.
    Opening,
    /// It has sent a Request, and waits for the Reply.
    Asking,
    /// It sends messages.
    Honest,
    /// The endpoint's side opens and changes what is open to it.
    Linking,
    /// It does what it does last.
    Last,
    /// The endpoint's side learns of the end.
    Ending,
    Over,
}

/// A peer, and the endpoint to which it is connected.
pub(crate) struct Bare {
    client: Arc<Client>,
    stream: Stream,
    _ears: Arc<Deaf>,
    phase: Phase,
    since: u64,
    last: Last,
    /// Bytes that are still to be sent, and what of the Reply has come.
    out: VecDeque<u8>,
    reply: Parser,
    msn: u32,
    // The endpoint's side.
    node: usize,
    ep: EpHandle,
    area: Area,
    receives: VecDeque<(u64, Slot)>,
    links: BTreeSet<u64>,
    /// Honest messages that have not arrived: what their bytes are, and how many.
    sent: VecDeque<(u64, usize)>,
    accepted: bool,
    established: bool,
    over: Option<&'static str>,
    /// The endpoint has left by itself.
    left: bool,
}

fn request() -> Vec<u8> {
    let wishes = Wishes { ird: 4, ord: 4, crc: true, private_data: MAX_FRAME };
    let mut bytes = [0; MAX_FRAME];
    let frame = negotiation::request(&wishes, &NUMBER.to_le_bytes());
    let length = frame.and_then(|frame| frame.frame().emit(&mut bytes).ok()).unwrap_or(0);
    bytes[..length].to_vec()
}

/// The FPDU of a segment.
fn framed(last: bool, opcode: Opcode, place: Place, payload: &[u8]) -> Vec<u8> {
    let header = Header::new(last, Control::new(opcode).to_byte(), place);
    let mut ulpdu = vec![0; header.size()];
    let emitted = header.emit(&mut ulpdu);
    debug_assert!(emitted.is_ok(), "room for the header");
    ulpdu.extend_from_slice(payload);
    let mut bytes = vec![0; fpdu::length(ulpdu.len())];
    let emitted = fpdu::emit(&ulpdu, true, &mut bytes);
    debug_assert!(emitted.is_ok(), "room for the FPDU");
    bytes
}

impl Bare {
    pub(crate) fn new(scene: &mut Scene) -> Step<Bare> {
        let node = scene.random.below(2) as usize;
        let from = if scene.rarely(5) { node } else { 1 - node };
        let last = LASTS[scene.random.below(LASTS.len() as u64) as usize];
        let attributes = EpAttributes {
            max_dto_payload_size: 1 << 16,
            max_request_dtos: DEPTH,
            max_recv_dtos: DEPTH,
            rc: RcAttributes { rdma_read_enable: true, rdma_write_enable: true, ..RcAttributes::default() },
            priv_ops_enable: true,
            ..EpAttributes::default()
        };
        let here = &scene.nodes[node];
        let ep = here
            .ia
            .ep_rc_create(
                here.pz,
                here.completions,
                here.completions,
                here.messages,
                EpFlags::empty(),
                &attributes,
            )
            .must("it_ep_rc_create")?;
        let ConnQual::IanaPort(port) = here.service else {
            return Err(Wrong("a listen point of iWARP without a port".into()));
        };
        let ears = Arc::new(Deaf);
        let weak: std::sync::Weak<dyn Upcalls> = Arc::downgrade(&(ears.clone() as Arc<dyn Upcalls>));
        let client = scene.nodes[from].agent.attach(weak).must("attaching a client")?;
        let gid = |node: usize| Gid(scene.nodes[node].agent.identity().gids[1]);
        let stream = client.connect_stream((gid(from), 0), (gid(node), u16::from_be(port)), 1);
        let stream = stream.must("a stream")?;
        scene.story.tell(|| format!("a bare peer of node {node} on node {from}: at last {last:?}"));
        let area = Area::new(scene, node)?;
        let mut bare = Bare {
            client,
            stream,
            _ears: ears,
            phase: Phase::Opening,
            since: scene.platform.now().as_nanos(),
            last,
            out: VecDeque::new(),
            reply: Parser::new(Kind::Reply),
            msn: 1,
            node,
            ep,
            area,
            receives: VecDeque::new(),
            links: BTreeSet::new(),
            sent: VecDeque::new(),
            accepted: false,
            established: false,
            over: None,
            left: false,
        };
        while bare.receives.len() < DEPTH && bare.post_receive(scene)? {}
        Ok(bare)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    pub(crate) fn is_mine(&self, node: usize, ep: EpHandle) -> bool {
        self.phase != Phase::Over && (self.node, self.ep) == (node, ep)
    }

    fn enter(&mut self, scene: &Scene, phase: Phase) {
        scene.story.tell(|| format!("the bare peer: {:?} -> {phase:?}", self.phase));
        self.phase = phase;
        self.since = scene.platform.now().as_nanos();
    }

    fn post_receive(&mut self, scene: &mut Scene) -> Step<bool> {
        let Some(slot) = scene.receive_slot(self.node, MOST)? else { return Ok(false) };
        let segments = scene.nodes[self.node].segments(&slot, &mut scene.random, true);
        let cookie = scene.cookie();
        let ia = &scene.nodes[self.node].ia;
        ia.post_recv(self.ep, &segments, cookie, DtoFlags::COMPLETION).must("it_post_recv")?;
        self.receives.push_back((cookie, slot));
        Ok(true)
    }

    /// A Request arrived; true if it is this peer's.
    pub(crate) fn asked(&mut self, scene: &Scene, node: usize, request: &ConnRequest) -> Step<bool> {
        let data = request.private_data.map(|data| data.as_slice().to_vec()).unwrap_or_default();
        if data != NUMBER.to_le_bytes() {
            return Ok(false);
        }
        let ia = &scene.nodes[node].ia;
        if self.phase != Phase::Asking || self.accepted {
            let _ = ia.reject(request.cn_est_id, &[]);
            return Ok(true);
        }
        match ia.ep_accept(self.ep, request.cn_est_id, &[]) {
            Ok(()) => self.accepted = true,
            // The stream has ended meanwhile.
            Err(error) => hold!(scene.faulty, "accepting a bare peer: {error}"),
        }
        Ok(true)
    }

    /// An event of the endpoint's connection.
    pub(crate) fn message(&mut self, scene: &mut Scene, event: &Event) -> Step {
        scene.story.tell(|| format!("the bare peer's endpoint: {:?}", event.event_number()));
        let over = match event {
            Event::ConnEstablished { .. } => {
                hold!(!self.established && self.over.is_none(), "a bare peer is connected twice");
                self.established = true;
                return Ok(());
            }
            Event::ConnDisconnect { .. } => "disconnected",
            Event::ConnBroken { .. } => "broken",
            _ => "given up",
        };
        hold!(self.over.is_none(), "of a bare peer: {over}, after it was {:?}", self.over);
        self.over = Some(over);
        let last = self.last;
        let begun = matches!(self.phase, Phase::Last | Phase::Ending);
        hold!(begun || scene.faulty, "{over} by a bare peer that is honest ({last:?}, {:?})", self.phase);
        let orderly = over == "disconnected";
        hold!(!orderly || self.left || begun && last.is_orderly(), "disconnected by a bare peer: {last:?}");
        hold!(orderly || !last.is_orderly() || scene.faulty, "{over} by a bare peer: {last:?}");
        Ok(())
    }

    /// A completion of the endpoint.
    pub(crate) fn completed(&mut self, scene: &mut Scene, done: &DtoCompletion) -> Step {
        let success = done.dto_status == DtoStatus::Success;
        if self.links.remove(&done.cookie) {
            hold!(success || scene.faulty, "a link for a bare peer: {:?}", done.dto_status);
            return Ok(());
        }
        let Some((cookie, slot)) = self.receives.pop_front() else {
            return Err(Wrong(format!("a bare peer's completion of no request: {done:?}")));
        };
        hold!(cookie == done.cookie, "receive {} completed before {cookie}", done.cookie);
        if success {
            let Some((word, len)) = self.sent.pop_front() else {
                return Err(Wrong(format!("a message of a bare peer was taken: {:?}", self.last)));
            };
            let slab = &scene.nodes[self.node].slab;
            let found = slab.bytes(slot.at, done.transferred_length as usize)?;
            let wrong = difference(&found, &pattern(word, len));
            hold!(wrong.is_none(), "a bare peer's message has {}", wrong.unwrap_or_default());
            scene.tally.did("bare peers: messages");
        } else {
            let expected = self.over.is_some() || self.last_is_begun() || scene.faulty;
            hold!(expected, "a receive of a bare peer: {:?}", done.dto_status);
        }
        scene.nodes[self.node].slab.give(slot)
    }

    fn last_is_begun(&self) -> bool {
        matches!(self.phase, Phase::Last | Phase::Ending)
    }

    pub(crate) fn act(&mut self, scene: &mut Scene) -> Step {
        if self.is_over() {
            return Ok(());
        }
        let lasted = scene.platform.now().as_nanos() - self.since;
        hold!(lasted < PATIENCE, "a bare peer stays {:?}, {:?}, {:?}", self.phase, self.last, self.over);
        let state = self.stream.state();
        let gone = state.end.is_some() || self.over.is_some();
        match self.phase {
            Phase::Ending => return self.ended(scene, lasted),
            _ if gone => {
                let refused = self.phase == Phase::Last && self.last.is_refused();
                hold!(refused || scene.faulty, "a bare peer's stream ended: {:?}", state.end);
                return self.leave(scene, true);
            }
            Phase::Opening if !state.connected => return Ok(()),
            Phase::Opening => {
                self.out.extend(request());
                self.enter(scene, Phase::Asking);
            }
            Phase::Asking if self.out.is_empty() => return self.hear(scene),
            Phase::Honest if self.out.is_empty() && self.established => {
                let node = &scene.nodes[self.node];
                for step in 0..3 {
                    scene.cookie += 1;
                    let (cookie, flags) = (scene.cookie, DtoFlags::COMPLETION);
                    match step {
                        1 => self.area.post_unlink(node, TARGET, self.ep, cookie, flags)?,
                        _ => self.area.post_link(node, TARGET, self.ep, cookie, flags)?,
                    }
                    self.links.insert(cookie);
                }
                self.enter(scene, Phase::Linking);
            }
            Phase::Linking if self.links.is_empty() => {
                self.prepare_last(scene)?;
                self.enter(scene, Phase::Last);
                scene.tally.did(self.last.name());
            }
            Phase::Last if self.out.is_empty() && !self.last.is_refused() => {
                return self.leave(scene, self.last == Last::Reset);
            }
            _ => {}
        }
        self.say(scene)
    }

    /// Sends some of what is to be sent, in pieces of any length, and drops what comes.
    fn say(&mut self, scene: &mut Scene) -> Step {
        let most = 1 + scene.random.small(2000) as usize;
        let piece: Vec<u8> = self.out.iter().copied().take(most).collect();
        if !piece.is_empty() {
            // It may have ended.
            let sent = self.stream.send(&piece).unwrap_or(0);
            self.out.drain(..sent);
        }
        if self.phase != Phase::Asking {
            let _ = self.stream.receive(&mut [0; 200]);
        }
        Ok(())
    }

    /// Looks for the Reply.
    fn hear(&mut self, scene: &mut Scene) -> Step {
        let mut byte = [0];
        while self.reply.frame().is_none() && self.stream.receive(&mut byte) == Ok(1) {
            self.reply.push(&byte).must("a Reply")?;
        }
        let Some(reply) = self.reply.frame() else { return Ok(()) };
        hold!(!reply.reject && reply.crc, "a bare peer is answered {reply:?}");
        for _ in 0..1 + scene.random.small(4) {
            let (word, len) = (scene.random.word(), scene.length(MOST));
            self.send(scene, word, len);
            self.sent.push_back((word, len));
            self.msn += 1;
            // The bug of a peer, which this double plays.
            self.msn += u32::from(planted(Bug::MsnSkips));
        }
        self.enter(scene, Phase::Honest);
        Ok(())
    }

    /// A message of one or more segments.
    fn send(&mut self, scene: &mut Scene, word: u64, len: usize) {
        let (bytes, most) = (pattern(word, len), 1 + scene.random.below(1400) as usize);
        let mut at = 0;
        loop {
            let end = (at + most).min(len);
            let place = Place::Untagged { invalidate: 0, queue: queue::SEND, msn: self.msn, mo: at as u32 };
            self.out.extend(framed(end == len, Opcode::Send, place, &bytes[at..end]));
            at = end;
            if at == len {
                return;
            }
        }
    }

    fn prepare_last(&mut self, scene: &mut Scene) -> Step {
        let (word, len) = (scene.random.word(), 1 + scene.length(MOST - 1));
        match self.last {
            Last::Close | Last::Reset => {}
            Last::CloseInside => {
                self.send(scene, word, len);
                let cut = 1 + scene.random.below(self.out.len() as u64 - 1) as usize;
                self.out.truncate(cut);
            }
            Last::WrongCrc => {
                self.send(scene, word, 1 + len % 500);
                // Behind the length, which would make the receiver wait for more.
                let at = 2 + scene.random.below(self.out.len().min(200) as u64 - 2) as usize;
                let first = 1 << scene.random.below(8);
                if let Some(byte) = self.out.get_mut(at) {
                    *byte ^= first;
                }
            }
            Last::WrongMsn => {
                self.msn = self.msn.wrapping_add(if scene.rarely(2) { 1 } else { u32::MAX });
                self.send(scene, word, len);
            }
            Last::Write | Last::StaleWrite => {
                let target = &self.area.targets[TARGET];
                let context = match self.last {
                    Last::Write => target.context,
                    _ => target.stale.ok_or(Wrong("a link has replaced no context".into()))?,
                };
                let (at, bytes) = (target.range.0, pattern(word, len));
                let place = Place::Tagged { stag: u32::from_be(context.0), to: self.area.addr(at) as u64 };
                self.out.extend(framed(true, Opcode::Write, place, &bytes));
                if self.last == Last::Write {
                    self.area.shadow[at..at + len].copy_from_slice(&bytes);
                }
            }
        }
        Ok(())
    }

    /// The peer leaves.
    fn leave(&mut self, scene: &mut Scene, reset: bool) -> Step {
        let cut_off = self.over.is_some() || self.stream.state().end.is_some();
        // Of an honest write it is not known then whether it arrived.
        self.area.unsure |= cut_off && self.last == Last::Write && self.phase == Phase::Last;
        // With what still comes unread, TCP resets instead.
        while self.stream.receive(&mut [0; 200]).is_ok_and(|count| count > 0) {}
        self.stream.destroy(reset).must("destroying a stream")?;
        if !self.accepted {
            self.over = Some("never connected");
        }
        self.enter(scene, Phase::Ending);
        Ok(())
    }

    /// Waits until the endpoint has learned of the end, and checks what is left.
    fn ended(&mut self, scene: &mut Scene, lasted: u64) -> Step {
        let node = &scene.nodes[self.node];
        match self.over {
            // A reset that was lost comes only if the endpoint says something.
            None if scene.faulty && !self.left && lasted > LOST => {
                self.left = true;
                return node.ia.ep_disconnect(self.ep, &[]).must("it_ep_disconnect");
            }
            None => return Ok(()),
            Some("never connected") => {}
            Some(_) if !self.receives.is_empty() || !self.links.is_empty() => return Ok(()),
            Some(over) => {
                let whole =
                    over == "disconnected" && !self.left || self.last == Last::CloseInside && !scene.faulty;
                hold!(!whole || self.sent.is_empty(), "{} messages did not arrive", self.sent.len());
                self.area.unsure |= self.last == Last::Write && (over != "disconnected" || self.left);
            }
        }
        self.area.check("the bare peer's endpoint")?;
        // As for other endpoints: a window that is linked keeps it.
        self.area.free(node)?;
        node.ia.ep_free(self.ep).must("it_ep_free")?;
        while let Some((_, slot)) = self.receives.pop_front() {
            scene.nodes[self.node].slab.give(slot)?;
        }
        self.client.detach();
        self.enter(scene, Phase::Over);
        Ok(())
    }
}
