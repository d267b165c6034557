//! Commands: which ones are refused, for which reason, and that a refused command changes nothing.

use std::mem::offset_of;

use nic_abi::admin::{
    Command, CreateCq, CreateEq, CreateQp, CreateSrq, Inject, ModifyQp, ModifySrq, Opcode, QpFlags, QpMask,
    QpState, QpType, ResizeCq, ResizeSrq, Status,
};
use nic_abi::doorbell;
use nic_abi::ident::{MAX_CQS, MAX_EQS, MAX_PDS, MAX_SRQS};
use nic_abi::registers;
use nic_abi::wqe;
use std::sync::atomic::Ordering;

use nic_model::testing::{MEMORY, PD, QpSpec, Rig, header};

const ARGS: u16 = 16;
const OBJECT: u16 = 8;

macro_rules! at {
    ($args:ty, $name:ident) => {
        ARGS + offset_of!($args, $name) as u16
    };
}

fn command(opcode: u16) -> Command {
    Command { opcode, flags: 0, id: 3, object: 0, reserved: 0, args: [0; 112] }
}

#[test]
fn a_malformed_command_is_refused() {
    let mut rig = Rig::new(1);
    let cases = [
        (command(0x7f), Status::BadOpcode, 0),
        (command(0xffff), Status::BadOpcode, 0),
        (Command { flags: 2, ..command(0) }, Status::BadField, 2),
        (Command { reserved: 1, ..command(0) }, Status::BadField, 12),
    ];
    for (command, status, field) in cases {
        let response = rig.raw_command(0, &command).expect("an answer");
        assert_eq!((response.status, response.field, response.id), (status as u16, field, 3));
    }
    assert_eq!(rig.stats(0).refused_commands, 4);
}

#[test]
fn the_admin_rings_wrap_and_answers_come_in_order() {
    let mut rig = Rig::new(1);
    for round in 0..50 {
        let indices: Vec<u32> =
            (0..16).map(|i| rig.issue(0, &Command { id: round * 16 + i, ..command(0) })).collect();
        rig.run();
        for (i, index) in indices.into_iter().enumerate() {
            assert_eq!(rig.answer(0, index).expect("an answer").id, round * 16 + i as u32);
        }
    }
}

#[test]
fn event_queue_commands_are_checked() {
    let mut rig = Rig::new(1);
    let good = CreateEq { ring: 4096, log_entries: 4, vector: 7 };
    let cases = [
        (MAX_EQS, good, Status::BadField, OBJECT),
        (0, good, Status::Exists, OBJECT),
        (3, CreateEq { log_entries: 0, ..good }, Status::BadField, at!(CreateEq, log_entries)),
        (3, CreateEq { log_entries: 18, ..good }, Status::BadField, at!(CreateEq, log_entries)),
        (3, CreateEq { log_entries: u32::MAX, ..good }, Status::BadField, at!(CreateEq, log_entries)),
        (3, CreateEq { ring: 4096 + 32, ..good }, Status::BadField, at!(CreateEq, ring)),
        (3, CreateEq { ring: MEMORY, ..good }, Status::Dma, at!(CreateEq, ring)),
        (3, CreateEq { ring: u64::MAX - 63, ..good }, Status::Dma, at!(CreateEq, ring)),
        (3, CreateEq { vector: 8, ..good }, Status::BadField, at!(CreateEq, vector)),
        (3, CreateEq { vector: 1 << 16, ..good }, Status::BadField, at!(CreateEq, vector)),
    ];
    for (number, args, status, field) in cases {
        assert_eq!(rig.command(0, Opcode::CreateEq, number, &args), Err((status, field)), "{args:?}");
    }
    assert_eq!(rig.command(0, Opcode::DestroyEq, 3, &()), Err((Status::NoSuchObject, OBJECT)));
    rig.command(0, Opcode::CreateEq, 3, &good).unwrap();
    let cq = CreateCq { ring: 8192, log_entries: 2, eq: 3, generation: 0, flags: 0 };
    rig.command(0, Opcode::CreateCq, 9, &cq).unwrap();
    assert_eq!(rig.command(0, Opcode::DestroyEq, 3, &()), Err((Status::Busy, OBJECT)));
    rig.command(0, Opcode::DestroyCq, 9, &()).unwrap();
    rig.command(0, Opcode::DestroyEq, 3, &()).unwrap();
}

#[test]
fn domain_commands_are_checked() {
    let mut rig = Rig::new(1);
    for (number, status) in [(0, Status::BadField), (MAX_PDS, Status::BadField), (PD, Status::Exists)] {
        assert_eq!(rig.command(0, Opcode::CreatePd, number, &()), Err((status, OBJECT)));
    }
    assert_eq!(rig.command(0, Opcode::DestroyPd, 8, &()), Err((Status::NoSuchObject, OBJECT)));
    rig.command(0, Opcode::CreatePd, MAX_PDS - 1, &()).unwrap();
    rig.command(0, Opcode::DestroyPd, MAX_PDS - 1, &()).unwrap();
}

#[test]
fn completion_queue_commands_are_checked() {
    let mut rig = Rig::new(1);
    let good = CreateCq { ring: 4096, log_entries: 4, eq: 0, generation: 0, flags: 0 };
    let cases = [
        (MAX_CQS, good, Status::BadField, OBJECT),
        (3, CreateCq { log_entries: 0, ..good }, Status::BadField, at!(CreateCq, log_entries)),
        (3, CreateCq { log_entries: 21, ..good }, Status::BadField, at!(CreateCq, log_entries)),
        (3, CreateCq { ring: 8, ..good }, Status::BadField, at!(CreateCq, ring)),
        (3, CreateCq { ring: MEMORY - 64, ..good }, Status::Dma, at!(CreateCq, ring)),
        (3, CreateCq { eq: 5, ..good }, Status::NoSuchObject, at!(CreateCq, eq)),
        (3, CreateCq { flags: 2, ..good }, Status::BadField, at!(CreateCq, flags)),
    ];
    for (number, args, status, field) in cases {
        assert_eq!(rig.command(0, Opcode::CreateCq, number, &args), Err((status, field)), "{args:?}");
    }
    rig.command(0, Opcode::CreateCq, 3, &good).unwrap();
    assert_eq!(rig.command(0, Opcode::CreateCq, 3, &good), Err((Status::Exists, OBJECT)));
    let resize = ResizeCq { ring: 8192, log_entries: 3, reserved: 0 };
    for (args, status, field) in [
        (ResizeCq { ring: 1, ..resize }, Status::BadField, at!(ResizeCq, ring)),
        (ResizeCq { log_entries: 0, ..resize }, Status::BadField, at!(ResizeCq, log_entries)),
        (ResizeCq { log_entries: 30, ..resize }, Status::BadField, at!(ResizeCq, log_entries)),
        (ResizeCq { reserved: 30, ..resize }, Status::BadField, at!(ResizeCq, reserved)),
    ] {
        assert_eq!(rig.command(0, Opcode::ResizeCq, 3, &args), Err((status, field)));
    }
    rig.command(0, Opcode::ResizeCq, 3, &resize).unwrap();
    for opcode in [Opcode::ResizeCq, Opcode::QueryCq, Opcode::DestroyCq] {
        assert_eq!(rig.command(0, opcode, 4, &resize), Err((Status::NoSuchObject, OBJECT)));
    }
    // With an impossible consumer index, the entries to move are unknown.
    rig.register(0, doorbell::record(registers::CQ_RECORDS, 3)).store(77, Ordering::Relaxed);
    assert_eq!(rig.command(0, Opcode::ResizeCq, 3, &resize), Err((Status::BadState, OBJECT)));
    rig.command(0, Opcode::DestroyCq, 3, &()).unwrap();
}

#[test]
fn srq_commands_are_checked() {
    let mut rig = Rig::new(1);
    let good =
        CreateSrq { ring: 4096, log_entries: 4, max_segments: 2, pd: PD, generation: 0, limit: 16, eq: 0 };
    let cases = [
        (MAX_SRQS, good, Status::BadField, OBJECT),
        (3, CreateSrq { log_entries: 17, ..good }, Status::BadField, at!(CreateSrq, log_entries)),
        (3, CreateSrq { max_segments: 33, ..good }, Status::BadField, at!(CreateSrq, max_segments)),
        (3, CreateSrq { ring: 4097, ..good }, Status::BadField, at!(CreateSrq, ring)),
        (3, CreateSrq { ring: MEMORY - 64, ..good }, Status::Dma, at!(CreateSrq, ring)),
        (3, CreateSrq { limit: 17, ..good }, Status::BadField, at!(CreateSrq, limit)),
        (3, CreateSrq { pd: 5, ..good }, Status::NoSuchObject, at!(CreateSrq, pd)),
        (3, CreateSrq { eq: 5, ..good }, Status::NoSuchObject, at!(CreateSrq, eq)),
    ];
    for (number, args, status, field) in cases {
        assert_eq!(rig.command(0, Opcode::CreateSrq, number, &args), Err((status, field)), "{args:?}");
    }
    rig.command(0, Opcode::CreateSrq, 3, &good).unwrap();
    assert_eq!(rig.command(0, Opcode::CreateSrq, 3, &good), Err((Status::Exists, OBJECT)));
    let modify = |limit, reserved| ModifySrq { limit, reserved };
    assert_eq!(
        rig.command(0, Opcode::ModifySrq, 3, &modify(17, 0)),
        Err((Status::BadField, at!(ModifySrq, limit)))
    );
    assert_eq!(
        rig.command(0, Opcode::ModifySrq, 3, &modify(1, 1)),
        Err((Status::BadField, at!(ModifySrq, reserved)))
    );
    let resize = ResizeSrq { ring: 8192, log_entries: 3, limit: 8 };
    let cases = [
        (ResizeSrq { ring: 1, ..resize }, Status::BadField, at!(ResizeSrq, ring)),
        (ResizeSrq { ring: MEMORY - 64, ..resize }, Status::Dma, at!(ResizeSrq, ring)),
        (ResizeSrq { log_entries: 17, ..resize }, Status::BadField, at!(ResizeSrq, log_entries)),
        (ResizeSrq { limit: 9, ..resize }, Status::BadField, at!(ResizeSrq, limit)),
    ];
    for (args, status, field) in cases {
        assert_eq!(rig.command(0, Opcode::ResizeSrq, 3, &args), Err((status, field)), "{args:?}");
    }
    rig.command(0, Opcode::ResizeSrq, 3, &resize).unwrap();
    assert_eq!(
        rig.command(0, Opcode::ModifySrq, 3, &modify(9, 0)),
        Err((Status::BadField, at!(ModifySrq, limit)))
    );
    for opcode in [Opcode::ModifySrq, Opcode::ResizeSrq, Opcode::QuerySrq, Opcode::DestroySrq] {
        assert_eq!(rig.command(0, opcode, 4, &modify(1, 0)), Err((Status::NoSuchObject, OBJECT)));
    }
    rig.command(0, Opcode::DestroySrq, 3, &()).unwrap();
    assert_eq!(rig.command(0, Opcode::DestroyEq, 0, &()), Ok([0; 40]));
    rig.command(0, Opcode::DestroyPd, PD, &()).unwrap();
}

#[test]
fn create_qp_is_checked() {
    let mut rig = Rig::new(1);
    let (send_cq, receive_cq) = (rig.create_cq(0, 4), rig.create_cq(0, 4));
    let good = rig.qp_args(QpSpec::default(), send_cq, receive_cq);
    let ud = CreateQp { qp_type: QpType::Ud as u32, ..good };
    let uc = CreateQp { qp_type: QpType::Uc as u32, ..good };
    let gsi = CreateQp { qp_type: QpType::Gsi as u32, ..good };
    let shared = QpFlags::SRQ.bits();
    let cases = [
        (0, good, Status::BadField, OBJECT),
        (1, good, Status::BadField, OBJECT),
        (1 << 24 | 5, good, Status::BadField, OBJECT),
        (5, gsi, Status::BadField, OBJECT),
        (1 << 14 | 1, gsi, Status::BadField, OBJECT),
        (5, CreateQp { qp_type: 6, ..good }, Status::BadField, at!(CreateQp, qp_type)),
        (5, CreateQp { flags: 4, ..good }, Status::BadField, at!(CreateQp, flags)),
        (5, CreateQp { flags: shared, receive_ring: 0, ..ud }, Status::NoSuchObject, at!(CreateQp, srq)),
        (5, CreateQp { flags: shared, receive_ring: 0, ..uc }, Status::BadField, at!(CreateQp, flags)),
        (5, CreateQp { pd: 9, ..good }, Status::NoSuchObject, at!(CreateQp, pd)),
        (5, CreateQp { send_cq: 9, ..good }, Status::NoSuchObject, at!(CreateQp, send_cq)),
        (5, CreateQp { receive_cq: 9, ..good }, Status::NoSuchObject, at!(CreateQp, receive_cq)),
        (5, CreateQp { flags: shared, ..good }, Status::BadField, at!(CreateQp, receive_ring)),
        (5, CreateQp { flags: shared, receive_ring: 0, ..good }, Status::NoSuchObject, at!(CreateQp, srq)),
        (5, CreateQp { max_send_segments: 33, ..good }, Status::BadField, at!(CreateQp, max_send_segments)),
        (
            5,
            CreateQp { max_receive_segments: 33, ..good },
            Status::BadField,
            at!(CreateQp, max_receive_segments),
        ),
        (5, CreateQp { send_ring: 1, ..good }, Status::BadField, at!(CreateQp, send_ring)),
        (5, CreateQp { send_ring: MEMORY, ..good }, Status::Dma, at!(CreateQp, send_ring)),
        (5, CreateQp { receive_ring: 1, ..good }, Status::BadField, at!(CreateQp, receive_ring)),
        (5, CreateQp { receive_ring: 1 << 60, ..good }, Status::Dma, at!(CreateQp, receive_ring)),
        (5, CreateQp { log_send_blocks: 17, ..good }, Status::BadField, at!(CreateQp, log_send_blocks)),
        (
            5,
            CreateQp { log_receive_entries: 17, ..good },
            Status::BadField,
            at!(CreateQp, log_receive_entries),
        ),
        (5, CreateQp { eq: 9, ..good }, Status::NoSuchObject, at!(CreateQp, eq)),
        (5, CreateQp { max_message: (1 << 31) + 1, ..good }, Status::BadField, at!(CreateQp, max_message)),
    ];
    for (number, args, status, field) in cases {
        assert_eq!(rig.command(0, Opcode::CreateQp, number, &args), Err((status, field)), "{args:?}");
    }
    // The refused commands have changed nothing: their object numbers are still unused.
    rig.command(0, Opcode::CreateQp, 5, &good).unwrap();
    assert_eq!(rig.command(0, Opcode::CreateQp, 1 << 14 | 5, &good), Err((Status::Exists, OBJECT)));
    for cq in [send_cq, receive_cq] {
        assert_eq!(rig.command(0, Opcode::DestroyCq, cq.number, &()), Err((Status::Busy, OBJECT)));
    }
    for opcode in [Opcode::QueryQp, Opcode::DestroyQp, Opcode::ModifyQp] {
        assert_eq!(
            rig.command(0, opcode, 1 << 14 | 5, &ModifyQp::default()),
            Err((Status::NoSuchObject, OBJECT)),
            "another generation is another queue pair"
        );
    }
    rig.command(0, Opcode::DestroyQp, 5, &()).unwrap();
    for cq in [send_cq, receive_cq] {
        rig.command(0, Opcode::DestroyCq, cq.number, &()).unwrap();
    }
    rig.command(0, Opcode::DestroyEq, 0, &()).unwrap();
    rig.command(0, Opcode::DestroyPd, PD, &()).unwrap();
}

#[test]
fn a_work_queue_may_have_a_single_entry() {
    let mut rig = Rig::new(1);
    let srq =
        CreateSrq { ring: 4096, log_entries: 0, max_segments: 0, pd: PD, generation: 0, limit: 1, eq: 0 };
    rig.command(0, Opcode::CreateSrq, 3, &srq).unwrap();
    let resize = ResizeSrq { ring: 8192, log_entries: 0, limit: 0 };
    rig.command(0, Opcode::ResizeSrq, 3, &resize).unwrap();
    let (mut a, mut b) = rig.pair_of(0, 0, QpSpec { log: 0, ..QpSpec::default() });
    rig.post_receive(&mut b, 5, &[]);
    rig.post(&mut a, header(wqe::Opcode::Send, 6), &[]);
    assert_eq!((rig.sent(&mut a).tag, rig.received(&mut b).tag), (6, 5));
}

#[test]
fn every_attribute_of_modify_qp_is_checked() {
    let mut rig = Rig::new(1);
    let qp = rig.create_qp(0, QpSpec::default());
    rig.init(&qp);
    let rtr = rig.rtr_args(&qp, &qp);
    let cases = [
        (ModifyQp { mtu: 8192, ..rtr }, at!(ModifyQp, mtu)),
        (ModifyQp { mtu: 2048, ..rtr }, at!(ModifyQp, mtu)),
        (ModifyQp { mtu: 128, ..rtr }, at!(ModifyQp, mtu)),
        (ModifyQp { mtu: 768, ..rtr }, at!(ModifyQp, mtu)),
        (ModifyQp { source_gid: 2, ..rtr }, at!(ModifyQp, source_gid)),
        (ModifyQp { flow_label: 1 << 20, ..rtr }, at!(ModifyQp, flow_label)),
        (ModifyQp { remote_qpn: 1 << 24, ..rtr }, at!(ModifyQp, remote_qpn)),
        (ModifyQp { receive_psn: 1 << 24, ..rtr }, at!(ModifyQp, receive_psn)),
        (ModifyQp { min_rnr_timer: 32, ..rtr }, at!(ModifyQp, min_rnr_timer)),
        (ModifyQp { max_dest_rd_atomic: 17, ..rtr }, at!(ModifyQp, max_dest_rd_atomic)),
        (ModifyQp { reserved: [0, 1], ..rtr }, at!(ModifyQp, reserved)),
        (ModifyQp { mask: rtr.mask | QpMask::ACCESS.bits(), access: 1, ..rtr }, at!(ModifyQp, access)),
    ];
    for (args, field) in cases {
        assert_eq!(rig.modify(&qp, &args), Err((Status::BadField, field)));
        assert_eq!(rig.query(&qp).state, QpState::Init as u32);
    }
    rig.modify(&qp, &rtr).unwrap();
    let rts = rig.rts_args(&qp);
    let cases = [
        (ModifyQp { send_psn: 1 << 24, ..rts }, at!(ModifyQp, send_psn)),
        (ModifyQp { timeout: 32, ..rts }, at!(ModifyQp, timeout)),
        (ModifyQp { retry_count: 8, ..rts }, at!(ModifyQp, retry_count)),
        (ModifyQp { rnr_retry: 8, ..rts }, at!(ModifyQp, rnr_retry)),
        (ModifyQp { max_rd_atomic: 17, ..rts }, at!(ModifyQp, max_rd_atomic)),
    ];
    for (args, field) in cases {
        assert_eq!(rig.modify(&qp, &args), Err((Status::BadField, field)));
    }
    rig.modify(&qp, &rts).unwrap();
    let late = ModifyQp { mask: QpMask::REMOTE_QPN.bits(), ..rts };
    assert_eq!(rig.modify(&qp, &late), Err((Status::BadField, at!(ModifyQp, mask))));
}

#[test]
fn injections_are_checked() {
    let mut rig = Rig::new(1);
    let inject = |what, value| Inject { what, count: 1, value };
    for (what, value, status, field) in [
        (0, 0, Status::BadField, at!(Inject, what)),
        (17, 0, Status::BadField, at!(Inject, what)),
        (10, 0, Status::BadField, at!(Inject, value)),
        (10, 14, Status::BadField, at!(Inject, value)),
        (10, 258, Status::BadField, at!(Inject, value)),
        (1, 2, Status::BadField, at!(Inject, value)),
        (8, 2, Status::BadField, at!(Inject, value)),
        (3, 0, Status::NoSuchObject, OBJECT),
        (6, 0, Status::NoSuchObject, OBJECT),
        (9, 0, Status::NoSuchObject, OBJECT),
        (11, 0, Status::NoSuchObject, OBJECT),
    ] {
        assert_eq!(rig.command(0, Opcode::Inject, 5, &inject(what, value)), Err((status, field)));
    }
}
