//! The server of rping.

use alloc::format;
use core::time::Duration;

use common::Trying;
use rdma::{Ending, Endpoint, Incoming, Region, RemoteMemory};

use super::{LONGEST, PORT, endpoint, length, readable};
use crate::connection::Connection;
use crate::{Failure, Host, Words, advert, fail, net, say};

struct Options {
    port: u16,
    size: usize,
    clients: u64,
    verbose: bool,
    patience: Duration,
}

impl Options {
    fn take(mut words: Words<'_>) -> Result<Options, Failure> {
        let options = Options {
            port: words.number("port", PORT, 1..=u16::MAX)?,
            size: words.number("size", LONGEST, 1..=LONGEST)?,
            clients: words.number("clients", 0, 0..=u64::MAX)?,
            verbose: words.has("verbose"),
            patience: words.patience()?,
        };
        words.end()?;
        Ok(options)
    }
}

/// Serves clients, one after the other.
///
/// Words: `port=7174`; `size=65536`, the longest text that a client may have; `clients=0`, after
/// how many clients to end, 0 for no end; `verbose`, whether to write each text; `patience=30`,
/// after how many seconds of silence a client counts as gone. Writes `ready: ADDRESS:PORT` for each
/// of its addresses when it listens. Fails at the end if a client did not end as the protocol says.
pub fn server(host: &mut Host<'_>, words: Words<'_>) -> Result<(), Failure> {
    let options = Options::take(words)?;
    let listener = host.nic.listen(options.port).trying("listening")?;
    net::ready(host, options.port);
    let next = || listener.wait().map(|request| (request.from(), request));
    net::serve(host, options.clients, next, |host, request| {
        let pings = serve(host, &options, request)?;
        Ok(format!("{pings} pings, disconnected"))
    })
}

/// Serves a client until it disconnects; returns how many pings it made.
fn serve(host: &mut Host<'_>, options: &Options, request: Incoming) -> Result<u64, Failure> {
    // An early return drops the request, which rejects it.
    let mut client = Client::new(host, options)?;
    // The first message may come before this, but only a connected endpoint takes requests.
    client.connection.established(request.accept(&client.connection.endpoint))?;
    loop {
        match client.advert() {
            Ok(start) => {
                let ping = client.pings;
                let failed = |why| Failure::new(format_args!("ping {ping}: {why}"));
                client.ping(host, options, start).map_err(failed)?;
            }
            // Between two pings, this is the end as the protocol has it.
            Err(_) if client.connection.endpoint.ending() == Some(Ending::ByPeer) => {
                return Ok(client.pings);
            }
            Err(why) => return Err(why),
        }
    }
}

/// A client, and what is made for it.
struct Client {
    connection: Connection<Endpoint>,
    /// The client's messages.
    message: Region,
    /// Our go-ahead.
    answer: Region,
    /// The text.
    text: Region,
    /// The pings that are done.
    pings: u64,
}

impl Client {
    fn new(host: &Host<'_>, options: &Options) -> Result<Client, Failure> {
        let domain = host.nic.domain().trying("a domain")?;
        let memory = |len| domain.region(len).trying("memory");
        let (message, answer) = (memory(advert::LEN)?, memory(advert::LEN)?);
        let text = memory(options.size)?;
        let mut connection = Connection::new(endpoint(&domain).trying("an endpoint")?, options.patience);
        connection.expect(message.slice(..))?;
        Ok(Client { connection, message, answer, text, pings: 0 })
    }

    /// Waits for a message of the client.
    fn advert(&mut self) -> Result<RemoteMemory, Failure> {
        let received = self.connection.received()?.len;
        if received != advert::LEN {
            fail!("received bogus data: {received} bytes, not {}", advert::LEN);
        }
        let memory = advert::arrived(&self.message);
        self.connection.expect(self.message.slice(..))?;
        Ok(memory)
    }

    /// Reads the text that the client exposes and writes it back.
    fn ping(&mut self, host: &mut Host<'_>, options: &Options, start: RemoteMemory) -> Result<(), Failure> {
        let size = start.len() as usize;
        if !(1..=options.size).contains(&size) {
            fail!("the client's text has {size} bytes; size={} allows 1 to {0}", options.size);
        }
        let read = self.connection.endpoint.read(self.text.slice(..size), start).trying("RDMA Read")?;
        self.connection.done("RDMA Read", read)?;
        let text = self.text.slice(..size).to_vec();
        if options.verbose {
            say!(host, "server ping data: {}", readable(&text));
        }
        self.go_ahead()?;
        let sink = self.advert()?;
        // With the zero byte, if the text has one.
        let echo = size.min(length(&text) + 1);
        if echo as u64 > sink.len() {
            fail!("the client's memory for the echo has {} bytes, and the text {echo}", sink.len());
        }
        let write = self.connection.endpoint.write(self.text.slice(..echo), sink).trying("RDMA Write")?;
        self.connection.done("RDMA Write", write)?;
        self.go_ahead()?;
        self.pings += 1;
        Ok(())
    }

    /// Tells the client that its memory is free again.
    fn go_ahead(&mut self) -> Result<(), Failure> {
        // The client has answered the former one.
        self.connection.sent()?;
        self.connection.send(self.answer.slice(..))
    }
}
