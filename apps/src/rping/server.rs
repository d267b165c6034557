//! The server of rping.

use alloc::format;

use common::Trying;
use privileged_api::{ConnRequest, DtoFlags, Event, MemPriv};

use super::{LONGEST, PORT, TRANSFERS, attributes, length, readable};
use crate::advert::Advert;
use crate::net::{Listener, Service};
use crate::objects::{End, Objects, Patience, Region};
use crate::{Failure, Host, Words, fail, net, say};

struct Options {
    port: u16,
    size: usize,
    clients: u64,
    verbose: bool,
    patience: Patience,
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
    let listener = Listener::new(host, Service::Tcp(options.port))?;
    net::serve(host, &listener, options.clients, |host, request| {
        let Event::ConnRequest(request) = request else { fail!("not a request for a connection") };
        let pings = serve(host, &options, request)?;
        Ok(format!("{pings} pings, disconnected"))
    })
}

/// Serves a client until it disconnects; returns how many pings it made.
fn serve(host: &mut Host<'_>, options: &Options, request: &ConnRequest) -> Result<u64, Failure> {
    let mut client = match Client::new(host, options) {
        Ok(client) => client,
        Err(why) => {
            // The identifier is used up even if the client has gone.
            let _ = host.ia.reject(request.cn_est_id, &[]);
            return Err(why);
        }
    };
    client.objects.accept(client.n, request)?;
    // The first message may come before this, but only a connected endpoint takes requests.
    client.objects.established(client.n)?;
    loop {
        match client.advert() {
            Ok(start) => {
                let ping = client.pings;
                let failed = |why| Failure::new(format_args!("ping {ping}: {why}"));
                client.ping(host, options, start).map_err(failed)?;
            }
            // Between two pings, this is the end as the protocol has it.
            Err(_) if client.objects.connections[client.n].end == Some(End::Disconnected) => {
                return Ok(client.pings);
            }
            Err(why) => return Err(why),
        }
    }
}

/// A client, and what is made for it.
struct Client<'a> {
    objects: Objects<'a>,
    n: usize,
    /// The client's messages.
    message: Region,
    /// Our go-ahead.
    answer: Region,
    /// The text.
    text: Region,
    /// The pings that are done.
    pings: u64,
}

impl<'a> Client<'a> {
    fn new(host: &Host<'a>, options: &Options) -> Result<Client<'a>, Failure> {
        let mut objects = Objects::new(host, TRANSFERS, 1, options.patience)?;
        let message = objects.memory(Advert::LEN, MemPriv::LOCAL)?;
        let answer = objects.memory(Advert::LEN, MemPriv::LOCAL)?;
        let text = objects.memory(options.size, MemPriv::LOCAL)?;
        let n = objects.endpoint(&attributes(false))?;
        objects.post_receive(n, &message)?;
        Ok(Client { objects, n, message, answer, text, pings: 0 })
    }

    /// Waits for a message of the client.
    fn advert(&mut self) -> Result<Advert, Failure> {
        let received = self.objects.received(self.n)?;
        if received != Advert::LEN {
            fail!("received bogus data: {received} bytes, not {}", Advert::LEN);
        }
        let mut bytes = [0; Advert::LEN];
        self.message.buffer.read(0, &mut bytes).trying("memory")?;
        self.objects.post_receive(self.n, &self.message)?;
        Ok(Advert::parse(bytes))
    }

    /// Reads the text that the client exposes and writes it back.
    fn ping(&mut self, host: &mut Host<'_>, options: &Options, start: Advert) -> Result<(), Failure> {
        let size = start.size as usize;
        if !(1..=options.size).contains(&size) {
            fail!("the client's text has {size} bytes; size={} allows 1 to {0}", options.size);
        }
        let (ia, ep) = (self.objects.ia, self.objects.connections[self.n].ep);
        let (from, key) = start.remote();
        let done = DtoFlags::COMPLETION;
        ia.post_rdma_read(ep, &self.text.first(size), 0, done, from, key).trying("it_post_rdma_read")?;
        let ping = self.pings + 1;
        self.objects.until(self.n, |connection| (connection.read == ping).then_some(()))?;
        let mut text = alloc::vec![0; size];
        self.text.buffer.read(0, &mut text).trying("memory")?;
        if options.verbose {
            say!(host, "server ping data: {}", readable(&text));
        }
        self.go_ahead()?;
        let sink = self.advert()?;
        // With the zero byte, if the text has one.
        let echo = size.min(length(&text) + 1);
        if echo > sink.size as usize {
            fail!("the client's memory for the echo has {} bytes, and the text {echo}", sink.size);
        }
        let (to, key) = sink.remote();
        ia.post_rdma_write(ep, &self.text.first(echo), 0, done, to, key).trying("it_post_rdma_write")?;
        self.objects.until(self.n, |connection| (connection.written == ping).then_some(()))?;
        self.go_ahead()?;
        self.pings = ping;
        Ok(())
    }

    /// Tells the client that its memory is free again.
    fn go_ahead(&self) -> Result<(), Failure> {
        self.objects.post_send(self.n, &self.answer, Advert::LEN)
    }
}
