//! Fast regions: memory that peers may access for a while. A request links it, another one, or a
//! message of the peer, ends that. None of these is a command to the device.
//!
//! A link does not borrow the memory: a fast region keeps the buffer of its last link, since the
//! device says nothing when a link ends. If the next link is to another buffer, the former one is
//! kept until that link is known to have been executed: only then is the former link certainly
//! gone. A link that was flushed was not executed, and the former buffer stays as long as the fast
//! region.

use alloc::sync::Arc;

use kernel_agent::{Link, MemoryList, Operation, Posted, Region as AgentRegion, Request, SendFlags, Shadow};
use platform::DmaBuffer;

use crate::completion::{Completion, tag};
use crate::endpoint::{Endpoint, Inner};
use crate::error::{CreateError, PostError};
use crate::memory::{Access, Domain, RemoteMemory, Slice};

/// A region of an endpoint that requests link to memory, so that peers can access that, and unlink.
/// Drop it, or unlink it, to be sure that no peer does any more. A drop blocks for the device.
#[doc(alias = "IBV_WR_REG_MR")]
#[doc(alias = "it_lmr_create_unlinked")]
pub struct FastRegion {
    endpoint: Arc<Inner>,
    /// Keeps the domain, and with it the opening.
    domain: Domain,
    region: Arc<AgentRegion>,
    /// The buffer of the last link, which the device may still have.
    buffer: Option<Arc<DmaBuffer>>,
    /// No request and no message has ended the last link.
    is_linked: bool,
    /// Another buffer, of the link before, and up to where the endpoint had posted then.
    former: Option<(Arc<DmaBuffer>, Posted)>,
}

impl Endpoint {
    /// A fast region that requests of this endpoint link. The endpoint has to be one of a
    /// privileged consumer ([`Builder::privileged`](crate::Builder::privileged)): else its links
    /// fail, and the connection with them.
    ///
    /// Blocks for the device.
    pub fn fast_region(&self) -> Result<FastRegion, CreateError> {
        let domain = self.domain().clone();
        let region = domain.nic().inner().client()?.allocate_region(domain.pd(), 1)?;
        let endpoint = self.inner.clone();
        Ok(FastRegion { endpoint, domain, region, buffer: None, is_linked: false, former: None })
    }
}

impl FastRegion {
    /// Lets peers access a slice with these rights, as soon as earlier requests of the endpoint
    /// have been executed. Returns what a peer needs for it, which is another key at each link:
    /// tell the peer by a later request of the endpoint. An earlier link ends, if nothing has ended
    /// it yet. Does not block.
    ///
    /// Takes room of the endpoint for one request, or for two if there is an earlier link; success
    /// makes no completion. Fails with [`PostError::Full`] also if an earlier link to other memory
    /// may still be in force.
    #[doc(alias = "it_lmr_link")]
    pub fn link(&mut self, slice: Slice<'_>, access: Access) -> Result<RemoteMemory, PostError> {
        let (buffer, offset) = slice.place();
        if slice.segment(&self.domain.0.pd).is_none() || slice.is_empty() {
            return Err(PostError::BadSlice);
        }
        if self.former.as_ref().is_some_and(|(_, posted)| self.endpoint.has_executed(*posted)) {
            self.former = None;
        }
        let is_another = self.buffer.as_ref().is_some_and(|last| !Arc::ptr_eq(last, buffer));
        if is_another && self.former.is_some() {
            return Err(PostError::Full);
        }
        self.unlink()?;
        let (base, length) = ((buffer.addr() + offset) as u64, slice.len() as u64);
        let memory = MemoryList::Contiguous { bus: buffer.bus() + offset as u64, length };
        let link = Link { flags: access.link(), base, memory };
        let shadow = Shadow { cookie: 0, data: tag::LINK };
        let key = self.endpoint.qp.post_link(&self.region, &link, SendFlags::empty(), shadow)?;
        self.is_linked = true;
        if is_another || self.buffer.is_none() {
            let former = self.buffer.replace(buffer.clone());
            self.former = former.map(|buffer| (buffer, self.endpoint.posted()));
        }
        Ok(RemoteMemory::new(base, length, key))
    }

    /// Ends the link, unless it has ended. Requests that are posted later do not wait for it. Takes
    /// room of the endpoint for one request; success makes no completion. Does not block.
    #[doc(alias = "it_lmr_unlink")]
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn unlink(&mut self) -> Result<(), PostError> {
        if !self.is_linked {
            return Ok(());
        }
        let operation = Operation::LocalInvalidate { key: self.region.key(), remote: 0 };
        let shadow = Shadow { cookie: 0, data: tag::LINK };
        self.endpoint.qp.post_plain(&Request { operation, flags: SendFlags::empty(), shadow })?;
        self.is_linked = false;
        Ok(())
    }

    /// Whether the peer's message with this completion has ended the link
    /// ([`Work::send_and_invalidate`](crate::Work::send_and_invalidate)). Then the next link does
    /// not unlink first. Pass it each completion once.
    pub fn is_ended_by(&mut self, completion: &Completion) -> bool {
        self.is_ended_by_key(completion.invalidated())
    }

    /// The same for a started Receive: pass it the key that its outcome names
    /// ([`Done::invalidated`](crate::Done::invalidated)), once.
    pub fn is_ended_by_key(&mut self, invalidated: Option<u32>) -> bool {
        let is_ended = invalidated == Some(self.region.key());
        self.is_linked &= !is_ended;
        is_ended
    }
}

impl Drop for FastRegion {
    fn drop(&mut self) {
        let destroyed = self.region.destroy();
        let former = self.former.take().map(|(buffer, _)| buffer);
        for buffer in self.buffer.take().into_iter().chain(former) {
            self.domain.nic().agent().release(buffer, destroyed);
        }
    }
}
