//! A walk over a table of which only a part is looked at under one lock.

use alloc::collections::BTreeMap;
use core::ops::Bound;

use platform::sync::Mutex;

/// Entries of a table that are looked at under one lock.
const LOOKED_AT: usize = 256;
/// Of those, the most that are acted on before the next are looked at.
const FOUND: usize = 32;

/// What a look at a part of a table found.
struct Found<K> {
    wanted: [Option<K>; FOUND],
    /// The last entry that was looked at; none at the end of the table.
    last: Option<K>,
}

fn found<K: Copy + Ord, V>(table: &BTreeMap<K, V>, after: Bound<K>, wants: impl Fn(&V) -> bool) -> Found<K> {
    let mut found = Found { wanted: [None; FOUND], last: None };
    let mut free = found.wanted.iter_mut();
    for (&id, entry) in table.range((after, Bound::Unbounded)).take(LOOKED_AT) {
        if wants(entry) {
            let Some(place) = free.next() else { break };
            *place = Some(id);
        }
        found.last = Some(id);
    }
    found
}

/// Calls `act`, without the lock, for each entry of a table that `wants` selects, but for none that
/// is added behind the end of the walk meanwhile. Holds the lock for a bounded time only, and needs
/// no memory.
pub(crate) fn each<T, K: Copy + Ord, V>(
    tables: &Mutex<T>,
    table: impl Fn(&T) -> &BTreeMap<K, V>,
    wants: impl Fn(&V) -> bool,
    mut act: impl FnMut(K),
) {
    let mut after = Bound::Unbounded;
    loop {
        let Found { wanted, last } = found(table(&tables.lock()), after, &wants);
        wanted.into_iter().flatten().for_each(&mut act);
        match last {
            Some(id) => after = Bound::Excluded(id),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn each_wanted_entry_is_acted_on_once_without_the_lock() {
        let count = 3 * LOOKED_AT as u32 + 1;
        // Many for one look, none for several looks, and the last entry.
        let wants = |&value: &u32| value < 2 * FOUND as u32 || value == count - 1;
        let table: BTreeMap<u32, u32> = (0..count).map(|id| (id, id)).collect();
        let wanted: Vec<u32> = table.values().copied().filter(wants).collect();
        let lock = Mutex::new(table);
        let mut acted = Vec::new();
        each(
            &lock,
            |table| table,
            wants,
            |id| {
                assert!(lock.lock().remove(&id).is_some());
                acted.push(id);
            },
        );
        assert_eq!(acted, wanted);
        assert_eq!(lock.lock().len(), count as usize - wanted.len());
    }
}
