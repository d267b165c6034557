//! The names that programs load, each with the version that rdma-core gives it.
#![expect(unsafe_code, reason = "names with versions are the assembler's; the loader calls `init`")]

use verbs::{Nic, ah, channel, cm, cq, device, memory, missing, qp, qp_ex, srq, words};

use crate::{nic, seen};

export! {
    "ibv_get_device_list", "IBVERBS_1.1", device::get_device_list;
    "ibv_free_device_list", "IBVERBS_1.1", device::free_device_list;
    "ibv_get_device_name", "IBVERBS_1.1", device::get_device_name;
    "ibv_get_device_guid", "IBVERBS_1.1", device::get_device_guid;
    "ibv_get_device_index", "IBVERBS_1.9", device::get_device_index;
    "ibv_open_device", "IBVERBS_1.1", device::open_device;
    "ibv_close_device", "IBVERBS_1.1", device::close_device;
    "ibv_query_device", "IBVERBS_1.1", device::query_device;
    "ibv_query_port", "IBVERBS_1.1", device::query_port;
    "ibv_query_gid", "IBVERBS_1.1", device::query_gid;
    "_ibv_query_gid_ex", "IBVERBS_1.11", device::query_gid_ex;
    "_ibv_query_gid_table", "IBVERBS_1.11", device::query_gid_table;
    "ibv_query_gid_type", "IBVERBS_PRIVATE_34", device::query_gid_type;
    "ibv_query_pkey", "IBVERBS_1.1", device::query_pkey;
    "ibv_get_pkey_index", "IBVERBS_1.5", device::get_pkey_index;
    "ibv_alloc_pd", "IBVERBS_1.1", memory::alloc_pd;
    "ibv_dealloc_pd", "IBVERBS_1.1", memory::dealloc_pd;
    "ibv_reg_mr", "IBVERBS_1.1", memory::reg_mr;
    "ibv_reg_mr_iova", "IBVERBS_1.7", memory::reg_mr_iova;
    "ibv_reg_mr_iova2", "IBVERBS_1.8", memory::reg_mr_iova2;
    "ibv_rereg_mr", "IBVERBS_1.1", memory::rereg_mr;
    "ibv_dereg_mr", "IBVERBS_1.1", memory::dereg_mr;
    "ibv_create_comp_channel", "IBVERBS_1.0", channel::create_comp_channel;
    "ibv_destroy_comp_channel", "IBVERBS_1.0", channel::destroy_comp_channel;
    "ibv_get_cq_event", "IBVERBS_1.1", channel::get_cq_event;
    "ibv_ack_cq_events", "IBVERBS_1.1", channel::ack_cq_events;
    "ibv_get_async_event", "IBVERBS_1.1", channel::get_async_event;
    "ibv_ack_async_event", "IBVERBS_1.1", channel::ack_async_event;
    "ibv_create_cq", "IBVERBS_1.1", cq::create_cq;
    "ibv_destroy_cq", "IBVERBS_1.1", cq::destroy_cq;
    "ibv_resize_cq", "IBVERBS_1.1", cq::resize_cq;
    "ibv_create_srq", "IBVERBS_1.1", srq::create_srq;
    "ibv_destroy_srq", "IBVERBS_1.1", srq::destroy_srq;
    "ibv_modify_srq", "IBVERBS_1.1", srq::modify_srq;
    "ibv_query_srq", "IBVERBS_1.1", srq::query_srq;
    "ibv_create_qp", "IBVERBS_1.1", qp::create_qp;
    "ibv_destroy_qp", "IBVERBS_1.1", qp::destroy_qp;
    "ibv_modify_qp", "IBVERBS_1.1", qp::modify_qp;
    "ibv_query_qp", "IBVERBS_1.1", qp::query_qp;
    "ibv_create_ah", "IBVERBS_1.1", ah::create_ah;
    "ibv_destroy_ah", "IBVERBS_1.1", ah::destroy_ah;
    "ibv_init_ah_from_wc", "IBVERBS_1.1", ah::init_ah_from_wc;
    "ibv_create_ah_from_wc", "IBVERBS_1.1", ah::create_ah_from_wc;
    "ibv_wc_status_str", "IBVERBS_1.1", words::wc_status_str;
    "ibv_event_type_str", "IBVERBS_1.1", words::event_type_str;
    "ibv_node_type_str", "IBVERBS_1.1", words::node_type_str;
    "ibv_port_state_str", "IBVERBS_1.1", words::port_state_str;
    "ibv_rate_to_mult", "IBVERBS_1.0", words::rate_to_mult;
    "mult_to_ibv_rate", "IBVERBS_1.0", words::mult_to_rate;
    "ibv_rate_to_mbps", "IBVERBS_1.1", words::rate_to_mbps;
    "mbps_to_ibv_rate", "IBVERBS_1.1", words::mbps_to_rate;
    "ibv_fork_init", "IBVERBS_1.1", missing::success;
    "ibv_is_fork_initialized", "IBVERBS_1.13", missing::fork_unneeded;
    "ibv_attach_mcast", "IBVERBS_1.1", qp::attach_mcast;
    "ibv_detach_mcast", "IBVERBS_1.1", qp::detach_mcast;
    "ibv_reg_dmabuf_mr", "IBVERBS_1.12", missing::pointer;
    "ibv_import_device", "IBVERBS_1.10", missing::pointer;
    "ibv_import_pd", "IBVERBS_1.10", missing::pointer;
    "ibv_unimport_pd", "IBVERBS_1.10", missing::nothing;
    "ibv_import_mr", "IBVERBS_1.10", missing::pointer;
    "ibv_unimport_mr", "IBVERBS_1.10", missing::nothing;
    "ibv_import_dm", "IBVERBS_1.13", missing::pointer;
    "ibv_unimport_dm", "IBVERBS_1.13", missing::nothing;
    "ibv_query_ece", "IBVERBS_1.10", missing::number;
    "ibv_set_ece", "IBVERBS_1.10", missing::number;
    "ibv_query_qp_data_in_order", "IBVERBS_1.14", missing::zero;
    "ibv_qp_to_qp_ex", "IBVERBS_1.6", qp_ex::qp_to_qp_ex;
    "ibv_resolve_eth_l2_from_gid", "IBVERBS_1.1", missing::minus_one;
    "ibv_read_sysfs_file", "IBVERBS_1.0", missing::minus_one;
    "ibv_read_ibdev_sysfs_file", "IBVERBS_PRIVATE_34", missing::minus_one;
    "ibv_get_sysfs_path", "IBVERBS_1.0", missing::sysfs;
    "ibv_dontfork_range", "IBVERBS_1.1", missing::success;
    "ibv_dofork_range", "IBVERBS_1.1", missing::success;
    "ibv_copy_ah_attr_from_kern", "IBVERBS_1.1", missing::nothing;
    "ibv_copy_path_rec_from_kern", "IBVERBS_1.0", missing::nothing;
    "ibv_copy_path_rec_to_kern", "IBVERBS_1.0", missing::nothing;
    "ibv_copy_qp_attr_from_kern", "IBVERBS_1.0", missing::nothing;
    "ibv_alloc_dmah", "IBVERBS_1.15", missing::pointer;
    "ibv_dealloc_dmah", "IBVERBS_1.15", missing::number;
    "ibv_reg_mr_ex", "IBVERBS_1.15", missing::pointer;
    "ibv_dm_export_dmabuf_fd", "IBVERBS_1.16", missing::minus_one;
    "ibv_query_port_speed", "IBVERBS_1.16", missing::number;
    "ibv_alloc_buf", "IBVERBS_1.17", missing::pointer;
    "ibv_free_buf", "IBVERBS_1.17", missing::number;
    "ibv_reg_buf_mr", "IBVERBS_1.17", missing::pointer;
    "_ibv_query_comp_cntr_caps", "IBVERBS_1.18", missing::number;
    "ibv_create_comp_cntr", "IBVERBS_1.18", missing::pointer;
    "ibv_destroy_comp_cntr", "IBVERBS_1.18", missing::number;
    "ibv_export_buf_dmabuf_fd", "IBVERBS_1.18", missing::minus_one;
    "ibv_inc_comp_cntr", "IBVERBS_1.18", missing::number;
    "ibv_inc_err_comp_cntr", "IBVERBS_1.18", missing::number;
    "ibv_qp_attach_comp_cntr", "IBVERBS_1.18", missing::number;
    "ibv_read_comp_cntr", "IBVERBS_1.18", missing::number;
    "ibv_read_err_comp_cntr", "IBVERBS_1.18", missing::number;
    "ibv_set_comp_cntr", "IBVERBS_1.18", missing::number;
    "ibv_set_err_comp_cntr", "IBVERBS_1.18", missing::number;
}

// What the preload (`verbs/preload`) asks.
export! {
    "ferrovia_folder", "FERROVIA", seen::folder;
    "ferrovia_address", "FERROVIA", seen::address;
}

// The names of librdmacm. Those of rsockets are there for programs that are linked to all of it.
export! {
    "rdma_create_event_channel", "RDMACM_1.0", cm::channel::create_event_channel;
    "rdma_destroy_event_channel", "RDMACM_1.0", cm::channel::destroy_event_channel;
    "rdma_get_cm_event", "RDMACM_1.0", cm::channel::get_cm_event;
    "rdma_ack_cm_event", "RDMACM_1.0", cm::channel::ack_cm_event;
    "rdma_event_str", "RDMACM_1.0", cm::channel::event_str;
    "rdma_create_id", "RDMACM_1.0", cm::identifier::create_id;
    "rdma_destroy_id", "RDMACM_1.0", cm::identifier::destroy_id;
    "rdma_migrate_id", "RDMACM_1.0", cm::identifier::migrate_id;
    "rdma_bind_addr", "RDMACM_1.0", cm::identifier::bind_addr;
    "rdma_resolve_addr", "RDMACM_1.0", cm::identifier::resolve_addr;
    "rdma_resolve_route", "RDMACM_1.0", cm::identifier::resolve_route;
    "rdma_set_option", "RDMACM_1.0", cm::identifier::set_option;
    "rdma_get_src_port", "RDMACM_1.0", cm::identifier::get_src_port;
    "rdma_get_dst_port", "RDMACM_1.0", cm::identifier::get_dst_port;
    "rdma_listen", "RDMACM_1.0", cm::connection::listen;
    "rdma_connect", "RDMACM_1.0", cm::connection::connect;
    "rdma_accept", "RDMACM_1.0", cm::connection::accept;
    "rdma_reject", "RDMACM_1.0", cm::connection::reject;
    "rdma_reject_ece", "RDMACM_1.3", cm::connection::reject_ece;
    "rdma_disconnect", "RDMACM_1.0", cm::connection::disconnect;
    "rdma_notify", "RDMACM_1.0", cm::connection::notify;
    "rdma_create_qp", "RDMACM_1.0", cm::queue_pair::create_qp;
    "rdma_create_qp_ex", "RDMACM_1.0", cm::queue_pair::create_qp_ex;
    "rdma_destroy_qp", "RDMACM_1.0", cm::queue_pair::destroy_qp;
    "rdma_create_srq", "RDMACM_1.0", cm::queue_pair::create_srq;
    "rdma_destroy_srq", "RDMACM_1.0", cm::queue_pair::destroy_srq;
    "rdma_create_ep", "RDMACM_1.0", cm::endpoint::create_ep;
    "rdma_destroy_ep", "RDMACM_1.0", cm::endpoint::destroy_ep;
    "rdma_get_request", "RDMACM_1.0", cm::endpoint::get_request;
    "rdma_getaddrinfo", "RDMACM_1.0", cm::info::getaddrinfo;
    "rdma_freeaddrinfo", "RDMACM_1.0", cm::info::freeaddrinfo;
    "rdma_get_devices", "RDMACM_1.0", cm::devices::get_devices;
    "rdma_free_devices", "RDMACM_1.0", cm::devices::free_devices;
    "rdma_create_srq_ex", "RDMACM_1.0", missing::minus_one;
    "rdma_join_multicast", "RDMACM_1.0", cm::multicast::join_multicast;
    "rdma_join_multicast_ex", "RDMACM_1.1", cm::multicast::join_multicast_ex;
    "rdma_leave_multicast", "RDMACM_1.0", cm::multicast::leave_multicast;
    "rdma_establish", "RDMACM_1.2", cm::connection::establish;
    "rdma_init_qp_attr", "RDMACM_1.2", cm::attributes::init_qp_attr;
    "rdma_get_remote_ece", "RDMACM_1.3", missing::minus_one;
    "rdma_set_local_ece", "RDMACM_1.3", missing::minus_one;
    "rdma_resolve_addrinfo", "RDMACM_1.4", missing::minus_one;
    "rdma_query_addrinfo", "RDMACM_1.4", missing::minus_one;
    "rdma_write_cm_event", "RDMACM_1.5", missing::minus_one;
    "raccept", "RDMACM_1.0", missing::minus_one;
    "rbind", "RDMACM_1.0", missing::minus_one;
    "rclose", "RDMACM_1.0", missing::minus_one;
    "rconnect", "RDMACM_1.0", missing::minus_one;
    "rfcntl", "RDMACM_1.0", missing::minus_one;
    "rgetpeername", "RDMACM_1.0", missing::minus_one;
    "rgetsockname", "RDMACM_1.0", missing::minus_one;
    "rgetsockopt", "RDMACM_1.0", missing::minus_one;
    "riounmap", "RDMACM_1.0", missing::minus_one;
    "riowrite", "RDMACM_1.0", missing::minus_one_long;
    "rlisten", "RDMACM_1.0", missing::minus_one;
    "rpoll", "RDMACM_1.0", missing::minus_one;
    "rread", "RDMACM_1.0", missing::minus_one_long;
    "rreadv", "RDMACM_1.0", missing::minus_one_long;
    "rrecv", "RDMACM_1.0", missing::minus_one_long;
    "rrecvfrom", "RDMACM_1.0", missing::minus_one_long;
    "rrecvmsg", "RDMACM_1.0", missing::minus_one_long;
    "rselect", "RDMACM_1.0", missing::minus_one;
    "rsend", "RDMACM_1.0", missing::minus_one_long;
    "rsendmsg", "RDMACM_1.0", missing::minus_one_long;
    "rsendto", "RDMACM_1.0", missing::minus_one_long;
    "rsetsockopt", "RDMACM_1.0", missing::minus_one;
    "rshutdown", "RDMACM_1.0", missing::minus_one;
    "rsocket", "RDMACM_1.0", missing::minus_one;
    "rwrite", "RDMACM_1.0", missing::minus_one_long;
    "rwritev", "RDMACM_1.0", missing::minus_one_long;
    "riomap", "RDMACM_1.0", missing::minus_one_long;
    "repoll_create", "RDMACM_1.5", missing::minus_one;
    "repoll_ctl", "RDMACM_1.5", missing::minus_one;
    "repoll_wait", "RDMACM_1.5", missing::minus_one;
}

/// Opens the NIC when the program asks for devices; says on standard error why there is none.
fn open() -> Result<Vec<Nic>, i32> {
    match nic::open() {
        Ok(nic) => Ok(vec![nic]),
        Err(error) => {
            eprintln!("ferrovia: there is no RDMA device: {error}");
            Ok(Vec::new())
        }
    }
}

/// A child process has the parent's memory and none of its threads.
extern "C" fn in_child() {
    seen::forget();
    verbs::forget();
}

extern "C" fn init() {
    device::provide(open);
    // SAFETY: the function only forgets lists.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// The loader calls it when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;
