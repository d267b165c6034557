//! The launcher. All its code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferrovia_qemu::exit(ferrovia_qemu::cli::run(std::env::args_os().skip(1)))
}
