//! Two guests on one device process.

use crate::error::{Error, Result};
use crate::guests::Guests;
use crate::launch::{Launcher, Output, Start};
use crate::vm::Event;

use super::programs::is_ready;
use super::verdict::Verdict;
use super::{A, B, NAMES};

/// A machine: its launcher, and the words on its kernel's command line.
pub struct Machine<'a> {
    /// The image, and the options.
    pub launcher: &'a Launcher,
    /// The words.
    pub words: Vec<String>,
}

/// Runs two machines until both guests have ended. With `in_turn` machine A starts when the server
/// on machine B listens. A line for which `takes` returns true is not passed on.
pub fn run(
    machines: &[Machine<'_>; 2],
    in_turn: bool,
    mut takes: impl FnMut(&Guests, usize, &str) -> Result<bool>,
) -> Result<u8> {
    let launcher = machines[A].launcher;
    let mut outputs = [A, B].map(|n| Output::of_machine(machines[n].launcher.symbols(), NAMES[n]));
    let mut held = in_turn;
    let mut guests = launcher.start_all([A, B].map(|n| {
        let Machine { launcher, words } = &machines[n];
        Start { launcher, words, held: held && n == A }
    }))?;
    let deadline = launcher.deadline(guests.started(A));
    let mut verdict = Verdict::default();
    loop {
        let until = deadline.into_iter().chain(verdict.patience_ends).min();
        match guests.next(until)? {
            Some((guest, Event::Line(line))) => {
                if held && guest == B && is_ready(&line) {
                    held = false;
                    guests.release(A);
                }
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
                return verdict.conclude(running);
            }
        }
        if held && !guests.running().any(|guest| guest == B) {
            // The server has ended before it listened, so A has nothing to do.
            held = false;
            guests.end(A);
        }
    }
}
