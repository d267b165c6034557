//! The messages of DH-HMAC-CHAP. Reading one checks its length, its type and its fields, and
//! returns the reason for which a message with such a fault is refused.

use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::DH_HMAC_CHAP;
use super::digest::Hash;
use super::group::Group;

/// The types of messages (AUTH_TYPE) and their identifiers (AUTH_ID).
mod kind {
    pub const NEGOTIATE: [u8; 2] = [0, 0];
    pub const CHALLENGE: [u8; 2] = [1, 1];
    pub const REPLY: [u8; 2] = [1, 2];
    pub const SUCCESS1: [u8; 2] = [1, 3];
    pub const SUCCESS2: [u8; 2] = [1, 4];
    pub const FAILURE2: [u8; 2] = [0, 0xf0];
    pub const FAILURE1: [u8; 2] = [0, 0xf1];
}

/// Why an authentication failed (Reason Code Explanation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The response is wrong, or there is no key for it.
    Failed = 1,
    /// No protocol that both have.
    Protocol = 2,
    /// Concatenation with a secure channel does not fit.
    Concatenation = 3,
    /// No hash function that both have.
    Hash = 4,
    /// No group that both have.
    Group = 5,
    /// The message's fields are wrong.
    Payload = 6,
    /// It is not this message's turn.
    Message = 7,
}

impl Reason {
    /// The reason with this number.
    pub fn from_number(number: u8) -> Option<Reason> {
        const ALL: [Reason; 7] = [
            Reason::Failed,
            Reason::Protocol,
            Reason::Concatenation,
            Reason::Hash,
            Reason::Group,
            Reason::Payload,
            Reason::Message,
        ];
        ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Failed => "the response is wrong",
            Reason::Protocol => "no protocol that both sides have",
            Reason::Concatenation => "a secure channel is asked for",
            Reason::Hash => "no hash function that both sides have",
            Reason::Group => "no group that both sides have",
            Reason::Payload => "a message with wrong fields",
            Reason::Message => "a message out of turn",
        })
    }
}

/// Which message some bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Negotiate`].
    Negotiate,
    /// [`Challenge`].
    Challenge,
    /// [`Reply`].
    Reply,
    /// [`Success1`].
    Success1,
    /// [`Success2`].
    Success2,
    /// [`Failed`], from the controller.
    Failure1,
    /// [`Failed`], from the host.
    Failure2,
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: [u8; 2],
    _reserved: U16,
    id: U16,
}

/// Which message this is, and its transaction's identifier (T_ID).
///
/// # Errors
///
/// [`Reason::Payload`] if it is too short for any message, [`Reason::Message`] if there is none of
/// its type.
pub fn kind(message: &[u8]) -> Result<(Kind, u16), Reason> {
    let (head, _) = Head::ref_from_prefix(message).map_err(|_| Reason::Payload)?;
    let kind = match head.kind {
        kind::NEGOTIATE => Kind::Negotiate,
        kind::CHALLENGE => Kind::Challenge,
        kind::REPLY => Kind::Reply,
        kind::SUCCESS1 => Kind::Success1,
        kind::SUCCESS2 => Kind::Success2,
        kind::FAILURE1 => Kind::Failure1,
        kind::FAILURE2 => Kind::Failure2,
        _ => return Err(Reason::Message),
    };
    Ok((kind, head.id.get()))
}

/// The most hash functions, and the most groups, of a proposal.
const MOST_PROPOSED: usize = 30;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NegotiateHead {
    head: Head,
    concatenation: u8,
    count: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Proposal {
    protocol: u8,
    _reserved: u8,
    hashes: u8,
    groups: u8,
    hash: [u8; MOST_PROPOSED],
    group: [u8; MOST_PROPOSED],
}

/// AUTH_Negotiate: what a host proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// The transaction that it begins.
    pub id: u16,
    /// The numbers of hash functions, the host's favourite first.
    pub hashes: &'a [u8],
    /// The numbers of groups.
    pub groups: &'a [u8],
}

impl<'a> Negotiate<'a> {
    /// Bytes of a message with one protocol.
    pub const LEN: usize = size_of::<NegotiateHead>() + size_of::<Proposal>();

    /// Reads a message of which [`kind()`] says that it is this one.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn parse(message: &'a [u8]) -> Result<Negotiate<'a>, Reason> {
        let (head, rest) = NegotiateHead::ref_from_prefix(message).map_err(|_| Reason::Payload)?;
        if head.concatenation != 0 {
            return Err(Reason::Concatenation);
        }
        let count = usize::from(head.count);
        let (proposals, _) =
            <[Proposal]>::ref_from_prefix_with_elems(rest, count).map_err(|_| Reason::Payload)?;
        let ours = proposals.iter().find(|proposal| proposal.protocol == DH_HMAC_CHAP);
        let ours = ours.ok_or(if count == 0 { Reason::Payload } else { Reason::Protocol })?;
        let hashes = ours.hash.get(..usize::from(ours.hashes)).ok_or(Reason::Payload)?;
        let groups = ours.group.get(..usize::from(ours.groups)).ok_or(Reason::Payload)?;
        Ok(Negotiate { id: head.head.id.get(), hashes, groups })
    }

    /// Writes it; returns its bytes. Of hash functions and groups beyond 30 each it has none.
    pub fn write(&self, into: &mut [u8; Negotiate::LEN]) -> usize {
        let mut proposal = Proposal { protocol: DH_HMAC_CHAP, ..Proposal::new_zeroed() };
        let fill = |all: &mut [u8; MOST_PROPOSED], from: &[u8]| {
            let count = from.len().min(all.len());
            all[..count].copy_from_slice(&from[..count]);
            count as u8
        };
        proposal.hashes = fill(&mut proposal.hash, self.hashes);
        proposal.groups = fill(&mut proposal.group, self.groups);
        let head = NegotiateHead { head: head(kind::NEGOTIATE, self.id), concatenation: 0, count: 1 };
        let mut out = Out::new(into);
        out.put(head.as_bytes());
        out.put(proposal.as_bytes());
        out.len
    }
}

/// What [`Challenge`], [`Reply`] and [`Success1`] begin with. Bytes 8 and 9 have a meaning of their
/// own in each.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    head: Head,
    hash_len: u8,
    _reserved_7: u8,
    byte_8: u8,
    byte_9: u8,
    value_len: U16,
    sequence: U32,
}

const _: () = assert!(size_of::<Fields>() == 16);

impl Fields {
    fn new(kind: [u8; 2], id: u16) -> Fields {
        Fields { head: head(kind, id), ..Fields::new_zeroed() }
    }
}

/// DH-HMAC-CHAP_Challenge: what the controller chooses and asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// The transaction.
    pub id: u16,
    /// The hash function.
    pub hash: Hash,
    /// The group.
    pub group: Group,
    /// The sequence number (S1), not 0.
    pub sequence: u32,
    /// The challenge (C1).
    pub challenge: &'a [u8],
    /// The controller's value of the exchange, if there is one.
    pub value: &'a [u8],
}

impl<'a> Challenge<'a> {
    /// Reads a message of which [`kind()`] says that it is this one.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn parse(message: &'a [u8]) -> Result<Challenge<'a>, Reason> {
        let (fields, rest) = Fields::ref_from_prefix(message).map_err(|_| Reason::Payload)?;
        let hash = Hash::from_number(fields.byte_8).ok_or(Reason::Hash)?;
        let group = Group::from_number(fields.byte_9).ok_or(Reason::Group)?;
        let sequence = fields.sequence.get();
        let lens = (usize::from(fields.hash_len), usize::from(fields.value_len.get()));
        if lens != (hash.len(), group.len()) || sequence == 0 {
            return Err(Reason::Payload);
        }
        let (challenge, rest) = rest.split_at_checked(lens.0).ok_or(Reason::Payload)?;
        let value = rest.get(..lens.1).ok_or(Reason::Payload)?;
        Ok(Challenge { id: fields.head.id.get(), hash, group, sequence, challenge, value })
    }

    /// Writes it; returns how many bytes it has, which may be more than there is room for.
    pub fn write(&self, into: &mut [u8]) -> usize {
        let mut fields = Fields::new(kind::CHALLENGE, self.id);
        (fields.hash_len, fields.byte_8, fields.byte_9) =
            (self.hash.len() as u8, self.hash as u8, self.group as u8);
        fields.value_len = (self.value.len() as u16).into();
        fields.sequence = self.sequence.into();
        let mut out = Out::new(into);
        out.put(fields.as_bytes());
        out.put(self.challenge);
        out.put(self.value);
        out.len
    }
}

/// DH-HMAC-CHAP_Reply: the host's response, and what it asks in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The transaction.
    pub id: u16,
    /// The response (R1).
    pub response: &'a [u8],
    /// The challenge (C2) and the sequence number (S2, not 0), if the controller is to
    /// authenticate.
    pub challenge: Option<(&'a [u8], u32)>,
    /// The host's value of the exchange, if there is one.
    pub value: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Reads a message of which [`kind()`] says that it is this one, in a transaction with this
    /// hash function and this group.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn parse(message: &'a [u8], hash: Hash, group: Group) -> Result<Reply<'a>, Reason> {
        let (fields, rest) = Fields::ref_from_prefix(message).map_err(|_| Reason::Payload)?;
        let lens = (usize::from(fields.hash_len), usize::from(fields.value_len.get()));
        if lens != (hash.len(), group.len()) {
            return Err(Reason::Payload);
        }
        let (response, rest) = rest.split_at_checked(hash.len()).ok_or(Reason::Payload)?;
        let (challenge, rest) = rest.split_at_checked(hash.len()).ok_or(Reason::Payload)?;
        let value = rest.get(..group.len()).ok_or(Reason::Payload)?;
        // Linux sends a sequence number without a challenge, too.
        let challenge = match (fields.byte_8, fields.sequence.get()) {
            (0, _) => None,
            (1, sequence @ 1..) => Some((challenge, sequence)),
            _ => return Err(Reason::Payload),
        };
        Ok(Reply { id: fields.head.id.get(), response, challenge, value })
    }

    /// Writes it; returns how many bytes it has, which may be more than there is room for.
    pub fn write(&self, into: &mut [u8]) -> usize {
        let mut fields = Fields::new(kind::REPLY, self.id);
        fields.hash_len = self.response.len() as u8;
        fields.value_len = (self.value.len() as u16).into();
        let mut out = Out::new(into);
        if let Some((_, sequence)) = self.challenge {
            (fields.byte_8, fields.sequence) = (1, sequence.into());
        }
        out.put(fields.as_bytes());
        out.put(self.response);
        match self.challenge {
            Some((challenge, _)) => out.put(challenge),
            None => out.zeros(self.response.len()),
        }
        out.put(self.value);
        out.len
    }
}

/// DH-HMAC-CHAP_Success1: the host has authenticated; the controller's response, if the host
/// asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// The transaction.
    pub id: u16,
    /// The hash function.
    pub hash: Hash,
    /// The response (R2).
    pub response: Option<&'a [u8]>,
}

impl<'a> Success1<'a> {
    /// Reads a message of which [`kind()`] says that it is this one, in a transaction with this
    /// hash function.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn parse(message: &'a [u8], hash: Hash) -> Result<Success1<'a>, Reason> {
        let (fields, rest) = Fields::ref_from_prefix(message).map_err(|_| Reason::Payload)?;
        if usize::from(fields.hash_len) != hash.len() {
            return Err(Reason::Payload);
        }
        let response = match fields.byte_8 {
            0 => None,
            1 => Some(rest.get(..hash.len()).ok_or(Reason::Payload)?),
            _ => return Err(Reason::Payload),
        };
        Ok(Success1 { id: fields.head.id.get(), hash, response })
    }

    /// Writes it; returns how many bytes it has, which may be more than there is room for.
    pub fn write(&self, into: &mut [u8]) -> usize {
        let mut fields = Fields::new(kind::SUCCESS1, self.id);
        (fields.hash_len, fields.byte_8) = (self.hash.len() as u8, u8::from(self.response.is_some()));
        let mut out = Out::new(into);
        out.put(fields.as_bytes());
        out.put(self.response.unwrap_or_default());
        out.len
    }
}

/// DH-HMAC-CHAP_Success2: the controller has authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success2 {
    /// The transaction.
    pub id: u16,
}

impl Success2 {
    /// Bytes of a message.
    pub const LEN: usize = 16;

    /// Reads a message of which [`kind()`] says that it is this one.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn parse(message: &[u8]) -> Result<Success2, Reason> {
        let (fields, _) = Fields::ref_from_prefix(message).map_err(|_| Reason::Payload)?;
        Ok(Success2 { id: fields.head.id.get() })
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; Success2::LEN] {
        let mut bytes = [0; Success2::LEN];
        bytes.copy_from_slice(Fields::new(kind::SUCCESS2, self.id).as_bytes());
        bytes
    }
}

/// AUTH_Failure1 and AUTH_Failure2: the end of a transaction, by the controller and by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The transaction.
    pub id: u16,
    /// Why; `None` if the message gives no known reason.
    pub reason: Option<Reason>,
}

/// The only Reason Code: authentication failed.
const FAILED: u8 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FailedFields {
    head: Head,
    code: u8,
    explanation: u8,
}

impl Failed {
    /// Bytes of a message.
    pub const LEN: usize = size_of::<FailedFields>();

    /// Reads a message of which [`kind()`] says that it is this one.
    ///
    /// # Errors
    ///
    /// [`Reason::Payload`] if it is too short.
    pub fn parse(message: &[u8]) -> Result<Failed, Reason> {
        let (fields, _) = FailedFields::ref_from_prefix(message).map_err(|_| Reason::Payload)?;
        Ok(Failed { id: fields.head.id.get(), reason: Reason::from_number(fields.explanation) })
    }

    /// Its bytes as AUTH_Failure1, or as AUTH_Failure2 if the host sends it.
    pub fn bytes(&self, by_host: bool) -> [u8; Failed::LEN] {
        let kind = if by_host { kind::FAILURE2 } else { kind::FAILURE1 };
        let explanation = self.reason.map_or(0, |reason| reason as u8);
        let mut bytes = [0; Failed::LEN];
        let fields = FailedFields { head: head(kind, self.id), code: FAILED, explanation };
        bytes.copy_from_slice(fields.as_bytes());
        bytes
    }
}

fn head(kind: [u8; 2], id: u16) -> Head {
    Head { kind, _reserved: 0.into(), id: id.into() }
}

/// Bytes that are written one part behind the other; what has no room is counted only.
struct Out<'a> {
    into: &'a mut [u8],
    len: usize,
}

impl<'a> Out<'a> {
    fn new(into: &'a mut [u8]) -> Out<'a> {
        Out { into, len: 0 }
    }

    fn put(&mut self, part: &[u8]) {
        let end = self.len + part.len();
        if let Some(place) = self.into.get_mut(self.len..end) {
            place.copy_from_slice(part);
        }
        self.len = end;
    }

    fn zeros(&mut self, len: usize) {
        let end = self.len + len;
        if let Some(place) = self.into.get_mut(self.len..end) {
            place.fill(0);
        }
        self.len = end;
    }
}
