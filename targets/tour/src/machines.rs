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

use common::{Failure, Listener, Node, Side, Sizes, Trying};
use kernel::println;
use privileged_api::NetAddr;

use crate::control::{self, Control, Message};
use crate::ends::{Outcome, Piece, Sink, Source};
use crate::payload::{Arrivals, Payload};
use crate::ways::{NAMES, report};
use crate::{IN_FLIGHT, MESSAGE};

/// The number of the way in which the server moves the piece.
const READ: usize = 2;
/// The most Receives that are posted at once: for all messages of the longest piece.
const RECEIVES: usize = 64;

/// Runs a role to its end.
pub fn run(node: &Node, role: &str) -> Outcome {
    let ia = node.ia(0)?;
    let control = Side::new(ia.clone(), control::SIZES)?;
    let data = Side::new(ia.clone(), Sizes { requests: RECEIVES.max(IN_FLIGHT), message: MESSAGE })?;
    let peer = kernel::args().get("peer").unwrap_or_default();
    let outcome = match role {
        "client" => client(node, &control, &data, peer),
        "server" => server(node, &control, &data, peer),
        _ => Err(Failure::new(format!("role={role}: the roles are client and server"))),
    };
    outcome.map_err(|failure| match data.lost().or_else(|| control.lost()) {
        Some(how) => Failure::new(format!("{how}: {failure}")),
        None => failure,
    })?;
    ia.ia_free().trying("it_ia_free")?;
    node.close();
    Ok(())
}

fn client(node: &Node, control: &Side, data: &Side, peer: &str) -> Outcome {
    let address: Ipv4Addr = peer.parse().trying("the server's address, peer=ADDRESS")?;
    let address = NetAddr::Ipv4(address.octets());
    let mut payload = Payload::new(&node.platform)?;
    control.connect(&node.platform, &address)?;
    data.connect(&node.platform, &address)?;
    // The server sends nothing before it has received a message from the client.
    let messages = Control::new(&node.platform, control)?;
    println!("connected to {peer}");
    let source = Source::new(data, &payload.buffer)?;
    messages.tell(source.remote(), payload.buffer.len())?;
    let (to, _) = messages.expect(Message::memory)?;
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
    data.disconnected()?;
    control.disconnected()?;
    source.free()?;
    messages.free()
}

fn server(node: &Node, control: &Side, data: &Side, peer: &str) -> Outcome {
    let arrivals = Arrivals::new(&node.platform)?;
    let messages = Control::new(&node.platform, control)?;
    let listener = Listener::new(&control.ia)?;
    for side in [control, data] {
        listener.accept(side.ep)?;
        side.established()?;
    }
    listener.free()?;
    println!("connected to {peer}");
    let (from, length) = messages.expect(Message::memory)?;
    let sink = Sink::new(&node.platform, data, length)?;
    messages.tell(sink.remote(), length)?;
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
        let name = NAMES.get(way).filter(|_| length <= sink.buffer.len());
        let name = name.ok_or_else(|| Failure::new("a piece with an unknown way or an invalid length"))?;
        let failed = |why| Failure::new(format!("transfer {name}: {why}"));
        piece.spoil(&sink.buffer)?;
        times[way] += match way {
            READ => {
                let begin = node.platform.now();
                sink.read_all(piece, from).map_err(failed)?;
                node.platform.now() - begin
            }
            _ => receive(&messages, &sink, piece, way).map_err(failed)?,
        };
        digests[way] = arrivals.arrived(name, &sink.buffer, length)?;
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
    sink.free()?;
    data.disconnect()?;
    control.disconnect()?;
    messages.free()
}

/// Lets the client move a piece in one of its ways; returns how long it took.
fn receive(messages: &Control<'_>, sink: &Sink<'_>, piece: Piece, way: usize) -> Outcome<Duration> {
    let receives = if way == 0 { piece.messages() } else { 0 };
    (0..receives).try_for_each(|n| sink.receive(piece, n)).trying("it_post_recv")?;
    messages.send(Message::Ready)?;
    let time = messages.expect(|message| match message {
        Message::Moved { nanoseconds } => Some(Duration::from_nanos(nanoseconds)),
        _ => None,
    })?;
    (0..receives).try_for_each(|n| sink.received(piece, n))?;
    Ok(time)
}
