//! cmatose (rdma-core installs it as `ucmatose`): several connections of one client, and messages
//! over each of them in both directions.
//!
//! | who | does |
//! |---|---|
//! | client | asks for all connections, having posted a Receive for each message of the server |
//! | server | accepts them, with a Receive for each message of the client |
//! | server | when all are established, sends all its messages on each connection |
//! | client | when all messages of all connections have arrived, sends as many back |
//! | server | when these have arrived, disconnects each connection |
//!
//! Both sides must be given the same number of connections, and of messages and their size; nothing
//! on the wire says them. What is in the messages counts for nothing. The server's port is 7471, in
//! rdma_cm's TCP port space; there is no private data.

use alloc::format;
use alloc::string::String;
use core::net::IpAddr;

use common::Trying;
use privileged_api::{ConnRequest, EpAttributes, Event, MemPriv, RcAttributes};

use crate::exchange::Exchange;
use crate::net::{Listener, Service};
use crate::objects::{End, Objects, Patience, Region};
use crate::words::Role;
use crate::{Failure, Host, Words, fail, net, say};

const PORT: u16 = 7471;

/// The longest message.
const LONGEST: usize = 1 << 20;

/// The server or the client, as the word `server` or `client` says.
pub fn either(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    match words.role()? {
        Role::Server => server(host, words),
        Role::Client => client(host, words),
    }
}

/// Serves clients, one after the other.
///
/// Words: `port=7471`; `connections=1`, `count=10` and `size=100`, what each client has;
/// `clients=0`, after how many clients to end, 0 for no end; `patience=30`, after how many seconds
/// of silence a client counts as gone.
pub fn server(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    let exchange = Exchange::take(&mut words, PORT, LONGEST)?;
    let clients = words.number("clients", 0, 0..=u64::MAX)?;
    words.end()?;
    say!(host, "cmatose: starting server");
    let listener = Listener::new(host, Service::Tcp(exchange.port))?;
    net::serve(host, &listener, clients, |host, request| {
        let Event::ConnRequest(request) = request else { fail!("not a request for a connection") };
        serve(host, &exchange, &listener, request)
    })
}

fn serve(
    host: &mut Host<'_>,
    exchange: &Exchange,
    listener: &Listener<'_>,
    first: &ConnRequest,
) -> Result<String, Failure> {
    let mut run = match Run::new(host, exchange) {
        Ok(run) => run,
        Err(why) => {
            // The identifier is used up even if the client has gone.
            let _ = host.ia.reject(first.cn_est_id, &[]);
            return Err(why);
        }
    };
    run.objects.accept(0, first)?;
    for n in 1..exchange.connections {
        let Patience(most) = exchange.patience;
        match listener.next(most)? {
            Some(Event::ConnRequest(request)) => run.objects.accept(n, &request)?,
            _ => fail!("{n} of {} connections came", exchange.connections),
        }
    }
    run.established()?;
    if exchange.count > 0 {
        say!(host, "initiating data transfers");
        run.send()?;
        say!(host, "completing sends");
        run.sent()?;
        say!(host, "receiving data transfers");
        run.receive()?;
        say!(host, "data transfers complete");
    }
    say!(host, "cmatose: disconnecting");
    run.disconnect()?;
    say!(host, "disconnected");
    Ok(format!("{} connections, {} messages on each, disconnected", exchange.connections, exchange.count))
}

/// Connects to a server and answers its messages.
///
/// Words: the server's address; `port=7471`; `connections=1`, `count=10` and `size=100`, which must
/// be the server's; `patience=30`, how many seconds the server may take for a step.
pub fn client(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    let exchange = Exchange::take(&mut words, PORT, LONGEST)?;
    let server: IpAddr = words.address()?;
    words.end()?;
    say!(host, "cmatose: starting client");
    let mut run = Run::new(host, &exchange)?;
    let path = net::path(host.ia, server)?;
    say!(host, "cmatose: connecting");
    for n in 0..exchange.connections {
        run.objects.connect(n, &path, Service::Tcp(exchange.port))?;
    }
    run.established()?;
    if exchange.count > 0 {
        say!(host, "receiving data transfers");
        run.receive()?;
        say!(host, "sending replies");
        run.send()?;
        say!(host, "data transfers complete");
    }
    run.disconnected()?;
    say!(host, "test complete");
    Ok(())
}

/// The connections of a client, at either side.
struct Run<'a> {
    objects: Objects<'a>,
    count: usize,
    /// What is sent.
    message: Region,
}

impl<'a> Run<'a> {
    /// All endpoints, with their Receives.
    fn new(host: &Host<'a>, exchange: &Exchange) -> Result<Run<'a>, Failure> {
        let &Exchange { connections, count, size, patience, .. } = exchange;
        let transfers = 2 * connections * count.max(1);
        let mut objects = Objects::new(host, transfers, connections, patience)?;
        let message = objects.memory(size, MemPriv::LOCAL)?;
        // As on Linux, all messages arrive in the same memory: only their number counts.
        let arrived = objects.memory(size, MemPriv::LOCAL)?;
        let attributes = EpAttributes {
            max_dto_payload_size: LONGEST,
            max_request_dtos: count.max(1),
            max_recv_dtos: count.max(1),
            max_send_segments: 1,
            max_recv_segments: 1,
            rc: RcAttributes { rdma_read_ird: 1, rdma_read_ord: 1, ..RcAttributes::default() },
            ..EpAttributes::default()
        };
        for _ in 0..connections {
            let n = objects.endpoint(&attributes)?;
            for _ in 0..count {
                objects.post_receive(n, &arrived)?;
            }
        }
        Ok(Run { objects, count, message })
    }

    /// Runs `step` for each connection.
    fn each(
        &mut self,
        mut step: impl FnMut(&mut Objects<'a>, usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for n in 0..self.objects.connections.len() {
            step(&mut self.objects, n).map_err(|why| Failure::new(format_args!("connection {n}: {why}")))?;
        }
        Ok(())
    }

    fn established(&mut self) -> Result<(), Failure> {
        self.each(|objects, n| objects.established(n))
    }

    fn send(&mut self) -> Result<(), Failure> {
        let (count, message) = (self.count, self.message.clone());
        self.each(|objects, n| {
            (0..count).try_for_each(|_| objects.post_send(n, &message, message.buffer.len()))
        })
    }

    fn sent(&mut self) -> Result<(), Failure> {
        let count = self.count as u64;
        self.each(|objects, n| objects.until(n, |connection| (connection.sent == count).then_some(())))
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let (count, size) = (self.count, self.message.buffer.len());
        self.each(|objects, n| {
            for _ in 0..count {
                let length = objects.received(n)?;
                if length != size {
                    fail!("a message has {length} bytes, not {size}");
                }
            }
            Ok(())
        })
    }

    fn disconnect(&mut self) -> Result<(), Failure> {
        self.each(|objects, n| {
            let ep = objects.connections[n].ep;
            objects.ia.ep_disconnect(ep, &[]).trying("it_ep_disconnect")
        })
    }

    /// Waits until the peer has disconnected.
    fn disconnected(&mut self) -> Result<(), Failure> {
        self.each(|objects, n| match objects.until(n, |connection| connection.end)? {
            End::Disconnected => Ok(()),
            other => Err(Failure::new(other)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;
    use std::vec::Vec;

    use super::*;
    use crate::testing::Net;

    #[test]
    fn messages_go_both_ways() {
        let net = Net::new(2);
        let runs = ["", "connections=5 count=20 size=4096", "count=3 size=65536", "connections=3 count=0"];
        for words in runs {
            let server = net.serve(1, either, &format!("server clients=2 {words}"));
            for v4 in [true, false] {
                let line = format!("client {} {words}", net.address(1, v4));
                let said = net.run(0, either, &line).expect("it passes");
                assert_eq!(said.last().map(String::as_str), Some("test complete"));
                let transfers = said.contains(&"data transfers complete".into());
                assert_eq!(transfers, !words.contains("count=0"), "{said:?}");
            }
            let (result, said) = server.end();
            assert_eq!(result, Ok(()));
            assert!(said.contains(&format!("ready: {}:7471", net.address(1, true))), "{said:?}");
            assert_eq!(said.iter().filter(|line| *line == "disconnected").count(), 2);
        }
    }

    /// Runs clients that the server cannot serve, and then one that passes. Returns what the server
    /// said, and how each bad client ended.
    fn after(words: &str, good: &str, bad: &[&str]) -> (Vec<String>, Vec<Result<Vec<String>, String>>) {
        let net = Net::new(2);
        let at = net.address(1, true);
        let server = net.serve(1, server, &format!("clients={} {words}", bad.len() + 1));
        let ended = bad.iter().map(|words| net.run(0, client, &format!("{at} {words}"))).collect();
        net.run(0, client, &format!("{at} {good}")).expect("it is served as ever");
        let (result, said) = server.end();
        assert_eq!(result, Err(format!("{} of {} clients failed", bad.len(), bad.len() + 1)));
        (said, ended)
    }

    fn ends_with(result: &Result<Vec<String>, String>, why: &str) -> bool {
        result.as_ref().is_err_and(|said| said.ends_with(why))
    }

    #[test]
    fn messages_of_another_size_are_noticed() {
        let (said, ended) = after("size=100", "size=100", &["size=99", "size=101"]);
        assert!(ends_with(&ended[0], "connection 0: IT_DTO_RC_RECV_CMPL_EVENT: LocalLength"), "{ended:?}");
        assert!(ends_with(&ended[1], "a message has 100 bytes, not 101"), "{ended:?}");
        assert!(said.iter().any(|line| line.contains("IT_DTO_SEND_CMPL_EVENT")), "{said:?}");
    }

    #[test]
    fn a_client_with_too_few_connections_is_given_up() {
        let words = "connections=2 count=3 patience=1";
        let (said, ended) = after(words, words, &["connections=1 count=3"]);
        assert!(ends_with(&ended[0], "the peer disconnected"), "{ended:?}");
        assert!(said.iter().any(|line| line.ends_with("1 of 2 connections came")), "{said:?}");
    }

    /// The client has what it expects, and the server waits for a message that never comes.
    #[test]
    fn a_client_with_too_few_messages_is_given_up() {
        let (said, ended) = after("count=3 patience=1", "count=3", &["count=2"]);
        assert!(ended[0].is_ok(), "{ended:?}");
        assert!(said.iter().any(|line| line.ends_with("nothing came from the peer for 1 s")), "{said:?}");
    }

    #[test]
    fn wrong_words() {
        let net = Net::new(1);
        for (line, what) in [
            ("", "say `server` or `client`"),
            ("server client", "say `server` or `client`"),
            ("client", "address is missing"),
            ("server 10.0.0.1", "10.0.0.1"),
            ("server count=1025", "count=1025"),
            ("client 10.0.0.1 clients=1", "clients=1"),
        ] {
            let said = net.run(0, either, line).expect_err(line);
            assert!(said.contains(what), "{line}: {said}");
        }
    }
}
