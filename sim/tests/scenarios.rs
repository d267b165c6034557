//! Two nodes from start to end, under many seeds.

use std::sync::Arc;

use common::{Node, Pair, Sizes, Trying};
use nic_abi::admin::Injection;
use platform::DmaBuffer;
use privileged_api::{AddrMode, DtoFlags, Error, Event, LmrFlags, LmrMemory, LmrTriplet, MemPriv};
use sim::World;

const SEEDS: u64 = 40;
const MESSAGES: usize = 20;

/// Starts two nodes, connects them while datagrams of the connection manager are lost, sends
/// messages while requests and responses are lost, and frees everything. Returns how many messages
/// arrived.
fn a_life_with_losses(world: &World) -> usize {
    let node = Node::start(world.platform(), world.privileged(), world.transports())
        .unwrap_or_else(|failure| panic!("{failure}"));
    let lost = (world.random() % 3) as u32;
    node.agents[0].test_handle().inject(0, Injection::DropManagement, lost, 0).expect("fault injection");
    let sizes = Sizes { requests: 16, message: 1 << 16 };
    let pair = node.ia(0).and_then(|a| Pair::connect(a, node.ia(1)?, sizes));
    let pair = pair.unwrap_or_else(|failure| panic!("{failure}"));
    let arrived = talk(world, &node, &pair).unwrap_or_else(|failure| panic!("{failure}"));
    pair.free().unwrap_or_else(|failure| panic!("{failure}"));
    for agent in &node.agents {
        assert_eq!(agent.counts(), kernel_agent::Counts::default());
        agent.close();
    }
    arrived
}

fn talk(world: &World, node: &Node, pair: &Pair) -> Result<usize, common::Failure> {
    let buffer = DmaBuffer::new(&node.platform, 4096, 4096).map_err(|_| "memory").trying("memory")?;
    let buffer = Arc::new(buffer);
    let register = |side: &common::Side| {
        let memory = LmrMemory::Buffer { buffer: &buffer, offset: 0 };
        side.ia
            .lmr_create(side.pz, memory, 4096, AddrMode::Absolute, MemPriv::LOCAL, LmrFlags::NONE, 0)
            .map(|(lmr, _)| lmr)
            .trying("it_lmr_create")
    };
    let (from, into) = (register(&pair.a)?, register(&pair.b)?);
    let mut arrived = 0;
    for n in 0..MESSAGES {
        if world.random().is_multiple_of(4) {
            let what = [Injection::DropRequests, Injection::DropResponses][(world.random() % 2) as usize];
            // Fewer losses than the connection has retries.
            let qpn = pair.a.ia.ep_qpn(pair.a.ep).trying("it_ep_query")?;
            node.agents[0]
                .test_handle()
                .inject(qpn, what, 1 + (world.random() % 2) as u32, 0)
                .trying("fault injection")?;
        }
        let (send, receive) = (n as u8, 2048);
        buffer.write(0, &[send; 64]).map_err(|_| "bounds").trying("buffer")?;
        let at = |offset| buffer.addr() as u64 + offset;
        pair.b
            .ia
            .post_recv(pair.b.ep, &[LmrTriplet::new(into, at(receive), 64)], n as u64, DtoFlags::COMPLETION)
            .trying("it_post_recv")?;
        pair.a
            .ia
            .post_send(pair.a.ep, &[LmrTriplet::new(from, at(0), 64)], n as u64, DtoFlags::COMPLETION)
            .trying("it_post_send")?;
        let received = pair.b.completion(pair.b.receives)?;
        assert_eq!((received.cookie, received.transferred_length), (n as u64, 64));
        let mut bytes = [0; 64];
        buffer.read(receive as usize, &mut bytes).map_err(|_| "bounds").trying("buffer")?;
        assert_eq!(bytes, [send; 64]);
        pair.a.completion(pair.a.requests)?;
        arrived += 1;
    }
    pair.a.ia.lmr_free(from).trying("it_lmr_free")?;
    pair.b.ia.lmr_free(into).trying("it_lmr_free")?;
    Ok(arrived)
}

#[test]
fn lost_packets_are_sent_again_and_nothing_is_left() {
    for seed in 0..SEEDS {
        eprintln!("seed {seed}");
        let outcome = sim::run(seed, 2, a_life_with_losses);
        assert_eq!(outcome.value, MESSAGES);
        assert_eq!(outcome.left, Vec::<String>::new(), "seed {seed}: threads that did not end");
    }
}

#[test]
fn a_seed_decides_everything() {
    for seed in [3, 17] {
        assert_eq!(sim::run(seed, 2, a_life_with_losses), sim::run(seed, 2, a_life_with_losses));
    }
    let (one, other) = (sim::run(1, 2, a_life_with_losses), sim::run(2, 2, a_life_with_losses));
    assert_ne!(one.trace, other.trace, "seeds differ in what happens");
}

/// Kills the device before or after a wait, as the seed decides. The wait must end, and everything
/// can be freed.
fn a_life_cut_short(world: &World) -> bool {
    let node = Node::start(world.platform(), world.privileged(), world.transports())
        .unwrap_or_else(|failure| panic!("{failure}"));
    let sizes = Sizes { requests: 16, message: 1 << 16 };
    let pair = node.ia(0).and_then(|a| Pair::connect(a, node.ia(1)?, sizes));
    let pair = pair.unwrap_or_else(|failure| panic!("{failure}"));
    let killed_before = world.random().is_multiple_of(2);
    if killed_before {
        world.kill_device();
    }
    let wait = pair.b.ia.evd_wait(pair.b.receives, if killed_before { u64::MAX } else { 1000 });
    if !killed_before {
        world.kill_device();
    }
    let woken = match wait {
        Err(failure) => failure.error,
        Ok((event, _)) => {
            let event = Event::event_number(&event);
            panic!("an event that nothing caused: {event:?}")
        }
    };
    if killed_before {
        assert_eq!(woken, Error::IaCatastrophe);
    } else {
        assert_eq!(woken, Error::TimeoutExpired);
    }
    pair.free().unwrap_or_else(|failure| panic!("{failure}"));
    for agent in &node.agents {
        agent.close();
    }
    killed_before
}

#[test]
fn nothing_hangs_when_the_device_dies() {
    for seed in 0..SEEDS {
        eprintln!("seed {seed}");
        let outcome = sim::run(seed, 2, a_life_cut_short);
        assert_eq!(outcome.left, Vec::<String>::new(), "seed {seed}: threads that did not end");
    }
}
