//! Datagrams: how they arrive and are lost, who is told what, and drops.

use std::thread;
use std::time::Duration;

use ferrovia_rdma::{
    AnswerError, Completion, CreateError, Datagram, DatagramEndpoint, Operation, PostError, RequestError,
    ResolveError, Service,
};
use kernel_agent::Counts;

use crate::support::{Host, PORT, block_on};

/// An endpoint on this NIC of the host.
fn endpoint(host: &Host, nic: usize) -> DatagramEndpoint {
    host.nic(nic).domain().unwrap().datagrams().build().expect("an endpoint for datagrams")
}

/// Polls the endpoint's queue until so many completions have come.
fn poll(endpoint: &DatagramEndpoint, count: usize) -> Vec<Completion> {
    crate::support::poll_queue(endpoint.queue(), count)
}

#[test]
fn a_datagram_arrives_and_its_sender_is_answered() {
    let host = Host::new(2);
    let (client, server) = (endpoint(&host, 0), endpoint(&host, 1));
    let service = server.serve_with(PORT, b"welcome").unwrap();
    let nic = client.domain().nic();
    let resolved = nic.resolve(host.address(1), PORT).wait().unwrap();
    assert_eq!(&resolved.data.bytes()[..8], b"welcome\0");
    assert_eq!(resolved.destination.number(), server.number());
    drop(service);
    let (question, answer) = (client.domain().region(64).unwrap(), server.domain().region(64).unwrap());
    let (receive, echo) =
        (server.receive(answer.slice(..)).unwrap(), client.receive(question.slice(32..)).unwrap());
    question.slice(..).write(b"who is there?");
    let datagram = Datagram::new(question.slice(..13), resolved.destination).immediate(7);
    assert_eq!(client.start(datagram).unwrap().wait().map(|done| done.len), Ok(13));
    let done = receive.wait().unwrap();
    assert_eq!(
        (done.len, done.immediate, answer.slice(..13).to_vec()),
        (13, Some(7), b"who is there?".into())
    );
    let sender = done.sender.expect("a sender");
    assert!(nic.has(sender.address()));
    assert_eq!(sender.number(), client.number());
    server.send(answer.slice(..3), server.to(sender).unwrap()).unwrap().wait().unwrap();
    let done = echo.wait().unwrap();
    assert_eq!((done.len, question.slice(32..35).to_vec()), (3, b"who".into()));
    assert_eq!(done.sender.map(|sender| sender.number()), Some(server.number()));
}

#[test]
fn tasks_resolve_send_and_receive() {
    let host = Host::new(2);
    let (client, server) = (endpoint(&host, 0), endpoint(&host, 1));
    let _service = server.serve(Service::it_api(PORT)).unwrap();
    let (address, nic) = (host.address(1), client.domain().nic().clone());
    thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                let memory = server.domain().region(64).unwrap();
                let done = server.receive(memory.slice(..)).unwrap().await.unwrap();
                let to = server.to(done.sender.unwrap()).unwrap();
                server.send(memory.slice(..done.len), to).unwrap().await.unwrap();
            });
        });
        block_on(async {
            let memory = client.domain().region(64).unwrap();
            let to = nic.resolve(address, Service::it_api(PORT)).await.unwrap().destination;
            let mut echo = client.receive(memory.slice(32..)).unwrap();
            memory.slice(..).write(b"echo");
            // The server's Receive may not be posted yet: then the datagram is lost.
            let len = loop {
                client.send(memory.slice(..4), to).unwrap().await.unwrap();
                match echo.wait_timeout(Duration::from_millis(1)) {
                    Ok(done) => break done.unwrap().len,
                    Err(again) => echo = again,
                }
            };
            assert_eq!(memory.slice(32..32 + len).to_vec(), b"echo");
        });
    });
}

#[test]
fn who_polls_finds_the_sender_in_the_completion() {
    let host = Host::new(2);
    let (a, b) = (endpoint(&host, 0), endpoint(&host, 1));
    let to = a.domain().nic().destination(host.address(1), b.number(), 0x0123_4567).unwrap();
    let (from, into) = (a.domain().region(64).unwrap(), b.domain().region(64).unwrap());
    for round in 0..20 {
        b.post_receive(into.slice(..8), round).unwrap();
        b.post_receive(into.slice(8..), 100 + round).unwrap();
        from.slice(..).write(&[round as u8; 16]);
        a.post(Datagram::new(from.slice(..0), to).unsignalled()).unwrap();
        a.post(Datagram::new(from.slice(..16), to).id(round)).unwrap();
        let sent = poll(&a, 1)[0];
        assert_eq!((sent.id(), sent.operation(), sent.sender()), (round, Operation::Send, None));
        let came = poll(&b, 2);
        assert!(came.iter().map(Completion::id).eq([round, 100 + round]));
        assert!(came.iter().map(|came| came.result().unwrap()).eq([0, 16]));
        for came in came {
            assert_eq!(came.operation(), Operation::Receive);
            assert_eq!(came.sender().map(|sender| sender.number()), Some(a.number()));
        }
        assert_eq!(into.slice(8..24).to_vec(), [round as u8; 16]);
    }
}

#[test]
fn several_slices_are_gathered_and_scattered() {
    let host = Host::new(1);
    let domain = host.nic(0).domain().unwrap();
    let (a, b) = (
        domain.datagrams().segments(2).key(99).build().unwrap(),
        domain.datagrams().segments(2).key(99).build().unwrap(),
    );
    let memory = domain.region(64).unwrap();
    memory.slice(..).write(b"there and back");
    let receive = b.receive(&[memory.slice(32..37), memory.slice(48..)]).unwrap();
    let to = domain.nic().destination(domain.nic().address(), b.number(), 99).unwrap();
    a.send(&[memory.slice(..6), memory.slice(9..14)], to).unwrap().wait().unwrap();
    assert_eq!(receive.wait().map(|done| done.len), Ok(11));
    assert_eq!(
        (memory.slice(32..37).to_vec(), memory.slice(48..54).to_vec()),
        (b"there".into(), b"  back".into())
    );
}

#[test]
fn what_cannot_be_sent_or_received_is_refused_and_changes_nothing() {
    let host = Host::new(2);
    let domain = host.nic(0).domain().unwrap();
    let peer = endpoint(&host, 1);
    let a = domain.datagrams().sends(2).receives(2).build().unwrap();
    let to = domain.nic().destination(host.address(1), peer.number(), 0x0123_4567).unwrap();
    let memory = domain.region(a.longest() + 1).unwrap();
    let (long, short) = (memory.slice(..), memory.slice(..8));
    assert_eq!(a.post(Datagram::new(long, to)), Err(PostError::TooLong(a.longest())));
    assert_eq!(a.post(Datagram::new(&[short, short], to)), Err(PostError::TooManySlices));
    assert_eq!(a.post_receive(&[short; 300], 0), Err(PostError::TooManySlices));
    let elsewhere = peer.domain().nic().destination(host.address(0), a.number(), 0x0123_4567).unwrap();
    assert_eq!(a.post(Datagram::new(short, elsewhere)), Err(PostError::BadDestination));
    let foreign = host.nic(0).domain().unwrap().region(8).unwrap();
    assert_eq!(a.post(Datagram::new(foreign.slice(..), to)), Err(PostError::BadSlice));
    assert_eq!(a.post_receive(foreign.slice(..), 0), Err(PostError::BadSlice));
    let paused = host.machine.pause();
    for _ in 0..2 {
        a.post_receive(short, 0).unwrap();
        a.post(Datagram::new(memory.slice(..a.longest()), to)).unwrap();
    }
    assert_eq!(a.post_receive(short, 0), Err(PostError::Full));
    assert!(a.receive(short).is_err_and(|error| error == PostError::Full));
    assert_eq!(a.post(Datagram::new(short, to)), Err(PostError::Full));
    drop(paused);
    assert!(poll(&a, 2).iter().all(|end| end.result() == Ok(a.longest())));
    let secret = domain.datagrams().key(1 << 31).build().err();
    assert_eq!(secret, Some(CreateError::OutOfRange("queue key")));
    domain.datagrams().key(1 << 31).privileged(host.machine.privileged()).build().unwrap();
}

#[test]
fn a_service_that_is_not_there_is_an_error_of_its_own() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0), endpoint(&host, 1));
    let address = host.address(1);
    let ask = |service: Service| client.resolve(address, service).wait().map(|_| ());
    assert_eq!(ask(PORT.into()), Err(ResolveError::NoService));
    let nowhere = std::net::Ipv4Addr::new(224, 0, 0, 1);
    assert_eq!(client.resolve(nowhere.into(), PORT).wait(), Err(ResolveError::NoPath));
    assert_eq!(client.destination(address, 1 << 24, 0), Err(ResolveError::BadNumber));
    assert_eq!(client.resolve_with(address, PORT, &[0; 181]).wait(), Err(ResolveError::PrivateData(180)));
    // A listener at the same port is no obstacle, and no endpoint for datagrams.
    let nic = server.domain().nic();
    let (_listener, _other) = (nic.listen(PORT).unwrap(), nic.listen(Service::it_api(PORT)).unwrap());
    assert_eq!(ask(Service::it_api(PORT)), Err(ResolveError::NoService));
    let service = server.serve(PORT).unwrap();
    assert_eq!(server.serve(PORT).err(), Some(CreateError::ServiceInUse));
    assert_eq!(server.serve_with(PORT, &[0; 137]).err(), Some(CreateError::OutOfRange("private data")));
    assert_eq!(ask(PORT.into()), Ok(()));
    // Requests that are given up leave nothing; as many as the agent has room for.
    let asked: Vec<_> = (0..65).map(|_| client.resolve(address, PORT)).collect();
    let refused = asked.into_iter().map(|asked| asked.wait()).filter(Result::is_err);
    assert!(refused.eq([Err(ResolveError::NoResources)]));
    drop(client.resolve(address, PORT));
    drop(server);
    assert_eq!(ask(PORT.into()), Err(ResolveError::NoEndpoint));
    drop(service);
    assert_eq!(ask(PORT.into()), Err(ResolveError::NoService));
}

#[test]
fn what_finds_no_receive_or_a_short_one_is_lost_and_counted() {
    let host = Host::new(2);
    let (a, b) = (endpoint(&host, 0), endpoint(&host, 1));
    let key = |key| a.domain().nic().destination(host.address(1), b.number(), key).unwrap();
    let (from, into) = (a.domain().region(64).unwrap(), b.domain().region(64).unwrap());
    let send = |len, to| a.send(from.slice(..len), to).unwrap().wait().unwrap().len;
    let lost = || host.machine.stats()[0].dropped_datagrams;
    assert_eq!((send(8, key(0x0123_4567)), lost()), (8, 1));
    let receive = b.receive(into.slice(..8)).unwrap();
    assert_eq!((send(9, key(0x0123_4567)), lost()), (9, 2), "longer than the Receive");
    assert_eq!((send(8, key(5)), lost()), (8, 3), "with another key");
    assert_eq!((send(7, key(0x0123_4567)), lost()), (7, 3));
    assert_eq!(receive.wait().map(|done| done.len), Ok(7), "the Receive has waited");
    let gone = key(0x0123_4567);
    drop(b);
    assert_eq!((send(7, gone), lost()), (7, 4), "nobody hears it");
}

#[test]
fn who_stops_waiting_for_a_datagram_cancels_nothing() {
    let host = Host::new(1);
    let domain = host.nic(0).domain().unwrap();
    let (a, b) = (domain.datagrams().build().unwrap(), domain.datagrams().receives(2).build().unwrap());
    let to = domain.nic().destination(domain.nic().address(), b.number(), 0x0123_4567).unwrap();
    let (from, into) = (domain.region(64).unwrap(), domain.region(64).unwrap());
    // More often than there are places for headers.
    for round in 0..40u8 {
        from.slice(..).write(&[round]);
        drop(b.receive(into.slice(..)).unwrap());
        drop(a.send(from.slice(..1), to).unwrap());
        let receive = b.receive(into.slice(1..)).unwrap();
        a.send(from.slice(..1), to).unwrap().wait().unwrap();
        receive.wait().unwrap();
        assert_eq!(into.slice(..2).to_vec(), [round; 2], "both arrived");
    }
}

#[test]
fn a_region_lives_until_the_datagrams_that_name_it_are_sent_and_received() {
    let host = Host::new(2);
    let (a, b) = (endpoint(&host, 0), endpoint(&host, 1));
    let to = a.domain().nic().destination(host.address(1), b.number(), 0x0123_4567).unwrap();
    let kept = b.domain().region(64).unwrap();
    let before = host.machine.arena().lent();
    let (from, into) = (a.domain().region(64).unwrap(), b.domain().region(64).unwrap());
    let lives = host.machine.arena().lent();
    let paused = host.machine.pause();
    let receive = b.receive(into.slice(..)).unwrap();
    let sent = a.send(from.slice(..8), to).unwrap();
    drop(from);
    drop(into);
    let again = b.receive(kept.slice(..)).unwrap();
    assert_eq!(host.machine.arena().lent(), lives, "the device has not sent it yet");
    drop(paused);
    sent.wait().unwrap();
    assert_eq!(receive.wait().map(|done| done.len), Ok(8));
    // The next look at either queue gives the memory back.
    a.queue().poll(&mut []);
    b.queue().poll(&mut []);
    assert_eq!(host.machine.arena().lent(), before);
    drop(b);
    assert_eq!(again.wait(), Err(RequestError::Flushed));
}

#[test]
fn endpoints_and_services_can_be_dropped_in_any_order() {
    let host = Host::new(1);
    for order in 0..120 {
        let nic = host.nic(0);
        let domain = nic.domain().unwrap();
        let region = domain.region(64).unwrap();
        let endpoint = domain.datagrams().build().unwrap();
        let service = endpoint.serve(PORT).unwrap();
        let receive = endpoint.receive(region.slice(..)).unwrap();
        let asked = nic.resolve(nic.address(), PORT);
        let mut values: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(domain), Box::new(region), Box::new(endpoint), Box::new(service), Box::new(asked)];
        drop(nic);
        let mut rest = order;
        for left in (1..=5).rev() {
            drop(values.remove(rest % left));
            rest /= left;
        }
        assert_eq!(receive.wait(), Err(RequestError::Flushed));
        assert_eq!(host.agents[0].counts(), Counts::default(), "something is left");
    }
}

#[test]
fn a_request_for_a_service_ends_with_the_device() {
    let mut host = Host::new(1);
    let nic = host.nic(0);
    let endpoint = endpoint(&host, 0);
    let (_service, memory) = (endpoint.serve(PORT).unwrap(), endpoint.domain().region(8).unwrap());
    let receive = endpoint.receive(memory.slice(..)).unwrap();
    host.machine.kill();
    let asked = nic.resolve(nic.address(), PORT);
    host.agents[0].close();
    assert_eq!(asked.wait(), Err(ResolveError::Closed));
    assert_eq!(nic.resolve(nic.address(), PORT).wait(), Err(ResolveError::Closed));
    assert_eq!(receive.wait(), Err(RequestError::Closed));
    assert_eq!(endpoint.post_receive(memory.slice(..), 0), Err(PostError::Closed));
    drop((nic, endpoint, memory, _service));
    std::mem::forget(host);
}

#[test]
fn a_consumer_gives_each_peer_an_endpoint_of_its_own() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0), host.nic(1).domain().unwrap());
    let listener = server.nic().listen_for_datagrams(PORT).unwrap();
    assert!(listener.wait_timeout(Duration::from_millis(1)).unwrap().is_none());
    assert_eq!(server.nic().listen_for_datagrams(PORT).err(), Some(CreateError::ServiceInUse));
    let endpoints: Vec<_> = (0..2).map(|_| server.datagrams().key(5).build().unwrap()).collect();
    for endpoint in &endpoints {
        let asked = client.resolve_with(host.address(1), PORT, b"me");
        let request = listener.wait().unwrap();
        assert!(client.has(request.from()));
        assert_eq!(&request.private_data()[..3], b"me\0");
        let Err(asked) = asked.wait_timeout(Duration::from_millis(1)) else { panic!("nobody answered") };
        request.answer_with(endpoint, b"you").unwrap();
        let resolved = asked.wait().unwrap();
        assert_eq!(resolved.destination.number(), endpoint.number());
        assert_eq!(&resolved.data.bytes()[..4], b"you\0");
    }
    // A task takes requests, too; one that is dropped, or refused, has no endpoint.
    let asked = client.resolve(host.address(1), PORT);
    let foreign = endpoint(&host, 0);
    assert_eq!(block_on(listener.accept()).unwrap().answer(&foreign), Err(AnswerError::Foreign));
    assert_eq!(asked.wait(), Err(ResolveError::NoEndpoint));
    let asked = client.resolve(host.address(1), PORT);
    let long = listener.wait().unwrap().answer_with(&endpoints[0], &[0; 137]);
    assert_eq!(long, Err(AnswerError::PrivateData(136)));
    assert_eq!(asked.wait(), Err(ResolveError::NoEndpoint));
    // Nor has one that waits when the listener is dropped; a marker has come behind it.
    let marker = server.nic().listen_for_datagrams(PORT + 1).unwrap();
    let (waits, marked) = (client.resolve(host.address(1), PORT), client.resolve(host.address(1), PORT + 1));
    drop(marker.wait().unwrap());
    assert_eq!(marked.wait(), Err(ResolveError::NoEndpoint));
    listener.close().unwrap();
    assert_eq!(waits.wait(), Err(ResolveError::NoEndpoint));
    assert_eq!(client.resolve(host.address(1), PORT).wait(), Err(ResolveError::NoService));
    host.agents[1].close();
    assert_eq!(marker.wait().err(), Some(CreateError::Closed));
    drop((marker, endpoints, server));
}
