//! Datagrams between two endpoints: each arrives intact, or is lost as a whole.

use std::collections::{BTreeMap, VecDeque};

use privileged_api::*;

use super::node::{Node, Scene};
use super::stream::Next;
use crate::harness::memory::{Slot, difference, pattern};
use crate::harness::wrong::{Must, Step, Wrong, hold};

/// Bytes of a header in front of each datagram.
const HEADER: usize = 40;
/// Bytes of a datagram at most.
const MOST: usize = 240;
/// Requests, and receives, of an endpoint.
const DEPTH: usize = 8;

struct End {
    node: usize,
    ep: EpHandle,
    peer: Option<DgRemoteEpAddr>,
    addr: Option<AddrHandle>,
    requests: VecDeque<(u64, bool, Slot)>,
    receives: VecDeque<(u64, Slot)>,
    /// Datagrams to the peer that did not arrive, by the number that they begin with.
    sent: BTreeMap<u64, usize>,
    /// Those that arrived: the network may carry them once more.
    arrived: BTreeMap<u64, usize>,
}

/// Two datagram endpoints.
pub(crate) struct Datagrams {
    ends: [End; 2],
    posts: u32,
    number: u64,
}

impl Datagrams {
    pub(crate) fn new(scene: &mut Scene) -> Step<Datagrams> {
        let nodes = [scene.random.below(2) as usize, scene.random.below(2) as usize];
        let attributes = EpAttributes {
            max_dto_payload_size: MOST,
            max_request_dtos: DEPTH,
            max_recv_dtos: DEPTH,
            ud: UdAttributes { ep_info: RemoteEpInfo { ud_ep_id: 0, ud_ep_key: 0x1234 } },
            priv_ops_enable: true,
            ..EpAttributes::default()
        };
        let end = |node: usize| -> Step<End> {
            let Node { ia, pz, completions, spigot, .. } = &scene.nodes[node];
            let ep = ia.ep_ud_create(*pz, *completions, *completions, &attributes, *spigot);
            let ep = ep.must("it_ep_ud_create")?;
            Ok(End {
                node,
                ep,
                peer: None,
                addr: None,
                requests: VecDeque::new(),
                receives: VecDeque::new(),
                sent: BTreeMap::new(),
                arrived: BTreeMap::new(),
            })
        };
        let mut ends = [end(nodes[0])?, end(nodes[1])?];
        for side in [0, 1] {
            let path = scene.path(nodes[side], nodes[1 - side])?;
            let (here, there) = (&scene.nodes[nodes[side]], &scene.nodes[nodes[1 - side]]);
            let addr = here.ia.address_handle_create(here.pz, &path, AhFlags::PATH_COMPLETE);
            let addr = addr.must("it_address_handle_create")?;
            let ep_info =
                there.ia.ep_query(ends[1 - side].ep, EpParamMask::ALL).must("it_ep_query")?.attr.ud.ep_info;
            ends[side].peer = Some(DgRemoteEpAddr::IbUd { addr, ep_info });
            ends[side].addr = Some(addr);
        }
        let posts = 4 + scene.random.small(20);
        Ok(Datagrams { ends, posts, number: 0 })
    }

    pub(crate) fn is_mine(&self, node: usize, ep: EpHandle) -> bool {
        self.ends.iter().any(|end| (end.node, end.ep) == (node, ep))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.posts == 0 && self.ends.iter().all(|end| end.requests.is_empty())
    }

    pub(crate) fn act(&mut self, scene: &mut Scene) -> Step<Next> {
        if self.posts == 0 {
            let busy = self.ends.iter().find(|end| !end.requests.is_empty());
            return Ok(busy.map_or(Next::Nothing, |end| Next::Await(end.node)));
        }
        let end = &mut self.ends[scene.random.below(2) as usize];
        let node = end.node;
        if scene.rarely(2) {
            if end.receives.len() == DEPTH {
                return Ok(Next::Nothing);
            }
            let Some(slot) = scene.receive_slot(node, HEADER + MOST)? else { return Ok(Next::Nothing) };
            let segments = scene.nodes[node].segments(&slot, &mut scene.random, true);
            let cookie = scene.cookie();
            let ia = &scene.nodes[node].ia;
            ia.post_recvfrom(end.ep, &segments, cookie, DtoFlags::COMPLETION).must("it_post_recvfrom")?;
            end.receives.push_back((cookie, slot));
            return Ok(Next::Did);
        }
        if end.requests.len() == DEPTH {
            return Ok(Next::Nothing);
        }
        self.posts -= 1;
        self.number += 1;
        let len = 8 + scene.length(MOST - 8);
        let Some(slot) = scene.slot(node, len)? else { return Ok(Next::Nothing) };
        let bytes = content(self.number, len);
        scene.nodes[node].slab.write(slot.at, &bytes)?;
        let signaled = self.posts == 0 || end.requests.len() + 1 == DEPTH || !scene.rarely(4);
        let flags = if signaled { DtoFlags::COMPLETION } else { DtoFlags::empty() };
        let segments = scene.nodes[node].segments(&slot, &mut scene.random, true);
        let cookie = scene.cookie();
        let Some(peer) = &end.peer else { return Ok(Next::Nothing) };
        scene.nodes[node].ia.post_sendto(end.ep, &segments, cookie, flags, peer).must("it_post_sendto")?;
        scene.story.tell(|| format!("datagram {} of {len} bytes is posted, request {cookie}", self.number));
        end.sent.insert(self.number, len);
        end.requests.push_back((cookie, signaled, slot));
        if self.posts == 0 {
            // What is silent at the end is reported with a last one.
            for end in &mut self.ends {
                if end.requests.back().is_some_and(|(_, signaled, _)| !signaled) {
                    self.posts = 1;
                }
            }
        }
        Ok(Next::Did)
    }

    pub(crate) fn completed(&mut self, scene: &mut Scene, done: &DtoCompletion) -> Step {
        let [a, b] = &mut self.ends;
        let (end, peer) = if a.ep == done.ep { (a, b) } else { (b, a) };
        hold!(done.dto_status == DtoStatus::Success, "a datagram's request failed: {done:?}");
        if done.event_number != EventType::DTO_UD_RECV_CMPL {
            loop {
                let Some((cookie, signaled, slot)) = end.requests.pop_front() else {
                    return Err(Wrong(format!("a completion of no datagram: {done:?}")));
                };
                scene.tally.did("datagrams sent");
                scene.nodes[end.node].slab.give(slot)?;
                if cookie == done.cookie {
                    hold!(signaled, "a silent datagram was reported");
                    return Ok(());
                }
                hold!(!signaled, "datagram request {cookie} did not complete, but {} did", done.cookie);
            }
        }
        let Some((cookie, slot)) = end.receives.pop_front() else {
            return Err(Wrong(format!("a completion of no receive: {done:?}")));
        };
        hold!(cookie == done.cookie, "receive {} completed before {cookie}", done.cookie);
        let slab = &mut scene.nodes[end.node].slab;
        let len = (done.transferred_length as usize).saturating_sub(HEADER);
        let bytes = slab.bytes(slot.at + HEADER, len)?;
        let number = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        let again = || peer.arrived.get(&number).copied().filter(|_| scene.faulty);
        let Some(expected) = peer.sent.remove(&number).or_else(again) else {
            return Err(Wrong(format!("datagram {number} arrived twice, or nobody sent it")));
        };
        let wrong = difference(&bytes, &content(number, expected));
        hold!(wrong.is_none(), "datagram {number} arrived with {}", wrong.unwrap_or_default());
        peer.arrived.insert(number, expected);
        slab.give(slot)?;
        scene.tally.did("datagrams received");
        Ok(())
    }

    /// Frees the endpoints. The device then touches none of their receives.
    pub(crate) fn free(self, nodes: &[Node; 2]) -> Step {
        for end in self.ends {
            let ia = &nodes[end.node].ia;
            ia.ep_free(end.ep).must("it_ep_free")?;
            if let Some(addr) = end.addr {
                ia.address_handle_free(addr).must("it_address_handle_free")?;
            }
        }
        Ok(())
    }
}

/// A datagram: its number and a pattern.
fn content(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(number, len - 8));
    bytes
}
