//! Interfaces over the VIA transport: IAs whose RC endpoints are virtual interfaces of the NIC
//! (pages it_ia_info_t, it_net_addr_t, it_conn_qual_t, it_path_t, and the VIA tables of
//! it_dto_status_t, it_dto_flags_t, it_affiliated_event_t, it_cm_msg_events).
//!
//! - `ep`: an endpoint's virtual interface, its descriptors, and what was posted with each.
//! - `queue`: the completion queue of an EVD, which leads to the descriptors that are complete.
//! - `status`: what descriptors and asynchronous errors mean in IT-API.
//! - `names`: discriminators, host addresses and paths.
//! - `connect`: making connections. What the ends tell each other is in [`rdma::via`].
//!
//! VIA has neither datagrams, atomic operations, shared receive queues, links of memory regions nor
//! private data. So an IA over VIA lacks these features of the NIC, and the calls for them fail as
//! on an interface that is limited.
//!
//! Posts and dequeues take the slow paths. The fast paths know only queue pairs: an endpoint over
//! VIA has nothing in its slot, and an EVD of completions neither.

pub(crate) mod connect;
pub(crate) mod ep;
pub(crate) mod names;
pub(crate) mod queue;
pub(crate) mod status;

use kernel_agent::{Features, LinkFlags, PROVIDER_VERSION, Reliability};

use crate::attributes::EpAttributes;
use crate::ia::Core;
use crate::info::VendorVia;
use crate::status::{Error, Result};

/// What an IA over VIA uses of the NIC's features.
pub(crate) const FEATURES: Features = Features::RC
    .union(Features::VI)
    .union(Features::RELATIVE)
    .union(Features::PAGE_LIST)
    .union(Features::BLOCK_LIST)
    .union(Features::VARIABLE_LIST);

/// The level of all virtual interfaces: a request is complete when the peer's memory has its data,
/// as the RC service asks.
pub(crate) const LEVEL: Reliability = Reliability::Reception;

/// The most rights that peers can have through an endpoint.
pub(crate) fn access(attr: &EpAttributes) -> LinkFlags {
    super::ep::access(attr) & (LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE)
}

impl Core {
    /// Fails if a call on this IA brings private data, which VIA does not carry.
    pub(crate) fn check_private_data(&self, private_data: &[u8]) -> Result<()> {
        if self.via && !private_data.is_empty() { Err(Error::PdataNotSupported) } else { Ok(()) }
    }

    /// The NIC as VipQueryNic describes it.
    pub(crate) fn vendor_via(&self, name: &str) -> VendorVia {
        let mut padded = [0; VendorVia::NAME_SIZE];
        // The last byte stays 0.
        for (place, byte) in padded.iter_mut().zip(name.bytes().take(VendorVia::NAME_SIZE - 1)) {
            *place = byte;
        }
        let hardware = self.agent().hardware_version();
        VendorVia { name: padded, hardware, provider: PROVIDER_VERSION }
    }
}
