//! Virtual interfaces: descriptors in the consumer's memory, on each level, by the short cut and by
//! packets.

mod connections;
mod ends;
mod events;
mod requests;

use std::cell::Cell;
use std::rc::Rc;

use nic_abi::admin::{
    CreateQp, Injection, ModifyQp, ModifyRegion, Opcode as Command, QpMask, QpState, Status as Refused,
};
use nic_abi::doorbell::ARM_NEXT;
use nic_abi::eqe::{EventType, REFUSED};
use nic_abi::registers::Features;
use nic_abi::vi::{
    AddressSegment, Control, ControlSegment, DataSegment, MARK_COMPLETE, MARK_LOST, Reliability, Status,
    ViError,
};
use nic_abi::wqe::LinkFlags;
use nic_model::testing::{
    ALL_RIGHTS, CableEnd, MEMORY, PD, Rig, Through, VI_DATA, Vi, ViSpec, cable, vi_key,
};
use nic_model::{GuestMemory, Wire};
use roce::transport::Reason;
use zerocopy::IntoBytes;

use crate::packets::{reason, rig as wired};
use crate::unreliable::{RC_WRITE_LAST_IMMEDIATE, SEND_MIDDLE, WRITE_LAST_IMMEDIATE, losing};

const LEVELS: [Reliability; 3] = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
const RELIABLE: [Reliability; 2] = [Reliability::Delivery, Reliability::Reception];
const SEND: Control = Control::empty();
const DONE: Status = Status::DONE;
/// Enough time for a queue pair to give up.
const LONG: u64 = 1_000_000_000;

/// A fault of a descriptor on the send queue, and the status bits that report it.
type Wrong = (&'static str, fn(&mut ControlSegment, &mut Option<AddressSegment>, &mut DataSegment), Status);

/// How the two NICs reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ShortCut,
    Packets,
}

const WAYS: [Way; 2] = [Way::ShortCut, Way::Packets];

struct Scene {
    rig: Rig,
    a: Vi,
    b: Vi,
}

fn rig(way: Way) -> Rig {
    match way {
        Way::ShortCut => Rig::new(2),
        Way::Packets => wired().0,
    }
}

/// Two NICs on a cable, which loses the first NIC's next frame with the operation code in `lose`.
fn losing_rig(lose: &Rc<Cell<Option<u8>>>) -> Rig {
    let [a, b] = cable();
    Rig::wired([Box::new(losing(a, lose.clone())) as Box<dyn Wire>, Box::new(b)], 1500)
}

fn scene(way: Way, spec: ViSpec) -> Scene {
    let mut rig = rig(way);
    let [a, b] = rig.vi_pair(spec);
    rig.fill(a.data, VI_DATA as usize, 7);
    Scene { rig, a, b }
}

/// Runs the test on each of these levels, on both ways.
fn each(levels: &[Reliability], mut test: impl FnMut(Scene, Reliability, Way)) {
    for way in WAYS {
        for &level in levels {
            test(scene(way, ViSpec::new(level)), level, way);
        }
    }
}

impl Scene {
    /// Lets time pass until a descriptor is done.
    fn done(&mut self, at: u64) -> Status {
        for _ in 0..2000 {
            self.rig.run();
            let status = self.rig.vi_status(at);
            if status.contains(DONE) {
                return status;
            }
            self.rig.now += LONG / 500;
        }
        panic!("the descriptor is not done");
    }

    /// Whether the bytes at the end of a message are those of `a`'s data.
    fn arrived(&self, at: u64, length: usize) -> bool {
        self.rig.bytes(at, length) == self.rig.bytes(self.a.data, length)
    }

    fn state(&mut self, of: Vi) -> u32 {
        self.rig.query(&of.qp).state
    }

    fn errors(&mut self, n: usize) -> Vec<ViError> {
        self.rig.vi_errors(n).into_iter().map(|(error, ..)| error).collect()
    }
}
