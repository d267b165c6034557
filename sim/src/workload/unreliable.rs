//! An unreliable connection: each message arrives whole, once at most and in the order of posting,
//! or is lost. It is made on the agent, since IT-API has no such connections.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use kernel_agent::{
    AcceptParams, AsyncEvent, Client, CmEvent, CmEventKind, Completion, CompletionFlags, CompletionStatus,
    ConnectParams, ConnectionId, Cq, Death, Handshake, LinkFlags, ListenId, Operation, Pd, Qp, QpAttributes,
    QpType, Region, Request, Segment, SendFlags, Shadow, Transports, Upcalls,
};
use roce::{Gid, Path, ServiceId};

use super::node::Scene;
use super::stream::PATIENCE;
use crate::harness::memory::{Slab, Slot, difference, pattern};
use crate::harness::wrong::{Must, Step, Wrong, hold};

/// Bytes of a message at most: several packets.
const MOST: usize = 5000;
/// Requests, and receives, of an end.
const DEPTH: usize = 8;
/// Memory for all of them, and for what lies between.
const SLAB: usize = 2 * DEPTH * 8192;

/// What the agent reported of connections.
#[derive(Default)]
struct Ears(Mutex<VecDeque<(ConnectionId, CmEventKind)>>);

impl Ears {
    fn next(&self) -> Option<(ConnectionId, CmEventKind)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Upcalls for Ears {
    fn completion(&self, _: u64) {}

    fn asynchronous(&self, _: AsyncEvent) {}

    fn connection(&self, event: CmEvent<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((event.connection, event.kind));
    }

    fn catastrophic(&self, _: Death) {}
}

/// One end, with all that it needs.
struct End {
    client: Arc<Client>,
    ears: Arc<Ears>,
    /// Kept as long as the client.
    _pd: Arc<Pd>,
    region: Arc<Region>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    slab: Slab,
    connection: Option<ConnectionId>,
    established: bool,
    over: bool,
    requests: VecDeque<(u64, Slot)>,
    receives: VecDeque<(u64, Slot)>,
    /// Lengths of messages to the peer that may still arrive, by number.
    sent: BTreeMap<u64, usize>,
}

impl End {
    fn new(scene: &Scene, node: usize) -> Step<End> {
        let agent = &scene.nodes[node].agent;
        let ears = Arc::new(Ears::default());
        let weak: std::sync::Weak<dyn Upcalls> = Arc::downgrade(&(ears.clone() as Arc<dyn Upcalls>));
        let client = agent.attach(weak).must("attaching a client")?;
        let pd = client.create_pd().must("a domain")?;
        let cq = client.create_cq(2 * DEPTH as u32, 0).must("a CQ")?;
        let attributes = QpAttributes::new(QpType::Uc, &pd, &cq, DEPTH as u32);
        let qp = client.create_qp(&attributes).must("a queue pair")?;
        qp.to_init(LinkFlags::empty()).must("INIT")?;
        let slab = Slab::new(&scene.platform, SLAB)?;
        let addr = slab.buffer.addr();
        let rights = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE;
        let region = client.register_virtual(&pd, rights, addr as u64, addr, SLAB as u64).must("a region")?;
        Ok(End {
            client,
            ears,
            _pd: pd,
            region,
            cq,
            qp,
            slab,
            connection: None,
            established: false,
            over: false,
            requests: VecDeque::new(),
            receives: VecDeque::new(),
            sent: BTreeMap::new(),
        })
    }

    fn segment(&self, slot: &Slot) -> Segment {
        let addr = (self.slab.buffer.addr() + slot.at) as u64;
        Segment { addr, length: slot.len as u32, key: self.region.key() }
    }

    fn post_receive(&mut self, cookie: u64) -> Step<bool> {
        if self.receives.len() == DEPTH {
            return Ok(false);
        }
        let Some(slot) = self.slab.take(MOST, 0..SLAB)? else { return Ok(false) };
        let shadow = Shadow { cookie, data: 0 };
        let segment = self.segment(&slot);
        self.qp.post_receive(false, &[segment], |&segment| segment, shadow).must("a receive")?;
        self.receives.push_back((cookie, slot));
        Ok(true)
    }

    fn post_send(&mut self, cookie: u64, number: u64, len: usize) -> Step<bool> {
        if self.requests.len() == DEPTH {
            return Ok(false);
        }
        let Some(slot) = self.slab.take(len, 0..SLAB)? else { return Ok(false) };
        self.slab.write(slot.at, &content(number, len))?;
        let operation = Operation::Send { immediate: None };
        let shadow = Shadow { cookie, data: 0 };
        let request = Request { operation, flags: SendFlags::SIGNALED, shadow };
        let segment = self.segment(&slot);
        self.qp.post(&request, &[segment], |&segment| segment).must("a send")?;
        self.sent.insert(number, len);
        self.requests.push_back((cookie, slot));
        Ok(true)
    }

    /// A message has arrived from `peer`: one that is later than all that arrived before.
    fn arrived(&mut self, peer: &mut End, slot: &Slot, len: usize) -> Step {
        let bytes = self.slab.bytes(slot.at, len)?;
        let number = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        let Some(expected) = peer.sent.remove(&number) else {
            return Err(Wrong(format!("message {number} arrived twice or too late, or nobody sent it")));
        };
        let wrong = difference(&bytes, &content(number, expected));
        hold!(wrong.is_none(), "message {number} arrived with {}", wrong.unwrap_or_default());
        // Those before it are lost, and must not arrive any more.
        peer.sent.retain(|&other, _| other > number);
        Ok(())
    }

    /// Takes a completion; `ending`: the queue pair may be in the error state.
    fn completed(&mut self, peer: &mut End, done: &Completion, ending: bool) -> Step<Option<&'static str>> {
        let success = done.status == CompletionStatus::Success;
        let flushed = ending && done.status == CompletionStatus::Flushed;
        hold!(success || flushed, "a request of an unreliable connection ended with {:?}", done.status);
        let receive = done.flags.contains(CompletionFlags::RECEIVE);
        let queue = if receive { &mut self.receives } else { &mut self.requests };
        let Some((cookie, slot)) = queue.pop_front() else {
            return Err(Wrong(format!("a completion of no request: {done:?}")));
        };
        hold!(cookie == done.cookie, "request {} completed before {cookie}", done.cookie);
        if receive && success {
            self.arrived(peer, &slot, done.length as usize)?;
        }
        self.slab.give(slot)?;
        Ok(match (success, receive) {
            (false, _) => None,
            (true, false) => Some("unreliable messages sent"),
            (true, true) => Some("unreliable messages received"),
        })
    }
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Up,
    Ending,
    Over,
}

/// An unreliable connection.
pub(crate) struct Unreliable {
    ends: [End; 2],
    listen: ListenId,
    phase: Phase,
    /// When it began, nanoseconds.
    since: u64,
    posts: u32,
    number: u64,
}

impl Unreliable {
    /// Asks for a connection; `service` is a number that no other has.
    pub(crate) fn new(scene: &mut Scene, service: u64) -> Step<Unreliable> {
        let nodes = [scene.random.below(2) as usize, scene.random.below(2) as usize];
        let mut ends = [End::new(scene, nodes[0])?, End::new(scene, nodes[1])?];
        let service = ServiceId(0x7563_0000 + service);
        let listen = ends[1].client.listen(service, Transports::UC, 0).must("listening")?;
        let gid = |node: usize| Gid(scene.nodes[node].agent.identity().gids[1]);
        let params = ConnectParams::new(Path::new(gid(nodes[0]), gid(nodes[1])), service);
        let connection = ends[0].client.connect(&ends[0].qp, &params, Handshake::TwoWay, b"");
        ends[0].connection = Some(connection.must("connecting")?);
        let since = scene.platform.now().as_nanos();
        let posts = 8 + scene.random.small(40);
        Ok(Unreliable { ends, listen, phase: Phase::Connecting, since, posts, number: 0 })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    pub(crate) fn act(&mut self, scene: &mut Scene) -> Step {
        if self.is_over() {
            return Ok(());
        }
        self.hear(scene)?;
        self.reap(scene)?;
        let lasted = scene.platform.now().as_nanos() - self.since;
        hold!(lasted < PATIENCE, "an unreliable connection stays {:?}", self.phase);
        match self.phase {
            Phase::Connecting if self.ends[0].over => self.end(scene),
            Phase::Connecting if self.ends[0].established => {
                scene.tally.did("unreliable connections");
                self.enter(scene, Phase::Up);
            }
            Phase::Up => self.traffic(scene)?,
            Phase::Ending if self.is_idle() => self.free(scene)?,
            Phase::Connecting | Phase::Ending | Phase::Over => {}
        }
        Ok(())
    }

    fn enter(&mut self, scene: &Scene, phase: Phase) {
        scene.story.tell(|| format!("the unreliable connection: {:?} -> {phase:?}", self.phase));
        self.phase = phase;
        self.since = scene.platform.now().as_nanos();
    }

    fn hear(&mut self, scene: &Scene) -> Step {
        for side in [0, 1] {
            let end = &mut self.ends[side];
            while let Some((id, kind)) = end.ears.next() {
                scene.story.tell(|| format!("the unreliable connection, end {side}: {kind:?}"));
                match kind {
                    CmEventKind::Request { qp_type, .. } => {
                        hold!(qp_type == QpType::Uc, "a request for {qp_type:?}");
                        if self.phase == Phase::Connecting && end.connection.is_none() {
                            let accepted = end.client.accept(id, &end.qp, &AcceptParams::default(), b"");
                            accepted.must("accepting")?;
                            end.connection = Some(id);
                        } else {
                            // A late repetition; it may have been withdrawn.
                            let _ = end.client.reject(id, b"");
                        }
                    }
                    CmEventKind::Established { .. } => {
                        hold!(!end.established && !end.over, "end {side} is established twice");
                        end.established = true;
                    }
                    CmEventKind::AcceptArrived { .. } => {}
                    _ if end.connection == Some(id) => end.over = true,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Takes all completions.
    fn reap(&mut self, scene: &mut Scene) -> Step {
        let ending = self.phase == Phase::Ending || self.ends.iter().any(|end| end.over);
        for side in [0, 1] {
            let [a, b] = &mut self.ends;
            let (end, peer) = if side == 0 { (a, b) } else { (b, a) };
            while let Some(done) = end.cq.poll_one() {
                if let Some(what) = end.completed(peer, &done, ending)? {
                    scene.tally.did(what);
                }
            }
        }
        Ok(())
    }

    fn traffic(&mut self, scene: &mut Scene) -> Step {
        if self.ends.iter().any(|end| end.over) || self.posts == 0 {
            self.end(scene);
            return Ok(());
        }
        let (side, cookie) = (scene.random.below(2) as usize, scene.cookie());
        let end = &mut self.ends[side];
        if scene.rarely(2) {
            return end.post_receive(cookie).map(drop);
        }
        // The passive end may not send before it is established.
        let len = 8 + scene.length(MOST - 8);
        if end.established && end.post_send(cookie, self.number + 1, len)? {
            self.number += 1;
            self.posts -= 1;
        }
        Ok(())
    }

    /// Ends the connection, at both ends at once or at one.
    fn end(&mut self, scene: &mut Scene) {
        let first = scene.random.below(2) as usize;
        for side in [first, 1 - first] {
            let end = &mut self.ends[side];
            if let Some(id) = end.connection {
                // It may be over.
                let _ = end.client.disconnect(id, b"");
            }
            // An end that was never connected has nothing that ends by itself.
            let _ = end.qp.to_error();
        }
        self.enter(scene, Phase::Ending);
    }

    fn is_idle(&self) -> bool {
        self.ends.iter().all(|end| end.requests.is_empty() && end.receives.is_empty())
    }

    /// Frees all objects. The device touches no memory of theirs from then on.
    fn free(&mut self, scene: &Scene) -> Step {
        self.ends[1].client.stop_listening(self.listen).must("ending the listening point")?;
        for end in &self.ends {
            hold!(end.qp.outstanding() == (0, 0), "requests are outstanding: {:?}", end.qp.outstanding());
            end.client.detach();
            end.slab.check()?;
        }
        self.enter(scene, Phase::Over);
        Ok(())
    }
}

/// A message: its number and a pattern.
fn content(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(number, len - 8));
    bytes
}
