//! Virtual interfaces: events, and what the agent asks a device for.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use common::vi::*;
use common::*;
use host::Machine;
use kernel_agent::{
    AcceptParams, AsyncEvent, Config, Error, Features, Identity, Reliability, Resource, ViError, ViPostError,
    ViSide, ViTaken,
};
use nic_abi::admin::{CqFlags, CreateCq, CreateEq, CreateQp, Injection, ModifyQp, Opcode, QpMask, QpState};
use nic_abi::cqe::CqeFlags;
use nic_abi::eqe::EventType;
use nic_abi::ident;
use nic_abi::vi::{ENTRY, MARK_COMPLETE, MARK_LOST, RING_HEAD};
use nic_abi::wqe::LinkFlags;
use roce::ServiceId;

#[test]
fn a_bad_post_is_an_event_and_breaks_no_unreliable_connection() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let (a, b) = (End::new(&a, Reliability::Unreliable, 1), End::new(&b, Reliability::Unreliable, 2));
    join(&a, &b);
    a.vi.post(ViSide::Send, a.address(1) + 8, a.handle(), |_, _| {}).unwrap();
    assert_eq!(a.error(ViError::PostDescriptor), (0, a.address(1) + 8));
    assert_eq!((a.take(ViSide::Send), a.vi.queued(ViSide::Send)), (None, 0), "it is lost");
    assert_eq!(a.vi.state(), QpState::Rts);
    message(&a, &b, b"still there");
}

#[test]
fn waiters_learn_of_a_dead_device_and_posts_end() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    let (a, b) = (End::new(&a, Reliability::Delivery, 1), End::new(&b, Reliability::Delivery, 2));
    join(&a, &b);
    a.post(ViSide::Receive, 1, 64).unwrap();
    a.vi.arm(ViSide::Receive);
    give_up(&a.node.agent);
    a.node.ears.wait_for("its death", |heard| matches!(heard, Heard::Dead(_)).then_some(()));
    assert_eq!(a.vi.post(ViSide::Send, 0, 0, |_, _| {}), Err(ViPostError::Gone));
    assert_eq!(a.take(ViSide::Receive), None);
    assert!(matches!(a.vi.disconnect(), Err(Error::DeviceDead(_))));
    assert!(matches!(a.vi.set(None, None), Err(Error::DeviceDead(_))));
    assert!(matches!(a.vi.destroy(), Err(Error::DeviceDead(_))));
    assert_eq!(a.vi.destroy(), Err(Error::Gone));
    assert!(a.node.client.create_vi_cq(4, 0).is_err());
}

fn vi_identity() -> Identity {
    Identity {
        features: Features::VI.bits(),
        max_vi_segments: 252,
        max_vi_entries: 16,
        ..host::fake::identity()
    }
}

#[test]
fn invalid_events_and_those_of_a_former_connection_are_dropped() {
    let (fake, agent, client, ears) = on_fake(vi_identity(), Config::default());
    let (eq, args) = fake.last::<CreateEq>(Opcode::CreateEq);
    assert_eq!((eq, args.vector), (2, 1));
    let pd = client.create_pd().unwrap();
    let attributes = vi_attributes(Reliability::Reception);
    let vi = client.create_vi(&pd, &attributes, [None; 2], [4; 2], 5).unwrap();
    let (former, created) = fake.last::<CreateQp>(Opcode::CreateQp);
    assert_eq!((former, created.srq, created.eq), (vi.qpn(), 2, 2));
    vi.disconnect().unwrap();
    let (object, modified) = fake.last::<ModifyQp>(Opcode::ModifyQp);
    assert_eq!((object, modified.qpn), (former, vi.qpn()));
    let (slot, now) = (ident::qpn_slot(former), vi.qpn());
    assert!(now != former && ident::qpn_slot(now) == slot);
    let mut written = 0;
    let mut write = |kind: EventType, status: u8, number: u32, generation: u32, detail: u32| {
        let first = u64::from(kind as u8) | u64::from(status) << 8 | u64::from(number) << 32;
        let second = u64::from(generation) | u64::from(detail) << 32;
        fake.write_entry(args.ring, args.log_entries, written, [first, second, 0x40 * u64::from(written), 0]);
        written += 1;
        fake.interrupt(1);
    };
    let generation = created.generation;
    vi.arm(ViSide::Receive);
    write(EventType::ViCompletion, 0, now, generation + 1, 1);
    write(EventType::ViCompletion, 0, now, generation, 2);
    write(EventType::ViError, 200, now, generation, 0);
    write(EventType::ViError, ViError::ReceiveQueueEmpty as u8, former, generation, 1);
    write(EventType::ViError, ViError::ConnectionLost as u8, former, generation, 0);
    write(EventType::ViError, ViError::ConnectionLost as u8, now + 1, generation, 0);
    write(EventType::CommunicationEstablished, 0, former, generation, 0);
    // Events of what the consumer did name the object, not the connection.
    write(EventType::ViError, ViError::PostDescriptor as u8, former, generation, 0x19);
    write(EventType::ViCompletion, 0, former, generation, 1);
    let heard = |wanted: &Heard| ears.wait_for("an event", |heard| (heard == wanted).then_some(()));
    heard(&Heard::Vi(5, ViSide::Receive));
    let error =
        |number, error, operation, address| AsyncEvent::Vi { context: 5, number, error, operation, address };
    let bad_post = Heard::Async(error(former, ViError::PostDescriptor, 1, 7 * 0x40));
    assert_eq!((ears.all(), vi.state()), (vec![bad_post.clone()], QpState::Reset));
    heard(&bad_post);
    // The loss of a connection is reported once.
    write(EventType::ViError, ViError::ConnectionLost as u8, now, generation, 0);
    write(EventType::ViError, ViError::ConnectionLost as u8, now, generation, 0);
    write(EventType::ViCompletion, 0, now, generation, 0);
    heard(&Heard::Vi(5, ViSide::Send));
    let lost = Heard::Async(error(now, ViError::ConnectionLost, 0, 0));
    assert_eq!((ears.all(), vi.state()), (vec![lost], QpState::Error));
    vi.disconnect().unwrap();
    assert_eq!(vi.state(), QpState::Reset);
    // Of the next owner of the slot, no number is one that it had.
    let last = vi.qpn();
    vi.destroy().unwrap();
    write(EventType::ViError, ViError::PostDescriptor as u8, last, generation, 0);
    agent.close();
}

#[test]
fn invalid_entries_of_a_completion_queue_are_dropped() {
    let (fake, agent, client, _) = on_fake(vi_identity(), Config::default());
    let pd = client.create_pd().unwrap();
    let cq = client.create_vi_cq(4, 1).unwrap();
    let (_, args) = fake.last::<CreateCq>(Opcode::CreateCq);
    assert_eq!((args.flags, args.log_entries), (CqFlags::VI.bits(), 2));
    let attributes = vi_attributes(Reliability::Reception);
    let vi = client.create_vi(&pd, &attributes, [None, Some(&cq)], [4; 2], 5).unwrap();
    let (number, created) = fake.last::<CreateQp>(Opcode::CreateQp);
    let mut written = 0;
    let mut write = |number: u32, generation: u32, flags: CqeFlags| {
        let words = [u64::from(number) | u64::from(generation) << 32, 0, 0, u64::from(flags.bits()) << 8];
        fake.write_entry(args.ring, args.log_entries, written, words);
        written += 1;
    };
    let (receive, send) = (CqeFlags::RECEIVE, CqeFlags::empty());
    let generation = created.generation;
    assert_eq!(cq.take(), None);
    write(number, generation + 1, receive);
    write(number, generation, send);
    write(number + 1, generation, receive);
    write(number, generation, receive);
    assert_eq!((cq.take(), cq.take()), (Some((5, ViSide::Receive)), None));
    // Entries of a former connection stay valid.
    vi.disconnect().unwrap();
    assert_ne!(vi.qpn(), number);
    write(number, generation, receive);
    write(vi.qpn(), generation, receive);
    assert_eq!(cq.take(), Some((5, ViSide::Receive)));
    vi.destroy().unwrap();
    assert_eq!(cq.take(), None);
    // A device that writes nothing but nonsense keeps no thread for ever.
    (0..4).for_each(|_| write(u32::MAX, u32::MAX, receive));
    assert_eq!((cq.take(), cq.take()), (None, None));
    cq.destroy().unwrap();
    agent.close();
}

#[test]
fn an_agent_without_room_for_their_events_makes_none() {
    let (_fake, agent, client, _) = on_fake(Identity { max_eqs: 2, ..vi_identity() }, Config::default());
    let pd = client.create_pd().unwrap();
    assert_eq!(agent.config().max_vis, 0);
    let refused = client.create_vi(&pd, &vi_attributes(Reliability::Delivery), [None; 2], [1; 2], 0);
    assert_eq!(refused.err(), Some(Error::NoResources(Resource::Qps)));
    assert_eq!(client.create_vi_cq(4, 0).err(), Some(Error::OutOfRange("type of completion queue")));
    agent.close();
}

#[test]
fn lost_descriptors_at_the_head_of_a_queue_are_skipped_and_no_others() {
    let (fake, agent, client, _) = on_fake(vi_identity(), Config::default());
    let pd = client.create_pd().unwrap();
    let vi = client.create_vi(&pd, &vi_attributes(Reliability::Delivery), [None; 2], [4; 2], 5).unwrap();
    let (_, created) = fake.last::<CreateQp>(Opcode::CreateQp);
    for (side, ring) in [(ViSide::Send, created.send_ring), (ViSide::Receive, created.receive_ring)] {
        let mark = |n: u64, mark| {
            let entry = fake.memory(ring + (RING_HEAD as u64) + (ENTRY as u64) * n, ENTRY as u64);
            entry.atomic_u32(12).unwrap().store(mark, Ordering::Release);
        };
        for n in 0..4 {
            vi.post(side, 64 * n, 7, |_, _| {}).unwrap();
        }
        vi.skip_lost(side);
        assert_eq!((vi.take(side, |_, _| unreachable!()), vi.queued(side)), (ViTaken::NotDone, 4));
        for n in [0, 1, 3] {
            mark(n, MARK_LOST);
        }
        assert_eq!(vi.take(side, |_, _| unreachable!()), ViTaken::Lost);
        vi.skip_lost(side);
        assert_eq!((vi.take(side, |_, _| unreachable!()), vi.queued(side)), (ViTaken::NotDone, 2));
        mark(2, MARK_COMPLETE);
        vi.skip_lost(side);
        let done = ViTaken::Done { address: 128, handle: 7 };
        assert_eq!((vi.take(side, |_, _| unreachable!()), vi.queued(side)), (done, 1));
        vi.skip_lost(side);
        assert_eq!((vi.take(side, |_, _| unreachable!()), vi.queued(side)), (ViTaken::NotDone, 0));
    }
    agent.close();
}

#[test]
fn a_message_establishes_the_connection_whose_confirmation_is_lost() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    for level in LEVELS {
        let (a, b) = ends(&a, &b, level);
        let listen = b.node.client.listen(ServiceId(SERVICE), ANY, 9).unwrap();
        dial_vi(&a, &b).unwrap();
        let asked = incoming(&b);
        b.post(ViSide::Receive, 1, 64).unwrap();
        let drop = |count| a.node.agent.test_handle().inject(0, Injection::DropManagement, count, 0).unwrap();
        drop(1000);
        b.node.client.accept(asked, &b.vi, &AcceptParams::default(), b"").unwrap();
        a.node.ears.cm("established", is_established);
        assert_eq!(b.vi.state(), QpState::Rtr);
        a.post(ViSide::Send, 2, 8).unwrap();
        assert_eq!(b.node.ears.cm("established", is_established).1, b.vi.context());
        assert_eq!((b.vi.state(), b.wait(ViSide::Receive)), (QpState::Rts, 1));
        drop(0);
        b.node.client.stop_listening(listen).unwrap();
        a.vi.disconnect().unwrap();
        b.vi.disconnect().unwrap();
    }
}

/// While the dispatcher thread reports that a connection broke, the consumer disconnects and
/// connects again: what that thread does afterwards is for the former connection.
#[test]
fn a_breach_ends_no_later_connection() {
    let machine = Machine::new(2);
    let [a, b] = nodes(&machine);
    for level in RELIABLE {
        let (a, b) = ends(&a, &b, level);
        join(&a, &b);
        let ((reports, reported), (go_on, gone_on)) = (channel(), channel::<()>());
        let gone_on = Mutex::new(gone_on);
        *a.node.ears.in_upcall.lock().unwrap() = Some(Box::new(move |heard| {
            if matches!(heard, Heard::Async(AsyncEvent::Vi { error: ViError::ConnectionLost, .. })) {
                reports.send(()).unwrap();
                // It ends when the test lets go of the other end.
                let _ = gone_on.lock().unwrap().recv();
            }
        }));
        // There is no Receive for it.
        a.post(ViSide::Send, 1, 8).unwrap();
        reported.recv().unwrap();
        b.error(ViError::ConnectionLost);
        a.vi.disconnect().unwrap();
        b.vi.disconnect().unwrap();
        let listen = b.node.client.listen(ServiceId(SERVICE), ANY, 9).unwrap();
        let id = dial_vi(&a, &b).unwrap();
        let asked = incoming(&b);
        drop(go_on);
        a.error(ViError::ConnectionLost);
        *a.node.ears.in_upcall.lock().unwrap() = None;
        b.node.client.accept(asked, &b.vi, &AcceptParams::default(), b"").unwrap();
        assert_eq!(a.node.ears.cm("established", is_established).0, id, "{level:?}");
        b.node.ears.cm("established", is_established);
        b.node.client.stop_listening(listen).unwrap();
        while a.take(ViSide::Send).is_some() {}
        message(&a, &b, b"hello");
        for end in [&a, &b] {
            end.vi.disconnect().unwrap();
        }
    }
}

#[test]
fn a_change_tells_the_device_of_rights_only_when_there_is_a_connection() {
    let (fake, agent, client, _) = on_fake(vi_identity(), Config::default());
    let pd = client.create_pd().unwrap();
    let vi = client.create_vi(&pd, &vi_attributes(Reliability::Reception), [None; 2], [4; 2], 5).unwrap();
    let rights = LinkFlags::REMOTE_WRITE;
    let changes = || {
        let commands = fake.commands.lock().unwrap();
        commands.iter().filter(|command| command.opcode == Opcode::ModifyQp as u16).count()
    };
    let last = || fake.last::<ModifyQp>(Opcode::ModifyQp).1;
    let before = changes();
    vi.change(Some(rights), None).unwrap();
    vi.change(None, None).unwrap();
    assert_eq!(changes(), before, "nothing for the device");
    vi.change(Some(rights), Some(100)).unwrap();
    assert_eq!((last().mask, last().max_message), (QpMask::MAX_MESSAGE.bits(), 100));
    // ERROR stands for all states of a connection.
    vi.to_error().unwrap();
    vi.change(None, Some(200)).unwrap();
    assert_eq!((last().mask, last().max_message), (QpMask::MAX_MESSAGE.bits(), 200));
    vi.change(Some(rights), None).unwrap();
    assert_eq!((last().mask, last().access), (QpMask::ACCESS.bits(), rights.bits()));
    agent.close();
}
