//! The client of rping.

use alloc::vec::Vec;
use core::net::IpAddr;

use common::Trying;
use privileged_api::MemPriv;

use super::{LONGEST, PORT, TRANSFERS, attributes, readable, text};
use crate::advert::Advert;
use crate::net::Service;
use crate::objects::{Objects, Patience, Region};
use crate::{Failure, Host, Words, fail, net, say};

struct Options {
    server: IpAddr,
    port: u16,
    count: u64,
    size: usize,
    verify: bool,
    verbose: bool,
    patience: Patience,
}

impl Options {
    fn take(mut words: Words<'_>) -> Result<Options, Failure> {
        let options = Options {
            port: words.number("port", PORT, 1..=u16::MAX)?,
            count: words.number("count", 0, 0..=u64::MAX)?,
            size: words.number("size", 64, 1..=LONGEST)?,
            verify: words.has("verify"),
            verbose: words.has("verbose"),
            patience: words.patience()?,
            server: words.address()?,
        };
        words.end()?;
        Ok(options)
    }
}

/// Pings a server.
///
/// Words: the server's address; `port=7174`; `count=0`, how many pings, 0 for no end; `size=64`,
/// the bytes of a text; `verify`, whether to compare the echo with the text; `verbose`, whether to
/// write each echo; `patience=30`, how many seconds the server may take for a step.
pub fn client(host: &mut Host<'_>, words: Words<'_>) -> Result<(), Failure> {
    let options = Options::take(words)?;
    let mut objects = Objects::new(host, TRANSFERS, 1, options.patience)?;
    let remote = MemPriv::LOCAL | MemPriv::REMOTE;
    let memory = Memory {
        start: objects.memory(options.size, remote)?,
        echo: objects.memory(options.size, remote)?,
        message: objects.memory(Advert::LEN, MemPriv::LOCAL)?,
        answer: objects.memory(Advert::LEN, MemPriv::LOCAL)?,
    };
    let n = objects.endpoint(&attributes(true))?;
    objects.post_receive(n, &memory.answer)?;
    let path = net::path(host.ia, options.server)?;
    objects.connect(n, &path, Service::Tcp(options.port))?;
    objects.established(n)?;
    let mut ping = 0;
    while options.count == 0 || ping < options.count {
        let text = text(ping, options.size);
        let echo = memory
            .ping(&mut objects, n, &text)
            .map_err(|why| Failure::new(format_args!("ping {ping}: {why}")))?;
        if options.verify && echo != text {
            fail!("ping {ping}: data mismatch: {:?} came back for {:?}", readable(&echo), readable(&text));
        }
        if options.verbose {
            say!(host, "ping data: {}", readable(&echo));
        }
        ping += 1;
    }
    // The Send of the last message is done when its completion is there.
    objects.until(n, |connection| (connection.sent == 2 * ping).then_some(()))?;
    objects.ia.ep_disconnect(objects.connections[n].ep, &[]).trying("it_ep_disconnect")?;
    let verified = if options.verify { ", verified" } else { "" };
    say!(host, "rping: {ping} pings of {} bytes{verified}", options.size);
    Ok(())
}

struct Memory {
    /// The text.
    start: Region,
    /// Where its echo arrives.
    echo: Region,
    /// Our messages.
    message: Region,
    /// The server's.
    answer: Region,
}

impl Memory {
    /// Sends a text and returns its echo.
    fn ping(&self, objects: &mut Objects<'_>, n: usize, text: &[u8]) -> Result<Vec<u8>, Failure> {
        self.start.buffer.write(0, text).trying("memory")?;
        // The echo of an earlier ping could pass for this one.
        self.echo.buffer.slice().fill(!0);
        for exposed in [&self.start, &self.echo] {
            self.advertise(objects, n, exposed)?;
            match objects.received(n)? {
                Advert::LEN => objects.post_receive(n, &self.answer)?,
                other => fail!("the server's message has {other} bytes, not {}", Advert::LEN),
            }
        }
        let mut echo = alloc::vec![0; text.len()];
        self.echo.buffer.read(0, &mut echo).trying("memory")?;
        Ok(echo)
    }

    /// Tells the server where some memory is.
    fn advertise(&self, objects: &Objects<'_>, n: usize, exposed: &Region) -> Result<(), Failure> {
        self.message.buffer.write(0, &Advert::of(exposed).emit()).trying("memory")?;
        objects.post_send(n, &self.message, Advert::LEN)
    }
}
