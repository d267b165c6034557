//! Two machines, A and B, whose NICs are joined.
//!
//! Without `--link`, and with `--link pair`, both guests are on one device process ([`together`]),
//! joined by short cuts or by packets in memory. With `--link stream` each machine has its own
//! launcher, and so its own device process ([`apart`]), and a UNIX stream socket joins them. Each
//! line that a guest writes is passed on with the name of its machine before it.
//!
//! The first machine that fails decides the outcome. Its NIC is powered off, so the other guest
//! finds its connections broken. The other guest has some time to report that, and is then ended.

pub mod apart;
pub mod programs;
pub mod together;
mod verdict;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};

use nic_model::NicConfig;

use crate::error::{Error, Result};
use crate::launch::Launcher;
use crate::network::Plug;
use crate::options::Options;
use crate::tour::{Server, WAYS};
use programs::{App, Program};
use together::Machine;

/// The machines' names, by their numbers.
pub const NAMES: [&str; 2] = ["A", "B"];
/// The machine of the client.
pub const A: usize = 0;
/// The machine of the server.
pub const B: usize = 1;

/// Runs an app on two machines; returns their status.
pub fn pair(options: &Options, app: Option<&str>, words: &[OsString]) -> Result<u8> {
    let (app, words) = App::parse(app, words)?;
    match options.network.plug() {
        Plug::ShortCut | Plug::Pair => {
            // Each guest has one NIC unless the user wants more.
            let options = Options { nics: Some(options.nics.unwrap_or(1)), ..options.clone() };
            run_together(&options, &app, &words)
        }
        Plug::Stream => run_apart(options, &app, &words),
        link @ Plug::Link(_) => Err(Error::Usage(format!(
            "--link {link}: pair joins its machines by --link short-cut, pair or stream; two launchers with \
             links of their own do it by stream:PATH and stream-connect:PATH"
        ))),
    }
}

fn run_together(options: &Options, app: &App, words: &[String]) -> Result<u8> {
    let payload = app.payload()?;
    let [mut a, b] = app.programs(words, addresses(options.nics()));
    a.words.extend(payload.as_ref().map(|payload| payload.word()));
    let launcher = Launcher::prepare(options, &a.image)?;
    let other = if a.image == b.image { None } else { Some(Launcher::prepare(options, &b.image)?) };
    let machines = [
        Machine { launcher: &launcher, words: a.words },
        Machine { launcher: other.as_ref().unwrap_or(&launcher), words: b.words },
    ];
    let mut server = payload.map(|payload| Server::begin("pair", payload, WAYS));
    together::run(&machines, app.in_turn(), |guests, guest, line| match &mut server {
        Some(server) => server.line(guests.memory(guest), line),
        None => Ok(false),
    })
}

fn run_apart(options: &Options, app: &App, words: &[String]) -> Result<u8> {
    // A bad file is reported before two launchers report it.
    drop(app.payload()?);
    let programs = app.programs(words, addresses(1));
    for Program { image, .. } in &programs {
        Launcher::prepare(options, image)?;
    }
    let commands = [A, B].map(|n| app.command(n, &programs[n]));
    apart::run(options, &commands, app.in_turn(), |_, _| Ok(false))
}

/// The first addresses of two machines with this many NICs each.
pub fn addresses(nics: u32) -> [IpAddr; 2] {
    [0, nics].map(|number| {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        Ipv4Addr::from(NicConfig::numbered(number, 0).ipv4).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_have_the_addresses_of_their_first_nics() {
        let text = |nics| addresses(nics).map(|address| address.to_string());
        assert_eq!(text(1), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(text(3), ["10.0.0.1", "10.0.0.4"]);
    }
}
