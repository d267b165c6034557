//! The four ways from endpoint A's memory to endpoint B's, on one machine.
//!
//! Each piece of the payload is moved in each way before the next piece is loaded. After each way
//! the copy is compared with the piece byte for byte. So the digest of the payload, which the
//! launcher computes once, is the digest of each copy too.
//!
//! `@moved LENGTH` on the console tells the launcher how far the transfer has come.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt::Display;
use core::time::Duration;

use common::{Failure, Node, Trying, done};
use kernel::println;
use platform::{DmaBuffer, Platform};

use crate::IN_FLIGHT;
use crate::ends::{Outcome, Piece, Sink, Source, endpoints};
use crate::payload::Payload;

type Way = fn(&Transfer, Piece) -> Outcome;

/// The names of the ways, in their order.
pub const NAMES: [&str; 4] = ["send", "write", "read", "direct"];

const WAYS: [Way; 4] = [
    |transfer, piece| transfer.by_send(piece),
    |Transfer { source, sink }, piece| source.write_all(piece, sink.remote()?),
    |Transfer { source, sink }, piece| sink.read_all(piece, source.remote()?),
    |Transfer { source, sink }, piece| source.write_all_direct(piece, sink.remote()?),
];

/// Both ends.
struct Transfer {
    source: Source,
    sink: Sink,
}

/// Moves the payload from an endpoint of one NIC to one of another in each way, and prints a line
/// for each.
pub fn run_all(node: &Node, nics: [usize; 2], payload: &mut Payload) -> Outcome {
    let domain = |nic| node.nic(nic)?.domain().trying("a domain");
    let endpoint = |nic| -> Outcome<_> {
        Ok(Arc::new(endpoints(&domain(nic)?, node.privileged).build().trying("an endpoint")?))
    };
    let (a, b) = (endpoint(nics[0])?, endpoint(nics[1])?);
    common::connect(&a, &b)?;
    let source = Source::new(&a, &payload.buffer, node.privileged)?;
    let transfer = Transfer { source, sink: Sink::new(&b, payload.buffer.len())? };
    let copy = transfer.sink.buffer().clone();
    move_all(&node.platform, payload, &copy, &NAMES, |way, piece| WAYS[way](&transfer, piece))
}

/// Moves each piece of the payload to `copy` in each of these ways, compares the copy with the
/// piece, and prints a line for each way. `by` moves a piece in the way with the given number.
pub fn move_all<Name: Display>(
    platform: &Arc<dyn Platform>,
    payload: &mut Payload,
    copy: &DmaBuffer,
    ways: &[Name],
    mut by: impl FnMut(usize, Piece) -> Outcome,
) -> Outcome {
    let mut times = vec![Duration::ZERO; ways.len()];
    while payload.next()? {
        let piece = Piece(payload.length);
        for (way, (name, time)) in ways.iter().zip(&mut times).enumerate() {
            let failed = |why| Failure::new(format!("transfer {name}: {why}"));
            piece.spoil(copy)?;
            let begin = platform.now();
            by(way, piece).map_err(|failure| failed(format!("{failure}")))?;
            *time += platform.now() - begin;
            if !payload.equals(copy) {
                return Err(failed("what arrived is not what was sent".into()));
            }
            println!("@moved {}", piece.0);
        }
    }
    for (name, time) in ways.iter().zip(times) {
        report(name, payload.bytes, time, &payload.sha256());
    }
    Ok(())
}

/// Memory for a copy of the longest piece.
pub fn memory_for_copy(platform: &Arc<dyn Platform>, payload: &Payload) -> Outcome<Arc<DmaBuffer>> {
    let copy = DmaBuffer::new(platform, payload.buffer.len(), 4096).map_err(|_| "out of memory");
    copy.map(Arc::new).trying("memory for the copy")
}

/// Posts each message of a piece, with up to [`IN_FLIGHT`] outstanding, and waits for each with
/// `done`.
pub fn pipeline<E: Display>(
    piece: Piece,
    mut post: impl FnMut(usize) -> Result<(), E>,
    mut done: impl FnMut(usize) -> Outcome,
) -> Outcome {
    let (count, mut posted) = (piece.messages(), 0);
    for completed in 0..count {
        while posted < count && posted < completed + IN_FLIGHT {
            post(posted).trying("posting")?;
            posted += 1;
        }
        done(completed)?;
    }
    Ok(())
}

/// Prints the line of a way.
pub fn report(way: impl Display, bytes: u64, time: Duration, digest: &[u8; 32]) {
    let seconds = time.as_secs_f64();
    let rate = match bytes {
        0 => "-".into(),
        _ => format!("{:.1}", bytes as f64 / seconds / 1e6),
    };
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("transfer {way}: {bytes} bytes in {seconds:.6} s, {rate} MB/s, sha256 {digest}");
}

impl Transfer {
    /// Send and Receive.
    fn by_send(&self, piece: Piece) -> Outcome {
        let Transfer { source, sink } = self;
        let count = piece.messages();
        let (mut receives, mut sends) = (VecDeque::new(), VecDeque::new());
        let (mut posted, mut sent) = (0, 0);
        for received in 0..count {
            while posted < count.min(received + 2 * IN_FLIGHT) {
                receives.push_back(sink.receive(piece, posted));
                posted += 1;
            }
            // Each Send is posted after its Receive, so no Send finds the queue empty.
            while sent < count.min(received + IN_FLIGHT) {
                sends.push_back(source.send(piece, sent));
                sent += 1;
            }
            if let (Some(receive), Some(send)) = (receives.pop_front(), sends.pop_front()) {
                sink.received(receive, piece, received)?;
                done(send)?;
            }
        }
        Ok(())
    }
}
