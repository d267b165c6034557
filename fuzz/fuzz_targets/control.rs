#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::target("control").expect("a target")(bytes));
