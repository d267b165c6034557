//! What the blocks of one host on one namespace may hold.
//!
//! Each write has a version, and the bytes of a block follow from the block and the version. The
//! book keeps for each block the versions that the disk may have, in the order in which they got
//! there: the first is durable, the later ones may be in the disk's cache. A suffix of the list is
//! what a read may return: one version after a write that was acknowledged, more after one that
//! failed or was not answered.
//!
//! A request whose connection broke may still be with the target. Its version is *late*: allowed at
//! any time, until the host has connected again. From then on the target has nothing of the earlier
//! connection any more.

use std::ops::Range;

use platform::random::Random;

use crate::harness::wrong::{Step, Wrong, hold};

/// What became of a request that changes blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was acknowledged.
    Done,
    /// It was acknowledged, with FUA.
    Durable,
    /// It failed: each block is as before, or changed.
    Failed,
    /// The host got no response, and the target may still carry it out.
    Unknown,
}

/// The version of zeros.
pub(super) const ZEROS: u32 = 0;

/// A version that a block had, or may have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Ascends within the block's list.
    number: u64,
    version: u32,
}

struct Block {
    /// The versions, the oldest one that a loss of power can leave first.
    history: Vec<Entry>,
    /// Where in the list that begins what a read may return.
    current: usize,
    /// Versions of requests that may still be carried out.
    late: Vec<u32>,
    /// A request of the host is under way.
    is_busy: bool,
}

impl Block {
    fn push(&mut self, number: u64, version: u32) {
        self.history.push(Entry { number, version });
    }

    /// The only version that a read may return, if there is only one.
    fn only(&self) -> Option<u32> {
        match (&self.history[self.current..], self.late.is_empty()) {
            ([entry], true) => Some(entry.version),
            _ => None,
        }
    }

    /// The block was seen with this version.
    fn seen(&mut self, version: u32) {
        if !self.late.is_empty() {
            return;
        }
        let mut places = (self.current..self.history.len()).filter(|&n| self.history[n].version == version);
        let (Some(first), next) = (places.next(), places.next()) else { return };
        self.current = first;
        if next.is_none() {
            // What came behind it failed without a trace.
            self.history.truncate(first + 1);
        }
    }
}

/// What a Flush makes durable: for each block the version that a read returned when the Flush was
/// sent, or a later one.
pub(super) struct Mark(Vec<u64>);

/// The blocks of a host on one namespace.
pub(super) struct Book {
    seed: u64,
    /// The first block on the namespace.
    first: u64,
    block_size: usize,
    blocks: Vec<Block>,
    /// The last version and the last number that were given.
    version: u32,
    number: u64,
}

impl Book {
    /// `count` blocks from `first` on, all zeros. Books with different seeds have different bytes.
    pub(super) fn new(seed: u64, first: u64, count: usize, block_size: u32) -> Book {
        let zeros = Entry { number: 0, version: ZEROS };
        let block = |_| Block { history: vec![zeros], current: 0, late: Vec::new(), is_busy: false };
        Book {
            seed,
            first,
            block_size: block_size as usize,
            blocks: (0..count).map(block).collect(),
            version: ZEROS,
            number: 0,
        }
    }

    pub(super) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(super) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// A block's number on the namespace.
    pub(super) fn place(&self, block: usize) -> u64 {
        self.first + block as u64
    }

    /// How many blocks from `block` on, `most` at most, no request is for.
    pub(super) fn free(&self, block: usize, most: usize) -> usize {
        let blocks = self.blocks[block..].iter().take(most);
        blocks.take_while(|block| !block.is_busy).count()
    }

    /// A request for these blocks begins.
    pub(super) fn begin(&mut self, blocks: Range<usize>) {
        self.blocks[blocks].iter_mut().for_each(|block| block.is_busy = true);
    }

    /// The request for these blocks is over.
    pub(super) fn end(&mut self, blocks: Range<usize>) {
        self.blocks[blocks].iter_mut().for_each(|block| block.is_busy = false);
    }

    /// A version for the next write.
    pub(super) fn next_version(&mut self) -> u32 {
        self.version += 1;
        self.version
    }

    fn words(&self, block: usize, version: u32) -> impl Iterator<Item = [u8; 8]> + use<> {
        let place = self.place(block) << 32 | u64::from(version);
        let mut random = Random::new(Random::new(self.seed ^ place).word());
        std::iter::from_fn(move || Some(if version == ZEROS { [0; 8] } else { random.word().to_le_bytes() }))
    }

    /// The bytes of a version of these blocks.
    pub(super) fn bytes(&self, blocks: Range<usize>, version: u32) -> Vec<u8> {
        blocks.flat_map(|block| self.words(block, version).take(self.block_size / 8).flatten()).collect()
    }

    fn is(&self, block: usize, version: u32, found: &[u8]) -> bool {
        found.chunks_exact(8).zip(self.words(block, version)).all(|(found, word)| found == word)
    }

    /// Bytes that blocks may hold, and whether they hold them for sure.
    pub(super) fn expected(&self, blocks: Range<usize>) -> (Vec<u8>, bool) {
        let (mut bytes, mut is_sure) = (Vec::new(), true);
        for block in blocks {
            let last = self.blocks[block].history.last().map_or(ZEROS, |entry| entry.version);
            is_sure &= self.blocks[block].only().is_some();
            bytes.extend(self.bytes(block..block + 1, last));
        }
        (bytes, is_sure)
    }

    /// A request that writes a version to blocks has ended.
    pub(super) fn changed(&mut self, blocks: Range<usize>, version: u32, outcome: Outcome) {
        self.number += 1;
        for block in &mut self.blocks[blocks] {
            block.push(self.number, version);
            match outcome {
                Outcome::Done => block.current = block.history.len() - 1,
                Outcome::Durable => {
                    block.history.drain(..block.history.len() - 1);
                    block.current = 0;
                }
                Outcome::Failed => {}
                Outcome::Unknown => block.late.push(version),
            }
        }
    }

    /// A request that lets the disk forget blocks has ended: each is zeros, or as before.
    pub(super) fn discarded(&mut self, blocks: Range<usize>, outcome: Outcome) {
        let outcome = if outcome == Outcome::Unknown { Outcome::Unknown } else { Outcome::Failed };
        self.changed(blocks, ZEROS, outcome);
    }

    /// A Flush is sent.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.blocks.iter().map(|block| block.history[block.current].number).collect())
    }

    /// The Flush was acknowledged.
    pub(super) fn flushed(&mut self, mark: &Mark) {
        for (block, &durable) in self.blocks.iter_mut().zip(&mark.0) {
            let lost = block.history.iter().take_while(|entry| entry.number < durable).count();
            // What a read may return is never older than what it returned before.
            block.history.drain(..lost);
            block.current -= lost;
        }
    }

    /// Checks what a read of blocks brought.
    pub(super) fn check(&mut self, blocks: Range<usize>, found: &[u8]) -> Step {
        for (block, found) in blocks.zip(found.chunks(self.block_size)) {
            let its = &self.blocks[block];
            let mut allowed =
                its.history[its.current..].iter().map(|entry| entry.version).chain(its.late.clone());
            let version = allowed.find(|&version| self.is(block, version, found));
            let version = version.ok_or_else(|| self.wrong(block, found))?;
            self.blocks[block].seen(version);
        }
        Ok(())
    }

    /// What is wrong with a block.
    fn wrong(&self, block: usize, found: &[u8]) -> Wrong {
        let its = &self.blocks[block];
        let known = (0..=self.version).find(|&version| self.is(block, version, found));
        let known = known
            .map_or("bytes that were never written to it".into(), |version| format!("version {version}"));
        let versions = |entries: &[Entry]| entries.iter().map(|entry| entry.version).collect::<Vec<_>>();
        Wrong(format!(
            "block {} has {known}, and may have {:?}, or late ones, {:?}",
            self.place(block),
            versions(&its.history[its.current..]),
            its.late
        ))
    }

    /// The target has nothing any more of connections that broke.
    pub(super) fn settle(&mut self) {
        for block in &mut self.blocks {
            for version in std::mem::take(&mut block.late) {
                self.number += 1;
                block.push(self.number, version);
            }
        }
    }

    /// The disk lost its power. Only what was flushed is sure. `contents` are those of a block of
    /// the namespace, which are durable from now on.
    pub(super) fn lose_power(&mut self, contents: impl Fn(u64) -> Vec<u8>) -> Step {
        self.settle();
        for block in 0..self.blocks.len() {
            self.blocks[block].current = 0;
            let found = contents(self.place(block));
            self.check(block..block + 1, &found)?;
            let block = &mut self.blocks[block];
            // Entries of one version are equal now.
            let entry = block.history[block.current];
            (block.history, block.current) = (vec![entry], 0);
        }
        Ok(())
    }

    /// Checks all blocks of a disk that has no request under way.
    pub(super) fn look(&mut self, contents: impl Fn(u64) -> Vec<u8>) -> Step {
        hold!(self.blocks.iter().all(|block| !block.is_busy), "a request of an ended host is under way");
        for block in 0..self.blocks.len() {
            let found = contents(self.place(block));
            self.check(block..block + 1, &found)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 512;

    /// A book of three blocks of which the second was written: `a` is durable, `b` in the cache.
    fn book() -> (Book, u32, u32) {
        let mut book = Book::new(7, 100, 3, SIZE);
        let (a, b) = (book.next_version(), book.next_version());
        book.changed(1..2, a, Outcome::Durable);
        book.changed(1..2, b, Outcome::Done);
        (book, a, b)
    }

    fn reads(book: &mut Book, version: u32) -> bool {
        let bytes = book.bytes(1..2, version);
        book.check(1..2, &bytes).is_ok()
    }

    fn survives(book: &mut Book, version: u32) -> bool {
        let zeros = vec![0; SIZE as usize];
        let bytes = book.bytes(1..2, version);
        book.lose_power(|place| if place == 101 { bytes.clone() } else { zeros.clone() }).is_ok()
    }

    #[test]
    fn a_read_returns_what_was_acknowledged_and_a_loss_of_power_leaves_what_was_flushed() {
        let (mut book, a, b) = book();
        assert!(reads(&mut book, b) && !reads(&mut book, a) && !reads(&mut book, ZEROS));
        assert!(survives(&mut book, a));
        assert!(reads(&mut book, a) && !reads(&mut book, b));
        let (mut book, a, b) = self::book();
        let mark = book.mark();
        let c = book.next_version();
        book.changed(1..2, c, Outcome::Done);
        book.flushed(&mark);
        assert!(!survives(&mut book, a) && survives(&mut book, b));
        let (mut book, _, b) = self::book();
        assert!(!survives(&mut book, ZEROS) && survives(&mut book, b));
    }

    #[test]
    fn after_a_failure_a_block_is_old_or_new_until_it_is_seen() {
        let (mut book, a, b) = book();
        let c = book.next_version();
        book.changed(0..2, c, Outcome::Failed);
        assert!(!reads(&mut book, a) && reads(&mut book, b) && !reads(&mut book, c));
        book.discarded(1..2, Outcome::Done);
        assert!(reads(&mut book, ZEROS) && !reads(&mut book, b));
        assert!(survives(&mut book, b));
    }

    #[test]
    fn a_late_request_may_be_carried_out_after_others_until_all_is_settled() {
        let (mut book, _, b) = book();
        let (late, c) = (book.next_version(), book.next_version());
        book.changed(1..2, late, Outcome::Unknown);
        assert!(reads(&mut book, b) && reads(&mut book, late) && reads(&mut book, b));
        book.changed(1..2, c, Outcome::Done);
        let mark = book.mark();
        book.flushed(&mark);
        assert!(!reads(&mut book, b) && reads(&mut book, c) && reads(&mut book, late) && reads(&mut book, c));
        book.settle();
        assert!(reads(&mut book, late) && !reads(&mut book, c));
    }

    #[test]
    fn bytes_tell_blocks_and_versions_apart() {
        let (book, a, b) = book();
        let others = [book.bytes(0..1, a), book.bytes(1..2, b), Book::new(8, 100, 3, SIZE).bytes(1..2, a)];
        assert!(others.iter().all(|bytes| !book.is(1, a, bytes)));
        assert!(book.is(1, a, &book.bytes(1..2, a)) && book.is(1, ZEROS, &[0; 512]));
        let mut torn = book.bytes(1..2, a);
        torn[511] ^= 1;
        assert!(!book.is(1, a, &torn));
    }
}
