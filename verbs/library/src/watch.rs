//! Peers that are gone: processes that ended without a word.
//!
//! With a NIC, the kernel ends the connections of a process that dies. Here the NIC dies with the
//! process, and a peer that only waits for a message would wait for ever. Between processes of one
//! machine its kernel says that nobody has the port any more, if it is asked: once a second a
//! thread sends a datagram without content to the port of each peer, from a socket of its own. A
//! device drops such a datagram. Of other machines nobody is asked: one with an RNIC has no socket
//! there.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use verbs::cm::connection;

/// RoCEv2's port.
const PORT: u16 = 4791;
/// How often each peer is asked.
const ROUND: Duration = Duration::from_secs(1);
/// Peers that are watched at most; connections with others end as their requests fail.
const MOST_PEERS: usize = 256;

/// Whether nobody has the port at the other end. The answer to a datagram may have come when the
/// next one is sent.
fn is_gone(peer: &UdpSocket) -> bool {
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

/// Ends the connections of a link by UDP at `own`, an address of loopback, whose peers are gone;
/// for ever.
pub fn watch(own: IpAddr) {
    let mut sockets: HashMap<IpAddr, UdpSocket> = HashMap::new();
    loop {
        std::thread::sleep(ROUND);
        let peers = connection::peers();
        sockets.retain(|peer, _| peers.contains(peer));
        for peer in peers.into_iter().take(MOST_PEERS) {
            if let std::collections::hash_map::Entry::Vacant(place) = sockets.entry(peer)
                && let Some(socket) = socket(own, peer)
            {
                place.insert(socket);
            }
            if sockets.get(&peer).is_some_and(is_gone) {
                sockets.remove(&peer);
                connection::lost(peer);
            }
        }
    }
}
