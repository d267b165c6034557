//! Service id resolution: which queue pair and key a datagram service has (IBTA vol. 1 section
//! 12.11; IT-API 2.1, it_ud_service_request).
//!
//! A request of ours lives from `sidr_open` to `sidr_close` and can be sent any number of times
//! under the same id. A peer's request waits for our answer; when there are too many, the oldest of
//! the peer that has the most is dropped.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use platform::{Instant, Secret};
use roce::cm::redirection::{self, Redirection};
use roce::cm::{Datagram, ip_cm, sidr};
use roce::{Gid, QKey, Qpn, ServiceId};

use super::active::with_ip_header;
use super::names::{Names, Purpose};
use super::slab::Slab;
use super::types::{
    Error, Event, PrivateData, Resolution, ResolutionId, ResolutionReply, ResolutionRequestId, SidrParams,
    Table,
};
use super::{Arrival, Cm, Unexpected, field, has_memory};

/// A request of ours.
struct Ours {
    params: SidrParams,
    private_data: [u8; sidr::REQ_PRIVATE_DATA_LEN],
    request_id: u32,
    tid: u64,
    retries_left: u8,
    wait: Duration,
    /// When to send again; set as long as the request waits for an answer.
    timer: Option<Instant>,
}

/// A request of a peer's.
struct Theirs {
    from: Arrival,
    request_id: u32,
    tid: u64,
    service: ServiceId,
    /// Its position in the order of arrival.
    order: u64,
}

/// All service resolutions of a state machine.
pub(super) struct Resolutions {
    ours: Slab<Ours>,
    by_request_id: Names<u64>,
    timers: BTreeSet<(Instant, u64)>,
    theirs: Slab<Theirs>,
    by_peer: BTreeMap<(Gid, u32, u64), u64>,
    next_order: u64,
}

impl Resolutions {
    pub fn new(limit: u32, secret: Secret) -> Resolutions {
        Resolutions {
            ours: Slab::new(limit),
            by_request_id: Names::new(secret, Purpose::ResolutionId),
            timers: BTreeSet::new(),
            theirs: Slab::new(limit),
            by_peer: BTreeMap::new(),
            next_order: 0,
        }
    }

    pub fn outgoing(&self) -> usize {
        self.ours.len()
    }

    pub fn incoming(&self) -> usize {
        self.theirs.len()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    fn set_timer(&mut self, id: u64, at: Option<Instant>) {
        let Some(ours) = self.ours.get_mut(id) else { return };
        if let Some(old) = core::mem::replace(&mut ours.timer, at) {
            self.timers.remove(&(old, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
        }
    }

    fn take_theirs(&mut self, id: u64) -> Option<Theirs> {
        let theirs = self.theirs.remove(id)?;
        self.by_peer.remove(&(theirs.from.remote_gid, theirs.request_id, theirs.tid));
        Some(theirs)
    }

    /// The oldest request of the peer that has the most; of several such peers, the oldest of all.
    /// Looks at each request.
    fn oldest_of_the_most(&self) -> Option<u64> {
        // Of each peer: how many requests it has, and the order and id of the oldest. The map has
        // the requests of one peer side by side.
        let mut peers: Vec<(Gid, usize, (u64, u64))> = Vec::new();
        for (&(gid, ..), &id) in &self.by_peer {
            let oldest = (self.theirs.get(id)?.order, id);
            match peers.last_mut().filter(|(last, ..)| *last == gid) {
                Some((_, count, first)) => (*count, *first) = (*count + 1, oldest.min(*first)),
                None => peers.push((gid, 1, oldest)),
            }
        }
        let most = peers.iter().max_by_key(|(_, count, (order, _))| (*count, Reverse(*order)));
        most.map(|&(_, _, (_, id))| id)
    }

    fn add_theirs(&mut self, from: &Arrival, tid: u64, req: &sidr::ReqRepr) -> Option<u64> {
        let order = self.next_order;
        let (request_id, service) = (req.request_id, req.service_id);
        let make = |_| Theirs { from: *from, request_id, tid, service, order };
        let id = match self.theirs.insert(make) {
            Some(id) => id,
            None => {
                let dropped = self.oldest_of_the_most()?;
                self.take_theirs(dropped);
                self.theirs.insert(make)?
            }
        };
        self.next_order += 1;
        self.by_peer.insert((from.remote_gid, request_id, tid), id);
        Some(id)
    }
}

impl Cm {
    /// Prepares a request for a service's queue pair; nothing is sent yet. Private data: at most
    /// 216 bytes, or 180 with an id of the IP CM service.
    pub fn sidr_open(&mut self, params: &SidrParams, private_data: &[u8]) -> Result<ResolutionId, Error> {
        has_memory()?;
        let addresses = ((params.local_gid, params.ip_source_port), params.remote_gid);
        let private_data = with_ip_header(params.service, addresses.0, addresses.1, private_data)?;
        let full = Error::Full(Table::Resolutions);
        let request_id = self.resolutions.by_request_id.draw().ok_or(full)?;
        let wait = self.response_time(params.timeout, Default::default());
        let make = |_| Ours {
            params: *params,
            private_data,
            request_id,
            tid: 0,
            retries_left: 0,
            wait,
            timer: None,
        };
        let id = self.resolutions.ours.insert(make).ok_or(full)?;
        self.resolutions.by_request_id.insert(request_id, id);
        Ok(ResolutionId(id))
    }

    /// Sends the request. [`Event::ResolutionReply`] or [`Event::ResolutionTimedOut`] follows; the
    /// request can then be sent again. Sending it before that begins anew.
    pub fn sidr_request(&mut self, now: Instant, id: ResolutionId) -> Result<(), Error> {
        self.ready()?;
        let tid = self.tid();
        let ours = self.resolutions.ours.get_mut(id.0).ok_or(Error::NoSuchResolution)?;
        ours.tid = tid;
        ours.retries_left = ours.params.max_retries;
        self.send_sidr_req(now, id);
        Ok(())
    }

    /// The id that the peer sees.
    pub fn sidr_request_id(&self, id: ResolutionId) -> Result<u32, Error> {
        self.resolutions.ours.get(id.0).map(|ours| ours.request_id).ok_or(Error::NoSuchResolution)
    }

    /// Removes the request.
    pub fn sidr_close(&mut self, id: ResolutionId) -> Result<(), Error> {
        self.resolutions.set_timer(id.0, None);
        let ours = self.resolutions.ours.remove(id.0).ok_or(Error::NoSuchResolution)?;
        self.resolutions.by_request_id.remove(ours.request_id);
        Ok(())
    }

    /// Answers a peer's request, which uses its id up. Queue pair and key matter for
    /// [`sidr::Status::Valid`] only. Private data: at most 136 bytes.
    pub fn sidr_reply(
        &mut self,
        id: ResolutionRequestId,
        status: sidr::Status,
        qpn: Qpn,
        qkey: QKey,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.uncongested()?;
        let private_data = field(private_data)?;
        let valid = status == sidr::Status::Valid;
        self.send_sidr_rep(id, |empty| sidr::RepRepr {
            status,
            qpn: if valid { qpn } else { Qpn::default() },
            qkey: if valid { qkey } else { QKey(0) },
            private_data,
            ..empty
        })
    }

    /// Answers a peer's request with the port where it shall ask instead, which uses the request's
    /// id up. Private data: at most 136 bytes.
    pub fn sidr_redirect(
        &mut self,
        id: ResolutionRequestId,
        to: &Redirection,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.uncongested()?;
        let private_data = field(private_data)?;
        self.send_sidr_rep(id, |empty| sidr::RepRepr {
            status: sidr::Status::Redirected,
            info_len: redirection::LEN as u8,
            info: to.emit(),
            private_data,
            ..empty
        })
    }

    fn send_sidr_rep(
        &mut self,
        id: ResolutionRequestId,
        fill: impl FnOnce(sidr::RepRepr) -> sidr::RepRepr,
    ) -> Result<(), Error> {
        let theirs = self.resolutions.take_theirs(id.0).ok_or(Error::NoSuchResolution)?;
        let message = fill(answer(theirs.request_id, theirs.service, sidr::Status::Rejected));
        let mad = Datagram { tid: theirs.tid, message: message.into() }.emit();
        self.recent.remember((theirs.from.remote_gid, theirs.request_id, theirs.tid), mad);
        self.out.send(theirs.from.local_gid, theirs.from.remote_gid, mad);
        Ok(())
    }

    /// Whether a peer's request still waits for an answer.
    pub fn sidr_waits(&self, id: ResolutionRequestId) -> bool {
        self.resolutions.theirs.get(id.0).is_some()
    }

    /// Removes a peer's request without an answer.
    pub fn sidr_discard(&mut self, id: ResolutionRequestId) {
        self.resolutions.take_theirs(id.0);
    }

    fn send_sidr_req(&mut self, now: Instant, id: ResolutionId) {
        let Some(ours) = self.resolutions.ours.get(id.0) else { return };
        let message = sidr::ReqRepr {
            request_id: ours.request_id,
            pkey: ours.params.pkey,
            service_id: ours.params.service,
            private_data: ours.private_data,
        };
        let mad = Datagram { tid: ours.tid, message: message.into() }.emit();
        self.out.send(ours.params.local_gid, ours.params.remote_gid, mad);
        let at = now + ours.wait;
        self.resolutions.set_timer(id.0, Some(at));
    }

    pub(super) fn poll_resolutions(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.resolutions.timers.first()
            && at <= now
            && self.ready().is_ok()
        {
            let left = self.resolutions.ours.get_mut(id).and_then(|ours| {
                ours.retries_left = ours.retries_left.checked_sub(1)?;
                Some(())
            });
            if left.is_some() {
                self.out.stats.retransmitted += 1;
                self.send_sidr_req(now, ResolutionId(id));
            } else {
                self.resolutions.set_timer(id, None);
                self.out.report(Event::ResolutionTimedOut { sidr: ResolutionId(id) });
            }
        }
    }

    pub(super) fn on_sidr_req(
        &mut self,
        from: &Arrival,
        tid: u64,
        req: &sidr::ReqRepr,
    ) -> Result<(), Unexpected> {
        let key = (from.remote_gid, req.request_id, tid);
        if let Some(mad) = self.recent.answer(key) {
            self.out.stats.duplicates += 1;
            self.out.send(from.local_gid, from.remote_gid, mad);
            return Ok(());
        }
        if self.resolutions.by_peer.contains_key(&key) {
            self.out.stats.duplicates += 1;
            return Ok(());
        }
        let parsed = match req.service_id.to_ip_cm() {
            Some(_) => ip_cm::Repr::parse(&req.private_data).map(|(ip, rest)| (Some(ip), rest)),
            None => Ok((None, &req.private_data[..])),
        };
        let listen = self.services.single(req.service_id);
        let refusal = match (listen, &parsed) {
            (None, _) => Some(sidr::Status::ServiceIdNotSupported),
            (_, Err(_)) => Some(sidr::Status::Rejected),
            _ if !req.pkey.matches(self.config.pkey) => Some(sidr::Status::Rejected),
            _ => None,
        };
        if let Some(status) = refusal {
            let message = answer(req.request_id, req.service_id, status);
            let mad = Datagram { tid, message: message.into() }.emit();
            self.out.send(from.local_gid, from.remote_gid, mad);
            return Ok(());
        }
        let (listen, (ip, private_data)) = listen.zip(parsed.ok()).ok_or(Unexpected)?;
        let id = self.resolutions.add_theirs(from, tid, req).ok_or(Unexpected)?;
        self.out.report(Event::ResolutionRequest(Resolution {
            request: ResolutionRequestId(id),
            peer_request_id: req.request_id,
            listen,
            service: req.service_id,
            local_gid: from.local_gid,
            remote_gid: from.remote_gid,
            ip,
            private_data: PrivateData::new(private_data),
        }));
        Ok(())
    }

    pub(super) fn on_sidr_rep(&mut self, from: &Arrival, rep: &sidr::RepRepr) -> Result<(), Unexpected> {
        let id = self.resolutions.by_request_id.get(rep.request_id).ok_or(Unexpected)?;
        let ours = self.resolutions.ours.get(id).ok_or(Unexpected)?;
        let params = &ours.params;
        if params.remote_gid != from.remote_gid || params.service != rep.service_id || ours.timer.is_none() {
            return Err(Unexpected);
        }
        self.resolutions.set_timer(id, None);
        let info = rep.info.get(..usize::from(rep.info_len)).unwrap_or(&rep.info);
        let redirected = rep.status == sidr::Status::Redirected;
        self.out.report(Event::ResolutionReply(ResolutionReply {
            sidr: ResolutionId(id),
            redirection: Redirection::parse(info).ok().filter(|_| redirected),
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            private_data: PrivateData::new(&rep.private_data),
        }));
        Ok(())
    }
}

fn answer(request_id: u32, service_id: ServiceId, status: sidr::Status) -> sidr::RepRepr {
    sidr::RepRepr {
        request_id,
        status,
        info_len: 0,
        qpn: Qpn::default(),
        service_id,
        qkey: QKey(0),
        info: [0; sidr::INFO_LEN],
        private_data: [0; sidr::REP_PRIVATE_DATA_LEN],
    }
}
