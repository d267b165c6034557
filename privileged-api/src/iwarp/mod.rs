//! Interfaces over iWARP: IAs whose RC endpoints are queue pairs on TCP streams (chapter 5, pages
//! it_ia_info_t, it_path_t, it_conn_qual_t, and the iWARP tables of it_dto_status_t,
//! it_affiliated_event_t and it_cm_msg_events).
//!
//! - `dialect`: names, connections, reject codes.
//! - `events`: what the end of a stream means in IT-API.
//!
//! iWARP has neither datagrams, atomic operations nor immediate data. So an IA over iWARP lacks
//! these features of the NIC, and the calls for them fail as on an interface that is limited.
//!
//! Posts and dequeues are those of InfiniBand's queue pairs. What differs is when an error shows: a
//! Send and an RDMA Write are complete once the stream has them, and what the peer refuses breaks
//! the connection afterwards, with an affiliated event.

mod dialect;
pub(crate) mod events;

pub(crate) use dialect::Iwarp;
