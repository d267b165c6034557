//! Structures and numbers of `rdma/rdma_cma.h`, with its layout.
#![allow(missing_docs, reason = "the fields have the names of the header, which documents them")]

use core::ffi::{c_char, c_int, c_void};

use crate::abi::{AhAttr, CompChannel, Context, Cq, Pd, Qp, Srq};

/// `struct sockaddr_storage`.
pub type Storage = [u64; 16];

/// `struct rdma_event_channel`.
#[repr(C)]
pub struct EventChannel {
    pub fd: c_int,
}

/// `struct rdma_route`, with its `struct rdma_addr` unfolded.
#[repr(C)]
pub struct Route {
    pub src: Storage,
    pub dst: Storage,
    pub ib: IbAddr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

/// `struct rdma_ib_addr`.
#[repr(C)]
pub struct IbAddr {
    pub sgid: [u64; 2],
    pub dgid: [u64; 2],
    pub pkey: u16,
}

/// `struct rdma_cm_id`.
#[repr(C)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: Route,
    pub ps: c_int,
    pub port_num: u8,
    pub event: *mut CmEvent,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut Cq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub pd: *mut Pd,
    pub qp_type: c_int,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `struct rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// `struct rdma_cm_join_mc_attr_ex`.
#[repr(C)]
pub struct JoinAttr {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}

/// The union `param` of [`CmEvent`].
#[repr(C)]
pub union Param {
    pub conn: ConnParam,
    pub ud: UdParam,
}

/// `struct rdma_cm_event`.
#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: c_int,
    pub status: c_int,
    pub param: Param,
}

/// `struct rdma_addrinfo`.
#[repr(C)]
pub struct AddrInfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: u32,
    pub ai_dst_len: u32,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut AddrInfo,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<CmId>() == 416 && offset_of!(CmId, route) == 32 && offset_of!(CmId, ps) == 344);
    assert!(offset_of!(CmId, port_num) == 348 && offset_of!(CmId, event) == 352);
    assert!(offset_of!(CmId, pd) == 400 && offset_of!(CmId, qp_type) == 408);
    assert!(offset_of!(Route, ib) == 256 && offset_of!(Route, path_rec) == 296);
    assert!(offset_of!(IbAddr, pkey) == 32 && offset_of!(Route, num_paths) == 304);
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, qp_num) == 16);
    assert!(size_of::<UdParam>() == 56 && offset_of!(UdParam, qkey) == 52);
    assert!(size_of::<CmEvent>() == 80 && offset_of!(CmEvent, param) == 24);
    assert!(size_of::<AddrInfo>() == 96 && offset_of!(AddrInfo, ai_route_len) == 56);
};

/// Port spaces.
pub mod ps {
    use super::c_int;
    pub const TCP: c_int = 0x0106;
    pub const UDP: c_int = 0x0111;
}

/// Types of events.
pub mod event {
    use super::c_int;
    pub const ADDR_RESOLVED: c_int = 0;
    pub const ADDR_ERROR: c_int = 1;
    pub const ROUTE_RESOLVED: c_int = 2;
    pub const ROUTE_ERROR: c_int = 3;
    pub const CONNECT_REQUEST: c_int = 4;
    pub const CONNECT_RESPONSE: c_int = 5;
    pub const CONNECT_ERROR: c_int = 6;
    pub const UNREACHABLE: c_int = 7;
    pub const REJECTED: c_int = 8;
    pub const ESTABLISHED: c_int = 9;
    pub const DISCONNECTED: c_int = 10;
    pub const DEVICE_REMOVAL: c_int = 11;
    pub const MULTICAST_JOIN: c_int = 12;
    pub const MULTICAST_ERROR: c_int = 13;
    pub const ADDR_CHANGE: c_int = 14;
    pub const TIMEWAIT_EXIT: c_int = 15;
}

/// Flags of [`AddrInfo`].
pub mod rai {
    use super::c_int;
    pub const PASSIVE: c_int = 1;
    pub const NUMERICHOST: c_int = 2;
    pub const NOROUTE: c_int = 4;
    pub const FAMILY: c_int = 8;
}

/// As many RDMA Reads as the device can have, in [`ConnParam`].
pub const MAX_DEPTH: u8 = 0xff;
/// The queue key of datagrams.
pub const UDP_QKEY: u32 = 0x0123_4567;
