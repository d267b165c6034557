//! The NIC alone: a QEMU that the launcher does not start finds it, and after that one another.

extern crate ferrovia_qemu as qemu;

mod running;

use std::process::Command;

use qemu::{images, setup};
use running::{Running, launcher};
use rustix::process::{Pid, Signal};

const IMAGE: &str = "rping-server";

#[test]
fn one_qemu_after_the_other_finds_a_nic_that_is_as_new() {
    let emulator = setup::find_qemu(None, None).expect("QEMU");
    let image = images::build(IMAGE, &images::manifest(IMAGE).expect("it is there")).expect("it builds");
    let mut command = launcher();
    command.args(["nic", "--link", "none", "--ip", "10.7.0.1/24"]);
    let mut nic = Running::start(command);
    let arguments = nic.wait_for("-M ");
    for kind in ["q35", "microvm,pcie=on"] {
        let mut command = Command::new(&emulator.path);
        let arguments = arguments.replacen("q35", kind, 1);
        command.args(arguments.split(' ')).arg("-kernel").arg(&image).args(["-append", "log=warn"]);
        let options = "-nodefaults -display none -no-reboot -accel tcg,thread=multi -cpu max -serial stdio";
        command.args(options.split(' '));
        let mut guest = Running::start(command);
        assert_eq!(guest.wait_for("ready: "), "ready: 10.7.0.1:7174");
    }
    // However it ends.
    rustix::process::kill_process(Pid::from_child(&nic.child), Signal::KILL).expect("it runs");
    nic.child.wait().expect("it ends");
    let prefix = format!("ferrovia-{}-", nic.child.id());
    for entry in std::fs::read_dir(std::env::temp_dir()).expect("list the folder") {
        let name = entry.expect("list the folder").file_name();
        assert!(!name.to_string_lossy().starts_with(&prefix), "{} is left behind", name.display());
    }
}
