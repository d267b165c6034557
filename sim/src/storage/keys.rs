//! The keys by which hosts prove who they are.

use nvme::auth::Secret;

use crate::harness::wrong::{Must, Step};

/// The key of the hosts that the target knows.
const RIGHT: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// One that no host has.
const WRONG: &str = "DHHC-1:00:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";

/// The key of the hosts that the target knows.
pub(super) fn right() -> Step<Secret> {
    Secret::parse(RIGHT).must("a key")
}

/// One that no host has.
pub(super) fn wrong() -> Step<Secret> {
    Secret::parse(WRONG).must("a key")
}
