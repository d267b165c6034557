//! Posts and polls of the API for Rust programmers.

use std::hint::black_box;

use host::Machine;
use kernel_agent::{Agent, Config};
use rdma::{Access, Completion, Nic};

use crate::calls::values::{poll, receive, write, write_batch};
use crate::samples::Recorder;

pub const ROWS: &[&str] =
    &["rdma_post_write", "rdma_post_write_batch", "rdma_post_recv", "rdma_poll", "rdma_poll_16"];

/// Requests that an endpoint can have outstanding.
const DEPTH: u32 = 64;
/// Writes of a batch.
const BATCH: usize = 16;
/// Operations before the one that is counted, so that caches and allocations are warm.
const WARM: usize = 3;
const PORT: u16 = 4711;

pub fn count(rows: &mut Recorder) {
    let machine: &'static Machine = Box::leak(Box::new(Machine::new(1)));
    let agent = Agent::open(machine.platform(), machine.transport(0), 0, Config::default()).expect("a NIC");
    let nic = Nic::open(&agent).expect("an opening");
    let domain = nic.domain().expect("a domain");
    let endpoint = || domain.endpoint().sends(DEPTH).receives(DEPTH).build().expect("an endpoint");
    let (a, b) = (endpoint(), endpoint());
    let listener = nic.listen(PORT).expect("a listener");
    let connecting = a.connect(nic.address(), PORT);
    listener.wait().expect("a request").accept(&b).wait().expect("a connection");
    connecting.wait().expect("a connection");
    let memory = domain.shared_region(4096, Access::WRITE).expect("a region");
    let to = black_box(memory.remote().expect("peers may write").from(1024));
    let mut one = [Completion::EMPTY];
    let mut several = [Completion::EMPTY; BATCH];
    let mut device = machine.pause();
    for round in 0..=WARM {
        let last = round == WARM;
        let mut counted =
            |key, of, run: &mut dyn FnMut()| if last { rows.count(key, of, run) } else { run() };
        counted("rdma_post_write", 1, &mut || write(&a, &memory, to, black_box(7)));
        device.step();
        counted("rdma_poll", 1, &mut || assert!(poll(a.queue(), &mut one) == 1));
        counted("rdma_post_write_batch", BATCH, &mut || {
            write_batch(&a, &memory, to, black_box(BATCH as u64))
        });
        device.step();
        counted("rdma_poll_16", BATCH, &mut || assert!(poll(a.queue(), &mut several) == BATCH));
        counted("rdma_post_recv", 1, &mut || receive(&b, &memory, black_box(7)));
        device.step();
    }
}
