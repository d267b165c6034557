//! The launcher's options about links: machines and launchers that are joined in each way, what is
//! written of a link, and peers that misbehave.

mod running;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use links::Fault;
use pcap_file::pcap::PcapReader;
use running::{Running, launcher};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// How long what happens by itself may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A launcher with a line of arguments, in which `@` stands for a folder.
fn start(folder: &Path, line: &str) -> Running {
    let mut command = launcher();
    let folder = folder.to_str().expect("a plain path");
    command.args(line.split(' ').map(|word| word.replace('@', folder)));
    Running::start(command)
}

/// Runs a launcher that has to succeed; returns the first line that begins with `wanted`.
#[track_caller]
fn succeed(folder: &Path, line: &str, wanted: &str) -> String {
    let mut running = start(folder, line);
    let found = running.wait_for(wanted);
    ended(running);
    found
}

#[track_caller]
fn ended(mut running: Running) {
    let status = running.child.wait().expect("its status");
    assert!(status.success(), "{status}");
}

/// A counter of the first NIC.
fn counter(file: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read(file).ok()?;
    serde_json::from_slice::<Value>(&text).ok()?.get(0)?.get(name)?.as_u64()
}

/// Waits until a counter, which a running launcher writes once a second, has a value.
#[track_caller]
fn wait_for_count(file: &Path, name: &str, count: u64) {
    let deadline = Instant::now() + PATIENCE;
    while counter(file, name) != Some(count) {
        assert!(Instant::now() < deadline, "{name} is {:?}, not {count}", counter(file, name));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn file(folder: &Path, bytes: u32) -> (PathBuf, String) {
    let contents: Vec<u8> = (0..bytes).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    let path = folder.join("file");
    std::fs::write(&path, &contents).expect("write");
    (path, Sha256::digest(&contents).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a frame is a RoCEv2 packet over IPv4. Its tag must be this one.
#[track_caller]
fn is_roce(frame: &[u8], tag: &[u8]) -> bool {
    let rest = frame[12..].strip_prefix(tag).expect("the tag");
    rest[..2] == [8, 0] && rest[11] == 17 && rest[24..26] == 4791_u16.to_be_bytes()
}

#[test]
fn what_crosses_a_link_is_in_the_capture_and_in_the_counters() {
    // One of them in a VLAN.
    for (link, tag) in [("pair", &[][..]), ("stream --vlan 7", &[0x81, 0, 0, 7])] {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let options = format!("--link {link} --pcap @/pcap --counters @/counters");
        let said = succeed(folder, &format!("pair {options} rping count=4 size=5000 verify"), "A: rping: ");
        assert_eq!(said, "A: rping: 4 pings of 5000 bytes, verified");
        let capture = std::fs::File::open(folder.join("pcap")).expect("a capture");
        let mut reader = PcapReader::new(capture).expect("a capture of its format");
        let (mut frames, mut bytes, mut packets) = (0, 0, 0);
        while let Some(frame) = reader.next_packet() {
            let frame = frame.expect("a whole frame").data;
            frames += 1;
            bytes += frame.len() as u64;
            packets += u64::from(is_roce(&frame, tag));
        }
        let sum = |names: [&str; 2]| {
            let value = |name| counter(&folder.join("counters"), name).expect("a counter");
            names.map(value).iter().sum::<u64>()
        };
        assert_eq!(frames, sum(["link_sent", "link_received"]), "{link}");
        assert_eq!(bytes, sum(["link_sent_bytes", "link_received_bytes"]), "{link}");
        assert_eq!(packets, sum(["sent_pkts", "rcvd_pkts"]), "{link}");
        // Each text of 5 packets goes there and back.
        assert!(packets > 4 * 10, "{link}: {packets}");
    }
}

#[test]
fn a_file_arrives_intact_over_a_link_that_loses_and_changes_frames() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, digest) = file(folder.path(), (2 << 20) + 5);
    let impair = "loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=7";
    let line = format!("pair --link stream --impair {impair} --counters @/counters transfer @/file");
    let said = succeed(folder.path(), &line, "B: transfer direct: ");
    assert!(said.ends_with(&format!(" sha256 {digest}")), "{said}");
    for name in Fault::ALL.map(Fault::counter) {
        let count = counter(&folder.path().join("counters"), &format!("link_{name}"));
        assert!(count > Some(0), "{name}: {count:?}");
    }
}

#[test]
fn two_launchers_move_a_file_over_a_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, digest) = file(folder.path(), (1 << 20) + 3);
    let mut server = start(folder.path(), "tour role=server peer=10.0.0.2 --link stream:@/link");
    let client = "transfer @/file role=client peer=10.0.0.1 --link stream-connect:@/link";
    succeed(folder.path(), client, "connected to 10.0.0.1");
    for way in ["send", "write", "read", "direct"] {
        let line = server.wait_for("transfer ");
        assert!(line.starts_with(&format!("transfer {way}: ")), "{line}");
        assert!(line.ends_with(&format!(" sha256 {digest}")), "{line}");
    }
    ended(server);
    assert!(!folder.path().join("link").exists(), "the socket is removed");
}

#[test]
fn launchers_meet_at_a_switch() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut server = start(folder, "rping-server clients=2 --link switch:@/link --counters @/counters");
    server.wait_for("ready: ");
    let clients = ["", " --ip 10.0.0.3/24"].map(|more| {
        let line = "rping-client 10.0.0.1 count=20 size=9000 verify --link stream-connect:@/link";
        start(folder, &format!("{line}{more}"))
    });
    for mut client in clients {
        assert_eq!(client.wait_for("rping: "), "rping: 20 pings of 9000 bytes, verified");
        ended(client);
    }
    ended(server);
    assert_eq!(counter(&folder.join("counters"), "link_peers"), Some(2));
    assert!(!folder.join("link").exists(), "the socket is removed");
}

#[test]
fn two_launchers_meet_at_udp_sockets() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start(folder.path(), "rping-server clients=1 --link udp:127.91.0.1");
    assert_eq!(server.wait_for("ready: "), "ready: 127.91.0.1:7174");
    let client = "rping-client 127.91.0.1 count=20 size=9000 verify --link udp:127.91.0.2";
    let said = succeed(folder.path(), client, "rping: ");
    assert_eq!(said, "rping: 20 pings of 9000 bytes, verified");
    assert!(server.wait_for("127.91.0.2: ").contains("20 pings"));
    ended(server);
}

#[test]
fn a_stream_link_survives_peers_that_misbehave() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let server = "rping-server clients=1 --link stream:@/link --counters @/counters";
    let mut server = start(folder, server);
    server.wait_for("ready: ");
    let connect = || UnixStream::connect(folder.join("link")).expect("the socket is there");
    let counters = folder.join("counters");

    let mut garbage = connect();
    garbage.write_all(&[0xff; 4]).expect("a length that no frame has");
    // What the NIC had sent meanwhile comes first.
    garbage.read_to_end(&mut Vec::new()).expect("the launcher leaves");
    wait_for_count(&counters, "link_dropped_bad_length", 1);

    let mut vanishing = connect();
    vanishing.write_all(&[0, 0, 4, 0, 1, 2, 3]).expect("some bytes of 1024");
    drop(vanishing);
    wait_for_count(&counters, "link_peers", 2);

    // This one takes nothing and sends nothing more, and another waits for its end.
    let mut stalled = connect();
    stalled.write_all(&[0, 0, 4]).expect("half of a length");
    wait_for_count(&counters, "link_peers", 3);
    let client = "rping-client 10.0.0.1 count=3 verify --link stream-connect:@/link";
    let mut client = start(folder, client);
    drop(stalled);
    assert_eq!(client.wait_for("rping: "), "rping: 3 pings of 64 bytes, verified");
    ended(client);
    assert!(server.wait_for("10.0.0.2: ").contains("3 pings"));
    ended(server);
    let count = |name| counter(&counters, name);
    assert_eq!((count("link_peers"), count("link_dropped_bad_length")), (Some(4), Some(1)));
    assert!(count("link_dropped_truncated") >= Some(2));
}
