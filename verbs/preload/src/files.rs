//! Calls that take a path.
#![expect(unsafe_code, reason = "the calls are C's")]

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::transmute;
use core::ptr::null_mut;

use crate::path::{Room, elsewhere};
use crate::real::{Real, set_errno};

/// Defines calls: what comes before the path, the path, what comes behind it, the type of what the
/// call returns and its value if C's library has no such call. Arguments behind `...` are those
/// that C's declaration leaves open; a caller that does not give them does not need them.
macro_rules! calls {
    ($(
        fn $name:ident($($before:ident: $kind:ty,)* [path] $(, $behind:ident: $type:ty)*
            $(; $dots:tt $more:ident: $open:ty)?) -> $result:ty, else $failed:expr;
    )*) => {$(
        /// As C's library has it.
        ///
        /// # Safety
        ///
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $kind,)* path: *const c_char $(, $behind: $type)* $(, $more: $open)?
        ) -> $result {
            static REAL: Real = Real::new(
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                },
            );
            type Call = unsafe extern "C" fn(
                $($kind,)* *const c_char $(, $type)* $(, $dots)?
            ) -> $result;
            let Some(real) = REAL.get() else {
                set_errno(libc::ENOSYS);
                return $failed;
            };
            let mut room = Room::new();
            // SAFETY: the caller's; C's function of this name has this type.
            unsafe {
                let real = transmute::<*mut c_void, Call>(real);
                real($($before,)* elsewhere(path, &mut room) $(, $behind)* $(, $more)?)
            }
        }
    )*};
}

calls! {
    fn stat([path], to: *mut c_void) -> c_int, else -1;
    fn stat64([path], to: *mut c_void) -> c_int, else -1;
    fn lstat([path], to: *mut c_void) -> c_int, else -1;
    fn lstat64([path], to: *mut c_void) -> c_int, else -1;
    fn fstatat(at: c_int, [path], to: *mut c_void, flags: c_int) -> c_int, else -1;
    fn fstatat64(at: c_int, [path], to: *mut c_void, flags: c_int) -> c_int, else -1;
    fn statx(at: c_int, [path], flags: c_int, mask: c_uint, to: *mut c_void) -> c_int, else -1;
    fn __xstat(version: c_int, [path], to: *mut c_void) -> c_int, else -1;
    fn __xstat64(version: c_int, [path], to: *mut c_void) -> c_int, else -1;
    fn __lxstat(version: c_int, [path], to: *mut c_void) -> c_int, else -1;
    fn __lxstat64(version: c_int, [path], to: *mut c_void) -> c_int, else -1;
    fn access([path], mode: c_int) -> c_int, else -1;
    fn faccessat(at: c_int, [path], mode: c_int, flags: c_int) -> c_int, else -1;
    fn open([path], flags: c_int; ... mode: c_uint) -> c_int, else -1;
    fn open64([path], flags: c_int; ... mode: c_uint) -> c_int, else -1;
    fn openat(at: c_int, [path], flags: c_int; ... mode: c_uint) -> c_int, else -1;
    fn openat64(at: c_int, [path], flags: c_int; ... mode: c_uint) -> c_int, else -1;
    fn __open_2([path], flags: c_int) -> c_int, else -1;
    fn __open64_2([path], flags: c_int) -> c_int, else -1;
    fn fopen([path], mode: *const c_char) -> *mut c_void, else null_mut();
    fn fopen64([path], mode: *const c_char) -> *mut c_void, else null_mut();
    fn opendir([path]) -> *mut c_void, else null_mut();
    fn readlink([path], to: *mut c_char, size: usize) -> isize, else -1;
    fn realpath([path], to: *mut c_char) -> *mut c_char, else null_mut();
}
