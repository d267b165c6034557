//! What `libdat2` calls when it loads the library and when it needs it no more, and the functions
//! that it gets.
#![expect(unsafe_code, reason = "names of C, functions as pointers, and functions of libdat2")]

use core::ffi::{CStr, c_char, c_void};

use dat::{ErrorType, SUCCESS};

use crate::abi::{ProviderInfo, Return};
use crate::call::watch_forks;
use crate::calls::{context, ep, evd, ia, memory, missing, point, post, srq};
use crate::extension;
use crate::registered::{FUNCTIONS, Table, find, register};

/// The functions in the table's order.
fn functions() -> [*const c_void; FUNCTIONS] {
    [
        ia::open as *const c_void,
        ia::query as *const c_void,
        ia::close as *const c_void,
        context::set as *const c_void,
        context::get as *const c_void,
        context::get_type as *const c_void,
        evd::cno_create as *const c_void,
        evd::cno_modify_agent as *const c_void,
        evd::cno_query as *const c_void,
        evd::cno_free as *const c_void,
        evd::cno_wait as *const c_void,
        point::cr_query as *const c_void,
        point::cr_accept as *const c_void,
        point::cr_reject as *const c_void,
        point::cr_handoff as *const c_void,
        evd::create as *const c_void,
        evd::query as *const c_void,
        evd::modify_cno as *const c_void,
        // evd_enable, evd_disable
        missing::as_it_is as *const c_void,
        missing::one as *const c_void,
        evd::wait as *const c_void,
        evd::resize as *const c_void,
        evd::post_se as *const c_void,
        evd::dequeue as *const c_void,
        evd::free as *const c_void,
        ep::create as *const c_void,
        ep::query as *const c_void,
        ep::modify as *const c_void,
        ep::connect as *const c_void,
        ep::dup_connect as *const c_void,
        ep::disconnect as *const c_void,
        post::send as *const c_void,
        post::recv as *const c_void,
        post::rdma_read as *const c_void,
        post::rdma_write as *const c_void,
        ep::get_status as *const c_void,
        ep::free as *const c_void,
        memory::lmr_create as *const c_void,
        memory::lmr_query as *const c_void,
        memory::lmr_free as *const c_void,
        memory::rmr_create as *const c_void,
        memory::rmr_query as *const c_void,
        memory::rmr_bind as *const c_void,
        memory::rmr_free as *const c_void,
        point::psp_create as *const c_void,
        point::psp_query as *const c_void,
        point::psp_free as *const c_void,
        point::rsp_create as *const c_void,
        point::rsp_query as *const c_void,
        point::rsp_free as *const c_void,
        ia::pz_create as *const c_void,
        ia::pz_query as *const c_void,
        ia::pz_free as *const c_void,
        point::psp_create_any as *const c_void,
        ep::reset as *const c_void,
        // evd_set_unwaitable, evd_clear_unwaitable
        missing::one as *const c_void,
        missing::as_it_is as *const c_void,
        // lmr_sync_rdma_read, lmr_sync_rdma_write
        missing::sync as *const c_void,
        missing::sync as *const c_void,
        ep::create_with_srq as *const c_void,
        ep::recv_query as *const c_void,
        ep::set_watermark as *const c_void,
        srq::create as *const c_void,
        srq::free as *const c_void,
        post::srq_recv as *const c_void,
        srq::query as *const c_void,
        srq::resize as *const c_void,
        srq::set_lw as *const c_void,
        missing::csp_create as *const c_void,
        // csp_query, csp_free
        missing::three as *const c_void,
        missing::one as *const c_void,
        missing::common_connect as *const c_void,
        // rmr_create_for_ep
        missing::two as *const c_void,
        missing::send_with_invalidate as *const c_void,
        missing::read_to_rmr as *const c_void,
        // cno_fd_create, cno_trigger
        missing::three as *const c_void,
        missing::two as *const c_void,
        missing::ha_related as *const c_void,
        extension::operation as *const c_void,
    ]
}

type Registration = unsafe extern "C" fn(*const Table, *const ProviderInfo) -> Return;

/// Calls a function of `libdat2`, which is loaded, as it calls this library. It is looked up by its
/// name: so the library can be loaded by others, too.
///
/// # Safety
///
/// The name is that of a function of this type.
unsafe fn tell(function: &CStr, table: &'static Table, info: *const ProviderInfo) -> Return {
    // SAFETY: a look-up by name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) };
    if found.is_null() {
        return dat::Error::from(ErrorType::InternalError).as_raw();
    }
    // SAFETY: the caller's.
    unsafe { core::mem::transmute::<*mut c_void, Registration>(found)(table, info) }
}

/// `libdat2` loads the library for an IA: it has a name and, as parameters, maybe a link.
///
/// # Safety
///
/// `libdat2` calls it, with pointers as its header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_provider_init(info: *const ProviderInfo, parameters: *const c_char) {
    let _ = std::panic::catch_unwind(|| {
        watch_forks();
        // SAFETY: the caller's.
        let (name, link, is_thread_safe) = unsafe {
            let link = if parameters.is_null() { c"" } else { CStr::from_ptr(parameters) };
            (CStr::from_ptr((*info).ia_name.as_ptr()), link, (*info).is_thread_safe != 0)
        };
        let (Ok(name), Ok(link)) = (name.to_str(), link.to_str()) else { return };
        let Some(registered) = register(name, link.trim(), is_thread_safe, functions()) else { return };
        // SAFETY: that function.
        let told = unsafe { tell(c"dat_registry_add_provider", &registered.table, info) };
        if told != SUCCESS {
            eprintln!("ferrovia: libdat2 does not take the provider of {name}: {told:#x}");
        }
    });
}

/// `libdat2` needs the library no more. Its threads and NICs stay until the process ends.
///
/// # Safety
///
/// As [`dat_provider_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_provider_fini(info: *const ProviderInfo) {
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: the caller's.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) };
        if let Some(registered) = name.to_str().ok().and_then(find) {
            // SAFETY: that function. Its only failure is that there is no such provider.
            let _ = unsafe { tell(c"dat_registry_remove_provider", &registered.table, info) };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_gap() {
        assert!(functions().iter().all(|function| !function.is_null()));
    }
}
