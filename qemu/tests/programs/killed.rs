//! Peers that are killed (kill -9): in each state of a connection, and in the middle of a program.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Between, LIMIT, Running, address, at, cm_server, compiled, launcher, of_client, said};

/// The end that is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dies {
    Server,
    Client,
}

/// A state of a connection: which end is killed at which step of `steps.c`, and which step the
/// other one has reached then.
struct State {
    name: &'static str,
    dies: Dies,
    at: &'static str,
    other: &'static str,
    /// A step that the other end reaches while the peer is stopped, and not dead yet.
    then: Option<&'static str>,
    /// What the other end writes afterwards.
    words: &'static [&'static str],
}

const UNREACHABLE: &str = "event RDMA_CM_EVENT_UNREACHABLE -110";
const FLUSHED: &str = "status work request flushed";
const DISCONNECTED: &str = "event RDMA_CM_EVENT_DISCONNECTED 0";

const STATES: [State; 9] = [
    State {
        name: "before the request",
        dies: Dies::Server,
        at: "listening",
        other: "routed",
        then: None,
        words: &[UNREACHABLE],
    },
    State {
        name: "the server, before it has replied",
        dies: Dies::Server,
        at: "request",
        other: "asked",
        then: None,
        words: &[UNREACHABLE],
    },
    State {
        name: "the client, before the server has replied",
        dies: Dies::Client,
        at: "asked",
        other: "request",
        then: None,
        words: &[UNREACHABLE],
    },
    State {
        name: "the client, before it has confirmed the reply",
        dies: Dies::Client,
        at: "reply",
        other: "accepted",
        then: None,
        words: &[UNREACHABLE],
    },
    State {
        name: "the server, connected",
        dies: Dies::Server,
        at: "established",
        other: "established",
        then: None,
        words: &[DISCONNECTED],
    },
    State {
        name: "the client, connected",
        dies: Dies::Client,
        at: "established",
        other: "established",
        then: None,
        words: &[DISCONNECTED],
    },
    State {
        name: "the receiver, with sends outstanding",
        dies: Dies::Server,
        at: "established",
        other: "sent",
        then: None,
        words: &[FLUSHED, DISCONNECTED],
    },
    State {
        name: "the server, while the client disconnects",
        dies: Dies::Server,
        at: "established",
        other: "established",
        then: Some("disconnecting"),
        words: &[DISCONNECTED],
    },
    State {
        name: "the client, while the server disconnects",
        dies: Dies::Client,
        at: "established",
        other: "established",
        then: Some("disconnecting"),
        words: &[DISCONNECTED],
    },
];

/// Starts an end that pauses at these steps.
fn start(steps: &str, options: &[String], who: &str, address: &str, pauses: &[&str]) -> Running {
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let arguments = [&[who, address], pauses].concat();
    let mut command = launcher(&options, steps, &arguments);
    command.stdin(Stdio::piped());
    Running::start(command)
}

/// Lets an end go on that pauses.
fn go_on(end: &mut Running) {
    let stdin = end.child().stdin.as_mut().expect("a pipe");
    stdin.write_all(b"\n").expect("it reads a line");
}

fn signal(end: &mut Running, signal: Signal) {
    let process = Pid::from_child(end.child());
    kill_process(process, signal).expect("it runs");
}

fn dies_in(state: &State, link: Between, steps: &str) {
    let of_victim = [state.at];
    let of_other: Vec<&str> = [state.other].into_iter().chain(state.then).collect();
    let (for_server, for_client) = match state.dies {
        Dies::Server => (&of_victim[..], &of_other[..]),
        Dies::Client => (&of_other[..], &of_victim[..]),
    };
    let (address, clients) = (address(), address());
    let mut server = start(steps, &at(link, &address), "server", &address, for_server);
    server.await_words("step listening");
    // With an address of its own: another process that took that of a client that was killed would
    // reject what is meant for the latter.
    let client = start(steps, &at(link, &clients), "client", &address, for_client);
    let (mut victim, mut other) = match state.dies {
        Dies::Server => (server, client),
        Dies::Client => (client, server),
    };
    if state.at != "listening" {
        victim.await_words(&format!("step {}", state.at));
    }
    other.await_words(&format!("step {}", state.other));
    if let Some(step) = state.then {
        signal(&mut victim, Signal::STOP);
        go_on(&mut other);
        other.await_words(&format!("step {step}"));
    }
    signal(&mut victim, Signal::KILL);
    let _ = victim.end();
    go_on(&mut other);
    outlived(state.name, other, state.words);
}

/// The lines of an end that has outlived its peer: these in this order, and its success.
#[track_caller]
fn outlived(name: &str, end: Running, words: &[&str]) {
    let output = end.end();
    let text = said(&output);
    let mut lines = text.lines();
    for words in words.iter().chain(&["over"]) {
        assert!(lines.any(|line| line == *words), "{name}: no {words:?}:\n{text}");
    }
    assert!(output.status.success(), "{name}:\n{text}");
}

#[test]
fn memory_that_is_unmapped_while_it_is_registered_ends_its_process_and_no_other() {
    let (_folder, steps) = compiled("steps");
    for link in [Between::Memory, Between::Udp] {
        let address = address();
        let mut server = start(&steps, &at(link, &address), "server", &address, &["unmapped"]);
        server.await_words("step listening");
        let mut client = start(&steps, &of_client(link), "client", &address, &["sent"]);
        server.await_words("step unmapped");
        go_on(&mut server);
        client.await_words("step sent");
        let output = server.end();
        assert_eq!(output.status.signal(), Some(Signal::SEGV.as_raw()), "{}", said(&output));
        go_on(&mut client);
        outlived("the sender", client, &[FLUSHED, DISCONNECTED]);
    }
}

#[test]
fn whose_peer_is_killed_hears_of_it_in_each_state_and_ends_what_it_has() {
    let (_folder, steps) = compiled("steps");
    for link in [Between::Memory, Between::Udp] {
        // At once, as most of them wait for a timeout.
        std::thread::scope(|scope| {
            for state in &STATES {
                let steps = &steps;
                scope.spawn(move || dies_in(state, link, steps));
            }
        });
    }
}

/// Begins an endless rping, and kills the server or the client in the middle. The other one ends.
fn rping_with_a_peer_that_is_killed(link: Between, the_server: bool) {
    let (server, address) = cm_server(link, "rping", &["-s"]);
    let options = of_client(link);
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let written = tempfile::NamedTempFile::new().expect("a file");
    let begun = Instant::now();
    let client = loop {
        let mut command = launcher(&options, "rping", &["-c", "-v", "-a", &address]);
        command.stdout(written.reopen().expect("a file"));
        let mut client = Running::start(command);
        let has_begun =
            || fs::read_to_string(written.path()).is_ok_and(|text| text.contains("rdma-ping-20:"));
        // It ends if the server does not listen yet.
        while !has_begun() && client.child().try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        if has_begun() {
            break client;
        }
        assert!(begun.elapsed() < LIMIT, "{}", said(&client.end()));
    };
    let (mut killed, other) = if the_server { (server, client) } else { (client, server) };
    killed.child().kill().expect("it runs");
    let said = said(&other.end());
    assert!(said.contains("DISCONNECT EVENT") || said.contains("completion failed"), "{said}");
}

#[test]
fn an_rping_whose_server_or_client_is_killed_ends() {
    for link in [Between::Memory, Between::Udp] {
        rping_with_a_peer_that_is_killed(link, true);
        rping_with_a_peer_that_is_killed(link, false);
    }
}
