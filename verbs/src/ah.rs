//! Address handles.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::c_int;

use kernel_agent::DatagramAddress;
use kernel_agent::wire::Gid;

use crate::abi::{self, AhAttr, Wc, wc_flags};
use crate::errno::{Errno, pointer};
use crate::gid::{device_gid, gid_bytes, gid_words, program_gid};
use crate::opening::Context;

/// The bytes in front of a datagram: a GRH, or an IPv4 header in its last 20.
const GRH: usize = 40;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    abi: abi::Ah,
    /// Without queue pair and queue key.
    pub(crate) to: DatagramAddress,
}

/// The address handle of a pointer.
///
/// # Safety
///
/// The pointer is one that [`create_ah`] returned.
pub(crate) unsafe fn of<'a>(ah: *mut abi::Ah) -> &'a Ah {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &*ah.cast::<Ah>() }
}

/// `ibv_create_ah`. The port is an Ethernet's, so the address has a global route.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_ah(pd: *mut abi::Pd, attr: *mut AhAttr) -> *mut abi::Ah {
    // SAFETY: see the crate.
    let (context, attr) = unsafe { ((*pd).context, &*attr) };
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    let to = |attr: &AhAttr| -> Result<DatagramAddress, Errno> {
        if attr.is_global == 0 || attr.port_num != 1 {
            return Err(libc::EINVAL);
        }
        Ok(DatagramAddress {
            gid: gid_bytes(attr.dgid),
            flow_label: attr.flow_label & 0xf_ffff,
            hop_limit: attr.hop_limit,
            traffic_class: attr.traffic_class,
            service_level: attr.sl,
            source_gid: device_gid(opening.agent(), attr.sgid_index)?,
            qpn: 0,
            qkey: 0,
        })
    };
    pointer(to(attr).map(|to| {
        // The device holds few datagrams for an address that it has to find first.
        if let Some(device) = &opening.stepped
            && let Some(from) = opening.agent().identity().gids.get(usize::from(to.source_gid))
            && opening.origin.check().is_ok()
            && !Gid(to.gid).to_ip().is_multicast()
        {
            device.meet(*from, to.gid);
        }
        let abi = abi::Ah { context, pd, handle: 0 };
        Box::into_raw(Box::new(Ah { abi, to })).cast()
    }))
}

/// `ibv_destroy_ah`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_ah(this: *mut abi::Ah) -> c_int {
    // SAFETY: it came from `create_ah`.
    drop(unsafe { Box::from_raw(this.cast::<Ah>()) });
    0
}

/// `ibv_init_ah_from_wc`: the way back to the sender of a datagram.
///
/// # Safety
///
/// See the crate. `grh` is the beginning of the datagram's receive.
pub unsafe extern "C" fn init_ah_from_wc(
    context: *mut abi::Context,
    port_num: u8,
    wc: *mut Wc,
    grh: *mut [u8; GRH],
    attr: *mut AhAttr,
) -> c_int {
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    // SAFETY: see the crate.
    let (wc, grh) = unsafe { (&*wc, &*grh) };
    if wc.wc_flags & wc_flags::GRH == 0 {
        return libc::EINVAL;
    }
    let (source, own, hop_limit, traffic_class) = sides(grh);
    let gids = &opening.agent().identity().gids;
    let Some(own) = gids.iter().position(|gid| *gid == own) else { return libc::EINVAL };
    let made = AhAttr {
        dgid: gid_words(source),
        sgid_index: program_gid(opening.agent(), own as u8),
        hop_limit,
        traffic_class,
        // That of the completion says something else ([`crate::gid`]).
        sl: 0,
        is_global: 1,
        port_num,
        ..AhAttr::default()
    };
    // SAFETY: see the crate.
    unsafe { *attr = made };
    0
}

/// The source and the destination of a datagram, its hop limit and traffic class.
fn sides(grh: &[u8; GRH]) -> ([u8; 16], [u8; 16], u8, u8) {
    let bytes = |at: usize| -> [u8; 16] { grh[at..at + 16].try_into().unwrap_or_default() };
    let mapped = |at: usize| {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&grh[at..at + 4]);
        gid
    };
    // The last 20 bytes are an IPv4 header if they begin as one, and the first 20 as no IPv6
    // header.
    if grh[0] >> 4 == 6 {
        (bytes(8), bytes(24), grh[7], grh[0] << 4 | grh[1] >> 4)
    } else {
        (mapped(32), mapped(36), grh[28], grh[21])
    }
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
///
/// As [`init_ah_from_wc`].
pub unsafe extern "C" fn create_ah_from_wc(
    pd: *mut abi::Pd,
    wc: *mut Wc,
    grh: *mut [u8; GRH],
    port_num: u8,
) -> *mut abi::Ah {
    let mut attr = AhAttr::default();
    // SAFETY: the caller's.
    match unsafe { init_ah_from_wc((*pd).context, port_num, wc, grh, &mut attr) } {
        // SAFETY: the caller's.
        0 => unsafe { create_ah(pd, &mut attr) },
        errno => pointer(Err(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_found_in_both_headers() {
        let mut grh = [0; GRH];
        grh[20] = 0x45;
        grh[21] = 7;
        grh[28] = 63;
        grh[32..36].copy_from_slice(&[10, 0, 0, 1]);
        grh[36..40].copy_from_slice(&[10, 0, 0, 2]);
        let gid = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
        assert_eq!(sides(&grh), (gid(1), gid(2), 63, 7));
        let mut grh = [0; GRH];
        grh[..2].copy_from_slice(&[0x6a, 0xb0]);
        grh[7] = 62;
        grh[8..24].fill(3);
        grh[24..].fill(4);
        assert_eq!(sides(&grh), ([3; 16], [4; 16], 62, 0xab));
    }
}
