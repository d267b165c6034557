//! Protection domains, memory regions and memory windows.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use kernel_agent::{LinkFlags, Region, Window, WindowType};

use crate::abi::{self, access};
use crate::errno::{self, Errno, pointer};
use crate::opening::{Context, Opening};

/// The size of a page on x86_64.
const PAGE: usize = 4096;

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    abi: abi::Pd,
    pub(crate) inner: Arc<kernel_agent::Pd>,
}

/// The protection domain of a pointer.
///
/// # Safety
///
/// The pointer is one that [`alloc_pd`] returned.
pub(crate) unsafe fn pd<'a>(pd: *mut abi::Pd) -> &'a Pd {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &*pd.cast::<Pd>() }
}

/// `ibv_alloc_pd`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    let made = opening.client().and_then(|client| client.create_pd().map_err(errno::of));
    pointer(made.map(|inner| {
        let abi = abi::Pd { context, handle: inner.number() };
        Box::into_raw(Box::new(Pd { abi, inner })).cast()
    }))
}

/// `ibv_dealloc_pd`: `EBUSY` while an object uses it.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn dealloc_pd(this: *mut abi::Pd) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    if let Err(error) = unsafe { pd(this) }.inner.destroy() {
        return errno::of(error);
    }
    // SAFETY: it came from `alloc_pd`.
    drop(unsafe { Box::from_raw(this.cast::<Pd>()) });
    0
}

/// A memory region.
#[repr(C)]
struct Mr {
    abi: abi::Mr,
    inner: Arc<Region>,
}

/// The rights of access flags: remote writes and atomics need local writes, and flags that no
/// provider may ignore are known.
fn rights(flags: c_uint) -> Result<LinkFlags, Errno> {
    const KNOWN: c_uint = access::LOCAL_WRITE
        | access::REMOTE_WRITE
        | access::REMOTE_READ
        | access::REMOTE_ATOMIC
        | access::MW_BIND
        | access::ZERO_BASED
        | access::ON_DEMAND
        | access::HUGETLB
        | access::OPTIONAL;
    let writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    if flags & !KNOWN != 0 || flags & writes != 0 && flags & access::LOCAL_WRITE == 0 {
        return Err(libc::EINVAL);
    }
    let mut rights = LinkFlags::LOCAL_READ;
    for (flag, right) in [
        (access::LOCAL_WRITE, LinkFlags::LOCAL_WRITE),
        (access::REMOTE_WRITE, LinkFlags::REMOTE_WRITE),
        (access::REMOTE_READ, LinkFlags::REMOTE_READ),
        (access::REMOTE_ATOMIC, LinkFlags::ATOMIC_ALONE),
        (access::MW_BIND, LinkFlags::BIND),
        (access::ZERO_BASED, LinkFlags::RELATIVE),
    ] {
        rights.set(right, flags & flag != 0);
    }
    Ok(rights)
}

/// Has all pages of memory made that is going to be registered, as pinning them for hardware would.
/// So a program learns now that it has no memory there (`EFAULT`: nothing is mapped, or may be
/// written, or a file has no room or ends before), or that there is none (`ENOMEM`); otherwise a
/// signal would end it when the device reaches the memory. Kernels before 5.14 cannot say it.
fn populate(addr: usize, length: usize, writes: bool) -> Result<(), Errno> {
    let end = addr.checked_add(length).ok_or(libc::EINVAL)?;
    if length == 0 {
        return Ok(());
    }
    let ask = |addr: usize, end: usize, writes: bool| {
        let page = addr - addr % PAGE;
        let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: it changes nothing that the program can see: pages get what they would get when
        // they are used.
        match unsafe { libc::madvise(page as *mut c_void, end - page, advice) } {
            0 => Ok(()),
            _ => Err(errno::last()),
        }
    };
    let own = [0u8; 1];
    let known = || ask(own.as_ptr() as usize, own.as_ptr() as usize + 1, false).is_ok();
    // Whether each page is mapped, of whatever.
    let is_mapped = || {
        let page = addr - addr % PAGE;
        // SAFETY: it writes nothing back, as it does not wait.
        unsafe { libc::msync(page as *mut c_void, end - page, libc::MS_ASYNC) == 0 }
    };
    match ask(addr, end, writes) {
        Ok(()) => Ok(()),
        Err(libc::EINVAL) if !known() => Ok(()),
        Err(libc::ENOMEM) if is_mapped() => Err(libc::ENOMEM),
        Err(libc::EAGAIN | libc::EINTR) => Err(libc::EAGAIN),
        Err(_) => Err(libc::EFAULT),
    }
}

fn register(
    opening: &Opening,
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<Arc<Region>, Errno> {
    let rights = rights(flags)?;
    let client = opening.client()?;
    if flags & access::ON_DEMAND == 0 {
        populate(addr as usize, length, flags & access::LOCAL_WRITE != 0)?;
    }
    let made = client.register_virtual(&pd.inner, rights, iova, addr as usize, length as u64);
    let region = made.map_err(errno::of)?;
    opening.keys_mut().add(region.key());
    Ok(region)
}

/// `ibv_reg_mr_iova2`: registers memory of the process, whose addresses in requests begin at
/// `iova`.
///
/// # Safety
///
/// See the crate. The memory stays mapped until it is deregistered.
pub unsafe extern "C" fn reg_mr_iova2(
    of: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::Mr {
    // SAFETY: see the crate.
    let (domain, context) = unsafe { (pd(of), (*of).context) };
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    pointer(register(opening, domain, addr, length, iova, access).map(|inner| {
        let (lkey, rkey) = (inner.key(), inner.remote_key());
        let abi = abi::Mr { context, pd: of, addr, length, handle: lkey, lkey, rkey };
        Box::into_raw(Box::new(Mr { abi, inner })).cast()
    }))
}

/// `ibv_reg_mr`.
///
/// # Safety
///
/// As [`reg_mr_iova2`].
pub unsafe extern "C" fn reg_mr(
    of: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: the caller's.
    unsafe { reg_mr_iova2(of, addr, length, addr as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
///
/// As [`reg_mr_iova2`].
pub unsafe extern "C" fn reg_mr_iova(
    of: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: the caller's.
    unsafe { reg_mr_iova2(of, addr, length, iova, access as c_uint) }
}

/// `ibv_dereg_mr`: `EBUSY` while a window is bound to it.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn dereg_mr(this: *mut abi::Mr) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let (mr, opening) = unsafe { (&*this.cast::<Mr>(), Context::opening((*this).context)) };
    if let Err(error) = mr.inner.destroy() {
        return errno::of(error);
    }
    opening.keys_mut().remove(mr.inner.key());
    // SAFETY: it came from a registration.
    drop(unsafe { Box::from_raw(this.cast::<Mr>()) });
    0
}

/// Bits of the mask of [`rereg_mr`].
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;
/// `IBV_REREG_MR_ERR_INPUT`: the region is as before.
const AS_BEFORE: c_int = -1;

/// `ibv_rereg_mr`. With another range the keys are new, too. If it fails, the region is as before.
///
/// # Safety
///
/// As [`reg_mr_iova2`].
pub unsafe extern "C" fn rereg_mr(
    this: *mut abi::Mr,
    flags: c_int,
    to: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        errno::set(error);
        return AS_BEFORE;
    }
    const ALL: c_int = CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS;
    if flags & !ALL != 0 || flags & CHANGE_PD != 0 && to.is_null() {
        errno::set(libc::EINVAL);
        return AS_BEFORE;
    }
    // SAFETY: see the crate.
    let (mr, opening) = unsafe { (&mut *this.cast::<Mr>(), Context::opening((*this).context)) };
    let new_pd = if flags & CHANGE_PD != 0 { to } else { mr.abi.pd };
    // SAFETY: see the crate.
    let domain = unsafe { pd(new_pd) };
    let changed = if flags & CHANGE_TRANSLATION != 0 {
        if flags & CHANGE_ACCESS == 0 {
            errno::set(libc::EOPNOTSUPP);
            return AS_BEFORE;
        }
        register(opening, domain, addr, length, addr as u64, access as c_uint).and_then(|new| {
            // Fails if a window is bound to it: then it stays, and the new one goes.
            if let Err(error) = mr.inner.destroy() {
                opening.keys_mut().remove(new.key());
                let _ = new.destroy();
                return Err(errno::of(error));
            }
            opening.keys_mut().remove(mr.inner.key());
            mr.inner = new;
            (mr.abi.addr, mr.abi.length) = (addr, length);
            Ok(())
        })
    } else {
        let wanted = (flags & CHANGE_ACCESS != 0).then(|| rights(access as c_uint)).transpose();
        wanted.and_then(|wanted| {
            let domain = (flags & CHANGE_PD != 0).then_some(&domain.inner);
            let rights = wanted.map(|rights| rights.difference(LinkFlags::RELATIVE));
            mr.inner.modify_in_place(domain, rights).map_err(errno::of)
        })
    };
    match changed {
        Ok(()) => {
            mr.abi.pd = new_pd;
            (mr.abi.lkey, mr.abi.rkey) = (mr.inner.key(), mr.inner.remote_key());
            0
        }
        Err(error) => {
            errno::set(error);
            AS_BEFORE
        }
    }
}

/// `IBV_MW_TYPE_1` and `IBV_MW_TYPE_2`.
const WIDE: c_int = 1;
const NARROW: c_int = 2;

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    abi: abi::Mw,
    pub(crate) inner: Arc<Window>,
}

/// The memory window of a pointer.
///
/// # Safety
///
/// The pointer is one that [`alloc_mw`] returned.
pub(crate) unsafe fn mw<'a>(mw: *mut abi::Mw) -> &'a Mw {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &*mw.cast::<Mw>() }
}

impl Mw {
    /// Whether it is of type 2, as which the device has 2B: it is bound to the queue pair that
    /// bound it, and to the protection domain.
    pub(crate) fn is_narrow(&self) -> bool {
        self.abi.kind == NARROW
    }
}

/// `ibv_alloc_mw`. The program chooses the last byte of the keys of a window of type 2; the key of
/// the structure has the other bytes.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn alloc_mw(of: *mut abi::Pd, kind: c_int) -> *mut abi::Mw {
    let window_type = match kind {
        WIDE => WindowType::Wide,
        NARROW => WindowType::Narrow,
        _ => return pointer(Err(libc::EINVAL)),
    };
    // SAFETY: see the crate.
    let (domain, context) = unsafe { (pd(of), (*of).context) };
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    let made = opening
        .client()
        .and_then(|client| client.allocate_window(&domain.inner, window_type).map_err(errno::of));
    pointer(made.map(|inner| {
        let mut rkey = 0;
        if kind == NARROW {
            rkey = inner.reserve_choice();
            opening.keys_mut().add(inner.key());
        }
        let abi = abi::Mw { context, pd: of, rkey, handle: inner.key(), kind };
        Box::into_raw(Box::new(Mw { abi, inner })).cast()
    }))
}

/// `ibv_dealloc_mw`, of a window that is bound or not.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn dealloc_mw(this: *mut abi::Mw) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let (window, opening) = unsafe { (mw(this), Context::opening((*this).context)) };
    if let Err(error) = window.inner.destroy() {
        return errno::of(error);
    }
    opening.keys_mut().remove(window.inner.key());
    // SAFETY: it came from `alloc_mw`.
    drop(unsafe { Box::from_raw(this.cast::<Mw>()) });
    0
}

/// The rights of a bind, which are remote ones.
pub(crate) fn bind_rights(flags: c_uint) -> Result<LinkFlags, Errno> {
    let remote = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC | access::ZERO_BASED;
    // Local writes are the region's; programs name them beside remote ones.
    if flags & !(remote | access::LOCAL_WRITE) != 0 {
        return Err(libc::EINVAL);
    }
    Ok(rights(flags | access::LOCAL_WRITE)?.difference(LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_found_before_the_device_reaches_it() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
        let map = |protection, flags, fd: c_int| {
            // SAFETY: a new mapping at an address that the system chooses.
            unsafe { libc::mmap(core::ptr::null_mut(), 2 * PAGE, protection, flags, fd, 0) as usize }
        };
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let shared = map(both, libc::MAP_SHARED, fd);
        assert_eq!(populate(shared + 100, PAGE - 100, true), Ok(()));
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks * 512, PAGE as i64, "the page is there");
        assert_eq!(populate(shared, 2 * PAGE, true), Err(libc::EFAULT), "the file ends before");
        assert_eq!(populate(shared + PAGE, 1, false), Err(libc::EFAULT));
        let constant = map(libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        assert_eq!(populate(constant, 2 * PAGE, false), Ok(()));
        assert_eq!(populate(constant, 1, true), Err(libc::EFAULT));
        // SAFETY: nothing uses the mapping.
        unsafe { libc::munmap((constant + PAGE) as *mut c_void, PAGE) };
        assert_eq!(populate(constant, PAGE + 1, false), Err(libc::EFAULT), "nothing is mapped");
        assert_eq!(populate(constant, 0, true), Ok(()));
        assert_eq!(populate(usize::MAX, 2, true), Err(libc::EINVAL));
        // SAFETY: as above.
        unsafe {
            libc::munmap(constant as *mut c_void, PAGE);
            libc::munmap(shared as *mut c_void, 2 * PAGE);
        }
    }

    #[test]
    fn rights_follow_the_flags() {
        assert_eq!(rights(0), Ok(LinkFlags::LOCAL_READ));
        let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        assert_eq!(
            rights(all),
            Ok(LinkFlags::LOCAL_READ
                | LinkFlags::LOCAL_WRITE
                | LinkFlags::REMOTE_WRITE
                | LinkFlags::REMOTE_READ
                | LinkFlags::ATOMIC_ALONE)
        );
        assert_eq!(rights(access::REMOTE_WRITE), Err(libc::EINVAL));
        assert_eq!(rights(access::REMOTE_ATOMIC), Err(libc::EINVAL));
        assert_eq!(rights(1 << 10), Err(libc::EINVAL));
        assert_eq!(rights(1 << 20), Ok(LinkFlags::LOCAL_READ), "an optional flag");
        assert_eq!(bind_rights(access::REMOTE_WRITE), Ok(LinkFlags::REMOTE_WRITE));
        let beside = access::LOCAL_WRITE | access::REMOTE_WRITE;
        assert_eq!(bind_rights(beside), Ok(LinkFlags::REMOTE_WRITE));
        assert_eq!(bind_rights(access::MW_BIND), Err(libc::EINVAL));
    }
}
