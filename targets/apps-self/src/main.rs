//! The programs of the crate `apps` among themselves, each server on the second NIC and each client
//! on the first: `cargo run -- boot apps-self`.
#![no_std]
#![no_main]

use apps::{Side, cmatose, immediate, rping, udaddy};
use kernel::{Boot, println};

kernel::entry!(main);

const PAIRS: [(Side, Side); 4] = [
    (
        Side { program: rping::server, words: "clients=1" },
        Side { program: rping::client, words: "count=100 size=4096 verify" },
    ),
    (
        Side { program: cmatose::server, words: "clients=1 connections=4" },
        Side { program: cmatose::client, words: "connections=4" },
    ),
    (
        Side { program: udaddy::server, words: "clients=1 connections=4" },
        Side { program: udaddy::client, words: "connections=4" },
    ),
    (Side { program: immediate::server, words: "clients=1" }, Side { program: immediate::client, words: "" }),
];

fn main(boot: Boot) -> i32 {
    apps::run_pairs(boot.platform, boot.privileged, boot.nics, &PAIRS, |line| println!("{line}"))
}
