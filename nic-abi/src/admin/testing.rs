//! Commands for tests and benchmarks only.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(doc)]
use super::Opcode;

/// Arguments of [`Opcode::Inject`] (feature [`crate::registers::Features::FAULT_INJECTION`]).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inject {
    /// An [`Injection`].
    pub what: u32,
    /// How often; 0 ends the injection.
    pub count: u32,
    /// By injection.
    pub value: u64,
}

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Injection {
    /// After answering: no heartbeat, no doorbell, no answer, until a reset. If `value` is 1, a
    /// reset is ignored, too.
    Mute = 1,
    /// After answering: go to [`crate::registers::State::Failed`], without an event.
    Fail = 2,
    /// Lose the next `count` requests of queue pair `object` on the way to the responder (the
    /// requester times out).
    DropRequests = 3,
    /// Lose the next `count` answers to queue pair `object`.
    DropResponses = 4,
    /// Let the next `count` answers to queue pair `object` carry an unexpected opcode.
    BadResponse = 5,
    /// Delay the next `count` requests of queue pair `object` by `value` nanoseconds.
    Delay = 6,
    /// Lose the next `count` datagrams of the GSI queue pair (connection management).
    DropManagement = 7,
    /// Take the port down (`value` 0) or up (1).
    Port = 8,
    /// Let the next `count` requests of queue pair `object` reach the responder with an operation
    /// code that does not exist.
    BadRequest = 9,
    /// Let the next `count` work requests of queue pair `object` end with the
    /// [`crate::cqe::Status`] `value`, an error.
    Failure = 10,
    /// Take the data of the next `count` messages that virtual interface `object` receives for
    /// corrupt.
    Corrupt = 11,
    /// Take the next `count` messages that virtual interface `object` receives for incomplete.
    Truncate = 12,
    /// Lose the next `count` requests that virtual interface `object` receives, without an answer.
    StallResponder = 13,
    /// As [`Injection::StallResponder`], but RDMA Reads only.
    HoldReads = 14,
    /// Let the memory of the next `count` descriptors that virtual interface `object` completes be
    /// out of reach.
    LoseStatus = 15,
    /// Let no queue pair of the NIC have a turn (`value` 1), or go on (0): what is posted meanwhile
    /// waits, and can be executed from one moment on. The NIC still answers commands and requests.
    Hold = 16,
}

impl Injection {
    /// Reads an injection.
    pub const fn from_word(word: u32) -> Option<Injection> {
        Some(match word {
            1 => Injection::Mute,
            2 => Injection::Fail,
            3 => Injection::DropRequests,
            4 => Injection::DropResponses,
            5 => Injection::BadResponse,
            6 => Injection::Delay,
            7 => Injection::DropManagement,
            8 => Injection::Port,
            9 => Injection::BadRequest,
            10 => Injection::Failure,
            11 => Injection::Corrupt,
            12 => Injection::Truncate,
            13 => Injection::StallResponder,
            14 => Injection::HoldReads,
            15 => Injection::LoseStatus,
            16 => Injection::Hold,
            _ => return None,
        })
    }
}

/// Arguments of [`Opcode::Bench`] (feature [`crate::registers::Features::BENCH`]): baselines for
/// the benchmarks.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bench {
    /// A [`BenchKind`].
    pub kind: u32,
    /// Rounds.
    pub rounds: u32,
    /// Bus address: the word to answer at, or the source of the copy.
    pub source: u64,
    /// Bus address: the word to watch, or the target of the copy.
    pub target: u64,
    /// Bytes of a copy.
    pub length: u64,
}

/// Which baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BenchKind {
    /// Answer, then echo: each time the u32 at `target` changes, store it at `source`; `rounds`
    /// times, at most a second between two.
    Echo = 1,
    /// Copy `length` bytes from `source` to `target`, `rounds` times; the result's first u64 is the
    /// time in nanoseconds.
    Copy = 2,
    /// Answer, then for each kick raise vector 0 and nothing else; `rounds` times, at most a second
    /// between two.
    EchoInterrupt = 3,
    /// For a litmus test of atomics: answer, then add 1 to the u32 at `target` `rounds` times with
    /// an atomic operation, then store 1 at the u32 at `source`.
    AtomicAdd = 4,
}

impl BenchKind {
    /// Reads a kind.
    pub const fn from_word(word: u32) -> Option<BenchKind> {
        Some(match word {
            1 => BenchKind::Echo,
            2 => BenchKind::Copy,
            3 => BenchKind::EchoInterrupt,
            4 => BenchKind::AtomicAdd,
            _ => return None,
        })
    }
}
