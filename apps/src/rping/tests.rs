//! Client and server against each other, and each against peers that do not follow the protocol.

use std::format;
use std::string::String;
use std::vec::Vec;

use core::time::Duration;

use rdma::{Access, ConnectError, Ending, Nic, Region, RemoteMemory};

use super::*;
use crate::advert;
use crate::connection::Connection;
use crate::testing::{Net, Server};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn texts_are_those_of_rping() {
    assert_eq!(text(0, 20), b"rdma-ping-0: ABCDEF\0");
    assert_eq!(text(1, 20), b"rdma-ping-1: BCDEFG\0");
    assert_eq!(text(57, 18), b"rdma-ping-57: zAB\0");
    assert_eq!(text(58, 18), b"rdma-ping-58: ABC\0");
    assert_eq!(text(7, 1), b"\0");
    assert_eq!(text(7, 5), b"rdma\0");
    assert_eq!((length(&text(3, 80)), length(b"no end")), (79, 6));
}

/// Both kinds of address, and texts of all lengths at which something changes.
#[test]
fn texts_come_back() {
    let net = Net::new(2);
    let runs = [(1, 3), (2, 3), (64, 1000), (4096, 5), (65535, 3), (65536, 3)];
    let server = net.serve(1, server, &format!("clients={}", 2 * runs.len()));
    for v4 in [true, false] {
        for (size, count) in runs {
            let line = format!("{} size={size} count={count} verify", net.address(1, v4));
            let said = net.run(0, client, &line).expect("it passes");
            assert_eq!(said, [format!("rping: {count} pings of {size} bytes, verified")]);
        }
    }
    let (result, said) = server.end();
    assert_eq!(result, Ok(()));
    let ready: Vec<_> = said.iter().filter(|line| line.starts_with("ready: ")).collect();
    assert_eq!(ready.len(), 2);
    assert_eq!(*ready[0], format!("ready: {}:7174", net.address(1, true)));
    assert_eq!(*ready[1], format!("ready: [{}]:7174", net.address(1, false)));
    assert_eq!(said.iter().filter(|line| line.ends_with("1000 pings, disconnected")).count(), 2);
}

#[test]
fn both_sides_write_the_texts() {
    let net = Net::new(2);
    let server = net.serve(1, server, "clients=1 verbose port=9000");
    let line = format!("verbose port=9000 count=2 size=20 {}", net.address(1, true));
    let said = net.run(0, client, &line).expect("it passes");
    assert_eq!(
        said,
        ["ping data: rdma-ping-0: ABCDEF", "ping data: rdma-ping-1: BCDEFG", "rping: 2 pings of 20 bytes"]
    );
    let (result, said) = server.end();
    assert_eq!(result, Ok(()));
    assert!(said.contains(&"server ping data: rdma-ping-1: BCDEFG".into()), "{said:?}");
}

#[test]
fn wrong_words_and_servers_that_are_not_there() {
    let net = Net::new(2);
    let at = net.address(1, true);
    for (line, words) in [
        ("".into(), "address is missing"),
        (format!("{at} {at}"), "no such word"),
        (format!("{at} size=0"), "size=0"),
        (format!("{at} size=65537"), "size=65537"),
        (format!("{at} veryfy"), "veryfy"),
        (format!("{at} count=1"), "does a server listen"),
        ("224.0.0.1".into(), "no path leads to this address"),
    ] {
        let said: String = net.run(0, client, &line).expect_err(&line);
        assert!(said.contains(words), "{line}: {said}");
    }
    assert!(net.run(1, server, "10.0.0.1").expect_err("no such word").contains("10.0.0.1"));
}

/// A client of rping's that does what a test wants.
struct Rogue {
    connection: Connection<Endpoint>,
    message: Region,
    answer: Region,
    text: Region,
}

/// What [`Rogue`] has as its text.
const SIZE: usize = 64;

impl Rogue {
    fn new(nic: &Nic, server: core::net::IpAddr, exposed: Access) -> Rogue {
        let domain = nic.domain().expect("a domain");
        let message = domain.region(2 * advert::LEN).expect("memory");
        let answer = domain.region(advert::LEN).expect("memory");
        let text = domain.shared_region(SIZE, exposed).expect("memory");
        let mut connection = Connection::new(endpoint(&domain).expect("an endpoint"), PATIENCE);
        connection.expect(answer.slice(..)).expect("a Receive");
        connection.established(connection.endpoint.connect(server.into(), PORT)).expect("a connection");
        Rogue { connection, message, answer, text }
    }

    /// Sends an advert of `size` bytes of the text, in a message of `length` bytes.
    fn advertise(&mut self, size: usize, length: usize) {
        let text = self.text.remote().expect("peers may access it");
        let advert = RemoteMemory::new(text.addr(), size as u64, text.key());
        self.message.slice(..).write(&advert::emit(advert));
        self.connection.send(self.message.slice(..length)).expect("a Send");
    }

    /// Waits for the server's go-ahead.
    fn go_ahead(&mut self) {
        assert_eq!(self.connection.received().expect("a go-ahead").len, advert::LEN);
        self.connection.expect(self.answer.slice(..)).expect("a Receive");
    }

    /// Waits until the server has ended the connection.
    fn ended(&self) -> Option<Ending> {
        self.connection.endpoint.wait_closed(Some(PATIENCE)).expect("an end");
        self.connection.endpoint.ending()
    }
}

const EXPOSED: Access = Access::READ.union(Access::WRITE);

/// Runs `bad` as a client of a server; then a good client is served as ever. Returns what the
/// server said of the bad one.
fn after(options: &str, exposed: Access, bad: impl FnOnce(Rogue, &mut Server)) -> String {
    let net = Net::new(2);
    let mut server = net.serve(1, server, &format!("clients=2 {options}"));
    bad(Rogue::new(&net.nic(0), net.address(1, true), exposed), &mut server);
    let line = format!("{} count=3 size=32 verify", net.address(1, true));
    net.run(0, client, &line).expect("it is served as ever");
    let (result, said) = server.end();
    assert_eq!(result, Err("1 of 2 clients failed".into()), "{said:?}");
    said.into_iter()
        .rfind(|line| !line.ends_with("3 pings, disconnected"))
        .expect("what it said of the bad one")
}

#[test]
fn a_client_may_leave_in_mid_exchange() {
    let said = after("", EXPOSED, |mut rogue, _| {
        rogue.advertise(SIZE, advert::LEN);
        rogue.go_ahead();
    });
    assert!(said.ends_with("ping 0: the peer disconnected"), "{said}");
}

#[test]
fn a_client_may_fall_silent() {
    let said = after("patience=1", EXPOSED, |mut rogue, _| {
        rogue.advertise(SIZE, advert::LEN);
        rogue.go_ahead();
        assert_eq!(rogue.ended(), Some(Ending::ByPeer));
    });
    assert!(said.ends_with("ping 0: nothing came from the peer for 1 s"), "{said}");
}

#[test]
fn messages_of_a_wrong_size_end_the_connection() {
    for (length, why) in [
        (15, "15 bytes, not 16"),
        (0, "0 bytes, not 16"),
        (17, "a message was longer than the memory for it"),
    ] {
        let said = after("", EXPOSED, |mut rogue, _| {
            rogue.advertise(SIZE, length);
            rogue.ended();
        });
        assert!(said.ends_with(why), "{length}: {said}");
    }
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    for (size, why) in [(33, "33 bytes; size=32 allows 1 to 32"), (0, "0 bytes; size=32 allows 1 to 32")] {
        let said = after("size=32", EXPOSED, |mut rogue, _| {
            rogue.advertise(size, advert::LEN);
            rogue.ended();
        });
        assert!(said.ends_with(why), "{size}: {said}");
    }
    // The memory for the echo is shorter than the text, which has no zero byte.
    let said = after("", EXPOSED, |mut rogue, _| {
        rogue.text.slice(..).write(&[b'x'; SIZE]);
        rogue.advertise(SIZE, advert::LEN);
        rogue.go_ahead();
        rogue.advertise(SIZE - 1, advert::LEN);
        rogue.ended();
    });
    assert!(said.ends_with("the echo has 63 bytes, and the text 64"), "{said}");
}

#[test]
fn memory_that_a_client_does_not_expose_is_not_reached() {
    let said = after("", Access::WRITE, |mut rogue, _| {
        rogue.advertise(SIZE, advert::LEN);
        rogue.ended();
    });
    assert!(said.contains("RDMA Read: the peer allows no such access"), "{said}");
    let said = after("", Access::READ, |mut rogue, _| {
        rogue.advertise(SIZE, advert::LEN);
        rogue.go_ahead();
        rogue.advertise(SIZE, advert::LEN);
        rogue.ended();
    });
    assert!(said.contains("RDMA Write: the peer allows no such access"), "{said}");
}

/// A server that sends a short go-ahead, and one that leaves.
#[test]
fn a_client_ends_with_a_server_that_fails() {
    for (answer, why) in [(15, "ping 0: the server's message has 15 bytes, not 16"), (0, "disconnected")] {
        let net = Net::new(2);
        let nic = net.nic(1);
        let said = std::thread::scope(|threads| {
            let listener = nic.listen(PORT).expect("a listener");
            let line = format!("{} count=1", net.address(1, true));
            let net = &net;
            let client = threads.spawn(move || net.run(0, client, &line));
            let request = listener.wait().expect("a request");
            let domain = nic.domain().expect("a domain");
            let message = domain.region(advert::LEN).expect("memory");
            let mut client_there = Connection::new(endpoint(&domain).expect("an endpoint"), PATIENCE);
            client_there.expect(message.slice(..)).expect("a Receive");
            let accepting = request.accept(&client_there.endpoint);
            client_there.established(accepting).expect("the client is there");
            assert_eq!(client_there.received().expect("an advert").len, advert::LEN);
            if answer > 0 {
                client_there.send(message.slice(..answer)).expect("a Send");
                client_there.endpoint.wait_closed(Some(PATIENCE)).expect("the client leaves");
            }
            drop(client_there);
            client.join().expect("it does not panic").expect_err("the server failed")
        });
        assert!(said.ends_with(why), "{said}");
    }
}

/// rdma_cm's requests have 36 bytes less for the consumer, and these arrive as they were sent.
#[test]
fn private_data_stands_behind_the_addresses() {
    let net = Net::new(2);
    let (here, there) = (net.nic(0), net.nic(1));
    let listener = there.listen(PORT).expect("a listener");
    for v4 in [true, false] {
        let endpoint = here.domain().and_then(|domain| endpoint(&domain)).expect("an endpoint");
        let data: Vec<u8> = (1..=57).collect();
        let connect = |data| endpoint.connect_with(net.address(1, v4).into(), PORT, data);
        assert_eq!(connect(&data).wait(), Err(ConnectError::PrivateData(56)));
        let connecting = connect(&data[..56]);
        let request = listener.wait().expect("a request");
        assert_eq!(request.private_data(), &data[..56]);
        assert_eq!(request.from().to_ip(), net.address(0, v4));
        drop(request);
        assert_eq!(connecting.wait(), Err(ConnectError::Rejected));
    }
}
