//! Gungraun's runner, built here so that `cargo bench` needs no installed program but Valgrind,
//! which it finds, installs or asks for in the same way as QEMU.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Err(error) = qemu::setup::ensure_valgrind() {
        return qemu::exit(Err(error));
    }
    match gungraun_runner::runner::run::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
