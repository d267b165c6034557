//! Requests: posted, started and batched; what completes, and who hears of it.

use std::future::Future;
use std::pin::pin;
use std::task::Context;
use std::thread;
use std::time::Duration;

use ferrovia_rdma::{
    Access, Completion, CreateError, Operation, PostError, RemoteMemory, RequestError, Work,
};

use crate::support::{Host, PORT, block_on, pair, poll, waker};

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

infiniband! {
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

infiniband! {
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
}

infiniband! {
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
fn an_endpoint_for_posted_requests_starts_none() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let domain = nic.domain().unwrap();
    let build = || domain.endpoint().posted_only().build().unwrap();
    let (a, b) = (build(), build());
    let listener = nic.listen(PORT).unwrap();
    let connecting = a.connect(host.address(0), PORT);
    listener.wait().unwrap().accept(&b).wait().unwrap();
    connecting.wait().unwrap();
    let memory = domain.region(64).unwrap();
    assert_eq!(a.send(memory.slice(..8)).err(), Some(PostError::NotStarted));
    assert_eq!(b.receive(memory.slice(..8)).err(), Some(PostError::NotStarted));
    b.post_receive(memory.slice(..8), 1).unwrap();
    a.post(Work::send(memory.slice(8..16)).id(2)).unwrap();
    assert_eq!((poll(&a, 1)[0].id(), poll(&b, 1)[0].id()), (2, 1));
}

infiniband! {
/// A poll of one place, or of several, returns what came in order, whatever of it takes the fast
/// path: plain ends, immediate data, invalidated keys, ends that somebody waits for.
#[test]
fn a_poll_returns_every_kind_of_end_in_order() {
    let host = Host::new(1);
    let nic = host.nic(0);
    let domain = nic.domain().unwrap();
    let build = || domain.endpoint().privileged(host.machine.privileged()).build().unwrap();
    let (a, b) = (build(), build());
    let listener = nic.listen(PORT).unwrap();
    let connecting = a.connect(host.address(0), PORT);
    listener.wait().unwrap().accept(&b).wait().unwrap();
    connecting.wait().unwrap();
    let memory = domain.region(256).unwrap();
    let mut fast = b.fast_region().unwrap();
    for places in [1, 2, 3, 16] {
        let to = fast.link(memory.slice(128..), Access::WRITE).unwrap();
        let first = b.receive(memory.slice(..8)).unwrap();
        (1..=6).for_each(|id| b.post_receive(memory.slice(8..16), id).unwrap());
        let send = |work: Work<'_>| a.start(work).unwrap().wait().unwrap();
        // The link is executed before its peer hears of it.
        let hears = a.receive(memory.slice(32..40)).unwrap();
        b.send(memory.slice(..8)).unwrap().wait().unwrap();
        hears.wait().unwrap();
        let last = b.receive(memory.slice(16..24)).unwrap();
        for work in [
            Work::send(memory.slice(24..32)),
            Work::send(memory.slice(24..32)),
            Work::send(memory.slice(24..32)).immediate(5),
            Work::write(memory.slice(24..30), to).immediate(6),
            Work::send_and_invalidate(memory.slice(24..28), to.key()),
            Work::send(memory.slice(24..25)),
            Work::send(memory.slice(24..26)),
            Work::send(memory.slice(24..27)),
        ] {
            send(work);
        }
        let (mut into, mut all) = ([Completion::EMPTY; 16], Vec::new());
        while all.len() < 6 {
            let came = b.queue().poll(&mut into[..places]);
            all.extend_from_slice(&into[..came]);
        }
        first.wait().unwrap();
        assert!(fast.is_ended_by(&all[3]));
        assert_eq!(last.wait().map(|done| done.len), Ok(3));
        let found: Vec<_> = all
            .iter()
            .map(|done| {
                let invalidated = done.invalidated().is_some();
                (done.id(), done.result(), done.immediate(), invalidated, done.written())
            })
            .collect();
        assert_eq!(
            found,
            [
                (1, Ok(8), None, false, None),
                (2, Ok(8), Some(5), false, None),
                (3, Ok(0), Some(6), false, Some(6)),
                (4, Ok(4), None, true, None),
                (5, Ok(1), None, false, None),
                (6, Ok(2), None, false, None),
            ],
            "{places}"
        );
    }
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
        let (waker, wakes) = waker();
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

infiniband! {
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
}

#[test]
fn a_full_queue_is_no_obstacle_if_nobody_waits_for_what_has_ended() {
    let host = Host::new(1);
    let (a, b) = pair(&host);
    let (from, into) = (region!(a, 8, Access::empty()), region!(b, 8, Access::WRITE));
    for _ in 0..100 {
        let mut refused = 0_u64;
        while let Err(error) = a.write(from.slice(..), into.remote().unwrap()).map(drop) {
            // The device has not executed the Writes before yet.
            assert_eq!(error, PostError::Full);
            refused += 1;
            assert!(refused < 100_000_000, "the queue stays full");
            a.queue().poll(&mut [Completion::EMPTY]);
            thread::yield_now();
        }
    }
}
