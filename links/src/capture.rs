//! Capture files: the frames that cross a link, in the classic format of libpcap with nanoseconds.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use platform::Instant;

use crate::{Counters, Link, OpenError, PollFd, Wire};

/// Magic number of the format with nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// The link type of Ethernet.
const ETHERNET: u32 = 1;
/// The size to which frames are cut: larger than every frame.
const SNAP: u32 = 1 << 18;
/// How long a captured frame may stay in the process before it is written to the file.
const PATIENCE: Duration = Duration::from_millis(100);

/// A capture file, which any number of links may share.
#[derive(Clone)]
pub struct Capture(Arc<Mutex<Inner>>);

struct Inner {
    writer: Box<dyn Write + Send>,
    /// The time of day when the file was created, and the time of the first frame.
    epoch: Duration,
    origin: Option<Instant>,
    /// When the oldest frame was captured that may not be in the file yet.
    dirty: Option<Instant>,
    error: Option<io::ErrorKind>,
}

impl Capture {
    /// Creates the file, or empties an existing one.
    pub fn create(path: &Path) -> Result<Capture, OpenError> {
        let failed = |e| OpenError::system(format!("write the capture {}", path.display()), e);
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let file = BufWriter::with_capacity(1 << 16, File::create(path).map_err(failed)?);
        let capture = Capture::to(file, epoch).map_err(failed)?;
        capture.flush();
        Ok(capture)
    }

    /// Writes to any writer. `epoch` is the time of day of the first frame, since 1970.
    pub fn to(mut writer: impl Write + Send + 'static, epoch: Duration) -> io::Result<Capture> {
        let version = 2_u32 | 4 << 16;
        for word in [MAGIC, version, 0, 0, SNAP, ETHERNET] {
            writer.write_all(&word.to_le_bytes())?;
        }
        let inner = Inner { writer: Box::new(writer), epoch, origin: None, dirty: None, error: None };
        Ok(Capture(Arc::new(Mutex::new(inner))))
    }

    /// Captures the frames that cross `link`.
    pub fn tap<L: Link>(&self, link: L) -> Captured<L> {
        Captured { link, capture: self.clone() }
    }

    /// The error because of which frames are missing at the end of the file, if the system could
    /// not write them.
    pub fn error(&self) -> Option<io::ErrorKind> {
        self.inner().error
    }

    /// Writes the frames that wait in the process to the file.
    pub fn flush(&self) {
        self.inner().flush();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn write(&mut self, frame: &[u8], now: Instant) {
        if self.error.is_some() {
            return;
        }
        let time = self.epoch + now.since(*self.origin.get_or_insert(now));
        let len = frame.len() as u32;
        let mut head = [0; 16];
        let words = [time.as_secs() as u32, time.subsec_nanos(), len, len];
        for (place, word) in head.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let written = self.writer.write_all(&head).and_then(|()| self.writer.write_all(frame));
        self.note(written);
        self.dirty.get_or_insert(now);
    }

    fn flush(&mut self) {
        if self.error.is_none() {
            let flushed = self.writer.flush();
            self.note(flushed);
        }
        self.dirty = None;
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.error = Some(error.kind());
        }
    }

    /// The latest time at which captured frames must be in the file.
    fn deadline(&self) -> Option<Instant> {
        self.dirty.map(|since| since + PATIENCE)
    }
}

/// A link whose frames are captured in both directions.
pub struct Captured<L> {
    link: L,
    capture: Capture,
}

impl<L> Captured<L> {
    fn keep(&self, now: Instant) {
        let mut inner = self.capture.inner();
        if inner.deadline().is_some_and(|deadline| deadline <= now) {
            inner.flush();
        }
    }
}

impl<L: Link> Wire for Captured<L> {
    fn send(&mut self, frame: &[u8], now: Instant) {
        let before = self.link.counters().sent;
        self.link.send(frame, now);
        // A frame that the link dropped did not cross it, so it is not captured.
        if self.link.counters().sent != before {
            self.capture.inner().write(frame, now);
        }
    }

    fn has_room(&self) -> bool {
        self.link.has_room()
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        let received = self.link.receive(into, now);
        match received.and_then(|len| into.get(..len)) {
            Some(frame) => self.capture.inner().write(frame, now),
            None => self.keep(now),
        }
        received
    }

    fn flush(&mut self, now: Instant) {
        self.link.flush(now);
        self.keep(now);
    }

    fn up(&self) -> bool {
        self.link.up()
    }

    fn deadline(&self) -> Option<Instant> {
        self.link.deadline().into_iter().chain(self.capture.inner().deadline()).min()
    }
}

impl<L: Link> Link for Captured<L> {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.link.poll_fd()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}

impl<L> Drop for Captured<L> {
    fn drop(&mut self) {
        self.capture.flush();
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::DataLink;
    use pcap_file::pcap::PcapReader;

    use super::*;
    use crate::{MAX_FRAME, pair};

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn frames(file: &Path) -> Vec<(Duration, Vec<u8>)> {
        let mut reader = PcapReader::new(File::open(file).unwrap()).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ETHERNET);
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            assert_eq!(packet.orig_len as usize, packet.data.len());
            frames.push((packet.timestamp, packet.data.into_owned()));
        }
        frames
    }

    #[test]
    fn both_directions_are_in_the_file_with_their_times() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("link.pcap");
        let capture = Capture::create(&file).unwrap();
        let (a, mut b) = pair();
        let mut a = capture.tap(a);
        assert!(a.up() && a.has_room() && a.poll_fd().is_none());
        a.send(&[1; 60], at(5_000));
        b.send(&[2; MAX_FRAME], at(6_000));
        let mut into = vec![0; MAX_FRAME];
        assert_eq!(a.receive(&mut into, at(7_500)), Some(MAX_FRAME));
        assert_eq!(a.receive(&mut into, at(8_000)), None);
        // Frames that the link drops did not cross it.
        a.send(&[3; 5], at(9_000));
        // The file is complete after a while, even if nothing else happens.
        assert_eq!(a.deadline(), Some(at(5_000) + PATIENCE));
        a.flush(a.deadline().unwrap());
        assert_eq!(a.deadline(), None);
        let found = frames(&file);
        assert_eq!(found.len(), 2);
        assert_eq!((&found[0].1[..], &found[1].1[..]), (&[1; 60][..], &[2; MAX_FRAME][..]));
        assert_eq!(found[1].0 - found[0].0, Duration::from_nanos(2_500));
        let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert!(today >= found[0].0 && today - found[0].0 < Duration::from_secs(3600));
        assert_eq!((a.counters().sent, capture.error()), (1, None));
    }

    #[test]
    fn two_links_share_a_file_which_is_complete_when_they_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("links.pcap");
        let capture = Capture::create(&file).unwrap();
        for n in 0..2 {
            let (a, _b) = pair();
            capture.tap(a).send(&[n; 20], at(n.into()));
        }
        assert_eq!(frames(&file).len(), 2);
        assert!(Capture::create(folder.path()).is_err_and(|e| e.to_string().contains("write the capture")));
    }

    #[test]
    fn a_place_that_takes_no_more_does_not_stop_the_link() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let taken = bytes.len().min(self.0);
                self.0 -= taken;
                if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let capture = Capture::to(Full(100), Duration::ZERO).unwrap();
        let (a, mut b) = pair();
        let mut a = capture.tap(a);
        for _ in 0..3 {
            a.send(&[1; 60], at(0));
        }
        assert_eq!(capture.error(), Some(io::ErrorKind::StorageFull));
        let mut into = [0; 60];
        assert_eq!((0..3).filter(|_| b.receive(&mut into, at(0)).is_some()).count(), 3);
    }
}
