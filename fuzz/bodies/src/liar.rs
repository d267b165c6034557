//! The driver, the agent and the API on a device that lies: between the consumer's calls it writes
//! completions, events and answers without a reason, marks descriptors of virtual interfaces,
//! changes its registers and any other memory that it reaches, and raises interrupts without a
//! cause.
//!
//! What must hold: each call returns, and everything can be freed; no thread is left. (Objects may
//! be left, since the device may refuse to destroy one.)

use nic_abi::admin::{COMMAND_SIZE, Command, CreateCq, CreateEq, CreateQp, Opcode, RESPONSE_SIZE};
use nic_abi::eqe::EventType;
use nic_abi::registers::{self, CONTROL, Control};
use nic_abi::{cqe, eqe, vi};
use nic_model::GuestMemory;
use sim::World;
use zerocopy::{FromBytes, IntoBytes};

use crate::Input;
use crate::api::{free, set_up};

const STEPS: usize = 64;
/// Bytes of the arena that can be in use after a few calls.
const REACH: u64 = 4 << 20;

pub(crate) fn run(bytes: &[u8]) {
    let outcome = sim::run(1, 1, |world| {
        let mut input = Input::new(bytes);
        let (node, mut consumer) = set_up(world, &mut input);
        let mut liar = Liar { world, cqs: Vec::new(), eqs: Vec::new(), qps: Vec::new(), rings: Vec::new() };
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            liar.listen();
            match input.rarely(2) {
                true => consumer.call(&mut input),
                // Older inputs have no virtual interfaces, and mean what they meant.
                false if consumer.has_vis() && input.rarely(2) => liar.lie_of_vis(&mut input),
                false => liar.lie(&mut input),
            }
        }
        consumer.close_others();
        for ia in consumer.ias() {
            free(world, &ia);
        }
        for agent in &node.agents {
            agent.close();
        }
    });
    assert_eq!(outcome.left, Vec::<String>::new(), "threads that did not end");
}

struct Liar<'a> {
    world: &'a World,
    /// Ring, log, number, generation.
    cqs: Vec<(u64, u32, u32, u32)>,
    eqs: Vec<(u64, u32)>,
    /// Number, generation.
    qps: Vec<(u32, u32)>,
    /// Ring of a virtual interface, log.
    rings: Vec<(u64, u32)>,
}

impl Liar<'_> {
    fn control(&self) -> Control {
        let mut bytes = [0; size_of::<Control>()];
        self.world.transports()[0].registers().read(CONTROL, &mut bytes).expect("the register file");
        Control::read_from_bytes(&bytes).expect("its size")
    }

    /// Finds the queues in the commands of the driver's ring.
    fn listen(&mut self) {
        let control = self.control();
        for entry in 0..1_u64 << control.admin_log_entries.min(6) {
            let at = control.admin_commands + entry * COMMAND_SIZE as u64;
            let Ok(command) = self.world.memory().load::<Command>(at) else { return };
            let object = command.object;
            match Opcode::from_word(command.opcode) {
                Some(Opcode::CreateCq) => {
                    let Ok((args, _)) = CreateCq::read_from_prefix(&command.args) else { continue };
                    note(&mut self.cqs, (args.ring, args.log_entries.min(12), object, args.generation));
                }
                Some(Opcode::CreateEq) => {
                    let Ok((args, _)) = CreateEq::read_from_prefix(&command.args) else { continue };
                    note(&mut self.eqs, (args.ring, args.log_entries.min(12)));
                }
                Some(Opcode::CreateQp) => {
                    let Ok((args, _)) = CreateQp::read_from_prefix(&command.args) else { continue };
                    note(&mut self.qps, (object, args.generation));
                    if args.qp_type == vi::QP_TYPE {
                        note(&mut self.rings, (args.send_ring, args.log_send_blocks.min(8)));
                        note(&mut self.rings, (args.receive_ring, args.log_receive_entries.min(8)));
                    }
                }
                _ => {}
            }
        }
    }

    fn write(&self, at: u64, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            // An address out of reach is left as it is.
            let _ = self.world.memory().write(at.wrapping_add(8 * i as u64), &word.to_le_bytes());
        }
    }

    fn lie(&self, input: &mut Input<'_>) {
        match input.below(8) {
            0 | 1 => {
                let Some((ring, log, ..)) = input.pick(&self.cqs) else { return };
                let index = input.below(16) as u64 & ((1 << log) - 1);
                let (qpn, generation) = self.queue_pair(input);
                let last = u64::from(input.byte())
                    | u64::from(input.byte() & 0x1f) << 8
                    | u64::from(input.byte()) << 16;
                let entry = [
                    u64::from(qpn) | u64::from(generation) << 32,
                    input.number() & 0xffff_ffff | input.number() << 32,
                    input.number(),
                    last | if input.rarely(2) { cqe::PHASE } else { 0 },
                ];
                self.write(ring + index * cqe::SIZE as u64, &entry);
            }
            2 | 3 => {
                let Some((ring, log)) = input.pick(&self.eqs) else { return };
                let index = input.below(16) as u64 & ((1 << log) - 1);
                let (number, generation) = match input.pick(&self.cqs) {
                    Some((_, _, number, generation)) if input.rarely(2) => (number, generation),
                    _ => self.queue_pair(input),
                };
                let events = [1, 2, 3, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x20, 0x21, 0x22, 0x30, 0x31];
                let event =
                    input.pick(&events).unwrap_or(1) ^ if input.rarely(16) { input.byte() } else { 0 };
                let entry = [
                    u64::from(event) | u64::from(input.byte() & 0xf) << 8 | u64::from(number) << 32,
                    u64::from(generation) | input.number() << 32,
                    0,
                    if input.rarely(2) { cqe::PHASE } else { 0 },
                ];
                self.write(ring + index * eqe::SIZE as u64, &entry);
            }
            4 => {
                let control = self.control();
                let entry = input.below(16) as u64 & ((1 << control.admin_log_entries.min(6)) - 1);
                let word = input.below(RESPONSE_SIZE / 8) as u64;
                let at = control.admin_responses + entry * RESPONSE_SIZE as u64 + 8 * word;
                self.write(at, &[input.number()]);
            }
            5 => {
                let at = u64::from(u16::from_le_bytes([input.byte(), input.byte()])) * 64 % REACH;
                let len = input.below(8);
                let words: Vec<u64> = (0..len).map(|_| input.number()).collect();
                self.write(at, &words);
            }
            6 => {
                let device = &self.world.transports()[0];
                let registers = device.registers();
                let at = match input.below(4) {
                    0 => registers::STATUS_STATE,
                    1 => registers::STATUS_HEARTBEAT,
                    2 => registers::CQ_RECORDS + 64 * input.below(64) + 4 * input.below(2),
                    _ => 4 * (input.number() as usize % (registers::SIZE / 4)),
                };
                let word = registers.atomic_u32(at).expect("a register");
                word.store(input.number() as u32, std::sync::atomic::Ordering::Release);
            }
            _ => {
                if input.rarely(16) {
                    self.world.kill_device();
                }
            }
        }
        self.world.interrupt(0, input.below(4) as u16);
    }

    /// Marks descriptors in rings, and writes statuses, entries of completion queues and events.
    fn lie_of_vis(&self, input: &mut Input<'_>) {
        let (qpn, generation) = self.queue_pair(input);
        match input.below(4) {
            0 | 1 => {
                let Some((ring, log)) = input.pick(&self.rings) else { return };
                let index = input.below(8) as u64 & ((1 << log) - 1);
                let at = ring + vi::RING_HEAD as u64 + index * vi::ENTRY as u64;
                let Ok(post) = self.world.memory().load::<vi::Post>(at) else { return };
                let mark = if input.rarely(8) { input.number() as u32 } else { input.below(4) as u32 };
                let changed = match input.below(8) {
                    0 => vi::Post { address: input.number(), ..post },
                    1 => vi::Post { handle: input.number() as u32, ..post },
                    _ => vi::Post { mark, ..post },
                };
                let _ = self.world.memory().write(at, changed.as_bytes());
            }
            2 => {
                let Some((ring, log, ..)) = input.pick(&self.cqs) else { return };
                let index = input.below(8) as u64 & ((1 << log) - 1);
                let side = u64::from(input.byte() & 0x1f) << 8;
                let phase = if input.rarely(2) { cqe::PHASE } else { 0 };
                let entry = [u64::from(qpn) | u64::from(generation) << 32, 0, input.number(), side | phase];
                self.write(ring + index * cqe::SIZE as u64, &entry);
            }
            _ => {
                let Some((ring, log)) = input.pick(&self.eqs) else { return };
                let index = input.below(16) as u64 & ((1 << log) - 1);
                let (event, status) = match input.below(2) {
                    0 => (EventType::ViCompletion as u64, 0),
                    _ => (EventType::ViError as u64, input.below(10) as u64),
                };
                let phase = if input.rarely(2) { cqe::PHASE } else { 0 };
                let entry = [
                    event | status << 8 | u64::from(qpn) << 32,
                    u64::from(generation) | (input.below(4) as u64) << 32,
                    input.number(),
                    phase,
                ];
                self.write(ring + index * eqe::SIZE as u64, &entry);
            }
        }
        self.world.interrupt(0, input.below(4) as u16);
    }

    fn queue_pair(&self, input: &mut Input<'_>) -> (u32, u32) {
        let (qpn, generation) = input.pick(&self.qps).unwrap_or((0, 0));
        if input.rarely(8) { (input.number() as u32, generation) } else { (qpn, generation) }
    }
}

fn note<T: PartialEq>(list: &mut Vec<T>, seen: T) {
    if !list.contains(&seen) && list.len() < 64 {
        list.push(seen);
    }
}
