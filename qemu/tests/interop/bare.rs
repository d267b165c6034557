//! A bare host on a switch: it has an address, smoltcp's TCP, and says each byte of a connection
//! itself. So it can be as hostile as a test wants, beside guests that are not.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as Clock;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress, IpCidr, IpProtocol, Ipv4Packet, TcpPacket,
};

/// How long what must come may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The first port of its own.
const PORTS: u16 = 40_000;

/// The link: frames with their lengths in front of them, as QEMU's streams have them.
struct Link {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Ports of its own, and how many more of their segments leave.
    mute: Rc<RefCell<HashMap<u16, u32>>>,
}

impl Link {
    /// The next frame that has come.
    fn frame(&mut self) -> Option<Vec<u8>> {
        let mut bytes = [0; 1 << 16];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the switch has gone"),
            Ok(count) => self.input.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("the link: {error}"),
        }
        let (length, rest) = self.input.split_first_chunk()?;
        let frame = rest.get(..u32::from_be_bytes(*length) as usize)?.to_vec();
        self.input.drain(..4 + frame.len());
        Some(frame)
    }

    fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => _ = self.output.drain(..count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("the link: {error}"),
            }
        }
    }

    fn is_mute(&self, frame: &[u8]) -> bool {
        let port = || {
            let frame = EthernetFrame::new_checked(frame).ok()?;
            let ip = Ipv4Packet::new_checked(frame.payload()).ok()?;
            let is_tcp = frame.ethertype() == EthernetProtocol::Ipv4 && ip.next_header() == IpProtocol::Tcp;
            let tcp = is_tcp.then(|| TcpPacket::new_checked(ip.payload()).ok())??;
            Some(tcp.src_port())
        };
        let mut mute = self.mute.borrow_mut();
        match port().and_then(|port| mute.get_mut(&port)) {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }
}

struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

struct Sent<'a>(&'a mut Link);

impl phy::TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let mut frame = vec![0; length];
        let result = fill(&mut frame);
        if !self.0.is_mute(&frame) {
            self.0.output.extend_from_slice(&(length as u32).to_be_bytes());
            self.0.output.extend_from_slice(&frame);
        }
        result
    }
}

impl Device for Link {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: Clock) -> Option<(Received, Sent<'_>)> {
        let frame = self.frame()?;
        Some((Received(frame), Sent(self)))
    }

    fn transmit(&mut self, _: Clock) -> Option<Sent<'_>> {
        Some(Sent(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.max_transmission_unit = 1514;
        capabilities.medium = Medium::Ethernet;
        capabilities
    }
}

/// The host.
pub struct Bare {
    link: Link,
    interface: Interface,
    sockets: SocketSet<'static>,
    begun: Instant,
    next_port: u16,
    mute: Rc<RefCell<HashMap<u16, u32>>>,
}

/// A connection of a [`Bare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    socket: SocketHandle,
    port: u16,
}

impl Bare {
    /// A host 10.0.0.N/24 on the switch at `switch`.
    pub fn on_switch(switch: &Path, n: u8) -> Bare {
        let stream = UnixStream::connect(switch).expect("the switch");
        stream.set_nonblocking(true).expect("a socket");
        let mute = Rc::new(RefCell::new(HashMap::new()));
        let mut link = Link { stream, input: Vec::new(), output: Vec::new(), mute: mute.clone() };
        let mut config = Config::new(EthernetAddress([2, 0, 0, 0, 0, n]).into());
        config.random_seed = n.into();
        let begun = Instant::now();
        let mut interface = Interface::new(config, &mut link, Clock::ZERO);
        interface.update_ip_addrs(|all| {
            all.push(IpCidr::new(IpAddress::v4(10, 0, 0, n), 24)).expect("room for an address");
        });
        Bare { link, interface, sockets: SocketSet::new(Vec::new()), begun, next_port: PORTS, mute }
    }

    fn poll(&mut self) {
        let now = Clock::from_micros(self.begun.elapsed().as_micros() as i64);
        self.interface.poll(now, &mut self.link, &mut self.sockets);
        self.link.flush();
    }

    /// Lets the host work until `look` has found what the test waits for.
    #[track_caller]
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Bare) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.poll();
            if let Some(found) = look(self) {
                self.poll();
                return found;
            }
            assert!(Instant::now() < deadline, "{what} does not come");
            // Nothing wakes a thread that waits for frames and for TCP's timers.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn socket(&mut self, connection: Connection) -> &mut Socket<'static> {
        self.sockets.get_mut(connection.socket)
    }

    /// Begins to connect to 10.0.0.1, with a window of so many bytes.
    fn dial(&mut self, port: u16, window: usize) -> Connection {
        let (receive, send) = (SocketBuffer::new(vec![0; window]), SocketBuffer::new(vec![0; 1 << 16]));
        let mut socket = Socket::new(receive, send);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let own = self.next_port;
        self.next_port += 1;
        let to = (IpAddress::v4(10, 0, 0, 1), port);
        socket.connect(self.interface.context(), to, own).expect("an address");
        Connection { socket: self.sockets.add(socket), port: own }
    }

    /// Connects to 10.0.0.1.
    #[track_caller]
    pub fn connect(&mut self, port: u16) -> Connection {
        self.connect_with(port, 1 << 16)
    }

    /// Connects to 10.0.0.1, with a window of so many bytes.
    #[track_caller]
    pub fn connect_with(&mut self, port: u16, window: usize) -> Connection {
        let connection = self.dial(port, window);
        self.until("a connection", |bare| {
            let state = bare.socket(connection).state();
            assert!(state != State::Closed, "the connection is refused");
            (state == State::Established).then_some(())
        });
        connection
    }

    /// Sends a SYN, hears the answer, and says nothing ever.
    #[track_caller]
    pub fn half_open(&mut self, port: u16) {
        let connection = self.dial(port, 1 << 16);
        self.mute.borrow_mut().insert(connection.port, 1);
        self.until("the answer to a SYN", |bare| {
            (bare.socket(connection).state() == State::Established).then_some(())
        });
        self.forget(connection);
    }

    /// Says bytes, in segments of at most `piece` bytes.
    #[track_caller]
    pub fn say_in(&mut self, connection: Connection, bytes: &[u8], piece: usize) {
        for part in bytes.chunks(piece.max(1)) {
            let mut rest = part;
            self.until("room to send", |bare| {
                let socket = bare.socket(connection);
                if !socket.may_send() {
                    // The other end has had enough.
                    return Some(());
                }
                let sent = socket.send_slice(rest).unwrap_or(0);
                rest = &rest[sent..];
                rest.is_empty().then_some(())
            });
        }
    }

    /// Says bytes.
    #[track_caller]
    pub fn say(&mut self, connection: Connection, bytes: &[u8]) {
        self.say_in(connection, bytes, bytes.len());
    }

    /// Hears so many bytes; fewer if the other end has ended the connection.
    #[track_caller]
    pub fn hear(&mut self, connection: Connection, count: usize) -> Vec<u8> {
        let mut heard = Vec::new();
        self.until("an answer", |bare| {
            let socket = bare.socket(connection);
            while heard.len() < count && socket.can_recv() {
                let most = count - heard.len();
                let taken = socket.recv(|bytes| {
                    let take = bytes.len().min(most);
                    heard.extend_from_slice(&bytes[..take]);
                    (take, ())
                });
                taken.expect("bytes that are there");
            }
            (heard.len() == count || !socket.may_recv()).then_some(())
        });
        heard
    }

    /// Hears all until the other end has ended the connection.
    #[track_caller]
    pub fn hear_all(&mut self, connection: Connection) -> Vec<u8> {
        self.hear(connection, usize::MAX)
    }

    /// Ends its direction.
    pub fn finish(&mut self, connection: Connection) {
        self.socket(connection).close();
    }

    /// Resets the connection.
    #[track_caller]
    pub fn reset(&mut self, connection: Connection) {
        self.socket(connection).abort();
        self.poll();
        self.forget(connection);
    }

    /// Gives the connection up, whatever its state.
    pub fn forget(&mut self, connection: Connection) {
        self.sockets.remove(connection.socket);
    }

    /// Whether the other end has reset the connection, or has gone.
    pub fn is_reset(&mut self, connection: Connection) -> bool {
        self.socket(connection).state() == State::Closed
    }
}
