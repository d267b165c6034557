//! A host without a key. It takes the name of another one, says once more what that one has said,
//! or says anything; it lets the target take a queue of its own for one that has proved who it is.
//! It gets no byte, and changes none.

use std::sync::Arc;

use ::storage::testing::RawQueue;
use nvme::auth::LONGEST_MESSAGE;
use nvme::auth::message::{Failed, Kind, Success2, kind};
use nvme::command::{Command, opcode};
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Property, PropertyGet, PropertySet};
use nvme::identify::{self, Identify, cns};
use nvme::{NSID_ALL, Status};
use platform::random::Random;

use super::host;
use super::keys;
use super::plan::{self, NQN, OWN};
use super::raw::{ADMIN, IO, Raw};
use super::shared::Shared;
use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Must, Step, hold};

/// Its name, when it has one of its own.
pub(super) fn name() -> String {
    format!("{NQN}-intruder")
}

/// Where data of commands lie, and what is there before.
const DATA: usize = 64 << 10;
const BEFORE: u8 = 0xe5;
/// The longest message of any bytes.
const LONGEST: u64 = 300;

pub(super) struct Intruder {
    shared: Arc<Shared>,
    random: Random,
    story: Story,
    tally: Tally,
}

impl Intruder {
    pub(super) fn new(shared: &Arc<Shared>, seed: u64, story: &Story) -> Intruder {
        let story = story.of("intruder");
        Intruder { shared: shared.clone(), random: Random::new(seed), story, tally: Tally::default() }
    }

    /// Tries some times, until the target ends.
    pub(super) fn turn(mut self) -> Step<Tally> {
        for _ in 0..1 + self.random.below(4) {
            if self.shared.is_closing() {
                break;
            }
            match self.random.below(4) {
                0 => self.pretend()?,
                1 => self.repeat()?,
                2 => self.say_anything()?,
                _ => self.open_another()?,
            }
            self.shared.sleep(plan::time(&mut self.random, 26));
        }
        Ok(self.tally)
    }

    /// A host of its own name, whose key it has, or another one's, whose key it has not.
    fn raw(&mut self, is_own: bool) -> Step<Raw> {
        let seed = self.random.word();
        let names = if is_own { (name(), [0x66; 16]) } else { (host::name(0), host::id(0)) };
        let key = if is_own { keys::right()? } else { keys::wrong()? };
        Ok(Raw::new(&self.shared, seed, self.story.clone(), names, Some(key)))
    }

    /// An admin queue on which nothing is proved.
    fn unproven(&mut self, raw: &mut Raw) -> Step<Option<RawQueue>> {
        let Some(mut admin) = raw.open(0, ADMIN)? else { return Ok(None) };
        let Some((_, is_asked)) = raw.join(&mut admin, (0, ADMIN), CNTLID_DYNAMIC)? else { return Ok(None) };
        hold!(is_asked, "a host with a key is not asked for it");
        Ok(Some(admin))
    }

    /// Sends a command that must not be carried out.
    fn must_be_refused(&mut self, raw: &mut Raw, queue: &mut RawQueue, command: Command) -> Step {
        queue.memory.write(DATA, &[BEFORE; identify::LEN]).must("data")?;
        let Some(response) = raw.say(queue, command)? else { return Ok(()) };
        let status = response.status();
        hold!(status == Status::AUTH_REQUIRED.dnr(), "{command:?} without a proof: {status}");
        let mut bytes = [0; identify::LEN];
        queue.memory.read(DATA, &mut bytes).must("data")?;
        hold!(bytes == [BEFORE; identify::LEN], "a host without a proof got data");
        self.tally.did("intruder: refused");
        Ok(())
    }

    /// Admin commands, of which none must be carried out.
    fn ask_all(&mut self, raw: &mut Raw, queue: &mut RawQueue) -> Step {
        let enable = PropertySet::new(Property::Cc, Cc::new().with_enabled(true).0.into());
        let list = Identify { cns: cns::ACTIVE_LIST, cntid: 0, nsid: 0 }.command();
        let all = [
            enable.command(),
            PropertyGet::new(Property::Csts).command(),
            list.with_sgl(queue.keyed(DATA, identify::LEN)),
            Command::flush(NSID_ALL),
        ];
        for command in all {
            if !self.random.rarely(3) {
                self.must_be_refused(raw, queue, command)?;
            }
        }
        Ok(())
    }

    /// Takes another host's name, and its own key.
    fn pretend(&mut self) -> Step {
        let mut raw = self.raw(false)?;
        let Some(mut admin) = self.unproven(&mut raw)? else { return Ok(()) };
        self.ask_all(&mut raw, &mut admin)?;
        if let Some(challenge) = raw.be_challenged(&mut admin)? {
            let reply = raw.reply(&challenge)?;
            self.fail(&mut raw, &mut admin, &reply, "intruder: wrong keys")?;
        }
        Ok(())
    }

    /// Sends a message that must not be believed.
    fn fail(&mut self, raw: &mut Raw, queue: &mut RawQueue, message: &[u8], what: &'static str) -> Step {
        if !raw.send_message(queue, message)? {
            return Ok(());
        }
        if let Some(said) = raw.receive_message(queue)? {
            let kind = kind(&said).map(|(kind, _)| kind);
            hold!(kind == Ok(Kind::Failure1), "{what}: the controller says {kind:?}");
        }
        self.tally.did(what);
        self.ask_all(raw, queue)
    }

    /// Says what a host has said in an earlier transaction, which it has overheard.
    fn repeat(&mut self) -> Step {
        let mut raw = self.raw(true)?;
        let Some(mut admin) = self.unproven(&mut raw)? else { return Ok(()) };
        let Some(challenge) = raw.be_challenged(&mut admin)? else { return Ok(()) };
        let overheard = raw.reply(&challenge)?;
        drop(admin);
        let Some(mut admin) = self.unproven(&mut raw)? else { return Ok(()) };
        if raw.be_challenged(&mut admin)?.is_some() {
            self.fail(&mut raw, &mut admin, &overheard, "intruder: replies of earlier transactions")?;
        }
        Ok(())
    }

    /// Sends messages out of turn, and any bytes.
    fn say_anything(&mut self) -> Step {
        let mut raw = self.raw(true)?;
        let Some(mut admin) = self.unproven(&mut raw)? else { return Ok(()) };
        for _ in 0..1 + self.random.below(3) {
            let random = &mut self.random;
            let message = match random.below(4) {
                0 => Success2 { id: 7 }.bytes().to_vec(),
                1 => Failed { id: 7, reason: None }.bytes(true).to_vec(),
                2 => {
                    let Some(challenge) = raw.be_challenged(&mut admin)? else { return Ok(()) };
                    let mut reply = raw.reply(&challenge).unwrap_or_default();
                    let len = 1 + random.below(LONGEST_MESSAGE as u64) as usize;
                    // Longer ones are right for those who read no further.
                    reply.resize(len.min(reply.len().saturating_sub(1)).max(1), 0);
                    reply
                }
                _ => (0..1 + random.below(LONGEST)).map(|_| random.word() as u8).collect(),
            };
            if !raw.send_message(&mut admin, &message)? {
                return Ok(());
            }
            self.tally.did("intruder: messages out of turn");
            self.ask_all(&mut raw, &mut admin)?;
        }
        Ok(())
    }

    /// Proves who it is on its admin queue, and not on its I/O queue.
    fn open_another(&mut self) -> Step {
        let mut raw = self.raw(true)?;
        let entries = IO.min(self.shared.plan.config.depth);
        let Some(mut admin) = raw.open(0, ADMIN)? else { return Ok(()) };
        let Some(id) = raw.begin(&mut admin)? else { return Ok(()) };
        let Some(mut io) = raw.open(1, entries)? else { return Ok(()) };
        let Some((_, is_asked)) = raw.join(&mut io, (1, entries), id)? else { return Ok(()) };
        hold!(is_asked, "a host with a key is not asked for it");
        let nsid = 1 + self.random.small(self.shared.plan.disks.len() as u32);
        let size = self.shared.plan.disks[nsid as usize - 1].block_size as usize;
        let block = self.random.below(OWN);
        for code in [opcode::io::READ, opcode::io::WRITE] {
            // A Write would change a block of the first host, which notices that.
            let command = Command::blocks(code, nsid, block, 1).with_sgl(io.keyed(DATA, size));
            self.must_be_refused(&mut raw, &mut io, command)?;
        }
        Ok(())
    }
}
