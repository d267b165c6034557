//! Endpoints: creating, connecting, querying, changing and freeing them.
#![expect(unsafe_code, reason = "attributes, addresses and results are C's, by pointers")]

use core::ffi::{c_int, c_void};

use dat::{
    CompletionFlags, EpAttr, EpHandle, EpParam, EpParamMask, EvdHandle, IaAttrMask, ProviderAttrMask,
    PzHandle, Qos, Result, ServiceType, SrqHandle, Subtype, WATERMARK_INFINITE,
};

use super::point::private_data;
use crate::abi::{self, Address, Count, Handle, Return};
use crate::call::{as_count, call, count, parameter, put, put_if, required};
use crate::kept::End;
use crate::opened::{self, Opened};
use crate::{address, cells, words};

const INVALID: Subtype = Subtype::InvalidHandleEp;

/// The attributes that C gives.
///
/// Programs of uDAPL set some to 0 that they use nevertheless, as the providers of RNICs do not
/// look at them. So the largest message and transfer are those of the adapter, and 0 segments of
/// one kind are as many as a Send has. An endpoint without attributes can have as many RDMA Reads
/// as the adapter allows.
///
/// # Safety
///
/// The pointer is null or to attributes.
unsafe fn attributes(opened: &Opened, of: *const abi::EpAttr, argument: Subtype) -> Result<EpAttr> {
    let limits = match opened.ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)? {
        (_, Some(limits), _) => EpAttr {
            max_message_size: limits.max_message_size,
            max_rdma_size: limits.max_rdma_size,
            max_rdma_read_in: limits.max_rdma_read_per_ep_in,
            max_rdma_read_out: limits.max_rdma_read_per_ep_out,
            ..EpAttr::default()
        },
        _ => EpAttr::default(),
    };
    // SAFETY: the caller's.
    let Some(of) = (unsafe { of.as_ref() }) else { return Ok(limits) };
    let count = |number: Count| count(number, argument);
    let sends = count(of.max_request_iov)?.max(1);
    let or_sends = |number: Count| match count(number) {
        Ok(0) => Ok(sends),
        given => given,
    };
    let depth = |number: Count| u32::try_from(number).map_err(|_| parameter(argument));
    Ok(EpAttr {
        service_type: ServiceType(of.service_type),
        max_message_size: limits.max_message_size,
        max_rdma_size: limits.max_rdma_size,
        qos: Qos::from_bits_retain(of.qos),
        recv_completion_flags: CompletionFlags::from_bits_retain(of.recv_completion_flags),
        request_completion_flags: CompletionFlags::from_bits_retain(of.request_completion_flags),
        max_recv_dtos: count(of.max_recv_dtos)?,
        max_request_dtos: count(of.max_request_dtos)?,
        max_recv_iov: count(of.max_recv_iov)?.max(1),
        max_request_iov: sends,
        max_rdma_read_in: depth(of.max_rdma_read_in)?,
        max_rdma_read_out: depth(of.max_rdma_read_out)?,
        srq_soft_hw: if of.srq_soft_hw == 0 { WATERMARK_INFINITE } else { of.srq_soft_hw },
        max_rdma_read_iov: or_sends(of.max_rdma_read_iov)?,
        max_rdma_write_iov: or_sends(of.max_rdma_write_iov)?,
    })
}

/// Attributes as C has them.
fn to_c(of: &EpAttr) -> abi::EpAttr {
    let narrow = |number: u64| number.min(u64::from(u32::MAX)) as u32;
    abi::EpAttr {
        service_type: of.service_type.as_raw(),
        max_message_size: narrow(of.max_message_size),
        max_rdma_size: narrow(of.max_rdma_size),
        qos: of.qos.bits(),
        recv_completion_flags: of.recv_completion_flags.bits(),
        request_completion_flags: of.request_completion_flags.bits(),
        max_recv_dtos: as_count(of.max_recv_dtos),
        max_request_dtos: as_count(of.max_request_dtos),
        max_recv_iov: as_count(of.max_recv_iov),
        max_request_iov: as_count(of.max_request_iov),
        max_rdma_read_in: as_count(of.max_rdma_read_in),
        max_rdma_read_out: as_count(of.max_rdma_read_out),
        srq_soft_hw: of.srq_soft_hw,
        max_rdma_read_iov: as_count(of.max_rdma_read_iov),
        max_rdma_write_iov: as_count(of.max_rdma_write_iov),
        ep_transport_specific_count: 0,
        ep_transport_specific: std::ptr::null_mut(),
        ep_provider_specific_count: 0,
        ep_provider_specific: std::ptr::null_mut(),
    }
}

fn evd(of: Handle) -> EvdHandle {
    EvdHandle::from_raw(cells::word(of))
}

/// `dat_ep_create`.
pub(crate) unsafe extern "C" fn create(
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    attr: *const abi::EpAttr,
    ep: *mut Handle,
) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        required(ep, Subtype::InvalidArg7)?;
        // SAFETY: see the module `calls`.
        let attr = unsafe { attributes(&opened, attr, Subtype::InvalidArg6)? };
        let pz = PzHandle::from_raw(cells::word(pz));
        let made = opened.ia.ep_create(pz, evd(recv), evd(request), evd(connect), Some(&attr))?;
        let named = opened.new_name(made, |ia| ia.ep_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(ep, named, Subtype::InvalidArg7) }
    })
}

/// `dat_ep_create_with_srq`.
pub(crate) unsafe extern "C" fn create_with_srq(
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    srq: Handle,
    attr: *const abi::EpAttr,
    ep: *mut Handle,
) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        required(attr.cast_mut(), Subtype::InvalidArg7)?;
        required(ep, Subtype::InvalidArg8)?;
        // SAFETY: see the module `calls`.
        let attr = unsafe { attributes(&opened, attr, Subtype::InvalidArg7)? };
        let (pz, srq) = (PzHandle::from_raw(cells::word(pz)), SrqHandle::from_raw(cells::word(srq)));
        let made = opened.ia.ep_create_with_srq(pz, evd(recv), evd(request), evd(connect), srq, &attr)?;
        let named = opened.new_name(made, |ia| ia.ep_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(ep, named, Subtype::InvalidArg8) }
    })
}

/// `dat_ep_query`. Its members are all valid.
pub(crate) unsafe extern "C" fn query(ep: Handle, _mask: u64, param: *mut abi::EpParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        let of = opened.ia.ep_query(EpHandle::from_raw(word), EpParamMask::ALL)?;
        let end = |end, address: Option<dat::IaAddress>| {
            address.map_or(std::ptr::null_mut(), |address| opened.kept.address(ep, end, address))
        };
        let found = abi::EpParam {
            ia_handle: opened.known(of.ia_handle),
            ep_state: of.ep_state.as_raw(),
            comm: [0; 3],
            local_ia_address_ptr: end(End::Local, of.local_ia_address),
            local_port_qual: of.local_port_qual,
            remote_ia_address_ptr: end(End::Remote, of.remote_ia_address),
            remote_port_qual: of.remote_port_qual,
            pz_handle: opened.known(of.pz_handle),
            recv_evd_handle: opened.known(of.recv_evd_handle),
            request_evd_handle: opened.known(of.request_evd_handle),
            connect_evd_handle: opened.known(of.connect_evd_handle),
            srq_handle: opened.known(of.srq_handle),
            ep_attr: to_c(&of.ep_attr),
        };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_ep_modify`.
pub(crate) unsafe extern "C" fn modify(ep: Handle, mask: u64, param: *const abi::EpParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        required(param.cast_mut(), Subtype::InvalidArg3)?;
        // SAFETY: see the module `calls`.
        let of = unsafe { *param };
        let wanted = EpParamMask::from_bits_retain(mask);
        // What the mask does not name may be anything.
        let ep_attr = match wanted.intersects(EpParamMask::EP_ATTR_ALL) {
            // SAFETY: a structure.
            true => unsafe { attributes(&opened, &of.ep_attr, Subtype::InvalidArg3)? },
            false => EpAttr::default(),
        };
        let given = EpParam {
            pz_handle: PzHandle::from_raw(cells::word(of.pz_handle)),
            recv_evd_handle: evd(of.recv_evd_handle),
            request_evd_handle: evd(of.request_evd_handle),
            connect_evd_handle: evd(of.connect_evd_handle),
            srq_handle: SrqHandle::from_raw(cells::word(of.srq_handle)),
            ep_attr,
            ..EpParam::default()
        };
        opened.ia.ep_modify(EpHandle::from_raw(word), wanted, &given)
    })
}

/// `dat_ep_connect`.
pub(crate) unsafe extern "C" fn connect(
    ep: Handle,
    remote: Address,
    conn_qual: u64,
    timeout: u32,
    size: Count,
    data: *const c_void,
    qos: u32,
    flags: u32,
) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        // SAFETY: see the module `calls`.
        let (remote, data) =
            unsafe { (address::from_c(remote)?, private_data(data, size, Subtype::InvalidArg6)?) };
        let (qos, flags) = (Qos::from_bits_retain(qos), words::connect(flags, Subtype::InvalidArg8)?);
        opened.ia.ep_connect(EpHandle::from_raw(word), remote, conn_qual, timeout, data, qos, flags)
    })
}

/// `dat_ep_dup_connect`.
pub(crate) unsafe extern "C" fn dup_connect(
    ep: Handle,
    dup: Handle,
    timeout: u32,
    size: Count,
    data: *const c_void,
    qos: u32,
) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        // SAFETY: see the module `calls`.
        let data = unsafe { private_data(data, size, Subtype::InvalidArg5)? };
        let dup = EpHandle::from_raw(cells::word(dup));
        opened.ia.ep_dup_connect(EpHandle::from_raw(word), dup, timeout, data, Qos::from_bits_retain(qos))
    })
}

/// `dat_ep_disconnect`.
pub(crate) extern "C" fn disconnect(ep: Handle, flags: u32) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        opened.ia.ep_disconnect(EpHandle::from_raw(word), words::close(flags, Subtype::InvalidArg2)?)
    })
}

/// `dat_ep_reset`.
pub(crate) extern "C" fn reset(ep: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        opened.ia.ep_reset(EpHandle::from_raw(word))
    })
}

/// `dat_ep_get_status`. C may want each of the three or not.
pub(crate) unsafe extern "C" fn get_status(
    ep: Handle,
    state: *mut u32,
    recv_idle: *mut c_int,
    request_idle: *mut c_int,
) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        let (now, receives, requests) = opened.ia.ep_get_status(EpHandle::from_raw(word))?;
        // SAFETY: see the module `calls`.
        unsafe {
            put_if(state, now.as_raw());
            put_if(recv_idle, c_int::from(receives));
            put_if(request_idle, c_int::from(requests));
        }
        Ok(())
    })
}

/// `dat_ep_recv_query`.
pub(crate) unsafe extern "C" fn recv_query(ep: Handle, allocated: *mut Count, span: *mut Count) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        let (outstanding, spanned) = opened.ia.ep_recv_query(EpHandle::from_raw(word))?;
        // SAFETY: see the module `calls`.
        unsafe {
            put_if(allocated, as_count(outstanding));
            put_if(span, spanned);
        }
        Ok(())
    })
}

/// `dat_ep_set_watermark`.
pub(crate) extern "C" fn set_watermark(ep: Handle, soft: Count, hard: Count) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        opened.ia.ep_set_watermark(EpHandle::from_raw(word), soft, hard)
    })
}

/// `dat_ep_free`.
pub(crate) extern "C" fn free(ep: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(ep, INVALID)?;
        opened.ia.ep_free(EpHandle::from_raw(word))?;
        opened.unname(ep);
        Ok(())
    })
}
