//! A connection over its whole life, again and again, and what the model expects of it.
//!
//! | module | subject |
//! |---|---|
//! | `side` | one end: its requests, receives and messages, and what a completion must say |
//! | `area` | memory that is open to the peer |
//! | `post` | requests of all kinds |
//! | `ending` | how a connection ends: by a call, under load, by an error |

mod area;
mod ending;
mod post;
mod side;

use nic_abi::admin::Injection;
use privileged_api::*;

use super::node::Scene;
use crate::harness::wrong::{Must, Step, Wrong, hold};
pub(crate) use area::Area;
use ending::Ending;
use side::Side;

/// Bytes of a message at most.
const MOST: usize = 5000;
/// How long anything may take, nanoseconds.
pub(crate) const PATIENCE: u64 = 120_000_000_000;
/// How long a request may take if nothing is lost or late, nanoseconds.
const PROMPT: u64 = 100_000_000;
/// Losses of one connection that its retries outlive.
const LOSSES: u32 = 5;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is no endpoint.
    Nothing,
    Connecting,
    Up,
    /// It is ending: the ends learn of it, and all requests complete.
    Ending,
    /// All its lives are over.
    Over,
}

/// What a stream did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Did,
    /// There is nothing to do now.
    Nothing,
    /// It waits for completions on this node, which must come.
    Await(usize),
}

/// A connection.
pub(crate) struct Stream {
    pub(crate) name: String,
    number: u32,
    pub(crate) sides: [Side; 2],
    pub(crate) phase: Phase,
    /// The lives that are left, and the requests of this one.
    lives: u32,
    posts: u32,
    /// Counts the attempts to connect, so that a late request of a former one is known.
    attempt: u32,
    /// When the phase began.
    since: u64,
    /// Why an error may break the connection.
    excuse: Option<&'static str>,
    /// How it is to end, once that is decided.
    ending: Option<Ending>,
    /// What breaks the connection by itself has been posted.
    begun: bool,
    /// It waits until all requests are complete, and then goes on.
    pausing: bool,
    /// It pauses at one opportunity in so many.
    pauses: u64,
    /// Whether it had ended when it was looked at last. Completions may have come in between.
    settled: bool,
    /// Losses that may still be injected.
    losses: u32,
    /// Receives are posted late.
    lazy: bool,
    /// It gives up soon if the peer is not ready to receive.
    impatient: bool,
    /// A side has ended the connection, by a call or by freeing its endpoint.
    left: bool,
}

impl Stream {
    pub(crate) fn new(scene: &mut Scene, number: u32) -> Stream {
        let iwarp = scene.iwarp;
        let random = &mut scene.random;
        let first = random.below(2) as usize;
        // Sometimes both ends are on one NIC.
        let second = if random.rarely(5) { first } else { 1 - first };
        let depth = 2 + random.below(9) as usize;
        let (shared, lives, posts) = (random.below(4), 1 + random.small(2), 6 + random.small(24));
        let name = format!("{}.s{number}", scene.name);
        let side = |letter: &str, node: usize, shared: bool| Side {
            name: format!("{name}{letter}"),
            node,
            ep: EpHandle::NULL,
            iwarp,
            depth,
            shared,
            requests: Default::default(),
            receives: Default::default(),
            sent: Default::default(),
            unproved: Vec::new(),
            open: false,
            acknowledged: 0,
            arrived: 0,
            area: Area::none(),
            established: false,
            over: None,
            failed: false,
            receives_failed: false,
            alive: false,
            freed: None,
            former: None,
        };
        Stream {
            sides: [side("a", first, shared == 0), side("b", second, shared <= 1)],
            name: name.clone(),
            number,
            phase: Phase::Nothing,
            lives,
            posts,
            attempt: 0,
            since: 0,
            excuse: None,
            ending: None,
            begun: false,
            pausing: false,
            settled: false,
            losses: 0,
            pauses: if random.rarely(2) { 4 } else { 24 },
            lazy: random.rarely(3),
            // Over iWARP a Send does not wait for the peer's receive.
            impatient: random.rarely(6) && !iwarp,
            left: false,
        }
    }

    /// One side and the other.
    fn ends(&mut self, side: usize) -> (&mut Side, &mut Side) {
        let [a, b] = &mut self.sides;
        if side == 0 { (a, b) } else { (b, a) }
    }

    /// The side that an endpoint is.
    pub(crate) fn side_of(&self, node: usize, ep: EpHandle) -> Option<usize> {
        self.sides.iter().position(|side| side.alive && side.node == node && side.ep == ep)
    }

    /// Whether an event of a connection is of an endpoint that was freed under load.
    pub(crate) fn was_freed(&self, node: usize, ep: EpHandle) -> bool {
        self.sides.iter().any(|side| side.node == node && side.freed == Some(ep))
    }

    fn enter(&mut self, scene: &Scene, phase: Phase) {
        scene.story.tell(|| format!("{}: {:?} -> {phase:?}", self.name, self.phase));
        self.phase = phase;
        self.since = scene.platform.now().as_nanos();
    }

    /// Fails if the phase has lasted too long.
    fn patience(&self, scene: &Scene) -> Step {
        let lasted = scene.platform.now().as_nanos() - self.since;
        if lasted < PATIENCE {
            return Ok(());
        }
        let ends = self.sides.iter().map(|side| {
            let first = side.requests.front().map(|r| (r.cookie, r.kind.name()));
            format!(
                "{}: over: {:?}, {} requests outstanding, the first is {first:?}, {} receives",
                side.name,
                side.over,
                side.requests.len(),
                side.receives.len()
            )
        });
        let ends: Vec<String> = ends.collect();
        Err(Wrong(format!(
            "{} stays {:?} for {} s: {}",
            self.name,
            self.phase,
            lasted / 1_000_000_000,
            ends.join("; ")
        )))
    }

    /// Does something.
    pub(crate) fn act(&mut self, scene: &mut Scene) -> Step<Next> {
        if self.phase == Phase::Up && (self.pausing || scene.rarely(self.pauses)) {
            self.pausing = true;
            if let Some(node) = self.drain(scene)? {
                return Ok(Next::Await(node));
            }
            self.pausing = false;
            self.check_areas()?;
        }
        let did = match self.phase {
            Phase::Up if self.posts == 0 => return self.end(scene),
            _ => self.go_on(scene)?,
        };
        Ok(if did { Next::Did } else { Next::Nothing })
    }

    /// Goes on in all phases; false if there is nothing to do but to wait.
    fn go_on(&mut self, scene: &mut Scene) -> Step<bool> {
        match self.phase {
            Phase::Nothing if self.lives == 0 => {
                self.enter(scene, Phase::Over);
                Ok(true)
            }
            Phase::Nothing => self.connect(scene).map(|()| true),
            Phase::Connecting => {
                self.patience(scene)?;
                self.established(scene)
            }
            Phase::Up => self.traffic(scene),
            Phase::Ending => {
                self.patience(scene)?;
                self.ended(scene)
            }
            Phase::Over => Ok(false),
        }
    }

    /// Makes what is missing and asks for the connection.
    fn connect(&mut self, scene: &mut Scene) -> Step {
        for side in &mut self.sides {
            if !side.alive {
                side.create(scene)?;
            }
            side.area = Area::new(scene, side.node)?;
        }
        self.attempt += 1;
        self.excuse = None;
        self.ending = None;
        self.begun = false;
        self.pausing = false;
        self.settled = false;
        self.left = false;
        // Requests of iWARP do not get lost one by one.
        self.losses = if scene.quiet || scene.iwarp { 0 } else { LOSSES };
        if !scene.quiet && !scene.iwarp && scene.rarely(6) {
            let lost = 1 + scene.random.small(3);
            let node = self.sides[scene.random.below(2) as usize].node;
            self.inject(scene, node, 0, Injection::DropManagement, lost, 0)?;
        }
        let path = scene.path(self.sides[0].node, self.sides[1].node)?;
        let attributes = ConnAttributes {
            local_ack_timeout: 10 + scene.random.below(4) as u8,
            rnr_retry_count: if self.impatient { scene.random.below(3) as u8 } else { 7 },
            ..ConnAttributes::default()
        };
        let mut data = self.number.to_le_bytes().to_vec();
        data.extend_from_slice(&self.attempt.to_le_bytes());
        let (from, to) = (&scene.nodes[self.sides[0].node], &scene.nodes[self.sides[1].node]);
        let flags = CnEstFlags::TWO_WAY;
        from.ia
            .ep_connect(self.sides[0].ep, &path, Some(&attributes), &to.service, flags, &data)
            .must("it_ep_connect")?;
        self.enter(scene, Phase::Connecting);
        Ok(())
    }

    /// A request for a connection arrived; true if it is this stream's.
    pub(crate) fn asked(&mut self, scene: &mut Scene, node: usize, request: &ConnRequest) -> Step<bool> {
        let data = request.private_data.map(|data| data.as_slice().to_vec()).unwrap_or_default();
        let word = |at: usize| {
            data.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        };
        if word(0) != Some(self.number) {
            return Ok(false);
        }
        let ia = &scene.nodes[node].ia;
        let current =
            self.phase == Phase::Connecting && word(4) == Some(self.attempt) && self.sides[1].node == node;
        if !current || self.sides[1].established {
            scene.story.tell(|| format!("{}: a late request is rejected", self.name));
            let _ = ia.reject(request.cn_est_id, &[]);
            return Ok(true);
        }
        if scene.random.rarely(12) {
            scene.tally.did("rejected connections");
            scene.story.tell(|| format!("{}: the request is rejected", self.name));
            return ia.reject(request.cn_est_id, &[]).must("it_reject").map(|()| true);
        }
        scene.story.tell(|| format!("{}: the request is accepted", self.sides[1].name));
        ia.ep_accept(self.sides[1].ep, request.cn_est_id, &[]).must("it_ep_accept")?;
        Ok(true)
    }

    /// An event of the connection of one side.
    pub(crate) fn message(&mut self, scene: &mut Scene, side: usize, event: &Event) -> Step {
        let end = &mut self.sides[side];
        scene.story.tell(|| format!("{}: {:?}", end.name, event.event_number()));
        let over = match event {
            Event::ConnEstablished { .. } => {
                hold!(!end.established && end.over.is_none(), "{}: established twice", end.name);
                end.established = true;
                return Ok(());
            }
            Event::ConnDisconnect { .. } => "disconnected",
            Event::ConnBroken { .. } => "broken",
            Event::ConnPeerReject { .. } => "rejected",
            Event::ConnNonpeerReject { .. } => "given up",
            other => return Err(Wrong(format!("{}: unexpected {:?}", end.name, other.event_number()))),
        };
        hold!(end.over.is_none(), "{}: {over}, after it was {:?}", end.name, end.over);
        end.over = Some(over);
        if scene.iwarp {
            // Only an end between messages is an orderly one, and nothing else ends it so.
            let name = &self.sides[side].name;
            let idle = self.ending == Some(Ending::Idle) && !scene.faulty;
            hold!(over != "disconnected" || self.left, "{name}: disconnected, and nobody has left");
            hold!(over != "broken" || !idle, "{name}: broken, and it was ended between messages");
        }
        scene.tally.did(match over {
            "disconnected" => "ends disconnected",
            "broken" => "ends broken",
            "rejected" => "ends rejected",
            _ => "ends given up",
        });
        if self.phase == Phase::Up {
            hold!(self.excuse.is_some(), "{}: {over} without a cause", self.sides[side].name);
            self.enter(scene, Phase::Ending);
        }
        Ok(())
    }

    /// A completion of one side.
    pub(crate) fn completed(&mut self, scene: &mut Scene, side: usize, done: &DtoCompletion) -> Step {
        let excuse = self.excuse;
        let ending = self.phase == Phase::Ending;
        let (end, peer) = self.ends(side);
        let receive = done.event_number == EventType::DTO_RC_RECV_CMPL;
        let broke = match receive {
            true => end.received(scene, peer, done)?,
            false => end.done(scene, peer, done)?,
        };
        let name = &self.sides[side].name;
        if done.dto_status != DtoStatus::Success && !ending {
            hold!(excuse.is_some(), "{name}: {:?} without a cause", done.dto_status);
        }
        if broke {
            scene.tally.did(match done.dto_status {
                DtoStatus::RemoteAccess => "errors: remote access",
                DtoStatus::Transport => "errors: no answer",
                DtoStatus::ReceiverNotReady => "errors: receiver not ready",
                DtoStatus::LocalLength => "errors: local length",
                _ => "errors: others",
            });
        }
        if done.dto_status != DtoStatus::Success && self.phase == Phase::Up {
            self.enter(scene, Phase::Ending);
        }
        Ok(())
    }

    /// Goes on once both sides are established, or once the attempt has failed.
    fn established(&mut self, scene: &mut Scene) -> Step<bool> {
        if self.sides.iter().any(|side| side.over.is_some()) {
            // It was rejected, or given up. The other side may know nothing of it.
            self.excuse = Some("the connection was not established");
            self.close(scene)?;
            return Ok(true);
        }
        if !self.sides.iter().all(|side| side.established) {
            return Ok(false);
        }
        scene.tally.did("connections");
        self.enter(scene, Phase::Up);
        if self.impatient {
            self.excuse = Some("receives are posted late, and the peer gives up soon");
        }
        if scene.faulty {
            self.excuse = Some("the network loses packets");
        }
        Ok(true)
    }

    /// Disconnects the sides that still have a connection.
    fn close(&mut self, scene: &mut Scene) -> Step {
        self.left = true;
        for side in &mut self.sides {
            let ia = &scene.nodes[side.node].ia;
            match ia.ep_disconnect(side.ep, &[]) {
                Ok(()) => {}
                // It has no connection at all.
                Err(Error::InvalidEpState) => side.over = Some("never connected"),
                Err(error) => return Err(Wrong(format!("it_ep_disconnect: {error}"))),
            }
        }
        self.enter(scene, Phase::Ending);
        Ok(())
    }

    /// Traffic: posts something, or injects a fault.
    fn traffic(&mut self, scene: &mut Scene) -> Step<bool> {
        if self.losses > 0 && scene.rarely(12) {
            self.fault(scene)?;
        }
        let side = scene.random.below(2) as usize;
        let late = self.lazy && !scene.rarely(4);
        if !late && self.post_receives(scene, side)? {
            return Ok(true);
        }
        let posted = self.post_any(scene, side)?;
        self.posts -= u32::from(posted).min(self.posts);
        Ok(posted)
    }

    /// Posts the receives that the peer may need. Returns whether there were any.
    fn post_receives(&mut self, scene: &mut Scene, side: usize) -> Step<bool> {
        let (end, peer) = self.ends(side);
        let mut any = false;
        while end.post_receive(scene, peer)? {
            any = true;
        }
        Ok(any)
    }

    fn inject(
        &self,
        scene: &Scene,
        node: usize,
        object: u32,
        what: Injection,
        count: u32,
        value: u64,
    ) -> Step {
        scene.story.tell(|| format!("{}: fault {what:?}, {count} times", self.name));
        scene.nodes[node].agent.test_handle().inject(object, what, count, value).must("a fault")
    }

    /// Injects a fault that the connection outlives.
    fn fault(&mut self, scene: &mut Scene) -> Step {
        let side = &self.sides[scene.random.below(2) as usize];
        let (node, ep) = (side.node, side.ep);
        let qpn = scene.nodes[node].ia.ep_qpn(ep).must("ep_qpn")?;
        let count = 1 + scene.random.small(self.losses.min(2));
        let (what, value) = match scene.random.below(3) {
            0 => (Injection::DropRequests, 0),
            1 => (Injection::DropResponses, 0),
            _ => (Injection::Delay, scene.random.below(3_000_000)),
        };
        if what != Injection::Delay {
            self.losses -= count;
        } else {
            scene.tally.fault("delayed requests", u64::from(count));
        }
        self.inject(scene, node, qpn, what, count, value)
    }

    /// Sees to it that all requests complete: posts the receives that are missing, and a request
    /// that reports behind one that does not. Returns the node on which an event must come.
    fn drain(&mut self, scene: &mut Scene) -> Step<Option<usize>> {
        for side in [0, 1] {
            self.post_receives(scene, side)?;
            let end = &mut self.sides[side];
            let silent = end.requests.back().is_some_and(|last| !last.signaled);
            if (silent || end.open) && end.has_room() {
                end.post_marker(scene)?;
            }
        }
        for side in [0, 1] {
            let (end, peer) = self.ends(side);
            if end.requests.iter().any(|request| request.signaled) {
                return Ok(Some(end.node));
            }
            if !end.sent.is_empty() {
                return Ok(Some(peer.node));
            }
        }
        Ok(None)
    }

    /// Checks the memory of both sides, whose requests are complete.
    fn check_areas(&self) -> Step {
        self.sides.iter().try_for_each(|side| side.area.check(&side.name))
    }

    /// How long a request of this stream may take now, if the run knows.
    pub(crate) fn must_be_prompt(&self, scene: &Scene, took: u64) -> Step {
        let calm = scene.quiet && self.excuse.is_none() && !self.lazy;
        hold!(
            !calm || took < PROMPT,
            "{}: a request took {} ms, and nothing was lost or late",
            self.name,
            took / 1_000_000
        );
        Ok(())
    }
}
