//! The socket of smoltcp behind a stream, and the one interface through which all of them go.
//!
//! An interface of smoltcp looks at all sockets of its set for each packet. Here each socket is
//! alone in a set, and the interface, which has no state of its own that matters, is lent to the
//! set whose turn it is.

use alloc::vec::Vec;
use core::net::IpAddr;

use platform::Instant;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{self, CongestionControl, SocketBuffer};
use smoltcp::wire::{
    HardwareAddress, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpAddress, IpCidr, IpProtocol, IpRepr, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber,
};

use crate::address::Tuple;
use crate::error::Error;

/// How much faster than the clock the time of smoltcp runs.
///
/// smoltcp waits for an acknowledgement for one second at least, as RFC 6298 wishes for the
/// Internet. The peers of a port are on the port's own link, where a round trip takes a millisecond
/// at most, and a peer of Linux delays an acknowledgement by 40 ms. So the smallest timeout is
/// 50 ms here, and the longest 3 s. docs/decisions/tcp.md has the figures.
pub(crate) const SPEED: u64 = 20;

/// How long an acknowledgement may wait for data to go with.
const ACK_DELAY: core::time::Duration = core::time::Duration::from_millis(1);

/// A point in time, for smoltcp.
fn faster(now: Instant) -> smoltcp::time::Instant {
    let micros = u128::from(now.as_nanos()) * u128::from(SPEED) / 1000;
    smoltcp::time::Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

/// The first point in time that is not before one of smoltcp.
fn slower(at: smoltcp::time::Instant) -> Instant {
    let micros = u128::try_from(at.total_micros()).unwrap_or(0);
    Instant::from_nanos(u64::try_from((micros * 1000).div_ceil(SPEED.into())).unwrap_or(u64::MAX))
}

/// Whether packets can go to a peer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A packet can go.
    Now,
    /// The link takes no packet at all. Nothing is sent until the owner calls
    /// [`Streams::poll`](crate::Streams::poll) again.
    Full,
    /// The peer's MAC is being asked for. [`Streams::settled`](crate::Streams::settled) says when
    /// that is over.
    Resolving,
    /// Nothing goes to this peer now: the port is down, there is no way, or the peer does not
    /// answer to questions for its MAC. A stream that is connecting fails; of others the packets
    /// are lost.
    Unreachable,
}

/// Where packets go: the port.
pub trait Egress {
    /// Whether a packet can go from one of the port's addresses to this peer now.
    fn ready(&mut self, from: IpAddr, to: IpAddr) -> Ready;

    /// Sends an IP packet of `len` bytes. `fill` writes it into bytes of that length; the packet is
    /// lost if the egress does not call it, or gives it other bytes. Called only after
    /// [`Egress::ready`] has said [`Ready::Now`].
    fn send(&mut self, from: IpAddr, to: IpAddr, len: usize, fill: impl FnOnce(&mut [u8]));
}

/// The egress to nowhere.
pub(crate) struct Nowhere;

impl Egress for Nowhere {
    fn ready(&mut self, _: IpAddr, _: IpAddr) -> Ready {
        Ready::Now
    }

    fn send(&mut self, _: IpAddr, _: IpAddr, _: usize, _: impl FnOnce(&mut [u8])) {}
}

/// By how many bits windows are shifted (RFC 7323 section 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scale {
    /// By smoltcp, which takes what suits the ring that its socket has.
    pub socket: u8,
    /// As the peer was told, which suits the largest ring that the stream may have.
    pub told: u8,
}

/// The shift that suits a ring.
pub(crate) const fn shift(ring: usize) -> u8 {
    (usize::BITS - ring.leading_zeros()).saturating_sub(16) as u8
}

/// What the latest packet of a stream said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub scale: Scale,
    /// The number of the SYN.
    pub first: u32,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    /// The number behind the last byte that was sent.
    pub end: u32,
    /// A packet other than a SYN has gone.
    pub window_told: bool,
    /// Packets, since the counter was cleared.
    pub packets: u32,
}

impl Sent {
    /// Takes note of a packet that a socket has made, and gives it the right number.
    ///
    /// When smoltcp sends everything again after a timeout, its segments without data have the
    /// number from which it begins. To a peer that has more this number is an old one, and the
    /// acknowledgement is dropped with the segment (RFC 9293 section 3.10.7.4): two ends that send
    /// again at the same time would wait for each other for ever. The number is the highest one.
    fn note(&mut self, tuple: &Tuple, packet: &mut [u8]) {
        let header = if tuple.local.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
        let Some(segment) = packet.get_mut(header..) else { return };
        let mut tcp = TcpPacket::new_unchecked(segment);
        let empty = tcp.segment_len() == 0 && self.packets > 0;
        if empty && (self.end.wrapping_sub(tcp.seq_number().0 as u32) as i32) > 0 {
            tcp.set_seq_number(TcpSeqNumber(self.end as i32));
            tcp.fill_checksum(&tuple.local.ip().into(), &tuple.remote.ip().into());
        }
        if self.scale.socket != self.scale.told {
            self.rescale(&mut tcp);
            tcp.fill_checksum(&tuple.local.ip().into(), &tuple.remote.ip().into());
        }
        let first = self.packets == 0 && !self.window_told;
        self.seq = tcp.seq_number().0 as u32;
        self.ack = tcp.ack_number().0 as u32;
        self.window = tcp.window_len();
        if tcp.syn() {
            self.first = self.seq;
        }
        let end = self.seq.wrapping_add(tcp.segment_len() as u32);
        if first || (end.wrapping_sub(self.end) as i32) > 0 {
            self.end = end;
        }
        self.window_told |= !tcp.syn();
        self.packets += 1;
    }
}

impl Sent {
    /// Writes the window as the peer was told that it is scaled, and tells it so in a SYN.
    fn rescale(&self, tcp: &mut TcpPacket<&mut [u8]>) {
        const WINDOW_SCALE: u8 = 3;
        if !tcp.syn() {
            let window = u32::from(tcp.window_len()) << self.scale.socket >> self.scale.told;
            tcp.set_window_len(window as u16);
            return;
        }
        let mut options = tcp.options_mut();
        while let [kind, rest @ ..] = options {
            // An option is its kind, its length, and what the length says; 0 and 1 are alone.
            let after = match (*kind, &mut *rest) {
                (0, _) => return,
                (1, _) => 0,
                (WINDOW_SCALE, [3, scale, ..]) => {
                    *scale = self.scale.told;
                    return;
                }
                (_, [length, ..]) => usize::from(*length).saturating_sub(1).max(1),
                (_, []) => return,
            };
            options = rest.get_mut(after..).unwrap_or_default();
        }
    }
}

/// The seed from which smoltcp's next sequence number follows to be this one.
///
/// Its generator is a linear congruence, and a number is 32 bits of the state, whose upper three
/// bits say which: if they are zero, those above the lower 29. The interface takes a number before,
/// the first that is not zero in 16 bits. Who relies on the seed looks at the sequence number.
pub(crate) fn seed_for(number: u32) -> u64 {
    const FACTOR: u64 = 0xbb2e_fcec_3c39_611d;
    const ADDEND: u64 = 0x7590_ef39;
    const INVERSE: u64 = {
        // Three bits of an odd number are right, and each step doubles them.
        let (mut inverse, mut step) = (FACTOR, 0);
        while step < 5 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
            step += 1;
        }
        inverse
    };
    let before = |state: u64| state.wrapping_sub(ADDEND).wrapping_mul(INVERSE);
    let is_taken = |state: u64| {
        let first = (state >> (29 - (state >> 61))) as u32;
        (first ^ first >> 16) as u16 != 0
    };
    let state = u64::from(number) << 29;
    // One in 65,536 is not taken.
    let first = (0..4).map(|low| before(state | low)).find(|first| is_taken(*first));
    before(first.unwrap_or(state))
}

/// The socket of a stream, alone in its set.
pub(crate) struct Socket(SocketSet<'static>);

impl Socket {
    /// A socket with rings of these sizes.
    pub fn new(receive: usize, send: usize) -> Result<Socket, Error> {
        let mut set = Vec::new();
        set.try_reserve_exact(1).map_err(|_| Error::NoMemory)?;
        let mut set = SocketSet::new(set);
        let mut socket = tcp::Socket::new(ring(receive)?, ring(send)?);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(Some((ACK_DELAY * SPEED as u32).into()));
        socket.set_congestion_control(CongestionControl::Reno);
        set.add(socket);
        Ok(Socket(set))
    }

    pub fn get(&self) -> &tcp::Socket<'static> {
        self.0.get(SocketHandle::default())
    }

    pub fn get_mut(&mut self) -> &mut tcp::Socket<'static> {
        self.0.get_mut(SocketHandle::default())
    }
}

fn ring(size: usize) -> Result<SocketBuffer<'static>, Error> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| Error::NoMemory)?;
    bytes.resize(size, 0);
    Ok(SocketBuffer::new(bytes))
}

/// The interface.
pub(crate) struct Engine {
    interface: Interface,
    address: Option<IpAddr>,
    capabilities: DeviceCapabilities,
    /// Where packets are written that go nowhere.
    scratch: Vec<u8>,
}

impl Engine {
    pub fn new(mtu: usize) -> Result<Engine, Error> {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = mtu;
        // The checksums of arrived packets were checked before.
        let mut checksums = ChecksumCapabilities::default();
        checksums.ipv4 = Checksum::Tx;
        checksums.tcp = Checksum::Tx;
        capabilities.checksum = checksums;
        let mut scratch = Vec::new();
        scratch.try_reserve_exact(mtu).map_err(|_| Error::NoMemory)?;
        scratch.resize(mtu, 0);
        let interface = interface(&capabilities, 0);
        Ok(Engine { interface, address: None, capabilities, scratch })
    }

    /// The next sequence number that smoltcp chooses follows from this seed alone.
    pub fn seed(&mut self, seed: u64) {
        self.interface = interface(&self.capabilities, seed);
        self.address = None;
    }

    /// The interface has one address: that of the stream whose turn it is.
    fn turn(&mut self, local: IpAddr) {
        if self.address != Some(local) {
            self.interface.update_ip_addrs(|addresses| {
                addresses.clear();
                // There is room for one.
                let _ = addresses.push(IpCidr::new(local.into(), if local.is_ipv4() { 32 } else { 128 }));
            });
            self.address = Some(local);
        }
    }

    /// Begins to connect.
    pub fn connect(&mut self, socket: &mut Socket, tuple: &Tuple) -> Result<(), Error> {
        self.turn(tuple.local.ip());
        let socket = socket.get_mut();
        let local: smoltcp::wire::IpEndpoint = tuple.local.into();
        socket.connect(self.interface.context(), tuple.remote, local).map_err(|_| Error::BadAddress)
    }

    /// Gives a socket a packet that is for it. The answer, if there is one, goes to the egress.
    pub fn receive(
        &mut self,
        socket: &mut Socket,
        tuple: &Tuple,
        packet: &[u8],
        now: Instant,
        sent: &mut Sent,
        egress: Option<&mut impl Egress>,
    ) {
        self.turn(tuple.local.ip());
        let (scratch, capabilities) = (&mut self.scratch[..], &self.capabilities);
        let mut way = Way { packet: Some(packet), tuple, egress, sent, scratch, capabilities };
        self.interface.poll_ingress_single(faster(now), &mut way, &mut socket.0);
    }

    /// Lets a socket send one packet, if it has one. Without an egress the packet is lost.
    pub fn send(
        &mut self,
        socket: &mut Socket,
        tuple: &Tuple,
        now: Instant,
        sent: &mut Sent,
        egress: Option<&mut impl Egress>,
    ) -> bool {
        self.turn(tuple.local.ip());
        let before = sent.packets;
        let (scratch, capabilities) = (&mut self.scratch[..], &self.capabilities);
        let mut way = Way { packet: None, tuple, egress, sent, scratch, capabilities };
        self.interface.poll_egress(faster(now), &mut way, &mut socket.0);
        sent.packets != before
    }

    /// Tells a socket once more, as its peer would, that it may send nothing now: so it begins to
    /// ask for the window. `seq` is the peer's next number, and `ack` the first that it has not
    /// acknowledged.
    pub fn close_window(&mut self, socket: &mut Socket, tuple: &Tuple, (seq, ack): (u32, u32), now: Instant) {
        let segment = from_peer(tuple, TcpControl::None, seq, Some(ack));
        let mut bytes = [0; SYN];
        if let Some(packet) = write(tuple, &segment, &mut bytes).and_then(|len| bytes.get(..len)) {
            let mut sent = Sent::default();
            self.receive(socket, tuple, packet, now, &mut sent, Some(&mut Nowhere));
        }
    }

    /// When a socket has something to do, without another packet for it.
    pub fn due(&mut self, socket: &Socket, tuple: &Tuple, now: Instant) -> Option<Instant> {
        self.turn(tuple.local.ip());
        let at = self.interface.poll_at(faster(now), &socket.0)?;
        Some(if at <= faster(now) { now } else { slower(at) })
    }
}

fn interface(capabilities: &DeviceCapabilities, seed: u64) -> Interface {
    let mut config = smoltcp::iface::Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    Interface::new(config, &mut Empty(capabilities), smoltcp::time::Instant::ZERO)
}

/// The device with which an interface is made.
struct Empty<'w>(&'w DeviceCapabilities);

impl Device for Empty<'_> {
    type RxToken<'t>
        = Arrived<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Out<'t, 't, Nowhere>
    where
        Self: 't;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Arrived<'_>, Out<'_, '_, Nowhere>)> {
        None
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Out<'_, '_, Nowhere>> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.clone()
    }
}

/// The device of a stream whose turn it is.
struct Way<'w, E> {
    packet: Option<&'w [u8]>,
    tuple: &'w Tuple,
    egress: Option<&'w mut E>,
    sent: &'w mut Sent,
    scratch: &'w mut [u8],
    capabilities: &'w DeviceCapabilities,
}

struct Arrived<'t>(&'t [u8]);

struct Out<'t, 'w, E>(&'t mut Way<'w, E>);

impl<'w, E: Egress> Device for Way<'w, E> {
    type RxToken<'t>
        = Arrived<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Out<'t, 'w, E>
    where
        Self: 't;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Arrived<'_>, Out<'_, 'w, E>)> {
        let packet = self.packet.take()?;
        Some((Arrived(packet), Out(self)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Out<'_, 'w, E>> {
        Some(Out(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

impl RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl<E: Egress> TxToken for Out<'_, '_, E> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Way { tuple, egress, sent, scratch, .. } = self.0;
        let (mut f, mut result) = (Some(f), None);
        let mut fill = |bytes: &mut [u8]| {
            if let Some(f) = f.take_if(|_| bytes.len() == len) {
                result = Some(f(bytes));
                sent.note(tuple, bytes);
            }
        };
        if let Some(egress) = egress {
            egress.send(tuple.local.ip(), tuple.remote.ip(), len, &mut fill);
        }
        // A packet fits into the MTU, and so into the scratch.
        fill(&mut scratch[..len]);
        match result {
            Some(result) => result,
            None => unreachable!("the scratch has the length that was asked for"),
        }
    }
}

/// Sends a segment that belongs to no socket; false if none can go to this peer now.
pub(crate) fn emit(egress: &mut impl Egress, tuple: &Tuple, tcp: &TcpRepr<'_>) -> bool {
    let (from, to) = (tuple.local.ip(), tuple.remote.ip());
    if egress.ready(from, to) != Ready::Now {
        return false;
    }
    let (src, dst): (IpAddress, IpAddress) = (from.into(), to.into());
    let ip = IpRepr::new(src, dst, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
    let checksums = ChecksumCapabilities::default();
    egress.send(from, to, ip.buffer_len(), |bytes| {
        if bytes.len() == ip.buffer_len() {
            ip.emit(&mut bytes[..], &checksums);
            let mut segment = TcpPacket::new_unchecked(&mut bytes[ip.header_len()..]);
            tcp.emit(&mut segment, &src, &dst, &checksums);
        }
    });
    true
}

/// Writes a segment that came from the peer, without checksums, to the start of `into`.
pub(crate) fn write(tuple: &Tuple, tcp: &TcpRepr<'_>, into: &mut [u8]) -> Option<usize> {
    let (src, dst): (IpAddress, IpAddress) = (tuple.remote.ip().into(), tuple.local.ip().into());
    let ip = IpRepr::new(src, dst, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
    let bytes = into.get_mut(..ip.buffer_len())?;
    let checksums = ChecksumCapabilities::ignored();
    ip.emit(&mut bytes[..], &checksums);
    let mut segment = TcpPacket::new_unchecked(&mut bytes[ip.header_len()..]);
    tcp.emit(&mut segment, &src, &dst, &checksums);
    Some(ip.buffer_len())
}

const HOP_LIMIT: u8 = 64;

/// The longest IP packet of a segment without data: 40 bytes, and 60 of TCP's header.
pub(crate) const SYN: usize = 100;

/// A segment without data between these ends.
pub(crate) const fn bare(tuple: &Tuple, control: TcpControl, seq: u32, ack: Option<u32>) -> TcpRepr<'static> {
    TcpRepr {
        src_port: tuple.local.port(),
        dst_port: tuple.remote.port(),
        control,
        seq_number: TcpSeqNumber(seq as i32),
        ack_number: match ack {
            Some(ack) => Some(TcpSeqNumber(ack as i32)),
            None => None,
        },
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None, None, None],
        timestamp: None,
        payload: &[],
    }
}

/// A segment of the peer without data.
pub(crate) const fn from_peer(
    tuple: &Tuple,
    control: TcpControl,
    seq: u32,
    ack: Option<u32>,
) -> TcpRepr<'static> {
    let mut segment = bare(tuple, control, seq, ack);
    (segment.src_port, segment.dst_port) = (tuple.remote.port(), tuple.local.port());
    segment
}
