//! Multicast groups: queue pairs of datagrams are attached to them.

use super::*;

const QKEY: u32 = 0x77;
const GROUP_QPN: u32 = 0xff_ffff;
/// 239.1.2.3, mapped into IPv6.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];

fn datagrams(n: usize) -> End {
    let end = End::new(n, qpt::UD, ptr::null_mut());
    let mut attr = QpAttr { qp_state: qps::INIT, port_num: 1, qkey: QKEY, ..QpAttr::default() };
    let needed = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY;
    assert_eq!(end.modify(&mut attr, needed), 0);
    attr.qp_state = qps::RTR;
    assert_eq!(end.modify(&mut attr, mask::STATE), 0);
    attr.qp_state = qps::RTS;
    assert_eq!(end.modify(&mut attr, mask::STATE | mask::SQ_PSN), 0);
    end
}

fn attach(to: &End, gid: &[u8; 16]) -> c_int {
    // SAFETY: the queue pair is there.
    unsafe { qp::attach_mcast(to.qp, gid, 0) }
}

fn detach(from: &End, gid: &[u8; 16]) -> c_int {
    // SAFETY: as above.
    unsafe { qp::detach_mcast(from.qp, gid, 0) }
}

#[test]
fn attached_queue_pairs_get_what_is_sent_to_the_group_and_the_sender_does_not() {
    let (a, own, far) = (datagrams(0), datagrams(0), datagrams(1));
    for end in [&a, &own, &far] {
        assert_eq!(attach(end, &GROUP), 0);
        assert_eq!(attach(end, &GROUP), 0, "twice is as good as once");
        assert_eq!(end.receive(5, end.sge(64, 1064)), 0);
    }
    a.write(0, b"to all");
    let mut attr = AhAttr { is_global: 1, port_num: 1, hop_limit: 1, ..AhAttr::default() };
    let (first, second) = GROUP.split_at(8);
    attr.dgid = [first, second].map(|half| u64::from_ne_bytes(half.try_into().expect("eight bytes")));
    // SAFETY: the calls in C's order.
    unsafe {
        let to = ah::create_ah(a.side.pd, &mut attr);
        assert!(!to.is_null());
        let mut sge = a.sge(0, 6);
        let mut request = a.request(1, wr::SEND, &mut sge);
        request.wr.ud = WrUd { ah: to, remote_qpn: GROUP_QPN, remote_qkey: QKEY };
        assert_eq!(a.post(&mut request), 0);
        let sent = a.completion();
        assert_eq!((sent.wr_id, sent.status), (1, 0));
        for end in [&own, &far] {
            let got = end.completion();
            assert_eq!((got.wr_id, got.status, got.byte_len, got.src_qp), (5, 0, 46, (*a.qp).qp_num));
            assert_eq!(end.read(104, 6), b"to all");
        }
        let mut wc = Wc::default();
        assert_eq!(cq::poll_cq(a.cq, 1, &mut wc), 0, "no copy for the sender");
        assert_eq!(ah::destroy_ah(to), 0);
        for end in [a, own, far] {
            assert_eq!(qp::destroy_qp(end.qp), libc::EBUSY, "it is attached");
            assert_eq!(detach(&end, &GROUP), 0);
            assert_eq!(detach(&end, &GROUP), libc::EINVAL, "it is not attached");
            end.end();
        }
    }
}

#[test]
fn what_is_no_group_or_takes_no_datagrams_is_refused() {
    let (end, (a, b)) = (datagrams(0), connected());
    let mut address = GROUP;
    address[12] = 10;
    assert_eq!(attach(&end, &address), libc::EINVAL);
    assert_eq!(attach(&a, &GROUP), libc::EINVAL);
    // SAFETY: zeros are numbers.
    let mut all: DeviceAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open.
    assert_eq!(unsafe { device::query_device(end.side.context, &mut all) }, 0);
    let limits = (all.max_mcast_grp, all.max_mcast_qp_attach, all.max_total_mcast_qp_attach);
    assert_eq!(limits, (256, 64, 256 * 64));
    for end in [end, a, b] {
        end.end();
    }
}
