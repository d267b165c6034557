//! What this provider does not have, and what it has nothing to do for.

use core::ffi::{c_char, c_int};

use dat::Subtype;

use crate::abi::{Address, Count, Handle, Return, Triplet};
use crate::call::{NOT_IMPLEMENTED, call};
use crate::opened;

fn missing() -> Return {
    call(|| Err(NOT_IMPLEMENTED))
}

/// Of calls whose first argument says which object it is, and whose others do not matter.
pub(crate) extern "C" fn one(_object: Handle) -> Return {
    missing()
}

pub(crate) extern "C" fn two(_object: Handle, _second: usize) -> Return {
    missing()
}

pub(crate) extern "C" fn three(_object: Handle, _second: usize, _third: usize) -> Return {
    missing()
}

/// `dat_csp_create`.
pub(crate) extern "C" fn csp_create(
    _ia: Handle,
    _comm: *mut c_int,
    _address: Address,
    _evd: Handle,
    _csp: *mut Handle,
) -> Return {
    missing()
}

/// `dat_ep_common_connect`.
pub(crate) extern "C" fn common_connect(
    _ep: Handle,
    _address: Address,
    _timeout: u32,
    _size: Count,
    _data: *const u8,
) -> Return {
    missing()
}

/// `dat_ep_post_send_with_invalidate`.
pub(crate) extern "C" fn send_with_invalidate(
    _ep: Handle,
    _count: Count,
    _iov: *mut Triplet,
    _cookie: u64,
    _flags: u32,
    _invalidate: c_int,
    _rmr_context: u32,
) -> Return {
    missing()
}

/// `dat_ep_post_rdma_read_to_rmr`.
pub(crate) extern "C" fn read_to_rmr(
    _ep: Handle,
    _local: *const Triplet,
    _cookie: u64,
    _remote: *const Triplet,
    _flags: u32,
) -> Return {
    missing()
}

/// `dat_ia_ha_related`.
pub(crate) extern "C" fn ha_related(_ia: Handle, _provider: *const c_char, _answer: *mut c_int) -> Return {
    missing()
}

/// `dat_lmr_sync_rdma_read`, `dat_lmr_sync_rdma_write`: memory is coherent here.
pub(crate) extern "C" fn sync(ia: Handle, _segments: *const Triplet, _count: u64) -> Return {
    call(|| opened::ia(ia).map(drop))
}

/// `dat_evd_enable`, `dat_evd_clear_unwaitable`: so each event dispatcher is always.
pub(crate) extern "C" fn as_it_is(evd: Handle) -> Return {
    call(|| opened::of(evd, Subtype::InvalidHandle1).map(drop))
}
