//! A consumer that makes any call with any arguments: its objects, and how it chooses arguments.

mod data;
pub(crate) mod ends;
mod objects;

use std::ops::Range;
use std::sync::Arc;

use common::Node;
use platform::DmaBuffer;
use privileged_api::*;
use vipl::ReliabilityLevel;

use self::ends::End;
use crate::Input;
use crate::dat_calls::DatConsumer;
use crate::vipl_calls::ViplConsumer;

/// Handles of each type that calls have returned, valid or freed.
#[derive(Clone, Default)]
struct Pools {
    pz: Vec<u64>,
    evd: Vec<u64>,
    ep: Vec<u64>,
    lmr: Vec<u64>,
    rmr: Vec<u64>,
    srq: Vec<u64>,
    listen: Vec<u64>,
    addr: Vec<u64>,
    svc: Vec<u64>,
}

/// Three IAs, their objects, and the events that they got: over InfiniBand, with a consumer of the
/// DAT face or of VIPL beside them now and then, or over VIA, with one of VIPL now and then.
#[derive(Clone)]
pub(crate) struct Consumer {
    ias: [Ia; 3],
    pools: Pools,
    buffers: [Arc<DmaBuffer>; 2],
    contexts: Vec<RmrContext>,
    requests: Vec<CnEstId>,
    resolutions: Vec<u64>,
    quals: Vec<ConnQual>,
    paths: Vec<Path>,
    datagram: RemoteEpInfo,
    dat: Option<DatConsumer>,
    vipl: Option<ViplConsumer>,
    has_vis: bool,
}

/// Inputs whose first byte is this or more have a consumer of DAT. The oldest inputs have none.
const WITH_DAT: u8 = 0xe0;
/// The values of that byte for which there is a consumer of VIPL. The oldest inputs have none of
/// these, either.
const WITH_VIPL: Range<u8> = 0xc0..WITH_DAT;
/// The values of that byte for which the pair is one over VIA, likewise.
const OVER_VIA: Range<u8> = 0xa0..0xb0;
/// Of these, those that have a consumer of VIPL beside it, whose ends the pair's can reach.
const OVER_VIA_WITH_VIPL: Range<u8> = 0xac..OVER_VIA.end;

/// Whether the pair of such inputs is one over VIA.
pub(crate) fn is_over_via(kind: u8) -> bool {
    OVER_VIA.contains(&kind)
}

/// A number that most calls accept, and sometimes any number.
fn size(input: &mut Input<'_>, usual: usize) -> usize {
    if input.rarely(8) { input.number() as usize } else { input.below(usual) }
}

fn mask(input: &mut Input<'_>) -> u32 {
    if input.rarely(2) { 1 << input.below(24) } else { input.number() as u32 }
}

fn dto_flags(input: &mut Input<'_>) -> DtoFlags {
    let bits = u32::from(input.byte());
    DtoFlags::from_bits_retain(if input.rarely(16) { input.number() as u32 } else { bits })
}

fn mode(input: &mut Input<'_>) -> AddrMode {
    if input.rarely(2) { AddrMode::Relative } else { AddrMode::Absolute }
}

fn discriminator(name: &[u8]) -> ConnQual {
    let mut discriminator = [0; MAX_VIA_DISC_LEN];
    discriminator.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte);
    ConnQual::ViaDiscriminator(ViaDiscriminator { len: name.len() as u16, discriminator })
}

fn private_data<'a>(input: &mut Input<'a>) -> &'a [u8] {
    let len = input.below(256) >> if input.rarely(4) { 0 } else { 4 };
    input.bytes(len)
}

impl Consumer {
    /// A consumer of these IAs. `kind` is the first byte of the input.
    pub(crate) fn new(
        node: &Node,
        kind: u8,
        ends: [End; 2],
        other: Ia,
        buffers: [Arc<DmaBuffer>; 2],
    ) -> Consumer {
        let rich = kind % 2 == 1;
        let mut pools = Pools::default();
        for end in &ends {
            pools.pz.push(end.pz.as_raw());
            pools.evd.extend([end.requests.as_raw(), end.receives.as_raw()]);
            pools.ep.push(end.ep.as_raw());
        }
        let [a, b] = ends.map(|end| end.ia);
        let (address, quals) = match is_over_via(kind) {
            // The consumer of VIPL has the last name.
            true => {
                let named = [&b"disk"[..], b"s"].map(discriminator);
                (ends::address(&a), [&[ConnQual::port(7777)][..], &named].concat())
            }
            false => (NetAddr::Ipv4([10, 0, 0, 1]), vec![ConnQual::service_id(77)]),
        };
        let paths = a.get_pathinfo(1, &address, 1).map_or(Vec::new(), |(paths, _)| paths);
        let mut consumer = Consumer {
            ias: [a, b, other],
            pools,
            buffers,
            contexts: Vec::new(),
            requests: Vec::new(),
            resolutions: Vec::new(),
            quals,
            paths,
            datagram: RemoteEpInfo::default(),
            dat: None,
            vipl: None,
            has_vis: WITH_VIPL.contains(&kind) || is_over_via(kind),
        };
        consumer.furnish(rich);
        let p = &consumer.pools;
        let foreign = [&p.pz, &p.evd, &p.ep, &p.lmr, &p.srq].into_iter().flatten().copied().collect();
        if kind >= WITH_DAT {
            consumer.dat = Some(DatConsumer::new(node, consumer.buffers.clone(), foreign, rich));
        } else if WITH_VIPL.contains(&kind) || OVER_VIA_WITH_VIPL.contains(&kind) {
            let level = [ReliabilityLevel::Unreliable, ReliabilityLevel::Reception][usize::from(rich)];
            consumer.vipl = Some(ViplConsumer::new(node, [0, 0], foreign, level));
        }
        consumer
    }

    /// Creates objects, so that the first calls have valid arguments.
    fn furnish(&mut self, rich: bool) {
        for n in 0..2 {
            let ia = self.ias[n].clone();
            let pz = PzHandle::from_raw(self.pools.pz[n]);
            let memory = LmrMemory::buffer(&self.buffers[n]);
            let all = MemPriv::LOCAL | MemPriv::REMOTE;
            if let Ok((lmr, context)) =
                ia.lmr_create(pz, memory, 8192, AddrMode::Relative, all, LmrFlags::NONE, 0)
            {
                self.pools.lmr.push(lmr.as_raw());
                self.contexts.extend(context);
            }
            if !rich {
                continue;
            }
            let evd = |stream| ia.evd_create(stream, EvdFlags::empty(), 8, 1, EvdHandle::NULL);
            let streams = [
                EventType::CM_REQ_EVENT_STREAM,
                EventType::CM_MSG_EVENT_STREAM,
                EventType::SOFTWARE_EVENT_STREAM,
                EventType::ASYNC_AFF_EVENT_STREAM,
                EventType::ASYNC_UNAFF_EVENT_STREAM,
            ];
            self.pools.evd.extend(streams.into_iter().filter_map(|s| evd(s).ok()).map(EvdHandle::as_raw));
            if let Ok(srq) = ia.srq_create(pz, 2, 8) {
                self.pools.srq.push(srq.as_raw());
            }
        }
    }

    /// The IAs.
    pub(crate) fn ias(&self) -> [Ia; 3] {
        self.ias.clone()
    }

    /// Closes the IAs of the DAT face, or the NICs of VIPL.
    pub(crate) fn close_others(&self) {
        if let Some(dat) = &self.dat {
            dat.close();
        }
        if let Some(vipl) = &self.vipl {
            vipl.close();
        }
    }

    /// Panics if memory of VIPL's consumer was touched that was never registered.
    pub(crate) fn check_outside(&self) {
        if let Some(vipl) = &self.vipl {
            vipl.check_outside();
        }
    }

    /// Whether there are virtual interfaces.
    pub(crate) fn has_vis(&self) -> bool {
        self.has_vis
    }

    fn ia(&self, input: &mut Input<'_>) -> Ia {
        self.ias[[0, 0, 0, 1, 1, 1, 2, 2][input.below(8)]].clone()
    }

    fn handle(&self, input: &mut Input<'_>, pool: impl Fn(&Pools) -> &Vec<u64>) -> u64 {
        let pool = pool(&self.pools);
        match input.below(16) {
            // Newest first: these are the most likely to be alive.
            0..8 => pool.len().checked_sub(1 + input.below(4)).map_or(0, |at| pool[at]),
            8..12 => input.pick(pool).unwrap_or(0),
            12 => 0,
            13 => {
                let p = &self.pools;
                let all = [&p.pz, &p.evd, &p.ep, &p.lmr, &p.rmr, &p.srq, &p.listen, &p.addr, &p.svc];
                let other = all[input.below(all.len())];
                input.pick(other).unwrap_or(1)
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

    fn lmr(&self, input: &mut Input<'_>) -> LmrHandle {
        LmrHandle::from_raw(self.handle(input, |p| &p.lmr))
    }

    fn rmr(&self, input: &mut Input<'_>) -> RmrHandle {
        RmrHandle::from_raw(self.handle(input, |p| &p.rmr))
    }

    fn srq(&self, input: &mut Input<'_>) -> SrqHandle {
        SrqHandle::from_raw(self.handle(input, |p| &p.srq))
    }

    fn any_handle(&self, input: &mut Input<'_>) -> Handle {
        Handle::from_raw(match input.below(4) {
            0 => self.handle(input, |p| &p.evd),
            1 => self.handle(input, |p| &p.ep),
            2 => self.handle(input, |p| &p.srq),
            _ => self.handle(input, |p| &p.lmr),
        })
    }

    fn address(&self, input: &mut Input<'_>) -> u64 {
        match input.below(8) {
            0..4 => 8 * input.below(128) as u64,
            4..6 => self.buffers[input.below(2)].addr() as u64 + 8 * input.below(128) as u64,
            6 => input.number(),
            _ => (self.buffers[0].addr() as u64).wrapping_add(input.number()),
        }
    }

    fn segments(&self, input: &mut Input<'_>) -> Vec<LmrTriplet> {
        let count = if input.rarely(16) { input.below(40) } else { input.below(5) };
        (0..count)
            .map(|_| {
                if input.rarely(8) {
                    // By bus address: only the consumer's own memory, since the device does not
                    // check the address.
                    let (buffer, offset) = (&self.buffers[input.below(2)], input.below(256) as u64);
                    let length = input.number().min(buffer.len() as u64 - offset);
                    return LmrTriplet::direct(IoAddr(buffer.bus() + offset), length);
                }
                LmrTriplet::new(self.lmr(input), self.address(input), size(input, 200) as u64)
            })
            .collect()
    }

    fn rdma(&self, input: &mut Input<'_>) -> (RdmaAddr, RmrContext) {
        let context = input.pick(&self.contexts).unwrap_or_default();
        let context = if input.rarely(8) { RmrContext(input.number() as u32) } else { context };
        (make_rdma_addr_relative(self.address(input)), context)
    }

    fn path(&self, input: &mut Input<'_>) -> Path {
        let mut path = input.pick(&self.paths).unwrap_or_default();
        if input.rarely(4) {
            match input.below(6) {
                0 => path.spigot_id = input.number() as usize,
                1 => path.timeout = input.number(),
                2 => path.remote = NetEndpoint::Via(ViaNetAddr { len: 4, hostaddr: [1; 64] }),
                field => {
                    if let NetEndpoint::Via(host) = &mut path.remote {
                        let byte = input.byte();
                        match field {
                            3 => host.len = byte.into(),
                            _ => host.hostaddr[usize::from(byte) % MAX_VIA_ADDR_LEN] ^= byte,
                        }
                    }
                    if let Some(ib) = path.ib_mut() {
                        match field {
                            3 => ib.path_mtu = input.byte(),
                            4 => ib.partition_key = input.number() as u16,
                            _ => ib.remote_port_gid[input.below(16)] ^= input.byte(),
                        }
                    }
                }
            }
        }
        path
    }

    fn qual(&self, input: &mut Input<'_>) -> ConnQual {
        match input.below(8) {
            0..5 => input.pick(&self.quals).unwrap_or_default(),
            5 => ConnQual::port(input.number() as u16),
            6 => ConnQual::service_id(input.number()),
            _ => ConnQual::IanaLrPort { local: input.number() as u16, remote: 7 },
        }
    }

    fn attributes(&self, input: &mut Input<'_>) -> EpAttributes {
        let mut attr = EpAttributes {
            max_request_dtos: 4,
            max_recv_dtos: 4,
            priv_ops_enable: input.rarely(2),
            ..EpAttributes::default()
        };
        attr.rc.rdma_read_enable = true;
        attr.rc.rdma_write_enable = true;
        attr.rc.atomics_enable = input.rarely(2);
        if input.rarely(4) {
            attr.rc.srq = self.srq(input);
        }
        for _ in 0..input.below(3) {
            let value = size(input, 20);
            match input.below(10) {
                0 => attr.max_dto_payload_size = value,
                1 => attr.max_request_dtos = value,
                2 => attr.max_recv_dtos = value,
                3 => attr.max_send_segments = value,
                4 => attr.max_recv_segments = value,
                5 => attr.rc.rdma_read_ird = value as u32,
                6 => attr.rc.rdma_read_ord = value as u32,
                7 => attr.rc.soft_hi_watermark = value,
                8 => attr.rc.hard_hi_watermark = value,
                _ => attr.rc.max_rdma_read_segments = value,
            }
        }
        attr
    }

    /// One call.
    pub(crate) fn call(&mut self, input: &mut Input<'_>) {
        if let Some(dat) = &mut self.dat
            && !input.rarely(8)
        {
            return dat.call(input);
        }
        if let Some(vipl) = &mut self.vipl
            && !input.rarely(8)
        {
            return vipl.call(input);
        }
        match input.below(8) {
            0 | 1 => self.post(input),
            2 => self.memory(input),
            3 => self.link(input),
            4 => self.events(input),
            5 => self.connection(input),
            6 => self.objects(input),
            _ => self.queries(input),
        }
    }
}
