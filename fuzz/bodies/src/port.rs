//! The NIC's port: frames of a hostile peer, between outgoing packets and timers.
//!
//! What must hold: no frame makes the port panic; the number of frames that wait in it is bounded;
//! a packet that it accepts goes to one of its addresses and has a right ICRC; each frame is
//! accepted or counted.

use core::time::Duration;

use nic_model::port::{Config, Input as Arrived, Port, Sender};
use platform::Instant;
use roce::wire::datagram::{self, Network};
use roce::wire::{ethernet, icrc, ipv4, ipv6, udp};
use roce::{Gid, IpPrefix};

use crate::Input;

/// The most frames that the port keeps for its owner.
const WAITING: usize = 128;
const ICMPV6: u8 = 58;

/// The VLAN of a port that is of one.
const VLAN: u16 = 7;

pub(crate) fn run(bytes: &[u8]) {
    play(bytes, None);
    play(bytes, Some(VLAN));
}

fn play(bytes: &[u8], vlan: Option<u16>) -> Port {
    let mut input = Input::new(bytes);
    let v4 = IpPrefix::new([10, 0, 0, 1].into(), 24).expect("an address");
    let v6 = IpPrefix::new("fd00::1".parse().expect("an address"), 64).expect("an address");
    let config = Config { vlan, ..Config::new(0x0266_65ff_fe72_0001, 1500, &[v4, v6]) };
    let mut port = Port::new(&config).expect("a port");
    let mut now = Instant::ZERO;
    let mut buffer = [0; 1518];
    port.set_up(true, now);
    while !input.is_empty() {
        now = now + Duration::from_micros(u64::from(input.byte()).pow(3));
        match input.below(8) {
            0 => port.poll(now),
            1 => {
                let waiting = std::iter::from_fn(|| port.next_frame(&mut buffer)).count();
                assert!(waiting <= WAITING, "{waiting} frames wait");
            }
            2 if input.rarely(8) => port.set_up(!port.up(), now),
            2 | 3 => {
                let (own, to) = (port.gids()[input.below(3)], address(&mut input));
                if let Some(network) = Network::new(own, to, 0, 64) {
                    let _ = port.transmit(&network, Sender::default(), 0xc000, &mut buffer, now, |packet| {
                        packet[..12].copy_from_slice(&[4, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0]);
                        Ok(12)
                    });
                }
            }
            _ => {
                let frame = frame(port.mac(), vlan, &mut input);
                receive(&mut port, &frame, now);
            }
        }
    }
    port
}

/// An address: of the port, of a neighbour, or any.
fn address(input: &mut Input<'_>) -> Gid {
    let last = input.byte();
    match input.below(4) {
        0 => Gid::from_ipv4([10, 0, 0, last].into()),
        1 => Gid::from_ipv6([0xfd00, 0, 0, 0, 0, 0, 0, last.into()].into()),
        2 => Gid::from_ipv6([0xff02, 0, 0, 0, 0, 1, 0xff00, last.into()].into()),
        _ => {
            let mut gid = [0; 16];
            let given = input.bytes(16);
            gid[..given.len()].copy_from_slice(given);
            Gid(gid)
        }
    }
}

/// A frame, mostly of this VLAN and with headers that lead deep into the port.
fn frame(mac: [u8; 6], vlan: Option<u16>, input: &mut Input<'_>) -> Vec<u8> {
    let dst = match input.below(4) {
        0 => [0xff; 6],
        1 => [0x33, 0x33, 0xff, 0, 0, 1],
        _ => mac,
    };
    let types = [ethernet::Repr::IPV4, ethernet::Repr::IPV6, ethernet::Repr::ARP, ethernet::Repr::TAGGED];
    let mut header = ethernet::Repr { dst, src: [0; 6], vlan, ether_type: types[input.below(4)] };
    if header.ether_type == ethernet::Repr::TAGGED && !input.rarely(4) {
        // A tag of any VLAN; number 0 is written, too.
        header.ether_type = types[input.below(3)];
        header.vlan = [Some(0), Some(VLAN), Some(8), None][input.below(4)];
    }
    let (ready, mended) = (!input.rarely(4), !input.rarely(4));
    header.src = [2, 0, 0, 0, 0, input.byte()];
    let start = header.len();
    let mut frame = vec![0; start];
    header.emit(&mut frame).expect("room");
    if ready {
        let protocols = [ipv4::Repr::UDP, 1, ICMPV6, 0];
        let (protocol, src, dst) = (protocols[input.below(4)], address(input), address(input));
        let payload = payload(protocol, input);
        let payload_len = payload.len() as u16;
        match Network::new(src, dst, input.byte(), 255) {
            Some(Network::V4(ip)) => {
                frame.resize(frame.len() + ipv4::Repr::LEN, 0);
                let ip = ipv4::Repr { protocol, payload_len, ..ip };
                ip.emit(&mut frame[start..]).expect("room");
            }
            Some(Network::V6(ip)) => {
                frame.resize(frame.len() + ipv6::Repr::LEN, 0);
                let ip = ipv6::Repr { next_header: protocol, payload_len, ..ip };
                ip.emit(&mut frame[start..]).expect("room");
            }
            None => {}
        }
        frame.extend(payload);
        if mended {
            mend(&mut frame[start..]);
        }
    } else {
        let len = usize::from(input.byte());
        frame.extend(input.bytes(len));
    }
    frame
}

/// What follows the IP header.
fn payload(protocol: u8, input: &mut Input<'_>) -> Vec<u8> {
    let len = usize::from(input.byte());
    let rest = input.bytes(len);
    if protocol != ipv4::Repr::UDP || input.rarely(8) {
        return rest.to_vec();
    }
    let mut datagram = vec![0; udp::Repr::LEN];
    let header =
        udp::Repr { src_port: 0xc000, dst_port: roce::UDP_PORT, checksum: 0, payload_len: rest.len() as u16 };
    header.emit(&mut datagram).expect("room");
    datagram.extend(rest);
    datagram
}

/// Makes the checksum behind the IP header right: the ICRC, or that of ICMP.
fn mend(packet: &mut [u8]) {
    let (start, protocol, sum) = match packet.first().map_or(0, |byte| byte >> 4) {
        4 if packet.len() >= ipv4::Repr::LEN => (ipv4::Repr::LEN, packet[9], 0),
        6 if packet.len() >= ipv6::Repr::LEN => {
            let len = (packet.len() - ipv6::Repr::LEN) as u64;
            (ipv6::Repr::LEN, packet[6], words(&packet[8..ipv6::Repr::LEN]) + len + u64::from(ICMPV6))
        }
        _ => return,
    };
    if protocol == ipv4::Repr::UDP {
        if let Some((covered, stored)) = packet.split_last_chunk_mut::<{ icrc::LEN }>()
            && let Ok(right) = icrc::compute(covered)
        {
            *stored = right.to_le_bytes();
        }
    } else if let Some(message) = packet.get_mut(start..).filter(|message| message.len() >= 4) {
        message[2..4].fill(0);
        let mut sum = sum + words(message);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}

/// The sum of the 16-bit words.
fn words(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |low| u64::from(*low))).sum()
}

fn receive(port: &mut Port, frame: &[u8], now: Instant) {
    let before = taken_or_dropped(port);
    let consumed = match port.receive(frame, now) {
        Arrived::Packet(arrival) => {
            assert_eq!(port.gids()[usize::from(arrival.local)], arrival.network.dst());
            assert!(!port.gids().contains(&arrival.network.src()));
            let (_, ip) = ethernet::Repr::parse(frame).expect("a header");
            let whole = datagram::Repr::parse(ip);
            assert!(!matches!(whole, Err(roce::Error::Checksum { .. })), "{whole:?}");
            0
        }
        Arrived::Segment(_) => panic!("the port was not told to take segments"),
        Arrived::Consumed | Arrived::Resolved(_) => 1,
        Arrived::Dropped(_) => 0,
    };
    assert_eq!(taken_or_dropped(port) + consumed, before + 1, "a frame that is neither taken nor counted");
}

/// How many frames were packets for the port, or dropped.
fn taken_or_dropped(port: &Port) -> u64 {
    let counters = port.counters();
    counters.packets_in + counters.drops().map(|(_, count)| count).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nic_model::port::{Counters, Dropped};

    use super::*;

    #[test]
    fn the_seeds_lead_to_everything_that_a_port_does() {
        let seeds = fs::read_dir("../seeds/port").expect("seeds").map(|seed| seed.expect("a seed").path());
        let played: Vec<Counters> =
            seeds.map(|seed| *play(&fs::read(seed).expect("a seed"), None).counters()).collect();
        let sum = |count: fn(&Counters) -> u64| played.iter().map(count).sum::<u64>();
        assert!(sum(|c| c.packets_in) >= 4 && sum(|c| c.packets_out) >= 4);
        assert!(sum(|c| c.answers) >= 3 && sum(|c| c.echoes) >= 32 && sum(|c| c.own_frames) > 0);
        assert!(sum(|c| c.dropped(Dropped::Flood)) > 0 && sum(|c| c.dropped(Dropped::Down)) > 0);
    }
}
