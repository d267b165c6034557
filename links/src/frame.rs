//! The addresses of a frame.

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// The destination and the source address of a frame.
pub(crate) fn addresses(frame: &[u8]) -> Option<(Mac, Mac)> {
    let (to, rest) = frame.split_first_chunk()?;
    Some((*to, *rest.first_chunk()?))
}

/// Whether an address is a group's.
pub(crate) fn is_group(address: Mac) -> bool {
    address[0] & 1 != 0
}
