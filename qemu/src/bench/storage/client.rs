//! Ferrovia's own host: the words for the image `storage-client`, and the lines that it prints.

use crate::error::{Error, Result};
use crate::launch::is_crash;

use super::{Sample, pattern};

/// Random requests: 4 KiB at depths 16 and 8, 128 KiB at depth 8.
pub const LOADS: [Load; 6] = [
    Load { is_write: false, bytes: 4 << 10, depth: 16 },
    Load { is_write: true, bytes: 4 << 10, depth: 16 },
    Load { is_write: false, bytes: 4 << 10, depth: 8 },
    Load { is_write: true, bytes: 4 << 10, depth: 8 },
    Load { is_write: false, bytes: 128 << 10, depth: 8 },
    Load { is_write: true, bytes: 128 << 10, depth: 8 },
];

/// The requests of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// All are writes, or all are reads.
    pub is_write: bool,
    /// Bytes of a request.
    pub bytes: u32,
    /// The number of outstanding requests.
    pub depth: u32,
}

impl Load {
    /// Its name in the names of figures.
    pub fn pattern(&self) -> String {
        pattern(self.is_write, self.bytes, self.depth)
    }
}

/// The image's words for all of [`LOADS`], each for `seconds`. `place` is the target's address, or
/// the word for a disk of the guest's own.
pub fn words(place: &str, seconds: u32) -> Vec<String> {
    let plan =
        |load: &Load| format!("plan={},{},{}", load.bytes, load.depth, if load.is_write { 100 } else { 0 });
    let mut words = vec![place.to_owned(), "unchecked".into(), "figures".into()];
    words.push(format!("seconds={seconds}"));
    words.extend(LOADS.iter().map(plan));
    words
}

/// The measurements of the image so far.
#[derive(Debug, Default)]
pub struct Measured {
    samples: Vec<Sample>,
    /// Something has failed.
    is_broken: bool,
}

impl Measured {
    /// Takes a line of one of the images. False if the user should see it: if it, or an earlier
    /// one, reports a failure.
    pub fn take(&mut self, line: &str) -> bool {
        self.samples.extend(sample(line));
        self.is_broken |= is_crash(line) || line.starts_with("error: ");
        !self.is_broken
    }

    /// All measurements, in the order of [`LOADS`].
    pub fn all(self) -> Result<[Sample; LOADS.len()]> {
        self.samples.try_into().map_err(|all: Vec<Sample>| {
            Error::Tool(format!("storage-client made {} of {} measurements", all.len(), LOADS.len()))
        })
    }
}

/// The measurement in a line of the image.
fn sample(line: &str) -> Option<Sample> {
    let numbers = line.strip_prefix("@load ")?.split(' ').map(|word| word.parse::<u64>().ok());
    let [reads, writes, bytes, nanoseconds] = numbers.collect::<Option<Vec<u64>>>()?.try_into().ok()?;
    let rate = |count: u64| count as f64 / nanoseconds as f64 * 1e9;
    let count = reads.checked_add(writes)?;
    (nanoseconds > 0).then(|| Sample { iops: rate(count), rate: rate(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_told_each_load_and_says_what_it_was() {
        let words = words("local", 2);
        assert_eq!(words[..4], ["local", "unchecked", "figures", "seconds=2"]);
        assert_eq!(
            words[4..],
            [
                "plan=4096,16,0",
                "plan=4096,16,100",
                "plan=4096,8,0",
                "plan=4096,8,100",
                "plan=131072,8,0",
                "plan=131072,8,100"
            ]
        );
        let mut measured = Measured::default();
        for line in
            ["@load", "@load 1 2 3", "@load 1 2 3 0", "@load 1 2 x 4", "load 1 2 3 4", "@loads 1 2 3 4"]
        {
            assert!(measured.take(line) && measured.samples.is_empty(), "{line}");
        }
        for reads in 1..=5 {
            assert!(measured.take(&format!("@load {reads} 7 40960 2000000000")));
        }
        let few = Measured { samples: measured.samples.clone(), is_broken: false };
        let few = few.all().expect_err("one is missing").to_string();
        assert!(few.contains("5 of 6"), "{few}");
        assert!(measured.take("@load 10 0 40960 1000000000"));
        let all = measured.all().expect("six");
        assert_eq!((all[0].iops, all[0].rate, all[5].iops), (4.0, 20480.0, 10.0));
    }

    #[test]
    fn a_failure_and_what_follows_is_for_the_user() {
        let mut measured = Measured::default();
        assert!(measured.take("ready: 10.0.0.2:4420"));
        assert!(!measured.take("error: connecting: the target does not answer"));
        assert!(!measured.take("and so on"));
    }
}
