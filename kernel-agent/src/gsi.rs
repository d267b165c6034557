//! QP1, the general service interface: sends and receives management datagrams.
//!
//! Locks: `next` (spins; before QP1's send queue).

use alloc::sync::Arc;

use nic_abi::admin::{ModifyQp, QpMask, QpState, QpType};
use nic_abi::cqe::{self, CqeFlags};
use nic_abi::ident;
use nic_abi::registers::Identity;
use nic_abi::wqe::{LinkFlags, Segment, SendFlags};
use nic_hal::{DeviceMemory, Operation, Request, Shadow};
use platform::sync::Mutex;
use roce::wire::datagram::Network;
use roce::{Path, QKey, Qpn, mad};

use crate::cm::{Arrival, Outgoing};
use crate::connect::{datagram_address, gid_index};
use crate::cq::{Arm, Cq};
use crate::qp::{Qp, QpAttributes};
use crate::region::Pd;
use crate::table::Number;
use crate::{Client, Error};

/// Datagrams that may be outstanding in the send queue.
const SENDS: u32 = 256;
/// Receives that are always posted.
const RECEIVES: u32 = 512;
/// The bytes in front of a received datagram, with the network's header.
const GRH: usize = 40;
/// The distance between two receive buffers.
const STRIDE: usize = 512;

/// QP1 and its buffers.
pub(crate) struct Gsi {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    /// Receive buffers, then send buffers.
    memory: DeviceMemory,
    /// The index of the next send buffer.
    next: Mutex<u32>,
}

fn receive_offset(index: u32) -> usize {
    index as usize * STRIDE
}

fn send_offset(index: u32) -> usize {
    RECEIVES as usize * STRIDE + index as usize * mad::LEN
}

impl Gsi {
    /// Creates QP1 and makes it ready.
    pub(crate) fn create(client: &Arc<Client>) -> Result<Gsi, Error> {
        let agent = client.agent();
        let most = agent.identity();
        let (sends, receives) = (SENDS.min(most.max_sq_blocks / 2), RECEIVES.min(most.max_rq_entries));
        let memory = agent.nic().allocate(send_offset(SENDS), 4096)?;
        let pd = Pd::create(client)?;
        let cq = Cq::create(client, (sends + receives).min(most.max_cqes), 0, None)?;
        let attributes = QpAttributes {
            max_receive_requests: receives,
            ..QpAttributes::new(QpType::Gsi, &pd, &cq, sends)
        };
        let number = Number { slot: ident::QPN_GSI, generation: 1 };
        let qp = Qp::create_as(client, &attributes, ident::QPN_GSI, number)?;
        let gsi = Gsi { qp, cq, memory, next: Mutex::new(0) };
        gsi.memory.lease().start();
        gsi.make_ready()?;
        Ok(gsi)
    }

    /// RESET to RTS, with all receives posted.
    fn make_ready(&self) -> Result<(), Error> {
        self.qp.to_init(LinkFlags::empty())?;
        for index in 0..self.qp.receives.limit() {
            self.post_receive(index);
        }
        let to = |state: QpState| {
            let mask = QpMask::STATE.bits();
            self.qp.modify(&ModifyQp { mask, state: state as u32, ..ModifyQp::default() })
        };
        to(QpState::Rtr)?;
        to(QpState::Rts)
    }

    /// Makes QP1 ready again after it went to ERROR. Outstanding datagrams are lost, as any
    /// datagram may be. Blocks for the device.
    pub(crate) fn restore(&self) -> Result<(), Error> {
        self.qp.to_reset()?;
        self.make_ready()
    }

    /// Whether this CQ has its completions.
    pub(crate) fn is_on(&self, cq: &Arc<Cq>) -> bool {
        Arc::ptr_eq(&self.cq, cq)
    }

    /// Outstanding sends, and receives that are missing in the receive queue.
    pub(crate) fn outstanding(&self) -> u32 {
        let receives = self.qp.receives.limit().saturating_sub(self.qp.receives.len());
        self.qp.sends.len() + receives
    }

    fn segment(&self, offset: usize, length: usize) -> Segment {
        Segment {
            addr: self.memory.buffer().bus() + offset as u64,
            length: length as u32,
            key: ident::KEY_RESERVED,
        }
    }

    fn post_receive(&self, index: u32) {
        let segment = self.segment(receive_offset(index), GRH + mad::LEN);
        let shadow = Shadow { cookie: u64::from(index), data: 0 };
        // The receive was in use until now, so there is room for it; a dead device refuses it.
        let _ = self.qp.post_receive(false, &[segment], |&segment| segment, shadow);
    }

    /// Sends a datagram. If that is not possible the datagram is lost, as any datagram may be.
    pub(crate) fn send(&self, identity: &Identity, outgoing: &Outgoing) {
        let source_gid = gid_index(identity, outgoing.local_gid).unwrap_or(0);
        let path = Path::new(outgoing.local_gid, outgoing.remote_gid);
        let to = datagram_address(&path, source_gid, Qpn::GSI, QKey::GSI);
        let operation = Operation::Datagram { to };
        let request = Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow::default() };
        let mut next = self.next.lock();
        // The buffers form a ring and requests complete in order, so a request for which the queue
        // has room has a free buffer.
        let limit = self.qp.sends.limit();
        if self.qp.sends.len() >= limit {
            return;
        }
        let offset = send_offset(*next % limit);
        let written = self.memory.buffer().write(offset, &outgoing.mad);
        let segment = self.segment(offset, mad::LEN);
        let posted = self.qp.post(&request, &[segment], |&segment| segment);
        if written.is_ok() && posted.is_ok() {
            *next = (*next + 1) % limit;
        }
    }

    /// Whether the send queue has room for many more datagrams. Answers to received ones wait for
    /// that, so that there is always room for what this side begins.
    pub(crate) fn has_room(&self) -> bool {
        self.qp.sends.len() <= self.qp.sends.limit() / 2
    }

    /// Passes received datagrams to `deliver`, at most as many as there are receives, and posts
    /// their receives again. Returns whether there was any completion.
    pub(crate) fn poll(&self, mut deliver: impl FnMut(&Arrival, &[u8])) -> bool {
        let mut any = false;
        for _ in 0..RECEIVES {
            let Some(completion) = self.cq.poll_one() else { break };
            any = true;
            if !completion.flags.contains(CqeFlags::RECEIVE) {
                continue;
            }
            if completion.status != cqe::Status::Success {
                continue;
            }
            let index = completion.cookie as u32;
            let mut bytes = [0; GRH + mad::LEN];
            let read = self.memory.buffer().read(receive_offset(index), &mut bytes);
            self.post_receive(index);
            let remote_qp = Qpn::new(completion.detail);
            let (Ok(()), Some(remote_qp)) = (read, remote_qp) else { continue };
            if completion.length as usize != bytes.len() {
                continue;
            }
            let Some((header, datagram)) = bytes.split_first_chunk::<GRH>() else { continue };
            let Ok(network) = Network::parse_grh(header) else { continue };
            let from = Arrival { local_gid: network.dst(), remote_gid: network.src(), remote_qp };
            deliver(&from, datagram);
        }
        any
    }

    /// Asks for an event at the next datagram.
    pub(crate) fn arm(&self) {
        self.cq.arm(Arm::Next);
    }
}
