//! Opening, querying and closing IAs; protection zones.
#![expect(unsafe_code, reason = "names, attributes and results are C's, by pointers")]

use core::ffi::{CStr, c_char, c_int};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use dat::{
    CloseFlags, Error, ErrorType, EvdHandle, IaAttrMask, Provider, ProviderAttrMask, PzHandle, Result,
    Subtype,
};
use platform::Privileged;
use process_nic::{Environment, Nic};

use crate::abi::{
    self, ASYNC_EXISTS, Address, Count, Handle, IaAttr, NAME, NamedAttr, OUT_OF_SCOPE, ProviderAttr, PzParam,
    Return,
};
use crate::call::{as_count, call, count, handle, parameter, put, put_if, required};
use crate::opened::{self, Adapter, Opened};
use crate::registered::{self, Registered};
use crate::{watch, words};

/// Bits of the masks of IAs and of providers.
const IA_FIELDS: u64 = 0x3f_ffff_ffff;
const PROVIDER_FIELDS: u64 = 0x7fff_ffff;

/// The NICs of this process, by the names of the IAs.
struct Machine {
    provider: Provider,
    nic: Nic,
}

static MACHINES: Mutex<Option<HashMap<String, Arc<Machine>>>> = Mutex::new(None);

/// The NIC of an IA, which is opened if it is not yet.
fn machine(registered: &Registered) -> Result<Arc<Machine>> {
    let mut machines = MACHINES.lock().unwrap_or_else(PoisonError::into_inner);
    let machines = machines.get_or_insert_default();
    if let Some(machine) = machines.get(&registered.name) {
        return Ok(machine.clone());
    }
    let opened = Environment::read(&registered.link).and_then(|read| process_nic::open(read, watch::PEERS));
    let nic = opened.map_err(|error| {
        eprintln!("ferrovia: there is no RDMA device: {error}");
        Error::new(ErrorType::ProviderNotFound, Subtype::NameNotRegistered)
    })?;
    let provider = Provider::new(nic.platform.clone());
    provider.add(&registered.name, nic.agent.clone())?;
    let machine = Arc::new(Machine { provider, nic });
    machines.insert(registered.name.clone(), machine.clone());
    Ok(machine)
}

/// `dat_ia_open`, as `libdat2` passes it on.
pub(crate) unsafe extern "C" fn open(
    name: *const c_char,
    qlen: Count,
    async_evd: *mut Handle,
    ia: *mut Handle,
) -> Return {
    call(|| {
        if name.is_null() {
            return Err(parameter(Subtype::InvalidArg1));
        }
        if async_evd.is_null() || ia.is_null() {
            return Err(parameter(Subtype::InvalidArg3));
        }
        // SAFETY: see the module `calls`.
        let (name, wanted) = unsafe { (CStr::from_ptr(name), *async_evd) };
        let unknown = Error::new(ErrorType::ProviderNotFound, Subtype::NameNotRegistered);
        let registered = name.to_str().ok().and_then(registered::find).ok_or(unknown)?;
        let has_async_evd = match wanted.addr() {
            0 => true,
            ASYNC_EXISTS => false,
            _ => return Err(handle(Subtype::InvalidHandleEvdAsync)),
        };
        let length = if has_async_evd { count(qlen, Subtype::InvalidArg2)? } else { 1 };
        let machine = machine(registered)?;
        // SAFETY: the program is the privileged one, and its memory is what the NIC reaches.
        let privileged = unsafe { Privileged::assert() };
        let (opened, evd) =
            dat::ia_open(&machine.provider, &registered.name, privileged, length, EvdHandle::NULL)?;
        let undo = |error, opened: &dat::Ia| {
            let _ = opened.ia_close(CloseFlags::Abrupt);
            error
        };
        let (_, attributes, _) = opened.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
        let own = attributes.map_or(IpAddr::from([0; 4]), |attributes| attributes.ia_address);
        let adapter = Adapter::take();
        let opened = Arc::new(Opened::new(
            opened,
            machine.nic.engine.clone(),
            adapter,
            registered,
            (machine.nic.agent.identity().mtu, has_async_evd),
            registered.address(own),
        ));
        adapter.open(&opened);
        let named = opened.name(opened.ia.handle()).and_then(|ia| Ok((ia, opened.name(evd)?)));
        let (named, evd) = named.map_err(|error| {
            let error = undo(error, &opened.ia);
            adapter.close();
            error
        })?;
        // SAFETY: see the module `calls`.
        unsafe {
            if has_async_evd {
                async_evd.write(evd);
            }
            ia.write(named);
        }
        Ok(())
    })
}

/// `dat_ia_close`.
pub(crate) extern "C" fn close(ia: Handle, flags: u32) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        let flags = words::close(flags, Subtype::InvalidArg2)?;
        opened.ia.ia_close(flags)?;
        opened.adapter.close();
        Ok(())
    })
}

/// A name in a structure of C.
fn text(from: &str) -> [c_char; NAME] {
    let mut to = [0; NAME];
    // The last byte stays 0.
    for (to, from) in to.iter_mut().take(NAME - 1).zip(from.bytes()) {
        *to = from as c_char;
    }
    to
}

/// A number that C has fewer bits for.
fn narrow(number: u64) -> u32 {
    number.min(u64::from(u32::MAX)) as u32
}

fn flag(value: bool) -> c_int {
    c_int::from(value)
}

/// `dat_ia_query`. With any bit of a mask, all members are valid.
pub(crate) unsafe extern "C" fn query(
    ia: Handle,
    async_evd: *mut Handle,
    ia_mask: u64,
    ia_attr: *mut IaAttr,
    provider_mask: u64,
    provider_attr: *mut ProviderAttr,
) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        if ia_mask & !IA_FIELDS != 0 {
            return Err(parameter(Subtype::InvalidArg3));
        }
        if provider_mask & !PROVIDER_FIELDS != 0 {
            return Err(parameter(Subtype::InvalidArg5));
        }
        let all_of_ia = if ia_mask == 0 { IaAttrMask::NONE } else { IaAttrMask::ALL };
        let all_of_provider = if provider_mask == 0 { ProviderAttrMask::NONE } else { ProviderAttrMask::ALL };
        let (evd, of_ia, of_provider) = opened.ia.ia_query(all_of_ia, all_of_provider)?;
        // SAFETY: see the module `calls`.
        unsafe {
            if let Some(of_ia) = of_ia {
                put(ia_attr, ia_attributes(&opened, &of_ia), Subtype::InvalidArg4)?;
            }
            if let Some(of_provider) = of_provider {
                put(provider_attr, provider_attributes(&opened, &of_provider), Subtype::InvalidArg6)?;
            }
            let scoped = if opened.has_async_evd {
                opened.known(evd)
            } else {
                std::ptr::without_provenance_mut(OUT_OF_SCOPE)
            };
            put_if(async_evd, scoped);
        }
        Ok(())
    })
}

fn ia_attributes(opened: &Opened, of: &dat::IaAttr) -> IaAttr {
    let local: Address = opened.address.as_ptr().cast_mut().cast();
    IaAttr {
        adapter_name: text(&of.adapter_name),
        vendor_name: text(of.vendor_name),
        hardware_version_major: of.hardware_version_major,
        hardware_version_minor: of.hardware_version_minor,
        firmware_version_major: of.firmware_version_major,
        firmware_version_minor: of.firmware_version_minor,
        ia_address_ptr: local,
        max_eps: as_count(of.max_eps),
        max_dto_per_ep: as_count(of.max_dto_per_ep),
        max_rdma_read_per_ep_in: as_count(of.max_rdma_read_per_ep_in),
        max_rdma_read_per_ep_out: as_count(of.max_rdma_read_per_ep_out),
        max_evds: as_count(of.max_evds),
        max_evd_qlen: as_count(of.max_evd_qlen),
        max_iov_segments_per_dto: as_count(of.max_iov_segments_per_dto),
        max_lmrs: as_count(of.max_lmrs),
        max_lmr_block_size: narrow(of.max_lmr_block_size),
        max_lmr_virtual_address: of.max_lmr_virtual_address,
        max_pzs: as_count(of.max_pzs),
        max_message_size: narrow(of.max_message_size),
        max_rdma_size: narrow(of.max_rdma_size),
        max_rmrs: as_count(of.max_rmrs),
        max_rmr_target_address: of.max_rmr_target_address,
        max_srqs: as_count(of.max_srqs),
        max_ep_per_srq: as_count(of.max_ep_per_srq),
        max_recv_per_srq: as_count(of.max_recv_per_srq),
        max_iov_segments_per_rdma_read: as_count(of.max_iov_segments_per_rdma_read),
        max_iov_segments_per_rdma_write: as_count(of.max_iov_segments_per_rdma_write),
        max_rdma_read_in: as_count(of.max_rdma_read_in),
        max_rdma_read_out: as_count(of.max_rdma_read_out),
        max_rdma_read_per_ep_in_guaranteed: flag(of.max_rdma_read_per_ep_in_guaranteed),
        max_rdma_read_per_ep_out_guaranteed: flag(of.max_rdma_read_per_ep_out_guaranteed),
        zb_supported: flag(of.zb_supported),
        extension_supported: of.extension_supported.as_raw(),
        extension_version: as_count(of.extension_version),
        num_transport_attr: 0,
        transport_attr: std::ptr::null_mut(),
        num_vendor_attr: 0,
        vendor_attr: std::ptr::null_mut(),
    }
}

fn provider_attributes(opened: &Opened, of: &dat::ProviderAttr) -> ProviderAttr {
    let named = opened.registered.named_attributes(&of.provider_specific_attr, opened.mtu);
    ProviderAttr {
        provider_name: text(&of.provider_name),
        provider_version_major: of.provider_version_major,
        provider_version_minor: of.provider_version_minor,
        dapl_version_major: of.dapl_version_major,
        dapl_version_minor: of.dapl_version_minor,
        lmr_mem_types_supported: of.lmr_mem_types_supported,
        iov_ownership_on_return: of.iov_ownership.as_raw(),
        dat_qos_supported: of.dat_qos_supported.bits(),
        completion_flags_supported: of.completion_flags_supported.bits(),
        // `libdat2` looks the provider up by it when the IA is closed.
        is_thread_safe: flag(opened.registered.is_thread_safe),
        max_private_data_size: as_count(of.max_private_data_size),
        supports_multipath: flag(of.supports_multipath),
        ep_creator: of.ep_creator.as_raw(),
        pz_support: of.pz_support.as_raw(),
        optimal_buffer_alignment: of.optimal_buffer_alignment,
        evd_stream_merging_supported: of.evd_stream_merging_supported.map(|row| row.map(flag)),
        srq_supported: flag(of.srq_supported),
        srq_watermarks_supported: as_count(of.srq_watermarks_supported),
        srq_ep_pz_difference_supported: flag(of.srq_ep_pz_difference_supported),
        srq_info_supported: as_count(of.srq_info_supported),
        ep_recv_info_supported: as_count(of.ep_recv_info_supported),
        lmr_sync_req: flag(of.lmr_sync_req),
        dto_async_return_guaranteed: flag(of.dto_async_return_guaranteed),
        rdma_write_for_rdma_read_req: flag(of.rdma_write_for_rdma_read_req),
        rdma_read_lmr_rmr_context_exposure: flag(of.rdma_read_lmr_rmr_context_exposure),
        rmr_scope_supported: of.rmr_scope_supported.as_raw(),
        is_signal_safe: flag(of.is_signal_safe),
        ha_supported: 0,
        ha_loadbalancing: 0,
        num_provider_specific_attr: as_count(named.len()),
        provider_specific_attr: named.as_ptr().cast_mut().cast::<NamedAttr>(),
    }
}

/// `dat_pz_create`.
pub(crate) unsafe extern "C" fn pz_create(ia: Handle, pz: *mut Handle) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        required(pz, Subtype::InvalidArg2)?;
        let made = opened.ia.pz_create()?;
        let named = opened.new_name(made, |ia| ia.pz_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(pz, named, Subtype::InvalidArg2) }
    })
}

/// `dat_pz_query`.
pub(crate) unsafe extern "C" fn pz_query(pz: Handle, _mask: u32, param: *mut PzParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(pz, Subtype::InvalidHandlePz)?;
        let of = opened.ia.pz_query(PzHandle::from_raw(word))?;
        let found = PzParam { ia_handle: opened.known(of.ia_handle) };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_pz_free`.
pub(crate) extern "C" fn pz_free(pz: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(pz, Subtype::InvalidHandlePz)?;
        opened.ia.pz_free(PzHandle::from_raw(word))?;
        opened.unname(pz);
        Ok(())
    })
}

const _: () = assert!(size_of::<abi::NamedAttr>() == 16);
