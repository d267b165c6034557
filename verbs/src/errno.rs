//! Errors as C has them: a number of errno.
#![expect(unsafe_code, reason = "errno is a variable of C")]

use core::ffi::c_int;
use std::ptr;

use kernel_agent::{Error, PostError};

/// A number of errno; never 0.
pub(crate) type Errno = c_int;

/// What is returned for a call that returns a number of errno.
pub(crate) fn status(result: Result<(), Errno>) -> c_int {
    result.err().unwrap_or(0)
}

/// What is returned for a call that returns -1 and sets errno.
pub(crate) fn minus_one(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            -1
        }
    }
}

/// What is returned for a call that returns a pointer, or null and sets errno.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set(errno);
        ptr::null_mut()
    })
}

/// Sets errno.
pub(crate) fn set(errno: Errno) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// The errno of this thread.
pub(crate) fn last() -> Errno {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// The number for an error of the agent.
pub(crate) fn of(error: Error) -> Errno {
    match error {
        Error::DeviceDead(_) | Error::Unusable(_) => libc::EIO,
        Error::NoResources(_) | Error::OutOfMemory => libc::ENOMEM,
        Error::Busy => libc::EBUSY,
        Error::NotReachable => libc::EFAULT,
        Error::ServiceInUse => libc::EADDRINUSE,
        _ => libc::EINVAL,
    }
}

/// The number for a post that was refused.
pub(crate) fn of_post(error: PostError) -> Errno {
    match error {
        PostError::QueueFull | PostError::LinksInFlight => libc::ENOMEM,
        PostError::Gone => libc::EIO,
        _ => libc::EINVAL,
    }
}
