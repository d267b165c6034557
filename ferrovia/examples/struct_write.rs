//! Stores a struct in a peer's memory by an RDMA Write, from memory that is named by its bus
//! address (IT-API's direct LMR handle): `cargo run -p ferrovia --example struct_write`.

use std::error::Error;

use ferrovia::rdma::{Access, Nic, RemoteMemory, Work};
use ferrovia::{Agent, Config};

/// What the client stores: a reading of a sensor.
#[derive(Debug, PartialEq)]
struct Reading {
    sensor: u32,
    celsius: f32,
}

impl Reading {
    fn to_bytes(&self) -> [u8; 8] {
        let (sensor, celsius) = (u64::from(self.sensor), u64::from(self.celsius.to_bits()));
        (sensor << 32 | celsius).to_be_bytes()
    }

    fn from_bytes(bytes: [u8; 8]) -> Reading {
        let word = u64::from_be_bytes(bytes);
        Reading { sensor: (word >> 32) as u32, celsius: f32::from_bits(word as u32) }
    }
}

/// Boots, connects, and stores a reading.
pub fn main() -> Result<(), Box<dyn Error>> {
    let machine = host::Machine::new(2);
    let open = |n| Agent::open(machine.platform(), machine.transport(n), n as u32, Config::default());
    let (a, b) = (Nic::open(&open(0)?)?.domain()?, Nic::open(&open(1)?)?.domain()?);
    // The server's memory, which peers may write. It tells the client where when it accepts.
    let store = b.shared_region(4096, Access::WRITE)?;
    let (client, server) = (a.endpoint().privileged(machine.privileged()).build()?, b.endpoint().build()?);
    let listener = b.nic().listen(4711)?;
    let connecting = client.connect(b.nic().address(), 4711);
    let place = store.remote().ok_or("peers may write it")?.to_bytes();
    let accepted = listener.wait()?.accept_with(&server, &place);
    let place = RemoteMemory::from_bytes(connecting.wait()?.bytes()).ok_or("a short answer")?;
    accepted.wait()?;
    // The reading, and a number that tells the server that it is there.
    let reading = Reading { sensor: 7, celsius: 21.5 };
    let source = a.direct(8, machine.privileged())?;
    source.slice(..).write(&reading.to_bytes());
    let told = server.receive(store.slice(..0))?;
    client.start(Work::write(source.slice(..), place.from(64)).immediate(64))?.wait()?;
    let at = told.wait()?.immediate.ok_or("a write with a number")? as usize;
    let mut bytes = [0; 8];
    store.get(at..).ok_or("a place in the store")?.read(&mut bytes);
    println!("{:?}", Reading::from_bytes(bytes));
    assert_eq!(Reading::from_bytes(bytes), reading);
    Ok(())
}
