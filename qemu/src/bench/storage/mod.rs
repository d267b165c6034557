//! Storage: NVMe over RDMA, each figure beside one of the same run.
//!
//! [`pair`] measures Ferrovia's host and target, and compares them with a disk of the guest's own.
//! [`linux`] compares Ferrovia's target with that of Linux, with Linux as the host.

mod client;
mod launched;
mod linux;
mod pair;

pub use linux::against_linux;
pub use pair::between_our_guests;

use super::figure::{Figure, Wanted};

/// The result of one measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Requests a second.
    iops: f64,
    /// Bytes a second.
    rate: f64,
}

/// The name of a pattern in the names of figures.
fn pattern(is_write: bool, bytes: u32, depth: u32) -> String {
    let way = if is_write { "write" } else { "read" };
    format!("{} KiB {way}, depth {depth}", bytes >> 10)
}

/// The figures of several measurements, beside those of the baseline: the medians.
fn rates(name: &str, ours: &[Sample], baseline: &[Sample], wanted: Option<Wanted>) -> [Figure; 2] {
    let figure = |unit, of: fn(&Sample) -> f64, wanted| {
        Figure::new(name, median(ours.iter().map(of)), unit).against(median(baseline.iter().map(of)), wanted)
    };
    [figure("IOPS", |sample| sample.iops, wanted), figure("MB/s", |sample| sample.rate / 1e6, None)]
}

/// The median; of an even number of values the higher one of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_beside_medians() {
        let samples = |all: &[f64]| -> Vec<Sample> {
            all.iter().map(|&iops| Sample { iops, rate: iops * 4096.0 }).collect()
        };
        let name = pattern(false, 4096, 16);
        assert_eq!(name, "4 KiB read, depth 16");
        let wanted = Some(Wanted::AtLeast(1.25));
        let (ours, theirs) = (samples(&[900.0, 3000.0, 2000.0]), samples(&[1000.0, 500.0]));
        let [iops, rate] = rates(&name, &ours, &theirs, wanted);
        assert_eq!((iops.value, iops.baseline, iops.ratio()), (2000.0, Some(1000.0), Some(2.0)));
        assert_eq!((iops.wanted, &*iops.unit), (wanted, "IOPS"));
        assert_eq!((rate.value, rate.baseline, rate.wanted), (8.192, Some(4.096), None));
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
