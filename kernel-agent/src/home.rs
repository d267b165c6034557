//! What streams, and connections over streams, need of the client that they belong to.
//!
//! They name it by this trait and not by its type, which names them.

use alloc::sync::Arc;

use nic_hal::Nic;
use platform::gate::Inside;

use crate::object::Owner;
use crate::stream::{Endpoint, Streams};
use crate::{Error, Upcalls};

/// See the module's documentation.
pub(crate) trait Home: Owner + Send + Sync {
    /// The driver of its agent's NIC.
    fn nic(&self) -> &Nic;

    /// The streams of its agent.
    fn streams(&self) -> &Streams;

    /// Has a new stream or listener destroyed with the client. If that fails, destroys it.
    fn adopt(&self, endpoint: &Arc<Endpoint>) -> Result<(), Error>;

    /// Begins to make something of the client's. Fails once the client is detached or the agent
    /// closed.
    fn enter(&self) -> Result<Inside<'_>, Error>;

    /// Counts a connection more; false if the client has as many as it may have.
    fn take_connection(&self) -> bool;

    /// Counts a connection less.
    fn leave_connection(&self);

    /// Makes an upcall, unless the client is detached. In the dispatcher thread, with no lock held.
    fn tell(&self, upcall: &mut dyn FnMut(&dyn Upcalls));
}
