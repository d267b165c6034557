//! Sizes and counts: what the agent asks a device for, and how many requests and entries it counts.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::{Arc, Mutex};

use common::scene::*;
use host::fake::{Fake, identity, success};
use kernel_agent::{Agent, Config, Shadow};
use nic_abi::admin::{CreateEq, Opcode, QpState, RegisterRegion};
use nic_abi::registers::Identity;
use nic_abi::wqe::{LinkFlags, Segment};
use platform::DmaBuffer;
use zerocopy::FromBytes;

#[test]
fn requests_and_receives_are_outstanding() {
    let scene = Scene::new();
    let (qp, _, _) = scene.qp(1);
    let segment = Segment { addr: 0, length: 100, key: 0 };
    for cookie in 0..3 {
        qp.post_receive(false, &[segment], |&segment| segment, Shadow { cookie, data: 0 }).unwrap();
    }
    to(&qp, QpState::Rtr);
    to(&qp, QpState::Rts);
    send(&qp, 10);
    assert_eq!((qp.outstanding(), scene.agent.outstanding()), ((1, 3), 4));
    let pd = scene.client.create_pd().unwrap();
    let srq = scene.client.create_srq(&pd, 8, 1, 0, 5).unwrap();
    for cookie in 0..2 {
        srq.post_receive(false, &[segment], |&segment| segment, Shadow { cookie, data: 0 }).unwrap();
    }
    assert_eq!(scene.agent.outstanding(), 6);
}

#[test]
fn the_number_of_waiting_entries_is_right_for_each_fill_and_limit() {
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    for tag in 1..=16 {
        slotted.complete(&scene, tag, 0);
        for limit in 0..20 {
            assert_eq!(slotted.cq.pending(limit), tag.min(limit));
        }
        assert_eq!(slotted.cq.completions(), Some(tag));
    }
    for left in (0..16).rev() {
        assert!(slotted.take_one().is_some_and(|taken| taken.is_ok()));
        assert_eq!((slotted.cq.pending(u32::MAX), slotted.cq.completions()), (left, Some(left)));
        assert_eq!(slotted.cq.has_completion(), left > 0);
    }
}

#[test]
fn the_queue_of_asynchronous_events_has_four_entries_for_each_queue_pair() {
    for (max_qps, entries) in [(1, 512), (64, 512), (65, 1024), (192, 1024), (193, 2048)] {
        let fake = Fake::new(identity(), success);
        let config = Config { max_qps, ..Config::default() };
        let agent = Agent::open(fake.platform.clone(), fake.transport(), 0, config).unwrap();
        {
            let commands = fake.commands.lock().unwrap();
            // The first event queue is that one.
            let create = commands.iter().find(|command| command.opcode == Opcode::CreateEq as u16);
            let (args, _) = CreateEq::read_from_prefix(&create.unwrap().args).unwrap();
            assert_eq!(1 << args.log_entries, entries, "{max_qps} queue pairs");
        }
        agent.close();
    }
}

#[test]
fn memory_in_one_piece_is_registered_without_a_list() {
    let scene = Scene::new();
    let pd = scene.client.create_pd().unwrap();
    let buffer = DmaBuffer::new(&scene.fake.platform, 8192, 4096).unwrap();
    let (addr, rights) = (buffer.addr(), LinkFlags::LOCAL_READ);
    // No memory at all is in one piece, too.
    for (length, bus) in [(8192, buffer.bus()), (1, buffer.bus()), (0, 0)] {
        let region = scene.client.register_virtual(&pd, rights, addr as u64, addr, length).unwrap();
        let (_, args) = scene.fake.last::<RegisterRegion>(Opcode::RegisterRegion);
        assert!(LinkFlags::from_bits_retain(args.flags).contains(LinkFlags::CONTIGUOUS));
        assert_eq!((args.length, args.list.list, args.list.elements), (length, bus, 0));
        region.destroy().unwrap();
    }
}

#[test]
fn completions_have_a_vector_of_their_own_if_the_device_has_two() {
    for (vectors, expected) in [(1, [0, 0]), (2, [0, 1])] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let fake = {
            let seen = seen.clone();
            Fake::new(Identity { vectors, ..identity() }, move |command| {
                if Opcode::from_word(command.opcode) == Some(Opcode::CreateEq) {
                    let (args, _) = CreateEq::read_from_prefix(&command.args).unwrap();
                    seen.lock().unwrap().push(args.vector);
                }
                success(command)
            })
        };
        let agent = Agent::open(fake.platform.clone(), fake.transport(), 0, Config::default()).unwrap();
        assert_eq!(*seen.lock().unwrap(), expected, "{vectors} vectors");
        agent.close();
    }
}
