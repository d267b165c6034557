//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::error::{Error, Result};
use crate::options::Options;
use crate::{bench, conformance, runner, tour};

/// Boots Ferrovia's kernel in QEMU with emulated RDMA NICs, and moves data through IT-API
/// endpoints.
///
/// Without a command it gives the tour. If QEMU or the kernel's Rust target is missing, it is
/// installed if that takes no question; otherwise the commands to type are printed.
#[derive(Debug, Parser)]
#[command(name = "ferrovia", version, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    options: Options,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Boot, print the IA's capabilities, and move 16 MiB in each way (the default)
    Tour,
    /// Move FILE, of any size, in each way (send, write, read, direct) between two endpoints'
    /// memory
    Transfer {
        /// The file to move
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Run the conformance suite in the kernel
    Test {
        /// Run only tests whose names contain one of these
        #[arg(value_name = "FILTER")]
        filters: Vec<String>,
        /// Show the guest's output while tests run
        #[arg(long, alias = "nocapture")]
        show_output: bool,
    },
    /// Measure, each figure beside its baseline from the same run (use --release)
    Bench {
        /// Also write the figures to FILE, as a list of {name, value, unit, baseline, ratio}
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Boot the image targets/NAME, which may be one of your own
    Boot {
        /// The image's folder in targets
        #[arg(value_name = "NAME")]
        image: String,
        /// Words for the kernel's command line
        #[arg(value_name = "WORD")]
        words: Vec<String>,
    },
    /// Run the suite in the kernel and print which requirements of the specifications it shows
    Conformance {
        /// Also list the requirements that no passing test shows
        #[arg(long)]
        missing: bool,
    },
}

/// Runs the command that the arguments name (they begin after the program's name); returns the
/// process's status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<u8> {
    let arguments = std::iter::once(OsString::from("ferrovia")).chain(arguments);
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return error.print().map(|()| 0).map_err(|e| Error::system("write to standard output", e));
        }
        Err(error) => return Err(Error::Usage(one_line(&error.to_string()))),
    };
    let options = &cli.options;
    match cli.command.unwrap_or(Command::Tour) {
        Command::Tour => tour::tour(options),
        Command::Transfer { file } => tour::transfer(options, &file),
        Command::Test { filters, show_output } => runner::run_and_print(options, &filters, show_output),
        Command::Bench { json } => bench::bench(options, json.as_deref()),
        Command::Boot { image, words } => tour::boot(options, &image, &words),
        Command::Conformance { missing } => conformance::conformance(options, missing),
    }
}

/// The first paragraph of clap's report, in one line.
fn one_line(report: &str) -> String {
    let paragraph = report.lines().map(str::trim).take_while(|line| !line.is_empty());
    let line = paragraph.collect::<Vec<_>>().join(" ");
    format!("{} (see --help)", line.strip_prefix("error: ").unwrap_or(&line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn usage_error(arguments: &[&str]) -> String {
        match run(arguments.iter().map(OsString::from)) {
            Err(error @ Error::Usage(_)) => {
                assert_eq!(error.status(), 2);
                error.to_string()
            }
            other => panic!("{arguments:?} gave {other:?}"),
        }
    }

    #[test]
    fn the_parser_is_consistent_and_explains_everything() {
        let command = Cli::command();
        command.clone().debug_assert();
        for command in std::iter::once(&command).chain(command.get_subcommands()) {
            for argument in command.get_arguments() {
                let explained = argument.get_help().is_some()
                    || ["help", "version"].contains(&argument.get_id().as_str());
                assert!(explained, "{} {}", command.get_name(), argument.get_id());
            }
        }
    }

    #[test]
    fn wrong_arguments_get_one_clear_line() {
        for (arguments, words) in [
            (&["--bogus"][..], "--bogus"),
            (&["frobnicate"], "frobnicate"),
            (&["transfer"], "<FILE>"),
            (&["transfer", "a", "b"], "b"),
            (&["--cpus", "0"], "--cpus"),
            (&["--cpus", "x"], "--cpus"),
            (&["--nics", "9"], "--nics"),
            (&["--memory", "lots"], "not a size like 512M or 2G"),
            (&["--memory", "1M"], "at least 64M"),
            (&["--log", "loud"], "--log"),
            (&["--timeout", "0"], "--timeout"),
            (&["bench", "--json"], "--json"),
            (&["test", "a b"], "a b"),
            (&["boot", "nonexistent"], "the images are bench, hello,"),
        ] {
            let error = usage_error(arguments);
            assert!(error.contains(words), "{arguments:?}: {error}");
            assert!(!error.contains('\n'), "{arguments:?}: {error}");
        }
    }
}
