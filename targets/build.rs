//! Links an image with the repository's linker script. Every image's manifest names this file as
//! its build script.
//!
//! All paths are relative or below OUT_DIR, so that they mean this checkout also after it was moved
//! or copied: cargo does not run a build script again for that, but it follows OUT_DIR.

use std::fs;
use std::path::Path;

fn main() {
    // Cargo runs a build script in the package's folder.
    let script = "../../linker.ld";
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let copy = Path::new(&out).join("linker.ld");
    fs::copy(script, &copy).expect("the repository has a linker.ld");
    println!("cargo:rustc-link-arg-bins=-T{}", copy.display());
    println!("cargo:rerun-if-changed={script}");
}
