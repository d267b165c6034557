//! The folder in which processes meet.
//!
//! | file | |
//! |---|---|
//! | `026665000002` | the socket of the port with this MAC, for datagrams: frames to groups, and invitations to rings |
//! | `026665000002.lock`, `127.0.0.2.lock` | locked by the process that has this MAC, and this address, as long as it lives |
//!
//! The kernel releases a lock when its process ends, also one that was killed. The next process
//! that takes the lock replaces the socket, so the folder needs no other cleaning.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use platform::Instant;
use roce::IpPrefix;
use rustix::cmsg_space;
use rustix::fs::FlockOperation;
use rustix::io::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix,
};

use crate::frame::Mac;
use crate::{MAX_SOCKET_PATH, OpenError};

/// The first byte of a datagram.
const FRAME: u8 = 1;
const INVITATION: u8 = 2;
/// The version of rings and datagrams: processes of different ones do not understand each other.
const VERSION: u8 = 1;
/// The most files of the folder that are looked at for peers.
const FILES: usize = 1024;
/// How long the list of peers is used.
const LISTED: Duration = Duration::from_millis(10);

/// The name of a port's socket.
fn name_of(mac: Mac) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The port whose socket has this name.
fn mac_of(name: &[u8]) -> Option<Mac> {
    let name = str::from_utf8(name).ok().filter(|name| name.len() == 12)?;
    let number = u64::from_str_radix(name, 16).ok()?;
    let [_, _, mac @ ..] = number.to_be_bytes();
    Some(mac).filter(|mac| name_of(*mac) == name)
}

fn lock_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.lock"))
}

/// What a datagram was.
pub(super) enum Letter {
    /// A frame of so many bytes, at the start of the buffer, of the port with this MAC.
    Frame(Mac, usize),
    /// A port has made a ring of this memory for frames to this one, and the end of a socket.
    Invitation { from: Mac, memory: OwnedFd, socket: OwnedFd },
    /// Nothing that a link sends.
    Nonsense,
}

/// A port's place in the folder.
#[derive(Debug)]
pub(super) struct Meeting {
    folder: PathBuf,
    mac: Mac,
    socket: UnixDatagram,
    /// The other ports, and when the folder was read.
    others: Vec<Mac>,
    listed: Option<Instant>,
    /// They are locked, so that no other process has this port's addresses.
    _locks: Vec<File>,
}

impl Meeting {
    /// Takes the place of a port with this MAC and these addresses. Makes the folder if it is not
    /// there, for this user only.
    pub fn join(folder: &Path, mac: Mac, addresses: &[IpPrefix]) -> std::result::Result<Meeting, OpenError> {
        let failed = |e| OpenError::system(format!("meet other processes in {}", folder.display()), e);
        make(folder).map_err(failed)?;
        let name = name_of(mac);
        let path = folder.join(&name);
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(OpenError::TooLong(path));
        }
        let names = addresses.iter().map(|prefix| prefix.address().to_canonical().to_string()).chain([name]);
        let mut locks = Vec::new();
        for name in names {
            match lock(&lock_of(folder, &name)) {
                Ok(Some(file)) => locks.push(file),
                Ok(None) => return Err(OpenError::Taken { folder: folder.into(), name }),
                Err(error) => return Err(failed(error)),
            }
        }
        // The process that had the MAC before has ended, as this one has the lock.
        match fs::symlink_metadata(&path) {
            Ok(file) if !file.file_type().is_socket() => return Err(OpenError::NotASocket(path)),
            Ok(_) => fs::remove_file(&path).map_err(failed)?,
            Err(_) => {}
        }
        let socket = UnixDatagram::bind(&path).map_err(failed)?;
        let folder = folder.into();
        Ok(Meeting { folder, mac, socket, others: Vec::new(), listed: None, _locks: locks })
    }

    fn address_of(&self, mac: Mac) -> Result<SocketAddrUnix> {
        SocketAddrUnix::new(self.folder.join(name_of(mac)))
    }

    /// Sends a datagram with descriptors. Does not wait.
    fn send(&self, to: Mac, parts: [&[u8]; 2], with: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !with.is_empty() && !control.push(SendAncillaryMessage::ScmRights(with)) {
            return Err(Errno::NOBUFS);
        }
        let parts = parts.map(IoSlice::new);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg_addr(&self.socket, &self.address_of(to)?, &parts, &mut control, flags).map(drop)
    }

    /// Sends a port the memory of a ring, and the other end of this port's socket for it.
    pub fn invite(&self, to: Mac, memory: BorrowedFd<'_>, socket: BorrowedFd<'_>) -> Result<()> {
        self.send(to, [&[INVITATION, VERSION], &[]], &[memory, socket])
    }

    /// Sends a frame to all other ports. Returns how many ports lost it, since their sockets were
    /// full, and how many got it.
    pub fn tell(&mut self, frame: &[u8], now: Instant) -> (u64, u64) {
        if self.listed.is_none_or(|at| now.since(at) >= LISTED) {
            self.list();
            self.listed = Some(now);
        }
        let (mut full, mut reached) = (0, 0);
        for &other in &self.others {
            match self.send(other, [&[FRAME, VERSION], frame], &[]) {
                Ok(()) => reached += 1,
                Err(Errno::AGAIN | Errno::NOBUFS) => full += 1,
                // It has ended.
                Err(_) => {}
            }
        }
        (full, reached)
    }

    fn list(&mut self) {
        self.others.clear();
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        let names = files.take(FILES).flatten().map(|file| file.file_name());
        let macs = names.filter_map(|name| mac_of(name.as_bytes()));
        self.others.extend(macs.filter(|mac| *mac != self.mac));
    }

    /// Takes the next datagram. Does not wait: `AGAIN` if there is none.
    pub fn take(&self, into: &mut [u8]) -> Result<Letter> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut kind = [0; 2];
        let mut parts = [IoSliceMut::new(&mut kind), IoSliceMut::new(into)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let came = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags)?;
        // Whatever came along is closed if it is not used.
        let mut files = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => files.collect(),
            _ => Vec::new(),
        });
        let (memory, socket, more) = (files.next(), files.next(), files.next());
        let from = came.address.and_then(|from| SocketAddrUnix::try_from(from).ok());
        let from = from
            .as_ref()
            .and_then(|from| from.path_bytes())
            .and_then(|path| path.rsplit(|&b| b == b'/').next());
        let Some(from) = from.and_then(mac_of).filter(|from| *from != self.mac) else {
            return Ok(Letter::Nonsense);
        };
        let cut = more.is_some() || came.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        Ok(match (kind, came.bytes, memory, socket) {
            ([FRAME, VERSION], 2.., None, None) if !cut => Letter::Frame(from, came.bytes - 2),
            ([INVITATION, VERSION], 2, Some(memory), Some(socket)) if !cut => {
                Letter::Invitation { from, memory, socket }
            }
            _ => Letter::Nonsense,
        })
    }
}

impl AsFd for Meeting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // The socket is this port's as long as it has the lock. A failure does no harm: the next
        // port with this MAC replaces it.
        let _ = fs::remove_file(self.folder.join(name_of(self.mac)));
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made,
    }
}

/// How a file of the folder is opened: a link is not followed, and a pipe is not waited for.
fn opening() -> OpenOptions {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut opening = OpenOptions::new();
    opening.mode(0o600).custom_flags(flags.bits() as i32);
    opening
}

/// Locks a file for as long as the file is open; none if somebody else has locked it.
fn lock(path: &Path) -> std::io::Result<Option<File>> {
    let file = opening().write(true).create(true).truncate(false).open(path)?;
    for last in [false, true] {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            // Somebody may just have looked whether it is locked.
            Err(Errno::WOULDBLOCK) if !last => std::thread::sleep(Duration::from_millis(1)),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Whether the process that had an address of a folder has ended.
pub(super) fn has_ended(folder: &Path, address: IpAddr) -> bool {
    let path = lock_of(folder, &address.to_canonical().to_string());
    let Ok(file) = opening().read(true).open(path) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// The folder of the processes of this user.
pub(super) fn own_folder() -> std::result::Result<PathBuf, OpenError> {
    let user = rustix::process::geteuid().as_raw();
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
    let folder = parent.join(format!("ferrovia-{user}"));
    let failed = |e| OpenError::system(format!("meet other processes in {}", folder.display()), e);
    make(&folder).map_err(failed)?;
    let made = fs::symlink_metadata(&folder).map_err(failed)?;
    // Everybody may put something there under this name before.
    if !made.is_dir() || made.uid() != user || made.mode() & 0o077 != 0 {
        return Err(OpenError::NotOwn(folder));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sockets_are_macs_and_nothing_else_is() {
        let mac = [2, 0x66, 0x65, 0, 0, 0xa2];
        assert_eq!(name_of(mac), "0266650000a2");
        assert_eq!(mac_of(b"0266650000a2"), Some(mac));
        for name in ["0266650000A2", "0266650000a2.lock", "0266650000", "+266650000a2", "127.0.0.2.lock", ""]
        {
            assert_eq!(mac_of(name.as_bytes()), None, "{name}");
        }
    }
}
