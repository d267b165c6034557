//! Interfaces over the VIA transport: IAs whose RC endpoints are virtual interfaces of the NIC
//! (pages it_ia_info_t, it_net_addr_t, it_conn_qual_t, it_path_t, and the VIA tables of
//! it_dto_status_t, it_dto_flags_t, it_affiliated_event_t, it_cm_msg_events).
//!
//! - `status`: what descriptors and asynchronous errors mean in IT-API.
//! - `names`: discriminators, host addresses and paths.
//! - `connect`: what the ends of a connection tell each other.
//! - `dialect`: all else that differs.
//!
//! An endpoint's virtual interface with its descriptors, the completion queue that leads to them,
//! and what the ends of a connection tell each other are in [`rdma::via`].
//!
//! VIA has neither datagrams, atomic operations, shared receive queues, links of memory regions nor
//! private data. So an IA over VIA lacks these features of the NIC, and the calls for them fail as
//! on an interface that is limited.
//!
//! Posts and dequeues take the slow paths. The fast paths know only queue pairs: an endpoint over
//! VIA has nothing in its slot, and an EVD of completions neither.

mod connect;
mod dialect;
pub(crate) mod names;
pub(crate) mod status;

pub(crate) use dialect::Via;
use kernel_agent::{LinkFlags, Reliability};

use crate::attributes::EpAttributes;
use crate::objects::ep::access;

/// The level of all virtual interfaces: a request is complete when the peer's memory has its data,
/// as the RC service asks.
pub(crate) const LEVEL: Reliability = Reliability::Reception;

/// The most rights that peers can have through an endpoint.
pub(crate) fn peer_access(attr: &EpAttributes) -> LinkFlags {
    access(attr) & (LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE)
}

#[cfg(test)]
mod tests {
    use host::Machine;
    use kernel_agent::{Agent, Config};

    use alloc::sync::Arc;

    use crate::{EpAttributes, EpFlags, EvdFlags, EvdHandle, EventType, Limits, Provider};

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn memory_of_descriptors_that_a_dead_device_may_still_write_is_kept() {
        let mut machine = Machine::new(1);
        let agent =
            Agent::open(machine.platform(), machine.transport(0), 0, Config::default()).expect("an agent");
        let provider = Provider::new(machine.platform());
        provider.add_via("via", agent.clone(), Limits::NONE).expect("a name");
        let ia = provider.ia_create("via", 2, 1, None).expect("an IA");
        let pz = ia.pz_create().expect("a zone");
        let evd = |stream| {
            ia.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 64, 1, EvdHandle::NULL).expect("an EVD")
        };
        let [sends, receives] = [EventType::DTO_EVENT_STREAM; 2].map(evd);
        let messages = evd(EventType::CM_MSG_EVENT_STREAM);
        let few = EpAttributes { max_request_dtos: 4, max_recv_dtos: 4, ..EpAttributes::default() };
        let ep = ia.ep_rc_create(pz, sends, receives, messages, EpFlags::empty(), &few).expect("an endpoint");
        let memory = {
            let core = ia.live().expect("alive");
            let ep = core.eps.get(ep).expect("it is new");
            Arc::downgrade(ep.pair.vi().expect("a virtual interface").memory())
        };
        machine.kill();
        let _ = ia.ep_free(ep);
        ia.ia_free().expect("the first free");
        drop(ia);
        assert!(memory.upgrade().is_some());
        agent.close();
    }
}
