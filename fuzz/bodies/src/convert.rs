//! The conversion of a stream to an iWARP connection, and what follows it. The one end is converted
//! from either side, with frames or without; the other is a peer that the input plays: it says
//! bytes before the conversion, frames and FPDUs that are nearly valid and cut anywhere, and closes
//! or resets the stream at any place, or is converted, too.
//!
//! What must hold: each call returns; a connection is established once at most, and ends once at
//! most, after that; each request completes once, in order; a message is no longer than its
//! Receive; when it has ended, nothing is outstanding, and when the clients are gone, nothing is
//! left.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use iwarp::ddp::{Header, Place, queue};
use iwarp::mpa::fpdu;
use iwarp::mpa::frame::{Kind, MAX_FRAME, Repr};
use iwarp::rdmap::{Control, Opcode};
use kernel_agent::{
    Agent, AsyncEvent, Client, CmEvent, CmEventKind, CompletionFlags, CompletionStatus, Config, ConnectionId,
    Conversion, Counts, Cq, Death, LinkFlags, Operation, Pd, Qp, QpAttributes, QpType, Region, Remote,
    Request, Segment, SendFlags, Shadow, Stream, Upcalls,
};
use platform::DmaBuffer;
use platform::sync::atomic::AtomicU32;
use roce::Gid;
use roce::cm::ReadDepths;
use sim::{Network, World};

use crate::Input;

/// The most steps of one input.
const STEPS: usize = 80;
const PORT: u16 = 4711;
/// Requests, and receives, of an end.
const DEPTH: u32 = 4;
/// Bytes of a receive.
const ROOM: usize = 256;
/// Bytes of an end's memory. Its first half takes messages, the other is open to the peer.
const MEMORY: usize = 4096;
/// How often something is looked for that has to come, 10 ms apart: longer than any timer.
const LOOKS: u32 = 10_000;

const CONFIG: Config = Config {
    max_qps: 8,
    max_vis: 0,
    max_cqs: 8,
    max_srqs: 0,
    max_pds: 4,
    max_keys: 16,
    max_streams: 16,
    max_connections: 16,
    max_listens: 4,
    without_crc: false,
    silence: Duration::from_secs(3),
};

#[derive(Default)]
struct Ears(Mutex<VecDeque<CmEventKind>>);

impl Upcalls for Ears {
    fn completion(&self, _: u64) {}

    fn asynchronous(&self, _: AsyncEvent) {}

    fn connection(&self, event: CmEvent<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(event.kind);
    }

    fn catastrophic(&self, _: Death) {}
}

/// One end.
struct End {
    client: Arc<Client>,
    ears: Arc<Ears>,
    _pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    memory: DmaBuffer,
    region: Arc<Region>,
    stream: Stream,
    id: Option<ConnectionId>,
    established: bool,
    over: bool,
    requests: VecDeque<u64>,
    receives: VecDeque<u64>,
    cookie: u64,
}

pub(crate) fn run(bytes: &[u8]) {
    convert(bytes);
}

/// Returns whether the connection was established at each end.
fn convert(bytes: &[u8]) -> Vec<bool> {
    let mut input = Input::new(bytes);
    let choice = input.byte();
    let network = if choice & 1 == 0 { Network::ShortCut } else { Network::Wire };
    let outcome = sim::run_over(input.byte().into(), network, |world| play(world, choice, &mut input));
    assert_eq!(outcome.left, Vec::<String>::new(), "threads that did not end");
    outcome.value
}

fn play(world: &World, choice: u8, input: &mut Input<'_>) -> Vec<bool> {
    let before = world.memory().lent();
    let config = Config { without_crc: choice & 2 != 0, ..CONFIG };
    let agents: Vec<Arc<Agent>> = (0..)
        .zip(world.transports())
        .map(|(n, nic)| Agent::open(world.platform(), nic, n, config).expect("an agent"))
        .collect();
    let ears = [Arc::new(Ears::default()), Arc::new(Ears::default())];
    let clients = [0, 1].map(|n: usize| {
        let weak: Weak<dyn Upcalls> = Arc::downgrade(&(ears[n].clone() as Arc<dyn Upcalls>));
        agents[n].attach(weak).expect("a client")
    });
    let streams = connected(world, &agents, &clients, choice & 4 != 0);
    let mut ends: Vec<End> = clients
        .into_iter()
        .zip(ears)
        .zip(streams)
        .map(|((client, ears), stream)| End::new(world, client, ears, stream))
        .collect();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        step(world, &mut ends, input);
        ends.iter_mut().for_each(End::look);
    }
    let established = ends.iter().map(|end| end.established).collect();
    end(world, ends);
    for agent in &agents {
        assert_eq!(agent.counts(), Counts::default(), "the agent's objects");
        agent.close();
    }
    drop(agents);
    assert_eq!(world.memory().lent(), before, "DMA memory is left");
    assert_eq!(world.strays(), None);
    established
}

/// Both ends of a stream, which the second client has connected if `backwards`.
fn connected(
    world: &World,
    agents: &[Arc<Agent>],
    clients: &[Arc<Client>; 2],
    backwards: bool,
) -> [Stream; 2] {
    let (from, to) = if backwards { (1, 0) } else { (0, 1) };
    let gid = |n: usize| Gid(agents[n].identity().gids[1]);
    let listener = clients[to].listen_for_streams(None, PORT, 4, 1).expect("a listener");
    let active = clients[from].connect_stream((gid(from), 0), (gid(to), PORT), 2).expect("a stream");
    let mut passive = None;
    until(world, "a stream", || {
        if passive.is_none() {
            passive = listener.accept(3).expect("a listener works");
        }
        active.state().connected && passive.as_ref().is_some_and(|stream| stream.state().connected)
    });
    listener.destroy().expect("a listener");
    let passive = passive.expect("it has been accepted");
    if backwards { [passive, active] } else { [active, passive] }
}

/// Waits until something holds, which it has to.
fn until(world: &World, what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if holds() {
            return;
        }
        pause(world, Duration::from_millis(10));
    }
    panic!("{what} does not come");
}

fn pause(world: &World, time: Duration) {
    let platform = world.platform();
    platform.wait(&AtomicU32::new(0), 0, Some(platform.now() + time));
}

fn step(world: &World, ends: &mut [End], input: &mut Input<'_>) {
    let (ours, peer) = ends.split_at_mut(1);
    let (ours, peer) = (&mut ours[0], &mut peer[0]);
    match input.below(16) {
        0 => peer.say(input.bytes(64), input),
        1 => peer.say(&frame(Kind::Request, input), input),
        2 => peer.say(&frame(Kind::Reply, input), input),
        3..6 => {
            let bytes = segment(ours, input);
            peer.say(&bytes, input);
        }
        6 => drop(peer.stream.close()),
        7 if input.rarely(2) => drop(peer.stream.destroy(input.rarely(2))),
        7 => drop(ours.stream.receive(&mut [0; 20])),
        8 => ours.convert(input),
        9 if input.rarely(2) => peer.convert(input),
        9 => drop(peer.stream.receive(&mut [0; 500])),
        10 => drop(ours.stream.send(input.bytes(40))),
        11 => ours.post_receive(),
        12 => ours.post(peer, input),
        13 if peer.id.is_some() => {
            peer.post_receive();
            peer.post(ours, input);
        }
        13 | 14 => pause(world, Duration::from_micros(1 << input.below(24))),
        _ => match input.below(4) {
            0 => drop(ours.id.map(|id| ours.client.disconnect(id, &[]))),
            1 => drop(peer.id.map(|id| peer.client.disconnect(id, &[]))),
            2 => drop(ours.stream.close()),
            _ => drop(ours.qp.to_error()),
        },
    }
}

/// A frame that is nearly valid.
fn frame(kind: Kind, input: &mut Input<'_>) -> Vec<u8> {
    let flags = input.byte();
    let frame = Repr {
        kind,
        markers: flags & 0x0f == 1,
        crc: flags & 0x10 != 0,
        reject: flags & 0x0f == 2,
        enhanced: flags & 0x0f == 3,
        revision: if flags & 0x0f == 3 { 2 } else { flags >> 5 & 3 },
        data: input.bytes(usize::from(flags >> 7) * 8),
    };
    let mut bytes = [0; MAX_FRAME];
    let length = frame.emit(&mut bytes).unwrap_or(0);
    bytes[..length].to_vec()
}

/// An FPDU that is nearly valid, to an end.
fn segment(to: &End, input: &mut Input<'_>) -> Vec<u8> {
    let opcode = input.pick(&Opcode::ALL).unwrap_or(Opcode::Send);
    let odd = |input: &mut Input<'_>, usual: u32| {
        if input.rarely(8) { input.number() as u32 } else { usual }
    };
    let place = match opcode {
        Opcode::Write | Opcode::ReadResponse => {
            Place::Tagged { stag: odd(input, to.region.key()), to: to.open() + u64::from(odd(input, 0)) }
        }
        _ => {
            let queue = match opcode {
                Opcode::ReadRequest => queue::READ,
                Opcode::Terminate => queue::TERMINATE,
                _ => queue::SEND,
            };
            let msn = 1 + input.below(4) as u32;
            let (mo, invalidate) = (odd(input, 0), odd(input, 0));
            Place::Untagged { invalidate, queue: odd(input, queue), msn, mo }
        }
    };
    let header = Header::new(!input.rarely(4), Control::new(opcode).to_byte(), place);
    let mut ulpdu = vec![0; header.size()];
    header.emit(&mut ulpdu).expect("room for a header");
    let length = input.below(64);
    ulpdu.extend_from_slice(input.bytes(length));
    let crc = !input.rarely(8);
    let mut bytes = vec![0; fpdu::length(ulpdu.len())];
    fpdu::emit(&ulpdu, crc, &mut bytes).expect("room for an FPDU");
    bytes
}

impl End {
    fn new(world: &World, client: Arc<Client>, ears: Arc<Ears>, stream: Stream) -> End {
        let pd = client.create_pd().expect("a domain");
        let cq = client.create_cq(4 * DEPTH, 0).expect("a CQ");
        let attributes = QpAttributes::new(QpType::Iwarp, &pd, &cq, DEPTH);
        let qp = client.create_qp(&attributes).expect("a queue pair");
        qp.to_init(LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE).expect("INIT");
        let memory = DmaBuffer::new(&world.platform(), MEMORY, 4096).expect("memory");
        let rights =
            LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE | LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE;
        let addr = memory.addr();
        let region =
            client.register_virtual(&pd, rights, addr as u64, addr, MEMORY as u64).expect("a region");
        End {
            client,
            ears,
            _pd: pd,
            cq,
            qp,
            memory,
            region,
            stream,
            id: None,
            established: false,
            over: false,
            requests: VecDeque::new(),
            receives: VecDeque::new(),
            cookie: 0,
        }
    }

    /// Where the memory begins that peers use.
    fn open(&self) -> u64 {
        (self.memory.addr() + MEMORY / 2) as u64
    }

    /// Says bytes, or a part of them.
    fn say(&self, bytes: &[u8], input: &mut Input<'_>) {
        let most = if input.rarely(4) { input.below(200) } else { bytes.len() };
        // It may be converted, closed or gone.
        let _ = self.stream.send(&bytes[..most.min(bytes.len())]);
    }

    fn convert(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let message = input.bytes(usize::from(kind >> 4));
        let depths = ReadDepths { responder_resources: kind & 3, initiator_depth: kind & 3 };
        let conversion =
            Conversion { message: (kind & 4 != 0).then_some(message), frames: kind & 8 == 0, depths };
        let converted = self.client.convert(&self.stream, &self.qp, &conversion);
        assert!(converted.is_err() || self.id.is_none(), "it was converted twice");
        self.id = self.id.or(converted.ok());
    }

    fn segment(&self, at: u64, length: usize) -> Segment {
        Segment { addr: at, length: length as u32, key: self.region.key() }
    }

    fn shadow(&mut self) -> Shadow {
        self.cookie += 1;
        Shadow { cookie: self.cookie, data: 0 }
    }

    fn post_receive(&mut self) {
        let shadow = self.shadow();
        let segment = self.segment(self.memory.addr() as u64, ROOM);
        if self.qp.post_receive(false, &[segment], |&segment| segment, shadow).is_ok() {
            self.receives.push_back(shadow.cookie);
        }
    }

    fn post(&mut self, to: &End, input: &mut Input<'_>) {
        let remote = Remote { addr: to.open(), key: to.region.key() };
        let operation = match input.below(4) {
            0 => Operation::Write { to: remote, immediate: None },
            1 => Operation::Read { from: remote },
            _ => Operation::Send { immediate: None },
        };
        let shadow = self.shadow();
        let request = Request { operation, flags: SendFlags::SIGNALED, shadow };
        let segment = self.segment(self.memory.addr() as u64, input.below(ROOM));
        if self.qp.post(&request, &[segment], |&segment| segment).is_ok() {
            self.requests.push_back(shadow.cookie);
        }
    }

    /// Takes all events and completions.
    fn look(&mut self) {
        while let Some(done) = self.cq.poll_one() {
            let receive = done.flags.contains(CompletionFlags::RECEIVE);
            let queue = if receive { &mut self.receives } else { &mut self.requests };
            assert_eq!(queue.pop_front(), Some(done.cookie), "out of order: {done:?}");
            let success = receive && done.status == CompletionStatus::Success;
            assert!(!success || done.length as usize <= ROOM, "{done:?}");
        }
        loop {
            let event = self.ears.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(kind) = event else { return };
            assert!(!self.over, "behind the end: {kind:?}");
            match kind {
                CmEventKind::TransitionRequested => assert!(!self.established, "requested too late"),
                CmEventKind::Established { .. } => {
                    assert!(!std::mem::replace(&mut self.established, true), "established twice");
                }
                _ => self.over = true,
            }
        }
    }
}

/// Ends what has not ended.
fn end(world: &World, mut ends: Vec<End>) {
    for end in &mut ends {
        if let Some(id) = end.id {
            let _ = end.client.disconnect(id, &[]);
        }
        let _ = end.stream.destroy(true);
        // One that was never connected has nothing that ends by itself.
        let _ = end.qp.to_error();
    }
    until(world, "the end of all requests", || {
        ends.iter_mut().for_each(End::look);
        ends.iter().all(|end| end.requests.is_empty() && end.receives.is_empty())
    });
    for end in &ends {
        assert_eq!(end.qp.outstanding(), (0, 0));
        end.client.detach();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn seeds_convert_with_frames_and_without() {
        let both = |seed: &str| convert(&fs::read(format!("../seeds/convert/{seed}")).expect("a seed"));
        // The peer is converted, too, or plays its part by a Request and an FPDU.
        assert_eq!(both("1"), [true, true]);
        assert_eq!(both("2"), [true, true]);
        assert_eq!(both("3"), [true, false]);
    }
}
