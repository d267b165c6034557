//! How a connection ends, and what must hold then.

use nic_abi::admin::Injection;
use nic_abi::cqe;
use privileged_api::*;

use super::{Next, Phase, Stream};
use crate::harness::wrong::{Must, Step, Wrong, hold};
use crate::workload::node::Scene;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// A side disconnects when all requests are complete, or both do.
    Idle,
    /// A side disconnects under load, or both do.
    Loaded,
    /// A side is freed under load.
    Freed,
    /// A side reaches for memory that it may not reach.
    Trespass,
    /// The device says that a request failed.
    Failure,
    /// The peer's answer makes no sense, or a request does not.
    Garbled,
    /// Requests get no answer.
    Silence,
}

impl Stream {
    /// Chooses how the connection ends, and begins with it.
    pub(super) fn end(&mut self, scene: &mut Scene) -> Step<Next> {
        let by = scene.random.below(2) as usize;
        let ending = match self.ending {
            Some(ending) => ending,
            None => match scene.random.below(12) {
                4 | 5 => Ending::Loaded,
                6 | 7 if !self.sides[by].shared => Ending::Freed,
                8 | 9 => Ending::Trespass,
                10 | 11 if scene.iwarp => Ending::Loaded,
                10 if !scene.quiet => [Ending::Failure, Ending::Garbled][scene.random.below(2) as usize],
                11 if !scene.quiet => Ending::Silence,
                _ => Ending::Idle,
            },
        };
        if self.ending.is_none() {
            scene.story.tell(|| format!("{}: it is to end: {ending:?}", self.name));
        }
        let by_itself = !matches!(ending, Ending::Idle | Ending::Loaded | Ending::Freed);
        if ending == Ending::Idle || by_itself && self.ending.is_some() {
            self.ending = Some(ending);
            if let Some(node) = self.drain(scene)? {
                return Ok(Next::Await(node));
            }
            self.check_areas()?;
            hold!(
                !scene.iwarp || ending != Ending::Trespass,
                "{}: a side has reached for memory that it may not reach, and nothing happened",
                self.name
            );
            // A fault that hit a repetition breaks nothing.
            scene.tally.did("endings: idle");
            self.disconnect(scene, by)?;
            return Ok(Next::Did);
        }
        self.break_off(scene, by, ending)?;
        self.ending = Some(ending).filter(|_| self.begun);
        Ok(Next::Did)
    }

    /// Ends the connection while requests may be under way.
    fn break_off(&mut self, scene: &mut Scene, by: usize, ending: Ending) -> Step {
        match ending {
            Ending::Idle => Ok(()),
            Ending::Loaded => {
                scene.tally.did("endings: under load");
                self.disconnect(scene, by)
            }
            Ending::Freed => self.free_under_load(scene, by),
            Ending::Trespass => {
                let (end, peer) = self.ends(by);
                if end.has_room() && end.post_trespass(scene, peer)? {
                    scene.tally.did("endings: access without a right");
                    self.excuse = Some("a side has reached for memory that it may not reach");
                    self.begun = true;
                }
                Ok(())
            }
            Ending::Failure => {
                let status = cqe::Status::LocalQpOperation as u64;
                self.break_by(scene, by, Injection::Failure, 1, status, "failed requests by injection")
            }
            Ending::Garbled => {
                let what = [Injection::BadResponse, Injection::BadRequest][scene.random.below(2) as usize];
                self.break_by(scene, by, what, 1, 0, "garbled packets")
            }
            Ending::Silence => {
                let what =
                    [Injection::DropResponses, Injection::DropRequests][scene.random.below(2) as usize];
                self.break_by(scene, by, what, 40, 0, "silences")
            }
        }
    }

    fn disconnect(&mut self, scene: &mut Scene, by: usize) -> Step {
        self.excuse = Some("a side has disconnected");
        self.left = true;
        self.enter(scene, Phase::Ending);
        let both = scene.rarely(4);
        for side in [by, 1 - by] {
            if side == by || both {
                let ia = &scene.nodes[self.sides[side].node].ia;
                scene.story.tell(|| format!("{}: disconnects", self.sides[side].name));
                ia.ep_disconnect(self.sides[side].ep, &[]).must("it_ep_disconnect")?;
            }
        }
        Ok(())
    }

    /// Frees an endpoint whose requests are under way. From then on the device touches none of its
    /// memory, and no completion of it arrives.
    fn free_under_load(&mut self, scene: &mut Scene, by: usize) -> Step {
        scene.tally.did("endings: freed under load");
        self.excuse = Some("an endpoint was freed");
        self.left = true;
        self.enter(scene, Phase::Ending);
        let (end, peer) = self.ends(by);
        scene.story.tell(|| format!("{}: is freed", end.name));
        // A narrow window that is linked through the endpoint keeps it.
        end.area.free(&scene.nodes[end.node])?;
        scene.nodes[end.node].ia.ep_free(end.ep).must("it_ep_free")?;
        end.alive = false;
        end.freed = Some(end.ep);
        end.forget(scene, peer)
    }

    /// Breaks the connection by a fault, which needs a request.
    fn break_by(
        &mut self,
        scene: &mut Scene,
        by: usize,
        what: Injection,
        count: u32,
        value: u64,
        name: &'static str,
    ) -> Step {
        let (end, _) = self.ends(by);
        if !end.has_room() {
            return Ok(());
        }
        let (node, ep) = (end.node, end.ep);
        let qpn = scene.nodes[node].ia.ep_qpn(ep).must("ep_qpn")?;
        scene.tally.fault(name, 1);
        scene.tally.did("endings: by a fault");
        self.excuse = Some(name);
        self.inject(scene, node, qpn, what, count, value)?;
        self.begun = true;
        self.sides[by].post_marker(scene)
    }

    /// Whether the connection has ended: then what was left is checked, and the endpoints are freed
    /// or reset. False if there is still something to wait for.
    pub(super) fn ended(&mut self, scene: &mut Scene) -> Step<bool> {
        for side in self.sides.iter_mut().filter(|side| side.alive && side.over.is_some()) {
            // A silent request that succeeded is known by what is flushed behind it.
            if side.requests.back().is_some_and(|last| !last.signaled) {
                side.post_marker(scene)?;
            }
        }
        for side in &self.sides {
            let done = side.over.is_some() && side.requests.is_empty() && side.receives.is_empty();
            if side.alive && !done {
                return Ok(false);
            }
        }
        // Completions are looked for on one node after the other, so some may be left.
        if !std::mem::replace(&mut self.settled, true) {
            return Ok(false);
        }
        for side in [0, 1] {
            let (end, peer) = self.ends(side);
            end.give_up_proof(peer);
            // Over iWARP a Send is complete once the stream has it.
            if peer.alive && !end.iwarp {
                hold!(
                    peer.arrived >= end.acknowledged,
                    "{}: {} messages were acknowledged, and only {} arrived",
                    end.name,
                    end.acknowledged,
                    peer.arrived
                );
            }
        }
        for side in &self.sides {
            side.area.check(&side.name)?;
        }
        for side in [0, 1] {
            let (end, peer) = self.ends(side);
            end.forget_messages(scene, peer);
        }
        self.lives -= 1;
        self.posts = 6 + scene.random.small(24);
        for side in &mut self.sides {
            let node = &scene.nodes[side.node];
            side.area.free(node)?;
            // The last endpoints are freed when all connections are released.
            if !side.alive || self.lives == 0 {
                continue;
            }
            let again = scene.random.rarely(2);
            scene.story.tell(|| format!("{}: {}", side.name, if again { "is reset" } else { "is freed" }));
            match again {
                true => {
                    let connected = side.over != Some("never connected");
                    match scene.nodes[side.node].ia.ep_reset(side.ep) {
                        Ok(()) => {}
                        Err(Error::InvalidEpState) if !connected => {}
                        Err(error) => return Err(Wrong(format!("it_ep_reset: {error}"))),
                    }
                    side.renew();
                }
                false => {
                    scene.nodes[side.node].ia.ep_free(side.ep).must("it_ep_free")?;
                    side.alive = false;
                }
            }
        }
        self.enter(scene, Phase::Nothing);
        Ok(true)
    }

    /// Frees the last endpoints.
    pub(crate) fn free(&mut self, scene: &Scene) -> Step {
        for side in self.sides.iter_mut().filter(|side| side.alive) {
            scene.nodes[side.node].ia.ep_free(side.ep).must("it_ep_free")?;
            side.alive = false;
        }
        Ok(())
    }
}
