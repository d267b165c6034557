//! The tour and the transfer: one image, with a payload of its own or with a file from the host; and booting any
//! other image.

use std::fs::File;
use std::path::Path;

use crate::error::{Error, Result};
use crate::launch::{Launcher, Output};
use crate::memory::below_hole;
use crate::options::{DEFAULT_MEMORY, Options, Size};

/// What the kernel, its heap and the stack take besides a file.
const OWN_MEMORY: u64 = 128 << 20;

/// Boots, shows the IA, and moves a payload of the image's own; returns the image's status.
pub fn tour(options: &Options) -> Result<u8> {
    run(options, "tour", &[], None)
}

/// Moves a file in each way; returns the image's status.
pub fn transfer(options: &Options, path: &Path) -> Result<u8> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Error::NotAFile(path.to_owned()));
    }
    let bytes = metadata.len();
    let memory = memory_for(path, bytes, options.memory)?;
    let options = Options { memory: Some(memory), ..options.clone() };
    // QEMU passes no module of 0 bytes, so the guest has to be told that there is one.
    let module = (bytes > 0).then_some(file);
    run(&options, "tour", &["transfer".into(), format!("bytes={bytes}")], module)
}

/// Boots any image and passes on what it says; returns the image's status.
pub fn boot(options: &Options, image: &str, words: &[String]) -> Result<u8> {
    run(options, image, words, None)
}

fn run(options: &Options, image: &str, words: &[String], module: Option<File>) -> Result<u8> {
    let launcher = Launcher::prepare(options, image)?;
    let mut output = Output::new(launcher.symbols());
    launcher.run(words, module, |line| output.line(line), |_| ())
}

/// How much memory a guest gets for a file of `bytes`; an error if it can't hold the file twice, which is what
/// moving it from one place to another takes.
fn memory_for(path: &Path, bytes: u64, chosen: Option<Size>) -> Result<Size> {
    let too_large = |why: String| Error::TooLarge(format!("{}: {bytes} bytes, {why}", path.display()));
    let twice = bytes.checked_mul(2).and_then(|twice| twice.checked_add(OWN_MEMORY));
    let needed = Size::at_least(twice.ok_or_else(|| too_large("more than any guest's memory".into()))?);
    let memory = chosen.unwrap_or(needed.max(DEFAULT_MEMORY));
    if memory < needed {
        return Err(too_large(format!("does not fit into a guest of {memory}: it takes --memory {needed}")));
    }
    // The module is loaded below the PCI hole, beside the kernel.
    if bytes + OWN_MEMORY / 2 > below_hole(memory.0) {
        let most = Size(below_hole(memory.0) - OWN_MEMORY / 2);
        return Err(too_large(format!("and QEMU can load {most} at most beside a kernel")));
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: u64, chosen: Option<u64>) -> std::result::Result<u64, String> {
        let path = Path::new("f");
        memory_for(path, bytes, chosen.map(|mib| Size(mib << 20)))
            .map(|s| s.0 >> 20)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn the_guest_grows_with_the_file() {
        assert_eq!(memory(0, None), Ok(512));
        assert_eq!(memory(1, None), Ok(512));
        assert_eq!(memory(256 << 20, None), Ok(640));
        assert_eq!(memory((256 << 20) + 1, None), Ok(641));
    }

    #[test]
    fn a_chosen_memory_is_kept_or_refused() {
        assert_eq!(memory(0, Some(128)), Ok(128));
        assert_eq!(memory(256 << 20, Some(640)), Ok(640));
        let error = memory(256 << 20, Some(639)).expect_err("one MiB is missing");
        assert_eq!(error, "f: 268435456 bytes, does not fit into a guest of 639M: it takes --memory 640M");
    }

    #[test]
    fn no_file_is_too_large_to_be_refused() {
        let error = memory(u64::MAX, None).expect_err("too large");
        assert_eq!(error, "f: 18446744073709551615 bytes, more than any guest's memory");
        let error = memory(3 << 30, None).expect_err("no room below the hole");
        assert_eq!(error, "f: 3221225472 bytes, and QEMU can load 1984M at most beside a kernel");
    }
}
