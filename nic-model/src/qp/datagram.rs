//! Datagrams: UD queue pairs and the general services queue pair. A datagram without a receiver is
//! dropped silently. One that does not fit the receive is the receiver's length error, except on
//! the general services queue pair, which drops it.

use core::mem::offset_of;

use nic_abi::admin::QpType;
use nic_abi::cqe::{CqeFlags, NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::ident::{QPN_BITS, qpn_slot};
use nic_abi::registers::GIDS;
use nic_abi::wqe::{AddressVector, LinkFlags, Opcode, SendFlags};

use super::Qp;
use super::completion::{Outcome, Received};
use super::receive::NoReceive;
use super::send::ARGS;
use crate::Frontend;
use crate::fabric::{Ends, Fabric};
use crate::ids::NicId;
use crate::keys::Span;
use crate::nic::Nic;
use crate::schedule::Schedule;
use crate::transfer::{Side, Spans, Unreachable, copy, put};

/// Bytes in front of a received datagram.
const GRH: usize = 40;
/// Next header of a GRH: IBA transport (IBTA 8.3.6).
const NEXT_HEADER: u8 = 0x1b;
/// Bytes of BTH and DETH and ICRC, which the GRH's payload length counts.
const TRANSPORT_BYTES: u64 = 12 + 8 + 4;
/// The top bit of a queue key: use the sender's own (IBTA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// The global route header in front of a received datagram (IBTA 8.3).
fn grh(address: &AddressVector, source: &[u8; 16], length: u64) -> [u8; GRH] {
    let mut grh = [0; GRH];
    let word = 6 << 28 | u32::from(address.traffic_class) << 20 | address.flow_label & 0xf_ffff;
    grh[0..4].copy_from_slice(&word.to_be_bytes());
    grh[4..6].copy_from_slice(&((length + TRANSPORT_BYTES) as u16).to_be_bytes());
    grh[6] = NEXT_HEADER;
    grh[7] = address.hop_limit;
    grh[8..24].copy_from_slice(source);
    grh[24..40].copy_from_slice(&address.gid);
    grh
}

/// A datagram on its way.
pub(super) struct Datagram<'a> {
    from: NicId,
    source_qpn: u32,
    source_gid: [u8; 16],
    address: AddressVector,
    qkey: u32,
    /// The sender's memory, checked.
    local: &'a [Span],
    length: u64,
    immediate: Option<u32>,
    solicited: bool,
}

/// The sender's memory could not be reached.
pub(super) struct SourceFault;

impl Qp {
    /// Makes a datagram of the current work request of a datagram queue pair, and puts its memory
    /// into `local`. An error is the outcome of a work request that cannot go out.
    pub(super) fn datagram<'a, F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        local: &'a mut Spans,
    ) -> Result<Datagram<'a>, Outcome> {
        let work = &self.send.work;
        let address = work.address();
        let bad = |offset: usize| Outcome::Failed(Status::LocalQpOperation, (ARGS + offset) as u32);
        let Some(source_gid) = nic.gids.get(usize::from(address.source_gid)).copied() else {
            return Err(bad(offset_of!(AddressVector, source_gid)));
        };
        if address.qpn >> QPN_BITS != 0 {
            return Err(bad(offset_of!(AddressVector, qpn)));
        }
        if work.total > u64::from(nic.config.mtu).min(self.max_message) {
            return Err(Outcome::Failed(Status::LocalLength, NO_FIELD));
        }
        if nic.local_spans(&work.segments, self.pd, LinkFlags::LOCAL_READ, self.privileged, local).is_err() {
            return Err(Outcome::Failed(Status::LocalProtection, NO_FIELD));
        }
        let own_qkey = address.qkey & OWN_QKEY != 0;
        let datagram = Datagram {
            from: self.id.nic,
            source_qpn: self.qpn,
            source_gid,
            address,
            qkey: if own_qkey { self.attributes.qkey } else { address.qkey },
            local,
            length: work.total,
            immediate: (work.opcode == Opcode::SendImmediate).then_some(work.header.immediate),
            solicited: work.flags.contains(SendFlags::SOLICITED),
        };
        match self.hold_back() {
            Some(Outcome::Lost) => {
                nic.stats.dropped_datagrams += 1;
                return Err(Outcome::Done(0));
            }
            Some(held) => return Err(held),
            None => {}
        }
        if self.kind == QpType::Gsi && nic.drop_management > 0 {
            nic.drop_management -= 1;
            nic.stats.dropped_datagrams += 1;
            return Err(Outcome::Done(0));
        }
        Ok(datagram)
    }

    /// Whether the queue pair takes a datagram.
    fn takes(&self, datagram: &Datagram<'_>) -> bool {
        self.qpn == datagram.address.qpn
            && self.kind != QpType::Rc
            && self.can_receive()
            && self.attributes.qkey == datagram.qkey
    }

    /// Writes a datagram into a receive. False if there is none, or if the datagram is the general
    /// services queue pair's and does not fit.
    fn receive_datagram<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        source: Option<&Nic<F>>,
        schedule: &mut Schedule,
        datagram: &Datagram<'_>,
    ) -> Result<bool, Failed> {
        match self.take_receive(nic) {
            Ok(()) => {}
            Err(NoReceive::Empty) => return Ok(false),
            Err(NoReceive::Field(offset)) => {
                return Err(Failed::Target(Status::LocalQpOperation, offset as u32));
            }
            Err(NoReceive::Broken) => return Err(Failed::Target(Status::LocalQpOperation, NO_FIELD)),
        }
        let length = datagram.length + GRH as u64;
        if length > self.inbound.receive.room || datagram.length > self.max_message {
            // On the general services queue pair a malformed datagram must not end a node's
            // management: the receive stays.
            return match self.kind {
                QpType::Gsi => Ok(false),
                _ => Err(Failed::Target(Status::LocalLength, NO_FIELD)),
            };
        }
        let unreachable = Failed::Target(Status::LocalProtection, NO_FIELD);
        let mut spans = Spans::new();
        self.receive_spans(nic, &mut spans).map_err(|_| unreachable)?;
        move_datagram(datagram, source.unwrap_or(nic), nic, &spans, schedule).map_err(
            |fault| match fault {
                Unreachable::Source => Failed::Source,
                Unreachable::Target => unreachable,
            },
        )?;
        let mut flags = CqeFlags::GRH;
        flags.set(CqeFlags::IMMEDIATE, datagram.immediate.is_some());
        flags.set(CqeFlags::SOLICITED, datagram.solicited);
        let what = Received {
            flags,
            length,
            immediate: datagram.immediate.unwrap_or(0),
            source_or_field: datagram.source_qpn,
        };
        self.complete_receive(nic, Status::Success, what);
        Ok(true)
    }
}

/// Why a datagram could not be received.
#[derive(Clone, Copy)]
enum Failed {
    /// The sender's memory could not be reached.
    Source,
    /// The receiver's fault: the status and the offset of the field to blame.
    Target(Status, u32),
}

impl<F: Frontend> Fabric<F> {
    /// Delivers a datagram to its receiver. `Ok(false)` if there is none.
    pub(super) fn deliver(&mut self, datagram: &Datagram<'_>) -> Result<bool, SourceFault> {
        let Some(to) = self.find(datagram.from, &datagram.address.gid) else { return Ok(false) };
        let Some(Ends { source, target, schedule }) = self.ends(datagram.from, to) else { return Ok(false) };
        let up = source.is_none_or(|nic| nic.port_up) && target.nic.port_up && target.nic.running();
        let Some((nic, qp)) = target.parts(qpn_slot(datagram.address.qpn)) else { return Ok(false) };
        if !up || !qp.takes(datagram) {
            return Ok(false);
        }
        let taken = match qp.receive_datagram(nic, source, schedule, datagram) {
            Ok(taken) => taken,
            Err(Failed::Source) => return Err(SourceFault),
            Err(Failed::Target(status, field)) => {
                let detail = qp.fail_receive(nic, status, field);
                qp.fail(nic, schedule, status, Some((EventType::QpFatal, detail)));
                false
            }
        };
        target.fail_users_of_cqs(schedule);
        Ok(taken)
    }
}

fn move_datagram<F: Frontend>(
    datagram: &Datagram<'_>,
    source: &Nic<F>,
    target: &Nic<F>,
    spans: &[Span],
    schedule: &mut Schedule,
) -> Result<(), Unreachable> {
    let header = grh(&datagram.address, &datagram.source_gid, datagram.length);
    put(&target.side(spans, 0), &header)?;
    let mut done = 0;
    // The MTU bounds this: 4096 bytes in runs of at least one.
    while done < datagram.length {
        let from: Side<'_, F::Memory> = source.side(datagram.local, done);
        let into = target.side(spans, GRH as u64 + done);
        match copy(&from, &into, datagram.length - done, schedule)? {
            0 => return Err(Unreachable::Target),
            copied => done += copied,
        }
    }
    Ok(())
}

const _: () = assert!(GIDS <= u8::MAX as usize);
