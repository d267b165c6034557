//! The same measurements between two Linux guests with Soft-RoCE: perftest's figures, as baselines
//! of Ferrovia's.
//!
//! The guests' network devices are joined by QEMU's `-netdev stream`, with the MTU of the stream
//! link of the other benchmarks. Linux has no short cut, so the figures of both of Ferrovia's links
//! are compared with the same figures of Linux.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::launch;
use crate::linux::image::Image;
use crate::linux::{Device, Linux, Side};
use crate::options::Options;
use crate::progress::Progress;

use super::figure::Figure;

/// How often a program of perftest is tried.
const ATTEMPTS: u32 = 3;
/// How long a program of perftest may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a short command may take.
const STEP: Duration = Duration::from_secs(30);

/// The line of `/proc/net/tcp` for perftest's socket, port 18515, while it listens.
const LISTENS: &str = ":4853.*:0000.0A.";

/// A program of perftest, and the figures of ours with which it is compared.
struct Test {
    /// Its command line, without the options that all of them have.
    command: &'static str,
    /// The size of its messages: the line with its figures begins with this.
    bytes: &'static str,
    /// The column of the figure.
    column: usize,
    /// The factor that converts to our unit.
    factor: f64,
    /// The suffix of the names of our figures.
    ours: &'static str,
}

/// Half a round trip is the column `t_typical`. A bandwidth is the column of the average, in Gb/s.
const TESTS: [Test; 3] = [
    Test {
        command: "ib_write_lat -s 64 -n 2000",
        bytes: "64",
        column: 4,
        factor: 1.0,
        ours: "64-byte RDMA Write, polled, half round trip",
    },
    Test {
        command: "ib_send_lat -s 64 -n 2000",
        bytes: "64",
        column: 4,
        factor: 1.0,
        ours: "64-byte Send, polled, half round trip",
    },
    Test {
        command: "ib_write_bw -s 1048576 -t 16 -n 100 --report_gbits",
        bytes: "1048576",
        column: 3,
        factor: 125.0,
        ours: "1 MiB RDMA Write, 16 in flight",
    },
];

/// The programs that siw runs reliably: with rdma_cm, and RDMA Writes only.
const IWARP_TESTS: [Test; 2] = [
    Test { command: "ib_write_lat -R -s 64 -n 2000", ..TESTS[0] },
    Test { command: "ib_write_bw -R -s 1048576 -t 16 -n 100 --report_gbits", ..TESTS[2] },
];

/// The guests' device of a transport, with perftest's options for it.
const ROCE: &str = "-d rxe0 -x 1";
const SIW: &str = "-d siw0";

/// Measures Linux over iWARP, as [`compare`].
pub fn compare_iwarp(
    options: &Options,
    mtu: u32,
    progress: &Progress,
    ours: &[Figure],
) -> Result<Vec<Figure>> {
    let mut guests = Guests::boot(options, mtu, progress)?;
    for linux in &mut guests.0 {
        linux.use_iwarp()?;
    }
    let ours: Vec<Figure> = ours.iter().filter(|figure| figure.name.contains(", iWARP: ")).cloned().collect();
    beside(&mut guests, &IWARP_TESTS, SIW, progress, &ours)
}

/// Measures Linux, and returns those of our figures that have a counterpart, with Linux's as
/// baselines.
pub fn compare(options: &Options, mtu: u32, progress: &Progress, ours: &[Figure]) -> Result<Vec<Figure>> {
    let mut guests = Guests::boot(options, mtu, progress)?;
    beside(&mut guests, &TESTS, ROCE, progress, ours)
}

/// Measures, and puts our figures beside.
fn beside(
    guests: &mut Guests,
    tests: &[Test],
    device: &str,
    progress: &Progress,
    ours: &[Figure],
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for test in tests {
        progress.message(format!("Linux: {}", test.command));
        let linux = guests.measure(test, device)?;
        for figure in ours.iter().filter(|figure| figure.name.ends_with(test.ours)) {
            // Figures of a single machine have no counterpart.
            let Some((over, _)) = figure.name.split_once(": ") else { continue };
            let name = format!("against Linux: {over}: {}", test.ours);
            figures.push(Figure { name, p99: None, baseline: Some(linux), ..figure.clone() });
        }
    }
    Ok(figures)
}

/// Two joined guests: the server, and the client.
struct Guests([Linux; 2]);

impl Guests {
    fn boot(options: &Options, mtu: u32, progress: &Progress) -> Result<Guests> {
        let qemu = launch::qemu(options)?;
        progress.message("making the Linux guest");
        let image = Image::find()?;
        progress.message("booting Linux");
        let socket = crate::temporary::socket("linux")?;
        let guests = Guests::boot_at(&qemu, &image, mtu, &socket);
        // Both have opened the socket, or never will.
        let _ = std::fs::remove_file(&socket);
        guests
    }

    fn boot_at(qemu: &crate::setup::Qemu, image: &Image, mtu: u32, link: &Path) -> Result<Guests> {
        let boot = |side, address: &str, mac| {
            Linux::boot(qemu, image, &Device { side, link, addresses: &[address], mtu, mac })
        };
        let server = boot(Side::Listen, "10.0.0.1/24", 1)?;
        Ok(Guests([server, boot(Side::Connect, "10.0.0.2/24", 2)?]))
    }

    /// Runs a program on both; returns its figure. On a busy machine a latency may be `inf`; then
    /// the program is run again.
    fn measure(&mut self, test: &Test, device: &str) -> Result<f64> {
        let [server, client] = &mut self.0;
        // -x 1: the GID of the IPv4 address. -F: do not check the CPU's frequency.
        let line = format!("{} {device} -F", test.command);
        let listens = format!("grep -qE {LISTENS} /proc/net/tcp /proc/net/tcp6");
        let serve = format!("({line} >/tmp/said 2>&1 &) ; until {listens}; do sleep 0.1; done");
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            server.succeed(&serve, STEP)?;
            said = client.succeed(&format!("{line} 10.0.0.1"), LIMIT)?;
            if let Some(figure) = figure(&said, test) {
                return Ok(figure);
            }
        }
        Err(Error::Tool(format!("Linux: {line}: no figure in:\n{said}")))
    }
}

/// The figure in a program's output.
fn figure(said: &str, test: &Test) -> Option<f64> {
    let rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.rev().find(|row| row.first() == Some(&test.bytes) && row.len() > test.column)?;
    let value: f64 = row[test.column].parse().ok()?;
    (value > 0.0 && value.is_finite()).then_some(value * test.factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_found_in_what_perftest_writes() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                       64      1000          180.22         900.10       222.51     \t       230.13\n----";
        assert_eq!(figure(latency, &TESTS[0]), Some(222.51));
        let bandwidth = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                         1048576    100              0.60               0.48                 0.000057\n";
        assert_eq!(figure(bandwidth, &TESTS[2]), Some(60.0));
        assert_eq!(figure("Unable to init the socket connection\n64 x\n", &TESTS[0]), None);
        assert_eq!(figure(&bandwidth.replace("0.48", "0.00"), &TESTS[2]), None);
        assert_eq!(figure(&latency.replace("222.51", "inf"), &TESTS[0]), None);
    }
}
