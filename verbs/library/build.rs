//! Names the library, and defines the versions of its symbols: a program of a distribution asks for
//! `ibv_open_device` of version `IBVERBS_1.1`. The names themselves get their versions in
//! `src/symbols.rs`.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=versions.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/versions.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Threads of the library run until the process ends, so it is never unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
