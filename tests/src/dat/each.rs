//! What holds for every kind of post: the event of its completion, its flags, and its segments.
//! Posts of the extensions are made by their own calls and by the common entry point.

use alloc::vec::Vec;
use core::result::Result;

use dat::*;

use super::datagrams::FRONT;
use super::world::*;
use super::write_immed_rules::{BAD, silently, unsignalled};
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

/// The kinds of posts that complete on the event dispatcher of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    WriteImmediate,
    Read,
    CompareAndSwap,
    FetchAndAdd,
    Datagram,
}

/// What the events of a completion say: their number, the operation, and the extension data.
type Says = (EventNumber, Dto, Option<IbExtType>);

impl Kind {
    pub(crate) const ALL: [Kind; 7] = [
        Kind::Send,
        Kind::Write,
        Kind::WriteImmediate,
        Kind::Read,
        Kind::CompareAndSwap,
        Kind::FetchAndAdd,
        Kind::Datagram,
    ];

    pub(crate) fn is_datagram(self) -> bool {
        self == Kind::Datagram
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Kind::CompareAndSwap | Kind::FetchAndAdd)
    }

    /// Whether it takes a Receive of the peer. Only such a post can ask for a notification there.
    pub(crate) fn takes_receive(self) -> bool {
        matches!(self, Kind::Send | Kind::WriteImmediate | Kind::Datagram)
    }

    /// Whether it writes to its own segments.
    pub(crate) fn is_sink(self) -> bool {
        self == Kind::Read || self.is_atomic()
    }

    /// Whether it names memory of the peer.
    pub(crate) fn is_remote(self) -> bool {
        !matches!(self, Kind::Send | Kind::Datagram)
    }

    /// What its completion says.
    fn says(self) -> Says {
        let extended = |operation, ext_type| (EventNumber::IB_DTO, operation, Some(ext_type));
        match self {
            Kind::Send => (EventNumber::DTO_COMPLETION, Dto::SEND, None),
            Kind::Write => (EventNumber::DTO_COMPLETION, Dto::RDMA_WRITE, None),
            Kind::Read => (EventNumber::DTO_COMPLETION, Dto::RDMA_READ, None),
            Kind::WriteImmediate => extended(Dto::IB_RDMA_WRITE_IMMED, IbExtType::RdmaWriteImmed),
            Kind::CompareAndSwap => extended(Dto::IB_CMP_SWAP, IbExtType::CmpAndSwap),
            Kind::FetchAndAdd => extended(Dto::IB_FETCH_ADD, IbExtType::FetchAndAdd),
            Kind::Datagram => extended(Dto::IB_SEND_UD, IbExtType::UdSend),
        }
    }

    /// What the completion of the peer's Receive says, for a kind that takes one.
    fn arrival(self) -> Says {
        match self {
            Kind::WriteImmediate => {
                (EventNumber::IB_DTO, Dto::IB_RECV_IMMED, Some(IbExtType::RdmaWriteImmedData))
            }
            Kind::Datagram => (EventNumber::IB_DTO, Dto::IB_RECV_UD, Some(IbExtType::UdRecv)),
            _ => (EventNumber::DTO_COMPLETION, Dto::RECEIVE, None),
        }
    }

    /// The endpoint's limit of segments; none for an atomic, which has one segment.
    fn most_segments(self, attr: &EpAttr) -> Option<usize> {
        match self {
            Kind::Send | Kind::Datagram => Some(attr.max_request_iov),
            Kind::Write | Kind::WriteImmediate => Some(attr.max_rdma_write_iov),
            Kind::Read => Some(attr.max_rdma_read_iov),
            Kind::CompareAndSwap | Kind::FetchAndAdd => None,
        }
    }
}

/// A kind of post, and whether the common entry point of the extensions makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) kind: Kind,
    common: bool,
}

/// Each kind by its own call, and each of the extensions by the common entry point.
pub(crate) fn posts() -> impl Iterator<Item = Post> {
    let own = Kind::ALL.map(|kind| Post { kind, common: false });
    let is_extension = |kind: &Kind| kind.says().2.is_some();
    let common = Kind::ALL.into_iter().filter(is_extension).map(|kind| Post { kind, common: true });
    own.into_iter().chain(common)
}

/// Those of connections.
pub(crate) fn connected() -> impl Iterator<Item = Post> {
    posts().filter(|post| !post.kind.is_datagram())
}

/// Says of what post a failure was.
pub(crate) fn named(post: Post) -> impl Fn(Failure) -> Failure {
    move |failure| Failure { message: alloc::format!("{post:?}: {}", failure.message), ..failure }
}

/// The immediate data of Writes.
pub(crate) const NUMBER: u32 = 0x0102_0304;

impl Post {
    /// Posts to an endpoint. An atomic changes 0 to 1.
    pub(crate) fn to(
        self,
        ep: &End,
        to: &IbAddrHandle,
        local_iov: &[LmrTriplet],
        remote_iov: &RmrTriplet,
        user_cookie: u64,
        completion_flags: CompletionFlags,
    ) -> Result<(), Error> {
        let (ia, ep, cookie, flags) = (&ep.ia, ep.ep, user_cookie, completion_flags);
        let result = local_iov.first().copied().unwrap_or_default();
        let extended = |op, arguments: IbArguments<'_>| ia.extension_op(ep.into(), op, &arguments);
        let local = &result;
        match (self.kind, self.common) {
            (Kind::Send, _) => ia.ep_post_send(ep, local_iov, cookie, flags),
            (Kind::Write, _) => ia.ep_post_rdma_write(ep, local_iov, cookie, remote_iov, flags),
            (Kind::Read, _) => ia.ep_post_rdma_read(ep, local_iov, cookie, remote_iov, flags),
            (Kind::WriteImmediate, false) => {
                ia.ib_post_rdma_write_with_immed(ep, local_iov, cookie, remote_iov, NUMBER, flags)
            }
            (Kind::CompareAndSwap, false) => {
                ia.ib_post_cmp_and_swap(ep, 0, 1, local, cookie, remote_iov, flags)
            }
            (Kind::FetchAndAdd, false) => ia.ib_post_fetch_and_add(ep, 1, local, cookie, remote_iov, flags),
            (Kind::Datagram, false) => ia.ib_post_send_ud(ep, local_iov, to, cookie, flags),
            (Kind::WriteImmediate, true) => {
                let immediate_data = NUMBER;
                let arguments = IbArguments::RdmaWriteImmed {
                    local_iov,
                    user_cookie,
                    remote_iov,
                    immediate_data,
                    completion_flags,
                };
                extended(IbOp::RDMA_WRITE_IMMED, arguments)
            }
            (Kind::CompareAndSwap, true) => {
                let (cmp_value, swap_value, local_iov) = (0, 1, local);
                let arguments = IbArguments::CmpAndSwap {
                    cmp_value,
                    swap_value,
                    local_iov,
                    user_cookie,
                    remote_iov,
                    completion_flags,
                };
                extended(IbOp::CMP_AND_SWAP, arguments)
            }
            (Kind::FetchAndAdd, true) => {
                let (add_value, local_iov) = (1, local);
                let arguments = IbArguments::FetchAndAdd {
                    add_value,
                    local_iov,
                    user_cookie,
                    remote_iov,
                    completion_flags,
                };
                extended(IbOp::FETCH_AND_ADD, arguments)
            }
            (Kind::Datagram, true) => {
                let arguments = IbArguments::UdSend { local_iov, ah: to, cookie, completion_flags };
                extended(IbOp::UD_SEND, arguments)
            }
        }
    }
}

/// Room for a message at the beginning of the peer's memory, and the place of a datagram's header.
const ROOM: usize = 1024;
const HEADER: usize = 2048;

/// Two endpoints, connected or resolved, and a page of memory on each side. What a post moves is
/// at the beginning of the peer's memory.
pub(crate) struct Rig {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) to: IbAddrHandle,
    pub(crate) own: Region,
    pub(crate) far: Region,
}

impl Rig {
    /// For posts of this kind.
    #[track_caller]
    pub(crate) fn new(w: &World<'_>, kind: Kind) -> Result<Rig, Failure> {
        Rig::with(w, kind, &attributes(), &attributes())
    }

    /// With these attributes, except those that only connections have.
    #[track_caller]
    pub(crate) fn with(w: &World<'_>, kind: Kind, a: &EpAttr, b: &EpAttr) -> Result<Rig, Failure> {
        let [a, b] = [a, b].map(|attr| match kind {
            Kind::Datagram => {
                let (service_type, none) = (ServiceType::IB_UD, 0);
                EpAttr { service_type, max_rdma_read_in: none, max_rdma_read_out: none, ..*attr }
            }
            _ => *attr,
        });
        let (a, b) = (w.end(&w.a, &a)?, w.end(&w.b, &b)?);
        let to = match kind {
            Kind::Datagram => w.resolve(&a, &b)?.0,
            _ => {
                w.connect(&a, &b)?;
                IbAddrHandle::NONE
            }
        };
        let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
        Ok(Rig { a, b, to, own, far })
    }

    /// Posts to `a`. The remote memory is the beginning of `b`'s.
    pub(crate) fn post(
        &self,
        post: Post,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<(), Error> {
        post.to(&self.a, &self.to, segments, &self.far.remote(0, 8), cookie, flags)
    }

    /// Posts the Receive that a post of this kind takes, if it takes one.
    #[track_caller]
    pub(crate) fn receive(&self, kind: Kind, cookie: u64) -> Outcome {
        let room = self.far.segment(0, ROOM);
        match kind {
            Kind::Send => self.b.receive(&[room], cookie),
            Kind::WriteImmediate => self.b.receive(&[], cookie),
            Kind::Datagram => self.b.receive(&[self.far.segment(HEADER, FRONT), room], cookie),
            _ => Ok(()),
        }
    }

    /// Checks the event of a completion, and returns its length.
    #[track_caller]
    pub(crate) fn is_done(
        &self,
        kind: Kind,
        event: &Event,
        cookie: u64,
        status: DtoStatus,
    ) -> Result<u64, Failure> {
        let (number, operation, ext_type) = kind.says();
        check_eq!((event.event_number, event.evd_handle), (number, self.a.request));
        let done = some(event.dto(), "a completion")?;
        check_eq!(
            (done.operation, done.user_cookie, done.status, done.ep_handle),
            (operation, cookie, status, self.a.ep)
        );
        let result = if status == DtoStatus::Success { IbStatus::Success } else { IbStatus::Err };
        let got = event.extension.map(|extension| (extension.ext_type, extension.status));
        check_eq!(got, ext_type.map(|ext_type| (ext_type, result)));
        Ok(done.transferred_length)
    }

    /// Takes the next completion of a request, which must be this one.
    #[track_caller]
    pub(crate) fn done(&self, kind: Kind, cookie: u64, status: DtoStatus) -> Outcome {
        self.is_done(kind, &next(&self.a.ia, self.a.request)?, cookie, status).map(drop)
    }

    /// Takes the completion of the Receive that a post of this kind took, if it takes one.
    #[track_caller]
    fn arrived(&self, kind: Kind, cookie: u64, length: usize) -> Outcome {
        if !kind.takes_receive() {
            return Ok(());
        }
        let event = next(&self.b.ia, self.b.recv)?;
        let (number, operation, ext_type) = kind.arrival();
        let front = if kind.is_datagram() { FRONT } else { 0 };
        let expected = DtoCompletion {
            ep_handle: self.b.ep,
            user_cookie: cookie,
            status: DtoStatus::Success,
            transferred_length: (front + length) as u64,
            operation,
        };
        check_eq!((event.event_number, event.dto()), (number, Some(&expected)));
        let got = event.extension.map(|extension| (extension.ext_type, extension.status));
        check_eq!(got, ext_type.map(|ext_type| (ext_type, IbStatus::Success)));
        if kind == Kind::WriteImmediate {
            check_eq!(event.extension.map(|extension| extension.immed), Some(NUMBER));
        }
        Ok(())
    }

    /// Makes the memory of both sides different, and lets an atomic find 0.
    pub(crate) fn fill(&self, kind: Kind, seed: u8) {
        self.own.fill(seed);
        self.far.fill(seed.wrapping_add(2));
        if kind.is_atomic() {
            self.far.set_word(0, 0);
        }
    }

    /// Checks that a post of these segments, each an offset and a length, had its effect.
    #[track_caller]
    fn moved(&self, kind: Kind, segments: &[(usize, usize)]) -> Outcome {
        if kind.is_atomic() {
            check_eq!((self.own.word(segments[0].0), self.far.word(0)), (0, 1));
            return Ok(());
        }
        let own: Vec<u8> = segments.iter().flat_map(|(at, len)| self.own.bytes(*at, *len)).collect();
        check!(own == self.far.bytes(0, own.len()), "the bytes were not moved");
        Ok(())
    }

    /// The segments of `a`'s memory.
    fn segments(&self, segments: &[(usize, usize)]) -> Vec<LmrTriplet> {
        segments.iter().map(|(at, len)| self.own.segment(*at, *len)).collect()
    }
}

/// Checks the events of completions that succeed, each taken by a wait and by a dequeue.
fn completions(w: &World<'_>, rig: &Rig, post: Post) -> Outcome {
    let kind = post.kind;
    let pieces: &[_] = if kind.is_atomic() { &[(64, 8)] } else { &[(100, 8), (9, 7), (64, 1)] };
    let length: usize = pieces.iter().map(|(_, len)| len).sum();
    // A bad network may lose a datagram; then nothing arrives.
    let arrives = !(w.f.setup.lossy && kind.is_datagram());
    for (seed, waits) in [(1, true), (40, true), (80, false), (120, false)] {
        // The same cookie comes twice.
        let cookie = if waits { u64::MAX } else { 7 };
        rig.fill(kind, seed);
        rig.receive(kind, cookie)?;
        rig.post(post, &rig.segments(pieces), cookie, PLAIN)?;
        let event = match waits {
            true => next(&w.a, rig.a.request)?,
            false => polled(w.f.platform(), &w.a, rig.a.request)?,
        };
        check_eq!(rig.is_done(kind, &event, cookie, DtoStatus::Success)?, length as u64);
        if arrives {
            rig.arrived(kind, cookie, length)?;
            rig.moved(kind, pieces)?;
        }
    }
    nothing(&w.a, rig.a.request)?;
    nothing(&w.b, rig.b.request)?;
    // A kind that takes no Receive leaves them all; a Send takes this one.
    if !kind.takes_receive() {
        rig.b.receive(&[], 1)?;
        rig.post(post, &rig.segments(pieces), 2, PLAIN)?;
        rig.done(kind, 2, DtoStatus::Success)?;
        check_eq!(w.b.ep_recv_query(rig.b.ep)?.0, 1);
        rig.a.send(&[], 3)?;
        rig.done(Kind::Send, 3, DtoStatus::Success)?;
        rig.arrived(Kind::Send, 1, 0)?;
    }
    if arrives { nothing(&w.b, rig.b.recv) } else { Ok(()) }
}

/// Flags beside another one that a kind of post can have.
fn others(kind: Kind) -> impl Iterator<Item = CompletionFlags> {
    let fence = (!kind.is_datagram()).then_some(CompletionFlags::BARRIER_FENCE);
    let solicited = kind.takes_receive().then_some(CompletionFlags::SOLICITED_WAIT);
    [Some(PLAIN), fence, solicited].into_iter().flatten()
}

/// A suppressed post has its effect and makes no event. One that fails makes one, and one that is
/// flushed.
fn suppressed(w: &World<'_>, post: Post) -> Outcome {
    let (kind, flag) = (post.kind, CompletionFlags::SUPPRESS);
    let rig = Rig::new(w, kind)?;
    let piece = [rig.own.segment(64, 8)];
    for (seed, more) in (1..).zip(others(kind)) {
        rig.fill(kind, seed);
        rig.receive(kind, 1)?;
        rig.post(post, &piece, 1, flag | more)?;
        rig.receive(kind, 2)?;
        // The next one succeeds too, but an atomic finds 1 then.
        rig.post(post, &piece, 2, more)?;
        rig.done(kind, 2, DtoStatus::Success)?;
        match kind {
            Kind::CompareAndSwap => check_eq!((rig.own.word(64), rig.far.word(0)), (1, 1), "{more:?}"),
            Kind::FetchAndAdd => check_eq!((rig.own.word(64), rig.far.word(0)), (1, 2), "{more:?}"),
            _ => {}
        }
        for cookie in 1..3 {
            if !(w.f.setup.lossy && kind.is_datagram()) {
                rig.arrived(kind, cookie, 8)?;
            }
        }
        nothing(&w.a, rig.a.request)?;
    }
    let nowhere = LmrTriplet::new(LmrContext::default(), 0, 8);
    w.f.held(|| {
        rig.post(post, &[nowhere], 3, flag)?;
        Ok(rig.post(post, &piece, 4, flag)?)
    })?;
    rig.done(kind, 3, DtoStatus::LocalProtection)?;
    rig.done(kind, 4, DtoStatus::Flushed)?;
    nothing(&w.a, rig.a.request)
}

/// The completion of an unsignalled post is queued and wakes no waiter, and that of a signalled one
/// does.
fn quiet(w: &World<'_>, rig: &Rig, post: Post) -> Outcome {
    let (kind, flag) = (post.kind, CompletionFlags::UNSIGNALLED);
    let piece = [rig.own.segment(64, 8)];
    for cookie in 1..3 {
        rig.receive(kind, cookie)?;
        rig.post(post, &piece, cookie, flag)?;
    }
    rig.receive(kind, 3)?;
    rig.post(post, &piece, 3, flag | CompletionFlags::SUPPRESS)?;
    silently(w, &w.a, rig.a.request, 2)?;
    rig.receive(kind, 4)?;
    rig.post(post, &piece, 4, PLAIN)?;
    let (event, more) = w.a.evd_wait(rig.a.request, LONG, 1)?;
    check_eq!(more, 2);
    rig.is_done(kind, &event, 1, DtoStatus::Success)?;
    rig.done(kind, 2, DtoStatus::Success)?;
    rig.done(kind, 4, DtoStatus::Success)?;
    nothing(&w.a, rig.a.request)
}

/// A post with flags that its kind cannot have is refused, and nothing is posted.
fn refusals(w: &World<'_>, rig: &Rig, post: Post) -> Outcome {
    let kind = post.kind;
    rig.fill(kind, 1);
    let before = rig.far.bytes(0, PAGE);
    let piece = [rig.own.segment(64, 8)];
    let quiet = CompletionFlags::UNSIGNALLED;
    for flags in [quiet, quiet | CompletionFlags::SUPPRESS] {
        refused(rig.post(post, &piece, 1, flags), BAD)?;
    }
    let mut wrong: Vec<CompletionFlags> =
        (4..32).map(|bit| CompletionFlags::from_bits_retain(1 << bit)).collect();
    if kind.is_datagram() {
        wrong.push(CompletionFlags::BARRIER_FENCE);
    }
    // Compare and swap lists the flag, which has no effect there.
    if !kind.takes_receive() && kind != Kind::CompareAndSwap {
        wrong.push(CompletionFlags::SOLICITED_WAIT);
    }
    for flags in wrong {
        for flags in [flags, flags | CompletionFlags::SUPPRESS] {
            let error = rig.post(post, &piece, 1, flags).map_err(Error::kind);
            check_eq!(error, Err(ErrorType::InvalidParameter), "{flags:?}");
        }
    }
    check_eq!(w.a.ep_get_status(rig.a.ep)?, (EpState::Connected, true, true));
    check!(rig.far.bytes(0, PAGE) == before, "a refused post had an effect");
    nothing(&w.a, rig.a.request)
}

/// On an event dispatcher of solicited Receives, a post that asks for it wakes the peer's waiter,
/// and another one does not. A compare and swap takes the flag, which has no effect.
fn solicited(w: &World<'_>, post: Post) -> Outcome {
    let (kind, flag) = (post.kind, CompletionFlags::SOLICITED_WAIT);
    let waits = EpAttr { recv_completion_flags: flag, ..attributes() };
    for more in [PLAIN, CompletionFlags::SUPPRESS] {
        let rig = Rig::with(w, kind, &attributes(), &waits)?;
        let piece = [rig.own.segment(64, 8)];
        let plain = if kind.is_atomic() { Kind::Send } else { kind };
        for cookie in 1..3 {
            rig.receive(plain, cookie)?;
            rig.post(Post { kind: plain, common: false }, &piece, cookie, PLAIN)?;
            rig.done(plain, cookie, DtoStatus::Success)?;
        }
        silently(w, &w.b, rig.b.recv, 2)?;
        rig.receive(kind, 3)?;
        rig.post(post, &piece, 3, flag | more)?;
        if more == PLAIN {
            rig.done(kind, 3, DtoStatus::Success)?;
        }
        if kind.is_atomic() {
            silently(w, &w.b, rig.b.recv, 2)?;
            continue;
        }
        let (event, more) = w.b.evd_wait(rig.b.recv, LONG, 1)?;
        check_eq!((event.dto().map(|done| done.user_cookie), more), (Some(1), 2));
    }
    Ok(())
}

/// As many segments as the endpoint's limit for this kind, each of one byte, of none, and no
/// segment at all; and one segment more, which is refused.
fn segments(w: &World<'_>, rig: &Rig, post: Post, attr: &EpAttr) -> Outcome {
    let kind = post.kind;
    let Some(most) = kind.most_segments(attr) else { return Ok(()) };
    let bytes: Vec<(usize, usize)> = (0..most + 1).map(|at| (3 * at, 1)).collect();
    let empty: Vec<(usize, usize)> = (0..most + 1).map(|at| (at, 0)).collect();
    rig.fill(kind, 1);
    for pieces in [&bytes, &empty] {
        let error = rig.post(post, &rig.segments(pieces), 1, PLAIN).map_err(Error::kind);
        check_eq!(error, Err(ErrorType::InvalidParameter), "{} segments", pieces.len());
    }
    check_eq!(w.a.ep_get_status(rig.a.ep)?, (EpState::Connected, true, true));
    for pieces in [&bytes[..most], &empty[..most], &[]] {
        rig.fill(kind, 1);
        let length: usize = pieces.iter().map(|(_, len)| len).sum();
        rig.receive(kind, 2)?;
        rig.post(post, &rig.segments(pieces), 3, PLAIN)?;
        let event = next(&w.a, rig.a.request)?;
        check_eq!(rig.is_done(kind, &event, 3, DtoStatus::Success)?, length as u64);
        if !(w.f.setup.lossy && kind.is_datagram()) {
            rig.arrived(kind, 2, length)?;
            rig.moved(kind, pieces)?;
        }
    }
    nothing(&w.a, rig.a.request)
}

/// Runs this for each post, on two endpoints for all posts of connections, and two for datagrams,
/// of which the first one's attributes are given. The rule leaves nothing behind.
fn on_one_rig(
    f: &crate::Fixture,
    attr: &EpAttr,
    rule: impl Fn(&World<'_>, &Rig, Post) -> Outcome,
) -> Outcome {
    for datagrams in [false, true] {
        world(f, |w| {
            let kind = if datagrams { Kind::Datagram } else { Kind::Send };
            let rig = Rig::with(w, kind, attr, &attributes())?;
            let mut own = posts().filter(|post| post.kind.is_datagram() == datagrams);
            own.try_for_each(|post| rule(w, &rig, post).map_err(named(post)))
        })?;
    }
    Ok(())
}

/// Runs this for each post, in a world of its own.
fn for_each(
    f: &crate::Fixture,
    mut posts: impl Iterator<Item = Post>,
    rule: impl Fn(&World<'_>, Post) -> Outcome,
) -> Outcome {
    posts.try_for_each(|post| world(f, |w| rule(w, post)).map_err(named(post)))
}

pub(crate) const TESTS: &[Test] = &[
    // Each kind of post completes with its own event, operation and extension type, its cookie and
    // its length, and moves its bytes; so does the peer's Receive, if the post takes one.
    test(
        "dat_each::completions",
        &[
            "DAT_IB_EVENT_NUMBER B01 F01",
            "DAT_IB_OP F01-F04",
            "DAT_IB_STATUS F01",
            "DAT_IB_EXTENSION_EVENT_DATA F01",
            "dat-ib-2.2 B05",
            "dat_ib_post_rdma_write_with_immed B07 B09 B14 B15 F05",
            "dat_ib_post_cmp_and_swap B08 B10 B13",
            "dat_ib_post_fetch_and_add B07 B08 B11",
            "dat_ib_post_send_ud B02 F04",
        ],
        |f| on_one_rig(f, &attributes(), completions),
    ),
    // A suppressed post of any kind makes no event if it succeeds, and makes one if it fails or is
    // flushed.
    test(
        "dat_each::suppressed",
        &[
            "dat_ib_post_rdma_write_with_immed F01",
            "dat_ib_post_cmp_and_swap F01",
            "dat_ib_post_fetch_and_add F01",
            "dat_ib_post_send_ud F01",
            "DAT_IB_STATUS B01 F02",
            "DAT_IB_EXTENSION_EVENT_DATA F02",
        ],
        |f| for_each(f, posts(), suppressed),
    ),
    // The completion of an unsignalled post of any kind wakes no waiter.
    test(
        "dat_each::unsignalled",
        &[
            "dat_ib_post_rdma_write_with_immed F03",
            "dat_ib_post_cmp_and_swap F03",
            "dat_ib_post_fetch_and_add F02",
            "dat_ib_post_send_ud F03",
        ],
        |f| on_one_rig(f, &unsignalled(), quiet),
    ),
    // Flags that a kind of post cannot have are refused: undefined ones, unsignalled on an endpoint
    // that does not allow it, a fence of a datagram, a notification by what takes no Receive.
    test(
        "dat_each::refused_flags",
        &[
            "dat_ib_post_rdma_write_with_immed B08",
            "dat_ib_post_cmp_and_swap A02 B09",
            "dat_ib_post_fetch_and_add DAT_INVALID_PARAMETER",
        ],
        |f| on_one_rig(f, &attributes(), refusals),
    ),
    // The peer's waiter on solicited Receives wakes for posts with the flag only. Datagrams may get
    // lost on a bad network, and are left out there.
    test(
        "dat_each::solicited",
        &["dat_ib_post_rdma_write_with_immed F02", "dat_ib_post_cmp_and_swap F02"],
        |f| {
            let arrives = |post: &Post| !(f.setup.lossy && post.kind.is_datagram());
            let takes = |post: &Post| post.kind.takes_receive() || post.kind == Kind::CompareAndSwap;
            for_each(f, posts().filter(arrives).filter(takes), solicited)
        },
    ),
    // Each kind of post has as many segments as its own attribute of the endpoint allows.
    test("dat_each::segments", &["dat_ib_post_rdma_write_with_immed B04 B05"], |f| {
        let mut most = 0;
        world(f, |w| {
            let (_, limits, _) = w.a.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
            most = some(limits, "the IA's attributes")?.max_iov_segments_per_dto;
            Ok(())
        })?;
        for (requests, writes, reads) in [(1, 3, 2), (3, 2, 1), (2, 1, 3), (most, most, most)] {
            let attr = EpAttr {
                max_request_iov: requests,
                max_rdma_write_iov: writes,
                max_rdma_read_iov: reads,
                ..attributes()
            };
            on_one_rig(f, &attr, |w, rig, post| segments(w, rig, post, &attr))?;
        }
        Ok(())
    }),
];
