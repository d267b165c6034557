//! Registered memory (pages VipRegisterMem, VipDeregisterMem, VipSetMemAttributes, VipQueryMem).
//!
//! A memory handle is the remote key of the agent's region: a virtual interface names memory by it
//! on both ends. The memory is also lent to the threads that post, by the key's slot: see
//! `descriptor_map`.
//!
//! Locks: a region's `changes` (sleeps) before the table of regions (spins, leaf).

use alloc::sync::Arc;

use kernel_agent::{LinkFlags, MemoryList, Pd, Region};
use platform::sync::Mutex;
use platform::{DmaBuffer, Lendable, SleepLock, heap};

use crate::attributes::MemAttributes;
use crate::error::{Error, Result};
use crate::handle::{MemHandle, PtagHandle};
use crate::nic::{Core, Nic};

/// Memory to register.
#[derive(Clone, Copy)]
pub enum Memory<'a> {
    /// An owned buffer, from `offset` on. The registration keeps the buffer alive. The virtual
    /// address is that of the buffer's byte `offset`.
    Buffer {
        /// The buffer.
        buffer: &'a Arc<DmaBuffer>,
        /// The first byte.
        offset: usize,
    },
    /// Constants: the NIC never writes them, so neither descriptors nor Receives can use them.
    Static(&'static [u8]),
}

impl<'a> Memory<'a> {
    /// A buffer from its first byte on.
    pub const fn buffer(buffer: &'a Arc<DmaBuffer>) -> Memory<'a> {
        Memory::Buffer { buffer, offset: 0 }
    }
}

/// Registered memory.
pub(crate) struct Registered {
    pub(crate) handle: MemHandle,
    address: u64,
    constant: bool,
    region: Arc<Region>,
    attributes: Mutex<MemAttributes>,
    /// Serializes changes and the end.
    changes: SleepLock,
    buffer: Mutex<Option<Arc<DmaBuffer>>>,
}

/// What a node of the table of regions takes.
const NODES: usize = 4096;

/// What [`Core::register`] registers.
pub(crate) struct Wanted {
    pub(crate) address: u64,
    pub(crate) constant: bool,
    pub(crate) buffer: Option<Arc<DmaBuffer>>,
    pub(crate) lends: Option<Lendable>,
}

impl Core {
    /// Registers memory; `make` calls the agent with the tag's domain and the rights.
    pub(crate) fn register(
        &self,
        wanted: Wanted,
        length: u64,
        attributes: &MemAttributes,
        make: impl FnOnce(&Arc<Pd>, LinkFlags) -> core::result::Result<Arc<Region>, kernel_agent::Error>,
    ) -> Result<MemHandle> {
        let Wanted { address, constant, buffer, lends } = wanted;
        if length == 0 || address.checked_add(length).is_none() || constant && attributes.enable_rdma_write {
            return Err(Error::InvalidParameter);
        }
        let ptag = self.ptag(attributes.ptag)?;
        if attributes.enable_rdma_read {
            self.check_reads()?;
        }
        heap::room(NODES)?;
        heap::room_for_arc::<Registered>()?;
        let region = make(&ptag.pd, attributes.rights(constant)).map_err(|error| match error {
            kernel_agent::Error::NotReachable => Error::InvalidParameter,
            kernel_agent::Error::Gone => self.ptag_or_object(error, attributes.ptag),
            other => self.error(other),
        })?;
        let handle = MemHandle::from_raw(region.remote_key());
        if let Some(memory) = lends
            && let Err(error) = self.descriptors.lend(handle, ptag.pd.number(), memory)
        {
            let _ = region.destroy();
            return Err(error);
        }
        let registered = Arc::new(Registered {
            handle,
            address,
            constant,
            region,
            attributes: Mutex::new(*attributes),
            changes: SleepLock::new(),
            buffer: Mutex::new(buffer),
        });
        self.regions.lock().insert(handle.as_raw(), registered);
        Ok(handle)
    }

    /// The memory with this handle that begins at this address.
    fn registered(&self, address: u64, handle: MemHandle) -> Result<Arc<Registered>> {
        let found = self.regions.lock().get(&handle.as_raw()).cloned();
        found.filter(|memory| memory.address == address).ok_or(Error::InvalidParameter)
    }

    /// Fails with `InvalidRdmaRead` if the interface has no RDMA Read, which only its reliable
    /// levels have.
    pub(crate) fn check_reads(&self) -> Result<()> {
        if self.features.contains(kernel_agent::Features::RC) { Ok(()) } else { Err(Error::InvalidRdmaRead) }
    }

    /// Lends memory that was taken back, with the protection tag that it has now.
    fn lend_again(&self, handle: MemHandle, ptag: PtagHandle, lent: Option<Lendable>) -> Result<()> {
        let Some(lent) = lent else { return Ok(()) };
        // The region uses the tag, so it exists.
        self.descriptors.lend(handle, self.ptag(ptag)?.pd.number(), lent)
    }

    /// Ends a registration.
    pub(crate) fn deregister(&self, memory: &Registered) -> Result<()> {
        use kernel_agent::Error as Agent;
        // Before the agent can give the key's slot to another region.
        let lent = self.descriptors.take_back(memory.handle);
        let destroyed = memory.region.destroy();
        if destroyed == Err(Agent::Busy) {
            let ptag = memory.attributes.lock().ptag;
            return self.lend_again(memory.handle, ptag, lent).and(Err(Error::ErrorResource));
        }
        drop(lent);
        self.regions.lock().remove(&memory.handle.as_raw());
        // Taken out here, because another thread may keep the object itself alive for a moment.
        let buffer = memory.buffer.lock().take();
        if let Some(buffer) = buffer {
            self.agent().release(buffer, destroyed);
        }
        match destroyed {
            Ok(()) | Err(Agent::Gone) => Ok(()),
            Err(error) => Err(self.error(error)),
        }
    }
}

impl Nic {
    /// Registers `length` bytes of memory, for descriptors or data. Returns its handle, which is
    /// never null.
    ///
    /// The bounds are exact: memory beyond them cannot be reached, not even in the same page.
    ///
    /// Errors: `InvalidParameter` (no bytes, more than the memory has, memory that the device
    /// cannot reach, constants that peers may write; or the NIC is closed), `InvalidPtag`,
    /// `InvalidRdmaRead` (the interface has no reliable levels), `ErrorResource`. Blocks for the
    /// device. May be called in handlers. Thread-safe. Page VipRegisterMem.
    #[doc(alias = "VipRegisterMem")]
    pub fn register_mem(
        &self,
        memory: Memory<'_>,
        length: u64,
        attributes: &MemAttributes,
    ) -> Result<MemHandle> {
        let core = self.call()?;
        let client = core.client()?;
        let len = usize::try_from(length).map_err(|_| Error::InvalidParameter)?;
        match memory {
            Memory::Buffer { buffer, offset } => {
                let lends =
                    Lendable::buffer(buffer.clone(), offset, len).map_err(|_| Error::InvalidParameter)?;
                let (address, bus) = ((buffer.addr() + offset) as u64, buffer.bus() + offset as u64);
                let wanted =
                    Wanted { address, constant: false, buffer: Some(buffer.clone()), lends: Some(lends) };
                let list = MemoryList::Contiguous { bus, length };
                let make = |pd: &_, rights| client.register(pd, rights, address, &list);
                core.agent().registering(buffer, || core.register(wanted, length, attributes, make))
            }
            Memory::Static(bytes) => {
                if len > bytes.len() {
                    return Err(Error::InvalidParameter);
                }
                let at = bytes.as_ptr().addr();
                let wanted = Wanted { address: at as u64, constant: true, buffer: None, lends: None };
                core.register(wanted, length, attributes, |pd, rights| {
                    client.register_virtual(pd, rights, at as u64, at, length)
                })
            }
        }
    }

    /// Ends a registration: the NIC reaches the memory no more when this returns. Descriptors that
    /// name it fail when the NIC comes to them.
    ///
    /// Errors: `InvalidParameter` (handle or address, or the NIC is closed), `ErrorResource` (the
    /// NIC is dead). Blocks for the device. May be called in handlers. Thread-safe. Page
    /// VipDeregisterMem.
    #[doc(alias = "VipDeregisterMem")]
    pub fn deregister_mem(&self, address: u64, memory: MemHandle) -> Result<()> {
        let core = self.call()?;
        let found = core.registered(address, memory)?;
        let _changes = found.changes.lock(core.adapter.platform());
        core.still_registered(&found)?;
        core.deregister(&found)
    }

    /// Changes the attributes of registered memory, which keeps its handle.
    ///
    /// Errors: `InvalidParameter` (handle or address, constants that peers may write, or the NIC is
    /// closed), `InvalidPtag`, `InvalidRdmaRead`, `ErrorResource` (the NIC is dead). Blocks for the
    /// device. May be called in handlers. Thread-safe. Page VipSetMemAttributes.
    #[doc(alias = "VipSetMemAttributes")]
    pub fn set_mem_attributes(
        &self,
        address: u64,
        memory: MemHandle,
        attributes: &MemAttributes,
    ) -> Result<()> {
        let core = self.call()?;
        let found = core.registered(address, memory)?;
        if found.constant && attributes.enable_rdma_write {
            return Err(Error::InvalidParameter);
        }
        let ptag = core.ptag(attributes.ptag)?;
        if attributes.enable_rdma_read {
            core.check_reads()?;
        }
        let _changes = found.changes.lock(core.adapter.platform());
        core.still_registered(&found)?;
        let rights = attributes.rights(found.constant);
        let former = found.attributes.lock().ptag;
        // No post writes into it by the former tag from here on.
        let lent = if former == attributes.ptag { None } else { core.descriptors.take_back(found.handle) };
        let changed = found.region.modify_in_place(Some(&ptag.pd), Some(rights));
        let now = if changed.is_ok() { attributes.ptag } else { former };
        let again = core.lend_again(found.handle, now, lent);
        changed.map_err(|error| core.ptag_or_object(error, attributes.ptag))?;
        *found.attributes.lock() = *attributes;
        again
    }

    /// The attributes of registered memory.
    ///
    /// Errors: `InvalidParameter` (handle or address, or the NIC is closed), `ErrorResource` (the
    /// NIC is dead). Does not block. May be called in handlers. Thread-safe. Page VipQueryMem.
    #[doc(alias = "VipQueryMem")]
    pub fn query_mem(&self, address: u64, memory: MemHandle) -> Result<MemAttributes> {
        let core = self.live()?;
        let found = core.registered(address, memory)?;
        let attributes = *found.attributes.lock();
        Ok(attributes)
    }
}

impl Core {
    /// Fails if another call has ended the registration meanwhile.
    fn still_registered(&self, memory: &Registered) -> Result<()> {
        self.registered(memory.address, memory.handle).map(drop)
    }
}
