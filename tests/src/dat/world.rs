//! The environment of a DAT test: two DAT IAs of its own, and helpers that create objects,
//! connections and memory.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;

use dat::*;
use platform::{DmaBuffer, Platform};
use privileged_api::Limits;

use crate::fixture::{self, Fixture, PAGE, WAIT};
use crate::thread::eventually;
use crate::{Failure, Outcome, check_eq, some};

/// How long a test waits for an event that must come, in microseconds.
pub(crate) const LONG: u32 = WAIT as u32;
/// How long a test waits to see that no event comes, in microseconds.
pub(crate) const SHORT: u32 = fixture::MOMENT as u32;
/// Plain work requests.
pub(crate) const PLAIN: CompletionFlags = CompletionFlags::DEFAULT;
/// All privileges, atomics too.
pub(crate) const OPEN: MemPriv = MemPriv::ALL.union(MemPriv::IB_REMOTE_ATOMIC);
/// The least number of events that a queue holds.
pub(crate) const QLEN: usize = 128;

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Failure {
        Failure::new(format!("DAT refused with {error:?}"))
    }
}

impl From<WaitError> for Failure {
    #[track_caller]
    fn from(failure: WaitError) -> Failure {
        Failure::new(format!("waiting failed with {failure:?}"))
    }
}

/// Two DAT IAs that reach each other.
pub(crate) struct World<'a> {
    /// The fixture of the test, with IT-API IAs on the same NICs.
    pub(crate) f: &'a Fixture,
    /// The IA on the first NIC.
    pub(crate) a: Ia,
    /// The IA on the second NIC, or on the same one.
    pub(crate) b: Ia,
    /// The event dispatchers of asynchronous events, of `a` and of `b`.
    pub(crate) asynchronous: [EvdHandle; 2],
}

/// Runs a test with two DAT IAs, and closes them whatever its outcome.
pub(crate) fn world(f: &Fixture, test: impl FnOnce(&World<'_>) -> Outcome) -> Outcome {
    let setup = &f.setup;
    let open = |name: &str| ia_open(&setup.provider, name, setup.privileged, 16, EvdHandle::NULL);
    let (a, of_a) = open(&setup.a.name)?;
    let opened = open(&setup.b.name).map_err(Failure::from);
    let (b, of_b) = opened.inspect_err(|_| {
        let _ = a.ia_close(CloseFlags::Abrupt);
    })?;
    let world = World { f, a, b, asynchronous: [of_a, of_b] };
    let outcome = test(&world);
    let closed = world.close(&world.a).and(world.close(&world.b));
    outcome.and(closed)
}

/// An endpoint with its own event dispatchers.
#[derive(Clone)]
pub(crate) struct End {
    pub(crate) ia: Ia,
    pub(crate) ep: EpHandle,
    pub(crate) pz: PzHandle,
    pub(crate) recv: EvdHandle,
    pub(crate) request: EvdHandle,
    pub(crate) connect: EvdHandle,
}

/// A datagram endpoint, and the address of the one that it resolved.
pub(crate) type Resolved = (End, IbAddrHandle);

/// A region and its memory.
pub(crate) struct Region {
    pub(crate) buffer: Arc<DmaBuffer>,
    pub(crate) lmr: Lmr,
}

/// The attributes of most endpoints: four RDMA Reads each way.
pub(crate) fn attributes() -> EpAttr {
    EpAttr { max_rdma_read_in: 4, max_rdma_read_out: 4, ..EpAttr::default() }
}

/// The attributes of datagram endpoints.
pub(crate) fn datagrams() -> EpAttr {
    EpAttr { service_type: ServiceType::IB_UD, ..EpAttr::default() }
}

/// An event dispatcher for these streams.
#[track_caller]
pub(crate) fn evd(ia: &Ia, flags: EvdFlags) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(QLEN, CnoHandle::NULL, flags)?)
}

/// Waits for the next event.
#[track_caller]
pub(crate) fn next(ia: &Ia, evd: EvdHandle) -> Result<Event, Failure> {
    Ok(ia.evd_wait(evd, LONG, 1)?.0)
}

/// Takes the next event by evd_dequeue, as often as it takes until there is one.
#[track_caller]
pub(crate) fn polled(platform: &Arc<dyn Platform>, ia: &Ia, evd: EvdHandle) -> Result<Event, Failure> {
    let mut event = None;
    eventually(platform, || {
        event = ia.evd_dequeue(evd).ok();
        event.is_some()
    });
    some(event, "an event")
}

/// Waits for the next event, which must have this number.
#[track_caller]
pub(crate) fn expect(ia: &Ia, evd: EvdHandle, number: EventNumber) -> Result<Event, Failure> {
    let event = next(ia, evd)?;
    if event.event_number != number {
        return Err(Failure::new(format!("{event:?}, expected {number:?}")));
    }
    check_eq!(event.evd_handle, evd);
    Ok(event)
}

/// Waits for the next event, which must be a completion.
#[track_caller]
pub(crate) fn completion(
    ia: &Ia,
    evd: EvdHandle,
) -> Result<(DtoCompletion, EventNumber, Option<IbExtensionEventData>), Failure> {
    let event = next(ia, evd)?;
    match event.dto() {
        Some(done) => Ok((*done, event.event_number, event.extension)),
        None => Err(Failure::new(format!("not a completion: {event:?}"))),
    }
}

/// Checks that no event is queued.
#[track_caller]
pub(crate) fn nothing(ia: &Ia, evd: EvdHandle) -> Outcome {
    match ia.evd_wait(evd, SHORT, 1) {
        Err(WaitError { error, .. }) if error.kind() == ErrorType::TimeoutExpired => Ok(()),
        other => Err(Failure::new(format!("expected no event: {other:?}"))),
    }
}

/// The address of an IA.
#[track_caller]
pub(crate) fn address(ia: &Ia) -> Result<IaAddress, Failure> {
    let (_, attr, _) = ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
    Ok(some(attr, "the IA's attributes")?.ia_address)
}

impl World<'_> {
    /// Closes an IA abruptly. Repeats the call while an upcall has not returned, since it is
    /// refused then.
    pub(crate) fn close(&self, ia: &Ia) -> Outcome {
        let mut last = Ok(());
        let closed = crate::thread::eventually(self.f.platform(), || {
            last = ia.ia_close(CloseFlags::Abrupt);
            last.is_ok_and(|()| true) || last.is_err_and(|error| error.kind() == ErrorType::InvalidHandle)
        });
        if closed { Ok(()) } else { Err(Failure::new(format!("closing the IA: {last:?}"))) }
    }

    /// An IA on an interface of `a`'s NIC with these limits. The caller closes it.
    #[track_caller]
    pub(crate) fn limited(&self, limits: Limits) -> Result<Ia, Failure> {
        let setup = &self.f.setup;
        let provider = Provider::new(setup.platform.clone());
        provider.add_limited("limited", setup.a.agent.clone(), limits)?;
        Ok(ia_open(&provider, "limited", setup.privileged, 16, EvdHandle::NULL)?.0)
    }

    /// Creates an endpoint in a zone and with event dispatchers of its own.
    #[track_caller]
    pub(crate) fn end(&self, ia: &Ia, attr: &EpAttr) -> Result<End, Failure> {
        let pz = ia.pz_create()?;
        let (recv, request) = (evd(ia, EvdFlags::DTO)?, evd(ia, EvdFlags::DTO | EvdFlags::RMR_BIND)?);
        let connect = evd(ia, EvdFlags::CONNECTION)?;
        let ep = ia.ep_create(pz, recv, request, connect, Some(attr))?;
        Ok(End { ia: ia.clone(), ep, pz, recv, request, connect })
    }

    /// An endpoint in this zone with a shared receive queue, and with event dispatchers of its own.
    #[track_caller]
    pub(crate) fn end_with_srq(
        &self,
        ia: &Ia,
        pz: PzHandle,
        srq: SrqHandle,
        attr: &EpAttr,
    ) -> Result<End, Failure> {
        let (recv, request) = (evd(ia, EvdFlags::DTO)?, evd(ia, EvdFlags::DTO | EvdFlags::RMR_BIND)?);
        let connect = evd(ia, EvdFlags::CONNECTION)?;
        let ep = ia.ep_create_with_srq(pz, recv, request, connect, srq, attr)?;
        Ok(End { ia: ia.clone(), ep, pz, recv, request, connect })
    }

    /// Connects two endpoints and takes all events of the connection.
    #[track_caller]
    pub(crate) fn connect(&self, active: &End, passive: &End) -> Outcome {
        let requests = evd(&passive.ia, EvdFlags::CR)?;
        let (conn_qual, psp) = passive.ia.psp_create_any(requests, PspFlags::Consumer)?;
        dial(active, address(&passive.ia)?, conn_qual, &[])?;
        let cr = request(&passive.ia, requests)?;
        passive.ia.cr_accept(cr, passive.ep, &[])?;
        expect(&active.ia, active.connect, EventNumber::CONNECTION_ESTABLISHED)?;
        expect(&passive.ia, passive.connect, EventNumber::CONNECTION_ESTABLISHED)?;
        passive.ia.psp_free(psp)?;
        Ok(passive.ia.evd_free(requests)?)
    }

    /// A connected pair: an endpoint on `a` that connected to one on `b`.
    #[track_caller]
    pub(crate) fn pair(&self) -> Result<(End, End), Failure> {
        self.pair_of(&attributes(), &attributes())
    }

    /// A connected pair with these attributes.
    #[track_caller]
    pub(crate) fn pair_of(&self, a: &EpAttr, b: &EpAttr) -> Result<(End, End), Failure> {
        let (a, b) = (self.end(&self.a, a)?, self.end(&self.b, b)?);
        self.connect(&a, &b)?;
        Ok((a, b))
    }

    /// A connected pair, and on each side a region of a page with all privileges.
    #[track_caller]
    pub(crate) fn open_pair(&self) -> Result<(End, End, Region, Region), Failure> {
        let (a, b) = self.pair()?;
        let (own, far) = (self.region(&a, PAGE, OPEN)?, self.region(&b, PAGE, OPEN)?);
        Ok((a, b, own, far))
    }

    /// A region in an endpoint's zone.
    #[track_caller]
    pub(crate) fn region(&self, end: &End, len: usize, privs: MemPriv) -> Result<Region, Failure> {
        self.region_in(&end.ia, end.pz, len, privs)
    }

    /// A region in this zone.
    #[track_caller]
    pub(crate) fn region_in(
        &self,
        ia: &Ia,
        pz: PzHandle,
        len: usize,
        privs: MemPriv,
    ) -> Result<Region, Failure> {
        let buffer = self.f.buffer(len)?;
        let memory = RegionDescription::buffer(&buffer);
        let lmr = ia.lmr_create(memory, len as u64, pz, privs, VaType::Va)?;
        Ok(Region { buffer, lmr })
    }

    /// Two datagram endpoints, of which the first has resolved the second, each with the address of
    /// the other.
    #[track_caller]
    pub(crate) fn resolved(&self) -> Result<(Resolved, Resolved), Failure> {
        let (a, b) = (self.end(&self.a, &datagrams())?, self.end(&self.b, &datagrams())?);
        let (of_b, of_a) = self.resolve(&a, &b)?;
        Ok(((a, of_b), (b, of_a)))
    }

    /// Makes a datagram endpoint resolve another one. Returns the address that each side gets.
    #[track_caller]
    pub(crate) fn resolve(
        &self,
        active: &End,
        passive: &End,
    ) -> Result<(IbAddrHandle, IbAddrHandle), Failure> {
        let requests = evd(&passive.ia, EvdFlags::CR)?;
        let (conn_qual, psp) = passive.ia.psp_create_any(requests, PspFlags::Consumer)?;
        dial(active, address(&passive.ia)?, conn_qual, &[])?;
        let arrived = expect(&passive.ia, requests, EventNumber::IB_UD_CONNECTION_REQUEST)?;
        passive.ia.cr_accept(cr(&arrived)?, passive.ep, &[])?;
        let at = |end: &End| -> Result<IbAddrHandle, Failure> {
            let event = expect(&end.ia, end.connect, EventNumber::IB_UD_CONNECTION_ESTABLISHED)?;
            Ok(some(event.extension, "extension data")?.remote_ah)
        };
        let addresses = (at(active)?, at(passive)?);
        passive.ia.psp_free(psp)?;
        passive.ia.evd_free(requests)?;
        Ok(addresses)
    }
}

/// Asks for a connection, or for a datagram endpoint.
#[track_caller]
pub(crate) fn dial(end: &End, to: IaAddress, conn_qual: u64, private_data: &[u8]) -> Outcome {
    let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::Default);
    Ok(end.ia.ep_connect(end.ep, to, conn_qual, LONG, private_data, qos, flags)?)
}

/// Waits for a request for a connection.
#[track_caller]
pub(crate) fn request(ia: &Ia, evd: EvdHandle) -> Result<CrHandle, Failure> {
    cr(&expect(ia, evd, EventNumber::CONNECTION_REQUEST)?)
}

/// The request that an event brings.
#[track_caller]
pub(crate) fn cr(event: &Event) -> Result<CrHandle, Failure> {
    match event.event_data {
        EventData::CrArrival(arrival) => Ok(arrival.cr_handle),
        other => Err(Failure::new(format!("not a request: {other:?}"))),
    }
}

impl End {
    /// The state.
    #[track_caller]
    pub(crate) fn state(&self) -> Result<EpState, Failure> {
        Ok(self.ia.ep_get_status(self.ep)?.0)
    }

    /// The next completion of a request, which must have this cookie and status. Returns it, with
    /// the number of its event and its extension data.
    #[track_caller]
    pub(crate) fn done(
        &self,
        cookie: u64,
        status: DtoStatus,
    ) -> Result<(DtoCompletion, EventNumber, Option<IbExtensionEventData>), Failure> {
        let (done, number, extension) = completion(&self.ia, self.request)?;
        check_eq!((done.user_cookie, done.status, done.ep_handle), (cookie, status, self.ep));
        Ok((done, number, extension))
    }

    /// The next completion of a Receive, which must have this cookie and status.
    #[track_caller]
    pub(crate) fn received(
        &self,
        cookie: u64,
        status: DtoStatus,
    ) -> Result<(DtoCompletion, EventNumber, Option<IbExtensionEventData>), Failure> {
        let (done, number, extension) = completion(&self.ia, self.recv)?;
        check_eq!((done.user_cookie, done.status, done.ep_handle), (cookie, status, self.ep));
        Ok((done, number, extension))
    }

    /// Posts a Send of these segments.
    #[track_caller]
    pub(crate) fn send(&self, segments: &[LmrTriplet], cookie: u64) -> Outcome {
        Ok(self.ia.ep_post_send(self.ep, segments, cookie, PLAIN)?)
    }

    /// Posts a Receive of these segments.
    #[track_caller]
    pub(crate) fn receive(&self, segments: &[LmrTriplet], cookie: u64) -> Outcome {
        Ok(self.ia.ep_post_recv(self.ep, segments, cookie, PLAIN)?)
    }

    /// Disconnects abruptly and takes the event.
    #[track_caller]
    pub(crate) fn disconnect(&self) -> Outcome {
        self.ia.ep_disconnect(self.ep, CloseFlags::Abrupt)?;
        expect(&self.ia, self.connect, EventNumber::CONNECTION_DISCONNECTED)?;
        Ok(())
    }
}

impl Region {
    /// The segment of `len` bytes at `offset`.
    pub(crate) fn segment(&self, offset: usize, len: usize) -> LmrTriplet {
        let at = (self.buffer.addr() + offset) as u64;
        LmrTriplet::new(self.lmr.lmr_context, at, len as u64)
    }

    /// The remote memory at `offset`, as peers name it.
    pub(crate) fn remote(&self, offset: usize, len: usize) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context.unwrap_or_default(),
            target_address: (self.buffer.addr() + offset) as u64,
            segment_length: len as u64,
        }
    }

    /// Fills the memory with a pattern.
    pub(crate) fn fill(&self, seed: u8) {
        self.write(0, &fixture::pattern(seed, self.buffer.len()));
    }

    /// Writes to the memory.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        fixture::write(&self.buffer, offset, bytes);
    }

    /// Reads the memory.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        fixture::read(&self.buffer, offset, len)
    }

    /// Reads eight bytes, in host byte order.
    pub(crate) fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes(offset, 8));
        u64::from_ne_bytes(bytes)
    }

    /// Writes eight bytes, in host byte order.
    pub(crate) fn set_word(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    /// Checks that the memory still is zero.
    #[track_caller]
    pub(crate) fn untouched(&self) -> Outcome {
        let bytes = self.bytes(0, self.buffer.len());
        check_eq!(bytes.iter().position(|byte| *byte != 0), None);
        Ok(())
    }
}
