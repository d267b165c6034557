//! Kernel images, and programs for Linux guests: built for the guest's target by a nested cargo.
//!
//! The nested cargo has its own target folder inside that of the outer cargo, so neither waits for
//! the other's lock. It gets none of the outer cargo's variables: a RUSTFLAGS in the environment
//! would silently replace the target's flags and produce a position-independent image, which QEMU
//! cannot start.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::elf;
use object::read::elf::{ElfFile64, FileHeader};
use rustix::process::Signal;

use crate::error::{Error, Result};
use crate::process;
use crate::progress::Progress;
use crate::setup::{GUEST_TARGET, ensure_guest_target};
use crate::sources;

/// The target of programs for the Linux guest.
const LINUX_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Variables that must not reach the nested cargo, besides all that begin with a prefix of
/// [`LEAKY_PREFIXES`].
const LEAKY: &[&str] = &[
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "MAKEFLAGS",
    "MFLAGS",
    "OUT_DIR",
    "TARGET",
    "HOST",
    "PROFILE",
    "OPT_LEVEL",
    "DEBUG",
    "NUM_JOBS",
    "LLVM_PROFILE_FILE",
];

/// Variables with these prefixes must not reach the nested cargo, except those that begin with one
/// of [`HARMLESS_PREFIXES`].
const LEAKY_PREFIXES: &[&str] = &["CARGO_", "DEP_"];

/// Variables with these prefixes say how cargo reaches the network and the terminal. They do not
/// change the image, so the nested cargo gets them.
const HARMLESS_PREFIXES: &[&str] = &[
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
    "CARGO_TERM_",
    "CARGO_BUILD_JOBS",
];

/// The manifest of the image `name`. If there is no such image, the error lists the existing ones.
pub fn manifest(name: &str) -> Result<PathBuf> {
    let targets = sources::root()?.join("targets");
    let names = names(&targets).map_err(|source| Error::File { path: targets.clone(), source })?;
    if names.iter().any(|found| found == name) {
        return Ok(targets.join(name).join("Cargo.toml"));
    }
    Err(Error::Usage(format!("there is no image {name:?}; the images are {}", names.join(", "))))
}

/// The folders of `targets` that are images, in order.
fn names(targets: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(targets)? {
        let entry = entry?;
        let has = |file: &str| entry.path().join(file).is_file();
        if has("Cargo.toml") && has("src/main.rs") {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Builds the image `name`, which `manifest` describes, and returns its ELF file. It is optimised,
/// and has debug assertions, if this program is and has them.
pub fn build(name: &str, manifest: &Path) -> Result<PathBuf> {
    let root = sources::root()?;
    ensure_guest_target(root)?;
    let target_dir = target_folder()?.join("guest");
    let release = !cfg!(debug_assertions);
    let mut cargo = nested_cargo(GUEST_TARGET, root, &target_dir);
    cargo.arg("--manifest-path").arg(manifest);
    if release {
        cargo.arg("--release");
    }
    run_with_progress(cargo, &format!("the image {name}"))?;
    let profile = if release { "release" } else { "debug" };
    let image = target_dir.join(GUEST_TARGET).join(profile).join(name);
    check_image(&image)?;
    Ok(image)
}

/// Builds the program `name` of the workspace for a Linux guest, and returns its file. It is
/// optimised and static, so it needs no libraries of the guest.
pub fn build_tool(name: &str) -> Result<PathBuf> {
    let target_dir = target_folder()?.join("tools");
    let mut cargo = nested_cargo(LINUX_TARGET, sources::root()?, &target_dir);
    cargo.args(["--release", "--package", name]);
    cargo.env("RUSTFLAGS", "-Ctarget-feature=+crt-static").env("CARGO_PROFILE_RELEASE_STRIP", "true");
    run_with_progress(cargo, &format!("the program {name}"))?;
    Ok(target_dir.join(LINUX_TARGET).join("release").join(name))
}

/// The shared libraries for programs of this machine.
#[derive(Debug)]
pub struct Libraries {
    /// The verbs and connections: `libibverbs.so.1`, and all its other names.
    pub verbs: PathBuf,
    /// What programs load in front of all libraries: `libferrovia-preload.so`.
    pub preload: PathBuf,
    /// The provider of DAT.
    pub dat: PathBuf,
}

/// Builds the libraries for programs of this machine, and returns their files.
pub fn build_libraries() -> Result<Libraries> {
    let target_dir = target_folder()?.join("verbs");
    let mut cargo = nested_cargo(LINUX_TARGET, sources::root()?, &target_dir);
    cargo.arg("--release");
    for package in ["ferrovia-verbs-library", "ferrovia-verbs-preload", "ferrovia-dat-provider"] {
        cargo.args(["--package", package]);
    }
    run_with_progress(cargo, "the libraries for programs")?;
    let built = |name| target_dir.join(LINUX_TARGET).join("release").join(name);
    Ok(Libraries {
        verbs: built("libferrovia_verbs.so"),
        preload: built("libferrovia_preload.so"),
        dat: built("libferrovia_dat_provider.so"),
    })
}

/// A cargo that builds for `target` in its own target folder.
fn nested_cargo(target: &str, root: &Path, target_dir: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--target", target, "--target-dir"]).arg(target_dir).current_dir(root);
    cargo.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    for (variable, _) in env::vars_os().filter(|(variable, _)| leaks(variable)) {
        cargo.env_remove(variable);
    }
    process::bind(&mut cargo, Signal::TERM, Vec::new());
    cargo
}

/// Whether a variable of this process would change the result of the nested cargo.
fn leaks(variable: &OsString) -> bool {
    let Some(name) = variable.to_str() else { return false };
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    LEAKY.contains(&name) || begins(LEAKY_PREFIXES) && !begins(HARMLESS_PREFIXES)
}

/// The target folder of this program.
pub(crate) fn target_folder() -> Result<PathBuf> {
    Ok(target_dir(env::current_exe().ok().as_deref(), sources::root()?))
}

/// The target folder in which the running program was built: the nearest folder above the program
/// that cargo has marked, else the usual one.
fn target_dir(program: Option<&Path>, root: &Path) -> PathBuf {
    let marked = program.and_then(|p| p.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file()));
    marked.map_or_else(|| root.join("target"), Path::to_owned)
}

/// Runs cargo, which builds `what`. Shows its last line while it works, and all of its output if it
/// fails.
fn run_with_progress(mut cargo: Command, what: &str) -> Result<()> {
    let mut child = cargo.spawn().map_err(|e| Error::system("run cargo", e))?;
    let progress = Progress::begin(format!("building {what}"));
    let mut written = Vec::new();
    for line in child.stderr.take().map(|pipe| BufReader::new(pipe).split(b'\n')).into_iter().flatten() {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line).into_owned();
        progress.message(line.trim());
        written.push(line);
    }
    let status = child.wait().map_err(|e| Error::system("wait for cargo", e))?;
    drop(progress);
    if status.success() {
        return Ok(());
    }
    for line in written {
        complain!("{line}");
    }
    Err(Error::Build(what.to_owned()))
}

/// Checks that QEMU can start a file: a fixed-address x86-64 program with a PVH entry.
fn check_image(path: &Path) -> Result<()> {
    let bad = |why: &str| Error::BadImage { path: path.to_owned(), why: why.to_owned() };
    let bytes = fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let file = ElfFile64::<object::LittleEndian>::parse(&*bytes).map_err(|_| bad("not a 64-bit ELF file"))?;
    let (header, endian) = (file.elf_header(), file.endian());
    if header.e_machine(endian) != elf::EM_X86_64 {
        return Err(bad("not a program for x86-64"));
    }
    if header.e_type(endian) != elf::ET_EXEC {
        return Err(bad("position-independent (ET_DYN), but the kernel needs fixed addresses (ET_EXEC); \
             do rustflags in a cargo configuration override those in .cargo/config.toml?"));
    }
    let segments =
        header.program_headers(endian, &*bytes).map_err(|_| bad("its program headers are damaged"))?;
    for segment in segments {
        use object::read::elf::ProgramHeader;
        let Ok(Some(mut notes)) = segment.notes(endian, &*bytes) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"Xen" && note.n_type(endian) == XEN_ELFNOTE_PHYS32_ENTRY {
                return Ok(());
            }
        }
    }
    Err(bad("it has no PVH entry note"))
}

/// The note that holds the PVH entry point (Xen, xen/include/public/elfnote.h).
const XEN_ELFNOTE_PHYS32_ENTRY: elf::NoteType = elf::NoteType(18);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_change_the_image_does_not_reach_the_nested_cargo() {
        for name in [
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_TARGET",
            "CARGO_PKG_NAME",
        ] {
            assert!(leaks(&name.into()), "{name}");
        }
        for name in
            ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_PROXY", "CARGO_TERM_COLOR", "PATH", "CARGO"]
        {
            assert!(!leaks(&name.into()), "{name}");
        }
    }

    #[test]
    fn an_image_that_does_not_exist_is_refused_with_those_that_do() {
        assert!(manifest("hello").expect("it exists").is_file());
        for name in ["nonexistent", "", "common", "../qemu", "hello/"] {
            let error = manifest(name).expect_err("it is no image").to_string();
            assert!(error.contains("apps-self, bench, cmatose, hello, hostile, "), "{error}");
        }
    }

    #[test]
    fn the_target_folder_is_where_the_program_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = Path::new("/the/root");
        let program = dir.path().join("debug/deps/program");
        assert_eq!(target_dir(Some(&program), root), root.join("target"));
        fs::write(dir.path().join("CACHEDIR.TAG"), "").expect("write");
        assert_eq!(target_dir(Some(&program), root), dir.path());
        assert_eq!(target_dir(None, root), root.join("target"));
    }

    #[test]
    fn what_can_not_be_started_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let text = dir.path().join("text");
        fs::write(&text, "no program").expect("write");
        let error = check_image(&text).expect_err("it is no program").to_string();
        assert!(error.contains("not a 64-bit ELF file"), "{error}");
        let error = check_image(&dir.path().join("missing")).expect_err("there is none").to_string();
        assert!(error.contains("missing"), "{error}");
        // Test programs are position-independent, as an image built with a leaked RUSTFLAGS would
        // be.
        let program = env::current_exe().expect("this program");
        let error = check_image(&program).expect_err("it is no kernel").to_string();
        assert!(error.contains("ET_EXEC"), "{error}");
    }
}
