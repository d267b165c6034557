//! iWARP: RDMA over a byte stream, as MPA, DDP and RDMAP define it, without I/O.
//!
//! Each header and message has a `Repr`, its decoded form, which is parsed from bytes and emitted
//! into them. Parsing never panics: for invalid bytes it returns an [`Error`] that names the field.
//! No unsafe code. Only the engine allocates, when it is created, and to hold an FPDU of which a
//! part has come.
//!
//! - [`mpa`]: the Request and Reply that begin a stream, what both ends agree on, and the FPDUs, in
//!   which the stream then carries segments, with their CRC.
//! - [`ddp`]: the headers of segments, and how a message is divided into them.
//! - [`rdmap`]: the messages: RDMA Write, RDMA Read, the four Sends, Terminate.
//! - [`engine`]: what one end of a stream does after its set-up, segment by segment: work requests
//!   go in, bytes come out; the peer's bytes go in, and their payload is placed. Two engines of one
//!   process can pass segments to each other without a stream.
//!
//! It opens no connection and reaches no memory. Bytes of the stream go in as slices, cut anywhere,
//! and come out into room that the caller has, which may be as little as one byte. The caller owns
//! the byte stream (TCP) with its retransmissions, the regions of memory, the Receives, and the
//! timers: how long to wait for a Request or a Reply, and how long a stream stays open behind a
//! Terminate. Nothing here depends on the time.
//!
//! It does not do these: markers (the sender of a Request or Reply that asks for them is refused,
//! as Linux refuses it), peer-to-peer set-up by the initiator (as responder it agrees to one), the
//! atomic operations and immediate data of RFC 7306, and datagrams.
//!
//! References: RFC 5044 (MPA), RFC 6581 (enhanced set-up), RFC 5041 (DDP), RFC 5040 (RDMAP).
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bytes;
pub mod ddp;
pub mod engine;
mod error;
pub mod mpa;
pub mod rdmap;

pub use error::Error;
