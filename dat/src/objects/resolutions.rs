//! Remote datagram endpoints that are being resolved.

use alloc::collections::BTreeMap;

use kernel_agent::ResolutionId;

use crate::handle::{AhHandle, EpHandle};
use crate::{IaAddress, PrivateData};

/// The queue pair and the key of a remote datagram endpoint; zeroes if they are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteEp {
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// A remote endpoint that is being resolved.
#[derive(Clone, Copy)]
pub(crate) struct Resolving {
    pub(crate) ep: EpHandle,
    pub(crate) id: ResolutionId,
    /// For the answer.
    pub(crate) address: AhHandle,
    pub(crate) remote: IaAddress,
}

/// The remote endpoints that are being resolved, by the context that the agent's upcalls name.
#[derive(Default)]
pub(crate) struct Resolutions {
    pub(crate) resolving: BTreeMap<u64, Resolving>,
    pub(crate) last: u64,
}

/// A peer's answer, or that it did not answer in time.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) context: u64,
    pub(crate) outcome: Outcome,
    pub(crate) private_data: Option<PrivateData>,
}

#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Resolved(RemoteEp),
    Rejected,
    Failed,
}
