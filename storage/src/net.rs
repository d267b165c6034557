//! IP addresses as IT-API has them.

use core::net::{IpAddr, Ipv6Addr};

use privileged_api::{Ia, NetAddr, Path};

use crate::Error;
use crate::error::Calling;

/// The IP address that a network address is; an IPv4 one also of its GID. `None` if it is of
/// another kind.
pub(crate) fn ip(address: &NetAddr) -> Option<IpAddr> {
    match *address {
        NetAddr::Ipv4(bytes) => Some(IpAddr::from(bytes)),
        NetAddr::Ipv6(bytes) | NetAddr::IbGid(bytes) => {
            Some(IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical())
        }
        NetAddr::ViaHostaddr(_) => None,
    }
}

/// The path from the adapter's spigot to an address.
pub(crate) fn path(ia: &Ia, address: IpAddr) -> Result<Path, Error> {
    let info = ia.ia_query().calling("it_ia_query")?;
    let spigot = info.spigot_info.first().ok_or(Error::Config("the interface adapter has no spigot"))?;
    let address = match address {
        IpAddr::V4(v4) => NetAddr::Ipv4(v4.octets()),
        IpAddr::V6(v6) => NetAddr::Ipv6(v6.octets()),
    };
    let (paths, _) = ia.get_pathinfo(spigot.spigot_id, &address, 1).calling("it_get_pathinfo")?;
    paths.first().copied().ok_or(Error::Config("no path leads to the target's address"))
}
