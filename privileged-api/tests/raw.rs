//! Registering memory whose lifetime the caller guarantees: the only unsafe call.

extern crate ferrovia_privileged_api as privileged_api;

mod support;

use privileged_api::*;
use support::*;

/// The whole of a region of 64 bytes at `addr`.
#[expect(unsafe_code, reason = "the call under test")]
fn create(a: &Side, addr: usize) -> Result<(LmrHandle, Option<RmrContext>)> {
    // SAFETY: the device can reach only memory of the arena, which outlives the IA, and no
    // reference to that memory is made.
    unsafe { a.ia.lmr_create_raw(a.pz, addr, 64, AddrMode::Absolute, MemPriv::LOCAL, LmrFlags::NONE, 0) }
}

#[test]
fn the_device_reaches_raw_memory_until_the_region_is_freed() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    let (from, into) = (world.buffer(64), world.buffer(64));
    from.write(0, &[7; 64]).unwrap();
    let (source, context) = create(&a, from.addr()).unwrap();
    let (sink, _) = b.lmr(&into, MemPriv::LOCAL);
    assert_eq!(context, None, "peers have no privileges");
    let post = |cookie| {
        b.ia.post_recv(b.ep, &[LmrTriplet::new(sink, into.addr() as u64, 64)], cookie, SIGNALED).unwrap();
        a.ia.post_send(a.ep, &[LmrTriplet::new(source, from.addr() as u64, 64)], cookie, SIGNALED).unwrap();
        a.completion(a.requests).dto_status
    };
    assert_eq!(post(1), DtoStatus::Success);
    let mut got = [0; 64];
    into.read(0, &mut got).unwrap();
    assert_eq!(got, [7; 64]);
    a.ia.lmr_free(source).unwrap();
    assert_eq!(post(2), DtoStatus::LocalProtection);
    a.ia.ia_free().unwrap();
    b.ia.ia_free().unwrap();
}

#[test]
fn a_refused_registration_leaves_no_object() {
    let mut world = World::new(1);
    let a = Side::new(world.ia(0), attributes());
    let buffer = world.buffer(64);
    let before = a.ia.object_counts();
    // Memory that the device cannot reach, and ranges beyond the end of the address space.
    for addr in [0, 8, &raw const buffer as usize, usize::MAX - 62, usize::MAX] {
        assert_eq!(create(&a, addr), Err(Error::Fault), "{addr:#x}");
        assert_eq!(a.ia.object_counts(), before);
    }
    world.machine.kill();
    while a.ia.ia_query().err() != Some(Error::IaCatastrophe) {
        std::thread::yield_now();
    }
    assert_eq!(create(&a, buffer.addr()), Err(Error::IaCatastrophe));
    assert_eq!(a.ia.object_counts(), before);
    a.ia.ia_free().unwrap();
    assert_eq!(create(&a, buffer.addr()), Err(Error::InvalidIa));
}
