//! Nodes for tests: each has a NIC of its own, in this process, and reaches the others by
//! the short cut. A server runs in a thread.

use std::string::{String, ToString};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::vec::Vec;
use std::{format, thread};

use alloc::sync::Arc;
use core::net::IpAddr;

use common::Node;
use host::Machine;
use kernel_agent::Agent;
use rdma::Nic;

use crate::{Failure, Host, Program, Words, net};

/// A machine whose NIC `n` is node `n`.
pub(crate) struct Net {
    pub node: Node,
    _machine: Machine,
}

impl Net {
    pub fn new(nodes: u8) -> Net {
        let machine = Machine::new(nodes);
        let node = Node::start(machine.platform(), machine.privileged(), machine.transports());
        Net { node: node.expect("the NICs come up"), _machine: machine }
    }

    pub fn nic(&self, n: usize) -> Nic {
        self.node.nic(n).expect("a NIC")
    }

    /// Runs a program on node `n`; returns what it wrote.
    pub fn run(&self, n: usize, program: Program, line: &str) -> Result<Vec<String>, String> {
        let mut said = Vec::new();
        let nic = self.nic(n);
        let result = run(&nic, program, line, &mut |line| said.push(line));
        assert!(nic.is_alone(), "{line}: the program left something");
        result.map(|()| said).map_err(|failure| failure.to_string())
    }

    /// Starts a server on node `n`, and waits until it listens.
    pub fn serve(&self, n: usize, program: Program, line: &str) -> Server {
        let (nic, line): (_, String) = (self.nic(n), line.into());
        let (sender, lines): (Sender<String>, _) = channel();
        let agent = nic.agent().clone();
        let thread = thread::spawn(move || {
            let result = run(&nic, program, &line, &mut |line| drop(sender.send(line)));
            assert!(nic.is_alone(), "{line}: the server left something");
            result.map_err(|failure| failure.to_string())
        });
        let mut server = Server { lines, said: Vec::new(), thread: Some(thread), agent };
        server.wait_for("ready: ");
        server
    }

    /// An address of node `n`.
    pub fn address(&self, n: usize, v4: bool) -> IpAddr {
        let found = net::addresses(&self.nic(n)).into_iter().find(|address| address.is_ipv4() == v4);
        found.expect("an address of each kind")
    }
}

fn run(nic: &Nic, program: Program, line: &str, say: &mut dyn FnMut(String)) -> Result<(), Failure> {
    let say = &mut |line: core::fmt::Arguments<'_>| say(format!("{line}"));
    program(&mut Host { nic, say }, Words::new(line))
}

/// A server that runs.
pub(crate) struct Server {
    lines: Receiver<String>,
    pub said: Vec<String>,
    thread: Option<JoinHandle<Result<(), String>>>,
    agent: Arc<Agent>,
}

impl Server {
    /// Waits until the server has written a line that begins or ends with `what`.
    pub fn wait_for(&mut self, what: &str) {
        loop {
            let line = self.lines.recv().unwrap_or_else(|_| panic!("no {what:?} in {:?}", self.said));
            self.said.push(line.clone());
            if line.starts_with(what) || line.ends_with(what) {
                return;
            }
        }
    }

    /// Waits until the server ends; returns its result and all that it wrote.
    pub fn end(mut self) -> (Result<(), String>, Vec<String>) {
        let result = self.thread.take().expect("it ends once").join().expect("it does not panic");
        self.said.extend(self.lines.try_iter());
        (result, core::mem::take(&mut self.said))
    }
}

impl Drop for Server {
    /// Ends a server for which no test waits: its waits end with its agent.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.agent.close();
            let _ = thread.join();
        }
    }
}
