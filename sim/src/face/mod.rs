//! Consumers of the API for Rust under seeds, and a model that says what must hold.
//!
//! A seed decides how many consumers there are, what each of them does, and whether the device dies
//! or the agents are closed meanwhile. Each consumer is a thread, and has both ends of its
//! connections, so that it knows what either end may see. It waits for requests as a thread or as a
//! task, polls them, or drops them; it drops regions that requests name, and endpoints under load.
//! The rules:
//!
//! - each message of a connection arrives once, in order and intact, or the connection is over;
//! - each request ends once, and fails only if its connection has a reason to end;
//! - every wait ends, also when the device dies or the agent is closed;
//! - the device accesses no memory that was given back;
//! - at the end there is no object and no memory left.
//!
//! | module | subject |
//! |---|---|
//! | `connection` | a connection, its requests, its end |
//! | `datagrams` | two endpoints for datagrams |
//! | `streams` | a stream of bytes, which may become a connection |

mod connection;
mod datagrams;
mod streams;

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use kernel_agent::{Agent, Config};
use platform::random::Random;
use platform::sync::atomic::AtomicU32;
use platform::{Platform, Signal};
use rdma::{Done, Nic, Request, RequestError, Transport};

use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Must, Step, Wrong, hold};
use crate::harness::{self, Nodes};
use crate::{Network, World};

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
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the machine lives at least if it is to end early, nanoseconds.
const EARLY: u64 = 20_000_000;

/// How the machine of a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// When all consumers have ended.
    Last,
    /// The device is killed under load.
    Killed,
    /// The agents are closed under load.
    Closed,
}

/// Runs the consumers of a seed. Returns what happened how often, or what was wrong. With `told`,
/// the story goes to standard output.
pub fn check(seed: u64, told: bool) -> Result<Tally, String> {
    let network = match Random::new(seed ^ 0x7275_7374).below(8) {
        0..4 => Network::ShortCut,
        4 => Network::Wire,
        _ => Network::Faulty,
    };
    let iwarp = Random::new(seed ^ 0x6977_6172_7001).rarely(3);
    harness::check(seed, network, |world| life(world, network, iwarp, told))
}

/// What all consumers of a run share.
struct Shared {
    platform: Arc<dyn Platform>,
    agents: [Arc<Agent>; 2],
    /// The network may lose what it carries.
    faulty: bool,
    /// Most connections are over iWARP.
    iwarp: bool,
    /// The device was killed, or the agents were closed.
    ended: AtomicBool,
}

/// One consumer.
struct Scene {
    shared: Arc<Shared>,
    nics: [Nic; 2],
    /// The same NICs, opened for connections over iWARP, if the run has some.
    iwarp: Option<[Nic; 2]>,
    random: Random,
    story: Story,
    tally: Tally,
    /// The last number that was given to anything.
    number: u64,
}

impl Scene {
    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Whether something may fail that the consumer did not end.
    fn excused(&self) -> bool {
        self.shared.faulty || self.shared.ended.load(Ordering::SeqCst)
    }

    /// The value; `None` if there is an excuse for the failure.
    fn value<T, E: Display>(&self, result: Result<T, E>, tried: &str) -> Step<Option<T>> {
        match result {
            Err(_) if self.excused() => Ok(None),
            result => result.must(tried).map(Some),
        }
    }

    /// Waits for a request, as a thread or as a task.
    fn wait(&mut self, request: Request) -> Step<Result<Done, RequestError>> {
        match self.random.rarely(2) {
            true => request.wait_timeout(PATIENCE).map_err(|_| Wrong("a request does not end".into())),
            false => self.block_on(request),
        }
    }

    /// Runs a task to its end in this thread.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> Step<T> {
        struct Raise(Signal);
        impl Wake for Raise {
            fn wake(self: Arc<Self>) {
                self.0.raise();
            }
        }
        let raise = Arc::new(Raise(Signal::new(self.shared.platform.clone())));
        let waker = Waker::from(raise.clone());
        let mut future = pin!(future);
        let deadline = self.shared.platform.now() + PATIENCE;
        loop {
            let seen = raise.0.value();
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(value);
            }
            hold!(self.shared.platform.now() < deadline, "a task waits for ever");
            raise.0.wait(seen, Some(deadline));
        }
    }

    /// Runs two tasks in this thread, until both have ended or one has failed.
    fn both<A, B>(
        &self,
        a: impl Future<Output = Result<A, String>>,
        b: impl Future<Output = Result<B, String>>,
    ) -> Step<Result<(A, B), String>> {
        let (mut a, mut b) = (pin!(a), pin!(b));
        let mut ends = (None, None);
        self.block_on(std::future::poll_fn(|context| {
            if ends.0.is_none()
                && let Poll::Ready(end) = a.as_mut().poll(context)
            {
                match end {
                    Ok(end) => ends.0 = Some(end),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            if ends.1.is_none()
                && let Poll::Ready(end) = b.as_mut().poll(context)
            {
                match end {
                    Ok(end) => ends.1 = Some(end),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            match (ends.0.take(), ends.1.take()) {
                (Some(a), Some(b)) => Poll::Ready(Ok((a, b))),
                some => {
                    ends = some;
                    Poll::Pending
                }
            }
        }))
    }

    fn pause(&self, nanos: u64) {
        let until = self.shared.platform.now() + Duration::from_nanos(nanos);
        self.shared.platform.wait(&AtomicU32::new(0), 0, Some(until));
    }
}

fn life(world: &World, network: Network, iwarp: bool, told: bool) -> Step<Tally> {
    let story = Story::new(world.clock(), told);
    let mut random = Random::new(world.random());
    let nodes = Nodes::start(world, CONFIG)?;
    let ending = match random.below(10) {
        0 => Ending::Killed,
        1 => Ending::Closed,
        _ => Ending::Last,
    };
    story.tell(|| format!("{network:?}, {ending:?}"));
    let shared = Arc::new(Shared {
        platform: world.platform(),
        agents: [nodes.agents[0].clone(), nodes.agents[1].clone()],
        faulty: network == Network::Faulty,
        iwarp,
        ended: AtomicBool::new(false),
    });
    let mut threads: Vec<(String, harness::Body<Tally>)> = Vec::new();
    for number in 0..1 + random.small(3) {
        let (name, seed) = (format!("c{number}"), random.word());
        let (shared, story) = (shared.clone(), story.of(&name));
        threads.push((name, Box::new(move || live(shared, number, Random::new(seed), story))));
    }
    if ending != Ending::Last {
        let (shared, kill, delay) = (shared.clone(), world.killer(), random.below(EARLY));
        let end = move || {
            let until = shared.platform.now() + Duration::from_nanos(delay);
            shared.platform.wait(&AtomicU32::new(0), 0, Some(until));
            shared.ended.store(true, Ordering::SeqCst);
            match ending {
                Ending::Killed => kill(),
                _ => shared.agents.iter().for_each(|agent| agent.close()),
            }
            Ok(Tally::default())
        };
        threads.push(("end".into(), Box::new(end)));
    }
    let mut tally = Tally::default();
    for one in harness::run_all(&shared.platform, threads)? {
        tally.add(&one);
    }
    drop(shared);
    tally.did(match ending {
        Ending::Last => "machines that ended last",
        Ending::Killed => "devices killed",
        Ending::Closed => "agents closed",
    });
    match ending {
        Ending::Last => {
            nodes.released(world)?;
            nodes.end(world, &mut tally)?;
        }
        Ending::Killed => nodes.end_early(world, false)?,
        Ending::Closed => nodes.end_early(world, true)?,
    }
    Ok(tally)
}

/// Runs a consumer.
fn live(shared: Arc<Shared>, number: u32, random: Random, story: Story) -> Step<Tally> {
    let open = |transport| {
        let open = |nic: usize| Nic::open_over(&shared.agents[nic], transport);
        match (open(0), open(1)) {
            (Ok(a), Ok(b)) => Ok(Some([a, b])),
            _ if shared.ended.load(Ordering::SeqCst) => Ok(None),
            _ => Err(Wrong(format!("a NIC was not opened for {transport:?}"))),
        }
    };
    let Some(nics) = open(Transport::InfiniBand)? else { return Ok(Tally::default()) };
    let iwarp = if shared.iwarp { open(Transport::Iwarp)? } else { None };
    let mut scene = Scene { shared, nics, iwarp, random, story, tally: Tally::default(), number: 0 };
    for _ in 0..1 + scene.random.small(3) {
        let streams = scene.iwarp.clone().filter(|_| scene.random.rarely(4));
        if let Some(nics) = streams {
            streams::live(&mut scene, &nics, 6000 + number as u16)?;
        } else if scene.random.rarely(4) {
            datagrams::live(&mut scene, 4000 + number as u16)?;
        } else {
            connection::live(&mut scene, 5000 + number as u16)?;
        }
    }
    Ok(scene.tally)
}
