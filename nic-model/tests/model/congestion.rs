//! Connections that share a link that is slower than they are, and loses nothing. Time is the
//! rig's, so a figure of these tests is the same in each run.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use nic_abi::admin::{ModifyQp, QpType};
use nic_abi::cqe::Status;
use nic_abi::wqe::Opcode;
use nic_model::testing::{CableEnd, Qp, QpSpec, Rig, Through, cable, rdma, segment, status};
use nic_model::{Congestion, PacketDropped, Wire, port};
use platform::Instant;
use roce::transport::Reason;
use roce::wire::datagram::{self, Network};
use roce::wire::{bth, ethernet, opcode, packet};
use roce::{Gid, Psn, Qpn};

/// Bytes of a frame with 1024 bytes of payload: Ethernet, IPv4, UDP, BTH, ICRC.
const FRAME: u64 = 14 + 20 + 8 + 12 + 1024 + 4;
/// The queue of the launcher's links.
const QUEUE: usize = 1 << 20;
const LONGEST: usize = 2048;

/// A link: how many bytes it carries in a second each way, how many may wait, after how many it
/// marks packets, the time that each frame takes besides, and the most that is added to that by
/// chance.
#[derive(Clone, Copy, Debug)]
struct Link {
    rate: u64,
    queue: usize,
    marks: Option<usize>,
    delay: u64,
    jitter: u64,
}

impl Link {
    const fn of(rate: u64) -> Link {
        Link { rate, queue: QUEUE, marks: None, delay: 0, jitter: 0 }
    }
}

/// The frames that are on their way to one end.
#[derive(Default)]
struct Line {
    frames: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    free: u64,
    /// A random number.
    chance: u32,
}

struct End {
    link: Link,
    lines: Rc<RefCell<[Line; 2]>>,
    end: usize,
}

fn ends(link: Link) -> [End; 2] {
    let lines = Rc::<RefCell<[Line; 2]>>::default();
    [0, 1].map(|end| End { link, lines: lines.clone(), end })
}

/// Marks a frame for congestion if its sender can cope with that (RFC 3168).
fn mark(frame: &mut [u8]) {
    const ECN: usize = 14 + 1;
    if frame[12..14] != [8, 0] || !matches!(frame[ECN] & 3, 1 | 2) {
        return;
    }
    frame[ECN] |= 3;
    frame[24..26].fill(0);
    let sum: u32 =
        frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
}

impl Wire for End {
    fn send(&mut self, frame: &[u8], now: Instant) {
        let mut lines = self.lines.borrow_mut();
        let line = &mut lines[1 - self.end];
        line.free = line.free.max(now.as_nanos()) + frame.len() as u64 * 1_000_000_000 / self.link.rate;
        let mut frame = frame.to_vec();
        if self.link.marks.is_some_and(|most| line.bytes > most) {
            mark(&mut frame);
        }
        line.bytes += frame.len();
        line.chance = line.chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let jitter = (self.link.jitter * u64::from(line.chance >> 16)) >> 16;
        line.frames.push_back((line.free + self.link.delay + jitter, frame));
    }

    fn has_room(&self) -> bool {
        self.lines.borrow()[1 - self.end].bytes + LONGEST <= self.link.queue
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        let line = &mut self.lines.borrow_mut()[self.end];
        line.frames.front().filter(|(due, _)| *due <= now.as_nanos())?;
        let (_, frame) = line.frames.pop_front()?;
        line.bytes -= frame.len();
        into[..frame.len()].copy_from_slice(&frame);
        Some(frame.len())
    }

    fn flush(&mut self, _: Instant) {}

    fn up(&self) -> bool {
        true
    }

    fn deadline(&self) -> Option<Instant> {
        self.lines.borrow()[self.end].frames.front().map(|(due, _)| Instant::from_nanos(*due))
    }
}

/// How connections that moved so many bytes each fared.
#[derive(Debug)]
struct Fared {
    /// Their time, in thousandths of the least.
    time: u64,
    /// The time of the first that was done, in thousandths of that of the last.
    first: u64,
    timeouts: u64,
    marked: u64,
    notified: u64,
    handled: u64,
}

/// Two NICs on such a link, and connections with the attributes that IT-API's have without others.
fn connected(link: Link, connections: usize) -> (Rig, Vec<(Qp, Qp)>) {
    let mut rig = Rig::wired(ends(link), 1500);
    let pairs = (0..connections)
        .map(|_| {
            let spec = QpSpec { log: 4, ..QpSpec::default() };
            let [a, b] = [0, 1].map(|n| {
                let [send, receive] = [(); 2].map(|()| rig.create_cq(n, 4));
                rig.create_qp_on(n, spec, send, receive)
            });
            for (qp, peer) in [(&a, &b), (&b, &a)] {
                rig.init(qp);
                let args = rig.rtr_args(qp, peer);
                rig.modify(qp, &args).expect("RTR");
                let args = ModifyQp { timeout: 14, retry_count: 7, ..rig.rts_args(qp) };
                rig.modify(qp, &args).expect("RTS");
            }
            (a, b)
        })
        .collect();
    (rig, pairs)
}

/// All connections of the first NIC write to or read from the second, `requests` times `length`
/// bytes each.
fn move_bytes(link: Link, opcode: Opcode, connections: usize, requests: u32, length: u32) -> Fared {
    let (mut rig, mut pairs) = connected(link, connections);
    let ((from, _), (to, _)) = (rig.region(0, u64::from(length)), rig.region(1, u64::from(length)));
    let start = rig.now;
    for (a, _) in &mut pairs {
        for tag in 0..requests {
            rig.post(a, rdma(opcode, tag, to, 0), &[segment(from, 0, length)]);
        }
    }
    let mut left = vec![requests; connections];
    let mut ends = Vec::new();
    while ends.len() < connections {
        rig.run();
        for ((a, _), left) in pairs.iter_mut().zip(&mut left) {
            while let Some(entry) = rig.poll_cq(&mut a.send_cq) {
                assert_eq!(status(&entry), Status::Success, "{connections} at {link:?}");
                *left -= 1;
                if *left == 0 {
                    ends.push(rig.now - start);
                }
            }
        }
        rig.now = rig.fabric.next_deadline().expect("the heartbeat").as_nanos().max(rig.now);
    }
    let bytes = connections as u64 * u64::from(requests) * u64::from(length).div_ceil(1024) * FRAME;
    let (first, last) = (ends[0], ends[ends.len() - 1]);
    let counters = |n: usize| rig.fabric.packet_counters(rig.nics[n].id).unwrap();
    Fared {
        time: last * 1000 / (bytes * 1_000_000_000 / link.rate),
        first: first * 1000 / last,
        timeouts: counters(0).reason(Reason::LocalAckTimeoutErr),
        marked: counters(1).congested(Congestion::Marked),
        notified: counters(1).congested(Congestion::Notified),
        handled: counters(0).congested(Congestion::Handled),
    }
}

/// No connection breaks, the time is at most `most` thousandths of the least, and none is done in a
/// third of the time of the last.
#[track_caller]
fn shared(link: Link, connections: usize, length: u32, most: u64) {
    for opcode in [Opcode::Write, Opcode::Read] {
        let fared = move_bytes(link, opcode, connections, 4, length / 4);
        println!("{opcode:?} {connections} x {length:#x} at {}: {fared:?}", link.rate);
        assert!(
            fared.time <= most && fared.first >= 333,
            "{opcode:?} {connections} x {length:#x} at {link:?}: {fared:?}"
        );
    }
}

#[test]
fn connections_that_share_a_slow_link_break_none_and_use_it() {
    shared(Link::of(10_000_000 / 8), 3, 1 << 20, 1100);
    shared(Link::of(100_000_000 / 8), 64, 256 << 10, 1250);
}

#[test]
fn connections_to_a_slow_host_break_none_and_use_it() {
    shared(Link::of(5_000_000), 16, 256 << 10, 1250);
    shared(Link::of(12_000_000), 16, 256 << 10, 1250);
    shared(Link::of(12_000_000), 64, 128 << 10, 1250);
}

#[test]
fn connections_that_are_far_too_many_for_a_link_get_along() {
    // A packet of each takes as long as the connections' timeout.
    shared(Link::of(10_000_000 / 8), 64, 32 << 10, 4000);
}

#[test]
fn a_long_path_is_used() {
    // 20 ms there and back, 1.25 MB/s: a round trip is 23 packets.
    let link = Link { delay: 10_000_000, ..Link::of(10_000_000 / 8) };
    shared(link, 1, 1 << 20, 1250);
}

#[test]
fn a_path_whose_delay_changes_is_used() {
    // As of a host whose CPUs get no time for a while now and then. What makes packets late is not
    // a queue: windows that shrink for it get smaller, and nothing gets sooner.
    for (jitter, most) in [(15_000_000, 16_000), (30_000_000, 80_000)] {
        let link = Link { jitter, ..Link::of(100_000_000 / 8) };
        shared(link, 1, 1 << 20, most);
    }
}

#[test]
fn a_path_that_marks_packets_has_short_queues() {
    let link = Link { marks: Some(64 << 10), ..Link::of(100_000_000 / 8) };
    let fared = move_bytes(link, Opcode::Write, 4, 4, 256 << 10);
    assert!(fared.time <= 1050 && fared.timeouts == 0, "{fared:?}");
    // Each notification that left came, and found a requester. Most packets are not marked.
    assert!(fared.notified > 0 && fared.notified == fared.handled, "{fared:?}");
    assert!(fared.notified <= fared.marked && fared.marked < 4 * 1024 / 2, "{fared:?}");
    // The answers of RDMA Reads have no mark: nothing would react to it.
    let fared = move_bytes(link, Opcode::Read, 4, 4, 256 << 10);
    assert!(fared.time <= 1050 && fared.marked == 0, "{fared:?}");
}

/// A notification of congestion from the second NIC to a queue pair of the first.
fn notification(rig: &Rig, qpn: u32) -> Vec<u8> {
    let [src, dst] = [1, 0].map(|n| Gid(rig.gid(n)));
    let bth = bth::Repr::new(opcode::Opcode::CongestionNotification, Qpn::new(qpn).unwrap(), Psn::new(0));
    let packet = packet::Repr { payload: &[0; 16], ..packet::Repr::new(bth::Repr { becn: true, ..bth }) };
    let network = Network::new(src, dst, 0, 64).unwrap();
    let datagram = datagram::Repr { network, src_port: 0xc000, packet };
    let [src, dst] = [2, 1].map(port::mac_of);
    let ethernet = ethernet::Repr { src, dst, vlan: None, ether_type: ethernet::Repr::IPV4 };
    let mut frame = vec![0; ethernet::Repr::LEN + datagram.len()];
    datagram.emit(ethernet.emit(&mut frame).unwrap()).unwrap();
    frame
}

#[test]
fn a_notification_makes_a_requester_send_less_and_changes_nothing_else() {
    let ends = cable();
    let mut rig = Rig::wired(ends.clone(), 1500);
    let (mut a, b) = rig.pair();
    let unreliable = QpSpec { kind: QpType::Uc, ..QpSpec::default() };
    let (unreliable, _) = rig.pair_of(0, 1, unreliable);
    let datagrams = rig.datagram_qp(0, 9, 7);
    let ((from, _), (to, _)) = (rig.region(0, 1 << 20), rig.region(1, 1 << 20));
    let take = |rig: &mut Rig, qpn: u32| {
        let frame = notification(rig, qpn);
        ends[1].put(&frame);
        rig.run();
    };
    let counted = |rig: &Rig, what| rig.fabric.packet_counters(rig.nics[0].id).unwrap().congested(what);
    // Nothing was sent yet, a service without a window, datagrams.
    for qp in [&a, &unreliable, &datagrams] {
        take(&mut rig, qp.qpn);
    }
    assert_eq!((counted(&rig, Congestion::Ignored), counted(&rig, Congestion::Handled)), (3, 0));
    // However many come, each request arrives.
    for tag in 0..8 {
        rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 1 << 17)]);
        for _ in 0..20 {
            take(&mut rig, a.qpn);
        }
        rig.advance(1000);
        let entry = rig.poll_cq(&mut a.send_cq).expect("it is complete");
        assert_eq!((entry.tag, status(&entry)), (tag, Status::Success));
    }
    // The first came when nothing was sent yet.
    assert_eq!((counted(&rig, Congestion::Ignored), counted(&rig, Congestion::Handled)), (4, 159));
    // A notification that is not the peer's, and one for no queue pair, reach none.
    let dropped = |rig: &Rig, why| rig.fabric.packet_counters(rig.nics[0].id).unwrap().dropped(why);
    take(&mut rig, b.qpn + 77);
    assert_eq!(dropped(&rig, PacketDropped::NoQueuePair), 1);
    assert_eq!(dropped(&rig, PacketDropped::WrongService), 0);
    assert_eq!(rig.query(&a).state, nic_abi::admin::QpState::Rts as u32);
}

#[test]
fn marked_packets_bring_few_notifications() {
    let [ours, theirs] = cable();
    // All packets of the first NIC are marked on their way, where they may be.
    let marked = Through::new(ours, |end: &CableEnd, frame: &[u8]| {
        let mut frame = frame.to_vec();
        mark(&mut frame);
        end.put(&frame);
    });
    let mut rig = Rig::wired([Box::new(marked) as Box<dyn Wire>, Box::new(theirs)], 1500);
    let (mut a, _) = rig.pair();
    let ((from, _), (to, _)) = (rig.region(0, 1 << 17), rig.region(1, 1 << 17));
    let congested =
        |rig: &Rig, n: usize, what| rig.fabric.packet_counters(rig.nics[n].id).unwrap().congested(what);
    for tag in 0..3 {
        rig.post(&mut a, rdma(Opcode::Write, tag, to, 0), &[segment(from, 0, 1 << 17)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        // 50 microseconds are between two notifications at least.
        assert_eq!(congested(&rig, 1, Congestion::Notified), u64::from(tag / 2) + 1);
        rig.advance(25_000);
    }
    assert!(congested(&rig, 1, Congestion::Marked) >= 3 * 128);
    assert_eq!(congested(&rig, 0, Congestion::Handled), 2);
}
