//! What programs see of the device beside libibverbs: files in `/sys` and `/dev`, and the addresses
//! of network interfaces. The library that shows it to them (`verbs/preload`) asks for it by two
//! functions here.
//!
//! The files are in the user's own folder in memory, in a folder for each name and first address. A
//! process that comes later writes the same there, so nothing has to be removed.
#![expect(unsafe_code, reason = "the answers are C's; interfaces are listed by C's library")]

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use links::{IpPrefix, Shm};

/// The interface that is said to have an address which none of the machine has.
const LOOPBACK: &CStr = c"lo";

/// An address of the port.
struct Address {
    address: libc::sockaddr_storage,
    netmask: libc::sockaddr_storage,
    interface: [c_char; libc::IFNAMSIZ],
}

/// The device that is open.
struct Seen {
    name: String,
    gids: Vec<[u8; 16]>,
    addresses: Vec<Address>,
    /// Made when it is first asked for; none if it could not be.
    folder: OnceLock<Option<CString>>,
}

/// Null if none is open. Those before it, of this process or its parent, stay in memory.
static SEEN: AtomicPtr<Seen> = AtomicPtr::new(ptr::null_mut());

fn seen() -> Option<&'static Seen> {
    // SAFETY: null, or one that is never freed.
    unsafe { SEEN.load(Ordering::Acquire).as_ref() }
}

/// A device is open. Returns the indices of the interfaces that are said to have its GIDs.
pub fn show(name: &str, gids: &[[u8; 16]], addresses: &[IpPrefix]) -> Vec<u32> {
    let names = interfaces();
    let address = |prefix: &IpPrefix| {
        let ip = prefix.address();
        let name = names.iter().find(|(of, _)| *of == ip).map_or(LOOPBACK, |(_, name)| name.as_c_str());
        let mut interface = [0; libc::IFNAMSIZ];
        for (to, from) in interface.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.to_bytes()) {
            *to = *from as c_char;
        }
        Address { address: storage(ip), netmask: storage(netmask(*prefix)), interface }
    };
    let seen = Seen {
        name: name.to_owned(),
        gids: gids.iter().take_while(|gid| **gid != [0; 16]).copied().collect(),
        addresses: addresses.iter().map(address).collect(),
        folder: OnceLock::new(),
    };
    // SAFETY: the name is a string of C.
    let index = |place| unsafe { libc::if_nametoindex(seen.interface(place).as_ptr()) };
    let indices = (0..seen.gids.len()).map(index).collect();
    SEEN.store(Box::into_raw(Box::new(seen)), Ordering::Release);
    indices
}

/// This process is a child of the one that opened the device.
pub fn forget() {
    SEEN.store(ptr::null_mut(), Ordering::Release);
}

/// The addresses of the machine's interfaces, and their names.
fn interfaces() -> Vec<(IpAddr, CString)> {
    let mut found = Vec::new();
    let mut list = ptr::null_mut();
    // SAFETY: C's list, which is freed when it was read.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            return found;
        }
        let mut next: *const libc::ifaddrs = list;
        while let Some(entry) = next.as_ref() {
            let family = entry.ifa_addr.as_ref().map_or(0, |address| c_int::from(address.sa_family));
            let address = match family {
                libc::AF_INET => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    Some(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()))
                }
                libc::AF_INET6 => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    Some(IpAddr::from(address.sin6_addr.s6_addr))
                }
                _ => None,
            };
            found.extend(address.map(|address| (address, CStr::from_ptr(entry.ifa_name).to_owned())));
            next = entry.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    found
}

/// The address as C has it.
fn storage(of: IpAddr) -> libc::sockaddr_storage {
    // SAFETY: zeros are an address, and a storage is large enough, and aligned, for either kind.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        match of {
            IpAddr::V4(of) => {
                let to = &mut *(&raw mut storage).cast::<libc::sockaddr_in>();
                to.sin_family = libc::AF_INET as u16;
                to.sin_addr.s_addr = u32::from(of).to_be();
            }
            IpAddr::V6(of) => {
                let to = &mut *(&raw mut storage).cast::<libc::sockaddr_in6>();
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_addr.s6_addr = of.octets();
            }
        }
        storage
    }
}

fn netmask(prefix: IpPrefix) -> IpAddr {
    // A prefix has a bit at least.
    let bits = u32::from(prefix.bits());
    match prefix.address() {
        IpAddr::V4(_) => IpAddr::V4((u32::MAX << (32 - bits)).into()),
        IpAddr::V6(_) => IpAddr::V6((u128::MAX << (128 - bits)).into()),
    }
}

/// A file's next content comes under its name at once, as other processes may read it.
fn put(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let next = path.with_extension(format!("{}.next", std::process::id()));
    let _ = fs::remove_file(&next);
    make(&next)?;
    fs::rename(next, path)
}

impl Seen {
    /// The name of the interface that is said to have the GID of this place.
    fn interface(&self, place: usize) -> &CStr {
        let address = self.addresses.get(place);
        // SAFETY: the last character of a name is 0.
        address.map_or(LOOPBACK, |address| unsafe { CStr::from_ptr(address.interface.as_ptr()) })
    }

    fn make(&self) -> io::Result<CString> {
        let Some(first) = self.gids.first() else { return Err(io::ErrorKind::NotFound.into()) };
        if self.name.contains('/') || self.name.starts_with('.') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let own = Shm::own_folder().map_err(io::Error::other)?;
        let folder = own.join("seen").join(format!("{}-{}", self.name, words(first).replace(':', "")));
        let node = folder.join("dev/infiniband/uverbs0");
        fs::create_dir_all(folder.join("dev/infiniband"))?;
        // Programs look whether it is a device that they may read and write, and do not open it.
        put(&node, |path| symlink("/dev/null", path))?;
        let port = folder.join("sys/class/infiniband").join(&self.name).join("ports/1");
        for (index, gid) in self.gids.iter().enumerate() {
            let interface = self.interface(index).to_string_lossy();
            for (kind, content) in
                [("gids", &*words(gid)), ("gid_attrs/types", "RoCE v2"), ("gid_attrs/ndevs", &*interface)]
            {
                let folder = port.join(kind);
                fs::create_dir_all(&folder)?;
                put(&folder.join(index.to_string()), |path| fs::write(path, format!("{content}\n")))?;
            }
        }
        CString::new(folder.into_os_string().into_vec()).map_err(io::Error::other)
    }
}

/// A GID as Linux writes it.
fn words(gid: &[u8; 16]) -> String {
    let words = gid.chunks_exact(2).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect());
    words.collect::<Vec<String>>().join(":")
}

/// `ferrovia_folder`: the folder in which the device's files are under their paths; null if none is
/// open.
pub extern "C" fn folder() -> *const c_char {
    let folder = seen().and_then(|seen| seen.folder.get_or_init(|| seen.make().ok()).as_ref());
    folder.map_or(ptr::null(), |folder| folder.as_ptr())
}

/// `ferrovia_address`: the port's address of this place, the netmask, and the interface. Returns 0
/// if there is none.
///
/// # Safety
///
/// The pointers are to memory for them.
pub unsafe extern "C" fn address(
    place: usize,
    address: *mut libc::sockaddr_storage,
    netmask: *mut libc::sockaddr_storage,
    interface: *mut [c_char; libc::IFNAMSIZ],
) -> c_int {
    let Some(found) = seen().and_then(|seen| seen.addresses.get(place)) else { return 0 };
    // SAFETY: the caller's.
    unsafe {
        address.write(found.address);
        netmask.write(found.netmask);
        interface.write(found.interface);
    }
    1
}
