//! Private data of connections and of datagram services.

use core::fmt;
use core::ops::Deref;

/// A few bytes that came along with a message of a handshake. InfiniBand's messages pad them with
/// zeroes to the message's size.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData {
    bytes: [u8; PrivateData::MAX],
    len: u16,
}

impl PrivateData {
    /// The most bytes that a message of any transport carries.
    pub const MAX: usize = 256;

    /// Private data with these bytes; bytes beyond [`PrivateData::MAX`] are cut off.
    pub fn new(data: &[u8]) -> PrivateData {
        let len = data.len().min(PrivateData::MAX);
        let mut bytes = [0; PrivateData::MAX];
        bytes[..len].copy_from_slice(&data[..len]);
        PrivateData { bytes, len: len as u16 }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The bytes; the same as [`PrivateData::bytes`].
    pub fn as_slice(&self) -> &[u8] {
        self.bytes()
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_is_shown_by_its_length() {
        assert_eq!(alloc::format!("{:?}", PrivateData::new(&[1; 56])), "PrivateData(56 bytes)");
        assert_eq!(PrivateData::new(&[1; 300]).len(), PrivateData::MAX);
    }
}
