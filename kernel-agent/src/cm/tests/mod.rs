//! The connection manager against itself: two of them, or one with both ends, joined by a network that loses, repeats
//! and delays.

mod abuse;
mod handshake;
mod linux;
mod lossy;
mod net;
mod release;
mod resolve;
mod transitions;
