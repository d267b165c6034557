//! iWARP beside InfiniBand: the benchmarks between two machines, over both in the same run.

use links::SpecError;

use crate::error::{Error, Result};
use crate::launch::print_line;
use crate::network::Transport;
use crate::options::Options;
use crate::progress::Progress;

use super::figure::{Figure, Wanted};
use super::{CROWD_NICS, between_processes, linux, over_a_stream, stream_mtu, two_machines};

/// What [`compare`] leaves out, and why.
const LEFT_OUT: [&str; 3] = [
    "one machine: through IT-API, whose IAs are InfiniBand's",
    "virtual interfaces and immediate data: iWARP has neither",
    "storage: `pair storage --transport iwarp` runs it",
];
/// The most that a latency over the short cut may be, in those of InfiniBand.
const LATENCY: Wanted = Wanted::AtMost(1.15);
/// The least that the bandwidth over the short cut may be.
const BANDWIDTH: Wanted = Wanted::AtLeast(0.95);
/// The least that rates over a stream link may be, in those of RoCEv2.
const OVER_A_STREAM: Wanted = Wanted::AtLeast(0.6);
/// The most that a request may cost on 16 connections among 4,096, in that among 16.
const CROWD: Wanted = Wanted::AtMost(1.2);
/// The least that a link which loses one packet in a hundred may leave of the rate of ten
/// connections, and what the link is like, without losses and with them.
const LOSSY: Wanted = Wanted::AtLeast(0.3);
const DELAYED: &str = "delay=100us";
const LOSING: &str = "delay=100us,loss=1%,seed=7";
/// The most that a latency may be, in those of Linux's siw, and the least that a bandwidth may be.
const LINUX: [Wanted; 2] = [Wanted::AtMost(0.2), Wanted::AtLeast(10.0)];
/// How the figures begin that are about the machine, and not about a transport.
const BARE: &str = "bare ";

/// Runs the benchmarks over both transports, and adds their figures: those of iWARP have those of
/// InfiniBand as baselines. Then those that have baselines of their own: many connections, losses,
/// and Linux, if `against_linux`.
pub fn compare(
    options: &Options,
    against_linux: bool,
    progress: &Progress,
    figures: &mut Vec<Figure>,
) -> Result<u8> {
    for left_out in LEFT_OUT {
        print_line(&format!("not measured over iWARP: {left_out}"))?;
    }
    type Plan = fn(&Options, &Progress, &mut Vec<Figure>) -> Result<u8>;
    let plans: [Plan; 2] = [
        |options, progress, figures| two_machines(options, 1, &[], progress, figures),
        |options, progress, figures| over_a_stream(options, progress, figures),
    ];
    for (plan, is_short_cut) in plans.into_iter().zip([true, false]) {
        let mut over = [Vec::new(), Vec::new()];
        for (transport, figures) in [Transport::Infiniband, Transport::Iwarp].into_iter().zip(&mut over) {
            let mut options = options.clone();
            options.network.transport = Some(transport);
            let status = plan(&options, progress, figures)?;
            if status != 0 {
                return Ok(status);
            }
        }
        let [infiniband, iwarp] = over;
        let beside = iwarp.into_iter().filter_map(|figure| beside(figure, &infiniband, is_short_cut));
        let beside: Vec<Figure> = beside.collect();
        figures.extend(infiniband);
        figures.extend(beside);
    }
    let status = match crowd(options, progress, figures)? {
        0 => losses(options, progress, figures)?,
        failed => failed,
    };
    if status == 0 && against_linux {
        let linux = linux::compare_iwarp(options, stream_mtu(options), progress, figures)?;
        figures.extend(linux.into_iter().map(|figure| {
            let [latency, bandwidth] = LINUX.map(Some);
            let wanted = if figure.unit == "us" { latency } else { bandwidth };
            Figure { wanted, ..figure }
        }));
    }
    Ok(status)
}

/// Few active connections among many, over the short cut.
fn crowd(options: &Options, progress: &Progress, figures: &mut Vec<Figure>) -> Result<u8> {
    let mut found = Vec::new();
    let status = two_machines(options, CROWD_NICS, &["plan=crowd".into()], progress, &mut found)?;
    figures.extend(found.into_iter().map(|figure| {
        let wanted = figure.name.contains("16 endpoints of 4,096").then_some(CROWD);
        Figure { name: figure.name.replacen(": ", ", iWARP: ", 1), wanted, ..figure }
    }));
    Ok(status)
}

/// Ten connections over a link that delays, and over one that also loses.
fn losses(options: &Options, progress: &Progress, figures: &mut Vec<Figure>) -> Result<u8> {
    let mut clean = None;
    for (impairment, what) in [(DELAYED, "100 us"), (LOSING, "100 us, 1 % lost")] {
        let mut found = Vec::new();
        let impair = Some(impairment.parse().map_err(|error: SpecError| Error::Usage(error.to_string()))?);
        let status = between_processes(options, "plan=ten", impair, progress, &mut found)?;
        if status != 0 {
            return Ok(status);
        }
        figures.extend(found.into_iter().map(|figure| {
            let name = format!("{}, {what}", figure.name.replacen(": ", ", iWARP: ", 1));
            let baseline = clean.replace(figure.value);
            Figure { name, baseline, wanted: baseline.map(|_| LOSSY), ..figure }
        }));
    }
    Ok(0)
}

/// A figure of iWARP, with that of InfiniBand as baseline.
fn beside(figure: Figure, infiniband: &[Figure], is_short_cut: bool) -> Option<Figure> {
    let other = infiniband.iter().find(|other| other.name == figure.name)?;
    let (over, what) = figure.name.split_once(": ").unwrap_or(("", &figure.name));
    if what.starts_with(BARE) {
        return None;
    }
    let wanted = match (figure.unit.as_str(), is_short_cut) {
        ("us", true) => Some(LATENCY),
        ("us", false) => None,
        (_, true) => Some(BANDWIDTH),
        (_, false) => Some(OVER_A_STREAM),
    };
    let name = format!("{over}, iWARP: {what}");
    Some(Figure { name, baseline: Some(other.value), wanted, ..figure })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_of_iwarp_stands_beside_its_like() {
        let infiniband = [
            Figure::new("stream: bare word", 1.0, "us"),
            Figure::new("stream: 1 MiB RDMA Write", 800.0, "MB/s").against(900.0, None),
            Figure::new("stream: Send", 20.0, "us"),
        ];
        let wanted = |figure: &Figure, is_short_cut| {
            let beside = beside(figure.clone(), &infiniband, is_short_cut)?;
            Some((beside.name.clone(), beside.ratio(), beside.wanted))
        };
        let write = Figure::new("stream: 1 MiB RDMA Write", 600.0, "MB/s").against(900.0, None);
        let name = "stream, iWARP: 1 MiB RDMA Write".to_owned();
        assert_eq!(wanted(&write, false), Some((name.clone(), Some(0.75), Some(OVER_A_STREAM))));
        assert_eq!(wanted(&write, true), Some((name, Some(0.75), Some(BANDWIDTH))));
        let send = Figure::new("stream: Send", 22.0, "us");
        let name = "stream, iWARP: Send".to_owned();
        assert_eq!(wanted(&send, true), Some((name.clone(), Some(1.1), Some(LATENCY))));
        assert_eq!(wanted(&send, false), Some((name, Some(1.1), None)));
        assert_eq!(wanted(&infiniband[0], true), None);
        assert_eq!(wanted(&Figure::new("stream: other", 1.0, "us"), true), None);
    }
}
