//! Fast regions: memory that peers may access from a link to its end.

use ferrovia_rdma::{Access, Domain, Endpoint, FastRegion, PostError, RemoteMemory, RequestError, Work};

use crate::support::{Host, PORT, poll, settle};

/// An endpoint whose peer accesses memory, and that peer, each on a domain of its own.
fn pair(host: &Host) -> (Endpoint, Endpoint) {
    let (owner, peer) = (host.nic(0).domain().unwrap(), host.nic(1).domain().unwrap());
    let listener = peer.nic().listen(PORT).unwrap();
    let build = |domain: &Domain| domain.endpoint().privileged(host.machine.privileged()).build().unwrap();
    let (first, second) = (build(&owner), build(&peer));
    let connecting = first.connect(peer.nic().address(), PORT);
    listener.wait().unwrap().accept(&second).wait().unwrap();
    connecting.wait().unwrap();
    (first, second)
}

fn write(peer: &Endpoint, to: RemoteMemory, bytes: &[u8]) -> Result<(), RequestError> {
    let from = region!(peer, bytes.len(), Access::empty());
    from.slice(..).write(bytes);
    peer.write(from.slice(..), to).unwrap().wait().map(drop)
}

infiniband! {
#[test]
fn a_peer_reaches_memory_from_its_link_to_its_unlink() {
    let host = Host::new(2);
    let (owner, peer) = pair(&host);
    let memory = region!(owner, 4096, Access::empty());
    let other = host.nic(0).domain().unwrap().region(8).unwrap();
    let mut fast = owner.fast_region().unwrap();
    assert_eq!(fast.unlink(), Ok(()), "nothing is linked");
    assert_eq!(fast.link(other.slice(..), Access::WRITE), Err(PostError::BadSlice));
    assert_eq!(fast.link(memory.slice(..0), Access::WRITE), Err(PostError::BadSlice));
    let first = fast.link(memory.slice(8..16), Access::WRITE).unwrap();
    settle(&owner, &peer);
    assert_eq!((first.len(), write(&peer, first, b"01234567")), (8, Ok(())));
    // Another link ends the one before.
    let second = fast.link(memory.slice(16..24), Access::WRITE).unwrap();
    settle(&owner, &peer);
    assert_ne!(first.key(), second.key());
    assert_eq!(write(&peer, second, b"89abcdef"), Ok(()));
    assert_eq!(memory.slice(8..24).to_vec(), b"0123456789abcdef");
    fast.unlink().unwrap();
    settle(&owner, &peer);
    assert_eq!(write(&peer, second, b"xxxxxxxx"), Err(RequestError::RemoteAccess));
    assert_eq!(memory.slice(8..24).to_vec(), b"0123456789abcdef");
}
}

infiniband! {
#[test]
fn a_message_of_the_peer_ends_a_link_and_says_which() {
    let host = Host::new(2);
    let (owner, peer) = pair(&host);
    let (memory, from) = (region!(owner, 64, Access::empty()), region!(peer, 64, Access::empty()));
    let (mut fast, mut unused) = (owner.fast_region().unwrap(), owner.fast_region().unwrap());
    for round in 0..5 {
        let to = fast.link(memory.slice(..8), Access::READ | Access::WRITE).unwrap();
        settle(&owner, &peer);
        assert_eq!(write(&peer, to, &[round; 8]), Ok(()));
        owner.post_receive(memory.slice(32..), round.into()).unwrap();
        peer.start(Work::send_and_invalidate(from.slice(..4), to.key())).unwrap().wait().unwrap();
        let done = poll(&owner, 1)[0];
        assert_eq!((done.id(), done.result(), done.immediate()), (round.into(), Ok(4), None));
        assert!(done.invalidated().is_some() && !unused.is_ended_by(&done) && fast.is_ended_by(&done));
        assert_eq!(memory.slice(..8).to_vec(), [round; 8]);
        // Who waits for the Receive learns it, too.
        let to = fast.link(memory.slice(..8), Access::READ).unwrap();
        settle(&owner, &peer);
        let receive = owner.receive(memory.slice(32..)).unwrap();
        peer.start(Work::send_and_invalidate(from.slice(..4), to.key())).unwrap().wait().unwrap();
        let done = receive.wait().unwrap();
        assert!(!unused.is_ended_by_key(done.invalidated) && fast.is_ended_by_key(done.invalidated));
    }
    // A key that names nothing ends the connection.
    owner.post_receive(memory.slice(32..), 9).unwrap();
    let refused = peer.start(Work::send_and_invalidate(from.slice(..4), 0x1234_5678)).unwrap().wait();
    assert!(refused.is_err());
    assert!(poll(&owner, 1)[0].result().is_err());
}
}

#[test]
fn linked_memory_lives_as_long_as_its_link_can() {
    let host = Host::new(2);
    let (owner, peer) = pair(&host);
    let lent = || host.machine.arena().lent();
    let mut fast = owner.fast_region().unwrap();
    let before = lent();
    let dropped = region!(owner, 4096, Access::empty());
    let to = fast.link(dropped.slice(..), Access::WRITE).unwrap();
    drop(dropped);
    settle(&owner, &peer);
    assert!(lent() > before);
    assert_eq!(write(&peer, to, b"into memory that is nobody else's"), Ok(()));
    // Its former memory stays until the next link has been executed.
    let others = [0, 1].map(|_| region!(owner, 8, Access::empty()));
    let paused = host.machine.pause();
    fast.link(others[0].slice(..), Access::WRITE).unwrap();
    assert_eq!(fast.link(others[1].slice(..), Access::WRITE), Err(PostError::Full));
    assert!(fast.link(others[0].slice(4..), Access::WRITE).is_ok(), "the same memory");
    drop(paused);
    settle(&owner, &peer);
    let held = lent();
    fast.link(others[1].slice(..), Access::WRITE).unwrap();
    assert!(lent() < held, "nothing links to the dropped region any more");
    settle(&owner, &peer);
    drop((others, fast));
    assert!(lent() < before, "nor to others");
}

#[test]
fn memory_of_a_link_that_may_be_in_force_is_kept_when_requests_are_flushed() {
    let host = Host::new(2);
    let (owner, peer) = pair(&host);
    let mut fast = owner.fast_region().unwrap();
    let others = [0, 1].map(|_| region!(owner, 8, Access::empty()));
    let dropped = region!(owner, 4096, Access::empty());
    let linked = fast.link(dropped.slice(..), Access::WRITE).unwrap();
    let bus = host.machine.arena().translate(linked.addr() as usize).unwrap().addr;
    let is_kept = || host.machine.arena().is_lent(bus, 4096);
    settle(&owner, &peer);
    drop(dropped);
    drop(peer);
    owner.wait_closed(None).unwrap();
    // Flushed: the link to the dropped region is in force still.
    fast.link(others[0].slice(..), Access::WRITE).unwrap();
    owner.send(others[0].slice(..)).unwrap().wait().unwrap_err();
    poll(&owner, 1);
    assert_eq!(fast.link(others[1].slice(..), Access::WRITE), Err(PostError::Full));
    assert!(is_kept());
    drop((fast, others));
    assert!(!is_kept());
}

#[test]
fn memory_of_the_consumers_serves_as_shared_receives_by_its_bus_address() {
    let host = Host::new(2);
    let privileged = host.machine.privileged();
    let (client, server) = (host.nic(0).domain().unwrap(), host.nic(1).domain().unwrap());
    let buffer = server.direct(64, privileged).unwrap().buffer().clone();
    assert!(server.shared_receives_in(server.direct_buffer(buffer.clone(), privileged), 0).is_err());
    assert!(client.shared_receives_in(server.direct_buffer(buffer.clone(), privileged), 16).is_err());
    let receives = server.shared_receives_in(server.direct_buffer(buffer.clone(), privileged), 16).unwrap();
    assert_eq!(receives.count(), 4);
    let listener = server.nic().listen(PORT).unwrap();
    let asks = client.endpoint().build().unwrap();
    let takes = server.endpoint().privileged(privileged).shared(&receives).build().unwrap();
    let connecting = asks.connect(server.nic().address(), PORT);
    listener.wait().unwrap().accept(&takes).wait().unwrap();
    connecting.wait().unwrap();
    let from = client.region(16).unwrap();
    from.slice(..).write(b"sixteen bytes it");
    for _ in 0..10 {
        asks.send(from.slice(..12)).unwrap().wait().unwrap();
        let message = receives.message(&poll(&takes, 1)[0]).unwrap();
        let (memory, at) = message.slice().place();
        let mut found = [0; 12];
        memory.read(at, &mut found).unwrap();
        assert_eq!(&found, b"sixteen byte");
        assert!(std::sync::Arc::ptr_eq(memory, &buffer) && at % 16 == 0);
    }
}

/// A fast region can be given to another thread.
#[test]
fn a_fast_region_may_move() {
    fn sends<T: Send>() {}
    sends::<FastRegion>();
}
