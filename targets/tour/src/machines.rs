//! The four ways from one machine to another: the client has the payload, the server its copy.
//!
//! For each piece and each way the client announces the piece. The server overwrites its copy with
//! other bytes, posts Receives if the way needs them, and reports that it is ready. Then the client
//! moves the piece, or, by RDMA Read, the server does. At last the server compares the digest of
//! the bytes that arrived with the digest that the client announced; the launcher computes both
//! from the machines' memory.

use core::net::Ipv4Addr;
use core::time::Duration;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use common::{Failure, Node, SERVICE, Trying, accept, connect_to, disconnect, disconnected, lost};
use kernel::println;
use rdma::{Domain, Endpoint};

use crate::control::{self, Control, Message};
use crate::ends::{Outcome, Piece, Sink, Source, endpoints};
use crate::payload::{Arrivals, Payload};
use crate::ways::{NAMES, report};

/// The number of the way in which the server moves the piece.
const READ: usize = 2;

/// Runs a role to its end.
pub fn run(node: &Node, role: &str) -> Outcome {
    let domain = node.nic(0)?.domain().trying("a domain")?;
    let peer = kernel::args().get("peer").unwrap_or_default();
    let mut link = match role {
        "client" => Link::ask(node, &domain, peer)?,
        "server" => Link::take(node, &domain)?,
        _ => return Err(Failure::new(format!("role={role}: the roles are client and server"))),
    };
    println!("connected to {peer}");
    let outcome = if role == "client" { client(node, &mut link) } else { server(node, &mut link) };
    outcome.map_err(|failure| match lost(&link.data).or_else(|| lost(link.messages.endpoint())) {
        Some(how) => Failure::new(format!("{how}: {failure}")),
        None => failure,
    })?;
    drop((link, domain));
    node.close();
    Ok(())
}

/// The connections with the other machine: one for messages, and one for the pieces.
struct Link {
    messages: Control,
    data: Arc<Endpoint>,
}

impl Link {
    fn ask(node: &Node, domain: &Domain, server: &str) -> Outcome<Link> {
        let server: Ipv4Addr = server.parse().trying("the server's address, peer=ADDRESS")?;
        // The server sends nothing before it has received a message from the client.
        let messages = Control::new(connect_to(&control::endpoints(domain), server.into())?)?;
        let data = connect_to(&endpoints(domain, node.privileged), server.into())?;
        Ok(Link { messages, data: Arc::new(data) })
    }

    fn take(node: &Node, domain: &Domain) -> Outcome<Link> {
        let messages = Control::new(control::endpoints(domain).build().trying("an endpoint")?)?;
        let data = Arc::new(endpoints(domain, node.privileged).build().trying("an endpoint")?);
        let listener = domain.nic().listen(SERVICE).trying("listening")?;
        accept(&listener, messages.endpoint())?;
        accept(&listener, &data)?;
        Ok(Link { messages, data })
    }
}

fn client(node: &Node, Link { messages, data }: &mut Link) -> Outcome {
    let mut payload = Payload::new(&node.platform)?;
    let source = Source::new(data, &payload.buffer, node.privileged)?;
    messages.send(Message::Memory(source.remote()?))?;
    let to = messages.expect(Message::memory)?;
    while payload.next()? {
        let (piece, digest) = (Piece(payload.length), payload.sha256());
        for (way, name) in NAMES.iter().enumerate() {
            let failed = |why| Failure::new(format!("transfer {name}: {why}"));
            messages.send(Message::Piece { way: way as u64, length: piece.0 as u64, digest })?;
            if way != READ {
                messages.expect(|message| (message == Message::Ready).then_some(()))?;
                let begin = node.platform.now();
                let moved = match way {
                    0 => source.send_all(piece),
                    1 => source.write_all(piece, to),
                    _ => source.write_all_direct(piece, to),
                };
                moved.map_err(failed)?;
                let time = node.platform.now() - begin;
                messages.send(Message::Moved { nanoseconds: time.as_nanos() as u64 })?;
            }
            messages.expect(|message| (message == Message::Arrived).then_some(())).map_err(failed)?;
            println!("@moved {}", piece.0);
        }
    }
    messages.send(Message::End)?;
    disconnected(data)?;
    disconnected(messages.endpoint())
}

fn server(node: &Node, Link { messages, data }: &mut Link) -> Outcome {
    let arrivals = Arrivals::new(&node.platform)?;
    let from = messages.expect(Message::memory)?;
    let sink = Sink::new(data, from.len() as usize)?;
    messages.send(Message::Memory(sink.remote()?))?;
    let mut bytes = 0;
    let mut times = [Duration::ZERO; NAMES.len()];
    let mut digests = [[0; 32]; NAMES.len()];
    loop {
        let (way, length, digest) = match messages.receive()? {
            Message::Piece { way, length, digest } => (way as usize, length as usize, digest),
            Message::End => break,
            other => return Err(Failure::new(format!("not the next message: {other:?}"))),
        };
        let piece = Piece(length);
        let name = NAMES.get(way).filter(|_| length <= sink.buffer().len());
        let name = name.ok_or_else(|| Failure::new("a piece with an unknown way or an invalid length"))?;
        let failed = |why| Failure::new(format!("transfer {name}: {why}"));
        piece.spoil(sink.buffer())?;
        times[way] += match way {
            READ => {
                let begin = node.platform.now();
                sink.read_all(piece, from).map_err(failed)?;
                node.platform.now() - begin
            }
            _ => receive(messages, &sink, piece, way).map_err(failed)?,
        };
        digests[way] = arrivals.arrived(name, sink.buffer(), length)?;
        if digests[way] != digest {
            return Err(failed(Failure::new("what arrived is not what was sent")));
        }
        messages.send(Message::Arrived)?;
        if way == 0 {
            bytes += length as u64;
        }
    }
    for ((name, time), digest) in NAMES.iter().zip(times).zip(&digests) {
        report(name, bytes, time, digest);
    }
    disconnect(data)?;
    disconnect(messages.endpoint())
}

/// Lets the client move a piece in one of its ways; returns how long it took.
fn receive(messages: &mut Control, sink: &Sink, piece: Piece, way: usize) -> Outcome<Duration> {
    let expected = if way == 0 { piece.messages() } else { 0 };
    let receives: Vec<_> = (0..expected).map(|n| sink.receive(piece, n)).collect();
    messages.send(Message::Ready)?;
    let time = messages.expect(|message| match message {
        Message::Moved { nanoseconds } => Some(Duration::from_nanos(nanoseconds)),
        _ => None,
    })?;
    receives.into_iter().enumerate().try_for_each(|(n, receive)| sink.received(receive, piece, n))?;
    Ok(time)
}
