//! The host's side of Ferrovia: the launcher that `cargo run` runs. The NICs of its guests are in
//! crate [`device`].
//!
//! | module | subject |
//! |---|---|
//! | [`cli`], [`options`] | the command line |
//! | [`setup`], [`accel`], [`sources`], [`images`] | the prerequisites: QEMU and what its guests run on, the Rust target, a built image |
//! | [`launch`], [`tour`], [`pair`], [`mod@bench`] | running one image, on one machine or on two, and passing on what it writes |
//! | [`progress`] | the display of a wait |
//! | [`suite`], [`runner`], [`machines`], [`conformance`] | running the tests, over as many guests as needed |
//! | [`guests`] | running guests, one or several at a time, and their events |
//! | [`vm`], [`console`], [`symbols`] | one guest: its start, its output, its end |
//! | [`disks`], `disk_watch` | image files as disks; their errors and sizes while a guest uses them |
//! | [`linux`], [`cpu_time`] | a Linux guest with Soft-RoCE, for comparison and for tests; the CPU time that a QEMU uses |
//! | [`serve`] | the NICs alone, for a QEMU that the user starts |
//! | [`network`] | the links of the NICs' ports |
//! | [`storage`], `storage_config`, `storage_disks`, `operator`, `mailbox` | the storage target: its options, their file, those of each disk; its operator's commands and figures; questions to a guest |
//! | [`monitor`] | stopping a guest and its clock, and QEMU's events |
//! | [`process`], [`signals`], [`error`] | children that end with the launcher, Ctrl-C and Ctrl-Z, one line for each error |
//!
//! Unsafe code is confined to [`process`] (between fork and exec).

/// Like `eprintln!`, but it does not panic if standard error is closed, and it does not overwrite a
/// progress bar.
macro_rules! complain {
    ($($words:tt)*) => {
        $crate::progress::aside(|| {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), $($words)*);
        })
    };
}

pub mod accel;
pub mod bench;
pub mod cli;
pub mod conformance;
pub mod console;
pub mod cpu_time;
mod digest;
mod disk_watch;
pub mod disks;
pub mod error;
pub mod guests;
pub mod handed;
pub mod images;
pub mod launch;
pub mod linux;
pub mod machines;
mod mailbox;
pub mod monitor;
pub mod network;
mod operator;
pub mod options;
pub mod pair;
pub mod process;
pub mod progress;
mod quoting;
pub mod runner;
pub mod serve;
pub mod setup;
pub mod signals;
pub mod sources;
pub mod storage;
mod storage_config;
mod storage_disks;
pub mod suite;
pub mod symbols;
mod temporary;
pub mod tour;
pub mod verbs;
pub mod vm;

use std::process::ExitCode;

#[doc(hidden)]
pub use operator::fuzzing;

/// Prints the error, if there is one. Returns the process's status.
pub fn exit(outcome: error::Result<u8>) -> ExitCode {
    let status = outcome.unwrap_or_else(|error| {
        // The reader of the output has closed it, and wants no message.
        if !error.is_closed_output() {
            complain!("ferrovia: {error}");
        }
        error.status()
    });
    ExitCode::from(status)
}
