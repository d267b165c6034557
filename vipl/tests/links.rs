//! What a post may write into: the descriptor before it, and nothing else (10.2).

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
