//! A driver on a device that a test plays, and what is posted to its queues.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use host::fake::Fake;
use nic_abi::admin::{QpFlags, QpType};
use nic_abi::wqe::{Segment, SendFlags};
use nic_hal::{Error, Nic, Operation, QpParams, Request, Shadow};

pub fn open(fake: &Fake) -> Result<Nic, Error> {
    Nic::open(fake.platform.clone(), fake.transport())
}

pub fn qp_params() -> QpParams {
    QpParams {
        qp_type: QpType::Rc,
        flags: QpFlags::empty(),
        pd: 1,
        generation: 1,
        send_cq: 3,
        receive_cq: 3,
        srq: None,
        max_send_requests: 3,
        max_send_segments: 7,
        max_receive_requests: 4,
        max_receive_segments: 3,
        eq: 0,
        owner: 0,
        max_message: 0,
    }
}

pub fn send(cookie: u64) -> Request {
    let shadow = Shadow { cookie, data: 0 };
    Request { operation: Operation::Send { immediate: None }, flags: SendFlags::empty(), shadow }
}

/// So many segments, each with other values.
pub fn pieces(count: u32) -> Vec<Segment> {
    (0..count).map(|i| Segment { addr: 0x1000 + u64::from(i), length: 10 + i, key: 0x100 + i }).collect()
}
