//! Explicit ends, which report what a drop cannot.
//!
//! Whatever is dropped ends, in any order. `close` is for who wants to know how: whether the device
//! is dead, so that memory is kept from the platform, or whether something still uses what was to
//! end. It ends in that case as well, when the last user does.
//!
//! Where the end has to wait for the peer or the device, `close` returns a future of it.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::datagram::DatagramEndpoint;
use crate::dropped::{Awaited, Until};
use crate::endpoint::Endpoint;
use crate::error::CloseError;
use crate::listener::Listener;
use crate::memory::{Domain, Region};
use crate::nic::{Inner as NicInner, Nic};
use crate::queue::Queue;
use crate::services::{DatagramListener, DatagramService};
use crate::shared::SharedReceives;

impl NicInner {
    /// The result of an end that the agent carried out. If the device is dead, ends succeed in the
    /// agent, which keeps the memory from the platform.
    fn closed(&self, ended: Result<(), kernel_agent::Error>) -> Result<(), CloseError> {
        self.ended().map_or(Ok(()), Err::<(), CloseError>)?;
        Ok(ended?)
    }
}

impl Nic {
    /// Ends the opening. It stays open as long as something that was made of it is left.
    pub fn close(self) -> Result<(), CloseError> {
        let opening = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        opening.inner().closed(Ok(()))
    }
}

impl Domain {
    /// Ends the domain, of which no region and no endpoint may be left. Blocks for the device.
    pub fn close(self) -> Result<(), CloseError> {
        let domain = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        let pd = Arc::into_inner(domain.pd).ok_or(CloseError::InUse)?;
        domain.nic.inner().closed(pd.destroy())
    }
}

impl Queue {
    /// Ends the queue, which no endpoint may use any more. Blocks for the device.
    pub fn close(self) -> Result<(), CloseError> {
        let owned = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        owned.nic.inner().closed(owned.end())
    }
}

impl SharedReceives {
    /// Ends the receives, which no endpoint and no message may use any more. Blocks for the device.
    pub fn close(self) -> Result<(), CloseError> {
        let domain = self.domain().clone();
        let ended = self.end().ok_or(CloseError::InUse)?;
        domain.nic().inner().closed(ended)
    }
}

impl Listener {
    /// Ends the listener: requests that wait are rejected.
    pub fn close(self) -> Result<(), CloseError> {
        let nic = self.nic.clone();
        nic.inner().closed(self.end())
    }
}

impl DatagramService {
    /// Ends the service.
    pub fn close(self) -> Result<(), CloseError> {
        let (nic, ended) = self.end();
        nic.inner().closed(ended)
    }
}

impl DatagramListener {
    /// Ends the listener: peers whose requests wait are told that the service has no endpoint.
    pub fn close(self) -> Result<(), CloseError> {
        let (nic, ended) = self.end();
        nic.inner().closed(ended)
    }
}

impl DatagramEndpoint {
    /// Ends the endpoint: what is outstanding ends with
    /// [`RequestError::Flushed`](crate::RequestError::Flushed). Blocks for the device.
    pub fn close(self) -> Result<(), CloseError> {
        self.inner.nic().closed(self.inner.close())
    }
}

/// An endpoint whose connection ends. It is a future of the end; [`EndpointClosing::wait`] blocks
/// instead. Dropping it ends the endpoint without waiting for the peer.
#[must_use = "the endpoint is closed, and what went wrong is known, only when this has ended"]
pub struct EndpointClosing(Option<Endpoint>);

impl Endpoint {
    /// Ends the endpoint: disconnects, waits until the peer knows it, or does not answer, and frees
    /// what the endpoint had. What is outstanding ends with
    /// [`RequestError::Flushed`](crate::RequestError::Flushed).
    pub fn close(self) -> EndpointClosing {
        self.disconnect();
        EndpointClosing(Some(self))
    }

    fn end(self) -> Result<(), CloseError> {
        self.inner.nic().closed(self.inner.close())
    }
}

impl EndpointClosing {
    /// Blocks until the endpoint has ended.
    pub fn wait(mut self) -> Result<(), CloseError> {
        let Some(endpoint) = self.0.take() else { return Ok(()) };
        // Without a deadline the wait does not time out; the agent's own timer ends the connection.
        let _ = endpoint.wait_closed(None);
        endpoint.end()
    }
}

impl Future for EndpointClosing {
    type Output = Result<(), CloseError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let over = self.0.as_ref().is_none_or(|endpoint| endpoint.poll_closed(context).is_ready());
        match self.0.take_if(|_| over) {
            Some(endpoint) => Poll::Ready(endpoint.end()),
            None if over => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }
}

/// A region that ends when its requests have. It is a future of the end; [`RegionClosing::wait`]
/// blocks instead. Dropping it is as if the region had been dropped.
#[must_use = "the region is closed, and what went wrong is known, only when this has ended"]
pub struct RegionClosing {
    region: Region,
    /// None if there was no memory for the list of its requests.
    until: Option<Awaited>,
}

impl Region {
    /// Ends the region when the requests that name it have ended; then it is deregistered, and its
    /// memory released. Completions that nobody has polled when the queue is full hold that up.
    pub fn close(self) -> RegionClosing {
        self.domain().nic().inner().dropped.closing(true);
        let until = self.until().map(Until::begin);
        RegionClosing { region: self, until }
    }
}

impl RegionClosing {
    fn nic(&self) -> &Arc<NicInner> {
        self.region.domain().nic().inner()
    }

    /// Takes what has completed, and looks whether the region can end.
    fn look(&mut self) -> Option<Result<(), CloseError>> {
        let Some(until) = &self.until else { return Some(Err(CloseError::OutOfMemory)) };
        until.drain();
        if !until.is_over() && !self.nic().is_dead() {
            return None;
        }
        let ended = self.region.end()?;
        Some(self.nic().closed(ended))
    }

    /// Has whatever completes next wake who waits, and looks again, since what was complete before
    /// is not announced.
    fn look_again(&mut self) -> Option<Result<(), CloseError>> {
        self.until.iter().for_each(|until| until.arm());
        self.look()
    }

    /// Blocks until the region has ended.
    pub fn wait(mut self) -> Result<(), CloseError> {
        let nic = self.nic().clone();
        loop {
            // Without a deadline the wait does not time out.
            let waited = nic.dropped.closers.wait_for(None, || self.look().or_else(|| self.look_again()));
            if let Ok(ended) = waited {
                return ended;
            }
        }
    }
}

impl Future for RegionClosing {
    type Output = Result<(), CloseError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(ended) = self.look() {
            return Poll::Ready(ended);
        }
        self.nic().dropped.closers.add(context.waker().clone());
        self.look_again().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for RegionClosing {
    fn drop(&mut self) {
        self.nic().dropped.closing(false);
    }
}
