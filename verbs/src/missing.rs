//! The calls that are not there. A C caller's arguments do not matter to a function without any.

use core::ffi::{c_int, c_void};
use std::ptr;

use crate::errno;

/// A call that returns a number of errno: `EOPNOTSUPP`.
pub extern "C" fn number() -> c_int {
    libc::EOPNOTSUPP
}

/// A call that returns -1 and sets errno: `EOPNOTSUPP`.
pub extern "C" fn minus_one() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// As [`minus_one`], of a call that returns a long number.
pub extern "C" fn minus_one_long() -> isize {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// A call that returns a pointer, or null and sets errno: `EOPNOTSUPP`.
pub extern "C" fn pointer() -> *mut c_void {
    errno::set(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// A call without a result that does nothing.
pub extern "C" fn nothing() {}

/// A call that succeeds and has nothing to do: `ibv_fork_init`.
pub extern "C" fn success() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: `IBV_FORK_UNNEEDED`. A child of a process that has opened a device
/// opens one of its own.
pub extern "C" fn fork_unneeded() -> c_int {
    2
}

/// `ibv_query_qp_data_in_order`: no order is promised.
pub extern "C" fn zero() -> c_int {
    0
}

/// `ibv_get_sysfs_path`.
pub extern "C" fn sysfs() -> *const core::ffi::c_char {
    c"/sys".as_ptr()
}
