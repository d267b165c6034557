//! The calls that C's header makes by pointers: completion queues that are read field by field, and
//! posts by a call for each request.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::mpsc;
use std::time::Duration;

use super::verbs::abi::{self, *};
use super::verbs::{ah, memory, qp_ex};
use super::{End, connected, side};

/// The slots in front of a context, by the bytes between them and it.
const QUERY_RT_VALUES: usize = 128;
const CREATE_CQ_EX: usize = 120;
const QUERY_DEVICE_EX: usize = 104;
const CREATE_QP_EX: usize = 56;

type CreateCqEx = unsafe extern "C" fn(*mut abi::Context, *mut CqInitAttrEx) -> *mut CqEx;
type CreateQpEx = unsafe extern "C" fn(*mut abi::Context, *mut QpInitAttrEx) -> *mut Qp;
type QueryRtValues = unsafe extern "C" fn(*mut abi::Context, *mut ValuesEx) -> c_int;
type QueryDeviceEx = unsafe extern "C" fn(*mut abi::Context, *const u32, *mut c_void, usize) -> c_int;

/// What lies in a slot, as the header finds it.
fn slot(context: *mut abi::Context, bytes: usize) -> usize {
    // SAFETY: the context is open, and these words lie in front of it.
    unsafe {
        let size = *context.cast::<usize>().sub(1);
        assert!(size >= 328 + bytes, "the header would not look further");
        *context.byte_sub(bytes).cast::<usize>()
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().expect("a number")
}

/// Makes a call by a pointer of an object, as the header's functions do.
macro_rules! call {
    ($of:expr, $field:ident, fn($($kind:ty),*) $(-> $result:ty)? $(, $argument:expr)*) => {{
        let of = $of;
        // SAFETY: the object is there, and has the call of this kind.
        unsafe {
            let call: unsafe extern "C" fn(_, $($kind),*) $(-> $result)? = transmute((*of).$field);
            call(of, $($argument),*)
        }
    }};
}

fn cq_ex(context: *mut abi::Context, wc_flags: u64) -> *mut CqEx {
    let mut init = CqInitAttrEx {
        cqe: 32,
        cq_context: ptr::null_mut(),
        channel: ptr::null_mut(),
        comp_vector: 0,
        wc_flags,
        comp_mask: 1,
        flags: 1,
        parent_domain: ptr::null_mut(),
    };
    // SAFETY: the slot is that of this call.
    unsafe { transmute::<usize, CreateCqEx>(slot(context, CREATE_CQ_EX))(context, &mut init) }
}

fn qp_ex_of(pd: *mut Pd, init: &QpInitAttr, send_ops_flags: u64) -> *mut Qp {
    // SAFETY: the domain is there.
    let context = unsafe { (*pd).context };
    let mut init = QpInitAttrEx {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: init_attr::PD | init_attr::SEND_OPS_FLAGS,
        pd,
        xrcd: ptr::null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: ptr::null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags,
    };
    // SAFETY: the slot is that of this call.
    unsafe { transmute::<usize, CreateQpEx>(slot(context, CREATE_QP_EX))(context, &mut init) }
}

const EACH: u64 = (1 << 10) - 1;
const STAMPED: u64 = wc_ex::STANDARD | wc_ex::COMPLETION_TIMESTAMP | wc_ex::COMPLETION_TIMESTAMP_WALLCLOCK;

fn end_of(n: usize, kind: c_int, operations: u64) -> End {
    let make_qp = |pd, init: &mut QpInitAttr| qp_ex_of(pd, init, operations);
    End::of(n, kind, ptr::null_mut(), |context| cq_ex(context, STAMPED).cast(), make_qp)
}

/// Two queue pairs with all of it, connected.
pub(super) fn extended() -> (End, End) {
    let (a, b) = (end_of(0, qpt::RC, EACH), end_of(1, qpt::RC, EACH));
    a.init();
    b.init();
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

impl End {
    fn ex(&self) -> *mut QpEx {
        // SAFETY: the queue pair is there.
        let found = unsafe { qp_ex::qp_to_qp_ex(self.qp) };
        assert!(!found.is_null());
        found
    }

    pub(super) fn start(&self) -> *mut QpEx {
        let ex = self.ex();
        call!(ex, wr_start, fn());
        ex
    }

    pub(super) fn complete(&self) -> c_int {
        call!(self.ex(), wr_complete, fn() -> c_int)
    }

    /// Adds a Send of a part of the page.
    pub(super) fn add_send(&self, wr_id: u64, at: u64, length: u32) {
        let ex = self.ex();
        self.name(wr_id);
        call!(ex, wr_send, fn());
        let Sge { addr, length, lkey } = self.sge(at, length);
        call!(ex, wr_set_sge, fn(u32, u64, u32), lkey, addr, length);
    }

    /// Writes the fields that a program writes before a request.
    fn name(&self, wr_id: u64) {
        // SAFETY: the queue pair is there; its calls are not under way.
        unsafe { ((*self.ex()).wr_id, (*self.ex()).wr_flags) = (wr_id, send_flags::SIGNALED) };
    }

    pub(super) fn poll(&self) -> *mut CqEx {
        while self.start_poll() == libc::ENOENT {}
        self.cq.cast()
    }

    pub(super) fn start_poll(&self) -> c_int {
        let (cq, mut attr) = (self.cq.cast::<CqEx>(), PollCqAttr { comp_mask: 0 });
        call!(cq, start_poll, fn(*mut PollCqAttr) -> c_int, &mut attr)
    }

    pub(super) fn end_poll(&self) {
        call!(self.cq.cast::<CqEx>(), end_poll, fn());
    }
}

fn outcome(of: *mut CqEx) -> (u64, c_int) {
    // SAFETY: the completion queue is there.
    unsafe { ((*of).wr_id, (*of).status) }
}

#[test]
fn requests_are_posted_together_and_completions_are_read_field_by_field() {
    let (a, b) = extended();
    for wr_id in 0..4 {
        assert_eq!(b.receive(wr_id, b.sge(1024 * wr_id, 1024)), 0);
    }
    a.write(0, b"first and second");
    b.write(512, &40_u64.to_ne_bytes());
    let ex = a.start();
    a.add_send(1, 0, 5);
    a.name(2);
    call!(ex, wr_send_imm, fn(u32), 7_u32.to_be());
    let list = [a.sge(6, 3), a.sge(10, 6)];
    call!(ex, wr_set_sge_list, fn(usize, *const Sge), 2, list.as_ptr());
    a.name(3);
    let WrRdma { remote_addr, rkey } = b.remote(3000);
    call!(ex, wr_rdma_write_imm, fn(u32, u64, u32), rkey, remote_addr, 8_u32.to_be());
    let mut bytes = *b"inline";
    call!(ex, wr_set_inline_data, fn(*mut c_void, usize), bytes.as_mut_ptr().cast(), 6);
    bytes.fill(0);
    std::hint::black_box(&bytes);
    a.name(4);
    let WrRdma { remote_addr, rkey } = b.remote(512);
    call!(ex, wr_atomic_fetch_add, fn(u32, u64, u64), rkey, remote_addr, 2);
    let Sge { addr, length, lkey } = a.sge(256, 8);
    call!(ex, wr_set_sge, fn(u32, u64, u32), lkey, addr, length);
    a.name(5);
    call!(ex, wr_atomic_cmp_swp, fn(u32, u64, u64, u64), rkey, remote_addr, 42, 9);
    call!(ex, wr_set_sge, fn(u32, u64, u32), lkey, addr + 8, length);
    a.name(6);
    let WrRdma { remote_addr, rkey } = b.remote(3000);
    call!(ex, wr_rdma_read, fn(u32, u64), rkey, remote_addr);
    call!(ex, wr_set_sge, fn(u32, u64, u32), lkey, addr + 16, 6);
    a.name(7);
    call!(ex, wr_send, fn());
    let (mut one, mut two) = (*b"in", *b"two");
    let buffers = [
        DataBuf { addr: one.as_mut_ptr().cast(), length: 2 },
        DataBuf { addr: two.as_mut_ptr().cast(), length: 3 },
    ];
    call!(ex, wr_set_inline_data_list, fn(usize, *const DataBuf), 2, buffers.as_ptr());
    assert_eq!(a.complete(), 0);

    use wc_opcode::*;
    for (wr_id, opcode) in
        [(1, SEND), (2, SEND), (3, RDMA_WRITE), (4, FETCH_ADD), (5, COMP_SWAP), (6, RDMA_READ), (7, SEND)]
    {
        let cq = a.poll();
        assert_eq!(outcome(cq), (wr_id, 0));
        assert_eq!(call!(cq, read_opcode, fn() -> c_int), opcode);
        call!(cq, end_poll, fn());
    }
    assert_eq!(b.read(512, 8), 9_u64.to_ne_bytes());
    assert_eq!(a.read(256, 8), 40_u64.to_ne_bytes());
    assert_eq!((a.read(264, 8), a.read(272, 6)), (42_u64.to_ne_bytes().to_vec(), b"inline".to_vec()));

    // The receives, one behind the other.
    let cq = b.poll();
    let mut clock = 0;
    for (wr_id, opcode, byte_len, flags, immediate) in
        [(0, RECV, 5, 0, 0), (1, RECV, 9, 2, 7), (2, RECV_RDMA_WITH_IMM, 6, 2, 8), (3, RECV, 5, 0, 0)]
    {
        assert_eq!(outcome(cq), (wr_id, 0));
        assert_eq!(call!(cq, read_opcode, fn() -> c_int), opcode);
        assert_eq!(call!(cq, read_byte_len, fn() -> u32), byte_len);
        assert_eq!(call!(cq, read_wc_flags, fn() -> u32), flags);
        assert_eq!(u32::from_be(call!(cq, read_imm_data, fn() -> u32)), immediate);
        // SAFETY: the queue pair is there.
        assert_eq!(call!(cq, read_qp_num, fn() -> u32), unsafe { (*b.qp).qp_num });
        let stamp = call!(cq, read_completion_ts, fn() -> u64);
        assert!(stamp >= clock && call!(cq, read_completion_wallclock_ns, fn() -> u64) > 1 << 60);
        clock = stamp;
        let more = call!(cq, next_poll, fn() -> c_int);
        // All have come before the sender's completions.
        assert_eq!(more, if wr_id < 3 { 0 } else { libc::ENOENT });
    }
    call!(cq, end_poll, fn());
    assert_eq!((b.read(0, 5), b.read(1024, 9)), (b"first".to_vec(), b"andsecond".to_vec()));
    assert_eq!(b.read(3072, 5), b"intwo");
    a.end();
    b.end();
}

#[test]
fn of_requests_with_a_wrong_one_none_is_posted() {
    let (a, b) = extended();
    type Wrong = (&'static str, fn(&End));
    let wrong: [Wrong; 6] = [
        ("more bytes than the queue pair was made for", |a| {
            call!(a.ex(), wr_send, fn());
            let mut bytes = [0_u8; 65];
            call!(a.ex(), wr_set_inline_data, fn(*mut c_void, usize), bytes.as_mut_ptr().cast(), 65);
        }),
        ("more segments", |a| {
            call!(a.ex(), wr_send, fn());
            let list = [a.sge(0, 1), a.sge(1, 1), a.sge(2, 1)];
            call!(a.ex(), wr_set_sge_list, fn(usize, *const Sge), 3, list.as_ptr());
        }),
        ("data twice", |a| {
            a.add_send(2, 0, 1);
            call!(a.ex(), wr_set_sge, fn(u32, u64, u32), 0, 0, 1);
        }),
        ("a key that nothing has", |a| call!(a.ex(), wr_local_inv, fn(u32), 0xdead_beef)),
        ("an atomic without a place for the result", |a| {
            call!(a.ex(), wr_atomic_fetch_add, fn(u32, u64, u64), 0, 0, 2);
        }),
        ("an address of datagrams", |a| {
            call!(a.ex(), wr_set_ud_addr, fn(*mut Ah, u32, u32), ptr::null_mut(), 0, 0);
        }),
    ];
    for (what, add) in wrong {
        a.start();
        a.add_send(1, 0, 1);
        add(&a);
        assert_eq!(a.complete(), libc::EINVAL, "{what}");
    }
    a.start();
    call!(a.ex(), wr_send_tso, fn(*mut c_void, u16, u16), ptr::null_mut(), 0, 0);
    assert_eq!(a.complete(), libc::EOPNOTSUPP);
    // More than fit.
    for (count, result) in [(17, libc::ENOMEM), (16, 0)] {
        a.start();
        (0..count).for_each(|wr_id| a.add_send(wr_id, 0, 1));
        assert_eq!(a.complete(), result, "{count}");
    }
    a.start();
    a.add_send(16, 0, 1);
    assert_eq!(a.complete(), libc::ENOMEM, "sixteen are outstanding");
    // Given up.
    a.start();
    a.add_send(17, 0, 1);
    call!(a.ex(), wr_abort, fn());
    for wr_id in 0..16 {
        assert_eq!(b.receive(wr_id, b.sge(0, 8)), 0);
    }
    for wr_id in 0..16 {
        assert_eq!((a.completion().wr_id, b.completion().wr_id), (wr_id, wr_id), "the first that was posted");
    }
    a.end();
    b.end();
}

#[test]
fn another_thread_waits_until_a_batch_and_a_poll_are_over() {
    let (a, b) = extended();
    for wr_id in 0..3 {
        assert_eq!(b.receive(wr_id, b.sge(0, 8)), 0);
    }
    a.start();
    a.add_send(1, 0, 1);
    let (posted, has_posted) = mpsc::channel();
    std::thread::scope(|scope| {
        let raw = a.qp as usize;
        scope.spawn(move || {
            // SAFETY: zeros are null pointers and numbers.
            let mut request: SendWr = unsafe { std::mem::zeroed() };
            (request.opcode, request.send_flags) = (wr::SEND, send_flags::SIGNALED);
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair is there.
            let result = unsafe { super::post::post_send(raw as *mut Qp, &mut request, &mut bad) };
            posted.send(result).expect("the test waits");
        });
        // A post that did not wait would be over by then, most of the time.
        assert!(has_posted.recv_timeout(Duration::from_millis(50)).is_err());
        a.add_send(2, 0, 1);
        assert_eq!(a.complete(), 0);
        assert_eq!(has_posted.recv(), Ok(0));
    });
    let order = [(); 3].map(|()| a.completion().wr_id);
    assert_eq!(order, [1, 2, 0]);
    let cq = b.poll();
    assert_eq!(outcome(cq), (0, 0));
    let (polled, has_polled) = mpsc::channel();
    std::thread::scope(|scope| {
        let raw = cq as usize;
        scope.spawn(move || {
            let cq = raw as *mut CqEx;
            let mut attr = PollCqAttr { comp_mask: 0 };
            assert_eq!(call!(cq, start_poll, fn(*mut PollCqAttr) -> c_int, &mut attr), 0);
            polled.send(outcome(cq)).expect("the test waits");
            call!(cq, end_poll, fn());
        });
        assert!(has_polled.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(call!(cq, next_poll, fn() -> c_int), 0);
        assert_eq!(outcome(cq), (1, 0));
        call!(cq, end_poll, fn());
        assert_eq!(has_polled.recv(), Ok((2, 0)));
    });
    a.end();
    b.end();
}

#[test]
fn a_queue_pair_has_the_requests_that_it_was_made_with_only() {
    let (a, b) = (end_of(0, qpt::UD, send_ops::SEND), end_of(1, qpt::UD, send_ops::SEND));
    let mut attr = QpAttr { qp_state: qps::INIT, port_num: 1, qkey: 0x11, ..QpAttr::default() };
    for end in [&a, &b] {
        let init = attr_mask::STATE | attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::QKEY;
        attr.qp_state = qps::INIT;
        assert_eq!(end.modify(&mut attr, init), 0);
        attr.qp_state = qps::RTR;
        assert_eq!(end.modify(&mut attr, attr_mask::STATE), 0);
        attr.qp_state = qps::RTS;
        assert_eq!(end.modify(&mut attr, attr_mask::STATE | attr_mask::SQ_PSN), 0);
    }
    let mut route = AhAttr { dgid: b.gid(), is_global: 1, hop_limit: 64, port_num: 1, ..AhAttr::default() };
    // SAFETY: the calls in C's order.
    let to = unsafe { ah::create_ah(a.side.pd, &mut route) };
    assert_eq!(b.receive(4, b.sge(0, 64)), 0);
    let ex = a.start();
    a.add_send(1, 0, 8);
    assert_eq!(a.complete(), libc::EINVAL, "there is no address");
    a.start();
    a.add_send(2, 0, 8);
    // SAFETY: the queue pair is there.
    let number = unsafe { (*b.qp).qp_num };
    call!(ex, wr_set_ud_addr, fn(*mut Ah, u32, u32), to, number, 0x11);
    assert_eq!(a.complete(), 0);
    assert_eq!(a.completion().wr_id, 2);
    let cq = b.poll();
    assert_eq!(outcome(cq), (4, 0));
    assert_eq!((call!(cq, read_byte_len, fn() -> u32), call!(cq, read_wc_flags, fn() -> u32)), (48, 1));
    // SAFETY: the queue pair is there.
    assert_eq!(call!(cq, read_src_qp, fn() -> u32), unsafe { (*a.qp).qp_num });
    call!(cq, end_poll, fn());
    a.start();
    call!(ex, wr_send_imm, fn(u32), 0);
    call!(ex, wr_set_ud_addr, fn(*mut Ah, u32, u32), to, number, 0x11);
    assert_eq!(a.complete(), libc::EINVAL, "it was made for Sends without immediate data");
    // SAFETY: nothing uses it.
    assert_eq!(unsafe { ah::destroy_ah(to) }, 0);
    a.end();
    b.end();
}

#[test]
fn what_is_missing_is_refused_when_it_is_made() {
    let (a, b) = connected();
    // SAFETY: the queue pair is there.
    assert!(unsafe { qp_ex::qp_to_qp_ex(a.qp) }.is_null(), "it was made without");
    let side = side(0);
    for wc_flags in [1 << 8, 1 << 9, 1 << 10] {
        assert!(cq_ex(side.context, wc_flags).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
    let init = QpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: a.cq,
        recv_cq: a.cq,
        srq: ptr::null_mut(),
        cap: super::cap(),
        qp_type: qpt::RC,
        sq_sig_all: 0,
    };
    for (qp_type, operations) in
        [(qpt::RC, 1 << 10), (qpt::UC, send_ops::RDMA_READ), (qpt::UD, send_ops::RDMA_WRITE)]
    {
        assert!(qp_ex_of(side.pd, &QpInitAttr { qp_type, ..init }, operations).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
    a.end();
    b.end();
}

#[test]
fn the_clock_of_completions_is_known_and_can_be_read() {
    let context = side(0).context;
    let mut attr = [0_u64; 50];
    let mut values = ValuesEx { comp_mask: 1, raw_clock: libc::timespec { tv_sec: 0, tv_nsec: 0 } };
    // SAFETY: the slots are those of these calls.
    unsafe {
        let query: QueryDeviceEx = transmute(slot(context, QUERY_DEVICE_EX));
        assert_eq!(query(context, ptr::null(), attr.as_mut_ptr().cast(), 400), 0);
        let now: QueryRtValues = transmute(slot(context, QUERY_RT_VALUES));
        assert_eq!(now(context, &mut values), 0);
        values.comp_mask = 2;
        assert_eq!(now(context, &mut values), libc::EINVAL);
    }
    assert_eq!((attr[264 / 8], attr[272 / 8]), (u64::MAX, 1_000_000), "nanoseconds");
    assert!(values.raw_clock.tv_sec > 0);
}

#[test]
fn a_window_of_type_2_is_bound_and_invalidated_by_calls_for_each_request() {
    let (a, b) = extended();
    // SAFETY: the page stays, and the domain is there.
    let (region, window) = unsafe {
        let flags = super::ALL | access::MW_BIND as c_int;
        (memory::reg_mr(b.side.pd, b.page.cast(), 4096, flags), memory::alloc_mw(b.side.pd, 2))
    };
    // SAFETY: the window is there.
    let rkey = unsafe { (*window).rkey } | 0x5a;
    let addr = b.page as u64 + 64;
    let info = MwBindInfo { mr: region, addr, length: 64, access: access::REMOTE_WRITE };
    b.start();
    b.name(1);
    call!(b.ex(), wr_bind_mw, fn(*mut Mw, u32, *const MwBindInfo), window, rkey, &info);
    assert_eq!(b.complete(), 0);
    let bound = b.completion();
    assert_eq!((bound.wr_id, bound.status, bound.opcode), (1, 0, wc_opcode::BIND_MW));
    a.write(0, b"seen");
    a.start();
    a.name(2);
    call!(a.ex(), wr_rdma_write, fn(u32, u64), rkey, addr);
    let Sge { addr, length, lkey } = a.sge(0, 4);
    call!(a.ex(), wr_set_sge, fn(u32, u64, u32), lkey, addr, length);
    assert_eq!((a.complete(), a.completion().status, b.read(64, 4)), (0, 0, b"seen".to_vec()));
    b.start();
    b.name(3);
    call!(b.ex(), wr_local_inv, fn(u32), rkey);
    assert_eq!((b.complete(), b.completion().status), (0, 0));
    // Without a region nothing is posted.
    b.start();
    let none = MwBindInfo { mr: ptr::null_mut(), ..info };
    call!(b.ex(), wr_bind_mw, fn(*mut Mw, u32, *const MwBindInfo), window, rkey, &none);
    assert_eq!(b.complete(), libc::EINVAL);
    // SAFETY: users before what they use.
    unsafe { assert_eq!((memory::dealloc_mw(window), memory::dereg_mr(region)), (0, 0)) };
    a.end();
    b.end();
}
