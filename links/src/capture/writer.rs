//! The buffer between links and a capture's file, and the thread that writes the file.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use platform::Instant;

use super::Missing;

/// The most bytes that wait to be written; the thread may be writing as many.
const WAITING: usize = 4 << 20;
/// So many bytes are written at once, fewer when the first of them has waited for [`PATIENCE`].
const DUE: usize = 1 << 16;
const PATIENCE: Duration = Duration::from_millis(100);
/// How long [`Shared::flush`] waits for the file.
const LINGER: Duration = Duration::from_secs(2);

/// What the links and the writing thread share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// There is more to write, or it is urgent.
    work: Condvar,
    /// There is less to write.
    done: Condvar,
}

/// The lock is held for the copy of a frame at most.
struct State {
    /// The bytes that wait, in whole records, and how many frames they have.
    bytes: Vec<u8>,
    frames: u64,
    /// Whether the thread is writing, and how many frames.
    writes: bool,
    writing: u64,
    /// Frames that are not in the file and will not be.
    lost: u64,
    error: Option<io::ErrorKind>,
    /// The time of day when the file was created, and the time of the first frame.
    epoch: Duration,
    origin: Option<Instant>,
    /// Somebody waits for the file; that took too long once.
    urgent: bool,
    stuck: bool,
    /// No link is left.
    closed: bool,
}

impl Shared {
    /// A capture whose file begins with `head`.
    pub fn new(head: Vec<u8>, epoch: Duration) -> Shared {
        let state = State {
            bytes: head,
            frames: 0,
            writes: false,
            writing: 0,
            lost: 0,
            error: None,
            epoch,
            origin: None,
            urgent: true,
            stuck: false,
            closed: false,
        };
        Shared { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Captures a frame, if there is room for it.
    pub fn keep(&self, frame: &[u8], now: Instant) {
        let mut state = self.lock();
        let before = state.bytes.len();
        state.keep(frame, now);
        let after = state.bytes.len();
        drop(state);
        // The thread waits for the first bytes, and then until they are due.
        if before == 0 && after > 0 || before < DUE && after >= DUE {
            self.work.notify_one();
        }
    }

    /// Waits until all is written, for [`LINGER`] at most, and not at all for a file that was too
    /// slow before and has taken nothing since.
    pub fn flush(&self) {
        let mut state = self.lock();
        if state.stuck {
            return;
        }
        state.urgent = true;
        self.work.notify_one();
        let (mut state, wait) = self
            .done
            .wait_timeout_while(state, LINGER, |state| state.error.is_none() && state.waits())
            .unwrap_or_else(PoisonError::into_inner);
        state.stuck = wait.timed_out();
    }

    pub fn missing(&self) -> Option<Missing> {
        let state = self.lock();
        let frames = state.lost + state.frames + state.writing;
        (frames > 0 || state.error.is_some()).then_some(Missing { frames, error: state.error })
    }

    /// Ends the thread when it has written all.
    pub fn close(&self) {
        self.lock().closed = true;
        self.work.notify_one();
    }

    /// Writes what is captured to what `open` opens, until the capture is closed or a write fails.
    pub fn run<W: Write>(&self, open: impl FnOnce() -> io::Result<W>) {
        if let Err(error) = open().and_then(|mut file| self.write(&mut file)) {
            let mut state = self.lock();
            state.lost += state.frames + state.writing;
            (state.frames, state.writing, state.bytes) = (0, 0, Vec::new());
            (state.writes, state.error) = (false, Some(error.kind()));
            self.done.notify_all();
        }
    }

    fn write(&self, file: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::new();
        while self.take(&mut bytes) {
            file.write_all(&bytes)?;
            file.flush()?;
            bytes.clear();
            let mut state = self.lock();
            (state.writes, state.writing, state.stuck) = (false, 0, false);
            self.done.notify_all();
        }
        Ok(())
    }

    /// Waits for bytes that are due and exchanges them for `bytes`, which is empty. False if no
    /// more will come.
    fn take(&self, bytes: &mut Vec<u8>) -> bool {
        let idle = |state: &mut State| state.bytes.is_empty() && !state.closed;
        let state = self.work.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        let early = |state: &mut State| state.bytes.len() < DUE && !state.urgent && !state.closed;
        let wait = self.work.wait_timeout_while(state, PATIENCE, early);
        let (mut state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        if state.bytes.is_empty() {
            return false;
        }
        std::mem::swap(&mut state.bytes, bytes);
        (state.writes, state.urgent) = (true, false);
        state.writing = std::mem::take(&mut state.frames);
        true
    }
}

impl State {
    fn keep(&mut self, frame: &[u8], now: Instant) {
        let time = self.epoch + now.since(*self.origin.get_or_insert(now));
        let len = frame.len() as u32;
        let head = [time.as_secs() as u32, time.subsec_nanos(), len, len].map(u32::to_le_bytes);
        let size = head.as_flattened().len() + frame.len();
        if self.error.is_some() || self.bytes.len() + size > WAITING {
            self.lost += 1;
            return;
        }
        self.bytes.extend_from_slice(head.as_flattened());
        self.bytes.extend_from_slice(frame);
        self.frames += 1;
    }

    /// Whether something is not in the file yet.
    fn waits(&self) -> bool {
        self.writes || !self.bytes.is_empty()
    }
}
