//! With random input from the driver, the device never panics, always becomes idle, and accesses
//! only regions and rings.

use nic_abi::admin::{self, Command};
use nic_abi::doorbell::Kind;
use nic_abi::ident::qpn_slot;
use nic_abi::registers;
use nic_abi::wqe::{self, Header};
use nic_model::GuestMemory;
use proptest::prelude::*;

use nic_model::testing::{MEMORY, PD, Qp, QpSpec, Rig, header, rdma, segment, stride};

/// Memory that is in no region or ring: it must not change.
struct Canary {
    at: u64,
    bytes: Vec<u8>,
}

impl Canary {
    fn new(rig: &mut Rig) -> Canary {
        let at = rig.alloc(8192);
        rig.fill(at, 8192, 77);
        Canary { at, bytes: rig.bytes(at, 8192) }
    }

    fn check(&self, rig: &Rig) {
        assert!(rig.bytes(self.at, 8192) == self.bytes, "memory outside all regions and rings changed");
    }
}

/// Words that are likely to be valid somewhere: small numbers, object numbers, addresses; sometimes
/// any word.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..20,
        2 => Just(0),
        1 => (0_u64..64).prop_map(|bit| 1 << bit),
        1 => (0_u64..64).prop_map(|bit| (1_u64 << bit).wrapping_sub(1)),
        1 => any::<u64>(),
    ]
}

/// The bytes of a small structure, word by word or byte by byte.
fn bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    let words = prop::collection::vec(word(), len / 8)
        .prop_map(|words| words.iter().flat_map(|w| w.to_le_bytes()).collect());
    let halves = prop::collection::vec(word(), len / 4)
        .prop_map(|words| words.iter().flat_map(|w| (*w as u32).to_le_bytes()).collect());
    prop_oneof![words, halves, prop::collection::vec(any::<u8>(), len)]
}

fn scene() -> (Rig, Qp, Qp, Canary) {
    let mut rig = Rig::new(2);
    let (a, b) =
        rig.pair_of(0, 1, QpSpec { flags: nic_abi::admin::QpFlags::PRIVILEGED, ..QpSpec::default() });
    rig.region(0, 4096);
    rig.region(1, 4096);
    let canary = Canary::new(&mut rig);
    (rig, a, b, canary)
}

/// Lets time pass until all retries are used up.
fn settle(rig: &mut Rig) {
    for _ in 0..20 {
        rig.advance(1 << 26);
    }
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 3 } else { 1000 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_send_entries(entries in prop::collection::vec((bytes(64), any::<bool>()), 1..12)) {
        // Unprivileged, so that no bus address of its own is allowed.
        let mut rig = Rig::new(2);
        let (mut a, mut b) = rig.pair();
        let (key, _) = rig.region(0, 4096);
        let (far, _) = rig.region(1, 4096);
        let canary = Canary::new(&mut rig);
        rig.post_receive(&mut b, 1, &[segment(far, 0, 4096)]);
        let posted = entries.len();
        for (mut bytes, tame) in entries {
            if tame {
                // A header that passes the first checks.
                bytes[1] &= 0x3f;
                bytes[2] %= 3;
                bytes[3] = 1;
                bytes[24..32].fill(0);
                bytes[16..24].copy_from_slice(&8_u64.to_le_bytes());
                bytes[12..16].copy_from_slice(&far.to_le_bytes());
                bytes[44..48].copy_from_slice(&key.to_le_bytes());
            }
            let at = a.send_ring + u64::from(a.send_tail) * wqe::BLOCK as u64;
            rig.memory.write(at, &bytes).unwrap();
            a.send_tail += 1;
        }
        rig.ring_send(&a);
        rig.run();
        settle(&mut rig);
        canary.check(&rig);
        let mut completions = 0;
        while rig.poll_cq(&mut a.send_cq).is_some() {
            completions += 1;
        }
        prop_assert!(completions <= posted);
        prop_assert_eq!(rig.query(&a).send_head, a.send_tail);
        rig.command(0, admin::Opcode::DestroyQp, a.qpn, &()).unwrap();
    }

    #[test]
    fn random_receive_entries(entries in prop::collection::vec(bytes(stride() as usize), 1..6)) {
        let mut rig = Rig::new(2);
        let (mut a, mut b) = rig.pair();
        let (from, _) = rig.region(0, 4096);
        let canary = Canary::new(&mut rig);
        for bytes in &entries {
            let at = b.receive_ring + u64::from(b.receive_tail) * u64::from(stride());
            rig.memory.write(at, bytes).unwrap();
            b.receive_tail += 1;
        }
        rig.ring(1, Kind::Receive, qpn_slot(b.qpn), b.receive_tail);
        for tag in 0..6 {
            rig.post(&mut a, header(wqe::Opcode::Send, tag), &[segment(from, 0, 24)]);
        }
        rig.run();
        settle(&mut rig);
        canary.check(&rig);
        let mut completions = 0;
        while rig.poll_cq(&mut b.receive_cq).is_some() {
            completions += 1;
        }
        prop_assert!(completions <= entries.len());
    }

    #[test]
    fn random_commands(
        commands in prop::collection::vec((0_u16..0x90, word(), bytes(admin::ARGS_SIZE)), 1..60)
    ) {
        let (mut rig, mut a, _b, _) = scene();
        for (opcode, object, args) in commands {
            let object = object as u32;
            let mut command =
                Command { opcode, flags: 0, id: 1, object, reserved: 0, args: [0; admin::ARGS_SIZE] };
            command.args.copy_from_slice(&args);
            // Not tested here: a device that is mute or failed, and a copy of 2^32 rounds.
            let inject = opcode == admin::Opcode::Inject as u16;
            if opcode == admin::Opcode::Bench as u16 || inject && args[0] <= 2 {
                continue;
            }
            let response = rig.raw_command(0, &command);
            if rig.state(0) == registers::State::Ready as u32 {
                let response = response.expect("an answer");
                prop_assert!(admin::Status::from_word(response.status).is_some());
            }
        }
        rig.post(&mut a, header(wqe::Opcode::Send, 1), &[]);
        settle(&mut rig);
    }

    #[test]
    fn random_registers(writes in prop::collection::vec((0_usize..registers::SIZE / 4, word()), 1..300)) {
        let (mut rig, mut a, _b, canary) = scene();
        for (at, value) in writes {
            // Registers of the driver, and those of the device.
            rig.register(0, at * 4).store(value as u32, std::sync::atomic::Ordering::Relaxed);
            if value & 7 == 0 {
                rig.push_doorbell(0, Kind::Send, value as u32 >> 3 & 0x3fff);
            }
            rig.run();
        }
        a.send_tail = a.send_tail.wrapping_add(1);
        rig.ring_send(&a);
        rig.run();
        settle(&mut rig);
        canary.check(&rig);
        rig.control(0, registers::CONTROL_RESET);
        rig.start(0);
    }

    #[test]
    fn random_lists(
        elements in prop::collection::vec(any::<u64>().prop_map(|e| e % (MEMORY * 2)), 1..40),
        length in word(),
        element_length in word(),
        offset in word(),
        flags in 0_u32..0x1000,
        base in word(),
    ) {
        let mut rig = Rig::new(1);
        let at = rig.alloc(4096);
        rig.memory.write(at, zerocopy::IntoBytes::as_bytes(elements.as_slice())).unwrap();
        let key = rig.fresh_key();
        let list = wqe::ListArgs {
            list: at,
            element_length,
            first_byte_offset: offset,
            elements: elements.len() as u32,
            remote: key,
        };
        let args = admin::RegisterRegion { pd: PD, flags, base, length, list };
        let registered = rig.command(0, admin::Opcode::RegisterRegion, key, &args).is_ok();
        let (mut a, _b) = rig.pair();
        let seg = segment(key, base.wrapping_add(length / 2), (length / 2).min(1 << 20) as u32);
        let (to, _) = rig.region(0, 1 << 20);
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[seg]);
        let sent = rig.sent(&mut a);
        if !registered && seg.length > 0 {
            prop_assert_ne!(sent.status, 0);
        }
        prop_assert_eq!(size_of::<Header>(), 32);
    }
}
