//! A child of a fork: calls on its parent's objects fail, whatever locks other threads of the
//! parent held, and the parent goes on.

use super::extended::extended;
use super::verbs::cm;
use super::*;

/// How a child ended: the status of [`libc::waitpid`].
fn wait(child: libc::pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

/// Runs `calls` in a child, which names the first call that does not fail as it should.
fn in_child(calls: impl FnOnce() -> Result<(), u8>) {
    // SAFETY: the child makes the calls and ends.
    match unsafe { libc::fork() } {
        0 => {
            verbs::forget();
            // A call that waits ends the child, and so the test.
            // SAFETY: no handler is set.
            unsafe { libc::alarm(20) };
            let number = calls().err().unwrap_or(0);
            // SAFETY: nothing of the parent's is to run.
            unsafe { libc::_exit(number.into()) }
        }
        child => assert_eq!(wait(child), 0, "a signal, or 256 times the number of the call"),
    }
}

fn expect(number: u8, is: bool) -> Result<(), u8> {
    if is { Ok(()) } else { Err(number) }
}

fn failed<T>(pointer: *mut T) -> bool {
    pointer.is_null() && std::io::Error::last_os_error().raw_os_error() == Some(libc::EIO)
}

#[test]
fn a_childs_calls_on_its_parents_objects_fail_and_the_parent_goes_on() {
    let (a, b) = connected();
    let (context, pd, mr) = (a.side.context, a.side.pd, a.mr);
    // SAFETY: the calls in C's order.
    let (events, connections, id) = unsafe {
        let events = channel::create_comp_channel(context);
        let connections = cm::channel::create_event_channel();
        let mut id = ptr::null_mut();
        assert_eq!(cm::identifier::create_id(connections, &mut id, ptr::null_mut(), cm::abi::ps::TCP), 0);
        (events, connections, id)
    };
    // Posts and polls that are under way: in the child nobody ends them.
    let (c, d) = extended();
    assert_eq!(d.receive(1, d.sge(0, 8)), 0);
    c.start();
    c.add_send(1, 0, 1);
    assert_eq!(c.complete(), 0);
    d.poll();
    c.start();
    let mut sge = a.sge(0, 8);
    let mut request = a.request(1, wr::SEND, &mut sge);
    let (mut attr, mut init) = (
        QpAttr::default(),
        QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: a.cq,
            recv_cq: a.cq,
            srq: ptr::null_mut(),
            cap: cap(),
            qp_type: qpt::RC,
            sq_sig_all: 0,
        },
    );
    let mut wc = Wc::default();
    // SAFETY: the objects are there, in the child too.
    in_child(|| unsafe {
        expect(1, a.post(&mut request) == libc::EIO)?;
        expect(2, a.receive(1, a.sge(0, 8)) == libc::EIO)?;
        expect(3, cq::poll_cq(a.cq, 1, &mut wc) == -1)?;
        expect(4, cq::req_notify_cq(a.cq, 0) == libc::EIO)?;
        expect(5, qp::modify_qp(a.qp, &mut attr, 0) == libc::EIO)?;
        expect(6, qp::query_qp(a.qp, &mut attr, 0, &mut init) == libc::EIO)?;
        expect(7, failed(qp::create_qp(pd, &mut init)))?;
        expect(8, failed(cq::create_cq(context, 8, ptr::null_mut(), ptr::null_mut(), 0)))?;
        expect(9, failed(memory::alloc_pd(context)))?;
        expect(10, failed(memory::reg_mr(pd, a.page.cast(), 64, ALL)))?;
        expect(11, qp::destroy_qp(a.qp) == libc::EIO)?;
        expect(12, cq::destroy_cq(a.cq) == libc::EIO)?;
        expect(13, memory::dereg_mr(mr) == libc::EIO)?;
        expect(14, memory::dealloc_pd(pd) == libc::EIO)?;
        let (mut cq, mut cq_context) = (ptr::null_mut(), ptr::null_mut());
        expect(15, channel::get_cq_event(events, &mut cq, &mut cq_context) == -1)?;
        let mut event = std::mem::zeroed();
        expect(16, channel::get_async_event(context, &mut event) == -1)?;
        let mut event = ptr::null_mut();
        expect(17, cm::channel::get_cm_event(connections, &mut event) == -1)?;
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        expect(18, cm::identifier::bind_addr(id, ptr::from_mut(&mut address).cast()) == -1)?;
        expect(19, cm::connection::listen(id, 1) == -1)?;
        expect(20, cm::identifier::destroy_id(id) == -1)?;
        expect(21, d.start_poll() == libc::EIO)?;
        c.start();
        c.add_send(2, 0, 1);
        expect(22, c.complete() == libc::EIO)?;
        expect(23, device::close_device(context) == libc::EIO)
    });
    d.end_poll();
    c.add_send(2, 0, 1);
    assert_eq!(d.receive(2, d.sge(0, 8)), 0);
    assert_eq!(c.complete(), 0);
    assert_eq!([(); 2].map(|()| c.completion().wr_id), [1, 2]);
    // The parent's queue pairs have what they had.
    assert_eq!(b.receive(5, b.sge(64, 64)), 0);
    assert_eq!(a.post(&mut request), 0);
    assert_eq!((a.completion().wr_id, b.completion().wr_id), (1, 5));
    // SAFETY: users before what they use.
    unsafe {
        assert_eq!(cm::identifier::destroy_id(id), 0);
        cm::channel::destroy_event_channel(connections);
        assert_eq!(channel::destroy_comp_channel(events), 0);
    }
    for end in [a, b, c, d] {
        end.end();
    }
}
