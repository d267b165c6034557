//! The NIC's port: addresses, neighbours, and the handling of frames, without I/O.
//!
//! The owner passes arrived frames ([`Port::receive`]) and the time to the port. It sends the
//! frames that the port makes: those of the queue pairs ([`Port::transmit`]), and the port's own
//! ([`Port::next_frame`]), which are questions to neighbours, answers to theirs, and echo replies.
//!
//! | module | subject |
//! |---|---|
//! | `config` | MAC, MTU and addresses; values derived from them |
//! | `addresses` | the port's GIDs, and which other addresses it reaches |
//! | `neighbours` | the table of neighbours' MACs, with its timers |
//! | `heard` | the MACs of neighbours whose datagrams came |
//! | `input` | the classification of arrived frames, and why they are dropped |
//! | `messages` | ARP, neighbour discovery and echo: building frames |
//! | `limiter` | rate limits |
//!
//! Peers are not trusted. No frame makes the port panic; tables and queues are bounded; floods are
//! answered at a bounded rate. A peer on the link can claim the address of another one, as on every
//! Ethernet, so the transport has to cope with packets that reach the wrong port.

mod addresses;
mod config;
mod heard;
mod input;
mod limiter;
mod messages;
mod neighbours;

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use core::net::Ipv6Addr;

use platform::Instant;
use roce::wire::datagram::{self, Network};
use roce::wire::{ethernet, icrc};
use roce::{Gid, PathMtu};

use addresses::{Addresses, Route};
pub use config::{Config, ConfigError, MAX_ADDRESSES, MAX_MTU, MAX_VLAN, MIN_MTU, mac_of, path_mtu};
use heard::Heard;
pub use input::{Arrival, Counters, Dropped, Input};
use limiter::{Limiter, Shares};
use messages::{Frame, Mac, Origin};
use neighbours::{Ask, Neighbours, Target};

/// The sender of the packets of all streams.
const STREAMS: Sender = Sender { number: u32::MAX, datagrams: false };
/// The most frames of the port's own that wait for the owner.
const OUTBOX: usize = 128;
/// The most echo replies among them.
const ECHOES: usize = 32;

/// Why a datagram cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// The port is down.
    #[error("the port is down")]
    Down,
    /// The port is asking for the neighbour's MAC. The datagram is lost; [`Port::settled`] reports
    /// when the port knows the MAC, or has given up.
    #[error("the neighbour's MAC is not known yet")]
    Resolving,
    /// The neighbour does not answer, or the port asks for too many others.
    #[error("the neighbour does not answer")]
    NoAnswer,
    /// No network of the port contains the destination.
    #[error("the destination is in no network of the port")]
    NoRoute,
    /// The destination is this port itself. Datagrams to it need no link.
    #[error("the destination is this port")]
    Own,
    /// The source is not an address of this port.
    #[error("the source is no address of this port")]
    NotOurs,
    /// The datagram cannot be built, or does not fit into the MTU or the buffer.
    #[error("{0}")]
    Invalid(#[from] roce::Error),
}

/// The sender of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Its number. Each sender has a share of the neighbours that the port asks for at once.
    pub number: u32,
    /// It sends datagrams. One to a neighbour that the port does not know goes to the MAC from
    /// which that neighbour's latest datagram came: an answer to a stranger that does not exist
    /// needs no question, and does not wait.
    pub datagrams: bool,
}

/// The port of a NIC.
#[derive(Debug)]
pub struct Port {
    mac: [u8; 6],
    vlan: Option<u16>,
    mtu: usize,
    up: bool,
    addresses: Addresses,
    neighbours: Neighbours,
    heard: Heard,
    /// Questions to neighbours, answers to theirs, and echo replies.
    questions: Limiter,
    answers: Shares,
    echoes: Shares,
    /// Segments of TCP are for this port, too.
    takes_segments: bool,
    outbox: VecDeque<(Kind, Box<[u8]>)>,
    /// The multicast groups whose packets are for this port. Queue pairs join them, which bounds
    /// their number.
    groups: BTreeSet<Gid>,
    counters: Counters,
}

/// The kind of a frame in the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Neighbour,
    Echo,
}

impl Port {
    /// A port that is down.
    pub fn new(config: &Config) -> Result<Port, ConfigError> {
        Ok(Port {
            mac: config.mac,
            vlan: config.vlan,
            mtu: config.check()?,
            up: false,
            addresses: Addresses::new(config),
            neighbours: Neighbours::new(),
            heard: Heard::new(),
            questions: Limiter::new(1000, 64),
            answers: Shares::new(100, 16, config.secret),
            echoes: Shares::new(100, 16, config.secret.derive(1)),
            takes_segments: false,
            outbox: VecDeque::new(),
            groups: BTreeSet::new(),
            counters: Counters::default(),
        })
    }

    /// The port's MAC.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The port's GIDs: the link-local one, then one for each configured address, in their order.
    pub fn gids(&self) -> &[Gid] {
        self.addresses.gids()
    }

    /// The largest path MTU.
    pub fn path_mtu(&self) -> PathMtu {
        // The configuration was checked, so its MTU has a path MTU.
        path_mtu(self.mtu as u32).unwrap_or(PathMtu::B256)
    }

    /// The size of the largest frame that the port sends: the tag of a VLAN comes on top of the
    /// link's MTU.
    pub fn max_frame(&self) -> usize {
        self.origin().header(self.mac, ethernet::Repr::IPV4).len() + self.mtu
    }

    fn origin(&self) -> Origin {
        Origin { mac: self.mac, vlan: self.vlan }
    }

    /// Whether the port is up.
    pub fn up(&self) -> bool {
        self.up
    }

    /// Sets the link up or down. A port that goes down forgets its neighbours, since other nodes
    /// may be on the link when it goes up again. A port that goes up announces its addresses.
    pub fn set_up(&mut self, up: bool, now: Instant) {
        if self.up == up {
            return;
        }
        self.up = up;
        self.neighbours.clear();
        self.heard = Heard::new();
        self.outbox.clear();
        if up {
            for n in 0..self.gids().len() {
                let frame = messages::announce(self.origin(), self.gids()[n]);
                self.post(Kind::Neighbour, frame);
            }
        }
        self.poll(now);
    }

    /// Takes note of where a datagram came from, that a queue pair has taken.
    pub fn heard(&mut self, arrival: &Arrival<'_>, now: Instant) {
        let from = arrival.network.src();
        if matches!(self.addresses.route(from), Route::Neighbour { .. }) {
            self.heard.add(from, arrival.mac, now);
        }
    }

    /// Packets to a multicast group are for this port from now on.
    pub(crate) fn join(&mut self, group: Gid) {
        self.groups.insert(group);
    }

    /// Packets to a group are not for this port any more.
    pub(crate) fn leave(&mut self, group: Gid) {
        self.groups.remove(&group);
    }

    /// Whether [`Port::settled`] has something to tell.
    #[inline]
    pub fn has_settled(&self) -> bool {
        self.neighbours.has_settled()
    }

    /// A neighbour for which a packet had to wait ([`Unsent::Resolving`]), and whether it has a MAC
    /// now; otherwise the port has given it up, because it does not answer, or too many others are
    /// asked for. Each time that the port begins to ask for a neighbour ends here once; an end
    /// that the device does not take is forgotten at last.
    pub fn settled(&mut self) -> Option<(Gid, bool)> {
        self.neighbours.settled()
    }

    /// What the port has carried and dropped.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes a frame that arrived.
    pub fn receive<'f>(&mut self, frame: &'f [u8], now: Instant) -> Input<'f> {
        self.counters.frames += 1;
        let result = match self.up {
            true => self.classify(frame, now),
            false => Err(Dropped::Down),
        };
        match result {
            Ok(Input::Packet(arrival)) => {
                self.counters.packets_in += 1;
                Input::Packet(arrival)
            }
            Ok(Input::Segment(packet)) => {
                self.counters.segments_in += 1;
                Input::Segment(packet)
            }
            Ok(input) => input,
            Err(why) => {
                self.counters.drop(why);
                Input::Dropped(why)
            }
        }
    }

    /// Writes the frame of a datagram to the start of `into` and returns its length.
    ///
    /// `build` writes the packet, from the BTH to the padding, to the start of the bytes that it is
    /// given, and returns its length. It is called only if the frame can be sent. The port adds the
    /// headers and the ICRC.
    pub fn transmit(
        &mut self,
        network: &Network,
        sender: Sender,
        src_port: u16,
        into: &mut [u8],
        now: Instant,
        build: impl FnOnce(&mut [u8]) -> Result<usize, roce::Error>,
    ) -> Result<usize, Unsent> {
        let mac = self.target((network.src(), network.dst()), sender, now)?;
        let ether_type = match network {
            Network::V4(_) => ethernet::Repr::IPV4,
            Network::V6(_) => ethernet::Repr::IPV6,
        };
        let header = self.origin().header(mac, ether_type);
        let most = self.max_frame().min(into.len());
        let rest = header.emit(&mut into[..most])?;
        let (have, need) = (rest.len(), network.headers() + icrc::LEN);
        let short = roce::Error::Truncated { what: "datagram", need, have };
        let end = have.checked_sub(icrc::LEN).ok_or(short)?;
        let packet = rest.get_mut(network.headers()..end).ok_or(short)?;
        let packet_len = build(packet)?;
        let len = header.len() + network.seal(src_port, packet_len, rest)?;
        self.counters.packets_out += 1;
        Ok(len)
    }

    /// The MAC to which a packet goes from an address of the port to another node.
    #[inline]
    fn target(&mut self, (src, dst): (Gid, Gid), sender: Sender, now: Instant) -> Result<Mac, Unsent> {
        if !self.up {
            return Err(Unsent::Down);
        }
        if self.addresses.index_of(src).is_none() {
            return Err(Unsent::NotOurs);
        }
        // Only datagrams go to groups: the other end of a connection is one node.
        if let Some(mac) = ethernet::group_mac(dst.to_ip()).filter(|_| sender.datagrams) {
            return Ok(mac);
        }
        match self.addresses.route(dst) {
            Route::Own => return Err(Unsent::Own),
            Route::None => return Err(Unsent::NoRoute),
            Route::Neighbour { .. } => {}
        }
        let heard = || if sender.datagrams { self.heard.mac(dst, now) } else { None };
        let target = match self.neighbours.resolve(dst, sender.number, now, heard) {
            Target::Mac(mac) => Ok(mac),
            Target::Resolving => Err(Unsent::Resolving),
            Target::NoAnswer => Err(Unsent::NoAnswer),
        };
        self.ask(now);
        target
    }

    /// Whether a packet of a stream can go from an address of the port to a peer now.
    pub(crate) fn way(&mut self, ends: (Gid, Gid), now: Instant) -> Result<(), Unsent> {
        self.target(ends, STREAMS, now).map(drop)
    }

    /// Writes the frame of an IP packet of `len` bytes, which `fill` writes, to the start of `into`
    /// and returns the frame's length.
    pub(crate) fn transmit_ip(
        &mut self,
        ends: (Gid, Gid),
        len: usize,
        into: &mut [u8],
        now: Instant,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<usize, Unsent> {
        let mac = self.target(ends, STREAMS, now)?;
        let ether_type = match ends.0.to_ipv4() {
            Some(_) => ethernet::Repr::IPV4,
            None => ethernet::Repr::IPV6,
        };
        let header = self.origin().header(mac, ether_type);
        let most = self.max_frame().min(into.len());
        let rest = header.emit(&mut into[..most])?;
        let have = rest.len();
        let packet = rest.get_mut(..len);
        fill(packet.ok_or(roce::Error::Truncated { what: "IP packet", need: len, have })?);
        self.counters.segments_out += 1;
        Ok(header.len() + len)
    }

    /// Sets whether segments of TCP are for this port. If not, they are dropped as all that is none
    /// of RoCEv2.
    pub(crate) fn take_segments(&mut self, takes: bool) {
        self.takes_segments = takes;
    }

    /// As [`Port::transmit`], for a datagram whose packet exists already.
    pub fn transmit_datagram(
        &mut self,
        datagram: &datagram::Repr<'_>,
        into: &mut [u8],
        now: Instant,
    ) -> Result<usize, Unsent> {
        let packet = &datagram.packet;
        self.transmit(&datagram.network, Sender::default(), datagram.src_port, into, now, |into| {
            packet.emit(into)?;
            Ok(packet.len())
        })
    }

    /// Copies the port's next own frame to the start of `into`, and returns its length. A frame
    /// that does not fit is dropped.
    pub fn next_frame(&mut self, into: &mut [u8]) -> Option<usize> {
        while let Some((_, frame)) = self.outbox.pop_front() {
            if let Some(place) = into.get_mut(..frame.len()) {
                place.copy_from_slice(&frame);
                self.counters.own_frames += 1;
                return Some(frame.len());
            }
        }
        None
    }

    /// The latest time at which the owner must call [`Port::poll`].
    pub fn deadline(&self) -> Option<Instant> {
        self.neighbours.deadline()
    }

    /// Repeats the questions to neighbours that are due. [`Port::next_frame`] returns them.
    pub fn poll(&mut self, now: Instant) {
        self.neighbours.poll(now);
        self.ask(now);
    }

    /// Makes frames of the questions in the neighbour table.
    fn ask(&mut self, now: Instant) {
        while let Some(Ask { gid, mac }) = self.neighbours.next_question() {
            let Route::Neighbour { from } = self.addresses.route(gid) else { continue };
            if self.questions.take(now) {
                let frame = messages::question(self.origin(), from, gid, mac);
                self.post(Kind::Neighbour, frame);
            } else {
                self.counters.questions_delayed += 1;
            }
        }
    }

    /// Puts a frame into the outbox; false if there is no room.
    fn post(&mut self, kind: Kind, frame: Frame) -> bool {
        let room = self.outbox.len() < OUTBOX
            && (kind != Kind::Echo || self.outbox.iter().filter(|(k, _)| *k == Kind::Echo).count() < ECHOES);
        match frame {
            Some(frame) if room && frame.len() <= self.max_frame() => self.outbox.push_back((kind, frame)),
            _ => return false,
        }
        true
    }

    /// Answers a neighbour's question, unless the neighbour, known by MAC and address, has asked
    /// too often.
    fn answer(&mut self, to: (Mac, Gid), frame: Frame, now: Instant) -> Result<Input<'static>, Dropped> {
        if !self.answers.take(to.0, to.1, now) || !self.post(Kind::Neighbour, frame) {
            return Err(Dropped::Flood);
        }
        self.counters.answers += 1;
        Ok(Input::Consumed)
    }

    /// Answers an echo request, unless the sender has sent too many.
    fn echo(&mut self, to: (Mac, Gid), frame: Frame, now: Instant) -> Result<Input<'static>, Dropped> {
        if !self.echoes.take(to.0, to.1, now) || !self.post(Kind::Echo, frame) {
            return Err(Dropped::Flood);
        }
        self.counters.echoes += 1;
        Ok(Input::Consumed)
    }
}

/// Whether a MAC is that of a single port.
fn is_unicast(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// The multicast group to which solicitations for an address go (RFC 4291 section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}
