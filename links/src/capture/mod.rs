//! Capture files: the frames that cross a link, in the classic format of libpcap with nanoseconds.
//!
//! A thread of the capture writes the file, and a bounded buffer is in between. So a link never
//! waits for a pipe whose reader is slow, nor for a disk that hangs: frames that find no room in
//! the buffer are left out of the capture and counted.

mod writer;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use platform::Instant;

use crate::{Counters, Link, OpenError, PollFd, Wire};
use writer::Shared;

/// Magic number of the format with nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// The link type of Ethernet.
const ETHERNET: u32 = 1;
/// The size to which frames are cut: larger than every frame.
const SNAP: u32 = 1 << 18;

/// A capture file, which any number of links may share.
#[derive(Clone)]
pub struct Capture(Arc<Handle>);

/// Ends the writer when the last user is gone.
struct Handle(Arc<Shared>);

/// What is missing in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// How many frames: they found no room in the buffer, or could not be written.
    pub frames: u64,
    /// The error because of which the file ends early.
    pub error: Option<io::ErrorKind>,
}

impl Capture {
    /// Creates the file, or empties an existing one. A named pipe need not have a reader yet.
    pub fn create(path: &Path) -> Result<Capture, OpenError> {
        let failed = |e| OpenError::system(format!("write the capture {}", path.display()), e);
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // To open a pipe takes until somebody opens it for reading.
        if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
            let path = path.to_owned();
            return Capture::start(move || File::create(path), epoch).map_err(failed);
        }
        let file = File::create(path).map_err(failed)?;
        Capture::start(move || Ok(file), epoch).map_err(failed)
    }

    /// Writes to any writer. `epoch` is the time of day of the first frame, since 1970.
    pub fn to(writer: impl Write + Send + 'static, epoch: Duration) -> io::Result<Capture> {
        Capture::start(move || Ok(writer), epoch)
    }

    /// Writes to what `open` opens in the writing thread.
    fn start<W: Write>(
        open: impl FnOnce() -> io::Result<W> + Send + 'static,
        epoch: Duration,
    ) -> io::Result<Capture> {
        let version = 2_u32 | 4 << 16;
        let head = [MAGIC, version, 0, 0, SNAP, ETHERNET].map(u32::to_le_bytes);
        let handle = Handle(Arc::new(Shared::new(head.concat(), epoch)));
        let shared = handle.0.clone();
        std::thread::Builder::new().name("capture".into()).spawn(move || shared.run(open))?;
        Ok(Capture(Arc::new(handle)))
    }

    /// Captures the frames that cross `link`.
    pub fn tap<L: Link>(&self, link: L) -> Captured<L> {
        Captured { link, capture: self.clone() }
    }

    /// Waits until the file has all frames, but not for long: for what is too slow they stay
    /// missing.
    pub fn flush(&self) {
        self.0.0.flush();
    }

    /// What the file lacks of the frames until now. Those that wait to be written count as missing,
    /// so ask after [`Capture::flush`].
    pub fn missing(&self) -> Option<Missing> {
        self.0.0.missing()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A link whose frames are captured in both directions.
pub struct Captured<L> {
    link: L,
    capture: Capture,
}

impl<L> Captured<L> {
    fn keep(&self, frame: &[u8], now: Instant) {
        self.capture.0.0.keep(frame, now);
    }
}

impl<L: Link> Wire for Captured<L> {
    fn join(&mut self, group: IpAddr) {
        self.link.join(group);
    }

    fn leave(&mut self, group: IpAddr) {
        self.link.leave(group);
    }

    fn send(&mut self, frame: &[u8], now: Instant) {
        let before = self.link.counters().sent;
        self.link.send(frame, now);
        // A frame that the link dropped did not cross it, so it is not captured.
        if self.link.counters().sent != before {
            self.keep(frame, now);
        }
    }

    fn has_room(&self) -> bool {
        self.link.has_room()
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        let received = self.link.receive(into, now);
        if let Some(frame) = received.and_then(|len| into.get(..len)) {
            self.keep(frame, now);
        }
        received
    }

    fn flush(&mut self, now: Instant) {
        self.link.flush(now);
    }

    fn up(&self) -> bool {
        self.link.up()
    }

    fn deadline(&self) -> Option<Instant> {
        self.link.deadline()
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
    use std::sync::{Condvar, Mutex};

    use pcap_file::DataLink;
    use pcap_file::pcap::PcapReader;
    use rustix::fs::{CWD, Mode};

    use super::*;
    use crate::{MAX_FRAME, pair};

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn frames(file: impl io::Read) -> Vec<(Duration, Vec<u8>)> {
        let mut reader = PcapReader::new(file).unwrap();
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
        capture.flush();
        let found = frames(File::open(&file).unwrap());
        assert_eq!(found.len(), 2);
        assert_eq!((&found[0].1[..], &found[1].1[..]), (&[1; 60][..], &[2; MAX_FRAME][..]));
        assert_eq!(found[1].0 - found[0].0, Duration::from_nanos(2_500));
        let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert!(today >= found[0].0 && today - found[0].0 < Duration::from_secs(3600));
        assert_eq!((a.counters().sent, capture.missing()), (1, None));
        assert_eq!(a.deadline(), None, "the file needs no call of the link");
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
        assert_eq!(frames(File::open(&file).unwrap()).len(), 2);
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
        capture.flush();
        a.send(&[1; 60], at(0));
        assert_eq!(capture.missing(), Some(Missing { frames: 4, error: Some(io::ErrorKind::StorageFull) }));
        let mut into = [0; 60];
        assert_eq!((0..4).filter(|_| b.receive(&mut into, at(0)).is_some()).count(), 4);
    }

    /// A file on a disk that hangs until it is told to go on.
    #[derive(Clone, Default)]
    struct Hanging(Arc<Disk>);

    #[derive(Default)]
    struct Disk {
        written: Mutex<Vec<u8>>,
        goes: Mutex<bool>,
        changed: Condvar,
    }

    impl Hanging {
        fn go_on(&self) {
            *self.0.goes.lock().unwrap() = true;
            self.0.changed.notify_all();
        }
    }

    impl Write for Hanging {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let goes = self.0.goes.lock().unwrap();
            drop(self.0.changed.wait_while(goes, |goes| !*goes).unwrap());
            // In pieces, as a pipe takes them.
            let taken = bytes.len().min(1000);
            self.0.written.lock().unwrap().extend(&bytes[..taken]);
            Ok(taken)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_hangs_holds_no_link_and_the_file_has_whole_frames_nevertheless() {
        const FRAMES: u64 = 200_000;
        let disk = Hanging::default();
        let capture = Capture::to(disk.clone(), Duration::ZERO).unwrap();
        let (a, mut b) = pair();
        let mut a = capture.tap(a);
        let mut into = [0; 60];
        for n in 0..FRAMES {
            a.send(&[n as u8; 60], at(n));
            assert_eq!(b.receive(&mut into, at(n)), Some(60));
        }
        let Missing { frames: missing, error: None } = capture.missing().unwrap() else { panic!() };
        assert_eq!(missing, FRAMES, "nothing is written yet");
        disk.go_on();
        capture.flush();
        // There is room again.
        a.send(&[7; 50], at(FRAMES));
        capture.flush();
        let Missing { frames: missing, error: None } = capture.missing().unwrap() else { panic!() };
        let found = frames(&disk.0.written.lock().unwrap()[..]);
        assert!((1000..FRAMES).contains(&missing), "{missing}");
        assert_eq!(found.len() as u64 + missing, FRAMES + 1);
        assert!(found.is_sorted_by_key(|(time, _)| *time));
        assert_eq!(found.last().unwrap().1, [7; 50]);
    }

    #[test]
    fn a_pipe_may_get_its_reader_later_and_gets_all_frames_and_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let capture = Capture::create(&path).unwrap();
        let (a, mut b) = pair();
        let mut a = capture.tap(a);
        for n in 0..3000 {
            a.send(&[3; 60], at(n));
            b.receive(&mut [0; 60], at(n));
        }
        // More than a pipe holds.
        let reader = std::thread::spawn(move || frames(File::open(path).unwrap()).len());
        capture.flush();
        assert_eq!(capture.missing(), None);
        drop((a, capture));
        assert_eq!(reader.join().unwrap(), 3000);
    }
}
