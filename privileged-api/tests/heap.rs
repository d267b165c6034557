//! How much heap an agent and an IA take before anything is created on them: tables take memory as
//! their indices come into use, not by their limits. docs/embed.md states these figures.

extern crate ferrovia_privileged_api as privileged_api;

use host::{CountedHeap, Machine};
use kernel_agent::{Agent, Config};
use privileged_api::*;

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

/// An idle agent, and what the device model in this process keeps for it.
const AGENT: usize = 96 << 10;
/// An idle IA.
const IA: usize = 96 << 10;
/// What the first protection zone, event dispatcher and region of an IA take.
const FIRST_OBJECTS: usize = 256 << 10;

/// Runs `make`, and returns what it made and the bytes that it left in use.
fn taken<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = HEAP.used();
    let made = make();
    (made, HEAP.used().saturating_sub(before))
}

// One test: the heap is counted for the whole process.
#[test]
fn an_idle_agent_and_an_idle_ia_take_little_heap() {
    let machine = Machine::new(1);
    let platform = machine.platform();
    let device = machine.transport(0);
    let (agent, bytes) = taken(|| Agent::open(platform.clone(), device, 0, Config::default()).unwrap());
    println!("an idle agent: {bytes} bytes");
    assert!(bytes <= AGENT, "an idle agent takes {bytes} bytes");
    let provider = Provider::new(platform.clone());
    provider.add("rnic0", agent.clone()).unwrap();
    let privileged = Some(machine.privileged());
    let (ia, bytes) = taken(|| provider.ia_create("rnic0", 2, 1, privileged).unwrap());
    println!("an idle IA: {bytes} bytes");
    assert!(bytes <= IA, "an idle IA takes {bytes} bytes");
    let (_, bytes) = taken(|| {
        let pz = ia.pz_create().unwrap();
        let evd = ia
            .evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 64, 1, EvdHandle::NULL)
            .unwrap();
        ia.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0).unwrap();
        evd
    });
    println!("with a zone, an event dispatcher and a region: {bytes} bytes more");
    assert!(bytes <= FIRST_OBJECTS, "the first objects take {bytes} bytes");
    ia.ia_free().unwrap();
    drop(ia);
    agent.close();
}
