//! The memory and the receives of a queue pair, as the engine of its stream reaches them.
//!
//! Memory is checked at each access: what was allowed when a message began may not be now.

use iwarp::engine::{By, Denied, Memory, Receive, Sink, Source};
use nic_abi::wqe::LinkFlags;

use crate::Frontend;
use crate::keys::Span;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::flights::Flights;
use crate::qp::receive::NoReceive;
use crate::transfer::{Spans, get, put};

pub(super) struct View<'a, F: Frontend> {
    pub qp: &'a mut Qp,
    pub nic: &'a mut Nic<F>,
    pub flights: &'a Flights,
    pub invalidated: &'a mut Option<u32>,
    pub bad_receive: &'a mut Option<u32>,
}

impl<F: Frontend> View<'_, F> {
    /// The memory of a work request.
    fn of_request(&self, id: u32) -> Result<Spans, Denied> {
        let flight = self.flights.get(id).ok_or(Denied::Stag)?;
        let mut spans = Spans::new();
        self.qp.check_memory(self.nic, &flight.work, &mut spans).map_err(|_| Denied::Right)?;
        Ok(spans)
    }

    /// The memory that an operation of the peer names.
    fn of_peer(&self, stag: u32, to: u64, length: u32, right: LinkFlags) -> Result<Span, Denied> {
        let (qp, length) = (&*self.qp, u64::from(length));
        if length > qp.max_message {
            return Err(Denied::Bounds);
        }
        if !qp.grants(right) {
            return Err(Denied::Right);
        }
        let span = self.nic.keys.remote(stag, qp.pd, qp.owner, to, length, right);
        span.map_err(|_| self.why_denied(stag, right))
    }

    /// What is wrong with an STag that does not allow an access.
    #[cold]
    fn why_denied(&self, stag: u32, right: LinkFlags) -> Denied {
        let (qp, keys) = (&*self.qp, &self.nic.keys);
        match keys.get_remote(stag) {
            None => Denied::Stag,
            Some(key) if key.pd != qp.pd || !key.is_for(qp.owner) => Denied::Association,
            Some(key) if !key.flags.contains(right) => Denied::Right,
            Some(_) => Denied::Bounds,
        }
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
        let offset = match sink {
            Sink::Receive { offset, .. } => {
                self.qp.receive_spans(self.nic, &mut spans).map_err(|_| Denied::Right)?;
                offset
            }
            Sink::Read { id, offset } => {
                spans = self.of_request(id)?;
                offset
            }
        };
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
