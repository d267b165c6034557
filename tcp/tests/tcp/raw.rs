//! A peer that sends whatever a test wants.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use ferrovia_tcp::testing::{Outbox, address, config};
use ferrovia_tcp::{Config, Dropped, Event, Happened, ListenerId, Polled, StreamId, Streams};
use platform::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv6Packet, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

/// A segment without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub control: TcpControl,
    pub seq: u32,
    pub ack: Option<u32>,
    pub window: u16,
    pub scale: Option<u8>,
    pub mss: Option<u16>,
    pub len: usize,
}

/// A segment between these ends.
pub fn segment(control: TcpControl, seq: u32, ack: Option<u32>, payload: &[u8]) -> TcpRepr<'_> {
    TcpRepr {
        src_port: 0,
        dst_port: 0,
        control,
        seq_number: TcpSeqNumber(seq as i32),
        ack_number: ack.map(|ack| TcpSeqNumber(ack as i32)),
        window_len: 60_000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload,
    }
}

/// The IP packet of a segment.
pub fn packet(from: SocketAddr, to: SocketAddr, segment: &TcpRepr<'_>) -> Vec<u8> {
    let tcp = TcpRepr { src_port: from.port(), dst_port: to.port(), ..*segment };
    let (src, dst): (IpAddress, IpAddress) = (from.ip().into(), to.ip().into());
    let ip = IpRepr::new(src, dst, IpProtocol::Tcp, tcp.buffer_len(), 64);
    let mut bytes = vec![0; ip.buffer_len()];
    let checksums = ChecksumCapabilities::default();
    ip.emit(&mut bytes[..], &checksums);
    tcp.emit(&mut TcpPacket::new_unchecked(&mut bytes[ip.header_len()..]), &src, &dst, &checksums);
    bytes
}

/// What a packet says. Its checksums are right.
pub fn seen(packet: &[u8]) -> Seen {
    let (src, dst, payload): (IpAddr, IpAddr, &[u8]) = if packet[0] >> 4 == 4 {
        let ip = Ipv4Packet::new_checked(packet).expect("a packet");
        assert!(ip.verify_checksum());
        (ip.src_addr().into(), ip.dst_addr().into(), ip.payload())
    } else {
        let ip = Ipv6Packet::new_checked(packet).expect("a packet");
        (ip.src_addr().into(), ip.dst_addr().into(), ip.payload())
    };
    let tcp = TcpPacket::new_checked(payload).expect("a segment");
    let repr =
        TcpRepr::parse(&tcp, &src.into(), &dst.into(), &ChecksumCapabilities::default()).expect("a segment");
    Seen {
        from: SocketAddr::new(src, repr.src_port),
        to: SocketAddr::new(dst, repr.dst_port),
        control: repr.control,
        seq: repr.seq_number.0 as u32,
        ack: repr.ack_number.map(|ack| ack.0 as u32),
        window: repr.window_len,
        scale: repr.window_scale,
        mss: repr.max_seg_size,
        len: repr.payload.len(),
    }
}

/// One end, and the peer on the other side of its egress.
pub struct Peer {
    pub streams: Streams,
    pub out: Outbox,
    pub now: Instant,
    /// The peer's address and port, and this side's.
    pub peer: SocketAddr,
    pub own: SocketAddr,
}

impl Peer {
    pub fn new(config: Config) -> Peer {
        let peer = SocketAddr::new(address(1), 5000);
        let own = SocketAddr::new(address(0), 80);
        let now = Instant::from_nanos(1_000_000_000);
        Peer {
            streams: Streams::new(config).expect("a configuration"),
            out: Outbox::default(),
            now,
            peer,
            own,
        }
    }

    pub fn listening() -> (Peer, ListenerId) {
        let mut peer = Peer::new(config(1));
        let listener = peer.streams.listen(None, 80, 8).expect("a listener");
        (peer, listener)
    }

    /// The peer sends a segment; returns what became of it.
    pub fn send(&mut self, segment: &TcpRepr<'_>) -> Result<(), Dropped> {
        let packet = packet(self.peer, self.own, segment);
        self.streams.input(&packet, self.now, &mut self.out)
    }

    pub fn poll(&mut self) {
        while self.streams.poll(self.now, 16, &mut self.out) == Polled::More {}
    }

    /// Time passes, with all that is due in it.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.poll();
        while let Some(at) = self.streams.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.poll();
        }
        self.now = end;
    }

    /// What this side has sent.
    pub fn sent(&mut self) -> Vec<Seen> {
        self.poll();
        self.out.packets.drain(..).map(|packet| seen(&packet)).collect()
    }

    /// The one segment that this side has sent.
    pub fn one(&mut self) -> Seen {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0]
    }

    /// A connection that the peer has opened: the stream, the peer's next number, and this side's.
    pub fn open(&mut self, listener: ListenerId) -> (StreamId, u32, u32) {
        self.open_with(listener, 1000, &segment(TcpControl::Syn, 1000, None, &[]))
    }

    pub fn open_with(&mut self, listener: ListenerId, irs: u32, syn: &TcpRepr<'_>) -> (StreamId, u32, u32) {
        self.send(syn).expect("a place");
        let answer = self.one();
        assert_eq!((answer.control, answer.ack), (TcpControl::Syn, Some(irs.wrapping_add(1))));
        let next = answer.seq.wrapping_add(1);
        self.send(&segment(TcpControl::None, irs.wrapping_add(1), Some(next), &[])).expect("a place");
        let stream = self.streams.accept(listener).expect("the listener").expect("a stream");
        (stream, irs.wrapping_add(1), next)
    }

    /// What has happened to a stream.
    pub fn happened(&mut self, id: StreamId) -> Happened {
        let all = core::iter::from_fn(|| self.streams.next_event());
        all.fold(Happened::empty(), |all, event| match event {
            Event::Stream(of, happened) if of == id => all | happened,
            _ => all,
        })
    }

    /// All bytes that have arrived and were not taken.
    pub fn read(&mut self, id: StreamId) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(true) = self.streams.receive(id, |bytes| {
            all.extend_from_slice(bytes);
            (bytes.len(), !bytes.is_empty())
        }) {}
        all
    }

    pub fn write(&mut self, id: StreamId, bytes: &[u8]) {
        let written = self.streams.send(id, |into| {
            into[..bytes.len()].copy_from_slice(bytes);
            (bytes.len(), bytes.len())
        });
        assert_eq!(written, Ok(bytes.len()));
    }
}
