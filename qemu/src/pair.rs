//! Two machines: two guests whose NICs are on one device, joined by short cuts.
//!
//! Both run the same image. The launcher gives it a role by words on its command line:
//! `role=client` on machine A and `role=server` on machine B, and the other machine's address,
//! `peer=ADDRESS`. Each line that a guest writes is passed on with the name of its machine before
//! it.
//!
//! The first guest that fails decides the outcome. Its NIC is powered off, so the other guest finds
//! its connections broken. The other guest has some time to say so, then it is ended.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use nic_model::NicConfig;

use crate::error::{Error, Result};
use crate::guests::Guests;
use crate::launch::{Launcher, Output};
use crate::options::Options;
use crate::tour::{Payload, Server};
use crate::vm::Event;

/// The machines' names, by the numbers of their guests.
pub const NAMES: [&str; 2] = ["A", "B"];
/// The word that tells the image of each machine its role.
const ROLES: [&str; 2] = ["client", "server"];
/// How long a guest may go on after the other one has failed. A connection breaks after some 2
/// seconds without an answer.
const GRACE: Duration = Duration::from_secs(20);

/// Runs an image, the tour, or the transfer of a file on two machines; returns their status.
pub fn pair(options: &Options, app: Option<&str>, words: &[OsString]) -> Result<u8> {
    // Each guest has one NIC unless the user wants more.
    let options = &Options { nics: Some(options.nics.unwrap_or(1)), ..options.clone() };
    match (app, words) {
        (None, _) => move_payload(options, Vec::new(), Payload::of_the_tour()),
        (Some("tour"), _) => move_payload(options, text(words)?, Payload::of_the_tour()),
        (Some("transfer"), [file]) => {
            move_payload(options, vec!["transfer".into()], Payload::of_file(Path::new(file))?)
        }
        (Some("transfer"), _) => Err(Error::Usage("pair transfer takes one FILE (see --help)".into())),
        (Some(image), _) => {
            let launcher = Launcher::prepare(options, image)?;
            run(&launcher, &text(words)?, |_, _, _| Ok(false))
        }
    }
}

/// The words, which go on the kernel's command line.
fn text(words: &[OsString]) -> Result<Vec<String>> {
    let not_text = |word: &OsString| Error::Usage(format!("{}: not text", word.display()));
    words.iter().map(|word| word.to_str().map(str::to_owned).ok_or_else(|| not_text(word))).collect()
}

/// Moves a payload from machine A to machine B.
fn move_payload(options: &Options, mut words: Vec<String>, payload: Payload) -> Result<u8> {
    let launcher = Launcher::prepare(options, "tour")?;
    words.push(payload.word());
    let mut server = Server::begin("pair", payload);
    run(&launcher, &words, |guests, guest, line| server.line(guests.memory(guest), line))
}

/// Runs an image on two machines, each with these words on its command line, until both guests have
/// ended. A line for which `takes` returns true is not passed on.
pub fn run(
    launcher: &Launcher,
    words: &[String],
    mut takes: impl FnMut(&Guests, usize, &str) -> Result<bool>,
) -> Result<u8> {
    let mut outputs = NAMES.map(|name| Output::of_machine(launcher.symbols(), name));
    let mut guests = launcher.start_all(&command_lines(launcher.nics(), words))?;
    let deadline = launcher.deadline(guests.started(0));
    let mut verdict = Verdict::default();
    loop {
        let until = deadline.into_iter().chain(verdict.patience_ends).min();
        match guests.next(until)? {
            Some((guest, Event::Line(line))) => {
                if !takes(&guests, guest, &line)? {
                    outputs[guest].line(&line)?;
                }
            }
            Some((_, Event::FirstThread)) => {}
            Some((guest, Event::Ended(exit))) => verdict.ended(guest, exit.status()),
            Some((guest, Event::Stalled(silence))) => {
                guests.end(guest);
                verdict.ended(guest, Err(Error::Stalled(silence)));
            }
            Some((_, Event::Deadline)) | None => {
                let running: Vec<usize> = guests.running().collect();
                if !running.is_empty() && !verdict.is_over() {
                    return Err(launcher.timed_out());
                }
                for guest in running {
                    complain!(
                        "ferrovia: machine {} was still running {} s after the other one had failed; QEMU \
                         was ended",
                        NAMES[guest],
                        GRACE.as_secs()
                    );
                }
                return verdict.outcome.unwrap_or(Ok(0));
            }
        }
    }
}

/// The words for each machine, whose guests have so many NICs each.
fn command_lines(nics: u32, words: &[String]) -> [Vec<String>; 2] {
    let address = |guest: u32| {
        let number = u8::try_from(guest * nics).unwrap_or(u8::MAX);
        Ipv4Addr::from(NicConfig::numbered(number, 0).ipv4)
    };
    [0, 1].map(|guest: u32| {
        let (role, peer) = (ROLES[guest as usize], address(1 - guest));
        let own = [format!("role={role}"), format!("peer={peer}")];
        own.into_iter().chain(words.iter().cloned()).collect()
    })
}

/// How the machines ended.
#[derive(Default)]
struct Verdict {
    /// How the first one failed, if one has.
    outcome: Option<Result<u8>>,
    /// When the other one has to be done.
    patience_ends: Option<Instant>,
}

impl Verdict {
    fn ended(&mut self, guest: usize, status: Result<u8>) {
        let name = NAMES[guest];
        let status = match status {
            Ok(0) => return,
            Ok(status) => {
                complain!("ferrovia: machine {name} ended with status {status}");
                Ok(status)
            }
            Err(error) => Err(Error::Machine { name, error: Box::new(error) }),
        };
        if self.outcome.is_none() {
            self.outcome = Some(status);
            self.patience_ends = Instant::now().checked_add(GRACE);
        }
    }

    /// Whether the time is over that the other machine has after the first one's failure.
    fn is_over(&self) -> bool {
        self.patience_ends.is_some_and(|end| Instant::now() >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_gets_its_role_and_the_others_address() {
        let [a, b] = command_lines(1, &["one".into()]);
        assert_eq!(a, ["role=client", "peer=10.0.0.2", "one"]);
        assert_eq!(b, ["role=server", "peer=10.0.0.1", "one"]);
        assert_eq!(command_lines(3, &[])[0], ["role=client", "peer=10.0.0.4"]);
        assert_eq!(command_lines(3, &[])[1], ["role=server", "peer=10.0.0.1"]);
    }

    #[test]
    fn the_first_failure_decides() {
        let mut verdict = Verdict::default();
        verdict.ended(0, Ok(0));
        assert!(verdict.outcome.is_none() && verdict.patience_ends.is_none());
        verdict.ended(1, Ok(100));
        verdict.ended(0, Err(Error::NoStatus));
        assert!(matches!(verdict.outcome, Some(Ok(100))));
        assert!(verdict.patience_ends.is_some() && !verdict.is_over());
        let mut verdict = Verdict::default();
        verdict.ended(1, Err(Error::NoStatus));
        verdict.ended(0, Ok(1));
        let Some(Err(error)) = verdict.outcome else { panic!("it failed") };
        assert!(error.to_string().starts_with("machine B: the guest ended"), "{error}");
        assert_eq!(error.status(), 1);
    }
}
