//! The request of an RDMA Read (RFC 5040 section 4.4).

use crate::Error;
use crate::bytes::{Fields, Into};

/// The decoded message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The STag that the response's segments carry.
    pub sink_stag: u32,
    /// The tagged offset of the response's first byte.
    pub sink_to: u64,
    /// How many bytes are read.
    pub size: u32,
    /// The memory of the responder.
    pub source_stag: u32,
    /// Where in it the bytes begin.
    pub source_to: u64,
}

impl Repr {
    /// Its size in bytes.
    pub const LEN: usize = 28;

    /// Parses the message at the start of `bytes`; returns it and the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (mut fields, rest) = Fields::of(bytes, Repr::LEN, "RDMA Read Request")?;
        let (sink_stag, sink_to, size) = (fields.word(), fields.long(), fields.word());
        let (source_stag, source_to) = (fields.word(), fields.long());
        Ok((Repr { sink_stag, sink_to, size, source_stag, source_to }, rest))
    }

    /// Writes the message at the start of `into`, and returns its length.
    pub fn emit(&self, into: &mut [u8]) -> Result<usize, Error> {
        Into::new(into)
            .put(&self.sink_stag.to_be_bytes())
            .put(&self.sink_to.to_be_bytes())
            .put(&self.size.to_be_bytes())
            .put(&self.source_stag.to_be_bytes())
            .put(&self.source_to.to_be_bytes())
            .done("RDMA Read Request")
    }
}
