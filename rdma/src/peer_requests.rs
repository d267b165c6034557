//! Peers' requests for a datagram service that wait for the consumer's reply.
//!
//! Their number is bounded: a request beyond the bound replaces the oldest one of the peer that has
//! the most, which counts as a lost datagram.

use alloc::collections::VecDeque;

use kernel_agent::ResolutionRequestId;

/// The most peers' requests that wait for a reply.
pub const MAX_WAITING: usize = 64;

/// A peer's request that waits for a reply.
struct Waiting {
    /// The consumer's identifier. It is made of the id that the peer gave the request, so all
    /// repetitions of the request have one identifier.
    id: u64,
    from: [u8; 16],
    request: ResolutionRequestId,
}

/// The peers' requests that wait for a reply, oldest first.
#[derive(Default)]
pub struct PeerRequests(VecDeque<Waiting>);

impl PeerRequests {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a request. Returns the consumer's identifier for it, and a request that was dropped to
    /// make room; `None` if there is no memory.
    ///
    /// Two peers may give their requests the same id. The reply names only the identifier, so the
    /// second peer's request gets another identifier.
    pub fn add(
        &mut self,
        name: u32,
        from: [u8; 16],
        request: ResolutionRequestId,
    ) -> Option<(u64, Option<ResolutionRequestId>)> {
        self.0.try_reserve(1).ok()?;
        let taken = |id: u64| self.0.iter().any(|waiting| waiting.id == id && waiting.from != from);
        let mut id = u64::from(name);
        // There are fewer requests than identifiers to try.
        while taken(id) {
            id += 1 << 32;
        }
        let full = self.0.len() >= MAX_WAITING;
        let dropped = if full { self.oldest_of_the_most() } else { None };
        let dropped = dropped.and_then(|place| self.0.remove(place));
        self.0.push_back(Waiting { id, from, request });
        Some((id, dropped.map(|waiting| waiting.request)))
    }

    /// The place of the oldest request of the peer that has the most.
    fn oldest_of_the_most(&self) -> Option<usize> {
        let of = |peer: [u8; 16]| self.0.iter().filter(move |waiting| waiting.from == peer).count();
        let most = self.0.iter().map(|waiting| of(waiting.from)).max()?;
        self.0.iter().position(|waiting| of(waiting.from) == most)
    }

    /// Takes the oldest request with this identifier.
    pub fn take(&mut self, id: u64) -> Option<ResolutionRequestId> {
        let place = self.place(id)?;
        self.0.remove(place).map(|waiting| waiting.request)
    }

    /// The oldest request with this identifier.
    pub fn oldest(&self, id: u64) -> Option<ResolutionRequestId> {
        let oldest = self.0.iter().find(|waiting| waiting.id == id);
        oldest.map(|waiting| waiting.request)
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.0.iter().position(|waiting| waiting.id == id)
    }

    /// Forgets a request.
    pub fn forget(&mut self, request: ResolutionRequestId) {
        self.0.retain(|waiting| waiting.request != request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_made_of_the_peers_and_unique() {
        let mut requests = PeerRequests::default();
        let id = ResolutionRequestId;
        assert_eq!(requests.add(7, [1; 16], id(1)), Some((7, None)));
        assert_eq!(requests.add(7, [1; 16], id(2)), Some((7, None)), "asked again");
        assert_eq!(requests.add(7, [2; 16], id(3)), Some((7 | 1 << 32, None)), "another peer");
        assert_eq!(requests.add(7, [3; 16], id(4)), Some((7 | 2 << 32, None)), "a third one");
        assert_eq!(requests.take(7), Some(id(1)));
        assert_eq!(requests.take(7), Some(id(2)));
        assert_eq!(requests.take(7), None);
        requests.forget(id(3));
        assert_eq!(requests.oldest(7 | 1 << 32), None);
        assert_eq!(requests.len(), 1);
    }

    #[test]
    fn of_too_many_requests_the_oldest_is_dropped() {
        let mut requests = PeerRequests::default();
        let most = MAX_WAITING as u32;
        for n in 0..most {
            assert_eq!(requests.add(n, [1; 16], ResolutionRequestId(n.into())).unwrap().1, None);
        }
        let dropped = requests.add(most, [1; 16], ResolutionRequestId(most.into())).unwrap().1;
        assert_eq!((dropped, requests.len()), (Some(ResolutionRequestId(0)), MAX_WAITING));
        assert_eq!(requests.take(0), None);
        // Another peer's requests replace those of the peer that has the most, and not each other.
        let request = |n: u32| ResolutionRequestId(u64::from(most + n));
        for n in 1..=most / 2 {
            assert_eq!(
                requests.add(1000 + n, [2; 16], request(n)).unwrap().1,
                Some(ResolutionRequestId(n.into()))
            );
        }
        assert_eq!(
            requests.add(2000, [1; 16], request(most)).unwrap().1,
            Some(ResolutionRequestId(u64::from(most / 2 + 1)))
        );
        assert_eq!(requests.take(1001), Some(request(1)));
    }

    #[test]
    fn an_older_request_of_a_peer_with_fewer_is_not_dropped() {
        let mut requests = PeerRequests::default();
        assert_eq!(requests.oldest_of_the_most(), None);
        for n in 0..MAX_WAITING as u32 {
            let peer = if n == 0 { [2; 16] } else { [1; 16] };
            assert_eq!(requests.add(n, peer, ResolutionRequestId(n.into())).unwrap().1, None);
        }
        assert_eq!(requests.oldest_of_the_most(), Some(1));
        let dropped = requests.add(9999, [3; 16], ResolutionRequestId(9999)).unwrap().1;
        assert_eq!(dropped, Some(ResolutionRequestId(1)));
        assert_eq!(requests.take(0), Some(ResolutionRequestId(0)));
    }
}
