//! The word that is posted with each work request. The completion returns it, and it says which
//! operation ended.

use bitflags::bitflags;

bitflags! {
    /// What distinguishes requests whose completions have the same event number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Posted: u8 {
        /// The request carried immediate data.
        const IMMEDIATE = 1 << 0;
        /// The request was a datagram.
        const DATAGRAM = 1 << 1;
    }
}

/// The word that is posted with each work request and returned in its completion.
///
/// | bits | meaning |
/// |---|---|
/// | 0..4 | the number of the event |
/// | 4 | the completion is a notification event |
/// | 5..8 | [`Posted`] |
/// | 8 | the completion is a failure of a virtual interface, and `detail` its descriptor's status |
pub(crate) mod tag {
    pub(crate) const EVENT: u32 = 0xf;
    pub(crate) const NOTIFY: u32 = rdma::events::NOTIFY;
    pub(crate) const POSTED: u32 = 5;
    pub(crate) const VIA: u32 = rdma::via::FAILED;
}

/// How the request of a completion was posted, from the completion's data word.
#[inline(always)]
pub(crate) fn posted(data: u32) -> Posted {
    Posted::from_bits_truncate((data >> tag::POSTED) as u8)
}
