//! Virtual interfaces: posting, completions, connections and their ends, and bounds.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;

use common::vi::*;
use common::*;
use host::Machine;
use kernel_agent::{
    AcceptParams, CmEventKind, Config, ControlSegment, Error, Handshake, Reliability, Resource, ViAttributes,
    ViError, ViPostError, ViSide, ViStatus, ViTaken,
};
use nic_abi::admin::QpState;
use nic_abi::wqe::LinkFlags;
use roce::ServiceId;
use zerocopy::IntoBytes;

fn both_ways() -> [fn() -> Machine; 2] {
    [|| Machine::new(2), by_wire]
}

#[test]
fn messages_cross_on_each_level_in_both_directions() {
    for machine in both_ways() {
        let machine = machine();
        let [a, b] = nodes(&machine);
        for level in LEVELS {
            let (a, b) = ends(&a, &b, level);
            join(&a, &b);
            message(&a, &b, b"there");
            message(&b, &a, b"and back");
            assert_eq!((a.errors(), b.errors()), (0, 0));
        }
    }
}

#[test]
fn a_post_links_the_one_before_and_a_full_queue_takes_nothing() {
    let machine = Machine::new(1);
    let node = Node::new(&machine, &open(&machine, 0));
    let end = End::new(&node, Reliability::Delivery, 1);
    let mut links = Vec::new();
    for n in 0..u64::from(ENTRIES) {
        let link = |address, handle| links.push((address, handle));
        end.vi.post(ViSide::Receive, 64 * n, n as u32, link).unwrap();
    }
    assert_eq!(links, (0..u64::from(ENTRIES) - 1).map(|n| (64 * n, n as u32)).collect::<Vec<_>>());
    let refused = end.vi.post(ViSide::Receive, 0, 0, |_, _| unreachable!());
    assert_eq!((refused, end.vi.queued(ViSide::Receive)), (Err(ViPostError::Full), ENTRIES));
    assert_eq!(end.vi.queued(ViSide::Send), 0);
    assert_eq!(node.agent.outstanding(), ENTRIES);
    end.vi.destroy().unwrap();
    assert_eq!(node.agent.outstanding(), 0);
    assert_eq!(end.vi.post(ViSide::Receive, 0, 0, |_, _| {}), Err(ViPostError::Gone));
    assert_eq!((end.vi.destroy(), end.vi.disconnect()), (Err(Error::Gone), Err(Error::Gone)));
}

#[test]
fn receives_wait_for_the_connection_and_sends_without_one_are_flushed() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let (a, b) = (End::new(&a, Reliability::Reception, 1), End::new(&b, Reliability::Reception, 2));
    b.post(ViSide::Receive, 3, 64).unwrap();
    a.post(ViSide::Send, 4, 8).unwrap();
    assert_eq!(a.wait(ViSide::Send), 4);
    assert_eq!(a.status(4), ViStatus::DONE | ViStatus::DESC_FLUSHED_ERROR);
    join(&a, &b);
    a.post(ViSide::Send, 5, 8).unwrap();
    assert_eq!((a.wait(ViSide::Send), b.wait(ViSide::Receive)), (5, 3));
    assert_eq!(b.status(3), ViStatus::DONE | ViStatus::OP_RECEIVE);
}

#[test]
fn completion_queues_name_the_virtual_interface_and_its_queue() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let cq = b.client.create_vi_cq(4, 70).unwrap();
    let a = [1, 2].map(|context| End::new(&a, Reliability::Delivery, context));
    let b = [3, 4].map(|context| End::on(&b, Reliability::Delivery, context, [Some(&cq); 2]));
    a.iter().zip(&b).for_each(|(a, b)| join(a, b));
    assert_eq!((cq.take(), cq.destroy()), (None, Err(Error::Busy)));
    cq.arm();
    cq.arm();
    let heard = |what: &str| {
        b[0].node.ears.wait_for(what, |heard| (*heard == Heard::Completion(70)).then_some(()));
    };
    b[1].post(ViSide::Send, 1, 8).unwrap();
    a[1].post(ViSide::Receive, 1, 64).unwrap();
    heard("a completion of the send or receive");
    let next = || loop {
        if let Some(found) = cq.take() {
            return found;
        }
        cq.arm();
        if let Some(found) = cq.take() {
            return found;
        }
        heard("an entry");
    };
    // The first send found no receive: whether it did decides how it ends, not that it ends.
    assert_eq!(next(), (4, ViSide::Send));
    b[0].post(ViSide::Receive, 2, 64).unwrap();
    a[0].post(ViSide::Send, 2, 8).unwrap();
    let mut found = next();
    while found.0 == 4 {
        found = next();
    }
    assert_eq!(found, (3, ViSide::Receive));
    assert_eq!((b[0].take(ViSide::Receive), b[0].take(ViSide::Receive)), (Some(2), None));
    // A queue that is tied is not armed by itself.
    b[0].vi.arm(ViSide::Send);
    // Entries move along, and those of one that is destroyed are dropped.
    b[0].post(ViSide::Receive, 5, 64).unwrap();
    b[0].vi.disconnect().unwrap();
    cq.resize(64).unwrap();
    assert!(cq.entries() >= 64);
    let entries = core::iter::from_fn(|| cq.take());
    assert!(entries.filter(|&entry| entry == (3, ViSide::Receive)).count() == 1);
    b[0].post(ViSide::Send, 6, 8).unwrap();
    heard("a resized queue is looked at again");
    b[0].vi.disconnect().unwrap();
    b.iter().for_each(|end| end.vi.destroy().unwrap());
    assert_eq!(cq.take(), None);
    cq.destroy().unwrap();
    assert_eq!((cq.destroy(), cq.take()), (Err(Error::Gone), None));
}

/// What is still on a queue, with the status of each.
fn rest(end: &End, side: ViSide) -> Vec<(usize, ViStatus)> {
    core::iter::from_fn(|| end.take(side)).map(|n| (n, end.status(n))).collect()
}

#[test]
fn a_disconnect_flushes_and_both_ends_connect_again_at_once() {
    let flushed = ViStatus::DONE | ViStatus::DESC_FLUSHED_ERROR | ViStatus::OP_RECEIVE;
    for machine in both_ways() {
        let machine = machine();
        let [a, b] = nodes(&machine);
        for level in LEVELS {
            let (a, b) = ends(&a, &b, level);
            for round in 0..5 {
                join(&a, &b);
                message(&a, &b, b"hello");
                for end in [&a, &b] {
                    end.post(ViSide::Receive, 1, 64).unwrap();
                    end.post(ViSide::Receive, 2, 64).unwrap();
                }
                a.vi.disconnect().unwrap();
                assert_eq!(a.vi.state(), QpState::Reset);
                assert_eq!(rest(&a, ViSide::Receive), [(1, flushed), (2, flushed)], "{level:?} {round}");
                // Nothing of the disconnect's own is reported here, and the peer hears it once.
                assert_eq!((b.error(ViError::ConnectionLost), b.vi.state()), ((0, 0), QpState::Error));
                let ended = |kind: &CmEventKind| matches!(kind, CmEventKind::Disconnected { by_peer: true });
                assert_eq!(b.node.ears.cm("the end", ended).1, b.vi.context());
                b.vi.disconnect().unwrap();
                assert_eq!(b.vi.state(), QpState::Reset);
                assert_eq!(rest(&b, ViSide::Receive), [(1, flushed), (2, flushed)]);
                assert_eq!((a.errors(), b.errors()), (0, 0));
            }
        }
        assert_eq!([&a, &b].map(|node| node.agent.counts().connections), [0, 0]);
    }
}

#[test]
fn a_disconnect_waits_for_no_peer() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let (a, b) = (End::new(&a, Reliability::Reception, 1), End::new(&b, Reliability::Reception, 2));
    let listen = b.node.client.listen(ServiceId(SERVICE), ANY, 9).unwrap();
    // While it is asked for: the peer has not answered.
    dial_vi(&a, &b).unwrap();
    assert_eq!(dial_vi(&a, &b), Err(Error::Busy));
    assert_eq!(
        a.vi.set(None, Some(&vi_attributes(Reliability::Delivery))),
        Err(Error::QpState(QpState::Reset))
    );
    a.post(ViSide::Receive, 1, 64).unwrap();
    let asked = incoming(&b);
    a.vi.disconnect().unwrap();
    assert_eq!(rest(&a, ViSide::Receive).len(), 1);
    b.node.ears.cm("the withdrawal", |kind| *kind == CmEventKind::Withdrawn);
    let late = b.node.client.accept(asked, &b.vi, &AcceptParams::default(), b"");
    assert_eq!((late, b.vi.state()), (Err(Error::ConnectionState), QpState::Reset));
    // While the accept is not confirmed: nobody answers.
    dial_vi(&a, &b).unwrap();
    let asked = incoming(&b);
    a.node.agent.close();
    b.node.client.accept(asked, &b.vi, &AcceptParams::default(), b"").unwrap();
    assert_eq!(b.vi.state(), QpState::Rtr);
    b.post(ViSide::Receive, 1, 64).unwrap();
    b.vi.disconnect().unwrap();
    assert_eq!((b.vi.state(), rest(&b, ViSide::Receive).len()), (QpState::Reset, 1));
    b.vi.disconnect().unwrap();
    assert_eq!(b.vi.state(), QpState::Reset);
    b.node.client.stop_listening(listen).unwrap();
    assert_eq!(b.node.agent.counts().connections, 0);
}

#[test]
fn a_rejected_attempt_leaves_the_virtual_interface_idle_with_its_receives() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let (a, b) = (End::new(&a, Reliability::Delivery, 1), End::new(&b, Reliability::Delivery, 2));
    let listen = b.node.client.listen(ServiceId(SERVICE), ANY, 9).unwrap();
    a.post(ViSide::Receive, 1, 64).unwrap();
    dial_vi(&a, &b).unwrap();
    b.node.client.reject(incoming(&b), b"no").unwrap();
    a.node.ears.cm("the rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
    assert_eq!((a.vi.state(), a.vi.queued(ViSide::Receive), a.errors()), (QpState::Reset, 1, 0));
    b.node.client.stop_listening(listen).unwrap();
    join(&a, &b);
    b.post(ViSide::Send, 2, 8).unwrap();
    assert_eq!((b.wait(ViSide::Send), a.wait(ViSide::Receive)), (2, 1));
}

#[test]
fn an_attempt_that_fails_after_the_accept_leaves_the_receives_of_both_ends() {
    for machine in both_ways() {
        let machine = machine();
        let [a, b] = nodes(&machine);
        for level in LEVELS {
            let (a, b) = ends(&a, &b, level);
            let listen = b.node.client.listen(ServiceId(SERVICE), ANY, 9).unwrap();
            for end in [&a, &b] {
                end.post(ViSide::Receive, 1, 64).unwrap();
                end.post(ViSide::Receive, 2, 64).unwrap();
            }
            for gives_up in [false, true] {
                let handshake = Handshake::ThreeWay;
                let id = a.node.client.connect(&a.vi, &asked(&a, &b), handshake, b"").unwrap();
                b.node.client.accept(incoming(&b), &b.vi, &AcceptParams::default(), b"").unwrap();
                a.node.ears.cm("the reply", |kind| matches!(kind, CmEventKind::AcceptArrived { .. }));
                assert_eq!([a.vi.state(), b.vi.state()], [QpState::Rtr; 2]);
                match gives_up {
                    true => a.vi.give_up().unwrap(),
                    false => a.node.client.reject(id, b"").unwrap(),
                }
                b.node.ears.cm("the end", |kind| matches!(kind, CmEventKind::Rejected { .. }));
                assert_eq!([a.vi.state(), b.vi.state()], [QpState::Reset; 2]);
            }
            b.node.client.stop_listening(listen).unwrap();
            join(&a, &b);
            for (from, to) in [(&a, &b), (&b, &a)] {
                from.post(ViSide::Send, 3, 8).unwrap();
                assert_eq!((from.wait(ViSide::Send), to.wait(ViSide::Receive)), (3, 1), "{level:?}");
                assert_eq!(to.status(1), ViStatus::DONE | ViStatus::OP_RECEIVE);
            }
            // The end of a connection flushes them.
            let flushed = ViStatus::DONE | ViStatus::DESC_FLUSHED_ERROR | ViStatus::OP_RECEIVE;
            a.vi.disconnect().unwrap();
            b.error(ViError::ConnectionLost);
            b.vi.give_up().unwrap();
            for end in [&a, &b] {
                assert_eq!(rest(end, ViSide::Receive), [(2, flushed)], "{level:?}");
            }
        }
    }
}

#[test]
fn on_reliable_levels_an_empty_receive_queue_breaks_both_ends_once() {
    for machine in both_ways() {
        let machine = machine();
        let [a, b] = nodes(&machine);
        for level in RELIABLE {
            let (a, b) = ends(&a, &b, level);
            join(&a, &b);
            a.post(ViSide::Send, 1, 8).unwrap();
            assert_eq!(a.wait(ViSide::Send), 1);
            let error = match level {
                Reliability::Reception => ViStatus::REMOTE_DESC_ERROR,
                _ => ViStatus::empty(),
            };
            assert_eq!(a.status(1), ViStatus::DONE | error);
            assert_eq!(b.error(ViError::ReceiveQueueEmpty).0, 1);
            for end in [&a, &b] {
                end.error(ViError::ConnectionLost);
                let ended = |kind: &CmEventKind| matches!(kind, CmEventKind::Disconnected { .. });
                end.node.ears.cm("the end", ended);
                assert_eq!(end.vi.state(), QpState::Error);
                end.vi.disconnect().unwrap();
            }
            assert_eq!((a.errors(), b.errors()), (0, 0), "{level:?}");
            join(&a, &b);
            message(&a, &b, b"again");
        }
    }
}

#[test]
fn attributes_change_while_it_is_idle_and_the_domain_stays_in_use() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let (a, b) = (End::new(&a, Reliability::Unreliable, 1), End::new(&b, Reliability::Reception, 2));
    let other = a.node.client.create_pd().unwrap();
    let refused = |vi: &ViAttributes| a.vi.set(None, Some(vi)).unwrap_err();
    let good = vi_attributes(Reliability::Reception);
    assert_eq!(refused(&ViAttributes { max_transfer: 0, ..good }), Error::OutOfRange("message size"));
    let most = a.node.agent.identity().max_message;
    assert_eq!(refused(&ViAttributes { max_transfer: most + 1, ..good }), Error::OutOfRange("message size"));
    let atomic = LinkFlags::REMOTE_ATOMIC;
    assert_eq!(refused(&ViAttributes { access: atomic, ..good }), Error::OutOfRange("rights of the peer"));
    assert_eq!(a.vi.set(Some(&b.node.pd), None), Err(Error::Foreign));
    a.vi.set(Some(&other), Some(&good)).unwrap();
    assert_eq!((other.destroy(), a.vi.state()), (Err(Error::Busy), QpState::Reset));
    // Its memory is in the former domain. The device reads a receive when it is needed or flushed.
    a.post(ViSide::Send, 1, 64).unwrap();
    assert_eq!(a.error(ViError::PostDescriptor), (0, a.address(1)));
    a.post(ViSide::Receive, 2, 64).unwrap();
    a.vi.disconnect().unwrap();
    assert_eq!(a.error(ViError::PostDescriptor), (1, a.address(2)));
    assert_eq!(SIDES.map(|side| (a.take(side), a.vi.queued(side))), [(None, 0); 2]);
    // One that is posted stays posted, and counts for the domain that it finds in the end.
    a.post(ViSide::Receive, 3, 64).unwrap();
    a.vi.set(Some(&a.node.pd), None).unwrap();
    other.destroy().unwrap();
    a.vi.set(None, Some(&good)).unwrap();
    assert_eq!((a.take(ViSide::Receive), a.vi.queued(ViSide::Receive)), (None, 1));
    // The level is that of the peer now.
    join(&a, &b);
    b.post(ViSide::Send, 4, 8).unwrap();
    assert_eq!((b.wait(ViSide::Send), a.wait(ViSide::Receive)), (4, 3));
    assert_eq!(a.status(3), ViStatus::DONE | ViStatus::OP_RECEIVE);
    assert_eq!(a.vi.set(None, Some(&good)), Err(Error::QpState(QpState::Rts)));
    message(&a, &b, b"reliably");
    let unreliable = vi_attributes(Reliability::Unreliable);
    a.vi.disconnect().unwrap();
    a.vi.set(None, Some(&unreliable)).unwrap();
    b.error(ViError::ConnectionLost);
    b.vi.disconnect().unwrap();
    // A request of the other service is not accepted.
    let listen = b.node.client.listen(ServiceId(SERVICE), ANY, 9).unwrap();
    dial_vi(&a, &b).unwrap();
    let answer = b.node.client.accept(incoming(&b), &b.vi, &AcceptParams::default(), b"");
    assert!(answer.is_err() && b.vi.state() == QpState::Reset);
    b.node.client.stop_listening(listen).unwrap();
}

#[test]
fn a_handle_survives_a_change_of_its_region() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let (a, b) = (End::new(&a, Reliability::Unreliable, 1), End::new(&b, Reliability::Unreliable, 2));
    join(&a, &b);
    let handle = a.handle();
    a.region.modify_in_place(None, Some(LinkFlags::LOCAL_READ)).unwrap();
    assert_eq!(a.handle(), handle);
    a.post(ViSide::Send, 1, 8).unwrap();
    a.error(ViError::PostDescriptor);
    let rights = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE;
    a.region.modify_in_place(None, Some(rights)).unwrap();
    assert_eq!((a.handle(), a.region.query().unwrap().remote), (handle, handle));
    message(&a, &b, b"it is the same");
    let other = a.node.client.create_pd().unwrap();
    a.region.modify_in_place(Some(&other), None).unwrap();
    assert_eq!((a.handle(), other.destroy()), (handle, Err(Error::Busy)));
}

#[test]
fn a_client_that_leaves_takes_its_virtual_interfaces_along() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let (agent, lent) = (a.agent.clone(), machine.arena().available());
    let cq = a.client.create_vi_cq(4, 70).unwrap();
    let ends = [1, 2].map(|context| End::on(&a, Reliability::Reception, context, [Some(&cq), None]));
    let peer = End::new(&b, Reliability::Reception, 3);
    join(&ends[0], &peer);
    let counts = agent.counts();
    assert_eq!((counts.vis, counts.vi_cqs, counts.qps), (2, 1, 0));
    ends[1].post(ViSide::Receive, 1, 64).unwrap();
    a.client.detach();
    assert_eq!(agent.counts(), kernel_agent::Counts::default());
    assert_eq!(ends[1].vi.post(ViSide::Receive, 1, 0, |_, _| {}), Err(ViPostError::Gone));
    peer.error(ViError::ConnectionLost);
    drop((ends, peer, cq));
    assert!(machine.arena().available() >= lent);
}

#[test]
fn virtual_interfaces_run_out_and_come_back() {
    let machine = Machine::new(1);
    let config = Config { max_vis: 4, ..Config::default() };
    let node = Node::new(&machine, &open_with(&machine, 0, config));
    let create = |entries| {
        let attributes = vi_attributes(Reliability::Delivery);
        node.client.create_vi(&node.pd, &attributes, [None; 2], entries, 0)
    };
    let most = node.agent.identity().max_vi_entries;
    for entries in [[0, 1], [1, 0], [most + 1, 1], [1, most + 1]] {
        assert_eq!(create(entries).err(), Some(Error::OutOfRange("number of descriptors")));
    }
    let bad = ViAttributes { max_transfer: 0, ..vi_attributes(Reliability::Delivery) };
    let refused = node.client.create_vi(&node.pd, &bad, [None; 2], [1; 2], 0);
    assert_eq!(refused.err(), Some(Error::OutOfRange("message size")));
    for _ in 0..3 {
        let mut all: Vec<_> = (0..4).map(|_| create([1; 2]).unwrap()).collect();
        assert_eq!(create([1; 2]).err(), Some(Error::NoResources(Resource::Qps)));
        all.drain(..).for_each(|vi| vi.destroy().unwrap());
    }
    create([most; 2]).unwrap().destroy().unwrap();
    // The numbers are those of queue pairs.
    let qps: Vec<_> = (0..100).map(|_| node.qp(1)).collect();
    qps.iter().for_each(|qp| qp.destroy().unwrap());
    assert_eq!(node.agent.counts().vis, 0);
}

/// Two agents' virtual interfaces connect and disconnect while other threads post, take and arm.
#[test]
fn posts_meet_disconnects_and_destruction() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    for level in RELIABLE {
        let (a, b) = ends(&a, &b, level);
        // The posters and this thread begin once each poster has posted.
        let begin = Arc::new(std::sync::Barrier::new(4));
        let poster = |end: &End, side: ViSide| {
            let (vi, handle, address) = (end.vi.clone(), end.handle(), end.address(50));
            let begin = begin.clone();
            move || {
                assert_eq!(vi.post(side, address, handle, |_, _| {}), Ok(()));
                begin.wait();
                loop {
                    match vi.post(side, address, handle, |_, _| {}) {
                        Ok(()) => {}
                        Err(ViPostError::Full) => std::thread::yield_now(),
                        Err(ViPostError::Gone) => return,
                    }
                    vi.arm(side);
                    while vi.take(side, |_, _| true) != ViTaken::NotDone {}
                }
            }
        };
        let segment = ControlSegment::default();
        [&a, &b].iter().for_each(|end| end.memory.write(64 * 50, segment.as_bytes()).unwrap());
        let threads: Vec<_> = [(&a, ViSide::Send), (&b, ViSide::Receive), (&b, ViSide::Send)]
            .map(|(end, side)| std::thread::spawn(poster(end, side)))
            .into_iter()
            .collect();
        begin.wait();
        for _ in 0..20 {
            a.vi.disconnect().unwrap();
            b.vi.disconnect().unwrap();
        }
        for side in SIDES {
            assert!(a.vi.queued(side) <= ENTRIES && b.vi.queued(side) <= ENTRIES);
        }
        a.vi.destroy().unwrap();
        b.vi.destroy().unwrap();
        for thread in threads {
            thread.join().unwrap();
        }
    }
    assert_eq!([&a, &b].map(|node| node.agent.is_dead()), [false; 2]);
}
