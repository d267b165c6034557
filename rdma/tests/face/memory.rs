//! Memory: what is dropped, and when it is gone; memory that is named by its bus address.

use ferrovia_rdma::{Access, Completion, RequestError, Work};

use crate::support::{Host, PORT, pair, poll, settle};

#[test]
fn a_region_that_is_dropped_lives_until_its_requests_have_ended() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let target = region!(b, 4096, Access::WRITE);
    let before = host.machine.arena().lent();
    let source = region!(a, 4096, Access::empty());
    source.slice(..).write(b"kept");
    let paused = host.machine.pause();
    a.post(Work::write(source.slice(..4), target.remote().unwrap()).id(3)).unwrap();
    drop(source);
    assert!(host.machine.arena().lent() > before, "the device has not read it yet");
    drop(paused);
    assert_eq!(poll(&a, 1)[0].result(), Ok(4));
    assert_eq!(host.machine.arena().lent(), before, "the poll that took the completion gave it back");
    settle(&a, &b);
    let mut bytes = [0; 4];
    target.slice(..).read(&mut bytes);
    assert_eq!(&bytes, b"kept");
}

#[test]
fn a_poll_of_one_place_gives_the_memory_back_whose_last_request_it_takes() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let target = region!(b, 4096, Access::WRITE);
    let before = host.machine.arena().lent();
    for _ in 0..3 {
        let source = region!(a, 4096, Access::empty());
        let mut paused = host.machine.pause();
        for id in 0..3 {
            a.post(Work::write(source.slice(..4), target.remote().unwrap()).id(id)).unwrap();
        }
        drop(source);
        paused.step();
        drop(paused);
        let mut into = [Completion::EMPTY];
        for id in 0..3 {
            assert!(id == 0 || host.machine.arena().lent() == before, "they were taken together");
            assert_eq!((a.queue().poll(&mut into), into[0].id()), (1, id));
        }
        assert_eq!(a.queue().poll(&mut into), 0);
    }
}

#[test]
fn a_region_waits_for_the_endpoints_that_used_it_and_for_no_other() {
    let host = Host::new(1);
    let domain = host.nic(0).domain().unwrap();
    let mut endpoints: Vec<_> = (0..5).map(|_| domain.endpoint().build().unwrap()).collect();
    let (idle, memory) = (domain.region(64).unwrap(), domain.region(64).unwrap());
    let regions = || host.agents[0].counts().regions;
    // The last one has a Receive outstanding that does not end.
    endpoints[4].post_receive(idle.slice(..), 0).unwrap();
    endpoints[..4].iter().for_each(|endpoint| endpoint.post_receive(memory.slice(..), 0).unwrap());
    drop(memory);
    drop(endpoints.drain(1..4));
    assert_eq!(regions(), 2, "one of its endpoints is left");
    drop(endpoints.remove(0));
    assert_eq!(regions(), 1, "no request names it any more");
}

#[test]
fn a_region_that_several_endpoints_use_waits_for_all_of_them() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let domain = nic.domain().unwrap();
    let listener = nic.listen(PORT).unwrap();
    let connect = || {
        let (a, b) = (domain.endpoint().build().unwrap(), domain.endpoint().build().unwrap());
        let connecting = a.connect(host.address(0), PORT);
        listener.wait().unwrap().accept(&b).wait().unwrap();
        connecting.wait().unwrap();
        (a, b)
    };
    let (pairs, before) = ([connect(), connect()], host.machine.arena().lent());
    let memory = domain.region(64).unwrap();
    for (a, b) in &pairs {
        b.post_receive(memory.slice(..32), 0).unwrap();
        a.post(Work::send(memory.slice(32..))).unwrap();
        poll(b, 1);
    }
    poll(&pairs[0].0, 1);
    drop(memory);
    assert!(host.machine.arena().lent() > before, "the other endpoint's request is outstanding still");
    poll(&pairs[1].0, 1);
    nic.queue(1).unwrap().poll(&mut []);
    assert_eq!(host.machine.arena().lent(), before);
}

#[test]
fn an_endpoint_that_is_dropped_ends_its_requests_and_frees_their_memory() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let before = host.machine.arena().lent();
    let memory = region!(b, 4096, Access::empty());
    let receive = b.receive(memory.slice(..)).unwrap();
    drop(memory);
    assert!(host.machine.arena().lent() > before);
    drop(b);
    assert_eq!(receive.wait(), Err(RequestError::Flushed));
    assert!(host.machine.arena().lent() <= before, "the region's memory is free");
    assert_eq!(a.wait_closed(None), Ok(()));
    let source = region!(a, 8, Access::empty());
    assert_eq!(a.send(source.slice(..)).unwrap().wait(), Err(RequestError::Flushed));
    assert!(!a.is_connected());
}

#[test]
fn values_can_be_dropped_in_any_order() {
    for order in 0..24 {
        let host = Host::new(1);
        let nic = host.nic(0);
        let domain = nic.domain().unwrap();
        let region = domain.region(64).unwrap();
        let endpoint = domain.endpoint().build().unwrap();
        let receive = endpoint.receive(region.slice(..)).unwrap();
        let mut values: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(domain), Box::new(region), Box::new(endpoint), Box::new(nic)];
        let mut rest = order;
        for left in (1..=4).rev() {
            drop(values.remove(rest % left));
            rest /= left;
        }
        assert_eq!(receive.wait(), Err(RequestError::Flushed));
    }
}

#[test]
fn the_direct_handle_names_memory_without_registration() {
    let host = Host::new(2);
    let privileged = host.machine.privileged();
    let (a, b) = (host.nic(0), host.nic(1));
    let (local, remote) = (a.domain().unwrap(), b.domain().unwrap());
    let target = remote.shared_region(64, Access::WRITE).unwrap();
    let peer = remote.endpoint().build().unwrap();
    let endpoint = local.endpoint().privileged(privileged).build().unwrap();
    let listener = b.listen(PORT).unwrap();
    let connecting = endpoint.connect(host.address(1), PORT);
    listener.wait().unwrap().accept(&peer).wait().unwrap();
    connecting.wait().unwrap();
    let source = local.direct(64, privileged).unwrap();
    assert_eq!(source.remote(), None);
    source.slice(..).write(b"direct");
    endpoint.write(source.slice(..6), target.remote().unwrap()).unwrap().wait().unwrap();
    settle(&endpoint, &peer);
    let mut bytes = [0; 6];
    target.slice(..).read(&mut bytes);
    assert_eq!(&bytes, b"direct");
}

#[test]
fn a_dropped_region_waits_for_the_requests_of_its_own_work_queue_only() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let idle = region!(a, 64, Access::empty());
    let _never = a.receive(idle.slice(..)).unwrap();
    let into = region!(b, 64, Access::empty());
    let before = host.machine.arena().lent();
    for _ in 0..3 {
        let region = region!(a, 4096, Access::empty());
        let receive = b.receive(into.slice(..)).unwrap();
        a.send(region.slice(..8)).unwrap().wait().unwrap();
        receive.wait().unwrap();
        drop(region);
        assert_eq!(host.machine.arena().lent(), before, "a Receive of another region is outstanding");
    }
}
