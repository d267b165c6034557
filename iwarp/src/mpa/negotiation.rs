//! What the two ends of a stream agree on (RFC 5044 section 7.1, RFC 6581 sections 5 to 9).
//!
//! The initiator sends [`request`], and judges the Reply by [`conclude`]; or [`plain_request`], and
//! [`conclude_plain`]. The responder judges the Request by [`consider`], and answers with
//! [`accept`] or [`reject`]. These are functions of the frames and of what an end wants: they do no
//! I/O and keep no state.
//!
//! A [`Refusal`] names why there is no connection, and what to answer ([`Refusal::answer`]).

use core::fmt;

use crate::Error;
use crate::rdmap::terminate::Code;

use super::frame::{Depth, Enhanced, Kind, MAX_DATA, REVISION, Repr};

/// The revision of a Request without IRD and ORD, that of RFC 5044.
const PLAIN: u8 = 1;

/// What one end wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// How many RDMA Reads of the peer it takes at a time.
    pub ird: u16,
    /// How many RDMA Reads it wants to have outstanding.
    pub ord: u16,
    /// It wants CRCs. There are CRCs if either end wants them.
    pub crc: bool,
    /// The most private data that its consumer takes, beside IRD and ORD.
    pub private_data: usize,
}

/// What both ends have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// FPDUs have CRCs.
    pub crc: bool,
    /// The revision of MPA.
    pub revision: u8,
    /// The frames have IRD and ORD. Without them `ird` and `ord` are what this end wants.
    pub enhanced: bool,
    /// How many RDMA Reads of the peer this end takes at a time.
    pub ird: u16,
    /// How many RDMA Reads this end may have outstanding.
    pub ord: u16,
    /// The first message of the initiator, which no consumer sees, if there is one.
    pub first: Option<First>,
}

/// The initiator's first message in a peer-to-peer set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// An empty RDMA Write.
    Write,
    /// An empty RDMA Read.
    Read,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes are no frame: the key, the revision or the length is wrong.
    Frame(Error),
    /// The peer wants markers.
    Markers,
    /// The frame has the flag for IRD and ORD, but not their bytes.
    Short,
    /// Bytes follow the Request. The initiator has to wait for the Reply.
    BytesBehind,
    /// There is more private data than the consumer takes.
    PrivateData,
    /// Of the first messages that the initiator offers this end supports none.
    NoFirstMessage,
    /// The Reply is of another revision, or lacks the IRD and ORD of the Request.
    OtherRevision,
    /// The responder wants more RDMA Reads outstanding than this end takes.
    Ird,
    /// The Reply asks for a first message that the Request did not offer.
    FirstMessage,
    /// The responder's consumer, or the responder, rejects the connection. The Reply's private data
    /// is for the consumer.
    Rejected,
}

/// How an end answers what it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By a Reply that rejects ([`reject`]), and then a close.
    Reject,
    /// By this Terminate ([`crate::rdmap::terminate::Repr::fpdu`]), and then a close.
    Terminate(Code),
    /// By a close alone.
    Close,
}

impl Refusal {
    /// How the end of that kind of frame answers: the responder refuses a Request, the initiator a
    /// Reply.
    pub const fn answer(self, refused: Kind) -> Answer {
        match (refused, self) {
            (Kind::Request, Refusal::Markers | Refusal::Short | Refusal::NoFirstMessage) => Answer::Reject,
            (Kind::Request, _) | (Kind::Reply, Refusal::Rejected | Refusal::Markers) => Answer::Close,
            (Kind::Reply, Refusal::Ird) => Answer::Terminate(Code::MPA_IRD),
            (Kind::Reply, Refusal::FirstMessage) => Answer::Terminate(Code::MPA_FIRST_MESSAGE),
            (Kind::Reply, _) => Answer::Terminate(Code::MPA_FRAME),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Frame(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Frame(error) => return error.fmt(f),
            Refusal::Markers => "the peer wants markers",
            Refusal::Short => "the frame has no room for its IRD and ORD",
            Refusal::BytesBehind => "bytes follow the Request",
            Refusal::PrivateData => "there is too much private data",
            Refusal::NoFirstMessage => "no first message that the initiator offers is supported",
            Refusal::OtherRevision => "the Reply is of another revision than the Request",
            Refusal::Ird => "the responder wants more RDMA Reads than this end takes",
            Refusal::FirstMessage => "the Reply asks for a first message that was not offered",
            Refusal::Rejected => "the responder rejects",
        })
    }
}

impl core::error::Error for Refusal {}

/// A frame that an end sends, with its data.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    kind: Kind,
    crc: bool,
    reject: bool,
    enhanced: bool,
    revision: u8,
    data: [u8; MAX_DATA],
    len: usize,
}

impl Outgoing {
    fn new(kind: Kind, enhanced: Option<Enhanced>, private: &[u8]) -> Option<Outgoing> {
        let head = enhanced.map(Enhanced::to_bytes);
        let head = head.as_ref().map_or(&[][..], |bytes| bytes);
        let (mut data, len) = ([0; MAX_DATA], head.len() + private.len());
        let (first, rest) = data.get_mut(..len)?.split_at_mut(head.len());
        first.copy_from_slice(head);
        rest.copy_from_slice(private);
        let enhanced = enhanced.is_some();
        Some(Outgoing { kind, crc: false, reject: false, enhanced, revision: REVISION, data, len })
    }

    /// The frame.
    pub fn frame(&self) -> Repr<'_> {
        Repr {
            kind: self.kind,
            markers: false,
            crc: self.crc,
            reject: self.reject,
            enhanced: self.enhanced,
            revision: self.revision,
            data: self.data.get(..self.len).unwrap_or_default(),
        }
    }
}

/// The Request of an initiator; `None` if the private data is longer than the format allows
/// ([`super::frame::MAX_PRIVATE_DATA`]). It offers no first message: the consumer of the initiator
/// sends first.
pub fn request(wishes: &Wishes, private: &[u8]) -> Option<Outgoing> {
    let enhanced =
        Enhanced { ird: Depth::new(wishes.ird), ord: Depth::new(wishes.ord), ..Enhanced::default() };
    let outgoing = Outgoing::new(Kind::Request, Some(enhanced), private)?;
    Some(Outgoing { crc: wishes.crc, ..outgoing })
}

/// The Request of an initiator whose consumer has agreed on IRD and ORD with its peer by other
/// means: one of revision 1, which has neither, and no private data. Its Reply is judged by
/// [`conclude_plain`].
pub fn plain_request(crc: bool) -> Outgoing {
    let data = [0; MAX_DATA];
    let (kind, revision) = (Kind::Request, PLAIN);
    Outgoing { kind, crc, reject: false, enhanced: false, revision, data, len: 0 }
}

/// Judges a Request. `behind` says that bytes follow it. Returns what a connection would have, and
/// the private data for the consumer, who decides.
///
/// The responder's ORD becomes at most the initiator's IRD. Its IRD stays what it wants, and the
/// Reply names it, so that the initiator can lower its ORD; [`asked`] has what the initiator asks
/// for.
pub fn consider<'a>(
    request: &Repr<'a>,
    wishes: &Wishes,
    behind: bool,
) -> Result<(Agreed, &'a [u8]), Refusal> {
    if behind {
        return Err(Refusal::BytesBehind);
    }
    if request.markers {
        return Err(Refusal::Markers);
    }
    let (enhanced, private) = request.split().map_err(|_| Refusal::Short)?;
    if private.len() > wishes.private_data {
        return Err(Refusal::PrivateData);
    }
    let first = match enhanced {
        Some(Enhanced { peer_to_peer: true, write: true, .. }) => Some(First::Write),
        // An empty RDMA Read counts as one.
        Some(Enhanced { peer_to_peer: true, read: true, .. }) if wishes.ird > 0 => Some(First::Read),
        Some(Enhanced { peer_to_peer: true, .. }) => return Err(Refusal::NoFirstMessage),
        _ => None,
    };
    let theirs = enhanced.and_then(|enhanced| enhanced.ird.get());
    let agreed = Agreed {
        crc: request.crc || wishes.crc,
        revision: request.revision,
        enhanced: enhanced.is_some(),
        ird: wishes.ird,
        ord: theirs.map_or(wishes.ord, |ird| wishes.ord.min(ird)),
        first,
    };
    Ok((agreed, private))
}

/// The initiator's IRD and ORD, if its Request says them.
pub fn asked(request: &Repr<'_>) -> (Option<u16>, Option<u16>) {
    match request.split() {
        Ok((Some(enhanced), _)) => (enhanced.ird.get(), enhanced.ord.get()),
        _ => (None, None),
    }
}

/// The Reply that accepts what was agreed on; `None` if the private data is too long.
pub fn accept(agreed: &Agreed, private: &[u8]) -> Option<Outgoing> {
    let enhanced = agreed.enhanced.then(|| Enhanced {
        ird: Depth::new(agreed.ird),
        ord: Depth::new(agreed.ord),
        peer_to_peer: agreed.first.is_some(),
        send: false,
        write: agreed.first == Some(First::Write),
        read: agreed.first == Some(First::Read),
    });
    let outgoing = Outgoing::new(Kind::Reply, enhanced, private)?;
    Some(Outgoing { crc: agreed.crc, revision: agreed.revision, ..outgoing })
}

/// The Reply that rejects a Request; `None` if the private data is too long. Of a Request of
/// revision 2 with the flag for IRD and ORD it has both, as zeroes.
pub fn reject(request: &Repr<'_>, private: &[u8]) -> Option<Outgoing> {
    let enhanced = request.enhanced.then(Enhanced::default);
    let outgoing = Outgoing::new(Kind::Reply, enhanced, private)?;
    Some(Outgoing { crc: request.crc, reject: true, revision: request.revision, ..outgoing })
}

/// Judges the Reply to a Request that was made by [`request`] with the same wishes. Returns what
/// the connection has, and the private data. Bytes behind the Reply are FPDUs.
///
/// This end's ORD becomes at most the responder's IRD. It cannot take more RDMA Reads at a time
/// than its Request said, so a responder with a higher ORD is refused.
pub fn conclude<'a>(reply: &Repr<'a>, wishes: &Wishes) -> Result<(Agreed, &'a [u8]), Refusal> {
    if reply.reject {
        return Err(Refusal::Rejected);
    }
    if reply.markers {
        return Err(Refusal::Markers);
    }
    if !reply.enhanced {
        return Err(Refusal::OtherRevision);
    }
    let (enhanced, private) = reply.split().map_err(|_| Refusal::Short)?;
    let enhanced = enhanced.ok_or(Refusal::OtherRevision)?;
    if private.len() > wishes.private_data {
        return Err(Refusal::PrivateData);
    }
    if enhanced.peer_to_peer {
        return Err(Refusal::FirstMessage);
    }
    if enhanced.ord.get().is_some_and(|ord| ord > wishes.ird) {
        return Err(Refusal::Ird);
    }
    let agreed = Agreed {
        crc: reply.crc || wishes.crc,
        revision: reply.revision,
        enhanced: true,
        ird: wishes.ird,
        ord: enhanced.ird.get().map_or(wishes.ord, |ird| wishes.ord.min(ird)),
        first: None,
    };
    Ok((agreed, private))
}

/// Judges the Reply to a [`plain_request`], which lowers nothing: the connection has the IRD and
/// ORD that this end wants.
pub fn conclude_plain<'a>(reply: &Repr<'a>, wishes: &Wishes) -> Result<(Agreed, &'a [u8]), Refusal> {
    if reply.reject {
        return Err(Refusal::Rejected);
    }
    if reply.markers {
        return Err(Refusal::Markers);
    }
    if reply.enhanced || reply.revision != PLAIN {
        return Err(Refusal::OtherRevision);
    }
    if reply.data.len() > wishes.private_data {
        return Err(Refusal::PrivateData);
    }
    let &Wishes { ird, ord, .. } = wishes;
    let crc = reply.crc || wishes.crc;
    Ok((Agreed { crc, revision: PLAIN, enhanced: false, ird, ord, first: None }, reply.data))
}

/// The private data of a Reply that rejects, which is for the consumer.
pub fn rejection<'a>(reply: &Repr<'a>) -> &'a [u8] {
    reply.split().map_or(&[], |(_, private)| private)
}
