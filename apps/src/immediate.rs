//! immediate: RDMA Writes and Sends with immediate data, in both directions. rdma-core has no such
//! example; `qemu/src/linux/immediate.c` is the same program for Linux.
//!
//! | who | does |
//! |---|---|
//! | both | send an advert (16 bytes, as in rping) of their memory, with the immediate data 0 |
//! | client | in round n, writes to the server's memory, with the immediate data n |
//! | server | writes the same bytes back, with the same immediate data |
//! | client | sends 16 bytes, with the immediate data n |
//! | server | sends 16 bytes back, with the same immediate data |
//!
//! Round n writes `size`, 0, 1 or half of `size` bytes, in turn; the byte at offset i is n + i,
//! without the carry. The Receives for Writes have no segments. Each side checks of each message
//! whether it is a Send or a Write, its length, its immediate data and its bytes. The client
//! disconnects after its last round. The server's port is 7473, in rdma_cm's TCP port space; there
//! is no private data.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use common::Trying;
use rdma::{Access, Done, Endpoint, Incoming, Region, RemoteMemory, Work};

use crate::connection::Connection;
use crate::{Failure, Host, Words, advert, fail, net, say};

const PORT: u16 = 7473;
/// The longest Write.
const LONGEST: usize = 1 << 20;
/// The bytes of a Send count for nothing, but those of an advert.
const SENT: usize = advert::LEN;
/// Requests and Receives of an endpoint.
const TRANSFERS: u32 = 8;

/// What both sides must be given alike, but for `patience`.
struct Options {
    port: u16,
    count: u32,
    size: usize,
    patience: Duration,
}

impl Options {
    fn take(words: &mut Words<'_>) -> Result<Options, Failure> {
        Ok(Options {
            port: words.number("port", PORT, 1..=u16::MAX)?,
            count: words.number("count", 10, 0..=u32::MAX)?,
            size: words.number("size", 4096, 1..=LONGEST)?,
            patience: words.patience()?,
        })
    }

    /// How many bytes round `n` writes.
    fn length(&self, n: u32) -> usize {
        [self.size, 0, 1, self.size / 2][n as usize % 4]
    }
}

/// The server or the client, as the word `server` or `client` says.
pub fn either(host: &mut Host<'_>, words: Words<'_>) -> Result<(), Failure> {
    words.either(host, server, client)
}

/// Serves clients, one after the other.
///
/// Words: `port=7473`; `count=10`, the rounds of each client; `size=4096`, the bytes of the longest
/// Writes; `clients=0`, after how many clients to end, 0 for no end; `patience=30`, after how many
/// seconds of silence a client counts as gone.
pub fn server(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    let options = Options::take(&mut words)?;
    let clients = words.number("clients", 0, 0..=u64::MAX)?;
    words.end()?;
    let listener = host.nic.listen(options.port).trying("listening")?;
    net::ready(host, options.port);
    let next = || listener.wait().map(|request| (request.from(), request));
    net::serve(host, clients, next, |host, request| serve(host, &options, request))
}

fn serve(host: &Host<'_>, options: &Options, request: Incoming) -> Result<String, Failure> {
    // An early return drops the request, which rejects it.
    let mut run = Run::new(host, options)?;
    run.peer.established(request.accept(&run.peer.endpoint))?;
    run.greet()?;
    for round in 1..=options.count {
        run.round(options, round, false).map_err(|why| in_round(round, why))?;
    }
    run.peer.disconnected()?;
    Ok(format!("{} rounds, disconnected", options.count))
}

/// Connects to a server.
///
/// Words: the server's address; `port=7473`; `count=10` and `size=4096`, which must be the
/// server's; `patience=30`, how many seconds the server may take for a step.
pub fn client(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    let options = Options::take(&mut words)?;
    let server: IpAddr = words.address()?;
    words.end()?;
    let mut run = Run::new(host, &options)?;
    run.peer.established(run.peer.endpoint.connect(server.into(), options.port))?;
    run.greet()?;
    for round in 1..=options.count {
        run.round(&options, round, true).map_err(|why| in_round(round, why))?;
    }
    run.peer.sent()?;
    run.peer.endpoint.disconnect();
    say!(host, "immediate: {} rounds, each Write and Send with its immediate data", options.count);
    Ok(())
}

fn in_round(round: u32, why: Failure) -> Failure {
    Failure::new(format_args!("round {round}: {why}"))
}

/// A connection, at either side.
struct Run {
    peer: Connection<Endpoint>,
    /// What is written to the peer.
    source: Region,
    /// Where the peer writes.
    sink: Region,
    /// What is sent, and where it arrives.
    message: Region,
    arrived: Region,
    /// The peer's memory.
    there: RemoteMemory,
}

impl Run {
    /// An endpoint, with Receives for the advert, and for the messages of the first round.
    fn new(host: &Host<'_>, options: &Options) -> Result<Run, Failure> {
        let domain = host.nic.domain().trying("a domain")?;
        let source = domain.region(options.size).trying("memory")?;
        let sink = domain.shared_region(options.size, Access::READ | Access::WRITE).trying("memory")?;
        let (message, arrived) =
            (domain.region(SENT).trying("memory")?, domain.region(SENT).trying("memory")?);
        let endpoint = domain.endpoint().sends(TRANSFERS).receives(TRANSFERS).reads(1).build();
        let peer = Connection::new(endpoint.trying("an endpoint")?, options.patience);
        let mut run = Run { peer, source, sink, message, arrived, there: RemoteMemory::new(0, 0, 0) };
        run.peer.expect(run.arrived.slice(..))?;
        run.expect_a_round()?;
        Ok(run)
    }

    /// Posts a Receive for the peer's next Write, and one for its next Send.
    fn expect_a_round(&mut self) -> Result<(), Failure> {
        self.peer.expect(self.arrived.slice(..0))?;
        self.peer.expect(self.arrived.slice(..))
    }

    /// Tells the peer where our memory is, and learns where its is.
    fn greet(&mut self) -> Result<(), Failure> {
        self.message.slice(..).write(&advert::of(&self.sink));
        self.send(0)?;
        self.heard(0)?;
        self.there = advert::arrived(&self.arrived);
        Ok(())
    }

    fn round(&mut self, options: &Options, round: u32, first: bool) -> Result<(), Failure> {
        let length = options.length(round);
        if first {
            self.write(round, length)?;
            self.was_written(round, length)?;
            // Nothing of this round comes any more but the Send whose Receive is posted.
            self.expect_a_round()?;
            self.send(round)?;
            self.heard(round)
        } else {
            self.was_written(round, length)?;
            self.write(round, length)?;
            self.heard(round)?;
            self.expect_a_round()?;
            self.send(round)
        }
    }

    fn write(&mut self, round: u32, length: usize) -> Result<(), Failure> {
        self.source.slice(..).write(&pattern(round, length));
        let write = Work::write(self.source.slice(..length), self.there).immediate(round);
        let write = self.peer.endpoint.start(write).trying("RDMA Write")?;
        // The memory is written to again in the next round.
        self.peer.done("RDMA Write", write).map(drop)
    }

    /// Waits for the peer's Write.
    fn was_written(&mut self, round: u32, length: usize) -> Result<(), Failure> {
        let done = self.peer.received()?;
        if done
            != (Done {
                len: 0,
                written: Some(length),
                immediate: Some(round),
                sender: None,
                invalidated: None,
            })
        {
            fail!("not a Write of {length} bytes with the immediate data {round}: {done:?}");
        }
        if self.sink.slice(..length).to_vec() != pattern(round, length) {
            fail!("other bytes than those that were written");
        }
        Ok(())
    }

    fn send(&mut self, immediate: u32) -> Result<(), Failure> {
        // The peer has answered the former one.
        self.peer.sent()?;
        let send = Work::send(self.message.slice(..)).immediate(immediate);
        let send = self.peer.endpoint.start(send).trying("Send")?;
        self.peer.sending(send);
        Ok(())
    }

    /// Waits for the peer's Send.
    fn heard(&mut self, data: u32) -> Result<(), Failure> {
        let done = self.peer.received()?;
        if done != (Done { len: SENT, written: None, immediate: Some(data), sender: None, invalidated: None })
        {
            fail!("not a Send of {SENT} bytes with the immediate data {data}: {done:?}");
        }
        Ok(())
    }
}

/// What round `n` writes.
fn pattern(n: u32, length: usize) -> Vec<u8> {
    (0..length).map(|i| (n as usize + i) as u8).collect()
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;
    use crate::testing::Net;

    #[test]
    fn writes_and_sends_arrive_with_their_immediate_data() {
        let net = Net::new(2);
        for words in ["", "count=0", "count=9 size=1", "count=5 size=1048576"] {
            let server = net.serve(1, either, &format!("server clients=2 {words}"));
            for v4 in [true, false] {
                let line = format!("client {} {words}", net.address(1, v4));
                let said = net.run(0, either, &line).expect("it passes");
                assert!(
                    said.last().is_some_and(|line| line.ends_with("with its immediate data")),
                    "{said:?}"
                );
            }
            let (result, said) = server.end();
            assert_eq!(result, Ok(()));
            assert_eq!(said.iter().filter(|line| line.ends_with("rounds, disconnected")).count(), 2);
        }
    }

    /// The sides differ in the size, or in the number of rounds.
    #[test]
    fn what_is_not_as_expected_is_noticed() {
        let net = Net::new(2);
        for (words, server_says, client_says) in [
            ("count=4 size=200", "round 3: not a Write of 50 bytes", "round 3: the peer disconnected"),
            ("count=3 size=100", "round 4: the peer disconnected", ""),
            ("count=5 size=100", "nothing came from the peer for 1 s", "round 5: the peer disconnected"),
        ] {
            let server = net.serve(1, server, "clients=1 patience=1 count=4 size=100");
            let result = net.run(0, client, &format!("{} {words}", net.address(1, true)));
            let said: String = result.err().unwrap_or_default();
            assert!(said.contains(client_says), "{words}: {said}");
            let (_, said) = server.end();
            assert!(said.iter().any(|line| line.contains(server_says)), "{words}: {said:?}");
        }
    }

    #[test]
    fn wrong_words() {
        let net = Net::new(1);
        for (line, what) in [
            ("", "say `server` or `client`"),
            ("client", "address is missing"),
            ("server size=0", "size=0"),
            ("client 10.0.0.1 clients=1", "clients=1"),
        ] {
            let said = net.run(0, either, line).expect_err(line);
            assert!(said.contains(what), "{line}: {said}");
        }
    }
}
