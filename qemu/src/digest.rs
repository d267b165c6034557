//! A digest of the sources that the launcher is built from.
//!
//! The build script computes it when it builds the launcher, and the launcher computes it again
//! when it looks for its sources; so this file is compiled twice.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The packages that the launcher is built from, by their folders: the device model and the driver
/// in an image must have the same `nic-abi`.
pub const FOLDERS: [&str; 9] =
    ["qemu", "links", "nic-model", "roce", "iwarp", "tcp", "nvme", "nic-abi", "platform"];

/// The manifests and sources below `root` that the digest covers, in an order that depends only on
/// their names.
pub fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        files.push(root.join(folder).join("Cargo.toml"));
        sources(&root.join(folder).join("src"), &mut files)?;
    }
    files.sort();
    Ok(files)
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            sources(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The digest of the sources below `root`: FNV-1a over names and contents. It detects accidental
/// differences, not forgery.
pub fn digest(root: &Path) -> io::Result<String> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        // The length first, so that different lists of names and contents never give the same
        // bytes.
        for byte in bytes.len().to_le_bytes().iter().chain(bytes) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in files(root)? {
        let name = file.strip_prefix(root).unwrap_or(&file);
        add(name.as_os_str().as_encoded_bytes());
        add(&fs::read(&file)?);
    }
    Ok(format!("{hash:016x}"))
}
