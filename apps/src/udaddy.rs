//! udaddy: datagrams from a client to an endpoint that service resolution (SIDR) finds, and back.
//!
//! | who | does |
//! |---|---|
//! | client | makes an endpoint for each of its connections, with a Receive for each message |
//! | client | asks for the service, once for each connection |
//! | server | makes an endpoint for each request, and answers with its number and key |
//! | client | sends its messages to each of these endpoints |
//! | server | when all have arrived, sends as many back, to the sender of the first one |
//!
//! Both sides must be given the same number of connections, and of messages and their size. Each
//! message carries its sender's endpoint ID as immediate data, since that is where Linux's server
//! sends its answers; ours answers the endpoint that the datagram names as its source, which is the
//! same. A datagram may be lost: then the side that waits for it gives up. The server's port is
//! 7174, in rdma_cm's UDP port space; all endpoints have the key that rdma_cm gives them; there is
//! no private data.

use alloc::format;
use alloc::string::String;
use core::net::IpAddr;

use common::Trying;
use rdma::{DatagramListener, Destination, Nic, ResolveError, ServiceRequest};

use crate::connection::{Datagrams, silent};
use crate::exchange::{Exchange, Run};
use crate::{Failure, Host, Words, fail, net, say};

const PORT: u16 = 7174;

/// The longest message: what fits into a packet of the largest MTU.
const LONGEST: usize = 4096;

/// Fails if a message does not fit into a datagram.
fn check(exchange: &Exchange, host: &Host<'_>) -> Result<(), Failure> {
    let most = host.nic.longest_datagram();
    if exchange.size <= most {
        Ok(())
    } else {
        fail!("size={}: a datagram has {most} bytes at most", exchange.size)
    }
}

/// The server or the client, as the word `server` or `client` says.
pub fn either(host: &mut Host<'_>, words: Words<'_>) -> Result<(), Failure> {
    words.either(host, server, client)
}

/// Serves clients, one after the other.
///
/// Words: `port=7174`; `connections=1`, `count=10` and `size=100`, what each client has;
/// `clients=0`, after how many clients to end, 0 for no end; `patience=30`, after how many seconds
/// of silence a client counts as gone.
pub fn server(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    let exchange = Exchange::take(&mut words, PORT, LONGEST)?;
    let clients = words.number("clients", 0, 0..=u64::MAX)?;
    words.end()?;
    check(&exchange, host)?;
    say!(host, "udaddy: starting server");
    let listener = host.nic.listen_for_datagrams(exchange.port).trying("listening")?;
    net::ready(host, exchange.port);
    let next = || listener.wait().map(|request| (request.from(), request));
    net::serve(host, clients, next, |host, request| serve(host, &exchange, &listener, request))
}

fn serve(
    host: &mut Host<'_>,
    exchange: &Exchange,
    listener: &DatagramListener,
    first: ServiceRequest,
) -> Result<String, Failure> {
    // An early return drops the request: the client learns that there is no endpoint.
    let mut run = run(host, exchange)?;
    let mut next = Some(first);
    for (n, connection) in run.connections.iter().enumerate() {
        let request = match next.take() {
            Some(first) => Some(first),
            None => listener.wait_timeout(exchange.patience).trying("listening")?,
        };
        let Some(request) = request else { fail!("{n} of {} connections came", exchange.connections) };
        request.answer(&connection.endpoint.endpoint).trying("answering")?;
    }
    if exchange.count > 0 {
        say!(host, "receiving data transfers");
        run.receive()?;
        say!(host, "sending replies");
        run.send()?;
        run.sent()?;
        say!(host, "data transfers complete");
    }
    Ok(format!("{} connections, {} messages on each", exchange.connections, exchange.count))
}

/// Sends messages to a server and waits for as many.
///
/// Words: the server's address; `port=7174`; `connections=1`, `count=10` and `size=100`, which must
/// be the server's; `patience=30`, how many seconds the server may take for a step.
pub fn client(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    let exchange = Exchange::take(&mut words, PORT, LONGEST)?;
    let server: IpAddr = words.address()?;
    words.end()?;
    check(&exchange, host)?;
    say!(host, "udaddy: starting client");
    let mut run = run(host, &exchange)?;
    say!(host, "udaddy: connecting");
    run.each(|connection| {
        connection.endpoint.peer = Some(ask(host.nic, server, &exchange)?);
        Ok(())
    })?;
    if exchange.count > 0 {
        say!(host, "initiating data transfers");
        run.send()?;
        run.sent()?;
        say!(host, "receiving data transfers");
        run.receive()?;
        say!(host, "data transfers complete");
    }
    say!(host, "test complete");
    Ok(())
}

/// All endpoints of a client, at either side, with their Receives.
fn run(host: &Host<'_>, exchange: &Exchange) -> Result<Run<Datagrams>, Failure> {
    let depth = exchange.depth();
    Run::new(host, exchange, |domain, queue| {
        let endpoint = domain.datagrams().sends(depth).receives(depth).queue(queue).build()?;
        Ok(Datagrams { endpoint, peer: None })
    })
}

/// Asks a server for an endpoint.
fn ask(nic: &Nic, server: IpAddr, exchange: &Exchange) -> Result<Destination, Failure> {
    match nic.resolve(server.into(), exchange.port).wait_timeout(exchange.patience) {
        Ok(Ok(resolved)) => Ok(resolved.destination),
        Ok(Err(ResolveError::NoService)) => fail!("no server listens at this port"),
        Ok(Err(error)) => fail!("the server names no endpoint: {error}"),
        Err(_) => Err(silent(exchange.patience)),
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use rdma::{ConnectError, Service};

    use super::*;
    use crate::testing::Net;

    #[test]
    fn messages_go_both_ways() {
        let net = Net::new(2);
        for words in ["", "connections=3 count=20", "size=1 count=2", "size=1024 count=2", "size=0"] {
            let server = net.serve(1, either, &format!("server clients=2 {words}"));
            for v4 in [true, false] {
                let line = format!("client {} {words}", net.address(1, v4));
                let said = net.run(0, either, &line).expect("it passes");
                assert_eq!(said.last().map(String::as_str), Some("test complete"));
                let transfers = said.contains(&"data transfers complete".into());
                assert_eq!(transfers, words != "size=0", "{said:?}");
            }
            let (result, said) = server.end();
            assert_eq!(result, Ok(()), "{said:?}");
            assert!(said.contains(&format!("ready: {}:7174", net.address(1, true))), "{said:?}");
        }
    }

    /// Runs a client that the server cannot serve, and then one that passes. Returns what the
    /// server said of the bad one.
    fn after(words: &str, bad: &str) -> String {
        let net = Net::new(2);
        let at = net.address(1, true);
        let server = net.serve(1, server, &format!("clients=2 patience=1 {words}"));
        let failed = net.run(0, client, &format!("{at} {bad}")).expect_err("nobody answers");
        assert!(failed.contains("nothing came from the peer"), "{failed}");
        net.run(0, client, &format!("{at} {words}")).expect("it is served as ever");
        let (result, said) = server.end();
        assert_eq!(result, Err("1 of 2 clients failed".into()));
        said.into_iter().find(|line| line.starts_with("10.0.0.1: ")).expect("what it said")
    }

    #[test]
    fn clients_that_do_not_follow_are_given_up() {
        let said = after("", "size=101 patience=1");
        assert!(said.ends_with("connection 0: nothing came from the peer for 1 s"), "{said}");
        let said = after("", "size=99 patience=1");
        assert!(said.ends_with("connection 0: a message has 99 bytes, not 100"), "{said}");
        let said = after("", "count=9 patience=1");
        assert!(said.ends_with("connection 0: nothing came from the peer for 1 s"), "{said}");
        // Longer than the server, which would otherwise take the next client's request for its
        // second one.
        let said = after("connections=2", "connections=1 patience=3");
        assert!(said.ends_with("1 of 2 connections came"), "{said}");
    }

    #[test]
    fn wrong_words_and_servers_that_are_not_there() {
        let net = Net::new(2);
        let at = net.address(1, true);
        for (line, what) in [
            ("".into(), "say `server` or `client`"),
            ("client".into(), "address is missing"),
            ("server size=4097".into(), "size=4097"),
            ("server size=1025".into(), "size=1025: a datagram has 1024 bytes at most"),
            (format!("client {at}"), "connection 0: no server listens at this port"),
        ] {
            let said = net.run(0, either, &line).expect_err(&line);
            assert!(said.contains(what), "{line}: {said}");
        }
    }

    /// A port has a service with connections or one with datagrams, in either port space.
    #[test]
    fn requests_of_the_other_kind_are_refused() {
        let net = Net::new(2);
        let nic = net.nic(0);
        let (at, words) = (net.address(1, true), format!("{} count=1", net.address(1, true)));
        // rdma_cm's service IDs of the port: in its UDP port space, and in its TCP port space.
        let [udp, tcp] = [0x111_0000, 0x106_0000].map(|space| Service::id(space | u64::from(PORT)));

        let udaddy = net.serve(1, server, "clients=1 count=1");
        let endpoint = nic.domain().and_then(|domain| domain.endpoint().build()).expect("an endpoint");
        // Reason 9: the service has another transport.
        assert_eq!(endpoint.connect(at.into(), udp).wait(), Err(ConnectError::RejectedByAgent(9)));
        net.run(0, client, &words).expect("it is served as ever");
        assert_eq!(udaddy.end().0, Ok(()));

        let rping = net.serve(1, crate::rping::server, "clients=1");
        assert_eq!(nic.resolve(at.into(), tcp).wait(), Err(ResolveError::NoService));
        net.run(0, crate::rping::client, &words).expect("it is served as ever");
        assert_eq!(rping.end().0, Ok(()));
    }
}
