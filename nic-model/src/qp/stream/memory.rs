//! The memory and the receives of a queue pair, as the engine of its stream reaches them.
//!
//! Memory is checked at each access: what was allowed when a message began may not be now.

use iwarp::engine::{By, Denied, Direct, Memory, Receive, Sink, Source};
use nic_abi::wqe::LinkFlags;

use crate::Frontend;
use crate::keys::Span;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::flights::Flights;
use crate::qp::receive::NoReceive;
use crate::schedule::Schedule;
use crate::transfer::{Spans, Unreachable, copy, get, put};

pub(super) struct View<'a, F: Frontend> {
    pub qp: &'a mut Qp,
    pub nic: &'a mut Nic<F>,
    pub flights: &'a Flights,
    pub invalidated: &'a mut Option<u32>,
    pub bad_receive: &'a mut Option<u32>,
    /// Where the payload is that comes by the short cut.
    pub from: Option<From<'a, F>>,
}

/// The memory of the sender of a segment that comes by the short cut.
pub(super) struct From<'a, F: Frontend> {
    /// The sender's NIC, unless it is the receiver's.
    pub nic: Option<&'a Nic<F>>,
    pub spans: &'a [Span],
    /// Bytes to skip at the front.
    pub skip: u64,
    pub schedule: &'a mut Schedule,
    /// The memory cannot be reached, though its keys allow it.
    pub gone: bool,
}

/// The memory of a work request.
pub(super) fn of_request<F: Frontend>(
    qp: &Qp,
    nic: &Nic<F>,
    flights: &Flights,
    id: u32,
    spans: &mut Spans,
) -> Result<(), Denied> {
    let flight = flights.get(id).ok_or(Denied::Stag)?;
    qp.check_memory(nic, &flight.work, spans).map_err(|_| Denied::Right)
}

/// The memory that an operation of the peer names.
pub(super) fn of_peer<F: Frontend>(
    qp: &Qp,
    nic: &Nic<F>,
    (stag, to, length): (u32, u64, u32),
    right: LinkFlags,
) -> Result<Span, Denied> {
    let length = u64::from(length);
    if length > qp.max_message {
        return Err(Denied::Bounds);
    }
    if !qp.grants(right) {
        return Err(Denied::Right);
    }
    let span = nic.keys.remote(stag, qp.pd, qp.owner, to, length, right);
    span.map_err(|_| why_denied(qp, nic, stag, right))
}

/// What is wrong with an STag that does not allow an access.
#[cold]
fn why_denied<F: Frontend>(qp: &Qp, nic: &Nic<F>, stag: u32, right: LinkFlags) -> Denied {
    match nic.keys.get_remote(stag) {
        None => Denied::Stag,
        Some(key) if key.pd != qp.pd || !key.is_for(qp.owner) => Denied::Association,
        Some(key) if !key.flags.contains(right) => Denied::Right,
        Some(_) => Denied::Bounds,
    }
}

impl<F: Frontend> View<'_, F> {
    /// The memory of a work request.
    fn of_request(&self, id: u32) -> Result<Spans, Denied> {
        let mut spans = Spans::new();
        of_request(self.qp, self.nic, self.flights, id, &mut spans)?;
        Ok(spans)
    }

    /// The memory that an operation of the peer names.
    fn of_peer(&self, stag: u32, to: u64, length: u32, right: LinkFlags) -> Result<Span, Denied> {
        of_peer(self.qp, self.nic, (stag, to, length), right)
    }

    /// The memory that a Receive or an RDMA Read has for what comes, and where in it that goes.
    fn of_sink(&self, sink: Sink, spans: &mut Spans) -> Result<u32, Denied> {
        match sink {
            Sink::Receive { offset, .. } => {
                self.qp.receive_spans(self.nic, spans).map_err(|_| Denied::Right)?;
                Ok(offset)
            }
            Sink::Read { id, offset } => {
                of_request(self.qp, self.nic, self.flights, id, spans)?;
                Ok(offset)
            }
        }
    }

    /// Moves bytes of the sender to `target`, behind the first `skip` bytes of it.
    fn pull(&mut self, target: &[Span], skip: u32, length: u32) -> Result<u32, Denied> {
        let from = self.from.as_mut().ok_or(Denied::Stag)?;
        let source = from.nic.unwrap_or(self.nic).side(from.spans, from.skip);
        let into = self.nic.side(target, skip.into());
        match copy(&source, &into, length.into(), from.schedule) {
            Ok(0) | Err(Unreachable::Target) => Err(Denied::Bounds),
            // No more than was asked for.
            Ok(moved) => Ok(moved as u32),
            Err(Unreachable::Source) => {
                from.gone = true;
                Ok(0)
            }
        }
    }
}

impl<F: Frontend> Direct for View<'_, F> {
    fn write_from_peer(&mut self, stag: u32, to: u64, length: u32) -> Result<u32, Denied> {
        let span = self.of_peer(stag, to, length, LinkFlags::REMOTE_WRITE)?;
        self.pull(core::slice::from_ref(&span), 0, length)
    }

    fn place_from_peer(&mut self, sink: Sink, length: u32) -> Result<u32, Denied> {
        let mut spans = Spans::new();
        let offset = self.of_sink(sink, &mut spans)?;
        self.pull(&spans, offset, length)
    }
}

impl<F: Frontend> Memory for View<'_, F> {
    fn check(&mut self, source: Source, length: u32) -> Result<(), Denied> {
        match source {
            Source::Request { id, .. } => self.of_request(id).map(drop),
            Source::Region { stag, to } => self.of_peer(stag, to, length, LinkFlags::REMOTE_READ).map(drop),
        }
    }

    fn gather(&mut self, source: Source, into: &mut [u8]) -> Result<(), Denied> {
        let gathered = match source {
            Source::Request { id, offset } => get(&self.nic.side(&self.of_request(id)?, offset.into()), into),
            Source::Region { stag, to } => {
                // A segment has fewer than 2^16 bytes.
                let span = self.of_peer(stag, to, into.len() as u32, LinkFlags::REMOTE_READ)?;
                get(&self.nic.side(core::slice::from_ref(&span), 0), into)
            }
        };
        gathered.map_err(|_| Denied::Bounds)
    }

    fn write(&mut self, stag: u32, to: u64, bytes: &[u8]) -> Result<(), Denied> {
        let span = self.of_peer(stag, to, bytes.len() as u32, LinkFlags::REMOTE_WRITE)?;
        put(&self.nic.side(core::slice::from_ref(&span), 0), bytes).map_err(|_| Denied::Bounds)
    }

    fn take_receive(&mut self) -> Option<Receive> {
        match self.qp.take_receive(self.nic) {
            Ok(()) => {
                let length = self.qp.inbound.receive.room.min(self.qp.max_message);
                Some(Receive { id: 0, length: u32::try_from(length).unwrap_or(u32::MAX) })
            }
            Err(NoReceive::Field(offset)) => {
                *self.bad_receive = Some(offset as u32);
                None
            }
            Err(_) => None,
        }
    }

    fn place(&mut self, sink: Sink, bytes: &[u8]) -> Result<(), Denied> {
        let mut spans = Spans::new();
        let offset = self.of_sink(sink, &mut spans)?;
        put(&self.nic.side(&spans, offset.into()), bytes).map_err(|_| Denied::Bounds)
    }

    fn invalidate(&mut self, stag: u32, by: By) -> Result<(), Denied> {
        let (pd, owner, keys) = (self.qp.pd, self.qp.owner, &mut self.nic.keys);
        let local = match by {
            By::Peer => keys.peer_can_invalidate(stag, pd, owner).map_err(|_| Denied::Right)?,
            By::Read => stag,
        };
        keys.invalidate(local, pd, owner).map_err(|_| Denied::Right)?;
        if by == By::Peer {
            *self.invalidated = Some(local);
        }
        Ok(())
    }
}
