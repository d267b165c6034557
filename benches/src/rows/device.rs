//! The device alone: it takes the doorbell, executes the requests and writes the completions. The
//! driver's side is a miniature driver and not counted.

use nic_abi::vi::{Control, Reliability};
use nic_abi::wqe::Opcode;
use nic_model::testing::{Rig, ViSpec, rdma, segment};

use crate::calls;
use crate::samples::{Recorder, Role};

pub const ROWS: &[&str] = &["device_write", "device_vi_write", "device_idle"];

pub fn count(rows: &mut Recorder) {
    queue_pair(rows);
    virtual_interface(rows);
}

fn queue_pair(rows: &mut Recorder) {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (from, _) = rig.region(0, 4096);
    let (to, _) = rig.region(1, 4096);
    let mut post = |rig: &mut Rig| {
        rig.post(&mut a, rdma(Opcode::Write, 7, to, 0), &[segment(from, 0, 64)]);
    };
    for _ in 0..3 {
        post(&mut rig);
        rig.run();
    }
    // The cost of the doorbell and of the Write: what the poll takes longer than one without work.
    post(&mut rig);
    rows.count("device_write", 1, || calls::poll(&mut rig));
    rig.run();
    rows.count_as(Role::Less, "device_write", 1, || calls::poll(&mut rig));
    rows.count("device_idle", 1, || calls::poll(&mut rig));
}

fn virtual_interface(rows: &mut Recorder) {
    let mut rig = Rig::new(2);
    let [mut a, b] = rig.vi_pair(ViSpec::new(Reliability::Reception));
    let mut post = |rig: &mut Rig| {
        rig.post_request(&mut a, Control::RDMA_WRITE, Some((b.handle, b.data)), 64);
    };
    for _ in 0..3 {
        post(&mut rig);
        rig.run();
    }
    post(&mut rig);
    rows.count("device_vi_write", 1, || calls::poll(&mut rig));
    rig.run();
    rows.count_as(Role::Less, "device_vi_write", 1, || calls::poll(&mut rig));
}
