//! The tour and the transfer: one image, which asks for its payload piece by piece; and booting any
//! other image.
//!
//! The launcher shares the guest's memory, so it writes each piece there itself when the image asks
//! for it (targets/tour documents the image's lines for that). A file of any size can be moved in
//! this way, since a guest needs memory only for one piece and its copy. The launcher also computes
//! the digest that the image prints, from the guest's memory after a piece was written there; and,
//! when the payload goes to another machine ([`crate::pair`]), the digest of what arrived.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use nic_model::GuestMemory;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::launch::{Launcher, Output};
use crate::options::Options;
use crate::progress::Progress;
use crate::vm::Event;
use device::memory::GuestRam;

/// Bytes of the tour's payload; an odd number, so that the last message is shorter than the others.
const TOUR_BYTES: u64 = (16 << 20) + 77;
/// The number of ways in which the image moves each byte.
pub const WAYS: u64 = 4;
/// The number of ways through VIPL: four on each of the two reliable levels.
pub const VIA_WAYS: u64 = 2 * WAYS;
/// Bytes that are read from a file at once.
const CHUNK: usize = 1 << 20;
/// The offset of the digest in the answer to a request for a piece.
const DIGEST: usize = 32;
/// Bytes of such an answer.
const ANSWER: u64 = 64;

/// Boots, shows the IA, and moves a payload of our own; returns the image's status.
pub fn tour(options: &Options, words: Vec<String>) -> Result<u8> {
    run(options, "tour", words, Payload::of_the_tour(), WAYS)
}

/// Moves a file in each of `ways` ways; returns the image's status.
pub fn transfer(options: &Options, path: &Path, mut words: Vec<String>, ways: u64) -> Result<u8> {
    words.push("transfer".into());
    run(options, "transfer", words, Payload::of_file(path)?, ways)
}

fn run(options: &Options, what: &str, mut words: Vec<String>, payload: Payload, ways: u64) -> Result<u8> {
    let launcher = Launcher::prepare(options, "tour")?;
    let mut output = Output::new(launcher.symbols());
    words.push(payload.word());
    let mut server = Server::begin(what, payload, ways);
    let mut guest = launcher.start(&words)?;
    let deadline = launcher.deadline(guest.started());
    loop {
        match guest.next(deadline)? {
            Event::Line(line) => {
                if !server.line(guest.memory(), &line)? {
                    output.line(&line)?;
                }
            }
            Event::FirstThread => server.progress.message("connecting"),
            Event::Ended(exit) => return exit.status(),
            Event::Stalled(silence) => return Err(Error::Stalled(silence)),
            Event::Deadline => return Err(launcher.timed_out()),
        }
    }
}

/// Boots any image and passes its output on; returns the image's status.
pub fn boot(options: &Options, image: &str, words: &[String]) -> Result<u8> {
    let launcher = Launcher::prepare(options, image)?;
    let mut output = Output::new(launcher.symbols());
    launcher.run(words, |line| output.line(line), |_| ())
}

/// Serves the image: gives it the payload, and shows the progress.
pub(crate) struct Server {
    payload: Payload,
    arrivals: Arrivals,
    progress: Progress,
    moved: u64,
    /// The number of ways in which each byte is moved.
    ways: u64,
}

impl Server {
    /// Begins a wait for `what`.
    pub fn begin(what: &str, payload: Payload, ways: u64) -> Server {
        let progress = Progress::begin(what);
        progress.message("booting");
        Server { payload, arrivals: Arrivals::default(), progress, moved: 0, ways }
    }

    /// Takes a line of the guest with this memory; false if the line is not for the launcher.
    pub fn line(&mut self, memory: &GuestRam, line: &str) -> Result<bool> {
        let all = self.payload.bytes.saturating_mul(self.ways);
        match Request::parse(line) {
            Some(Request::Load { address, length, answer }) => {
                self.progress.share(self.moved, all);
                self.progress.message("loading");
                self.payload.load(memory, address, length, answer)?;
                self.progress.message("moving");
            }
            Some(Request::Arrived { way, address, length, answer }) => {
                self.arrivals.add(memory, way, address, length, answer)?;
            }
            Some(Request::Moved(bytes)) => {
                self.moved = self.moved.saturating_add(bytes);
                self.progress.share(self.moved, all);
            }
            None => return Ok(false),
        }
        Ok(true)
    }
}

/// A request or a report of the image, in a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request<'a> {
    /// Load the next `length` bytes to `address` and answer at `answer`.
    Load { address: u64, length: u64, answer: u64 },
    /// In this way, the next `length` bytes have arrived at `address`: answer at `answer`.
    Arrived { way: &'a str, address: u64, length: u64, answer: u64 },
    /// This many bytes have been moved in one way.
    Moved(u64),
}

impl Request<'_> {
    fn parse(line: &str) -> Option<Request<'_>> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().ok();
        match words[..] {
            ["@load", address, length, answer] => Some(Request::Load {
                address: number(address)?,
                length: number(length)?,
                answer: number(answer)?,
            }),
            ["@arrived", way, address, length, answer] => Some(Request::Arrived {
                way,
                address: number(address)?,
                length: number(length)?,
                answer: number(answer)?,
            }),
            ["@moved", bytes] => Some(Request::Moved(number(bytes)?)),
            _ => None,
        }
    }
}

/// Writes the digest of all bytes so far to a guest's memory at `at`, and increments the count of
/// answers.
fn answer(memory: &GuestRam, at: u64, digest: &Sha256) -> Result<()> {
    let refused = |_| Error::Tool("the guest asks for an answer where it has no memory".into());
    let answer = memory.get(at, ANSWER).map_err(refused)?;
    let unaligned = |_| Error::Tool("the guest asks for an answer at an odd address".into());
    answer.write(DIGEST, &digest.clone().finalize()).map_err(unaligned)?;
    // Release: a reader that sees the new count sees the digest, and the piece that was loaded
    // before.
    answer.atomic_u32(0).map_err(unaligned)?.fetch_add(1, Ordering::Release);
    Ok(())
}

/// The digests of what has arrived from another machine, by way.
#[derive(Default)]
struct Arrivals(BTreeMap<String, Sha256>);

impl Arrivals {
    /// Takes the digest of the next bytes of a way, and answers.
    fn add(&mut self, memory: &GuestRam, way: &str, address: u64, length: u64, at: u64) -> Result<()> {
        if !self.0.contains_key(way) && self.0.len() as u64 == WAYS {
            return Err(Error::Tool("the guest reports more ways than there are".into()));
        }
        let refused = |_| Error::Tool("the guest reports bytes where it has no memory".into());
        let window = memory.get(address, length).map_err(refused)?;
        let digest = self.0.entry(way.to_owned()).or_default();
        let mut chunk = vec![0; CHUNK.min(window.len())];
        for offset in (0..window.len()).step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min(window.len() - offset)];
            let out_of_bounds = |_| Error::Tool("a piece is larger than its memory".into());
            window.read(offset, chunk).map_err(out_of_bounds)?;
            digest.update(&*chunk);
        }
        answer(memory, at, digest)
    }
}

/// The payload, and how much of it the guest has received.
pub struct Payload {
    name: PathBuf,
    from: Box<dyn Read>,
    bytes: u64,
    loaded: u64,
    digest: Sha256,
}

impl Payload {
    fn new(name: PathBuf, bytes: u64, from: impl Read + 'static) -> Payload {
        Payload { name, from: Box::new(from), bytes, loaded: 0, digest: Sha256::new() }
    }

    /// The tour's.
    pub fn of_the_tour() -> Payload {
        Payload::new(PathBuf::from("the tour's payload"), TOUR_BYTES, Noise::default())
    }

    /// The word that gives the image the payload's length.
    pub fn word(&self) -> String {
        format!("bytes={}", self.bytes)
    }

    /// A file.
    pub fn of_file(path: &Path) -> Result<Payload> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        // Opening a FIFO would wait for a writer. For ordinary files the flag has no effect.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::NotAFile(path.to_owned()));
        }
        Ok(Payload::new(path.to_owned(), metadata.len(), file))
    }

    /// Writes the next `length` bytes to the guest's memory at `address`, and the answer at
    /// `at`.
    fn load(&mut self, memory: &GuestRam, address: u64, length: u64, at: u64) -> Result<()> {
        let out_of_memory = |_| Error::Tool("the guest asks for bytes where it has no memory".into());
        let window = memory.get(address, length).map_err(out_of_memory)?;
        // Checked before the file is read, so that no bytes are lost.
        memory.get(at, ANSWER).map_err(out_of_memory)?;
        let mut chunk = vec![0; CHUNK.min(window.len())];
        for offset in (0..window.len()).step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min(window.len() - offset)];
            self.read(chunk)?;
            let out_of_bounds = |_| Error::Tool("a piece is larger than its memory".into());
            window.write(offset, chunk).map_err(out_of_bounds)?;
            // The digest is of the bytes that are in the guest's memory now, not of what was
            // written.
            window.read(offset, chunk).map_err(out_of_bounds)?;
            self.digest.update(&*chunk);
        }
        answer(memory, at, &self.digest)
    }

    /// Reads the next bytes, as many as `into` holds.
    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            match self.from.read(&mut into[done..]) {
                Ok(0) => {
                    return Err(Error::Shrunk {
                        path: self.name.clone(),
                        bytes: self.bytes,
                        found: self.loaded,
                    });
                }
                Ok(bytes) => {
                    done += bytes;
                    self.loaded += bytes as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::File { path: self.name.clone(), source }),
            }
        }
        Ok(())
    }
}

/// Bytes that look random, the same in each run.
#[derive(Debug)]
struct Noise {
    state: u64,
    /// Bytes of the state that have not been read.
    left: usize,
}

impl Default for Noise {
    fn default() -> Noise {
        Noise { state: 0x9e37_79b9_7f4a_7c15, left: 0 }
    }
}

impl Read for Noise {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        for byte in into.iter_mut() {
            if self.left == 0 {
                // xorshift64
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                self.left = 8;
            }
            *byte = self.state.to_le_bytes()[8 - self.left];
            self.left -= 1;
        }
        Ok(into.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    const MIB: u64 = 1 << 20;

    fn ram() -> GuestRam {
        GuestRam::new(4 * MIB).expect("4 MiB")
    }

    fn bytes(memory: &GuestRam, address: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        memory.get(address, length).expect("memory").read(0, &mut bytes).expect("in bounds");
        bytes
    }

    fn answers(memory: &GuestRam, answer: u64) -> u32 {
        memory.get(answer, 4).expect("memory").atomic_u32(0).expect("aligned").load(Ordering::Acquire)
    }

    #[test]
    fn pieces_are_loaded_in_order_and_the_digest_is_of_all_of_them() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        let contents: Vec<u8> = (0..2 * MIB + 5).map(|n| ((n * n) >> 7) as u8).collect();
        fs::write(&path, &contents).expect("write");
        let memory = ram();
        let mut payload = Payload::of_file(&path).expect("a file");
        assert_eq!(payload.bytes, 2 * MIB + 5);
        let first = MIB + 3;
        payload.load(&memory, 4096, first, 64).expect("it is there");
        assert_eq!(bytes(&memory, 4096, first), contents[..first as usize]);
        assert_eq!(answers(&memory, 64), 1);
        payload.load(&memory, 8192, MIB + 2, 64).expect("it is there");
        assert_eq!(bytes(&memory, 8192, MIB + 2), contents[first as usize..]);
        assert_eq!(answers(&memory, 64), 2);
        assert_eq!(bytes(&memory, 64 + DIGEST as u64, 32), Sha256::digest(&contents)[..]);
    }

    #[test]
    fn a_file_that_shrinks_is_named_with_what_was_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        fs::write(&path, [1; 100]).expect("write");
        let mut payload = Payload::of_file(&path).expect("a file");
        File::options().write(true).open(&path).and_then(|file| file.set_len(60)).expect("truncate");
        let memory = ram();
        payload.load(&memory, 4096, 50, 64).expect("they are still there");
        let error = payload.load(&memory, 4096, 50, 64).expect_err("they are gone").to_string();
        assert!(error.contains("100") && error.contains("60") && error.contains("file"), "{error}");
        assert_eq!(answers(&memory, 64), 1, "no answer to what was not loaded");
    }

    #[test]
    fn a_file_that_grows_is_moved_as_it_was() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        fs::write(&path, [1; 100]).expect("write");
        let mut payload = Payload::of_file(&path).expect("a file");
        File::options()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(&[2; 9]))
            .expect("append");
        payload.load(&ram(), 4096, 100, 64).expect("they are there");
        assert_eq!((payload.bytes, payload.loaded), (100, 100));
    }

    #[test]
    fn a_guest_gets_nothing_outside_of_its_memory() {
        let memory = ram();
        let mut payload = Payload::new("noise".into(), 100, Noise::default());
        for (address, length, answer) in [(4 * MIB, 1, 64), (0, 4 * MIB + 1, 64), (0, 1, 4 * MIB), (0, 1, 63)]
        {
            assert!(payload.load(&memory, address, length, answer).is_err(), "{address} {length} {answer}");
        }
        payload.load(&memory, 0, 0, 64).expect("no bytes need no memory");
    }

    #[test]
    fn what_arrives_has_a_digest_for_each_way() {
        let memory = ram();
        memory.get(4096, 8).expect("memory").write(0, b"fourfive").expect("in bounds");
        let mut arrivals = Arrivals::default();
        let digest = |memory: &GuestRam| bytes(memory, 64 + DIGEST as u64, 32);
        arrivals.add(&memory, "send", 4096, 4, 64).expect("it is there");
        assert_eq!(digest(&memory), Sha256::digest("four")[..]);
        arrivals.add(&memory, "read", 4100, 4, 64).expect("it is there");
        assert_eq!(digest(&memory), Sha256::digest("five")[..]);
        arrivals.add(&memory, "send", 4100, 4, 64).expect("it is there");
        assert_eq!(digest(&memory), Sha256::digest("fourfive")[..]);
        assert_eq!(answers(&memory, 64), 3);
        arrivals.add(&memory, "none", 0, 0, 64).expect("no bytes");
        assert_eq!(digest(&memory), Sha256::digest("")[..]);
        assert!(arrivals.add(&memory, "send", 4 * MIB, 1, 64).is_err());
        arrivals.add(&memory, "fourth", 0, 0, 64).expect("there are four ways");
        assert!(arrivals.add(&memory, "fifth", 0, 0, 64).is_err(), "memory is bounded");
    }

    #[test]
    fn lines_that_are_no_requests_are_output() {
        let load = Request::Load { address: 4096, length: 0, answer: 64 };
        assert_eq!(Request::parse("@load 4096 0 64"), Some(load));
        let arrived = Request::Arrived { way: "read", address: 4096, length: 7, answer: 64 };
        assert_eq!(Request::parse("@arrived read 4096 7 64"), Some(arrived));
        assert_eq!(Request::parse("@moved 12"), Some(Request::Moved(12)));
        for line in
            ["", "@load", "@load 1 2", "@load 1 2 x", "@load 1 2 3 4", "@moved", "@moved -1", "x @moved 1"]
        {
            assert_eq!(Request::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn noise_is_the_same_each_time_and_however_it_is_read() {
        let (mut whole, mut parts) = ([0; 100], [0; 100]);
        Noise::default().read_exact(&mut whole).expect("endless");
        let mut noise = Noise::default();
        parts.chunks_mut(7).for_each(|part| noise.read_exact(part).expect("endless"));
        assert_eq!(whole, parts);
        assert_ne!(whole[..50], whole[50..]);
    }
}
