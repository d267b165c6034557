//! A host that sends whatever bytes a test wants, and a controller that asks for a proof: for tests
//! and fuzzing.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use nvme::completion::Completion;
use nvme::sgl::Descriptor;
use platform::{DmaBuffer, Platform};
use rdma::{Access, ConnectError, Endpoint, Nic, Operation, Region, RemoteMemory, Work};
use zerocopy::FromBytes;

use crate::Error;
use crate::attention::Attention;
#[cfg(feature = "testing")]
pub use crate::auth::testing::Asking;
#[cfg(feature = "testing")]
pub use crate::target::reservations::testing::Sharing;

/// Bytes for capsules. They lie one behind the other, and the first one follows the last.
const CAPSULES: usize = 1 << 18;
/// Bytes of a response's place.
const PLACE: usize = 64;
/// Capsules that may be outstanding, and Receives that are posted.
const DEPTH: usize = 64;
/// Bytes of the memory that the target may reach.
pub const MEMORY: usize = 1 << 20;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a connection ended, or never began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The target refused it, with the first 4 bytes of its private data.
    Refused([u8; 4]),
    /// It is over.
    Disconnected,
    /// Nothing came in time.
    Silent,
}

/// A connection to a target, without a rule.
pub struct RawQueue {
    endpoint: Endpoint,
    platform: Arc<dyn Platform>,
    attention: Arc<Attention>,
    /// Memory for capsules, and behind them for responses.
    own: Region,
    /// Memory that the target may reach.
    pub memory: Arc<DmaBuffer>,
    _shared: Region,
    remote: RemoteMemory,
    /// Where the next capsule goes, if there is room for it.
    next: usize,
    /// Receives are posted again.
    receives_again: bool,
    responses: Vec<Completion>,
    end: Option<End>,
}

impl RawQueue {
    /// Asks for a connection with this private data, and waits until the target has answered.
    pub fn connect(nic: &Nic, target: (IpAddr, u16), private_data: &[u8]) -> Result<RawQueue, Error> {
        RawQueue::connect_with(nic, target, private_data, DEPTH)
    }

    /// The same with so many Receives, 64 at most.
    pub fn connect_with(
        nic: &Nic,
        target: (IpAddr, u16),
        private_data: &[u8],
        count: usize,
    ) -> Result<RawQueue, Error> {
        let platform = nic.agent().platform().clone();
        let attention = Attention::new(&platform);
        let domain = nic.domain()?;
        let endpoint = domain.endpoint().sends(DEPTH as u32).receives(DEPTH as u32);
        let endpoint = endpoint.reads(0).served_reads(16).watch(attention.waker()).build()?;
        endpoint.queue().watch(attention.waker());
        let own = domain.region(CAPSULES + DEPTH * PLACE)?;
        let shared = domain.shared_region(MEMORY, Access::READ | Access::WRITE)?;
        let mut queue = RawQueue {
            endpoint,
            platform,
            attention,
            own,
            memory: shared.buffer().clone(),
            remote: shared.remote().ok_or(Error::Config("no right"))?,
            _shared: shared,
            next: 0,
            receives_again: true,
            responses: Vec::new(),
            end: None,
        };
        for place in 0..count.min(DEPTH) {
            queue.post_receive(place)?;
        }
        let connecting = queue.endpoint.connect_with(target.0.into(), target.1, private_data);
        connecting.begun().map_err(Error::Connect)?;
        queue.until(|queue| queue.endpoint.outcome().is_some());
        queue.end = match queue.endpoint.outcome() {
            Some(Ok(_)) => None,
            Some(Err(ConnectError::Rejected)) => {
                let code = queue.endpoint.rejection().and_then(|data| data.bytes().first_chunk());
                Some(End::Refused(code.copied().unwrap_or_default()))
            }
            Some(Err(_)) => Some(End::Disconnected),
            None => Some(End::Silent),
        };
        Ok(queue)
    }

    fn post_receive(&self, place: usize) -> Result<(), Error> {
        let at = CAPSULES + place * PLACE;
        self.endpoint.post_receive(self.own.slice(at..at + PLACE), place as u64).map_err(Error::Post)
    }

    /// Waits until `done`.
    fn until(&mut self, mut done: impl FnMut(&mut RawQueue) -> bool) -> bool {
        let deadline = self.platform.now() + PATIENCE;
        loop {
            let seen = self.attention.signal.value();
            if done(self) {
                return true;
            }
            if self.platform.now() >= deadline {
                return false;
            }
            if !self.endpoint.queue().arm() {
                self.attention.signal.wait(seen, Some(deadline));
            }
        }
    }

    /// Looks at what has come.
    fn look(&mut self) {
        // What came before the end is looked at first.
        let is_closed = self.endpoint.is_closed();
        let mut done = [rdma::Completion::EMPTY];
        while self.endpoint.queue().poll(&mut done) > 0 {
            let [done] = &done;
            if done.operation() != Operation::Receive || done.result().is_err() {
                continue;
            }
            let place = done.id() as usize;
            let mut bytes = [0; size_of::<Completion>()];
            self.own.slice(CAPSULES + place * PLACE..).read(&mut bytes);
            self.responses.extend(Completion::read_from_bytes(&bytes));
            if self.receives_again {
                let _ = self.post_receive(place);
            }
        }
        if is_closed && self.end.is_none() {
            self.end = Some(End::Disconnected);
        }
    }

    /// Sends a capsule of any bytes, at most 262,144 with all that are outstanding.
    pub fn send(&mut self, capsule: &[u8]) {
        self.look();
        let at = if self.next + capsule.len() <= CAPSULES { self.next } else { 0 };
        self.next = at + capsule.len();
        let message = self.own.slice(at..self.next);
        message.write(capsule);
        // It fails if the connection is over.
        let _ = self.endpoint.post(Work::send(message));
    }

    /// Posts no Receive any more. After as many responses as there are Receives, the target's next
    /// one is not taken.
    pub fn stop_receiving(&mut self) {
        self.receives_again = false;
    }

    /// Whether there is a response that was not taken.
    pub fn has_response(&mut self) -> bool {
        self.look();
        !self.responses.is_empty()
    }

    /// The next response, or how the connection ended.
    pub fn response(&mut self) -> Result<Completion, End> {
        self.until(|queue| queue.has_response() || queue.end.is_some());
        match self.responses.is_empty() {
            false => Ok(self.responses.remove(0)),
            true => Err(self.end.unwrap_or(End::Silent)),
        }
    }

    /// How the connection ended, if it has.
    pub fn end(&mut self) -> Option<End> {
        self.look();
        self.end
    }

    /// Waits until the connection is over.
    pub fn ended(&mut self) -> Option<End> {
        self.until(|queue| {
            queue.look();
            queue.end.is_some()
        });
        self.end
    }

    /// Names bytes of [`RawQueue::memory`], as a command does.
    pub fn keyed(&self, offset: usize, len: usize) -> Descriptor {
        let at = self.remote.addr() + offset as u64;
        Descriptor::keyed(at, len as u32, self.remote.key(), false)
    }
}
