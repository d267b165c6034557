//! An array that takes memory in chunks, as its indices come into use.
//!
//! A value stays where it was created, and is found without a lock.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::OutOfMemory;
use crate::sync::Once;

/// Up to [`Chunks::limit`] values, allocated `N` at a time.
pub struct Chunks<T, const N: usize> {
    chunks: Box<[Once<Box<[T; N]>>]>,
    limit: usize,
}

impl<T, const N: usize> Chunks<T, N> {
    /// No values yet; indices below `limit` can come into use.
    pub fn new(limit: usize) -> Result<Chunks<T, N>, OutOfMemory> {
        let count = limit.div_ceil(N);
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        chunks.resize_with(count, Once::new);
        Ok(Chunks { chunks: chunks.into_boxed_slice(), limit })
    }

    /// Indices are below this.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The value at an index, if its chunk exists.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&T> {
        Some(&self.chunks.get(index / N)?.get()?[index % N])
    }

    /// The value at an index. If its chunk does not exist, creates the chunk's values; fails if
    /// there is no memory for them, or if the index is not below the limit.
    pub fn get_or_create(&self, index: usize, create: impl FnMut() -> T) -> Result<&T, OutOfMemory> {
        if index >= self.limit {
            return Err(OutOfMemory);
        }
        let chunk = self.chunks.get(index / N).ok_or(OutOfMemory)?.try_call_once(|| {
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(N).map_err(|_| OutOfMemory)?;
            chunk.resize_with(N, create);
            Box::try_from(chunk.into_boxed_slice()).map_err(|_| OutOfMemory)
        })?;
        Ok(&chunk[index % N])
    }

    /// All values of chunks that exist, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().filter_map(|chunk| chunk.get()).flat_map(|chunk| chunk.iter())
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn a_chunk_is_created_when_one_of_its_indices_comes_into_use() {
        let created = Cell::new(0);
        let create = || {
            created.set(created.get() + 1);
            created.get()
        };
        let chunks: Chunks<u32, 4> = Chunks::new(10).unwrap();
        assert_eq!(chunks.get(5), None);
        assert_eq!(chunks.get_or_create(5, create), Ok(&2));
        assert_eq!(created.get(), 4);
        assert_eq!((chunks.get(4), chunks.get(7), chunks.get(8)), (Some(&1), Some(&4), None));
        assert_eq!(chunks.get_or_create(6, create), Ok(&3), "the chunk exists");
        assert_eq!(chunks.get_or_create(9, create), Ok(&6));
        assert_eq!(chunks.get_or_create(10, create), Err(OutOfMemory), "the limit");
        assert!(chunks.iter().copied().eq(1..=8));
        assert_eq!(chunks.limit(), 10);
    }
}
