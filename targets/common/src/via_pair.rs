//! Two connected virtual interfaces, each on its own opening of a NIC, with memory at each.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;

use platform::sync::Mutex;
use platform::{DmaBuffer, Platform, Signal};
use vipl::{
    AddressSegment, CqHandle, DataSegment, Descriptor, Error, MemAttributes, MemHandle, Memory, Nic,
    ReliabilityLevel, Status, ViAttributes, ViHandle, descriptor_len, is_success, operation,
};

use crate::{Failure, Node, Trying};

/// How long anything may take, milliseconds.
const PATIENCE: u32 = 30_000;
/// Descriptors that each queue of an end has memory for.
pub const DESCRIPTORS: usize = 256;
/// Descriptors that may be on a queue at a time.
const ENTRIES: u32 = 64;
/// Data and address segments that a descriptor has room for.
const SEGMENTS: usize = 2;

/// A work queue of a virtual interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// A virtual interface with its memory and its descriptors.
pub struct End {
    /// The NIC.
    pub nic: Nic,
    /// The virtual interface.
    pub vi: ViHandle,
    attributes: ViAttributes,
    memory: Arc<DmaBuffer>,
    region: MemHandle,
    descriptors: Arc<DmaBuffer>,
    descriptors_region: MemHandle,
}

impl End {
    /// A virtual interface of a NIC with this memory, for messages of so many bytes at most. It is
    /// not connected.
    pub fn new(
        node: &Node,
        nic: usize,
        memory: &Arc<DmaBuffer>,
        level: ReliabilityLevel,
        message: usize,
    ) -> Result<End, Failure> {
        let nic = node.vipl.open_nic(&format!("rnic{nic}")).trying("VipOpenNic")?;
        let ptag = nic.create_ptag().trying("VipCreatePtag")?;
        let attributes = ViAttributes {
            reliability_level: level,
            max_transfer_size: message as u64,
            enable_rdma_write: true,
            enable_rdma_read: level.is_reliable(),
            ..ViAttributes::new(ptag)
        };
        let shared = MemAttributes { ptag, enable_rdma_write: true, enable_rdma_read: level.is_reliable() };
        let region = nic
            .register_mem(Memory::buffer(memory), memory.len() as u64, &shared)
            .trying("VipRegisterMem")?;
        let length = 2 * DESCRIPTORS * descriptor_len(SEGMENTS);
        let descriptors = DmaBuffer::new(&node.platform, length, 4096).map_err(|_| "out of memory");
        let descriptors = Arc::new(descriptors.trying("memory for descriptors")?);
        let descriptors_region = nic
            .register_mem(Memory::buffer(&descriptors), length as u64, &MemAttributes::new(ptag))
            .trying("VipRegisterMem")?;
        let vi = create(&nic, &attributes)?;
        Ok(End { nic, vi, attributes, memory: memory.clone(), region, descriptors, descriptors_region })
    }

    /// Another virtual interface of the same attributes.
    pub fn another(&self) -> Result<ViHandle, Failure> {
        create(&self.nic, &self.attributes)
    }

    /// A part of the memory; no segment if it has no bytes.
    pub fn segments(&self, offset: usize, length: usize) -> ([DataSegment; 1], usize) {
        let address = (self.memory.addr() + offset) as u64;
        let segment = DataSegment { address, handle: self.region.as_raw(), length: length as u32 };
        ([segment], usize::from(length > 0))
    }

    /// A place in the memory, as the peer names it.
    pub fn remote(&self, offset: usize) -> AddressSegment {
        let address = (self.memory.addr() + offset) as u64;
        AddressSegment { address, handle: self.region.as_raw(), reserved: 0 }
    }

    /// Descriptor `n` of a queue, in the same memory as descriptor `n` + [`DESCRIPTORS`].
    pub fn descriptor(&self, queue: Queue, n: usize) -> Result<Descriptor<'_>, Failure> {
        let place = queue as usize * DESCRIPTORS + n % DESCRIPTORS;
        Descriptor::at(&self.descriptors, place * descriptor_len(SEGMENTS), SEGMENTS)
            .map_err(|_| Failure::new("a descriptor out of bounds"))
    }

    /// Posts a descriptor that is formatted.
    pub fn post(&self, queue: Queue, descriptor: &Descriptor<'_>) -> Result<(), Failure> {
        self.post_to(self.vi, queue, descriptor)
    }

    /// Posts a descriptor to another virtual interface of the NIC.
    pub fn post_to(&self, vi: ViHandle, queue: Queue, descriptor: &Descriptor<'_>) -> Result<(), Failure> {
        let (address, memory) = (descriptor.address(), self.descriptors_region);
        match queue {
            Queue::Send => self.nic.post_send(vi, address, memory).trying("VipPostSend"),
            Queue::Receive => self.nic.post_recv(vi, address, memory).trying("VipPostRecv"),
        }
    }

    /// Waits for descriptor `n` at the head of a queue, which has to be a success of this
    /// operation.
    pub fn done(&self, queue: Queue, n: usize, expected: Status) -> Result<Descriptor<'_>, Failure> {
        // A busy consumer finds descriptors without waiting.
        let done = match queue {
            Queue::Send => self.nic.send_done(self.vi),
            Queue::Receive => self.nic.recv_done(self.vi),
        };
        let address = match done {
            Err(Error::NotDone) => self.wait(queue)?,
            done => done.trying("VipSendDone, VipRecvDone")?,
        };
        let descriptor = self.descriptor(queue, n)?;
        if address != descriptor.address() {
            return Err(Failure::new(format!("descriptor {n} of {queue:?} is not the next one")));
        }
        check(&descriptor, expected)?;
        Ok(descriptor)
    }

    /// Waits for a descriptor at the head of a queue; its address.
    pub fn wait(&self, queue: Queue) -> Result<u64, Failure> {
        match queue {
            Queue::Send => self.nic.send_wait(self.vi, PATIENCE).trying("VipSendWait"),
            Queue::Receive => self.nic.recv_wait(self.vi, PATIENCE).trying("VipRecvWait"),
        }
    }

    /// Disconnects, and closes the NIC, which destroys all of its objects.
    fn close(self) -> Result<(), Failure> {
        self.nic.disconnect(self.vi).trying("VipDisconnect")?;
        self.nic.close_nic().trying("VipCloseNic")
    }
}

/// Fails unless a descriptor that is complete is a success of this operation.
pub fn check(descriptor: &Descriptor<'_>, expected: Status) -> Result<(), Failure> {
    let status = descriptor.status();
    if is_success(status) && operation(status) == expected {
        return Ok(());
    }
    Err(Failure::new(format!("not a success of {expected:?}: {status:?}")))
}

fn create(nic: &Nic, attributes: &ViAttributes) -> Result<ViHandle, Failure> {
    nic.create_vi_sized(attributes, CqHandle::NULL, CqHandle::NULL, [ENTRIES; 2]).trying("VipCreateVi")
}

/// Both ends.
pub struct Pair {
    /// The side that asked for the connection.
    pub a: End,
    /// The side that accepted.
    pub b: End,
}

impl Pair {
    /// Connects virtual interfaces of these NICs with this memory, for messages of so many bytes at
    /// most.
    pub fn connect(
        node: &Node,
        nics: [usize; 2],
        memory: [&Arc<DmaBuffer>; 2],
        level: ReliabilityLevel,
        message: usize,
    ) -> Result<Pair, Failure> {
        let a = End::new(node, nics[0], memory[0], level, message)?;
        let b = End::new(node, nics[1], memory[1], level, message)?;
        let pair = Pair { a, b };
        pair.connect_all(&node.platform, &[pair.a.vi], &[pair.b.vi])?;
        Ok(pair)
    }

    /// Connects virtual interfaces of A to as many of B, in their order.
    pub fn connect_all(
        &self,
        platform: &Arc<dyn Platform>,
        ours: &[ViHandle],
        theirs: &[ViHandle],
    ) -> Result<(), Failure> {
        let server = self.b.nic.address(b"pair").trying("the server's address")?;
        let own = self.a.nic.address(b"client").trying("the client's address")?;
        let accepted = Arc::new((Mutex::new(None), Signal::new(platform.clone())));
        let (nic, local, theirs, given) =
            (self.b.nic.clone(), server.clone(), theirs.to_vec(), accepted.clone());
        let main = move || {
            let accept = |vi| {
                let request = nic.connect_wait(&local, None, PATIENCE)?;
                nic.connect_accept(request.conn, vi)
            };
            *given.0.lock() = Some(theirs.into_iter().try_for_each(accept));
            given.1.raise();
        };
        platform.spawn("via-server", Box::new(main)).map_err(|_| "out of memory").trying("a thread")?;
        for vi in ours {
            self.a.nic.connect_request(*vi, &own, &server, PATIENCE).trying("VipConnectRequest")?;
        }
        loop {
            let seen = accepted.1.value();
            if let Some(outcome) = accepted.0.lock().take() {
                return outcome.trying("VipConnectWait, VipConnectAccept");
            }
            accepted.1.wait(seen, None);
        }
    }

    /// Closes both NICs. The end that is closed last hears that its connections are lost, which is
    /// no error here.
    pub fn close(self) -> Result<(), Failure> {
        self.b.nic.error_callback(0, Some(Box::new(|_, _| {}))).trying("VipErrorCallback")?;
        self.a.close()?;
        self.b.close()
    }
}
