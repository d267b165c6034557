//! A server of an operator's commands whose guest is not there, for fuzzing: what clients send is
//! read and checked as ever, and what the guest would have to do fails.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::commands::{Exported, Operator};
use super::socket;
use crate::guests::Caller;
use crate::mailbox::Mailbox;
use crate::storage::Names;
use crate::storage_config::StorageConfig;
use device::memory::GuestRam;

/// The longest line that is taken, with its end.
pub const LONGEST: usize = socket::LONGEST as usize;

/// See the module's documentation. Clones are the same server.
#[derive(Clone)]
pub struct Server(Operator);

impl Server {
    /// A server.
    ///
    /// # Errors
    ///
    /// No memory, or no socket.
    pub fn new() -> io::Result<Server> {
        let ram = GuestRam::new(1 << 20).map_err(io::Error::other)?;
        let config = StorageConfig::parse("").map_err(|(_, why)| io::Error::other(why))?;
        let names = Names::of(None);
        let disks = Exported { files: Vec::new(), slots: 2, hosts: Vec::new() };
        Ok(Server(Operator::new(Mailbox::new(ram), Caller::ended()?, names, disks, config)))
    }

    /// Serves a client until it ends.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn serve(&self, client: &UnixStream) -> io::Result<()> {
        let busy = Arc::new(AtomicUsize::new(0));
        socket::serve(client, &busy, &|line| self.0.answer(line))
    }
}
