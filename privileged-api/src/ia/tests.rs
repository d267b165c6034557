use alloc::sync::Arc;

use host::Machine;
use kernel_agent::{Agent, Config, ListFault, PostError, Resource};

use super::*;
use crate::{
    DtoFlags, EpAttributes, EpFlags, EvdFlags, EvdHandle, EvdParam, EvdParamMask, EventType, IbNetEndpoint,
    LmrTriplet, NetAddr, Provider, SrqParam, SrqParamMask,
};

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
        (Refused::QpState(kernel_agent::QpState::Init), Error::InvalidEpState),
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

#[test]
fn a_suggested_path_differs_in_what_the_reason_of_the_rejection_names() {
    use kernel_agent::wire::{self, Gid, Reason, Redirection};
    let (_machine, agent, ia) = ia();
    let core = ia.live().unwrap();
    let address = ia.ia_query().unwrap().spigot_info[0].net_addr[0];
    assert_eq!(ia.get_pathinfo(1, &address, 0), Ok((alloc::vec![], 1)));
    let asked = ia.get_pathinfo(1, &address, 1).unwrap().0[0];
    let with = |change: &dyn Fn(&mut IbNetEndpoint)| {
        let mut path = asked;
        change(path.ib_mut().unwrap());
        path
    };
    let other = Gid::from_ipv4([10, 0, 0, 99].into());
    let there = ia.get_pathinfo(1, &NetAddr::IbGid(other.0), 1).unwrap().0[0];
    let elsewhere = |ib: &mut IbNetEndpoint| {
        ib.local_port_gid = there.ib().unwrap().local_port_gid;
        ib.remote_port_gid = other.0;
    };
    for (reason, information, expected) in [
        (Reason::PRIMARY_SL, &[0xf5][..], with(&|ib| ib.sl = 5)),
        (Reason::PRIMARY_TRAFFIC_CLASS, &[0xa7], with(&|ib| ib.traffic_class = 0xa7)),
        (Reason::PRIMARY_HOP_LIMIT, &[9], with(&|ib| ib.hop_limit = 9)),
        (Reason::PRIMARY_PACKET_RATE, &[0xff], with(&|ib| ib.packet_rate = 0x3f)),
        (Reason::INVALID_PATH_MTU, &[1], with(&|ib| ib.path_mtu = 1)),
        (Reason::PRIMARY_FLOW_LABEL, &[0xf3, 0x12, 0x34], with(&|ib| ib.flow_label = 0x3_1234)),
        (Reason::PRIMARY_GID, &other.0, with(&elsewhere)),
        (Reason::PORT_REDIRECTION, &other.0, with(&elsewhere)),
        (Reason::NO_QP, &[1], asked),
        (Reason::PRIMARY_FLOW_LABEL, &[1, 2], asked),
        (Reason::PRIMARY_GID, &other.0[1..], asked),
        (Reason::PORT_AND_CM_REDIRECTION, &[1], asked),
    ] {
        assert_eq!(core.suggested(&asked, reason, information), expected, "{reason:?} {information:?}");
        assert_eq!(core.suggested(&asked, reason, &[]), asked, "{reason:?}");
    }
    // A redirection without a partition keeps that of the path.
    for (pkey, partition_key) in [(0x7fff, 0x7fff), (0, asked.ib().unwrap().partition_key)] {
        let to = Redirection {
            gid: other,
            traffic_class: 3,
            sl: 4,
            flow_label: 5,
            lid: 0,
            pkey: wire::PKey(pkey),
            qpn: wire::Qpn::new(1).unwrap(),
            qkey: wire::QKey(7),
        };
        let expected = with(&|ib| {
            elsewhere(ib);
            ib.partition_key = partition_key;
            (ib.traffic_class, ib.sl, ib.flow_label) = (3, 4, 5);
        });
        assert_eq!(core.redirected(&asked, &to), Some(expected));
    }
    ia.ia_free().unwrap();
    agent.close();
}

#[test]
fn a_change_that_finds_the_device_dead_disables_the_ia() {
    for through in 0..3 {
        let (_machine, agent, ia) = ia();
        let pz = ia.pz_create().unwrap();
        let stream = EventType::DTO_EVENT_STREAM;
        let queue = ia.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 8, 1, EvdHandle::NULL).unwrap();
        let srq = ia.srq_create(pz, 1, 8).unwrap();
        agent.close();
        let (size, mark) = (
            SrqParam { max_recv_dtos: 16, ..SrqParam::default() },
            SrqParam { low_watermark: 1, ..SrqParam::default() },
        );
        let longer = EvdParam { sevd_queue_size: 100, ..EvdParam::default() };
        let changed = match through {
            0 => ia.srq_modify(srq, SrqParamMask::MAX_RECV_DTO, &size),
            1 => ia.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &mark),
            _ => ia.evd_modify(queue, EvdParamMask::QUEUE_SIZE, &longer),
        };
        assert_eq!(changed, Err(Error::IaCatastrophe), "{through}");
        let _ = ia.ia_free();
    }
}
