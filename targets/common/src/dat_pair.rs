//! Two connected DAT endpoints, each on its own IA, with memory at each.

use alloc::format;
use alloc::sync::Arc;

use dat::{
    CloseFlags, CnoHandle, ConnectFlags, Dto, DtoCompletion, DtoStatus, EpAttr, EpHandle, ErrorType,
    EvdFlags, EvdHandle, Event, EventData, EventNumber, Ia, IaAttrMask, Lmr, LmrTriplet, MemPriv,
    ProviderAttrMask, PspFlags, Qos, RegionDescription, RmrTriplet, VaType, WaitError, ia_open,
};
use platform::DmaBuffer;

use crate::{Failure, Node, Trying};

/// How long anything may take, microseconds.
const PATIENCE: u32 = 30_000_000;
/// Events that a queue holds: the most requests, and the most Receives, that are outstanding.
const EVENTS: usize = 64;

/// An endpoint with its event dispatchers and its memory.
pub struct End {
    /// The IA.
    pub ia: Ia,
    /// The endpoint.
    pub ep: EpHandle,
    /// Completions of its Receives.
    pub receives: EvdHandle,
    /// Completions of its requests.
    pub requests: EvdHandle,
    connection: EvdHandle,
    memory: Arc<DmaBuffer>,
    region: Lmr,
}

impl End {
    fn new(node: &Node, nic: usize, memory: &Arc<DmaBuffer>, message: usize) -> Result<End, Failure> {
        let name = format!("rnic{nic}");
        let (ia, _) =
            ia_open(&node.provider, &name, node.privileged, 8, EvdHandle::NULL).trying("dat_ia_open")?;
        let evd = |flags| ia.evd_create(EVENTS, CnoHandle::NULL, flags).trying("dat_evd_create");
        let pz = ia.pz_create().trying("dat_pz_create")?;
        let (receives, requests) = (evd(EvdFlags::DTO)?, evd(EvdFlags::DTO)?);
        let connection = evd(EvdFlags::CONNECTION)?;
        let attributes = EpAttr {
            max_message_size: message as u64,
            max_rdma_size: message as u64,
            max_rdma_read_in: 4,
            max_rdma_read_out: 4,
            ..EpAttr::default()
        };
        let ep =
            ia.ep_create(pz, receives, requests, connection, Some(&attributes)).trying("dat_ep_create")?;
        let (whole, length) = (RegionDescription::buffer(memory), memory.len() as u64);
        let region = ia.lmr_create(whole, length, pz, MemPriv::ALL, VaType::Va).trying("dat_lmr_create")?;
        Ok(End { ia, ep, receives, requests, connection, memory: memory.clone(), region })
    }

    /// A part of the memory.
    pub fn segment(&self, offset: usize, length: usize) -> LmrTriplet {
        let at = (self.memory.addr() + offset) as u64;
        LmrTriplet::new(self.region.lmr_context, at, length as u64)
    }

    /// A part of the memory as the peer names it.
    pub fn remote(&self, offset: usize, length: usize) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.region.rmr_context.unwrap_or_default(),
            target_address: (self.memory.addr() + offset) as u64,
            segment_length: length as u64,
        }
    }

    /// Takes the next event.
    pub fn event(&self, evd: EvdHandle) -> Result<Event, Failure> {
        // A busy consumer finds events without waiting.
        match self.ia.evd_dequeue(evd) {
            Err(error) if error.kind() == ErrorType::QueueEmpty => {
                let waited = self.ia.evd_wait(evd, PATIENCE, 1);
                Ok(waited.map_err(|WaitError { error, .. }| error).trying("dat_evd_wait")?.0)
            }
            other => other.trying("dat_evd_dequeue"),
        }
    }

    /// Waits for the completion with this cookie, which has to be a success of this operation.
    pub fn done(&self, evd: EvdHandle, cookie: u64, operation: Dto) -> Result<Event, Failure> {
        let event = self.event(evd)?;
        match event.dto() {
            Some(&DtoCompletion { status: DtoStatus::Success, user_cookie, operation: of, .. })
                if (user_cookie, of) == (cookie, operation) =>
            {
                Ok(event)
            }
            _ => Err(Failure::new(format!("{operation:?} {cookie}: {event:?}"))),
        }
    }

    /// Waits until the connection is established.
    fn established(&self) -> Result<(), Failure> {
        match self.event(self.connection)?.event_number {
            EventNumber::CONNECTION_ESTABLISHED => Ok(()),
            other => Err(Failure::new(format!("connecting: {other:?}"))),
        }
    }
}

/// Both ends.
pub struct Pair {
    /// The side that asked for the connection.
    pub a: End,
    /// The side that accepted.
    pub b: End,
}

impl Pair {
    /// Connects endpoints of these NICs with this memory, for messages of so many bytes at most.
    pub fn connect(
        node: &Node,
        nics: [usize; 2],
        memory: [&Arc<DmaBuffer>; 2],
        message: usize,
    ) -> Result<Pair, Failure> {
        let a = End::new(node, nics[0], memory[0], message)?;
        let b = End::new(node, nics[1], memory[1], message)?;
        let requests = b.ia.evd_create(1, CnoHandle::NULL, EvdFlags::CR).trying("dat_evd_create")?;
        let point = b.ia.psp_create_any(requests, PspFlags::Consumer);
        let (conn_qual, psp) = point.trying("dat_psp_create_any")?;
        let (_, attributes, _) =
            b.ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE).trying("dat_ia_query")?;
        let address = attributes.ok_or_else(|| Failure::new("the IA has no attributes"))?.ia_address;
        let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::Default);
        a.ia.ep_connect(a.ep, address, conn_qual, PATIENCE, &[], qos, flags).trying("dat_ep_connect")?;
        let EventData::CrArrival(arrival) = b.event(requests)?.event_data else {
            return Err(Failure::new("no request for a connection"));
        };
        b.ia.cr_accept(arrival.cr_handle, b.ep, &[]).trying("dat_cr_accept")?;
        a.established()?;
        b.established()?;
        b.ia.psp_free(psp).trying("dat_psp_free")?;
        b.ia.evd_free(requests).trying("dat_evd_free")?;
        Ok(Pair { a, b })
    }

    /// Closes both IAs, which frees all their objects.
    pub fn close(self) -> Result<(), Failure> {
        for ia in [self.a.ia, self.b.ia] {
            ia.ia_close(CloseFlags::Abrupt).trying("dat_ia_close")?;
        }
        Ok(())
    }
}
