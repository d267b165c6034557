//! The controller's side of an authentication alone, for fuzzing.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use platform::Platform;

use super::{Groups, Random};
use crate::Error;
use crate::target::Host;
use crate::target::auth::responder::{Given, Names, Responder};

/// A controller that asks a host for a proof. What is to be computed, it computes at once.
pub struct Asking {
    responder: Responder,
    random: Random,
    groups: Groups,
    host: String,
    subsystem: String,
}

impl Asking {
    /// A controller of a subsystem, for a host that has a key.
    pub fn new(platform: &Arc<dyn Platform>, host: &Host, subsystem: &str) -> Result<Asking, Error> {
        let keys = host.keys(subsystem).ok_or(Error::Config("the host has no key"))?;
        let (random, groups) = (Random::new(platform)?, Groups::default());
        let (host, subsystem) = (host.nqn.clone(), subsystem.into());
        Ok(Asking { responder: Responder::new(keys, 1), random, groups, host, subsystem })
    }

    /// Takes a message of the host.
    pub fn take(&mut self, message: &[u8]) {
        let names = Names { host: &self.host, subsystem: &self.subsystem };
        let Some(job) = self.responder.take(message, &self.random, names) else { return };
        let power = match job.value {
            None => self.groups.begin(job.group, job.exponent),
            Some(value) => self.groups.continued(job.group, &value, job.exponent),
        };
        let result = power.map(|mut power| {
            loop {
                if let Some(result) = power.step() {
                    break result;
                }
            }
        });
        self.responder.computed(result, names);
    }

    /// The next message for the host, if there is one that has this room.
    pub fn give(&mut self, room: usize) -> Option<Vec<u8>> {
        let mut bytes = alloc::vec![0; room];
        let Given::Message(len) = self.responder.give(&mut bytes) else { return None };
        bytes.truncate(len);
        Some(bytes)
    }

    /// Whether the host has authenticated, or has failed to; `None` while that is open.
    pub fn outcome(&self) -> Option<bool> {
        self.responder.failure().map(|_| false).or(self.responder.outcome().map(|outcome| outcome.is_ok()))
    }
}
