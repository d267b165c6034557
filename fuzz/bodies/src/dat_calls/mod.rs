//! A consumer of DAT that makes any call with any arguments: its objects, and how it chooses
//! arguments.

mod data;
mod objects;

use std::sync::Arc;

use common::Node;
use dat::*;
use platform::DmaBuffer;

use crate::Input;

/// How long the calls that create the first objects wait, in microseconds.
const PATIENCE: u32 = 10_000_000;

/// Handles of each type that calls have returned, valid or freed.
#[derive(Clone, Default)]
struct Pools {
    pz: Vec<u64>,
    lmr: Vec<u64>,
    rmr: Vec<u64>,
    srq: Vec<u64>,
    evd: Vec<u64>,
    cno: Vec<u64>,
    ep: Vec<u64>,
    psp: Vec<u64>,
    rsp: Vec<u64>,
    cr: Vec<u64>,
}

/// Two IAs, their objects, and what their events brought.
#[derive(Clone)]
pub(crate) struct DatConsumer {
    ias: [Ia; 2],
    address: IaAddress,
    pools: Pools,
    /// Handles of IT-API objects.
    foreign: Vec<u64>,
    buffers: [Arc<DmaBuffer>; 2],
    local: Vec<LmrContext>,
    remote: Vec<RmrContext>,
    quals: Vec<u64>,
    resolved: Vec<IbAddrHandle>,
}

/// A number that most calls accept, and sometimes any number.
fn size(input: &mut Input<'_>, usual: usize) -> usize {
    if input.rarely(8) { input.number() as usize } else { input.below(usual) }
}

/// Bits of which most are defined, and sometimes any bits.
fn bits(input: &mut Input<'_>) -> u32 {
    if input.rarely(8) { input.number() as u32 } else { input.byte().into() }
}

/// Flags of a work request, mostly none.
fn flags(input: &mut Input<'_>) -> CompletionFlags {
    CompletionFlags::from_bits_retain(match input.below(4) {
        0 | 1 => 0,
        2 => input.below(16) as u32,
        _ => bits(input),
    })
}

fn timeout(input: &mut Input<'_>) -> u32 {
    input.number() as u32 & 0xf_ffff
}

fn private_data<'a>(input: &mut Input<'a>) -> &'a [u8] {
    let len = input.below(256) >> if input.rarely(4) { 0 } else { 4 };
    input.bytes(len)
}

impl DatConsumer {
    /// Opens two IAs on the first NIC, with a connected pair of endpoints, and with objects of all
    /// types if `rich`.
    pub(crate) fn new(
        node: &Node,
        buffers: [Arc<DmaBuffer>; 2],
        foreign: Vec<u64>,
        rich: bool,
    ) -> DatConsumer {
        let open = || ia_open(&node.provider, "rnic0", node.privileged, 8, EvdHandle::NULL).expect("an IA").0;
        let ias = [open(), open()];
        let mut consumer = DatConsumer {
            address: IaAddress::from([10, 0, 0, 1]),
            ias,
            pools: Pools::default(),
            foreign,
            buffers,
            local: Vec::new(),
            remote: Vec::new(),
            quals: vec![77],
            resolved: Vec::new(),
        };
        consumer.connect(&attributes()).expect("a connection");
        if rich {
            consumer.furnish().expect("objects of all types");
        }
        consumer
    }

    /// An endpoint of each IA, connected, and a region on each side.
    fn connect(&mut self, attr: &EpAttr) -> Result<()> {
        let mut ends = Vec::new();
        for (n, ia) in self.ias.clone().iter().enumerate() {
            let pz = ia.pz_create()?;
            let evd = |flags| ia.evd_create(16, CnoHandle::NULL, flags);
            let (requests, receives) = (evd(EvdFlags::DTO | EvdFlags::RMR_BIND)?, evd(EvdFlags::DTO)?);
            let connection = evd(EvdFlags::CONNECTION | EvdFlags::CR)?;
            let ep = ia.ep_create(pz, receives, requests, connection, Some(attr))?;
            let (memory, all) =
                (RegionDescription::buffer(&self.buffers[n]), MemPriv::ALL | MemPriv::IB_REMOTE_ATOMIC);
            self.region(ia.lmr_create(memory, 8192, pz, all, VaType::Va)?);
            self.pools.pz.push(pz.as_raw());
            self.pools.evd.extend([receives, requests, connection].map(EvdHandle::as_raw));
            self.pools.ep.push(ep.as_raw());
            ends.push((ia.clone(), ep, connection));
        }
        let [(a, ep, connection), (b, peer, requests)] = &ends[..] else { return Ok(()) };
        let (_, attributes, _) = b.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
        self.address = attributes.map_or(self.address, |attributes| attributes.ia_address);
        let (qual, psp) = b.psp_create_any(*requests, PspFlags::Consumer)?;
        self.quals.push(qual);
        self.pools.psp.push(psp.as_raw());
        let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::Default);
        a.ep_connect(*ep, self.address, qual, PATIENCE, &[], qos, flags)?;
        let (event, _) = b.evd_wait(*requests, PATIENCE, 1)?;
        if let EventData::CrArrival(arrival) = event.event_data {
            b.cr_accept(arrival.cr_handle, *peer, &[])?;
        }
        for (ia, evd) in [(a, connection), (b, requests)] {
            let (event, _) = ia.evd_wait(*evd, PATIENCE, 1)?;
            self.heard(&event);
        }
        Ok(())
    }

    /// Creates objects of all types, and two datagram endpoints that have resolved each other.
    fn furnish(&mut self) -> Result<()> {
        self.connect(&EpAttr { service_type: ServiceType::IB_UD, ..attributes() })?;
        let (ia, pz) = (self.ias[0].clone(), PzHandle::from_raw(self.pools.pz[0]));
        let srq = ia.srq_create(pz, &SrqAttr { max_recv_dtos: 8, max_recv_iov: 2, ..SrqAttr::default() })?;
        self.pools.srq.push(srq.as_raw());
        self.pools.rmr.push(ia.rmr_create(pz)?.as_raw());
        let cno = ia.cno_create(None)?;
        self.pools.cno.push(cno.as_raw());
        let all = EvdFlags::from_bits_truncate(u32::MAX).difference(EvdFlags::ASYNC);
        self.pools.evd.push(ia.evd_create(8, cno, all)?.as_raw());
        Ok(())
    }

    fn region(&mut self, made: Lmr) {
        self.pools.lmr.push(made.lmr_handle.as_raw());
        self.local.push(made.lmr_context);
        self.remote.extend(made.rmr_context);
    }

    /// Closes the IAs, once no upcall runs.
    pub(crate) fn close(&self) {
        for ia in &self.ias {
            let closed = (0..1000).find_map(|_| match ia.ia_close(CloseFlags::Abrupt) {
                Err(error) if error.kind() == ErrorType::InvalidState => None,
                other => Some(other),
            });
            match closed {
                Some(Ok(())) => {}
                Some(Err(error)) if error.kind() == ErrorType::InvalidHandle => {}
                other => panic!("closing the IA: {other:?}"),
            }
        }
    }

    fn ia(&self, input: &mut Input<'_>) -> Ia {
        self.ias[input.below(2)].clone()
    }

    fn handle(&self, input: &mut Input<'_>, pool: impl Fn(&Pools) -> &Vec<u64>) -> u64 {
        let pool = pool(&self.pools);
        match input.below(16) {
            // Newest first: these are the most likely to be alive.
            0..6 => pool.len().checked_sub(1 + input.below(4)).map_or(0, |at| pool[at]),
            6..12 => input.pick(pool).unwrap_or(0),
            12 => 0,
            13 => {
                let p = &self.pools;
                let all = [
                    &p.pz,
                    &p.lmr,
                    &p.rmr,
                    &p.srq,
                    &p.evd,
                    &p.cno,
                    &p.ep,
                    &p.psp,
                    &p.rsp,
                    &p.cr,
                    &self.foreign,
                ];
                let pool = all[input.below(all.len())];
                input.pick(pool).unwrap_or(1)
            }
            14 => input.pick(pool).unwrap_or(0) ^ 1 << input.below(64),
            _ => input.word(),
        }
    }

    fn pz(&self, input: &mut Input<'_>) -> PzHandle {
        PzHandle::from_raw(self.handle(input, |p| &p.pz))
    }

    fn evd(&self, input: &mut Input<'_>) -> EvdHandle {
        EvdHandle::from_raw(self.handle(input, |p| &p.evd))
    }

    fn ep(&self, input: &mut Input<'_>) -> EpHandle {
        EpHandle::from_raw(self.handle(input, |p| &p.ep))
    }

    fn srq(&self, input: &mut Input<'_>) -> SrqHandle {
        SrqHandle::from_raw(self.handle(input, |p| &p.srq))
    }

    fn cno(&self, input: &mut Input<'_>) -> CnoHandle {
        CnoHandle::from_raw(self.handle(input, |p| &p.cno))
    }

    fn at(&self, input: &mut Input<'_>) -> u64 {
        match input.below(8) {
            0..6 => self.buffers[input.below(2)].addr() as u64 + 8 * input.below(128) as u64,
            6 => input.number(),
            _ => (self.buffers[0].addr() as u64).wrapping_add(input.number()),
        }
    }

    fn segment(&self, input: &mut Input<'_>) -> LmrTriplet {
        let context = input.pick(&self.local).unwrap_or_default();
        LmrTriplet::new(context, self.at(input), size(input, 200) as u64)
    }

    fn segments(&self, input: &mut Input<'_>) -> Vec<LmrTriplet> {
        let count = if input.rarely(16) { input.below(40) } else { input.below(5) };
        (0..count).map(|_| self.segment(input)).collect()
    }

    fn remote(&self, input: &mut Input<'_>) -> RmrTriplet {
        let context = input.pick(&self.remote).unwrap_or_default();
        let rmr_context = if input.rarely(8) { input.number() as u32 } else { context };
        RmrTriplet { rmr_context, target_address: self.at(input), segment_length: input.number() }
    }

    /// Keeps the handles and addresses that an event brings.
    fn heard(&mut self, event: &Event) {
        if let EventData::CrArrival(arrival) = event.event_data {
            self.pools.cr.push(arrival.cr_handle.as_raw());
        }
        if event.event_number == EventNumber::IB_UD_CONNECTION_ESTABLISHED {
            self.resolved.extend(event.extension.map(|data| data.remote_ah));
        }
        assert_eq!(event.event_number.is_ib(), event.extension.is_some(), "{event:?}");
    }

    /// One call.
    pub(crate) fn call(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0..3 => self.post(input),
            3 => self.memory(input),
            4 => self.events(input),
            5 => self.connection(input),
            6 => self.endpoints(input),
            _ => self.queries(input),
        }
    }
}

fn attributes() -> EpAttr {
    EpAttr {
        max_recv_dtos: 8,
        max_request_dtos: 8,
        max_message_size: 1024,
        max_rdma_read_in: 2,
        max_rdma_read_out: 2,
        ..EpAttr::default()
    }
}
