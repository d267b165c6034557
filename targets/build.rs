//! Links an image by the repository's linker script. Every image's manifest names this file as its build script.

use std::path::Path;

fn main() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let script = Path::new(&manifest).join("../../linker.ld");
    let script = script.canonicalize().expect("the repository has a linker.ld");
    println!("cargo:rustc-link-arg-bins=-T{}", script.display());
    println!("cargo:rerun-if-changed={}", script.display());
}
