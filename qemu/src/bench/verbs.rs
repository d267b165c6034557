//! `bench --verbs`: Debian's perftest between two processes on the verbs library, beside what the
//! machine itself takes: a line of the cache that goes from one CPU to another and back, copies in
//! memory, and TCP and UDP on loopback.

use std::hint::spin_loop;
use std::io::{Read, Result as IoResult, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::figure::{Figure, Wanted};
use super::linux;
use crate::error::{Error, Result};
use crate::linux::programs;
use crate::options::Options;
use crate::progress::Progress;
use crate::temporary;
use crate::verbs;

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a rate is measured.
const TIME: Duration = Duration::from_millis(500);
/// Round trips of a latency.
const ROUNDS: u32 = 20_000;
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;
/// Bytes between two copies of [`LARGE`] ones: the memory of several, so that none is in the first
/// caches from the copy before.
const APART: usize = 8 << 20;
/// How many connections are made at once. As long as a peer's MAC is not known, 64 messages wait
/// for it, and of more the first are lost, and sent again after a second.
const CONNECTIONS: &str = "50";
/// What `ib_write_bw` is asked for: the size of a Write, how many, and what of the answer counts.
const RATES: [(&str, &str, &str, Rate); 3] = [
    ("65536", "30000", "64 KiB RDMA Write, 16 in flight", Rate::Bytes),
    ("1048576", "2000", "1 MiB RDMA Write, 16 in flight", Rate::Bytes),
    ("64", "200000", "64-byte RDMA Writes", Rate::Messages),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rate {
    Bytes,
    Messages,
}

/// What the machine itself takes.
struct Bare {
    /// Half of a round trip, in microseconds.
    line: f64,
    tcp: f64,
    udp: f64,
    /// In MB/s.
    copies: f64,
    stream: f64,
}

/// Measures, and adds the figures.
pub(super) fn measure(options: &Options, progress: &Progress, figures: &mut Vec<Figure>) -> Result<()> {
    let failed = |what: &str| {
        let what = format!("measure {what}");
        move |error| Error::system(what, error)
    };
    progress.message("measuring the machine");
    let bare = Bare {
        line: line(),
        tcp: tcp_latency().map_err(failed("TCP"))?,
        udp: udp_latency().map_err(failed("UDP"))?,
        copies: copies(),
        stream: tcp_rate().map_err(failed("TCP"))?,
    };
    figures.push(Figure::new("a line of the cache, one way", bare.line, "us"));
    figures.push(Figure::new("TCP on loopback, 64 B, one way", bare.tcp, "us"));
    figures.push(Figure::new("UDP on loopback, 64 B, one way", bare.udp, "us"));
    figures.push(Figure::new("copies of 1 MiB", bare.copies, "MB/s"));
    figures.push(Figure::new("TCP on loopback", bare.stream, "MB/s"));
    let (folder, programs) = (temporary::socket("bench")?, programs::find()?);
    let memory = format!("shm:{}", folder.display());
    let pairs = Pairs { options, links: [memory.clone(), memory], programs: &programs };
    let latency = Wanted::AtMost(4.0);
    pairs.figures("verbs over memory", (bare.line, latency), Some(bare.copies), progress, figures)?;
    progress.message("measuring connections");
    let rate = pairs.connections()?;
    figures.push(Figure::new("verbs over memory: connections by rdma_cm", rate, "1/s"));
    std::fs::remove_dir_all(&folder).map_err(|source| Error::File { path: folder, source })?;
    // Of this run's own, as another may be under way.
    let host = |last: u8| {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        format!("udp:127.{}.{b}.{}", a | 1, c & 0xfc | last)
    };
    let pairs = Pairs { options, links: [host(1), host(2)], programs: &programs };
    let latency = Wanted::AtMost(3.0);
    pairs.figures("verbs over UDP", (bare.udp, latency), None, progress, figures)
}

/// Our figures beside those of Linux guests with Soft-RoCE.
pub(super) fn beside_linux(
    options: &Options,
    mtu: u32,
    progress: &Progress,
    ours: &[Figure],
) -> Result<Vec<Figure>> {
    let mut figures = linux::compare(options, mtu, progress, ours)?;
    for figure in &mut figures {
        figure.wanted = Some(match figure.unit == "us" {
            true => Wanted::AtMost(0.1),
            false => Wanted::AtLeast(10.0),
        });
    }
    Ok(figures)
}

/// A column of the line that perftest ends with.
fn column(said: &str, program: &str, column: usize) -> Result<f64> {
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    let found = said.lines().filter_map(numbers).find_map(|row| row.get(column).copied());
    found.ok_or_else(|| Error::Tool(format!("{program} prints no figure:\n{said}")))
}

/// Pairs of programs on the library.
struct Pairs<'o> {
    options: &'o Options,
    /// The server's, and the client's.
    links: [String; 2],
    programs: &'o Path,
}

impl Pairs<'_> {
    /// Adds the figures of perftest. A latency has this baseline and wanted ratio; a bandwidth is
    /// wanted to be half of the copies, if those count.
    fn figures(
        &self,
        over: &str,
        (one_way, most): (f64, Wanted),
        copies: Option<f64>,
        progress: &Progress,
        figures: &mut Vec<Figure>,
    ) -> Result<()> {
        for (program, name) in [("ib_write_lat", "RDMA Write"), ("ib_send_lat", "Send")] {
            let name = format!("{over}: 64-byte {name}, polled, half round trip");
            progress.message(format!("measuring {name}"));
            let said = self.run(program, &["-s", "64", "-n", "5000"])?;
            // Bytes, iterations, the least, the most, the typical, …
            let (typical, p99) = (column(&said, program, 4)?, column(&said, program, 7)?);
            let figure = Figure { p99: Some(p99), ..Figure::new(name, typical, "us") };
            figures.push(figure.against(one_way, Some(most)));
        }
        for (size, number, name, rate) in RATES {
            let name = format!("{over}: {name}");
            progress.message(format!("measuring {name}"));
            let said = self.run("ib_write_bw", &["-s", size, "-n", number, "-t", "16"])?;
            figures.push(match rate {
                Rate::Bytes => {
                    // perftest's MB are of 2^20 bytes.
                    let value = column(&said, "ib_write_bw", 3)? * 1.048_576;
                    let figure = Figure::new(name, value, "MB/s");
                    match copies {
                        Some(copies) => figure.against(copies, Some(Wanted::AtLeast(0.5))),
                        None => figure,
                    }
                }
                Rate::Messages => Figure::new(name, column(&said, "ib_write_bw", 4)? * 1e6, "1/s"),
            });
        }
        Ok(())
    }

    fn command(&self, side: usize, program: &str, arguments: &[&str]) -> Result<Command> {
        let mut command = verbs::command(self.options, &self.programs.join(program), arguments)?;
        command.env("FERROVIA_LINK", &self.links[side]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Runs a program of perftest against itself; returns what the client says.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let port = free_port().map_err(|e| Error::system("find a port", e))?.to_string();
        let common = [&["-F", "-x", "0", "-p", &port], arguments].concat();
        let mut server = Running::start(self.command(0, program, &common)?, program)?;
        let begun = Instant::now();
        while !programs::is_heard(&port) {
            if server.has_ended() || begun.elapsed() > LIMIT {
                return Err(Error::Tool(format!("{program} does not listen:\n{}", server.end()?)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let client = self.command(1, program, &[&common[..], &["127.0.0.1"]].concat())?;
        let said = Running::start(client, program)?.end()?;
        server.end()?;
        Ok(said)
    }

    /// Connections that `cmtime` makes in a second, many at once.
    fn connections(&self) -> Result<f64> {
        const PROGRAM: &str = "cmtime";
        let begun = Instant::now();
        let mut server = self.command(0, PROGRAM, &["-b", "127.0.0.2"])?;
        server.env("FERROVIA_IP", "127.0.0.2/8");
        let mut server = Running::start(server, PROGRAM)?;
        loop {
            let client = self.command(1, PROGRAM, &["-s", "127.0.0.2", "-c", CONNECTIONS])?;
            let said = Running::start(client, PROGRAM)?.end();
            match said {
                // The server does not listen yet.
                Ok(said) if said.contains("REJECTED") && begun.elapsed() < LIMIT => {}
                Ok(said) => {
                    let line = said.lines().find(|line| line.trim_start().starts_with("connect "));
                    let last = line.and_then(|line| line.split_whitespace().last()?.parse::<f64>().ok());
                    let each = last.filter(|each| *each > 0.0);
                    return each
                        .map(|each| 1e6 / each)
                        .ok_or_else(|| Error::Tool(format!("{PROGRAM} prints no figure:\n{said}")));
                }
                // The server does not listen yet.
                Err(_) if !server.has_ended() && begun.elapsed() < LIMIT => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A program that runs; it is killed at the latest when this is dropped.
struct Running {
    child: Option<Child>,
    name: String,
}

impl Running {
    fn start(mut command: Command, name: &str) -> Result<Running> {
        let child = command.spawn().map_err(|e| Error::system(format!("run {name}"), e))?;
        Ok(Running { child: Some(child), name: name.to_owned() })
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// What it has said, when it has ended, with success.
    fn end(mut self) -> Result<String> {
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() > LIMIT {
                return Err(Error::Tool(format!("{} does not end", self.name)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let Some(child) = self.child.take() else { return Ok(String::new()) };
        let output = child.wait_with_output().map_err(|e| Error::system(format!("run {}", self.name), e))?;
        let Output { status, stdout, stderr } = output;
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if status.success() {
            Ok(out)
        } else {
            Err(Error::Tool(format!("{}: {status}\n{out}{err}", self.name)))
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> IoResult<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Half of a round trip, in microseconds: the median of several measurements.
fn one_way(mut rounds: impl FnMut(u32) -> IoResult<()>) -> IoResult<f64> {
    const PARTS: u32 = 20;
    let mut times = Vec::new();
    for _ in 0..PARTS {
        let begun = Instant::now();
        rounds(ROUNDS / PARTS)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS / PARTS) / 2.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// A word that two threads write in turn.
fn line() -> f64 {
    let word = AtomicU32::new(0);
    let await_word = |wanted: u32| {
        while word.load(Ordering::Acquire) != wanted {
            spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..ROUNDS {
                await_word(2 * n + 1);
                word.store(2 * n + 2, Ordering::Release);
            }
        });
        let mut n = 0;
        let measured = one_way(|rounds| {
            for _ in 0..rounds {
                word.store(2 * n + 1, Ordering::Release);
                await_word(2 * n + 2);
                n += 1;
            }
            Ok(())
        });
        measured.unwrap_or(f64::NAN)
    })
}

fn tcp_latency() -> IoResult<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut own = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    own.set_nodelay(true)?;
    other.set_nodelay(true)?;
    let answering = std::thread::spawn(move || {
        let mut bytes = [0; SMALL];
        while other.read_exact(&mut bytes).and_then(|()| other.write_all(&bytes)).is_ok() {}
    });
    let mut bytes = [0; SMALL];
    let measured = one_way(|rounds| {
        (0..rounds).try_for_each(|_| {
            own.write_all(&bytes)?;
            own.read_exact(&mut bytes)
        })
    });
    drop(own);
    let _ = answering.join();
    measured
}

fn udp_latency() -> IoResult<f64> {
    let sockets = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let [own, other] = sockets;
    let (own, other) = (own?, other?);
    own.connect(other.local_addr()?)?;
    other.connect(own.local_addr()?)?;
    own.set_read_timeout(Some(LIMIT))?;
    let answering = std::thread::spawn(move || {
        let mut bytes = [0; SMALL];
        // An empty datagram ends it.
        while let Ok(1..) = other.recv(&mut bytes) {
            let _ = other.send(&bytes);
        }
    });
    let mut bytes = [0; SMALL];
    let measured = one_way(|rounds| {
        (0..rounds).try_for_each(|_| {
            own.send(&bytes)?;
            own.recv(&mut bytes).map(drop)
        })
    });
    own.send(&[])?;
    let _ = answering.join();
    measured
}

/// Copies of 1 MiB by one thread, in MB/s.
fn copies() -> f64 {
    let (from, mut to) = (vec![1_u8; APART], vec![0_u8; APART]);
    let (begun, mut bytes) = (Instant::now(), 0);
    while begun.elapsed() < TIME {
        for at in (0..APART).step_by(LARGE) {
            to[at..at + LARGE].copy_from_slice(std::hint::black_box(&from[at..at + LARGE]));
            bytes += LARGE;
        }
        std::hint::black_box(&to);
    }
    bytes as f64 / begun.elapsed().as_secs_f64() / 1e6
}

/// What goes through TCP from one thread to another, in MB/s.
fn tcp_rate() -> IoResult<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut own = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    let reading = std::thread::spawn(move || {
        let mut buffer = vec![0; LARGE];
        while matches!(other.read(&mut buffer), Ok(1..)) {}
    });
    let (buffer, begun, mut bytes) = (vec![0; LARGE], Instant::now(), 0);
    while begun.elapsed() < TIME {
        own.write_all(&buffer)?;
        bytes += LARGE;
    }
    drop(own);
    let _ = reading.join();
    Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of perftest 4.5.
    #[test]
    fn the_figures_of_perftest_are_found() {
        let latency = " #bytes #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  \
                       t_stdev[usec]  99% percentile[usec]  99.9% percentile[usec] \n \
                       64  1000  2.10  60.55  2.35  \t  2.60  \t1.98  \t5.30  \t\t60.55  \n----\n";
        assert_eq!((column(latency, "x", 4).unwrap(), column(latency, "x", 7).unwrap()), (2.35, 5.3));
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         65536      5000             1200.22            1100.11\t\t   0.017602\n";
        assert_eq!(column(bandwidth, "x", 3).unwrap(), 1100.11);
        assert_eq!(column(bandwidth, "x", 4).unwrap(), 0.017602);
        assert!(column("Couldn't connect\n", "x", 4).is_err());
    }
}
