//! An echo between two tasks: `cargo run -p ferrovia --example async_echo`. Any executor does.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use ferrovia::rdma::{Address, Domain, Listener, Nic};
use ferrovia::{Agent, Config};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

async fn server(domain: Domain, listener: Listener) -> Result<(), Box<dyn Error>> {
    let (endpoint, memory) = (domain.endpoint().build()?, domain.region(4096)?);
    let message = endpoint.receive(memory.slice(..))?;
    listener.accept().await?.accept(&endpoint).await?;
    let len = message.await?.len;
    endpoint.send(memory.slice(..len))?.await?;
    endpoint.closed().await;
    Ok(())
}

async fn client(domain: Domain, server: Address) -> Result<String, Box<dyn Error>> {
    let (endpoint, memory) = (domain.endpoint().build()?, domain.region(4096)?);
    endpoint.connect(server, 4711).await?;
    let echo = endpoint.receive(memory.slice(2048..))?;
    let len = memory.slice(..).write(b"is anybody there?");
    endpoint.send(memory.slice(..len))?.await?;
    let len = echo.await?.len;
    Ok(String::from_utf8(memory.slice(2048..2048 + len).to_vec())?)
}

/// Boots, and runs both tasks.
pub fn main() -> Result<(), Box<dyn Error>> {
    let machine = host::Machine::new(2);
    let open = |n| Agent::open(machine.platform(), machine.transport(n), n as u32, Config::default());
    let (a, b) = (Nic::open(&open(0)?)?.domain()?, Nic::open(&open(1)?)?.domain()?);
    let (listener, address) = (b.nic().listen(4711)?, b.nic().address());
    let serving = thread::spawn(|| block_on(server(b, listener)).expect("a server that serves"));
    println!("{}", block_on(client(a, address))?);
    serving.join().map_err(|_| "the server panicked".into())
}
