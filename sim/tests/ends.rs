//! Objects are made, used and connected while what they stand on ends: whichever thread is first,
//! nothing is left, and nothing reaches what comes next in the same place.

mod threads;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kernel_agent::{
    Agent, AsyncEvent, Client, CmEvent, Config, ConnectParams, Counts, Cq, Death, Error, Handshake,
    LinkFlags, Operation, Pd, Qp, QpAttributes, QpType, Request, ResolutionEvent, SendFlags, Shadow, Srq,
    Transports, Upcalls,
};
use nic_abi::admin::QpState;
use nic_abi::registers;
use nic_hal::Transport;
use platform::{Platform, Signal};
use roce::{Gid, Path, ServiceId};
use sim::World;
use threads::Running;

const SEEDS: u64 = 150;

/// A client that hears nothing.
struct Deaf;

impl Upcalls for Deaf {
    fn completion(&self, _: u64) {}
    fn asynchronous(&self, _: AsyncEvent) {}
    fn connection(&self, _: CmEvent<'_>) {}
    fn resolution(&self, _: ResolutionEvent<'_>) {}
    fn catastrophic(&self, _: Death) {}
}

/// An agent of the only NIC, with a client.
struct Node {
    platform: Arc<dyn Platform>,
    device: Arc<dyn Transport>,
    agent: Arc<Agent>,
    client: Arc<Client>,
    _upcalls: Arc<dyn Upcalls>,
}

impl Node {
    fn new(world: &World) -> Node {
        let (platform, device) = (world.platform(), world.transports().remove(0));
        // One SRQ, so that the next one has the same number.
        let config = Config { max_srqs: 1, ..Config::default() };
        let agent = Agent::open(platform.clone(), device.clone(), 0, config).expect("an agent");
        let upcalls: Arc<dyn Upcalls> = Arc::new(Deaf);
        let client = agent.attach(Arc::downgrade(&upcalls)).expect("a client");
        Node { platform, device, agent, client, _upcalls: upcalls }
    }

    /// Runs `body` in a thread of its own.
    fn spawn(&self, body: impl FnOnce() + Send + 'static) -> Running {
        Running::spawn(&self.platform, body)
    }

    /// Lets other threads run for a moment that the seed decides.
    fn pause(&self, world: &World) {
        for _ in 0..world.random() % 40 {
            self.platform.now();
        }
    }

    fn pd(&self) -> Arc<Pd> {
        self.client.create_pd().expect("a domain")
    }

    fn cq(&self) -> Arc<Cq> {
        self.client.create_cq(16, 0).expect("a CQ")
    }

    fn qp(&self, pd: &Arc<Pd>, cq: &Arc<Cq>) -> Arc<Qp> {
        let qp = self.client.create_qp(&attributes(pd, cq)).expect("a queue pair");
        qp.to_init(LinkFlags::empty()).expect("INIT");
        qp
    }

    fn srq(&self, pd: &Arc<Pd>) -> Arc<Srq> {
        self.client.create_srq(pd, 16, 1, 0, 0).expect("an SRQ")
    }

    /// How many receives the only SRQ's doorbell record reports as posted.
    fn posted_to_srq(&self) -> u32 {
        let mut tail = [0; 4];
        self.device.registers().read(registers::SRQ_RECORDS, &mut tail).expect("a register");
        u32::from_le_bytes(tail)
    }

    /// The doorbell FIFO's producer index, and all doorbell records.
    fn doorbells(&self) -> Vec<u8> {
        let records = registers::SIZE - registers::SQ_RECORDS;
        let mut bytes = vec![0; 4 + records];
        let (tail, rest) = bytes.split_at_mut(4);
        self.device.registers().read(registers::FIFO_TAIL, tail).expect("a register");
        self.device.registers().read(registers::SQ_RECORDS, rest).expect("registers");
        bytes
    }
}

fn attributes<'a>(pd: &'a Arc<Pd>, cq: &'a Arc<Cq>) -> QpAttributes<'a> {
    QpAttributes::new(QpType::Rc, pd, cq, 8)
}

fn receive(cookie: u64) -> Shadow {
    Shadow { cookie, data: 0 }
}

/// Makes objects of each type again and again, until that is refused.
fn make_until_refused(client: &Arc<Client>) -> Error {
    let mut round = 0;
    loop {
        round += 1;
        let made = client.create_pd().and_then(|pd| {
            let cq = client.create_cq(4, 0)?;
            let qp = client.create_qp(&attributes(&pd, &cq))?;
            let region = client.allocate_region(&pd, 1)?;
            let window = client.allocate_window(&pd, kernel_agent::WindowType::Wide)?;
            let listen = client.listen(ServiceId(100 + round), Transports::RC, 0)?;
            client.stop_listening(listen)?;
            client.listen(ServiceId(100_000 + round), Transports::RC, 0)?;
            window.destroy()?;
            region.destroy()?;
            qp.destroy()?;
            cq.destroy()?;
            pd.destroy()
        });
        if let Err(error) = made {
            return error;
        }
    }
}

fn each_seed(scenario: impl Fn(&World)) {
    for seed in 0..SEEDS {
        eprintln!("seed {seed}");
        let outcome = sim::run(seed, 1, |world| {
            scenario(world);
            // A thread may be held, for a second at most, between its signal and its end.
            let (platform, nobody) = (world.platform(), AtomicU32::new(0));
            platform.wait(&nobody, 0, Some(platform.now() + Duration::from_secs(2)));
        });
        assert_eq!(outcome.left, Vec::<String>::new(), "seed {seed}: threads that did not end");
    }
}

/// Drops the node. Nothing may keep the agent.
fn nothing_keeps(node: Node) {
    let agent: Weak<Agent> = Arc::downgrade(&node.agent);
    drop(node);
    assert!(agent.upgrade().is_none(), "objects that refer to each other keep the agent");
}

#[test]
fn what_is_made_while_a_client_is_detached_is_destroyed() {
    each_seed(|world| {
        let node = Node::new(world);
        let client = node.client.clone();
        let maker = node.spawn(move || {
            let refused = make_until_refused(&client);
            // The end of the client may end a listening point before the call that stops it.
            assert!(matches!(refused, Error::Gone | Error::ConnectionState), "{refused:?}");
        });
        node.pause(world);
        node.client.detach();
        maker.join();
        assert_eq!(node.agent.counts(), Counts::default());
        node.agent.close();
        nothing_keeps(node);
    });
}

#[test]
fn what_is_made_while_an_agent_is_closed_goes_with_it() {
    each_seed(|world| {
        let node = Node::new(world);
        let client = node.client.clone();
        // One of the threads stands still somewhere in a call while the agent is closed.
        let (held, after) = (world.random() % 3, world.random() % 300);
        let hold = |thread: u64| {
            let hold = world.holder();
            move || {
                if thread == held {
                    hold(after, Duration::from_secs(1));
                }
            }
        };
        let hold_maker = hold(0);
        let maker = node.spawn(move || {
            hold_maker();
            let refused = make_until_refused(&client);
            // An object or a listening point may be gone before the call that uses it finds the
            // device dead.
            let ended = matches!(refused, Error::DeviceDead(_) | Error::Gone | Error::ConnectionState);
            assert!(ended, "{refused:?}");
        });
        let listeners = [1u64, 2].map(|number| {
            let (client, hold_listener) = (node.client.clone(), hold(number));
            node.spawn(move || {
                hold_listener();
                let listen = |n| client.listen(ServiceId(number << 32 | n), Transports::RC, 0);
                let refused = (0..).find_map(|n| listen(n).and_then(|id| client.stop_listening(id)).err());
                let refused = refused.expect("an end");
                let ended = matches!(refused, Error::DeviceDead(_) | Error::Gone | Error::ConnectionState);
                assert!(ended, "{refused:?}");
            })
        });
        node.pause(world);
        node.agent.close();
        maker.join();
        listeners.into_iter().for_each(Running::join);
        assert_eq!(node.agent.counts(), Counts::default());
        nothing_keeps(node);
    });
}

#[test]
fn a_post_to_an_srq_that_is_destroyed_does_not_ring_for_its_successor() {
    each_seed(|world| {
        let node = Node::new(world);
        let pd = node.pd();
        let former = node.srq(&pd);
        let poster = node.spawn({
            let former = former.clone();
            move || {
                while former
                    .post_receive(false, &[], |&segment: &kernel_agent::Segment| segment, receive(1))
                    .is_ok()
                {}
            }
        });
        node.pause(world);
        former.destroy().expect("no queue pair uses it");
        let next = node.srq(&pd);
        poster.join();
        assert_eq!(node.posted_to_srq(), 0, "a doorbell of the successor");
        next.destroy().expect("no queue pair uses it");
        node.client.detach();
        node.agent.close();
    });
}

#[test]
fn nothing_rings_once_the_agent_is_closed() {
    each_seed(|world| {
        let node = Node::new(world);
        let pd = node.pd();
        let (cq, srq) = (node.cq(), node.srq(&pd));
        let qp = node.qp(&pd, &cq);
        let ended = Arc::new(AtomicBool::new(false));
        let mut running = Vec::new();
        // Posters and reapers go on until some time after the agent is closed.
        let until_the_end = |mut act: Box<dyn FnMut() + Send>| {
            let (ended, platform) = (ended.clone(), node.platform.clone());
            node.spawn(move || {
                while !ended.load(Ordering::Acquire) {
                    act();
                    platform.now();
                }
                for _ in 0..4 {
                    act();
                }
            })
        };
        let shared = srq.clone();
        running.push(until_the_end(Box::new(move || {
            let _ = shared.post_receive(false, &[], |&segment: &kernel_agent::Segment| segment, receive(1));
        })));
        let own = qp.clone();
        running.push(until_the_end(Box::new(move || {
            let _ = own.post_receive(false, &[], |&segment: &kernel_agent::Segment| segment, receive(2));
            let operation = Operation::Send { immediate: None };
            let request = Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow::default() };
            let _ = own.post_plain(&request);
        })));
        let (queue, poller) = (qp.clone(), cq.clone());
        running.push(until_the_end(Box::new(move || {
            // The receives flush, so that there is something to poll.
            let _ = queue.to_error();
            poller.arm(kernel_agent::Arm::Next);
            poller.poll(16, |_| {});
            let _ = queue.to_reset();
            let _ = queue.to_init(LinkFlags::empty());
        })));
        node.pause(world);
        node.agent.close();
        let before = node.doorbells();
        ended.store(true, Ordering::Release);
        running.into_iter().for_each(Running::join);
        assert!(node.doorbells() == before, "a doorbell of a NIC that another agent may have opened");
        drop((pd, cq, srq, qp));
        nothing_keeps(node);
    });
}

#[test]
fn a_queue_pair_that_is_destroyed_while_it_connects_leaves_no_connection() {
    each_seed(|world| {
        let node = Node::new(world);
        let (pd, cq) = (node.pd(), node.cq());
        let qp = node.qp(&pd, &cq);
        let gid = Gid(node.agent.identity().gids[1]);
        let connector = node.spawn({
            let (client, qp) = (node.client.clone(), qp.clone());
            move || {
                let params = ConnectParams::new(Path::new(gid, gid), ServiceId(7));
                let _ = client.connect(&qp, &params, Handshake::TwoWay, &[]);
            }
        });
        node.pause(world);
        qp.destroy().expect("the device works");
        connector.join();
        assert_eq!(node.agent.counts().connections, 0);
        node.client.detach();
        node.agent.close();
        drop((pd, cq, qp));
        nothing_keeps(node);
    });
}

/// A client that holds the dispatcher thread after the first asynchronous event.
struct Holds(Box<dyn Fn() + Send + Sync>);

impl Upcalls for Holds {
    fn completion(&self, _: u64) {}
    fn asynchronous(&self, _: AsyncEvent) {
        (self.0)();
    }
    fn connection(&self, _: CmEvent<'_>) {}
    fn resolution(&self, _: ResolutionEvent<'_>) {}
    fn catastrophic(&self, _: Death) {}
}

#[test]
fn a_queue_pair_that_breaks_while_it_is_reset_is_whole_afterwards() {
    each_seed(|world| {
        let node = Node::new(world);
        let (hold, after) = (world.holder(), world.random() % 24);
        let holds: Arc<dyn Upcalls> = Arc::new(Holds(Box::new(move || hold(after, Duration::from_secs(1)))));
        let client = node.agent.attach(Arc::downgrade(&holds)).expect("a client");
        let pd = client.create_pd().expect("a domain");
        let cq = client.create_cq(16, 0).expect("a CQ");
        let attributes = QpAttributes { qp_type: QpType::Ud, ..attributes(&pd, &cq) };
        // The dispatcher thread is held while it acts on the second event, or not at all.
        for _ in 0..2 {
            let qp = client.create_qp(&attributes).expect("a queue pair");
            qp.to_init(LinkFlags::empty()).expect("INIT");
            qp.start_datagrams(1).expect("RTS");
            // A datagram from a GID that the NIC does not have breaks the queue pair.
            let to = nic_abi::wqe::AddressVector { source_gid: u8::MAX, ..Default::default() };
            let operation = Operation::Datagram { to };
            let request = Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow::default() };
            qp.post_plain(&request).expect("room");
            let broken = || qp.query().expect("a queue pair").state == QpState::Error as u32;
            assert!((0..1000).any(|_| broken()), "the queue pair does not break");
            node.pause(world);
            qp.to_reset().expect("RESET");
            // Until the dispatcher thread has gone on and finished.
            let later = node.platform.now() + Duration::from_secs(2);
            Signal::new(node.platform.clone()).wait(0, Some(later));
            world.settle();
            assert_eq!(qp.state(), QpState::Reset);
            qp.destroy().expect("the device works");
        }
        drop((pd, cq));
        client.detach();
        node.client.detach();
        node.agent.close();
    });
}
