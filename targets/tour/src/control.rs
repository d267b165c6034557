//! Messages between the two machines of a transfer, on their own connection.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::time::Duration;

use common::{Failure, Trying, done};
use platform::Platform;
use rdma::{Builder, Domain, Endpoint, Region, RemoteMemory, Request};

use crate::ends::Outcome;

/// Bytes of a message.
const BYTES: usize = 64;
/// Messages that may be in flight to this machine; the protocol has one.
const RECEIVES: usize = 2;
/// How long the peer may send nothing before this end probes it.
const SILENCE: Duration = Duration::from_secs(1);
/// The longest wait for the next message: the launcher may take long to load a piece.
const PATIENCE: Duration = Duration::from_secs(600);

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The sender's memory, and its bytes.
    Memory(RemoteMemory),
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
            Message::Memory(memory) => ([1, memory.addr(), memory.key().into(), memory.len()], [0; 32]),
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
            1 => Message::Memory(RemoteMemory::new(word(1), word(3), u32::try_from(word(2)).ok()?)),
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
    pub fn memory(self) -> Option<RemoteMemory> {
        match self {
            Message::Memory(memory) => Some(memory),
            _ => None,
        }
    }
}

/// Endpoints for the connection.
pub fn endpoints(domain: &Domain) -> Builder<'_> {
    domain.endpoint().sends(2).receives(RECEIVES as u32)
}

/// One end of the connection.
pub struct Control {
    platform: Arc<dyn Platform>,
    endpoint: Endpoint,
    /// Memory for a message to send, and after it for received ones.
    memory: Region,
    /// The Receives, oldest first, and where their messages will be.
    receives: VecDeque<(Request, usize)>,
}

impl Control {
    /// Prepares to receive, before the peer sends anything.
    pub fn new(endpoint: Endpoint) -> Outcome<Control> {
        let memory = endpoint.domain().region(BYTES * (1 + RECEIVES)).trying("memory for messages")?;
        let platform = endpoint.domain().nic().agent().platform().clone();
        let receives = VecDeque::new();
        let mut control = Control { platform, endpoint, memory, receives };
        (1..=RECEIVES).try_for_each(|place| control.post_receive(place * BYTES))?;
        Ok(control)
    }

    /// Its endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn post_receive(&mut self, at: usize) -> Outcome {
        let receive = self.endpoint.receive(self.memory.slice(at..at + BYTES)).trying("a Receive")?;
        self.receives.push_back((receive, at));
        Ok(())
    }

    /// Sends a message, and waits until the peer has it.
    pub fn send(&self, message: Message) -> Outcome {
        let place = self.memory.slice(..BYTES);
        place.write(&message.write());
        done(self.endpoint.send(place)).map(drop)
    }

    /// Waits for the next message.
    pub fn receive(&mut self) -> Outcome<Message> {
        let deadline = self.platform.now() + PATIENCE;
        let Some((mut receive, at)) = self.receives.pop_front() else {
            return Err(Failure::new("no message is expected"));
        };
        let outcome = loop {
            match receive.wait_timeout(SILENCE) {
                Ok(outcome) => break outcome,
                // An idle connection does not break when the peer ends: only a request finds out.
                Err(again) if self.platform.now() < deadline => {
                    self.probe()?;
                    receive = again;
                }
                Err(_) => return Err(Failure::new("no message comes")),
            }
        };
        outcome.trying("waiting for a message")?;
        let mut bytes = [0; BYTES];
        self.memory.slice(at..).read(&mut bytes);
        self.post_receive(at)?;
        Message::read(&bytes).ok_or_else(|| Failure::new("an invalid message"))
    }

    /// Waits for a message of the kind that `expect` takes.
    pub fn expect<T>(&mut self, expect: impl FnOnce(Message) -> Option<T>) -> Outcome<T> {
        let message = self.receive()?;
        expect(message).ok_or_else(|| Failure::new(format_args!("not the next message: {message:?}")))
    }

    /// Fails if the peer does not answer: an RDMA Write of no bytes, for which it needs no key.
    fn probe(&self) -> Outcome {
        done(self.endpoint.write(self.memory.slice(..0), RemoteMemory::new(0, 0, 0))).map(drop)
    }
}
