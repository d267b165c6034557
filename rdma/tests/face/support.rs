//! A machine with agents, an executor, two connected endpoints.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use ferrovia_rdma::{Access, Address, Completion, Endpoint, Nic, Queue};
use host::Machine;
use kernel_agent::{Agent, Config, Counts};

pub const PORT: u16 = 4711;

/// A machine with agents on its NICs. The agents are closed at the end, and nothing is left.
pub struct Host {
    pub machine: Machine,
    pub agents: Vec<Arc<Agent>>,
}

impl Host {
    pub fn new(nics: u8) -> Host {
        let machine = Machine::new(nics);
        let open = |(number, device)| {
            Agent::open(machine.platform(), device, number, Config::default()).expect("a NIC")
        };
        let agents = (0..).zip(machine.transports()).map(open).collect();
        Host { machine, agents }
    }

    pub fn nic(&self, number: usize) -> Nic {
        Nic::open_over(&self.agents[number], crate::TRANSPORT).expect("an opening")
    }

    pub fn address(&self, number: usize) -> Address {
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
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
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

/// A waker, and what tells that it was called.
pub fn waker() -> (Waker, Receiver<()>) {
    struct Tell(Sender<()>);
    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    let (woken, wakes) = channel();
    (Waker::from(Arc::new(Tell(woken))), wakes)
}

/// Two connected endpoints, each on a domain of its own.
pub fn pair(host: &Host) -> (Endpoint, Endpoint) {
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

/// Tells the peer that what was posted before has been executed.
pub fn settle(owner: &Endpoint, peer: &Endpoint) {
    let (from, into) = (region!(owner, 8, Access::empty()), region!(peer, 8, Access::empty()));
    let receive = peer.receive(into.slice(..)).unwrap();
    owner.send(from.slice(..)).unwrap().wait().unwrap();
    receive.wait().unwrap();
}

/// Polls until so many completions have come.
pub fn poll(endpoint: &Endpoint, count: usize) -> Vec<Completion> {
    poll_queue(endpoint.queue(), count)
}

/// As [`poll`], of a queue.
pub fn poll_queue(queue: &Queue, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
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
