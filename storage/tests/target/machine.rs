//! What the tests share: a machine with NICs, a target on all but one of them, hosts on the last.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use block::Disk;
use block::ram::RamDisk;
use platform::{DmaBuffer, Platform, Privileged};
use rdma::Nic;
use storage::Error;
use storage::initiator::{Initiator, Options, Region};
use storage::target::{Config, Control, Export, Snapshot, Target};

pub const NQN: &str = "nqn.2026-01.org.ferrovia:test";

pub struct Machine {
    machine: host::Machine,
    node: common::Node,
    /// NICs of the target.
    ports: usize,
}

/// A target that runs in a thread.
pub struct Running {
    pub control: Control,
    /// Where hosts connect.
    pub address: IpAddr,
    thread: JoinHandle<Result<(), Error>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
}

/// Shows what the target and the stack log beside a test that fails.
struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        eprintln!("{}: {}", record.target(), record.args());
    }

    fn flush(&self) {}
}

impl Running {
    /// The target, where hosts connect by this port from now on.
    pub fn by(&mut self, port: u16) -> &Running {
        let overview = self.control.overview().unwrap();
        let port = overview.ports.iter().find(|one| one.id == port).expect("a port");
        self.address = port.addresses[0];
        self
    }

    /// Waits until the counters are as they should be.
    pub fn wait_for(&self, is_right: impl Fn(&Snapshot) -> bool) {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while !is_right(&self.control.statistics()) {
            assert!(std::time::Instant::now() < deadline, "{:?}", self.control.statistics());
            std::thread::yield_now();
        }
    }
}

impl Machine {
    pub fn new() -> Machine {
        Machine::with_ports(1)
    }

    /// A machine whose targets have so many NICs.
    pub fn with_ports(ports: u8) -> Machine {
        // It is set already if another test ran before in this process.
        let _ = log::set_logger(&Log);
        log::set_max_level(log::LevelFilter::Debug);
        let machine = host::Machine::new(ports + 1);
        let node =
            common::Node::start(machine.platform(), machine.privileged(), machine.transports()).unwrap();
        Machine { machine, node, ports: ports.into() }
    }

    pub fn platform(&self) -> Arc<dyn Platform> {
        self.machine.platform()
    }

    pub fn ram_disks(&self, sizes: &[usize]) -> Vec<Arc<dyn Disk>> {
        let disk = |&size: &usize| {
            Arc::new(RamDisk::new(&self.platform(), 512, size as u64 / 512).unwrap()) as Arc<dyn Disk>
        };
        sizes.iter().map(disk).collect()
    }

    pub fn config(&self, disks: Vec<Arc<dyn Disk>>) -> Config {
        let export = |(number, disk)| Export::new(disk, [number; 16]);
        let disks = (1..).zip(disks).map(export).collect();
        let workers = crate::WORKERS;
        Config { commands: 2048 * workers, memory: 4 << 20, workers, ..Config::new(NQN, disks) }
    }

    /// Starts a target.
    pub fn target(&self, disks: Vec<Arc<dyn Disk>>) -> Running {
        self.target_with(self.config(disks))
    }

    pub fn target_with(&self, config: Config) -> Running {
        let mut target = self.make(config).unwrap();
        let workers = target.workers().into_iter().map(|worker| std::thread::spawn(move || worker.run()));
        let workers = workers.collect();
        let (control, addresses) = (target.control(), target.addresses());
        let thread = std::thread::spawn(move || target.run());
        Running { control, address: addresses[0], thread, workers }
    }

    /// Whether a target is not made of a configuration, since that is wrong.
    pub fn refuses(&self, config: Config) -> bool {
        matches!(self.make(config), Err(Error::Config(_)))
    }

    fn make(&self, config: Config) -> Result<Target, Error> {
        let nics: Vec<Nic> = (0..self.ports).map(|number| self.node.nic(number).unwrap()).collect();
        Target::new(&nics, self.node.privileged, config)
    }

    /// Ends the device of a port's NIC, whose driver notices that after 10 seconds.
    pub fn power_off(&self, port: u16) {
        self.machine.power_off(usize::from(port) - 1);
    }

    pub fn privileged(&self) -> Privileged {
        self.node.privileged
    }

    /// An opening of the hosts' NIC.
    pub fn nic(&self) -> Nic {
        self.node.nic(self.ports).unwrap()
    }

    pub fn host(&self, target: &Running) -> Initiator {
        self.host_with(Options::new(target.address, NQN)).unwrap()
    }

    pub fn host_with(&self, options: Options) -> Result<Initiator, storage::initiator::Failure> {
        Initiator::connect(&self.nic(), self.node.privileged, options)
    }

    pub fn region(&self, host: &Initiator, bytes: usize) -> Region {
        host.register(Arc::new(DmaBuffer::new(&self.platform(), bytes, 4096).unwrap()))
    }

    /// Ends both, and checks that nothing is left.
    pub fn end(&self, host: Initiator, target: Running) {
        host.disconnect();
        self.stop(target);
        assert!(self.node.agents.iter().all(|agent| agent.counts() == Default::default()));
    }

    /// Stops a target.
    pub fn stop(&self, target: Running) {
        target.control.stop();
        target.thread.join().unwrap().unwrap();
        target.workers.into_iter().for_each(|worker| worker.join().unwrap().unwrap());
    }
}

/// Bytes that depend on the seed and on their place.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|n| (n.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 3) as u8).collect()
}
