//! The conformance suite in the kernel: builds the suite's image, boots it under QEMU and reports
//! each test.
//!
//! `cargo test -p ferrovia-conformance --test kernel -- lmr` runs the tests whose names contain
//! `lmr`.

fn main() -> std::process::ExitCode {
    qemu::runner::main()
}
