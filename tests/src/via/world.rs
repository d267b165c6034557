//! The environment of a VIPL test: two NICs of its own, and helpers that create virtual interfaces,
//! connections and memory.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use platform::DmaBuffer;
use platform::sync::Mutex;
use vipl::*;

use crate::fixture::{self, Fixture};
use crate::thread::{Signal, Thread, eventually};
use crate::{Failure, Outcome, check, check_eq};

/// How long a test waits for an event that must come, in milliseconds.
pub(crate) const LONG: u32 = 20_000;
/// How long a test waits to see that no event comes, in milliseconds.
pub(crate) const SHORT: u32 = 2;
/// No completion queues.
pub(crate) const NO_CQS: [CqHandle; 2] = [CqHandle::NULL; 2];
/// The levels of reliability.
pub(crate) const LEVELS: [ReliabilityLevel; 3] =
    [ReliabilityLevel::Unreliable, ReliabilityLevel::Delivery, ReliabilityLevel::Reception];
/// The reliable levels.
pub(crate) const RELIABLE: [ReliabilityLevel; 2] = [ReliabilityLevel::Delivery, ReliabilityLevel::Reception];

/// Descriptors of a side, each with room for [`SEGMENTS`] segments.
pub(crate) const DESCRIPTORS: usize = 64;
/// The most segments of a side's descriptors.
pub(crate) const SEGMENTS: usize = 6;
/// The distance from one descriptor of a side to the next, in bytes.
const STEP: usize = 128;
/// The offset of the data in a side's memory.
pub(crate) const DATA: usize = DESCRIPTORS * STEP;
/// Bytes of a side's data.
pub(crate) const DATA_LEN: usize = 2 * fixture::PAGE;

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Failure {
        Failure::new(format!("VIPL refused with {error:?}"))
    }
}

impl From<platform::OutOfBounds> for Failure {
    #[track_caller]
    fn from(_: platform::OutOfBounds) -> Failure {
        Failure::new("beyond the memory")
    }
}

/// Two NICs that reach each other.
pub(crate) struct World<'a> {
    /// The fixture of the test, with IT-API IAs on the same NICs.
    pub(crate) f: &'a Fixture,
    /// An opening of the first NIC.
    pub(crate) a: Nic,
    /// An opening of the second NIC, or another one of the first.
    pub(crate) b: Nic,
    opened: Mutex<Vec<Nic>>,
}

/// Runs a test with two NICs, and closes all that it opened whatever its outcome.
pub(crate) fn world(f: &Fixture, test: impl FnOnce(&World<'_>) -> Outcome) -> Outcome {
    let setup = &f.setup;
    let a = setup.vipl.open_nic(&setup.a.name)?;
    let b = setup.vipl.open_nic(&setup.b.name).inspect_err(|_| {
        let _ = a.close_nic();
    })?;
    let world = World { f, a, b, opened: Mutex::new(Vec::new()) };
    let outcome = test(&world);
    // A test that failed may have left the NICs held, which the next test would find.
    for interface in [&setup.a, &setup.b] {
        let _ = interface.agent.test_handle().inject(0, Injection::Hold, 1, 0);
    }
    let opened = core::mem::take(&mut *world.opened.lock());
    let mut closed = Ok(());
    for nic in [world.a.clone(), world.b.clone()].iter().chain(&opened) {
        closed = closed.and(close(nic));
    }
    outcome.and(closed)
}

/// Closes a NIC, unless the test has closed it, and checks that nothing of the opening is left.
#[track_caller]
fn close(nic: &Nic) -> Outcome {
    match nic.close_nic() {
        Ok(()) | Err(Error::InvalidParameter) => {}
        Err(error) => return Err(Failure::new(format!("closing the NIC: {error:?}"))),
    }
    check_eq!(nic.opening_counts(), OpeningCounts::default(), "objects of a closed NIC");
    Ok(())
}

/// Registered memory.
#[derive(Clone)]
pub(crate) struct Region {
    pub(crate) buffer: Arc<DmaBuffer>,
    pub(crate) handle: MemHandle,
}

/// A virtual interface with its own protection tag and its own region, which has descriptors and
/// then data.
pub(crate) struct Side {
    pub(crate) nic: Nic,
    pub(crate) ptag: PtagHandle,
    pub(crate) vi: ViHandle,
    pub(crate) region: Region,
}

/// The attributes of a virtual interface on a level. It enables all RDMA of the peer that the level
/// has.
pub(crate) fn attributes(ptag: PtagHandle, level: ReliabilityLevel) -> ViAttributes {
    ViAttributes {
        reliability_level: level,
        enable_rdma_write: true,
        enable_rdma_read: level != ReliabilityLevel::Unreliable,
        ..ViAttributes::new(ptag)
    }
}

/// Memory that enables all RDMA of the peer.
pub(crate) fn open_memory(ptag: PtagHandle) -> MemAttributes {
    MemAttributes { ptag, enable_rdma_write: true, enable_rdma_read: true }
}

impl World<'_> {
    /// Another opening of `a`'s NIC. [`world`] closes it.
    #[track_caller]
    pub(crate) fn another(&self) -> Result<Nic, Failure> {
        let setup = &self.f.setup;
        let nic = setup.vipl.open_nic(&setup.a.name)?;
        self.opened.lock().push(nic.clone());
        Ok(nic)
    }

    /// The NIC of the second virtual interface of a pair: `b`; but on a lossy network, if the level
    /// does not repair losses, another opening of `a`'s NIC.
    #[track_caller]
    pub(crate) fn peer(&self, level: ReliabilityLevel) -> Result<Nic, Failure> {
        match level {
            ReliabilityLevel::Unreliable if self.f.setup.lossy => self.another(),
            _ => Ok(self.b.clone()),
        }
    }

    /// A region of new memory with these attributes.
    #[track_caller]
    pub(crate) fn region(
        &self,
        nic: &Nic,
        len: usize,
        attributes: &MemAttributes,
    ) -> Result<Region, Failure> {
        let buffer = self.f.buffer(len)?;
        let handle = nic.register_mem(Memory::buffer(&buffer), len as u64, attributes)?;
        Ok(Region { buffer, handle })
    }

    /// Creates a virtual interface on a level, tied to these completion queues, with its own tag
    /// and region.
    #[track_caller]
    pub(crate) fn side(
        &self,
        nic: &Nic,
        level: ReliabilityLevel,
        cqs: [CqHandle; 2],
    ) -> Result<Side, Failure> {
        self.side_with(nic, cqs, |ptag| attributes(ptag, level))
    }

    /// Creates a virtual interface with the attributes that `attributes` returns for its tag.
    #[track_caller]
    pub(crate) fn side_with(
        &self,
        nic: &Nic,
        [send, receive]: [CqHandle; 2],
        attributes: impl FnOnce(PtagHandle) -> ViAttributes,
    ) -> Result<Side, Failure> {
        let ptag = nic.create_ptag()?;
        let vi = nic.create_vi(&attributes(ptag), send, receive)?;
        let region = self.region(nic, DATA + DATA_LEN, &open_memory(ptag))?;
        Ok(Side { nic: nic.clone(), ptag, vi, region })
    }

    /// Connects two virtual interfaces; `b` accepts.
    #[track_caller]
    pub(crate) fn connect(&self, a: &Side, b: &Side) -> Outcome {
        let server = b.nic.address(format!("{:x}", b.vi.as_raw()).as_bytes())?;
        let own = a.nic.address(b"client")?;
        let (nic, vi, to) = (a.nic.clone(), a.vi, server.clone());
        let client =
            Thread::spawn(self.f.platform(), "client", move || nic.connect_request(vi, &own, &to, LONG))?;
        let request = b.nic.connect_wait(&server, None, LONG)?;
        b.nic.connect_accept(request.conn, b.vi)?;
        client.join()??;
        check_eq!((a.state()?, b.state()?), (ViState::Connected, ViState::Connected));
        Ok(())
    }

    /// A connected pair on a level, between the NICs.
    #[track_caller]
    pub(crate) fn pair(&self, level: ReliabilityLevel) -> Result<(Side, Side), Failure> {
        let peer = self.peer(level)?;
        let (a, b) = (self.side(&self.a, level, NO_CQS)?, self.side(&peer, level, NO_CQS)?);
        self.connect(&a, &b)?;
        Ok((a, b))
    }

    /// Injects a fault that concerns this virtual interface, or its NIC, into its device.
    #[track_caller]
    pub(crate) fn inject(&self, side: &Side, what: Injection, count: u32, value: u64) -> Outcome {
        let setup = &self.f.setup;
        let interface = if side.nic.query_nic()?.name == setup.a.name { &setup.a } else { &setup.b };
        let of_the_nic = matches!(what, Injection::Hold);
        let qpn = if of_the_nic { 0 } else { side.nic.vi_qpn(side.vi)? };
        match interface.agent.test_handle().inject(qpn, what, count, value) {
            Ok(()) => Ok(()),
            Err(error) => Err(Failure::new(format!("{what:?}: {error:?}"))),
        }
    }

    /// Collects the asynchronous errors of a NIC from now on.
    #[track_caller]
    pub(crate) fn errors(&self, nic: &Nic) -> Result<Errors, Failure> {
        let came = Signal::new(self.f.platform());
        let errors = Errors { came, queue: Arc::default(), states: Arc::default() };
        let Errors { came, queue, states } = errors.clone();
        let asked = nic.clone();
        let handler = move |_: u64, error: &ErrorDescriptor| {
            if let Ok((state, attributes)) = asked.query_vi(error.vi) {
                states.lock().push((error.error_code, attributes.reliability_level, state));
            }
            queue.lock().push(*error);
            came.raise();
        };
        nic.error_callback(0, Some(Box::new(handler)))?;
        Ok(errors)
    }

    /// Waits until a condition holds that another thread makes true soon.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, condition: impl FnMut() -> bool) -> Outcome {
        match eventually(self.f.platform(), condition) {
            true => Ok(()),
            false => Err(Failure::new(format!("it did not happen: {what}"))),
        }
    }

    /// Waits until all messages from `a` have arrived at `b`, or were dropped without a receive.
    /// For that it sends an RDMA Write of the data's last byte, which must be zero, after them.
    #[track_caller]
    pub(crate) fn arrived(&self, a: &Side, b: &Side) -> Outcome {
        let (at, last) = (DATA_LEN - 1, DESCRIPTORS - 1);
        let former = a.bytes(at, 1);
        check_eq!(b.bytes(at, 1), [0]);
        a.write(at, &[1]);
        a.rdma_write(last, &b.remote(at), &[a.data(at, 1)], None)?;
        a.sent_well(last)?;
        self.until("the RDMA Write arrives", || b.bytes(at, 1) == [1])?;
        b.write(at, &[0]);
        a.write(at, &former);
        Ok(())
    }

    /// Waits until the status word of a descriptor says Done, without a call.
    #[track_caller]
    pub(crate) fn done(&self, descriptor: &Descriptor<'_>) -> Result<Status, Failure> {
        self.until("a descriptor completes", || descriptor.is_done())?;
        Ok(descriptor.status())
    }
}

/// The asynchronous errors of a NIC, in their order.
#[derive(Clone)]
pub(crate) struct Errors {
    came: Signal,
    queue: Arc<Mutex<Vec<ErrorDescriptor>>>,
    /// What QueryVi said in the handler: the error, the level and the state.
    states: Arc<Mutex<Vec<(ErrorCode, ReliabilityLevel, ViState)>>>,
}

impl Errors {
    /// Waits until this many errors have come since the beginning. Returns all errors.
    #[track_caller]
    pub(crate) fn wait(&self, count: usize) -> Result<Vec<ErrorDescriptor>, Failure> {
        self.came.wait(count as u32)?;
        Ok(self.queue.lock().clone())
    }

    /// Waits for the oldest error, which must be this one of this virtual interface, and removes
    /// it.
    #[track_caller]
    pub(crate) fn expect(&self, side: &Side, code: ErrorCode) -> Result<ErrorDescriptor, Failure> {
        let next = || {
            let mut queue = self.queue.lock();
            (!queue.is_empty()).then(|| queue.remove(0))
        };
        let mut seen = 0;
        loop {
            if let Some(error) = next() {
                check_eq!((error.error_code, error.vi, error.nic), (code, side.vi, side.nic.handle()));
                return Ok(error);
            }
            seen = self.came.count().max(seen + 1);
            self.came.wait(seen)?;
        }
    }

    /// Checks that each error of a reliable level found its virtual interface in Error (7.2, 7.3).
    #[track_caller]
    pub(crate) fn found_the_state(&self) -> Outcome {
        for (code, level, state) in self.states.lock().iter() {
            let found = *state == ViState::Error || !level.is_reliable();
            check!(found, "{code:?} on {level:?}: {state:?}");
        }
        Ok(())
    }

    /// The number of errors that came.
    pub(crate) fn count(&self) -> usize {
        self.came.count() as usize
    }
}

impl Side {
    /// The descriptor with this number, below [`DESCRIPTORS`].
    #[track_caller]
    pub(crate) fn descriptor(&self, number: usize) -> Result<Descriptor<'_>, Failure> {
        Ok(Descriptor::at(&self.region.buffer, number * STEP, SEGMENTS)?)
    }

    /// A data segment of this side's data.
    pub(crate) fn data(&self, at: usize, len: usize) -> DataSegment {
        self.region.segment(DATA + at, len)
    }

    /// This side's data, as the peer names it.
    pub(crate) fn remote(&self, at: usize) -> AddressSegment {
        self.region.remote(DATA + at)
    }

    /// Reads the data.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.region.bytes(DATA + at, len)
    }

    /// Writes the data.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.region.write(DATA + at, bytes);
    }

    /// Fills the data with a pattern.
    pub(crate) fn fill(&self, seed: u8) {
        self.write(0, &fixture::pattern(seed, DATA_LEN));
    }

    /// Checks that the data is still zero.
    #[track_caller]
    pub(crate) fn untouched(&self) -> Outcome {
        zeroed(&self.bytes(0, DATA_LEN))
    }

    /// Posts a descriptor, as it is, to the send queue.
    #[track_caller]
    pub(crate) fn post_send(&self, number: usize) -> Outcome {
        Ok(self.nic.post_send(self.vi, self.descriptor(number)?.address(), self.region.handle)?)
    }

    /// Posts a descriptor, as it is, to the receive queue.
    #[track_caller]
    pub(crate) fn post_recv(&self, number: usize) -> Outcome {
        Ok(self.nic.post_recv(self.vi, self.descriptor(number)?.address(), self.region.handle)?)
    }

    /// Formats and posts a Send.
    #[track_caller]
    pub(crate) fn send(&self, number: usize, data: &[DataSegment], immediate: Option<u32>) -> Outcome {
        self.descriptor(number)?.send(data, immediate)?;
        self.post_send(number)
    }

    /// Formats and posts a Receive.
    #[track_caller]
    pub(crate) fn receive(&self, number: usize, data: &[DataSegment]) -> Outcome {
        self.descriptor(number)?.receive(data)?;
        self.post_recv(number)
    }

    /// Formats and posts an RDMA Write.
    #[track_caller]
    pub(crate) fn rdma_write(
        &self,
        number: usize,
        to: &AddressSegment,
        data: &[DataSegment],
        immediate: Option<u32>,
    ) -> Outcome {
        self.descriptor(number)?.rdma_write(to, data, immediate)?;
        self.post_send(number)
    }

    /// Formats and posts an RDMA Read.
    #[track_caller]
    pub(crate) fn rdma_read(&self, number: usize, from: &AddressSegment, data: &[DataSegment]) -> Outcome {
        self.descriptor(number)?.rdma_read(from, data)?;
        self.post_send(number)
    }

    /// Waits for the descriptor at the head of the send queue, which must be this one. Returns its
    /// status. Not for a queue that is tied to a completion queue.
    #[track_caller]
    pub(crate) fn sent(&self, number: usize) -> Result<Status, Failure> {
        check_eq!(self.nic.send_wait(self.vi, LONG)?, self.descriptor(number)?.address());
        self.shown(number)
    }

    /// Waits for the descriptor at the head of the receive queue, which must be this one. Returns
    /// its status. Not for a queue that is tied to a completion queue.
    #[track_caller]
    pub(crate) fn received(&self, number: usize) -> Result<Status, Failure> {
        check_eq!(self.nic.recv_wait(self.vi, LONG)?, self.descriptor(number)?.address());
        self.shown(number)
    }

    /// The status of a descriptor that is complete. If it shows an error on a reliable level, the
    /// connection is over already (10.2, 7.2, 7.3). What was flushed may be of a former one.
    #[track_caller]
    fn shown(&self, number: usize) -> Result<Status, Failure> {
        let status = self.descriptor(number)?.status();
        if status.intersects(Status::ERROR_MASK.difference(Status::DESC_FLUSHED_ERROR)) {
            let (state, attributes) = self.nic.query_vi(self.vi)?;
            let over = state != ViState::Connected || !attributes.reliability_level.is_reliable();
            check!(over, "{state:?} behind {status:?}");
        }
        Ok(status)
    }

    /// Waits for the descriptor at the head of the send queue, which must be this one and have
    /// succeeded.
    #[track_caller]
    pub(crate) fn sent_well(&self, number: usize) -> Outcome {
        success(self.sent(number)?)
    }

    /// Waits for the descriptor at the head of the receive queue, which must be this one and have
    /// succeeded.
    #[track_caller]
    pub(crate) fn received_well(&self, number: usize) -> Outcome {
        success(self.received(number)?)
    }

    /// The state.
    #[track_caller]
    pub(crate) fn state(&self) -> Result<ViState, Failure> {
        Ok(self.nic.query_vi(self.vi)?.0)
    }

    /// Ends the connection. What is posted is flushed and stays on the queues.
    #[track_caller]
    pub(crate) fn disconnect(&self) -> Outcome {
        Ok(self.nic.disconnect(self.vi)?)
    }

    /// Takes all complete descriptors off both queues, and returns their number.
    pub(crate) fn drain(&self) -> usize {
        let sent = core::iter::from_fn(|| self.nic.send_done(self.vi).ok()).count();
        sent + core::iter::from_fn(|| self.nic.recv_done(self.vi).ok()).count()
    }

    /// Ends the connection, empties the queues and destroys the virtual interface.
    #[track_caller]
    pub(crate) fn destroy(&self) -> Outcome {
        self.disconnect()?;
        self.drain();
        Ok(self.nic.destroy_vi(self.vi)?)
    }
}

impl Region {
    /// The address of the byte at an offset.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        (self.buffer.addr() + offset) as u64
    }

    /// The data segment of `len` bytes at an offset.
    pub(crate) fn segment(&self, offset: usize, len: usize) -> DataSegment {
        let (address, handle) = (self.address(offset), self.handle.as_raw());
        DataSegment { address, handle, length: len as u32 }
    }

    /// The memory at an offset, as the peer names it.
    pub(crate) fn remote(&self, offset: usize) -> AddressSegment {
        AddressSegment { address: self.address(offset), handle: self.handle.as_raw(), reserved: 0 }
    }

    /// A descriptor at an offset, with room for so many segments.
    #[track_caller]
    pub(crate) fn descriptor(&self, offset: usize, segments: usize) -> Result<Descriptor<'_>, Failure> {
        Ok(Descriptor::at(&self.buffer, offset, segments)?)
    }

    /// Reads the memory.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        fixture::read(&self.buffer, offset, len)
    }

    /// Writes to the memory.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        fixture::write(&self.buffer, offset, bytes);
    }

    /// Fills the memory with a pattern.
    pub(crate) fn fill(&self, seed: u8) {
        self.write(0, &fixture::pattern(seed, self.buffer.len()));
    }

    /// Checks that the memory is still zero.
    #[track_caller]
    pub(crate) fn untouched(&self) -> Outcome {
        zeroed(&self.bytes(0, self.buffer.len()))
    }
}

#[track_caller]
fn zeroed(bytes: &[u8]) -> Outcome {
    match bytes.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(Failure::new(format!("byte {at} was overwritten"))),
    }
}

/// Fails unless the status is that of success.
#[track_caller]
pub(crate) fn success(status: Status) -> Outcome {
    match is_success(status) {
        true => Ok(()),
        false => Err(Failure::new(format!("expected success: {status:?}"))),
    }
}

/// Fails unless the status is Done with exactly these error bits.
#[track_caller]
pub(crate) fn failed(status: Status, errors: Status) -> Outcome {
    match Status::from_bits_retain(status.bits() & 0xffff) == Status::DONE | errors {
        true => Ok(()),
        false => Err(Failure::new(format!("expected {errors:?}: {status:?}"))),
    }
}
