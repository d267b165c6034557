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
use alloc::vec::Vec;
use core::net::IpAddr;

use common::Trying;
use privileged_api::{Event, MemPriv, RemoteEpInfo, UdServiceRequest, UdSvcStatus};

use crate::datagrams::HEADER;
use crate::exchange::Exchange;
use crate::net::{Listener, Service};
use crate::objects::{Objects, Patience, Region};
use crate::words::Role;
use crate::{Failure, Host, Words, fail, net, say};

const PORT: u16 = 7174;

/// The longest message: what fits into a packet of the largest MTU.
const LONGEST: usize = 4096;

/// Fails if a message does not fit into a datagram.
fn check(exchange: &Exchange, host: &Host<'_>) -> Result<(), Failure> {
    let most = net::spigot(host.ia)?.max_ud_send_len;
    if exchange.size <= most {
        Ok(())
    } else {
        fail!("size={}: a datagram has {most} bytes at most", exchange.size)
    }
}

/// The server or the client, as the word `server` or `client` says.
pub fn either(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    match words.role()? {
        Role::Server => server(host, words),
        Role::Client => client(host, words),
    }
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
    let listener = Listener::new(host, Service::Udp(exchange.port))?;
    net::serve(host, &listener, clients, |host, request| {
        let Event::UdServiceRequest(request) = request else { fail!("not a request for a service") };
        serve(host, &exchange, &listener, request)
    })
}

fn serve(
    host: &mut Host<'_>,
    exchange: &Exchange,
    listener: &Listener<'_>,
    first: &UdServiceRequest,
) -> Result<String, Failure> {
    let mut run = match Run::new(host, exchange) {
        Ok(run) => run,
        Err(why) => {
            let (id, none) = (first.ud_svc_req_id, RemoteEpInfo::default());
            // The client asks again if the answer is not sent.
            let _ = host.ia.ud_service_reply(id, UdSvcStatus::NoEpAvailable, none, &[]);
            return Err(why);
        }
    };
    run.answer(0, first)?;
    for n in 1..exchange.connections {
        let Patience(most) = exchange.patience;
        match listener.next(most)? {
            Some(Event::UdServiceRequest(request)) => run.answer(n, &request)?,
            _ => fail!("{n} of {} connections came", exchange.connections),
        }
    }
    if exchange.count > 0 {
        say!(host, "receiving data transfers");
        run.receive()?;
        say!(host, "sending replies");
        run.each(|run, n| run.objects.send_back(n, &run.arrived[n]))?;
        run.send()?;
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
    let mut run = Run::new(host, &exchange)?;
    let path = net::path(host.ia, server)?;
    say!(host, "udaddy: connecting");
    run.each(|run, n| run.objects.ask(n, &path, Service::Udp(exchange.port)))?;
    run.each(|run, n| run.objects.answered(n, &path))?;
    if exchange.count > 0 {
        say!(host, "initiating data transfers");
        run.send()?;
        say!(host, "receiving data transfers");
        run.receive()?;
        say!(host, "data transfers complete");
    }
    say!(host, "test complete");
    Ok(())
}

/// The endpoints of a client, at either side.
struct Run<'a> {
    objects: Objects<'a>,
    count: usize,
    /// What is sent.
    message: Region,
    /// Where messages arrive, for each endpoint.
    arrived: Vec<Region>,
}

impl<'a> Run<'a> {
    /// All endpoints, with their Receives.
    fn new(host: &Host<'a>, exchange: &Exchange) -> Result<Run<'a>, Failure> {
        let &Exchange { connections, count, size, patience, .. } = exchange;
        let transfers = 2 * connections * count.max(1);
        let mut objects = Objects::new(host, transfers, connections, patience)?;
        let message = objects.memory(size, MemPriv::LOCAL)?;
        let mut arrived = Vec::new();
        for _ in 0..connections {
            let n = objects.datagram_endpoint(count, size)?;
            // Each datagram keeps its place, so that the header of the first one stays.
            let place = HEADER + size;
            let region = objects.memory(place * count.max(1), MemPriv::LOCAL)?;
            for receive in 0..count {
                objects.post_receive_from(n, &region, receive * place, place)?;
            }
            arrived.push(region);
        }
        Ok(Run { objects, count, message, arrived })
    }

    /// Answers a client's request with an endpoint.
    fn answer(&self, n: usize, request: &UdServiceRequest) -> Result<(), Failure> {
        let (id, info) = (request.ud_svc_req_id, self.objects.info(n)?);
        self.objects
            .ia
            .ud_service_reply(id, UdSvcStatus::EpInfoValid, info, &[])
            .trying("it_ud_service_reply")
    }

    /// Runs `step` for each endpoint.
    fn each(&mut self, mut step: impl FnMut(&mut Self, usize) -> Result<(), Failure>) -> Result<(), Failure> {
        for n in 0..self.objects.connections.len() {
            step(self, n).map_err(|why| Failure::new(format_args!("connection {n}: {why}")))?;
        }
        Ok(())
    }

    /// Sends all messages, and waits until they are sent.
    fn send(&mut self) -> Result<(), Failure> {
        let count = self.count;
        self.each(|run, n| (0..count).try_for_each(|_| run.objects.post_datagram(n, &run.message)))?;
        let sent = count as u64;
        self.each(|run, n| run.objects.until(n, |connection| (connection.sent == sent).then_some(())))
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let (count, size) = (self.count, self.message.buffer.len());
        self.each(|run, n| {
            for _ in 0..count {
                let length = run.objects.received(n)?;
                if length != HEADER + size {
                    fail!("a message has {} bytes, not {size}", length.saturating_sub(HEADER));
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;
    use crate::objects::End;
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
        let ia = net.ia(0);
        let host = Host { ia: &ia, platform: &net.node.platform, say: &mut |_| () };
        let path = net::path(&ia, net.address(1, true)).expect("a path");
        let mut objects = Objects::new(&host, 8, 2, Patience(30_000_000)).expect("objects");
        let words = format!("{} count=1", net.address(1, true));

        let udaddy = net.serve(1, server, "clients=1 count=1");
        let n = objects.endpoint(&privileged_api::EpAttributes::default()).expect("an endpoint");
        objects.connect(n, &path, Service::Udp(PORT)).expect("a request");
        assert_eq!(objects.until(n, |connection| connection.end).expect("an end"), End::Refused);
        net.run(0, client, &words).expect("it is served as ever");
        assert_eq!(udaddy.end().0, Ok(()));

        let rping = net.serve(1, crate::rping::server, "clients=1");
        let n = objects.datagram_endpoint(1, 1).expect("an endpoint");
        objects.ask(n, &path, Service::Tcp(PORT)).expect("a request");
        let reply = objects.until(n, |connection| connection.datagrams.reply).expect("an answer");
        assert_eq!(reply.status, UdSvcStatus::IdNotSupported);
        net.run(0, crate::rping::client, &words).expect("it is served as ever");
        assert_eq!(rping.end().0, Ok(()));
    }
}
