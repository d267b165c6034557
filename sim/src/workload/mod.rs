//! Mixed streams over every operation and service, and a model that says what must hold.
//!
//! A seed decides how many consumers there are, what each of them does, and what goes wrong. Each
//! consumer is a thread with connections of its own, both ends of which it serves, so that it knows
//! what either end may see. The rules:
//!
//! - each message of a reliable connection arrives once, in order and intact, or both ends learn
//!   that the connection is over;
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
//! | `unreliable` | an unreliable connection |
//! | `node` | what a consumer has on a node |
//! | `memory` | memory that shows accesses at the wrong time |
//! | `story` | what a run tells of itself |
//! | `panics`, `wrong` | what a run reports if something is wrong |

mod consumer;
mod datagrams;
mod memory;
mod node;
mod panics;
mod story;
mod stream;
mod unreliable;
mod wrong;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kernel_agent::{Agent, Config, Counts};
use platform::random::Random;
use platform::sync::atomic::{AtomicU32, Ordering};
use privileged_api::{ObjectCounts, Provider};

use crate::{Network, World};
use consumer::{Consumer, Shared};
use story::Story;
pub use story::Tally;
use wrong::{Must, Step, hold};

/// Tables that are large enough for a run.
const CONFIG: Config = Config {
    max_qps: 64,
    max_cqs: 64,
    max_srqs: 16,
    max_pds: 32,
    max_keys: 256,
    max_connections: 512,
    max_listens: 16,
};
/// Between two looks at something that takes a while.
const PAUSE: Duration = Duration::from_millis(1);
/// How long what is left of ended threads may be held, and last messages may take, in such pauses.
const LATER: u32 = 1000;
/// How long the release of a connection takes at most, and if nothing is lost.
const RELEASE: Duration = Duration::from_secs(60);
const PROMPT_RELEASE: Duration = Duration::from_millis(500);

/// Runs the workload of a seed. Returns what happened how often, or what was wrong: a rule that was
/// broken, a deadlock, a panic of the stack. With `told`, the story goes to standard output.
pub fn check(seed: u64, told: bool) -> Result<Tally, String> {
    panics::caught(|| run(seed, told))
}

fn run(seed: u64, told: bool) -> Result<Tally, String> {
    let network = match Random::new(seed ^ 0x7769_7265).below(8) {
        0..3 => Network::ShortCut,
        3 => Network::Wire,
        _ => Network::Faulty,
    };
    let outcome = crate::run_over(seed, network, |world| life(world, network, told));
    let tally = outcome.value.map_err(|wrong| wrong.to_string())?;
    match outcome.left.as_slice() {
        [] => Ok(tally),
        left => Err(format!("threads that did not end: {left:?}")),
    }
}

fn life(world: &World, network: Network, told: bool) -> Step<Tally> {
    let story = Story::new(world.clock(), told);
    let platform = world.platform();
    let mut random = Random::new(world.random());
    let before = world.memory().lent();
    let provider = Provider::new(platform.clone());
    let mut agents = Vec::new();
    for (number, device) in (0..).zip(world.transports()) {
        let agent = Agent::open(platform.clone(), device, number, CONFIG).must("bringing up a NIC")?;
        provider.add(&format!("rnic{number}"), agent.clone()).must("adding an interface")?;
        agents.push(agent);
    }
    let idle = world.memory().lent();
    let ia = |name| provider.ia_create(name, 2, 1, Some(world.privileged())).must("it_ia_create");
    let ias = [ia("rnic0")?, ia("rnic1")?];
    let shared = Arc::new(Shared {
        platform: platform.clone(),
        ias: ias.clone(),
        agents: [agents[0].clone(), agents[1].clone()],
        quiet: random.rarely(3) && network != Network::Faulty,
        faulty: network == Network::Faulty,
    });
    let mut tally = Tally::default();
    let consumers = consumers(&shared, &mut random, &story)?;
    released(world, &shared)?;
    for consumer in consumers {
        tally.add(&consumer.free()?);
    }
    drop(shared);
    for ia in &ias {
        ia.ia_free().must("it_ia_free")?;
        hold!(ia.object_counts() == ObjectCounts::default(), "objects are left: {:?}", ia.object_counts());
    }
    drop(ias);
    drop(provider);
    for agent in &agents {
        hold!(agent.counts() == Counts::default(), "objects of an agent are left: {:?}", agent.counts());
    }
    let nobody = AtomicU32::new(0);
    // The last messages of the connection managers may still be under way.
    let under_way = || agents.iter().any(|agent| agent.outstanding() != 0);
    let mut later = 0;
    while (under_way() || world.memory().lent() != idle) && later < LATER {
        platform.wait(&nobody, 0, Some(platform.now() + PAUSE));
        later += 1;
    }
    for agent in &agents {
        hold!(agent.outstanding() == 0, "{} requests are outstanding", agent.outstanding());
    }
    let lent = world.memory().lent();
    hold!(lent == idle, "{lent} bytes of DMA memory are lent at the end, and were {idle} at the start");
    let strays = world.strays();
    hold!(strays.is_none(), "the device reached for {}", strays.unwrap_or_default());
    for stats in world.stats() {
        tally.fault("requests without an answer", stats.lost_requests);
        tally.fault("answers lost", stats.lost_answers);
        tally.fault("datagrams lost", stats.dropped_datagrams);
        tally.fault("receiver not ready", stats.not_ready);
    }
    let net = world.network_faults();
    tally.fault("network: frames lost", net.lost);
    tally.fault("network: frames duplicated", net.duplicated);
    tally.fault("network: frames reordered", net.reordered);
    tally.fault("network: frames corrupted", net.corrupted);
    tally.fault("network: partitions", net.partitions);
    tally.fault("network: flaps", net.flaps);
    tally.done("network: frames", net.frames);
    for agent in &agents {
        agent.close();
    }
    drop(agents);
    hold!(world.memory().lent() == before, "{} bytes of DMA memory are left", world.memory().lent());
    Ok(tally)
}

/// Waits until the agents have released all connections. Both ends take part in that, so it may
/// take long only if something is lost.
fn released(world: &World, shared: &Shared) -> Step {
    let begin = world.clock().peek();
    let nobody = AtomicU32::new(0);
    while shared.agents.iter().any(|agent| agent.counts().connections > 0) {
        let took = Duration::from_nanos(world.clock().peek() - begin);
        hold!(took < RELEASE, "connections are left after {took:?}");
        hold!(!shared.quiet || took < PROMPT_RELEASE, "a connection is not released, and nothing was lost");
        shared.platform.wait(&nobody, 0, Some(shared.platform.now() + PAUSE));
    }
    Ok(())
}

/// Runs the consumers, the first one in this thread.
fn consumers(shared: &Arc<Shared>, random: &mut Random, story: &Story) -> Step<Vec<Consumer>> {
    let count = 1 + random.small(3);
    let results = Arc::new((Mutex::new(Vec::new()), AtomicU32::new(0)));
    for number in 1..count {
        let (shared, results, story, seed) = (shared.clone(), results.clone(), story.clone(), random.word());
        let name = format!("c{number}");
        let platform = shared.platform.clone();
        let body = Box::new(move || {
            let result = Consumer::live(&shared, number.into(), seed, &story);
            let platform = shared.platform.clone();
            drop(shared);
            let (list, done) = &*results;
            list.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            done.fetch_add(1, Ordering::Release);
            platform.wake(done);
        });
        platform.spawn(&name, body).must("a thread")?;
    }
    let first = Consumer::live(shared, 0, random.word(), story)?;
    let (list, done) = &*results;
    loop {
        let now = done.load(Ordering::Acquire);
        if now == count - 1 {
            break;
        }
        shared.platform.wait(done, now, None);
    }
    let others: Vec<_> = list.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
    std::iter::once(Ok(first)).chain(others).collect()
}
