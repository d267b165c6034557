//! The devices as identifiers have them: a context of each, which all identifiers of the process
//! share, and which identifier an event of its agent is for.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::c_int;
use core::mem::size_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kernel_agent::wire::{Gid, Path};
use kernel_agent::{Agent, Client, ConnectionId, Qp};

use super::identifier::Inner;
use super::listening::VacantPoints;
use crate::abi::{Context, Pd};
use crate::errno::{self, Errno, pointer};
use crate::opening::{self, Opening};
use crate::{device, memory};

/// Which identifier an event of the agent is for.
#[derive(Default)]
pub(crate) struct Names {
    /// By the context of the queue pair that is connected.
    pub(crate) qps: HashMap<u64, Arc<Inner>>,
    /// By its own number: what listens, and what asks for a datagram service.
    pub(crate) numbers: HashMap<u64, Arc<Inner>>,
    /// By the connection that was asked for and that the program has not accepted.
    pub(crate) requests: HashMap<ConnectionId, Arc<Inner>>,
    /// Listening points that no identifier has.
    pub(crate) vacant: VacantPoints,
}

/// A device, and the context that identifiers share.
pub(crate) struct Device {
    context: AtomicPtr<Context>,
    opening: Arc<Opening>,
    /// The protection domain of those who bring none.
    pd: Mutex<AtomicPtr<Pd>>,
    names: Mutex<Names>,
}

impl Device {
    pub(crate) fn context(&self) -> *mut Context {
        self.context.load(Ordering::Acquire)
    }

    pub(crate) fn agent(&self) -> &Arc<Agent> {
        self.opening.agent()
    }

    pub(crate) fn client(&self) -> Result<&Arc<Client>, Errno> {
        self.opening.client()
    }

    /// A queue pair of the context by its number.
    pub(crate) fn queue_pair(&self, number: u32) -> Option<Arc<Qp>> {
        self.opening.numbers().get(&number).and_then(Weak::upgrade)
    }

    /// The lock is a leaf.
    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The protection domain of those who bring none. It stays.
    pub(crate) fn pd(&self) -> Result<*mut Pd, Errno> {
        let pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        let mut made = pd.load(Ordering::Acquire);
        if made.is_null() {
            // SAFETY: the context is never closed.
            made = unsafe { memory::alloc_pd(self.context()) };
            if made.is_null() {
                return Err(errno::last());
            }
            pd.store(made, Ordering::Release);
        }
        Ok(made)
    }

    /// Whether an address is the port's.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        let gid = gid(ip);
        self.agent().identity().gids.contains(&gid.0)
    }

    /// The GIDs of the way from an own address, or from any, to a peer's or to a group.
    pub(crate) fn ends(&self, from: Option<IpAddr>, to: IpAddr) -> Option<(Gid, Gid)> {
        if !to.is_multicast() {
            return self.path(from, to).map(|path| (path.local_gid, path.remote_gid));
        }
        // The port has no networks that groups are in: from the first address of the kind.
        let own = |gid: &&[u8; 16]| {
            let ip = Gid(**gid).to_ip();
            !Gid(**gid).is_unspecified() && ip.is_ipv4() == to.is_ipv4()
        };
        let local = match from {
            Some(own) => gid(own),
            None => Gid(*self.agent().identity().gids.iter().find(own)?),
        };
        Some((local, gid(to)))
    }

    /// The path to a peer's address, from one of the port's own if that is given.
    pub(crate) fn path(&self, from: Option<IpAddr>, to: IpAddr) -> Option<Path> {
        let path = rdma::path_to(self.agent().identity(), gid(to))?;
        Some(match from {
            Some(own) => Path { local_gid: gid(own), ..path },
            None => path,
        })
    }
}

/// The GID of an address.
pub(crate) fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => Gid::from_ipv4(ip),
        IpAddr::V6(ip) => Gid::from_ipv6(ip),
    }
}

static ALL: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

/// All devices. The first call opens them; `ENODEV` if there is none.
pub(crate) fn all() -> Result<Vec<Arc<Device>>, Errno> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if all.is_empty() {
        for listed in device::devices()? {
            // SAFETY: it is of the list.
            let context = unsafe { device::open(listed) }?;
            // SAFETY: it was just opened.
            let opening = unsafe { opening::Context::opening(context) }.clone();
            let device = Arc::new(Device {
                context: AtomicPtr::new(context),
                opening,
                pd: Mutex::default(),
                names: Mutex::default(),
            });
            // There is no other that could have been set.
            let _ = device.opening.connections.set(Box::new(device.clone()));
            all.push(device);
        }
    }
    if all.is_empty() { Err(libc::ENODEV) } else { Ok(all.clone()) }
}

/// The devices that are open.
pub(crate) fn opened() -> Vec<Arc<Device>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Forgets the contexts, as [`device::forget`] does the devices, and with the same hazard.
pub(crate) fn forget() {
    if let Ok(mut all) = ALL.try_lock() {
        // Not dropped: that would end what only the parent has.
        std::mem::forget(std::mem::take(&mut *all));
    }
}

/// `rdma_get_devices`: the contexts that identifiers share.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_devices(number: *mut c_int) -> *mut *mut Context {
    pointer(all().and_then(|all| {
        // SAFETY: C's allocation, with a null at its end.
        let list = unsafe { libc::calloc(all.len() + 1, size_of::<*mut Context>()) };
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        let list = list.cast::<*mut Context>();
        for (place, device) in all.iter().enumerate() {
            // SAFETY: inside the allocation.
            unsafe { list.add(place).write(device.context()) };
        }
        if !number.is_null() {
            // SAFETY: see the crate.
            unsafe { *number = all.len() as c_int };
        }
        Ok(list)
    }))
}

/// `rdma_free_devices`. The contexts stay.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn free_devices(list: *mut *mut Context) {
    // SAFETY: it came from `get_devices`, or is null.
    unsafe { libc::free(list.cast()) };
}

/// The device with this context.
pub(crate) fn with_context(context: *mut Context) -> Option<Arc<Device>> {
    all().ok()?.into_iter().find(|device| ptr::eq(device.context(), context))
}
