//! What the target counts for its operators, beyond [`Statistics`](super::Statistics): by
//! namespace, host and queue.
//!
//! Only the target's thread has these counters, so a command costs some additions. Another thread
//! asks for a copy ([`Control::metrics`](super::Control::metrics)).

use alloc::string::String;
use alloc::vec::Vec;

use super::identity::HostNumber;
use super::info::{ControllerInfo, NamespaceInfo, PortInfo};
use super::statistics::Snapshot;

/// The kinds of I/O commands that are told apart, by the names that they have in figures.
pub const OPERATIONS: [&str; 6] = ["read", "write", "compare", "flush", "write_zeroes", "deallocate"];
/// The buckets of a histogram of latencies: bucket `n` counts the commands that took up to
/// [`bucket_end`]`(n)` nanoseconds, and the last one all others.
pub const BUCKETS: usize = 22;
/// The logarithm of the first bucket's end in nanoseconds: 8 µs.
const FIRST: u32 = 13;
/// The statuses that are counted one by one.
const MOST_STATUSES: usize = 16;
/// The hosts that are counted one by one.
const MOST_HOSTS: usize = 64;

/// The longest time that a bucket counts, in nanoseconds; `None` for the last one.
pub fn bucket_end(bucket: usize) -> Option<u64> {
    (bucket + 1 < BUCKETS).then(|| 1 << (FIRST as usize + bucket))
}

pub(super) fn bucket(nanoseconds: u64) -> usize {
    let above = nanoseconds.saturating_sub(1) >> FIRST;
    ((u64::BITS - above.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// Commands of a kind that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Commands.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Done {
    pub(super) fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn merge(&mut self, other: &Done) {
        self.requests += other.requests;
        self.bytes += other.bytes;
    }
}

/// Commands of a kind that succeeded, and the time from their capsules to their responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// Commands, and their bytes.
    pub done: Done,
    /// The sum of the times, in nanoseconds.
    pub nanoseconds: u64,
    /// How many took how long, by bucket.
    pub latency: [u64; BUCKETS],
}

/// How often something happened for each of several reasons. Reasons for which there is no place
/// are counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    of: heapless::Vec<(u16, u64), MOST_STATUSES>,
    others: u64,
}

impl Tally {
    pub(super) fn count(&mut self, reason: u16) {
        match self.of.iter_mut().find(|(its, _)| *its == reason) {
            Some((_, count)) => *count += 1,
            None => self.others += u64::from(self.of.push((reason, 1)).is_err()),
        }
    }

    pub(super) fn merge(&mut self, other: &Tally) {
        for &(reason, count) in &other.of {
            if let Some((_, own)) = self.of.iter_mut().find(|(its, _)| *its == reason) {
                *own += count;
            } else if self.of.push((reason, count)).is_err() {
                self.others += count;
            }
        }
        self.others += other.others;
    }

    /// Each reason, and how often it was counted.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.of.iter().copied()
    }

    /// How often there was another reason.
    pub fn others(&self) -> u64 {
        self.others
    }
}

/// The counters of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// By kind, in the order of [`OPERATIONS`].
    pub operations: [Timed; OPERATIONS.len()],
    /// Commands that failed, by status: type and code.
    pub errors: Tally,
}

impl Counted {
    pub(super) fn merge(&mut self, other: &Counted) {
        for (own, its) in self.operations.iter_mut().zip(&other.operations) {
            own.done.merge(&its.done);
            own.nanoseconds += its.nanoseconds;
            own.latency.iter_mut().zip(&its.latency).for_each(|(own, its)| *own += its);
        }
        self.errors.merge(&other.errors);
    }
}

/// The counters of a host, or of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Reads, writes, and the other commands.
    pub reads: Done,
    /// See [`Carried::reads`].
    pub writes: Done,
    /// See [`Carried::reads`].
    pub others: Done,
    /// Commands that failed.
    pub errors: u64,
}

impl Carried {
    fn merge(&mut self, other: &Carried) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.others.merge(&other.others);
        self.errors += other.errors;
    }
}

/// A host that has connected, now or before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMetrics {
    /// Its qualified name; empty for all for which there was no place.
    pub nqn: String,
    /// What it has done by all its queues.
    pub carried: Carried,
}

/// A namespace, and what its commands were.
#[derive(Clone, Debug)]
pub struct NamespaceMetrics {
    /// What it is.
    pub info: NamespaceInfo,
    /// Its counters.
    pub counted: Counted,
    /// Its memory: pieces of 8 KiB and of 128 KiB that are free, and that there are.
    pub free: [usize; 2],
    /// See [`NamespaceMetrics::free`].
    pub chunks: [usize; 2],
    /// Requests that its disk has.
    pub on_disk: usize,
}

/// All figures at one moment.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// The counters of the target.
    pub totals: Snapshot,
    /// The ports.
    pub ports: Vec<PortInfo>,
    /// The namespaces.
    pub namespaces: Vec<NamespaceMetrics>,
    /// The hosts, 65 at most.
    pub hosts: Vec<HostMetrics>,
    /// The controllers, with their queues.
    pub controllers: Vec<ControllerInfo>,
    /// Capsules that wait for an entry.
    pub postponed: usize,
    /// Connections that were refused, by the reject code of the connection manager's message.
    pub refused: Tally,
    /// Connect commands that were refused, by status.
    pub unconnected: Tally,
    /// How often the thread slept.
    pub sleeps: u64,
}

/// The hosts that have connected.
#[derive(Default)]
pub(super) struct HostTable {
    of: Vec<(HostNumber, HostMetrics)>,
    others: Carried,
}

impl HostTable {
    /// A host connects. If there is no place for it, one that `is_there` no longer loses its place.
    pub(super) fn meet(&mut self, host: HostNumber, nqn: &str, is_there: impl Fn(HostNumber) -> bool) {
        if self.of.iter().any(|(its, _)| *its == host) {
            return;
        }
        if self.of.len() == MOST_HOSTS {
            let Some(place) = self.of.iter().position(|(its, _)| !is_there(*its)) else { return };
            let (_, left) = self.of.remove(place);
            self.others.merge(&left.carried);
        }
        self.of.push((host, HostMetrics { nqn: nqn.into(), carried: Carried::default() }));
    }

    /// Adds what a queue of a host has done.
    pub(super) fn add(&mut self, host: HostNumber, carried: &Carried) {
        match self.of.iter_mut().find(|(its, _)| *its == host) {
            Some((_, known)) => known.carried.merge(carried),
            None => self.others.merge(carried),
        }
    }

    pub(super) fn copy(&self) -> HostTable {
        HostTable { of: self.of.clone(), others: self.others }
    }

    pub(super) fn into_list(self) -> Vec<HostMetrics> {
        let others = HostMetrics { nqn: String::new(), carried: self.others };
        let has_others = others.carried != Carried::default();
        self.of.into_iter().map(|(_, host)| host).chain(has_others.then_some(others)).collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_ends_behind_it() {
        for (time, place) in [(0, 0), (8192, 0), (8193, 1), (16_384, 1), (16_385, 2), (u64::MAX, BUCKETS - 1)]
        {
            assert_eq!(bucket(time), place, "{time}");
            assert!(bucket_end(place).is_none_or(|end| time <= end));
        }
        let last = bucket_end(BUCKETS - 2).expect("an end");
        assert_eq!((bucket(last), bucket(last + 1)), (BUCKETS - 2, BUCKETS - 1));
        assert_eq!(bucket_end(BUCKETS - 1), None);
    }

    #[test]
    fn reasons_without_a_place_are_counted_together() {
        let mut tally = Tally::default();
        for reason in (0..MOST_STATUSES as u16 + 2).chain([0]) {
            tally.count(reason);
        }
        assert_eq!((tally.iter().count(), tally.others()), (MOST_STATUSES, 2));
        assert_eq!(tally.iter().next(), Some((0, 2)));
    }

    #[test]
    fn a_host_without_a_place_is_counted_among_the_others_and_none_that_is_there_loses_its_place() {
        let (mut hosts, carried) = (HostTable::default(), Carried { errors: 1, ..Carried::default() });
        let name = |n: usize| format!("nqn.{n}");
        let number = |n: usize| HostNumber::of(&name(n));
        for n in 0..=MOST_HOSTS {
            hosts.meet(number(n), &name(n), |_| true);
            hosts.add(number(n), &carried);
        }
        assert_eq!(hosts.others.errors, 1);
        hosts.meet(number(100), &name(100), |host| host != number(7));
        assert_eq!(hosts.others.errors, 2);
        let list = hosts.into_list();
        assert_eq!(list.len(), MOST_HOSTS + 1);
        assert!(
            list.iter().any(|host| host.nqn == name(100)) && !list.iter().any(|host| host.nqn == name(7))
        );
    }
}
