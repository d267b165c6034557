//! The adapter's capabilities as a table.

use alloc::format;
use alloc::string::String;

use common::{Failure, Trying};
use kernel::println;
use privileged_api::{Ia, NetAddr};

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.into()
}

fn address(addr: &NetAddr) -> String {
    match addr {
        NetAddr::Ipv4([a, b, c, d]) => format!("{a}.{b}.{c}.{d}"),
        NetAddr::IbGid(gid) | NetAddr::Ipv6(gid) => format!("{}", core::net::Ipv6Addr::from(*gid)),
        NetAddr::ViaHostaddr(_) => "a VIA host address".into(),
    }
}

/// Prints the result of `it_ia_query`.
pub fn print(ia: &Ia) -> Result<(), Failure> {
    let info = ia.ia_query().trying("it_ia_query")?;
    let row = |name: &str, value: String| println!("  {name:<34} {value}");
    println!("interface adapter {}", info.ia_name);
    row("API", format!("IT-API {}.{}", info.api_major_version, info.api_minor_version));
    row("transport", format!("{:?}", info.transport_type));
    row(
        "services",
        format!(
            "{:?}",
            info.supported_service_types.iter_names().map(|(n, _)| n).collect::<alloc::vec::Vec<_>>()
        ),
    );
    row("three-way handshake", yes(info.three_way_handshake_support));
    row(
        "private data, connect/accept",
        format!("{}/{} bytes", info.connect_private_data_len, info.accept_private_data_len),
    );
    row("atomic operations", yes(info.atomic_support));
    row("shared receive queues", yes(info.srq_support));
    row("LMR link and unlink", yes(info.lmr_link_support));
    row("direct LMR handle", yes(info.direct_lmr_handle_support));
    row("relative addressing", yes(info.addr_mode_relative_support));
    row(
        "I/O buffer lists",
        format!(
            "{:?}",
            info.iobl_types_supported.iter_names().map(|(n, _)| n).collect::<alloc::vec::Vec<_>>()
        ),
    );
    for spigot in &info.spigot_info {
        row("spigot", format!("{} ({})", spigot.spigot_id, if spigot.spigot_online { "up" } else { "down" }));
        row("  longest message", format!("{} bytes", spigot.max_rc_rdma_len));
        for addr in &spigot.net_addr {
            row("  address", address(addr));
        }
    }
    Ok(())
}
