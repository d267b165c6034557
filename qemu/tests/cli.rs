//! Bad input on the command line: one clear line each, a status that is not zero, and no backtrace.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn ferrovia(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferrovia"))
        .args(arguments)
        .env("RUST_BACKTRACE", "1")
        .env_remove("FERROVIA_QEMU")
        .output()
        .expect("start the launcher")
}

/// Runs it and returns the one line that it says.
fn complaint(arguments: &[&str]) -> String {
    let output = ferrovia(arguments);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(matches!(output.status.code(), Some(1..=2)), "{arguments:?}: {} {said}", output.status);
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    assert!(said.starts_with("ferrovia: "), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    said
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("write the script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it executable");
    path
}

#[test]
fn wrong_arguments() {
    assert!(complaint(&["--frobnicate"]).contains("--frobnicate"));
    assert!(complaint(&["transfer"]).contains("<FILE>"));
    assert!(complaint(&["--memory", "much"]).contains("not a size"));
    assert!(complaint(&["--cpus", "0"]).contains("--cpus"));
    assert!(complaint(&["test", "no blanks"]).contains("no blanks"));
}

#[test]
fn files_that_can_not_be_moved() {
    let dir = tempfile::tempdir().expect("a folder");
    let missing = dir.path().join("missing");
    assert!(complaint(&["transfer", text(&missing)]).contains("No such file"));
    assert!(complaint(&["transfer", text(dir.path())]).contains("not a regular file"));
    let large = dir.path().join("large");
    File::create(&large).and_then(|file| file.set_len(1 << 30)).expect("a sparse file");
    let said = complaint(&["transfer", text(&large), "--memory", "512M"]);
    assert!(said.contains("1073741824 bytes") && said.contains("--memory 2176M"), "{said}");
    File::options().write(true).open(&large).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    complaint(&["transfer", text(&large)]);
}

#[test]
fn qemus_that_will_not_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let script = |name: &str, body: &str| script(dir.path(), name, body);
    let old = script("old", "echo 'QEMU emulator version 6.2.0 (Debian 1:6.2)'");
    let said = complaint(&["--qemu", text(&old)]);
    assert!(said.contains("6.2.0") && said.contains("7.2 or newer"), "{said}");
    let other = script("other", "echo hello");
    assert!(complaint(&["--qemu", text(&other)]).contains("not a QEMU"));
    let failing = script("failing", "echo oh no >&2; exit 4");
    assert!(complaint(&["--qemu", text(&failing)]).contains("exit status: 4"));
    assert!(complaint(&["--qemu", text(&dir.path().join("none"))]).contains("No such file"));
    assert!(complaint(&["--qemu", text(dir.path())]).contains("Permission denied"));
}

#[test]
fn figures_that_can_not_be_written_are_refused_before_anything_runs() {
    assert!(complaint(&["bench", "--json", "/no/such/folder/figures.json"]).contains("/no/such/folder"));
}

/// A machine without QEMU on which nothing can be installed: the commands to type, and a status.
#[test]
fn without_qemu_the_commands_are_printed() {
    let nowhere = tempfile::tempdir().expect("an empty folder");
    let output = Command::new(env!("CARGO_BIN_EXE_ferrovia"))
        .env("PATH", nowhere.path())
        .env_remove("FERROVIA_QEMU")
        .output()
        .expect("start the launcher");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in ["apt-get install", "dnf install", "pacman -S", "--qemu PATH"] {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["--version"], &["transfer", "--help"], &["bench", "--help"]] {
        let output = ferrovia(arguments);
        assert!(
            output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
    let help = String::from_utf8(ferrovia(&["--help"]).stdout).expect("text");
    for option in ["--qemu", "--cpus", "--memory", "--nics", "--log", "--timeout"] {
        assert!(help.contains(option), "{option}");
    }
}

/// A toolchain without the guest's target, whose download fails at first; then a cargo that can't build.
#[test]
fn a_missing_rust_target_is_added_and_what_does_not_build_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path();
    let qemu = script(root, "qemu-system-x86_64", "echo 'QEMU emulator version 8.0.0'");
    script(root, "rustc", &format!("echo {}", text(root)));
    let target = "lib/rustlib/x86_64-unknown-none/lib";
    let rustup = format!(
        "[ \"$1\" = --version ] && exit 0\necho \"asked $*\" >&2\n\
         if [ -e {0}/tried ]; then mkdir -p {0}/{target}; else touch {0}/tried; echo timeout >&2; exit 1; fi",
        text(root)
    );
    script(root, "rustup", &rustup);
    let cargo =
        script(root, "cargo", "echo '   Compiling kernel' >&2\necho 'error: it is wrong' >&2\nexit 101");
    let run = || {
        let path =
            std::env::join_paths([root, Path::new("/usr/bin"), Path::new("/bin")]).expect("plain paths");
        let output = Command::new(env!("CARGO_BIN_EXE_ferrovia"))
            .args(["boot", "hello", "--qemu", text(&qemu)])
            .env("PATH", path)
            .env("CARGO", &cargo)
            .env_remove("RUSTC")
            .output()
            .expect("start the launcher");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    };
    let said = run();
    assert_eq!(said.matches("asked target add x86_64-unknown-none").count(), 2, "{said}");
    assert!(said.contains("(attempt 2 of 3)") && said.contains("error: it is wrong"), "{said}");
    assert!(said.ends_with("ferrovia: the image hello does not build\n"), "{said}");
    assert!(!run().contains("asked target add"), "it is there now");
    fs::remove_dir_all(root.join("lib")).expect("remove the target");
    script(root, "rustup", "[ \"$1\" = --version ]");
    let said = run();
    assert!(said.contains("`rustup target add x86_64-unknown-none`"), "{said}");
    assert!(said.lines().last().is_some_and(|line| line.contains("can't be installed")), "{said}");
    fs::remove_file(root.join("rustup")).expect("remove rustup");
    assert!(run().contains("rustup was not found"));
}
