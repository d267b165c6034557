//! Descriptors that the NIC loses: what a post may write into (10.2), and what tells of them.

extern crate ferrovia_vipl as vipl;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use platform::DmaBuffer;
use vipl::*;

mod support;
use support::*;

const NONE: [CqHandle; 2] = [CqHandle::NULL; 2];
const OLD: [u8; 40] = [0xaa; 40];

/// The bytes at which a descriptor would begin.
fn bytes(buffer: &DmaBuffer, at: usize) -> [u8; 40] {
    let mut bytes = [0; 40];
    buffer.read(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn memory_of_a_descriptor_that_the_nic_has_lost_is_the_consumers_again() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Unreliable);
    let (sender, errors) = channel();
    let handler = move |_, error: &ErrorDescriptor| sender.send(*error).unwrap();
    a.nic.error_callback(0, Some(Box::new(handler))).unwrap();
    let lost = || {
        let error = errors.recv_timeout(Duration::from_millis(PATIENCE.into())).expect("an error");
        assert_eq!(error.error_code, ErrorCode::PostDesc);
    };
    // It is not aligned.
    a.nic.post_send(a.vi, a.descriptor(0).address() + 8, a.memory).unwrap();
    lost();
    a.buffer.write(8, &OLD).unwrap();
    a.descriptor(2).send(&[], None).unwrap();
    a.post_send(2);
    assert_eq!(bytes(&a.buffer, 8), OLD);
    assert!(is_success(a.sent(2)));
    // It is in memory with another tag.
    let other = a.nic.create_ptag().unwrap();
    let page = Arc::new(DmaBuffer::new(&world.machine.platform(), 4096, 4096).unwrap());
    let foreign = a.nic.register_mem(Memory::buffer(&page), 4096, &MemAttributes::new(other)).unwrap();
    page.write(0, &OLD).unwrap();
    a.nic.post_send(a.vi, page.addr() as u64, foreign).unwrap();
    lost();
    a.descriptor(3).send(&[], None).unwrap();
    a.post_send(3);
    assert_eq!(bytes(&page, 0), OLD);
    assert!(is_success(a.sent(3)));
    done(&world, &[&a, &b]);
}

#[test]
fn a_post_writes_into_aligned_memory_with_the_tag_of_the_interface_only() {
    let world = World::new(1);
    let a = Side::new(&world, 0, ReliabilityLevel::Delivery, NONE);
    let other = a.nic.create_ptag().unwrap();
    let page = Arc::new(DmaBuffer::new(&world.machine.platform(), 4096, 4096).unwrap());
    let of = MemAttributes::new;
    let memory = a.nic.register_mem(Memory::buffer(&page), 4096, &of(other)).unwrap();
    let start = page.addr() as u64;
    // The NIC looks at receives when a message takes them: all of these stay posted.
    let post = |at: u64, is_linked: bool| {
        page.write(at as usize, &OLD).unwrap();
        a.nic.post_recv(a.vi, start + at, memory).unwrap();
        a.nic.post_recv(a.vi, start + 2048, memory).unwrap();
        assert_eq!(bytes(&page, at as usize) != OLD, is_linked, "{at}");
    };
    post(0, false);
    a.nic.set_mem_attributes(start, memory, &of(a.ptag)).unwrap();
    post(64, true);
    post(128 + 8, false);
    post(4096 - 64, true);
    a.nic.set_mem_attributes(start, memory, &of(other)).unwrap();
    post(192, false);
    // The tag of the virtual interface counts at the moment of the post.
    let (_, attributes) = a.nic.query_vi(a.vi).unwrap();
    a.nic.set_vi_attributes(a.vi, &ViAttributes { ptag: other, ..attributes }).unwrap();
    post(256, true);
    a.nic.deregister_mem(start, memory).unwrap();
    post(320, false);
    done(&world, &[&a]);
}

/// The addresses of the errors PostDesc of a NIC, as they come.
fn lost(nic: &Nic) -> impl Fn() -> u64 {
    let (sender, errors) = channel();
    let handler =
        move |_, error: &ErrorDescriptor| sender.send((error.error_code, error.descriptor)).unwrap();
    nic.error_callback(0, Some(Box::new(handler))).unwrap();
    move || match errors.recv_timeout(Duration::from_millis(PATIENCE.into())) {
        Ok((ErrorCode::PostDesc, address)) => address,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_lost_descriptor_is_reported_although_the_nic_merges_events() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Unreliable);
    let next = lost(&a.nic);
    let bad: Vec<u64> = (0..20).map(|n| 64 * n + 8).collect();
    for takes in [false, true] {
        for &address in &bad {
            a.nic.post_send(a.vi, address, a.memory).unwrap();
            if takes {
                // A Done call may come to it before the event does.
                assert_eq!(a.nic.send_done(a.vi), Err(Error::NotDone));
            }
        }
        let mut seen: Vec<u64> = bad.iter().map(|_| next()).collect();
        seen.sort();
        assert_eq!(seen, bad, "{takes}");
    }
    // Receives that are flushed.
    for &address in &bad {
        a.nic.post_recv(a.vi, address, a.memory).unwrap();
    }
    a.nic.disconnect(a.vi).unwrap();
    let mut seen: Vec<u64> = bad.iter().map(|_| next()).collect();
    seen.sort();
    assert_eq!(seen, bad);
    // None of them is one of the idle interface, which would fail the next attempt.
    b.nic.disconnect(b.vi).unwrap();
    connect(&a, &b, b"again");
    done(&world, &[&a, &b]);
}

#[test]
fn lost_descriptors_take_no_room_and_do_not_hinder_the_end() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Unreliable);
    let next = lost(&a.nic);
    let entries = a.nic.query_nic().unwrap().max_descriptors_per_queue as u64;
    for n in 0..entries + 4 {
        a.nic.post_send(a.vi, 64 * n + 8, a.memory).unwrap();
        assert_eq!(next(), 64 * n + 8, "no overrun");
    }
    a.nic.disconnect(a.vi).unwrap();
    a.nic.destroy_vi(a.vi).unwrap();
    done(&world, &[&a, &b]);
}
