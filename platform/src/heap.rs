//! Heap memory whose exhaustion is an error, where `alloc` has no fallible way to ask for it.
//!
//! A `Vec` can be asked to reserve memory, and says if there is none. An `Arc` and a map cannot:
//! they end the program. So before one of these allocates, this module asks for as much memory,
//! with some to spare, and gives it back. If that fails, the caller returns an error. A thread that
//! allocates between the two steps takes from what is to spare.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::OutOfMemory;

/// What is asked for beyond the need, for threads that allocate at the same moment.
const SPARE: usize = 4096;

/// Fails unless the heap has a run of `bytes`, and some to spare.
pub fn room(bytes: usize) -> Result<(), OutOfMemory> {
    let mut probe: Vec<u8> = Vec::new();
    let reserved = probe.try_reserve_exact(bytes.saturating_add(SPARE));
    // The compiler must not leave the request out because its memory is not used.
    core::hint::black_box(&mut probe);
    reserved.map_err(|_| OutOfMemory)
}

/// Fails unless there is room for an `Arc` of this type.
pub fn room_for_arc<T>() -> Result<(), OutOfMemory> {
    // The value and two counts, at the alignment of either.
    room(size_of::<T>() + 2 * align_of::<T>().max(size_of::<usize>()))
}

/// An `Arc`; gives the value back if there is no memory.
pub fn arc<T>(value: T) -> Result<Arc<T>, T> {
    match room_for_arc::<T>() {
        Ok(()) => Ok(Arc::new(value)),
        Err(OutOfMemory) => Err(value),
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_heap_can_have_is_refused() {
        assert_eq!(room(usize::MAX), Err(OutOfMemory));
        assert_eq!(room(isize::MAX as usize), Err(OutOfMemory));
        assert_eq!(room(100), Ok(()));
        assert_eq!(arc(5).as_deref(), Ok(&5));
        // Miri's heap has room for as much as that.
        if !cfg!(miri) {
            assert_eq!(room_for_arc::<[u8; 1 << 46]>(), Err(OutOfMemory));
        }
    }
}
