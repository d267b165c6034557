//! Fields in network byte order.

use crate::Error;

/// The bytes of a header, taken field by field.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The first `need` bytes of `bytes`, and the bytes behind them.
    pub(crate) fn of(
        bytes: &'a [u8],
        need: usize,
        what: &'static str,
    ) -> Result<(Fields<'a>, &'a [u8]), Error> {
        let have = bytes.len();
        let (head, rest) = bytes.split_at_checked(need).ok_or(Error::Truncated { what, need, have })?;
        Ok((Fields(head), rest))
    }

    /// The next `N` bytes; zeroes behind the end, which no caller reaches.
    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk::<N>() else { return [0; N] };
        self.0 = rest;
        *field
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    pub(crate) fn half(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub(crate) fn long(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }
}

/// Writes fields one behind the other. It remembers when they do not fit.
pub(crate) struct Into<'a> {
    into: &'a mut [u8],
    at: usize,
}

impl<'a> Into<'a> {
    pub(crate) const fn new(into: &'a mut [u8]) -> Into<'a> {
        Into { into, at: 0 }
    }

    #[must_use]
    pub(crate) fn put(mut self, field: &[u8]) -> Into<'a> {
        let end = self.at.saturating_add(field.len());
        if let Some(place) = self.into.get_mut(self.at..end) {
            place.copy_from_slice(field);
        }
        self.at = end;
        self
    }

    /// How many bytes the fields have.
    pub(crate) fn done(self, what: &'static str) -> Result<usize, Error> {
        let (need, have) = (self.at, self.into.len());
        if need <= have { Ok(need) } else { Err(Error::Truncated { what, need, have }) }
    }
}
