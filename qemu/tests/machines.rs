//! Machines of other people: QEMU's machine types, CPU models and devices in the forms that a user
//! with a QEMU of his own may choose. Each row boots `kernel-tests`, which says what it found. The
//! launcher is not involved.
//!
//! The rows here are a selection; the tests that are ignored have the others:
//! `cargo test -p ferrovia-qemu --test machines -- --ignored`.

extern crate ferrovia_qemu as qemu;

#[expect(dead_code, reason = "the launcher is not involved")]
mod running;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use qemu::{images, process, setup};
use running::Running;

const IMAGE: &str = "kernel-tests";
/// How long a machine may take to end by itself: a bound against one that hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// What QEMU's process ends with after the guest's status 0, and after the one of a machine that
/// lacks what the kernel needs (`kernel::shutdown`).
const BOOTED: i32 = 0x10 << 1 | 1;
const UNBOOTABLE: i32 = (0x10 + 102) << 1 | 1;
/// The size of a disk's image.
const DISK: u64 = 8 << 20;

/// QEMU, and the image.
fn programs() -> &'static (PathBuf, PathBuf) {
    static PROGRAMS: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let emulator = setup::find_qemu(None, None).expect("QEMU");
        let manifest = images::manifest(IMAGE).expect("it is there");
        (emulator.path, images::build(IMAGE, &manifest).expect("it builds"))
    })
}

/// A machine with these options beside those that every machine here has. `DISK` in them is the
/// name of an image file.
fn machine(options: &str, words: &str, disk: &Path) -> Command {
    let (emulator, image) = programs();
    let mut command = Command::new(emulator);
    let usual = "-nodefaults -no-user-config -display none -serial stdio -accel tcg,thread=multi \
                 -device isa-debug-exit,iobase=0xf4,iosize=0x04";
    command.args(usual.split_ascii_whitespace());
    let disk = disk.display().to_string();
    command.args(options.split_ascii_whitespace().map(|word| word.replace("DISK", &disk)));
    command.arg("-kernel").arg(image).args(["-append", words]);
    command
}

/// What a machine that ends by itself has said, and its status.
fn run(options: &str, words: &str) -> (String, Option<i32>) {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = dir.path().join("disk");
    File::create(&disk).and_then(|file| file.set_len(DISK)).expect("a sparse file");
    let command = machine(options, words, &disk);
    let output = process::answer(command, PATIENCE).expect("QEMU starts");
    let output = output.unwrap_or_else(|| panic!("it does not end: {options}"));
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    (said, output.status.code())
}

/// Boots a machine. It says all of `lines`, and ends with `status`.
#[track_caller]
fn boots(options: &str, lines: &[&str], status: i32) {
    let (said, ended) = run(options, "say=machine");
    assert_eq!(ended, Some(status), "{options}:\n{said}");
    for line in lines {
        assert!(said.contains(line), "{options}: no {line:?} in\n{said}");
    }
}

/// A CPU that lacks something gets one line that names it, and the status of a failed boot.
#[track_caller]
fn lacks(cpu: &str, what: &str) {
    for reboots in ["-no-reboot", ""] {
        let options = format!("-M q35 -m 64M -cpu {cpu} {reboots}");
        let (said, ended) = run(&options, "say=machine");
        assert_eq!(ended, Some(UNBOOTABLE), "{options}:\n{said}");
        let line = format!("cannot boot: the CPU has no {what}; choose a model that has it");
        let lines = said.lines().filter(|line| !line.contains("warning: "));
        let lines: Vec<_> = lines.filter(|line| !line.trim().is_empty()).collect();
        assert!(lines.len() == 1 && lines[0].contains(&line), "{options}: {said}");
        if cpu.starts_with("max") {
            break;
        }
    }
}

const NO_LONG_MODE: &str = "64-bit mode (lm)";

#[test]
fn a_cpu_that_lacks_something_is_told() {
    lacks("qemu32", NO_LONG_MODE);
    lacks("max,-nx", "way to forbid execution by page (nx)");
    lacks("max,-apic", "local APIC (apic)");
    lacks("max,-tsc", "time-stamp counter (tsc)");
}

#[test]
#[ignore = "the other rows"]
fn every_cpu_that_lacks_something_is_told() {
    for cpu in "486 pentium pentium3 n270 kvm32 coreduo athlon base max,-lm".split(' ') {
        lacks(cpu, NO_LONG_MODE);
    }
    lacks("max,-pae", "physical address extension (pae)");
    lacks("max,-pge", "global pages (pge)");
    lacks("max,-msr", "model-specific registers (msr)");
    lacks("max,-cmov", "conditional moves (cmov)");
}

#[test]
#[ignore = "the other rows"]
fn every_other_cpu_boots() {
    for cpu in "qemu64 kvm64 core2duo Opteron_G1 Opteron_G5 phenom Nehalem EPYC".split(' ') {
        boots(&format!("-M q35 -m 64M -cpu {cpu}"), &["@machine cpus=1 ram=63"], BOOTED);
    }
    // What the kernel and its images do without.
    for feature in "fpu mmx sse sse2 fxsr cx8 cx16 syscall rdrand x2apic pat mtrr pse clflush de".split(' ') {
        boots(&format!("-M q35 -m 64M -cpu max,-{feature}"), &["@machine cpus=1"], BOOTED);
    }
}

#[test]
fn other_machine_types_boot() {
    boots("-M microvm -cpu max -m 64M -smp 2", &["@machine cpus=2 ram=63", "@words 11"], BOOTED);
    boots("-M pc -cpu max -m 5G", &["@machine cpus=1 ram=5119"], BOOTED);
    boots("-M pc,acpi=off -cpu max -m 64M -smp 2", &["one CPU", "@machine cpus=1"], BOOTED);
    boots("-M microvm,pit=off -cpu max -m 64M", &["there is no PIT: ", "@machine cpus=1"], BOOTED);
}

#[test]
#[ignore = "the other rows"]
fn every_other_machine_type_boots() {
    for kind in
        ["q35", "pc", "microvm", "q35,smm=off", "q35,i8042=off", "q35,hpet=off", "microvm,pic=off,rtc=off"]
    {
        for (memory, ram) in [("64M", 63), ("1G", 1023), ("5G", 5119)] {
            for (cpus, count) in [("1,maxcpus=2", 1), ("2", 2), ("4,sockets=4", 4)] {
                let options = format!("-M {kind} -cpu max -m {memory} -smp {cpus}");
                boots(&options, &[&format!("@machine cpus={count} ram={ram}")], BOOTED);
            }
        }
    }
    boots("-M isapc -cpu max -m 64M", &["@machine cpus=1"], BOOTED);
    boots("-M q35 -cpu max,+x2apic -m 64M -smp 4", &["@machine cpus=4"], BOOTED);
}

/// What the monitor leaves is read wherever it lies: on microvm outside of RAM.
#[test]
fn command_lines_and_modules_are_read_on_each_machine() {
    let dir = tempfile::tempdir().expect("a folder");
    let module = dir.path().join("module");
    std::fs::write(&module, [7; 5000]).expect("a file");
    for kind in ["q35", "microvm"] {
        let options = format!("-M {kind} -cpu max -m 64M -initrd {}", module.display());
        let lines = ["@machine cpus=1 ram=63 nics=0 modules=1", "@module 5000", "@words 11"];
        boots(&options, &lines, BOOTED);
    }
    // One that is too long ends with the last word that fits. On other machines a part of QEMU's
    // own breaks what it hands over after so many bytes.
    let words = format!("say=machine {}", "word ".repeat(2000));
    let (said, status) = run("-M microvm -cpu max -m 64M", &words);
    assert_eq!(status, Some(BOOTED), "{said}");
    assert!(said.contains("the end of the command line is ignored"), "{said}");
    assert!(said.contains("@words 4091"), "{said}");
    let (said, status) = run("-M q35 -cpu max -m 64M", &words);
    assert_eq!(status, Some(UNBOOTABLE), "{said}");
    assert!(said.contains("at most 4,095 bytes of command line"), "{said}");
}

/// A machine with one disk: the options of its device, and what is said of it.
#[track_caller]
fn with_disk(kind: &str, device: &str, line: &str) {
    let drive = "-drive if=none,id=d0,file=DISK,format=raw";
    boots(&format!("-M {kind} -cpu max -m 64M {drive} {device}"), &[line], BOOTED);
}

const WORKS: &str = "@disk 0 works blocks=16384 pieces=128";

#[test]
fn other_forms_of_disks_work_or_are_told() {
    // A transitional device.
    with_disk("q35", "-device virtio-blk-pci,drive=d0", WORKS);
    // A second structure for notifications, in an I/O BAR; addresses of the platform; pc.
    with_disk("q35", "-device virtio-blk-pci,drive=d0,disable-legacy=on,modern-pio-notify=on", WORKS);
    with_disk("pc", "-device virtio-blk-pci,drive=d0,disable-legacy=on,iommu_platform=on", WORKS);
    let short = "@disk 0 works blocks=16384 pieces=6 depth=2";
    with_disk("q35", "-device virtio-blk-pci,drive=d0,queue-size=8", short);
    let why = "is ignored: it has no interface of virtio 1 (QEMU: leave out disable-modern=on)";
    with_disk("pc", "-device virtio-blk-pci,drive=d0,disable-modern=on,disable-legacy=off", why);
    let why = "is ignored: it has no MSI-X, its only way to interrupt here; give it vectors";
    with_disk("q35", "-device virtio-blk-pci,drive=d0,vectors=0", why);
}

/// The kernel takes a queue for each CPU, whether there are vectors for all or not, if there is
/// memory.
#[test]
fn a_disk_has_a_queue_for_each_cpu() {
    for (machine, device, queues) in [
        ("-m 64M -smp 2", "num-queues=4", 2),
        ("-m 64M -smp 2", "num-queues=2,vectors=2", 2),
        ("-m 64M -smp 2", "num-queues=1", 1),
        ("-m 64M -smp 1,maxcpus=2", "num-queues=4", 1),
        ("-m 24M -smp 4", "num-queues=4", 2),
    ] {
        let device =
            format!("-drive if=none,id=d0,file=DISK,format=raw -device virtio-blk-pci,drive=d0,{device}");
        let line = format!("{WORKS} depth=85 queues={queues}");
        boots(&format!("-M q35 -cpu max {machine} {device}"), &[&line], BOOTED);
    }
}

#[test]
#[ignore = "the other rows"]
fn every_other_form_of_disk_works_or_is_told() {
    for kind in ["q35", "pc"] {
        for options in ["", ",disable-legacy=on", ",disable-legacy=on,modern-pio-notify=on", ",vectors=1"] {
            with_disk(kind, &format!("-device virtio-blk-pci,drive=d0{options}"), WORKS);
        }
        let why = "is ignored: its queue has fewer than 8 descriptors; give it more (QEMU: queue-size)";
        with_disk(kind, "-device virtio-blk-pci,drive=d0,queue-size=4", why);
    }
    for kind in ["q35 -bios qboot.rom", "pc -bios qboot.rom", "microvm,pcie=on -smp 2"] {
        with_disk(kind, "-device virtio-blk-pci,drive=d0", WORKS);
    }
    let platform = "virtio-blk-pci,drive=d0,disable-legacy=on,iommu_platform=on";
    with_disk("q35", &format!("-device intel-iommu -device {platform}"), WORKS);
    with_disk("q35", "-device virtio-blk-pci,drive=d0,disable-legacy=on,packed=on", WORKS);
}

/// PCI whose configuration space lies in memory alone, and where the firmware has given no BAR an
/// address.
#[test]
fn disks_work_where_the_firmware_leaves_pci_alone() {
    with_disk("microvm,pcie=on", "-device virtio-blk-pci,drive=d0", WORKS);
    let why = "is ignored: its BARs have no addresses";
    let behind = "-bios qboot.rom -device pcie-root-port,id=p -device virtio-blk-pci,drive=d0,bus=p";
    with_disk("q35", behind, why);
}

/// Devices behind a second host bridge, whose bus no bridge of bus 0 leads to.
#[test]
fn devices_behind_a_second_host_bridge_are_found() {
    let port = "-device pxb-pcie,bus_nr=128,id=b -device pcie-root-port,bus=b,id=p,slot=5";
    with_disk("q35", &format!("{port} -device virtio-blk-pci,drive=d0,bus=p"), WORKS);
    with_disk("pc", "-device pxb,bus_nr=200,id=b -device virtio-blk-pci,drive=d0,bus=b", WORKS);
}

/// A disk that grows and shrinks under a running guest is an event there, and a line.
#[test]
fn a_disk_that_is_resized_is_an_event() {
    let dir = tempfile::tempdir().expect("a folder");
    let (disk, socket) = (dir.path().join("disk"), dir.path().join("qmp"));
    File::create(&disk).and_then(|file| file.set_len(DISK)).expect("a sparse file");
    let options = format!(
        "-M q35 -cpu max -m 64M -smp 1,maxcpus=2 -qmp unix:{},server=on,wait=off \
         -drive if=none,id=d0,file=DISK,format=raw -device virtio-blk-pci,drive=d0",
        socket.display()
    );
    let mut guest = Running::start(machine(&options, "say=machine resizes=2", &disk));
    let mut monitor: Option<(UnixStream, BufReader<UnixStream>)> = None;
    for size in [16 << 20, 4 << 20] {
        guest.wait_for("@waits");
        let (writer, answers) = monitor.get_or_insert_with(|| {
            let mut stream = UnixStream::connect(&socket).expect("QEMU listens");
            stream.write_all(b"{\"execute\": \"qmp_capabilities\"}\n").expect("QEMU reads");
            (stream.try_clone().expect("a copy"), BufReader::new(stream))
        });
        let arguments = format!("{{\"device\": \"d0\", \"size\": {size}}}");
        let command = format!("{{\"execute\": \"block_resize\", \"arguments\": {arguments}, \"id\": 1}}\n");
        writer.write_all(command.as_bytes()).expect("QEMU reads");
        let answer = answers.lines().map_while(Result::ok).find(|line| line.contains("\"id\": 1"));
        let answer = answer.expect("an answer");
        assert!(answer.contains("return"), "{answer}");
        let line = guest.wait_for("@resized");
        let blocks = size / 512;
        assert_eq!(line, format!("@resized {blocks} {blocks}"));
    }
    let status = guest.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(BOOTED));
}
