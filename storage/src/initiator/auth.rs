//! The host's side of authentication.

use alloc::boxed::Box;
use alloc::vec::Vec;

use nvme::auth::hosts::{Choice, GROUPS, HASHES};
use nvme::auth::message::{Challenge, Failed, Kind, Negotiate, Reply, Success1, Success2, kind};
use nvme::auth::{Digest, Group, Hash, LONGEST_MESSAGE, Reason, Secret, Transaction, augmented};
use nvme::fabrics::AuthenticationCommand;
use rdma::Region;
use zeroize::Zeroizing;

use super::{Failure, Initiator};
use crate::auth::{Exponent, Groups, Power, Random};

/// Bytes for a message of the controller.
const ROOM: usize = 4096;

/// How a host authenticates.
#[derive(Clone, Debug)]
pub struct Authentication {
    /// The host's key.
    pub key: Secret,
    /// The controller's key. With one the controller has to authenticate, too.
    pub controller_key: Option<Secret>,
    /// The hash functions that the host proposes.
    pub hashes: Choice<Hash, 3>,
    /// The groups that the host proposes.
    pub groups: Choice<Group, 6>,
}

impl Authentication {
    /// With a key, and all hash functions and groups.
    pub fn new(key: Secret) -> Authentication {
        Authentication { key, controller_key: None, hashes: HASHES, groups: GROUPS }
    }
}

/// What happens between two messages.
#[derive(Debug)]
pub(crate) enum Next {
    /// The host sends this, and receives the controller's next message.
    Send(Vec<u8>),
    /// The host sends this, and is done.
    Last(Vec<u8>, Result<(), Failure>),
    /// It is done.
    Done,
}

/// A transaction, without I/O.
pub(crate) struct Requester<'a> {
    pub(crate) how: &'a Authentication,
    pub(crate) host: &'a str,
    pub(crate) subsystem: &'a str,
    pub(crate) random: Random,
    pub(crate) id: u16,
    /// What the controller's response has to be, if it is asked for one.
    pub(crate) expected: Option<Digest>,
    /// The hash function, once the controller has chosen it.
    pub(crate) hash: Option<Hash>,
}

impl Requester<'_> {
    /// The proposal.
    pub(crate) fn begin(&self) -> [u8; Negotiate::LEN] {
        let mut bytes = [0; Negotiate::LEN];
        let hashes: heapless::Vec<u8, 3> = self.how.hashes.iter().map(|hash| hash as u8).collect();
        let groups: heapless::Vec<u8, 6> = self.how.groups.iter().map(|group| group as u8).collect();
        Negotiate { id: self.id, hashes: &hashes, groups: &groups }.write(&mut bytes);
        bytes
    }

    /// Takes a message of the controller.
    pub(crate) fn take(&mut self, message: &[u8]) -> Result<Next, Failure> {
        let wrong = |_| Failure::Protocol("a message of authentication is wrong");
        let (kind, id) = kind(message).map_err(wrong)?;
        if kind == Kind::Failure1 {
            return Err(Failure::NotAuthenticated(Failed::parse(message).map_err(wrong)?.reason));
        }
        if id != self.id {
            return Err(Failure::Protocol("a message of another authentication"));
        }
        match (kind, self.hash) {
            (Kind::Challenge, None) => self.reply(&Challenge::parse(message).map_err(wrong)?),
            (Kind::Success1, Some(hash)) => {
                let response = Success1::parse(message, hash).map_err(wrong)?.response;
                let Some(expected) = &self.expected else { return Ok(Next::Done) };
                let is_right = response.is_some_and(|response| expected.is(response));
                if is_right {
                    return Ok(Next::Last(Success2 { id }.bytes().to_vec(), Ok(())));
                }
                let failed = Failed { id, reason: Some(Reason::Failed) };
                Ok(Next::Last(failed.bytes(true).to_vec(), Err(Failure::ControllerNotAuthenticated)))
            }
            _ => Err(Failure::Protocol("a message of authentication out of turn")),
        }
    }

    fn reply(&mut self, asked: &Challenge<'_>) -> Result<Next, Failure> {
        let how = self.how;
        let (hash, group) = (asked.hash, asked.group);
        if !how.hashes.iter().any(|own| own == hash) || !how.groups.iter().any(|own| own == group) {
            return Err(Failure::Protocol("the controller chose what the host has not proposed"));
        }
        let mut exchange = None;
        if group != Group::Null {
            let exponent = Exponent::new(group, &self.random).ok_or(Failure::NoRandomNumbers)?;
            let mut groups = Groups::default();
            let shared = groups.continued(group, asked.value, exponent.clone());
            let shared = shared.ok_or(Failure::Protocol("the controller's value makes no secret"))?;
            let own = groups.begin(group, exponent).ok_or(Failure::Protocol("there is no such group"))?;
            exchange = Some((compute(own), compute(shared)));
        }
        let (own, shared) = match &exchange {
            None => (&[][..], None),
            Some((own, shared)) => (&own[..], Some(&shared[..])),
        };
        let (host, subsystem) = (self.host, self.subsystem);
        let transaction = Transaction { hash, id: self.id, concatenation: 0, host, subsystem };
        let challenge = augmented(hash, asked.challenge, shared);
        let response = transaction.of_host(&how.key.key(host), &challenge, asked.sequence);
        let mut challenge = Zeroizing::new([0; Digest::LONGEST]);
        let challenge = &mut challenge[..hash.len()];
        let mut challenge_of_host = None;
        if let Some(secret) = &how.controller_key {
            let sequence = self.random.sequence().filter(|_| self.random.fill(challenge));
            let sequence = sequence.ok_or(Failure::NoRandomNumbers)?;
            let augmented = augmented(hash, challenge, shared);
            let key = secret.key(subsystem);
            self.expected = Some(transaction.of_controller(&key, &augmented, sequence));
            challenge_of_host = Some((&*challenge, sequence));
        }
        self.hash = Some(hash);
        let reply =
            Reply { id: self.id, response: response.bytes(), challenge: challenge_of_host, value: own };
        let mut bytes = alloc::vec![0; LONGEST_MESSAGE];
        let len = reply.write(&mut bytes);
        bytes.truncate(len);
        Ok(Next::Send(bytes))
    }
}

/// Computes a power at once.
fn compute(mut power: Power) -> Zeroizing<Box<[u8]>> {
    loop {
        if let Some(result) = power.step() {
            return result;
        }
    }
}

impl Initiator {
    /// Authenticates the host once more, on all queues, as hosts do whose keys have changed.
    /// Blocks. No request may be outstanding.
    pub fn authenticate_again(&mut self, how: Authentication) -> Result<(), Failure> {
        let page = self.common.domain.direct(ROOM, self.common.privileged)?;
        self.options.authentication = Some(how);
        (0..self.queues.len()).try_for_each(|place| self.authenticate(place, &page))
    }

    /// Authenticates the host on a queue.
    pub(super) fn authenticate(&mut self, place: usize, page: &Region) -> Result<(), Failure> {
        let Some(how) = self.options.authentication.clone() else { return Err(Failure::NoKey) };
        let (host, subsystem) = (self.options.host.clone(), self.options.subsystem.clone());
        let random = Random::new(&self.platform)?;
        let id = random.sequence().ok_or(Failure::NoRandomNumbers)? as u16;
        let (how, host, subsystem) = (&how, &host[..], &subsystem[..]);
        let mut requester = Requester { how, host, subsystem, random, id, expected: None, hash: None };
        self.send_message(place, page, &requester.begin())?;
        loop {
            let what = AuthenticationCommand::receive(ROOM as u32).command();
            self.ask_by(place, "Authentication Receive", what, Some((page, 0, ROOM)), true)?;
            let mut message = Zeroizing::new(alloc::vec![0; ROOM]);
            page.slice(..).read(&mut message);
            match requester.take(&message)? {
                Next::Send(bytes) => self.send_message(place, page, &bytes)?,
                Next::Last(bytes, outcome) => {
                    self.send_message(place, page, &bytes)?;
                    return outcome;
                }
                Next::Done => return Ok(()),
            }
        }
    }

    fn send_message(&mut self, place: usize, page: &Region, message: &[u8]) -> Result<(), Failure> {
        page.slice(..).write(message);
        let command = AuthenticationCommand::send(message.len() as u32).command();
        let data = Some((page, 0, message.len()));
        self.ask_by(place, "Authentication Send", command, data, false).map(drop)
    }
}
