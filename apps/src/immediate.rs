//! immediate: RDMA Writes and Sends with immediate data, in both directions. rdma-core has no such
//! example; `qemu/src/linux/immediate.c` is the same program for Linux.
//!
//! | who | does |
//! |---|---|
//! | both | send an `Advert` of their memory, with the immediate data 0 |
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

use common::Trying;
use privileged_api::{ConnRequest, DtoFlags, EpAttributes, Event, Immediate, MemPriv, RcAttributes};

use crate::advert::Advert;
use crate::net::{Listener, Service};
use crate::objects::{End, Message, Objects, Patience, Region};
use crate::words::Role;
use crate::{Failure, Host, Words, fail, net, say};

const PORT: u16 = 7473;
/// The longest Write.
const LONGEST: usize = 1 << 20;
/// The bytes of a Send count for nothing, but those of an advert.
const SENT: usize = Advert::LEN;
/// Requests and Receives of an endpoint.
const TRANSFERS: usize = 8;

/// What both sides must be given alike, but for `patience`.
struct Options {
    port: u16,
    count: u32,
    size: usize,
    patience: Patience,
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
pub fn either(host: &mut Host<'_>, mut words: Words<'_>) -> Result<(), Failure> {
    match words.role()? {
        Role::Server => server(host, words),
        Role::Client => client(host, words),
    }
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
    let listener = Listener::new(host, Service::Tcp(options.port))?;
    net::serve(host, &listener, clients, |host, request| {
        let Event::ConnRequest(request) = request else { fail!("not a request for a connection") };
        serve(host, &options, request)
    })
}

fn serve(host: &Host<'_>, options: &Options, request: &ConnRequest) -> Result<String, Failure> {
    let mut run = match Run::new(host, options) {
        Ok(run) => run,
        Err(why) => {
            // The identifier is used up even if the client has gone.
            let _ = host.ia.reject(request.cn_est_id, &[]);
            return Err(why);
        }
    };
    run.objects.accept(run.n, request)?;
    run.greet()?;
    for round in 1..=options.count {
        run.round(options, round, false).map_err(|why| in_round(round, why))?;
    }
    match run.objects.until(run.n, |connection| connection.end)? {
        End::Disconnected => Ok(format!("{} rounds, disconnected", options.count)),
        other => Err(Failure::new(other)),
    }
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
    let path = net::path(host.ia, server)?;
    run.objects.connect(run.n, &path, Service::Tcp(options.port))?;
    run.greet()?;
    for round in 1..=options.count {
        run.round(&options, round, true).map_err(|why| in_round(round, why))?;
    }
    // The Send of the last message is done when its completion is there.
    let sent = 1 + u64::from(options.count);
    run.objects.until(run.n, |connection| (connection.sent == sent).then_some(()))?;
    run.objects.ia.ep_disconnect(run.objects.connections[run.n].ep, &[]).trying("it_ep_disconnect")?;
    say!(host, "immediate: {} rounds, each Write and Send with its immediate data", options.count);
    Ok(())
}

fn in_round(round: u32, why: Failure) -> Failure {
    Failure::new(format_args!("round {round}: {why}"))
}

/// A connection, at either side.
struct Run<'a> {
    objects: Objects<'a>,
    n: usize,
    /// What is written to the peer.
    source: Region,
    /// Where the peer writes.
    sink: Region,
    /// What is sent, and where it arrives.
    message: Region,
    arrived: Region,
    /// The peer's memory.
    peer: Advert,
    /// How many Writes are done.
    written: u64,
}

impl<'a> Run<'a> {
    /// An endpoint, with Receives for the advert, and for the messages of the first round.
    fn new(host: &Host<'a>, options: &Options) -> Result<Run<'a>, Failure> {
        let mut objects = Objects::new(host, 2 * TRANSFERS, 1, options.patience)?;
        let source = objects.memory(options.size, MemPriv::LOCAL)?;
        let sink = objects.memory(options.size, MemPriv::LOCAL | MemPriv::REMOTE)?;
        let message = objects.memory(SENT, MemPriv::LOCAL)?;
        let arrived = objects.memory(SENT, MemPriv::LOCAL)?;
        let n = objects.endpoint(&EpAttributes {
            max_dto_payload_size: LONGEST,
            max_request_dtos: TRANSFERS,
            max_recv_dtos: TRANSFERS,
            max_send_segments: 1,
            max_recv_segments: 1,
            rc: RcAttributes {
                rdma_write_enable: true,
                max_rdma_write_segments: 1,
                rdma_read_ird: 1,
                rdma_read_ord: 1,
                ..RcAttributes::default()
            },
            ..EpAttributes::default()
        })?;
        let peer = Advert { address: 0, key: 0, size: 0 };
        let run = Run { objects, n, source, sink, message, arrived, peer, written: 0 };
        run.objects.post_receive(n, &run.arrived)?;
        run.expect_a_round()?;
        Ok(run)
    }

    /// Posts a Receive for the peer's next Write, and one for its next Send.
    fn expect_a_round(&self) -> Result<(), Failure> {
        let ep = self.objects.connections[self.n].ep;
        self.objects.ia.post_recv(ep, &[], 0, DtoFlags::COMPLETION).trying("it_post_recv")?;
        self.objects.post_receive(self.n, &self.arrived)
    }

    /// Waits for the connection, and tells the peer where our memory is.
    fn greet(&mut self) -> Result<(), Failure> {
        self.objects.established(self.n)?;
        self.message.buffer.write(0, &Advert::of(&self.sink).emit()).trying("memory")?;
        self.send(0)?;
        self.heard(0)?;
        let mut bytes = [0; Advert::LEN];
        self.arrived.buffer.read(0, &mut bytes).trying("memory")?;
        self.peer = Advert::parse(bytes);
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
        self.source.buffer.write(0, &pattern(round, length)).trying("memory")?;
        let (ep, segments) = (self.objects.connections[self.n].ep, self.source.first(length));
        let (to, context) = self.peer.remote();
        let done = DtoFlags::COMPLETION;
        self.objects
            .ia
            .post_rdma_write_immediate(ep, &segments, 0, done, to, context, round)
            .trying("post_rdma_write_immediate")?;
        self.written += 1;
        let written = self.written;
        // The memory is written to again in the next round.
        self.objects.until(self.n, |connection| (connection.written == written).then_some(()))
    }

    /// Waits for the peer's Write.
    fn was_written(&mut self, round: u32, length: usize) -> Result<(), Failure> {
        let message = self.objects.message(self.n)?;
        let written = Some(Immediate { data: round, written: Some(length as u32) });
        if message != (Message { length: 0, immediate: written }) {
            fail!("not a Write of {length} bytes with the immediate data {round}: {message:?}");
        }
        let mut bytes = alloc::vec![0; length];
        self.sink.buffer.read(0, &mut bytes).trying("memory")?;
        if bytes != pattern(round, length) {
            fail!("other bytes than those that were written");
        }
        Ok(())
    }

    fn send(&self, immediate: u32) -> Result<(), Failure> {
        let (ep, segments) = (self.objects.connections[self.n].ep, self.message.first(SENT));
        let ia = self.objects.ia;
        ia.post_send_immediate(ep, &segments, 0, DtoFlags::COMPLETION, immediate)
            .trying("post_send_immediate")
    }

    /// Waits for the peer's Send.
    fn heard(&mut self, data: u32) -> Result<(), Failure> {
        let message = self.objects.message(self.n)?;
        if message != (Message { length: SENT, immediate: Some(Immediate { data, written: None }) }) {
            fail!("not a Send of {SENT} bytes with the immediate data {data}: {message:?}");
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
