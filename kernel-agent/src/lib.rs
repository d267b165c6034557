//! The VIA Kernel Agent: the privileged party that owns a NIC (VI Architecture 1.0, chapter 11.3).
//!
//! It owns the NIC's resources (queue pairs, completion queues, protection domains, regions,
//! windows), translates and protects memory, makes connections, and reports asynchronous errors.
//! One [`Agent`] serves one NIC. Each opening of the agent by a face (an IA, for example) is a
//! [`Client`]: it creates the objects, and the agent reports events to it by its [`Upcalls`].
//!
//! VIA's names and ours: VI = [`Vi`], completion queue = [`ViCq`], protection tag = [`Pd`], memory
//! handle = the remote key of a [`Region`], error handler = [`Upcalls`]. A [`Qp`] with its [`Cq`]
//! is the same for InfiniBand's work requests. Neither can be used in the other's place.
//!
//! | module | subject |
//! |---|---|
//! | `agent`, `client` | the agent of a NIC; one consumer of it, and its calls |
//! | `object`, `table`, `key` | what objects have in common; numbers of objects; memory keys |
//! | `walk` | walks over tables of which a part is looked at under one lock |
//! | `region`, `translate` | domains, regions, windows; bus addresses of virtual memory |
//! | `qp`, `qp_common`, `qp_state` | queue pairs; what virtual interfaces share with them |
//! | `slot`, `send_slot`, `post` | the word that a post checks; posts by it, and by the queue pair |
//! | `cq`, `members` | completion queues, and the queue pairs on them |
//! | `srq`, `shared_queue` | shared receive queues |
//! | `stream`, `home` | TCP streams of the port; what they need of their client |
//! | `vi`, `vi_types`, `vi_cq`, [`descriptor`] | virtual interfaces |
//! | [`cm`] | the connection manager's state machine |
//! | `connections`, `connect`, `gsi` | what drives it, and moves queue pairs; QP1 |
//! | `mpa` | connections over streams (iWARP) |
//! | `protocol`, `connectable` | what both protocols have in common; what can be connected |
//! | `dispatch`, `event_room`, `upcalls` | the dispatcher thread, its events, what it calls |
//!
//! An object names its client, a client the agent, and the agent has tables of the objects: the
//! files of these types form a circle. All else stands below them, or has only calls.
//!
//! Features, flags, statuses and segments are the same for the NIC and for a face. This crate
//! exports the NIC's own types for them, under the names that a face uses, so a face depends on no
//! crate below this one.
//!
//! It has no calls, handles or events of a specification: they are the faces' matter
//! (`privileged-api`, `vipl`). Rings, doorbells and the queue of commands are in `nic-hal`.
//!
//! Posting and reaping ([`Qp::post`], [`Cq::poll_one`], …) neither allocate nor take a lock that
//! two queues share.
#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod agent;
mod client;
pub mod cm;
mod connect;
mod connectable;
mod connections;
mod cq;
pub mod descriptor;
mod dispatch;
mod error;
mod event_room;
mod gsi;
mod home;
pub mod key;
mod members;
mod mpa;
mod object;
mod post;
mod protocol;
mod qp;
mod qp_common;
mod qp_state;
mod region;
mod send_slot;
mod shared_queue;
mod slot;
mod srq;
mod stream;
mod table;
mod testing;
mod translate;
mod upcalls;
mod vi;
mod vi_cq;
mod vi_types;
mod walk;

/// What the agent's calls and events say in the terms of the wire: addresses, keys, paths, and what
/// the connection manager's messages carry. A face needs no other crate for them.
pub mod wire {
    pub use roce::cm::redirection::Redirection;
    pub use roce::cm::rej::Reason;
    pub use roce::cm::{ReadDepths, ip_cm, sidr};
    pub use roce::{Gid, PKey, Path, PathMtu, QKey, Qpn, ServiceId, TimeoutCode};
}

pub use agent::config::Config;
pub use agent::{Agent, Counts, PROVIDER_VERSION};
pub use client::Client;
pub use cm::{
    AcceptParams, ConnectParams, ConnectionId, ListenId, Moves, ResolutionId, ResolutionRequestId, Transports,
};
pub use connect::{Conversion, Handshake, ResolutionAnswer, ResolveParams, datagram_address, gid_index};
pub use connectable::Connectable;
pub use cq::{Arm, Behind, Completion, Consumer, Cq, CqSlot, Done, Immediate, Polling, Took, TookAny};
pub use error::{Error, ListFault, PostError, Resource};
pub use nic_abi::admin::{KeyInfo, ModifyQp, QpInfo, QpMask, QpState, QpType, StreamEnd};
pub use nic_abi::cqe::{CqeFlags as CompletionFlags, Status as CompletionStatus};
pub use nic_abi::eqe::EventType as NicEvent;
pub use nic_abi::eqe::StreamFault;
pub use nic_abi::pci::IVSHMEM_DEVICE as PCI_DEVICE;
pub use nic_abi::registers::{Features, Identity};
pub use nic_abi::vi::{
    AddressSegment, Control as ViControl, ControlSegment, DESCRIPTOR_ALIGN, DataSegment, Reliability,
    Status as ViStatus, ViError,
};
pub use nic_abi::wqe::{AddressVector as DatagramAddress, LinkFlags, ListElement, Segment, SendFlags};
pub use nic_hal::{
    Death, Direction, Head, Operation, Remote, RemoteWords, Request, Shadow, Terminate, Transfer,
};
pub use post::Bind;
pub use qp::{Posted, Qp, QpAttributes, QpChanges};
pub use region::{Extent, Link, MemoryList, Pd, Region, Window, WindowType};
pub use send_slot::{NoBatch, SegmentLimits, SendBatch, SendSlot, Sender, Written};
pub use slot::{QueueSlot, SlotParams};
pub use srq::Srq;
pub use stream::{Stream, StreamEnds, StreamListener, StreamState};
pub use testing::TestHandle;
pub use upcalls::{AsyncEvent, CmEvent, CmEventKind, ResolutionEvent, ResolutionEventKind, Upcalls};
pub use vi::Vi;
pub use vi_cq::ViCq;
pub use vi_types::{FoundError, ViAttributes, ViPostError, ViSide, ViTaken};
