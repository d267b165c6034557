//! Service resolution (SIDR): asking peers for a datagram service's queue pair, and answering them.
//!
//! A resolution of ours lives from `open_resolution` to `close_resolution` and can be asked for any
//! number of times. A peer's request waits for its answer; when there are too many, the state
//! machine drops one, and it is forgotten here.
//!
//! Locks: the manager's `tables`, never across an upcall.

use alloc::sync::Arc;

use roce::cm::redirection::Redirection;
use roce::cm::sidr;
use roce::{PKey, QKey, Qpn};

use super::state::{ConnectionManager, Resolution, Tables};
use crate::cm::{self, ResolutionId, ResolutionRequestId, SidrParams};
use crate::connect::{ResolutionAnswer, ResolveParams, gid_index};
use crate::{Client, Error, ResolutionEvent, ResolutionEventKind, walk};

/// Resolutions at a time, ours and peers' each.
pub(super) const RESOLUTIONS: u32 = 64;

impl Tables {
    fn check_resolution(&self, client: &Client, id: ResolutionId) -> Result<(), Error> {
        match self.resolutions.get(&id) {
            Some(resolution) if resolution.is_of(client) => Ok(()),
            _ => Err(Error::ConnectionState),
        }
    }

    fn take_request(&mut self, client: &Client, id: ResolutionRequestId) -> Result<Arc<Client>, Error> {
        let of = |(request, owner): &(_, Arc<Client>)| *request == id && core::ptr::eq(&**owner, client);
        let index = self.requests.iter().position(of).ok_or(Error::ConnectionState)?;
        self.requests.remove(index).map(|(_, owner)| owner).ok_or(Error::ConnectionState)
    }
}

impl ConnectionManager {
    /// Prepares a resolution; returns its id and the one that the peer sees.
    pub(crate) fn open_resolution(
        &self,
        client: &Arc<Client>,
        params: &ResolveParams<'_>,
        context: u64,
    ) -> Result<(ResolutionId, u32), Error> {
        gid_index(&self.identity, params.local_gid).ok_or(Error::OutOfRange("source GID"))?;
        let mut tables = self.tables.lock();
        // Under the lock, as for a listening point.
        client.agent().alive()?;
        let asked = SidrParams {
            local_gid: params.local_gid,
            remote_gid: params.remote_gid,
            service: params.service,
            ip_source_port: match params.ip_source_port {
                // A port of the dynamic range, as a socket would have; it only has to be there.
                0 => 49152,
                given => given,
            },
            pkey: PKey::DEFAULT,
            timeout: params.response_timeout,
            max_retries: params.retries,
        };
        let id = tables.cm.sidr_open(&asked, params.private_data)?;
        let request_id = tables.cm.sidr_request_id(id)?;
        tables.resolutions.insert(id, Resolution { client: client.clone(), context });
        Ok((id, request_id))
    }

    pub(crate) fn resolve(&self, client: &Client, id: ResolutionId) -> Result<(), Error> {
        client.agent().alive()?;
        let now = self.platform.now();
        let mut tables = self.tables.lock();
        tables.check_resolution(client, id)?;
        tables.cm.sidr_request(now, id)?;
        self.flush(&mut tables);
        Ok(())
    }

    pub(crate) fn close_resolution(&self, client: &Client, id: ResolutionId) -> Result<(), Error> {
        let mut tables = self.tables.lock();
        tables.check_resolution(client, id)?;
        // Both tables have the same resolutions.
        let _ = tables.cm.sidr_close(id);
        let resolution = tables.resolutions.remove(&id);
        drop(tables);
        drop(resolution);
        Ok(())
    }

    pub(crate) fn answer_resolution(
        &self,
        client: &Client,
        id: ResolutionRequestId,
        answer: &ResolutionAnswer<'_>,
    ) -> Result<(), Error> {
        let qpn = Qpn::new(answer.qpn).ok_or(Error::OutOfRange("queue pair number"))?;
        self.reply(client, id, answer.private_data, |cm| {
            cm.sidr_reply(id, answer.status, qpn, QKey(answer.qkey), answer.private_data)
        })
    }

    pub(crate) fn redirect_resolution(
        &self,
        client: &Client,
        id: ResolutionRequestId,
        to: &Redirection,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.reply(client, id, private_data, |cm| cm.sidr_redirect(id, to, private_data))
    }

    fn reply(
        &self,
        client: &Client,
        id: ResolutionRequestId,
        private_data: &[u8],
        send: impl FnOnce(&mut cm::Cm) -> Result<(), cm::Error>,
    ) -> Result<(), Error> {
        client.agent().alive()?;
        if private_data.len() > sidr::REP_PRIVATE_DATA_LEN {
            return Err(Error::PrivateData(sidr::REP_PRIVATE_DATA_LEN));
        }
        let mut tables = self.tables.lock();
        let owner = tables.take_request(client, id)?;
        let sent = send(&mut tables.cm);
        if matches!(sent, Err(cm::Error::Congested)) {
            tables.requests.push_front((id, owner));
            return Err(Error::from(cm::Error::Congested));
        }
        self.flush(&mut tables);
        drop(tables);
        drop(owner);
        Ok(sent?)
    }

    pub(crate) fn disregard_resolution(&self, client: &Client, id: ResolutionRequestId) {
        let mut tables = self.tables.lock();
        let owner = tables.take_request(client, id);
        if owner.is_ok() {
            tables.cm.sidr_discard(id);
        }
        drop(tables);
        drop(owner);
    }

    /// Forgets all resolutions of a client, and all requests that it has to answer.
    pub(super) fn detach_resolutions(&self, client: &Client) {
        let close = |id| _ = self.close_resolution(client, id);
        walk::each(&self.tables, |tables| &tables.resolutions, |own| own.is_of(client), close);
        let request = || {
            let tables = self.tables.lock();
            let mut requests = tables.requests.iter();
            requests.find(|(_, owner)| core::ptr::eq(&**owner, client)).map(|&(id, _)| id)
        };
        while let Some(id) = request() {
            self.disregard_resolution(client, id);
        }
    }

    /// A peer asks for a service.
    pub(super) fn on_resolution_request(&self, asked: &cm::Resolution) {
        let mut tables = self.tables.lock();
        let Some((client, context)) =
            tables.listens.get(&asked.listen).map(|listen| (listen.client.clone(), listen.context))
        else {
            // The listening point ended after the request had arrived.
            let status = sidr::Status::ServiceIdNotSupported;
            let _ = tables.cm.sidr_reply(asked.request, status, Qpn::default(), QKey(0), &[]);
            return self.flush(&mut tables);
        };
        if !tables.cm.sidr_waits(asked.request) {
            // Later requests have replaced it.
            return;
        }
        // Those that the state machine has dropped for later ones.
        let gone = |tables: &Tables| tables.requests.iter().position(|&(id, _)| !tables.cm.sidr_waits(id));
        let full = tables.requests.len() >= RESOLUTIONS as usize;
        let forgotten = match gone(&tables).filter(|_| full) {
            Some(index) => tables.requests.remove(index),
            None => None,
        };
        if tables.requests.try_reserve(1).is_err() {
            // As if it had not come: the peer repeats it.
            return tables.cm.sidr_discard(asked.request);
        }
        tables.requests.push_back((asked.request, client.clone()));
        drop(tables);
        drop(forgotten);
        let kind = ResolutionEventKind::Request {
            request: asked.request,
            request_id: asked.peer_request_id,
            remote_gid: asked.remote_gid.0,
            source_gid: gid_index(&self.identity, asked.local_gid).unwrap_or(0),
            source_port: asked.ip.map_or(0, |ip| ip.src_port),
        };
        let private_data = &asked.private_data;
        client.upcall(|up| up.resolution(ResolutionEvent { context, kind, private_data }));
    }

    pub(super) fn on_resolution_reply(&self, reply: &cm::ResolutionReply) {
        let kind = ResolutionEventKind::Reply {
            resolution: reply.sidr,
            status: reply.status,
            qpn: reply.qpn.get(),
            qkey: reply.qkey.0,
            redirection: reply.redirection,
        };
        self.report_resolution(reply.sidr, kind, &reply.private_data);
    }

    pub(super) fn on_resolution_timed_out(&self, id: ResolutionId) {
        self.report_resolution(id, ResolutionEventKind::TimedOut { resolution: id }, &[]);
    }

    fn report_resolution(&self, id: ResolutionId, kind: ResolutionEventKind, private_data: &[u8]) {
        let asker = {
            let tables = self.tables.lock();
            tables.resolutions.get(&id).map(|resolution| (resolution.client.clone(), resolution.context))
        };
        if let Some((client, context)) = asker {
            client.upcall(|up| up.resolution(ResolutionEvent { context, kind, private_data }));
        }
    }
}
