//! Endpoints of IAs over VIA and virtual interfaces of VIPL on the same NICs: they find each other
//! by their discriminators, connect, move data and part, like two ends of one API.

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;
use vipl::{AddressSegment, ErrorCode, NetAddress, Qos, ReliabilityLevel, ViAttributes, ViState};

use super::names::{discriminator, listen_at};
use super::rejections::{SERVICE, not_made};
use super::{open, page};
use crate::check::some;
use crate::fixture::{self, End, Fixture, PAGE, Region, SIGNALLED, attributes, path};
use crate::via::connect::ask;
use crate::via::world::{self, LONG, NO_CQS, Side, World, world};
use crate::{Failure, Outcome, Test, check_eq, refused, test};

const TWO_WAY: CnEstFlags = CnEstFlags::TWO_WAY;
/// The longest message of both ends.
const LONGEST: usize = 5000;
/// The one level on which endpoints are.
const LEVEL: ReliabilityLevel = ReliabilityLevel::Reception;
/// Milliseconds in which a request to nobody gives up.
const BRIEF: u32 = 100;

/// Runs a test with IAs over VIA and NICs of VIPL on the same two NICs.
fn faces(f: &Fixture, test: impl FnOnce(&World<'_>, &Fixture) -> Outcome) -> Outcome {
    let v = f.over_via()?;
    world(f, |w| test(w, &v))
}

/// A discriminator of these bytes, as IT-API names it.
fn named(name: &[u8]) -> ConnQual {
    discriminator(name, name.len())
}

/// The same, on any host address, as VIPL names it.
fn local(name: &[u8]) -> Result<NetAddress, Failure> {
    Ok(NetAddress::new(&[], name)?)
}

/// An endpoint whose longest message is [`LONGEST`].
#[track_caller]
fn endpoint(v: &Fixture, ia: &Ia) -> Result<End, Failure> {
    v.end(ia, &EpAttributes { max_dto_payload_size: LONGEST, ..open() })
}

/// A virtual interface that fits an [`endpoint`].
#[track_caller]
fn interface(w: &World<'_>, nic: &vipl::Nic) -> Result<Side, Failure> {
    interface_with(w, nic, |attributes| attributes)
}

/// The same with other attributes.
#[track_caller]
fn interface_with(
    w: &World<'_>,
    nic: &vipl::Nic,
    change: impl FnOnce(ViAttributes) -> ViAttributes,
) -> Result<Side, Failure> {
    w.side_with(nic, NO_CQS, |ptag| {
        let fits = ViAttributes { max_transfer_size: LONGEST as u64, ..world::attributes(ptag, LEVEL) };
        change(fits)
    })
}

/// The path from `a` to the host address that a NIC of VIPL has.
#[track_caller]
fn route(v: &Fixture, to: &vipl::Nic) -> Result<Path, Failure> {
    let mut hostaddr = [0; MAX_VIA_ADDR_LEN];
    hostaddr[..16].copy_from_slice(&to.query_nic()?.local_nic_address);
    path(&v.a, &NetAddr::ViaHostaddr(ViaNetAddr { len: 16, hostaddr }))
}

/// Has an endpoint on `a` ask for this discriminator at the host of `b`.
#[track_caller]
fn dial(w: &World<'_>, v: &Fixture, end: &End, name: &[u8]) -> Outcome {
    v.a.ep_connect(end.ep, &route(v, &w.b)?, None, &named(name), TWO_WAY, &[])?;
    Ok(())
}

/// A virtual interface of `a` that is connected to an endpoint of `b`, which listened.
#[track_caller]
fn client_of_vipl(w: &World<'_>, v: &Fixture) -> Result<(Side, End), Failure> {
    let (side, end) = (interface(w, &w.a)?, endpoint(v, &v.b)?);
    let listener = listen_at(&v.b, &named(b"endpoint"))?;
    let answer = ask(w, &side, b"client", &w.b.address(b"endpoint")?, LONG)?;
    v.b.ep_accept(end.ep, listener.request()?.cn_est_id, &[])?;
    answer.join()??;
    end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    listener.free()?;
    Ok((side, end))
}

/// An endpoint of `a` that is connected to a virtual interface of `b`, which waited.
#[track_caller]
fn client_of_it(w: &World<'_>, v: &Fixture) -> Result<(Side, End), Failure> {
    let (side, end) = (interface(w, &w.b)?, endpoint(v, &v.a)?);
    dial(w, v, &end, b"interface")?;
    let request = w.b.connect_wait(&w.b.address(b"interface")?, None, LONG)?;
    w.b.connect_accept(request.conn, side.vi)?;
    end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    Ok((side, end))
}

/// A connected pair.
struct Both<'a> {
    side: Side,
    end: End,
    /// A page in the zone of the endpoint that is open to the peer.
    region: Region,
    /// VIPL's NIC at the host of the endpoint.
    host: &'a vipl::Nic,
}

/// Runs a part of a test with a pair of each kind in turn.
fn each_pair(f: &Fixture, part: impl Fn(&World<'_>, &Both<'_>) -> Outcome) -> Outcome {
    faces(f, |w, v| {
        let ((a, b), (c, d)) = (client_of_vipl(w, v)?, client_of_it(w, v)?);
        for (side, end, host) in [(a, b, &w.b), (c, d, &w.a)] {
            let region = page(v, &end)?;
            check_eq!((side.state()?, end.state()?), (ViState::Connected, EpStateRc::Connected));
            part(w, &Both { side, end, region, host })?;
        }
        Ok(())
    })
}

/// The memory of an IA at an offset, as VIPL names it.
#[track_caller]
fn remote(region: &Region, at: usize) -> Result<AddressSegment, Failure> {
    let handle = u32::from_be(region.context()?.0);
    Ok(AddressSegment { address: (region.buffer.addr() + at) as u64, handle, reserved: 0 })
}

/// The next Receive of an endpoint, and its immediate data.
#[track_caller]
fn received(end: &End) -> Result<(DtoCompletion, Option<Immediate>), Failure> {
    let (found, _) = end.ia.evd_wait_extended(end.recv, WaitFor::Events(1), fixture::WAIT)?;
    let completion = found.event.dto().copied();
    Ok((some(completion, "a completion")?, found.immediate))
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // A client of VIPL reaches a listen point of IT-API by its discriminator. Each side learns of
    // the other what its API says of a peer.
    test("via_ia_with_vipl::an_endpoint_serves_an_interface", &[], |f| {
        faces(f, |w, v| {
            // A port is a discriminator of two bytes.
            for (qual, name) in [(named(b"disk"), &b"disk"[..]), (ConnQual::port(0x1234), &[0x12, 0x34])] {
                let (side, end) = (interface(w, &w.a)?, endpoint(v, &v.b)?);
                let listener = listen_at(&v.b, &qual)?;
                let answer = ask(w, &side, b"client", &w.b.address(name)?, LONG)?;
                let request = listener.request()?;
                let NetAddr::ViaHostaddr(from) = request.source_addr else {
                    return Err(Failure::new("not a host address"));
                };
                check_eq!(&from.hostaddr[..from.len.into()], &w.a.query_nic()?.local_nic_address);
                check_eq!((request.conn_qual, request.max_message_size), (qual, LONGEST as u32));
                check_eq!((request.rdma_read_ird, request.rdma_read_ord), (0, 0));
                v.b.ep_accept(end.ep, request.cn_est_id, &[])?;
                let fits = ViAttributes {
                    max_transfer_size: LONGEST as u64,
                    ..world::attributes(vipl::PtagHandle::NULL, LEVEL)
                };
                check_eq!(answer.join()?, Ok(fits));
                end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                check_eq!((side.state()?, end.state()?), (ViState::Connected, EpStateRc::Connected));
                listener.free()?;
            }
            Ok(())
        })
    }),
    // A client of IT-API reaches a server of VIPL, which waits for its discriminator, for any, or
    // for one host. The client has no discriminator of its own.
    test("via_ia_with_vipl::an_interface_serves_an_endpoint", &[], |f| {
        faces(f, |w, v| {
            let (any, here) = (local(b"")?, w.b.address(b"tape")?);
            let client = w.a.address(b"")?;
            for (wait, from) in [(&here, None), (&any, None), (&here, Some(&client))] {
                let (side, end) = (interface(w, &w.b)?, endpoint(v, &v.a)?);
                dial(w, v, &end, b"tape")?;
                let request = w.b.connect_wait(wait, from, LONG)?;
                check_eq!(request.remote_addr, client);
                let fits = ViAttributes {
                    max_transfer_size: LONGEST as u64,
                    ..world::attributes(vipl::PtagHandle::NULL, LEVEL)
                };
                check_eq!(request.remote_vi_attribs, fits);
                w.b.connect_accept(request.conn, side.vi)?;
                end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                check_eq!((side.state()?, end.state()?), (ViState::Connected, EpStateRc::Connected));
            }
            Ok(())
        })
    }),
    // Each kind of transfer moves its bytes in both directions, whichever end asked for the
    // connection. Immediate data of VIPL arrives at IT-API's extended calls; a Receive that a Write
    // took has no bytes of a message.
    test("via_ia_with_vipl::transfers", &[], |f| {
        each_pair(f, |_, Both { side, end, region, .. }| {
            side.fill(3);
            region.fill(5);
            let (ia, segment) = (&end.ia, |at, len| [region.segment(at, len)]);
            let theirs = remote(region, 3000)?;
            let ours = RmrContext(side.region.handle.as_raw().to_be());
            let at = make_rdma_addr_absolute(side.remote(5000).address as usize);
            // Sends.
            ia.post_recv(end.ep, &segment(0, 500), 1, DtoFlags::COMPLETION)?;
            side.send(0, &[side.data(0, 300)], Some(0x0102_0304))?;
            side.sent_well(0)?;
            let (done, immediate) = received(end)?;
            check_eq!((done.cookie, done.dto_status, done.transferred_length), (1, DtoStatus::Success, 300));
            check_eq!(immediate, Some(Immediate { data: 0x0102_0304, written: None }));
            check_eq!(region.bytes(0, 300), side.bytes(0, 300));
            side.receive(0, &[side.data(4000, 300)])?;
            ia.post_send(end.ep, &segment(1000, 200), 2, SIGNALLED)?;
            end.done(2, DtoStatus::Success)?;
            side.received_well(0)?;
            check_eq!((side.descriptor(0)?.length(), side.bytes(4000, 200)), (200, region.bytes(1000, 200)));
            // RDMA Writes.
            side.rdma_write(1, &theirs, &[side.data(100, 400)], None)?;
            side.sent_well(1)?;
            check_eq!(region.bytes(3000, 400), side.bytes(100, 400));
            ia.post_rdma_write(end.ep, &segment(2000, 400), 3, SIGNALLED, at, ours)?;
            end.done(3, DtoStatus::Success)?;
            check_eq!(side.bytes(5000, 400), region.bytes(2000, 400));
            ia.post_recv(end.ep, &segment(0, 500), 4, DtoFlags::COMPLETION)?;
            side.rdma_write(2, &theirs, &[side.data(700, 400)], Some(7))?;
            side.sent_well(2)?;
            let (done, immediate) = received(end)?;
            check_eq!((done.cookie, done.dto_status, done.transferred_length), (4, DtoStatus::Success, 0));
            check_eq!(immediate, Some(Immediate { data: 7, written: Some(0) }));
            check_eq!(region.bytes(3000, 400), side.bytes(700, 400));
            // RDMA Reads.
            side.rdma_read(3, &theirs, &[side.data(6000, 100)])?;
            side.sent_well(3)?;
            check_eq!(side.bytes(6000, 100), region.bytes(3000, 100));
            ia.post_rdma_read(end.ep, &segment(3500, 100), 5, SIGNALLED, at, ours)?;
            end.done(5, DtoStatus::Success)?;
            check_eq!(region.bytes(3500, 100), side.bytes(5000, 100));
            end.idle()
        })
    }),
    // A Write to memory that is not open, in each direction: it completes with an error at its own
    // end, the connection breaks, and each API says so in its own words.
    test("via_ia_with_vipl::refused_writes", &[], |f| {
        faces(f, |w, v| {
            let (side, end) = client_of_vipl(w, v)?;
            let errors = w.errors(&side.nic)?;
            let region = f.region(&end.ia, end.pz, PAGE, MemPriv::LOCAL | MemPriv::REMOTE_READ)?;
            side.rdma_write(0, &remote(&region, 0)?, &[side.data(0, 8)], None)?;
            world::failed(side.sent(0)?, vipl::Status::RDMA_PROT_ERROR)?;
            errors.expect(&side, ErrorCode::ConnLost)?;
            end.broken()?;
            check_eq!(side.state()?, ViState::Error);
            region.untouched()?;

            let (side, end) = client_of_it(w, v)?;
            let errors = w.errors(&side.nic)?;
            let closed = w.region(&side.nic, PAGE, &vipl::MemAttributes::new(side.ptag))?;
            let (own, at) = (page(v, &end)?, make_rdma_addr_absolute(closed.buffer.addr()));
            let context = RmrContext(closed.handle.as_raw().to_be());
            end.ia.post_rdma_write(end.ep, &[own.segment(0, 8)], 1, SIGNALLED, at, context)?;
            end.done(1, DtoStatus::RemoteAccess)?;
            end.broken()?;
            let codes: Vec<_> = errors.wait(2)?.iter().map(|error| error.error_code).collect();
            check_eq!(codes, [ErrorCode::RdmawProt, ErrorCode::ConnLost]);
            check_eq!(side.state()?, ViState::Error);
            closed.untouched()
        })
    }),
    // An end disconnects: the endpoint gets an event of a disconnect or of a broken connection, the
    // virtual interface is in Error and its handler learns of it. Both connect again afterwards.
    test("via_ia_with_vipl::disconnects", &[], |f| {
        each_pair(f, |w, Both { side, end, region, host }| {
            let errors = w.errors(&side.nic)?;
            side.receive(0, &[side.data(0, 8)])?;
            end.ia.ep_disconnect(end.ep, &[])?;
            end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            errors.expect(side, ErrorCode::ConnLost)?;
            check_eq!(side.state()?, ViState::Error);
            world::failed(side.received(0)?, vipl::Status::DESC_FLUSHED_ERROR)?;
            side.disconnect()?;
            check_eq!((side.state()?, end.state()?), (ViState::Idle, EpStateRc::Nonoperational));
            // The same ends, the other way round.
            end.ia.ep_reset(end.ep)?;
            let listener = listen_at(&end.ia, &named(b"again"))?;
            let answer = ask(w, side, b"client", &host.address(b"again")?, LONG)?;
            end.ia.ep_accept(end.ep, listener.request()?.cn_est_id, &[])?;
            answer.join()??;
            end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            listener.free()?;
            end.ia.post_recv(end.ep, &[region.segment(0, 8)], 1, DtoFlags::COMPLETION)?;
            side.disconnect()?;
            check_eq!(side.state()?, ViState::Idle);
            end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            end.recv_done(1, DtoStatus::Flushed)?;
            check_eq!(end.state()?, EpStateRc::Nonoperational);
            Ok(())
        })
    }),
    // A consumer rejects a request of the other API: that is Reject to a client of VIPL, and an
    // event of the peer's rejection to one of IT-API. Both can ask again.
    test("via_ia_with_vipl::rejects", &[], |f| {
        faces(f, |w, v| {
            let (side, end) = (interface(w, &w.a)?, endpoint(v, &v.b)?);
            let listener = listen_at(&v.b, &named(b"disk"))?;
            let answer = ask(w, &side, b"client", &w.b.address(b"disk")?, LONG)?;
            v.b.reject(listener.request()?.cn_est_id, &[])?;
            check_eq!((answer.join()?, side.state()?), (Err(vipl::Error::Reject), ViState::Idle));
            let answer = ask(w, &side, b"client", &w.b.address(b"disk")?, LONG)?;
            v.b.ep_accept(end.ep, listener.request()?.cn_est_id, &[])?;
            check_eq!(answer.join()?.is_ok(), true);

            let (side, end) = (interface(w, &w.b)?, endpoint(v, &v.a)?);
            dial(w, v, &end, b"tape")?;
            w.b.connect_reject(w.b.connect_wait(&local(b"tape")?, None, LONG)?.conn)?;
            let event = end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            let Event::ConnPeerReject { private_data: None, .. } = event else {
                return Err(Failure::new(alloc::format!("not of the peer: {event:?}")));
            };
            check_eq!(end.state()?, EpStateRc::Nonoperational);
            v.a.ep_reset(end.ep)?;
            dial(w, v, &end, b"tape")?;
            let request = w.b.connect_wait(&local(b"tape")?, None, LONG)?;
            w.b.connect_accept(request.conn, side.vi)?;
            end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            Ok(())
        })
    }),
    // Attributes that do not fit. An accept with another size is refused on both sides, and the
    // request can be answered again. A level and a quality that no endpoint has are rejected by the
    // IA before its consumer learns of them; a server of VIPL gets the error of its page.
    test("via_ia_with_vipl::attributes_that_do_not_fit", &[], |f| {
        faces(f, |w, v| {
            let listener = listen_at(&v.b, &named(b"disk"))?;
            let (longer, fits) = (v.end(&v.b, &open())?, endpoint(v, &v.b)?);
            let side = interface(w, &w.a)?;
            let answer = ask(w, &side, b"client", &w.b.address(b"disk")?, LONG)?;
            let id = listener.request()?.cn_est_id;
            refused(v.b.ep_accept(longer.ep, id, &[]), Error::InvalidEpAttr)?;
            check_eq!(longer.state()?, EpStateRc::Unconnected);
            v.b.ep_accept(fits.ep, id, &[])?;
            check_eq!(answer.join()?.is_ok(), true);
            fits.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            let levels = [ReliabilityLevel::Unreliable, ReliabilityLevel::Delivery];
            let unlike = levels.map(|reliability_level| {
                interface_with(w, &w.a, |fits| ViAttributes {
                    reliability_level,
                    enable_rdma_read: false,
                    ..fits
                })
            });
            let hurried = interface_with(w, &w.a, |fits| ViAttributes { qos: Qos(1), ..fits });
            for side in unlike.into_iter().chain([hurried]) {
                let side = side?;
                let answer = ask(w, &side, b"client", &w.b.address(b"disk")?, LONG)?;
                check_eq!((answer.join()?, side.state()?), (Err(vipl::Error::Reject), ViState::Idle));
            }
            refused(v.b.evd_dequeue(listener.evd), Error::QueueEmpty)?;

            let end = endpoint(v, &v.a)?;
            dial(w, v, &end, b"tape")?;
            let conn = w.b.connect_wait(&local(b"tape")?, None, LONG)?.conn;
            let others = [
                (vipl::Error::InvalidReliabilityLevel, ReliabilityLevel::Delivery, LONGEST as u64, 0),
                (vipl::Error::InvalidMtu, LEVEL, LONGEST as u64 - 1, 1),
                (vipl::Error::InvalidQos, LEVEL, LONGEST as u64, 1),
            ];
            for (error, reliability_level, max_transfer_size, priority) in others {
                let qos = Qos(priority);
                let change = |fits| ViAttributes { reliability_level, max_transfer_size, qos, ..fits };
                let side = interface_with(w, &w.b, change)?;
                refused(w.b.connect_accept(conn, side.vi), error)?;
                check_eq!(side.state()?, ViState::Idle);
            }
            w.b.connect_accept(conn, interface(w, &w.b)?.vi)?;
            end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            Ok(())
        })
    }),
    // A discriminator that nobody waits for: where VIPL is open, somebody may still begin to wait,
    // so both clients are out of time. Where it is not, both are told at once.
    test("via_ia_with_vipl::nobody_waits", &[], |f| {
        faces(f, |w, v| {
            let listener = listen_at(&v.b, &named(b"disk"))?;
            let (side, end) = (interface(w, &w.a)?, endpoint(v, &v.a)?);
            let nobody = w.b.address(b"dis")?;
            let answer = ask(w, &side, b"client", &nobody, BRIEF)?;
            check_eq!((answer.join()?, side.state()?), (Err(vipl::Error::Timeout), ViState::Idle));
            let route = Path { timeout: u64::from(BRIEF) * 1000, ..route(v, &w.b)? };
            let dialled = || v.a.ep_connect(end.ep, &route, None, &named(b"dis"), TWO_WAY, &[]);
            dialled()?;
            not_made(&end, RejectReason::Timeout)?;
            // With one NIC there is no host without VIPL.
            if f.setup.is_apart() {
                v.a.ep_reset(end.ep)?;
                w.b.close_nic()?;
                let answer = ask(w, &side, b"client", &nobody, LONG)?;
                check_eq!(answer.join()?, Err(vipl::Error::Reject));
                dialled()?;
                not_made(&end, RejectReason::Other)?;
            }
            refused(v.b.evd_dequeue(listener.evd), Error::QueueEmpty)
        })
    }),
    // Both APIs listen on one NIC, and each client reaches the server of its discriminator.
    test("via_ia_with_vipl::both_listen_on_one_nic", &[], |f| {
        faces(f, |w, v| {
            let listener = listen_at(&v.b, &named(b"disk"))?;
            let any = local(b"")?;
            for _ in 0..2 {
                // Each of two clients asks for both.
                let (one, two) = (interface(w, &w.a)?, interface(w, &w.a)?);
                let (three, four) = (endpoint(v, &v.a)?, endpoint(v, &v.a)?);
                let disk = ask(w, &one, b"one", &w.b.address(b"disk")?, LONG)?;
                let tape = ask(w, &two, b"two", &w.b.address(b"tape")?, LONG)?;
                let (served, serves) = (endpoint(v, &v.b)?, interface(w, &w.b)?);
                v.b.ep_accept(served.ep, listener.request()?.cn_est_id, &[])?;
                check_eq!(disk.join()?.is_ok(), true);
                let request = w.b.connect_wait(&any, None, LONG)?;
                check_eq!(request.remote_addr.discriminator(), b"two");
                w.b.connect_accept(request.conn, serves.vi)?;
                check_eq!(tape.join()?.is_ok(), true);
                dial(w, v, &three, b"disk")?;
                dial(w, v, &four, b"tape")?;
                let (served, serves) = (endpoint(v, &v.b)?, interface(w, &w.b)?);
                v.b.ep_accept(served.ep, listener.request()?.cn_est_id, &[])?;
                three.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                let request = w.b.connect_wait(&any, None, LONG)?;
                w.b.connect_accept(request.conn, serves.vi)?;
                four.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            }
            refused(w.b.connect_wait(&any, None, 0), vipl::Error::Timeout)?;
            refused(v.b.evd_dequeue(listener.evd), Error::QueueEmpty)
        })
    }),
    // Both wait for the same discriminator: a listen point has it until it is freed, whether or not
    // a VipConnectWait began before. What waits for VIPL already stays there.
    test("via_ia_with_vipl::both_wait_for_one_name", &[], |f| {
        faces(f, |w, v| {
            let (to, here) = (w.b.address(b"disk")?, local(b"disk")?);
            let sides = [interface(w, &w.a)?, interface(w, &w.a)?, interface(w, &w.a)?];
            let waiting = |count| {
                w.until("the request waits", || {
                    let kind = vipl::InfoType::Objects as u32;
                    let info = w.b.query_system_management_info(kind);
                    matches!(info, Ok(vipl::SystemManagementInfo::Objects { waiting_requests, .. })
                        if waiting_requests == count)
                })
            };
            let first = ask(w, &sides[0], b"first", &to, LONG)?;
            waiting(1)?;
            let listener = listen_at(&v.b, &named(b"disk"))?;
            let second = ask(w, &sides[1], b"second", &to, LONG)?;
            v.b.reject(listener.request()?.cn_est_id, &[])?;
            check_eq!(second.join()?, Err(vipl::Error::Reject));
            let request = w.b.connect_wait(&here, None, 0)?;
            check_eq!(request.remote_addr.discriminator(), b"first");
            w.b.connect_reject(request.conn)?;
            check_eq!(first.join()?, Err(vipl::Error::Reject));
            refused(w.b.connect_wait(&here, None, 0), vipl::Error::Timeout)?;
            listener.free()?;
            let third = ask(w, &sides[2], b"third", &to, LONG)?;
            let request = w.b.connect_wait(&here, None, LONG)?;
            check_eq!(request.remote_addr.discriminator(), b"third");
            w.b.connect_reject(request.conn)?;
            check_eq!(third.join()?, Err(vipl::Error::Reject));
            Ok(())
        })
    }),
    // A peer that asks for the service of a discriminator and speaks another language is rejected:
    // no request waits, and the server goes on.
    test("via_ia_with_vipl::a_peer_that_speaks_otherwise", &[], |f| {
        faces(f, |w, v| {
            let pair = f.end(&f.a, &attributes())?;
            let address = some(fixture::spigot(&f.b)?.net_addr.first().copied(), "an address")?;
            let mut odd = [0; 92];
            odd[..8].copy_from_slice(&[2, 2, 0, 3, 0, 0, 16, 0]);
            for data in [&[][..], &[1, 2, 3], &odd, &[2; 92]] {
                let route = path(&f.a, &address)?;
                f.a.ep_connect(pair.ep, &route, None, &SERVICE, TWO_WAY, data)?;
                pair.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
                f.a.ep_reset(pair.ep)?;
            }
            refused(w.b.connect_wait(&local(b"")?, None, 0), vipl::Error::Timeout)?;
            let (side, end) = client_of_it(w, v)?;
            check_eq!((side.state()?, end.state()?), (ViState::Connected, EpStateRc::Connected));
            Ok(())
        })
    }),
];
