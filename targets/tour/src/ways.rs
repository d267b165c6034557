//! The four ways from endpoint A's memory to endpoint B's, on one machine.
//!
//! Each piece of the payload is moved in each way before the next piece is loaded. After each way
//! the copy is compared with the piece byte for byte. So the digest of the payload, which the
//! launcher takes once, is the digest of each copy too.
//!
//! `@moved LENGTH` on the console tells the launcher how far the transfer has come.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use common::{Failure, Pair, Trying};
use kernel::println;
use platform::Platform;

use crate::IN_FLIGHT;
use crate::ends::{Outcome, Piece, Sink, Source};
use crate::payload::Payload;

type Way = fn(&Transfer<'_>, Piece) -> Outcome;

/// The names of the ways, in their order.
pub const NAMES: [&str; 4] = ["send", "write", "read", "direct"];

const WAYS: [Way; 4] = [
    |transfer, piece| transfer.by_send(piece),
    |Transfer { source, sink, .. }, piece| source.write_all(piece, sink.remote()),
    |Transfer { source, sink, .. }, piece| sink.read_all(piece, source.remote()),
    |Transfer { source, sink, .. }, piece| source.write_all_direct(piece, sink.remote()),
];

/// Both ends.
struct Transfer<'a> {
    pair: &'a Pair,
    source: Source<'a>,
    sink: Sink<'a>,
}

/// Moves the payload in each way and prints a line for each.
pub fn run_all(platform: &Arc<dyn Platform>, pair: &Pair, payload: &mut Payload) -> Outcome {
    let source = Source::new(&pair.a, &payload.buffer)?;
    let sink = Sink::new(platform, &pair.b, payload.buffer.len())?;
    let transfer = Transfer { pair, source, sink };
    let mut times = [Duration::ZERO; WAYS.len()];
    while payload.next()? {
        let piece = Piece(payload.length);
        for ((name, way), time) in NAMES.iter().zip(&WAYS).zip(&mut times) {
            let failed = |why| Failure::new(format!("transfer {name}: {why}"));
            transfer.sink.spoil(piece)?;
            let begin = platform.now();
            way(&transfer, piece).map_err(|failure| failed(format!("{failure}")))?;
            *time += platform.now() - begin;
            if !payload.equals(&transfer.sink.buffer) {
                return Err(failed("what arrived is not what was sent".into()));
            }
            println!("@moved {}", piece.0);
        }
    }
    for (name, time) in NAMES.iter().zip(times) {
        report(name, payload.bytes, time, &payload.sha256());
    }
    transfer.source.free()?;
    transfer.sink.free()
}

/// Prints the line of a way.
pub fn report(way: &str, bytes: u64, time: Duration, digest: &[u8; 32]) {
    let seconds = time.as_secs_f64();
    let rate = match bytes {
        0 => "-".into(),
        _ => format!("{:.1}", bytes as f64 / seconds / 1e6),
    };
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("transfer {way}: {bytes} bytes in {seconds:.6} s, {rate} MB/s, sha256 {digest}");
}

impl Transfer<'_> {
    /// Send and Receive.
    fn by_send(&self, piece: Piece) -> Outcome {
        let Transfer { pair: Pair { a, .. }, source, sink } = self;
        let count = piece.messages();
        let mut received = 0;
        let mut posted = 0;
        while posted < count.min(2 * IN_FLIGHT) {
            sink.receive(piece, posted).trying("it_post_recv")?;
            posted += 1;
        }
        let mut sent = 0;
        while received < count {
            // Each Send is posted after its Receive, so no Send finds the queue empty.
            while sent < posted && sent < received + IN_FLIGHT {
                source.send(piece, sent).trying("it_post_send")?;
                sent += 1;
            }
            sink.received(piece, received)?;
            a.completion(a.requests)?;
            received += 1;
            if posted < count {
                sink.receive(piece, posted).trying("it_post_recv")?;
                posted += 1;
            }
        }
        Ok(())
    }
}
