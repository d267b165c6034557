//! A host that writes its own capsules: its connections, its commands, and the messages by which it
//! proves who it is. It has one command outstanding at a time, unless its user wants others.

use std::sync::Arc;

use ::storage::testing::{End, RawQueue};
use nvme::auth::message::{Challenge, Kind, Negotiate, Reply, kind};
use nvme::auth::{Digest, Hash, LONGEST_MESSAGE, Secret, Transaction};
use nvme::command::Command;
use nvme::completion::Completion;
use nvme::fabrics::{
    AUTHENTICATION_REQUIRED, AuthenticationCommand, CNTLID_DYNAMIC, Cc, Connect, ConnectData, Property,
    PropertySet,
};
use nvme::feature::{self, NumberOfQueues, SetFeatures};
use nvme::{Nqn, Status, private_data};
use platform::random::Random;
use zerocopy::IntoBytes;

use super::plan::NQN;
use super::shared::Shared;
use crate::harness::story::Story;
use crate::harness::wrong::{Must, Step, Wrong, hold};

/// The entries of its admin queue, and of its I/O queue.
pub(super) const ADMIN: u16 = 32;
pub(super) const IO: u16 = 8;
/// Where in a queue's memory messages of the host lie, and those of the controller.
const SENT: usize = 0;
const RECEIVED: usize = 4096;
/// The identifier of its transactions.
const ID: u16 = 7;

pub(super) struct Raw {
    pub(super) shared: Arc<Shared>,
    pub(super) random: Random,
    pub(super) story: Story,
    name: String,
    id: [u8; 16],
    /// The key that it has.
    pub(super) key: Option<Secret>,
}

impl Raw {
    pub(super) fn new(
        shared: &Arc<Shared>,
        seed: u64,
        story: Story,
        (name, id): (String, [u8; 16]),
        key: Option<Secret>,
    ) -> Raw {
        Raw { shared: shared.clone(), random: Random::new(seed), story, name, id, key }
    }

    /// Whether a connection may break without a reason of the host's own.
    pub(super) fn may_break(&self) -> bool {
        let plan = &self.shared.plan;
        plan.is_faulty || plan.is_impatient || self.shared.is_closing()
    }

    /// A connection, unless the target refuses it.
    pub(super) fn open(&mut self, id: u16, entries: u16) -> Step<Option<RawQueue>> {
        let nic = self.shared.adapters.nic(1)?;
        let place = self.shared.place(0)?;
        let said = private_data::Request::new(id, entries, entries - 1);
        match RawQueue::connect(&nic, place, said.as_bytes()) {
            Ok(mut queue) => match queue.end() {
                None => return Ok(Some(queue)),
                Some(end) => self.story.tell(|| format!("no connection: {end:?}")),
            },
            Err(error) => {
                self.story.tell(|| format!("no connection: {error}"));
                hold!(self.may_break(), "{} cannot connect: {error}", self.name);
            }
        }
        Ok(None)
    }

    /// Sends a command; returns its response. `None` if the connection is over.
    pub(super) fn say(&mut self, queue: &mut RawQueue, command: Command) -> Step<Option<Completion>> {
        let command = command.with_cid(self.random.word() as u16);
        queue.send(command.as_bytes());
        match queue.response() {
            Ok(response) => {
                hold!(response.cid == command.cid, "a response for another command");
                Ok(Some(response))
            }
            Err(End::Silent) if !self.may_break() => {
                Err(Wrong(format!("{} gets no response to {command:?}", self.name)))
            }
            Err(_) => Ok(None),
        }
    }

    /// Sends a command that has to succeed; returns its result. `None` if the connection is over,
    /// or there is no controller left.
    pub(super) fn ask(&mut self, queue: &mut RawQueue, command: Command) -> Step<Option<u64>> {
        match self.say(queue, command)? {
            Some(response) if response.status().is_success() => Ok(Some(response.result.get())),
            Some(response) => {
                let status = response.status();
                let busy = [Status::CONTROLLER_BUSY, Status::CONTROLLER_BUSY.dnr()].contains(&status);
                hold!(busy || self.may_break(), "a proper command of {} failed: {status}", self.name);
                Ok(None)
            }
            None => {
                hold!(self.may_break(), "a proper command of {} has no response", self.name);
                Ok(None)
            }
        }
    }

    /// Makes a queue one of a controller; returns the controller, and whether the host has to prove
    /// who it is.
    pub(super) fn join(
        &mut self,
        queue: &mut RawQueue,
        (id, entries): (u16, u16),
        controller: u16,
    ) -> Step<Option<(u16, bool)>> {
        let names = [NQN, &self.name].map(|name| Nqn::new(name.as_bytes()));
        let [Ok(subsystem), Ok(host)] = names else { return Err(Wrong("a name is no NQN".into())) };
        let data = ConnectData::new(self.id, controller, subsystem, host);
        queue.memory.write(SENT, data.as_bytes()).must("the data of a Connect")?;
        let command = Connect::new(id, entries - 1, 0).command();
        let command = command.with_sgl(queue.keyed(SENT, size_of::<ConnectData>()));
        let result = self.ask(queue, command)?;
        Ok(result.map(|result| (result as u16, result & AUTHENTICATION_REQUIRED != 0)))
    }

    /// Makes a queue the admin queue of an enabled controller with an I/O queue to connect; returns
    /// the controller.
    pub(super) fn begin(&mut self, admin: &mut RawQueue) -> Step<Option<u16>> {
        let Some((id, is_asked)) = self.join(admin, (0, ADMIN), CNTLID_DYNAMIC)? else { return Ok(None) };
        hold!(is_asked == self.key.is_some(), "{} is asked for a key: {is_asked}", self.name);
        if is_asked && !self.prove(admin)? {
            return Ok(None);
        }
        let enable = PropertySet::new(Property::Cc, Cc::new().with_enabled(true).0.into());
        let value = NumberOfQueues { submission: 1, completion: 1 }.value();
        let queues = SetFeatures { fid: feature::id::NUMBER_OF_QUEUES, save: false, nsid: 0, value };
        for command in [enable.command(), queues.command()] {
            if self.ask(admin, command)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(id))
    }

    /// Sends a message of authentication. False if the connection is over.
    pub(super) fn send_message(&mut self, queue: &mut RawQueue, message: &[u8]) -> Step<bool> {
        queue.memory.write(SENT, message).must("a message")?;
        let command = AuthenticationCommand::send(message.len() as u32).command();
        Ok(self.say(queue, command.with_sgl(queue.keyed(SENT, message.len())))?.is_some())
    }

    /// Receives one; `None` if there is none, or the connection is over.
    pub(super) fn receive_message(&mut self, queue: &mut RawQueue) -> Step<Option<Vec<u8>>> {
        let command = AuthenticationCommand::receive(LONGEST_MESSAGE as u32).command();
        let response = self.say(queue, command.with_sgl(queue.keyed(RECEIVED, LONGEST_MESSAGE)))?;
        if response.is_none_or(|response| !response.status().is_success()) {
            return Ok(None);
        }
        let mut message = vec![0; LONGEST_MESSAGE];
        queue.memory.read(RECEIVED, &mut message).must("a message")?;
        Ok(Some(message))
    }

    /// Begins a transaction, and receives the challenge.
    pub(super) fn be_challenged(&mut self, queue: &mut RawQueue) -> Step<Option<Vec<u8>>> {
        let mut bytes = [0; Negotiate::LEN];
        let len = Negotiate { id: ID, hashes: &[Hash::Sha256 as u8], groups: &[0] }.write(&mut bytes);
        if !self.send_message(queue, &bytes[..len])? {
            return Ok(None);
        }
        self.receive_message(queue)
    }

    /// The right reply to a challenge.
    pub(super) fn reply(&self, challenge: &[u8]) -> Step<Vec<u8>> {
        let asked = Challenge::parse(challenge).map_err(|why| Wrong(format!("the challenge: {why}")))?;
        let names = (&*self.name, NQN);
        let transaction =
            Transaction { hash: asked.hash, id: ID, concatenation: 0, host: names.0, subsystem: names.1 };
        let key = self.key.as_ref().map(|key| key.key(&self.name)).unwrap_or_default();
        let response = transaction.of_host(&key, &Digest::new(asked.challenge), asked.sequence);
        let mut bytes = vec![0; LONGEST_MESSAGE];
        let len = Reply { id: ID, response: response.bytes(), challenge: None, value: &[] }.write(&mut bytes);
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Proves on a queue who the host is. False if the connection is over.
    pub(super) fn prove(&mut self, queue: &mut RawQueue) -> Step<bool> {
        let passed = match self.be_challenged(queue)? {
            Some(challenge) => {
                let reply = self.reply(&challenge)?;
                self.send_message(queue, &reply)?;
                let said = self.receive_message(queue)?;
                said.is_some_and(|said| kind(&said).is_ok_and(|(kind, _)| kind == Kind::Success1))
            }
            None => false,
        };
        hold!(passed || self.may_break(), "{} has the key, and is not believed", self.name);
        Ok(passed)
    }
}
