//! A hostile host beside an honest one, on a switch with our target of NVMe over iWARP. The honest
//! one is Linux with siw, which uses a disk all the time. The tests do not attack siw, which fails
//! under some of this.

use iwarp::ddp::{Header, Place, queue};
use iwarp::mpa::fpdu;
use iwarp::mpa::frame::{Depth, Enhanced, Kind, MAX_FRAME, Repr};
use iwarp::rdmap::terminate::{self, Code};
use iwarp::rdmap::{Control, Opcode, read};
use qemu::linux::storage::{Connect, PORT};

use crate::bare::{Bare, Connection};
use crate::linux::Linux;
use crate::load;
use crate::ours::{Ours, link};
use crate::{MTU, Transport};

const NQN: &str = "nqn.2026-01.org.ferrovia:storage";
/// What a host says of itself in its Request: the format 0, queue 0, 32 receives, 31 sends.
const HOST: [u8; 8] = [0, 0, 0, 0, 32, 0, 31, 0];

/// Our target, a Linux guest that uses its disk, and a bare host.
struct Scene {
    ours: Ours,
    honest: Linux,
    bare: Bare,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().expect("a folder");
        let words = Transport::Iwarp.chosen_by(&["storage", "--ram-disk", "32M"]);
        let mut ours = Ours::start_on_switch(folder.path(), &words);
        ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
        let link = link(folder.path());
        let mut honest = Linux::boot_on_switch(&link, &["10.0.0.2/24"], MTU, 2).over(Transport::Iwarp);
        let disk = honest.storage().connect(&Connect::to(NQN, "10.0.0.1"), 1).expect("it connects").remove(0);
        load::begin(&mut honest, &disk, 2);
        let bare = Bare::on_switch(&link, 9);
        let mut scene = Scene { ours, honest, bare, _folder: folder };
        scene.is_served();
        scene
    }

    /// The honest host is served.
    #[track_caller]
    fn is_served(&mut self) {
        load::goes_on(&mut self.honest, 2);
    }

    /// The honest host ends in good order, and has not been disturbed.
    fn ends(mut self) {
        self.is_served();
        let kernel = load::end(&mut self.honest);
        for trouble in ["timeout", "recovery", "econnect"] {
            assert!(!kernel.contains(trouble), "its connection was disturbed:\n{kernel}");
        }
        self.honest.storage().disconnect(NQN).expect("it disconnects");
        self.ours.wait_for("idle: ");
    }

    /// A connection of which the set-up is made.
    #[track_caller]
    fn established(&mut self) -> Connection {
        let connection = self.bare.connect(PORT);
        self.bare.say(connection, &request());
        assert!(!self.reply(connection).reject);
        connection
    }

    /// The header of the Reply, whose data is taken as well.
    #[track_caller]
    fn reply(&mut self, connection: Connection) -> Repr<'static> {
        let header = self.bare.hear(connection, Repr::HEADER);
        let length = header.last_chunk().map_or(0, |&length| u16::from_be_bytes(length));
        let data = self.bare.hear(connection, length.into());
        let bytes = [header, data].concat();
        let (reply, _) = Repr::parse(Kind::Reply, &bytes).expect("a Reply");
        Repr { data: &[], ..reply }
    }

    /// What comes is a Terminate with this code, and the end.
    #[track_caller]
    fn terminated(&mut self, connection: Connection, case: &str, expected: Code) {
        let bytes = self.bare.hear_all(connection);
        let mut rest = &bytes[..];
        let mut receiver = fpdu::Receiver::new(true);
        let ulpdu = receiver.next(&mut rest).expect(case).expect(case);
        let (header, body) = Header::parse(ulpdu).expect(case);
        assert_eq!(Control::parse(header.control).opcode(), Some(Opcode::Terminate), "{case}");
        assert_eq!(terminate::Repr::parse(body).expect(case).code, expected, "{case}");
        assert!(rest.is_empty(), "{case}: {} bytes behind the Terminate", rest.len());
        self.bare.finish(connection);
    }
}

/// A frame.
fn frame(repr: &Repr<'_>) -> Vec<u8> {
    let mut bytes = [0; MAX_FRAME];
    let length = repr.emit(&mut bytes).expect("a frame");
    bytes[..length].to_vec()
}

/// The data of a host's Request: IRD and ORD, and what it says of itself.
fn data() -> Vec<u8> {
    let depths = Enhanced { ird: Depth::new(4), ord: Depth::new(2), ..Enhanced::default() };
    [&depths.to_bytes()[..], &HOST, &[0; 24]].concat()
}

/// A Request that our target accepts, and that asks for CRCs.
fn request() -> Vec<u8> {
    let (kind, data) = (Kind::Request, data());
    let (markers, crc, reject, enhanced, revision) = (false, true, false, true, 2);
    frame(&Repr { kind, markers, crc, reject, enhanced, revision, data: &data })
}

/// The FPDU of a segment.
fn segment(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; header.size()];
    header.emit(&mut ulpdu).expect("room");
    ulpdu.extend_from_slice(payload);
    whole(&ulpdu)
}

/// The FPDU of a ULPDU.
fn whole(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; fpdu::length(ulpdu.len())];
    fpdu::emit(ulpdu, true, &mut bytes).expect("room");
    bytes
}

fn header(last: bool, opcode: Opcode, place: Place) -> Header {
    Header::new(last, Control::new(opcode).to_byte(), place)
}

const fn untagged(queue: u32, msn: u32, mo: u32) -> Place {
    Place::Untagged { invalidate: 0, queue, msn, mo }
}

/// The first Send.
fn send(payload: &[u8]) -> Vec<u8> {
    segment(header(true, Opcode::Send, untagged(queue::SEND, 1, 0)), payload)
}

/// The request of an RDMA Read of memory that there is not.
fn asks_to_read(last: bool, msn: u32) -> Vec<u8> {
    let request = read::Repr { sink_stag: 7, sink_to: 0, size: 8, source_stag: 0x1234_5600, source_to: 0 };
    let mut body = [0; read::Repr::LEN];
    request.emit(&mut body).expect("room");
    segment(header(last, Opcode::ReadRequest, untagged(queue::READ, msn, 0)), &body)
}

/// What is wrong, the bytes, the code of the Terminate, and the counter of the reason.
type Case = (&'static str, Vec<u8>, Code, &'static str);

/// FPDUs that are wrong in one thing each.
fn wrong() -> Vec<Case> {
    let mut spoilt = send(&[1; 64]);
    *spoilt.last_mut().expect("a CRC") ^= 1;
    let with = |at: usize, byte: u8| {
        let mut ulpdu = send(&[1; 64])[2..84].to_vec();
        ulpdu[at] = byte;
        whole(&ulpdu)
    };
    let tagged = Place::Tagged { stag: 0x1234_5600, to: 0 };
    let (segments, opcode) = ("iwarp_bad_segment", "iwarp_bad_opcode");
    vec![
        ("CRC", spoilt, Code::MPA_CRC, "iwarp_bad_fpdu"),
        ("length", whole(&[0x41; 8]), Code::MPA_LENGTH, "iwarp_bad_fpdu"),
        ("version of DDP", with(0, 0x42), Code::DDP_UNTAGGED_VERSION, segments),
        ("version of RDMAP", with(1, 0x83), Code::RDMAP_VERSION, opcode),
        ("opcode", with(1, 0x49), Code::OPCODE, opcode),
        ("tagged Send", segment(header(true, Opcode::Send, tagged), &[1; 8]), Code::OPCODE, opcode),
        ("response", segment(header(true, Opcode::ReadResponse, tagged), &[1; 8]), Code::OPCODE, opcode),
        ("queue", segment(header(true, Opcode::Send, untagged(5, 1, 0)), &[]), Code::DDP_QUEUE, segments),
        (
            "MSN",
            segment(header(true, Opcode::Send, untagged(queue::SEND, 2, 0)), &[]),
            Code::DDP_MSN,
            "iwarp_no_receive",
        ),
        ("MO", segment(header(true, Opcode::Send, untagged(queue::SEND, 1, 4)), &[]), Code::DDP_MO, segments),
        ("STag", segment(header(true, Opcode::Write, tagged), &[1; 8]), Code::DDP_STAG, "iwarp_bad_write"),
        // The target serves no Reads.
        ("Read", asks_to_read(true, 1), Code::DDP_MSN, "iwarp_bad_read"),
        ("MSN of a Read", asks_to_read(true, 3), Code::DDP_MSN, "iwarp_bad_read"),
        ("L bit of a Read", asks_to_read(false, 1), Code::DDP_TOO_LONG, segments),
        ("bounds of a Receive", send(&[1; 60_000]), Code::DDP_TOO_LONG, "iwarp_too_long"),
    ]
}

/// FPDUs that are wrong are answered by Terminates, and counted.
fn says_wrong_fpdus(scene: &mut Scene) {
    let cases = wrong();
    for (case, bytes, code, _) in &cases {
        let connection = scene.established();
        scene.bare.say(connection, bytes);
        scene.terminated(connection, case, *code);
    }
    for (_, _, _, counter) in &cases {
        let expected = cases.iter().filter(|(.., other)| other == counter).count();
        scene.ours.wait_for_count(counter, expected as u64);
    }
    scene.is_served();
    // Cut anywhere, it is the same.
    for piece in [1, 7] {
        let connection = scene.bare.connect(PORT);
        scene.bare.say_in(connection, &request(), piece);
        assert!(!scene.reply(connection).reject);
        let bytes = segment(header(true, Opcode::Send, untagged(queue::SEND, 9, 0)), &[1; 8]);
        scene.bare.say_in(connection, &bytes, piece);
        scene.terminated(connection, "one byte a segment", Code::DDP_MSN);
    }
    // A Terminate of this host ends the connection without one.
    let connection = scene.established();
    let mut body = [0; terminate::Repr::MAX];
    let length = terminate::Repr::from(Code::STREAM).emit(&mut body).expect("room");
    let place = untagged(queue::TERMINATE, 1, 0);
    scene.bare.say(connection, &segment(header(true, Opcode::Terminate, place), &body[..length]));
    assert_eq!(scene.bare.hear_all(connection), b"");
    scene.ours.wait_for_count("iwarp_terminated_by_peer", 1);
}

/// Connections with wrong frames are closed, or rejected.
fn says_wrong_frames(scene: &mut Scene) {
    let edited = |at: usize, byte: u8| {
        let mut bytes = request();
        bytes[at] = byte;
        bytes
    };
    // The key, a Reply, a revision, a length, a frame that is none, bytes behind a Request.
    let mut reply = request();
    reply[..16].copy_from_slice(b"MPA ID Rep Frame");
    let closed = [
        edited(0, b'm'),
        edited(15, b'E'),
        reply,
        edited(17, 3),
        edited(17, 0xff),
        edited(18, 0xff),
        b"GET / HTTP/1.1\r\nHost: ferrovia\r\n\r\n".to_vec(),
        [request(), send(&[1; 64])].concat(),
    ];
    for (case, bytes) in closed.iter().enumerate() {
        let connection = scene.bare.connect(PORT);
        scene.bare.say(connection, bytes);
        assert_eq!(scene.bare.hear_all(connection), b"", "case {case}");
        scene.bare.forget(connection);
    }
    // Markers, and the flag of IRD and ORD without them, get a Reply that rejects.
    let (kind, crc, reject) = (Kind::Request, true, false);
    let data = data();
    let markers = Repr { kind, markers: true, crc, reject, enhanced: true, revision: 2, data: &data };
    let short = Repr { markers: false, data: &[1, 2, 3], ..markers };
    for (case, wrong) in [markers, short].iter().enumerate() {
        let connection = scene.bare.connect(PORT);
        scene.bare.say(connection, &frame(wrong));
        assert!(scene.reply(connection).reject, "case {case}");
        assert_eq!(scene.bare.hear_all(connection), b"", "case {case}");
        scene.bare.finish(connection);
    }
}

/// An end at each byte leaves nothing behind.
fn ends_at_each_byte(scene: &mut Scene) {
    let request = request();
    let message = segment(header(false, Opcode::Send, untagged(queue::SEND, 1, 0)), &[1; 8]);
    let end = |bare: &mut Bare, connection, said: &[u8], resets| {
        bare.say(connection, said);
        if resets {
            return bare.reset(connection);
        }
        bare.finish(connection);
        assert_eq!(bare.hear_all(connection), b"", "{} bytes", said.len());
        bare.forget(connection);
    };
    for resets in [false, true] {
        for cut in 0..request.len() {
            let connection = scene.bare.connect(PORT);
            end(&mut scene.bare, connection, &request[..cut], resets);
        }
        scene.is_served();
        // In an FPDU, and behind one that is not its message's last.
        for cut in 1..=message.len() {
            let connection = scene.established();
            end(&mut scene.bare, connection, &message[..cut], resets);
        }
        scene.is_served();
    }
    scene.ours.wait_for_count("iwarp_ended_inside_message", message.len() as u64);
}

/// Connections that say nothing do not keep the target from its honest host.
fn says_nothing(scene: &mut Scene) {
    // A window that never opens again: it has room for the Reply, and for a part of a Terminate.
    let closed = scene.bare.connect_with(PORT, 64);
    scene.bare.say(closed, &request());
    scene.bare.say(closed, &whole(&[0x41; 8]));
    // Streams without a Request, more than a listening point keeps, and a part of one.
    let silent: Vec<Connection> = (0..150).map(|_| scene.bare.connect(PORT)).collect();
    for connection in &silent[100..] {
        scene.bare.say(*connection, &request()[..30]);
    }
    // One host has half of the places for these.
    for _ in 0..50 {
        scene.bare.half_open(PORT);
    }
    scene.is_served();
    // A newcomer gets in among them.
    let connection = scene.established();
    scene.bare.reset(connection);
    for connection in silent {
        assert_eq!(scene.bare.hear_all(connection), b"");
    }
    scene.bare.until("the end of the one whose window is closed", |bare| bare.is_reset(closed).then_some(()));
}

#[test]
fn a_hostile_host_is_answered_and_the_honest_one_beside_it_is_served() {
    let mut scene = Scene::new();
    for attack in [says_wrong_frames as fn(&mut Scene), says_wrong_fpdus, ends_at_each_byte, says_nothing] {
        attack(&mut scene);
        scene.is_served();
    }
    scene.ends();
}
