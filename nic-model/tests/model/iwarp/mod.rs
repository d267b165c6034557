//! iWARP: queue pairs over TCP streams, as drivers use them, by a wire and by the short cut.

mod attach;
mod data;
mod end;
mod hostile;
mod short_cut;

use nic_abi::admin::{ModifyQp, QpMask, QpState, QpType, Status as Admin, StreamFlags};
use nic_abi::eqe::{Eqe, EventType, StreamFault};
use nic_model::Wire;
use nic_model::testing::{Qp, QpSpec, Rig, cable};

use crate::streams::{ACTIVE, PASSIVE, connect_on, settle};

pub(crate) fn spec() -> QpSpec {
    QpSpec { kind: QpType::Iwarp, ..QpSpec::default() }
}

/// Arguments that give a queue pair in INIT a stream.
fn take(stream: u32, flags: StreamFlags) -> ModifyQp {
    let required = QpMask::STREAM | QpMask::MAX_RD_ATOMIC | QpMask::MAX_DEST_RD_ATOMIC;
    ModifyQp {
        mask: (QpMask::STATE | required).bits(),
        state: QpState::Rtr as u32,
        stream,
        stream_flags: flags.bits(),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ..ModifyQp::default()
    }
}

/// Takes a new queue pair to RTS over a stream.
fn join(rig: &mut Rig, qp: &Qp, stream: u32, flags: StreamFlags) {
    rig.init(qp);
    rig.modify(qp, &take(stream, flags)).expect("RTR");
    rig.set_state(qp, QpState::Rts).expect("RTS");
}

/// Two queue pairs with a connection: the first is the initiator's.
fn pair_on(rig: &mut Rig, spec: QpSpec) -> (Qp, Qp) {
    connect_on(rig);
    let (a, b) = (rig.create_qp(0, spec), rig.create_qp(1, spec));
    join(rig, &b, PASSIVE, StreamFlags::CRC | StreamFlags::RESPONDER);
    join(rig, &a, ACTIVE, StreamFlags::CRC);
    (a, b)
}

fn rig_on(wires: [impl Wire + 'static; 2]) -> (Rig, Qp, Qp) {
    let mut rig = Rig::wired(wires, 1500);
    let (a, b) = pair_on(&mut rig, spec());
    (rig, a, b)
}

fn pair() -> (Rig, Qp, Qp) {
    rig_on(cable())
}

/// Two NICs on a wire, and two on the short cut.
fn both() -> [Rig; 2] {
    [Rig::wired(cable(), 1500), Rig::new(2)]
}

/// Two queue pairs with a connection by a wire, and two by the short cut.
fn pairs() -> [(Rig, Qp, Qp); 2] {
    both().map(|mut rig| {
        let (a, b) = pair_on(&mut rig, spec());
        (rig, a, b)
    })
}

/// What a NIC says of the ends of its connections: the queue pair, the fault and the detail.
fn ends(rig: &mut Rig, n: usize) -> Vec<(u32, StreamFault, u32)> {
    let ended = |event: &Eqe| event.event == EventType::StreamEnded as u8;
    let told = |event: Eqe| {
        let fault = StreamFault::from_byte(event.status).expect("a known fault");
        (event.number, fault, event.detail)
    };
    rig.events(n).into_iter().filter(ended).map(told).collect()
}

/// How a command was refused.
fn refused(result: Result<(), (Admin, u16)>) -> Option<Admin> {
    result.err().map(|(status, _)| status)
}

/// Lets time pass until a closed stream is over.
fn wait(rig: &mut Rig) {
    for _ in 0..4 {
        settle(rig);
    }
}
