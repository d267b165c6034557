//! The messages by which a host authenticates, and the texts of keys and of the file of hosts.
//!
//! What must hold: no text makes a parser panic; a host passes only if it has sent the right
//! response to the challenge of the same transaction; what has failed never passes; each message of
//! the controller is one that a host can read.

use std::sync::Arc;

use nvme::auth::hosts::{Choice, parse};
use nvme::auth::message::{Challenge, Failed, Kind, Negotiate, Reply, Success1, Success2, kind};
use nvme::auth::{Digest, Group, Hash, Secret, Transaction};
use platform::Platform;
use storage::target::Host;
use storage::testing::Asking;

use crate::Input;

const STEPS: usize = 32;
const HOST: &str = "nqn.2026-01.org.ferrovia:host";
const SUBSYSTEM: &str = "nqn.2026-01.org.ferrovia:fuzz";
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const ROOM: usize = 4096;
const ID: u16 = 7;

pub(crate) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    parse(&text).for_each(drop);
    let _ = Secret::parse(&text);
    let outcome = sim::run(1, 1, |world| scene(&world.platform(), &mut Input::new(bytes)));
    assert_eq!(outcome.left, Vec::<String>::new(), "threads that did not end");
}

/// A transaction, and what the host knows of it.
struct Talk {
    controller: Asking,
    /// The right reply to the challenge, once that came.
    right: Option<Vec<u8>>,
    hash: Hash,
    /// The host has sent a reply whose response is right.
    may_pass: bool,
    has_failed: bool,
}

fn scene(platform: &Arc<dyn Platform>, input: &mut Input<'_>) {
    let mut known = Host { key: Secret::parse(KEY).ok(), ..Host::new(HOST) };
    known.controller_key = known.key.clone().filter(|_| input.rarely(2));
    known.groups = Choice::new([Group::Null, Group::Ffdhe2048]).expect("two");
    let begin = || Talk {
        controller: Asking::new(platform, &known, SUBSYSTEM).expect("a key"),
        right: None,
        hash: Hash::Sha256,
        may_pass: false,
        has_failed: false,
    };
    let mut talk = begin();
    // A reply of an earlier transaction.
    let mut earlier: Option<Vec<u8>> = None;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(10) {
            0 => {
                let len = input.below(200);
                talk.controller.take(input.bytes(len));
            }
            1 | 2 => {
                let mut bytes = [0; Negotiate::LEN];
                let groups: &[u8] = if input.rarely(8) { &[1] } else { &[0, 1] };
                let hashes = [input.byte() % 4, 1 + input.byte() % 3];
                let len = Negotiate { id: ID, hashes: &hashes, groups }.write(&mut bytes);
                change(&mut bytes[..len], input, 8);
                talk.controller.take(&bytes[..len]);
            }
            3 | 4 => talk.reply(input),
            5 => {
                let mut message = earlier.clone().unwrap_or_default();
                change(&mut message, input, 2);
                talk.controller.take(&message);
            }
            6 => talk.controller.take(&Success2 { id: ID }.bytes()),
            7 => talk.controller.take(&Failed { id: ID, reason: None }.bytes(input.rarely(2))),
            8 => {
                earlier = talk.right.take().or(earlier);
                talk = begin();
            }
            _ => talk.receive(if input.rarely(8) { input.below(256) } else { ROOM }),
        }
        talk.check();
    }
}

/// Changes a byte, once in so many times; returns its place.
fn change(message: &mut [u8], input: &mut Input<'_>, often: usize) -> Option<usize> {
    if message.is_empty() || !input.rarely(often) {
        return None;
    }
    let place = input.below(message.len().min(256));
    let old = message[place];
    message[place] = input.byte();
    (message[place] != old).then_some(place)
}

impl Talk {
    /// Sends the right reply, or nearly.
    fn reply(&mut self, input: &mut Input<'_>) {
        let Some(mut message) = self.right.clone() else { return };
        let place = change(&mut message, input, 2);
        let len = if input.rarely(8) { input.below(message.len().min(256)) } else { message.len() };
        let is_response = place.is_some_and(|place| (16..16 + self.hash.len()).contains(&place));
        self.may_pass |= !is_response && len == message.len();
        self.controller.take(&message[..len]);
    }

    /// Receives a message, which has to be a proper one.
    fn receive(&mut self, room: usize) {
        let Some(message) = self.controller.give(room) else { return };
        match kind(&message).expect("a message").0 {
            Kind::Challenge => {
                let asked = Challenge::parse(&message).expect("a challenge");
                self.hash = asked.hash;
                let hash = asked.hash;
                let names = (HOST, SUBSYSTEM);
                let transaction =
                    Transaction { hash, id: asked.id, concatenation: 0, host: names.0, subsystem: names.1 };
                let key = Secret::parse(KEY).expect("a key").key(HOST);
                let response = transaction.of_host(&key, &Digest::new(asked.challenge), asked.sequence);
                let own = vec![9; hash.len()];
                let value = vec![3; asked.group.len()];
                let challenge = Some((&own[..], 5));
                let mut reply = vec![0; ROOM];
                let message = Reply { id: asked.id, response: response.bytes(), challenge, value: &value };
                let len = message.write(&mut reply);
                reply.truncate(len);
                // With an exchange it is a wrong one.
                self.right = Some(reply);
            }
            Kind::Success1 => {
                assert!(self.may_pass, "success without a right response");
                Success1::parse(&message, self.hash).expect("success");
            }
            Kind::Failure1 => {
                Failed::parse(&message).expect("a failure").reason.expect("a reason");
            }
            other => panic!("the controller sends {other:?}"),
        }
    }

    fn check(&mut self) {
        match self.controller.outcome() {
            Some(true) => assert!(self.may_pass && !self.has_failed, "a host has passed without a key"),
            Some(false) => self.has_failed = true,
            None => assert!(!self.has_failed, "a failure is forgotten"),
        }
    }
}
