//! NVMe Qualified Names (base 7.9).

use core::fmt;

/// The longest name in bytes, without the NUL that ends it.
pub const MAX_LEN: usize = 223;

/// Bytes of a field that holds a name.
pub const FIELD_LEN: usize = 256;

/// The name of every discovery subsystem (fabrics 1.5).
pub const DISCOVERY: Nqn<'static> = Nqn("nqn.2014-08.org.nvmexpress.discovery");

/// A valid name: UTF-8 of at most [`MAX_LEN`] bytes that begins with `nqn.`, a year and a month,
/// and a dot. Names are equal if their bytes are.
///
/// The text after that is the owner's own, and may hold any character but NUL. To display a name
/// escapes the control characters in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn<'a>(&'a str);

/// Why bytes are not a valid name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NqnError {
    /// It has no bytes.
    Empty,
    /// It has more than [`MAX_LEN`] bytes, or no NUL ends it.
    TooLong,
    /// It is not UTF-8.
    NotUtf8,
    /// It does not begin with `nqn.yyyy-mm.`, or ends there, or has a NUL in it.
    Format,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the NQN is empty",
            Self::TooLong => "the NQN has more than 223 bytes",
            Self::NotUtf8 => "the NQN is not UTF-8",
            Self::Format => "the NQN is not of the form nqn.yyyy-mm.NAME",
        })
    }
}

impl core::error::Error for NqnError {}

/// Whether the text begins with `nqn.yyyy-mm.` and goes on after it.
fn is_well_formed(text: &[u8]) -> bool {
    let Some((date, name)) = text.strip_prefix(b"nqn.").and_then(|rest| rest.split_at_checked(8)) else {
        return false;
    };
    let [year @ .., b'-', tens, ones, b'.'] = date else { return false };
    let month = matches!((*tens, *ones), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2'));
    month && year.iter().all(u8::is_ascii_digit) && !name.is_empty() && !name.contains(&0)
}

impl<'a> Nqn<'a> {
    /// The name that is these bytes.
    ///
    /// # Errors
    ///
    /// Why they are no name.
    pub fn new(bytes: &'a [u8]) -> Result<Self, NqnError> {
        match bytes.len() {
            0 => Err(NqnError::Empty),
            1..=MAX_LEN => {
                let text = core::str::from_utf8(bytes).map_err(|_| NqnError::NotUtf8)?;
                if is_well_formed(bytes) { Ok(Self(text)) } else { Err(NqnError::Format) }
            }
            _ => Err(NqnError::TooLong),
        }
    }

    /// The name in a field that a peer filled. What follows its NUL is ignored.
    ///
    /// # Errors
    ///
    /// Why it is no name.
    pub fn read(field: &'a [u8; FIELD_LEN]) -> Result<Self, NqnError> {
        let end = field.iter().position(|byte| *byte == 0).ok_or(NqnError::TooLong)?;
        Self::new(&field[..end])
    }

    /// Fills a field with the name and zeros.
    pub fn write(&self, field: &mut [u8; FIELD_LEN]) {
        field.fill(0);
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
    }

    /// The name as text.
    pub fn as_str(&self) -> &'a str {
        self.0
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for Nqn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                fmt::Write::write_char(f, character)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Nqn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use super::*;

    fn field(text: &[u8]) -> [u8; FIELD_LEN] {
        let mut field = [0; FIELD_LEN];
        field[..text.len()].copy_from_slice(text);
        field
    }

    #[test]
    fn a_name_is_read_as_written() {
        let uuid = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
        let longest = format!("nqn.2014-08.{}", "é".repeat(105) + "x");
        assert_eq!(longest.len(), MAX_LEN);
        for text in [uuid, DISCOVERY.as_str(), "nqn.2024-12.x", &longest] {
            let nqn = Nqn::new(text.as_bytes()).unwrap();
            assert_eq!((nqn.as_str(), format!("{nqn}").as_str()), (text, text));
            let mut bytes = [0xff; FIELD_LEN];
            nqn.write(&mut bytes);
            assert_eq!(bytes, field(text.as_bytes()));
            // What follows the NUL does not matter.
            bytes[255] = 0xff;
            assert_eq!(Nqn::read(&bytes), Ok(nqn));
        }
    }

    #[test]
    fn names_of_another_form_are_refused() {
        for text in [
            "n",
            "nqn.",
            "nqn.2014-08",
            "nqn.2014-08.",
            "nqn.2014-00.x",
            "nqn.2014-13.x",
            "nqn.2014-20.x",
            "nqn.201a-08.x",
            "nqn.2014_08.x",
            "nqn.2014-08:x",
            "NQN.2014-08.x",
            "iqn.2014-08.x",
            "nqn.2014-08.a\0b",
        ] {
            assert_eq!(Nqn::new(text.as_bytes()), Err(NqnError::Format), "{text}");
        }
        assert_eq!(Nqn::new(b""), Err(NqnError::Empty));
        assert_eq!(Nqn::read(&[0; FIELD_LEN]), Err(NqnError::Empty));
        assert_eq!(Nqn::read(&field(b"nqn.2014-08.\xff")), Err(NqnError::NotUtf8));
    }

    #[test]
    fn names_that_are_too_long_or_do_not_end_are_refused() {
        let text = format!("nqn.2014-08.{}", String::from("x").repeat(MAX_LEN - 11));
        assert_eq!(Nqn::new(text.as_bytes()), Err(NqnError::TooLong));
        assert_eq!(Nqn::read(&field(text.as_bytes())), Err(NqnError::TooLong));
        assert_eq!(Nqn::read(&[b'x'; FIELD_LEN]), Err(NqnError::TooLong));
    }

    #[test]
    fn control_characters_are_escaped() {
        let nqn = Nqn::new(b"nqn.2014-08.a\x1b[2J\n").unwrap();
        assert_eq!(format!("{nqn}"), "nqn.2014-08.a\\u{1b}[2J\\n");
        assert_eq!(format!("{nqn:?}"), "\"nqn.2014-08.a\\u{1b}[2J\\n\"");
    }
}
