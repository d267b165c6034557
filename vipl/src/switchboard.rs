//! The connection requests that arrive at an agent, for all NICs that are opened on it.
//!
//! Discriminators are common to all consumers of a NIC, so one listening point serves them all: it
//! is for the services of all discriminators. What another face of the agent listens to by name
//! does not come here. A request waits here until a VipConnectWait matches it, or until the client
//! gives up; then it is passed to the client of the waiting NIC.
//!
//! Locks: `requests` (spins, leaf).

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};

use kernel_agent::wire::{self, Gid, ReadDepths, ServiceId};
use kernel_agent::{
    Agent, AsyncEvent, Client, CmEvent, CmEventKind, ConnectionId, Death, QpType, Transports, Upcalls,
};
use platform::sync::{Mutex, Once};
use platform::{Instant, Platform, Signal, heap};
use rdma::via::{Digest, Request, SERVICES};
use rdma::wait::until;

use crate::address::NetAddress;
use crate::attributes::ViAttributes;
use crate::error::{Error, Result};

/// The most requests that wait; half of them from one host. A further one is forgotten: its client
/// asks again.
const MOST: usize = 1024;

/// A client's request.
pub(crate) struct Waiting {
    pub(crate) connection: ConnectionId,
    /// The GID of ours that the client asked.
    local: Gid,
    /// The client's GID.
    remote: Gid,
    pub(crate) depths: ReadDepths,
    pub(crate) request: Request,
}

impl Waiting {
    /// The client's address.
    pub(crate) fn address(&self) -> NetAddress {
        NetAddress::of_gid(self.remote, self.request.own)
    }

    /// The attributes of the client's virtual interface.
    pub(crate) fn attributes(&self) -> ViAttributes {
        ViAttributes::of_remote(&self.request.offer)
    }
}

/// Which requests a VipConnectWait takes.
pub(crate) struct Filter {
    /// The address that the client asks for; `None`: any.
    pub(crate) host: Option<Gid>,
    /// The discriminator that it asks for; `None`: any.
    pub(crate) discriminator: Option<Digest>,
    /// The client's address, whose host and discriminator count if they are not empty.
    pub(crate) from: Option<NetAddress>,
}

impl Filter {
    fn takes(&self, waiting: &Waiting) -> bool {
        let from = self.from.as_ref().is_none_or(|from| {
            from.gid().is_none_or(|host| host == waiting.remote)
                && (from.discriminator().is_empty() || from.discriminator() == &*waiting.request.own)
        });
        from && self.host.is_none_or(|host| host == waiting.local)
            && self.discriminator.is_none_or(|asked| asked == waiting.request.asked)
    }
}

pub(crate) struct Switchboard {
    agent: Arc<Agent>,
    client: Once<Arc<Client>>,
    requests: Mutex<VecDeque<Waiting>>,
    /// Raised for each request, and when a waiter has to look at its NIC's state.
    signal: Signal,
}

impl Switchboard {
    /// Listens at an agent.
    pub(crate) fn begin(platform: &Arc<dyn Platform>, agent: &Arc<Agent>) -> Result<Arc<Switchboard>> {
        let switchboard = Switchboard {
            agent: agent.clone(),
            client: Once::new(),
            requests: Mutex::new(VecDeque::new()),
            signal: Signal::new(platform.clone()),
        };
        let switchboard = heap::arc(switchboard).map_err(|_| Error::ErrorResource)?;
        let shared: Arc<dyn Upcalls> = switchboard.clone();
        let upcalls: Weak<dyn Upcalls> = Arc::downgrade(&shared);
        let client = agent.attach(upcalls).map_err(|_| Error::ErrorResource)?;
        switchboard.client.call_once(|| client.clone());
        if client.listen_to_range(SERVICES, Transports::RC | Transports::UC, 0).is_err() {
            client.detach();
            return Err(Error::ErrorResource);
        }
        Ok(switchboard)
    }

    /// Ends listening. Requests that wait are forgotten.
    pub(crate) fn end(&self) {
        if let Some(client) = self.client.get() {
            client.detach();
        }
        self.requests.lock().clear();
    }

    /// The agent.
    pub(crate) fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    /// Wakes all waiters.
    pub(crate) fn wake(&self) {
        self.signal.raise();
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.requests.lock().len()
    }

    /// Takes the oldest request that passes a filter; waits for one until the deadline, as long as
    /// `goes_on` returns no error.
    pub(crate) fn take(
        &self,
        filter: &Filter,
        deadline: Option<Instant>,
        goes_on: impl Fn() -> Result<()>,
    ) -> Result<Waiting> {
        let look = || goes_on().map(|()| self.find(filter)).transpose();
        until(&self.signal, deadline, look).unwrap_or(Err(Error::Timeout))
    }

    fn find(&self, filter: &Filter) -> Option<Waiting> {
        let mut requests = self.requests.lock();
        let at = requests.iter().position(|waiting| filter.takes(waiting))?;
        requests.remove(at)
    }

    /// Passes a request that was taken to the client of a NIC. False if the client that asks has
    /// given up.
    pub(crate) fn pass(&self, connection: ConnectionId, to: &Arc<Client>, context: u64) -> Result<bool> {
        use kernel_agent::Error as Agent;
        let Some(client) = self.client.get() else { return Ok(false) };
        match client.transfer(connection, to, context) {
            Ok(()) => Ok(true),
            Err(Agent::ConnectionState | Agent::Gone) => Ok(false),
            Err(_) => Err(Error::ErrorResource),
        }
    }

    /// Puts a request back that could not be passed on.
    pub(crate) fn put_back(&self, waiting: Waiting) {
        let mut requests = self.requests.lock();
        // It was there a moment ago, so the bound holds but for those of that moment.
        if requests.try_reserve(1).is_ok() {
            requests.push_front(waiting);
        }
        drop(requests);
        self.signal.raise();
    }

    /// A client asks. In the dispatcher thread.
    fn arrived(
        &self,
        event: &CmEvent<'_>,
        (service, transport): (ServiceId, QpType),
        path: &wire::Path,
        depths: ReadDepths,
    ) {
        let Some(client) = self.client.get() else { return };
        let unreliable = transport == QpType::Uc;
        let request = Request::decode(event.private_data, service)
            .filter(|request| request.offer.level.is_reliable() != unreliable);
        let Some(request) = request else {
            // Fails only if the client gave up.
            let _ = client.reject(event.connection, &[]);
            return;
        };
        let (connection, local, remote) = (event.connection, path.local_gid, path.remote_gid);
        {
            let mut requests = self.requests.lock();
            let of_host = requests.iter().filter(|waiting| waiting.remote == remote).count();
            if requests.len() < MOST && of_host < MOST / 2 && requests.try_reserve(1).is_ok() {
                requests.push_back(Waiting { connection, local, remote, depths, request });
                drop(requests);
                self.signal.raise();
                return;
            }
        }
        let _ = client.discard(connection);
    }
}

impl Upcalls for Switchboard {
    fn completion(&self, _cq_context: u64) {}

    fn asynchronous(&self, _event: AsyncEvent) {}

    fn connection(&self, event: CmEvent<'_>) {
        match event.kind {
            CmEventKind::Request { service, qp_type, path, depths, .. } => {
                self.arrived(&event, (service, qp_type), &path, depths)
            }
            _ => self.requests.lock().retain(|waiting| waiting.connection != event.connection),
        }
    }

    fn catastrophic(&self, _death: Death) {
        self.requests.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::PtagHandle;
    use crate::scene::Scene;

    /// The digest of a discriminator.
    fn digest(name: &[u8]) -> Digest {
        NetAddress::new(&[], name).unwrap().digest()
    }

    /// The request of a client for this discriminator.
    fn request(asked: &[u8]) -> Request {
        let own = NetAddress::new(&[2; 16], b"client").unwrap().own();
        Request { offer: ViAttributes::new(PtagHandle::NULL).offer(), own, asked: digest(asked) }
    }

    fn waiting(asked: &[u8]) -> Waiting {
        Waiting {
            connection: ConnectionId(1),
            local: Gid([1; 16]),
            remote: Gid([2; 16]),
            depths: ReadDepths::default(),
            request: request(asked),
        }
    }

    #[test]
    fn a_filter_takes_what_it_names_and_all_that_it_leaves_open() {
        let any = || Filter { host: None, discriminator: None, from: None };
        let request = waiting(b"server");
        assert_eq!(request.address(), NetAddress::new(&[2; 16], b"client").unwrap());
        assert!(any().takes(&request) && any().takes(&waiting(b"")));
        let host = |gid| Filter { host: Some(Gid(gid)), ..any() };
        assert!(host([1; 16]).takes(&request) && !host([3; 16]).takes(&request));
        let named = |name: &[u8]| Filter { discriminator: Some(digest(name)), ..any() };
        assert!(named(b"server").takes(&request));
        assert!(!named(b"serve").takes(&request) && !named(b"").takes(&request));
        let from = |host: &[u8], name: &[u8]| Filter { from: NetAddress::new(host, name).ok(), ..any() };
        assert!(from(&[2; 16], b"client").takes(&request) && from(&[], b"client").takes(&request));
        assert!(from(&[2; 16], b"").takes(&request));
        assert!(!from(&[1; 16], b"client").takes(&request) && !from(&[2; 16], b"other").takes(&request));
    }

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn half_of_the_requests_that_wait_may_be_of_one_host() {
        let scene = Scene::new();
        let joined = scene.core().joined().unwrap();
        let board = joined.switchboard();
        let mut id = 1 << 40;
        let asked = request(b"server");
        let private_data = asked.encode();
        let mut asks_for = |service, host: u8, transport| {
            id += 1;
            let event = CmEvent {
                connection: ConnectionId(id),
                context: 0,
                kind: CmEventKind::Unreachable,
                information: &[],
                private_data: &private_data,
            };
            let path = wire::Path::new(Gid([1; 16]), Gid([host; 16]));
            board.arrived(&event, (service, transport), &path, ReadDepths::default());
            board.waiting()
        };
        // The virtual interface of the client is on the unreliable level.
        assert_eq!(asks_for(asked.asked.service(), 2, QpType::Rc), 0);
        assert_eq!(asks_for(digest(b"other").service(), 2, QpType::Uc), 0, "the service of another name");
        let mut asks = |host, transport| asks_for(asked.asked.service(), host, transport);
        for n in 1..=MOST / 2 {
            assert_eq!(asks(2, QpType::Uc), n);
        }
        assert_eq!(asks(2, QpType::Uc), MOST / 2);
        for host in [3, 4] {
            for _ in 0..MOST / 4 {
                asks(host, QpType::Uc);
            }
        }
        assert_eq!([2, 3, 5].map(|host| asks(host, QpType::Uc)), [MOST; 3], "no host has room");
        // The second client, the first one that waits, gives up.
        let connection = ConnectionId((1 << 40) + 3);
        let (context, kind) = (0, CmEventKind::Withdrawn);
        board.connection(CmEvent { connection, context, kind, information: &[], private_data: &[] });
        assert_eq!(board.waiting(), MOST - 1);
        board.catastrophic(Death::Closed);
        assert_eq!(board.waiting(), 0);
    }
}
