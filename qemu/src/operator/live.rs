//! A view of a target's figures that follows them (`storage-ctl SOCKET --live`): a table of the
//! last second, by namespace and kind of command, by host, and by queue.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client;
use super::figures::{FIRST_BUCKET, list};
use crate::error::{Error, Result};

/// The time between two views.
const PERIOD: Duration = Duration::from_secs(1);
/// Clears a terminal, and begins at its top.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// The most columns of a host's name.
const NAME: usize = 48;

/// Shows the view again and again, until the target has ended or somebody ends this process.
pub(crate) fn run(socket: &Path) -> Result<u8> {
    let failed = |source| Error::File { path: "standard output".into(), source };
    let (mut output, mut before) = (std::io::stdout(), figures(socket)?);
    let mut at = Instant::now();
    let start = if output.is_terminal() { CLEAR } else { "" };
    loop {
        std::thread::sleep(PERIOD);
        let now = figures(socket)?;
        let took = at.elapsed();
        at = Instant::now();
        match output.write_all(format!("{start}{}\n", view(&before, &now, took)).as_bytes()) {
            // The program that read the output has ended.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(0),
            other => other.map_err(failed)?,
        }
        output.flush().map_err(failed)?;
        before = now;
    }
}

fn figures(socket: &Path) -> Result<Value> {
    client::answer_of(socket, &["metrics".to_owned()])
}

/// What has happened between two figures.
fn view(before: &Value, now: &Value, took: Duration) -> String {
    let rates = Rates { seconds: took.as_secs_f64().max(0.001) };
    let mut text = format!(
        "{} connections, {} controllers, {} capsules wait; {} errors/s\n",
        count(&now["connections"]),
        count(&now["all_controllers"]),
        count(&now["postponed"]),
        rates.of(&before["errors"], &now["errors"]),
    );
    text.push_str("\nnsid  command           requests/s      MiB/s     p50 µs     p99 µs  on disk  state\n");
    for namespace in list(&now["namespaces"]) {
        let nsid = count(&namespace["nsid"]);
        let earlier = same(&before["namespaces"], namespace, "nsid");
        let state = namespace["state"].as_str().unwrap_or_default();
        let mut shown = 0;
        for (op, figures) in namespace["operations"].as_object().into_iter().flatten() {
            let earlier = &earlier["operations"][op];
            let times = Times::between(earlier, figures);
            if times.0.iter().sum::<u64>() == 0 {
                continue;
            }
            shown += 1;
            let _ = writeln!(
                text,
                "{nsid:>4}  {op:<14} {:>13} {:>10.1} {:>10} {:>10} {:>8}  {state}",
                rates.of(&earlier["requests"], &figures["requests"]),
                rates.mib(&earlier["bytes"], &figures["bytes"]),
                times.percentile(50),
                times.percentile(99),
                count(&namespace["on_disk"]),
            );
        }
        if shown == 0 {
            let idle = "";
            let on_disk = count(&namespace["on_disk"]);
            let _ = writeln!(text, "{nsid:>4}  {:<14} {idle:>46} {on_disk:>8}  {state}", "idle");
        }
    }
    let _ = writeln!(
        text,
        "\n{:<NAME$}  {:>9} {:>9} {:>9} {:>9} {:>9}",
        "host", "reads/s", "MiB/s", "writes/s", "MiB/s", "errors/s"
    );
    for host in list(&now["hosts"]) {
        let earlier = same(&before["hosts"], host, "host");
        let name = match host["host"].as_str() {
            None | Some("") => "others",
            Some(name) => name,
        };
        // The end of a name tells hosts apart.
        let start = name.char_indices().rev().nth(NAME - 1).map_or(0, |(place, _)| place);
        let _ = writeln!(
            text,
            "{:<NAME$}  {:>9} {:>9.1} {:>9} {:>9.1} {:>9}",
            &name[start..],
            rates.of(&earlier["read"][0], &host["read"][0]),
            rates.mib(&earlier["read"][1], &host["read"][1]),
            rates.of(&earlier["write"][0], &host["write"][0]),
            rates.mib(&earlier["write"][1], &host["write"][1]),
            rates.of(&earlier["errors"], &host["errors"]),
        );
    }
    text.push_str("\ncontroller  outstanding of entries, by queue\n");
    for controller in list(&now["controllers"]) {
        let _ = write!(text, "{:>10} ", count(&controller["id"]));
        for queue in list(&controller["queues"]) {
            let _ = write!(text, " {}/{}", count(&queue[2]), count(&queue[1]));
        }
        text.push('\n');
    }
    text
}

/// The entry of a list that has the same name as another entry; nothing if there is none.
fn same<'a>(entries: &'a Value, entry: &Value, name: &str) -> &'a Value {
    list(entries).iter().find(|one| one[name] == entry[name]).unwrap_or(&Value::Null)
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Differences of counters in some time.
struct Rates {
    seconds: f64,
}

impl Rates {
    /// How many a second. A counter that has begun again counts from 0.
    fn of(&self, before: &Value, now: &Value) -> u64 {
        (count(now).saturating_sub(count(before)) as f64 / self.seconds).round() as u64
    }

    fn mib(&self, before: &Value, now: &Value) -> f64 {
        count(now).saturating_sub(count(before)) as f64 / self.seconds / f64::from(1 << 20)
    }
}

/// How many commands have taken how long, by bucket.
struct Times(Vec<u64>);

impl Times {
    fn between(before: &Value, now: &Value) -> Times {
        let earlier = list(&before["latency"]);
        let of = |(place, value): (usize, &Value)| {
            count(value).saturating_sub(earlier.get(place).map_or(0, count))
        };
        Times(list(&now["latency"]).iter().enumerate().map(of).collect())
    }

    /// The time in microseconds within which so many of a hundred commands have ended: the end of
    /// the bucket.
    fn percentile(&self, percent: u64) -> String {
        let wanted = (self.0.iter().sum::<u64>() * percent).div_ceil(100);
        let mut sum = 0;
        let place = self.0.iter().position(|of_bucket| {
            sum += of_bucket;
            sum >= wanted
        });
        let micros = |place: usize| (1_u64 << (FIRST_BUCKET as usize + place)) / 1000;
        match place {
            // The last bucket has no end.
            Some(place) if place + 1 == self.0.len() => format!(">{}", micros(place - 1)),
            Some(place) => format!("<{}", micros(place)),
            None => "-".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures(reads: [u64; 3], bytes: u64) -> Value {
        let latency: Vec<u64> = (0..22)
            .map(|place| match place {
                1 => reads[0],
                4 => reads[1],
                21 => reads[2],
                _ => 0,
            })
            .collect();
        let requests: u64 = reads.iter().sum();
        json!({
            "connections": 3, "all_controllers": 1, "postponed": 0, "errors": reads[2],
            "namespaces": [
                {"nsid": 1, "state": "serving", "on_disk": 7, "operations": {
                    "read": {"requests": requests, "bytes": bytes, "latency": latency},
                    "write": {"requests": 9, "bytes": 9, "latency": [9, 0]},
                }},
                {"nsid": 2, "state": "silent", "on_disk": 1, "operations": {}},
            ],
            "hosts": [{"host": "nqn.x", "read": [requests, bytes], "write": [9, 9], "errors": 0}],
            "controllers": [{"id": 5, "queues": [[0, 32, 1], [1, 128, 64]]}],
        })
    }

    fn has(text: &str, words: &str) {
        let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.lines().any(|one| line(one) == words), "no line {words:?} in:\n{text}");
    }

    #[test]
    fn a_view_shows_what_has_happened_since_the_last_one() {
        let (before, now) = (figures([10, 0, 0], 1 << 20), figures([110, 100, 0], 9 << 20));
        let text = view(&before, &now, Duration::from_secs(2));
        has(&text, "3 connections, 1 controllers, 0 capsules wait; 0 errors/s");
        // The median is in the bucket that ends at 2^14 ns.
        has(&text, "1 read 100 4.0 <16 <131 7 serving");
        has(&text, "2 idle 1 silent");
        has(&text, "nqn.x 100 4.0 0 0.0 0");
        has(&text, "5 1/32 64/128");
        assert!(!text.contains("write  "), "nothing was written:\n{text}");
    }

    #[test]
    fn times_without_an_end_and_figures_that_began_again_are_no_fault() {
        let text = view(&figures([0, 0, 0], 0), &figures([0, 1, 99], 0), Duration::ZERO);
        has(&text, "1 read 100000 0.0 >8589934 >8589934 7 serving");
        let text = view(&figures([5, 5, 5], 1 << 30), &figures([1, 0, 0], 10), Duration::from_secs(1));
        has(&text, "1 idle 7 serving");
        has(&view(&Value::Null, &Value::Null, Duration::ZERO), "controller outstanding of entries, by queue");
    }
}
