//! Posts and polls of libibverbs' calls, on the queues that rows of `rdma` have.
#![expect(unsafe_code, reason = "the calls are C's")]

use std::hint::black_box;
use std::ptr;
use std::sync::OnceLock;

use host::Machine;
use kernel_agent::{Agent, Config};
use platform::DmaBuffer;
use verbs::abi::{
    self, AhAttr, Cq, MwBindInfo, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Sge, Wc, Wr, WrBind, WrRdma,
    access, attr_mask as mask, qps, qpt, send_flags, wr,
};
use verbs::{Nic, cq, device, memory, qp};

use crate::calls::c::{poll, post_recv, post_send};
use crate::samples::Recorder;

pub const ROWS: &[&str] = &["verbs_post_write", "verbs_post_recv", "verbs_poll", "verbs_poll_empty"];

/// Requests that a queue pair can have outstanding.
const DEPTH: u32 = 64;
const BYTES: usize = 4096;
/// Operations before the one that is counted, so that caches and allocations are warm.
const WARM: usize = 3;

fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| Machine::new(1))
}

/// The NIC, once.
fn nics() -> Result<Vec<Nic>, i32> {
    let machine = machine();
    let agent = Agent::open(machine.platform(), machine.transport(0), 0, Config::default()).expect("a NIC");
    Ok(vec![Nic { name: "rxe0".into(), agent, stepped: None, interfaces: Vec::new() }])
}

/// A queue pair that is not connected.
fn queue_pair(pd: *mut abi::Pd, cq: *mut Cq) -> *mut Qp {
    let cap = QpCap {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let mut init = QpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: ptr::null_mut(),
        cap,
        qp_type: qpt::RC,
        sq_sig_all: 0,
    };
    // SAFETY: the objects are there.
    let made = unsafe { qp::create_qp(pd, &mut init) };
    assert!(!made.is_null());
    made
}

fn connect(context: *mut abi::Context, own: *mut Qp, other: *mut Qp) {
    let mut gid = [0; 16];
    // SAFETY: the context is open.
    assert_eq!(unsafe { device::query_gid(context, 1, 0, &mut gid) }, 0);
    let (first, second) = gid.split_at(8);
    let dgid = [first, second].map(|half| u64::from_ne_bytes(half.try_into().expect("eight bytes")));
    let ah_attr = AhAttr { dgid, is_global: 1, hop_limit: 64, port_num: 1, ..AhAttr::default() };
    let rights = access::REMOTE_WRITE;
    let init = QpAttr { qp_state: qps::INIT, port_num: 1, qp_access_flags: rights, ..QpAttr::default() };
    let to_receive = QpAttr {
        qp_state: qps::RTR,
        path_mtu: 3,
        // SAFETY: the queue pair is there.
        dest_qp_num: unsafe { (*other).qp_num },
        min_rnr_timer: 12,
        ah_attr,
        ..QpAttr::default()
    };
    let to_send = QpAttr { qp_state: qps::RTS, timeout: 14, retry_cnt: 7, rnr_retry: 7, ..QpAttr::default() };
    let path = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
    let times = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
    for (mut attr, given) in [
        (init, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS),
        (to_receive, path | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
        (to_send, times | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC),
    ] {
        // SAFETY: the queue pair is there.
        assert_eq!(unsafe { qp::modify_qp(own, &mut attr, mask::STATE | given) }, 0);
    }
}

pub fn count(rows: &mut Recorder) {
    verbs::provide(nics);
    let mut number = 0;
    // SAFETY: the calls in C's order.
    let (context, pd, cq) = unsafe {
        let list = device::get_device_list(&mut number);
        assert_eq!(number, 1);
        let context = device::open_device(*list);
        assert!(!context.is_null());
        let cq = cq::create_cq(context, 4 * DEPTH as i32, ptr::null_mut(), ptr::null_mut(), 0);
        assert!(!cq.is_null());
        (context, memory::alloc_pd(context), cq)
    };
    let (a, b) = (queue_pair(pd, cq), queue_pair(pd, cq));
    connect(context, a, b);
    connect(context, b, a);
    // The machine's memory is all that its NIC reaches.
    let platform = machine().platform();
    let page: &'static DmaBuffer =
        Box::leak(Box::new(DmaBuffer::new(&platform, BYTES, 4096).expect("memory")));
    let at = page.slice().as_ptr();
    let rights = (access::LOCAL_WRITE | access::REMOTE_WRITE) as i32;
    // SAFETY: the memory is there until the end.
    let mr = unsafe { memory::reg_mr(pd, at.cast(), BYTES, rights) };
    assert!(!mr.is_null());
    // SAFETY: the region is there.
    let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
    let mut sge = black_box(Sge { addr: at as u64, length: 64, lkey });
    let to = WrRdma { remote_addr: at as u64 + 1024, rkey };
    let mut write = black_box(SendWr {
        wr_id: 7,
        next: ptr::null_mut(),
        sg_list: &mut sge,
        num_sge: 1,
        opcode: wr::RDMA_WRITE,
        send_flags: send_flags::SIGNALED,
        imm_data: 0,
        wr: Wr { rdma: to },
        xrc_srqn: 0,
        bind_mw: WrBind {
            mw: ptr::null_mut(),
            rkey: 0,
            info: MwBindInfo { mr: ptr::null_mut(), addr: 0, length: 0, access: 0 },
        },
    });
    let mut receive = black_box(RecvWr { wr_id: 7, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 });
    let mut wc = Wc::default();
    let mut device = machine().pause();
    for round in 0..=WARM {
        let last = round == WARM;
        let mut counted = |key, run: &mut dyn FnMut()| if last { rows.count(key, 1, run) } else { run() };
        counted("verbs_poll_empty", &mut || assert_eq!(poll(cq, &mut wc), 0));
        counted("verbs_post_write", &mut || post_send(a, &mut write));
        device.step();
        counted("verbs_poll", &mut || assert_eq!(poll(cq, &mut wc), 1));
        assert_eq!(wc.status, 0);
        counted("verbs_post_recv", &mut || post_recv(b, &mut receive));
        device.step();
    }
}
