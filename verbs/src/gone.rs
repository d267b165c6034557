//! Objects that the program has destroyed a moment ago.
//!
//! A thread may destroy an object while another one polls it, or posts to it. The agent's part of
//! the object ends at once: then such calls fail, or find nothing. The memory that C's pointer
//! names has to outlive these calls, and nobody counts them, as that would cost each poll and each
//! post. So the last objects stay in memory, without what is large, and without descriptors. To
//! find the memory gone, a call that began before its object was destroyed would have to last until
//! [`KEPT`] more are destroyed.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::origin::Origin;

/// How many of them stay.
const KEPT: usize = 256;

/// A destroyed object. It is freed when this is dropped, and nowhere else.
struct Gone {
    at: *mut (),
    free: unsafe fn(*mut ()),
    origin: Origin,
}

impl Drop for Gone {
    fn drop(&mut self) {
        // A child leaves its parent's alone.
        if self.origin.check().is_ok() {
            // SAFETY: it is the object for which `keep` chose the function, and it is freed here
            // alone.
            unsafe { (self.free)(self.at) };
        }
    }
}

/// Without a lock, which another thread of a child's parent may have held at the fork.
static LAST: [AtomicPtr<Gone>; KEPT] = [const { AtomicPtr::new(ptr::null_mut()) }; KEPT];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// # Safety
///
/// The pointer is one of [`Box::into_raw`] of this type, which is used no more.
unsafe fn free<T>(at: *mut ()) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(at.cast::<T>()) });
}

/// Frees an object that was destroyed, when [`KEPT`] others have been destroyed after it.
///
/// # Safety
///
/// The pointer is one of [`Box::into_raw`], and the program makes no more calls with it. Any thread
/// may drop the object.
pub(crate) unsafe fn keep<T>(object: *mut T) {
    let gone = Gone { at: object.cast(), free: free::<T>, origin: Origin::here() };
    let place = NEXT.fetch_add(1, Ordering::Relaxed) % KEPT;
    let oldest = LAST[place].swap(Box::into_raw(Box::new(gone)), Ordering::AcqRel);
    if !oldest.is_null() {
        // SAFETY: it came from here, and was taken out once.
        drop(unsafe { Box::from_raw(oldest) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn an_object_is_freed_when_so_many_others_are_gone_after_it() {
        let counted = Arc::new(());
        let gone = |object: Arc<()>| {
            // SAFETY: nobody uses it.
            unsafe { keep(Box::into_raw(Box::new(object))) };
        };
        gone(counted.clone());
        (1..KEPT).for_each(|_| gone(Arc::default()));
        assert_eq!(Arc::strong_count(&counted), 2);
        gone(Arc::default());
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
