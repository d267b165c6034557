//! A connection between the machines, with registered memory at both ends.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use common::{Failure, Listener, Node, Side, Sizes, Trying};
use platform::DmaBuffer;
use privileged_api::{
    AddrMode, DtoFlags, DtoStatus, Error, EvdHandle, Event, LmrFlags, LmrHandle, LmrMemory, LmrTriplet,
    MemPriv, NetAddr, RmrContext, make_rdma_addr_absolute,
};

use super::Role;
use crate::bandwidth::MESSAGE;

/// Bytes of a small message.
pub const SMALL: usize = 64;
/// Where small messages arrive: after the memory that large ones overwrite.
const IN: usize = MESSAGE;
/// Where small messages are sent from.
const OUT: usize = MESSAGE + 2 * SMALL;
/// Bytes at each end.
const LENGTH: usize = MESSAGE + 4 * SMALL;
/// The last word of a small message.
const LAST: usize = SMALL - 8;
/// Requests that may be outstanding.
pub const REQUESTS: usize = 64;
/// Posted Receives: more than the messages in flight.
const RECEIVES: usize = 8;

/// How to wait for an event.
#[derive(Clone, Copy)]
pub enum Wait {
    /// By checking again and again.
    Polling,
    /// By sleeping until an interrupt.
    Blocking,
}

/// One end.
pub struct Link {
    /// The endpoint.
    pub side: Side,
    memory: Arc<DmaBuffer>,
    lmr: LmrHandle,
    /// The address of the peer's memory, and the key to it.
    peer: (usize, RmrContext),
}

impl Link {
    /// Connects to the peer at `address`, or accepts a connection from it.
    pub fn new(node: &Node, role: Role, address: &NetAddr) -> Result<Link, Failure> {
        let side = Side::new(node.ia(0)?, Sizes { requests: REQUESTS, message: MESSAGE })?;
        let memory = DmaBuffer::new(&node.platform, LENGTH, 4096).map_err(|_| "out of memory");
        let memory = Arc::new(memory.trying("memory")?);
        let whole = LmrMemory::Buffer { buffer: &memory, offset: 0 };
        let rights = MemPriv::LOCAL | MemPriv::REMOTE_WRITE;
        let (lmr, context) = side
            .ia
            .lmr_create(side.pz, whole, LENGTH as u64, AddrMode::Absolute, rights, LmrFlags::NONE, 0)
            .trying("it_lmr_create")?;
        let context = context.ok_or_else(|| Failure::new("the memory has no RMR context"))?;
        let mut link = Link { side, memory, lmr, peer: (0, context) };
        let post_receives = || (0..RECEIVES).try_for_each(|_| link.post_receive());
        match role {
            Role::Client => {
                link.side.connect(&node.platform, address)?;
                // The server sends nothing before it has received a message from the client.
                post_receives()?;
            }
            Role::Server => {
                post_receives()?;
                let listener = Listener::new(&link.side.ia)?;
                listener.accept(link.side.ep)?;
                link.side.established()?;
                listener.free()?;
            }
        }
        let [addr, context, ..] = link.swap(role, [link.memory.addr() as u64, context.0.into(), 0, 0])?;
        let context = u32::try_from(context).trying("the peer's memory")?;
        link.peer = (addr as usize, RmrContext(context));
        Ok(link)
    }

    /// A word of a small message that arrives or leaves.
    fn word(&self, at: usize) -> Result<&AtomicU64, Failure> {
        self.memory.slice().atomic_u64(at).map_err(|_| Failure::new("a word out of bounds"))
    }

    fn segment(&self, at: usize, length: usize) -> LmrTriplet {
        LmrTriplet::new(self.lmr, (self.memory.addr() + at) as u64, length as u64)
    }

    fn post_receive(&self) -> Result<(), Failure> {
        let segment = self.segment(IN, SMALL);
        self.side.ia.post_recv(self.side.ep, &[segment], 0, DtoFlags::COMPLETION).trying("it_post_recv")
    }

    /// The bus address of this end's memory for large messages.
    pub fn bus(&self) -> u64 {
        self.memory.bus()
    }

    /// Posts an RDMA Write of a large message.
    pub fn write_large(&self) -> privileged_api::Result<()> {
        self.write(self.segment(0, MESSAGE), 0)
    }

    /// Posts an RDMA Write of a small message whose last word is `value`.
    pub fn write_small(&self, value: u64) -> Result<(), Failure> {
        self.word(OUT + LAST)?.store(value, Ordering::Release);
        self.write(self.segment(OUT, SMALL), IN).trying("it_post_rdma_write")
    }

    fn write(&self, from: LmrTriplet, to: usize) -> privileged_api::Result<()> {
        let (addr, context) = self.peer;
        let to = make_rdma_addr_absolute(addr + to);
        self.side.ia.post_rdma_write(self.side.ep, &[from], 0, DtoFlags::COMPLETION, to, context)
    }

    /// Posts a Send of a small message whose last word is `value`.
    pub fn send_small(&self, value: u64) -> Result<(), Failure> {
        self.word(OUT + LAST)?.store(value, Ordering::Release);
        let segment = self.segment(OUT, SMALL);
        self.side.ia.post_send(self.side.ep, &[segment], 0, DtoFlags::COMPLETION).trying("it_post_send")
    }

    /// Posts a Send of no bytes.
    pub fn send_empty(&self) -> Result<(), Failure> {
        self.side.ia.post_send(self.side.ep, &[], 0, DtoFlags::COMPLETION).trying("it_post_send")
    }

    /// The last word of the small message that arrived last.
    pub fn arrived(&self) -> Result<u64, Failure> {
        Ok(self.word(IN + LAST)?.load(Ordering::Acquire))
    }

    /// Waits for a message, and posts a Receive in place of the one that it took.
    pub fn received(&self, wait: Wait) -> Result<(), Failure> {
        self.reap(self.side.receives, wait)?;
        self.post_receive()
    }

    /// Waits for the oldest request.
    pub fn done(&self, wait: Wait) -> Result<(), Failure> {
        self.reap(self.side.requests, wait)
    }

    fn reap(&self, evd: EvdHandle, wait: Wait) -> Result<(), Failure> {
        if let Wait::Blocking = wait {
            return self.side.completion(evd).map(|_| ());
        }
        let event = loop {
            match self.side.ia.evd_dequeue(evd) {
                Err(Error::QueueEmpty) => core::hint::spin_loop(),
                other => break other,
            }
        };
        match event.trying("it_evd_dequeue")? {
            Event::Dto(done) if done.dto_status == DtoStatus::Success => Ok(()),
            other => Err(Failure::new(format_args!("unexpected {other:?}"))),
        }
    }

    /// Waits until the peer has reached the barrier, too.
    pub fn barrier(&self, role: Role) -> Result<(), Failure> {
        self.swap(role, [0; 4]).map(|_| ())
    }

    /// Sends the peer four words, and returns the peer's.
    pub fn swap(&self, role: Role, own: [u64; 4]) -> Result<[u64; 4], Failure> {
        let send = || {
            for (at, word) in (OUT..).step_by(8).zip(own) {
                self.word(at)?.store(word, Ordering::Release);
            }
            self.send_small(0)?;
            self.done(Wait::Blocking)
        };
        if role == Role::Client {
            send()?;
        }
        self.reap(self.side.receives, Wait::Blocking)?;
        let mut words = [0; 4];
        for (at, word) in (IN..).step_by(8).zip(&mut words) {
            *word = self.word(at)?.load(Ordering::Acquire);
        }
        self.post_receive()?;
        if role == Role::Server {
            send()?;
        }
        Ok(words)
    }

    /// Disconnects, and frees the IA.
    pub fn free(self, role: Role) -> Result<(), Failure> {
        match role {
            Role::Client => self.side.disconnect()?,
            Role::Server => self.side.disconnected()?,
        }
        self.side.ia.ia_free().trying("it_ia_free")
    }
}
