//! A server for many clients, whose messages share one queue of buffers:
//! `cargo run -p ferrovia --example shared_receives`.

use std::error::Error;
use std::thread;

use ferrovia::rdma::{Address, Completion, Domain, Nic, Queue, SharedReceives};
use ferrovia::{Agent, Config};

const CLIENTS: usize = 20;

/// Connects, sends one message, and waits until the server has enough.
fn client(domain: &Domain, server: Address, number: usize) -> Result<(), Box<dyn Error>> {
    let endpoint = domain.endpoint().build()?;
    endpoint.connect(server, 4711).wait()?;
    let memory = domain.region(64)?;
    let len = memory.slice(..).write(format!("client {number} was here").as_bytes());
    endpoint.send(memory.slice(..len))?.wait()?;
    Ok(endpoint.wait_closed(None)?)
}

/// Takes a message of each client, whoever comes first.
fn take(queue: &Queue, buffers: &SharedReceives) -> Result<(), Box<dyn Error>> {
    let (mut done, mut messages) = ([Completion::EMPTY; 8], 0);
    while messages < CLIENTS {
        queue.wait(None)?;
        let count = queue.poll(&mut done);
        // A message gives its buffer back when it is dropped.
        for message in done[..count].iter().filter_map(|completion| buffers.message(completion)) {
            println!("{}", String::from_utf8_lossy(&message.slice().to_vec()));
            messages += 1;
        }
    }
    Ok(())
}

/// Boots, and serves all clients.
pub fn main() -> Result<(), Box<dyn Error>> {
    let machine = host::Machine::new(2);
    let open = |n| Agent::open(machine.platform(), machine.transport(n), n as u32, Config::default());
    let (a, b) = (Nic::open(&open(0)?)?.domain()?, Nic::open(&open(1)?)?.domain()?);
    // Four buffers for all clients. The completions come to one queue.
    let (buffers, queue) = (b.shared_receives(4, 64)?, b.nic().queue(1024)?);
    let (listener, server) = (b.nic().listen(4711)?, b.nic().address());
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let a = &a;
            scope.spawn(move || client(a, server, number).expect("a client that is served"));
        }
        let accept = |_| -> Result<_, Box<dyn Error>> {
            let endpoint = b.endpoint().shared(&buffers).queue(&queue).build()?;
            listener.wait()?.accept(&endpoint).wait()?;
            Ok(endpoint)
        };
        let endpoints: Vec<_> = (0..CLIENTS).map(accept).collect::<Result<_, _>>()?;
        take(&queue, &buffers)?;
        // Ends the connections.
        drop(endpoints);
        Ok(())
    })
}
