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
use alloc::vec::Vec;
use core::net::IpAddr;

use common::Trying;
use rdma::{Connecting, Endpoint, Incoming, Listener};

use crate::connection::Connection;
use crate::exchange::{Exchange, Run};
use crate::{Failure, Host, Words, fail, net, say};

const PORT: u16 = 7471;

/// The longest message.
const LONGEST: usize = 1 << 20;

/// The server or the client, as the word `server` or `client` says.
pub fn either(host: &mut Host<'_>, words: Words<'_>) -> Result<(), Failure> {
    words.either(host, server, client)
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
    let listener = host.nic.listen(exchange.port).trying("listening")?;
    net::ready(host, exchange.port);
    let next = || listener.wait().map(|request| (request.from(), request));
    net::serve(host, clients, next, |host, request| serve(host, &exchange, &listener, request))
}

fn serve(
    host: &mut Host<'_>,
    exchange: &Exchange,
    listener: &Listener,
    first: Incoming,
) -> Result<String, Failure> {
    // An early return drops the request, which rejects it.
    let mut run = run(host, exchange)?;
    let mut next = Some(first);
    let mut accepting = Vec::new();
    for (n, connection) in run.connections.iter().enumerate() {
        let request = match next.take() {
            Some(first) => Some(first),
            None => listener.wait_timeout(exchange.patience).trying("listening")?,
        };
        let Some(request) = request else { fail!("{n} of {} connections came", exchange.connections) };
        accepting.push(request.accept(&connection.endpoint));
    }
    established(&mut run, accepting)?;
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
    run.connections.iter().for_each(|connection| connection.endpoint.disconnect());
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
    let mut run = run(host, &exchange)?;
    say!(host, "cmatose: connecting");
    let connect =
        |connection: &Connection<Endpoint>| connection.endpoint.connect(server.into(), exchange.port);
    let connecting = run.connections.iter().map(connect).collect();
    established(&mut run, connecting)?;
    if exchange.count > 0 {
        say!(host, "receiving data transfers");
        run.receive()?;
        say!(host, "sending replies");
        run.send()?;
        say!(host, "data transfers complete");
    }
    run.each(|connection| connection.disconnected())?;
    say!(host, "test complete");
    Ok(())
}

/// All endpoints of a client, at either side, with their Receives.
fn run(host: &Host<'_>, exchange: &Exchange) -> Result<Run<Endpoint>, Failure> {
    let depth = exchange.depth();
    Run::new(host, exchange, |domain, queue| {
        domain.endpoint().sends(depth).receives(depth).reads(1).queue(queue).build()
    })
}

/// Waits until all connections are established.
fn established(run: &mut Run<Endpoint>, connecting: Vec<Connecting>) -> Result<(), Failure> {
    let mut connecting = connecting.into_iter();
    run.each(|connection| connecting.next().map_or(Ok(()), |next| connection.established(next)))
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
        assert!(
            ends_with(&ended[0], "connection 0: Receive: a message was longer than the memory for it"),
            "{ended:?}"
        );
        assert!(ends_with(&ended[1], "a message has 100 bytes, not 101"), "{ended:?}");
        assert!(said.iter().any(|line| line.contains("Send: the peer refused the request")), "{said:?}");
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
