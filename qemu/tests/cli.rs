//! Bad input on the command line: one clear line each, a status that is not zero, and no backtrace.
//! None of these tests starts a QEMU.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The launcher, found at run time: this program may have been moved with its checkout.
fn launcher() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let folder = program.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    folder.join("ferrovia")
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(launcher());
    command.args(arguments).env("RUST_BACKTRACE", "1").env_remove("FERROVIA_QEMU");
    command
}

fn ferrovia(arguments: &[&str]) -> Output {
    command(arguments).output().expect("start the launcher")
}

/// Runs it and returns the one line that it prints.
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
    let said = complaint(&["boot", "nonexistent"]);
    assert!(said.contains("apps-self, bench, cmatose, hello, hostile, "), "{said}");
}

#[test]
fn files_that_can_not_be_moved() {
    let dir = tempfile::tempdir().expect("a folder");
    let missing = dir.path().join("missing");
    assert!(complaint(&["transfer", text(&missing)]).contains("No such file"));
    assert!(complaint(&["transfer", text(dir.path())]).contains("not a regular file"));
    // Opening a FIFO must not wait for a writer.
    let fifo = dir.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo is there");
    assert!(made.success());
    assert!(complaint(&["transfer", text(&fifo)]).contains("not a regular file"));
    assert!(complaint(&["transfer", "/dev/null"]).contains("not a regular file"));
}

#[test]
fn files_that_can_not_be_disks() {
    let dir = tempfile::tempdir().expect("a folder");
    let said = |path: &Path| complaint(&["hello", "--disk", text(path)]);
    let path = dir.path().join("image");
    assert!(said(&path).contains("image: No such file"));
    assert!(said(dir.path()).contains("a folder; a disk is an image file"));
    fs::write(&path, "").expect("write");
    assert!(said(&path).contains("image: empty; make it as large as the disk"));
    fs::write(&path, "x").expect("write");
    assert!(said(&path).contains("image: 1 bytes are no multiple of a disk's 512"));
    fs::write(&path, [0; 512]).expect("write");
    let twice = ["hello", "--disk", text(&path), "--disk", text(&path), "--read-only"];
    assert!(complaint(&twice).contains("image: it is given twice"));
}

/// A file that does not fit into the guest's memory is moved all the same, so it gets as far as
/// QEMU.
#[test]
fn no_file_is_refused_for_its_size() {
    let dir = tempfile::tempdir().expect("a folder");
    let large = dir.path().join("large");
    let other = script(dir.path(), "other", "echo hello");
    for bytes in [1 << 30, 1 << 40] {
        File::create(&large).and_then(|file| file.set_len(bytes)).expect("a sparse file");
        let said = complaint(&["transfer", text(&large), "--memory", "64M", "--qemu", text(&other)]);
        assert!(said.contains("not a QEMU"), "{bytes}: {said}");
    }
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
fn a_qemu_that_never_says_its_version_is_given_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let mute = script(dir.path(), "mute", "sleep 600");
    let begun = Instant::now();
    let output = ferrovia(&["--qemu", text(&mute), "--timeout", "2"]);
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().expect("it says why");
    assert!(last.contains("not a QEMU: `--version` did not end within 2 s"), "{said}");
}

/// The variable names a QEMU unless it is empty, and the option goes before it.
#[test]
fn the_variable_for_qemu_may_be_empty() {
    let dir = tempfile::tempdir().expect("a folder");
    let [one, two] = ["one", "two"].map(|name| script(dir.path(), name, &format!("echo {name}")));
    let said = |mut command: Command, variable: &Path| {
        let output = command.env("FERROVIA_QEMU", variable).output().expect("start the launcher");
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(said(command(&[]), &one).contains("answered \"one\""));
    assert!(said(command(&["--qemu", text(&two)]), &one).contains("answered \"two\""));
    let mut without = command(&[]);
    without.env("PATH", dir.path());
    let said = said(without, Path::new(""));
    assert!(said.contains("qemu-system-x86_64 was not found"), "{said}");
}

#[test]
fn figures_that_can_not_be_written_are_refused_before_anything_runs() {
    assert!(complaint(&["bench", "--json", "/no/such/folder/figures.json"]).contains("/no/such/folder"));
}

/// On a machine without QEMU and without a package manager.
#[test]
fn without_qemu_the_commands_are_printed() {
    let nowhere = tempfile::tempdir().expect("an empty folder");
    let output = Command::new(launcher())
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
    for arguments in [&["--help"][..], &["--version"], &["transfer", "--help"], &["pair", "--help"]] {
        let output = ferrovia(arguments);
        assert!(
            output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
    let help = String::from_utf8(ferrovia(&["--help"]).stdout).expect("text");
    let options = ["--qemu", "--cpus", "--memory", "--nics", "--disk", "--read-only", "--log", "--timeout"];
    for option in options {
        assert!(help.contains(option), "{option}");
    }
}

/// A toolchain without the guest's target, whose download fails at first; then a cargo that can't
/// build.
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
        let output = Command::new(launcher())
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

/// A launcher whose checkout was moved away, or that was copied out of it, has nothing to build.
#[test]
fn a_launcher_without_its_sources_says_what_to_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let copy = dir.path().join("ferrovia");
    fs::copy(launcher(), &copy).expect("copy the launcher");
    let output = Command::new(&copy)
        .args(["boot", "hello"])
        .current_dir(dir.path())
        .env_remove("CARGO_MANIFEST_DIR")
        .output()
        .expect("start the launcher");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the sources of Ferrovia were not found") && said.contains("`cargo run`"),
        "{said}"
    );
}

/// What is built is what is in the copy, though cargo does not build the launcher again for a copy.
#[test]
fn a_copied_checkout_builds_its_own_images() {
    let dir = tempfile::tempdir().expect("a folder");
    let copy = dir.path().join("copy");
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = package.parent().expect("the checkout");
    let needed = "Cargo.toml linker.ld rust-toolchain.toml targets";
    let crates = "qemu links nic-model roce iwarp tcp nvme nic-abi platform";
    for part in needed.split(' ').chain(crates.split(' ')) {
        copy_all(&root.join(part), &copy.join(part));
    }
    let qemu = script(dir.path(), "qemu-system-x86_64", "echo 'QEMU emulator version 8.0.0'");
    let cargo = script(dir.path(), "cargo", "echo \"in $PWD: $*\" >&2; exit 101");
    let build = |variable: Option<&Path>, folder: &Path| {
        let mut command = command(&["boot", "hello", "--qemu", text(&qemu)]);
        command.current_dir(folder).env("CARGO", &cargo).env_remove("CARGO_MANIFEST_DIR");
        command.envs(variable.map(|path| ("CARGO_MANIFEST_DIR", path)));
        String::from_utf8(command.output().expect("start the launcher").stderr).expect("text")
    };
    let built = |said: &str, root: &Path| {
        let manifest = root.join("targets/hello/Cargo.toml");
        said.contains(&format!("in {}: build ", root.display())) && said.contains(text(&manifest))
    };
    // As cargo runs it in the copy; and by hand in the checkout.
    let said = build(Some(&copy.join("qemu")), &copy);
    assert!(built(&said, &copy), "{said}");
    let said = build(None, &root.join("qemu"));
    assert!(built(&said, root), "{said}");
    // A copy whose launcher is another version.
    fs::write(copy.join("qemu/src/new.rs"), "").expect("change the copy");
    let elsewhere = dir.path().join("ferrovia");
    fs::copy(launcher(), &elsewhere).expect("copy the launcher");
    let output = Command::new(&elsewhere)
        .args(["boot", "hello", "--qemu", text(&qemu)])
        .current_dir(&copy)
        .env_remove("CARGO_MANIFEST_DIR")
        .output()
        .expect("start the launcher");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("not the ones that this launcher was built from"), "{said}");
}

fn copy_all(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::create_dir_all(to.parent().expect("it is in a folder")).expect("make the folder");
        fs::copy(from, to).expect("copy");
        return;
    }
    for entry in fs::read_dir(from).expect("list") {
        let name = entry.expect("list").file_name();
        copy_all(&from.join(&name), &to.join(&name));
    }
}
