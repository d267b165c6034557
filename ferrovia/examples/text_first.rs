//! Two peers agree by lines of text over TCP, and go on with RDMA on the same stream:
//! `cargo run -p ferrovia --example text_first`.

use std::error::Error;
use std::thread;

use ferrovia::rdma::{Address, Domain, Nic, Stream, StreamListener, Transport};
use ferrovia::{Agent, Config};

/// The next line, and nothing of what is behind it.
fn line(stream: &Stream) -> Result<String, Box<dyn Error>> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while stream.receive(&mut byte).wait()? == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    Ok(String::from_utf8(line)?)
}

fn server(domain: &Domain, listener: &StreamListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stream = listener.wait()?;
    assert_eq!(line(&stream).map_err(|error| error.to_string())?, "HELLO rdma");
    let (endpoint, memory) = (domain.endpoint().build()?, domain.region(4096)?);
    let message = endpoint.receive(memory.slice(..))?;
    // Behind this line the client speaks RDMA.
    stream.convert_after(&endpoint, b"GO\n").wait()?;
    let len = message.wait()?.len;
    endpoint.send(memory.slice(..len))?.wait()?;
    endpoint.wait_closed(None)?;
    Ok(())
}

fn client(domain: &Domain, server: Address) -> Result<String, Box<dyn Error>> {
    let stream = domain.nic().connect_stream(server, 4711).wait()?;
    stream.send(b"HELLO rdma\n").wait()?;
    assert_eq!(line(&stream)?, "GO");
    let (endpoint, memory) = (domain.endpoint().build()?, domain.region(4096)?);
    stream.convert(&endpoint).wait()?;
    let echo = endpoint.receive(memory.slice(2048..))?;
    let len = memory.slice(..).write(b"no copies from here on");
    endpoint.send(memory.slice(..len))?.wait()?;
    let len = echo.wait()?.len;
    Ok(String::from_utf8(memory.slice(2048..2048 + len).to_vec())?)
}

/// Boots, and runs both peers.
pub fn main() -> Result<(), Box<dyn Error>> {
    let machine = host::Machine::new(2);
    let open = |n| Agent::open(machine.platform(), machine.transport(n), n as u32, Config::default());
    let domain = |agent| Nic::open_over(&agent, Transport::Iwarp)?.domain();
    let (a, b) = (domain(open(0)?)?, domain(open(1)?)?);
    let (listener, address) = (b.nic().listen_for_streams(4711)?, b.nic().address());
    let serving = thread::spawn(move || server(&b, &listener).expect("a server that serves"));
    println!("{}", client(&a, address)?);
    serving.join().map_err(|_| "the server panicked".into())
}
