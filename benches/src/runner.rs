//! Gungraun's runner, built here so that `cargo bench` needs nothing installed but valgrind, which it installs
//! or asks for itself.

fn main() {
    if let Err(error) = gungraun_runner::runner::run::run() {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}
