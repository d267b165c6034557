//! The active side: connect, the peer's reply, establish (IBTA vol. 1 section 12.9.7.1, figure
//! 126).

use platform::Instant;
use roce::cm::req::TransportService;
use roce::cm::{CommId, Datagram, Message, ReadDepths, ip_cm, mra, path, rej, rep, req, rtu};
use roce::transport::Service;
use roce::{Gid, Path, QKey, ServiceId};

use super::passive::request_of;
use super::state::{State, Trigger};
use super::table::Connection;
use super::types::{ConnectParams, ConnectionId, Error, Event, LocalQp, PrivateData, Reply, Table};
use super::{Arrival, Cm, Unexpected, field, rejection};

/// What rdma_cm writes for a LID where there is none.
const NO_LID: u16 = 0xffff;

impl Cm {
    /// Asks for a connection: sends a REQ. The answer is [`Event::Reply`], [`Event::Rejected`] or
    /// [`Event::TimedOut`].
    ///
    /// Private data: at most 92 bytes, or 56 with an id of the IP CM service.
    pub fn connect(
        &mut self,
        now: Instant,
        local: LocalQp,
        params: &ConnectParams,
        private_data: &[u8],
    ) -> Result<ConnectionId, Error> {
        self.ready()?;
        check(local, params)?;
        let Path { local_gid, remote_gid, .. } = params.path;
        let field =
            with_ip_header(params.service, (local_gid, params.ip_source_port), remote_gid, private_data)?;
        if self.conns.by_local_qp(local.qpn).is_some() {
            return Err(Error::QpInUse(local.qpn));
        }
        let response_time = self.response_time(params.remote_cm_timeout, params.packet_lifetime);
        let time_wait = self.response_time(params.local_ack_timeout, params.packet_lifetime);
        let tid = self.tid();
        let mut message = request(self.config.ca_guid, local, params, field);
        self.make_room();
        let id = self
            .conns
            .insert(|comm| {
                message.local_comm_id = comm;
                Connection {
                    tid,
                    response_time: response_time.into(),
                    max_retries: params.max_cm_retries,
                    time_wait: time_wait.into(),
                    limit: params.timeout.map(|timeout| now + timeout),
                    ..Connection::new(State::Idle, local_gid, remote_gid, comm)
                }
            })
            .ok_or(Error::Full(Table::Connections))?;
        self.step(now, id, Trigger::Connect)?;
        self.conns.learn_local_qp(id, local.qpn);
        self.send_until_answered(now, id, Datagram { tid, message: message.into() }.emit());
        Ok(id)
    }

    /// Confirms the peer's reply: sends an RTU. The connection is established. Private data: at
    /// most 224 bytes.
    pub fn establish(&mut self, now: Instant, id: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.prepare_establish(now, id, private_data)?;
        self.release(now, id);
        Ok(())
    }

    /// As [`Cm::establish`], but the RTU is not sent before [`Cm::release`]: with it the peer may
    /// begin to send, so the consumer's endpoint has to be connected by then.
    pub fn prepare_establish(
        &mut self,
        now: Instant,
        id: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.ready()?;
        let private_data = field(private_data)?;
        self.step(now, id, Trigger::Establish)?;
        let conn = self.conns.get_mut(id).ok_or(Error::NoSuchConnection)?;
        let message = rtu::Rtu {
            local_comm_id: conn.local_comm,
            remote_comm_id: conn.remote_comm.unwrap_or_default(),
            private_data,
        };
        let mad = Datagram { tid: conn.tid, message: message.into() }.emit();
        self.hold(id, mad);
        Ok(())
    }

    pub(super) fn on_rep(
        &mut self,
        now: Instant,
        from: &Arrival,
        tid: u64,
        rep: &rep::Repr,
    ) -> Result<(), Unexpected> {
        let found = self.conns.by_local(rep.remote_comm_id).and_then(|id| Some((id, self.conns.get(id)?)));
        let Some((id, conn)) = found.filter(|(_, conn)| conn.remote_gid == from.remote_gid) else {
            // This side may have given up before it came (IT-API 2.1 appendix A, it_cm_msg_events).
            self.reject_rep(from, tid, rep, rej::Reason::INVALID_COMM_ID);
            return Err(Unexpected);
        };
        match conn.state {
            State::ReqSent | State::MraReqRcvd => self.on_first_rep(now, from, tid, id, rep),
            _ if conn.remote_comm != Some(rep.local_comm_id) => Err(Unexpected),
            State::RepRcvd | State::MraRepSent => {
                self.ask_for_patience(now, id, mra::Acknowledged::Rep);
                Ok(())
            }
            // The RTU was lost. (In other states the kept message is not of this transaction.)
            State::Established if is_rtu(conn) => {
                self.send_again(id);
                Ok(())
            }
            _ => Err(Unexpected),
        }
    }

    fn on_first_rep(
        &mut self,
        now: Instant,
        from: &Arrival,
        tid: u64,
        id: ConnectionId,
        rep: &rep::Repr,
    ) -> Result<(), Unexpected> {
        let known = self.conns.by_remote(from.remote_gid, rep.local_comm_id);
        if !rep.local_qpn.is_connectable() || known.is_some() {
            return Err(Unexpected);
        }
        if self.is_stale(from.remote_gid, rep.local_qpn) {
            self.reject_rep(from, tid, rep, rej::Reason::STALE_CONNECTION);
            // The peer will not reply again, so there is nothing left to wait for.
            self.report(id, Event::TimedOut { conn: id, state: self.state(id) });
            self.step(now, id, Trigger::Timeout)?;
            return Ok(());
        }
        let asked = self.conns.get(id).and_then(request_of).ok_or(Unexpected)?;
        // An unreliable connection has no read depths, whatever its peer sends.
        let depths = match asked.transport_service {
            TransportService::Uc => ReadDepths::default(),
            _ => rep.depths,
        };
        self.step(now, id, Trigger::Rep)?;
        self.conns.learn_remote(id, rep.local_comm_id);
        self.conns.learn_remote_qp(id, rep.local_qpn);
        if let Some(conn) = self.conns.get_mut(id) {
            conn.timer = None;
        }
        self.conns.rearm(id);
        let reply = Reply {
            conn: id,
            remote_qpn: rep.local_qpn,
            send_psn: rep.starting_psn,
            depths,
            target_ack_delay: rep.target_ack_delay,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            private_data: PrivateData::new(&rep.private_data),
        };
        self.report(id, Event::Reply(reply));
        Ok(())
    }

    fn reject_rep(&mut self, from: &Arrival, tid: u64, rep: &rep::Repr, reason: rej::Reason) {
        let none = [0; rej::PRIVATE_DATA_LEN];
        let theirs = Some(rep.local_comm_id);
        let message = rejection(rep.remote_comm_id, theirs, rej::Rejected::Rep, reason, &[], none);
        let mad = Datagram { tid, message: message.into() }.emit();
        self.out.send(from.local_gid, from.remote_gid, mad);
    }
}

fn is_rtu(conn: &Connection) -> bool {
    matches!(Datagram::parse(&conn.message.get()), Ok(Datagram { message: Message::Rtu(_), .. }))
}

fn check(local: LocalQp, params: &ConnectParams) -> Result<(), Error> {
    let fits = [
        (local.qpn.is_connectable(), "local_qpn"),
        (local.has_depths(params.depths), "read depths"),
        (params.max_cm_retries <= 15, "max_cm_retries"),
        (params.retry_count <= 7, "retry_count"),
        (params.rnr_retry_count <= 7, "rnr_retry_count"),
        (params.path.flow_label <= Path::MAX_FLOW_LABEL, "flow_label"),
        (params.path.sl <= Path::MAX_SL, "sl"),
        (params.path.packet_rate <= Path::MAX_PACKET_RATE, "packet_rate"),
    ];
    match fits.iter().find(|(fits, _)| !fits) {
        Some((_, what)) => Err(Error::OutOfRange(what)),
        None => Ok(()),
    }
}

/// The private data field of a request, with the IP CM header if the service id requires it.
pub(super) fn with_ip_header<const N: usize>(
    service: ServiceId,
    (local, port): (Gid, u16),
    remote: Gid,
    data: &[u8],
) -> Result<[u8; N], Error> {
    if service.to_ip_cm().is_none() {
        return field(data);
    }
    let mut whole = [0; N];
    let header = ip_cm::Repr { src: local.to_ip(), src_port: port, dst: remote.to_ip() };
    let rest = header.emit(&mut whole).map_err(|_| Error::OutOfRange("addresses of two families"))?;
    let max = rest.len();
    rest.get_mut(..data.len()).ok_or(Error::PrivateData { len: data.len(), max })?.copy_from_slice(data);
    Ok(whole)
}

fn request(
    ca_guid: u64,
    local: LocalQp,
    params: &ConnectParams,
    private_data: [u8; req::PRIVATE_DATA_LEN],
) -> req::Repr {
    let reliable = local.transport == Service::Rc;
    req::Repr {
        local_comm_id: CommId::default(),
        service_id: params.service,
        local_ca_guid: ca_guid,
        local_qkey: QKey(0),
        local_qpn: local.qpn,
        depths: params.depths,
        local_eecn: 0,
        remote_eecn: 0,
        remote_cm_timeout: params.remote_cm_timeout,
        transport_service: local.transport.into(),
        flow_control: false,
        starting_psn: local.receive_psn,
        local_cm_timeout: params.local_cm_timeout,
        retry_count: if reliable { params.retry_count } else { 0 },
        pkey: params.pkey,
        path_mtu: params.path_mtu.code(),
        rdc_exists: false,
        rnr_retry_count: if reliable { params.rnr_retry_count } else { 0 },
        max_cm_retries: params.max_cm_retries,
        srq: local.srq,
        extended_transport: 0,
        primary_path: path::Repr {
            local_lid: NO_LID,
            remote_lid: NO_LID,
            path: params.path,
            local_ack_timeout: params.local_ack_timeout,
        },
        alternate_path: path::Repr::default(),
        private_data,
    }
}
