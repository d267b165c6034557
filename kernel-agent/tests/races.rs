//! Each call of a client, stopped before every lock that it takes, while something ends what it
//! works with: the object, the client, the agent, or the device.
//!
//! The hooks of the stack's locks belong to the whole process, so this file has one test. It asks
//! the same of each call, each lock and each end:
//! - both threads come to an end;
//! - what the call made is destroyed with its client, and nothing is left of the agent;
//! - once the end is over, the call touches no doorbell record of what has ended: the number may
//!   belong to another object by then.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use common::scene::{Counting, attributes, to};
use common::vi::vi_attributes;
use host::fake::{Fake, identity, success};
use host::{HostPlatform, Os};
use kernel_agent::{
    Agent, Arm, Client, Config, ConnectParams, Cq, Handshake, Identity, LinkFlags, MemoryList, Moves, Pd, Qp,
    Region, Reliability, ResolveParams, Shadow, Srq, Transports, Upcalls, Vi, ViCq, ViSide, Window,
    WindowType,
};
use nic_abi::admin::{CreateCq, CreateSrq, Opcode, QpState};
use nic_abi::doorbell::record;
use nic_abi::registers::{CQ_RECORDS, Features, RQ_RECORDS, SQ_RECORDS, SRQ_RECORDS, STATUS_STATE, State};
use nic_abi::wqe::{Opcode as Work, Segment};
use platform::sync::atomic::AtomicU32;
use platform::{Instant, OutOfMemory, Platform, Wake};
use roce::{Gid, Path, ServiceId, TimeoutCode};

std::thread_local! {
    /// What this thread does before it takes a lock.
    static BEFORE_LOCK: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    /// What this thread does when it has to wait for another thread.
    static WAITS: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

fn before_lock() {
    // What it does takes no lock of the stack.
    BEFORE_LOCK.with_borrow_mut(|act| act.as_mut().map(|act| act()));
}

fn waits() {
    WAITS.with_borrow_mut(|act| act.as_mut().map(|act| act()));
}

fn yields() {
    waits();
    std::thread::yield_now();
}

/// The operating system of the fake's machine, which says when a thread waits for another one, and
/// whose clock can be put forward.
struct Watched {
    below: Arc<dyn Platform>,
    ahead: Arc<AtomicU64>,
}

impl Watched {
    fn ahead(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }
}

impl Os for Watched {
    fn now(&self) -> Instant {
        self.below.now() + Duration::from_nanos(self.ahead())
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        // Waits for the device have deadlines.
        if deadline.is_none() {
            waits();
        }
        let deadline = deadline.map(|at| Instant::from_nanos(at.as_nanos().saturating_sub(self.ahead())));
        self.below.wait(word, expected, deadline)
    }

    fn wake(&self, word: &AtomicU32) {
        self.below.wake(word);
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        self.below.spawn(name, main)
    }

    fn current_thread(&self) -> u64 {
        self.below.current_thread()
    }
}

/// A device that accepts every command, and an agent on it.
struct Stage {
    fake: Fake,
    ahead: Arc<AtomicU64>,
    agent: Arc<Agent>,
}

impl Stage {
    fn new() -> Stage {
        let mut gids = [[0; 16]; 16];
        gids[1] = [7; 16];
        let identity = Identity {
            features: Features::VI.bits(),
            max_vi_segments: 252,
            max_vi_entries: 16,
            max_pds: 1 << 10,
            max_keys: 1 << 10,
            gids,
            ..identity()
        };
        let fake = Fake::new(identity, success);
        let ahead = Arc::new(AtomicU64::new(0));
        let os = Box::new(Watched { below: fake.platform.clone(), ahead: ahead.clone() });
        let platform = Arc::new(HostPlatform::on(fake.arena().clone(), os));
        let config = Config { max_qps: 64, max_cqs: 64, max_srqs: 16, ..Config::default() };
        let agent = Agent::open(platform, fake.transport(), 0, config).unwrap();
        platform::sync::set_yield(yields);
        platform::sync::set_preemption(before_lock);
        Stage { fake, ahead, agent }
    }
}

/// A client with an object of each type, and domains and queues that nothing uses.
struct Objects {
    client: Arc<Client>,
    counting: Arc<Counting>,
    pd: Arc<Pd>,
    free_pd: Arc<Pd>,
    cq: Arc<Cq>,
    free_cq: Arc<Cq>,
    free_vi_cq: Arc<ViCq>,
    srq: Arc<Srq>,
    qp: Arc<Qp>,
    idle_qp: Arc<Qp>,
    vi: Arc<Vi>,
    region: Arc<Region>,
    window: Arc<Window>,
    /// Where the doorbell records of the SRQ and of `free_cq` are.
    srq_record: usize,
    cq_record: usize,
}

impl Objects {
    fn new(stage: &Stage) -> Objects {
        let counting = Arc::new(Counting::default());
        let weak: Weak<dyn Upcalls> = Arc::downgrade(&(counting.clone() as Arc<dyn Upcalls>));
        let client = stage.agent.attach(weak).unwrap();
        let [pd, free_pd] = [(); 2].map(|()| client.create_pd().unwrap());
        let [cq, free_cq] = [(); 2].map(|()| client.create_cq(16, 1).unwrap());
        let (cq_number, _) = stage.fake.last::<CreateCq>(Opcode::CreateCq);
        let srq = client.create_srq(&pd, 8, 1, 0, 2).unwrap();
        let (srq_number, _) = stage.fake.last::<CreateSrq>(Opcode::CreateSrq);
        let [qp, idle_qp] = [(); 2].map(|()| {
            let qp = client.create_qp(&attributes(&pd, &cq, 3)).unwrap();
            qp.to_init(LinkFlags::empty()).unwrap();
            qp
        });
        to(&qp, QpState::Rtr);
        to(&qp, QpState::Rts);
        Objects {
            free_vi_cq: client.create_vi_cq(16, 4).unwrap(),
            vi: client.create_vi(&pd, &vi_attributes(Reliability::Delivery), [None; 2], [8; 2], 5).unwrap(),
            region: client.allocate_region(&pd, 1).unwrap(),
            window: client.allocate_window(&pd, WindowType::Narrow).unwrap(),
            srq_record: record(SRQ_RECORDS, srq_number),
            cq_record: record(CQ_RECORDS, cq_number),
            client,
            counting,
            pd,
            free_pd,
            cq,
            free_cq,
            srq,
            qp,
            idle_qp,
        }
    }

    fn path(&self) -> Path {
        Path::new(Gid([7; 16]), Gid([7; 16]))
    }
}

/// A call, the objects whose end may come meanwhile, and the doorbell record that it touches.
struct Race {
    name: &'static str,
    call: fn(&Objects),
    ends: &'static [fn(&Objects)],
    record: Option<fn(&Objects) -> usize>,
}

const fn race(name: &'static str, call: fn(&Objects), ends: &'static [fn(&Objects)]) -> Race {
    Race { name, call, ends, record: None }
}

const fn rings(
    name: &'static str,
    call: fn(&Objects),
    ends: &'static [fn(&Objects)],
    record: fn(&Objects) -> usize,
) -> Race {
    Race { name, call, ends, record: Some(record) }
}

const ARMS: &str = "arm a CQ";

/// Calls fail for what has ended, which is right.
const RACES: &[Race] = &[
    race("create_pd", |o| _ = o.client.create_pd(), &[]),
    race("create_cq", |o| _ = o.client.create_cq(4, 9), &[]),
    race("create_vi_cq", |o| _ = o.client.create_vi_cq(4, 9), &[]),
    race("create_srq", |o| _ = o.client.create_srq(&o.free_pd, 4, 1, 0, 9), &[|o| _ = o.free_pd.destroy()]),
    race(
        "create_qp",
        |o| _ = o.client.create_qp(&attributes(&o.free_pd, &o.free_cq, 9)),
        &[|o| _ = o.free_pd.destroy(), |o| _ = o.free_cq.destroy()],
    ),
    race(
        "create_vi",
        |o| {
            let cqs = [Some(&o.free_vi_cq), None];
            let attributes = vi_attributes(Reliability::Delivery);
            let _ = o.client.create_vi(&o.free_pd, &attributes, cqs, [4; 2], 9);
        },
        &[|o| _ = o.free_pd.destroy(), |o| _ = o.free_vi_cq.destroy()],
    ),
    race(
        "register",
        |o| {
            let memory = MemoryList::Contiguous { bus: 4096, length: 64 };
            let _ = o.client.register(&o.free_pd, LinkFlags::LOCAL_READ, 0, &memory);
        },
        &[|o| _ = o.free_pd.destroy()],
    ),
    race("allocate_region", |o| _ = o.client.allocate_region(&o.free_pd, 1), &[|o| _ = o.free_pd.destroy()]),
    race(
        "allocate_window",
        |o| _ = o.client.allocate_window(&o.free_pd, WindowType::Narrow),
        &[|o| _ = o.free_pd.destroy()],
    ),
    race("listen", |o| _ = o.client.listen(ServiceId(9), Transports::RC, 9), &[]),
    race(
        "connect",
        |o| {
            let params = ConnectParams::new(o.path(), ServiceId(8));
            let _ = o.client.connect(&o.idle_qp, &params, Handshake::TwoWay, b"");
        },
        &[|o| _ = o.idle_qp.destroy()],
    ),
    race(
        "connect a queue pair that the client moves",
        |o| {
            let params = ConnectParams { moves: Moves::None, ..ConnectParams::new(o.path(), ServiceId(8)) };
            let _ = o.client.connect(&o.idle_qp, &params, Handshake::ThreeWay, b"");
        },
        &[|o| _ = o.idle_qp.destroy()],
    ),
    race(
        "connect a VI",
        |o| {
            let params = ConnectParams::new(o.path(), ServiceId(8));
            let _ = o.client.connect(&o.vi, &params, Handshake::TwoWay, b"");
        },
        &[|o| _ = o.vi.destroy(), |o| _ = o.vi.disconnect()],
    ),
    race(
        "open_resolution",
        |o| {
            let params = ResolveParams {
                service: ServiceId(7),
                local_gid: Gid([7; 16]),
                remote_gid: Gid([7; 16]),
                ip_source_port: 0,
                response_timeout: TimeoutCode::from_low_bits(10),
                retries: 1,
                private_data: b"",
            };
            let _ = o.client.open_resolution(&params, 9);
        },
        &[],
    ),
    rings(
        "post to an SRQ",
        |o| {
            let segment = Segment { addr: 0, length: 8, key: 0 };
            let _ = o.srq.post_receive(false, &[segment], |&segment| segment, Shadow::default());
        },
        &[|o| _ = o.srq.destroy()],
        |o| o.srq_record,
    ),
    rings(
        "post a Send",
        |o| {
            let segment = Segment { addr: 0, length: 8, key: 0 };
            let _ = o.qp.post(&common::request(Work::Send, None), &[segment], |&segment| segment);
        },
        &[|o| _ = o.qp.destroy()],
        |o| record(SQ_RECORDS, o.qp.slot()),
    ),
    rings(
        "post a Receive",
        |o| {
            let segment = Segment { addr: 0, length: 8, key: 0 };
            let _ = o.qp.post_receive(false, &[segment], |&segment| segment, Shadow::default());
        },
        &[|o| _ = o.qp.destroy()],
        |o| record(RQ_RECORDS, o.qp.slot()),
    ),
    rings(
        "post a descriptor",
        |o| _ = o.vi.post(ViSide::Send, 64, 1, |_, _| ()),
        &[|o| _ = o.vi.destroy()],
        |o| record(SQ_RECORDS, o.vi.qpn() & 0x3fff),
    ),
    rings(ARMS, |o| o.free_cq.arm(Arm::Next), &[|o| _ = o.free_cq.destroy()], |o| o.cq_record),
    race("poll a CQ", |o| _ = o.cq.poll_one(), &[|o| _ = o.qp.destroy()]),
    race("resize a CQ", |o| _ = o.free_cq.resize(64), &[|o| _ = o.free_cq.destroy()]),
    race("arm a CQ of VIs", |o| o.free_vi_cq.arm(), &[|o| _ = o.free_vi_cq.destroy()]),
    race("resize a CQ of VIs", |o| _ = o.free_vi_cq.resize(64), &[|o| _ = o.free_vi_cq.destroy()]),
    race("modify an SRQ", |o| _ = o.srq.modify(Some(4), None), &[|o| _ = o.srq.destroy()]),
    race("change a queue pair", |o| _ = o.qp.to_error(), &[|o| _ = o.qp.destroy()]),
    race("join a group", |o| _ = o.qp.join([0xff; 16]), &[|o| _ = o.qp.destroy()]),
    race("leave a group", |o| _ = o.qp.leave([0xff; 16]), &[|o| _ = o.qp.destroy()]),
    race("reset a VI", |o| _ = o.vi.disconnect(), &[|o| _ = o.vi.destroy()]),
    race("query a region", |o| _ = o.region.query(), &[|o| _ = o.region.destroy()]),
    // An end that comes twice.
    race("destroy a PD", |o| _ = o.free_pd.destroy(), &[|o| _ = o.free_pd.destroy()]),
    race("destroy a CQ", |o| _ = o.free_cq.destroy(), &[|o| _ = o.free_cq.destroy()]),
    race("destroy a CQ of VIs", |o| _ = o.free_vi_cq.destroy(), &[|o| _ = o.free_vi_cq.destroy()]),
    race("destroy an SRQ", |o| _ = o.srq.destroy(), &[|o| _ = o.srq.destroy()]),
    race("destroy a queue pair", |o| _ = o.qp.destroy(), &[|o| _ = o.qp.destroy()]),
    race("destroy a VI", |o| _ = o.vi.destroy(), &[|o| _ = o.vi.destroy()]),
    race("destroy a region", |o| _ = o.region.destroy(), &[|o| _ = o.region.destroy()]),
    race("destroy a window", |o| _ = o.window.destroy(), &[|o| _ = o.window.destroy()]),
    race("destroy a domain in use", |o| _ = o.pd.destroy(), &[|o| _ = o.region.destroy()]),
];

/// What comes meanwhile.
#[derive(Clone, Copy)]
enum End {
    Object(fn(&Objects)),
    Client,
    Agent,
    Device,
}

impl End {
    /// Whether the agent is of no use afterwards.
    fn ends_agent(self) -> bool {
        matches!(self, End::Agent | End::Device)
    }

    fn run(self, stage: &Stage, objects: &Objects) {
        match self {
            End::Object(end) => end(objects),
            End::Client => objects.client.detach(),
            End::Agent => stage.agent.close(),
            End::Device => {
                let state = stage.fake.registers().atomic_u32(STATUS_STATE).unwrap();
                state.store(State::Failed as u32, Ordering::Release);
                // The dispatcher thread looks at the state four times a second.
                stage.ahead.fetch_add(1_000_000_000, Ordering::Relaxed);
                stage.fake.interrupt(0);
                while objects.counting.deaths.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// How long a stopped call waits for an end that waits for a thread which waits for the call.
const LONGEST_STOP: Duration = Duration::from_millis(50);

/// Runs the call, stops it before it takes its lock number `at`, and runs the end meanwhile. If the
/// end has to wait for the call, the call goes on. Returns whether no doorbell was rung after the
/// end; `None` if the call takes fewer locks.
fn stop_at(at: u64, stage: &Stage, objects: &Objects, race: &Race, end: End) -> Option<bool> {
    let (report, reports) = channel();
    let (resume, resumed) = channel::<()>();
    std::thread::scope(|scope| {
        let finished = report.clone();
        scope.spawn(move || {
            let locks = AtomicU64::new(0);
            BEFORE_LOCK.set(Some(Box::new(move || {
                if locks.fetch_add(1, Ordering::Relaxed) == at {
                    report.send(true).expect("the other thread");
                    let waited = resumed.recv_timeout(LONGEST_STOP);
                    assert_ne!(waited, Err(RecvTimeoutError::Disconnected));
                }
            })));
            (race.call)(objects);
            BEFORE_LOCK.set(None);
            finished.send(false).expect("the other thread");
        });
        if !reports.recv().expect("the thread") {
            return None;
        }
        let waited = Arc::new(AtomicU64::new(0));
        let (early, count) = (resume.clone(), waited.clone());
        WAITS.set(Some(Box::new(move || {
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                let _ = early.send(());
            }
        })));
        end.run(stage, objects);
        WAITS.set(None);
        // If the end never waited, it is over while the call stands still.
        let alone = waited.load(Ordering::Relaxed) == 0;
        // A completion queue takes no posts, and can be armed until the agent is closed.
        let may_arm = matches!(end, End::Device) && race.name == ARMS;
        let tail = race.record.filter(|_| alone && !may_arm).map(|of| {
            let word = stage.fake.registers().atomic_u64(of(objects)).unwrap();
            (word.load(Ordering::Acquire), of(objects))
        });
        if alone {
            let _ = resume.send(());
        }
        assert!(!reports.recv().expect("the thread"), "it ends");
        let same = tail.is_none_or(|(before, at)| {
            stage.fake.registers().atomic_u64(at).unwrap().load(Ordering::Acquire) == before
        });
        Some(same)
    })
}

#[test]
fn no_end_that_comes_at_any_lock_of_a_call_leaves_anything_or_is_followed_by_a_doorbell() {
    if !cfg!(debug_assertions) {
        // Locks have no hooks.
        return;
    }
    let mut stage = Stage::new();
    let mut stops = 0;
    let mut found = Vec::new();
    for race in RACES {
        let ends = race.ends.iter().map(|&end| End::Object(end));
        for end in ends.chain([End::Client, End::Agent, End::Device]) {
            for at in 0.. {
                assert!(at < 1000, "{} takes no more locks than that", race.name);
                let objects = Objects::new(&stage);
                let quiet = stop_at(at, &stage, &objects, race, end);
                objects.client.detach();
                let counts = stage.agent.counts();
                let mut good = quiet != Some(false) && counts == Default::default();
                if quiet.is_some() && (end.ends_agent() || !good) {
                    stage.agent.close();
                    good &= stage.agent.test_handle().quarantined() == 0;
                    drop(objects);
                    good &= Arc::strong_count(&stage.agent) == 1;
                    stage = Stage::new();
                }
                if !good {
                    found.push(format!("{}, stopped at lock {at}: {quiet:?}, {counts:?}", race.name));
                }
                if quiet.is_none() {
                    break;
                }
                stops += 1;
            }
        }
    }
    stage.agent.close();
    assert!(found.is_empty(), "{} of {stops} stops:\n{}", found.len(), found.join("\n"));
    assert!(stops > 300, "{stops} stops");
}
