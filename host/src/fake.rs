//! A device for tests of drivers: a closure answers its commands, and a test writes any entries
//! into the driver's queues. Only with the feature `testing`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use nic_abi::admin::{Command, PHASE, RESPONSE_SIZE, Response};
use nic_abi::registers::{self, CONTROL_RESET, CONTROL_START, Control, Identity, State};
use nic_abi::{cqe, doorbell, ident};
use nic_hal::{InterruptHandler, Transport};
use nic_model::GuestMemory;
use platform::{DmaBuffer, Platform, SharedSlice};
use zerocopy::{FromZeros, IntoBytes};

use crate::{Arena, Machine, SLOWER};

/// What the device does with a command: `None` for no answer at all.
pub type Answer = Box<dyn FnMut(&Command) -> Option<Response> + Send>;

/// The answer of a device that carries out every command.
pub fn success(command: &Command) -> Option<Response> {
    Some(Response { id: command.id, field: nic_abi::admin::NO_FIELD, ..Response::new_zeroed() })
}

#[derive(Default)]
struct Bell {
    kicked: bool,
    stop: bool,
}

struct Shared {
    registers: DmaBuffer,
    arena: Arc<Arena>,
    bell: Mutex<Bell>,
    rung: Condvar,
    vectors: Mutex<Vec<Option<InterruptHandler>>>,
    /// Acknowledges resets and starts.
    obeys: bool,
    beats: bool,
}

/// A device, with the machine that it is in.
pub struct Fake {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The commands that the device has received.
    pub commands: Arc<Mutex<Vec<Command>>>,
    /// The machine's platform.
    pub platform: Arc<dyn Platform>,
    /// Kept until the device is dropped.
    _machine: Machine,
}

struct Handle(Arc<Shared>);

impl Transport for Handle {
    fn registers(&self) -> SharedSlice<'_> {
        self.0.registers.slice()
    }

    fn kick(&self) {
        self.0.bell.lock().unwrap().kicked = true;
        self.0.rung.notify_all();
    }

    fn vectors(&self) -> u16 {
        8
    }

    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        match self.0.vectors.lock().unwrap().get_mut(usize::from(vector)) {
            Some(slot) => {
                *slot = handler;
                true
            }
            None => false,
        }
    }
}

/// An identity that a driver accepts.
pub fn identity() -> Identity {
    Identity {
        magic: registers::MAGIC,
        version_major: nic_abi::VERSION_MAJOR,
        version_minor: nic_abi::VERSION_MINOR,
        node_guid: 7,
        mtu: 1024,
        max_qps: ident::MAX_QPS,
        max_cqs: ident::MAX_CQS,
        max_srqs: ident::MAX_SRQS,
        max_eqs: 8,
        max_pds: 64,
        max_keys: 64,
        max_sq_blocks: 1 << 10,
        max_rq_entries: 1 << 10,
        max_srq_entries: 1 << 10,
        max_cqes: 1 << 12,
        max_eqes: 1 << 12,
        max_sges: 8,
        max_list_elements: 64,
        max_rd_atomic: 4,
        max_message: 1 << 20,
        max_region: 1 << 30,
        dma_limit: 1 << 40,
        vectors: 8,
        ..Identity::new_zeroed()
    }
}

impl Fake {
    /// A device that acknowledges resets and starts.
    pub fn new(
        identity: Identity,
        answer: impl FnMut(&Command) -> Option<Response> + Send + 'static,
    ) -> Fake {
        Fake::with(identity, Box::new(answer), true)
    }

    /// A device that ignores resets and starts unless it `obeys`.
    pub fn with(identity: Identity, answer: Answer, obeys: bool) -> Fake {
        let machine = Machine::with_memory(0, 64 << 20);
        let (arena, platform) = (machine.arena().clone(), machine.platform());
        let registers = DmaBuffer::new(&platform, registers::SIZE, 4096).unwrap();
        registers.write(registers::IDENTITY, identity.as_bytes()).unwrap();
        let shared = Arc::new(Shared {
            registers,
            arena,
            bell: Mutex::default(),
            rung: Condvar::new(),
            vectors: Mutex::new((0..8).map(|_| None).collect()),
            obeys,
            beats: true,
        });
        let commands = Arc::new(Mutex::new(Vec::new()));
        let thread = {
            let (shared, commands) = (shared.clone(), commands.clone());
            std::thread::spawn(move || run(&shared, answer, &commands))
        };
        Fake { shared, thread: Some(thread), commands, platform, _machine: machine }
    }

    /// How a driver reaches the device.
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(Handle(self.shared.clone()))
    }

    /// The register file.
    pub fn registers(&self) -> SharedSlice<'_> {
        self.shared.registers.slice()
    }

    /// The machine's memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.shared.arena
    }

    /// Memory of the driver.
    pub fn memory(&self, bus: u64, len: u64) -> SharedSlice<'_> {
        self.shared.arena.get(bus, len).unwrap()
    }

    /// The last command with this opcode, and its arguments.
    pub fn last<T: zerocopy::FromBytes>(&self, opcode: nic_abi::admin::Opcode) -> (u32, T) {
        let commands = self.commands.lock().unwrap();
        let found = commands.iter().rev().find(|command| command.opcode == opcode as u16).unwrap();
        (found.object, T::read_from_prefix(&found.args).unwrap().0)
    }

    /// Writes an entry of 32 bytes into a ring, with the phase of its pass.
    pub fn write_entry(&self, ring: u64, log: u32, index: u32, mut words: [u64; 4]) {
        words[3] = words[3] & !cqe::PHASE | cqe::phase(index, log);
        let slice = self.memory(ring + u64::from(index & ((1 << log) - 1)) * 32, 32);
        let at = slice.atomic_u64s().unwrap();
        for (word, value) in at.iter().zip(words) {
            word.store(value, Ordering::Release);
        }
    }

    /// Raises an interrupt.
    pub fn interrupt(&self, vector: usize) {
        if let Some(handler) = &self.shared.vectors.lock().unwrap()[vector] {
            handler();
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.bell.lock().unwrap().stop = true;
        self.shared.rung.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, mut answer: Answer, commands: &Mutex<Vec<Command>>) {
    let file = shared.registers.slice();
    let word = |offset| file.atomic_u32(offset).unwrap();
    let (mut admin, mut taken) = (None, 0u32);
    loop {
        {
            let bell = shared.bell.lock().unwrap();
            // Without a kick the device looks again after this time. It changes its heartbeat then.
            let beat = std::time::Duration::from_millis(20) * SLOWER;
            let (mut bell, _) = shared.rung.wait_timeout_while(bell, beat, |b| !b.kicked && !b.stop).unwrap();
            if bell.stop {
                return;
            }
            bell.kicked = false;
        }
        if shared.beats {
            word(registers::STATUS_HEARTBEAT).fetch_add(1, Ordering::AcqRel);
        }
        let request = word(registers::CONTROL_REQUEST).load(Ordering::Acquire);
        if shared.obeys && request != word(registers::STATUS_ACKNOWLEDGED).load(Ordering::Acquire) {
            let mut control = Control::new_zeroed();
            file.read(registers::CONTROL, control.as_mut_bytes()).unwrap();
            let state = match control.command {
                CONTROL_RESET => {
                    admin = None;
                    State::Idle
                }
                CONTROL_START => {
                    (admin, taken) = (Some(control), 0);
                    word(registers::ADMIN_RECORD + 4).store(1, Ordering::Release);
                    State::Ready
                }
                other => panic!("control command {other}"),
            };
            word(registers::STATUS_STATE).store(state as u32, Ordering::Release);
            word(registers::STATUS_ACKNOWLEDGED).store(request, Ordering::Release);
        }
        let Some(control) = admin else { continue };
        loop {
            // Asks for a kick at the next doorbell, then looks.
            let tail = word(registers::FIFO_TAIL).load(Ordering::Acquire);
            word(registers::FIFO_EVENT).store(tail, Ordering::SeqCst);
            word(registers::ADMIN_RECORD + 4).store(1, Ordering::SeqCst);
            if word(registers::ADMIN_RECORD).load(Ordering::SeqCst) == taken
                && word(registers::FIFO_TAIL).load(Ordering::SeqCst) == tail
            {
                break;
            }
            while word(registers::ADMIN_RECORD).load(Ordering::SeqCst) != taken {
                let entry = taken & ((1 << control.admin_log_entries) - 1);
                let mut command = Command::new_zeroed();
                let at = control.admin_commands + u64::from(entry) * size_of::<Command>() as u64;
                let memory = shared.arena.get(at, size_of::<Command>() as u64).unwrap();
                memory.read(0, command.as_mut_bytes()).unwrap();
                let response = answer(&command);
                commands.lock().unwrap().push(command);
                if let Some(mut response) = response {
                    response.phase = response.phase & !PHASE | cqe::phase(taken, control.admin_log_entries);
                    let at = control.admin_responses + u64::from(entry) * RESPONSE_SIZE as u64;
                    let words: [u64; RESPONSE_SIZE / 8] = zerocopy::transmute!(response);
                    let memory = shared.arena.get(at, RESPONSE_SIZE as u64).unwrap();
                    for (to, word) in memory.atomic_u64s().unwrap().iter().zip(words) {
                        to.store(word, Ordering::Release);
                    }
                    if let Some(Some(handler)) = shared.vectors.lock().unwrap().first() {
                        handler();
                    }
                }
                taken = taken.wrapping_add(1);
            }
        }
    }
}

const _: () = assert!(doorbell::RECORD_BYTES == 8);
