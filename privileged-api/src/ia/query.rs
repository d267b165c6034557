//! The attributes of an IA (pages it_ia_query, it_ia_info_t).

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use kernel_agent::wire::Gid;
use kernel_agent::{Features, PROVIDER_VERSION};

use super::{Core, Ia, SPIGOT};
use crate::address::NetAddr;
use crate::flags::{IoblTypes, RmrTypes, ServiceTypes};
use crate::handle::{EvdHandle, LmrHandle};
use crate::info::{IaInfo, SpigotInfo, TransportType, VendorVia};
use crate::provider::{MAJOR, MINOR};
use crate::status::{Error, Result};

impl Ia {
    /// Returns the attributes of the IA.
    ///
    /// Errors: `Resources`, `InvalidIa`, `IaCatastrophe`. Does not block. Not for callbacks.
    /// Thread-safe. Page it_ia_query.
    #[doc(alias = "it_ia_query")]
    pub fn ia_query(&self) -> Result<IaInfo> {
        let core = self.live()?;
        core.shared.not_in_callback()?;
        let features = core.features();
        let can = |feature| features.contains(feature);
        let link = can(Features::FAST_REGISTER);
        let direct = can(Features::RESERVED_KEY);
        let mut services = ServiceTypes::RC;
        services.set(ServiceTypes::UD, can(Features::UD));
        let mut rmr_types = RmrTypes::empty();
        rmr_types.set(RmrTypes::NARROW, can(Features::WINDOWS_NARROW));
        rmr_types.set(RmrTypes::WIDE, can(Features::WINDOWS_WIDE));
        let mut iobl_types = IoblTypes::empty();
        iobl_types.set(IoblTypes::PAGE_LIST, can(Features::PAGE_LIST));
        iobl_types.set(IoblTypes::BLOCK_LIST, can(Features::BLOCK_LIST));
        iobl_types.set(IoblTypes::VE_PAGE_LIST, can(Features::VARIABLE_LIST));
        let facts = core.facts();
        let data = &facts.private_data;
        let mut ia_name = String::new();
        ia_name.try_reserve_exact(core.adapter.name().len()).map_err(|_| Error::Resources)?;
        ia_name.push_str(core.adapter.name());
        Ok(IaInfo {
            ia_name,
            api_major_version: MAJOR,
            api_minor_version: MINOR,
            sw_major_version: 0,
            sw_minor_version: 1,
            vendor: core.dialect.vendor(core),
            dto_alignment_hint: 64,
            transport_type: core.transport_type(),
            supported_service_types: services,
            ep_work_queues_resizable: false,
            three_way_handshake_support: facts.three_way_handshake,
            private_data_support: facts.has_private_data(),
            max_message_size_support: facts.equal_message_sizes,
            ird_ord_ia_support: facts.read_depths,
            ird_ord_suppressible: false,
            spigot_online_support: facts.port_events,
            spigot_offline_support: facts.port_events,
            connect_private_data_len: data.connect,
            accept_private_data_len: data.accept,
            reject_private_data_len: data.reject,
            disconnect_private_data_len: data.disconnect,
            ud_req_private_data_len: data.ud_request,
            ud_rep_private_data_len: data.ud_reply,
            spigot_info: core.spigots()?,
            affiliated_err_evd: EvdHandle::from_raw(core.affiliated.load(Ordering::Acquire)),
            unaffiliated_err_evd: EvdHandle::from_raw(core.unaffiliated.load(Ordering::Acquire)),
            srq_support: can(Features::SRQ),
            hard_hi_watermark_support: false,
            soft_hi_watermark_support: false,
            srq_resizable: can(Features::SRQ) && can(Features::SRQ_RESIZE),
            extended_iwarp_qp_states: facts.sockets,
            socket_conversion_support: facts.sockets,
            rdma_read_ord_increasable: facts.read_depths,
            rdma_read_ird_modifiable: facts.read_depths,
            rmr_types_supported: rmr_types,
            addr_mode_relative_support: can(Features::RELATIVE),
            rdma_read_requires_remote_write: facts.reads_write_remotely,
            ep_rdma_enables_modifiable: true,
            rdma_read_local_extensions: facts.reads_write_remotely,
            dto_evd_overflow_detection: facts.finds_overflow,
            atomic_support: can(Features::ATOMICS),
            lmr_link_support: link,
            direct_lmr_handle_support: direct,
            direct_lmr_handle: if direct { LmrHandle::DIRECT } else { LmrHandle::NULL },
            post_send_unlink_remote_support: link,
            narrow_rmr_unlink_support: can(Features::WINDOWS_NARROW),
            wide_rmr_unlink_support: can(Features::WINDOWS_WIDE),
            unlink_fence_support: link,
            iobl_types_supported: iobl_types,
        })
    }
}

impl Core {
    /// The transport of the IA.
    pub(super) fn transport_type(&self) -> TransportType {
        self.facts().transport_type
    }

    fn spigots(&self) -> Result<Vec<SpigotInfo>> {
        let id = self.agent().identity();
        let mut net_addr = Vec::new();
        net_addr.try_reserve(id.gids.len() + 1).map_err(|_| Error::Resources)?;
        let address = |gid: &[u8; 16]| self.dialect.net_addr(Gid(*gid));
        net_addr.extend(id.gids.iter().filter(|gid| **gid != [0; 16]).map(address));
        let ipv4 = NetAddr::Ipv4(id.ipv4);
        if id.ipv4 != [0; 4] && !net_addr.contains(&ipv4) {
            net_addr.push(ipv4);
        }
        let longest = usize::try_from(self.longest_message()).unwrap_or(usize::MAX);
        let mut spigots = Vec::new();
        spigots.try_reserve_exact(1).map_err(|_| Error::Resources)?;
        spigots.push(SpigotInfo {
            spigot_id: SPIGOT,
            max_rc_send_len: longest,
            max_rc_rdma_len: longest,
            max_ud_send_len: if self.facts().offers.contains(Features::UD) {
                (id.mtu as usize).min(longest)
            } else {
                0
            },
            spigot_online: self.agent().port_up(),
            active_side_conn_qual: self.facts().active_qualifiers,
            passive_side_conn_qual: self.facts().passive_qualifiers,
            net_addr,
        });
        Ok(spigots)
    }
}

impl Core {
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
