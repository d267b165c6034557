//! An impairment's description on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use platform::random::Random;

use super::Fault;
use crate::SpecError;

/// The impairment of a link. Without faults, delay and rate it is a perfect link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// How often each fault happens.
    pub faults: [Chance; Fault::ALL.len()],
    /// The additional time that each frame takes.
    pub delay: Duration,
    /// The highest rate of the link.
    pub rate: Option<Rate>,
    /// The seed of all random numbers.
    pub seed: u64,
}

impl Impairment {
    /// How often a fault happens.
    pub const fn chance(&self, fault: Fault) -> Chance {
        self.faults[fault as usize]
    }

    /// The same impairment, but for the chance of this fault.
    pub const fn with(mut self, fault: Fault, chance: Chance) -> Impairment {
        self.faults[fault as usize] = chance;
        self
    }

    /// Whether frames may get lost, arrive twice, or arrive late.
    pub fn is_lossy(&self) -> bool {
        self.faults.iter().any(|chance| *chance > Chance::default())
    }

    /// An example of each setting, as the command line has them.
    pub fn examples() -> String {
        let all = Setting::all();
        let one = |setting: &Setting| format!("{}={}", setting.name(), setting.example());
        all.iter().map(one).collect::<Vec<_>>().join(",")
    }

    /// What the command line's help says of a description.
    pub fn help() -> String {
        let verbs = Fault::ALL.map(Fault::verb).join(", ");
        format!(
            "Let the link {verbs}, delay or slow frames, in both directions: {}, or some of these",
            Impairment::examples()
        )
    }
}

/// A setting of an impairment.
#[derive(Clone, Copy)]
enum Setting {
    Chance(Fault),
    Delay,
    Rate,
    Seed,
}

impl Setting {
    /// All settings, in the order in which they are written.
    fn all() -> Vec<Setting> {
        let faults = Fault::ALL.into_iter().map(Setting::Chance);
        faults.chain([Setting::Delay, Setting::Rate, Setting::Seed]).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Setting::Chance(fault) => fault.name(),
            Setting::Delay => "delay",
            Setting::Rate => "rate",
            Setting::Seed => "seed",
        }
    }

    fn example(self) -> &'static str {
        match self {
            Setting::Chance(_) => "1%",
            Setting::Delay => "2ms",
            Setting::Rate => "100Mbit",
            Setting::Seed => "7",
        }
    }

    fn read(self, text: &str, into: &mut Impairment) -> Result<(), SpecError> {
        match self {
            Setting::Chance(fault) => into.faults[fault as usize] = text.parse()?,
            Setting::Delay => into.delay = duration(text)?,
            Setting::Rate => into.rate = Some(text.parse()?),
            Setting::Seed => {
                let wrong = |_| SpecError(format!("{text:?} is no seed; write a number from 0 to 2^64-1"));
                into.seed = text.parse().map_err(wrong)?;
            }
        }
        Ok(())
    }

    /// The value in an impairment, unless that is to have none.
    fn written(self, of: &Impairment) -> Option<String> {
        match self {
            Setting::Chance(fault) => Some(of.chance(fault).to_string()),
            Setting::Delay => Some(format!("{}ns", of.delay.as_nanos())),
            Setting::Rate => of.rate.map(|Rate(bits)| format!("{bits}bit")),
            Setting::Seed => Some(of.seed.to_string()),
        }
    }
}

/// The longest delay that is accepted.
const LONGEST: Duration = Duration::from_secs(60);

/// A probability.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chance(u64);

impl Chance {
    /// The chance of an event that always happens.
    pub const ALWAYS: Chance = Chance(1 << 32);

    /// A chance of `parts` in `of`, and at most [`Chance::ALWAYS`].
    pub const fn of(parts: u32, of: u32) -> Chance {
        if parts >= of { Chance::ALWAYS } else { Chance(((parts as u64) << 32) / of as u64) }
    }

    /// Whether the event happens this time. Draws one random number.
    pub(crate) fn draw(self, random: &mut Random) -> bool {
        random.word() >> 32 < self.0
    }
}

impl fmt::Debug for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4}%", self.0 as f64 * 100.0 / Chance::ALWAYS.0 as f64)
    }
}

impl FromStr for Chance {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Chance, SpecError> {
        let (digits, whole) = match text.strip_suffix('%') {
            Some(digits) => (digits, 100.0),
            None => (text, 1.0),
        };
        match decimal(digits).map(|number| number / whole) {
            Some(part @ 0.0..=1.0) => Ok(Chance((part * Chance::ALWAYS.0 as f64) as u64)),
            _ => Err(SpecError(format!(
                "{text:?} is no chance; write a percentage as 1%, or a fraction as 0.01"
            ))),
        }
    }
}

/// Bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// A rate in bits per second; `None` if it is 0.
    pub const fn bits(per_second: u64) -> Option<Rate> {
        if per_second == 0 { None } else { Some(Rate(per_second)) }
    }

    /// The time that a frame of this many bytes takes.
    pub(crate) fn time_of(self, bytes: usize) -> Duration {
        // The longest frame has 2^19 bits, and a second 2^30 nanoseconds.
        Duration::from_nanos(bytes as u64 * 8 * 1_000_000_000 / self.0)
    }
}

impl FromStr for Rate {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Rate, SpecError> {
        const UNITS: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
        let wrong = || {
            SpecError(format!(
                "{text:?} is no rate; write bits per second with a unit: 100Mbit, 10Gbit or 64kbit"
            ))
        };
        let lower = text.to_ascii_lowercase();
        let (number, unit) = split(lower.strip_suffix("/s").unwrap_or(&lower));
        let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let bits = decimal(number).ok_or_else(wrong)? * factor;
        Rate::bits(bits as u64).filter(|_| bits <= 1e13).ok_or_else(wrong)
    }
}

/// Reads a duration with its unit.
fn duration(text: &str) -> Result<Duration, SpecError> {
    const UNITS: [(&str, f64); 5] = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let wrong = || {
        SpecError(format!(
            "{text:?} is no delay; write a time of at most 60s with its unit: 50us, 2.5ms or 1s"
        ))
    };
    let (number, unit) = split(text);
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let seconds = decimal(number).ok_or_else(wrong)? * factor;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= LONGEST).ok_or_else(wrong)
}

/// A number and its unit.
fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(at)
}

/// A decimal number: digits and at most one point.
fn decimal(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if plain { text.parse().ok() } else { None }
}

impl FromStr for Impairment {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Impairment, SpecError> {
        let mut all = Impairment::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let wrong = || {
                SpecError(format!(
                    "{part:?} is no impairment; write {}, with commas between several",
                    Impairment::examples().replace(',', ", ")
                ))
            };
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let setting = Setting::all().into_iter().find(|setting| setting.name() == name);
            setting.ok_or_else(wrong)?.read(value, &mut all)?;
            if seen.contains(&name) {
                return Err(SpecError(format!("{name} is there twice; write it once")));
            }
            seen.push(name);
        }
        Ok(all)
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Exact: a double distinguishes all 2^32 values.
        write!(f, "{}", self.0 as f64 / Chance::ALWAYS.0 as f64)
    }
}

/// In the form of the command line.
impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |setting: Setting| Some(format!("{}={}", setting.name(), setting.written(self)?));
        f.write_str(&Setting::all().into_iter().filter_map(one).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read() {
        let all =
            "loss=1%,dup=0.5%, reorder=0.25,corrupt=100%,delay=2.5ms,rate=1.5Gbit,seed=18446744073709551615";
        let all: Impairment = all.parse().unwrap();
        let chances = [Chance::of(1, 100), Chance::of(1, 200), Chance::of(1, 4), Chance::ALWAYS];
        assert_eq!(Fault::ALL.map(|fault| all.chance(fault)), chances);
        assert_eq!(all.delay, Duration::from_micros(2500));
        assert_eq!((all.rate, all.seed), (Rate::bits(1_500_000_000), u64::MAX));
        assert_eq!(all.to_string().parse(), Ok(all));
        assert_eq!(Impairment::default().to_string().parse(), Ok(Impairment::default()));
        let one: Impairment = "loss=1".parse().unwrap();
        assert_eq!(one, Impairment::default().with(Fault::Loss, Chance::ALWAYS));
        assert!(Impairment::examples().parse::<Impairment>().is_ok_and(|all| all.is_lossy()));
    }

    #[test]
    fn help_and_readme_name_every_setting() {
        let readme = include_str!("../../../README.md");
        for text in [Impairment::help().as_str(), readme] {
            assert!(text.contains(&Impairment::examples()), "{}", Impairment::examples());
            for verb in Fault::ALL.map(Fault::verb) {
                assert!(text.contains(verb), "{verb}");
            }
        }
    }

    #[test]
    fn units_are_read() {
        for (text, micros) in
            [("1s", 1_000_000), ("3ms", 3_000), ("20us", 20), ("5000ns", 5), ("7µs", 7), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for (text, bits) in
            [("9600bit", 9600), ("64kbit", 64_000), ("100Mbit/s", 100_000_000), ("10gbit", 10_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Rate(bits)), "{text}");
        }
        assert_eq!(Rate(8_000_000).time_of(1000), Duration::from_millis(1));
    }

    #[test]
    fn what_is_wrong_gets_one_line_that_says_how_to_write_it() {
        for (text, words) in [
            ("", "write loss=1%"),
            ("loss", "write loss=1%"),
            ("speed=1", "\"speed=1\" is no impairment"),
            ("loss=5", "write a percentage as 1%, or a fraction as 0.01"),
            ("loss=101%", "is no chance"),
            ("loss=-1%", "is no chance"),
            ("loss=nan", "is no chance"),
            ("loss=", "is no chance"),
            ("loss=1e-2", "is no chance"),
            ("dup=x%", "\"x%\" is no chance"),
            ("delay=5", "with its unit: 50us"),
            ("delay=61s", "at most 60s"),
            ("delay=ms", "is no delay"),
            ("delay=1.2.3ms", "is no delay"),
            ("rate=100", "with a unit: 100Mbit"),
            ("rate=0bit", "is no rate"),
            ("rate=0.4bit", "is no rate"),
            ("rate=99999Gbit", "is no rate"),
            ("seed=x", "is no seed"),
            ("seed=-1", "is no seed"),
            ("loss=1%,loss=2%", "loss is there twice"),
            ("loss=1%,", "\"\" is no impairment"),
        ] {
            let error = text.parse::<Impairment>().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{text:?}: {error}");
        }
    }
}
