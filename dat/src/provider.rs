//! The interfaces of a machine, as boot code passes them to consumers.

use alloc::sync::Arc;

use kernel_agent::Agent;
use platform::Platform;
use rdma::{Endpoints, Interfaces, Limits};

use crate::error::parameter;
use crate::flags::NAME_MAX_LENGTH;
use crate::ret::{Result, Subtype};

/// The interfaces of a machine by name. Boot code makes it, adds the agent of each NIC, and passes
/// it to consumers. A clone is the same provider.
///
/// Other faces' providers serve as well ([`ia_open`](crate::ia_open)): each interface can be opened
/// by every face that its transport allows.
#[derive(Clone)]
pub struct Provider(Arc<Interfaces>);

impl Provider {
    /// A provider without interfaces.
    pub fn new(platform: Arc<dyn Platform>) -> Provider {
        Provider(Arc::new(Interfaces::new(platform)))
    }

    /// The interfaces, for the providers of other faces.
    pub fn interfaces(&self) -> &Arc<Interfaces> {
        &self.0
    }

    /// Adds the agent of a NIC as an interface of this name.
    ///
    /// Errors: `InvalidParameter` (the name is empty, has [`NAME_MAX_LENGTH`] bytes or more or a
    /// NUL, or is taken). Does not block. Thread-safe.
    pub fn add(&self, name: &str, agent: Arc<Agent>) -> Result<()> {
        self.add_limited(name, agent, Limits::NONE)
    }

    /// As [`Provider::add`], with limits for those who open the interface.
    pub fn add_limited(&self, name: &str, agent: Arc<Agent>, limits: Limits) -> Result<()> {
        let bad = parameter(Subtype::InvalidArg1);
        if name.len() >= NAME_MAX_LENGTH {
            return Err(bad);
        }
        self.0.add(name, agent, limits, Endpoints::QueuePairs).map_err(|_| bad)
    }
}

impl AsRef<Arc<Interfaces>> for Provider {
    fn as_ref(&self) -> &Arc<Interfaces> {
        &self.0
    }
}
