//! The port that serves the target's figures: `/metrics` for Prometheus, and `/json`.
//!
//! A thread asks the target once a second, so requests cost the target nothing, however many come.
//! If it has not answered for three seconds, `up` is 0 and there are no other figures.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::figures;
use crate::error::{Error, Result};

/// How often the target is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// For how long an answer counts.
const LIFE: Duration = Duration::from_secs(3);
/// How long a client may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The threads that serve clients, one each at a time.
const THREADS: usize = 4;
/// The longest request.
const LONGEST: usize = 8 << 10;

/// The last figures, and when they came.
#[derive(Default)]
struct Latest(Mutex<Option<(Instant, Value)>>);

impl Latest {
    fn set(&self, figures: Value) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), figures));
    }

    fn get(&self, now: Instant) -> Option<Value> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |(came, _): &&(Instant, Value)| now.saturating_duration_since(*came) < LIFE;
        latest.as_ref().filter(is_fresh).map(|(_, figures)| figures.clone())
    }
}

/// Serves figures at an address, until the process ends. Returns the address, whose port the system
/// chooses if it is 0.
pub(crate) fn serve(
    address: SocketAddr,
    ask: impl Fn() -> Option<Value> + Send + 'static,
) -> Result<SocketAddr> {
    let failed = |e| Error::system(format!("serve figures at {address}"), e);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let latest = Arc::new(Latest::default());
    let theirs = latest.clone();
    spawn(move || {
        loop {
            if let Some(figures) = ask() {
                theirs.set(figures);
            }
            std::thread::sleep(PERIOD);
        }
    })?;
    for _ in 0..THREADS {
        let (listener, latest) = (listener.try_clone().map_err(failed)?, latest.clone());
        spawn(move || {
            loop {
                match listener.accept() {
                    // Its errors are the client's.
                    Ok((stream, _)) => drop(answer(&stream, &latest)),
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        })?;
    }
    Ok(bound)
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name("metrics".into()).spawn(run);
    thread.map(drop).map_err(|e| Error::system("start a thread", e))
}

/// The head of a request. Only its first line is of interest, but all of it is read: a connection
/// that is closed before that is reset, and the answer lost.
fn head(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let (until, mut head, mut bytes) = (Instant::now() + PATIENCE, Vec::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < LONGEST && Instant::now() < until {
        match stream.read(&mut bytes)? {
            0 => break,
            count => head.extend_from_slice(&bytes[..count]),
        }
    }
    Ok(head)
}

/// Serves one request.
fn answer(stream: &TcpStream, latest: &Latest) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = head(stream)?;
    let first = String::from_utf8_lossy(head.split(|byte| *byte == b'\n').next().unwrap_or_default());
    let mut words = first.split_ascii_whitespace();
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => {
            let figures = latest.get(Instant::now());
            let page = figures.map_or_else(figures::down, |figures| figures::page(&figures));
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", page)
        }
        (Some("GET"), Some("/json")) => {
            let mut figures = latest.get(Instant::now()).unwrap_or_else(|| json!({}));
            figures["up"] = (figures.as_object().is_some_and(|all| !all.is_empty())).into();
            ("200 OK", "application/json", format!("{figures}\n"))
        }
        (Some("GET"), Some(_)) => ("404 Not Found", "text/plain", "/metrics or /json\n".into()),
        _ => ("400 Bad Request", "text/plain", "a GET of /metrics or /json\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = stream;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }

    #[test]
    fn figures_are_served_until_they_are_old() {
        let address = serve(([127, 0, 0, 1], 0).into(), || Some(json!({"connections": 5}))).expect("a port");
        let metrics = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        while !get(address, metrics).contains("\nferrovia_nvmf_up 1\n") {}
        let page = get(address, metrics);
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("\nferrovia_nvmf_connections 5\n"));
        let json = get(address, "GET /json HTTP/1.0\r\n\r\n");
        assert!(json.ends_with("{\"connections\":5,\"up\":true}\n"), "{json}");
        assert!(get(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(get(address, "\u{0}\r\n\r\n").starts_with("HTTP/1.1 400"));
        assert!(get(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400"));

        let latest = Latest::default();
        assert!(latest.get(Instant::now()).is_none());
        latest.set(json!({"x": 1}));
        let now = Instant::now();
        assert!(latest.get(now).is_some() && latest.get(now + LIFE).is_none());
    }
}
