//! Threads of the library run until the process ends, so it is never unloaded.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
