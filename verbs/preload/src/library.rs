//! The verbs library of the process, if there is one: what it tells of its device.
#![expect(unsafe_code, reason = "the library and its functions are found by name")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::real::{errno, set_errno};

/// The folder with the files of the device, null if none is open.
type Folder = unsafe extern "C" fn() -> *const c_char;
/// An address of the device by its place: its name has 16 bytes. 0 if there is none.
type Address = unsafe extern "C" fn(
    usize,
    *mut libc::sockaddr_storage,
    *mut libc::sockaddr_storage,
    *mut [c_char; 16],
) -> c_int;

/// A function of the verbs library.
struct Asked {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Asked {
    const fn new(name: &'static CStr) -> Asked {
        Asked { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The function; none if the process has no verbs library, or that of rdma-core. A library that
    /// has it is never unloaded.
    fn get(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            let before = errno();
            // SAFETY: the names are strings. The library is not loaded if it is not there.
            unsafe {
                let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
                let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), flags);
                if !library.is_null() {
                    found = libc::dlsym(library, self.name.as_ptr());
                    libc::dlclose(library);
                }
            }
            set_errno(before);
            self.found.store(found, Ordering::Relaxed);
        }
        (!found.is_null()).then_some(found)
    }
}

/// The folder with the files of the device; none if no device is open.
pub fn folder() -> Option<&'static CStr> {
    static FOLDER: Asked = Asked::new(c"ferrovia_folder");
    let function = FOLDER.get()?;
    // SAFETY: the library's function has this type, and returns null or a string that stays.
    unsafe {
        let folder = transmute::<*mut c_void, Folder>(function)();
        (!folder.is_null()).then(|| CStr::from_ptr(folder))
    }
}

/// An address of an interface, as `getifaddrs` has it.
pub struct Interface {
    pub name: [c_char; 16],
    pub address: libc::sockaddr_storage,
    pub netmask: libc::sockaddr_storage,
}

/// The addresses of the device: the one of a place; none if there is none.
pub fn address(place: usize) -> Option<Interface> {
    static ADDRESS: Asked = Asked::new(c"ferrovia_address");
    let function = ADDRESS.get()?;
    // SAFETY: zeros are addresses; the library's function has this type, and writes them.
    unsafe {
        let mut made: Interface = core::mem::zeroed();
        let Interface { name, address, netmask } = &mut made;
        let there = transmute::<*mut c_void, Address>(function)(place, address, netmask, name);
        (there != 0).then_some(made)
    }
}
