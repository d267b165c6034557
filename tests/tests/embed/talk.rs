use std::error::Error;

use ferrovia::rdma::{Access, Address, Domain, Listener, RemoteMemory};

/// Takes a message, and lets the peer write the rest of what it has to say.
pub fn serve(domain: &Domain, listener: &Listener) -> Result<Vec<u8>, Box<dyn Error>> {
    let (endpoint, inbox) = (domain.endpoint().build()?, domain.region(64)?);
    let store = domain.shared_region(4096, Access::WRITE)?;
    // The receive is posted before the peer can send.
    let message = endpoint.receive(inbox.slice(..))?;
    // A few bytes go along with the handshake: here, what the peer may write.
    let place = store.remote().ok_or("peers may write it")?.to_bytes();
    listener.wait()?.accept_with(&endpoint, &place).wait()?;
    let mut all = inbox.slice(..message.wait()?.len).to_vec();
    // The number that comes with a Write tells that its bytes are there.
    let written = endpoint.receive(inbox.slice(..0))?;
    endpoint.send(inbox.slice(..0))?.wait()?;
    let len = written.wait()?.written.ok_or("a write")?;
    all.extend(store.get(..len).ok_or("as much as fits")?.to_vec());
    endpoint.wait_closed(None)?;
    Ok(all)
}

/// The other side.
pub fn ask(domain: &Domain, server: Address) -> Result<(), Box<dyn Error>> {
    use ferrovia::rdma::Work;
    let (endpoint, memory) = (domain.endpoint().build()?, domain.region(4096)?);
    let answer = endpoint.connect(server, 4711).wait()?;
    let place = RemoteMemory::from_bytes(answer.bytes()).ok_or("a short answer")?;
    let go = endpoint.receive(memory.slice(..0))?;
    memory.slice(..).write(b"hello, world");
    endpoint.send(memory.slice(..5))?.wait()?;
    go.wait()?;
    endpoint.start(Work::write(memory.slice(5..12), place).immediate(0))?.wait()?;
    Ok(())
}
