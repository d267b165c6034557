//! Virtual interfaces (VI Architecture 1.0).
//!
//! A virtual interface is a queue pair of the device whose work requests are descriptors in the
//! consumer's memory. RESET is VIA's Idle. The connection manager moves a virtual interface to INIT
//! and RTR together.
//!
//! Each reset gives a virtual interface another number, so that nothing of a former connection
//! reaches it: no packet, and no step of the connection manager that is still under way. Slot and
//! generation stay, by which the entries of completion queues and the events of completions name
//! it.
//!
//! Locks: `control` (sleeps; commands to the device), then the lock of the connections' tables,
//! then those of `queues` (spin; posting and taking) and `attributes` and `parents` (leaves).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nic_abi::admin::{ModifyQp, QpMask, QpState};
use nic_abi::ident;
use nic_abi::wqe::LinkFlags;
use nic_hal::{Taken, ViParams, ViQueue, ViRings};
use platform::sync::Mutex;
use platform::use_count::Use;
use platform::{Closable, heap};
use roce::transport::Service;

use crate::agent::Agent;
use crate::agent::config::EQ_VIS;
use crate::client::AnyObject;
use crate::object::{Counter, Owner, begin_use};
use crate::qp_common::{Breach, Common};
use crate::region::Pd;
use crate::table::Number;
use crate::vi_cq::ViCq;
use crate::vi_types::{FoundError, ViAttributes, ViPostError, ViSide, ViTaken};
use crate::{AsyncEvent, Client, Error, Reliability, Resource, ViError};

/// The objects that a virtual interface uses while it lives.
struct Parents {
    pd: Use<Pd>,
    _cqs: [Option<Use<ViCq>>; 2],
}

/// A work queue.
struct Queue {
    ring: ViQueue,
    /// The queue is armed, or the event for which it was armed has not been taken.
    armed: bool,
}

/// A slot for a virtual interface, and its share of the event queue's room. Dropping this gives
/// both back.
struct NumberGuard<'a> {
    agent: &'a Agent,
    number: Number,
}

impl<'a> NumberGuard<'a> {
    fn take(agent: &'a Agent) -> Result<NumberGuard<'a>, Error> {
        if !agent.vi_room.take() {
            return Err(Error::NoResources(Resource::Qps));
        }
        match agent.qps.numbers().take_in(&agent.vis) {
            Some(number) => Ok(NumberGuard { agent, number }),
            None => {
                agent.vi_room.give_back();
                Err(Error::NoResources(Resource::Qps))
            }
        }
    }

    /// The virtual interface is created, and gives both back when it is destroyed.
    fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for NumberGuard<'_> {
    fn drop(&mut self) {
        self.agent.vi_room.give_back();
        self.agent.qps.release(self.number.slot);
    }
}

/// A virtual interface. All methods may be called by any thread at any time.
pub struct Vi {
    client: Arc<Client>,
    slot: u32,
    generation: u32,
    /// Its present number. Changed with `control` held.
    number: AtomicU32,
    common: Common,
    /// The send queue and the receive queue; closed when the virtual interface is gone.
    queues: [Closable<Queue>; 2],
    cqs: [Option<Arc<ViCq>>; 2],
    attributes: Mutex<ViAttributes>,
    /// The number of its protection domain, whose user `parents` is.
    domain: AtomicU32,
    /// A thread is about to reset it, so that no connection can be made. Set under the lock of the
    /// connections' tables.
    changing: AtomicBool,
    /// The client has learned that the connection is lost. A reset clears it, with `control` held.
    lost: AtomicBool,
    parents: Mutex<Option<Parents>>,
}

impl Vi {
    pub(crate) fn create(
        client: &Arc<Client>,
        pd: &Arc<Pd>,
        attributes: &ViAttributes,
        cqs: [Option<&Arc<ViCq>>; 2],
        entries: [u32; 2],
        context: u64,
    ) -> Result<Arc<Vi>, Error> {
        let agent = client.agent();
        agent.alive()?;
        client.owns(pd.client())?;
        for cq in cqs.into_iter().flatten() {
            client.owns(cq.client())?;
        }
        attributes.check(agent.identity().max_message)?;
        let [send_cq, receive_cq] = cqs.map(|cq| cq.map(begin_use).transpose());
        let parents = Parents { pd: begin_use(pd)?, _cqs: [send_cq?, receive_cq?] };
        let guard = NumberGuard::take(agent)?;
        let Number { slot, generation } = guard.number;
        let number = ident::qpn(slot, generation);
        let params = ViParams {
            pd: pd.number(),
            generation,
            cqs: cqs.map(|cq| cq.map(|cq| cq.number())),
            entries,
            completions_eq: EQ_VIS,
            errors_eq: EQ_VIS,
            max_message: attributes.max_transfer,
        };
        // The driver checks the sizes.
        let ViRings { queues, lease } = agent.nic().create_vi(number, &params)?;
        let made = heap::room_for_arc::<Vi>().map_err(Error::from).and_then(|()| {
            let level = attributes.reliability as u8;
            let mask = (QpMask::STATE | QpMask::LEVEL).bits();
            let modify = ModifyQp { mask, state: QpState::Reset as u32, level, ..ModifyQp::default() };
            Ok(agent.nic().modify_qp(number, &modify)?)
        });
        if let Err(error) = made {
            if agent.nic().destroy_qp(number, &lease).is_err() {
                guard.keep();
            }
            return Err(error);
        }
        guard.keep();
        let vi = Arc::new(Vi {
            client: client.clone(),
            slot,
            generation,
            number: AtomicU32::new(number),
            common: Common::new(context, lease),
            queues: queues.map(|ring| Closable::new(Queue { ring, armed: false })),
            cqs: cqs.map(|cq| cq.cloned()),
            attributes: Mutex::new(*attributes),
            domain: AtomicU32::new(pd.number()),
            changing: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            parents: Mutex::new(Some(parents)),
        });
        agent.vis.put(slot, vi.clone());
        client.register_object(slot, AnyObject::Vi(vi.clone()))?;
        // If the device has died meanwhile, its death was reported before this virtual interface
        // was in the table.
        if agent.is_dead() {
            vi.device_died();
        }
        Ok(vi)
    }

    /// The context given at creation.
    #[inline]
    pub fn context(&self) -> u64 {
        self.common.context()
    }

    /// The state to which the agent last moved the virtual interface, or that an event reported.
    /// RESET is VIA's Idle. After an attempt to connect that failed it is RESET or INIT; or ERROR,
    /// if the client had confirmed the peer's reply.
    pub fn state(&self) -> QpState {
        self.common.state()
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(crate) fn common(&self) -> &Common {
        &self.common
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// The number of the queue pair that it is, until the next reset.
    pub fn qpn(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// The number of its protection domain. [`Vi::set`] may change it at any moment.
    #[inline(always)]
    pub fn domain(&self) -> u32 {
        self.domain.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn queue(&self, side: ViSide) -> &Closable<Queue> {
        let [send, receive] = &self.queues;
        match side {
            ViSide::Send => send,
            ViSide::Receive => receive,
        }
    }

    #[inline(always)]
    fn cq(&self, side: ViSide) -> Option<&Arc<ViCq>> {
        let [send, receive] = &self.cqs;
        match side {
            ViSide::Send => send.as_ref(),
            ViSide::Receive => receive.as_ref(),
        }
    }

    /// Whether a queue is tied to this completion queue.
    #[inline(always)]
    pub(crate) fn is_on(&self, cq: &ViCq, side: ViSide) -> bool {
        self.cq(side).is_some_and(|own| core::ptr::eq(&**own, cq))
    }

    /// Posts a descriptor: writes its address and the handle of its memory into the ring, and rings
    /// the doorbell. The device takes posts in every state.
    ///
    /// `link` is called with address and handle of the descriptor before it, if the device has it
    /// still, under the queue's lock and before the device learns of the post. It must not call the
    /// agent, but for [`Vi::domain`].
    #[inline(always)]
    pub fn post(
        &self,
        side: ViSide,
        address: u64,
        handle: u32,
        link: impl FnOnce(u64, u32),
    ) -> Result<(), ViPostError> {
        let mut queue = self.queue(side).enter().ok_or(ViPostError::Gone)?;
        queue.ring.post(address, handle, link).map_err(|_| ViPostError::Full)
    }

    /// Takes the oldest descriptor off the queue if it is complete; also after the device's death.
    ///
    /// `is_done` reads, with acquire, whether the descriptor's status has the bit `DONE`, from
    /// address and handle. It is called at most once, under the queue's lock, and only while the
    /// device is writing the status. It must not call the agent.
    #[inline(always)]
    pub fn take(&self, side: ViSide, is_done: impl FnOnce(u64, u32) -> bool) -> ViTaken {
        match self.queue(side).lock().ring.take(is_done) {
            Taken::Done(address, handle) => ViTaken::Done { address, handle },
            Taken::Lost => ViTaken::Lost,
            Taken::NotDone => ViTaken::NotDone,
        }
    }

    /// Arms a queue: one `Upcalls::vi_completion` follows when the device completes the next
    /// descriptor. Look at the queue once more afterwards. Has no effect on a queue that is tied to
    /// a completion queue.
    ///
    /// Arming again before the upcall has begun does nothing. So a queue has at most one event
    /// under way, and the event queue cannot overflow whatever consumers do.
    pub fn arm(&self, side: ViSide) {
        if self.cq(side).is_some() {
            return;
        }
        let Some(mut queue) = self.queue(side).enter() else { return };
        if !queue.armed {
            queue.armed = true;
            queue.ring.arm();
        }
    }

    /// Records that the dispatcher thread has taken the event for which a queue was armed. Under
    /// the queue's lock, so that the upcall begins after each call of `arm` that relied on this
    /// event.
    pub(crate) fn disarmed(&self, side: ViSide) {
        self.queue(side).lock().armed = false;
    }

    /// Takes lost descriptors off the head of a queue, up to and including the first one that was
    /// not reported to the client yet. Returns the address of that one: the caller reports it, and
    /// no upcall does any more.
    pub fn take_lost(&self, side: ViSide) -> Option<u64> {
        self.queue(side).lock().ring.take_lost()
    }

    /// Takes lost descriptors off the head of a queue. Their events report them to the client.
    pub fn skip_lost(&self, side: ViSide) {
        self.queue(side).lock().ring.skip_lost();
    }

    /// Passes to `report` the address of each descriptor that the device lost and that was not
    /// reported to the client yet. No upcall reports it any more. `report` is called without locks.
    pub fn each_unreported(&self, side: ViSide, report: impl Fn(u64)) {
        let mut found = [0; 16];
        // Those of now: what the device loses meanwhile has an event, or is found by the next call.
        // A device that goes on writing marks must not keep a thread here.
        for _ in 0..=self.queued(side) / found.len() as u32 {
            let count = self.queue(side).lock().ring.unreported(&mut found);
            found.iter().take(count).for_each(|&address| report(address));
            if count < found.len() {
                break;
            }
        }
    }

    /// Reports that the device lost a descriptor under `number`, and others whose events it merged
    /// with this one. In the dispatcher thread.
    pub(crate) fn report_lost_descriptor(&self, number: u32, error: ViError, operation: u8, address: u64) {
        let (side, other) = match operation & 1 {
            0 => (ViSide::Send, 0),
            _ => (ViSide::Receive, 1),
        };
        if self.queue(side).lock().ring.report(address) {
            self.report(number, error, operation, address);
        }
        self.each_unreported(side, |address| self.report(number, error, other, address));
    }

    /// How many descriptors are on a queue: posted and not taken off. Lost ones at its head that
    /// were reported do not count.
    pub fn queued(&self, side: ViSide) -> u32 {
        self.queue(side).lock().ring.queued()
    }

    /// The number and the transport service, if no thread is about to reset it. Under the lock of
    /// the connections' tables.
    pub(crate) fn settled(&self) -> Result<(u32, Service), Error> {
        // Acquire: before the number, which changes while this is set.
        if self.changing.load(Ordering::Acquire) {
            return Err(Error::Busy);
        }
        let service = match self.attributes.lock().reliability {
            Reliability::Unreliable => Service::Uc,
            Reliability::Delivery | Reliability::Reception => Service::Rc,
        };
        Ok((self.qpn(), service))
    }

    /// Keeps connections from being made until the result is dropped. Under the lock of the
    /// connections' tables, with `control` held.
    pub(crate) fn begin_change(&self) -> Changing<'_> {
        self.changing.store(true, Ordering::Release);
        Changing(self)
    }

    fn command(&self, modify: &ModifyQp) -> Result<(), Error> {
        let nic = self.client.agent().nic();
        nic.modify_qp(self.qpn(), modify).map_err(|error| self.common.refusal(error))
    }

    fn to_state(&self, modify: &ModifyQp, state: QpState) -> Result<(), Error> {
        let mask = modify.mask | QpMask::STATE.bits();
        self.command(&ModifyQp { mask, state: state as u32, ..*modify })?;
        let _ = self.common.state.set(state);
        Ok(())
    }

    /// Moves the virtual interface for the connection that was made under `number`: to RTR, for
    /// which it is moved to INIT first, or to RTS.
    pub(crate) fn modify(&self, number: u32, modify: &ModifyQp) -> Result<(), Error> {
        let _control = self.client.control(&self.common)?;
        let state = QpState::from_word(modify.state).ok_or(Error::OutOfRange("queue pair state"))?;
        if self.qpn() != number {
            return Err(Error::ConnectionState);
        }
        if state == QpState::Rtr && self.state() == QpState::Reset {
            let access = self.attributes.lock().access.bits();
            let mask = QpMask::ACCESS.bits();
            self.to_state(&ModifyQp { mask, access, ..ModifyQp::default() }, QpState::Init)?;
        }
        self.to_state(modify, state)
    }

    /// Ends what the connection that was made under `number` left: the device flushes what is
    /// posted. If there was no connection yet, receives stay posted (5.1, 5.2), and the peer, if it
    /// had been let in, is shut out again; but if its first message broke the virtual interface,
    /// this is in ERROR, although the event that says so was not handled yet.
    pub(crate) fn flush(&self, number: u32) -> Result<(), Error> {
        let control = self.client.control(&self.common)?;
        if self.qpn() != number {
            return Ok(());
        }
        match self.state() {
            QpState::Reset | QpState::Init => Ok(()),
            QpState::Rtr => {
                let info = self.client.agent().nic().query_qp(number)?;
                if info.state == QpState::Error as u32 {
                    self.common.set_broken(&control);
                    return Ok(());
                }
                let _changing = self.client.agent().connections.hold_off(self);
                self.reset_for_next()
            }
            _ => self.to_state(&ModifyQp::default(), QpState::Error),
        }
    }

    /// Asks the device whether the virtual interface is in ERROR: a descriptor may show what broke
    /// it before the event that says so was handled. `None` if it is not, or if it is gone. Waits
    /// for the device.
    pub fn find_error(&self) -> Option<FoundError> {
        let _control = self.client.control(&self.common).ok()?;
        let number = self.qpn();
        if self.state() == QpState::Error {
            return Some(FoundError { number, by_itself: self.common.is_broken() });
        }
        // No command is under way, so only the device itself can have moved it there.
        let info = self.client.agent().nic().query_qp(number).ok()?;
        (info.state == QpState::Error as u32).then_some(FoundError { number, by_itself: true })
    }

    /// Records the event that the virtual interface went to ERROR by itself. Returns what
    /// broke; `None` if it has been reset since.
    pub(crate) fn broke(&self, number: u32) -> Option<Breach> {
        let control = self.client.lock(&self.common);
        (self.qpn() == number).then(|| self.common.set_broken(&control))
    }

    /// Reports that the connection that was made under `number` is lost, once. In the dispatcher
    /// thread.
    pub(crate) fn report_lost(&self, number: u32) {
        let control = self.client.lock(&self.common);
        let known = self.qpn() != number || self.common.is_gone();
        if known || self.lost.swap(true, Ordering::AcqRel) {
            return;
        }
        drop(control);
        self.report(number, ViError::ConnectionLost, 0, 0);
    }

    /// Reports an error that it had under `number`. In the dispatcher thread.
    pub(crate) fn report(&self, number: u32, error: ViError, operation: u8, address: u64) {
        let event = AsyncEvent::Vi { context: self.context(), number, error, operation, address };
        self.client.upcall(|up| up.asynchronous(event));
    }

    /// Resets the virtual interface, with `control` held and while no connection can be made. The
    /// device completes all that is posted, but for receives that the mask keeps.
    fn reset(&self, modify: &ModifyQp) -> Result<(), Error> {
        let generation = self.client.agent().qps.renew(self.slot);
        let qpn = ident::qpn(self.slot, generation);
        let mask = modify.mask | QpMask::QPN.bits();
        self.to_state(&ModifyQp { mask, qpn, ..*modify }, QpState::Reset)?;
        self.number.store(qpn, Ordering::Release);
        self.common.mend();
        self.lost.store(false, Ordering::Release);
        Ok(())
    }

    /// [`Vi::reset`] after an attempt to connect that failed: receives that no message has taken
    /// stay posted.
    fn reset_for_next(&self) -> Result<(), Error> {
        self.reset(&ModifyQp { mask: QpMask::KEEP_RECEIVES.bits(), ..ModifyQp::default() })
    }

    /// Gives the virtual interface another protection domain, other attributes, or both.
    /// [`Error::QpState`] if it is connected, is being connected, or is in ERROR.
    ///
    /// Receives stay posted (5.1). The device judges each when a message takes it: by the domain of
    /// that moment.
    pub fn set(&self, pd: Option<&Arc<Pd>>, attributes: Option<&ViAttributes>) -> Result<(), Error> {
        let agent = self.client.agent();
        let _control = self.client.control(&self.common)?;
        if let Some(pd) = pd {
            self.client.owns(pd.client())?;
        }
        if let Some(attributes) = attributes {
            attributes.check(agent.identity().max_message)?;
        }
        let pd = pd.map(begin_use).transpose()?;
        let _changing = agent.connections.begin_change(self)?;
        let mut mask = QpMask::KEEP_RECEIVES;
        mask.set(QpMask::PD, pd.is_some());
        mask.set(QpMask::LEVEL | QpMask::MAX_MESSAGE, attributes.is_some());
        self.reset(&ModifyQp {
            mask: mask.bits(),
            pd: pd.as_ref().map_or(0, |pd| pd.number()),
            level: attributes.map_or(0, |attributes| attributes.reliability as u8),
            max_message: attributes.map_or(0, |attributes| attributes.max_transfer),
            ..ModifyQp::default()
        })?;
        if let Some(attributes) = attributes {
            *self.attributes.lock() = *attributes;
        }
        if let Some(pd) = &pd {
            self.domain.store(pd.number(), Ordering::Relaxed);
        }
        let former =
            self.parents.lock().as_mut().zip(pd).map(|(all, pd)| core::mem::replace(&mut all.pd, pd));
        drop(former);
        Ok(())
    }

    /// Changes rights of the peer, or the longest message, in any state. Nothing that is posted is
    /// touched; the other attributes and the connection stay.
    pub fn change(&self, access: Option<LinkFlags>, max_transfer: Option<u64>) -> Result<(), Error> {
        let _control = self.client.control(&self.common)?;
        let now = *self.attributes.lock();
        let attributes = ViAttributes {
            access: access.unwrap_or(now.access),
            max_transfer: max_transfer.unwrap_or(now.max_transfer),
            ..now
        };
        attributes.check(self.client.agent().identity().max_message)?;
        // Before there is a connection the device has no rights of a peer: they are set when there
        // is one.
        let connected = self.state() != QpState::Reset;
        let mut mask = QpMask::empty();
        mask.set(QpMask::ACCESS, access.is_some() && connected);
        mask.set(QpMask::MAX_MESSAGE, max_transfer.is_some());
        if !mask.is_empty() {
            self.command(&ModifyQp {
                mask: mask.bits(),
                access: attributes.access.bits(),
                max_message: attributes.max_transfer,
                ..ModifyQp::default()
            })?;
        }
        *self.attributes.lock() = attributes;
        Ok(())
    }

    /// Any state to ERROR: the device flushes what is posted, and what will be. The connection
    /// stays; its end is the connection manager's.
    pub fn to_error(&self) -> Result<(), Error> {
        let _control = self.client.control(&self.common)?;
        self.to_state(&ModifyQp::default(), QpState::Error)
    }

    /// Ends the connection, or gives up one that is being made; no event of it follows. All
    /// descriptors on both queues are complete when this returns, those that were not before as
    /// flushed. The virtual interface is in RESET, and can be connected again at once.
    ///
    /// Waits for the device at most, never for the peer. Fails only if the virtual interface is
    /// gone.
    pub fn disconnect(&self) -> Result<(), Error> {
        let _control = self.client.control(&self.common)?;
        self.client.agent().connections.leave(self, || self.reset(&ModifyQp::default()))
    }

    /// Gives up an attempt to connect, as [`Vi::disconnect`], but receives that no message has
    /// taken stay posted (5.1, 5.2).
    pub fn give_up(&self) -> Result<(), Error> {
        let _control = self.client.control(&self.common)?;
        self.client.agent().connections.leave(self, || self.reset_for_next())
    }

    /// Closes the queues to posts for good. When this returns, no post is under way.
    fn end_posts(&self) {
        self.common.state.end();
        self.queues.iter().for_each(Closable::close);
    }

    /// Closes the queues to posts for good: the device is dead.
    pub(crate) fn device_died(&self) {
        self.end_posts();
    }

    /// Destroys the virtual interface, and abandons its connection. When this returns, the device
    /// does not touch the memory of its rings, nor any descriptor.
    ///
    /// [`Error::Gone`] if it was destroyed before. Otherwise it fails only if the device is dead;
    /// the virtual interface is destroyed in that case as well.
    pub fn destroy(&self) -> Result<(), Error> {
        let agent = self.client.agent();
        let _control = self.client.lock(&self.common);
        let Some(parents) = self.parents.lock().take() else { return Err(Error::Gone) };
        self.end_posts();
        agent.abandon_of(&self.common);
        let result = agent.nic().destroy_qp(self.qpn(), &self.common.lease);
        drop(agent.vis.remove(self.slot));
        self.client.forget_object(Counter::Vis, self.slot);
        if result.is_ok() {
            agent.vi_room.leave();
            agent.qps.release(self.slot);
        }
        drop(parents);
        Ok(result?)
    }
}

/// While this exists, no connection of a virtual interface is made.
pub(crate) struct Changing<'a>(&'a Vi);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.changing.store(false, Ordering::Release);
    }
}
