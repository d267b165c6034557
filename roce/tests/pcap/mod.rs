//! The captures of Linux peers, for the tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use roce::wire::{ethernet, ipv4};

/// The captures. Cargo runs tests in the package's folder, wherever the checkout was moved.
pub fn data() -> PathBuf {
    PathBuf::from("tests/data")
}

/// The Ethernet frames of a capture, with the time of each.
pub fn frames(path: &Path) -> Vec<(Duration, Vec<u8>)> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!(packet.data.len() as u32, packet.orig_len, "{path:?} has cut frames");
        frames.push((packet.timestamp, packet.data.into_owned()));
    }
    frames
}

/// The IP packet of a frame, if it is a RoCEv2 one over IPv4 (the captures hold no other).
pub fn rocev2(frame: &[u8]) -> Option<&[u8]> {
    let (ethernet, packet) = ethernet::Repr::parse(frame).unwrap();
    if ethernet.ether_type != ethernet::Repr::IPV4 {
        return None;
    }
    let (ip, _) = ipv4::Repr::parse(packet).unwrap();
    (ip.protocol == ipv4::Repr::UDP && packet[22..24] == roce::UDP_PORT.to_be_bytes()).then_some(packet)
}
