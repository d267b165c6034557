//! Requester and responder over networks with faults.

use roce::transport::{Config, Event, Extra, Limits, Message, Operation, Reason, Status};
use roce::{PathMtu, Psn};

use crate::world::{Fate, Random, Way, World, config, message};

const MTUS: [PathMtu; 5] = [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];

/// One of everything; several packets where that is possible.
fn mixture() -> Vec<Message> {
    let swap = Operation::CompareSwap { compare: 5, swap: 77 };
    let kinds = [
        (Operation::Send, 700, Extra::None),
        (Operation::Read, 900, Extra::None),
        (Operation::Write, 600, Extra::Immediate(4)),
        (Operation::FetchAdd { add: 5 }, 8, Extra::None),
        (Operation::Read, 0, Extra::None),
        (swap, 8, Extra::None),
        (Operation::Send, 1, Extra::Invalidate(9)),
        (Operation::Write, 0, Extra::None),
        (Operation::Read, 256, Extra::None),
        (Operation::Write, 257, Extra::None),
        (Operation::Send, 512, Extra::Immediate(1)),
    ];
    let ids = 0..;
    ids.zip(kinds).map(|(id, (op, length, extra))| Message { extra, ..message(id, op, length) }).collect()
}

/// Runs the mixture under these fates, and checks it.
#[track_caller]
fn run(config: &Config, fate: impl FnMut(Way, u32) -> Fate + 'static) -> World {
    let mut world = World::new(config);
    world.fate = Box::new(fate);
    world.post(mixture());
    world.run();
    world.check();
    world
}

#[test]
fn every_operation_moves_every_length_at_every_mtu() {
    for mtu in MTUS {
        for max_packets in [1, 7] {
            let mut world = World::new(&Config { mtu, ..config() });
            world.max_packets = max_packets;
            let size = mtu.bytes();
            let mut messages = Vec::new();
            let extras = [Extra::None, Extra::Immediate(1), Extra::Invalidate(2)];
            for length in [0, 1, size - 1, size, size + 1, 2 * size, 20 * size + 3] {
                for extra in extras {
                    let id = messages.len() as u32;
                    messages.push(Message { extra, ..message(id, Operation::Send, length) });
                    if !matches!(extra, Extra::Invalidate(_)) {
                        messages.push(Message { extra, ..message(id + 1, Operation::Write, length) });
                    }
                    let id = messages.len() as u32;
                    messages.push(message(id, Operation::Read, length));
                    messages.push(message(id + 1, Operation::FetchAdd { add: 3 }, 8));
                }
            }
            world.post(messages);
            world.run();
            world.check();
            assert_eq!(world.reasons.len(), 0, "{:?}", world.reasons);
        }
    }
}

#[test]
fn each_single_packet_may_be_lost_repeated_or_late() {
    let clean = run(&config(), |_, _| Fate::Arrives);
    assert!(clean.reasons.is_empty() && clean.sent[0] > 15 && clean.sent[1] > 10);
    for way in [Way::ToResponder, Way::ToRequester] {
        for n in 0..clean.sent[way as usize] {
            for fate in [Fate::Lost, Fate::Twice, Fate::Late(1), Fate::Late(2), Fate::Late(5)] {
                for window in [1, 3, 16] {
                    let config = Config { window, ..config() };
                    run(&config, move |w, k| if (w, k) == (way, n) { fate } else { Fate::Arrives });
                }
            }
        }
    }
}

#[test]
fn each_pair_of_packets_may_be_lost() {
    let clean = run(&config(), |_, _| Fate::Arrives);
    let all: Vec<_> = [Way::ToResponder, Way::ToRequester]
        .into_iter()
        .flat_map(|way| (0..clean.sent[way as usize] + 6).map(move |n| (way, n)))
        .collect();
    for one in all.clone() {
        for other in all.clone() {
            let lost = move |w, k| [one, other].contains(&(w, k));
            run(&config(), move |w, k| if lost(w, k) { Fate::Lost } else { Fate::Arrives });
        }
    }
}

#[test]
fn a_lost_packet_of_an_rdma_read_s_answer_is_asked_for_with_what_follows() {
    // First, middle, last.
    for (lost, asked) in [(0, 1000), (2, 1000 - 512), (3, 1000 - 768)] {
        let mut world = World::new(&config());
        world.fate = Box::new(move |way, n| match (way, n) {
            (Way::ToRequester, n) if n == lost => Fate::Lost,
            _ => Fate::Arrives,
        });
        world.post([message(0, Operation::Read, 1000)]);
        world.run();
        world.check();
        // The answer had four packets.
        assert_eq!(world.sent, [2, 4 + 4 - lost], "{asked}");
        let reason = if lost == 3 { Reason::LocalAckTimeoutErr } else { Reason::ImpliedNakSeqErr };
        assert_eq!((world.counted(reason), world.counted(Reason::DuplicateRequest)), (1, 1));
        assert_eq!(world.executions, 1);
    }
}

#[test]
fn little_is_sent_for_nothing_when_many_packets_of_long_reads_are_lost() {
    const READS: u32 = 16;
    const PACKETS: u32 = 128;
    // By window and losses in thousand: at most so many times what is needed.
    for (lost, times) in [(0, 1), (1, 2), (10, 3), (30, 4)] {
        let mut config = config();
        config.limits.max_rd_atomic = 8;
        let mut world = World::new(&config);
        let mut random = Random::new(u64::from(lost));
        world.fate = Box::new(move |_, _| if random.below(1000) < lost { Fate::Lost } else { Fate::Arrives });
        world.post((0..READS).map(|id| message(id, Operation::Read, PACKETS * 256)));
        world.run();
        world.check();
        let [asked, answered] = world.sent;
        println!("{lost} of 1000 lost: {asked} requests, {answered} packets of answers");
        assert!(answered <= times * READS * PACKETS, "{lost}: {answered}");
        assert!(lost > 0 || asked == READS, "without a loss nothing is divided");
    }
}

#[test]
fn a_lost_answer_of_an_atomic_operation_is_given_again() {
    let mut world = World::new(&config());
    world.fate = Box::new(|way, n| match (way, n) {
        (Way::ToRequester, 0..3) => Fate::Lost,
        _ => Fate::Arrives,
    });
    world.post([message(0, Operation::FetchAdd { add: 9 }, 8)]);
    world.run();
    world.check();
    assert_eq!((world.executions, world.counted(Reason::DuplicateRequest)), (1, 3));
    assert_eq!(world.counted(Reason::LocalAckTimeoutErr), 3);
}

#[test]
fn a_lost_tail_and_a_lost_acknowledgement_are_found_by_the_timeout() {
    for way in [Way::ToResponder, Way::ToRequester] {
        let mut world = World::new(&config());
        let last = if way == Way::ToResponder { 2 } else { 0 };
        world.fate = Box::new(move |w, n| if (w, n) == (way, last) { Fate::Lost } else { Fate::Arrives });
        world.post([message(0, Operation::Send, 700)]);
        world.run();
        world.check();
        // All three packets: only the last asked for an acknowledgement.
        assert_eq!(world.sent[0], 6);
        assert_eq!(world.counted(Reason::LocalAckTimeoutErr), 1);
    }
}

#[test]
fn a_gap_brings_one_nak_and_what_follows_again() {
    let mut world = World::new(&Config { window: 64, ..config() });
    world.fate = Box::new(|way, n| match (way, n) {
        (Way::ToResponder, 3) => Fate::Lost,
        _ => Fate::Arrives,
    });
    // All are on their way before the first NAK comes back.
    world.post([message(0, Operation::Write, 20 * 256)]);
    world.run();
    world.check();
    assert_eq!(world.counted(Reason::PacketSeqErr), 1);
    assert_eq!(world.sent[0], 20 + 17);
    assert_eq!(world.counted(Reason::LocalAckTimeoutErr), 0);
}

/// A random stream over a network with random faults.
fn random_stream(seed: u64, faults: u32, retries: Option<(u8, u8)>) -> World {
    let mut random = Random::new(seed);
    let mtu = MTUS[random.below(3) as usize];
    let mut config = Config {
        psn: Psn::new(
            0xff_ffff_u32.wrapping_sub(random.below(200)).wrapping_add(random.below(2) * 0x80_0000),
        ),
        mtu,
        depth: 1 + random.below(24) as u16,
        window: 1 + random.below(40),
        credits: random.one_in(3),
        ..config()
    };
    config.limits.max_rd_atomic = 1 + random.below(5) as u8;
    if let Some((retry_count, rnr_retry)) = retries {
        config.limits = Limits { retry_count, rnr_retry, ..config.limits };
    }
    let mut world = World::new(&config);
    world.max_packets = if random.one_in(4) { 2 + random.below(9) } else { 1 };
    if config.credits || random.one_in(3) {
        world.receives = Some(random.below(3));
    }
    world.not_ready = random.below(4);
    let messages = 1 + random.below(40);
    for id in 0..messages {
        let length = match random.below(4) {
            0 => random.below(3),
            1 => (random.below(5) * mtu.bytes() + random.below(3)).saturating_sub(1),
            _ => random.below(6 * mtu.bytes()),
        };
        let word = random.below(4).into();
        let operation = match random.below(7) {
            0 | 1 => Operation::Send,
            2 | 3 => Operation::Write,
            4 | 5 => Operation::Read,
            _ if random.one_in(2) => Operation::FetchAdd { add: word },
            _ => Operation::CompareSwap { compare: word, swap: word + 1 },
        };
        // Long enough to be divided after a loss.
        let long = operation == Operation::Read && random.one_in(4);
        let length = if long { random.below(80 * mtu.bytes()) } else { length };
        let extra = match (operation, random.below(4)) {
            (Operation::Send | Operation::Write, 0) => Extra::Immediate(id),
            (Operation::Send, 1) => Extra::Invalidate(id),
            _ => Extra::None,
        };
        let fence = random.one_in(5);
        world.post([Message { extra, fence, ..message(id, operation, length) }]);
    }
    let [lost, twice, late] = [0; 3].map(|_| if random.one_in(2) { 0 } else { 1 + random.below(faults) });
    let mut fates = random.clone();
    world.fate = Box::new(move |_, _| match fates.below(100) {
        n if n < lost => Fate::Lost,
        n if n < lost + twice => Fate::Twice,
        n if n < lost + twice + late => Fate::Late(1 + fates.below(6)),
        _ => Fate::Arrives,
    });
    let mut pulls = random.clone();
    let lazy = 1 + random.below(4);
    world.pull = Box::new(move || pulls.one_in(lazy));
    world
}

#[test]
fn each_message_arrives_once_in_order_and_intact_whatever_the_network_does() {
    let (mut packets, mut retries) = (0, 0);
    let mut counted = std::collections::BTreeMap::<_, u32>::new();
    for seed in 0..if cfg!(miri) { 3 } else { 6000 } {
        let result = std::panic::catch_unwind(|| {
            let mut world = random_stream(seed, 8, None);
            world.run();
            world.check();
            world
        });
        let world = result.unwrap_or_else(|_| panic!("seed {seed}"));
        packets += world.sent[0];
        retries += world.counted(Reason::LocalAckTimeoutErr);
        for (name, n) in world.reasons {
            *counted.entry(name).or_default() += n;
        }
    }
    println!("{packets} packets, {counted:?}");
    assert!(cfg!(miri) || (retries > 100 && counted.len() >= 9), "{counted:?}");
}

#[test]
fn what_is_complete_is_right_even_if_a_retry_count_runs_out() {
    let mut failures = 0;
    for seed in 0..if cfg!(miri) { 3 } else { 3000 } {
        let result = std::panic::catch_unwind(|| {
            let mut world = random_stream(seed, 30, Some((seed as u8 % 3, 1)));
            world.run();
            let complete = world.check_complete();
            let failed = world.events.len() > complete;
            assert_eq!(failed, complete < world.posted.len());
            if let Some(Event::Failed { status, .. }) = world.events.last() {
                assert!(
                    matches!(status, Status::RetryExceeded | Status::RnrRetryExceeded),
                    "{status:?} {:?}",
                    world.refused
                );
            }
            failed
        });
        failures += u32::from(result.unwrap_or_else(|_| panic!("seed {seed}")));
    }
    println!("{failures} failures");
    assert!(cfg!(miri) || (failures > 100 && failures < 2900));
}

#[test]
fn a_refusal_of_the_responder_ends_both_sides() {
    let refusals = [
        (Reason::RespRemoteAccessErrors, Status::RemoteAccess),
        (Reason::RespOperationalError, Status::RemoteOperation),
        (Reason::RespLocalLengthError, Status::RemoteInvalidRequest),
    ];
    for (reason, status) in refusals {
        for after in 0..15 {
            let mut world = World::new(&config());
            world.outcome = Some((after, reason));
            world.post(mixture());
            world.run();
            let complete = world.check_complete();
            let id = complete as u32;
            assert_eq!(world.events.last(), Some(&Event::Failed { id, status }), "{after}");
            assert_eq!(world.refused, [reason]);
            let mut flushed = id;
            while let Some(id) = world.requester.flush() {
                flushed += 1;
                assert_eq!(id, flushed);
            }
        }
    }
}

#[test]
fn a_network_that_is_gone_is_noticed_after_all_retries() {
    for retry_count in [0, 1, 7] {
        let mut config = config();
        config.limits.retry_count = retry_count;
        let mut world = World::new(&config);
        world.fate = Box::new(|_, _| Fate::Lost);
        world.post([message(0, Operation::Send, 10), message(1, Operation::Send, 10)]);
        let start = world.now;
        world.run();
        assert_eq!(world.events, [Event::Failed { id: 0, status: Status::RetryExceeded }]);
        let tries = u32::from(retry_count) + 1;
        // The window is one packet after four halvings.
        assert_eq!(world.sent, [tries + tries.min(4), 0]);
        // The timer waits once, twice, and then four times as long as the connection's timeout.
        let waits = (0..tries).map(|n| 1 << n.min(2)).sum::<u32>();
        assert_eq!(world.now.since(start), config.limits.timeout.duration() * waits);
        assert_eq!(world.counted(Reason::LocalAckTimeoutErr), tries);
    }
}

#[test]
fn a_receiver_that_never_is_ready_is_given_up_after_the_rnr_retries() {
    for (rnr_retry, not_ready, ends) in
        [(0, 1, false), (0, 0, true), (3, 3, true), (3, 4, false), (7, 500, true)]
    {
        let mut config = config();
        config.limits.rnr_retry = rnr_retry;
        let mut world = World::new(&config);
        world.not_ready = not_ready;
        world.post([message(0, Operation::Write, 10), message(1, Operation::Send, 600)]);
        world.run();
        assert_eq!(world.counted(Reason::OutOfBuffer), not_ready);
        assert_eq!(world.counted(Reason::RnrNakRetryErr), not_ready);
        if ends {
            world.check();
        } else {
            assert_eq!(world.check_complete(), 1);
            let failure = Event::Failed { id: 1, status: Status::RnrRetryExceeded };
            assert_eq!(world.events.last(), Some(&failure));
        }
    }
}
