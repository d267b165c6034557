//! TCP: two ends with owners that do anything, on a link on which anything is forged and changed.
//!
//! What must hold: no packet and no call makes an end panic; the numbers of names and bytes have
//! their bounds; no end has something to do for ever; when both owners have given everything back,
//! nothing is left.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use ::tcp::testing::{Link, World, address, address_v6, config};
use ::tcp::{Config, Ready, StreamId};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv6Packet, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

use crate::Input;

const PORT: u16 = 80;
/// The most streams of an end, and the rings of each.
const STREAMS: usize = 8;

pub(crate) fn run(bytes: &[u8]) {
    play(bytes);
}

fn play(bytes: &[u8]) -> World {
    let mut input = Input::new(bytes);
    let ring = |input: &mut Input<'_>| 2048 << (input.byte() & 7);
    let (send_ring, receive_ring) = (ring(&mut input), ring(&mut input));
    let memory = STREAMS * (send_ring + receive_ring);
    let config = Config { streams: STREAMS, send_ring, receive_ring, memory, ..config(input.byte().into()) };
    let mut world = World::new(&config, Link { rate: 0, ..Link::CLEAN }, input.byte().into());
    let listeners = [0, 1].map(|end| world.ends[end].listen(None, PORT, 4).expect("a listener"));
    let mut ids: [Vec<StreamId>; 2] = Default::default();
    while !input.is_empty() {
        let end = input.below(2);
        let id = ids[end].get(input.below(STREAMS)).copied();
        let now = world.now;
        match (input.below(16), id) {
            (0, _) => {
                let (from, to) = if input.rarely(4) {
                    (address_v6(end), address_v6(1 - end))
                } else {
                    (address(end), address(1 - end))
                };
                // Now and then both ends connect to each other.
                let ports = [(None, PORT), (Some(7), 7)][usize::from(input.rarely(4))];
                ids[end].extend(world.ends[end].connect(from, ports.0, SocketAddr::new(to, ports.1), now));
            }
            (1, _) => ids[end].extend(world.ends[end].accept(listeners[end]).expect("a listener")),
            (2, Some(id)) => {
                let len = input.number() as usize;
                let _ = world.ends[end].send(id, |bytes| (bytes.len().min(len), ()));
            }
            (3, Some(id)) => {
                let len = input.number() as usize;
                let _ = world.ends[end].receive(id, |bytes| (bytes.len().min(len), ()));
            }
            (4, Some(id)) => {
                let _ = world.ends[end].close(id, now);
            }
            (5, Some(id)) => {
                ids[end].retain(|other| *other != id);
                let result = if input.rarely(2) {
                    world.ends[end].abort(id)
                } else {
                    world.ends[end].release(id, now)
                };
                result.expect("a stream");
            }
            (6, _) => {
                let all = [Ready::Now, Ready::Now, Ready::Resolving, Ready::Unreachable];
                world.outboxes[end].ready = all[input.below(4)];
                for address in [address(1 - end), address_v6(1 - end)] {
                    world.ends[end].settled(address);
                }
            }
            (7, _) => while world.ends[end].next_event().is_some() {},
            (8 | 9, _) => {
                // A packet from before, changed or not.
                let recent = input.byte();
                if let Some((to, mut packet)) = world.recent.get(usize::from(recent) & 15).cloned() {
                    change(&mut packet, &mut input);
                    world.inject(to, packet);
                }
            }
            (10, _) => {
                let len = usize::from(input.byte());
                world.inject(end, input.bytes(len).to_vec());
            }
            (11, Some(id)) => forge(&mut world, end, id, &mut input),
            (12, _) => world.link.loss = [0, 0, 5000, 10_000][input.below(4)],
            _ => world.pass(Duration::from_micros(u64::from(input.byte()).pow(3))),
        }
        for end in &world.ends {
            assert!(end.memory() <= memory && end.names() <= STREAMS + 4 + end.former());
        }
    }
    for end in 0..2 {
        world.outboxes[end].ready = Ready::Now;
        for address in [address(1 - end), address_v6(1 - end)] {
            world.ends[end].settled(address);
        }
        world.ends[end].stop(listeners[end]).expect("a listener");
        for id in ids[end].drain(..) {
            world.ends[end].release(id, world.now).expect("a stream");
        }
    }
    world.pass(Duration::from_secs(60));
    for end in &world.ends {
        assert_eq!((end.names(), end.memory(), end.half_open(), end.deadline()), (0, 0, 0, None));
    }
    world
}

/// A segment that names a connection, with numbers near those of the latest packet to this end.
fn forge(world: &mut World, end: usize, id: StreamId, input: &mut Input<'_>) {
    let Ok(info) = world.ends[end].info(id) else { return };
    let latest = world.recent.iter().rev().find(|(to, _)| *to == end);
    let (seq, ack) = latest.and_then(|(_, packet)| numbers(packet)).unwrap_or_default();
    let controls = [TcpControl::None, TcpControl::Psh, TcpControl::Syn, TcpControl::Fin, TcpControl::Rst];
    let control = controls[input.below(5)];
    let near = |number: u32, input: &mut Input<'_>| {
        let offset = input.number() as u32;
        if input.rarely(4) { number.wrapping_sub(offset) } else { number.wrapping_add(offset) }
    };
    let (seq, ack) = (near(seq, input), near(ack, input));
    let payload = vec![7; input.number() as usize % 1400];
    let options = input.byte();
    let tcp = TcpRepr {
        src_port: info.remote.port(),
        dst_port: info.local.port(),
        control,
        seq_number: TcpSeqNumber(seq as i32),
        ack_number: (options & 1 == 0).then_some(TcpSeqNumber(ack as i32)),
        window_len: input.number() as u16,
        window_scale: (options & 2 != 0).then_some(options >> 4),
        max_seg_size: (options & 4 != 0).then_some(u16::from(options)),
        sack_permitted: options & 8 != 0,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &payload,
    };
    let (src, dst): (IpAddress, IpAddress) = (info.remote.ip().into(), info.local.ip().into());
    let ip = IpRepr::new(src, dst, IpProtocol::Tcp, tcp.buffer_len(), 64);
    let mut packet = vec![0; ip.buffer_len()];
    let checksums = ChecksumCapabilities::default();
    ip.emit(&mut packet[..], &checksums);
    tcp.emit(&mut TcpPacket::new_unchecked(&mut packet[ip.header_len()..]), &src, &dst, &checksums);
    world.inject(end, packet);
}

/// The start of the TCP header, and the addresses.
fn split(packet: &[u8]) -> Option<(usize, IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 40 => {
            let ip = Ipv4Packet::new_unchecked(packet);
            Some((20, ip.src_addr().into(), ip.dst_addr().into()))
        }
        6 if packet.len() >= 60 => {
            let ip = Ipv6Packet::new_unchecked(packet);
            Some((40, ip.src_addr().into(), ip.dst_addr().into()))
        }
        _ => None,
    }
}

/// The numbers behind a segment, and which it acknowledges.
fn numbers(packet: &[u8]) -> Option<(u32, u32)> {
    let (start, ..) = split(packet)?;
    let tcp = TcpPacket::new_checked(&packet[start..]).ok()?;
    Some(((tcp.seq_number().0 as u32).wrapping_add(tcp.segment_len() as u32), tcp.ack_number().0 as u32))
}

/// Changes some bytes of a packet, and mostly makes its checksums right again.
fn change(packet: &mut [u8], input: &mut Input<'_>) {
    for _ in 0..input.below(4) {
        // Headers are more interesting than what is behind them.
        let at = usize::from(input.byte()) % packet.len().min(64);
        packet[at] ^= input.byte();
    }
    if input.rarely(4) {
        return;
    }
    if packet[0] >> 4 == 4
        && packet.len() >= 20
        && packet[0] & 15 >= 5
        && packet.len() >= usize::from(packet[0] & 15) * 4
    {
        Ipv4Packet::new_unchecked(&mut *packet).fill_checksum();
    }
    if let Some((start, src, dst)) = split(packet) {
        TcpPacket::new_unchecked(&mut packet[start..]).fill_checksum(&src.into(), &dst.into());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ::tcp::Counters;

    use super::*;

    #[test]
    fn the_seeds_lead_to_everything_that_streams_do() {
        let seeds = fs::read_dir("../seeds/tcp").expect("seeds").map(|seed| seed.expect("a seed").path());
        let played: Vec<[Counters; 2]> = seeds
            .map(|seed| play(&fs::read(seed).expect("a seed")).ends.map(|end| *end.counters()))
            .collect();
        let sum = |count: fn(&Counters) -> u64| played.iter().flatten().map(count).sum::<u64>();
        assert!(sum(|c| c.connected) >= 4 && sum(|c| c.accepted) >= 4 && sum(|c| c.half_open_lost) > 0);
        assert!(sum(|c| c.packets_out) > 100 && sum(|c| c.resets) > 0);
        assert!(sum(|c| c.drops().map(|(_, count)| count).sum()) > 10);
    }
}
