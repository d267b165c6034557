//! Names the library, and keeps it: functions that it has replaced are called until the process
//! ends.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libferrovia-preload.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
