//! The controller's side of an authentication, as a state machine without I/O: it takes the host's
//! messages, says what has to be computed, and has the next message for the host.
//!
//! A message that is wrong, or out of turn, is a failure: the host finds out by the message that it
//! receives next, and the transaction is over.

use alloc::boxed::Box;
use alloc::vec::Vec;

use nvme::auth::hosts::Choice;
use nvme::auth::message::{Challenge, Failed, Kind, Negotiate, Reply, Success1, Success2, kind};
use nvme::auth::{Digest, Group, Hash, Reason, Transaction, augmented};
use platform::planted::{Bug, planted};
use zeroize::Zeroizing;

use crate::auth::{Exponent, Random};

/// What the target knows of a host that has to authenticate.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The host's key.
    pub(crate) host: Digest,
    /// The controller's key, if there is one.
    pub(crate) controller: Option<Digest>,
    /// The hash functions and the groups that the target takes, its favourites first.
    pub(crate) hashes: Choice<Hash, 3>,
    pub(crate) groups: Choice<Group, 6>,
}

/// The names of the two sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names<'a> {
    pub(crate) host: &'a str,
    pub(crate) subsystem: &'a str,
}

/// Where a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The host has to propose something.
    Negotiate,
    /// The target computes its value.
    Choosing,
    /// The host has to fetch the challenge.
    Challenge,
    /// The host has to reply.
    Reply,
    /// The target computes the shared value.
    Verifying,
    /// The host has to fetch the message that it has succeeded.
    Success1,
    /// The host has to say whether the controller has.
    Success2,
    /// The host has to fetch the message that it has failed.
    Failure(Reason),
    /// It is over: the host has authenticated, or has not.
    Over(Result<(), Reason>),
}

/// Something to be computed.
pub(crate) struct Job {
    pub(crate) group: Group,
    pub(crate) exponent: Exponent,
    /// The base: the host's value, or the group's generator.
    pub(crate) value: Option<Vec<u8>>,
}

/// What a host receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// A message of so many bytes.
    Message(usize),
    /// It is not the controller's turn.
    Nothing,
    /// There is too little room for the message, which stays.
    NoRoom,
}

/// A transaction.
pub(crate) struct Responder {
    keys: Keys,
    state: State,
    /// The transaction's identifier, once the host has named it.
    id: u16,
    hash: Hash,
    group: Group,
    /// The challenge, and its sequence number.
    challenge: Digest,
    sequence: u32,
    exponent: Option<Exponent>,
    /// The target's value of the exchange.
    value: Vec<u8>,
    /// The host's response.
    response: Digest,
    /// What the host asks the controller.
    asked: Option<(Digest, u32)>,
    /// The controller's response.
    answer: Option<Digest>,
}

impl Responder {
    /// A transaction with a host that has these keys, which begins with the host's proposal.
    pub(crate) fn new(keys: Keys, sequence: u32) -> Responder {
        Responder {
            keys,
            state: State::Negotiate,
            id: 0,
            hash: Hash::Sha256,
            group: Group::Null,
            challenge: Digest::default(),
            sequence,
            exponent: None,
            value: Vec::new(),
            response: Digest::default(),
            asked: None,
            answer: None,
        }
    }

    /// Whether the next message for the host is still being computed.
    pub(crate) fn is_computing(&self) -> bool {
        matches!(self.state, State::Choosing | State::Verifying)
    }

    /// How it ended: whether the host has authenticated. `None` if it has not ended.
    pub(crate) fn outcome(&self) -> Option<Result<(), Reason>> {
        match self.state {
            State::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Why it will end, if that is settled already, and the host has to be told.
    pub(crate) fn failure(&self) -> Option<Reason> {
        match self.state {
            State::Failure(reason) | State::Over(Err(reason)) => Some(reason),
            _ => None,
        }
    }

    /// Takes a message of the host. Returns what is to be computed for the next one.
    pub(crate) fn take(&mut self, message: &[u8], random: &Random, names: Names<'_>) -> Option<Job> {
        match self.taken(message, random, names) {
            Ok(job) => job,
            Err(reason) => {
                self.fail(reason);
                None
            }
        }
    }

    fn taken(&mut self, message: &[u8], random: &Random, names: Names<'_>) -> Result<Option<Job>, Reason> {
        if matches!(self.state, State::Failure(_) | State::Over(_)) {
            // The first failure counts.
            return Ok(None);
        }
        let (kind, id) = kind(message)?;
        if self.state == State::Negotiate {
            // Also in the message that refuses it.
            self.id = id;
        } else if id != self.id {
            return Err(Reason::Payload);
        }
        match (self.state, kind) {
            (State::Negotiate, Kind::Negotiate) => self.negotiate(&Negotiate::parse(message)?, random),
            (State::Reply, Kind::Reply) => {
                let reply = Reply::parse(message, self.hash, self.group)?;
                self.reply(&reply, names)
            }
            (State::Success2, Kind::Success2) => {
                Success2::parse(message)?;
                self.state = State::Over(Ok(()));
                Ok(None)
            }
            // The host has authenticated, and does not believe the controller.
            (State::Success2, Kind::Failure2) => {
                Failed::parse(message)?;
                self.state = State::Over(Ok(()));
                Ok(None)
            }
            (State::Reply, Kind::Failure2) => {
                let reason = Failed::parse(message)?.reason;
                self.state = State::Over(Err(reason.unwrap_or(Reason::Failed)));
                Ok(None)
            }
            _ => Err(Reason::Message),
        }
    }

    fn negotiate(&mut self, proposed: &Negotiate<'_>, random: &Random) -> Result<Option<Job>, Reason> {
        let hash = self.keys.hashes.iter().find(|&hash| proposed.hashes.contains(&(hash as u8)));
        self.hash = hash.ok_or(Reason::Hash)?;
        let group = self.keys.groups.iter().find(|&group| proposed.groups.contains(&(group as u8)));
        self.group = group.ok_or(Reason::Group)?;
        let mut challenge = Zeroizing::new([0; Digest::LONGEST]);
        let challenge = &mut challenge[..self.hash.len()];
        if !random.fill(challenge) {
            return Err(Reason::Failed);
        }
        if planted(Bug::ChallengeAgain) {
            challenge.fill(1);
            self.sequence = 1;
        }
        self.challenge = Digest::new(challenge);
        if self.group == Group::Null {
            self.state = State::Challenge;
            return Ok(None);
        }
        let exponent = Exponent::new(self.group, random).ok_or(Reason::Failed)?;
        self.exponent = Some(exponent.clone());
        self.state = State::Choosing;
        Ok(Some(Job { group: self.group, exponent, value: None }))
    }

    fn reply(&mut self, reply: &Reply<'_>, names: Names<'_>) -> Result<Option<Job>, Reason> {
        if reply.challenge.is_some() && self.keys.controller.is_none() {
            return Err(Reason::Failed);
        }
        // Whoever returns the controller's challenge may want it to answer in the place of a host.
        if reply.challenge.is_some_and(|(challenge, _)| self.challenge.is(challenge)) {
            return Err(Reason::Failed);
        }
        self.response = Digest::new(reply.response);
        self.asked = reply.challenge.map(|(challenge, sequence)| (Digest::new(challenge), sequence));
        if self.group == Group::Null {
            self.verify(None, names)?;
            return Ok(None);
        }
        let exponent = self.exponent.take().ok_or(Reason::Failed)?;
        self.state = State::Verifying;
        Ok(Some(Job { group: self.group, exponent, value: Some(reply.value.to_vec()) }))
    }

    /// Takes what was computed; `None` if the host's value is none of the group's.
    pub(crate) fn computed(&mut self, result: Option<Zeroizing<Box<[u8]>>>, names: Names<'_>) {
        let done = match (self.state, result) {
            (State::Choosing, Some(value)) => {
                self.value = value.to_vec();
                self.state = State::Challenge;
                Ok(())
            }
            (State::Verifying, Some(shared)) => self.verify(Some(&shared), names),
            (_, None) => Err(Reason::Payload),
            (_, Some(_)) => Ok(()),
        };
        if let Err(reason) = done {
            self.fail(reason);
        }
    }

    fn verify(&mut self, shared: Option<&[u8]>, names: Names<'_>) -> Result<(), Reason> {
        let Names { host, subsystem } = names;
        let transaction = Transaction { hash: self.hash, id: self.id, concatenation: 0, host, subsystem };
        let challenge = augmented(self.hash, self.challenge.bytes(), shared);
        let expected = transaction.of_host(&self.keys.host, &challenge, self.sequence);
        if !expected.is(self.response.bytes()) && !planted(Bug::ProofIgnored) {
            return Err(Reason::Failed);
        }
        self.answer = match (self.asked.take(), &self.keys.controller) {
            (Some((challenge, sequence)), Some(key)) => {
                let challenge = augmented(self.hash, challenge.bytes(), shared);
                Some(transaction.of_controller(key, &challenge, sequence))
            }
            _ => None,
        };
        self.state = State::Success1;
        Ok(())
    }

    fn fail(&mut self, reason: Reason) {
        self.state = State::Failure(reason);
    }

    /// Writes the next message for the host.
    pub(crate) fn give(&mut self, into: &mut [u8]) -> Given {
        let (len, next) = match self.state {
            State::Challenge => {
                let (challenge, value) = (self.challenge.bytes(), &self.value[..]);
                let (hash, group, sequence) = (self.hash, self.group, self.sequence);
                let message = Challenge { id: self.id, hash, group, sequence, challenge, value };
                (message.write(into), State::Reply)
            }
            State::Success1 => {
                let response = self.answer.as_ref().map(Digest::bytes);
                let next = if response.is_some() { State::Success2 } else { State::Over(Ok(())) };
                (Success1 { id: self.id, hash: self.hash, response }.write(into), next)
            }
            State::Failure(reason) => {
                let message = Failed { id: self.id, reason: Some(reason) }.bytes(false);
                if let Some(place) = into.get_mut(..message.len()) {
                    place.copy_from_slice(&message);
                }
                (message.len(), State::Over(Err(reason)))
            }
            State::Negotiate | State::Reply | State::Success2 => return Given::Nothing,
            State::Choosing | State::Verifying | State::Over(_) => return Given::Nothing,
        };
        if len > into.len() {
            return Given::NoRoom;
        }
        self.state = next;
        Given::Message(len)
    }
}
