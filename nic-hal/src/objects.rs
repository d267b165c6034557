//! The driver's commands for objects: event queues, domains, regions, windows and queues.

use core::sync::atomic::AtomicU32;

use nic_abi::RING_ALIGN;
use nic_abi::admin::{
    AllocateRegion, AllocateWindow, CreateCq, CreateEq, CreateQp, CreateSrq, DestroyQp, Group, KeyInfo,
    ModifyQp, ModifyRegion, ModifySrq, Opcode, QpFlags, QpInfo, RegisterRegion, ResizeCq, ResizeSrq,
    ShareRegion, SrqInfo,
};
use nic_abi::doorbell::Kind;
use nic_abi::{ident, vi, wqe};

use crate::admin::result;
use crate::doorbell::{ConsumerRecord, Doorbell};
use crate::mapped::{Ring, ViRing, Words};
use crate::memory::{DeviceMemory, Lease};
use crate::receive::{Entries, ReceiveRing};
use crate::vi::Posted;
use crate::{
    CompletionQueue, CompletionRing, CqParams, Error, EventQueue, Nic, QpParams, QpRings, ReceiveQueue,
    SendQueue, SharedReceiveQueue, SharedRing, SrqParams, ViParams, ViQueue, ViRings,
};

impl Nic {
    fn simple(&self, opcode: Opcode, object: u32) -> Result<(), Error> {
        self.command(opcode, object, &()).map(|_| ())
    }

    /// Destroys an object. Its memory is free once the device has confirmed that.
    fn destroy(&self, opcode: Opcode, object: u32, lease: &Lease) -> Result<(), Error> {
        self.simple(opcode, object)?;
        lease.end();
        Ok(())
    }

    fn memory(&self, len: usize, lease: &Lease) -> Result<DeviceMemory, Error> {
        DeviceMemory::new(&self.dma, len, RING_ALIGN, lease)
    }

    fn new_ring<const W: usize>(&self, log: u32, lease: &Lease) -> Result<Ring<W>, Error> {
        if log > 24 {
            return Err(Error::OutOfRange("queue size"));
        }
        Ring::new(self.memory(Ring::<W>::bytes(log), lease)?, log)
    }

    /// Memory for a ring of receives.
    fn receive_entries(
        &self,
        requests: u32,
        segments: u32,
        most: u32,
        lease: &Lease,
    ) -> Result<Entries, Error> {
        if requests == 0 || requests > most {
            return Err(Error::OutOfRange("receive queue size"));
        }
        if segments > self.identity.max_sges {
            return Err(Error::OutOfRange("number of segments"));
        }
        let count = requests.next_power_of_two();
        if count > most {
            return Err(Error::OutOfRange("receive queue size"));
        }
        let stride = wqe::receive_stride(segments);
        let words = Words::new(self.memory(count as usize * stride as usize, lease)?)?;
        Ok(Entries::new(words, count, stride))
    }

    /// A ring for receives.
    fn receive_ring(
        &self,
        requests: u32,
        segments: u32,
        most: u32,
        kind: Kind,
        slot: u32,
        lease: &Lease,
    ) -> Result<(ReceiveRing, u32), Error> {
        let entries = self.receive_entries(requests, segments, most, lease)?;
        let log = entries.count().ilog2();
        let doorbell = Doorbell::new(&self.registers, kind, slot)?;
        Ok((ReceiveRing { entries, tail: 0, max_segments: segments, doorbell }, log))
    }

    /// Creates an event queue. Number 0 gets an event for each command that was answered.
    pub fn create_eq(&self, number: u32, log_entries: u32, vector: u16) -> Result<EventQueue, Error> {
        if number >= self.identity.max_eqs || u32::from(vector) >= self.identity.vectors {
            return Err(Error::OutOfRange("event queue"));
        }
        let lease = Lease::new(&self.quarantine)?;
        let ring = self.new_ring(log_entries, &lease)?;
        let record = ConsumerRecord::eq(&self.registers, number)?;
        let args = CreateEq { ring: ring.bus(), log_entries, vector: u32::from(vector) };
        lease.start_with(|| self.command(Opcode::CreateEq, number, &args))?;
        if number == 0 {
            self.admin.use_events(ConsumerRecord::eq(&self.registers, number)?);
        }
        let untaken = (number == 0).then(|| self.admin.untaken().clone());
        Ok(EventQueue { ring, log: log_entries, head: 0, number, record, untaken })
    }

    /// Destroys an event queue that no CQ uses.
    pub fn destroy_eq(&self, eq: &EventQueue) -> Result<(), Error> {
        self.destroy(Opcode::DestroyEq, eq.number, eq.lease())
    }

    /// Creates a protection domain.
    pub fn create_pd(&self, pd: u32) -> Result<(), Error> {
        self.simple(Opcode::CreatePd, pd)
    }

    /// Destroys a protection domain that nothing uses.
    pub fn destroy_pd(&self, pd: u32) -> Result<(), Error> {
        self.simple(Opcode::DestroyPd, pd)
    }

    /// Registers a region. The list's memory is the caller's; the device has read the list when
    /// this returns.
    pub fn register_region(&self, key: u32, region: &RegisterRegion) -> Result<(), Error> {
        self.command(Opcode::RegisterRegion, key, region).map(|_| ())
    }

    /// Allocates an unlinked region.
    pub fn allocate_region(&self, key: u32, region: &AllocateRegion) -> Result<(), Error> {
        self.command(Opcode::AllocateRegion, key, region).map(|_| ())
    }

    /// Destroys a region to which no window is bound.
    pub fn destroy_region(&self, key: u32) -> Result<(), Error> {
        self.simple(Opcode::DestroyRegion, key)
    }

    /// Allocates a window.
    pub fn allocate_window(&self, key: u32, window: &AllocateWindow) -> Result<(), Error> {
        self.command(Opcode::AllocateWindow, key, window).map(|_| ())
    }

    /// Destroys a window.
    pub fn destroy_window(&self, key: u32) -> Result<(), Error> {
        self.simple(Opcode::DestroyWindow, key)
    }

    /// Registers a region over the memory of another region, which must be linked to that memory.
    pub fn share_region(&self, key: u32, region: &ShareRegion) -> Result<(), Error> {
        self.command(Opcode::ShareRegion, key, region).map(|_| ())
    }

    /// Gives a region without windows another domain, other rights or both, and another remote key.
    pub fn modify_region(&self, key: u32, region: &ModifyRegion) -> Result<(), Error> {
        self.command(Opcode::ModifyRegion, key, region).map(|_| ())
    }

    /// What a local key names, as the device has it.
    pub fn query_key(&self, key: u32) -> Result<KeyInfo, Error> {
        result(&self.command(Opcode::QueryKey, key, &())?)
    }

    /// Creates a completion queue.
    pub fn create_cq(&self, number: u32, params: &CqParams) -> Result<CompletionQueue, Error> {
        let lease = Lease::new(&self.quarantine)?;
        let record = ConsumerRecord::cq(&self.registers, number)?;
        let ring = self.new_ring(params.log_entries, &lease)?;
        let args = CreateCq {
            ring: ring.bus(),
            log_entries: params.log_entries,
            eq: params.eq,
            generation: params.generation,
            flags: params.flags.bits(),
        };
        lease.start_with(|| self.command(Opcode::CreateCq, number, &args))?;
        Ok(CompletionQueue::new(ring, params.log_entries, record))
    }

    /// Moves a completion queue to a new ring, which is returned: pass it to
    /// [`CompletionQueue::move_to`].
    pub fn resize_cq(&self, number: u32, log_entries: u32) -> Result<CompletionRing, Error> {
        let lease = Lease::new(&self.quarantine)?;
        let ring = self.new_ring(log_entries, &lease)?;
        let args = ResizeCq { ring: ring.bus(), log_entries, reserved: 0 };
        lease.start_with(|| self.command(Opcode::ResizeCq, number, &args))?;
        Ok(CompletionRing { ring, log: log_entries })
    }

    /// Destroys a completion queue that no queue pair uses; ends its lease.
    pub fn destroy_cq(&self, number: u32, lease: &Lease) -> Result<(), Error> {
        self.destroy(Opcode::DestroyCq, number, lease)
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&self, number: u32, params: &SrqParams) -> Result<SharedReceiveQueue, Error> {
        let lease = Lease::new(&self.quarantine)?;
        let (ring, log_entries) = self.receive_ring(
            params.max_requests,
            params.max_segments,
            self.identity.max_srq_entries,
            Kind::SharedReceive,
            number,
            &lease,
        )?;
        let args = CreateSrq {
            ring: ring.entries.bus(),
            log_entries,
            max_segments: params.max_segments,
            pd: params.pd,
            generation: params.generation,
            limit: params.limit,
            eq: params.eq,
        };
        let queue = SharedReceiveQueue::new(ring, params.max_requests, self.identity.max_srq_entries)?;
        lease.start_with(|| self.command(Opcode::CreateSrq, number, &args))?;
        Ok(queue)
    }

    /// Allocates a ring for a shared receive queue of another size. To move a queue there:
    /// [`SharedReceiveQueue::begin_move`], [`SharedReceiveQueue::copy_some`] until it returns
    /// false, [`Nic::resize_srq`], [`SharedReceiveQueue::end_move`].
    pub fn shared_ring(&self, max_requests: u32, max_segments: u32) -> Result<SharedRing, Error> {
        let lease = Lease::new(&self.quarantine)?;
        let most = self.identity.max_srq_entries;
        SharedRing::new(self.receive_entries(max_requests, max_segments, most, &lease)?, max_requests)
    }

    /// Makes the device go on in another ring, and sets the limit unless it is 0.
    pub fn resize_srq(&self, number: u32, ring: &SharedRing, limit: u32) -> Result<(), Error> {
        let args = ResizeSrq { ring: ring.bus(), log_entries: ring.log_entries(), limit };
        ring.lease().start_with(|| self.command(Opcode::ResizeSrq, number, &args)).map(|_| ())
    }

    /// Sets a shared receive queue's limit.
    pub fn modify_srq(&self, number: u32, limit: u32) -> Result<(), Error> {
        self.command(Opcode::ModifySrq, number, &ModifySrq { limit, reserved: 0 }).map(|_| ())
    }

    /// A shared receive queue's attributes, as the device has them.
    pub fn query_srq(&self, number: u32) -> Result<SrqInfo, Error> {
        result(&self.command(Opcode::QuerySrq, number, &())?)
    }

    /// Destroys a shared receive queue that no queue pair uses; ends its lease.
    pub fn destroy_srq(&self, number: u32, lease: &Lease) -> Result<(), Error> {
        self.destroy(Opcode::DestroySrq, number, lease)
    }

    /// Creates a queue pair.
    pub fn create_qp(&self, qpn: u32, params: &QpParams) -> Result<QpRings, Error> {
        let slot = ident::qpn_slot(qpn);
        if params.max_send_segments > self.identity.max_sges {
            return Err(Error::OutOfRange("number of segments"));
        }
        let each = params.qp_type.blocks(params.max_send_segments);
        let blocks = u64::from(params.max_send_requests.max(1)) * u64::from(each);
        if blocks.next_power_of_two() > u64::from(self.identity.max_sq_blocks) {
            return Err(Error::OutOfRange("send queue size"));
        }
        let log_send_blocks = blocks.next_power_of_two().ilog2();
        let lease = Lease::new(&self.quarantine)?;
        let send_ring = self.new_ring(log_send_blocks, &lease)?;
        let receive = match params.srq {
            Some(_) => None,
            None => Some(self.receive_ring(
                params.max_receive_requests.max(1),
                params.max_receive_segments,
                self.identity.max_rq_entries,
                Kind::Receive,
                slot,
                &lease,
            )?),
        };
        let mut flags = params.flags;
        flags.set(QpFlags::SRQ, params.srq.is_some());
        let args = CreateQp {
            qp_type: params.qp_type as u32,
            flags: flags.bits(),
            pd: params.pd,
            generation: params.generation,
            send_cq: params.send_cq,
            receive_cq: params.receive_cq,
            srq: params.srq.unwrap_or(0),
            max_send_segments: params.max_send_segments,
            send_ring: send_ring.bus(),
            receive_ring: receive.as_ref().map_or(0, |(ring, _)| ring.entries.bus()),
            log_send_blocks,
            log_receive_entries: receive.as_ref().map_or(0, |&(_, log)| log),
            max_receive_segments: if receive.is_some() { params.max_receive_segments } else { 0 },
            eq: params.eq,
            max_message: params.max_message,
            owner: params.owner,
        };
        let doorbell = Doorbell::new(&self.registers, Kind::Send, slot)?;
        lease.start_with(|| self.command(Opcode::CreateQp, qpn, &args))?;
        let send = SendQueue {
            ring: send_ring,
            tail: AtomicU32::new(0),
            max_segments: params.max_send_segments,
            doorbell,
        };
        Ok(QpRings { send, receive: receive.map(|(ring, _)| ReceiveQueue { ring }), lease })
    }

    /// One work queue of a virtual interface, its ring's bus address, and the number of the ring's
    /// entries as a logarithm.
    fn vi_queue(
        &self,
        entries: u32,
        kind: Kind,
        slot: u32,
        lease: &Lease,
    ) -> Result<(ViQueue, u64, u32), Error> {
        let most = self.identity.max_vi_entries;
        let count = entries.checked_next_power_of_two().filter(|&count| entries > 0 && count <= most);
        let count = count.ok_or(Error::OutOfRange("number of descriptors"))?;
        let log = count.ilog2();
        let ring = ViRing::new(self.memory(ViRing::<Posted>::bytes(log), lease)?, log)?;
        let bus = ring.bus();
        let doorbell = Doorbell::new(&self.registers, kind, slot)?;
        Ok((ViQueue::new(ring, entries, doorbell), bus, log))
    }

    /// Creates a virtual interface. [`Nic::modify_qp`], [`Nic::query_qp`] and [`Nic::destroy_qp`]
    /// are for virtual interfaces as well.
    pub fn create_vi(&self, qpn: u32, params: &ViParams) -> Result<ViRings, Error> {
        let slot = ident::qpn_slot(qpn);
        let lease = Lease::new(&self.quarantine)?;
        let [sends, receives] = params.entries;
        let (send, send_ring, log_send_blocks) = self.vi_queue(sends, Kind::Send, slot, &lease)?;
        let (receive, receive_ring, log_receive_entries) =
            self.vi_queue(receives, Kind::Receive, slot, &lease)?;
        let [send_cq, receive_cq] = params.cqs.map(|cq| cq.unwrap_or(vi::NO_CQ));
        let args = CreateQp {
            qp_type: vi::QP_TYPE,
            flags: QpFlags::empty().bits(),
            pd: params.pd,
            generation: params.generation,
            send_cq,
            receive_cq,
            srq: params.completions_eq,
            max_send_segments: self.identity.max_vi_segments,
            send_ring,
            receive_ring,
            log_send_blocks,
            log_receive_entries,
            max_receive_segments: self.identity.max_vi_segments,
            eq: params.errors_eq,
            max_message: params.max_message,
            owner: 0,
        };
        lease.start_with(|| self.command(Opcode::CreateQp, qpn, &args))?;
        Ok(ViRings { queues: [send, receive], lease })
    }

    /// Changes a queue pair.
    pub fn modify_qp(&self, qpn: u32, modify: &ModifyQp) -> Result<(), Error> {
        self.command(Opcode::ModifyQp, qpn, modify).map(|_| ())
    }

    /// Attaches a UD queue pair to a multicast group.
    pub fn join_group(&self, qpn: u32, gid: [u8; 16]) -> Result<(), Error> {
        self.command(Opcode::JoinGroup, qpn, &Group { gid }).map(|_| ())
    }

    /// Detaches a queue pair from a multicast group.
    pub fn leave_group(&self, qpn: u32, gid: [u8; 16]) -> Result<(), Error> {
        self.command(Opcode::LeaveGroup, qpn, &Group { gid }).map(|_| ())
    }

    /// A queue pair's attributes and state, as the device has them.
    pub fn query_qp(&self, qpn: u32) -> Result<QpInfo, Error> {
        result(&self.command(Opcode::QueryQp, qpn, &())?)
    }

    /// Destroys a queue pair; ends its lease.
    pub fn destroy_qp(&self, qpn: u32, lease: &Lease) -> Result<(), Error> {
        self.destroy(Opcode::DestroyQp, qpn, lease)
    }

    /// As [`Nic::destroy_qp`], but refused (`Busy`) while the queue pair's owner has narrow windows
    /// bound.
    pub fn destroy_qp_unless_bound(&self, qpn: u32, lease: &Lease) -> Result<(), Error> {
        self.command(Opcode::DestroyQp, qpn, &DestroyQp { unless_bound: 1, reserved: 0 })?;
        lease.end();
        Ok(())
    }
}
