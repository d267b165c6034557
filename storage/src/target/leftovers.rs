//! The requests that earlier connections of hosts left to disks, counted by host and namespace.
//! What waits for them is in `earlier`.

use alloc::collections::BTreeMap;

use platform::planted::{Bug, planted};

use super::identity::HostNumber;

/// How many requests of a host are counted on a namespace, and since when there are some.
#[derive(Clone, Copy, Debug)]
struct Left {
    count: usize,
    since: u64,
}

/// The requests that are counted.
#[derive(Default)]
pub(super) struct Leftovers {
    of: BTreeMap<(HostNumber, usize), Left>,
    /// Those of other threads: a bit for each thread that has some.
    elsewhere: BTreeMap<(HostNumber, usize), u64>,
}

impl Leftovers {
    /// A request is counted. True if it is the first one of the host on the namespace.
    pub(super) fn add(&mut self, host: HostNumber, place: usize, since: u64) -> bool {
        let left = self.of.entry((host, place)).or_insert(Left { count: 0, since });
        left.count += 1;
        left.since = left.since.min(since);
        left.count == 1
    }

    /// Another thread has some, or none any more. True if none of the others has some.
    pub(super) fn are_elsewhere(
        &mut self,
        thread: usize,
        host: HostNumber,
        place: usize,
        some: bool,
    ) -> bool {
        let threads = self.elsewhere.entry((host, place)).or_insert(0);
        *threads = if some { *threads | 1 << thread } else { *threads & !(1 << thread) };
        *threads == 0 && self.elsewhere.remove(&(host, place)).is_some()
    }

    /// The namespaces on which a host has some of this thread.
    pub(super) fn own_places(&self, host: HostNumber) -> impl Iterator<Item = usize> + '_ {
        self.of.range((host, 0)..=(host, usize::MAX)).map(|(&(_, place), _)| place)
    }

    /// One of them has ended. True if it was the last one of the host on the namespace.
    pub(super) fn remove(&mut self, host: HostNumber, place: usize) -> bool {
        let Some(left) = self.of.get_mut(&(host, place)) else { return false };
        left.count -= 1;
        left.count == 0 && self.of.remove(&(host, place)).is_some()
    }

    /// Whether a host has some on a namespace.
    pub(super) fn has(&self, host: HostNumber, place: usize) -> bool {
        let is_empty = self.of.is_empty() && self.elsewhere.is_empty();
        let has = || self.of.contains_key(&(host, place)) || self.elsewhere.contains_key(&(host, place));
        !is_empty && has() && !planted(Bug::LeftoverForgotten)
    }

    /// The namespaces on which a host has some.
    pub(super) fn places(&self, host: HostNumber) -> impl Iterator<Item = usize> + '_ {
        let elsewhere = self.elsewhere.range((host, 0)..=(host, usize::MAX));
        self.own_places(host).chain(elsewhere.map(|(&(_, place), _)| place))
    }

    /// Each host and namespace with requests of this thread that are counted, and since when.
    pub(super) fn iter(&self) -> impl Iterator<Item = (HostNumber, usize, u64)> + '_ {
        self.of.iter().map(|(&(host, place), left)| (host, place, left.since))
    }
}
