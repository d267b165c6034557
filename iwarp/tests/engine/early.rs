//! The first FPDUs of a stream, which may come in one piece with the Reply.

use iwarp::engine::{Cause, Close, Config, End, Event, Operation, Role};
use iwarp::mpa::frame::{Kind, Parser};
use iwarp::mpa::negotiation::{Wishes, accept, conclude, consider, request};

use iwarp::mpa::fpdu;
use iwarp::rdmap::terminate::{Code, Repr};

use super::order::SEND;
use super::world::{CONFIG, Node};

const WISHES: Wishes = Wishes { ird: 4, ord: 4, crc: true, private_data: 256 };

#[test]
fn fpdus_right_behind_a_reply_are_taken() {
    // The responder's end may send once it has an FPDU; Linux does so at once.
    let mut b = Node::new(CONFIG);
    b.post(SEND, b"first".to_vec());
    b.post(SEND, b"second".to_vec());
    let mut stream = [0; 600];
    let asked = request(&WISHES, b"private").unwrap();
    let (agreed, _) = consider(&asked.frame(), &WISHES, false).unwrap();
    let len = accept(&agreed, b"answer").unwrap().frame().emit(&mut stream).unwrap();
    let stream = [&stream[..len], &b.send_all()].concat();
    for cut in 0..stream.len() {
        let mut parser = Parser::new(Kind::Reply);
        let mut rest = Vec::new();
        for part in [&stream[..cut], &stream[cut..]] {
            let taken = parser.push(part).unwrap();
            rest.extend(&part[taken..]);
        }
        let reply = parser.frame().unwrap();
        let (agreed, private) = conclude(&reply, &WISHES).unwrap();
        assert_eq!(private, b"answer");
        let mut a = Node::new(Config { crc: agreed.crc, ord: agreed.ord, ird: agreed.ird, ..CONFIG });
        let receives = [a.receive(8), a.receive(8)];
        a.take(&rest);
        assert_eq!(a.device.receives[&receives[0]][..5], *b"first");
        assert_eq!(a.device.receives[&receives[1]][..6], *b"second");
    }
}

#[test]
fn an_fpdu_that_is_not_whole_does_not_establish() {
    let mut a = Node::new(CONFIG);
    a.post(SEND, b"first".to_vec());
    let bytes = a.send_all();
    let mut b = Node::new(Config { role: Role::Responder, ..CONFIG });
    b.receive(8);
    let mut wrong = bytes.clone();
    wrong[8] ^= 1;
    for byte in &wrong[..wrong.len() - 1] {
        b.take(&[*byte]);
        assert!(b.events.is_empty());
    }
    b.take(&wrong[wrong.len() - 1..]);
    assert!(!b.events.contains(&Event::Established));
    assert!(b.end().is_some());
    // A Terminate says what was wrong with it.
    assert_eq!(b.send_all().len(), fpdu::length(22));
    let mut b = Node::new(Config { role: Role::Responder, ..CONFIG });
    b.receive(8);
    b.take(&bytes);
    assert_eq!(b.events[0], Event::Established);
}

#[test]
fn a_responder_that_the_device_lets_speak_does_not_wait_for_the_initiator() {
    let mut b = Node::new(Config { role: Role::Responder, ..CONFIG });
    b.post(SEND, b"first".to_vec());
    assert!(b.engine.listens() && b.send_all().is_empty());
    b.engine.speak();
    assert!(!b.engine.listens());
    let mut a = Node::new(CONFIG);
    a.receive(8);
    a.take(&b.send_all());
    assert!(matches!(a.events[..], [Event::Received { length: 5, .. }]));
    // Once, whatever the initiator sends.
    a.post(SEND, b"second".to_vec());
    b.receive(8);
    b.take(&a.send_all());
    let established = b.events.iter().filter(|event| **event == Event::Established).count();
    assert_eq!(established, 1);
}

#[test]
fn an_initiator_announces_itself_again_but_not_inside_a_message() {
    let mut a = Node::new(CONFIG);
    let mut b = Node::new(Config { role: Role::Responder, ..CONFIG });
    let announcement = fpdu::length(14);
    for _ in 0..2 {
        a.engine.announce();
        let bytes = a.send_all();
        assert_eq!(bytes.len(), announcement);
        b.take(&bytes);
    }
    assert_eq!(b.events, [Event::Established]);
    assert!(!a.engine.has_heard() && b.engine.has_heard());
    // A message of two segments, of which a part has left: Linux takes no Write inside a Write.
    let whole = |interrupted: bool| {
        let mut a = Node::new(CONFIG);
        a.post(SEND, vec![7; usize::from(CONFIG.mulpdu)]);
        let mut bytes = a.send(64);
        if interrupted {
            a.engine.announce();
        }
        bytes.extend(a.send_all());
        bytes
    };
    assert_eq!(whole(true), whole(false));
}

#[test]
fn an_initiator_that_refuses_the_reply_establishes_nothing() {
    let mut b = Node::new(Config { role: Role::Responder, ..CONFIG });
    let refused = Repr::from(Code::MPA_IRD);
    let mut bytes = [0; 100];
    let len = refused.fpdu(true, &mut bytes).unwrap();
    b.take(&bytes[..len]);
    assert_eq!(b.events, [Event::Ended(End::Broken(Cause::Terminated(refused)))]);
}

#[test]
fn a_responder_that_fails_before_the_first_fpdu_closes_silently() {
    let mut b = Node::new(Config { role: Role::Responder, ..CONFIG });
    let local = b.post(Operation::Local, Vec::new());
    b.device.gone.push(local);
    assert!(b.send_all().is_empty());
    assert!(matches!(b.end(), Some(End::Broken(Cause::Refused(_)))));
    assert_eq!(b.engine.close(), Some(Close::Finish));
}
