//! What a consumer has on one node: an IA's objects that its streams share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kernel_agent::Agent;
use platform::Platform;
use platform::random::Random;
use platform::sync::atomic::AtomicU32;
use privileged_api::*;

use super::stream::PATIENCE;
use crate::harness::memory::{Slab, Slot};
use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Must, Step, Wrong, hold};

/// Bytes for receives, enough for all that the streams of a consumer post, and for requests.
const SLAB: usize = 384 << 10;
/// Where the memory for requests begins.
const REQUESTS: usize = 256 << 10;
/// Receives that a shared receive queue takes, and messages that are on their way to it.
pub(crate) const SHARED: usize = 16;
/// Events that an event dispatcher holds.
const EVENTS: usize = 512;

/// Between two looks for a path.
const PAUSE: Duration = Duration::from_millis(5);

/// One node, as one consumer uses it.
pub(crate) struct Node {
    pub(crate) ia: Ia,
    pub(crate) agent: Arc<Agent>,
    pub(crate) pz: PzHandle,
    /// Completions of all endpoints.
    pub(crate) completions: EvdHandle,
    /// Changes of connections.
    pub(crate) messages: EvdHandle,
    /// Requests of peers.
    pub(crate) requests: EvdHandle,
    pub(crate) listen: ListenHandle,
    pub(crate) service: ConnQual,
    pub(crate) spigot: usize,
    pub(crate) address: NetAddr,
    pub(crate) slab: Slab,
    /// The slab, registered for local access.
    pub(crate) lmr: LmrHandle,
    pub(crate) srq: SrqHandle,
    /// What was posted to the shared receive queue and did not complete, by cookie.
    pub(crate) shared: BTreeMap<u64, Slot>,
    /// Messages that are on their way to endpoints of that queue.
    pub(crate) due: usize,
}

impl Node {
    pub(crate) fn new(platform: &Arc<dyn Platform>, ia: &Ia, agent: &Arc<Agent>, iwarp: bool) -> Step<Node> {
        let evd = |stream| ia.evd_create(stream, EvdFlags::empty(), EVENTS, 1, EvdHandle::NULL);
        let pz = ia.pz_create().must("it_pz_create")?;
        let completions = evd(EventType::DTO_EVENT_STREAM).must("it_evd_create")?;
        let messages = evd(EventType::CM_MSG_EVENT_STREAM).must("it_evd_create")?;
        let requests = evd(EventType::CM_REQ_EVENT_STREAM).must("it_evd_create")?;
        let info = ia.ia_query().must("it_ia_query")?;
        let spigot = &info.spigot_info[0];
        let (listen, service) = ia
            .listen_create(spigot.spigot_id, requests, ListenFlags::empty(), None)
            .must("it_listen_create")?;
        let slab = Slab::new(platform, SLAB)?;
        let memory = LmrMemory::Buffer { buffer: &slab.buffer, offset: 0 };
        // Over iWARP what an RDMA Read brings counts as written by the peer.
        let privileges = if iwarp { MemPriv::LOCAL | MemPriv::REMOTE_WRITE } else { MemPriv::LOCAL };
        let (lmr, _) = ia
            .lmr_create(pz, memory, SLAB as u64, AddrMode::Absolute, privileges, LmrFlags::NONE, 0)
            .must("it_lmr_create")?;
        let srq = ia.srq_create(pz, 4, SHARED).must("it_srq_create")?;
        let (spigot, address) = (spigot.spigot_id, spigot.net_addr[0]);
        Ok(Node {
            ia: ia.clone(),
            agent: agent.clone(),
            pz,
            completions,
            messages,
            requests,
            listen,
            service,
            spigot,
            address,
            slab,
            lmr,
            srq,
            shared: BTreeMap::new(),
            due: 0,
        })
    }

    /// The segments of a piece, cut in up to three as the random numbers say. With `direct`, some
    /// name the memory by its I/O address.
    pub(crate) fn segments(&self, slot: &Slot, random: &mut Random, direct: bool) -> Vec<LmrTriplet> {
        let (base, bus) = (self.slab.buffer.addr() as u64, self.slab.buffer.bus());
        let mut cuts = vec![0, slot.len];
        for _ in 0..random.below(3) {
            cuts.push(random.below(slot.len as u64 + 1) as usize);
        }
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| (slot.at + cut[0], cut[1] - cut[0]));
        pieces
            .map(|(at, len)| match direct && random.rarely(4) {
                true => LmrTriplet::direct(IoAddr(bus + at as u64), len as u64),
                false => LmrTriplet::new(self.lmr, base + at as u64, len as u64),
            })
            .collect()
    }

    /// Frees all objects; the endpoints are gone.
    pub(crate) fn free(self) -> Step {
        self.slab.check()?;
        self.ia.srq_free(self.srq).must("it_srq_free")?;
        self.ia.lmr_free(self.lmr).must("it_lmr_free")?;
        self.ia.listen_free(self.listen).must("it_listen_free")?;
        for evd in [self.completions, self.messages, self.requests] {
            self.ia.evd_free(evd).must("it_evd_free")?;
        }
        self.ia.pz_free(self.pz).must("it_pz_free")?;
        // No peer may have written to memory that was released.
        let mut slab = self.slab;
        for slot in self.shared.into_values() {
            slab.give(slot)?;
        }
        slab.check()
    }
}

/// What the streams of a consumer share.
pub(crate) struct Scene {
    pub(crate) name: String,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) nodes: [Node; 2],
    pub(crate) random: Random,
    pub(crate) story: Story,
    pub(crate) tally: Tally,
    /// The last cookie that was given to a request.
    pub(crate) cookie: u64,
    /// No fault is injected in this run.
    pub(crate) quiet: bool,
    /// The network may lose what it carries, or carry it twice.
    pub(crate) faulty: bool,
    /// The streams are connections of iWARP.
    pub(crate) iwarp: bool,
}

impl Scene {
    pub(crate) fn cookie(&mut self) -> u64 {
        self.cookie += 1;
        self.cookie
    }

    /// True once in `often`.
    pub(crate) fn rarely(&mut self, often: u64) -> bool {
        self.random.rarely(often)
    }

    /// A length of a message: mostly short, sometimes of several packets.
    pub(crate) fn length(&mut self, most: usize) -> usize {
        let bound = match self.random.below(8) {
            0 => 1,
            1..5 => 200,
            5 | 6 => 3000,
            _ => most as u64 + 1,
        };
        (self.random.below(bound) as usize).min(most)
    }

    /// The path from a node to one. There is none while the link is down.
    pub(crate) fn path(&self, from: usize, to: usize) -> Step<Path> {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        for _ in 0..PATIENCE / PAUSE.as_nanos() as u64 {
            let (paths, _) = from.ia.get_pathinfo(from.spigot, &to.address, 1).must("it_get_pathinfo")?;
            if let Some(path) = paths.into_iter().next() {
                return Ok(path);
            }
            hold!(self.faulty, "there is no path");
            self.platform.wait(&AtomicU32::new(0), 0, Some(self.platform.now() + PAUSE));
        }
        Err(Wrong("there is no path for long".into()))
    }

    /// Takes memory of a node for a request.
    pub(crate) fn slot(&mut self, node: usize, len: usize) -> Step<Option<Slot>> {
        self.nodes[node].slab.take(len, REQUESTS..SLAB)
    }

    /// Takes memory of a node for a receive.
    pub(crate) fn receive_slot(&mut self, node: usize, len: usize) -> Step<Option<Slot>> {
        self.nodes[node].slab.take(len, 0..REQUESTS)
    }

    /// Waits for an event; returns it, if one came in time.
    pub(crate) fn wait(&self, node: usize, evd: EvdHandle, micros: u64) -> Step<Option<Event>> {
        match self.nodes[node].ia.evd_wait(evd, micros) {
            Ok((event, _)) => Ok(Some(event)),
            Err(failure) if failure == Error::TimeoutExpired => Ok(None),
            Err(failure) => {
                hold!(false, "it_evd_wait: {failure}");
                Ok(None)
            }
        }
    }
}
