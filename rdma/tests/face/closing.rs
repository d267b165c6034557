//! Explicit ends: what they report, and what they wait for.

use std::future::Future;
use std::pin::pin;
use std::task::Context;
use std::thread;
use std::time::Duration;

use ferrovia_rdma::{Access, CloseError, Completion, RequestError, Work};
use kernel_agent::{Agent, Config};

use crate::support::{Host, PORT, block_on, pair, poll, waker};

infiniband! {
#[test]
fn ends_in_order_report_nothing() {
    let host = Host::new(2);
    let nic = host.nic(0);
    let (domain, queue) = (nic.domain().unwrap(), nic.queue(64).unwrap());
    let (listener, receives) = (nic.listen(PORT).unwrap(), domain.shared_receives(2, 64).unwrap());
    let endpoint = domain.endpoint().queue(&queue).shared(&receives).build().unwrap();
    let datagrams = domain.datagrams().queue(&queue).build().unwrap();
    let (service, region) = (datagrams.serve(PORT).unwrap(), domain.region(64).unwrap());
    assert_eq!(service.close(), Ok(()));
    assert_eq!(datagrams.close(), Ok(()));
    assert_eq!(endpoint.close().wait(), Ok(()));
    assert_eq!(region.close().wait(), Ok(()));
    assert_eq!(receives.close(), Ok(()));
    assert_eq!(queue.close(), Ok(()));
    assert_eq!(domain.close(), Ok(()));
    assert_eq!(listener.close(), Ok(()));
    assert_eq!(nic.close(), Ok(()));
}
}

#[test]
fn what_is_in_use_ends_later_and_says_so() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let (domain, queue) = (nic.domain().unwrap(), nic.queue(64).unwrap());
    let receives = domain.shared_receives(2, 64).unwrap();
    let endpoint = domain.endpoint().queue(&queue).shared(&receives).build().unwrap();
    let region = domain.region(64).unwrap();
    assert_eq!(queue.close(), Err(CloseError::InUse));
    assert_eq!(receives.close(), Err(CloseError::InUse));
    assert_eq!(domain.close(), Err(CloseError::InUse));
    assert_eq!(nic.close(), Err(CloseError::InUse));
    // The endpoint and the region go on.
    assert_eq!(endpoint.queue().poll(&mut []), 0);
    assert_eq!(block_on(region.close()), Ok(()));
    assert_eq!(block_on(endpoint.close()), Ok(()));
}

#[test]
fn an_endpoint_that_is_closed_tells_its_peer_and_ends_its_requests() {
    let host = Host::new(2);
    for blocks in [true, false] {
        let (a, b) = pair(&host);
        let memory = region!(a, 8, Access::empty());
        let receive = a.receive(memory.slice(..)).unwrap();
        assert_eq!(if blocks { a.close().wait() } else { block_on(a.close()) }, Ok(()));
        assert_eq!(receive.wait(), Err(RequestError::Flushed));
        b.wait_closed(None).unwrap();
    }
}

#[test]
fn a_region_that_is_closed_ends_when_its_requests_have() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let target = region!(b, 64, Access::WRITE);
    let before = host.machine.arena().lent();
    for blocks in [true, false] {
        let source = region!(a, 64, Access::empty());
        let paused = host.machine.pause();
        a.post(Work::write(source.slice(..), target.remote().unwrap()).id(3)).unwrap();
        if blocks {
            thread::scope(|scope| {
                let closing = scope.spawn(|| source.close().wait());
                drop(paused);
                assert_eq!(closing.join().unwrap(), Ok(()));
            });
        } else {
            let (waker, wakes) = waker();
            let mut closing = pin!(source.close());
            let mut look = || closing.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(look().is_pending());
            drop(paused);
            // Other completions of the queue may wake it as well.
            while look().is_pending() {
                wakes.recv_timeout(Duration::from_secs(60)).expect("the task is woken");
            }
        }
        assert_eq!(host.machine.arena().lent(), before, "the memory is free");
        assert_eq!(poll(&a, 1)[0].id(), 3, "the completion is for who polls");
    }
    // Who closes it learns of a completion that another thread has taken.
    let source = region!(a, 64, Access::empty());
    let paused = host.machine.pause();
    a.post(Work::write(source.slice(..), target.remote().unwrap())).unwrap();
    let (waker, wakes) = waker();
    let mut closing = pin!(source.close());
    let mut look = || closing.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(look().is_pending());
    drop(paused);
    poll(&a, 1);
    wakes.recv_timeout(Duration::from_secs(60)).expect("the task is woken");
    while look().is_pending() {
        wakes.recv_timeout(Duration::from_secs(60)).expect("the task is woken");
    }
}

#[test]
fn a_region_whose_close_is_given_up_ends_all_the_same() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let target = region!(b, 64, Access::WRITE);
    let before = host.machine.arena().lent();
    let source = region!(a, 64, Access::empty());
    let paused = host.machine.pause();
    a.post(Work::write(source.slice(..), target.remote().unwrap())).unwrap();
    drop(source.close());
    assert!(host.machine.arena().lent() > before);
    drop(paused);
    poll(&a, 1);
    a.queue().poll(&mut []);
    assert_eq!(host.machine.arena().lent(), before);
    // A region is closed also if the endpoint of its requests ends first.
    let source = region!(a, 64, Access::empty());
    let receive = a.receive(source.slice(..)).unwrap();
    thread::scope(|scope| {
        let closing = scope.spawn(|| source.close().wait());
        drop(a);
        assert_eq!(closing.join().unwrap(), Ok(()));
    });
    assert_eq!(receive.wait(), Err(RequestError::Flushed));
}

#[test]
fn an_end_says_that_the_agent_is_closed() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let (memory, nic) = (region!(a, 64, Access::empty()), host.nic(0));
    let (listener, queue) = (nic.listen(PORT).unwrap(), nic.queue(2).unwrap());
    let receive = a.receive(memory.slice(..)).unwrap();
    host.agents[0].close();
    assert_eq!(receive.wait(), Err(RequestError::Closed));
    assert_eq!(memory.close().wait(), Err(CloseError::Closed));
    assert_eq!(a.close().wait(), Err(CloseError::Closed));
    assert_eq!(block_on(b.close()), Err(CloseError::Closed));
    assert_eq!((listener.close(), queue.close()), (Err(CloseError::Closed), Err(CloseError::Closed)));
    assert_eq!(nic.close(), Err(CloseError::Closed));
}

#[test]
fn an_end_says_that_the_device_is_dead() {
    let mut host = Host::new(1);
    let config = Config { silence: Duration::from_millis(200), ..Config::default() };
    host.agents.pop().unwrap().close();
    host.agents.push(Agent::open(host.machine.platform(), host.machine.transport(0), 0, config).unwrap());
    let (a, b) = pair(&host);
    let memory = region!(a, 64, Access::empty());
    let receive = a.receive(memory.slice(..)).unwrap();
    thread::scope(|scope| {
        let closing = scope.spawn(|| memory.close().wait());
        host.machine.kill();
        assert_eq!(closing.join().unwrap(), Err(CloseError::DeviceDead));
    });
    assert_eq!(receive.wait(), Err(RequestError::DeviceDead));
    assert_eq!(a.close().wait(), Err(CloseError::DeviceDead));
    assert_eq!(block_on(b.close()), Err(CloseError::DeviceDead));
    // The device cannot confirm that it is reset: the memory that it may reach is kept.
    host.agents[0].close();
    assert!(host.machine.arena().lent() > 0);
    std::mem::forget(host);
}

#[test]
fn a_region_that_is_closed_waits_on_the_queue_where_its_receives_end() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let (domain, receives, listener) =
        (nic.domain().unwrap(), nic.queue(16).unwrap(), nic.listen(PORT).unwrap());
    let b = domain.endpoint().receive_queue(&receives).build().unwrap();
    let a = domain.endpoint().build().unwrap();
    let connecting = a.connect(nic.address(), PORT);
    listener.wait().unwrap().accept(&b).wait().unwrap();
    connecting.wait().unwrap();
    let (source, sink) = (region!(a, 8, Access::empty()), region!(b, 8, Access::empty()));
    b.post_receive(sink.slice(..), 7).unwrap();
    let (waker, wakes) = waker();
    let mut closing = pin!(sink.close());
    let mut look = || closing.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(look().is_pending());
    a.post(Work::send(source.slice(..))).unwrap();
    while look().is_pending() {
        wakes.recv_timeout(Duration::from_secs(60)).expect("the task is woken");
    }
    let mut done = [Completion::EMPTY];
    assert_eq!((receives.poll(&mut done), done[0].id()), (1, 7), "the completion is for who polls");
}
