//! ASCII strings: left-justified and padded with spaces (base 1.5, conventions).

/// Writes `text` into `field` and pads it with spaces. What does not fit is cut off, and a byte
/// that is no printable ASCII becomes `?`.
///
/// # Example
///
/// ```
/// let mut field = [0; 6];
/// ferrovia_nvme::set_ascii(&mut field, "4420");
/// assert_eq!(&field, b"4420  ");
/// ```
pub fn set_ascii(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (byte, of_text) in field.iter_mut().zip(text.bytes()) {
        *byte = if matches!(of_text, b' '..=b'~') { of_text } else { b'?' };
    }
}

/// The text of a field that a peer filled: what precedes the padding, which some peers make of
/// zeros. Nothing if it is not printable ASCII.
pub(crate) fn ascii(field: &[u8]) -> Option<&str> {
    let end = field.iter().rposition(|byte| !matches!(byte, 0 | b' ')).map_or(0, |last| last + 1);
    let text = &field[..end];
    if text.iter().all(|byte| matches!(byte, b' '..=b'~')) { core::str::from_utf8(text).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_padded_and_cut_and_has_no_other_bytes() {
        let mut field = [0; 4];
        set_ascii(&mut field, "a");
        assert_eq!(&field, b"a   ");
        set_ascii(&mut field, "abcdef");
        assert_eq!(&field, b"abcd");
        set_ascii(&mut field, "a\n\u{7f}~");
        assert_eq!(&field, b"a??~");
    }

    #[test]
    fn zeros_and_spaces_are_padding() {
        assert_eq!(ascii(b"10.0.0.1  "), Some("10.0.0.1"));
        assert_eq!(ascii(b"a b\0\0"), Some("a b"));
        assert_eq!(ascii(b"\0 \0"), Some(""));
        assert_eq!(ascii(b""), Some(""));
        assert_eq!(ascii(b"a\0b "), None);
        assert_eq!(ascii(b"\x1b[2J"), None);
    }
}
