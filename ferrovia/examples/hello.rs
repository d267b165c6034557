//! Brings the stack up in an ordinary process, connects two endpoints and sends a message:
//! `cargo run -p ferrovia --example hello`. docs/embed.md goes through it step by step.

use std::error::Error;

use ferrovia::rdma::Nic;
use ferrovia::{Agent, Config};

/// Boots, connects, and sends a message.
pub fn main() -> Result<(), Box<dyn Error>> {
    // Boot code: a platform, and an agent for each of its NICs.
    let machine = host::Machine::new(2);
    let open = |n| Agent::open(machine.platform(), machine.transport(n), n as u32, Config::default());
    let (agent_a, agent_b) = (open(0)?, open(1)?);
    // Consumers: a domain on each NIC, and in it an endpoint and memory.
    let (a, b) = (Nic::open(&agent_a)?.domain()?, Nic::open(&agent_b)?.domain()?);
    let (client, server) = (a.endpoint().build()?, b.endpoint().build()?);
    let (outbox, inbox) = (a.region(4096)?, b.region(4096)?);
    // b listens, a connects, b accepts. The receive is posted before a message can arrive.
    let listener = b.nic().listen(4711)?;
    let connecting = client.connect(b.nic().address(), 4711);
    let receive = server.receive(inbox.slice(..))?;
    listener.wait()?.accept(&server).wait()?;
    connecting.wait()?;
    // The message.
    let message = b"hello from one NIC to the other";
    outbox.slice(..).write(message);
    client.send(outbox.slice(..message.len()))?.wait()?;
    let received = inbox.slice(..receive.wait()?.len).to_vec();
    println!("{}", String::from_utf8_lossy(&received));
    assert_eq!(received, message);
    Ok(())
}
