//! Signatures first; bodies follow.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::Agent;
use platform::{DmaBuffer, Privileged};

use crate::*;

const NOT_YET: Error = Error::OpNotSupported;

/// The interfaces of a machine: made once by boot code, cloned freely.
#[derive(Clone, Default)]
pub struct Provider;

impl Provider {
    /// No interface yet.
    pub fn new() -> Provider {
        Provider
    }

    /// Adds an interface under this name (1 to 127 bytes, not taken yet).
    pub fn add(&self, name: &str, agent: Arc<Agent>) -> Result<()> {
        let _ = (name, agent);
        Err(NOT_YET)
    }

    /// All interfaces.
    #[doc(alias = "it_interface_list")]
    pub fn interface_list(&self) -> Vec<Interface> {
        Vec::new()
    }

    /// Creates an IA; with `privileged`, its consumer is privileged.
    #[doc(alias = "it_ia_create")]
    pub fn ia_create(
        &self,
        name: &str,
        major_version: u32,
        minor_version: u32,
        privileged: Option<Privileged>,
    ) -> Result<Ia> {
        let _ = (name, major_version, minor_version, privileged);
        Err(NOT_YET)
    }
}

/// What may be run when an event dispatcher notifies.
#[doc(alias = "it_evd_callback_rtn_t")]
pub type EvdCallback = Box<dyn FnMut(&Ia, EvdHandle) + Send>;

/// Where the memory of a region comes from.
#[derive(Clone, Copy)]
pub enum LmrMemory<'a> {
    /// `length` bytes from `offset` of a buffer, which the region keeps alive; the base address is the buffer's virtual address there.
    Buffer {
        /// The buffer.
        buffer: &'a Arc<DmaBuffer>,
        /// Where the region begins.
        offset: usize,
    },
    /// An I/O buffer list (privileged consumers only).
    Iobl {
        /// The base address; ignored with relative addressing.
        addr: usize,
        /// The list.
        iobl: &'a Iobl<'a>,
    },
}

/// A failed [`Ia::evd_wait`]: why, and (after a timeout) how many events are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitError {
    /// Why.
    pub error: Error,
    /// Events queued; defined after [`Error::TimeoutExpired`].
    pub nmore: usize,
}

impl From<WaitError> for Error {
    fn from(failure: WaitError) -> Error {
        failure.error
    }
}

impl PartialEq<Error> for WaitError {
    fn eq(&self, other: &Error) -> bool {
        self.error == *other
    }
}

/// An interface adapter. Cloning it makes another name for the same.
#[derive(Clone)]
#[doc(alias = "it_ia_handle_t")]
pub struct Ia;

#[expect(unused_variables, reason = "signatures first")]
impl Ia {
    /// The IA's handle.
    pub fn handle(&self) -> IaHandle {
        IaHandle::NULL
    }
    #[doc(alias = "it_ia_query")]
    /// it_ia_query
    pub fn ia_query(&self) -> Result<IaInfo> {
        Err(NOT_YET)
    }
    #[doc(alias = "it_ia_free")]
    /// it_ia_free
    pub fn ia_free(&self) -> Result<()> {
        Err(NOT_YET)
    }
    /// Diagnostics: how many objects there are.
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts::default()
    }
    /// it_get_handle_type
    pub fn get_handle_type(&self, handle: impl Into<Handle>) -> Result<HandleType> {
        Err(NOT_YET)
    }
    /// it_get_consumer_context
    pub fn get_consumer_context(&self, handle: impl Into<Handle>) -> Result<u64> {
        Err(NOT_YET)
    }
    /// it_set_consumer_context
    pub fn set_consumer_context(&self, handle: impl Into<Handle>, context: u64) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_pz_create
    pub fn pz_create(&self) -> Result<PzHandle> {
        Err(NOT_YET)
    }
    /// it_pz_query
    pub fn pz_query(&self, pz: PzHandle, mask: PzParamMask) -> Result<PzParam> {
        Err(NOT_YET)
    }
    /// it_pz_free
    pub fn pz_free(&self, pz: PzHandle) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_lmr_create over owned memory or a list.
    #[expect(clippy::too_many_arguments, reason = "the page's")]
    pub fn lmr_create(
        &self,
        pz: PzHandle,
        memory: LmrMemory<'_>,
        length: u64,
        addr_mode: AddrMode,
        privs: MemPriv,
        flags: LmrFlags,
        shared_id: u32,
    ) -> Result<(LmrHandle, Option<RmrContext>)> {
        Err(NOT_YET)
    }
    /// it_lmr_create over any memory.
    ///
    /// # Safety
    ///
    /// The memory stays valid until the region is freed.
    #[expect(unsafe_code, reason = "registers raw memory")]
    #[expect(clippy::too_many_arguments, reason = "the page's")]
    pub unsafe fn lmr_create_raw(
        &self,
        pz: PzHandle,
        addr: usize,
        length: u64,
        addr_mode: AddrMode,
        privs: MemPriv,
        flags: LmrFlags,
        shared_id: u32,
    ) -> Result<(LmrHandle, Option<RmrContext>)> {
        Err(NOT_YET)
    }
    /// it_lmr_create_unlinked
    pub fn lmr_create_unlinked(
        &self,
        pz: PzHandle,
        iobl_num_elts: usize,
        flags: LmrFlags,
        shared_id: u32,
    ) -> Result<LmrHandle> {
        Err(NOT_YET)
    }
    /// it_lmr_query
    pub fn lmr_query(&self, lmr: LmrHandle, mask: LmrParamMask) -> Result<LmrParam> {
        Err(NOT_YET)
    }
    /// it_lmr_free
    pub fn lmr_free(&self, lmr: LmrHandle) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_lmr_link
    #[expect(clippy::too_many_arguments, reason = "the page's")]
    pub fn lmr_link(
        &self,
        lmr: LmrHandle,
        addr: usize,
        iobl: &Iobl<'_>,
        length: u64,
        addr_mode: AddrMode,
        privs: MemPriv,
        ep: EpHandle,
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<Option<RmrContext>> {
        Err(NOT_YET)
    }
    /// it_lmr_unlink
    pub fn lmr_unlink(&self, lmr: LmrHandle, ep: EpHandle, cookie: u64, dto_flags: DtoFlags) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_mem_map; `aspace_id` 0 is the kernel's address space, the only one.
    pub fn mem_map(&self, vaddr: usize, aspace_id: u64, len: usize) -> Result<(IoAddr, usize)> {
        Err(NOT_YET)
    }
    /// it_mem_unmap
    pub fn mem_unmap(&self, io_addr: IoAddr, mapped_len: usize) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_evd_create
    pub fn evd_create(
        &self,
        event_number: EventType,
        evd_flag: EvdFlags,
        sevd_queue_size: usize,
        sevd_threshold: usize,
        aevd: EvdHandle,
    ) -> Result<EvdHandle> {
        Err(NOT_YET)
    }
    /// it_evd_dequeue
    pub fn evd_dequeue(&self, evd: EvdHandle) -> Result<Event> {
        Err(NOT_YET)
    }
    /// Many at once, of a dispatcher of completions; `Ok(n)` with n >= 1, or [`Error::QueueEmpty`].
    pub fn evd_dequeue_n(&self, evd: EvdHandle, into: &mut [DtoCompletion]) -> Result<usize> {
        Err(NOT_YET)
    }
    /// it_evd_wait: timeout in microseconds; the event and `nmore`.
    pub fn evd_wait(&self, evd: EvdHandle, timeout: u64) -> core::result::Result<(Event, usize), WaitError> {
        Err(WaitError { error: NOT_YET, nmore: 0 })
    }
    /// it_evd_query
    pub fn evd_query(&self, evd: EvdHandle, mask: EvdParamMask) -> Result<EvdParam> {
        Err(NOT_YET)
    }
    /// it_evd_modify
    pub fn evd_modify(&self, evd: EvdHandle, mask: EvdParamMask, params: &EvdParam) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_evd_free
    pub fn evd_free(&self, evd: EvdHandle) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_evd_post_se
    pub fn evd_post_se(&self, evd: EvdHandle, data: usize) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_evd_callback_attach
    pub fn evd_callback_attach(&self, evd: EvdHandle, callback: EvdCallback) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_evd_callback_detach
    pub fn evd_callback_detach(&self, evd: EvdHandle) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_ep_rc_create
    pub fn ep_rc_create(
        &self,
        pz: PzHandle,
        request_sevd: EvdHandle,
        recv_sevd: EvdHandle,
        connect_sevd: EvdHandle,
        flags: EpFlags,
        ep_attr: &EpAttributes,
    ) -> Result<EpHandle> {
        Err(NOT_YET)
    }
    /// it_ep_query
    pub fn ep_query(&self, ep: EpHandle, mask: EpParamMask) -> Result<EpParam> {
        Err(NOT_YET)
    }
    /// it_ep_modify
    pub fn ep_modify(&self, ep: EpHandle, mask: EpParamMask, ep_attr: &EpAttributes) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_ep_free
    pub fn ep_free(&self, ep: EpHandle) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_ep_reset
    pub fn ep_reset(&self, ep: EpHandle) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_ep_connect
    pub fn ep_connect(
        &self,
        ep: EpHandle,
        path: &Path,
        conn_attr: Option<&ConnAttributes>,
        connect_qual: &ConnQual,
        cn_est_flags: CnEstFlags,
        private_data: &[u8],
    ) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_ep_accept
    pub fn ep_accept(&self, ep: EpHandle, cn_est_id: CnEstId, private_data: &[u8]) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_reject
    pub fn reject(&self, cn_est_id: CnEstId, private_data: &[u8]) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_ep_disconnect
    pub fn ep_disconnect(&self, ep: EpHandle, private_data: &[u8]) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_listen_create; `conn_qual` is read with [`ListenFlags::CONN_QUAL_INPUT`], else ignored; the qualifier in use is returned.
    pub fn listen_create(
        &self,
        spigot_id: usize,
        connect_evd: EvdHandle,
        flags: ListenFlags,
        conn_qual: Option<&ConnQual>,
    ) -> Result<(ListenHandle, ConnQual)> {
        Err(NOT_YET)
    }
    /// it_listen_query
    pub fn listen_query(&self, listen: ListenHandle, mask: ListenParamMask) -> Result<ListenParam> {
        Err(NOT_YET)
    }
    /// it_listen_free
    pub fn listen_free(&self, listen: ListenHandle) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_get_pathinfo: at most `num_paths` paths, and how many there are.
    pub fn get_pathinfo(
        &self,
        spigot_id: usize,
        net_addr: &NetAddr,
        num_paths: usize,
    ) -> Result<(Vec<Path>, usize)> {
        Err(NOT_YET)
    }
    /// it_post_send
    pub fn post_send(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_post_recv: to an endpoint or a shared receive queue.
    pub fn post_recv(
        &self,
        handle: impl Into<Handle>,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_post_rdma_write
    pub fn post_rdma_write(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        Err(NOT_YET)
    }
    /// it_post_rdma_read
    pub fn post_rdma_read(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        Err(NOT_YET)
    }
}
