//! What the workloads share: two nodes from their start to their end, and what a run tells.
//!
//! | module | subject |
//! |---|---|
//! | `memory` | memory that shows accesses at the wrong time |
//! | `story` | what a run tells of itself |
//! | `panics`, `wrong` | what a run reports if something is wrong |

pub(crate) mod memory;
pub(crate) mod panics;
pub(crate) mod story;
pub(crate) mod wrong;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kernel_agent::{Agent, Config, Counts};
use links::Fault;
use platform::sync::atomic::{AtomicU32, Ordering};
use platform::{Platform, Privileged};
use privileged_api::{Ia, ObjectCounts, Provider};
use rdma::{Limits, Nic};

use crate::{Network, World};
use story::Tally;
use wrong::{Must, Step, hold};

/// Between two looks at something that takes a while.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the release of a connection takes at most.
const RELEASE: Duration = Duration::from_secs(60);
/// How long what is left of ended threads may be held, and last messages may take, in such pauses.
const LATER: u32 = 1000;

/// What a thread of a workload does.
pub(crate) type Body<T> = Box<dyn FnOnce() -> Step<T> + Send>;

/// Runs threads with these names, the first one in this thread; returns what they return.
pub(crate) fn run_all<T: Send + 'static>(
    platform: &Arc<dyn Platform>,
    threads: Vec<(String, Body<T>)>,
) -> Step<Vec<T>> {
    let mut threads = threads.into_iter();
    let Some((_, first)) = threads.next() else { return Ok(Vec::new()) };
    let results = Arc::new((Mutex::new(Vec::new()), AtomicU32::new(0)));
    let mut count = 0;
    for (name, body) in threads {
        let (results, own) = (results.clone(), platform.clone());
        let main = Box::new(move || {
            let result = body();
            let (list, done) = &*results;
            list.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            done.fetch_add(1, Ordering::Release);
            own.wake(done);
        });
        platform.spawn(&name, main).must("a thread")?;
        count += 1;
    }
    let first = first()?;
    let (list, done) = &*results;
    loop {
        let now = done.load(Ordering::Acquire);
        if now == count {
            break;
        }
        platform.wait(done, now, None);
    }
    let others: Vec<_> = list.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
    std::iter::once(Ok(first)).chain(others).collect()
}

/// Runs a workload's `life` in a world of two NICs, as `seed` decides. Returns what happened how
/// often, or what was wrong: a rule that was broken, a deadlock, a panic, a thread that is left.
pub(crate) fn check(
    seed: u64,
    network: Network,
    life: impl FnOnce(&World) -> Step<Tally>,
) -> Result<Tally, String> {
    check_on(seed, 2, network, life)
}

/// The same in a world of so many NICs: other than two only if a short cut joins them.
pub(crate) fn check_on(
    seed: u64,
    nics: u8,
    network: Network,
    life: impl FnOnce(&World) -> Step<Tally>,
) -> Result<Tally, String> {
    panics::caught(|| {
        let outcome = crate::world::run_on(seed, nics, network, life);
        let tally = outcome.value.map_err(|wrong| wrong.to_string())?;
        match outcome.left.as_slice() {
            [] => Ok(tally),
            left => Err(format!("threads that did not end: {left:?}")),
        }
    })
}

/// The agents of all NICs, and what makes interface adapters on them.
pub(crate) struct Nodes {
    pub(crate) agents: Vec<Arc<Agent>>,
    pub(crate) adapters: Adapters,
    /// DMA memory that was lent before the agents came, and before anything was made on them.
    before: usize,
    idle: usize,
}

/// Makes interface adapters. A clone is the same.
#[derive(Clone)]
pub(crate) struct Adapters {
    pub(crate) platform: Arc<dyn Platform>,
    provider: Provider,
    agents: Vec<Arc<Agent>>,
    pub(crate) privileged: Privileged,
}

impl Adapters {
    /// A new interface adapter on a NIC.
    pub(crate) fn ia(&self, nic: usize) -> Step<Ia> {
        let name = format!("rnic{nic}");
        self.provider.ia_create(&name, 2, 1, Some(self.privileged)).must("it_ia_create")
    }

    /// A new interface adapter over iWARP on a NIC, which gets an interface for it.
    pub(crate) fn ia_over_iwarp(&self, nic: usize) -> Step<Ia> {
        let name = format!("iwarp{nic}");
        self.provider.add_iwarp(&name, self.agents[nic].clone(), Limits::NONE).must("adding an interface")?;
        self.provider.ia_create(&name, 2, 1, Some(self.privileged)).must("it_ia_create over iWARP")
    }

    /// An opening of a NIC.
    pub(crate) fn nic(&self, nic: usize) -> Step<Nic> {
        Nic::open(&self.agents[nic]).must("an opening of a NIC")
    }

    /// Closes the agent of a NIC, whatever uses it.
    pub(crate) fn close(&self, nic: usize) {
        self.agents[nic].close();
    }

    /// Frees an interface adapter, with all that is on it.
    pub(crate) fn free(&self, ia: &Ia) -> Step {
        ia.ia_free().must("it_ia_free")?;
        hold!(ia.object_counts() == ObjectCounts::default(), "objects are left: {:?}", ia.object_counts());
        Ok(())
    }
}

impl Nodes {
    /// Brings all NICs of a world up.
    pub(crate) fn start(world: &World, config: Config) -> Step<Nodes> {
        let platform = world.platform();
        let before = world.memory().lent();
        let provider = Provider::new(platform.clone());
        let mut agents = Vec::new();
        for (number, device) in (0..).zip(world.transports()) {
            let agent = Agent::open(platform.clone(), device, number, config).must("bringing up a NIC")?;
            provider.add(&format!("rnic{number}"), agent.clone()).must("adding an interface")?;
            agents.push(agent);
        }
        let idle = world.memory().lent();
        let adapters =
            Adapters { platform, provider, agents: agents.clone(), privileged: world.privileged() };
        Ok(Nodes { agents, adapters, before, idle })
    }

    /// Ends both. All interface adapters are freed; checks that nothing is left, and adds the
    /// faults that fired.
    pub(crate) fn end(self, world: &World, tally: &mut Tally) -> Step {
        let Nodes { agents, adapters, before, idle } = self;
        let platform = adapters.platform.clone();
        drop(adapters);
        for agent in &agents {
            hold!(agent.counts() == Counts::default(), "objects of an agent are left: {:?}", agent.counts());
        }
        let nobody = AtomicU32::new(0);
        // The last messages of the connection managers may still be under way.
        let under_way = || agents.iter().any(|agent| agent.outstanding() != 0);
        let mut later = 0;
        let is_closed = agents.iter().any(|agent| agent.is_dead());
        while (under_way() || world.memory().lent() != idle && !is_closed) && later < LATER {
            platform.wait(&nobody, 0, Some(platform.now() + PAUSE));
            later += 1;
        }
        for agent in &agents {
            hold!(agent.outstanding() == 0, "{} requests are outstanding", agent.outstanding());
        }
        let lent = world.memory().lent();
        // An agent that was closed before has given its own back.
        let is_back = lent == idle || is_closed && lent < idle;
        hold!(is_back, "{lent} bytes of DMA memory are lent at the end, and were {idle} at the start");
        let strays = world.strays();
        hold!(strays.is_none(), "the device reached for {}", strays.unwrap_or_default());
        for stats in world.stats() {
            tally.fault("requests without an answer", stats.lost_requests);
            tally.fault("answers lost", stats.lost_answers);
            tally.fault("datagrams lost", stats.dropped_datagrams);
            tally.fault("receiver not ready", stats.not_ready);
        }
        let net = world.network_faults();
        for fault in Fault::ALL {
            tally.fault(fault.tally(), net.met[fault as usize]);
        }
        tally.fault("network: partitions", net.partitions);
        tally.fault("network: flaps", net.flaps);
        tally.done("network: frames", net.frames);
        for agent in &agents {
            agent.close();
        }
        drop(agents);
        hold!(world.memory().lent() == before, "{} bytes of DMA memory are left", world.memory().lent());
        Ok(())
    }

    /// Waits until the agents have released all connections.
    pub(crate) fn released(&self, world: &World) -> Step {
        let begin = world.clock().peek();
        while !self.are_released() {
            let took = Duration::from_nanos(world.clock().peek() - begin);
            hold!(took < RELEASE, "connections are left after {took:?}");
            let platform = &self.adapters.platform;
            platform.wait(&AtomicU32::new(0), 0, Some(platform.now() + PAUSE));
        }
        Ok(())
    }

    /// Ends both after the device was killed, or the agents were closed: then all memory is back.
    pub(crate) fn end_early(self, world: &World, closed: bool) -> Step {
        let Nodes { agents, adapters, before, .. } = self;
        for agent in &agents {
            agent.close();
            hold!(agent.counts() == Counts::default(), "objects of an agent are left: {:?}", agent.counts());
        }
        drop((agents, adapters));
        let (lent, strays) = (world.memory().lent(), world.strays());
        hold!(!closed || lent == before, "{lent} bytes of DMA memory are left, not {before}");
        hold!(strays.is_none(), "the device reached for {}", strays.unwrap_or_default());
        Ok(())
    }

    /// Whether the agents have released all connections.
    pub(crate) fn are_released(&self) -> bool {
        self.agents.iter().all(|agent| agent.counts().connections == 0)
    }
}
