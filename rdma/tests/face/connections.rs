//! Connections: how they come about, fail and end; devices that die.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use ferrovia_rdma::{
    Access, Address, ConnectError, CreateError, Ending, PostError, RequestError, ResolveError, Service,
};
use kernel_agent::{Agent, Config};

use crate::MOST_DATA;
use crate::support::{Host, PORT, block_on, pair, waker};

#[test]
fn a_server_that_is_slower_than_its_peer_still_learns_that_it_was_connected() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0).domain().unwrap(), host.nic(1).domain().unwrap());
    let listener = server.nic().listen(PORT).unwrap();
    let (asks, takes) = (client.endpoint().build().unwrap(), server.endpoint().build().unwrap());
    let connecting = asks.connect(server.nic().address(), PORT);
    let accepting = listener.wait().unwrap().accept_with(&takes, b"here");
    assert_eq!(connecting.wait().unwrap().bytes()[..4], *b"here");
    // The peer comes and goes before anybody waits for the accept.
    drop(asks);
    takes.wait_closed(None).unwrap();
    assert_eq!(accepting.wait().map(drop), Ok(()));
    assert_eq!((takes.is_connected(), takes.ending()), (false, Some(Ending::ByPeer)));
}

#[test]
fn a_peer_that_is_not_there_or_does_not_want_is_an_error_of_its_own() {
    let host = Host::new(2);
    let (a, b) = (host.nic(0), host.nic(1));
    let domain = a.domain().unwrap();
    let endpoint = || domain.endpoint().build().unwrap();
    let address = host.address(1);
    assert_eq!(endpoint().connect(address, PORT).wait(), Err(ConnectError::NoListener));
    let nowhere = Address::from(std::net::Ipv4Addr::new(224, 0, 0, 1));
    assert_eq!(endpoint().connect(nowhere, PORT).wait(), Err(ConnectError::NoPath));
    let listener = b.listen(Service::it_api(PORT)).unwrap();
    assert_eq!(b.listen(Service::it_api(PORT)).err(), Some(CreateError::ServiceInUse));
    let asking = endpoint();
    let connecting = asking.connect(address, Service::it_api(PORT));
    listener.wait().unwrap().reject(b"no").unwrap();
    assert_eq!(connecting.wait(), Err(ConnectError::Rejected));
    assert_eq!(asking.connect(address, Service::it_api(PORT)).wait(), Err(ConnectError::Used));
    // A request that is dropped, or left at a listener that is, is rejected.
    let asking = endpoint();
    let connecting = asking.connect(address, Service::it_api(PORT));
    drop(listener.wait().unwrap());
    assert_eq!(connecting.wait(), Err(ConnectError::Rejected));
    let fresh = endpoint();
    let long = fresh.connect_with(address, Service::it_api(PORT), &[0; MOST_DATA + 1]).wait();
    assert_eq!(long, Err(ConnectError::PrivateData(MOST_DATA)));
    // One that nobody took is rejected, too.
    let left = endpoint();
    let connecting = left.connect(address, Service::it_api(PORT + 1));
    assert_eq!(connecting.wait(), Err(ConnectError::NoListener));
    let other = b.listen(Service::it_api(PORT + 1)).unwrap();
    let left = endpoint();
    let connecting = left.connect(address, Service::it_api(PORT + 1));
    let marker = endpoint();
    let marked = marker.connect(address, Service::it_api(PORT));
    // The first request has arrived when the second one has.
    drop(listener.wait().unwrap());
    assert_eq!(marked.wait(), Err(ConnectError::Rejected));
    drop(other);
    assert_eq!(connecting.wait(), Err(ConnectError::Rejected));
    // A failure at once changes nothing.
    let connecting = fresh.connect(address, Service::it_api(PORT));
    let incoming = listener.wait().unwrap();
    assert!(a.has(incoming.from()));
    drop(listener);
    let peer = b.domain().unwrap().endpoint().build().unwrap();
    incoming.accept(&peer).wait().unwrap();
    connecting.wait().unwrap();
}

#[test]
fn a_device_that_dies_ends_every_wait() {
    let mut host = Host::new(1);
    let config = Config { silence: Duration::from_millis(200), ..Config::default() };
    let agent = host.agents.pop().unwrap();
    agent.close();
    let agent = Agent::open(host.machine.platform(), host.machine.transport(0), 0, config).unwrap();
    host.agents.push(agent);
    let (a, b) = pair(&host);
    let memory = region!(b, 8, Access::empty());
    let nic = host.nic(0);
    let (listener, idle) = (nic.listen(PORT).unwrap(), nic.queue(2).unwrap());
    let receive = b.receive(memory.slice(..)).unwrap();
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| assert_eq!(receive.wait(), Err(RequestError::DeviceDead))),
            scope.spawn(|| assert!(listener.wait().is_err_and(|error| error == CreateError::DeviceDead))),
            scope.spawn(|| assert_eq!(idle.wait(None), Ok(()))),
            scope.spawn(|| block_on(a.closed())),
        ];
        host.machine.kill();
        waits.into_iter().for_each(|wait| wait.join().unwrap());
    });
    assert!(nic.is_dead() && nic.domain().is_err_and(|error| error == CreateError::DeviceDead));
    assert_eq!(b.post_receive(memory.slice(..), 0), Err(PostError::Closed));
    drop((a, b, memory, nic, listener, idle));
    // The device cannot confirm that it is reset: the memory that it may reach is kept.
    host.agents[0].close();
    assert!(host.machine.arena().lent() > 0);
    std::mem::forget(host);
}

#[test]
fn an_attempt_that_is_disconnected_ends_at_once() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let domain = nic.domain().unwrap();
    let listener = nic.listen(PORT).unwrap();
    let endpoint = domain.endpoint().build().unwrap();
    let connecting = endpoint.connect(nic.address(), PORT);
    let incoming = listener.wait().unwrap();
    endpoint.disconnect();
    assert_eq!(connecting.wait(), Err(ConnectError::Closed));
    assert_eq!(endpoint.wait_closed(None), Ok(()));
    assert_eq!(endpoint.connect(nic.address(), PORT).wait(), Err(ConnectError::Used));
    let other = domain.endpoint().build().unwrap();
    assert!(incoming.accept(&other).wait().is_err());
    let fresh = domain.endpoint().build().unwrap();
    fresh.disconnect();
    assert_eq!(fresh.wait_closed(None), Ok(()));
}

#[test]
fn all_tasks_that_wait_for_one_thing_are_woken() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let domain = nic.domain().unwrap();
    let listener = nic.listen(PORT).unwrap();
    let (a, b) = (domain.endpoint().build().unwrap(), domain.endpoint().build().unwrap());
    let (c, d) = (domain.endpoint().build().unwrap(), domain.endpoint().build().unwrap());
    thread::scope(|scope| {
        let accepting = [&b, &d].map(|endpoint| {
            let listener = &listener;
            scope.spawn(move || block_on(async { listener.accept().await.unwrap().accept(endpoint).await }))
        });
        let closed = [&a, &a].map(|endpoint| scope.spawn(move || block_on(endpoint.closed())));
        for endpoint in [&a, &c] {
            block_on(endpoint.connect(nic.address(), PORT)).unwrap();
        }
        accepting.into_iter().for_each(|task| _ = task.join().unwrap().unwrap());
        a.disconnect();
        closed.into_iter().for_each(|task| task.join().unwrap());
    });
}

/// Polls a future that has to be pending, closes the agent, and returns what the future ends with
/// then. It has to be woken by the close.
fn closed_under<T>(host: &Host, future: impl Future<Output = T>) -> T {
    let (waker, wakes) = waker();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    assert!(future.as_mut().poll(&mut context).is_pending());
    host.agents[0].close();
    wakes.try_recv().expect("the close has woken the task");
    match future.as_mut().poll(&mut context) {
        Poll::Ready(ended) => ended,
        Poll::Pending => panic!("the task still waits"),
    }
}

infiniband! {
#[test]
fn a_task_that_waits_is_woken_when_the_agent_is_closed() {
    let with = |look: fn(&Host)| look(&Host::new(2));
    with(|host| {
        let (a, _b) = pair(host);
        let memory = region!(a, 8, Access::empty());
        let receive = a.receive(memory.slice(..)).unwrap();
        assert_eq!(closed_under(host, receive), Err(RequestError::Closed));
    });
    with(|host| {
        let (a, _b) = pair(host);
        closed_under(host, a.closed());
    });
    with(|host| closed_under(host, host.nic(0).queue(2).unwrap().ready()));
    with(|host| {
        let listener = host.nic(0).listen(PORT).unwrap();
        assert!(closed_under(host, listener.accept()).is_err_and(|error| error == CreateError::Closed));
    });
    with(|host| {
        let _listener = host.nic(1).listen(PORT).unwrap();
        let endpoint = host.nic(0).domain().unwrap().endpoint().build().unwrap();
        let connecting = endpoint.connect(host.address(1), PORT);
        assert_eq!(closed_under(host, connecting), Err(ConnectError::Closed));
    });
    with(|host| {
        // The request is not answered.
        let there = host.address(1);
        host.agents[1].close();
        let asked = host.nic(0).resolve(there, PORT);
        assert_eq!(closed_under(host, asked), Err(ResolveError::Closed));
    });
}
}

#[test]
fn a_thread_that_waits_is_woken_when_the_agent_is_closed() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let domain = nic.domain().unwrap();
    let (endpoint, memory) = (domain.endpoint().build().unwrap(), domain.region(8).unwrap());
    let (listener, idle) = (nic.listen(PORT).unwrap(), nic.queue(2).unwrap());
    let receive = endpoint.receive(memory.slice(..)).unwrap();
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| assert_eq!(receive.wait(), Err(RequestError::Closed))),
            scope.spawn(|| assert!(listener.wait().is_err_and(|error| error == CreateError::Closed))),
            scope.spawn(|| assert_eq!(idle.wait(None), Ok(()))),
            scope.spawn(|| assert_eq!(endpoint.wait_closed(None), Ok(()))),
        ];
        host.agents[0].close();
        waits.into_iter().for_each(|wait| wait.join().unwrap());
    });
    assert_eq!(nic.queue(2).err(), Some(CreateError::Closed));
    assert_eq!(endpoint.post_receive(memory.slice(..), 0), Err(PostError::Closed));
}

infiniband! {
#[test]
fn who_waits_for_a_time_only_goes_on_with_what_was_begun() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0), host.nic(1));
    let listener = server.listen(PORT).unwrap();
    let moment = Duration::from_millis(1);
    assert!(listener.wait_timeout(moment).unwrap().is_none());
    let asks = client.domain().unwrap().endpoint().build().unwrap();
    let takes = server.domain().unwrap().endpoint().build().unwrap();
    let connecting = asks.connect(host.address(1), PORT);
    let incoming = listener.wait_timeout(Duration::from_secs(60)).unwrap().expect("a request");
    let Err(connecting) = connecting.wait_timeout(moment) else { panic!("nobody has accepted it") };
    let accepting = incoming.accept(&takes);
    assert!(matches!(connecting.wait_timeout(Duration::from_secs(60)), Ok(Ok(_))));
    assert!(matches!(accepting.wait_timeout(Duration::from_secs(60)), Ok(Ok(_))));
    assert!(matches!(asks.connect(host.address(1), PORT).wait_timeout(moment), Ok(Err(ConnectError::Used))));
    let resolving = client.resolve(host.address(1), PORT).wait_timeout(Duration::from_secs(60));
    assert!(matches!(resolving, Ok(Err(ResolveError::NoService))));
}
}

infiniband! {
#[test]
fn an_endpoint_knows_how_its_connection_ended() {
    let host = Host::new(2);
    let (a, b) = pair(&host);
    assert_eq!((a.ending(), b.ending()), (None, None));
    a.disconnect();
    b.wait_closed(None).unwrap();
    a.wait_closed(None).unwrap();
    assert_eq!((a.ending(), b.ending()), (Some(Ending::BySelf), Some(Ending::ByPeer)));
    // A request that the peer refuses breaks it, for both.
    drop((a, b));
    let (a, b) = pair(&host);
    let hidden = region!(b, 8, Access::READ).remote().unwrap();
    let from = region!(a, 8, Access::empty());
    assert_eq!(a.write(from.slice(..), hidden).unwrap().wait(), Err(RequestError::RemoteAccess));
    a.wait_closed(None).unwrap();
    b.wait_closed(None).unwrap();
    assert_eq!((a.ending(), b.ending()), (Some(Ending::Broken), Some(Ending::Broken)));
    // A drop tells the peer.
    drop((a, b));
    let (a, b) = pair(&host);
    drop(a);
    b.wait_closed(None).unwrap();
    assert_eq!(b.ending(), Some(Ending::ByPeer));
    // An attempt that fails was no connection.
    let endpoint = host.nic(0).domain().unwrap().endpoint().build().unwrap();
    endpoint.connect(host.address(1), PORT).wait().unwrap_err();
    assert_eq!(endpoint.ending(), None);
}
}

#[test]
fn endpoints_of_a_nic_have_numbers_of_their_own() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    assert!(a.number() != b.number() && a.number() > 1, "1 is the connection manager's");
}
