//! The server of QEMU's ivshmem-doorbell device (QEMU, docs/specs/ivshmem-spec.rst), one for each
//! NIC.
//!
//! All messages are put into a socket pair before QEMU starts, so no server has to run and no
//! socket has a name in the file system. BAR 2 is the register file. The guest kicks by a write to
//! BAR 0. A write to one of the guest's eventfds becomes an MSI-X message.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use nic_abi::{pci, registers};
use platform::SharedSlice;
use rustix::event::EventfdFlags;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::{Attachment, Frontend, Port};
use crate::error::{Error, Result};
use crate::memory::{GuestRam, SharedMemory};
use crate::thread::{Device, Plugs, Wire};

/// The version of the protocol.
const PROTOCOL_VERSION: i64 = 0;
/// The device's number among ivshmem's peers; [`pci::IVSHMEM_KICK`] addresses it.
const DEVICE: i64 = (pci::IVSHMEM_KICK >> 16) as i64;
/// The guest's number among ivshmem's peers.
const GUEST: i64 = DEVICE + 1;
/// Announces the shared memory.
const SHARED_MEMORY: i64 = -1;

/// Attaches NICs by ivshmem-doorbell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ivshmem;

struct IvshmemAttachment {
    index: usize,
    /// The launcher's end stays open; otherwise QEMU would report that the server has gone.
    _ours: OwnedFd,
    theirs: Option<OwnedFd>,
}

/// The device's side of a NIC that is attached by ivshmem-doorbell.
#[derive(Debug)]
pub struct IvshmemPort {
    ram: GuestRam,
    parts: Arc<Parts>,
}

/// What QEMU gets for a NIC.
#[derive(Debug)]
struct Parts {
    registers: SharedMemory,
    kick: OwnedFd,
    interrupts: Vec<OwnedFd>,
}

/// Sends a NIC's messages to one QEMU after another.
#[derive(Debug)]
pub struct Server(Arc<Parts>);

impl Server {
    /// Sends the messages that QEMU needs. They fit into the socket.
    pub fn introduce(&self, to: impl AsFd) -> Result<()> {
        self.0.introduce(to.as_fd()).map_err(|e| Error::system("introduce a NIC to QEMU", e))
    }
}

impl Frontend for Ivshmem {
    type Port = IvshmemPort;

    fn attach(&self, index: usize, ram: &GuestRam) -> Result<(Box<dyn Attachment>, IvshmemPort)> {
        let failed = |e| Error::system(format!("make the ivshmem server of NIC {index}"), e);
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        let (port, server) = IvshmemPort::new(index, ram)?;
        server.introduce(&ours)?;
        Ok((Box::new(IvshmemAttachment { index, _ours: ours, theirs: Some(theirs) }), port))
    }

    fn start(&self, ports: Vec<IvshmemPort>, plugs: Plugs) -> Result<Device> {
        Device::start(ports, plugs)
    }
}

impl IvshmemPort {
    /// NIC number `index` of a guest with the memory `ram`, and its server.
    pub fn new(index: usize, ram: &GuestRam) -> Result<(IvshmemPort, Server)> {
        let failed = |e| Error::system(format!("make the doorbells of NIC {index}"), e);
        let eventfd =
            || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed);
        let parts = Arc::new(Parts {
            registers: SharedMemory::new(&format!("the registers of NIC {index}"), registers::SIZE)?,
            kick: eventfd()?,
            interrupts: (0..pci::VECTORS).map(|_| eventfd()).collect::<Result<_>>()?,
        });
        Ok((IvshmemPort { ram: ram.clone(), parts: parts.clone() }, Server(parts)))
    }
}

impl Parts {
    /// Sends all messages, in the order of the protocol.
    fn introduce(&self, to: BorrowedFd<'_>) -> rustix::io::Result<()> {
        send(to, PROTOCOL_VERSION, None)?;
        send(to, GUEST, None)?;
        send(to, SHARED_MEMORY, Some(self.registers.fd()))?;
        send(to, DEVICE, Some(self.kick.as_fd()))?;
        for interrupt in &self.interrupts {
            send(to, GUEST, Some(interrupt.as_fd()))?;
        }
        Ok(())
    }
}

/// Sends one message; never blocks.
fn send(to: BorrowedFd<'_>, message: i64, descriptor: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = message.to_le_bytes();
    rustix::net::sendmsg(
        to,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

impl Attachment for IvshmemAttachment {
    fn arguments(&self) -> Vec<String> {
        let Some(theirs) = &self.theirs else { return Vec::new() };
        let (index, fd) = (self.index, theirs.as_raw_fd());
        vec![
            "-chardev".into(),
            format!("socket,id=iv{index},fd={fd}"),
            "-device".into(),
            format!("ivshmem-doorbell,id=nic{index},vectors={},chardev=iv{index}", pci::VECTORS),
        ]
    }

    fn inherited(&self) -> Vec<RawFd> {
        self.theirs.iter().map(AsRawFd::as_raw_fd).collect()
    }

    fn started(&mut self) {
        self.theirs = None;
    }
}

impl nic_model::Frontend for IvshmemPort {
    type Memory = GuestRam;
    type Wire = Wire;

    fn registers(&self) -> SharedSlice<'_> {
        self.parts.registers.slice()
    }

    fn memory(&self) -> &GuestRam {
        &self.ram
    }

    fn raise(&self, vector: u16) {
        if let Some(eventfd) = self.parts.interrupts.get(usize::from(vector)) {
            // This fails only if 2^64 - 2 interrupts are pending, and then another one changes
            // nothing.
            let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
        }
    }
}

impl Port for IvshmemPort {
    fn kick(&self) -> Result<OwnedFd> {
        self.parts.kick.try_clone().map_err(|e| Error::system("share the doorbell of a NIC", e))
    }

    fn dma_limit(&self) -> u64 {
        self.ram.limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic_model::Frontend as _;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    use std::io::IoSliceMut;

    fn ram() -> GuestRam {
        GuestRam::new(1 << 20).expect("1 MiB")
    }

    fn receive(from: BorrowedFd<'_>) -> (i64, Option<OwnedFd>) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 8];
        let got = rustix::net::recvmsg(
            from,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::DONTWAIT,
        )
        .expect("a message is there");
        assert_eq!(got.bytes, 8);
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        (i64::from_le_bytes(bytes), descriptor)
    }

    /// Plays QEMU: reads the messages in the order of docs/specs/ivshmem-spec.rst and uses the
    /// descriptors that came with them.
    #[test]
    fn qemu_gets_all_messages_in_order_and_their_descriptors_work() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .expect("pair");
        let (port, server) = IvshmemPort::new(0, &ram()).expect("a NIC");
        server.introduce(&ours).expect("it all fits in the socket");
        let theirs = theirs.as_fd();
        assert!(matches!(receive(theirs), (0, None)), "version");
        assert!(matches!(receive(theirs), (GUEST, None)), "the guest's number");
        let (number, memory) = receive(theirs);
        assert_eq!(number, -1);
        let size = rustix::fs::fstat(memory.expect("shared memory")).expect("fstat").st_size;
        assert_eq!(size, 1 << 20);
        let (number, kick) = receive(theirs);
        assert_eq!(number, 0);
        rustix::io::write(kick.expect("a doorbell"), &1u64.to_ne_bytes()).expect("ring");
        assert_eq!(
            rustix::io::read(port.kick().expect("a doorbell"), &mut [0; 8]),
            Ok(8),
            "the kick arrives"
        );
        let interrupts: Vec<OwnedFd> = (0..pci::VECTORS)
            .map(|_| match receive(theirs) {
                (GUEST, Some(fd)) => fd,
                other => panic!("not an interrupt: {other:?}"),
            })
            .collect();
        port.raise(3);
        for (vector, fd) in interrupts.iter().enumerate() {
            let raised = rustix::io::read(fd, &mut [0; 8]) == Ok(8);
            assert_eq!(raised, vector == 3, "vector {vector}");
        }
        port.raise(pci::VECTORS);
    }

    #[test]
    fn qemus_end_of_the_socket_is_closed_once_it_runs() {
        let (mut attachment, _port) = Ivshmem.attach(2, &ram()).expect("attach");
        let [fd] = attachment.inherited()[..] else { panic!("one descriptor") };
        let arguments = attachment.arguments();
        assert!(arguments.contains(&format!("socket,id=iv2,fd={fd}")), "{arguments:?}");
        attachment.started();
        assert!(attachment.inherited().is_empty());
    }
}
