//! Virtual interfaces: creation, attributes, end (pages VipCreateVi, VipDestroyVi,
//! VipSetViAttributes, VipQueryVi, VIP_VI_ATTRIBUTES).

use privileged_api::{Features, Limits};
use vipl::*;

use super::connect::ask;
use super::levels::{broken, exchange, retire};
use super::world::*;
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;
const NULL: CqHandle = CqHandle::NULL;

/// Wrong attributes, in the order in which the call checks them.
fn wrong(
    good: &ViAttributes,
    most: u64,
    gone: PtagHandle,
    foreign: PtagHandle,
) -> [(ViAttributes, Error); 7] {
    let level = ReliabilityLevel::Unreliable;
    [
        (ViAttributes { max_transfer_size: most + 1, ..*good }, Error::InvalidMtu),
        (ViAttributes { max_transfer_size: 0, qos: Qos(8), ..*good }, Error::InvalidMtu),
        (ViAttributes { qos: Qos(8), ptag: gone, ..*good }, Error::InvalidQos),
        (ViAttributes { ptag: gone, ..*good }, Error::InvalidPtag),
        (ViAttributes { ptag: PtagHandle::NULL, ..*good }, Error::InvalidPtag),
        (ViAttributes { ptag: foreign, ..*good }, Error::InvalidPtag),
        (ViAttributes { reliability_level: level, enable_rdma_read: true, ..*good }, Error::InvalidRdmaRead),
    ]
}

/// An opening of `a`'s NIC whose interface has neither the reliable levels nor RDMA Read.
pub(super) fn without_reads(w: &World<'_>, test: impl FnOnce(&Nic, PtagHandle) -> Outcome) -> Outcome {
    let setup = &w.f.setup;
    let provider = privileged_api::Provider::new(setup.platform.clone());
    let features = Features::all().difference(Features::RC);
    // An agent listens for the openings of one provider at a time.
    w.a.close_nic()?;
    w.b.close_nic()?;
    provider.add_limited("limited", setup.a.agent.clone(), Limits { features, ..Limits::NONE })?;
    let nic = Provider::new(provider.interfaces()).open_nic("limited")?;
    let outcome = nic.create_ptag().map_err(Failure::from).and_then(|ptag| test(&nic, ptag));
    nic.close_nic()?;
    outcome
}

pub(crate) const TESTS: &[Test] = &[
    // A query returns the attributes with which a virtual interface was created, or those that were
    // set while it was idle, and its state. A failed change changes nothing.
    test(
        "via_vis::attributes",
        &[
            "VipCreateVi B01 S01 VIP_INVALID_MTU VIP_INVALID_PTAG VIP_INVALID_QOS",
            "VipSetViAttributes A01 B01 VIP_INVALID_MTU VIP_INVALID_PARAMETER VIP_INVALID_PTAG",
            "VipSetViAttributes VIP_INVALID_QOS",
            "VipQueryVi B01 VIP_INVALID_PARAMETER",
            "VIP_VI_ATTRIBUTES B01 F01-F03",
            "VIP_NIC_ATTRIBUTES F16",
            "via-6.1.1 L04",
            "via-3.2.2.1 B03",
            "via-11.3 B09",
        ],
        |f| {
            world(f, |w| {
                let (nic, most) = (&w.a, w.a.query_nic()?.max_transfer_size);
                crate::check!(most >= 32 << 10, "{most}");
                let (ptag, other, gone) = (nic.create_ptag()?, nic.create_ptag()?, nic.create_ptag()?);
                nic.destroy_ptag(gone)?;
                let foreign = w.another()?.create_ptag()?;
                let good = ViAttributes { max_transfer_size: most, ..attributes(ptag, LEVEL) };
                for (attributes, error) in wrong(&good, most, gone, foreign) {
                    refused(nic.create_vi(&attributes, NULL, NULL), error)?;
                }
                let vi = nic.create_vi(&good, NULL, NULL)?;
                check_eq!(nic.query_vi(vi)?, (ViState::Idle, good));
                for (attributes, error) in wrong(&good, most, gone, foreign) {
                    refused(nic.set_vi_attributes(vi, &attributes), error)?;
                }
                check_eq!(nic.query_vi(vi)?, (ViState::Idle, good));
                for level in LEVELS {
                    let changed = ViAttributes {
                        reliability_level: level,
                        max_transfer_size: 1,
                        qos: Qos::HIGHEST,
                        ptag: other,
                        enable_rdma_write: false,
                        enable_rdma_read: level == LEVEL,
                    };
                    nic.set_vi_attributes(vi, &changed)?;
                    check_eq!(nic.query_vi(vi)?, (ViState::Idle, changed));
                }
                for bad in [ViHandle::NULL, ViHandle::from_raw(vi.as_raw() ^ 1 << 40)] {
                    refused(nic.set_vi_attributes(bad, &good), Error::InvalidParameter)?;
                    refused(nic.query_vi(bad), Error::InvalidParameter)?;
                }
                // On a connection an operation is enabled if both ends enabled it. No attribute can
                // be changed.
                let both =
                    |ptag| ViAttributes { qos: Qos(5), max_transfer_size: 40_000, ..attributes(ptag, LEVEL) };
                let (a, b) = (w.side_with(&w.a, NO_CQS, both)?, w.side_with(&w.b, NO_CQS, both)?);
                w.connect(&a, &b)?;
                for side in [&a, &b] {
                    let now = (ViState::Connected, both(side.ptag));
                    check_eq!(side.nic.query_vi(side.vi)?, now);
                    let size = ViAttributes { max_transfer_size: 100, ..both(side.ptag) };
                    let level =
                        ViAttributes { reliability_level: ReliabilityLevel::Reception, ..both(side.ptag) };
                    let enables = ViAttributes { enable_rdma_write: false, ..both(side.ptag) };
                    for change in [size, level, enables] {
                        let set = side.nic.set_vi_attributes(side.vi, &change);
                        refused(set, Error::InvalidParameter)?;
                    }
                    check_eq!(side.nic.query_vi(side.vi)?, now);
                }
                exchange(&a, &b)
            })
        },
    ),
    // A connected virtual interface accepts no other peer, at either end, and keeps its own.
    test("via_vis::one_peer", &["via-1.5.3 L01"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            let client = w.side(&w.a, LEVEL, NO_CQS)?;
            let server = b.nic.address(b"second")?;
            let own = a.nic.address(b"own")?;
            refused(a.nic.connect_request(a.vi, &own, &server, LONG), Error::InvalidParameter)?;
            let asked = ask(w, &client, b"client", &server, LONG)?;
            let request = b.nic.connect_wait(&server, None, LONG)?;
            refused(b.nic.connect_accept(request.conn, b.vi), Error::InvalidParameter)?;
            exchange(&a, &b)?;
            b.nic.connect_reject(request.conn)?;
            check_eq!(asked.join()?, Err(Error::Reject));
            exchange(&b, &a)
        })
    }),
    // An interface without reliable levels refuses them, and RDMA Read, when the virtual interface
    // is created: so a consumer finds out before it posts anything.
    test(
        "via_vis::what_the_provider_lacks",
        &[
            "VipCreateVi VIP_INVALID_RDMAREAD VIP_INVALID_RELIABILITY_LEVEL",
            "VipSetViAttributes VIP_INVALID_RDMAREAD VIP_INVALID_RELIABILITY_LEVEL",
            "VipRegisterMem VIP_INVALID_RDMAREAD",
            "VipSetMemAttributes VIP_INVALID_RDMAREAD",
            "via-2.3.2 A01 O01",
            "via-3.1 A01",
        ],
        |f| {
            world(f, |w| {
                let has = w.side(&w.a, LEVEL, NO_CQS)?;
                check_eq!(has.state()?, ViState::Idle);
                without_reads(w, |nic, ptag| {
                    let good = attributes(ptag, ReliabilityLevel::Unreliable);
                    let vi = nic.create_vi(&good, NULL, NULL)?;
                    let reads = ViAttributes { enable_rdma_read: true, ..good };
                    refused(nic.create_vi(&reads, NULL, NULL), Error::InvalidRdmaRead)?;
                    refused(nic.set_vi_attributes(vi, &reads), Error::InvalidRdmaRead)?;
                    for level in RELIABLE {
                        let level = attributes(ptag, level);
                        refused(nic.create_vi(&level, NULL, NULL), Error::InvalidReliabilityLevel)?;
                        refused(nic.set_vi_attributes(vi, &level), Error::InvalidReliabilityLevel)?;
                    }
                    let buffer = f.buffer(PAGE)?;
                    let memory = open_memory(ptag);
                    let register = |memory| nic.register_mem(Memory::buffer(&buffer), PAGE as u64, &memory);
                    refused(register(memory), Error::InvalidRdmaRead)?;
                    let handle = register(MemAttributes { enable_rdma_read: false, ..memory })?;
                    let set = nic.set_mem_attributes(buffer.addr() as u64, handle, &memory);
                    refused(set, Error::InvalidRdmaRead)?;
                    check_eq!(nic.query_mem(buffer.addr() as u64, handle)?.enable_rdma_read, false);
                    Ok(())
                })
            })
        },
    ),
    // A virtual interface can be destroyed only when it is idle and its queues are empty. Its
    // handle is invalid afterwards.
    test(
        "via_vis::destroy",
        &[
            "VipDestroyVi B01-B03 VIP_ERROR_RESOURCE VIP_INVALID_PARAMETER",
            "via-3.3 B04 B05",
            "via-11.3 B08",
            "VipPostSend VIP_INVALID_PARAMETER",
            "VipPostRecv VIP_INVALID_PARAMETER",
            "VipSendDone VIP_INVALID_PARAMETER",
            "VipRecvDone VIP_INVALID_PARAMETER",
        ],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(LEVEL)?;
                let destroy = |side: &Side| side.nic.destroy_vi(side.vi);
                let counts = || f.setup.a.agent.counts().vis;
                let all = counts();
                refused(destroy(&a), Error::ErrorResource)?;
                // The peer ends the connection.
                b.disconnect()?;
                broken(w, &a)?;
                refused(destroy(&a), Error::ErrorResource)?;
                a.disconnect()?;
                a.receive(0, &[])?;
                refused(destroy(&a), Error::ErrorResource)?;
                a.disconnect()?;
                failed(w.done(&a.descriptor(0)?)?, Status::DESC_FLUSHED_ERROR)?;
                refused(destroy(&a), Error::ErrorResource)?;
                check_eq!(a.nic.recv_done(a.vi)?, a.descriptor(0)?.address());
                // Pending.
                let nobody = b.nic.address(b"nobody")?;
                let asked = ask(w, &a, b"client", &nobody, LONG)?;
                w.until("it is pending", || {
                    a.nic.query_vi(a.vi).is_ok_and(|(state, _)| state == ViState::ConnectPending)
                })?;
                refused(destroy(&a), Error::ErrorResource)?;
                a.disconnect()?;
                check_eq!(asked.join()?, Err(Error::ErrorResource));
                check_eq!(counts(), all);
                destroy(&a)?;
                check_eq!(counts(), all - 1);
                let invalid = Error::InvalidParameter;
                for vi in [a.vi, ViHandle::NULL] {
                    let at = a.descriptor(0)?.address();
                    refused(a.nic.destroy_vi(vi), invalid)?;
                    refused(a.nic.query_vi(vi), invalid)?;
                    refused(a.nic.post_send(vi, at, a.region.handle), invalid)?;
                    refused(a.nic.post_recv(vi, at, a.region.handle), invalid)?;
                    refused(a.nic.send_done(vi), invalid)?;
                    refused(a.nic.recv_done(vi), invalid)?;
                    refused(a.nic.disconnect(vi), invalid)?;
                }
                // The slot is used again; the old handle stays invalid.
                for _ in 0..3 {
                    let next = w.side(&w.a, LEVEL, NO_CQS)?;
                    crate::check!(next.vi != a.vi);
                    refused(a.nic.query_vi(a.vi), invalid)?;
                    retire(&next)?;
                }
                Ok(())
            })
        },
    ),
    // A new virtual interface has no connection: Sends complete in error and reach no peer.
    // Descriptors can be posted at once, and each post affects its own queue only.
    test("via_vis::a_new_one", &["via-3.3 B01", "via-11.3 B07", "via-2.1.1 B01", "via-1.5.3 B01"], |f| {
        world(f, |w| {
            let (other, peer) = w.pair(LEVEL)?;
            peer.receive(0, &[peer.data(0, 100)])?;
            for level in LEVELS {
                let new = w.side(&w.a, level, NO_CQS)?;
                new.receive(5, &[new.data(0, 100)])?;
                new.fill(4);
                new.send(0, &[new.data(0, 50)], None)?;
                new.rdma_write(1, &peer.remote(0), &[new.data(0, 50)], None)?;
                failed(new.sent(0)?, Status::DESC_FLUSHED_ERROR)?;
                failed(new.sent(1)?, Status::DESC_FLUSHED_ERROR)?;
                // The post changed neither the receive queue nor a queue of another virtual
                // interface.
                refused(new.nic.recv_done(new.vi), Error::NotDone)?;
                check_eq!(new.descriptor(5)?.status(), Status::empty());
                refused(other.nic.send_done(other.vi), Error::NotDone)?;
                // Writing a descriptor into another interface's memory starts no work there.
                other.descriptor(2)?.send(&[other.data(0, 8)], None)?;
                new.nic.post_recv(new.vi, other.descriptor(2)?.address(), other.region.handle)?;
                refused(other.nic.send_done(other.vi), Error::NotDone)?;
                check_eq!(other.descriptor(2)?.status(), Status::empty());
            }
            peer.untouched()?;
            refused(peer.nic.recv_done(peer.vi), Error::NotDone)?;
            other.send(0, &[other.data(0, 8)], None)?;
            other.sent_well(0)?;
            peer.received_well(0)
        })
    }),
];
