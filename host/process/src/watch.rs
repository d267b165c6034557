//! Peers that are gone: processes that ended without a word.
//!
//! With a NIC, the kernel ends the connections of a process that dies. Here the NIC dies with the
//! process, and a peer that only waits for a message would wait for ever. Between processes of one
//! machine its kernel says who has ended, and once a second a thread asks it: in shared memory, by
//! the lock of the peer's address; by UDP, by a datagram without content to the peer's port, which
//! a device drops, and which the kernel refuses if nobody has the port. Of other machines nobody is
//! asked: one with an RNIC has no socket there.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use links::{LinkSpec, Shm};

/// RoCEv2's port.
const PORT: u16 = 4791;
/// How often each peer is asked for.
const ROUND: Duration = Duration::from_secs(1);
/// Peers that are watched at most; connections with others end as their requests fail.
const MOST_PEERS: usize = 256;

/// The peers with which the process is connected, as the library on the NIC knows them.
#[derive(Clone, Copy)]
pub struct Peers {
    /// The addresses of all.
    pub all: fn() -> BTreeSet<IpAddr>,
    /// Nobody is at this address any more: connections with it end now.
    pub lost: fn(IpAddr),
}

/// Who asks whether peers are gone.
pub(crate) struct Watcher {
    peers: Peers,
    oracle: Oracle,
}

/// Who knows it.
enum Oracle {
    /// The folder of a network in memory.
    Folder(PathBuf),
    /// Sockets to the ports of peers, from an address of loopback.
    Udp(IpAddr, HashMap<IpAddr, UdpSocket>),
}

/// Whether nobody has the port at the other end. The answer to a datagram may have come when the
/// next one is sent.
fn refuses(peer: &UdpSocket) -> bool {
    let refused = |result: std::io::Result<usize>| {
        result.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    refused(peer.send(&[])) || refused(peer.recv(&mut [0; 1]))
}

fn socket(own: IpAddr, peer: IpAddr) -> Option<UdpSocket> {
    let socket = UdpSocket::bind((own, 0)).ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.connect((peer, PORT)).ok()?;
    Some(socket)
}

impl Watcher {
    /// The watcher of a link between processes of one machine.
    pub(crate) fn of(link: &LinkSpec, peers: Peers) -> Option<Watcher> {
        let oracle = match link {
            LinkSpec::Shm(folder) => Oracle::Folder(folder.clone()),
            LinkSpec::Udp(own) if own.is_loopback() => Oracle::Udp(*own, HashMap::new()),
            _ => return None,
        };
        Some(Watcher { peers, oracle })
    }

    /// Ends the connections with peers that are gone; for ever.
    pub(crate) fn run(mut self) {
        loop {
            std::thread::sleep(ROUND);
            let peers = (self.peers.all)();
            if let Oracle::Udp(_, sockets) = &mut self.oracle {
                sockets.retain(|peer, _| peers.contains(peer));
            }
            for peer in peers.into_iter().take(MOST_PEERS) {
                if self.oracle.is_gone(peer) {
                    if let Oracle::Udp(_, sockets) = &mut self.oracle {
                        sockets.remove(&peer);
                    }
                    (self.peers.lost)(peer);
                }
            }
        }
    }
}

impl Oracle {
    fn is_gone(&mut self, peer: IpAddr) -> bool {
        match self {
            Oracle::Folder(folder) => Shm::has_ended(folder, peer),
            Oracle::Udp(own, sockets) => {
                if let Entry::Vacant(place) = sockets.entry(peer)
                    && let Some(socket) = socket(*own, peer)
                {
                    place.insert(socket);
                }
                sockets.get(&peer).is_some_and(refuses)
            }
        }
    }
}
