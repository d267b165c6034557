//! The configuration, and the bounds of what outsiders feed.

use core::time::Duration;

use platform::Secret;

use crate::engine::{Scale, shift};
use crate::error::Error;

/// The most streams, those of ended connections that their owner has not given back among them.
pub const MAX_STREAMS: usize = 16_384;
/// The most listeners.
pub const MAX_LISTENERS: usize = 256;
/// The most places of a listener's backlog.
pub const MAX_BACKLOG: usize = 1024;
/// The most half-open connections of all listeners. Each listener has its own part of them.
pub const MAX_HALF_OPEN: usize = 16_384;
/// The most records of former connections.
pub const MAX_FORMER: usize = 4096;
/// The sizes of a ring.
pub const MIN_RING: usize = 2048;
/// The sizes of a ring.
pub const MAX_RING: usize = 1 << 20;
/// The MTUs of links: what the port of `nic-model` takes.
pub const MIN_MTU: usize = 340;
/// The MTUs of links.
pub const MAX_MTU: usize = 65_535;
/// The fewest bytes of a segment, with the options in its header, that a peer can ask for. If it
/// asks for less, segments have so many all the same. A SYN that asks for segments without bytes is
/// as one that does not ask.
pub const MIN_SEGMENT: u16 = 48;
/// The most packets that a stream sends before others have their turn.
pub const BURST: usize = 8;

/// The configuration of the streams of a port.
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest IP packet of the link, [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: usize,
    /// A key that peers do not know. Sequence numbers, ports and the order of the table follow
    /// from it.
    pub secret: Secret,
    /// The most streams, [`MAX_STREAMS`] at most.
    pub streams: usize,
    /// The most bytes of all rings. The small rings of [`Config::streams`] streams have their part
    /// of it, and large rings the rest.
    pub memory: usize,
    /// The size of a stream's ring of bytes to send while it carries much, [`MIN_RING`] to
    /// [`MAX_RING`].
    pub send_ring: usize,
    /// The size of a stream's ring of received bytes while it carries much: the largest window.
    pub receive_ring: usize,
    /// The size of either ring while a stream carries little, or there is no memory for the large
    /// ones; they have their own size if that is less. A stream begins with such rings.
    pub small_ring: usize,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long a peer may take nothing of what waits for it: its window is closed, or it does not
    /// acknowledge.
    pub user_timeout: Duration,
    /// How long a closed stream waits for its peer without any progress.
    pub linger: Duration,
}

impl Config {
    /// The configuration for a link of this MTU: 4,096 streams with two rings of 4 KiB each, which
    /// become 256 KiB with use, 128 MiB in all.
    pub const fn new(mtu: usize, secret: Secret) -> Config {
        Config {
            mtu,
            secret,
            streams: 4096,
            memory: 128 << 20,
            send_ring: 256 << 10,
            receive_ring: 256 << 10,
            small_ring: 4 << 10,
            connect_timeout: Duration::from_secs(10),
            user_timeout: Duration::from_secs(30),
            linger: Duration::from_secs(10),
        }
    }

    /// The sizes of the rings of a stream, for received bytes and for bytes to send.
    pub(crate) fn rings(&self, large: bool) -> (usize, usize) {
        let most = if large { MAX_RING } else { self.small_ring };
        (self.receive_ring.min(most), self.send_ring.min(most))
    }

    /// The bytes of the rings of a stream.
    pub(crate) fn bytes(&self, large: bool) -> usize {
        let (receive, send) = self.rings(large);
        receive + send
    }

    /// How many connections that no owner has taken one peer has at most, of all listeners.
    pub(crate) fn share(&self) -> usize {
        self.streams.div_ceil(2)
    }

    /// The scale of windows of a stream whose peer scales, or not.
    pub(crate) fn scale(&self, large: bool, scaled: bool) -> Scale {
        match scaled {
            true => Scale { socket: shift(self.rings(large).0), told: shift(self.receive_ring) },
            false => Scale::default(),
        }
    }

    /// How many streams have large rings at most.
    pub(crate) fn most_large(&self) -> usize {
        let small = self.bytes(false);
        let left = self.memory.saturating_sub(self.streams.saturating_mul(small));
        left.checked_div(self.bytes(true) - small).unwrap_or(0)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let rings = MIN_RING..=MAX_RING;
        let times = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
        let checks = [
            ("mtu", (MIN_MTU..=MAX_MTU).contains(&self.mtu)),
            ("streams", (1..=MAX_STREAMS).contains(&self.streams)),
            ("send_ring", rings.contains(&self.send_ring)),
            ("receive_ring", rings.contains(&self.receive_ring)),
            ("small_ring", rings.contains(&self.small_ring)),
            ("connect_timeout", times.contains(&self.connect_timeout)),
            ("user_timeout", times.contains(&self.user_timeout)),
            ("linger", times.contains(&self.linger)),
        ];
        match checks.iter().find(|(_, right)| !right) {
            Some((field, _)) => Err(Error::Config(field)),
            None => Ok(()),
        }
    }
}
