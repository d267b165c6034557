//! Listening points of the agent, which outlive the identifiers that listen by a moment.
//!
//! A server may end a listening identifier, tell its client, and listen at the port anew (perftest
//! with `-R` does, and its client does not survive a rejection). The client's request can come
//! first, since the client's process does not wait for the server's. So a point stays for
//! [`GRACE`] when its identifier ends, vacant: the device drops requests that come to it, and the
//! peers repeat them. The next identifier that listens for the service takes the point over; if
//! none has, the repetitions are rejected as if there had been no point.
//!
//! Datagram services: a server that accepted a connection at a port may offer the datagram service
//! of the same port next. So a point for connections leaves one of those, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel_agent::wire::ServiceId;
use kernel_agent::{ListenId, Transports};

use super::devices::Device;
use super::identifier::{self, Inner};
use crate::errno::{self, Errno};

/// For how long requests to a vacant point are dropped: peers repeat them after a second at most.
const GRACE: Duration = Duration::from_secs(1);
/// Vacant points of a device at most; the oldest one goes for another.
const MOST_VACANT: usize = 16;

/// A listening point of an identifier.
pub(crate) struct Point {
    device: Arc<Device>,
    port: u16,
    datagrams: bool,
    listen: ListenId,
    /// By which [`Names`](super::devices::Names) knows who listens.
    context: u64,
}

/// A point that no identifier has.
struct Vacant {
    service: ServiceId,
    listen: ListenId,
    context: u64,
    until: Instant,
}

/// The vacant points of a device, oldest first.
#[derive(Default)]
pub(crate) struct VacantPoints(VecDeque<Vacant>);

impl VacantPoints {
    fn take(&mut self, is: impl Fn(&Vacant) -> bool) -> Option<Vacant> {
        let place = self.0.iter().position(is)?;
        self.0.remove(place)
    }

    /// Adds a point. Returns those that have to end.
    fn put(&mut self, point: Vacant, now: Instant) -> Vec<Vacant> {
        self.0.push_back(point);
        let mut ended = Vec::new();
        while self.0.len() > MOST_VACANT || self.0.front().is_some_and(|oldest| oldest.until <= now) {
            ended.extend(self.0.pop_front());
        }
        ended
    }
}

/// The service of a port.
pub(crate) fn service(datagrams: bool, port: u16) -> ServiceId {
    ServiceId::ip_cm(if datagrams { ServiceId::UDP } else { ServiceId::TCP }, port)
}

fn transports(datagrams: bool) -> Transports {
    if datagrams { Transports::empty() } else { Transports::RC }
}

impl Point {
    /// Listens for an identifier.
    pub(crate) fn begin(
        device: Arc<Device>,
        port: u16,
        datagrams: bool,
        inner: &Arc<Inner>,
    ) -> Result<Point, Errno> {
        let service = service(datagrams, port);
        let (context, taken) = {
            let mut names = device.names();
            let vacant = names.vacant.take(|point| point.service == service);
            let context = vacant.as_ref().map_or(inner.number, |point| point.context);
            // A request may come at once.
            names.numbers.insert(context, inner.clone());
            (context, vacant.map(|point| point.listen))
        };
        let listen = match taken {
            Some(listen) => Ok(listen),
            None => device
                .client()
                .and_then(|client| client.listen(service, transports(datagrams), context).map_err(errno::of)),
        };
        match listen {
            Ok(listen) => Ok(Point { device, port, datagrams, listen, context }),
            Err(error) => {
                device.names().numbers.remove(&context);
                Err(error)
            }
        }
    }

    /// The identifier listens no more.
    pub(crate) fn end(self) {
        let Point { device, port, datagrams, listen, context } = self;
        let now = Instant::now();
        let vacant = |datagrams, listen, context| Vacant {
            service: service(datagrams, port),
            listen,
            context,
            until: now + GRACE,
        };
        device.vacate(vacant(datagrams, listen, context), now);
        if !datagrams && let Ok(client) = device.client() {
            let context = identifier::next_number();
            // Fails if somebody listens there.
            if let Ok(listen) = client.listen(service(true, port), transports(true), context) {
                device.vacate(vacant(true, listen, context), now);
            }
        }
    }
}

impl Device {
    fn vacate(&self, point: Vacant, now: Instant) {
        let ended = {
            let mut names = self.names();
            names.numbers.remove(&point.context);
            names.vacant.put(point, now)
        };
        for point in ended {
            let _ = self.client().map(|client| client.stop_listening(point.listen));
        }
    }

    /// Whether a request that came for this context, and that nobody takes, is to be rejected
    /// because nobody listens any more. Otherwise it is dropped.
    pub(crate) fn nobody_listens(&self, context: u64) -> bool {
        let now = Instant::now();
        let over = self.names().vacant.take(|point| point.context == context && point.until <= now);
        let Some(point) = over else { return false };
        let _ = self.client().map(|client| client.stop_listening(point.listen));
        true
    }
}
