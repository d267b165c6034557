//! Local and remote memory regions.
#![expect(unsafe_code, reason = "memory, triplets and results are C's, by pointers")]

use core::ffi::c_void;

use dat::{
    CompletionFlags, EpHandle, Error, ErrorType, LmrHandle, MemPriv, MemType, PzHandle, RegionDescription,
    RmrHandle, Subtype,
};

use super::post;
use crate::abi::{self, Handle, LmrParam, Return, RmrParam, Triplet};
use crate::call::{call, parameter, put, put_if, required};
use crate::opened;
use crate::{cells, words};

/// What C asks for, as the NIC can give it: who may write memory may read it, and where peers
/// write, the consumer writes, too. So it is with the providers of RNICs.
fn privileges(bits: u32) -> MemPriv {
    let asked = MemPriv::from_bits_retain(bits);
    let mut privileges = asked | MemPriv::LOCAL_READ;
    if asked.intersects(MemPriv::REMOTE_WRITE | MemPriv::IB_REMOTE_ATOMIC) {
        privileges |= MemPriv::LOCAL_WRITE;
    }
    privileges
}

/// `dat_lmr_create`.
pub(crate) unsafe extern "C" fn lmr_create(
    ia: Handle,
    mem_type: u32,
    region: abi::RegionDescription,
    length: u64,
    pz: Handle,
    mem_priv: u32,
    va_type: u32,
    lmr: *mut Handle,
    lmr_context: *mut u32,
    rmr_context: *mut u32,
    registered_size: *mut u64,
    registered_address: *mut u64,
) -> Return {
    const REGION: Subtype = Subtype::InvalidArg3;
    call(|| {
        let opened = opened::ia(ia)?;
        required(lmr, Subtype::InvalidArg8)?;
        let (pz, va_type) = (PzHandle::from_raw(cells::word(pz)), words::va(va_type, Subtype::InvalidArg7)?);
        let privileges = privileges(mem_priv);
        let made = if mem_type == MemType::Virtual as u32 {
            if length == 0 {
                return Err(Error::new(ErrorType::LengthError, Subtype::None));
            }
            if region.first.is_null() {
                return Err(parameter(REGION));
            }
            let address = region.first.expose_provenance();
            // SAFETY: the program promises it by the call, see the crate.
            unsafe { opened.ia.lmr_create_raw(address, length, pz, privileges, va_type)? }
        } else if mem_type == MemType::Lmr as u32 {
            let other = LmrHandle::from_raw(cells::word(region.first));
            opened.ia.lmr_create(RegionDescription::Lmr(other), length, pz, privileges, va_type)?
        } else if mem_type == MemType::SharedVirtual as u32 {
            return Err(Error::new(ErrorType::ModelNotSupported, Subtype::None));
        } else {
            return Err(parameter(Subtype::InvalidArg2));
        };
        let named = opened.new_name(made.lmr_handle, |ia| ia.lmr_free(made.lmr_handle))?;
        // SAFETY: see the module `calls`.
        unsafe {
            put_if(lmr_context, cells::number(named));
            put_if(rmr_context, made.rmr_context.unwrap_or(0));
            put_if(registered_size, made.registered_size);
            put_if(registered_address, made.registered_address);
            put(lmr, named, Subtype::InvalidArg8)
        }
    })
}

/// `dat_lmr_query`.
pub(crate) unsafe extern "C" fn lmr_query(lmr: Handle, _mask: u32, param: *mut LmrParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(lmr, Subtype::InvalidHandleLmr)?;
        let of = opened.ia.lmr_query(LmrHandle::from_raw(word))?;
        let first: *mut c_void = std::ptr::with_exposed_provenance_mut(of.address);
        let found = LmrParam {
            ia_handle: opened.known(of.ia_handle),
            mem_type: of.mem_type as u32,
            region_desc: abi::RegionDescription { first, cookie: std::ptr::null_mut() },
            length: of.length,
            pz_handle: opened.known(of.pz_handle),
            mem_priv: of.mem_priv.bits(),
            va_type: of.va_type.as_raw(),
            lmr_context: cells::number(lmr),
            rmr_context: of.rmr_context.unwrap_or(0),
            registered_size: of.registered_size,
            registered_address: of.registered_address,
        };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_lmr_free`.
pub(crate) extern "C" fn lmr_free(lmr: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(lmr, Subtype::InvalidHandleLmr)?;
        opened.ia.lmr_free(LmrHandle::from_raw(word))?;
        opened.unname(lmr);
        Ok(())
    })
}

/// `dat_rmr_create`.
pub(crate) unsafe extern "C" fn rmr_create(pz: Handle, rmr: *mut Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(pz, Subtype::InvalidHandlePz)?;
        required(rmr, Subtype::InvalidArg2)?;
        let made = opened.ia.rmr_create(PzHandle::from_raw(word))?;
        let named = opened.new_name(made, |ia| ia.rmr_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(rmr, named, Subtype::InvalidArg2) }
    })
}

/// `dat_rmr_query`.
pub(crate) unsafe extern "C" fn rmr_query(rmr: Handle, _mask: u32, param: *mut RmrParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(rmr, Subtype::InvalidHandleRmr)?;
        let of = opened.ia.rmr_query(RmrHandle::from_raw(word))?;
        let lmr_triplet = of.lmr_triplet.map(|bound| Triplet {
            virtual_address: bound.virtual_address(),
            segment_length: bound.segment_length().min(u64::from(u32::MAX)) as u32,
            context: cells::number(opened.known(of.lmr_handle)),
        });
        let found = RmrParam {
            ia_handle: opened.known(of.ia_handle),
            pz_handle: opened.known(of.pz_handle),
            lmr_triplet: lmr_triplet.unwrap_or(Triplet { virtual_address: 0, segment_length: 0, context: 0 }),
            mem_priv: of.mem_priv.bits(),
            rmr_context: of.rmr_context,
            rmr_scope: of.rmr_scope.as_raw(),
            va_type: of.va_type.as_raw(),
        };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_rmr_bind`.
pub(crate) unsafe extern "C" fn rmr_bind(
    rmr: Handle,
    lmr: Handle,
    piece: *const Triplet,
    mem_priv: u32,
    va_type: u32,
    ep: Handle,
    cookie: u64,
    flags: u32,
    context: *mut u32,
) -> Return {
    call(|| {
        required(piece.cast_mut(), Subtype::InvalidArg3)?;
        required(context, Subtype::InvalidArg9)?;
        // SAFETY: see the module `calls`.
        let piece = post::local(unsafe { *piece });
        let va_type = words::va(va_type, Subtype::InvalidArg5)?;
        let (privileges, flags) =
            (MemPriv::from_bits_retain(mem_priv), CompletionFlags::from_bits_retain(flags));
        let (lmr, ep) = (LmrHandle::from_raw(cells::word(lmr)), EpHandle::from_raw(cells::word(ep)));
        let bound = opened::with(rmr, Subtype::InvalidHandleRmr, |opened, word| {
            let rmr = RmrHandle::from_raw(word);
            opened.ia.rmr_bind(rmr, lmr, &piece, privileges, va_type, ep, cookie, flags)
        })?;
        // SAFETY: see the module `calls`.
        unsafe { put(context, bound, Subtype::InvalidArg9) }
    })
}

/// `dat_rmr_free`.
pub(crate) extern "C" fn rmr_free(rmr: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(rmr, Subtype::InvalidHandleRmr)?;
        opened.ia.rmr_free(RmrHandle::from_raw(word))?;
        opened.unname(rmr);
        Ok(())
    })
}
