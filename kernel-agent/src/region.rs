//! Protection domains, regions and windows: which memory a queue pair or a peer may reach.
//!
//! The agent chooses a key's slot and generation; the consumer that links chooses its variant. A
//! link passes the device a copy of the list, in memory that was allocated with the region. So a
//! link never fails for lack of memory.
//!
//! Locks: an object's `control` (sleeps), a region's `links` (spins; before a queue pair's slot and
//! send queue).

use alloc::sync::Arc;
use alloc::vec::Vec;

use nic_abi::admin::{AllocateRegion, AllocateWindow, KeyInfo, ModifyRegion, RegisterRegion, ShareRegion};
use nic_abi::ident;
use nic_abi::wqe::{LinkFlags, ListArgs, ListElement};
use nic_hal::{DeviceMemory, Nic};
use platform::sync::Mutex;
use platform::use_count::{Counted, Use, UseCount};
use zerocopy::IntoBytes;

use crate::agent::{Agent, Counter};
use crate::client::AnyObject;
use crate::object::{Object, begin_use};
use crate::table::Number;
use crate::{Client, Error, ListFault, PostError, Resource};

/// How many links of one region may be outstanding.
const LINKS: usize = 4;

/// A protection domain (VIA: protection tag).
pub struct Pd {
    object: Object,
}

impl Counted for Pd {
    fn uses(&self) -> &UseCount {
        self.object.uses()
    }
}

impl Pd {
    pub(crate) fn create(client: &Arc<Client>) -> Result<Arc<Pd>, Error> {
        let agent = client.agent();
        agent.alive()?;
        let Number { slot, .. } = agent.pds.take().ok_or(Error::NoResources(Resource::Pds))?;
        if let Err(error) = agent.nic().create_pd(slot) {
            agent.pds.release(slot);
            return Err(error.into());
        }
        let pd = Arc::new(Pd { object: Object::new(client, Counter::Pds, slot) });
        client.register_object(Counter::Pds, slot, AnyObject::Pd(pd.clone()));
        Ok(pd)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.number()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.object.client()
    }

    /// Destroys the domain; [`Error::Busy`] while an object uses it.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        destroying.finish(agent.nic().destroy_pd(self.number()), &agent.pds, |_| {})
    }
}

/// Memory as bus addresses: IT-API's three kinds of I/O buffer list, and the plain run.
#[derive(Clone, Copy, Debug)]
pub enum MemoryList<'a> {
    /// One run.
    Contiguous {
        /// The first bus address.
        bus: u64,
        /// Bytes.
        length: u64,
    },
    /// Equal pages: a power of two long, at least 4096, aligned to their size.
    Pages {
        /// Their bus addresses.
        pages: &'a [u64],
        /// Bytes of each.
        page_size: u64,
        /// Bytes of the first page before the memory.
        first_byte_offset: u64,
        /// Bytes of the memory.
        length: u64,
    },
    /// Equal blocks of any length and alignment.
    Blocks {
        /// Their bus addresses.
        blocks: &'a [u64],
        /// Bytes of each.
        block_length: u64,
        /// Bytes of the first block before the memory.
        first_byte_offset: u64,
        /// Bytes of the memory.
        length: u64,
    },
    /// Elements that differ in length.
    Variable {
        /// The elements.
        elements: &'a [ListElement],
        /// Bytes of the first element before the memory.
        first_byte_offset: u64,
        /// Bytes of the memory.
        length: u64,
    },
}

impl MemoryList<'_> {
    /// Bytes of the memory.
    pub fn length(&self) -> u64 {
        match *self {
            MemoryList::Contiguous { length, .. }
            | MemoryList::Pages { length, .. }
            | MemoryList::Blocks { length, .. }
            | MemoryList::Variable { length, .. } => length,
        }
    }

    /// The number of elements; a plain run has none.
    pub fn elements(&self) -> usize {
        match self {
            MemoryList::Contiguous { .. } => 0,
            MemoryList::Pages { pages: list, .. } | MemoryList::Blocks { blocks: list, .. } => list.len(),
            MemoryList::Variable { elements, .. } => elements.len(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            MemoryList::Contiguous { .. } => &[],
            MemoryList::Pages { pages: list, .. } | MemoryList::Blocks { blocks: list, .. } => {
                list.as_bytes()
            }
            MemoryList::Variable { elements, .. } => elements.as_bytes(),
        }
    }

    fn form(&self) -> LinkFlags {
        match self {
            MemoryList::Contiguous { .. } => LinkFlags::CONTIGUOUS,
            MemoryList::Pages { .. } => LinkFlags::PAGES,
            MemoryList::Blocks { .. } => LinkFlags::empty(),
            MemoryList::Variable { .. } => LinkFlags::VARIABLE,
        }
    }

    /// The device's description of the list, whose elements are at bus address `list`.
    fn args(&self, list: u64) -> ListArgs {
        let elements = self.elements() as u32;
        match *self {
            MemoryList::Contiguous { bus, .. } => ListArgs { list: bus, ..ListArgs::default() },
            MemoryList::Pages { page_size: each, first_byte_offset, .. }
            | MemoryList::Blocks { block_length: each, first_byte_offset, .. } => {
                ListArgs { list, element_length: each, first_byte_offset, elements, reserved: 0 }
            }
            MemoryList::Variable { first_byte_offset, .. } => {
                ListArgs { list, element_length: 0, first_byte_offset, elements, reserved: 0 }
            }
        }
    }
}

/// What a link makes of a region.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// Rights and [`LinkFlags::RELATIVE`].
    pub flags: LinkFlags,
    /// The address of the first byte, unless relative.
    pub base: u64,
    /// The memory.
    pub memory: MemoryList<'a>,
}

/// All flags but those of the list's form, which follows from the list.
const RIGHTS: LinkFlags =
    LinkFlags::PAGES.union(LinkFlags::VARIABLE).union(LinkFlags::CONTIGUOUS).complement();

impl Link<'_> {
    /// All flags, the list's form among them.
    pub(crate) fn flags(&self) -> LinkFlags {
        self.flags.intersection(RIGHTS) | self.memory.form()
    }
}

/// The request that uses a list buffer, or was the last to use it.
#[derive(Clone, Copy)]
struct LinkUse {
    slot: u32,
    generation: u32,
    tag: u32,
}

struct ListBuffer {
    memory: DeviceMemory,
    used_by: Option<LinkUse>,
}

impl ListBuffer {
    /// Whether the device may still read it.
    fn busy(&self, agent: &Agent) -> bool {
        let Some(LinkUse { slot, generation, tag }) = self.used_by else { return false };
        let Some(slot) = agent.qps.lock(slot) else { return false };
        slot.as_deref().is_some_and(|qp| qp.generation() == generation && qp.send_is_outstanding(tag))
    }
}

/// A memory region: registered by a command, or allocated unlinked and linked by work requests.
pub struct Region {
    object: Object,
    key: u32,
    max_elements: u32,
    links: Mutex<Vec<ListBuffer>>,
    pd: Mutex<Option<Use<Pd>>>,
}

/// The list of a command. The device has read it when it answers the command.
fn list_for_command(nic: &Nic, memory: &MemoryList<'_>) -> Result<Option<DeviceMemory>, Error> {
    let bytes = memory.bytes();
    if bytes.is_empty() {
        return Ok(None);
    }
    let list = nic.allocate(bytes.len(), 64)?;
    list.buffer().write(0, bytes).map_err(|_| Error::BadList("too long"))?;
    Ok(Some(list))
}

impl Region {
    pub(crate) fn register(
        client: &Arc<Client>,
        pd: &Arc<Pd>,
        link: &Link<'_>,
    ) -> Result<Arc<Region>, Error> {
        let agent = client.agent();
        let nic = agent.nic();
        agent.alive()?;
        client.owns(pd.client())?;
        let identity = agent.identity();
        if link.memory.elements() > identity.max_list_elements as usize {
            return Err(Error::OutOfRange("list length"));
        }
        if link.memory.length() > identity.max_region {
            return Err(Error::OutOfRange("region length"));
        }
        let pd = begin_use(pd)?;
        let list = list_for_command(nic, &link.memory)?;
        let args = RegisterRegion {
            pd: pd.number(),
            flags: link.flags().bits(),
            base: link.base,
            length: link.memory.length(),
            list: link.memory.args(list.as_ref().map_or(0, |list| list.buffer().bus())),
        };
        let number = agent.keys.take().ok_or(Error::NoResources(Resource::Keys))?;
        let key = ident::key(number.slot, number.generation, 0);
        if let Some(list) = &list {
            list.lease().start();
        }
        let registered = nic.register_region(key, &args);
        if let (Some(list), Ok(()) | Err(nic_hal::Error::Command(_))) = (&list, &registered) {
            list.lease().end();
        }
        if let Err(error) = registered {
            agent.keys.release(number.slot);
            return Err(error.into());
        }
        Ok(Region::new(client, number.slot, key, 0, Vec::new(), pd))
    }

    /// A region over the memory of a region of any client of this agent, which must still have the
    /// link with key `of_key`.
    pub(crate) fn share(
        client: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        of: &Region,
        of_key: u32,
    ) -> Result<Arc<Region>, Error> {
        let agent = client.agent();
        agent.alive()?;
        client.owns(pd.client())?;
        if !Arc::ptr_eq(agent, of.client().agent()) || of.key_with(0) != of_key & !0xff {
            return Err(Error::Foreign);
        }
        let pd = begin_use(pd)?;
        let number = agent.keys.take().ok_or(Error::NoResources(Resource::Keys))?;
        let key = ident::key(number.slot, number.generation, 0);
        let flags = flags.intersection(RIGHTS).bits();
        let args = ShareRegion { pd: pd.number(), flags, base, of: of_key, reserved: 0 };
        if let Err(error) = agent.nic().share_region(key, &args) {
            agent.keys.release(number.slot);
            return Err(error.into());
        }
        Ok(Region::new(client, number.slot, key, 0, Vec::new(), pd))
    }

    pub(crate) fn allocate(
        client: &Arc<Client>,
        pd: &Arc<Pd>,
        max_elements: u32,
    ) -> Result<Arc<Region>, Error> {
        let agent = client.agent();
        let nic = agent.nic();
        agent.alive()?;
        client.owns(pd.client())?;
        if max_elements > agent.identity().max_list_elements {
            return Err(Error::OutOfRange("list length"));
        }
        let pd = begin_use(pd)?;
        let mut links = Vec::new();
        links.try_reserve_exact(LINKS).map_err(|_| Error::OutOfMemory)?;
        let bytes = size_of::<ListElement>() * max_elements.max(1) as usize;
        for _ in 0..LINKS {
            let memory = nic.allocate(bytes, 64)?;
            links.push(ListBuffer { memory, used_by: None });
        }
        let number = agent.keys.take().ok_or(Error::NoResources(Resource::Keys))?;
        let key = ident::key(number.slot, number.generation, 0);
        if let Err(error) = nic.allocate_region(key, &AllocateRegion { pd: pd.number(), max_elements }) {
            agent.keys.release(number.slot);
            return Err(error.into());
        }
        Ok(Region::new(client, number.slot, key, max_elements, links, pd))
    }

    fn new(
        client: &Arc<Client>,
        slot: u32,
        key: u32,
        max_elements: u32,
        links: Vec<ListBuffer>,
        pd: Use<Pd>,
    ) -> Arc<Region> {
        let region = Arc::new(Region {
            object: Object::new(client, Counter::Regions, slot),
            key,
            max_elements,
            links: Mutex::new(links),
            pd: Mutex::new(Some(pd)),
        });
        client.register_object(Counter::Regions, slot, AnyObject::Region(region.clone()));
        region
    }

    /// The key. For a registered region it is the local and the remote key; for an unlinked region
    /// it has variant 0.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// How many elements a link may have; 0 for a registered region.
    pub fn max_elements(&self) -> u32 {
        self.max_elements
    }

    /// The key with a variant.
    pub(crate) fn key_with(&self, variant: u8) -> u32 {
        self.key & !0xff | u32::from(variant)
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.object.client()
    }

    /// Copies a link's list to memory that the device can read, and calls `post` with the device's
    /// description of it. `post` posts the link and returns the queue pair's slot, its generation
    /// and the request's tag.
    pub(crate) fn link(
        &self,
        link: &Link<'_>,
        post: impl FnOnce(ListArgs) -> Result<(u32, u32, u32), PostError>,
    ) -> Result<(), PostError> {
        if link.memory.elements() > self.max_elements as usize {
            return Err(PostError::BadList(ListFault::TooLong));
        }
        let agent = self.client().agent();
        let mut links = self.links.lock();
        // Checked under the lock under which the leases end.
        self.object.alive().map_err(|_| PostError::Gone)?;
        let bytes = link.memory.bytes();
        if bytes.is_empty() {
            return post(link.memory.args(0)).map(drop);
        }
        let free = links.iter_mut().find(|list| !list.busy(agent)).ok_or(PostError::LinksInFlight)?;
        let buffer = free.memory.buffer();
        buffer.write(0, bytes).map_err(|_| PostError::BadList(ListFault::TooLong))?;
        // The lease lasts until the region is destroyed.
        free.memory.lease().start();
        let (slot, generation, tag) = post(link.memory.args(buffer.bus()))?;
        free.used_by = Some(LinkUse { slot, generation, tag });
        Ok(())
    }

    /// What the key names, as the device has it.
    pub fn query(&self) -> Result<KeyInfo, Error> {
        self.object.alive()?;
        Ok(self.client().agent().nic().query_key(self.key)?)
    }

    /// Gives the region another domain, other rights and another variant of its key; returns the
    /// key. Keys with other variants are invalid from then on. A region that is not linked gets
    /// rights with its next link. [`Error::Busy`] while a window is bound to it.
    pub fn modify(&self, pd: &Arc<Pd>, rights: LinkFlags, variant: u8) -> Result<u32, Error> {
        let agent = self.client().agent();
        let _control = self.object.control()?;
        self.client().owns(pd.client())?;
        let pd = begin_use(pd)?;
        let key = self.key_with(variant);
        agent.nic().modify_region(key, &ModifyRegion { pd: pd.number(), flags: rights.bits() })?;
        let former = self.pd.lock().replace(pd);
        drop(former);
        Ok(key)
    }

    /// Destroys the region; [`Error::Busy`] while a window is bound to it. The device does not
    /// touch the memory after this call has returned.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        destroying.finish(agent.nic().destroy_region(self.key), &agent.keys, |confirmed| {
            if confirmed {
                // The device looks at the key of a link that is still queued before it looks at the
                // list.
                for list in self.links.lock().iter() {
                    list.memory.lease().end();
                }
            }
        })?;
        drop(self.pd.lock().take());
        Ok(())
    }
}

/// Which queue pairs may use a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// All queue pairs of its domain (type 1).
    Wide,
    /// The queue pair that bound it (type 2).
    Narrow,
}

/// A memory window (IT-API: RMR).
pub struct Window {
    object: Object,
    key: u32,
    pd: Mutex<Option<Use<Pd>>>,
}

impl Window {
    pub(crate) fn allocate(
        client: &Arc<Client>,
        pd: &Arc<Pd>,
        window_type: WindowType,
    ) -> Result<Arc<Window>, Error> {
        let agent = client.agent();
        agent.alive()?;
        client.owns(pd.client())?;
        let pd = begin_use(pd)?;
        let number = agent.keys.take().ok_or(Error::NoResources(Resource::Keys))?;
        let key = ident::key(number.slot, number.generation, 0);
        let window_type = match window_type {
            WindowType::Wide => 1,
            WindowType::Narrow => 2,
        };
        if let Err(error) = agent.nic().allocate_window(key, &AllocateWindow { pd: pd.number(), window_type })
        {
            agent.keys.release(number.slot);
            return Err(error.into());
        }
        let object = Object::new(client, Counter::Windows, number.slot);
        let window = Arc::new(Window { object, key, pd: Mutex::new(Some(pd)) });
        client.register_object(Counter::Windows, number.slot, AnyObject::Window(window.clone()));
        Ok(window)
    }

    /// The key with variant 0.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The key with a variant.
    pub(crate) fn key_with(&self, variant: u8) -> u32 {
        self.key & !0xff | u32::from(variant)
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.object.client()
    }

    /// What the key names, as the device has it.
    pub fn query(&self) -> Result<KeyInfo, Error> {
        self.object.alive()?;
        Ok(self.client().agent().nic().query_key(self.key)?)
    }

    /// Destroys the window, bound or not.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        destroying.finish(agent.nic().destroy_window(self.key), &agent.keys, |_| {})?;
        drop(self.pd.lock().take());
        Ok(())
    }
}
