//! Messages of 64 bytes back and forth, measured as half of a round trip. By polling, the baseline
//! is a word that the device answers; by interrupt, it is a kick that the device answers with an
//! MSI-X interrupt.

use common::Failure;
use kernel::clock;

use super::Role;
use super::link::{Link, Wait};
use crate::samples::{Samples, Summary, report};

const ROUNDS: usize = 3_000;
/// The value that ends a phase.
const END: u64 = u64::MAX;

/// How a message is sent, and how the target waits for it.
#[derive(Clone, Copy)]
enum Kind {
    /// By RDMA Write; the target polls its memory.
    Write,
    /// By RDMA Write, and a Send of no bytes that wakes the target.
    WriteAndSend,
    /// By Send.
    Send(Wait),
}

const KINDS: [(&str, Kind); 4] = [
    ("64-byte RDMA Write, polled", Kind::Write),
    ("64-byte Send, polled", Kind::Send(Wait::Polling)),
    ("64-byte RDMA Write and empty Send, blocking", Kind::WriteAndSend),
    ("64-byte Send, blocking", Kind::Send(Wait::Blocking)),
];

impl Kind {
    fn send(self, link: &Link, value: u64) -> Result<(), Failure> {
        match self {
            Kind::Write => link.write_small(value),
            Kind::WriteAndSend => {
                link.write_small(value)?;
                link.send_empty()
            }
            Kind::Send(_) => link.send_small(value),
        }
    }

    /// Waits for a message after the one whose value was `last`; returns its value.
    fn receive(self, link: &Link, last: u64) -> Result<u64, Failure> {
        match self {
            Kind::Write => loop {
                let value = link.arrived()?;
                if value != last {
                    return Ok(value);
                }
                core::hint::spin_loop();
            },
            Kind::WriteAndSend => link.received(Wait::Blocking)?,
            Kind::Send(wait) => link.received(wait)?,
        }
        link.arrived()
    }

    /// Reaps the requests of [`Kind::send`], which are complete, since the peer has answered.
    fn reap(self, link: &Link) -> Result<(), Failure> {
        if let Kind::WriteAndSend = self {
            link.done(Wait::Polling)?;
        }
        link.done(Wait::Polling)
    }
}

/// The single message for which a consumer waits without polling.
const BLOCKING_SEND: Kind = Kind::Send(Wait::Blocking);

/// Measures and prints.
pub fn measure(link: &Link, over: &str, (word, interrupt): (Summary, Summary)) -> Result<(), Failure> {
    for (name, kind) in KINDS {
        let figure = half_round_trip(link, kind)?;
        let baseline = match kind {
            Kind::Write | Kind::Send(Wait::Polling) => word,
            Kind::WriteAndSend | Kind::Send(Wait::Blocking) => interrupt,
        };
        report(&alloc::format!("{over}: {name}, half round trip"), figure, Some(baseline));
    }
    Ok(())
}

/// Answers the messages of [`measure`].
pub fn answer(link: &Link) -> Result<(), Failure> {
    KINDS.iter().try_for_each(|(_, kind)| echo(link, *kind))
}

/// Measures a blocking Send.
pub fn blocking_send(link: &Link) -> Result<Summary, Failure> {
    half_round_trip(link, BLOCKING_SEND)
}

/// Answers the messages of [`blocking_send`].
pub fn answer_blocking_send(link: &Link) -> Result<(), Failure> {
    echo(link, BLOCKING_SEND)
}

fn half_round_trip(link: &Link, kind: Kind) -> Result<Summary, Failure> {
    link.barrier(Role::Client)?;
    // The last word of the barrier's message, which is not an answer.
    let mut last = 0;
    let mut round = |value: u64| {
        let begin = clock::tsc();
        kind.send(link, value)?;
        let answer = kind.receive(link, last)?;
        let ticks = clock::tsc() - begin;
        kind.reap(link)?;
        last = answer;
        match answer == value {
            true => Ok(ticks / 2),
            false => Err(Failure::new("an answer to another message")),
        }
    };
    let mut value = 0;
    let samples = Samples::take(ROUNDS, || {
        value += 1;
        round(value)
    })?;
    round(END)?;
    link.barrier(Role::Client)?;
    Ok(samples.summary())
}

/// Answers each message with its value.
fn echo(link: &Link, kind: Kind) -> Result<(), Failure> {
    link.barrier(Role::Server)?;
    // The last word of the barrier's message, which is not one to answer.
    let mut last = 0;
    while last != END {
        last = kind.receive(link, last)?;
        kind.send(link, last)?;
        kind.reap(link)?;
    }
    link.barrier(Role::Server)
}
