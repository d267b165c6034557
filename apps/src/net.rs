//! How a peer is found: paths to IP addresses, and the addresses of our own port.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use common::Trying;
use privileged_api::{
    ConnQual, ConnRequest, Error, EvdFlags, EvdHandle, Event, EventType, Ia, ListenFlags, ListenHandle,
    NetAddr, Path, RemoteEpInfo, SpigotInfo, TIMEOUT_INFINITE, UdServiceRequest, UdSvcStatus,
};

use crate::{Failure, Host, fail, say};

/// Peers' requests that wait while a server serves another client.
const BACKLOG: usize = 16;

/// The IA's port.
pub(crate) fn spigot(ia: &Ia) -> Result<SpigotInfo, Failure> {
    let mut spigots = ia.ia_query().trying("it_ia_query")?.spigot_info;
    if spigots.is_empty() { Err(Failure::new("the IA has no spigot")) } else { Ok(spigots.remove(0)) }
}

/// The addresses of the IA's port, IPv4 first: a script that reads one line expects that.
pub(crate) fn addresses(ia: &Ia) -> Result<Vec<IpAddr>, Failure> {
    let mut addresses: Vec<IpAddr> = spigot(ia)?.net_addr.iter().filter_map(ip).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// The path to an address.
pub(crate) fn path(ia: &Ia, address: IpAddr) -> Result<Path, Failure> {
    let address_there = match address {
        IpAddr::V4(v4) => NetAddr::Ipv4(v4.octets()),
        IpAddr::V6(v6) => NetAddr::Ipv6(v6.octets()),
    };
    let found = ia.get_pathinfo(spigot(ia)?.spigot_id, &address_there, 1).trying("it_get_pathinfo")?;
    let path = found.0.first().copied();
    path.ok_or_else(|| Failure::new(format_args!("no path leads to {address}; has the port an address?")))
}

/// The IP address that a network address is; an IPv4 one also of its GID. None if it is of another
/// kind.
pub(crate) fn ip(address: &NetAddr) -> Option<IpAddr> {
    let v6 = |bytes: [u8; 16]| IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical();
    match *address {
        NetAddr::Ipv4(bytes) => Some(IpAddr::from(bytes)),
        NetAddr::Ipv6(bytes) | NetAddr::IbGid(bytes) => Some(v6(bytes)),
        NetAddr::ViaHostaddr(_) => None,
    }
}

/// A service that a server offers, until this is dropped.
pub(crate) struct Listener<'a> {
    ia: &'a Ia,
    /// Where the requests arrive.
    pub(crate) requests: EvdHandle,
    listen: Option<ListenHandle>,
    /// Whether the service has connections; otherwise it is for datagrams.
    connections: bool,
}

/// A port in one of rdma_cm's port spaces.
#[derive(Clone, Copy)]
pub(crate) enum Service {
    /// With connections.
    Tcp(u16),
    /// With datagrams.
    Udp(u16),
}

impl Service {
    /// The service's name for IT-API.
    pub(crate) fn qualifier(self) -> ConnQual {
        match self {
            Service::Tcp(port) => ConnQual::rdma_tcp(port),
            Service::Udp(port) => ConnQual::rdma_udp(port),
        }
    }

    fn port(self) -> u16 {
        let (Service::Tcp(port) | Service::Udp(port)) = self;
        port
    }
}

impl<'a> Listener<'a> {
    /// Listens at a port, and says so: a line for each address of ours.
    pub(crate) fn new(host: &mut Host<'a>, service: Service) -> Result<Listener<'a>, Failure> {
        let ia = host.ia;
        let spigot = spigot(ia)?;
        let stream = EventType::CM_REQ_EVENT_STREAM;
        let requests =
            ia.evd_create(stream, EvdFlags::empty(), BACKLOG, 1, EvdHandle::NULL).trying("it_evd_create")?;
        let mut listener =
            Listener { ia, requests, listen: None, connections: matches!(service, Service::Tcp(_)) };
        let flags = ListenFlags::CONN_QUAL_INPUT;
        let listen = ia.listen_create(spigot.spigot_id, requests, flags, Some(&service.qualifier()));
        listener.listen = Some(listen.trying("it_listen_create")?.0);
        for address in addresses(ia)? {
            say!(host, "ready: {}", SocketAddr::new(address, service.port()));
        }
        Ok(listener)
    }
}

impl Listener<'_> {
    /// Waits for a request, for so many microseconds; none if none came. A request of another kind
    /// than the service's is refused here.
    pub(crate) fn next(&self, timeout: u64) -> Result<Option<Event>, Failure> {
        loop {
            let event = match self.ia.evd_wait(self.requests, timeout).map_err(Error::from) {
                Ok((event, _)) => event,
                Err(Error::TimeoutExpired) => return Ok(None),
                Err(error) => fail!("it_evd_wait: {error}"),
            };
            // A refusal fails only if the peer has given up.
            match &event {
                Event::ConnRequest(_) if self.connections => return Ok(Some(event)),
                Event::UdServiceRequest(_) if !self.connections => return Ok(Some(event)),
                Event::ConnRequest(request) => _ = self.ia.reject(request.cn_est_id, &[]),
                Event::UdServiceRequest(request) => {
                    let (id, none) = (request.ud_svc_req_id, RemoteEpInfo::default());
                    _ = self.ia.ud_service_reply(id, UdSvcStatus::IdNotSupported, none, &[]);
                }
                _ => {}
            }
        }
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        // They fail only if the IA is dead, and then nothing is left to free.
        if let Some(listen) = self.listen {
            let _ = self.ia.listen_free(listen);
        }
        let _ = self.ia.evd_free(self.requests);
    }
}

/// Serves `most` clients, one after the other; any number if `most` is 0. `one` serves a client,
/// which begins with a request, and returns what to say of it. Fails if it failed for one.
pub(crate) fn serve<'a>(
    host: &mut Host<'a>,
    listener: &Listener<'a>,
    most: u64,
    mut one: impl FnMut(&mut Host<'a>, &Event) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let (mut served, mut failed) = (0, 0);
    while most == 0 || served < most {
        let Some(request) = listener.next(TIMEOUT_INFINITE)? else { continue };
        let (Event::ConnRequest(ConnRequest { source_addr, .. })
        | Event::UdServiceRequest(UdServiceRequest { source_addr, .. })) = &request
        else {
            continue;
        };
        let name = ip(source_addr).map_or("a client".into(), |ip| format!("{ip}"));
        match one(host, &request) {
            Ok(what) => say!(host, "{name}: {what}"),
            Err(why) => {
                failed += 1;
                say!(host, "{name}: {why}");
            }
        }
        served += 1;
    }
    if failed == 0 { Ok(()) } else { fail!("{failed} of {served} clients failed") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_the_addresses_that_they_map() {
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 7]);
        assert_eq!(ip(&NetAddr::IbGid(mapped)), Some(IpAddr::from([10, 0, 0, 7])));
        assert_eq!(ip(&NetAddr::Ipv4([10, 0, 0, 7])), ip(&NetAddr::Ipv6(mapped)));
        let local = "fe80::1".parse::<IpAddr>().ok();
        assert_eq!(ip(&NetAddr::IbGid(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets())), local);
    }
}
