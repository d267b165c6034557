//! Posts and reaps through DAT, and those of IT-API's extensions with which they are compared.

use std::hint::black_box;

use dat::{
    CloseFlags, CnoHandle, CompletionFlags, ConnectFlags, EpAttr, EpHandle, EvdFlags, EvdHandle, Event,
    EventData, Ia, IaAttrMask, LmrTriplet, MemPriv, ProviderAttrMask, PspFlags, PzHandle, Qos,
    RegionDescription, RmrTriplet, ServiceType, SrqAttr, VaType, ia_open,
};
use privileged_api::{DtoFlags, EpAttributes, RcAttributes};

use crate::calls::{self, Arguments, DatArguments};
use crate::samples::Recorder;
use crate::world::{ALL, End, PAGE, PAGES, World, attributes};

pub const ROWS: &[&str] = &[
    "post_write_immediate",
    "post_atomic",
    "dequeue_immediate",
    "dat_post_write",
    "dat_post_write_4",
    "dat_post_send",
    "dat_post_recv",
    "dat_post_srq_recv",
    "dat_post_write_immed",
    "dat_post_cmp_swap",
    "dat_post_send_ud",
    "dat_dequeue",
    "dat_dequeue_empty",
    "dat_dequeue_immed",
];

/// Requests that an endpoint can have outstanding.
const DEPTH: usize = 64;
/// Operations before the one that is counted, so that caches and allocations are warm.
const WARM: usize = 3;
/// The longest time of any wait, in microseconds.
const PATIENCE: u32 = 60_000_000;

pub fn count(rows: &mut Recorder) {
    let world = World::new();
    extensions(&world, rows);
    let face = Face::new(&world);
    face.connected(rows);
    face.shared(rows);
    face.datagrams(rows);
}

/// Runs an operation, and counts it in the last round.
fn once(rows: &mut Recorder, round: usize, key: &str, f: impl FnOnce()) {
    if round < WARM { f() } else { rows.count(key, 1, f) }
}

/// IT-API's extensions.
fn extensions(world: &World, rows: &mut Recorder) {
    let with_atomics = |depth| {
        let attr = attributes(depth);
        EpAttributes { rc: RcAttributes { atomics_enable: true, ..attr.rc }, ..attr }
    };
    let end = || {
        let none = privileged_api::EpFlags::empty();
        world.end_with(world.evd(2 * DEPTH), world.evd(2 * DEPTH), none, &with_atomics(DEPTH))
    };
    let (a, b): (End, End) = (end(), end());
    world.connect(a.ep, b.ep);
    let rights = ALL | privileged_api::MemPriv::ATOMIC;
    let memory = privileged_api::LmrMemory::buffer(&world.memory);
    let (mode, none) = (privileged_api::AddrMode::Absolute, privileged_api::LmrFlags::NONE);
    let made = world.ia.lmr_create(world.pz, memory, world.memory.len() as u64, mode, rights, none, 0);
    let context = made.expect("a region").1.expect("a context");
    let plain = world.arguments(1);
    let both = DtoFlags::COMPLETION | DtoFlags::NOTIFY;
    let with = black_box(Arguments { context, flags: both, ..plain });
    let room = world.arguments(1);
    world.paused(|device| {
        for round in 0..=WARM {
            calls::receive(&world.ia, b.ep, &room);
            once(rows, round, "post_write_immediate", || calls::write_immediate(&world.ia, a.ep, &with));
            device.step();
            world.reap(a.requests);
            let reap = || assert!(calls::dequeue_extended(&world.ia, b.receives));
            once(rows, round, "dequeue_immediate", reap);
            once(rows, round, "post_atomic", || calls::compare_swap(&world.ia, a.ep, &with));
            device.step();
            world.reap(a.requests);
        }
    });
}

/// A DAT IA on the machine's NIC.
struct Face<'a> {
    world: &'a World,
    ia: Ia,
    pz: PzHandle,
    connections: EvdHandle,
    requests: EvdHandle,
    conn_qual: u64,
    region: dat::Lmr,
}

/// An endpoint and its event dispatchers.
#[derive(Clone, Copy)]
struct DatEnd {
    ep: EpHandle,
    requests: EvdHandle,
    receives: EvdHandle,
}

impl<'a> Face<'a> {
    fn new(world: &'a World) -> Face<'a> {
        let privileged = world.machine.privileged();
        let (ia, _) = ia_open(&world.provider, "rnic0", privileged, 8, EvdHandle::NULL).expect("an IA");
        let pz = ia.pz_create().expect("a zone");
        let evd = |flags| ia.evd_create(64, CnoHandle::NULL, flags).expect("an event dispatcher");
        let (connections, requests) = (evd(EvdFlags::CONNECTION), evd(EvdFlags::CR));
        let (conn_qual, _) = ia.psp_create_any(requests, PspFlags::Consumer).expect("a service point");
        let memory = RegionDescription::buffer(&world.memory);
        let all = MemPriv::ALL | MemPriv::IB_REMOTE_ATOMIC;
        let region = ia.lmr_create(memory, world.memory.len() as u64, pz, all, VaType::Va).expect("a region");
        Face { world, pz, connections, requests, conn_qual, region, ia }
    }

    fn evd(&self) -> EvdHandle {
        self.ia.evd_create(2 * DEPTH, CnoHandle::NULL, EvdFlags::DTO).expect("an event dispatcher")
    }

    fn end(&self, attr: &EpAttr) -> DatEnd {
        let (requests, receives) = (self.evd(), self.evd());
        let ep = self.ia.ep_create(self.pz, receives, requests, self.connections, Some(attr));
        DatEnd { ep: ep.expect("an endpoint"), requests, receives }
    }

    fn event(&self, evd: EvdHandle) -> Event {
        self.ia.evd_wait(evd, PATIENCE, 1).expect("an event").0
    }

    /// Connects two endpoints, or resolves the second one. Returns the event of the active side.
    fn connect(&self, a: EpHandle, b: EpHandle) -> Event {
        let (_, attr, _) = self.ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE).expect("a query");
        let address = attr.expect("attributes").ia_address;
        let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::Default);
        self.ia.ep_connect(a, address, self.conn_qual, PATIENCE, &[], qos, flags).expect("connecting");
        let EventData::CrArrival(arrival) = self.event(self.requests).event_data else {
            panic!("not a request")
        };
        self.ia.cr_accept(arrival.cr_handle, b, &[]).expect("accepting");
        let events = [self.event(self.connections), self.event(self.connections)];
        let of_a = |event: &Event| match event.event_data {
            EventData::Connection(connection) => connection.ep_handle == a,
            _ => false,
        };
        *events.iter().find(|event| of_a(event)).expect("the active side's event")
    }

    fn arguments(&self, count: usize) -> DatArguments {
        let base = self.world.memory.addr();
        let segment = |n| LmrTriplet::new(self.region.lmr_context, (base + n * PAGE) as u64, 64);
        black_box(DatArguments {
            segments: (0..count).map(segment).collect(),
            cookie: 7,
            flags: CompletionFlags::DEFAULT,
            to: RmrTriplet {
                rmr_context: self.region.rmr_context.expect("a context"),
                target_address: (base + (PAGES - 1) * PAGE) as u64,
                segment_length: 64,
            },
        })
    }

    fn reap(&self, evd: EvdHandle) {
        assert!(calls::dat_dequeue(&self.ia, evd));
    }

    fn connected(&self, rows: &mut Recorder) {
        let attr = EpAttr { max_rdma_read_in: 4, max_rdma_read_out: 4, ..EpAttr::default() };
        let (a, b) = (self.end(&attr), self.end(&attr));
        self.connect(a.ep, b.ep);
        let (one, four) = (self.arguments(1), self.arguments(4));
        self.world.paused(|device| {
            for round in 0..=WARM {
                once(rows, round, "dat_post_write", || calls::dat_write(&self.ia, a.ep, &one));
                device.step();
                once(rows, round, "dat_dequeue", || self.reap(a.requests));
                let empty = || assert!(!calls::dat_dequeue(&self.ia, a.requests));
                once(rows, round, "dat_dequeue_empty", empty);
                once(rows, round, "dat_post_write_4", || calls::dat_write(&self.ia, a.ep, &four));
                device.step();
                self.reap(a.requests);
                once(rows, round, "dat_post_recv", || calls::dat_receive(&self.ia, b.ep, &one));
                device.step();
                once(rows, round, "dat_post_send", || calls::dat_send(&self.ia, a.ep, &one));
                device.step();
                self.reap(a.requests);
                self.reap(b.receives);
                calls::dat_receive(&self.ia, b.ep, &one);
                let immediate = || calls::dat_write_immed(&self.ia, a.ep, &one);
                once(rows, round, "dat_post_write_immed", immediate);
                device.step();
                self.reap(a.requests);
                once(rows, round, "dat_dequeue_immed", || self.reap(b.receives));
                once(rows, round, "dat_post_cmp_swap", || calls::dat_cmp_swap(&self.ia, a.ep, &one));
                device.step();
                self.reap(a.requests);
            }
        });
    }

    fn shared(&self, rows: &mut Recorder) {
        let attr = SrqAttr { max_recv_dtos: DEPTH, max_recv_iov: 4, low_watermark: 0 };
        let srq = self.ia.srq_create(self.pz, &attr).expect("a shared receive queue");
        let with = self.arguments(1);
        self.world.paused(|device| {
            for round in 0..=WARM {
                let receive = || calls::dat_shared_receive(&self.ia, srq, &with);
                once(rows, round, "dat_post_srq_recv", receive);
                device.step();
            }
        });
    }

    fn datagrams(&self, rows: &mut Recorder) {
        let attr = EpAttr { service_type: ServiceType::IB_UD, ..EpAttr::default() };
        let (a, b) = (self.end(&attr), self.end(&attr));
        let event = self.connect(a.ep, b.ep);
        let ah = black_box(event.extension.expect("extension data").remote_ah);
        let with = self.arguments(1);
        self.world.paused(|device| {
            for round in 0..=WARM {
                let send = || calls::dat_send_ud(&self.ia, a.ep, &with, &ah);
                once(rows, round, "dat_post_send_ud", send);
                device.step();
                self.reap(a.requests);
            }
        });
    }
}

impl Drop for Face<'_> {
    fn drop(&mut self) {
        // The device is still running; nothing depends on the result.
        let _ = self.ia.ia_close(CloseFlags::Abrupt);
    }
}
