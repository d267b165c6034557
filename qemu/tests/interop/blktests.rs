//! blktests' tests of NVMe with our target, if FERROVIA_BLKTESTS names a checkout of it. It is not
//! part of this repository. Each test says in a line how it ended; docs/testing.md has the results.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use qemu::linux::blktests::{DISK, Ending, Target};
use qemu::linux::image::Kernel;
use qemu::linux::storage::Connect;

use crate::LIMIT;
use crate::linux::Linux;
use crate::ours::{Ours, link};
use crate::storage_live::operate;

/// The variable with the path of the checkout.
const CHECKOUT: &str = "FERROVIA_BLKTESTS";
/// The variable with the tests that are to run, such as `003 061`, in the place of all.
const CHOICE: &str = "FERROVIA_BLKTESTS_ONLY";
const NQN: &str = "nqn.2026-01.org.example:blktests";
/// The guest as a host, with its identifier.
const HOST: (&str, &str) = (
    "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555",
    "11111111-2222-3333-4444-555555555555",
);

/// What tests need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// A target, to which they connect.
    Target,
    /// The same, and a kernel that authenticates.
    Authentication,
    /// A disk that is connected.
    Disk,
    /// The same, and a kernel newer than 6.1.
    DiskOfNewerKernel,
}

/// The tests that our target has to pass.
const APPLY: [(Need, &str); 4] = [
    (Need::Target, "003 004 005 006 008 010 012 014 018 019 021 022 023 025 026 027 028 029 040 047 061"),
    (Need::Authentication, "041"),
    (Need::Disk, "049 053 067"),
    (Need::DiskOfNewerKernel, "046"),
];
/// Why tests do not apply.
const LEFT_OUT: [(&str, &str); 9] = [
    ("for Linux's loop transport alone", "002 016 017 052 055"),
    (
        "changes Linux's target by configfs or debugfs",
        "030 031 038 042 043 044 045 048 051 054 057 058 060 065",
    ),
    ("Linux's target passes commands on to a disk of its machine", "033 034 035 036 037"),
    ("for a disk on PCI", "032 050"),
    ("for TCP", "056 062 063"),
    ("wants a kernel with fault injection or KASAN, which Debian's are not", "039 069"),
    ("wants an xfs_io that knows atomic writes, which Debian 12's does not", "059"),
    ("for a disk with metadata, or with encryption of its own", "064 066"),
    ("wants a kernel with delayed_removal_secs, which Debian 12's have not", "068"),
];

/// Writes a line at once, whether the test passes or not.
fn say(line: &str) {
    // Standard error may be closed, which changes no result.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The commit of a checkout.
fn commit(checkout: &Path) -> String {
    let output = Command::new("git").arg("-C").arg(checkout).args(["rev-parse", "HEAD"]).output();
    let commit = output.ok().filter(|output| output.status.success());
    commit.map_or("of no known commit".into(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

/// The numbers of the tests of NVMe in a checkout, in order.
fn tests_of(checkout: &Path) -> Vec<String> {
    let folder = std::fs::read_dir(checkout.join("tests/nvme")).expect("a checkout of blktests");
    let names = folder.map(|entry| entry.expect("its name").file_name().to_string_lossy().into_owned());
    let mut tests: Vec<String> =
        names.filter(|name| name.len() == 3 && name.bytes().all(|byte| byte.is_ascii_digit())).collect();
    tests.sort();
    tests
}

/// The entry of a table whose list names this test.
fn named<T: Copy>(table: &[(T, &str)], test: &str) -> Option<T> {
    table.iter().find(|(_, tests)| tests.split(' ').any(|one| one == test)).map(|&(what, _)| what)
}

/// Our target, for the program that blktests asks.
struct Controlled {
    hosts: PathBuf,
    socket: PathBuf,
}

impl Controlled {
    /// Writes the file of hosts, with the only one.
    fn write_hosts(&self, words: &str) {
        std::fs::write(&self.hosts, format!("{}{words}\n", HOST.0)).expect("a file");
        std::fs::set_permissions(&self.hosts, Permissions::from_mode(0o600)).expect("its mode");
    }

    /// Does what blktests asks for, in the words of NVME_TARGET_CONTROL.
    fn carry_out(&self, question: &str) -> Result<(), String> {
        let mut words = question.split(' ');
        let command = words.next().unwrap_or_default();
        let mut keys = String::new();
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} has no value"))?;
            match option {
                "--subsysnqn" if value != NQN => return Err(format!("the target has no subsystem {value}")),
                "--hostnqn" if value != HOST.0 => return Err(format!("the target serves no host {value}")),
                // The first namespace has the UUID that the target has told.
                "--subsysnqn" | "--hostnqn" | "--subsys-uuid" => {}
                "--hostkey" => keys.push_str(&format!(" key={value}")),
                // blktests writes it so.
                "--ctrlkey" | "--ctrkey" => keys.push_str(&format!(" controller-key={value}")),
                _ => return Err(format!("the target knows no {option}")),
            }
        }
        match command {
            "setup" => {
                self.write_hosts(&keys);
                operate(&self.socket, &["hosts"]);
                operate(&self.socket, &["resume"]);
                Ok(())
            }
            "cleanup" => {
                operate(&self.socket, &["drain"]);
                while operate(&self.socket, &["list"])["state"] != "drained" {
                    std::thread::yield_now();
                }
                Ok(())
            }
            _ => Err(format!("the target does no {command}")),
        }
    }

    fn answer(&self, question: &str) -> String {
        match self.carry_out(question) {
            Ok(()) => "done".into(),
            Err(why) => {
                say(&format!("blktests: {question}: {why}"));
                why
            }
        }
    }
}

fn are_passed(kernel: Kernel) {
    let checkout = std::env::var_os(CHECKOUT).filter(|path| !path.is_empty());
    let Some(checkout) = checkout.map(PathBuf::from) else {
        say(&format!("blktests is left out: {CHECKOUT} does not name a checkout of it"));
        return;
    };
    let chosen = std::env::var(CHOICE).ok();
    let is_chosen =
        |test: &str| chosen.as_deref().is_none_or(|names| names.split(' ').any(|name| name == test));
    let folder = tempfile::tempdir().expect("a folder");
    let controlled = Controlled { hosts: folder.path().join("hosts"), socket: folder.path().join("control") };
    controlled.write_hosts("");
    let (hosts, socket) = (controlled.hosts.display().to_string(), controlled.socket.display().to_string());
    let words = ["storage", "--nqn", NQN, "--ram-disk", DISK, "--hosts", &hosts, "--control", &socket];
    let mut ours = Ours::start(folder.path(), &words);
    ours.wait_for("connect: nvme connect -t rdma -a 10.0.0.1 -s 4420 -n");
    let list = operate(&controlled.socket, &["list"]);
    let uuid = list["namespaces"][0]["uuid"].as_str().expect("a UUID").to_owned();
    let target = Target { nqn: NQN, uuid: &uuid, address: "10.0.0.1", host: HOST, host_address: "10.0.0.2" };
    let mut linux = Linux::boot_for_blktests(kernel, &checkout, &target, &link(folder.path()));
    let version = linux.succeed("uname -r", LIMIT).trim().to_owned();
    say(&format!("blktests {} with Linux {version}:", commit(&checkout)));

    let (mut passed, mut failed) = (0, Vec::new());
    for test in tests_of(&checkout).iter().filter(|test| is_chosen(test)) {
        if let Some(why) = named(&LEFT_OUT, test) {
            say(&format!("blktests nvme/{test} does not apply: {why}"));
            continue;
        }
        let Some(need) = named(&APPLY, test) else {
            say(&format!("blktests nvme/{test} is not known here"));
            continue;
        };
        let wants_newer = matches!(need, Need::Authentication | Need::DiskOfNewerKernel);
        if wants_newer && kernel == Kernel::Stable {
            say(&format!("blktests nvme/{test} wants a newer kernel"));
            continue;
        }
        let begin = Instant::now();
        let device = matches!(need, Need::Disk | Need::DiskOfNewerKernel).then(|| {
            assert_eq!(controlled.answer("setup"), "done");
            let connect = Connect { host: Some(HOST), ..Connect::to(NQN, "10.0.0.1") };
            linux.storage().connect(&connect, 1).expect("it connects").remove(0)
        });
        let answer = |question: &str| controlled.answer(question);
        let ending = linux.storage().blktest(&format!("nvme/{test}"), device.as_deref(), answer);
        let ending = ending.expect("the guest goes on");
        if device.is_some() {
            linux.storage().disconnect(NQN).expect("it disconnects");
        }
        let seconds = begin.elapsed().as_secs();
        match ending {
            Ending::Passed => {
                say(&format!("blktests nvme/{test} passed ({seconds} s)"));
                passed += 1;
            }
            Ending::NotRun(why) => {
                say(&format!("blktests nvme/{test} was not run: {why}"));
                failed.push(test.clone());
            }
            Ending::Failed(said) => {
                say(&format!("blktests nvme/{test} failed ({seconds} s):\n{said}"));
                failed.push(test.clone());
            }
        }
    }
    say(&format!("blktests with Linux {version}: {passed} tests passed, {} did not", failed.len()));
    assert!(failed.is_empty(), "of blktests, with Linux {version}: {failed:?}");
    assert!(passed > 0 || chosen.is_some(), "no test was run");
    assert_eq!(controlled.answer("cleanup"), "done");
}

#[test]
fn our_target_passes_blktests() {
    are_passed(Kernel::Stable);
}

#[test]
fn our_target_passes_blktests_with_the_newer_linux() {
    are_passed(Kernel::Newer);
}
