//! Mixed streams over every operation and service, and a model that says what must hold.
//!
//! A seed decides how many consumers there are, what each of them does, and what goes wrong. Each
//! consumer is a thread with connections of its own, both ends of which it serves, so that it knows
//! what either end may see. The rules:
//!
//! - each message of a reliable connection arrives once, in order and intact, or both ends learn
//!   that the connection is over;
//! - over iWARP a Write has arrived when a later request is answered, and a connection is
//!   disconnected only if a side has left it between messages;
//! - each message of an unreliable connection arrives once at most, in order and intact;
//! - each request completes once, in order, with the status that fits;
//! - no memory is accessed after its release: it holds poison from then on, and what the device may
//!   reach at all is what the platform has lent;
//! - at the end every count is zero.
//!
//! | module | subject |
//! |---|---|
//! | `consumer` | a thread: takes events, lets its streams act |
//! | `stream` | a connection, its lives, its model |
//! | `datagrams` | two datagram endpoints |
//! | `bare` | a peer of an iWARP endpoint that speaks RDMAP by itself, not always as it should |
//! | `unreliable` | an unreliable connection |
//! | `node` | what a consumer has on a node |

mod bare;
mod consumer;
mod datagrams;
mod node;
mod stream;
mod unreliable;

use std::sync::Arc;
use std::time::Duration;

use kernel_agent::Config;
use platform::random::Random;
use platform::sync::atomic::AtomicU32;

use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Step, hold};
use crate::harness::{self, Nodes};
use crate::{Network, World};
use consumer::{Consumer, Shared};

/// Tables that are large enough for a run.
const CONFIG: Config = Config {
    max_qps: 64,
    max_vis: 16,
    max_cqs: 64,
    max_srqs: 16,
    max_pds: 32,
    max_keys: 256,
    max_streams: 64,
    max_connections: 512,
    max_listens: 16,
    without_crc: false,
    silence: Duration::from_secs(3),
};
/// Between two looks at something that takes a while.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the release of a connection takes at most, and if nothing is lost.
const RELEASE: Duration = Duration::from_secs(60);
const PROMPT_RELEASE: Duration = Duration::from_millis(500);

/// Runs the workload of a seed. Returns what happened how often, or what was wrong: a rule that was
/// broken, a deadlock, a panic of the stack. With `told`, the story goes to standard output.
pub fn check(seed: u64, told: bool) -> Result<Tally, String> {
    let iwarp = if Random::new(seed ^ 0x6977_6172_7000).rarely(4) { Iwarp::Some } else { Iwarp::None };
    run(seed, iwarp, told)
}

/// As [`check`], but all consumers are over iWARP.
pub fn check_iwarp(seed: u64, told: bool) -> Result<Tally, String> {
    run(seed, Iwarp::All, told)
}

/// Which consumers are over iWARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Iwarp {
    None,
    Some,
    All,
}

fn run(seed: u64, iwarp: Iwarp, told: bool) -> Result<Tally, String> {
    let network = match Random::new(seed ^ 0x7769_7265).below(8) {
        0..3 => Network::ShortCut,
        3 => Network::Wire,
        _ => Network::Faulty,
    };
    harness::check(seed, network, |world| life(world, network, iwarp, told))
}

fn life(world: &World, network: Network, iwarp: Iwarp, told: bool) -> Step<Tally> {
    let story = Story::new(world.clock(), told);
    let mut random = Random::new(world.random());
    let nodes = Nodes::start(world, CONFIG)?;
    let ias = [nodes.adapters.ia(0)?, nodes.adapters.ia(1)?];
    let iwarp_ias = match iwarp {
        Iwarp::None => None,
        _ => Some([nodes.adapters.ia_over_iwarp(0)?, nodes.adapters.ia_over_iwarp(1)?]),
    };
    let shared = Arc::new(Shared {
        platform: world.platform(),
        ias: ias.clone(),
        iwarp: iwarp_ias.clone(),
        only_iwarp: iwarp == Iwarp::All,
        agents: [nodes.agents[0].clone(), nodes.agents[1].clone()],
        quiet: random.rarely(3) && network != Network::Faulty,
        faulty: network == Network::Faulty,
    });
    let mut tally = Tally::default();
    let consumers = consumers(&shared, &mut random, &story)?;
    released(world, &shared, &nodes)?;
    for consumer in consumers {
        tally.add(&consumer.free()?);
    }
    drop(shared);
    for ia in ias.iter().chain(iwarp_ias.iter().flatten()) {
        nodes.adapters.free(ia)?;
    }
    drop((ias, iwarp_ias));
    nodes.end(world, &mut tally)?;
    Ok(tally)
}

/// Waits until the agents have released all connections. Both ends take part in that, so it may
/// take long only if something is lost.
fn released(world: &World, shared: &Shared, nodes: &Nodes) -> Step {
    let begin = world.clock().peek();
    let nobody = AtomicU32::new(0);
    while !nodes.are_released() {
        let took = Duration::from_nanos(world.clock().peek() - begin);
        hold!(took < RELEASE, "connections are left after {took:?}");
        hold!(!shared.quiet || took < PROMPT_RELEASE, "a connection is not released, and nothing was lost");
        shared.platform.wait(&nobody, 0, Some(shared.platform.now() + PAUSE));
    }
    Ok(())
}

/// Runs the consumers, the first one in this thread.
fn consumers(shared: &Arc<Shared>, random: &mut Random, story: &Story) -> Step<Vec<Consumer>> {
    let mut threads: Vec<(String, harness::Body<Consumer>)> = Vec::new();
    let (count, platform) = (1 + random.small(3), shared.platform.clone());
    // The seeds of the others are drawn first.
    let seeds: Vec<_> = (1..count).map(|_| random.word()).collect();
    for (number, seed) in (0..count).zip(std::iter::once(random.word()).chain(seeds)) {
        let (shared, story) = (shared.clone(), story.clone());
        let live = move || Consumer::live(&shared, number.into(), seed, &story);
        threads.push((format!("c{number}"), Box::new(live)));
    }
    harness::run_all(&platform, threads)
}
