//! Names of a fabric's parts.

/// Names a NIC of a [`crate::Fabric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NicId(pub(crate) u16);

impl NicId {
    /// Its index among the fabric's NICs.
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Names a queue pair of a fabric: its NIC, and its slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QpId {
    pub nic: NicId,
    pub slot: u32,
}
