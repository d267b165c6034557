//! Many queue pairs that wait: for the MAC of one neighbour, or for room in the wire.

use std::cell::Cell;
use std::rc::Rc;

use nic_abi::admin::{CreateQp, Opcode as Command, QpMask, QpState};
use nic_abi::doorbell::Kind;
use nic_abi::ident;
use nic_abi::wqe::Opcode;
use nic_model::testing::{CableEnd, Cq, Qp, QpSpec, Rig, cable, rdma};
use nic_model::{Progress, Wire, port};
use platform::Instant;

use crate::wire::{Scene, scene};

/// The most units of work of one poll: those of one NIC's turn.
const POLL: u32 = 160;

/// Queue pairs of NIC 0, in slots from 2 on, connected to a peer at 10.0.0.2. They have one ring,
/// in which an RDMA Write of no bytes is, which completes without a completion. Without a timeout
/// they retry nothing.
fn many(rig: &mut Rig, count: u32, timeout: u8) -> Vec<Qp> {
    let cqs: [Cq; 2] = [(); 2].map(|()| rig.create_cq(0, 4));
    let args = rig.qp_args(QpSpec::default(), cqs[0], cqs[1]);
    let of = |slot: u32| Qp {
        nic: 0,
        qpn: ident::qpn(slot, 3),
        send_cq: cqs[0],
        receive_cq: cqs[1],
        send_ring: args.send_ring,
        receive_ring: args.receive_ring,
        send_tail: 0,
        receive_tail: 0,
        generation: args.generation,
    };
    let peer = Qp { nic: 1, ..of(2) };
    let qps: Vec<Qp> = (2..2 + count).map(of).collect();
    for qp in &qps {
        rig.command(0, Command::CreateQp, qp.qpn, &CreateQp { ..args }).expect("a queue pair");
        rig.init(qp);
        let args = rig.rtr_args(qp, &Qp { qpn: qp.qpn, ..peer });
        rig.modify(qp, &args).expect("RTR");
        let mut args = rig.rts_args(qp);
        args.timeout = timeout;
        rig.modify(qp, &args).expect("RTS");
    }
    let write = nic_abi::wqe::Header { blocks: 1, ..rdma(Opcode::Write, 1, 0, 0) };
    for _ in 0..1 << nic_model::testing::LOG_ENTRIES {
        let mut any = Qp { send_tail: 0, ..of(2) };
        rig.write_send(&mut any, write, [0; 4], &[]);
    }
    for block in 0..1 << nic_model::testing::LOG_ENTRIES {
        let mut any = Qp { send_tail: block, ..of(2) };
        rig.write_send(&mut any, write, [0; 4], &[]);
    }
    qps
}

/// Posts one request more to a queue pair.
fn post(rig: &mut Rig, qp: &mut Qp) {
    qp.send_tail += 1;
    rig.ring(0, Kind::Send, ident::qpn_slot(qp.qpn), qp.send_tail);
}

/// Polls until there is nothing to do; returns the units of work, of which no poll may do many.
fn work(rig: &mut Rig) -> u32 {
    let mut units = 0;
    while rig.fabric.poll(Instant::from_nanos(rig.now), 64) == Progress::Worked {
        let done = rig.fabric.work_of_last_poll();
        assert!(done <= POLL, "{done} units of work in one poll");
        units += done;
    }
    units
}

/// All queue pairs wait for the MAC of one neighbour.
fn waiting(count: u32, timeout: u8) -> (Scene, Vec<Qp>) {
    let mut s = scene();
    let mut qps = many(&mut s.rig, count, timeout);
    for qp in &mut qps {
        post(&mut s.rig, qp);
        // The FIFO has an end.
        if qp.qpn % 64 == 0 {
            work(&mut s.rig);
        }
    }
    work(&mut s.rig);
    (s, qps)
}

const COUNT: u32 = if cfg!(miri) { 40 } else { 16_000 };

#[test]
fn the_answer_for_which_many_wait_wakes_a_few_at_a_time() {
    let (mut s, qps) = waiting(COUNT, 0);
    let mut question = None;
    while let Some(frame) = s.take() {
        assert_eq!(frame[12..14], [8, 6], "no packet has left");
        assert!(question.replace(frame).is_none(), "one question is enough");
    }
    s.answer(&question.expect("a question"));
    let units = work(&mut s.rig);
    // A step to wake each, one to send its packet, and one to find no more.
    assert!(units <= 4 * COUNT, "{units} units of work");
    let mut left = 0;
    while let Some(frame) = s.take() {
        // In the order in which they came.
        assert_eq!(frame[42 + 5..42 + 8], qps[left].qpn.to_be_bytes()[1..]);
        left += 1;
    }
    assert_eq!(left, qps.len());
}

#[test]
fn those_that_wait_for_a_silent_neighbour_are_no_work_until_it_is_given_up() {
    let (mut s, mut qps) = waiting(COUNT, 0);
    let mut units = 0;
    for _ in 0..30 {
        s.rig.now += 100_000_000;
        units += work(&mut s.rig);
    }
    assert!(units < 100, "{units} units of work while nothing happens");
    // Their packets are lost when the port gives up, a few at a time.
    for _ in 0..3 {
        s.rig.now += 100_000_000;
        units += work(&mut s.rig);
    }
    assert!(units > COUNT && units <= 4 * COUNT, "{units} units of work");
    s.rig.now += 100_000_000;
    assert!(work(&mut s.rig) < 10);
    assert_eq!(s.rig.query(&qps[0]).state, QpState::Rts as u32);
    // While the neighbour counts as silent, so is the next.
    while s.take().is_some() {}
    post(&mut s.rig, &mut qps[1]);
    work(&mut s.rig);
    assert!(s.take().is_none());
}

/// With a timeout, the requests to a neighbour that never answers fail, whoever waits for it.
#[test]
fn requests_to_a_silent_neighbour_fail_at_last() {
    let (mut s, qps) = waiting(20, 10);
    for _ in 0..200 {
        s.rig.now += 100_000_000;
        work(&mut s.rig);
    }
    for qp in &qps {
        assert_eq!(s.rig.query(qp).state, QpState::Error as u32);
    }
}

/// One that waits may be destroyed, reset, or go on by another way.
#[test]
fn queue_pairs_that_end_while_they_wait_wait_no_more() {
    let (mut s, mut qps) = waiting(6, 0);
    let frames: Vec<_> = std::iter::from_fn(|| s.take()).collect();
    s.rig.command(0, Command::DestroyQp, qps[1].qpn, &[0_u32; 2]).expect("destroyed");
    s.rig.set_state(&qps[3], QpState::Reset).expect("RESET");
    s.rig.set_state(&qps[4], QpState::Error).expect("ERROR");
    s.answer(&frames[0]);
    work(&mut s.rig);
    let left: Vec<_> = std::iter::from_fn(|| s.take()).map(|frame| u32::from(frame[42 + 7])).collect();
    assert_eq!(left, [0, 2, 5].map(|n: usize| qps[n].qpn & 0xff));
    // The one that was reset waits again as any other, and its slot's next one too.
    let args = s.rig.rtr_args(&qps[3], &Qp { nic: 1, ..qps[3] });
    s.rig.init(&qps[3]);
    s.rig.modify(&qps[3], &args).expect("RTR");
    let args = s.rig.rts_args(&qps[3]);
    s.rig.modify(&qps[3], &args).expect("RTS");
    assert!(QpMask::from_bits(args.mask).is_some());
    post(&mut s.rig, &mut qps[3]);
    work(&mut s.rig);
    assert_eq!(s.take().map(|frame| u32::from(frame[42 + 7])), Some(qps[3].qpn & 0xff));
}

/// One that is given another path waits for that path's neighbour, and no more for the former.
#[test]
fn a_queue_pair_that_gets_another_path_asks_for_that() {
    let (mut s, qps) = waiting(2, 0);
    let question = s.take().expect("a question");
    assert!(s.take().is_none());
    s.rig.set_state(&qps[1], QpState::Sqd).expect("SQD");
    let mut args = s.rig.rtr_args(&qps[1], &Qp { nic: 2, ..qps[1] });
    args.mask = (QpMask::STATE | QpMask::PATH).bits();
    args.state = QpState::Rts as u32;
    s.rig.modify(&qps[1], &args).expect("another path");
    work(&mut s.rig);
    let other = s.take().expect("another question");
    // The address that an ARP request asks for.
    assert_eq!((&question[38..42], &other[38..42]), (&[10, 0, 0, 2][..], &[10, 0, 0, 3][..]));
    s.answer(&question);
    work(&mut s.rig);
    let left: Vec<_> = std::iter::from_fn(|| s.take()).map(|frame| u32::from(frame[42 + 7])).collect();
    assert_eq!(left, [qps[0].qpn & 0xff]);
}

/// A wire that takes as many frames as it is told.
struct Narrow {
    end: CableEnd,
    room: Rc<Cell<u32>>,
}

impl Wire for Narrow {
    fn send(&mut self, frame: &[u8], _: Instant) {
        self.end.put(frame);
        self.room.set(self.room.get().saturating_sub(1));
    }

    fn has_room(&self) -> bool {
        self.room.get() > 0
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        self.end.receive(into, now)
    }

    fn flush(&mut self, _: Instant) {}

    fn up(&self) -> bool {
        true
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Queue pairs that wait for room get it in the order in which they came, also if they are looked
/// at meanwhile, since a packet came for them or a request was posted; and whoever has to wait on
/// although its turn came keeps its place.
#[test]
fn those_that_wait_for_room_keep_their_place() {
    let [ours, theirs] = cable();
    let room = Rc::new(Cell::new(1000));
    let mut rig = Rig::powered(1);
    let address = "10.0.0.1/24".parse().unwrap();
    let wire = Narrow { end: ours, room: room.clone() };
    rig.attach(0, wire, &port::Config::new(1, 1500, &[address]));
    rig.bring_up(0);
    let mut peer = crate::wire::peer();
    let mut qps = many(&mut rig, 40, 0);
    // The peer's MAC is known once it was asked for.
    let mut first = qps.pop().expect("one more");
    post(&mut rig, &mut first);
    rig.run();
    while let Some(frame) = theirs.take() {
        peer.receive(&frame, Instant::ZERO);
    }
    let mut into = [0; 2000];
    while let Some(len) = peer.next_frame(&mut into) {
        theirs.put(&into[..len]);
    }
    rig.run();
    while theirs.take().is_some() {}
    room.set(0);
    for qp in &mut qps {
        post(&mut rig, qp);
        rig.run();
    }
    let mut left = Vec::new();
    while left.len() < qps.len() {
        // Each of those that still wait has more to send.
        for qp in qps.iter_mut().skip(left.len()).step_by(7) {
            post(&mut rig, qp);
        }
        rig.run();
        room.set(1);
        rig.run();
        let frame = theirs.take().expect("room for one");
        left.push(u32::from_be_bytes([0, frame[42 + 5], frame[42 + 6], frame[42 + 7]]));
        assert!(theirs.take().is_none());
    }
    assert_eq!(left, qps.iter().map(|qp| qp.qpn).collect::<Vec<_>>());
    room.set(u32::MAX);
    rig.run();
    assert!(theirs.waiting() > 0);
}
