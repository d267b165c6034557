//! The API for Rust programmers: what it promises about memory, ends, errors and drops.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use ferrovia_rdma::{
    Access, Address, Completion, ConnectError, CreateError, Endpoint, Nic, Operation, PostError,
    RemoteMemory, RequestError, Service, Work,
};
use host::Machine;
use kernel_agent::{Agent, Config, Counts};

const PORT: u16 = 4711;

/// A machine with agents on its NICs. The agents are closed at the end, and nothing is left.
struct Host {
    machine: Machine,
    agents: Vec<Arc<Agent>>,
}

impl Host {
    fn new(nics: u8) -> Host {
        let machine = Machine::new(nics);
        let open = |(number, device)| {
            Agent::open(machine.platform(), device, number, Config::default()).expect("a NIC")
        };
        let agents = (0..).zip(machine.transports()).map(open).collect();
        Host { machine, agents }
    }

    fn nic(&self, number: usize) -> Nic {
        Nic::open(&self.agents[number]).expect("an opening")
    }

    fn address(&self, number: usize) -> Address {
        self.nic(number).addresses().next().expect("an address")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        for agent in &self.agents {
            assert_eq!(agent.counts(), Counts::default(), "something is left");
            agent.close();
        }
        self.agents.clear();
        assert_eq!(self.machine.arena().lent(), 0, "DMA memory is left");
    }
}

/// Runs a future to its end in this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Two connected endpoints, each on a domain of its own.
fn pair(host: &Host) -> (Endpoint, Endpoint) {
    let (a, b) = (host.nic(0), host.nic(host.agents.len() - 1));
    let listener = b.listen(PORT).expect("a listener");
    let first = a.domain().unwrap().endpoint().build().expect("an endpoint");
    let second = b.domain().unwrap().endpoint().build().expect("an endpoint");
    let address = b.addresses().next().expect("an address");
    let connecting = first.connect(address, PORT);
    let accepting = listener.wait().expect("a request").accept(&second);
    connecting.wait().expect("a connection");
    accepting.wait().expect("a connection");
    (first, second)
}

/// A region in an endpoint's domain.
macro_rules! region {
    ($endpoint:expr, $len:expr, $access:expr) => {
        $endpoint.domain().shared_region($len, $access).expect("a region")
    };
}

#[test]
fn a_message_arrives_for_who_blocks() {
    let host = Host::new(2);
    let (a, b) = pair(&host);
    let (from, into) = (region!(a, 64, Access::empty()), region!(b, 64, Access::empty()));
    let receive = b.receive(into.slice(..)).unwrap();
    from.slice(..).write(b"hello");
    assert_eq!(a.send(from.slice(..5)).unwrap().wait().map(|done| done.len), Ok(5));
    let done = receive.wait().unwrap();
    let mut bytes = [0; 8];
    assert_eq!((done.len, into.slice(..done.len).read(&mut bytes), &bytes[..5]), (5, 5, &b"hello"[..]));
}

#[test]
fn a_message_and_its_echo_arrive_for_who_awaits() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0), host.nic(1));
    let address = host.address(1);
    thread::scope(|scope| {
        let listener = server.listen(PORT).unwrap();
        scope.spawn(|| {
            block_on(async move {
                let incoming = listener.accept().await.unwrap();
                assert_eq!(&incoming.private_data()[..2], b"hi");
                let domain = server.domain().unwrap();
                let (endpoint, memory) = (domain.endpoint().build().unwrap(), domain.region(32).unwrap());
                let receive = endpoint.receive(memory.slice(..)).unwrap();
                incoming.accept_with(&endpoint, b"welcome").await.unwrap();
                let len = receive.await.unwrap().len;
                endpoint.send(memory.slice(..len)).unwrap().await.unwrap();
                endpoint.closed().await;
            });
        });
        block_on(async {
            let domain = client.domain().unwrap();
            let (endpoint, memory) = (domain.endpoint().build().unwrap(), domain.region(32).unwrap());
            let data = endpoint.connect_with(address, PORT, b"hi").await.unwrap();
            assert_eq!(&data.bytes()[..7], b"welcome");
            let echo = endpoint.receive(memory.slice(16..)).unwrap();
            memory.slice(..).write(b"echo");
            endpoint.send(memory.slice(..4)).unwrap().await.unwrap();
            assert_eq!(echo.await.unwrap().len, 4);
            let mut bytes = [0; 4];
            memory.slice(16..).read(&mut bytes);
            assert_eq!(&bytes, b"echo");
        });
    });
}

/// Polls until so many completions have come.
fn poll(endpoint: &Endpoint, count: usize) -> Vec<Completion> {
    let (queue, mut all) = (endpoint.queue(), Vec::new());
    while all.len() < count {
        let mut some = [Completion::EMPTY; 4];
        let came = queue.poll(&mut some);
        all.extend_from_slice(&some[..came]);
        if came == 0 {
            queue.wait(Some(Duration::from_secs(60))).expect("a completion");
        }
    }
    all
}

#[test]
fn every_operation_completes_for_who_polls() {
    let host = Host::new(2);
    let (a, b) = pair(&host);
    let (local, remote) = (region!(a, 64, Access::empty()), region!(b, 64, Access::all()));
    let into = remote.remote().unwrap();
    local.slice(..8).write(&7u64.to_ne_bytes());
    b.post_receive(remote.slice(32..), 1).unwrap();
    b.post_receive(remote.slice(32..), 2).unwrap();
    a.post(Work::write(local.slice(..8), into).id(10)).unwrap();
    a.post(Work::fetch_add(local.slice(8..16), into, 5).id(11)).unwrap();
    a.post(Work::compare_swap(local.slice(16..24), into, 12, 99).id(12)).unwrap();
    a.post(Work::read(local.slice(24..32), into).id(13).fenced()).unwrap();
    let gathered = [local.slice(..4), local.slice(4..8)];
    assert_eq!(a.post(Work::send(&gathered)), Err(PostError::TooManySlices));
    a.post(Work::send(local.slice(..8)).immediate(77).id(14)).unwrap();
    a.post(Work::write(local.slice(..4), into.from(8)).immediate(78).id(15)).unwrap();
    let ends = poll(&a, 6);
    let kinds = [
        Operation::Write,
        Operation::Atomic,
        Operation::Atomic,
        Operation::Read,
        Operation::Send,
        Operation::Write,
    ];
    assert!(ends.iter().map(Completion::operation).eq(kinds));
    assert!(ends.iter().map(Completion::id).eq(10..16));
    assert!(
        ends.iter().all(|end| end.result().is_ok() && end.endpoint() == a.id() && end.written().is_none())
    );
    let word = |at: usize| {
        let mut bytes = [0; 8];
        local.slice(at..).read(&mut bytes);
        u64::from_ne_bytes(bytes)
    };
    assert_eq!((word(8), word(16), word(24)), (7, 12, 99));
    let came = poll(&b, 2);
    assert_eq!((came[0].immediate(), came[0].result(), came[0].written()), (Some(77), Ok(8), None));
    assert_eq!((came[1].immediate(), came[1].result(), came[1].written()), (Some(78), Ok(0), Some(4)));
    assert!(came.iter().all(|end| end.operation() == Operation::Receive));
}

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
    let mut bytes = [0; 4];
    target.slice(..).read(&mut bytes);
    assert_eq!(&bytes, b"kept");
    // The next look at the queue gives the memory back.
    a.queue().poll(&mut []);
    assert_eq!(host.machine.arena().lent(), before);
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
fn who_stops_waiting_cancels_nothing() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let (from, into) = (region!(a, 64, Access::empty()), region!(b, 64, Access::empty()));
    // More often than there are cells.
    for round in 0..40u8 {
        from.slice(..).write(&[round]);
        drop(b.receive(into.slice(..)).unwrap());
        drop(a.send(from.slice(..1)).unwrap());
        let receive = b.receive(into.slice(1..)).unwrap();
        a.send(from.slice(..1)).unwrap().wait().unwrap();
        receive.wait().unwrap();
        let mut bytes = [0; 2];
        into.slice(..).read(&mut bytes);
        assert_eq!(bytes, [round; 2], "both arrived");
    }
}

#[test]
fn a_wait_that_is_over_returns_the_request() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let memory = region!(b, 8, Access::empty());
    let receive = b.receive(memory.slice(..)).unwrap();
    let Err(receive) = receive.wait_timeout(Duration::ZERO) else { panic!("nobody has sent") };
    let source = region!(a, 8, Access::empty());
    a.send(source.slice(..3)).unwrap().wait().unwrap();
    assert_eq!(receive.wait().map(|done| done.len), Ok(3));
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
    let long = fresh.connect_with(address, Service::it_api(PORT), &[0; 93]).wait();
    assert_eq!(long, Err(ConnectError::PrivateData(92)));
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
fn a_post_that_cannot_be_says_why_and_changes_nothing() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let (domain, other) = (nic.domain().unwrap(), nic.domain().unwrap());
    let (memory, foreign) = (domain.region(64).unwrap(), other.region(64).unwrap());
    let idle = domain.endpoint().build().unwrap();
    assert_eq!(idle.post(Work::send(memory.slice(..))), Err(PostError::NotConnected));
    assert!(idle.send(memory.slice(..)).is_err_and(|error| error == PostError::NotConnected));
    let small = domain.endpoint().sends(2).receives(1).build().unwrap();
    let peer = domain.endpoint().build().unwrap();
    let listener = nic.listen(PORT).unwrap();
    let connecting = small.connect(host.address(0), PORT);
    listener.wait().unwrap().accept(&peer).wait().unwrap();
    connecting.wait().unwrap();
    assert_eq!(small.post(Work::send(foreign.slice(..))), Err(PostError::BadSlice));
    let nowhere = RemoteMemory::new(0, 8, 0);
    assert_eq!(small.post(Work::fetch_add(memory.slice(..4), nowhere, 1)), Err(PostError::BadSlice));
    small.post_receive(memory.slice(..), 0).unwrap();
    assert_eq!(small.post_receive(memory.slice(..), 0), Err(PostError::Full));
    let paused = host.machine.pause();
    small.post(Work::send(memory.slice(..))).unwrap();
    small.post(Work::send(memory.slice(..))).unwrap();
    assert_eq!(small.post(Work::send(memory.slice(..))), Err(PostError::Full));
    drop(paused);
    let elsewhere = Host::new(1);
    let queue = elsewhere.nic(0).queue(4).unwrap();
    assert_eq!(domain.endpoint().queue(&queue).build().err(), Some(CreateError::Foreign));
}

#[test]
fn a_request_that_the_peer_refuses_fails_and_ends_the_connection() {
    let host = Host::new(2);
    let (a, b) = pair(&host);
    let (local, remote) = (region!(a, 64, Access::empty()), region!(b, 64, Access::READ));
    let refused = a.write(local.slice(..), remote.remote().unwrap()).unwrap();
    let behind = a.read(local.slice(..), remote.remote().unwrap()).unwrap();
    assert_eq!(refused.wait(), Err(RequestError::RemoteAccess));
    assert_eq!(behind.wait(), Err(RequestError::Flushed));
    a.wait_closed(None).unwrap();
    b.wait_closed(None).unwrap();
    assert_eq!(region!(a, 64, Access::empty()).remote(), None, "peers have no right to it");
}

#[test]
fn one_queue_serves_who_polls_and_who_waits() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let domain = nic.domain().unwrap();
    let queue = nic.queue(64).unwrap();
    let (a, b) =
        (domain.endpoint().queue(&queue).build().unwrap(), domain.endpoint().queue(&queue).build().unwrap());
    let listener = nic.listen(PORT).unwrap();
    let connecting = a.connect(host.address(0), PORT);
    listener.wait().unwrap().accept(&b).wait().unwrap();
    connecting.wait().unwrap();
    let memory = domain.region(64).unwrap();
    for round in 0..10 {
        b.post_receive(memory.slice(..8), round).unwrap();
        b.post_receive(memory.slice(..8), round).unwrap();
        let started = a.send(memory.slice(8..16)).unwrap();
        a.post(Work::send(memory.slice(8..16)).id(round)).unwrap();
        // The waiter stages what is not its own; the poller passes on what is not its own.
        let ends = if round % 2 == 0 {
            started.wait().unwrap();
            poll(&a, 3)
        } else {
            let ends = poll(&a, 3);
            started.wait().unwrap();
            ends
        };
        assert!(ends.iter().all(|end| end.id() == round && end.result() == Ok(8)), "{ends:?}");
        assert_eq!(ends.iter().filter(|end| end.endpoint() == b.id()).count(), 2);
    }
    block_on(async {
        b.post_receive(memory.slice(..8), 0).unwrap();
        a.send(memory.slice(8..16)).unwrap().await.unwrap();
        queue.ready().await;
    });
    assert_eq!(poll(&b, 1)[0].operation(), Operation::Receive);
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
    let mut bytes = [0; 6];
    target.slice(..).read(&mut bytes);
    assert_eq!(&bytes, b"direct");
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
fn endpoints_share_receives_and_a_message_gives_its_buffer_back() {
    const CLIENTS: u64 = 3;
    let host = Host::new(2);
    let (clients, server) = (host.nic(0), host.nic(1));
    let domain = server.domain().unwrap();
    let (receives, queue) = (domain.shared_receives(2, 16).unwrap(), server.queue(64).unwrap());
    let listener = server.listen(PORT).unwrap();
    let own = clients.domain().unwrap();
    let memory = own.region(16).unwrap();
    let connect = |_| {
        let (asks, takes) =
            (own.endpoint().build().unwrap(), domain.endpoint().queue(&queue).shared(&receives));
        let takes = takes.build().unwrap();
        let connecting = asks.connect(server.address(), PORT);
        listener.wait().unwrap().accept(&takes).wait().unwrap();
        connecting.wait().unwrap();
        (asks, takes)
    };
    let pairs: Vec<_> = (0..CLIENTS).map(connect).collect();
    assert_eq!(pairs[0].1.post_receive(memory.slice(..), 0), Err(PostError::NoReceives));
    for round in 0..10u8 {
        // One message more than there are buffers: it waits until one is given back.
        let all: Vec<_> = pairs
            .iter()
            .map(|(asks, _)| {
                memory.slice(..).write(&[round; 5]);
                asks.send(memory.slice(..5)).unwrap()
            })
            .collect();
        let mut from = Vec::new();
        while from.len() < CLIENTS as usize {
            for end in poll(&pairs[0].1, 1) {
                let message = receives.message(&end).expect("a message");
                assert!(receives.message(&end).is_none(), "once for each completion");
                assert_eq!(message.slice().to_vec(), [round; 5]);
                drop(message);
                assert!(receives.message(&end).is_none(), "the buffer is posted again");
                from.push(end.endpoint());
            }
        }
        all.into_iter().for_each(|sent| _ = sent.wait().unwrap());
        assert!(pairs.iter().all(|(_, takes)| from.contains(&takes.id())), "each client was heard");
    }
}

#[test]
fn a_batch_is_posted_as_a_whole_or_not_at_all() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let (local, remote) = (region!(a, 64, Access::empty()), region!(b, 64, Access::all()));
    let (local, to) = (&local, remote.remote().unwrap());
    let word = |n: u64| local.slice(8 * n as usize..8 * n as usize + 8);
    (0..8).for_each(|n| _ = word(n).write(&n.to_ne_bytes()));
    let failed = a.batch(|batch| {
        batch.post(Work::write(word(1), to))?;
        batch.post(Work::fetch_add(word(2), to, 1))
    });
    assert_eq!(failed, Err(PostError::NotInBatch));
    a.batch(|batch| {
        assert_eq!(a.post(Work::write(word(0), to)), Err(PostError::Busy));
        (0..7).try_for_each(|n| batch.post(Work::write(word(n + 1), to.from(8 * n)).id(n).unsignalled()))?;
        batch.post(Work::read(word(0), to.from(8)).id(9))
    })
    .unwrap();
    assert_eq!(poll(&a, 1)[0].id(), 9);
    assert_eq!(word(0).to_vec(), 2u64.to_ne_bytes());
    assert_eq!(remote.slice(48..56).to_vec(), 7u64.to_ne_bytes());
    let idle = a.domain().endpoint().build().unwrap();
    assert_eq!(idle.batch(|_| Ok(())), Err(PostError::NotConnected));
}

#[test]
fn a_task_is_woken_also_if_requests_of_others_complete_before_its_own() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let (domain, queue) = (nic.domain().unwrap(), nic.queue(64).unwrap());
    let endpoint = || domain.endpoint().queue(&queue).build().unwrap();
    let (a, b) = (endpoint(), endpoint());
    let listener = nic.listen(PORT).unwrap();
    let connecting = a.connect(nic.address(), PORT);
    listener.wait().unwrap().accept(&b).wait().unwrap();
    connecting.wait().unwrap();
    let memory = domain.shared_region(64, Access::WRITE).unwrap();
    for _ in 0..20 {
        let mut receive = pin!(b.receive(memory.slice(..8)).unwrap());
        let (woken, wakes) = std::sync::mpsc::channel();
        struct Tell(std::sync::mpsc::Sender<()>);
        impl Wake for Tell {
            fn wake(self: Arc<Self>) {
                let _ = self.0.send(());
            }
        }
        let waker = Waker::from(Arc::new(Tell(woken)));
        let mut look = || receive.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(look().is_pending());
        // The first completion after the queue was armed is not the task's.
        a.post(Work::write(memory.slice(8..16), memory.remote().unwrap())).unwrap();
        while queue.poll(&mut [Completion::EMPTY]) == 0 {
            thread::yield_now();
        }
        a.post(Work::send(memory.slice(8..16))).unwrap();
        // Nobody else looks at the queue now.
        wakes.recv_timeout(Duration::from_secs(60)).expect("the task is woken");
        assert!(look().is_ready());
        while queue.poll(&mut [Completion::EMPTY]) == 0 {
            thread::yield_now();
        }
    }
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

#[test]
fn a_shared_buffer_comes_back_from_a_receive_that_failed_or_was_written() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0).domain().unwrap(), host.nic(1).domain().unwrap());
    let (receives, others) = (server.shared_receives(1, 8).unwrap(), server.shared_receives(1, 8).unwrap());
    let listener = server.nic().listen(PORT).unwrap();
    let memory = client.region(64).unwrap();
    let store = server.shared_region(64, Access::WRITE).unwrap();
    let connect = || {
        let (asks, takes) =
            (client.endpoint().build().unwrap(), server.endpoint().shared(&receives).build().unwrap());
        let connecting = asks.connect(server.nic().address(), PORT);
        listener.wait().unwrap().accept(&takes).wait().unwrap();
        connecting.wait().unwrap();
        (asks, takes)
    };
    // A message that is longer than the only buffer ends its connection, and not the pool.
    for _ in 0..3 {
        let (asks, takes) = connect();
        let sent = asks.send(memory.slice(..9)).unwrap();
        let failed = poll(&takes, 1)[0];
        assert!(failed.result().is_err(), "{failed:?}");
        assert!(others.message(&failed).is_none() && receives.message(&failed).is_none());
        assert!(sent.wait().is_err());
    }
    let (asks, takes) = connect();
    let work = Work::write(memory.slice(..32), store.remote().unwrap()).immediate(7);
    asks.start(work).unwrap().wait().unwrap();
    let written = poll(&takes, 1)[0];
    assert_eq!((written.result(), written.written(), written.immediate()), (Ok(0), Some(32), Some(7)));
    assert!(others.message(&written).is_none(), "of another pool");
    assert!(receives.message(&written).unwrap().slice().is_empty());
    asks.send(memory.slice(..8)).unwrap().wait().unwrap();
    let came = poll(&takes, 1)[0];
    // The endpoint may go before its messages are looked at.
    drop(takes);
    assert_eq!(receives.message(&came).unwrap().slice().len(), 8);
    let (asks, takes) = connect();
    asks.send(memory.slice(..8)).unwrap().wait().unwrap();
    assert!(receives.message(&poll(&takes, 1)[0]).is_some());
}

#[test]
fn a_receive_that_a_write_took_is_not_longer_than_its_memory() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let (from, into) = (region!(a, 64, Access::empty()), region!(b, 64, Access::WRITE));
    let receive = b.receive(into.slice(..4)).unwrap();
    a.start(Work::write(from.slice(..), into.remote().unwrap()).immediate(9)).unwrap().wait().unwrap();
    let done = receive.wait().unwrap();
    assert_eq!((done.len, done.written, done.immediate), (0, Some(64), Some(9)));
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

#[test]
fn a_full_queue_is_no_obstacle_if_nobody_waits_for_what_has_ended() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let (from, into) = (region!(a, 8, Access::empty()), region!(b, 8, Access::WRITE));
    for _ in 0..100 {
        drop(a.write(from.slice(..), into.remote().unwrap()).unwrap());
        if a.queue().poll(&mut [Completion::EMPTY]) == 0 {
            thread::yield_now();
        }
    }
}

#[test]
fn who_waits_hears_that_the_agent_is_closed() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let domain = nic.domain().unwrap();
    let (endpoint, memory) = (domain.endpoint().build().unwrap(), domain.region(8).unwrap());
    let (listener, receive) = (nic.listen(PORT).unwrap(), endpoint.receive(memory.slice(..)).unwrap());
    host.agents[0].close();
    assert_eq!(receive.wait(), Err(RequestError::DeviceDead));
    assert_eq!(endpoint.wait_closed(None), Ok(()));
    assert_eq!(nic.queue(2).err(), Some(CreateError::DeviceDead));
    assert!(listener.wait().is_err());
}
