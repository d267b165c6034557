//! The smallest image: prints the machine's memory and NICs, and ends.
#![no_std]
#![no_main]

use kernel::{Boot, println};

kernel::entry!(main);

fn main(boot: Boot) -> i32 {
    println!("hello: {} MiB of RAM, {} NICs", kernel::memory::size() >> 20, boot.nics.len());
    0
}
