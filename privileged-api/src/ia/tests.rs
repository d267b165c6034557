use alloc::sync::Arc;

use host::Machine;
use kernel_agent::{Agent, Config, ListFault, PostError, Resource};

use super::*;
use crate::{DtoFlags, EpAttributes, EpFlags, EvdFlags, EvdHandle, EventType, LmrTriplet, Provider};

fn ia() -> (Machine, Arc<Agent>, Ia) {
    let machine = Machine::new(1);
    let agent = Agent::open(machine.platform(), machine.transport(0), 0, Config::default()).unwrap();
    let provider = Provider::new(machine.platform());
    provider.add("rnic", agent.clone()).unwrap();
    let ia = provider.ia_create("rnic", 2, 1, None).unwrap();
    (machine, agent, ia)
}

#[test]
fn each_error_of_the_agent_is_one_of_the_specification() {
    use kernel_agent::Error as Refused;
    let (_machine, agent, ia) = ia();
    let core = ia.live().unwrap();
    for (refused, error) in [
        (Refused::QpState(nic_abi::admin::QpState::Init), Error::InvalidEpState),
        (Refused::PrivateData(92), Error::InvalidPdataLength),
        (Refused::NotReachable, Error::Fault),
        (Refused::TooScattered, Error::ResourceLmrLength),
        (Refused::BadList("list"), Error::InvalidIobl),
        (Refused::NoResources(Resource::Qps), Error::Resources),
        (Refused::OutOfMemory, Error::Resources),
        (Refused::Busy, Error::Resources),
        (Refused::Gone, Error::Resources),
    ] {
        assert_eq!(core.error(refused), error, "{refused:?}");
        let gone = if refused == Refused::Gone { Error::InvalidPz } else { error };
        assert_eq!(core.gone(refused, Error::InvalidPz), gone, "{refused:?}");
    }
    for (refused, error) in [
        (PostError::QueueFull, Error::TooManyPosts),
        (PostError::State, Error::InvalidEpState),
        (PostError::Segments, Error::InvalidNumSegments),
        (PostError::Segment, Error::InvalidLmr),
        (PostError::Busy, Error::EpBusy),
        (PostError::Kind, Error::InvalidEpType),
        (PostError::LinksInFlight, Error::Resources),
        (PostError::BadList(ListFault::TooLong), Error::InvalidIobl),
        (PostError::Gone, Error::InvalidEp),
    ] {
        assert_eq!(core.not_posted(refused), error, "{refused:?}");
    }
    assert_eq!(ia.pz_create().and_then(|pz| ia.pz_free(pz)), Ok(()), "the IA is still enabled");
    ia.ia_free().unwrap();
    agent.close();
}

#[test]
fn a_post_to_a_queue_pair_that_is_gone_fails_by_the_state_of_the_endpoint_that_is_there() {
    let (_machine, agent, ia) = ia();
    let core = ia.live().unwrap();
    let pz = ia.pz_create().unwrap();
    let evd = |stream| ia.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 8, 1, EvdHandle::NULL).unwrap();
    let (queue, messages) = (evd(EventType::DTO_EVENT_STREAM), evd(EventType::CM_MSG_EVENT_STREAM));
    let attributes = EpAttributes::default();
    let ep = ia.ep_rc_create(pz, queue, queue, messages, EpFlags::empty(), &attributes).unwrap();
    assert_eq!(core.not_posted_to(ep, PostError::Gone), Error::InvalidEpState);
    assert_eq!(core.not_posted_to(ep, PostError::Busy), Error::EpBusy);
    ia.ep_free(ep).unwrap();
    assert_eq!(core.not_posted_to(ep, PostError::Gone), Error::InvalidEp);
    ia.ia_free().unwrap();
    agent.close();
}

#[test]
fn what_fails_because_the_device_is_dead_disables_the_ia() {
    use kernel_agent::{Death, Error as Refused};
    for refused in [Refused::DeviceDead(Death::Heartbeat), Refused::Gone] {
        for through in 0..3 {
            let (_machine, agent, ia) = ia();
            let core = ia.live().unwrap();
            // A close is not reported to clients, so only the mapping can disable the IA.
            agent.close();
            let error = match through {
                0 => core.error(refused),
                1 => core.gone(refused, Error::InvalidPz),
                _ => core.posted(Err(core.not_posted(PostError::Gone))).unwrap_err(),
            };
            assert_eq!(error, Error::IaCatastrophe, "{refused:?}");
            assert_eq!(ia.pz_create(), Err(Error::IaCatastrophe));
            assert_eq!(ia.ia_query().map(drop), Err(Error::IaCatastrophe));
            let _ = ia.ia_free();
        }
    }
}
/// The posts whose slow path holds the lock of the object's entry in its table. Disabling the
/// IA takes these locks, too.
#[test]
fn a_post_that_finds_the_device_dead_disables_the_ia() {
    let none = DtoFlags::COMPLETION;
    for through in 0..3 {
        let (_machine, agent, ia) = ia();
        let pz = ia.pz_create().unwrap();
        let evd = |stream| ia.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 8, 1, EvdHandle::NULL).unwrap();
        let (queue, messages) = (evd(EventType::DTO_EVENT_STREAM), evd(EventType::CM_MSG_EVENT_STREAM));
        let attributes = EpAttributes::default();
        let rc = ia.ep_rc_create(pz, queue, queue, messages, EpFlags::empty(), &attributes).unwrap();
        let small = EpAttributes { max_dto_payload_size: 512, ..attributes };
        let ud = ia.ep_ud_create(pz, queue, queue, &small, 1).unwrap();
        let srq = ia.srq_create(pz, 1, 8).unwrap();
        agent.close();
        let posted = match through {
            0 => ia.post_recv(rc, &[], 0, none),
            1 => ia.post_recv(srq, &[], 0, none),
            _ => ia.post_recvfrom(ud, &[LmrTriplet::default()], 0, none),
        };
        assert_eq!(posted, Err(Error::IaCatastrophe), "{through}");
        assert_eq!(ia.pz_create(), Err(Error::IaCatastrophe), "{through}");
        let _ = ia.ia_free();
    }
}
