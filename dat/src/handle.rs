//! Handles: one word each, checked in constant time. [`rdma::handle`] defines the bits. Each IA has
//! a number of its own among the adapters of all faces, so a handle of one API is invalid in the
//! others.

use core::fmt;

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

impl HandleType {
    /// The tag of handles of this type.
    const fn tag(self) -> Tag {
        Tag::new(self as u32)
    }
}

/// The type that a word claims.
fn claimed(word: u64) -> Option<HandleType> {
    Some(match handle::tag(word)? {
        0 => HandleType::Cr,
        1 => HandleType::Ep,
        2 => HandleType::Evd,
        3 => HandleType::Ia,
        4 => HandleType::Lmr,
        5 => HandleType::Psp,
        6 => HandleType::Pz,
        7 => HandleType::Rmr,
        8 => HandleType::Rsp,
        9 => HandleType::Cno,
        10 => HandleType::Srq,
        12 => HandleType::IbExt,
        // There are no common service points.
        _ => return None,
    })
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
    ($($name:ident)*) => {$(
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
    IaHandle = HandleType::Ia.tag();
    /// A protection zone.
    #[doc(alias = "DAT_PZ_HANDLE")]
    PzHandle = HandleType::Pz.tag();
    /// A local memory region.
    #[doc(alias = "DAT_LMR_HANDLE")]
    LmrHandle = HandleType::Lmr.tag();
    /// A remote memory region.
    #[doc(alias = "DAT_RMR_HANDLE")]
    RmrHandle = HandleType::Rmr.tag();
    /// A shared receive queue.
    #[doc(alias = "DAT_SRQ_HANDLE")]
    SrqHandle = HandleType::Srq.tag();
    /// An event dispatcher.
    #[doc(alias = "DAT_EVD_HANDLE")]
    EvdHandle = HandleType::Evd.tag();
    /// An endpoint.
    #[doc(alias = "DAT_EP_HANDLE")]
    EpHandle = HandleType::Ep.tag();
    /// The address handle of a remote datagram endpoint.
    #[doc(alias = "ibv_ah")]
    AhHandle = HandleType::IbExt.tag();
    /// A consumer notification object.
    #[doc(alias = "DAT_CNO_HANDLE")]
    CnoHandle = HandleType::Cno.tag();
    /// A public service point.
    #[doc(alias = "DAT_PSP_HANDLE")]
    PspHandle = HandleType::Psp.tag();
    /// A reserved service point.
    #[doc(alias = "DAT_RSP_HANDLE")]
    RspHandle = HandleType::Rsp.tag();
    /// A connection request.
    #[doc(alias = "DAT_CR_HANDLE")]
    CrHandle = HandleType::Cr.tag();
}

typed! {
    IaHandle PzHandle LmrHandle RmrHandle SrqHandle EvdHandle EpHandle AhHandle CnoHandle PspHandle
    RspHandle CrHandle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_is_a_type_of_its_own() {
        let word = |tag| handle::word(tag, 1, 2, 3);
        for number in 0..13 {
            let found = claimed(word(Tag::new(number)));
            assert_eq!(found.map(|kind| kind as u32), Some(number).filter(|number| *number != 11));
        }
        assert_eq!(claimed(word(CrHandle::TAG)), Some(HandleType::Cr));
        assert_eq!(claimed(word(AhHandle::TAG)), Some(HandleType::IbExt));
        assert_eq!((claimed(0), claimed(word(Tag::new(14)))), (None, None));
    }

    #[test]
    fn a_handle_in_words_says_what_it_claims() {
        let cno = CnoHandle::from_raw(handle::word(CnoHandle::TAG, 1, 2, 3));
        assert_eq!(alloc::format!("{cno:?}"), "Cno(2 of IA 1, generation 3)");
        assert_eq!(alloc::format!("{:?} {:?}", EpHandle::NULL, Handle::NULL), "NULL NULL");
    }
}
