//! Memory: its translation, and what is known of a region's memory.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;

use common::scene::*;
use common::{Heard, Node, give_up, open};
use host::Machine;
use kernel_agent::{Agent, Config, Error, Extent, Link, MemoryList, SendFlags, Shadow};
use nic_abi::admin::QpState;
use nic_abi::wqe::{LinkFlags, ListElement};
use platform::pages::{PAGE, PageByPage};
use platform::{DmaBuffer, Platform};

/// Leaves a page of bus addresses out behind each third page.
fn scattered(page: u64) -> u64 {
    let size = PAGE as u64;
    page + page / size / 3 * size
}

#[test]
#[expect(unsafe_code, reason = "chooses bus addresses")]
fn a_translation_joins_adjacent_pages_and_no_others() {
    let machine = Machine::new(1);
    // SAFETY: the test looks at translations; the device gets no address of them.
    let platform = unsafe { PageByPage::with_bus(machine.platform(), scattered) };
    let platform: Arc<dyn Platform> = Arc::new(platform);
    let agent = Agent::open(platform.clone(), machine.transport(0), 7, Config::default()).unwrap();
    assert_eq!(agent.number(), 7);
    let buffer = DmaBuffer::new(&platform, 12 * PAGE, PAGE).unwrap();
    // Begins at the first of three pages.
    let skip = (3 - buffer.bus() as usize / PAGE % 3) % 3 * PAGE;
    let begin = platform.translate(buffer.addr() + skip).unwrap().addr;
    let (page, third) = (PAGE as u64, 3 * PAGE as u64);
    let run = |at: u64, length: u64| ListElement { addr: begin + at, length };
    let cases = [
        (0, 1, vec![run(0, 1)]),
        (100, third - 100, vec![run(100, third - 100)]),
        (100, third - 99, vec![run(100, third - 100), run(third + page, 1)]),
        (0, 2 * third + page, vec![run(0, third), run(third + page, third), run(2 * (third + page), page)]),
        (0, 0, vec![]),
    ];
    for (at, length, expected) in cases {
        let mut runs = Vec::new();
        agent.translate(buffer.addr() + skip + at as usize, length, |run| runs.push(run)).unwrap();
        assert_eq!(runs, expected, "{length} bytes at {at}");
    }
    agent.close();
}

#[test]
fn a_region_may_be_linked_to_what_it_was_registered_for_or_linked_to() {
    let scene = Scene::new();
    let (qp, ..) = scene.qp(1);
    to(&qp, QpState::Rtr);
    to(&qp, QpState::Rts);
    let pd = scene.client.create_pd().unwrap();
    let buffer = DmaBuffer::new(&scene.fake.platform, 2 * PAGE, PAGE).unwrap();
    let (addr, bus, length) = (buffer.addr(), buffer.bus(), buffer.len() as u64);
    let rights = LinkFlags::LOCAL_READ;
    let all = Extent { start: bus, length };
    let others = [Extent { start: bus + 1, length }, Extent { start: bus, length: length - 1 }];
    let registered = scene.client.register_virtual(&pd, rights, addr as u64, addr, length).unwrap();
    let linked = scene.client.allocate_region(&pd, 1).unwrap();
    assert!(!linked.may_be_linked_to(all));
    let link = Link { flags: rights, base: 0, memory: MemoryList::Contiguous { bus, length } };
    qp.post_link(&linked, &link, SendFlags::SIGNALED, Shadow::default()).unwrap();
    for region in [&registered, &linked] {
        assert!(region.may_be_linked_to(all));
        assert_eq!(others.map(|other| region.may_be_linked_to(other)), [false; 2]);
    }
}

#[test]
fn a_buffer_is_kept_without_the_devices_word_that_its_region_is_gone_until_a_reset_is_confirmed() {
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let buffer = Arc::new(DmaBuffer::new(agent.platform(), PAGE, PAGE).unwrap());
    let kept = || (agent.test_handle().quarantined(), Arc::strong_count(&buffer));
    for destroyed in [Ok(()), Err(Error::Gone)] {
        agent.release(buffer.clone(), destroyed);
        assert_eq!(kept(), (0, 1), "{destroyed:?}");
    }
    agent.release(buffer.clone(), Err(Error::OutOfMemory));
    assert_eq!(kept(), (1, 2));
    agent.close();
    assert_eq!(kept(), (0, 1));
}

#[test]
fn the_buffer_of_a_region_is_kept_if_its_device_is_dead() {
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let node = Node::new(&machine, &agent);
    let buffer = Arc::new(node.buffer(PAGE));
    let region = node.register(&buffer);
    give_up(&agent);
    node.ears.wait_for("its death", |heard| matches!(heard, Heard::Dead(_)).then_some(()));
    let before = agent.test_handle().quarantined();
    agent.release(buffer.clone(), region.destroy());
    assert_eq!((agent.test_handle().quarantined(), Arc::strong_count(&buffer)), (before + 1, 2));
    node.client.detach();
    agent.close();
}

#[test]
fn a_buffer_is_kept_if_its_device_dies_while_it_is_registered() {
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let node = Node::new(&machine, &agent);
    let buffer = Arc::new(node.buffer(PAGE));
    let kept = || Arc::strong_count(&buffer) - 1;
    assert_eq!(agent.registering(&buffer, || Ok::<_, Error>(kept())), Ok(0));
    // Refused: the device has no such region.
    assert_eq!(agent.registering(&buffer, || Err::<(), _>(Error::OutOfMemory)), Err(Error::OutOfMemory));
    assert_eq!(kept(), 0);
    let dies = || {
        give_up(&agent);
        node.ears.wait_for("its death", |heard| matches!(heard, Heard::Dead(_)).then_some(()));
        Err::<(), _>(Error::OutOfMemory)
    };
    assert_eq!(agent.registering(&buffer, dies), Err(Error::OutOfMemory));
    assert_eq!(kept(), 1);
    // A device that is dead already gets no command.
    assert_eq!(agent.registering(&buffer, || Err::<(), _>(Error::OutOfMemory)), Err(Error::OutOfMemory));
    assert_eq!(kept(), 1);
    node.client.detach();
    agent.close();
    assert_eq!(kept(), 0);
}
