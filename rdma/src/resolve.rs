//! How an endpoint for datagrams is found by its service (InfiniBand's SIDR): who asks, and the
//! table of what is asked and offered.
//!
//! Locks: `Resolution::state` (spins, leaf).

use alloc::sync::{Arc, Weak};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use kernel_agent::{
    Death, ResolutionEvent, ResolutionEventKind, ResolutionId, ResolveParams, datagram_address,
};
use platform::heap;
use platform::sync::Mutex;
use roce::cm::sidr::Status;
use roce::{QKey, Qpn, TimeoutCode};

use crate::address::{Address, Service};
use crate::datagram::Destination;
use crate::error::{ResolveError, TimedOut};
use crate::nic::{Inner as NicInner, Nic, ResolutionHandle, ServiceHandle};
use crate::numbers::Number;
use crate::private_data::PrivateData;
use crate::services::{Offered, Waiting, answer, nothing};
use crate::waiters::Waiters;
use crate::{OutOfResources, Table};

/// How long a request waits for its answer before it is sent again, and how often that is done:
/// together about ten seconds.
const ROUND: Duration = Duration::from_secs(1);
const REPETITIONS: u8 = 9;
/// The most requests at a time of an opening; the agent has no more.
const MAX_REQUESTS: u32 = 64;
/// The most services that an opening offers.
const MAX_SERVICES: u32 = 1024;

/// What an opening asks, and what it offers.
pub(crate) struct Services {
    asked: Table<ResolutionHandle, Weak<Resolution>>,
    pub(crate) offered: Table<ServiceHandle, Offered>,
}

impl Services {
    pub(crate) fn new(number: &Number) -> Result<Services, OutOfResources> {
        Ok(Services {
            asked: Table::new(number, MAX_REQUESTS, 0)?,
            offered: Table::new(number, MAX_SERVICES, 0)?,
        })
    }

    /// No answer will come any more.
    pub(crate) fn end(&self, death: Death) {
        for offered in self.offered.all() {
            offered.wake();
        }
        for asked in self.asked.all().filter_map(|asked| asked.upgrade()) {
            asked.end(Err(death.into()));
        }
    }

    /// An event of service resolution. In the dispatcher thread.
    pub(crate) fn event(&self, nic: &NicInner, event: &ResolutionEvent<'_>) {
        match event.kind {
            ResolutionEventKind::Request { request, remote_gid, .. } => {
                let offered = self.offered.get(ServiceHandle::from_raw(event.context));
                match offered {
                    Some(offered) => {
                        let from = Address::of(roce::Gid(remote_gid));
                        offered.asked(
                            nic,
                            Waiting { request, from, data: PrivateData::new(event.private_data) },
                        );
                    }
                    // It is a listener's for connections, or has gone meanwhile.
                    None => answer(nic, request, &nothing(Status::ServiceIdNotSupported)),
                }
            }
            ResolutionEventKind::Reply { status, qpn, qkey, redirection, .. } => {
                let Some(asked) = self.asked(event) else { return };
                asked.end(match status {
                    Status::Valid => Ok(Resolved {
                        destination: Destination {
                            vector: datagram_address(
                                &asked.path,
                                asked.source,
                                Qpn::new(qpn).unwrap_or_default(),
                                QKey(qkey),
                            ),
                            opening: nic.opening_number(),
                        },
                        data: PrivateData::new(event.private_data),
                    }),
                    Status::ServiceIdNotSupported => Err(ResolveError::NoService),
                    Status::NoQp => Err(ResolveError::NoEndpoint),
                    Status::Rejected | Status::VersionNotSupported => Err(ResolveError::Rejected),
                    Status::Redirected => Err(redirection
                        .map_or(ResolveError::Rejected, |to| ResolveError::Redirected(Address::of(to.gid)))),
                });
            }
            ResolutionEventKind::TimedOut { .. } => {
                if let Some(asked) = self.asked(event) {
                    asked.end(Err(ResolveError::TimedOut));
                }
            }
        }
    }

    fn asked(&self, event: &ResolutionEvent<'_>) -> Option<Arc<Resolution>> {
        self.asked.get(ResolutionHandle::from_raw(event.context))?.upgrade()
    }
}

/// What a peer answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Where datagrams for the service go.
    pub destination: Destination,
    /// What the peer sent along.
    pub data: PrivateData,
}

type Outcome = Result<Resolved, ResolveError>;

struct Resolution {
    handle: u64,
    path: roce::Path,
    /// The index of the path's local address.
    source: u8,
    outcome: Mutex<Option<Outcome>>,
    waiters: Waiters,
}

impl Resolution {
    fn end(&self, outcome: Outcome) {
        self.outcome.lock().get_or_insert(outcome);
        self.waiters.wake();
    }
}

/// The consumer's part of a request for a service. Its end is the request's.
struct Asked {
    inner: Arc<Resolution>,
    id: ResolutionId,
    nic: Nic,
}

impl Asked {
    fn new(opening: &Nic, address: Address, service: Service, data: &[u8]) -> Result<Asked, ResolveError> {
        let nic = opening.inner();
        nic.transport.has_datagrams().map_err(|_| ResolveError::Unsupported)?;
        let (path, source) = nic.path(address)?;
        let client = nic.client().map_err(|_| ResolveError::DeviceDead)?;
        let out_of_memory = |_| ResolveError::OutOfMemory;
        let place = nic.services.asked.reserve().map_err(|_| ResolveError::NoResources)?;
        heap::room_for_arc::<(Resolution, Weak<Resolution>)>().map_err(out_of_memory)?;
        let handle = place.handle().as_raw();
        let params = ResolveParams {
            service: service.of_datagrams(),
            local_gid: path.local_gid,
            remote_gid: path.remote_gid,
            ip_source_port: 0,
            response_timeout: TimeoutCode::at_least(ROUND),
            retries: REPETITIONS,
            private_data: data,
        };
        let (id, _) = client.open_resolution(&params, handle)?;
        let waiters = Waiters::new(nic.agent().platform());
        let inner = Arc::new(Resolution { handle, path, source, outcome: Mutex::default(), waiters });
        place.fill(Arc::new(Arc::downgrade(&inner)));
        // An early return closes it.
        let asked = Asked { inner, id, nic: opening.clone() };
        client.resolve(id)?;
        Ok(asked)
    }
}

impl Asked {
    fn look(&self) -> Option<Outcome> {
        let outcome = *self.inner.outcome.lock();
        outcome.or_else(|| self.nic.inner().ended().map(Err))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let nic = self.nic.inner();
        nic.services.asked.remove(ResolutionHandle::from_raw(self.inner.handle));
        if let Ok(client) = nic.client() {
            // Fails only if the device is dead.
            let _ = client.close_resolution(self.id);
        }
    }
}

/// A request for a datagram service. It is a future of the answer; [`Resolving::wait`] blocks
/// instead. Dropping it gives the request up.
#[must_use = "the destination is known only when this has ended with success"]
pub struct Resolving(Result<Asked, ResolveError>);

impl Resolving {
    /// Blocks until the peer has answered, or has not done so in time: about ten seconds.
    pub fn wait(self) -> Result<Resolved, ResolveError> {
        // Without a deadline the wait does not time out.
        self.wait_for(None).map_err(|_| ResolveError::TimedOut)?
    }

    /// Blocks until the peer has answered, or the time is over; then this is returned, and the
    /// request goes on.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<Resolved, ResolveError>, Resolving> {
        self.wait_for(Some(timeout)).map_err(|TimedOut| self)
    }

    fn wait_for(&self, timeout: Option<Duration>) -> Result<Outcome, TimedOut> {
        let asked = match &self.0 {
            Ok(asked) => asked,
            Err(error) => return Ok(Err(*error)),
        };
        let deadline = asked.nic.inner().deadline(timeout);
        asked.inner.waiters.wait_for(deadline, || asked.look())
    }
}

impl Future for Resolving {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &self.0 {
            Ok(asked) => asked.inner.waiters.poll(context, || asked.look()),
            Err(error) => Poll::Ready(Err(*error)),
        }
    }
}

impl Nic {
    /// Asks who has this datagram service at a port, for an endpoint there.
    pub fn resolve(&self, address: Address, service: impl Into<Service>) -> Resolving {
        self.resolve_with(address, service, &[])
    }

    /// As [`Nic::resolve`], with a few bytes for the peer: at most 216, or 180 for a port of
    /// rdma-core's connection manager.
    pub fn resolve_with(&self, address: Address, service: impl Into<Service>, data: &[u8]) -> Resolving {
        Resolving(Asked::new(self, address, service.into(), data))
    }
}
