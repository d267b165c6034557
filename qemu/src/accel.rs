//! What runs a guest's instructions: KVM, or QEMU's emulator TCG.
//!
//! KVM is worth having if the CPU has the extensions for it. There are hosts whose /dev/kvm works
//! without them, since a nested hypervisor emulates it; a guest is then far slower than with TCG.

use std::fmt;
use std::fs::OpenOptions;
use std::io;

use clap::ValueEnum;

use crate::error::{Error, Result};

/// The device of KVM.
const KVM: &str = "/dev/kvm";

/// What the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// KVM where it works and the CPU has the extensions for it (svm or vmx), else TCG
    #[default]
    Auto,
    /// KVM, or an error
    Kvm,
    /// QEMU's emulator
    Tcg,
}

/// What a guest runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerator {
    /// The CPU itself.
    Kvm,
    /// QEMU's emulator.
    #[default]
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "TCG",
        })
    }
}

impl Accelerator {
    /// QEMU's arguments for a guest with the most that the accelerator's CPU can do.
    ///
    /// A CPU that is passed through has MSRs that QEMU writes as its features say. A nested KVM may
    /// refuse that of `arch-capabilities`, and QEMU then aborts; the kernel does not use it, nor
    /// the performance counters.
    pub(crate) fn arguments(self) -> [&'static str; 4] {
        match self {
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host,arch-capabilities=off,pmu=off"],
            Accelerator::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

/// The accelerator that is taken, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// What is taken.
    pub accelerator: Accelerator,
    why: String,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guests run on {} ({})", self.accelerator, self.why)
    }
}

impl Choice {
    /// Looks at this machine.
    pub fn choose(self) -> Result<Chosen> {
        if self == Choice::Tcg {
            return self.judge(Ok(()), false);
        }
        let opened = match cfg!(target_arch = "x86_64") {
            true => OpenOptions::new().read(true).write(true).open(KVM).map(drop),
            false => Err(io::Error::other("this is another kind of CPU than the guests'")),
        };
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        self.judge(opened, has_extensions(&cpu))
    }

    fn judge(self, kvm: io::Result<()>, has_extensions: bool) -> Result<Chosen> {
        let taken = |accelerator, why: String| Ok(Chosen { accelerator, why });
        match (self, kvm) {
            (Choice::Tcg, _) => taken(Accelerator::Tcg, "--accel tcg".into()),
            (Choice::Kvm, Ok(())) => taken(Accelerator::Kvm, "--accel kvm".into()),
            (Choice::Kvm, Err(error)) => Err(Error::Usage(format!("--accel kvm: {KVM}: {error}"))),
            (Choice::Auto, Err(error)) => taken(Accelerator::Tcg, format!("{KVM}: {error}")),
            (Choice::Auto, Ok(())) if has_extensions => taken(Accelerator::Kvm, format!("{KVM} can be used")),
            (Choice::Auto, Ok(())) => taken(
                Accelerator::Tcg,
                format!("the CPU has neither svm nor vmx, so {KVM} is emulated and slower"),
            ),
        }
    }
}

/// Whether /proc/cpuinfo lists AMD's or Intel's extensions for virtual machines.
fn has_extensions(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.next().is_some_and(|line| line.split_whitespace().any(|flag| ["svm", "vmx"].contains(&flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_is_taken_where_it_works_and_is_fast() {
        let denied = || Err(io::ErrorKind::PermissionDenied.into());
        let text = |choice: Choice, kvm, extensions| match choice.judge(kvm, extensions) {
            Ok(chosen) => chosen.to_string(),
            Err(error) => format!("error: {error}"),
        };
        let tcg = "guests run on TCG (--accel tcg)";
        assert_eq!(text(Choice::Tcg, Ok(()), true), tcg);
        assert_eq!(text(Choice::Tcg, denied(), false), tcg);
        let auto = |kvm, extensions| text(Choice::Auto, kvm, extensions);
        assert_eq!(auto(Ok(()), true), "guests run on KVM (/dev/kvm can be used)");
        assert!(auto(Ok(()), false).starts_with("guests run on TCG (the CPU has neither svm nor vmx"));
        assert_eq!(auto(denied(), true), "guests run on TCG (/dev/kvm: permission denied)");
        assert_eq!(text(Choice::Kvm, Ok(()), false), "guests run on KVM (--accel kvm)");
        assert_eq!(text(Choice::Kvm, denied(), true), "error: --accel kvm: /dev/kvm: permission denied");
    }

    #[test]
    fn the_cpus_extensions_are_flags_of_their_own() {
        assert!(has_extensions("processor\t: 0\nflags\t\t: fpu vmx sse\n"));
        assert!(has_extensions("flags\t\t: fpu svm"));
        assert!(!has_extensions("flags\t\t: fpu svm_lock\nvmx flags\t: vnmi vmx\n"));
        assert!(!has_extensions(""));
    }
}
