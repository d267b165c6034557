//! The two ends of a transfer: memory that pieces are moved from, and memory that they are moved
//! to. Each end posts what its endpoint can post; they may be on one machine or on two.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use common::{Failure, Trying, done};
use platform::{DmaBuffer, Privileged};
use rdma::{Access, Builder, Domain, Endpoint, PostError, Region, RemoteMemory, Request, Slice, Transport};

use crate::{IN_FLIGHT, MESSAGE};

pub type Outcome<T = ()> = Result<T, Failure>;
/// A request that was started.
pub type Started = Result<Request, PostError>;

/// A piece of this many bytes, as messages.
#[derive(Clone, Copy)]
pub struct Piece(pub usize);

impl Piece {
    /// The number of its messages. A piece of no bytes is one empty message.
    pub fn messages(self) -> usize {
        self.0.div_ceil(MESSAGE).max(1)
    }

    /// Offset and length of a message.
    pub fn message(self, n: usize) -> (usize, usize) {
        let offset = n * MESSAGE;
        (offset, MESSAGE.min(self.0 - offset))
    }

    /// A message in memory of the piece.
    fn slice(self, memory: &Region, n: usize) -> Slice<'_> {
        let (offset, length) = self.message(n);
        memory.slice(offset..offset + length)
    }

    /// Fills a copy with bytes that differ from the piece's. Otherwise the data of an earlier way
    /// could be taken for that of the next one.
    pub fn spoil(self, copy: &DmaBuffer) -> Outcome {
        copy.slice().get(0, self.0).trying("the copy")?.fill(0xa5);
        Ok(())
    }
}

/// The most Receives that are posted at once: for all messages of the longest piece.
const RECEIVES: u32 = 64;

/// Endpoints for a transfer.
pub fn endpoints(domain: &Domain, privileged: Privileged) -> Builder<'_> {
    domain.endpoint().sends(IN_FLIGHT as u32).receives(RECEIVES).privileged(privileged)
}

/// Starts `count` requests, with up to [`IN_FLIGHT`] outstanding, and waits for all.
fn pipeline(count: usize, start: impl Fn(usize) -> Started) -> Outcome {
    let (mut outstanding, mut started) = (VecDeque::new(), 0);
    for _ in 0..count {
        while started < count && outstanding.len() < IN_FLIGHT {
            outstanding.push_back(start(started));
            started += 1;
        }
        outstanding.pop_front().map_or(Ok(()), |request| done(request).map(drop))?;
    }
    Ok(())
}

/// Memory that pieces are moved from.
pub struct Source {
    endpoint: Arc<Endpoint>,
    registered: Region,
    /// The same memory, named by its bus address.
    direct: Region,
}

impl Source {
    /// Registers a whole buffer.
    pub fn new(endpoint: &Arc<Endpoint>, buffer: &Arc<DmaBuffer>, privileged: Privileged) -> Outcome<Source> {
        let domain = endpoint.domain();
        let registered = domain.register(buffer.clone(), Access::READ).trying("registering the payload")?;
        let direct = domain.direct_buffer(buffer.clone(), privileged);
        Ok(Source { endpoint: endpoint.clone(), registered, direct })
    }

    /// The memory, as the other end names it.
    pub fn remote(&self) -> Outcome<RemoteMemory> {
        remote(&self.registered)
    }

    /// Starts to send a message.
    pub fn send(&self, piece: Piece, n: usize) -> Started {
        self.endpoint.send(piece.slice(&self.registered, n))
    }

    /// Sends all messages; the other end has posted their Receives.
    pub fn send_all(&self, piece: Piece) -> Outcome {
        pipeline(piece.messages(), |n| self.send(piece, n))?;
        self.arrived()
    }

    /// With iWARP a Send or an RDMA Write succeeds when it is on its way. Waits until the peer has
    /// what was posted before: it answers an RDMA Read, of no bytes, when it has.
    fn arrived(&self) -> Outcome {
        match self.endpoint.domain().nic().transport() {
            Transport::InfiniBand => Ok(()),
            Transport::Iwarp => {
                let nothing = self.direct.slice(..0);
                done(self.endpoint.read(nothing, RemoteMemory::new(0, 0, 0))).map(drop)
            }
        }
    }

    /// RDMA Write from registered memory.
    pub fn write_all(&self, piece: Piece, to: RemoteMemory) -> Outcome {
        self.write_from(&self.registered, piece, to)
    }

    /// RDMA Write from bus addresses.
    pub fn write_all_direct(&self, piece: Piece, to: RemoteMemory) -> Outcome {
        self.write_from(&self.direct, piece, to)
    }

    fn write_from(&self, memory: &Region, piece: Piece, to: RemoteMemory) -> Outcome {
        pipeline(piece.messages(), |n| {
            self.endpoint.write(piece.slice(memory, n), to.from(piece.message(n).0 as u64))
        })?;
        self.arrived()
    }
}

fn remote(memory: &Region) -> Outcome<RemoteMemory> {
    memory.remote().ok_or_else(|| Failure::new("peers may not access the memory"))
}

/// Memory that pieces are moved to.
pub struct Sink {
    endpoint: Arc<Endpoint>,
    memory: Region,
}

impl Sink {
    /// Allocates and registers this many bytes.
    pub fn new(endpoint: &Arc<Endpoint>, length: usize) -> Outcome<Sink> {
        let memory = endpoint.domain().shared_region(length, Access::WRITE);
        Ok(Sink { endpoint: endpoint.clone(), memory: memory.trying("memory for the copy")? })
    }

    /// The memory.
    pub fn buffer(&self) -> &Arc<DmaBuffer> {
        self.memory.buffer()
    }

    /// The memory, as the other end names it.
    pub fn remote(&self) -> Outcome<RemoteMemory> {
        remote(&self.memory)
    }

    /// Starts to receive a message.
    pub fn receive(&self, piece: Piece, n: usize) -> Started {
        self.endpoint.receive(piece.slice(&self.memory, n))
    }

    /// Waits for message `n`.
    pub fn received(&self, receive: Started, piece: Piece, n: usize) -> Outcome {
        match done(receive)?.len == piece.message(n).1 {
            true => Ok(()),
            false => Err(Failure::new("a message has another length")),
        }
    }

    /// RDMA Read of all messages.
    pub fn read_all(&self, piece: Piece, from: RemoteMemory) -> Outcome {
        pipeline(piece.messages(), |n| {
            self.endpoint.read(piece.slice(&self.memory, n), from.from(piece.message(n).0 as u64))
        })
    }
}
