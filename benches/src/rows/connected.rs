//! Posts and reaps of connected endpoints.

use std::hint::black_box;

use host::Paused;
use privileged_api::{
    DtoCompletion, DtoFlags, EpFlags, EvdFlags, EvdHandle, EventType, IoAddr, Iobl, LmrFlags, RcAttributes,
};

use crate::calls::{self, Arguments, Linked};
use crate::samples::Recorder;
use crate::world::{End, PAGE, PAGES, World, attributes};

pub const ROWS: &[&str] = &[
    "post_write",
    "post_write_ref",
    "post_write_batch",
    "post_write_4",
    "post_send",
    "post_recv",
    "post_srq_recv",
    "dequeue",
    "dequeue_srq",
    "dequeue_callback",
    "dequeue_aggregate",
    "wait_ready",
    "dequeue_empty",
    "dequeue_64",
    "link_unlink",
];

/// Requests that an endpoint can have outstanding.
const DEPTH: usize = 64;
/// Writes of a batch.
const BATCH: usize = 16;
/// Operations before the one that is counted, so that caches and allocations are warm.
const WARM: usize = 3;

/// An endpoint that posts Writes.
struct Writer<'a> {
    world: &'a World,
    end: End,
    with: Arguments,
}

impl<'a> Writer<'a> {
    fn new(world: &'a World, end: End, segments: usize) -> Writer<'a> {
        Writer { world, end, with: world.arguments(segments) }
    }

    fn write(&self) {
        calls::write(&self.world.ia, self.end.ep, &self.with);
    }

    fn reap(&self) {
        self.world.reap(self.end.requests);
    }

    /// Posts `count` Writes and lets the device execute them.
    fn written(&self, device: &mut Paused<'static>, count: usize) {
        (0..count).for_each(|_| self.write());
        device.step();
    }

    /// Writes and reaps a few times.
    fn warm_up(&self, device: &mut Paused<'static>) {
        for _ in 0..WARM {
            self.written(device, 2);
            (0..2).for_each(|_| self.reap());
        }
    }
}

pub fn count(rows: &mut Recorder) {
    let world = World::new();
    requests(&world, rows);
    receives(&world, rows);
    shared_receives(&world, rows);
    batches(&world, rows);
    links(&world, rows);
    callback(&world, rows);
    aggregate(&world, rows);
    waiter(&world, rows);
}

fn requests(world: &World, rows: &mut Recorder) {
    let (a, b) = world.pair(DEPTH);
    let (one, four) = (Writer::new(world, a, 1), Writer::new(world, a, 4));
    world.paused(|device| {
        for (writer, key) in [(&one, "post_write"), (&four, "post_write_4")] {
            writer.warm_up(device);
            rows.count(key, 1, || writer.write());
            device.step();
            writer.reap();
        }
        let ep = black_box(world.ia.ep_ref(a.ep).expect("the endpoint"));
        let batch = || calls::write_batch(ep, &one.with, black_box(BATCH as u64));
        for round in 0..=WARM {
            let write = || calls::write_by_ref(ep, &one.with);
            if round < WARM {
                write()
            } else {
                rows.count("post_write_ref", 1, write)
            }
            device.step();
            if round < WARM {
                batch()
            } else {
                rows.count("post_write_batch", BATCH, batch)
            }
            device.step();
            (0..=BATCH).for_each(|_| one.reap());
        }
        one.written(device, 1);
        rows.count("dequeue", 1, || one.reap());
        rows.count("dequeue_empty", 1, || assert!(!calls::dequeue(&world.ia, a.requests)));
        let with = world.arguments(1);
        let send = || calls::send(&world.ia, a.ep, &with);
        for round in 0..=WARM {
            calls::receive(&world.ia, b.ep, &with);
            if round < WARM {
                send()
            } else {
                rows.count("post_send", 1, send)
            }
            device.step();
            one.reap();
        }
    });
}

fn receives(world: &World, rows: &mut Recorder) {
    let (a, _b) = world.pair(DEPTH);
    let with = world.arguments(1);
    let receive = || calls::receive(&world.ia, a.ep, &with);
    world.paused(|device| {
        for _ in 0..WARM {
            receive();
            device.step();
        }
        rows.count("post_recv", 1, receive);
    });
}

fn shared_receives(world: &World, rows: &mut Recorder) {
    let srq = world.ia.srq_create(world.pz, 4, DEPTH).expect("an SRQ");
    let a = world.end(world.evd(2 * DEPTH), world.evd(2 * DEPTH), DEPTH);
    let mut with_srq = attributes(DEPTH);
    with_srq.rc = RcAttributes { srq, ..with_srq.rc };
    let b = world.end_with(world.evd(2 * DEPTH), world.evd(2 * DEPTH), EpFlags::SRQ, &with_srq);
    world.connect(a.ep, b.ep);
    let with = world.arguments(1);
    let receive = || calls::receive(&world.ia, srq, &with);
    let reap = || world.reap(b.receives);
    world.paused(|device| {
        for round in 0..=WARM {
            if round < WARM {
                receive()
            } else {
                rows.count("post_srq_recv", 1, receive)
            }
            device.step();
            calls::send(&world.ia, a.ep, &with);
            device.step();
            if round < WARM { reap() } else { rows.count("dequeue_srq", 1, reap) }
        }
    });
}

fn batches(world: &World, rows: &mut Recorder) {
    let (a, _b) = world.pair(DEPTH);
    let writer = Writer::new(world, a, 1);
    let mut done = [DtoCompletion::default(); DEPTH];
    world.paused(|device| {
        for round in 0..=WARM {
            writer.written(device, DEPTH);
            let mut reap = || assert!(calls::dequeue_all(&world.ia, a.requests, &mut done) == DEPTH);
            if round < WARM { reap() } else { rows.count("dequeue_64", DEPTH, reap) }
        }
    });
}

fn links(world: &World, rows: &mut Recorder) {
    let (a, _b) = world.pair(DEPTH);
    let lmr = world.ia.lmr_create_unlinked(world.pz, PAGES, LmrFlags::NONE, 0).expect("a region");
    let (io, _) = world.ia.mem_map(world.memory.addr(), 0, PAGES * PAGE).expect("an I/O address");
    let pages: Vec<_> = (0..PAGES).map(|n| IoAddr(io.0 + (n * PAGE) as u64)).collect();
    let with = black_box(Linked {
        lmr,
        base: world.memory.addr(),
        length: (PAGES * PAGE) as u64,
        iobl: Iobl::pages(&pages, PAGE as u64, 0),
        flags: [DtoFlags::empty(), DtoFlags::COMPLETION],
    });
    let link_and_unlink = || calls::link_and_unlink(&world.ia, a.ep, &with);
    world.paused(|device| {
        for round in 0..=WARM {
            if round < WARM {
                link_and_unlink()
            } else {
                rows.count("link_unlink", 1, link_and_unlink)
            }
            device.step();
            world.reap(a.requests);
        }
    });
}

fn callback(world: &World, rows: &mut Recorder) {
    let (a, _b) = world.pair(DEPTH);
    let writer = Writer::new(world, a, 1);
    world.paused(|device| writer.warm_up(device));
    world.ia.evd_callback_attach(a.requests, Box::new(|_, _| {})).expect("a callback");
    world.paused(|device| {
        // The callback runs once. It is not due again, since no dequeue has found the queue empty.
        writer.written(device, 3);
        world.settle();
        writer.reap();
        rows.count("dequeue_callback", 1, || writer.reap());
    });
}

fn aggregate(world: &World, rows: &mut Recorder) {
    let stream = EventType::AEVD_NOTIFICATION_EVENT_STREAM;
    let aggregate =
        world.ia.evd_create(stream, EvdFlags::empty(), 1, 0, EvdHandle::NULL).expect("an aggregate");
    let a = world.end(world.evd_of(2 * DEPTH, aggregate), world.evd(2 * DEPTH), DEPTH);
    let b = world.end(world.evd(2 * DEPTH), world.evd(2 * DEPTH), DEPTH);
    world.connect(a.ep, b.ep);
    let writer = Writer::new(world, End { requests: aggregate, ..a }, 1);
    world.paused(|device| {
        for round in 0..=WARM {
            writer.written(device, 2);
            world.settle();
            writer.reap();
            let reap = || writer.reap();
            if round < WARM { reap() } else { rows.count("dequeue_aggregate", 1, reap) }
        }
    });
}

fn waiter(world: &World, rows: &mut Recorder) {
    let (a, _b) = world.pair(DEPTH);
    let writer = Writer::new(world, a, 1);
    let timeout = black_box(1_000_000);
    let wait = || calls::wait(&world.ia, a.requests, timeout);
    world.paused(|device| {
        for round in 0..=WARM {
            writer.written(device, 1);
            if round < WARM { wait() } else { rows.count("wait_ready", 1, wait) }
        }
    });
}
