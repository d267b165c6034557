//! Names for the addresses in a guest's backtrace.
//!
//! The kernel prints a frame as `  at 0x0000000000101234`; the address lies inside the call
//! instruction.

use std::path::Path;

use addr2line::Loader;

use crate::sources;

/// The debug information of an image.
pub struct Symbols {
    loader: Option<Loader>,
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symbols").field("found", &self.loader.is_some()).finish()
    }
}

impl Symbols {
    /// Reads an ELF file. An image without debug information gives a backtrace without names.
    pub fn load(image: &Path) -> Symbols {
        Symbols { loader: Loader::new(image).ok() }
    }

    /// The lines to show for `line`: a frame of a backtrace with its function and place, any other
    /// line unchanged.
    pub fn annotate(&self, line: &str) -> Vec<String> {
        let Some(address) = frame_address(line) else { return vec![line.to_owned()] };
        let names = self.names(address);
        let line = line.trim_end();
        let mut names = names.into_iter();
        let first = names.next().map_or_else(|| line.to_owned(), |name| format!("{line} {name}"));
        // Functions that were inlined here have no frame of their own; they follow in lines below.
        let indent = line.chars().count();
        std::iter::once(first).chain(names.map(|name| format!("{:indent$} {name}", ""))).collect()
    }

    /// Function, file and line at an address, innermost inlined function first.
    fn names(&self, address: u64) -> Vec<String> {
        let Some(loader) = &self.loader else { return Vec::new() };
        let mut names = Vec::new();
        if let Ok(mut frames) = loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                let function =
                    frame.function.as_ref().and_then(|f| f.demangle().ok().map(|n| n.into_owned()));
                let place = frame.location.as_ref().and_then(|l| {
                    let file = sources::relative(Path::new(l.file?));
                    Some(format!("{}:{}", file.display(), l.line.unwrap_or_default()))
                });
                match (function, place) {
                    (Some(function), Some(place)) => names.push(format!("{function} ({place})")),
                    (Some(function), None) => names.push(function),
                    (None, Some(place)) => names.push(place),
                    (None, None) => {}
                }
            }
        }
        if names.is_empty() {
            names.extend(
                loader
                    .find_symbol(address)
                    .map(|name| addr2line::demangle_auto(name.into(), None).into_owned()),
            );
        }
        names
    }
}

/// The address in a line that is a frame of a backtrace.
fn frame_address(line: &str) -> Option<u64> {
    let digits = line.strip_prefix("  at 0x")?.trim_end();
    let all_hex = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if all_hex { u64::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_are_taken_for_frames() {
        assert_eq!(frame_address("  at 0x00000000001012ab"), Some(0x1012ab));
        assert_eq!(frame_address("  at 0x00000000001012ab\r"), Some(0x1012ab));
        assert_eq!(frame_address("  at 0x1012ab"), None);
        assert_eq!(frame_address("at 0x00000000001012ab"), None);
        assert_eq!(frame_address("  at 0x00000000001012ab and more"), None);
        assert_eq!(frame_address("  at 0x+0000000001012ab"), None);
    }

    #[test]
    fn without_debug_information_a_line_stays_as_it_is() {
        let symbols = Symbols::load(Path::new("/nonexistent"));
        assert_eq!(symbols.annotate("  at 0x00000000001012ab"), ["  at 0x00000000001012ab"]);
        assert_eq!(symbols.annotate("hello"), ["hello"]);
    }

    /// A function of this program is found by its debug information.
    #[test]
    fn an_address_gets_the_name_of_its_function() {
        let program = std::env::current_exe().expect("this program");
        let symbols = Symbols::load(&program);
        let loader = symbols.loader.as_ref().expect("an ELF file");
        // The address in the file, since the program is loaded at another one.
        let offset = {
            use object::{Object, ObjectSymbol};
            let bytes = std::fs::read(&program).expect("read it");
            let file = object::File::parse(&*bytes).expect("parse it");
            file.symbols()
                .find(|s| s.name().is_ok_and(|n| n.contains("landmark_for_the_test")))
                .expect("there")
                .address()
        };
        assert!(landmark_for_the_test(std::hint::black_box(3)) == 4 && loader.find_symbol(offset).is_some());
        let lines = symbols.annotate(&format!("  at 0x{offset:016x}"));
        assert!(lines[0].contains("landmark_for_the_test"), "{lines:?}");
        assert!(lines[0].contains("(qemu/src/symbols.rs:"), "{lines:?}");
    }

    #[inline(never)]
    fn landmark_for_the_test(x: u32) -> u32 {
        std::hint::black_box(x) + 1
    }
}
