//! Memory of a consumer: domains, regions, and slices of regions.
//!
//! A region owns its memory, and is dropped like any other value, whatever requests name it. A
//! posted request does not borrow its region: it may be outstanding for as long as it likes. So a
//! dropped region stays registered until the requests that were posted before have ended, and its
//! memory is released after that. The region remembers only which endpoints used it, up to four, so
//! that neither a post nor a completion counts anything; who drops it asks those endpoints up to
//! which request they have posted.
//!
//! Safe code never gets a reference to registered memory, since the device may change it at any
//! time: [`Slice::read`] and [`Slice::write`] copy.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Bound, RangeBounds};

use bitflags::bitflags;
use kernel_agent::{Agent, LinkFlags, MemoryList, Pd, Segment};
use platform::sync::atomic::{AtomicU64, Ordering};
use platform::{DmaBuffer, Privileged, heap};

use crate::datagram::DatagramBuilder;
use crate::dropped::Until;
use crate::endpoint::{Builder, Inner as Endpoint};
use crate::error::CreateError;
use crate::nic::{Inner as NicInner, Nic};
use crate::shared::SharedReceives;

bitflags! {
    /// What peers may do with a region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Read it.
        const READ = 1 << 0;
        /// Write it.
        const WRITE = 1 << 1;
        /// Execute atomic operations on it.
        const ATOMIC = 1 << 2;
    }
}

impl Access {
    /// The rights of a link: those of peers, and all local ones.
    pub(crate) fn link(self) -> LinkFlags {
        let mut flags = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE;
        flags.set(LinkFlags::REMOTE_READ, self.contains(Access::READ));
        flags.set(LinkFlags::REMOTE_WRITE, self.contains(Access::WRITE));
        flags.set(LinkFlags::REMOTE_ATOMIC, self.contains(Access::ATOMIC));
        flags
    }
}

/// The key of segments that name memory by its bus address.
const DIRECT: u32 = 0;
/// No endpoint has used the memory yet.
const NONE: u64 = 0;
/// More endpoints have than are remembered.
const SEVERAL: u64 = u64::MAX;
/// How many endpoints are remembered for each kind of work queue.
pub(crate) const USERS: usize = 4;

/// Memory that requests name.
pub(crate) struct Memory {
    buffer: Arc<DmaBuffer>,
    /// None for memory that is named by its bus address.
    region: Option<Arc<kernel_agent::Region>>,
    key: u32,
    /// The address of the first byte, as requests and peers name it.
    base: u64,
    access: Access,
    /// What the region is in.
    pd: Arc<OwnPd>,
    /// By requests of its send queue, and by Receives.
    users: [Users; 2],
}

/// A work queue of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkQueue {
    Send = 0,
    Receive = 1,
}

/// Which endpoints have posted requests that name some memory, by their handles. The first place is
/// [`SEVERAL`] if there are too many; a place is [`NONE`] if it was not needed.
struct Users([AtomicU64; USERS]);

impl Users {
    fn none() -> Users {
        Users(core::array::from_fn(|_| AtomicU64::new(NONE)))
    }

    /// Whether this endpoint is in the first place.
    #[inline(always)]
    fn has_first(&self, endpoint: u64) -> bool {
        self.0[0].load(Ordering::Relaxed) == endpoint
    }

    /// Notes that this endpoint posts a request that names the memory.
    fn note(&self, endpoint: u64) {
        let places = self.0.each_ref().map(|place| place.load(Ordering::Relaxed));
        if places[0] == SEVERAL || places.contains(&endpoint) {
            return;
        }
        for place in &self.0 {
            let here = place.compare_exchange(NONE, endpoint, Ordering::Relaxed, Ordering::Relaxed);
            if here.is_ok() || here == Err(endpoint) {
                return;
            }
        }
        self.0[0].store(SEVERAL, Ordering::Relaxed);
    }

    /// Those that are remembered; `None` if there are more.
    fn known(&self) -> Option<impl Iterator<Item = u64>> {
        let handles = self.0.each_ref().map(|place| place.load(Ordering::Relaxed));
        (handles[0] != SEVERAL).then(|| handles.into_iter().filter(|&handle| handle != NONE))
    }
}

impl Memory {
    /// What it is in.
    pub(crate) fn pd(&self) -> &OwnPd {
        &self.pd
    }

    /// Whether this endpoint was the first to post a request that names the memory, to this work
    /// queue. Then nothing has to be noted.
    #[inline(always)]
    pub(crate) fn is_first_used_by(&self, endpoint: u64, work_queue: WorkQueue) -> bool {
        self.users[work_queue as usize].has_first(endpoint)
    }

    /// Notes that this endpoint posts a request that names the memory, to this work queue.
    pub(crate) fn used_by(&self, endpoint: u64, work_queue: WorkQueue) {
        self.users[work_queue as usize].note(endpoint);
    }

    /// Deregisters the memory, and releases it unless the device may still access it. Blocks for
    /// the device.
    pub(crate) fn release(self, agent: &Agent) -> Result<(), kernel_agent::Error> {
        let destroyed = self.region.as_ref().map_or(Ok(()), |region| region.destroy());
        agent.release(self.buffer, destroyed);
        destroyed
    }

    /// The same while requests name it: those fail.
    pub(crate) fn release_in_use(self, agent: &Agent) {
        if self.region.is_none() {
            // Nothing keeps the device from memory that is named by its bus address.
            self.buffer.abandon();
        }
        let _ = self.release(agent);
    }

    /// The requests that name the memory, if there is memory for a list of them.
    pub(crate) fn until(&self, nic: &NicInner) -> Option<Until> {
        let mut until = Until::new();
        for work_queue in [WorkQueue::Send, WorkQueue::Receive] {
            let mut all = true;
            let mut add = |endpoint: Arc<Endpoint>| all &= until.add(&endpoint, work_queue);
            match self.users[work_queue as usize].known() {
                Some(known) => known.filter_map(|handle| nic.endpoint(handle)).for_each(&mut add),
                None => nic.endpoints().for_each(&mut add),
            }
            if !all {
                return None;
            }
        }
        Some(until)
    }
}

/// The agent's domain, until neither the consumer's nor a region of it is left.
pub(crate) struct OwnPd(Arc<Pd>);

impl OwnPd {
    pub(crate) fn destroy(&self) -> Result<(), kernel_agent::Error> {
        self.0.destroy()
    }
}

impl Drop for OwnPd {
    fn drop(&mut self) {
        // Nothing uses it, so this fails only if the device is dead, or if it was closed before.
        let _ = self.destroy();
    }
}

/// A protection domain: endpoints reach the regions of their own domain only. A clone is the same
/// domain.
#[derive(Clone)]
pub struct Domain(pub(crate) Arc<DomainInner>);

pub(crate) struct DomainInner {
    pub(crate) pd: Arc<OwnPd>,
    pub(crate) nic: Nic,
}

impl Domain {
    pub(crate) fn new(nic: &Nic) -> Result<Domain, CreateError> {
        heap::room_for_arc::<(DomainInner, OwnPd)>()?;
        let pd = Arc::new(OwnPd(nic.inner().client()?.create_pd()?));
        Ok(Domain(Arc::new(DomainInner { nic: nic.clone(), pd })))
    }

    /// The opening of the NIC.
    pub fn nic(&self) -> &Nic {
        &self.0.nic
    }

    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.0.pd.0
    }

    /// A region of so many zeroed bytes that peers cannot access.
    ///
    /// Blocks for the device.
    pub fn region(&self, len: usize) -> Result<Region, CreateError> {
        self.shared_region(len, Access::empty())
    }

    /// A region of so many zeroed bytes that peers may access.
    ///
    /// Blocks for the device.
    pub fn shared_region(&self, len: usize, access: Access) -> Result<Region, CreateError> {
        self.register(self.buffer(len)?, access)
    }

    /// Registers a buffer, which the region shares with whoever else has it.
    ///
    /// Blocks for the device.
    pub fn register(&self, buffer: Arc<DmaBuffer>, access: Access) -> Result<Region, CreateError> {
        let nic = self.0.nic.inner();
        let base = buffer.addr() as u64;
        let list = MemoryList::Contiguous { bus: buffer.bus(), length: buffer.len() as u64 };
        let client = nic.client()?;
        let register = || client.register(self.pd(), access.link(), base, &list);
        let region = nic.agent().registering(&buffer, register)?;
        let key = region.key();
        Ok(self.own(Memory { region: Some(region), key, base, ..self.memory(buffer, access) }))
    }

    /// Memory of so many zeroed bytes that requests name by its bus address, without registration:
    /// for privileged consumers, on endpoints built with [`Builder::privileged`], and never as the
    /// sink of an RDMA Read. Peers cannot access it.
    #[doc(alias = "direct_lmr_handle")]
    pub fn direct(&self, len: usize, privileged: Privileged) -> Result<Region, CreateError> {
        Ok(self.direct_buffer(self.buffer(len)?, privileged))
    }

    /// As [`Domain::direct`], with a buffer that the region shares with whoever else has it: with a
    /// disk, for example.
    #[doc(alias = "it_mem_map")]
    pub fn direct_buffer(&self, buffer: Arc<DmaBuffer>, _privileged: Privileged) -> Region {
        let base = buffer.bus();
        self.own(Memory { key: DIRECT, base, ..self.memory(buffer, Access::empty()) })
    }

    /// Receives that endpoints of this domain can share: so many buffers of `len` bytes each, which
    /// wait for messages at once.
    ///
    /// Blocks for the device.
    pub fn shared_receives(&self, count: u32, len: usize) -> Result<SharedReceives, CreateError> {
        SharedReceives::new(self, count, len)
    }

    /// The same in memory that is there already: as many buffers of `len` bytes each as it has room
    /// for. With memory of [`Domain::direct`], all endpoints that share have to be privileged.
    ///
    /// Blocks for the device.
    pub fn shared_receives_in(&self, memory: Region, len: usize) -> Result<SharedReceives, CreateError> {
        SharedReceives::in_memory(self, memory, len)
    }

    /// An endpoint of this domain; its size is chosen step by step.
    pub fn endpoint(&self) -> Builder<'_> {
        Builder::new(self)
    }

    /// An endpoint for datagrams of this domain, which needs no connection; its size is chosen step
    /// by step.
    pub fn datagrams(&self) -> DatagramBuilder<'_> {
        DatagramBuilder::new(self)
    }

    fn buffer(&self, len: usize) -> Result<Arc<DmaBuffer>, CreateError> {
        let nic = self.0.nic.inner();
        if !nic.dropped.is_empty() {
            nic.dropped.sweep(nic.agent());
        }
        let buffer = DmaBuffer::new(self.nic().agent().platform(), len, 4096)?;
        heap::arc(buffer).map_err(|_| CreateError::OutOfMemory)
    }

    fn memory(&self, buffer: Arc<DmaBuffer>, access: Access) -> Memory {
        let pd = self.0.pd.clone();
        Memory {
            buffer,
            region: None,
            key: DIRECT,
            base: 0,
            access,
            pd,
            users: [Users::none(), Users::none()],
        }
    }

    fn own(&self, memory: Memory) -> Region {
        Region { domain: self.clone(), memory: Some(memory) }
    }
}

/// Memory that requests may name. It owns its bytes.
///
/// Dropping it is safe at any time: the requests that name it go on. Its memory is released when
/// those have ended that its endpoint had posted to the same work queue by then, at the next look:
/// a poll, another region, the end of an endpoint. If more than four endpoints used it, it waits
/// for all of the opening. Peers that have its key can access it until then. A drop blocks for the
/// device; [`Region::close`] waits for the requests as well.
///
/// A slice cannot outlive its region:
///
/// ```compile_fail,E0515
/// fn dangling(domain: &ferrovia_rdma::Domain) -> ferrovia_rdma::Slice<'_> {
///     let region = domain.region(64).unwrap();
///     region.slice(..)
/// }
/// ```
pub struct Region {
    domain: Domain,
    /// None only while it is dropped, and once it was closed.
    memory: Option<Memory>,
}

impl Region {
    #[inline(always)]
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("taken only by its end")
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory().buffer.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of the region, as a request names it.
    ///
    /// # Panics
    ///
    /// If the range is not within the region, as slices of Rust do; [`Region::get`] does not.
    #[inline]
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Slice<'_> {
        self.get(range).expect("a range within the region")
    }

    /// A part of the region; `None` if the range is not within it.
    #[inline]
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<Slice<'_>> {
        let memory = self.memory();
        let (offset, len) = within(range, memory.buffer.len())?;
        Some(Slice { memory, offset, len })
    }

    /// What a peer needs to access the region; `None` if peers have no right to.
    pub fn remote(&self) -> Option<RemoteMemory> {
        let memory = self.memory();
        let region = memory.region.as_ref().filter(|_| !memory.access.is_empty())?;
        Some(RemoteMemory { addr: memory.base, len: self.len() as u64, key: region.remote_key() })
    }

    /// The memory itself, for a consumer that shares it with others.
    pub fn buffer(&self) -> &Arc<DmaBuffer> {
        &self.memory().buffer
    }
}

impl Region {
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The requests that name it, if there is memory for a list of them.
    pub(crate) fn until(&self) -> Option<Until> {
        self.memory.as_ref()?.until(self.domain.nic().inner())
    }

    /// Deregisters it at once, and releases its memory; `None` if that was done before.
    pub(crate) fn end(&mut self) -> Option<Result<(), kernel_agent::Error>> {
        Some(self.memory.take()?.release(self.domain.nic().agent()))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let nic = self.domain.nic().inner();
            nic.dropped.take(nic, memory);
        }
    }
}

/// Offset and length of a range of `len` bytes; `None` if it is not within.
#[inline]
fn within(range: impl RangeBounds<usize>, len: usize) -> Option<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Unbounded => 0,
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.checked_add(1)?,
    };
    let end = match range.end_bound() {
        Bound::Unbounded => len,
        Bound::Included(&end) => end.checked_add(1)?,
        Bound::Excluded(&end) => end,
    };
    (end <= len).then_some(())?;
    Some((start, end.checked_sub(start)?))
}

/// A part of a region.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    pub(crate) memory: &'a Memory,
    offset: usize,
    len: usize,
}

impl<'a> Slice<'a> {
    /// Where it is: the memory of its region, and the offset there. For a consumer that shares the
    /// memory with others.
    pub fn place(&self) -> (&'a Arc<DmaBuffer>, usize) {
        (&self.memory.buffer, self.offset)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of the part; `None` if the range is not within.
    pub fn get(self, range: impl RangeBounds<usize>) -> Option<Self> {
        let (offset, len) = within(range, self.len)?;
        Some(Slice { offset: self.offset + offset, len, ..self })
    }

    /// Copies the first bytes out, as many as both have; returns how many. A peer or the device may
    /// change them meanwhile: then some are new and others old.
    pub fn read(&self, into: &mut [u8]) -> usize {
        let len = self.len.min(into.len());
        // Within the buffer, so this cannot fail.
        let _ = self.memory.buffer.read(self.offset, &mut into[..len]);
        len
    }

    /// Copies all bytes out.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = alloc::vec![0; self.len];
        self.read(&mut bytes);
        bytes
    }

    /// Copies bytes to the beginning, as many as both have; returns how many.
    pub fn write(&self, from: &[u8]) -> usize {
        let len = self.len.min(from.len());
        let _ = self.memory.buffer.write(self.offset, &from[..len]);
        len
    }

    /// The slice as the NIC has it; `None` if it is longer than a segment can be, or of another
    /// domain.
    #[inline(always)]
    pub(crate) fn segment(&self, domain: &OwnPd) -> Option<Segment> {
        let Memory { key, base, pd, .. } = self.memory;
        if !core::ptr::eq(&**pd, domain) || self.len > u32::MAX as usize {
            return None;
        }
        Some(Segment { addr: base.wrapping_add(self.offset as u64), key: *key, length: self.len as u32 })
    }
}

/// Memory of a peer, or a part of it: what a peer's [`Region::remote`] is, as it arrived here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    pub(crate) addr: u64,
    len: u64,
    pub(crate) key: u32,
}

impl RemoteMemory {
    /// The length of its form in messages.
    pub const LEN: usize = 20;

    /// Its form in messages: address, length and key, big-endian.
    pub fn to_bytes(self) -> [u8; RemoteMemory::LEN] {
        let mut bytes = [0; RemoteMemory::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    /// Reads the form in messages from the beginning of `bytes`; `None` if there are too few. The
    /// peer answers for what it says: its NIC refuses what it does not allow.
    pub fn from_bytes(bytes: &[u8]) -> Option<RemoteMemory> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let key = rest.first_chunk()?;
        let [addr, len] = [addr, len].map(|word| u64::from_be_bytes(*word));
        Some(RemoteMemory { addr, len, key: u32::from_be_bytes(*key) })
    }

    /// Memory of a peer that does not use this library: rdma-core's `addr`, `length` and `rkey`.
    pub const fn new(addr: u64, len: u64, key: u32) -> RemoteMemory {
        RemoteMemory { addr, len, key }
    }

    /// The address of its first byte, as the peer's requests name it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its key: rdma-core's `rkey`.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part behind the first `offset` bytes; empty if there are fewer.
    #[inline]
    pub fn from(self, offset: u64) -> RemoteMemory {
        let offset = offset.min(self.len);
        RemoteMemory { addr: self.addr.wrapping_add(offset), len: self.len - offset, key: self.key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_or_none() {
        assert_eq!(within(.., 5), Some((0, 5)));
        assert_eq!(
            (within(2..4, 5), within(2..=4, 5), within(5.., 5)),
            (Some((2, 2)), Some((2, 3)), Some((5, 0)))
        );
        assert_eq!((within(2..6, 5), within(..=5, 5), within(6.., 5)), (None, None, None));
        #[expect(clippy::reversed_empty_ranges, reason = "a range that ends before it begins")]
        let reversed = within(4..2, 5);
        assert_eq!(reversed, None);
        assert_eq!(within((Bound::Excluded(usize::MAX), Bound::Unbounded), 5), None);
        assert_eq!(within(..=usize::MAX, 5), None);
    }

    #[test]
    fn what_a_peer_is_told_comes_back_and_its_parts_stay_within() {
        let memory = RemoteMemory::new(0x1000, 64, 7);
        assert_eq!(RemoteMemory::from_bytes(&memory.to_bytes()), Some(memory));
        assert_eq!(RemoteMemory::from_bytes(&memory.to_bytes()[1..]), None);
        assert_eq!(memory.from(16), RemoteMemory::new(0x1010, 48, 7));
        assert_eq!(memory.from(65), RemoteMemory::new(0x1040, 0, 7));
    }

    #[test]
    fn memory_knows_a_few_endpoints_or_that_there_are_more() {
        let users = |endpoints: &[u64]| {
            let users = Users::none();
            endpoints.iter().for_each(|endpoint| users.note(*endpoint));
            users.known().map(Vec::from_iter)
        };
        let [none, one] = [&[][..], &[5, 5]].map(users);
        assert_eq!((none, one), (Some(Vec::new()), Some([5].into())));
        assert_eq!(users(&[5, 6, 5, 7, 8, 6, 8, 7]), Some([5, 6, 7, 8].into()));
        assert_eq!(users(&[5, 6, 7, 8, 9, 5, 6]), None);
    }
}
