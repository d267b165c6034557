//! The server of rping: `cargo run -- rping-server`. The crate `apps` has the protocol and the
//! options.
#![no_std]
#![no_main]

use apps::rping;
use kernel::{Boot, println};

kernel::entry!(main);

fn main(boot: Boot) -> i32 {
    let words = kernel::args().raw();
    apps::run(boot.platform, boot.privileged, boot.nics, words, rping::server, &mut |line| println!("{line}"))
}
