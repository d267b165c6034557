//! Namespaces: disks as hosts see them. Each has memory of its own for the data of its commands, so
//! that a disk that stalls leaves the others theirs.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use block::{Data, Disk, Geometry, Piece, Request, Submit};
use nvme::status::Status;
use platform::DmaBuffer;

use super::commands::{Index, Stage};
use super::config::Export;
use super::lent::Lending;
use super::metrics::Counted;
use super::pool::{Pool, SMALL};
use super::reservations::engine::Reservation;
use super::shares::Shares;
use super::silence::Silence;
use super::task::Operation;

/// The most bytes of a source range of a Copy, and of all that it copies.
const MOST_OF_RANGE: u64 = 1 << 20;
const MOST_COPIED: u64 = 16 << 20;

/// What commands of a namespace wait for: room in the disk's queue, and behind that for each port
/// small chunks and large ones.
pub(crate) struct Waiting;

impl Waiting {
    /// Room in the disk's queue.
    pub(crate) const ROOM: usize = 0;
    /// The turn of a pair.
    pub(crate) const TURN: usize = 1;
    /// The end of a pair that holds their blocks.
    pub(crate) const HELD: usize = 2;
    /// The kinds from here on are memory.
    pub(crate) const MEMORY: usize = 3;

    /// Memory of a port, of the kind that data of so many bytes take.
    pub(crate) fn memory(port: usize, len: usize) -> usize {
        Waiting::MEMORY + 2 * port + usize::from(len > SMALL)
    }

    /// The port of memory that is waited for.
    pub(crate) fn port(kind: usize) -> usize {
        (kind - Waiting::MEMORY) / 2
    }

    /// What a command of a port in this stage waits for, whose data take so many bytes.
    pub(crate) fn of(stage: Stage, port: usize, len: usize) -> usize {
        match stage {
            Stage::Room => Waiting::ROOM,
            Stage::Turn => Waiting::TURN,
            Stage::Held => Waiting::HELD,
            _ => Waiting::memory(port, len),
        }
    }
}

/// A namespace.
pub(crate) struct Namespace {
    pub(crate) disk: Arc<dyn Disk>,
    /// How many queues of the disk the threads have among them.
    pub(crate) disk_queues: usize,
    pub(crate) geometry: Geometry,
    /// Its identifier for all hosts and all times, a UUID.
    pub(crate) uuid: [u8; 16],
    /// The number of its subsystem.
    pub(crate) subsystem: usize,
    /// The hosts of the subsystem that see it; `None` for all.
    hosts: Option<Vec<String>>,
    /// Memory for commands' data, by the place of the port: none for one that had ended before.
    pools: Vec<Option<Pool>>,
    /// The disk's own memory, if it lends it.
    pub(crate) lending: Lending,
    /// What controllers have of the disk's queue and the memory, by [`Waiting`].
    pub(crate) shares: Vec<Shares>,
    /// The pair whose turn it is.
    pub(crate) pair: Option<Pair>,
    /// The manager's: how many other threads have it still.
    pub(crate) elsewhere: usize,
    /// Requests that the disk has of this thread.
    pub(crate) on_disk: usize,
    /// Requests that the disk has finished.
    pub(crate) finished: u64,
    /// How long the disk has had requests and finished none.
    silence: Silence,
    pub(crate) ages: Ages,
    /// Who is registered, and who has reserved it.
    pub(crate) reservation: Reservation,
    /// There is a place where that persists, and the blocks do, too.
    pub(crate) can_persist: bool,
    pub(crate) presence: Presence,
    /// It is being removed: it takes no commands, and ends when none is about it any more.
    pub(crate) is_leaving: bool,
    /// What its commands were.
    pub(crate) counted: Counted,
}

/// Two commands that are carried out as one, and hold these blocks.
pub(crate) struct Pair {
    /// The second one as soon as the first one has compared: others may have its entry then.
    pub(crate) first: Index,
    pub(crate) second: Index,
    pub(crate) blocks: Range<u64>,
    /// The disk has ended what it had before.
    pub(crate) has_begun: bool,
}

impl Pair {
    /// The most bytes that a pair compares and writes.
    pub(crate) const MOST_BYTES: usize = SMALL;
}

/// The requests that a disk has, those before a point of time and those after it, so that a command
/// can wait for the former.
#[derive(Default)]
pub(crate) struct Ages {
    now: u8,
    counts: [usize; 2],
    /// The command that waits.
    waits: Option<Index>,
}

impl Ages {
    /// The disk gets a request; its age.
    pub(crate) fn begin(&mut self) -> u8 {
        self.counts[usize::from(self.now)] += 1;
        self.now
    }

    /// The disk has ended a request of this age.
    pub(crate) fn end(&mut self, age: u8) {
        self.counts[usize::from(age & 1)] -= 1;
    }

    /// Whether all has ended that the disk had when the command asked for the first time. If others
    /// wait, it asks for the first time when they have what they wait for.
    pub(crate) fn have_passed(&mut self, command: Index) -> bool {
        match self.waits {
            Some(other) if other != command => return false,
            Some(_) => {}
            // Another one has ceased to wait for it.
            None if self.counts[usize::from(self.now ^ 1)] > 0 => return false,
            // What was before the last point of time has ended.
            None => self.now ^= 1,
        }
        let is_over = self.counts[usize::from(self.now ^ 1)] == 0;
        self.waits = (!is_over).then_some(command);
        is_over
    }

    /// The command does not wait any more.
    pub(crate) fn forget(&mut self, command: Index) {
        self.waits.take_if(|waits| *waits == command);
    }
}

/// Whether a namespace's disk is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It takes requests.
    Serving,
    /// It was given up, since it did not answer. It gets no requests before it has ended all that
    /// it has, so none of those follows a later one. The namespace stays active: hosts keep their
    /// block devices, and get errors meanwhile.
    Silent,
    /// It is no longer there. Hosts find the namespace inactive.
    Gone,
}

/// The status of a command about a namespace that was removed. A Flush gets another one than the
/// rest: Linux takes Invalid Namespace for a feature that is missing, and lets fsync succeed when a
/// Flush gets it.
pub(crate) fn not_there(is_flush: bool) -> Status {
    if is_flush { Status::INTERNAL_ERROR.dnr() } else { Status::INVALID_NAMESPACE.dnr() }
}

impl Namespace {
    /// A disk as a namespace, for so many controllers.
    pub(crate) fn new(
        export: &Export,
        pools: Vec<Option<Pool>>,
        lending: Lending,
        controllers: usize,
    ) -> Namespace {
        let kinds = Waiting::MEMORY + 2 * pools.len();
        Namespace {
            disk: export.disk.clone(),
            geometry: export.disk.geometry(),
            uuid: export.uuid,
            subsystem: 0,
            hosts: export.hosts.clone(),
            pools,
            lending,
            shares: (0..kinds).map(|_| Shares::new(controllers)).collect(),
            pair: None,
            disk_queues: 1,
            elsewhere: 0,
            on_disk: 0,
            finished: 0,
            silence: Silence::default(),
            ages: Ages::default(),
            reservation: Reservation::default(),
            can_persist: false,
            presence: Presence::Serving,
            is_leaving: false,
            counted: Counted::default(),
        }
    }

    /// Takes over what the manager's says about reservations.
    pub(crate) fn copy_reservation(&mut self, managers: &Namespace) {
        self.reservation = managers.reservation.clone();
        self.can_persist = managers.can_persist;
    }

    /// Memory for data of commands that come by a port. None come by a port that had ended before.
    pub(crate) fn pool(&self, port: usize) -> &Pool {
        self.pools[port].as_ref().expect("a port with commands")
    }

    /// The same, to take from, with the shares of one kind of it.
    pub(crate) fn pool_and_shares(&mut self, port: usize, kind: usize) -> (&mut Pool, &mut Shares) {
        let pool = self.pools[port].as_mut().expect("a port with commands");
        (pool, &mut self.shares[kind])
    }

    /// Memory for data, of all ports.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().flatten()
    }

    /// What a pool has of small chunks and large ones, of all ports.
    pub(crate) fn chunks(&self, of: impl Fn(&Pool) -> [usize; 2]) -> [usize; 2] {
        self.pools().map(of).fold([0; 2], |[small, large], [one, two]| [small + one, large + two])
    }

    /// Whether commands wait for memory.
    pub(crate) fn memory_is_awaited(&self) -> bool {
        self.shares[Waiting::MEMORY..].iter().any(Shares::has_waiting)
    }

    /// How long the disk has had requests and finished none, in nanoseconds. To be called at each
    /// tick of the timer.
    pub(crate) fn silent_for(&mut self, now: u64) -> u64 {
        self.silence.lasts(self.on_disk > 0, self.finished, now)
    }

    /// The most blocks of a source range of a Copy, and of all of them.
    pub(super) fn copy_limits(&self) -> (u64, u64) {
        let (of_range, all) = (MOST_OF_RANGE >> self.shift(), MOST_COPIED >> self.shift());
        (of_range.min(u16::MAX.into()), all)
    }

    /// Whether it is for this host's controllers of a subsystem.
    pub(crate) fn is_for(&self, subsystem: usize, host: &str) -> bool {
        self.subsystem == subsystem
            && self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|nqn| nqn == host))
    }

    /// Whether the disk takes requests.
    pub(crate) fn serves(&self) -> bool {
        self.presence == Presence::Serving
    }

    /// Whether hosts find it among the active ones.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_leaving && self.presence != Presence::Gone
    }

    /// The status of commands that it does not take. If the disk is not there, that is not the
    /// status of a namespace that does not exist: see [`not_there`].
    pub(crate) fn refusal(&self, is_flush: bool) -> Option<Status> {
        match self.presence {
            _ if self.is_leaving => Some(not_there(is_flush)),
            Presence::Serving => None,
            Presence::Silent => Some(Status::NS_NOT_READY),
            Presence::Gone => Some(Status::INTERNAL_ERROR.dnr()),
        }
    }

    /// The logarithm of the block size.
    pub(crate) fn shift(&self) -> u32 {
        self.geometry.block_size.trailing_zeros()
    }

    /// The first command of the pair that holds blocks has ended, with success.
    pub(crate) fn compared(&mut self, first: Index) {
        if let Some(pair) = self.pair.as_mut().filter(|pair| pair.first == first) {
            pair.first = pair.second;
        }
    }

    /// Gives the disk a request of a port's command, for data in `memory`, or else in the pool's.
    pub(crate) fn submit(
        &mut self,
        command: Index,
        what: Operation,
        port: usize,
        memory: Option<&Arc<DmaBuffer>>,
        pieces: &[Piece],
    ) -> Result<(), Submit> {
        let buffer = memory.unwrap_or_else(|| self.pool(port).memory.buffer());
        let data = Data { buffer, pieces };
        let request = match what {
            Operation::Read { block } => Request::Read { block, into: data },
            Operation::Write { block, fua } => Request::Write { block, from: data, fua },
            Operation::Flush => Request::Flush,
            Operation::Discard { block, blocks } => Request::Discard { block, blocks },
            Operation::WriteZeroes { block, blocks, may_discard } => {
                Request::WriteZeroes { block, blocks, may_discard }
            }
        };
        self.disk.submit(&request, u64::from(command.0))?;
        self.on_disk += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_waits_for_what_the_disk_had_before_it_and_for_nothing_later() {
        let (mut ages, one, two) = (Ages::default(), Index(1), Index(2));
        assert!(ages.have_passed(one));
        let before = [ages.begin(), ages.begin()];
        assert!(!ages.have_passed(one));
        let later = ages.begin();
        assert!(!ages.have_passed(two), "the other one waits");
        ages.end(before[1]);
        assert!(!ages.have_passed(one));
        ages.end(before[0]);
        assert!(!ages.have_passed(two) && ages.have_passed(one));
        assert!(!ages.have_passed(two), "it waits for the later one");
        let last = ages.begin();
        ages.end(later);
        assert!(ages.have_passed(two));
        // One that ceases to wait leaves the others what they would have waited for.
        assert!(!ages.have_passed(one));
        ages.forget(one);
        let later = ages.begin();
        assert!(!ages.have_passed(two));
        ages.end(last);
        assert!(!ages.have_passed(two), "the other one came before it");
        ages.end(later);
        assert!(ages.have_passed(two));
    }
}
