//! The two ends of a transfer: memory that pieces are moved from, and memory that they are moved
//! to. Each end posts what its endpoint can post; they may be on one machine or on two.

use alloc::sync::Arc;
use alloc::vec::Vec;

use common::{Failure, Side, Trying};
use platform::{DmaBuffer, Platform};
use privileged_api::{
    AddrMode, DtoFlags, EvdHandle, IoAddr, Iobl, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv,
    RmrContext, make_rdma_addr_absolute,
};

use crate::{IN_FLIGHT, MESSAGE};

/// Bytes that are linked to the region at a time.
const WINDOW: usize = 4 << 20;
const PAGE: usize = 4096;

pub type Outcome<T = ()> = Result<T, Failure>;

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

    /// Fills a copy with bytes that differ from the piece's. Otherwise the data of an earlier way
    /// could be taken for that of the next one.
    pub fn spoil(self, copy: &DmaBuffer) -> Outcome {
        copy.slice().get(0, self.0).trying("the copy")?.fill(0xa5);
        Ok(())
    }
}

/// The other end's memory.
#[derive(Clone, Copy)]
pub struct Remote {
    /// Its address there.
    pub addr: usize,
    /// The key to it.
    pub context: RmrContext,
}

/// Posts `count` requests, with up to [`IN_FLIGHT`] outstanding; their completions come on `evd` of
/// `side`.
fn pipeline(
    side: &Side,
    evd: EvdHandle,
    count: usize,
    mut post: impl FnMut(usize) -> privileged_api::Result<()>,
) -> Outcome {
    let mut posted = 0;
    for done in 0..count {
        while posted < count && posted < done + IN_FLIGHT {
            post(posted).trying("posting")?;
            posted += 1;
        }
        side.completion(evd)?;
    }
    Ok(())
}

/// The segments of a message: none if it has no bytes.
fn some(segment: &[LmrTriplet; 1]) -> &[LmrTriplet] {
    if segment[0].length == 0 { &[] } else { segment }
}

/// Memory that pieces are moved from.
pub struct Source<'a> {
    side: &'a Side,
    addr: usize,
    /// The bus address of the same memory.
    io: IoAddr,
    mapped: usize,
    /// The same memory, registered.
    lmr: LmrHandle,
    context: RmrContext,
}

impl<'a> Source<'a> {
    /// Registers a whole buffer.
    pub fn new(side: &'a Side, buffer: &DmaBuffer) -> Outcome<Source<'a>> {
        let (addr, length) = (buffer.addr(), buffer.len());
        let (io, mapped) = side.ia.mem_map(addr, 0, length).trying("it_mem_map")?;
        if mapped < length {
            return Err(Failure::new("it_mem_map: a buffer is not contiguous"));
        }
        let (lmr, context) = side
            .ia
            .lmr_create(
                side.pz,
                LmrMemory::Iobl { addr, iobl: &Iobl::blocks(&[io], length as u64, 0) },
                length as u64,
                AddrMode::Absolute,
                MemPriv::LOCAL_READ | MemPriv::REMOTE_READ,
                LmrFlags::NONE,
                0,
            )
            .trying("it_lmr_create")?;
        let context = context.ok_or_else(|| Failure::new("the source has no RMR context"))?;
        Ok(Source { side, addr, io, mapped, lmr, context })
    }

    /// The memory, as the other end names it.
    pub fn remote(&self) -> Remote {
        Remote { addr: self.addr, context: self.context }
    }

    /// Posts a Send of a message.
    pub fn send(&self, piece: Piece, n: usize) -> privileged_api::Result<()> {
        let (offset, length) = piece.message(n);
        let segment = LmrTriplet::new(self.lmr, (self.addr + offset) as u64, length as u64);
        self.side.ia.post_send(self.side.ep, some(&[segment]), n as u64, DtoFlags::COMPLETION)
    }

    /// Sends all messages; the other end has posted their Receives.
    pub fn send_all(&self, piece: Piece) -> Outcome {
        pipeline(self.side, self.side.requests, piece.messages(), |n| self.send(piece, n))
    }

    /// RDMA Write from a region that is linked to one window of the piece after another.
    pub fn write_all(&self, piece: Piece, to: Remote) -> Outcome {
        let Side { ia, pz, ep, requests, .. } = self.side;
        let lmr = ia
            .lmr_create_unlinked(*pz, WINDOW / PAGE + 1, LmrFlags::NONE, 0)
            .trying("it_lmr_create_unlinked")?;
        let mut pages = Vec::new();
        let length = piece.0.max(1);
        for start in (0..length).step_by(WINDOW) {
            let window = WINDOW.min(length - start);
            let io = self.io.0 + start as u64;
            let first_byte = io % PAGE as u64;
            pages.clear();
            pages.extend((io - first_byte..io + window as u64).step_by(PAGE).map(IoAddr));
            let addr = self.addr + start;
            ia.lmr_link(
                lmr,
                addr,
                &Iobl::pages(&pages, PAGE as u64, first_byte),
                window as u64,
                AddrMode::Absolute,
                MemPriv::LOCAL_READ,
                *ep,
                0,
                DtoFlags::COMPLETION,
            )
            .trying("it_lmr_link")?;
            self.side.completion(*requests)?;
            let first = start / MESSAGE;
            let messages = window.div_ceil(MESSAGE);
            pipeline(self.side, *requests, messages, |n| {
                let (offset, length) = piece.message(first + n);
                let segment = LmrTriplet::new(lmr, (addr + offset - start) as u64, length as u64);
                self.write(segment, to, offset, n)
            })?;
            ia.lmr_unlink(lmr, *ep, 0, DtoFlags::COMPLETION).trying("it_lmr_unlink")?;
            self.side.completion(*requests)?;
        }
        ia.lmr_free(lmr).trying("it_lmr_free")
    }

    /// RDMA Write from bus addresses, with the direct LMR handle.
    pub fn write_all_direct(&self, piece: Piece, to: Remote) -> Outcome {
        pipeline(self.side, self.side.requests, piece.messages(), |n| {
            let (offset, length) = piece.message(n);
            let segment = LmrTriplet::direct(IoAddr(self.io.0 + offset as u64), length as u64);
            self.write(segment, to, offset, n)
        })
    }

    fn write(&self, segment: LmrTriplet, to: Remote, offset: usize, n: usize) -> privileged_api::Result<()> {
        self.side.ia.post_rdma_write(
            self.side.ep,
            some(&[segment]),
            n as u64,
            DtoFlags::COMPLETION,
            make_rdma_addr_absolute(to.addr + offset),
            to.context,
        )
    }

    /// Deregisters.
    pub fn free(self) -> Outcome {
        self.side.ia.lmr_free(self.lmr).trying("it_lmr_free")?;
        self.side.ia.mem_unmap(self.io, self.mapped).trying("it_mem_unmap")
    }
}

/// Memory that pieces are moved to.
pub struct Sink<'a> {
    side: &'a Side,
    /// The memory.
    pub buffer: Arc<DmaBuffer>,
    lmr: LmrHandle,
    context: RmrContext,
}

impl<'a> Sink<'a> {
    /// Allocates and registers this many bytes.
    pub fn new(platform: &Arc<dyn Platform>, side: &'a Side, length: usize) -> Outcome<Sink<'a>> {
        let buffer = DmaBuffer::new(platform, length, PAGE).map_err(|_| "out of memory");
        let buffer = Arc::new(buffer.trying("memory for the copy")?);
        let (lmr, context) = side
            .ia
            .lmr_create(
                side.pz,
                LmrMemory::Buffer { buffer: &buffer, offset: 0 },
                length as u64,
                AddrMode::Absolute,
                MemPriv::LOCAL | MemPriv::REMOTE_WRITE,
                LmrFlags::NONE,
                0,
            )
            .trying("it_lmr_create")?;
        let context = context.ok_or_else(|| Failure::new("the sink has no RMR context"))?;
        Ok(Sink { side, buffer, lmr, context })
    }

    /// The memory, as the other end names it.
    pub fn remote(&self) -> Remote {
        Remote { addr: self.buffer.addr(), context: self.context }
    }

    /// Posts the Receive of a message.
    pub fn receive(&self, piece: Piece, n: usize) -> privileged_api::Result<()> {
        self.side.ia.post_recv(self.side.ep, some(&[self.segment(piece, n)]), n as u64, DtoFlags::COMPLETION)
    }

    /// Waits for a message, which must be number `n`.
    pub fn received(&self, piece: Piece, n: usize) -> Outcome {
        let done = self.side.completion(self.side.receives)?;
        let (_, length) = piece.message(n);
        if done.cookie != n as u64 || done.transferred_length as usize != length {
            return Err(Failure::new("a receive completed out of order or with another length"));
        }
        Ok(())
    }

    /// RDMA Read of all messages.
    pub fn read_all(&self, piece: Piece, from: Remote) -> Outcome {
        pipeline(self.side, self.side.requests, piece.messages(), |n| {
            let (offset, _) = piece.message(n);
            self.side.ia.post_rdma_read(
                self.side.ep,
                some(&[self.segment(piece, n)]),
                n as u64,
                DtoFlags::COMPLETION,
                make_rdma_addr_absolute(from.addr + offset),
                from.context,
            )
        })
    }

    fn segment(&self, piece: Piece, n: usize) -> LmrTriplet {
        let (offset, length) = piece.message(n);
        LmrTriplet::new(self.lmr, (self.buffer.addr() + offset) as u64, length as u64)
    }

    /// Deregisters.
    pub fn free(self) -> Outcome {
        self.side.ia.lmr_free(self.lmr).trying("it_lmr_free")
    }
}
