//! FPDUs: the units in which the stream carries segments (RFC 5044 section 4).
//!
//! An FPDU is the length of the segment (the ULPDU), the segment, zero to three bytes that fill it
//! up to a multiple of four, and a CRC. Without CRCs the field is there, and zero.

use alloc::vec::Vec;

use crate::Error;

use super::crc::{Crc32c, crc32c};

const LENGTH: usize = 2;
const CRC: usize = 4;

/// What the keys of Requests and Replies begin with: the length of an FPDU, and the control bytes
/// of DDP and RDMAP.
const FRAME: [u8; 4] = *b"MPA ";

/// The longest FPDU.
pub const MAX: usize = length(u16::MAX as usize);

/// Of the memory for FPDUs that come in parts, an idle receiver keeps as much.
const KEPT: usize = 16 * 1024;

/// The length of the FPDU of a ULPDU of that length.
pub const fn length(ulpdu: usize) -> usize {
    (LENGTH + ulpdu).next_multiple_of(4) + CRC
}

/// FPDUs as they come out of a stream that is cut anywhere.
///
/// An FPDU that lies whole in one slice is judged where it lies, so its payload is copied once, to
/// its place. Of one that comes in parts the receiver holds the parts: nothing of it counts before
/// its CRC has been verified. The memory grows with what has come, not with what the length says,
/// and has at most [`MAX`] bytes.
#[derive(Debug, Default)]
pub struct Receiver {
    crc: bool,
    held: Vec<u8>,
    /// What is held has been given out.
    spent: bool,
    /// An FPDU has come.
    begun: bool,
}

impl Receiver {
    /// A receiver of FPDUs, with CRCs or without.
    pub const fn new(crc: bool) -> Receiver {
        Receiver { crc, held: Vec::new(), spent: false, begun: false }
    }

    /// Whether a part of an FPDU has come.
    pub const fn is_inside(&self) -> bool {
        !self.held.is_empty() && !self.spent
    }

    /// Takes the next FPDU from `bytes`, and returns its ULPDU. `None` says that all bytes are
    /// taken, and that the next FPDU has not come whole.
    ///
    /// # Errors
    ///
    /// The CRC is wrong, there is no memory, or the first bytes are those of a Request or a Reply:
    /// the peer is still at the set-up, and would wait for an answer while this end waits for the
    /// rest of a long FPDU. The stream cannot go on.
    pub fn next<'a, 'b: 'a>(&'a mut self, bytes: &mut &'b [u8]) -> Result<Option<&'a [u8]>, Error> {
        if self.spent {
            self.spent = false;
            self.held.clear();
            if self.held.capacity() > KEPT {
                self.held = Vec::new();
            }
        }
        if self.held.is_empty() {
            if let Some((fpdu, rest)) = needed(bytes).and_then(|need| bytes.split_at_checked(need)) {
                *bytes = rest;
                self.is_no_frame(fpdu)?;
                self.begun = true;
                return verify(fpdu, self.crc).map(Some);
            }
            self.hold(bytes, usize::MAX)?;
            return self.is_no_frame(&self.held).map(|()| None);
        }
        // The length first, then what it announces.
        self.hold(bytes, LENGTH)?;
        let Some(need) = needed(&self.held) else { return Ok(None) };
        self.hold(bytes, need)?;
        self.is_no_frame(&self.held)?;
        if self.held.len() < need {
            return Ok(None);
        }
        (self.spent, self.begun) = (true, true);
        verify(&self.held, self.crc).map(Some)
    }

    /// Fails if the first FPDU begins as a frame of the set-up does. By its header it would be of a
    /// version of RDMAP that nobody takes.
    fn is_no_frame(&self, fpdu: &[u8]) -> Result<(), Error> {
        match fpdu.first_chunk() {
            Some(&first) if !self.begun && first == FRAME => {
                let [high, low, ..] = first;
                Err(Error::Field { field: "ULPDU_Length", value: u16::from_be_bytes([high, low]).into() })
            }
            _ => Ok(()),
        }
    }

    /// Takes bytes until so many are held.
    fn hold(&mut self, bytes: &mut &[u8], until: usize) -> Result<(), Error> {
        let missing = until.saturating_sub(self.held.len()).min(bytes.len());
        let (part, rest) = bytes.split_at(missing);
        self.held.try_reserve(part.len()).map_err(|_| Error::NoMemory)?;
        self.held.extend_from_slice(part);
        *bytes = rest;
        Ok(())
    }
}

/// The length of the FPDU that begins with these bytes, if they have its length field.
fn needed(bytes: &[u8]) -> Option<usize> {
    let ulpdu = u16::from_be_bytes(*bytes.first_chunk()?);
    Some(length(ulpdu.into()))
}

/// The ULPDU of a whole FPDU. The bytes that fill it up may have any value.
fn verify(fpdu: &[u8], crc: bool) -> Result<&[u8], Error> {
    let short = Error::Truncated { what: "FPDU", need: LENGTH + CRC, have: fpdu.len() };
    let (covered, field) = fpdu.split_last_chunk::<CRC>().ok_or(short)?;
    let (length, ulpdu) = covered.split_first_chunk().ok_or(short)?;
    if crc {
        let (found, computed) = (u32::from_le_bytes(*field), crc32c(covered));
        if found != computed {
            return Err(Error::Checksum { found, computed });
        }
    }
    ulpdu.get(..u16::from_be_bytes(*length).into()).ok_or(short)
}

/// The most bytes that an FPDU has before the payload that is gathered: its length, the longest
/// header, and the longest message that is not gathered, a Terminate that quotes an RDMA Read.
const HEAD: usize = LENGTH + 18 + 52;

/// An FPDU that is being written, into room of any size.
#[derive(Clone, Debug)]
pub struct Emission {
    head: [u8; HEAD],
    head_len: usize,
    /// Bytes of payload behind the head.
    payload: usize,
    /// Bytes of the FPDU that are written.
    done: usize,
    crc: Option<Crc32c>,
    /// The field of the CRC, once it is known.
    field: [u8; CRC],
}

impl Emission {
    /// An FPDU whose ULPDU is `head` and so many bytes of payload. `None` if the head has more than
    /// 70 bytes, or the ULPDU more than its length field can say.
    pub fn new(head: &[u8], payload: usize, crc: bool) -> Option<Emission> {
        let length = u16::try_from(head.len().checked_add(payload)?).ok()?;
        let mut bytes = [0; HEAD];
        let head_len = LENGTH + head.len();
        let (first, rest) = bytes.get_mut(..head_len)?.split_first_chunk_mut()?;
        *first = length.to_be_bytes();
        rest.copy_from_slice(head);
        let crc = crc.then(Crc32c::new);
        Some(Emission { head: bytes, head_len, payload, done: 0, crc, field: [0; CRC] })
    }

    /// The length of the FPDU.
    pub const fn length(&self) -> usize {
        length(self.head_len - LENGTH + self.payload)
    }

    /// Whether all of it is written.
    pub const fn is_done(&self) -> bool {
        self.done >= self.length()
    }

    /// Writes as much as there is room for, and returns how many bytes that is. `gather` fills a
    /// slice with the payload from an offset on.
    ///
    /// # Errors
    ///
    /// `gather` failed. What was written is not counted, and the FPDU cannot be finished.
    pub fn write<E>(
        &mut self,
        out: &mut [u8],
        mut gather: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut at = 0;
        while let Some((_, room)) = out.split_at_mut_checked(at)
            && !room.is_empty()
            && !self.is_done()
        {
            at += self.step(room, &mut gather)?;
        }
        Ok(at)
    }

    /// Writes a part of the head, of the payload, or of what is behind it.
    fn step<E>(
        &mut self,
        room: &mut [u8],
        gather: &mut impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let payload_end = self.head_len + self.payload;
        let crc_at = self.length() - CRC;
        let end = match self.done {
            done if done < self.head_len => self.head_len,
            done if done < payload_end => payload_end,
            done if done < crc_at => crc_at,
            _ => self.length(),
        };
        let part = room.len().min(end - self.done);
        let into = room.get_mut(..part).unwrap_or_default();
        if self.done < self.head_len {
            into.copy_from_slice(self.head.get(self.done..self.done + part).unwrap_or_default());
        } else if self.done < payload_end {
            gather(self.done - self.head_len, into)?;
        } else if self.done < crc_at {
            into.fill(0);
        } else {
            if let Some(crc) = self.crc.take() {
                self.field = crc.finish().to_le_bytes();
            }
            let from = self.done - crc_at;
            into.copy_from_slice(self.field.get(from..from + part).unwrap_or_default());
        }
        if let Some(crc) = &mut self.crc {
            crc.update(into);
        }
        self.done += part;
        Ok(part)
    }
}

/// Writes the FPDU of a ULPDU at the start of `into`, and returns its length.
pub fn emit(ulpdu: &[u8], crc: bool, into: &mut [u8]) -> Result<usize, Error> {
    let too_long = Error::Field { field: "ULPDU_Length", value: ulpdu.len() as u64 };
    let mut emission = Emission::new(&[], ulpdu.len(), crc).ok_or(too_long)?;
    let (need, have) = (emission.length(), into.len());
    let short = Error::Truncated { what: "FPDU", need, have };
    let into = into.get_mut(..need).ok_or(short)?;
    emission.write(into, |offset, part: &mut [u8]| {
        part.copy_from_slice(ulpdu.get(offset..offset + part.len()).ok_or(short)?);
        Ok(())
    })
}
