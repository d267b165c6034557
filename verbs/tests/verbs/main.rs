//! The verbs as a C program calls them: by pointers, on two NICs of one process that reach each
//! other.
#![expect(unsafe_code, reason = "the calls are C's")]

use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

mod closing;
mod extended;
mod forked;
mod multicast;
mod windows;

use ferrovia_verbs as verbs;
use kernel_agent::{Agent, Config};
use verbs::abi::{self, attr_mask as mask, *};
use verbs::{Nic, ah, channel, cq, device, memory, post, qp, srq, words};

thread_local! {
    /// The calls of this thread: steps, and hints that it will wait.
    static NOTED: std::cell::Cell<(u32, u32)> = const { std::cell::Cell::new((0, 0)) };
    /// The GIDs between which this thread was going to send.
    static MET: std::cell::Cell<Option<[[u8; 16]; 2]>> = const { std::cell::Cell::new(None) };
}

/// A device that has a thread of its own, and notes who would do its work.
struct Noted;

impl verbs::Stepped for Noted {
    fn step(&self) -> bool {
        NOTED.with(|noted| noted.set((noted.get().0 + 1, noted.get().1)));
        false
    }

    fn meet(&self, from: [u8; 16], to: [u8; 16]) {
        MET.with(|met| met.set(Some([from, to])));
    }

    fn leave(&self) {
        NOTED.with(|noted| noted.set((noted.get().0, noted.get().1 + 1)));
    }
}

/// The NICs: the machine lives as long as the process.
fn nics() -> Result<Vec<Nic>, i32> {
    static MACHINE: OnceLock<host::Machine> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| host::Machine::new(2));
    let config = Config { max_qps: 64, max_cqs: 64, max_keys: 256, max_connections: 16, ..Config::default() };
    Ok([0, 1]
        .map(|n| {
            let agent = Agent::open(machine.platform(), machine.transport(n), n as u32, config);
            Nic {
                name: format!("test{n}"),
                agent: agent.expect("the NIC comes up"),
                stepped: Some(std::sync::Arc::new(Noted)),
                interfaces: vec![40 + n as u32],
            }
        })
        .into())
}

/// Memory that both sides reach: the machine's, for the registrations of a process are of its
/// arena.
fn memory_of(bytes: usize) -> *mut u8 {
    // The arena of `host::Machine` is the only memory that its NICs reach.
    static FIRST: OnceLock<Mutex<Vec<platform::DmaBuffer>>> = OnceLock::new();
    let kept = FIRST.get_or_init(Default::default);
    // SAFETY: the first context is open for as long as the process.
    let buffer = platform::DmaBuffer::new(side(0).agent.platform(), bytes, 4096).expect("memory");
    let at = buffer.slice().as_ptr();
    kept.lock().expect("no panic").push(buffer);
    at
}

struct Side {
    context: *mut abi::Context,
    pd: *mut Pd,
    agent: std::sync::Arc<Agent>,
}

// SAFETY: all calls may be made by any thread.
unsafe impl Send for Side {}
// SAFETY: as above.
unsafe impl Sync for Side {}

/// A context and a protection domain on each NIC.
fn side(n: usize) -> &'static Side {
    static AGENTS: OnceLock<Vec<std::sync::Arc<Agent>>> = OnceLock::new();
    static SIDES: OnceLock<[Side; 2]> = OnceLock::new();
    fn provided() -> Result<Vec<Nic>, i32> {
        let nics = nics()?;
        let _ = AGENTS.set(nics.iter().map(|nic| nic.agent.clone()).collect());
        Ok(nics)
    }
    &SIDES.get_or_init(|| {
        verbs::provide(provided);
        let mut count = 0;
        // SAFETY: the calls in C's order.
        unsafe {
            let list = device::get_device_list(&mut count);
            assert_eq!(count, 2);
            assert!((*list.add(2)).is_null(), "the list ends");
            let sides = [0, 1].map(|n| {
                let of = *list.add(n);
                let name = CStr::from_ptr(device::get_device_name(of));
                assert_eq!(name.to_str(), Ok(format!("test{n}").as_str()));
                let context = device::open_device(of);
                assert!(!context.is_null());
                let agent = AGENTS.get().expect("provided")[n].clone();
                Side { context, pd: memory::alloc_pd(context), agent }
            });
            device::free_device_list(list);
            sides
        }
    })[n]
}

const ALL: c_int =
    (access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC) as c_int;

/// A queue pair with its completion queue, and a registered page.
struct End {
    side: &'static Side,
    cq: *mut Cq,
    qp: *mut Qp,
    mr: *mut Mr,
    page: *mut u8,
}

// SAFETY: all calls may be made by any thread.
unsafe impl Sync for End {}

fn cap() -> QpCap {
    QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 }
}

impl End {
    fn new(n: usize, qp_type: c_int, srq: *mut Srq) -> End {
        let make_cq = |context| {
            // SAFETY: the context is open.
            unsafe { cq::create_cq(context, 32, ptr::null_mut(), ptr::null_mut(), 0) }
        };
        // SAFETY: the domain is there.
        End::of(n, qp_type, srq, make_cq, |pd, init| unsafe { qp::create_qp(pd, init) })
    }

    fn of(
        n: usize,
        qp_type: c_int,
        srq: *mut Srq,
        make_cq: impl FnOnce(*mut abi::Context) -> *mut Cq,
        make_qp: impl FnOnce(*mut Pd, &mut QpInitAttr) -> *mut Qp,
    ) -> End {
        let side = side(n);
        let page = memory_of(4096);
        // SAFETY: the calls in C's order.
        unsafe {
            let cq = make_cq(side.context);
            assert!(!cq.is_null(), "{}", std::io::Error::last_os_error());
            let mut init = QpInitAttr {
                qp_context: ptr::null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq,
                cap: cap(),
                qp_type,
                sq_sig_all: 0,
            };
            let qp = make_qp(side.pd, &mut init);
            assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
            let mr = memory::reg_mr(side.pd, page.cast(), 4096, ALL);
            assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
            End { side, cq, qp, mr, page }
        }
    }

    fn gid(&self) -> [u64; 2] {
        let mut gid = [0; 16];
        // SAFETY: the context is open.
        assert_eq!(unsafe { device::query_gid(self.side.context, 1, 0, &mut gid) }, 0);
        let (first, second) = gid.split_at(8);
        [first, second].map(|half| u64::from_ne_bytes(half.try_into().expect("eight bytes")))
    }

    fn modify(&self, attr: &mut QpAttr, given: c_int) -> c_int {
        // SAFETY: the queue pair is there.
        unsafe { qp::modify_qp(self.qp, attr, given) }
    }

    fn init(&self) {
        let flags = ALL as u32;
        let mut attr =
            QpAttr { qp_state: qps::INIT, port_num: 1, qp_access_flags: flags, ..QpAttr::default() };
        let needed = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        for without in [mask::PKEY_INDEX, mask::PORT, mask::ACCESS_FLAGS] {
            assert_eq!(self.modify(&mut attr, needed & !without), libc::EINVAL);
        }
        assert_eq!(self.modify(&mut attr, needed), 0);
    }

    /// Moves the queue pair to RTS, with the other end as its peer.
    fn connect(&self, other: &End) {
        let mut attr = QpAttr {
            qp_state: qps::RTR,
            path_mtu: 3,
            // SAFETY: the queue pair is there.
            dest_qp_num: unsafe { (*other.qp).qp_num },
            rq_psn: 7,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ah_attr: AhAttr {
                dgid: other.gid(),
                is_global: 1,
                hop_limit: 64,
                port_num: 1,
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        let needed = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        for without in [mask::AV, mask::PATH_MTU, mask::DEST_QPN, mask::RQ_PSN] {
            assert_eq!(self.modify(&mut attr, needed & !without), libc::EINVAL, "{without:#x}");
        }
        let local = QpAttr { ah_attr: AhAttr { is_global: 0, ..attr.ah_attr }, ..attr };
        assert_eq!(self.modify(&mut { local }, needed), libc::EINVAL, "an Ethernet has no LIDs");
        assert_eq!(self.modify(&mut attr, needed), 0);
        let mut attr = QpAttr {
            qp_state: qps::RTS,
            sq_psn: 7,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..QpAttr::default()
        };
        let needed = mask::STATE
            | mask::SQ_PSN
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::MAX_QP_RD_ATOMIC;
        assert_eq!(self.modify(&mut attr, needed), 0);
        // SAFETY: the queue pair is there.
        assert_eq!(unsafe { (*self.qp).state }, qps::RTS);
    }

    fn sge(&self, at: u64, length: u32) -> Sge {
        // SAFETY: the region is there.
        Sge { addr: self.page as u64 + at, length, lkey: unsafe { (*self.mr).lkey } }
    }

    fn receive(&self, wr_id: u64, sge: Sge) -> c_int {
        let mut sge = sge;
        let mut request = RecvWr { wr_id, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: the request is whole.
        unsafe { post::post_recv(self.qp, &mut request, &mut bad) }
    }

    fn request(&self, wr_id: u64, opcode: c_int, sge: &mut Sge) -> SendWr {
        let info = MwBindInfo { mr: ptr::null_mut(), addr: 0, length: 0, access: 0 };
        SendWr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: sge,
            num_sge: 1,
            opcode,
            send_flags: send_flags::SIGNALED,
            imm_data: 0,
            wr: Wr { rdma: WrRdma { remote_addr: 0, rkey: 0 } },
            xrc_srqn: 0,
            bind_mw: WrBind { mw: ptr::null_mut(), rkey: 0, info },
        }
    }

    fn post(&self, request: &mut SendWr) -> c_int {
        let mut bad = ptr::null_mut();
        // SAFETY: the request is whole.
        unsafe { post::post_send(self.qp, request, &mut bad) }
    }

    /// The next completion.
    fn completion(&self) -> Wc {
        let mut wc = Wc::default();
        loop {
            // SAFETY: room for one.
            match unsafe { cq::poll_cq(self.cq, 1, &mut wc) } {
                0 => {}
                1 => return wc,
                other => panic!("poll_cq: {other}"),
            }
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: inside the page, which no request uses at the moment.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.page.add(at), bytes.len()) };
    }

    fn read(&self, at: usize, length: usize) -> Vec<u8> {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.page.add(at), length).to_vec() }
    }

    fn remote(&self, at: u64) -> WrRdma {
        // SAFETY: the region is there.
        WrRdma { remote_addr: self.page as u64 + at, rkey: unsafe { (*self.mr).rkey } }
    }

    fn end(self) {
        // SAFETY: users before what they use.
        unsafe {
            assert_eq!(cq::destroy_cq(self.cq), libc::EBUSY, "a queue pair uses it");
            assert_eq!(qp::destroy_qp(self.qp), 0);
            assert_eq!(cq::destroy_cq(self.cq), 0);
            assert_eq!(memory::dereg_mr(self.mr), 0);
        }
    }
}

/// The turn of a test that takes asynchronous events: the contexts are of all tests, and another
/// test's event would be taken for its own.
fn turn_at_events() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The turn of a test that opens a context: others count clients meanwhile.
fn turn_at_contexts() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connected() -> (End, End) {
    let (a, b) = (End::new(0, qpt::RC, ptr::null_mut()), End::new(1, qpt::RC, ptr::null_mut()));
    a.init();
    b.init();
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

#[test]
fn a_send_arrives_with_its_immediate_data() {
    let (a, b) = connected();
    assert_eq!(b.receive(5, b.sge(64, 64)), 0);
    a.write(0, b"over verbs");
    let mut sge = a.sge(0, 10);
    let mut request = a.request(3, wr::SEND_WITH_IMM, &mut sge);
    request.imm_data = 0x0102_0304_u32.to_be();
    assert_eq!(a.post(&mut request), 0);
    let sent = a.completion();
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (3, 0, wc_opcode::SEND));
    let got = b.completion();
    assert_eq!((got.wr_id, got.status, got.opcode, got.byte_len), (5, 0, wc_opcode::RECV, 10));
    assert_eq!((got.wc_flags, u32::from_be(got.imm_data)), (wc_flags::WITH_IMM, 0x0102_0304));
    // SAFETY: the queue pair is there.
    assert_eq!(got.qp_num, unsafe { (*b.qp).qp_num });
    assert_eq!(b.read(64, 10), b"over verbs");
    a.end();
    b.end();
}

#[test]
fn a_poll_that_finds_nothing_steps_the_device_and_one_that_finds_something_does_not() {
    let (a, b) = connected();
    let mut wc = Wc::default();
    // SAFETY: the queue is there, and room for one.
    let poll = |wc: &mut Wc| unsafe { cq::poll_cq(a.cq, 1, wc) };
    let steps = || NOTED.with(|noted| noted.get().0);
    assert_eq!((poll(&mut wc), steps()), (0, 1));
    assert_eq!((poll(&mut wc), steps()), (0, 2));
    assert_eq!(b.receive(5, b.sge(64, 64)), 0);
    let mut sge = a.sge(0, 10);
    assert_eq!(a.post(&mut a.request(3, wr::SEND, &mut sge)), 0);
    // The peer has it after the device has it, so the next poll may find nothing yet.
    b.completion();
    let before = loop {
        let before = steps();
        if poll(&mut wc) == 1 {
            break before;
        }
    };
    assert_eq!(steps(), before);
    // SAFETY: the queue is there.
    assert_eq!(unsafe { cq::req_notify_cq(a.cq, 0) }, 0);
    assert_eq!(NOTED.with(|noted| noted.get().1), 1);
    a.end();
    b.end();
}

#[test]
fn writes_reads_and_atomics_reach_the_peers_memory() {
    let (a, b) = connected();
    a.write(0, b"written");
    let mut sge = a.sge(0, 7);
    let mut request = a.request(1, wr::RDMA_WRITE, &mut sge);
    request.wr.rdma = b.remote(100);
    assert_eq!(a.post(&mut request), 0);
    assert_eq!((a.completion().opcode, b.read(100, 7)), (wc_opcode::RDMA_WRITE, b"written".to_vec()));

    let mut sge = a.sge(200, 7);
    let mut request = a.request(2, wr::RDMA_READ, &mut sge);
    request.wr.rdma = b.remote(100);
    assert_eq!(a.post(&mut request), 0);
    assert_eq!((a.completion().opcode, a.read(200, 7)), (wc_opcode::RDMA_READ, b"written".to_vec()));

    assert_eq!(b.receive(9, b.sge(0, 0)), 0);
    let mut sge = a.sge(0, 7);
    let mut request = a.request(3, wr::RDMA_WRITE_WITH_IMM, &mut sge);
    request.wr.rdma = b.remote(300);
    request.imm_data = 5_u32.to_be();
    assert_eq!(a.post(&mut request), 0);
    assert_eq!(a.completion().status, 0);
    let got = b.completion();
    assert_eq!((got.opcode, got.byte_len), (wc_opcode::RECV_RDMA_WITH_IMM, 7));
    assert_eq!(u32::from_be(got.imm_data), 5);

    b.write(512, &40_u64.to_ne_bytes());
    let WrRdma { remote_addr, rkey } = b.remote(512);
    let mut sge = a.sge(400, 8);
    let mut request = a.request(4, wr::ATOMIC_FETCH_AND_ADD, &mut sge);
    request.wr.atomic = WrAtomic { remote_addr, compare_add: 2, swap: 0, rkey };
    assert_eq!(a.post(&mut request), 0);
    assert_eq!(a.completion().opcode, wc_opcode::FETCH_ADD);
    assert_eq!((a.read(400, 8), b.read(512, 8)), (40_u64.to_ne_bytes().into(), 42_u64.to_ne_bytes().into()));
    let mut request = a.request(5, wr::ATOMIC_CMP_AND_SWP, &mut sge);
    request.wr.atomic = WrAtomic { remote_addr, compare_add: 42, swap: 7, rkey };
    assert_eq!(a.post(&mut request), 0);
    assert_eq!(a.completion().opcode, wc_opcode::COMP_SWAP);
    assert_eq!(b.read(512, 8), 7_u64.to_ne_bytes());
    a.end();
    b.end();
}

#[test]
fn inline_bytes_are_the_programs_again_after_the_post() {
    let (a, b) = connected();
    for round in 0..40_u8 {
        assert_eq!(b.receive(u64::from(round), b.sge(0, 64)), 0);
        let mut bytes = [round; 48];
        let mut sge = Sge { addr: bytes.as_mut_ptr() as u64, length: 48, lkey: 0xdead };
        let mut request = a.request(0, wr::SEND, &mut sge);
        request.send_flags |= send_flags::INLINE;
        assert_eq!(a.post(&mut request), 0);
        bytes.fill(0xff);
        std::hint::black_box(&bytes);
        assert_eq!(a.completion().status, 0);
        assert_eq!((b.completion().byte_len, b.read(0, 48)), (48, vec![round; 48]));
    }
    let mut sge = Sge { addr: a.page as u64, length: 65, lkey: 0 };
    let mut request = a.request(0, wr::SEND, &mut sge);
    request.send_flags |= send_flags::INLINE;
    assert_eq!(a.post(&mut request), libc::EINVAL, "more than the queue pair was made for");
    a.end();
    b.end();
}

#[test]
fn a_chain_is_posted_up_to_the_first_bad_request() {
    let (a, b) = connected();
    let mut sge = a.sge(0, 8);
    let mut bad = a.request(2, 99, &mut sge);
    let mut good = a.request(1, wr::RDMA_WRITE, &mut sge);
    good.wr.rdma = b.remote(0);
    good.next = &mut bad;
    let mut found = ptr::null_mut();
    // SAFETY: the chain is whole.
    assert_eq!(unsafe { post::post_send(a.qp, &mut good, &mut found) }, libc::EINVAL);
    assert!(ptr::eq(found, &bad));
    assert_eq!(a.completion().wr_id, 1);
    let full: Vec<c_int> = (0..17).map(|_| b.receive(0, b.sge(0, 8))).collect();
    assert_eq!((&full[..16], full[16]), (&[0; 16][..], libc::ENOMEM));
    a.end();
    b.end();
}

#[test]
fn a_peer_without_the_right_gets_an_access_error_and_both_queue_pairs_fail() {
    let _turn = turn_at_events();
    let (a, b) = connected();
    let mut sge = a.sge(0, 8);
    let mut request = a.request(1, wr::RDMA_WRITE, &mut sge);
    request.wr.rdma = WrRdma { rkey: 0x1234_5678, ..b.remote(0) };
    assert_eq!(a.post(&mut request), 0);
    assert_eq!(a.completion().status, 10, "remote access error");
    let mut flushed = a.request(2, wr::RDMA_WRITE, &mut sge);
    flushed.wr.rdma = b.remote(0);
    assert_eq!(a.post(&mut flushed), 0);
    assert_eq!(a.completion().status, 5, "flushed");
    let mut event = AsyncEvent { element: 0, event_type: 0 };
    // SAFETY: the context is open; the event is acknowledged before its queue pair is destroyed.
    unsafe {
        assert_eq!(channel::get_async_event(b.side.context, &mut event), 0);
        assert_eq!((event.event_type, event.element), (event::QP_ACCESS_ERR, b.qp as usize));
        channel::ack_async_event(&mut event);
        let (mut attr, mut init) = (QpAttr::default(), std::mem::zeroed());
        assert_eq!(qp::query_qp(a.qp, &mut attr, mask::STATE, &mut init), 0);
        assert_eq!((attr.qp_state, attr.dest_qp_num), (qps::ERR, (*b.qp).qp_num));
        let name = CStr::from_ptr(words::wc_status_str(10));
        assert_eq!(name.to_str(), Ok("remote access error"));
    }
    a.end();
    b.end();
}

/// A queue pair for datagrams that is ready.
fn for_datagrams(n: usize, srq: *mut Srq) -> End {
    let end = End::new(n, qpt::UD, srq);
    let mut attr = QpAttr { qp_state: qps::INIT, port_num: 1, qkey: 0x1111_1111, ..QpAttr::default() };
    assert_eq!(end.modify(&mut attr, mask::STATE | mask::PKEY_INDEX | mask::PORT), libc::EINVAL);
    let needed = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY;
    assert_eq!(end.modify(&mut attr, needed), 0);
    attr.qp_state = qps::RTR;
    assert_eq!(end.modify(&mut attr, mask::STATE), 0);
    attr.qp_state = qps::RTS;
    assert_eq!(end.modify(&mut attr, mask::STATE), libc::EINVAL);
    assert_eq!(end.modify(&mut attr, mask::STATE | mask::SQ_PSN), 0);
    end
}

#[test]
fn datagrams_are_received_from_a_shared_queue() {
    let mut init =
        SrqInitAttr { srq_context: ptr::null_mut(), attr: SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 } };
    // SAFETY: the calls in C's order.
    unsafe {
        let shared = srq::create_srq(side(1).pd, &mut init);
        let (a, b, c) =
            (for_datagrams(0, ptr::null_mut()), for_datagrams(1, shared), for_datagrams(1, shared));
        let mut route =
            AhAttr { dgid: b.gid(), is_global: 1, hop_limit: 1, port_num: 1, ..AhAttr::default() };
        let to = ah::create_ah(a.side.pd, &mut route);
        for wr_id in 0..2 {
            let mut sge = b.sge(128 * wr_id, 128);
            let mut request = RecvWr { wr_id, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
            assert_eq!(post::post_srq_recv(shared, &mut request, &mut ptr::null_mut()), 0);
        }
        for (wr_id, end) in [(0, &c), (1, &b)] {
            let mut sge = a.sge(0, 8);
            let mut request = a.request(2, wr::SEND, &mut sge);
            request.wr.ud = WrUd { ah: to, remote_qpn: (*end.qp).qp_num, remote_qkey: 0x1111_1111 };
            assert_eq!(a.post(&mut request), 0);
            assert_eq!(a.completion().status, 0);
            let got = end.completion();
            assert_eq!((got.wr_id, got.status, got.byte_len), (wr_id, 0, 48));
        }
        assert_eq!(ah::destroy_ah(to), 0);
        for end in [a, b, c] {
            end.end();
        }
        assert_eq!(srq::destroy_srq(shared), 0);
    }
}

#[test]
fn datagrams_carry_the_way_back() {
    let (a, b) = (for_datagrams(0, ptr::null_mut()), for_datagrams(1, ptr::null_mut()));
    let mut route = AhAttr { dgid: b.gid(), is_global: 1, hop_limit: 1, port_num: 1, ..AhAttr::default() };
    // SAFETY: the domain and what follows are there.
    unsafe {
        let to = ah::create_ah(a.side.pd, &mut route);
        assert!(!to.is_null());
        let ends = [a.gid(), b.gid()].map(|gid| gid.map(u64::to_ne_bytes).concat());
        assert_eq!(MET.with(|met| met.take()).map(|met| met.map(Vec::from)), Some(ends), "they meet");
        assert_eq!(b.receive(1, b.sge(0, 128)), 0);
        a.write(0, b"datagram");
        let mut sge = a.sge(0, 8);
        let mut request = a.request(2, wr::SEND, &mut sge);
        request.wr.ud = WrUd { ah: to, remote_qpn: (*b.qp).qp_num, remote_qkey: 0x1111_1111 };
        assert_eq!(a.post(&mut request), 0);
        assert_eq!(a.completion().status, 0);
        let mut got = b.completion();
        assert_eq!((got.byte_len, got.src_qp, got.wc_flags), (48, (*a.qp).qp_num, wc_flags::GRH));
        assert_eq!(got.sl, 2, "the header in front is of IPv4");
        assert_eq!(b.read(40, 8), b"datagram");
        let back = ah::create_ah_from_wc(b.side.pd, &mut got, b.page.cast(), 1);
        assert!(!back.is_null(), "{}", std::io::Error::last_os_error());
        assert_eq!(a.receive(3, a.sge(0, 128)), 0);
        let mut sge = b.sge(40, 8);
        let mut request = b.request(4, wr::SEND, &mut sge);
        request.wr.ud = WrUd { ah: back, remote_qpn: got.src_qp, remote_qkey: 0x1111_1111 };
        assert_eq!(b.post(&mut request), 0);
        assert_eq!((b.completion().status, a.completion().byte_len), (0, 48));
        assert_eq!((ah::destroy_ah(to), ah::destroy_ah(back)), (0, 0));
    }
    a.end();
    b.end();
}

#[test]
fn a_shared_receive_queue_serves_its_queue_pairs_and_tells_of_its_limit() {
    let _turn = turn_at_events();
    let mut init =
        SrqInitAttr { srq_context: ptr::null_mut(), attr: SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 } };
    // SAFETY: the calls in C's order.
    unsafe {
        let shared = srq::create_srq(side(1).pd, &mut init);
        assert!(!shared.is_null());
        let (a, b) = (End::new(0, qpt::RC, ptr::null_mut()), End::new(1, qpt::RC, shared));
        a.init();
        b.init();
        a.connect(&b);
        b.connect(&a);
        for wr_id in 0..3 {
            let mut sge = b.sge(64 * wr_id, 64);
            let mut request = RecvWr { wr_id, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
            assert_eq!(post::post_srq_recv(shared, &mut request, &mut ptr::null_mut()), 0);
        }
        assert_eq!(b.receive(0, b.sge(0, 1)), libc::EINVAL, "the queue pair has no receives of its own");
        let mut attr = SrqAttr { srq_limit: 3, ..SrqAttr::default() };
        assert_eq!(srq::modify_srq(shared, &mut attr, 2), 0);
        let mut sge = a.sge(0, 4);
        assert_eq!(a.post(&mut a.request(0, wr::SEND, &mut sge)), 0);
        assert_eq!((a.completion().status, b.completion().wr_id), (0, 0));
        let mut event = AsyncEvent { element: 0, event_type: 0 };
        assert_eq!(channel::get_async_event(b.side.context, &mut event), 0);
        assert_eq!((event.event_type, event.element), (event::SRQ_LIMIT_REACHED, shared as usize));
        channel::ack_async_event(&mut event);
        assert_eq!(srq::query_srq(shared, &mut attr), 0);
        assert_eq!((attr.max_wr, attr.srq_limit), (8, 0), "the limit is disarmed");
        assert_eq!(srq::destroy_srq(shared), libc::EBUSY);
        a.end();
        b.end();
        assert_eq!(srq::destroy_srq(shared), 0);
    }
}

#[test]
fn a_channel_tells_of_an_armed_queue_once_and_its_end_waits_for_acknowledgements() {
    // SAFETY: the calls in C's order.
    unsafe {
        let events = channel::create_comp_channel(side(0).context);
        let marker = 0x77 as *mut std::ffi::c_void;
        let armed = cq::create_cq(side(0).context, 8, marker, events, 0);
        let end = End::new(0, qpt::RC, ptr::null_mut());
        let mut init = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: armed,
            recv_cq: armed,
            srq: ptr::null_mut(),
            cap: cap(),
            qp_type: qpt::RC,
            sq_sig_all: 1,
        };
        let a = End {
            qp: qp::create_qp(end.side.pd, &mut init),
            cq: armed,
            ..End::new(0, qpt::RC, ptr::null_mut())
        };
        let b = End::new(1, qpt::RC, ptr::null_mut());
        a.init();
        b.init();
        a.connect(&b);
        b.connect(&a);
        let fd = BorrowedFd::borrow_raw((*events).fd);
        let flags = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(fd, flags).expect("as programs do");
        let (mut of, mut context) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(channel::get_cq_event(events, &mut of, &mut context), -1);
        assert_eq!(std::io::Error::last_os_error().kind(), std::io::ErrorKind::WouldBlock);
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty()).expect("blocking again");
        assert_eq!(cq::req_notify_cq(armed, 0), 0);
        let mut sge = a.sge(0, 4);
        let mut request = a.request(1, wr::RDMA_WRITE, &mut sge);
        request.wr.rdma = b.remote(0);
        assert_eq!(a.post(&mut request), 0);
        assert_eq!(channel::get_cq_event(events, &mut of, &mut context), 0);
        assert_eq!((of, context), (armed, marker));
        assert_eq!(a.completion().wr_id, 1);
        assert_eq!(channel::destroy_comp_channel(events), libc::EBUSY, "a completion queue has it");
        assert_eq!(qp::destroy_qp(a.qp), 0);
        // The end waits for the acknowledgement, which another thread makes.
        let address = armed as usize;
        let acknowledger = std::thread::spawn(move || channel::ack_cq_events(address as *mut Cq, 1));
        assert_eq!(cq::destroy_cq(armed), 0);
        acknowledger.join().expect("no panic");
        assert_eq!(channel::destroy_comp_channel(events), 0);
        end.end();
        b.end();
    }
}

#[test]
fn a_window_opens_a_part_of_a_region_until_it_is_bound_anew() {
    let _turn = turn_at_events();
    let (a, b) = connected();
    // SAFETY: the calls in C's order.
    unsafe {
        let flags = ALL | access::MW_BIND as c_int;
        let region = memory::reg_mr(b.side.pd, b.page.cast(), 4096, flags);
        assert!(memory::alloc_mw(b.side.pd, 3).is_null(), "there are two types");
        let window = memory::alloc_mw(b.side.pd, 1);
        let bind = |length: u64| {
            let info =
                MwBindInfo { mr: region, addr: b.page as u64 + 64, length, access: access::REMOTE_WRITE };
            let mut with = MwBind { wr_id: 8, send_flags: send_flags::SIGNALED, info };
            assert_eq!(post::bind_mw(b.qp, window, &mut with), 0);
            let done = b.completion();
            assert_eq!((done.wr_id, done.status, done.opcode), (8, 0, wc_opcode::BIND_MW));
            (*window).rkey
        };
        let rkey = bind(64);
        let mut sge = a.sge(0, 4);
        let mut request = a.request(1, wr::RDMA_WRITE, &mut sge);
        request.wr.rdma = WrRdma { rkey, ..b.remote(64) };
        assert_eq!(a.post(&mut request), 0);
        assert_eq!(a.completion().status, 0);
        assert_eq!(memory::dereg_mr(region), libc::EBUSY, "a window is bound to it");
        let (key, to) = ((*region).lkey, ptr::null_mut());
        // Another range with other rights: it fails, and the region is as before.
        let failed = memory::rereg_mr(region, 1 | 4, to, b.page.cast(), 64, flags);
        assert_eq!((failed, (*region).lkey, (*region).length), (-1, key, 4096));
        assert_eq!(a.post(&mut request), 0);
        assert_eq!(a.completion().status, 0, "the window is still there");
        assert_ne!(bind(0), rkey);
        assert_eq!(a.post(&mut request), 0);
        assert_eq!(a.completion().status, 10, "the window is closed");
        assert_eq!(memory::dealloc_mw(window), 0);
        assert_eq!(memory::rereg_mr(region, 1 | 4, to, b.page.cast(), 64, flags), 0);
        assert_eq!((*region).length, 64);
        assert_eq!(memory::dereg_mr(region), 0);
        let mut event = AsyncEvent { element: 0, event_type: 0 };
        assert_eq!(channel::get_async_event(b.side.context, &mut event), 0);
        channel::ack_async_event(&mut event);
    }
    a.end();
    b.end();
}

#[test]
fn queues_of_one_have_room_for_requests_whose_completions_nobody_has_taken() {
    let small = |n| {
        // SAFETY: the context is open.
        let make_cq = |context| unsafe { cq::create_cq(context, 1, ptr::null_mut(), ptr::null_mut(), 0) };
        End::of(n, qpt::RC, ptr::null_mut(), make_cq, |pd, init| {
            init.cap.max_send_wr = 1;
            // SAFETY: the domain is there.
            let qp = unsafe { qp::create_qp(pd, init) };
            assert_eq!(init.cap.max_send_wr, 16, "the program is told so");
            qp
        })
    };
    let (a, b) = (small(0), small(1));
    a.init();
    b.init();
    a.connect(&b);
    b.connect(&a);
    let mut sge = a.sge(0, 8);
    let mut request = a.request(0, wr::RDMA_WRITE, &mut sge);
    request.wr.rdma = b.remote(0);
    for wr_id in 0..16 {
        request.wr_id = wr_id;
        assert_eq!(a.post(&mut request), 0, "{wr_id}");
    }
    assert_eq!(a.post(&mut request), libc::ENOMEM);
    for wr_id in 0..16 {
        let wc = a.completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, 0));
    }
    a.end();
    b.end();
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let end = End::new(0, qpt::RC, ptr::null_mut());
    let nothing = ptr::null_mut();
    // SAFETY: the calls in C's order.
    unsafe {
        let (context, pd) = (end.side.context, end.side.pd);
        assert!(cq::create_cq(context, 0, nothing, ptr::null_mut(), 0).is_null());
        assert!(cq::create_cq(context, 8, nothing, ptr::null_mut(), 1).is_null(), "there is one vector");
        let flags = access::REMOTE_WRITE as c_int;
        assert!(memory::reg_mr(pd, end.page.cast(), 8, flags).is_null(), "remote without local writes");
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        let mut attr = QpAttr { qp_state: qps::RTS, ..QpAttr::default() };
        assert_eq!(end.modify(&mut attr, mask::STATE), libc::EINVAL, "not from RESET");
        attr.cur_qp_state = qps::INIT;
        attr.qp_state = qps::ERR;
        assert_eq!(end.modify(&mut attr, mask::STATE | mask::CUR_STATE), libc::EINVAL);
        assert_eq!(end.modify(&mut attr, mask::ALT_PATH), libc::EOPNOTSUPP);
        assert_eq!(end.modify(&mut attr, 1 << 24), libc::EINVAL);
        for state in [qps::SQE, 7, -1] {
            attr.qp_state = state;
            assert_eq!(end.modify(&mut attr, mask::STATE), libc::EINVAL);
        }
        assert_eq!((*end.qp).state, qps::RESET);
        let mut sge = end.sge(0, 4);
        assert_eq!(end.post(&mut end.request(0, wr::SEND, &mut sge)), libc::EINVAL, "RESET takes no posts");
        let mut port = PortAttr::default();
        assert_eq!(device::query_port(context, 2, &mut port), libc::EINVAL);
        assert_eq!(device::query_port(context, 1, &mut port), 0);
        assert_eq!((port.state, port.link_layer, port.pkey_tbl_len), (4, 2, 1));
        let mut gid = [0; 16];
        assert_eq!(device::query_gid(context, 1, 99, &mut gid), -1);
        let mut entries = [GidEntry::default(); 16];
        let size = size_of::<GidEntry>();
        let found = device::query_gid_table(context, entries.as_mut_ptr().cast(), 16, 0, size);
        assert_eq!((found, entries[0].gid_type), (1, 2));
        assert_eq!(entries[0].ndev_ifindex, 40);
        let mut all = std::mem::zeroed();
        assert_eq!(device::query_device(context, &mut all), 0);
        assert_eq!((all.phys_port_cnt, all.max_mcast_grp, all.atomic_cap), (1, 256, 2));
        assert_eq!(memory::dealloc_pd(pd), libc::EBUSY);
    }
    end.end();
}

#[test]
fn a_context_that_is_closed_takes_its_objects_along() {
    let _turn = turn_at_contexts();
    // SAFETY: a context of its own, of which nothing is used afterwards.
    unsafe {
        let mut count = 0;
        let _ = side(0);
        let list = device::get_device_list(&mut count);
        let context = device::open_device(*list);
        device::free_device_list(list);
        // No other test makes clients and domains meanwhile.
        let counted = || {
            let counts = side(0).agent.counts();
            (counts.clients, counts.pds)
        };
        let (clients, pds) = counted();
        let pd = memory::alloc_pd(context);
        let page = memory_of(4096);
        let region = memory::reg_mr(pd, page.cast(), 4096, ALL);
        assert!(!region.is_null());
        assert_eq!(device::close_device(context), 0);
        assert_eq!(counted(), (clients - 1, pds));
    }
}
