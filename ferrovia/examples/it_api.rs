//! Brings the stack up in an ordinary process, connects two endpoints and sends a message by the
//! routines of IT-API: `cargo run -p ferrovia --example it_api`. docs/embed.md goes through it.

use std::error::Error;
use std::sync::Arc;

use ferrovia::it_api::*;
use ferrovia::platform::DmaBuffer;
use ferrovia::{Agent, Config, Platform};

/// The service that the listener offers.
const SERVICE: ConnQual = ConnQual::port(4711);
/// Microseconds; nothing here takes this long.
const PATIENCE: u64 = 10_000_000;

/// A dispatcher of 16 events.
fn evd(ia: &Ia, stream: EventType) -> Result<EvdHandle, Box<dyn Error>> {
    Ok(ia.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 16, 1, EvdHandle::NULL)?)
}

/// One end of the connection, with memory of its own.
struct End {
    ia: Ia,
    transfers: EvdHandle,
    connection: EvdHandle,
    ep: EpHandle,
    buffer: Arc<DmaBuffer>,
    lmr: LmrHandle,
}

impl End {
    fn new(ia: Ia, platform: &Arc<dyn Platform>) -> Result<End, Box<dyn Error>> {
        let transfers = evd(&ia, EventType::DTO_EVENT_STREAM)?;
        let connection = evd(&ia, EventType::CM_MSG_EVENT_STREAM)?;
        let pz = ia.pz_create()?;
        let (flags, attributes) = (EpFlags::empty(), EpAttributes::default());
        let ep = ia.ep_rc_create(pz, transfers, transfers, connection, flags, &attributes)?;
        let buffer = Arc::new(DmaBuffer::new(platform, 4096, 4096)?);
        let (memory, mode) = (LmrMemory::buffer(&buffer), AddrMode::Absolute);
        let (lmr, _) = ia.lmr_create(pz, memory, 4096, mode, MemPriv::LOCAL, LmrFlags::empty(), 0)?;
        Ok(End { ia, transfers, connection, ep, buffer, lmr })
    }

    fn segment(&self, len: usize) -> LmrTriplet {
        LmrTriplet::new(self.lmr, self.buffer.addr() as u64, len as u64)
    }

    /// Waits for a transfer to end, and returns how many bytes it moved.
    fn transferred(&self) -> Result<usize, Box<dyn Error>> {
        match self.ia.evd_wait(self.transfers, PATIENCE)?.0 {
            Event::Dto(done) if done.dto_status == DtoStatus::Success => Ok(done.transferred_length as usize),
            other => Err(format!("no success: {other:?}").into()),
        }
    }
}

/// Boots, connects, and sends a message.
pub fn main() -> Result<(), Box<dyn Error>> {
    // Boot code: a platform, an agent for each of its NICs, and the token of privileged consumers.
    let machine = host::Machine::new(2);
    let (platform, privileged) = (machine.platform(), machine.privileged());
    let provider = Provider::new(platform.clone());
    for (number, device) in (0..).zip(machine.transports()) {
        let agent = Agent::open(platform.clone(), device, number, Config::default())?;
        provider.add(&format!("rnic{number}"), agent)?;
    }
    // Consumers: an IA on each NIC, and an endpoint with the objects that it needs.
    let a = End::new(provider.ia_create("rnic0", 2, 1, Some(privileged))?, &platform)?;
    let b = End::new(provider.ia_create("rnic1", 2, 1, Some(privileged))?, &platform)?;
    // b listens, a connects, b accepts. The receive is posted before a message can arrive.
    let requests = evd(&b.ia, EventType::CM_REQ_EVENT_STREAM)?;
    let spigot = b.ia.ia_query()?.spigot_info.remove(0);
    b.ia.listen_create(spigot.spigot_id, requests, ListenFlags::CONN_QUAL_INPUT, Some(&SERVICE))?;
    let (paths, _) = a.ia.get_pathinfo(1, &spigot.net_addr[0], 1)?;
    a.ia.ep_connect(a.ep, &paths[0], None, &SERVICE, CnEstFlags::TWO_WAY, b"")?;
    let (Event::ConnRequest(request), _) = b.ia.evd_wait(requests, PATIENCE)? else {
        return Err("not a request".into());
    };
    let signalled = DtoFlags::COMPLETION | DtoFlags::NOTIFY;
    b.ia.post_recv(b.ep, &[b.segment(4096)], 1, signalled)?;
    b.ia.ep_accept(b.ep, request.cn_est_id, b"")?;
    for end in [&a, &b] {
        println!("{:?}", end.ia.evd_wait(end.connection, PATIENCE)?.0.event_number());
    }
    // The message.
    let message = b"hello from one NIC to the other";
    a.buffer.write(0, message)?;
    a.ia.post_send(a.ep, &[a.segment(message.len())], 2, signalled)?;
    a.transferred()?;
    let mut received = vec![0; b.transferred()?];
    b.buffer.read(0, &mut received)?;
    println!("{}", String::from_utf8_lossy(&received));
    assert_eq!(received, message);
    // Freeing an IA frees all that was made on it.
    a.ia.ia_free()?;
    Ok(b.ia.ia_free()?)
}
