//! Multicast groups, and the queue pairs that have joined them (IBTA 10.5.2). A datagram to a group
//! that nobody has joined costs one look into the table.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use nic_abi::ident::{MAX_GROUP_QPS, MAX_GROUPS};

/// The groups that the queue pairs of a NIC have joined.
#[derive(Default)]
pub(crate) struct Groups(BTreeMap<[u8; 16], Vec<u32>>);

/// Why a queue pair cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotJoined {
    /// It has joined the group already.
    Already,
    /// There are too many groups, or the group has too many queue pairs.
    Full,
}

impl Groups {
    /// Adds the queue pair in a slot. Returns whether it is the group's first.
    pub fn join(&mut self, gid: [u8; 16], slot: u32) -> Result<bool, NotJoined> {
        let Some(members) = self.0.get_mut(&gid) else {
            if self.0.len() >= MAX_GROUPS as usize {
                return Err(NotJoined::Full);
            }
            self.0.insert(gid, Vec::from([slot]));
            return Ok(true);
        };
        if members.contains(&slot) {
            return Err(NotJoined::Already);
        }
        if members.len() >= MAX_GROUP_QPS as usize {
            return Err(NotJoined::Full);
        }
        members.push(slot);
        Ok(false)
    }

    /// Removes the queue pair in a slot, and returns whether it was the group's last; `None` if it
    /// has not joined.
    pub fn leave(&mut self, gid: &[u8; 16], slot: u32) -> Option<bool> {
        let members = self.0.get_mut(gid)?;
        let place = members.iter().position(|member| *member == slot)?;
        members.remove(place);
        let last = members.is_empty();
        if last {
            self.0.remove(gid);
        }
        Some(last)
    }

    /// The slot of the queue pair at a place of a group.
    pub fn member(&self, gid: &[u8; 16], place: usize) -> Option<u32> {
        self.0.get(gid)?.get(place).copied()
    }

    /// Takes a group out.
    pub fn pop(&mut self) -> Option<[u8; 16]> {
        self.0.pop_first().map(|(gid, _)| gid)
    }
}
