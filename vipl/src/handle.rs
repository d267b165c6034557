//! Handles: one word each, checked in constant time. [`rdma::handle`] defines the bits. A
//! handle of one opening of a NIC names nothing in another one, nor in another face.

use core::fmt;

use rdma::handle::{self, Tag};

macro_rules! named {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if self.is_null() {
                    return f.write_str(concat!(stringify!($name), "(NULL)"));
                }
                let (index, nic) = (handle::index(self.0), handle::adapter(self.0));
                let generation = handle::generation(self.0);
                write!(f, concat!(stringify!($name), "({} of NIC {}, generation {})"), index, nic, generation)
            }
        }
    )*};
}

rdma::handles! {
    /// An opening of a NIC.
    #[doc(alias = "VIP_NIC_HANDLE")]
    NicHandle = Tag::new(0);
    /// A virtual interface.
    #[doc(alias = "VIP_VI_HANDLE")]
    ViHandle = Tag::new(1);
    /// A completion queue.
    #[doc(alias = "VIP_CQ_HANDLE")]
    CqHandle = Tag::new(2);
    /// A protection tag.
    #[doc(alias = "VIP_PROTECTION_HANDLE")]
    PtagHandle = Tag::new(3);
    /// A connection request that waits for an answer.
    #[doc(alias = "VIP_CONN_HANDLE")]
    ConnHandle = Tag::new(4);
}

named! { NicHandle ViHandle CqHandle PtagHandle ConnHandle }

/// A memory handle: 32 bits, as descriptors have them. It names a region of memory, together with a
/// virtual address in the region.
#[doc(alias = "VIP_MEM_HANDLE")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MemHandle(u32);

impl MemHandle {
    /// No memory.
    pub const NULL: MemHandle = MemHandle(0);

    /// The handle with this word; every use checks it.
    pub const fn from_raw(word: u32) -> MemHandle {
        MemHandle(word)
    }

    /// The word.
    #[inline(always)]
    pub const fn as_raw(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for MemHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemHandle({:#x})", self.0)
    }
}
