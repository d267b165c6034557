//! The pair of work queues behind an endpoint: a queue pair, or on an IA over VIA a virtual
//! interface.

use alloc::sync::Arc;

use kernel_agent::{Connectable, Error, Qp, QpChanges};

use crate::status;
use crate::via::ep::ViEp;

/// See the module's documentation.
#[derive(Clone)]
pub(crate) enum Pair {
    Qp(Arc<Qp>),
    /// A queue pair whose endpoint takes no Receives of one segment. The fast path of Receives has
    /// one comparison for both.
    Receiveless(Arc<Qp>),
    Vi(Arc<ViEp>),
}

impl Pair {
    /// The queue pair. For requests that only queue pairs have, which fail with `OpNotSupported`
    /// otherwise.
    #[inline(always)]
    pub(crate) fn qp(&self) -> status::Result<&Arc<Qp>> {
        match self {
            Pair::Qp(qp) | Pair::Receiveless(qp) => Ok(qp),
            Pair::Vi(_) => Err(status::Error::OpNotSupported),
        }
    }

    pub(crate) fn vi(&self) -> Option<&Arc<ViEp>> {
        match self {
            Pair::Qp(_) | Pair::Receiveless(_) => None,
            Pair::Vi(vi) => Some(vi),
        }
    }

    /// The number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Pair::Qp(qp) | Pair::Receiveless(qp) => qp.qpn(),
            Pair::Vi(vi) => vi.number(),
        }
    }

    pub(super) fn connectable(&self) -> Connectable {
        match self {
            Pair::Qp(qp) | Pair::Receiveless(qp) => Connectable::from(qp),
            Pair::Vi(vi) => vi.connectable(),
        }
    }

    /// Requests and Receives whose completions were not taken.
    pub(super) fn outstanding(&self) -> (u32, u32) {
        match self {
            Pair::Qp(qp) | Pair::Receiveless(qp) => qp.outstanding(),
            Pair::Vi(vi) => vi.outstanding(),
        }
    }

    pub(super) fn change(&self, changes: &QpChanges) -> Result<(), Error> {
        match self {
            Pair::Qp(qp) | Pair::Receiveless(qp) => qp.change(changes),
            Pair::Vi(vi) => vi.change(changes),
        }
    }

    /// Has everything flushed that is posted, and that will be.
    pub(crate) fn to_error(&self) -> Result<(), Error> {
        match self {
            Pair::Qp(qp) | Pair::Receiveless(qp) => qp.to_error(),
            Pair::Vi(vi) => vi.to_error(),
        }
    }

    /// Leaves the endpoint's slot to a successor. A virtual interface is not in it.
    pub(super) fn withdraw(&self) {
        if let Ok(qp) = self.qp() {
            qp.withdraw();
        }
    }

    /// Destroys it, and ends its connection.
    pub(super) fn destroy(&self) -> Result<(), Error> {
        match self {
            Pair::Qp(qp) | Pair::Receiveless(qp) => qp.destroy(),
            Pair::Vi(vi) => vi.destroy(),
        }
    }

    /// Destroys a queue pair, unless a narrow RMR is linked through it: [`Error::Busy`].
    pub(super) fn destroy_unless_bound(&self) -> Result<(), Error> {
        match self {
            Pair::Qp(qp) | Pair::Receiveless(qp) => qp.destroy_unless_bound(),
            Pair::Vi(_) => Ok(()),
        }
    }
}
