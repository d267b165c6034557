//! Memory windows of type 2: bound and invalidated by requests, with keys of which the program
//! chooses the last byte.

use super::*;

/// A window of type 2 on the second of two connected ends, and a region that windows may be bound
/// to.
struct Scene {
    a: End,
    b: End,
    window: *mut Mw,
    region: *mut Mr,
}

const FIRST: u64 = 64;
const LENGTH: u64 = 64;
/// `IBV_WC_MW_BIND_ERR` and `IBV_WC_REM_ACCESS_ERR`.
const BIND_ERROR: c_int = 6;
const ACCESS_ERROR: c_int = 10;

fn bindable(of: &End) -> *mut Mr {
    let flags = ALL | access::MW_BIND as c_int;
    // SAFETY: the page stays.
    unsafe { memory::reg_mr(of.side.pd, of.page.cast(), 4096, flags) }
}

fn scene() -> Scene {
    let (a, b) = connected();
    // SAFETY: the domain is there.
    let window = unsafe { memory::alloc_mw(b.side.pd, 2) };
    assert!(!window.is_null());
    let region = bindable(&b);
    Scene { a, b, window, region }
}

/// `ibv_inc_rkey`, as programs have it from the header.
fn next(rkey: u32) -> u32 {
    rkey & !0xff | (rkey + 1) & 0xff
}

impl Scene {
    fn first_key(&self) -> u32 {
        // SAFETY: the window is there.
        unsafe { (*self.window).rkey }
    }

    fn bind_request(&self, by: &End, region: *mut Mr, rkey: u32) -> SendWr {
        let mut request = by.request(8, wr::BIND_MW, &mut Sge::default());
        (request.num_sge, request.sg_list) = (0, ptr::null_mut());
        let access = access::REMOTE_WRITE | access::REMOTE_READ;
        let info = MwBindInfo { mr: region, addr: self.b.page as u64 + FIRST, length: LENGTH, access };
        request.bind_mw = WrBind { mw: self.window, rkey, info };
        request
    }

    /// Binds the window, and returns the completion's status.
    fn bind(&self, rkey: u32) -> c_int {
        assert_eq!(self.b.post(&mut self.bind_request(&self.b, self.region, rkey)), 0);
        let done = self.b.completion();
        assert!(done.status != 0 || (done.wr_id, done.opcode) == (8, wc_opcode::BIND_MW));
        done.status
    }

    /// Writes through the window from an end, and returns the completion's status.
    fn write(&self, from: &End, rkey: u32, at: u64) -> c_int {
        let mut sge = from.sge(0, 4);
        let mut request = from.request(1, wr::RDMA_WRITE, &mut sge);
        request.wr.rdma = WrRdma { rkey, ..self.b.remote(at) };
        assert_eq!(from.post(&mut request), 0);
        from.completion().status
    }

    fn invalidate(&self, by: &End, rkey: u32) -> c_int {
        let mut request = by.request(9, wr::LOCAL_INV, &mut Sge::default());
        (request.num_sge, request.sg_list, request.imm_data) = (0, ptr::null_mut(), rkey);
        assert_eq!(by.post(&mut request), 0);
        by.completion().status
    }

    fn end(self) {
        // SAFETY: users before what they use.
        unsafe {
            assert_eq!(memory::dealloc_mw(self.window), 0);
            assert_eq!(memory::dereg_mr(self.region), 0);
        }
        self.a.end();
        self.b.end();
    }
}

#[test]
fn the_program_chooses_the_last_byte_of_each_key_of_a_window_of_type_2() {
    let scene = scene();
    let mut rkey = scene.first_key();
    for _ in 0..3 {
        rkey = next(rkey);
        assert_eq!(scene.bind(rkey), 0);
        assert_eq!(scene.write(&scene.a, rkey, FIRST), 0);
        // SAFETY: the region is there.
        assert_eq!(unsafe { memory::dereg_mr(scene.region) }, libc::EBUSY, "a window is bound to it");
        assert_eq!(scene.invalidate(&scene.b, rkey), 0);
    }
    // The other bytes are the window's, whatever the program writes there.
    assert_eq!(scene.bind(!rkey & !0xff | 0x77), 0);
    assert_eq!(scene.write(&scene.a, rkey & !0xff | 0x77, FIRST), 0);
    scene.end();
}

#[test]
fn a_peers_send_invalidates_a_window_of_type_2_and_names_its_key() {
    let scene = scene();
    let rkey = next(scene.first_key());
    assert_eq!(scene.bind(rkey), 0);
    assert_eq!(scene.b.receive(5, scene.b.sge(1024, 64)), 0);
    let mut sge = scene.a.sge(0, 4);
    let mut request = scene.a.request(1, wr::SEND_WITH_INV, &mut sge);
    request.imm_data = rkey;
    assert_eq!(scene.a.post(&mut request), 0);
    assert_eq!(scene.a.completion().status, 0);
    let got = scene.b.completion();
    assert_eq!((got.wr_id, got.status, got.wc_flags, got.imm_data), (5, 0, wc_flags::WITH_INV, rkey));
    assert_eq!(scene.write(&scene.a, rkey, FIRST), ACCESS_ERROR);
    scene.end();
}

/// What no program may do with a window of type 2 fails: each on queue pairs of its own, since an
/// error ends them.
#[test]
fn wrong_uses_of_a_window_of_type_2_fail_and_reach_no_memory() {
    type Wrong = (&'static str, c_int, fn(&Scene, u32) -> c_int);
    let wrong: [Wrong; 8] = [
        ("a stale key", ACCESS_ERROR, |scene, rkey| {
            assert_eq!(scene.invalidate(&scene.b, rkey), 0);
            assert_eq!(scene.bind(next(rkey)), 0);
            scene.write(&scene.a, rkey, FIRST)
        }),
        ("bytes behind the window", ACCESS_ERROR, |scene, rkey| {
            scene.write(&scene.a, rkey, FIRST + LENGTH - 2)
        }),
        ("another queue pair", ACCESS_ERROR, |scene, rkey| {
            let (a, b) = connected();
            let status = scene.write(&a, rkey, FIRST);
            assert_eq!(scene.write(&scene.a, rkey, FIRST), 0, "its own still may");
            a.end();
            b.end();
            status
        }),
        ("bound twice", BIND_ERROR, |scene, rkey| scene.bind(next(rkey))),
        ("a region without the right to bind", BIND_ERROR, |scene, rkey| {
            assert_eq!(scene.invalidate(&scene.b, rkey), 0);
            assert_eq!(scene.b.post(&mut scene.bind_request(&scene.b, scene.b.mr, next(rkey))), 0);
            scene.b.completion().status
        }),
        ("no length", BIND_ERROR, |scene, rkey| {
            assert_eq!(scene.invalidate(&scene.b, rkey), 0);
            let mut request = scene.bind_request(&scene.b, scene.region, next(rkey));
            request.bind_mw.info.length = 0;
            assert_eq!(scene.b.post(&mut request), 0);
            scene.b.completion().status
        }),
        ("a stale key is invalidated", BIND_ERROR, |scene, rkey| {
            assert_eq!(scene.invalidate(&scene.b, rkey), 0);
            assert_eq!(scene.bind(next(rkey)), 0);
            scene.invalidate(&scene.b, rkey)
        }),
        ("another queue pair invalidates it", BIND_ERROR, |scene, rkey| {
            let (a, b) = connected();
            let status = scene.invalidate(&b, rkey);
            assert_eq!(scene.write(&scene.a, rkey, FIRST), 0, "it is still bound");
            a.end();
            b.end();
            status
        }),
    ];
    for (what, expected, make) in wrong {
        let scene = scene();
        let rkey = next(scene.first_key());
        assert_eq!(scene.bind(rkey), 0);
        assert_eq!(make(&scene, rkey), expected, "{what}");
        scene.end();
    }
}

#[test]
fn binds_that_make_no_sense_are_not_posted() {
    let scene = scene();
    // SAFETY: the calls in C's order.
    unsafe {
        let info = MwBindInfo { mr: scene.region, addr: scene.b.page as u64, length: 64, access: 0 };
        let mut with = MwBind { wr_id: 8, send_flags: 0, info };
        assert_eq!(post::bind_mw(scene.b.qp, scene.window, &mut with), libc::EINVAL, "of type 1 only");
        let wide = memory::alloc_mw(scene.b.side.pd, 1);
        let mut request = scene.bind_request(&scene.b, scene.region, scene.first_key());
        request.bind_mw.mw = wide;
        assert_eq!(scene.b.post(&mut request), libc::EINVAL, "of type 2 only");
        assert_eq!(memory::dealloc_mw(wide), 0);
        let mut request = scene.bind_request(&scene.b, ptr::null_mut(), scene.first_key());
        assert_eq!(scene.b.post(&mut request), libc::EINVAL, "no region");
        let mut request = scene.bind_request(&scene.b, scene.region, scene.first_key());
        request.bind_mw.info.access = access::MW_BIND;
        assert_eq!(scene.b.post(&mut request), libc::EINVAL, "a window gives peers rights to its bytes");
        let mut all: DeviceAttr = std::mem::zeroed();
        assert_eq!(device::query_device(scene.b.side.context, &mut all), 0);
        let windows = device_cap::MEM_WINDOW | device_cap::MEM_WINDOW_TYPE_2B;
        assert_eq!(all.device_cap_flags & windows, windows);
    }
    assert_eq!(scene.write(&scene.a, scene.first_key(), FIRST), ACCESS_ERROR, "it is not bound");
    scene.end();
}
