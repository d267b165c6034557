//! A transport packet: the BTH, the headers that its opcode requires, and the payload.

use super::opcode::Headers;
use super::{aeth, atomic, bth, deth, extra, reth};
use crate::Error;

/// A packet from the BTH to the end of its payload, without padding and ICRC.
///
/// [`Repr::parse`] sets exactly the headers that the opcode requires; [`Repr::emit`] writes them
/// and refuses a packet in which one is missing or superfluous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// The base transport header. Its pad count is derived from the payload when emitting.
    pub bth: bth::Repr,
    /// Datagram extended transport header.
    pub deth: Option<deth::Repr>,
    /// RDMA extended transport header.
    pub reth: Option<reth::Repr>,
    /// Atomic extended transport header.
    pub atomic: Option<atomic::Repr>,
    /// Acknowledge extended transport header.
    pub aeth: Option<aeth::Repr>,
    /// Atomic acknowledge extended transport header.
    pub original: Option<atomic::Original>,
    /// Immediate data.
    pub immediate: Option<extra::Immediate>,
    /// Invalidate extended transport header.
    pub invalidate: Option<extra::Invalidate>,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Repr<'a> {
    /// A packet with neither further headers nor a payload.
    pub const fn new(bth: bth::Repr) -> Repr<'a> {
        Repr {
            bth,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            original: None,
            immediate: None,
            invalidate: None,
            payload: &[],
        }
    }

    fn headers(&self) -> Headers {
        let mut present = Headers::empty();
        present.set(Headers::DETH, self.deth.is_some());
        present.set(Headers::RETH, self.reth.is_some());
        present.set(Headers::ATOMIC_ETH, self.atomic.is_some());
        present.set(Headers::AETH, self.aeth.is_some());
        present.set(Headers::ATOMIC_ACK_ETH, self.original.is_some());
        present.set(Headers::IMMEDIATE, self.immediate.is_some());
        present.set(Headers::IETH, self.invalidate.is_some());
        present.set(Headers::PAYLOAD, !self.payload.is_empty());
        present
    }

    /// How many bytes fill the payload up to a multiple of four.
    pub const fn pad(&self) -> usize {
        self.payload.len().wrapping_neg() & 3
    }

    /// How many bytes [`Repr::emit`] writes: headers, payload and padding.
    pub fn len(&self) -> usize {
        let sizes = [
            (Headers::DETH, deth::Repr::LEN),
            (Headers::RETH, reth::Repr::LEN),
            (Headers::ATOMIC_ETH, atomic::Repr::LEN),
            (Headers::AETH, aeth::Repr::LEN),
            (Headers::ATOMIC_ACK_ETH, atomic::Original::LEN),
            (Headers::IMMEDIATE, extra::Immediate::LEN),
            (Headers::IETH, extra::Invalidate::LEN),
        ];
        let present = self.headers();
        let headers: usize = sizes.iter().filter(|(h, _)| present.contains(*h)).map(|(_, n)| n).sum();
        bth::Repr::LEN + headers + self.payload.len() + self.pad()
    }

    /// Always false: a packet has at least its BTH.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Parses the packet in `bytes`, from the BTH to the padding, without the ICRC.
    pub fn parse(bytes: &'a [u8]) -> Result<Repr<'a>, Error> {
        let (bth, mut rest) = bth::Repr::parse(bytes)?;
        let headers = bth.opcode.headers();
        let mut packet = Repr::new(bth);
        if headers.contains(Headers::DETH) {
            let (deth, after) = deth::Repr::parse(rest)?;
            (packet.deth, rest) = (Some(deth), after);
        }
        if headers.contains(Headers::RETH) {
            let (reth, after) = reth::Repr::parse(rest)?;
            (packet.reth, rest) = (Some(reth), after);
        }
        if headers.contains(Headers::ATOMIC_ETH) {
            let (atomic, after) = atomic::Repr::parse(rest)?;
            (packet.atomic, rest) = (Some(atomic), after);
        }
        if headers.contains(Headers::AETH) {
            let (aeth, after) = aeth::Repr::parse(rest)?;
            (packet.aeth, rest) = (Some(aeth), after);
        }
        if headers.contains(Headers::ATOMIC_ACK_ETH) {
            let (original, after) = atomic::Original::parse(rest)?;
            (packet.original, rest) = (Some(original), after);
        }
        if headers.contains(Headers::IMMEDIATE) {
            let (immediate, after) = extra::Immediate::parse(rest)?;
            (packet.immediate, rest) = (Some(immediate), after);
        }
        if headers.contains(Headers::IETH) {
            let (invalidate, after) = extra::Invalidate::parse(rest)?;
            (packet.invalidate, rest) = (Some(invalidate), after);
        }
        let pad = usize::from(bth.pad);
        let short = Error::Truncated { what: "padding", need: pad, have: rest.len() };
        let len = rest.len().checked_sub(pad).ok_or(short)?;
        packet.payload = &rest[..len];
        if packet.pad() != pad {
            return Err(Error::Field { field: "BTH pad count", value: pad as u64 });
        }
        if len > 0 && !headers.contains(Headers::PAYLOAD) {
            return Err(Error::Field { field: "payload after an opcode without one", value: len as u64 });
        }
        Ok(packet)
    }

    /// Writes the packet at the start of `into`, padding included, and returns the rest of it.
    pub fn emit<'b>(&self, into: &'b mut [u8]) -> Result<&'b mut [u8], Error> {
        let (wanted, present) = (self.bth.opcode.headers(), self.headers());
        if wanted.difference(Headers::PAYLOAD) != present.difference(Headers::PAYLOAD)
            || present.difference(wanted).contains(Headers::PAYLOAD)
        {
            return Err(Error::Field { field: "headers for the opcode", value: present.bits().into() });
        }
        let pad = self.pad();
        let mut rest = bth::Repr { pad: pad as u8, ..self.bth }.emit(into)?;
        if let Some(deth) = &self.deth {
            rest = deth.emit(rest)?;
        }
        if let Some(reth) = &self.reth {
            rest = reth.emit(rest)?;
        }
        if let Some(atomic) = &self.atomic {
            rest = atomic.emit(rest)?;
        }
        if let Some(aeth) = &self.aeth {
            rest = aeth.emit(rest)?;
        }
        if let Some(original) = &self.original {
            rest = original.emit(rest)?;
        }
        if let Some(immediate) = &self.immediate {
            rest = immediate.emit(rest)?;
        }
        if let Some(invalidate) = &self.invalidate {
            rest = invalidate.emit(rest)?;
        }
        let need = self.payload.len() + pad;
        let short = Error::Truncated { what: "payload", need, have: rest.len() };
        let (body, rest) = rest.split_at_mut_checked(need).ok_or(short)?;
        let (data, zeroes) = body.split_at_mut(self.payload.len());
        data.copy_from_slice(self.payload);
        zeroes.fill(0);
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::opcode::Opcode;
    use crate::{Psn, Qpn};

    fn bth(opcode: Opcode) -> bth::Repr {
        bth::Repr::new(opcode, Qpn::new(0x11).unwrap(), Psn::new(5))
    }

    #[test]
    fn a_packet_without_the_headers_of_its_opcode_is_not_emitted() {
        let mut into = [0; 64];
        let missing = Repr::new(bth(Opcode::RcReadRequest));
        assert!(matches!(missing.emit(&mut into), Err(Error::Field { .. })));
        let mut extra = Repr::new(bth(Opcode::RcSendOnly));
        extra.aeth = Some(aeth::Repr { syndrome: aeth::Syndrome::ACK, msn: 0 });
        assert!(matches!(extra.emit(&mut into), Err(Error::Field { .. })));
        let mut loaded = Repr::new(bth(Opcode::RcAcknowledge));
        loaded.aeth = Some(aeth::Repr { syndrome: aeth::Syndrome::ACK, msn: 0 });
        loaded.payload = b"x";
        assert!(matches!(loaded.emit(&mut into), Err(Error::Field { .. })));
    }

    #[test]
    fn a_payload_is_padded_to_a_multiple_of_four() {
        for len in 0..9 {
            let data = [0xaa; 9];
            let mut packet = Repr::new(bth(Opcode::RcSendOnly));
            packet.payload = &data[..len];
            let mut into = [0xff; 32];
            let left = packet.emit(&mut into).unwrap().len();
            assert_eq!(32 - left, packet.len());
            assert_eq!(packet.len() % 4, 0);
            let back = Repr::parse(&into[..packet.len()]).unwrap();
            assert_eq!(back.payload, &data[..len]);
            assert_eq!(usize::from(back.bth.pad), packet.pad());
        }
    }

    #[test]
    fn a_wrong_pad_count_is_refused() {
        let mut packet = Repr::new(bth(Opcode::RcSendOnly));
        packet.payload = b"abc";
        let mut into = [0; 16];
        packet.emit(&mut into).unwrap();
        assert_eq!(Repr::parse(&into[..14]), Err(Error::Field { field: "BTH pad count", value: 1 }));
        assert!(matches!(Repr::parse(&into[..12]), Err(Error::Truncated { what: "padding", .. })));
    }

    #[test]
    fn every_syndrome_survives() {
        for bits in 0..=0x7f_u8 {
            let bytes = [bits, 1, 2, 3];
            let Ok((repr, _)) = aeth::Repr::parse(&bytes) else {
                assert!(bits >> 5 == 2 || bits > 0x64);
                continue;
            };
            let mut back = [0; 4];
            repr.emit(&mut back).unwrap();
            assert_eq!(back, bytes);
        }
    }
}
