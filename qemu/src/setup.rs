//! The software that a guest needs on this machine: QEMU, and Rust's standard library for the
//! guest; Valgrind for the benchmarks that count instructions; and make and xz, with which a module
//! of Linux's kernel is compiled.
//!
//! Missing software is installed if that works without a question (as root, or with sudo without a
//! password). Otherwise the error says what to type. Nothing is installed when `--qemu` names a
//! program.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::accel::Accelerator;
use crate::error::{Error, Result};
use crate::process;
use crate::progress::Progress;
use crate::quoting::for_shell;

/// The oldest supported QEMU, for messages.
const OLDEST_TEXT: &str = "7.2";
/// The oldest supported QEMU.
const OLDEST: (u32, u32) = (7, 2);
/// How long a program may take to answer `--version`. QEMU takes about 20 ms on an idle machine.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// A program, and the package that contains it.
struct Package {
    program: &'static str,
    debian: &'static str,
    fedora: &'static str,
    arch: &'static str,
    /// What the message offers after "install it".
    otherwise: &'static str,
}

const QEMU: Package = Package {
    program: "qemu-system-x86_64",
    debian: "qemu-system-x86",
    fedora: "qemu-system-x86-core",
    arch: "qemu-system-x86",
    otherwise: ", or name another with --qemu PATH",
};
const VALGRIND: Package =
    Package { program: "valgrind", debian: "valgrind", fedora: "valgrind", arch: "valgrind", otherwise: "" };
const MAKE: Package =
    Package { program: "make", debian: "make", fedora: "make", arch: "make", otherwise: "" };
const XZ: Package = Package { program: "xz", debian: "xz-utils", fedora: "xz", arch: "xz", otherwise: "" };

/// What the kernel is compiled for.
pub const GUEST_TARGET: &str = "x86_64-unknown-none";
/// How often a download is tried.
const DOWNLOADS: u32 = 3;

/// A QEMU that is new enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// The program.
    pub path: PathBuf,
    /// Its major and minor version.
    pub version: (u32, u32),
    /// What its guests run on.
    pub accelerator: Accelerator,
}

/// Finds QEMU: `chosen` if given, else on PATH, else after installing it. `limit` is the user's
/// time limit for a guest, if any; QEMU may take no longer to print its version. Its guests run on
/// TCG unless the caller says otherwise.
pub fn find_qemu(chosen: Option<&Path>, limit: Option<Duration>) -> Result<Qemu> {
    let limit = limit.map_or(ANSWER_TIME, |limit| limit.min(ANSWER_TIME));
    match chosen {
        Some(path) => check_version(path, limit),
        None => check_version(&find_or_install(&QEMU)?, limit),
    }
}

/// Makes sure that Valgrind is on PATH.
pub fn ensure_valgrind() -> Result<()> {
    find_or_install(&VALGRIND).map(drop)
}

/// Makes sure that the tools are on PATH that compile modules for Linux's kernel, besides the C
/// compiler.
pub fn ensure_tools_for_modules() -> Result<()> {
    for package in [&MAKE, &XZ] {
        find_or_install(package)?;
    }
    Ok(())
}

fn find_or_install(package: &Package) -> Result<PathBuf> {
    let find = || on_path(OsStr::new(package.program), env::var_os("PATH").as_deref());
    if let Some(path) = find() {
        return Ok(path);
    }
    let system = Distribution::detect(&std::fs::read_to_string("/etc/os-release").unwrap_or_default());
    install(package, system)?;
    find().ok_or_else(|| {
        Error::Missing(format!("{} is still not on PATH after its installation", package.program))
    })
}

/// The first executable file called `program` in the folders of `path`.
fn on_path(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    env::split_paths(path?).map(|dir| dir.join(program)).find(|file| {
        std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// Asks a program for its version.
fn check_version(path: &Path, limit: Duration) -> Result<Qemu> {
    let not_qemu = |why: String| Error::NotQemu { path: path.to_owned(), why };
    let progress = Progress::begin(format!("waiting for `{} --version`", for_shell(path.as_os_str())));
    let mut command = Command::new(path);
    command.arg("--version");
    let answer = process::answer(command, limit);
    drop(progress);
    let answer = answer.map_err(|source| Error::File { path: path.to_owned(), source })?;
    let Some(answer) = answer else {
        return Err(not_qemu(format!("`--version` did not end within {} s", limit.as_secs())));
    };
    let text = String::from_utf8_lossy(&answer.stdout);
    if !answer.status.success() {
        return Err(not_qemu(format!("`--version` ended with {}", answer.status)));
    }
    let Some((version, shown)) = parse_version(&text) else {
        let first = text.lines().next().unwrap_or_default();
        return Err(not_qemu(format!("`--version` answered {first:?}")));
    };
    if version < OLDEST {
        return Err(Error::OldQemu { path: path.to_owned(), found: shown.to_owned(), needed: OLDEST_TEXT });
    }
    Ok(Qemu { path: path.to_owned(), version, accelerator: Accelerator::Tcg })
}

/// Reads `QEMU emulator version 7.2.22 (Debian …)`; returns major and minor version, and the
/// version as it is written there.
fn parse_version(text: &str) -> Option<((u32, u32), &str)> {
    let shown = text.lines().next()?.strip_prefix("QEMU emulator version ")?.split_whitespace().next()?;
    let mut parts = shown.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    Some(((major, minor), shown))
}

/// A family of distributions with the same package manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distribution {
    Debian,
    Fedora,
    Arch,
    Unknown,
}

impl Distribution {
    /// Reads os-release(5).
    fn detect(os_release: &str) -> Distribution {
        let value = |key: &str| {
            os_release.lines().find_map(|line| {
                let value = line.trim().strip_prefix(key)?.strip_prefix('=')?;
                Some(value.trim_matches(['"', '\'']).to_owned())
            })
        };
        let id = value("ID").unwrap_or_default();
        let like = value("ID_LIKE").unwrap_or_default();
        for name in std::iter::once(id.as_str()).chain(like.split_whitespace()) {
            match name {
                "debian" | "ubuntu" => return Distribution::Debian,
                "fedora" | "rhel" | "centos" => return Distribution::Fedora,
                "arch" => return Distribution::Arch,
                _ => {}
            }
        }
        Distribution::Unknown
    }

    /// The commands that install a package, without questions.
    fn commands(self, package: &Package) -> Vec<Vec<&'static str>> {
        match self {
            Distribution::Debian => vec![
                vec!["apt-get", "update"],
                vec!["apt-get", "install", "-y", "--no-install-recommends", package.debian],
            ],
            Distribution::Fedora => vec![vec!["dnf", "install", "-y", package.fedora]],
            Distribution::Arch => vec![vec!["pacman", "-Sy", "--needed", "--noconfirm", package.arch]],
            Distribution::Unknown => vec![],
        }
    }
}

/// The error that says what to type if the package cannot be installed.
fn by_hand(package: &Package, why: &str) -> Error {
    let Package { program, debian, fedora, arch, otherwise } = package;
    Error::Missing(format!(
        "{program} was not found, and {why}; install it{otherwise}:\n  \
         Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y --no-install-recommends {debian}\n  \
         Fedora:          sudo dnf install -y {fedora}\n  \
         Arch:            sudo pacman -S --needed {arch}"
    ))
}

/// Installs the distribution's package.
fn install(package: &Package, system: Distribution) -> Result<()> {
    let commands = system.commands(package);
    let Some(manager) = commands.first().and_then(|c| c.first()) else {
        return Err(by_hand(package, "this distribution's package manager is unknown"));
    };
    if on_path(OsStr::new(manager), env::var_os("PATH").as_deref()).is_none() {
        return Err(by_hand(package, &format!("neither was {manager}")));
    }
    let prefix: &[&str] = if rustix::process::geteuid().is_root() {
        &[]
    } else if quiet_success(Command::new("sudo").args(["-n", "true"])) {
        &["sudo", "-n"]
    } else {
        return Err(by_hand(package, "installing it takes root"));
    };
    for command in &commands {
        let words: Vec<&str> = prefix.iter().chain(command.iter()).copied().collect();
        complain!("ferrovia: {} was not found; running `{}`", package.program, words.join(" "));
        let mut run = Command::new(words[0]);
        run.args(&words[1..]).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        // The package manager may continue when this process is killed, so that no package is left
        // half installed. Its output goes to standard error, since standard output is the guest's.
        run.stdout(io::stderr());
        match run.status() {
            Ok(status) if status.success() => {}
            // The package may be in the present index.
            Ok(_) if command.contains(&"update") => {}
            Ok(status) => {
                let why = format!("`{}` failed ({status})", words.join(" "));
                return Err(by_hand(package, &why));
            }
            Err(source) => return Err(Error::system(format!("run {}", words[0]), source)),
        }
    }
    Ok(())
}

/// Whether a command succeeds; its output is dropped.
fn quiet_success(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Makes sure that the standard library for [`GUEST_TARGET`] is there, for the toolchain used in
/// `root`.
///
/// rustup does this by itself from rust-toolchain.toml, unless it is configured not to.
pub fn ensure_guest_target(root: &Path) -> Result<()> {
    let sysroot = || -> Result<PathBuf> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let answer = Command::new(&rustc).args(["--print", "sysroot"]).current_dir(root).output();
        let answer = answer.map_err(|source| Error::system(format!("run {}", rustc.display()), source))?;
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.stderr);
            let first = said.lines().next().unwrap_or("no reason given");
            return Err(Error::Tool(format!(
                "`{} --print sysroot` failed: {first}",
                for_shell(rustc.as_os_str())
            )));
        }
        Ok(PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim()))
    };
    let installed = |sysroot: &Path| sysroot.join("lib/rustlib").join(GUEST_TARGET).join("lib").is_dir();
    if installed(&sysroot()?) {
        return Ok(());
    }
    if !quiet_success(Command::new("rustup").arg("--version")) {
        return Err(Error::Tool(format!(
            "the Rust target {GUEST_TARGET} is not installed, and rustup was not found; \
             install rustup from https://rustup.rs, or install the target as your distribution does it"
        )));
    }
    for attempt in 1..=DOWNLOADS {
        complain!(
            "ferrovia: the Rust target {GUEST_TARGET} is not installed; \
             running `rustup target add {GUEST_TARGET}`{}",
            if attempt > 1 { format!(" (attempt {attempt} of {DOWNLOADS})") } else { String::new() }
        );
        let mut rustup = Command::new("rustup");
        rustup
            .args(["target", "add", GUEST_TARGET])
            .current_dir(root)
            .stdin(Stdio::null())
            .stdout(io::stderr());
        let added = rustup.status().map_err(|source| Error::system("run rustup", source))?;
        if added.success() && installed(&sysroot()?) {
            return Ok(());
        }
    }
    Err(Error::Tool(format!(
        "the Rust target {GUEST_TARGET} can't be installed; run `rustup target add {GUEST_TARGET}` in {}",
        root.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn versions_are_read_as_every_distribution_writes_them() {
        let debian =
            "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright (c) Fabrice Bellard";
        assert_eq!(parse_version(debian), Some(((7, 2), "7.2.22")));
        assert_eq!(parse_version("QEMU emulator version 10.1.0"), Some(((10, 1), "10.1.0")));
        assert_eq!(parse_version("QEMU emulator version 11.0.50 (v11.0.0-1-g1)"), Some(((11, 0), "11.0.50")));
        assert_eq!(parse_version("bash, version 5.2"), None);
        assert_eq!(parse_version(""), None);
        assert_eq!(parse_version("QEMU emulator version seven.two"), None);
    }

    #[test]
    fn distributions_are_known_by_name_and_by_family() {
        assert_eq!(Distribution::detect("ID=debian\n"), Distribution::Debian);
        assert_eq!(
            Distribution::detect("NAME=\"Linux Mint\"\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"),
            Distribution::Debian
        );
        assert_eq!(
            Distribution::detect("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"),
            Distribution::Fedora
        );
        assert_eq!(Distribution::detect("ID=fedora\nVERSION_ID=41\n"), Distribution::Fedora);
        assert_eq!(Distribution::detect("ID=manjaro\nID_LIKE=arch\n"), Distribution::Arch);
        assert_eq!(Distribution::detect("ID=nixos\n"), Distribution::Unknown);
        assert_eq!(Distribution::detect(""), Distribution::Unknown);
    }

    #[test]
    fn where_nothing_can_be_installed_all_three_commands_are_named() {
        let Err(error) = install(&QEMU, Distribution::Unknown) else {
            panic!("an unknown distribution was installed on")
        };
        let text = error.to_string();
        for word in ["apt-get install", "dnf install", "pacman -S", "--qemu PATH"] {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
        assert_ne!(error.status(), 0);
    }

    fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("write the script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it executable");
        path
    }

    #[test]
    fn a_program_is_found_only_if_it_can_be_run() {
        let (one, two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fs::write(one.path().join("tool"), "not executable").expect("write");
        let wanted = script(two.path(), "tool", "true");
        let path = env::join_paths([one.path(), two.path()]).expect("a path");
        assert_eq!(on_path(OsStr::new("tool"), Some(&path)), Some(wanted));
        assert_eq!(on_path(OsStr::new("other"), Some(&path)), None);
        assert_eq!(on_path(OsStr::new("tool"), None), None);
    }

    #[test]
    fn a_qemu_is_taken_from_the_oldest_version_on() {
        let dir = tempfile::tempdir().expect("a folder");
        let with = |name: &str, version: &str| {
            let script = script(dir.path(), name, &format!("echo 'QEMU emulator version {version}'"));
            find_qemu(Some(&script), None)
        };
        assert_eq!(with("a", "7.2.0").expect("7.2 is new enough").version, (7, 2));
        assert_eq!(with("b", "11.1.3").expect("11.1 is new enough").version, (11, 1));
        let error = with("c", "7.1.9 (Old)").expect_err("7.1 is too old");
        assert!(matches!(&error, Error::OldQemu { found, .. } if found == "7.1.9"), "{error}");
    }

    #[test]
    fn what_is_no_qemu_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let missing = find_qemu(Some(&dir.path().join("nothing")), None).expect_err("there is nothing");
        assert!(matches!(missing, Error::File { .. }), "{missing}");
        let failing = find_qemu(Some(&script(dir.path(), "failing", "exit 3")), None).expect_err("it fails");
        assert!(failing.to_string().contains("exit status: 3"), "{failing}");
        let other =
            find_qemu(Some(&script(dir.path(), "other", "echo hello")), None).expect_err("it is no QEMU");
        assert!(other.to_string().contains("hello"), "{other}");
    }
}
