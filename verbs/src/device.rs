//! Devices: their list, opening and closing them, what they and their port can do.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kernel_agent::{Agent, Features};

use crate::abi::{self, DeviceAttr, GidEntry, PortAttr, device_cap};
use crate::errno::{self, Errno, minus_one, pointer, status};
use crate::gid::{gid, gid_words, gids};
use crate::gone;
use crate::opening::{Context, Opening, SLOTS};
use crate::origin::Origin;
use crate::stepped::Stepped;
use crate::{cq, cq_ex, memory, missing, post, qp_ex};

/// Says to programs that a context has what lies in front of it.
const EXTENDED: usize = usize::MAX;
/// `IBV_NODE_CA`, `IBV_TRANSPORT_IB`.
const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;
/// `IBV_GID_TYPE_SYSFS_ROCE_V2` of `ibv_query_gid_type`, and `IBV_GID_TYPE_ROCE_V2` of entries.
const SYSFS_ROCE_V2: c_int = 1;
const ROCE_V2: u32 = 2;
/// The only partition key.
const PKEY: u16 = 0xffff;
const INVALID_GID_INDEX: Errno = libc::ENODATA;

/// A NIC for the programs of this process.
pub struct Nic {
    /// The name of the device.
    pub name: String,
    /// The agent that owns the NIC.
    pub agent: Arc<Agent>,
    /// The device, if polls that find nothing may do its work.
    pub stepped: Option<Arc<dyn Stepped>>,
    /// The index of the network interface of each GID of [`gids`]; 0, which is none, of the others.
    pub interfaces: Vec<u32>,
}

/// A device of the list.
#[repr(C)]
struct Listed {
    abi: abi::Device,
    agent: Arc<Agent>,
    stepped: Option<Arc<dyn Stepped>>,
    interfaces: Vec<u32>,
    origin: Origin,
}

/// The devices of the process, which live as long as it does.
struct Devices(Vec<*mut Listed>);

// SAFETY: they are never changed.
unsafe impl Send for Devices {}

type Open = fn() -> Result<Vec<Nic>, Errno>;

static OPEN: OnceLock<Open> = OnceLock::new();
static DEVICES: Mutex<Option<Devices>> = Mutex::new(None);

/// Says how the NICs of this process are opened, when a program first asks for the list of devices.
/// `open` prints why it fails. The first call counts.
pub fn provide(open: Open) {
    let _ = OPEN.set(open);
}

/// Forgets the devices: the process is a child of the one that opened them, and has no threads of
/// theirs. The next list is of new ones.
///
/// If another thread of the parent was asking for the list at the time of the fork, its lock is
/// held for ever in the child: then the child keeps the parent's devices, and a call for the list
/// does not return there. A program that forks while it opens devices has to exec.
pub fn forget() {
    if let Ok(mut devices) = DEVICES.try_lock() {
        *devices = None;
    }
}

fn text<const N: usize>(from: &str) -> [c_char; N] {
    let mut to = [0; N];
    // The last byte stays 0.
    for (to, from) in to.iter_mut().take(N - 1).zip(from.bytes()) {
        *to = from as c_char;
    }
    to
}

pub(crate) fn devices() -> Result<Vec<*mut abi::Device>, Errno> {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if devices.is_none() {
        let open = OPEN.get().ok_or(libc::ENOSYS)?;
        let listed = open()?.into_iter().enumerate().map(|(index, nic)| {
            let Nic { name, agent, stepped, interfaces } = nic;
            let device = abi::Device {
                ops: [0; 2],
                node_type: NODE_CA,
                transport_type: TRANSPORT_IB,
                name: text(&name),
                dev_name: text(&format!("uverbs{index}")),
                dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{index}")),
                ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
            };
            Box::into_raw(Box::new(Listed {
                abi: device,
                agent,
                stepped,
                interfaces,
                origin: Origin::here(),
            }))
        });
        *devices = Some(Devices(listed.collect()));
    }
    Ok(devices.iter().flat_map(|devices| &devices.0).map(|device| device.cast()).collect())
}

/// `ibv_get_device_list`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_device_list(num_devices: *mut c_int) -> *mut *mut abi::Device {
    let made = devices().and_then(|devices| {
        // SAFETY: C's allocation, with a null at its end.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut c_void>()) };
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        let list = list.cast::<*mut abi::Device>();
        for (place, device) in devices.iter().enumerate() {
            // SAFETY: inside the allocation.
            unsafe { list.add(place).write(*device) };
        }
        if !num_devices.is_null() {
            // SAFETY: see the crate.
            unsafe { *num_devices = devices.len() as c_int };
        }
        Ok(list)
    });
    pointer(made)
}

/// `ibv_free_device_list`. The devices stay.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn free_device_list(list: *mut *mut abi::Device) {
    // SAFETY: it came from `get_device_list`.
    unsafe { libc::free(list.cast()) };
}

/// # Safety
///
/// The pointer is of a list.
unsafe fn listed<'a>(device: *mut abi::Device) -> &'a Listed {
    // SAFETY: the caller's; `abi` is the first field, and devices live as long as the process.
    unsafe { &*device.cast::<Listed>() }
}

/// `ibv_get_device_name`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_device_name(device: *mut abi::Device) -> *const c_char {
    // SAFETY: see the crate.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid`, in network byte order.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_device_guid(device: *mut abi::Device) -> u64 {
    // SAFETY: see the crate.
    unsafe { listed(device) }.agent.identity().node_guid.to_be()
}

/// `ibv_get_device_index`: there is no index, which only the kernel gives.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_device_index(_device: *mut abi::Device) -> c_int {
    -1
}

/// `ibv_open_device`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn open_device(device: *mut abi::Device) -> *mut abi::Context {
    // SAFETY: see the crate.
    pointer(unsafe { open(device) })
}

/// Opens a device.
///
/// # Safety
///
/// The pointer is of a list.
pub(crate) unsafe fn open(device: *mut abi::Device) -> Result<*mut abi::Context, Errno> {
    // SAFETY: the caller's.
    let Listed { agent, stepped, origin, .. } = unsafe { listed(device) };
    origin.check()?;
    Opening::open(agent, stepped).map(|opening| {
        let not_there = missing::number as *const () as usize;
        let mut ops = [not_there; 32];
        for (place, function) in [
            (0, query_device as *const ()),
            (1, query_port as *const ()),
            (7, memory::alloc_mw as *const ()),
            (8, post::bind_mw as *const ()),
            (9, memory::dealloc_mw as *const ()),
            (11, cq::poll_cq as *const ()),
            (12, cq::req_notify_cq as *const ()),
            (20, post::post_srq_recv as *const ()),
            (25, post::post_send as *const ()),
            (26, post::post_recv as *const ()),
        ] {
            ops[place] = function as usize;
        }
        // What is not there is null: programs then get EOPNOTSUPP, or a simpler call is made.
        let mut slots = [0; SLOTS];
        slots[0] = query_port_ex as *const () as usize;
        slots[24] = cq_ex::query_rt_values as *const () as usize;
        slots[25] = cq_ex::create_cq_ex as *const () as usize;
        slots[27] = query_device_ex as *const () as usize;
        slots[33] = qp_ex::create_qp_ex as *const () as usize;
        let abi = abi::Context {
            device,
            ops,
            // There is no file of a device. Programs that duplicate it, or set its flags, get one.
            cmd_fd: opening.asynchronous.fd(),
            async_fd: opening.asynchronous.fd(),
            num_comp_vectors: 1,
            mutex: [0; 5],
            abi_compat: EXTENDED,
        };
        let size = offset_of!(Context, abi) + size_of::<abi::Context>();
        let context = Box::into_raw(Box::new(Context { slots, size, abi, opening }));
        // SAFETY: the field of what was just made.
        unsafe { &raw mut (*context).abi }
    })
}

/// `ibv_close_device`. Objects that are left end with it: other threads' polls of them fail. A
/// thread that waits for an asynchronous event goes on waiting, as with rdma-core.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check(context) } {
        return error;
    }
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    opening.close();
    opening.asynchronous.close();
    // SAFETY: it came from `open_device`. Other threads' calls find the opening closed; C finds
    // the functions by the context.
    unsafe { gone::keep(context.byte_sub(offset_of!(Context, abi)).cast::<Context>()) };
    0
}

fn number(of: impl TryInto<c_int>) -> c_int {
    of.try_into().unwrap_or(c_int::MAX)
}

/// `ibv_query_device`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_device(context: *mut abi::Context, attr: *mut DeviceAttr) -> c_int {
    // SAFETY: see the crate.
    let agent = unsafe { Context::opening(context) }.agent();
    let (identity, config) = (agent.identity(), agent.config());
    let mut fw_ver = [0; 64];
    let version = format!("{}.{}", identity.version_major, identity.version_minor);
    for (to, from) in fw_ver.iter_mut().take(63).zip(version.bytes()) {
        *to = from;
    }
    let features = Features::from_bits_truncate(identity.features);
    let most_segments = number(identity.max_sges);
    let made = DeviceAttr {
        fw_ver,
        node_guid: identity.node_guid.to_be(),
        sys_image_guid: identity.node_guid.to_be(),
        max_mr_size: identity.max_region,
        page_size_cap: !0xfff,
        // Nobody's, as Soft-RoCE has it; 0 is an error to some programs.
        vendor_id: 0xff_ffff,
        vendor_part_id: 0,
        hw_ver: identity.revision,
        max_qp: number(config.max_qps),
        // A request takes one block if it has two segments at most.
        max_qp_wr: number((identity.max_sq_blocks / 2).min(identity.max_rq_entries)),
        device_cap_flags: device_cap::BAD_PKEY_CNTR
            | device_cap::PORT_ACTIVE_EVENT
            | device_cap::SYS_IMAGE_GUID
            | device_cap::RC_RNR_NAK_GEN
            | device_cap::SRQ_RESIZE
            | device_cap::MEM_WINDOW
            | device_cap::MEM_WINDOW_TYPE_2B,
        max_sge: most_segments,
        max_sge_rd: most_segments,
        max_cq: number(config.max_cqs),
        max_cqe: number(identity.max_cqes - 1),
        max_mr: number(config.max_keys),
        max_pd: number(config.max_pds),
        max_qp_rd_atom: number(identity.max_rd_atomic),
        max_ee_rd_atom: 0,
        max_res_rd_atom: number(identity.max_rd_atomic.saturating_mul(config.max_qps)),
        max_qp_init_rd_atom: number(identity.max_rd_atomic),
        max_ee_init_rd_atom: 0,
        // Among queue pairs, and with the CPU.
        atomic_cap: if features.contains(Features::ATOMICS) { 2 } else { 0 },
        max_ee: 0,
        max_rdd: 0,
        max_mw: number(config.max_keys),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: number(identity.max_groups),
        max_mcast_qp_attach: number(identity.max_group_qps),
        max_total_mcast_qp_attach: number(identity.max_groups.saturating_mul(identity.max_group_qps)),
        // They are memory of the process alone.
        max_ah: c_int::MAX,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: number(config.max_srqs),
        max_srq_wr: number(identity.max_srq_entries),
        max_srq_sge: most_segments,
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: 1,
    };
    // SAFETY: see the crate.
    unsafe { *attr = made };
    0
}

/// Where `struct ibv_device_attr_ex` has words that the shorter structure has not, and their size:
/// the bits and the kHz of the clock of completions, the capabilities once more, and behind a word
/// of capabilities that are not there the number of ports.
const TIMESTAMP_MASK: usize = 264;
const CORE_CLOCK: usize = 272;
const CAPABILITIES: usize = 280;
const PORTS: usize = 392;

/// The slot `query_device_ex`: what is not said here, and not in the shorter structure, is zero.
unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    input: *const u32,
    attr: *mut DeviceAttr,
    attr_size: usize,
) -> c_int {
    // SAFETY: see the crate.
    if !input.is_null() && unsafe { *input } != 0 || attr_size < size_of::<DeviceAttr>() {
        return libc::EINVAL;
    }
    // SAFETY: see the crate: the caller's structure has this size.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, attr_size);
        let result = query_device(context, attr);
        let capabilities = u64::from((*attr).device_cap_flags);
        for (at, value) in [
            (TIMESTAMP_MASK, u64::MAX),
            (CORE_CLOCK, cq_ex::CLOCK_KHZ),
            (CAPABILITIES, capabilities),
            (PORTS, 1 << 32),
        ] {
            if attr_size >= at + size_of::<u64>() {
                attr.byte_add(at).cast::<u64>().write(value);
            }
        }
        result
    }
}

/// `enum ibv_mtu` of a number of bytes.
const fn mtu(bytes: u32) -> c_int {
    bytes.ilog2() as c_int - 7
}

fn port_attr(agent: &Agent) -> PortAttr {
    let identity = agent.identity();
    let up = agent.port_up();
    PortAttr {
        // ACTIVE or DOWN.
        state: if up { 4 } else { 1 },
        max_mtu: mtu(4096),
        active_mtu: mtu(identity.mtu),
        gid_tbl_len: gids(agent).len() as c_int,
        // CM and "IP based GIDs".
        port_cap_flags: 1 << 16 | 1 << 26,
        max_msg_sz: identity.max_message.min(1 << 31) as u32,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: 2,
        active_speed: 1,
        // LinkUp or Polling.
        phys_state: if up { 5 } else { 2 },
        // Ethernet.
        link_layer: 2,
        ..PortAttr::default()
    }
}

/// `ibv_query_port`, as the function: 48 bytes, all that its structure had first.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_port(context: *mut abi::Context, port_num: u8, attr: *mut PortAttr) -> c_int {
    // SAFETY: see the crate.
    unsafe { query_port_ex(context, port_num, attr, 48) }
}

/// The slot `query_port`.
unsafe extern "C" fn query_port_ex(
    context: *mut abi::Context,
    port_num: u8,
    attr: *mut PortAttr,
    size: usize,
) -> c_int {
    if port_num != 1 {
        return libc::EINVAL;
    }
    // SAFETY: see the crate.
    let made = port_attr(unsafe { Context::opening(context) }.agent());
    // SAFETY: see the crate: the caller's structure has this size, which may be less or more.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, size);
        let bytes = size.min(size_of::<PortAttr>());
        ptr::copy_nonoverlapping((&raw const made).cast::<u8>(), attr.cast::<u8>(), bytes);
    }
    0
}

/// `ibv_query_gid`: -1 for an index out of range; an index without a GID has a zero one.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_gid(
    context: *mut abi::Context,
    port_num: u8,
    index: c_int,
    to: *mut [u8; 16],
) -> c_int {
    // SAFETY: see the crate.
    let agent = unsafe { Context::opening(context) }.agent();
    let found = usize::try_from(index).ok().filter(|_| port_num == 1).and_then(|index| gid(agent, index));
    minus_one(found.ok_or(libc::EINVAL).map(|found| {
        // SAFETY: see the crate.
        unsafe { *to = *found };
    }))
}

/// # Safety
///
/// The context is one of a device of the list.
unsafe fn entry(context: *mut abi::Context, index: usize) -> Option<GidEntry> {
    // SAFETY: the caller's; `abi` is the first field of `Listed`, and devices are never freed.
    let device = unsafe { &*(*context).device.cast::<Listed>() };
    let found = gid(&device.agent, index).filter(|gid| **gid != [0; 16])?;
    Some(GidEntry {
        gid: gid_words(*found),
        gid_index: index as u32,
        port_num: 1,
        gid_type: ROCE_V2,
        ndev_ifindex: device.interfaces.get(index).copied().unwrap_or_default(),
    })
}

/// `_ibv_query_gid_ex`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_gid_ex(
    context: *mut abi::Context,
    port_num: u32,
    gid_index: u32,
    to: *mut GidEntry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    if port_num != 1 || flags != 0 || entry_size < size_of::<GidEntry>() {
        return libc::EINVAL;
    }
    // SAFETY: see the crate.
    let found = unsafe { entry(context, gid_index as usize) };
    status(found.ok_or(INVALID_GID_INDEX).map(|found| {
        // SAFETY: see the crate.
        unsafe { *to = found };
    }))
}

/// `_ibv_query_gid_table`: how many entries there are, or a negative number of errno.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_gid_table(
    context: *mut abi::Context,
    entries: *mut c_void,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    // SAFETY: see the crate.
    let agent = unsafe { Context::opening(context) }.agent();
    if flags != 0 || entry_size < size_of::<GidEntry>() {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: see the crate.
    let entry = |index| unsafe { entry(context, index) };
    let found: Vec<GidEntry> = (0..gids(agent).len()).filter_map(entry).collect();
    if found.len() > max_entries {
        return -(libc::EINVAL as isize);
    }
    for (place, found) in found.iter().enumerate() {
        // SAFETY: see the crate: the array has `max_entries` elements of this size.
        unsafe { entries.byte_add(place * entry_size).cast::<GidEntry>().write(*found) };
    }
    found.len() as isize
}

/// `ibv_query_gid_type`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_gid_type(
    context: *mut abi::Context,
    port_num: u8,
    index: u32,
    kind: *mut c_int,
) -> c_int {
    // SAFETY: see the crate.
    let agent = unsafe { Context::opening(context) }.agent();
    let known = port_num == 1 && gid(agent, index as usize).is_some();
    minus_one(known.then_some(()).ok_or(libc::EINVAL).map(|()| {
        // SAFETY: see the crate.
        unsafe { *kind = SYSFS_ROCE_V2 };
    }))
}

/// `ibv_query_pkey`, in network byte order.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_pkey(
    _context: *mut abi::Context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port_num != 1 || index != 0 {
        errno::set(libc::EINVAL);
        return -1;
    }
    // SAFETY: see the crate.
    unsafe { *pkey = PKEY };
    0
}

/// `ibv_get_pkey_index`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_pkey_index(_context: *mut abi::Context, port_num: u8, pkey: u16) -> c_int {
    if port_num == 1 && pkey == PKEY {
        return 0;
    }
    errno::set(libc::EINVAL);
    -1
}
