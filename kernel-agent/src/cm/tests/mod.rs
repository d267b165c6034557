//! Tests of the CM state machine against itself: two of them, or one with both ends, joined by a
//! network that loses, repeats and delays datagrams.

mod abuse;
mod counters;
mod forged;
mod handshake;
mod linux;
mod lossy;
mod net;
mod release;
mod resolve;
mod transitions;
mod unreliable;
