//! A host that breaks rules: it sends more commands than its queue has, capsules that are too
//! short or too long, wrong keys, the same identifier twice, any bytes. It loses its connection or
//! gets a status, and the other hosts notice nothing.

use std::sync::Arc;
use std::time::Duration;

use ::storage::testing::{End, RawQueue};
use nvme::command::{Command, opcode};
use nvme::sgl::Descriptor;
use platform::random::Random;
use zerocopy::IntoBytes;

use super::plan::OWN;
use super::raw::{ADMIN, IO, Raw};
use super::shared::Shared;
use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Step, hold};

/// Its name.
pub(super) const NAME: &str = "nqn.2026-01.org.ferrovia:rude";

pub(super) struct Rude {
    shared: Arc<Shared>,
    random: Random,
    raw: Raw,
    tally: Tally,
}

impl Rude {
    pub(super) fn new(shared: &Arc<Shared>, seed: u64, story: &Story) -> Rude {
        let mut random = Random::new(seed);
        let raw = Raw::new(shared, random.word(), story.of("rude"), (NAME.into(), [0x77; 16]), None);
        Rude { shared: shared.clone(), random, raw, tally: Tally::default() }
    }

    /// Connects some times, until the target ends.
    pub(super) fn turn(mut self) -> Step<Tally> {
        for _ in 0..1 + self.random.below(3) {
            if self.shared.is_closing() {
                break;
            }
            let entries = ADMIN.min(self.shared.plan.config.depth);
            if let Some(mut admin) = self.raw.open(0, ADMIN)? {
                let id = self.raw.begin(&mut admin)?;
                let io = id.map(|id| Ok((id, self.raw.open(1, IO.min(entries))?))).transpose()?;
                if let Some((id, Some(mut io))) = io {
                    if self.raw.join(&mut io, (1, IO.min(entries)), id)?.is_some() {
                        self.misbehave(&mut io)?;
                    }
                    drop(io);
                }
                if self.random.rarely(2) {
                    self.misbehave(&mut admin)?;
                }
            }
            self.shared.sleep(Duration::from_nanos(self.random.below(1 << 25)));
        }
        Ok(self.tally)
    }

    /// A block that belongs to no other host.
    fn block(&mut self) -> u64 {
        OWN * self.shared.plan.hosts.len() as u64 + self.random.below(OWN)
    }

    fn misbehave(&mut self, queue: &mut RawQueue) -> Step {
        let what = self.random.below(6);
        let namespace = 1 + self.random.small(self.shared.plan.disks.len() as u32);
        match what {
            0 => {
                self.tally.fault("rude: short capsules", 1);
                queue.send(&vec![0; self.random.below(64) as usize]);
                self.must_end(queue)?;
            }
            1 => {
                self.tally.fault("rude: long capsules", 1);
                queue.send(&vec![0; 64 + self.shared.plan.config.in_capsule + 1]);
                self.must_end(queue)?;
            }
            2 => {
                self.tally.fault("rude: more commands than entries", 1);
                for cid in 0..40 {
                    let read = Command::blocks(opcode::io::READ, namespace, self.block(), 1);
                    let size = self.shared.plan.disks[namespace as usize - 1].block_size as usize;
                    queue.send(read.with_cid(cid).with_sgl(queue.keyed(0, size)).as_bytes());
                }
            }
            3 => {
                self.tally.fault("rude: wrong keys", 1);
                let operation = [opcode::io::READ, opcode::io::WRITE][self.random.below(2) as usize];
                let size = self.shared.plan.disks[namespace as usize - 1].block_size;
                let sgl = Descriptor::keyed(self.random.word(), size, self.random.word() as u32, false);
                queue.send(Command::blocks(operation, namespace, self.block(), 1).with_sgl(sgl).as_bytes());
            }
            4 => {
                self.tally.fault("rude: identifiers that are in use", 1);
                let size = self.shared.plan.disks[namespace as usize - 1].block_size as usize;
                for _ in 0..3 {
                    let read = Command::blocks(opcode::io::READ, namespace, self.block(), 1);
                    queue.send(read.with_cid(7).with_sgl(queue.keyed(0, size)).as_bytes());
                }
            }
            _ => {
                self.tally.fault("rude: any bytes", 1);
                for _ in 0..1 + self.random.below(6) {
                    let command = self.any(namespace, queue);
                    queue.send(command.as_bytes());
                }
            }
        }
        // Some wait for what comes, others leave at once.
        for _ in 0..self.random.below(4) {
            match queue.response() {
                Ok(_) => self.tally.did("rude: responses"),
                Err(End::Silent) | Err(End::Refused(_)) => break,
                Err(End::Disconnected) => {
                    self.tally.did("rude: connections that the target ended");
                    break;
                }
            }
        }
        Ok(())
    }

    /// The target ends the connection.
    fn must_end(&mut self, queue: &mut RawQueue) -> Step {
        let end = queue.ended();
        self.tally.did("rude: connections that the target ended");
        hold!(
            end == Some(End::Disconnected) || self.raw.may_break(),
            "a host that broke the protocol keeps its connection"
        );
        Ok(())
    }

    /// A command that is right in some ways. It changes no block of another host.
    fn any(&mut self, namespace: u32, queue: &RawQueue) -> Command {
        let random = &mut self.random;
        let changes = [opcode::io::WRITE, opcode::io::WRITE_ZEROES, opcode::io::DATASET_MANAGEMENT];
        let mut code = random.word() as u8;
        while changes.contains(&code) || code == opcode::FABRICS {
            code = random.word() as u8;
        }
        if random.rarely(2) {
            code = [opcode::io::READ, opcode::io::COMPARE, opcode::io::FLUSH][random.below(3) as usize];
        }
        let mut sgl = queue.keyed(0, random.below(1 << 20) as usize);
        match random.below(4) {
            0 => sgl.0 = std::array::from_fn(|_| random.word() as u8),
            1 => sgl = Descriptor::offset(random.below(4) * 32, random.below(9000) as u32),
            _ => {}
        }
        let mut command = Command::new(code).with_cid(random.word() as u16).with_sgl(sgl);
        command.nsid = if random.rarely(4) { random.word() as u32 } else { namespace }.into();
        command.cdw10 = (random.below(100) as u32).into();
        command.cdw12 = (random.word() as u32 >> random.below(32)).into();
        if random.rarely(3) {
            command.flags = random.word() as u8;
        }
        command
    }
}
