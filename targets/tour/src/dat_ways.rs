//! The transfer through DAT: `face=dat` on the command line. Two endpoints of one machine, and four
//! ways from A's memory to B's: Send, RDMA Write, RDMA Write with immediate data, RDMA Read.

use alloc::format;

use common::dat_pair::{End, Pair};
use common::{Failure, Node};
use dat::{CompletionFlags, Dto, LmrTriplet, RmrTriplet};

use crate::MESSAGE;
use crate::ends::{Outcome, Piece};
use crate::payload::Payload;
use crate::ways::{memory_for_copy, move_all, pipeline};

const PLAIN: CompletionFlags = CompletionFlags::DEFAULT;

type Way = fn(&Ends, Piece) -> Outcome;

const WAYS: [(&str, Way); 4] = [
    ("send", |ends, piece| ends.send_all(piece)),
    ("write", |ends, piece| ends.write_all(piece)),
    ("write-immediate", |ends, piece| ends.write_all_with_immediate(piece)),
    ("read", |ends, piece| ends.read_all(piece)),
];

/// Moves the payload in each way and prints a line for each.
pub fn run_all(node: &Node, payload: &mut Payload) -> Outcome {
    let copy = memory_for_copy(&node.platform, payload)?;
    // With a second NIC the two endpoints are on different adapters.
    let pair = Pair::connect(node, [0, node.agents.len().min(2) - 1], [&payload.buffer, &copy], MESSAGE)?;
    let ends = Ends(pair);
    let names = WAYS.map(|(name, _)| name);
    move_all(&node.platform, payload, &copy, &names, |way, piece| WAYS[way].1(&ends, piece))?;
    ends.0.close()
}

/// Both ends.
struct Ends(Pair);

/// The part of an end's memory for a message; no segment if the message has no bytes.
fn segments(end: &End, piece: Piece, n: usize) -> ([LmrTriplet; 1], usize) {
    let (offset, length) = piece.message(n);
    ([end.segment(offset, length)], usize::from(length > 0))
}

/// The memory of a message, as the peer names it.
fn remote(end: &End, piece: Piece, n: usize) -> RmrTriplet {
    let (offset, length) = piece.message(n);
    end.remote(offset, length)
}

impl Ends {
    /// Send and Receive. Each Receive is posted before its Send.
    fn send_all(&self, piece: Piece) -> Outcome {
        let Pair { a, b } = &self.0;
        let post = |n| {
            let ((to, some), (from, _)) = (segments(b, piece, n), segments(a, piece, n));
            b.ia.ep_post_recv(b.ep, &to[..some], n as u64, PLAIN)?;
            a.ia.ep_post_send(a.ep, &from[..some], n as u64, PLAIN)
        };
        pipeline(piece, post, |n| {
            let received = b.done(b.receives, n as u64, Dto::RECEIVE)?;
            let length = received.dto().map(|done| done.transferred_length);
            if length != Some(piece.message(n).1 as u64) {
                return Err(Failure::new(format!("message {n} has {length:?} bytes")));
            }
            a.done(a.requests, n as u64, Dto::SEND).map(drop)
        })
    }

    /// RDMA Write.
    fn write_all(&self, piece: Piece) -> Outcome {
        let Pair { a, b } = &self.0;
        let post = |n| {
            let (from, some) = segments(a, piece, n);
            a.ia.ep_post_rdma_write(a.ep, &from[..some], n as u64, &remote(b, piece, n), PLAIN)
        };
        pipeline(piece, post, |n| a.done(a.requests, n as u64, Dto::RDMA_WRITE).map(drop))
    }

    /// RDMA Write with immediate data: an event at B reports each message. The immediate data is
    /// the message's number.
    fn write_all_with_immediate(&self, piece: Piece) -> Outcome {
        let Pair { a, b } = &self.0;
        let post = |n| {
            let ((from, some), to) = (segments(a, piece, n), remote(b, piece, n));
            b.ia.ep_post_recv(b.ep, &[], n as u64, PLAIN)?;
            a.ia.ib_post_rdma_write_with_immed(a.ep, &from[..some], n as u64, &to, n as u32, PLAIN)
        };
        pipeline(piece, post, |n| {
            let arrived = b.done(b.receives, n as u64, Dto::IB_RECV_IMMED)?;
            if arrived.extension.map(|data| data.immed) != Some(n as u32) {
                return Err(Failure::new(format!("another number than {n}: {arrived:?}")));
            }
            a.done(a.requests, n as u64, Dto::IB_RDMA_WRITE_IMMED).map(drop)
        })
    }

    /// RDMA Read, by B.
    fn read_all(&self, piece: Piece) -> Outcome {
        let Pair { a, b } = &self.0;
        let post = |n| {
            let (to, some) = segments(b, piece, n);
            b.ia.ep_post_rdma_read(b.ep, &to[..some], n as u64, &remote(a, piece, n), PLAIN)
        };
        pipeline(piece, post, |n| b.done(b.requests, n as u64, Dto::RDMA_READ).map(drop))
    }
}
