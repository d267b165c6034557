//! Messages between the two machines of a transfer, on their own connection.

use alloc::sync::Arc;
use core::time::Duration;

use common::{Failure, Side, Sizes, Trying};
use platform::{DmaBuffer, Platform};
use privileged_api::{
    AddrMode, DtoFlags, DtoStatus, Error, Event, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv,
    RmrContext, make_rdma_addr_absolute,
};

use crate::ends::{Outcome, Remote};

/// Bytes of a message.
const BYTES: usize = 64;
/// Messages that may be in flight to this machine; the protocol has one.
const RECEIVES: usize = 2;
/// The sizes of the connection's queues.
pub const SIZES: Sizes = Sizes { requests: 4, message: BYTES };
/// How long the peer may send nothing before this end probes it, in microseconds.
const SILENCE: u64 = 1_000_000;
/// The longest wait for the next message: the launcher may take long to load a piece.
const PATIENCE: Duration = Duration::from_secs(600);

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The sender's memory, and its bytes.
    Memory { addr: u64, context: u32, length: u64 },
    /// The next piece is about to be moved, by the way with this number; its length, and the digest
    /// of all pieces up to this one.
    Piece { way: u64, length: u64, digest: [u8; 32] },
    /// The sender's memory is ready for the piece.
    Ready,
    /// The piece has been moved, in this many nanoseconds.
    Moved { nanoseconds: u64 },
    /// The piece arrived intact.
    Arrived,
    /// All pieces have been moved.
    End,
}

impl Message {
    fn write(self) -> [u8; BYTES] {
        let (words, digest) = match self {
            Message::Memory { addr, context, length } => ([1, addr, context.into(), length], [0; 32]),
            Message::Piece { way, length, digest } => ([2, way, length, 0], digest),
            Message::Ready => ([3, 0, 0, 0], [0; 32]),
            Message::Moved { nanoseconds } => ([4, nanoseconds, 0, 0], [0; 32]),
            Message::Arrived => ([5, 0, 0, 0], [0; 32]),
            Message::End => ([6, 0, 0, 0], [0; 32]),
        };
        let mut bytes = [0; BYTES];
        let (head, tail) = bytes.split_at_mut(32);
        for (place, word) in head.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&u64::to_le_bytes(word));
        }
        tail.copy_from_slice(&digest);
        bytes
    }

    fn read(bytes: &[u8; BYTES]) -> Option<Message> {
        let word = |n: usize| bytes[8 * n..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        Some(match word(0) {
            1 => Message::Memory { addr: word(1), context: u32::try_from(word(2)).ok()?, length: word(3) },
            2 => Message::Piece { way: word(1), length: word(2), digest: *bytes[32..].first_chunk()? },
            3 => Message::Ready,
            4 => Message::Moved { nanoseconds: word(1) },
            5 => Message::Arrived,
            6 => Message::End,
            _ => return None,
        })
    }
}

impl Message {
    /// The memory that the message describes.
    pub fn memory(self) -> Option<(Remote, usize)> {
        match self {
            Message::Memory { addr, context, length } => {
                Some((Remote { addr: addr as usize, context: RmrContext(context) }, length as usize))
            }
            _ => None,
        }
    }
}

/// One end of the connection.
pub struct Control<'a> {
    platform: &'a Arc<dyn Platform>,
    side: &'a Side,
    /// Memory for a message to send, and after it for received ones.
    memory: Arc<DmaBuffer>,
    lmr: LmrHandle,
}

impl<'a> Control<'a> {
    /// Prepares to receive, before the peer sends anything.
    pub fn new(platform: &'a Arc<dyn Platform>, side: &'a Side) -> Outcome<Control<'a>> {
        let length = BYTES * (1 + RECEIVES);
        let memory = DmaBuffer::new(platform, length, BYTES).map_err(|_| "out of memory");
        let memory = Arc::new(memory.trying("memory for messages")?);
        let whole = LmrMemory::Buffer { buffer: &memory, offset: 0 };
        let (lmr, _) = side
            .ia
            .lmr_create(side.pz, whole, length as u64, AddrMode::Absolute, MemPriv::LOCAL, LmrFlags::NONE, 0)
            .trying("it_lmr_create")?;
        let control = Control { platform, side, memory, lmr };
        (1..=RECEIVES).try_for_each(|place| control.post_receive(place))?;
        Ok(control)
    }

    fn segment(&self, place: usize) -> LmrTriplet {
        LmrTriplet::new(self.lmr, (self.memory.addr() + place * BYTES) as u64, BYTES as u64)
    }

    fn post_receive(&self, place: usize) -> Outcome {
        let Side { ia, ep, .. } = self.side;
        ia.post_recv(*ep, &[self.segment(place)], place as u64, DtoFlags::COMPLETION).trying("it_post_recv")
    }

    /// Sends a message, and waits until the peer has it.
    pub fn send(&self, message: Message) -> Outcome {
        let Side { ia, ep, requests, .. } = self.side;
        self.memory.write(0, &message.write()).map_err(|_| Failure::new("the message is out of bounds"))?;
        ia.post_send(*ep, &[self.segment(0)], 0, DtoFlags::COMPLETION).trying("it_post_send")?;
        self.side.completion(*requests).map(|_| ())
    }

    /// Waits for the next message.
    pub fn receive(&self) -> Outcome<Message> {
        let Side { ia, receives, .. } = self.side;
        let deadline = self.platform.now() + PATIENCE;
        let event = loop {
            match ia.evd_wait(*receives, SILENCE).map_err(Error::from) {
                Ok((event, _)) => break event,
                // An idle connection does not break when the peer ends: only a request finds out.
                Err(Error::TimeoutExpired) if self.platform.now() < deadline => self.probe()?,
                Err(error) => return Err(error).trying("waiting for a message"),
            }
        };
        let place = match event {
            Event::Dto(done) if done.dto_status == DtoStatus::Success => done.cookie as usize,
            other => return Err(Failure::new(format_args!("waiting for a message: {other:?}"))),
        };
        let mut bytes = [0; BYTES];
        self.memory.read(place * BYTES, &mut bytes).map_err(|_| Failure::new("a message out of bounds"))?;
        self.post_receive(place)?;
        Message::read(&bytes).ok_or_else(|| Failure::new("an invalid message"))
    }

    /// Waits for a message of the kind that `expect` takes.
    pub fn expect<T>(&self, expect: impl FnOnce(Message) -> Option<T>) -> Outcome<T> {
        let message = self.receive()?;
        expect(message).ok_or_else(|| Failure::new(format_args!("not the next message: {message:?}")))
    }

    /// Sends the peer the address, key and length of this end's memory.
    pub fn tell(&self, Remote { addr, context }: Remote, length: usize) -> Outcome {
        self.send(Message::Memory { addr: addr as u64, context: context.0, length: length as u64 })
    }

    /// Fails if the peer does not answer: an RDMA Write of no bytes, for which it needs no key.
    fn probe(&self) -> Outcome {
        let Side { ia, ep, requests, .. } = self.side;
        let nowhere = make_rdma_addr_absolute(0);
        ia.post_rdma_write(*ep, &[], 0, DtoFlags::COMPLETION, nowhere, RmrContext::default())
            .trying("it_post_rdma_write")?;
        self.side.completion(*requests).map(|_| ())
    }

    /// Deregisters.
    pub fn free(self) -> Outcome {
        self.side.ia.lmr_free(self.lmr).trying("it_lmr_free")
    }
}
