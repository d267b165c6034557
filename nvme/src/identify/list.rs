//! The lists of Identify: active namespaces (base 5.15.2.3) and the identification descriptors of
//! one namespace (base 5.15.2.4).

use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A list of NSIDs in ascending order. The first 0 ends it.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ActiveList {
    /// The NSIDs.
    pub nsids: [U32; 1024],
}

const _: () = assert!(size_of::<ActiveList>() == super::LEN);

impl ActiveList {
    /// Makes the list one of those of `nsids` that are above `after`, the command's NSID. They have
    /// to ascend; one that does not is left out, as is what exceeds the list.
    pub fn fill(&mut self, after: u32, nsids: impl IntoIterator<Item = u32>) {
        self.zero();
        let mut last = after;
        let mut places = self.nsids.iter_mut();
        for nsid in nsids {
            if nsid > last {
                let Some(place) = places.next() else { break };
                *place = nsid.into();
                last = nsid;
            }
        }
    }

    /// The NSIDs up to the first 0.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0)
    }
}

/// An identifier of a namespace. The bytes are in the order in which they are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceId {
    /// IEEE Extended Unique Identifier.
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier.
    Nguid([u8; 16]),
    /// Namespace UUID.
    Uuid([u8; 16]),
    /// Of base 2.0: the command set; 0 is the NVM command set.
    Csi(u8),
}

/// What precedes each identifier.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    nidt: u8,
    nidl: u8,
    reserved: U16,
}

const _: () = assert!(size_of::<Header>() == 4);

impl NamespaceId {
    /// Namespace Identifier Type.
    fn nidt(&self) -> u8 {
        match self {
            Self::Eui64(_) => 1,
            Self::Nguid(_) => 2,
            Self::Uuid(_) => 3,
            Self::Csi(_) => 4,
        }
    }

    /// Namespace Identifier.
    fn nid(&self) -> &[u8] {
        match self {
            Self::Eui64(bytes) => bytes,
            Self::Nguid(bytes) | Self::Uuid(bytes) => bytes,
            Self::Csi(byte) => core::slice::from_ref(byte),
        }
    }

    /// The identifier of this type with these bytes, unless their number is not the type's or the
    /// type is unknown.
    fn new(nidt: u8, nid: &[u8]) -> Option<Self> {
        match nidt {
            1 => nid.try_into().ok().map(Self::Eui64),
            2 => nid.try_into().ok().map(Self::Nguid),
            3 => nid.try_into().ok().map(Self::Uuid),
            4 => nid.try_into().ok().map(|[csi]: [u8; 1]| Self::Csi(csi)),
            _ => None,
        }
    }
}

/// The buffer ends before the descriptor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the buffer has no room for the descriptor")
    }
}

impl core::error::Error for NoRoom {}

/// Writes a list of identification descriptors into a buffer. A type of 0, thus the zeros behind
/// the last descriptor, ends the list.
pub struct DescriptorWriter<'a> {
    rest: &'a mut [u8],
}

impl<'a> DescriptorWriter<'a> {
    /// Begins an empty list, and fills the buffer with zeros.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        buffer.fill(0);
        Self { rest: buffer }
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]; the list stays as it was.
    pub fn push(&mut self, id: NamespaceId) -> Result<(), NoRoom> {
        let nid = id.nid();
        let header = Header { nidt: id.nidt(), nidl: nid.len() as u8, reserved: U16::ZERO };
        let len = size_of::<Header>() + nid.len();
        if len > self.rest.len() {
            return Err(NoRoom);
        }
        let (descriptor, rest) = core::mem::take(&mut self.rest).split_at_mut(len);
        let (of_header, of_nid) = descriptor.split_at_mut(size_of::<Header>());
        of_header.copy_from_slice(header.as_bytes());
        of_nid.copy_from_slice(nid);
        self.rest = rest;
        Ok(())
    }
}

/// The identifiers in a list of descriptors that a controller sent. A descriptor that has an
/// unknown type, or a length that is not its type's, is left out.
#[derive(Clone, Debug)]
pub struct Descriptors<'a>(&'a [u8]);

impl<'a> Descriptors<'a> {
    /// The list in these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl Iterator for Descriptors<'_> {
    type Item = NamespaceId;

    fn next(&mut self) -> Option<NamespaceId> {
        loop {
            let (header, rest) = Header::read_from_prefix(self.0).ok()?;
            if header.nidt == 0 {
                return None;
            }
            let (nid, rest) = rest.split_at_checked(usize::from(header.nidl))?;
            self.0 = rest;
            if let Some(id) = NamespaceId::new(header.nidt, nid) {
                return Some(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_list_begins_above_the_commands_nsid_and_is_cut_at_its_end() {
        let mut list = ActiveList::new_zeroed();
        list.fill(2, [1, 2, 3, 3, 9, 5]);
        assert_eq!(list.iter().collect::<Vec<_>>(), [3, 9]);
        list.fill(9, [1, 2, 3]);
        assert_eq!(list.iter().count(), 0);
        list.fill(0, 1..2000);
        assert!(list.iter().eq(1..=1024));
        assert_eq!(list.nsids[1].as_bytes(), [2, 0, 0, 0]);
    }

    #[test]
    fn descriptors_are_read_as_written() {
        let ids = [
            NamespaceId::Eui64([1, 2, 3, 4, 5, 6, 7, 8]),
            NamespaceId::Nguid([0x22; 16]),
            NamespaceId::Uuid([0x33; 16]),
            NamespaceId::Csi(0),
        ];
        let mut buffer = [0xff; 64];
        let mut writer = DescriptorWriter::new(&mut buffer);
        for id in ids {
            writer.push(id).unwrap();
        }
        assert_eq!(buffer[..16], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 2, 16, 0, 0]);
        assert_eq!(buffer[52..], [4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(Descriptors::new(&buffer).eq(ids));
    }

    #[test]
    fn a_descriptor_that_does_not_fit_is_not_written() {
        let mut buffer = [0xff; 20];
        let mut writer = DescriptorWriter::new(&mut buffer);
        writer.push(NamespaceId::Eui64([1; 8])).unwrap();
        assert_eq!(writer.push(NamespaceId::Uuid([1; 16])), Err(NoRoom));
        assert_eq!(writer.push(NamespaceId::Csi(1)), Ok(()));
        assert_eq!(writer.push(NamespaceId::Csi(1)), Err(NoRoom));
        assert!(Descriptors::new(&buffer).eq([NamespaceId::Eui64([1; 8]), NamespaceId::Csi(1)]));
        assert_eq!(DescriptorWriter::new(&mut [0; 19]).push(NamespaceId::Uuid([0; 16])), Err(NoRoom));
        assert_eq!(DescriptorWriter::new(&mut [0; 20]).push(NamespaceId::Uuid([0; 16])), Ok(()));
    }

    #[test]
    fn a_list_of_a_bad_controller_ends() {
        // Unknown types and false lengths are left out; a length beyond the bytes ends the list.
        let bytes = [9, 0, 0, 0, 1, 1, 0, 0, 0xaa, 4, 1, 0, 0, 7, 3, 16, 0, 0, 1];
        assert!(Descriptors::new(&bytes).eq([NamespaceId::Csi(7)]));
        assert_eq!(Descriptors::new(&[4, 1, 0]).count(), 0);
        assert_eq!(Descriptors::new(&[]).count(), 0);
    }
}
