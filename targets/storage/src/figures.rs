//! What the operator sees, as JSON.

use alloc::format;
use alloc::string::{String, ToString};

use serde_json::{Map, Value, json};
use storage::target::{
    Carried, ControllerInfo, Done, Metrics, NamespaceInfo, NamespaceState, OPERATIONS, Overview, PortInfo,
    SubsystemConfig, Tally, TargetState,
};

use crate::operator::Source;

pub fn uuid(bytes: &[u8; 16]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}

/// A namespace, and how well hosts reach it by each port.
fn namespace(info: &NamespaceInfo, ports: &[PortInfo]) -> Value {
    let state = match info.state {
        NamespaceState::Serving => "serving",
        NamespaceState::Silent => "silent",
        NamespaceState::Gone => "gone",
        NamespaceState::Leaving => "leaving",
    };
    let ana = ports.iter().zip(&info.ana_states);
    let ana = ana.map(|(port, state)| (port.id.to_string(), state.to_string().into()));
    json!({
        "nsid": info.nsid,
        "subsystem": info.subsystem,
        "uuid": uuid(&info.uuid),
        "block_size": info.block_size,
        "bytes": info.blocks * u64::from(info.block_size),
        "read_only": info.is_read_only,
        "disk_queues": info.disk_queues,
        "state": state,
        "ana": ana.collect::<Map<String, Value>>(),
    })
}

fn controller(info: &ControllerInfo) -> Value {
    let queues = info.queues.iter();
    json!({
        "id": info.id,
        "subsystem": info.subsystem,
        "host": info.host,
        "host_id": uuid(&info.host_id),
        "port": info.port,
        "address": info.address.map(|address| address.to_string()),
        "keep_alive_ms": info.keep_alive,
        "queues": queues.map(|queue| json!([queue.id, queue.entries, queue.outstanding])).collect::<Value>(),
    })
}

/// A subsystem; without `hosts`, the first one may be used by any host, and another one by those
/// of the first.
fn subsystem(info: &SubsystemConfig) -> Value {
    let mut one = json!({"nqn": info.nqn, "serial": info.serial});
    if let Some(hosts) = &info.hosts {
        one["hosts"] = hosts.clone().into();
    }
    one
}

fn port(info: &PortInfo) -> Value {
    let addresses = info.addresses.iter().map(ToString::to_string);
    json!({"id": info.id, "addresses": addresses.collect::<Value>(), "serves": info.serves})
}

pub fn overview(overview: &Overview, sources: &[(u32, Source)]) -> Value {
    let state = match overview.state {
        TargetState::Serving => "serving",
        TargetState::Draining => "draining",
        TargetState::Drained => "drained",
    };
    let with_source = |info: &NamespaceInfo| {
        let mut one = namespace(info, &overview.ports);
        match sources.iter().find(|(nsid, _)| *nsid == info.nsid) {
            Some((_, Source::Ram(_))) => one["ram"] = true.into(),
            Some((_, Source::Disk(number))) => one["disk"] = (*number).into(),
            None => {}
        }
        one
    };
    json!({
        "state": state,
        "nqn": overview.nqn,
        "subsystems": overview.subsystems.iter().map(subsystem).collect::<Value>(),
        "ports": overview.ports.iter().map(port).collect::<Value>(),
        "namespaces": overview.namespaces.iter().map(with_source).collect::<Value>(),
        "controllers": overview.controllers.iter().map(controller).collect::<Value>(),
        "discovery": overview.discovery.iter().map(controller).collect::<Value>(),
    })
}

fn tally(tally: &Tally) -> Value {
    let mut all: Map<String, Value> =
        tally.iter().map(|(reason, count)| (format!("{reason:#x}"), count.into())).collect();
    if tally.others() > 0 {
        all.insert("other".into(), tally.others().into());
    }
    Value::Object(all)
}

fn done(done: &Done) -> Value {
    json!([done.requests, done.bytes])
}

fn carried(carried: &Carried) -> Value {
    json!({
        "read": done(&carried.reads),
        "write": done(&carried.writes),
        "other": done(&carried.others),
        "errors": carried.errors,
    })
}

pub fn metrics(metrics: &Metrics) -> Value {
    let totals = &metrics.totals;
    let namespaces = metrics.namespaces.iter().map(|one| {
        let mut figures = namespace(&one.info, &metrics.ports);
        let of_kinds = OPERATIONS.iter().zip(&one.counted.operations);
        let kinds: Map<String, Value> = of_kinds
            .filter(|(_, timed)| timed.done.requests > 0)
            .map(|(kind, timed)| {
                let figures = json!({
                    "requests": timed.done.requests,
                    "bytes": timed.done.bytes,
                    "nanoseconds": timed.nanoseconds,
                    "latency": timed.latency.as_slice(),
                });
                (kind.to_string(), figures)
            })
            .collect();
        figures["operations"] = Value::Object(kinds);
        figures["errors"] = tally(&one.counted.errors);
        figures["free"] = json!(one.free);
        figures["chunks"] = json!(one.chunks);
        figures["on_disk"] = one.on_disk.into();
        figures
    });
    let hosts = metrics.hosts.iter().map(|host| {
        let mut figures = carried(&host.carried);
        figures["host"] = host.nqn.as_str().into();
        figures
    });
    json!({
        "connections": totals.connections,
        "all_controllers": totals.controllers,
        "accepted": totals.accepted,
        "reads": totals.reads,
        "writes": totals.writes,
        "bytes_read": totals.bytes_read,
        "bytes_written": totals.bytes_written,
        "errors": totals.errors,
        "broken": totals.broken,
        "keep_alive_expired": totals.expired,
        "media_errors": totals.media,
        "authenticated": totals.authenticated,
        "not_authenticated": totals.not_authenticated,
        "copied": totals.copied,
        "namespaces": namespaces.collect::<Value>(),
        "hosts": hosts.collect::<Value>(),
        "controllers": metrics.controllers.iter().map(controller).collect::<Value>(),
        "postponed": metrics.postponed,
        "refused": tally(&metrics.refused),
        "unconnected": tally(&metrics.unconnected),
        "sleeps": metrics.sleeps,
    })
}
