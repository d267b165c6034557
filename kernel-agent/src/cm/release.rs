//! The end of connections and of attempts: reject, disconnect, the peer's messages about them, and
//! the timers (IBTA vol. 1 sections 12.9.7.3 and 12.9.8).
//!
//! A DREQ does not say whether a consumer or an error ended the connection. A DREQ that follows an
//! error therefore ends in [`BROKEN`], in bytes of the private data that no consumer can write.

use core::time::Duration;

use platform::Instant;
use platform::planted::{Bug, planted};
use roce::cm::{CommId, Datagram, dreq, lap, mra, rej, rtu};
use roce::{Gid, Qpn};

use super::state::{Illegal, State, Trigger};
use super::types::{Cause, ConnectionId, Error, Event, PrivateData, Rejection};
use super::{Arrival, Cm, SHORTEST_WAIT, Unexpected, field, has_memory};

/// The end of the private data of a DREQ that follows an error.
const BROKEN: [u8; 8] = *b"IT-BROKE";
/// The bytes of private data that a consumer can send with a DREQ.
pub const DISCONNECT_PRIVATE_DATA_LEN: usize = dreq::PRIVATE_DATA_LEN - BROKEN.len();

impl Cm {
    /// Rejects a request or a reply: sends a REJ. The connection is gone. Private data: at most 148
    /// bytes; additional information: at most 72.
    ///
    /// A consumer's own rejection has [`rej::Reason::CONSUMER_DEFINED`].
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: rej::Reason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.uncongested()?;
        let private_data = field(private_data)?;
        if ari.len() > rej::ARI_LEN {
            return Err(Error::OutOfRange("ari"));
        }
        self.conns.get(id).ok_or(Error::NoSuchConnection)?.state.next(Trigger::Reject)?;
        self.send_rej(id, reason, ari, private_data);
        self.mute(id);
        self.step_out(now, id, Trigger::Reject)
    }

    /// Ends a connection, or gives up an attempt of ours: sends a DREQ with the private data (at
    /// most 212 bytes), or a REJ without it if the connection is not established yet. An event,
    /// [`Event::Released`], follows only a DREQ.
    pub fn disconnect(&mut self, now: Instant, id: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.prepare_disconnect(now, id, private_data)?;
        self.release(now, id);
        Ok(())
    }

    /// As [`Cm::disconnect`], but a DREQ is not sent before [`Cm::release`]: the peer must not
    /// learn of the end before the queue pair has stopped.
    pub fn prepare_disconnect(
        &mut self,
        now: Instant,
        id: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.uncongested()?;
        let state = self.conns.get(id).ok_or(Error::NoSuchConnection)?.state;
        let established = state.next(Trigger::Withdraw).is_err();
        if established {
            state.next(Trigger::Disconnect)?;
        }
        let private_data: [u8; DISCONNECT_PRIVATE_DATA_LEN] = field(private_data)?;
        if !established {
            // The consumer did not reject, so the reason is not the consumer's.
            return self.withdraw(now, id, rej::Reason::TIMEOUT);
        }
        let mut whole = [0; dreq::PRIVATE_DATA_LEN];
        whole[..DISCONNECT_PRIVATE_DATA_LEN].copy_from_slice(&private_data);
        self.hold_dreq(now, id, whole)
    }

    /// Ends a connection that broke: sends a DREQ that says so, unless that of the peer comes
    /// within `patience`. [`Event::Released`] follows, if the connection is in [`State::DreqSent`]
    /// then.
    pub fn break_off(&mut self, now: Instant, id: ConnectionId, patience: Duration) -> Result<(), Error> {
        self.uncongested()?;
        let mut whole = [0; dreq::PRIVATE_DATA_LEN];
        whole[DISCONNECT_PRIVATE_DATA_LEN..].copy_from_slice(&BROKEN);
        self.hold_dreq(now, id, whole)?;
        if patience == Duration::ZERO {
            self.release(now, id);
        } else if let Some(conn) = self.conns.get_mut(id) {
            conn.timer = Some(now + patience);
            self.conns.rearm(id);
        }
        Ok(())
    }

    /// Ends a connection or an attempt without reporting it to the consumer, which gives up the
    /// queue pair. The peer gets the message that the protocol requires.
    pub fn abandon(&mut self, now: Instant, id: ConnectionId) -> Result<(), Error> {
        self.prepare_abandon(now, id)?;
        // Also if it is over already: a DREQ that waits need wait no more.
        self.release(now, id);
        Ok(())
    }

    /// As [`Cm::abandon`], but a DREQ is not sent before [`Cm::release`].
    pub fn prepare_abandon(&mut self, now: Instant, id: ConnectionId) -> Result<(), Error> {
        self.uncongested()?;
        let state = self.conns.get(id).ok_or(Error::NoSuchConnection)?.state;
        self.mute(id);
        self.conns.release_local_qp(id);
        if state.is_pending_request() {
            // The consumer did not reject, so the reason is not the consumer's (IT-API 2.1 appendix
            // A, it_ep_free).
            self.send_rej(id, rej::Reason::TIMEOUT, &[], [0; rej::PRIVATE_DATA_LEN]);
            return self.step(now, id, Trigger::Reject).map(drop);
        }
        if state.next(Trigger::Withdraw).is_ok() {
            return self.withdraw(now, id, rej::Reason::TIMEOUT);
        }
        if state.next(Trigger::Disconnect).is_ok() {
            return self.hold_dreq(now, id, [0; dreq::PRIVATE_DATA_LEN]);
        }
        // Over already; a timer removes what is left.
        Ok(())
    }

    fn mute(&mut self, id: ConnectionId) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.muted = true;
        }
    }

    fn withdraw(&mut self, now: Instant, id: ConnectionId, reason: rej::Reason) -> Result<(), Error> {
        let unknown = self.conns.get(id).is_some_and(|conn| conn.remote_comm.is_none());
        // A peer whose communication id is not known here finds its connection only for this
        // reason.
        let reason = if unknown { rej::Reason::TIMEOUT } else { reason };
        self.send_rej(id, reason, &[], [0; rej::PRIVATE_DATA_LEN]);
        self.mute(id);
        self.step_out(now, id, Trigger::Withdraw)
    }

    /// Makes the DREQ that [`Cm::release`] sends. Without memory to keep it, it is sent once and
    /// the connection is removed without an event; if it is lost, the peer finds out by its own
    /// next message.
    fn hold_dreq(
        &mut self,
        now: Instant,
        id: ConnectionId,
        private_data: [u8; dreq::PRIVATE_DATA_LEN],
    ) -> Result<(), Error> {
        let conn = self.conns.get(id).ok_or(Error::NoSuchConnection)?;
        conn.state.next(Trigger::Disconnect)?;
        let keeps = has_memory().is_ok();
        if keeps {
            self.step(now, id, Trigger::Disconnect)?;
        }
        let tid = self.tid();
        let conn = self.conns.get(id).ok_or(Error::NoSuchConnection)?;
        let message = dreq::Repr {
            local_comm_id: conn.local_comm,
            remote_comm_id: conn.remote_comm.unwrap_or_default(),
            remote_qpn: conn.remote_qpn.unwrap_or_default(),
            private_data,
        };
        let mad = Datagram { tid, message: message.into() }.emit();
        if keeps {
            self.hold(id, mad);
        } else {
            self.out.send(conn.local_gid, conn.remote_gid, mad);
            self.conns.remove(id);
        }
        Ok(())
    }

    /// Whether the peer's queue pair has a connection here, so that it cannot get another (section
    /// 12.9.8.3.1). Then that connection may be gone at the peer, which [`Cm::ask_whether_stale`]
    /// finds out; an attempt that is under way ends by its timers.
    pub(super) fn is_stale(&mut self, gid: Gid, qpn: Qpn) -> bool {
        let Some(id) = self.conns.by_remote_qp(gid, qpn) else { return false };
        let state = self.state(id);
        if state == State::Established {
            self.ask_whether_stale(id);
        }
        // If it is over here too, that packets may still be in the network is the risk of the peer,
        // which chose not to wait.
        !state.is_over()
    }

    /// Asks the peer whether it still has an established connection: by a DREQ for a queue pair
    /// that does not exist. A peer that has the connection ignores it, since its queue pair is
    /// another; a peer that has not answers with a DREP, which [`Cm::on_drep`] takes for the end. A
    /// message that only says that the connection is stale proves nothing: any node can send one.
    pub(super) fn ask_whether_stale(&mut self, id: ConnectionId) {
        let tid = self.tid();
        let Some(conn) = self.conns.get_mut(id) else { return };
        // One transaction for all questions, so that the answer to an earlier one counts as well.
        let tid = *conn.probe.get_or_insert(tid);
        let message = dreq::Repr {
            local_comm_id: conn.local_comm,
            remote_comm_id: conn.remote_comm.unwrap_or_default(),
            remote_qpn: Qpn::default(),
            private_data: [0; dreq::PRIVATE_DATA_LEN],
        };
        let mad = Datagram { tid, message: message.into() }.emit();
        let (local_gid, remote_gid) = (conn.local_gid, conn.remote_gid);
        self.out.send(local_gid, remote_gid, mad);
    }

    pub(super) fn on_mra(&mut self, now: Instant, from: &Arrival, mra: &mra::Repr) -> Result<(), Unexpected> {
        let id = self.conns.by_local(mra.remote_comm_id).ok_or(Unexpected)?;
        let longest = self.config.longest_wait.max(SHORTEST_WAIT);
        let conn = self.conns.get_mut(id).ok_or(Unexpected)?;
        let theirs = conn.remote_comm.is_none_or(|comm| comm == mra.local_comm_id);
        let about = match conn.state {
            State::ReqSent | State::MraReqRcvd => mra::Acknowledged::Req,
            State::RepSent | State::MraRepRcvd => mra::Acknowledged::Rep,
            _ => return Err(Unexpected),
        };
        if conn.remote_gid != from.remote_gid || !theirs || mra.acknowledged != about || conn.held {
            return Err(Unexpected);
        }
        // A peer cannot make us keep the connection for ever.
        conn.mras_left = conn.mras_left.checked_sub(1).ok_or(Unexpected)?;
        let wait = (mra.service_timeout.duration() + conn.response_time.into()).min(longest);
        conn.timer = Some(now + wait);
        self.step(now, id, Trigger::Mra)?;
        Ok(())
    }

    pub(super) fn on_rej(
        &mut self,
        now: Instant,
        from: &Arrival,
        tid: u64,
        rej: &rej::Repr,
    ) -> Result<(), Unexpected> {
        let id = match rej.remote_comm_id == CommId::default() {
            // A peer that has not received a message of ours does not know our communication id
            // (section 12.6.7.2, code 4). It knows its own, and the transaction of its REQ.
            true if rej.reason == rej::Reason::TIMEOUT => {
                self.conns.by_remote(from.remote_gid, rej.local_comm_id).filter(|&id| {
                    self.conns.get(id).is_some_and(|conn| conn.state.awaits_first_word() && conn.tid == tid)
                })
            }
            true => None,
            false => self.conns.by_local(rej.remote_comm_id).filter(|&id| {
                // Once the peer's id is known, the peer has to show that it knows that too.
                let remote_comm = self.conns.get(id).and_then(|conn| conn.remote_comm);
                remote_comm.is_none_or(|comm| comm == rej.local_comm_id)
            }),
        };
        let id = id.ok_or(Unexpected)?;
        let conn = self.conns.get(id).ok_or(Unexpected)?;
        if conn.remote_gid != from.remote_gid || !conn.state.can_be_rejected(rej.rejected) {
            return Err(Unexpected);
        }
        let state = conn.state;
        state.next(Trigger::Rej).map_err(|_| Unexpected)?;
        let event = match state {
            State::DreqSent => Event::Released { conn: id, answered: true, private_data: PrivateData::EMPTY },
            _ => Event::Rejected(Rejection::new(id, state, rej)),
        };
        self.report(id, event);
        self.mute_unless_released(id);
        self.step(now, id, Trigger::Rej)?;
        Ok(())
    }

    /// A rejected attempt has been reported; its TimeWait is not.
    fn mute_unless_released(&mut self, id: ConnectionId) {
        if !matches!(self.state(id), State::DreqSent | State::Established) {
            self.mute(id);
        }
    }

    pub(super) fn on_dreq(
        &mut self,
        now: Instant,
        from: &Arrival,
        tid: u64,
        dreq: &dreq::Repr,
    ) -> Result<(), Unexpected> {
        let drep = rtu::Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; rtu::PRIVATE_DATA_LEN],
        };
        let drep = Datagram { tid, message: drep.into() }.emit();
        let Ok((id, conn)) = self.find(from, dreq.remote_comm_id, dreq.local_comm_id) else {
            // There is no such connection here any more; with an answer the peer need not wait
            // (section 12.9.8.2.2).
            self.out.send(from.local_gid, from.remote_gid, drep);
            return Err(Unexpected);
        };
        if conn.local_qpn != Some(dreq.remote_qpn) {
            return Err(Unexpected);
        }
        if conn.state == State::TimeWait && !planted(Bug::DreqUnanswered) {
            self.out.stats.duplicates += 1;
            self.out.send(from.local_gid, from.remote_gid, drep);
            return Ok(());
        }
        let before = self.step(now, id, Trigger::Dreq)?;
        // Only who considers the connection established ends it so. The RTU was lost, or was never
        // sent. The consumer learns first that there was a connection: it may have received data.
        if before.awaits_confirmation() {
            self.report(id, Event::Established { conn: id, private_data: None });
        }
        if !planted(Bug::DreqUnanswered) {
            self.out.send(from.local_gid, from.remote_gid, drep);
        }
        let (cause, private_data) = match dreq.private_data.ends_with(&BROKEN) {
            true => (Cause::Broken, PrivateData::EMPTY),
            false => (Cause::Peer, PrivateData::new(&dreq.private_data)),
        };
        let event = match before {
            State::DreqSent => Event::Released { conn: id, answered: true, private_data },
            _ => Event::Disconnected { conn: id, cause, private_data },
        };
        self.step(now, id, Trigger::SendDrep)?;
        self.report(id, event);
        Ok(())
    }

    pub(super) fn on_drep(
        &mut self,
        now: Instant,
        from: &Arrival,
        tid: u64,
        drep: &rtu::Drep,
    ) -> Result<(), Unexpected> {
        let (id, conn) = self.find(from, drep.remote_comm_id, drep.local_comm_id)?;
        if conn.state == State::Established {
            if conn.probe != Some(tid) {
                return Err(Unexpected);
            }
            let (cause, private_data) = (Cause::Stale, PrivateData::EMPTY);
            self.report(id, Event::Disconnected { conn: id, cause, private_data });
            self.mute(id);
            return Ok(self.break_off(now, id, Duration::ZERO)?);
        }
        self.step(now, id, Trigger::Drep)?;
        let private_data = PrivateData::new(&drep.private_data);
        self.report(id, Event::Released { conn: id, answered: true, private_data });
        Ok(())
    }

    /// Declines a LAP: there are no alternate paths.
    pub(super) fn on_lap(&mut self, from: &Arrival, tid: u64, lap: &lap::Repr) -> Result<(), Unexpected> {
        let (_, conn) = self.find(from, lap.remote_comm_id, lap.local_comm_id)?;
        if conn.state != State::Established {
            return Err(Unexpected);
        }
        let message = lap::AprRepr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            info_len: 0,
            status: lap::AprRepr::NOT_SUPPORTED,
            info: [0; lap::APR_INFO_LEN],
            private_data: [0; lap::APR_PRIVATE_DATA_LEN],
        };
        let mad = Datagram { tid, message: message.into() }.emit();
        self.out.send(from.local_gid, from.remote_gid, mad);
        Ok(())
    }

    /// Acts on a connection's timer.
    pub(super) fn expire(&mut self, now: Instant, id: ConnectionId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let late = conn.limit.is_some_and(|limit| limit <= now);
        if conn.state == State::TimeWait {
            if let Some(local_qpn) = conn.local_qpn {
                self.report(id, Event::TimeWaitOver { conn: id, local_qpn });
            }
            // Legal in this state; it removes the connection.
            let _ = self.step(now, id, Trigger::Timeout);
        } else if conn.held && !late {
            self.send_kept(now, id);
        } else if let (Some(left), false) = (conn.retries_left.checked_sub(1), late) {
            conn.retries_left = left;
            conn.timer = Some(now + conn.response_time.into());
            let (local_gid, remote_gid, mad) = (conn.local_gid, conn.remote_gid, conn.message.get());
            self.out.stats.retransmitted += 1;
            self.out.send(local_gid, remote_gid, mad);
            self.conns.rearm(id);
        } else {
            self.give_up(now, id);
        }
    }

    fn give_up(&mut self, now: Instant, id: ConnectionId) {
        let state = self.state(id);
        if let Err(Illegal { .. }) = state.next(Trigger::Timeout) {
            // No timer should run in such a state; this one must not fire again.
            if let Some(conn) = self.conns.get_mut(id) {
                (conn.timer, conn.limit) = (None, None);
            }
            self.conns.rearm(id);
            return;
        }
        if state == State::DreqSent {
            let private_data = PrivateData::EMPTY;
            self.report(id, Event::Released { conn: id, answered: false, private_data });
        } else {
            self.send_rej(id, rej::Reason::TIMEOUT, &[], [0; rej::PRIVATE_DATA_LEN]);
            self.report(id, Event::TimedOut { conn: id, state });
            self.mute(id);
        }
        // Checked above.
        let _ = self.step(now, id, Trigger::Timeout);
    }
}
