//! Finds the sources that images are built from.
//!
//! They are found at run time: a checkout can be moved or copied after the launcher was built, and
//! cargo does not rebuild the launcher then. The sources must be those from which the launcher was
//! built, which a digest shows. So a launcher never builds images of another version.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::digest::digest;
use crate::error::{Error, Result};

/// The digest of the sources from which this launcher was built, computed by `build.rs`.
const BUILT_FROM: &str = env!("FERROVIA_SOURCES");

/// Files that the root of a checkout contains.
const MARKS: [&str; 4] = ["Cargo.toml", "linker.ld", "qemu/Cargo.toml", "targets/build.rs"];

/// The root of the checkout from which this launcher was built.
///
/// Searched for above the package that cargo runs, above this program, and above the current
/// folder, in this order. The result is kept: a process never changes to another checkout.
pub fn root() -> Result<&'static Path> {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(root) = ROOT.get() {
        return Ok(root);
    }
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let starts = [package, env::current_exe().ok(), env::current_dir().ok()];
    let root = find(starts.into_iter().flatten(), BUILT_FROM)?;
    Ok(ROOT.get_or_init(|| root))
}

/// The first checkout at or above one of `starts` whose sources have the digest `wanted`.
fn find(starts: impl IntoIterator<Item = PathBuf>, wanted: &str) -> Result<PathBuf> {
    let mut other = None;
    for start in starts {
        let is_root = |folder: &&Path| MARKS.iter().all(|mark| folder.join(mark).is_file());
        let Some(root) = start.ancestors().find(is_root) else { continue };
        let found = digest(root).map_err(|e| Error::system(format!("read {}", root.display()), e))?;
        if found == wanted {
            return Ok(root.to_owned());
        }
        other.get_or_insert_with(|| root.to_owned());
    }
    Err(Error::Tool(match other {
        Some(root) => format!(
            "the sources in {0} are not the ones that this launcher was built from; run `cargo run` \
             in {0} (after `cargo clean -p {1}` if another checkout uses the same target folder)",
            root.display(),
            env!("CARGO_PKG_NAME"),
        ),
        None => "the sources of Ferrovia were not found above this program or the current folder; run \
                 the launcher by `cargo run` in its checkout"
            .into(),
    }))
}

/// A source file's name below the root of its checkout, whichever checkout it was compiled in.
pub fn relative(file: &Path) -> &Path {
    let Ok(root) = root() else { return file };
    let mut rest = file.components();
    loop {
        let name = rest.as_path();
        if name.is_relative() && root.join(name).is_file() {
            return name;
        }
        if rest.next().is_none() {
            return file;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{FOLDERS, files};
    use std::fs;

    /// A checkout with one source file in each folder that the digest covers.
    fn checkout(at: &Path) -> String {
        for file in MARKS.map(String::from).into_iter().chain(FOLDERS.map(|f| format!("{f}/Cargo.toml"))) {
            write(&at.join(&file), &file);
        }
        for folder in FOLDERS {
            write(&at.join(folder).join("src/deep/lib.rs"), folder);
        }
        digest(at).expect("it can be read")
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("make the folder");
        fs::write(path, text).expect("write");
    }

    fn copy(from: &Path, to: &Path) {
        for file in files(from).expect("a checkout").into_iter().chain(MARKS.map(|mark| from.join(mark))) {
            let name = file.strip_prefix(from).expect("below the root");
            write(&to.join(name), &fs::read_to_string(&file).expect("read"));
        }
    }

    #[test]
    fn a_copied_or_moved_checkout_is_found_from_anywhere_in_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        let built_from = checkout(&first);
        copy(&first, &second);
        for start in [second.clone(), second.join("qemu"), second.join("target/debug/ferrovia")] {
            assert_eq!(find([start], &built_from).expect("it is above"), second);
        }
        let both = [second.join("tests"), first.clone()];
        assert_eq!(find(both, &built_from).expect("both are there"), second, "the first start wins");
        fs::rename(&second, dir.path().join("third")).expect("move");
        let start = dir.path().join("third/target/debug/ferrovia");
        assert_eq!(find([start], &built_from).expect("it was moved"), dir.path().join("third"));
    }

    #[test]
    fn sources_of_another_version_are_refused_by_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        let built_from = checkout(&first);
        copy(&first, &second);
        write(&second.join("nic-abi/src/deep/lib.rs"), "another register");
        let error = find([second.clone()], &built_from).expect_err("another version").to_string();
        assert!(error.contains(&second.display().to_string()) && error.contains("`cargo run`"), "{error}");
        let starts = [second.clone(), first.clone()];
        assert_eq!(find(starts, &built_from).expect("the other start leads to it"), first);
        write(&second.join("nic-abi/src/deep/lib.rs"), "nic-abi");
        write(&second.join("nic-abi/src/new.rs"), "");
        assert!(find([second.clone()], &built_from).is_err(), "a new file is another version");
        fs::remove_file(second.join("nic-abi/src/new.rs")).expect("remove");
        write(&second.join("targets/hello/src/main.rs"), "images may change");
        assert_eq!(find([second.clone()], &built_from).expect("the launcher is the same"), second);
    }

    #[test]
    fn without_a_checkout_the_error_says_what_to_run() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = find([dir.path().to_owned()], "").expect_err("there is nothing").to_string();
        assert!(error.contains("`cargo run`") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn this_program_finds_its_own_sources() {
        let root = root().expect("cargo runs the tests in the checkout");
        assert!(root.join("qemu/src/sources.rs").is_file());
        let elsewhere = Path::new("/some/other/checkout/qemu/src/sources.rs");
        assert_eq!(relative(elsewhere), Path::new("qemu/src/sources.rs"));
        assert_eq!(relative(Path::new("/no/such/file.rs")), Path::new("/no/such/file.rs"));
    }
}
