//! An IA that is open, and the calls in progress on it.
//!
//! A handle leads to an [`Adapter`], which stays for the life of the process, and from there to the
//! IA, which closes. Calls of the data path hold a shard of the adapter's lock: threads have
//! different shards, so that queues of different threads share no line of a cache. Calls that wait
//! hold the IA itself.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use dat::{Handle as Named, Ia, Result, Subtype};
use process_nic::Engine;

use crate::abi::Handle;
use crate::address;
use crate::call::{NO_CELL, handle};
use crate::cells::{self, cells};
use crate::kept::Kept;
use crate::registered::Registered;

/// Shards of the lock of an IA.
const SHARDS: usize = 8;

/// An open IA.
pub(crate) struct Opened {
    pub(crate) ia: Ia,
    pub(crate) engine: Arc<Engine>,
    /// Where its cells belong.
    pub(crate) adapter: &'static Adapter,
    pub(crate) registered: &'static Registered,
    /// The bytes of data of a packet.
    pub(crate) mtu: u32,
    /// The consumer has the event dispatcher of asynchronous events.
    pub(crate) has_async_evd: bool,
    pub(crate) kept: Kept,
    /// The IA's own address, which C reads. Its memory is never given back.
    pub(crate) address: &'static [u8; address::SIZE],
    /// Held while an object gets its cell.
    naming: Mutex<()>,
}

#[repr(align(64))]
#[derive(Default)]
struct Shard(RwLock<Option<Arc<Opened>>>);

/// The place of an open IA. After the IA was closed, another one may have it.
#[derive(Default)]
pub(crate) struct Adapter {
    shards: [Shard; SHARDS],
}

/// All places, and those without an IA.
struct Places {
    all: Vec<&'static Adapter>,
    free: Vec<&'static Adapter>,
}

static PLACES: Mutex<Places> = Mutex::new(Places { all: Vec::new(), free: Vec::new() });

fn places() -> MutexGuard<'static, Places> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    let new = || NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    // A thread that ends may have lost its number already.
    OWN.try_with(|own| {
        let number = own.get().unwrap_or_else(new);
        own.set(Some(number));
        number
    })
    .unwrap_or(0)
}

impl Adapter {
    /// A place without an IA.
    pub(crate) fn take() -> &'static Adapter {
        let mut places = places();
        if let Some(free) = places.free.pop() {
            return free;
        }
        let new: &'static Adapter = Box::leak(Box::default());
        places.all.push(new);
        new
    }

    /// All places.
    pub(crate) fn all() -> Vec<&'static Adapter> {
        places().all.clone()
    }

    /// Puts an IA there.
    pub(crate) fn open(&'static self, opened: &Arc<Opened>) {
        for shard in &self.shards {
            *shard.0.write().unwrap_or_else(PoisonError::into_inner) = Some(opened.clone());
        }
    }

    /// The IA was closed: waits for calls that hold a shard, and frees the cells of all objects.
    pub(crate) fn close(&'static self) {
        for shard in &self.shards {
            // Dropped without the lock.
            let _closed = shard.0.write().unwrap_or_else(PoisonError::into_inner).take();
        }
        if let Some(cells) = cells() {
            cells.free_all(self);
        }
        places().free.push(self);
    }

    /// The IA, for calls that may wait.
    pub(crate) fn opened(&self) -> Option<Arc<Opened>> {
        self.shards[shard()].0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a call that does not wait.
    #[inline]
    fn with<R>(&self, call: impl FnOnce(&Opened) -> R) -> Option<R> {
        self.shards[shard()].0.read().unwrap_or_else(PoisonError::into_inner).as_deref().map(call)
    }
}

/// The IA of a handle and the word of the object; `invalid` is the error for another handle.
pub(crate) fn of(object: Handle, invalid: Subtype) -> Result<(Arc<Opened>, u64)> {
    let found = cells::object(object).and_then(|(word, adapter)| Some((adapter.opened()?, word)));
    found.ok_or(handle(invalid))
}

/// The IA of an IA's handle.
pub(crate) fn ia(ia: Handle) -> Result<Arc<Opened>> {
    let (opened, word) = of(ia, Subtype::InvalidHandleIa)?;
    if opened.ia.handle().as_raw() == word { Ok(opened) } else { Err(handle(Subtype::InvalidHandleIa)) }
}

/// Runs a call that does not wait on the object of a handle.
#[inline]
pub(crate) fn with<R>(
    object: Handle,
    invalid: Subtype,
    call: impl FnOnce(&Opened, u64) -> Result<R>,
) -> Result<R> {
    let found = cells::object(object);
    let done = found.and_then(|(word, adapter)| adapter.with(|opened| call(opened, word)));
    done.unwrap_or(Err(handle(invalid)))
}

impl Opened {
    pub(crate) fn new(
        ia: Ia,
        engine: Arc<Engine>,
        adapter: &'static Adapter,
        registered: &'static Registered,
        (mtu, has_async_evd): (u32, bool),
        address: &'static [u8; address::SIZE],
    ) -> Opened {
        let (kept, naming) = (Kept::default(), Mutex::new(()));
        Opened { ia, engine, adapter, registered, mtu, has_async_evd, kept, address, naming }
    }

    /// C's handle of an object, which gets a cell if it has none; null if there is no such object.
    pub(crate) fn name(&self, object: impl Into<Named>) -> Result<Handle> {
        let object = object.into();
        let nothing = std::ptr::null_mut();
        if object.is_null() {
            return Ok(nothing);
        }
        // `dat` keeps the cell as its consumer's context; C's own is in the cell.
        let named = || match self.ia.get_consumer_context(object) {
            Ok(Some(cell)) => Some(Ok(std::ptr::with_exposed_provenance_mut(cell as usize))),
            Ok(None) => None,
            Err(_) => Some(Ok(nothing)),
        };
        if let Some(known) = named() {
            return known;
        }
        let _naming = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = named() {
            return known;
        }
        let cell =
            cells().and_then(|cells| cells.take(&self.registered.table, object.as_raw(), self.adapter));
        let cell: Handle = cell.ok_or(NO_CELL)?;
        match self.ia.set_consumer_context(object, cell.expose_provenance() as u64) {
            Ok(()) => Ok(cell),
            Err(_) => {
                self.unname(cell);
                Ok(nothing)
            }
        }
    }

    /// C's handle of a new object; `free` frees the object if it can have none.
    pub(crate) fn new_name(
        &self,
        object: impl Into<Named>,
        free: impl FnOnce(&Ia) -> Result<()>,
    ) -> Result<Handle> {
        self.name(object).inspect_err(|_| {
            // The object is new, and in nobody's use.
            let _ = free(&self.ia);
        })
    }

    /// C's handle of an object that an event or a query names; null if it has none.
    pub(crate) fn known(&self, object: impl Into<Named>) -> Handle {
        self.name(object).unwrap_or(std::ptr::null_mut())
    }

    /// The object of a handle was freed.
    pub(crate) fn unname(&self, object: Handle) {
        if let Some(cells) = cells() {
            cells.free(object);
        }
        self.kept.forget(object);
    }
}
