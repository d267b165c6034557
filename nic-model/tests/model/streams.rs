//! TCP streams of the port, as a driver uses them.

use std::cell::Cell;
use std::rc::Rc;

use nic_abi::admin::{
    AcceptStream, ConnectStream, DestroyStream, EVERY_ADDRESS, ListenStream, Opcode, Status, StreamEnd,
    StreamEnds, StreamHappened as Happened, StreamInfo, StreamTransferred, TransferFlags, TransferStream,
};
use nic_abi::eqe::EventType;
use nic_abi::registers::{CONTROL_RESET, Features, Identity};
use nic_model::GuestMemory;
use nic_model::port::Dropped;
use nic_model::testing::{CableEnd, Rig, Through, cable};
use zerocopy::FromBytes;

use crate::packets::rig;

/// The port of the listener, and the driver's numbers.
pub(crate) const PORT: u32 = 4711;
pub(crate) const LISTENER: u32 = 3;
pub(crate) const ACTIVE: u32 = 5;
pub(crate) const PASSIVE: u32 = 9;
/// The generations that events return.
const GENERATION: u32 = 70;
/// A round trip, as far as timers go.
const MOMENT: u64 = 2_000_000;

fn read<T: FromBytes>(result: &[u8]) -> T {
    T::read_from_prefix(result).expect("a result is long enough").0
}

pub(crate) fn listen(rig: &mut Rig, n: usize, args: ListenStream) -> Result<(), (Status, u16)> {
    rig.command(n, Opcode::ListenStream, LISTENER, &args).map(drop)
}

pub(crate) fn listening() -> ListenStream {
    let (port, address) = (PORT, EVERY_ADDRESS);
    ListenStream { port, address, backlog: 4, eq: 0, generation: GENERATION, reserved: 0 }
}

/// The arguments to connect to the IPv4 address of NIC `to`.
pub(crate) fn connecting(rig: &Rig, to: usize) -> ConnectStream {
    let gid = rig.gid(to);
    ConnectStream { gid, port: PORT, address: 1, eq: 0, generation: GENERATION + 1, ..Default::default() }
}

pub(crate) fn connect(rig: &mut Rig, args: ConnectStream) -> Result<StreamEnds, (Status, u16)> {
    rig.command(0, Opcode::ConnectStream, ACTIVE, &args).map(|result| read(&result))
}

fn accept(rig: &mut Rig, number: u32) -> Result<StreamEnds, (Status, u16)> {
    let args = AcceptStream { listener: LISTENER, eq: 0, generation: GENERATION + 2, reserved: 0 };
    rig.command(1, Opcode::AcceptStream, number, &args).map(|result| read(&result))
}

pub(crate) fn query(rig: &mut Rig, n: usize, number: u32) -> StreamInfo {
    read(&rig.command(n, Opcode::QueryStream, number, &()).expect("a stream"))
}

/// What has happened since the last query.
pub(crate) fn happened(rig: &mut Rig, n: usize, number: u32) -> Happened {
    Happened::from_bits(query(rig, n, number).happened).expect("known bits")
}

fn end(rig: &mut Rig, n: usize, number: u32) -> StreamEnd {
    StreamEnd::from_word(query(rig, n, number).end).expect("a known end")
}

pub(crate) fn destroy(rig: &mut Rig, n: usize, number: u32, reset: u32) {
    let args = DestroyStream { reset, reserved: 0 };
    rig.command(n, Opcode::DestroyStream, number, &args).expect("a stream");
}

/// Sends or receives, and returns the number of bytes.
fn transfer(
    rig: &mut Rig,
    n: usize,
    (opcode, number): (Opcode, u32),
    (addr, length): (u64, u32),
    flags: TransferFlags,
) -> Result<u32, (Status, u16)> {
    let args = TransferStream { addr, length, flags: flags.bits() };
    rig.command(n, opcode, number, &args).map(|result| read::<StreamTransferred>(&result).length)
}

pub(crate) fn send(rig: &mut Rig, n: usize, number: u32, bytes: (u64, u32)) -> Result<u32, (Status, u16)> {
    transfer(rig, n, (Opcode::SendStream, number), bytes, TransferFlags::empty())
}

pub(crate) fn receive(rig: &mut Rig, n: usize, number: u32, bytes: (u64, u32)) -> Result<u32, (Status, u16)> {
    transfer(rig, n, (Opcode::ReceiveStream, number), bytes, TransferFlags::empty())
}

/// Lets frames pass and timers run for a moment.
pub(crate) fn settle(rig: &mut Rig) {
    for _ in 0..8 {
        rig.advance(MOMENT);
    }
}

/// Connects `ACTIVE` on the first NIC to `PASSIVE` on the second.
pub(crate) fn connect_on(rig: &mut Rig) {
    listen(rig, 1, listening()).expect("a listener");
    connect_again(rig);
}

/// As [`connect_on`], where the listener exists.
pub(crate) fn connect_again(rig: &mut Rig) {
    let args = connecting(rig, 1);
    connect(rig, args).expect("a stream");
    // A lossy wire takes some time.
    let mut accepted = None;
    for _ in 0..1000 {
        settle(rig);
        accepted = accept(rig, PASSIVE).ok();
        if accepted.is_some() {
            break;
        }
    }
    assert!(accepted.is_some(), "no connection");
    assert!(happened(rig, 0, ACTIVE).contains(Happened::CONNECTED));
    settle(rig);
    let _ = (happened(rig, 1, LISTENER), happened(rig, 1, PASSIVE), rig.events(0), rig.events(1));
}

/// Two NICs with a connection: `ACTIVE` on the first, `PASSIVE` on the second.
pub(crate) fn connected() -> (Rig, [CableEnd; 2]) {
    let (mut rig, cable) = rig();
    connect_on(&mut rig);
    (rig, cable)
}

#[test]
fn streams_go_by_the_short_cut_as_they_go_by_a_wire() {
    let mut rig = Rig::new(2);
    let identity: Identity = rig.nics[0].registers.load(0).expect("the identity");
    let features = Features::from_bits_truncate(identity.features);
    assert!(features.contains(Features::STREAMS | Features::IWARP));
    connect_on(&mut rig);
    let (from, to) = (rig.alloc(1 << 16), rig.alloc(1 << 16));
    rig.fill(from, 1 << 16, 3);
    let mut came = 0;
    let (mut sent, all) = (0, 1 << 16);
    while came < all {
        sent += send(&mut rig, 0, ACTIVE, (from + u64::from(sent), all - sent)).expect("a stream");
        settle(&mut rig);
        let room = (to + u64::from(came), all - came);
        came += receive(&mut rig, 1, PASSIVE, room).expect("a stream");
    }
    assert_eq!(rig.bytes(to, 1 << 16), rig.bytes(from, 1 << 16));
    // A NIC that is reset resets its streams, and its neighbour learns it by what it sends.
    rig.control(1, CONTROL_RESET);
    rig.bring_up(1);
    listen(&mut rig, 1, listening()).expect("a listener");
    let _ = send(&mut rig, 0, ACTIVE, (from, 64));
    settle(&mut rig);
    assert_eq!(end(&mut rig, 0, ACTIVE), StreamEnd::Reset);
}

#[test]
fn a_nic_connects_to_itself() {
    let mut rig = Rig::new(1);
    let args = ListenStream { generation: GENERATION, ..listening() };
    rig.command(0, Opcode::ListenStream, LISTENER, &args).expect("a listener");
    let args = connecting(&rig, 0);
    connect(&mut rig, args).expect("a stream");
    settle(&mut rig);
    let args = AcceptStream { listener: LISTENER, eq: 0, generation: 1, reserved: 0 };
    rig.command(0, Opcode::AcceptStream, PASSIVE, &args).expect("a connection");
    assert!(happened(&mut rig, 0, ACTIVE).contains(Happened::CONNECTED));
}

#[test]
fn a_connection_is_told_at_both_ends_and_carries_bytes_both_ways() {
    let (mut rig, _) = rig();
    listen(&mut rig, 1, listening()).expect("a listener");
    assert_eq!(accept(&mut rig, PASSIVE).err().map(|(status, _)| status), Some(Status::BadState));
    let args = connecting(&rig, 1);
    let ends = connect(&mut rig, args).expect("a stream");
    assert_eq!((ends.gid, ends.port, ends.address), (rig.gid(1), PORT, 1));
    assert!(ends.local_port > 0);
    settle(&mut rig);
    assert_eq!(rig.event_types(0), [(EventType::Stream, ACTIVE)]);
    let told = rig.events(1);
    assert_eq!((told.len(), told[0].number, told[0].generation), (1, LISTENER, GENERATION));
    assert_eq!(happened(&mut rig, 1, LISTENER), Happened::WAITING);
    let came = accept(&mut rig, PASSIVE).expect("a connection");
    assert_eq!((came.gid, came.port, came.address, came.local_port), (rig.gid(0), ends.local_port, 1, PORT));
    assert!(happened(&mut rig, 0, ACTIVE).contains(Happened::CONNECTED));
    settle(&mut rig);
    let told = rig.events(1);
    assert_eq!((told.len(), told[0].number, told[0].generation), (1, PASSIVE, GENERATION + 2));
    assert!(happened(&mut rig, 1, PASSIVE).contains(Happened::CONNECTED));
    let (from, to) = (rig.alloc(4096), rig.alloc(4096));
    for (turn, (source, sink)) in
        [((0, ACTIVE), (1, PASSIVE)), ((1, PASSIVE), (0, ACTIVE))].iter().enumerate()
    {
        rig.fill(from, 3000, turn as u8);
        assert_eq!(send(&mut rig, source.0, source.1, (from, 3000)), Ok(3000));
        settle(&mut rig);
        assert_eq!(rig.event_types(sink.0), [(EventType::Stream, sink.1)]);
        let info = query(&mut rig, sink.0, sink.1);
        assert_eq!((info.happened, info.readable), (Happened::READABLE.bits(), 3000));
        // What is looked at stays.
        let look = (Opcode::ReceiveStream, sink.1);
        assert_eq!(transfer(&mut rig, sink.0, look, (to, 16), TransferFlags::KEEP), Ok(16));
        assert_eq!(rig.bytes(to, 16), rig.bytes(from, 16));
        assert_eq!(receive(&mut rig, sink.0, sink.1, (to, 1000)), Ok(1000));
        assert_eq!(receive(&mut rig, sink.0, sink.1, (to + 1000, 3096)), Ok(2000));
        assert_eq!(rig.bytes(to, 3000), rig.bytes(from, 3000));
        assert_eq!(receive(&mut rig, sink.0, sink.1, (to, 100)), Ok(0));
        assert_eq!(query(&mut rig, source.0, source.1).unacknowledged, 0);
    }
}

#[test]
fn an_event_is_raised_once_until_the_next_query() {
    let (mut rig, _) = connected();
    let from = rig.alloc(64);
    for _ in 0..3 {
        assert_eq!(send(&mut rig, 0, ACTIVE, (from, 64)), Ok(64));
        settle(&mut rig);
    }
    assert_eq!(rig.event_types(1), [(EventType::Stream, PASSIVE)]);
    assert_eq!(query(&mut rig, 1, PASSIVE).readable, 192);
    assert_eq!(send(&mut rig, 0, ACTIVE, (from, 64)), Ok(64));
    settle(&mut rig);
    assert_eq!(rig.event_types(1), [(EventType::Stream, PASSIVE)]);
}

#[test]
fn each_side_closes_its_direction_and_the_end_is_told() {
    let (mut rig, _) = connected();
    let from = rig.alloc(64);
    assert_eq!(send(&mut rig, 0, ACTIVE, (from, 10)), Ok(10));
    rig.command(0, Opcode::CloseStream, ACTIVE, &()).expect("a stream");
    settle(&mut rig);
    let both = Happened::READABLE | Happened::PEER_CLOSED;
    assert_eq!(happened(&mut rig, 1, PASSIVE), both);
    assert_eq!(receive(&mut rig, 1, PASSIVE, (from, 64)), Ok(10));
    assert_eq!(
        receive(&mut rig, 1, PASSIVE, (from, 64)).err().map(|(status, _)| status),
        Some(Status::BadState)
    );
    assert_eq!(send(&mut rig, 0, ACTIVE, (from, 1)).err().map(|(status, _)| status), Some(Status::BadState));
    // The other direction is still open.
    assert_eq!(send(&mut rig, 1, PASSIVE, (from, 7)), Ok(7));
    rig.command(1, Opcode::CloseStream, PASSIVE, &()).expect("a stream");
    settle(&mut rig);
    assert_eq!(receive(&mut rig, 0, ACTIVE, (from, 64)), Ok(7));
    for (n, number) in [(0, ACTIVE), (1, PASSIVE)] {
        assert_eq!(end(&mut rig, n, number), StreamEnd::Closed, "{n}");
        destroy(&mut rig, n, number, 0);
    }
}

#[test]
fn a_stream_that_finds_nobody_says_why() {
    let (mut rig, cable) = rig();
    // No listener has the port.
    let args = connecting(&rig, 1);
    connect(&mut rig, args).expect("a stream");
    settle(&mut rig);
    assert_eq!(rig.event_types(0), [(EventType::Stream, ACTIVE)]);
    assert_eq!(end(&mut rig, 0, ACTIVE), StreamEnd::Refused);
    destroy(&mut rig, 0, ACTIVE, 1);
    // There is no such neighbour.
    let mut nobody = args;
    nobody.gid[15] = 77;
    connect(&mut rig, nobody).expect("a stream");
    for _ in 0..500 {
        settle(&mut rig);
    }
    assert_eq!(end(&mut rig, 0, ACTIVE), StreamEnd::NoWay);
    destroy(&mut rig, 0, ACTIVE, 1);
    // The link is down.
    cable[0].plug(false);
    rig.run();
    connect(&mut rig, args).expect("a stream");
    settle(&mut rig);
    assert_eq!(end(&mut rig, 0, ACTIVE), StreamEnd::NoWay);
}

#[test]
fn a_reset_of_the_stream_or_of_its_device_ends_the_peers() {
    for device in [false, true] {
        let (mut rig, _) = connected();
        match device {
            false => destroy(&mut rig, 1, PASSIVE, 1),
            true => _ = rig.control(1, CONTROL_RESET),
        }
        // The peer sends nothing, and knows.
        settle(&mut rig);
        assert_eq!(end(&mut rig, 0, ACTIVE), StreamEnd::Reset, "device: {device}");
    }
}

/// Two NICs with a connection, and whether the packets of either are lost. Questions for MACs are
/// not.
pub(crate) fn on_a_lossy_wire() -> (Rig, [Rc<Cell<bool>>; 2]) {
    let lossy = [(); 2].map(|()| Rc::new(Cell::new(false)));
    let mut ends = cable().into_iter().zip(&lossy).map(|(end, lossy)| {
        let lossy = lossy.clone();
        Through::new(end, move |end: &CableEnd, frame: &[u8]| {
            let is_packet = frame.get(12..14) == Some(&[8, 0]);
            if !(lossy.get() && is_packet) {
                end.put(frame);
            }
        })
    });
    let mut end = || ends.next().expect("two ends");
    let wires = [end(), end()];
    let mut rig = Rig::wired(wires, 1500);
    connect_on(&mut rig);
    (rig, lossy)
}

/// What ends a driver.
pub(crate) type Gone = fn(&mut Rig);
pub(crate) const GONE: [Gone; 3] = [
    |rig| rig.fabric.power_off(rig.nics[0].id),
    |rig| rig.fabric.power_cycle(rig.nics[0].id),
    |rig| _ = rig.control(0, CONTROL_RESET),
];

#[test]
fn a_stream_that_was_closed_ends_in_good_order_although_its_driver_has_gone() {
    for gone in GONE {
        let (mut rig, [lossy, _]) = on_a_lossy_wire();
        let (from, to) = (rig.alloc(64), rig.alloc(64));
        rig.fill(from, 64, 5);
        lossy.set(true);
        assert_eq!(send(&mut rig, 0, ACTIVE, (from, 64)), Ok(64));
        destroy(&mut rig, 0, ACTIVE, 0);
        settle(&mut rig);
        assert!(!rig.fabric.is_leaving());
        gone(&mut rig);
        assert!(rig.fabric.is_leaving(), "the peer has not heard of it");
        lossy.set(false);
        for _ in 0..20 {
            rig.advance(100_000_000);
        }
        assert_eq!(receive(&mut rig, 1, PASSIVE, (to, 64)), Ok(64));
        assert_eq!(rig.bytes(to, 64), rig.bytes(from, 64));
        assert!(happened(&mut rig, 1, PASSIVE).contains(Happened::PEER_CLOSED));
        assert!(!rig.fabric.is_leaving());
    }
}

#[test]
fn a_peer_that_does_not_answer_holds_the_streams_of_a_driver_that_has_gone_for_two_seconds() {
    for gone in GONE {
        let (mut rig, [_, lossy]) = on_a_lossy_wire();
        lossy.set(true);
        destroy(&mut rig, 0, ACTIVE, 0);
        settle(&mut rig);
        gone(&mut rig);
        for _ in 0..19 {
            rig.advance(100_000_000);
            assert!(rig.fabric.is_leaving());
        }
        for _ in 0..3 {
            rig.advance(100_000_000);
        }
        assert!(!rig.fabric.is_leaving());
        // What leaves last is a reset.
        assert_eq!(end(&mut rig, 1, PASSIVE), StreamEnd::Reset);
    }
}

#[test]
fn a_driver_that_goes_resets_its_streams_also_where_the_peers_mac_is_not_known() {
    for gone in GONE {
        let (mut rig, _) = on_a_lossy_wire();
        gone(&mut rig);
        settle(&mut rig);
        assert_eq!(end(&mut rig, 1, PASSIVE), StreamEnd::Reset);
        assert!(!rig.fabric.is_leaving());
    }
}

#[test]
fn bytes_wait_for_room_in_the_ring_and_in_the_wire() {
    let (mut rig, cable) = connected();
    let (from, to) = (rig.alloc(1 << 16), rig.alloc(1 << 16));
    rig.fill(from, 1 << 16, 9);
    cable[0].set_room(false);
    let mut sent = 0;
    while let Ok(count @ 1..) = send(&mut rig, 0, ACTIVE, (from, 1 << 16)) {
        sent += count;
    }
    assert!(sent >= 1 << 11, "{sent}");
    assert_eq!(query(&mut rig, 1, PASSIVE).readable, 0);
    cable[0].set_room(true);
    let mut came = 0;
    for _ in 0..200 {
        settle(&mut rig);
        while let Ok(count @ 1..) = receive(&mut rig, 1, PASSIVE, (to, 1 << 16)) {
            came += count;
        }
        if came == sent {
            break;
        }
    }
    assert_eq!(came, sent);
    assert!(happened(&mut rig, 0, ACTIVE).contains(Happened::WRITABLE));
    assert_eq!(send(&mut rig, 0, ACTIVE, (from, 100)), Ok(100));
}

#[test]
fn a_command_with_a_bad_argument_is_refused_and_changes_nothing() {
    let (mut rig, _) = connected();
    let listening = listening();
    for (args, status) in [
        (ListenStream { port: 0, ..listening }, Status::BadField),
        (ListenStream { port: 65_536, ..listening }, Status::BadField),
        (ListenStream { address: 9, ..listening }, Status::BadField),
        (ListenStream { backlog: 0, ..listening }, Status::BadField),
        (ListenStream { backlog: 1025, ..listening }, Status::BadField),
        (ListenStream { eq: 1, ..listening }, Status::NoSuchObject),
        (ListenStream { reserved: 1, ..listening }, Status::BadField),
    ] {
        assert_eq!(listen(&mut rig, 0, args).err().map(|(status, _)| status), Some(status), "{args:?}");
    }
    // The port, and the number, are taken.
    let again = rig.command(1, Opcode::ListenStream, 100, &listening);
    assert_eq!(again.err().map(|(status, _)| status), Some(Status::Exists));
    assert_eq!(listen(&mut rig, 1, listening).err().map(|(status, _)| status), Some(Status::Exists));
    let good = connecting(&rig, 1);
    let mut group = good;
    group.gid = [0xff; 16];
    for (args, number, status) in [
        (good, ACTIVE, Status::Exists),
        (good, 1 << 12, Status::BadField),
        (ConnectStream { port: 0, ..good }, 50, Status::BadField),
        (ConnectStream { address: 0, ..good }, 50, Status::BadField),
        (ConnectStream { address: 200, ..good }, 50, Status::BadField),
        (ConnectStream { local_port: 65_536, ..good }, 50, Status::BadField),
        (ConnectStream { eq: 7, ..good }, 50, Status::NoSuchObject),
        (ConnectStream { reserved: 1, ..good }, 50, Status::BadField),
        (group, 50, Status::BadField),
    ] {
        let refused = rig.command(0, Opcode::ConnectStream, number, &args);
        assert_eq!(refused.err().map(|(status, _)| status), Some(status), "{args:?}");
    }
    let memory = rig.alloc(64);
    let transfers = [
        ((memory, 1 << 17), 0, Status::BadField),
        ((memory, 8), 2, Status::BadField),
        ((u64::MAX - 4, 8), 0, Status::Dma),
    ];
    for opcode in [Opcode::SendStream, Opcode::ReceiveStream] {
        for (bytes, flags, status) in transfers {
            let flags = TransferFlags::from_bits_retain(flags);
            let refused = transfer(&mut rig, 0, (opcode, ACTIVE), bytes, flags);
            assert_eq!(refused.err().map(|(status, _)| status), Some(status), "{opcode:?} {bytes:?}");
        }
        let nothing = transfer(&mut rig, 0, (opcode, 60), (memory, 8), TransferFlags::empty());
        assert_eq!(nothing.err().map(|(status, _)| status), Some(Status::NoSuchObject));
        // A listener carries no bytes.
        let listener = transfer(&mut rig, 1, (opcode, LISTENER), (memory, 8), TransferFlags::empty());
        assert_eq!(listener.err().map(|(status, _)| status), Some(Status::NoSuchObject));
    }
    let keeps = transfer(&mut rig, 0, (Opcode::SendStream, ACTIVE), (memory, 8), TransferFlags::KEEP);
    assert_eq!(keeps.err().map(|(status, _)| status), Some(Status::BadField));
    for args in [DestroyStream { reset: 2, reserved: 0 }, DestroyStream { reset: 0, reserved: 1 }] {
        let refused = rig.command(0, Opcode::DestroyStream, ACTIVE, &args);
        assert_eq!(refused.err().map(|(status, _)| status), Some(Status::BadField));
    }
    // A stream and a listener use their event queue.
    let busy = rig.command(0, Opcode::DestroyEq, 0, &());
    assert_eq!(busy.err().map(|(status, _)| status), Some(Status::Busy));
    assert_eq!(send(&mut rig, 0, ACTIVE, (memory, 8)), Ok(8));
}

#[test]
fn a_port_answers_segments_from_the_start_of_its_device_on() {
    let (mut rig, _) = rig();
    rig.control(1, CONTROL_RESET);
    let args = connecting(&rig, 1);
    connect(&mut rig, args).expect("a stream");
    settle(&mut rig);
    assert!(rig.port(1).dropped(Dropped::NotRoce) > 0);
    assert_eq!((rig.port(1).segments_in, rig.port(1).segments_out), (0, 0));
    assert_eq!(end(&mut rig, 0, ACTIVE), StreamEnd::None);
    // The device that is started gets the SYN when it is repeated, and nobody listens.
    rig.bring_up(1);
    rig.advance(4_000_000_000);
    settle(&mut rig);
    assert_eq!(end(&mut rig, 0, ACTIVE), StreamEnd::Refused);
    assert!(rig.port(1).segments_in > 0 && rig.port(1).segments_out > 0);
}

#[test]
fn a_listener_that_ends_resets_what_waits_at_it() {
    let (mut rig, _) = rig();
    listen(&mut rig, 1, listening()).expect("a listener");
    let args = connecting(&rig, 1);
    connect(&mut rig, args).expect("a stream");
    settle(&mut rig);
    destroy(&mut rig, 1, LISTENER, 0);
    settle(&mut rig);
    assert_eq!(end(&mut rig, 0, ACTIVE), StreamEnd::Reset);
    rig.command(1, Opcode::DestroyEq, 0, &()).expect("nothing uses it");
}
