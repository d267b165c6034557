//! Service points, and the requests that arrive at them.

use alloc::sync::Arc;

use kernel_agent::{ConnectionId, ListenId, ResolutionRequestId};
use platform::SleepLock;
use platform::sync::Mutex;
use rdma::Context;

use super::entry::Entry;
use super::evd::Evd;
use super::resolutions::RemoteEp;
use super::streams::Stream;
use crate::event::SpHandle;
use crate::handle::{CrHandle, EpHandle, PspHandle, RspHandle};
use crate::{IaAddress, PrivateData};

/// The most bytes of private data that a consumer sends to ask for a connection (IBTA 12.6).
pub(crate) const CONNECT_DATA: usize = 92;

/// A listener of the agent, and where its requests go.
pub(crate) struct Listening {
    pub(crate) evd: Arc<Evd>,
    pub(crate) conn_qual: u64,
    pub(crate) stream: Stream,
    /// None before the agent listens, and once it does not any more.
    pub(crate) id: Mutex<Option<ListenId>>,
}

/// A public service point.
pub(crate) struct Psp {
    pub(crate) handle: PspHandle,
    pub(crate) listening: Listening,
    pub(crate) context: Context,
}

/// A reserved service point.
pub(crate) struct Rsp {
    pub(crate) handle: RspHandle,
    pub(crate) listening: Listening,
    pub(crate) ep: EpHandle,
    pub(crate) context: Context,
}

/// A connection request, which also asks for a datagram endpoint.
pub(crate) struct Cr {
    pub(crate) handle: CrHandle,
    /// Serializes the calls that answer it.
    pub(crate) turn: SleepLock,
    pub(crate) arrived: Arrived,
    /// The endpoint of the reserved service point.
    pub(crate) ep: EpHandle,
    pub(crate) answered: Mutex<bool>,
    pub(crate) context: Context,
}

/// What a peer asks for.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    Connection(ConnectionId),
    Datagrams { request: ResolutionRequestId, peer: RemoteEp },
}

/// A peer's request.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) asked: Asked,
    pub(crate) remote: IaAddress,
    pub(crate) conn_qual: u64,
    pub(crate) private_data: Option<PrivateData>,
    pub(crate) point: SpHandle,
}

/// Stands for a service point that is no more.
pub(crate) const NO_POINT: SpHandle = SpHandle::Psp(PspHandle::NULL);

impl Listening {
    /// Whether it listens for a service now.
    pub(crate) fn is_at(&self, conn_qual: u64) -> bool {
        self.conn_qual == conn_qual && self.id.lock().is_some()
    }

    pub(crate) fn push(&self, arrived: Arrived) -> bool {
        self.evd.push(Entry::Arrived(arrived))
    }
}
