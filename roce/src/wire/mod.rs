//! The headers of a RoCEv2 packet, outermost first: Ethernet, IPv4 or IPv6 (the latter also as
//! GRH), UDP, the transport headers, and the invariant CRC.

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod datagram;
pub mod deth;
pub mod ethernet;
pub mod extra;
pub mod icrc;
pub mod ipv4;
pub mod ipv6;
pub mod opcode;
pub mod packet;
pub mod reth;
pub mod udp;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Error;

/// Splits the header at the start of `bytes` from the bytes behind it.
pub(crate) fn split<'a, T>(bytes: &'a [u8], what: &'static str) -> Result<(&'a T, &'a [u8]), Error>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let short = Error::Truncated { what, need: size_of::<T>(), have: bytes.len() };
    T::ref_from_prefix(bytes).map_err(|_| short)
}

/// Writes `header` at the start of `into`, and returns the rest of it.
pub(crate) fn put<'a, T>(into: &'a mut [u8], header: &T, what: &'static str) -> Result<&'a mut [u8], Error>
where
    T: IntoBytes + Immutable,
{
    let need = size_of::<T>();
    let have = into.len();
    let (head, rest) = into.split_at_mut_checked(need).ok_or(Error::Truncated { what, need, have })?;
    head.copy_from_slice(header.as_bytes());
    Ok(rest)
}
