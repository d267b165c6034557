//! Threads that destroy objects while other threads poll them, or post to them.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Runs `calls` in another thread until they say that the object is gone, and `end` as soon as some
/// calls were made.
fn meanwhile(calls: impl Fn() -> bool + Sync, end: impl FnOnce()) {
    let made = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            while !calls() {
                made.fetch_add(1, Ordering::Release);
            }
        });
        while made.load(Ordering::Acquire) < 100 {
            assert!(!thread.is_finished(), "the object was gone before its end");
            std::thread::yield_now();
        }
        end();
        // What was freed is another's now.
        let others: Vec<Vec<u8>> = (0..2000).map(|n| vec![0xaa; n]).collect();
        std::hint::black_box(&others);
    });
}

/// A poll as C's header makes it; whether the queue is gone.
///
/// # Safety
///
/// The queue is there, or has been until a moment ago.
unsafe fn poll_fails(of: *mut Cq) -> bool {
    // SAFETY: the caller's; the table has this function there.
    unsafe {
        let poll = (*(*of).context).ops[11];
        let poll: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int = std::mem::transmute(poll);
        poll(of, 1, &mut Wc::default()) == -1
    }
}

#[test]
fn a_thread_that_polls_a_queue_finds_that_another_has_destroyed_it() {
    for _ in 0..20 {
        // SAFETY: the context is open; the thread polls the queue until that fails.
        unsafe {
            let cq = cq::create_cq(side(0).context, 8, ptr::null_mut(), ptr::null_mut(), 0) as usize;
            meanwhile(|| poll_fails(cq as *mut Cq), || assert_eq!(cq::destroy_cq(cq as *mut Cq), 0));
        }
    }
}

#[test]
fn a_thread_that_posts_finds_that_another_has_destroyed_the_queue_pair() {
    for inline in [0, send_flags::INLINE] {
        let (a, b) = connected();
        let (qp, remote) = (a.qp as usize, b.remote(0));
        let posts = || {
            let mut sge = a.sge(0, 8);
            let mut request = a.request(1, wr::RDMA_WRITE, &mut sge);
            request.wr.rdma = remote;
            request.send_flags |= inline;
            let mut bad = ptr::null_mut();
            // SAFETY: the thread posts until that fails; both queues are there.
            let posted = unsafe { post::post_send(qp as *mut Qp, &mut request, &mut bad) };
            // SAFETY: as above.
            unsafe { cq::poll_cq(a.cq, 1, &mut Wc::default()) };
            assert!([0, libc::ENOMEM, libc::EIO].contains(&posted), "{posted}");
            posted == libc::EIO
        };
        // SAFETY: as above.
        meanwhile(posts, || assert_eq!(unsafe { qp::destroy_qp(qp as *mut Qp) }, 0));
        // SAFETY: users before what they use.
        unsafe {
            assert_eq!(cq::destroy_cq(a.cq), 0);
            assert_eq!(memory::dereg_mr(a.mr), 0);
        }
        b.end();
    }
}

#[test]
fn a_thread_that_polls_finds_that_another_has_closed_the_context() {
    let _turn = turn_at_contexts();
    let mut count = 0;
    let _ = side(0);
    // SAFETY: a context of its own; the thread polls until that fails.
    unsafe {
        let list = device::get_device_list(&mut count);
        let context = device::open_device(*list);
        device::free_device_list(list);
        let cq = cq::create_cq(context, 8, ptr::null_mut(), ptr::null_mut(), 0) as usize;
        let address = context as usize;
        meanwhile(
            || poll_fails(cq as *mut Cq),
            || assert_eq!(device::close_device(address as *mut abi::Context), 0),
        );
        let mut event = AsyncEvent { element: 0, event_type: 0 };
        assert_eq!(channel::get_async_event(context, &mut event), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
    }
}
