//! RDMA Writes with immediate data (IB extensions 2.1), and Receives with immediate data.

use alloc::vec::Vec;
use core::result::Result;

use dat::*;
use privileged_api as it;

use super::world::*;
use crate::datagrams::ud;
use crate::fixture::{self, PAGE, SIGNALLED, attributes as plain_attributes, path};
use crate::thread::eventually;
use crate::{Failure, Outcome, Test, check, check_eq, not_shown, refused, some, test};

/// Posts an RDMA Write with immediate data.
pub(crate) fn write(
    end: &End,
    segments: &[LmrTriplet],
    cookie: u64,
    to: RmrTriplet,
    immediate: u32,
    flags: CompletionFlags,
) -> Result<(), Error> {
    end.ia.ib_post_rdma_write_with_immed(end.ep, segments, cookie, &to, immediate, flags)
}

/// Takes the next completion of a request, which must be that of an RDMA Write with immediate data.
#[track_caller]
pub(crate) fn written(end: &End, cookie: u64, status: DtoStatus) -> Outcome {
    let (done, number, extension) = end.done(cookie, status)?;
    check_eq!((number, done.operation), (EventNumber::IB_DTO, Dto::IB_RDMA_WRITE_IMMED));
    let extension = some(extension, "extension data")?;
    let expected = if status == DtoStatus::Success { IbStatus::Success } else { IbStatus::Err };
    check_eq!((extension.ext_type, extension.status), (IbExtType::RdmaWriteImmed, expected));
    Ok(())
}

/// Takes the next completion of a Receive, which must be that of an RDMA Write of this length.
#[track_caller]
pub(crate) fn notified(end: &End, cookie: u64, immediate: u32, length: u64) -> Outcome {
    let (done, number, extension) = end.received(cookie, DtoStatus::Success)?;
    check_eq!((number, done.operation), (EventNumber::IB_DTO, Dto::IB_RECV_IMMED));
    check_eq!(done.transferred_length, length);
    let extension = some(extension, "extension data")?;
    check_eq!((extension.ext_type, extension.status), (IbExtType::RdmaWriteImmedData, IbStatus::Success));
    check_eq!(extension.immed, immediate);
    Ok(())
}

/// Takes the next completion of a Receive, which must be that of a message without immediate data.
#[track_caller]
pub(crate) fn got_message(end: &End, cookie: u64, length: u64) -> Outcome {
    let (done, number, extension) = end.received(cookie, DtoStatus::Success)?;
    check_eq!((number, done.operation, extension), (EventNumber::DTO_COMPLETION, Dto::RECEIVE, None));
    check_eq!(done.transferred_length, length);
    Ok(())
}

/// Connects an IT-API endpoint on `a` to a DAT endpoint on `b`.
#[track_caller]
pub(crate) fn connect_other_face(w: &World<'_>, active: &fixture::End, passive: &End) -> Outcome {
    let requests = evd(&passive.ia, EvdFlags::CR)?;
    let (conn_qual, psp) = passive.ia.psp_create_any(requests, PspFlags::Consumer)?;
    let to = some(fixture::spigot(&w.f.b)?.net_addr.first().copied(), "a network address")?;
    let (path, service) = (path(&active.ia, &to)?, it::ConnQual::service_id(conn_qual));
    active.ia.ep_connect(active.ep, &path, None, &service, it::CnEstFlags::TWO_WAY, &[])?;
    passive.ia.cr_accept(request(&passive.ia, requests)?, passive.ep, &[])?;
    active.expect(it::EventType::CM_MSG_CONN_ESTABLISHED)?;
    expect(&passive.ia, passive.connect, EventNumber::CONNECTION_ESTABLISHED)?;
    passive.ia.psp_free(psp)?;
    Ok(passive.ia.evd_free(requests)?)
}

/// Posts Receives without segments, for these cookies.
#[track_caller]
pub(crate) fn receives(end: &End, cookies: core::ops::Range<u64>) -> Outcome {
    for cookie in cookies {
        end.receive(&[], cookie)?;
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // One post transfers the bytes of all segments, in the order of the list and with any
    // alignment, and the immediate data. The peer's Receive completes when both have arrived, with
    // the immediate data as it was given and the length of the bytes. The Write uses none of the
    // Receive's segments, and takes no other Receive. When the post returns, the consumer owns the
    // list of segments again.
    test(
        "dat_write_immed::data_and_number_arrive",
        &[
            "DAT_IB_DTOS F01 F02",
            "DAT_IB_EXT_TYPE A01 F03 F04",
            "dat-ib-2.1 B01 B02 B04 B08",
            "dat_ib_post_rdma_write_with_immed A02 A04 B01 B02 B04-B07 B09 B14 B15 F05 O03",
        ],
        |f| {
            world(f, |w| {
                check_eq!((Dto::IB_RDMA_WRITE_IMMED.as_raw(), Dto::IB_RECV_IMMED.as_raw()), (8, 9));
                check_eq!((IbExtType::RdmaWriteImmed as u32, IbExtType::RdmaWriteImmedData as u32), (2, 3));
                check_eq!((EventNumber::IB_DTO.as_raw(), CompletionFlags::DEFAULT.bits()), (0x40000, 0));
                let (_, _, provider) = w.a.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
                let provider = some(provider, "the provider's attributes")?;
                check_eq!(provider.iov_ownership, IovOwnership::Consumer);
                let (a, b, own, far) = w.open_pair()?;
                let sink = w.region(&b, PAGE, OPEN)?;
                own.fill(7);
                for (round, immediate) in (0..).zip([0x0102_0304, 0, u32::MAX, 0x8000_0000]) {
                    far.write(0, &[0; PAGE]);
                    b.receive(&[sink.segment(0, 64)], round)?;
                    b.receive(&[], 99)?;
                    let odd = [own.segment(1, 3), own.segment(1001, 500), own.segment(64, 0)];
                    let mut segments = Vec::from([odd[0], odd[1], odd[2], own.segment(8, 1)]);
                    // All rounds use the same cookie.
                    write(&a, &segments, u64::MAX, far.remote(5, 504), immediate, PLAIN)?;
                    segments.fill(LmrTriplet::default());
                    notified(&b, round, immediate, 504)?;
                    let sent = [own.bytes(1, 3), own.bytes(1001, 500), own.bytes(8, 1)].concat();
                    check_eq!(far.bytes(5, 504), sent);
                    check_eq!((far.bytes(0, 5), far.bytes(509, 100)), ([0; 5].into(), [0; 100].into()));
                    written(&a, u64::MAX, DtoStatus::Success)?;
                    check_eq!(b.ia.ep_recv_query(b.ep)?.0, 1, "the Receive that no Write took");
                    a.send(&[], 1)?;
                    got_message(&b, 99, 0)?;
                    a.done(1, DtoStatus::Success)?;
                }
                sink.untouched()?;
                // A Write without bytes transfers its immediate data, too.
                receives(&b, 5..6)?;
                write(&a, &[], 6, far.remote(0, 0), 77, PLAIN)?;
                notified(&b, 5, 77, 0)?;
                written(&a, 6, DtoStatus::Success)?;
                nothing(&a.ia, a.request)?;
                nothing(&b.ia, b.recv)
            })
        },
    ),
    // A Receive's completion tells the kinds of messages apart: a Send, even one of four bytes; a
    // Send with immediate data from IT-API; a Write with immediate data; a datagram with immediate
    // data.
    test(
        "dat_write_immed::each_kind_of_immediate_data",
        &["DAT_IB_DTOS A02 F05", "DAT_IB_EXT_TYPE F05", "DAT_IB_IMMED_DATA B01 F01", "dat-ib-2.1 B03"],
        |f| {
            world(f, |w| {
                check_eq!((Dto::IB_RECV_MSG_IMMED.as_raw(), IbExtType::RecvImmedData as u32), (12, 4));
                let (a, b) = (f.end(&f.a, &plain_attributes())?, w.end(&w.b, &attributes())?);
                connect_other_face(w, &a, &b)?;
                let own = f.region(&f.a, a.pz, PAGE, it::MemPriv::LOCAL)?;
                let far = w.region(&b, PAGE, OPEN)?;
                own.fill(3);
                let message = [own.segment(0, 4)];
                let (at, number) = (it::make_rdma_addr_absolute(far.buffer.addr() + 100), 0xdead_beef);
                let context = it::RmrContext(some(far.lmr.rmr_context, "a context")?);
                for cookie in 0..4 {
                    b.receive(&[far.segment(8 * cookie as usize, 8)], cookie)?;
                }
                f.a.post_send(a.ep, &message, 0, SIGNALLED)?;
                f.a.post_send_immediate(a.ep, &message, 1, SIGNALLED, number)?;
                f.a.post_rdma_write_immediate(a.ep, &message, 2, SIGNALLED, at, context, number)?;
                f.a.post_send_immediate(a.ep, &[], 3, SIGNALLED, 0)?;
                got_message(&b, 0, 4)?;
                for (cookie, length, immediate) in [(1, 4, number), (2, 4, number), (3, 0, 0)] {
                    if cookie == 2 {
                        notified(&b, cookie, immediate, length)?;
                        continue;
                    }
                    let (done, event, extension) = b.received(cookie, DtoStatus::Success)?;
                    check_eq!((event, done.operation), (EventNumber::IB_DTO, Dto::IB_RECV_MSG_IMMED));
                    check_eq!(done.transferred_length, length);
                    let extension = some(extension, "extension data")?;
                    check_eq!(extension.ext_type, IbExtType::RecvImmedData);
                    check_eq!((extension.status, extension.immed), (IbStatus::Success, immediate));
                }
                for offset in [0, 8, 100] {
                    check_eq!(far.bytes(offset, 4), own.bytes(0, 4));
                }
                check_eq!((far.bytes(16, 16), far.bytes(104, 8)), ([0; 16].into(), [0; 8].into()));
                (0..4).try_for_each(|cookie| a.done(cookie, it::DtoStatus::Success))?;
                if f.setup.lossy {
                    return not_shown("a datagram with immediate data may get lost");
                }
                let ((_, there), (asked, _)) = w.resolved()?;
                let sender = ud::peer(&f.a, &ud::datagrams())?;
                let room = w.region(&asked, PAGE, MemPriv::ALL)?;
                asked.receive(&[room.segment(0, 100)], 6)?;
                let to = it::DgRemoteEpAddr::IbUd {
                    addr: ud::address(&f.a, sender.pz, &f.b)?,
                    ep_info: it::RemoteEpInfo { ud_ep_id: there.qpn, ud_ep_key: there.qkey },
                };
                f.a.post_sendto_immediate(sender.ep, &[], 1, SIGNALLED, &to, number)?;
                let (done, event, extension) = asked.received(6, DtoStatus::Success)?;
                check_eq!((event, done.operation.as_raw()), (EventNumber::IB_DTO, 15));
                let extension = some(extension, "extension data")?;
                check_eq!((extension.ext_type, extension.immed), (IbExtType::RecvImmedData, number));
                sender.sent(1, it::DtoStatus::Success)
            })
        },
    ),
    // A dequeue, which has a faster path for such a completion, returns the same event as a wait.
    test("dat_write_immed::a_dequeue_and_a_wait_return_the_same", &[], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            receives(&b, 0..2)?;
            for cookie in [0, 1] {
                write(&a, &[own.segment(0, 100)], cookie, far.remote(0, 100), 5, PLAIN)?;
                written(&a, cookie, DtoStatus::Success)?;
            }
            let event = next(&b.ia, b.recv)?;
            let mut dequeued = Err(ErrorType::QueueEmpty.into());
            eventually(f.platform(), || {
                dequeued = b.ia.evd_dequeue(b.recv);
                dequeued.is_ok()
            });
            let (first, second) = (some(event.dto(), "a completion")?, dequeued?);
            let expected = DtoCompletion { user_cookie: 1, ..*first };
            check_eq!((second.dto(), first.transferred_length), (Some(&expected), 100));
            check_eq!((second.event_number, second.extension), (event.event_number, event.extension));
            Ok(())
        })
    }),
    // Sends and Writes with immediate data take one Receive each, in the order in which they were
    // posted; plain Writes, Reads and atomics take none. A shared receive queue behaves the same.
    test(
        "dat_write_immed::each_takes_one_receive_in_order",
        &["dat-ib-2.1 B05-B07", "dat-ib-2.2 B05"],
        |f| {
            world(f, |w| {
                for shared in [false, true] {
                    let a = w.end(&w.a, &attributes())?;
                    let b = if shared {
                        let pz = w.b.pz_create()?;
                        let srq = w.b.srq_create(pz, &SrqAttr::default())?;
                        for cookie in 0..13 {
                            w.b.srq_post_recv(srq, &[], cookie)?;
                        }
                        w.end_with_srq(&w.b, pz, srq, &attributes())?
                    } else {
                        let b = w.end(&w.b, &attributes())?;
                        receives(&b, 0..13)?;
                        b
                    };
                    w.connect(&a, &b)?;
                    let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
                    let (quiet, one) = (CompletionFlags::SUPPRESS, [own.segment(0, 8)]);
                    let to = far.remote(0, 8);
                    for n in 0..12 {
                        match n % 3 {
                            0 => a.ia.ep_post_send(a.ep, &[], 0, quiet)?,
                            1 => write(&a, &one, n, to, n as u32, PLAIN)?,
                            _ => write(&a, &[], n, to, !n as u32, quiet)?,
                        }
                        a.ia.ep_post_rdma_write(a.ep, &one, 0, &to, quiet)?;
                        a.ia.ep_post_rdma_read(a.ep, &[own.segment(8, 8)], 0, &to, quiet)?;
                        a.ia.ib_post_fetch_and_add(a.ep, 1, &own.segment(16, 8), 0, &to, quiet)?;
                    }
                    for n in 0..12 {
                        match n % 3 {
                            0 => got_message(&b, n, 0)?,
                            1 => notified(&b, n, n as u32, 8)?,
                            _ => notified(&b, n, !n as u32, 0)?,
                        }
                    }
                    (0..4).try_for_each(|n| written(&a, 3 * n + 1, DtoStatus::Success))?;
                    nothing(&b.ia, b.recv)?;
                    a.send(&[], 20)?;
                    got_message(&b, 12, 0)?;
                    a.done(20, DtoStatus::Success)?;
                    nothing(&a.ia, a.request)?;
                }
                Ok(())
            })
        },
    ),
    // The size of the remote buffer is that of the region. The length in the triplet is ignored,
    // whether it is too small or too large.
    test(
        "dat_write_immed::the_triplets_length_does_not_matter",
        &["dat_ib_post_rdma_write_with_immed B17"],
        |f| {
            world(f, |w| {
                let (a, b, own, far) = w.open_pair()?;
                own.fill(9);
                for (cookie, stated) in (0..).zip([0, 1, 99, 101, PAGE + 1, usize::MAX]) {
                    far.write(0, &[0; PAGE]);
                    receives(&b, cookie..cookie + 1)?;
                    write(&a, &[own.segment(0, 100)], cookie, far.remote(PAGE - 100, stated), 4, PLAIN)?;
                    notified(&b, cookie, 4, 100)?;
                    check_eq!(far.bytes(PAGE - 100, 100), own.bytes(0, 100));
                    written(&a, cookie, DtoStatus::Success)?;
                }
                Ok(())
            })
        },
    ),
    // Many Writes to the same address succeed, with every alignment. If a Read of no bytes and a
    // fence separate the Writes, the last one's data stays.
    test("dat_write_immed::writes_to_one_place", &["dat_ib_post_rdma_write_with_immed A05 B18"], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            receives(&b, 0..20)?;
            own.fill(1);
            for n in 0..10 {
                let (from, to) = (own.segment(n, 1000), far.remote(10 - n, 1000));
                write(&a, &[from], n as u64, to, n as u32, PLAIN)?;
            }
            for n in 0..10 {
                notified(&b, n, n as u32, 1000)?;
                written(&a, n, DtoStatus::Success)?;
            }
            for n in 10..20 {
                let (from, to) = (own.segment(8 * n, 8), far.remote(0, 8));
                write(&a, &[from], n as u64, to, n as u32, CompletionFlags::BARRIER_FENCE)?;
                a.ia.ep_post_rdma_read(a.ep, &[], 0, &to, CompletionFlags::SUPPRESS)?;
            }
            (10..20).try_for_each(|n| notified(&b, n, n as u32, 8))?;
            check_eq!(far.bytes(0, 8), own.bytes(8 * 19, 8));
            (10..20).try_for_each(|n| written(&a, n, DtoStatus::Success))
        })
    }),
    // The completion of a shared receive queue's Receive has the immediate data, and names the
    // endpoint whose message took it.
    test("dat_write_immed::through_a_shared_receive_queue", &[], |f| {
        world(f, |w| {
            let pz = w.b.pz_create()?;
            let srq = w.b.srq_create(pz, &SrqAttr::default())?;
            let ends = [0, 1].map(|_| -> Result<(End, End), Failure> {
                let (a, b) = (w.end(&w.a, &attributes())?, w.end_with_srq(&w.b, pz, srq, &attributes())?);
                w.connect(&a, &b)?;
                Ok((a, b))
            });
            let [first, second] = ends;
            let (first, second) = (first?, second?);
            let far = w.region_in(&w.b, pz, PAGE, OPEN)?;
            for round in 0..10 {
                for (n, (a, b)) in (0..).zip([&first, &second]) {
                    w.b.srq_post_recv(srq, &[far.segment(512, 8)], 2 * round + n)?;
                    let own = w.region(a, 64, OPEN)?;
                    own.fill(round as u8);
                    let to = far.remote(64 * n as usize, 64);
                    write(a, &[own.segment(0, 64)], round, to, (round << 8 | n) as u32, PLAIN)?;
                    notified(b, 2 * round + n, (round << 8 | n) as u32, 64)?;
                    written(a, round, DtoStatus::Success)?;
                    check_eq!(far.bytes(64 * n as usize, 64), own.bytes(0, 64));
                    w.a.lmr_free(own.lmr.lmr_handle)?;
                }
            }
            check_eq!(far.bytes(512, 8), [0; 8]);
            check_eq!(w.b.srq_query(srq)?.outstanding_dto_count, 0);
            refused(w.b.evd_dequeue(first.1.recv), Error::from(ErrorType::QueueEmpty))
        })
    }),
    // Each operation of the extensions has its number at the common entry point. Arguments of
    // another operation and unknown operations are refused, and post nothing.
    test("dat_write_immed::one_entry_for_all_operations", &["DAT_IB_OP B01 F01-F03"], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            far.set_word(0, 5);
            receives(&b, 0..1)?;
            let (result, to, flags) = (own.segment(0, 8), far.remote(0, 8), PLAIN);
            let add = IbArguments::FetchAndAdd {
                add_value: 3,
                local_iov: &result,
                user_cookie: 10,
                remote_iov: &to,
                completion_flags: flags,
            };
            let swap = IbArguments::CmpAndSwap {
                cmp_value: 8,
                swap_value: 9,
                local_iov: &result,
                user_cookie: 11,
                remote_iov: &to,
                completion_flags: flags,
            };
            let immed = IbArguments::RdmaWriteImmed {
                local_iov: &[],
                user_cookie: 12,
                remote_iov: &to,
                immediate_data: 13,
                completion_flags: flags,
            };
            let all = [add, swap, immed];
            let ep = Handle::from(a.ep);
            for op in 0..4 {
                for (own_op, arguments) in (0..).zip(&all).filter(|(own_op, _)| *own_op != op) {
                    let posted = w.a.extension_op(ep, IbOp(op), arguments);
                    let error = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg3);
                    check_eq!(posted, Err(error), "{op} with the arguments of {own_op}");
                }
            }
            for op in [4, 5, 6, 28, 29, 0x1000, 0x2000, u32::MAX] {
                for arguments in &all {
                    let posted = w.a.extension_op(ep, IbOp(op), arguments);
                    refused(posted, Error::from(ErrorType::NotImplemented))?;
                }
            }
            nothing(&w.a, a.request)?;
            check_eq!(far.word(0), 5);
            for (op, arguments) in (0..).zip(&all) {
                w.a.extension_op(ep, IbOp(op), arguments)?;
            }
            for (cookie, operation) in
                [(10, Dto::IB_FETCH_ADD), (11, Dto::IB_CMP_SWAP), (12, Dto::IB_RDMA_WRITE_IMMED)]
            {
                check_eq!(a.done(cookie, DtoStatus::Success)?.0.operation, operation);
            }
            check_eq!((far.word(0), own.word(0)), (9, 8));
            notified(&b, 0, 13, 0)?;
            check!(b.ia.ep_recv_query(b.ep)?.0 == 0);
            Ok(())
        })
    }),
];
