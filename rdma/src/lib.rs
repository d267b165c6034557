//! RDMA in the terms of Rust, on the VIA Kernel Agent, and what every API ("face") on the agent
//! stands on, whatever its specification says.
//!
//! For a Rust programmer: [`Nic`] is a NIC that is open; [`Domain`] and [`Region`] are memory;
//! [`Listener`], [`Incoming`] and [`Endpoint`] are connections; [`DatagramEndpoint`], [`Datagram`]
//! and [`Destination`] do without one; [`Work`] is a request, which is posted and its
//! [`Completion`] polled from a [`Queue`], or started and waited for as a [`Request`], by a thread
//! or by a task. Connections are InfiniBand's, or iWARP's ([`Nic::open_over`], [`Transport`]).
//! [`Stream`] and [`StreamListener`] are plain bytes over TCP, which may become a connection of
//! iWARP.
//!
//! For a face: it opens the agent as a client, names its objects by handles, and has a fast path
//! from a handle to a queue. These parts do not depend on the specification:
//!
//! - [`handle`]: the word that names an object, and [`numbers`]: the numbers that distinguish the
//!   handles of one adapter from those of another;
//! - [`Table`]: objects by handle; [`Slots`]: queue slots by handle, for the fast path;
//! - [`Adapter`]: one opening of the agent, from its beginning to its end, with its calls in
//!   progress and its callback thread; [`Face`]: what a face adds to that;
//! - [`InCallbacks`]: the threads that run the consumer's callbacks now;
//! - [`Context`]: the consumer's context of an object; [`Zone`]: a protection zone;
//! - [`events`]: completions and entries that software makes, in one queue, with the criteria by
//!   which they notify, and who learns of it: waiters, callbacks, notification objects;
//! - [`wait`]: how a thread waits, for a queue or for anything else;
//! - [`WorkQueues`]: the work queues of an endpoint, of entries or of descriptors;
//! - [`Interfaces`]: the agents of a machine by name, which boot code passes to the faces;
//! - [`Keys`]: the keys of regions by handle, for the data path, and [`Owners`]: handles by key;
//! - [`Tracked`]: which connection an endpoint has now; [`PeerRequests`]: peers that ask for a
//!   datagram service;
//! - [`via`]: how virtual interfaces find each other and agree, the same for each face.
//!
//! It has no call, error or event of any specification: those are in `privileged-api`, `dat` and
//! `vipl`. It drives no device: `kernel-agent` does.
//!
#![no_std]

extern crate alloc;
#[cfg(all(test, ferrovia_model))]
extern crate std;

mod adapter;
mod address;
mod arrivals;
mod batch;
mod callbacks;
mod close;
mod completion;
mod connection;
mod context;
mod datagram;
mod dropped;
mod endpoint;
mod error;
pub mod events;
mod fast;
pub mod handle;
mod interfaces;
mod keys;
mod life;
mod listener;
mod memory;
#[cfg(all(test, ferrovia_model))]
mod models;
pub mod named;
mod nic;
pub mod numbers;
mod owners;
mod peer_requests;
mod private_data;
mod queue;
mod request;
mod resolve;
mod services;
mod shared;
mod slots;
mod stream;
mod table;
mod tracked;
mod transport;
pub mod via;
pub mod wait;
mod waiters;
mod watch;
mod work;
mod work_queues;
mod zone;

pub use adapter::{Adapter, Face, Opening};
pub use address::{Address, Service, attempts, own_gid, path_to, sender_gid};
pub use batch::Batch;
use callbacks::CallbackThread;
pub use callbacks::{InCallback, InCallbacks};
pub use close::{EndpointClosing, RegionClosing};
pub use completion::{Completion, Operation};
pub use connection::{Connecting, Ending};
pub use context::Context;
pub use datagram::{Datagram, DatagramBuilder, DatagramEndpoint, Destination, Sender};
pub use endpoint::{Builder, Endpoint};
pub use error::{
    AnswerError, CloseError, ConnectError, CreateError, PostError, RequestError, ResolveError, StreamError,
    TimedOut,
};
pub use fast::FastRegion;
pub use interfaces::{BadName, Endpoints, Interfaces, Limits, Offer, RoomForCallbacks};
pub use keys::{Keys, Piece};
pub use life::{Call, Ended};
pub use listener::{Incoming, Listener};
pub use memory::{Access, Domain, Region, RemoteMemory, Slice};
pub use nic::Nic;
pub use owners::Owners;
pub use peer_requests::PeerRequests;
pub use private_data::PrivateData;
pub use queue::Queue;
pub use request::{Done, Request};
pub use resolve::{Resolved, Resolving};
pub use services::{DatagramListener, DatagramService, ServiceRequest};
pub use shared::{Message, SharedReceives};
pub use slots::Slots;
pub use stream::{Receiving, Sending, Stream, StreamConnecting, StreamListener};
pub use table::{Entry, Reservation, Table};
pub use tracked::Tracked;
pub use transport::Transport;
pub use work::{Slices, Work};
pub use work_queues::WorkQueues;
pub use zone::Zone;

/// There is no memory, or no free index or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfResources;

impl From<platform::OutOfMemory> for OutOfResources {
    fn from(_: platform::OutOfMemory) -> OutOfResources {
        OutOfResources
    }
}

impl From<alloc::collections::TryReserveError> for OutOfResources {
    fn from(_: alloc::collections::TryReserveError) -> OutOfResources {
        OutOfResources
    }
}
