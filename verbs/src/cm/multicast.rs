//! Multicast groups of identifiers. There is nobody to ask on an Ethernet, so a join is over at
//! once: the queue pair is attached to the group, and the event says how to send to it.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_int, c_void};
use std::net::IpAddr;

use kernel_agent::gid_index;
use kernel_agent::wire::Qpn;

use super::abi::{CmId, JoinAttr, UDP_QKEY, event};
use super::address;
use super::channel::{self, Details};
use super::devices;
use super::identifier;
use crate::abi::{AhAttr, qpt};
use crate::errno::{Errno, minus_one};
use crate::gid::{gid_words, program_gid};
use crate::qp;

/// Bits of the mask of [`JoinAttr`].
const ADDRESS: u32 = 1;
const JOIN_FLAGS: u32 = 1 << 1;
/// Flags of [`JoinAttr`].
const FULL_MEMBER: u32 = 0;
const SENDS_ONLY: u32 = 1;

/// A group that an identifier has joined.
pub(crate) struct Joined {
    group: IpAddr,
    /// The identifier's queue pair was attached to it.
    attached: bool,
}

/// `rdma_join_multicast`: `EINVAL` for an identifier without a device, of another port space than
/// UDP, and for an address of no group. The event follows at once: `MULTICAST_ERROR` with the
/// negative number of errno if the queue pair cannot be attached.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn join_multicast(
    id: *mut CmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see the crate.
    minus_one(unsafe { join(id, addr, context, false) })
}

/// `rdma_join_multicast_ex`: one that only sends gets nothing of the group.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn join_multicast_ex(
    id: *mut CmId,
    attr: *mut JoinAttr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see the crate.
    let attr = unsafe { &*attr };
    let flags = if attr.comp_mask & JOIN_FLAGS != 0 { attr.join_flags } else { FULL_MEMBER };
    minus_one(match (attr.comp_mask, flags) {
        (mask, _) if mask & !(ADDRESS | JOIN_FLAGS) != 0 => Err(libc::ENOTSUP),
        // SAFETY: see the crate.
        (mask, FULL_MEMBER | SENDS_ONLY) if mask & ADDRESS != 0 => unsafe {
            join(id, attr.addr, context, flags == SENDS_ONLY)
        },
        _ => Err(libc::EINVAL),
    })
}

/// # Safety
///
/// See the crate.
unsafe fn join(
    id: *mut CmId,
    addr: *const libc::sockaddr,
    context: *mut c_void,
    sends_only: bool,
) -> Result<(), Errno> {
    // SAFETY: see the crate.
    let (inner, group) = unsafe { (identifier::of(id), address::read(addr)?.ip()) };
    inner.origin.check()?;
    // SAFETY: see the crate.
    let (queue_pair, qp_type, src) = unsafe { ((*id).qp, (*id).qp_type, (*id).route.src) };
    let mut state = inner.state();
    let device = state.device.clone().filter(|_| qp_type == qpt::UD && group.is_multicast());
    let (Some(device), Some(own)) = (device, address::of_storage(&src)) else { return Err(libc::EINVAL) };
    let gid = devices::gid(group);
    let attached = !queue_pair.is_null() && !sends_only;
    let status = match attached {
        // SAFETY: see the crate.
        true => -unsafe { qp::attach_mcast(queue_pair, &gid.0, 0) },
        false => 0,
    };
    if status == 0 {
        state.groups.push(Joined { group, attached });
    }
    let (agent, own) = (device.agent(), devices::gid(own.ip()));
    let to = AhAttr {
        dgid: gid_words(gid.0),
        sgid_index: program_gid(agent, gid_index(agent.identity(), own).unwrap_or(0)),
        hop_limit: 64,
        traffic_class: state.options.traffic_class,
        is_global: 1,
        port_num: 1,
        ..AhAttr::default()
    };
    let synchronous = state.synchronous;
    drop(state);
    let kind = if status == 0 { event::MULTICAST_JOIN } else { event::MULTICAST_ERROR };
    let context = context.expose_provenance();
    inner.push(kind, status, Details::Group { to, qpn: Qpn::MULTICAST.get(), qkey: UDP_QKEY, context }, &[]);
    // SAFETY: see the crate.
    unsafe { channel::complete(id, synchronous) }
}

/// `rdma_leave_multicast`: `EADDRNOTAVAIL` for a group that the identifier has not joined.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn leave_multicast(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: see the crate.
    minus_one(unsafe {
        address::read(addr).and_then(|addr| {
            let inner = identifier::of(id);
            inner.origin.check()?;
            let mut state = inner.state();
            let place = state.groups.iter().position(|joined| joined.group == addr.ip());
            let joined = state.groups.remove(place.ok_or(libc::EADDRNOTAVAIL)?);
            leave(id, &joined)
        })
    })
}

/// # Safety
///
/// See the crate.
unsafe fn leave(id: *mut CmId, joined: &Joined) -> Result<(), Errno> {
    // SAFETY: see the crate.
    let queue_pair = unsafe { (*id).qp };
    if !joined.attached || queue_pair.is_null() {
        return Ok(());
    }
    // SAFETY: see the crate.
    match unsafe { qp::detach_mcast(queue_pair, &devices::gid(joined.group).0, 0) } {
        0 => Ok(()),
        error => Err(error),
    }
}

/// Leaves all groups of an identifier that ends.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn leave_all(id: *mut CmId) {
    // SAFETY: see the crate.
    let joined = std::mem::take(&mut unsafe { identifier::of(id) }.state().groups);
    for joined in joined {
        // The queue pair may be gone.
        // SAFETY: see the crate.
        let _ = unsafe { leave(id, &joined) };
    }
}
