//! The queue pairs on a CQ: a table by the low bits of their numbers, which finds an entry's work
//! queue without the queue pair.
//!
//! The table is at most half full, so that a search looks at one place nearly always, however many
//! queue pairs there are. It grows when a queue pair is created, never when an entry is taken.

use alloc::sync::Arc;
use core::ops::Deref;

use nic_hal::{Circle, Outstanding, Retired};
use platform::heap;

use crate::Error;
use crate::shared_queue::SharedQueue;

/// A table's size at first, as a logarithm.
const FIRST: u32 = 1;
/// How many places are copied at once, so that no thread waits long for the lock.
const CHUNK: u32 = 64;

/// From where a queue pair takes its receives.
// The requests first: so they are where those of a send queue are in their allocation, and a thread
// that takes an entry chooses between both by one pointer.
#[repr(C)]
pub(crate) struct Receives {
    requests: Outstanding,
    /// The queue that takes the place of its own.
    pub(crate) srq: Option<Arc<SharedQueue>>,
}

impl Receives {
    /// For a receive queue of its own with so many requests, or for an SRQ.
    pub(crate) fn new(limit: u32, srq: Option<Arc<SharedQueue>>) -> Result<Arc<Receives>, Error> {
        let receives = Receives { requests: Outstanding::new(limit)?, srq };
        heap::arc(receives).map_err(|_| Error::OutOfMemory)
    }
}

/// The requests of its own receive queue.
impl Deref for Receives {
    type Target = Outstanding;

    #[inline(always)]
    fn deref(&self) -> &Outstanding {
        &self.requests
    }
}

/// The work queues of a queue pair whose completions go to a CQ.
#[derive(Clone)]
pub(crate) struct Member {
    /// The queue pair's number and generation; 0 for none, since no queue pair has the number 0.
    identity: u64,
    pub(crate) context: u64,
    /// The requests of its send queue; none if its completions go to another CQ.
    pub(crate) sends: Arc<Outstanding>,
    /// As `sends`, for its receive queue.
    pub(crate) receives: Arc<Receives>,
}

impl Member {
    /// Retires the request that an entry names. `None` if the entry makes no sense.
    #[inline(always)]
    pub(crate) fn retire(&self, tag: u32, receive: bool) -> Option<Retired> {
        if !receive {
            return self.sends.retire(tag);
        }
        match &self.receives.srq {
            Some(srq) => srq.retire(tag),
            None => self.receives.retire(tag),
        }
    }

    /// Whether the request that an entry names is outstanding.
    pub(crate) fn has(&self, tag: u32, receive: bool) -> bool {
        if !receive {
            return self.sends.contains(tag);
        }
        match &self.receives.srq {
            Some(srq) => srq.has(tag),
            None => self.receives.contains(tag),
        }
    }
}

/// What a queue pair brings to its CQs.
pub(crate) struct Queues<'a> {
    pub(crate) identity: u64,
    pub(crate) context: u64,
    pub(crate) sends: Option<&'a Arc<Outstanding>>,
    pub(crate) receives: Option<&'a Arc<Receives>>,
}

/// The queue pairs on a CQ.
pub(crate) struct Members {
    /// A copy of the first one, which is found without a search: many CQs have only one. None after
    /// that one was removed, until there is a first one again.
    first: Member,
    places: Circle<Member>,
    count: u32,
    none: Member,
}

impl Members {
    pub(crate) fn new() -> Result<Members, Error> {
        Members::with(FIRST, &Member::none()?)
    }

    /// An empty table of `1 << log` places.
    fn with(log: u32, none: &Member) -> Result<Members, Error> {
        let (first, places) = (none.clone(), Circle::filled(log, none)?);
        Ok(Members { first, places, count: 0, none: none.clone() })
    }

    /// The queue pair of an entry, if the search has to look at one place only.
    #[inline(always)]
    pub(crate) fn find_at_once(&self, identity: u64) -> Option<&Member> {
        if self.first.identity == identity {
            return Some(&self.first);
        }
        // Only for the order of the code: many CQs have no second queue pair.
        core::hint::cold_path();
        let member = self.places.at(identity as u32);
        if member.identity == identity { Some(member) } else { None }
    }

    /// The queue pair of an entry. For the identity 0 that may be an empty place, whose queue pair
    /// has no requests.
    #[inline]
    pub(crate) fn find(&self, identity: u64) -> Option<&Member> {
        self.find_at_once(identity).or_else(|| self.find_displaced(identity))
    }

    /// The queue pair of an entry, if it is not where the search for it begins.
    #[cold]
    #[inline(never)]
    fn find_displaced(&self, identity: u64) -> Option<&Member> {
        let member = self.places.at(self.search(identity));
        if member.identity == identity { Some(member) } else { None }
    }

    /// Where a queue pair is, or the empty place at which the search for it ends.
    #[inline]
    fn search(&self, identity: u64) -> u32 {
        // The low bits of a queue pair's number are its slot. Slots are given out one after the
        // other, so most queue pairs of a CQ differ in them.
        let mut at = identity as u32;
        // The table is at most half full, so the search comes to an empty place.
        while ![identity, 0].contains(&self.places.at(at).identity) {
            at = at.wrapping_add(1);
        }
        at & (self.places.count() - 1)
    }

    /// Whether the table has to grow before one more queue pair is added.
    pub(crate) fn is_full(&self) -> bool {
        (self.count + 1) * 2 > self.places.count()
    }

    /// For a table of twice the size.
    pub(crate) fn next_size(&self) -> Size {
        Size { log: self.places.count().ilog2() + 1, none: self.none.clone() }
    }

    /// Copies a chunk of places into another table, beginning with place `at`; returns where the
    /// next chunk begins.
    pub(crate) fn copy(&self, at: u32, into: &mut Members) -> Option<u32> {
        let end = (at + CHUNK).min(self.places.count());
        for member in (at..end).map(|at| self.places.at(at)).filter(|member| member.identity != 0) {
            into.insert(member.clone());
        }
        into.first = self.first.clone();
        (end < self.places.count()).then_some(end)
    }

    /// Adds a queue pair. The table must not be full.
    pub(crate) fn add(&mut self, queues: &Queues<'_>) {
        let Queues { identity, context, sends, receives } = *queues;
        let sends = sends.unwrap_or(&self.none.sends).clone();
        let receives = receives.unwrap_or(&self.none.receives).clone();
        let member = Member { identity, context, sends, receives };
        if self.count == 0 {
            self.first = member.clone();
        }
        self.insert(member);
    }

    fn insert(&mut self, member: Member) {
        let free = self.search(member.identity);
        *self.places.at_mut(free) = member;
        self.count += 1;
    }

    /// Removes a queue pair; returns it, to be dropped without the lock.
    pub(crate) fn remove(&mut self, identity: u64) -> Option<[Member; 2]> {
        let mut gap = self.search(identity);
        if self.places.at(gap).identity != identity {
            return None;
        }
        let removed = core::mem::replace(self.places.at_mut(gap), self.none.clone());
        let mut first = self.none.clone();
        if self.first.identity == identity {
            core::mem::swap(&mut self.first, &mut first);
        }
        self.count -= 1;
        // A search ends at an empty place, so those behind the gap move up that were displaced.
        let mask = self.places.count() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let home = self.places.at(at).identity;
            if home == 0 {
                return Some([removed, first]);
            }
            // How far the gap and this place are from where the search for its queue pair begins.
            let from_home = |place: u32| place.wrapping_sub(home as u32) & mask;
            if from_home(gap) < from_home(at) {
                let member = core::mem::replace(self.places.at_mut(at), self.none.clone());
                *self.places.at_mut(gap) = member;
                gap = at;
            }
        }
    }
}

/// The size of a table that is to be made.
pub(crate) struct Size {
    log: u32,
    none: Member,
}

impl Size {
    /// An empty table.
    pub(crate) fn table(&self) -> Result<Members, Error> {
        Members::with(self.log, &self.none)
    }
}

impl Member {
    /// For an empty place.
    fn none() -> Result<Member, Error> {
        let sends = heap::arc(Outstanding::new(0)?).map_err(|_| Error::OutOfMemory)?;
        Ok(Member { identity: 0, context: 0, sends, receives: Receives::new(0, None)? })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::table;

    fn add(members: &mut Members, identity: u64) {
        while members.is_full() {
            let mut larger = members.next_size().table().unwrap();
            let mut at = Some(0);
            while let Some(next) = at {
                at = members.copy(next, &mut larger);
            }
            *members = larger;
        }
        let none = Queues { identity, context: identity * 3, sends: None, receives: None };
        members.add(&none);
    }

    #[test]
    fn each_queue_pair_is_found_until_it_is_removed() {
        let end = if cfg!(miri) { 50 } else { 400_u32 };
        // Numbers that follow each other, share their low bits, or share their high bits.
        for step in [1, 16, 1 << 10, 0x6181] {
            let mut members = Members::new().unwrap();
            let all: Vec<u64> = (1..end).map(|n| table::identity(n * step, n)).collect();
            all.iter().for_each(|&identity| add(&mut members, identity));
            let places = (2 * end).next_power_of_two();
            assert_eq!((members.places.count(), members.count), (places, end - 1));
            let (gone, left): (Vec<_>, Vec<_>) = all.iter().partition(|identity| *identity % 3 == 0);
            for &identity in &gone {
                assert_eq!(members.remove(identity).map(|[member, _]| member.context), Some(identity * 3));
                assert!(members.remove(identity).is_none());
            }
            let context = |identity| members.find(identity).map(|member| member.context);
            assert!(left.iter().all(|&identity| context(identity) == Some(identity * 3)));
            assert!(gone.iter().all(|&identity| context(identity).is_none()));
            assert!(left.iter().all(|&identity| context(identity ^ 1 << 40).is_none()), "a generation");
            let none = members.find(0).and_then(|empty| empty.retire(0, false));
            assert_eq!(none, None, "an empty place has no requests");
            left.iter().for_each(|&identity| assert!(members.remove(identity).is_some()));
            assert_eq!((members.count, members.first.identity), (0, 0));
        }
    }

    #[test]
    fn queue_pairs_with_numbers_in_a_row_are_found_at_once() {
        let mut members = Members::new().unwrap();
        let end = if cfg!(miri) { 202 } else { 8002_u32 };
        let all: Vec<u64> = (2..end).map(|slot| table::identity(slot | 1 << 14, 1)).collect();
        all.iter().for_each(|&identity| add(&mut members, identity));
        let context = |identity| members.find_at_once(identity).map(|member| member.context);
        assert!(all.iter().all(|&identity| context(identity) == Some(identity * 3)));
        // The first one is not found any more after it was removed, nor any other in its place.
        members.remove(all[0]).unwrap();
        assert!(members.find_at_once(all[0]).is_none() && members.find(all[0]).is_none());
        add(&mut members, all[0] | 7 << 40);
        assert!(
            members.find_at_once(all[0]).is_none()
                && members.find_at_once(0).is_none_or(|member| member.retire(0, true).is_none())
        );
    }
}
