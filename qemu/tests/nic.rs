//! The NIC alone: a QEMU that the launcher does not start finds it, and after that one another.

extern crate ferrovia_qemu as qemu;

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use qemu::{images, setup};
use rustix::process::{Pid, Signal};

const IMAGE: &str = "rping-server";

/// A program that ends with the test, and what it writes.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        qemu::process::bind(&mut command, Signal::KILL, Vec::new());
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Running { child, lines }
    }

    /// Waits for a line that begins with `start`.
    fn wait_for(&mut self, start: &str) -> String {
        let line = self.lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("it ended without a line {start:?}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn one_qemu_after_the_other_finds_a_nic_that_is_as_new() {
    let emulator = setup::find_qemu(None, None).expect("QEMU");
    let image = images::build(IMAGE, &images::manifest(IMAGE).expect("it is there")).expect("it builds");
    let program = std::env::current_exe().expect("this program");
    let programs = program.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let mut command = Command::new(programs.join("ferrovia"));
    command.args(["nic", "--link", "none", "--ip", "10.7.0.1/24"]);
    let mut nic = Running::start(command);
    let arguments = nic.wait_for("-M ");
    for _ in 0..2 {
        let mut command = Command::new(&emulator.path);
        command.args(arguments.split(' ')).arg("-kernel").arg(&image).args(["-append", "log=warn"]);
        let options = "-nodefaults -display none -no-reboot -accel tcg,thread=multi -cpu max -serial stdio";
        command.args(options.split(' '));
        let mut guest = Running::start(command);
        assert_eq!(guest.wait_for("ready: "), "ready: 10.7.0.1:7174");
    }
    let socket = arguments.split(['=', ',', ' ']).find(|word| word.ends_with("-nic0")).expect("a socket");
    assert!(Path::new(socket).exists());
    rustix::process::kill_process(Pid::from_child(&nic.child), Signal::TERM).expect("it runs");
    nic.child.wait().expect("it ends");
    assert!(!Path::new(socket).exists(), "nothing is left behind");
}
