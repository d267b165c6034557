//! iWARP: a queue pair over a TCP stream. The engine is [`iwarp::engine::Engine`].
//!
//! A queue pair takes a stream with the transition from INIT to RTR, when both ends have made the
//! set-up of MPA over it. From then on the device moves the stream's bytes: in a turn it takes what
//! has arrived, passes work requests from the send queue to the engine, and fills the stream's
//! room. A turn follows when bytes arrive, when there is room again, and at a doorbell. If both
//! ends of the connection are queue pairs of this process, segments go by the short cut instead.
//!
//! | module | subject |
//! |---|---|
//! | `turn` | a turn: bytes in, requests, bytes out, completions |
//! | `short_cut` | how the other end is found, and segments go to it without TCP |
//! | `memory` | registered memory and receives, as the engine reaches them |
//! | `silence` | what is done when the peer sends nothing after the set-up |
//! | `end` | how the connection ends: the event, the error state, the stream |

mod end;
mod memory;
mod short_cut;
mod silence;
mod turn;

use iwarp::engine::{Config, Engine, Role};
use iwarp::mpa;
use nic_abi::admin::{ModifyQp, StreamFlags};
use tcp::StreamId;

use self::silence::Silence;
use super::flights::{DEPTH, Flights};
use crate::ids::QpId;

/// Where the other end of a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    /// It is not known, or is not a queue pair's yet.
    Unknown,
    /// Not in this process, or it is to be reached by TCP only.
    Far,
    /// This queue pair's, if that one's is this queue pair's.
    Near(QpId),
}

/// What an iWARP queue pair has while it has a connection.
pub(crate) struct Stream {
    id: StreamId,
    engine: Engine,
    flights: Flights,
    /// The local key that the message which is arriving has invalidated.
    invalidated: Option<u32>,
    /// The offset of the bad field, if the receive that a message took is malformed.
    bad_receive: Option<u32>,
    /// A completion shows why the connection ends.
    shown: bool,
    /// The engine has nothing more to report.
    ended: bool,
    /// The stream ends with a reset.
    cut: bool,
    /// What is done when the peer stays silent, for which the queue pair's timer runs.
    silence: Option<Silence>,
    /// Where the other end is.
    other: Other,
    /// Something has happened to the TCP stream since it was looked at.
    news: bool,
    /// Nothing that this end has sent is under way in TCP: its next segment can go by the short
    /// cut.
    direct: bool,
    /// The queue pair's timer runs for an end that waits until TCP is empty.
    pauses: bool,
}

impl Stream {
    /// Changes how many RDMA Reads are outstanding at most.
    pub fn set_ord(&mut self, ord: u8) {
        self.engine.set_ord(ord.into());
    }

    /// A connection over a stream that carries segments of so many bytes, with what both ends have
    /// agreed on.
    pub fn new(id: StreamId, segment: usize, attributes: &ModifyQp) -> Stream {
        let flags = StreamFlags::from_bits_truncate(attributes.stream_flags);
        let responder = flags.contains(StreamFlags::RESPONDER);
        let mut engine = Engine::new(Config {
            role: if responder { Role::Responder } else { Role::Initiator },
            mulpdu: mpa::mulpdu(segment),
            crc: flags.contains(StreamFlags::CRC),
            depth: DEPTH,
            ord: attributes.max_rd_atomic.into(),
            ird: attributes.max_dest_rd_atomic.into(),
        });
        if flags.contains(StreamFlags::ANNOUNCE) {
            engine.announce();
        }
        Stream {
            id,
            engine,
            flights: Flights::new(),
            invalidated: None,
            bad_receive: None,
            shown: false,
            ended: false,
            cut: false,
            silence: Silence::of(flags),
            other: Other::Unknown,
            news: true,
            direct: false,
            pauses: false,
        }
    }

    /// Whether no work request is in progress.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }
}
