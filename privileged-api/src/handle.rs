//! Handles: one word each, checked in constant time (page it_handle_t). [`rdma::handle`]
//! defines the bits.

use core::fmt;

use rdma::handle::{self, ADAPTER_BITS, GENERATION_MASK, ObjectHandle, Tag};

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
    /// The tag of handles of this type.
    pub(crate) const fn tag(self) -> Tag {
        Tag::new(self as u32)
    }

    const fn from_number(number: u32) -> Option<HandleType> {
        Some(match number {
            0 => HandleType::Addr,
            1 => HandleType::Ep,
            2 => HandleType::Evd,
            3 => HandleType::Ia,
            4 => HandleType::Listen,
            5 => HandleType::Lmr,
            6 => HandleType::Pz,
            7 => HandleType::Rmr,
            8 => HandleType::UdSvcReq,
            9 => HandleType::Srq,
            _ => return None,
        })
    }
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

    /// The same word as a handle of one type, which it may not be: a table finds nothing then.
    #[inline(always)]
    pub(crate) fn typed<H: ObjectHandle>(self) -> H {
        H::from_word(self.0)
    }

    /// The type that the word claims. [`Ia::get_handle_type`](crate::Ia::get_handle_type) also
    /// checks that such an object exists.
    pub(crate) const fn claimed_type(self) -> Option<HandleType> {
        match handle::tag(self.0) {
            Some(number) => HandleType::from_number(number),
            None => None,
        }
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
                handle::index(self.0),
                handle::adapter(self.0),
                handle::generation(self.0)
            ),
        }
    }
}

macro_rules! typed {
    ($($name:ident: $kind:ident;)*) => {$(
        impl $name {
            /// The type of object that such a handle names.
            pub const TYPE: HandleType = HandleType::$kind;
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

rdma::handles! {
    /// An address handle.
    #[doc(alias = "it_addr_handle_t")]
    AddrHandle = HandleType::Addr.tag();
    /// An endpoint.
    #[doc(alias = "it_ep_handle_t")]
    EpHandle = HandleType::Ep.tag();
    /// An event dispatcher.
    #[doc(alias = "it_evd_handle_t")]
    EvdHandle = HandleType::Evd.tag();
    /// An interface adapter.
    #[doc(alias = "it_ia_handle_t")]
    IaHandle = HandleType::Ia.tag();
    /// A listen point.
    #[doc(alias = "it_listen_handle_t")]
    ListenHandle = HandleType::Listen.tag();
    /// A local memory region.
    #[doc(alias = "it_lmr_handle_t")]
    LmrHandle = HandleType::Lmr.tag();
    /// A protection zone.
    #[doc(alias = "it_pz_handle_t")]
    PzHandle = HandleType::Pz.tag();
    /// A remote memory region.
    #[doc(alias = "it_rmr_handle_t")]
    RmrHandle = HandleType::Rmr.tag();
    /// A UD service request.
    #[doc(alias = "it_ud_svc_req_handle_t")]
    UdSvcReqHandle = HandleType::UdSvcReq.tag();
    /// A shared receive queue.
    #[doc(alias = "it_srq_handle_t")]
    SrqHandle = HandleType::Srq.tag();
}

typed! {
    AddrHandle: Addr;
    EpHandle: Ep;
    EvdHandle: Evd;
    IaHandle: Ia;
    ListenHandle: Listen;
    LmrHandle: Lmr;
    PzHandle: Pz;
    RmrHandle: Rmr;
    UdSvcReqHandle: UdSvcReq;
    SrqHandle: Srq;
}

impl LmrHandle {
    /// The direct LMR handle: segments that name it are addressed by I/O address (see
    /// [`crate::Ia::mem_map`]).
    ///
    /// Only work requests of privileged endpoints may use it, and never as the sink of an RDMA
    /// Read; elsewhere it is a completion error. The handle has one value for all IAs.
    /// [`crate::IaInfo::direct_lmr_handle`] says whether an IA has it.
    #[doc(alias = "direct_lmr_handle")]
    pub const DIRECT: LmrHandle =
        LmrHandle(handle::word(HandleType::Lmr.tag(), (1 << ADAPTER_BITS) - 1, 0, GENERATION_MASK));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_comes_back_from_its_tag() {
        for number in 0..10 {
            let claimed = Handle::from_raw(handle::word(Tag::new(number), 1, 2, 3)).claimed_type();
            assert_eq!(claimed.map(|kind| kind as u32), Some(number));
        }
        assert_eq!(Handle::from_raw(handle::word(Tag::new(10), 1, 2, 3)).claimed_type(), None);
        assert_eq!(Handle::NULL.claimed_type(), None);
    }

    #[test]
    fn a_handle_in_words_is_what_it_claims() {
        let ep = EpHandle::from_raw(handle::word(HandleType::Ep.tag(), 1, 2, 3));
        assert_eq!(alloc::format!("{ep:?}"), "Ep(2 of IA 1, generation 3)");
        assert_eq!(alloc::format!("{:?} {:?}", EpHandle::NULL, Handle::NULL), "NULL NULL");
        assert_eq!(alloc::format!("{:?}", Handle::from_raw(5)), "Handle(0x5)");
    }

    #[test]
    fn typed_handles_only_come_from_words_of_their_type() {
        let ep = EpHandle::from_raw(handle::word(HandleType::Ep.tag(), 1, 2, 3));
        assert_eq!(EpHandle::try_from(Handle::from(ep)), Ok(ep));
        assert_eq!(EvdHandle::try_from(Handle::from(ep)), Err(crate::Error::InvalidHandle));
        assert!(EvdHandle::try_from(Handle::NULL).unwrap().is_null());
    }
}
