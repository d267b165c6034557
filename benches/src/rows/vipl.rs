//! Posts and reaps of virtual interfaces.

use std::hint::black_box;

use vipl::{
    CqHandle, Descriptor, MemAttributes, MemHandle, Memory, Nic, Provider, ReliabilityLevel, ViAttributes,
    ViHandle, descriptor_len,
};

use crate::calls;
use crate::samples::Recorder;
use crate::world::World;

pub const ROWS: &[&str] = &[
    "via_format",
    "via_post_send",
    "via_post_send_linked",
    "via_post_recv",
    "via_send_done",
    "via_send_done_empty",
    "via_recv_done",
    "via_cq_done",
];

/// Operations before the one that is counted, so that caches and allocations are warm.
const WARM: usize = 3;
/// The longest time of any wait, in milliseconds.
const PATIENCE: u32 = 60_000;
/// Descriptors of a page.
const DESCRIPTORS: usize = 4;

pub fn count(rows: &mut Recorder) {
    let world = World::new();
    let nic = Provider::new(world.provider.interfaces()).open_nic("rnic0").expect("a NIC");
    let face = Face::new(&world, &nic);
    face.count(rows);
    // The device is still running; nothing depends on the result.
    let _ = nic.close_nic();
}

/// Runs an operation, and counts it in the last round.
fn once(rows: &mut Recorder, round: usize, key: &str, f: impl FnOnce()) {
    if round < WARM { f() } else { rows.count(key, 1, f) }
}

/// Two connected virtual interfaces, whose receive queues are tied to a completion queue.
struct Face<'a> {
    world: &'a World,
    nic: &'a Nic,
    cq: CqHandle,
    a: ViHandle,
    b: ViHandle,
    memory: MemHandle,
}

impl<'a> Face<'a> {
    fn new(world: &'a World, nic: &'a Nic) -> Face<'a> {
        let ptag = nic.create_ptag().expect("a tag");
        let cq = nic.create_cq(64).expect("a completion queue");
        let level = ReliabilityLevel::Delivery;
        let attributes = ViAttributes { reliability_level: level, ..ViAttributes::new(ptag) };
        let vi = || nic.create_vi(&attributes, CqHandle::NULL, cq).expect("a virtual interface");
        let (a, b) = (vi(), vi());
        let page = Memory::buffer(&world.memory);
        let length = world.memory.len() as u64;
        let memory = nic.register_mem(page, length, &MemAttributes::new(ptag)).expect("a region");
        let (own, server) = (nic.address(b"a").expect("short"), nic.address(b"b").expect("short"));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let request = nic.connect_wait(&server, None, PATIENCE).expect("a request");
                nic.connect_accept(request.conn, b).expect("accepting");
            });
            nic.connect_request(a, &own, &server, PATIENCE).expect("connecting");
        });
        Face { world, nic, cq, a, b, memory }
    }

    fn descriptor(&self, number: usize) -> Descriptor<'_> {
        Descriptor::at(&self.world.memory, number * descriptor_len(2), 2).expect("within the memory")
    }

    /// The address of the data.
    fn data(&self) -> u64 {
        black_box((self.world.memory.addr() + 4096) as u64)
    }

    /// The address of a descriptor with one segment. The compiler cannot know the values.
    fn formatted(&self, number: usize) -> u64 {
        let descriptor = self.descriptor(number);
        let data = vipl::DataSegment { address: self.data(), handle: self.memory.as_raw(), length: 64 };
        descriptor.send(&[data], None).expect("it fits");
        black_box(descriptor.address())
    }

    fn count(&self, rows: &mut Recorder) {
        let (nic, memory) = (self.nic, black_box(self.memory));
        self.world.paused(|device| {
            for round in 0..=WARM {
                let (memory_at, handle) = (self.data(), self.memory);
                let written = self.descriptor(DESCRIPTORS);
                once(rows, round, "via_format", || calls::via_format(&written, memory_at, handle));
                let [first, second, third, fourth] =
                    core::array::from_fn::<u64, DESCRIPTORS, _>(|number| self.formatted(number));
                once(rows, round, "via_post_recv", || calls::via_post_recv(nic, self.b, third, memory));
                calls::via_post_recv(nic, self.b, fourth, memory);
                once(rows, round, "via_post_send", || calls::via_post_send(nic, self.a, first, memory));
                let linked = || calls::via_post_send(nic, self.a, second, memory);
                once(rows, round, "via_post_send_linked", linked);
                device.step();
                device.step();
                let done = || assert!(calls::via_send_done(nic, self.a));
                once(rows, round, "via_send_done", done);
                done();
                let empty = || assert!(!calls::via_send_done(nic, self.a));
                once(rows, round, "via_send_done_empty", empty);
                let entry = || assert!(calls::via_cq_done(nic, self.cq));
                once(rows, round, "via_cq_done", entry);
                entry();
                let received = || assert!(calls::via_recv_done(nic, self.b));
                once(rows, round, "via_recv_done", received);
                received();
            }
        });
    }
}
