//! The four ways, from endpoint A's memory to endpoint B's.
//!
//! After each way the copy is compared with the payload byte for byte; so the digest that is printed, which was taken of the
//! payload once, is also the copy's. (Taking it anew four times would be most of the run under emulation.)

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

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
type Way<'a> = fn(&Transfer<'a>) -> Outcome;

struct Transfer<'a> {
    pair: &'a Pair,
    payload: &'a Payload,
    /// The payload's bus address, if it has bytes.
    source_io: IoAddr,
    /// The payload, registered with A.
    source: LmrHandle,
    source_context: RmrContext,
    /// B's memory.
    copy: &'a DmaBuffer,
    sink: LmrHandle,
    sink_context: RmrContext,
}

/// Moves the payload in each way and prints a line for each.
pub fn run_all(platform: &Arc<dyn Platform>, pair: &Pair, payload: &Payload) -> Outcome {
    let (a, b) = (&pair.a, &pair.b);
    // A region has at least one byte, so a payload of none borrows some that it never touches.
    let length = payload.len().max(1);
    let memory = |length| {
        DmaBuffer::new(platform, length, PAGE).map(Arc::new).map_err(|_| "out of memory").trying("memory")
    };
    let copy = memory(length)?;
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
    let stand_in;
    let source_addr = if payload.len() == 0 {
        stand_in = memory(1)?;
        stand_in.addr()
    } else {
        payload.addr()
    };
    let (source_io, mapped) = a.ia.mem_map(source_addr, 0, length).trying("it_mem_map")?;
    if mapped < length {
        return Err(Failure::new("it_mem_map: the payload is not contiguous"));
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
    let transfer = Transfer {
        pair,
        payload,
        source_io,
        source,
        source_context: source_context.ok_or_else(|| Failure::new("the source has no RMR context"))?,
        copy: &copy,
        sink,
        sink_context: sink_context.ok_or_else(|| Failure::new("the sink has no RMR context"))?,
    };
    let ways: [(&str, Way<'_>); 4] = [
        ("send", Transfer::by_send),
        ("write", Transfer::by_write),
        ("read", Transfer::by_read),
        ("direct", Transfer::by_direct),
    ];
    for (name, way) in ways {
        copy.slice().fill(0xa5);
        let begin = platform.now();
        way(&transfer).map_err(|failure| Failure::new(format!("transfer {name}: {failure}")))?;
        let seconds = (platform.now() - begin).as_secs_f64();
        if !payload.equals(&copy) {
            return Err(Failure::new(format!("transfer {name}: what arrived is not what was sent")));
        }
        report(name, payload, seconds);
    }
    a.ia.lmr_free(source).trying("it_lmr_free")?;
    a.ia.mem_unmap(source_io, mapped).trying("it_mem_unmap")?;
    b.ia.lmr_free(sink).trying("it_lmr_free")
}

fn report(way: &str, payload: &Payload, seconds: f64) {
    let bytes = payload.len();
    let rate = match bytes {
        0 => "-".into(),
        _ => format!("{:.1}", bytes as f64 / seconds / 1e6),
    };
    let digest: alloc::string::String = payload.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("transfer {way}: {bytes} bytes in {seconds:.6} s, {rate} MB/s, sha256 {digest}");
}

/// Keeps up to [`IN_FLIGHT`] requests going until `count` are done, each found on `evd` of `side`.
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

/// A segment of no bytes is left out: a message may have none.
fn some(segment: &[LmrTriplet; 1]) -> &[LmrTriplet] {
    if segment[0].length == 0 { &[] } else { segment }
}

impl Transfer<'_> {
    /// The messages: offset and length. A payload of no bytes is one message of none.
    fn messages(&self) -> usize {
        self.payload.len().div_ceil(MESSAGE).max(1)
    }

    fn message(&self, n: usize) -> (usize, usize) {
        let offset = n * MESSAGE;
        (offset, MESSAGE.min(self.payload.len() - offset))
    }

    fn source_segment(&self, n: usize) -> LmrTriplet {
        let (offset, length) = self.message(n);
        LmrTriplet::new(self.source, (self.source_addr() + offset) as u64, length as u64)
    }

    fn sink_segment(&self, n: usize) -> LmrTriplet {
        let (offset, length) = self.message(n);
        LmrTriplet::new(self.sink, (self.copy.addr() + offset) as u64, length as u64)
    }

    fn source_addr(&self) -> usize {
        self.payload.addr()
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
            // A send is posted only when its receive is: there are never more in flight than receives.
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

    /// RDMA Write from a region that is linked piece by piece.
    fn by_write(&self) -> Outcome {
        let a = &self.pair.a;
        let lmr =
            a.ia.lmr_create_unlinked(a.pz, WINDOW / PAGE + 1, LmrFlags::NONE, 0)
                .trying("it_lmr_create_unlinked")?;
        let mut pages = Vec::new();
        let length = self.payload.len().max(1);
        for start in (0..length).step_by(WINDOW) {
            let window = WINDOW.min(length - start);
            let io = self.source_io.0 + start as u64;
            let first_byte = io % PAGE as u64;
            pages.clear();
            pages.extend((io - first_byte..io + window as u64).step_by(PAGE).map(IoAddr));
            let addr = self.linked_addr(io, start);
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

    /// The address of the window's first byte. It must agree with the bus address in the bits below the page size.
    fn linked_addr(&self, io: u64, start: usize) -> usize {
        match self.payload.len() {
            0 => io as usize,
            _ => self.source_addr() + start,
        }
    }

    /// RDMA Read, asked for by B.
    fn by_read(&self) -> Outcome {
        let b = &self.pair.b;
        pipeline(b, b.requests, self.messages(), |n| {
            let (offset, _) = self.message(n);
            b.ia.post_rdma_read(
                b.ep,
                some(&[self.sink_segment(n)]),
                n as u64,
                DtoFlags::COMPLETION,
                make_rdma_addr_absolute(self.source_addr() + offset),
                self.source_context,
            )
        })
    }

    /// RDMA Write from bus addresses, by the direct LMR handle.
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
            make_rdma_addr_absolute(self.copy.addr() + offset),
            self.sink_context,
        )
    }
}
