//! The table of connections: what stands behind the two ends that a packet names.

use alloc::vec::Vec;

use platform::Secret;

use crate::address::Tuple;
use crate::error::Error;

/// What stands behind a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The stream with this index.
    Stream(u32),
    /// The half-open connection with this index.
    Half(u32),
    /// The record of a former connection with this index.
    Former(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tuple: Tuple,
    /// `None`: the entry is free.
    place: Option<Place>,
    /// The next one of the same bucket, or the next free one.
    next: u32,
}

/// No entry.
const NONE: u32 = u32::MAX;

/// A hash table of a fixed number of buckets, which are chains through the entries. It takes no
/// more than `most` entries, and moves none when it grows.
#[derive(Debug)]
pub(crate) struct Table {
    secret: Secret,
    buckets: Vec<u32>,
    entries: Vec<Entry>,
    free: u32,
    len: usize,
    most: usize,
}

impl Table {
    /// A table for `most` entries.
    pub fn new(most: usize, secret: Secret) -> Result<Table, Error> {
        let mut buckets = Vec::new();
        let count = most.max(1).next_power_of_two();
        buckets.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
        buckets.resize(count, NONE);
        Ok(Table { secret, buckets, entries: Vec::new(), free: NONE, len: 0, most })
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    fn bucket(&self, tuple: &Tuple) -> usize {
        tuple.hash(&self.secret) as usize & (self.buckets.len() - 1)
    }

    pub fn get(&self, tuple: &Tuple) -> Option<Place> {
        let mut at = self.buckets[self.bucket(tuple)];
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.tuple == *tuple {
                return entry.place;
            }
            at = entry.next;
        }
        None
    }

    /// Puts a place behind a name, instead of the one that is there.
    pub fn insert(&mut self, tuple: Tuple, place: Place) -> Result<(), Error> {
        let bucket = self.bucket(&tuple);
        let mut at = self.buckets[bucket];
        while let Some(entry) = self.entries.get_mut(at as usize) {
            if entry.tuple == tuple {
                entry.place = Some(place);
                return Ok(());
            }
            at = entry.next;
        }
        let new = Entry { tuple, place: Some(place), next: self.buckets[bucket] };
        let index = match self.entries.get_mut(self.free as usize) {
            Some(entry) => {
                let index = core::mem::replace(&mut self.free, entry.next);
                *entry = new;
                index
            }
            None => {
                if self.entries.len() >= self.most {
                    return Err(Error::TooMany);
                }
                self.entries.try_reserve(1).map_err(|_| Error::NoMemory)?;
                self.entries.push(new);
                self.entries.len() as u32 - 1
            }
        };
        self.buckets[bucket] = index;
        self.len += 1;
        Ok(())
    }

    pub fn remove(&mut self, tuple: &Tuple) {
        let bucket = self.bucket(tuple);
        let (mut before, mut at) = (NONE, self.buckets[bucket]);
        while let Some(entry) = self.entries.get(at as usize) {
            let next = entry.next;
            if entry.tuple == *tuple {
                match self.entries.get_mut(before as usize) {
                    Some(entry) => entry.next = next,
                    None => self.buckets[bucket] = next,
                }
                let entry = &mut self.entries[at as usize];
                (entry.place, entry.next) = (None, self.free);
                self.free = at;
                self.len -= 1;
                return;
            }
            (before, at) = (at, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    fn tuple(n: u32) -> Tuple {
        let local: IpAddr = [10, 0, 0, 1].into();
        Tuple::new((local, 80), (IpAddr::V4(n.into()), n as u16))
    }

    #[test]
    fn what_is_put_in_is_found_until_it_is_taken_out() {
        let mut table = Table::new(100, Secret::new([1, 2])).unwrap();
        for round in 0..3 {
            for n in 0..100 {
                table.insert(tuple(n), Place::Stream(n + round)).unwrap();
            }
            assert_eq!((table.len(), table.entries.len()), (100, 100));
            for n in 0..100 {
                assert_eq!(table.get(&tuple(n)), Some(Place::Stream(n + round)));
            }
            for n in (0..100).filter(|n| n % 3 != round) {
                table.remove(&tuple(n));
                table.remove(&tuple(n));
                assert_eq!(table.get(&tuple(n)), None);
            }
            for n in (0..100).filter(|n| n % 3 == round) {
                assert_eq!(table.get(&tuple(n)), Some(Place::Stream(n + round)));
            }
        }
    }

    #[test]
    fn a_full_table_refuses_a_name_and_still_changes_those_it_has() {
        let mut table = Table::new(3, Secret::new([1, 2])).unwrap();
        for n in 0..3 {
            table.insert(tuple(n), Place::Half(n)).unwrap();
        }
        assert_eq!(table.insert(tuple(3), Place::Half(3)), Err(Error::TooMany));
        table.insert(tuple(2), Place::Former(7)).unwrap();
        assert_eq!((table.get(&tuple(2)), table.get(&tuple(3))), (Some(Place::Former(7)), None));
        table.remove(&tuple(0));
        table.insert(tuple(3), Place::Half(3)).unwrap();
    }
}
