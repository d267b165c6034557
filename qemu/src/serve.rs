//! The device alone, for a QEMU that the user starts: `nic`.
//!
//! Each NIC has a socket, at which QEMU's ivshmem-doorbell finds it. The launcher owns the memory.
//! QEMU reaches both through /proc: the socket loses its name as soon as it has one, so nothing is
//! left behind however the launcher ends. When QEMU ends, its NICs are powered off and on again,
//! and the memory is zeroed, so the next QEMU gets a fresh machine.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nic_abi::pci;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use crate::error::{Error, Result};
use crate::launch::print_line;
use crate::options::Options;
use crate::signals::{Asked, Signals};
use crate::temporary;
use device::frontend::Frontend;
use device::frontend::ivshmem::{Ivshmem, IvshmemPort, Server};
use device::memory::GuestRam;

/// A NIC and its socket, to which one QEMU at a time connects.
struct Place {
    /// The socket in the file system, by which QEMU reaches it.
    file: OwnedFd,
    listener: UnixListener,
    server: Server,
    qemu: Option<UnixStream>,
}

impl Place {
    fn new(path: &Path, server: Server) -> Result<Place> {
        let failed = |e: std::io::Error| Error::system(format!("listen at {}", path.display()), e);
        let listener = UnixListener::bind(path).map_err(failed)?;
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        fs::remove_file(path).map_err(failed)?;
        let file = file.map_err(|e| failed(e.into()))?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Place { file, listener, server, qemu: None })
    }

    /// What to wait for: the next QEMU, or the end of the connected one.
    fn descriptor(&self) -> PollFd<'_> {
        match &self.qemu {
            Some(qemu) => PollFd::new(qemu, PollFlags::IN),
            None => PollFd::new(&self.listener, PollFlags::IN),
        }
    }

    /// Handles an event of the socket; true if its QEMU has left.
    fn attend(&mut self) -> bool {
        if let Some(qemu) = &mut self.qemu {
            // QEMU sends nothing. A process that sends something is not QEMU.
            let left = !matches!(qemu.read(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
            if left {
                self.qemu = None;
            }
            return left;
        }
        if let Ok((qemu, _)) = self.listener.accept()
            && qemu.set_nonblocking(true).is_ok()
            && self.server.introduce(&qemu).is_ok()
        {
            self.qemu = Some(qemu);
        }
        false
    }
}

/// QEMU's arguments for these NICs in a machine with this memory.
fn arguments(ram: &GuestRam, places: &[Place]) -> String {
    let (size, process, fd) = (ram.size() >> 20, std::process::id(), ram.fd().as_raw_fd());
    let mut line = format!(
        "-M q35,memory-backend=ram0 -smp 1,maxcpus=2 -m {size}M -object \
         memory-backend-file,id=ram0,size={size}M,mem-path=/proc/{process}/fd/{fd},share=on"
    );
    for (index, place) in places.iter().enumerate() {
        line.push_str(&format!(
            " -chardev socket,id=iv{index},path=/proc/{process}/fd/{} \
             -device ivshmem-doorbell,vectors={},chardev=iv{index}",
            place.file.as_raw_fd(),
            pci::VECTORS
        ));
    }
    line
}

/// Serves the device until a signal ends it.
pub fn serve(options: &Options) -> Result<u8> {
    let signals = Signals::watch()?;
    let ram = GuestRam::new(options.memory())?;
    let (mut ports, mut places) = (Vec::new(), Vec::new());
    for index in 0..options.chosen_nics().unwrap_or(1) {
        let (port, server) = IvshmemPort::new(index as usize, &ram)?;
        ports.push(port);
        places.push(Place::new(&temporary::socket(&format!("nic{index}"))?, server)?);
    }
    let plugs = options.network.open(ports.len())?;
    let device = Ivshmem.start(ports, plugs)?;
    print_line("ready: give these arguments to qemu-system-x86_64, with those of your kernel")?;
    print_line(&arguments(&ram, &places))?;
    loop {
        let mut fds: Vec<PollFd<'_>> = places.iter().map(Place::descriptor).collect();
        fds.extend(signals.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::system("wait for QEMU", e)),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        match signals.arrived() {
            Some(Asked::End(signal)) => return Err(Error::Interrupted(signal)),
            Some(Asked::Stop) => {
                rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)
                    .map_err(|e| Error::system("stop", e))?;
            }
            None => {}
        }
        for (index, place) in places.iter_mut().enumerate().filter(|(index, _)| ready[*index]) {
            if place.attend() {
                device.power_cycle(index..index + 1);
            }
        }
        if places.iter().all(|place| place.qemu.is_none()) && ready[..places.len()].contains(&true) {
            ram.clear()?;
        }
    }
}
