//! Client and server against each other, and each against peers that do not follow the protocol.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::*;
use crate::advert::Advert;
use crate::net::Service;
use crate::objects::{End, Objects, Patience, Region};
use crate::testing::{Net, Server};
use crate::{Host, net};
use privileged_api::{ConnQual, MAX_RDMA_CONNECT_DATA, MemPriv};

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
        ("224.0.0.1".into(), "it_get_pathinfo"),
    ] {
        let said: String = net.run(0, client, &line).expect_err(&line);
        assert!(said.contains(words), "{line}: {said}");
    }
    assert!(net.run(1, server, "10.0.0.1").expect_err("no such word").contains("10.0.0.1"));
}

/// A client of rping's that does what a test wants.
struct Rogue<'a> {
    objects: Objects<'a>,
    n: usize,
    message: Region,
    answer: Region,
    text: Region,
}

/// What [`Rogue`] has as its text.
const SIZE: usize = 64;

impl<'a> Rogue<'a> {
    fn new(host: &Host<'a>, server: core::net::IpAddr, exposed: MemPriv) -> Rogue<'a> {
        let patience = Patience(30_000_000);
        let mut objects = Objects::new(host, TRANSFERS, 1, patience).expect("objects");
        let message = objects.memory(2 * Advert::LEN, MemPriv::LOCAL).expect("memory");
        let answer = objects.memory(Advert::LEN, MemPriv::LOCAL).expect("memory");
        let text = objects.memory(SIZE, exposed).expect("memory");
        let n = objects.endpoint(&attributes(true)).expect("an endpoint");
        objects.post_receive(n, &answer).expect("a Receive");
        let path = net::path(host.ia, server).expect("a path");
        objects.connect(n, &path, Service::Tcp(PORT)).expect("a request");
        objects.established(n).expect("a connection");
        Rogue { objects, n, message, answer, text }
    }

    /// Sends an advert of `size` bytes of the text, in a message of `length` bytes.
    fn advertise(&self, size: usize, length: usize) {
        let address = self.text.buffer.addr() as u64;
        let advert = Advert { address, key: u32::from_be(self.text.context.0), size: size as u32 };
        self.message.buffer.write(0, &advert.emit()).expect("in bounds");
        self.objects.post_send(self.n, &self.message, length).expect("a Send");
    }

    /// Waits for the server's go-ahead.
    fn go_ahead(&mut self) {
        assert_eq!(self.objects.received(self.n).expect("a go-ahead"), Advert::LEN);
        self.objects.post_receive(self.n, &self.answer).expect("a Receive");
    }

    /// Waits until the server has ended the connection.
    fn ended(&mut self) -> End {
        self.objects.until(self.n, |connection| connection.end.take()).expect("an end")
    }
}

const EXPOSED: MemPriv = MemPriv::LOCAL.union(MemPriv::REMOTE);

/// Runs `bad` as a client of a server; then a good client is served as ever. Returns what the
/// server said of the bad one.
fn after(options: &str, exposed: MemPriv, bad: impl FnOnce(Rogue<'_>, &mut Server)) -> String {
    let net = Net::new(2);
    let mut server = net.serve(1, server, &format!("clients=2 {options}"));
    let ia = net.ia(0);
    let host = Host { ia: &ia, platform: &net.node.platform, say: &mut |_| () };
    bad(Rogue::new(&host, net.address(1, true), exposed), &mut server);
    let line = format!("{} count=3 size=32 verify", net.address(1, true));
    net.run(0, client, &line).expect("it is served as ever");
    let (result, said) = server.end();
    assert_eq!(result, Err("1 of 2 clients failed".into()), "{said:?}");
    ia.ia_free().expect("the IA is free");
    said.into_iter()
        .rfind(|line| !line.ends_with("3 pings, disconnected"))
        .expect("what it said of the bad one")
}

#[test]
fn a_client_may_leave_in_mid_exchange() {
    let said = after("", EXPOSED, |mut rogue, _| {
        rogue.advertise(SIZE, Advert::LEN);
        rogue.go_ahead();
    });
    assert!(said.ends_with("ping 0: the peer disconnected"), "{said}");
}

#[test]
fn a_client_may_fall_silent() {
    let said = after("patience=1", EXPOSED, |mut rogue, _| {
        rogue.advertise(SIZE, Advert::LEN);
        rogue.go_ahead();
        assert_eq!(rogue.ended(), End::Disconnected);
    });
    assert!(said.ends_with("ping 0: nothing came from the peer for 1 s"), "{said}");
}

#[test]
fn messages_of_a_wrong_size_end_the_connection() {
    for (length, why) in [(15, "15 bytes, not 16"), (0, "0 bytes, not 16"), (17, "LocalLength")] {
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
            rogue.advertise(size, Advert::LEN);
            rogue.ended();
        });
        assert!(said.ends_with(why), "{size}: {said}");
    }
    // The memory for the echo is shorter than the text, which has no zero byte.
    let said = after("", EXPOSED, |mut rogue, _| {
        rogue.text.buffer.slice().fill(b'x');
        rogue.advertise(SIZE, Advert::LEN);
        rogue.go_ahead();
        rogue.advertise(SIZE - 1, Advert::LEN);
        rogue.ended();
    });
    assert!(said.ends_with("the echo has 63 bytes, and the text 64"), "{said}");
}

#[test]
fn memory_that_a_client_does_not_expose_is_not_reached() {
    let said = after("", MemPriv::LOCAL | MemPriv::REMOTE_WRITE, |mut rogue, _| {
        rogue.advertise(SIZE, Advert::LEN);
        rogue.ended();
    });
    assert!(said.ends_with("IT_DTO_RDMA_READ_CMPL_EVENT: RemoteAccess"), "{said}");
    let said = after("", MemPriv::LOCAL | MemPriv::REMOTE_READ, |mut rogue, _| {
        rogue.advertise(SIZE, Advert::LEN);
        rogue.go_ahead();
        rogue.advertise(SIZE, Advert::LEN);
        rogue.ended();
    });
    assert!(said.ends_with("IT_DTO_RDMA_WRITE_CMPL_EVENT: RemoteAccess"), "{said}");
}

/// A server that sends a short go-ahead, and one that leaves.
#[test]
fn a_client_ends_with_a_server_that_fails() {
    for (answer, why) in [(15, "ping 0: the server's message has 15 bytes, not 16"), (0, "disconnected")] {
        let net = Net::new(2);
        let ia = net.ia(1);
        let mut host = Host { ia: &ia, platform: &net.node.platform, say: &mut |_| () };
        let said = std::thread::scope(|threads| {
            let listener = net::Listener::new(&mut host, Service::Tcp(PORT)).expect("a listener");
            let line = format!("{} count=1", net.address(1, true));
            let net = &net;
            let client = threads.spawn(move || net.run(0, client, &line));
            let request = ia.evd_wait(listener.requests, 30_000_000).expect("a request").0;
            let privileged_api::Event::ConnRequest(request) = request else { panic!("{request:?}") };
            let mut objects = Objects::new(&host, TRANSFERS, 1, Patience(30_000_000)).expect("objects");
            let message = objects.memory(Advert::LEN, MemPriv::LOCAL).expect("memory");
            let n = objects.endpoint(&attributes(false)).expect("an endpoint");
            objects.post_receive(n, &message).expect("a Receive");
            objects.accept(n, &request).expect("it is there");
            objects.established(n).expect("the client is there");
            assert_eq!(objects.received(n).expect("an advert"), Advert::LEN);
            if answer > 0 {
                objects.post_send(n, &message, answer).expect("a Send");
                objects.until(n, |connection| connection.end).expect("the client leaves");
            }
            drop(objects);
            client.join().expect("it does not panic").expect_err("the server failed")
        });
        assert!(said.ends_with(why), "{said}");
    }
}

/// rdma_cm's requests have 36 bytes less for the consumer, and these arrive as they were sent.
#[test]
fn private_data_stands_behind_the_addresses() {
    let net = Net::new(2);
    let (a, b) = (net.ia(0), net.ia(1));
    let mut there = Host { ia: &b, platform: &net.node.platform, say: &mut |_| () };
    let here = Host { ia: &a, platform: &net.node.platform, say: &mut |_| () };
    let service = ConnQual::rdma_tcp(PORT);
    let listener = net::Listener::new(&mut there, Service::Tcp(PORT)).expect("a listener");
    for v4 in [true, false] {
        let mut objects = Objects::new(&here, TRANSFERS, 1, Patience(30_000_000)).expect("objects");
        let n = objects.endpoint(&attributes(true)).expect("an endpoint");
        let path = net::path(&a, net.address(1, v4)).expect("a path");
        let connect = |data: &[u8]| {
            let ways = privileged_api::CnEstFlags::TWO_WAY;
            a.ep_connect(objects.connections[n].ep, &path, None, &service, ways, data)
        };
        let data: Vec<u8> = (1..=MAX_RDMA_CONNECT_DATA as u8 + 1).collect();
        assert_eq!(connect(&data), Err(privileged_api::Error::InvalidPdataLength));
        connect(&data[..MAX_RDMA_CONNECT_DATA]).expect("as much as fits");
        let request = b.evd_wait(listener.requests, 30_000_000).expect("a request").0;
        let privileged_api::Event::ConnRequest(request) = request else { panic!("{request:?}") };
        assert_eq!(request.private_data.as_deref(), Some(&data[..MAX_RDMA_CONNECT_DATA]));
        assert_eq!((request.conn_qual, net::ip(&request.source_addr)), (service, Some(net.address(0, v4))));
        b.reject(request.cn_est_id, &[]).expect("it waits");
        let end = objects.until(n, |connection| connection.end).expect("an end");
        assert_eq!(end, End::Refused);
    }
}
