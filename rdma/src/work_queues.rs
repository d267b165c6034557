//! The work queues of an endpoint: a queue pair, whose rings hold work requests, or a virtual
//! interface, whose rings hold descriptors.

use alloc::sync::Arc;

use kernel_agent::{Connectable, Error, Qp, QpChanges};

use crate::via::DescriptorEndpoint;

/// See the module's documentation.
#[derive(Clone)]
pub enum WorkQueues {
    /// A queue pair.
    Entries(Arc<Qp>),
    /// A queue pair whose endpoint takes no Receives of one segment. The fast path of Receives has
    /// one comparison for both.
    Receiveless(Arc<Qp>),
    /// A virtual interface.
    Descriptors(Arc<DescriptorEndpoint>),
}

impl WorkQueues {
    /// The queue pair.
    #[inline(always)]
    pub fn qp(&self) -> Option<&Arc<Qp>> {
        match self {
            WorkQueues::Entries(qp) | WorkQueues::Receiveless(qp) => Some(qp),
            WorkQueues::Descriptors(_) => None,
        }
    }

    /// The virtual interface.
    pub fn vi(&self) -> Option<&Arc<DescriptorEndpoint>> {
        match self {
            WorkQueues::Entries(_) | WorkQueues::Receiveless(_) => None,
            WorkQueues::Descriptors(vi) => Some(vi),
        }
    }

    /// The number of the queue pair.
    pub fn number(&self) -> u32 {
        match self {
            WorkQueues::Entries(qp) | WorkQueues::Receiveless(qp) => qp.qpn(),
            WorkQueues::Descriptors(vi) => vi.number(),
        }
    }

    /// What the agent connects.
    pub fn connectable(&self) -> Connectable {
        match self {
            WorkQueues::Entries(qp) | WorkQueues::Receiveless(qp) => Connectable::from(qp),
            WorkQueues::Descriptors(vi) => vi.connectable(),
        }
    }

    /// Requests and Receives whose completions were not taken.
    pub fn outstanding(&self) -> (u32, u32) {
        match self {
            WorkQueues::Entries(qp) | WorkQueues::Receiveless(qp) => qp.outstanding(),
            WorkQueues::Descriptors(vi) => vi.outstanding(),
        }
    }

    /// Changes attributes.
    pub fn change(&self, changes: &QpChanges) -> Result<(), Error> {
        match self {
            WorkQueues::Entries(qp) | WorkQueues::Receiveless(qp) => qp.change(changes),
            WorkQueues::Descriptors(vi) => vi.change(changes),
        }
    }

    /// Has everything flushed that is posted, and that will be.
    pub fn to_error(&self) -> Result<(), Error> {
        match self {
            WorkQueues::Entries(qp) | WorkQueues::Receiveless(qp) => qp.to_error(),
            WorkQueues::Descriptors(vi) => vi.to_error(),
        }
    }

    /// Leaves the endpoint's slot to a successor. A virtual interface is not in it.
    pub fn withdraw(&self) {
        if let Some(qp) = self.qp() {
            qp.withdraw();
        }
    }

    /// Destroys it, and ends its connection.
    pub fn destroy(&self) -> Result<(), Error> {
        match self {
            WorkQueues::Entries(qp) | WorkQueues::Receiveless(qp) => qp.destroy(),
            WorkQueues::Descriptors(vi) => vi.destroy(),
        }
    }

    /// Destroys a queue pair, unless a narrow RMR is linked through it: [`Error::Busy`].
    pub fn destroy_unless_bound(&self) -> Result<(), Error> {
        match self {
            WorkQueues::Entries(qp) | WorkQueues::Receiveless(qp) => qp.destroy_unless_bound(),
            WorkQueues::Descriptors(_) => Ok(()),
        }
    }
}
