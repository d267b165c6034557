//! A server that answers datagrams of anybody, without connections:
//! `cargo run -p ferrovia --example datagrams`.

use std::error::Error;
use std::thread;
use std::time::Duration;

use ferrovia::rdma::{Address, DatagramEndpoint, Domain, Nic};
use ferrovia::{Agent, Config};

const CLIENTS: usize = 5;

/// Answers each datagram by its length.
fn server(endpoint: &DatagramEndpoint) -> Result<(), Box<dyn Error>> {
    let memory = endpoint.domain().region(2048)?;
    let (inbox, outbox) = (memory.slice(..1024), memory.slice(1024..));
    for _ in 0..CLIENTS {
        let datagram = endpoint.receive(inbox)?.wait()?;
        let len = outbox.write(format!("{} bytes", datagram.len).as_bytes());
        let to = endpoint.to(datagram.sender.ok_or("a datagram has a sender")?)?;
        endpoint.send(outbox.get(..len).ok_or("it fits")?, to)?.wait()?;
    }
    Ok(())
}

/// Asks until an answer comes: a datagram may be lost, here if the server has no Receive posted.
fn client(domain: &Domain, server: Address, number: usize) -> Result<String, Box<dyn Error>> {
    let (endpoint, memory) = (domain.datagrams().build()?, domain.region(2048)?);
    let to = domain.nic().resolve(server, 4711).wait()?.destination;
    let (question, inbox) = (memory.slice(..10 * number), memory.slice(1024..));
    let mut answer = endpoint.receive(inbox)?;
    let answered = loop {
        endpoint.send(question, to)?.wait()?;
        match answer.wait_timeout(Duration::from_millis(20)) {
            Ok(done) => break done?,
            Err(waits) => answer = waits,
        }
    };
    Ok(String::from_utf8(inbox.get(..answered.len).ok_or("it fits")?.to_vec())?)
}

/// Boots, and asks a few times.
pub fn main() -> Result<(), Box<dyn Error>> {
    let machine = host::Machine::new(2);
    let open = |n| Agent::open(machine.platform(), machine.transport(n), n as u32, Config::default());
    let (a, b) = (Nic::open(&open(0)?)?.domain()?, Nic::open(&open(1)?)?.domain()?);
    let endpoint = b.datagrams().build()?;
    // Peers that ask for this service are told of the endpoint.
    let _service = endpoint.serve(4711)?;
    thread::scope(|scope| {
        scope.spawn(|| server(&endpoint).expect("a server that answers"));
        for number in 0..CLIENTS {
            println!("{}", client(&a, b.nic().address(), number)?);
        }
        Ok(())
    })
}
