//! Connections (chapter 4, pages VipConnectWait to VipDisconnect): client and server, addresses,
//! attributes, what is refused, and the end of a connection.

use core::result::Result;
use core::time::Duration;

use nic_abi::admin::Injection;
use vipl::*;

use super::levels::{broken, exchange, retire};
use super::waits::waiter;
use super::world::*;
use crate::thread::Thread;
use crate::{Failure, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// The result of a client's request.
pub(crate) type Answer = Thread<Result<ViAttributes, Error>>;

/// Starts a thread that asks for a connection to this address, under this name.
#[track_caller]
pub(crate) fn ask(
    w: &World<'_>,
    side: &Side,
    name: &[u8],
    to: &NetAddress,
    timeout: u32,
) -> Result<Answer, Failure> {
    let (nic, vi, own, to) = (side.nic.clone(), side.vi, side.nic.address(name)?, to.clone());
    Thread::spawn(w.f.platform(), "client", move || nic.connect_request(vi, &own, &to, timeout))
}

/// The attributes of a virtual interface that its peer gets: without the tag.
pub(super) fn seen_by_peer(side: &Side) -> Result<ViAttributes, Failure> {
    Ok(ViAttributes { ptag: PtagHandle::NULL, ..side.nic.query_vi(side.vi)?.1 })
}

/// The address of a host that does not exist, with the same kind of address as this NIC.
pub(super) fn nobody(nic: &Nic) -> Result<NetAddress, Failure> {
    let mut host = nic.query_nic()?.local_nic_address;
    host[15] ^= 0x55;
    Ok(NetAddress::new(&host, b"nobody")?)
}

pub(crate) const TESTS: &[Test] = &[
    // A server waits. For each request it gets the client's address and attributes, and a handle.
    // It accepts one request with a virtual interface that it creates then, and rejects the other.
    // The client gets the attributes of the server's virtual interface, or Reject.
    test(
        "via_connect::accept_and_reject",
        &[
            "via-4.1 B02 B06-B08 B10 B11 S01",
            "VipConnectWait B05",
            "VipConnectAccept B01",
            "VipConnectReject B01",
            "VipConnectRequest A02 B01-B03 VIP_REJECT",
        ],
        |f| {
            world(f, |w| {
                let server = w.b.address(b"server")?;
                let first = w.side_with(&w.a, NO_CQS, |ptag| ViAttributes {
                    max_transfer_size: 12345,
                    enable_rdma_write: false,
                    qos: Qos(3),
                    ..attributes(ptag, LEVEL)
                })?;
                let second = w.side(&w.a, LEVEL, NO_CQS)?;
                let answers =
                    [ask(w, &first, b"first", &server, LONG)?, ask(w, &second, b"second", &server, LONG)?];
                let mut requests =
                    [w.b.connect_wait(&server, None, LONG)?, w.b.connect_wait(&server, None, LONG)?];
                check!(requests[0].conn != requests[1].conn);
                requests.sort_by_key(|request| request.remote_addr.discriminator().len());
                for (request, (side, name)) in
                    requests.iter().zip([(&first, &b"first"[..]), (&second, b"second")])
                {
                    check_eq!(request.remote_addr, side.nic.address(name)?);
                    check_eq!(request.remote_vi_attribs, seen_by_peer(side)?);
                }
                let b = w.side_with(&w.b, NO_CQS, |ptag| ViAttributes {
                    ptag,
                    enable_rdma_read: false,
                    enable_rdma_write: true,
                    ..requests[0].remote_vi_attribs
                })?;
                w.b.connect_accept(requests[0].conn, b.vi)?;
                check_eq!(b.state()?, ViState::Connected);
                w.b.connect_reject(requests[1].conn)?;
                let [accepted, rejected] = answers;
                check_eq!(accepted.join()?, Ok(seen_by_peer(&b)?));
                check_eq!(rejected.join()?, Err(Error::Reject));
                check_eq!(Error::Reject.as_raw(), 5);
                check_eq!((first.state()?, second.state()?), (ViState::Connected, ViState::Idle));
                let sizes =
                    [&first, &b].map(|side| side.nic.query_vi(side.vi).map(|of| of.1.max_transfer_size));
                check_eq!(sizes, [Ok(12345); 2]);
                exchange(&first, &b)
            })
        },
    ),
    // A server waits for one discriminator or for any; from any client, or from one with a given
    // host or discriminator. Requests that do not match stay for other waits.
    test("via_connect::who_is_waited_for", &["via-4.1 B03", "via-4.3 B01 B02", "VipConnectWait B01"], |f| {
        world(f, |w| {
            let names = [b"x", b"y"].map(|name| w.b.address(name));
            let [x, y] = names;
            let (x, y) = (x?, y?);
            let (one, two) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.a, LEVEL, NO_CQS)?);
            let to_x = ask(w, &one, b"one", &x, LONG)?;
            let any = NetAddress::new(&[], b"")?;
            let request = w.b.connect_wait(&x, None, LONG)?;
            let to_y = ask(w, &two, b"two", &y, LONG)?;
            // The request has arrived when a wait with another filter has found it.
            let peer = |name: &[u8]| NetAddress::new(&[], name);
            let host = w.a.address(b"")?;
            refused(w.b.connect_wait(&any, Some(&peer(b"one")?), 5), Error::Timeout)?;
            let found = w.b.connect_wait(&any, Some(&peer(b"two")?), LONG)?;
            check_eq!(found.remote_addr, w.a.address(b"two")?);
            w.b.connect_reject(found.conn)?;
            check_eq!(to_y.join()?, Err(Error::Reject));
            let to_y = ask(w, &two, b"two", &y, LONG)?;
            refused(w.b.connect_wait(&x, None, 5), Error::Timeout)?;
            refused(w.b.connect_wait(&y, Some(&peer(b"tw")?), 5), Error::Timeout)?;
            let stranger = nobody(&w.a)?;
            let stranger = NetAddress::new(stranger.host(), b"")?;
            refused(w.b.connect_wait(&y, Some(&stranger), 5), Error::Timeout)?;
            let found = w.b.connect_wait(&y, Some(&host), LONG)?;
            check_eq!(found.remote_addr.discriminator(), b"two");
            for conn in [request.conn, found.conn] {
                w.b.connect_reject(conn)?;
            }
            check_eq!((to_x.join()?, to_y.join()?), (Err(Error::Reject), Err(Error::Reject)));
            // The longest discriminator, and a wait for any.
            let long = [0xa5; MAX_DISCRIMINATOR];
            let answer = ask(w, &one, &long, &w.b.address(&long)?, LONG)?;
            let found = w.b.connect_wait(&any, None, LONG)?;
            check_eq!(found.remote_addr.discriminator(), long);
            w.b.connect_reject(found.conn)?;
            check_eq!(answer.join()?, Err(Error::Reject));
            Ok(())
        })
    }),
    // A wait ends with a request, or when its time is over, which is at once for 0.
    test("via_connect::waiting_for_requests", &["via-4.1 B04", "VipConnectWait B02-B04 VIP_TIMEOUT"], |f| {
        world(f, |w| {
            let server = w.b.address(b"server")?;
            let before = (f.setup.usage)().waits;
            refused(w.b.connect_wait(&server, None, 0), Error::Timeout)?;
            check_eq!((f.setup.usage)().waits, before, "the call waited");
            let begun = f.platform().now();
            refused(w.b.connect_wait(&server, None, 20), Error::Timeout)?;
            check!(f.platform().now().since(begun) >= Duration::from_millis(20), "it ended early");
            let waits = (f.setup.usage)().waits;
            check!(waits == 0 || waits > before, "the call did not block");
            let a = w.side(&w.a, LEVEL, NO_CQS)?;
            let (nic, at) = (w.b.clone(), server.clone());
            let waits = waiter(w, alloc::boxed::Box::new(move || nic.connect_wait(&at, None, INFINITE)))?;
            check!(!waits.is_done(), "the wait ended without a request");
            let answer = ask(w, &a, b"client", &server, LONG)?;
            let request = waits.join()??;
            w.b.connect_reject(request.conn)?;
            check_eq!(answer.join()?, Err(Error::Reject));
            Ok(())
        })
    }),
    // A virtual interface is connected again at once, also while a message of the former connection
    // is on its way: nothing of that message reaches the next connection.
    test("via_connect::nothing_of_a_former_connection_arrives", &["via-4.1 B01", "via-4.2 B03"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                for round in 0..5 {
                    w.inject(&a, Injection::Delay, 1, 3_000_000)?;
                    a.write(1000, &[0xee; 64]);
                    b.receive(0, &[b.data(1000, 64)])?;
                    a.send(0, &[a.data(1000, 64)], None)?;
                    a.disconnect()?;
                    b.disconnect()?;
                    a.drain();
                    b.drain();
                    b.write(1000, &[0; 64]);
                    w.connect(&a, &b)?;
                    b.receive(1, &[b.data(1000, 64)])?;
                    a.write(2000, &[round; 64]);
                    a.send(1, &[a.data(2000, 64)], Some(round.into()))?;
                    a.sent_well(1)?;
                    b.received_well(1)?;
                    check_eq!(b.descriptor(1)?.immediate(), round.into());
                    check_eq!(b.bytes(1000, 64), a.bytes(2000, 64));
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // A disconnect needs no help of the peer, which answers nothing here. All posted descriptors
    // are flushed, no message leaves any more, and the virtual interface is Idle.
    test(
        "via_connect::disconnect",
        &["via-4.2 B01 B02", "VipDisconnect B01 B02 S01 VIP_INVALID_PARAMETER"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b) = w.pair(level)?;
                    w.inject(&a, Injection::Hold, 1, 1)?;
                    a.fill(1);
                    for number in 0..4 {
                        a.receive(10 + number, &[a.data(0, 8)])?;
                        match number % 2 {
                            0 => a.rdma_write(number, &b.remote(0), &[a.data(0, 8)], None)?,
                            _ => a.send(number, &[a.data(0, 8)], None)?,
                        }
                    }
                    a.disconnect()?;
                    check_eq!(a.state()?, ViState::Idle);
                    for number in 0..4 {
                        for side in [number, 10 + number] {
                            check!(a.descriptor(side)?.is_done(), "complete when the call returns");
                        }
                        failed(a.sent(number)?, Status::DESC_FLUSHED_ERROR)?;
                        failed(a.received(10 + number)?, Status::DESC_FLUSHED_ERROR)?;
                    }
                    w.inject(&a, Injection::Hold, 1, 0)?;
                    broken(w, &b)?;
                    b.disconnect()?;
                    w.connect(&a, &b)?;
                    b.untouched()?;
                    retire(&a)?;
                    retire(&b)?;
                }
                let gone = w.side(&w.a, LEVEL, NO_CQS)?;
                gone.destroy()?;
                for vi in [ViHandle::NULL, gone.vi, ViHandle::from_raw(gone.vi.as_raw() ^ 1 << 63)] {
                    refused(w.a.disconnect(vi), Error::InvalidParameter)?;
                }
                Ok(())
            })
        },
    ),
    // The peer disconnects: on each level the virtual interface goes to Error, and the handler is
    // called at once. Later Sends are flushed.
    test("via_connect::the_peer_disconnects", &["via-4.2 A01 B04 O01"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                let errors = w.errors(&a.nic)?;
                b.disconnect()?;
                errors.expect(&a, ErrorCode::ConnLost)?;
                check_eq!(a.state()?, ViState::Error);
                a.send(0, &[a.data(0, 8)], None)?;
                failed(a.sent(0)?, Status::DESC_FLUSHED_ERROR)?;
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // Two virtual interfaces of one opening of a NIC are connected to each other.
    test("via_connect::ends_on_one_nic", &["via-4.1 B12"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = (w.side(&w.a, level, NO_CQS)?, w.side(&w.a, level, NO_CQS)?);
                w.connect(&a, &b)?;
                exchange(&a, &b)?;
                exchange(&b, &a)?;
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
];
