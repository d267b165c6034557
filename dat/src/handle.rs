//! Handles: one word each, checked in constant time. [`rdma::handle`] defines the bits. Each IA has
//! a number of its own among the adapters of all faces, so a handle of one API is invalid in the
//! others.

rdma::enumeration! {
    /// What kind of object a handle names. The numbers are uDAPL's.
    #[doc(alias = "DAT_HANDLE_TYPE")]
    pub enum HandleType: u32 {
        /// Connection request.
        Cr = 0, "DAT_HANDLE_TYPE_CR";
        /// Endpoint.
        Ep = 1, "DAT_HANDLE_TYPE_EP";
        /// Event dispatcher.
        Evd = 2, "DAT_HANDLE_TYPE_EVD";
        /// Interface adapter.
        Ia = 3, "DAT_HANDLE_TYPE_IA";
        /// Local memory region.
        Lmr = 4, "DAT_HANDLE_TYPE_LMR";
        /// Public service point.
        Psp = 5, "DAT_HANDLE_TYPE_PSP";
        /// Protection zone.
        Pz = 6, "DAT_HANDLE_TYPE_PZ";
        /// Remote memory region.
        Rmr = 7, "DAT_HANDLE_TYPE_RMR";
        /// Reserved service point.
        Rsp = 8, "DAT_HANDLE_TYPE_RSP";
        /// Consumer notification object.
        Cno = 9, "DAT_HANDLE_TYPE_CNO";
        /// Shared receive queue.
        Srq = 10, "DAT_HANDLE_TYPE_SRQ";
        /// Common service point. This stack makes none.
        Csp = 11, "DAT_HANDLE_TYPE_CSP";
        /// Handles outside the ordinary types: address handles of remote datagram endpoints
        /// ([`IbAddrHandle::ah`](crate::IbAddrHandle::ah)).
        IbExt = 12, "DAT_IB_HANDLE_TYPE_EXT" or "DAT_HANDLE_TYPE_EXTENSION_BASE";
    }
}

rdma::typed_handles! {
    /// A handle of any type.
    #[doc(alias = "DAT_HANDLE")]
    Handle of HandleType, null "DAT_HANDLE_NULL";
    /// An interface adapter.
    #[doc(alias = "DAT_IA_HANDLE")]
    IaHandle: Ia;
    /// A protection zone.
    #[doc(alias = "DAT_PZ_HANDLE")]
    PzHandle: Pz;
    /// A local memory region.
    #[doc(alias = "DAT_LMR_HANDLE")]
    LmrHandle: Lmr;
    /// A remote memory region.
    #[doc(alias = "DAT_RMR_HANDLE")]
    RmrHandle: Rmr;
    /// A shared receive queue.
    #[doc(alias = "DAT_SRQ_HANDLE")]
    SrqHandle: Srq;
    /// An event dispatcher.
    #[doc(alias = "DAT_EVD_HANDLE")]
    EvdHandle: Evd;
    /// An endpoint.
    #[doc(alias = "DAT_EP_HANDLE")]
    EpHandle: Ep;
    /// The address handle of a remote datagram endpoint.
    #[doc(alias = "ibv_ah")]
    AhHandle: IbExt;
    /// A consumer notification object.
    #[doc(alias = "DAT_CNO_HANDLE")]
    CnoHandle: Cno;
    /// A public service point.
    #[doc(alias = "DAT_PSP_HANDLE")]
    PspHandle: Psp;
    /// A reserved service point.
    #[doc(alias = "DAT_RSP_HANDLE")]
    RspHandle: Rsp;
    /// A connection request.
    #[doc(alias = "DAT_CR_HANDLE")]
    CrHandle: Cr;
}

#[cfg(test)]
mod tests {
    use rdma::handle::{self, ObjectHandle, Tag};

    use super::*;

    #[test]
    fn each_tag_is_a_type_of_its_own() {
        let word = |tag| handle::word(tag, 1, 2, 3);
        let claimed = |word| Handle::from_raw(word).claimed_type();
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
