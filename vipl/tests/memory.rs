//! What registered memory outlives.

extern crate ferrovia_vipl as vipl;

use std::sync::Arc;

use platform::DmaBuffer;
use vipl::*;

mod support;
use support::*;

#[test]
fn memory_that_a_dead_device_may_still_access_is_kept() {
    let mut world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Delivery);
    let page = Arc::new(DmaBuffer::new(&world.machine.platform(), 4096, 4096).unwrap());
    let (address, memory) = (page.addr() as u64, Arc::downgrade(&page));
    let tag = a.nic.create_ptag().unwrap();
    let registered = a.nic.register_mem(Memory::buffer(&page), 4096, &MemAttributes::new(tag)).unwrap();
    drop(page);
    world.machine.kill();
    // The call begins before or after the agent has noticed.
    let ended = a.nic.deregister_mem(address, registered);
    assert!(matches!(ended, Ok(()) | Err(Error::ErrorResource)), "{ended:?}");
    assert!(memory.upgrade().is_some(), "after the end of the registration");
    a.nic.close_nic().unwrap();
    b.nic.close_nic().unwrap();
    assert!(memory.upgrade().is_some(), "after the end of the NIC");
}
