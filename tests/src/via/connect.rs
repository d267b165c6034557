//! Connections (chapter 4, pages VipConnectWait to VipDisconnect): client and server, addresses,
//! attributes, what is refused, and the end of a connection.

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::levels::{broken, exchange, retire};
use super::waits::{no_vis, waiter};
use super::world::*;
use crate::thread::Thread;
use crate::{Failure, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// What a client's request returns.
pub(super) type Answer = Thread<Result<ViAttributes, Error>>;

/// Has a thread ask for a connection to this address, by this name.
#[track_caller]
pub(super) fn ask(
    w: &World<'_>,
    side: &Side,
    name: &[u8],
    to: &NetAddress,
    timeout: u32,
) -> Result<Answer, Failure> {
    let (nic, vi, own, to) = (side.nic.clone(), side.vi, side.nic.address(name)?, to.clone());
    Thread::spawn(w.f.platform(), "client", move || nic.connect_request(vi, &own, &to, timeout))
}

/// The attributes of a virtual interface as its peer sees them: without the tag.
fn seen_by_peer(side: &Side) -> Result<ViAttributes, Failure> {
    Ok(ViAttributes { ptag: PtagHandle::NULL, ..side.nic.query_vi(side.vi)?.1 })
}

/// A host of the same kind as this NIC, which is not there.
fn nobody(nic: &Nic) -> Result<NetAddress, Failure> {
    let mut host = nic.query_nic()?.local_nic_address;
    host[15] ^= 0x55;
    Ok(NetAddress::new(&host, b"nobody")?)
}

/// Handles that name no request of this opening: null, and these.
fn no_conns(others: &[ConnHandle]) -> Vec<ConnHandle> {
    let raw = others.iter().map(|conn| conn.as_raw());
    let near = others.iter().map(|conn| conn.as_raw() ^ 1);
    raw.chain(near).chain([0, 1, u64::MAX]).map(ConnHandle::from_raw).collect()
}

pub(crate) const TESTS: &[Test] = &[
    // A server waits. It gets the client's address and attributes, and for each request a handle of
    // its own; it accepts the one with a virtual interface that it makes then, and rejects the
    // other. The client gets the attributes of the server's, or Reject.
    test(
        "via_connect::accept_and_reject",
        &[
            "via-4.1.B02",
            "via-4.1.B06",
            "via-4.1.B07",
            "via-4.1.B08",
            "via-4.1.B10",
            "via-4.1.B11",
            "via-4.1.S01",
            "VipConnectWait.B05",
            "VipConnectAccept.B01",
            "VipConnectReject.B01",
            "VipConnectRequest.B01",
            "VipConnectRequest.B02",
            "VipConnectRequest.B03",
            "VipConnectRequest.VIP_REJECT",
            "VipConnectRequest.A02",
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
    // A server waits for a discriminator, or for any; from any client, or from one by its host or
    // its discriminator. Requests that do not match stay for others.
    test(
        "via_connect::who_is_waited_for",
        &["via-4.1.B03", "via-4.3.B01", "via-4.3.B02", "VipConnectWait.B01"],
        |f| {
            world(f, |w| {
                let names = [b"x", b"y"].map(|name| w.b.address(name));
                let [x, y] = names;
                let (x, y) = (x?, y?);
                let (one, two) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.a, LEVEL, NO_CQS)?);
                let to_x = ask(w, &one, b"one", &x, LONG)?;
                let any = NetAddress::new(&[], b"")?;
                let request = w.b.connect_wait(&x, None, LONG)?;
                let to_y = ask(w, &two, b"two", &y, LONG)?;
                // It is there when a wait by another filter has found it.
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
        },
    ),
    // A wait ends when its time is over, at once for 0, and otherwise with a request that comes.
    test(
        "via_connect::waiting_for_requests",
        &[
            "via-4.1.B04",
            "VipConnectWait.B02",
            "VipConnectWait.B03",
            "VipConnectWait.B04",
            "VipConnectWait.VIP_TIMEOUT",
        ],
        |f| {
            world(f, |w| {
                let server = w.b.address(b"server")?;
                let before = (f.setup.usage)().waits;
                refused(w.b.connect_wait(&server, None, 0), Error::Timeout)?;
                check_eq!((f.setup.usage)().waits, before, "the call waited");
                refused(w.b.connect_wait(&server, None, 20), Error::Timeout)?;
                let a = w.side(&w.a, LEVEL, NO_CQS)?;
                let (nic, at) = (w.b.clone(), server.clone());
                let waits = waiter(w, alloc::boxed::Box::new(move || nic.connect_wait(&at, None, INFINITE)))?;
                check!(!waits.is_done(), "nobody has asked");
                let answer = ask(w, &a, b"client", &server, LONG)?;
                let request = waits.join()??;
                w.b.connect_reject(request.conn)?;
                check_eq!(answer.join()?, Err(Error::Reject));
                Ok(())
            })
        },
    ),
    // Addresses that are not this NIC's, too long, or of a closed NIC; and no room for the request.
    test(
        "via_connect::waits_that_are_refused",
        &[
            "VipConnectWait.VIP_INVALID_PARAMETER",
            "VipConnectWait.VIP_ERROR_RESOURCE",
            "VipConnectRequest.VIP_ERROR_RESOURCE",
        ],
        |f| {
            world(f, |w| {
                refused(w.b.connect_wait(&nobody(&w.b)?, None, LONG), Error::InvalidParameter)?;
                refused(w.b.address(&[0; MAX_DISCRIMINATOR + 1]), Error::InvalidParameter)?;
                refused(NetAddress::new(&[0; 5], b"x"), Error::InvalidParameter)?;
                let server = w.a.address(b"server")?;
                w.b.close_nic()?;
                refused(w.b.connect_wait(&server, None, LONG), Error::InvalidParameter)?;
                // The other provider below listens in the place of this one.
                w.a.close_nic()?;
                let interfaces = privileged_api::Provider::new(f.platform().clone());
                let none = privileged_api::Limits { connections: 0, ..privileged_api::Limits::NONE };
                interfaces.add_limited("limited", f.setup.a.agent.clone(), none)?;
                interfaces.add("free", f.setup.a.agent.clone())?;
                let provider = Provider::new(interfaces.interfaces());
                let nics = ["limited", "free"].map(|name| provider.open_nic(name));
                let [limited, free] = nics;
                let (limited, free) = (limited?, free?);
                let outcome = (|| {
                    let (a, b) = (w.side(&free, LEVEL, NO_CQS)?, w.side(&limited, LEVEL, NO_CQS)?);
                    let own = limited.address(b"client")?;
                    refused(limited.connect_request(b.vi, &own, &server, LONG), Error::ErrorResource)?;
                    check_eq!(b.state()?, ViState::Idle);
                    let answer = ask(w, &a, b"client", &server, LONG)?;
                    refused(limited.connect_wait(&server, None, LONG), Error::ErrorResource)?;
                    // The request is still there for another opening.
                    let request = free.connect_wait(&server, None, LONG)?;
                    free.connect_reject(request.conn)?;
                    check_eq!(answer.join()?, Err(Error::Reject));
                    Ok(())
                })();
                limited.close_nic()?;
                free.close_nic()?;
                outcome
            })
        },
    ),
    // An accept whose virtual interface does not fit fails with a code for what differs, and the
    // client waits on; with attributes that fit, the same request is accepted.
    test(
        "via_connect::a_refused_accept_leaves_the_request",
        &[
            "via-4.1.B09",
            "via-4.1.A02",
            "VipConnectAccept.B02",
            "VipConnectAccept.B03",
            "VipConnectAccept.B04",
            "VipConnectAccept.VIP_INVALID_RELIABILITY_LEVEL",
            "VipConnectAccept.VIP_INVALID_MTU",
            "VipConnectAccept.VIP_INVALID_QOS",
        ],
        |f| {
            world(f, |w| {
                let server = w.b.address(b"server")?;
                let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, NO_CQS)?);
                let answer = ask(w, &a, b"client", &server, LONG)?;
                let request = w.b.connect_wait(&server, None, LONG)?;
                let good = attributes(b.ptag, LEVEL);
                for (wrong, error) in [
                    (
                        ViAttributes { reliability_level: ReliabilityLevel::Reception, ..good },
                        Error::InvalidReliabilityLevel,
                    ),
                    (
                        ViAttributes { max_transfer_size: good.max_transfer_size + 1, ..good },
                        Error::InvalidMtu,
                    ),
                    (ViAttributes { max_transfer_size: 1, ..good }, Error::InvalidMtu),
                    (ViAttributes { qos: Qos(1), ..good }, Error::InvalidQos),
                ] {
                    w.b.set_vi_attributes(b.vi, &wrong)?;
                    refused(w.b.connect_accept(request.conn, b.vi), error)?;
                    check_eq!((a.state()?, b.state()?), (ViState::ConnectPending, ViState::Idle));
                    check!(!answer.is_done(), "the client was told");
                }
                w.b.set_vi_attributes(b.vi, &good)?;
                w.b.connect_accept(request.conn, b.vi)?;
                check_eq!(answer.join()?, Ok(seen_by_peer(&b)?));
                exchange(&a, &b)
            })
        },
    ),
    // Requests that are answered already, of another opening, or null; virtual interfaces that are
    // null, destroyed, foreign, connected or about to be.
    test(
        "via_connect::answers_that_are_refused",
        &["VipConnectAccept.VIP_INVALID_PARAMETER", "VipConnectReject.VIP_INVALID_PARAMETER"],
        |f| {
            world(f, |w| {
                let server = w.a.address(b"server")?;
                let request = || -> Result<(Side, ConnHandle, Answer), Failure> {
                    let client = w.side(&w.b, LEVEL, NO_CQS)?;
                    let answer = ask(w, &client, b"client", &server, LONG)?;
                    Ok((client, w.a.connect_wait(&server, None, LONG)?.conn, answer))
                };
                let (connected, idle) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.a, LEVEL, NO_CQS)?);
                let (peer, accepted, answer) = request()?;
                w.a.connect_accept(accepted, connected.vi)?;
                answer.join()??;
                let (_, rejected, answer) = request()?;
                w.a.connect_reject(rejected)?;
                check_eq!(answer.join()?, Err(Error::Reject));
                let (_, open, answer) = request()?;
                for conn in no_conns(&[accepted, rejected]) {
                    if conn == open {
                        continue;
                    }
                    refused(w.a.connect_accept(conn, idle.vi), Error::InvalidParameter)?;
                    refused(w.a.connect_reject(conn), Error::InvalidParameter)?;
                }
                refused(w.b.connect_reject(open), Error::InvalidParameter)?;
                let pending = w.side(&w.a, LEVEL, NO_CQS)?;
                let late = ask(w, &pending, b"client", &w.b.address(b"nobody waits")?, LONG)?;
                w.until("it is pending", || pending.state() == Ok(ViState::ConnectPending))?;
                let mut vis = no_vis(w)?;
                vis.extend([connected.vi, pending.vi]);
                for vi in vis {
                    refused(w.a.connect_accept(open, vi), Error::InvalidParameter)?;
                }
                check!(!answer.is_done() && !late.is_done());
                pending.disconnect()?;
                check_eq!(late.join()?, Err(Error::ErrorResource));
                w.a.connect_accept(open, idle.vi)?;
                answer.join()??;
                exchange(&connected, &peer)
            })
        },
    ),
    // Nobody waits for the discriminator, the host is not there, the server's virtual interface is
    // in a wrong state: the client gets Timeout when its time is over, and is Idle. A time of 0 is
    // Timeout at once.
    test(
        "via_connect::requests_that_nobody_accepts",
        &[
            "via-4.1.B05",
            "via-4.1.A01",
            "VipConnectRequest.B04",
            "VipConnectRequest.B05",
            "VipConnectRequest.A01",
            "VipConnectRequest.VIP_TIMEOUT",
        ],
        |f| {
            world(f, |w| {
                let (a, own) = (w.side(&w.a, LEVEL, NO_CQS)?, w.a.address(b"client")?);
                let server = w.b.address(b"server")?;
                a.receive(0, &[])?;
                for (to, timeout) in [
                    (server.clone(), 30),
                    (w.b.address(b"serve")?, 30),
                    (nobody(&w.b)?, 30),
                    (server.clone(), 0),
                ] {
                    refused(a.nic.connect_request(a.vi, &own, &to, timeout), Error::Timeout)?;
                    check_eq!(a.state()?, ViState::Idle);
                }
                let (busy, other) = w.pair(LEVEL)?;
                let answer = ask(w, &a, b"client", &server, 300)?;
                if let Ok(request) = w.b.connect_wait(&server, Some(&own), 300) {
                    refused(w.b.connect_accept(request.conn, other.vi), Error::InvalidParameter)?;
                }
                check_eq!(answer.join()?, Err(Error::Timeout));
                check_eq!((a.state()?, a.nic.recv_done(a.vi)), (ViState::Idle, Err(Error::NotDone)));
                exchange(&busy, &other)
            })
        },
    ),
    // Handles and addresses that are not valid, and virtual interfaces that are not Idle.
    test("via_connect::requests_that_are_refused", &["VipConnectRequest.VIP_INVALID_PARAMETER"], |f| {
        world(f, |w| {
            let (own, server) = (w.a.address(b"client")?, w.b.address(b"server")?);
            let invalid = Error::InvalidParameter;
            for vi in no_vis(w)? {
                refused(w.a.connect_request(vi, &own, &server, LONG), invalid)?;
                refused(w.a.disconnect(vi), invalid)?;
            }
            let a = w.side(&w.a, LEVEL, NO_CQS)?;
            let addresses = [
                (nobody(&w.a)?, server.clone()),
                (own.clone(), NetAddress::new(&[], b"server")?),
                (own.clone(), NetAddress::new(&[0xff; 16], b"server")?),
                (own.clone(), NetAddress::new(&[0; 16], b"server")?),
            ];
            for (local, remote) in &addresses {
                refused(a.nic.connect_request(a.vi, local, remote, LONG), invalid)?;
                check_eq!(a.state()?, ViState::Idle);
            }
            let (busy, peer) = w.pair(LEVEL)?;
            refused(busy.nic.connect_request(busy.vi, &own, &server, LONG), invalid)?;
            exchange(&busy, &peer)?;
            peer.disconnect()?;
            broken(w, &busy)?;
            refused(busy.nic.connect_request(busy.vi, &own, &server, LONG), invalid)
        })
    }),
    // The client gives up before the server accepts: Timeout, and the server's virtual interface is
    // Idle again.
    test(
        "via_connect::a_client_that_has_gone",
        &["via-5.1.A01", "via-5.1.S04", "VipConnectAccept.A01"],
        |f| {
            world(f, |w| {
                let server = w.b.address(b"server")?;
                let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, NO_CQS)?);
                for accepts in [true, false] {
                    let answer = ask(w, &a, b"client", &server, LONG)?;
                    let conn = w.b.connect_wait(&server, None, LONG)?.conn;
                    a.disconnect()?;
                    check_eq!(answer.join()?, Err(Error::ErrorResource));
                    if accepts {
                        refused(w.b.connect_accept(conn, b.vi), Error::Timeout)?;
                    } else {
                        w.b.connect_reject(conn)?;
                    }
                    refused(w.b.connect_reject(conn), Error::InvalidParameter)?;
                    check_eq!(b.state()?, ViState::Idle);
                }
                w.connect(&a, &b)
            })
        },
    )
    .limit(120),
    // A virtual interface is connected again at once, also with a message of the former connection
    // still on its way: nothing of that reaches the next one.
    test("via_connect::nothing_of_a_former_connection_arrives", &["via-4.1.B01", "via-4.2.B03"], |f| {
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
    // A disconnect needs no help of the peer, which answers nothing here. All that is posted is
    // flushed, nothing goes out any more, and the virtual interface is Idle.
    test(
        "via_connect::disconnect",
        &[
            "via-4.2.B01",
            "via-4.2.B02",
            "VipDisconnect.B01",
            "VipDisconnect.B02",
            "VipDisconnect.S01",
            "VipDisconnect.VIP_INVALID_PARAMETER",
        ],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(ReliabilityLevel::Reception)?;
                w.inject(&b, Injection::StallResponder, u32::MAX, 0)?;
                a.fill(1);
                for number in 0..4 {
                    a.receive(10 + number, &[a.data(0, 8)])?;
                    a.rdma_write(number, &b.remote(0), &[a.data(0, 8)], None)?;
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
                broken(w, &b)?;
                b.disconnect()?;
                w.connect(&a, &b)?;
                b.untouched()?;
                let gone = w.side(&w.a, LEVEL, NO_CQS)?;
                gone.destroy()?;
                for vi in [ViHandle::NULL, gone.vi, ViHandle::from_raw(gone.vi.as_raw() ^ 1 << 63)] {
                    refused(w.a.disconnect(vi), Error::InvalidParameter)?;
                }
                Ok(())
            })
        },
    ),
    // The peer disconnects: on each level the virtual interface is in Error and the handler is
    // called at once. A Send is flushed then.
    test("via_connect::the_peer_disconnects", &["via-4.2.O01", "via-4.2.B04", "via-4.2.A01"], |f| {
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
    test("via_connect::ends_on_one_nic", &["via-4.1.B12"], |f| {
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
