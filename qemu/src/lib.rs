//! The host's side of Ferrovia: the launcher that `cargo run` runs, and the front-ends that attach the device model
//! to QEMU.
//!
//! | module | subject |
//! |---|---|
//! | [`cli`], [`options`] | the command line |
//! | [`setup`], [`images`] | what has to be there first: QEMU, the Rust target, a built image |
//! | [`launch`], [`tour`], [`mod@bench`] | running one image and passing on what it says |
//! | [`suite`], [`runner`], [`machines`], [`conformance`] | running the tests, over as many guests as it takes |
//! | [`vm`], [`console`], [`symbols`] | one guest: how it starts, speaks and ends |
//! | [`frontend`], [`device`], [`memory`] | its NICs: how QEMU sees them, and the thread that plays them |
//! | [`process`], [`signals`], [`error`] | children that die with us, Ctrl-C, and one line for each error |
//!
//! Unsafe code is confined to [`memory`] (mappings) and [`process`] (between fork and exec).

/// Like `eprintln!`, but whoever closed our standard error gets no panic for it.
macro_rules! complain {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

pub mod bench;
pub mod cli;
pub mod conformance;
pub mod console;
pub mod device;
pub mod error;
pub mod frontend;
pub mod images;
pub mod launch;
pub mod machines;
pub mod memory;
pub mod options;
pub mod process;
pub mod runner;
pub mod setup;
pub mod signals;
pub mod suite;
pub mod symbols;
pub mod tour;
pub mod vm;

use std::process::ExitCode;

/// Prints the error if there is one, and turns it all into the process's status.
pub fn exit(outcome: error::Result<u8>) -> ExitCode {
    let status = outcome.unwrap_or_else(|error| {
        // Whoever closed our output has seen enough, and knows.
        if !error.is_closed_output() {
            complain!("ferrovia: {error}");
        }
        error.status()
    });
    ExitCode::from(status)
}
