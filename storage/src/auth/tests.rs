//! The two sides against each other, and the controller's side against any messages.

use std::vec::Vec;
use std::{format, vec};

use nvme::auth::hosts::{Choice, GROUPS, HASHES};
use nvme::auth::message::{Challenge, Failed, Negotiate, Reply, Success1, Success2};
use nvme::auth::{Digest, Group, Hash, Reason, Secret, Transaction};

use super::{Groups, Random};
use crate::initiator::Failure;
use crate::initiator::auth::{Authentication, Next, Requester};
use crate::target::auth::responder::{Given, Job, Keys, Names, Responder};

const HOST: &str = "nqn.2026-01.org.x:host";
const SUBSYSTEM: &str = "nqn.2026-01.org.x:disks";
const NAMES: Names<'static> = Names { host: HOST, subsystem: SUBSYSTEM };
/// The bytes 0 to 31, and the same as a secret that SHA-384 makes a key of.
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER: &str = "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const ID: u16 = 0x1234;

fn random() -> Random {
    Random::new(&host::Machine::new(1).platform()).expect("random numbers")
}

fn secret(text: &str) -> Secret {
    Secret::parse(text).expect("a secret")
}

fn keys(controller: bool) -> Keys {
    let controller = controller.then(|| secret(OTHER).key(SUBSYSTEM));
    Keys { host: secret(KEY).key(HOST), controller, hashes: HASHES, groups: GROUPS }
}

/// Carries a job out.
fn carry_out(responder: &mut Responder, job: Job) {
    let mut groups = Groups::default();
    let power = match job.value {
        None => groups.begin(job.group, job.exponent),
        Some(value) => groups.continued(job.group, &value, job.exponent),
    };
    let result = power.map(|mut power| {
        loop {
            if let Some(result) = power.step() {
                break result;
            }
        }
    });
    assert!(responder.is_computing() && responder.give(&mut [0; 2000]) == Given::Nothing);
    responder.computed(result, NAMES);
    assert!(!responder.is_computing());
}

fn take(responder: &mut Responder, message: &[u8]) {
    if let Some(job) = responder.take(message, &random(), NAMES) {
        carry_out(responder, job);
    }
}

fn give(responder: &mut Responder) -> Vec<u8> {
    let mut bytes = vec![0; 2000];
    let Given::Message(len) = responder.give(&mut bytes) else { panic!("no message") };
    bytes.truncate(len);
    bytes
}

/// Both sides, until the host is done.
fn dialogue(how: &Authentication, keys: Keys) -> (Result<(), Failure>, Responder) {
    let mut responder = Responder::new(keys, 7);
    let (host, subsystem, random) = (HOST, SUBSYSTEM, random());
    let mut requester = Requester { how, host, subsystem, random, id: ID, expected: None, hash: None };
    take(&mut responder, &requester.begin());
    loop {
        match requester.take(&give(&mut responder)) {
            Ok(Next::Send(message)) => take(&mut responder, &message),
            Ok(Next::Last(message, outcome)) => {
                take(&mut responder, &message);
                return (outcome, responder);
            }
            Ok(Next::Done) => return (Ok(()), responder),
            Err(failure) => return (Err(failure), responder),
        }
    }
}

#[test]
fn both_sides_agree_by_each_hash_function_and_group() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            for controller_key in [None, Some(secret(OTHER))] {
                let how = Authentication {
                    hashes: Choice::new([hash]).expect("one"),
                    groups: Choice::new([group]).expect("one"),
                    controller_key,
                    ..Authentication::new(secret(KEY))
                };
                let (outcome, responder) = dialogue(&how, keys(true));
                assert_eq!((outcome, responder.outcome()), (Ok(()), Some(Ok(()))), "{hash} {group}");
            }
        }
    }
}

#[test]
fn a_wrong_key_of_either_side_is_found() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let groups = Choice::new([group]).expect("one");
        let how = Authentication { groups, ..Authentication::new(secret(OTHER)) };
        let (outcome, responder) = dialogue(&how, keys(false));
        assert_eq!(outcome, Err(Failure::NotAuthenticated(Some(Reason::Failed))));
        assert_eq!(responder.outcome(), Some(Err(Reason::Failed)));
        let how =
            Authentication { groups, controller_key: Some(secret(KEY)), ..Authentication::new(secret(KEY)) };
        let (outcome, _) = dialogue(&how, keys(true));
        assert_eq!(outcome, Err(Failure::ControllerNotAuthenticated));
        // A controller without a key cannot prove anything.
        let (outcome, _) = dialogue(&how, keys(false));
        assert_eq!(outcome, Err(Failure::NotAuthenticated(Some(Reason::Failed))));
    }
}

#[test]
fn the_target_takes_its_favourite_of_what_the_host_proposes() {
    let mut choosy = keys(false);
    choosy.groups = Choice::new([Group::Ffdhe3072, Group::Null]).expect("two");
    choosy.hashes = Choice::new([Hash::Sha384]).expect("one");
    for (hashes, groups, expected) in [
        (&[1, 2, 3][..], &[0, 1, 2][..], Ok((Hash::Sha384, Group::Ffdhe3072))),
        (&[2], &[0], Ok((Hash::Sha384, Group::Null))),
        (&[1, 3], &[0], Err(Reason::Hash)),
        (&[2], &[1, 5], Err(Reason::Group)),
        (&[], &[0], Err(Reason::Hash)),
        (&[2], &[], Err(Reason::Group)),
    ] {
        let mut responder = Responder::new(choosy.clone(), 7);
        take(&mut responder, &negotiate(hashes, groups));
        let message = give(&mut responder);
        match expected {
            Ok(expected) => {
                let challenge = Challenge::parse(&message).expect("a challenge");
                assert_eq!((challenge.hash, challenge.group), expected);
                assert_eq!(challenge.value.len(), challenge.group.len());
            }
            Err(reason) => assert_eq!(Failed::parse(&message).expect("a failure").reason, Some(reason)),
        }
    }
}

fn negotiate(hashes: &[u8], groups: &[u8]) -> Vec<u8> {
    let mut bytes = [0; Negotiate::LEN];
    let len = Negotiate { id: ID, hashes, groups }.write(&mut bytes);
    bytes[..len].to_vec()
}

/// A transaction without an exchange, whose challenge was given, and the right reply.
fn asked(controller: bool) -> (Responder, Vec<u8>) {
    let mut responder = Responder::new(keys(true), 7);
    take(&mut responder, &negotiate(&[1], &[0]));
    let message = give(&mut responder);
    let challenge = Challenge::parse(&message).expect("a challenge");
    assert_eq!((challenge.sequence, challenge.id), (7, ID));
    let transaction =
        Transaction { hash: Hash::Sha256, id: ID, concatenation: 0, host: HOST, subsystem: SUBSYSTEM };
    let response = transaction.of_host(&secret(KEY).key(HOST), &Digest::new(challenge.challenge), 7);
    let asks = controller.then_some((&[9; 32][..], 3));
    let mut reply = vec![0; 200];
    let reply_of_host = Reply { id: ID, response: response.bytes(), challenge: asks, value: &[] };
    let len = reply_of_host.write(&mut reply);
    reply.truncate(len);
    (responder, reply)
}

/// Checks that a message makes a transaction fail, and that nothing helps after that.
fn fails(mut responder: Responder, message: &[u8], reason: Reason, what: &str) {
    take(&mut responder, message);
    assert_eq!(responder.failure(), Some(reason), "{what}");
    let (_, right) = asked(false);
    take(&mut responder, &right);
    let failed = give(&mut responder);
    assert_eq!(failed[..2], [0, 0xf1], "{what}");
    assert_eq!(Failed::parse(&failed), Ok(Failed { id: ID, reason: Some(reason) }), "{what}");
    assert_eq!(responder.outcome(), Some(Err(reason)), "{what}");
    assert_eq!(responder.give(&mut [0; 2000]), Given::Nothing, "{what}");
}

#[test]
fn a_proposal_with_any_fault_is_refused() {
    let right = negotiate(&[1, 2, 3], &[0]);
    let changed = |at: usize, byte: u8| {
        let mut bytes = right.clone();
        bytes[at] = byte;
        bytes
    };
    for (message, reason) in [
        (changed(6, 1), Reason::Concatenation),
        (changed(7, 0), Reason::Payload),
        (changed(7, 2), Reason::Payload),
        (changed(8, 2), Reason::Protocol),
        (changed(10, 31), Reason::Payload),
        (changed(11, 31), Reason::Payload),
        (changed(10, 0), Reason::Hash),
        (changed(11, 0), Reason::Group),
        (changed(0, 2), Reason::Message),
        (changed(1, 7), Reason::Message),
    ] {
        let mut responder = Responder::new(keys(false), 7);
        take(&mut responder, &message);
        assert_eq!(responder.failure(), Some(reason), "{message:?}");
    }
    for len in 0..right.len() {
        let mut responder = Responder::new(keys(false), 7);
        take(&mut responder, &right[..len]);
        assert_eq!(responder.failure(), Some(Reason::Payload), "{len} bytes");
    }
}

#[test]
fn a_reply_with_any_fault_is_refused() {
    let (_, right) = asked(true);
    for (at, byte, reason) in [
        (4, 0x35, Reason::Payload),
        (6, 48, Reason::Payload),
        (8, 2, Reason::Payload),
        (10, 1, Reason::Payload),
        (12, 0, Reason::Payload),
        (16, !right[16], Reason::Failed),
        (47, !right[47], Reason::Failed),
        (1, 1, Reason::Message),
        (1, 3, Reason::Message),
        (1, 4, Reason::Message),
    ] {
        let (responder, mut message) = asked(true);
        message[at] = byte;
        fails(responder, &message, reason, &format!("byte {at}"));
    }
    for len in 6..right.len() {
        let (responder, message) = asked(true);
        fails(responder, &message[..len], Reason::Payload, &format!("{len} bytes"));
    }
}

#[test]
fn messages_out_of_turn_are_refused() {
    let proposal = negotiate(&[1], &[0]);
    let (responder, _) = asked(true);
    fails(responder, &proposal, Reason::Message, "a second proposal");
    let (responder, _) = asked(true);
    fails(responder, &Success2 { id: ID }.bytes(), Reason::Message, "success before the reply");
    // The challenge is not fetched yet.
    let mut responder = Responder::new(keys(false), 7);
    take(&mut responder, &proposal);
    fails(responder, &asked(false).1, Reason::Message, "an early reply");
    let (mut responder, reply) = asked(true);
    take(&mut responder, &reply);
    let copy = reply.clone();
    fails(responder, &copy, Reason::Message, "the reply again");
}

#[test]
fn a_host_that_returns_the_challenge_gets_no_answer_to_it() {
    let (responder, mut reply) = asked(true);
    let mut again = Responder::new(keys(true), 7);
    take(&mut again, &negotiate(&[1], &[0]));
    let message = give(&mut again);
    let challenge = Challenge::parse(&message).expect("a challenge");
    reply[48..80].copy_from_slice(challenge.challenge);
    fails(again, &reply, Reason::Failed, "the challenge of the controller");
    drop(responder);
}

#[test]
fn the_host_has_passed_when_it_knows_and_the_controller_has_if_the_host_asked() {
    let (mut responder, reply) = asked(false);
    take(&mut responder, &reply);
    assert_eq!(responder.outcome(), None);
    let message = give(&mut responder);
    assert_eq!(Success1::parse(&message, Hash::Sha256).expect("success").response, None);
    assert_eq!(responder.outcome(), Some(Ok(())));
    for last in [Success2 { id: ID }.bytes().to_vec(), Failed { id: ID, reason: None }.bytes(true).to_vec()] {
        let (mut responder, reply) = asked(true);
        take(&mut responder, &reply);
        assert!(Success1::parse(&give(&mut responder), Hash::Sha256).expect("success").response.is_some());
        assert_eq!(responder.outcome(), None);
        take(&mut responder, &last);
        assert_eq!(responder.outcome(), Some(Ok(())));
    }
}

#[test]
fn a_message_for_which_there_is_no_room_stays() {
    let mut responder = Responder::new(keys(false), 7);
    take(&mut responder, &negotiate(&[1], &[1]));
    assert_eq!(responder.give(&mut [0; 100]), Given::NoRoom);
    assert_eq!(give(&mut responder).len(), 16 + 32 + 256);
    assert_eq!(responder.give(&mut [0; 2000]), Given::Nothing);
}

#[test]
fn a_value_that_makes_no_secret_is_refused() {
    let mut responder = Responder::new(keys(false), 7);
    take(&mut responder, &negotiate(&[1], &[1]));
    give(&mut responder);
    let mut value = [0; 256];
    value[255] = 1;
    let mut reply = vec![0; 16 + 64 + 256];
    Reply { id: ID, response: &[0; 32], challenge: None, value: &value }.write(&mut reply);
    take(&mut responder, &reply);
    assert_eq!(responder.failure(), Some(Reason::Payload));
}
