//! The NIC alone: a QEMU that the launcher does not start finds it, and after that one another.

extern crate ferrovia_qemu as qemu;

mod running;

use std::path::PathBuf;
use std::process::Command;

use qemu::{images, setup};
use running::{Running, launcher};
use rustix::process::{Pid, Signal};

const IMAGE: &str = "rping-server";

#[test]
fn one_qemu_after_the_other_finds_a_nic_that_is_as_new() {
    let emulator = setup::find_qemu(None, None).expect("QEMU");
    let image = images::build(IMAGE, &images::manifest(IMAGE).expect("it is there")).expect("it builds");
    // QEMU and the shell treat a comma, a blank and a relative path in ways of their own.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("a, b's")).expect("a folder");
    let mut command = launcher();
    command.args(["nic", "--link", "none", "--ip", "10.7.0.1/24"]);
    command.current_dir(folder.path()).env("TMPDIR", "a, b's");
    let mut nic = Running::start(command);
    let arguments = nic.wait_for("-M ");
    for kind in ["q35", "microvm,pcie=on"] {
        // As a user pastes them.
        let arguments = arguments.replacen("q35", kind, 1);
        let options = "-nodefaults -display none -no-reboot -accel tcg,thread=multi -cpu max -serial stdio";
        let line = format!("exec \"$0\" {arguments} {options} -append log=warn -kernel \"$1\"");
        let mut command = Command::new("sh");
        command.arg("-c").arg(line).arg(&emulator.path).arg(&image);
        let mut guest = Running::start(command);
        assert_eq!(guest.wait_for("ready: "), "ready: 10.7.0.1:7174");
    }
    // However it ends, it leaves nothing behind.
    rustix::process::kill_process(Pid::from_child(&nic.child), Signal::KILL).expect("it runs");
    nic.child.wait().expect("it ends");
    let left = std::fs::read_dir(folder.path().join("a, b's")).expect("list the folder");
    assert_eq!(left.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>(), Vec::<PathBuf>::new());
}
