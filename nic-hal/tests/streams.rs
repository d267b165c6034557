//! The driver's commands for streams.

extern crate ferrovia_nic_hal as nic_hal;

mod common;

use common::open;
use host::fake::{Fake, identity, success};
use nic_abi::admin::{
    AcceptStream, ConnectStream, DestroyStream, Opcode, Response, Status, StreamEnds, StreamInfo,
    TransferFlags, TransferStream,
};
use nic_hal::{CommandError, Death, Error};
use zerocopy::IntoBytes;

/// A device that answers each command with this status and these first bytes of a result.
fn answering(status: Status, result: &[u8]) -> Fake {
    let result = result.to_vec();
    Fake::new(identity(), move |command| {
        let mut response = Response { status: status as u16, ..success(command)? };
        response.result[..result.len()].copy_from_slice(&result);
        Some(response)
    })
}

#[test]
fn a_listener_at_which_no_stream_waits_is_no_error() {
    let fake = answering(Status::BadState, &[]);
    let nic = open(&fake).expect("it opens");
    assert_eq!(nic.accept_stream(4, &AcceptStream::default()).map(|ends| ends.is_some()), Ok(false));
    let refused = nic.query_stream(4).map(|_| ());
    let status = Status::BadState;
    assert!(matches!(refused, Err(Error::Command(CommandError { status: found, .. })) if found == status));
    let ends = StreamEnds { port: 7, local_port: 9, ..StreamEnds::default() };
    let fake = answering(Status::Success, ends.as_bytes());
    let nic = open(&fake).expect("it opens");
    let args = AcceptStream { listener: 3, ..AcceptStream::default() };
    let accepted = nic.accept_stream(4, &args).expect("accepted").expect("a stream");
    assert_eq!((accepted.port, accepted.local_port), (7, 9));
    let (number, given) = fake.last::<AcceptStream>(Opcode::AcceptStream);
    assert_eq!((number, given.listener), (4, 3));
    assert_eq!(nic.connect_stream(5, &ConnectStream::default()).map(|ends| ends.port), Ok(7));
    let info = StreamInfo { happened: 3, readable: 12, ..StreamInfo::default() };
    let fake = answering(Status::Success, info.as_bytes());
    let nic = open(&fake).expect("it opens");
    assert_eq!(nic.query_stream(4).map(|info| (info.happened, info.readable)), Ok((3, 12)));
}

#[test]
fn bytes_pass_through_the_buffer_as_many_as_it_holds() {
    let fake = answering(Status::Success, &16_u32.to_le_bytes());
    let nic = open(&fake).expect("it opens");
    let buffer = nic.stream_buffer(16).expect("memory");
    assert_eq!((buffer.len(), buffer.is_empty()), (16, false));
    assert_eq!(nic.send_stream(7, &buffer, &[5; 40]), Ok(16));
    let (number, args) = fake.last::<TransferStream>(Opcode::SendStream);
    assert_eq!((number, args.length, args.flags), (7, 16, 0));
    let mut bytes = [0; 16];
    fake.memory(args.addr, 16).read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 16]);
    fake.memory(args.addr, 16).write(0, &[6; 16]).unwrap();
    let mut into = [0; 40];
    assert_eq!(nic.receive_stream(7, &buffer, &mut into, TransferFlags::KEEP), Ok(16));
    let (_, args) = fake.last::<TransferStream>(Opcode::ReceiveStream);
    assert_eq!((args.length, args.flags), (16, TransferFlags::KEEP.bits()));
    assert_eq!((&into[..16], &into[16..]), (&[6; 16][..], &[0; 24][..]));
    nic.destroy_stream(7, true).expect("accepted");
    assert_eq!(fake.last::<DestroyStream>(Opcode::DestroyStream).1.reset, 1);
    drop(buffer);
    assert_eq!(nic.quarantined(), 0);
}

#[test]
fn a_device_that_takes_more_bytes_than_there_are_is_dead() {
    let fake = answering(Status::Success, &17_u32.to_le_bytes());
    let nic = open(&fake).expect("it opens");
    let buffer = nic.stream_buffer(16).expect("memory");
    let mut into = [0; 16];
    let dead = Err(Error::DeviceDead(Death::Protocol));
    assert_eq!(nic.receive_stream(7, &buffer, &mut into, TransferFlags::empty()), dead);
    assert_eq!(into, [0; 16]);
    assert_eq!(nic.send_stream(7, &buffer, &[1]), dead);
}
