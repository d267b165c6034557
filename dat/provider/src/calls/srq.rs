//! Shared receive queues.
#![expect(unsafe_code, reason = "attributes and results are C's, by pointers")]

use dat::{PzHandle, SrqAttr, SrqHandle, Subtype};

use crate::abi::{self, Count, Handle, Return, SrqParam};
use crate::call::{as_count, call, count, put, required};
use crate::cells;
use crate::opened;

const INVALID: Subtype = Subtype::InvalidHandleSrq;

/// `dat_srq_create`.
pub(crate) unsafe extern "C" fn create(
    ia: Handle,
    pz: Handle,
    attr: *const abi::SrqAttr,
    srq: *mut Handle,
) -> Return {
    const ATTR: Subtype = Subtype::InvalidArg3;
    call(|| {
        let opened = opened::ia(ia)?;
        required(attr.cast_mut(), ATTR)?;
        required(srq, Subtype::InvalidArg4)?;
        // SAFETY: see the module `calls`.
        let attr = unsafe { *attr };
        let attr = SrqAttr {
            max_recv_dtos: count(attr.max_recv_dtos, ATTR)?,
            max_recv_iov: count(attr.max_recv_iov, ATTR)?,
            low_watermark: attr.low_watermark,
        };
        let made = opened.ia.srq_create(PzHandle::from_raw(cells::word(pz)), &attr)?;
        let named = opened.new_name(made, |ia| ia.srq_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(srq, named, Subtype::InvalidArg4) }
    })
}

/// `dat_srq_query`.
pub(crate) unsafe extern "C" fn query(srq: Handle, _mask: u32, param: *mut SrqParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(srq, INVALID)?;
        let of = opened.ia.srq_query(SrqHandle::from_raw(word))?;
        let found = SrqParam {
            ia_handle: opened.known(of.ia_handle),
            srq_state: of.srq_state.as_raw(),
            pz_handle: opened.known(of.pz_handle),
            max_recv_dtos: as_count(of.max_recv_dtos),
            max_recv_iov: as_count(of.max_recv_iov),
            low_watermark: of.low_watermark,
            available_dto_count: of.available_dto_count,
            outstanding_dto_count: of.outstanding_dto_count,
        };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_srq_resize`.
pub(crate) extern "C" fn resize(srq: Handle, most: Count) -> Return {
    call(|| {
        let (opened, word) = opened::of(srq, INVALID)?;
        opened.ia.srq_resize(SrqHandle::from_raw(word), count(most, Subtype::InvalidArg2)?)
    })
}

/// `dat_srq_set_lw`.
pub(crate) extern "C" fn set_lw(srq: Handle, watermark: Count) -> Return {
    call(|| {
        let (opened, word) = opened::of(srq, INVALID)?;
        opened.ia.srq_set_lw(SrqHandle::from_raw(word), watermark)
    })
}

/// `dat_srq_free`.
pub(crate) extern "C" fn free(srq: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(srq, INVALID)?;
        opened.ia.srq_free(SrqHandle::from_raw(word))?;
        opened.unname(srq);
        Ok(())
    })
}
