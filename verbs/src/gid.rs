//! The GIDs of a port, as programs see them and as C has them.

use kernel_agent::Agent;

use crate::errno::Errno;

/// The GIDs of a port as programs see them: without the link-local one, if there is another, since
/// programs take the first and some links carry only the host's own addresses.
pub fn gids(agent: &Agent) -> &[[u8; 16]] {
    let all = &agent.identity().gids;
    all.get(hidden(agent)..).unwrap_or_default()
}

fn hidden(agent: &Agent) -> usize {
    usize::from(agent.identity().gids.get(1).is_some_and(|gid| *gid != [0; 16]))
}

/// The GID of an index; zero if there is none.
pub(crate) fn gid(agent: &Agent, index: usize) -> Option<&[u8; 16]> {
    gids(agent).get(index)
}

/// The device's index of a program's index of a GID.
pub(crate) fn device_gid(agent: &Agent, index: u8) -> Result<u8, Errno> {
    match gid(agent, usize::from(index)) {
        Some(gid) if *gid != [0; 16] => Ok(index + hidden(agent) as u8),
        _ => Err(libc::EINVAL),
    }
}

/// A program's index of the device's index of a GID. The one that is hidden has the first.
pub(crate) fn program_gid(agent: &Agent, index: u8) -> u8 {
    index.saturating_sub(hidden(agent) as u8)
}

/// The service level that completions of received datagrams have. A port of RoCE has no such
/// levels, and Mellanox's devices say by them of what kind the header in front is: 1 of IPv6, 2 of
/// IPv4.
/// UCX up to 1.18 believes that of all devices, and drops what does not fit its address. So it is
/// the kind of the first address.
pub(crate) fn datagram_kind(agent: &Agent) -> u8 {
    match gid(agent, 0) {
        Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..]) => 2,
        _ => 1,
    }
}

/// A GID as C has it: a union of words and bytes.
pub(crate) fn gid_words(gid: [u8; 16]) -> [u64; 2] {
    let (first, second) = gid.split_at(8);
    [first, second].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
}

/// The bytes of a GID that C has as a union of words and bytes.
pub(crate) fn gid_bytes(words: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    bytes
}
