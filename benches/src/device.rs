//! How many instructions the device takes for a request: one poll of the model, which takes the
//! doorbell, executes the request on both NICs and writes the completions. The driver's side is not
//! counted.

#![expect(missing_docs, reason = "the benchmark macros make public items of their own")]

use gungraun::{library_benchmark, library_benchmark_group, main};
use nic_abi::wqe::Opcode;
use nic_model::testing::{Rig, header, rdma, segment};

/// Two NICs with a connected pair of queue pairs, and a request of 64 bytes (an atomic: 8) that is
/// posted and not executed. The device has executed such requests before.
fn posted(opcode: Opcode) -> &'static mut Rig {
    let rig = Box::leak(Box::new(Rig::new(2)));
    let (mut a, mut b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (to, _) = rig.region(1, 4096);
    let length = if opcode == Opcode::FetchAdd { 8 } else { 64 };
    for round in 0..4 {
        if opcode == Opcode::Send {
            rig.post_receive(&mut b, round, &[segment(to, 0, 64)]);
        }
        let head = match opcode {
            Opcode::Send => header(opcode, round),
            _ => rdma(opcode, round, to, 0),
        };
        rig.post(&mut a, head, &[segment(from, 0, length)]);
        if round < 3 {
            rig.run();
        }
    }
    rig
}

#[library_benchmark]
#[bench::rdma_write(posted(Opcode::Write))]
#[bench::rdma_read(posted(Opcode::Read))]
#[bench::send(posted(Opcode::Send))]
#[bench::fetch_and_add(posted(Opcode::FetchAdd))]
fn execute(rig: &'static mut Rig) {
    rig.step();
}

library_benchmark_group!(name = device, benchmarks = [execute]);
main!(library_benchmark_groups = device);
