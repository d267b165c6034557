//! What an image does: opens the NICs, runs one program or two, and ends.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use common::{Node, Trying};
use kernel_agent::Agent;
use nic_hal::Transport;
use platform::{Platform, Privileged, Signal};

use crate::{Failure, Host, Program, Words, fail, net};

/// How long the end of a program waits until the peers have confirmed the end of its connections.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often it looks.
const NAP: Duration = Duration::from_millis(10);

/// Runs a program on the first NIC with the words of `line`. Returns the image's status: 0, or 1
/// after a failure, which is the last line.
pub fn run(
    platform: Arc<dyn Platform>,
    privileged: Privileged,
    nics: impl IntoIterator<Item = Arc<dyn Transport>>,
    line: &str,
    program: Program,
    say: &mut dyn FnMut(fmt::Arguments<'_>),
) -> i32 {
    let transport = line.split_whitespace().find_map(|word| word.strip_prefix("transport="));
    let node = Node::start(platform, privileged, nics).and_then(|node| node.over(transport));
    let result = node.and_then(|node| {
        let nic = node.nic(0)?;
        let result = program(&mut Host { nic: &nic, say }, Words::new(line));
        farewell(&node);
        let closed = nic.close().trying("closing the NIC");
        node.close();
        result.and(closed)
    });
    status(result, say)
}

fn status(result: Result<(), Failure>, say: &mut dyn FnMut(fmt::Arguments<'_>)) -> i32 {
    match result {
        Ok(()) => 0,
        Err(failure) => {
            say(format_args!("error: {failure}"));
            1
        }
    }
}

/// Waits until the peers of all connections have confirmed their end, and QP1 has sent what was
/// posted. A peer that never hears of the end would wait for a node that is gone.
fn farewell(node: &Node) {
    let end = node.platform.now() + FAREWELL;
    let never = AtomicU32::new(0);
    let waits =
        |agent: &Arc<Agent>| !agent.is_dead() && (agent.counts().connections > 0 || agent.outstanding() > 0);
    while node.agents.iter().any(waits) && node.platform.now() < end {
        node.platform.wait(&never, 0, Some(node.platform.now() + NAP));
    }
}

/// A server that has not ended and may not listen yet.
const STARTS: u32 = 0;
/// A server that listens.
const LISTENS: u32 = 1;
/// A server that ended well.
const PASSED: u32 = 2;
/// A server that failed.
const FAILED: u32 = 3;

/// What a server's thread tells the thread of the client.
struct Progress {
    state: AtomicU32,
    changed: Signal,
}

impl Progress {
    fn set(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        self.changed.raise();
    }

    /// Waits until the server is in none of these states; returns the state.
    fn beyond(&self, states: &[u32]) -> u32 {
        loop {
            let seen = self.changed.value();
            let state = self.state.load(Ordering::Acquire);
            if !states.contains(&state) {
                return state;
            }
            self.changed.wait(seen, None);
        }
    }
}

/// A program and its words.
#[derive(Clone, Copy)]
pub struct Side {
    /// The program.
    pub program: Program,
    /// Its words; a client's without the address.
    pub words: &'static str,
}

/// Runs pairs of a server, on the last NIC, and a client, on the first one. Each server has to end
/// after that client. Returns the image's status.
pub fn run_pairs(
    platform: Arc<dyn Platform>,
    privileged: Privileged,
    nics: impl IntoIterator<Item = Arc<dyn Transport>>,
    pairs: &[(Side, Side)],
    say: fn(fmt::Arguments<'_>),
) -> i32 {
    let node = Node::start(platform, privileged, nics);
    let result = node.and_then(|node| {
        let result = pairs.iter().try_for_each(|&(server, client)| pair(&node, server, client, say));
        farewell(&node);
        node.close();
        result
    });
    status(result, &mut |line| say(line))
}

fn pair(node: &Node, server: Side, client: Side, say: fn(fmt::Arguments<'_>)) -> Result<(), Failure> {
    let (here, there) = (node.nic(0)?, node.nic(node.agents.len() - 1)?);
    let address = net::addresses(&there).first().copied();
    let address = address.ok_or_else(|| Failure::new("the server's port has no address"))?;
    let changed = Signal::new(node.platform.clone());
    let progress = Arc::new(Progress { state: AtomicU32::new(STARTS), changed });
    let thread = {
        let (nic, progress) = (there.clone(), progress.clone());
        move || {
            let mut say = |line: fmt::Arguments<'_>| {
                say(format_args!("{line}"));
                if format!("{line}").starts_with("ready: ") {
                    progress.set(LISTENS);
                }
            };
            let mut host = Host { nic: &nic, say: &mut say };
            let ended = (server.program)(&mut host, Words::new(server.words));
            progress.set(if status(ended, &mut say) == 0 { PASSED } else { FAILED });
        }
    };
    node.platform.spawn("server", Box::new(thread)).map_err(|_| "out of memory").trying("a thread")?;
    let line = format!("{} {address}", client.words);
    let result = match progress.beyond(&[STARTS]) {
        FAILED => Err(Failure::new("the server failed")),
        _ => {
            let say = &mut |line: fmt::Arguments<'_>| say(line);
            (client.program)(&mut Host { nic: &here, say }, Words::new(&line))
        }
    };
    if result.is_err() {
        // The server's waits end, and with them the server.
        there.agent().close();
    }
    let ended = progress.beyond(&[STARTS, LISTENS]);
    farewell(node);
    result?;
    if ended == PASSED { Ok(()) } else { fail!("the server failed") }
}
