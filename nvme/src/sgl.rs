//! SGL descriptors (base 4.4; fabrics 7.3): where a command's data are.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::Status;

/// The longest keyed data block: the length has 24 bits.
pub const MAX_KEYED_LEN: u32 = (1 << 24) - 1;

/// An SGL descriptor as it stands in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Descriptor(pub [u8; 16]);

/// The descriptors that RDMA has. A command on RDMA has one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// Memory of the host: a Keyed SGL Data Block descriptor.
    Keyed {
        /// The virtual address.
        addr: u64,
        /// The length in bytes; 0 if the command has no data.
        len: u32,
        /// The key of the memory region.
        key: u32,
        /// Whether the host wants the key to be invalidated by the response.
        invalidate: bool,
    },
    /// Data in the capsule: an SGL Data Block descriptor with an offset.
    Offset {
        /// Where the data begin, from the beginning of the capsule's data.
        offset: u64,
        /// The length in bytes.
        len: u32,
    },
}

/// Keyed SGL Data Block descriptor (base 4.4.1).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Keyed {
    address: U64,
    length: [u8; 3],
    key: U32,
    identifier: u8,
}

/// SGL Data Block descriptor (base 4.4.1).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DataBlock {
    address: U64,
    length: U32,
    reserved: [u8; 3],
    identifier: u8,
}

const _: () = assert!(size_of::<Descriptor>() == 16);
const _: () = assert!(size_of::<Keyed>() == 16);
const _: () = assert!(size_of::<DataBlock>() == 16);

// SGL identifiers: the type in the upper half, the subtype in the lower.
const DATA_BLOCK_OFFSET: u8 = 0x01;
const KEYED_ADDRESS: u8 = 0x40;
const KEYED_INVALIDATE: u8 = 0x4f;

impl Descriptor {
    /// The descriptor of a command without data.
    pub fn none() -> Self {
        Self::keyed(0, 0, 0, false)
    }

    /// A keyed data block.
    ///
    /// # Panics
    ///
    /// If `len` exceeds [`MAX_KEYED_LEN`].
    pub fn keyed(addr: u64, len: u32, key: u32, invalidate: bool) -> Self {
        assert!(len <= MAX_KEYED_LEN, "a keyed data block of {len} bytes");
        let [a, b, c, _] = len.to_le_bytes();
        let identifier = if invalidate { KEYED_INVALIDATE } else { KEYED_ADDRESS };
        transmute!(Keyed { address: addr.into(), length: [a, b, c], key: key.into(), identifier })
    }

    /// Data in the capsule.
    pub fn offset(offset: u64, len: u32) -> Self {
        transmute!(DataBlock {
            address: offset.into(),
            length: len.into(),
            reserved: [0; 3],
            identifier: DATA_BLOCK_OFFSET,
        })
    }

    /// What the descriptor says.
    ///
    /// # Errors
    ///
    /// [`Status::SGL_DESCRIPTOR_TYPE_INVALID`] for every type and subtype that RDMA does not have.
    pub fn parse(&self) -> Result<Sgl, Status> {
        let Keyed { address, length: [a, b, c], key, identifier } = transmute!(self.0);
        match identifier {
            KEYED_ADDRESS | KEYED_INVALIDATE => Ok(Sgl::Keyed {
                addr: address.get(),
                len: u32::from_le_bytes([a, b, c, 0]),
                key: key.get(),
                invalidate: identifier == KEYED_INVALIDATE,
            }),
            DATA_BLOCK_OFFSET => {
                let DataBlock { address, length, .. } = transmute!(self.0);
                Ok(Sgl::Offset { offset: address.get(), len: length.get() })
            }
            _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        }
    }
}

impl Sgl {
    /// The length in bytes.
    pub const fn len(&self) -> u32 {
        match *self {
            Sgl::Keyed { len, .. } | Sgl::Offset { len, .. } => len,
        }
    }

    /// Whether there are no data.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_with_and_without_invalidation() {
        for (invalidate, identifier) in [(true, 0x4f), (false, 0x40)] {
            let descriptor = Descriptor::keyed(0x8877_6655_4433_2211, 0xcc_bbaa, 0x0403_0201, invalidate);
            assert_eq!(
                descriptor.0,
                [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xaa, 0xbb, 0xcc, 1, 2, 3, 4, identifier]
            );
            let sgl =
                Sgl::Keyed { addr: 0x8877_6655_4433_2211, len: 0xcc_bbaa, key: 0x0403_0201, invalidate };
            assert_eq!(descriptor.parse(), Ok(sgl));
            assert_eq!((sgl.len(), sgl.is_empty()), (0xcc_bbaa, false));
        }
    }

    #[test]
    fn a_command_without_data_has_a_keyed_block_of_zeros() {
        let mut bytes = [0; 16];
        bytes[15] = 0x40;
        assert_eq!(Descriptor::none().0, bytes);
        let sgl = Descriptor(bytes).parse().unwrap();
        assert_eq!(sgl, Sgl::Keyed { addr: 0, len: 0, key: 0, invalidate: false });
        assert!(sgl.is_empty());
    }

    #[test]
    fn data_in_the_capsule() {
        let descriptor = Descriptor::offset(0x10, 0x2000_1000);
        assert_eq!(descriptor.0, [0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0x20, 0, 0, 0, 0x01]);
        assert_eq!(descriptor.parse(), Ok(Sgl::Offset { offset: 0x10, len: 0x2000_1000 }));
        assert_eq!(descriptor.parse().unwrap().len(), 0x2000_1000);
    }

    #[test]
    fn every_other_identifier_is_refused() {
        for identifier in 0..=0xff {
            let mut bytes = [0; 16];
            bytes[15] = identifier;
            let parsed = Descriptor(bytes).parse();
            match identifier {
                0x01 | 0x40 | 0x4f => assert!(parsed.is_ok()),
                _ => assert_eq!(parsed, Err(Status(0x11)), "{identifier:#x}"),
            }
        }
    }

    #[test]
    #[should_panic(expected = "16777216 bytes")]
    fn a_length_of_more_than_24_bits_is_a_mistake_of_the_caller() {
        Descriptor::keyed(0, 1 << 24, 0, false);
    }
}
