//! The programs of two machines: the client on machine A, the server on machine B.
//!
//! Most images run on both and get their role by words on their command lines: `role=client` or
//! `role=server`, and the other machine's address, `peer=ADDRESS`. The programs of the crate `apps`
//! (docs/programs.md) and the storage target and its client (docs/storage.md) have other words for
//! that. Their clients fail if the server does not listen yet, so they start when the server is
//! ready.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::tour::Payload;

/// The roles of machines A and B.
const ROLES: [&str; 2] = ["client", "server"];
/// The prefix of the line by which a server reports that it listens.
const READY: &str = "ready: ";
/// The apps whose client fails if the server does not listen yet.
const IN_TURN: [&str; 5] = ["rping", "cmatose", "udaddy", "immediate", "storage"];
/// The apps with one image for both roles; its first word is the role.
const EITHER: [&str; 3] = ["cmatose", "udaddy", "immediate"];
/// What the storage target exports to its client: a RAM disk of 64 MiB.
const RAM_DISK: &str = "ram-disk=67108864";
/// Words of rping's client that its server takes too.
const RPING_SHARED: [&str; 3] = ["port=", "patience=", "size="];

/// What the user wants to run.
#[derive(Debug)]
pub enum App {
    /// The tour's payload goes from A to B.
    Tour,
    /// A file does.
    Transfer(PathBuf),
    /// An image of `targets`, or a pair of images: `rping`, `storage`.
    Image(String),
}

/// What one machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The image's name.
    pub image: String,
    /// The words on its command line.
    pub words: Vec<String>,
}

impl App {
    /// Reads the command line after `pair`: the app, and the words for the machines.
    pub fn parse(app: Option<&str>, words: &[OsString]) -> Result<(App, Vec<String>)> {
        match (app.unwrap_or("tour"), words) {
            ("tour", _) => Ok((App::Tour, text(words)?)),
            ("transfer", [file]) => Ok((App::Transfer(file.into()), Vec::new())),
            ("transfer", _) => Err(Error::Usage("pair transfer takes one FILE (see --help)".into())),
            (image, _) => Ok((App::Image(image.to_owned()), text(words)?)),
        }
    }

    /// The payload from machine A to machine B, if the launcher has to load one.
    pub fn payload(&self) -> Result<Option<Payload>> {
        match self {
            App::Tour => Ok(Some(Payload::of_the_tour())),
            App::Transfer(file) => Payload::of_file(file).map(Some),
            App::Image(_) => Ok(None),
        }
    }

    /// The programs of the machines with these addresses.
    pub fn programs(&self, words: &[String], addresses: [IpAddr; 2]) -> [Program; 2] {
        let program = |image: &str, own: &[&str], words: Vec<String>| Program {
            image: image.to_owned(),
            words: own.iter().map(|&word| word.to_owned()).chain(words).collect(),
        };
        let server = addresses[1].to_string();
        match self {
            App::Image(name) if name == "rping" => {
                let is_shared = |word: &&String| {
                    RPING_SHARED.iter().any(|key| word.starts_with(key)) || *word == "verbose"
                };
                let shared = words.iter().filter(is_shared).cloned().collect();
                [
                    program("rping-client", &[&server], words.to_vec()),
                    program("rping-server", &["clients=1"], shared),
                ]
            }
            App::Image(name) if name == "storage" => [
                program("storage-client", &[&server], words.to_vec()),
                program("storage", &[RAM_DISK, "until-idle"], Vec::new()),
            ],
            App::Image(name) if EITHER.contains(&name.as_str()) => [
                program(name, &["client", &server], words.to_vec()),
                program(name, &["server", "clients=1"], words.to_vec()),
            ],
            _ => {
                let image = match self {
                    App::Image(name) => name,
                    App::Tour | App::Transfer(_) => "tour",
                };
                [0, 1].map(|n| {
                    let (role, peer) = (format!("role={}", ROLES[n]), format!("peer={}", addresses[1 - n]));
                    program(image, &[&role, &peer], words.to_vec())
                })
            }
        }
    }

    /// Whether the client starts when the server is ready.
    pub fn in_turn(&self) -> bool {
        matches!(self, App::Image(name) if IN_TURN.contains(&name.as_str()))
    }

    /// A launcher's command for machine number `n` alone.
    pub fn command(&self, n: usize, program: &Program) -> Vec<OsString> {
        let head: Vec<OsString> = match self {
            App::Transfer(file) if n == 0 => vec!["transfer".into(), file.into()],
            App::Tour | App::Transfer(_) => vec!["tour".into()],
            App::Image(_) => vec!["boot".into(), (&program.image).into()],
        };
        head.into_iter().chain(program.words.iter().map(OsString::from)).collect()
    }
}

/// Whether a line is that by which a server reports that it listens.
pub fn is_ready(line: &str) -> bool {
    line.starts_with(READY)
}

/// The words as text for the kernel's command line.
fn text(words: &[OsString]) -> Result<Vec<String>> {
    let not_text = |word: &OsString| Error::Usage(format!("{}: not text", word.display()));
    words.iter().map(|word| word.to_str().map(str::to_owned).ok_or_else(|| not_text(word))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(line: &str) -> [String; 2] {
        let mut words = line.split(' ').map(OsString::from);
        let app = words.next().and_then(|app| app.into_string().ok());
        let (app, words) = App::parse(app.as_deref(), &words.collect::<Vec<_>>()).expect("an app");
        let programs = app.programs(&words, [[10, 0, 0, 1].into(), [10, 0, 0, 4].into()]);
        programs.map(|program| format!("{} {}", program.image, program.words.join(" ")))
    }

    #[test]
    fn each_machine_gets_its_role_and_the_others_address() {
        assert_eq!(
            programs("hello one"),
            ["hello role=client peer=10.0.0.4 one", "hello role=server peer=10.0.0.1 one"]
        );
        assert_eq!(programs("tour")[1], "tour role=server peer=10.0.0.1");
        assert_eq!(programs("transfer x")[0], "tour role=client peer=10.0.0.4");
    }

    #[test]
    fn programs_with_words_of_their_own_get_those() {
        assert_eq!(
            programs("rping count=3 size=9 verify port=7"),
            ["rping-client 10.0.0.4 count=3 size=9 verify port=7", "rping-server clients=1 size=9 port=7"]
        );
        assert_eq!(
            programs("udaddy count=3"),
            ["udaddy client 10.0.0.4 count=3", "udaddy server clients=1 count=3"]
        );
        for (name, in_turn) in [("rping", true), ("cmatose", true), ("storage", true), ("hello", false)] {
            assert_eq!(App::Image(name.into()).in_turn(), in_turn);
        }
        assert!(is_ready("ready: 10.0.0.2:7174") && !is_ready("already: x"));
    }

    #[test]
    fn a_launcher_of_its_own_runs_the_same() {
        let commands = |app: App| {
            let programs = app.programs(&[], [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]);
            [0, 1].map(|n| app.command(n, &programs[n]).join(std::ffi::OsStr::new(" ")))
        };
        assert_eq!(
            commands(App::Transfer("/a b".into())),
            ["transfer /a b role=client peer=10.0.0.2", "tour role=server peer=10.0.0.1"]
        );
        assert_eq!(
            commands(App::Image("rping".into())),
            ["boot rping-client 10.0.0.2", "boot rping-server clients=1"]
        );
    }
}
