//! How two endpoints find each other, on one machine or on two, and how an image waits for them.

use core::sync::atomic::AtomicU32;
use core::time::Duration;

use rdma::{
    Address, Builder, ConnectError, Done, Ending, Endpoint, Listener, PostError, Request, RequestError,
    Service,
};

use crate::{Failure, Trying};

/// The service at which one side listens: with iWARP a TCP port.
pub const SERVICE: Service = Service::it_api(4645);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long after a failure the connection's end may be reported.
const REASON: Duration = Duration::from_secs(1);
/// How long until a service that did not listen, or to which no path led, is asked again.
const AGAIN: Duration = Duration::from_millis(20);

/// Connects an endpoint with another one of this machine.
pub fn connect(a: &Endpoint, b: &Endpoint) -> Result<(), Failure> {
    let nic = b.domain().nic();
    let listener = nic.listen(SERVICE).trying("listening")?;
    let connecting = a.connect(nic.address(), SERVICE);
    accept(&listener, b)?;
    connecting.wait().map(drop).trying("connecting")
}

/// Waits for a request, and connects the endpoint by it.
pub fn accept(listener: &Listener, endpoint: &Endpoint) -> Result<(), Failure> {
    let request = listener.wait_timeout(PATIENCE).trying("listening")?;
    let request = request.ok_or_else(|| Failure::new("listening: nobody asks for a connection"))?;
    request.accept(endpoint).wait().map(drop).trying("accepting")
}

/// An endpoint that is connected with the service at an address. The link may be about to come up,
/// and the service to listen: each attempt takes a new endpoint.
pub fn connect_to(endpoints: &Builder<'_>, address: Address) -> Result<Endpoint, Failure> {
    let mut deadline = None;
    loop {
        let endpoint = endpoints.clone().build().trying("an endpoint")?;
        let platform = endpoint.domain().nic().agent().platform().clone();
        let deadline = *deadline.get_or_insert_with(|| platform.now() + PATIENCE);
        match endpoint.connect(address, SERVICE).wait() {
            Ok(_) => return Ok(endpoint),
            Err(error) if is_early(error) && platform.now() < deadline => match error {
                ConnectError::NoPath => log::debug!("no path leads to the other side yet"),
                other => log::debug!("connecting: {other}"),
            },
            Err(error) => return Err(error).trying("connecting"),
        }
        platform.wait(&AtomicU32::new(0), 0, Some(platform.now() + AGAIN));
    }
}

/// Whether the other side may only not be ready yet.
fn is_early(error: ConnectError) -> bool {
    use ConnectError::{NoListener, NoPath, RejectedByAgent, TimedOut};
    matches!(error, NoPath | NoListener | TimedOut | RejectedByAgent(_))
}

/// Waits for the end of a request that was started.
pub fn done(request: Result<Request, PostError>) -> Result<Done, Failure> {
    match request.trying("posting")?.wait_timeout(PATIENCE) {
        Ok(Err(error @ (RequestError::Flushed | RequestError::RetryExceeded))) => {
            Err(error).trying("the connection broke")
        }
        Ok(done) => done.trying("a request"),
        Err(_) => Err(Failure::new("a request does not end")),
    }
}

/// Disconnects, and waits until the peer knows.
pub fn disconnect(endpoint: &Endpoint) -> Result<(), Failure> {
    endpoint.disconnect();
    endpoint.wait_closed(Some(PATIENCE)).trying("waiting for the end of the connection")
}

/// Waits until the peer has disconnected.
pub fn disconnected(endpoint: &Endpoint) -> Result<(), Failure> {
    endpoint.wait_closed(Some(PATIENCE)).trying("waiting for the end of the connection")?;
    match endpoint.ending() {
        Some(Ending::ByPeer) => Ok(()),
        other => Err(Failure::new(format_args!("disconnecting: {other:?}"))),
    }
}

/// After a failure: how the connection has ended, if it has.
pub fn lost(endpoint: &Endpoint) -> Option<&'static str> {
    endpoint.wait_closed(Some(REASON)).ok()?;
    match endpoint.ending()? {
        Ending::Broken => Some("the connection broke"),
        Ending::ByPeer => Some("the peer disconnected"),
        Ending::BySelf => None,
    }
}
