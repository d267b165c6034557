//! Posts requests of all kinds, as the seed decides.

use privileged_api::*;

use super::area::{Target, Way};
use super::side::{Kind, Message, Request, Side};
use super::{MOST, Stream};
use crate::harness::memory::{Slot, pattern};
use crate::harness::wrong::{Must, Step, hold};
use crate::workload::node::Scene;

/// Flags of a request, and whether a success makes an event. A silent request keeps its place in
/// the queue until a later one completes, so the last place is for one that is not silent.
fn flags(scene: &mut Scene, last: bool) -> (DtoFlags, bool) {
    let mut flags = DtoFlags::empty();
    let signaled = last || !scene.rarely(4);
    if signaled {
        flags |= DtoFlags::COMPLETION;
        flags.set(DtoFlags::NOTIFY, scene.rarely(2));
    }
    (flags, signaled)
}

/// A range of a target, of at most so many bytes.
fn part(scene: &mut Scene, target: &Target, most: usize) -> (usize, usize) {
    let (start, end) = target.range;
    let len = scene.length(most.min(end - start));
    (start + scene.random.below((end - start - len) as u64 + 1) as usize, len)
}

impl Side {
    /// A source with message `word`.
    fn source(&self, scene: &mut Scene, len: usize) -> Step<Option<(Slot, u64)>> {
        let Some(slot) = scene.slot(self.node, len)? else { return Ok(None) };
        let word = scene.random.word();
        scene.nodes[self.node].slab.write(slot.at, &pattern(word, len))?;
        Ok(Some((slot, word)))
    }

    fn posted(
        &mut self,
        scene: &Scene,
        cookie: u64,
        signaled: bool,
        kind: Kind,
        slot: Option<Slot>,
        content: Option<u64>,
    ) {
        let len = slot.as_ref().map_or(0, |slot| slot.len);
        let silent = if signaled { "" } else { ", silent" };
        scene.story.tell(|| format!("{}: posts {} {cookie} of {len} bytes{silent}", self.name, kind.name()));
        self.requests.push_back(Request { cookie, signaled, kind, slot, content });
    }

    /// Posts a request without effect that makes an event.
    pub(super) fn post_marker(&mut self, scene: &mut Scene) -> Step {
        let cookie = scene.cookie();
        let flags = DtoFlags::COMPLETION | DtoFlags::NOTIFY;
        let ia = &scene.nodes[self.node].ia;
        let (to, context) = (RdmaAddr(0), RmrContext(0));
        // Over iWARP only an answer shows that what was asked before has arrived.
        match self.iwarp {
            true => ia.post_rdma_read(self.ep, &[], cookie, flags, to, context).must("it_post_rdma_read")?,
            false => {
                ia.post_rdma_write(self.ep, &[], cookie, flags, to, context).must("it_post_rdma_write")?
            }
        }
        self.open = false;
        self.posted(scene, cookie, true, Kind::Marker, None, None);
        Ok(())
    }

    /// Whether a Read of this side is under way.
    fn reads(&self) -> bool {
        self.requests.iter().any(|request| matches!(request.kind, Kind::Read { .. }))
    }

    /// Notes that later requests may change what earlier Reads of this side bring, unless they wait
    /// for these.
    fn overtakes(&mut self, from: usize, len: usize) {
        for request in &mut self.requests {
            if let Kind::Read { at, loose, .. } = &mut request.kind {
                let overlap = from.max(*at)..(from + len).min(*at + loose.len());
                for n in overlap {
                    loose[n - *at] = true;
                }
            }
        }
    }

    /// A Send, which may unlink a target of the peer.
    pub(super) fn post_send(
        &mut self,
        scene: &mut Scene,
        peer: &mut Side,
        unlinks: Option<usize>,
    ) -> Step<bool> {
        let len = scene.length(MOST);
        let Some((slot, word)) = self.source(scene, len)? else { return Ok(false) };
        let (mut flags, signaled) = flags(scene, self.requests.len() + 1 >= self.depth);
        flags.set(DtoFlags::SOLICITED_WAIT, scene.rarely(3));
        let segments = scene.nodes[self.node].segments(&slot, &mut scene.random, true);
        let cookie = scene.cookie();
        let ia = &scene.nodes[self.node].ia;
        let kind = match unlinks {
            Some(target) => {
                // A Read whose answer is lost would be repeated after the unlink.
                flags |= DtoFlags::BARRIER_FENCE;
                let target = &mut peer.area.targets[target];
                target.way = Way::Changing;
                ia.post_send_and_unlink(self.ep, &segments, cookie, flags, target.context)
                    .must("it_post_send_and_unlink")?;
                Kind::Unlinking
            }
            None => {
                ia.post_send(self.ep, &segments, cookie, flags).must("it_post_send")?;
                Kind::Send
            }
        };
        self.sends(scene, peer, Message { word, len, unlinks });
        self.posted(scene, cookie, signaled, kind, Some(slot), Some(word));
        Ok(true)
    }

    fn post_write(&mut self, scene: &mut Scene, peer: &mut Side, target: usize) -> Step<bool> {
        let (at, len) = part(scene, &peer.area.targets[target], MOST);
        let Some((slot, word)) = self.source(scene, len)? else { return Ok(false) };
        let (mut flags, signaled) = flags(scene, self.requests.len() + 1 >= self.depth);
        if self.reads() && scene.rarely(2) {
            flags |= DtoFlags::BARRIER_FENCE;
        } else {
            self.overtakes(at, len);
        }
        let segments = scene.nodes[self.node].segments(&slot, &mut scene.random, true);
        let cookie = scene.cookie();
        let to = make_rdma_addr_absolute(peer.area.addr(at));
        let context = peer.area.targets[target].context;
        let ia = &scene.nodes[self.node].ia;
        ia.post_rdma_write(self.ep, &segments, cookie, flags, to, context).must("it_post_rdma_write")?;
        peer.area.shadow[at..at + len].copy_from_slice(&pattern(word, len));
        peer.area.targets[target].users += 1;
        self.open = self.iwarp;
        self.posted(scene, cookie, signaled, Kind::Write { target }, Some(slot), Some(word));
        Ok(true)
    }

    fn post_read(&mut self, scene: &mut Scene, peer: &mut Side, target: usize) -> Step<bool> {
        let (at, len) = part(scene, &peer.area.targets[target], MOST);
        let Some(slot) = scene.slot(self.node, len)? else { return Ok(false) };
        let (flags, signaled) = flags(scene, self.requests.len() + 1 >= self.depth);
        // A sink cannot have the direct handle.
        let segments = scene.nodes[self.node].segments(&slot, &mut scene.random, false);
        let cookie = scene.cookie();
        let from = make_rdma_addr_absolute(peer.area.addr(at));
        let context = peer.area.targets[target].context;
        let ia = &scene.nodes[self.node].ia;
        ia.post_rdma_read(self.ep, &segments, cookie, flags, from, context).must("it_post_rdma_read")?;
        let expected = peer.area.shadow[at..at + len].to_vec();
        peer.area.targets[target].users += 1;
        self.open = false;
        let kind = Kind::Read { target, expected, at, loose: vec![false; len] };
        self.posted(scene, cookie, signaled, kind, Some(slot), None);
        Ok(true)
    }

    fn post_atomic(&mut self, scene: &mut Scene, peer: &mut Side, target: usize) -> Step<bool> {
        let (start, end) = peer.area.targets[target].range;
        let at = start + 8 * scene.random.below((end - start) as u64 / 8) as usize;
        let Some(slot) = scene.slot(self.node, 8)? else { return Ok(false) };
        let (flags, signaled) = flags(scene, self.requests.len() + 1 >= self.depth);
        let cookie = scene.cookie();
        let word = &peer.area.shadow[at..at + 8];
        let original = u64::from_le_bytes(word.try_into().unwrap_or([0; 8]));
        let swap = scene.rarely(2);
        let operand = scene.random.word();
        let compare = if scene.rarely(3) { operand } else { original };
        let new = match swap {
            true if compare != original => original,
            true => operand,
            false => original.wrapping_add(operand),
        };
        let op = if swap { AtomicOp::CompareAndSwap } else { AtomicOp::FetchAndAdd };
        let node = &scene.nodes[self.node];
        let sink = LmrTriplet::new(node.lmr, (node.slab.buffer.addr() + slot.at) as u64, 8);
        let to = make_rdma_addr_absolute(peer.area.addr(at));
        let context = peer.area.targets[target].context;
        node.ia
            .post_atomic(self.ep, op, operand, compare, &sink, cookie, flags, to, context)
            .must("it_post_atomic")?;
        self.overtakes(at, 8);
        peer.area.shadow[at..at + 8].copy_from_slice(&new.to_le_bytes());
        peer.area.targets[target].users += 1;
        self.posted(scene, cookie, signaled, Kind::Atomic { swap, target, original }, Some(slot), None);
        Ok(true)
    }

    /// Links or unlinks one of this side's own targets.
    fn post_change(&mut self, scene: &mut Scene, peer: &Side, target: usize) -> Step<bool> {
        let state = &self.area.targets[target];
        // A message that is on its way may unlink it.
        let claimed = peer.sent.iter().any(|message| message.unlinks == Some(target));
        if state.users > 0 || claimed {
            return Ok(false);
        }
        let way = state.way;
        let (mut flags, signaled) = flags(scene, self.requests.len() + 1 >= self.depth);
        let cookie = scene.cookie();
        let node = &scene.nodes[self.node];
        match way {
            Way::Down => {
                self.area.post_link(node, target, self.ep, cookie, flags)?;
                self.posted(scene, cookie, signaled, Kind::Link { target }, None, None);
            }
            Way::Up => {
                flags.remove(DtoFlags::UNLINK_FENCE);
                self.area.post_unlink(node, target, self.ep, cookie, flags)?;
                self.posted(scene, cookie, signaled, Kind::Unlink { target }, None, None);
            }
            Way::Changing | Way::Unknown => return Ok(false),
        }
        Ok(true)
    }

    /// Several Sends with one doorbell.
    fn post_batch(&mut self, scene: &mut Scene, peer: &Side) -> Step<bool> {
        let mut ready = Vec::new();
        let room = (self.depth - self.requests.len()).min(self.room_of(scene, peer));
        for _ in 0..(1 + scene.random.below(4) as usize).min(room) {
            let len = scene.length(300);
            let Some((slot, word)) = self.source(scene, len)? else { break };
            let (flags, signaled) = flags(scene, self.requests.len() + ready.len() + 1 >= self.depth);
            let segments = scene.nodes[self.node].segments(&slot, &mut scene.random, true);
            ready.push((slot, word, flags, signaled, segments, scene.cookie()));
        }
        let ia = &scene.nodes[self.node].ia;
        ia.post_batch(self.ep, |batch| {
            ready
                .iter()
                .try_for_each(|(_, _, flags, _, segments, cookie)| batch.post_send(segments, *cookie, *flags))
        })
        .must("post_batch")?;
        let any = !ready.is_empty();
        for (slot, word, _, signaled, _, cookie) in ready {
            self.sends(scene, peer, Message { word, len: slot.len, unlinks: None });
            self.posted(scene, cookie, signaled, Kind::Send, Some(slot), Some(word));
        }
        Ok(any)
    }

    /// An access that the peer does not allow: by a context that is no longer valid, or past the
    /// end of a target. False if there is none.
    pub(super) fn post_trespass(&mut self, scene: &mut Scene, peer: &mut Side) -> Step<bool> {
        let target = scene.random.below(3) as usize;
        let Target { stale, context, range, way, .. } = peer.area.targets[target];
        let past_the_end = scene.rarely(2) && way == Way::Up;
        let (context, at) = match stale {
            _ if past_the_end => (context, range.1 - 1),
            Some(stale) => (stale, range.0),
            None => return Ok(false),
        };
        let Some((slot, word)) = self.source(scene, 2)? else { return Ok(false) };
        let cookie = scene.cookie();
        let flags = DtoFlags::COMPLETION;
        let node = &scene.nodes[self.node];
        let source = LmrTriplet::new(node.lmr, (node.slab.buffer.addr() + slot.at) as u64, 2);
        let to = make_rdma_addr_absolute(peer.area.addr(at));
        node.ia.post_rdma_write(self.ep, &[source], cookie, flags, to, context).must("it_post_rdma_write")?;
        self.open = self.iwarp;
        self.posted(scene, cookie, true, Kind::Trespass, Some(slot), Some(word));
        Ok(true)
    }
}

impl Stream {
    /// Posts a request on one side. False if there is no room.
    pub(super) fn post_any(&mut self, scene: &mut Scene, side: usize) -> Step<bool> {
        let (end, peer) = self.ends(side);
        if !end.has_room() {
            return Ok(false);
        }
        // Not more messages than receives that the peer can have.
        let sends = end.room_of(scene, peer) > 0;
        let target = scene.random.below(3) as usize;
        let up = peer.area.targets[target].way == Way::Up;
        match scene.random.below(16) {
            0..4 if sends => end.post_send(scene, peer, None),
            4 if sends => end.post_batch(scene, peer),
            5 if sends && up && target > 0 => {
                // A wide window cannot be unlinked by the peer, nor can what others use.
                let unlinkable = target == 2 && peer.area.targets[1].way != Way::Changing;
                match unlinkable {
                    true => end.post_send(scene, peer, Some(target)),
                    false => Ok(false),
                }
            }
            6..9 if up => end.post_write(scene, peer, target),
            9..11 if up => end.post_read(scene, peer, target),
            11..13 if up && target != 1 && !end.iwarp => end.post_atomic(scene, peer, target),
            13..16 => {
                let own = 1 + scene.random.below(2) as usize;
                hold!(end.area.targets.len() == 3, "an area has three targets");
                end.post_change(scene, peer, own)
            }
            _ => Ok(false),
        }
    }
}
