//! Registered memory (3.2.1; pages VipRegisterMem, VipDeregisterMem, VipSetMemAttributes,
//! VipQueryMem, VIP_MEM_ATTRIBUTES).

use vipl::*;

use super::levels::{exchange, retire};
use super::world::*;
use crate::fixture::{PAGE, pattern, read, write};
use crate::thread::Thread;
use crate::{Test, check, check_eq, not_shown, refused, test};

static CONSTANTS: [u8; 64] = [0xa5; 64];

pub(crate) const TESTS: &[Test] = &[
    // Memory of any length from any address on can be registered, any number of times, each time
    // with another handle, and its bytes do not change. Handle and address together name it, until
    // it is deregistered.
    test(
        "via_memory::register_query_deregister",
        &[
            "VipRegisterMem A01 B01 B03 B07 B08 VIP_INVALID_PARAMETER VIP_INVALID_PTAG",
            "VipDeregisterMem B02 VIP_INVALID_PARAMETER",
            "VipSetMemAttributes VIP_INVALID_PARAMETER VIP_INVALID_PTAG",
            "VipQueryMem B01 VIP_INVALID_PARAMETER",
            "VIP_MEM_ATTRIBUTES B01",
            "via-3.2.1 B02 B04",
            "via-11.3 B03",
        ],
        |f| {
            world(f, |w| {
                let nic = &w.a;
                let counts = || f.setup.a.agent.counts().regions;
                let (ptag, other, gone) = (nic.create_ptag()?, nic.create_ptag()?, nic.create_ptag()?);
                nic.destroy_ptag(gone)?;
                let (buffer, bytes) = (f.buffer(2 * PAGE)?, pattern(6, 2 * PAGE));
                write(&buffer, 0, &bytes);
                let none = counts();
                let plain = MemAttributes::new(ptag);
                let register = |offset, length, attributes: &MemAttributes| {
                    nic.register_mem(Memory::Buffer { buffer: &buffer, offset }, length, attributes)
                };
                for (offset, length) in
                    [(0, 0), (1, 2 * PAGE as u64), (2 * PAGE, 1), (usize::MAX, 1), (8, u64::MAX)]
                {
                    refused(register(offset, length, &plain), Error::InvalidParameter)?;
                }
                for ptag in [gone, PtagHandle::NULL] {
                    refused(register(0, 8, &MemAttributes { ptag, ..plain }), Error::InvalidPtag)?;
                }
                let constants = MemAttributes { enable_rdma_write: true, ..plain };
                let registered = nic.register_mem(Memory::Static(&CONSTANTS), 64, &constants);
                refused(registered, Error::InvalidParameter)?;
                check_eq!(counts(), none);
                let (first, second) = (register(3, 1001, &plain)?, register(3, 1001, &open_memory(other))?);
                check!(first != second && ![first, second].contains(&MemHandle::NULL));
                check_eq!(counts(), none + 2);
                let at = (buffer.addr() + 3) as u64;
                check_eq!(nic.query_mem(at, first)?, plain);
                check_eq!(nic.query_mem(at, second)?, open_memory(other));
                let set = MemAttributes { enable_rdma_read: true, ptag: other, ..plain };
                nic.set_mem_attributes(at, first, &set)?;
                check_eq!(nic.query_mem(at, first)?, set);
                let refusal = nic.set_mem_attributes(at, first, &MemAttributes::new(gone));
                refused(refusal, Error::InvalidPtag)?;
                let bad = [
                    (at + 1, first),
                    (at - 1, first),
                    (at, MemHandle::NULL),
                    (at, MemHandle::from_raw(first.as_raw() ^ 0x10000)),
                ];
                for (address, handle) in bad {
                    let invalid = Error::InvalidParameter;
                    refused(nic.query_mem(address, handle), invalid)?;
                    refused(nic.set_mem_attributes(address, handle, &plain), invalid)?;
                    refused(nic.deregister_mem(address, handle), invalid)?;
                }
                check_eq!((nic.query_mem(at, first)?, counts()), (set, none + 2));
                nic.deregister_mem(at, first)?;
                check_eq!(counts(), none + 1);
                refused(nic.deregister_mem(at, first), Error::InvalidParameter)?;
                refused(nic.query_mem(at, first), Error::InvalidParameter)?;
                refused(nic.set_mem_attributes(at, first, &plain), Error::InvalidParameter)?;
                check_eq!(nic.query_mem(at, second)?, open_memory(other));
                nic.deregister_mem(at, second)?;
                check_eq!((counts(), read(&buffer, 0, 2 * PAGE)), (none, bytes));
                Ok(())
            })
        },
    ),
    // The same bytes under two handles, one of which is deregistered; one byte at an odd address;
    // and not one byte more, in the same page or the next.
    test("via_memory::bounds", &["via-3.2.1 B05 B10 O01", "via-2.2 B01 B02"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            let buffer = f.buffer(3 * PAGE)?;
            let register = |offset, length| {
                let memory = Memory::Buffer { buffer: &buffer, offset };
                b.nic.register_mem(memory, length, &open_memory(b.ptag))
            };
            let at = |offset: usize| (buffer.addr() + offset) as u64;
            let (one, again) = (register(777, 1)?, register(777, 1)?);
            let page = register(0, PAGE as u64)?;
            b.nic.deregister_mem(at(777), again)?;
            a.write(0, b"xyz");
            let seg =
                |address, handle: MemHandle, length| DataSegment { address, handle: handle.as_raw(), length };
            let wrong = [
                seg(at(777), one, 2),
                seg(at(776), one, 1),
                seg(at(778), one, 1),
                seg(at(777), again, 1),
                seg(at(777), MemHandle::NULL, 1),
                seg(at(PAGE - 1), page, 2),
                seg(at(PAGE), page, 1),
                seg(at(2 * PAGE), page, 1),
            ];
            for segment in wrong {
                b.receive(0, &[segment])?;
                a.send(0, &[a.data(0, 1)], None)?;
                a.sent_well(0)?;
                failed(b.received(0)?, Status::PROTECTION_ERROR)?;
                b.send(1, &[segment], None)?;
                failed(b.sent(1)?, Status::PROTECTION_ERROR)?;
            }
            check_eq!(read(&buffer, 0, 3 * PAGE), alloc::vec![0; 3 * PAGE]);
            b.receive(0, &[seg(at(777), one, 1), seg(at(PAGE - 1), page, 1)])?;
            a.send(0, &[a.data(0, 2)], None)?;
            a.sent_well(0)?;
            b.received_well(0)?;
            check_eq!(
                (read(&buffer, 776, 3), read(&buffer, PAGE - 1, 2)),
                (b"\0x\0".to_vec(), b"y\0".to_vec())
            );
            Ok(())
        })
    }),
    // Registered memory stays allocated, even if the consumer drops its buffer: the peer reads it.
    // The deregistration frees it.
    test(
        "via_memory::it_stays_in_its_place",
        &["via-3.2.1 B03", "VipRegisterMem B02", "VipDeregisterMem B01"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(ReliabilityLevel::Delivery)?;
                let dma = || (f.setup.usage)().dma;
                let (len, bytes) = (16 * PAGE, pattern(3, 16 * PAGE));
                let (from, handle) = {
                    let buffer = f.buffer(len)?;
                    write(&buffer, 0, &bytes);
                    let memory = Memory::Buffer { buffer: &buffer, offset: 5 };
                    let handle = b.nic.register_mem(memory, (len - 6) as u64, &open_memory(b.ptag))?;
                    ((buffer.addr() + 5) as u64, handle)
                };
                // Any address and any length, to the byte.
                let page = f.buffer(2 * PAGE)?;
                write(&page, 0, &bytes[..2 * PAGE]);
                for (offset, length) in [(0, 1), (1, 1), (4095, 1), (4095, 2), (3, 4096), (77, 5000)] {
                    let memory = Memory::Buffer { buffer: &page, offset };
                    let odd = b.nic.register_mem(memory, length as u64, &open_memory(b.ptag))?;
                    let address = (page.addr() + offset) as u64;
                    let all = AddressSegment { address, handle: odd.as_raw(), reserved: 0 };
                    a.rdma_read(0, &all, &[a.data(0, length)])?;
                    a.sent_well(0)?;
                    check_eq!(a.bytes(0, length), bytes[offset..offset + length]);
                    b.nic.deregister_mem(address, odd)?;
                }
                drop(page);
                let registered = dma();
                let others = f.buffer(len)?;
                write(&others, 0, &alloc::vec![0xee; len]);
                let remote = AddressSegment { address: from, handle: handle.as_raw(), reserved: 0 };
                a.rdma_read(0, &remote, &[a.data(0, DATA_LEN)])?;
                a.sent_well(0)?;
                check_eq!(a.bytes(0, DATA_LEN), bytes[5..5 + DATA_LEN]);
                drop(others);
                check_eq!(dma(), registered);
                b.nic.deregister_mem(from, handle)?;
                if registered > 0 {
                    w.until("the memory is given back", || dma() + len <= registered)?;
                }
                a.rdma_read(0, &remote, &[a.data(0, 8)])?;
                failed(a.sent(0)?, Status::RDMA_PROT_ERROR)
            })
        },
    ),
    // All threads can use memory that one thread registered, and two virtual interfaces can use a
    // region with their tag.
    test("via_memory::threads_share_it", &["via-3.2.1 B06", "VipRegisterMem B04"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Delivery)?;
            let second = a.nic.create_vi(
                &attributes(a.ptag, ReliabilityLevel::Delivery),
                CqHandle::NULL,
                CqHandle::NULL,
            )?;
            a.write(0, b"of a thread");
            b.receive(0, &[b.data(0, 20)])?;
            a.descriptor(0)?.send(&[a.data(0, 11)], None)?;
            let (nic, vi, memory, at) = (a.nic.clone(), a.vi, a.region.handle, a.descriptor(0)?.address());
            let posted = Thread::spawn(f.platform(), "poster", move || nic.post_send(vi, at, memory))?;
            posted.join()??;
            a.sent_well(0)?;
            b.received_well(0)?;
            check_eq!(b.bytes(0, 11), b"of a thread");
            // The second virtual interface uses the same region for its descriptors.
            a.descriptor(1)?.send(&[a.data(0, 11)], None)?;
            a.nic.post_send(second, a.descriptor(1)?.address(), a.region.handle)?;
            check_eq!(a.nic.send_wait(second, LONG)?, a.descriptor(1)?.address());
            failed(a.descriptor(1)?.status(), Status::DESC_FLUSHED_ERROR)?;
            Ok(())
        })
    }),
    // Descriptors that refer to memory, or that lie in it, fail if the NIC processes them after its
    // deregistration, and only then.
    test("via_memory::deregistered_under_descriptors", &["via-3.2.1 B11", "via-11.3 B04"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            let errors = w.errors(&b.nic)?;
            let (data, descriptors) = (
                w.region(&b.nic, PAGE, &open_memory(b.ptag))?,
                w.region(&b.nic, PAGE, &open_memory(b.ptag))?,
            );
            b.receive(0, &[data.segment(0, 100)])?;
            let lost = descriptors.descriptor(0, 1)?;
            lost.receive(&[b.data(0, 100)])?;
            b.nic.post_recv(b.vi, lost.address(), descriptors.handle)?;
            b.receive(1, &[b.data(0, 100)])?;
            for region in [&data, &descriptors] {
                b.nic.deregister_mem(region.address(0), region.handle)?;
            }
            refused(b.nic.recv_done(b.vi), Error::NotDone)?;
            check_eq!((b.descriptor(0)?.status(), errors.count()), (Status::empty(), 0));
            a.fill(2);
            a.send(0, &[a.data(0, 10)], None)?;
            failed(b.received(0)?, Status::PROTECTION_ERROR)?;
            a.sent_well(0)?;
            data.untouched()?;
            a.send(0, &[a.data(0, 10)], None)?;
            a.sent_well(0)?;
            let error = errors.expect(&b, ErrorCode::PostDesc)?;
            check_eq!((error.descriptor, lost.status()), (lost.address(), Status::empty()));
            // The first message was lost with the descriptor, or took the next one.
            a.send(0, &[a.data(0, 10)], None)?;
            a.sent_well(0)?;
            b.received_well(1)?;
            check_eq!(b.bytes(0, 10), a.bytes(0, 10));
            Ok(())
        })
    }),
    // Constants can be sent, and not be written. A peer cannot get the right to write them.
    test("via_memory::constants", &["VipRegisterMem B06", "via-11.3 B06"], |f| {
        world(f, |w| {
            let write = MemAttributes { enable_rdma_write: true, ..MemAttributes::new(w.a.create_ptag()?) };
            let constants = Memory::Static(&CONSTANTS);
            refused(w.a.register_mem(constants, 64, &write), Error::InvalidParameter)?;
            // The machine may keep constants in memory that devices cannot access.
            if f.platform().translate(CONSTANTS.as_ptr().addr()).is_none() {
                return not_shown("devices cannot access constants");
            }
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            let address = CONSTANTS.as_ptr().addr() as u64;
            let handle = b.nic.register_mem(constants, 64, &MemAttributes::new(b.ptag))?;
            let set = MemAttributes { enable_rdma_write: true, ..MemAttributes::new(b.ptag) };
            refused(b.nic.set_mem_attributes(address, handle, &set), Error::InvalidParameter)?;
            let segment = DataSegment { address, handle: handle.as_raw(), length: 64 };
            b.receive(0, &[segment])?;
            a.send(0, &[a.data(0, 8)], None)?;
            failed(b.received(0)?, Status::PROTECTION_ERROR)?;
            a.sent_well(0)?;
            a.receive(1, &[a.data(0, 64)])?;
            b.send(1, &[segment], None)?;
            b.sent_well(1)?;
            a.received_well(1)?;
            check_eq!((a.bytes(0, 64), CONSTANTS), (CONSTANTS.to_vec(), [0xa5; 64]));
            Ok(())
        })
    }),
    // A handle of another opening is invalid: for what the virtual interface sends or receives, and
    // for what its peer accesses. So is a handle of another region.
    test(
        "via_memory::of_another_consumer",
        &[
            "via-1.5.3 B02 B03",
            "via-3.2.1 B07",
            "via-3.2.2 B01",
            "VIP_ADDRESS_SEGMENT B02 F02",
            "VIP_DATA_SEGMENT F02",
        ],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
                let stranger = w.side(&w.another()?, ReliabilityLevel::Unreliable, NO_CQS)?;
                let region = w.region(&a.nic, PAGE, &open_memory(a.ptag))?;
                let mixed = DataSegment { handle: a.region.handle.as_raw(), ..region.segment(0, 8) };
                for segment in [stranger.data(0, 8), mixed] {
                    a.send(0, &[segment], None)?;
                    failed(a.sent(0)?, Status::PROTECTION_ERROR)?;
                    a.receive(1, &[segment])?;
                    b.send(0, &[b.data(0, 8)], None)?;
                    b.sent_well(0)?;
                    failed(a.received(1)?, Status::PROTECTION_ERROR)?;
                }
                exchange(&a, &b)?;
                stranger.untouched()?;
                region.untouched()?;
                for nic in [w.a.clone(), w.another()?] {
                    // At the target: a region of another opening of its NIC, and the handle of
                    // another region.
                    let (a, b) = (
                        w.side(&w.b, ReliabilityLevel::Reception, NO_CQS)?,
                        w.side(&w.a, ReliabilityLevel::Reception, NO_CQS)?,
                    );
                    w.connect(&a, &b)?;
                    let foreign = if nic.handle() == w.a.handle() {
                        let other = w.region(&w.a, PAGE, &open_memory(b.ptag))?;
                        AddressSegment { handle: b.region.handle.as_raw(), ..other.remote(0) }
                    } else {
                        stranger.remote(0)
                    };
                    a.fill(7);
                    a.rdma_write(0, &foreign, &[a.data(0, 8)], None)?;
                    failed(a.sent(0)?, Status::RDMA_PROT_ERROR)?;
                    stranger.untouched()?;
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    ),
];
