//! A NIC on a machine in this process: for tests of what no call shows.

extern crate std;

use alloc::sync::Arc;

use host::Machine;
use kernel_agent::{Agent, Config};

use crate::nic::Core;
use crate::vi::Vi;
use crate::{CqHandle, Nic, Provider, PtagHandle, ReliabilityLevel, ViAttributes, ViHandle};

/// Longer than anything takes, in milliseconds.
pub(crate) const PATIENCE: u32 = 20_000;

pub(crate) struct Scene {
    pub(crate) nic: Nic,
    pub(crate) ptag: PtagHandle,
    agent: Arc<Agent>,
    _machine: Machine,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let machine = Machine::new(1);
        let interfaces = Arc::new(rdma::Interfaces::new(machine.platform()));
        let agent =
            Agent::open(machine.platform(), machine.transport(0), 0, Config::default()).expect("an agent");
        let (none, pairs) = (rdma::Limits::NONE, rdma::Endpoints::QueuePairs);
        interfaces.add("nic", agent.clone(), none, pairs).expect("a name");
        let nic = Provider::new(&interfaces).open_nic("nic").expect("a NIC");
        let ptag = nic.create_ptag().expect("a tag");
        Scene { nic, ptag, agent, _machine: machine }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.nic.core()
    }

    /// A virtual interface without completion queues.
    pub(crate) fn vi(&self, level: ReliabilityLevel) -> (ViHandle, Arc<Vi>) {
        let attributes = ViAttributes { reliability_level: level, ..ViAttributes::new(self.ptag) };
        let handle = self.nic.create_vi(&attributes, CqHandle::NULL, CqHandle::NULL).expect("room");
        (handle, self.core().vi(handle).expect("it is new"))
    }

    /// Connects two virtual interfaces.
    pub(crate) fn connect(&self, a: ViHandle, b: ViHandle) {
        let [own, server] = [&b"client"[..], b"server"].map(|name| self.nic.address(name).expect("short"));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let request = self.nic.connect_wait(&server, None, PATIENCE).expect("a request");
                self.nic.connect_accept(request.conn, b).expect("the client waits");
            });
            self.nic.connect_request(a, &own, &server, PATIENCE).expect("a server");
        });
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A test may have closed it.
        let _ = self.nic.close_nic();
        self.agent.close();
    }
}
