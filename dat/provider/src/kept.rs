//! What C reads behind pointers until a handle ends: the private data of a request or of a
//! connection, and the addresses of its ends.
//!
//! The memory is C's to read and to change, so Rust has no reference to it.
//!
//! Locks: `kept`.
#![expect(unsafe_code, reason = "memory that C reads by pointers")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use dat::PrivateData;

use crate::abi::{Address, Count, Handle};
use crate::address;

/// Of one handle.
#[repr(C)]
struct Page {
    data: [u8; PrivateData::MAX],
    addresses: [[u8; address::SIZE]; 2],
}

struct Place(*mut Page);

// SAFETY: the page is written under the lock, and C's otherwise.
unsafe impl Send for Place {}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::into_raw`.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Which address.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Local,
    Remote,
}

/// By handle.
#[derive(Default)]
pub(crate) struct Kept {
    kept: Mutex<HashMap<usize, Place>>,
}

impl Kept {
    fn with<R>(&self, handle: Handle, write: impl FnOnce(*mut Page) -> R) -> R {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let page = Page { data: [0; PrivateData::MAX], addresses: [[0; address::SIZE]; 2] };
            Place(Box::into_raw(Box::new(page)))
        };
        write(kept.entry(handle.addr()).or_insert_with(new).0)
    }

    /// Keeps private data; returns its length and where it is. C may read all bytes of the place,
    /// which are zeros beyond the data.
    pub(crate) fn data(&self, handle: Handle, data: Option<&PrivateData>) -> (Count, *mut c_void) {
        let bytes = data.map_or(&[][..], |data| data.bytes());
        self.with(handle, |page| {
            // SAFETY: the page is there as long as the handle, and `bytes` fits.
            unsafe {
                let place = (&raw mut (*page).data).cast::<u8>();
                place.write_bytes(0, PrivateData::MAX);
                place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                (bytes.len() as Count, place.cast())
            }
        })
    }

    /// Keeps an address; returns where it is.
    pub(crate) fn address(&self, handle: Handle, end: End, of: IpAddr) -> Address {
        self.with(handle, |page| {
            // SAFETY: as above.
            unsafe {
                let place = &raw mut (*page).addresses[end as usize];
                place.write(address::to_c(of));
                place.cast()
            }
        })
    }

    /// The handle ended.
    pub(crate) fn forget(&self, handle: Handle) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    }
}
