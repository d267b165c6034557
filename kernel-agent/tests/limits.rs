//! Tables that run out, and devices that die.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use host::Machine;
use kernel_agent::{
    Agent, CmEventKind, Config, Death, Error, Handshake, Link, MemoryList, PostError, Qp, QpAttributes,
    Resource, SendFlags, Shadow, Transports, WindowType,
};
use nic_abi::admin::Injection;
use nic_abi::wqe::{LinkFlags, Opcode, Segment};
use platform::pages::{PAGE, PageByPage};
use platform::{DmaBuffer, Platform};
use roce::{Gid, ServiceId};

#[test]
fn an_agent_has_room_for_256_clients_at_once() {
    struct Deaf;
    impl kernel_agent::Upcalls for Deaf {
        fn completion(&self, _: u64) {}
        fn asynchronous(&self, _: kernel_agent::AsyncEvent) {}
        fn connection(&self, _: kernel_agent::CmEvent<'_>) {}
        fn resolution(&self, _: kernel_agent::ResolutionEvent<'_>) {}
        fn catastrophic(&self, _: Death) {}
    }
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let upcalls: Arc<dyn kernel_agent::Upcalls> = Arc::new(Deaf);
    for _ in 0..2 {
        let attach = || agent.attach(Arc::downgrade(&upcalls));
        let clients: Vec<_> = (0..256).map(|_| attach().expect("room")).collect();
        assert_eq!(attach().err(), Some(Error::NoResources(Resource::Clients)));
        clients[100].detach();
        let another = attach().expect("the place that came free");
        assert_eq!(agent.counts().clients, 256);
        clients.iter().for_each(|client| client.detach());
        another.detach();
        assert_eq!(agent.counts().clients, 0);
    }
    agent.close();
}

#[test]
fn every_table_runs_out_and_recovers() {
    let machine = Machine::new(1);
    let config = Config {
        max_qps: 4,
        max_vis: 4,
        max_cqs: 4,
        max_srqs: 4,
        max_pds: 4,
        max_keys: 4,
        max_streams: 4,
        max_connections: 4,
        max_listens: 4,
        without_crc: true,
        silence: Duration::from_secs(1),
    };
    let agent = open_with(&machine, 0, config);
    // A NIC that does not offer virtual interfaces has none.
    assert_eq!(Config { max_vis: 4, ..*agent.config() }, config);
    let node = Node::new(&machine, &agent);
    let available = machine.arena().available();
    for _ in 0..3 {
        let mut qps = Vec::new();
        let full = loop {
            match node.client.create_qp(&node.attributes(1)) {
                Ok(qp) => qps.push(qp),
                Err(error) => break error,
            }
        };
        assert_eq!((qps.len(), full), (4, Error::NoResources(Resource::Qps)));
        let mut cqs = Vec::new();
        let full = loop {
            match node.client.create_cq(4, 1) {
                Ok(cq) => cqs.push(cq),
                Err(error) => break error,
            }
        };
        assert_eq!((cqs.len(), full), (3, Error::NoResources(Resource::Cqs)));
        let mut srqs = Vec::new();
        let full = loop {
            match node.client.create_srq(&node.pd, 4, 1, 0, 1) {
                Ok(srq) => srqs.push(srq),
                Err(error) => break error,
            }
        };
        assert_eq!((srqs.len(), full), (4, Error::NoResources(Resource::Srqs)));
        let mut pds = Vec::new();
        let full = loop {
            match node.client.create_pd() {
                Ok(pd) => pds.push(pd),
                Err(error) => break error,
            }
        };
        assert_eq!((pds.len(), full), (3, Error::NoResources(Resource::Pds)));
        let memory = MemoryList::Contiguous { bus: 4096, length: 4096 };
        let r1 = node.client.register(&node.pd, LinkFlags::LOCAL_READ, 0, &memory).unwrap();
        let r2 = node.client.allocate_region(&node.pd, 4).unwrap();
        let w1 = node.client.allocate_window(&node.pd, WindowType::Wide).unwrap();
        let w2 = node.client.allocate_window(&node.pd, WindowType::Narrow).unwrap();
        let none = Error::NoResources(Resource::Keys);
        let refused = node.client.register(&node.pd, LinkFlags::LOCAL_READ, 0, &memory);
        assert_eq!(refused.err(), Some(none));
        assert_eq!(node.client.allocate_region(&node.pd, 4).err(), Some(none));
        assert_eq!(node.client.allocate_window(&node.pd, WindowType::Wide).err(), Some(none));
        let mut listens = Vec::new();
        let full = loop {
            match node.client.listen(ServiceId(100 + listens.len() as u64), Transports::RC, 0) {
                Ok(listen) => listens.push(listen),
                Err(error) => break error,
            }
        };
        assert_eq!((listens.len(), full), (4, Error::NoResources(Resource::Listens)));
        let counts = agent.counts();
        assert_eq!((counts.qps, counts.cqs, counts.srqs, counts.pds), (4, 4, 4, 4));
        assert_eq!((counts.regions, counts.windows, counts.listens), (2, 2, 4));

        qps.iter().for_each(|qp| qp.destroy().unwrap());
        cqs.iter().for_each(|cq| cq.destroy().unwrap());
        srqs.iter().for_each(|srq| srq.destroy().unwrap());
        pds.iter().for_each(|pd| pd.destroy().unwrap());
        r1.destroy().unwrap();
        r2.destroy().unwrap();
        w1.destroy().unwrap();
        w2.destroy().unwrap();
        listens.into_iter().for_each(|listen| node.client.stop_listening(listen).unwrap());
        drop((qps, cqs, srqs, r1, r2));
        assert_eq!(machine.arena().available(), available);
    }
    node.client.detach();
    assert_eq!(agent.counts(), Default::default());
    agent.close();
}

#[test]
fn a_slot_has_no_next_owner_while_a_link_of_the_former_is_outstanding() {
    let machine = Machine::new(1);
    let config = Config { max_keys: 4, ..Config::default() };
    let agent = open_with(&machine, 0, config);
    let (a, b) = (Node::new(&machine, &agent), Node::new(&machine, &agent));
    let (qa, ..) = connect(&a, &b, 1);
    let memory = a.buffer(4096);
    let pages = [memory.bus()];
    let list = MemoryList::Pages { pages: &pages, page_size: 4096, first_byte_offset: 0, length: 4096 };
    let link = Link { flags: LinkFlags::LOCAL_READ, base: 0, memory: list };
    let allocate = || a.client.allocate_region(&a.pd, 1);
    let none = Error::NoResources(Resource::Keys);
    let available = machine.arena().available();
    // A Send for which there is no receive holds up what is posted behind it.
    let links_of_freed_regions = |qp: &Qp| {
        qp.post_plain(&request(Opcode::Send, None)).unwrap();
        for _ in 0..4 {
            let region = allocate().unwrap();
            qp.post_link(&region, &link, SendFlags::empty(), Shadow::default()).unwrap();
            region.destroy().unwrap();
        }
        assert_eq!(allocate().err(), Some(none));
    };
    links_of_freed_regions(&qa);
    // The memory of the lists is released at once, since no region has these keys.
    assert_eq!(machine.arena().available(), available);
    // Once the links are flushed and their completions are taken, all slots are free.
    qa.to_error().unwrap();
    for _ in 0..5 {
        a.completion();
    }
    let regions: Vec<_> = (0..4).map(|_| allocate().unwrap()).collect();
    assert_eq!(allocate().err(), Some(none));
    regions.iter().for_each(|region| region.destroy().unwrap());
    // The same if the queue pair is destroyed.
    let (qa, ..) = connect(&a, &b, 2);
    links_of_freed_regions(&qa);
    qa.destroy().unwrap();
    assert!((0..4).all(|_| allocate().is_ok()));
    a.client.detach();
    b.client.detach();
    agent.close();
}

#[test]
fn connections_run_out() {
    let machine = Machine::new(1);
    let agent = open_with(&machine, 0, Config { max_connections: 2, ..Config::default() });
    let (a, b) = (Node::new(&machine, &agent), Node::new(&machine, &agent));
    b.client.listen(ServiceId(1), Transports::RC, 0).unwrap();
    let (q1, q2) = (a.qp(1), a.qp(2));
    // There is room for both ends of one connection, and no more.
    dial(&a, &q1, &b, 1, b"").unwrap();
    b.ears.cm("the request", |kind| matches!(kind, CmEventKind::Request { .. }));
    let full = dial(&a, &q2, &b, 1, b"");
    assert_eq!(full, Err(Error::NoResources(Resource::Connections)));
    assert_eq!(q2.state(), nic_abi::admin::QpState::Init);
    let mut nowhere = params(&a, &b, 1);
    nowhere.path.local_gid = Gid([9; 16]);
    let wrong = a.client.connect(&q2, &nowhere, Handshake::TwoWay, b"");
    assert_eq!(wrong, Err(Error::OutOfRange("source GID")));
    let wrong = dial(&a, &q2, &b, 1, &[0; 93]);
    assert_eq!(wrong, Err(Error::PrivateData(92)));
    agent.close();
}

#[test]
fn arguments_beyond_the_limits_change_nothing() {
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let node = Node::new(&machine, &agent);
    let available = machine.arena().available();
    let identity = *agent.identity();
    let refuse = |change: &dyn Fn(&mut QpAttributes<'_>)| {
        let mut attributes = node.attributes(1);
        change(&mut attributes);
        let error = node.client.create_qp(&attributes).err();
        assert!(matches!(error, Some(Error::OutOfRange(_))), "{error:?}");
    };
    refuse(&|qp| qp.max_send_segments = identity.max_sges + 1);
    refuse(&|qp| qp.max_receive_segments = identity.max_sges + 1);
    refuse(&|qp| qp.max_send_requests = identity.max_sq_blocks + 1);
    refuse(&|qp| qp.max_send_requests = u32::MAX);
    refuse(&|qp| qp.max_receive_requests = u32::MAX);
    refuse(&|qp| qp.max_message = identity.max_message + 1);
    refuse(&|qp| qp.qp_type = kernel_agent::QpType::Gsi);
    for entries in [identity.max_cqes + 1, u32::MAX] {
        assert_eq!(node.client.create_cq(entries, 1).err(), Some(Error::OutOfRange("CQ size")));
        assert_eq!(node.cq.resize(entries), Err(Error::OutOfRange("CQ size")));
    }
    let most = identity.max_list_elements;
    assert!(matches!(node.client.allocate_region(&node.pd, most + 1), Err(Error::OutOfRange(_))));
    let outside = MemoryList::Contiguous { bus: identity.dma_limit, length: 1 };
    assert!(node.client.register(&node.pd, LinkFlags::LOCAL_READ, 0, &outside).is_err());
    let nowhere = node.client.register_virtual(&node.pd, LinkFlags::LOCAL_READ, 0, 8, 8);
    assert_eq!(nowhere.err(), Some(Error::NotReachable));
    let wrap = node.client.register_virtual(&node.pd, LinkFlags::LOCAL_READ, 0, usize::MAX, u64::MAX);
    assert_eq!(wrap.err(), Some(Error::NotReachable));
    let counts = agent.counts();
    assert_eq!((counts.qps, counts.cqs, counts.regions), (0, 1, 0));
    assert_eq!(machine.arena().available(), available);
    node.client.detach();
    agent.close();
    assert_eq!(agent.test_handle().quarantined(), 0);
}

#[test]
fn a_translation_asks_the_platform_for_no_more_extents_than_a_list_can_have() {
    const GIB: usize = 1 << 30;
    let machine = Machine::with_memory(1, GIB + (16 << 20));
    let platform: Arc<dyn Platform> = Arc::new(PageByPage::new(machine.platform()));
    let addr = DmaBuffer::new(&platform, PAGE, PAGE).unwrap().addr();
    let agent = Agent::open(platform, machine.transport(0), 0, Config::default()).unwrap();
    let most = u64::from(agent.identity().max_list_elements) * PAGE as u64;
    assert_eq!(most, GIB as u64);
    let mut runs = Vec::new();
    agent.translate(addr, most, |run| runs.push(run.length)).unwrap();
    assert_eq!(runs, [most], "adjacent extents are joined");
    for length in [most + 1, 1 << 48, u64::MAX] {
        assert_eq!(agent.translate(addr, length, |_| ()), Err(Error::TooScattered));
    }
    agent.close();
}

#[test]
fn memory_that_runs_out_changes_nothing() {
    // From too little memory for the agent itself to just enough for all.
    let mut opened = 0;
    for megabytes in [0, 1, 2, 3, 4, 6, 8] {
        let machine = Machine::with_memory(1, (megabytes << 20) + (64 << 10));
        let available = machine.arena().available();
        match Agent::open(machine.platform(), machine.transport(0), 0, Config::default()) {
            Ok(agent) => {
                opened += 1;
                let node = Node::new(&machine, &agent);
                let mut cqs = Vec::new();
                let error = loop {
                    match node.client.create_cq(1 << 16, 0) {
                        Ok(cq) => cqs.push(cq),
                        Err(error) => break error,
                    }
                };
                assert_eq!(error, Error::OutOfMemory);
                node.client.detach();
                drop((node, cqs));
                agent.close();
                drop(agent);
            }
            Err(error) => assert_eq!(error, Error::OutOfMemory),
        }
        assert_eq!(machine.arena().available(), available, "{megabytes} MiB");
    }
    assert!(opened > 0);
}

fn dies(kill: impl FnOnce(&mut Machine, &Agent), expected: impl Fn(Death) -> bool) {
    let mut machine = Machine::new(1);
    let agent = open_with(&machine, 0, Config { silence: Duration::from_secs(1), ..Config::default() });
    let (a, b) = (Node::new(&machine, &agent), Node::new(&machine, &agent));
    let (qa, ca, _qb, _) = connect(&a, &b, 1);
    let from = a.buffer(64);
    let ra = a.register(&from);
    let waiter = {
        let (cq, ears) = (a.cq.clone(), a.ears.clone());
        std::thread::spawn(move || {
            cq.arm(kernel_agent::Arm::Next);
            ears.wait_for("death", |heard| match heard {
                Heard::Dead(death) => Some(*death),
                _ => None,
            })
        })
    };
    kill(&mut machine, &agent);
    let death = waiter.join().unwrap();
    assert!(expected(death), "{death:?}");
    let again = b.ears.wait_for("death", |heard| match heard {
        Heard::Dead(death) => Some(*death),
        _ => None,
    });
    assert_eq!(again, death);
    assert_eq!(agent.death(), Some(death));
    // From here on every call fails at once, and none blocks.
    assert_eq!(qa.to_error(), Err(Error::DeviceDead(death)));
    assert_eq!(a.client.create_pd().err(), Some(Error::DeviceDead(death)));
    assert_eq!(a.client.create_qp(&a.attributes(1)).err(), Some(Error::DeviceDead(death)));
    assert_eq!(a.client.disconnect(ca, b""), Err(Error::DeviceDead(death)));
    let post = qa.post(&request(Opcode::Send, None), &[segment(&from, &ra)], |&s| s);
    assert_eq!(post, Err(PostError::Gone));
    assert_eq!(ra.destroy(), Ok(()));
    assert_eq!(qa.destroy(), Err(Error::DeviceDead(death)));
    a.client.detach();
    b.client.detach();
    assert_eq!(a.client.create_pd().err(), Some(Error::Gone));
    assert_eq!(agent.counts(), Default::default());
    assert!(a.ears.all().iter().all(|heard| !matches!(heard, Heard::Dead(_))), "one report only");
    agent.close();
    assert!(matches!(agent.attach(Arc::downgrade(&(a.ears.clone() as _))), Err(Error::DeviceDead(_))));
}

#[test]
fn the_device_is_killed() {
    dies(|machine, _| machine.kill(), |death| matches!(death, Death::Heartbeat | Death::CommandTimeout));
}

#[test]
fn the_device_falls_silent() {
    dies(
        |_, agent| agent.test_handle().inject(0, Injection::Mute, 1, 0).unwrap(),
        |death| death == Death::Heartbeat,
    );
}

#[test]
fn the_device_falls_silent_and_deaf() {
    dies(
        |_, agent| agent.test_handle().inject(0, Injection::Mute, 1, 1).unwrap(),
        |death| death == Death::Heartbeat,
    );
}

#[test]
fn the_device_gives_up() {
    dies(|_, agent| give_up(agent), |death| matches!(death, Death::Failed(_)));
}

#[test]
fn commands_to_a_silent_device_end() {
    let machine = Machine::new(1);
    let agent = open_with(&machine, 0, Config { silence: Duration::from_secs(1), ..Config::default() });
    let node = Node::new(&machine, &agent);
    agent.test_handle().inject(0, Injection::Mute, 1, 0).unwrap();
    let started = std::time::Instant::now();
    assert!(matches!(node.client.create_pd(), Err(Error::DeviceDead(_))));
    assert!(matches!(node.client.create_pd(), Err(Error::DeviceDead(_))));
    assert!(started.elapsed().as_secs() < 10);
    // It still carries out a reset: its memory is released, and it can be opened again.
    agent.close();
    assert_eq!(agent.test_handle().quarantined(), 0);
    let agent = open(&machine, 0);
    let node = Node::new(&machine, &agent);
    node.qp(1).destroy().unwrap();
    agent.close();
}

#[test]
fn a_closed_agents_nic_can_be_opened_again() {
    let machine = Machine::new(1);
    let available = machine.arena().available();
    for _ in 0..5 {
        let agent = open(&machine, 0);
        let (a, b) = (Node::new(&machine, &agent), Node::new(&machine, &agent));
        let (qa, _, qb, _) = connect(&a, &b, 1);
        {
            let (from, to) = (a.buffer(64), b.buffer(64));
            let (ra, rb) = (a.register(&from), b.register(&to));
            receive(&qb, segment(&to, &rb), 1);
            post(&qa, Opcode::Send, segment(&from, &ra), None, 1);
            assert_eq!(b.completion().length, 64);
            a.client.detach();
            b.client.detach();
        }
        drop((a, b, qa, qb));
        agent.close();
        drop(agent);
    }
    assert_eq!(machine.arena().available(), available);
}

#[test]
fn a_port_event_reaches_every_client() {
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let (a, b) = (Node::new(&machine, &agent), Node::new(&machine, &agent));
    for up in [false, true] {
        agent.test_handle().inject(0, Injection::Port, 1, u64::from(up)).unwrap();
        for node in [&a, &b] {
            let heard = node.ears.wait_for("the port", |heard| match heard {
                Heard::Async(kernel_agent::AsyncEvent::Port { up }) => Some(*up),
                _ => None,
            });
            assert_eq!(heard, up);
        }
        assert_eq!(agent.port_up(), up);
    }
    agent.close();
}

#[test]
fn a_cq_that_overflows_fails_and_says_so() {
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let node = Node::new(&machine, &agent);
    let small = node.client.create_cq(4, 4).unwrap();
    let mut attributes = node.attributes(1);
    attributes.send_cq = &small;
    attributes.receive_cq = &small;
    let qp = node.client.create_qp(&attributes).unwrap();
    qp.to_init(LinkFlags::empty()).unwrap();
    for i in 0..8 {
        receive(&qp, Segment::default(), i);
    }
    qp.to_error().unwrap();
    let failed = node.ears.wait_for("the failure", |heard| match heard {
        Heard::Async(kernel_agent::AsyncEvent::Cq { context }) => Some(*context),
        _ => None,
    });
    assert_eq!(failed, 4);
    assert!(small.failed());
    let mut count = 0;
    while small.poll_one().is_some() {
        count += 1;
    }
    assert_eq!(count, 4);
    qp.destroy().unwrap();
    small.destroy().unwrap();
    agent.close();
}

#[test]
fn an_upcall_may_give_more_commands_than_the_event_queue_has_room_for() {
    let machine = Machine::new(1);
    // With so few queue pairs the queue has room for a few hundred events. The dispatcher thread,
    // which is in the upcall, takes none meanwhile.
    let agent = open_with(&machine, 0, Config { max_qps: 4, ..Config::default() });
    let (a, b) = (Node::new(&machine, &agent), Node::new(&machine, &agent));
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    let client = b.client.clone();
    *b.ears.in_upcall.lock().unwrap() = Some(Box::new(move |heard| {
        let Heard::Cm(connection, ..) = *heard else { return };
        for _ in 0..1000 {
            client.create_pd().unwrap().destroy().unwrap();
        }
        client.reject(connection, b"").unwrap();
    }));
    dial(&a, &a.qp(1), &b, 1, b"").unwrap();
    a.ears.cm("the rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
    assert_eq!(agent.death(), None);
    *b.ears.in_upcall.lock().unwrap() = None;
    agent.close();
}
