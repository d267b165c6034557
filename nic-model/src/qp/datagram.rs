//! Datagrams: UD queue pairs and the general services queue pair. What nobody takes is dropped without a word; one that
//! does not fit its receiver is that one's length error (but on the general services queue pair).

use core::mem::offset_of;

use nic_abi::admin::QpType;
use nic_abi::cqe::{CqeFlags, NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::ident::{QPN_BITS, qpn_slot};
use nic_abi::registers::GIDS;
use nic_abi::wqe::{AddressVector, LinkFlags, Opcode, SendFlags};

use super::engine::{Outcome, Received};
use super::receive::NoReceive;
use super::send::ARGS;
use crate::Frontend;
use crate::fabric::Fabric;
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
struct Datagram<'a> {
    from: (u16, u32),
    source_qpn: u32,
    source_gid: [u8; 16],
    address: AddressVector,
    qkey: u32,
    spans: &'a Spans,
    length: u64,
    immediate: Option<u32>,
    solicited: bool,
}

impl<F: Frontend> Fabric<F> {
    /// Executes a Send on a datagram queue pair.
    pub(super) fn send_datagram(&mut self, n: u16, slot: u32) -> Outcome {
        let nic = &mut self.nics[usize::from(n)];
        let Some(qp) = nic.qps.get(slot) else { return Outcome::Lost };
        let (work, own_qkey) = (&qp.send.work, qp.attributes.qkey);
        let address = work.address();
        let gsi = qp.kind == QpType::Gsi;
        let bad = |offset: usize| Outcome::Failed(Status::LocalQpOperation, (ARGS + offset) as u32);
        let Some(source_gid) = nic.gids.get(usize::from(address.source_gid)).copied() else {
            return bad(offset_of!(AddressVector, source_gid));
        };
        if address.qpn >> QPN_BITS != 0 {
            return bad(offset_of!(AddressVector, qpn));
        }
        if work.total > u64::from(nic.config.mtu).min(qp.max_message) {
            return Outcome::Failed(Status::LocalLength, NO_FIELD);
        }
        let Ok(spans) = nic.local_spans(&work.segments, qp.pd, LinkFlags::LOCAL_READ, qp.privileged) else {
            return Outcome::Failed(Status::LocalProtection, NO_FIELD);
        };
        let datagram = Datagram {
            from: (n, slot),
            source_qpn: qp.qpn,
            source_gid,
            address,
            qkey: if address.qkey & OWN_QKEY != 0 { own_qkey } else { address.qkey },
            spans: &spans,
            length: work.total,
            immediate: (work.opcode == Opcode::SendImmediate).then_some(work.header.immediate),
            solicited: work.flags.contains(SendFlags::SOLICITED),
        };
        if let Some(outcome) = self.hold_back(n, slot) {
            match outcome {
                Outcome::Lost => {
                    self.nics[usize::from(n)].stats.dropped_datagrams += 1;
                    return Outcome::Done(0);
                }
                held => return held,
            }
        }
        let nic = &mut self.nics[usize::from(n)];
        if gsi && nic.drop_management > 0 {
            nic.drop_management -= 1;
            nic.stats.dropped_datagrams += 1;
            return Outcome::Done(0);
        }
        match self.deliver(&datagram) {
            Ok(true) => Outcome::Done(0),
            Ok(false) => {
                self.nics[usize::from(n)].stats.dropped_datagrams += 1;
                Outcome::Done(0)
            }
            Err(()) => Outcome::Failed(Status::LocalProtection, NO_FIELD),
        }
    }

    /// Hands a datagram to whom it is for. `Ok(false)` if nobody takes it, an error if the sender's memory is at fault.
    fn deliver(&mut self, datagram: &Datagram<'_>) -> Result<bool, ()> {
        let n = datagram.from.0;
        let Some(to) = self.find(n, &datagram.address.gid) else { return Ok(false) };
        if !self.nics[usize::from(n)].port_up {
            return Ok(false);
        }
        let nic = &mut self.nics[usize::from(to)];
        let slot = qpn_slot(datagram.address.qpn);
        let takes = nic.running()
            && nic.port_up
            && nic.qps.get(slot).is_some_and(|qp| {
                qp.qpn == datagram.address.qpn
                    && qp.kind != QpType::Rc
                    && qp.can_receive()
                    && qp.attributes.qkey == datagram.qkey
            });
        if !takes {
            return Ok(false);
        }
        let mut failure = match nic.take_receive(slot) {
            Ok(()) => None,
            Err(NoReceive::Empty) => return Ok(false),
            Err(NoReceive::Field(offset)) => Some((Status::LocalQpOperation, offset as u32)),
            Err(NoReceive::Broken) => Some((Status::LocalQpOperation, NO_FIELD)),
        };
        let mut moved = Ok(());
        if failure.is_none() {
            let fits = nic.qps.get(slot).is_some_and(|qp| {
                datagram.length + GRH as u64 <= qp.inbound.receive.room && datagram.length <= qp.max_message
            });
            if !fits && nic.qps.get(slot).is_some_and(|qp| qp.kind == QpType::Gsi) {
                // Nobody takes management away from a node by a datagram that is none. The receive stays.
                return Ok(false);
            }
            if !fits {
                failure = Some((Status::LocalLength, NO_FIELD));
            } else {
                match nic.receive_spans(slot) {
                    Ok(spans) => moved = self.move_datagram(datagram, to, &spans),
                    Err(_) => moved = Err(Unreachable::Target),
                }
            }
        }
        match moved {
            Ok(()) => {}
            Err(Unreachable::Source) => return Err(()),
            Err(Unreachable::Target) => failure = Some((Status::LocalProtection, NO_FIELD)),
        }
        let nic = &mut self.nics[usize::from(to)];
        if let Some((status, field)) = failure {
            let told = nic.fail_receive(slot, status, field);
            self.fail_qp(to, slot, status, Some((EventType::QpFatal, told)));
            self.tell_failed_cqs(to);
            return Ok(false);
        }
        let mut flags = CqeFlags::GRH;
        flags.set(CqeFlags::IMMEDIATE, datagram.immediate.is_some());
        flags.set(CqeFlags::SOLICITED, datagram.solicited);
        let what = Received {
            flags,
            length: datagram.length + GRH as u64,
            immediate: datagram.immediate.unwrap_or(0),
            source_or_field: datagram.source_qpn,
        };
        nic.complete_receive(slot, Status::Success, what);
        self.tell_failed_cqs(to);
        Ok(true)
    }

    fn move_datagram(&self, datagram: &Datagram<'_>, to: u16, spans: &Spans) -> Result<(), Unreachable> {
        let source = &self.nics[usize::from(datagram.from.0)];
        let target = &self.nics[usize::from(to)];
        let memory = target.frontend.memory();
        let header = grh(&datagram.address, &datagram.source_gid, datagram.length);
        put(&Side { memory, keys: &target.keys, spans, skip: 0 }, &header)?;
        let from =
            Side { memory: source.frontend.memory(), keys: &source.keys, spans: datagram.spans, skip: 0 };
        let mut done = 0;
        // The MTU bounds this: 4096 bytes in runs of at least one.
        while done < datagram.length {
            let from = Side { skip: done, ..from };
            let into = Side { memory, keys: &target.keys, spans, skip: GRH as u64 + done };
            match copy(&from, &into, datagram.length - done)? {
                0 => return Err(Unreachable::Target),
                copied => done += copied,
            }
        }
        Ok(())
    }
}

const _: () = assert!(GIDS <= u8::MAX as usize);
