use std::sync::Arc;

use ferrovia::Platform;
use ferrovia::platform::DmaBuffer;
use ferrovia::vipl::*;

const SECOND: u32 = 1_000;
/// Where in the page the text is, and where it arrives.
const FROM: usize = 1024;
const INTO: usize = 2048;

/// Sends `text` from one virtual interface to another one, and returns what arrived.
pub fn deliver(platform: &Arc<dyn Platform>, provider: &Provider, text: &[u8]) -> Result<Vec<u8>> {
    let nic = provider.open_nic("rnic0")?;
    let ptag = nic.create_ptag()?;
    let reliability_level = ReliabilityLevel::Delivery;
    let attributes = ViAttributes { reliability_level, ..ViAttributes::new(ptag) };
    let vi = || nic.create_vi(&attributes, CqHandle::NULL, CqHandle::NULL);
    let (source, target) = (vi()?, vi()?);

    // A page for two descriptors and the data of both ends; it has to be registered.
    let page = DmaBuffer::new(platform, 4096, 4096).map(Arc::new).expect("memory");
    let memory = nic.register_mem(Memory::buffer(&page), 4096, &MemAttributes::new(ptag))?;
    let piece = |offset: usize| {
        let (address, length) = ((page.addr() + offset) as u64, text.len() as u32);
        [DataSegment { address, handle: memory.as_raw(), length }]
    };
    page.write(FROM, text).expect("it fits");

    // A Receive can be posted before the connection is there; a Send cannot.
    let receive = Descriptor::at(&page, 0, 1).expect("within the page");
    receive.receive(&piece(INTO)).expect("one segment fits");
    nic.post_recv(target, receive.address(), memory)?;
    connect(platform, &nic, source, target)?;
    let send = Descriptor::at(&page, 64, 1).expect("within the page");
    send.send(&piece(FROM), None).expect("one segment fits");
    nic.post_send(source, send.address(), memory)?;

    // The NIC writes the status into the descriptor, so no call is needed to see it.
    while !receive.is_done() {
        std::hint::spin_loop();
    }
    assert!(is_success(receive.status()));
    let mut found = vec![0; receive.length() as usize];
    page.read(INTO, &mut found).expect("it is there");
    // A descriptor leaves its queue by a call, and can then be used again.
    assert_eq!(nic.recv_done(target)?, receive.address());
    assert_eq!(nic.send_wait(source, SECOND)?, send.address());
    // Closing the NIC destroys all that was made on it.
    nic.close_nic()?;
    Ok(found)
}

/// Connects two virtual interfaces of a NIC. The server waits in a thread of its own.
fn connect(platform: &Arc<dyn Platform>, nic: &Nic, client: ViHandle, server: ViHandle) -> Result<()> {
    let (here, there) = (nic.address(b"client")?, nic.address(b"server")?);
    let (serving, address) = (nic.clone(), there.clone());
    let serve = move || {
        // If this fails, the client learns of it.
        if let Ok(request) = serving.connect_wait(&address, None, SECOND) {
            let _ = serving.connect_accept(request.conn, server);
        }
    };
    platform.spawn("server", Box::new(serve)).map_err(|_| Error::ErrorResource)?;
    let remote = nic.connect_request(client, &here, &there, SECOND)?;
    assert!(!remote.enable_rdma_write, "the server accepts none");
    Ok(())
}
