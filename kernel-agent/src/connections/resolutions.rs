//! Service resolution (SIDR): asking peers for a datagram service's queue pair, and answering them.
//!
//! A question of ours lives from `open` to `close` and can be asked any number of times. A peer's waits for its answer; of too
//! many the oldest is forgotten, as the state machine does.
//!
//! Locks: the connections' `state`, never across an upcall.

use alloc::sync::Arc;
use alloc::vec::Vec;

use roce::cm::redirection::Redirection;
use roce::cm::sidr;
use roce::{Gid, PKey, QKey, Qpn, TimeoutCode};

use super::{Connections, State};
use crate::agent::Agent;
use crate::cm::{self, ListenId as CmListenId, SidrId, SidrParams, SidrRequestId};
use crate::{Client, Error, ListenId};

/// Questions at a time, ours and peers' each.
pub(super) const RESOLUTIONS: u32 = 64;

/// Names a question of ours; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResolutionId(pub u64);

/// Names a question of a peer's; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResolutionRequestId(pub u64);

/// What a peer is asked.
#[derive(Clone, Copy, Debug)]
pub struct ResolveParams<'a> {
    /// The peer's service.
    pub service: roce::ServiceId,
    /// The peer's port.
    pub remote_gid: [u8; 16],
    /// Our GID's index.
    pub source_gid: u8,
    /// How long one request waits for its answer: 4.096 us * 2^this.
    pub response_timeout: u8,
    /// How often a request is sent again.
    pub retries: u8,
    /// Private data, at most 216 bytes.
    pub private_data: &'a [u8],
}

/// What to answer a peer.
#[derive(Clone, Copy, Debug)]
pub struct ResolutionAnswer<'a> {
    /// What becomes of the request.
    pub status: sidr::Status,
    /// The service's queue pair, with [`sidr::Status::Valid`].
    pub qpn: u32,
    /// The service's queue key, with [`sidr::Status::Valid`].
    pub qkey: u32,
    /// Private data, at most 136 bytes.
    pub private_data: &'a [u8],
}

/// Something happened in service resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolutionEvent<'a> {
    /// The context of the listening point (requests) or of our question.
    pub context: u64,
    /// What happened.
    pub kind: ResolutionEventKind,
    /// The private data that came along, padded with zeroes to the message's size.
    pub private_data: &'a [u8],
}

/// What happened in service resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolutionEventKind {
    /// A peer asks. Answer with `answer`, or `disregard` it.
    Request {
        /// Names it to the answer.
        request: ResolutionRequestId,
        /// What the peer calls it: the same each time that it asks again.
        request_id: u32,
        /// The peer's GID.
        remote_gid: [u8; 16],
        /// Our GID's index to which it was sent.
        source_gid: u8,
    },
    /// A peer answered.
    Reply {
        /// Our question.
        resolution: ResolutionId,
        /// What became of it.
        status: sidr::Status,
        /// The service's queue pair, with [`sidr::Status::Valid`].
        qpn: u32,
        /// The service's queue key, with [`sidr::Status::Valid`].
        qkey: u32,
        /// Where to ask, with [`sidr::Status::Redirected`], if the peer says it.
        redirection: Option<Redirection>,
    },
    /// Nobody answered.
    TimedOut {
        /// Our question.
        resolution: ResolutionId,
    },
}

/// A question of ours.
pub(super) struct Question {
    client: Arc<Client>,
    context: u64,
}

impl Question {
    fn is_of(&self, client: &Client) -> bool {
        core::ptr::eq(&*self.client, client)
    }
}

impl State {
    fn question(&self, client: &Client, id: ResolutionId) -> Result<(), Error> {
        match self.questions.get(&id) {
            Some(question) if question.is_of(client) => Ok(()),
            _ => Err(Error::ConnectionState),
        }
    }

    fn take_asked(&mut self, client: &Client, id: ResolutionRequestId) -> Result<Arc<Client>, Error> {
        let of = |(asked, owner): &(_, Arc<Client>)| *asked == id && core::ptr::eq(&**owner, client);
        let place = self.asked.iter().position(of).ok_or(Error::ConnectionState)?;
        self.asked.remove(place).map(|(_, owner)| owner).ok_or(Error::ConnectionState)
    }
}

impl Connections {
    /// Prepares a question; returns its name here and at the peer.
    pub(crate) fn open(
        &self,
        client: &Arc<Client>,
        params: &ResolveParams<'_>,
        context: u64,
    ) -> Result<(ResolutionId, u32), Error> {
        let agent = client.agent();
        agent.alive()?;
        let gids = &agent.identity().gids;
        let local = gids.get(usize::from(params.source_gid)).ok_or(Error::OutOfRange("source GID"))?;
        let timeout =
            TimeoutCode::new(params.response_timeout).ok_or(Error::OutOfRange("response timeout"))?;
        let mut state = self.state.lock();
        let question = SidrParams {
            local_gid: Gid(*local),
            remote_gid: Gid(params.remote_gid),
            service: params.service,
            // A port of the dynamic range, as a socket would have; it only has to be there.
            ip_source_port: 49152,
            pkey: PKey::DEFAULT,
            timeout,
            max_retries: params.retries,
        };
        let sidr = state.cm.sidr_open(&question, params.private_data)?;
        let request_id = state.cm.sidr_request_id(sidr)?;
        let id = ResolutionId(sidr.0);
        state.questions.insert(id, Question { client: client.clone(), context });
        Ok((id, request_id))
    }

    pub(crate) fn ask(&self, client: &Client, id: ResolutionId) -> Result<(), Error> {
        let agent = client.agent();
        agent.alive()?;
        let now = agent.platform().now();
        let mut state = self.state.lock();
        state.question(client, id)?;
        state.cm.sidr_request(now, SidrId(id.0))?;
        state.flush(agent);
        Ok(())
    }

    pub(crate) fn close(&self, client: &Client, id: ResolutionId) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.question(client, id)?;
        // The two tables agree on what there is.
        let _ = state.cm.sidr_close(SidrId(id.0));
        let question = state.questions.remove(&id);
        drop(state);
        drop(question);
        Ok(())
    }

    pub(crate) fn answer(
        &self,
        client: &Client,
        id: ResolutionRequestId,
        answer: &ResolutionAnswer<'_>,
    ) -> Result<(), Error> {
        let qpn = Qpn::new(answer.qpn).ok_or(Error::OutOfRange("queue pair number"))?;
        self.reply(client, id, answer.private_data, |cm| {
            let id = SidrRequestId(id.0);
            cm.sidr_reply(id, answer.status, qpn, QKey(answer.qkey), answer.private_data)
        })
    }

    pub(crate) fn redirect(
        &self,
        client: &Client,
        id: ResolutionRequestId,
        to: &Redirection,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.reply(client, id, private_data, |cm| cm.sidr_redirect(SidrRequestId(id.0), to, private_data))
    }

    fn reply(
        &self,
        client: &Client,
        id: ResolutionRequestId,
        private_data: &[u8],
        send: impl FnOnce(&mut cm::Cm) -> Result<(), cm::Error>,
    ) -> Result<(), Error> {
        let agent = client.agent();
        agent.alive()?;
        if private_data.len() > sidr::REP_PRIVATE_DATA_LEN {
            return Err(Error::PrivateData(sidr::REP_PRIVATE_DATA_LEN));
        }
        let mut state = self.state.lock();
        let owner = state.take_asked(client, id)?;
        let sent = send(&mut state.cm);
        if matches!(sent, Err(cm::Error::Congested)) {
            state.asked.push_front((id, owner));
            return Err(Error::from(cm::Error::Congested));
        }
        state.flush(agent);
        drop(state);
        drop(owner);
        Ok(sent?)
    }

    pub(crate) fn disregard(&self, client: &Client, id: ResolutionRequestId) {
        let mut state = self.state.lock();
        let owner = state.take_asked(client, id);
        if owner.is_ok() {
            state.cm.sidr_discard(SidrRequestId(id.0));
        }
        drop(state);
        drop(owner);
    }

    /// Forgets all that a client asked and was asked.
    pub(super) fn detach_resolutions(&self, client: &Client) {
        let (questions, asked) = {
            let state = self.state.lock();
            let mine = |(_, question): &(&ResolutionId, &Question)| question.is_of(client);
            let questions: Vec<_> = state.questions.iter().filter(mine).map(|(&id, _)| id).collect();
            let to_me = |(_, owner): &&(ResolutionRequestId, Arc<Client>)| core::ptr::eq(&**owner, client);
            let asked: Vec<_> = state.asked.iter().filter(to_me).map(|&(id, _)| id).collect();
            (questions, asked)
        };
        for id in questions {
            let _ = self.close(client, id);
        }
        for id in asked {
            self.disregard(client, id);
        }
    }

    /// A peer asks for a service.
    pub(super) fn on_resolution_request(&self, agent: &Agent, resolution: &cm::Resolution) {
        let CmListenId(listen) = resolution.listen;
        let request = ResolutionRequestId(resolution.request.0);
        let mut state = self.state.lock();
        let Some((client, context)) =
            state.listens.get(&ListenId(listen)).map(|listen| (listen.client.clone(), listen.context))
        else {
            // It went away while the request was on its way here.
            let status = sidr::Status::ServiceIdNotSupported;
            let _ = state.cm.sidr_reply(resolution.request, status, Qpn::default(), QKey(0), &[]);
            state.flush(agent);
            return;
        };
        let forgotten =
            if state.asked.len() >= RESOLUTIONS as usize { state.asked.pop_front() } else { None };
        state.asked.push_back((request, client.clone()));
        drop(state);
        drop(forgotten);
        let kind = ResolutionEventKind::Request {
            request,
            request_id: resolution.peer_request_id,
            remote_gid: resolution.remote_gid.0,
            source_gid: super::arrivals::gid_index(agent.identity(), resolution.local_gid),
        };
        let private_data = &resolution.private_data;
        client.upcall(|up| up.resolution(ResolutionEvent { context, kind, private_data }));
    }

    pub(super) fn on_resolution_reply(&self, reply: &cm::ResolutionReply) {
        let resolution = ResolutionId(reply.sidr.0);
        let kind = ResolutionEventKind::Reply {
            resolution,
            status: reply.status,
            qpn: reply.qpn.get(),
            qkey: reply.qkey.0,
            redirection: reply.redirection,
        };
        self.tell_question(resolution, kind, &reply.private_data);
    }

    pub(super) fn on_resolution_timed_out(&self, sidr: SidrId) {
        let resolution = ResolutionId(sidr.0);
        self.tell_question(resolution, ResolutionEventKind::TimedOut { resolution }, &[]);
    }

    fn tell_question(&self, id: ResolutionId, kind: ResolutionEventKind, private_data: &[u8]) {
        let asker = {
            let state = self.state.lock();
            state.questions.get(&id).map(|question| (question.client.clone(), question.context))
        };
        if let Some((client, context)) = asker {
            client.upcall(|up| up.resolution(ResolutionEvent { context, kind, private_data }));
        }
    }
}
