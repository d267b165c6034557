//! The numbers of the enumerations, the layout of descriptors, network addresses (appendix A's
//! types, chapter 10).

use alloc::vec::Vec;
use core::mem::size_of;

use vipl::*;

use super::levels::{broken, retire};
use super::world::*;
use crate::{Test, check, check_eq, refused, test};

/// The fields one after the other, each little-endian already.
fn fields(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

pub(crate) const TESTS: &[Test] = &[
    // Return values, states, levels and resources have the numbers of the enumerations, and the
    // calls return them.
    test(
        "via_values::numbers",
        &["VIP_RETURN F01-F11", "VIP_VI_STATE F01-F04", "VIP_RESOURCE_CODE F03"],
        |f| {
            let errors = [
                Error::NotDone,
                Error::InvalidParameter,
                Error::ErrorResource,
                Error::Timeout,
                Error::Reject,
                Error::InvalidReliabilityLevel,
                Error::InvalidMtu,
                Error::InvalidQos,
                Error::InvalidPtag,
                Error::InvalidRdmaRead,
            ];
            check_eq!(SUCCESS, 0);
            check_eq!(errors.map(Error::as_raw), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
            let states = [ViState::Idle, ViState::Connected, ViState::ConnectPending, ViState::Error];
            check_eq!(states.map(|state| state as u32), [0, 1, 2, 3]);
            let resources = [ResourceCode::Nic, ResourceCode::Vi, ResourceCode::Cq, ResourceCode::Descriptor];
            check_eq!(resources.map(|resource| resource as u32), [0, 1, 2, 3]);
            world(f, |w| {
                let side = w.side(&w.a, ReliabilityLevel::Delivery, NO_CQS)?;
                refused(w.a.recv_done(side.vi), Error::NotDone)?;
                refused(w.a.recv_done(ViHandle::NULL), Error::InvalidParameter)?;
                refused(w.a.destroy_ptag(side.ptag), Error::ErrorResource)?;
                refused(w.a.recv_wait(side.vi, 0), Error::Timeout)?;
                let of = |ptag| attributes(ptag, ReliabilityLevel::Unreliable);
                refused(w.a.set_vi_attributes(side.vi, &of(PtagHandle::NULL)), Error::InvalidPtag)
            })
        },
    ),
    // The level with the number 0 does not report the peer's missing receive; with 1 a Send
    // succeeds once it has left, and the connection breaks; with 2 the Send shows the error.
    test("via_values::levels", &["VIP_RELIABILITY_LEVEL F01-F03"], |f| {
        world(f, |w| {
            for (number, level) in (0..).zip(LEVELS) {
                check_eq!(level as u32, number);
                let (a, b) = w.pair(level)?;
                a.send(0, &[a.data(0, 8)], None)?;
                let status = a.sent(0)?;
                match number {
                    2 => failed(status, Status::REMOTE_DESC_ERROR)?,
                    _ => success(status)?,
                }
                if number > 0 {
                    broken(w, &a)?;
                    broken(w, &b)?;
                } else {
                    w.arrived(&a, &b)?;
                    super::levels::exchange(&a, &b)?;
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // The bits of the status word.
    test("via_values::status_bits", &["VIP_STATUS F02-F10"], |_| {
        let errors = [
            Status::FORMAT_ERROR,
            Status::PROTECTION_ERROR,
            Status::LENGTH_ERROR,
            Status::PARTIAL_ERROR,
            Status::DESC_FLUSHED_ERROR,
            Status::TRANSPORT_ERROR,
            Status::RDMA_PROT_ERROR,
            Status::REMOTE_DESC_ERROR,
        ];
        let bits = errors.map(|error| error.bits());
        check_eq!(bits, [0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100]);
        check_eq!(bits.iter().sum::<u32>(), Status::ERROR_MASK.bits());
        check_eq!(Status::ERROR_MASK.bits(), 0x1fe);
        check_eq!((Status::DONE | Status::OP_RECEIVE) & Status::ERROR_MASK, Status::empty());
        for error in errors {
            check!(!((Status::DONE | error) & Status::ERROR_MASK).is_empty(), "{error:?}");
        }
        Ok(())
    }),
    // Descriptors that are written byte by byte, with the fields of appendix B, are executed as
    // such, and the NIC writes status, length and immediate data where the appendix has them. The
    // descriptor view writes the same bytes.
    test(
        "via_values::layout",
        &[
            "VIP_DESCRIPTOR A01 F01",
            "VIP_PVOID64 F01 F02",
            "VIP_CONTROL_SEGMENT F03 F04 F08 F09",
            "VIP_ADDRESS_SEGMENT B01 F01",
            "VIP_DATA_SEGMENT F01",
            "via-6.1 F01",
            "via-10.1 F01",
            "via-2.3.2 B01 B02",
            "VIP_CONTROL F05",
        ],
        |f| {
            check_eq!((CONTROL_LEN, SEGMENT_LEN, size_of::<AddressSegment>()), (32, 16, 16));
            check_eq!((size_of::<MemHandle>(), descriptor_len(3)), (4, 32 + 3 * 16));
            world(f, |w| {
                let (a, b) = w.pair(ReliabilityLevel::Reception)?;
                a.fill(5);
                let handle = a.region.handle.as_raw().to_le_bytes();
                let pointer = |at: usize| (a.region.buffer.slice().as_ptr().addr() + DATA + at) as u64;
                check_eq!(pointer(7), a.data(7, 0).address, "a pointer as 64 bits");
                let data =
                    |at: usize, len: u32| fields(&[&pointer(at).to_le_bytes(), &handle, &len.to_le_bytes()]);
                let remote = b.remote(100);
                let address = fields(&[
                    &remote.address.to_le_bytes(),
                    &b.region.handle.as_raw().to_le_bytes(),
                    &[0; 4],
                ]);
                // Next and its handle, segment count, control, reserved, immediate data, length,
                // status.
                let control = |segments: u16, control: u16, immediate: u32, length: u32| {
                    fields(&[
                        &[0; 12],
                        &segments.to_le_bytes(),
                        &control.to_le_bytes(),
                        &[0; 4],
                        &immediate.to_le_bytes(),
                        &length.to_le_bytes(),
                        &[0; 4],
                    ])
                };
                let lists = [data(10, 3), data(1000, 4), data(20, 5)];
                // An RDMA Write from three segments to one remote buffer, with immediate data.
                let write = fields(&[&control(4, 5, 0x0a0b_0c0d, 12), &address, &lists.concat()]);
                a.region.write(0, &write);
                b.receive(0, &[])?;
                a.post_send(0)?;
                a.sent_well(0)?;
                b.received_well(0)?;
                let moved = fields(&[&a.bytes(10, 3), &a.bytes(1000, 4), &a.bytes(20, 5)]);
                check_eq!(b.bytes(100, 12), moved);
                check_eq!((b.bytes(99, 1), b.bytes(112, 1)), (alloc::vec![0], alloc::vec![0]));
                check_eq!(a.region.bytes(24, 8), [12, 0, 0, 0, 1, 0, 2, 0]);
                check_eq!(b.region.bytes(20, 4), [0x0d, 0x0c, 0x0b, 0x0a]);
                check_eq!(b.region.bytes(28, 4), [1, 0, 0xb, 0]);
                let view = a.descriptor(1)?;
                let pieces = [a.data(10, 3), a.data(1000, 4), a.data(20, 5)];
                view.rdma_write(&remote, &pieces, Some(0x0a0b_0c0d))?;
                check_eq!(
                    a.region.bytes((view.address() - a.region.address(0)) as usize, write.len()),
                    write
                );
                // An RDMA Read from one remote buffer into three segments.
                b.write(500, b"to be read.!");
                let back = b.remote(500).address.to_le_bytes();
                a.region.write(0, &fields(&[&control(4, 2, 0, 12), &back, &address[8..], &lists.concat()]));
                a.post_send(0)?;
                a.sent_well(0)?;
                check_eq!((a.bytes(10, 3), a.bytes(1000, 4)), (b"to ".to_vec(), b"be r".to_vec()));
                check_eq!(a.bytes(20, 5), b"ead.!");
                // A Send and its Receive have no address segment.
                b.region.write(
                    0,
                    &fields(&[&control(1, 0, 0, 0), &{
                        let segment = b.data(0, 50);
                        let handle = segment.handle.to_le_bytes();
                        fields(&[&segment.address.to_le_bytes(), &handle, &50u32.to_le_bytes()])
                    }]),
                );
                b.post_recv(0)?;
                a.region.write(0, &fields(&[&control(1, 0, 0, 5), &data(20, 5)]));
                a.post_send(0)?;
                a.sent_well(0)?;
                b.received_well(0)?;
                check_eq!(b.bytes(0, 5), b"ead.!");
                check_eq!(b.region.bytes(24, 8), [5, 0, 0, 0, 1, 0, 1, 0]);
                Ok(())
            })
        },
    ),
    // A network address consists of the lengths of its parts, followed by the parts. Two
    // discriminators at one host are distinct.
    test("via_values::network_addresses", &["VIP_NET_ADDRESS F01-F03"], |f| {
        for host in [&[][..], &[10, 0, 0, 1], &[7; 16]] {
            for discriminator in [&b""[..], b"x", &[9; MAX_DISCRIMINATOR]] {
                let address = NetAddress::new(host, discriminator)?;
                let lengths = [host.len() as u8, 0, discriminator.len() as u8, 0];
                let bytes = fields(&[&lengths, host, discriminator]);
                check_eq!(&address.to_bytes()[..], &bytes[..]);
                let parsed = NetAddress::parse(&bytes)?;
                check_eq!((parsed.host(), parsed.discriminator()), (host, discriminator));
                refused(NetAddress::parse(&bytes[..bytes.len() - 1]), Error::InvalidParameter)?;
            }
        }
        refused(NetAddress::new(&[1; 5], b""), Error::InvalidParameter)?;
        refused(NetAddress::new(&[], &[9; MAX_DISCRIMINATOR + 1]), Error::InvalidParameter)?;
        world(f, |w| {
            let [one, two] = [b"one", b"two"].map(|name| w.b.address(name));
            let (one, two) = (one?, two?);
            let side = w.side(&w.a, ReliabilityLevel::Delivery, NO_CQS)?;
            let asked = super::connect::ask(w, &side, b"client", &two, LONG)?;
            let request = w.b.connect_wait(&two, None, LONG)?;
            refused(w.b.connect_wait(&one, None, 0), Error::Timeout)?;
            w.b.connect_reject(request.conn)?;
            check_eq!(asked.join()?, Err(Error::Reject));
            Ok(())
        })
    }),
];
