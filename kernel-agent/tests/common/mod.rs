//! A machine, agents on its NICs, and clients that record the upcalls they get.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod raw;
pub mod scene;
pub mod vi;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use host::Machine;
use host::fake::{Fake, success};
use kernel_agent::{
    AcceptParams, Agent, AsyncEvent, Client, CmEvent, CmEventKind, Completion, Config, ConnectParams,
    ConnectionId, Cq, Death, Error, Handshake, Identity, Operation, Pd, Qp, QpAttributes, QpType, Region,
    Remote, Request, ResolutionEvent, ResolutionEventKind, Shadow, Transports, Upcalls, ViSide,
};
use links::Link;
use nic_abi::admin::Injection;
use nic_abi::wqe::{LinkFlags, Opcode, Segment, SendFlags};
use nic_model::Wire;
use platform::DmaBuffer;
use roce::cm::ReadDepths;
use roce::{Gid, Path, ServiceId};

/// Nothing here takes this long; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// An upcall that a client got.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Completion(u64),
    Vi(u64, ViSide),
    Async(AsyncEvent),
    Cm(ConnectionId, u64, CmEventKind, Vec<u8>),
    Resolution(u64, ResolutionEventKind, Vec<u8>),
    Stream(u64),
    Dead(Death),
}

/// What is done in an upcall itself, before it is recorded.
type InUpcall = Box<dyn Fn(&Heard) + Send + Sync>;

#[derive(Default)]
pub struct Ears {
    heard: Mutex<VecDeque<Heard>>,
    more: Condvar,
    pub in_upcall: Mutex<Option<InUpcall>>,
}

impl Ears {
    fn hear(&self, heard: Heard) {
        if let Some(then) = &*self.in_upcall.lock().unwrap() {
            then(&heard);
        }
        self.heard.lock().unwrap().push_back(heard);
        self.more.notify_all();
    }

    /// Waits for an upcall that `pick` accepts, and removes it from the record.
    pub fn wait_for<T>(&self, what: &str, pick: impl Fn(&Heard) -> Option<T>) -> T {
        let mut heard = self.heard.lock().unwrap();
        loop {
            if let Some(at) = heard.iter().position(|one| pick(one).is_some()) {
                return pick(&heard.remove(at).unwrap()).unwrap();
            }
            let (guard, timeout) = self.more.wait_timeout(heard, PATIENCE).unwrap();
            heard = guard;
            assert!(!timeout.timed_out(), "{what} did not come in time; the client heard {heard:?}");
        }
    }

    pub fn cm(
        &self,
        what: &str,
        pick: impl Fn(&CmEventKind) -> bool,
    ) -> (ConnectionId, u64, CmEventKind, Vec<u8>) {
        self.wait_for(what, |heard| match heard {
            Heard::Cm(id, context, kind, data) if pick(kind) => Some((*id, *context, *kind, data.clone())),
            _ => None,
        })
    }

    pub fn resolution(&self, what: &str) -> (u64, ResolutionEventKind, Vec<u8>) {
        self.wait_for(what, |heard| match heard {
            Heard::Resolution(context, kind, data) => Some((*context, *kind, data.clone())),
            _ => None,
        })
    }

    pub fn all(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().iter().cloned().collect()
    }
}

impl Upcalls for Ears {
    fn completion(&self, cq_context: u64) {
        self.hear(Heard::Completion(cq_context));
    }

    fn vi_completion(&self, context: u64, side: ViSide) {
        self.hear(Heard::Vi(context, side));
    }

    fn asynchronous(&self, event: AsyncEvent) {
        self.hear(Heard::Async(event));
    }

    fn connection(&self, event: CmEvent<'_>) {
        self.hear(Heard::Cm(event.connection, event.context, event.kind, event.private_data.to_vec()));
    }

    fn resolution(&self, event: ResolutionEvent<'_>) {
        self.hear(Heard::Resolution(event.context, event.kind, event.private_data.to_vec()));
    }

    fn stream(&self, context: u64) {
        self.hear(Heard::Stream(context));
    }

    fn catastrophic(&self, death: Death) {
        self.hear(Heard::Dead(death));
    }
}

/// Attributes of an ordinary queue pair.
pub fn attributes<'a>(
    token: platform::Privileged,
    pd: &'a Arc<Pd>,
    cq: &'a Arc<Cq>,
    context: u64,
) -> QpAttributes<'a> {
    QpAttributes {
        privileged: Some(token),
        max_send_segments: 8,
        max_receive_segments: 4,
        context,
        ..QpAttributes::new(QpType::Rc, pd, cq, 16)
    }
}

/// A client of an agent, with a domain and a CQ.
pub struct Node {
    pub agent: Arc<Agent>,
    pub client: Arc<Client>,
    pub ears: Arc<Ears>,
    pub pd: Arc<Pd>,
    pub cq: Arc<Cq>,
    pub machine_token: platform::Privileged,
}

pub const CQ_CONTEXT: u64 = 77;

/// An agent on a device that accepts every command and that the test plays, and a client of it.
pub fn on_fake(identity: Identity, config: Config) -> (Fake, Arc<Agent>, Arc<Client>, Arc<Ears>) {
    let fake = Fake::new(identity, success);
    let agent = Agent::open(fake.platform.clone(), fake.transport(), 0, config).unwrap();
    let ears = Arc::new(Ears::default());
    let weak: Weak<dyn Upcalls> = Arc::downgrade(&(ears.clone() as Arc<dyn Upcalls>));
    let client = agent.attach(weak).unwrap();
    (fake, agent, client, ears)
}

pub fn open(machine: &Machine, nic: usize) -> Arc<Agent> {
    open_with(machine, nic, Config::default())
}

pub fn open_with(machine: &Machine, nic: usize, config: Config) -> Arc<Agent> {
    Agent::open(machine.platform(), machine.transport(nic), nic as u32, config).expect("the NIC comes up")
}

/// Has an agent's device report an error from which it does not recover. The agent may notice that
/// before the command's answer.
pub fn give_up(agent: &Agent) {
    match agent.test_handle().inject(0, Injection::Fail, 1, 0) {
        Ok(()) | Err(Error::DeviceDead(_)) => {}
        Err(error) => panic!("the device does not fail: {error}"),
    }
}

/// Two NICs of a machine, whose ports are joined by a link.
pub fn by_wire() -> Machine {
    let (a, b) = links::pair();
    let [a, b] = [a, b].map(|end| Box::new(Box::new(end) as Box<dyn Link + Send>) as Box<dyn Wire + Send>);
    by_wires([a, b])
}

/// Two NICs of a machine, whose ports, 10.0.0.1 and 10.0.0.2, are plugged into these wires.
pub fn by_wires(wires: [Box<dyn Wire + Send>; 2]) -> Machine {
    let wires = wires.into_iter().zip(1..).map(|(wire, n)| {
        let address = format!("10.0.0.{n}/24").parse().unwrap();
        (wire, nic_model::port::Config::new(n, 1500, &[address]))
    });
    Machine::with_wires(wires.collect())
}

// An agent that is open has a thread, which would keep the machine's memory for the next tests.
impl Drop for Node {
    fn drop(&mut self) {
        self.agent.close();
    }
}

impl Node {
    pub fn new(machine: &Machine, agent: &Arc<Agent>) -> Node {
        let ears = Arc::new(Ears::default());
        let weak: Weak<dyn Upcalls> = Arc::downgrade(&(ears.clone() as Arc<dyn Upcalls>));
        let client = agent.attach(weak).unwrap();
        let pd = client.create_pd().unwrap();
        let cq = client.create_cq(256, CQ_CONTEXT).unwrap();
        Node { agent: agent.clone(), client, ears, pd, cq, machine_token: machine.privileged() }
    }

    pub fn qp(&self, context: u64) -> Arc<Qp> {
        let qp = self.client.create_qp(&self.attributes(context)).unwrap();
        qp.to_init(LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE | LinkFlags::REMOTE_ATOMIC).unwrap();
        qp
    }

    pub fn attributes(&self, context: u64) -> QpAttributes<'_> {
        attributes(self.machine_token, &self.pd, &self.cq, context)
    }

    pub fn buffer(&self, len: usize) -> DmaBuffer {
        DmaBuffer::new(self.agent.platform(), len, 4096).unwrap()
    }

    /// Registers a whole buffer, with every right, at its virtual address.
    pub fn register(&self, buffer: &DmaBuffer) -> Arc<Region> {
        let rights = LinkFlags::LOCAL_READ
            | LinkFlags::LOCAL_WRITE
            | LinkFlags::REMOTE_READ
            | LinkFlags::REMOTE_WRITE
            | LinkFlags::REMOTE_ATOMIC
            | LinkFlags::BIND;
        let (addr, len) = (buffer.addr(), buffer.len() as u64);
        self.client.register_virtual(&self.pd, rights, addr as u64, addr, len).unwrap()
    }

    /// Waits for the next completion: polls, arms, polls again, and waits for the upcall.
    pub fn completion(&self) -> Completion {
        loop {
            if let Some(completion) = self.cq.poll_one() {
                return completion;
            }
            self.cq.arm(kernel_agent::Arm::Next);
            if let Some(completion) = self.cq.poll_one() {
                return completion;
            }
            self.ears.wait_for("a completion", |heard| {
                matches!(heard, Heard::Completion(CQ_CONTEXT)).then_some(())
            });
        }
    }
}

pub fn segment(buffer: &DmaBuffer, region: &Region) -> Segment {
    Segment { addr: buffer.addr() as u64, length: buffer.len() as u32, key: region.key() }
}

/// A buffer as a peer names it.
pub fn remote(buffer: &DmaBuffer, region: &Region) -> Segment {
    Segment { key: region.remote_key(), ..segment(buffer, region) }
}

pub fn post(qp: &Qp, opcode: Opcode, local: Segment, remote: Option<Segment>, cookie: u64) {
    let shadow = Shadow { cookie, data: opcode as u32 };
    qp.post(&Request { shadow, ..request(opcode, remote) }, &[local], |&segment| segment).unwrap();
}

pub fn request(opcode: Opcode, remote: Option<Segment>) -> Request {
    let Segment { addr, key, .. } = remote.unwrap_or_default();
    let remote = Remote { addr, key };
    let operation = match opcode {
        Opcode::Send => Operation::Send { immediate: None },
        Opcode::Write => Operation::Write { to: remote, immediate: None },
        Opcode::Read => Operation::Read { from: remote },
        other => unreachable!("{other:?}"),
    };
    Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow::default() }
}

pub fn receive(qp: &Qp, local: Segment, cookie: u64) {
    qp.post_receive(false, &[local], |&segment| segment, Shadow { cookie, data: 0 }).unwrap();
}

const DEPTHS: ReadDepths = ReadDepths { responder_resources: 4, initiator_depth: 4 };

/// A connection of `from`'s to a service of `to`'s.
pub fn params(from: &Node, to: &Node, service: u64) -> ConnectParams {
    let gid = |node: &Node| Gid(node.agent.identity().gids[1]);
    let params = ConnectParams::new(Path::new(gid(from), gid(to)), ServiceId(service));
    ConnectParams { depths: DEPTHS, ..params }
}

/// An answer whose read depths fit those of [`params`].
pub fn accepted() -> AcceptParams {
    AcceptParams { depths: DEPTHS, ..AcceptParams::default() }
}

/// Asks for a connection, two-way.
pub fn dial(
    from: &Node,
    qp: &Arc<Qp>,
    to: &Node,
    service: u64,
    private_data: &[u8],
) -> Result<ConnectionId, Error> {
    from.client.connect(qp, &params(from, to, service), Handshake::TwoWay, private_data)
}

pub fn is_established(kind: &CmEventKind) -> bool {
    matches!(kind, CmEventKind::Established { .. })
}

/// Connects a queue pair of `a` (active) with one of `b`.
pub fn connect(a: &Node, b: &Node, service: u64) -> (Arc<Qp>, ConnectionId, Arc<Qp>, ConnectionId) {
    let (qa, qb) = (a.qp(1), b.qp(2));
    let (ca, cb) = connect_qps(a, &qa, b, &qb, service);
    (qa, ca, qb, cb)
}

pub fn connect_qps(
    a: &Node,
    qa: &Arc<Qp>,
    b: &Node,
    qb: &Arc<Qp>,
    service: u64,
) -> (ConnectionId, ConnectionId) {
    let listen = b.client.listen(ServiceId(service), Transports::RC, 9).unwrap();
    let ca = dial(a, qa, b, service, b"hello").unwrap();
    let (cb, context, _, data) = b.ears.cm("the request", |kind| matches!(kind, CmEventKind::Request { .. }));
    assert_eq!(context, 9);
    assert_eq!(&data[..5], b"hello");
    b.client.accept(cb, qb, &accepted(), b"come in").unwrap();
    let (id, context, kind, data) = a.ears.cm("established", is_established);
    assert_eq!(kind, CmEventKind::Established { depths: DEPTHS });
    assert_eq!((id, context), (ca, qa.context()));
    assert_eq!(&data[..7], b"come in");
    let (id, context, ..) = b.ears.cm("established", is_established);
    assert_eq!((id, context), (cb, qb.context()));
    b.client.stop_listening(listen).unwrap();
    (ca, cb)
}

/// Repeats a call after each upcall about a stream or listener of the node, until it has a result.
pub fn until<T>(node: &Node, context: u64, mut call: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(result) = call() {
            return result;
        }
        let about = |heard: &Heard| (*heard == Heard::Stream(context)).then_some(());
        node.ears.wait_for("something about a stream", about);
    }
}
