use ferrovia::rdma::{Completion, CreateError, Domain, Endpoint, Queue, SharedReceives};

/// Buffers for the messages of all clients, and the queue where their completions arrive.
pub fn pool(domain: &Domain) -> Result<(SharedReceives, Queue), CreateError> {
    Ok((domain.shared_receives(256, 2048)?, domain.nic().queue(4096)?))
}

/// The endpoint of one more client.
pub fn client(domain: &Domain, pool: &(SharedReceives, Queue)) -> Result<Endpoint, CreateError> {
    domain.endpoint().sends(8).shared(&pool.0).queue(&pool.1).build()
}

/// Takes what has come, without blocking: each message, and the endpoint that it came to.
pub fn take((buffers, queue): &(SharedReceives, Queue), mut each: impl FnMut(u64, &[u8])) {
    let mut completions = [Completion::EMPTY; 32];
    let count = queue.poll(&mut completions);
    for completion in &completions[..count] {
        if let Some(message) = buffers.message(completion) {
            // Its buffer is posted again at the end of this block.
            each(completion.endpoint(), &message.slice().to_vec());
        }
    }
}
