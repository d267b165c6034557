//! The work path over packets: what [`crate::work`] does, between two NICs on a wire. An attacker
//! sees every frame, loses some, repeats some, and sends similar ones with right checksums.
//!
//! What must hold: the same as without the attacker, with two exceptions. The attacker knows the
//! keys, so it may change the memory that a region or window covers, and it may break connections.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use nic_model::Wire;
use nic_model::testing::{CableEnd, Rig, Through, cable};
use roce::wire::icrc;

use crate::Input;
use crate::work::Scene;

const STEPS: usize = 96;
const MTU: u32 = 1500;
/// How many frames the attacker remembers.
const REMEMBERED: usize = 16;
/// Bytes of the headers before the transport's: Ethernet, IPv4, UDP.
const BEFORE: usize = 14 + 20 + 8;
/// Bytes of the base transport header.
const BTH: usize = 12;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let privileged = input.rarely(2);
    let ends = cable();
    let knowledge = Rc::<RefCell<Knowledge>>::default();
    let wires = [0, 1].map(|from| tapped(from, ends[from].clone(), knowledge.clone()));
    let mut scene = Scene::new(Rig::wired(wires, MTU), privileged);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        if input.rarely(3) {
            attack(&ends, &mut knowledge.borrow_mut(), &mut input);
            scene.rig.run();
        } else {
            scene.step(&mut input);
        }
        scene.reap();
    }
    scene.end();
}

/// What the attacker knows, and is about to do.
#[derive(Default)]
struct Knowledge {
    /// The last RoCE frames, each with the end that it came from.
    seen: VecDeque<(usize, Vec<u8>)>,
    /// How many frames to lose from now on.
    lose: u8,
}

/// One end of a cable with the attacker on it.
fn tapped(from: usize, end: CableEnd, knowledge: Rc<RefCell<Knowledge>>) -> impl Wire {
    Through::new(end, move |end, frame| {
        let mut knowledge = knowledge.borrow_mut();
        if is_roce(frame) {
            if knowledge.seen.len() == REMEMBERED {
                knowledge.seen.pop_front();
            }
            knowledge.seen.push_back((from, frame.to_vec()));
        }
        if knowledge.lose > 0 {
            knowledge.lose -= 1;
        } else {
            end.put(frame);
        }
    })
}

fn is_roce(frame: &[u8]) -> bool {
    frame.len() >= BEFORE + BTH + icrc::LEN
        && frame[12..14] == [8, 0]
        && frame[36..38] == roce::UDP_PORT.to_be_bytes()
}

fn attack(ends: &[CableEnd; 2], knowledge: &mut Knowledge, input: &mut Input<'_>) {
    match input.below(8) {
        0 => knowledge.lose = input.byte() & 15,
        // The link goes down, and up again.
        1 => {
            let plugged = input.rarely(2);
            ends[0].plug(plugged);
        }
        _ => {
            if knowledge.seen.is_empty() {
                return;
            }
            let (from, mut frame) = knowledge.seen[input.below(knowledge.seen.len())].clone();
            for _ in 0..input.below(3) {
                change(&mut frame, input);
            }
            seal(&mut frame);
            // Sometimes back to the NIC that it came from.
            let to = if input.rarely(8) { from } else { 1 - from };
            ends[1 - to].put(&frame);
        }
    }
}

/// Changes one field of a packet.
fn change(frame: &mut [u8], input: &mut Input<'_>) {
    let end = frame.len() - icrc::LEN;
    let packet = &mut frame[BEFORE..end];
    match input.below(6) {
        // The opcode, of any service.
        0 => packet[0] = input.byte(),
        // The solicited bit, the padding, or the partition.
        1 => packet[1 + input.below(3)] ^= 1 << input.below(8),
        // The queue pair: often another one of the NIC.
        2 => packet[7] ^= input.byte() & 7,
        // The PSN, or whether an acknowledgement is requested.
        3 => {
            let psn = u32::from_be_bytes([0, packet[9], packet[10], packet[11]]);
            let other = psn.wrapping_add(u32::from(input.byte())).wrapping_sub(8);
            packet[9..12].copy_from_slice(&other.to_be_bytes()[1..]);
        }
        4 => packet[8] ^= 0x80,
        // An extended header or the payload.
        _ => {
            let at = BTH + input.below(40);
            if let Some(byte) = packet.get_mut(at) {
                *byte = input.byte();
            }
        }
    }
}

/// Makes the ICRC right.
fn seal(frame: &mut [u8]) {
    let end = frame.len() - icrc::LEN;
    let right = icrc::compute(&frame[14..end]).expect("a packet with its headers");
    frame[end..].copy_from_slice(&right.to_le_bytes());
}
