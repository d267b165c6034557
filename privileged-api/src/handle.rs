//! Handles: one word each, checked in constant time (page it_handle_t).
//!
//! | bits | what |
//! |---|---|
//! | 0..24 | index into the table of its type |
//! | 24..28 | type, plus one: no handle is zero |
//! | 28..40 | which IA it belongs to |
//! | 40..64 | generation: how many times the index was given out |
//!
//! A table entry holds the whole word that is valid for it now, so one comparison finds handles that are
//! null, freed, of another IA or of another type.

use core::fmt;

/// Bits of the index.
pub(crate) const INDEX_BITS: u32 = 24;
const TYPE_SHIFT: u32 = INDEX_BITS;
const IA_SHIFT: u32 = 28;
/// Bits of the IA's number.
pub(crate) const IA_BITS: u32 = 12;
const GENERATION_SHIFT: u32 = 40;
/// Generations that fit into a handle.
pub(crate) const GENERATION_MASK: u32 = (1 << 24) - 1;

/// The generation after this one. 0 is never one, and the last that fits is the direct LMR handle's.
pub(crate) const fn next_generation(generation: u32) -> u32 {
    if generation >= GENERATION_MASK - 1 { 1 } else { generation + 1 }
}

/// What kind of object a handle names.
#[doc(alias = "it_handle_type_enum_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum HandleType {
    /// Address handle.
    Addr = 0,
    /// Endpoint.
    Ep = 1,
    /// Event dispatcher.
    Evd = 2,
    /// Interface adapter.
    Ia = 3,
    /// Listen point.
    Listen = 4,
    /// Local memory region.
    Lmr = 5,
    /// Protection zone.
    Pz = 6,
    /// Remote memory region.
    Rmr = 7,
    /// UD service request.
    UdSvcReq = 8,
    /// Shared receive queue.
    Srq = 9,
}

impl HandleType {
    const fn from_bits(bits: u64) -> Option<HandleType> {
        Some(match bits {
            1 => HandleType::Addr,
            2 => HandleType::Ep,
            3 => HandleType::Evd,
            4 => HandleType::Ia,
            5 => HandleType::Listen,
            6 => HandleType::Lmr,
            7 => HandleType::Pz,
            8 => HandleType::Rmr,
            9 => HandleType::UdSvcReq,
            10 => HandleType::Srq,
            _ => return None,
        })
    }
}

/// The word of the handle for entry `index` of `kind`'s table in IA number `ia`.
pub(crate) const fn word(kind: HandleType, ia: u32, index: u32, generation: u32) -> u64 {
    (index & ((1 << INDEX_BITS) - 1)) as u64
        | (kind as u64 + 1) << TYPE_SHIFT
        | ((ia & ((1 << IA_BITS) - 1)) as u64) << IA_SHIFT
        | ((generation & GENERATION_MASK) as u64) << GENERATION_SHIFT
}

/// The index in a handle's word.
#[inline(always)]
pub(crate) const fn index(word: u64) -> usize {
    (word & ((1 << INDEX_BITS) - 1)) as usize
}

/// The generation in a handle's word.
pub(crate) const fn generation(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

/// A handle of any type.
#[doc(alias = "it_handle_t")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Handle(u64);

impl Handle {
    /// No object (`IT_NULL_HANDLE`).
    #[doc(alias = "IT_NULL_HANDLE")]
    pub const NULL: Handle = Handle(0);

    /// The handle with this word; every use checks it.
    pub const fn from_raw(word: u64) -> Handle {
        Handle(word)
    }

    /// The word.
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// Whether it is the null handle.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The type that the word claims; whether such an object lives is for
    /// [`Ia::get_handle_type`](crate::Ia::get_handle_type) to say.
    pub(crate) const fn claimed_type(self) -> Option<HandleType> {
        HandleType::from_bits(self.0 >> TYPE_SHIFT & 0xf)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.claimed_type() {
            None if self.is_null() => f.write_str("NULL"),
            None => write!(f, "Handle({:#x})", self.0),
            Some(kind) => write!(
                f,
                "{kind:?}({} of IA {}, generation {})",
                index(self.0),
                self.0 >> IA_SHIFT & ((1 << IA_BITS) - 1),
                generation(self.0)
            ),
        }
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident: $kind:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u64);

        impl $name {
            /// No object (`IT_NULL_HANDLE`).
            pub const NULL: $name = $name(0);
            /// The type of object that such a handle names.
            pub const TYPE: HandleType = HandleType::$kind;

            /// The handle with this word; every use checks it.
            pub const fn from_raw(word: u64) -> $name {
                $name(word)
            }

            /// The word.
            #[inline(always)]
            pub const fn as_raw(self) -> u64 {
                self.0
            }

            /// Whether it is the null handle.
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }

        impl From<$name> for Handle {
            fn from(handle: $name) -> Handle {
                Handle(handle.0)
            }
        }

        impl TryFrom<Handle> for $name {
            type Error = crate::Error;

            /// Succeeds if the word claims this type, or is null.
            fn try_from(handle: Handle) -> crate::Result<$name> {
                match handle.claimed_type() {
                    Some(HandleType::$kind) => Ok($name(handle.0)),
                    _ if handle.is_null() => Ok($name::NULL),
                    _ => Err(crate::Error::InvalidHandle),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Handle(self.0).fmt(f)
            }
        }
    )*};
}

handles! {
    /// An address handle.
    #[doc(alias = "it_addr_handle_t")]
    AddrHandle: Addr;
    /// An endpoint.
    #[doc(alias = "it_ep_handle_t")]
    EpHandle: Ep;
    /// An event dispatcher.
    #[doc(alias = "it_evd_handle_t")]
    EvdHandle: Evd;
    /// An interface adapter.
    #[doc(alias = "it_ia_handle_t")]
    IaHandle: Ia;
    /// A listen point.
    #[doc(alias = "it_listen_handle_t")]
    ListenHandle: Listen;
    /// A local memory region.
    #[doc(alias = "it_lmr_handle_t")]
    LmrHandle: Lmr;
    /// A protection zone.
    #[doc(alias = "it_pz_handle_t")]
    PzHandle: Pz;
    /// A remote memory region.
    #[doc(alias = "it_rmr_handle_t")]
    RmrHandle: Rmr;
    /// A UD service request.
    #[doc(alias = "it_ud_svc_req_handle_t")]
    UdSvcReqHandle: UdSvcReq;
    /// A shared receive queue.
    #[doc(alias = "it_srq_handle_t")]
    SrqHandle: Srq;
}

impl LmrHandle {
    /// The direct LMR handle: segments that name it are addressed by I/O address (see [`crate::Ia::mem_map`]).
    ///
    /// Only work requests of privileged endpoints may use it, and never as the sink of an RDMA Read; elsewhere it is a completion error.
    /// It is the same for all IAs. [`crate::IaInfo::direct_lmr_handle`] says whether an IA has it.
    #[doc(alias = "direct_lmr_handle")]
    pub const DIRECT: LmrHandle = LmrHandle(word(HandleType::Lmr, (1 << IA_BITS) - 1, 0, GENERATION_MASK));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_parts_apart() {
        let word = word(HandleType::Srq, 0xfff, 0xff_ffff, GENERATION_MASK);
        assert_eq!(index(word), 0xff_ffff);
        assert_eq!(generation(word), GENERATION_MASK);
        assert_eq!(Handle::from_raw(word).claimed_type(), Some(HandleType::Srq));
        assert_eq!(Handle::NULL.claimed_type(), None);
    }

    #[test]
    fn typed_handles_only_come_from_words_of_their_type() {
        let ep = EpHandle::from_raw(word(HandleType::Ep, 1, 2, 3));
        assert_eq!(EpHandle::try_from(Handle::from(ep)), Ok(ep));
        assert_eq!(EvdHandle::try_from(Handle::from(ep)), Err(crate::Error::InvalidHandle));
        assert!(EvdHandle::try_from(Handle::NULL).unwrap().is_null());
    }
}
