//! A host: a thread that connects, gives the target requests for blocks of its own, checks every
//! completion, and leaves in one way or another.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ::storage::Error;
use ::storage::initiator::{
    Authentication, Failure, Initiator, NotSent, Operation, Options, Region, Request,
};
use nvme::dsm;
use nvme::private_data::RejectCode;
use nvme::status::Status;
use platform::Instant;
use platform::random::Random;
use platform::sync::atomic::Ordering;
use rdma::Nic;

use super::book::{Book, Mark, Outcome, ZEROS};
use super::keys;
use super::plan::{self, HostPlan, NQN, OWN, Shape, TAIL};
use super::shared::{PATIENCE, Shared, View, locked};
use crate::harness::memory::{POISON, Slab, Slot};
use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Step, Wrong, hold};

/// Memory for the data of requests.
const SLAB: usize = 512 << 10;
/// How much longer than its keep-alive timeout a silent host keeps its controller at most: the
/// target looks ten times a second.
const EXPIRY: Duration = Duration::from_millis(300);
/// The unit of keep-alive timeouts.
const GRANULARITY: Duration = Duration::from_millis(100);
/// How long a request takes at most in a run in which nothing goes wrong. The target's timer would
/// hide a wake-up that was lost for ten times as long.
const PROMPT: Duration = Duration::from_millis(10);

/// The name of a host.
pub(super) fn name(number: usize) -> String {
    format!("{NQN}-host{number}")
}

/// Its identifier.
pub(super) fn id(number: usize) -> [u8; 16] {
    let mut id = [0; 16];
    id[0] = number as u8 + 1;
    id
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The host shuts the controller down when all its requests have completed.
    Idle,
    /// The same while requests are outstanding.
    UnderLoad,
    /// The host leaves without a word.
    Vanishes,
    /// The host is silent until its controller is lost.
    Silence,
    /// The connection broke.
    Lost,
}

/// What a request that was sent is about.
enum Asked {
    Read,
    Write {
        version: u32,
        fua: bool,
    },
    Zeroes {
        version: u32,
    },
    Discard,
    Flush(Mark),
    Compare {
        is_sure: bool,
        is_spoiled: bool,
    },
    /// It reads blocks up to this one, which the disk may have or not.
    Tail(u64),
}

impl Asked {
    fn name(&self) -> &'static str {
        match self {
            Asked::Read => "read",
            Asked::Write { fua: false, .. } => "write",
            Asked::Write { fua: true, .. } => "write with FUA",
            Asked::Zeroes { .. } => "write zeroes",
            Asked::Discard => "deallocate",
            Asked::Flush(_) => "flush",
            Asked::Compare { .. } => "compare",
            Asked::Tail(_) => "read of a tail",
        }
    }

    /// The status of a request whose disk reports an error.
    fn fault(&self) -> Status {
        match self {
            Asked::Read | Asked::Compare { .. } | Asked::Tail(_) => Status::UNRECOVERED_READ.dnr(),
            _ => Status::WRITE_FAULT,
        }
    }
}

/// What a host knows of a request's namespace when it sends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// It is there, and the host sees it.
    There,
    /// It is there, and may go.
    Guest(u32),
    /// It is not there, or the host does not see it.
    Hidden,
    Unknown,
}

/// A request that was sent.
struct Pending {
    asked: Asked,
    presence: Presence,
    /// The disk, and the blocks.
    disk: usize,
    blocks: Vec<Range<usize>>,
    slot: Option<Slot>,
    sent: Instant,
    /// Of [`super::shared::Faulty::now`].
    health: u32,
}

pub(super) struct Host {
    name: String,
    number: usize,
    plan: HostPlan,
    shared: Arc<Shared>,
    nic: Nic,
    random: Random,
    story: Story,
    tally: Tally,
    /// For each disk what the host's blocks may hold.
    books: Vec<Book>,
    slab: Slab,
    pending: BTreeMap<u64, Pending>,
    token: u64,
    /// The namespaces that it sees by its connection, and whether it sees those that come later, if
    /// it knows that.
    sees: Option<View>,
    sees_guests: Option<bool>,
    /// The number of the address to which it connects, and whether the target there may still carry
    /// out what it has sent.
    place: usize,
    has_left_some: bool,
}

impl Host {
    pub(super) fn new(shared: &Arc<Shared>, number: usize, seed: u64, story: &Story) -> Step<Host> {
        let mut random = Random::new(seed);
        let first = OWN * number as u64;
        let disks = shared.plan.disks.iter();
        let books =
            disks.map(|disk| Book::new(random.word(), first, OWN as usize, disk.block_size)).collect();
        let name = format!("host{number}");
        Ok(Host {
            plan: shared.plan.hosts[number].clone(),
            story: story.of(&name),
            name,
            number,
            shared: shared.clone(),
            nic: shared.adapters.nic(1)?,
            random,
            tally: Tally::default(),
            books,
            slab: Slab::new(&shared.adapters.platform, SLAB)?,
            pending: BTreeMap::new(),
            token: 0,
            sees: None,
            sees_guests: None,
            place: 0,
            has_left_some: false,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Connects some times, until the target ends.
    pub(super) fn turn(&mut self) -> Step {
        self.has_left_some = false;
        for _ in 0..self.plan.lives {
            self.choose_place();
            let Some(initiator) = self.connect()? else { break };
            self.live(initiator)?;
            self.shared.sleep(plan::time(&mut self.random, 27));
        }
        Ok(())
    }

    /// Chooses a port or a target for the next connection. What the host has sent to a target, that
    /// one may still carry out behind what another one is given; so the host goes to another target
    /// only if nothing is left. A target with two ports puts both in order.
    fn choose_place(&mut self) {
        let Shape { targets, ports, .. } = self.shared.plan.shape;
        let may_go = ports > 1 || targets > 1 && !self.has_left_some;
        if may_go {
            let place = self.random.below((targets * ports) as u64) as usize;
            if self.place != place {
                self.place = place;
                self.tally.did(if ports > 1 { "went to another port" } else { "went to another target" });
            }
        }
    }

    /// Checks all blocks, after the end of the target.
    pub(super) fn look(&mut self, power_was_lost: bool) -> Step {
        for (book, faulty) in self.books.iter_mut().zip(&self.shared.disks) {
            match power_was_lost {
                true => book.lose_power(|block| faulty.disk.contents(block))?,
                false => {
                    book.settle();
                    book.look(|block| faulty.disk.contents(block))?;
                }
            }
        }
        Ok(())
    }

    /// Ends the host; returns what it has done.
    pub(super) fn free(self) -> Step<Tally> {
        self.slab.check()?;
        Ok(self.tally)
    }

    /// Connects; `None` if the target ends.
    fn connect(&mut self) -> Step<Option<Initiator>> {
        let deadline = self.shared.now() + PATIENCE + PATIENCE;
        while !self.shared.is_closing() {
            let begun = self.shared.now();
            let (authentication, is_right) = self.key()?;
            if self.shared.is_dead(self.place) {
                self.place = 0;
            }
            let (address, port) = self.shared.place(self.place)?;
            let options = Options {
                port,
                host: name(self.number),
                id: id(self.number),
                authentication,
                io_queues: self.plan.io_queues,
                depth: self.plan.depth,
                keep_alive: self.plan.keep_alive,
                ..Options::new(address, NQN)
            };
            match Initiator::connect(&self.nic, self.shared.adapters.privileged, options) {
                Ok(initiator) => {
                    hold!(is_right, "{} is connected without its key", self.name);
                    self.tally.did("connected");
                    // The target has ended what earlier connections had sent, unless it has given
                    // their disk up.
                    self.has_left_some &= self.shared.plan.is_impatient;
                    self.books.iter_mut().for_each(Book::settle);
                    self.story.tell(|| format!("connected: controller {}", initiator.controller()));
                    (self.sees, self.sees_guests) = (None, None);
                    if !self.is_closing() {
                        self.find(&initiator, begun)?;
                    }
                    return Ok(Some(initiator));
                }
                Err(Failure::NotAuthenticated(_) | Failure::NoKey) if !is_right => {
                    self.tally.did("refused: no proof");
                }
                Err(failure) => self.was_refused(failure)?,
            }
            self.is_left()?;
            hold!(self.is_closing() || self.shared.now() < deadline, "{} cannot connect", self.name);
            self.shared.sleep(Duration::from_micros(100 + self.random.below(20_000)));
        }
        Ok(None)
    }

    /// How the host proves who it is, and whether that is the right way.
    fn key(&mut self) -> Step<(Option<Authentication>, bool)> {
        let plan = &self.shared.plan;
        if !plan.has_keys {
            return Ok((None, true));
        }
        let right = (Some(Authentication::new(keys::right()?)), true);
        if plan.is_quiet || !self.random.rarely(4) {
            return Ok(right);
        }
        let wrong = if self.random.rarely(2) { Some(Authentication::new(keys::wrong()?)) } else { None };
        Ok((wrong, false))
    }

    /// Checks which namespaces an initiator has found that has begun to connect at that time.
    fn find(&mut self, initiator: &Initiator, begun: Instant) -> Step {
        let (shared, now) = (self.shared.clone(), self.shared.now());
        let last = shared.plan.namespaces();
        let fixed: View = (1..=last).map(|nsid| 1 << nsid).sum();
        let (mut sees, mut guest) = (0, None);
        for found in initiator.namespaces() {
            if found.id > last {
                guest = Some(found.id);
                continue;
            }
            sees |= 1 << found.id;
            if let Some(size) = shared
                .sizes
                .get(found.id as usize - 1)
                .filter(|_| found.id != last || shared.plan.sharers == 0)
            {
                let sizes = locked(size).during(begun, now);
                hold!(
                    sizes.contains(&found.blocks) || self.is_closing(),
                    "namespace {} has {} blocks, and not {sizes:?}",
                    found.id,
                    found.blocks
                );
            }
        }
        let mut views = locked(&shared.views).during(begun, now);
        views.retain(|views| views[self.number] & fixed == sees);
        let mut guests = views.iter().map(|views| views[self.number] & 1 != 0);
        let sees_guests = guests.next();
        hold!(
            sees_guests.is_some() || self.is_closing(),
            "{} finds namespaces {sees:#b} of {fixed:#b}, which it does not see",
            self.name
        );
        self.sees = Some(sees);
        self.sees_guests = sees_guests.filter(|&first| guests.all(|other| other == first));
        let is_proper = guest.is_none_or(|nsid| {
            let known = shared.guest();
            self.sees_guests != Some(false)
                && shared.plan.has_guest
                && known.last.is_none_or(|last| last >= nsid)
        });
        hold!(is_proper || self.is_closing(), "{} finds namespace {guest:?}", self.name);
        Ok(())
    }

    /// A namespace of a disk, and what is known of it.
    fn namespace(&mut self, disk: usize) -> Option<(u32, Presence)> {
        let shared = &self.shared;
        if disk < shared.plan.fixed() {
            let nsid = disk as u32 + 1;
            let presence = match self.sees {
                Some(sees) if sees >> nsid & 1 != 0 => Presence::There,
                Some(_) => Presence::Hidden,
                None => Presence::Unknown,
            };
            return Some((nsid, presence));
        }
        let guest = shared.guest();
        let nsid = guest.nsid.or(guest.last)?;
        let presence = match (guest.nsid, self.sees_guests) {
            _ if guest.is_gone => Presence::Hidden,
            (_, Some(false)) => Presence::Hidden,
            (Some(nsid), Some(true)) => Presence::Guest(nsid),
            _ => Presence::Unknown,
        };
        Some((nsid, presence))
    }

    fn is_closing(&self) -> bool {
        self.shared.is_closing()
    }

    /// Whether a connection may break without a reason of the host's own.
    fn may_break(&self) -> bool {
        let plan = &self.shared.plan;
        plan.is_faulty || plan.is_impatient || self.is_closing() || self.shared.is_dead(self.place)
    }

    /// A connection could not be made.
    fn was_refused(&mut self, failure: Failure) -> Step {
        self.story.tell(|| format!("cannot connect: {failure}"));
        let no_room = RejectCode::NoResources as u16;
        match failure {
            Failure::Refused(code) if code == no_room => self.tally.did("refused: no resources"),
            Failure::Command("Connect", status, _)
                if [Status::CONTROLLER_BUSY, Status::CONTROLLER_BUSY.dnr()].contains(&status) =>
            {
                self.tally.did("refused: no controller");
            }
            // The admin queue broke before the others were connected.
            Failure::Command("Connect", status, _)
                if status == Status::CONNECT_INVALID_PARAMETERS.dnr() && self.may_break() =>
            {
                self.tally.did("connections that failed");
            }
            Failure::Refused(0) | Failure::Disconnected | Failure::Silent => {
                hold!(self.may_break(), "{} cannot connect: {failure}", self.name);
                self.tally.did("connections that failed");
            }
            Failure::Local(Error::Config("no path leads to the target's address")) => {
                hold!(self.shared.plan.is_faulty, "there is no path");
            }
            _ => return Err(Wrong(format!("{} cannot connect: {failure}", self.name))),
        }
        Ok(())
    }

    /// A connection from its beginning to its end.
    fn live(&mut self, mut initiator: Initiator) -> Step {
        let region = initiator.register(self.slab.buffer.clone());
        let (end, at) = match self.shared.plan.is_quiet {
            true => (End::Idle, 0),
            false => {
                let ends = [End::Idle, End::Idle, End::UnderLoad, End::Vanishes, End::Vanishes, End::Silence];
                (ends[self.random.below(6) as usize], self.random.below(self.plan.requests))
            }
        };
        let end = self.serve(&mut initiator, &region, end, at)?;
        self.story.tell(|| format!("{end:?}, {} outstanding", self.pending.len()));
        self.tally.did(match end {
            End::Idle => "endings: idle",
            End::UnderLoad => "endings: under load",
            End::Vanishes => "endings: vanished",
            End::Silence => "endings: silence",
            End::Lost => "endings: lost",
        });
        // Under load, requests that name the region may be outstanding.
        drop(region);
        match end {
            End::Idle | End::UnderLoad => initiator.disconnect(),
            End::Vanishes | End::Silence | End::Lost => drop(initiator),
        }
        self.forget()
    }

    /// Checks that nothing of an initiator is left.
    fn is_left(&self) -> Step {
        hold!(self.nic.is_alone(), "objects of an initiator are left");
        Ok(())
    }

    /// Sends requests and takes completions until the connection is to end, or has ended.
    fn serve(&mut self, initiator: &mut Initiator, region: &Region, end: End, at: u64) -> Step<End> {
        let mut left = self.plan.requests;
        loop {
            while left > 0 && self.pending.len() < self.plan.window && !self.random.rarely(8) {
                if !self.send(initiator, region)? {
                    break;
                }
                left -= 1;
            }
            let may_prove = left > 0 && self.pending.is_empty() && self.shared.plan.has_keys;
            if may_prove
                && self.random.rarely(12)
                && let Some(end) = self.prove_again(initiator)?
            {
                return Ok(end);
            }
            let seen = initiator.seen();
            let came = match self.poll(initiator)? {
                Ok(came) => came,
                Err(failure) => {
                    hold!(self.may_break(), "{} lost its controller: {failure}", self.name);
                    return Ok(End::Lost);
                }
            };
            if end != End::Idle && left <= at {
                return if end == End::Silence { self.be_silent(initiator) } else { Ok(end) };
            }
            if left == 0 && self.pending.is_empty() {
                return Ok(End::Idle);
            }
            let now = self.shared.now();
            for pending in self.pending.values() {
                let took = now.as_nanos() - pending.sent.as_nanos();
                hold!(
                    took < PATIENCE.as_nanos() as u64,
                    "{}: a {} does not complete",
                    self.name,
                    pending.asked.name()
                );
            }
            if came == 0 {
                initiator.wait(seen, now + Duration::from_millis(50));
            }
        }
    }

    /// Proves once more who the host is, or tries to by a wrong key. How the connection ends by
    /// that, if it does.
    fn prove_again(&mut self, initiator: &mut Initiator) -> Step<Option<End>> {
        let (how, is_right) = self.key()?;
        let Some(how) = how else { return Ok(None) };
        let proved = initiator.authenticate_again(how);
        self.story.tell(|| format!("proves who it is, by the right key: {is_right}, {proved:?}"));
        match proved {
            Ok(()) => {
                hold!(is_right, "{} has proved who it is by a wrong key", self.name);
                self.tally.did("proved again");
                Ok(None)
            }
            Err(Failure::NotAuthenticated(_)) if !is_right => {
                self.tally.did("refused: no proof");
                Ok(Some(End::Vanishes))
            }
            Err(failure) => {
                hold!(self.may_break(), "{} cannot prove who it is: {failure}", self.name);
                Ok(Some(End::Lost))
            }
        }
    }

    /// Says nothing until the controller is lost.
    fn be_silent(&mut self, initiator: &mut Initiator) -> Step<End> {
        self.story.tell(|| format!("is silent, with {} requests outstanding", self.pending.len()));
        self.shared.silences.fetch_add(1, Ordering::SeqCst);
        // The target rounds the timeout up, and starts the timer once more for the last command.
        self.shared.sleep(2 * (self.plan.keep_alive + GRANULARITY) + EXPIRY);
        let deadline = self.shared.now() + PATIENCE;
        loop {
            let seen = initiator.seen();
            if self.poll(initiator)?.is_err() {
                return Ok(End::Silence);
            }
            let now = self.shared.now();
            hold!(now < deadline || self.may_break(), "{} was silent and keeps its controller", self.name);
            if now >= deadline {
                return Ok(End::Silence);
            }
            initiator.wait(seen, now + Duration::from_millis(10));
        }
    }

    /// Takes completions.
    fn poll(&mut self, initiator: &mut Initiator) -> Step<Result<usize, Failure>> {
        let mut done = Vec::new();
        let polled = initiator.poll(&mut |token, status, _| done.push((token, status)));
        for (token, status) in done {
            self.completed(token, status)?;
        }
        match polled {
            Err(Failure::Protocol(how)) => Err(Wrong(format!("the target broke the protocol: {how}"))),
            Err(Failure::Local(error)) => Err(Wrong(format!("{error}"))),
            polled => Ok(polled),
        }
    }

    /// After a connection: requests without an answer may still be carried out.
    fn forget(&mut self) -> Step {
        // From here on nothing reaches the host's memory.
        self.is_left()?;
        self.tally.done("requests without an answer", self.pending.len() as u64);
        self.has_left_some |= !self.pending.is_empty();
        for pending in std::mem::take(&mut self.pending).into_values() {
            self.story.tell(|| {
                format!("no answer: {} of disk {}, {:?}", pending.asked.name(), pending.disk, pending.blocks)
            });
            self.note(&pending, Outcome::Unknown);
            if let Some(slot) = pending.slot {
                self.slab.give(slot)?;
            }
        }
        self.slab.check()?;
        let (hosts, is_rude) = (self.shared.plan.hosts.len(), self.shared.plan.is_rude);
        if hosts > 1 || is_rude || self.random.rarely(2) {
            return Ok(());
        }
        // The only host sees when the target has forgotten it.
        let shared = &self.shared;
        let is_forgotten = shared.wait_until(|| {
            let is_idle = || shared.disks.iter().all(|faulty| faulty.disk.under_way() == 0);
            Ok(shared.is_closing() || shared.connections()? == 0 && is_idle())
        })?;
        hold!(is_forgotten, "the target keeps a connection of a host that left");
        Ok(())
    }

    /// Blocks that no request is for, at most so many.
    fn free_blocks(&mut self, disk: usize, most: usize) -> Option<Range<usize>> {
        let book = &self.books[disk];
        let first = self.random.below(book.count() as u64) as usize;
        let most = most.min([3, 20, book.count()][self.random.below(3) as usize]);
        let count = book.free(first, 1 + self.random.below(most as u64) as usize);
        (count > 0).then(|| first..first + count)
    }

    /// Chooses a request: what it is about, and its blocks. `None` if they are in use.
    fn choose(&mut self, disk: usize, most: usize) -> Option<(Asked, Vec<Range<usize>>)> {
        let geometry = self.shared.plan.disks[disk];
        let all = OWN as usize;
        if self.shared.plan.resizes && self.random.rarely(8) {
            let end = self.shared.plan.least_blocks() + 1 + self.random.below(TAIL);
            return Some((Asked::Tail(end), Vec::new()));
        }
        Some(match self.random.below(100) {
            0..32 => (Asked::Read, vec![self.free_blocks(disk, most)?]),
            32..70 => {
                let (version, fua) = (self.books[disk].next_version(), self.random.rarely(4));
                (Asked::Write { version, fua }, vec![self.free_blocks(disk, most)?])
            }
            70..80 => (Asked::Flush(self.books[disk].mark()), Vec::new()),
            80..86 if geometry.write_zeroes => {
                (Asked::Zeroes { version: ZEROS }, vec![self.free_blocks(disk, all)?])
            }
            86..92 if geometry.discard => {
                let mut ranges: Vec<Range<usize>> = Vec::new();
                for _ in 0..1 + self.random.below(3) {
                    let range = self.free_blocks(disk, all)?;
                    if ranges.iter().all(|other| other.end <= range.start || range.end <= other.start) {
                        ranges.push(range);
                    }
                }
                (Asked::Discard, ranges)
            }
            _ => {
                let blocks = self.free_blocks(disk, most)?;
                let (_, is_sure) = self.books[disk].expected(blocks.clone());
                (Asked::Compare { is_sure, is_spoiled: self.random.rarely(3) }, vec![blocks])
            }
        })
    }

    /// The data of a request: its length, and the bytes that it takes from the host.
    fn data(&mut self, asked: &Asked, disk: usize, blocks: &[Range<usize>]) -> (usize, Option<Vec<u8>>) {
        let book = &self.books[disk];
        let bytes = match (asked, blocks) {
            (Asked::Write { version, .. }, [blocks]) => book.bytes(blocks.clone(), *version),
            (Asked::Compare { is_spoiled, .. }, [blocks]) => {
                let (mut bytes, _) = book.expected(blocks.clone());
                if *is_spoiled {
                    let place = self.random.below(bytes.len() as u64) as usize;
                    bytes[place] ^= 1 << self.random.below(8);
                }
                bytes
            }
            (Asked::Discard, ranges) => {
                let range =
                    |range: &Range<usize>| dsm::Range::new(book.place(range.start), range.len() as u32);
                let ranges = ranges.iter().map(range);
                ranges.flat_map(|range| zerocopy::IntoBytes::as_bytes(&range).to_vec()).collect()
            }
            (Asked::Read, [blocks]) => return (blocks.len() * book.block_size(), None),
            (Asked::Tail(_), _) => return (book.block_size(), None),
            _ => Vec::new(),
        };
        (bytes.len(), Some(bytes))
    }

    /// Sends a request, or leaves it out if its namespace is not there. False if there is no room
    /// for the one that was chosen.
    fn send(&mut self, initiator: &mut Initiator, region: &Region) -> Step<bool> {
        let disk = self.random.below(self.books.len() as u64) as usize;
        let most = initiator.limits().transfer / self.books[disk].block_size();
        let Some((namespace, presence)) = self.namespace(disk) else { return Ok(true) };
        if presence == Presence::Hidden && !self.random.rarely(4) {
            return Ok(true);
        }
        let Some((asked, blocks)) = self.choose(disk, most) else { return Ok(false) };
        let (len, bytes) = self.data(&asked, disk, &blocks);
        let mut slot = None;
        if len > 0 {
            slot = self.slab.take(len, 0..SLAB)?;
            let Some(slot) = &slot else { return Ok(false) };
            if let Some(bytes) = bytes {
                self.slab.write(slot.at, &bytes)?;
            }
        }
        let operation = match &asked {
            Asked::Read | Asked::Tail(_) => Operation::Read,
            Asked::Write { fua, .. } => Operation::Write { fua: *fua },
            Asked::Zeroes { .. } => Operation::WriteZeroes,
            Asked::Discard => Operation::Deallocate,
            Asked::Flush(_) => Operation::Flush,
            Asked::Compare { .. } => Operation::Compare,
        };
        let first = blocks.first().cloned().unwrap_or(0..0);
        let request = Request {
            operation,
            namespace,
            block: match asked {
                Asked::Tail(end) => end - 1,
                _ if first.is_empty() => 0,
                _ => self.books[disk].place(first.start),
            },
            blocks: match asked {
                Asked::Tail(_) => 1,
                Asked::Discard => blocks.len() as u32,
                _ => first.len() as u32,
            },
            data: slot.as_ref().map(|slot| (region, slot.at, slot.len)),
        };
        let queue = self.random.below(initiator.io_queues() as u64) as usize;
        self.token += 1;
        let (sent, health) = (self.shared.now(), self.shared.disks[disk].now());
        match initiator.submit(queue, &request, self.token) {
            Ok(()) => {}
            Err(NotSent::Full | NotSent::Lost(_)) => {
                if let Some(slot) = slot {
                    self.slab.give(slot)?;
                }
                return Ok(false);
            }
            Err(NotSent::Invalid) => return Err(Wrong("a request is refused by the initiator".into())),
        }
        self.story
            .tell(|| format!("{}: {} of disk {disk}, {presence:?}, {blocks:?}", self.token, asked.name()));
        blocks.iter().for_each(|blocks| self.books[disk].begin(blocks.clone()));
        self.pending.insert(self.token, Pending { asked, presence, disk, blocks, slot, sent, health });
        Ok(true)
    }

    /// A request has completed.
    fn completed(&mut self, token: u64, status: Status) -> Step {
        let Some(pending) = self.pending.remove(&token) else {
            return Err(Wrong(format!("request {token} completed, and was not outstanding")));
        };
        let name = pending.asked.name();
        self.story.tell(|| format!("{token}: {status}"));
        let now = self.shared.now();
        let took = Duration::from_nanos(now.as_nanos() - pending.sent.as_nanos());
        hold!(!self.shared.plan.is_quiet || took < PROMPT, "a {name} took {took:?}, and nothing was wrong");
        if self.is_refused(&pending, status)? {
            return self.refused(pending);
        }
        let outcome = match (&pending.asked, status.is_success()) {
            (&Asked::Tail(end), is_there) if is_there || status == Status::LBA_OUT_OF_RANGE.dnr() => {
                let sizes = locked(&self.shared.sizes[pending.disk]).during(pending.sent, now);
                let may_be = sizes.iter().any(|&size| (size >= end) == is_there);
                hold!(may_be, "block {} is there: {is_there}, on a disk of {sizes:?}", end - 1);
                Outcome::Done
            }
            (&Asked::Compare { is_sure, is_spoiled }, is_equal)
                if is_equal || status == Status::COMPARE_FAILURE.dnr() =>
            {
                hold!(!is_equal || !is_spoiled, "a compare with other data succeeded");
                hold!(is_equal || is_spoiled || !is_sure, "a compare with the same data failed");
                Outcome::Done
            }
            (Asked::Write { fua, .. }, true) if *fua => Outcome::Durable,
            (_, true) => Outcome::Done,
            (asked, false) => {
                let faulty = &self.shared.disks[pending.disk];
                let is_gone = faulty.is_gone.load(Ordering::SeqCst);
                let gone = [Status::INTERNAL_ERROR, Status::INTERNAL_ERROR.dnr()];
                let may_be = status == asked.fault() && faulty.may_fail(pending.health)
                    || status == Status::NS_NOT_READY && self.shared.plan.is_impatient
                    || is_gone && gone.contains(&status);
                hold!(may_be, "a {name} of disk {} failed: {status}", pending.disk);
                self.tally.did("requests that failed");
                Outcome::Failed
            }
        };
        self.tally.did(name);
        if let (Asked::Read, Outcome::Done, Some(slot)) = (&pending.asked, outcome, &pending.slot) {
            let bytes = self.slab.bytes(slot.at, slot.len)?;
            let checked = self.books[pending.disk].check(pending.blocks[0].clone(), &bytes);
            checked.map_err(|wrong| Wrong(format!("{}, disk {}: {wrong}", self.name, pending.disk)))?;
        }
        self.note(&pending, outcome);
        pending.slot.map_or(Ok(()), |slot| self.slab.give(slot))
    }

    /// Whether a request was refused since its namespace is not there for the host.
    fn is_refused(&self, pending: &Pending, status: Status) -> Step<bool> {
        let is_gone = self.shared.disks[pending.disk].is_gone.load(Ordering::SeqCst);
        // A Flush gets another status, so that Linux lets no fsync succeed.
        let is_flush = matches!(pending.asked, Asked::Flush(_)) && !is_gone;
        let is_refused =
            status == Status::INVALID_NAMESPACE.dnr() || is_flush && status == Status::INTERNAL_ERROR.dnr();
        let name = pending.asked.name();
        match pending.presence {
            Presence::There => hold!(!is_refused, "a {name} of disk {} was refused: {status}", pending.disk),
            Presence::Hidden => {
                let may_be = is_refused || is_gone;
                hold!(may_be, "a {name} of disk {}, which is not there: {status}", pending.disk);
            }
            Presence::Guest(nsid) if self.shared.guest().nsid == Some(nsid) => {
                hold!(!is_refused, "a {name} of namespace {nsid} was refused: {status}");
            }
            Presence::Guest(_) | Presence::Unknown => {}
        }
        Ok(is_refused)
    }

    /// A request was refused: it has done nothing.
    fn refused(&mut self, pending: Pending) -> Step {
        self.tally.did("refused: no namespace");
        if let (Asked::Read | Asked::Tail(_), Some(slot)) = (&pending.asked, &pending.slot) {
            let bytes = self.slab.bytes(slot.at, slot.len)?;
            hold!(bytes.iter().all(|&byte| byte == POISON), "a request that was refused brought data");
        }
        let may_be_half_done = matches!(pending.asked, Asked::Discard);
        match may_be_half_done {
            true => self.note(&pending, Outcome::Failed),
            false => pending.blocks.iter().for_each(|blocks| self.books[pending.disk].end(blocks.clone())),
        }
        pending.slot.map_or(Ok(()), |slot| self.slab.give(slot))
    }

    /// Notes in the book what became of a request.
    fn note(&mut self, pending: &Pending, outcome: Outcome) {
        let has_cache = self.shared.plan.disks[pending.disk].has_volatile_cache;
        let book = &mut self.books[pending.disk];
        // What such a disk has is durable.
        let outcome = if outcome == Outcome::Done && !has_cache { Outcome::Durable } else { outcome };
        for blocks in &pending.blocks {
            book.end(blocks.clone());
            match pending.asked {
                Asked::Write { version, .. } | Asked::Zeroes { version } => {
                    book.changed(blocks.clone(), version, outcome);
                }
                Asked::Discard => book.discarded(blocks.clone(), outcome),
                _ => {}
            }
        }
        if let Asked::Flush(mark) = &pending.asked
            && matches!(outcome, Outcome::Done | Outcome::Durable)
        {
            book.flushed(mark);
        }
    }
}
