//! Handles: one word each, checked in constant time (page it_handle_t). [`rdma::handle`]
//! defines the bits.

use rdma::handle::{self, ADAPTER_BITS, GENERATION_MASK, ObjectHandle};

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

macro_rules! typed {
    ($($name:ident: $kind:ident;)*) => {$(
        impl $name {
            /// The type of object that such a handle names.
            pub const TYPE: HandleType = HandleType::$kind;
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
    )*};
}

rdma::typed_handles! {
    /// A handle of any type.
    #[doc(alias = "it_handle_t")]
    Handle of HandleType, null "IT_NULL_HANDLE";
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
        LmrHandle(handle::word(LmrHandle::TAG, (1 << ADAPTER_BITS) - 1, 0, GENERATION_MASK));
}

#[cfg(test)]
mod tests {
    use rdma::handle::Tag;

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
        let ep = EpHandle::from_raw(handle::word(EpHandle::TAG, 1, 2, 3));
        assert_eq!(alloc::format!("{ep:?}"), "Ep(2 of IA 1, generation 3)");
        assert_eq!(alloc::format!("{:?} {:?}", EpHandle::NULL, Handle::NULL), "NULL NULL");
        assert_eq!(alloc::format!("{:?}", Handle::from_raw(5)), "Handle(0x5)");
    }

    #[test]
    fn typed_handles_only_come_from_words_of_their_type() {
        let ep = EpHandle::from_raw(handle::word(EpHandle::TAG, 1, 2, 3));
        assert_eq!(EpHandle::try_from(Handle::from(ep)), Ok(ep));
        assert_eq!(EvdHandle::try_from(Handle::from(ep)), Err(crate::Error::InvalidHandle));
        assert!(EvdHandle::try_from(Handle::NULL).unwrap().is_null());
    }
}
