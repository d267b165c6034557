//! A peer without an agent: QP1 of a NIC of its own, on the bare driver. It sends what it likes and
//! hears nothing.

use host::Machine;
use kernel_agent::datagram_address;
use nic_abi::admin::{CqFlags, ModifyQp, QpFlags, QpMask, QpState, QpType};
use nic_abi::ident;
use nic_abi::wqe::{Segment, SendFlags};
use nic_hal::{
    CompletionQueue, CqParams, DeviceMemory, Nic, Operation, Outstanding, QpParams, QpRings, Request, Shadow,
};
use roce::cm::{CommId, Datagram, Message, ReadDepths, path, req, sidr};
use roce::{Gid, PKey, Path, PathMtu, Psn, QKey, Qpn, ServiceId, TimeoutCode, mad};

const SENDS: u32 = 64;

/// The peer.
pub struct RawPeer {
    nic: Nic,
    rings: QpRings,
    sends: Outstanding,
    cq: CompletionQueue,
    memory: DeviceMemory,
    sent: u32,
    /// Its GID.
    pub gid: Gid,
}

impl RawPeer {
    /// Opens NIC number `n` of the machine.
    pub fn open(machine: &Machine, n: usize) -> RawPeer {
        let nic = Nic::open(machine.platform(), machine.transport(n)).unwrap();
        nic.create_eq(0, 8, 0).unwrap();
        nic.create_pd(1).unwrap();
        let cq = nic
            .create_cq(0, &CqParams { log_entries: 8, eq: 0, generation: 1, flags: CqFlags::empty() })
            .unwrap();
        let params = QpParams {
            qp_type: QpType::Gsi,
            flags: QpFlags::PRIVILEGED,
            pd: 1,
            generation: 1,
            send_cq: 0,
            receive_cq: 0,
            srq: None,
            max_send_requests: SENDS,
            max_send_segments: 1,
            max_receive_requests: 1,
            max_receive_segments: 1,
            eq: 0,
            max_message: nic.identity().max_message,
            owner: 1,
        };
        let rings = nic.create_qp(ident::QPN_GSI, &params).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let mask = QpMask::STATE.bits();
            let modify = ModifyQp { mask, state: state as u32, ..ModifyQp::default() };
            nic.modify_qp(ident::QPN_GSI, &modify).unwrap();
        }
        let memory = nic.allocate(SENDS as usize * mad::LEN, 4096).unwrap();
        memory.lease().start();
        let gid = Gid(nic.identity().gids[1]);
        RawPeer { nic, rings, sends: Outstanding::new(SENDS).unwrap(), cq, memory, sent: 0, gid }
    }

    fn poll(&mut self) {
        while let Some(entry) = self.cq.poll() {
            self.sends.retire(entry.tag).unwrap();
        }
        self.cq.consumed();
    }

    /// Sends a datagram to QP1 of the NIC with this GID.
    pub fn send(&mut self, to: Gid, tid: u64, message: Message) {
        while self.sends.len() == SENDS {
            self.poll();
            std::thread::yield_now();
        }
        let offset = (self.sent % SENDS) as usize * mad::LEN;
        self.memory.buffer().write(offset, &Datagram { tid, message }.emit()).unwrap();
        let to = datagram_address(&Path::new(self.gid, to), 1, Qpn::GSI, QKey::GSI);
        let operation = Operation::Datagram { to };
        let request = Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow::default() };
        let addr = self.memory.buffer().bus() + offset as u64;
        let segment = Segment { addr, length: mad::LEN as u32, key: ident::KEY_RESERVED };
        self.rings.send.push(&self.sends, &request, &[segment], |&segment| segment).unwrap();
        self.rings.send.ring();
        self.sent += 1;
    }

    /// Waits until all datagrams have been sent.
    pub fn flush(&mut self) {
        while !self.sends.is_empty() {
            self.poll();
            std::thread::yield_now();
        }
    }

    /// A connection request for a service; `id` distinguishes it from this peer's others.
    pub fn request(&self, to: Gid, service: ServiceId, id: u32) -> Message {
        request(self.gid, to, service, id)
    }

    /// A service resolution request.
    pub fn resolution(&self, service: ServiceId, id: u32) -> Message {
        Message::SidrReq(sidr::ReqRepr {
            request_id: id,
            pkey: PKey::DEFAULT,
            service_id: service,
            private_data: [0; sidr::REQ_PRIVATE_DATA_LEN],
        })
    }
}

/// A connection request from one address to another; `id` distinguishes it from other requests.
pub fn request(from: Gid, to: Gid, service: ServiceId, id: u32) -> Message {
    let code = TimeoutCode::from_low_bits;
    Message::Req(req::Repr {
        local_comm_id: CommId(id),
        service_id: service,
        local_ca_guid: 7,
        local_qkey: QKey(0),
        local_qpn: Qpn::new(0x1000 + id).unwrap(),
        depths: ReadDepths::default(),
        local_eecn: 0,
        remote_eecn: 0,
        remote_cm_timeout: code(31),
        transport_service: req::TransportService::Rc,
        flow_control: false,
        starting_psn: Psn::new(id),
        local_cm_timeout: code(31),
        retry_count: 7,
        pkey: PKey::DEFAULT,
        path_mtu: PathMtu::B1024.code(),
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        extended_transport: 0,
        primary_path: path::Repr {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            path: Path::new(from, to),
            local_ack_timeout: code(14),
        },
        alternate_path: path::Repr::default(),
        private_data: [id as u8; req::PRIVATE_DATA_LEN],
    })
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        self.nic.close();
    }
}
