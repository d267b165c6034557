//! The client of rping.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use common::Trying;
use rdma::{Access, Endpoint, Region};

use super::{LONGEST, PORT, endpoint, readable, text};
use crate::connection::Connection;
use crate::{Failure, Host, Words, advert, fail, say};

struct Options {
    server: IpAddr,
    port: u16,
    count: u64,
    size: usize,
    verify: bool,
    verbose: bool,
    patience: Duration,
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
    let domain = host.nic.domain().trying("a domain")?;
    let open = || domain.shared_region(options.size, Access::READ | Access::WRITE).trying("memory");
    let closed = || domain.region(advert::LEN).trying("memory");
    let memory = Memory { start: open()?, echo: open()?, message: closed()?, answer: closed()? };
    let mut server = Connection::new(endpoint(&domain).trying("an endpoint")?, options.patience);
    server.expect(memory.answer.slice(..))?;
    server.established(server.endpoint.connect(options.server.into(), options.port))?;
    let mut ping = 0;
    while options.count == 0 || ping < options.count {
        let text = text(ping, options.size);
        let echo = memory
            .ping(&mut server, &text)
            .map_err(|why| Failure::new(format_args!("ping {ping}: {why}")))?;
        if options.verify && echo != text {
            fail!("ping {ping}: data mismatch: {:?} came back for {:?}", readable(&echo), readable(&text));
        }
        if options.verbose {
            say!(host, "ping data: {}", readable(&echo));
        }
        ping += 1;
    }
    server.sent()?;
    server.endpoint.disconnect();
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
    fn ping(&self, server: &mut Connection<Endpoint>, text: &[u8]) -> Result<Vec<u8>, Failure> {
        self.start.slice(..).write(text);
        // The echo of an earlier ping could pass for this one.
        self.echo.slice(..).write(&alloc::vec![!0; text.len()]);
        for exposed in [&self.start, &self.echo] {
            // The message's memory is used again.
            server.sent()?;
            self.message.slice(..).write(&advert::of(exposed));
            server.send(self.message.slice(..))?;
            match server.received()?.len {
                advert::LEN => server.expect(self.answer.slice(..))?,
                other => fail!("the server's message has {other} bytes, not {}", advert::LEN),
            }
        }
        Ok(self.echo.slice(..).to_vec())
    }
}
