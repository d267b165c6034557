//! How many connections each peer has opened, at whatever listeners, that no owner has taken:
//! half-open ones, and streams that wait at a listener.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

/// The connections of each peer that has any. The map is ordered, so a peer cannot choose an
/// address that makes a search long.
#[derive(Debug)]
pub(crate) struct Untaken(BTreeMap<IpAddr, usize>);

impl Untaken {
    pub const fn new() -> Untaken {
        Untaken(BTreeMap::new())
    }

    pub fn of(&self, peer: IpAddr) -> usize {
        self.0.get(&peer).copied().unwrap_or(0)
    }

    pub fn enter(&mut self, peer: IpAddr) {
        *self.0.entry(peer).or_default() += 1;
    }

    pub fn leave(&mut self, peer: IpAddr) {
        if let Some(count) = self.0.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&peer);
            }
        }
    }
}
