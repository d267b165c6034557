//! udaddy: `cargo run -- udaddy server`, `cargo run -- udaddy client ADDRESS`. The crate `apps`
//! has the protocol and the options.
#![no_std]
#![no_main]

use apps::udaddy;
use kernel::{Boot, println};

kernel::entry!(main);

fn main(boot: Boot) -> i32 {
    let words = kernel::args().raw();
    apps::run(boot.platform, boot.privileged, boot.nics, words, udaddy::either, &mut |line| {
        println!("{line}")
    })
}
