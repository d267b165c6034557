//! Gungraun's runner, built here so that `cargo bench` needs nothing installed but Valgrind, which is looked for, and installed
//! or asked for, as QEMU is.

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
