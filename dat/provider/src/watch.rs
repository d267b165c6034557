//! Connections whose peers are gone.
//!
//! Here a NIC dies with its process, without a word. Where the kernel knows who has ended
//! (`process_nic`), connections with such a peer end as if it had disconnected.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use dat::{CloseFlags, EpHandle, EpParamMask, EpState, ServiceType};
use process_nic::Peers;

use crate::cells::{cells, word};
use crate::opened::{Adapter, Opened};

pub(crate) const PEERS: Peers = Peers { all, lost };

/// The connected endpoints of all IAs that are open, and the peer's address of each.
fn each_connected() -> Vec<(Arc<Opened>, EpHandle, IpAddr)> {
    let (Some(cells), mut found) = (cells(), Vec::new()) else { return Vec::new() };
    for adapter in Adapter::all() {
        let Some(opened) = adapter.opened() else { continue };
        for object in cells.of(adapter) {
            // Of an object of another type the query fails.
            let ep = EpHandle::from_raw(word(object));
            let Ok(param) = opened.ia.ep_query(ep, EpParamMask::ALL) else { continue };
            // Datagrams go to many.
            if param.ep_attr.service_type != ServiceType::RC {
                continue;
            }
            if let (EpState::Connected, Some(peer)) = (param.ep_state, param.remote_ia_address) {
                found.push((opened.clone(), ep, peer));
            }
        }
    }
    found
}

fn all() -> BTreeSet<IpAddr> {
    each_connected().into_iter().map(|(_, _, peer)| peer).collect()
}

fn lost(peer: IpAddr) {
    for (opened, ep, _) in each_connected().into_iter().filter(|(_, _, of)| *of == peer) {
        // Fails if the connection has ended by itself.
        let _ = opened.ia.ep_disconnect(ep, CloseFlags::Abrupt);
    }
}
