//! The rows of the table, with their floors and goals, and the baselines in `baselines.tsv`.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A row of the table.
pub struct Row {
    /// Its name in the file of baselines.
    pub key: &'static str,
    /// What is counted.
    pub text: &'static str,
    /// The project promises at most this much.
    pub floor: Option<f64>,
    /// What the project aims at.
    pub goal: Option<f64>,
    /// The row of the same operation in another API, and by how much this row may exceed it.
    pub above: Option<(&'static str, f64)>,
}

/// The instructions by which an operation of DAT may exceed that of IT-API.
pub const DAT_ABOVE: f64 = 20.0;
/// The instructions by which a call of libibverbs may exceed the operation of the API for Rust.
pub const VERBS_ABOVE: f64 = 60.0;

const fn row(key: &'static str, text: &'static str, floor: f64, goal: f64) -> Row {
    Row { key, text, floor: Some(floor), goal: Some(goal), above: None }
}

/// A row without a floor: only its growth is limited.
const fn watched(key: &'static str, text: &'static str) -> Row {
    Row { key, text, floor: None, goal: None, above: None }
}

/// A row of DAT. Its floor depends on the row of IT-API.
const fn dat(key: &'static str, text: &'static str, above: &'static str) -> Row {
    Row { key, text, floor: None, goal: None, above: Some((above, DAT_ABOVE)) }
}

/// A row of the verbs. Its floor depends on the row of the API for Rust.
const fn verbs(key: &'static str, text: &'static str, above: &'static str) -> Row {
    Row { key, text, floor: None, goal: None, above: Some((above, VERBS_ABOVE)) }
}

impl Row {
    /// The row with its floor, from the count of the other API's row in the same run.
    pub fn beside(&self, count: impl Fn(&str) -> Option<f64>) -> Row {
        let floor = self.above.and_then(|(other, most)| Some(count(other)? + most));
        Row { floor: self.floor.or(floor), ..*self }
    }
}

/// All rows, in the order of the table. Counts are instructions, unless the text says otherwise.
pub const ROWS: &[Row] = &[
    row("post_write", "post a Write of 1 segment, by handle", 130.0, 100.0),
    row("post_write_ref", "post a Write of 1 segment, by a borrowed endpoint", 105.0, 80.0),
    row("post_write_batch", "post a Write of 1 segment, in a batch of 16", 55.0, 45.0),
    row("post_write_4", "post a Write of 4 segments", 250.0, 150.0),
    watched("post_send", "post a Send of 1 segment"),
    row("post_recv", "post_recv", 140.0, 100.0),
    row("post_srq_recv", "post_recv to an SRQ", 230.0, 130.0),
    watched("post_write_immediate", "post a Write of 1 segment with immediate data"),
    watched("post_atomic", "post an atomic operation"),
    watched("post_sendto", "post_sendto"),
    watched("post_recvfrom", "post_recvfrom"),
    row("dequeue", "dequeue, 1 endpoint on the CQ", 80.0, 70.0),
    row("dequeue_16000", "dequeue, 16,000 endpoints on the CQ in turn", 90.0, 75.0),
    row("dequeue_srq", "dequeue of an SRQ's Receive", 250.0, 150.0),
    row("dequeue_ud", "dequeue of a datagram's Receive", 250.0, 150.0),
    row("dequeue_callback", "dequeue with a callback attached", 350.0, 150.0),
    row("dequeue_aggregate", "dequeue of an event from an aggregate", 350.0, 150.0),
    row("wait_ready", "evd_wait with an event ready", 400.0, 150.0),
    watched("dequeue_immediate", "dequeue of a Receive with immediate data"),
    watched("dequeue_empty", "dequeue from an empty queue"),
    row("dequeue_64", "a completion in a batch of 64", 42.0, 36.0),
    row("link_unlink", "link and unlink of 16 pages", 1200.0, 500.0),
    row("rdma_post_write", "rdma: post a Write of 1 slice", 100.0, 85.0),
    row("rdma_post_write_batch", "rdma: post a Write of 1 slice, in a batch of 16", 50.0, 45.0),
    watched("rdma_post_recv", "rdma: post a Receive"),
    row("rdma_poll", "rdma: poll a completion", 70.0, 60.0),
    watched("rdma_poll_16", "rdma: a completion in a poll of 16"),
    verbs("verbs_post_write", "ibv_post_send of a Write of 1 segment", "rdma_post_write"),
    verbs("verbs_post_recv", "ibv_post_recv", "rdma_post_recv"),
    verbs("verbs_poll", "ibv_poll_cq with a completion", "rdma_poll"),
    watched("verbs_poll_empty", "ibv_poll_cq without one"),
    row("storage_read", "storage: the target's part of a Read of 4 KiB", 4200.0, 3500.0),
    watched("storage_read_16", "storage: the same, of 16 at once"),
    watched("storage_read_pool", "storage: the same with memory of the pool"),
    watched("storage_write_capsule", "storage: a Write of 4 KiB in a capsule"),
    dat("dat_post_write", "DAT: post a Write of 1 segment", "post_write"),
    dat("dat_post_write_4", "DAT: post a Write of 4 segments", "post_write_4"),
    dat("dat_post_send", "DAT: post a Send of 1 segment", "post_send"),
    dat("dat_post_recv", "DAT: post a Receive", "post_recv"),
    dat("dat_post_srq_recv", "DAT: post a Receive to an SRQ", "post_srq_recv"),
    dat("dat_post_write_immed", "DAT: post a Write with immediate data", "post_write_immediate"),
    dat("dat_post_cmp_swap", "DAT: post a compare and swap", "post_atomic"),
    dat("dat_post_send_ud", "DAT: post a datagram", "post_sendto"),
    dat("dat_dequeue", "DAT: dequeue, 1 endpoint on the CQ", "dequeue"),
    dat("dat_dequeue_empty", "DAT: dequeue from an empty queue", "dequeue_empty"),
    dat("dat_dequeue_immed", "DAT: dequeue of a Receive with immediate data", "dequeue_immediate"),
    watched("via_format", "VIPL: format an RDMA Write of 1 segment"),
    row("via_post_send", "VIPL: post a Send of 1 segment to an empty queue", 120.0, 80.0),
    row("via_post_send_linked", "VIPL: post a Send of 1 segment behind another one", 120.0, 80.0),
    row("via_post_recv", "VIPL: post a Receive", 120.0, 80.0),
    row("via_send_done", "VIPL: SendDone", 120.0, 80.0),
    watched("via_send_done_empty", "VIPL: SendDone of an empty queue"),
    row("via_recv_done", "VIPL: RecvDone", 120.0, 80.0),
    row("via_cq_done", "VIPL: CQDone", 120.0, 80.0),
    row("device_write", "device, a 64-byte Write, marginal", 1250.0, 800.0),
    watched("device_vi_write", "device, a 64-byte Write of a virtual interface, marginal"),
    watched("device_idle", "device, a poll without work"),
    watched("packet_small", "device, a 64-byte Write over a port, both ends"),
    watched("packet_large", "device, a packet of 4096 bytes of a large Write, both ends"),
    watched("post_lines", "cache lines of one endpoint that a post touches"),
    watched("dequeue_lines", "cache lines of one endpoint that a dequeue touches"),
    watched("post_pages", "pages of one endpoint that a post touches"),
    watched("dequeue_pages", "pages of one endpoint that a dequeue touches"),
    row("ep_free", "ep_free with 10,000 regions against 1 (ratio)", 1.1, 1.0),
    row("endpoint_heap", "heap of an idle connected endpoint beside its queues (bytes)", 2048.0, 1024.0),
];

/// A count may exceed its baseline by this factor.
pub const GROWTH: f64 = 1.05;

/// The result of comparing a count with its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The goal is reached, too.
    Goal,
    /// The floor is kept.
    Pass,
    /// The floor is missed.
    Floor,
    /// The count has grown beyond [`GROWTH`].
    Grown,
    /// There is no baseline.
    New,
}

impl Verdict {
    /// Whether the row passes.
    pub fn holds(self) -> bool {
        matches!(self, Verdict::Goal | Verdict::Pass | Verdict::Floor)
    }

    /// The word in the table.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Goal => "goal",
            Verdict::Pass => "pass",
            Verdict::Floor => "FLOOR MISSED",
            Verdict::Grown => "GROWN",
            Verdict::New => "NO BASELINE",
        }
    }
}

/// Compares a count with its row and its baseline.
pub fn verdict(row: &Row, count: f64, baseline: Option<f64>) -> Verdict {
    // Counts are shown and kept with one digit after the point; ratios need two.
    let at_most = |limit: f64| count <= limit + 0.005;
    match baseline {
        None => Verdict::New,
        Some(baseline) if !at_most(baseline * GROWTH) => Verdict::Grown,
        Some(_) if row.floor.is_some_and(|floor| !at_most(floor)) => Verdict::Floor,
        Some(_) if row.goal.is_some_and(at_most) => Verdict::Goal,
        Some(_) => Verdict::Pass,
    }
}

/// Reads a file of baselines: a line for each row, `KEY<tab>COUNT`.
pub fn parse(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (key, count) = line.split_once('\t')?;
        Some((key.to_owned(), count.trim().parse().ok()?))
    };
    lines.map(|line| entry(line).ok_or_else(|| format!("not a baseline: {line:?}"))).collect()
}

/// The text of a file of baselines.
pub fn format(baselines: &BTreeMap<String, f64>) -> String {
    let mut text = String::from(
        "# The counts of `cargo bench --bench instructions`. `-- --check` fails if one grows by more\n\
         # than 5 %; `-- --write` replaces them.\n",
    );
    for row in ROWS {
        if let Some(count) = baselines.get(row.key) {
            let _ = writeln!(text, "{}\t{}", row.key, shown(*count));
        }
    }
    text
}

/// A count as the table shows it.
pub fn shown(count: f64) -> String {
    let digits = if count < 10.0 { 2 } else { usize::from(count.fract().abs() > 0.04) };
    format!("{count:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = row("key", "text", 130.0, 100.0);

    #[test]
    fn a_count_passes_within_its_floor_and_five_percent_of_its_baseline() {
        let verdicts = [
            (100.0, Some(100.0), Verdict::Goal),
            (105.0, Some(100.0), Verdict::Pass),
            (106.0, Some(100.0), Verdict::Grown),
            (130.0, Some(129.0), Verdict::Pass),
            (131.0, Some(131.0), Verdict::Floor),
            (131.0, Some(100.0), Verdict::Grown),
            (90.0, None, Verdict::New),
        ];
        for (count, baseline, expected) in verdicts {
            assert_eq!(verdict(&ROW, count, baseline), expected, "{count} after {baseline:?}");
        }
        assert_eq!(verdict(&watched("key", "text"), 1e6, Some(1e6)), Verdict::Pass);
    }

    #[test]
    fn a_row_of_dat_has_its_floor_above_that_of_it_api() {
        let counts = |key: &str| (key == "post_write").then_some(100.0);
        let of = |row: &Row| row.beside(counts).floor;
        assert_eq!(of(&dat("a", "text", "post_write")), Some(120.0));
        assert_eq!(of(&dat("a", "text", "post_send")), None);
        assert_eq!(of(&verbs("a", "text", "post_write")), Some(160.0));
        assert_eq!((of(&ROW), of(&watched("a", "text"))), (Some(130.0), None));
        for row in ROWS {
            let known = row.above.is_none_or(|(above, _)| ROWS.iter().any(|other| other.key == above));
            assert!(known, "{}", row.key);
        }
    }

    #[test]
    fn baselines_survive_the_file() {
        let baselines: BTreeMap<_, _> = ROWS.iter().map(|row| (row.key.to_owned(), 41.5)).collect();
        assert_eq!(baselines.len(), ROWS.len(), "two rows have one key");
        assert_eq!(parse(&format(&baselines)), Ok(baselines));
        assert!(parse("key\tmany\n").is_err() && parse("key 5\n").is_err());
        assert_eq!(
            (shown(1.07), shown(50.6875), shown(1448.0)),
            ("1.07".into(), "50.7".into(), "1448".into())
        );
    }

    #[test]
    fn every_row_has_a_baseline() {
        let baselines = parse(include_str!("../baselines.tsv")).expect("the file");
        for row in ROWS {
            assert!(baselines.contains_key(row.key), "{}", row.key);
        }
        assert_eq!(baselines.len(), ROWS.len(), "a baseline has no row");
    }
}
