use std::error::Error;

use ferrovia::rdma::{Address, Datagram, DatagramEndpoint};

/// Sends a datagram to a service, of a consumer that polls.
pub fn tell(from: &DatagramEndpoint, server: Address) -> Result<(), Box<dyn Error>> {
    let memory = from.domain().region(64)?;
    let to = from.domain().nic().resolve(server, 4711).wait()?.destination;
    let len = memory.slice(..).write(b"nobody has to listen");
    // The memory may be dropped at once: the request keeps it.
    Ok(from.post(Datagram::new(memory.slice(..len), to).id(1))?)
}
