//! The engines in the place of Linux: what a Linux peer sent in a capture is passed to an engine,
//! which has to do what the other Linux peer did.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use platform::Instant;
use roce::transport::{
    Answer, Body, Config, Event, Executed, Limits, Message, Operation, Piece, Received, Remote, Requester,
    Responder, Service, Transmit, Verdict,
};
use roce::wire::aeth::Syndrome;
use roce::wire::datagram;
use roce::{Gid, PathMtu, Qpn, TimeoutCode};

use crate::pcap;

const MTU: PathMtu = PathMtu::B1024;

/// A packet of one direction of a connection.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// By the requester.
    Request(Piece),
    /// By the responder.
    Answer(Answer),
}

/// What one queue pair asked of another, and its answers, in the order of the capture.
#[derive(Default)]
struct Stream {
    packets: Vec<(Duration, Packet)>,
}

/// The streams of a capture. Each is named by the address and number of the queue pair that
/// answers.
fn streams(name: &str) -> Vec<Stream> {
    let mut streams = BTreeMap::<(Gid, Qpn), Stream>::new();
    let mut peers = BTreeMap::<(Gid, Qpn), (Gid, Qpn)>::new();
    let mut parsed = Vec::new();
    let frames = pcap::frames(&pcap::data().join(name));
    for (time, frame) in &frames {
        let Some(packet) = pcap::rocev2(frame) else { continue };
        let datagram = datagram::Repr::parse(packet).unwrap();
        if datagram.packet.bth.opcode.is_rc() {
            let end = (datagram.network.dst(), datagram.packet.bth.dest_qp);
            parsed.push((*time, end, datagram.network.src(), datagram.packet));
        }
    }
    // A packet does not name the queue pair that sent it. An answer belongs to the stream in which
    // its sequence number was asked for.
    let asked: BTreeSet<_> = parsed
        .iter()
        .filter(|(.., packet)| !packet.bth.opcode.is_response())
        .map(|(_, end, source, packet)| (*source, packet.bth.psn.get(), *end))
        .collect();
    for (_, end, source, packet) in &parsed {
        if packet.bth.opcode.is_response() {
            let found = asked.iter().find(|(asker, psn, answerer)| {
                *asker == end.0 && answerer.0 == *source && *psn == packet.bth.psn.get()
            });
            if let Some((.., answerer)) = found {
                peers.entry(*end).or_insert(*answerer);
            }
        }
    }
    for (time, end, _, packet) in &parsed {
        let (key, packet) = match Piece::from_packet(packet) {
            Some((Service::Rc, piece)) => (Some(*end), Packet::Request(piece)),
            _ => (peers.get(end).copied(), Packet::Answer(Answer::from_packet(packet).unwrap())),
        };
        let stream = streams.entry(key.expect("an answer without a request")).or_default();
        stream.packets.push((*time, packet));
    }
    streams.into_values().collect()
}

/// Whether the packet is the one that got lost behind the capture: the first with this PSN.
fn is_lost(lost: &mut Option<(bool, u32)>, packet: &Packet) -> bool {
    let this = match packet {
        Packet::Request(piece) => (true, piece.psn.get()),
        Packet::Answer(answer) => (false, answer.psn.get()),
    };
    let is = *lost == Some(this);
    if is {
        *lost = None;
    }
    is
}

/// What an answer says, whatever the state of the replay: a repeated answer of an RDMA Read begins
/// with a "first" packet here, and goes on with "middle" ones on Linux, which also counts later
/// messages in it.
fn essence(answer: &Answer) -> (u32, Option<Syndrome>, u32, bool) {
    let syndrome = answer.aeth.map(|aeth| aeth.syndrome);
    match answer.body {
        Body::Read { length, last, .. } => (answer.psn.get(), None, length, last),
        Body::Atomic { .. } => (answer.psn.get(), syndrome, 8, true),
        Body::Acknowledge => (answer.psn.get(), syndrome, 0, true),
    }
}

/// Puts our responder in the place of Linux's. Returns how many answers it gave.
fn replay_requests(stream: &Stream, lost: &mut Option<(bool, u32)>) -> usize {
    let requests = |packet: &(Duration, Packet)| match packet.1 {
        Packet::Request(piece) => Some(piece),
        Packet::Answer(_) => None,
    };
    let Some(first) = stream.packets.iter().find_map(requests) else { return 0 };
    let theirs: Vec<_> = stream
        .packets
        .iter()
        .filter_map(|(_, packet)| match packet {
            Packet::Answer(answer) => Some(*answer),
            Packet::Request(_) => None,
        })
        .collect();
    let originals: BTreeMap<_, _> = theirs
        .iter()
        .filter_map(|answer| match answer.body {
            Body::Atomic { original } => Some((answer.psn.get(), original)),
            _ => None,
        })
        .collect();
    let mut ours = Vec::new();
    let mut it = Responder::new(first.psn, MTU, 128);
    let mut executed = BTreeSet::new();
    for (_, packet) in &stream.packets {
        let Packet::Request(piece) = packet else { continue };
        if is_lost(lost, packet) {
            continue;
        }
        match it.receive(piece) {
            Verdict::Execute(execution) => {
                assert!(executed.insert(piece.psn.get()), "once");
                let original = originals.get(&piece.psn.get()).copied().unwrap_or(0);
                it.executed(execution, Executed::Done(original));
            }
            Verdict::Nothing(_) => {}
            Verdict::Refused(reason) => panic!("{reason:?} {piece:?}"),
        }
        while let Some(response) = it.respond(1, None) {
            ours.push(response.answer);
        }
    }
    let [ours_said, theirs_said] = [&ours, &theirs].map(|all| all.iter().map(essence).collect::<Vec<_>>());
    assert_eq!(ours_said, theirs_said);
    // Where nothing is repeated they are the same to the bit, but that a capture may begin when
    // messages have been counted already.
    if ours.windows(2).all(|two| two[0].psn.is_before(two[1].psn)) {
        let msn =
            |answers: &[Answer]| answers.first().and_then(|first| first.aeth).map_or(0, |aeth| aeth.msn);
        let before = msn(&theirs) - msn(&ours);
        for aeth in ours.iter_mut().filter_map(|answer| answer.aeth.as_mut()) {
            aeth.msn += before;
        }
        assert_eq!(ours, theirs);
    }
    ours.len()
}

/// Puts our requester in the place of Linux's. Returns how many packets it sent.
fn replay_answers(stream: &Stream, lost: &mut Option<(bool, u32)>, counts: &mut [u32; 2]) -> usize {
    let Some((start, Packet::Request(first))) = stream.packets.first().copied() else { return 0 };
    let time = |at: Duration| Instant::ZERO + (at - start);
    let limits = Limits {
        max_rd_atomic: 128,
        // 2.1 s: Linux's timeout of 67 ms takes 2.3 s here.
        timeout: TimeoutCode::new(19).unwrap(),
        retry_count: 7,
        rnr_retry: 7,
    };
    let config = Config {
        psn: first.psn,
        mtu: MTU,
        depth: 1024,
        window: 4096,
        first_window: 4096,
        credits: false,
        limits,
    };
    let mut it = Requester::new(&config);
    let mut sent = Vec::new();
    let mut theirs = BTreeMap::new();
    let mut posted = 0;
    let mut next = first.psn;
    let mut events = Vec::new();
    for (at, packet) in &stream.packets {
        let now = time(*at);
        while let Some(timer) = it.timer().filter(|timer| *timer <= now) {
            it.expired(timer);
            counts[0] += 1;
        }
        match packet {
            Packet::Request(piece) => {
                // The message is posted when Linux sent its first packet for the first time.
                if piece.psn == next {
                    let psns = if piece.operation == Operation::Read {
                        MTU.packets(piece.remote.unwrap().length)
                    } else {
                        1
                    };
                    next = next.add(psns);
                    if piece.first {
                        it.post(message(stream, piece, posted)).unwrap();
                        posted += 1;
                    }
                }
                theirs.entry((piece.psn.get(), piece.remote.map(|r| r.addr))).or_insert(*piece);
            }
            Packet::Answer(_) if is_lost(lost, packet) => {}
            Packet::Answer(answer) => match it.receive(answer, now) {
                Received::Retry(_) => counts[1] += 1,
                Received::Refused(reason) => panic!("{reason:?}"),
                _ => {}
            },
        }
        while let Some(transmit) = it.transmit(now, 1) {
            if let Transmit::Piece { piece, .. } = transmit {
                sent.push(piece);
            }
        }
        events.extend(std::iter::from_fn(|| it.poll()));
    }
    assert_eq!(events, (0..posted).map(|id| Event::Completed { id }).collect::<Vec<_>>());
    assert!(it.is_empty());
    // Each packet is one that Linux sent, too; of a lost answer we may ask for less at once.
    for piece in &sent {
        assert!(theirs.values().any(|their| is_part(piece, their)), "Linux did not send {piece:?}");
    }
    sent.len()
}

/// Whether a piece is the same as another, or asks for a part of the same RDMA Read's answer.
fn is_part(part: &Piece, whole: &Piece) -> bool {
    let (Operation::Read, Some(ours), Some(all)) = (part.operation, part.remote, whole.remote) else {
        return part == whole;
    };
    let skipped = part.psn.distance_from(whole.psn);
    let start = i64::from(skipped) * i64::from(MTU.bytes());
    let place = all.addr.checked_add_signed(start);
    start >= 0
        && place == Some(ours.addr)
        && start + i64::from(ours.length) <= i64::from(all.length)
        && *part == Piece { psn: part.psn, remote: Some(Remote { key: all.key, ..ours }), ..*whole }
}

/// The message whose first packet this is.
fn message(stream: &Stream, first: &Piece, id: u32) -> Message {
    let mut length = 0;
    let mut last = *first;
    for n in 0.. {
        let psn = first.psn.add(n);
        let packet = stream.packets.iter().find_map(|(_, packet)| match packet {
            Packet::Request(piece) if piece.psn == psn => Some(*piece),
            _ => None,
        });
        last = packet.expect("the message goes on");
        length += last.length;
        if last.last {
            break;
        }
    }
    let remote = first.remote.unwrap_or_default();
    Message {
        id,
        operation: first.operation,
        length: if first.operation.carries_payload() { length } else { remote.length },
        addr: remote.addr,
        key: remote.key,
        extra: last.extra,
        solicited: last.solicited,
        fence: false,
    }
}

#[test]
fn connections_without_losses_are_answered_as_linux_answered_them() {
    for name in [
        "01-rping.pcap",
        "03-read.pcap",
        "05-atomic-fadd.pcap",
        "06-atomic-cas.pcap",
        "22-nvme-write4k.pcap",
        "24-nvme-disconnect.pcap",
    ] {
        let (mut answers, mut requests) = (0, 0);
        for stream in streams(name) {
            answers += replay_requests(&stream, &mut None);
            let mut counts = [0; 2];
            requests += replay_answers(&stream, &mut None, &mut counts);
            assert_eq!(counts, [0, 0], "nothing was repeated");
        }
        println!("{name}: {answers} answers, {requests} requests");
        assert!(answers > 1 && requests > 4);
    }
}

/// Replays a capture in which this packet got lost behind the place of the capture. Returns how
/// many timeouts and other retries our requester had.
fn replay_with_loss(name: &str, lost: (bool, u32)) -> [u32; 2] {
    let mut counts = [0; 2];
    let mut answers = 0;
    let mut left = [Some(lost); 2];
    for stream in streams(name) {
        answers += replay_requests(&stream, &mut left[0]);
        replay_answers(&stream, &mut left[1], &mut counts);
    }
    assert!(answers > 35);
    assert!(left.iter().any(Option::is_none), "the packet is in the capture");
    counts
}

#[test]
fn a_lost_middle_packet_of_a_write_is_made_good_as_with_linux() {
    assert_eq!(replay_with_loss("30-drop-write-middle.pcap", (true, 0x34_4174)), [0, 1]);
}

#[test]
fn a_lost_last_packet_of_a_write_is_made_good_as_with_linux() {
    assert_eq!(replay_with_loss("32-drop-write-last.pcap", (true, 0x33_0d43)), [1, 0]);
}

#[test]
fn a_lost_packet_of_a_read_s_answer_is_made_good_as_with_linux() {
    assert_eq!(replay_with_loss("33-drop-read-resp-mid.pcap", (false, 0xf0_7473)), [0, 1]);
}

#[test]
fn a_lost_answer_of_an_atomic_operation_is_made_good_as_with_linux() {
    assert_eq!(replay_with_loss("34-drop-atomic-ack.pcap", (false, 0xd3_3f56)), [1, 0]);
}
