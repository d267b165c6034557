//! A connection from its start to its end, and what its model expects.

use std::time::Duration;

use rdma::{
    Access, Completion, Domain, Done, Endpoint, Nic, Operation, PostError, Queue, Region, RemoteMemory,
    Request, RequestError, SharedReceives, Work,
};

use super::{PATIENCE, Scene};
use crate::harness::memory::{difference, pattern};
use crate::harness::wrong::{Step, Wrong, hold};

/// Requests of each kind that an endpoint has room for, and buffers of a pool.
const DEPTH: usize = 8;
/// Bytes of a message at most.
const MOST: usize = 3000;
/// The pieces of an area, each of which one request at a time may use.
const PIECES: u64 = 6;
const PIECE: usize = 64;
/// Where the counter is, behind the pieces.
const COUNTER: u64 = PIECES * PIECE as u64;
/// Between two attempts at something for which there is no room, nanoseconds.
const PAUSE: u64 = 50_000;

/// What a request is to do.
#[derive(Clone, Debug)]
enum Kind {
    /// A message with this number.
    Send(usize),
    Receive(usize),
    /// Writes a pattern to a piece of the peer's area.
    Write(u64, Vec<u8>),
    /// Reads a piece, which has this.
    Read(u64, Vec<u8>),
    /// Adds to the counter, which has this.
    Add(u64),
}

impl Kind {
    fn name(&self) -> String {
        match self {
            Kind::Send(number) => format!("message {number}"),
            Kind::Receive(number) => format!("receive {number}"),
            Kind::Write(piece, _) => format!("a write to piece {piece}"),
            Kind::Read(piece, _) => format!("a read of piece {piece}"),
            Kind::Add(former) => format!("an addition to {former}"),
        }
    }
}

/// Who hears of its end.
enum How {
    Started(Request),
    /// A poll returns its number.
    Posted(u64),
    /// Nobody: its future was dropped.
    Forgotten,
}

struct Op {
    by: usize,
    /// The place among all requests.
    place: u64,
    kind: Kind,
    how: How,
    /// None if the region was dropped while the request named it.
    memory: Option<Region>,
}

impl Op {
    fn receives(&self) -> bool {
        matches!(self.kind, Kind::Receive(_))
    }

    fn piece(&self) -> Option<u64> {
        match self.kind {
            Kind::Write(piece, _) | Kind::Read(piece, _) => Some(piece),
            _ => None,
        }
    }
}

/// One end.
struct Side {
    endpoint: Option<Endpoint>,
    id: u64,
    queue: Queue,
    domain: Domain,
    area: Region,
    /// What the peer's requests name it by.
    remote: RemoteMemory,
    pool: Option<SharedReceives>,
    /// Of the messages that it has sent.
    lengths: Vec<usize>,
    /// Receives that it has posted, and messages that came to its pool.
    receives: usize,
    pooled: usize,
    /// What its peer's counter has when all is carried out.
    added: u64,
}

struct Connection {
    sides: [Side; 2],
    ops: Vec<Op>,
    word: u64,
    /// It is over iWARP: a Write has succeeded before it has arrived.
    iwarp: bool,
    /// Over iWARP, Writes that succeeded while nothing shows that they arrived.
    unproved: Vec<Op>,
    /// Something failed, or it is to end.
    over: bool,
}

impl Side {
    fn new(scene: &mut Scene, queue: Option<Queue>, nic: &Nic) -> Step<Option<Side>> {
        let Some(domain) = scene.value(nic.domain(), "a domain")? else { return Ok(None) };
        let len = COUNTER as usize + 8;
        let Some(area) = scene.value(domain.shared_region(len, Access::all()), "an area")? else {
            return Ok(None);
        };
        let pool = match scene.random.rarely(4) {
            true => scene.value(domain.shared_receives(DEPTH as u32, MOST), "a pool")?,
            false => None,
        };
        let mut builder = domain.endpoint().sends(DEPTH as u32).receives(DEPTH as u32);
        if let Some(queue) = &queue {
            builder = builder.queue(queue);
        }
        if let Some(pool) = &pool {
            builder = builder.shared(pool);
        }
        let Some(endpoint) = scene.value(builder.build(), "an endpoint")? else { return Ok(None) };
        let remote = area.remote().ok_or(Wrong("an area without rights".into()))?;
        Ok(Some(Side {
            id: endpoint.id(),
            queue: endpoint.queue().clone(),
            endpoint: Some(endpoint),
            domain,
            area,
            remote,
            pool,
            lengths: Vec::new(),
            receives: 0,
            pooled: 0,
            added: 0,
        }))
    }
}

/// Runs a connection.
pub(super) fn live(scene: &mut Scene, service: u16) -> Step {
    let first = scene.random.below(2) as usize;
    let second = if scene.random.rarely(4) { first } else { 1 - first };
    // Both ends on one queue, if they are on one NIC.
    // Two of three over iWARP, if there is that.
    let iwarp = scene.iwarp.is_some() && !scene.random.rarely(3);
    let nics = scene.iwarp.as_ref().filter(|_| iwarp).unwrap_or(&scene.nics).clone();
    let queue = match first == second && scene.random.rarely(2) {
        true => scene.value(nics[first].queue(8 * DEPTH as u32), "a queue")?,
        false => None,
    };
    let Some(a) = Side::new(scene, queue.clone(), &nics[first])? else { return Ok(()) };
    let Some(b) = Side::new(scene, queue, &nics[second])? else { return Ok(()) };
    let word = scene.random.word();
    let mut connection =
        Connection { sides: [a, b], ops: Vec::new(), word, iwarp, unproved: Vec::new(), over: false };
    if !connection.connect(scene, &nics[second], service)? {
        return Ok(());
    }
    scene.tally.did(if iwarp { "connections over iWARP" } else { "connections" });
    for _ in 0..10 + scene.random.small(30) {
        if connection.over {
            break;
        }
        connection.act(scene)?;
    }
    connection.end(scene)
}

impl Connection {
    /// Whether it is established.
    fn connect(&mut self, scene: &mut Scene, passive: &Nic, service: u16) -> Step<bool> {
        let listened = passive.listen(service);
        let Some(listener) = scene.value(listened, "a listener")? else { return Ok(false) };
        let [a, b] = &self.sides;
        let (Some(a), Some(b)) = (&a.endpoint, &b.endpoint) else { return Ok(false) };
        let address = passive.address();
        let asks =
            async { a.connect_with(address, service, b"hello").await.map(|_| ()).map_err(|e| e.to_string()) };
        let accepts = async {
            let incoming = listener.accept().await.map_err(|error| error.to_string())?;
            if &incoming.private_data()[..5] != b"hello" {
                return Err("other private data".into());
            }
            incoming.accept(b).await.map(|_| ()).map_err(|error| error.to_string())
        };
        let connected = scene.both(asks, accepts)?;
        Ok(scene.value(connected, "connecting")?.is_some())
    }

    /// Posts something, or looks for what has completed.
    fn act(&mut self, scene: &mut Scene) -> Step {
        let by = scene.random.below(2) as usize;
        match scene.random.below(12) {
            0..3 => self.receive(scene, by),
            3..6 => self.send(scene, by),
            6 | 7 => self.write(scene, by),
            8 => self.read(scene, by),
            9 if !self.iwarp => self.add(scene, by),
            10 => self.poll(scene).map(drop),
            _ => self.quiesce(scene),
        }
    }

    fn outstanding(&self, by: usize, receives: bool) -> usize {
        self.ops.iter().filter(|op| op.by == by && op.receives() == receives).count()
    }

    /// A new region of a side.
    fn region(&mut self, scene: &Scene, by: usize, len: usize) -> Step<Option<Region>> {
        let region = scene.value(self.sides[by].domain.region(len.max(1)), "a region")?;
        self.over |= region.is_none();
        Ok(region)
    }

    /// Posts a request in one of all ways, and keeps or drops its memory. Whether it was posted.
    fn post(&mut self, scene: &mut Scene, by: usize, kind: Kind, memory: Region, len: usize) -> Step<bool> {
        let peer = self.sides[1 - by].remote;
        let Some(endpoint) = &self.sides[by].endpoint else { return Ok(false) };
        let id = scene.number();
        let slice = memory.slice(..len);
        let posted = match &kind {
            Kind::Receive(_) => match scene.random.below(3) {
                0 => endpoint.post_receive(slice, id).map(|()| How::Posted(id)),
                choice => endpoint.receive(slice).map(|request| how(scene, choice, request)),
            },
            other => {
                let work = match other {
                    Kind::Write(piece, _) => Work::write(slice, peer.from(piece * PIECE as u64)),
                    Kind::Read(piece, _) => Work::read(slice, peer.from(piece * PIECE as u64)),
                    // Nobody else changes the counter, so the two do the same.
                    Kind::Add(former) if scene.random.rarely(3) => {
                        Work::compare_swap(slice, peer.from(COUNTER), *former, former + 1)
                    }
                    Kind::Add(_) => Work::fetch_add(slice, peer.from(COUNTER), 1),
                    _ => Work::send(slice),
                };
                let plain = !matches!(other, Kind::Add(_));
                match scene.random.below(4) {
                    0 => endpoint.post(work.id(id)).map(|()| How::Posted(id)),
                    1 if plain => {
                        scene.tally.did("batches");
                        endpoint.batch(|batch| batch.post(work.id(id))).map(|()| How::Posted(id))
                    }
                    choice => endpoint.start(work).map(|request| how(scene, choice, request)),
                }
            }
        };
        let how = match posted {
            Ok(how) => how,
            // Forgotten requests take room until somebody looks at the queue.
            Err(PostError::Full) if self.forgets(by) => return Ok(false),
            Err(error) => {
                scene.story.tell(|| format!("side {by}: {id}: {} is not posted: {error}", kind.name()));
                self.over |= scene.value(Err::<(), _>(error), "a post")?.is_none();
                return Ok(false);
            }
        };
        // What is read, or received, has to be looked at.
        let drops = matches!(kind, Kind::Send(_) | Kind::Write(..)) && scene.random.rarely(2)
            || matches!(how, How::Forgotten) && scene.random.rarely(2);
        if drops {
            scene.tally.did("regions dropped under a request");
        }
        scene.story.tell(|| {
            let who = match how {
                How::Started(_) => "is started",
                How::Posted(_) => "is posted",
                How::Forgotten => "is started and forgotten",
            };
            format!(
                "side {by}: {id}: {} {who}{}",
                kind.name(),
                if drops { ", its region dropped" } else { "" }
            )
        });
        let memory = Some(memory).filter(|_| !drops);
        let place = scene.number();
        self.ops.push(Op { by, place, kind, how, memory });
        Ok(true)
    }

    fn forgets(&self, by: usize) -> bool {
        self.ops.iter().any(|op| op.by == by && matches!(op.how, How::Forgotten))
    }

    fn receive(&mut self, scene: &mut Scene, by: usize) -> Step {
        if self.sides[by].pool.is_some() || self.outstanding(by, true) == DEPTH {
            return Ok(());
        }
        let Some(into) = self.region(scene, by, MOST)? else { return Ok(()) };
        let number = self.sides[by].receives;
        let posted = self.post(scene, by, Kind::Receive(number), into, MOST)?;
        self.sides[by].receives += usize::from(posted);
        Ok(())
    }

    fn message(&self, by: usize, number: usize, len: usize) -> Vec<u8> {
        pattern(self.word ^ (by as u64) << 32 ^ number as u64, len)
    }

    fn send(&mut self, scene: &mut Scene, by: usize) -> Step {
        let (here, there) = (&self.sides[by], &self.sides[1 - by]);
        let ready = match there.pool {
            Some(_) => here.lengths.len() < there.pooled + DEPTH,
            None => here.lengths.len() < there.receives,
        };
        if !ready || self.outstanding(by, false) == DEPTH {
            return Ok(());
        }
        let most = if scene.random.rarely(4) { MOST } else { 200 };
        let (number, len) = (here.lengths.len(), scene.random.below(most as u64 + 1) as usize);
        let Some(from) = self.region(scene, by, len)? else { return Ok(()) };
        from.slice(..).write(&self.message(by, number, len));
        if self.post(scene, by, Kind::Send(number), from, len)? {
            self.sides[by].lengths.push(len);
        }
        Ok(())
    }

    /// A piece of the peer's area that no request uses.
    fn free_piece(&self, scene: &mut Scene, by: usize) -> Option<u64> {
        let piece = scene.random.below(PIECES);
        let mut ops = self.ops.iter().chain(&self.unproved);
        let used = ops.any(|op| op.by == by && op.piece() == Some(piece));
        (!used && self.outstanding(by, false) < DEPTH).then_some(piece)
    }

    fn write(&mut self, scene: &mut Scene, by: usize) -> Step {
        let Some(piece) = self.free_piece(scene, by) else { return Ok(()) };
        let Some(from) = self.region(scene, by, PIECE)? else { return Ok(()) };
        let bytes = pattern(scene.number(), PIECE);
        from.slice(..).write(&bytes);
        self.post(scene, by, Kind::Write(piece, bytes), from, PIECE).map(|_| ())
    }

    fn piece(&self, of: usize, piece: u64) -> Vec<u8> {
        let at = piece as usize * PIECE;
        self.sides[of].area.slice(at..at + PIECE).to_vec()
    }

    fn read(&mut self, scene: &mut Scene, by: usize) -> Step {
        let Some(piece) = self.free_piece(scene, by) else { return Ok(()) };
        let Some(into) = self.region(scene, by, PIECE)? else { return Ok(()) };
        let bytes = self.piece(1 - by, piece);
        self.post(scene, by, Kind::Read(piece, bytes), into, PIECE).map(|_| ())
    }

    fn add(&mut self, scene: &mut Scene, by: usize) -> Step {
        if self.outstanding(by, false) == DEPTH {
            return Ok(());
        }
        let Some(into) = self.region(scene, by, 8)? else { return Ok(()) };
        let former = self.sides[by].added;
        let posted = self.post(scene, by, Kind::Add(former), into, 8)?;
        self.sides[by].added += u64::from(posted);
        Ok(())
    }

    /// Takes some of what has completed for who polls. Whether there was anything.
    fn poll(&mut self, scene: &mut Scene) -> Step<bool> {
        let mut came = false;
        for side in [0, 1] {
            let mut some = [Completion::EMPTY; 3];
            let count = self.sides[side].queue.poll(&mut some);
            came |= count > 0;
            for completion in &some[..count] {
                self.completed(scene, completion)?;
            }
        }
        Ok(came)
    }

    fn completed(&mut self, scene: &mut Scene, done: &Completion) -> Step {
        let Some(by) = self.sides.iter().position(|side| side.id == done.endpoint()) else {
            return Err(Wrong(format!("a completion of another endpoint: {done:?}")));
        };
        let receives = done.operation() == Operation::Receive;
        if let Some(pool) = self.sides[by].pool.clone().filter(|_| receives) {
            let Some(message) = pool.message(done).filter(|_| self.sides[by].endpoint.is_some()) else {
                if self.sides[by].endpoint.is_none() {
                    return Ok(());
                }
                hold!(done.result().is_err(), "a message was taken before: {done:?}");
                return self.failed(scene, done.result().unwrap_err());
            };
            let number = self.sides[by].pooled;
            self.sides[by].pooled += 1;
            return self.arrived(scene, by, number, &message.slice().to_vec());
        }
        if self.sides[by].endpoint.is_none() {
            // It was dropped, and its completions with it, but for those that had come.
            return Ok(());
        }
        let mine = |op: &Op| op.by == by && op.receives() == receives && matches!(op.how, How::Posted(_));
        let Some(at) = self.ops.iter().position(mine) else {
            return Err(Wrong(format!("a completion that nobody polls for: {done:?}")));
        };
        let op = self.ops.remove(at);
        let id = if let How::Posted(id) = op.how { id } else { 0 };
        scene.story.tell(|| format!("side {by}: {} has completed: {:?}", done.id(), done.result()));
        hold!(id == done.id(), "request {} completed before {id}", done.id());
        self.finish(scene, &op, done.result())
    }

    fn failed(&mut self, scene: &mut Scene, error: RequestError) -> Step {
        scene.story.tell(|| format!("a request failed: {error}"));
        hold!(self.over || scene.excused(), "a request failed without a cause: {error}");
        self.over = true;
        Ok(())
    }

    fn arrived(&mut self, scene: &mut Scene, at: usize, number: usize, bytes: &[u8]) -> Step {
        let Some(&len) = self.sides[1 - at].lengths.get(number) else {
            return Err(Wrong(format!("message {number} arrived and was not sent")));
        };
        let wrong = difference(bytes, &self.message(1 - at, number, len));
        hold!(wrong.is_none(), "message {number} arrived with {}", wrong.unwrap_or_default());
        scene.tally.did("messages");
        Ok(())
    }

    /// A request has ended: its effect is there.
    fn finish(&mut self, scene: &mut Scene, op: &Op, result: Result<usize, RequestError>) -> Step {
        let len = match result {
            Ok(len) => len,
            Err(error) => return self.failed(scene, error),
        };
        match &op.kind {
            Kind::Send(number) => {
                hold!(len == self.sides[op.by].lengths[*number], "{len} bytes were sent of message {number}");
            }
            Kind::Receive(number) => {
                let bytes = op.memory.as_ref().map(|memory| memory.slice(..len).to_vec());
                if let Some(bytes) = bytes {
                    self.arrived(scene, op.by, *number, &bytes)?;
                }
            }
            Kind::Write(piece, bytes) if self.iwarp => {
                let (place, kind) = (op.place, Kind::Write(*piece, bytes.clone()));
                self.unproved.push(Op { by: op.by, place, kind, how: How::Forgotten, memory: None });
            }
            Kind::Write(piece, bytes) => {
                hold!(self.piece(1 - op.by, *piece) == *bytes, "a write is not there");
                scene.tally.did("writes");
            }
            Kind::Read(_, expected) => {
                self.prove(scene, op.by, op.place)?;
                if let Some(memory) = &op.memory {
                    let wrong = difference(&memory.slice(..).to_vec(), expected);
                    hold!(wrong.is_none(), "a read returned {}", wrong.unwrap_or_default());
                    scene.tally.did("reads");
                }
            }
            Kind::Add(former) => {
                if let Some(memory) = &op.memory {
                    let bytes = memory.slice(..).to_vec();
                    hold!(bytes == former.to_ne_bytes(), "an addition returned {bytes:?}, not {former}");
                    scene.tally.did("additions");
                }
            }
        }
        Ok(())
    }

    /// All requests of a side before this place have arrived.
    fn prove(&mut self, scene: &mut Scene, by: usize, place: u64) -> Step {
        let proved = self.unproved.extract_if(.., |op| op.by == by && op.place < place);
        for op in proved.collect::<Vec<_>>() {
            let Kind::Write(piece, bytes) = op.kind else { continue };
            hold!(self.piece(1 - by, piece) == bytes, "a write over iWARP is not there");
            scene.tally.did("writes");
        }
        Ok(())
    }

    /// Waits until all requests have ended, but for Receives without a message if the connection is
    /// not over. Those that nobody waits for are left.
    fn settle(&mut self, scene: &mut Scene, receives: bool) -> Step {
        let deadline = scene.shared.platform.now() + PATIENCE;
        loop {
            let waits = |op: &Op| op.receives() == receives && !matches!(op.how, How::Forgotten);
            let Some(at) = self.ops.iter().position(waits) else { return Ok(()) };
            if matches!(self.ops[at].how, How::Started(_)) {
                let Op { by, place, kind, how, memory } = self.ops.remove(at);
                let How::Started(request) = how else { continue };
                let done = scene.wait(request)?;
                let op = Op { by, place, kind, how: How::Forgotten, memory };
                self.finish(scene, &op, done.map(|done: Done| done.len))?;
                continue;
            }
            // Of this side's NIC: the agents are closed one after the other. Asked before the poll:
            // if that finds nothing, all that had completed by then was taken.
            let is_dead = self.sides[self.ops[at].by].domain.nic().is_dead();
            let came = self.poll(scene)?;
            if !came && self.ops.get(at).is_some_and(waits) {
                if is_dead {
                    self.ops.remove(at);
                    continue;
                }
                hold!(scene.shared.platform.now() < deadline, "a completion does not come");
                let by = self.ops[at].by;
                let _ = self.sides[by].queue.wait(Some(Duration::from_millis(5)));
            }
        }
    }

    /// Starts what `start` starts, as soon as there is room; `None` if the connection is over.
    fn start(
        &mut self,
        scene: &mut Scene,
        by: usize,
        start: impl Fn(&Endpoint) -> Result<Request, PostError>,
    ) -> Step<Option<Request>> {
        let deadline = scene.shared.platform.now() + PATIENCE;
        loop {
            let Some(endpoint) = &self.sides[by].endpoint else { return Ok(None) };
            match start(endpoint) {
                Err(PostError::Full) => {}
                started => {
                    let started = scene.value(started, "a request")?;
                    self.over |= started.is_none();
                    return Ok(started);
                }
            }
            hold!(scene.shared.platform.now() < deadline, "there is never room");
            self.poll(scene)?;
            scene.pause(PAUSE);
        }
    }

    /// Sends a message, and waits until it is sent.
    fn send_now(&mut self, scene: &mut Scene, by: usize) -> Step {
        let (number, len) = (self.sides[by].lengths.len(), 50);
        let Some(from) = self.region(scene, by, len)? else { return Ok(()) };
        from.slice(..).write(&self.message(by, number, len));
        let Some(request) = self.start(scene, by, |endpoint| endpoint.send(from.slice(..)))? else {
            return Ok(());
        };
        self.sides[by].lengths.push(len);
        let done = scene.wait(request)?;
        let place = scene.number();
        let op = Op { by, place, kind: Kind::Send(number), how: How::Forgotten, memory: Some(from) };
        self.finish(scene, &op, done.map(|done| done.len))
    }

    /// Takes the messages that are on their way to a side's pool.
    fn empty_pool(&mut self, scene: &mut Scene, of: usize) -> Step {
        let deadline = scene.shared.platform.now() + PATIENCE;
        while !self.over && !scene.excused() && self.misses(of) {
            self.poll(scene)?;
            scene.pause(PAUSE);
            hold!(scene.shared.platform.now() < deadline, "a message does not come to a pool");
        }
        Ok(())
    }

    /// Sends a message that comes after all others, and waits until it has come.
    fn send_last(&mut self, scene: &mut Scene, by: usize) -> Step {
        let there = 1 - by;
        if self.sides[there].pool.is_some() {
            // The buffers of messages that were not looked at are no room for another.
            self.empty_pool(scene, there)?;
            self.send_now(scene, by)?;
            return self.empty_pool(scene, there);
        }
        while !self.over && self.sides[by].lengths.len() < self.sides[there].receives {
            self.send_now(scene, by)?;
        }
        let number = self.sides[there].receives;
        let Some(into) = self.region(scene, there, MOST)? else { return Ok(()) };
        let Some(request) = self.start(scene, there, |endpoint| endpoint.receive(into.slice(..)))? else {
            return Ok(());
        };
        self.sides[there].receives += 1;
        self.send_now(scene, by)?;
        if self.over {
            return Ok(());
        }
        let done = scene.wait(request)?;
        let place = scene.number();
        let op =
            Op { by: there, place, kind: Kind::Receive(number), how: How::Forgotten, memory: Some(into) };
        self.finish(scene, &op, done.map(|done| done.len))
    }

    /// Waits until all that was posted is carried out, and looks at what nobody waited for.
    fn quiesce(&mut self, scene: &mut Scene) -> Step {
        self.settle(scene, false)?;
        for by in [0, 1] {
            if !self.over {
                self.send_last(scene, by)?;
            }
        }
        if self.over {
            return Ok(());
        }
        self.settle(scene, true)?;
        for op in std::mem::take(&mut self.ops) {
            let len = match op.kind {
                Kind::Send(number) => self.sides[op.by].lengths[number],
                Kind::Receive(number) => self.sides[1 - op.by].lengths[number],
                _ => 0,
            };
            self.finish(scene, &op, Ok(len))?;
        }
        // A side's last message comes behind all its Writes.
        let came = [0, 1].map(|by| !self.misses(1 - by));
        (0..2).filter(|&by| came[by]).try_for_each(|by| self.prove(scene, by, u64::MAX))
    }

    /// Whether messages are on their way to a side's pool.
    fn misses(&self, by: usize) -> bool {
        self.sides[by].pool.is_some() && self.sides[by].pooled < self.sides[1 - by].lengths.len()
    }

    fn end(mut self, scene: &mut Scene) -> Step {
        let by = scene.random.below(2) as usize;
        match scene.random.below(4) {
            0 if !self.over => {
                self.quiesce(scene)?;
                scene.tally.did("endings: idle");
            }
            1 => {
                // Under load: the endpoint's requests end with it, and no poll returns them.
                scene.tally.did("endings: dropped under load");
                self.over = true;
                let id = self.sides[by].id;
                drop(self.sides[by].endpoint.take());
                self.ops.retain(|op| self.sides[op.by].id != id || !matches!(op.how, How::Posted(_)));
            }
            _ => scene.tally.did("endings: under load"),
        }
        self.over = true;
        self.sides.iter().filter_map(|side| side.endpoint.as_ref()).for_each(Endpoint::disconnect);
        for side in &self.sides {
            if let Some(endpoint) = &side.endpoint {
                let closed = endpoint.wait_closed(Some(PATIENCE));
                hold!(closed.is_ok(), "the end of a connection does not come");
            }
        }
        self.settle(scene, false)?;
        self.settle(scene, true)?;
        let Connection { sides, ops, .. } = self;
        let mut ops = ops;
        if scene.random.rarely(2) {
            ops.clear();
        }
        for side in sides {
            match side.endpoint {
                Some(endpoint) if scene.random.rarely(2) => {
                    let closed = scene.block_on(endpoint.close())?;
                    scene.value(closed, "closing an endpoint")?;
                }
                endpoint => drop(endpoint),
            }
            if scene.random.rarely(2) {
                let closed = scene.block_on(side.area.close())?;
                scene.value(closed, "closing a region")?;
            }
        }
        Ok(())
    }
}

/// What becomes of a request that was started.
fn how(scene: &mut Scene, choice: u64, request: Request) -> How {
    match choice % 2 {
        0 => How::Started(request),
        _ => {
            scene.tally.did("requests dropped");
            drop(request);
            How::Forgotten
        }
    }
}
