//! The streams of two ends over a simulated link, and of one end against a hostile peer.

mod ends;
mod events;
mod hostile;
mod listen;
mod raw;
mod rings;
mod seeds;
mod work;
