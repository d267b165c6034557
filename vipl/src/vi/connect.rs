//! Connections and the state of a virtual interface (pages VipConnectWait, VipConnectAccept,
//! VipConnectReject, VipConnectRequest, VipDisconnect; chapters 4 and 5).
//!
//! A call that makes a connection sets the state to pending, calls the agent, and waits for the
//! outcome, which an upcall writes. The upcalls may come before the agent's call has returned.

use alloc::sync::Arc;

use kernel_agent::wire::{Gid, Path, PathMtu, ReadDepths};
use kernel_agent::{AcceptParams, CmEvent, CmEventKind, ConnectParams, ConnectionId, Handshake};
use platform::sync::atomic::{AtomicBool, Ordering};
use platform::{SleepLock, heap};
use rdma::via::{Offer, Request};
use rdma::wait::until;

use super::Vi;
use super::conn_state::Attempt;
use crate::address::NetAddress;
use crate::attributes::{ReliabilityLevel, ViAttributes, ViState};
use crate::conn::Conn;
use crate::error::{Error, Result};
use crate::error_callback::ErrorCode;
use crate::handle::{ConnHandle, ViHandle};
use crate::nic::{Core, Nic};
use crate::switchboard::{Filter, Switchboard, Waiting};
use crate::wait::Deadline;

/// What an event names the connection by that is lost.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    /// Its id.
    Connection(ConnectionId),
    /// The number of the agent's virtual interface while it was connected.
    Number(u32),
}

/// A connection request of a remote end, which waits for [`Nic::connect_accept`] or
/// [`Nic::connect_reject`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRequest {
    /// The address of the remote end.
    pub remote_addr: NetAddress,
    /// The attributes of the remote end; the protection tag is null.
    pub remote_vi_attribs: ViAttributes,
    /// The handle to answer with.
    pub conn: ConnHandle,
}

impl Vi {
    /// Fails with `InvalidParameter` unless the virtual interface is idle. The caller holds
    /// `control`, so that it stays idle.
    pub(super) fn idle(&self) -> Result<()> {
        let conn = self.conn.lock();
        if conn.ended || conn.state != ViState::Idle { Err(Error::InvalidParameter) } else { Ok(()) }
    }

    /// The state. The device is asked whether a connection broke: a descriptor or an error may have
    /// shown that to the consumer already, while the event that says so is under way (10.2, 7.2 and
    /// 7.3).
    pub(super) fn state(&self) -> ViState {
        let (state, known) = {
            let conn = self.conn.lock();
            (conn.state, conn.connection.is_some())
        };
        let broken = |pending: bool| self.vi.find_error().is_some_and(|found| found.by_itself || !pending);
        match state {
            ViState::Connected if broken(false) => ViState::Error,
            // An attempt that failed has its own event, and leads to Idle.
            ViState::ConnectPending if known && broken(true) => ViState::Error,
            state => state,
        }
    }

    /// Writes the outcome of an attempt. In the dispatcher thread.
    fn settled(&self, id: ConnectionId, outcome: Attempt) {
        {
            let mut conn = self.conn.lock();
            if !conn.is_of(id) || conn.state != ViState::ConnectPending || conn.outcome.is_some() {
                return;
            }
            if outcome == Attempt::Established {
                conn.state = ViState::Connected;
            }
            conn.outcome = Some(outcome);
        }
        self.changed.raise();
    }
}

impl Core {
    /// The read depths of both directions on a level.
    fn depths(&self, level: ReliabilityLevel) -> ReadDepths {
        if !level.is_reliable() {
            return ReadDepths::default();
        }
        let most = self.agent().identity().max_rd_atomic.min(u8::MAX.into()) as u8;
        ReadDepths { responder_resources: most, initiator_depth: most }
    }

    /// Waits for the outcome of an attempt.
    fn outcome(&self, vi: &Vi, attempt: u64, deadline: Option<Deadline>) -> Result<Attempt> {
        let look = || {
            let outcome = vi.conn.lock().outcome_of(attempt).transpose();
            outcome.or_else(|| self.still_live().err().map(Err))
        };
        until(&vi.changed, deadline.and_then(|deadline| deadline.at), look).unwrap_or(Err(Error::Timeout))
    }

    /// Gives up an attempt that did not succeed, so that the virtual interface is idle again. True
    /// if it has succeeded meanwhile; `ErrorResource` if a disconnect was faster. The caller holds
    /// `control`.
    fn give_up(&self, vi: &Vi, attempt: u64) -> Result<bool> {
        {
            let mut conn = vi.conn.lock();
            conn.check(attempt)?;
            match conn.state {
                ViState::ConnectPending => _ = conn.forget(),
                ViState::Connected => return Ok(true),
                // The connection broke at once.
                ViState::Idle | ViState::Error => return Ok(false),
            }
        }
        self.reset(vi);
        Ok(false)
    }

    /// Ends an attempt that failed: the virtual interface is idle, and can be connected again.
    /// Receives stay posted. The caller holds `control`.
    fn reset(&self, vi: &Vi) {
        if let Err(error) = vi.vi.give_up() {
            self.error(error);
        }
        vi.conn.lock().finish();
    }

    /// An event of a connection. In the dispatcher thread.
    pub(crate) fn connection_event(&self, event: &CmEvent<'_>) {
        if let Some(conn) = self.conns.get(ConnHandle::from_raw(event.context)) {
            // The one event that a request has before it is answered.
            conn.withdrawn.store(true, Ordering::Release);
        }
        let Some(vi) = self.vis.get(ViHandle::from_raw(event.context)) else { return };
        let outcome = match event.kind {
            CmEventKind::AcceptArrived { depths } => return self.accepted(&vi, event, depths),
            CmEventKind::Disconnected { .. } => return self.lost(&vi, Which::Connection(event.connection)),
            CmEventKind::Established { .. } => Attempt::Established,
            CmEventKind::Rejected { .. } => Attempt::Rejected,
            CmEventKind::Unreachable | CmEventKind::AcceptTimedOut | CmEventKind::Withdrawn => {
                Attempt::Unreachable
            }
            CmEventKind::Request { .. } | CmEventKind::TransitionRequested => return,
        };
        vi.settled(event.connection, outcome);
    }

    /// The remote end accepts. Its attributes have to fit, whatever it has checked itself.
    fn accepted(&self, vi: &Vi, event: &CmEvent<'_>, depths: ReadDepths) {
        let id = event.connection;
        let Ok(client) = self.client() else { return };
        let ours = *vi.attributes.lock();
        let remote = Offer::decode(event.private_data)
            .map(|offer| ViAttributes::of_remote(&offer))
            .filter(|remote| ours.agrees(remote).is_ok());
        if remote.is_none() {
            // Fails if the attempt is over.
            let _ = client.reject(id, &[]);
            return vi.settled(id, Attempt::Broken);
        }
        {
            let mut conn = vi.conn.lock();
            if !conn.is_of(id) {
                return;
            }
            conn.remote = remote;
        }
        let own = self.depths(ours.reliability_level);
        let depth = own.initiator_depth.min(depths.responder_resources);
        match client.establish(id, depth, &[]) {
            // In the latter case the attempt is over, and its event follows.
            Ok(()) | Err(kernel_agent::Error::ConnectionState) => {}
            Err(_) => vi.settled(id, Attempt::Broken),
        }
    }

    /// The connection of a virtual interface broke, or its peer ended it: reported once for each
    /// connection.
    pub(crate) fn lost(&self, vi: &Arc<Vi>, which: Which) {
        let report = {
            let mut conn = vi.conn.lock();
            // The next attempt begins when the number has changed, and under this lock.
            let is_present = match which {
                Which::Connection(id) => conn.is_of(id),
                Which::Number(number) => vi.vi.qpn() == number,
            };
            if !is_present {
                return;
            }
            match (conn.state, which) {
                (ViState::Connected, _) => {
                    conn.state = ViState::Error;
                    true
                }
                // An error of the NIC (5.2). A call that fails leads to Idle (5.1), so this one
                // does not: it ends as if the connection had broken a moment later.
                (ViState::ConnectPending, Which::Number(_)) if conn.connection.is_some() => {
                    conn.state = ViState::Error;
                    conn.outcome = Some(Attempt::Established);
                    true
                }
                (ViState::ConnectPending, _) => {
                    conn.outcome.get_or_insert(Attempt::Broken);
                    false
                }
                (ViState::Idle | ViState::Error, _) => return,
            }
        };
        vi.changed.raise();
        if report {
            self.report(vi, ErrorCode::ConnLost, 0, 0);
        }
    }

    /// Breaks a connection of a reliable level after an error of this end: a descriptor that was
    /// not posted is a message that the peer will miss (2.5.2).
    pub(crate) fn break_if_reliable(&self, vi: &Arc<Vi>, number: u32) {
        if !vi.attributes.lock().reliability_level.is_reliable() {
            return;
        }
        let connection = {
            let conn = vi.conn.lock();
            conn.connection.filter(|_| conn.state == ViState::Connected && vi.vi.qpn() == number)
        };
        if let (Some(id), Ok(client)) = (connection, self.client()) {
            // Fails if the connection is over.
            let _ = client.disconnect(id, &[]);
            self.lost(vi, Which::Number(number));
        }
    }

    /// An asynchronous error that a virtual interface had under this number: reported; or kept, if
    /// it is of now and the virtual interface is idle. An error of a former connection is dropped,
    /// unless it is one `of_post`, which no connection of now has to do with.
    pub(crate) fn vi_error(
        &self,
        vi: &Arc<Vi>,
        (number, of_post): (u32, bool),
        error: ErrorCode,
        operation: u32,
        descriptor: u64,
    ) {
        {
            let mut conn = vi.conn.lock();
            // As in `lost`.
            let is_former = vi.vi.qpn() != number;
            if is_former && !of_post {
                return;
            }
            if conn.state == ViState::Idle && !is_former {
                conn.kept = true;
                return;
            }
        }
        self.report(vi, error, operation, descriptor);
    }

    /// The request with this handle.
    fn conn(&self, handle: ConnHandle) -> Result<Arc<Conn>> {
        self.conns.get(handle).ok_or(Error::InvalidParameter)
    }

    /// Makes a request that was taken this NIC's; `None` if its client has given up. Puts it back
    /// if that fails.
    fn adopt(&self, nic: &Nic, from: &Switchboard, waiting: Waiting) -> Result<Option<ConnectionRequest>> {
        let passed = self.pass(nic, from, &waiting);
        let (remote_addr, remote_vi_attribs) = (waiting.address(), waiting.attributes());
        match passed {
            Ok(conn) => Ok(conn.map(|conn| ConnectionRequest { remote_addr, remote_vi_attribs, conn })),
            Err(error) => {
                from.put_back(waiting);
                Err(error)
            }
        }
    }

    fn pass(&self, nic: &Nic, from: &Switchboard, waiting: &Waiting) -> Result<Option<ConnHandle>> {
        let call = nic.call()?;
        let client = call.client()?;
        let reservation = self.conns.reserve()?;
        let handle = reservation.handle();
        heap::room_for_arc::<Conn>()?;
        // In the table before the first event can come.
        reservation.fill(Arc::new(Conn {
            handle,
            connection: waiting.connection,
            attributes: waiting.attributes(),
            depths: waiting.depths,
            withdrawn: AtomicBool::new(false),
            turn: SleepLock::new(),
        }));
        let passed = from.pass(waiting.connection, client, handle.as_raw());
        if passed != Ok(true) {
            self.conns.remove(handle);
        }
        Ok(passed?.then_some(handle))
    }
}

impl Nic {
    /// Waits up to `timeout` milliseconds for a connection request, or without end for
    /// [`INFINITE`](crate::INFINITE); with 0 only looks for one.
    ///
    /// `local` names what the client asks for: a host address of this NIC, or none for all of them;
    /// a discriminator, or none for requests with any discriminator. `from` accepts requests of one
    /// client only: by its host address, its discriminator, or both. Requests that no server waits
    /// for are kept until their clients give up, 1,024 of them on a NIC, and half of them from one
    /// host.
    ///
    /// Errors: `InvalidParameter` (an address that is not this NIC's), `Timeout`, `ErrorResource`.
    /// May be called in handlers, which then hold up others. Thread-safe: a request is returned
    /// once. Page VipConnectWait.
    #[doc(alias = "VipConnectWait")]
    pub fn connect_wait(
        &self,
        local: &NetAddress,
        from: Option<&NetAddress>,
        timeout: u32,
    ) -> Result<ConnectionRequest> {
        let core = self.live()?;
        let discriminator = local.discriminator();
        let filter = Filter {
            host: local.gid().map(|_| core.own_gid(local)).transpose()?,
            discriminator: (!discriminator.is_empty()).then(|| local.digest()),
            from: from.cloned(),
        };
        let deadline = Deadline::after(core.adapter.platform(), timeout);
        let joined = core.joined()?;
        loop {
            let switchboard = joined.switchboard();
            let waiting = switchboard.take(&filter, deadline.at, || core.still_live())?;
            if let Some(request) = core.adopt(self, switchboard, waiting)? {
                return Ok(request);
            }
        }
    }

    /// Accepts a connection request with a virtual interface that is [`Idle`](ViState::Idle).
    /// Returns once it is connected. If the connection breaks in this moment, the call succeeds as
    /// well: the state is [`Error`](ViState::Error), and the error handler learns of it.
    ///
    /// Both ends must have the same reliability level, maximum transfer size and quality of
    /// service. If the call fails before the client has the answer, the client still waits, and the
    /// request can be answered again: that is so after all errors but `Timeout`, and but
    /// `ErrorResource` by another thread's [`Nic::disconnect`]. Then the handle is used up.
    /// Receives stay posted if the call fails.
    ///
    /// Errors, in this order: `InvalidParameter` (a handle, or the virtual interface is not idle),
    /// `InvalidReliabilityLevel`, `InvalidMtu`, `InvalidQos`, `Timeout` (the client gave up, or
    /// does not confirm), `ErrorResource` (also for an error that the virtual interface had while
    /// it was idle; another call disconnected it, which flushes its receives; or the NIC died).
    /// Blocks for the client, for a limited time. May be called in handlers. Thread-safe. Page
    /// VipConnectAccept.
    #[doc(alias = "VipConnectAccept")]
    pub fn connect_accept(&self, conn: ConnHandle, vi: ViHandle) -> Result<()> {
        let call = self.call()?;
        let core = self.core();
        let (request, found) = (core.conn(conn)?, core.vi(vi)?);
        let _turn = request.turn.lock(core.adapter.platform());
        // Another call may have answered it meanwhile.
        core.conn(conn)?;
        let attempt = {
            let _control = found.control.lock(core.adapter.platform());
            found.idle()?;
            let ours = *found.attributes.lock();
            ours.agrees(&request.attributes)?;
            if request.withdrawn.load(Ordering::Acquire) {
                core.conns.remove(conn);
                return Err(Error::Timeout);
            }
            let attempt = {
                let mut conn = found.conn.lock();
                let attempt = conn.begin()?;
                conn.connection = Some(request.connection);
                attempt
            };
            let own = core.depths(ours.reliability_level);
            let initiator_depth = own.initiator_depth.min(request.depths.responder_resources);
            let params =
                AcceptParams { depths: ReadDepths { initiator_depth, ..own }, ..AcceptParams::default() };
            let reply = ours.offer().encode();
            let client = core.client()?;
            if let Err(error) = client.accept(request.connection, &found.vi, &params, &reply) {
                core.reset(&found);
                if error == kernel_agent::Error::ConnectionState {
                    core.conns.remove(conn);
                    return Err(Error::Timeout);
                }
                return Err(core.error(error));
            }
            // The answer is given.
            core.conns.remove(conn);
            attempt
        };
        // Not counted while it waits: closing the NIC ends the wait.
        drop(call);
        if core.outcome(&found, attempt, None)? == Attempt::Established {
            return Ok(());
        }
        let _call = self.call()?;
        let _control = found.control.lock(core.adapter.platform());
        if core.give_up(&found, attempt)? { Ok(()) } else { Err(Error::Timeout) }
    }

    /// Rejects a connection request: the client's call returns `Reject`. If the client has given
    /// up, the call only uses the handle up.
    ///
    /// Errors: `InvalidParameter` (the handle), `ErrorResource` (the NIC is dead). Does not wait
    /// for the client. May be called in handlers. Thread-safe. Page VipConnectReject.
    #[doc(alias = "VipConnectReject")]
    pub fn connect_reject(&self, conn: ConnHandle) -> Result<()> {
        let core = self.call()?;
        let request = core.conn(conn)?;
        let _turn = request.turn.lock(core.adapter.platform());
        core.conn(conn)?;
        match core.client()?.reject(request.connection, &[]) {
            Ok(()) | Err(kernel_agent::Error::ConnectionState) => {}
            Err(error) => return Err(core.error(error)),
        }
        core.conns.remove(conn);
        Ok(())
    }

    /// Connects a virtual interface that is [`Idle`](ViState::Idle) to a remote endpoint, within
    /// `timeout` milliseconds, or without a limit for [`INFINITE`](crate::INFINITE). Returns the
    /// attributes of the remote end, whose protection tag is null.
    ///
    /// `local` has a host address of this NIC, or none for the NIC's own address, and the
    /// discriminator that the server sees. A host that does not answer is asked again until the
    /// time runs out. Receives that are posted stay posted if the attempt fails.
    ///
    /// Errors, in this order: `InvalidParameter` (the virtual interface), `Timeout` (a timeout of
    /// 0), `InvalidParameter` (an address; or the virtual interface is not idle), `ErrorResource`
    /// (an error that the virtual interface had while it was idle; another call disconnected it;
    /// its connection data does not fit; resources), `Reject` (by the server, or no one serves
    /// virtual interfaces there), `Timeout` (also if no server waits for this discriminator).
    /// Blocks for the server. May be called in handlers, which then hold up others. Thread-safe.
    /// Page VipConnectRequest.
    #[doc(alias = "VipConnectRequest")]
    pub fn connect_request(
        &self,
        vi: ViHandle,
        local: &NetAddress,
        remote: &NetAddress,
        timeout: u32,
    ) -> Result<ViAttributes> {
        let core = self.live()?;
        let found = core.vi(vi)?;
        if timeout == 0 {
            return Err(Error::Timeout);
        }
        let deadline = Deadline::after(core.adapter.platform(), timeout);
        let ends = (core.own_gid(local)?, remote.gid().ok_or(Error::InvalidParameter)?);
        let kind = |gid: Gid| gid.to_ipv4().is_some();
        if !ends.1.is_unicast() || kind(ends.0) != kind(ends.1) {
            return Err(Error::InvalidParameter);
        }
        let mut attempt = {
            let _call = self.call()?;
            let _control = found.control.lock(core.adapter.platform());
            found.conn.lock().begin()?
        };
        let error = loop {
            self.ask(&found, attempt, ends, local, remote)?;
            let failed = match core.outcome(&found, attempt, Some(deadline)) {
                Ok(Attempt::Established) => return found.conn.lock().remote_of(attempt),
                Ok(Attempt::Rejected) => Error::Reject,
                Ok(Attempt::Unreachable) => Error::Timeout,
                Ok(Attempt::Broken) => Error::ErrorResource,
                Err(Error::Timeout) => Error::Timeout,
                Err(error) => return Err(error),
            };
            let _call = self.call()?;
            let _control = found.control.lock(core.adapter.platform());
            if core.give_up(&found, attempt)? {
                return found.conn.lock().remote_of(attempt);
            }
            if failed != Error::Timeout || deadline.passed(core.adapter.platform()) {
                break failed;
            }
            // Nobody answered. Under `control`, so nothing else has begun.
            attempt = found.conn.lock().begin()?;
        };
        Err(error)
    }

    /// Asks for a connection, for an attempt that has begun.
    fn ask(
        &self,
        vi: &Vi,
        attempt: u64,
        (from, to): (Gid, Gid),
        local: &NetAddress,
        remote: &NetAddress,
    ) -> Result<()> {
        let core = self.call()?;
        let _control = vi.control.lock(core.adapter.platform());
        vi.conn.lock().check(attempt)?;
        let attributes = *vi.attributes.lock();
        let traffic_class = attributes.qos.traffic_class().unwrap_or(0);
        let path = Path { traffic_class, ..Path::new(from, to) };
        let asked = remote.digest();
        let params = ConnectParams {
            path_mtu: PathMtu::at_most(core.agent().identity().mtu),
            depths: core.depths(attributes.reliability_level),
            ..ConnectParams::new(path, asked.service())
        };
        let data = Request { offer: attributes.offer(), own: local.own(), asked }.encode();
        match core.client()?.connect(&vi.vi, &params, Handshake::ThreeWay, &data) {
            Ok(id) => {
                let _ = vi.conn.lock().is_of(id);
                Ok(())
            }
            Err(error) => {
                core.reset(vi);
                Err(core.error(error))
            }
        }
    }

    /// Ends the connection of a virtual interface, or an attempt to connect it, in any state: it is
    /// [`Idle`](ViState::Idle) when this returns, and can be connected again at once. All
    /// descriptors on its queues are complete, those that were not done as flushed.
    ///
    /// Errors: `InvalidParameter` (the virtual interface), `ErrorResource` (the NIC is dead).
    /// Blocks for the device. May be called in handlers. Thread-safe. Page VipDisconnect.
    #[doc(alias = "VipDisconnect")]
    pub fn disconnect(&self, vi: ViHandle) -> Result<()> {
        let core = self.call()?;
        let found = core.vi(vi)?;
        let _control = found.control.lock(core.adapter.platform());
        core.vi(vi)?;
        // A connection that broke before this call is reported, however soon the call came.
        let is_connected = || found.conn.lock().state == ViState::Connected;
        if let Some(broken) = is_connected().then(|| found.vi.find_error()).flatten() {
            core.lost(&found, Which::Number(broken.number));
        }
        let (number, was_connected) = (found.vi.qpn(), is_connected());
        found.conn.lock().forget();
        found.vi.disconnect().map_err(|error| core.error(error))?;
        // Idle only now: an error of the former connection is not one of the idle interface.
        let overrun = core.report_overruns(&found, number);
        core.report_all_lost(&found, number);
        if was_connected && overrun && found.attributes.lock().reliability_level.is_reliable() {
            core.report(&found, ErrorCode::ConnLost, 0, 0);
        }
        found.conn.lock().finish();
        found.changed.raise();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use kernel_agent::QpState;

    use super::*;
    use crate::scene::{PATIENCE, Scene};

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn an_error_of_the_nic_breaks_an_attempt_whose_connection_is_known_and_fails_an_earlier_one() {
        let scene = Scene::new();
        let (_, vi) = scene.vi(ReliabilityLevel::Delivery);
        let now = Which::Number(vi.vi.qpn());
        let lost = |which| {
            scene.core().lost(&vi, which);
            let conn = vi.conn.lock();
            (conn.state, conn.outcome)
        };
        assert_eq!(lost(now), (ViState::Idle, None));
        vi.conn.lock().begin().unwrap();
        assert_eq!(lost(Which::Number(vi.vi.qpn() + 1)), (ViState::ConnectPending, None), "a former one");
        assert_eq!(lost(now), (ViState::ConnectPending, Some(Attempt::Broken)));
        let id = ConnectionId(5);
        let begin = || {
            let mut conn = vi.conn.lock();
            conn.finish();
            conn.begin().unwrap();
            assert!(conn.is_of(id));
        };
        begin();
        assert_eq!(lost(Which::Connection(ConnectionId(4))), (ViState::ConnectPending, None));
        assert_eq!(lost(Which::Connection(id)), (ViState::ConnectPending, Some(Attempt::Broken)));
        vi.conn.lock().finish();
        let id = ConnectionId(6);
        vi.conn.lock().begin().unwrap();
        assert!(vi.conn.lock().is_of(id));
        assert_eq!(lost(now), (ViState::Error, Some(Attempt::Established)));
        vi.conn.lock().finish();
    }

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn an_overrun_breaks_the_connection_that_it_was_on_if_the_level_is_reliable() {
        let scene = Scene::new();
        for level in [ReliabilityLevel::Unreliable, ReliabilityLevel::Delivery, ReliabilityLevel::Reception] {
            let ((a, ours), (b, _)) = (scene.vi(level), scene.vi(level));
            scene.connect(a, b);
            let number = ours.vi.qpn();
            let state = |number| {
                scene.core().break_if_reliable(&ours, number);
                ours.vi.state()
            };
            assert_eq!(state(number + 1), QpState::Rts, "the number of a former connection");
            ours.conn.lock().state = ViState::Error;
            assert_eq!(state(number), QpState::Rts, "it is over");
            ours.conn.lock().state = ViState::Connected;
            let broken = if level.is_reliable() { QpState::Error } else { QpState::Rts };
            assert_eq!(state(number), broken, "{level:?}");
            for vi in [a, b] {
                scene.nic.disconnect(vi).unwrap();
            }
        }
    }

    /// A request that waits for an answer, of a connection that the agent does not have. `None` if
    /// there is no room.
    fn forged(scene: &Scene, attributes: ViAttributes) -> Option<ConnHandle> {
        let reservation = scene.core().conns.reserve().ok()?;
        let handle = reservation.handle();
        reservation.fill(Arc::new(Conn {
            handle,
            connection: ConnectionId(1 << 40),
            attributes,
            depths: ReadDepths::default(),
            withdrawn: AtomicBool::new(false),
            turn: SleepLock::new(),
        }));
        Some(handle)
    }

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn without_room_for_another_answer_a_request_goes_on_to_wait() {
        let scene = Scene::new();
        let [(client, vi), (server, _)] = [(); 2].map(|()| scene.vi(ReliabilityLevel::Delivery));
        let attributes = *vi.attributes.lock();
        let waiting: Vec<_> = core::iter::from_fn(|| forged(&scene, attributes)).collect();
        assert_eq!(waiting.len(), 1024);
        let [own, name] = [&b"client"[..], b"server"].map(|name| scene.nic.address(name).unwrap());
        std::thread::scope(|threads| {
            let asks = threads.spawn(|| scene.nic.connect_request(client, &own, &name, PATIENCE));
            assert_eq!(scene.nic.connect_wait(&name, None, PATIENCE).unwrap_err(), Error::ErrorResource);
            // One of the others is answered.
            scene.nic.connect_reject(waiting[0]).unwrap();
            let request = scene.nic.connect_wait(&name, None, 0).unwrap();
            scene.nic.connect_accept(request.conn, server).unwrap();
            asks.join().unwrap().unwrap();
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn a_request_whose_client_gave_up_as_it_was_accepted_is_used_up() {
        let scene = Scene::new();
        let (handle, vi) = scene.vi(ReliabilityLevel::Delivery);
        let conn = forged(&scene, *vi.attributes.lock()).unwrap();
        assert_eq!(scene.nic.connect_accept(conn, handle), Err(Error::Timeout));
        assert_eq!(scene.nic.connect_accept(conn, handle), Err(Error::InvalidParameter));
        assert_eq!(vi.state(), ViState::Idle);
    }
}
