//! The dispatcher thread's part: it takes streams that wait at listeners, reads what has come,
//! sends what the set-ups say, gives streams to queue pairs, and reports to the clients.
//!
//! Locks: the tables', never across a command or an upcall.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;

use iwarp::mpa::frame::{MAX_FRAME, MAX_PRIVATE_DATA};
use iwarp::mpa::negotiation::{self, Agreed, Answer, Outgoing};
use iwarp::rdmap::terminate;
use nic_abi::admin::{StreamEnd, TransferFlags};
use nic_abi::eqe::StreamFault;
use platform::{Instant, heap};
use roce::cm::ReadDepths;
use roce::cm::rej::Reason;
use roce::{Gid, PKey, Path, PathMtu};

use super::bind::{Role, to_rtr, to_rts};
use super::setup::{BAD_REQUEST, Report, Setup, Step, Wants, depths_of, emit};
use super::state::{End, Mpa, Notice, State, Tables};
use crate::cm::{ConnectionId, ListenId};
use crate::home::Home;
use crate::qp_common::Common;
use crate::stream::{By, Endpoint, StreamState, Watch, accept};
use crate::{CmEvent, CmEventKind, Error, QpType};

/// Streams that are taken at a listening point before others have their turn.
const ACCEPTS: usize = 8;
/// Connections of a listening point whose Request has not come. When there are more, the oldest of
/// the peer that has the most gives way.
const SILENT: u32 = 1 << 7;
/// Pieces of a client's last message that are sent before others have their turn.
const PIECES: usize = 8;
/// Timers that are acted on in one round.
const TIMERS: usize = 64;
/// When listening points are looked at again for whose streams there was no room.
const RETRY: Duration = Duration::from_millis(100);
/// What the agent keeps of a connection, and its nodes of tables.
pub(super) const MEMORY: usize = 8192;
/// The longest Terminate that quotes nothing, as an FPDU.
const TERMINATE: usize = 64;

impl Mpa {
    /// A stream may wait at a listener.
    pub(crate) fn on_listener(&self, id: ListenId) {
        let mut tables = self.tables.lock();
        if let Some(listening) = tables.listens.get_mut(&id)
            && !core::mem::replace(&mut listening.is_waiting, true)
        {
            tables.waiting.push_back(id);
        }
    }

    /// Acts on what clients' calls left to the dispatcher thread, and on listening points at which
    /// streams wait. Returns whether there was anything to do.
    pub(crate) fn dispatch(&self) -> bool {
        let notices = self.tables.lock().inbox.len();
        for _ in 0..notices {
            let notice = self.tables.lock().inbox.pop_front();
            match notice {
                None => break,
                Some(Notice::Over(id, end, kind)) => end.report(id, kind, &[]),
                Some(Notice::Drop(stream)) => _ = stream.destroy(By::Agent, true),
                Some(Notice::Look(id)) => self.on_stream(id),
            }
        }
        let now = self.platform.now();
        let listens = {
            let mut tables = self.tables.lock();
            if tables.retry.is_some_and(|at| at > now) {
                return notices > 0;
            }
            tables.retry = None;
            tables.waiting.len()
        };
        for _ in 0..listens {
            let next = self.tables.lock().waiting.pop_front();
            match next {
                Some(listen) => self.take_waiting(now, listen),
                None => break,
            }
        }
        notices > 0 || listens > 0
    }

    /// Acts on timers that are due; returns when the next one is.
    pub(crate) fn poll(&self, now: Instant) -> Option<Instant> {
        for _ in 0..TIMERS {
            let due = {
                let mut tables = self.tables.lock();
                let next = tables.deadlines.first().copied().filter(|&(at, _)| at <= now);
                next.and_then(|(_, id)| {
                    let step = tables.ends.get_mut(&id).map(|end| match &mut end.state {
                        State::Setup { setup, .. } => setup.expired(),
                        State::Accepted { .. } | State::Established => Step::Wait,
                    });
                    Some((id, step?))
                })
            };
            let Some((id, step)) = due else { break };
            self.follow(id, step);
        }
        let tables = self.tables.lock();
        let next = tables.deadlines.first().map(|&(at, _)| at);
        next.into_iter().chain(tables.retry).min()
    }

    /// Takes streams that wait at a listener, and puts it at the end of the line if there may be
    /// more.
    fn take_waiting(&self, now: Instant, listen: ListenId) {
        for _ in 0..ACCEPTS {
            let (client, listener, id) = {
                let mut tables = self.tables.lock();
                let id = tables.new_connection();
                let Some(listening) = tables.listens.get(&listen) else { return };
                (listening.client.clone(), listening.listener.clone(), id)
            };
            // It ends before the upcalls, in which the client may be detached.
            let taken = match client.enter() {
                Ok(_call) => self.take_one(now, listen, &listener, id),
                Err(_) => return,
            };
            match taken {
                Ok(true) => self.on_stream(id),
                Ok(false) => {
                    if let Some(listening) = self.tables.lock().listens.get_mut(&listen) {
                        listening.is_waiting = false;
                    }
                    return;
                }
                Err(Error::NoResources(_) | Error::OutOfMemory) => {
                    if !self.evict(listen) {
                        self.tables.lock().retry = Some(now + RETRY);
                        break;
                    }
                }
                // The listener is gone, or the device dead.
                Err(_) => return,
            }
        }
        self.tables.lock().waiting.push_back(listen);
    }

    /// Takes the stream that has waited longest; false if none waits.
    fn take_one(
        &self,
        now: Instant,
        listen: ListenId,
        listener: &Endpoint,
        id: ConnectionId,
    ) -> Result<bool, Error> {
        heap::room(MEMORY)?;
        let Some((stream, ends)) = accept(listener, Watch::Connection(id))? else { return Ok(false) };
        let crowded = {
            let mut tables = self.tables.lock();
            let room = tables.ends.len() < self.max_connections as usize;
            let refused = tables.guests_of(ends.remote_gid) >= self.share;
            tables.refused += u64::from(refused);
            let Some(listening) = tables.listens.get(&listen).filter(|_| room && !refused) else {
                drop(tables);
                _ = stream.destroy(By::Agent, true);
                return Ok(true);
            };
            let (client, context) = (listening.client.clone(), listening.context);
            let setup = Box::new(Setup::responder(now, self.crc));
            let end = End {
                client,
                context,
                ends,
                queue_pair: None,
                state: State::Setup { stream, setup },
                place: None,
                counts: false,
                deadline: None,
            };
            tables.ends.insert(id, Box::new(end));
            tables.enter_crowd(id, listen);
            tables.rearm(id);
            tables.listens.get(&listen).is_some_and(|listening| listening.silent.len() > SILENT)
        };
        if crowded {
            self.evict(listen);
        }
        Ok(true)
    }

    /// Drops the connection that gives way when a listening point has too many without a Request.
    pub(super) fn evict(&self, listen: ListenId) -> bool {
        let first = {
            let tables = self.tables.lock();
            tables.listens.get(&listen).and_then(|listening| listening.silent.first_to_go())
        };
        if let Some(id) = first {
            self.finish(id, Answer::Close, Report::Nothing);
        }
        first.is_some()
    }

    /// Something happened to the stream of a connection.
    pub(crate) fn on_stream(&self, id: ConnectionId) {
        let now = self.platform.now();
        let (stream, state, request) = {
            let mut tables = self.tables.lock();
            let Some(end) = tables.ends.get_mut(&id) else { return };
            let State::Setup { stream, setup } = &mut end.state else { return };
            let (stream, state) = (stream.clone(), stream.state());
            let request = if state.connected { setup.opened(now) } else { None };
            tables.rearm(id);
            (stream, state, request)
        };
        if let Some(request) = request
            && let Err(error) = send(&stream, &request)
            && error != Error::StreamState
        {
            return self.finish(id, Answer::Close, Report::Unreachable);
        }
        if !self.send_leaving(id, &stream, state) {
            return;
        }
        self.read(id, &stream, state);
        if let Some(end) = state.end {
            let step = self.with_setup(id, |setup| setup.closed(end));
            self.follow(id, step);
        }
    }

    /// Conversion: sends what is to leave, as far as there is room for it. Returns whether the
    /// set-up goes on.
    fn send_leaving(&self, id: ConnectionId, stream: &Endpoint, state: StreamState) -> bool {
        let leaving = match self.tables.lock().ends.get_mut(&id).map(|end| &mut end.state) {
            Some(State::Setup { setup, .. }) => setup.take_leaving(),
            _ => None,
        };
        let Some(mut leaving) = leaving else { return true };
        let (mut sent, mut failed, mut full) = (0, None, false);
        for _ in 0..PIECES {
            let rest = leaving.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            match stream.send(By::Agent, rest) {
                Ok(0) => full = true,
                Ok(count) => sent += count,
                Err(error) => failed = Some(error),
            }
            if full || failed.is_some() {
                break;
            }
        }
        leaving.drain(..sent.min(leaving.len()));
        if !leaving.is_empty() && !full {
            // Others have their turn first. When it is full, an event says that there is room.
            self.tables.lock().inbox.push_back(Notice::Look(id));
        }
        let step = self.with_setup(id, |setup| match failed {
            None => setup.left(leaving),
            Some(Error::StreamState) => setup.closed(state.end.unwrap_or(StreamEnd::None)),
            Some(_) => Step::Over(Answer::Close, Report::Unreachable),
        });
        self.follow(id, step)
    }

    /// Reads what a set-up wants, as far as it has come.
    fn read(&self, id: ConnectionId, stream: &Endpoint, state: StreamState) {
        let now = self.platform.now();
        let mut bytes = [0; MAX_FRAME];
        // Each turn takes a byte of a frame at least, or is the last.
        for _ in 0..=MAX_FRAME {
            let (room, flags) = match self.wants(id) {
                Wants::Nothing => return,
                Wants::Bytes(count) => (count, TransferFlags::empty()),
                Wants::Look => (1, TransferFlags::KEEP),
            };
            let into = bytes.get_mut(..room).unwrap_or_default();
            let step = match stream.receive(By::Agent, into, flags) {
                Ok(0) => return,
                Ok(count) => {
                    self.with_setup(id, |setup| setup.take(now, into.get(..count).unwrap_or_default()))
                }
                Err(Error::StreamState) => {
                    self.with_setup(id, |setup| setup.closed(state.end.unwrap_or(StreamEnd::None)))
                }
                Err(_) => return,
            };
            if !self.follow(id, step) {
                return;
            }
        }
    }

    fn wants(&self, id: ConnectionId) -> Wants {
        match self.tables.lock().ends.get(&id).map(|end| &end.state) {
            Some(State::Setup { setup, .. }) => setup.wants(),
            _ => Wants::Nothing,
        }
    }

    /// Calls a connection's set-up.
    fn with_setup(&self, id: ConnectionId, call: impl FnOnce(&mut Setup) -> Step) -> Step {
        let mut tables = self.tables.lock();
        let step = match tables.ends.get_mut(&id).map(|end| &mut end.state) {
            Some(State::Setup { setup, .. }) => call(setup),
            _ => Step::Wait,
        };
        tables.rearm(id);
        step
    }

    /// Does what a set-up says. Returns whether it may want more bytes.
    fn follow(&self, id: ConnectionId, step: Step) -> bool {
        match step {
            Step::Wait => return true,
            Step::Ask => self.ask(id),
            Step::Bind(role, agreed) => self.bind(id, role, &agreed),
            Step::Answer(agreed) => self.answer(id, &agreed),
            Step::Over(answer, report) => self.finish(id, answer, report),
        }
        false
    }

    /// Passive side: reports a Request, unless bytes are behind it or there is no room for it.
    fn ask(&self, id: ConnectionId) {
        let stream = {
            let tables = self.tables.lock();
            match tables.ends.get(&id).map(|end| &end.state) {
                Some(State::Setup { stream, .. }) => stream.clone(),
                _ => return,
            }
        };
        // The initiator has to wait for the Reply, and has not closed its direction.
        if stream.receive(By::Agent, &mut [0], TransferFlags::KEEP) != Ok(0) {
            return self.finish(id, Answer::Close, Report::Nothing);
        }
        let mut private_data = [0; MAX_PRIVATE_DATA];
        let asked = {
            let mut tables = self.tables.lock();
            self.begin_to_ask(&mut tables, id, &mut private_data)
        };
        match asked {
            Err(answer) => self.finish(id, answer, Report::Nothing),
            Ok((client, context, kind, length)) => {
                let private_data = private_data.get(..length).unwrap_or_default();
                let event = CmEvent { connection: id, context, kind, information: &[], private_data };
                client.tell(&mut |up| up.connection(event));
            }
        }
    }

    /// Counts a connection among those that wait for an answer, and gives out what its client is
    /// told, and the length of the private data. Fails with how the peer is answered if the
    /// listening point has ended, or there is no room for it.
    fn begin_to_ask(
        &self,
        tables: &mut Tables,
        id: ConnectionId,
        private_data: &mut [u8],
    ) -> Result<(Arc<dyn Home>, u64, CmEventKind, usize), Answer> {
        let end = tables.ends.get(&id).ok_or(Answer::Close)?;
        let (peer, source_gid) = (end.ends.remote_gid, end.ends.source_gid);
        let listen = end.place.as_ref().ok_or(Answer::Close)?.listen;
        let listening = tables.listens.get(&listen).filter(|listening| listening.admits(peer));
        let service = listening.ok_or(Answer::Close)?.service;
        tables.begin_to_ask(id, listen)?;
        let end = tables.ends.get(&id).ok_or(Answer::Close)?;
        let State::Setup { setup, .. } = &end.state else { return Err(Answer::Close) };
        let frame = setup.frame().ok_or(Answer::Close)?;
        let local = self.identity.gids.get(usize::from(source_gid)).copied().map(Gid);
        let kind = CmEventKind::Request {
            listen,
            service,
            qp_type: QpType::Iwarp,
            path: Path::new(local.unwrap_or_default(), peer),
            source_gid,
            path_mtu: PathMtu::at_most(self.identity.mtu),
            pkey: PKey::DEFAULT,
            depths: depths_of(&frame),
            source_port: 0,
        };
        let length = copy(frame.split().map_or(&[][..], |(_, private)| private), private_data);
        Ok((end.client.clone(), end.context, kind, length))
    }

    /// Conversion: the peer's Request has come. Tells the client, sends the Reply, and then gives
    /// the stream to the queue pair, unless bytes are behind the Request.
    fn answer(&self, id: ConnectionId, agreed: &Agreed) {
        let (stream, told) = {
            let tables = self.tables.lock();
            let Some(end) = tables.ends.get(&id) else { return };
            let State::Setup { stream, .. } = &end.state else { return };
            (stream.clone(), (end.client.clone(), end.context))
        };
        if stream.receive(By::Agent, &mut [0], TransferFlags::KEEP) != Ok(0) {
            return self.finish(id, Answer::Close, BAD_REQUEST);
        }
        let (client, context) = told;
        let kind = CmEventKind::TransitionRequested;
        let event = CmEvent { connection: id, context, kind, information: &[], private_data: &[] };
        // The client may end the connection meanwhile.
        client.tell(&mut |up| up.connection(event));
        let step = self.with_setup(id, |setup| setup.answer(agreed));
        if self.follow(id, step) {
            self.send_leaving(id, &stream, stream.state());
        }
    }

    /// Gives the stream to the queue pair. On the active side it reports that the connection is
    /// established; on the passive side the first FPDU says so.
    fn bind(&self, id: ConnectionId, role: Role, agreed: &Agreed) {
        let mut private_data = [0; MAX_PRIVATE_DATA];
        let found = {
            let tables = self.tables.lock();
            let Some(end) = tables.ends.get(&id) else { return };
            let State::Setup { stream, setup } = &end.state else { return };
            let Some(queue_pair) = &end.queue_pair else { return };
            let frame = setup.frame();
            let frames = frame.is_some();
            let (depths, private) = match frame.filter(|_| !setup.converts()) {
                Some(frame) => (depths_of(&frame), frame.split().map_or(&[][..], |(_, private)| private)),
                None => (ReadDepths::default(), &[][..]),
            };
            (stream.clone(), queue_pair.clone(), depths, frames, copy(private, &mut private_data))
        };
        let (stream, queue_pair, depths, frames, length) = found;
        let given = stream.give_to(|number| queue_pair.modify(&to_rtr(agreed, role, frames, number)));
        if given.is_err() {
            let report = match role {
                Role::Initiator => Report::Rejected(Reason::UNSUPPORTED_REQUEST),
                Role::Responder => Report::Unconfirmed,
            };
            return self.finish(id, Answer::Close, report);
        }
        // Refused if the stream has ended since, which the event of the queue pair reports.
        let _ = queue_pair.modify(&to_rts());
        {
            let mut tables = self.tables.lock();
            let Some(end) = tables.ends.get_mut(&id) else { return };
            end.state = match role {
                Role::Initiator => State::Established,
                Role::Responder => State::Accepted { depths, frames },
            };
            tables.rearm(id);
        }
        if role == Role::Initiator {
            self.report_established(id, depths, private_data.get(..length).unwrap_or_default());
        }
    }

    fn report_established(&self, id: ConnectionId, depths: ReadDepths, private_data: &[u8]) {
        let told = {
            let tables = self.tables.lock();
            tables.ends.get(&id).map(|end| (end.client.clone(), end.context))
        };
        if let Some((client, context)) = told {
            let kind = CmEventKind::Established { depths };
            let event = CmEvent { connection: id, context, kind, information: &[], private_data };
            client.tell(&mut |up| up.connection(event));
        }
    }

    /// Ends a set-up: answers the peer, gives the stream up, flushes the queue pair, and reports.
    fn finish(&self, id: ConnectionId, answer: Answer, report: Report) {
        let end = self.tables.lock().remove(id);
        let Some(end) = end else { return };
        let State::Setup { stream, setup } = &end.state else { return };
        let answered = match answer {
            Answer::Close => false,
            Answer::Reject => setup.rejection(&[]).is_some_and(|reply| send(stream, &reply).is_ok()),
            Answer::Terminate(code) => {
                let mut fpdu = [0; TERMINATE];
                let crc = self.crc || setup.frame().is_some_and(|reply| reply.crc);
                let length = terminate::Repr::from(code).fpdu(crc, &mut fpdu).unwrap_or(0);
                stream.send(By::Agent, fpdu.get(..length).unwrap_or_default()).is_ok()
            }
        };
        // What was answered is to arrive; a peer that gets no answer holds no stream any longer.
        let _ = stream.destroy(By::Agent, !answered);
        end.flush_qp();
        let mut private_data = &[][..];
        let kind = match report {
            Report::Nothing => return,
            Report::Withdrawn => CmEventKind::Withdrawn,
            Report::Unreachable => CmEventKind::Unreachable,
            Report::Unconfirmed => CmEventKind::AcceptTimedOut,
            Report::Rejected(reason) => {
                let frame = setup.frame().filter(|_| reason == Reason::CONSUMER_DEFINED);
                private_data = frame.map_or(&[][..], |frame| negotiation::rejection(&frame));
                CmEventKind::Rejected { reason }
            }
        };
        end.report(id, kind, private_data);
    }

    /// The first FPDU has come to a queue pair: on the passive side the connection is established.
    pub(crate) fn communication_established(&self, queue_pair: &Common) {
        let Some(id) = queue_pair.connection() else { return };
        let depths = {
            let mut tables = self.tables.lock();
            let Some(end) = tables.ends.get_mut(&id) else { return };
            let State::Accepted { depths, .. } = end.state else { return };
            end.state = State::Established;
            depths
        };
        self.report_established(id, depths, &[]);
    }

    /// The stream of a connection's queue pair has ended, and with it the connection.
    pub(crate) fn stream_ended(&self, id: ConnectionId, fault: StreamFault) {
        let end = self.tables.lock().remove(id);
        let Some(end) = end else { return };
        end.flush_qp();
        let over = matches!(fault, StreamFault::None | StreamFault::Lost);
        let kind = match end.state {
            // The peer may have sent a Request, which this end was not to expect.
            State::Accepted { frames: false, .. } if !over => CmEventKind::Disconnected { by_peer: false },
            State::Accepted { .. } => CmEventKind::AcceptTimedOut,
            _ => CmEventKind::Disconnected { by_peer: fault == StreamFault::None },
        };
        end.report(id, kind, &[]);
    }
}

/// Sends a frame. A stream of which nothing was sent has room for all of it.
pub(super) fn send(stream: &Endpoint, frame: &Outgoing) -> Result<(), Error> {
    stream.send(By::Agent, emit(frame, &mut [0; MAX_FRAME])?).map(drop)
}

/// Copies to the start, and returns the length.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let length = from.len().min(to.len());
    to[..length].copy_from_slice(&from[..length]);
    length
}
