//! A host that sends whatever bytes a test wants: for tests and fuzzing.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use nvme::completion::Completion;
use nvme::sgl::Descriptor;
use platform::{DmaBuffer, Platform, Signal};
use privileged_api::{
    AddrMode, CnEstFlags, ConnQual, DtoFlags, DtoStatus, EpAttributes, EpFlags, EpHandle, EvdFlags,
    EvdHandle, Event, EventType, Ia, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv, PzHandle,
    RcAttributes, RmrContext,
};
use zerocopy::FromBytes;

use crate::Error;
use crate::error::Calling;
use crate::events;
use crate::net;

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
    /// The interface adapter, which is the queue's own.
    pub ia: Ia,
    platform: Arc<dyn Platform>,
    signal: Arc<Signal>,
    ep: EpHandle,
    requests: EvdHandle,
    receives: EvdHandle,
    messages: EvdHandle,
    /// Memory for capsules, and behind them for responses.
    own: (Arc<DmaBuffer>, LmrHandle),
    /// Memory that the target may reach.
    pub memory: Arc<DmaBuffer>,
    shared: LmrHandle,
    context: RmrContext,
    /// Where the next capsule goes, if there is room for it.
    next: usize,
    /// Receives are posted again.
    receives_again: bool,
    responses: Vec<Completion>,
    end: Option<End>,
}

impl RawQueue {
    /// Asks for a connection with this private data, and waits until the target has answered.
    pub fn connect(
        ia: Ia,
        platform: &Arc<dyn Platform>,
        target: (IpAddr, u16),
        private_data: &[u8],
    ) -> Result<RawQueue, Error> {
        RawQueue::connect_with(ia, platform, target, private_data, DEPTH)
    }

    /// The same with so many Receives, 64 at most.
    pub fn connect_with(
        ia: Ia,
        platform: &Arc<dyn Platform>,
        target: (IpAddr, u16),
        private_data: &[u8],
        count: usize,
    ) -> Result<RawQueue, Error> {
        let evd = |stream, size| {
            ia.evd_create(stream, EvdFlags::empty(), size, 1, EvdHandle::NULL).calling("it_evd_create")
        };
        let pz = ia.pz_create().calling("it_pz_create")?;
        let requests = evd(EventType::DTO_EVENT_STREAM, 2 * DEPTH)?;
        let receives = evd(EventType::DTO_EVENT_STREAM, DEPTH)?;
        let messages = evd(EventType::CM_MSG_EVENT_STREAM, 8)?;
        let signal = Arc::new(Signal::new(platform.clone()));
        let raised = signal.clone();
        events::attach(&ia, &[requests, receives, messages], move || raised.raise())?;
        let attributes = EpAttributes {
            max_request_dtos: DEPTH,
            max_recv_dtos: DEPTH,
            rc: RcAttributes {
                rdma_read_enable: true,
                rdma_write_enable: true,
                rdma_read_ird: 16,
                rdma_read_ord: 0,
                ..RcAttributes::default()
            },
            ..EpAttributes::default()
        };
        let ep = ia
            .ep_rc_create(pz, requests, receives, messages, EpFlags::empty(), &attributes)
            .calling("it_ep_rc_create")?;
        let own = memory(&ia, platform, pz, CAPSULES + DEPTH * PLACE, MemPriv::LOCAL)?;
        let shared = memory(&ia, platform, pz, MEMORY, MemPriv::LOCAL | MemPriv::REMOTE)?;
        let mut queue = RawQueue {
            platform: platform.clone(),
            signal,
            ep,
            requests,
            receives,
            messages,
            own: (own.0, own.1),
            memory: shared.0,
            shared: shared.1,
            context: shared.2,
            next: 0,
            receives_again: true,
            responses: Vec::new(),
            end: None,
            ia,
        };
        for place in 0..count.min(DEPTH) {
            queue.post_receive(place)?;
        }
        let path = net::path(&queue.ia, target.0)?;
        let service = ConnQual::rdma_tcp(target.1);
        queue
            .ia
            .ep_connect(ep, &path, None, &service, CnEstFlags::TWO_WAY, private_data)
            .calling("it_ep_connect")?;
        let mut established = false;
        queue.until(|queue| {
            while let Ok(event) = queue.ia.evd_dequeue(queue.messages) {
                match event {
                    Event::ConnEstablished { .. } => established = true,
                    Event::ConnPeerReject { private_data, .. } => {
                        let data = private_data.as_ref().map_or(&[][..], |data| data.as_slice());
                        let code = data.first_chunk().copied().unwrap_or_default();
                        queue.end = Some(End::Refused(code));
                    }
                    _ => queue.end = Some(End::Disconnected),
                }
            }
            established || queue.end.is_some()
        });
        if !established && queue.end.is_none() {
            queue.end = Some(End::Silent);
        }
        Ok(queue)
    }

    fn post_receive(&self, place: usize) -> Result<(), Error> {
        let (buffer, lmr) = &self.own;
        let at = buffer.addr() + CAPSULES + place * PLACE;
        let segment = LmrTriplet::new(*lmr, at as u64, PLACE as u64);
        self.ia.post_recv(self.ep, &[segment], place as u64, DtoFlags::COMPLETION).calling("it_post_recv")
    }

    /// Waits until `done`.
    fn until(&mut self, mut done: impl FnMut(&mut RawQueue) -> bool) -> bool {
        let deadline = self.platform.now() + PATIENCE;
        loop {
            let seen = self.signal.value();
            if done(self) {
                return true;
            }
            if self.platform.now() >= deadline {
                return false;
            }
            self.signal.wait(seen, Some(deadline));
        }
    }

    /// Looks at what has come.
    fn look(&mut self) {
        while let Ok(Event::Dto(done)) = self.ia.evd_dequeue(self.receives) {
            if done.dto_status != DtoStatus::Success {
                continue;
            }
            let place = done.cookie as usize;
            let mut bytes = [0; size_of::<Completion>()];
            let _ = self.own.0.read(CAPSULES + place * PLACE, &mut bytes);
            self.responses.extend(Completion::read_from_bytes(&bytes));
            if self.receives_again {
                let _ = self.post_receive(place);
            }
        }
        while self.ia.evd_dequeue(self.requests).is_ok() {}
        while let Ok(event) = self.ia.evd_dequeue(self.messages) {
            if matches!(event, Event::ConnDisconnect { .. } | Event::ConnBroken { .. }) {
                self.end = Some(End::Disconnected);
            }
        }
    }

    /// Sends a capsule of any bytes, at most 262,144 with all that are outstanding.
    pub fn send(&mut self, capsule: &[u8]) {
        self.look();
        let (buffer, lmr) = &self.own;
        let at = if self.next + capsule.len() <= CAPSULES { self.next } else { 0 };
        self.next = at + capsule.len();
        let _ = buffer.write(at, capsule);
        let segment = LmrTriplet::new(*lmr, (buffer.addr() + at) as u64, capsule.len() as u64);
        // It fails if the connection is over.
        let _ = self.ia.post_send(self.ep, &[segment], 0, DtoFlags::COMPLETION);
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
        let address = (self.memory.addr() + offset) as u64;
        Descriptor::keyed(address, len as u32, u32::from_be(self.context.0), false)
    }

    /// Frees the queue, and its interface adapter with all that was made on it.
    pub fn free(self) {
        // A call fails only if the interface adapter is dead.
        let _ = self.ia.ep_free(self.ep);
        let _ = self.ia.lmr_free(self.shared);
        events::free(&self.ia, &*self.platform, &[self.requests, self.receives, self.messages]);
        let _ = self.ia.ia_free();
    }
}

/// Registered memory.
fn memory(
    ia: &Ia,
    platform: &Arc<dyn Platform>,
    pz: PzHandle,
    len: usize,
    privileges: MemPriv,
) -> Result<(Arc<DmaBuffer>, LmrHandle, RmrContext), Error> {
    let buffer = Arc::new(DmaBuffer::new(platform, len, 4096).map_err(|_| Error::OutOfMemory)?);
    let (memory, mode) = (LmrMemory::buffer(&buffer), AddrMode::Absolute);
    let (lmr, context) = ia
        .lmr_create(pz, memory, len as u64, mode, privileges, LmrFlags::NONE, 0)
        .calling("it_lmr_create")?;
    Ok((buffer, lmr, context.unwrap_or_default()))
}
