//! The device's way over a port: the requester makes packets, the responder carries them out and
//! answers. A link in memory joins two NICs, so that a count is that of both ends together.

use nic_abi::admin::ModifyQp;
use nic_abi::wqe::Opcode;
use nic_model::testing::{Qp, QpSpec, Rig, cable, rdma, segment};

use crate::calls;
use crate::samples::Recorder;

pub const ROWS: &[&str] = &["packet_small", "packet_large"];

/// The link's MTU: packets of 4096 bytes fit.
const MTU: u32 = 4200;
const PACKET: usize = 4096;
/// Messages of one packet that are posted together.
const MESSAGES: usize = 32;
/// Packets of a large message.
const PACKETS: usize = 256;
/// Messages before those that are counted: the window has grown, and allocations are warm.
const WARM: usize = 16;

/// A queue pair that is connected to one at the other end.
fn joined(rig: &mut Rig) -> Qp {
    let ends = [0, 1].map(|n| rig.create_qp(n, QpSpec::default()));
    for (qp, peer) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        rig.init(qp);
        let ready = ModifyQp { mtu: PACKET as u32, ..rig.rtr_args(qp, peer) };
        rig.modify(qp, &ready).expect("RTR");
        let sends = rig.rts_args(qp);
        rig.modify(qp, &sends).expect("RTS");
    }
    let [a, _] = ends;
    a
}

pub fn count(rows: &mut Recorder) {
    let mut rig = Rig::wired(cable(), MTU);
    let mut a = joined(&mut rig);
    let length = PACKETS * PACKET;
    let (from, _) = rig.region(0, length as u64);
    let (to, _) = rig.region(1, length as u64);
    for round in 0..=WARM {
        let last = round == WARM;
        let mut write = |key, of, messages, length| {
            for _ in 0..messages {
                rig.post(&mut a, rdma(Opcode::Write, 7, to, 0), &[segment(from, 0, length)]);
            }
            if last {
                rows.count(key, of, || calls::run(&mut rig));
            } else {
                rig.run();
            }
            for _ in 0..messages {
                rig.sent(&mut a);
            }
        };
        write("packet_small", MESSAGES, MESSAGES, 64);
        write("packet_large", PACKETS, 1, length as u32);
    }
}
