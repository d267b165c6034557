//! The calls of a client that make objects.

use alloc::sync::Arc;

use nic_abi::wqe::LinkFlags;

use super::Client;
use crate::{
    Consumer, Cq, Error, Link, MemoryList, Pd, Qp, QpAttributes, Region, SlotParams, Srq, Vi, ViAttributes,
    ViCq, Window, WindowType,
};

impl Client {
    /// Creates a protection domain (VIA: a protection tag).
    pub fn create_pd(self: &Arc<Client>) -> Result<Arc<Pd>, Error> {
        let _call = self.call()?;
        Pd::create(self)
    }

    /// Creates a CQ with room for at least `entries`.
    pub fn create_cq(self: &Arc<Client>, entries: u32, context: u64) -> Result<Arc<Cq>, Error> {
        let _call = self.call()?;
        Cq::create(self, entries, context, None)
    }

    /// [`Client::create_cq`], in a slot: [`Error::Busy`] if that is not empty.
    pub fn create_cq_in(
        self: &Arc<Client>,
        entries: u32,
        context: u64,
        slot_params: SlotParams<'_, Consumer>,
    ) -> Result<Arc<Cq>, Error> {
        let _call = self.call()?;
        Cq::create(self, entries, context, Some(slot_params))
    }

    /// Creates a queue pair (VIA: a VI) in state RESET.
    pub fn create_qp(self: &Arc<Client>, attributes: &QpAttributes<'_>) -> Result<Arc<Qp>, Error> {
        let _call = self.call()?;
        Qp::create(self, attributes)
    }

    /// Creates a virtual interface in state RESET.
    ///
    /// `cqs`: the completion queues of the send queue and of the receive queue; a queue without one
    /// is armed by itself. `entries`: descriptors that can be on each of the two queues.
    pub fn create_vi(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        attributes: &ViAttributes,
        cqs: [Option<&Arc<ViCq>>; 2],
        entries: [u32; 2],
        context: u64,
    ) -> Result<Arc<Vi>, Error> {
        let _call = self.call()?;
        Vi::create(self, pd, attributes, cqs, entries, context)
    }

    /// Creates a completion queue of virtual interfaces with room for at least `entries`.
    pub fn create_vi_cq(self: &Arc<Client>, entries: u32, context: u64) -> Result<Arc<ViCq>, Error> {
        let _call = self.call()?;
        ViCq::create(self, entries, context)
    }

    /// Creates a shared receive queue. `limit`: an event when fewer entries are left; 0 never.
    pub fn create_srq(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        max_requests: u32,
        max_segments: u32,
        limit: u32,
        context: u64,
    ) -> Result<Arc<Srq>, Error> {
        let _call = self.call()?;
        Srq::create(self, pd, max_requests, max_segments, limit, context)
    }

    /// Registers memory. `flags` are rights and [`LinkFlags::RELATIVE`] (the list's form is filled
    /// in); `base` is the address of the first byte in the key's address space unless relative.
    pub fn register(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        memory: &MemoryList<'_>,
    ) -> Result<Arc<Region>, Error> {
        let _call = self.call()?;
        Region::register(self, pd, &Link { flags, base, memory: *memory })
    }

    /// Registers the memory of a linked region once more, without translations of its own. `of` may
    /// belong to another client. Neither region can be invalidated afterwards. Fails if `of` is not
    /// linked to that memory.
    pub fn share(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        memory: &MemoryList<'_>,
        of: &Region,
    ) -> Result<Arc<Region>, Error> {
        let _call = self.call()?;
        Region::share(self, pd, &Link { flags, base, memory: *memory }, of)
    }

    /// Registers `length` bytes of virtual memory. Its mapping must not change until the region is
    /// destroyed.
    pub fn register_virtual(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        virt: usize,
        length: u64,
    ) -> Result<Arc<Region>, Error> {
        self.agent.list_virtual(virt, length, |memory| self.register(pd, flags, base, memory))?
    }

    /// Allocates an unlinked region whose links may have up to `max_elements` list elements.
    pub fn allocate_region(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        max_elements: u32,
    ) -> Result<Arc<Region>, Error> {
        let _call = self.call()?;
        Region::allocate(self, pd, max_elements)
    }

    /// Allocates an unbound window.
    pub fn allocate_window(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        window_type: WindowType,
    ) -> Result<Arc<Window>, Error> {
        let _call = self.call()?;
        Window::allocate(self, pd, window_type)
    }
}
