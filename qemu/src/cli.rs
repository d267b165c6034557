//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand, ValueEnum};

use crate::error::{Error, Result};
use crate::network::Transport;
use crate::options::Options;
use crate::{bench, conformance, images, linux, operator, pair, runner, serve, storage, tour, verbs};

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

/// An API of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Face {
    /// The Interconnect Transport API
    ItApi,
    /// The Direct Access Transport API, with its InfiniBand extensions
    Dat,
    /// VIPL, the consumer's calls of the Virtual Interface Architecture
    Via,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Boot, print the IA's capabilities, and move 16 MiB in each way (the default)
    Tour {
        /// role=client and peer=ADDRESS: move the bytes to the machine that another launcher gave
        /// role=server
        #[arg(value_name = "WORD", value_parser = key_value)]
        words: Vec<String>,
    },
    /// Move FILE, of any size, in each way (send, write, read, direct) between two endpoints'
    /// memory
    Transfer {
        /// The file to move
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The API that moves it. The ways of DAT and VIPL are send, write, write-immediate and
        /// read, on one machine; VIPL's on each reliable level
        #[arg(long, value_enum, default_value_t = Face::ItApi, conflicts_with = "words")]
        face: Face,
        /// role=client and peer=ADDRESS: move it to the machine that another launcher gave
        /// role=server (`tour role=server peer=ADDRESS`)
        #[arg(value_name = "WORD", value_parser = key_value)]
        words: Vec<String>,
    },
    /// Boot two machines whose NICs are joined, A (client) and B (server), and run APP on both
    Pair {
        /// An image of targets; rping, cmatose, udaddy, immediate or storage; or `transfer` and a
        /// FILE, from A to B [default: tour]
        #[arg(value_name = "APP")]
        app: Option<String>,
        /// The FILE, or words for the kernels' command lines
        #[arg(value_name = "WORD")]
        words: Vec<OsString>,
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
        #[command(flatten)]
        asked: bench::Asked,
    },
    /// Download and build what tests with Linux and `bench --against-linux` use, so that they need
    /// no network afterwards
    Prepare,
    /// Serve the NIC alone, and print the arguments that attach it to any QEMU with any kernel
    Nic,
    /// Serve disks to other machines: a target of NVMe over Fabrics, for `nvme connect -t rdma`
    Storage {
        #[command(flatten)]
        exports: Box<storage::Exports>,
    },
    /// Run PROGRAM, which uses libibverbs, on a NIC of Ferrovia in its own process: no RDMA
    /// hardware, kernel module or rights are needed (docs/verbs.md)
    Verbs {
        #[command(flatten)]
        asked: verbs::Asked,
    },
    /// Have a running `storage --control SOCKET` do something
    StorageCtl {
        /// The launcher's socket
        #[arg(value_name = "SOCKET")]
        socket: PathBuf,
        /// list; metrics; add ram=SIZE or add file=PATH, with block-size=BYTES, hosts=NQN,NQN,
        /// read-only; remove nsid=N; resize nsid=N size=SIZE; hosts [file=PATH]; disconnect
        /// host=NQN; drain; resume; save file=PATH; end
        #[arg(value_name = "COMMAND", required_unless_present = "live")]
        words: Vec<String>,
        /// Show what the target does, again each second
        #[arg(long, conflicts_with = "words")]
        live: bool,
    },
    /// Boot the image targets/NAME, which may be one of your own; NAME alone does the same
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

/// Runs the command that the arguments name (they begin after the program's name). Returns the
/// process's status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<u8> {
    let arguments: Vec<OsString> = std::iter::once(OsString::from("ferrovia")).chain(arguments).collect();
    let parsed = Cli::try_parse_from(&arguments).or_else(|error| match image(&arguments, &error) {
        Some(place) => {
            let (front, back) = arguments.split_at(place);
            Cli::try_parse_from(front.iter().chain([&OsString::from("boot")]).chain(back))
        }
        None => Err(error),
    });
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return error.print().map(|()| 0).map_err(|e| Error::system("write to standard output", e));
        }
        Err(error) => return Err(Error::Usage(one_line(&error.to_string()))),
    };
    let options = &cli.options;
    let command = cli.command.unwrap_or(Command::Tour { words: Vec::new() });
    let may_lack_link = match &command {
        // Without a link a program's NIC has one nevertheless.
        Command::Verbs { .. } => options.network.is_short_cut(),
        // The file may name the link, and the target checks what comes of both.
        Command::Storage { exports } => exports.has_file(),
        _ => false,
    };
    if !may_lack_link {
        options.network.check()?;
    }
    check_transport(options, &command)?;
    match &command {
        Command::Pair { .. } => {
            options.check_no_disks("pair boots two machines, and a disk belongs to one")?
        }
        Command::Bench { .. } => options.check_no_disks("bench has machines of its own")?,
        Command::Nic => options.check_no_disks("nic boots no guest")?,
        Command::Verbs { .. } => options.check_no_disks("verbs boots no guest")?,
        Command::Storage { exports } if exports.has_file() => {}
        _ if options.read_only && options.disks.is_empty() => {
            return Err(Error::Usage("--read-only is about disks; name one by --disk FILE".into()));
        }
        _ => {}
    }
    match command {
        Command::Tour { words } => tour::tour(options, words),
        Command::Transfer { file, face, mut words } => {
            let ways = match face {
                Face::ItApi => tour::WAYS,
                Face::Dat => {
                    words.push("face=dat".into());
                    tour::WAYS
                }
                Face::Via => {
                    words.push("face=via".into());
                    tour::VIA_WAYS
                }
            };
            tour::transfer(options, &file, words, ways)
        }
        Command::Pair { app, words } => pair::pair(options, app.as_deref(), &words),
        Command::Test { filters, show_output } => runner::run_and_print(options, &filters, show_output),
        Command::Bench { asked } => bench::bench(options, &asked),
        Command::Prepare => linux::prepare().map(|()| 0),
        Command::Nic => serve::serve(options),
        Command::Storage { exports } => storage::serve(options, &exports),
        Command::Verbs { asked } => verbs::verbs(options, &asked),
        Command::StorageCtl { socket, live: true, .. } => operator::live::run(&socket),
        Command::StorageCtl { socket, words, .. } => operator::client::run(&socket, &words),
        Command::Boot { image, words } => tour::boot(options, &image, &words),
        Command::Conformance { missing } => conformance::conformance(options, missing),
    }
}

/// The images and apps that connect by either transport.
const OVER_EITHER: [&str; 9] = [
    "tour",
    "transfer",
    "bench",
    "rping",
    "rping-server",
    "rping-client",
    "cmatose",
    "storage",
    "storage-client",
];

/// Checks that what is run knows the transport.
fn check_transport(options: &Options, command: &Command) -> Result<()> {
    let name = match command {
        _ if options.network.transport() == Transport::Infiniband => return Ok(()),
        Command::Storage { .. } | Command::Tour { .. } | Command::Test { .. } => return Ok(()),
        Command::Transfer { face: Face::ItApi, .. } => return Ok(()),
        Command::Transfer { .. } => {
            let why = "--face dat and via go over InfiniBand; leave out --transport iwarp";
            return Err(Error::Usage(why.into()));
        }
        Command::Bench { asked } if asked.verbs || asked.storage => {
            let why = "bench --verbs and --storage go over InfiniBand; leave out --transport iwarp";
            return Err(Error::Usage(why.into()));
        }
        Command::Bench { .. } => return Ok(()),
        Command::Boot { image, .. } => Some(image.as_str()),
        Command::Pair { app, .. } => Some(app.as_deref().unwrap_or("tour")),
        _ => None,
    };
    match name {
        Some(name) if OVER_EITHER.contains(&name) => Ok(()),
        _ => Err(Error::Usage(
            "--transport iwarp is for the tour, transfer, test, bench, rping, cmatose and storage (see \
             --help)"
                .into(),
        )),
    }
}

/// A word for the kernel's command line that an image reads as an option.
fn key_value(word: &str) -> std::result::Result<String, String> {
    if word.contains('=') { Ok(word.to_owned()) } else { Err("not a word like role=client".into()) }
}

/// The index of an image's name, if `error` says that the name stands where a command is expected.
fn image(arguments: &[OsString], error: &clap::Error) -> Option<usize> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let is_image = images::manifest(name).is_ok();
    arguments.iter().position(|argument| is_image && argument == name.as_str())
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
    fn an_image_may_stand_where_a_command_does() {
        let parsed = |line: &str| {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let error = Cli::try_parse_from(&arguments).expect_err("no command");
            image(&arguments, &error)
        };
        assert_eq!(parsed("ferrovia hello word --cpus 2"), Some(1));
        assert_eq!(parsed("ferrovia --cpus 2 rping-server size=9"), Some(3));
        assert_eq!(parsed("ferrovia frobnicate hello"), None);
        assert_eq!(parsed("ferrovia --bogus hello"), None);
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
            (&["transfer", "a", "b"], "'b' for '[WORD]...': not a word like role=client"),
            (&["transfer", "a", "--face", "ofi"], "possible values: it-api, dat, via"),
            (&["transfer", "a", "role=client", "--face", "via"], "cannot be used with"),
            (&["transfer", "a", "role=client", "--face", "dat"], "cannot be used with"),
            (&["--cpus", "0"], "--cpus"),
            (&["--cpus", "x"], "--cpus"),
            (&["--nics", "9"], "--nics"),
            (&["--memory", "lots"], "not a size like 512M or 2G"),
            (&["--memory", "1M"], "at least 64M"),
            (&["--log", "loud"], "--log"),
            (&["--timeout", "0"], "--timeout"),
            (&["hello", "--transport", "iwarp"], "is for the tour, transfer, test, bench, rping, cmatose"),
            (
                &["pair", "udaddy", "--transport", "iwarp"],
                "is for the tour, transfer, test, bench, rping, cmatose",
            ),
            (&["transfer", "a", "--face", "dat", "--transport", "iwarp"], "go over InfiniBand"),
            (&["bench", "--storage", "--transport", "iwarp"], "go over InfiniBand"),
            (&["bench", "--storage", "--verbs"], "cannot be used with"),
            (&["cmatose", "--transport", "iwarp", "--link", "udp:127.0.0.2"], "carries RoCEv2 only"),
            (&["--link", "tap:x"], "\"tap:x\" is no link"),
            (&["--link", "stream:x", "--ip", "10.0.0.0/24"], "names no single port"),
            (&["--link", "stream:x", "--mtu", "100"], "100 is not in 340..=65535"),
            (&["--link", "stream:x", "--impair", "loss=2"], "is no chance"),
            (&["--ip", "10.0.0.1/24"], "--ip needs a link"),
            (&["--link", "udp:127.0.0.2", "--ip", "10.0.0.1/24"], "needs --ip 127.0.0.2/LEN"),
            (&["hello", "--read-only"], "--read-only is about disks"),
            (&["hello", "--disk"], "--disk <FILE>"),
            (&["pair", "--disk", "a"], "--disk a: pair boots two machines"),
            (&["bench", "--disk", "a"], "--disk a: bench has machines of its own"),
            (&["nic", "--disk", "a", "--disk", "b"], "--disk a: nic boots no guest"),
            (&["storage", "--ram-disk", "64M"], "storage needs a link to its hosts"),
            (&["storage", "--link", "stream:x", "--ip", "10.0.0.1/24"], "something to export"),
            (&["storage", "--ram-disk", "0"], "a size is at least 1M"),
            (&["storage", "--ram-disk", "64M", "--nqn", "a b"], "no blanks"),
            (&["storage", "--ram-disk", "64M", "--port", "0"], "--port"),
            (&["storage", "--serial", "123456789012345678901"], "1 to 20 printable"),
            (&["storage", "--metrics", "9100"], "--metrics"),
            (&["storage", "--slots", "17"], "--slots"),
            (&["storage", "--path", "0"], "--path"),
            (&["storage", "--path", "9"], "--path"),
            (&["storage", "--ana", "change"], "no state to begin with"),
            (
                &["storage", "--link", "stream:x", "--ip", "10.0.0.1/24", "--slots", "1"],
                "--slots is of use only with --control",
            ),
            (&["storage-ctl", "x"], "<COMMAND>"),
            (&["storage-ctl", "x", "--live", "list"], "cannot be used with"),
            (&["storage-ctl", "/nonexistent", "remove", "2"], "no argument like nsid=2"),
            (&["bench", "--json"], "--json"),
            (&["test", "a b"], "a b"),
            (&["boot", "nonexistent"], "the images are apps-self, bench,"),
            (&["pair", "nonexistent"], "the images are apps-self, bench,"),
            (&["pair", "transfer"], "pair transfer takes one FILE"),
            (&["pair", "--link", "stream:x"], "--link stream:x: pair joins its machines by"),
            (&["pair", "--link", "stream", "--ip", "10.0.0.1/24"], "leave out --ip"),
            (&["bench", "--link", "pair"], "bench has links of its own"),
            (&["pair", "transfer", "a", "b"], "pair transfer takes one FILE"),
        ] {
            let error = usage_error(arguments);
            assert!(error.contains(words), "{arguments:?}: {error}");
            assert!(!error.contains('\n'), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn options_of_a_target_are_checked_together_with_those_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("storage.toml");
        let file = file.to_str().expect("text");
        let with = |text: &str, arguments: &[&str]| {
            std::fs::write(file, text).expect("write");
            usage_error(&[&["storage", "--config", file], arguments].concat())
        };
        let link = "link = \"stream:x\"\nip = [\"10.0.0.1/24\"]\n";
        let controlled = format!("{link}control = \"/x\"\n");
        let udp = format!("{link}hosts = \"x\"\n").replace("stream:x", "udp:127.0.0.2");
        for (text, arguments, words) in [
            (link, &["--ip", "10.0.0.9/24", "--mtu", "1500"][..], "something to export"),
            (link, &["--ram-disk", "1M", "--slots", "1"], "only with --control"),
            (&controlled, &["--slots", "1", "--hosts", "x", "--module", "y"], "cannot be used with"),
            (&format!("{link}hosts = \"x\"\n"), &["--module", "y"], "not from both"),
            (&udp, &[], "needs --ip 127.0.0.2/LEN"),
            (&format!("{link}path = 1\n"), &["--ram-disk", "1M"], "a RAM disk is the memory of one target"),
            (&format!("{controlled}state = \"x\"\n"), &["--path", "2"], "have no reservations"),
            ("", &["--ip", "10.0.0.1/24"], "--ip needs a link"),
        ] {
            let error = with(text, arguments);
            assert!(error.contains(words) && !error.contains('\n'), "{text} {arguments:?}: {error}");
        }
    }
}
