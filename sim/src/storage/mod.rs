//! The storage target and its hosts, and a model that says what must hold.
//!
//! A seed decides how many hosts and disks there are, what the hosts ask for, and what goes wrong.
//! The target is on the first NIC. In a third of the seeds it has two or three threads, and in a
//! sixth there are two targets, which export the same disks as paths of one subsystem. Some have
//! two ports, of which the second one may die. All hosts are on the second NIC. A run is one to
//! three turns with the same disks: the target starts, hosts connect and leave, the target ends,
//! and often the disks lose their power. The rules:
//!
//! - a read brings what the writes before it left: what was acknowledged, or, after a request that
//!   failed or was not answered, that or what was there before (module `book`);
//! - a request completes once, and fails only if its disk does, with the status for that;
//! - a host that connects again finds nothing of its earlier connections under way: no write of
//!   those follows one of its own;
//! - after a loss of power each block has what was acknowledged and flushed, or something later;
//! - a connection breaks only if there is a reason: the network, the host's silence, a disk that
//!   stalls for too long, the end of the target; and a host that wants a connection gets one in the
//!   end;
//! - the target forgets hosts that vanish, and its end takes a while at most;
//! - a host that has not proved who it is, where it has to, gets no byte and changes none;
//! - each command about a reservation, and each that one may forbid, is answered as a model of
//!   reservations allows; no write of another host follows the answer to an Acquire that forbids
//!   it; a reservation that persists survives a loss of power;
//! - a host finds the namespaces that it sees, as long as they are, and others do not exist for it;
//! - memory of a host is accessed for its requests only, and at the end every count is zero.
//!
//! | module | subject |
//! |---|---|
//! | `plan` | what a seed decides before a run begins |
//! | `book` | what blocks may hold |
//! | `host` | a host: requests and completions |
//! | `rude` | a host that breaks rules |
//! | `raw` | a host that writes its own capsules |
//! | `intruder`, `keys` | a host without a key; the keys of others |
//! | `sharer`, `rights` | hosts that share a namespace by reservations, and a model of those |
//! | `operator`, `history` | namespaces that come, go, and change; when hosts may notice |
//! | `faults` | what goes wrong with disks |
//! | `shared` | what the threads of a run share |

mod book;
mod faults;
mod history;
mod host;
mod intruder;
mod keys;
mod operator;
mod plan;
mod raw;
mod rights;
mod rude;
mod shared;
mod sharer;

use std::sync::Arc;
use std::time::Duration;

use ::storage::Error;
use ::storage::target::{self, Control, PORT, Target};
use block::simulated::SimulatedDisk;
use kernel_agent::Config;
use platform::random::Random;
use platform::sync::atomic::Ordering;

use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Must, Step, hold};
use crate::harness::{self, Nodes};
use crate::{Network, World};
use faults::Faults;
use host::Host;
use intruder::Intruder;
use operator::Operator;
use plan::{Plan, Shape};
use rdma::Nic;
use rude::Rude;
use shared::{Faulty, Running, Shared};
use sharer::{Common, Sharer};

/// Tables that are large enough for a run.
const CONFIG: Config = Config {
    max_qps: 128,
    max_vis: 16,
    max_cqs: 64,
    max_srqs: 8,
    max_pds: 32,
    max_keys: 4096,
    max_streams: 64,
    max_connections: 512,
    max_listens: 4,
    without_crc: false,
    silence: Duration::from_secs(3),
};

/// How a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// All hosts have left.
    Done,
    /// The target is stopped while hosts use it.
    Stopped,
    /// The same, and the disks have gone.
    Pulled,
    /// The same, and the disks lose their power with requests under way.
    PowerCut,
}

/// Runs the storage workload of a seed. Returns what happened how often, or what was wrong: a rule
/// that was broken, a deadlock, a panic. With `told`, the story goes to standard output.
pub fn check(seed: u64, told: bool) -> Result<Tally, String> {
    let network = match Random::new(seed ^ 0x6469_736b).below(8) {
        0..3 => Network::ShortCut,
        3..5 => Network::Wire,
        5 => Network::Lossy,
        _ => Network::Faulty,
    };
    let shape = Shape::of(seed, network);
    // The ports, and the hosts' NIC.
    let nics = 1 + shape.ports as u8;
    harness::check_on(seed, nics, network, |world| life(world, network, shape, told))
}

fn life(world: &World, network: Network, shape: Shape, told: bool) -> Step<Tally> {
    let story = Story::new(world.clock(), told);
    let mut random = Random::new(world.random());
    let plan = Plan::new(&mut random, network, shape);
    let nodes = Nodes::start(world, CONFIG)?;
    let disk = |&geometry| Faulty::new(SimulatedDisk::new(geometry, random.word()));
    let disks = plan.disks.iter().map(disk).collect();
    let common = (plan.sharers > 0).then(|| {
        let mut disk = |geometry| SimulatedDisk::new(geometry, random.word());
        let (disk, state) = (disk(sharer::GEOMETRY), plan.persists.then(|| disk(sharer::STATE)));
        Arc::new(Common::new(disk, state))
    });
    let shared = Arc::new(Shared::new(nodes.adapters.clone(), plan, disks, common));
    story.tell(|| {
        let plan = &shared.plan;
        let (is_quiet, hosts, disks) = (plan.is_quiet, &plan.hosts, &plan.disks);
        format!("{network:?}, {shape:?}, quiet: {is_quiet}, hosts {hosts:?}, disks {disks:?}")
    });
    let mut tally = Tally::default();
    let mut hosts = Vec::new();
    for number in 0..shared.plan.hosts.len() {
        hosts.push(Host::new(&shared, number, random.word(), &story)?);
    }
    for turn in 1..=shared.plan.turns {
        let is_last = turn == shared.plan.turns;
        let turn = Turn { shared: &shared, random: &mut random, story: &story, tally: &mut tally, is_last };
        hosts = turn.run(hosts)?;
    }
    for host in hosts {
        tally.add(&host.free()?);
    }
    let is_released = shared.wait_until(|| Ok(nodes.are_released()))?;
    hold!(is_released, "connections are left");
    drop(shared);
    nodes.end(world, &mut tally)?;
    Ok(tally)
}

/// From the start of a target to its end.
struct Turn<'a> {
    shared: &'a Arc<Shared>,
    random: &'a mut Random,
    story: &'a Story,
    tally: &'a mut Tally,
    is_last: bool,
}

impl Turn<'_> {
    /// Lets the hosts use a target; returns them.
    fn run(mut self, hosts: Vec<Host>) -> Step<Vec<Host>> {
        let shared = self.shared;
        let adapters = &shared.adapters;
        // The second NIC is the hosts'.
        let nics = [0, 2].into_iter().take(shared.plan.shape.ports);
        let nics = nics.map(|number| adapters.nic(number)).collect::<Step<Vec<_>>>()?;
        let mut operator = Operator::new(shared, self.random.word(), self.story);
        let mut config = shared.plan.config.clone();
        config.hosts = operator.hosts(self.random.rarely(2))?;
        config.state = shared.common.as_ref().and_then(|common| Some(common.state.clone()? as _));
        let (count, mut targets) = (shared.plan.shape.targets, Vec::new());
        for (number, disks) in (0..).zip(operator.exports(count)) {
            let path = (count > 1).then_some(number + 1);
            let config = target::Config { disks, path, port: PORT + number, ..config.clone() };
            let target = Target::new(&nics, adapters.privileged, config);
            targets.push(target.must("a target")?);
        }
        let mut places = Vec::new();
        for (number, target) in (0..).zip(&targets) {
            // Those of a port behind those of the other one, and as many.
            let addresses = target.addresses();
            let of_port = addresses.len() / nics.len();
            hold!(of_port > 0, "the target has no address");
            places.extend(addresses.iter().step_by(of_port).map(|&address| (address, PORT + number)));
        }
        let controls: Vec<Control> = targets.iter().map(Target::control).collect();
        shared.open(controls.clone(), places);
        let mut threads = Vec::new();
        for worker in targets.iter_mut().flat_map(Target::workers) {
            threads.push(Running::spawn(&adapters.platform, "worker", &shared.over, move || worker.run())?);
        }
        if !threads.is_empty() {
            self.tally.did("turns: several threads");
        }
        if count > 1 {
            self.tally.did("turns: several targets");
        }
        for target in targets {
            threads.push(Running::spawn(&adapters.platform, "target", &shared.over, move || target.run())?);
        }
        let mut running = Vec::new();
        for mut host in hosts {
            let name = host.name().to_string();
            let (shared, over) = (shared.clone(), shared.over.clone());
            let body = move || {
                let done = host.turn().map(|()| host);
                if done.is_err() {
                    shared.close();
                }
                done
            };
            running.push(Running::spawn(&adapters.platform, &name, &over, body)?);
        }
        let mut rude = None;
        if shared.plan.is_rude {
            let host = Rude::new(shared, self.random.word(), self.story);
            rude = Some(Running::spawn(&adapters.platform, "rude", &shared.over, move || host.turn())?);
        }
        let mut others = Vec::new();
        if shared.plan.has_intruder {
            let host = Intruder::new(shared, self.random.word(), self.story);
            others.push(Running::spawn(&adapters.platform, "intruder", &shared.over, move || host.turn())?);
        }
        for who in 1..=shared.plan.sharers {
            let Some(common) = &shared.common else { break };
            let host = Sharer::new(shared, common, who, self.random.word(), self.story)?;
            let name = format!("sharer{who}");
            others.push(Running::spawn(&adapters.platform, &name, &shared.over, move || host.turn())?);
        }
        let is_over = || {
            let all = rude.iter().chain(&others);
            running.iter().all(Running::is_over) && all.into_iter().all(Running::is_over)
        };
        let mut faults = Faults::new(shared, self.random.word(), self.story);
        let ending = self.serve(&mut faults, (&mut operator, &controls[0]), &is_over)?;
        let power_is_cut = self.stop(ending, &controls, &mut faults)?;
        let served = threads.into_iter().map(Running::join).collect::<Step<Vec<_>>>()?;
        self.story.tell(|| format!("the target has ended: {served:?}"));
        let mut back = Vec::new();
        for host in running {
            back.push(host.join()?);
        }
        for host in rude.into_iter().chain(others) {
            self.tally.add(&host.join()??);
        }
        let mut hosts = back.into_iter().collect::<Step<Vec<Host>>>()?;
        // A disk that loses its power forgets what it was asked for.
        let unfinished = Err(Error::Config("a disk did not finish its requests"));
        let is_right = |ended: &Result<(), Error>| *ended == Ok(()) || power_is_cut && *ended == unfinished;
        hold!(served.iter().all(is_right), "the target ended with {served:?}");
        hold!(nics.iter().all(Nic::is_alone), "objects of the target are left");
        self.count(&controls)?;
        let is_lost = power_is_cut || ending == Ending::Pulled || self.random.rarely(2);
        for faulty in &shared.disks {
            let under_way = faulty.disk.under_way();
            hold!(under_way == 0, "{under_way} requests are with a disk after the target's end");
            if is_lost && !power_is_cut {
                faulty.disk.power_loss(self.random.word());
            }
            faulty.end();
            faulty.is_gone.store(false, Ordering::SeqCst);
        }
        if let Some(common) = &shared.common {
            common.restart();
            if is_lost && !power_is_cut {
                common.lose_power(self.random);
            }
        }
        if is_lost {
            self.tally.fault("losses of power", 1);
        }
        hosts.iter_mut().try_for_each(|host| host.look(is_lost))?;
        Ok(hosts)
    }

    /// Lets disks fail while hosts use them; returns when the target is to end, and how.
    fn serve(
        &mut self,
        faults: &mut Faults,
        (operator, control): (&mut Operator, &Control),
        is_over: &dyn Fn() -> bool,
    ) -> Step<Ending> {
        let shared = self.shared;
        let endings = [Ending::Done, Ending::Stopped, Ending::Pulled, Ending::PowerCut];
        let ending = match shared.plan.is_quiet {
            true => Ending::Done,
            false => endings[self.random.below(4) as usize],
        };
        let stop = shared.now() + plan::time(self.random, 32);
        // It is not there in a later turn.
        let may_die = shared.plan.shape.ports > 1 && !shared.plan.is_quiet && self.is_last;
        let mut dies = (may_die && self.random.rarely(2)).then(|| shared.now() + plan::time(self.random, 29));
        loop {
            let seen = shared.over.value();
            if is_over() {
                // There is no load any more.
                return Ok(if ending == Ending::Pulled { ending } else { Ending::Done });
            }
            let now = shared.now();
            if ending != Ending::Done && now >= stop {
                return Ok(ending);
            }
            if dies.take_if(|at| now >= *at).is_some() {
                self.story.tell(|| "the second port dies".into());
                self.tally.fault("ports that died", 1);
                shared.port_dies();
            }
            faults.act(self.tally);
            operator.act(control, self.tally)?;
            shared.over.wait(seen, Some(now + plan::time(self.random, 27)));
        }
    }

    /// Stops the target. True if the disks have lost their power.
    fn stop(&mut self, ending: Ending, controls: &[Control], faults: &mut Faults) -> Step<bool> {
        let shared = self.shared;
        self.story.tell(|| format!("the turn ends: {ending:?}"));
        self.tally.did(match ending {
            Ending::Done => "turns: done",
            Ending::Stopped => "turns: stopped under load",
            Ending::Pulled => "turns: disks pulled",
            Ending::PowerCut => "turns: power cut under load",
        });
        shared.close();
        for faulty in &shared.disks {
            match ending {
                Ending::Pulled => {
                    faulty.is_gone.store(true, Ordering::SeqCst);
                    faulty.disk.remove();
                }
                Ending::PowerCut => faulty.disk.stall(),
                Ending::Done | Ending::Stopped => {}
            }
        }
        if let Some(common) = shared.common.as_ref().filter(|_| ending == Ending::PowerCut) {
            common.stall();
        }
        if ending == Ending::PowerCut {
            // Requests gather on the disks.
            shared.sleep(plan::time(self.random, 22));
        }
        controls.iter().for_each(Control::stop);
        if ending == Ending::PowerCut {
            // From then on no host hears of anything that the disks do.
            let is_alone = shared.wait_until(|| Ok(shared.connections()? == 0))?;
            hold!(is_alone, "the target does not end its connections");
            for faulty in &shared.disks {
                self.tally.fault("requests lost with the power", faulty.disk.under_way() as u64);
                faulty.disk.power_loss(self.random.word());
            }
            shared.common.iter().for_each(|common| common.lose_power(self.random));
            faults.end_all();
            return Ok(true);
        }
        // A disk may stall for some of the time that the target gives it.
        if !shared.plan.is_quiet && self.random.rarely(2) {
            shared.sleep(Duration::from_nanos(self.random.below(1 << 31)));
        }
        faults.end_all();
        Ok(false)
    }

    /// Adds the targets' counters, and checks those that have a rule.
    fn count(&mut self, controls: &[Control]) -> Step {
        let plan = &self.shared.plan;
        let silences = u64::from(self.shared.silences.load(Ordering::SeqCst));
        let mut expired = 0;
        for counted in controls.iter().map(Control::statistics) {
            hold!(counted.connections == 0 && counted.controllers == 0, "hosts are left: {counted:?}");
            let wrong = counted.broken + counted.expired;
            hold!(!plan.is_quiet || wrong == 0, "nothing was wrong, but {counted:?}");
            expired += counted.expired;
            self.tally.done("target: connections", counted.accepted);
            self.tally.done("target: connections that broke", counted.broken);
        }
        hold!(plan.is_faulty || expired <= silences, "a host was dropped that was not silent");
        self.tally.done("target: controllers that expired", expired);
        Ok(())
    }
}
