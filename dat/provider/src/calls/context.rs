//! Consumer contexts and types of handles.
#![expect(unsafe_code, reason = "results go to C by pointers")]

use dat::{Handle as Named, Subtype};

use crate::abi::{Handle, Return};
use crate::call::{call, handle, put};
use crate::{cells, opened};

const INVALID: Subtype = Subtype::InvalidHandle1;

/// `dat_set_consumer_context`.
pub(crate) extern "C" fn set(object: Handle, context: u64) -> Return {
    call(|| {
        opened::of(object, INVALID)?;
        cells::set_context(object, context);
        Ok(())
    })
}

/// `dat_get_consumer_context`.
pub(crate) unsafe extern "C" fn get(object: Handle, context: *mut u64) -> Return {
    call(|| {
        opened::of(object, INVALID)?;
        let found = cells::context(object).ok_or(handle(INVALID))?;
        // SAFETY: see the module `calls`.
        unsafe { put(context, found, Subtype::InvalidArg2) }
    })
}

/// `dat_get_handle_type`.
pub(crate) unsafe extern "C" fn get_type(object: Handle, kind: *mut u32) -> Return {
    call(|| {
        let (opened, word) = opened::of(object, INVALID)?;
        let found = opened.ia.get_handle_type(Named::from_raw(word))?;
        // SAFETY: see the module `calls`.
        unsafe { put(kind, found.as_raw(), Subtype::InvalidArg2) }
    })
}
