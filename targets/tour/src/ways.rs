//! The four ways, from endpoint A's memory to endpoint B's.
//!
//! Each piece of the payload is moved in each way before the next piece is loaded. After each way
//! the copy is compared with the piece byte for byte. So the digest of the payload, which the
//! launcher takes once, is the digest of each copy too.
//!
//! `@moved LENGTH` on the console tells the launcher how far the transfer has come.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use common::{Failure, Pair, Side, Trying};
use kernel::println;
use platform::{DmaBuffer, Platform};
use privileged_api::{
    AddrMode, DtoFlags, EvdHandle, IoAddr, Iobl, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv,
    RmrContext, make_rdma_addr_absolute,
};

use crate::payload::Payload;
use crate::{IN_FLIGHT, MESSAGE};

/// Bytes that are linked at a time.
const WINDOW: usize = 4 << 20;
const PAGE: usize = 4096;

type Outcome<T = ()> = Result<T, Failure>;
type Way = fn(&Transfer<'_>) -> Outcome;

const WAYS: [(&str, Way); 4] = [
    ("send", |transfer| transfer.by_send()),
    ("write", |transfer| transfer.by_write()),
    ("read", |transfer| transfer.by_read()),
    ("direct", |transfer| transfer.by_direct()),
];

/// One piece, and where it goes.
struct Transfer<'a> {
    pair: &'a Pair,
    /// Bytes of the piece.
    length: usize,
    /// A's memory, in which the piece is.
    source_addr: usize,
    /// The bus address of the same memory.
    source_io: IoAddr,
    /// The same memory, registered with A.
    source: LmrHandle,
    source_context: RmrContext,
    /// B's memory.
    copy_addr: usize,
    sink: LmrHandle,
    sink_context: RmrContext,
}

/// Moves the payload in each way and prints a line for each.
pub fn run_all(platform: &Arc<dyn Platform>, pair: &Pair, payload: &mut Payload) -> Outcome {
    let (a, b) = (&pair.a, &pair.b);
    let (source_addr, length) = (payload.buffer.addr(), payload.buffer.len());
    let copy = DmaBuffer::new(platform, length, PAGE).map_err(|_| "out of memory");
    let copy = Arc::new(copy.trying("memory for the copy")?);
    let (sink, sink_context) =
        b.ia.lmr_create(
            b.pz,
            LmrMemory::Buffer { buffer: &copy, offset: 0 },
            length as u64,
            AddrMode::Absolute,
            MemPriv::LOCAL | MemPriv::REMOTE_WRITE,
            LmrFlags::NONE,
            0,
        )
        .trying("it_lmr_create")?;
    let (source_io, mapped) = a.ia.mem_map(source_addr, 0, length).trying("it_mem_map")?;
    if mapped < length {
        return Err(Failure::new("it_mem_map: a buffer is not contiguous"));
    }
    let (source, source_context) =
        a.ia.lmr_create(
            a.pz,
            LmrMemory::Iobl { addr: source_addr, iobl: &Iobl::blocks(&[source_io], length as u64, 0) },
            length as u64,
            AddrMode::Absolute,
            MemPriv::LOCAL_READ | MemPriv::REMOTE_READ,
            LmrFlags::NONE,
            0,
        )
        .trying("it_lmr_create")?;
    let mut transfer = Transfer {
        pair,
        length: 0,
        source_addr,
        source_io,
        source,
        source_context: source_context.ok_or_else(|| Failure::new("the source has no RMR context"))?,
        copy_addr: copy.addr(),
        sink,
        sink_context: sink_context.ok_or_else(|| Failure::new("the sink has no RMR context"))?,
    };
    let mut times = [Duration::ZERO; WAYS.len()];
    while payload.next()? {
        transfer.length = payload.length;
        for ((name, way), time) in WAYS.iter().zip(&mut times) {
            let failed = |why| Failure::new(format!("transfer {name}: {why}"));
            // Other bytes than the piece's, or an earlier copy could pass for this one.
            copy.slice().get(0, transfer.length).map_err(|_| failed("out of bounds".into()))?.fill(0xa5);
            let begin = platform.now();
            way(&transfer).map_err(|failure| failed(format!("{failure}")))?;
            *time += platform.now() - begin;
            if !payload.equals(&copy) {
                return Err(failed("what arrived is not what was sent".into()));
            }
            println!("@moved {}", transfer.length);
        }
    }
    for ((name, _), time) in WAYS.iter().zip(times) {
        report(name, payload, time.as_secs_f64());
    }
    a.ia.lmr_free(source).trying("it_lmr_free")?;
    a.ia.mem_unmap(source_io, mapped).trying("it_mem_unmap")?;
    b.ia.lmr_free(sink).trying("it_lmr_free")
}

fn report(way: &str, payload: &Payload, seconds: f64) {
    let bytes = payload.bytes;
    let rate = match bytes {
        0 => "-".into(),
        _ => format!("{:.1}", bytes as f64 / seconds / 1e6),
    };
    let digest: alloc::string::String = payload.sha256().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("transfer {way}: {bytes} bytes in {seconds:.6} s, {rate} MB/s, sha256 {digest}");
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

impl Transfer<'_> {
    /// How many messages the piece is. A piece of no bytes is one message of none.
    fn messages(&self) -> usize {
        self.length.div_ceil(MESSAGE).max(1)
    }

    /// Offset and length of a message.
    fn message(&self, n: usize) -> (usize, usize) {
        let offset = n * MESSAGE;
        (offset, MESSAGE.min(self.length - offset))
    }

    fn source_segment(&self, n: usize) -> LmrTriplet {
        let (offset, length) = self.message(n);
        LmrTriplet::new(self.source, (self.source_addr + offset) as u64, length as u64)
    }

    fn sink_segment(&self, n: usize) -> LmrTriplet {
        let (offset, length) = self.message(n);
        LmrTriplet::new(self.sink, (self.copy_addr + offset) as u64, length as u64)
    }

    /// Send and Receive.
    fn by_send(&self) -> Outcome {
        let Pair { a, b } = self.pair;
        let count = self.messages();
        let mut received = 0;
        let mut posted = 0;
        let receive =
            |n: usize| b.ia.post_recv(b.ep, some(&[self.sink_segment(n)]), n as u64, DtoFlags::COMPLETION);
        while posted < count.min(2 * IN_FLIGHT) {
            receive(posted).trying("it_post_recv")?;
            posted += 1;
        }
        let mut sent = 0;
        while received < count {
            // Each Send is posted after its Receive, so no Send finds the queue empty.
            while sent < posted && sent < received + IN_FLIGHT {
                let segment = [self.source_segment(sent)];
                a.ia.post_send(a.ep, some(&segment), sent as u64, DtoFlags::COMPLETION)
                    .trying("it_post_send")?;
                sent += 1;
            }
            let done = b.completion(b.receives)?;
            a.completion(a.requests)?;
            let (_, length) = self.message(received);
            if done.cookie != received as u64 || done.transferred_length as usize != length {
                return Err(Failure::new("a receive completed out of order or with another length"));
            }
            received += 1;
            if posted < count {
                receive(posted).trying("it_post_recv")?;
                posted += 1;
            }
        }
        Ok(())
    }

    /// RDMA Write from a region that is linked to one window of the piece after the other.
    fn by_write(&self) -> Outcome {
        let a = &self.pair.a;
        let lmr =
            a.ia.lmr_create_unlinked(a.pz, WINDOW / PAGE + 1, LmrFlags::NONE, 0)
                .trying("it_lmr_create_unlinked")?;
        let mut pages = Vec::new();
        let length = self.length.max(1);
        for start in (0..length).step_by(WINDOW) {
            let window = WINDOW.min(length - start);
            let io = self.source_io.0 + start as u64;
            let first_byte = io % PAGE as u64;
            pages.clear();
            pages.extend((io - first_byte..io + window as u64).step_by(PAGE).map(IoAddr));
            let addr = self.source_addr + start;
            a.ia.lmr_link(
                lmr,
                addr,
                &Iobl::pages(&pages, PAGE as u64, first_byte),
                window as u64,
                AddrMode::Absolute,
                MemPriv::LOCAL_READ,
                a.ep,
                0,
                DtoFlags::COMPLETION,
            )
            .trying("it_lmr_link")?;
            a.completion(a.requests)?;
            let first = start / MESSAGE;
            let messages = window.div_ceil(MESSAGE);
            pipeline(a, a.requests, messages, |n| {
                let (offset, length) = self.message(first + n);
                let segment = LmrTriplet::new(lmr, (addr + offset - start) as u64, length as u64);
                self.write(segment, offset, n)
            })?;
            a.ia.lmr_unlink(lmr, a.ep, 0, DtoFlags::COMPLETION).trying("it_lmr_unlink")?;
            a.completion(a.requests)?;
        }
        a.ia.lmr_free(lmr).trying("it_lmr_free")
    }

    /// RDMA Read, which B posts.
    fn by_read(&self) -> Outcome {
        let b = &self.pair.b;
        pipeline(b, b.requests, self.messages(), |n| {
            let (offset, _) = self.message(n);
            b.ia.post_rdma_read(
                b.ep,
                some(&[self.sink_segment(n)]),
                n as u64,
                DtoFlags::COMPLETION,
                make_rdma_addr_absolute(self.source_addr + offset),
                self.source_context,
            )
        })
    }

    /// RDMA Write from bus addresses, with the direct LMR handle.
    fn by_direct(&self) -> Outcome {
        let a = &self.pair.a;
        pipeline(a, a.requests, self.messages(), |n| {
            let (offset, length) = self.message(n);
            let segment = LmrTriplet::direct(IoAddr(self.source_io.0 + offset as u64), length as u64);
            self.write(segment, offset, n)
        })
    }

    fn write(&self, segment: LmrTriplet, offset: usize, n: usize) -> privileged_api::Result<()> {
        let a = &self.pair.a;
        a.ia.post_rdma_write(
            a.ep,
            some(&[segment]),
            n as u64,
            DtoFlags::COMPLETION,
            make_rdma_addr_absolute(self.copy_addr + offset),
            self.sink_context,
        )
    }
}
