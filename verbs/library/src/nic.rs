//! The NIC of the process, as the verbs use it.

use std::sync::Arc;

use process_nic::{Engine, Environment, Peers};
use verbs::cm::connection;
use verbs::{Nic, Stepped};

use crate::seen;

/// The device of the NIC.
struct Device(Arc<Engine>);

impl Stepped for Device {
    fn step(&self) -> bool {
        self.0.step()
    }

    fn meet(&self, from: [u8; 16], to: [u8; 16]) {
        self.0.meet(from, to);
    }

    fn leave(&self) {
        self.0.leave();
    }
}

/// Opens the NIC of this process. An error is one line.
pub fn open() -> Result<Nic, String> {
    let peers = Peers { all: connection::peers, lost: connection::lost };
    let nic = process_nic::open(Environment::read("")?, peers)?;
    let interfaces = seen::show(&nic.name, verbs::gids(&nic.agent), &nic.addresses);
    let stepped: Arc<dyn Stepped> = Arc::new(Device(nic.engine));
    Ok(Nic { name: nic.name, agent: nic.agent, stepped: Some(stepped), interfaces })
}
