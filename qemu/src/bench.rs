//! The benchmarks: each figure beside its baseline from the same run, as a table and as JSON.
//!
//! The image writes `@bench NAME|VALUE|P99|UNIT|BASELINE` for a figure, with `-` where there is
//! none. It writes `@mark entry` and `@mark first-write` when it gets there; the times since QEMU's
//! start are taken here.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::launch::{Launcher, is_crash, print_line};
use crate::options::Options;
use crate::pair;
use crate::progress::Progress;
use crate::vm::Event;

/// One measured figure.
#[derive(Clone, Debug, PartialEq)]
struct Figure {
    name: String,
    value: f64,
    p99: Option<f64>,
    unit: String,
    baseline: Option<f64>,
}

impl Figure {
    /// Reads the rest of a line after `@bench `.
    fn parse(text: &str) -> Option<Figure> {
        let mut fields = text.split('|').map(str::trim);
        let number = |field: &str| field.parse::<f64>().ok().filter(|x| x.is_finite());
        let optional = |field: &str| if field == "-" { Some(None) } else { number(field).map(Some) };
        let figure = Figure {
            name: fields.next().filter(|name| !name.is_empty())?.to_owned(),
            value: number(fields.next()?)?,
            p99: optional(fields.next()?)?,
            unit: fields.next()?.to_owned(),
            baseline: optional(fields.next()?)?,
        };
        fields.next().is_none().then_some(figure)
    }

    fn ratio(&self) -> Option<f64> {
        self.baseline.filter(|&baseline| baseline != 0.0).map(|baseline| self.value / baseline)
    }
}

/// Runs the benchmarks, prints the table, and writes the JSON file if one is wanted; returns the
/// image's status.
pub fn bench(options: &Options, json: Option<&Path>) -> Result<u8> {
    // Tried before the run, so that a file that can't be written costs no run.
    let write_json = |figures: &[Figure]| match json {
        Some(path) => std::fs::write(path, to_json(figures))
            .map_err(|source| Error::File { path: path.to_owned(), source }),
        None => Ok(()),
    };
    write_json(&[])?;
    if cfg!(debug_assertions) {
        complain!(
            "ferrovia: this is not a release build; `cargo run --release -- bench` gives figures that count"
        );
    }
    let launcher = Launcher::prepare(options, "bench")?;
    let mut boot = Boot::default();
    let mut figures = Vec::new();
    let progress = Progress::begin("bench");
    progress.message("booting");
    let mut guest = launcher.start(&[])?;
    let deadline = launcher.deadline(guest.started());
    let mut crashed = false;
    let status = loop {
        match guest.next(deadline)? {
            Event::Line(line) => {
                crashed |= is_crash(&line);
                match line.strip_prefix('@').filter(|_| !crashed).and_then(|line| line.split_once(' ')) {
                    Some(("mark", name)) => boot.mark(name, guest.started()),
                    Some(("bench", text)) => match Figure::parse(text) {
                        Some(figure) => {
                            progress.message(format!("measured {}", figure.name));
                            figures.push(figure);
                        }
                        None => complain!("ferrovia: not a figure: {text}"),
                    },
                    _ => launcher.symbols().annotate(&line).iter().for_each(|line| complain!("{line}")),
                }
            }
            Event::FirstThread => boot.first_thread = Some(guest.started().elapsed()),
            Event::Ended(exit) => break exit.status()?,
            Event::Stalled(silence) => return Err(Error::Stalled(silence)),
            Event::Deadline => return Err(launcher.timed_out()),
        }
    };
    figures.extend(boot.figures());
    let status = match status {
        0 => two_machines(&launcher, &progress, &mut figures)?,
        failed => failed,
    };
    drop(progress);
    for line in table(&figures) {
        print_line(&line)?;
    }
    write_json(&figures)?;
    Ok(status)
}

/// Runs the benchmarks between two machines, and adds their figures.
fn two_machines(launcher: &Launcher, progress: &Progress, figures: &mut Vec<Figure>) -> Result<u8> {
    pair::run(launcher, &[], |_, _, line| {
        let Some(text) = line.strip_prefix("@bench ") else { return Ok(line.starts_with("@mark ")) };
        let Some(figure) = Figure::parse(text) else { return Ok(false) };
        progress.message(format!("measured {}", figure.name));
        figures.push(figure);
        Ok(true)
    })
}

/// The times from QEMU's start until the guest got somewhere.
#[derive(Debug, Default)]
struct Boot {
    entry: Option<Duration>,
    first_thread: Option<Duration>,
    first_write: Option<Duration>,
}

impl Boot {
    fn mark(&mut self, name: &str, started: Instant) {
        match name.trim() {
            "entry" => self.entry = Some(started.elapsed()),
            "first-write" => self.first_write = Some(started.elapsed()),
            _ => {}
        }
    }

    /// The baseline is the time that QEMU and the firmware take until the kernel's first line.
    fn figures(&self) -> impl Iterator<Item = Figure> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let baseline = self.entry.map(ms);
        [
            ("QEMU start to first thread", self.first_thread),
            ("QEMU start to first RDMA Write", self.first_write),
        ]
        .into_iter()
        .filter_map(move |(name, time)| {
            let (name, unit) = (name.to_owned(), "ms".to_owned());
            Some(Figure { name, value: ms(time?), p99: None, unit, baseline })
        })
    }
}

/// A number with three significant digits, or with all digits before the point if those are more.
fn digits(value: f64) -> String {
    let whole = value.abs().log10().floor();
    let decimals = if whole.is_finite() && whole < 2.0 { (2.0 - whole) as usize } else { 0 };
    format!("{value:.*}", decimals.min(6))
}

fn table(figures: &[Figure]) -> Vec<String> {
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), digits);
    let heading = ["figure", "median", "p99", "unit", "baseline", "ratio"].map(str::to_owned);
    let rows = figures.iter().map(|f| {
        [
            f.name.clone(),
            digits(f.value),
            optional(f.p99),
            f.unit.clone(),
            optional(f.baseline),
            optional(f.ratio()),
        ]
    });
    let rows: Vec<[String; 6]> = std::iter::once(heading).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [w0, w1, w2, w3, w4, w5] = [0, 1, 2, 3, 4, 5].map(width);
    let line = |[name, value, p99, unit, baseline, ratio]: &[String; 6]| {
        format!("{name:w0$}  {value:>w1$}  {p99:>w2$}  {unit:w3$}  {baseline:>w4$}  {ratio:>w5$}")
    };
    rows.iter().map(line).collect()
}

/// A list of {name, value, unit, baseline, ratio}; a p99 is an entry of its own.
fn to_json(figures: &[Figure]) -> String {
    let mut entries = Vec::new();
    for figure in figures {
        let (Figure { name, value, p99, unit, baseline }, ratio) = (figure, figure.ratio());
        entries.push(serde_json::json!({
            "name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio,
        }));
        entries.extend(p99.map(|p99| {
            let (name, none) = (format!("{name}, p99"), None::<f64>);
            serde_json::json!({ "name": name, "value": p99, "unit": unit, "baseline": none, "ratio": none })
        }));
    }
    format!("{:#}\n", serde_json::Value::from(entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_or_refused() {
        let figure = Figure::parse("64-byte write, polled|0.5|0.75|us|0.25").expect("a figure");
        assert_eq!(figure.name, "64-byte write, polled");
        assert_eq!((figure.value, figure.p99, figure.baseline), (0.5, Some(0.75), Some(0.25)));
        assert_eq!(figure.ratio(), Some(2.0));
        assert_eq!(Figure::parse("bare|0.5|-|us|-").and_then(|f| f.ratio()), None);
        assert_eq!(Figure::parse("zero|0.5|-|us|0").expect("a figure").ratio(), None);
        for wrong in
            ["", "a", "a|1|2|us", "a|1|2|us|3|4", "a|x|-|us|-", "|1|-|us|-", "a|NaN|-|us|-", "a|1|-|us|inf"]
        {
            assert_eq!(Figure::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_table_is_aligned_and_the_json_complete() {
        let figures = [
            Figure { name: "bare".into(), value: 0.1512, p99: Some(0.38), unit: "us".into(), baseline: None },
            Figure {
                name: "write \"1\"".into(),
                value: 12345.6,
                p99: None,
                unit: "MB/s".into(),
                baseline: Some(10_000.0),
            },
        ];
        assert_eq!(
            table(&figures),
            [
                "figure     median    p99  unit  baseline  ratio",
                "bare        0.151  0.380  us           -      -",
                "write \"1\"   12346      -  MB/s     10000   1.23",
            ]
        );
        let json: serde_json::Value = serde_json::from_str(&to_json(&figures)).expect("it is JSON");
        assert_eq!(
            json,
            serde_json::json!([
                {"name": "bare", "value": 0.1512, "unit": "us", "baseline": null, "ratio": null},
                {"name": "bare, p99", "value": 0.38, "unit": "us", "baseline": null, "ratio": null},
                {
                    "name": "write \"1\"", "value": 12345.6, "unit": "MB/s",
                    "baseline": 10000.0, "ratio": 1.23456,
                },
            ])
        );
    }
}
