//! The calls that are replaced: the next ones of their names in the order in which libraries were
//! loaded.
#![expect(unsafe_code, reason = "functions are found by name")]

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The version that glibc's names had when it came to this kind of CPU. Some of its functions
/// (`__xstat`) have no newer one, and are found by a version only.
const FIRST: &CStr = c"GLIBC_2.2.5";

/// A function of C's library, looked up at its first call.
pub struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub const fn new(name: &'static CStr) -> Real {
        Real { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The function; none if no library has it.
    pub fn get(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the names are strings.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if found.is_null() {
                // SAFETY: as above.
                found = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), FIRST.as_ptr()) };
            }
            self.found.store(found, Ordering::Relaxed);
        }
        (!found.is_null()).then_some(found)
    }
}

/// Sets `errno`.
pub fn set_errno(to: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = to };
}

/// `errno`.
pub fn errno() -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}
