//! The hosts that a target knows: their keys, and the namespaces that they see.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use nvme::auth::hosts::{self, Choice, LineError};
use nvme::auth::{Group, Hash, Secret};

use super::responder::Keys;
use crate::target::config::MOST_NAMESPACES;

/// A host that may use a subsystem.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name.
    pub nqn: String,
    /// The key by which it has to authenticate; `None` if it need not.
    pub key: Option<Secret>,
    /// The key by which a controller authenticates to hosts that ask.
    pub controller_key: Option<Secret>,
    /// The namespaces that it sees.
    pub namespaces: Visible,
    /// The hash functions that the target takes, its favourite first.
    pub hashes: Choice<Hash, 3>,
    /// The groups that the target takes, its favourite first.
    pub groups: Choice<Group, 6>,
}

impl Host {
    /// A host that need not authenticate, and sees all namespaces.
    pub fn new(nqn: impl Into<String>) -> Host {
        Host {
            nqn: nqn.into(),
            key: None,
            controller_key: None,
            namespaces: Visible::ALL,
            hashes: hosts::HASHES,
            groups: hosts::GROUPS,
        }
    }

    /// The hosts of a file, in the form that [`nvme::auth::hosts`] describes.
    pub fn parse_all(text: &str) -> Result<Vec<Host>, LineError> {
        hosts::parse(text).map(|host| host.map(|host| Host::from(&host))).collect()
    }

    /// What is needed to see whether it is this host; `None` if it need not prove that.
    pub(crate) fn keys(&self, subsystem: &str) -> Option<Keys> {
        Some(Keys {
            host: self.key.as_ref()?.key(&self.nqn),
            controller: self.controller_key.as_ref().map(|secret| secret.key(subsystem)),
            hashes: self.hashes,
            groups: self.groups,
        })
    }
}

impl From<&hosts::Host<'_>> for Host {
    fn from(host: &hosts::Host<'_>) -> Host {
        let namespaces = host.namespaces.map_or(Visible::ALL, |some| Visible::some(some.ranges()));
        Host {
            nqn: host.nqn.into(),
            key: host.key.clone(),
            controller_key: host.controller_key.clone(),
            namespaces,
            hashes: host.hashes,
            groups: host.groups,
        }
    }
}

/// The namespaces that a host sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible(Option<Arc<[(u32, u32)]>>);

impl Visible {
    /// All of them.
    pub const ALL: Visible = Visible(None);

    /// Those in some ranges: from the first identifier of each to the last.
    pub fn some(ranges: impl IntoIterator<Item = (u32, u32)>) -> Visible {
        let mut all: Vec<(u32, u32)> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        all.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in all {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Visible(Some(merged.into()))
    }

    /// Whether this namespace is among them.
    pub fn has(&self, nsid: u32) -> bool {
        let Some(ranges) = &self.0 else { return true };
        let behind = ranges.partition_point(|&(first, _)| first <= nsid);
        behind.checked_sub(1).is_some_and(|place| nsid <= ranges[place].1)
    }
}

/// The namespaces that a controller's host sees: of those that it may see, the ones that are not
/// for other hosts alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    visible: Visible,
    /// Those for other hosts alone, a bit each by place.
    of_others: u64,
}

const _: () = assert!(MOST_NAMESPACES <= u64::BITS as usize);

impl Seen {
    /// From now on the host may see these.
    pub(crate) fn may_see(&mut self, visible: Visible) {
        self.visible = visible;
    }

    /// A namespace has come to a place, which is for other hosts alone or is not.
    pub(crate) fn set(&mut self, place: usize, is_of_others: bool) {
        let bit = 1u64.checked_shl(place as u32).unwrap_or(0);
        self.of_others = if is_of_others { self.of_others | bit } else { self.of_others & !bit };
    }

    /// Whether this namespace is among them.
    pub(crate) fn has(&self, nsid: u32) -> bool {
        let bit = 1u64.checked_shl(nsid.wrapping_sub(1)).unwrap_or(0);
        self.of_others & bit == 0 && self.visible.has(nsid)
    }
}

/// All hosts, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(BTreeMap<String, Arc<Host>>);

impl Hosts {
    pub(crate) fn new(hosts: impl IntoIterator<Item = Host>) -> Hosts {
        Hosts(hosts.into_iter().map(|host| (host.nqn.clone(), Arc::new(host))).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn find(&self, nqn: &str) -> Option<&Arc<Host>> {
        self.0.get(nqn)
    }

    /// Whether one of them has to authenticate.
    pub(crate) fn has_keys(&self) -> bool {
        self.0.values().any(|host| host.key.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_sees_the_namespaces_of_its_ranges() {
        let seen = Visible::some([(7, 9), (1, 1), (3, 4), (4, 5), (6, 6), (9, 8)]);
        let all: Vec<u32> = (0..12).filter(|&nsid| seen.has(nsid)).collect();
        assert_eq!(all, [1, 3, 4, 5, 6, 7, 8, 9]);
        assert!(!Visible::some([]).has(1) && Visible::ALL.has(1) && Visible::ALL.has(u32::MAX));
        assert!(Visible::some([(5, u32::MAX), (6, 7)]).has(u32::MAX));
    }

    #[test]
    fn a_host_sees_no_namespace_that_is_for_others_alone() {
        let mut seen = Seen::default();
        seen.set(0, true);
        seen.set(63, true);
        let hidden = |seen: &Seen| (0..70).filter(|&nsid| !seen.has(nsid)).collect::<Vec<u32>>();
        assert_eq!(hidden(&seen), [1, 64]);
        seen.may_see(Visible::some([(1, 2), (60, u32::MAX)]));
        assert!(seen.has(2) && !seen.has(1) && !seen.has(3) && !seen.has(64) && seen.has(u32::MAX));
        seen.set(0, false);
        assert!(seen.has(1));
    }
}
