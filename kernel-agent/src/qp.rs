//! Queue pairs (VIA: VIs): their life and state. Posting is in `post`.
//!
//! Locks: `control` (sleeps; modify, destroy), then the slot of `send`, and `receive` (spin;
//! posting). Completions are retired under their CQ's lock, without any of these.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use nic_abi::admin::{ModifyQp, QpFlags, QpInfo, QpMask, QpState, QpType};
use nic_abi::ident;
use nic_abi::wqe::LinkFlags;
use nic_hal::{Outstanding, QpParams, ReceiveQueue};
use platform::sync::Mutex;
use platform::use_count::Use;
use platform::{Privileged, heap};
use roce::transport::Service;

use crate::agent::config::EQ_ASYNC;
use crate::client::AnyObject;
use crate::cq::Cq;
use crate::members::{Queues, Receives};
use crate::object::{Counter, Owner, begin_use};
use crate::qp_common::{Breach, Common};
use crate::region::Pd;
use crate::send_slot::{SegmentLimits, SendSlot, Sender};
use crate::slot::{NOT_READY, SlotOwner, SlotParams};
use crate::srq::Srq;
use crate::table::{self, Number};
use crate::{Client, Error, Resource};

/// What a queue pair is created with.
pub struct QpAttributes<'a> {
    /// Its type of service: RC, UC or UD.
    pub qp_type: QpType,
    /// With the token, the queue pair may use the reserved key and link regions.
    pub privileged: Option<Privileged>,
    /// Protection domain.
    pub pd: &'a Arc<Pd>,
    /// CQ of the send queue.
    pub send_cq: &'a Arc<Cq>,
    /// CQ of the receive queue.
    pub receive_cq: &'a Arc<Cq>,
    /// The shared receive queue that replaces the receive queue.
    pub srq: Option<&'a Arc<Srq>>,
    /// Send-queue requests outstanding at most.
    pub max_send_requests: u32,
    /// Segments of a send-queue request at most.
    pub max_send_segments: u32,
    /// Receives outstanding at most.
    pub max_receive_requests: u32,
    /// Segments of a receive at most.
    pub max_receive_segments: u32,
    /// Payload of one message at most; 0 stands for what the NIC allows.
    pub max_message: u64,
    /// The agent repeats it in completions and events.
    pub context: u64,
    /// Whose narrow windows the queue pair may use and unbind: all queue pairs of the domain with
    /// the same word are one owner. 0: the queue pair is an owner of its own.
    pub owner: u64,
    /// What an RDMA Read fills counts as written by the peer, and needs the rights for that; iWARP
    /// only.
    pub reads_write: bool,
    /// The slot for the send queue, and the segments of what is posted through it. `None`: the
    /// queue pair has a slot of its own, without a fast path.
    pub slot: Option<(SlotParams<'a, Arc<Sender>>, SegmentLimits)>,
}

impl<'a> QpAttributes<'a> {
    /// Both queues on one CQ, with this many requests of one segment; all else is what a queue pair
    /// has that asks for nothing.
    pub const fn new(qp_type: QpType, pd: &'a Arc<Pd>, cq: &'a Arc<Cq>, requests: u32) -> QpAttributes<'a> {
        QpAttributes {
            qp_type,
            privileged: None,
            pd,
            send_cq: cq,
            receive_cq: cq,
            srq: None,
            max_send_requests: requests,
            max_send_segments: 1,
            max_receive_requests: requests,
            max_receive_segments: 1,
            max_message: 0,
            context: 0,
            owner: 0,
            reads_write: false,
            slot: None,
        }
    }
}

/// What to change of a queue pair; `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpChanges {
    /// Rights that the peer has at most.
    pub access: Option<LinkFlags>,
    /// Queue key of a datagram queue pair.
    pub qkey: Option<u32>,
    /// RDMA Reads and atomics outstanding at most as initiator.
    pub initiator_depth: Option<u8>,
    /// RDMA Reads and atomics served at once at most as responder.
    pub responder_resources: Option<u8>,
    /// Payload of one message at most.
    pub max_message: Option<u64>,
}

impl QpChanges {
    fn modify(&self) -> ModifyQp {
        let mut mask = QpMask::empty();
        mask.set(QpMask::ACCESS, self.access.is_some());
        mask.set(QpMask::QKEY, self.qkey.is_some());
        mask.set(QpMask::MAX_RD_ATOMIC, self.initiator_depth.is_some());
        mask.set(QpMask::MAX_DEST_RD_ATOMIC, self.responder_resources.is_some());
        mask.set(QpMask::MAX_MESSAGE, self.max_message.is_some());
        ModifyQp {
            mask: mask.bits(),
            access: self.access.unwrap_or(LinkFlags::empty()).bits(),
            qkey: self.qkey.unwrap_or_default(),
            max_rd_atomic: self.initiator_depth.unwrap_or_default(),
            max_dest_rd_atomic: self.responder_resources.unwrap_or_default(),
            max_message: self.max_message.unwrap_or_default(),
            ..ModifyQp::default()
        }
    }
}

/// Up to which request each of a queue pair's work queues had been posted: see [`Qp::posted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    sends: u32,
    receives: u32,
}

/// The objects that a queue pair uses while it lives.
struct Parents {
    _pd: Use<Pd>,
    _send_cq: Use<Cq>,
    _receive_cq: Use<Cq>,
    _srq: Option<Use<Srq>>,
}

/// A queue pair. All methods may be called by any thread at any time.
pub struct Qp {
    pub(crate) kind: QpType,
    /// Number and generation, in the form of a completion's first word.
    identity: u64,
    pub(crate) common: Common,
    send_cq: Arc<Cq>,
    receive_cq: Arc<Cq>,
    /// The queue pair was reset before, so an event may be from before the reset.
    was_reset: AtomicBool,
    pub(crate) send: SlotOwner<Arc<Sender>>,
    /// The queue that was in `send`, after the slot was left to a successor.
    withdrawn: Mutex<Option<Arc<Sender>>>,
    pub(crate) sends: Arc<Outstanding>,
    pub(crate) receive: Option<Mutex<ReceiveQueue>>,
    pub(crate) receives: Arc<Receives>,
    parents: Mutex<Option<Parents>>,
}

/// A queue pair that has entered its CQs. Dropping this makes it leave them again.
struct Entered<'a> {
    cqs: [Option<&'a Cq>; 2],
    identity: u64,
}

impl<'a> Entered<'a> {
    fn enter(
        attributes: &QpAttributes<'a>,
        identity: u64,
        sends: &Arc<Outstanding>,
        receives: &Arc<Receives>,
    ) -> Result<Entered<'a>, Error> {
        let (send_cq, receive_cq) = (attributes.send_cq, attributes.receive_cq);
        let context = attributes.context;
        let both = Queues { identity, context, sends: Some(sends), receives: Some(receives) };
        let mut entered = Entered { cqs: [None; 2], identity };
        if Arc::ptr_eq(send_cq, receive_cq) {
            send_cq.add_member(&both)?;
            entered.cqs = [Some(send_cq), None];
            return Ok(entered);
        }
        send_cq.add_member(&Queues { receives: None, ..both })?;
        entered.cqs = [Some(send_cq), None];
        receive_cq.add_member(&Queues { sends: None, ..both })?;
        entered.cqs = [Some(send_cq), Some(receive_cq)];
        Ok(entered)
    }

    /// The queue pair is created.
    fn stay(mut self) {
        self.cqs = [None; 2];
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        for cq in self.cqs.iter().flatten() {
            cq.remove_member(self.identity);
        }
    }
}

impl Qp {
    pub(crate) fn create(client: &Arc<Client>, attributes: &QpAttributes<'_>) -> Result<Arc<Qp>, Error> {
        let agent = client.agent();
        if attributes.qp_type == QpType::Gsi {
            return Err(Error::OutOfRange("queue pair type"));
        }
        agent.alive()?;
        let number = agent.qps.take().ok_or(Error::NoResources(Resource::Qps))?;
        let qpn = ident::qpn(number.slot, number.generation);
        let made = Qp::make(client, attributes, qpn, number);
        made.inspect_err(|_| agent.qps.release(number.slot))?.enrol()
    }

    /// Creates a queue pair under a number that is reserved.
    pub(crate) fn create_as(
        client: &Arc<Client>,
        attributes: &QpAttributes<'_>,
        qpn: u32,
        number: Number,
    ) -> Result<Arc<Qp>, Error> {
        Qp::make(client, attributes, qpn, number)?.enrol()
    }

    /// Creates a queue pair in the device.
    fn make(
        client: &Arc<Client>,
        attributes: &QpAttributes<'_>,
        qpn: u32,
        number: Number,
    ) -> Result<Arc<Qp>, Error> {
        let agent = client.agent();
        client.owns(attributes.pd.client())?;
        client.owns(attributes.send_cq.client())?;
        client.owns(attributes.receive_cq.client())?;
        if let Some(srq) = attributes.srq {
            client.owns(srq.client())?;
        }
        let most = agent.identity().max_message;
        if attributes.max_message > most {
            return Err(Error::OutOfRange("message size"));
        }
        let parents = Parents {
            _pd: begin_use(attributes.pd)?,
            _send_cq: begin_use(attributes.send_cq)?,
            _receive_cq: begin_use(attributes.receive_cq)?,
            _srq: attributes.srq.map(begin_use).transpose()?,
        };
        let params = QpParams {
            qp_type: attributes.qp_type,
            flags: {
                let privileged = attributes.privileged.is_some() || attributes.qp_type == QpType::Gsi;
                let mut flags = QpFlags::empty();
                flags.set(QpFlags::PRIVILEGED, privileged);
                flags.set(QpFlags::READS_WRITE, attributes.reads_write);
                flags
            },
            pd: attributes.pd.number(),
            generation: number.generation,
            send_cq: attributes.send_cq.number(),
            receive_cq: attributes.receive_cq.number(),
            srq: attributes.srq.map(|srq| srq.number()),
            max_send_requests: attributes.max_send_requests,
            max_send_segments: attributes.max_send_segments,
            max_receive_requests: attributes.max_receive_requests,
            max_receive_segments: attributes.max_receive_segments,
            eq: EQ_ASYNC,
            max_message: if attributes.max_message == 0 { most } else { attributes.max_message },
            owner: attributes.owner,
        };
        // The driver has checked the sizes.
        let rings = agent.nic().create_qp(qpn, &params)?;
        let receives = if rings.receive.is_some() { attributes.max_receive_requests } else { 0 };
        let identity = table::identity(qpn, number.generation);
        let (slot_params, limits) = attributes.slot.unzip();
        let made = || {
            let sends = Outstanding::new(attributes.max_send_requests)?;
            let sends = heap::arc(sends).map_err(|_| Error::OutOfMemory)?;
            let receives = Receives::new(receives, attributes.srq.map(|srq| srq.queue().clone()))?;
            let entered = Entered::enter(attributes, identity, &sends, &receives)?;
            heap::room_for_arc::<(Qp, SendSlot)>()?;
            let limits = limits.unwrap_or_default().at_most(attributes.max_send_segments);
            let sender = Sender::new(rings.send, sends.clone(), limits);
            let sender = heap::arc(sender).map_err(|_| Error::OutOfMemory)?;
            let send = SlotOwner::new(slot_params, identity, NOT_READY, sender).ok_or(Error::Busy)?;
            Ok((send, sends, receives, entered))
        };
        let made: Result<_, Error> = made();
        let (send, sends, receives, entered) = made.inspect_err(|_| {
            let _ = agent.nic().destroy_qp(qpn, &rings.lease);
        })?;
        let qp = Arc::new(Qp {
            kind: attributes.qp_type,
            identity,
            common: Common::new(attributes.context, rings.lease),
            send_cq: attributes.send_cq.clone(),
            receive_cq: attributes.receive_cq.clone(),
            was_reset: AtomicBool::new(false),
            send,
            withdrawn: Mutex::new(None),
            sends,
            receive: rings.receive.map(Mutex::new),
            receives,
            parents: Mutex::new(Some(parents)),
        });
        entered.stay();
        Ok(qp)
    }

    /// Makes a new queue pair known to the agent and to its client. If that fails, destroys it.
    fn enrol(self: Arc<Qp>) -> Result<Arc<Qp>, Error> {
        let agent = self.client().agent();
        agent.qps.put(self.slot(), self.clone());
        self.client().register_object(self.slot(), AnyObject::Qp(self.clone()))?;
        // If the device has died meanwhile, its death was reported before this queue pair was in
        // the table.
        if agent.is_dead() {
            self.device_died();
        }
        Ok(self)
    }

    /// Its number.
    pub fn qpn(&self) -> u32 {
        self.identity as u32
    }

    /// Its number's slot.
    pub fn slot(&self) -> u32 {
        ident::qpn_slot(self.qpn())
    }

    /// Its generation.
    pub fn generation(&self) -> u32 {
        (self.identity >> 32) as u32
    }

    /// The context given at creation.
    #[inline]
    pub fn context(&self) -> u64 {
        self.common.context()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.send_cq.client()
    }

    /// The state to which the agent last moved the queue pair, or that an event reported.
    pub fn state(&self) -> QpState {
        self.common.state()
    }

    /// The transport service of a connection.
    pub(crate) fn service(&self) -> Result<Service, Error> {
        match self.kind {
            QpType::Rc => Ok(Service::Rc),
            QpType::Uc => Ok(Service::Uc),
            // The connection manager makes InfiniBand's connections.
            QpType::Iwarp | QpType::Ud | QpType::Gsi => Err(Error::OutOfRange("queue pair type")),
        }
    }

    pub(crate) fn send_is_outstanding(&self, tag: u32) -> bool {
        self.sends.contains(tag)
    }

    /// Changes state and attributes: the mask and fields as `nic_abi::admin::ModifyQp` says.
    pub fn modify(&self, modify: &ModifyQp) -> Result<(), Error> {
        let agent = self.client().agent();
        let _control = self.client().control(&self.common)?;
        let mask = QpMask::from_bits_truncate(modify.mask);
        let state = match mask.contains(QpMask::STATE) {
            true => Some(QpState::from_word(modify.state).ok_or(Error::OutOfRange("queue pair state"))?),
            false => None,
        };
        if state == Some(QpState::Reset) {
            return self.reset(modify);
        }
        agent.nic().modify_qp(self.qpn(), modify).map_err(|error| self.common.refusal(error))?;
        if let Some(state) = state {
            let _ = self.common.state.set(state);
            self.update_slot();
        }
        Ok(())
    }

    /// Changes attributes: all of them, or none. Asks the device only if there is something to
    /// change.
    pub fn change(&self, changes: &QpChanges) -> Result<(), Error> {
        if *changes == QpChanges::default() {
            return Ok(());
        }
        self.modify(&changes.modify())
    }

    /// Makes a new datagram queue pair with this queue key ready to receive and send.
    pub fn start_datagrams(&self, qkey: u32) -> Result<(), Error> {
        let key = QpChanges { qkey: Some(qkey), ..QpChanges::default() }.modify();
        let mask = key.mask | QpMask::STATE.bits();
        self.modify(&ModifyQp { mask, state: QpState::Init as u32, ..key })?;
        self.to_state(QpState::Rtr)?;
        self.to_state(QpState::Rts)
    }

    /// Waits until no post that began before the last change of `state` is under way, on either
    /// queue.
    fn settle_posts(&self) {
        self.update_slot();
        if let Some(receive) = &self.receive {
            drop(receive.lock());
        }
    }

    /// Closes the queue pair to posts for good. When this returns, no post is under way.
    fn end_posts(&self) {
        self.common.state.end();
        self.settle_posts();
    }

    /// Closes or reopens the slot by the state: the fast path checks nothing but the slot.
    fn update_slot(&self) {
        self.send.set_not_ready(|| !self.common.state.takes_sends());
    }

    /// Leaves the send queue's slot to a successor for good: the send queue takes no posts any
    /// more. Outstanding requests go on.
    pub fn withdraw(&self) {
        if let Some(sender) = self.send.vacate() {
            *self.withdrawn.lock() = Some(sender);
        }
    }

    /// Resets the queue pair, with `control` held. The device takes the doorbells' present tails
    /// for its heads, so no thread may post meanwhile.
    fn reset(&self, modify: &ModifyQp) -> Result<(), Error> {
        let agent = self.client().agent();
        let Some(before) = self.common.state.set(QpState::Reset) else { return Err(Error::Gone) };
        self.settle_posts();
        if let Err(error) = agent.nic().modify_qp(self.qpn(), modify) {
            if !agent.is_dead() {
                let _ = self.common.state.set(before);
                self.update_slot();
            }
            return Err(self.common.refusal(error));
        }
        self.was_reset.store(true, Ordering::Release);
        self.common.mend();
        // Under the CQ's lock: completions that were not polled find their requests forgotten.
        self.send_cq.clear(&self.sends);
        self.receive_cq.clear(&self.receives);
        self.give_back_shared();
        Ok(())
    }

    /// Retires the receives that the queue pair took from its SRQ before the reset and whose
    /// completions were not polled. The device has flushed the receives that were in progress.
    fn give_back_shared(&self) {
        if let Some(srq) = &self.receives.srq {
            self.receive_cq.left_by(self.identity, |tag| {
                let _ = srq.retire(tag);
            });
        }
    }

    fn to_state(&self, state: QpState) -> Result<(), Error> {
        let mask = QpMask::STATE.bits();
        self.modify(&ModifyQp { mask, state: state as u32, ..ModifyQp::default() })
    }

    /// RESET to INIT: receives may be posted. `access` are the rights that the connected peer has
    /// at most (`LinkFlags::REMOTE_*`).
    pub fn to_init(&self, access: LinkFlags) -> Result<(), Error> {
        let mask = if self.kind.is_connected() { QpMask::STATE | QpMask::ACCESS } else { QpMask::STATE };
        let state = QpState::Init as u32;
        self.modify(&ModifyQp { mask: mask.bits(), state, access: access.bits(), ..ModifyQp::default() })
    }

    /// Any state to ERROR: the device flushes all outstanding work.
    pub fn to_error(&self) -> Result<(), Error> {
        self.to_state(QpState::Error)
    }

    /// Any state to RESET: the agent forgets outstanding work and completions that were not polled.
    pub fn to_reset(&self) -> Result<(), Error> {
        self.to_state(QpState::Reset)
    }

    /// Records the event that the queue pair went to ERROR by itself. Returns what broke; `None` if
    /// the event is from before the last reset.
    pub(crate) fn broke(&self) -> Option<Breach> {
        let control = self.client().lock(&self.common);
        if self.was_reset.load(Ordering::Acquire) {
            // The event may be from before the reset. Such events are rare, so ask the device.
            match self.query() {
                Ok(info) if info.state == QpState::Error as u32 => {}
                _ => return None,
            }
        }
        Some(self.common.set_broken(&control))
    }

    /// Closes the queue pair to posts for good: the device is dead.
    pub(crate) fn device_died(&self) {
        self.end_posts();
    }

    /// The queue pair's attributes and state, as the device has them.
    pub fn query(&self) -> Result<QpInfo, Error> {
        let agent = self.client().agent();
        agent.has(&self.common)?;
        Ok(agent.nic().query_qp(self.qpn())?)
    }

    /// Attaches a UD queue pair to a multicast group, whose datagrams it gets from then on, until
    /// it leaves or is destroyed. An error if it has joined the group already.
    pub fn join(&self, gid: [u8; 16]) -> Result<(), Error> {
        let agent = self.client().agent();
        agent.has(&self.common)?;
        Ok(agent.nic().join_group(self.qpn(), gid)?)
    }

    /// Detaches a queue pair from a multicast group. An error if it has not joined it.
    pub fn leave(&self, gid: [u8; 16]) -> Result<(), Error> {
        let agent = self.client().agent();
        agent.has(&self.common)?;
        Ok(agent.nic().leave_group(self.qpn(), gid)?)
    }

    /// How many requests are outstanding: of the send queue and of the receive queue.
    pub fn outstanding(&self) -> (u32, u32) {
        (self.sends.len(), self.receives.len())
    }

    /// Up to which request each work queue has been posted.
    pub fn posted(&self) -> Posted {
        Posted { sends: self.sends.end_of_posted(), receives: self.receives.end_of_posted() }
    }

    /// Whether all requests that had been posted to the send queue by then are retired.
    pub fn sends_are_past(&self, posted: Posted) -> bool {
        self.sends.is_past(posted.sends)
    }

    /// Whether all Receives that had been posted by then are retired. Those of a shared receive
    /// queue do not count.
    pub fn receives_are_past(&self, posted: Posted) -> bool {
        self.receives.is_past(posted.receives)
    }

    /// Destroys the queue pair, and ends its connection. When this returns, the device does not
    /// touch the queue pair's memory, and polls return no completion of it.
    ///
    /// [`Error::Gone`] if it was destroyed before. Otherwise it fails only if the device is dead;
    /// the queue pair is destroyed in that case as well.
    pub fn destroy(&self) -> Result<(), Error> {
        let agent = self.client().agent();
        if let Some(connection) = self.common.connection() {
            agent.abandon(connection);
        }
        self.end(false)
    }

    /// As [`Qp::destroy`], but [`Error::Busy`] and without effect while narrow windows of the queue
    /// pair's owner are bound. The device decides that in the step that destroys the queue pair, so
    /// no link that is under way binds one afterwards.
    pub fn destroy_unless_bound(&self) -> Result<(), Error> {
        self.end(true)
    }

    fn end(&self, unless_bound: bool) -> Result<(), Error> {
        let agent = self.client().agent();
        let _control = self.client().lock(&self.common);
        let Some(parents) = self.parents.lock().take() else { return Err(Error::Gone) };
        // A post between this command and the end of the posts is lost, as if it had been flushed.
        // The memory that it writes to, and the number that it rings with, stay the queue pair's
        // until the posts have ended.
        let decided =
            unless_bound.then(|| agent.nic().destroy_qp_unless_bound(self.qpn(), &self.common.lease));
        if let Some(Err(refused @ nic_hal::Error::Command(_))) = decided {
            *self.parents.lock() = Some(parents);
            return Err(refused.into());
        }
        self.end_posts();
        // A connection that was made meanwhile.
        agent.abandon_of(&self.common);
        let result = decided.unwrap_or_else(|| agent.nic().destroy_qp(self.qpn(), &self.common.lease));
        let removed = agent.qps.remove(self.slot());
        self.send_cq.remove_member(self.identity);
        self.receive_cq.remove_member(self.identity);
        drop(removed);
        if result.is_ok() {
            self.give_back_shared();
        }
        let senders = (self.send.vacate(), self.withdrawn.lock().take());
        drop(senders);
        self.client().forget_object(Counter::Qps, self.slot());
        if result.is_ok() && self.qpn() != ident::QPN_GSI {
            agent.qps.release(self.slot());
        }
        drop(parents);
        Ok(result?)
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_change_names_each_attribute_that_changes_and_no_other() {
        let all = QpChanges {
            access: Some(LinkFlags::REMOTE_READ),
            qkey: Some(7),
            initiator_depth: Some(2),
            responder_resources: Some(3),
            max_message: Some(4),
        };
        let expected = ModifyQp {
            access: LinkFlags::REMOTE_READ.bits(),
            qkey: 7,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 3,
            max_message: 4,
            ..ModifyQp::default()
        };
        let each: [(QpChanges, QpMask); 5] = [
            (QpChanges { access: all.access, ..QpChanges::default() }, QpMask::ACCESS),
            (QpChanges { qkey: all.qkey, ..QpChanges::default() }, QpMask::QKEY),
            (QpChanges { initiator_depth: Some(2), ..QpChanges::default() }, QpMask::MAX_RD_ATOMIC),
            (QpChanges { responder_resources: Some(3), ..QpChanges::default() }, QpMask::MAX_DEST_RD_ATOMIC),
            (QpChanges { max_message: Some(4), ..QpChanges::default() }, QpMask::MAX_MESSAGE),
        ];
        let mut together = QpMask::empty();
        for (change, mask) in each {
            assert_eq!(change.modify().mask, mask.bits(), "{change:?}");
            together |= mask;
        }
        assert_eq!(all.modify().as_bytes(), ModifyQp { mask: together.bits(), ..expected }.as_bytes());
        assert_eq!(QpChanges::default().modify().mask, 0);
    }
}
