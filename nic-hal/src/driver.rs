//! The RNIC's driver: discovery, reset, start, and the control path over the admin queue.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use nic_abi::admin::{
    self, AllocateRegion, AllocateWindow, Bench, CreateCq, CreateEq, CreateQp, CreateSrq, Inject, Injection,
    KeyInfo, ModifyQp, ModifyRegion, ModifySrq, Opcode, QpFlags, QpInfo, RegisterRegion, ResizeCq, ResizeSrq,
    ShareRegion, SrqInfo,
};
use nic_abi::doorbell::Kind;
use nic_abi::ident;
use nic_abi::registers::{self, Control, Identity, State};
use nic_abi::wqe;
use platform::{Device, DmaBuffer, Instant, Platform, Signal};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::admin::{AdminQueue, CommandRing, LOG_ENTRIES, ResponseRing, result};
use crate::doorbell::{ConsumerRecord, Doorbell};
use crate::life::Life;
use crate::mapped::{Registers, Ring, Words};
use crate::memory::{DeviceMemory, Lease, Quarantine};
use crate::receive::{Entries, ReceiveRing};
use crate::{
    CompletionQueue, CompletionRing, CqParams, Death, Error, EventQueue, Nic, QpParams, QpRings,
    ReceiveQueue, SendQueue, SharedReceiveQueue, SharedRing, SrqParams,
};

/// How long a reset or start may take.
const CONTROL_DEADLINE: Duration = Duration::from_millis(2000);
/// The same for the last reset of a device that is known to be dead.
const DEAD_DEADLINE: Duration = Duration::from_millis(200);
/// Between two looks at an acknowledgement, which no interrupt tells of.
const CONTROL_SLICE: Duration = Duration::from_micros(100);
/// Rings are aligned to this.
const RING_ALIGN: usize = 4096;

/// The driver of one RNIC.
pub struct RnicDriver {
    platform: Arc<dyn Platform>,
    registers: Arc<Registers>,
    identity: Identity,
    signal: Arc<Signal>,
    quarantine: Arc<Quarantine>,
    life: Life,
    admin: AdminQueue,
    closed: AtomicBool,
}

/// Copies the identity and judges the copy.
fn identify(registers: &Registers) -> Result<Identity, Error> {
    let mut identity = Identity::new_zeroed();
    let read = registers.slice().read(registers::IDENTITY, identity.as_mut_bytes());
    read.map_err(|_| Error::BadLimit("register file"))?;
    if identity.magic != registers::MAGIC {
        return Err(Error::NotAnRnic(identity.magic));
    }
    if identity.version_major != nic_abi::VERSION_MAJOR {
        return Err(Error::Version(identity.version_major, identity.version_minor));
    }
    let limits: [(&'static str, u32, u32, u32); 12] = [
        ("number of queue pairs", identity.max_qps, 3, ident::MAX_QPS),
        ("number of CQs", identity.max_cqs, 2, ident::MAX_CQS),
        ("number of SRQs", identity.max_srqs, 0, ident::MAX_SRQS),
        ("number of event queues", identity.max_eqs, 2, ident::MAX_EQS),
        ("number of protection domains", identity.max_pds, 2, ident::MAX_PDS),
        ("number of keys", identity.max_keys, 2, ident::MAX_KEYS),
        ("send queue size", identity.max_sq_blocks, 2, 1 << 24),
        ("receive queue size", identity.max_rq_entries, 2, 1 << 24),
        ("CQ size", identity.max_cqes, 2, 1 << 24),
        ("event queue size", identity.max_eqes, 16, 1 << 24),
        ("number of segments", identity.max_sges, 1, 255),
        ("number of vectors", identity.vectors, 1, 2048),
    ];
    for (what, value, least, most) in limits {
        if value < least || value > most {
            return Err(Error::BadLimit(what));
        }
    }
    if identity.max_srqs > 0 && identity.max_srq_entries == 0 || identity.max_srq_entries > 1 << 24 {
        return Err(Error::BadLimit("SRQ size"));
    }
    if !matches!(identity.mtu, 256 | 512 | 1024 | 2048 | 4096) {
        return Err(Error::BadLimit("MTU"));
    }
    Ok(identity)
}

impl RnicDriver {
    /// Finds out whether `device` is an RNIC that this driver can drive, resets and starts it.
    pub fn open(platform: Arc<dyn Platform>, device: Arc<dyn Device>) -> Result<RnicDriver, Error> {
        let registers = Registers::new(device)?;
        let identity = identify(&registers)?;
        let signal = Arc::new(Signal::new(platform.clone()));
        control(&*platform, &registers, registers::CONTROL_RESET, None, CONTROL_DEADLINE)?;

        let quarantine = Quarantine::new();
        let lease = Lease::new(&quarantine);
        let memory = DeviceMemory::new(&platform, CommandRing::bytes(LOG_ENTRIES), RING_ALIGN, &lease)?;
        let commands = CommandRing::new(memory, LOG_ENTRIES)?;
        let memory = DeviceMemory::new(&platform, ResponseRing::bytes(LOG_ENTRIES), RING_ALIGN, &lease)?;
        let responses = ResponseRing::new(memory, LOG_ENTRIES)?;
        let start = Control {
            request: 0,
            command: registers::CONTROL_START,
            driver_version: u32::from(nic_abi::VERSION_MAJOR) << 16 | u32::from(nic_abi::VERSION_MINOR),
            admin_log_entries: LOG_ENTRIES,
            admin_commands: commands.bus(),
            admin_responses: responses.bus(),
        };
        lease.start();
        let started =
            control(&*platform, &registers, registers::CONTROL_START, Some(start), CONTROL_DEADLINE);
        if let Err(error) = started {
            // It may have started all the same, and late.
            if control(&*platform, &registers, registers::CONTROL_RESET, None, DEAD_DEADLINE).is_ok() {
                quarantine.release();
            }
            return Err(error);
        }
        for vector in 0..registers.device().vectors() {
            let signal = signal.clone();
            registers.device().set_vector(vector, Some(Box::new(move || signal.raise())));
        }
        let doorbell = Doorbell::new(&registers, Kind::Admin, 0)?;
        let admin = AdminQueue::new(platform.clone(), signal.clone(), commands, responses, doorbell);
        let life = Life::new(signal.clone());
        Ok(RnicDriver {
            platform,
            registers,
            identity,
            signal,
            quarantine,
            life,
            admin,
            closed: AtomicBool::new(false),
        })
    }

    fn status(&self, offset: usize) -> u32 {
        self.registers.slice().atomic_u32(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn command(
        &self,
        opcode: Opcode,
        object: u32,
        args: &(impl IntoBytes + Immutable),
    ) -> Result<[u8; admin::RESULT_SIZE], Error> {
        self.admin.command(&self.life, opcode, object, args)
    }

    fn simple(&self, opcode: Opcode, object: u32) -> Result<(), Error> {
        self.command(opcode, object, &()).map(|_| ())
    }

    /// Destroys an object; its memory is free when the device says that it is gone.
    fn destroy(&self, opcode: Opcode, object: u32, lease: &Lease) -> Result<(), Error> {
        self.simple(opcode, object)?;
        lease.end();
        Ok(())
    }

    fn memory(&self, len: usize, lease: &Lease) -> Result<DeviceMemory, Error> {
        DeviceMemory::new(&self.platform, len, RING_ALIGN, lease)
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
}

/// Has the device reset or start.
fn control(
    platform: &dyn Platform,
    registers: &Registers,
    command: u32,
    start: Option<Control>,
    limit: Duration,
) -> Result<(), Error> {
    let what = if command == registers::CONTROL_RESET { "a reset" } else { "a start" };
    let no = |_| Error::BadLimit("register file");
    let slice = registers.slice();
    let acknowledged = slice.atomic_u32(registers::STATUS_ACKNOWLEDGED).map_err(no)?;
    let request = slice.atomic_u32(registers::CONTROL_REQUEST).map_err(no)?;
    // Different from what was acknowledged and from what may still be asked for.
    let mut value = acknowledged.load(Ordering::Acquire).wrapping_add(1);
    if value == request.load(Ordering::Acquire) {
        value = value.wrapping_add(1);
    }
    let control = start.unwrap_or(Control { command, ..Control::new_zeroed() });
    let skip = size_of::<u32>();
    slice.write(registers::CONTROL_REQUEST + skip, &control.as_bytes()[skip..]).map_err(no)?;
    request.store(value, Ordering::SeqCst);
    registers.device().kick();
    let deadline = platform.now() + limit;
    let nobody = platform::sync::atomic::AtomicU32::new(0);
    while acknowledged.load(Ordering::Acquire) != value {
        let now = platform.now();
        if now >= deadline {
            return Err(Error::NoAnswer(what));
        }
        platform.wait(&nobody, 0, Some(deadline.min(now + CONTROL_SLICE)));
    }
    let state = slice.atomic_u32(registers::STATUS_STATE).map_err(no)?.load(Ordering::Acquire);
    let expected = if command == registers::CONTROL_RESET { State::Idle } else { State::Ready };
    if State::from_word(state) != Some(expected) {
        return Err(Error::NoAnswer(what));
    }
    Ok(())
}

impl Nic for RnicDriver {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn death(&self) -> Option<Death> {
        self.life.death()
    }

    fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    fn watch(&self, now: Instant) {
        let state = self.status(registers::STATUS_STATE);
        let fault = self.status(registers::STATUS_FAULT);
        self.life.watch(now, state, fault, self.status(registers::STATUS_HEARTBEAT));
    }

    fn port_up(&self) -> bool {
        self.status(registers::STATUS_PORT_UP) == 1
    }

    fn create_eq(&self, number: u32, log_entries: u32, vector: u16) -> Result<EventQueue, Error> {
        if number >= self.identity.max_eqs || u32::from(vector) >= self.identity.vectors {
            return Err(Error::OutOfRange("event queue"));
        }
        let lease = Lease::new(&self.quarantine);
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

    fn destroy_eq(&self, eq: &EventQueue) -> Result<(), Error> {
        self.destroy(Opcode::DestroyEq, eq.number, eq.lease())
    }

    fn create_pd(&self, pd: u32) -> Result<(), Error> {
        self.simple(Opcode::CreatePd, pd)
    }

    fn destroy_pd(&self, pd: u32) -> Result<(), Error> {
        self.simple(Opcode::DestroyPd, pd)
    }

    fn register_region(&self, key: u32, region: &RegisterRegion) -> Result<(), Error> {
        self.command(Opcode::RegisterRegion, key, region).map(|_| ())
    }

    fn allocate_region(&self, key: u32, region: &AllocateRegion) -> Result<(), Error> {
        self.command(Opcode::AllocateRegion, key, region).map(|_| ())
    }

    fn destroy_region(&self, key: u32) -> Result<(), Error> {
        self.simple(Opcode::DestroyRegion, key)
    }

    fn allocate_window(&self, key: u32, window: &AllocateWindow) -> Result<(), Error> {
        self.command(Opcode::AllocateWindow, key, window).map(|_| ())
    }

    fn destroy_window(&self, key: u32) -> Result<(), Error> {
        self.simple(Opcode::DestroyWindow, key)
    }

    fn share_region(&self, key: u32, region: &ShareRegion) -> Result<(), Error> {
        self.command(Opcode::ShareRegion, key, region).map(|_| ())
    }

    fn modify_region(&self, key: u32, region: &ModifyRegion) -> Result<(), Error> {
        self.command(Opcode::ModifyRegion, key, region).map(|_| ())
    }

    fn query_key(&self, key: u32) -> Result<KeyInfo, Error> {
        result(&self.command(Opcode::QueryKey, key, &())?)
    }

    fn create_cq(&self, number: u32, params: &CqParams) -> Result<CompletionQueue, Error> {
        let lease = Lease::new(&self.quarantine);
        let record = ConsumerRecord::cq(&self.registers, number)?;
        let ring = self.new_ring(params.log_entries, &lease)?;
        let args = CreateCq {
            ring: ring.bus(),
            log_entries: params.log_entries,
            eq: params.eq,
            generation: params.generation,
            reserved: 0,
        };
        lease.start_with(|| self.command(Opcode::CreateCq, number, &args))?;
        Ok(CompletionQueue::new(ring, params.log_entries, record))
    }

    fn resize_cq(&self, number: u32, log_entries: u32) -> Result<CompletionRing, Error> {
        let lease = Lease::new(&self.quarantine);
        let ring = self.new_ring(log_entries, &lease)?;
        let args = ResizeCq { ring: ring.bus(), log_entries, reserved: 0 };
        lease.start_with(|| self.command(Opcode::ResizeCq, number, &args))?;
        Ok(CompletionRing { ring, log: log_entries })
    }

    fn destroy_cq(&self, number: u32, lease: &Lease) -> Result<(), Error> {
        self.destroy(Opcode::DestroyCq, number, lease)
    }

    fn create_srq(&self, number: u32, params: &SrqParams) -> Result<SharedReceiveQueue, Error> {
        let lease = Lease::new(&self.quarantine);
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

    fn shared_ring(&self, max_requests: u32, max_segments: u32) -> Result<SharedRing, Error> {
        let lease = Lease::new(&self.quarantine);
        let most = self.identity.max_srq_entries;
        SharedRing::new(self.receive_entries(max_requests, max_segments, most, &lease)?, max_requests)
    }

    fn resize_srq(&self, number: u32, ring: &SharedRing, limit: u32) -> Result<(), Error> {
        let args = ResizeSrq { ring: ring.bus(), log_entries: ring.log_entries(), limit };
        ring.lease().start_with(|| self.command(Opcode::ResizeSrq, number, &args)).map(|_| ())
    }

    fn modify_srq(&self, number: u32, limit: u32) -> Result<(), Error> {
        self.command(Opcode::ModifySrq, number, &ModifySrq { limit, reserved: 0 }).map(|_| ())
    }

    fn query_srq(&self, number: u32) -> Result<SrqInfo, Error> {
        result(&self.command(Opcode::QuerySrq, number, &())?)
    }

    fn destroy_srq(&self, number: u32, lease: &Lease) -> Result<(), Error> {
        self.destroy(Opcode::DestroySrq, number, lease)
    }

    fn create_qp(&self, qpn: u32, params: &QpParams) -> Result<QpRings, Error> {
        let slot = ident::qpn_slot(qpn);
        if params.max_send_segments > self.identity.max_sges {
            return Err(Error::OutOfRange("number of segments"));
        }
        let each = match params.qp_type {
            admin::QpType::Rc => wqe::blocks(params.max_send_segments),
            admin::QpType::Ud | admin::QpType::Gsi => wqe::datagram_blocks(params.max_send_segments),
        };
        let blocks = u64::from(params.max_send_requests.max(1)) * u64::from(each);
        if blocks.next_power_of_two() > u64::from(self.identity.max_sq_blocks) {
            return Err(Error::OutOfRange("send queue size"));
        }
        let log_send_blocks = blocks.next_power_of_two().ilog2();
        let lease = Lease::new(&self.quarantine);
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
        };
        let doorbell = Doorbell::new(&self.registers, Kind::Send, slot)?;
        lease.start_with(|| self.command(Opcode::CreateQp, qpn, &args))?;
        let send = SendQueue { ring: send_ring, tail: 0, max_segments: params.max_send_segments, doorbell };
        Ok(QpRings { send, receive: receive.map(|(ring, _)| ReceiveQueue { ring }), lease })
    }

    fn modify_qp(&self, qpn: u32, modify: &ModifyQp) -> Result<(), Error> {
        self.command(Opcode::ModifyQp, qpn, modify).map(|_| ())
    }

    fn query_qp(&self, qpn: u32) -> Result<QpInfo, Error> {
        result(&self.command(Opcode::QueryQp, qpn, &())?)
    }

    fn destroy_qp(&self, qpn: u32, lease: &Lease) -> Result<(), Error> {
        self.destroy(Opcode::DestroyQp, qpn, lease)
    }

    fn inject(&self, object: u32, what: Injection, count: u32, value: u64) -> Result<(), Error> {
        let args = Inject { what: what as u32, count, value };
        self.command(Opcode::Inject, object, &args).map(|_| ())
    }

    fn bench(&self, bench: &Bench) -> Result<u64, Error> {
        result(&self.command(Opcode::Bench, 0, bench)?)
    }

    fn close(&self) -> bool {
        if self.closed.swap(true, Ordering::AcqRel) {
            return self.quarantine.is_released();
        }
        let limit = match self.life.end(Death::Closed) {
            Death::Closed => CONTROL_DEADLINE,
            _ => DEAD_DEADLINE,
        };
        for vector in 0..self.registers.device().vectors() {
            self.registers.device().set_vector(vector, None);
        }
        let reset = control(&*self.platform, &self.registers, registers::CONTROL_RESET, None, limit);
        if reset.is_ok() {
            self.quarantine.release();
        }
        reset.is_ok()
    }

    fn allocate(&self, len: usize, align: usize) -> Result<DeviceMemory, Error> {
        let lease = Lease::new(&self.quarantine);
        // Whole words, so that the memory can be seen as such.
        DeviceMemory::new(&self.platform, len.next_multiple_of(8), align, &lease)
    }

    fn condemn(&self) {
        self.life.end(Death::Protocol);
    }

    fn kick(&self) {
        self.registers.kick();
    }

    fn keep(&self, buffer: Arc<DmaBuffer>) {
        self.quarantine.keep(buffer);
    }

    fn quarantined(&self) -> usize {
        self.quarantine.held()
    }
}

impl Drop for RnicDriver {
    fn drop(&mut self) {
        self.close();
    }
}
