use std::error::Error;

use ferrovia::rdma::{Address, Domain, Endpoint};

/// Asks by a word of text, and goes on with RDMA if the answer is "y".
pub fn ask_by_text(domain: &Domain, server: Address) -> Result<Endpoint, Box<dyn Error>> {
    let stream = domain.nic().connect_stream(server, 4711).wait()?;
    stream.send(b"RDMA?").wait()?;
    let mut answer = [0];
    // 0 bytes: the peer sends no more.
    if stream.receive(&mut answer).wait()? != 1 || answer != *b"y" {
        return Err("no RDMA".into());
    }
    let endpoint = domain.endpoint().build()?;
    stream.convert(&endpoint).wait()?;
    Ok(endpoint)
}
