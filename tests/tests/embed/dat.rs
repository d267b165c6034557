use std::sync::Arc;

use ferrovia::dat::*;
use ferrovia::platform::DmaBuffer;
use ferrovia::{Platform, Privileged, Provider};

const SECOND: u32 = 1_000_000;
const PLAIN: CompletionFlags = CompletionFlags::DEFAULT;

/// Writes `text` into the memory of another endpoint, and the number of bytes as immediate data:
/// one request, after which an event at the target says that the text is there. Returns what is.
pub fn deliver(
    platform: &Arc<dyn Platform>,
    provider: &Provider,
    privileged: Privileged,
    text: &[u8],
) -> Result<Vec<u8>> {
    let (ia, _) = ia_open(provider, "rnic0", privileged, 8, EvdHandle::NULL)?;
    let pz = ia.pz_create()?;
    let evd = |flags| ia.evd_create(16, CnoHandle::NULL, flags);
    let (completions, connections) = (evd(EvdFlags::DTO)?, evd(EvdFlags::CONNECTION)?);
    let arrivals = evd(EvdFlags::DTO)?;
    // Endpoints name the event dispatchers of Receives, of requests, and of the connection.
    let source = ia.ep_create(pz, completions, completions, connections, None)?;
    let target = ia.ep_create(pz, arrivals, completions, connections, None)?;
    connect(&ia, source, target, connections)?;

    let memory = || DmaBuffer::new(platform, 4096, 4096).map(Arc::new).expect("memory");
    let (from, into) = (memory(), memory());
    let region = |buffer| {
        let whole = RegionDescription::buffer(buffer);
        ia.lmr_create(whole, 4096, pz, MemPriv::ALL, VaType::Va)
    };
    let (local, remote) = (region(&from)?, region(&into)?);
    from.write(0, text).expect("it fits");

    // The Receive needs no segments: the data goes where the Write says.
    ia.ep_post_recv(target, &[], 0, PLAIN)?;
    let length = text.len() as u64;
    let segment = LmrTriplet::new(local.lmr_context, local.registered_address, length);
    let to = RmrTriplet {
        rmr_context: remote.rmr_context.expect("peers may use it"),
        target_address: remote.registered_address,
        segment_length: length,
    };
    ia.ib_post_rdma_write_with_immed(source, &[segment], 0, &to, length as u32, PLAIN)?;
    let (event, _) = ia.evd_wait(arrivals, SECOND, 1)?;
    let arrived = event.extension.expect("the event is an extension's").immed;
    let mut found = vec![0; arrived as usize];
    into.read(0, &mut found).expect("it is there");
    // An abrupt close frees all objects.
    ia.ia_close(CloseFlags::Abrupt)?;
    Ok(found)
}

/// Connects two endpoints of an IA.
fn connect(ia: &Ia, active: EpHandle, passive: EpHandle, connections: EvdHandle) -> Result<()> {
    let requests = ia.evd_create(1, CnoHandle::NULL, EvdFlags::CR)?;
    let (conn_qual, psp) = ia.psp_create_any(requests, PspFlags::Consumer)?;
    let (_, attributes, _) = ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
    let address = attributes.expect("the mask asks for them").ia_address;
    let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::Default);
    ia.ep_connect(active, address, conn_qual, SECOND, &[], qos, flags)?;
    if let EventData::CrArrival(arrival) = ia.evd_wait(requests, SECOND, 1)?.0.event_data {
        ia.cr_accept(arrival.cr_handle, passive, &[])?;
    }
    // Each endpoint has its event.
    for _ in 0..2 {
        let (event, _) = ia.evd_wait(connections, SECOND, 1)?;
        assert_eq!(event.event_number, EventNumber::CONNECTION_ESTABLISHED);
    }
    ia.psp_free(psp)?;
    ia.evd_free(requests)
}
