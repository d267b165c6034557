//! What each fuzz target does with its input, as an ordinary function: libFuzzer calls it with
//! inputs that it invents, `cargo test` with the committed seeds.
//!
//! A function panics if it finds an error: the code under test panicked, never became idle, left
//! something behind, or accessed memory outside its own. It is deterministic, so every input can be
//! replayed.

mod admin;
mod api;
mod auth;
mod calls;
mod capsule;
mod cm;
mod control;
mod convert;
mod dat_calls;
mod descriptor;
mod input;
mod liar;
mod mpa;
mod packets;
mod pass;
mod port;
mod port_streams;
mod race;
mod reservations;
mod stream;
mod tcp;
mod transport;
mod vipl;
mod vipl_calls;
mod wire;
mod work;

pub use input::Input;

/// What a target does with its input.
pub type Body = fn(&[u8]);

/// All targets, by the names of their files in `fuzz/fuzz_targets`.
pub const TARGETS: [(&str, Body); 22] = [
    ("admin", admin::run),
    ("work", work::run),
    ("api", api::run),
    ("liar", liar::run),
    ("race", race::run),
    ("cm", cm::run),
    ("wire", wire::run),
    ("port", port::run),
    ("port_streams", port_streams::run),
    ("transport", transport::run),
    ("packets", packets::run),
    ("capsule", capsule::run),
    ("auth", auth::run),
    ("reservations", reservations::run),
    ("control", control::run),
    ("descriptor", descriptor::run),
    ("vipl", vipl::run),
    ("tcp", tcp::run),
    ("mpa", mpa::run),
    ("stream", stream::run),
    ("pass", pass::run),
    ("convert", convert::run),
];

/// The target of that name.
pub fn target(name: &str) -> Option<Body> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, body)| *body)
}
