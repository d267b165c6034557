//! What every test is given: two IAs of its own, and helpers that make objects, connections and
//! memory.
//!
//! The runner makes a [`Setup`] for the machine on which the suite runs. Each test gets a
//! [`Fixture`] with two fresh IAs, `a` and `b`, on one NIC or on two NICs that reach each other.
//! After the test both IAs are freed and nothing of the test may be left: the object counts of the
//! API and of the agents are zero, no work request is outstanding, and all DMA memory has been
//! released. The heap may have grown by [`TABLES`]. After [`Setup::close`] and the drop of the
//! setup, that memory must be released as well; the runner checks it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;
use core::time::Duration;

use kernel_agent::{Agent, Config, Counts};
use nic_abi::admin::Injection;
use platform::sync::Mutex;
use platform::{DmaBuffer, Platform};
use privileged_api::*;

use crate::check::{Failure, Outcome, some};
use crate::thread::eventually;
use crate::transport::{Need, Needing};
use crate::{Transport, check, check_eq};

/// How long a test waits for an event that must come, in microseconds. It is far longer than the
/// event ever takes.
pub const WAIT: u64 = 20_000_000;
/// How long a test waits where no event may come, in microseconds.
pub const MOMENT: u64 = 2_000;
/// The size of a page, and the alignment of buffers.
pub const PAGE: usize = 4096;
/// The cookie of the RDMA Read of [`End::settled`].
const SETTLES: u64 = u64::MAX - 1;
/// Flags of a request that completes with an event, and whose event notifies.
pub const SIGNALLED: DtoFlags = DtoFlags::COMPLETION.union(DtoFlags::NOTIFY);
/// Local read and write, remote read and write.
pub const OPEN: MemPriv = MemPriv::LOCAL.union(MemPriv::REMOTE);

/// The sizes of an agent's tables under test. They are small so that tests can fill them, except
/// the table of connections: a connection keeps its entry for a while after its end.
pub const CONFIG: Config = Config {
    max_qps: 64,
    max_vis: 64,
    max_cqs: 96,
    max_srqs: 8,
    max_pds: 32,
    max_keys: 128,
    max_streams: 64,
    max_connections: 4096,
    max_listens: 16,
    without_crc: false,
    // Some tests wait for it.
    silence: Duration::from_secs(3),
};

/// How many bytes of heap the agents may hold after a test beyond what they held when they were
/// opened. Their tables do not shrink, and connections in TimeWait keep an entry for a while.
pub const TABLES: usize = 512 << 10;

/// One interface under test.
#[derive(Clone)]
pub struct Interface {
    /// Its name in the provider.
    pub name: String,
    /// The agent behind it.
    pub agent: Arc<Agent>,
}

/// What of the machine is in use and has been used; 0 means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all live heap allocations.
    pub heap: usize,
    /// Bytes of DMA memory that the platform has handed out.
    pub dma: usize,
    /// Number of heap allocations since the start of the program.
    pub requests: u64,
    /// How often the calling thread asked the platform to wait.
    pub waits: u64,
}

/// The machine on which the suite runs.
pub struct Setup {
    /// The platform.
    pub platform: Arc<dyn Platform>,
    /// The provider that the interfaces were added to.
    pub provider: Provider,
    /// The provider of virtual interfaces on the same interfaces.
    pub vipl: vipl::Provider,
    /// The token of privilege from boot code.
    pub privileged: Privileged,
    /// The interface of IA `a`.
    pub a: Interface,
    /// The interface of IA `b`: the same one, or one that `a`'s can reach.
    pub b: Interface,
    /// Kills the device as if its process were killed: from then on it answers nothing.
    pub kill: Box<dyn Fn() + Send + Sync>,
    /// What of the machine is in use and has been used.
    pub usage: Box<dyn Fn() -> Usage + Send + Sync>,
    /// The network between the NICs may lose datagrams, repeat them, and change their order.
    pub lossy: bool,
    /// The transport of the IAs.
    pub transport: Transport,
    /// Tests that say what they need and the transport lacks have to prove it. The tests of the
    /// process must not run at the same time.
    pub proves: bool,
    /// The NICs exchange packets, so that several requests of a queue pair are under way at once.
    /// Otherwise they exchange whole requests, one at a time.
    pub packets: bool,
    /// What was in use just after the agents were opened.
    idle: Usage,
}

impl Setup {
    /// Brings the NICs up. `a` is the first NIC; `b` is the second one, or the first if there is
    /// only one.
    pub fn new(
        platform: Arc<dyn Platform>,
        privileged: Privileged,
        nics: impl IntoIterator<Item = Arc<dyn nic_hal::Transport>>,
        kill: Box<dyn Fn() + Send + Sync>,
        usage: Box<dyn Fn() -> Usage + Send + Sync>,
    ) -> Result<Setup, Failure> {
        let provider = Provider::new(platform.clone());
        let mut interfaces = Vec::new();
        for (number, device) in (0..).zip(nics).take(2) {
            let agent = Agent::open(platform.clone(), device, number, CONFIG)
                .map_err(|error| Failure::new(format!("bringing up NIC {number}: {error}")))?;
            let name = format!("rnic{number}");
            provider.add(&name, agent.clone())?;
            interfaces.push(Interface { name, agent });
        }
        let a = some(interfaces.first().cloned(), "a NIC")?;
        let b = interfaces.pop().unwrap_or_else(|| a.clone());
        let vipl = vipl::Provider::new(provider.interfaces());
        let idle = usage();
        Ok(Setup {
            platform,
            provider,
            vipl,
            privileged,
            a,
            b,
            kill,
            usage,
            transport: Transport::InfiniBand,
            proves: false,
            lossy: false,
            packets: false,
            idle,
        })
    }

    /// The same with IAs over this transport, on the same NICs.
    pub fn over(self, transport: Transport) -> Result<Setup, Failure> {
        if transport == self.transport {
            return Ok(self);
        }
        let provider = Provider::new(self.platform.clone());
        let mut interfaces: Vec<&Interface> = alloc::vec![&self.a];
        interfaces.extend(self.is_apart().then_some(&self.b));
        for Interface { name, agent } in interfaces {
            transport.add(&provider, name, agent.clone(), Limits::NONE)?;
        }
        Ok(Setup { provider, transport, ..self })
    }

    /// The same where tests have to prove what they need.
    pub fn proving(self, proves: bool) -> Setup {
        Setup { proves, ..self }
    }

    /// The same between NICs that exchange packets.
    pub fn by_packets(self, packets: bool) -> Setup {
        Setup { packets, ..self }
    }

    /// The same over a network that may lose datagrams, repeat them, and change their order.
    pub fn lossy(self, lossy: bool) -> Setup {
        Setup { lossy, ..self }
    }

    /// Waits until nothing of a test is left: threads that are about to end may still hold memory.
    /// Nothing is expected of a dead device, whose memory is never released.
    pub(crate) fn nothing_is_left(&self) -> Outcome {
        let left = || {
            let requests = [&self.a, &self.b].map(|interface| interface.agent.outstanding());
            (requests, (self.usage)())
        };
        let none = |(requests, usage): &([u32; 2], Usage)| {
            *requests == [0; 2]
                && usage.dma == self.idle.dma
                && usage.heap <= self.idle.heap.saturating_add(TABLES)
        };
        if !eventually(&self.platform, || self.is_dead() || none(&left())) {
            let ([a, b], usage) = left();
            let what = format!("left: {a} and {b} work requests; {usage:?}, and it was {:?}", self.idle);
            return Err(Failure::new(what));
        }
        Ok(())
    }

    /// Whether the IAs are on two NICs.
    pub fn is_apart(&self) -> bool {
        !Arc::ptr_eq(&self.a.agent, &self.b.agent)
    }

    /// Whether a device is dead.
    pub fn is_dead(&self) -> bool {
        self.a.agent.is_dead() || self.b.agent.is_dead()
    }

    /// Closes the agents.
    pub fn close(&self) {
        self.a.agent.close();
        self.b.agent.close();
    }

    /// The object counts of both agents, over all clients.
    fn counts(&self) -> [Counts; 2] {
        [self.a.agent.counts(), self.b.agent.counts()]
    }
}

/// A call that adds an interface of a NIC to a provider.
type AddInterface = fn(&Provider, &str, Arc<Agent>, Limits) -> Result<(), Error>;

/// What a test has to work with.
pub struct Fixture {
    /// The machine on which it runs.
    pub setup: Arc<Setup>,
    /// A privileged IA.
    pub a: Ia,
    /// Another privileged IA, which `a` can reach and which can reach `a`.
    pub b: Ia,
    extra: Mutex<Vec<Ia>>,
}

impl Fixture {
    /// Creates the IAs.
    pub fn open(setup: &Arc<Setup>) -> Result<Fixture, Failure> {
        let create = |name: &str| setup.provider.ia_create(name, 2, 1, Some(setup.privileged));
        let (a, b) = (create(&setup.a.name)?, create(&setup.b.name)?);
        Ok(Fixture { setup: setup.clone(), a, b, extra: Mutex::new(Vec::new()) })
    }

    /// Frees the IAs and checks that no object is left.
    pub fn close(self) -> Outcome {
        let ias =
            [self.a.clone(), self.b.clone()].into_iter().chain(core::mem::take(&mut *self.extra.lock()));
        for ia in ias {
            let mut last = Ok(());
            // `ia_free` is refused while a callback that the test did not wait for is still
            // returning.
            let freed = eventually(&self.setup.platform, || {
                last = ia.ia_free();
                last != Err(Error::InvalidEvdState)
            });
            check!(freed && matches!(last, Ok(()) | Err(Error::InvalidIa)), "freeing the IA: {last:?}");
            check_eq!(ia.object_counts(), ObjectCounts::default(), "objects of a freed IA");
        }
        let counts = self.setup.counts();
        check_eq!(counts, [Counts::default(); 2], "the agents' objects after the test");
        Ok(())
    }

    /// The same IAs in a second fixture, for use in a thread of the test.
    pub fn for_a_thread(&self) -> Fixture {
        let Fixture { setup, a, b, .. } = self;
        Fixture { setup: setup.clone(), a: a.clone(), b: b.clone(), extra: Mutex::new(Vec::new()) }
    }

    /// The platform.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.setup.platform
    }

    /// Another IA on `a`'s interface, privileged or not. [`Fixture::close`] frees it.
    #[track_caller]
    pub fn another(&self, privileged: Option<Privileged>) -> Result<Ia, Failure> {
        let ia = self.setup.provider.ia_create(&self.setup.a.name, 2, 1, privileged)?;
        self.extra.lock().push(ia.clone());
        Ok(ia)
    }

    /// An IA on an interface of `a`'s NIC with these limits. [`Fixture::close`] frees it.
    #[track_caller]
    pub fn limited(&self, limits: Limits, privileged: Option<Privileged>) -> Result<Ia, Failure> {
        let provider = Provider::new(self.setup.platform.clone());
        self.setup.transport.add(&provider, "limited", self.setup.a.agent.clone(), limits)?;
        let ia = provider.ia_create("limited", 2, 1, privileged)?;
        self.extra.lock().push(ia.clone());
        Ok(ia)
    }

    /// Two IAs over VIA on the same NICs. [`Fixture::close`] of this fixture frees them.
    #[track_caller]
    pub fn over_via(&self) -> Result<Fixture, Failure> {
        self.over_via_limited(Limits::NONE)
    }

    /// As [`Fixture::over_via`]; the interface of `b` has these limits.
    #[track_caller]
    pub fn over_via_limited(&self, limits: Limits) -> Result<Fixture, Failure> {
        self.over(Provider::add_via, limits)
    }

    /// Two IAs over iWARP on the same NICs. [`Fixture::close`] of this fixture frees them.
    #[track_caller]
    pub fn over_iwarp(&self) -> Result<Fixture, Failure> {
        self.over_iwarp_limited(Limits::NONE)
    }

    /// As [`Fixture::over_iwarp`]; the interface of `b` has these limits.
    #[track_caller]
    pub fn over_iwarp_limited(&self, limits: Limits) -> Result<Fixture, Failure> {
        self.over(Provider::add_iwarp, limits)
    }

    /// Two IAs on interfaces of the same NICs that `add` adds; that of `b` has these limits.
    #[track_caller]
    fn over(&self, add: AddInterface, limits: Limits) -> Result<Fixture, Failure> {
        let setup = &self.setup;
        let provider = Provider::new(setup.platform.clone());
        add(&provider, "over-a", setup.a.agent.clone(), Limits::NONE)?;
        add(&provider, "over-b", setup.b.agent.clone(), limits)?;
        let create = |name| provider.ia_create(name, 2, 1, Some(setup.privileged));
        let a = create("over-a")?;
        self.extra.lock().push(a.clone());
        let b = create("over-b")?;
        self.extra.lock().push(b.clone());
        Ok(Fixture { setup: setup.clone(), a, b, extra: Mutex::new(Vec::new()) })
    }

    /// An IA without privilege.
    #[track_caller]
    pub fn unprivileged(&self) -> Result<Ia, Failure> {
        self.another(None)
    }

    /// Zeroed memory that the NIC can reach.
    #[track_caller]
    pub fn buffer(&self, len: usize) -> Result<Arc<DmaBuffer>, Failure> {
        match DmaBuffer::new(&self.setup.platform, len, PAGE) {
            Ok(buffer) => Ok(Arc::new(buffer)),
            Err(_) => Err(Failure::new("no memory for a buffer")),
        }
    }

    /// A region of `len` bytes with these privileges, absolutely addressed.
    #[track_caller]
    pub fn region(&self, ia: &Ia, pz: PzHandle, len: usize, privs: MemPriv) -> Result<Region, Failure> {
        let buffer = self.buffer(len)?;
        let memory = LmrMemory::Buffer { buffer: &buffer, offset: 0 };
        let (lmr, context) =
            ia.lmr_create(pz, memory, len as u64, AddrMode::Absolute, privs, LmrFlags::NONE, 0)?;
        Ok(Region { buffer, lmr, context })
    }

    /// A connected pair: an endpoint on `a` that connected to one on `b`.
    #[track_caller]
    pub fn pair(&self) -> Result<Pair, Failure> {
        self.pair_of(&attributes(), &attributes())
    }

    /// A connected pair with these attributes.
    #[track_caller]
    pub fn pair_of(&self, a: &EpAttributes, b: &EpAttributes) -> Result<Pair, Failure> {
        let pair = Pair { a: self.end(&self.a, a)?, b: self.end(&self.b, b)? };
        self.connect(&pair.a, &pair.b)?;
        Ok(pair)
    }

    /// A connected pair, and on each side a region of a page with all privileges.
    #[track_caller]
    pub fn open_pair(&self) -> Result<(Pair, Region, Region), Failure> {
        let pair = self.pair_of(&attributes(), &atomic_attributes())?;
        let page = |end: &End| self.region(&end.ia, end.pz, PAGE, OPEN | MemPriv::ATOMIC);
        let (own, peer) = (page(&pair.a)?, page(&pair.b)?);
        Ok((pair, own, peer))
    }

    /// An endpoint in a zone and with EVDs of its own, not connected.
    #[track_caller]
    pub fn end(&self, ia: &Ia, attributes: &EpAttributes) -> Result<End, Failure> {
        self.end_in(ia, ia.pz_create()?, attributes)
    }

    /// An endpoint in this zone and with EVDs of its own, not connected.
    #[track_caller]
    pub fn end_in(&self, ia: &Ia, pz: PzHandle, attributes: &EpAttributes) -> Result<End, Failure> {
        let entries = attributes.max_request_dtos.max(attributes.max_recv_dtos);
        let request = sevd(ia, EventType::DTO_EVENT_STREAM, entries, 1)?;
        let recv = sevd(ia, EventType::DTO_EVENT_STREAM, entries, 1)?;
        made(ia, pz, attributes, request, recv)
    }

    /// An endpoint in a zone of its own, with these EVDs for completions.
    #[track_caller]
    pub fn end_on(
        &self,
        ia: &Ia,
        attributes: &EpAttributes,
        request: EvdHandle,
        recv: EvdHandle,
    ) -> Result<End, Failure> {
        made(ia, ia.pz_create()?, attributes, request, recv)
    }

    /// Connects two endpoints with a two-way handshake and takes all events of it.
    #[track_caller]
    pub fn connect(&self, active: &End, passive: &End) -> Outcome {
        self.connect_with(active, passive, None)
    }

    /// As [`Fixture::connect`], with connection attributes for the active side, such as few
    /// retries.
    #[track_caller]
    pub fn connect_with(&self, active: &End, passive: &End, conn_attr: Option<&ConnAttributes>) -> Outcome {
        let listener = self.listen(&passive.ia)?;
        let path = path(&active.ia, &listener.address)?;
        let (qual, flags) = (&listener.conn_qual, CnEstFlags::TWO_WAY);
        active.ia.ep_connect(active.ep, &path, conn_attr, qual, flags, &[])?;
        let request = listener.request()?;
        passive.ia.ep_accept(passive.ep, request.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        listener.free()
    }

    /// A listen point with a qualifier that the IA chooses.
    #[track_caller]
    pub fn listen(&self, ia: &Ia) -> Result<Listener, Failure> {
        self.listen_with(ia, ListenFlags::empty(), 16)
    }

    /// A listen point with these flags, and with an EVD of `backlog` entries.
    #[track_caller]
    pub fn listen_with(&self, ia: &Ia, flags: ListenFlags, backlog: usize) -> Result<Listener, Failure> {
        self.listen_on(ia, sevd(ia, EventType::CM_REQ_EVENT_STREAM, backlog, 1)?, flags)
    }

    /// A listen point with these flags and this EVD.
    #[track_caller]
    pub fn listen_on(&self, ia: &Ia, evd: EvdHandle, flags: ListenFlags) -> Result<Listener, Failure> {
        let spigot = spigot(ia)?;
        let (listen, conn_qual) = ia.listen_create(spigot.spigot_id, evd, flags, None)?;
        let address = some(spigot.net_addr.first().copied(), "a network address of the spigot")?;
        Ok(Listener { ia: ia.clone(), evd, listen, conn_qual, address })
    }

    /// Injects a fault into the device of `a`.
    #[track_caller]
    pub fn inject(&self, object: u32, what: Injection, count: u32, value: u64) -> Outcome {
        let is_of_packets = matches!(
            what,
            Injection::DropRequests
                | Injection::DropResponses
                | Injection::BadRequest
                | Injection::BadResponse
                | Injection::Delay
                | Injection::DropManagement
        );
        if is_of_packets {
            Need::Faults.of(&self.a)?;
        }
        match self.setup.a.agent.test_handle().inject(object, what, count, value) {
            Ok(()) => Ok(()),
            Err(error) => Err(Failure::new(format!("{what:?}: {error:?}"))),
        }
    }

    /// Injects a fault that concerns this endpoint, which must be on `a`'s NIC.
    #[track_caller]
    pub fn inject_into(&self, end: &End, what: Injection, count: u32, value: u64) -> Outcome {
        self.inject(end.ia.ep_qpn(end.ep)?, what, count, value)
    }

    /// Takes the port of `a` down, or brings it up again.
    #[track_caller]
    pub fn port(&self, up: bool) -> Outcome {
        self.inject(0, Injection::Port, 1, u64::from(up))
    }

    /// Whether what a Write or Send that has succeeded does at the peer is done. Over iWARP it may
    /// still be under way.
    #[track_caller]
    pub fn arrives(&self, is_there: impl Fn() -> bool) -> bool {
        match self.setup.transport {
            Transport::InfiniBand => is_there(),
            Transport::Iwarp => eventually(&self.setup.platform, is_there),
        }
    }

    /// Flags of a request that completes with an event if the peer refuses it. Over iWARP it
    /// succeeds then.
    pub fn if_refused(&self) -> DtoFlags {
        match self.setup.transport {
            Transport::InfiniBand => DtoFlags::empty(),
            Transport::Iwarp => DtoFlags::COMPLETION,
        }
    }

    /// The ways to establish a connection that the IAs know.
    #[track_caller]
    pub fn handshakes(&self) -> Result<&'static [CnEstFlags], Failure> {
        const ALL: [CnEstFlags; 2] = [CnEstFlags::TWO_WAY, CnEstFlags::THREE_WAY];
        Ok(if self.a.ia_query()?.three_way_handshake_support { &ALL } else { &ALL[..1] })
    }

    /// Starts to connect an endpoint to a listen point.
    #[track_caller]
    pub fn dial(&self, end: &End, listener: &Listener, flags: CnEstFlags, private_data: &[u8]) -> Outcome {
        let path = path(&end.ia, &listener.address)?;
        end.ia
            .ep_connect(end.ep, &path, None, &listener.conn_qual, flags, private_data)
            .needing(Need::ThreeWay)
    }
}

/// An endpoint in this zone, on these EVDs and a new EVD for its connection events.
#[track_caller]
fn made(
    ia: &Ia,
    pz: PzHandle,
    attributes: &EpAttributes,
    request: EvdHandle,
    recv: EvdHandle,
) -> Result<End, Failure> {
    let conn = sevd(ia, EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
    let ep = ia.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), attributes)?;
    Ok(End { ia: ia.clone(), pz, request, recv, conn, ep })
}

/// A page with all privileges in the zone of an endpoint.
#[track_caller]
pub fn page(f: &Fixture, end: &End) -> Result<Region, Failure> {
    f.region(&end.ia, end.pz, PAGE, OPEN)
}

/// Attributes of a privileged endpoint that the peer may read from and write to.
pub fn attributes() -> EpAttributes {
    EpAttributes {
        rc: RcAttributes { rdma_read_enable: true, rdma_write_enable: true, ..RcAttributes::default() },
        priv_ops_enable: true,
        ..EpAttributes::default()
    }
}

/// As [`attributes`], and the peer may also do atomic operations.
pub fn atomic_attributes() -> EpAttributes {
    let mut attributes = attributes();
    attributes.rc.atomics_enable = true;
    attributes
}

/// Whether an IA is over iWARP.
#[track_caller]
pub fn is_iwarp(ia: &Ia) -> Result<bool, Failure> {
    Ok(ia.ia_query()?.transport_type == TransportType::IwarpTcp)
}

/// The first spigot of an IA.
#[track_caller]
pub fn spigot(ia: &Ia) -> Result<SpigotInfo, Failure> {
    some(ia.ia_query()?.spigot_info.into_iter().next(), "a spigot")
}

/// A path from an IA to an address.
#[track_caller]
pub fn path(ia: &Ia, address: &NetAddr) -> Result<Path, Failure> {
    let (paths, _) = ia.get_pathinfo(spigot(ia)?.spigot_id, address, 1)?;
    some(paths.first().copied(), "a path")
}

/// A simple EVD with the stream's default overflow behaviour.
#[track_caller]
pub fn sevd(ia: &Ia, stream: EventType, size: usize, threshold: usize) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, size, threshold, EvdHandle::NULL)?)
}

/// All parameters of an EVD.
#[track_caller]
pub fn evd_param(ia: &Ia, evd: EvdHandle) -> Result<EvdParam, Failure> {
    Ok(ia.evd_query(evd, EvdParamMask::ALL)?)
}

/// The next completion on an EVD.
#[track_caller]
pub fn completion(ia: &Ia, evd: EvdHandle) -> Result<DtoCompletion, Failure> {
    let (event, _) = ia.evd_wait(evd, WAIT)?;
    match event {
        Event::Dto(completion) => Ok(completion),
        other => Err(Failure::new(format!("not a completion: {other:?}"))),
    }
}

/// An endpoint with its zone and EVDs.
#[derive(Clone)]
pub struct End {
    /// The IA.
    pub ia: Ia,
    /// The protection zone.
    pub pz: PzHandle,
    /// The EVD of the send queue.
    pub request: EvdHandle,
    /// The EVD of the receive queue.
    pub recv: EvdHandle,
    /// The EVD of connection events.
    pub conn: EvdHandle,
    /// The endpoint.
    pub ep: EpHandle,
}

impl End {
    /// The endpoint's state.
    #[track_caller]
    pub fn state(&self) -> Result<EpStateRc, Failure> {
        match self.ia.ep_query(self.ep, EpParamMask::STATE)?.ep_state {
            EpState::Rc(state) => Ok(state),
            other => Err(Failure::new(format!("not the state of an RC endpoint: {other:?}"))),
        }
    }

    /// The next event of the connection.
    #[track_caller]
    pub fn event(&self) -> Result<Event, Failure> {
        let (event, _) = self.ia.evd_wait(self.conn, WAIT)?;
        Ok(event)
    }

    /// Takes the next event of the connection, which must have this number.
    #[track_caller]
    pub fn expect(&self, number: EventType) -> Result<Event, Failure> {
        let event = self.event()?;
        match event.event_number() == number && event.evd() == self.conn {
            true => Ok(event),
            false => Err(Failure::new(format!("expected {number:?}, got {event:?}"))),
        }
    }

    /// The next completion of the send queue.
    #[track_caller]
    pub fn reap(&self) -> Result<DtoCompletion, Failure> {
        completion(&self.ia, self.request)
    }

    /// The next completion of the receive queue.
    #[track_caller]
    pub fn reap_recv(&self) -> Result<DtoCompletion, Failure> {
        completion(&self.ia, self.recv)
    }

    /// Takes the next completion of the send queue, which must have this cookie and status. If the
    /// status is the peer's refusal, the request succeeds over iWARP, and the connection breaks.
    #[track_caller]
    pub fn done(&self, cookie: u64, status: DtoStatus) -> Outcome {
        match self.reap()? {
            done if done.cookie == cookie && self.refused_later(done.dto_status, status)? => {
                let over = || self.state().is_ok_and(|state| state == EpStateRc::Nonoperational);
                match eventually(self.ia.platform(), over) {
                    true => Ok(()),
                    false => Err(Failure::new("the peer does not refuse it")),
                }
            }
            done => ended(done, cookie, status),
        }
    }

    /// Takes the next completion of the receive queue, which must have this cookie and status.
    #[track_caller]
    pub fn recv_done(&self, cookie: u64, status: DtoStatus) -> Outcome {
        ended(self.reap_recv()?, cookie, status)
    }

    /// As [`End::done`] for a request behind one that the peer refuses: it is flushed. Over iWARP
    /// it may have been sent before the refusal came.
    #[track_caller]
    pub fn done_behind(&self, cookie: u64) -> Outcome {
        match self.reap()? {
            done if is_iwarp(&self.ia)? && done.dto_status == DtoStatus::Success => {
                ended(done, cookie, DtoStatus::Success)
            }
            done => ended(done, cookie, DtoStatus::Flushed),
        }
    }

    /// The status of a Write or Send that has completed with this one, and after which nothing was
    /// posted. Over InfiniBand it is that. Over iWARP success is no answer of the peer: an RDMA
    /// Read of nothing asks whether it came there. A message is flushed if the refusal came before
    /// the stream had taken all of it.
    #[track_caller]
    pub fn settled(&self, status: DtoStatus) -> Result<DtoStatus, Failure> {
        if !is_iwarp(&self.ia)? {
            return Ok(status);
        }
        match status {
            DtoStatus::Success => {}
            DtoStatus::Flushed => return Ok(DtoStatus::RemoteAccess),
            other => return Ok(other),
        }
        self.ia.post_rdma_read(self.ep, &[], SETTLES, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
        match self.reap()? {
            done if done.cookie != SETTLES => Err(Failure::new(format!("another completion: {done:?}"))),
            done if done.dto_status == DtoStatus::Flushed => Ok(DtoStatus::RemoteAccess),
            done => Ok(done.dto_status),
        }
    }

    /// Whether a request has succeeded that over InfiniBand would have had this status: over iWARP
    /// the peer refuses it later, and breaks the connection. Only an RDMA Read has an answer there.
    #[track_caller]
    pub fn refused_later(&self, got: DtoStatus, status: DtoStatus) -> Result<bool, Failure> {
        let refusals = [DtoStatus::RemoteAccess, DtoStatus::RemoteResponder, DtoStatus::ReceiverNotReady];
        // Flushed if the refusal came before the stream had taken all of the message.
        let came = matches!(got, DtoStatus::Success | DtoStatus::Flushed);
        let is_later = came && refusals.contains(&status);
        Ok(is_later && is_iwarp(&self.ia)?)
    }

    /// Takes the next event, which must be CONN_BROKEN, and checks the endpoint's state.
    #[track_caller]
    pub fn broken(&self) -> Outcome {
        self.expect(EventType::CM_MSG_CONN_BROKEN)?;
        match self.state()? {
            EpStateRc::Nonoperational => Ok(()),
            state => Err(Failure::new(format!("broken, but in {state:?}"))),
        }
    }

    /// Fails if a completion is queued.
    #[track_caller]
    pub fn idle(&self) -> Outcome {
        for evd in [self.request, self.recv] {
            match self.ia.evd_dequeue(evd) {
                Err(Error::QueueEmpty) => {}
                other => return Err(Failure::new(format!("expected no completion, got {other:?}"))),
            }
        }
        Ok(())
    }
}

/// Fails unless the completion has this cookie and status.
#[track_caller]
fn ended(completion: DtoCompletion, cookie: u64, status: DtoStatus) -> Outcome {
    match (completion.cookie, completion.dto_status) == (cookie, status) {
        true => Ok(()),
        false => Err(Failure::new(format!("expected cookie {cookie} with {status:?}, got {completion:?}"))),
    }
}

/// Two connected endpoints.
#[derive(Clone)]
pub struct Pair {
    /// The active side.
    pub a: End,
    /// The passive side.
    pub b: End,
}

/// A listen point.
pub struct Listener {
    /// The IA.
    pub ia: Ia,
    /// The EVD for connection requests.
    pub evd: EvdHandle,
    /// The listen point.
    pub listen: ListenHandle,
    /// Its qualifier.
    pub conn_qual: ConnQual,
    /// An address of its spigot.
    pub address: NetAddr,
}

impl Listener {
    /// The next request.
    #[track_caller]
    pub fn request(&self) -> Result<ConnRequest, Failure> {
        let (event, _) = self.ia.evd_wait(self.evd, WAIT)?;
        match event {
            Event::ConnRequest(request) => Ok(request),
            other => Err(Failure::new(format!("not a connection request: {other:?}"))),
        }
    }

    /// Frees the listen point and its EVD.
    #[track_caller]
    pub fn free(self) -> Outcome {
        self.ia.listen_free(self.listen)?;
        self.ia.evd_free(self.evd)?;
        Ok(())
    }
}

/// Registered memory.
pub struct Region {
    /// The memory.
    pub buffer: Arc<DmaBuffer>,
    /// The region.
    pub lmr: LmrHandle,
    /// The context by which a peer addresses the region, if it is open to peers.
    pub context: Option<RmrContext>,
}

impl Region {
    /// The local segment of `len` bytes at `offset`.
    pub fn segment(&self, offset: usize, len: usize) -> LmrTriplet {
        LmrTriplet::new(self.lmr, (self.buffer.addr() + offset) as u64, len as u64)
    }

    /// The segment that covers the whole region.
    pub fn whole(&self) -> LmrTriplet {
        self.segment(0, self.buffer.len())
    }

    /// The remote address of the byte at `offset`.
    pub fn remote(&self, offset: usize) -> RdmaAddr {
        make_rdma_addr_absolute(self.buffer.addr() + offset)
    }

    /// The context of a region that is open to peers, or a failure.
    #[track_caller]
    pub fn context(&self) -> Result<RmrContext, Failure> {
        some(self.context, "an RMR context")
    }

    /// Fills the region with [`pattern`].
    pub fn fill(&self, seed: u8) {
        write(&self.buffer, 0, &pattern(seed, self.buffer.len()));
    }

    /// Overwrites bytes.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        write(&self.buffer, offset, bytes);
    }

    /// Copies bytes out.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        read(&self.buffer, offset, len)
    }

    /// All bytes.
    pub fn all(&self) -> Vec<u8> {
        self.bytes(0, self.buffer.len())
    }

    /// Fails unless every byte is still zero.
    #[track_caller]
    pub fn untouched(&self) -> Outcome {
        match self.all().iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(at) => Err(Failure::new(format!("byte {at} was overwritten"))),
        }
    }
}

/// Bytes that depend on `seed` and on the position; none is zero.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8 ^ (i >> 8) as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect()
}

/// Copies bytes out of a buffer. Bytes outside of the buffer read as zero.
pub fn read(buffer: &DmaBuffer, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = alloc::vec![0; len];
    let _ = buffer.read(offset, &mut bytes);
    bytes
}

/// Copies bytes into a buffer. Nothing is written if they do not fit.
pub fn write(buffer: &DmaBuffer, offset: usize, bytes: &[u8]) {
    let _ = buffer.write(offset, bytes);
}
