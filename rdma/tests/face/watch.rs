//! One thread that serves many: wakers of queues, listeners and connections.

use std::sync::{Arc, Condvar, Mutex};
use std::task::{Wake, Waker};

use ferrovia_rdma::{
    Access, Completion, ConnectError, CreateError, Domain, Ending, Endpoint, Listener, Nic, Operation,
    PostError, Work,
};

use crate::support::{Host, PORT};

/// Counts how often it was woken.
#[derive(Default)]
struct Bell {
    rung: Mutex<u32>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

impl Bell {
    fn waker(self: &Arc<Bell>) -> Waker {
        Waker::from(self.clone())
    }

    fn rung(&self) -> u32 {
        *self.rung.lock().unwrap()
    }

    /// Waits until `look` finds something, and looks only when the bell has rung.
    fn wait_for<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let seen = self.rung();
            if let Some(found) = look() {
                return found;
            }
            let rung = self.rung.lock().unwrap();
            drop(self.changed.wait_while(rung, |rung| *rung == seen).unwrap());
        }
    }
}

/// The one completion that has come, or comes after the queue is armed.
fn next(bell: &Bell, queue: &ferrovia_rdma::Queue) -> Completion {
    let mut done = [Completion::EMPTY];
    bell.wait_for(|| {
        while queue.poll(&mut done) == 0 {
            if !queue.arm() {
                return None;
            }
        }
        Some(done[0])
    })
}

/// Connects an endpoint with one of a domain that listens.
fn connect(asks: &Endpoint, listener: &Listener, takes: &Endpoint) {
    let connecting = asks.connect(listener_address(takes), PORT);
    listener.wait().unwrap().accept(takes).wait().unwrap();
    connecting.wait().unwrap();
}

fn listener_address(takes: &Endpoint) -> ferrovia_rdma::Address {
    takes.domain().nic().address()
}

#[test]
fn one_waker_tells_of_requests_for_connections_their_changes_and_completions() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0).domain().unwrap(), host.nic(1).domain().unwrap());
    let bell = Arc::new(Bell::default());
    let listener = server.nic().listen(PORT).unwrap();
    listener.watch(bell.waker());
    let takes = server.endpoint().watch(bell.waker()).build().unwrap();
    let asks = client.endpoint().build().unwrap();
    let connecting = asks.connect(server.nic().address(), PORT);
    let incoming = bell.wait_for(|| listener.try_accept());
    incoming.accept(&takes).begun().unwrap();
    bell.wait_for(|| takes.is_connected().then_some(()));
    // Over iWARP the peer may be connected first.
    connecting.wait().unwrap();
    assert!(takes.outcome().is_some_and(|outcome| outcome.is_ok()) && !takes.is_closed());

    let queue = takes.queue();
    queue.watch(bell.waker());
    let (from, into) = (region!(asks, 8, Access::empty()), region!(takes, 8, Access::empty()));
    let send = || {
        takes.post_receive(into.slice(..), 7).unwrap();
        asks.send(from.slice(..)).unwrap().wait().unwrap();
    };
    // Nobody is woken for what comes while the queue is not armed, but hears of it when it is.
    send();
    while !queue.arm() {}
    assert_eq!(next(&bell, queue).id(), 7);
    // Once: the second message rings no bell.
    assert!(!queue.arm());
    let rung = bell.rung();
    send();
    bell.wait_for(|| (bell.rung() > rung).then_some(()));
    send();
    assert_eq!((next(&bell, queue).id(), next(&bell, queue).id()), (7, 7));
    send();
    assert_eq!(next(&bell, queue).result(), Ok(8));

    asks.disconnect();
    bell.wait_for(|| takes.is_closed().then_some(()));
    // The attempt has succeeded, and the connection has ended.
    assert!(takes.outcome().is_some_and(|outcome| outcome.is_ok()));
    assert_eq!((takes.is_connected(), takes.ending()), (false, Some(Ending::ByPeer)));
}

#[test]
fn receives_may_end_in_a_queue_of_their_own_and_are_posted_then() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0).domain().unwrap(), host.nic(1).domain().unwrap());
    let (requests, arrivals) = (server.nic().queue(32).unwrap(), server.nic().queue(32).unwrap());
    let listener = server.nic().listen(PORT).unwrap();
    let foreign = server.endpoint().receive_queue(&client.nic().queue(2).unwrap()).build();
    assert_eq!(foreign.err(), Some(CreateError::Foreign));
    let takes = server.endpoint().queue(&requests).receive_queue(&arrivals).build().unwrap();
    let asks = client.endpoint().build().unwrap();
    connect(&asks, &listener, &takes);
    let (from, into) = (region!(asks, 16, Access::empty()), region!(takes, 16, Access::empty()));
    assert_eq!(takes.receive(into.slice(..)).err(), Some(PostError::NotStarted));
    takes.post_receive(into.slice(..8), 1).unwrap();
    let answer = asks.receive(from.slice(8..)).unwrap();
    asks.send(from.slice(..8)).unwrap().wait().unwrap();
    takes.post(Work::send(into.slice(..8)).id(2)).unwrap();
    answer.wait().unwrap();
    for (queue, operation, id) in [(&arrivals, Operation::Receive, 1), (&requests, Operation::Send, 2)] {
        queue.wait(None).unwrap();
        let mut done = [Completion::EMPTY; 2];
        assert_eq!(queue.poll(&mut done), 1);
        assert_eq!((done[0].operation(), done[0].id(), done[0].result()), (operation, id, Ok(8)));
    }
    // A started request completes beside it, and messages that came before a drop stay.
    takes.post_receive(into.slice(..8), 3).unwrap();
    asks.send(from.slice(..8)).unwrap().wait().unwrap();
    arrivals.wait(None).unwrap();
    drop(takes);
    let mut done = [Completion::EMPTY; 2];
    assert_eq!((arrivals.poll(&mut done), done[0].id()), (1, 3));
}

#[test]
fn who_asks_learns_why_it_was_rejected_and_who_is_asked_what_the_peer_serves() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0).domain().unwrap(), host.nic(1).domain().unwrap());
    let listener = server.nic().listen(PORT).unwrap();
    let asks = client.endpoint().reads(0).served_reads(3).build().unwrap();
    assert_eq!(asks.outcome(), None);
    let connecting = asks.connect(server.nic().address(), PORT);
    let incoming = listener.wait().unwrap();
    assert_eq!(incoming.reads(), 3);
    incoming.reject(b"full").unwrap();
    assert_eq!(connecting.wait(), Err(ConnectError::Rejected));
    assert_eq!(asks.rejection().map(|data| &data.bytes()[..4]), Some(&b"full"[..]));
    assert!(asks.is_closed());
    assert_eq!(asks.connect(server.nic().address(), PORT).begun(), Err(ConnectError::Used));
}

#[test]
fn an_opening_is_alone_when_all_that_was_made_of_it_is_gone() {
    let host = Host::new(1);
    let nic = host.nic(0);
    assert!(nic.is_alone());
    keeps_open(&nic, |domain| domain.clone());
    keeps_open(&nic, |domain| domain.region(8).unwrap());
    keeps_open(&nic, |domain| domain.endpoint().build().unwrap());
    keeps_open(&nic, |domain| domain.nic().queue(2).unwrap());
    keeps_open(&nic, |domain| domain.nic().listen(PORT).unwrap());
}

fn keeps_open<T>(nic: &Nic, make: impl FnOnce(&Domain) -> T) {
    let made = make(&nic.domain().unwrap());
    assert!(!nic.is_alone());
    drop(made);
    assert!(nic.is_alone());
}
