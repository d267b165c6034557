//! A connection between the machines, with registered memory at both ends.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use common::{Failure, Node, SERVICE, Trying, accept, connect_to, disconnect, disconnected};
use rdma::{Access, Address, Completion, Endpoint, Queue, Region, RemoteMemory, Work};

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
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);
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
    endpoint: Endpoint,
    memory: Region,
    /// The peer's memory.
    peer: RemoteMemory,
}

impl Link {
    /// Connects to the peer at `address`, or accepts a connection from it.
    pub fn new(node: &Node, role: Role, address: Address) -> Result<Link, Failure> {
        let nic = node.nic(0)?;
        let domain = nic.domain().trying("a domain")?;
        let queue = || nic.queue(REQUESTS as u32 + 1).trying("a queue");
        let (requests, receives) = (queue()?, queue()?);
        let endpoints = domain.endpoint().sends(REQUESTS as u32).receives(RECEIVES as u32);
        let endpoints = endpoints.queue(&requests).receive_queue(&receives);
        let memory = domain.shared_region(LENGTH, Access::WRITE).trying("memory")?;
        let own = memory.remote().ok_or_else(|| Failure::new("peers may not write the memory"))?;
        let link = |endpoint| {
            let link = Link { endpoint, memory, peer: own };
            (0..RECEIVES).try_for_each(|_| link.post_receive()).map(|()| link)
        };
        let mut link = match role {
            // The server sends nothing before it has received a message from the client.
            Role::Client => link(connect_to(&endpoints, address)?)?,
            Role::Server => {
                let link = link(endpoints.build().trying("an endpoint")?)?;
                let listener = nic.listen(SERVICE).trying("listening")?;
                accept(&listener, &link.endpoint)?;
                link
            }
        };
        link.peer = link.swap_memory(role, own)?;
        Ok(link)
    }

    /// A word of a small message that arrives or leaves.
    fn word(&self, at: usize) -> Result<&AtomicU64, Failure> {
        let memory = self.memory.buffer().slice();
        memory.atomic_u64(at).map_err(|_| Failure::new("a word out of bounds"))
    }

    fn post_receive(&self) -> Result<(), Failure> {
        self.endpoint.post_receive(self.memory.slice(IN..IN + SMALL), 0).trying("a Receive")
    }

    /// The bus address of this end's memory for large messages.
    pub fn bus(&self) -> u64 {
        self.memory.buffer().bus()
    }

    /// Posts an RDMA Write of a large message.
    pub fn write_large(&self) -> Result<(), Failure> {
        self.post(Work::write(self.memory.slice(..MESSAGE), self.peer))
    }

    /// Posts an RDMA Write of a small message whose last word is `value`.
    pub fn write_small(&self, value: u64) -> Result<(), Failure> {
        self.word(OUT + LAST)?.store(value, Ordering::Release);
        self.post(Work::write(self.memory.slice(OUT..OUT + SMALL), self.peer.from(IN as u64)))
    }

    /// Posts a Send of a small message whose last word is `value`.
    pub fn send_small(&self, value: u64) -> Result<(), Failure> {
        self.word(OUT + LAST)?.store(value, Ordering::Release);
        self.post(Work::send(self.memory.slice(OUT..OUT + SMALL)))
    }

    /// Posts a Send of no bytes.
    pub fn send_empty(&self) -> Result<(), Failure> {
        self.post(Work::send(self.memory.slice(..0)))
    }

    fn post(&self, work: Work<'_>) -> Result<(), Failure> {
        self.endpoint.post(work).trying("a post")
    }

    /// The last word of the small message that arrived last.
    pub fn arrived(&self) -> Result<u64, Failure> {
        Ok(self.word(IN + LAST)?.load(Ordering::Acquire))
    }

    /// Waits for a message, and posts a Receive in place of the one that it took.
    pub fn received(&self, wait: Wait) -> Result<(), Failure> {
        reap(self.endpoint.receive_queue(), wait)?;
        self.post_receive()
    }

    /// Waits for the oldest request.
    pub fn done(&self, wait: Wait) -> Result<(), Failure> {
        reap(self.endpoint.queue(), wait)
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
        reap(self.endpoint.receive_queue(), Wait::Blocking)?;
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

    /// Tells the peer of memory here, and returns what the peer tells.
    pub fn swap_memory(&self, role: Role, own: RemoteMemory) -> Result<RemoteMemory, Failure> {
        let [addr, len, key, _] = self.swap(role, [own.addr(), own.len(), own.key().into(), 0])?;
        Ok(RemoteMemory::new(addr, len, u32::try_from(key).trying("the peer's memory")?))
    }

    /// Disconnects.
    pub fn close(self, role: Role) -> Result<(), Failure> {
        match role {
            Role::Client => disconnect(&self.endpoint),
            Role::Server => disconnected(&self.endpoint),
        }
    }
}

/// Waits for the oldest completion of a queue, which has to be a success.
pub fn reap(queue: &Queue, wait: Wait) -> Result<(), Failure> {
    let mut done = [Completion::EMPTY];
    while queue.poll(&mut done) == 0 {
        match wait {
            Wait::Polling => core::hint::spin_loop(),
            Wait::Blocking if queue.nic().is_dead() => return Err(Failure::new("the device is dead")),
            Wait::Blocking => queue.wait(Some(PATIENCE)).trying("waiting for a completion")?,
        }
    }
    let [done] = done;
    done.result().map(drop).map_err(|error| Failure::new(format_args!("{:?}: {error}", done.operation())))
}
