//! The conformance suite on the platform of docs/embed.md, with one NIC. The page quotes the code
//! in `embed`, and this program checks that the quotations are exact.
//!
//! The device is the model in a thread of its own. It reaches memory at the bus addresses that the
//! page's platform returns, and its interrupts and its doorbell are those of the page's NIC.

extern crate ferrovia_conformance as conformance;

mod embed {
    #[expect(unsafe_code, reason = "the page makes the token of privileged consumers")]
    pub mod boot;
    pub mod dat;
    #[expect(unsafe_code, reason = "the page implements an unsafe trait")]
    pub mod kernel;
    #[expect(unsafe_code, reason = "the page maps a register file")]
    pub mod nic;
    pub mod share;
    pub mod talk;
    pub mod tasks;
    pub mod tell;
    pub mod text;
    pub mod vipl;
}
mod runner;

use std::alloc::{GlobalAlloc, Layout, System};
use std::pin::pin;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use conformance::fixture::Usage;
use conformance::{Outcome, Setup, Test};
use embed::boot::start;
use embed::kernel::MyKernel;
use embed::nic::MyNic;
use embed::tasks::next_event;
use ferrovia::it_api::{Error, EvdFlags, EvdHandle, Event, EventType};
use ferrovia::platform::SharedSlice;
use ferrovia::{Platform, Transport};
use nic_abi::registers;
use nic_model::{DmaError, Fabric, Frontend, GuestMemory, NicConfig, NicId, NoWire, Progress};
use runner::{HEAP, Place};

/// The page, and what it has to quote.
const PAGE: &str = include_str!("../../docs/embed.md");
const QUOTES: [(&str, &str); 10] = [
    ("kernel.rs", include_str!("embed/kernel.rs")),
    ("nic.rs", include_str!("embed/nic.rs")),
    ("boot.rs", include_str!("embed/boot.rs")),
    ("talk.rs", include_str!("embed/talk.rs")),
    ("share.rs", include_str!("embed/share.rs")),
    ("tell.rs", include_str!("embed/tell.rs")),
    ("text.rs", include_str!("embed/text.rs")),
    ("tasks.rs", include_str!("embed/tasks.rs")),
    ("dat.rs", include_str!("embed/dat.rs")),
    ("vipl.rs", include_str!("embed/vipl.rs")),
];

/// Where the addresses of this process end.
const DMA_LIMIT: u64 = 1 << 48;
/// How long the idle device sleeps before it looks at its doorbells again.
const NAP: Duration = Duration::from_micros(20);

fn main() -> ExitCode {
    for (name, code) in QUOTES {
        if !PAGE.contains(&format!("```rust\n{code}```\n")) {
            println!("docs/embed.md does not quote tests/tests/embed/{name} as it is");
            return ExitCode::FAILURE;
        }
    }
    if let Err(why) = boot() {
        println!("the boot code of docs/embed.md: {why}");
        return ExitCode::FAILURE;
    }
    let place = Place::new("docs/embed.md", conformance::Transport::InfiniBand, on_a_new_machine);
    runner::run_all("embed", std::env::args().skip(1), &[place], 2)
}

/// Runs the page's consumers of `rdma`, on two NICs.
fn values(provider: &ferrovia::Provider) -> Result<(), Box<dyn std::error::Error>> {
    use ferrovia::rdma::Nic;
    let nic = |name| -> Result<Nic, Box<dyn std::error::Error>> {
        Ok(Nic::open(&provider.interfaces().find(name).ok_or("no such NIC")?.agent)?)
    };
    let (client, server) = (nic("rnic0")?.domain()?, nic("rnic1")?.domain()?);
    let listener = server.nic().listen(4711)?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| embed::talk::serve(&server, &listener).expect("a client"));
        embed::talk::ask(&client, server.nic().address())?;
        assert_eq!(serving.join().map_err(|_| "a panic")?, b"hello, world");
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    let pool = embed::share::pool(&server)?;
    let endpoint = embed::share::client(&server, &pool)?;
    let (asking, memory) = (client.endpoint().build()?, client.region(4)?);
    let connecting = asking.connect(server.nic().address(), 4711);
    listener.wait()?.accept(&endpoint).wait()?;
    connecting.wait()?;
    memory.slice(..).write(b"here");
    asking.send(memory.slice(..))?.wait()?;
    let mut came = Vec::new();
    while came.is_empty() {
        embed::share::take(&pool, |from, message| came.push((from, message.to_vec())));
    }
    assert_eq!(came, [(endpoint.id(), b"here".to_vec())]);
    let (teller, hearer) = (client.datagrams().build()?, server.datagrams().build()?);
    let (_service, memory) = (hearer.serve(4711)?, server.region(64)?);
    let heard = hearer.receive(memory.slice(..))?;
    embed::tell::tell(&teller, server.nic().address())?;
    assert_eq!(memory.slice(..heard.wait()?.len).to_vec(), b"nobody has to listen");
    text(provider)
}

/// Runs the page's consumer that speaks text first.
fn text(provider: &ferrovia::Provider) -> Result<(), Box<dyn std::error::Error>> {
    use ferrovia::rdma::{Domain, Nic, Transport};
    let domain = |name| -> Result<Domain, Box<dyn std::error::Error>> {
        let agent = &provider.interfaces().find(name).ok_or("no such NIC")?.agent;
        Ok(Nic::open_over(agent, Transport::Iwarp)?.domain()?)
    };
    let (client, server) = (domain("rnic0")?, domain("rnic1")?);
    let listener = server.nic().listen_for_streams(4711)?;
    let endpoint = server.endpoint().build()?;
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| embed::text::ask_by_text(&client, server.nic().address()).expect("RDMA"));
        let (stream, mut word) = (listener.wait()?, [0; 5]);
        let mut have = 0;
        while have < word.len() {
            have += stream.receive(&mut word[have..]).wait()?;
        }
        assert_eq!(&word, b"RDMA?");
        stream.convert_after(&endpoint, b"y").wait()?;
        let asked = asking.join().map_err(|_| "a panic")?;
        assert!(asked.is_connected());
        Ok(())
    })
}

/// Runs the page's boot code, its task and its consumers of DAT and VIPL. The agents and the
/// machine live until this program ends.
fn boot() -> Result<(), Box<dyn std::error::Error>> {
    let machine = Machine::new(2);
    let (provider, privileged) = start(machine.kernel.clone(), machine.nics.clone())?;
    values(&provider)?;
    let ia = provider.ia_create("rnic1", 2, 1, Some(privileged))?;
    assert_eq!(ia.ia_query()?.spigot_info.len(), 1);
    let (stream, flags) = (EventType::SOFTWARE_EVENT_STREAM, EvdFlags::CREATE_FD);
    let evd = ia.evd_create(stream, flags, 4, 1, EvdHandle::NULL)?;
    std::thread::scope(|scope| {
        let task = scope.spawn(|| block_on(next_event(&ia, evd)));
        // Long enough for the task to sleep first, most of the time.
        std::thread::sleep(Duration::from_millis(20));
        ia.evd_post_se(evd, 7)?;
        let event = task.join().expect("the task does not panic")?;
        assert!(matches!(event, Event::Software { .. }), "{event:?}");
        Ok::<(), Error>(())
    })?;
    ia.ia_free()?;
    let (kernel, text): (Arc<dyn Platform>, _) = (machine.kernel.clone(), b"as DAT moves it");
    assert_eq!(embed::dat::deliver(&kernel, &provider, privileged, text)?, text);
    let (nics, text) = (ferrovia::vipl::Provider::new(provider.interfaces()), b"as VIPL moves it");
    assert_eq!(embed::vipl::deliver(&kernel, &nics, text)?, text);
    std::mem::forget(machine);
    Ok(())
}

/// The smallest executor: the thread sleeps until the task's waker is called.
fn block_on<T>(task: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut task = pin!(task);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn on_a_new_machine(test: &Test) -> Outcome {
    let machine = Arc::new(Machine::new(1));
    let kill = {
        let machine = machine.clone();
        Box::new(move || machine.kill())
    };
    // DMA memory is of the heap, which is compared when the machine is gone.
    let usage = Box::new(move || Usage { requests: HEAP.requests(), ..Usage::default() });
    let setup = Setup::new(machine.kernel.clone(), host::privileged(), machine.nics.clone(), kill, usage);
    let setup = Arc::new(setup?);
    let outcome = conformance::run(test, &setup);
    setup.close();
    machine.kill();
    outcome
}

/// The page's kernel and NICs, and the thread that is the device.
struct Machine {
    kernel: Arc<MyKernel>,
    nics: Vec<Arc<dyn Transport>>,
    killed: Arc<AtomicBool>,
    device: Mutex<Option<JoinHandle<()>>>,
}

impl Machine {
    fn new(count: u8) -> Machine {
        let kernel = Arc::new(MyKernel::new());
        let killed = Arc::new(AtomicBool::new(false));
        let (mut fabric, mut bells) = (Fabric::new(), Vec::new());
        let mut nics: Vec<Arc<dyn Transport>> = Vec::new();
        for n in 0..count {
            let config = NicConfig::numbered(n, DMA_LIMIT);
            let (bar, bell) = bar();
            #[expect(unsafe_code, reason = "the page's NIC takes a mapped BAR")]
            // SAFETY: `bar` made the memory for this NIC, and it is never freed.
            let nic = Arc::new(unsafe { MyNic::new(bar, registers::SIZE, bell, config.vectors) });
            let port = Port { nic: nic.clone(), memory: Bus(kernel.clone()) };
            let id = fabric.add_nic(config, port).expect("the configuration is valid");
            for &(other, _) in &bells {
                fabric.connect(other, id);
            }
            bells.push((id, bell));
            nics.push(nic);
        }
        let device = {
            let (kernel, killed) = (kernel.clone(), killed.clone());
            std::thread::Builder::new()
                .name("device".into())
                .spawn(move || run_device(&mut fabric, &bells, &kernel, &killed))
                .expect("a thread for the device")
        };
        Machine { kernel, nics, killed, device: Mutex::new(Some(device)) }
    }

    /// Ends the device; its DMA is over when this returns.
    fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        if let Some(device) = self.device.lock().unwrap().take() {
            // The runner reports a panic of the device.
            let _ = device.join();
        }
    }
}

/// A register file and the doorbell behind it. The memory is never freed, as a BAR is not, and
/// comes from the system's allocator so that it does not count as heap that a test leaves behind.
fn bar() -> (NonNull<u8>, &'static AtomicU32) {
    const BELL: usize = registers::SIZE;
    let layout = Layout::from_size_align(BELL + 4096, 4096).expect("a valid layout");
    #[expect(unsafe_code, reason = "memory for a register file")]
    // SAFETY: the layout is not empty; the doorbell is inside the memory, zeroed and aligned.
    unsafe {
        let bar = NonNull::new(System.alloc_zeroed(layout)).expect("memory for a register file");
        (bar, bar.add(BELL).cast::<AtomicU32>().as_ref())
    }
}

/// The model's side of a NIC.
struct Port {
    nic: Arc<MyNic>,
    memory: Bus,
}

impl Frontend for Port {
    type Memory = Bus;
    type Wire = NoWire;

    fn registers(&self) -> SharedSlice<'_> {
        self.nic.registers()
    }

    fn memory(&self) -> &Bus {
        &self.memory
    }

    fn raise(&self, vector: u16) {
        self.nic.interrupt(vector);
    }
}

/// What the device reaches: the memory that the page's kernel allocated for devices.
struct Bus(Arc<MyKernel>);

impl GuestMemory for Bus {
    fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
        // The page's bus addresses are virtual addresses.
        let virt = usize::try_from(addr).map_err(|_| DmaError)?;
        let start = match len {
            0 => NonNull::dangling(),
            _ => {
                let extent = self.0.translate(virt).filter(|extent| extent.len >= len);
                extent.and(NonNull::new(std::ptr::with_exposed_provenance_mut(virt))).ok_or(DmaError)?
            }
        };
        #[expect(unsafe_code, reason = "a device reaches memory by address")]
        // SAFETY: the kernel allocated these bytes as DMA memory, and the driver frees DMA memory
        // only when the device is done with it.
        Ok(unsafe { SharedSlice::from_raw(start, len as usize) })
    }
}

fn run_device(
    fabric: &mut Fabric<Port>,
    bells: &[(NicId, &'static AtomicU32)],
    kernel: &MyKernel,
    killed: &AtomicBool,
) {
    while !killed.load(Ordering::Acquire) {
        if fabric.poll(kernel.now(), 64) == Progress::Worked {
            continue;
        }
        for (_, bell) in bells {
            bell.store(1, Ordering::SeqCst);
        }
        if fabric.prepare_sleep() {
            let deadline = fabric.next_deadline();
            let rung = || bells.iter().any(|(_, bell)| bell.load(Ordering::Acquire) == 0);
            while !rung()
                && !killed.load(Ordering::Acquire)
                && deadline.is_none_or(|deadline| kernel.now() < deadline)
            {
                std::thread::sleep(NAP);
            }
            for &(id, bell) in bells {
                if bell.load(Ordering::Acquire) == 0 {
                    fabric.kicked(id);
                }
            }
        }
        fabric.awake();
    }
}
