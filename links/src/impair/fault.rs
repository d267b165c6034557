//! What an impaired link does to frames by chance: the one list of it.

/// What happens to a frame by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Fault {
    /// It is lost.
    Loss,
    /// It arrives twice.
    Dup,
    /// One to four later frames overtake it.
    Reorder,
    /// One bit after the Ethernet header changes. A frame of ARP, which only Ethernet's checksum
    /// protects, is lost instead.
    Corrupt,
}

/// The fault, its name, what the link does, the counter's name, and what tallies call the frames.
type Words = (Fault, &'static str, &'static str, &'static str, &'static str);

/// Help, messages, counters and the simulation's figures have their words from here. A fault that
/// loses frames counts as [`crate::Dropped::Lost`], and needs no counter of its own.
const WORDS: [Words; Fault::ALL.len()] = [
    (Fault::Loss, "loss", "lose", "dropped_lost", "frames lost"),
    (Fault::Dup, "dup", "duplicate", "duplicated", "frames duplicated"),
    (Fault::Reorder, "reorder", "reorder", "reordered", "frames reordered"),
    (Fault::Corrupt, "corrupt", "corrupt", "corrupted", "frames corrupted"),
];

const _: () = {
    let mut n = 0;
    while n < WORDS.len() {
        assert!(WORDS[n].0 as usize == n && Fault::ALL[n] as usize == n, "in the order of the type");
        n += 1;
    }
};

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 4] = [Fault::Loss, Fault::Dup, Fault::Reorder, Fault::Corrupt];

    const fn words(self) -> &'static Words {
        &WORDS[self as usize]
    }

    /// The name of its chance in an impairment's description: `dup`.
    pub const fn name(self) -> &'static str {
        self.words().1
    }

    /// What the link does: `duplicate`.
    pub const fn verb(self) -> &'static str {
        self.words().2
    }

    /// The name that its counter has in files of counters: `duplicated`.
    pub const fn counter(self) -> &'static str {
        self.words().3
    }

    /// What a tally of runs calls the frames that it met: `frames duplicated`.
    pub const fn tally(self) -> &'static str {
        self.words().4
    }
}
