//! Service points and connection requests.
#![expect(unsafe_code, reason = "private data and results are C's, by pointers")]

use core::ffi::c_void;

use dat::{CrHandle, EpHandle, EvdHandle, PspHandle, Result, RspHandle, Subtype};

use crate::abi::{Count, CrParam, Handle, PspParam, Return, RspParam};
use crate::call::{call, count, parameter, put, required};
use crate::kept::End;
use crate::opened;
use crate::{cells, words};

const INVALID_CR: Subtype = Subtype::InvalidHandleCr;
const INVALID_PSP: Subtype = Subtype::InvalidHandlePsp;
const INVALID_RSP: Subtype = Subtype::InvalidHandleRsp;

/// The private data of a call.
///
/// # Safety
///
/// The pointer is null or to as many bytes.
pub(crate) unsafe fn private_data<'a>(
    data: *const c_void,
    size: Count,
    argument: Subtype,
) -> Result<&'a [u8]> {
    match count(size, argument)? {
        0 => Ok(&[]),
        _ if data.is_null() => Err(parameter(argument)),
        // SAFETY: the caller's.
        size => Ok(unsafe { std::slice::from_raw_parts(data.cast(), size) }),
    }
}

/// `dat_psp_create`.
pub(crate) unsafe extern "C" fn psp_create(
    ia: Handle,
    conn_qual: u64,
    evd: Handle,
    flags: u32,
    psp: *mut Handle,
) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        required(psp, Subtype::InvalidArg5)?;
        let (evd, flags) =
            (EvdHandle::from_raw(cells::word(evd)), words::point(flags, Subtype::InvalidArg4)?);
        let made = opened.ia.psp_create(conn_qual, evd, flags)?;
        let named = opened.new_name(made, |ia| ia.psp_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(psp, named, Subtype::InvalidArg5) }
    })
}

/// `dat_psp_create_any`.
pub(crate) unsafe extern "C" fn psp_create_any(
    ia: Handle,
    conn_qual: *mut u64,
    evd: Handle,
    flags: u32,
    psp: *mut Handle,
) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        required(conn_qual, Subtype::InvalidArg2)?;
        required(psp, Subtype::InvalidArg5)?;
        let (evd, flags) =
            (EvdHandle::from_raw(cells::word(evd)), words::point(flags, Subtype::InvalidArg4)?);
        let (found, made) = opened.ia.psp_create_any(evd, flags)?;
        let named = opened.new_name(made, |ia| ia.psp_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe {
            put(conn_qual, found, Subtype::InvalidArg2)?;
            put(psp, named, Subtype::InvalidArg5)
        }
    })
}

/// `dat_psp_query`.
pub(crate) unsafe extern "C" fn psp_query(psp: Handle, _mask: u32, param: *mut PspParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(psp, INVALID_PSP)?;
        let of = opened.ia.psp_query(PspHandle::from_raw(word))?;
        let found = PspParam {
            ia_handle: opened.known(of.ia_handle),
            conn_qual: of.conn_qual,
            evd_handle: opened.known(of.evd_handle),
            psp_flags: of.psp_flags.as_raw(),
        };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_psp_free`.
pub(crate) extern "C" fn psp_free(psp: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(psp, INVALID_PSP)?;
        opened.ia.psp_free(PspHandle::from_raw(word))?;
        opened.unname(psp);
        Ok(())
    })
}

/// `dat_rsp_create`.
pub(crate) unsafe extern "C" fn rsp_create(
    ia: Handle,
    conn_qual: u64,
    ep: Handle,
    evd: Handle,
    rsp: *mut Handle,
) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        required(rsp, Subtype::InvalidArg5)?;
        let (ep, evd) = (EpHandle::from_raw(cells::word(ep)), EvdHandle::from_raw(cells::word(evd)));
        let made = opened.ia.rsp_create(conn_qual, ep, evd)?;
        let named = opened.new_name(made, |ia| ia.rsp_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(rsp, named, Subtype::InvalidArg5) }
    })
}

/// `dat_rsp_query`.
pub(crate) unsafe extern "C" fn rsp_query(rsp: Handle, _mask: u32, param: *mut RspParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(rsp, INVALID_RSP)?;
        let of = opened.ia.rsp_query(RspHandle::from_raw(word))?;
        let found = RspParam {
            ia_handle: opened.known(of.ia_handle),
            conn_qual: of.conn_qual,
            evd_handle: opened.known(of.evd_handle),
            ep_handle: opened.known(of.ep_handle),
        };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_rsp_free`.
pub(crate) extern "C" fn rsp_free(rsp: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(rsp, INVALID_RSP)?;
        opened.ia.rsp_free(RspHandle::from_raw(word))?;
        opened.unname(rsp);
        Ok(())
    })
}

/// `dat_cr_query`.
pub(crate) unsafe extern "C" fn cr_query(cr: Handle, _mask: u32, param: *mut CrParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(cr, INVALID_CR)?;
        let of = opened.ia.cr_query(CrHandle::from_raw(word))?;
        let (private_data_size, private_data) = opened.kept.data(cr, of.private_data.as_ref());
        let found = CrParam {
            remote_ia_address_ptr: opened.kept.address(cr, End::Remote, of.remote_ia_address),
            remote_port_qual: of.remote_port_qual,
            private_data_size,
            private_data,
            local_ep_handle: opened.known(of.local_ep_handle),
        };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_cr_accept`.
pub(crate) unsafe extern "C" fn cr_accept(
    cr: Handle,
    ep: Handle,
    size: Count,
    data: *const c_void,
) -> Return {
    call(|| {
        let (opened, word) = opened::of(cr, INVALID_CR)?;
        // SAFETY: see the module `calls`.
        let data = unsafe { private_data(data, size, Subtype::InvalidArg4)? };
        let ep = EpHandle::from_raw(cells::word(ep));
        opened.ia.cr_accept(CrHandle::from_raw(word), ep, data)?;
        opened.unname(cr);
        Ok(())
    })
}

/// `dat_cr_reject`.
pub(crate) unsafe extern "C" fn cr_reject(cr: Handle, size: Count, data: *const c_void) -> Return {
    call(|| {
        let (opened, word) = opened::of(cr, INVALID_CR)?;
        // SAFETY: see the module `calls`.
        let data = unsafe { private_data(data, size, Subtype::InvalidArg3)? };
        opened.ia.cr_reject(CrHandle::from_raw(word), data)?;
        opened.unname(cr);
        Ok(())
    })
}

/// `dat_cr_handoff`.
pub(crate) extern "C" fn cr_handoff(cr: Handle, conn_qual: u64) -> Return {
    call(|| {
        let (opened, word) = opened::of(cr, INVALID_CR)?;
        opened.ia.cr_handoff(CrHandle::from_raw(word), conn_qual)?;
        opened.unname(cr);
        Ok(())
    })
}
