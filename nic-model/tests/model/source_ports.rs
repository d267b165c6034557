//! The UDP ports from which packets leave: routers choose the path of a packet by them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use nic_abi::cqe::Status;
use nic_abi::wqe::Opcode;
use nic_model::testing::{Qp, QpSpec, Rig, Through, cable, rdma, segment, status};

use crate::queues::{datagram, send_datagram};

const QKEY: u32 = 5;

/// Two NICs, and the source ports of the RoCE packets that have crossed the cable between them.
fn rig() -> (Rig, Rc<RefCell<Vec<u16>>>) {
    let ports = Rc::<RefCell<Vec<u16>>>::default();
    let wires = cable().map(|end| {
        let ports = ports.clone();
        Through::new(end, move |end, frame| {
            if frame[12..14] == [8, 0] && frame[36..38] == roce::UDP_PORT.to_be_bytes() {
                ports.borrow_mut().push(u16::from_be_bytes([frame[34], frame[35]]));
            }
            end.put(frame);
        })
    });
    (Rig::wired(wires, 1500), ports)
}

#[test]
fn connections_send_from_different_ports() {
    let (mut rig, ports) = rig();
    let (from, _) = rig.region(0, 64);
    let (to, _) = rig.region(1, 64);
    let write = |rig: &mut Rig, a: &mut Qp| {
        ports.borrow_mut().clear();
        rig.post(a, rdma(Opcode::Write, 1, to, 0), &[segment(from, 0, 64)]);
        assert_eq!(status(&rig.sent(a)), Status::Success);
        ports.borrow().iter().copied().collect::<BTreeSet<_>>()
    };
    let mut all = BTreeSet::new();
    const CONNECTIONS: usize = 8;
    for _ in 0..CONNECTIONS {
        let (mut a, b) = rig.pair();
        assert_eq!(a.qpn, b.qpn, "equal machines choose equal numbers");
        let used = write(&mut rig, &mut a);
        assert_eq!(used.len(), 1, "requests and acknowledgements have the same port here: {used:x?}");
        all.extend(used);
    }
    assert_eq!(all.len(), CONNECTIONS, "{all:x?}");
    assert!(all.iter().all(|port| *port >= 0xc000), "{all:x?}");
    // Two connections whose ports must differ. They would be equal if the port combined the shifted
    // local number and the remote number with OR.
    let [first, second] = [(0x23, 0x2105), (0x22, 0x2305)].map(|(here, there)| {
        let [mut a, b] = [(0, here), (1, there)]
            .map(|(n, slot)| rig.create_qp(n, QpSpec { slot: Some(slot), ..QpSpec::default() }));
        rig.join(&a, &b);
        rig.join(&b, &a);
        write(&mut rig, &mut a)
    });
    assert!(first.is_disjoint(&second), "{first:x?}, {second:x?}");
}

#[test]
fn a_datagram_leaves_from_the_port_of_its_queue_pair_in_the_dynamic_range() {
    let (mut rig, ports) = rig();
    let b = rig.datagram_qp(1, 7, QKEY);
    let (from, _) = rig.region(0, 64);
    let to = datagram(&rig, &b, QKEY);
    for slot in [7, 8, 0x1234] {
        let mut a = rig.datagram_qp(0, slot, QKEY);
        send_datagram(&mut rig, &mut a, to, Opcode::Send, &[segment(from, 0, 8)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        let port = ports.borrow_mut().pop();
        assert_eq!(port, Some(0xc000 + (a.qpn & 0x3fff) as u16));
    }
}
