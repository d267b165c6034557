//! Connections that are not established (chapter 4, pages VipConnectWait to VipConnectRequest):
//! invalid arguments, attributes that do not fit, ends that do not exist.

use alloc::vec::Vec;
use core::result::Result;

use vipl::*;

use super::connect::{Answer, ask, nobody, seen_by_peer};
use super::levels::{broken, exchange};
use super::waits::no_vis;
use super::world::*;
use crate::{Failure, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// Handles that name no request of this opening: null, and `others`.
fn no_conns(others: &[ConnHandle]) -> Vec<ConnHandle> {
    let raw = others.iter().map(|conn| conn.as_raw());
    let near = others.iter().map(|conn| conn.as_raw() ^ 1);
    raw.chain(near).chain([0, 1, u64::MAX]).map(ConnHandle::from_raw).collect()
}

pub(crate) const TESTS: &[Test] = &[
    // Addresses that are of another NIC, too long, or of a closed NIC; and a request for which
    // there is no room.
    test(
        "via_connect_refusals::waits_that_are_refused",
        &["VipConnectWait VIP_ERROR_RESOURCE VIP_INVALID_PARAMETER", "VipConnectRequest VIP_ERROR_RESOURCE"],
        |f| {
            world(f, |w| {
                refused(w.b.connect_wait(&nobody(&w.b)?, None, LONG), Error::InvalidParameter)?;
                refused(w.b.address(&[0; MAX_DISCRIMINATOR + 1]), Error::InvalidParameter)?;
                refused(NetAddress::new(&[0; 5], b"x"), Error::InvalidParameter)?;
                let server = w.a.address(b"server")?;
                w.b.close_nic()?;
                refused(w.b.connect_wait(&server, None, LONG), Error::InvalidParameter)?;
                // The agent listens for one provider at a time, and next for the provider below.
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
                    // Another opening can still take the request.
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
    // An accept fails if its virtual interface does not fit, with a code for the difference, and
    // the client keeps waiting. The same request is then accepted with fitting attributes.
    test(
        "via_connect_refusals::a_refused_accept_leaves_the_request",
        &[
            "via-4.1 A02 B09",
            "VipConnectAccept B02-B04 VIP_INVALID_MTU VIP_INVALID_QOS",
            "VipConnectAccept VIP_INVALID_RELIABILITY_LEVEL",
        ],
        |f| {
            world(f, |w| {
                let server = w.b.address(b"server")?;
                let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, NO_CQS)?);
                let answer = ask(w, &a, b"client", &server, LONG)?;
                let request = w.b.connect_wait(&server, None, LONG)?;
                // Neither the attempts nor the changes of the attributes take it (5.1).
                b.receive(1, &[b.data(0, 8)])?;
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
                    check!(!answer.is_done(), "the client got an answer");
                    refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                }
                w.b.set_vi_attributes(b.vi, &good)?;
                w.b.connect_accept(request.conn, b.vi)?;
                check_eq!(answer.join()?, Ok(seen_by_peer(&b)?));
                a.fill(1);
                a.send(1, &[a.data(0, 8)], None)?;
                a.sent_well(1)?;
                b.received_well(1)?;
                check_eq!(b.bytes(0, 8), a.bytes(0, 8));
                exchange(&a, &b)
            })
        },
    ),
    // Requests that are answered, of another opening, or null; virtual interfaces that are null,
    // destroyed, of another opening, connected or connecting.
    test(
        "via_connect_refusals::answers_that_are_refused",
        &["VipConnectAccept VIP_INVALID_PARAMETER", "VipConnectReject VIP_INVALID_PARAMETER"],
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
    // Nothing waits for the discriminator, the host does not exist, or the server's virtual
    // interface is in a wrong state: the client gets Timeout when its time is over, and is Idle.
    // With a time of 0 it gets Timeout at once.
    test(
        "via_connect_refusals::requests_that_nobody_accepts",
        &["via-4.1 A01 B05", "VipConnectRequest A01 B04 B05 VIP_TIMEOUT"],
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
    // Invalid handles and addresses, and virtual interfaces that are not Idle.
    test(
        "via_connect_refusals::requests_that_are_refused",
        &["VipConnectRequest VIP_INVALID_PARAMETER"],
        |f| {
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
        },
    ),
    // The client gives up before the server accepts: the server gets Timeout, and its virtual
    // interface is Idle again.
    test("via_connect_refusals::a_client_that_has_gone", &["via-5.1 A01 S04", "VipConnectAccept A01"], |f| {
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
    })
    .limit(120),
];
