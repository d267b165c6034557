//! Structures and numbers of `infiniband/verbs.h`, with its layout.
//!
//! Fields that C programs do not use are reserved. Pointers are C's.
#![allow(missing_docs, reason = "the fields have the names of the header, which documents them")]

use core::ffi::{c_char, c_int, c_uint, c_void};

/// pthread_mutex_t and pthread_cond_t, as zeros: nothing here locks them.
pub type Mutex = [u64; 5];
/// See [`Mutex`].
pub type Condition = [u64; 6];

/// `struct ibv_device`.
#[repr(C)]
pub struct Device {
    pub ops: [usize; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// `struct ibv_context`. `ops` are pointers to functions, by their place in the header's structure.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: [usize; 32],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: Mutex,
    pub abi_compat: usize,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub struct Mw {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub rkey: u32,
    pub handle: u32,
    pub kind: c_int,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MwBindInfo {
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub access: c_uint,
}

/// `struct ibv_mw_bind`.
#[repr(C)]
pub struct MwBind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub info: MwBindInfo,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: Mutex,
    pub cond: Condition,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_cq_ex`. Its calls are pointers to functions.
#[repr(C)]
pub struct CqEx {
    pub base: Cq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: usize,
    pub next_poll: usize,
    pub end_poll: usize,
    pub read_opcode: usize,
    pub read_vendor_err: usize,
    pub read_byte_len: usize,
    pub read_imm_data: usize,
    pub read_qp_num: usize,
    pub read_src_qp: usize,
    pub read_wc_flags: usize,
    pub read_slid: usize,
    pub read_sl: usize,
    pub read_dlid_path_bits: usize,
    pub read_completion_ts: usize,
    pub read_cvlan: usize,
    pub read_flow_tag: usize,
    pub read_tm_info: usize,
    pub read_completion_wallclock_ns: usize,
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub struct CqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut CompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut Pd,
}

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
pub struct PollCqAttr {
    pub comp_mask: u32,
}

/// `struct ibv_values_ex`.
#[repr(C)]
pub struct ValuesEx {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

/// `struct ibv_srq`.
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: Mutex,
    pub cond: Condition,
    pub events_completed: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: Mutex,
    pub cond: Condition,
    pub events_completed: u32,
}

/// `struct ibv_qp_ex`. Its calls are pointers to functions.
#[repr(C)]
pub struct QpEx {
    pub base: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: usize,
    pub wr_atomic_fetch_add: usize,
    pub wr_bind_mw: usize,
    pub wr_local_inv: usize,
    pub wr_rdma_read: usize,
    pub wr_rdma_write: usize,
    pub wr_rdma_write_imm: usize,
    pub wr_send: usize,
    pub wr_send_imm: usize,
    pub wr_send_inv: usize,
    pub wr_send_tso: usize,
    pub wr_set_ud_addr: usize,
    pub wr_set_xrc_srqn: usize,
    pub wr_set_inline_data: usize,
    pub wr_set_inline_data_list: usize,
    pub wr_set_sge: usize,
    pub wr_set_sge_list: usize,
    pub wr_start: usize,
    pub wr_complete: usize,
    pub wr_abort: usize,
    pub wr_atomic_write: usize,
    pub wr_flush: usize,
}

/// `struct ibv_data_buf`.
#[repr(C)]
pub struct DataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// `struct ibv_ah`.
#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}

/// `struct ibv_wc`. `imm_data` is in network byte order, or a key.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// The member `wr.rdma` of [`SendWr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// The member `wr.atomic` of [`SendWr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// The member `wr.ud` of [`SendWr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrUd {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// The union `wr` of [`SendWr`].
#[repr(C)]
pub union Wr {
    pub rdma: WrRdma,
    pub atomic: WrAtomic,
    pub ud: WrUd,
}

/// The member `bind_mw` of the last union of [`SendWr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrBind {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub info: MwBindInfo,
}

/// `struct ibv_send_wr`. `imm_data` is in network byte order, or a key.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub wr: Wr,
    pub xrc_srqn: u64,
    pub bind_mw: WrBind,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_init_attr_ex`. What lies behind `pd` is there as far as `comp_mask` says.
#[repr(C)]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route` unfolded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    // A union in the header gives the GID the alignment of a word.
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
}

/// `struct ibv_port_attr`, as far as every version of the header has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ibv_device_attr`. GUIDs are in network byte order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    pub fw_ver: [u8; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_async_event`. `element` is a pointer, or the port's number.
#[repr(C)]
pub struct AsyncEvent {
    pub element: usize,
    pub event_type: c_int,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidEntry {
    pub gid: [u64; 2],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Device>() == 664 && offset_of!(Device, ibdev_path) == 408);
    assert!(size_of::<Context>() == 328 && offset_of!(Context, cmd_fd) == 264);
    assert!(offset_of!(Context, mutex) == 280 && offset_of!(Context, abi_compat) == 320);
    assert!(size_of::<Mr>() == 48 && offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<Mw>() == 32 && offset_of!(Mw, kind) == 24);
    assert!(size_of::<Pd>() == 16 && size_of::<Ah>() == 24 && size_of::<CompChannel>() == 16);
    assert!(size_of::<Cq>() == 128 && offset_of!(Cq, comp_events_completed) == 120);
    assert!(size_of::<Srq>() == 128 && offset_of!(Srq, events_completed) == 120);
    assert!(
        size_of::<Qp>() == 160 && offset_of!(Qp, qp_num) == 52 && offset_of!(Qp, events_completed) == 152
    );
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, wc_flags) == 36 && offset_of!(Wc, sl) == 44);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, wr) == 40 && offset_of!(SendWr, bind_mw) == 80);
    assert!(offset_of!(WrAtomic, rkey) == 24 && offset_of!(WrBind, info) == 16);
    assert!(size_of::<RecvWr>() == 32 && size_of::<Sge>() == 16 && size_of::<QpInitAttr>() == 64);
    assert!(size_of::<CqEx>() == 288 && offset_of!(CqEx, comp_mask) == 128 && offset_of!(CqEx, wr_id) == 136);
    assert!(offset_of!(CqEx, start_poll) == 144 && offset_of!(CqEx, read_completion_wallclock_ns) == 280);
    assert!(size_of::<CqInitAttrEx>() == 56 && offset_of!(CqInitAttrEx, wc_flags) == 32);
    assert!(size_of::<ValuesEx>() == 24);
    assert!(
        size_of::<QpEx>() == 360 && offset_of!(QpEx, comp_mask) == 160 && offset_of!(QpEx, wr_flags) == 176
    );
    assert!(offset_of!(QpEx, wr_atomic_cmp_swp) == 184 && offset_of!(QpEx, wr_flush) == 352);
    assert!(size_of::<QpInitAttrEx>() == 136 && offset_of!(QpInitAttrEx, comp_mask) == 60);
    assert!(offset_of!(QpInitAttrEx, create_flags) == 80 && offset_of!(QpInitAttrEx, send_ops_flags) == 128);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, is_global) == 29);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, rnr_retry) == 132);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<DeviceAttr>() == 232 && size_of::<AsyncEvent>() == 16 && size_of::<GidEntry>() == 32);
    assert!(size_of::<SrqInitAttr>() == 24 && size_of::<MwBind>() == 48);
};

/// Queue pair types.
pub mod qpt {
    use super::c_int;
    pub const RC: c_int = 2;
    pub const UC: c_int = 3;
    pub const UD: c_int = 4;
}

/// Queue pair states.
pub mod qps {
    use super::c_int;
    pub const RESET: c_int = 0;
    pub const INIT: c_int = 1;
    pub const RTR: c_int = 2;
    pub const RTS: c_int = 3;
    pub const SQD: c_int = 4;
    pub const SQE: c_int = 5;
    pub const ERR: c_int = 6;
}

/// Bits of the mask of `ibv_modify_qp`.
pub mod attr_mask {
    use super::c_int;
    pub const STATE: c_int = 1;
    pub const CUR_STATE: c_int = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: c_int = 1 << 2;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const QKEY: c_int = 1 << 6;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_CNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const ALT_PATH: c_int = 1 << 14;
    pub const MIN_RNR_TIMER: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const PATH_MIG_STATE: c_int = 1 << 18;
    pub const CAP: c_int = 1 << 19;
    pub const DEST_QPN: c_int = 1 << 20;
    pub const RATE_LIMIT: c_int = 1 << 25;
}

/// Bits of [`QpInitAttrEx::comp_mask`].
pub mod init_attr {
    pub const PD: u32 = 1;
    pub const CREATE_FLAGS: u32 = 1 << 2;
    pub const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// Bits of [`QpInitAttrEx::send_ops_flags`]: that of an opcode is its number's.
pub mod send_ops {
    pub const RDMA_WRITE: u64 = 1;
    pub const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub const SEND: u64 = 1 << 2;
    pub const SEND_WITH_IMM: u64 = 1 << 3;
    pub const RDMA_READ: u64 = 1 << 4;
    pub const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub const LOCAL_INV: u64 = 1 << 7;
    pub const BIND_MW: u64 = 1 << 8;
    pub const SEND_WITH_INV: u64 = 1 << 9;
}

/// Bits of [`CqInitAttrEx::wc_flags`].
pub mod wc_ex {
    /// All that a completion of [`Wc`](super::Wc) has.
    pub const STANDARD: u64 = 0x7f;
    pub const COMPLETION_TIMESTAMP: u64 = 1 << 7;
    pub const COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
}

/// Access flags.
pub mod access {
    use super::c_uint;
    pub const LOCAL_WRITE: c_uint = 1;
    pub const REMOTE_WRITE: c_uint = 1 << 1;
    pub const REMOTE_READ: c_uint = 1 << 2;
    pub const REMOTE_ATOMIC: c_uint = 1 << 3;
    pub const MW_BIND: c_uint = 1 << 4;
    pub const ZERO_BASED: c_uint = 1 << 5;
    pub const ON_DEMAND: c_uint = 1 << 6;
    pub const HUGETLB: c_uint = 1 << 7;
    /// Flags that a provider may ignore.
    pub const OPTIONAL: c_uint = 0x3ff << 20;
}

/// Opcodes of send requests.
pub mod wr {
    use super::c_int;
    pub const RDMA_WRITE: c_int = 0;
    pub const RDMA_WRITE_WITH_IMM: c_int = 1;
    pub const SEND: c_int = 2;
    pub const SEND_WITH_IMM: c_int = 3;
    pub const RDMA_READ: c_int = 4;
    pub const ATOMIC_CMP_AND_SWP: c_int = 5;
    pub const ATOMIC_FETCH_AND_ADD: c_int = 6;
    pub const LOCAL_INV: c_int = 7;
    pub const BIND_MW: c_int = 8;
    pub const SEND_WITH_INV: c_int = 9;
}

/// Flags of send requests.
pub mod send_flags {
    use super::c_uint;
    pub const FENCE: c_uint = 1;
    pub const SIGNALED: c_uint = 1 << 1;
    pub const SOLICITED: c_uint = 1 << 2;
    pub const INLINE: c_uint = 1 << 3;
}

/// Opcodes of completions.
pub mod wc_opcode {
    use super::c_int;
    pub const SEND: c_int = 0;
    pub const RDMA_WRITE: c_int = 1;
    pub const RDMA_READ: c_int = 2;
    pub const COMP_SWAP: c_int = 3;
    pub const FETCH_ADD: c_int = 4;
    pub const BIND_MW: c_int = 5;
    pub const LOCAL_INV: c_int = 6;
    pub const RECV: c_int = 1 << 7;
    pub const RECV_RDMA_WITH_IMM: c_int = RECV + 1;
}

/// Flags of completions.
pub mod wc_flags {
    use super::c_uint;
    pub const GRH: c_uint = 1;
    pub const WITH_IMM: c_uint = 1 << 1;
    pub const WITH_INV: c_uint = 1 << 3;
}

/// Types of asynchronous events.
pub mod event {
    use super::c_int;
    pub const CQ_ERR: c_int = 0;
    pub const QP_FATAL: c_int = 1;
    pub const QP_REQ_ERR: c_int = 2;
    pub const QP_ACCESS_ERR: c_int = 3;
    pub const COMM_EST: c_int = 4;
    pub const SQ_DRAINED: c_int = 5;
    pub const DEVICE_FATAL: c_int = 8;
    pub const PORT_ACTIVE: c_int = 9;
    pub const PORT_ERR: c_int = 10;
    pub const SRQ_ERR: c_int = 14;
    pub const SRQ_LIMIT_REACHED: c_int = 15;
    pub const QP_LAST_WQE_REACHED: c_int = 16;
}

/// Capabilities of devices.
pub mod device_cap {
    use super::c_uint;
    pub const BAD_PKEY_CNTR: c_uint = 1 << 1;
    pub const PORT_ACTIVE_EVENT: c_uint = 1 << 10;
    pub const SYS_IMAGE_GUID: c_uint = 1 << 11;
    pub const RC_RNR_NAK_GEN: c_uint = 1 << 12;
    pub const SRQ_RESIZE: c_uint = 1 << 13;
    pub const MEM_WINDOW: c_uint = 1 << 17;
    pub const MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;
}
