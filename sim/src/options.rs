//! The command line.

use platform::planted::Bug;

use crate::breaking;

/// What `--help` prints.
pub(crate) const HELP: &str = "\
Runs mixed streams over every operation in the simulation, and checks them against a model; or the
storage target, with hosts and disks that fail; or consumers of the API for Rust.

    cargo run -p sim --release -- [OPTION…]

    --storage      runs the storage target with hosts and disks instead
    --face         runs consumers of the API for Rust instead
    --iwarp        runs all streams over iWARP; otherwise the seed decides
    --seeds N      runs N seeds (1)
    --from S       the first of them (0)
    --trace        tells the story of each seed, with virtual time
    --break NAME   plants a bug, and runs seeds (up to 1000) until one finds it
    --break list   lists the bugs
    --help         prints this

The status is 1 if a seed fails, or if no seed finds the planted bug. A seed means the same as long
as the sources and the profile are the same.
";

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Run(Options),
    List,
    Help,
}

/// Which seeds to run, and how.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// The workload of the storage target.
    pub(crate) storage: bool,
    /// The consumers of the API for Rust.
    pub(crate) face: bool,
    /// All streams are over iWARP.
    pub(crate) iwarp: bool,
    pub(crate) seeds: u64,
    pub(crate) from: u64,
    pub(crate) trace: bool,
    pub(crate) planted: Option<Bug>,
}

impl Options {
    /// Reads the arguments.
    pub(crate) fn read(arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
        let (mut storage, mut face, mut iwarp) = (false, false, false);
        let (mut seeds, mut from, mut trace, mut planted) = (None, 0, false, None);
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--storage" => storage = true,
                "--face" => face = true,
                "--iwarp" => iwarp = true,
                "--seeds" => seeds = Some(number("--seeds", arguments.next())?),
                "--from" => from = number("--from", arguments.next())?,
                "--trace" => trace = true,
                "--break" => {
                    let name = arguments.next().ok_or("--break needs the name of a bug, or list")?;
                    if name == "list" {
                        return Ok(Asked::List);
                    }
                    let bug = breaking::find(&name);
                    planted = Some(bug.ok_or_else(|| format!("there is no bug {name:?}; --break list"))?);
                }
                "--help" | "-h" => return Ok(Asked::Help),
                other => return Err(format!("there is no option {other:?}; --help lists the options")),
            }
        }
        let usual = if planted.is_some() { 1000 } else { 1 };
        Ok(Asked::Run(Options { storage, face, iwarp, seeds: seeds.unwrap_or(usual), from, trace, planted }))
    }
}

fn number(option: &str, value: Option<String>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("{option} needs a number"))?;
    value.parse().map_err(|_| format!("{option} needs a number, not {value:?}"))
}

/// The command that runs a seed again and tells its story.
pub(crate) fn replay(seed: u64, options: &Options) -> String {
    // With debug assertions, threads are preempted at locks as well.
    let profile = if cfg!(debug_assertions) { "" } else { " --release" };
    let storage = if options.storage { " --storage" } else { "" };
    let face = if options.face { " --face" } else { "" };
    let iwarp = if options.iwarp { " --iwarp" } else { "" };
    let planted = options.planted.map_or(String::new(), |bug| format!(" --break {} --seeds 1", bug.name()));
    format!("cargo run -p sim{profile} --{storage}{face}{iwarp} --from {seed} --trace{planted}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Asked, String> {
        Options::read(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_read() {
        let (storage, face, iwarp) = (true, true, true);
        let all = Options { storage, face, iwarp, seeds: 10, from: 7, trace: true, planted: None };
        assert_eq!(read("--storage --face --iwarp --seeds 10 --from 7 --trace"), Ok(Asked::Run(all)));
        let (storage, face, iwarp) = (false, false, false);
        let usual = Options { storage, face, iwarp, seeds: 1, from: 0, trace: false, planted: None };
        assert_eq!(read(""), Ok(Asked::Run(Options { ..usual })));
        let broken = Options { seeds: 1000, planted: Some(Bug::StaleKey), ..usual };
        assert_eq!(read("--break stale-key"), Ok(Asked::Run(broken)));
        assert_eq!(read("--from 3 --help"), Ok(Asked::Help));
        assert_eq!(read("--break list"), Ok(Asked::List));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, words) in [
            ("--seeds", "--seeds needs a number"),
            ("--from x", "--from needs a number, not \"x\""),
            ("--break", "--break needs the name of a bug"),
            ("--break it", "there is no bug \"it\""),
            ("--quick", "there is no option \"--quick\""),
        ] {
            assert!(read(line).is_err_and(|why| why.contains(words)), "{line}");
        }
    }
}
