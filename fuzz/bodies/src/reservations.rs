//! Commands by which hosts share a namespace, with any keys, and the state that persists, torn and
//! changed.
//!
//! What must hold: no command and no state makes the target panic; a command that fails changes
//! nothing, and one of a host without the right key fails; a holder is registered, and who may not
//! write is not the holder; a state that was written whole is there after a restart, and one that
//! was torn leaves the state before it.

use nvme::command::{Command, opcode};
use nvme::reservation::{RegisterKeys, Type};
use storage::testing::Sharing;
use zerocopy::IntoBytes;

use crate::Input;

const STEPS: usize = 64;
const HOSTS: u8 = 5;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut sharing = Sharing::default();
    // The empty state, in the first slot.
    sharing.slots = [vec![0; 512], vec![0; 512]];
    let mut durable = sharing.persistent();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(8) {
            0 => {
                sharing.save();
                durable = sharing.persistent();
            }
            1 => {
                restart(&mut sharing);
                assert_eq!(sharing.persistent(), durable, "a state that was written whole");
            }
            2 => {
                let before = durable.clone();
                let slot = sharing.save();
                // Disks write blocks whole. Here they have 8 bytes, so that states have several.
                let kept = 8 * input.below(25);
                // The rest of the slot is what it held before, or was never written.
                sharing.slots[slot][kept..].fill(0);
                let after = sharing.persistent();
                restart(&mut sharing);
                durable = sharing.persistent();
                assert!(durable == before || durable == after, "a torn state is neither of two");
            }
            _ => command(&mut sharing, &mut input),
        }
        check(&sharing);
    }
    // Whatever the slots hold.
    for slot in &mut sharing.slots {
        for _ in 0..input.below(4) {
            let at = usize::from(u16::from_le_bytes([input.byte(), input.byte()])) % slot.len();
            slot[at] = input.byte();
        }
    }
    if sharing.restart().is_ok() {
        check(&sharing);
    }
}

fn restart(sharing: &mut Sharing) {
    sharing.restart().expect("of two slots one is whole");
}

fn command(sharing: &mut Sharing, input: &mut Input<'_>) {
    let host = input.byte() % HOSTS;
    let codes = [
        opcode::io::RESERVATION_REGISTER,
        opcode::io::RESERVATION_ACQUIRE,
        opcode::io::RESERVATION_RELEASE,
        opcode::io::RESERVATION_REPORT,
    ];
    let code = input.pick(&codes).unwrap_or_default();
    // The action, Ignore Existing Key, the type, what becomes of the persistence.
    let word = match input.rarely(8) {
        true => input.word() as u32,
        false => {
            let (action, kind) = (u32::from(input.byte() & 0xb), 1 + input.below(6) as u32);
            action | kind << 8 | u32::from(input.byte() & 3) << 30
        }
    };
    let mut key = || match input.below(4) {
        0 => sharing.key(host).unwrap_or(0),
        _ => u64::from(input.byte() % 6),
    };
    let (current, new) = (key(), key());
    let keys = RegisterKeys { current: current.into(), new: new.into() };
    let bytes: [u8; 16] = keys.as_bytes().try_into().expect("two keys");
    let (own, before) = (sharing.key(host), sharing.persistent());
    let others = |sharing: &Sharing| (0..HOSTS).map(|host| sharing.key(host)).collect::<Vec<_>>();
    let were = (others(sharing), sharing.held(host));
    let command = Command { cdw10: word.into(), ..Command::new(code) };
    let Some(result) = sharing.carry_out(host, &command, &bytes, !input.rarely(4)) else { return };
    match result {
        Err(_) => {
            assert_eq!(sharing.persistent(), before, "a command that fails changes what persists");
            assert_eq!((others(sharing), sharing.held(host)), were, "a command that fails changes something");
        }
        Ok(()) if code != opcode::io::RESERVATION_REGISTER => {
            assert_eq!(own, Some(current), "a host without the right key acquires or releases");
        }
        Ok(()) => {
            for other in (0..HOSTS).filter(|&other| other != host) {
                assert_eq!(sharing.key(other), were.0[usize::from(other)], "a host registers another one");
            }
        }
    }
}

fn check(sharing: &Sharing) {
    assert!(sharing.registrants() <= usize::from(HOSTS), "strangers are registered");
    let holders = (0..HOSTS).filter(|&host| sharing.held(host).is_some_and(|(_, holds)| holds));
    let holders: Vec<u8> = holders.collect();
    for &host in &holders {
        assert!(sharing.key(host).is_some(), "a holder is not registered");
        assert!(sharing.allows(host, true) && sharing.allows(host, false), "a holder may not write");
    }
    let Some((kind, _)) = sharing.held(0) else {
        assert!((0..HOSTS).all(|host| sharing.allows(host, false)), "nobody holds it");
        return;
    };
    assert!(!holders.is_empty(), "nobody is a holder of a reservation");
    for host in (0..HOSTS).filter(|host| !holders.contains(host)) {
        let may = kind as u8 >= Type::WriteExclusiveRegistrants as u8 && sharing.key(host).is_some();
        assert_eq!(sharing.allows(host, false), may, "whether a host may write");
        assert_eq!(sharing.allows(host, true), may || kind as u8 % 2 == 1, "whether a host may read");
    }
}
