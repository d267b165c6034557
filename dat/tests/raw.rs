//! Registering memory whose lifetime the caller guarantees: the only unsafe call.

use ferrovia_dat::*;
use host::Machine;
use kernel_agent::{Agent, Config};
use platform::DmaBuffer;

/// Longer than any event of these tests takes, in microseconds.
const PATIENCE: u32 = 60_000_000;
const QUALIFIER: u64 = 7;
const LOCAL: MemPriv = MemPriv::LOCAL_READ.union(MemPriv::LOCAL_WRITE);

/// A region of 64 bytes at `address`.
#[expect(unsafe_code, reason = "the call under test")]
fn create(ia: &Ia, pz: PzHandle, address: usize) -> Result<Lmr> {
    // SAFETY: the device can reach only memory of the arena, which outlives the IA, and no
    // reference to that memory is made.
    unsafe { ia.lmr_create_raw(address, 64, pz, LOCAL, VaType::Va) }
}

fn open(machine: &Machine) -> Ia {
    let provider = Provider::new(machine.platform());
    let device = machine.transports().into_iter().next().expect("a NIC");
    let agent = Agent::open(machine.platform(), device, 0, Config::default()).expect("an agent");
    provider.add("rnic0", agent).expect("a name");
    let (ia, _) = ia_open(&provider, "rnic0", machine.privileged(), 8, EvdHandle::NULL).expect("an IA");
    ia
}

fn next(ia: &Ia, evd: EvdHandle) -> Event {
    ia.evd_wait(evd, PATIENCE, 1).expect("an event").0
}

#[test]
fn the_device_reaches_raw_memory_until_the_region_is_freed() {
    let machine = Machine::new(1);
    let ia = open(&machine);
    let pz = ia.pz_create().unwrap();
    let evd = |flags| ia.evd_create(16, CnoHandle::NULL, flags).unwrap();
    let (requests, receives) = (evd(EvdFlags::DTO), evd(EvdFlags::DTO));
    let (connections, arrivals) = (evd(EvdFlags::CONNECTION), evd(EvdFlags::CR));
    let ep = || ia.ep_create(pz, receives, requests, connections, None).unwrap();
    let (from, to) = (ep(), ep());
    ia.psp_create(QUALIFIER, arrivals, PspFlags::Consumer).unwrap();
    let (_, attr, _) = ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE).unwrap();
    let address = attr.unwrap().ia_address;
    ia.ep_connect(from, address, QUALIFIER, PATIENCE, &[], Qos::BEST_EFFORT, ConnectFlags::Default).unwrap();
    let EventData::CrArrival(arrival) = next(&ia, arrivals).event_data else { panic!("a request") };
    ia.cr_accept(arrival.cr_handle, to, &[]).unwrap();
    for _ in 0..2 {
        assert_eq!(next(&ia, connections).event_number, EventNumber::CONNECTION_ESTABLISHED);
    }

    let buffer = || DmaBuffer::new(&machine.platform(), 64, 64).unwrap();
    let (source, sink) = (buffer(), buffer());
    source.write(0, &[7; 64]).unwrap();
    let at = |lmr: &Lmr, buffer: &DmaBuffer| LmrTriplet::new(lmr.lmr_context, buffer.addr() as u64, 64);
    let (source_lmr, sink_lmr) =
        (create(&ia, pz, source.addr()).unwrap(), create(&ia, pz, sink.addr()).unwrap());
    assert_eq!(source_lmr.lmr_context, LmrContext::of(source_lmr.lmr_handle));
    assert_eq!(source_lmr.rmr_context, None, "peers have no privileges");
    let send = |cookie| {
        ia.ep_post_recv(to, &[at(&sink_lmr, &sink)], cookie, CompletionFlags::DEFAULT).unwrap();
        ia.ep_post_send(from, &[at(&source_lmr, &source)], cookie, CompletionFlags::DEFAULT).unwrap();
        next(&ia, requests).dto().expect("a completion").status
    };
    assert_eq!(send(1), DtoStatus::Success);
    let mut got = [0; 64];
    sink.read(0, &mut got).unwrap();
    assert_eq!(got, [7; 64]);
    ia.lmr_free(source_lmr.lmr_handle).unwrap();
    assert_eq!(send(2), DtoStatus::LocalProtection);
    ia.ia_close(CloseFlags::Abrupt).unwrap();
}

#[test]
fn a_refused_registration_leaves_no_region() {
    let machine = Machine::new(1);
    let ia = open(&machine);
    let pz = ia.pz_create().unwrap();
    // Memory that the device cannot reach, and ranges beyond the end of the address space.
    for address in [0, 8, &raw const machine as usize, usize::MAX - 62, usize::MAX] {
        let refused = create(&ia, pz, address).expect_err("not the arena's");
        assert_eq!(refused.kind(), ErrorType::InvalidParameter, "{address:#x}");
    }
    ia.pz_free(pz).unwrap();
    ia.ia_close(CloseFlags::Graceful).unwrap();
}
