//! What a client can do to the event queues that it shares with the other clients of its agent.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use common::*;
use host::Machine;
use kernel_agent::{
    Agent, Arm, AsyncEvent, Client, CmEvent, Config, Cq, Death, Error, Qp, Reliability, Resource, Upcalls,
    Vi, ViAttributes, ViSide, ViTaken,
};
use nic_abi::wqe::{LinkFlags, Opcode, Segment};

/// Nothing here takes this long. The dispatcher thread must not wait for ever for a device that
/// has failed, or it never reports that.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a client does in its upcalls for completions; it gets the number of those before.
type Act = fn(&Acting, u32);

/// A client that acts in its upcalls for completions.
struct Acting {
    act: Act,
    upcalls: AtomicU32,
    queues: OnceLock<(Arc<Cq>, Arc<Qp>)>,
    /// The device did not complete a request.
    stalled: AtomicBool,
}

impl Acting {
    fn attach(machine: &Machine, agent: &Arc<Agent>, act: Act) -> (Arc<Acting>, Arc<Client>) {
        let (queues_of, stalled) = (OnceLock::new(), AtomicBool::new(false));
        let acting = Arc::new(Acting { act, upcalls: AtomicU32::new(0), queues: queues_of, stalled });
        let weak: Weak<dyn Upcalls> = Arc::downgrade(&(acting.clone() as Arc<dyn Upcalls>));
        let client = agent.attach(weak).unwrap();
        assert!(acting.queues.set(queues(machine, &client)).is_ok());
        (acting, client)
    }

    fn cq(&self) -> &Cq {
        &self.queues.get().expect("the queues exist").0
    }

    /// Makes the device write an entry into the CQ, and takes it. The queue pair is in ERROR. So
    /// the request is flushed, which counts as solicited.
    fn complete(&self) {
        post(&self.queues.get().expect("the queues exist").1, Opcode::Send, Segment::default(), None, 0);
        let begun = Instant::now();
        while self.cq().poll_one().is_none() && !self.stalled.load(Ordering::Relaxed) {
            std::thread::yield_now();
            self.stalled.fetch_or(begun.elapsed() > PATIENCE, Ordering::Relaxed);
        }
    }

    fn upcalls(&self) -> u32 {
        self.upcalls.load(Ordering::Relaxed)
    }
}

impl Upcalls for Acting {
    fn completion(&self, _: u64) {
        (self.act)(self, self.upcalls.fetch_add(1, Ordering::Relaxed));
    }

    fn asynchronous(&self, _: AsyncEvent) {}

    fn connection(&self, _: CmEvent<'_>) {}

    fn catastrophic(&self, _: Death) {}
}

/// A CQ, and a queue pair in ERROR on it.
fn queues(machine: &Machine, client: &Arc<Client>) -> (Arc<Cq>, Arc<Qp>) {
    let (pd, cq) = (client.create_pd().unwrap(), client.create_cq(64, 1).unwrap());
    let qp = client.create_qp(&attributes(machine.privileged(), &pd, &cq, 1)).unwrap();
    qp.to_init(LinkFlags::empty()).unwrap();
    qp.to_error().unwrap();
    (cq, qp)
}

fn wait_for(agent: &Agent, what: impl Fn() -> bool) {
    while !what() {
        assert_eq!(agent.death(), None);
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_arms_its_cq_twice_in_each_upcall_does_not_fill_the_event_queue() {
    const UPCALLS: u32 = 400;
    let machine = Machine::new(1);
    let agent = open_with(&machine, 0, Config { max_cqs: 3, ..Config::default() });
    let node = Node::new(&machine, &agent);
    let (acting, client) = Acting::attach(&machine, &agent, |acting, upcalls| {
        if upcalls < UPCALLS {
            for arm in [Arm::Solicited, Arm::Next] {
                acting.cq().arm(arm);
                acting.complete();
            }
        }
    });
    acting.cq().arm(Arm::Solicited);
    acting.complete();
    wait_for(&agent, || acting.upcalls() >= UPCALLS);
    // The other client works.
    let other = node.qp(1);
    other.to_error().unwrap();
    post(&other, Opcode::Send, Segment::default(), None, 5);
    assert_eq!(node.completion().cookie, 5);
    client.detach();
    node.client.detach();
    agent.close();
}

#[test]
fn cqs_that_are_destroyed_while_the_dispatcher_thread_is_held_up_do_not_fill_the_event_queue() {
    static HOLD: AtomicBool = AtomicBool::new(true);
    let machine = Machine::new(1);
    let agent = open_with(&machine, 0, Config { max_cqs: 4, ..Config::default() });
    let (held, client) = Acting::attach(&machine, &agent, |_, _| {
        while HOLD.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    });
    held.cq().arm(Arm::Next);
    held.complete();
    wait_for(&agent, || held.upcalls() == 1);
    let other = Node::new(&machine, &agent);
    // Each CQ leaves an event in the queue.
    let churn = || -> Result<(), Error> {
        let cq = other.client.create_cq(4, 1)?;
        let qp = other.client.create_qp(&attributes(machine.privileged(), &other.pd, &cq, 1)).unwrap();
        qp.to_init(LinkFlags::empty()).unwrap();
        qp.to_error().unwrap();
        cq.arm(Arm::Next);
        post(&qp, Opcode::Send, Segment::default(), None, 0);
        while cq.poll_one().is_none() {
            std::thread::yield_now();
        }
        qp.destroy().unwrap();
        cq.destroy().unwrap();
        Ok(())
    };
    let refused = (0..2000).find_map(|_| churn().err());
    assert_eq!(refused, Some(Error::NoResources(Resource::Cqs)));
    assert_eq!(agent.death(), None);
    HOLD.store(false, Ordering::Release);
    wait_for(&agent, || churn().is_ok());
    client.detach();
    other.client.detach();
    agent.close();
}

#[test]
fn virtual_interfaces_do_not_fill_the_event_queue_while_the_dispatcher_thread_is_held_up() {
    static HOLD: AtomicBool = AtomicBool::new(true);
    let machine = Machine::new(1);
    let agent = open_with(&machine, 0, Config { max_vis: 4, ..Config::default() });
    let (held, client) = Acting::attach(&machine, &agent, |_, _| {
        while HOLD.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    });
    held.cq().arm(Arm::Next);
    held.complete();
    wait_for(&agent, || held.upcalls() == 1);
    let other = Node::new(&machine, &agent);
    let (reliability, access) = (Reliability::Unreliable, LinkFlags::empty());
    let attributes = ViAttributes { reliability, max_transfer: 1 << 16, access };
    let create = || other.client.create_vi(&other.pd, &attributes, [None; 2], [4; 2], 1);
    // The device cannot read the descriptor, so it takes it off and raises an event.
    let bad_post = |vi: &Vi| {
        vi.post(ViSide::Send, 8, 0, |_, _| {}).unwrap();
        vi.arm(ViSide::Send);
        while vi.queued(ViSide::Send) > 0 {
            match vi.take(ViSide::Send, |_, _| false) {
                // None: the dispatcher thread goes on, and has reported the descriptor meanwhile.
                ViTaken::Lost => match vi.take_lost(ViSide::Send) {
                    None => assert!(!HOLD.load(Ordering::Acquire)),
                    reported => assert_eq!(reported, Some(8)),
                },
                taken => assert_eq!(taken, ViTaken::NotDone),
            }
            std::thread::yield_now();
        }
    };
    // One that goes on, and one after the other.
    let vi = create().unwrap();
    (0..2000).for_each(|_| bad_post(&vi));
    let churn = || -> Result<(), Error> {
        let vi = create()?;
        bad_post(&vi);
        vi.destroy()
    };
    let refused = (0..2000).find_map(|_| churn().err());
    assert_eq!(refused, Some(Error::NoResources(Resource::Qps)));
    assert_eq!(agent.death(), None);
    HOLD.store(false, Ordering::Release);
    wait_for(&agent, || churn().is_ok());
    client.detach();
    other.client.detach();
    agent.close();
}

#[test]
fn resizing_does_not_pile_up_notices() {
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let (acting, client) = Acting::attach(&machine, &agent, |_, _| {});
    for round in 0..200 {
        acting.cq().resize(if round % 2 == 0 { 128 } else { 64 }).unwrap();
    }
    wait_for(&agent, || acting.upcalls() > 0);
    assert!(acting.upcalls() <= 200);
    // The upcall for a resize does not disarm the CQ, whose event is still to come.
    acting.cq().arm(Arm::Next);
    let before = acting.upcalls();
    acting.complete();
    wait_for(&agent, || acting.upcalls() > before);
    client.detach();
    agent.close();
}
