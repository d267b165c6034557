//! Queue pairs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use nic_abi::admin::{
    Command, CreateQp, DestroyQp, Group, ModifyQp, QpFlags, QpInfo, QpMask, QpState, QpType, Status,
    StreamFlags,
};
use nic_abi::ident::{MAX_QPS, QPN_BITS, QPN_GSI, qpn_slot};
use nic_abi::registers::{RQ_RECORDS, SQ_RECORDS};
use nic_abi::vi::{self, Reliability};
use nic_abi::wqe::{BLOCK, LinkFlags, receive_stride};
use roce::transport::Persistence;
use roce::{Gid, PathMtu, Psn};

use super::command::{CommandResult, DONE, Refusal, args, at, check_range, result};
use crate::Frontend;
use crate::groups::NotJoined;
use crate::ids::QpId;
use crate::keys::{Owner, QP_RIGHTS};
use crate::limits::{
    LOG_RQ_ENTRIES, LOG_SQ_BLOCKS, LOG_VI_ENTRIES, MAX_MESSAGE, MAX_RD_ATOMIC, MAX_SGES, MAX_VI_SEGMENTS,
};
use crate::nic::Nic;
use crate::node::Node;
use crate::qp::state::transition;
use crate::qp::vi::Vi;
use crate::qp::{GSI_QKEY, Inbound, KeyKind, PSN_MASK, Qp, ReceiveQueue, SendQueue, Way, Work, limits};
use crate::schedule::Schedule;
use crate::test_commands::faults::Faults;

impl<F: Frontend> Node<F> {
    /// The queue pair that a command names, and its NIC.
    pub(crate) fn named_qp(&mut self, command: &Command) -> Result<(&mut Nic<F>, &mut Qp), Refusal> {
        self.parts(qpn_slot(command.object))
            .filter(|(_, qp)| qp.qpn == command.object)
            .ok_or(Refusal::new(Status::NoSuchObject, at!(command.object)))
    }

    pub(super) fn create_qp(&mut self, command: &Command) -> CommandResult {
        let qpn = command.object;
        let slot = qpn_slot(qpn);
        let a: CreateQp = args(command);
        // A new virtual interface has the level Unreliable Delivery.
        let virtual_interface = a.qp_type == vi::QP_TYPE;
        let kind = match virtual_interface {
            true => Vi::service(Reliability::default()),
            false => QpType::from_word(a.qp_type).ok_or(Refusal::field(at!(CreateQp, qp_type)))?,
        };
        // Slot 1 is the general services QP's, whose number has no generation; slot 0 is never
        // used.
        let reserved = slot == 0 || (slot == QPN_GSI) != (kind == QpType::Gsi);
        if qpn >> QPN_BITS != 0 || reserved || kind == QpType::Gsi && qpn != QPN_GSI {
            return Err(Refusal::field(at!(command.object)));
        }
        if self.qps.contains(slot) {
            return Err(Refusal::new(Status::Exists, at!(command.object)));
        }
        let flags = QpFlags::from_bits(a.flags).ok_or(Refusal::field(at!(CreateQp, flags)))?;
        let shared = flags.contains(QpFlags::SRQ);
        let may_share = matches!(kind, QpType::Rc | QpType::Ud | QpType::Iwarp);
        let strict = flags.contains(QpFlags::READS_WRITE) && kind != QpType::Iwarp;
        if shared && !may_share || strict || virtual_interface && !flags.is_empty() {
            return Err(Refusal::field(at!(CreateQp, flags)));
        }
        let nic = &mut self.nic;
        match virtual_interface {
            true => nic.check_vi(&a)?,
            false => {
                nic.check_sizes(&a, shared)?;
                nic.check_uses(&a, shared)?;
            }
        }
        if let Some(field) = nic.failed_queue(a.send_cq, a.receive_cq, shared.then_some(a.srq)) {
            return Err(Refusal::new(Status::BadState, field));
        }
        for cq in [a.send_cq, a.receive_cq] {
            if let Some(cq) = nic.cqs.get_mut(cq) {
                cq.users += 1;
            }
        }
        let eqs = [Some(a.eq), virtual_interface.then_some(a.srq)];
        for eq in eqs.into_iter().flatten() {
            if let Some(eq) = nic.eqs.get_mut(eq) {
                eq.users += 1;
            }
        }
        nic.use_pd(a.pd);
        if let Some(srq) = nic.srqs.get_mut(a.srq)
            && shared
        {
            srq.users += 1;
        }
        nic.init_record(SQ_RECORDS, slot, 1);
        nic.init_record(RQ_RECORDS, slot, 0);
        let qkey = if kind == QpType::Gsi { GSI_QKEY } else { 0 };
        let qp = Qp {
            id: QpId { nic: nic.id, slot },
            qpn,
            generation: a.generation,
            kind,
            privileged: flags.contains(QpFlags::PRIVILEGED),
            reads_write: flags.contains(QpFlags::READS_WRITE),
            keys: match (virtual_interface, flags.contains(QpFlags::PRIVILEGED)) {
                (true, _) => KeyKind::Handles,
                (false, true) => KeyKind::LocalOrReserved,
                (false, false) => KeyKind::Local,
            },
            pd: a.pd,
            owner: match a.owner {
                0 => Owner::Qp { qpn, generation: a.generation },
                name => Owner::Named(name),
            },
            send_cq: a.send_cq,
            receive_cq: a.receive_cq,
            srq: shared.then_some(a.srq),
            eq: a.eq,
            max_message: a.max_message,
            state: QpState::Reset,
            error: 0,
            attributes: ModifyQp { qkey, ..ModifyQp::default() },
            mtu: PathMtu::B256,
            way: Way::Unknown,
            send: SendQueue {
                ring: a.send_ring,
                log: a.log_send_blocks,
                max_segments: a.max_send_segments,
                head: 0,
                tail: 0,
                work: Work::new(),
            },
            receive: ReceiveQueue {
                ring: a.receive_ring,
                log: a.log_receive_entries,
                max_segments: a.max_receive_segments,
                head: 0,
            },
            inbound: Inbound::default(),
            send_psn: Psn::new(0),
            requests: None,
            stream: None,
            quoted: (0, 0),
            answers_first: false,
            stalled: false,
            unresolved: false,
            unreached: false,
            persistence: Persistence::new(limits(&ModifyQp::default())),
            deadline: None,
            active: false,
            draining: false,
            drained_event: None,
            last_wqe: false,
            faults: Faults::default(),
            groups: Vec::new(),
            vi: virtual_interface.then(|| Box::new(Vi::new(a.srq))),
        };
        self.qps.insert(slot, qp);
        Ok(DONE)
    }

    pub(super) fn query_qp(&mut self, command: &Command) -> CommandResult {
        let (nic, qp) = self.named_qp(command)?;
        Ok(result(&QpInfo {
            state: qp.state as u32,
            send_head: qp.send.head,
            receive_head: qp.receive.head,
            error: u32::from(qp.error),
            send_psn: qp.requests.as_ref().map_or(qp.send_psn.get(), |requests| requests.next_psn()),
            receive_psn: match &qp.inbound.engine {
                Some(engine) => engine.expected().get(),
                None => qp.attributes.receive_psn,
            },
            windows: nic.keys.bound_by(qp.pd, qp.owner),
            quoted: qp.quoted.0,
            quoted_offset: qp.quoted.1,
        }))
    }

    pub(super) fn modify_qp(&mut self, schedule: &mut Schedule, command: &Command) -> CommandResult {
        let (nic, qp) = self.named_qp(command)?;
        let a: ModifyQp = args(command);
        let mask = QpMask::from_bits(a.mask).ok_or(Refusal::field(at!(ModifyQp, mask)))?;
        let from = qp.state;
        let to = match mask.contains(QpMask::STATE) {
            true => QpState::from_word(a.state).ok_or(Refusal::field(at!(ModifyQp, state)))?,
            false => from,
        };
        let allowed =
            transition(qp.kind, from, to).ok_or(Refusal::new(Status::BadState, at!(ModifyQp, state)))?;
        let of_vi = QpMask::LEVEL | QpMask::PD | QpMask::QPN | QpMask::KEEP_RECEIVES;
        let optional = match qp.vi.is_some() && mask.contains(QpMask::STATE) && to == QpState::Reset {
            true => allowed.optional | of_vi,
            false => allowed.optional,
        };
        if !mask.contains(allowed.required) || !optional.contains(mask) {
            return Err(Refusal::field(at!(ModifyQp, mask)));
        }
        nic.check_attributes(mask, &a)?;
        if mask.contains(QpMask::PD) && !nic.pds.contains(a.pd) {
            return Err(Refusal::new(Status::NoSuchObject, at!(ModifyQp, pd)));
        }
        if mask.contains(QpMask::QPN) && (a.qpn >> QPN_BITS != 0 || qpn_slot(a.qpn) != qp.id.slot) {
            return Err(Refusal::field(at!(ModifyQp, qpn)));
        }
        if mask.contains(QpMask::STREAM) {
            nic.check_stream(&a)?;
        }
        // Completions of a queue pair on a failed CQ would vanish, so it stays out of service.
        let serves = !matches!(to, QpState::Reset | QpState::Error);
        if serves && nic.failed_queue(qp.send_cq, qp.receive_cq, qp.srq).is_some() {
            return Err(Refusal::new(Status::BadState, at!(ModifyQp, state)));
        }
        // Nothing below fails.
        if mask.contains(QpMask::STATE) && to == QpState::Reset {
            qp.send_last_answers(nic, schedule);
            self.flush_shared(qpn_slot(command.object), schedule);
            let (nic, qp) = self.named_qp(command)?;
            let keeps = mask.contains(QpMask::KEEP_RECEIVES) && from != QpState::Error;
            qp.flush_all(nic, schedule, keeps);
            schedule.remove(qp);
            nic.stop_waiting(qp);
            qp.abandon_stream(nic, schedule.now);
            qp.reset(nic);
            if qp.vi.is_some() {
                // What was posted meanwhile to the send queue is completed in error.
                schedule.activate(qp);
            }
        }
        let (nic, qp) = self.named_qp(command)?;
        set_attributes(qp, mask, &a);
        set_vi_attributes(nic, qp, mask, &a);
        if mask.contains(QpMask::PATH) && core::mem::take(&mut qp.unresolved) {
            // It waited for the former peer's MAC.
            nic.waiting.forget_neighbour(qp.id.slot);
            schedule.activate(qp);
        }
        if !mask.contains(QpMask::STATE) {
            return Ok(DONE);
        }
        match to {
            QpState::Error => {
                qp.send_last_answers(nic, schedule);
                qp.inbound.refusing = false;
                if from != QpState::Error {
                    qp.fail(nic, schedule, nic_abi::cqe::Status::Success, None);
                }
            }
            QpState::Sqd => {
                if let Some(requests) = &mut qp.requests {
                    requests.drain(true);
                }
                qp.draining = from != QpState::Sqd;
                qp.state = to;
                schedule.activate(qp);
            }
            _ => {
                match (from, to) {
                    (QpState::Init, QpState::Rtr) if qp.kind == QpType::Iwarp => {
                        nic.bind_stream(qp, schedule)
                    }
                    (QpState::Init, QpState::Rtr) if qp.kind.is_connected() => qp.expect_requests(),
                    _ => {}
                }
                qp.state = to;
                if let Some(requests) = &mut qp.requests {
                    requests.drain(false);
                }
                if to == QpState::Rts {
                    schedule.activate(qp);
                }
            }
        }
        Ok(DONE)
    }

    pub(super) fn join_group(&mut self, command: &Command) -> CommandResult {
        let Group { gid } = args(command);
        let (nic, qp) = self.named_qp(command)?;
        if qp.kind != QpType::Ud {
            return Err(Refusal::field(at!(command.object)));
        }
        if !Gid(gid).to_ip().is_multicast() {
            return Err(Refusal::field(at!(Group, gid)));
        }
        match nic.groups.join(gid, qp.id.slot) {
            Ok(first) => {
                qp.groups.push(gid);
                if first {
                    nic.begin_group(gid);
                }
                Ok(DONE)
            }
            Err(NotJoined::Already) => Err(Refusal::new(Status::Exists, at!(Group, gid))),
            Err(NotJoined::Full) => Err(Refusal::new(Status::NoResources, at!(Group, gid))),
        }
    }

    pub(super) fn leave_group(&mut self, command: &Command) -> CommandResult {
        let Group { gid } = args(command);
        let (nic, qp) = self.named_qp(command)?;
        let place = qp.groups.iter().position(|joined| *joined == gid);
        let place = place.ok_or(Refusal::new(Status::NoSuchObject, at!(Group, gid)))?;
        qp.groups.swap_remove(place);
        nic.leave_group(gid, qp.id.slot);
        Ok(DONE)
    }

    pub(super) fn destroy_qp(&mut self, schedule: &mut Schedule, command: &Command) -> CommandResult {
        let (nic, qp) = self.named_qp(command)?;
        let a: DestroyQp = args(command);
        check_range(a.unless_bound, 0..=1, at!(DestroyQp, unless_bound))?;
        if a.unless_bound == 1 && nic.keys.bound_by(qp.pd, qp.owner) > 0 {
            return Err(Refusal::new(Status::Busy, at!(command.object)));
        }
        let slot = qp.id.slot;
        qp.send_last_answers(nic, schedule);
        self.flush_shared(slot, schedule);
        let (nic, qp) = self.named_qp(command)?;
        schedule.remove(qp);
        nic.stop_waiting(qp);
        qp.abandon_stream(nic, schedule.now);
        schedule.charge(qp.groups.len() as u32);
        for gid in core::mem::take(&mut qp.groups) {
            nic.leave_group(gid, slot);
        }
        for cq in [qp.send_cq, qp.receive_cq] {
            if let Some(cq) = nic.cqs.get_mut(cq) {
                cq.users -= 1;
            }
        }
        if let Some(srq) = qp.srq.and_then(|number| nic.srqs.get_mut(number)) {
            srq.users -= 1;
        }
        nic.release_eq(qp.eq);
        if let Some(vi) = &qp.vi {
            nic.release_eq(vi.completions_eq);
            nic.copies.remove_all(slot);
        }
        nic.release_pd(qp.pd);
        self.qps.remove(slot);
        Ok(DONE)
    }
}

impl<F: Frontend> Nic<F> {
    /// Checks sizes and rings.
    fn check_sizes(&self, a: &CreateQp, shared: bool) -> Result<(), Refusal> {
        check_range(a.max_send_segments, 0..=MAX_SGES as u32, at!(CreateQp, max_send_segments))?;
        check_range(a.log_send_blocks, 0..=LOG_SQ_BLOCKS, at!(CreateQp, log_send_blocks))?;
        self.check_ring(a.send_ring, 1 << a.log_send_blocks, BLOCK as u64, at!(CreateQp, send_ring))?;
        if a.max_message > MAX_MESSAGE {
            return Err(Refusal::field(at!(CreateQp, max_message)));
        }
        if shared {
            let none = a.receive_ring == 0;
            return if none { Ok(()) } else { Err(Refusal::field(at!(CreateQp, receive_ring))) };
        }
        check_range(a.max_receive_segments, 0..=MAX_SGES as u32, at!(CreateQp, max_receive_segments))?;
        check_range(a.log_receive_entries, 0..=LOG_RQ_ENTRIES, at!(CreateQp, log_receive_entries))?;
        let stride = u64::from(receive_stride(a.max_receive_segments));
        self.check_ring(a.receive_ring, 1 << a.log_receive_entries, stride, at!(CreateQp, receive_ring))
    }

    /// Checks what a virtual interface is created with.
    fn check_vi(&self, a: &CreateQp) -> Result<(), Refusal> {
        let most = MAX_VI_SEGMENTS as u32;
        check_range(a.max_send_segments, 0..=most, at!(CreateQp, max_send_segments))?;
        check_range(a.max_receive_segments, 0..=most, at!(CreateQp, max_receive_segments))?;
        check_range(a.log_send_blocks, 0..=LOG_VI_ENTRIES, at!(CreateQp, log_send_blocks))?;
        check_range(a.log_receive_entries, 0..=LOG_VI_ENTRIES, at!(CreateQp, log_receive_entries))?;
        let bytes = |log: u32| (vi::RING_HEAD + (vi::ENTRY << log)) as u64;
        self.check_ring(a.send_ring, 1, bytes(a.log_send_blocks), at!(CreateQp, send_ring))?;
        self.check_ring(a.receive_ring, 1, bytes(a.log_receive_entries), at!(CreateQp, receive_ring))?;
        if a.max_message > MAX_MESSAGE {
            return Err(Refusal::field(at!(CreateQp, max_message)));
        }
        if a.owner != 0 {
            return Err(Refusal::field(at!(CreateQp, owner)));
        }
        let exists = |there: bool, field: usize| match there {
            true => Ok(()),
            false => Err(Refusal::new(Status::NoSuchObject, field)),
        };
        exists(self.pds.contains(a.pd), at!(CreateQp, pd))?;
        for (cq, field) in [(a.send_cq, at!(CreateQp, send_cq)), (a.receive_cq, at!(CreateQp, receive_cq))] {
            if cq != vi::NO_CQ {
                exists(self.cqs.contains(cq), field)?;
                self.check_cq_kind(cq, true, field)?;
            }
        }
        exists(self.eqs.contains(a.srq), at!(CreateQp, srq))?;
        exists(self.eqs.contains(a.eq), at!(CreateQp, eq))
    }

    /// Checks that a CQ is one for virtual interfaces, or that it is none.
    fn check_cq_kind(&self, number: u32, lossy: bool, field: usize) -> Result<(), Refusal> {
        match self.cqs.get(number).is_some_and(|cq| cq.lossy == lossy) {
            true => Ok(()),
            false => Err(Refusal::field(field)),
        }
    }

    /// Checks that all that a queue pair uses exists.
    fn check_uses(&self, a: &CreateQp, shared: bool) -> Result<(), Refusal> {
        let exists = |there: bool, field: usize| match there {
            true => Ok(()),
            false => Err(Refusal::new(Status::NoSuchObject, field)),
        };
        exists(self.pds.contains(a.pd), at!(CreateQp, pd))?;
        exists(self.cqs.contains(a.send_cq), at!(CreateQp, send_cq))?;
        exists(self.cqs.contains(a.receive_cq), at!(CreateQp, receive_cq))?;
        self.check_cq_kind(a.send_cq, false, at!(CreateQp, send_cq))?;
        self.check_cq_kind(a.receive_cq, false, at!(CreateQp, receive_cq))?;
        exists(!shared || self.srqs.contains(a.srq), at!(CreateQp, srq))?;
        exists(self.eqs.contains(a.eq), at!(CreateQp, eq))
    }

    /// The field of CreateQp that names the first of these queues that has failed.
    fn failed_queue(&self, send_cq: u32, receive_cq: u32, srq: Option<u32>) -> Option<usize> {
        let cq_failed = |number| self.cqs.get(number).is_some_and(|cq| cq.failed);
        if cq_failed(send_cq) {
            return Some(at!(CreateQp, send_cq));
        }
        if cq_failed(receive_cq) {
            return Some(at!(CreateQp, receive_cq));
        }
        srq.and_then(|number| self.srqs.get(number)).filter(|srq| srq.failed).map(|_| at!(CreateQp, srq))
    }

    /// Checks the attributes that a modify brings.
    fn check_attributes(&self, mask: QpMask, a: &ModifyQp) -> Result<(), Refusal> {
        let rules = [
            (QpMask::MTU, is_mtu(a.mtu) && a.mtu <= self.config.mtu, at!(ModifyQp, mtu)),
            (
                QpMask::ACCESS,
                LinkFlags::from_bits(a.access).is_some_and(|f| QP_RIGHTS.contains(f)),
                at!(ModifyQp, access),
            ),
            (QpMask::PATH, self.gid(a.source_gid).is_some(), at!(ModifyQp, source_gid)),
            (QpMask::PATH, a.flow_label >> 20 == 0, at!(ModifyQp, flow_label)),
            (QpMask::REMOTE_QPN, a.remote_qpn >> QPN_BITS == 0, at!(ModifyQp, remote_qpn)),
            (QpMask::SEND_PSN, a.send_psn <= PSN_MASK, at!(ModifyQp, send_psn)),
            (QpMask::RECEIVE_PSN, a.receive_psn <= PSN_MASK, at!(ModifyQp, receive_psn)),
            (QpMask::TIMEOUT, a.timeout < 32, at!(ModifyQp, timeout)),
            (QpMask::RETRY_COUNT, a.retry_count < 8, at!(ModifyQp, retry_count)),
            (QpMask::RNR_RETRY, a.rnr_retry < 8, at!(ModifyQp, rnr_retry)),
            (QpMask::MIN_RNR_TIMER, a.min_rnr_timer < 32, at!(ModifyQp, min_rnr_timer)),
            (QpMask::MAX_RD_ATOMIC, a.max_rd_atomic <= MAX_RD_ATOMIC, at!(ModifyQp, max_rd_atomic)),
            (
                QpMask::MAX_DEST_RD_ATOMIC,
                a.max_dest_rd_atomic <= MAX_RD_ATOMIC,
                at!(ModifyQp, max_dest_rd_atomic),
            ),
            (QpMask::MAX_MESSAGE, a.max_message <= MAX_MESSAGE, at!(ModifyQp, max_message)),
            (
                QpMask::STREAM,
                StreamFlags::from_bits(a.stream_flags).is_some_and(|flags| {
                    let of_other_side = match flags.contains(StreamFlags::RESPONDER) {
                        true => StreamFlags::ANNOUNCE,
                        false => StreamFlags::UNASKED,
                    };
                    !flags.contains(of_other_side)
                }),
                at!(ModifyQp, stream_flags),
            ),
            (QpMask::LEVEL, Reliability::from_byte(a.level).is_some(), at!(ModifyQp, level)),
        ];
        match rules.iter().find(|(bit, holds, _)| mask.contains(*bit) && !holds) {
            Some((_, _, field)) => Err(Refusal::field(*field)),
            None if a.reserved != [0; 2] => Err(Refusal::field(at!(ModifyQp, reserved))),
            None => Ok(()),
        }
    }
}

const fn is_mtu(bytes: u32) -> bool {
    matches!(bytes, 256 | 512 | 1024 | 2048 | 4096)
}

impl Qp {
    /// Forgets all that the queue pair has to do. What was posted to it is skipped; the counters go
    /// on.
    fn reset<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        let slot = self.id.slot;
        let send_tail = nic.record(SQ_RECORDS, slot, 0).load(Ordering::Acquire);
        let receive_tail = nic.record(RQ_RECORDS, slot, 0).load(Ordering::Acquire);
        nic.record(RQ_RECORDS, slot, 1).store(0, Ordering::Release);
        let qkey = if self.kind == QpType::Gsi { GSI_QKEY } else { 0 };
        self.state = QpState::Reset;
        self.error = 0;
        self.attributes = ModifyQp { qkey, ..ModifyQp::default() };
        self.way = Way::Unknown;
        self.requests = None;
        self.quoted = (0, 0);
        match &mut self.vi {
            // Its descriptors were completed; what was posted since stays posted.
            Some(vi) => {
                vi.reset();
                nic.copies.remove_all(slot);
                // More than the ring has room for, which put the queue pair into the error state.
                if self.send.posted() > 1 << self.send.log {
                    self.send.head = self.send.tail;
                }
            }
            None => {
                (self.send.head, self.send.tail) = (send_tail, send_tail);
                self.receive.head = receive_tail;
            }
        }
        self.send.work = Work::new();
        self.inbound = Inbound::default();
        self.send_psn = Psn::new(0);
        self.persistence = Persistence::new(limits(&self.attributes));
        self.unreached = false;
        (self.draining, self.last_wqe) = (false, false);
        self.faults = Faults::default();
    }
}

/// Copies the attributes that the mask names, and applies them.
fn set_attributes(qp: &mut Qp, mask: QpMask, a: &ModifyQp) {
    let attributes = &mut qp.attributes;
    macro_rules! copy {
        ($($bit:ident: $($field:ident)*;)*) => {$(
            if mask.contains(QpMask::$bit) {
                $(attributes.$field = a.$field;)*
            }
        )*};
    }
    copy! {
        ACCESS: access;
        PATH: remote_gid source_gid hop_limit traffic_class flow_label;
        REMOTE_QPN: remote_qpn;
        MTU: mtu;
        SEND_PSN: send_psn;
        RECEIVE_PSN: receive_psn;
        TIMEOUT: timeout;
        RETRY_COUNT: retry_count;
        RNR_RETRY: rnr_retry;
        MIN_RNR_TIMER: min_rnr_timer;
        MAX_RD_ATOMIC: max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        STREAM: stream stream_flags;
        WATERMARKS: soft_watermark hard_watermark;
    }
    if mask.contains(QpMask::QKEY) && qp.kind != QpType::Gsi {
        attributes.qkey = a.qkey;
    }
    // What is under way keeps its way.
    if mask.contains(QpMask::PATH) && qp.requests.is_none() {
        qp.way = Way::Unknown;
    }
    if mask.contains(QpMask::MTU) {
        qp.mtu = PathMtu::at_most(a.mtu);
    }
    if mask.contains(QpMask::SEND_PSN) {
        qp.send_psn = Psn::new(a.send_psn);
    }
    if mask.contains(QpMask::MAX_RD_ATOMIC)
        && let Some(stream) = &mut qp.stream
    {
        stream.set_ord(a.max_rd_atomic);
    }
    if mask.contains(QpMask::MAX_DEST_RD_ATOMIC)
        && let Some(engine) = &mut qp.inbound.engine
    {
        engine.set_resources(a.max_dest_rd_atomic);
    }
    if mask.contains(QpMask::MAX_MESSAGE) {
        qp.max_message = a.max_message;
    }
    let limits = limits(&qp.attributes);
    qp.persistence.set_limits(limits);
    if let Some(requests) = &mut qp.requests {
        requests.set_limits(limits);
    }
}

/// Copies the attributes that only virtual interfaces have.
fn set_vi_attributes<F: Frontend>(nic: &mut Nic<F>, qp: &mut Qp, mask: QpMask, a: &ModifyQp) {
    let Some(vi) = &mut qp.vi else { return };
    if mask.contains(QpMask::LEVEL) {
        vi.level = Reliability::from_byte(a.level).unwrap_or_default();
        qp.kind = Vi::service(vi.level);
    }
    if mask.contains(QpMask::PD) {
        nic.use_pd(a.pd);
        nic.release_pd(qp.pd);
        qp.pd = a.pd;
    }
    if mask.contains(QpMask::QPN) {
        qp.qpn = a.qpn;
        qp.owner = Owner::Qp { qpn: qp.qpn, generation: qp.generation };
    }
}

const _: () = assert!(QPN_GSI < MAX_QPS);
