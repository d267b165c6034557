//! The transfer through VIPL: `face=via` on the command line. Two virtual interfaces of one machine
//! on each reliable level, and four ways from A's memory to B's on each: Send, RDMA Write, RDMA
//! Write with immediate data, RDMA Read.

use alloc::format;
use alloc::vec::Vec;

use common::via_pair::{End, Pair, Queue};
use common::{Failure, Node, Trying};
use vipl::{Descriptor, ReliabilityLevel, Status};

use crate::MESSAGE;
use crate::ends::{Outcome, Piece};
use crate::payload::Payload;
use crate::ways::{memory_for_copy, move_all, pipeline};

/// The levels on which no message is lost.
const LEVELS: [(&str, ReliabilityLevel); 2] =
    [("reliable delivery", ReliabilityLevel::Delivery), ("reliable reception", ReliabilityLevel::Reception)];

type Way = fn(&Pair, Piece) -> Outcome;

const WAYS: [(&str, Way); 4] = [
    ("send", send_all),
    ("write", write_all),
    ("write-immediate", write_all_with_immediate),
    ("read", read_all),
];

/// Moves the payload in each way on each level and prints a line for each.
pub fn run_all(node: &Node, payload: &mut Payload) -> Outcome {
    let copy = memory_for_copy(&node.platform, payload)?;
    // With a second NIC the two ends are on different adapters.
    let nics = [0, node.agents.len().min(2) - 1];
    let connect = |(_, level)| Pair::connect(node, nics, [&payload.buffer, &copy], level, MESSAGE);
    let pairs = LEVELS.into_iter().map(connect).collect::<Outcome<Vec<Pair>>>()?;
    let names: Vec<_> = LEVELS
        .iter()
        .flat_map(|(level, _)| WAYS.iter().map(move |(way, _)| format!("{way}, {level}")))
        .collect();
    move_all(&node.platform, payload, &copy, &names, |way, piece| {
        WAYS[way % WAYS.len()].1(&pairs[way / WAYS.len()], piece)
    })?;
    pairs.into_iter().try_for_each(Pair::close)
}

/// Formats descriptor `n` of an end's queue, and posts it.
fn post(
    end: &End,
    queue: Queue,
    n: usize,
    format: impl FnOnce(Descriptor<'_>) -> Result<(), platform::OutOfBounds>,
) -> Outcome {
    let descriptor = end.descriptor(queue, n)?;
    format(descriptor).trying("formatting a descriptor")?;
    end.post(queue, &descriptor)
}

/// Send and Receive. Each Receive is posted before its Send.
fn send_all(Pair { a, b }: &Pair, piece: Piece) -> Outcome {
    let post = |n| {
        let (offset, length) = piece.message(n);
        let ((to, some), (from, _)) = (b.segments(offset, length), a.segments(offset, length));
        post(b, Queue::Receive, n, |descriptor| descriptor.receive(&to[..some]))?;
        post(a, Queue::Send, n, |descriptor| descriptor.send(&from[..some], None))
    };
    pipeline(piece, post, |n| {
        let length = b.done(Queue::Receive, n, Status::OP_RECEIVE)?.length();
        if length as usize != piece.message(n).1 {
            return Err(Failure::new(format!("message {n} has {length} bytes")));
        }
        a.done(Queue::Send, n, Status::empty()).map(drop)
    })
}

/// RDMA Write. A completion on Reliable Delivery does not prove that the data has arrived; an RDMA
/// Read of no bytes after all Writes does.
fn write_all(Pair { a, b }: &Pair, piece: Piece) -> Outcome {
    let post_write = |n| {
        let (offset, length) = piece.message(n);
        let (from, some) = a.segments(offset, length);
        post(a, Queue::Send, n, |descriptor| descriptor.rdma_write(&b.remote(offset), &from[..some], None))
    };
    pipeline(piece, post_write, |n| a.done(Queue::Send, n, Status::OP_RDMA_WRITE).map(drop))?;
    let last = piece.messages();
    post(a, Queue::Send, last, |descriptor| descriptor.rdma_read(&b.remote(0), &[]))?;
    a.done(Queue::Send, last, Status::OP_RDMA_READ).map(drop)
}

/// RDMA Write with immediate data: a Receive at B reports each message. The immediate data is the
/// message's number.
fn write_all_with_immediate(Pair { a, b }: &Pair, piece: Piece) -> Outcome {
    let post = |n| {
        let (offset, length) = piece.message(n);
        let ((from, some), to) = (a.segments(offset, length), b.remote(offset));
        post(b, Queue::Receive, n, |descriptor| descriptor.receive(&[]))?;
        let number = Some(n as u32);
        post(a, Queue::Send, n, |descriptor| descriptor.rdma_write(&to, &from[..some], number))
    };
    pipeline(piece, post, |n| {
        let number = b.done(Queue::Receive, n, Status::OP_REMOTE_RDMA_WRITE)?.immediate();
        if number != n as u32 {
            return Err(Failure::new(format!("number {number}, not {n}")));
        }
        a.done(Queue::Send, n, Status::OP_RDMA_WRITE).map(drop)
    })
}

/// RDMA Read, by B.
fn read_all(Pair { a, b }: &Pair, piece: Piece) -> Outcome {
    let post = |n| {
        let (offset, length) = piece.message(n);
        let (to, some) = b.segments(offset, length);
        post(b, Queue::Send, n, |descriptor| descriptor.rdma_read(&a.remote(offset), &to[..some]))
    };
    pipeline(piece, post, |n| b.done(Queue::Send, n, Status::OP_RDMA_READ).map(drop))
}
