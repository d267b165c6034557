//! What is around each call: errors become numbers, panics stay here, and the child of a fork is
//! refused, since it has none of the threads.
#![expect(unsafe_code, reason = "fork is C's")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use dat::{Error, ErrorType, Result, SUCCESS, Subtype};

use crate::abi::Return;

/// This process is the child of one that loaded the library.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Learns of forks.
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function only stores a word.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Runs a call.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<()>) -> Return {
    const BROKEN: Error = Error::new(ErrorType::InternalError, Subtype::None);
    if FORKED.load(Ordering::Relaxed) {
        return BROKEN.as_raw();
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(error)) => error.as_raw(),
        Err(_) => BROKEN.as_raw(),
    }
}

/// A bad argument.
pub(crate) const fn parameter(argument: Subtype) -> Error {
    Error::new(ErrorType::InvalidParameter, argument)
}

/// A handle that names no object of the type.
pub(crate) const fn handle(subtype: Subtype) -> Error {
    Error::new(ErrorType::InvalidHandle, subtype)
}

/// What this provider does not have.
pub(crate) const NOT_IMPLEMENTED: Error = Error::new(ErrorType::NotImplemented, Subtype::None);
/// There is no cell for another handle.
pub(crate) const NO_CELL: Error = Error::new(ErrorType::InsufficientResources, Subtype::ResourceMemory);

/// A count of C, which is not negative.
pub(crate) fn count(number: crate::abi::Count, argument: Subtype) -> Result<usize> {
    usize::try_from(number).map_err(|_| parameter(argument))
}

/// As a count of C.
pub(crate) fn as_count(number: impl TryInto<crate::abi::Count>) -> crate::abi::Count {
    number.try_into().unwrap_or(crate::abi::Count::MAX)
}

/// Fails unless C gives a place for a result: before anything is made.
pub(crate) fn required<T>(to: *mut T, argument: Subtype) -> Result<()> {
    if to.is_null() { Err(parameter(argument)) } else { Ok(()) }
}

/// Where C wants a result.
///
/// # Safety
///
/// The pointer is null or to a place for a `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, argument: Subtype) -> Result<()> {
    if to.is_null() {
        return Err(parameter(argument));
    }
    // SAFETY: the caller's.
    unsafe { to.write(value) };
    Ok(())
}

/// As [`put`], where C may want no result.
///
/// # Safety
///
/// As [`put`].
pub(crate) unsafe fn put_if<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's.
        unsafe { to.write(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> Return {
        Error::from(ErrorType::InternalError).as_raw()
    }

    #[test]
    fn a_panic_is_an_error_of_the_call() {
        assert_eq!(call(|| Ok(())), SUCCESS);
        assert_eq!(call(|| Err(NOT_IMPLEMENTED)), NOT_IMPLEMENTED.as_raw());
        assert_eq!(call(|| panic!("on purpose")), broken());
    }

    #[test]
    fn the_child_of_a_fork_is_refused() {
        watch_forks();
        // SAFETY: the child makes one call, which takes no lock, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = call(|| Ok(())) == broken();
            // SAFETY: it ends the child, and runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = -1;
        // SAFETY: the status is a place for it.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
        assert_eq!(call(|| Ok(())), SUCCESS, "the parent goes on");
    }
}
