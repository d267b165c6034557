//! How words are written where a list or a shell reads them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A value for one of QEMU's lists of options, in which a comma is written twice.
pub(crate) fn in_list(value: &OsStr) -> OsString {
    let double = |&byte: &u8| std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 });
    OsString::from_vec(value.as_bytes().iter().flat_map(double).collect())
}

/// A word as a shell takes it.
pub(crate) fn for_shell(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/.,:=_-+@%".contains(byte);
    let is_text = |text: &&str| !text.chars().any(char::is_control);
    match word.to_str().filter(is_text) {
        Some(text) if !text.is_empty() && text.bytes().all(|byte| is_plain(&byte)) => text.to_owned(),
        Some(text) => format!("'{}'", text.replace('\'', r"'\''")),
        // Bytes that are no text are written by their numbers.
        None => format!("$'{}'", word.as_bytes().escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_comma_in_a_list_is_written_twice() {
        let bytes = OsString::from_vec(b"a,b,,\xff".to_vec());
        assert_eq!(in_list(&bytes).as_bytes(), b"a,,b,,,,\xff");
    }

    #[test]
    fn a_shell_gets_the_words_that_were_meant() {
        let words = ["plain", "a,,b=/c.d:e", "a b", "", "it's", "$HOME `x` \\ \"y\" *?;&|<>(){}[]!~#", "ü"];
        let mut words: Vec<OsString> = words.map(OsString::from).into();
        words.push(OsString::from_vec(b"\xff'\\\n\t\"$x".to_vec()));
        let quoted =
            |words: &[OsString]| words.iter().map(|word| for_shell(word)).collect::<Vec<_>>().join(" ");
        let script = format!("printf '%s\\0' {}", quoted(&words));
        let output = Command::new("bash").args(["-c", &script]).output().expect("a shell");
        let found: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
        let wanted: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).chain([&b""[..]]).collect();
        assert_eq!(found, wanted, "{script}");
        assert_eq!(quoted(&words[..3]), "plain a,,b=/c.d:e 'a b'");
    }
}
