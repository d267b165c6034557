//! What a target counts.

use platform::sync::atomic::{AtomicU64, Ordering};

/// Counters of a target, which any thread may read while the target runs.
#[derive(Debug, Default)]
pub struct Statistics {
    connections: AtomicU64,
    controllers: AtomicU64,
    accepted: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: AtomicU64,
    broken: AtomicU64,
    expired: AtomicU64,
    media: AtomicU64,
    authenticated: AtomicU64,
    not_authenticated: AtomicU64,
    copied: AtomicU64,
}

/// The values of the counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Queues that are connected now.
    pub connections: u64,
    /// Controllers that exist now.
    pub controllers: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Read commands that succeeded.
    pub reads: u64,
    /// Write commands that succeeded.
    pub writes: u64,
    /// Other commands that succeeded.
    pub others: u64,
    /// Bytes of the read commands.
    pub bytes_read: u64,
    /// Bytes of the write commands.
    pub bytes_written: u64,
    /// Commands of I/O queues that failed.
    pub errors: u64,
    /// Connections that the target ended because the host broke a rule, or that broke.
    pub broken: u64,
    /// Controllers whose keep-alive timer expired.
    pub expired: u64,
    /// Requests for which a disk reported an error.
    pub media: u64,
    /// How often hosts have authenticated, on each of their queues.
    pub authenticated: u64,
    /// How often hosts have failed to, or did not go on.
    pub not_authenticated: u64,
    /// Bytes that disks have copied which lend their memory: 0 as long as all requests suit them.
    pub copied: u64,
}

impl Snapshot {
    /// The sums of both.
    pub(crate) fn plus(&self, other: &Snapshot) -> Snapshot {
        Snapshot {
            connections: self.connections + other.connections,
            controllers: self.controllers + other.controllers,
            accepted: self.accepted + other.accepted,
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            others: self.others + other.others,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
            errors: self.errors + other.errors,
            broken: self.broken + other.broken,
            expired: self.expired + other.expired,
            media: self.media + other.media,
            authenticated: self.authenticated + other.authenticated,
            not_authenticated: self.not_authenticated + other.not_authenticated,
            copied: self.copied + other.copied,
        }
    }
}

/// A counter of [`Statistics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    Accepted,
    Others,
    Errors,
    Broken,
    Expired,
    Media,
    Authenticated,
    NotAuthenticated,
}

impl Statistics {
    /// The values at this moment.
    pub fn snapshot(&self) -> Snapshot {
        let value = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        // First: a connection that was accepted is among the connections, or has ended.
        let accepted = value(&self.accepted);
        Snapshot {
            connections: value(&self.connections),
            controllers: value(&self.controllers),
            accepted,
            reads: value(&self.reads),
            writes: value(&self.writes),
            others: value(&self.others),
            bytes_read: value(&self.bytes_read),
            bytes_written: value(&self.bytes_written),
            errors: value(&self.errors),
            broken: value(&self.broken),
            expired: value(&self.expired),
            media: value(&self.media),
            authenticated: value(&self.authenticated),
            not_authenticated: value(&self.not_authenticated),
            copied: value(&self.copied),
        }
    }

    pub(crate) fn count(&self, counter: Counter) {
        let counter = match counter {
            Counter::Accepted => &self.accepted,
            Counter::Others => &self.others,
            Counter::Errors => &self.errors,
            Counter::Broken => &self.broken,
            Counter::Expired => &self.expired,
            Counter::Media => &self.media,
            Counter::Authenticated => &self.authenticated,
            Counter::NotAuthenticated => &self.not_authenticated,
        };
        add(counter, 1);
    }

    pub(crate) fn has_read(&self, bytes: usize) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes as u64);
    }

    pub(crate) fn has_written(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes as u64);
    }

    pub(crate) fn has_copied(&self, bytes: usize) {
        add(&self.copied, bytes as u64);
    }

    pub(crate) fn now_there_are(&self, connections: usize, controllers: usize) {
        self.connections.store(connections as u64, Ordering::Relaxed);
        self.controllers.store(controllers as u64, Ordering::Relaxed);
    }
}

/// Only the thread whose counters they are writes, so it needs no locked instruction.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
}
