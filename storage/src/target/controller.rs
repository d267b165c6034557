//! Controllers: what a host gets by the Connect command of an admin queue. A controller has
//! properties, features and a keep-alive timer; it exists as long as its admin queue.

use alloc::vec::Vec;
use core::time::Duration;

use nvme::async_event::Event;
use nvme::command::Command;
use nvme::fabrics::{Cap, Cc, Csts, Shst};
use nvme::feature::AsyncEvents;
use nvme::log::ErrorEntry;
use nvme::status::Status;

use super::auth::Seen;
use super::commands::Index;
use super::config::MOST_NAMESPACES;
use super::features::Kept;
use super::identity::{HostIdentity, Kind};
use super::port::Listed;
use super::reservations::notices::Notices;

/// The most Asynchronous Event Requests that may be outstanding.
pub(crate) const MOST_EVENTS: usize = 4;
/// How long a discovery controller may be silent.
const DISCOVERY_SILENCE: Duration = Duration::from_secs(120);

/// The step of the keep-alive timer, in units of 100 ms.
pub(crate) const KEEP_ALIVE_STEP: u16 = 1;

/// A controller.
pub(crate) struct Controller {
    pub(crate) kind: Kind,
    /// The number of its subsystem; of a discovery controller, that of none.
    pub(crate) subsystem: usize,
    pub(crate) host: HostIdentity,
    /// The namespaces that the host sees.
    pub(crate) visible: Seen,
    /// The place of its port.
    pub(crate) port: usize,
    /// Whether the host reached the target at an IPv4 address.
    pub(crate) by_ipv4: bool,
    configuration: Cc,
    status: Csts,
    /// It was disabled, and something of what it was asked for is not over.
    is_resetting: bool,
    /// The keep-alive timeout; zero for none.
    keep_alive: Duration,
    /// The host has sent a Keep Alive.
    keeps_alive: bool,
    /// When the host was heard last, in nanoseconds of the platform's clock.
    heard: u64,
    /// A command has come since (traffic based keep alive, base 2.0, 3.9.4).
    pub(crate) has_traffic: bool,
    /// It is a worker's copy of the manager's, which has the timers.
    is_copy: bool,
    /// I/O queues that the host may connect.
    pub(crate) granted: u16,
    /// The I/O queues that are connected, a bit each by number.
    pub(crate) connected: [u64; 4],
    /// Features that are only kept.
    pub(super) kept: Kept,
    /// Which asynchronous events the host wants.
    pub(crate) notices: u32,
    /// The Asynchronous Event Requests.
    pub(crate) waiting: heapless::Vec<Index, MOST_EVENTS>,
    /// The namespaces that have changed since the host read the log page, in ascending order.
    pub(crate) changed: heapless::Vec<u32, MOST_NAMESPACES>,
    /// Changes of namespaces, and of how well the host reaches them.
    namespaces: Notice,
    pub(crate) access: Notice,
    /// Changes of what the discovery service lists for the host, and what that was.
    pub(crate) listing: Notice,
    pub(crate) listed: Vec<Listed>,
    /// How often the log page of the latter had changed when the controller was reset.
    pub(crate) ana_changes: u64,
    /// What the host has to hear of reservations.
    pub(crate) reservation_notices: Notices,
    /// Commands that failed, and the last of them.
    pub(crate) errors: u64,
    pub(crate) last_error: Option<ErrorEntry>,
}

/// What there is of a keep-alive timer (TCP and RDMA: traffic restarts it, TBKAS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// It runs, or there is none.
    Runs,
    /// It has ended, and this thread had no command meanwhile.
    Ended,
    /// It has ended, and this thread had a command while it ran.
    EndedAfterTraffic,
}

/// Something that a host may want to hear of by an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notice {
    /// It has happened, and was not reported.
    is_due: bool,
    /// It was reported, and the host has not read the log page yet.
    is_masked: bool,
}

impl Notice {
    /// It has happened.
    pub(crate) fn happen(&mut self) {
        self.is_due = true;
    }

    /// The host has read the log page of the event.
    pub(crate) fn has_read(&mut self) {
        self.is_masked = false;
    }

    /// Whether it is to be reported now.
    fn take(&mut self) -> bool {
        let is_due = self.is_due && !self.is_masked;
        if is_due {
            *self = Notice { is_due: false, is_masked: true };
        }
        is_due
    }
}

/// What follows from a new value of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing.
    None,
    /// The controller was disabled: its I/O queues end.
    Reset,
    /// The host shuts it down.
    Shutdown,
}

impl Controller {
    pub(crate) fn new(
        kind: Kind,
        subsystem: usize,
        host: HostIdentity,
        port: usize,
        by_ipv4: bool,
        now: u64,
    ) -> Controller {
        Controller {
            kind,
            subsystem,
            host,
            visible: Seen::default(),
            port,
            by_ipv4,
            configuration: Cc::default(),
            status: Csts::default(),
            is_resetting: false,
            keep_alive: Duration::ZERO,
            keeps_alive: false,
            heard: now,
            has_traffic: false,
            is_copy: false,
            granted: 0,
            connected: [0; 4],
            kept: Kept::default(),
            notices: 0,
            waiting: heapless::Vec::new(),
            changed: heapless::Vec::new(),
            namespaces: Notice::default(),
            access: Notice::default(),
            listing: Notice::default(),
            listed: Vec::new(),
            ana_changes: 0,
            reservation_notices: Notices::default(),
            errors: 0,
            last_error: None,
        }
    }

    /// The capabilities of every controller, with queues of so many entries. A change of Ready
    /// takes as long as a disk may take, and some seconds.
    pub(crate) fn capabilities(entries: u16, disk_timeout: Duration) -> Cap {
        // The NVM command set; contiguous queues; pages of 4 KiB. The time is in steps of 500 ms.
        let steps = 2 * (disk_timeout.as_secs() + 5);
        Cap::new(entries.saturating_sub(1), steps.min(255) as u8)
    }

    /// The host enabled it, and has not shut it down.
    pub(crate) fn is_enabled(&self) -> bool {
        self.configuration.is_enabled() && self.status.is_ready() && !self.is_resetting
    }

    pub(crate) fn configuration(&self) -> Cc {
        self.configuration
    }

    pub(crate) fn status(&self) -> Csts {
        self.status
    }

    /// Carries out a write of the configuration. What it begins, [`Controller::settle`] completes.
    pub(crate) fn configure(&mut self, new: Cc) -> Change {
        let old = core::mem::replace(&mut self.configuration, new);
        let mut change = Change::None;
        if old.is_enabled() && !new.is_enabled() {
            // It stays ready until nothing is left of what it was asked for (base 3.1.6).
            self.is_resetting = true;
            self.granted = 0;
            self.notices = 0;
            self.kept = Kept::default();
            self.changed.clear();
            (self.namespaces, self.access) = (Notice::default(), Notice::default());
            self.listing = Notice::default();
            self.reservation_notices = Notices::default();
            change = Change::Reset;
        }
        if !old.is_enabled() && new.is_enabled() && !self.is_resetting {
            self.enable();
        }
        if new.shutdown() != 0 && old.shutdown() != new.shutdown() {
            self.status = self.status.with_shutdown(Shst::Occurring);
            change = if change == Change::None { Change::Shutdown } else { change };
        }
        change
    }

    fn enable(&mut self) {
        let new = self.configuration;
        // Entries of 64 and 16 bytes, pages of 4 KiB, the NVM command set, round robin. A discovery
        // controller has no I/O queues whose entries could have a size.
        let sizes = (new.submission_entry(), new.completion_entry());
        let fits = sizes == (6, 4) || self.kind == Kind::Discovery && sizes == (0, 0);
        let fits = fits && new.page_size() == 0 && new.command_set() == 0 && new.arbitration() == 0;
        self.status = Csts::default().with_ready(fits).with_fatal(!fits);
    }

    /// Whether a reset or a shutdown is not complete.
    pub(crate) fn is_settling(&self) -> bool {
        self.is_resetting || self.status.shutdown() == Some(Shst::Occurring)
    }

    /// Completes a reset unless something `resets` still, and a shutdown unless something `ends`
    /// still. The keep-alive timer rests meanwhile, and starts again.
    pub(crate) fn settle(&mut self, resets: bool, ends: bool, now: u64) {
        self.heard = now;
        if self.is_resetting && !resets {
            self.is_resetting = false;
            let shutdown = self.status.shutdown().filter(|_| self.configuration.shutdown() != 0);
            self.status = Csts::default().with_shutdown(shutdown.unwrap_or(Shst::Normal));
            if self.configuration.is_enabled() {
                self.enable();
            }
        }
        if self.status.shutdown() == Some(Shst::Occurring) && !ends {
            self.status = self.status.with_shutdown_complete();
        }
    }

    /// Notes that it has failed.
    pub(crate) fn fail(&mut self) {
        self.status = self.status.with_fatal(true).with_ready(false);
    }

    /// Sets the keep-alive timeout, in milliseconds, rounded up to a multiple of the timer's step
    /// (base 5.21.1.15); 0 turns the timer off.
    pub(crate) fn set_keep_alive(&mut self, milliseconds: u32, now: u64) {
        let step = u32::from(KEEP_ALIVE_STEP) * 100;
        let steps = milliseconds.div_ceil(step).min(u32::MAX / step);
        self.keep_alive = Duration::from_millis((steps * step).into());
        self.heard = now;
    }

    /// The keep-alive timeout in milliseconds.
    pub(crate) fn keep_alive(&self) -> u32 {
        self.keep_alive.as_millis() as u32
    }

    /// A copy for a worker that has I/O queues of it: what their commands need.
    pub(crate) fn copy(&self) -> Controller {
        Controller {
            visible: self.visible.clone(),
            configuration: self.configuration,
            status: self.status,
            keeps_alive: self.keeps_alive,
            is_copy: true,
            ..Controller::new(
                self.kind,
                self.subsystem,
                self.host.clone(),
                self.port,
                self.by_ipv4,
                self.heard,
            )
        }
    }

    /// Takes over the failures that a worker has noted.
    pub(crate) fn add_errors(&mut self, errors: u64, last: Option<ErrorEntry>) {
        self.errors += errors;
        if let Some(mut last) = last {
            last.error_count = self.errors.into();
            self.last_error = Some(last);
        }
    }

    /// What a worker has noted, once.
    pub(crate) fn take_errors(&mut self) -> (u64, Option<ErrorEntry>) {
        (core::mem::take(&mut self.errors), self.last_error.take())
    }

    /// Notes a Keep Alive.
    pub(crate) fn hear_keep_alive(&mut self, now: u64) {
        self.keeps_alive = true;
        if !self.is_copy {
            self.hear(now);
        }
    }

    /// Whether the host has sent a Keep Alive.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Restarts the keep-alive timer.
    pub(crate) fn hear(&mut self, now: u64) {
        // The manager asks for a copy's traffic when the timer expires.
        (self.heard, self.has_traffic) = (now, self.is_copy);
    }

    /// Looks at the keep-alive timer. When it ends it starts again, for a host that was heard.
    pub(crate) fn look_at_timer(&mut self, now: u64) -> Timer {
        if self.is_settling() {
            return Timer::Runs;
        }
        let patience = match self.kind {
            Kind::Discovery if self.keep_alive.is_zero() => DISCOVERY_SILENCE,
            // Whatever the host names: anybody may have such a controller.
            Kind::Discovery => self.keep_alive.min(DISCOVERY_SILENCE),
            Kind::Io if !self.keep_alive.is_zero() => self.keep_alive,
            Kind::Io => return Timer::Runs,
        };
        if now.saturating_sub(self.heard) <= patience.as_nanos() as u64 {
            return Timer::Runs;
        }
        let ended = if self.has_traffic { Timer::EndedAfterTraffic } else { Timer::Ended };
        self.hear(now);
        ended
    }

    /// Marks an I/O queue as connected; fails if it is.
    pub(crate) fn connect(&mut self, queue: u16) -> Result<(), Status> {
        let (word, bit) = (&mut self.connected[usize::from(queue >> 6)], 1 << (queue & 63));
        if *word & bit != 0 {
            return Err(Status::SEQUENCE_ERROR.dnr());
        }
        *word |= bit;
        Ok(())
    }

    /// How many I/O queues it was granted that are not connected.
    pub(crate) fn not_connected(&self) -> usize {
        let connected: u32 = self.connected.iter().map(|word| word.count_ones()).sum();
        usize::from(self.granted).saturating_sub(connected as usize)
    }

    /// Marks an I/O queue as not connected.
    pub(crate) fn disconnect(&mut self, queue: u16) {
        self.connected[usize::from(queue >> 6)] &= !(1 << (queue & 63));
    }

    /// Keeps an Asynchronous Event Request, or refuses it.
    pub(crate) fn wait_for_event(&mut self, command: Index) -> Result<(), Status> {
        self.waiting.push(command).map_err(|_| Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr())
    }

    /// The next event that is to be reported, and the request that reports it.
    pub(crate) fn due(&mut self) -> Option<(Index, Event)> {
        let wanted = AsyncEvents::from_bits_truncate(self.notices);
        if self.waiting.is_empty() {
            return None;
        }
        for (notice, bit, event) in [
            (&mut self.namespaces, AsyncEvents::NAMESPACE_ATTRIBUTE, Event::NAMESPACE_ATTRIBUTE_CHANGED),
            (&mut self.access, AsyncEvents::ANA_CHANGE, Event::ANA_CHANGE),
            (&mut self.listing, AsyncEvents::DISCOVERY_LOG_CHANGE, Event::DISCOVERY_LOG_CHANGE),
        ] {
            if wanted.contains(bit) && notice.take() {
                return Some((self.waiting.remove(0), event));
            }
        }
        None
    }

    /// Notes a change of a namespace.
    pub(crate) fn change(&mut self, nsid: u32) {
        if let Err(place) = self.changed.binary_search(&nsid) {
            // There is a place for each namespace.
            let _ = self.changed.insert(place, nsid);
        }
        self.namespaces.happen();
    }

    /// The host has read the Changed Namespace List.
    pub(crate) fn has_read_changes(&mut self) {
        self.namespaces.has_read();
        self.changed.clear();
    }

    /// Notes a command that failed.
    pub(crate) fn note(&mut self, queue: u16, command: &Command, status: Status) {
        self.errors += 1;
        let mut entry = ErrorEntry::new(self.errors, queue, command.cid.get(), status);
        entry.nsid = command.nsid;
        if queue != 0 && command.has_blocks() {
            entry.lba = command.slba().into();
        }
        self.last_error = Some(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(kind: Kind) -> Controller {
        Controller::new(kind, 0, HostIdentity { id: [0; 16], nqn: heapless::String::new() }, 0, true, 0)
    }

    #[test]
    fn the_keep_alive_timeout_is_rounded_up_to_the_step() {
        let mut controller = controller(Kind::Io);
        for (asked, kept) in [(0, 0), (1, 100), (100, 100), (150, 200), (70_001, 70_100)] {
            controller.set_keep_alive(asked, 0);
            assert_eq!(controller.keep_alive(), kept);
        }
        controller.set_keep_alive(u32::MAX, 0);
        assert_eq!(controller.keep_alive(), 4_294_967_200);
    }

    #[test]
    fn a_silent_discovery_controller_ends_whatever_timeout_its_host_names() {
        let (limit, second) = (DISCOVERY_SILENCE.as_nanos() as u64, 1_000_000_000);
        for (timeout, after) in [(0, limit), (u32::MAX, limit), (5_000, 5 * second)] {
            let mut controller = controller(Kind::Discovery);
            controller.set_keep_alive(timeout, 0);
            assert_eq!(controller.look_at_timer(after), Timer::Runs, "{timeout}");
            assert_eq!(controller.look_at_timer(after + 1), Timer::Ended, "{timeout}");
            assert_eq!(controller.look_at_timer(2 * after + 1), Timer::Runs, "it runs again");
            controller.has_traffic = true;
            assert_eq!(controller.look_at_timer(2 * after + 2), Timer::EndedAfterTraffic);
            assert_eq!(controller.look_at_timer(3 * after + 3), Timer::Ended, "no more has come");
        }
    }
}
