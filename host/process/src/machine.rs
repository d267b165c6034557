//! The NIC of this process: its platform, its link, and the thread of the device, which takes no
//! signals: they are the program's.
#![expect(unsafe_code, reason = "memory of the process as DMA memory; signal masks and fork are C's")]

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use host::{DmaMemory, HostPlatform, Os, ProcessMemory, Std};
use kernel_agent::{Agent, Config};
use links::{Impaired, IpPrefix, Link, LinkSpec, OpenError};
use nic_abi::registers;
use nic_hal::{InterruptHandler, Transport};
use nic_model::{Fabric, Frontend, NicConfig, port};
use platform::sync::atomic::AtomicU32;
use platform::{DmaBuffer, Instant, OutOfMemory, Platform, SharedSlice, Wake};
use rustix::event::EventfdFlags;

use crate::engine::Engine;
use crate::environment::{Environment, candidates};
use crate::watch::{Peers, Watcher};

/// Objects of each kind at most: the driver's tables take memory of the program.
const CONFIG: Config = Config {
    max_qps: 4096,
    // 0 would be the usual number; there are none here.
    max_vis: 1,
    max_cqs: 4096,
    max_srqs: 1024,
    max_pds: 1024,
    max_keys: 1 << 16,
    max_streams: 1,
    max_connections: 4096,
    max_listens: 256,
    without_crc: false,
    // A debugger may stop the program for long.
    silence: Duration::from_secs(3600),
};

/// Std, but its threads take no signals.
struct Quiet(Std);

impl Os for Quiet {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        self.0.wait(word, expected, deadline)
    }

    fn wake(&self, word: &AtomicU32) {
        self.0.wake(word);
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        without_signals(|| self.0.spawn(name, main))
    }

    fn current_thread(&self) -> u64 {
        self.0.current_thread()
    }
}

/// Runs `f` with all signals blocked: threads that it starts inherit that.
fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are initialised before they are read.
    let former = unsafe {
        let (mut all, mut former) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut former);
        former
    };
    let result = f();
    // SAFETY: the set that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &former, std::ptr::null_mut()) };
    result
}

/// Both sides of the NIC: the driver's and the device's.
pub(crate) struct InProcess {
    registers: DmaBuffer,
    memory: Arc<ProcessMemory>,
    /// By vector. Read-locked while a handler runs, so that replacing a handler waits for it.
    handlers: RwLock<Vec<Option<InterruptHandler>>>,
    pub(crate) kicks: OwnedFd,
    /// Both stay until the process ends.
    engine: OnceLock<Arc<Engine>>,
}

impl InProcess {
    /// Wakes the device's thread.
    pub(crate) fn wake(&self) {
        // It fails only at 2^64 - 2 kicks.
        let _ = rustix::io::write(&self.kicks, &1u64.to_ne_bytes());
    }
}

impl Transport for InProcess {
    fn registers(&self) -> SharedSlice<'_> {
        self.registers.slice()
    }

    fn kick(&self) {
        if !self.engine.get().is_some_and(|engine| engine.help()) {
            self.wake();
        }
    }

    fn vectors(&self) -> u16 {
        self.handlers.read().unwrap_or_else(PoisonError::into_inner).len() as u16
    }

    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        let mut handlers = self.handlers.write().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = handlers.get_mut(usize::from(vector)) else { return false };
        *slot = handler;
        true
    }
}

pub(crate) struct Port(Arc<InProcess>);

impl Frontend for Port {
    type Memory = ProcessMemory;
    type Wire = Box<dyn Link + Send>;

    fn registers(&self) -> SharedSlice<'_> {
        self.0.registers.slice()
    }

    fn memory(&self) -> &ProcessMemory {
        &self.0.memory
    }

    fn raise(&self, vector: u16) {
        let handlers = self.0.handlers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(handler)) = handlers.get(usize::from(vector)) {
            handler();
        }
    }
}

/// A link that is open, and the port behind it.
struct Plugged {
    node_guid: u64,
    port: port::Config,
    wire: Box<dyn Link + Send>,
    addresses: Vec<IpPrefix>,
}

fn plug(environment: &Environment) -> Result<Plugged, String> {
    let link = &environment.link;
    let tried = candidates(environment)?;
    let choice = tried.len() > 1;
    for addresses in tried {
        let (node_guid, port) = links::port_at(&addresses, 0, environment.mtu);
        let wire = match link.open(port.mac, &addresses) {
            Ok(wire) => wire,
            Err(OpenError::Taken { .. }) if choice => continue,
            Err(error) => return Err(error.to_string()),
        };
        let wire: Box<dyn Link + Send> = match environment.impairment {
            Some(impairment) => Box::new(Impaired::new(wire, impairment)),
            None => wire,
        };
        return Ok(Plugged { node_guid, port, wire, addresses });
    }
    Err(format!("other processes have all addresses of {link}; end some of them, or choose one by --ip"))
}

/// A NIC of this process.
pub struct Nic {
    /// The name that the user chose for it.
    pub name: String,
    /// The platform on which its driver runs.
    pub platform: Arc<dyn Platform>,
    /// The agent that owns it.
    pub agent: Arc<Agent>,
    /// The device, whose work the program's polls may do.
    pub engine: Arc<Engine>,
    /// The addresses of its port.
    pub addresses: Vec<IpPrefix>,
}

/// Opens a NIC of this process. `peers` are those that it is connected with. An error is one line.
pub fn open(environment: Environment, peers: Peers) -> Result<Nic, String> {
    // SAFETY: programs promise it by their registrations (`ibv_reg_mr`, `dat_lmr_create`).
    let memory = Arc::new(unsafe { ProcessMemory::new() });
    let platform: Arc<dyn Platform> = Arc::new(HostPlatform::on(memory.clone(), Box::new(Quiet(Std::new()))));
    let failed = |what: &str| format!("cannot {what}");
    let registers = DmaBuffer::new(&platform, registers::SIZE, 4096);
    let kicks = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| format!("cannot make an eventfd: {error}"))?;
    let config = NicConfig::numbered(0, memory.limit());
    let nic = Arc::new(InProcess {
        registers: registers.map_err(|_| failed("allocate the NIC's registers"))?,
        memory,
        handlers: RwLock::new((0..config.vectors).map(|_| None).collect()),
        kicks,
        engine: OnceLock::new(),
    });
    let Plugged { node_guid, port, wire, addresses } = plug(&environment)?;
    let config = NicConfig { node_guid, ..config };
    let mut fabric = Fabric::new();
    let id = fabric.add_nic(config, Port(nic.clone())).map_err(|error| error.to_string())?;
    fabric.attach(id, wire, &port).map_err(|error| error.to_string())?;
    // The descriptor of a stream is another one after it has connected again.
    let helped = matches!(environment.link, LinkSpec::Shm(_) | LinkSpec::Udp(_));
    let engine = Arc::new(Engine::new(fabric, id, nic.clone(), platform.clone(), helped));
    let _ = nic.engine.set(engine.clone());
    let run = {
        let engine = engine.clone();
        move || engine.drive()
    };
    let started = without_signals(|| std::thread::Builder::new().name("ferrovia-nic".into()).spawn(run));
    started.map_err(|error| format!("cannot start the NIC's thread: {error}"))?;
    let agent = Agent::open(platform.clone(), nic, 0, CONFIG).map_err(|error| error.to_string())?;
    if let Some(watcher) = Watcher::of(&environment.link, peers) {
        let watch = move || watcher.run();
        // Without it, connections whose peer is gone end when a request fails.
        let _ = without_signals(|| std::thread::Builder::new().name("ferrovia-watch".into()).spawn(watch));
    }
    Ok(Nic { name: environment.name, platform, agent, engine, addresses })
}
