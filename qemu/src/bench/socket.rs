//! The rate of a UNIX stream socket from one thread to another: the baseline of a link over one.

use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of a write, as the link writes them.
const WRITE: usize = 64 << 10;
/// Bytes of a read, as the link reads them.
const READ: usize = 256 << 10;
/// How long a rate is measured.
const TIME: Duration = Duration::from_millis(500);
/// Bytes of a frame besides the payload: its length in the stream, the headers of Ethernet, IPv4
/// and UDP, the BTH and the RETH, and the ICRC.
const OVERHEAD: usize = 4 + 14 + 20 + 8 + 12 + 16 + 4;
/// Payload of the frames.
const SMALL: usize = 64;
const LARGE: usize = 4096;

/// Small frames in a second, and MB of payload in a second in large frames.
pub fn rates() -> Result<(f64, f64)> {
    Ok((frames(SMALL)?, frames(LARGE)? * LARGE as f64 / 1e6))
}

/// How many frames with this payload go through a socket in a second.
fn frames(payload: usize) -> Result<f64> {
    let (mut from, mut to) = UnixStream::pair()?;
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; READ];
        while matches!(to.read(&mut buffer), Ok(1..)) {}
    });
    let (buffer, begin) = (vec![0; WRITE], Instant::now());
    let mut bytes = 0;
    while begin.elapsed() < TIME {
        from.write_all(&buffer)?;
        bytes += buffer.len();
    }
    drop(from);
    // It has panicked, or ended: in both cases there is nothing left to measure.
    let _ = reader.join();
    Ok(bytes as f64 / begin.elapsed().as_secs_f64() / (payload + OVERHEAD) as f64)
}
