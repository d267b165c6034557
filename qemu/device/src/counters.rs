//! The NICs' counters as JSON: a list with one object for each NIC.
//!
//! A counter that Linux also has, among the `hw_counters` of an RDMA device, has the same name
//! here.

use std::fs;
use std::io;
use std::path::Path;

use links::Link;
use nic_model::{Fabric, Frontend, NicId};
use serde_json::{Map, Value};

/// The counters of these NICs; each comes with the number of times that its doorbell woke the
/// device.
pub(crate) fn of_all<F>(fabric: &Fabric<F>, nics: impl Iterator<Item = (NicId, u64)>) -> Vec<u8>
where
    F: Frontend<Wire: Link>,
{
    let all: Vec<Value> = nics.map(|(nic, doorbells)| Value::Object(of(fabric, nic, doorbells))).collect();
    format!("{:#}", Value::Array(all)).into_bytes()
}

/// Replaces a file by these counters at once: a reader never sees a part.
pub fn replace(file: &Path, json: &[u8]) -> io::Result<()> {
    let mut draft = file.as_os_str().to_owned();
    draft.push(".new");
    fs::write(&draft, json)?;
    fs::rename(&draft, file)
}

fn of<F: Frontend<Wire: Link>>(fabric: &Fabric<F>, nic: NicId, doorbells: u64) -> Map<String, Value> {
    let mut all = Map::new();
    let mut add = |name: &str, count: u64| {
        all.insert(name.to_owned(), count.into());
    };
    add("doorbells", doorbells);
    if let Some(stats) = fabric.stats(nic) {
        add("send_rnr_err", stats.not_ready);
        add("link_downed", stats.link_downed);
        add("completed", stats.completed);
        add("flushed", stats.flushed);
        add("lost_requests", stats.lost_requests);
        add("lost_answers", stats.lost_answers);
        add("dropped_datagrams", stats.dropped_datagrams);
        add("refused_commands", stats.refused_commands);
        add("bad_doorbells", stats.bad_doorbells);
        add("bad_tails", stats.bad_tails);
        add("lost_completions", stats.lost_completions);
        add("interrupts", stats.interrupts);
        add("short_cut_segments", stats.short_cut_segments);
    }
    if let Some(port) = fabric.port_counters(nic) {
        for (name, count) in port.carried() {
            match name {
                "packets_out" => add("sent_pkts", count),
                "packets_in" => add("rcvd_pkts", count),
                _ => add(&format!("port_{name}"), count),
            }
        }
        for (name, count) in port.drops() {
            add(&format!("port_dropped_{name}"), count);
        }
        for (name, count) in fabric.packet_counters(nic).into_iter().flat_map(|packets| packets.drops()) {
            add(&format!("packet_dropped_{name}"), count);
        }
        if let Some(packets) = fabric.packet_counters(nic) {
            for (name, count) in packets.reasons().chain(packets.congestion()) {
                add(name, count);
            }
        }
    }
    for (name, count) in fabric.stream_counters(nic) {
        add(name, count);
    }
    if let Some(wire) = fabric.wire(nic) {
        for (name, count) in wire.counters().iter() {
            add(&format!("link_{name}"), count);
        }
    }
    all
}
