//! Protection domains, regions and windows: which memory a queue pair or a peer may reach.
//!
//! The agent chooses the keys (see `key`). Segments, links and unlinks name a region or window by
//! its local key, which is constant; what is linked, and how, the device knows, and a query asks
//! the device.
//!
//! A link passes the device a copy of the list, in memory that was allocated with the region. So a
//! link never fails for lack of memory.
//!
//! Locks: an object's `control` (sleeps), a region's `lists` (spins; before a queue pair's slot and
//! send queue).

use alloc::sync::Arc;
use alloc::vec::Vec;

use nic_abi::admin::{
    AllocateRegion, AllocateWindow, KeyInfo, ModifyRegion, RegisterRegion, ShareRegion, Status,
};
use nic_abi::wqe::{LinkFlags, ListArgs, ListElement};
use nic_hal::{DeviceMemory, Nic};
use platform::heap;
use platform::sync::Mutex;
use platform::use_count::{Counted, Use, UseCount};
use zerocopy::IntoBytes;

use crate::agent::Agent;
use crate::client::AnyObject;
use crate::key::{LINKS, Links, NO_LINKS, Names, Outstanding};
use crate::object::{Counter, Object, begin_use};
use crate::table::Number;
use crate::{Client, Error, ListFault, PostError, Resource};

/// A protection domain (VIA: protection tag).
pub struct Pd {
    object: Object<Client>,
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
        let room = heap::room_for_arc::<Pd>().map_err(Error::from);
        if let Err(error) = room.and_then(|()| Ok(agent.nic().create_pd(slot)?)) {
            agent.pds.release(slot);
            return Err(error);
        }
        let pd = Arc::new(Pd { object: Object::new(client, Counter::Pds, slot) });
        client.register_object(slot, AnyObject::Pd(pd.clone()))?;
        Ok(pd)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.number()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.object.owner()
    }

    /// Destroys the domain; [`Error::Busy`] while an object uses it.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        let release = |number| agent.pds.release(number);
        destroying.finish(agent.nic().destroy_pd(self.number()), release, |_| {})
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

    /// Where the memory begins, and its length. Equal memory has equal extents.
    pub fn extent(&self) -> Extent {
        let (first, offset) = match *self {
            MemoryList::Contiguous { bus, .. } => (Some(bus), 0),
            MemoryList::Pages { pages: list, first_byte_offset, .. }
            | MemoryList::Blocks { blocks: list, first_byte_offset, .. } => {
                (list.first().copied(), first_byte_offset)
            }
            MemoryList::Variable { elements, first_byte_offset, .. } => {
                (elements.first().map(|element| element.addr), first_byte_offset)
            }
        };
        Extent { start: first.unwrap_or_default().wrapping_add(offset), length: self.length() }
    }

    /// The device's description of the list, whose elements are at bus address `list`, for a
    /// region that gets this remote key.
    #[inline]
    fn args(&self, list: u64, remote: u32) -> ListArgs {
        let elements = self.elements() as u32;
        match *self {
            MemoryList::Contiguous { bus, .. } => ListArgs { list: bus, remote, ..ListArgs::default() },
            MemoryList::Pages { page_size: each, first_byte_offset, .. }
            | MemoryList::Blocks { block_length: each, first_byte_offset, .. } => {
                ListArgs { list, element_length: each, first_byte_offset, elements, remote }
            }
            MemoryList::Variable { first_byte_offset, .. } => {
                ListArgs { list, element_length: 0, first_byte_offset, elements, remote }
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

/// Where a piece of memory begins, as a bus address, and its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// Bytes up to which the lists of a region are in one piece of memory.
const SHORT: usize = 1 << 16;

/// The memory for the lists of a region's links.
struct Lists {
    /// Room for [`LINKS`] lists: in one piece if they are short, else a piece each. None for a
    /// region that cannot be linked.
    memory: Vec<DeviceMemory>,
    /// Bytes of the room for a list.
    each: usize,
    uses: Mutex<Uses>,
}

/// What the list buffers are used for.
struct Uses {
    /// The region is destroyed; no link can be posted.
    gone: bool,
    /// The buffer that is used next, if it is free.
    next: usize,
    by: [ListUse; LINKS],
    /// The memory of the link that used each buffer last.
    extents: [Extent; LINKS],
}

/// What a list buffer is used for.
#[derive(Clone, Copy)]
enum ListUse {
    Nothing,
    /// A poster writes a list.
    Writing,
    /// A link that was posted, and may be done.
    Posted(Outstanding),
}

impl Lists {
    fn new(memory: Vec<DeviceMemory>, each: usize) -> Lists {
        let (by, extents) = ([ListUse::Nothing; LINKS], [Extent::default(); LINKS]);
        Lists { memory, each, uses: Mutex::new(Uses { gone: false, next: 0, by, extents }) }
    }

    /// Writes a list to a place, and returns its bus address.
    #[inline]
    fn write(&self, place: usize, bytes: &[u8]) -> Option<u64> {
        if bytes.len() > self.each {
            return None;
        }
        let (memory, at) = match &self.memory[..] {
            [all] => (all, place * self.each),
            pieces => (pieces.get(place)?, 0),
        };
        memory.buffer().write(at, bytes).ok()?;
        // The lease lasts until the region is destroyed.
        memory.lease().start();
        Some(memory.buffer().bus() + at as u64)
    }

    /// Finds a buffer that the device does not read, and keeps it for a poster.
    #[inline]
    fn claim(&self, agent: &Agent) -> Result<usize, PostError> {
        let mut uses = self.uses.lock();
        if uses.gone {
            return Err(PostError::Gone);
        }
        for place in (uses.next..LINKS).chain(0..uses.next) {
            let free = match uses.by[place] {
                ListUse::Nothing => true,
                ListUse::Writing => false,
                ListUse::Posted(link) => !agent.is_under_way(&link),
            };
            if free {
                uses.by[place] = ListUse::Writing;
                uses.next = (place + 1) % LINKS;
                return Ok(place);
            }
        }
        Err(PostError::LinksInFlight)
    }

    /// Ends the use of all buffers, whose region is destroyed. Returns the links that are
    /// outstanding.
    fn close(&self, agent: &Agent) -> Links {
        let mut uses = self.uses.lock();
        uses.gone = true;
        uses.by.map(|list| match list {
            ListUse::Posted(link) if agent.is_under_way(&link) => Some(link),
            _ => None,
        })
    }

    /// The device will not read the lists any more.
    fn end_leases(&self) {
        for memory in &self.memory {
            memory.lease().end();
        }
    }
}

/// A memory region: registered by a command, or allocated unlinked and linked by work requests.
pub struct Region {
    object: Object<Client>,
    names: Names,
    max_elements: u32,
    /// The memory of a registered region.
    registered: Option<Extent>,
    lists: Lists,
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
        let (flags, base, length) = (link.flags().bits(), link.base, link.memory.length());
        Region::create(client, pd, link, |nic, key, pd, list| {
            nic.register_region(key, &RegisterRegion { pd, flags, base, length, list })
        })
    }

    /// A region over the memory of a region of any client of this agent, which must be linked to
    /// the memory of `link`.
    pub(crate) fn share(
        client: &Arc<Client>,
        pd: &Arc<Pd>,
        link: &Link<'_>,
        of: &Region,
    ) -> Result<Arc<Region>, Error> {
        if !Arc::ptr_eq(client.agent(), of.client().agent()) {
            return Err(Error::Foreign);
        }
        let (flags, base, length) = (link.flags().bits(), link.base, link.memory.length());
        Region::create(client, pd, link, |nic, key, pd, list| {
            let of = of.key();
            nic.share_region(key, &ShareRegion { pd, flags, base, length, list, of, reserved: 0 })
        })
    }

    /// A region that `command` makes, with this local key, domain and list.
    fn create(
        client: &Arc<Client>,
        pd: &Arc<Pd>,
        link: &Link<'_>,
        command: impl FnOnce(&Nic, u32, u32, ListArgs) -> Result<(), nic_hal::Error>,
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
        let names =
            agent.keys.take(|link| agent.is_under_way(link)).ok_or(Error::NoResources(Resource::Keys))?;
        let at = list.as_ref().map_or(0, |list| list.buffer().bus());
        let args = link.memory.args(at, names.next_remote());
        if let Some(list) = &list {
            list.lease().start();
        }
        let room = heap::room_for_arc::<Region>().map_err(nic_hal::Error::from);
        let created = room.and_then(|()| command(nic, names.local(), pd.number(), args));
        if let (Some(list), Ok(()) | Err(nic_hal::Error::Command(_) | nic_hal::Error::OutOfMemory)) =
            (&list, &created)
        {
            list.lease().end();
        }
        if let Err(error) = created {
            agent.keys.release(&names, NO_LINKS);
            return Err(error.into());
        }
        let extent = Some(link.memory.extent());
        Region::new(client, names, 0, extent, Lists::new(Vec::new(), 0), pd)
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
        let each = size_of::<ListElement>() * max_elements.max(1) as usize;
        let (pieces, len) = if LINKS * each <= SHORT { (1, LINKS * each) } else { (LINKS, each) };
        let mut memory = Vec::new();
        memory.try_reserve_exact(pieces).map_err(|_| Error::OutOfMemory)?;
        for _ in 0..pieces {
            memory.push(nic.allocate(len, 64)?);
        }
        let lists = Lists::new(memory, each);
        let names =
            agent.keys.take(|link| agent.is_under_way(link)).ok_or(Error::NoResources(Resource::Keys))?;
        let args = AllocateRegion { pd: pd.number(), max_elements };
        let room = heap::room_for_arc::<Region>().map_err(nic_hal::Error::from);
        if let Err(error) = room.and_then(|()| nic.allocate_region(names.local(), &args)) {
            agent.keys.release(&names, NO_LINKS);
            return Err(error.into());
        }
        Region::new(client, names, max_elements, None, lists, pd)
    }

    /// The object of a region that the device has. The caller made sure of the room for it.
    fn new(
        client: &Arc<Client>,
        names: Names,
        max_elements: u32,
        registered: Option<Extent>,
        lists: Lists,
        pd: Use<Pd>,
    ) -> Result<Arc<Region>, Error> {
        let slot = names.slot();
        let region = Arc::new(Region {
            object: Object::new(client, Counter::Regions, slot),
            names,
            max_elements,
            registered,
            lists,
            pd: Mutex::new(Some(pd)),
        });
        client.register_object(slot, AnyObject::Region(region.clone()))?;
        Ok(region)
    }

    /// The local key, which names the region in segments, links, unlinks and binds.
    #[inline]
    pub fn key(&self) -> u32 {
        self.names.local()
    }

    /// The last remote key that was made: of the registration, the last modification, or the last
    /// link that was posted.
    pub fn remote_key(&self) -> u32 {
        self.names.last_remote()
    }

    /// How many elements a link may have; 0 for a registered region.
    #[inline]
    pub fn max_elements(&self) -> u32 {
        self.max_elements
    }

    /// Where the memory of a registered region begins, and its length.
    pub fn registered(&self) -> Option<Extent> {
        self.registered
    }

    /// Whether the region may be linked to memory that begins there and has that length: it is
    /// registered, or one of the last links that were posted is to such memory. The device decides
    /// whether it is.
    pub fn may_be_linked_to(&self, memory: Extent) -> bool {
        match self.registered {
            Some(extent) => extent == memory,
            None => self.lists.uses.lock().extents.contains(&memory),
        }
    }

    /// Whether the region is destroyed or about to be.
    pub fn is_gone(&self) -> bool {
        self.object.alive().is_err()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.object.owner()
    }

    /// Copies a link's list to memory that the device can read, and calls `post` with the device's
    /// description of it, which contains the new remote key. `post` posts the link. Returns the
    /// remote key.
    #[inline]
    pub(crate) fn link(
        &self,
        link: &Link<'_>,
        post: impl FnOnce(ListArgs) -> Result<Outstanding, PostError>,
    ) -> Result<u32, PostError> {
        if link.memory.elements() > self.max_elements as usize {
            return Err(PostError::BadList(ListFault::TooLong));
        }
        let agent = self.client().agent();
        let place = self.lists.claim(agent)?;
        // The list may be long, so it is copied without the lock.
        let remote = self.names.next_remote();
        let at = self.lists.write(place, link.memory.bytes());
        let list = at.map(|at| link.memory.args(at, remote));
        let mut uses = self.lists.uses.lock();
        let posted = match list {
            // The region was destroyed meanwhile: its key may get another owner.
            _ if uses.gone => Err(PostError::Gone),
            None => Err(PostError::BadList(ListFault::TooLong)),
            Some(list) => post(list),
        };
        match posted {
            Ok(posted) => {
                uses.by[place] = ListUse::Posted(posted);
                uses.extents[place] = link.memory.extent();
                Ok(remote)
            }
            Err(error) => {
                uses.by[place] = ListUse::Nothing;
                Err(error)
            }
        }
    }

    /// What the key names, as the device has it: a link that was posted counts once it has been
    /// executed.
    pub fn query(&self) -> Result<KeyInfo, Error> {
        self.object.alive()?;
        Ok(self.client().agent().nic().query_key(self.key())?)
    }

    /// Gives the region another domain, other rights (only while it is linked), or both, and
    /// another remote key, which is returned; former ones are invalid from then on.
    /// [`Error::Busy`] while a window is bound to it, [`Error::NotLinked`] for rights of a region
    /// that is not linked.
    pub fn modify(&self, pd: Option<&Arc<Pd>>, rights: Option<LinkFlags>) -> Result<u32, Error> {
        self.modify_to(pd, rights, Names::next_remote)
    }

    /// As [`Region::modify`], but the region keeps its remote key. Who has the key has the new
    /// rights from then on.
    pub fn modify_in_place(&self, pd: Option<&Arc<Pd>>, rights: Option<LinkFlags>) -> Result<(), Error> {
        self.modify_to(pd, rights, Names::last_remote).map(drop)
    }

    fn modify_to(
        &self,
        pd: Option<&Arc<Pd>>,
        rights: Option<LinkFlags>,
        remote: impl FnOnce(&Names) -> u32,
    ) -> Result<u32, Error> {
        let agent = self.client().agent();
        let _control = self.object.control()?;
        if let Some(pd) = pd {
            self.client().owns(pd.client())?;
        }
        let pd = pd.map(begin_use).transpose()?;
        let remote = remote(&self.names);
        let args = ModifyRegion {
            pd: pd.as_ref().map_or(0, |pd| pd.number()),
            flags: rights.unwrap_or_default().bits(),
            rights: u32::from(rights.is_some()),
            remote,
        };
        agent.nic().modify_region(self.key(), &args).map_err(|error| match error {
            nic_hal::Error::Command(command) if command.status == Status::BadState => Error::NotLinked,
            other => other.into(),
        })?;
        if let Some(pd) = pd {
            let former = self.pd.lock().replace(pd);
            drop(former);
        }
        Ok(remote)
    }

    /// Destroys the region; [`Error::Busy`] while a window is bound to it. The device does not
    /// touch the memory after this call has returned.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        let mut outstanding = NO_LINKS;
        let (lists, links) = (&self.lists, &mut outstanding);
        let remove = |confirmed| {
            *links = lists.close(agent);
            if confirmed {
                // The device looks at the key of a link that is still queued before it looks at the
                // list.
                lists.end_leases();
            }
        };
        let destroyed = agent.nic().destroy_region(self.key());
        let mut given_back = false;
        destroying.finish(destroyed, |_| given_back = true, remove)?;
        if given_back {
            agent.keys.release(&self.names, outstanding);
        }
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
    object: Object<Client>,
    names: Names,
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
        let names =
            agent.keys.take(|link| agent.is_under_way(link)).ok_or(Error::NoResources(Resource::Keys))?;
        let window_type = match window_type {
            WindowType::Wide => 1,
            WindowType::Narrow => 2,
        };
        let args = AllocateWindow { pd: pd.number(), window_type };
        let room = heap::room_for_arc::<Window>().map_err(nic_hal::Error::from);
        if let Err(error) = room.and_then(|()| agent.nic().allocate_window(names.local(), &args)) {
            agent.keys.release(&names, NO_LINKS);
            return Err(error.into());
        }
        let slot = names.slot();
        let object = Object::new(client, Counter::Windows, slot);
        let window = Arc::new(Window { object, names, pd: Mutex::new(Some(pd)) });
        client.register_object(slot, AnyObject::Window(window.clone()))?;
        Ok(window)
    }

    /// The local key, which names the window in binds and unlinks.
    #[inline]
    pub fn key(&self) -> u32 {
        self.names.local()
    }

    /// A new remote key, for a bind.
    #[inline]
    pub(crate) fn next_remote(&self) -> u32 {
        self.names.next_remote()
    }

    /// Leaves the low eight bits of the window's remote keys to the consumer, who has to call it
    /// before the first [`Qp::post_bind_chosen`](crate::Qp::post_bind_chosen). Returns the first of
    /// the keys.
    pub fn reserve_choice(&self) -> u32 {
        self.names.reserve_choice()
    }

    /// The remote key with these low eight bits.
    #[inline]
    pub(crate) fn chosen(&self, low: u8) -> u32 {
        self.names.chosen(low)
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.object.owner()
    }

    /// What the key names, as the device has it: a bind that was posted counts once it has been
    /// executed.
    pub fn query(&self) -> Result<KeyInfo, Error> {
        self.object.alive()?;
        Ok(self.client().agent().nic().query_key(self.key())?)
    }

    /// Destroys the window, bound or not.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        let release = |_| agent.keys.release(&self.names, NO_LINKS);
        destroying.finish(agent.nic().destroy_window(self.key()), release, |_| {})?;
        drop(self.pd.lock().take());
        Ok(())
    }
}
