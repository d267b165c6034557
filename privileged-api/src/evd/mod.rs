//! Event dispatchers.
//!
//! - `create`, `modify` (and query), `free`: the life of an event dispatcher (EVD).
//! - `streams`: which events a simple EVD takes; `dto`: what a completion means. The queue is
//!   [`rdma::events::EventQueue`].
//! - `aggregate`: aggregate EVDs, which collect the notifications of simple EVDs.
//! - `feed`: counts the objects that feed an EVD; `posted`: the word that comes back with a
//!   completion.
//! - `deliver`: queues events that software makes.
//! - `dequeue`, `wait`, `take`: take events; `extended`, `forms`: with what IT-API has no
//!   place for.
//! - `attached`, `callback`, `notification`: callback routines and notification objects.
//!
//! An EVD is a [`rdma::events::Dispatcher`], which has the waiters, the callback and the
//! notification object, and what IT-API adds: streams, overflow, aggregates.
//!
//! [`Core::announce`] runs after an event was queued: it wakes the waiters, runs or schedules the
//! callback if it is due, and notifies the aggregate or the notification object of the EVD. After
//! an event was taken, only the phase of the callback changes ([`Core::after_taking`]).
//!
//! Locks, outermost first: `changes` (sleeps; one modification at a time), the table entry
//! (shared), the control lock of an EVD's dispatcher, the state of an aggregate, a simple EVD's
//! queue. At most one EVD's control lock is held at a time. A thread may sleep only while it holds
//! `changes` and no other of these locks. No code of the consumer runs under a lock.

pub(crate) mod aggregate;
pub(crate) mod attached;
pub(crate) mod callback;
mod create;
mod deliver;
mod dequeue;
pub(crate) mod dto;
mod extended;
mod feed;
pub(crate) mod forms;
mod free;
mod line;
mod modify;
mod notification;
pub(crate) mod posted;
pub(crate) mod streams;
mod take;
mod wait;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::attributes::THRESHOLD_DISABLE;
use crate::handle::EvdHandle;
use crate::ia::Core;
use crate::objects::evd::Evd;
use crate::status::{Error, Result};

pub use notification::Notification;
pub(crate) use streams::EventStreams;
pub use wait::WaitError;

impl Core {
    pub(super) fn evd(&self, evd: EvdHandle) -> Result<Arc<Evd>> {
        self.evds.get(evd).ok_or(Error::InvalidEvd)
    }

    /// Records the EVD as that of each asynchronous stream in the set, which can have one. Fails
    /// without a change if one of them already has an EVD.
    fn claim_singletons(&self, streams: EventStreams, evd: EvdHandle) -> Result<()> {
        let claim = |word: &AtomicU64| {
            word.compare_exchange(0, evd.as_raw(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if streams.contains(EventStreams::AFFILIATED) && !claim(&self.affiliated) {
            return Err(Error::AsyncAffEvdExists);
        }
        if streams.contains(EventStreams::UNAFFILIATED) && !claim(&self.unaffiliated) {
            self.release_singletons(evd);
            return Err(Error::AsyncUnaffEvdExists);
        }
        Ok(())
    }

    /// Takes back the record of an EVD as that of an asynchronous stream.
    fn release_singletons(&self, evd: EvdHandle) {
        for word in [&self.affiliated, &self.unaffiliated] {
            let _ = word.compare_exchange(evd.as_raw(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(THRESHOLD_DISABLE == 0, "notified() takes a threshold of 0 for never");
