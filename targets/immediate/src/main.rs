//! immediate: `cargo run -- immediate server`, `cargo run -- immediate client ADDRESS`. The crate
//! `apps` has the protocol and the options.
#![no_std]
#![no_main]

use apps::immediate;
use kernel::{Boot, println};

kernel::entry!(main);

fn main(boot: Boot) -> i32 {
    let words = kernel::args().raw();
    apps::run(boot.platform, boot.privileged, boot.nics, words, immediate::either, &mut |line| {
        println!("{line}")
    })
}
