//! A device that refuses a command: what the agent says, and that nothing has changed.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::scene::*;
use host::fake::{Fake, identity, success};
use kernel_agent::{Agent, Config, CqSlot, Error, PostError, Resource, SlotParams, Upcalls};
use nic_abi::admin::{CreateCq, NO_FIELD, Opcode, QpState, Response, Status};
use nic_abi::wqe::LinkFlags;
use nic_hal::CommandError;

/// A device that answers the commands of one kind by `status` while the flag is set.
fn refusing(opcode: Opcode, status: Status) -> (Scene, Arc<AtomicBool>) {
    let refuses = Arc::new(AtomicBool::new(false));
    let flag = refuses.clone();
    let scene = Scene::on(move |command| {
        let refused = command.opcode == opcode as u16 && flag.load(Ordering::Acquire);
        let status = if refused { status } else { Status::Success };
        success(command).map(|answer| Response { status: status as u16, ..answer })
    });
    (scene, refuses)
}

#[test]
fn the_answer_to_a_command_decides_the_error() {
    let opcode = Opcode::CreatePd;
    let other = |status| Error::Command(CommandError { opcode, status, field: NO_FIELD });
    let cases = [
        (Status::Busy, Error::Busy),
        (Status::NoResources, Error::NoResources(Resource::Device)),
        (Status::Dma, Error::NotReachable),
        (Status::BadState, other(Status::BadState)),
        (Status::BadField, other(Status::BadField)),
    ];
    for (status, error) in cases {
        let (scene, refuses) = refusing(opcode, status);
        refuses.store(true, Ordering::Release);
        assert_eq!(scene.client.create_pd().err(), Some(error));
        assert_eq!(scene.agent.counts().pds, 0);
        refuses.store(false, Ordering::Release);
        scene.client.create_pd().unwrap();
    }
}

#[test]
fn a_region_that_is_not_linked_is_told_from_other_reasons_to_refuse_its_change() {
    let opcode = Opcode::ModifyRegion;
    let other = Error::Command(CommandError { opcode, status: Status::BadField, field: NO_FIELD });
    for (status, error) in
        [(Status::BadState, Error::NotLinked), (Status::Busy, Error::Busy), (Status::BadField, other)]
    {
        let (scene, refuses) = refusing(opcode, status);
        let pd = scene.client.create_pd().unwrap();
        let region = scene.client.allocate_region(&pd, 4).unwrap();
        refuses.store(true, Ordering::Release);
        assert_eq!(region.modify(None, Some(LinkFlags::LOCAL_READ)), Err(error));
        assert_eq!(region.modify_in_place(None, Some(LinkFlags::LOCAL_READ)), Err(error));
    }
}

#[test]
fn a_queue_pair_whose_reset_is_refused_takes_requests_as_before() {
    let (scene, refuses) = refusing(Opcode::ModifyQp, Status::BadField);
    let slotted = scene.slotted(1);
    slotted.to(QpState::Rtr);
    slotted.to(QpState::Rts);
    refuses.store(true, Ordering::Release);
    assert!(slotted.qp.to_reset().is_err());
    assert_eq!(slotted.qp.state(), QpState::Rts);
    assert!(slotted.post(HANDLE, |limits| limits.read, 1).is_some());
    assert_eq!(slotted.qp.outstanding(), (1, 0));
    refuses.store(false, Ordering::Release);
    slotted.qp.to_reset().unwrap();
    assert!(slotted.post(HANDLE, |limits| limits.read, 1).is_none());
}

#[test]
fn a_batch_is_refused_for_the_state_of_the_queue_pair_before_it_is_for_another_batch() {
    let scene = Scene::new();
    let (qp, ..) = scene.qp(1);
    assert_eq!(qp.why_no_batch(), PostError::State, "in INIT");
    to(&qp, QpState::Rtr);
    to(&qp, QpState::Rts);
    assert_eq!(qp.why_no_batch(), PostError::Busy, "ready to send");
    qp.destroy().unwrap();
    assert_eq!(qp.why_no_batch(), PostError::Gone);
}

#[test]
fn a_cq_whose_slot_is_taken_stays_neither_in_the_device_nor_in_the_table() {
    let fake = Fake::new(identity(), success);
    let config = Config { max_cqs: 2, ..Config::default() };
    let agent = Agent::open(fake.platform.clone(), fake.transport(), 0, config).unwrap();
    let upcalls: Arc<dyn Upcalls> = Arc::new(Counting::default());
    let client = agent.attach(Arc::downgrade(&upcalls)).unwrap();
    let slot = Arc::<CqSlot>::default();
    let create = || client.create_cq_in(16, 1, SlotParams { slot: &slot, handle: HANDLE, closed: 0 });
    let first = create().unwrap();
    for _ in 0..3 {
        assert_eq!(create().err(), Some(Error::Busy));
        let (number, _) = fake.last::<CreateCq>(Opcode::CreateCq);
        let (destroyed, _) = fake.last::<[u8; 8]>(Opcode::DestroyCq);
        assert_eq!((destroyed, agent.counts().cqs), (number, 1));
        assert_ne!(number, first.number());
    }
    first.destroy().unwrap();
    create().unwrap();
    client.detach();
    agent.close();
}
