//! Two devices with an engine each, and the stream between them.

use std::collections::{BTreeMap, VecDeque};

use iwarp::engine::{
    By, Close, Config, Denied, Direct, End, Engine, Event, Memory, Message, Operation, Pass, Receive, Role,
    Sink, Source,
};
use platform::random::Random;

/// What a region allows, and what is in it.
#[derive(Clone, Debug)]
pub struct Region {
    pub base: u64,
    pub bytes: Vec<u8>,
    pub readable: bool,
    pub writable: bool,
    /// It is of the queue pair's protection domain.
    pub own: bool,
    /// A Send or an RDMA Read may invalidate it.
    pub invalidable: bool,
}

impl Region {
    pub fn new(base: u64, bytes: Vec<u8>) -> Region {
        Region { base, bytes, readable: true, writable: true, own: true, invalidable: true }
    }
}

/// The memory of one device.
#[derive(Debug, Default)]
pub struct Device {
    pub regions: BTreeMap<u32, Region>,
    /// The payload of requests that send, the sinks of those that read.
    pub requests: BTreeMap<u32, Vec<u8>>,
    pub posted: VecDeque<Receive>,
    pub receives: BTreeMap<u32, Vec<u8>>,
    /// Requests whose memory cannot be reached.
    pub gone: Vec<u32>,
    /// So many calls of `gather` succeed.
    pub gathers: Option<u32>,
    /// The payload of a segment that the peer passes, and how much of it is moved at most.
    pub passed: Vec<u8>,
    pub moves: usize,
}

impl Device {
    fn range(
        &self,
        stag: u32,
        to: u64,
        length: usize,
        right: fn(&Region) -> bool,
    ) -> Result<std::ops::Range<usize>, Denied> {
        assert!(length > 0, "nothing is asked for");
        let region = self.regions.get(&stag).ok_or(Denied::Stag)?;
        if !region.own {
            return Err(Denied::Association);
        }
        if !right(region) {
            return Err(Denied::Right);
        }
        let start = to.checked_sub(region.base).ok_or(Denied::Bounds)?;
        let start = usize::try_from(start).map_err(|_| Denied::Bounds)?;
        let end = start.checked_add(length).ok_or(Denied::Wrap)?;
        if end <= region.bytes.len() { Ok(start..end) } else { Err(Denied::Bounds) }
    }
}

impl Memory for Device {
    fn check(&mut self, source: Source, length: u32) -> Result<(), Denied> {
        match source {
            Source::Request { id, .. } if self.gone.contains(&id) => Err(Denied::Stag),
            Source::Request { id, offset } => {
                let bytes = &self.requests[&id];
                assert!(offset as usize + length as usize <= bytes.len());
                Ok(())
            }
            Source::Region { stag, to } => {
                self.range(stag, to, length as usize, |region| region.readable).map(|_| ())
            }
        }
    }

    fn gather(&mut self, source: Source, into: &mut [u8]) -> Result<(), Denied> {
        if let Some(left) = &mut self.gathers {
            *left = left.checked_sub(1).ok_or(Denied::Stag)?;
        }
        let from = match source {
            Source::Request { id, offset } => &self.requests[&id][offset as usize..],
            Source::Region { stag, to } => {
                let range = self.range(stag, to, into.len(), |region| region.readable)?;
                &self.regions[&stag].bytes[range]
            }
        };
        into.copy_from_slice(&from[..into.len()]);
        Ok(())
    }

    fn write(&mut self, stag: u32, to: u64, bytes: &[u8]) -> Result<(), Denied> {
        let range = self.range(stag, to, bytes.len(), |region| region.writable)?;
        self.regions.get_mut(&stag).unwrap().bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.posted.pop_front()
    }

    fn place(&mut self, sink: Sink, bytes: &[u8]) -> Result<(), Denied> {
        assert!(!bytes.is_empty());
        let (into, offset) = match sink {
            Sink::Receive { id, .. } | Sink::Read { id, .. } if self.gone.contains(&id) => {
                return Err(Denied::Stag);
            }
            Sink::Receive { id, offset } => (self.receives.get_mut(&id).unwrap(), offset),
            Sink::Read { id, offset } => (self.requests.get_mut(&id).unwrap(), offset),
        };
        into[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn invalidate(&mut self, stag: u32, _: By) -> Result<(), Denied> {
        match self.regions.get(&stag) {
            Some(region) if region.invalidable => {
                self.regions.remove(&stag);
                Ok(())
            }
            Some(_) => Err(Denied::Right),
            None => Err(Denied::Stag),
        }
    }
}

impl Device {
    /// The part of the payload that is moved.
    fn part(&self, length: u32) -> Vec<u8> {
        assert_eq!(self.passed.len(), length as usize);
        self.passed[..self.passed.len().min(self.moves)].to_vec()
    }
}

impl Direct for Device {
    fn write_from_peer(&mut self, stag: u32, to: u64, length: u32) -> Result<u32, Denied> {
        self.range(stag, to, length as usize, |region| region.writable)?;
        let part = self.part(length);
        self.write(stag, to, &part).map(|()| part.len() as u32)
    }

    fn place_from_peer(&mut self, sink: Sink, length: u32) -> Result<u32, Denied> {
        let part = self.part(length);
        self.place(sink, &part).map(|()| part.len() as u32)
    }
}

/// One end with its device.
#[derive(Debug)]
pub struct Node {
    pub engine: Engine,
    pub device: Device,
    pub events: Vec<Event>,
    /// Bytes of the peer that are not received.
    pub inbox: VecDeque<u8>,
    /// The peer has closed its direction behind them.
    pub fin: bool,
    pub told: bool,
    next: u32,
}

/// What both ends of a test have, unless it says otherwise.
pub const CONFIG: Config =
    Config { role: Role::Initiator, mulpdu: 200, crc: true, depth: 16, ord: 4, ird: 4 };

impl Node {
    pub fn new(config: Config) -> Node {
        Node {
            engine: Engine::new(config),
            device: Device::default(),
            events: Vec::new(),
            inbox: VecDeque::new(),
            fin: false,
            told: false,
            next: 0,
        }
    }

    /// A region with these bytes.
    pub fn region(&mut self, stag: u32, base: u64, bytes: Vec<u8>) {
        self.device.regions.insert(stag, Region::new(base, bytes));
    }

    /// Posts a Receive for messages of up to so many bytes.
    pub fn receive(&mut self, length: u32) -> u32 {
        self.next += 1;
        self.device.posted.push_back(Receive { id: self.next, length });
        self.device.receives.insert(self.next, vec![0; length as usize]);
        self.next
    }

    /// Posts a request with this payload, or with room for what it reads.
    pub fn post(&mut self, operation: Operation, bytes: Vec<u8>) -> u32 {
        self.post_fenced(operation, bytes, false)
    }

    pub fn post_fenced(&mut self, operation: Operation, bytes: Vec<u8>, fence: bool) -> u32 {
        self.next += 1;
        let (id, length) = (self.next, bytes.len() as u32);
        self.device.requests.insert(id, bytes);
        self.engine.post(Message { id, operation, length, fence }).unwrap();
        id
    }

    /// Hears that the other end has closed the stream, and how. False if it has heard that before.
    fn hear_of_end(&mut self, close: Option<Close>) -> bool {
        if core::mem::replace(&mut self.told, true) {
            return false;
        }
        match close {
            Some(Close::Reset) => self.engine.lost(),
            _ => self.engine.finished(),
        }
        self.take_events();
        true
    }

    pub fn take_events(&mut self) {
        while let Some(event) = self.engine.poll() {
            let ended = |event: &Event| matches!(event, Event::Ended(_));
            assert!(!self.events.iter().any(ended), "an event after the end");
            self.events.push(event);
        }
    }

    /// Passes one segment of at most so many bytes to the other end, which moves at most `moves` of
    /// them. Returns whether there was one, or a request that needs no peer.
    pub fn pass(&mut self, to: &mut Node, most: u32, moves: usize) -> bool {
        let Node { engine, device, .. } = self;
        let segment = match engine.pass(most, |source, length| device.check(source, length)) {
            Pass::Nothing => {
                self.take_events();
                return false;
            }
            Pass::Local(id) => {
                self.engine.carried_out(!self.device.gone.contains(&id));
                self.take_events();
                return true;
            }
            Pass::Segment(segment) => segment,
        };
        assert!(segment.length() <= most);
        to.device.passed = vec![0; segment.length() as usize];
        to.device.moves = moves;
        let gathered = match segment.length() {
            0 => Ok(()),
            _ => self.device.gather(segment.source(), &mut to.device.passed),
        };
        let taken = match gathered {
            Ok(()) => Some(to.engine.take(&segment, &mut to.device)),
            Err(_) => None,
        };
        to.take_events();
        self.engine.passed(&segment, taken);
        self.take_events();
        true
    }

    /// What the engine sends into so much room.
    pub fn send(&mut self, room: usize) -> Vec<u8> {
        let mut out = vec![0xee; room];
        let mut done = 0;
        loop {
            let transmit = self.engine.transmit(&mut out[done..], &mut self.device);
            done += transmit.bytes;
            if let Some(id) = transmit.local {
                self.engine.carried_out(!self.device.gone.contains(&id));
            } else {
                break;
            }
        }
        // An FPDU that cannot be finished may have been begun.
        let cut = self.engine.close() == Some(Close::Reset);
        assert!(cut || out[done..].iter().all(|&byte| byte == 0xee));
        self.take_events();
        out.truncate(done);
        out
    }

    /// All that it sends now.
    pub fn send_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let part = self.send(4096);
            if part.is_empty() {
                return all;
            }
            all.extend(part);
        }
    }

    /// Passes bytes of the peer.
    pub fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.engine.receive(bytes, &mut self.device);
            self.take_events();
            bytes = &bytes[taken..];
        }
    }

    pub fn end(&self) -> Option<End> {
        self.engine.ended()
    }

    /// How the request or Receive ended.
    pub fn outcome(&self, id: u32) -> Option<Event> {
        self.events.iter().copied().find(|event| match *event {
            Event::Completed { id: of }
            | Event::Failed { id: of, .. }
            | Event::Received { id: of, .. }
            | Event::ReceiveFailed { id: of, .. } => of == id,
            Event::Established | Event::Ended(_) => false,
        })
    }
}

/// Both ends.
pub struct World {
    pub random: Random,
    pub nodes: [Node; 2],
    /// There is no stream: segments are passed.
    pub passes: bool,
}

impl World {
    pub fn new(seed: u64, config: Config) -> World {
        let node = |role| Node::new(Config { role, ..config });
        let nodes = [node(Role::Initiator), node(Role::Responder)];
        World { random: Random::new(seed), nodes, passes: false }
    }

    /// Lets one end send into the other's inbox, and the other take a part of it.
    pub fn step(&mut self, from: usize) -> bool {
        if self.passes {
            return self.pass(from);
        }
        let room = 1 + self.random.below(if self.random.clone().rarely(2) { 20 } else { 700 }) as usize;
        let sent = self.nodes[from].send(room);
        let close = self.nodes[from].engine.close();
        let to = &mut self.nodes[1 - from];
        to.inbox.extend(&sent);
        to.fin |= sent.is_empty() && close.is_some();
        let most = 1 + self.random.below(400) as usize;
        let part: Vec<u8> = to.inbox.drain(..most.min(to.inbox.len())).collect();
        to.take(&part);
        let told = to.inbox.is_empty() && to.fin && to.hear_of_end(close);
        !sent.is_empty() || !part.is_empty() || told
    }

    /// Lets one end pass a segment, or close the stream.
    fn pass(&mut self, from: usize) -> bool {
        let [a, b] = &mut self.nodes;
        let (node, to) = if from == 0 { (a, b) } else { (b, a) };
        let most = 1 + self.random.below(700) as u32;
        let moves = if self.random.rarely(3) { 1 + self.random.below(50) as usize } else { usize::MAX };
        if node.pass(to, most, moves) {
            return true;
        }
        let close = node.engine.close();
        close.is_some() && to.hear_of_end(close)
    }

    /// Lets both ends go on until nothing happens.
    pub fn run(&mut self) {
        for _ in 0..200_000 {
            let moved = [self.step(0), self.step(1)];
            if moved == [false, false] {
                return;
            }
        }
        panic!("the ends never come to rest");
    }
}
