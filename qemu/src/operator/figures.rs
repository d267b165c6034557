//! The target's figures in Prometheus's text format (version 0.0.4). `targets/storage` makes the
//! JSON that they come from.
//!
//! All labels are bounded: 64 namespaces, 8 ports, 65 hosts, 256 queues, and the statuses that the
//! target tells apart.

use std::collections::BTreeMap;
use std::fmt::Write;

use nvme::log::AnaState;
use serde_json::Value;

/// The logarithm of the end of a histogram's first bucket in nanoseconds (`storage::target`).
pub(super) const FIRST_BUCKET: u32 = 13;
/// The prefix of all names.
const PREFIX: &str = "ferrovia_nvmf_";

/// A metric: its type, its help, and its lines.
struct Metric {
    kind: &'static str,
    help: &'static str,
    lines: String,
}

/// All metrics, by name.
#[derive(Default)]
struct Page(BTreeMap<&'static str, Metric>);

/// A label and its value.
type Label<'a> = (&'a str, String);

impl Page {
    fn metric(&mut self, name: &'static str, kind: &'static str, help: &'static str) -> &mut String {
        &mut self.0.entry(name).or_insert(Metric { kind, help, lines: String::new() }).lines
    }

    fn add(
        &mut self,
        (name, kind, help): (&'static str, &'static str, &'static str),
        labels: &[Label<'_>],
        value: &Value,
    ) {
        let value = value.as_u64().unwrap_or_default();
        let lines = self.metric(name, kind, help);
        line(lines, name, "", labels, &value.to_string());
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, Metric { kind, help, lines }) in &self.0 {
            let _ = write!(text, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n{lines}");
        }
        text
    }
}

fn line(lines: &mut String, name: &str, suffix: &str, labels: &[Label<'_>], value: &str) {
    let _ = write!(lines, "{PREFIX}{name}{suffix}");
    for (n, (label, text)) in labels.iter().enumerate() {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(lines, "{}{label}=\"{text}\"", if n == 0 { '{' } else { ',' });
    }
    let end = if labels.is_empty() { "" } else { "}" };
    let _ = writeln!(lines, "{end} {value}");
}

/// The page without figures: the target does not answer.
pub(crate) fn down() -> String {
    page_with(0).text()
}

fn page_with(up: u64) -> Page {
    let mut page = Page::default();
    page.add(("up", "gauge", "Whether the target answers."), &[], &up.into());
    let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
    page.add(("build_info", "gauge", "The version."), &version, &1.into());
    page
}

/// The page with these figures.
pub(crate) fn page(figures: &Value) -> String {
    let mut page = page_with(1);
    for (key, name, kind, help) in [
        ("connections", "connections", "gauge", "Queues that are connected."),
        ("all_controllers", "controllers", "gauge", "Controllers, those of the discovery service, too."),
        ("accepted", "connections_accepted_total", "counter", "Connections that were accepted."),
        (
            "broken",
            "connections_broken_total",
            "counter",
            "Connections that broke, or whose host broke a rule.",
        ),
        ("keep_alive_expired", "keep_alive_expired_total", "counter", "Controllers whose host was silent."),
        ("media_errors", "media_errors_total", "counter", "Requests that a disk failed."),
        ("authenticated", "authenticated_total", "counter", "Queues whose host has authenticated."),
        ("not_authenticated", "authentication_failures_total", "counter", "Queues whose host has not."),
        ("copied", "copied_bytes_total", "counter", "Bytes that disks have copied which lend memory."),
        ("postponed", "postponed", "gauge", "Capsules that wait for an entry."),
        ("sleeps", "wakeups_total", "counter", "How often the target's thread slept and woke up."),
    ] {
        page.add((name, kind, help), &[], &figures[key]);
    }
    for (key, kind) in [("refused", "connection"), ("unconnected", "connect_command")] {
        for (reason, count) in figures[key].as_object().into_iter().flatten() {
            let labels = [("kind", kind.to_owned()), ("reason", reason.clone())];
            let what = "Connections and Connect commands that were refused, by code.";
            page.add(("connects_refused_total", "counter", what), &labels, count);
        }
    }
    for namespace in list(&figures["namespaces"]) {
        of_namespace(&mut page, namespace);
    }
    for host in list(&figures["hosts"]) {
        let name = text(&host["host"]);
        for op in ["read", "write", "other"] {
            let labels = [("hostnqn", name.clone()), ("op", op.to_owned())];
            page.add(("host_requests_total", "counter", "Commands of a host."), &labels, &host[op][0]);
            page.add(("host_bytes_total", "counter", "Bytes of a host's commands."), &labels, &host[op][1]);
        }
        let labels = [("hostnqn", name)];
        page.add(
            ("host_errors_total", "counter", "Commands of a host that failed."),
            &labels,
            &host["errors"],
        );
    }
    for controller in list(&figures["controllers"]) {
        let id = controller["id"].to_string();
        let labels = [
            ("cntlid", id.clone()),
            ("hostnqn", text(&controller["host"])),
            ("hostid", text(&controller["host_id"])),
        ];
        page.add(("host_info", "gauge", "A controller, and its host."), &labels, &1.into());
        for queue in list(&controller["queues"]) {
            let labels = [("cntlid", id.clone()), ("qid", queue[0].to_string())];
            page.add(("queue_depth", "gauge", "Entries of a queue."), &labels, &queue[1]);
            let help = "Commands that a queue has outstanding.";
            page.add(("queue_outstanding", "gauge", help), &labels, &queue[2]);
        }
    }
    page.text()
}

fn of_namespace(page: &mut Page, namespace: &Value) {
    let nsid = ("nsid", namespace["nsid"].to_string());
    let labels = [nsid.clone(), ("uuid", text(&namespace["uuid"])), ("state", text(&namespace["state"]))];
    page.add(("namespace_info", "gauge", "A namespace, and what it does."), &labels, &1.into());
    let own = [nsid.clone()];
    for (port, state) in namespace["ana"].as_object().into_iter().flatten() {
        let Ok(state) = text(state).parse::<AnaState>() else { continue };
        let labels = [nsid.clone(), ("port", port.clone())];
        let help = "How well hosts reach a namespace by a port: the number of its ANA state.";
        page.add(("ana_state", "gauge", help), &labels, &(state as u8).into());
    }
    page.add(("namespace_size_bytes", "gauge", "The size of a namespace."), &own, &namespace["bytes"]);
    page.add(("disk_outstanding", "gauge", "Requests that a disk has."), &own, &namespace["on_disk"]);
    for (place, size) in ["small", "large"].into_iter().enumerate() {
        for (key, state) in [("free", "free"), ("chunks", "all")] {
            let labels = [nsid.clone(), ("size", size.to_owned()), ("state", state.to_owned())];
            let help = "Pieces of memory for data: 8 KiB and 128 KiB.";
            page.add(("pool_chunks", "gauge", help), &labels, &namespace[key][place]);
        }
    }
    for (status, count) in namespace["errors"].as_object().into_iter().flatten() {
        let labels = [nsid.clone(), ("status", status.clone())];
        page.add(("errors_total", "counter", "Commands that failed, by status."), &labels, count);
    }
    for (op, figures) in namespace["operations"].as_object().into_iter().flatten() {
        let labels = [nsid.clone(), ("op", op.clone())];
        page.add(("requests_total", "counter", "Commands that succeeded."), &labels, &figures["requests"]);
        page.add(("bytes_total", "counter", "Bytes of these commands."), &labels, &figures["bytes"]);
        let (name, help) = ("request_duration_seconds", "From a command's capsule to its response.");
        let lines = page.metric(name, "histogram", help);
        let (buckets, mut count) = (list(&figures["latency"]), 0);
        for (place, bucket) in (0..).zip(buckets) {
            count += bucket.as_u64().unwrap_or_default();
            let is_last = place + 1 == buckets.len();
            let end = 2_f64.powi((FIRST_BUCKET as usize + place) as i32) / 1e9;
            let end = if is_last { "+Inf".to_owned() } else { end.to_string() };
            let labels = [&labels[..], &[("le", end)]].concat();
            line(lines, name, "_bucket", &labels, &count.to_string());
        }
        let seconds = figures["nanoseconds"].as_u64().unwrap_or_default() as f64 / 1e9;
        line(lines, name, "_sum", &labels, &seconds.to_string());
        line(lines, name, "_count", &labels, &count.to_string());
    }
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn figures() -> Value {
        let latency: Vec<u64> = (0..22).map(|n| u64::from(n == 1 || n == 21)).collect();
        json!({
            "connections": 3, "keep_alive_expired": 2, "refused": {"0x7": 4},
            "namespaces": [{
                "nsid": 1, "uuid": "u", "state": "serving", "bytes": 4096, "ana": {"2": "inaccessible"},
                "free": [1, 2], "chunks": [3, 4],
                "errors": {"0x281": 5, "other": 6},
                "operations": {"read": {"requests": 2, "bytes": 8192, "nanoseconds": 3_000_000_000_u64,
                                         "latency": latency}},
            }],
            "hosts": [{"host": "nqn.\"x\\", "read": [7, 8], "write": [0, 0], "other": [1, 0], "errors": 9}],
            "controllers": [{"id": 1, "host": "h", "host_id": "i", "queues": [[0, 32, 4], [1, 128, 0]]}],
        })
    }

    #[test]
    fn figures_become_lines_of_prometheus() {
        let page = page(&figures());
        for line in [
            "ferrovia_nvmf_up 1",
            "ferrovia_nvmf_connections 3",
            "ferrovia_nvmf_keep_alive_expired_total 2",
            "ferrovia_nvmf_connects_refused_total{kind=\"connection\",reason=\"0x7\"} 4",
            "ferrovia_nvmf_namespace_size_bytes{nsid=\"1\"} 4096",
            "ferrovia_nvmf_ana_state{nsid=\"1\",port=\"2\"} 3",
            "ferrovia_nvmf_pool_chunks{nsid=\"1\",size=\"large\",state=\"free\"} 2",
            "ferrovia_nvmf_errors_total{nsid=\"1\",status=\"0x281\"} 5",
            "ferrovia_nvmf_bytes_total{nsid=\"1\",op=\"read\"} 8192",
            "ferrovia_nvmf_request_duration_seconds_bucket{nsid=\"1\",op=\"read\",le=\"0.000008192\"} 0",
            "ferrovia_nvmf_request_duration_seconds_bucket{nsid=\"1\",op=\"read\",le=\"0.000016384\"} 1",
            "ferrovia_nvmf_request_duration_seconds_bucket{nsid=\"1\",op=\"read\",le=\"+Inf\"} 2",
            "ferrovia_nvmf_request_duration_seconds_sum{nsid=\"1\",op=\"read\"} 3",
            "ferrovia_nvmf_request_duration_seconds_count{nsid=\"1\",op=\"read\"} 2",
            "ferrovia_nvmf_host_requests_total{hostnqn=\"nqn.\\\"x\\\\\",op=\"read\"} 7",
            "ferrovia_nvmf_queue_outstanding{cntlid=\"1\",qid=\"0\"} 4",
            "# TYPE ferrovia_nvmf_request_duration_seconds histogram",
        ] {
            assert!(page.lines().any(|one| one == line), "no {line} in:\n{page}");
        }
    }

    /// Prometheus refuses a page in which the lines of a metric are apart, or come twice.
    #[test]
    fn each_metric_is_described_once_before_its_lines() {
        let (mut metrics, mut lines) = (BTreeSet::new(), BTreeSet::new());
        let mut current = String::new();
        for line in page(&figures()).lines() {
            if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) {
                assert!(metrics.insert(name.to_owned()), "{name} twice");
                current = name.to_owned();
            } else if !line.starts_with('#') {
                assert!(line.starts_with(&current), "{line} is none of {current}");
                assert!(lines.insert(line.rsplit_once(' ').expect("a value").0.to_owned()), "{line} twice");
            }
        }
        assert!(down().contains("ferrovia_nvmf_up 0\n"));
    }
}
