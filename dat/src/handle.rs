//! Handles: one word each, checked in constant time. [`rdma::handle`] defines the bits.
//!
//! A DAT IA opens an adapter of `privileged-api` (IT-API) for itself, and no other consumer gets
//! handles of that adapter. Objects that both APIs have (endpoints, protection zones, regions,
//! queues) keep the handle word of that adapter, so a post needs no translation. Objects that only
//! DAT has are in tables of this crate, under an adapter number of their own. So a handle of one
//! API is invalid in the other.

use core::fmt;

use privileged_api as it;
use rdma::handle::{self, ObjectHandle, Tag};

/// What kind of object a handle names. The numbers are uDAPL's.
#[doc(alias = "DAT_HANDLE_TYPE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum HandleType {
    /// Connection request.
    #[doc(alias = "DAT_HANDLE_TYPE_CR")]
    Cr = 0,
    /// Endpoint.
    #[doc(alias = "DAT_HANDLE_TYPE_EP")]
    Ep = 1,
    /// Event dispatcher.
    #[doc(alias = "DAT_HANDLE_TYPE_EVD")]
    Evd = 2,
    /// Interface adapter.
    #[doc(alias = "DAT_HANDLE_TYPE_IA")]
    Ia = 3,
    /// Local memory region.
    #[doc(alias = "DAT_HANDLE_TYPE_LMR")]
    Lmr = 4,
    /// Public service point.
    #[doc(alias = "DAT_HANDLE_TYPE_PSP")]
    Psp = 5,
    /// Protection zone.
    #[doc(alias = "DAT_HANDLE_TYPE_PZ")]
    Pz = 6,
    /// Remote memory region.
    #[doc(alias = "DAT_HANDLE_TYPE_RMR")]
    Rmr = 7,
    /// Reserved service point.
    #[doc(alias = "DAT_HANDLE_TYPE_RSP")]
    Rsp = 8,
    /// Consumer notification object.
    #[doc(alias = "DAT_HANDLE_TYPE_CNO")]
    Cno = 9,
    /// Shared receive queue.
    #[doc(alias = "DAT_HANDLE_TYPE_SRQ")]
    Srq = 10,
    /// Common service point. This stack makes none.
    #[doc(alias = "DAT_HANDLE_TYPE_CSP")]
    Csp = 11,
    /// Handles outside the ordinary types: address handles of remote datagram endpoints
    /// ([`IbAddrHandle::ah`](crate::IbAddrHandle::ah)).
    #[doc(alias = "DAT_IB_HANDLE_TYPE_EXT")]
    #[doc(alias = "DAT_HANDLE_TYPE_EXTENSION_BASE")]
    IbExt = 12,
}

/// Tags of the objects that only DAT has. Objects that both APIs have use IT-API's tags.
pub(crate) mod tag {
    use super::Tag;

    pub(crate) const CNO: Tag = Tag::new(10);
    pub(crate) const PSP: Tag = Tag::new(11);
    pub(crate) const RSP: Tag = Tag::new(12);
    pub(crate) const CR: Tag = Tag::new(13);
}

/// The type that a word claims.
fn claimed(word: u64) -> Option<HandleType> {
    const ADDR: u32 = it::HandleType::Addr as u32;
    const EP: u32 = it::HandleType::Ep as u32;
    const EVD: u32 = it::HandleType::Evd as u32;
    const IA: u32 = it::HandleType::Ia as u32;
    const LMR: u32 = it::HandleType::Lmr as u32;
    const PZ: u32 = it::HandleType::Pz as u32;
    const RMR: u32 = it::HandleType::Rmr as u32;
    const SRQ: u32 = it::HandleType::Srq as u32;
    Some(match handle::tag(word)? {
        ADDR => HandleType::IbExt,
        EP => HandleType::Ep,
        EVD => HandleType::Evd,
        IA => HandleType::Ia,
        LMR => HandleType::Lmr,
        PZ => HandleType::Pz,
        RMR => HandleType::Rmr,
        SRQ => HandleType::Srq,
        10 => HandleType::Cno,
        11 => HandleType::Psp,
        12 => HandleType::Rsp,
        13 => HandleType::Cr,
        _ => return None,
    })
}

impl EpHandle {
    /// Whether the word is a shared receive queue's, valid or not.
    #[inline(always)]
    pub(crate) fn claims_a_shared_queue(self) -> bool {
        handle::tag(self.0) == Some(it::HandleType::Srq as u32)
    }
}

impl SrqHandle {
    /// Whether the word is a shared receive queue's, valid or not.
    #[inline(always)]
    pub(crate) fn claims_its_type(self) -> bool {
        handle::tag(self.0) == Some(it::HandleType::Srq as u32)
    }
}

/// A handle of any type.
#[doc(alias = "DAT_HANDLE")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Handle(u64);

impl Handle {
    /// No object.
    #[doc(alias = "DAT_HANDLE_NULL")]
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
    pub(crate) fn typed<H: ObjectHandle>(self) -> H {
        H::from_word(self.0)
    }

    /// The type that the word claims. [`Ia::get_handle_type`](crate::Ia::get_handle_type) also
    /// checks that such an object exists.
    pub(crate) fn claimed_type(self) -> Option<HandleType> {
        claimed(self.0)
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
    ($($name:ident $(= $of:ident)?;)*) => {$(
        $(impl $name {
            /// The handle in the adapter of `privileged-api`.
            #[inline(always)]
            pub(crate) const fn inner(self) -> it::$of {
                it::$of::from_raw(self.0)
            }

            #[inline(always)]
            pub(crate) const fn of(inner: it::$of) -> $name {
                $name(inner.as_raw())
            }
        })?

        impl From<$name> for Handle {
            fn from(handle: $name) -> Handle {
                Handle(handle.0)
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
    /// An interface adapter.
    #[doc(alias = "DAT_IA_HANDLE")]
    IaHandle = <it::IaHandle as ObjectHandle>::TAG;
    /// A protection zone.
    #[doc(alias = "DAT_PZ_HANDLE")]
    PzHandle = <it::PzHandle as ObjectHandle>::TAG;
    /// A local memory region.
    #[doc(alias = "DAT_LMR_HANDLE")]
    LmrHandle = <it::LmrHandle as ObjectHandle>::TAG;
    /// A remote memory region.
    #[doc(alias = "DAT_RMR_HANDLE")]
    RmrHandle = <it::RmrHandle as ObjectHandle>::TAG;
    /// A shared receive queue.
    #[doc(alias = "DAT_SRQ_HANDLE")]
    SrqHandle = <it::SrqHandle as ObjectHandle>::TAG;
    /// An event dispatcher.
    #[doc(alias = "DAT_EVD_HANDLE")]
    EvdHandle = <it::EvdHandle as ObjectHandle>::TAG;
    /// An endpoint.
    #[doc(alias = "DAT_EP_HANDLE")]
    EpHandle = <it::EpHandle as ObjectHandle>::TAG;
    /// The address handle of a remote datagram endpoint.
    #[doc(alias = "ibv_ah")]
    AhHandle = <it::AddrHandle as ObjectHandle>::TAG;
    /// A consumer notification object.
    #[doc(alias = "DAT_CNO_HANDLE")]
    CnoHandle = tag::CNO;
    /// A public service point.
    #[doc(alias = "DAT_PSP_HANDLE")]
    PspHandle = tag::PSP;
    /// A reserved service point.
    #[doc(alias = "DAT_RSP_HANDLE")]
    RspHandle = tag::RSP;
    /// A connection request.
    #[doc(alias = "DAT_CR_HANDLE")]
    CrHandle = tag::CR;
}

typed! {
    IaHandle;
    PzHandle = PzHandle;
    LmrHandle = LmrHandle;
    RmrHandle = RmrHandle;
    SrqHandle = SrqHandle;
    EvdHandle = EvdHandle;
    EpHandle = EpHandle;
    AhHandle = AddrHandle;
    CnoHandle;
    PspHandle;
    RspHandle;
    CrHandle;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_is_a_type_of_its_own() {
        let word = |tag| handle::word(tag, 1, 2, 3);
        assert_eq!(claimed(word(tag::CNO)), Some(HandleType::Cno));
        assert_eq!(claimed(word(tag::PSP)), Some(HandleType::Psp));
        assert_eq!(claimed(word(tag::RSP)), Some(HandleType::Rsp));
        assert_eq!(claimed(word(tag::CR)), Some(HandleType::Cr));
        let of_both = |kind: it::HandleType| claimed(word(Tag::new(kind as u32)));
        assert_eq!(of_both(it::HandleType::Ep), Some(HandleType::Ep));
        assert_eq!(of_both(it::HandleType::Addr), Some(HandleType::IbExt));
        assert_eq!(of_both(it::HandleType::Listen), None);
        assert_eq!((claimed(0), claimed(word(Tag::new(14)))), (None, None));
    }

    #[test]
    fn a_handle_in_words_says_what_it_claims() {
        let cno = CnoHandle::from_raw(handle::word(tag::CNO, 1, 2, 3));
        assert_eq!(alloc::format!("{cno:?}"), "Cno(2 of IA 1, generation 3)");
        assert_eq!(alloc::format!("{:?} {:?}", EpHandle::NULL, Handle::NULL), "NULL NULL");
    }
}
