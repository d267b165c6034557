//! Which paths lead elsewhere, and where to.
#![expect(unsafe_code, reason = "paths are C's strings")]

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;

use crate::library;

/// The folders in which programs look for devices.
const FOLDERS: [&[u8]; 2] = [b"/dev/infiniband", b"/sys/class/infiniband"];

/// Room for a path.
pub struct Room([MaybeUninit<u8>; libc::PATH_MAX as usize]);

impl Room {
    pub fn new() -> Room {
        Room([MaybeUninit::uninit(); libc::PATH_MAX as usize])
    }
}

/// Whether a path is one of the folders or in it. One with `..` in it may lead out again, and stays
/// as it is.
fn is_of_devices(path: &[u8]) -> bool {
    let inside =
        |folder: &&[u8]| path.strip_prefix(*folder).is_some_and(|rest| matches!(rest, [] | [b'/', ..]));
    FOLDERS.iter().any(inside) && path.split(|&b| b == b'/').all(|part| part != b"..")
}

/// Where a path leads: itself, or a file of the device.
///
/// # Safety
///
/// The path is null or a string.
pub unsafe fn elsewhere(path: *const c_char, room: &mut Room) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: the caller's.
    let given = unsafe { CStr::from_ptr(path) };
    if !is_of_devices(given.to_bytes()) {
        return path;
    }
    let Some(folder) = library::folder() else { return path };
    let (folder, given) = (folder.to_bytes(), given.to_bytes_with_nul());
    if folder.len() + given.len() > room.0.len() {
        return path;
    }
    for (to, from) in room.0.iter_mut().zip(folder.iter().chain(given)) {
        to.write(*from);
    }
    room.0.as_ptr().cast()
}
