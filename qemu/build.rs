//! Tells the launcher which sources it is built from, as a digest (`src/digest.rs`).

use std::path::Path;

#[path = "src/digest.rs"]
mod digest;

fn main() {
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&package).parent().expect("the package is a folder of the repository");
    let digest = digest::digest(root).expect("the sources can be read");
    println!("cargo:rustc-env=FERROVIA_SOURCES={digest}");
    // Relative paths, so that they mean this checkout also after it was moved or copied.
    println!("cargo:rerun-if-changed=build.rs");
    for folder in digest::FOLDERS {
        println!("cargo:rerun-if-changed=../{folder}/Cargo.toml");
        println!("cargo:rerun-if-changed=../{folder}/src");
    }
}
