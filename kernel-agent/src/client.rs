//! One consumer of an agent: an opened IA.

use alloc::sync::Arc;

use nic_abi::wqe::LinkFlags;

use crate::{
    AcceptParams, Agent, ConnectParams, ConnectionId, Cq, Error, ListenId, MemoryList, Pd, Qp, QpAttributes,
    Region, Srq, Window, WindowType,
};

/// One consumer of an agent. All objects that it creates belong to it.
pub struct Client {}

impl Client {
    /// The agent.
    pub fn agent(&self) -> &Arc<Agent> {
        todo!()
    }

    /// Closes the client: destroys what it still has, in an order that works (connections and listening points, queue pairs,
    /// SRQs, CQs, windows, regions, protection domains). No upcall comes any more when it returns, unless it is called in an upcall.
    pub fn detach(&self) {
        todo!()
    }

    /// Creates a protection domain (VIA: a protection tag).
    pub fn create_pd(self: &Arc<Client>) -> Result<Arc<Pd>, Error> {
        todo!()
    }

    /// Creates a CQ with room for at least `entries`.
    pub fn create_cq(self: &Arc<Client>, entries: u32, context: u64) -> Result<Arc<Cq>, Error> {
        let _ = (entries, context);
        todo!()
    }

    /// Creates a queue pair (VIA: a VI) in state RESET.
    pub fn create_qp(self: &Arc<Client>, attributes: &QpAttributes<'_>) -> Result<Arc<Qp>, Error> {
        let _ = attributes;
        todo!()
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
        let _ = (pd, max_requests, max_segments, limit, context);
        todo!()
    }

    /// Registers memory. `flags` are rights and [`LinkFlags::RELATIVE`] (the list's form is filled in); `base` is the
    /// address of the first byte in the key's address space unless relative.
    pub fn register(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        memory: &MemoryList<'_>,
    ) -> Result<Arc<Region>, Error> {
        let _ = (pd, flags, base, memory);
        todo!()
    }

    /// Registers `length` bytes of virtual memory, which must stay mapped as it is until the region is destroyed.
    pub fn register_virtual(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        virt: usize,
        length: u64,
    ) -> Result<Arc<Region>, Error> {
        let _ = (pd, flags, base, virt, length);
        todo!()
    }

    /// Allocates an unlinked region whose links may have up to `max_elements` list elements.
    pub fn allocate_region(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        max_elements: u32,
    ) -> Result<Arc<Region>, Error> {
        let _ = (pd, max_elements);
        todo!()
    }

    /// Allocates an unbound window.
    pub fn allocate_window(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        window_type: WindowType,
    ) -> Result<Arc<Window>, Error> {
        let _ = (pd, window_type);
        todo!()
    }

    /// Listens for a service. Requests come as `CmEventKind::Request` with `context`.
    pub fn listen(self: &Arc<Client>, service: roce::ServiceId, context: u64) -> Result<ListenId, Error> {
        let _ = (service, context);
        todo!()
    }

    /// Ends listening; requests that were told of and not answered stay answerable.
    pub fn stop_listening(&self, listen: ListenId) -> Result<(), Error> {
        let _ = listen;
        todo!()
    }

    /// Active side: asks a peer for a connection of `qp`, which must be in INIT. The answer is an event.
    pub fn connect(&self, qp: &Arc<Qp>, params: &ConnectParams<'_>) -> Result<ConnectionId, Error> {
        let _ = (qp, params);
        todo!()
    }

    /// Passive side: accepts a request with `qp`, which must be in INIT. `CmEventKind::Established` follows.
    pub fn accept(
        &self,
        connection: ConnectionId,
        qp: &Arc<Qp>,
        params: &AcceptParams<'_>,
    ) -> Result<(), Error> {
        let _ = (connection, qp, params);
        todo!()
    }

    /// Passive side: refuses a request; active side, three-way: refuses the peer's accept (the queue pair goes to ERROR). The
    /// connection is gone when it returns.
    pub fn reject(&self, connection: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        let _ = (connection, private_data);
        todo!()
    }

    /// Active side, three-way: confirms the peer's accept. `CmEventKind::Established` follows.
    pub fn establish(&self, connection: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        let _ = (connection, private_data);
        todo!()
    }

    /// Ends a connection, or gives up one that is being made. A queue pair that is connected goes to ERROR before this
    /// returns, so what is outstanding flushes. Where the connection stood, `CmEventKind::Disconnected` follows; where it did not, no event follows.
    pub fn disconnect(&self, connection: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        let _ = (connection, private_data);
        todo!()
    }
}
