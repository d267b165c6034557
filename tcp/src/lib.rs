//! Many TCP streams over one port: IP packets in, IP packets out, without I/O.
//!
//! The owner is the port of a NIC. It gives [`Streams::input`] the IP packets that arrive for its
//! addresses and carry TCP or ICMP, and calls [`Streams::poll`] when there is something to do
//! ([`Streams::deadline`]), or after calls. Packets leave through its [`Egress`], which resolves
//! neighbours and adds the link's header. Time is an argument. A consumer listens, connects,
//! accepts, writes into the rings and reads out of them in place, closes, and learns by
//! [`Streams::next_event`] what happened.
//!
//! The state machine of each connection is smoltcp's socket (RFC 9293, with window scaling, fast
//! retransmit and Reno). An interface of smoltcp looks at all its sockets for each packet; here
//! each socket is alone, behind a table by addresses and ports, and timers are a heap. So a packet
//! costs the same beside ten thousand idle streams ([`Counters::looks`] counts).
//!
//! What the crate adds to the socket:
//!
//! - listeners with a backlog: a SYN takes no stream and no rings until the peer has answered;
//! - ports and sequence numbers that peers cannot predict, from a secret;
//! - records of former connections instead of sockets in TIME-WAIT; a SYN with a later number than
//!   those of the former connection opens a new one;
//! - resets are taken only with the exact number (RFC 5961), reports of ICMP only while a
//!   connection opens (RFC 5927), answers to strangers go at a bounded rate;
//! - acknowledgements have the highest number that was sent, whatever is sent again just now;
//! - time limits for peers that do not answer, take nothing, or do not close;
//! - a clock that suits a link without routers: timeouts of 50 ms and more instead of one second.
//!
//! What it does not: urgent data, keep-alive, timestamps, PAWS, selective acknowledgement as a
//! sender, ECN, path MTU discovery, fragments. Packets have the size of the link, since the ports
//! of this project reach only neighbours.
//!
//! Peers are not trusted: no packet makes it panic, and all that they feed has a bound
//! (docs/bounds.md). The socket is given only packets whose lengths and checksums were checked. No
//! unsafe code.
//!
//! | module | subject |
//! |---|---|
//! | `streams` | the calls, packets in (`input`), packets out (`output`), listeners (`listen`) |
//! | `stream` | one end of a connection, and what its owner has to learn |
//! | `engine` | the socket of smoltcp, its clock, the egress |
//! | `segment` | packets taken apart and checked |
//! | `half`, `former` | half-open and former connections |
//! | `untaken` | connections of each peer that no owner has taken |
//! | `address`, `table`, `timers`, `limiter` | names, the table, timers, rates |
//! | [`config`], `counters`, `error` | bounds and settings, what was counted, why calls fail |
#![no_std]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod address;
pub mod config;
mod counters;
mod engine;
mod error;
mod former;
mod half;
mod limiter;
mod segment;
mod stream;
mod streams;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
mod timers;
mod untaken;

pub use config::Config;
pub use counters::{Counters, Dropped};
pub use engine::{Egress, Ready};
pub use error::Error;
pub use streams::{End, Event, Happened, Info, ListenerId, Polled, Progress, StreamId, Streams, Unreachable};
