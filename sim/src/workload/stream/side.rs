//! One end of a connection: its endpoint, and what the model knows of it.

use std::collections::VecDeque;

use privileged_api::*;

use crate::harness::memory::{POISON, Slot, difference, pattern};
use crate::harness::wrong::{Must, Step, hold};
use crate::workload::node::{SHARED, Scene};

use super::MOST;
use super::area::{Area, Way};

/// What a request is, and what the model expects of it.
#[derive(Debug)]
pub(crate) enum Kind {
    Send,
    /// A Send that unlinks a region of the peer.
    Unlinking,
    Write {
        target: usize,
    },
    Read {
        target: usize,
        /// What the peer's memory held, in the order of the requests.
        expected: Vec<u8>,
        /// Where it begins in the peer's area.
        at: usize,
        /// Bytes that later requests may have changed already, if the answer was lost once.
        loose: Vec<bool>,
    },
    Atomic {
        swap: bool,
        target: usize,
        original: u64,
    },
    /// A link of one of the side's own targets.
    Link {
        target: usize,
    },
    /// An unlink of one of the side's own targets.
    Unlink {
        target: usize,
    },
    /// An access without the right to it: it must fail.
    Trespass,
    /// Nothing but a completion.
    Marker,
}

impl Kind {
    fn event(&self, side: &Side) -> EventType {
        match self {
            Kind::Send | Kind::Unlinking => EventType::DTO_SEND_CMPL,
            Kind::Marker if side.iwarp => EventType::DTO_RDMA_READ_CMPL,
            Kind::Write { .. } | Kind::Trespass | Kind::Marker => EventType::DTO_RDMA_WRITE_CMPL,
            Kind::Read { .. } => EventType::DTO_RDMA_READ_CMPL,
            Kind::Atomic { swap: true, .. } => EventType::DTO_CMP_SWAP_CMPL,
            Kind::Atomic { swap: false, .. } => EventType::DTO_FETCH_ADD_CMPL,
            Kind::Link { target } | Kind::Unlink { target } => match side.area.targets[*target].window {
                Some(_) => EventType::RMR_LINK_CMPL,
                None => EventType::LMR_LINK_CMPL,
            },
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Kind::Send => "send",
            Kind::Unlinking => "send and unlink",
            Kind::Write { .. } => "write",
            Kind::Read { .. } => "read",
            Kind::Atomic { swap: true, .. } => "compare and swap",
            Kind::Atomic { swap: false, .. } => "fetch and add",
            Kind::Link { .. } => "link",
            Kind::Unlink { .. } => "unlink",
            Kind::Trespass => "access without a right",
            Kind::Marker => "empty write",
        }
    }

    fn target(&self) -> Option<usize> {
        match self {
            Kind::Write { target } | Kind::Read { target, .. } | Kind::Atomic { target, .. } => Some(*target),
            _ => None,
        }
    }
}

/// A request that was posted and whose completion is not known yet.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) cookie: u64,
    /// A success makes an event.
    pub(crate) signaled: bool,
    pub(crate) kind: Kind,
    pub(crate) slot: Option<Slot>,
    /// The message that its memory must hold until it is complete.
    pub(crate) content: Option<u64>,
}

/// A message on its way to the peer.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) word: u64,
    pub(crate) len: usize,
    /// The peer's target that it unlinks.
    pub(crate) unlinks: Option<usize>,
}

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) name: String,
    /// The node.
    pub(crate) node: usize,
    pub(crate) ep: EpHandle,
    /// Its connection is one of iWARP: a Write is complete before it has arrived, and a Send too.
    pub(crate) iwarp: bool,
    /// Requests that may be outstanding, and receives.
    pub(crate) depth: usize,
    /// It takes its receives from the node's shared queue.
    pub(crate) shared: bool,
    pub(crate) requests: VecDeque<Request>,
    pub(crate) receives: VecDeque<(u64, Slot)>,
    /// Messages to the peer that have not arrived.
    pub(crate) sent: VecDeque<Message>,
    /// Over iWARP: the targets of Writes that succeeded, while nothing shows that they arrived.
    pub(crate) unproved: Vec<usize>,
    /// Over iWARP: no request behind the last Write will show that it arrived.
    pub(crate) open: bool,
    /// Messages whose Send succeeded, and messages from the peer that arrived.
    pub(crate) acknowledged: u64,
    pub(crate) arrived: u64,
    /// Memory that is open to the peer.
    pub(crate) area: Area,
    pub(crate) established: bool,
    /// The event that told the consumer that the connection is over.
    pub(crate) over: Option<&'static str>,
    /// A request, or a receive, ended with an error.
    pub(crate) failed: bool,
    pub(crate) receives_failed: bool,
    /// The endpoint exists.
    pub(crate) alive: bool,
    /// An endpoint that was freed while its connection was up. The event that the connection broke
    /// may have been queued before.
    pub(crate) freed: Option<EpHandle>,
    /// The endpoint that was created last.
    pub(crate) former: Option<EpHandle>,
}

impl Side {
    /// Forgets the connection to the peer: the endpoint is as new.
    pub(crate) fn renew(&mut self) {
        (self.acknowledged, self.arrived) = (0, 0);
        self.established = false;
        self.over = None;
        (self.failed, self.receives_failed) = (false, false);
        (self.unproved, self.open) = (Vec::new(), false);
    }

    /// How many more messages the peer can take. Over iWARP a message that finds no receive breaks
    /// the connection.
    pub(crate) fn room_of(&self, scene: &Scene, peer: &Side) -> usize {
        let node = &scene.nodes[peer.node];
        let (receives, waiting) = match (peer.shared, self.iwarp) {
            (true, false) => (SHARED, node.due),
            (true, true) => (node.shared.len(), node.due),
            (false, false) => (peer.depth, self.sent.len()),
            (false, true) => (peer.receives.len(), self.sent.len()),
        };
        receives.saturating_sub(waiting)
    }

    /// All Writes that succeeded have arrived.
    fn proved(&mut self, peer: &mut Side) {
        for target in self.unproved.drain(..) {
            if let Some(target) = peer.area.targets.get_mut(target) {
                target.users -= 1;
            }
        }
    }

    /// The connection is over: of Writes that are not proved it is not known whether they arrived.
    pub(crate) fn give_up_proof(&mut self, peer: &mut Side) {
        peer.area.unsure |= !self.unproved.is_empty();
        self.proved(peer);
    }

    /// Forgets the messages to the peer that have not arrived.
    pub(crate) fn forget_messages(&mut self, scene: &mut Scene, peer: &Side) {
        if peer.shared {
            scene.nodes[peer.node].due -= self.sent.len();
        }
        self.sent.clear();
    }

    /// Notes a message to the peer, which may take a receive of a shared queue.
    pub(crate) fn sends(&mut self, scene: &mut Scene, peer: &Side, message: Message) {
        if peer.shared {
            scene.nodes[peer.node].due += 1;
        }
        self.sent.push_back(message);
    }

    /// Room for another request.
    pub(crate) fn has_room(&self) -> bool {
        self.requests.len() < self.depth
    }

    /// A request completed. `peer` is the other end. Returns whether it failed first of all.
    pub(crate) fn done(&mut self, scene: &mut Scene, peer: &mut Side, done: &DtoCompletion) -> Step<bool> {
        loop {
            let Some(first) = self.requests.front() else {
                hold!(false, "{}: a completion of no request: {done:?}", self.name);
                return Ok(false);
            };
            if first.cookie == done.cookie {
                break;
            }
            hold!(
                !first.signaled && !self.failed,
                "{}: request {} ({}) has not completed, but {} has: {:?}",
                self.name,
                first.cookie,
                first.kind.name(),
                done.cookie,
                done.dto_status
            );
            // It succeeded without an event.
            if let Some(request) = self.requests.pop_front() {
                self.succeeded(scene, peer, request)?;
            }
        }
        let Some(request) = self.requests.pop_front() else { return Ok(false) };
        let name = format!("{}: request {} ({})", self.name, request.cookie, request.kind.name());
        scene.story.tell(|| format!("{name} completes: {:?}", done.dto_status));
        let event = request.kind.event(self);
        hold!(done.event_number == event, "{name} completed as {:?}", done.event_number);
        let flushed = done.dto_status == DtoStatus::Flushed;
        if done.dto_status == DtoStatus::Success {
            hold!(!self.failed, "{name} succeeded after one that failed");
            hold!(request.signaled, "{name} reported a success that was not asked for");
            // Over iWARP the peer refuses it afterwards.
            let reached = matches!(request.kind, Kind::Trespass) && !self.iwarp;
            hold!(!reached, "{name} reached memory that it may not reach");
            self.succeeded(scene, peer, request)?;
            return Ok(false);
        }
        // Over iWARP the peer names the RDMA Read that it refuses; one before it may be flushed.
        let named = self.iwarp && matches!(request.kind, Kind::Read { .. });
        hold!(!self.failed || flushed || named, "{name} is the second that failed: {:?}", done.dto_status);
        if matches!(request.kind, Kind::Trespass) {
            let fits = flushed || matches!(done.dto_status, DtoStatus::RemoteAccess | DtoStatus::Transport);
            hold!(fits, "{name} failed with {:?}", done.dto_status);
        }
        let first = !std::mem::replace(&mut self.failed, true);
        scene.tally.did(if flushed { "flushed requests" } else { "failed requests" });
        self.lost(scene, peer, request)?;
        Ok(first && !flushed)
    }

    /// A request succeeded.
    fn succeeded(&mut self, scene: &mut Scene, peer: &mut Side, request: Request) -> Step {
        let name = format!("{}: request {} ({})", self.name, request.cookie, request.kind.name());
        scene.tally.did(request.kind.name());
        let slab = &scene.nodes[self.node].slab;
        if let (Some(word), Some(slot)) = (request.content, &request.slot) {
            let changed = difference(&slab.bytes(slot.at, slot.len)?, &pattern(word, slot.len));
            hold!(changed.is_none(), "{name}: its source was changed: {}", changed.unwrap_or_default());
        }
        match &request.kind {
            Kind::Send | Kind::Unlinking => self.acknowledged += 1,
            Kind::Read { expected, loose, .. } => {
                if let Some(slot) = &request.slot {
                    let mut found = slab.bytes(slot.at, slot.len)?;
                    // What may be either is taken as it is.
                    for (n, _) in loose.iter().enumerate().filter(|(_, loose)| **loose) {
                        found[n] = expected[n];
                    }
                    let wrong = difference(&found, expected);
                    hold!(wrong.is_none(), "{name} brought {}", wrong.unwrap_or_default());
                }
            }
            Kind::Atomic { original, .. } => {
                if let Some(slot) = &request.slot {
                    let found = slab.bytes(slot.at, 8)?;
                    hold!(
                        found == original.to_le_bytes(),
                        "{name} brought {found:02x?}, and the memory held {original:#x}"
                    );
                }
            }
            Kind::Link { target } => self.area.came_up(*target),
            Kind::Unlink { target } => self.area.went_down(*target),
            Kind::Trespass => hold!(self.iwarp, "{name} reached memory that it may not reach"),
            Kind::Write { .. } | Kind::Marker => {}
        }
        match &request.kind {
            Kind::Write { target } if self.iwarp => {
                self.unproved.push(*target);
                return self.give(scene, request.slot);
            }
            // An answer comes after all that was asked before.
            Kind::Read { .. } | Kind::Marker => self.proved(peer),
            _ => {}
        }
        self.release(scene, peer, request)
    }

    /// A request failed: what it would have changed is not known.
    fn lost(&mut self, scene: &mut Scene, peer: &mut Side, request: Request) -> Step {
        match &request.kind {
            Kind::Write { .. } | Kind::Atomic { .. } | Kind::Unlinking => peer.area.unsure = true,
            Kind::Link { target } | Kind::Unlink { target } => {
                if let Some(target) = self.area.targets.get_mut(*target) {
                    target.way = Way::Unknown;
                }
            }
            _ => {}
        }
        self.release(scene, peer, request)
    }

    fn release(&mut self, scene: &mut Scene, peer: &mut Side, request: Request) -> Step {
        let target = request.kind.target().and_then(|target| peer.area.targets.get_mut(target));
        if let Some(target) = target {
            target.users -= 1;
        }
        self.give(scene, request.slot)
    }

    fn give(&self, scene: &mut Scene, slot: Option<Slot>) -> Step {
        match slot {
            Some(slot) => scene.nodes[self.node].slab.give(slot),
            None => Ok(()),
        }
    }

    /// A receive completed.
    pub(crate) fn received(
        &mut self,
        scene: &mut Scene,
        peer: &mut Side,
        done: &DtoCompletion,
    ) -> Step<bool> {
        let name = format!("{}: receive {}", self.name, done.cookie);
        let slot = match self.shared {
            true => scene.nodes[self.node].shared.remove(&done.cookie),
            false => {
                let expected = self.receives.front().map(|(cookie, _)| *cookie);
                hold!(expected == Some(done.cookie), "{name} completed, but {expected:?} is the first");
                self.receives.pop_front().map(|(_, slot)| slot)
            }
        };
        scene
            .story
            .tell(|| format!("{name} completes: {:?}, {} bytes", done.dto_status, done.transferred_length));
        let Some(slot) = slot else {
            hold!(false, "{name} completed, and was not posted or had completed before");
            return Ok(false);
        };
        if done.dto_status != DtoStatus::Success {
            let first = !std::mem::replace(&mut self.receives_failed, true);
            let flushed = done.dto_status == DtoStatus::Flushed;
            scene.tally.did(if flushed { "flushed receives" } else { "failed receives" });
            // Part of a message may have arrived.
            scene.nodes[self.node].slab.give(slot)?;
            hold!(first || flushed, "{name} is the second that failed: {:?}", done.dto_status);
            return Ok(first && !flushed);
        }
        hold!(!self.receives_failed, "{name} succeeded after one that failed");
        let Some(message) = peer.sent.pop_front() else {
            hold!(false, "{name} brought a message that nobody sent, or that arrived before");
            return Ok(false);
        };
        let len = done.transferred_length as usize;
        hold!(len == message.len, "{name} brought {len} bytes, and the next message has {}", message.len);
        let slab = &scene.nodes[self.node].slab;
        let wrong = difference(&slab.bytes(slot.at, len)?, &pattern(message.word, len));
        hold!(
            wrong.is_none(),
            "{name} brought another message than the next one: {}",
            wrong.unwrap_or_default()
        );
        let unlinked = message.unlinks.map(|target| self.area.targets[target].handle());
        let told = (!done.unlinked_mr_handle.is_null()).then_some(done.unlinked_mr_handle);
        hold!(told == unlinked, "{name} says that {told:?} was unlinked, it was {unlinked:?}");
        if let Some(target) = message.unlinks {
            self.area.went_down(target);
        }
        self.arrived += 1;
        if self.shared {
            scene.nodes[self.node].due -= 1;
        }
        scene.tally.did("messages received");
        // Behind the message the memory is untouched.
        let slab = &scene.nodes[self.node].slab;
        let behind = slab.bytes(slot.at + len, slot.len - len)?;
        hold!(
            behind.iter().all(|&byte| byte == POISON),
            "{name} brought {len} bytes, but more of its memory was written"
        );
        scene.nodes[self.node].slab.give(slot)?;
        Ok(false)
    }

    /// Posts a receive, unless there are more than messages of the peer that may need one. Returns
    /// whether it did.
    pub(crate) fn post_receive(&mut self, scene: &mut Scene, peer: &Side) -> Step<bool> {
        let node = self.node;
        let (posted, wanted, most) = match self.shared {
            true => (scene.nodes[node].shared.len(), scene.nodes[node].due + 1, SHARED),
            false => (self.receives.len(), peer.sent.len() + 1, self.depth),
        };
        // Over iWARP they have to be there first.
        let wanted = if self.iwarp { most } else { wanted };
        if posted >= wanted.min(most) || self.receives_failed {
            return Ok(false);
        }
        // A message that is under way may fit exactly.
        let len = match peer.sent.get(posted).filter(|_| !self.shared) {
            Some(message) if scene.rarely(2) => message.len,
            Some(message) => (message.len + scene.length(MOST)).min(MOST),
            None => MOST,
        };
        let Some(slot) = scene.receive_slot(node, len)? else { return Ok(false) };
        let cookie = scene.cookie();
        let notify = if scene.rarely(2) { DtoFlags::NOTIFY } else { DtoFlags::empty() };
        let flags = DtoFlags::COMPLETION | notify;
        let segments = scene.nodes[node].segments(&slot, &mut scene.random, true);
        let ia = &scene.nodes[node].ia;
        let posted = match self.shared {
            true => ia.post_recv(scene.nodes[node].srq, &segments, cookie, flags),
            false => ia.post_recv(self.ep, &segments, cookie, flags),
        };
        posted.must("it_post_recv")?;
        scene.story.tell(|| format!("{}: posts receive {cookie} of {len} bytes", self.name));
        match self.shared {
            true => {
                scene.nodes[node].shared.insert(cookie, slot);
            }
            false => self.receives.push_back((cookie, slot)),
        }
        Ok(true)
    }

    /// Makes the endpoint.
    pub(crate) fn create(&mut self, scene: &mut Scene) -> Step {
        let node = &scene.nodes[self.node];
        let rc = RcAttributes {
            rdma_read_enable: true,
            rdma_write_enable: true,
            atomics_enable: !self.iwarp,
            srq: if self.shared { node.srq } else { SrqHandle::NULL },
            ..RcAttributes::default()
        };
        let attributes = EpAttributes {
            max_dto_payload_size: 1 << 16,
            max_request_dtos: self.depth,
            max_recv_dtos: self.depth,
            rc,
            priv_ops_enable: true,
            ..EpAttributes::default()
        };
        let flags = if self.shared { EpFlags::SRQ } else { EpFlags::empty() };
        self.ep = node
            .ia
            .ep_rc_create(node.pz, node.completions, node.completions, node.messages, flags, &attributes)
            .must("it_ep_rc_create")?;
        self.alive = true;
        self.renew();
        // The handle of the endpoint that was here before names nothing any more.
        if let Some(former) = self.former.replace(self.ep) {
            let refused = node.ia.ep_query(former, EpParamMask::STATE).err() == Some(Error::InvalidEp);
            hold!(refused, "{}: a handle works that was freed", self.name);
        }
        scene.story.tell(|| format!("{}: endpoint created", self.name));
        Ok(())
    }

    /// Forgets all requests of an endpoint that was freed: the device uses none of their memory.
    pub(crate) fn forget(&mut self, scene: &mut Scene, peer: &mut Side) -> Step {
        while let Some(request) = self.requests.pop_front() {
            self.lost(scene, peer, request)?;
        }
        self.give_up_proof(peer);
        while let Some((_, slot)) = self.receives.pop_front() {
            scene.nodes[self.node].slab.give(slot)?;
        }
        Ok(())
    }
}
