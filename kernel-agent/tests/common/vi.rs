//! Virtual interfaces with memory for descriptors and data, and their connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use host::Machine;
use kernel_agent::{
    AcceptParams, AsyncEvent, CmEventKind, ConnectParams, ConnectionId, ControlSegment, DataSegment, Error,
    Handshake, Region, Reliability, Transports, Vi, ViAttributes, ViControl, ViCq, ViError, ViPostError,
    ViSide, ViStatus, ViTaken,
};
use nic_abi::admin::QpState;
use nic_abi::vi::COMPLETION;
use nic_abi::wqe::LinkFlags;
use platform::DmaBuffer;
use roce::ServiceId;
use roce::cm::ReadDepths;
use zerocopy::IntoBytes;

use super::{Heard, Node, is_established, open, params};

pub const SERVICE: u64 = 0x56;
pub const ANY: Transports = Transports::RC.union(Transports::UC);
pub const LEVELS: [Reliability; 3] = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
pub const RELIABLE: [Reliability; 2] = [Reliability::Delivery, Reliability::Reception];
pub const SIDES: [ViSide; 2] = [ViSide::Send, ViSide::Receive];
pub const ENTRIES: u32 = 8;
/// Where the data begins in an end's memory; the descriptors are before.
pub const DATA: usize = 4096;

pub fn vi_attributes(reliability: Reliability) -> ViAttributes {
    let access = LinkFlags::REMOTE_WRITE | LinkFlags::REMOTE_READ;
    ViAttributes { reliability, max_transfer: 1 << 16, access }
}

/// A virtual interface, and memory for its descriptors and data.
pub struct End<'a> {
    pub node: &'a Node,
    pub vi: Arc<Vi>,
    pub memory: DmaBuffer,
    pub region: Arc<Region>,
}

impl<'a> End<'a> {
    pub fn new(node: &'a Node, reliability: Reliability, context: u64) -> End<'a> {
        End::on(node, reliability, context, [None; 2])
    }

    pub fn on(
        node: &'a Node,
        reliability: Reliability,
        context: u64,
        cqs: [Option<&Arc<ViCq>>; 2],
    ) -> End<'a> {
        let entries = [ENTRIES; 2];
        let vi = node.client.create_vi(&node.pd, &vi_attributes(reliability), cqs, entries, context).unwrap();
        let memory = node.buffer(2 * DATA);
        let region = node.register(&memory);
        End { node, vi, memory, region }
    }

    pub fn handle(&self) -> u32 {
        self.region.remote_key()
    }

    /// The address of a descriptor.
    pub fn address(&self, n: usize) -> u64 {
        (self.memory.addr() + 64 * n) as u64
    }

    /// Writes descriptor `n`, a Send or a Receive of `length` bytes, and posts it.
    pub fn post(&self, side: ViSide, n: usize, length: u32) -> Result<(), ViPostError> {
        let control =
            ControlSegment { segments: 1, control: ViControl::empty().bits(), length, ..Default::default() };
        let address = (self.memory.addr() + DATA) as u64;
        let data = DataSegment { address, handle: self.handle(), length };
        self.memory.write(64 * n, control.as_bytes()).unwrap();
        self.memory.write(64 * n + 32, data.as_bytes()).unwrap();
        self.vi.post(side, self.address(n), self.handle(), |_, _| {})
    }

    pub fn status(&self, n: usize) -> ViStatus {
        let word = self.memory.slice().atomic_u32(64 * n + COMPLETION + 4).unwrap();
        ViStatus::from_bits_retain(word.load(Ordering::Acquire))
    }

    /// Takes the oldest descriptor off; returns its number.
    pub fn take(&self, side: ViSide) -> Option<usize> {
        let number = |address: u64| (address as usize - self.memory.addr()) / 64;
        let is_done = |address, handle| {
            assert_eq!(handle, self.handle());
            self.status(number(address)).contains(ViStatus::DONE)
        };
        match self.vi.take(side, is_done) {
            ViTaken::Done { address, handle } => {
                assert_eq!(handle, self.handle());
                Some(number(address))
            }
            ViTaken::Lost => {
                assert_eq!(self.vi.take_lost(side), None, "an event told of it");
                self.take(side)
            }
            ViTaken::NotDone => None,
        }
    }

    /// Waits until the oldest descriptor is complete, and takes it off.
    pub fn wait(&self, side: ViSide) -> usize {
        loop {
            if let Some(n) = self.take(side) {
                return n;
            }
            self.vi.arm(side);
            if let Some(n) = self.take(side) {
                return n;
            }
            let wanted = Heard::Vi(self.vi.context(), side);
            self.node.ears.wait_for("a completion", |heard| (*heard == wanted).then_some(()));
        }
    }

    /// Waits for an error of this virtual interface.
    pub fn error(&self, error: ViError) -> (u8, u64) {
        let context = self.vi.context();
        self.node.ears.wait_for("an error", |heard| match *heard {
            Heard::Async(AsyncEvent::Vi { context: of, error: what, operation, address, .. })
                if of == context && what == error =>
            {
                Some((operation, address))
            }
            _ => None,
        })
    }

    /// How many errors of this virtual interface were heard and not waited for.
    pub fn errors(&self) -> usize {
        let context_of = |heard: &Heard| match *heard {
            Heard::Async(AsyncEvent::Vi { context, .. }) => Some(context),
            _ => None,
        };
        let all = self.node.ears.all();
        all.iter().filter(|heard| context_of(heard) == Some(self.vi.context())).count()
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        // A test may have destroyed it, or its device.
        let _ = self.vi.destroy();
        let _ = self.region.destroy();
    }
}

/// Two virtual interfaces, whose contexts are others on each level.
pub fn ends<'a>(a: &'a Node, b: &'a Node, level: Reliability) -> (End<'a>, End<'a>) {
    let context = 10 * (level as u64 + 1);
    (End::new(a, level, context), End::new(b, level, context + 1))
}

pub fn asked(a: &End, b: &End) -> ConnectParams {
    ConnectParams { depths: ReadDepths::default(), ..params(a.node, b.node, SERVICE) }
}

pub fn dial_vi(a: &End, b: &End) -> Result<ConnectionId, Error> {
    a.node.client.connect(&a.vi, &asked(a, b), Handshake::TwoWay, b"")
}

pub fn incoming(b: &End) -> ConnectionId {
    b.node.ears.cm("the request", |kind| matches!(kind, CmEventKind::Request { .. })).0
}

pub fn join(a: &End, b: &End) {
    let listen = b.node.client.listen(ServiceId(SERVICE), ANY, 9).unwrap();
    let id = dial_vi(a, b).unwrap();
    b.node.client.accept(incoming(b), &b.vi, &AcceptParams::default(), b"").unwrap();
    let (of, context, ..) = a.node.ears.cm("established", is_established);
    assert_eq!((of, context), (id, a.vi.context()));
    assert_eq!(b.node.ears.cm("established", is_established).1, b.vi.context());
    b.node.client.stop_listening(listen).unwrap();
    assert_eq!([a.vi.state(), b.vi.state()], [QpState::Rts; 2]);
}

pub fn nodes(machine: &Machine) -> [Node; 2] {
    [0, 1].map(|nic| Node::new(machine, &open(machine, nic)))
}

/// A message from one end to the other.
pub fn message(from: &End, to: &End, text: &[u8]) {
    from.memory.write(DATA, text).unwrap();
    to.post(ViSide::Receive, 40, 64).unwrap();
    from.post(ViSide::Send, 41, text.len() as u32).unwrap();
    assert_eq!((from.wait(ViSide::Send), to.wait(ViSide::Receive)), (41, 40));
    assert_eq!(from.status(41), ViStatus::DONE);
    assert_eq!(to.status(40), ViStatus::DONE | ViStatus::OP_RECEIVE);
    let mut arrived = vec![0; text.len()];
    to.memory.read(DATA, &mut arrived).unwrap();
    assert_eq!(arrived, text);
}
