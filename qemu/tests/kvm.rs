//! Guests on KVM, where it can be opened: even where it is an emulated one, which is slow, so that
//! `--accel auto` does not take it. Elsewhere this test prints that it is skipped.
//!
//! On KVM a doorbell is an ioeventfd and an interrupt an irqfd: the kernel passes both on between
//! the guest and the device's thread, without a thread of QEMU. QEMU's trace lists each write that
//! a CPU or a device of QEMU's makes to a register that QEMU emulates, so it would list them.

extern crate ferrovia_qemu as qemu;

#[expect(dead_code, reason = "the launcher runs to its end")]
mod running;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use qemu::{process, setup};
use running::launcher;
use rustix::process::Signal;
use serde_json::Value;

/// The tests of the suite that run: data through the device in each way.
const TESTS: [&str; 3] = ["data::send_and_receive", "data::rdma_write", "data::rdma_read"];
/// How long QEMU may take to list its accelerators: a bound against one that hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// The bound of a guest that hangs, in seconds.
const LIMIT: &str = "300";

/// QEMU, or why guests cannot run on KVM here.
fn qemu_with_kvm() -> Result<setup::Qemu, String> {
    let kvm = "/dev/kvm";
    File::options().read(true).write(true).open(kvm).map_err(|error| format!("{kvm}: {error}"))?;
    let emulator = setup::find_qemu(None, None).expect("QEMU");
    let mut command = Command::new(&emulator.path);
    command.args(["-accel", "help"]);
    let answer = process::answer(command, PATIENCE).expect("QEMU starts").expect("QEMU ends");
    let known = String::from_utf8_lossy(&answer.stdout).into_owned();
    if known.lines().any(|line| line.trim() == "kvm") { Ok(emulator) } else { Err("QEMU has no KVM".into()) }
}

/// What a guest did while it ran `TESTS`.
#[derive(Debug)]
struct Traced {
    /// How often its doorbells woke the device.
    doorbells: u64,
    /// How many interrupts the device raised.
    interrupts: u64,
    /// How many doorbells QEMU emulated.
    emulated_doorbells: usize,
    /// How many interrupts QEMU delivered.
    emulated_interrupts: usize,
}

/// Runs `TESTS` on this accelerator; QEMU has these options beside the launcher's.
#[track_caller]
fn run(emulator: &Path, accelerator: &str, options: &str) -> Traced {
    let folder = tempfile::tempdir().expect("a folder");
    let [script, trace, counters] = ["qemu", "trace", "counters"].map(|name| folder.path().join(name));
    let text = format!(
        "#!/bin/sh\nexec \"$EMULATOR\" \"$@\" {options} -trace memory_region_ops_write -D \"$TRACE\"\n"
    );
    fs::write(&script, text).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it may be executed");
    let mut command = launcher();
    command.arg("--qemu").arg(&script).arg("--counters").arg(&counters);
    command
        .args(["--accel", accelerator, "--cpus", "1", "--nics", "2", "--timeout", LIMIT, "test"])
        .args(TESTS);
    command.env("EMULATOR", emulator).env("TRACE", &trace);
    process::bind(&mut command, Signal::KILL, Vec::new());
    let output = command.output().expect("the launcher starts");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{accelerator}: {said:#?}");
    let chosen = format!("guests run on {} (--accel {accelerator})", accelerator.to_uppercase());
    assert!(said[1].contains(&chosen), "{accelerator}: {said:#?}");
    for test in TESTS {
        let passed = |line: &str| line.contains(test) && line.contains("... ok");
        assert!(said[0].lines().any(passed), "{accelerator}: {test}: {said:#?}");
    }
    let counters = fs::read(&counters).expect("the counters");
    let nics: Vec<Value> = serde_json::from_slice(&counters).expect("a list");
    let sum = |name: &str| nics.iter().filter_map(|nic| nic[name].as_u64()).sum();
    let trace = fs::read_to_string(&trace).expect("QEMU wrote a trace");
    let writes = |wanted: &dyn Fn(&str) -> bool| trace.lines().filter(|line| wanted(line)).count();
    Traced {
        doorbells: sum("doorbells"),
        interrupts: sum("interrupts"),
        emulated_doorbells: writes(&|line| line.contains("name 'ivshmem-mmio'")),
        // TCG's local APIC has its registers in the same place. An address whose last 12 bits are 0
        // is that of an MSI.
        emulated_interrupts: writes(&|line| line.contains("apic-msi'") && line.contains("000 value ")),
    }
}

#[test]
fn doorbells_and_interrupts_do_not_go_through_qemu_on_kvm() {
    let emulator = match qemu_with_kvm() {
        Ok(emulator) => emulator,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    // The trace notices them where they do go through QEMU.
    let control = run(&emulator.path, "tcg", "-global ivshmem-doorbell.ioeventfd=off");
    println!("{control:?}");
    if control.emulated_doorbells == 0 && control.emulated_interrupts == 0 {
        println!("skipped: this QEMU writes no trace");
        return;
    }
    assert!(control.doorbells > 0 && control.interrupts > 0, "{control:?}");
    assert!(control.emulated_doorbells > 0 && control.emulated_interrupts > 0, "{control:?}");
    let kvm = run(&emulator.path, "kvm", "");
    println!("{kvm:?}");
    assert!(kvm.doorbells > 0 && kvm.interrupts > 0, "{kvm:?}");
    assert_eq!((kvm.emulated_doorbells, kvm.emulated_interrupts), (0, 0), "{kvm:?}");
}
