//! TCP streams of a NIC: commands of both drivers, most of them nearly valid, over a wire that is
//! full or pulled out at times.
//!
//! What must hold: the device becomes idle after each step and answers every command with a defined
//! status; no stream or listener has a second event before it was queried; and when all is
//! destroyed, nothing uses the event queues, and the NICs can be started again.

use std::collections::BTreeSet;

use nic_abi::admin::{
    AcceptStream, ConnectStream, DestroyStream, EVERY_ADDRESS, ListenStream, MAX_STREAM_BYTES, Opcode,
    StreamEnd, StreamInfo, TransferStream,
};
use nic_abi::eqe::EventType;
use nic_abi::registers::CONTROL_RESET;
use nic_model::testing::{CableEnd, Rig, cable};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Input;

/// The most steps of one input.
const STEPS: usize = 200;
/// The numbers that drivers use.
const NUMBERS: usize = 8;
/// Bytes of the memory that is sent from and received into.
const BYTES: u64 = MAX_STREAM_BYTES as u64;

struct Scene {
    rig: Rig,
    cable: [CableEnd; 2],
    memory: u64,
    /// The streams and listeners of each NIC of which an event came since the last query.
    told: [BTreeSet<u32>; 2],
}

pub(crate) fn run(bytes: &[u8]) {
    play(bytes);
}

/// Returns how many segments came to the second NIC.
fn play(bytes: &[u8]) -> u64 {
    let mut input = Input::new(bytes);
    let cable = cable();
    let mut rig = Rig::wired(cable.clone(), 1500);
    let memory = rig.alloc(BYTES);
    let mut scene = Scene { rig, cable, memory, told: Default::default() };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        scene.step(&mut input);
        scene.listen_to_events();
    }
    let segments = scene.rig.port(1).segments_in;
    scene.end();
    segments
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        let n = input.below(2);
        let number = self.number(input);
        match input.below(16) {
            0 | 1 => {
                let address = if input.rarely(4) { input.below(4) as u32 } else { EVERY_ADDRESS };
                let (port, backlog) = (Scene::port(input), 1 + input.below(4) as u32);
                let args = ListenStream { port, address, backlog, ..ListenStream::default() };
                self.command(n, Opcode::ListenStream, number, &args);
            }
            2..5 => {
                let mut gid = self.rig.gid(1 - n);
                if input.rarely(8) {
                    gid[input.below(16)] = input.byte();
                }
                let port = Scene::port(input);
                let local_port = if input.rarely(4) { Scene::port(input) } else { 0 };
                let args = ConnectStream { gid, port, address: 1, local_port, ..ConnectStream::default() };
                self.command(n, Opcode::ConnectStream, number, &args);
            }
            5 | 6 => {
                let args = AcceptStream { listener: self.number(input), ..AcceptStream::default() };
                self.command(n, Opcode::AcceptStream, number, &args);
            }
            7..10 => {
                let addr = if input.rarely(16) { input.number() } else { self.memory };
                let length = (input.number() as u32).min(2 * MAX_STREAM_BYTES);
                let opcode = if input.rarely(2) { Opcode::SendStream } else { Opcode::ReceiveStream };
                let args = TransferStream { addr, length, flags: u32::from(input.rarely(4)) };
                self.command(n, opcode, number, &args);
            }
            10 => self.command(n, Opcode::CloseStream, number, &()),
            11 => self.query(n, number),
            12 => {
                let args = DestroyStream { reset: input.below(3) as u32, reserved: 0 };
                self.command(n, Opcode::DestroyStream, number, &args);
            }
            13 => self.rig.advance(1 << input.below(35)),
            14 => match input.below(4) {
                0 => self.cable[n].set_room(input.rarely(2)),
                1 => self.cable[n].plug(input.rarely(2)),
                2 if input.rarely(4) => self.reset(n),
                _ => self.cable[n].put(input.bytes(120)),
            },
            _ => self.rig.run(),
        }
    }

    fn number(&self, input: &mut Input<'_>) -> u32 {
        if input.rarely(32) { input.number() as u32 } else { input.below(NUMBERS) as u32 }
    }

    fn port(input: &mut Input<'_>) -> u32 {
        if input.rarely(16) { input.number() as u32 } else { 1 + input.below(3) as u32 }
    }

    fn command<A: IntoBytes + Immutable>(&mut self, n: usize, opcode: Opcode, number: u32, args: &A) {
        let done = self.rig.command(n, opcode, number, args);
        if done.is_ok() && opcode == Opcode::DestroyStream {
            self.told[n].remove(&number);
        }
    }

    fn query(&mut self, n: usize, number: u32) {
        self.listen_to_events();
        if let Ok(result) = self.rig.command(n, Opcode::QueryStream, number, &()) {
            let info = StreamInfo::read_from_prefix(&result).expect("a result is long enough").0;
            assert!(StreamEnd::from_word(info.end).is_some(), "{info:?}");
            self.told[n].remove(&number);
        }
    }

    fn listen_to_events(&mut self) {
        for n in 0..2 {
            for event in self.rig.events(n) {
                if EventType::from_byte(event.event) == Some(EventType::Stream) {
                    assert!(self.told[n].insert(event.number), "a second event: {event:?}");
                }
            }
        }
    }

    fn reset(&mut self, n: usize) {
        self.rig.control(n, CONTROL_RESET);
        self.rig.bring_up(n);
        self.told[n].clear();
    }

    fn end(mut self) {
        for n in 0..2 {
            for number in 0..NUMBERS as u32 {
                self.command(n, Opcode::DestroyStream, number, &DestroyStream::default());
            }
        }
        self.listen_to_events();
        for n in 0..2 {
            self.reset(n);
            self.rig.command(n, Opcode::DestroyEq, 0, &()).expect("nothing uses it");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_seed_opens_a_connection_sends_and_closes() {
        // A SYN and what answers the other SYN, bytes, a FIN.
        assert!(play(&fs::read("../seeds/port_streams/1").expect("a seed")) >= 4);
    }
}
